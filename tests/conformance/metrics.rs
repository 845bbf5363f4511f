//! §8: every metric is emitted by some traffic, with the labels that the page gives it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use serde_json::json;
use tower_inbox::METRICS;
use tower_inbox::envelope::{Mapping, Place};
use tower_inbox::verify::Tolerance;

use crate::db::TestDb;
use crate::kit::{Call, Event, Replays, TestClock, World, eventually, http, now, numbered};

suite![
    every_metric_is_emitted_with_its_labels,
    deliveries_handlers_and_refusals_are_counted_by_their_labels,
    gauges_show_what_is_stored,
];

/// Names with labels, and what was recorded last or altogether.
type Seen = BTreeMap<(String, Vec<(String, String)>), f64>;

/// What this process records: of all tests in it, told apart by their sources.
#[derive(Clone)]
pub(crate) struct Recording(Arc<Mutex<Seen>>);

pub(crate) fn recording() -> &'static Recording {
    static RECORDING: OnceLock<Recording> = OnceLock::new();
    RECORDING.get_or_init(|| {
        let recording = Recording(Arc::default());
        metrics::set_global_recorder(recording.clone()).expect("nobody else sets one");
        recording
    })
}

impl Recording {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With these labels, whatever the others are; added up.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |key: &[(String, String)]| {
            let there =
                |(label, value): &(&str, &str)| key.iter().any(|(l, v)| l == label && v == value);
            labels.iter().all(there)
        };
        let seen = self.seen();
        let found = seen.iter().filter(|((n, key), _)| n == name && has(key));
        found.map(|(_, value)| *value).reduce(|a, b| a + b)
    }
}

struct Cell(Recording, Key);

impl Cell {
    fn change(&self, change: impl FnOnce(&mut f64)) {
        let labels = self.1.labels();
        let labels = labels.map(|label| (label.key().to_owned(), label.value().to_owned()));
        let key = (self.1.name().to_owned(), labels.collect());
        change(self.0.seen().entry(key).or_default());
    }
}

#[allow(clippy::cast_precision_loss, reason = "small counts")]
impl CounterFn for Cell {
    fn increment(&self, by: u64) {
        self.change(|value| *value += by as f64);
    }

    fn absolute(&self, to: u64) {
        self.change(|value| *value = to as f64);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, by: f64) {
        self.change(|value| *value += by);
    }

    fn decrement(&self, by: f64) {
        self.change(|value| *value -= by);
    }

    fn set(&self, to: f64) {
        self.change(|value| *value = to);
    }
}

/// Counts what is recorded.
impl HistogramFn for Cell {
    fn record(&self, seconds: f64) {
        assert!((0.0..100.0).contains(&seconds), "no seconds: {seconds}");
        self.change(|value| *value += 1.0);
    }
}

impl Recorder for Recording {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(Cell(self.clone(), key.clone())))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(Cell(self.clone(), key.clone())))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Cell(self.clone(), key.clone())))
    }
}

/// A name that no other test's source has.
pub(crate) fn name<D: TestDb>(db: &D, what: &str) -> String {
    format!("{}{what}", db.prefix())
}

fn at_route(mut request: Request<Body>, method: Method) -> Request<Body> {
    *request.method_mut() = method;
    request
}

