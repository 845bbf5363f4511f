//! MariaDB, or MySQL: a database of its own on the server of `TEST_MYSQL_URL`.

use std::str::FromStr;
use std::sync::Arc;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPool};
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, MySql, Row};

use super::{Entry, Fault, Isolation, Nested, TestDb, Then, fault, kept_by_a_task};

/// A database on a server.
#[derive(Clone)]
pub(crate) struct MySqlDb(Arc<Place>);

struct Place {
    server: MySqlConnectOptions,
    name: String,
    prefix: String,
}

// Identifiers as bytes: what is compared in tests must not be folded by a collation.
const TABLES: &str = "
    CREATE TABLE ledger (
        n BIGINT AUTO_INCREMENT PRIMARY KEY, event_id VARBINARY(255) NOT NULL, account VARBINARY(255) NOT NULL,
        sequence BIGINT, amount BIGINT NOT NULL) ENGINE = InnoDB;
    CREATE TABLE mark (n BIGINT AUTO_INCREMENT PRIMARY KEY, m INTEGER NOT NULL) ENGINE = InnoDB;
    CREATE TABLE taken (n INTEGER PRIMARY KEY, times INTEGER NOT NULL DEFAULT 0) ENGINE = InnoDB;
    INSERT INTO taken (n) VALUES (1), (2), (3);";

impl MySqlDb {
    /// A fresh database on this server.
    pub(crate) async fn on(url: &str) -> Result<Self, String> {
        let made = async {
            let server = MySqlConnectOptions::from_str(url)?;
            let mark = fastrand::u64(..);
            let db = Self(Arc::new(Place {
                server,
                name: format!("tower_inbox_test_{mark:x}"),
                prefix: format!("t{mark:x}_"),
            }));
            db.on_server(&format!("CREATE DATABASE {}", db.0.name))
                .await?;
            let mut conn = db.options().connect().await?;
            sqlx::raw_sql(TABLES).execute(&mut conn).await?;
            conn.close().await?;
            Ok::<_, sqlx::Error>(db)
        };
        made.await.map_err(|error| error.to_string())
    }

    /// How to connect to it.
    pub(crate) fn options(&self) -> MySqlConnectOptions {
        self.0.server.clone().database(&self.0.name)
    }

    /// By which another process finds it.
    #[cfg(feature = "failpoints")]
    pub(crate) fn as_handle(&self) -> String {
        format!("{} {}", self.0.name, self.0.prefix)
    }

    /// A database that another process has made, which removes it too.
    #[cfg(feature = "failpoints")]
    pub(crate) fn of_handle(handle: &str) -> Self {
        let url = std::env::var("TEST_MYSQL_URL").expect("the other process has it");
        let (name, prefix) = handle.split_once(' ').expect("two names");
        Self(Arc::new(Place {
            server: MySqlConnectOptions::from_str(&url).expect("a URL"),
            name: name.to_owned(),
            prefix: prefix.to_owned(),
        }))
    }

    /// A statement about the database, from outside of it.
    pub(crate) async fn on_server(&self, sql: &str) -> sqlx::Result<()> {
        let mut conn = self.0.server.connect().await?;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await?;
        conn.close().await
    }
}

