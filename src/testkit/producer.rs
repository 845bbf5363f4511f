//! A simulated producer.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use serde_json::json;

use super::attempt::Signing;
use super::event::Event;
use super::ground::Ground;
use super::network::Network;
use super::schedule::Schedule;
use super::socket::Socket;
use super::story::Story;
use crate::preset::Preset;

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
    pub(super) ground: Arc<dyn Ground>,
    settings: Arc<Mutex<Settings>>,
}

pub(super) struct Settings {
    pub(super) preset: Preset,
    pub(super) signing: Signing,
    pub(super) schedule: Schedule,
    /// Not under the lock of the rest: what a test does in it may need the producer.
    pub(super) network: Arc<Mutex<Network>>,
    pub(super) seed: u64,
    pub(super) rng: Rng,
    pub(super) concurrency: usize,
    pub(super) socket: Option<Socket>,
    pub(super) time_scale: f64,
    pub(super) attempts: u64,
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

    pub(super) fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings());
        self
    }

    /// Where it delivers to: a path. Without: [the kit's](super::Kit::to), or `/webhooks/<name of the preset>`.
    #[must_use]
    pub fn to(self, path: impl Into<String>) -> Self {
        self.set(|settings| settings.signing.path = Some(path.into()))
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
            let mut stories = producer.run_all(&[event], caller, false).await;
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
        async move { producer.run_all(&events, caller, false).await }
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
                return producer.run_all(&events, caller, true).await;
            };
            let id = producer.settings().rng.u64(..);
            let control = |step: &str, kind: &str, data| {
                let event = Event::new(format!("replay_{id:016x}_{step}"));
                event.kind(kind).data(data)
            };
            let begin = control("started", started, json!({"since": null, "until": null}));
            producer.run_all(&[begin], caller, false).await;
            let stories = producer.run_all(&events, caller, true).await;
            let emitted = json!({"events_emitted": events.len()});
            let end = control("completed", completed, emitted);
            producer.run_all(&[end], caller, false).await;
            stories
        }
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
