//! Bringing the schema up to date.
//!
//! What every file in `migrations/` keeps to, since it meets a database at work and may be broken off at any point:
//! - No step holds the lock of one table while it waits for another one's: a version alters one table that is there already,
//!   and what it makes besides is new. (Version 2 is older than this rule.) Deliveries wait for a second at most then.
//! - MySQL commits each statement by itself. So a statement is done or not, as one statement of DDL is (MySQL 8, MariaDB
//!   10.6); it makes or drops something, under a name that no earlier statement had, so that doing it again fails with an
//!   error that says so; and it writes no rows.
//! - No literal and no name has a `;` or `--` in it: MySQL's files are taken apart at them.

use std::time::Duration;

#[cfg(feature = "sqlite")]
use sqlx::migrate::{Migrate, MigrateError};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr};
#[cfg(feature = "sqlite")]
use sqlx::{Database, Pool};

/// Attempts of one process, beyond one for each version: another one that migrates at the same time makes at most one of
/// them fail a version.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const ATTEMPTS: usize = 4;

/// One file of `migrations/`.
pub(crate) struct Version {
    pub(crate) number: i64,
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
}

/// A version of the inbox's tables, as [`InboxBuilder::schema`](crate::InboxBuilder::schema) tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SchemaVersion {
    /// Its number, from 1 on.
    pub number: i64,
    /// What it is about; nothing if it is a newer version of this crate's that has brought it.
    pub name: Option<&'static str>,
    /// Whether the database has it.
    pub applied: bool,
}

/// Looks, and changes nothing.
#[cfg(feature = "sqlite")]
pub(crate) async fn versions<DB>(
    pool: &Pool<DB>,
    prefix: &str,
    versions: &[Version],
) -> Result<Vec<SchemaVersion>, MigrateError>
where
    DB: Database,
    DB::Connection: Migrate,
{
    let mut conn = pool.acquire().await?;
    let table = format!("{prefix}migrations");
    let applied = match conn.list_applied_migrations(&table).await {
        Ok(applied) => applied,
        Err(MigrateError::Execute(error)) if is_no_table(&error) => Vec::new(),
        Err(error) => return Err(error),
    };
    let applied: Vec<_> = applied.iter().map(|there| there.version).collect();
    Ok(described(&applied, versions))
}

/// Ours and others, of which these are applied.
pub(crate) fn described(applied: &[i64], versions: &[Version]) -> Vec<SchemaVersion> {
    let ours = versions.iter().map(|version| SchemaVersion {
        number: version.number,
        name: Some(version.name),
        applied: applied.contains(&version.number),
    });
    let is_ours = |number: &i64| versions.iter().any(|version| version.number == *number);
    let others = applied.iter().filter(|number| !is_ours(number));
    let others = others.map(|number| SchemaVersion {
        number: *number,
        name: None,
        applied: true,
    });
    let mut all: Vec<_> = ours.chain(others).collect();
    all.sort_by_key(|version| version.number);
    all
}

/// By code: PostgreSQL's, MySQL's, and SQLite's general one.
pub(crate) fn is_no_table(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("42P01" | "42S02" | "1"))
}

/// How long a step is tried in all that does not get the lock of a table: most handlers' transactions are over after some seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Applies what is missing. Each version is one transaction with its row: what is broken off is rolled back.
#[cfg(feature = "sqlite")]
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
            // Two processes that start together both find a version missing, and one of them fails. Looking again finds
            // either nothing to do or the same error.
            Err(error) if attempt < attempts(versions) => {
                tracing::debug!(%error, attempt, "migration failed; looking again");
                super::close_hard(conn);
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Another process can be quicker with each version, and with the table of versions.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn attempts(versions: &[Version]) -> usize {
    versions.len() + ATTEMPTS
}

/// The tables are tracked in `<prefix>migrations`, a table of our own: sharing `_sqlx_migrations` with the user's
/// app fails, since each then finds the other's versions missing. Versions that are newer than this crate are left
/// alone, so that version n keeps working beside n+1.
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
