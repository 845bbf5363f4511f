//! What the end of an attempt means for its event and stream.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header::RETRY_AFTER;
use tokio::time::Instant;

use super::drain::{Drained, SOON, Step, later, until};
use crate::broken::{self, Variant};
use crate::dispatch::{self, Bury, Job, Reply, Settled};
use crate::probe::Happened;
use crate::queue::End;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{AT_ONCE, Attempt, Backend, Key, Lease, Pending, Reason};

/// Jitter makes no wait longer than this: §5.14's five minutes.
const LONGEST_JITTERED: Duration = Duration::from_secs(300);
/// A handler's Retry-After is honoured up to this.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

/// What is kept of a failing answer; its status is beside it, and its own words behind this, where the source keeps them.
const FAILED: &str = "the handler failed it";

/// The attempt said nothing about the event: it does not count.
pub(super) async fn hand_back<DB: Backend>(job: &Job<'_, DB>, key: Key<'_>) {
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
pub(super) async fn crashed<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    head: &Pending,
) -> Step {
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
pub(super) async fn unreadable<DB: Backend>(
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
        said: error,
        at_least: Duration::ZERO,
    };
    fail(shared, source, head, key, lease, &failure).await
}

/// What an attempt's end means for the event and its stream (§5.5).
pub(super) async fn judge<DB: Backend>(
    job: &Job<'_, DB>,
    head: &Pending,
    settled: &Settled<()>,
) -> Step {
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
            let words;
            let failure = match &settled.reply {
                Reply::Handler(_, response) => Failure {
                    status: Some(response.status()),
                    error: {
                        words = dispatch::words(source, FAILED, response);
                        &words
                    },
                    said: FAILED,
                    at_least: retry_after(response),
                },
                Reply::Inbox(answer) => Failure {
                    status: Some(answer.status),
                    error: answer.reason(),
                    said: answer.reason(),
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
    /// For the log: nothing of the answer's body.
    said: &'a str,
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
        said,
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
    let mut wait = jittered.max(at_least);
    if broken::is(Variant::TriedAtOnce) {
        wait = Duration::ZERO;
    }
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
            error = said,
            "a parked event was not applied, for the last time: it becomes a dead letter"
        );
    } else {
        metrics::counter!("inbox_retries_total", "source" => source.name_shared()).increment(1);
        tracing::warn!(
            source = source_name,
            event_id,
            attempt = failed,
            status = status_code,
            error = said,
            next_attempt = %attempt.not_before,
            "a parked event was not applied: it is tried again"
        );
    }
    shared.probes.saw(key, || {
        Happened::Noted(if dead {
            format!("attempt {failed} of the worker's was its last: it becomes a dead letter")
        } else {
            format!("the worker tries it again in {:.1} s", wait.as_secs_f64())
        })
    });
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
