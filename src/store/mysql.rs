//! MariaDB (10.6 or newer) and MySQL 8, by one driver.
//!
//! Three things differ from the others. Identifiers are VARBINARY columns. An INSERT whose key is taken reports the
//! violation: `INSERT IGNORE` would truncate a long id and say 1 row, and an `ON DUPLICATE KEY` that changes nothing
//! always says 1 row. And limits are session variables: they are set before each transaction, and what they were before
//! is put back when the session leaves the inbox.

mod migrate;

use std::sync::Arc;
use std::time::Duration;

use sqlx::mysql::{MySqlConnection, MySqlDatabaseError};
use sqlx::{AssertSqlSafe, MySql, Pool, Row, SqlSafeStr};
use tokio::time::Instant;

use super::letters::{letter_row, span, statements_for_operators};
use super::literal::{Filled, Style, push_hex};
use super::queries::{
    counted, inserted, page_key, parameters, pending_row, required, statements_of_backend, text,
};
use super::sql::{After, DeleteBatch, Dialect, UpdateClaimed};
use super::*;
use crate::error::BuildError;

/// How long after the deadline the server ends a transaction that nobody uses any more, in seconds, its unit.
const IDLE_MARGIN: Duration = Duration::from_secs(1);

/// How long after the deadline the server ends a statement by itself. The maintenance connection has killed it by then,
/// unless this process is frozen or gone. Not at the same time: MariaDB's timer and a KILL that interrupt one sleeping
/// statement hold each other up for 2 s, and with them every statement that has a limit (measured, 10.11).
const STATEMENT_MARGIN: Duration = Duration::from_millis(500);

/// What the start-up check found.
#[doc(hidden)]
pub struct MySqlSettings {
    /// MariaDB ends statements of any kind, and idle transactions, by itself; MySQL only SELECTs.
    mariadb: bool,
    /// The savepoint may begin a transaction. Not in a cluster of MariaDB's, where START TRANSACTION may be what waits for the
    /// other nodes (`wsrep_sync_wait`), so that a handler sees what they have acknowledged; not on MySQL, where this has not
    /// been tried.
    by_savepoint: bool,
}

/// By which the maintenance connection ends it.
#[derive(Clone)]
#[doc(hidden)]
pub struct MySqlDeadline {
    id: u64,
    server: Arc<str>,
}

/// What is known about a session.
#[derive(Default)]
#[doc(hidden)]
pub struct MySqlSession {
    known: Option<MySqlDeadline>,
    /// It has a transaction's limits, and not what it had: the statement that gives that back.
    limited: Option<&'static str>,
}

const RESTORE_MARIADB: &str = "SET autocommit = @tower_inbox_4, innodb_lock_wait_timeout = @tower_inbox_1, \
    max_statement_time = @tower_inbox_2, idle_transaction_timeout = @tower_inbox_3";
const RESTORE_MYSQL: &str = "SET autocommit = @tower_inbox_4, innodb_lock_wait_timeout = @tower_inbox_1, \
    wait_timeout = @tower_inbox_2";

/// Which server it is, among those that one address may lead to.
macro_rules! server_name {
    () => {
        "CONCAT_WS(' ', @@hostname, @@port, @@server_id)"
    };
}

/// Identifiers are columns of bytes, and written as such.
const BYTES: Style = Style {
    text: |to, text| push_bytes(to, text.as_bytes()),
    bytes: push_bytes,
};

fn push_bytes(to: &mut String, bytes: &[u8]) {
    to.push_str("x'");
    push_hex(to, bytes);
    to.push('\'');
}

/// For one transaction, of what the session has.
fn limits(settings: &MySqlSettings, deadline: Instant) -> String {
    let left = deadline.saturating_duration_since(Instant::now());
    // Whole seconds, rounded up; 0 would mean no wait or no limit.
    let lock_wait = left.as_secs() + 1;
    let idle = (left + IDLE_MARGIN).as_secs() + 1;
    if settings.mariadb {
        format!(
            "innodb_lock_wait_timeout = {lock_wait}, max_statement_time = {:.3}, idle_transaction_timeout = {idle}",
            (left + STATEMENT_MARGIN).as_secs_f64()
        )
    } else {
        // MySQL has no limit on idle transactions, but one on idle connections.
        format!("innodb_lock_wait_timeout = {lock_wait}, wait_timeout = {idle}")
    }
}

const START: &str = "START TRANSACTION; ";

