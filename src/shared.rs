//! What the handles of one inbox share, and the connections that it takes.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Pool, SqlStr};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::answer::Answer;
use crate::body::ByteBudget;
use crate::burst::Bursts;
use crate::clock::Clock;
use crate::dispatch::{Baton, GroupCommit, patience};
use crate::envelope::Envelope;
use crate::fail::{FailPoints, point};
use crate::generations::Generations;
use crate::health::Health;
use crate::kept::Kept;
use crate::lane::Lanes;
use crate::order::{Hints, Worker};
use crate::probe::Probes;
use crate::queue::{Flights, Waiting};
use crate::recent::{Recent, Seen};
use crate::reconcile::Keeping;
use crate::source::SourceState;
use crate::stats::Statistics;
use crate::store::{Backend, Fault, Sql, close_hard};
use crate::tenants::Registry;
use crate::tracker::Tracker;
use crate::warm::{For, Warm, Warmed};
use crate::watch::{Start, Watch};

/// Answers in memory are no larger than this, in bytes: there are some ten thousands of them.
const REMEMBERED_ANSWER: usize = 1024;

/// What the handles of one inbox share.
pub(crate) struct Shared<DB: Backend> {
    pub(crate) pool: Pool<DB>,
    pub(crate) warm: Warm<DB>,
    pub(crate) sql: Arc<Sql>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) sources: HashMap<Arc<str>, Arc<SourceState>>,
    pub(crate) runtime: Handle,
    pub(crate) max_in_flight: usize,
    pub(crate) in_flight: Semaphore,
    /// The one writer's turn, where the database has but one.
    pub(crate) writer: Option<Arc<Semaphore>>,
    /// Deliveries that may go on in a transaction that is open, while they wait for that turn.
    pub(crate) group_commit: GroupCommit<DB>,
    pub(crate) waiting: Waiting,
    /// The longest pause between two looks of the worker.
    pub(crate) poll_every: Duration,
    pub(crate) flights: Arc<Flights>,
    pub(crate) lanes: Arc<Lanes<Baton<DB>>>,
    pub(crate) recent: Recent,
    /// Held by who purges, its pauses included: two of them at a time would take twice what one may.
    pub(crate) purging: tokio::sync::Mutex<()>,
    pub(crate) generations: Generations,
    pub(crate) bodies: ByteBudget,
    pub(crate) tracker: Tracker,
    pub(crate) worker: Worker,
    pub(crate) hints: Arc<Hints>,
    pub(crate) tenants: Registry,
    pub(crate) watch: Watch,
    pub(crate) health: Health,
    /// How long a worker's claim is good for.
    pub(crate) lease: Duration,
    pub(crate) keeping: Keeping,
    pub(crate) bursts: Bursts,
    pub(crate) stats: Statistics,
    pub(crate) fail: FailPoints,
    pub(crate) probes: Probes,
    pub(crate) settings: DB::Settings,
    pub(crate) incarnation: Mutex<Incarnation<DB>>,
}

/// Which database this is, and how often that changed.
pub(crate) struct Incarnation<DB: Backend> {
    pub(crate) is: DB::Incarnation,
    pub(crate) generation: u64,
}

/// A connection, and which incarnation of the database it was taken under. It goes back to the pool only if that has
/// not changed meanwhile.
pub(crate) struct Pooled<'a, DB: Backend> {
    shared: &'a Shared<DB>,
    conn: Option<PoolConnection<DB>>,
    /// What is known about the session, as long as the connection stays with the inbox.
    session: DB::Session,
    /// When it was taken from the pool.
    since: Instant,
    /// It has not come from the pool this time, which would have asked whether it still answers.
    warm: bool,
    generation: u64,
    /// The server's start before this connection was last heard of.
    heard: Start,
    /// Something was sent over it whose end nobody has seen. The pool asks what is given back whether it still answers,
    /// and waits for that without a limit: one that is lost would be missing for ever.
    unsettled: bool,
    /// In a transaction of its own, for the sake of its statements.
    bracketed: bool,
}

