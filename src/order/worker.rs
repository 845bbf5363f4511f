//! The worker: finds streams whose head is due and drains them, several at once, each in order.
//!
//! It starts when the first source is mounted, and ends when the inbox is shut down or its last handle is gone.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::drain::{self, Drained};
use super::lease::{self, Leases};
use super::progress::Progress;
use super::{in_time, upkeep};
use crate::dispatch::{BoxError, BoxFuture};
use crate::envelope::Envelope;
use crate::layer::DrainTarget;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::stats;
use crate::store::{Backend, Key, Stream};

/// While there is something to do, polls come this much more often.
const BUSY: u32 = 10;
/// As a part of it: between looks that find nothing, while something is stored.
const WAITING: u32 = 5;
/// Wakes beyond this many are left to the next poll.
const MAX_WAKES: usize = 10_000;
/// Streams of one page of a poll.
const PAGE: i64 = 256;

/// Something that a worker may find due.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    /// The head of a stream.
    Stream {
        source: Arc<str>,
        correlation_id: Arc<str>,
    },
    /// An event without a place in a stream.
    Event {
        source: Arc<str>,
        event_id: Arc<str>,
    },
    /// A stream that has not begun.
    Settling {
        source: Arc<str>,
        correlation_id: Arc<str>,
    },
}

impl Work {
    /// What there is to do about this event: its stream, if it has a place in one.
    pub(crate) fn on(source: Arc<str>, envelope: &Envelope) -> Self {
        match envelope.order() {
            Some((id, _)) => Self::Stream {
                source,
                correlation_id: Arc::clone(id.as_arc()),
            },
            None => Self::Event {
                source,
                event_id: Arc::clone(envelope.event_id.as_arc()),
            },
        }
    }
}

/// The service that drained requests of a source go to.
pub(crate) trait Target: Send + Sync {
    fn run(&self, request: Request<Bytes>) -> BoxFuture<Result<Response<()>, BoxError>>;
}

/// What the handles of an inbox and its worker share.
#[derive(Default)]
pub(crate) struct Worker {
    targets: Mutex<HashMap<Arc<str>, Arc<dyn Target>>>,
    /// Of every source that is no source of the inbox's own.
    tenants: Mutex<Option<Arc<dyn Target>>>,
    started: AtomicBool,
    /// The loops: what is applied runs in tasks of its own.
    tasks: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) leases: Leases,
    signals: Arc<Signals>,
}

#[derive(Default)]
struct Signals {
    wakes: Mutex<HashSet<Work>>,
    woken: Notify,
    stopped: AtomicBool,
    progress: Progress,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    pub(crate) fn stop(&self) {
        self.signals.stopped.store(true, Ordering::Release);
        self.signals.woken.notify_waiters();
        // For a worker that is about to wait.
        self.signals.woken.notify_one();
    }

    /// After [`Worker::stop`], and when nothing that was applied runs any more: nothing of it is at work when this returns.
    /// What it was looking for is found by the next process.
    pub(crate) async fn ended(&self) {
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        for task in &tasks {
            task.abort();
        }
        for task in tasks {
            let _ = task.await;
        }
    }

    pub(crate) fn stopped(&self) -> bool {
        self.signals.stopped.load(Ordering::Acquire)
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.signals.progress
    }

    /// The inbox's own sources that are mounted here.
    pub(super) fn mounted(&self) -> Vec<String> {
        let targets = lock(&self.targets);
        let mut names: Vec<_> = targets.keys().map(ToString::to_string).collect();
        names.sort_unstable();
        names
    }

    pub(crate) fn target(&self, source: &str) -> Option<Arc<dyn Target>> {
        let own = lock(&self.targets).get(source).map(Arc::clone);
        own.or_else(|| lock(&self.tenants).clone())
    }
}

