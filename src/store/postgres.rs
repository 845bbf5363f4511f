//! PostgreSQL, 14 or newer.
//!
//! Settings are SET LOCAL, and the only session state is prepared statements, the driver's and ours, so that PgBouncer in
//! transaction mode works without them: behind it the pool needs `statement_cache_capacity(0)`, which makes the inbox's
//! statements unnamed, and the handler's own too.

mod migrate;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Pool, Postgres, Row, SqlSafeStr};
use tokio::time::Instant;

use super::letters::{letter_row, span, statements_for_operators};
use super::prepared::{self, Prepared};
use super::queries::{
    inserted, page_key, parameters, pending_row, required, statements_of_backend, text,
};
use super::sql::{After, DeleteBatch, Dialect, UpdateClaimed};
use super::*;
use crate::error::BuildError;

/// `client_connection_check_interval` came with it.
const OLDEST: i64 = 140_000;

/// How long after the statement's own deadline a transaction that nobody uses any more is ended by the server: a
/// receiver that is frozen or gone blocks others no longer than this (§4.6).
const IDLE_MARGIN: Duration = Duration::from_millis(500);

/// What limits are rounded up to, in milliseconds.
const STEP: u128 = 250;

/// How soon a server notices that a connection was closed under a running statement.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// Behind a pooler that has one server connection, the second one of the check never comes.
const CHECK_PATIENCE: Duration = Duration::from_secs(3);

/// What the start-up check found.
#[doc(hidden)]
pub struct PostgresSettings {
    /// The session's `synchronous_commit` is off, and is raised for every transaction (§4.1a).
    raise_commit: bool,
    /// The pool's options turn the statement cache off, as behind PgBouncer in transaction mode.
    unnamed: bool,
    /// Not every platform's server can look for a client that is gone.
    checks_client: bool,
    prepared: OnceLock<Prepared>,
    /// What SQL prepares does not stay with the connection.
    forgets_prepared: AtomicBool,
}

impl PostgresSettings {
    /// The statements that SQL prepares, where they are there.
    async fn prepared(
        &self,
        conn: &mut PgConnection,
        session: &mut PgSession,
        sql: &Sql,
    ) -> Result<Option<&Prepared>> {
        crate::fail::point!(sql, "store.prepared");
        if !sql.named || self.forgets_prepared.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let prepared = self.prepared.get_or_init(|| Prepared::new(sql));
        if !session.prepared {
            match sqlx::raw_sql(prepared.statement()).execute(conn).await {
                Err(error) if Postgres::fault(&error) == Fault::Gone => return Err(error),
                Err(error) => {
                    self.forget_prepared(&error);
                    return Ok(None);
                }
                Ok(_) => session.prepared = true,
            }
        }
        Ok(Some(prepared))
    }

    /// The same, of a session in the middle of a transaction, which a statement that fails would end.
    fn is_prepared(&self, session: &PgSession) -> Option<&Prepared> {
        let forgets = self.forgets_prepared.load(Ordering::Relaxed);
        self.prepared.get().filter(|_| session.prepared && !forgets)
    }

    fn forget_prepared(&self, error: &sqlx::Error) {
        tracing::debug!(%error, "what SQL prepares is not kept: from now on an event takes a round trip more");
        self.forgets_prepared.store(true, Ordering::Relaxed);
    }
}

/// What is known about a session while its connection stays with the inbox.
#[derive(Default)]
#[doc(hidden)]
pub struct PgSession {
    /// It has the statements of [`Prepared`].
    prepared: bool,
}

macro_rules! release {
    () => {
        "RELEASE SAVEPOINT tower_inbox; SET LOCAL statement_timeout = 0"
    };
}

/// How long a delivery waits for its event's row in a transaction that holds its stream's cursor: whoever has the row waits for
/// that. Long enough for what else is locked for a moment, and much less than the server takes to find a deadlock.
const ROW_PATIENCE: Duration = Duration::from_millis(10);

/// What is waited for at most by what is between these two, in milliseconds. The handlers have what they had.
fn patience() -> String {
    let patience = ROW_PATIENCE.as_millis();
    format!(
        "SELECT set_config('tower_inbox.lock_timeout', current_setting('lock_timeout'), true), \
         set_config('lock_timeout', '{patience}', true)"
    )
}

