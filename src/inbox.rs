//! The inbox: a cheap handle, and its builder.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::{Database, Pool};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::body::ByteBudget;
use crate::burst::Bursts;
use crate::clock::{Clock, SystemClock};
use crate::describe;
use crate::dispatch::{GroupCommit, Release, own};
use crate::error::{BuildError, BuildErrorKind, OperatorError, OperatorErrorKind};
use crate::fail::FailPoints;
use crate::generations::Generations;
use crate::health::Health;
use crate::operator::check_reason;
use crate::order::purge::{self, NotPurged};
use crate::order::sample;
use crate::order::slice::Slice;
use crate::order::worker::{self, Work};
use crate::order::{Purged, Worker, hints, lease};
use crate::queue::Waiting;
use crate::recent::Recent;
use crate::reconcile::Keeping;
use crate::shared::{Incarnation, Shared};
use crate::source::{Source, SourceState};
use crate::stats::{self, Statistics};
use crate::store::{Backend, Key, MIGRATION_PATIENCE, SchemaVersion, Sql};
use crate::tenants::Registry;
use crate::tracker::Tracker;
use crate::verify::Secrets;
use crate::warm::{Stays, Warm};
use crate::watch::Watch;

/// Bodies of deliveries that are not verified yet share this much memory (§2.1).
const BODY_BUDGET: usize = 64 * 1024 * 1024;
/// Deliveries that wait in memory behind another one of the same event or correlation id, or for a connection.
const MAX_WAITING: usize = 4_096;
/// Remembered commits: about 230 bytes each.
const REMEMBERED: usize = 65_536;
/// A poll that finds nothing waits longer the next time, up to this: far below the five minutes of §5.14.
const POLL_EVERY: Duration = Duration::from_secs(5);
/// `poll_every` beyond this would break §5.14.
const POLL_AT_MOST: Duration = Duration::from_secs(120);
/// How long `shutdown` waits for what is running: more than any budget that producers leave.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(30);

/// How long it waits for the statistics, which are nobody's event.
const FLUSH_WAIT: Duration = Duration::from_secs(3);

/// A database's inbox, with its sources. Cheap to clone.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_inbox::{Inbox, Source};
///
/// let pool = tower_inbox::sqlite::connect("sqlite://app.db?mode=rwc", 10).await?;
/// let inbox = Inbox::builder(pool).source(Source::kudos("crm").secrets(["whk_…"])).build().await?;
/// # Ok(()) }
/// ```
pub struct Inbox<DB: Backend> {
    pub(crate) shared: Arc<Shared<DB>>,
}

impl<DB: Backend> Clone for Inbox<DB> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<DB: Backend> std::fmt::Debug for Inbox<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sources: Vec<_> = self.shared.sources.keys().collect();
        f.debug_struct("Inbox")
            .field("database", &<DB as Database>::NAME)
            .field("sources", &sources)
            .finish()
    }
}

impl<DB: Backend> Inbox<DB> {
    /// Starts a builder over the pool of the app: the handlers' tables and the inbox's must be in one database.
    pub fn builder(pool: Pool<DB>) -> InboxBuilder<DB> {
        InboxBuilder {
            pool,
            sources: Vec::new(),
            clock: Arc::new(SystemClock),
            prefix: "tower_inbox_".into(),
            max_in_flight: None,
            keep_connections: usize::MAX,
            stays: Stays::SHORT,
            max_waiting: MAX_WAITING,
            body_budget: BODY_BUDGET,
            remembered: REMEMBERED,
            poll_every: POLL_EVERY,
            migrate: true,
            migration_patience: MIGRATION_PATIENCE,
            tenants_only: false,
            lease: None,
            no_statistics: false,
            fail: Default::default(),
        }
    }

    /// The shared handle of a source's secrets: rotate and revoke at run time (§6.1). None if there is no such
    /// source.
    pub fn secrets(&self, source: &str) -> Option<&Secrets> {
        Some(self.shared.source(source)?.secrets())
    }

