//! SQLite: a file in a directory of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{AssertSqlSafe, Connection, Row, Sqlite};
use tower_inbox::Tx;

use super::{Entry, Fault, Isolation, Nested, TestDb, Then};

/// A database file. Its directory goes with the last handle.
#[derive(Clone)]
pub(crate) struct SqliteFile(Arc<Directory>);

struct Directory {
    path: PathBuf,
    prefix: String,
    is_ours: bool,
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

const TABLES: &str = "
    CREATE TABLE ledger (
        n INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL, account TEXT NOT NULL, sequence INTEGER,
        amount INTEGER NOT NULL);
    CREATE TABLE mark (n INTEGER PRIMARY KEY AUTOINCREMENT, m INTEGER NOT NULL);
    CREATE TABLE taken (n INTEGER PRIMARY KEY, times INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE child (n INTEGER REFERENCES taken (n) DEFERRABLE INITIALLY DEFERRED);
    INSERT INTO taken (n) VALUES (1), (2), (3);";

impl SqliteFile {
    pub(crate) fn path(&self) -> PathBuf {
        self.0.path.join("test.db")
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}?mode=rwc", self.path().display())
    }

    /// By which another process finds it.
    #[cfg(feature = "failpoints")]
    pub(crate) fn as_handle(&self) -> String {
        format!("{} {}", self.0.path.display(), self.0.prefix)
    }

    /// A database that another process has made, which removes it too.
    #[cfg(feature = "failpoints")]
    pub(crate) fn of_handle(handle: &str) -> Self {
        let (path, prefix) = handle.rsplit_once(' ').expect("a path and a name");
        Self(Arc::new(Directory {
            path: path.into(),
            prefix: prefix.to_owned(),
            is_ours: false,
        }))
    }

    /// A copy of the database as it is now, as a backup would take it.
    pub(crate) async fn copy_aside(&self, pool: &SqlitePool) -> PathBuf {
        let copy = self.0.path.join("copy.db");
        sqlx::query("VACUUM INTO ?")
            .bind(copy.to_str().expect("a plain path"))
            .execute(pool)
            .await
            .expect("a copy");
        // A copy made by VACUUM has no WAL mode of its own before a connection sets it: as with any restored file.
        copy
    }

    /// Puts a copy in the place of the database, under whoever has it open.
    pub(crate) fn put_back(&self, copy: &Path) {
        for end in ["-wal", "-shm"] {
            let mut name = self.path().into_os_string();
            name.push(end);
            let _ = std::fs::remove_file(name);
        }
        std::fs::rename(copy, self.path()).expect("the copy is put back");
    }
}

impl TestDb for SqliteFile {
    type DB = Sqlite;
    const NAME: &'static str = "sqlite";
    const SINGLE_WRITER: bool = true;
    #[cfg(feature = "failpoints")]
    const JOINS_ANY: bool = true;
    const NAP: Option<&'static str> = None;
    const HOLD_ROW: &'static str = "BEGIN IMMEDIATE";
    const ISOLATION: &'static [Isolation] = &[Isolation {
        name: "its only level",
        set: "SELECT 1",
        may_fail: false,
    }];
    const SESSION: Option<&'static str> = None;
    const ODD_SESSION: &'static str = "SELECT 1";
    const CONNECTION_ID: Option<&'static str> = None;

    async fn create() -> Result<Self, String> {
        let mark = fastrand::u64(..);
        let path =
            std::env::temp_dir().join(format!("tower-inbox-{}-{mark:x}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| error.to_string())?;
        let db = Self(Arc::new(Directory {
            path,
            prefix: format!("t{mark:x}_"),
            is_ours: true,
        }));
        let pool = db.pool(PoolOptions::new().max_connections(1)).await;
        sqlx::raw_sql(TABLES)
            .execute(&pool)
            .await
            .map_err(|error| error.to_string())?;
        pool.close().await;
        Ok(db)
    }

    async fn destroy(self) {}

    fn prefix(&self) -> &str {
        &self.0.prefix
    }

    async fn pool(&self, options: PoolOptions<Sqlite>) -> SqlitePool {
        let connect = tower_inbox::sqlite::connect_options(&self.url()).expect("a URL of ours");
        options.connect_with(connect).await.expect("a pool")
    }

    fn demotion(&self) -> Option<(String, String)> {
        None
    }

    async fn append(conn: &mut SqliteConnection, entry: &Entry) -> sqlx::Result<()> {
        sqlx::query("INSERT INTO ledger (event_id, account, sequence, amount) VALUES (?, ?, ?, ?)")
            .bind(&entry.event_id)
            .bind(&entry.account)
            .bind(entry.sequence)
            .bind(entry.amount)
            .execute(conn)
            .await?;
        Ok(())
    }

    async fn ledger(pool: &SqlitePool) -> Vec<Entry> {
        let rows = sqlx::query("SELECT event_id, account, sequence, amount FROM ledger ORDER BY n")
            .fetch_all(pool)
            .await
            .expect("the ledger");
        rows.iter()
            .map(|row| Entry {
                event_id: row.get(0),
                account: row.get(1),
                sequence: row.get(2),
                amount: row.get(3),
            })
            .collect()
    }

    async fn execute(conn: &mut SqliteConnection, sql: &str) -> sqlx::Result<u64> {
        Ok(sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(conn)
            .await?
            .rows_affected())
    }

    async fn number_on(conn: &mut SqliteConnection, sql: &str) -> sqlx::Result<i64> {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await
    }

    async fn text_on(conn: &mut SqliteConnection, sql: &str) -> sqlx::Result<String> {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await
    }

    async fn texts(pool: &SqlitePool, sql: &str) -> Vec<String> {
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(pool)
            .await
            .expect("texts")
    }

    async fn open_transactions(_: &SqlitePool) -> i64 {
        0
    }

    async fn nested(conn: &mut SqliteConnection, entry: Entry, end: Nested) -> sqlx::Result<()> {
        let mut nested = conn.begin().await?;
        Self::append(&mut nested, &entry).await?;
        match end {
            Nested::Commit => nested.commit().await?,
            Nested::Drop => drop(nested),
            Nested::Leak => std::mem::forget(nested),
        }
        Ok(())
    }

    async fn burn(conn: &mut SqliteConnection) -> sqlx::Result<()> {
        let endless =
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000000000)
            SELECT COUNT(*) FROM n";
        sqlx::query(endless).fetch_one(conn).await?;
        Ok(())
    }

    fn faults() -> Vec<Fault<Self>> {
        /// Statements whose errors the handler ignores.
        macro_rules! fault {
            ($name:literal, $sql:literal, $then:expr) => {
                Fault {
                    name: $name,
                    spoil: |mut tx| {
                        Box::pin(async move {
                            let _ = Self::execute(&mut tx, $sql).await;
                        })
                    },
                    then: $then,
                }
            };
        }
        vec![
            // The statement alone is undone; the transaction is good.
            fault!(
                "a swallowed error",
                "INSERT INTO nowhere VALUES (1)",
                Then::Applied
            ),
            fault!(
                "a swallowed constraint",
                "INSERT INTO taken (n) VALUES (1)",
                Then::Applied
            ),
            fault!(
                "DDL",
                "CREATE TABLE by_the_handler (n INTEGER)",
                Then::Applied
            ),
            // The statement passes, and the COMMIT does not.
            fault!(
                "a constraint that is deferred to the commit",
                "INSERT INTO child (n) VALUES (99)",
                Then::FailedThenApplied
            ),
            fault!("a savepoint left open", "SAVEPOINT mine", Then::Applied),
            fault!("COMMIT", "COMMIT", Then::FailedThenDuplicate),
            fault!("COMMIT; BEGIN", "COMMIT; BEGIN", Then::FailedThenDuplicate),
            fault!(
                "COMMIT; BEGIN IMMEDIATE",
                "COMMIT; BEGIN IMMEDIATE",
                Then::FailedThenDuplicate
            ),
            fault!("ROLLBACK", "ROLLBACK", Then::FailedThenApplied),
            fault!(
                "ROLLBACK; BEGIN",
                "ROLLBACK; BEGIN",
                Then::FailedThenApplied
            ),
            fault!(
                "our savepoint released",
                "RELEASE tower_inbox",
                Then::FailedThenApplied
            ),
            // A constraint that ends the whole transaction, as a full disk would.
            fault!(
                "rolled back by the server",
                "INSERT OR ROLLBACK INTO taken (n) VALUES (1)",
                Then::FailedThenApplied
            ),
            Fault {
                name: "kept by a task",
                spoil: |tx: Tx<Sqlite>| {
                    Box::pin(async move {
                        tokio::spawn(async move {
                            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
                            drop(tx);
                        });
                    })
                },
                then: Then::FailedThenApplied,
            },
        ]
    }
}
