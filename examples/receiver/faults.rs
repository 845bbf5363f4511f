//! Faults on demand: with `DEMO_FAULTS=1` an event says in `data.fault` what shall go wrong after its ledger write.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tower_inbox::Tx;

use crate::ledger::Ledger;

/// How long a kept transaction outlives its handler.
const KEPT: Duration = Duration::from_secs(1);

/// What shall go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The handler answers with this.
    Status(StatusCode),
    Panic,
    /// Milliseconds in the handler.
    Sleep(u64),
    /// Milliseconds in the database.
    SqlSleep(u64),
    /// A statement fails, and the handler takes no notice.
    SqlError,
    /// The handler ends the transaction itself.
    SqlCommit,
    SqlRollback,
    /// A task keeps the transaction beyond the handler's answer.
    KeepTx,
}

impl Fault {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (name, value) = text.split_once(':').unzip();
        Some(match (name.unwrap_or(text), value) {
            ("status", Some(code)) => {
                let code = code.parse().ok().filter(|code| (200..600).contains(code))?;
                Self::Status(StatusCode::from_u16(code).ok()?)
            }
            ("sleep", Some(millis)) => Self::Sleep(millis.parse().ok()?),
            ("sql_sleep", Some(millis)) => Self::SqlSleep(millis.parse().ok()?),
            ("panic", None) => Self::Panic,
            ("sql_error", None) => Self::SqlError,
            ("sql_commit", None) => Self::SqlCommit,
            ("sql_rollback", None) => Self::SqlRollback,
            ("keep_tx", None) => Self::KeepTx,
            _ => return None,
        })
    }

    /// Lets it happen. A status is the handler's answer; an error is one that a handler takes notice of.
    pub(crate) async fn happen<DB: Faulty>(
        self,
        mut tx: Tx<DB>,
    ) -> sqlx::Result<Option<StatusCode>> {
        let unnoticed = match self {
            Self::Status(status) => return Ok(Some(status)),
            Self::Panic => panic!("a demo fault"),
            Self::Sleep(millis) => {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                Ok(())
            }
            Self::SqlSleep(millis) => return DB::sql_sleep(&mut tx, millis).await.map(|()| None),
            Self::SqlError => DB::raw(&mut tx, "SELECT nothing FROM no_such_table").await,
            Self::SqlCommit => DB::raw(&mut tx, "COMMIT").await,
            Self::SqlRollback => DB::raw(&mut tx, "ROLLBACK").await,
            Self::KeepTx => {
                tokio::spawn(async move {
                    tokio::time::sleep(KEPT).await;
                    drop(tx);
                });
                Ok(())
            }
        };
        if let Err(error) = unnoticed {
            tracing::info!(%error, "a demo fault's statement failed");
        }
        Ok(None)
    }
}

/// How often each event has run in this process: for `data.fault_times`.
#[derive(Default)]
pub(crate) struct Runs(Mutex<HashMap<String, u64>>);

impl Runs {
    /// Counts one more run; how many there have been, this one included.
    pub(crate) fn count(&self, source: &str, event_id: &str) -> u64 {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let run = runs.entry(format!("{source}/{event_id}")).or_default();
        *run += 1;
        *run
    }
}

/// What a database can be made to do.
pub(crate) trait Faulty: Ledger {
    /// Keeps the database itself busy for about so many milliseconds.
    fn sql_sleep(
        conn: &mut Self::Connection,
        millis: u64,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Runs a statement past the driver's own bookkeeping, such as COMMIT.
    fn raw(
        conn: &mut Self::Connection,
        sql: &'static str,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

#[cfg(feature = "postgres")]
impl Faulty for sqlx::Postgres {
    async fn sql_sleep(conn: &mut Self::Connection, millis: u64) -> sqlx::Result<()> {
        sqlx::query("SELECT pg_sleep($1)")
            .persistent(false)
            .bind(millis as f64 / 1e3)
            .execute(conn)
            .await?;
        Ok(())
    }

    async fn raw(conn: &mut Self::Connection, sql: &'static str) -> sqlx::Result<()> {
        sqlx::raw_sql(sql).execute(conn).await?;
        Ok(())
    }
}

#[cfg(feature = "mysql")]
impl Faulty for sqlx::MySql {
    async fn sql_sleep(conn: &mut Self::Connection, millis: u64) -> sqlx::Result<()> {
        sqlx::query("SELECT SLEEP(?)")
            .bind(millis as f64 / 1e3)
            .execute(conn)
            .await?;
        Ok(())
    }

    async fn raw(conn: &mut Self::Connection, sql: &'static str) -> sqlx::Result<()> {
        sqlx::raw_sql(sql).execute(conn).await?;
        Ok(())
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::time::{Duration, Instant};

    use sqlx::Sqlite;
    use sqlx::sqlite::SqliteConnection;

    use super::Faulty;

    /// Rows that a recursive query counts in some tens of milliseconds, to learn how fast this machine is.
    const PROBE: u64 = 100_000;

    impl Faulty for Sqlite {
        async fn sql_sleep(conn: &mut SqliteConnection, millis: u64) -> sqlx::Result<()> {
            // SQLite has no sleep, and its clock stands still within a statement: count, as far as the time should last.
            let began = Instant::now();
            let wanted = Duration::from_millis(millis);
            let mut rows = PROBE;
            loop {
                let asked = Instant::now();
                count_to(conn, rows).await?;
                let left = wanted.saturating_sub(began.elapsed());
                if left.is_zero() {
                    return Ok(());
                }
                let per_row = asked.elapsed().as_secs_f64() / rows as f64;
                rows = ((left.as_secs_f64() / per_row) as u64).max(1_000);
            }
        }

        async fn raw(conn: &mut SqliteConnection, sql: &'static str) -> sqlx::Result<()> {
            sqlx::raw_sql(sql).execute(conn).await?;
            Ok(())
        }
    }

    async fn count_to(conn: &mut SqliteConnection, rows: u64) -> sqlx::Result<()> {
        let rows = i64::try_from(rows).unwrap_or(i64::MAX);
        let sql =
            "WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < ?)
                   SELECT COUNT(*) FROM counted";
        let _: i64 = sqlx::query_scalar(sql).bind(rows).fetch_one(conn).await?;
        Ok(())
    }
}