/// Makes a service the target of a source's drain (or of all tenants'), and starts the worker if this is the first.
pub(crate) fn mount<DB, S, B>(
    shared: &Arc<Shared<DB>>,
    source: Option<Arc<str>>,
    target: DrainTarget<S, B>,
) where
    DB: Backend,
    DrainTarget<S, B>: Target + 'static,
{
    let target: Arc<dyn Target> = Arc::new(target);
    match source {
        Some(name) => drop(lock(&shared.worker.targets).insert(name, target)),
        None => *lock(&shared.worker.tenants) = Some(target),
    }
    if !shared.worker.started.swap(true, Ordering::AcqRel) {
        let signals = Arc::clone(&shared.worker.signals);
        let tasks = [
            shared.runtime.spawn(run(Arc::downgrade(shared), signals)),
            shared.runtime.spawn(upkeep::run(Arc::downgrade(shared))),
            shared.runtime.spawn(lease::run(Arc::downgrade(shared))),
            shared
                .runtime
                .spawn(stats::count_rows(Arc::downgrade(shared))),
        ];
        lock(&shared.worker.tasks).extend(tasks);
    }
    // What was parked before this process began is looked for at once.
    shared.worker.signals.woken.notify_one();
}

/// Something may be due: looked at soon, in this process.
pub(crate) fn wake<DB: Backend>(shared: &Shared<DB>, work: Work) {
    let signals = &shared.worker.signals;
    let mut wakes = lock(&signals.wakes);
    if wakes.len() < MAX_WAKES {
        wakes.insert(work);
        drop(wakes);
        signals.woken.notify_one();
    }
}

/// The next one of an event's stream may be waiting for its commit.
pub(crate) fn wake_stream<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    envelope: &Envelope,
) {
    if let Some((id, _)) = envelope.order()
        && source.room().may_wait(id.as_str())
    {
        wake(shared, Work::on(source.name_arc(), envelope));
    }
}

/// The loop's own state.
#[derive(Default)]
struct Rounds {
    queue: VecDeque<Work>,
    /// In the queue, running, or waiting for its time.
    known: HashSet<Work>,
    /// Running, and woken again meanwhile.
    again: HashSet<Work>,
    later: HashMap<Work, Wait>,
    running: JoinSet<(Work, Drained)>,
}

/// Until when something is left alone.
struct Wait {
    until: Instant,
    /// It says so in the database, where others may change it.
    is_stored: bool,
}

async fn run<DB: Backend>(shared: Weak<Shared<DB>>, signals: Arc<Signals>) {
    let _runs = signals.progress.runs();
    let mut rounds = Rounds::default();
    let mut pause = Duration::ZERO;
    let mut next_poll = Instant::now();
    loop {
        {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            if signals.stopped.load(Ordering::Acquire) {
                break;
            }
            rounds.take_wakes(&signals);
            rounds.take_later();
            if Instant::now() >= next_poll {
                let found = rounds.poll(&shared).await;
                let busy = shared.poll_every / BUSY;
                pause = if found {
                    busy
                } else {
                    (pause.max(busy / 2) * 2).min(longest(&shared))
                };
                // Jitter, so that processes that started together do not poll together.
                next_poll = Instant::now() + pause.mul_f64(0.75 + fastrand::f64() / 2.0);
            }
            rounds.start(&shared);
        }
        let until = rounds
            .later
            .values()
            .map(|wait| wait.until)
            .min()
            .map_or(next_poll, |soon| next_poll.min(soon));
        tokio::select! {
            () = signals.woken.notified() => {}
            () = sleep_until(until) => {}
            Some(ended) = rounds.running.join_next() => rounds.ended(ended),
        }
    }
    // What runs ends by its budget; `shutdown` waits for it.
    while rounds.running.join_next().await.is_some() {}
}

/// The pause after looks that found nothing. Where events are stored, another process may make one of them due at any time,
/// and on most databases it has no way to say so.
fn longest<DB: Backend>(shared: &Shared<DB>) -> Duration {
    let sources = upkeep::every_source(shared);
    if sources.iter().any(|source| source.room().holds_some()) {
        shared.poll_every / WAITING
    } else {
        shared.poll_every
    }
}

/// A row whose key is no text is skipped, and stops nobody else.
fn is_readable((source, _): &(String, String)) -> bool {
    !source.is_empty()
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Settling,
    Stream,
    Event,
}

impl Kind {
    /// (source, id), in that order, after `after`.
    async fn page<DB: Backend>(
        self,
        shared: &Shared<DB>,
        after: &(String, String),
    ) -> Result<Vec<(String, String)>, sqlx::Error> {
        let mut conn = shared.acquire_statements().await?;
        let (source, id, now) = (after.0.as_str(), after.1.as_str(), shared.clock.now());
        let after_stream = Stream {
            source,
            correlation_id: id,
        };
        let page = match self {
            Self::Settling => {
                DB::settled_streams(&mut conn, &shared.sql, after_stream, now, PAGE).await
            }
            Self::Stream => DB::due_streams(&mut conn, &shared.sql, after_stream, now, PAGE).await,
            Self::Event => {
                let after = Key {
                    source,
                    event_id: id,
                };
                DB::due_events(&mut conn, &shared.sql, after, now, PAGE).await
            }
        };
        conn.done(page).await
    }