/// A connection on its way from one delivery to another, which holds it as [`Pooled`] then.
pub(crate) struct PooledParts<DB: Backend> {
    conn: Option<PoolConnection<DB>>,
    session: DB::Session,
    since: Instant,
    warm: bool,
    generation: u64,
    heard: Start,
}

impl<'a, DB: Backend> Pooled<'a, DB> {
    /// Out of this delivery's hands, in a transaction that goes on.
    pub(crate) fn into_parts(self) -> PooledParts<DB> {
        let mut held = ManuallyDrop::new(self);
        PooledParts {
            conn: held.conn.take(),
            session: std::mem::take(&mut held.session),
            since: held.since,
            warm: held.warm,
            generation: held.generation,
            heard: held.heard,
        }
    }

    /// Into this one's.
    pub(crate) fn from_parts(shared: &'a Shared<DB>, parts: PooledParts<DB>) -> Self {
        Self {
            shared,
            conn: parts.conn,
            session: parts.session,
            since: parts.since,
            warm: parts.warm,
            generation: parts.generation,
            heard: parts.heard,
            unsettled: true,
            bracketed: false,
        }
    }
}

impl<DB: Backend> Pooled<'_, DB> {
    /// Takes the connection out, to lend it; [`Pooled::put_back`] ends that.
    pub(crate) fn take(&mut self) -> Option<PoolConnection<DB>> {
        self.conn.take()
    }

    pub(crate) fn put_back(&mut self, conn: Option<PoolConnection<DB>>) {
        self.conn = conn;
    }

    /// Not asked by the pool whether it still answers.
    pub(crate) fn is_warm(&self) -> bool {
        self.warm
    }

    /// It has answered, and the server's start before that is known.
    pub(crate) fn heard(&mut self, before: Start) {
        self.heard = before;
    }

    pub(crate) fn last_heard(&self) -> Start {
        self.heard
    }

    /// The connection and what is known about its session, for a transaction to begin.
    pub(crate) fn session(&mut self) -> (&mut DB::Connection, &mut DB::Session) {
        self.unsettled = true;
        (self.conn.as_deref_mut().expect(LENT), &mut self.session)
    }

    /// Whether the database is still the one that this connection was taken for.
    pub(crate) fn is_current(&self) -> bool {
        self.shared.generation() == self.generation
    }

    /// Where statements have no names, each is sent in two parts, which a pooler between us and the server may give to
    /// two server connections unless a transaction keeps them together.
    async fn bracket(mut self) -> Result<Self, sqlx::Error> {
        if DB::is_limited(&self.session) {
            self.restore().await?;
        }
        if !self.shared.sql.named {
            self.bracketed = true;
            point!(self.shared, "store.bracket");
            DB::run(&mut self, SqlStr::from_static("BEGIN")).await?;
        }
        Ok(self)
    }

    /// Nothing of a transaction's is left in the session from here on.
    pub(crate) async fn restore(&mut self) -> Result<(), sqlx::Error> {
        point!(self.shared, "store.restore");
        match DB::restore(&mut self.session) {
            Some(restore) => DB::run(self, SqlStr::from_static(restore)).await,
            None => Ok(()),
        }
    }

    /// After the statements outside a transaction, with what the last one returned: a connection that met a fault is
    /// closed, so that a pool that is pinned to a server that is no primary any more recovers (§4.7).
    pub(crate) async fn done<T>(
        mut self,
        result: Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        // All is done over there; what it came to may be lost on the way.
        #[cfg(feature = "failpoints")]
        let result = match result {
            Ok(value) => self.shared.fail.reached("store.done").await.map(|()| value),
            failed => failed,
        };
        let result = match result {
            Ok(value) if self.bracketed => {
                let committed = DB::run(&mut self, SqlStr::from_static("COMMIT")).await;
                committed.map(|()| value)
            }
            other => other,
        };
        match &result {
            Err(error) if DB::fault(error) == Fault::Gone => self.close(),
            // Its transaction ends with its connection.
            Err(_) if self.bracketed => {}
            _ => self.settled(),
        }
        result
    }

    /// All that was sent over it was answered: the pool may have it back.
    pub(crate) fn settled(mut self) {
        self.unsettled = false;
    }

    /// Closes it, and forgets what this process remembers: its end was not ours.
    pub(crate) fn close(mut self) {
        if let Some(conn) = self.conn.take() {
            self.shared.broke(conn);
        }
    }
}

