//! A transaction of ours, from BEGIN to COMMIT.

use std::sync::Arc;
use std::time::Duration;

use sqlx::SqlStr;
use tokio::sync::{SemaphorePermit, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Stop, patience, within};
use crate::answer::Answer;
use crate::broken::{self, Variant};
use crate::fail::point;
use crate::shared::{Pooled, Shared};
use crate::store::{Backend, close_hard};
use crate::tx::Lent;

/// A transaction of ours. Dropped without a clean end, its connection is closed, never pooled (§4.4).
pub(super) struct Open<'a, DB: Backend> {
    shared: &'a Shared<DB>,
    conn: Option<Pooled<'a, DB>>,
    watch: Option<DB::Deadline>,
    /// The one writer's turn, where the database has but one. Declared last: given back after the connection.
    _turn: Option<SemaphorePermit<'a>>,
}

impl<'a, DB: Backend> Open<'a, DB> {
    pub(super) async fn begin(shared: &'a Shared<DB>, deadline: Instant) -> Result<Self, Stop> {
        let turn = match &shared.writer {
            Some(writer) => {
                let turn = timeout_at(patience(deadline), writer.acquire()).await;
                let busy = || Stop::Answer(Answer::busy("deliveries that wait to write"));
                // Nobody closes the semaphore.
                Some(turn.map_err(|_| busy())?.map_err(|_| busy())?)
            }
            None => None,
        };
        let conn = shared.connection(deadline).await.map_err(Stop::Answer)?;
        let mut open = Open {
            shared,
            conn: Some(conn),
            watch: None,
            _turn: turn,
        };
        let begun = within(deadline, async {
            point!(shared, "store.begin");
            Ok(DB::begin(open.conn(), &shared.settings, deadline).await?)
        })
        .await;
        open.watch = Some(begun?);
        Ok(open)
    }

    fn pooled(&mut self) -> &mut Pooled<'a, DB> {
        self.conn.as_mut().expect(HELD)
    }

    pub(super) fn conn(&mut self) -> &mut DB::Connection {
        self.pooled()
    }

    /// Hands the transaction out.
    pub(super) fn lend(&mut self) -> Lent<DB> {
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
        within(deadline, self.release()).await?;
        self.send_commit().await?;
        self.clean().await;
        Ok(())
    }

    /// RELEASE of our savepoint, which fails after any end but ours; and nothing of the handler's is left open.
    pub(super) async fn release(&mut self) -> Result<(), Stop> {
        point!(self.shared, "store.release");
        let settings = &self.shared.settings;
        Ok(DB::release(self.conn.as_mut().expect(HELD), settings).await?)
    }

    /// Fails if the transaction is not what it was; what is written from here on can still be undone whole.
    pub(super) async fn checkpoint(&mut self) -> Result<(), Stop> {
        point!(self.shared, "store.checkpoint");
        let renew = "RELEASE SAVEPOINT tower_inbox; SAVEPOINT tower_inbox";
        Ok(DB::run(self.conn(), SqlStr::from_static(renew)).await?)
    }

    /// Nothing is cancelled once COMMIT has been sent (§4.2): from here on there is a limit to the waiting only.
    pub(super) async fn send_commit(&mut self) -> Result<(), Stop> {
        if let Some(watch) = &self.watch {
            DB::disarm(watch);
        }
        let mut conn = self
            .pooled()
            .take()
            .expect("nobody else has a transaction that is settled");
        let (reply, committed) = oneshot::channel();
        #[cfg(feature = "failpoints")]
        let sql = Arc::clone(&self.shared.sql);
        // In a task of its own: it goes on when nobody waits for it any more.
        tokio::spawn(async move {
            let done = async {
                point!(sql, "store.commit");
                DB::commit(&mut conn).await?;
                point!(sql, "store.committed");
                Ok::<_, sqlx::Error>(())
            };
            let done = done.await;
            if let Err((conn, _)) = reply.send((conn, done)) {
                close_hard(conn);
            }
        });
        match timeout(COMMIT_PATIENCE, committed).await {
            Ok(Ok((conn, done))) => {
                self.pooled().put_back(Some(conn));
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
        .await?;
        self.clean().await;
        Ok(())
    }

    /// A clean end: the pool may have the connection back.
    pub(super) async fn clean(mut self) {
        if let Some(watch) = self.watch.take() {
            DB::disarm(&watch);
        }
        let shared = self.shared;
        let restored = async {
            point!(shared, "store.restore");
            DB::restore(self.conn.as_mut().expect(HELD), &shared.settings).await
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
        if let Some(conn) = self.conn.take() {
            if broken::is(Variant::PoolUnended) {
                return conn.settled();
            }
            conn.close();
            if let Some(kill) = self.watch.as_ref().and_then(DB::kill) {
                self.shared.watch.kill(kill);
            }
        }
    }
}
