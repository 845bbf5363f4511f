//! A simulated producer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::attempt::{Attempting, Signing};
use super::event::Event;
use super::kit::Ground;
use super::network::{Network, Sending};
use super::schedule::{Answer, Next, Retries, Schedule, Verdict, scaled};
use super::socket::Socket;
use super::story::Story;
use crate::clock::Timestamp;
use crate::preset::{Preset, Reaction};

/// A producer that delivers events until it is done with them: signed, retried by its schedule and its jitter, with its
/// reaction to each status code and `Retry-After`. Made by [`Kit::producer`](super::Kit::producer), or for a receiver
/// elsewhere by [`producer`](super::producer()).
///
/// `kudos`, `sequenced` and `brief` have the schedules of their own documents. The others, whose schedules are known less
/// well, try again after 30 s, doubling up to 1 h, ± 20 %, for as long as [`Preset::retry_span`] says, and react to codes
/// as [`Preset::answers`] says.
///
/// Time is virtual where the kit has a [`VirtualClock`](super::VirtualClock): it is moved from attempt to attempt, and on
/// the way to each instant at which the worker has something to do, which it then does. Without one, pauses take no time at all, and no clock is moved.
/// [Over a socket](Producer::over), they are real time.
///
/// Cheap to clone: clones are handles of the same producer.
#[derive(Clone)]
pub struct Producer {
    ground: Arc<dyn Ground>,
    settings: Arc<Mutex<Settings>>,
}

struct Settings {
    preset: Preset,
    signing: Signing,
    schedule: Schedule,
    /// Not under the lock of the rest: what a test does in it may need the producer.
    network: Arc<Mutex<Network>>,
    seed: u64,
    rng: Rng,
    concurrency: usize,
    socket: Option<Socket>,
    time_scale: f64,
    attempts: u64,
}

/// A run of some events.
struct Run<'e> {
    events: &'e [Event],
    retries: Vec<Retries>,
    numbers: Vec<u32>,
    verdicts: Vec<Option<Verdict>>,
    /// When, in which order among those of the same time, and which event.
    due: BinaryHeap<Reverse<(Duration, usize, usize)>>,
    start: Timestamp,
    began: Instant,
    elapsed: Duration,
}

