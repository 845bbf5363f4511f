//! A transaction of ours, from BEGIN to COMMIT.

use std::sync::Arc;
use std::time::Duration;

use sqlx::SqlStr;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, timeout};

use super::group_commit::{Baton, End, Members};
use super::{Stop, patience, within};
use crate::answer::Answer;
use crate::broken::{self, Variant};
use crate::fail::point;
use crate::lane::Way;
use crate::outlive::Outlives;
use crate::shared::{Pooled, PooledParts, Shared};
use crate::source::SourceState;
use crate::store::{Backend, Fault, First, Inserted, RENEW};
use crate::tx::Lent;
use crate::warm::Discarded;

/// A transaction of ours. Dropped without a clean end, its connection is closed, never pooled (§4.4).
pub(super) struct Open<'a, DB: Backend> {
    shared: &'a Shared<DB>,
    conn: Option<Pooled<'a, DB>>,
    watch: Option<DB::Deadline>,
    /// What went with BEGIN.
    inserted: Option<Inserted>,
    /// Our savepoint is released: COMMIT goes alone. Otherwise the two go together.
    released: bool,
    /// When the first handler in it began.
    began: Option<Instant>,
    /// Others may go on in it.
    shares: bool,
    /// Those who have succeeded in it, once it is handed on.
    members: Option<Members<DB>>,
    /// The one writer's turn, where the database has but one. Declared last: given back after the connection.
    turn: Option<OwnedSemaphorePermit>,
}

/// A transaction on its way from one delivery to another, which holds it as [`Open`] then.
pub(super) struct OpenParts<DB: Backend> {
    conn: Option<PooledParts<DB>>,
    watch: Option<DB::Deadline>,
    began: Option<Instant>,
    members: Option<Members<DB>>,
    turn: Option<OwnedSemaphorePermit>,
}

impl<'a, DB: Backend> Open<'a, DB> {
    pub(super) async fn begin(shared: &'a Shared<DB>, deadline: Instant) -> Result<Self, Stop> {
        let turn = Self::turn(shared, deadline).await?;
        Self::begin_in(shared, turn, deadline, None).await
    }

    /// The one writer's turn, where the database has but one.
    pub(super) async fn turn(
        shared: &'a Shared<DB>,
        deadline: Instant,
    ) -> Result<Option<OwnedSemaphorePermit>, Stop> {
        let turn = shared.turn_within(patience(deadline)).await;
        turn.map_err(|()| Stop::Answer(Answer::busy("deliveries that wait to write")))
    }

    /// As [`Open::begin`], for one that has the one writer's turn already, and with what is inserted first. That may be
    /// done then: [`Open::take_inserted`] tells.
    pub(super) async fn begin_in(
        shared: &'a Shared<DB>,
        turn: Option<OwnedSemaphorePermit>,
        deadline: Instant,
        first: Option<&First<'_>>,
    ) -> Result<Self, Stop> {
        let mut open = Open {
            shared,
            conn: None,
            watch: None,
            inserted: None,
            released: false,
            began: None,
            shares: false,
            members: None,
            turn,
        };
        loop {
            let conn = shared.connection(deadline).await.map_err(Stop::Answer)?;
            let was_warm = conn.is_warm();
            open.conn = Some(conn);
            let before = shared.watch.start();
            let begun = within(deadline, async {
                point!(shared, "store.begin");
                let (conn, session) = open.pooled().session();
                let (settings, sql) = (&shared.settings, &shared.sql);
                Ok(match first {
                    Some(first) => {
                        DB::begin_with_first(conn, session, settings, deadline, sql, first).await?
                    }
                    None => (DB::begin(conn, session, settings, deadline).await?, None),
                })
            });
            match begun.await {
                Ok((watch, inserted)) => {
                    open.pooled().heard(before);
                    open.watch = Some(watch);
                    open.inserted = inserted;
                    return Ok(open);
                }
                // Nobody asked it whether it still answers, and nothing has happened yet: those of the pool are asked.
                Err(Stop::Database(error)) if was_warm && DB::fault(&error) == Fault::Gone => {
                    open.pooled_out().close();
                }
                Err(stop) => {
                    // What went with BEGIN may wait for a lock over there: the server is told to end it (§4.6).
                    if matches!(stop, Stop::Budget) {
                        open.watch = DB::deadline_of(open.pooled().session().1);
                    }
                    return Err(stop);
                }
            }
        }
    }

    /// Out of this delivery's hands, with our savepoint as it is.
    pub(super) fn into_parts(mut self) -> OpenParts<DB> {
        OpenParts {
            conn: self.conn.take().map(Pooled::into_parts),
            watch: self.watch.take(),
            began: self.began,
            members: self.members.take(),
            turn: self.turn.take(),
        }
    }

