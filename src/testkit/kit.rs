//! An app under test, with its inbox.

use std::future::Future;
use std::panic::Location;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::time::Instant;
use tower_service::Service;

use super::app::App;
use super::clock::VirtualClock;
use super::database::{self, TestBackend};
use super::ground::Ground;
use super::log::Log;
use super::network::Way;
use super::producer::Producer;
use super::receive::{Boxed, Sent};
use super::request::SignedRequest;
use super::story::{Attempt, Story};
use super::write;
use crate::dispatch::BoxError;
use crate::inbox::Inbox;
use crate::order::due;
use crate::preset::Preset;
use crate::probe::{Happened, Probe};

/// More than anything that is due takes in a test, as a rule.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks at what is due.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// So many looks later the worker is told again of what is still due.
const WAKE_AGAIN: u32 = 40;

/// An app under test together with its inbox. It delivers requests and has producers deliver theirs, knows what happened to
/// each event, and waits until nothing that is due is left. Clones are handles of the same one.
///
/// It takes one event id for one event: sources that have the same ids get a kit each.
pub struct Kit<DB: TestBackend> {
    pub(super) inner: Arc<Inner<DB>>,
}

pub(super) struct Inner<DB: TestBackend> {
    pub(super) running: RwLock<App<DB>>,
    factory: Option<Factory<DB>>,
    pub(super) clock: RwLock<Option<VirtualClock>>,
    pub(super) path: RwLock<Option<String>>,
    settles_within: RwLock<Duration>,
    pub(super) log: Log,
}

/// Makes the app, and makes it again after a restart.
type Factory<DB> = Box<dyn Fn() -> Boxed<'static, App<DB>> + Send + Sync>;

impl<DB: TestBackend> Clone for Kit<DB> {
    fn clone(&self) -> Self {
        let inner = Arc::clone(&self.inner);
        Self { inner }
    }
}

impl<DB: TestBackend> std::fmt::Debug for Kit<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kit")
            .field("events", &self.inner.log.names())
            .finish_non_exhaustive()
    }
}

impl<DB: TestBackend> Kit<DB> {
    /// An axum router that this inbox is mounted on: the whole app, or as much of it as is to be tested.
    #[cfg(feature = "axum")]
    pub fn new(inbox: &Inbox<DB>, app: axum::Router) -> Self {
        Self::of(App::new(inbox, app), None)
    }

    /// Any tower service that this inbox is a layer of.
    pub fn for_service<S, B, R>(inbox: &Inbox<DB>, service: S) -> Self
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: From<Bytes> + Send + 'static,
        R: Body + Send + 'static,
        R::Data: Send,
        R::Error: Into<BoxError>,
    {
        Self::of(App::for_service(inbox, service), None)
    }

    /// An app that can be restarted ([`Kit::restart`], [`Way::AfterRestart`]): `make` makes it over the same database each
    /// time, with a pool of its own if it likes.
    #[cfg(feature = "axum")]
    pub async fn restartable<F>(make: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = (Inbox<DB>, axum::Router)> + Send + 'static,
    {
        let made = move || -> Boxed<'static, App<DB>> {
            let made = make();
            Box::pin(async move { App::from(made.await) })
        };
        Self::remade(made).await
    }

    pub(super) async fn remade(
        make: impl Fn() -> Boxed<'static, App<DB>> + Send + Sync + 'static,
    ) -> Self {
        let factory: Factory<DB> = Box::new(make);
        Self::of(factory().await, Some(factory))
    }

    fn of(running: App<DB>, factory: Option<Factory<DB>>) -> Self {
        Self {
            inner: Arc::new(Inner {
                running: RwLock::new(running),
                factory,
                clock: RwLock::default(),
                path: RwLock::default(),
                settles_within: RwLock::new(SETTLES_WITHIN),
                log: Log::default(),
            }),
        }
    }

    /// The clock that the inbox was built with: producers move it, and requests are signed by it. Without: the inbox's own
    /// clock is asked, and nothing moves it.
    ///
    /// # Panics
    /// If the inbox goes by another clock.
    #[must_use]
    #[track_caller]
    pub fn clock(self, clock: &VirtualClock) -> Self {
        clock.demand_of(&*self.inbox().shared.clock);
        *self
            .inner
            .clock
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(clock.clone());
        self
    }

    /// Where requests and producers deliver to, unless they say so themselves: a path. Without:
    /// `/webhooks/<name of the preset>`.
    #[must_use]
    pub fn to(self, path: impl Into<String>) -> Self {
        let own = self.inner.path.write();
        *own.unwrap_or_else(PoisonError::into_inner) = Some(path.into());
        self
    }

    /// How long [`Kit::settled`] waits at most, in real time. Without: 10 s.
    #[must_use]
    pub fn settles_within(self, limit: Duration) -> Self {
        let own = self.inner.settles_within.write();
        *own.unwrap_or_else(PoisonError::into_inner) = limit;
        self
    }

    /// The inbox as it is now.
    pub fn inbox(&self) -> Inbox<DB> {
        self.inner.inbox()
    }

    /// Delivers one request, and waits for its answer. Without [`SignedRequest::at`] it is signed by the kit's clock.
    pub async fn send(&self, request: SignedRequest) -> Story {
        let (inner, now) = (&self.inner, self.inner.now());
        let name = request.event().id().to_owned();
        let probe = inner.log.probe(&name, &inner.time());
        let request = request.or_to(inner.path());
        let attempt = Attempt::new(request.path(), now, Way::Through);
        let index = inner.log.attempt(&name, None, attempt);
        let at = request.signed_at().unwrap_or(now);
        let mut request = request.build_as(write::Attempt {
            number: request.number(),
            first_sent_at: at,
            at,
        });
        request.extensions_mut().insert(probe);
        let reply = inner.receive(request.map(Sent::whole)).await;
        inner.log.answered(&name, index, reply, true);
        self.story(&name).await
    }

