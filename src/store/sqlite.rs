//! SQLite, the embedded default.
//!
//! One writer at a time: a transaction begins IMMEDIATE, so that it holds the write lock from its first statement
//! and never fails on an upgrade, and deliveries of one process queue in memory in front of it.

use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Pool, Row, Sqlite};
use tokio::time::Instant;

use super::letters::{letter_row, span, statements_for_operators};
use super::migrate::{self, Version};
use super::queries::{
    inserted, page_key, parameters, pending_row, required, statements_of_backend, text,
};
use super::sql::{After, DeleteBatch, Dialect, UpdateClaimed};
use super::*;
use crate::error::BuildError;
use crate::fail::point;

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
    Version {
        number: 4,
        name: "stats",
        sql: include_str!("../../migrations/sqlite/0004_stats.sql"),
    },
    Version {
        number: 5,
        name: "audit",
        sql: include_str!("../../migrations/sqlite/0005_audit.sql"),
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
    connect_with(connect_options(url)?, connections).await
}

/// [`connect`] with options that are made already: for who only looks at a database, and must not turn a file over to WAL that
/// was not so.
///
/// # Errors
/// If the database cannot be opened.
#[doc(hidden)]
pub async fn connect_with(
    options: SqliteConnectOptions,
    connections: u32,
) -> std::result::Result<Pool<Sqlite>, sqlx::Error> {
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

/// Interrupts statements of a connection that run past a deadline, in microseconds since [`START`]; none of them
/// while it is disarmed.
#[derive(Clone)]
#[doc(hidden)]
pub struct SqliteDeadline(Arc<AtomicU64>);

const DISARMED: u64 = u64::MAX;

/// The clock of these deadlines: one atomic number says what an [`Instant`] would.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

fn ticks(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*START).as_micros()).unwrap_or(DISARMED)
}

parameters!(Sqlite);
pending_row!(sqlx::sqlite::SqliteRow);
letter_row!(sqlx::sqlite::SqliteRow);

impl sealed::Sealed for Sqlite {}

impl Backend for Sqlite {
    const MIGRATIONS: &'static str = "sqlite";
    const SINGLE_WRITER: bool = true;
    const JOINS_ANY: bool = true;
    const CHEAP_INCARNATION: bool = true;
    type Incarnation = Option<FileId>;
    type Settings = ();
    type Deadline = SqliteDeadline;
    /// Set where the connection's progress handler looks.
    type Session = Option<SqliteDeadline>;

