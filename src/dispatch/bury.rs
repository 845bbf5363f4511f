//! Dead letters that no handler run makes.

use std::time::Duration;

use tokio::time::Instant;

use super::open::Open;
use super::{Stop, within};
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
        let deadline = Instant::now() + BURY_BUDGET;
        self.once(deadline).await.map_err(|stop| {
            if let Stop::Database(error) = stop {
                let (source, event_id) = (self.key.source, self.key.event_id);
                tracing::warn!(source, event_id, %error, "could not make a dead letter");
            }
        })
    }

    async fn once(&self, deadline: Instant) -> Result<bool, Stop> {
        let mut open = Open::begin(self.shared, deadline).await?;
        let (conn, sql, at) = (open.conn(), &self.shared.sql, self.shared.clock.now());
        let buried = within(deadline, async {
            let known = match DB::lock_event(conn, sql, self.key).await? {
                Some(known) if known.is_waiting() => known,
                _ => return Ok(false),
            };
            // What was given up for a gap before, and has come back, is dead already; it can only get another reason.
            if known.state == State::Dead && self.attempt.reason == Some(Reason::Gap)
                || !DB::swap_state(conn, sql, self.key, known.state, State::Dead, at).await?
            {
                return Ok(false);
            }
            if let Some((stream, sequence)) = self.stream
                && DB::lock_cursor(conn, sql, stream)
                    .await?
                    // Nor while it has not begun: there is no gap yet.
                    .is_some_and(|next| next >= sequence || next == SETTLING)
            {
                return Ok(false);
            }
            Ok(DB::record_attempt(conn, sql, self.key, &self.attempt).await?)
        })
        .await?;
        if buried {
            open.commit(deadline).await?;
        } else {
            open.roll_back(deadline).await?;
        }
        Ok(buried)
    }
}

/// For a few statements of our own.
const BURY_BUDGET: Duration = Duration::from_secs(10);
