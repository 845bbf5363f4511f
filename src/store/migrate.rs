//! Bringing the schema up to date.

use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, Database, Pool, SqlSafeStr};

/// Attempts of one process; another one that migrates at the same time makes at most one of them fail a version.
const ATTEMPTS: u32 = 5;

/// One file of `migrations/`.
pub(crate) struct Version {
    pub(crate) number: i64,
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
}

/// Applies what is missing.
///
/// The tables are tracked in `<prefix>migrations`, a table of our own: sharing `_sqlx_migrations` with the user's
/// app fails, since each then finds the other's versions missing. Versions that are newer than this crate are left
/// alone, so that version n keeps working beside n+1.
pub(crate) async fn run<DB>(
    pool: &Pool<DB>,
    prefix: &str,
    versions: &[Version],
) -> Result<(), MigrateError>
where
    DB: Database,
    DB::Connection: Migrate,
{
    let migrator = migrator(prefix, versions);
    let mut attempt = 1;
    loop {
        let mut conn = pool.acquire().await?;
        match migrator.run_direct(None, &mut *conn, false).await {
            Ok(()) => return Ok(()),
            // Two processes that start together both find a version missing, and one of them fails. Each version is
            // one transaction with its row, so looking again finds either nothing to do or the same error.
            Err(error) if attempt < ATTEMPTS => {
                tracing::debug!(%error, attempt, "migration failed; looking again");
                super::close_hard(conn);
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

pub(crate) fn migrator(prefix: &str, versions: &[Version]) -> Migrator {
    let mut migrator = Migrator::with_migrations(
        versions
            .iter()
            .map(|version| {
                let sql = version.sql.replace("tower_inbox_", prefix);
                Migration::new(
                    version.number,
                    version.name.into(),
                    MigrationType::Simple,
                    AssertSqlSafe(sql).into_sql_str(),
                    false,
                )
            })
            .collect(),
    );
    migrator.set_ignore_missing(true);
    // The driver's is a session lock, which breaks behind PgBouncer in transaction mode. What a database needs besides,
    // its own file sees to.
    migrator.set_locking(false);
    migrator.dangerous_set_table_name(format!("{prefix}migrations"));
    migrator
}
