//! What is known of a delivery's event before its transaction begins (§2.4).

use tokio::time::timeout_at;

use super::deliver::Live;
use crate::answer::Answer;
use crate::dispatch::{Settled, lowest_missing};
use crate::queue::End;
use crate::store::{Backend, Known, Reason, State};

/// What a look found, which needs no transaction.
pub(super) struct Found<R> {
    settled: Settled<R>,
    same_content: bool,
}

/// What the database knew before the transaction.
enum Standing {
    /// Only the transaction can tell.
    Open,
    Applied,
    Fenced,
    Superseded,
    /// For a worker.
    Stored,
    SetAside,
    Discarded,
    Waiting(u64),
}

impl<DB: Backend> Live<'_, DB> {
    /// [`Live::look`], and what it says about the next ones.
    pub(super) async fn look_up<R>(&self) -> Option<Found<R>> {
        let failed = |answer| Found {
            settled: Settled::failed(answer),
            same_content: true,
        };
        match timeout_at(self.deadline, self.look()).await {
            Err(_) => Some(failed(Answer::unavailable("the delivery's time is spent"))),
            Ok(Err(answer)) => Some(failed(answer)),
            Ok(Ok(Some(found))) => {
                self.source.lookout().hit();
                Some(found)
            }
            Ok(Ok(None)) => {
                self.source.lookout().missed();
                None
            }
        }
    }

    /// One statement, outside any transaction: what the database knows already (§2.4).
    async fn look<R>(&self) -> Result<Option<Found<R>>, Answer> {
        let mut conn = self.shared.statements(self.deadline).await?;
        let kept = self.source.answer_limit().is_some();
        let known = DB::known(&mut conn, &self.shared.sql, self.key(), kept).await;
        let known = conn.done(known).await;
        let Some(known) = known.map_err(|error| self.database_failed(&error))? else {
            return Ok(None);
        };
        let same_content = self.source.same_content(self.envelope, &known);
        let (end, answer) = match self.standing(&known) {
            Standing::Open => return Ok(None),
            Standing::Fenced => {
                return Ok(Some(Found {
                    settled: Settled::answer(End::Fenced, Answer::fenced()),
                    same_content: true,
                }));
            }
            Standing::Applied => (End::Applied, Answer::again(known.kept.clone())),
            Standing::Superseded => (End::Superseded, Answer::superseded()),
            Standing::SetAside => (End::SetAside, Answer::set_aside()),
            Standing::Discarded => (End::Discarded, Answer::discarded()),
            Standing::Stored => (End::Stored, Answer::stored()),
            Standing::Waiting(waiting_for) => {
                (End::Parked { waiting_for }, Answer::parked(waiting_for))
            }
        };
        let settled = Settled {
            kept: known.kept,
            ..Settled::answer(end, answer)
        };
        Ok(Some(Found {
            settled,
            same_content,
        }))
    }

    /// What was found, unless its content is another and refused for that.
    pub(super) async fn told<R>(&self, found: Found<R>) -> Settled<R> {
        if !found.same_content
            && let Some(refusal) = self.other_content().await
        {
            return Settled::answer(End::Rejected(refusal.status), refusal);
        }
        found.settled
    }

    fn standing(&self, known: &Known) -> Standing {
        match (known.state, known.sequence, known.next_sequence) {
            (State::Applied, _, _) => Standing::Applied,
            (State::Fenced, _, _) => Standing::Fenced,
            (State::Superseded, _, _) => Standing::Superseded,
            (State::Discarded, _, _) => Standing::Discarded,
            _ if known.is_set_aside() => Standing::SetAside,
            // For operators alone (§5.11): it says what holds it up, or that it is out of the way.
            (State::Dead, Some(sequence), Some(next))
                if known.reason == Some(Reason::Crash)
                    && sequence == next
                    && !known.has_yielded =>
            {
                Standing::Waiting(lowest_missing(next))
            }
            (State::Dead, None, _) if known.reason == Some(Reason::Crash) => Standing::SetAside,
            (State::Parked, _, _) if self.source.is_deferred() => Standing::Stored,
            (State::Dead, _, _)
                if self.source.is_deferred()
                    && known.is_waiting()
                    && self.source.revives_gaps() =>
            {
                Standing::Stored
            }
            // A deferred source's dead letter is stored anew.
            (State::Dead, _, _) if self.source.is_deferred() => Standing::Open,
            (_, Some(sequence), Some(next)) if known.is_waiting() && sequence > next => {
                Standing::Waiting(lowest_missing(next))
            }
            _ => Standing::Open,
        }
    }
}
