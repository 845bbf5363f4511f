//! Virtual time that passes in pauses of producers, and when a test says so.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use http::StatusCode;
use tower_inbox::clock::{Clock as _, Timestamp};
use tower_inbox::operator::{Reason, State};
use tower_inbox::testkit::{
    self, Event, Kit, Network, SignedRequest, TestDatabase, VirtualClock, Way,
};
use tower_inbox::{Delivery, Inbox, Origin, Park, Preset, Source, Tx};

use crate::support::{On, SECRET, app, append, builder, kudos, on_each_database, panics};

on_each_database!(
    a_run_of_the_worker_that_fails_is_tried_again_within_one_pause,
    a_gap_is_given_up_in_the_pause_before_its_fill,
    time_that_a_test_lets_pass_stops_where_something_is_due,
    what_dies_while_all_is_settled_takes_its_successors_with_it,
    a_stream_begins_within_a_pause,
    what_is_older_than_its_retention_stays_until_it_is_purged,
);

/// Where the handler keeps the times at which the worker has called it.
type Tries = Arc<Mutex<Vec<Timestamp>>>;

fn at(sequence: i64) -> Event {
    testkit::event(format!("evt_{sequence}")).stream("acct", sequence)
}

fn deliver(event: &Event) -> SignedRequest {
    event.request(Preset::KUDOS, SECRET).to("/webhooks/crm")
}

/// An app over a source whose handler fails three times in the hands of the worker.
async fn failing<D: On>(db: &TestDatabase<D>, source: Source) -> (Kit<D>, Tries) {
    let (clock, tries) = (VirtualClock::new(), Tries::default());
    let (times, called) = (clock.clone(), Arc::clone(&tries));
    let handler = move |mut tx: Tx<D>, event: Delivery| {
        let (times, called) = (times.clone(), Arc::clone(&called));
        async move {
            append(&mut tx, &event).await;
            if event.origin() == Origin::Drained {
                let mut called = called.lock().expect("nobody panics with it");
                called.push(times.now());
                if called.len() <= 3 {
                    return StatusCode::BAD_GATEWAY;
                }
            }
            StatusCode::NO_CONTENT
        }
    };
    let router = Router::new().route("/webhooks/{any}", post(handler));
    (made(db, source, &clock, router).await, tries)
}

async fn made<D: On>(
    db: &TestDatabase<D>,
    source: Source,
    clock: &VirtualClock,
    router: Router,
) -> Kit<D> {
    db.execute("CREATE TABLE ledger (id VARCHAR(255) NOT NULL, sequence BIGINT)")
        .await;
    let inbox: Inbox<D> = builder(db, source)
        .clock(clock.clone())
        .build()
        .await
        .expect("an inbox");
    let app = inbox.mount("crm", router);
    Kit::new(&inbox, app).clock(clock)
}

/// Demands tries after 1, 4 and 16 s, ± 25 %.
fn assert_backoff(tries: &Tries) {
    let tries = tries.lock().expect("nobody panics with it").clone();
    let pauses: Vec<_> = tries
        .windows(2)
        .map(|pair| pair[1].since(pair[0]).as_secs_f64())
        .collect();
    assert_eq!(pauses.len(), 3, "{pauses:?}");
    for (pause, expected) in pauses.iter().zip([1.0, 4.0, 16.0]) {
        assert!(
            (0.75..=1.25).contains(&(pause / expected)),
            "{pause} s instead of {expected} s: {pauses:?}"
        );
    }
}

/// §5.5: between the second and the third attempt for the third event there are two minutes.
async fn a_run_of_the_worker_that_fails_is_tried_again_within_one_pause<D: On>(
    db: TestDatabase<D>,
) {
    let (kit, tries) = failing(&db, kudos()).await;
    let network = Network::perfect().each(|sending| match (sending.event_id, sending.attempt) {
        ("evt_1", 1) | ("evt_3", 1 | 2) => Some(Way::Down),
        _ => None,
    });
    let kudos = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
    for story in kudos.network(network).run(&[at(1), at(2), at(3)]).await {
        story.assert_applied_once();
    }
    assert_backoff(&tries);
}

