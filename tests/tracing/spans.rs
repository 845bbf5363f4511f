//! Which spans there are, what they hold, and what is inside.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use http::StatusCode;
use tokio::sync::Notify;
use tower_inbox::clock::Timestamp;
use tower_inbox::reconcile::{Item, Page, Query, ReplayFuture, ReplaySource};
use tower_inbox::{Delivery, Tx, testkit};
use tracing::Level;

use crate::capture::{Capture, Line};
use crate::world::{HANDLING, World, event, eventually, numbered, signed};

/// (traces): "one span per delivery with OpenTelemetry semantic names where they exist" (issue 9).
#[tokio::test]
async fn a_delivery_has_one_span_with_its_identifiers_and_its_end() {
    let capture = Capture::start();
    let world = World::start(|source| source).await;
    let sent = testkit::event("evt_1")
        .kind("payment.made")
        .stream("acct", 1);
    assert_eq!(world.send(&signed(&sent)).await.status(), 204);
    eventually("it ends", || capture.span("inbox.delivery").is_closed).await;
    let span = capture.span("inbox.delivery");
    span.has("otel.kind", "consumer")
        .has("otel.name", "process crm")
        .has("messaging.system", "webhook")
        .has("messaging.operation.name", "process")
        .has("messaging.operation.type", "process")
        .has("messaging.destination.name", "crm")
        .has("messaging.message.id", "evt_1")
        .has("messaging.message.conversation_id", "acct")
        .has("http.response.status_code", "204")
        .has("inbox.origin", "live")
        .has("inbox.event_type", "payment.made")
        .has("inbox.sequence", "1")
        .has("inbox.outcome", "applied")
        .has_no("otel.status_code")
        .has_no("trace_id")
        .has_no("link.trace_id");
    let bytes: usize = span
        .get("messaging.message.body.size")
        .expect("a size")
        .parse()
        .expect("a number");
    assert_eq!(
        bytes,
        signed(&sent).build::<axum::body::Bytes>().body().len()
    );
    assert!(span.is_root() && span.level == Level::INFO);
    assert_eq!(span.target, "tower_inbox::span");

    assert_eq!(world.send(&signed(&sent)).await.status(), 200);
    let spans = capture.spans("inbox.delivery");
    assert_eq!(spans.len(), 2);
    spans[1]
        .has("messaging.message.id", "evt_1")
        .has("inbox.outcome", "duplicate");
}

/// (traces): levels. What a failure is to a tracing backend, and what a refusal is not.
#[tokio::test]
async fn a_failure_is_marked_as_one_and_a_refusal_is_not() {
    let capture = Capture::start();
    let status = |delivery: &Delivery| match delivery.event_id() {
        "evt_503" => 503,
        "evt_422" => 422,
        _ => 204,
    };
    let world = World::answering(|source| source, status).await;
    for (id, status) in [("evt_503", 503), ("evt_422", 422)] {
        assert_eq!(world.send(&event(id)).await.status(), status);
    }
    assert_eq!(world.send(&event("evt_1").unsigned()).await.status(), 401);
    let spans = capture.spans("inbox.delivery");
    let [failed, rejected, refused] = &spans[..] else {
        panic!("{spans:#?}");
    };
    failed
        .has("inbox.outcome", "failed")
        .has("otel.status_code", "ERROR")
        .has("error.type", "503");
    rejected
        .has("inbox.outcome", "rejected")
        .has_no("otel.status_code");
    refused
        .has("inbox.outcome", "rejected")
        .has("http.response.status_code", "401")
        .has("messaging.destination.name", "crm")
        .has_no("messaging.message.id");
    let why = capture.line("refused a delivery");
    assert_eq!(why.level, Level::WARN);
    let around = capture.around(&why).expect("it is inside");
    around.has("http.response.status_code", "401");
}

