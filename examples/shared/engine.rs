//! Sends a plan: in its order, so many at a time, each event until its producer is done with it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use fastrand::Rng;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time;

use super::client::{Client, Lost, Reply, Target};
use super::plan::{Plan, mix};
use super::preset::{Attempt, Preset};
use super::report::{Fate, Report, Tally};
use super::schedule::{Answer, Ending, Next, Retries, Schedule, scaled};
use super::sign::Signer;

/// Who sends, where to, and how.
#[derive(Clone)]
pub(crate) struct Sender {
    pub(crate) preset: Preset,
    pub(crate) target: Target,
    pub(crate) client: Client,
    /// Shared, so that secrets can be rotated while the traffic runs.
    pub(crate) signer: Arc<Signer>,
    pub(crate) schedule: &'static Schedule,
    /// How much faster than the real schedule.
    pub(crate) time_scale: f64,
    /// Deliveries in flight; copies that are sent at the same time count as one.
    pub(crate) concurrency: usize,
    /// Share of answers that are treated as lost.
    pub(crate) drop: f64,
}

/// How far a run is, for whoever watches it.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Sendings begun.
    pub(crate) begun: AtomicUsize,
    /// Requests answered or lost.
    pub(crate) deliveries: AtomicU64,
    /// Copies that wait for their next attempt.
    pub(crate) waiting: AtomicUsize,
}

/// What all copies share.
struct Run {
    sender: Sender,
    plan: Arc<Plan>,
    progress: Arc<Progress>,
    tally: Mutex<Tally>,
    slots: Arc<Semaphore>,
    /// Becomes true when the receiver asked never to be called again.
    paused: watch::Sender<bool>,
}

/// Sends the whole plan and waits until every copy of every event is at its end.
pub(crate) async fn run(plan: Arc<Plan>, sender: Sender, progress: Arc<Progress>) -> Report {
    let began = Instant::now();
    let run = Arc::new(Run {
        tally: Mutex::new(Tally::new(plan.events.len())),
        slots: Arc::new(Semaphore::new(sender.concurrency)),
        paused: watch::Sender::new(false),
        plan,
        sender,
        progress,
    });
    let mut copies = JoinSet::new();
    for sending in &run.plan.sendings {
        // Taken here, one after the other, so that first attempts begin in the plan's order.
        let slot = Arc::new(run.slot().await);
        if *run.paused.borrow() {
            break;
        }
        run.progress.begun.fetch_add(1, Ordering::Relaxed);
        for copy in sending.copies() {
            copies.spawn(run.clone().send(sending.event, copy, slot.clone()));
        }
        while let Some(ended) = copies.try_join_next() {
            ended.expect("a sender does not panic");
        }
    }
    while let Some(ended) = copies.join_next().await {
        ended.expect("a sender does not panic");
    }
    let tally = std::mem::take(&mut *run.tally());
    let (preset, schedule) = (run.sender.preset.name(), run.sender.schedule.name);
    tally.report(preset, schedule, run.plan.traffic.seed, began.elapsed())
}

impl Run {
    /// One copy of one event, until its end. `slot` is for its first attempt; retries get their own, so that
    /// what waits holds nobody up.
    async fn send(self: Arc<Self>, event: usize, copy: u32, slot: Arc<OwnedSemaphorePermit>) {
        // Jitter and losses come out of the seed as well.
        let seed = mix(self.plan.traffic.seed, mix(event as u64, u64::from(copy)));
        let mut rng = Rng::with_seed(seed);
        let body = Bytes::from(self.sender.preset.body(&self.plan.events[event]));
        let mut retries = Retries::default();
        let mut attempt = Attempt {
            number: 1,
            first_sent: now(),
            now: 0,
        };
        let mut first = Some(slot);
        let fate = loop {
            let slot = match first.take() {
                Some(slot) => slot,
                None => Arc::new(self.slot().await),
            };
            attempt.now = now();
            let seen = self.attempt(event, &body, attempt, &mut rng).await;
            drop(slot);
            let outcome = match &seen {
                Answer::Status { outcome, .. } => outcome.as_deref(),
                Answer::Nothing => None,
            };
            match self.sender.schedule.next(&mut retries, &seen, &mut rng) {
                Next::Again(pause) => {
                    if !self.sleep(scaled(pause, self.sender.time_scale)).await {
                        break Fate::Unsent;
                    }
                }
                Next::Done(verdict) => {
                    if verdict == Ending::Paused {
                        self.paused.send_replace(true);
                    }
                    break Fate::of(verdict, outcome);
                }
            }
            attempt.number += 1;
        };
        self.tally().ended(event, fate, now());
    }

    /// One request, and what the producer sees of its answer.
    async fn attempt(&self, event: usize, body: &Bytes, attempt: Attempt, rng: &mut Rng) -> Answer {
        let Sender {
            preset,
            target,
            client,
            signer,
            ..
        } = &self.sender;
        let headers = preset.headers(&self.plan.events[event], body, attempt, signer);
        let began = Instant::now();
        let answer = client.post(&target.hook, headers, body.clone()).await;
        let took = began.elapsed();
        // Drawn for every attempt, so that one lost connection does not change all that follows.
        let lost = rng.f64() < self.sender.drop;
        let dropped = lost && answer.is_ok();
        self.tally()
            .answered(attempt.number > 1, &answer, dropped, took);
        self.progress.deliveries.fetch_add(1, Ordering::Relaxed);
        match answer {
            Ok(reply) if !lost => reply.into(),
            Ok(_) | Err(Lost::Timeout | Lost::Connection) => Answer::Nothing,
        }
    }

    /// Waits for the next attempt; false if there will be none.
    async fn sleep(&self, pause: Duration) -> bool {
        self.progress.waiting.fetch_add(1, Ordering::Relaxed);
        let mut paused = self.paused.subscribe();
        let go_on = tokio::select! {
            () = time::sleep(pause) => !*self.paused.borrow(),
            _ = paused.wait_for(|paused| *paused) => false,
        };
        self.progress.waiting.fetch_sub(1, Ordering::Relaxed);
        go_on
    }

    async fn slot(&self) -> OwnedSemaphorePermit {
        let slot = self.slots.clone().acquire_owned().await;
        slot.expect("never closed")
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self::Status {
            status: reply.status,
            retry_after: reply.retry_after,
            outcome: reply.outcome,
        }
    }
}

/// Seconds since the Unix epoch.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