/// §8: traffic of every kind; the labels of each name are those of the page, no more and no less.
async fn every_metric_is_emitted_with_its_labels<D: TestDb>(db: D) {
    let recording = recording();
    plain(&db).await;
    versions(&db).await;
    fenced(&db).await;
    noted_and_shared(&db).await;
    forgotten(&db).await;
    let mut looks = 0;
    eventually("every metric was emitted", async || {
        let seen = recording.seen();
        let emitted: BTreeSet<_> = seen.keys().map(|(name, _)| name.as_str()).collect();
        let missing: Vec<_> = METRICS
            .iter()
            .map(|metric| metric.name)
            .filter(|name| !emitted.contains(name))
            // One writer alone has deliveries that wait for each other.
            .filter(|name| D::SINGLE_WRITER || !name.contains("group_commit"))
            .collect();
        drop(seen);
        if looks == 1_000 {
            eprintln!("not yet: {missing:?}");
        }
        looks += 1;
        missing.is_empty()
    })
    .await;
    let seen = recording.seen().clone();
    for (name, labels) in seen.keys().filter(|(name, _)| name.starts_with("inbox_")) {
        let metric = METRICS.iter().find(|metric| metric.name == name);
        let metric = metric.unwrap_or_else(|| panic!("{name} is not on the page"));
        let labels: BTreeSet<_> = labels.iter().map(|(label, _)| label.as_str()).collect();
        assert_eq!(labels, metric.labels.iter().copied().collect(), "{name}");
    }
}

/// Deliveries, parking, failures, bursts, reconciliation.
async fn plain<D: TestDb>(db: &D) {
    let clock = TestClock::new();
    let own = clock.clone();
    let world = World::<D>::over(db)
        .named(&name(db, "plain"))
        .inbox(move |inbox| inbox.clock(own))
        .source(|source| {
            source
                .backoff([Duration::from_millis(10)])
                .recovery_window(Duration::from_millis(300))
        })
        .answers(|call: &Call<D>| match call.delivery.sequence() {
            Some(2) if call.run == 1 => 503,
            _ => 0,
        })
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("late", 7)).await.is_parked(1);
    world.post(world.signed(Bytes::from_static(b"{}"))).await;
    for (kind, id) in [("replay_started", "ctl_1"), ("replay_completed", "ctl_2")] {
        let event = Event::new(id)
            .with("event_type", format!("subscription.{kind}"))
            .with("data", json!({"events_emitted": 3}));
        world.send(&event).await.is(200, "accepted");
    }
    let source = name(db, "plain");
    let replays = Replays::new();
    replays.exhausted(&Event::new("evt_lost"), now());
    let report = world.inbox.reconcile(&source, &replays).await;
    assert_eq!(report.expect("it runs").applied, 1);
    clock.advance(Duration::from_secs(16));
    eventually("the gap was given up", async || {
        recording()
            .value("inbox_expired_total", &[("source", &source)])
            .is_some()
    })
    .await;
    // Told some time after its end, so that all have counted.
    eventually("the burst has ended", async || {
        let _ = world.inbox.bursts(&source).await;
        recording()
            .value("inbox_bursts_total", &[("source", &source)])
            .is_some()
    })
    .await;
    eventually("rows are counted", async || {
        recording()
            .value("inbox_rows", &[("source", &source)])
            .is_some()
    })
    .await;
    // What is reconciled on demand alone is never overdue.
    let interval = || {
        let of_source = [("source", source.as_str())];
        recording().value("inbox_reconciliation_interval_seconds", &of_source)
    };
    assert_eq!(interval(), None);
    let often = Duration::from_secs(600);
    let reconciler = world.inbox.reconciliation(&source).every(often, replays);
    assert!(reconciler.after(0).await);
    assert_eq!(interval(), Some(600.0));
    // A sweep that fails: its table is elsewhere.
    let mut conn = world.eyes.acquire().await.expect("a connection");
    let (from, to) = (name(db, "audit"), name(db, "elsewhere"));
    let rename = |from: &str, to: &str| format!("ALTER TABLE {from} RENAME TO {to}");
    D::execute(&mut conn, &rename(&from, &to))
        .await
        .expect("renamed");
    drop(conn);
    world.stop().await;
    let other = World::<D>::over(db).named(&source).start().await;
    eventually("a sweep fails", async || {
        recording()
            .value("inbox_sweep_failures_total", &[("task", "audit")])
            .is_some()
    })
    .await;
    let mut conn = other.eyes.acquire().await.expect("a connection");
    D::execute(&mut conn, &rename(&to, &from))
        .await
        .expect("renamed");
    drop(conn);
    other.stop().await;
}