/// (traces): the handler's own lines belong to the delivery, live and drained.
#[tokio::test]
async fn what_a_handler_logs_is_inside_of_its_delivery_and_of_its_attempt() {
    let capture = Capture::start();
    let world = World::start(|source| source).await;
    assert_eq!(world.send(&numbered("acct", 2)).await.status(), 202);
    assert_eq!(world.send(&numbered("acct", 1)).await.status(), 204);
    eventually("2 is drained", || {
        capture
            .spans("inbox.drain")
            .iter()
            .any(|span| span.is_closed)
    })
    .await;
    let said: Vec<_> = handled(&capture);
    let around: Vec<_> = said
        .iter()
        .map(|line| capture.around(line).expect("it is inside"))
        .collect();
    let [live, drained] = &around[..] else {
        panic!("{around:#?}");
    };
    assert_eq!(live.name, "inbox.delivery");
    live.has("messaging.message.id", "evt_acct_1");
    assert_eq!(drained.name, "inbox.drain");
    drained
        .has("otel.name", "process crm")
        .has("messaging.message.id", "evt_acct_2")
        .has("messaging.message.conversation_id", "acct")
        .has("inbox.origin", "drained")
        .has("inbox.sequence", "2")
        .has("inbox.attempt", "1")
        .has("inbox.outcome", "applied");
    assert!(drained.is_root());
    let parked = &capture.spans("inbox.delivery")[0];
    parked
        .has("inbox.outcome", "parked")
        .has("http.response.status_code", "202");
}

fn handled(capture: &Capture) -> Vec<Line> {
    let lines = capture.lines();
    lines
        .into_iter()
        .filter(|line| line.message() == HANDLING)
        .collect()
}

/// §4.5: the delivery goes on without its client, and so does its span.
#[tokio::test]
async fn a_delivery_whose_client_leaves_goes_on_in_its_span() {
    #[derive(Clone, Default)]
    struct Gate(Arc<(Notify, Notify)>);
    async fn held(State(gate): State<Gate>, _tx: Tx<sqlx::Sqlite>) -> StatusCode {
        gate.0.0.notify_one();
        gate.0.1.notified().await;
        tracing::info!(target: "app", "{HANDLING}");
        StatusCode::NO_CONTENT
    }
    let capture = Capture::start();
    let gate = Gate::default();
    let router = Router::new()
        .route("/hook", post(held))
        .with_state(gate.clone());
    let world = World::with(|source| source, router).await;
    let request = event("evt_1");
    tokio::select! {
        answer = world.send(&request) => panic!("{answer:?}"),
        () = gate.0.0.notified() => {}
    }
    assert!(!capture.span("inbox.delivery").is_closed);
    gate.0.1.notify_one();
    eventually("it ends", || capture.span("inbox.delivery").is_closed).await;
    capture
        .span("inbox.delivery")
        .has("inbox.outcome", "applied")
        .has("http.response.status_code", "204");
    let line = capture.line(HANDLING);
    let around = capture.around(&line).expect("it is inside");
    around.has("messaging.message.id", "evt_1");
}

/// (traces): one span for each drained event, also where several share a transaction.
#[tokio::test]
async fn every_event_of_a_batch_has_a_span_and_what_is_undone_has_another_one() {
    let capture = Capture::start();
    // The last one of the batch fails the first time, so that all of it is undone.
    let status = |delivery: &Delivery| match delivery.sequence() {
        Some(4) => 422,
        _ => 204,
    };
    let change = |source: tower_inbox::Source| source.batch(8);
    let world = World::answering(change, status).await;
    for sequence in [4, 3, 2] {
        assert_eq!(world.send(&numbered("acct", sequence)).await.status(), 202);
    }
    assert_eq!(world.send(&numbered("acct", 1)).await.status(), 204);
    let ended = |sequence: &str, outcome: &str| {
        let spans = capture.spans("inbox.drain");
        spans.iter().any(|span| {
            span.is_closed
                && span.get("inbox.sequence") == Some(sequence)
                && span.get("inbox.outcome") == Some(outcome)
        })
    };
    eventually("all are tried", || ended("4", "rejected")).await;
    assert!(
        ended("2", "applied") && ended("3", "applied"),
        "{:#?}",
        capture.spans("inbox.drain")
    );
    for line in handled(&capture).iter().skip(1) {
        let around = capture.around(line).expect("it is inside");
        assert_eq!(around.name, "inbox.drain");
    }
    assert_eq!(
        handled(&capture).len(),
        1 + capture.spans("inbox.drain").len()
    );
}