    /// Lets an event pass that the fence holds (§6.7), since it was honest after all: the worker hands its stored request
    /// to the handler. `actor` and `reason` go into the audit table.
    ///
    /// False if the event is not held by the fence (any more), so that it is safe to repeat; or if it was held while the
    /// source was over its bound on parking, so that its body was not kept and there is nothing to hand over.
    ///
    /// # Errors
    /// If the database could not be asked, or is busy; if the actor is not a name as [`Inbox::operator`] takes, or the reason is
    /// not 1 to 2,000 bytes.
    pub async fn release_fenced(
        &self,
        source: &str,
        event_id: &str,
        actor: &str,
        reason: &str,
    ) -> Result<bool, OperatorError> {
        self.operator(actor)?;
        check_reason(reason)?;
        let key = Key { source, event_id };
        let release = Release { key, actor, reason };
        let released = own(&self.shared, &release).await?;
        if released {
            let (source, event_id) = (Arc::from(source), Arc::from(event_id));
            let work = Work::Event { source, event_id };
            hints::tell(&self.shared, work.clone());
            worker::wake(&self.shared, work);
        }
        Ok(released)
    }

    /// Removes now what is older than the retention of a source, as the worker does from time to time: rows of applied
    /// events, and what belongs to them; dead letters, if they have a retention ([`Source::dead_letter_retention`]). Small batches, so that deliveries get in; cursors stay (§7.2).
    ///
    /// # Errors
    /// If there is no such source, the database could not be asked, or its clock and this process's are 5 minutes apart; or
    /// if a dead letter could not be removed. What was removed before that stays so, and the error says how much it was.
    pub async fn purge(&self, source: &str) -> Result<Purged, OperatorError> {
        let Some(state) = self.shared.find_source(source).await else {
            return Err(OperatorError::refused(OperatorErrorKind::NotFound));
        };
        let (purged, done) = purge::run(&self.shared, &state, Slice::WHOLE).await;
        let Err(error) = done else {
            return Ok(purged);
        };
        let error = match error {
            NotPurged::Database(error) => OperatorError::database(error),
            NotPurged::Letter(error) => error,
            apart => OperatorError::busy(&apart.to_string()),
        };
        Err(match purged.told() {
            Some(removed) => error.after(&removed),
            None => error,
        })
    }

    /// Whether the database answers, within `patience`: for a health check.
    ///
    /// # Errors
    /// What the database or the pool said, or [`sqlx::Error::PoolTimedOut`] if it said nothing in time.
    pub async fn ping(&self, patience: Duration) -> Result<(), sqlx::Error> {
        if self.shared.pool.is_closed() {
            return Err(sqlx::Error::PoolClosed);
        }
        if !DB::CHEAP_INCARNATION {
            // Not through the pool: one that is busy says nothing about the database.
            return match tokio::time::timeout(patience, self.shared.watch.ping()).await {
                Ok(true) => Ok(()),
                _ => Err(sqlx::Error::PoolTimedOut),
            };
        }
        let ping = async {
            let mut conn = self.shared.acquire_statements().await?;
            let pinged = DB::ping(&mut conn, &self.shared.sql).await;
            conn.done(pinged).await
        };
        tokio::time::timeout(patience, ping)
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    /// How often a connection was taken, for tests of what costs one.
    #[doc(hidden)]
    pub fn connections_taken(&self) -> usize {
        self.shared.warm.taken()
    }

    /// How many deliveries wait for another one's transaction, for tests that need some of them; and how many of these
    /// have looked meanwhile whether their events are known.
    #[cfg(feature = "failpoints")]
    #[doc(hidden)]
    pub fn waiting_to_share(&self) -> (usize, usize) {
        let (writers, streams) = (
            self.shared.group_commit.waiting(),
            self.shared.lanes.joining(),
        );
        (writers.0 + streams.0, writers.1 + streams.1)
    }

    /// Takes no new deliveries (503), stops the worker, and waits, for at most 30 s, until what is running has
    /// ended. Safe to call twice.
    pub async fn shutdown(&self) {
        self.shared.keeping.stop();
        self.shared.worker.stop();
        self.shared.tracker.close();
        if tokio::time::timeout(SHUTDOWN_WAIT, self.shared.tracker.idle())
            .await
            .is_err()
        {
            tracing::warn!(
                "deliveries were still running after {SHUTDOWN_WAIT:?}; they were left behind"
            );
        }
        self.shared.worker.ended().await;
        let flushed = tokio::time::timeout(FLUSH_WAIT, stats::flush(&self.shared)).await;
        if let Ok(Err(error)) = flushed {
            tracing::debug!(%error, "the statistics of the last seconds are lost");
        }
        lease::retire(&self.shared).await;
        self.shared.hints.stop().await;
        self.shared.warm.close();
        self.shared.watch.stop().await;
    }
}

/// Builds an [`Inbox`]. What is not set has the default that its method states.
#[must_use = "an inbox is built by `build`"]
pub struct InboxBuilder<DB: Backend> {
    pool: Pool<DB>,
    sources: Vec<Source>,
    clock: Arc<dyn Clock>,
    prefix: String,
    max_in_flight: Option<usize>,
    keep_connections: usize,
    stays: Stays,
    max_waiting: usize,
    body_budget: usize,
    remembered: usize,
    poll_every: Duration,
    migrate: bool,
    migration_patience: Duration,
    tenants_only: bool,
    lease: Option<Duration>,
    no_statistics: bool,
    fail: FailPoints,
}

impl<DB: Backend> InboxBuilder<DB> {
    /// Adds a source. At least one is needed.
    pub fn source(mut self, source: Source) -> Self {
        self.sources.push(source);
        self
    }

