//! The only place with SQL.
//!
//! Each statement's text stands once, in [`sql`], and is rendered once per inbox for its database and table
//! prefix. The query code stands once too, in a macro that each driver instantiates; what a database does
//! otherwise stands in that database's file with the reason.
//!
//! [`Backend`] is sealed and its methods are no API: they change without notice.

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod held;
mod letters;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod literal;
mod migrate;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod prepared;
mod queries;
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod statistics;
mod types;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool, SqlStr};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::broken::{self, Variant};
use crate::clock::Timestamp;
use crate::error::BuildError;
use crate::kept::Kept;
pub(crate) use migrate::PATIENCE as MIGRATION_PATIENCE;
pub use migrate::SchemaVersion;
pub(crate) use sql::Sql;
pub(crate) use statistics::*;
pub(crate) use types::*;
pub use types::{Range, RangeKind, Reason, State};

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// A shorthand for what every statement returns.
pub(crate) type Result<T> = std::result::Result<T, sqlx::Error>;

/// What a database error means for the delivery that met it. Decided by code, never by text (§4.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Fault {
    /// A deadlock, a serialisation failure, a busy database: worth a fresh transaction within the budget.
    Transient,
    /// The database refused the statement or the commit; nothing was committed.
    Refused,
    /// The connection or the server is gone, or is no primary any more: nothing is known about a commit.
    Gone,
}

/// What ends a connection. Servers number their connections each for itself, and anew at each start.
#[doc(hidden)]
pub struct Kill {
    pub statement: SqlStr,
    /// [`RunningServer::name`] of the one that it is meant for.
    pub server: Arc<str>,
}

/// A server that answers.
#[doc(hidden)]
pub struct RunningServer {
    pub name: Arc<str>,
    /// Since its start, by its own account, in whole seconds.
    pub up: Duration,
}

/// A database that an inbox can live in. Sealed; its methods are no API.
pub trait Backend: Database + sealed::Sealed {
    /// The folder of its files in `migrations/`.
    #[doc(hidden)]
    const MIGRATIONS: &'static str;
    /// One transaction at a time may write: deliveries queue in memory, in front of the pool.
    #[doc(hidden)]
    const SINGLE_WRITER: bool;
    /// The incarnation can be had without a statement, and is looked at whenever a connection is taken. Otherwise a
    /// maintenance connection watches it.
    #[doc(hidden)]
    const CHEAP_INCARNATION: bool;
    /// A delivery that waits may go on in any other one's transaction. Not where that has a snapshot unless told otherwise (MySQL,
    /// REPEATABLE READ): a handler would not see what was committed, and acknowledged, since the transaction began (§4.7).
    #[doc(hidden)]
    const JOINS_ANY: bool;
    /// Processes can be told, over the maintenance connection and one that listens, to look for something.
    #[doc(hidden)]
    const NOTIFIES: bool = false;
    /// Which database this is, as far as a restore or a failover would change it.
    #[doc(hidden)]
    type Incarnation: Clone + PartialEq + std::fmt::Debug + Send + Sync + 'static;
    /// What the start-up check found out, and every transaction needs to know.
    #[doc(hidden)]
    type Settings: Send + Sync + 'static;
    /// What keeps one transaction inside its budget.
    #[doc(hidden)]
    type Deadline: Send + Sync + 'static;
    /// What is known about a connection's session, as long as the connection stays with the inbox.
    #[doc(hidden)]
    type Session: Default + Send + Sync + 'static;

    #[doc(hidden)]
    fn sql(prefix: &str) -> Sql;
    /// Refuses settings that cannot keep the contract, and warns about those that weaken it (§4.1a).
    #[doc(hidden)]
    fn check(
        pool: &Pool<Self>,
    ) -> impl Future<Output = std::result::Result<Self::Settings, BuildError>> + Send;
    /// Whether prepared statements stay with their connection. Otherwise ours have no names, and each that is outside
    /// of a transaction gets one of its own, so that it is not prepared on one server connection and run on another.
    #[doc(hidden)]
    fn names_statements(_: &Self::Settings) -> bool {
        true
    }
    /// Brings the tables up to date. `patience`: how long it tries to get the lock of a table that others hold.
    #[doc(hidden)]
    fn migrate(
        pool: &Pool<Self>,
        settings: &Self::Settings,
        prefix: &str,
        patience: Duration,
    ) -> impl Future<Output = std::result::Result<(), sqlx::migrate::MigrateError>> + Send;
    /// The versions of the tables, this crate's and those that are there besides, whether they are there. `patience`: as for
    /// [`Self::migrate`], if others have locked the list of them.
    #[doc(hidden)]
    fn versions(
        pool: &Pool<Self>,
        prefix: &str,
        patience: Duration,
    ) -> impl Future<Output = std::result::Result<Vec<SchemaVersion>, sqlx::migrate::MigrateError>> + Send;
    /// From the pool's options alone; only with [`Self::CHEAP_INCARNATION`].
    #[doc(hidden)]
    fn cheap_incarnation(pool: &Pool<Self>) -> Option<Self::Incarnation>;
    #[doc(hidden)]
    fn incarnation(
        conn: &mut Self::Connection,
    ) -> impl Future<Output = Result<Self::Incarnation>> + Send;
    /// The form in which it is kept in the database itself.
    #[doc(hidden)]
    fn describe(incarnation: &Self::Incarnation) -> String;
    #[doc(hidden)]
    fn fault(error: &sqlx::Error) -> Fault;