impl Producer {
    pub(super) fn new(ground: Arc<dyn Ground>, preset: Preset, secret: String) -> Self {
        let seed = match std::env::var("TOWER_INBOX_TEST_SEED") {
            Ok(text) => text
                .parse()
                .expect("TOWER_INBOX_TEST_SEED is a whole number"),
            Err(_) => fastrand::u64(..),
        };
        let own = Schedule::named(preset.name).cloned();
        let settings = Settings {
            preset,
            signing: Signing::new(preset, secret),
            schedule: own.unwrap_or_else(|| Schedule::doubling(preset.name, preset.retry_span)),
            network: Arc::default(),
            seed,
            rng: Rng::with_seed(seed),
            concurrency: 1,
            socket: None,
            time_scale: 1.0,
            attempts: 0,
        };
        Self {
            ground,
            settings: Arc::new(Mutex::new(settings)),
        }
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings());
        self
    }

    /// Where it delivers to: a path. Without: `/webhooks/<name of the preset>`.
    #[must_use]
    pub fn to(self, path: impl Into<String>) -> Self {
        self.set(|settings| settings.signing.path = path.into())
    }

    /// The URL that it signs, if it signs one: the same as [`Source::url`](crate::Source::url).
    #[must_use]
    pub fn signed_url(self, url: impl Into<String>) -> Self {
        self.set(|settings| settings.signing.url = Some(url.into()))
    }

    /// What becomes of its requests. Without: [`Network::perfect`].
    #[must_use]
    pub fn network(self, network: Network) -> Self {
        self.set(|settings| settings.network = Arc::new(Mutex::new(network)))
    }

    /// Where its jitter and its network's chances come from. Without: `TOWER_INBOX_TEST_SEED`, or another one each time;
    /// stories have it.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        self.set(|settings| {
            settings.seed = seed;
            settings.rng = Rng::with_seed(seed);
        })
    }

    /// Attempts that are made at the same time, of those that are due at the same time. Without: 1.
    #[must_use]
    pub fn concurrency(self, attempts: usize) -> Self {
        self.set(|settings| settings.concurrency = attempts.max(1))
    }

    /// Its clock is ahead of the receiver's.
    #[must_use]
    pub fn clock_ahead(self, by: Duration) -> Self {
        self.set(|settings| settings.signing.skew = (by, Duration::ZERO))
    }

    /// Its clock is behind the receiver's; or all that it sends is stale.
    #[must_use]
    pub fn clock_behind(self, by: Duration) -> Self {
        self.set(|settings| settings.signing.skew = (Duration::ZERO, by))
    }

    /// Delivers over a real socket, to a receiver that listens at a URL like `http://127.0.0.1:3000`: pauses are then real
    /// time, unless the kit has a virtual clock.
    ///
    /// # Panics
    /// If it is no such URL.
    #[must_use]
    pub fn over(self, url: &str) -> Self {
        let socket = Socket::new(url);
        self.set(|settings| settings.socket = Some(socket))
    }

    /// Over a socket: how much faster than its schedule it is. Without: 1.
    ///
    /// # Panics
    /// If it is not more than 0.
    #[must_use]
    pub fn time_scale(self, scale: f64) -> Self {
        assert!(scale > 0.0, "a time scale is more than 0");
        self.set(|settings| settings.time_scale = scale)
    }

    /// From now on these secrets sign, each of them, in this order: a rotation, which can be done in the middle of the
    /// traffic from [`Network::each`].
    pub fn sign_with<S: Into<String>>(&self, secrets: impl IntoIterator<Item = S>) {
        let secrets = secrets.into_iter().map(Into::into).collect();
        self.settings().signing.secrets = secrets;
    }

    /// Delivers one event until the producer is done with it; its story then. Nothing that is due is left at that time.
    ///
    /// # Panics
    /// As [`Producer::run`].
    #[track_caller]
    pub fn deliver(&self, event: &Event) -> impl Future<Output = Story> + Send + use<> {
        let (producer, event, caller) = (self.clone(), event.clone(), Location::caller());
        async move {
            let mut stories = producer.run_all(&[event], caller).await;
            stories.remove(0)
        }
    }

    /// Delivers all of them, beginning in this order at the same time, each until the producer is done with it; their
    /// stories then, in this order. Nothing that is due is left at that time.
    ///
    /// # Panics
    /// If an event cannot be signed, or as [`Kit::settled`](super::Kit::settled).
    #[track_caller]
    pub fn run(&self, events: &[Event]) -> impl Future<Output = Vec<Story>> + Send + use<> {
        let (producer, events, caller) = (self.clone(), events.to_vec(), Location::caller());
        async move { producer.run_all(&events, caller).await }
    }

    /// Sends old events again, as a replay that an operator of the producer asks for: under their old ids, between the two
    /// events by which the producer says so, where it has such (`kudos`).
    ///
    /// # Panics
    /// As [`Producer::run`].
    #[track_caller]
    pub fn replay(&self, events: &[Event]) -> impl Future<Output = Vec<Story>> + Send + use<> {
        let (producer, events, caller) = (self.clone(), events.to_vec(), Location::caller());
        async move {
            let mapping = producer.settings().preset.mapping();
            let Some((started, completed)) = mapping.replay_types() else {
                return producer.run_all(&events, caller).await;
            };
            let id = producer.settings().rng.u64(..);
            let control = |step: &str, kind: &str, data| {
                let event = Event::new(format!("replay_{id:016x}_{step}"));
                event.kind(kind).data(data)
            };
            let begin = control("started", started, json!({"since": null, "until": null}));
            producer.run_all(&[begin], caller).await;
            let stories = producer.run_all(&events, caller).await;
            let emitted = json!({"events_emitted": events.len()});
            let end = control("completed", completed, emitted);
            producer.run_all(&[end], caller).await;
            stories
        }
    }

    async fn run_all(&self, events: &[Event], caller: &'static Location<'static>) -> Vec<Story> {
        let mut run = self.begin(events);
        while let Some(Reverse((at, ..))) = run.due.peek() {
            let at = *at;
            self.wait(&mut run, at, caller).await;
            if self.make(&mut run, at).await {
                // It asked never to be called again.
                break;
            }
        }
        if self.ground.is_here() {
            self.ground.settled(caller).await;
        }
        let mut stories = Vec::with_capacity(events.len());
        for (event, verdict) in events.iter().zip(&run.verdicts) {
            self.ground.log().ended(event.id(), *verdict);
            stories.push(self.ground.story(event.id()).await);
        }
        stories
    }

    fn begin<'e>(&self, events: &'e [Event]) -> Run<'e> {
        let mut settings = self.settings();
        let network = Arc::clone(&settings.network);
        let network = network.lock().unwrap_or_else(PoisonError::into_inner);
        let order = network.order(events.len(), &mut settings.rng);
        let sent = order
            .into_iter()
            .filter(|index| !network.left_out.iter().any(|id| id == events[*index].id()));
        Run {
            events,
            retries: vec![Retries::default(); events.len()],
            numbers: vec![0; events.len()],
            verdicts: vec![None; events.len()],
            due: sent
                .enumerate()
                .map(|(rank, index)| Reverse((Duration::ZERO, rank, index)))
                .collect(),
            start: self.ground.now(),
            began: Instant::now(),
            elapsed: Duration::ZERO,
        }
    }

    /// Until this time of the run.
    async fn wait(&self, run: &mut Run<'_>, at: Duration, caller: &'static Location<'static>) {
        if at <= run.elapsed {
            return;
        }
        run.elapsed = at;
        if self.ground.movable().is_some() {
            self.ground.passed(run.start.plus(at), caller).await;
            return;
        }
        let scale = {
            let settings = self.settings();
            settings.socket.as_ref().map(|_| settings.time_scale)
        };
        if let Some(scale) = scale {
            sleep_until(run.began + scaled(at, scale)).await;
        }
    }

    /// Makes the attempts that are due, as many at once as it may. True if the receiver wants no more of them.
    async fn make(&self, run: &mut Run<'_>, at: Duration) -> bool {
        let most = self.settings().concurrency;
        let mut attempts = JoinSet::new();
        let mut made = Vec::new();
        while made.len() < most
            && let Some(Reverse((due, rank, index))) = run.due.peek().copied()
            && due <= at
        {
            run.due.pop();
            run.numbers[index] += 1;
            let attempt = self.attempting(run, index, at);
            let place = made.len();
            made.push((rank, index, Answer::Nothing));
            attempts.spawn(async move { (place, attempt.make().await) });
        }
        while let Some(ended) = attempts.join_next().await {
            match ended {
                Ok((place, answer)) => made[place].2 = answer,
                // Of a request that cannot be signed, say.
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        let mut paused = false;
        for (rank, index, answer) in made {
            match self.judge(&mut run.retries[index], &answer) {
                Next::Again(pause) => run.due.push(Reverse((at + pause, rank, index))),
                Next::Done(verdict) => {
                    run.verdicts[index] = Some(verdict);
                    paused |= verdict == Verdict::Paused;
                }
            }
        }
        paused
    }

    fn attempting(&self, run: &Run<'_>, index: usize, at: Duration) -> Attempting {
        let mut settings = self.settings();
        let (event, number) = (&run.events[index], run.numbers[index]);
        let sending = Sending {
            event_id: event.id(),
            attempt: number,
            since_start: at,
            attempts_before: settings.attempts,
        };
        settings.attempts += 1;
        let (network, mut rng) = (Arc::clone(&settings.network), settings.rng.fork());
        drop(settings);
        let mut network = network.lock().unwrap_or_else(PoisonError::into_inner);
        let way = network.way(&sending, &mut rng);
        drop(network);
        let settings = self.settings();
        Attempting {
            ground: Arc::clone(&self.ground),
            socket: settings.socket.clone(),
            signing: settings.signing.clone(),
            event: event.clone(),
            seed: settings.seed,
            number,
            first_sent_at: run.start,
            patience: settings.preset.patience,
            way,
        }
    }

    /// What the producer does after an answer: by its own schedule's codes, or as its preset has it.
    fn judge(&self, retries: &mut Retries, answer: &Answer) -> Next {
        let mut settings = self.settings();
        let Settings {
            preset,
            schedule,
            rng,
            ..
        } = &mut *settings;
        if Schedule::named(preset.name).is_none()
            && let Answer::Status { status, .. } = answer
        {
            match preset.answers.reaction(*status) {
                Some(Reaction::Delivered) => return Next::Done(Verdict::Delivered),
                Some(Reaction::Stops) => return Next::Done(Verdict::Refused),
                // Any code that it tries again is one failure like another; what it says of 429 stays.
                Some(Reaction::Retries) if *status != 429 => {
                    return schedule.next(retries, &Answer::Nothing, rng);
                }
                _ => {}
            }
        }
        schedule.next(retries, answer, rng)
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.settings();
        f.debug_struct("Producer")
            .field("preset", &settings.preset.name)
            .field("seed", &settings.seed)
            .field("network", &settings.network)
            .finish_non_exhaustive()
    }
}
