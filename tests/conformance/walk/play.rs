//! Who plays a scene: a producer that sends again what failed, and an operator who does.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use http::Request;
use tower_inbox::clock::{Clock, Timestamp};
use tower_inbox::{OperatorError, OperatorErrorKind};

use crate::db::TestDb;
use crate::kit::{Event, Reply, SOURCE, TestClock, World, eventually, http};

/// Between two attempts of a producer, who is quicker here than any in the world.
const PAUSE: Duration = Duration::from_millis(10);
/// Attempts: far more than one fault needs.
const ATTEMPTS: usize = 500;

/// What the processes of one scene share.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) clock: TestClock,
    /// The bug in the handler is fixed.
    pub(crate) fixed: Arc<AtomicBool>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self {
            clock: TestClock::new().of_the_database_too(),
            fixed: Arc::default(),
        }
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed.load(Ordering::Acquire)
    }
}

type Make = Arc<dyn Fn() -> Request<Body> + Send + Sync>;

/// What is in the ledger in the end: streams and their sequences, and ids without a place in one.
pub(crate) struct Expected {
    pub(crate) streams: &'static [(&'static str, &'static [i64])],
    pub(crate) events: &'static [&'static str],
    /// Queries that find nothing in the end.
    pub(crate) none: &'static [&'static str],
}

/// One run of a scene.
pub(crate) struct Play<D: TestDb> {
    pub(crate) world: World<D>,
    pub(crate) stage: Stage,
    /// What was acknowledged, here or by a process before.
    acknowledged: Mutex<BTreeSet<String>>,
    /// What is on its way.
    current: Mutex<Option<(String, Make)>>,
    /// Says what it was told, since the process will end.
    tells: bool,
}

impl<D: TestDb> Play<D> {
    pub(crate) fn new(
        world: World<D>,
        stage: Stage,
        before: BTreeSet<String>,
        tells: bool,
    ) -> Self {
        Self {
            world,
            stage,
            acknowledged: Mutex::new(before),
            current: Mutex::default(),
            tells,
        }
    }

    /// A signed request, at the time of this stage.
    pub(crate) fn signed(&self, event: &Event) -> Request<Body> {
        let secret = self.world.secret();
        let body = event.body();
        http(&[&secret], self.stage.clock.now(), body.clone()).map(|()| Body::from(body))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.stage.clock.now()
    }

    /// Sends an event until it is decided.
    pub(crate) async fn deliver(self: &Arc<Self>, event: &Event) -> Reply {
        let (play, event) = (Arc::clone(self), event.clone());
        let id = event.id().to_owned();
        self.deliver_as(&id, Arc::new(move || play.signed(&event)))
            .await
    }

    /// The same, unless it was acknowledged: a producer that forgets what is done.
    pub(crate) async fn deliver_once(self: &Arc<Self>, event: &Event) {
        if !self.is_acknowledged(event.id()) {
            self.deliver(event).await;
        }
    }

    /// Whatever request it is.
    pub(crate) async fn deliver_as(&self, id: &str, make: Make) -> Reply {
        *lock(&self.current) = Some((id.to_owned(), Arc::clone(&make)));
        for _ in 0..ATTEMPTS {
            let reply = self.world.post(make()).await;
            if reply.status < 500 && !matches!(reply.status, 408 | 425 | 429) {
                self.told(id, &reply).await;
                return reply;
            }
            tokio::time::sleep(PAUSE).await;
        }
        panic!("{id} is never decided")
    }

    /// Sends what is on its way once more, if there is something.
    pub(crate) async fn duplicate(&self, through: &World<D>) {
        let current = lock(&self.current).clone();
        if let Some((id, make)) = current {
            let reply = through.post(make()).await;
            self.told(&id, &reply).await;
        }
    }

