//! What is due, one transaction an event: a stream's events in order.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Request, Response};
use tokio::sync::watch;
use tokio::time::Instant;

use super::lease::Held;
use super::worker::{self, Target, Work};
use crate::dispatch::{Adopt, Adopted, BoxError, BoxFuture, Bury, Job, Reply, Run, Settled};
use crate::envelope::{CorrelationId, Envelope, EventId, EventType, Sequence};
use crate::event::Origin;
use crate::fail::at;
use crate::queue::{End, Joined, Landing, Leader};
use crate::request;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{AT_ONCE, Attempt, Backend, Claim, Key, Lease, Pending, Reason, Sql, Stream};

/// Events of one stream before others get their turn.
const TURN: u32 = 64;
/// When nothing can be said about the event itself: a database that is away, a place that others hold.
const SOON: Duration = Duration::from_secs(2);
/// Somebody else is at work on it, and will not say when it is done.
const TAKEN: Duration = Duration::from_millis(500);
/// Jitter makes no wait longer than this: §5.14's five minutes.
const LONGEST_JITTERED: Duration = Duration::from_secs(300);
/// Timers count in whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);
/// A handler's Retry-After is honoured up to this.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

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
            Self::Stream { source, .. }
            | Self::Event { source, .. }
            | Self::Settling { source, .. } => source,
        }
    }

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
        Ok(Adopted::Begun) => {
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

enum Step {
    Applied,
    Ended(Drained),
}

fn later(wait: Duration) -> Step {
    Step::Ended(Drained::Later(Instant::now() + wait))
}

fn until(wait: Duration) -> Step {
    Step::Ended(Drained::Until(Instant::now() + wait))
}

async fn one<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    work: &Work,
    target: &dyn Target,
) -> Step {
    // The stream's turn first: what is read after it is true until the claim, as far as this process is concerned.
    let _lane = match work {
        Work::Stream {
            source,
            correlation_id,
        } => Some(shared.lanes.enter(source, correlation_id).await),
        Work::Event { .. } | Work::Settling { .. } => None,
    };
    let deadline = Instant::now() + source.worker_budget();
    let Ok(_permits) = shared.permits(source, deadline).await else {
        return later(SOON);
    };
    let looked = tokio::time::timeout_at(deadline, take_up(shared, source, work, deadline)).await;
    let TakenUp {
        head,
        lease,
        _held,
        event,
    } = match looked {
        Ok(Ok(Looked::TakenUp(taken_up))) => *taken_up,
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
    let job = Job {
        shared,
        source,
        envelope: &envelope,
        origin: Origin::Drained,
        request: &request,
        stored: &head.request,
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
    };
    let epoch = shared.recent.epoch();
    let settled = job.run(&mut Draining(target)).await;
    if settled.end == End::Applied {
        shared.worker.progress().applied(shared.clock.now());
        shared.remember(epoch, source, &envelope, settled.kept.as_ref());
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
    if let Some(leader) = leader {
        leader.land(settled.end);
    }
    judge(&job, &head, &settled).await
}

/// Calls the target; the drain needs nothing of its answer but status and headers.
pub(crate) struct Draining<'a>(pub(crate) &'a dyn Target);

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
    envelope.version = head.version;
    Some((envelope, request::restore(&head.request)?))
}

/// What a look at the head of a stream (or at an event) came to.
enum Looked<'a> {
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
struct TakenUp<'a> {
    head: Pending,
    lease: Lease,
    _held: Held<'a>,
    /// Nothing if its row cannot be read.
    event: Option<(Envelope, Request<Bytes>, Option<Leader>)>,
}

/// Looks for what is due, and claims it, over one connection. The attempt is counted and committed before the handler
/// runs, so that a handler that ends the process is seen.
async fn take_up<'a, DB: Backend>(
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

/// The attempt said nothing about the event: it does not count.
async fn hand_back<DB: Backend>(job: &Job<'_, DB>, key: Key<'_>) {
    let shared = job.shared;
    let deadline = Instant::now() + job.source.worker_budget();
    let back = tokio::time::timeout_at(deadline, async {
        let _turn = shared.turn().await;
        let mut conn = shared.statements(deadline).await.map_err(drop)?;
        let back = DB::hand_back(&mut conn, &shared.sql, key, job.lease, AT_ONCE).await;
        conn.done(back).await.map_err(drop)
    });
    if back.await != Ok(Ok(true)) {
        tracing::debug!(
            source = key.source,
            event_id = key.event_id,
            "a lease was not given back: it is lost, or taken up again when its event is looked at"
        );
    }
}

