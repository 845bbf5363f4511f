//! What is due, one transaction an event: a stream's events in order.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::batch::{self, Pace};
use super::ended::{crashed, judge, unreadable};
use super::take_up::{Looked, Readable, TakenUp, take_up};
use super::worker::{self, Target, Work};
use crate::dispatch::{Adopt, Adopted, BoxError, BoxFuture, Job, Run};
use crate::event::Origin;
use crate::fail::at;
use crate::queue::End;
use crate::request::Stored;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{Backend, Lease, Pending, Stream};
use crate::trace;

/// Events of one stream before others get their turn.
const TURN: usize = 64;
/// When nothing can be said about the event itself: a database that is away, a place that others hold.
pub(super) const SOON: Duration = Duration::from_secs(2);
/// Somebody else is at work on it, and will not say when it is done.
pub(super) const TAKEN: Duration = Duration::from_millis(500);
/// Timers count in whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);

/// What is left of a stream after its turn.
pub(super) enum Drained {
    /// Nothing is due.
    Nothing,
    More,
    Later(Instant),
    /// As the database has it: should it say something else before that, it is right.
    Until(Instant),
}

pub(super) async fn work<DB: Backend>(shared: &Arc<Shared<DB>>, work: &Work) -> Drained {
    let name = work.source();
    let Some(target) = shared.worker.target(name) else {
        return Drained::Nothing;
    };
    let Some(source) = shared.find_source(name).await else {
        return Drained::Nothing;
    };
    if let Work::Settling {
        correlation_id: id, ..
    } = work
    {
        return begin(shared, &source, id).await;
    }
    let mut pace = Pace::new(&source);
    while pace.ran < TURN {
        // Shutting down: what is due stays due, and the next process finds it.
        let Some(_tracked) = shared.tracker.enter() else {
            return Drained::Nothing;
        };
        match one(shared, &source, work, &*target, &mut pace).await {
            Step::Applied => {}
            Step::Ended(drained) => return drained,
        }
    }
    Drained::More
}

impl Work {
    pub(super) fn source(&self) -> &Arc<str> {
        match self {
            Self::Stream { source, .. }
            | Self::Event { source, .. }
            | Self::Settling { source, .. } => source,
        }
    }
}

/// A stream that adopts its first sequence begins, if it has settled.
async fn begin<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    correlation_id: &Arc<str>,
) -> Drained {
    let Some(_tracked) = shared.tracker.enter() else {
        return Drained::Nothing;
    };
    let adopt = Adopt {
        shared,
        stream: Stream {
            source: source.name(),
            correlation_id,
        },
        settle: source.settle(),
    };
    match adopt.run().await {
        Ok(Adopted::Begun(_)) => {
            let begun = Work::Stream {
                source: source.name_arc(),
                correlation_id: Arc::clone(correlation_id),
            };
            worker::wake(shared, begun);
            Drained::Nothing
        }
        Ok(Adopted::Nothing) => Drained::Nothing,
        Ok(Adopted::Not(until)) => {
            Drained::Later(Instant::now() + until.since(shared.clock.now()).max(ROUNDING))
        }
        Err(()) => Drained::Later(Instant::now() + SOON),
    }
}

pub(super) enum Step {
    Applied,
    Ended(Drained),
}

pub(super) fn later(wait: Duration) -> Step {
    Step::Ended(Drained::Later(Instant::now() + wait))
}

pub(super) fn until(wait: Duration) -> Step {
    Step::Ended(Drained::Until(Instant::now() + wait))
}