const LENT: &str = "the connection is lent only while the handler runs";

impl<DB: Backend> Deref for Pooled<'_, DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.conn.as_deref().expect(LENT)
    }
}

impl<DB: Backend> DerefMut for Pooled<'_, DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.unsettled = true;
        self.conn.as_deref_mut().expect(LENT)
    }
}

impl<DB: Backend> Drop for Pooled<'_, DB> {
    fn drop(&mut self) {
        self.shared.warm.unused();
        let Some(conn) = self.conn.take() else {
            return;
        };
        if self.unsettled {
            return self.shared.broke(conn);
        }
        let known = self.shared.incarnation.lock();
        if known.unwrap_or_else(PoisonError::into_inner).generation != self.generation {
            return close_hard(conn);
        }
        self.shared.warm.put(Warmed {
            conn,
            session: std::mem::take(&mut self.session),
            generation: self.generation,
            since: self.since,
            heard: self.heard,
        });
    }
}

impl<DB: Backend> Shared<DB> {
    /// A pooled connection within half of what is left of the budget, or the answer that says why not.
    pub(crate) async fn connection(&self, deadline: Instant) -> Result<Pooled<'_, DB>, Answer> {
        self.connection_for(deadline, For::Transaction).await
    }

    async fn connection_for(&self, deadline: Instant, what: For) -> Result<Pooled<'_, DB>, Answer> {
        match timeout_at(patience(deadline), self.acquire(what)).await {
            Ok(Ok(conn)) => Ok(conn),
            Err(_) | Ok(Err(sqlx::Error::PoolTimedOut)) if self.watch.alive() => {
                Err(Answer::busy("the connection pool"))
            }
            // A pool goes on trying to connect; the maintenance connection knows that there is nothing to connect to.
            Err(_) => Err(Answer::unavailable("the database is not available")),
            Ok(Err(error)) => {
                tracing::warn!(%error, "no connection to the database");
                self.recent.clear();
                Err(Answer::unavailable("the database is not available"))
            }
        }
    }

    /// As [`Shared::connection`], for statements outside of a transaction. [`Pooled::done`] ends it.
    pub(crate) async fn statements(&self, deadline: Instant) -> Result<Pooled<'_, DB>, Answer> {
        let conn = self.connection_for(deadline, For::Statements).await?;
        match timeout_at(deadline, conn.bracket()).await {
            Ok(Ok(conn)) => Ok(conn),
            _ => Err(Answer::unavailable("the database is not available")),
        }
    }

    /// As [`Shared::acquire`], for statements outside of a transaction. [`Pooled::done`] ends it.
    pub(crate) async fn acquire_statements(&self) -> Result<Pooled<'_, DB>, sqlx::Error> {
        self.acquire(For::Statements).await?.bracket().await
    }

    /// A pooled connection, as long as the pool lets one wait.
    async fn acquire(&self, what: For) -> Result<Pooled<'_, DB>, sqlx::Error> {
        // Looked at before the connection is taken: one that is older than this is not used for long.
        let generation = self.generation();
        // What the session is called on its server is asked later than this.
        let start = self.watch.start();
        point!(self, "store.acquire");
        let (conn, session, since, heard) = match self.warm.take(generation, what) {
            Ok(kept) => (kept.conn, kept.session, kept.since, Some(kept.heard)),
            Err(_waits) => {
                let asked = Instant::now();
                let conn = self.pool.acquire().await;
                metrics::histogram!("inbox_pool_wait_seconds").record(asked.elapsed());
                let conn = conn?;
                (conn, DB::Session::default(), Instant::now(), None)
            }
        };
        self.warm.used();
        Ok(Pooled {
            shared: self,
            conn: Some(conn),
            session,
            since,
            warm: heard.is_some(),
            generation,
            heard: heard.unwrap_or(start),
            unsettled: false,
            bracketed: false,
        })
    }

    /// Closes a connection whose end was not ours. What it committed last may be lost with its server, and the others may
    /// be as broken.
    fn broke(&self, conn: PoolConnection<DB>) {
        close_hard(conn);
        self.recent.clear();
        self.warm.return_all();
    }

    /// Between two transactions a session keeps what they have set, as long as it is with the inbox.
    pub(crate) fn limits_stay(&self) -> bool {
        self.warm.keeps()
    }

    /// Which database this is, as far as it is known.
    pub(crate) fn incarnation(&self) -> DB::Incarnation {
        let known = self.incarnation.lock();
        known.unwrap_or_else(PoisonError::into_inner).is.clone()
    }

    /// How often the database was another one than before. Where that is cheap, it looks whether it is now.
    pub(crate) fn generation(&self) -> u64 {
        if let Some(now) = DB::cheap_incarnation(&self.pool) {
            return self.observe(now);
        }
        self.incarnation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .generation
    }

    /// Takes note of which database this is. If it is another one than before, nothing is remembered, and no idle
    /// connection to the old one is used again.
    pub(crate) fn observe(&self, now: DB::Incarnation) -> u64 {
        let generation = {
            let mut known = self
                .incarnation
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if known.is == now {
                return known.generation;
            }
            tracing::error!(
                from = ?known.is, to = ?now,
                "the database is another one than before: a restore or a failover. Reconcile with your producers over \
                 what they have delivered since the copy was taken"
            );
            known.is = now;
            known.generation += 1;
            known.generation
        };
        self.recent.clear();
        self.warm.discard_all(generation);
        while let Some(conn) = self.pool.try_acquire() {
            close_hard(conn);
        }
        generation
    }

    /// Remembers a commit that this process saw succeed, and no other one (§2.4): with its answer where a duplicate gets that
    /// again.
    pub(crate) fn remember(
        &self,
        epoch: u64,
        source: &SourceState,
        envelope: &Envelope,
        kept: Option<&Arc<Kept>>,
    ) {
        if source.answer_limit().is_some()
            && kept.is_none_or(|kept| kept.bytes() > REMEMBERED_ANSWER)
        {
            return;
        }
        let seen = Seen {
            fingerprint: envelope.print(),
            kept: kept.cloned(),
        };
        let name = source.name_arc();
        self.recent
            .remember(epoch, &name, envelope.event_id.as_arc(), seen);
    }

    /// The one writer's turn, where the database has but one: a statement that writes would wait for the transaction that
    /// has it all the same, over a connection, and with SQLite's patience.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // Nobody closes the semaphore.
        let writer = Arc::clone(self.writer.as_ref()?);
        writer.acquire_owned().await.ok()
    }

    /// As [`Shared::turn`], until then.
    pub(crate) async fn turn_within(
        &self,
        until: Instant,
    ) -> Result<Option<OwnedSemaphorePermit>, ()> {
        timeout_at(until, self.turn()).await.map_err(|_| ())
    }

    /// A place among those that may hold a connection: the source's own first, so that a busy source does not sit on
    /// places of the whole.
    pub(crate) async fn permits<'a>(
        &'a self,
        source: &'a SourceState,
        deadline: Instant,
    ) -> Result<(SemaphorePermit<'a>, SemaphorePermit<'a>), ()> {
        let until = patience(deadline);
        let of_source = permit(source.in_flight(), until).await?;
        Ok((of_source, permit(&self.in_flight, until).await?))
    }

    pub(crate) fn source(&self, name: &str) -> Option<&Arc<SourceState>> {
        self.sources.get(name)
    }
}

/// One of these places, if there is one until then. Nobody closes such a semaphore.
pub(crate) async fn permit(places: &Semaphore, until: Instant) -> Result<SemaphorePermit<'_>, ()> {
    let permit = timeout_at(until, places.acquire()).await;
    permit.map_err(drop)?.map_err(drop)
}
