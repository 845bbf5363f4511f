//! A stream that adopts its first sequence begins.

use std::time::Duration;

use tokio::time::Instant;

use super::open::Open;
use super::{Stop, cursor, within};
use crate::clock::Timestamp;
use crate::fail::at;
use crate::shared::Shared;
use crate::store::{Backend, Cursor, Range, RangeKind, SETTLING, Start, Stream};

/// For a few statements of our own.
const BUDGET: Duration = Duration::from_secs(10);

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
    Begun,
    /// It settles until then.
    Not(Timestamp),
    /// It has begun already, or was never heard of.
    Nothing,
}

impl<DB: Backend> Adopt<'_, DB> {
    /// Not done is said in the log: the stream goes on settling, and is found again.
    pub(crate) async fn run(&self) -> Result<Adopted, ()> {
        let deadline = Instant::now() + BUDGET;
        self.once(deadline).await.map_err(|stop| {
            if let Stop::Database(error) = stop {
                let (source, correlation_id) = (self.stream.source, self.stream.correlation_id);
                tracing::warn!(source, correlation_id, %error, "could not begin a stream");
            }
        })
    }

    async fn once(&self, deadline: Instant) -> Result<Adopted, Stop> {
        let mut open = Open::begin(self.shared, deadline).await?;
        self.shared.fail.reached(at::BEGUN).await?;
        let (conn, sql, now) = (open.conn(), &self.shared.sql, self.shared.clock.now());
        let (adopted, write) = within(deadline, async {
            let Some(settling) = DB::lock_settling(conn, sql, self.stream).await? else {
                return Ok((Adopted::Nothing, false));
            };
            if settling.settles_at > now {
                return Ok((Adopted::Not(settling.settles_at), false));
            }
            // Under the lock: whoever parks in this stream holds it until his commit.
            let lowest = DB::lowest_parked(conn, sql, self.stream, settling.generation).await?;
            let Some(lowest) = lowest else {
                // All that had come was taken away again.
                let settles_at = now.plus(self.settle);
                let start = Start {
                    next: SETTLING,
                    settles_at: Some(settles_at),
                };
                let written = DB::settle_cursor(conn, sql, self.stream, start, now).await?;
                return Ok((Adopted::Not(settles_at), written));
            };
            let start = Start {
                next: lowest,
                settles_at: None,
            };
            if !DB::settle_cursor(conn, sql, self.stream, start, now).await? {
                return Err(Stop::Again);
            }
            if lowest > 0 {
                let before = Range {
                    first: 0,
                    last: lowest - 1,
                    kind: RangeKind::BeforeStart,
                };
                // Not over what an operator has discarded meanwhile: ranges do not overlap.
                let mut cursor = Cursor {
                    next: lowest,
                    generation: settling.generation,
                    next_range: None,
                };
                cursor::add::<DB>(conn, sql, self.stream, &mut cursor, before, now).await?;
            }
            tracing::info!(
                source = self.stream.source,
                correlation_id = self.stream.correlation_id,
                sequence = lowest,
                "a stream begins at the lowest sequence that has come"
            );
            Ok((Adopted::Begun, true))
        })
        .await?;
        if write {
            self.shared.fail.reached(at::ADOPTED).await?;
            open.commit(deadline).await?;
        } else {
            open.roll_back(deadline).await?;
        }
        Ok(adopted)
    }
}
