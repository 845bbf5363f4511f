//! What becomes of requests on their way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use http::StatusCode;
use tower_inbox::testkit::schedule::Ending;
use tower_inbox::testkit::{self, Event, Kit, Network, Point, TestDatabase, VirtualClock, Way};
use tower_inbox::{Delivery, Preset, Tx};

use crate::support::{On, SECRET, app, app_with, append, kudos, ledger, on_each_database, panics};

on_each_database!(
    a_lost_answer_makes_a_duplicate,
    copies_at_the_same_time_are_applied_once,
    whoever_is_cut_off_comes_again,
    a_restart_in_the_middle_of_the_traffic_loses_nothing,
);

fn events(many: i64) -> Vec<Event> {
    let event = |n: i64| testkit::event(format!("evt_{n}")).stream("acct", n);
    (1..=many).map(event).collect()
}

/// §4.1: "a crash between commit and ack is safe".
async fn a_lost_answer_makes_a_duplicate<D: On>(db: TestDatabase<D>) {
    let (kit, _) = app(&db, kudos()).await;
    let kudos = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
    let kudos = kudos.network(Network::perfect().drop_answer_after_commit());
    let story = kudos.deliver(&events(1)[0]).await;
    story
        .assert_applied_once()
        .assert_duplicate()
        .assert_attempts(2);
    assert_eq!(story.statuses(), [204, 200]);
    assert!(!story.attempts()[0].seen && story.attempts()[1].seen);
}

/// §4.8
async fn copies_at_the_same_time_are_applied_once<D: On>(db: TestDatabase<D>) {
    let (kit, _) = app(&db, kudos()).await;
    let kudos = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
    let kudos = kudos
        .network(Network::perfect().duplicates_at_once(1.0).reorder(4))
        .concurrency(4);
    for story in kudos.run(&events(8)).await {
        story.assert_applied_once().assert_runs(1);
        assert_eq!(story.attempts().len() % 2, 0, "{story}");
    }
    kit.assert_effects("SELECT COUNT(*) FROM ledger", 8).await;
}

/// §4.5
async fn whoever_is_cut_off_comes_again<D: On>(db: TestDatabase<D>) {
    let (kit, _) = app(&db, kudos()).await;
    for (id, point, at_first) in [
        ("evt_1", Point::WhileSending, 0),
        ("evt_2", Point::BeforeAnswer, 1),
    ] {
        let kudos = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
        let kudos = kudos.network(Network::perfect().disconnect_at(point));
        let story = kudos.deliver(&testkit::event(id)).await;
        story
            .assert_applied_once()
            .assert_ended(Ending::Delivered)
            .assert_attempts(2);
        // Cut off before its answer, it was applied all the same.
        let applied_by_second = story.reply().outcome() == "applied";
        assert_eq!(applied_by_second, at_first == 0, "{story}");
    }
}

/// §5.9: what was parked is applied by the next process.
async fn a_restart_in_the_middle_of_the_traffic_loses_nothing<D: On>(db: TestDatabase<D>) {
    db.execute("CREATE TABLE ledger (id VARCHAR(255), sequence BIGINT)")
        .await;
    let (clock, pool, made) = (
        VirtualClock::new(),
        db.pool(),
        Arc::new(AtomicUsize::new(0)),
    );
    let (own, count) = (clock.clone(), Arc::clone(&made));
    let kit = Kit::restartable(move || {
        let (clock, pool) = (own.clone(), pool.clone());
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            let inbox = tower_inbox::Inbox::builder(pool)
                .source(kudos())
                .clock(clock);
            let inbox = inbox.build().await.expect("an inbox");
            let app = inbox.mount("crm", ledger::<D>());
            (inbox, app)
        }
    });
    let kit = kit.await.clock(&clock);
    // The first one comes last, after the restart.
    let network = Network::perfect().each(|sending| match (sending.event_id, sending.attempt) {
        ("evt_1", 1) => Some(Way::Down),
        ("evt_1", 2) => Some(Way::AfterRestart),
        _ => None,
    });
    let kudos = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
    for story in kudos.network(network).run(&events(4)).await {
        story.assert_applied_once();
        let line = "the app is restarted";
        assert!(story.to_string().contains(line), "{story}");
        assert_eq!(
            story.attempts().len(),
            if story.id() == "evt_1" { 2 } else { 1 }
        );
    }
    assert_eq!(made.load(Ordering::Relaxed), 2);
    drop(db);
}

#[tokio::test]
async fn an_app_that_nobody_can_make_anew_is_not_restarted() {
    let db = testkit::sqlite().await;
    let (kit, _) = app(&db, kudos()).await;
    let said = panics(async move { kit.restart().await }).await;
    assert!(said.contains("Kit::restartable"), "{said}");
}

/// The first fault that applies is taken, and closures see what is sent.
#[tokio::test]
async fn faults_are_asked_in_their_order() {
    let db = testkit::sqlite().await;
    let (kit, _) = app(&db, kudos()).await;
    let network = Network::perfect()
        .down_for(Duration::from_secs(1))
        .each(|sending| {
            assert!(sending.attempt > 1 && sending.attempts_before > 0);
            assert!(sending.since_start >= Duration::from_secs(1));
            (sending.attempt == 2).then_some(Way::Twice)
        })
        .drop_answers(1.0);
    let kudos = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
    let story = kudos.network(network).deliver(&events(1)[0]).await;
    let ways: Vec<_> = story.attempts().iter().map(|attempt| attempt.way).collect();
    assert_eq!(ways, [Way::Down, Way::Twice, Way::Twice]);
    assert_eq!(story.statuses(), [204, 200]);
}

/// 30 s, 2 min, 10 min: the third attempt falls into the outage, and the second one does not.
#[tokio::test]
async fn an_outage_in_the_middle_is_over_after_it() {
    let db = testkit::sqlite().await;
    let (kit, _) = app(&db, kudos()).await;
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let network = Network::perfect()
        .down_between(minutes(1), minutes(4))
        .each(|sending| (sending.attempt < 3).then_some(Way::AnswerLost));
    let kudos = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
    let story = kudos.network(network).deliver(&events(1)[0]).await;
    let ways: Vec<_> = story.attempts().iter().map(|attempt| attempt.way).collect();
    assert_eq!(
        ways,
        [Way::AnswerLost, Way::AnswerLost, Way::Down, Way::Through]
    );
    story.assert_applied_once().assert_duplicate();
}

/// A connection that is really cut, at either point.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_socket_whoever_is_cut_off_comes_again() {
    let db = testkit::sqlite().await;
    let handler = |mut tx: Tx<sqlx::Sqlite>, event: Delivery| async move {
        append(&mut tx, &event).await;
        StatusCode::NO_CONTENT
    };
    let router = Router::new().route("/webhooks/{any}", post(handler));
    let (kit, _) = app_with(&db, kudos(), router).await;
    let inbox = kit.inbox();
    let app = inbox.mount("crm", ledger::<sqlx::Sqlite>());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    for (id, point, runs) in [
        ("evt_1", Point::WhileSending, 1),
        ("evt_2", Point::BeforeAnswer, 1),
    ] {
        let kudos = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
        let kudos = kudos
            .over(&url)
            .network(Network::perfect().disconnect_at(point));
        let story = kudos.deliver(&testkit::event(id)).await;
        story
            .assert_applied_once()
            .assert_runs(runs)
            .assert_attempts(2);
        assert!(!story.attempts()[0].seen, "{story}");
    }
    server.abort();
}