    /// Says that there are no sources but tenants, which are looked up as their deliveries arrive
    /// ([`Inbox::tenant`], `Inbox::mount_tenants`).
    pub fn tenants_only(mut self) -> Self {
        self.tenants_only = true;
        self
    }

    /// Where the wall-clock time comes from. Default: the operating system.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// What the names of the tables begin with. Default: `tower_inbox_`.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Verified deliveries and drained events that may hold a connection at the same time. Default: one less than the
    /// pool's connections, so that a handler that reads from the same pool finds one and cannot deadlock it.
    pub fn max_in_flight(mut self, deliveries: usize) -> Self {
        self.max_in_flight = Some(deliveries);
        self
    }

    /// Connections that may stay with the inbox between two deliveries, for 50 ms if nothing needs them and 1 s in all
    /// (0.1 s while the pool has no other to give). On MySQL and MariaDB their sessions keep the inbox's limits
    /// meanwhile, and get back what they had when they leave. The pool's hooks (`before_acquire`, `after_release`) and its questions
    /// whether a connection still answers have their turn when it leaves and when it comes, and not around every delivery:
    /// what a handler sets for the session, beyond its transaction, is there for the next one. 0: none stays, for apps
    /// whose hooks make a session clean, and each delivery waits for the pool's questions; events that share a transaction
    /// ([`Source::batch`](crate::Source::batch)) have one session even then. Default: as many as
    /// [`InboxBuilder::max_in_flight`]. Whatever is set, one of the pool's is never kept; with a pool of 1, none.
    pub fn keep_connections(mut self, connections: usize) -> Self {
        self.keep_connections = connections;
        self
    }

    /// For tests: one that stays, stays for 20 s.
    #[cfg(feature = "failpoints")]
    #[doc(hidden)]
    pub fn keep_connections_long(mut self) -> Self {
        self.stays = Stays::LONG;
        self
    }

    /// Deliveries that may wait in memory, over all sources; more get 429. Default: 4,096.
    pub fn max_waiting(mut self, deliveries: usize) -> Self {
        self.max_waiting = deliveries;
        self
    }

    /// Bytes of bodies that may be in memory before their signature is verified, over all sources; more get 429.
    /// Default: 64 MiB.
    pub fn body_budget(mut self, bytes: usize) -> Self {
        self.body_budget = bytes;
        self
    }

    /// Commits that this process remembers, to answer their duplicates without a statement (§2.4), for at most ten
    /// minutes. 0 turns that off. Default: 65,536, about 230 bytes each.
    pub fn remembered(mut self, events: usize) -> Self {
        self.remembered = events;
        self
    }

    /// The longest pause between two looks of this process's worker for what is due. What this process itself parks or
    /// applies is looked at without one, and on PostgreSQL what other processes do too; elsewhere this is how long a
    /// parked event may wait for another process that is not there any more. While there is something to do, the pause
    /// is a tenth of it, and each is ± at most a quarter. Default: 5 s; at most 2 minutes.
    pub fn poll_every(mut self, pause: Duration) -> Self {
        self.poll_every = pause;
        self
    }

    /// Whether `build` brings the tables up to date. Default: yes. Without, they must be there: the files in
    /// `migrations/` are plain SQL.
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// How long `build` tries to get the lock of a table that a new version changes, on PostgreSQL, MySQL and MariaDB, while
    /// transactions hold it that have used the table. It waits for a second at a time, behind which deliveries queue, and for two
    /// they go on. The list of versions is read in the same way. While another process migrates, `build` waits for twice as long,
    /// and for 60 s at least: that one may have to wait itself. Default: 60 s.
    pub fn migration_patience(mut self, patience: Duration) -> Self {
        self.migration_patience = patience;
        self
    }