async fn versions<D: TestDb>(db: &D) {
    let world = World::<D>::over(db)
        .named(&name(db, "newer"))
        .source(|source| source.newer_than(Place::json("correlation_id"), Place::json("version")))
        .start()
        .await;
    for (id, version) in [("new", 2), ("old", 1)] {
        let event = Event::new(id)
            .with("correlation_id", "acct")
            .with("version", version);
        world.send(&event).await;
    }
    world.stop().await;
}

/// One body under two ids that are not signed.
async fn fenced<D: TestDb>(db: &D) {
    use tower_inbox::Source;
    use tower_inbox::preset::Preset;
    use tower_inbox::verify::{Secret, Signer};
    const SECRET: &str = "a webhook secret";
    let source = name(db, "fenced");
    let named = source.clone();
    let world = World::<D>::over(db)
        .named(&source)
        .source(move |_| Source::new(named, Preset::GITHUB).secrets([SECRET]))
        .start()
        .await;
    let secret = Secret::text(SECRET).expect("not empty");
    let signer = Signer::new(&Preset::GITHUB.scheme(), [secret]).expect("an HMAC scheme");
    for id in ["one", "two"] {
        let body = Bytes::from_static(br#"{"data": {"amount": 1}}"#);
        let mut request = Request::post("/hooks/acme")
            .header("x-github-delivery", id)
            .header("x-github-event", "push")
            .body(Body::from(body.clone()))
            .expect("a request");
        let signed = signer.sign(now(), None, &body).expect("signed");
        request.headers_mut().extend(signed);
        assert_eq!(world.post(request).await.status / 100, 2);
    }
    world.stop().await;
}

/// Other content is only noted; and, on SQLite, deliveries that wait for each other share a transaction.
async fn noted_and_shared<D: TestDb>(db: &D) {
    let source = name(db, "noted");
    let mapping = Mapping::new(Place::json("event_id")).with_event_type(Place::json("event_type"));
    let world = World::<D>::over(db)
        .named(&source)
        .connections(8)
        .source(move |source| source.batch(8).mapping(mapping))
        .start()
        .await;
    let mut round = 0;
    eventually("some share a transaction", async || {
        round += 1;
        let all: Vec<_> = (0..6)
            .map(|n| world.spawn(&Event::new(&format!("evt_{round}_{n}"))))
            .collect();
        for delivery in all {
            delivery.await.expect("it is answered").is_applied();
        }
        let shared = "inbox_group_commit_deliveries_total";
        !D::SINGLE_WRITER || recording().value(shared, &[]).is_some()
    })
    .await;
    world
        .send(&Event::new("evt_1_0").amount(9))
        .await
        .is_duplicate();
    world.stop().await;
}

/// What is past its retention.
async fn forgotten<D: TestDb>(db: &D) {
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    let clock = TestClock::new().of_the_database_too();
    let own = clock.clone();
    let source = name(db, "old");
    let world = World::<D>::over(db)
        .named(&source)
        .inbox(move |inbox| inbox.clock(own))
        .source(|source| source.tolerance(Tolerance::new(DAY * 90, DAY * 90)))
        .start()
        .await;
    world.send(&Event::new("evt_1")).await.is_applied();
    clock.advance(DAY * 31);
    let _ = world.inbox.purge(&source).await;
    eventually("it was purged", async || {
        recording().value("inbox_purged_rows_total", &[("source", &source)]) == Some(1.0)
    })
    .await;
    world.stop().await;
}

/// §8: by source, event type and outcome; the handler's runs by verdict; what is refused by reason.
async fn deliveries_handlers_and_refusals_are_counted_by_their_labels<D: TestDb>(db: D) {
    let recording = recording();
    let source = name(&db, "counted");
    let world = World::<D>::over(&db)
        .named(&source)
        .source(|source| source.body_limit(1_000).max_event_types(1))
        .answers(|call: &Call<D>| match call.delivery.event_id() {
            "evt_bad" => 422,
            "evt_down" => 503,
            _ => 0,
        })
        .start()
        .await;
    for id in ["evt_1", "evt_1", "evt_bad", "evt_down"] {
        world.send(&Event::new(id)).await;
    }
    world
        .send(&Event::new("evt_2").with("event_type", "beyond"))
        .await;
    let body = Event::new("evt").body();
    let forged = http(&["wrong"], now(), body.clone()).map(|()| Body::from(body));
    world.post(forged).await.is(401, "rejected");
    let gets = at_route(world.request(&Event::new("evt")), Method::GET);
    world.post(gets).await.is(405, "rejected");
    let big = Event::new("evt").with("filler", "x".repeat(2_000));
    world.send(&big).await.is(413, "rejected");
    world
        .post(world.signed(Bytes::from_static(b"{}")))
        .await
        .is(400, "rejected");
    let of = |name: &str, labels: &[(&str, &str)]| {
        let labels: Vec<_> = labels
            .iter()
            .copied()
            .chain([("source", &*source)])
            .collect();
        recording.value(name, &labels).unwrap_or_default()
    };
    let paid = ("event_type", "payment.succeeded");
    for (outcome, count) in [
        ("applied", 1.0),
        ("duplicate", 1.0),
        ("rejected", 1.0),
        ("failed", 1.0),
    ] {
        let labels = [paid, ("outcome", outcome)];
        assert_eq!(of("inbox_deliveries_total", &labels), count, "{outcome}");
    }
    // All four that were refused, of which one was verified.
    let refused = [("event_type", ""), ("outcome", "rejected")];
    assert_eq!(of("inbox_deliveries_total", &refused), 4.0);
    let other = [("event_type", "other"), ("outcome", "applied")];
    assert_eq!(of("inbox_deliveries_total", &other), 1.0);
    for (verdict, count) in [("commit", 1.0), ("reject", 1.0), ("fail", 1.0)] {
        let labels = [paid, ("verdict", verdict)];
        assert_eq!(of("inbox_handler_runs_total", &labels), count, "{verdict}");
    }
    assert_eq!(of("inbox_handler_duration_seconds", &[]), 4.0);
    // A method that no route has does not come as far as the door.
    assert_eq!(of("inbox_delivery_duration_seconds", &[]), 8.0);
    for reason in ["signature", "method", "body_too_large", "envelope"] {
        assert_eq!(
            of("inbox_refused_total", &[("reason", reason)]),
            1.0,
            "{reason}"
        );
    }
    assert_eq!(of("inbox_verified_total", &[("secret", "secret-1")]), 6.0);
    world.stop().await;
}

/// §8: parked, oldest, gaps, dead letters; sampled in the background.
async fn gauges_show_what_is_stored<D: TestDb>(db: D) {
    let recording = recording();
    let source = name(&db, "stored");
    let world = World::<D>::over(&db)
        .named(&source)
        .answers(|call: &Call<D>| u16::from(call.delivery.event_id() == "evt_bad") * 422)
        .start()
        .await;
    world.send(&numbered("acct", 3)).await.is_parked(1);
    world.send(&Event::new("evt_bad")).await.is(422, "rejected");
    let of = |name: &str, label: Option<(&str, &str)>| {
        let labels: Vec<_> = label.into_iter().chain([("source", &*source)]).collect();
        recording.value(name, &labels)
    };
    eventually("they are sampled", async || {
        of("inbox_gaps", None) == Some(1.0)
            && of("inbox_parked", None) == Some(1.0)
            && of("inbox_dead_letters", Some(("reason", "rejected"))) == Some(1.0)
            && of("inbox_oldest_parked_age_seconds", None).is_some_and(|age| age > 0.0)
    })
    .await;
    for (name, wanted) in [
        ("inbox_leases", 0.0),
        ("inbox_drain_lag_seconds", 0.0),
        ("inbox_in_flight", 0.0),
        // There before the first of them, so that the first one is a rise.
        ("inbox_bursts_missing_total", 0.0),
    ] {
        assert_eq!(of(name, None), Some(wanted), "{name}");
    }
    world.stop().await;
}