/// A transaction with its limits and our savepoint, sent as one message.
///
/// Each statement of a message costs both sides: its result comes in a packet of its own. So what a session had is asked
/// once, and given back when it leaves the inbox.
///
/// `start`: what begins the transaction, with a `; ` behind it. Nothing: the savepoint does, though it says so to nobody yet.
fn begin(
    settings: &MySqlSettings,
    session: &mut MySqlSession,
    deadline: Instant,
    start: &str,
) -> String {
    let limits = limits(settings, deadline);
    // Without autocommit a transaction that the server rolled back under the handler (1213) is followed by a new
    // one, in which RELEASE fails, and not by statements that each commit on their own.
    if session.limited.is_some() {
        return format!("SET {limits}, autocommit = 0; {start}SAVEPOINT tower_inbox");
    }
    let (before, restore) = if settings.mariadb {
        (
            "@tower_inbox_1 = @@innodb_lock_wait_timeout, @tower_inbox_2 = @@max_statement_time, \
             @tower_inbox_3 = @@idle_transaction_timeout",
            RESTORE_MARIADB,
        )
    } else {
        (
            "@tower_inbox_1 = @@innodb_lock_wait_timeout, @tower_inbox_2 = @@wait_timeout",
            RESTORE_MYSQL,
        )
    };
    session.limited = Some(restore);
    format!(
        "SET {before}, @tower_inbox_4 = @@autocommit, {limits}, autocommit = 0; {start}SAVEPOINT tower_inbox"
    )
}

/// A lock that was not had in time. What was done since the savepoint can still be taken back, or it fails that it cannot.
fn is_locked(error: &sqlx::Error) -> bool {
    let error = error.as_database_error();
    error
        .and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>())
        .is_some_and(|error| error.number() == 1205)
}

/// A new event, and the step of its cursor.
fn inserts(sql: &Sql, first: &First<'_>) -> String {
    let mut insert = Filled::new(sql.insert_event.as_str(), BYTES);
    insert.event(first);
    let insert = insert.finish();
    // A missing cursor is not looked for: its gap would be locked.
    let Some(turn) = first.turn.as_ref().filter(|turn| !turn.opens) else {
        return insert;
    };
    let mut step = Filled::new(sql.advance_cursor.as_str(), BYTES);
    step.turn(&turn.place, first.event.at);
    format!("{insert}; {}", step.finish())
}

parameters!(MySql);
pending_row!(sqlx::mysql::MySqlRow);
letter_row!(sqlx::mysql::MySqlRow);

impl sealed::Sealed for MySql {}

impl Backend for MySql {
    const MIGRATIONS: &'static str = "mysql";
    const SINGLE_WRITER: bool = false;
    const JOINS_ANY: bool = false;
    const CHEAP_INCARNATION: bool = false;
    /// The server's UUID or uid, else its id.
    type Incarnation = String;
    type Settings = MySqlSettings;
    type Deadline = MySqlDeadline;
    type Session = MySqlSession;

    fn sql(prefix: &str) -> Sql {
        let dialect = Dialect {
            numbered: false,
            on_conflict: "",
            or_leave: " ON DUPLICATE KEY UPDATE {key} = {key}",
            bigint: "SIGNED",
            // It reads the whole index for a comparison of rows.
            after: After("({t}source > ? OR ({t}source = ? AND {t}{key} > ?))"),
            now: "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
            for_update: " FOR UPDATE",
            // With 100,000 parked events 30 ms, and 1.4 s by the primary key.
            by_stream: " FORCE INDEX ({p}pending_stream)",
            // `DELETE … IN (subquery)` walks through every row of the source here and locks each: it would wait for
            // deliveries in flight, and they for it. A join that begins with the batch finds its rows by their key; the
            // ones that the batch looks at are locked too, so those in flight are stepped over.
            delete_batch: DeleteBatch {
                before: "DELETE t FROM",
                skip_locked: " FOR UPDATE SKIP LOCKED",
                behind: " STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON t.source = batch.source AND t.{key} = batch.{key}",
            },
            // No WITH in front of an UPDATE here (MariaDB). The LIMIT keeps the subquery a table of its own.
            update_claimed: UpdateClaimed {
                before: "UPDATE",
                skip_locked: " FOR UPDATE SKIP LOCKED",
                between: "AS claim STRAIGHT_JOIN {p}pending t ON t.source = claim.source AND t.event_id = claim.event_id",
                behind: "",
            },
        };
        Sql::render(&dialect, prefix)
    }