    fn sql(prefix: &str) -> Sql {
        // BEGIN IMMEDIATE holds the whole database, so no row needs a lock of its own.
        let dialect = Dialect {
            numbered: false,
            on_conflict: " ON CONFLICT DO NOTHING",
            or_leave: " ON CONFLICT DO NOTHING",
            bigint: "INTEGER",
            after: After::PLAIN,
            now: "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)",
            for_update: "",
            by_stream: "",
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
        _: Duration,
    ) -> std::result::Result<(), sqlx::migrate::MigrateError> {
        // One transaction at a time writes, as long as the busy timeout.
        migrate::run(pool, prefix, VERSIONS).await
    }

    async fn versions(
        pool: &Pool<Self>,
        prefix: &str,
        _: Duration,
    ) -> std::result::Result<Vec<SchemaVersion>, sqlx::migrate::MigrateError> {
        migrate::versions(pool, prefix, VERSIONS).await
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
        session: &mut Option<SqliteDeadline>,
        (): &(),
        deadline: Instant,
    ) -> Result<SqliteDeadline> {
        let watch = armed(conn, session, deadline).await?;
        let begin = SqlStr::from_static("BEGIN IMMEDIATE; SAVEPOINT tower_inbox");
        if Self::depth(conn) > 0 {
            // As `begin_with`; prepared, and kept so.
            sqlx::query(begin).execute(conn).await?;
        } else {
            begin_with::<Self>(conn, begin).await?;
        }
        Ok(watch)
    }

    async fn begin_with_first(
        conn: &mut SqliteConnection,
        session: &mut Option<SqliteDeadline>,
        (): &(),
        deadline: Instant,
        sql: &Sql,
        first: &First<'_>,
    ) -> Result<(SqliteDeadline, Option<Inserted>)> {
        crate::fail::point!(sql, "store.begin_with_first");
        if Self::depth(conn) == 0 {
            // The driver's own BEGIN takes no values.
            let watch = Self::begin(conn, session, &(), deadline).await?;
            return Ok((watch, None));
        }
        let watch = armed(conn, session, deadline).await?;
        let event = &first.event;
        // As several statements: the driver gives each as many values as it takes, in one change of threads.
        let turn = first.turn.as_ref().filter(|turn| !turn.opens);
        let begin = match turn {
            None => new_event(sql.begin_insert.clone(), event, first.state),
            Some(Turn { place, .. }) => {
                let insert = new_event(sql.begin_insert_next.clone(), event, first.state);
                step(insert, place, event.at)
            }
        };
        let rows = begin.persistent(sql.named).fetch_all(conn).await?.len();
        Ok((watch, Some(Inserted::rows(rows as u64))))
    }

    async fn release(conn: &mut SqliteConnection, (): &()) -> Result<()> {
        Self::run(conn, SqlStr::from_static("RELEASE SAVEPOINT tower_inbox")).await
    }

    fn finish((): &(), _: &mut Option<SqliteDeadline>, _: bool) -> SqlStr {
        SqlStr::from_static("RELEASE SAVEPOINT tower_inbox; COMMIT")
    }

    async fn commit(conn: &mut SqliteConnection, finish: Option<SqlStr>) -> Result<()> {
        let Some(finish) = finish else {
            return <Self as Database>::TransactionManager::commit(conn).await;
        };
        // Prepared, and kept so: both statements in one change of threads.
        sqlx::query(finish).execute(conn).await.map(drop)
    }

    fn is_lost(error: &sqlx::Error) -> bool {
        // "No such savepoint" and "no transaction is active" have the general code.
        let code = error.as_database_error().and_then(|error| error.code());
        code.as_deref() == Some("1")
    }

    fn arm(deadline: &SqliteDeadline, at: Instant) {
        deadline.0.store(ticks(at), Ordering::Release);
    }

    fn disarm(deadline: &SqliteDeadline) {
        deadline.0.store(DISARMED, Ordering::Release);
    }

    async fn insert_behind(
        conn: &mut SqliteConnection,
        // The deadline is set where the transaction changes hands.
        _: &Option<SqliteDeadline>,
        (): &(),
        _: Instant,
        sql: &Sql,
        first: &First<'_>,
    ) -> Result<Inserted> {
        point!(sql, "store.insert_behind");
        // One change of threads. What comes behind a statement that fails is not run.
        let rows = new_event(sql.insert_behind.clone(), &first.event, first.state)
            .persistent(sql.named)
            .fetch_all(conn)
            .await?;
        Ok(Inserted::event(rows.len() == 1))
    }

    statements_of_backend!();
    super::queries::batch::members_on_sqlite!();
    statements_for_operators!();
}

/// The connection's deadline, set.
async fn armed(
    conn: &mut SqliteConnection,
    session: &mut Option<SqliteDeadline>,
    deadline: Instant,
) -> Result<SqliteDeadline> {
    let watch = match session {
        Some(watch) => watch.clone(),
        None => session.insert(watched(conn).await?).clone(),
    };
    watch.0.store(ticks(deadline), Ordering::Release);
    Ok(watch)
}

/// Makes the connection look at a deadline from now on. Once: it costs two changes of threads.
async fn watched(conn: &mut SqliteConnection) -> Result<SqliteDeadline> {
    let watch = SqliteDeadline(Arc::new(AtomicU64::new(DISARMED)));
    let looked_at = watch.clone();
    conn.lock_handle()
        .await?
        .set_progress_handler(PROGRESS_OPS, move || {
            let deadline = looked_at.0.load(Ordering::Acquire);
            deadline == DISARMED || ticks(Instant::now()) < deadline
        });
    Ok(watch)
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
