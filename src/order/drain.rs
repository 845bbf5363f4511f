//! What is due, one transaction an event: a stream's events in order.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Request, Response};
use tokio::time::Instant;

use super::worker::{Target, Work};
use crate::dispatch::{BoxError, BoxFuture, Bury, Job, Reply, Run, Settled};
use crate::envelope::{CorrelationId, Envelope, EventId, EventType, Sequence};
use crate::event::Origin;
use crate::queue::{End, Joined};
use crate::request;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{Attempt, Backend, Key, Pending, Reason, Stream};

/// Events of one stream before others get their turn.
const TURN: u32 = 64;
/// When nothing can be said about the event itself: a database that is away, a place that others hold.
const SOON: Duration = Duration::from_secs(2);
/// A handler's Retry-After is honoured up to this.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

/// What is left of a stream after its turn.
pub(super) enum Drained {
    /// Nothing is due.
    Nothing,
    More,
    Later(Instant),
}

pub(super) async fn work<DB: Backend>(shared: &Arc<Shared<DB>>, work: &Work) -> Drained {
    let name = work.source();
    let Some(target) = shared.worker.target(name) else {
        return Drained::Nothing;
    };
    let Some(source) = shared.find_source(name).await else {
        return Drained::Nothing;
    };
    for _ in 0..TURN {
        // Shutting down: what is due stays due, and the next process finds it.
        let Some(_tracked) = shared.tracker.enter() else {
            return Drained::Nothing;
        };
        match one(shared, &source, work, &*target).await {
            Step::Applied => {}
            Step::Ended(drained) => return drained,
        }
    }
    Drained::More
}

impl Work {
    fn source(&self) -> &Arc<str> {
        match self {
            Self::Stream { source, .. } | Self::Event { source, .. } => source,
        }
    }

    async fn head<DB: Backend>(
        &self,
        shared: &Shared<DB>,
        deadline: Instant,
    ) -> Result<Option<Pending>, ()> {
        let mut conn = shared.statements(deadline).await.map_err(|_| ())?;
        let head = match self {
            Self::Stream {
                source,
                correlation_id,
            } => {
                DB::due_head(
                    &mut conn,
                    &shared.sql,
                    Stream {
                        source,
                        correlation_id,
                    },
                )
                .await
            }
            Self::Event { source, event_id } => {
                DB::due_event(&mut conn, &shared.sql, Key { source, event_id }).await
            }
        };
        conn.done(head)
            .await
            .map_err(|error| tracing::warn!(?self, %error, "could not read a due event"))
    }
}

enum Step {
    Applied,
    Ended(Drained),
}

fn later(wait: Duration) -> Step {
    Step::Ended(Drained::Later(Instant::now() + wait))
}

async fn one<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    work: &Work,
    target: &dyn Target,
) -> Step {
    let deadline = Instant::now() + source.budget();
    let head = tokio::time::timeout_at(deadline, work.head(shared, deadline)).await;
    let Ok(Ok(head)) = head else {
        return later(SOON);
    };
    let Some(head) = head else {
        return Step::Ended(Drained::Nothing);
    };
    if head.reason == Some(Reason::Gap) && !source.revives_gaps() {
        return Step::Ended(Drained::Nothing);
    }
    let wait = head.not_before.since(shared.clock.now());
    if !wait.is_zero() {
        return later(wait);
    }
    let Some((envelope, request)) = readable(&head) else {
        return unreadable(shared, source, &head).await;
    };
    let name = source.name_arc();
    let leader = match shared
        .flights
        .join(&name, envelope.event_id.as_arc(), envelope.print())
    {
        Joined::Leader(leader) => leader,
        // A redelivery is applying it there and then (§5.6).
        Joined::Follower(mut flight) => {
            let _ = tokio::time::timeout_at(deadline, flight.wait_for(Option::is_some)).await;
            return Step::Applied;
        }
    };
    let _lane = match &envelope.correlation_id {
        Some(id) if envelope.sequence.is_some() => {
            Some(shared.lanes.enter(&name, id.as_arc()).await)
        }
        _ => None,
    };
    // The turn may have been long in coming; the event's own time begins now.
    let deadline = Instant::now() + source.budget();
    let Ok(_permits) = shared.permits(source, deadline).await else {
        return later(SOON);
    };
    let job = Job {
        shared,
        source,
        envelope: &envelope,
        origin: Origin::Drained,
        request: &request,
        stored: &head.request,
        // It passed the fence when it came, or an operator let it pass.
        fence: None,
        // What waits for no turn is found by its id.
        out_of_order: matches!(work, Work::Event { .. }),
        generation: AtomicI64::default(),
        deadline,
    };
    let epoch = shared.recent.epoch();
    let settled = job.run(&mut Draining(target)).await;
    if settled.end == End::Applied {
        shared
            .recent
            .remember(epoch, &name, envelope.event_id.as_arc(), envelope.print());
    }
    let outcome = match &settled.reply {
        Reply::Handler(outcome, _) => *outcome,
        Reply::Inbox(answer) => answer.outcome,
    };
    metrics::counter!(
        "inbox_drained_total", "source" => source.name_shared(), "outcome" => outcome.as_str()
    )
    .increment(1);
    // Before the attempt is counted: a redelivery that comes after that count is a try of its own, not this one's.
    leader.land(settled.end);
    judge(&job, &head, &settled).await
}