/// (traces): an event that a producer's list brought is a delivery of its own kind.
#[tokio::test]
async fn a_reconciled_event_has_a_span_of_its_own() {
    struct List(Item);
    impl ReplaySource for List {
        fn page<'a>(&'a self, _: Query<'a>) -> ReplayFuture<'a, Page> {
            Box::pin(async {
                Ok(Page {
                    announced: Some(1),
                    next: None,
                    items: vec![self.0.clone()],
                    unreadable: Vec::new(),
                })
            })
        }
    }
    let capture = Capture::start();
    let world = World::start(|source| source).await;
    let list = List(Item {
        event_id: "evt_1".into(),
        at: Timestamp::now(),
        request: Some(event("evt_1").build()),
        reference: "del_1".into(),
    });
    let report = world
        .inbox
        .reconcile("crm", &list)
        .await
        .expect("it is done");
    assert_eq!(report.applied, 1);
    let line = capture.line(HANDLING);
    let around = capture.around(&line).expect("it is inside");
    assert_eq!(around.name, "inbox.reconcile");
    around
        .has("inbox.origin", "reconciled")
        .has("messaging.message.id", "evt_1")
        .has("inbox.outcome", "applied");
}

/// (traces): whoever is on call reads one line for an attempt of the worker's that failed, with when the next one is.
#[tokio::test]
async fn an_attempt_that_failed_is_one_line_with_its_number_and_the_next_one() {
    let capture = Capture::start();
    let fails = |delivery: &Delivery| match delivery.sequence() {
        Some(2) => 503,
        _ => 204,
    };
    let backoff = [Duration::from_millis(50), Duration::from_secs(3_600)];
    let world = World::answering(|source| source.backoff(backoff), fails).await;
    assert_eq!(world.send(&numbered("acct", 2)).await.status(), 202);
    assert_eq!(world.send(&numbered("acct", 1)).await.status(), 204);
    let warned = || {
        let lines = capture.lines().into_iter();
        lines.filter(|line| line.level == Level::WARN && line.is_ours())
    };
    eventually("it was tried twice", || warned().count() >= 2).await;
    world.inbox.shutdown().await;
    let attempts: Vec<_> = warned()
        .map(|line| {
            assert!(line.message().contains("it is tried again"), "{line:?}");
            assert_eq!(line.get("status"), Some("503"), "{line:?}");
            let next = line.get("next_attempt").expect("when the next one is");
            assert!(next.ends_with('Z'), "{line:?}");
            line.get("attempt").expect("which one").to_owned()
        })
        .collect();
    assert_eq!(attempts, ["1", "2"]);
}

/// (traces): "levels chosen so that default logs are quiet in health" (issue 9).
#[tokio::test]
async fn in_health_nothing_is_logged_for_a_delivery() {
    let capture = Capture::start();
    let world = World::start(|source| source.adopt_first_sequence(Duration::from_millis(50))).await;
    let before = capture.lines().len();
    for id in ["evt_1", "evt_2", "evt_1"] {
        assert!(world.send(&event(id)).await.status().is_success());
    }
    for sequence in [9, 8, 7] {
        assert_eq!(world.send(&numbered("acct", sequence)).await.status(), 202);
    }
    let drained = || {
        let spans = capture.spans("inbox.drain");
        spans.iter().filter(|span| span.is_closed).count() == 3
    };
    eventually("they are drained", drained).await;
    world.inbox.shutdown().await;
    let lines = capture.lines().split_off(before);
    let loud = |line: &&Line| line.level <= Level::INFO && line.is_ours();
    let loud: Vec<_> = lines.iter().filter(loud).collect();
    assert!(loud.is_empty(), "{loud:#?}");
    assert!(
        lines.iter().any(Line::is_ours),
        "nothing was captured at all"
    );
}
