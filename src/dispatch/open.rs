//! A transaction of ours, from BEGIN to COMMIT.

use sqlx::pool::PoolConnection;
use tokio::time::{Instant, timeout_at};

use super::{Stop, within};
use crate::answer::Answer;
use crate::inbox::Shared;
use crate::store::{Backend, close_hard};

/// A transaction of ours. Dropped without a clean end, its connection is closed, never pooled (§4.4).
pub(super) struct Open<'a, DB: Backend> {
    shared: &'a Shared<DB>,
    pub(super) conn: Option<PoolConnection<DB>>,
    watch: Option<DB::Deadline>,
}

impl<'a, DB: Backend> Open<'a, DB> {
    pub(super) async fn begin(shared: &'a Shared<DB>, deadline: Instant) -> Result<Self, Stop> {
        let conn = shared.connection(deadline).await.map_err(Stop::Answer)?;
        let mut open = Open {
            shared,
            conn: Some(conn),
            watch: None,
        };
        let conn = open.conn.as_mut().expect("just put there");
        let begun = timeout_at(deadline, DB::begin(conn, deadline)).await;
        open.watch = Some(begun.map_err(|_| Stop::Budget)??);
        Ok(open)
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
        if self.shared.incarnation_changed().await {
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

    pub(super) fn conn(&mut self) -> &mut DB::Connection {
        self.conn
            .as_deref_mut()
            .expect("the connection is lent only while the handler runs")
    }

    /// A clean end: the pool may have it back.
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
            close_hard(conn);
            self.shared.recent.clear();
        }
    }
}