const PATIENCE_ENDS: &str =
    "SELECT set_config('lock_timeout', current_setting('tower_inbox.lock_timeout'), true)";

/// That it was not had in this time. What was done since the savepoint can still be taken back.
/// Others have what it writes to; or have had it since this transaction's snapshot, at REPEATABLE READ and above.
fn is_locked(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    // lock_not_available, serialization_failure
    matches!(code.as_deref(), Some("55P03" | "40001"))
}

/// For one transaction.
fn limits(deadline: Instant) -> String {
    let left = deadline.saturating_duration_since(Instant::now());
    // Rounded up: each number makes another text, and the server's statistics keep some thousands of texts. 0 would
    // mean no limit at all.
    let statement = left.as_millis().div_ceil(STEP).max(1) * STEP;
    let idle = statement + IDLE_MARGIN.as_millis();
    format!(
        "SET LOCAL statement_timeout = {statement}; SET LOCAL idle_in_transaction_session_timeout = {idle}"
    )
}

/// BEGIN with its limits and our savepoint, sent as one message: one round trip.
fn begin(settings: &PostgresSettings, deadline: Instant) -> String {
    let check = if settings.checks_client {
        format!(
            "SET LOCAL client_connection_check_interval = {}; ",
            CHECK_EVERY.as_millis()
        )
    } else {
        String::new()
    };
    let commit = if settings.raise_commit {
        "SET LOCAL synchronous_commit = on; "
    } else {
        ""
    };
    format!(
        "BEGIN; {}; {check}{commit}SAVEPOINT tower_inbox",
        limits(deadline)
    )
}

/// Events and cursors, counted together.
fn written(row: &sqlx::postgres::PgRow) -> Result<u64> {
    let (events, turns): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    Ok((events + turns).unsigned_abs())
}

parameters!(Postgres);
pending_row!(sqlx::postgres::PgRow);
letter_row!(sqlx::postgres::PgRow);

impl sealed::Sealed for Postgres {}

impl Backend for Postgres {
    const MIGRATIONS: &'static str = "postgres";
    const SINGLE_WRITER: bool = false;
    const JOINS_ANY: bool = true;
    const CHEAP_INCARNATION: bool = false;
    const NOTIFIES: bool = true;
    /// System identifier and timeline.
    type Incarnation = (String, i64);
    type Settings = PostgresSettings;
    type Deadline = ();
    type Session = PgSession;

    fn sql(prefix: &str) -> Sql {
        let dialect = Dialect {
            numbered: true,
            // A unique violation that is caught here would have aborted the transaction already.
            on_conflict: " ON CONFLICT DO NOTHING",
            or_leave: " ON CONFLICT DO NOTHING",
            bigint: "BIGINT",
            after: After::PLAIN,
            now: "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT",
            for_update: " FOR UPDATE",
            by_stream: "",
            delete_batch: DeleteBatch::PLAIN,
            update_claimed: UpdateClaimed {
                skip_locked: " FOR UPDATE SKIP LOCKED",
                ..UpdateClaimed::PLAIN
            },
        };
        Sql::render(&dialect, prefix)
    }

    async fn check(pool: &Pool<Self>) -> std::result::Result<PostgresSettings, BuildError> {
        // The driver has no other way to tell.
        let url = pool.connect_options().to_url_lossy();
        let unnamed = url
            .query_pairs()
            .any(|(name, value)| name == "statement-cache-capacity" && value == "0");
        if !unnamed && pool.options().get_max_connections() > 1 {
            check_prepared(pool).await?;
        }
        let mut conn = pool.acquire().await?;
        let version: i64 = setting(&mut conn, "server_version_num")
            .await?
            .parse()
            .unwrap_or(0);
        if version < OLDEST {
            return Err(BuildError::unsafe_setting(format!(
                "PostgreSQL {version} cannot notice a client that is gone while a statement runs: use 14 or newer"
            )));
        }
        let synchronous_commit = setting(&mut conn, "synchronous_commit").await?;
        if setting(&mut conn, "fsync").await? != "on" {
            tracing::warn!(
                "the server runs with fsync off: an acknowledged event may be lost when its machine fails"
            );
        }
        let checks_client =
            sqlx::raw_sql("BEGIN; SET LOCAL client_connection_check_interval = 1000; ROLLBACK")
                .execute(&mut *conn)
                .await
                .is_ok();
        if !checks_client {
            sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
            tracing::warn!(
                "this server cannot look for clients that are gone: a delivery that ran out of time is ended by \
                 statement_timeout alone"
            );
        }
        Ok(PostgresSettings {
            unnamed,
            prepared: OnceLock::new(),
            forgets_prepared: AtomicBool::new(false),
            raise_commit: synchronous_commit == "off",
            checks_client,
        })
    }