/// §5.4: the window ends a minute after the second event came, and its predecessor comes when two have passed.
async fn a_gap_is_given_up_in_the_pause_before_its_fill<D: On>(db: TestDatabase<D>) {
    let source = kudos()
        .recovery_window(Duration::from_secs(60))
        .revive_gaps(false);
    let (kit, _) = app(&db, source).await;
    let network = Network::perfect()
        .each(|sending| (sending.event_id == "evt_1" && sending.attempt < 3).then_some(Way::Down));
    let kudos = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
    let stories = kudos.network(network).run(&[at(1), at(2)]).await;
    stories[0].assert_applied_once().assert_attempts(3);
    stories[1].assert_dead(Reason::Gap);
}

/// §5.4, §5.5
async fn time_that_a_test_lets_pass_stops_where_something_is_due<D: On>(db: TestDatabase<D>) {
    let source = kudos().recovery_window(Duration::from_secs(60));
    let (kit, tries) = failing(&db, source).await;
    kit.send(deliver(&at(2))).await.assert_parked_behind(1);
    kit.send(deliver(&at(4))).await.assert_parked_behind(1);
    kit.send(deliver(&at(1))).await.assert_applied_once();
    kit.advance(Duration::from_secs(59)).await;
    assert_backoff(&tries);
    kit.story("evt_2")
        .await
        .assert_applied_once()
        .assert_runs(4);
    assert_eq!(kit.story("evt_4").await.state(), Some(State::Parked));
    // What is due at the very end is done too.
    kit.advance(Duration::from_secs(1)).await;
    kit.story("evt_4").await.assert_dead(Reason::Gap);
}

/// §5.4: the successor's window is over when the head, which had hidden that, becomes a dead letter.
async fn what_dies_while_all_is_settled_takes_its_successors_with_it<D: On>(db: TestDatabase<D>) {
    let handler = |_: Tx<D>, event: Delivery| async move {
        match event.origin() {
            Origin::Live => Err(Park::after(Duration::from_secs(600))),
            _ => Ok(StatusCode::UNPROCESSABLE_ENTITY),
        }
    };
    let router = Router::new().route("/webhooks/{any}", post(handler));
    let (clock, window) = (VirtualClock::new(), Duration::from_secs(60));
    let kit = made(&db, kudos().recovery_window(window), &clock, router).await;
    kit.send(deliver(&at(1)))
        .await
        .assert_answered(202, "parked");
    kit.send(deliver(&at(2))).await.assert_parked_behind(1);
    clock.advance(Duration::from_secs(600));
    kit.settled().await;
    kit.story("evt_1").await.assert_dead(Reason::Rejected);
    kit.story("evt_2").await.assert_dead(Reason::Gap);
}

/// A stream that adopts its first sequence when it has settled; what was below comes too late.
async fn a_stream_begins_within_a_pause<D: On>(db: TestDatabase<D>) {
    let source = kudos().adopt_first_sequence(Duration::from_secs(60));
    let (kit, _) = app(&db, source).await;
    kit.send(deliver(&at(7)))
        .await
        .assert_answered(202, "parked");
    kit.advance(Duration::from_secs(59)).await;
    assert_eq!(kit.story("evt_7").await.state(), Some(State::Parked));
    let network = Network::perfect().each(|sending| (sending.attempt < 2).then_some(Way::Down));
    let kudos = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
    let story = kudos.network(network).deliver(&at(6)).await;
    story.assert_not_applied().assert_dead(Reason::BeforeStart);
    kit.story("evt_7").await.assert_applied_once();
}

/// §7.2: the worker forgets in real time.
async fn what_is_older_than_its_retention_stays_until_it_is_purged<D: On>(db: TestDatabase<D>) {
    let (kit, _) = app(&db, kudos()).await;
    kit.send(deliver(&at(1))).await.assert_applied_once();
    kit.advance(Duration::from_secs(31 * 86_400)).await;
    kit.story("evt_1").await.assert_applied_once();
    kit.inbox().purge("crm").await.expect("it is asked");
    assert_eq!(kit.story("evt_1").await.letter(), None);
}

#[tokio::test]
async fn a_kit_without_a_clock_lets_no_time_pass() {
    let db = testkit::sqlite().await;
    let inbox = builder(&db, kudos()).build().await.expect("an inbox");
    let kit = Kit::new(&inbox, Router::new());
    let said = panics(kit.advance(Duration::from_secs(1))).await;
    assert!(
        said.contains("there is no clock to move (tests/testkit/passing.rs:"),
        "{said}"
    );
}