    /// How long a worker's claim on a parked event is good for, at least the longest budget of the sources and 6 s, at most 4
    /// minutes. It is renewed by nothing, since one attempt is never longer than a budget; that a worker is gone is noticed
    /// sooner, by its beat. Default: 30 s, or what is needed.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// For the bench that says what they cost.
    #[doc(hidden)]
    pub fn no_statistics(mut self) -> Self {
        self.no_statistics = true;
        self
    }

    #[cfg(feature = "failpoints")]
    #[doc(hidden)]
    pub fn fail_points(mut self, fail: FailPoints) -> Self {
        self.fail = fail;
        self
    }

    /// The versions of the tables, by number, and which of them the database has: what `build` would bring. Changes nothing.
    ///
    /// # Errors
    /// If the prefix cannot be used, or the database could not be asked.
    pub async fn schema(&self) -> Result<Vec<SchemaVersion>, BuildError> {
        check_prefix(&self.prefix)?;
        let versions = DB::versions(&self.pool, &self.prefix, self.migration_patience).await;
        versions.map_err(|error| match error {
            // It was looked at only.
            sqlx::migrate::MigrateError::Execute(error) => error.into(),
            error => error.into(),
        })
    }

    /// Checks every setting and the database, and brings the tables up to date.
    ///
    /// # Errors
    /// A [`BuildError`] whose text says what to write instead, for a setting that cannot keep the contract or a
    /// database that cannot be asked.
    pub async fn build(self) -> Result<Inbox<DB>, BuildError> {
        check_prefix(&self.prefix)?;
        describe::metrics();
        let connections = self.pool.options().get_max_connections() as usize;
        let in_flight = self
            .max_in_flight
            .unwrap_or(connections.saturating_sub(1))
            .max(1);
        if self.max_in_flight == Some(0) || self.max_waiting == 0 || self.body_budget == 0 {
            let message = "max_in_flight, max_waiting and body_budget must be at least 1";
            return Err(BuildError::unsafe_setting(message));
        }
        if self.poll_every.is_zero() || self.poll_every > POLL_AT_MOST {
            let message = format!("poll_every must be more than 0 and at most {POLL_AT_MOST:?}");
            return Err(BuildError::unsafe_setting(message));
        }
        if in_flight >= connections {
            tracing::warn!(
                in_flight,
                connections,
                "as many deliveries may be in flight as the pool has connections: a handler that uses the same pool \
                 besides its transaction may then wait for itself"
            );
        }
        let mut sources = HashMap::new();
        for source in self.sources {
            let state = Arc::new(SourceState::new(source, self.body_budget)?);
            let name = state.name_arc();
            if sources.insert(Arc::clone(&name), state).is_some() {
                let message = format!("two sources are named {name:?}: give each its own name");
                return Err(BuildError::new(BuildErrorKind::Name, message));
            }
        }
        if sources.is_empty() && !self.tenants_only {
            let message = "an inbox needs a source: `.source(Source::kudos(\"crm\").secrets([…]))`";
            return Err(BuildError::new(BuildErrorKind::Name, message));
        }
        let budgets = sources.values().map(|source| source.longest_budget());
        let lease = lease(self.lease, budgets.max().unwrap_or_default())?;
        let settings = DB::check(&self.pool).await?;
        if self.migrate {
            let patience = self.migration_patience;
            DB::migrate(&self.pool, &settings, &self.prefix, patience).await?;
        }
        let mut sql = DB::sql(&self.prefix);
        sql.named = DB::names_statements(&settings);
        sql.fail = self.fail.clone();
        check_schema::<DB>(&self.pool, &sql).await?;
        let incarnation = match DB::cheap_incarnation(&self.pool) {
            Some(incarnation) => incarnation,
            None => DB::incarnation(&mut *self.pool.acquire().await?).await?,
        };
        let (watch, watcher) = Watch::new();
        let shared = Arc::new(Shared {
            warm: Warm::new(
                self.pool.clone(),
                self.keep_connections
                    .min(in_flight)
                    .min(connections.saturating_sub(1)),
                self.stays,
            ),
            pool: self.pool,
            sql: Arc::new(sql),
            clock: self.clock,
            sources,
            runtime: Handle::current(),
            max_in_flight: in_flight,
            in_flight: Semaphore::new(in_flight.min(Semaphore::MAX_PERMITS)),
            writer: DB::SINGLE_WRITER.then(|| Arc::new(Semaphore::new(1))),
            group_commit: GroupCommit::default(),
            waiting: Waiting::new(self.max_waiting),
            poll_every: self.poll_every,
            flights: Arc::default(),
            lanes: Arc::default(),
            recent: Recent::new(self.remembered),
            purging: tokio::sync::Mutex::default(),
            generations: Generations::default(),
            bodies: ByteBudget::new(self.body_budget),
            tracker: Tracker::default(),
            worker: Worker::default(),
            hints: Arc::default(),
            tenants: Registry::default(),
            watch,
            health: Health::default(),
            lease,
            keeping: Keeping::default(),
            bursts: Bursts::default(),
            stats: Statistics::new(self.no_statistics),
            fail: self.fail,
            probes: Default::default(),
            settings,
            incarnation: Mutex::new(Incarnation {
                is: incarnation,
                generation: 0,
            }),
        });
        for source in shared.sources.values() {
            shared.stats.register(source.counted());
        }
        sample::learn_who_is_gone(&shared).await?;
        if !DB::CHEAP_INCARNATION {
            shared.runtime.spawn(watcher.run(Arc::downgrade(&shared)));
        }
        hints::listen(&shared);
        Ok(Inbox { shared })
    }
}

impl<DB: Backend> std::fmt::Debug for InboxBuilder<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InboxBuilder")
            .field("sources", &self.sources)
            .finish_non_exhaustive()
    }
}