/// Calls the target; the drain needs nothing of its answer but status and headers.
struct Draining<'a>(&'a dyn Target);

impl Run<()> for Draining<'_> {
    fn run(&mut self, request: Request<Bytes>) -> BoxFuture<Result<Response<()>, BoxError>> {
        self.0.run(request)
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
    Some((envelope, request::restore(&head.request)?))
}

/// One bad row stops its own stream, visibly, and no other.
async fn unreadable<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    head: &Pending,
) -> Step {
    let key = Key {
        source: source.name(),
        event_id: &head.event_id,
    };
    tracing::error!(
        source = key.source,
        event_id = key.event_id,
        "a stored request cannot be read"
    );
    let error = "the stored request cannot be read";
    fail(shared, source, head, key, None, error, Duration::ZERO).await
}

/// What an attempt's end means for the event and its stream (§5.5).
async fn judge<DB: Backend>(job: &Job<'_, DB>, head: &Pending, settled: &Settled<()>) -> Step {
    let source = job.source;
    let key = Key {
        source: source.name(),
        event_id: job.envelope.event_id.as_str(),
    };
    match settled.end {
        End::Applied => Step::Applied,
        // Its place is skipped with it: what waited behind it is next.
        End::Rejected(_) if source.skips_rejected() => Step::Applied,
        // Its dead letter is written: the cursor stays, and so does what waits behind it (§5.10).
        End::Rejected(_) => Step::Ended(Drained::Nothing),
        End::Parked { .. } | End::Fenced | End::SetAside | End::Discarded => {
            Step::Ended(Drained::Nothing)
        }
        End::Failed if !settled.blames_handler => later(SOON),
        End::Failed => {
            let (status, error, wait) = match &settled.reply {
                Reply::Handler(_, response) => (
                    Some(response.status()),
                    "the handler's answer",
                    retry_after(response),
                ),
                Reply::Inbox(answer) => (Some(answer.status), answer.reason(), Duration::ZERO),
            };
            fail(job.shared, source, head, key, status, error, wait).await
        }
    }
}

fn retry_after(response: &Response<()>) -> Duration {
    let seconds = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0)).min(LONGEST_WAIT)
}

/// Counts a failed attempt: the next one after a backoff, or a dead letter.
async fn fail<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    head: &Pending,
    key: Key<'_>,
    status: Option<http::StatusCode>,
    error: &str,
    at_least: Duration,
) -> Step {
    let failed = u32::try_from(head.attempts)
        .unwrap_or(u32::MAX)
        .saturating_add(1);
    let dead = failed >= source.max_attempts();
    let jittered = source.backoff(failed).mul_f64(0.75 + fastrand::f64() / 2.0);
    let wait = jittered.max(at_least);
    let attempt = Attempt {
        reason: dead.then_some(Reason::Handler),
        not_before: shared.clock.now().plus(wait),
        status: status.map(|status| i64::from(status.as_u16())),
        error: Some(error),
    };
    tracing::warn!(
        source = key.source,
        event_id = key.event_id,
        attempt = failed,
        dead,
        status = status.map(|status| status.as_u16()),
        "a parked event was not applied"
    );
    let recorded = if dead {
        Bury {
            shared,
            key,
            stream: None,
            attempt,
        }
        .run()
        .await
    } else {
        let deadline = Instant::now() + source.budget();
        let recording = async {
            let mut conn = shared.statements(deadline).await.map_err(|_| ())?;
            let postponed = DB::postpone(&mut conn, &shared.sql, key, &attempt).await;
            conn.done(postponed).await.map_err(|_| ())
        };
        tokio::time::timeout_at(deadline, recording)
            .await
            .unwrap_or(Err(()))
    };
    match recorded {
        Ok(_) if dead => Step::Ended(Drained::Nothing),
        Ok(_) => later(wait),
        Err(()) => {
            tracing::warn!(
                source = key.source,
                event_id = key.event_id,
                "could not record a failed attempt"
            );
            later(SOON.max(wait))
        }
    }
}
