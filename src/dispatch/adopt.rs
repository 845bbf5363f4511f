//! A stream that adopts its first sequence begins.

use std::time::Duration;

use super::own::{Ended, Own, own};
use super::{Stop, cursor};
use crate::clock::Timestamp;
use crate::fail::at;
use crate::shared::Shared;
use crate::store::{Backend, Cursor, Range, RangeKind, SETTLING, Start, Stream};

/// Begins a stream at the lowest sequence that is parked, once it has settled (§5.2), in a transaction of its own.
pub(crate) struct Adopt<'a, DB: Backend> {
    pub(crate) shared: &'a Shared<DB>,
    pub(crate) stream: Stream<'a>,
    /// How long it settles again if there is nothing that it could begin with.
    pub(crate) settle: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adopted {
    /// At this sequence.
    Begun(i64),
    /// It settles until then.
    Not(Timestamp),
    /// It has begun already, or was never heard of.
    Nothing,
}

impl<DB: Backend> Adopt<'_, DB> {
    /// Not done is said in the log: the stream goes on settling, and is found again.
    pub(crate) async fn run(&self) -> Result<Adopted, ()> {
        let (source, correlation_id) = (self.stream.source, self.stream.correlation_id);
        let adopted = own(self.shared, self).await.map_err(|stop| {
            if let Stop::Database(error) = stop {
                tracing::warn!(source, correlation_id, %error, "could not begin a stream");
            }
        })?;
        if let Adopted::Begun(sequence) = adopted {
            tracing::debug!(
                source,
                correlation_id,
                sequence,
                "a stream begins at the lowest sequence that has come"
            );
        }
        Ok(adopted)
    }
}

impl<DB: Backend> Own<DB> for Adopt<'_, DB> {
    type Done = Adopted;

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<Adopted>, Stop> {
        let (sql, now) = (&shared.sql, shared.clock.now());
        let Some(settling) = DB::lock_settling(conn, sql, self.stream).await? else {
            return Ok(Ended::RollBack(Adopted::Nothing));
        };
        if settling.settles_at > now {
            return Ok(Ended::RollBack(Adopted::Not(settling.settles_at)));
        }
        // Under the lock: whoever parks in this stream holds it until his commit.
        let lowest = DB::lowest_parked(conn, sql, self.stream, settling.generation).await?;
        // Nothing: all that had come was taken away again.
        let start = match lowest {
            Some(next) => Start {
                next,
                settles_at: None,
            },
            None => Start {
                next: SETTLING,
                settles_at: Some(now.plus(self.settle)),
            },
        };
        if !DB::settle_cursor(conn, sql, self.stream, start, now).await? {
            return Err(Stop::Again);
        }
        if start.next > 0 {
            let before = Range {
                first: 0,
                last: start.next - 1,
                kind: RangeKind::BeforeStart,
            };
            // Not over what an operator has discarded meanwhile: ranges do not overlap.
            let mut cursor = Cursor {
                next: start.next,
                generation: settling.generation,
                next_range: None,
            };
            cursor::add::<DB>(conn, sql, self.stream, &mut cursor, before, now).await?;
        }
        shared.fail.reached(at::ADOPTED).await?;
        Ok(Ended::Commit(match start.settles_at {
            None => Adopted::Begun(start.next),
            Some(until) => Adopted::Not(until),
        }))
    }
}