async fn one<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    work: &Work,
    target: &dyn Target,
    pace: &mut Pace,
) -> Step {
    // The stream's turn first: what is read after it is true until the claim, as far as this process is concerned.
    let _lane = match work {
        Work::Stream {
            source,
            correlation_id,
        } => Some(shared.lanes.enter(source, correlation_id, None).await),
        Work::Event { .. } | Work::Settling { .. } => None,
    };
    let deadline = Instant::now() + source.worker_budget();
    pace.ran += 1;
    let Ok(_permits) = shared.permits(source, deadline).await else {
        return later(SOON);
    };
    let taking_up = take_up(shared, source, work, deadline, pace);
    let looked = tokio::time::timeout_at(deadline, taking_up).await;
    let TakenUp {
        head,
        lease,
        _held,
        event,
    } = match looked {
        Ok(Ok(Looked::TakenUp(taken_up))) => *taken_up,
        Ok(Ok(Looked::Batch(claimed))) => {
            return batch::run(shared, source, target, *claimed, deadline, pace).await;
        }
        Ok(Ok(Looked::Nothing)) => return Step::Ended(Drained::Nothing),
        Ok(Ok(Looked::Later(wait))) => return later(wait),
        Ok(Ok(Looked::Until(wait))) => return until(wait),
        Ok(Ok(Looked::Poison(head))) => return crashed(shared, source, &head).await,
        Ok(Ok(Looked::Flying(mut flight))) => {
            drop((_lane, _permits));
            let _ = tokio::time::timeout_at(deadline, flight.wait_for(Option::is_some)).await;
            return Step::Applied;
        }
        Ok(Err(error)) => {
            tracing::warn!(?work, %error, "could not take a due event up");
            return later(SOON);
        }
        Err(_) => return later(SOON),
    };
    if shared.fail.reached(at::CLAIMED).await.is_err() {
        return later(SOON);
    }
    let Some((envelope, request, leader)) = event else {
        return unreadable(shared, source, &head, lease).await;
    };
    let (context, attempt) = (source.trace_context(), head.attempts.saturating_add(1));
    let span = trace::attempt(
        source.name(),
        context,
        &envelope,
        &request,
        Origin::Drained,
        Some(attempt),
    );
    let event = (envelope, request, leader);
    let tried = try_one(
        shared,
        source,
        work,
        target,
        (&head, lease),
        event,
        deadline,
    );
    tried.instrument(span).await
}

/// An event that this worker has claimed: through its transaction, and what that means for it and its stream.
async fn try_one<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    work: &Work,
    target: &dyn Target,
    (head, lease): (&Pending, Lease),
    (envelope, request, leader): Readable,
    deadline: Instant,
) -> Step {
    let job = Job {
        shared,
        source,
        envelope: &envelope,
        origin: Origin::Drained,
        request: &request,
        stored: Stored::Already(&head.request),
        // It passed the fence when it came, or an operator let it pass: this is for others.
        fence: source.fence_of_body(
            envelope.event_type.as_deref(),
            request.body(),
            shared.clock.now(),
        ),
        lease,
        // What waits for no turn is found by its id.
        out_of_order: matches!(work, Work::Event { .. }),
        generation: AtomicI64::default(),
        deadline,
        places: None,
    };
    let epoch = shared.recent.epoch();
    let settled = job.run(&mut Draining(target)).await;
    if shared.fail.reached(at::DRAINED).await.is_err() {
        return later(SOON);
    }
    if settled.end == End::Applied {
        shared.worker.progress().applied(shared.clock.now());
    }
    if settled.is_own_commit() {
        shared.remember(epoch, source, &envelope, settled.kept.as_ref());
    }
    settled.count_aside(shared, source, &envelope);
    let outcome = settled.reply.outcome();
    trace::ended(&Span::current(), outcome);
    metrics::counter!(
        "inbox_drained_total", "source" => source.name_shared(), "outcome" => outcome.as_str()
    )
    .increment(1);
    // Before the attempt is counted: a redelivery that comes after that count is a try of its own, not this one's.
    if let Some(leader) = leader {
        leader.land(settled.landed());
    }
    judge(&job, head, &settled).await
}

/// Calls the target; the drain needs nothing of its answer but status and headers.
pub(crate) struct Draining<'a>(pub(crate) &'a dyn Target);

impl Run<()> for Draining<'_> {
    fn run(&mut self, request: Request<Bytes>) -> BoxFuture<Result<Response<()>, BoxError>> {
        self.0.run(request)
    }
}