    async fn check(pool: &Pool<Self>) -> std::result::Result<MySqlSettings, BuildError> {
        let mut conn = pool.acquire().await?;
        let version = variables(&mut conn, "'version'").await?;
        let found = variables(
            &mut conn,
            "'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', 'innodb_doublewrite', 'wsrep_on'",
        )
        .await?;
        let is = |name: &str, value: &str| {
            found
                .iter()
                .any(|(n, v)| n == name && v.eq_ignore_ascii_case(value))
        };
        if !is("innodb_flush_log_at_trx_commit", "1") {
            tracing::warn!(
                "innodb_flush_log_at_trx_commit is not 1: an acknowledged event may be lost when the server's machine \
                 fails"
            );
        }
        if is("log_bin", "ON") && !is("sync_binlog", "1") {
            tracing::warn!(
                "sync_binlog is not 1: after a crash of the server's machine its replicas may have more or less than it"
            );
        }
        let mariadb = version
            .iter()
            .any(|(_, version)| version.contains("MariaDB"));
        Ok(MySqlSettings {
            mariadb,
            by_savepoint: mariadb && !is("wsrep_on", "ON"),
        })
    }

    async fn migrate(
        pool: &Pool<Self>,
        _: &Self::Settings,
        prefix: &str,
        patience: Duration,
    ) -> std::result::Result<(), sqlx::migrate::MigrateError> {
        migrate::run(pool, prefix, patience).await
    }

    async fn versions(
        pool: &Pool<Self>,
        prefix: &str,
        patience: Duration,
    ) -> std::result::Result<Vec<SchemaVersion>, sqlx::migrate::MigrateError> {
        migrate::versions(pool, prefix, patience).await
    }

    fn cheap_incarnation(_: &Pool<Self>) -> Option<Self::Incarnation> {
        None
    }

    async fn incarnation(conn: &mut MySqlConnection) -> Result<Self::Incarnation> {
        let ids = variables(conn, "'server_uuid', 'server_uid', 'server_id'").await?;
        Ok(ids
            .into_iter()
            .map(|(name, value)| format!("{name}={value} "))
            .collect())
    }

    fn describe(incarnation: &Self::Incarnation) -> String {
        incarnation.clone()
    }

    fn fault(error: &sqlx::Error) -> Fault {
        let sqlx::Error::Database(error) = error else {
            return fault_of_ours(error);
        };
        let Some(error) = error.try_downcast_ref::<MySqlDatabaseError>() else {
            return Fault::Gone;
        };
        // https://mariadb.com/kb/en/mariadb-error-codes/, https://dev.mysql.com/doc/mysql-errors/8.0/en/
        match error.number() {
            // Lock wait timeout, deadlock, snapshot changed (MariaDB), certification (group replication)
            1205 | 1213 | 1020 | 3101 => Fault::Transient,
            // Shutting down, read only (two ways), not ready (Galera), connection killed
            1053 | 1290 | 1836 | 1047 | 1927 => Fault::Gone,
            1040 | 1129 | 1130 | 1203 => Fault::Gone, // no connection to be had
            _ => Fault::Refused,
        }
    }

    async fn begin(
        conn: &mut MySqlConnection,
        session: &mut MySqlSession,
        settings: &MySqlSettings,
        deadline: Instant,
    ) -> Result<MySqlDeadline> {
        let known = match &session.known {
            Some(known) => known.clone(),
            None => {
                let row = sqlx::raw_sql(concat!("SELECT CONNECTION_ID(), ", server_name!()))
                    .fetch_one(&mut *conn)
                    .await?;
                let known = MySqlDeadline {
                    id: row.try_get_unchecked(0)?,
                    server: required(text(&row, 1)?)?.into(),
                };
                session.known.insert(known).clone()
            }
        };
        let begin = AssertSqlSafe(begin(settings, session, deadline, START)).into_sql_str();
        begin_with::<Self>(conn, begin).await?;
        Ok(known)
    }

    async fn begin_with_first(
        conn: &mut MySqlConnection,
        session: &mut MySqlSession,
        settings: &MySqlSettings,
        deadline: Instant,
        sql: &Sql,
        first: &First<'_>,
    ) -> Result<(MySqlDeadline, Option<Inserted>)> {
        crate::fail::point!(sql, "store.begin_with_first");
        // The driver throws away what its own BEGIN returns.
        let known = session.known.clone().filter(|_| Self::depth(conn) > 0);
        let Some(known) = known else {
            let watch = Self::begin(conn, session, settings, deadline).await?;
            return Ok((watch, None));
        };
        let by_savepoint = settings.by_savepoint && session.limited.is_some();
        let start = if by_savepoint { "" } else { START };
        let begin = begin(settings, session, deadline, start);
        let message = format!("{begin}; {}", inserts(sql, first));
        let message = sqlx::raw_sql(AssertSqlSafe(message).into_sql_str());
        let done = message.execute(conn).await.map(|done| done.rows_affected());
        // What comes behind an INSERT that fails is not run.
        let rows = counted(done)?;
        Ok((known, Some(Inserted::rows(rows))))
    }

