//! PostgreSQL: a database of its own on the server of `TEST_POSTGRES_URL`.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Postgres, Row};

use super::{Entry, Fault, Isolation, Nested, TestDb, Then, fault, kept_by_a_task};

/// A database on a server.
#[derive(Clone)]
pub(crate) struct PostgresDb(Arc<Place>);

struct Place {
    server: PgConnectOptions,
    name: String,
    prefix: String,
}

const TABLES: &str = r#"
    CREATE TABLE ledger (
        n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id TEXT NOT NULL, account TEXT NOT NULL,
        sequence BIGINT, amount BIGINT NOT NULL);
    CREATE TABLE mark (n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, m INTEGER NOT NULL);
    CREATE TABLE taken (n INTEGER PRIMARY KEY, times INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE child (n INTEGER REFERENCES taken (n) DEFERRABLE INITIALLY DEFERRED);
    INSERT INTO taken (n) VALUES (1), (2), (3);"#;

impl PostgresDb {
    /// A fresh database on this server.
    pub(crate) async fn on(url: &str) -> Result<Self, String> {
        let made = async {
            let server = PgConnectOptions::from_str(url)?;
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
    pub(crate) fn options(&self) -> PgConnectOptions {
        self.0.server.clone().database(&self.0.name)
    }

    /// Its name on the server.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// By which another process finds it.
    #[cfg(feature = "failpoints")]
    pub(crate) fn as_handle(&self) -> String {
        format!("{} {}", self.0.name, self.0.prefix)
    }

    /// A database that another process has made, which removes it too.
    #[cfg(feature = "failpoints")]
    pub(crate) fn of_handle(handle: &str) -> Self {
        let url = std::env::var("TEST_POSTGRES_URL").expect("the other process has it");
        let (name, prefix) = handle.split_once(' ').expect("two names");
        Self(Arc::new(Place {
            server: PgConnectOptions::from_str(&url).expect("a URL"),
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

impl TestDb for PostgresDb {
    type DB = Postgres;
    const NAME: &'static str = "postgres";
    const SINGLE_WRITER: bool = false;
    #[cfg(feature = "failpoints")]
    const JOINS_ANY: bool = true;
    const NAP: Option<&'static str> = Some("SELECT pg_sleep(9)");
    const HOLD_ROW: &'static str = "BEGIN; UPDATE taken SET times = times + 1 WHERE n = 1";
    const ISOLATION: &'static [Isolation] = &[
        Isolation {
            name: "READ COMMITTED",
            set: "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
            may_fail: false,
        },
        Isolation {
            name: "REPEATABLE READ",
            set: "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            may_fail: true,
        },
        Isolation {
            name: "SERIALIZABLE",
            set: "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
            may_fail: true,
        },
    ];
    const SESSION: Option<&'static str> =
        Some("SELECT string_agg(name || '=' || setting, E'\\n' ORDER BY name) FROM pg_settings");
    const ODD_SESSION: &'static str = "SET statement_timeout = 55555;
        SET idle_in_transaction_session_timeout = 66666; SET lock_timeout = 77777; SET synchronous_commit = off";
    const CONNECTION_ID: Option<&'static str> = Some("SELECT pg_backend_pid()");

    async fn create() -> Result<Self, String> {
        let url = std::env::var("TEST_POSTGRES_URL")
            .map_err(|_| "TEST_POSTGRES_URL is not set: tests/run starts a server")?;
        Self::on(&url).await
    }

    async fn destroy(self) {
        let dropped = self
            .on_server(&format!("DROP DATABASE {} WITH (FORCE)", self.0.name))
            .await;
        if let Err(error) = dropped {
            eprintln!("{} is left behind: {error}", self.0.name);
        }
    }

    fn prefix(&self) -> &str {
        &self.0.prefix
    }

    async fn pool(&self, options: PoolOptions<Postgres>) -> PgPool {
        options.connect_with(self.options()).await.expect("a pool")
    }

    fn demotion(&self) -> Option<(String, String)> {
        let name = self.name();
        let demote = format!(
            "ALTER DATABASE {name} SET default_transaction_read_only = on;
            SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()"
        );
        Some((
            demote,
            format!("ALTER DATABASE {name} RESET default_transaction_read_only"),
        ))
    }

    async fn append(conn: &mut PgConnection, entry: &Entry) -> sqlx::Result<()> {
        sqlx::query(
            "INSERT INTO ledger (event_id, account, sequence, amount) VALUES ($1, $2, $3, $4)",
        )
        .bind(&entry.event_id)
        .bind(&entry.account)
        .bind(entry.sequence)
        .bind(entry.amount)
        .execute(conn)
        .await?;
        Ok(())
    }

    async fn ledger(pool: &PgPool) -> Vec<Entry> {
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

    async fn execute(conn: &mut PgConnection, sql: &str) -> sqlx::Result<u64> {
        Ok(sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(conn)
            .await?
            .rows_affected())
    }

    async fn number_on(conn: &mut PgConnection, sql: &str) -> sqlx::Result<i64> {
        // Columns have types of several widths.
        sqlx::query_scalar(AssertSqlSafe(format!("SELECT CAST(({sql}) AS BIGINT)")))
            .fetch_one(conn)
            .await
    }

    async fn text_on(conn: &mut PgConnection, sql: &str) -> sqlx::Result<String> {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await
    }

    async fn texts(pool: &PgPool, sql: &str) -> Vec<String> {
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(pool)
            .await
            .expect("texts")
    }

    async fn open_transactions(pool: &PgPool) -> i64 {
        let open = "SELECT COUNT(*) FROM pg_stat_activity
            WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
        Self::number(pool, open).await
    }

    async fn nested(conn: &mut PgConnection, entry: Entry, end: Nested) -> sqlx::Result<()> {
        let mut nested = conn.begin().await?;
        Self::append(&mut nested, &entry).await?;
        match end {
            Nested::Commit => nested.commit().await?,
            Nested::Drop => drop(nested),
            Nested::Leak => std::mem::forget(nested),
        }
        Ok(())
    }

    async fn burn(conn: &mut PgConnection) -> sqlx::Result<()> {
        // A set that is made row by row: nothing is stored on the way.
        sqlx::raw_sql("SELECT COUNT(*) FROM (SELECT generate_series(1, 1000000000000)) AS endless")
            .execute(conn)
            .await?;
        Ok(())
    }

    fn faults() -> Vec<Fault<Self>> {
        use Then::{Applied, FailedThenApplied, FailedThenDuplicate, UnknownThenApplied};
        vec![
            // An error aborts the whole transaction here, and a COMMIT of it reports success to the driver.
            fault!(
                "a swallowed error",
                FailedThenApplied,
                ["INSERT INTO nowhere VALUES (1)"]
            ),
            fault!(
                "a swallowed constraint",
                FailedThenApplied,
                ["INSERT INTO taken (n) VALUES (1)"]
            ),
            fault!(
                "a swallowed error inside a savepoint of the handler's own",
                Applied,
                [
                    "SAVEPOINT mine",
                    "INSERT INTO taken (n) VALUES (1)",
                    "ROLLBACK TO SAVEPOINT mine"
                ]
            ),
            // The statement passes, and the COMMIT does not.
            fault!(
                "a constraint that is deferred to the commit",
                FailedThenApplied,
                ["INSERT INTO child (n) VALUES (99)"]
            ),
            fault!("a savepoint left open", Applied, ["SAVEPOINT mine"]),
            fault!(
                "a savepoint of our name inside ours",
                Applied,
                ["SAVEPOINT tower_inbox"]
            ),
            fault!("DDL", Applied, ["CREATE TABLE by_the_handler (n INTEGER)"]),
            fault!("COMMIT", FailedThenDuplicate, ["COMMIT"]),
            fault!("COMMIT; BEGIN", FailedThenDuplicate, ["COMMIT; BEGIN"]),
            fault!(
                "COMMIT AND CHAIN",
                FailedThenDuplicate,
                ["COMMIT AND CHAIN"]
            ),
            fault!("ROLLBACK", FailedThenApplied, ["ROLLBACK"]),
            fault!("ROLLBACK; BEGIN", FailedThenApplied, ["ROLLBACK; BEGIN"]),
            fault!(
                "our savepoint released",
                FailedThenApplied,
                ["RELEASE SAVEPOINT tower_inbox"]
            ),
            fault!(
                "ended by the server",
                UnknownThenApplied,
                ["SELECT pg_terminate_backend(pg_backend_pid())"]
            ),
            fault!(
                "cancelled by somebody",
                FailedThenApplied,
                ["SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(5)"]
            ),
            fault!(
                "a swallowed time limit",
                FailedThenApplied,
                ["SET LOCAL statement_timeout = 20", "SELECT pg_sleep(5)"]
            ),
            Fault {
                name: "a swallowed deadlock",
                spoil: |mut tx| {
                    Box::pin(async move {
                        deadlock(&mut tx).await;
                    })
                },
                then: FailedThenApplied,
            },
            kept_by_a_task(),
        ]
    }
}

/// A deadlock with another connection, of which this one is the victim. Does nothing more if there was none.
async fn deadlock(tx: &mut PgConnection) {
    let name = PostgresDb::text_on(tx, "SELECT current_database()::text").await;
    let url = std::env::var("TEST_POSTGRES_URL").expect("the suite's server");
    let options = PgConnectOptions::from_str(&url).expect("a URL");
    let options = options.database(&name.expect("a name"));
    let mut other = options.connect().await.expect("a connection");
    let pid = PostgresDb::number_on(&mut other, "SELECT pg_backend_pid()").await;
    let take =
        "SET deadlock_timeout = '60s'; BEGIN; UPDATE taken SET times = times + 1 WHERE n = 3";
    PostgresDb::execute(&mut other, take).await.expect("row 3");
    let take =
        "SET LOCAL deadlock_timeout = '20ms'; UPDATE taken SET times = times + 1 WHERE n = 2";
    PostgresDb::execute(tx, take).await.expect("row 2");
    tokio::spawn(async move {
        let take = "UPDATE taken SET times = times + 1 WHERE n = 2; ROLLBACK";
        PostgresDb::execute(&mut other, take).await
    });
    let blocked = format!(
        "SELECT cardinality(pg_blocking_pids({}))",
        pid.expect("a pid")
    );
    // The test's own limit is the limit: `eventually` is not for futures that move between threads.
    while PostgresDb::number_on(tx, &blocked).await.expect("a number") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let _ = PostgresDb::execute(tx, "UPDATE taken SET times = times + 1 WHERE n = 3").await;
}