    fn names_statements(settings: &PostgresSettings) -> bool {
        !settings.unnamed
    }

    async fn migrate(
        pool: &Pool<Self>,
        settings: &PostgresSettings,
        prefix: &str,
        patience: Duration,
    ) -> std::result::Result<(), sqlx::migrate::MigrateError> {
        migrate::run(pool, settings.unnamed, prefix, patience).await
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

    async fn incarnation(conn: &mut PgConnection) -> Result<Self::Incarnation> {
        // The first eight digits of a WAL file's name are the timeline that is written now; the control file knows it
        // only from the next checkpoint on. A standby writes none.
        let row = sqlx::raw_sql(
            "SELECT system_identifier::text, CASE WHEN pg_is_in_recovery() THEN -1 ELSE \
             ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint END \
             FROM pg_control_system()",
        )
        .fetch_one(conn)
        .await?;
        Ok((row.try_get(0)?, row.try_get(1)?))
    }

    fn describe((system, timeline): &Self::Incarnation) -> String {
        format!("system={system} timeline={timeline}")
    }

    fn fault(error: &sqlx::Error) -> Fault {
        let sqlx::Error::Database(error) = error else {
            return fault_of_ours(error);
        };
        // https://www.postgresql.org/docs/current/errcodes-appendix.html
        match error.code().as_deref() {
            Some("40001" | "40P01") => Fault::Transient,
            // Read-only: this is no primary any more.
            Some("25006") => Fault::Gone,
            // Data, constraints, transaction state, statements, a lock or statement that timed out.
            Some(code) => match &code[..code.len().min(2)] {
                "21" | "22" | "23" | "25" | "2D" | "3B" | "42" | "44" | "55" | "P0" => {
                    Fault::Refused
                }
                _ if code == "57014" => Fault::Refused,
                _ => Fault::Gone,
            },
            None => Fault::Gone,
        }
    }

    async fn begin(
        conn: &mut PgConnection,
        _: &mut PgSession,
        settings: &PostgresSettings,
        deadline: Instant,
    ) -> Result<()> {
        let begin = AssertSqlSafe(begin(settings, deadline)).into_sql_str();
        begin_with::<Self>(conn, begin).await
    }

    async fn release(conn: &mut PgConnection, _: &PostgresSettings) -> Result<()> {
        // A COMMIT that is cancelled while it waits for a synchronous standby reports success: so it is not timed.
        Self::run(conn, SqlStr::from_static(release!())).await
    }

    fn finish(_: &PostgresSettings, _: &mut PgSession, _: bool) -> SqlStr {
        // As in `release`; an error ends the message.
        SqlStr::from_static(concat!(release!(), "; COMMIT"))
    }

    fn is_lost(error: &sqlx::Error) -> bool {
        // No such savepoint, no transaction, an aborted one.
        let code = error.as_database_error().and_then(|error| error.code());
        matches!(code.as_deref(), Some("3B001" | "25P01" | "25P02"))
    }

    async fn begin_with_first(
        conn: &mut PgConnection,
        session: &mut PgSession,
        settings: &PostgresSettings,
        deadline: Instant,
        sql: &Sql,
        first: &First<'_>,
    ) -> Result<((), Option<Inserted>)> {
        crate::fail::point!(sql, "store.begin_with_first");
        // The first transaction of one that has just come from the pool may be its only one.
        let prepared = match Self::depth(conn) {
            0 => None,
            _ => settings.prepared(conn, session, sql).await?,
        };
        let Some(execute) = prepared.and_then(|prepared| prepared.execute(first)) else {
            Self::begin(conn, session, settings, deadline).await?;
            return Ok(((), None));
        };
        let message = format!("{}; {execute}", begin(settings, deadline));
        let message = sqlx::raw_sql(AssertSqlSafe(message).into_sql_str());
        // Where its turn is looked at too it is a SELECT.
        let rows = if first.turn.is_some() {
            let row = message.fetch_one(&mut *conn).await;
            row.and_then(|row| written(&row))
        } else {
            let done = message.execute(&mut *conn).await;
            done.map(|done| done.rows_affected())
        };
        match rows {
            Err(error) if prepared::is_missing(&error) => {
                settings.forget_prepared(&error);
                Self::rollback(conn).await?;
                Self::begin(conn, session, settings, deadline).await?;
                Ok(((), None))
            }
            rows => Ok(((), Some(Inserted::rows(rows?)))),
        }
    }

    async fn insert_first(
        conn: &mut PgConnection,
        sql: &Sql,
        first: &First<'_>,
    ) -> Result<Inserted> {
        crate::fail::point!(sql, "store.insert_first");
        let (event, at) = (&first.event, first.event.at.as_micros());
        let Some(Turn { place, opens }) = &first.turn else {
            let inserted = Self::insert_event(conn, sql, event, first.state).await?;
            return Ok(Inserted::event(inserted));
        };
        let statement = if *opens {
            new_event(sql.insert_first.clone(), event, first.state)
                .bind(place.stream.source)
                .bind(place.stream.correlation_id)
                .bind(next_of(place))
                .bind(at)
        } else {
            let insert = new_event(sql.insert_next.clone(), event, first.state);
            step(insert, place, event.at)
        };
        let row = statement.persistent(sql.named).fetch_one(conn).await?;
        Ok(Inserted::rows(written(&row)?))
    }

    async fn insert_behind(
        conn: &mut PgConnection,
        session: &PgSession,
        settings: &PostgresSettings,
        deadline: Instant,
        sql: &Sql,
        first: &First<'_>,
    ) -> Result<Inserted> {
        crate::fail::point!(sql, "store.insert_behind");
        // The limits before the savepoint: what is rolled back to that keeps them. The patience behind it.
        let renew = format!(
            "RELEASE SAVEPOINT tower_inbox; {}; SAVEPOINT tower_inbox; {}",
            limits(deadline),
            patience()
        );
        let inserted = match settings
            .is_prepared(session)
            .and_then(|it| it.execute(first))
        {
            Some(execute) => {
                let message = format!("{renew}; {execute}; {PATIENCE_ENDS}");
                let message = sqlx::raw_sql(AssertSqlSafe(message).into_sql_str());
                match first.turn {
                    // Each statement's one row.
                    Some(_) => match message.fetch_all(conn).await {
                        Ok(rows) => rows.get(1).map_or(Ok(0), written),
                        Err(error) => Err(error),
                    },
                    // The INSERT's, and those of two SELECTs.
                    None => {
                        let done = message.execute(conn).await;
                        done.map(|done| done.rows_affected().saturating_sub(2))
                    }
                }
                .map(Inserted::rows)
            }
            None => {
                Self::run(conn, AssertSqlSafe(renew).into_sql_str()).await?;
                match Self::insert_first(conn, sql, first).await {
                    Ok(inserted) => {
                        let ends = SqlStr::from_static(PATIENCE_ENDS);
                        Self::run(conn, ends).await.map(|()| inserted)
                    }
                    failed => failed,
                }
            }
        };
        match inserted {
            Err(error) if is_locked(&error) => Ok(Inserted::Nothing),
            Err(error) => {
                if prepared::is_missing(&error) {
                    settings.forget_prepared(&error);
                }
                Err(error)
            }
            inserted => inserted,
        }
    }

    fn disarm((): &()) {}

    async fn notify(conn: &mut PgConnection, sql: &Sql, hints: &[String]) -> Result<()> {
        crate::fail::point!(sql, "store.notify");
        sqlx::query(NOTIFY)
            .bind(&sql.prefix)
            .bind(hints)
            .execute(conn)
            .await?;
        Ok(())
    }

    async fn listen(
        pool: &Pool<Self>,
        sql: &Sql,
        mut stop: watch::Receiver<bool>,
        heard: &mpsc::Sender<String>,
    ) -> Result<()> {
        crate::fail::point!(sql, "store.listen");
        // Not a connection of the app's pool, which may have none to spare.
        let own = PgPoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with((*pool.connect_options()).clone());
        let listening = async {
            let channel: String = sqlx::query_scalar(CHANNEL)
                .bind(&sql.prefix)
                .fetch_one(&own)
                .await?;
            let mut listener = PgListener::connect_with(&own).await?;
            listener.eager_reconnect(false);
            listener.listen(&channel).await?;
            while let Some(notification) = listener.try_recv().await? {
                // One more than there is room for is lost: the worker looks by itself, too.
                let _ = heard.try_send(notification.payload().to_owned());
            }
            Err(sqlx::Error::PoolTimedOut)
        };
        let ended = tokio::select! {
            ended = listening => ended,
            _ = stop.wait_for(|stop| *stop) => Ok(()),
        };
        let _ = tokio::time::timeout(CHECK_PATIENCE, own.close()).await;
        ended
    }

    statements_of_backend!();
    super::queries::batch::members_on_postgres!();
    statements_for_operators!();
}

/// Of an inbox: its schema and prefix. Other inboxes of the same database do not hear it.
const CHANNEL: &str =
    "SELECT 'tower_inbox_' || md5(coalesce(current_schema()::text, '') || '.' || $1::text)";
const NOTIFY: &str = "SELECT pg_notify('tower_inbox_' || md5(coalesce(current_schema()::text, '') || '.' || $1::text), hint)
     FROM unnest($2::text[]) AS hint";

/// Whether a prepared statement stays with its connection. Behind a PgBouncer in transaction mode that does not know
/// them, a connection's next transaction runs on another server connection, where the statement is unknown.
async fn check_prepared(pool: &Pool<Postgres>) -> std::result::Result<(), BuildError> {
    let (mut first, mut second) = (pool.acquire().await?, pool.acquire().await?);
    let checked = tokio::time::timeout(CHECK_PATIENCE, compare(&mut first, &mut second)).await;
    if let Ok(Ok(())) = checked {
        return Ok(());
    }
    close_hard(first);
    close_hard(second);
    // Not in time: it cannot be told, and nothing is known to be wrong.
    let Ok(Err(error)) = checked else {
        return Ok(());
    };
    match error
        .as_database_error()
        .and_then(|error| error.code())
        .as_deref()
    {
        // Unknown, or known already: it was prepared by somebody else.
        Some("26000" | "42P05" | "08P01") => Err(BuildError::unsafe_setting(
            "prepared statements do not stay with their connection, as behind PgBouncer in transaction mode: set \
             `.statement_cache_capacity(0)` on the pool's options, which makes the inbox's statements unnamed, and \
             `.persistent(false)` on the handlers' own queries",
        )),
        _ => Err(error.into()),
    }
}

async fn compare(first: &mut PgConnection, second: &mut PgConnection) -> Result<()> {
    // The first one keeps a server connection busy while the second one prepares on another; the one that is given
    // back last is the one that is handed out next.
    sqlx::raw_sql("BEGIN").execute(&mut *first).await?;
    let prepared = ask(second).await;
    sqlx::raw_sql("COMMIT").execute(first).await?;
    let again = ask(second).await;
    prepared.and(again).map(drop)
}

async fn ask(conn: &mut PgConnection) -> Result<i64> {
    sqlx::query_scalar("SELECT $1::BIGINT")
        .bind(1_i64)
        .fetch_one(conn)
        .await
}

/// `name`: a literal of ours. Sent as plain text, which needs no prepared statement.
async fn setting(conn: &mut PgConnection, name: &'static str) -> Result<String> {
    let select = format!("SELECT current_setting('{name}')");
    sqlx::raw_sql(AssertSqlSafe(select))
        .fetch_one(conn)
        .await?
        .try_get(0)
}