    async fn insert_behind(
        conn: &mut MySqlConnection,
        _: &MySqlSession,
        settings: &MySqlSettings,
        deadline: Instant,
        sql: &Sql,
        first: &First<'_>,
    ) -> Result<Inserted> {
        crate::fail::point!(sql, "store.insert_behind");
        // Whoever has its event's row waits for its stream's cursor, which this transaction holds. MySQL has no such limit
        // below a second; it finds the deadlock at once.
        let (at_once, limits) = match settings.mariadb {
            true => (
                "SET innodb_lock_wait_timeout = 0; ",
                limits(settings, deadline),
            ),
            false => ("", limits(settings, deadline)),
        };
        let message = format!(
            "RELEASE SAVEPOINT tower_inbox; SAVEPOINT tower_inbox; {at_once}{}; SET {limits}",
            inserts(sql, first)
        );
        let message = sqlx::raw_sql(AssertSqlSafe(message).into_sql_str());
        let done = message.execute(conn).await.map(|done| done.rows_affected());
        match counted(done) {
            Err(error) if is_locked(&error) => Ok(Inserted::Nothing),
            rows => Ok(Inserted::rows(rows?)),
        }
    }

    async fn release(conn: &mut MySqlConnection, settings: &MySqlSettings) -> Result<()> {
        let release = if settings.mariadb {
            // The COMMIT is not timed: nothing is cancelled once it has been sent.
            "RELEASE SAVEPOINT tower_inbox; SET max_statement_time = 0"
        } else {
            "RELEASE SAVEPOINT tower_inbox"
        };
        Self::run(conn, SqlStr::from_static(release)).await
    }

    fn finish(settings: &MySqlSettings, session: &mut MySqlSession, stays: bool) -> SqlStr {
        let finish = if settings.mariadb {
            "RELEASE SAVEPOINT tower_inbox; SET STATEMENT max_statement_time = 0 FOR COMMIT"
        } else {
            "RELEASE SAVEPOINT tower_inbox; COMMIT"
        };
        let restore = if stays { None } else { Self::restore(session) };
        match restore {
            Some(restore) => AssertSqlSafe(format!("{finish}; {restore}")).into_sql_str(),
            None => SqlStr::from_static(finish),
        }
    }

    fn is_lost(error: &sqlx::Error) -> bool {
        // No such savepoint: there is none without a transaction.
        let error = error.as_database_error();
        error
            .and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>())
            .is_some_and(|error| error.number() == 1305)
    }

    fn is_limited(session: &MySqlSession) -> bool {
        session.limited.is_some()
    }

    fn restore(session: &mut MySqlSession) -> Option<&'static str> {
        session.limited.take()
    }

    fn kill(deadline: &MySqlDeadline) -> Option<Kill> {
        let statement = format!("KILL CONNECTION {}", deadline.id);
        Some(Kill {
            statement: AssertSqlSafe(statement).into_sql_str(),
            server: Arc::clone(&deadline.server),
        })
    }

    async fn server(conn: &mut MySqlConnection) -> Result<Option<RunningServer>> {
        let name = sqlx::raw_sql(concat!("SELECT ", server_name!()));
        let name: String = required(text(&name.fetch_one(&mut *conn).await?, 0)?)?;
        let up = sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Uptime'");
        let up: String = required(text(&up.fetch_one(conn).await?, 1)?)?;
        Ok(Some(RunningServer {
            name: name.into(),
            up: Duration::from_secs(up.parse().unwrap_or(0)),
        }))
    }

    fn deadline_of(session: &MySqlSession) -> Option<MySqlDeadline> {
        session.known.clone()
    }

    fn disarm(_: &MySqlDeadline) {}

    statements_of_backend!();
    super::queries::batch::members_on_mysql!();
    statements_for_operators!();
}

/// A text as a literal of bytes.
fn hex(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() * 2 + 3);
    push_bytes(&mut literal, text.as_bytes());
    literal
}

/// Server variables that exist, by name. `names`: a list of literals of ours.
async fn variables(
    conn: &mut MySqlConnection,
    names: &'static str,
) -> Result<Vec<(String, String)>> {
    let show = format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})");
    let rows = sqlx::raw_sql(AssertSqlSafe(show)).fetch_all(conn).await?;
    rows.iter()
        .map(|row| Ok((required(text(row, 0)?)?, required(text(row, 1)?)?)))
        .collect()
}