    fn work(self, source: Arc<str>, id: Arc<str>) -> Work {
        match self {
            Self::Settling => Work::Settling {
                source,
                correlation_id: id,
            },
            Self::Stream => Work::Stream {
                source,
                correlation_id: id,
            },
            Self::Event => Work::Event {
                source,
                event_id: id,
            },
        }
    }
}

impl Rounds {
    fn take_wakes(&mut self, signals: &Signals) {
        for work in lock(&signals.wakes).drain() {
            if matches!(work, Work::Settling { .. }) && self.later.contains_key(&work) {
                continue;
            }
            // Whoever woke it knows better than a backoff that its head is another one now.
            self.later.remove(&work);
            self.add(work);
        }
    }

    fn take_later(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self
            .later
            .iter()
            .filter(|(_, wait)| wait.until <= now)
            .map(|(key, _)| key.clone())
            .collect();
        for stream in due {
            self.later.remove(&stream);
            self.add(stream);
        }
    }

    fn add(&mut self, stream: Work) {
        if self.known.insert(stream.clone()) {
            self.queue.push_back(stream);
        } else {
            self.again.insert(stream);
        }
    }

    /// Everything that is due, of the sources that are mounted here. True if there was something.
    async fn poll<DB: Backend>(&mut self, shared: &Shared<DB>) -> bool {
        let (mut found, mut looked) = (false, true);
        for kind in [Kind::Settling, Kind::Stream, Kind::Event] {
            let mut after = (String::new(), String::new());
            loop {
                let page = match in_time(kind.page(shared, &after)).await {
                    Ok(page) => page,
                    Err(error) => {
                        // One kind that cannot be looked for hides no other.
                        tracing::warn!(?kind, %error, "could not look for due events");
                        looked = false;
                        break;
                    }
                };
                let full = page.len() as i64 == PAGE && page.iter().any(is_readable);
                for (source, id) in page.into_iter().filter(is_readable) {
                    if shared.worker.target(&source).is_some()
                        && let Some(state) = shared.find_source(&source).await
                    {
                        found = true;
                        let work = kind.work(state.name_arc(), Arc::from(id.as_str()));
                        // By the clock it has settled, whatever a timer thought that it would take; or somebody else, who
                        // could not tell, has done something about a head that was to wait.
                        if matches!(kind, Kind::Settling)
                            || self.later.get(&work).is_some_and(|wait| wait.is_stored)
                        {
                            self.later.remove(&work);
                        }
                        if !self.known.contains(&work) && !self.later.contains_key(&work) {
                            self.add(work);
                        }
                    }
                    after = (source, id);
                }
                if !full {
                    break;
                }
            }
        }
        if looked {
            shared.worker.progress().looked(shared.clock.now());
        }
        found
    }

    fn start<DB: Backend>(&mut self, shared: &Arc<Shared<DB>>) {
        // Deliveries keep at least half of the connections.
        let most = shared.max_in_flight.div_ceil(2);
        while self.running.len() < most
            && let Some(stream) = self.queue.pop_front()
        {
            let shared = Arc::clone(shared);
            self.running.spawn(async move {
                let drained = drain::work(&shared, &stream).await;
                (stream, drained)
            });
        }
    }

    fn ended(&mut self, ended: Result<(Work, Drained), tokio::task::JoinError>) {
        let (stream, drained) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                // Its key is lost with it: forget what is known, and let the poll find what is due.
                tracing::error!(%error, "a drain ended abnormally");
                self.known = self.queue.iter().cloned().collect();
                return;
            }
        };
        self.known.remove(&stream);
        let again = self.again.remove(&stream);
        match drained {
            _ if again => self.add(stream),
            Drained::Nothing => {}
            Drained::More => self.add(stream),
            Drained::Later(until) | Drained::Until(until) => {
                let is_stored = matches!(drained, Drained::Until(_));
                self.later.insert(stream, Wait { until, is_stored });
            }
        }
    }
}