/// Its handler ended the process again and again: no crash loop, but a dead letter.
async fn crashed<DB: Backend>(shared: &Shared<DB>, source: &SourceState, head: &Pending) -> Step {
    let key = Key {
        source: source.name(),
        event_id: &head.event_id,
    };
    tracing::error!(
        source = key.source,
        event_id = key.event_id,
        attempts = head.unfinished,
        "an event becomes a dead letter: its process ended each time while it was tried"
    );
    let attempt = Attempt {
        reason: Some(Reason::Crash),
        not_before: AT_ONCE,
        status: None,
        error: Some("the process ended each time while it was tried"),
        lease: head.lease,
    };
    let stream = None;
    let bury = Bury {
        shared,
        key,
        stream,
        attempt,
    };
    match bury.run().await {
        Ok(_) => Step::Ended(Drained::Nothing),
        Err(()) => later(SOON),
    }
}

/// One bad row stops its own stream, visibly, and no other.
async fn unreadable<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    head: &Pending,
    lease: Lease,
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
    let failure = Failure {
        status: None,
        error,
        at_least: Duration::ZERO,
    };
    fail(shared, source, head, key, lease, &failure).await
}

/// What an attempt's end means for the event and its stream (§5.5).
async fn judge<DB: Backend>(job: &Job<'_, DB>, head: &Pending, settled: &Settled<()>) -> Step {
    let source = job.source;
    let key = Key {
        source: source.name(),
        event_id: job.envelope.event_id.as_str(),
    };
    match settled.end {
        End::Applied | End::Superseded => Step::Applied,
        // Its place is skipped with it: what waited behind it is next.
        End::Rejected(_) if source.skips_rejected() => Step::Applied,
        // Its dead letter is written: the cursor stays, and so does what waits behind it (§5.10).
        End::Rejected(_) => Step::Ended(Drained::Nothing),
        End::Parked { .. } | End::Stored | End::Fenced | End::SetAside | End::Discarded => {
            hand_back(job, key).await;
            Step::Ended(Drained::Nothing)
        }
        End::PutOff { until: at, .. } => until(at.since(job.shared.clock.now())),
        End::Failed if !settled.blames_handler => {
            hand_back(job, key).await;
            later(SOON)
        }
        End::Failed => {
            let failure = match &settled.reply {
                Reply::Handler(_, response) => Failure {
                    status: Some(response.status()),
                    error: "the handler's answer",
                    at_least: retry_after(response),
                },
                Reply::Inbox(answer) => Failure {
                    status: Some(answer.status),
                    error: answer.reason(),
                    at_least: Duration::ZERO,
                },
            };
            fail(job.shared, source, head, key, job.lease, &failure).await
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

/// What went wrong with an attempt.
struct Failure<'a> {
    status: Option<http::StatusCode>,
    error: &'a str,
    /// What the handler wants to be waited for.
    at_least: Duration,
}

/// The end of a failed attempt, which was counted when it began: the next one after a backoff, or a dead letter.
async fn fail<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    head: &Pending,
    key: Key<'_>,
    lease: Lease,
    failure: &Failure<'_>,
) -> Step {
    let Failure {
        status,
        error,
        at_least,
    } = *failure;
    let failed = u32::try_from(head.attempts)
        .unwrap_or(u32::MAX)
        .saturating_add(1);
    let now = shared.clock.now();
    let too_old = |age| now.since(head.parked_at) >= age;
    let dead = failed >= source.max_attempts() || source.max_age().is_some_and(too_old);
    let nominal = source.backoff(failed);
    let jittered = nominal.mul_f64(0.75 + fastrand::f64() / 2.0);
    let jittered = jittered.min(nominal.max(LONGEST_JITTERED));
    let wait = jittered.max(at_least);
    let attempt = Attempt {
        reason: dead.then_some(Reason::Handler),
        not_before: now.plus(wait),
        status: status.map(|status| i64::from(status.as_u16())),
        error: Some(error),
        lease,
    };
    let status_code = status.map(|status| status.as_u16());
    let (source_name, event_id) = (key.source, key.event_id);
    if dead {
        tracing::warn!(
            source = source_name,
            event_id,
            attempt = failed,
            status = status_code,
            reason = "handler",
            "a parked event was not applied, for the last time: it becomes a dead letter"
        );
    } else {
        tracing::warn!(
            source = source_name,
            event_id,
            attempt = failed,
            status = status_code,
            "a parked event was not applied: it is tried again"
        );
    }
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
        let deadline = Instant::now() + source.worker_budget();
        let recording = async {
            let _turn = shared.turn().await;
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
        Ok(_) => until(wait),
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
