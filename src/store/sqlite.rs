//! SQLite, the embedded default.
//!
//! One writer at a time: a transaction begins IMMEDIATE, so that it holds the write lock from its first statement
//! and never fails on an upgrade, and deliveries of one process queue in memory in front of it.

use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Pool, Row, Sqlite};
use tokio::time::Instant;

use super::letters::{letter_row, statements_for_operators};
use super::migrate::{self, Version};
use super::queries::{inserted, page_key, pending_row, required, statements_of_backend, text};
use super::sql::{DeleteBatch, Dialect, UpdateClaimed};
use super::*;
use crate::broken::{self, Variant};
use crate::error::BuildError;

/// How long SQLite waits for another process's write lock before it reports a busy database. Inside one process
/// nobody waits there.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How many virtual machine instructions pass between two looks at the deadline: some tens of microseconds.
const PROGRESS_OPS: i32 = 10_000;

const VERSIONS: &[Version] = &[
    Version {
        number: 1,
        name: "inbox",
        sql: include_str!("../../migrations/sqlite/0001_inbox.sql"),
    },
    Version {
        number: 2,
        name: "order",
        sql: include_str!("../../migrations/sqlite/0002_order.sql"),
    },
    Version {
        number: 3,
        name: "keeping",
        sql: include_str!("../../migrations/sqlite/0003_keeping.sql"),
    },
];

/// Connection options that keep the contract: WAL, synchronous FULL, a busy timeout of 5 s.
///
/// `url` is what sqlx takes, such as `sqlite://app.db?mode=rwc`.
///
/// # Errors
/// If the URL cannot be read.
pub fn connect_options(url: &str) -> std::result::Result<SqliteConnectOptions, sqlx::Error> {
    Ok(SqliteConnectOptions::from_str(url)?
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT))
}

/// Opens a pool of at most `connections` connections with [`connect_options`]. When the database file is replaced, by a
/// restore say, connections to the old one are not used again, whoever had them meanwhile.
///
/// # Errors
/// If the URL cannot be read or the database cannot be opened.
pub async fn connect(
    url: &str,
    connections: u32,
) -> std::result::Result<Pool<Sqlite>, sqlx::Error> {
    let options = connect_options(url)?;
    let file = options.get_filename().to_owned();
    // Which file it is, and since when as far as this pool knows.
    let seen = Mutex::new((file_id(&file), Instant::now()));
    SqlitePoolOptions::new()
        .max_connections(connections)
        .before_acquire(move |_, meta| {
            let now = file_id(&file);
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.0 != now {
                *seen = (now, Instant::now());
            }
            let current = meta.age <= seen.1.elapsed();
            Box::pin(async move { Ok(current) })
        })
        .connect_with(options)
        .await
}

/// Device and inode of the database file: a file that was put back has another inode (§1, incarnation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct FileId {
    device: u64,
    inode: u64,
}

/// Interrupts statements that run past the budget, until disarmed.
#[doc(hidden)]
pub struct SqliteDeadline {
    armed: Arc<AtomicBool>,
}

pending_row!(sqlx::sqlite::SqliteRow);
letter_row!(sqlx::sqlite::SqliteRow);

impl sealed::Sealed for Sqlite {}

impl Backend for Sqlite {
    const MIGRATIONS: &'static str = "sqlite";
    const SINGLE_WRITER: bool = true;
    const CHEAP_INCARNATION: bool = true;
    type Incarnation = Option<FileId>;
    type Settings = ();
    type Deadline = SqliteDeadline;

    fn sql(prefix: &str) -> Sql {
        // BEGIN IMMEDIATE holds the whole database, so no row needs a lock of its own.
        let dialect = Dialect {
            numbered: false,
            on_conflict: " ON CONFLICT DO NOTHING",
            or_leave: " ON CONFLICT DO NOTHING",
            bigint: "INTEGER",
            now: "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)",
            for_update: "",
            delete_batch: DeleteBatch::PLAIN,
            update_claimed: UpdateClaimed::PLAIN,
        };
        Sql::render(&dialect, prefix)
    }

