//! A transaction of ours, from BEGIN to COMMIT.

use tokio::time::{Instant, timeout_at};

use super::{Stop, within};
use crate::answer::Answer;
use crate::inbox::{Pooled, Shared};
use crate::store::Backend;
use crate::tx::Lent;

/// A transaction of ours. Dropped without a clean end, its connection is closed, never pooled (§4.4).
pub(super) struct Open<'a, DB: Backend> {
    conn: Option<Pooled<'a, DB>>,
    watch: Option<DB::Deadline>,
}

impl<'a, DB: Backend> Open<'a, DB> {
    pub(super) async fn begin(shared: &'a Shared<DB>, deadline: Instant) -> Result<Self, Stop> {
        let conn = shared.connection(deadline).await.map_err(Stop::Answer)?;
        let mut open = Open {
            conn: Some(conn),
            watch: None,
        };
        let begun = timeout_at(deadline, DB::begin(open.pooled().pooled(), deadline)).await;
        open.watch = Some(begun.map_err(|_| Stop::Budget)??);
        Ok(open)
    }

    fn pooled(&mut self) -> &mut Pooled<'a, DB> {
        self.conn
            .as_mut()
            .expect("a transaction has its connection until its end")
    }

    pub(super) fn conn(&mut self) -> &mut DB::Connection {
        self.pooled()
    }

    /// Hands the transaction out.
    pub(super) fn lend(&mut self) -> Lent<DB> {
        Lent::new(
            self.pooled()
                .take()
                .expect("a transaction is lent once at a time"),
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
        within(deadline, async { Ok(DB::release(self.conn()).await?) }).await?;
        self.send_commit().await?;
        self.clean();
        Ok(())
    }

    /// Nothing is cancelled once COMMIT has been sent (§4.2): no deadline from here on. The answer has its own.
    pub(super) async fn send_commit(&mut self) -> Result<(), Stop> {
        self.disarm();
        DB::commit(self.conn()).await?;
        // A file that was put back while the transaction ran took the commit with it.
        if !self.pooled().is_current().await {
            return Err(Stop::Answer(Answer::unavailable(
                "the database was replaced",
            )));
        }
        Ok(())
    }

    pub(super) async fn roll_back(mut self, deadline: Instant) -> Result<(), Stop> {
        within(deadline, async { Ok(DB::rollback(self.conn()).await?) }).await?;
        self.clean();
        Ok(())
    }

    /// A clean end: the pool may have the connection back.
    pub(super) fn clean(mut self) {
        self.disarm();
        drop(self.conn.take());
    }

    fn disarm(&mut self) {
        if let Some(watch) = self.watch.take() {
            DB::disarm(watch);
        }
    }
}

impl<DB: Backend> Drop for Open<'_, DB> {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            conn.close();
        }
    }
}