impl TestDb for MySqlDb {
    type DB = MySql;
    const NAME: &'static str = "mysql";
    const SINGLE_WRITER: bool = false;
    #[cfg(feature = "failpoints")]
    const JOINS_ANY: bool = false;
    const NAP: Option<&'static str> = Some("SELECT SLEEP(9)");
    const HOLD_ROW: &'static str =
        "START TRANSACTION; UPDATE taken SET times = times + 1 WHERE n = 1";
    const ISOLATION: &'static [Isolation] = &[
        Isolation {
            name: "READ COMMITTED",
            set: "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            may_fail: false,
        },
        Isolation {
            name: "REPEATABLE READ",
            set: "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            may_fail: true,
        },
        Isolation {
            name: "SERIALIZABLE",
            set: "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
            may_fail: true,
        },
    ];
    // Without what differs between any two statements.
    const SESSION: Option<&'static str> = Some(
        "SELECT GROUP_CONCAT(variable_name, '=', variable_value ORDER BY variable_name SEPARATOR '\n')
        FROM information_schema.session_variables
        WHERE variable_name NOT IN ('TIMESTAMP', 'PSEUDO_THREAD_ID', 'LAST_INSERT_ID', 'INSERT_ID', 'IDENTITY',
            'RAND_SEED1', 'RAND_SEED2', 'ERROR_COUNT', 'WARNING_COUNT', 'LAST_GTID', 'PROXY_USER')
        AND variable_name NOT LIKE 'GTID%'",
    );
    const ODD_SESSION: &'static str =
        "SET innodb_lock_wait_timeout = 55, max_statement_time = 66, idle_transaction_timeout = 77";
    const CONNECTION_ID: Option<&'static str> = Some("SELECT CONNECTION_ID()");

    async fn create() -> Result<Self, String> {
        let url = std::env::var("TEST_MYSQL_URL")
            .map_err(|_| "TEST_MYSQL_URL is not set: tests/run starts a server")?;
        Self::on(&url).await
    }

    async fn destroy(self) {
        let dropped = async {
            // DROP DATABASE waits for whoever has used a table in a transaction that is open.
            let mut conn = self.0.server.connect().await?;
            let others = format!(
                "SELECT id FROM information_schema.processlist WHERE db = '{}'",
                self.0.name
            );
            let others: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(others))
                .fetch_all(&mut conn)
                .await?;
            for id in others {
                // It may have ended by itself.
                let _ = Self::execute(&mut conn, &format!("KILL {id}")).await;
            }
            conn.close().await?;
            let drop = format!("SET lock_wait_timeout = 20; DROP DATABASE {}", self.0.name);
            self.on_server(&drop).await
        };
        if let Err(error) = dropped.await {
            eprintln!("{} is left behind: {error}", self.0.name);
        }
    }

    fn prefix(&self) -> &str {
        &self.0.prefix
    }

    async fn pool(&self, options: PoolOptions<MySql>) -> MySqlPool {
        options.connect_with(self.options()).await.expect("a pool")
    }

    fn demotion(&self) -> Option<(String, String)> {
        None
    }

    async fn append(conn: &mut MySqlConnection, entry: &Entry) -> sqlx::Result<()> {
        sqlx::query("INSERT INTO ledger (event_id, account, sequence, amount) VALUES (?, ?, ?, ?)")
            .bind(&entry.event_id)
            .bind(&entry.account)
            .bind(entry.sequence)
            .bind(entry.amount)
            .execute(conn)
            .await?;
        Ok(())
    }

    async fn ledger(pool: &MySqlPool) -> Vec<Entry> {
        let rows = sqlx::query("SELECT event_id, account, sequence, amount FROM ledger ORDER BY n")
            .fetch_all(pool)
            .await
            .expect("the ledger");
        rows.iter()
            .map(|row| Entry {
                event_id: text(row, 0),
                account: text(row, 1),
                sequence: row.get(2),
                amount: row.get(3),
            })
            .collect()
    }

    async fn execute(conn: &mut MySqlConnection, sql: &str) -> sqlx::Result<u64> {
        Ok(sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(conn)
            .await?
            .rows_affected())
    }

    async fn number_on(conn: &mut MySqlConnection, sql: &str) -> sqlx::Result<i64> {
        // Columns have types of several widths.
        sqlx::query_scalar(AssertSqlSafe(format!("SELECT CAST(({sql}) AS SIGNED)")))
            .fetch_one(conn)
            .await
    }

    async fn text_on(conn: &mut MySqlConnection, sql: &str) -> sqlx::Result<String> {
        let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(conn).await?;
        Ok(text(&row, 0))
    }

    async fn texts(pool: &MySqlPool, sql: &str) -> Vec<String> {
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(pool).await;
        let rows = rows.expect("texts");
        rows.iter().map(|row| text(row, 0)).collect()
    }

    async fn open_transactions(pool: &MySqlPool) -> i64 {
        let idle = "SELECT CAST(id AS CHAR) FROM information_schema.processlist
            WHERE db = DATABASE() AND command = 'Sleep'";
        let idle = Self::texts(pool, idle).await;
        // Not information_schema.innodb_trx: whoever looks there more often than every 100 ms is shown its past.
        let status = sqlx::raw_sql("SHOW ENGINE INNODB STATUS")
            .fetch_one(pool)
            .await
            .expect("the engine's status");
        let status = text(&status, 2);
        // A block for each transaction; that of a session without one says "not started".
        let open = status
            .split("---TRANSACTION ")
            .skip(1)
            .filter(|block| {
                block
                    .lines()
                    .next()
                    .is_some_and(|line| line.contains("ACTIVE"))
            })
            .filter_map(|block| block.split("thread id ").nth(1)?.split([',', ' ']).next())
            .filter(|id| idle.iter().any(|idle| idle == id));
        i64::try_from(open.count()).expect("few")
    }

    async fn nested(conn: &mut MySqlConnection, entry: Entry, end: Nested) -> sqlx::Result<()> {
        let mut nested = conn.begin().await?;
        Self::append(&mut nested, &entry).await?;
        match end {
            Nested::Commit => nested.commit().await?,
            Nested::Drop => drop(nested),
            Nested::Leak => std::mem::forget(nested),
        }
        Ok(())
    }

    async fn burn(conn: &mut MySqlConnection) -> sqlx::Result<()> {
        sqlx::raw_sql("SELECT BENCHMARK(1000000000000, MD5('burn'))")
            .execute(conn)
            .await?;
        Ok(())
    }

    fn faults() -> Vec<Fault<Self>> {
        use Then::{Applied, FailedThenApplied, FailedThenDuplicate, UnknownThenApplied};
        vec![
            // The statement alone is undone; the transaction is good.
            fault!(
                "a swallowed error",
                Applied,
                ["INSERT INTO nowhere VALUES (1)"]
            ),
            fault!(
                "a swallowed constraint",
                Applied,
                ["INSERT INTO taken (n) VALUES (1)"]
            ),
            fault!("a savepoint left open", Applied, ["SAVEPOINT mine"]),
            fault!(
                "a statement that is killed",
                Applied,
                ["KILL QUERY CONNECTION_ID()"]
            ),
            fault!(
                "DDL of a temporary table",
                Applied,
                ["CREATE TEMPORARY TABLE by_the_handler (n INTEGER)"]
            ),
            // DDL commits what was before it.
            fault!(
                "DDL",
                FailedThenDuplicate,
                ["CREATE TABLE by_the_handler (n INTEGER)"]
            ),
            fault!(
                "LOCK TABLES",
                FailedThenDuplicate,
                ["LOCK TABLES taken READ"]
            ),
            fault!("COMMIT", FailedThenDuplicate, ["COMMIT"]),
            fault!(
                "COMMIT; START TRANSACTION",
                FailedThenDuplicate,
                ["COMMIT; START TRANSACTION"]
            ),
            fault!(
                "COMMIT AND CHAIN",
                FailedThenDuplicate,
                ["COMMIT AND CHAIN"]
            ),
            fault!(
                "START TRANSACTION",
                FailedThenDuplicate,
                ["START TRANSACTION"]
            ),
            fault!(
                "autocommit switched on",
                FailedThenDuplicate,
                ["SET autocommit = 1"]
            ),
            fault!("ROLLBACK", FailedThenApplied, ["ROLLBACK"]),
            fault!(
                "ROLLBACK; START TRANSACTION",
                FailedThenApplied,
                ["ROLLBACK; START TRANSACTION"]
            ),
            fault!(
                "our savepoint released",
                FailedThenApplied,
                ["RELEASE SAVEPOINT tower_inbox"]
            ),
            fault!(
                "ended by the server",
                UnknownThenApplied,
                ["KILL CONNECTION_ID()"]
            ),
            Fault {
                name: "a swallowed deadlock",
                spoil: |mut tx| Box::pin(async move { deadlock(&mut tx).await }),
                then: FailedThenApplied,
            },
            kept_by_a_task(),
        ]
    }
}