    async fn check(pool: &Pool<Self>) -> std::result::Result<(), BuildError> {
        let mut conn = pool.acquire().await?;
        let file: String =
            sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
                .fetch_one(&mut *conn)
                .await?;
        if file.is_empty() {
            return check_in_memory(pool);
        }
        let journal: String = sqlx::query_scalar("PRAGMA journal_mode")
            .fetch_one(&mut *conn)
            .await?;
        let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous")
            .fetch_one(&mut *conn)
            .await?;
        if !journal.eq_ignore_ascii_case("wal") || synchronous < 2 {
            return Err(BuildError::unsafe_setting(format!(
                "SQLite runs with journal_mode={journal} and synchronous={synchronous}, and would lose or block \
                 acknowledged events; open the pool with `tower_inbox::sqlite::connect_options(url)`, or set \
                 `.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full)` on its options"
            )));
        }
        Ok(())
    }

    async fn migrate(
        pool: &Pool<Self>,
        _: &Self::Settings,
        prefix: &str,
    ) -> std::result::Result<(), sqlx::migrate::MigrateError> {
        migrate::run(pool, prefix, VERSIONS).await
    }

    fn cheap_incarnation(pool: &Pool<Self>) -> Option<Self::Incarnation> {
        Some(file_id(pool.connect_options().get_filename()))
    }

    async fn incarnation(_: &mut SqliteConnection) -> Result<Self::Incarnation> {
        Ok(None)
    }

    fn describe(incarnation: &Self::Incarnation) -> String {
        match incarnation {
            Some(file) => format!("device={} inode={}", file.device, file.inode),
            None => String::new(),
        }
    }

    fn fault(error: &sqlx::Error) -> Fault {
        let sqlx::Error::Database(error) = error else {
            return fault_of_ours(error);
        };
        let code = error
            .code()
            .and_then(|code| code.parse::<i64>().ok())
            .unwrap_or(0);
        // The low byte is the primary code, https://www.sqlite.org/rescode.html
        match code & 0xff {
            5 | 6 => Fault::Transient, // BUSY with its SNAPSHOT and RECOVERY, LOCKED
            // INTERRUPT by our deadline, CONSTRAINT, TOOBIG, MISMATCH, plain ERROR
            1 | 9 | 18 | 19 | 20 => Fault::Refused,
            _ => Fault::Gone, // FULL, IOERR, CORRUPT, READONLY, …
        }
    }

    async fn begin(
        conn: &mut SqliteConnection,
        (): &(),
        deadline: Instant,
    ) -> Result<SqliteDeadline> {
        let armed = Arc::new(AtomicBool::new(true));
        let watch = SqliteDeadline {
            armed: Arc::clone(&armed),
        };
        conn.lock_handle()
            .await?
            .set_progress_handler(PROGRESS_OPS, move || {
                !armed.load(Ordering::Acquire) || Instant::now() < deadline
            });
        let begin = SqlStr::from_static("BEGIN IMMEDIATE; SAVEPOINT tower_inbox");
        begin_with::<Self>(conn, begin).await?;
        Ok(watch)
    }

    async fn release(conn: &mut SqliteConnection, (): &()) -> Result<()> {
        Self::run(conn, SqlStr::from_static("RELEASE SAVEPOINT tower_inbox")).await
    }

    async fn restore(_: &mut SqliteConnection, (): &()) -> Result<()> {
        Ok(())
    }

    fn kill(_: &SqliteDeadline) -> Option<SqlStr> {
        None
    }

    fn disarm(deadline: &SqliteDeadline) {
        deadline.armed.store(false, Ordering::Release);
    }

    statements_of_backend!();
    statements_for_operators!();
}

/// A database in memory exists once per connection, and only as long as that connection.
fn check_in_memory(pool: &Pool<Sqlite>) -> std::result::Result<(), BuildError> {
    let options = pool.options();
    if options.get_max_connections() == 1
        && options.get_max_lifetime().is_none()
        && options.get_idle_timeout().is_none()
    {
        return Ok(());
    }
    Err(BuildError::unsafe_setting(
        "an in-memory SQLite database is another one on every connection and is gone with it; use a file, or, for \
         a test, `SqlitePoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None)`",
    ))
}

#[cfg(unix)]
fn file_id(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(path).ok()?;
    Some(FileId {
        device: meta.dev(),
        inode: meta.ino(),
    })
}

#[cfg(not(unix))]
fn file_id(_: &Path) -> Option<FileId> {
    // There is no portable file identity in std here; a restore is then found only by a broken connection.
    None
}
