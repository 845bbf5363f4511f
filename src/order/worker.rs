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
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::drain::{self, Drained};
use super::upkeep;
use crate::dispatch::{BoxError, BoxFuture};
use crate::inbox::{Shared, SourceState};
use crate::layer::DrainTarget;
use crate::store::{Backend, Stream};

/// Looks for due streams this often while there is something to do.
const POLL_BUSY: Duration = Duration::from_millis(500);
/// A poll that finds nothing waits longer the next time, up to this: far below the five minutes of §5.14.
const POLL_IDLE: Duration = Duration::from_secs(5);
/// Wakes beyond this many are left to the next poll.
const MAX_WAKES: usize = 10_000;
/// Streams of one page of a poll.
const PAGE: i64 = 256;

/// (source, correlation id)
pub(super) type StreamKey = (Arc<str>, Arc<str>);

/// The service that drained requests of a source go to.
pub(crate) trait Target: Send + Sync {
    fn run(&self, request: Request<Bytes>) -> BoxFuture<Result<Response<()>, BoxError>>;
}

/// What the handles of an inbox and its worker share.
#[derive(Default)]
pub(crate) struct Worker {
    targets: Mutex<HashMap<Arc<str>, Arc<dyn Target>>>,
    started: AtomicBool,
    signals: Arc<Signals>,
}

#[derive(Default)]
struct Signals {
    wakes: Mutex<HashSet<StreamKey>>,
    woken: Notify,
    stopped: AtomicBool,
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

    pub(super) fn stopped(&self) -> bool {
        self.signals.stopped.load(Ordering::Acquire)
    }

    pub(super) fn target(&self, source: &str) -> Option<Arc<dyn Target>> {
        lock(&self.targets).get(source).map(Arc::clone)
    }
}

/// Makes a service the target of a source's drain, and starts the worker if this is the first.
pub(crate) fn mount<DB, S, B>(
    shared: &Arc<Shared<DB>>,
    source: &SourceState,
    target: DrainTarget<S, B>,
) where
    DB: Backend,
    DrainTarget<S, B>: Target + 'static,
{
    lock(&shared.worker.targets).insert(source.name_arc(), Arc::new(target));
    if !shared.worker.started.swap(true, Ordering::AcqRel) {
        let signals = Arc::clone(&shared.worker.signals);
        shared.runtime.spawn(run(Arc::downgrade(shared), signals));
        shared.runtime.spawn(upkeep::run(Arc::downgrade(shared)));
    }
    // What was parked before this process began is looked for at once.
    shared.worker.signals.woken.notify_one();
}

/// A stream may have a due head: looked at soon, in this process.
pub(crate) fn wake<DB: Backend>(shared: &Shared<DB>, source: Arc<str>, correlation_id: &Arc<str>) {
    let signals = &shared.worker.signals;
    let mut wakes = lock(&signals.wakes);
    if wakes.len() < MAX_WAKES {
        wakes.insert((source, Arc::clone(correlation_id)));
        drop(wakes);
        signals.woken.notify_one();
    }
}

/// The loop's own state.
#[derive(Default)]
struct Rounds {
    queue: VecDeque<StreamKey>,
    /// In the queue, running, or waiting for its time.
    known: HashSet<StreamKey>,
    /// Running, and woken again meanwhile.
    again: HashSet<StreamKey>,
    later: HashMap<StreamKey, Instant>,
    running: JoinSet<(StreamKey, Drained)>,
}

async fn run<DB: Backend>(shared: Weak<Shared<DB>>, signals: Arc<Signals>) {
    let mut rounds = Rounds::default();
    let mut pause = POLL_BUSY;
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
                pause = if found {
                    POLL_BUSY
                } else {
                    (pause * 2).min(POLL_IDLE)
                };
                // Jitter, so that processes that started together do not poll together.
                next_poll = Instant::now() + pause.mul_f64(0.75 + fastrand::f64() / 2.0);
            }
            rounds.start(&shared);
        }
        let until = rounds
            .later
            .values()
            .min()
            .map_or(next_poll, |soon| next_poll.min(*soon));
        tokio::select! {
            () = signals.woken.notified() => {}
            () = sleep_until(until) => {}
            Some(ended) = rounds.running.join_next() => rounds.ended(ended),
        }
    }
    // What runs ends by its budget; `shutdown` waits for it.
    while rounds.running.join_next().await.is_some() {}
}

impl Rounds {
    fn take_wakes(&mut self, signals: &Signals) {
        for stream in lock(&signals.wakes).drain() {
            // Whoever woke it knows better than a backoff that its head is another one now.
            self.later.remove(&stream);
            self.add(stream);
        }
    }

    fn take_later(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self
            .later
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(key, _)| key.clone())
            .collect();
        for stream in due {
            self.later.remove(&stream);
            self.add(stream);
        }
    }

    fn add(&mut self, stream: StreamKey) {
        if self.known.insert(stream.clone()) {
            self.queue.push_back(stream);
        } else {
            self.again.insert(stream);
        }
    }

    /// Every stream whose head is due, of the sources that are mounted here. True if there was one.
    async fn poll<DB: Backend>(&mut self, shared: &Shared<DB>) -> bool {
        let mut after = (String::new(), String::new());
        let mut found = false;
        loop {
            let page = async {
                let mut conn = shared.acquire().await?;
                let after = Stream {
                    source: &after.0,
                    correlation_id: &after.1,
                };
                DB::due_streams(&mut conn, &shared.sql, after, shared.clock.now(), PAGE).await
            };
            let page = match page.await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "could not look for due events");
                    return false;
                }
            };
            let full = page.len() as i64 == PAGE;
            for (source, correlation_id) in page {
                if let Some(state) = shared.source(&source)
                    && shared.worker.target(&source).is_some()
                {
                    found = true;
                    let key = (state.name_arc(), Arc::from(correlation_id.as_str()));
                    if !self.known.contains(&key) && !self.later.contains_key(&key) {
                        self.add(key);
                    }
                }
                after = (source, correlation_id);
            }
            if !full {
                return found;
            }
        }
    }

    fn start<DB: Backend>(&mut self, shared: &Arc<Shared<DB>>) {
        // Deliveries keep at least half of the connections.
        let most = shared.max_in_flight.div_ceil(2);
        while self.running.len() < most
            && let Some(stream) = self.queue.pop_front()
        {
            let shared = Arc::clone(shared);
            self.running.spawn(async move {
                let drained = drain::stream(&shared, &stream).await;
                (stream, drained)
            });
        }
    }

    fn ended(&mut self, ended: Result<(StreamKey, Drained), tokio::task::JoinError>) {
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
            Drained::Later(at) => {
                self.later.insert(stream, at);
            }
        }
    }
}
