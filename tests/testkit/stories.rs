//! What the inbox did with an event, and assertions on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tower_inbox::operator::{Reason, State};
use tower_inbox::testkit::{self, Event, Kit, SignedRequest, TestDatabase};
use tower_inbox::{Delivery, Origin, Preset, Tx, TxError};

use crate::support::{
    On, SECRET, app, app_with, append, builder, kudos, ledger, on_each_database, panics,
};

on_each_database!(
    a_commit_that_a_test_refuses_is_rolled_back_and_answered_503,
    what_the_worker_does_is_in_the_story_too,
    a_backoff_is_over_when_the_clock_has_been_moved,
    a_verdict_of_the_handler_is_a_dead_letter,
    effects_outside_of_the_transaction_are_seen_by_refusing_its_commit,
);

fn deliver(event: &Event) -> SignedRequest {
    event.request(Preset::KUDOS, SECRET).to("/webhooks/crm")
}

fn at(sequence: i64) -> Event {
    testkit::event(format!("evt_{sequence}")).stream("acct", sequence)
}

async fn a_commit_that_a_test_refuses_is_rolled_back_and_answered_503<D: On>(db: TestDatabase<D>) {
    let (kit, _) = app(&db, kudos()).await;
    kit.probe("evt_1").fail_commit();
    let one = testkit::event("evt_1");
    let story = kit.send(deliver(&one)).await;
    story
        .assert_answered(503, "failed")
        .assert_not_applied()
        .assert_runs(1);
    assert!(story.to_string().contains("the handler answers 204"));
    assert!(story.to_string().contains("the test refuses this commit"));
    kit.assert_effects("SELECT COUNT(*) FROM ledger", 0).await;
    kit.send(deliver(&one))
        .await
        .assert_applied_once()
        .assert_runs(2);
    kit.assert_effects("SELECT COUNT(*) FROM ledger", 1).await;
}

/// §5.1, §5.5: drained runs, and a commit of the worker's that fails.
async fn what_the_worker_does_is_in_the_story_too<D: On>(db: TestDatabase<D>) {
    let (kit, _) = app(&db, kudos()).await;
    kit.send(deliver(&at(2))).await.assert_parked_behind(1);
    kit.probe("evt_2").fail_commit();
    kit.send(deliver(&at(1))).await.assert_applied_once();
    kit.settled().await;
    let story = kit.story("evt_2").await;
    story.assert_applied_once().assert_runs(2);
    let text = story.to_string();
    for line in [
        "attempt 1, POST /webhooks/crm: answered 202 parked, waiting for 1",
        "lower sequences have not come yet: it is to be parked",
        "it is stored, and its turn has come",
        "the handler is called by the worker",
        "rolled back: the test refuses this commit",
        "committed",
        "in the database: Applied",
    ] {
        assert!(text.contains(line), "{line}\n\n{text}");
    }
}

/// A handler that fails so often in the hands of the worker, and then writes into the ledger.
fn fails_drained<D: On>(times: usize) -> Router {
    let runs = Arc::new(AtomicUsize::new(0));
    let handler = move |mut tx: Tx<D>, event: Delivery| {
        let runs = Arc::clone(&runs);
        async move {
            append(&mut tx, &event).await;
            let drained = event.origin() == Origin::Drained;
            if drained && runs.fetch_add(1, Ordering::Relaxed) < times {
                return StatusCode::BAD_GATEWAY;
            }
            StatusCode::NO_CONTENT
        }
    };
    Router::new().route("/webhooks/{any}", post(handler))
}

/// §5.5: 1, 4, 16, 64, 256 s and then 300 s, ± 25 %; ten attempts in all.
async fn a_backoff_is_over_when_the_clock_has_been_moved<D: On>(db: TestDatabase<D>) {
    let (kit, clock) = app_with(&db, kudos(), fails_drained::<D>(3)).await;
    kit.send(deliver(&at(2))).await;
    kit.send(deliver(&at(1))).await;
    kit.settled().await;
    for runs in 1..=3 {
        let story = kit.story("evt_2").await;
        story.assert_runs(runs).assert_not_applied();
        assert_eq!(story.state(), Some(State::Parked));
        clock.advance(Duration::from_secs(20));
        kit.settled().await;
    }
    kit.story("evt_2")
        .await
        .assert_applied_once()
        .assert_runs(4);
}

/// §4.13
async fn a_verdict_of_the_handler_is_a_dead_letter<D: On>(db: TestDatabase<D>) {
    let handler = |_: Tx<D>| async { StatusCode::UNPROCESSABLE_ENTITY };
    let router = Router::new().route("/webhooks/{any}", post(handler));
    let (kit, _) = app_with(&db, kudos(), router).await;
    let story = kit.send(deliver(&testkit::event("evt_1"))).await;
    story
        .assert_answered(422, "rejected")
        .assert_dead(Reason::Rejected)
        .assert_not_applied();
    let letter = story.letter().expect("a dead letter");
    assert_eq!(letter.last_status, Some(422));
    // And not what it is not.
    let said = panics(async move { drop(story.assert_dead(Reason::Gap).id().to_owned()) }).await;
    assert!(said.contains("no dead letter of the reason gap"), "{said}");
    assert!(said.contains("in the database: Dead (rejected)"), "{said}");
}

