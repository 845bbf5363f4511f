//! Looking for what is due, and claiming it.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tokio::sync::watch;
use tokio::time::Instant;

use super::drain::TAKEN;
use super::lease::Held;
use super::worker::Work;
use crate::envelope::{CorrelationId, Envelope, EventId, EventType, Sequence};
use crate::queue::{Joined, Landing, Leader};
use crate::request;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{AT_ONCE, Backend, Claim, Key, Lease, Pending, Reason, Sql, Stream};

impl Work {
    async fn head<DB: Backend>(
        &self,
        conn: &mut DB::Connection,
        sql: &Sql,
        state: &SourceState,
    ) -> Result<Option<Pending>, sqlx::Error> {
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
                let head = DB::due_head(conn, sql, stream).await?;
                if head.is_none() && !DB::stream_is_used(conn, sql, stream).await? {
                    state.room().found_empty(correlation_id, moves);
                }
                Ok(head)
            }
            Self::Event { source, event_id } => {
                DB::due_event(conn, sql, Key { source, event_id }).await
            }
            // It has no head before it begins.
            Self::Settling { .. } => Ok(None),
        }
    }
}

/// Nothing if a column holds what no version of this crate would have written.
fn readable(head: &Pending) -> Option<(Envelope, Request<Bytes>)> {
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
}

/// An event that this worker has claimed.
pub(super) struct TakenUp<'a> {
    pub(super) head: Pending,
    pub(super) lease: Lease,
    pub(super) _held: Held<'a>,
    /// Nothing if its row cannot be read.
    pub(super) event: Option<(Envelope, Request<Bytes>, Option<Leader>)>,
}

/// Looks for what is due, and claims it, over one connection. The attempt is counted and committed before the handler
/// runs, so that a handler that ends the process is seen.
pub(super) async fn take_up<'a, DB: Backend>(
    shared: &'a Shared<DB>,
    source: &SourceState,
    work: &Work,
    deadline: Instant,
) -> Result<Looked<'a>, sqlx::Error> {
    // Before the connection: whoever has the turn may be waiting for that one.
    let _turn = shared.turn().await;
    let Ok(mut conn) = shared.statements(deadline).await else {
        return Err(sqlx::Error::PoolTimedOut);
    };
    let looked = async {
        let Some(head) = work.head::<DB>(&mut conn, &shared.sql, source).await? else {
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
            Some((envelope, request)) => {
                let (name, id) = (source.name_arc(), envelope.event_id.as_arc());
                // No delivery of a deferred source runs the handler, nor waits for it.
                let joined = (!source.is_deferred())
                    .then(|| shared.flights.join(&name, id, envelope.print()));
                match joined {
                    None => Some((envelope, request, None)),
                    Some(Joined::Leader(leader)) => Some((envelope, request, Some(leader))),
                    Some(Joined::Follower(flight)) => return Ok(Looked::Flying(flight)),
                }
            }
        };
        if left_behind {
            // When the database could not be told about its end: no crash.
            DB::hand_back(&mut conn, &shared.sql, key, head.lease, AT_ONCE).await?;
            return Ok(Looked::Later(Duration::ZERO));
        }
        // Whoever finds it claimed by somebody who is gone tries it at once the first time, and later and later after.
        let not_before = match u32::try_from(head.unfinished) {
            Ok(0) => AT_ONCE,
            failed => now.plus(source.backoff(failed.unwrap_or(u32::MAX))),
        };
        let lease = Lease::fresh();
        let claim = Claim {
            from: head.lease,
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