/// What an attempt may take beyond its budget before it begins: SQLite's busy timeout, and a margin (§5.7).
const LEASE_BEYOND: Duration = Duration::from_secs(6);
/// Twice it is well below the five minutes of §5.14, and so is it alone with the waits of a poll.
const LONGEST_LEASE: Duration = Duration::from_secs(240);
const LEASE: Duration = Duration::from_secs(30);

/// The lease that was asked for, or one that is long enough.
fn lease(asked: Option<Duration>, budget: Duration) -> Result<Duration, BuildError> {
    let lease = asked.unwrap_or(LEASE.max(budget + LEASE_BEYOND));
    check_lease(lease, budget)?;
    if lease > LONGEST_LEASE {
        return Err(BuildError::unsafe_setting(format!(
            "a lease of {lease:?} is too long: what a worker left behind is to be tried again within 5 minutes; at most \
             {LONGEST_LEASE:?}, and budgets below that"
        )));
    }
    Ok(lease)
}

/// A lease that is shorter than an attempt would have its event tried twice at the same time.
pub(crate) fn check_lease(lease: Duration, budget: Duration) -> Result<(), BuildError> {
    let least = budget + LEASE_BEYOND;
    if lease >= least {
        return Ok(());
    }
    Err(BuildError::unsafe_setting(format!(
        "a lease of {lease:?} is shorter than an attempt may take: at least {least:?}, the longest budget and 6 s"
    )))
}

/// A prefix goes into the statements' text, so that nothing but a plain identifier may be one.
fn check_prefix(prefix: &str) -> Result<(), BuildError> {
    let plain = prefix
        .chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && prefix.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && prefix.len() <= 32;
    if plain {
        return Ok(());
    }
    let message = format!(
        "the table prefix {prefix:?} must be 1 to 32 of a-z, 0-9 and _, and not begin with a digit"
    );
    Err(BuildError::new(BuildErrorKind::Name, message))
}

async fn check_schema<DB: Backend>(pool: &Pool<DB>, sql: &Sql) -> Result<(), BuildError> {
    // In a transaction, for the reason that `Pooled::bracket` has.
    let mut tx = pool.begin().await?;
    if let Err(error) = DB::ping(&mut tx, sql).await {
        // It was not the server that said so.
        if error.as_database_error().is_none() {
            return Err(error.into());
        }
        let message = format!(
            "the inbox tables are missing ({error}): let `build` make them by `.migrate(true)`, or run the files in \
             migrations/{}",
            DB::MIGRATIONS
        );
        return Err(BuildError::new(BuildErrorKind::Schema, message).because(error));
    }
    Ok(())
}