    /// No 2xx without its commit (§4.1).
    async fn told(&self, id: &str, reply: &Reply) {
        if reply.status >= 300 {
            return;
        }
        if self.tells {
            let mut out = std::io::stdout().lock();
            writeln!(out, "\nACK {id}").expect("the walk reads it");
            out.flush().expect("the walk reads it");
        }
        lock(&self.acknowledged).insert(id.to_owned());
        assert!(
            self.is_kept(id, reply.outcome()).await,
            "{id}: {reply:?} is not true"
        );
    }

    async fn is_kept(&self, id: &str, outcome: &str) -> bool {
        // Of what tells about deliveries nothing is kept under its id, and a request of several has none.
        if id.starts_with("ctl") || id.starts_with("batch") {
            return true;
        }
        if self
            .world
            .applied()
            .await
            .iter()
            .any(|applied| applied == id)
        {
            return true;
        }
        let row = format!("SELECT COUNT(*) FROM {{p}}event WHERE event_id = '{id}'");
        outcome != "applied" && self.world.number(&row).await == 1
    }

    fn is_acknowledged(&self, id: &str) -> bool {
        lock(&self.acknowledged).contains(id)
    }

    /// All that was acknowledged is there (§4.1).
    pub(crate) async fn keeps_what_it_acknowledged(&self) {
        let ids = lock(&self.acknowledged).clone();
        for id in ids {
            assert!(
                self.is_kept(&id, "").await,
                "{id} was acknowledged, and is lost"
            );
        }
    }

    /// An action of an operator, again and again while the database fails: each is safe to repeat (§5.15).
    pub(crate) async fn acts<T>(
        &self,
        mut act: impl AsyncFnMut() -> Result<T, OperatorError>,
    ) -> Result<T, OperatorErrorKind> {
        for _ in 0..ATTEMPTS {
            match act().await {
                Ok(done) => return Ok(done),
                Err(error) => match error.kind() {
                    OperatorErrorKind::Busy | OperatorErrorKind::Database => {}
                    kind => return Err(kind),
                },
            }
            tokio::time::sleep(PAUSE).await;
        }
        panic!("an operator's action never succeeds")
    }

    /// Waits until these sequences of a stream are applied: all of them, in this order.
    pub(crate) async fn drained(&self, account: &str, sequences: &[i64]) {
        eventually(
            &format!("{account} is applied up to {sequences:?}"),
            async || self.world.sequences(account).await == sequences,
        )
        .await;
    }

    /// Waits until an event without a place in a stream is applied.
    pub(crate) async fn applied(&self, id: &str) {
        eventually(&format!("{id} is applied"), async || {
            self.world
                .applied()
                .await
                .iter()
                .any(|applied| applied == id)
        })
        .await;
    }

    /// Waits until so many events are dead letters.
    pub(crate) async fn dead(&self, id: &str) {
        let dead =
            format!("SELECT COUNT(*) FROM {{p}}event WHERE event_id = '{id}' AND state <> 2");
        eventually(&format!("{id} waits no more"), async || {
            self.world.number(&dead).await == 1
        })
        .await;
    }

    /// Each effect is there once and in order, and nothing waits, is leased or locked.
    pub(crate) async fn is_exact(&self, expected: &Expected) {
        for (account, sequences) in expected.streams {
            self.drained(account, sequences).await;
        }
        for id in expected.events {
            self.applied(id).await;
        }
        let waits = "SELECT COUNT(*) FROM {p}pending WHERE reason IS NULL OR lease_token <> 0";
        eventually("nothing waits or is leased", async || {
            self.world.number(waits).await == 0
        })
        .await;
        for query in expected.none {
            eventually(query, async || self.world.number(query).await == 0).await;
        }
        let mut ids = self.world.applied().await;
        let most = ids.len();
        ids.sort();
        ids.dedup();
        let all = expected.events.len()
            + expected
                .streams
                .iter()
                .map(|(_, sequences)| sequences.len())
                .sum::<usize>();
        assert_eq!(
            (ids.len(), most),
            (all, all),
            "once each: {:?}",
            self.world.applied().await
        );
        let of_source = format!("SELECT COUNT(*) FROM {{p}}event WHERE source <> '{SOURCE}'");
        assert_eq!(self.world.number(&of_source).await, 0);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
