//! Dead letters that no handler run makes.

use super::own::{Ended, Own, own};
use super::{Stop, cursor};
use crate::shared::Shared;
use crate::store::{Attempt, Backend, Key, Reason, SETTLING, State, Stream};

/// Makes a dead letter of an event that waits for its turn, in a transaction of its own.
pub(crate) struct Bury<'a, DB: Backend> {
    pub(crate) shared: &'a Shared<DB>,
    pub(crate) key: Key<'a>,
    /// Only while the cursor of this stream is below this sequence.
    pub(crate) stream: Option<(Stream<'a>, i64)>,
    pub(crate) attempt: Attempt<'a>,
}

impl<DB: Backend> Bury<'_, DB> {
    /// True if it did; false if the event's row or cursor is no longer what it was. Not done is said in the log.
    pub(crate) async fn run(&self) -> Result<bool, ()> {
        own(self.shared, self).await.map_err(|stop| {
            if let Stop::Database(error) = stop {
                let (source, event_id) = (self.key.source, self.key.event_id);
                tracing::warn!(source, event_id, %error, "could not make a dead letter");
            }
        })
    }
}

impl<DB: Backend> Own<DB> for Bury<'_, DB> {
    type Done = bool;

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<bool>, Stop> {
        let (sql, at) = (&shared.sql, shared.clock.now());
        let known = match DB::lock_event(conn, sql, self.key).await? {
            Some(known) if known.is_waiting() => known,
            _ => return Ok(Ended::RollBack(false)),
        };
        // What was given up for a gap before, and has come back, is dead already; it can only get another reason.
        if known.state == State::Dead && self.attempt.reason == Some(Reason::Gap)
            || !DB::swap_state(conn, sql, self.key, known.state, State::Dead, at).await?
        {
            return Ok(Ended::RollBack(false));
        }
        let mut attempt = self.attempt;
        if let Some((stream, sequence)) = self.stream
            && let Some(cursor) = cursor::lock::<DB>(conn, sql, stream, at).await?
        {
            // While the stream has not begun there is no gap; and one that is filled is none any more.
            let in_turn = cursor.generation == known.generation && cursor.next == sequence;
            if cursor.next == SETTLING || in_turn {
                return Ok(Ended::RollBack(false));
            }
            if cursor.generation != known.generation || cursor.next > sequence {
                // It was stored while its place was skipped, by a delivery that locks no cursor (deferred mode).
                attempt.reason = Some(Reason::Skipped);
                attempt.error = Some("its place was passed over while it was stored");
            }
        }
        let buried = DB::record_attempt(conn, sql, self.key, &attempt).await?;
        Ok(if buried {
            Ended::Commit(true)
        } else {
            Ended::RollBack(false)
        })
    }
}