    /// Into this one's.
    pub(super) fn from_parts(shared: &'a Shared<DB>, parts: OpenParts<DB>) -> Self {
        Open {
            shared,
            conn: parts.conn.map(|conn| Pooled::from_parts(shared, conn)),
            watch: parts.watch,
            inserted: None,
            released: false,
            began: parts.began,
            shares: true,
            members: parts.members,
            turn: parts.turn,
        }
    }

    pub(super) fn shared(&self) -> &'a Shared<DB> {
        self.shared
    }

    /// Others may go on in it.
    pub(super) fn sharing(mut self, shares: bool) -> Self {
        self.shares = shares;
        self
    }

    /// Whether what succeeds here is to be committed with others, of which one may be next: asked where it matters.
    pub(super) fn is_shared(&self, has_next: impl FnOnce() -> bool) -> bool {
        let waits = || self.shared.group_commit.anybody_waits() || has_next();
        self.members.is_some() || self.shares && waits()
    }

    pub(super) fn members(&self) -> Option<&Members<DB>> {
        self.members.as_ref()
    }

    pub(super) fn take_members(&mut self) -> Option<Members<DB>> {
        self.members.take()
    }

    pub(super) fn add_member(
        &mut self,
        source: &SourceState,
        way: Option<Way<Baton<DB>>>,
    ) -> oneshot::Receiver<End<DB>> {
        let began = self.began.unwrap_or_else(Instant::now);
        let members = self
            .members
            .get_or_insert_with(|| Members::new(source, began));
        members.add(source, way)
    }

    /// From now on it is this delivery's time that counts.
    pub(super) fn arm(&self, deadline: Instant) {
        if let Some(watch) = &self.watch {
            DB::arm(watch, deadline);
        }
    }

    fn pooled(&mut self) -> &mut Pooled<'a, DB> {
        self.conn.as_mut().expect(HELD)
    }

    fn pooled_out(&mut self) -> Pooled<'a, DB> {
        self.conn.take().expect(HELD)
    }

    /// [`Backend::insert_behind`], for a delivery with this deadline.
    pub(super) async fn insert_behind(
        &mut self,
        deadline: Instant,
        first: &First<'_>,
    ) -> Result<Inserted, sqlx::Error> {
        let (settings, sql) = (&self.shared.settings, &self.shared.sql);
        let (conn, session) = self.conn.as_mut().expect(HELD).session();
        DB::insert_behind(conn, session, settings, deadline, sql, first).await
    }

    /// What was inserted with BEGIN, once. Nothing: it is to be inserted yet.
    pub(super) fn take_inserted(&mut self) -> Option<Inserted> {
        self.inserted.take()
    }

    pub(super) fn conn(&mut self) -> &mut DB::Connection {
        self.pooled()
    }

    /// Hands the transaction out.
    pub(super) fn lend(&mut self) -> Lent<DB> {
        self.began.get_or_insert_with(Instant::now);
        let (sql, clock) = (&self.shared.sql, &self.shared.clock);
        let (sql, clock) = (Arc::clone(sql), Arc::clone(clock));
        let conn = self.pooled().take();
        Lent::new(
            conn.expect("a transaction is lent once at a time"),
            sql,
            clock,
        )
    }

    /// Ends the lending. False if the handler kept the transaction: it is lost then.
    pub(super) fn reclaim(&mut self, lent: &Lent<DB>) -> bool {
        let conn = lent.reclaim();
        let here = conn.is_some();
        self.pooled().put_back(conn);
        here
    }

    /// RELEASE and COMMIT of what only the inbox wrote.
    pub(super) async fn commit(mut self, deadline: Instant) -> Result<(), Stop> {
        within(deadline, self.release(false)).await?;
        self.send_commit().await?;
        self.clean().await;
        Ok(())
    }

    /// RELEASE of our savepoint, which fails after any end but ours; and nothing of the handler's is left open. Where
    /// nothing is to be done between it and the COMMIT it is not sent `apart`, but with that.
    pub(super) async fn release(&mut self, apart: bool) -> Result<(), Stop> {
        point!(self.shared, "store.release");
        if apart {
            self.released = true;
            let settings = &self.shared.settings;
            DB::release(self.conn.as_mut().expect(HELD), settings).await?;
        }
        Ok(())
    }

    /// Fails if the transaction is not what it was; what is written from here on can still be undone whole.
    pub(super) async fn checkpoint(&mut self) -> Result<(), Stop> {
        point!(self.shared, "store.checkpoint");
        Ok(DB::run(self.conn(), SqlStr::from_static(RENEW)).await?)
    }

    /// COMMIT, and the RELEASE before it if that has not been sent. Nothing is cancelled once it has been sent (§4.2): from
    /// here on there is a limit to the waiting only.
    pub(super) async fn send_commit(&mut self) -> Result<(), Stop> {
        if let Some(watch) = &self.watch {
            DB::disarm(watch);
        }
        let stays = self.shared.limits_stay();
        let (shared, released) = (self.shared, self.released);
        let finish = (!released).then(|| {
            let (_, session) = self.pooled().session();
            DB::finish(&shared.settings, session, stays)
        });
        let conn = self.pooled().take();
        // Also if this panics in the driver.
        let mut held = Discarded(conn);
        #[cfg(feature = "failpoints")]
        let sql = Arc::clone(&self.shared.sql);
        let left_over = |(held, _)| drop::<Discarded<DB>>(held);
        let mut going = Outlives::new(Handle::try_current().ok(), left_over, async move {
            let done = async {
                point!(sql, "store.commit");
                let conn = held.0.as_mut().expect("nobody else has it");
                DB::commit(conn, finish).await?;
                point!(sql, "store.committed");
                Ok::<_, sqlx::Error>(())
            };
            let done = done.await;
            (held, done)
        });
        match timeout(COMMIT_PATIENCE, &mut going).await {
            Ok(Ok((mut held, done))) => {
                self.pooled().put_back(held.0.take());
                done?;
            }
            // Its event and its stream cannot wait for ever: the network may have lost it. The event's row is locked for
            // as long as it really goes on.
            _ => {
                self.watch = None;
                return Err(Stop::Answer(Answer::unavailable(
                    "the commit's outcome is not known",
                )));
            }
        }
        // A file that was put back while the transaction ran took the commit with it.
        if !self.pooled().is_current() {
            return Err(Stop::Answer(Answer::unavailable(
                "the database was replaced",
            )));
        }
        Ok(())
    }

    pub(super) async fn roll_back(mut self, deadline: Instant) -> Result<(), Stop> {
        self.undo_all(deadline).await?;
        self.clean().await;
        Ok(())
    }

    /// As [`Open::roll_back`], of one that a handler has had: it may not be what it was, and a ROLLBACK succeeds without a
    /// transaction too. Closed then.
    pub(super) async fn take_back(mut self, deadline: Instant) -> Result<(), Stop> {
        let undone = within(deadline, async {
            point!(self.shared, "store.rollback_to");
            Ok(DB::rollback_to(self.conn()).await?)
        });
        if let Err(stop) = undone.await {
            self.give_up(deadline).await;
            return Err(stop);
        }
        self.roll_back(deadline).await
    }

    /// Rolled back, so that nobody waits for what it has locked, and then closed: what is left in its session is not known
    /// (`LOCK TABLES`, say).
    async fn give_up(mut self, deadline: Instant) {
        // A rollback that fails changes nothing.
        let _ = self.undo_all(deadline).await;
    }

    async fn undo_all(&mut self, deadline: Instant) -> Result<(), Stop> {
        within(deadline, async {
            // The handler may have left transactions of its own open inside ours. SQLite's driver counts what was
            // dropped only when its thread comes to it, so that the count is looked at again each time.
            for _ in 0..MOST_NESTED {
                point!(self.shared, "store.rollback");
                DB::rollback(self.conn()).await?;
                if DB::depth(self.conn()) == 0 {
                    return Ok(());
                }
            }
            Err(Stop::Again)
        })
        .await
    }

    /// A clean end: the pool may have the connection back.
    pub(super) async fn clean(mut self) {
        if let Some(watch) = self.watch.take() {
            DB::disarm(&watch);
        }
        let stays = self.shared.limits_stay();
        let restored = async {
            if stays {
                point!(self.shared, "store.restore");
                return Ok(());
            }
            // It may have gone with the COMMIT.
            self.pooled().restore().await
        };
        if let Ok(Ok(())) = timeout(RESTORE_PATIENCE, restored).await
            && let Some(conn) = self.conn.take()
        {
            conn.settled();
        }
    }
}

const HELD: &str = "a transaction has its connection until its end";
/// Nested deeper than this, a transaction is given up with its connection.
const MOST_NESTED: u32 = 64;
/// Beyond any delivery's budget, which the answer keeps by itself.
const COMMIT_PATIENCE: Duration = Duration::from_secs(10);
/// For one statement about the session, after everything has been decided.
const RESTORE_PATIENCE: Duration = Duration::from_secs(2);

impl<DB: Backend> Drop for Open<'_, DB> {
    fn drop(&mut self) {
        if let Some(mut conn) = self.conn.take() {
            if broken::is(Variant::PoolUnended) {
                // Past what stays with the inbox, which would notice.
                return drop(conn.take());
            }
            let before = conn.last_heard();
            conn.close();
            if let Some(kill) = self.watch.as_ref().and_then(DB::kill) {
                self.shared.watch.kill(kill, before);
            }
        }
    }
}