/// §4.11: what a check of a handler is made of.
async fn effects_outside_of_the_transaction_are_seen_by_refusing_its_commit<D: On>(
    db: TestDatabase<D>,
) {
    let mails = Arc::new(AtomicUsize::new(0));
    let sent = Arc::clone(&mails);
    let handler = move |mut tx: Tx<D>, event: Delivery| {
        let sent = Arc::clone(&sent);
        async move {
            append(&mut tx, &event).await;
            sent.fetch_add(1, Ordering::Relaxed);
        }
    };
    let router = Router::new().route("/webhooks/{any}", post(handler));
    let (kit, _) = app_with(&db, kudos(), router).await;
    kit.probe("evt_1").fail_commit();
    let kudos = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
    let story = kudos.deliver(&testkit::event("evt_1")).await;
    story.assert_applied_once().assert_attempts(2);
    kit.assert_effects("SELECT COUNT(*) FROM ledger", 1).await;
    assert_eq!(mails.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn an_assertion_that_fails_tells_the_story() {
    let db = testkit::sqlite().await;
    let (kit, _) = app(&db, kudos()).await;
    let story = kit.send(deliver(&testkit::event("evt_1")).unsigned()).await;
    let again = story.clone();
    let said = panics(async move { drop(again.assert_applied_once().clone()) }).await;
    assert!(
        said.starts_with("evt_1: applied 0 times, instead of once\n\nevt_1"),
        "{said}"
    );
    assert!(said.contains("refused: "), "{said}");
    assert!(said.contains("the database does not know it"), "{said}");
    let wrong = kit.assert_effects("SELECT COUNT(*) FROM ledger", 3);
    let said = panics(wrong).await;
    assert!(
        said.starts_with("0 instead of 3 (tests/testkit/stories.rs:"),
        "{said}"
    );
    assert!(said.contains(": answered 401 rejected"), "{said}");
}

/// What nobody mounts is named.
#[tokio::test]
async fn what_is_not_settled_says_what_is_still_due() {
    let db = testkit::sqlite().await;
    let (kit, clock) = app(&db, kudos()).await;
    kit.send(deliver(&at(2))).await.assert_parked_behind(1);
    kit.inbox().shutdown().await;
    db.execute("UPDATE tower_inbox_cursor SET next_sequence = 2")
        .await;
    let unmounted = builder(&db, kudos()).clock(clock).build().await;
    let other = Kit::new(&unmounted.expect("an inbox"), Router::new());
    let said = panics(other.settles_within(Duration::from_millis(100)).settled()).await;
    assert!(
        said.starts_with("not settled within 100ms (tests/testkit/stories.rs:"),
        "{said}"
    );
    let due = "event evt_2 of stream acct of crm, and its source is not mounted";
    assert!(said.ends_with(due), "{said}");
}

/// §5.13
#[tokio::test]
async fn a_deferred_event_is_settled_by_the_worker() {
    let db = testkit::sqlite().await;
    let (kit, _) = app(&db, kudos().deferred()).await;
    let story = kit.send(deliver(&testkit::event("evt_1"))).await;
    story.assert_answered(202, "accepted").assert_not_applied();
    kit.settled().await;
    kit.story("evt_1").await.assert_applied_once();
}

#[tokio::test]
async fn any_tower_service_can_be_tested() {
    async fn handler(request: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, TxError> {
        let event = request.extensions().get::<Delivery>().cloned();
        let mut tx = Tx::<sqlx::Sqlite>::take(request.extensions())?;
        append(&mut tx, &event.expect("a delivery")).await;
        Ok(Response::new(Full::new(Bytes::new())))
    }
    let db = testkit::sqlite_in_memory().await;
    db.execute("CREATE TABLE ledger (id TEXT, sequence INTEGER)")
        .await;
    let inbox = builder(&db, kudos()).build().await.expect("an inbox");
    let service = tower::ServiceBuilder::new()
        .layer(inbox.layer("crm"))
        .service_fn(handler);
    let kit = Kit::for_service(&inbox, service);
    kit.send(deliver(&at(2))).await.assert_parked_behind(1);
    kit.send(deliver(&at(1))).await.assert_applied_once();
    kit.settled().await;
    kit.story("evt_2").await.assert_applied_once();
    kit.send(deliver(&at(2)).tampered())
        .await
        .assert_unauthorized();
}

/// A probe of a test's own, without a kit.
#[tokio::test]
async fn a_probe_goes_with_any_request() {
    let db = testkit::sqlite().await;
    db.execute("CREATE TABLE ledger (id TEXT, sequence INTEGER)")
        .await;
    let inbox = builder(&db, kudos()).build().await.expect("an inbox");
    let app = inbox.mount("crm", ledger::<sqlx::Sqlite>());
    let probe = testkit::Probe::new();
    probe.fail_commit();
    let mut statuses = Vec::new();
    for _ in 0..2 {
        let mut request: Request<axum::body::Body> = deliver(&testkit::event("evt_1")).into();
        request.extensions_mut().insert(probe.clone());
        let answer = tower::ServiceExt::oneshot(app.clone(), request).await;
        statuses.push(
            answer
                .unwrap_or_else(|never| match never {})
                .status()
                .as_u16(),
        );
    }
    assert_eq!(statuses, [503, 204]);
}