/// A text of a VARBINARY column, which the driver would hand out as bytes only.
fn text(row: &sqlx::mysql::MySqlRow, index: usize) -> String {
    row.try_get_unchecked(index).expect("a text")
}

/// A deadlock with another connection, of which this one is the victim, and then more work as if nothing had
/// happened: none of it must be committed. Does nothing more if there was none.
async fn deadlock(tx: &mut MySqlConnection) {
    let name = MySqlDb::text_on(tx, "SELECT DATABASE()").await;
    let url = std::env::var("TEST_MYSQL_URL").expect("the suite's server");
    let options = MySqlConnectOptions::from_str(&url).expect("a URL");
    let options = options.database(&name.expect("a name"));
    let mut other = options.connect().await.expect("a connection");
    // The victim is whoever has changed less.
    let take = "START TRANSACTION; UPDATE taken SET times = times + 1 WHERE n = 3;
        INSERT INTO mark (m) WITH RECURSIVE i AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM i WHERE n < 500)
        SELECT n FROM i";
    MySqlDb::execute(&mut other, take).await.expect("row 3");
    let take = "UPDATE taken SET times = times + 1 WHERE n = 2";
    MySqlDb::execute(tx, take).await.expect("row 2");
    tokio::spawn(async move {
        let take = "UPDATE taken SET times = times + 1 WHERE n = 2; ROLLBACK";
        MySqlDb::execute(&mut other, take).await
    });
    let take = "UPDATE taken SET times = times + 1 WHERE n = 3";
    if MySqlDb::execute(tx, take).await.is_err() {
        let more = "INSERT INTO ledger (event_id, account, amount) VALUES ('lost', '', 1)";
        let _ = MySqlDb::execute(tx, more).await;
    }
}
