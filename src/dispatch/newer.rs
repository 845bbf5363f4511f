//! Newer-than order: only a version that is greater than the last applied one of its correlation id is applied (§5.12).

use super::open::Open;
use super::{Entered, Job, Settled, Stop, within};
use crate::answer::Answer;
use crate::queue::End;
use crate::store::{Backend, Known, Raise, State, Stream};

impl<DB: Backend> Job<'_, DB> {
    /// The event's row is ours and says applied. Moves the version of its stream on, or finds the event to be older than
    /// what was applied. `known`: what its row said before; nothing if it is new.
    pub(super) async fn outrun(
        &self,
        conn: &mut DB::Connection,
        known: Option<&Known>,
    ) -> Result<Entered, Stop> {
        let from = known.map(|known| known.state);
        let Some(or_equal) = self.source.applies_newer() else {
            return Ok(Entered::Run { from });
        };
        // What counts is what it was stored with.
        let stored = known.and_then(|known| known.correlation_id.as_deref().zip(known.version));
        let sent = self.envelope.correlation_id.as_deref();
        let Some((correlation_id, to)) = stored.or(sent.zip(self.envelope.version)) else {
            // Stored before its source had versions.
            return Ok(Entered::Run { from });
        };
        let stream = Stream {
            source: self.source.name(),
            correlation_id,
        };
        let raise = Raise {
            to,
            or_equal,
            first: self.source.start(self.shared.clock.now()).next,
            at: self.shared.clock.now(),
        };
        if DB::raise_version(conn, &self.shared.sql, stream, &raise).await? {
            return Ok(Entered::Run { from });
        }
        Ok(Entered::Supersede { from })
    }

    /// Records that a later version came first.
    pub(super) async fn supersede<R>(
        &self,
        mut open: Open<'_, DB>,
        from: Option<State>,
    ) -> Result<Settled<R>, Stop> {
        within(self.deadline, self.record_superseded(open.conn())).await?;
        open.commit(self.deadline).await?;
        self.superseded(from);
        Ok(Settled::answer(End::Superseded, Answer::superseded()))
    }

    pub(super) async fn record_superseded(&self, conn: &mut DB::Connection) -> Result<(), Stop> {
        let (sql, at) = (&self.shared.sql, self.shared.clock.now());
        let (from, to) = (State::Applied, State::Superseded);
        if !DB::swap_state(conn, sql, self.key(), from, to, at).await? {
            return Err(Stop::Again);
        }
        Ok(())
    }

    /// What is said and counted once it is committed.
    pub(super) fn superseded(&self, from: Option<State>) {
        if from.is_some() {
            self.applied_one();
        }
        metrics::counter!("inbox_superseded_total", "source" => self.source.name_shared())
            .increment(1);
    }
}