    /// BEGIN and our savepoint, with the server told when to give up.
    #[doc(hidden)]
    fn begin(
        conn: &mut Self::Connection,
        session: &mut Self::Session,
        settings: &Self::Settings,
        deadline: Instant,
    ) -> impl Future<Output = Result<Self::Deadline>> + Send;
    /// [`Backend::begin`] with the insert of a new event in the same message, where that can be. Nothing: the event is to
    /// be inserted yet.
    #[doc(hidden)]
    fn begin_with_first(
        conn: &mut Self::Connection,
        session: &mut Self::Session,
        settings: &Self::Settings,
        deadline: Instant,
        sql: &Sql,
        first: &First<'_>,
    ) -> impl Future<Output = Result<(Self::Deadline, Option<Inserted>)>> + Send;
    /// RELEASE of our savepoint: fails after any abnormal end (§4.4). The COMMIT after it is not timed any more.
    #[doc(hidden)]
    fn release(
        conn: &mut Self::Connection,
        settings: &Self::Settings,
    ) -> impl Future<Output = Result<()>> + Send;
    /// RELEASE of our savepoint, then COMMIT, as one message. What fails in it is the last of it that was done. If the
    /// connection is not to stay with the inbox, with what [`Backend::restore`] does behind it.
    #[doc(hidden)]
    fn finish(settings: &Self::Settings, session: &mut Self::Session, stays: bool) -> SqlStr;
    /// Whether this error is the RELEASE's own: the savepoint, or its transaction, was not there any more.
    #[doc(hidden)]
    fn is_lost(error: &sqlx::Error) -> bool;
    /// The session has something of ours: [`Backend::restore`].
    #[doc(hidden)]
    fn is_limited(_session: &Self::Session) -> bool {
        false
    }
    /// The statement that makes the session what it was before the inbox's transactions, for whoever gets the connection
    /// next. It is to be run: it is asked for once.
    #[doc(hidden)]
    fn restore(_session: &mut Self::Session) -> Option<&'static str> {
        None
    }
    /// How the maintenance connection ends a transaction whose connection was closed hard. Not where the database finds that
    /// out by itself.
    #[doc(hidden)]
    fn kill(_deadline: &Self::Deadline) -> Option<Kill> {
        None
    }
    /// Which server this is, where [`Backend::kill`] has to know.
    #[doc(hidden)]
    fn server(
        _conn: &mut Self::Connection,
    ) -> impl Future<Output = Result<Option<RunningServer>>> + Send {
        async { Ok(None) }
    }
    /// What [`Backend::kill`] needs, of a session whose BEGIN was not answered. Nothing where there is nothing to kill.
    #[doc(hidden)]
    fn deadline_of(_session: &Self::Session) -> Option<Self::Deadline> {
        None
    }
    /// From now on nothing is interrupted.
    #[doc(hidden)]
    fn disarm(deadline: &Self::Deadline);
    /// From now on what runs past this is interrupted.
    #[doc(hidden)]
    fn arm(_deadline: &Self::Deadline, _at: Instant) {}
    /// ROLLBACK TO our savepoint.
    #[doc(hidden)]
    fn rollback_to(conn: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send;
    #[doc(hidden)]
    fn commit(
        conn: &mut Self::Connection,
        finish: Option<SqlStr>,
    ) -> impl Future<Output = Result<()>> + Send {
        async move {
            match finish {
                // The driver takes no note of it: it goes on counting one transaction, which `begin_with` knows.
                Some(finish) => Self::run(conn, finish).await,
                None => Self::TransactionManager::commit(conn).await,
            }
        }
    }
    #[doc(hidden)]
    fn rollback(conn: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send {
        Self::TransactionManager::rollback(conn)
    }
    /// The driver's own count of nested transactions: 1 when only ours is open.
    #[doc(hidden)]
    fn depth(conn: &Self::Connection) -> usize {
        Self::TransactionManager::get_transaction_depth(conn)
    }

    /// `kept`: the first answer too.
    #[doc(hidden)]
    fn known(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        kept: bool,
    ) -> impl Future<Output = Result<Option<Known>>> + Send;
    /// What is known, with the event's row locked: for the transaction.
    #[doc(hidden)]
    fn lock_event(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
    ) -> impl Future<Output = Result<Option<Known>>> + Send;
    /// Inserts the event as applied; false if its id or its place in the stream is taken.
    #[doc(hidden)]
    fn insert_event(
        conn: &mut Self::Connection,
        sql: &Sql,
        event: &NewEvent<'_>,
        state: State,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// [`Backend::insert_event`] and, where one statement can do both, the step of its cursor.
    #[doc(hidden)]
    fn insert_first(
        conn: &mut Self::Connection,
        sql: &Sql,
        first: &First<'_>,
    ) -> impl Future<Output = Result<Inserted>> + Send {
        async move {
            let inserted = Self::insert_event(conn, sql, &first.event, first.state).await?;
            Ok(Inserted::event(inserted))
        }
    }
    /// [`Backend::insert_first`], behind another event in its transaction: fails if that one's handler has not left the
    /// transaction as it was, and from here on our savepoint takes back this one alone. The transaction's limits are this
    /// one's from now on. Nothing also if somebody else has its row just now: a rollback to our savepoint is due then.
    #[doc(hidden)]
    fn insert_behind(
        conn: &mut Self::Connection,
        session: &Self::Session,
        settings: &Self::Settings,
        deadline: Instant,
        sql: &Sql,
        first: &First<'_>,
    ) -> impl Future<Output = Result<Inserted>> + Send;
    /// Compare-and-swap of an event's state.
    #[doc(hidden)]
    fn swap_state(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        from: State,
        to: State,
        at: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    #[doc(hidden)]
    fn slot_holder(
        conn: &mut Self::Connection,
        sql: &Sql,
        place: &Place<'_>,
    ) -> impl Future<Output = Result<Option<Holder>>> + Send;
    /// A dead letter gives its place in the stream to another id.
    #[doc(hidden)]
    fn yield_slot(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        to: &str,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Moves the cursor from `place.sequence` to the next, as a compare-and-swap.
    #[doc(hidden)]
    fn advance_cursor(
        conn: &mut Self::Connection,
        sql: &Sql,
        place: &Place<'_>,
        at: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    #[doc(hidden)]
    fn open_cursor(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
        start: Start,
        at: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Moves the version of a stream, as a compare-and-swap: false if what was applied last is newer. The stream's row is
    /// locked either way.
    #[doc(hidden)]
    fn raise_version(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
        raise: &Raise,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// For whoever parks an event in a stream that has not begun, with its cursor locked.
    #[doc(hidden)]
    fn touch_settling(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
        at: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Locks the cursor of a stream that has not begun.
    #[doc(hidden)]
    fn lock_settling(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
    ) -> impl Future<Output = Result<Option<Settling>>> + Send;
    #[doc(hidden)]
    fn lowest_parked(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
        generation: i64,
    ) -> impl Future<Output = Result<Option<i64>>> + Send;
    /// Says where a stream that has not begun begins, or when that is looked at again.
    #[doc(hidden)]
    fn settle_cursor(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
        start: Start,
        at: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Streams that may begin now, after `after` in (source, correlation id) order.
    #[doc(hidden)]
    fn settled_streams(
        conn: &mut Self::Connection,
        sql: &Sql,
        after: Stream<'_>,
        now: Timestamp,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<(String, String)>>> + Send;
    #[doc(hidden)]
    fn lock_cursor(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
    ) -> impl Future<Output = Result<Option<Cursor>>> + Send;
    #[doc(hidden)]
    fn insert_pending(
        conn: &mut Self::Connection,
        sql: &Sql,
        pending: &NewPending<'_>,
    ) -> impl Future<Output = Result<()>> + Send;
    #[doc(hidden)]
    fn delete_pending(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        lease: Lease,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Counts an attempt that is about to begin. False if somebody else was first, or is at work on it.
    #[doc(hidden)]
    fn claim(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        claim: &Claim<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// The attempt says nothing about the event, and does not count.
    #[doc(hidden)]
    fn hand_back(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        lease: Lease,
        not_before: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// What is due of a stream from its cursor on: so many at most, and so many bytes behind the first one.
    #[doc(hidden)]
    fn due_batch(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
        limit: i64,
        bytes: i64,
    ) -> impl Future<Output = Result<Due>> + Send;
    /// Leases several events at once, by the time now until a later one, and counts no attempt. How many were free and due, and
    /// never tried.
    #[doc(hidden)]
    fn claim_batch(
        conn: &mut Self::Connection,
        sql: &Sql,
        batch: &Stretch<'_>,
        owner: &str,
        times: (Timestamp, Timestamp),
    ) -> impl Future<Output = Result<u64>> + Send;
    /// As if they had never been claimed.
    #[doc(hidden)]
    fn hand_back_batch(
        conn: &mut Self::Connection,
        sql: &Sql,
        batch: &Stretch<'_>,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// Locks the rows of a batch's events before its cursor is locked, without waiting for anybody.
    #[doc(hidden)]
    fn lock_batch(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        event_ids: &[&str],
    ) -> impl Future<Output = Result<Locked>> + Send;
    /// Applies the next event of a batch before its handler runs: its row, its cursor and its lease. False or an error if
    /// it is not to be, or if the transaction is not the one that it was: nothing is written outside of that.
    #[doc(hidden)]
    fn mark_member(
        conn: &mut Self::Connection,
        sql: &Sql,
        member: &Member<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Everything that a worker holds: it ends.
    #[doc(hidden)]
    fn hand_back_all(
        conn: &mut Self::Connection,
        sql: &Sql,
        owner: &str,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// One worker's sign of life; the others' are the answer.
    #[doc(hidden)]
    fn beat(
        conn: &mut Self::Connection,
        sql: &Sql,
        owner: &str,
        beat: i64,
        at: Timestamp,
    ) -> impl Future<Output = Result<Vec<(String, i64)>>> + Send;
    /// Removes a worker's row, and those of workers that have not been heard of since `before`.
    #[doc(hidden)]
    fn retire(
        conn: &mut Self::Connection,
        sql: &Sql,
        owner: &str,
        before: Timestamp,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// An attempt failed, of an event that goes on waiting for its turn: when to try again. False if the lease is lost.
    #[doc(hidden)]
    fn postpone(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        attempt: &Attempt<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// One more attempt failed, and (with a reason) there is none after it by itself. A drained one is counted already.
    #[doc(hidden)]
    fn record_attempt(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        attempt: &Attempt<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;
    #[doc(hidden)]
    fn audit(
        conn: &mut Self::Connection,
        sql: &Sql,
        entry: &Audit<'_>,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Streams whose head is due, after `after` in (source, correlation id) order.
    #[doc(hidden)]
    fn due_streams(
        conn: &mut Self::Connection,
        sql: &Sql,
        after: Stream<'_>,
        now: Timestamp,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<(String, String)>>> + Send;
    #[doc(hidden)]
    fn due_head(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
    ) -> impl Future<Output = Result<Option<Pending>>> + Send;
    /// Events without a place in a stream that a worker is to apply, after `after` in (source, event id) order.
    #[doc(hidden)]
    fn due_events(
        conn: &mut Self::Connection,
        sql: &Sql,
        after: Key<'_>,
        now: Timestamp,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<(String, String)>>> + Send;
    /// The first instant after `now` at which time alone gives a worker something to do, for the test kit: of any source,
    /// and for `source` the end of its recovery window too.
    #[cfg(feature = "testkit")]
    #[doc(hidden)]
    fn next_due(
        conn: &mut Self::Connection,
        sql: &Sql,
        now: Timestamp,
        source: &str,
        window: Duration,
    ) -> impl Future<Output = Result<Option<Timestamp>>> + Send;
    #[doc(hidden)]
    fn due_event(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
    ) -> impl Future<Output = Result<Option<Pending>>> + Send;
    /// Makes a stored event one that a worker applies; false if its body was not kept.
    #[doc(hidden)]
    fn release_pending(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        out_of_order: bool,
        at: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Has a parked event wait for its turn alone; false if it waits for nothing else.
    #[doc(hidden)]
    fn hasten(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        now: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Gives a stored event the request that it has no body of.
    #[doc(hidden)]
    fn keep_body(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        request: &StoredRequest,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Makes a dead letter one that a worker tries at once, as if it had never been tried.
    #[doc(hidden)]
    fn requeue(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        at: Timestamp,
    ) -> impl Future<Output = Result<()>> + Send;
    /// The handler does not want it yet, which counts as no attempt. False if that has gone on for too long.
    #[doc(hidden)]
    fn put_off(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        put_off: &PutOff,
        lease: Lease,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// False if the same was signed before.
    #[doc(hidden)]
    fn insert_fence(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        fence: &Fence,
    ) -> impl Future<Output = Result<bool>> + Send;
    #[doc(hidden)]
    fn fence_holder(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        fence: &Fence,
    ) -> impl Future<Output = Result<Option<String>>> + Send;
    /// Removes up to `limit` fences that are older than they need to be.
    #[doc(hidden)]
    fn purge_fences(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        before: Timestamp,
        limit: i64,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// The ids of dead letters of a source that became one before `before`, by key.
    #[doc(hidden)]
    fn stale_letters(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        before: Timestamp,
        after: &str,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<String>>> + Send;
    /// Removes a dead letter that became one before `before`, with its event's row. False, and then to be rolled back, if
    /// it is none, or younger, or a worker has it.
    #[doc(hidden)]
    fn forget_letter(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        before: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Parked events of a source that wait since before `parked_before`, oldest first by key.
    #[doc(hidden)]
    fn expired(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        parked_before: Timestamp,
        after: &str,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<Expired>>> + Send;
    /// Whether anything is stored of a stream, parked or dead.
    #[doc(hidden)]
    fn stream_is_used(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// How much is parked and dead of a stream, whatever its generation.
    #[doc(hidden)]
    fn pending_of_stream(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
    ) -> impl Future<Output = Result<Size>> + Send;
    #[doc(hidden)]
    fn pending_counts(
        conn: &mut Self::Connection,
        sql: &Sql,
    ) -> impl Future<Output = Result<Vec<PendingCount>>> + Send;
    /// Whether there is an applied, superseded or fenced row that was decided before `before`, or a fence that has expired.
    #[doc(hidden)]
    fn stale(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        before: Timestamp,
        now: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// The first answer to an event, in the transaction that applies it.
    #[doc(hidden)]
    fn insert_answer(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        kept: &Kept,
        at: Timestamp,
    ) -> impl Future<Output = Result<()>> + Send;
    #[doc(hidden)]
    fn answer(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
    ) -> impl Future<Output = Result<Option<Arc<Kept>>>> + Send;
    /// Removes up to `limit` answers that were given before `before`.
    #[doc(hidden)]
    fn purge_answers(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        before: Timestamp,
        limit: i64,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// Removes up to `limit` applied rows that were decided before `before`, as many superseded ones, and as many fenced
    /// ones with their requests.
    #[doc(hidden)]
    fn purge(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        before: Timestamp,
        limit: i64,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// Removes the requests of stored events that do not wait.
    #[doc(hidden)]
    fn erase_pending(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        which: &ErasureFilter<'_>,
    ) -> impl Future<Output = Result<u64>> + Send;
    #[doc(hidden)]
    fn erase_answers(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        which: &ErasureFilter<'_>,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// How many of them wait.
    #[doc(hidden)]
    fn count_waiting(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        which: &ErasureFilter<'_>,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// Sources that are deregistered.
    #[doc(hidden)]
    fn gone_sources(
        conn: &mut Self::Connection,
        sql: &Sql,
    ) -> impl Future<Output = Result<Vec<String>>> + Send;
    #[doc(hidden)]
    fn set_gone(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        gone: bool,
        at: Timestamp,
    ) -> impl Future<Output = Result<()>> + Send;
    /// The database's own clock.
    #[doc(hidden)]
    fn now(
        conn: &mut Self::Connection,
        sql: &Sql,
    ) -> impl Future<Output = Result<Timestamp>> + Send;
    #[doc(hidden)]
    fn stale_audit(
        conn: &mut Self::Connection,
        sql: &Sql,
        before: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    #[doc(hidden)]
    fn purge_audit(
        conn: &mut Self::Connection,
        sql: &Sql,
        before: Timestamp,
        limit: i64,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// Moves an entity's version, as a compare-and-swap; its row is locked either way.
    #[doc(hidden)]
    fn guard(
        conn: &mut Self::Connection,
        sql: &Sql,
        entity: &str,
        guarding: Guarding,
        at: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Says these to all that listen.
    #[doc(hidden)]
    fn notify(
        _: &mut Self::Connection,
        _: &Sql,
        _hints: &[String],
    ) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
    /// Hears what is said, over a connection of its own, until it is told to stop or the connection is lost.
    #[doc(hidden)]
    fn listen(
        _: &Pool<Self>,
        _: &Sql,
        _stop: watch::Receiver<bool>,
        _heard: &mpsc::Sender<String>,
    ) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
    /// Puts a cursor that is locked somewhere else.
    #[doc(hidden)]
    fn move_cursor(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
        to: Cursor,
        at: Timestamp,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Of a stream that begins again: no version is applied, and nothing settles.
    #[doc(hidden)]
    fn renew_cursor(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
    ) -> impl Future<Output = Result<()>> + Send;
    /// The range that a place lies in. Under the cursor's lock, like all that ranges are about.
    #[doc(hidden)]
    fn range_at(
        conn: &mut Self::Connection,
        sql: &Sql,
        place: &Place<'_>,
    ) -> impl Future<Output = Result<Option<Range>>> + Send;
    /// Ranges that begin after a place.
    #[doc(hidden)]
    fn ranges_after(
        conn: &mut Self::Connection,
        sql: &Sql,
        place: &Place<'_>,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<Range>>> + Send;
    #[doc(hidden)]
    fn insert_range(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
        generation: i64,
        range: Range,
        at: Timestamp,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Makes dead letters of what waits or is dead in places that are never waited for. How many there were.
    #[doc(hidden)]
    fn set_aside(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
        generation: i64,
        range: Range,
        at: Timestamp,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// Stored events of a stream that have a version and no place, and are not set aside, after `after` by their ids.
    #[doc(hidden)]
    fn unplaced(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
        after: &str,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<String>>> + Send;
    /// Streams of a source whose cursor stands in a range.
    #[doc(hidden)]
    fn strayed(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<String>>> + Send;
    /// Frees its place. False if it is applied, superseded or discarded.
    #[doc(hidden)]
    fn discard_event(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        at: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Where a stream stands, without a lock.
    #[doc(hidden)]
    fn cursor(
        conn: &mut Self::Connection,
        sql: &Sql,
        stream: Stream<'_>,
    ) -> impl Future<Output = Result<Option<Cursor>>> + Send;
    /// Stored events after `after` in (source, event id) order.
    #[doc(hidden)]
    fn letters(
        conn: &mut Self::Connection,
        sql: &Sql,
        filter: &LetterFilter<'_>,
        after: Key<'_>,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<FoundLetter>>> + Send;
    /// Parked events after `after` in (source, event id) order.
    #[doc(hidden)]
    fn waiting(
        conn: &mut Self::Connection,
        sql: &Sql,
        filter: &WaitingFilter<'_>,
        after: Key<'_>,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<FoundLetter>>> + Send;
    /// Parked events that have no place in a stream, counted up to `limit`.
    #[doc(hidden)]
    fn count_apart(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: Option<&str>,
        limit: i64,
    ) -> impl Future<Output = Result<i64>> + Send;
    /// Whether anything is there that is a source's of this name.
    #[doc(hidden)]
    fn source_is_known(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// One event, applied or not, with its request if that is kept.
    #[doc(hidden)]
    fn story(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
    ) -> impl Future<Output = Result<Option<(LetterRow, Option<StoredRequest>)>>> + Send;
    /// Stored events of the same stream, nearest first: below the place, and above it.
    #[doc(hidden)]
    fn neighbours(
        conn: &mut Self::Connection,
        sql: &Sql,
        place: &Place<'_>,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<(String, i64, Option<Reason>)>>> + Send;
    /// Streams in which something waits, after `after` in (source, correlation id) order.
    #[doc(hidden)]
    fn waiting_streams(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: Option<&str>,
        after: Stream<'_>,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<StreamRow>>> + Send;
    /// Streams in which something waits, those first that need somebody most.
    #[doc(hidden)]
    fn urgent_streams(
        conn: &mut Self::Connection,
        sql: &Sql,
        limit: i64,
    ) -> impl Future<Output = Result<UrgentRows>> + Send;
    /// Stored events of one generation of a stream, from a sequence on.
    #[doc(hidden)]
    fn stream_events(
        conn: &mut Self::Connection,
        sql: &Sql,
        from: &Place<'_>,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<StreamEventRow>>> + Send;
    /// Lines of the audit table before `before`, newest first.
    #[doc(hidden)]
    fn audit_lines(
        conn: &mut Self::Connection,
        sql: &Sql,
        which: AuditRows<'_>,
        before: i64,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<AuditRow>>> + Send;
    /// One plain statement.
    #[doc(hidden)]
    fn run(
        conn: &mut Self::Connection,
        statement: SqlStr,
    ) -> impl Future<Output = Result<()>> + Send;
    /// An error if the tables are not those of this version: for health checks.
    #[doc(hidden)]
    fn schema(conn: &mut Self::Connection, sql: &Sql) -> impl Future<Output = Result<()>> + Send;
    /// The cheapest statement that needs the database: for health checks.
    #[doc(hidden)]
    fn ping(conn: &mut Self::Connection, sql: &Sql) -> impl Future<Output = Result<()>> + Send;
    /// False if it is known already.
    #[doc(hidden)]
    fn start_burst(
        conn: &mut Self::Connection,
        sql: &Sql,
        start: &BurstStart<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// An end since then whose start has not come.
    #[doc(hidden)]
    fn orphan_burst(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        since: Timestamp,
    ) -> impl Future<Output = Result<Option<String>>> + Send;
    /// A start that came after its end.
    #[doc(hidden)]
    fn adopt_burst(
        conn: &mut Self::Connection,
        sql: &Sql,
        burst_id: &str,
        start: &BurstStart<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Whether this end is known already.
    #[doc(hidden)]
    fn burst_ended_by(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// The one that has been running longest.
    #[doc(hidden)]
    fn running_burst(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
    ) -> impl Future<Output = Result<Option<String>>> + Send;
    /// False if it has ended already, or another one was ended by the same. Without `completed`: its end never came.
    #[doc(hidden)]
    fn end_burst(
        conn: &mut Self::Connection,
        sql: &Sql,
        burst_id: &str,
        end: &BurstEnd<'_>,
        completed: bool,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// An end whose start is not known.
    #[doc(hidden)]
    fn end_unknown_burst(
        conn: &mut Self::Connection,
        sql: &Sql,
        end: &BurstEnd<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Adds what a process has counted.
    #[doc(hidden)]
    fn count_burst(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
        more: Arrived,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// True for the one who is to tell about its end.
    #[doc(hidden)]
    fn report_burst(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: Key<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// A source's latest, or those of all sources whose end nobody has told about.
    #[doc(hidden)]
    fn bursts(
        conn: &mut Self::Connection,
        sql: &Sql,
        of: Option<(&str, i64)>,
    ) -> impl Future<Output = Result<Vec<BurstRow>>> + Send;
    /// The latest first.
    #[doc(hidden)]
    fn alive(
        conn: &mut Self::Connection,
        sql: &Sql,
    ) -> impl Future<Output = Result<Vec<Alive>>> + Send;
    /// Compare-and-swap.
    #[doc(hidden)]
    fn stay_alive(
        conn: &mut Self::Connection,
        sql: &Sql,
        from: Option<Timestamp>,
        to: &Alive,
    ) -> impl Future<Output = Result<bool>> + Send;
    #[doc(hidden)]
    fn add_incident(
        conn: &mut Self::Connection,
        sql: &Sql,
        found_at: Timestamp,
        since: Timestamp,
        incarnation: &str,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// How far each list of each source has been dealt with.
    #[doc(hidden)]
    fn reconciliations(
        conn: &mut Self::Connection,
        sql: &Sql,
    ) -> impl Future<Output = Result<Vec<ListRow>>> + Send;
    /// Workers, with the time of their last beat by their own clocks.
    #[doc(hidden)]
    fn workers(
        conn: &mut Self::Connection,
        sql: &Sql,
    ) -> impl Future<Output = Result<Vec<(String, Timestamp)>>> + Send;
    /// How many events [`Backend::purge`] would find.
    #[doc(hidden)]
    fn count_stale(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        before: Timestamp,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// (found at, since).
    #[doc(hidden)]
    fn incidents(
        conn: &mut Self::Connection,
        sql: &Sql,
        after: Timestamp,
    ) -> impl Future<Output = Result<Vec<(Timestamp, Timestamp)>>> + Send;
    #[doc(hidden)]
    fn open_reconcile(
        conn: &mut Self::Connection,
        sql: &Sql,
        list: ListKey<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// False while another process is at it.
    #[doc(hidden)]
    fn take_reconcile(
        conn: &mut Self::Connection,
        sql: &Sql,
        list: ListKey<'_>,
        owner: &str,
        now: Timestamp,
        until: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    #[doc(hidden)]
    fn reconcile_state(
        conn: &mut Self::Connection,
        sql: &Sql,
        list: ListKey<'_>,
    ) -> impl Future<Output = Result<Option<Progress>>> + Send;
    /// False if another process has taken over.
    #[doc(hidden)]
    fn save_reconcile(
        conn: &mut Self::Connection,
        sql: &Sql,
        list: ListKey<'_>,
        progress: &Progress,
        owner: &str,
        until: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Of streams in which something waits, after `after` in their order.
    #[doc(hidden)]
    fn gaps(
        conn: &mut Self::Connection,
        sql: &Sql,
        after: Stream<'_>,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<Gap>>> + Send;
    /// False if this process has added this batch of counts already.
    #[doc(hidden)]
    fn claim_flush(
        conn: &mut Self::Connection,
        sql: &Sql,
        owner: &str,
        batch: i64,
        at: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// Adds to a row of the statistics, in a transaction.
    #[doc(hidden)]
    fn add_stats(
        conn: &mut Self::Connection,
        sql: &Sql,
        key: StatKey<'_>,
        more: &StatCounts,
    ) -> impl Future<Output = Result<()>> + Send;
    /// The statistics of these hours, both included: by source and type, and by source and hour.
    #[doc(hidden)]
    fn stats(
        conn: &mut Self::Connection,
        sql: &Sql,
        from: Timestamp,
        to: Timestamp,
    ) -> impl Future<Output = Result<(Vec<StatOfType>, Vec<StatOfSlot>)>> + Send;
    /// Sources with statistics of hours before this one.
    #[doc(hidden)]
    fn stale_stats(
        conn: &mut Self::Connection,
        sql: &Sql,
        before: Timestamp,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<String>>> + Send;
    #[doc(hidden)]
    fn purge_stats(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        before: Timestamp,
    ) -> impl Future<Output = Result<u64>> + Send;
    /// Removes what is left of processes that have ended, and of secrets that are not used any more.
    #[doc(hidden)]
    fn purge_notes(
        conn: &mut Self::Connection,
        sql: &Sql,
        flushes: Timestamp,
        secrets: Timestamp,
    ) -> impl Future<Output = Result<()>> + Send;
    /// A delivery was verified by the secret of this label. An earlier time than the one that is known changes nothing.
    #[doc(hidden)]
    fn use_secret(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        label: &str,
        at: Timestamp,
    ) -> impl Future<Output = Result<()>> + Send;
    #[doc(hidden)]
    fn secret_uses(
        conn: &mut Self::Connection,
        sql: &Sql,
    ) -> impl Future<Output = Result<Vec<SecretUsed>>> + Send;
    /// By what is stored, of which there is a bound.
    #[doc(hidden)]
    fn stored_now(
        conn: &mut Self::Connection,
        sql: &Sql,
        now: Timestamp,
    ) -> impl Future<Output = Result<StoredNow>> + Send;
    /// When a source's lists were last gone through to their end.
    #[doc(hidden)]
    fn reconciled(
        conn: &mut Self::Connection,
        sql: &Sql,
    ) -> impl Future<Output = Result<Vec<(String, Timestamp)>>> + Send;
    /// False while another process counts rows. With `until` in the past, this one has done.
    #[doc(hidden)]
    fn take_row_count(
        conn: &mut Self::Connection,
        sql: &Sql,
        owner: &str,
        now: Timestamp,
        until: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;
    /// How many rows of events there are after this one, up to `limit`, and which is the last of them.
    #[doc(hidden)]
    fn count_rows(
        conn: &mut Self::Connection,
        sql: &Sql,
        after: Key<'_>,
        limit: i64,
    ) -> impl Future<Output = Result<(i64, Option<String>)>> + Send;
    #[doc(hidden)]
    fn save_row_count(
        conn: &mut Self::Connection,
        sql: &Sql,
        source: &str,
        rows: i64,
        at: Timestamp,
    ) -> impl Future<Output = Result<()>> + Send;
    #[doc(hidden)]
    fn row_counts(
        conn: &mut Self::Connection,
        sql: &Sql,
    ) -> impl Future<Output = Result<Vec<RowCount>>> + Send;
}

/// What an error means that the server did not report. A value that cannot be read says nothing about its connection: one
/// bad row must not make a process close its connections and forget what it remembers.
#[allow(dead_code, reason = "not without a back end")]
fn fault_of_ours(error: &sqlx::Error) -> Fault {
    match error {
        sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => Fault::Refused,
        _ => Fault::Gone,
    }
}

/// BEGIN by a statement of ours, counted by the driver, so that a handler's own `begin` is a savepoint.
async fn begin_with<DB: Backend>(conn: &mut DB::Connection, statement: SqlStr) -> Result<()> {
    // The last one on this connection ended with [`Backend::finish`]: it is counted still.
    if DB::depth(conn) > 0 {
        return DB::run(conn, statement).await;
    }
    DB::TransactionManager::begin(conn, Some(statement)).await
}

/// Fails if the transaction is not what it was; our savepoint takes back what comes behind it alone.
pub(crate) const RENEW: &str = "RELEASE SAVEPOINT tower_inbox; SAVEPOINT tower_inbox";

/// The cursor after this place.
fn next_of(place: &Place<'_>) -> i64 {
    place.sequence + i64::from(!broken::is(Variant::CursorLeftBehind))
}

/// Takes a connection out of the pool for good and closes it without a word to the server, in the background.
/// For any end of a transaction that was not our own clean commit or rollback (§4.4).
pub(crate) fn close_hard<DB: Database>(conn: PoolConnection<DB>) {
    use sqlx::Connection;
    // The permit goes back at once: the pool may open a fresh connection while this one is still ending.
    let conn = conn.detach();
    tokio::spawn(async move {
        // A peer that is gone may never answer; dropping the connection then closes its socket.
        let _ = tokio::time::timeout(Duration::from_secs(5), conn.close_hard()).await;
    });
}