    /// A producer that delivers to this app, signing with this secret: the preset's own schedule, codes and headers.
    pub fn producer(&self, preset: Preset, secret: impl Into<String>) -> Producer {
        let ground: Arc<dyn Ground> = Arc::clone(&self.inner) as _;
        Producer::new(ground, preset, secret.into())
    }

    /// The story of an event so far, by the id that the test has begun it with. One that came without the kit is looked up
    /// in the database by the id that it has there.
    pub async fn story(&self, event: &str) -> Story {
        self.inner.story(event).await
    }

    /// The stories of all events, in the order in which they were first sent.
    pub async fn stories(&self) -> Vec<Story> {
        let mut stories = Vec::new();
        for name in self.inner.log.names() {
            stories.push(self.story(&name).await);
        }
        stories
    }

    /// The probe of an event, sent or not yet: to refuse its commit, say.
    pub fn probe(&self, event: &str) -> Probe {
        self.inner.log.probe(event, &self.inner.time())
    }

    /// Waits until nothing that is due is left: no delivery runs any more, and the worker has done all that it can do now
    /// (by the inbox's clock). What waits for a gap, or for the end of a backoff, is not due; and what is older than its
    /// retention is forgotten in real time only, unless the test calls [`Inbox::purge`].
    ///
    /// # Panics
    /// If that is not so within 10 s, or what [`Kit::settles_within`] says, with what is still due.
    #[track_caller]
    pub fn settled(&self) -> impl Future<Output = ()> + Send + use<DB> {
        let (inner, caller) = (Arc::clone(&self.inner), Location::caller());
        async move { inner.settle(caller).await }
    }

    /// Demands that a query finds this number in the app's database, a count of rows or a sum, as soon as nothing that is
    /// due is left ([`Kit::settled`]): what was parked and can be applied by now has been. Without waiting for that:
    /// [`TestDatabase::number`](super::TestDatabase::number).
    ///
    /// # Panics
    /// If not, with the stories of all events; as [`Kit::settled`]; or if what the query finds is not one whole number.
    #[track_caller]
    pub fn assert_effects(
        &self,
        sql: &str,
        expected: i64,
    ) -> impl Future<Output = ()> + Send + use<DB> {
        let (kit, sql, caller) = (self.clone(), sql.to_owned(), Location::caller());
        async move {
            kit.inner.settle(caller).await;
            let found = database::number(&kit.inbox().shared.pool, &sql, caller).await;
            if found != expected {
                let stories = kit.stories().await.into_iter();
                let stories: Vec<_> = stories.map(|story| story.to_string()).collect();
                panic!(
                    "{found} instead of {expected} ({caller}): {sql}\n\n{}",
                    stories.join("\n\n")
                );
            }
        }
    }

    pub(super) fn log(&self) -> &Log {
        &self.inner.log
    }

    /// Restarts the app: an orderly shutdown, and a new one over the same database.
    ///
    /// # Panics
    /// If the kit was not made by [`Kit::restartable`].
    pub async fn restart(&self) {
        self.inner.restart_now().await;
    }
}

impl<DB: TestBackend> Inner<DB> {
    pub(super) fn inbox(&self) -> Inbox<DB> {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        running.inbox.clone()
    }

    pub(super) async fn settle(&self, caller: &'static Location<'static>) {
        let limit = self.settles_within.read();
        let limit = *limit.unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + limit;
        let shared = self.inbox().shared;
        let mut looks = 0;
        let due = loop {
            let _ = tokio::time::timeout_at(until, shared.tracker.idle()).await;
            let quiet = shared.tracker.quiet();
            let looked = async {
                let due = due::due(&shared, looks % WAKE_AGAIN == 0).await?;
                if !due.is_empty() {
                    return Ok(due);
                }
                // What has just been done may have left something to time alone: its successors' windows are over.
                due::sweep(&shared).await?;
                due::due(&shared, false).await
            };
            let due = match looked.await {
                // Whatever ran during the look may have made something due behind it.
                Ok(due) if due.is_empty() && quiet.is_some() && shared.tracker.quiet() == quiet => {
                    return;
                }
                Ok(due) => due,
                Err(error) => vec![format!("the database cannot be asked: {error}")],
            };
            if Instant::now() >= until {
                break if due.is_empty() {
                    vec!["deliveries that are running".into()]
                } else {
                    due
                };
            }
            looks += 1;
            tokio::time::sleep(LOOK_EVERY).await;
        };
        panic!(
            "not settled within {limit:?} ({caller}); still due:\n{}",
            due.join("\n")
        );
    }

    pub(super) async fn restart_now(&self) {
        let Some(factory) = &self.factory else {
            panic!("a kit that restarts its app is made by Kit::restartable");
        };
        self.inbox().shutdown().await;
        let running = factory().await;
        if let Some(clock) = self.movable() {
            clock.demand_of(&*running.inbox.shared.clock);
        }
        for probe in self.log.probes() {
            if let Some(known_as) = probe.known_as() {
                running.inbox.shared.probes.know(known_as, &probe);
            }
            probe.record(Happened::Restarted);
        }
        let mut place = self.running.write().unwrap_or_else(PoisonError::into_inner);
        *place = running;
    }
}
