//! Looking for what is due, and claiming it.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tokio::sync::watch;
use tokio::time::Instant;

use super::batch::{self, Claimed, Pace};
use super::drain::TAKEN;
use super::lease::Held;
use super::worker::Work;
use crate::envelope::{CorrelationId, Envelope, EventId, EventType, Sequence};
use crate::queue::{Joined, Landing, Leader};
use crate::request;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{AT_ONCE, Backend, Claim, Due, Key, Lease, Pending, Reason, Sql, Stream};

impl Work {
    /// What is due first, and in a stream what is due behind it if so many may be taken up together.
    async fn head<DB: Backend>(
        &self,
        conn: &mut DB::Connection,
        sql: &Sql,
        state: &SourceState,
        size: usize,
    ) -> Result<(Option<Pending>, Option<Due>), sqlx::Error> {
        let moves = state.room().moves();
        match self {
            Self::Stream {
                source,
                correlation_id,
            } => {
                let stream = Stream {
                    source,
                    correlation_id,
                };
                let (head, behind) = if size > 1 {
                    batch::due::<DB>(conn, sql, stream, size).await?
                } else {
                    (DB::due_head(conn, sql, stream).await?, None)
                };
                if head.is_none() && !DB::stream_is_used(conn, sql, stream).await? {
                    state.room().found_empty(correlation_id, moves);
                }
                Ok((head, behind))
            }
            Self::Event { source, event_id } => {
                let event = DB::due_event(conn, sql, Key { source, event_id }).await?;
                Ok((event, None))
            }
            // It has no head before it begins.
            Self::Settling { .. } => Ok((None, None)),
        }
    }
}

/// Nothing if a column holds what no version of this crate would have written.
pub(super) fn readable(head: &Pending) -> Option<(Envelope, Request<Bytes>)> {
    let fingerprint = head.fingerprint.as_slice().try_into().ok()?;
    let mut envelope = Envelope::new(EventId::new(&head.event_id).ok()?, fingerprint);
    envelope.event_type = match &head.event_type {
        Some(kind) => Some(EventType::new(kind).ok()?),
        None => None,
    };
    envelope.correlation_id = match &head.correlation_id {
        Some(id) => Some(CorrelationId::new(id).ok()?),
        None => None,
    };
    envelope.sequence = match head.sequence {
        Some(number) => Some(Sequence::new(number)?),
        None => None,
    };
    envelope.version = head.version;
    Some((envelope, request::restore(&head.request)?))
}

/// What a look at the head of a stream (or at an event) came to.
pub(super) enum Looked<'a> {
    Nothing,
    Later(Duration),
    /// It is not to be tried before that.
    Until(Duration),
    /// It ends whoever tries it.
    Poison(Box<Pending>),
    /// A redelivery is applying it there and then (§5.6).
    Flying(watch::Receiver<Option<Landing>>),
    TakenUp(Box<TakenUp<'a>>),
    Batch(Box<Claimed<'a>>),
}

/// An event that this worker has claimed.
pub(super) struct TakenUp<'a> {
    pub(super) head: Pending,
    pub(super) lease: Lease,
    pub(super) _held: Held<'a>,
    /// Nothing if its row cannot be read.
    pub(super) event: Option<Readable>,
}

/// What is handed over of an event, and its flight if deliveries of it wait for that.
pub(super) type Readable = (Envelope, Request<Bytes>, Option<Leader>);

/// Looks for what is due, and claims it, over one connection. The attempt is counted and committed before the handler
/// runs, so that a handler that ends the process is seen.
pub(super) async fn take_up<'a, DB: Backend>(
    shared: &'a Shared<DB>,
    source: &SourceState,
    work: &Work,
    deadline: Instant,
    pace: &mut Pace,
) -> Result<Looked<'a>, sqlx::Error> {
    // Before the connection: whoever has the turn may be waiting for that one.
    let _turn = shared.turn().await;
    let Ok(mut conn) = shared.statements(deadline).await else {
        return Err(sqlx::Error::PoolTimedOut);
    };
    let looked = async {
        let size = pace.size();
        let found = work.head::<DB>(&mut conn, &shared.sql, source, size);
        let (Some(head), behind) = found.await? else {
            return Ok(Looked::Nothing);
        };
        if head.reason == Some(Reason::Gap) && !source.revives_gaps() {
            return Ok(Looked::Nothing);
        }
        let (leases, now) = (&shared.worker.leases, shared.clock.now());
        let wait = head.not_before.since(now);
        if !wait.is_zero() {
            return Ok(Looked::Until(wait));
        }
        if leases.is_taken(&head, now) {
            return Ok(Looked::Later(TAKEN));
        }
        let key = Key {
            source: source.name(),
            event_id: &head.event_id,
        };
        let left_behind = head.lease_owner.as_deref() == Some(leases.owner());
        if !left_behind && head.unfinished >= i64::from(source.max_crashes()) {
            return Ok(Looked::Poison(Box::new(head)));
        }
        let event = match readable(&head) {
            None => None,
            Some((envelope, request)) => match pace.join(shared, source, &envelope) {
                None => Some((envelope, request, None)),
                Some(Joined::Leader(mut leader)) => {
                    // Until it is claimed: another process may be at it.
                    leader.waits();
                    Some((envelope, request, Some(leader)))
                }
                Some(Joined::Follower(flight)) => return Ok(Looked::Flying(flight)),
            },
        };
        // The lease of a batch has counted nothing, and is taken over by whoever finds it.
        if left_behind && !head.lease.is_of_batch() {
            // When the database could not be told about its end: no crash.
            DB::hand_back(&mut conn, &shared.sql, key, head.lease, AT_ONCE).await?;
            return Ok(Looked::Later(Duration::ZERO));
        }
        let (head, mut event) = match behind {
            Some(behind) => {
                match batch::claim(shared, &mut conn, source, (head, event), behind).await? {
                    batch::Tried::Claimed(claimed) => return Ok(Looked::Batch(claimed)),
                    batch::Tried::Taken => return Ok(Looked::Later(TAKEN)),
                    batch::Tried::Alone(alone) => *alone,
                }
            }
            None => (head, event),
        };
        let key = Key {
            source: source.name(),
            event_id: &head.event_id,
        };
        // Whoever finds it claimed by somebody who is gone tries it at once the first time, and later and later after.
        let not_before = match u32::try_from(head.unfinished) {
            Ok(0) => AT_ONCE,
            failed => now.plus(source.backoff(failed.unwrap_or(u32::MAX))),
        };
        let lease = Lease::fresh();
        let claim = Claim {
            from: &head,
            to: lease,
            owner: leases.owner(),
            until: now.plus(shared.lease),
            at: now,
            not_before,
        };
        let _held = leases.hold();
        if !DB::claim(&mut conn, &shared.sql, key, &claim).await? {
            return Ok(Looked::Later(TAKEN));
        }
        if let Some((.., Some(leader))) = &mut event {
            leader.begins();
        }
        Ok(Looked::TakenUp(Box::new(TakenUp {
            head,
            lease,
            _held,
            event,
        })))
    };
    let looked = looked.await;
    conn.done(looked).await
}
