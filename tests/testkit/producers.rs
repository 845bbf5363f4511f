//! Simulated producers in virtual time, and over a socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use http::StatusCode;
use serde_json::json;
use tower_inbox::clock::Clock as _;
use tower_inbox::operator::Reason;
use tower_inbox::testkit::schedule::Ending;
use tower_inbox::testkit::{self, Event, Kit, Network, Producer, TestDatabase};
use tower_inbox::{Delivery, Preset, Source, Tx};

use crate::support::{On, SECRET, app, app_with, append, kudos, ledger, on_each_database};

on_each_database!(
    a_producer_whose_receiver_is_away_comes_again_by_its_schedule,
    what_comes_out_of_order_is_applied_in_order,
    a_gap_that_stays_becomes_dead_letters,
    a_replay_burst_changes_nothing,
);

fn events(many: usize) -> Vec<Event> {
    let event = |n: usize| testkit::event(format!("evt_{n}")).data(json!({"amount": n}));
    (1..=many).map(event).collect()
}

/// In one stream, from 1 on.
fn stream(many: i64) -> Vec<Event> {
    let event = |n: i64| testkit::event(format!("evt_{n}")).stream("acct", n);
    (1..=many).map(event).collect()
}

fn producer<D: On>(kit: &Kit<D>, preset: Preset) -> Producer {
    kit.producer(preset, SECRET).to("/webhooks/crm")
}

/// Kudos: six attempts within 1 h 42 min 30 s.
async fn a_producer_whose_receiver_is_away_comes_again_by_its_schedule<D: On>(db: TestDatabase<D>) {
    let (kit, clock) = app(&db, kudos()).await;
    let start = clock.now();
    let minutes = Duration::from_secs(40 * 60);
    let kudos = producer(&kit, Preset::KUDOS).network(Network::perfect().down_for(minutes));
    let story = kudos.deliver(&events(1)[0]).await;
    story
        .assert_applied_once()
        .assert_ended(Ending::Delivered)
        .assert_runs(1);
    let passed = clock.now().since(start);
    assert!(passed >= minutes && passed < Duration::from_secs(7_688));
    // 2 min 30 s, 12 min 30 s, 42 min 30 s after the first one, and 25 % more or less.
    assert!((5..=6).contains(&story.attempts().len()), "{story}");
    let never = producer(&kit, Preset::KUDOS).network(Network::perfect().down_for(Duration::MAX));
    let story = never.deliver(&testkit::event("evt_2")).await;
    story
        .assert_ended(Ending::Exhausted)
        .assert_attempts(6)
        .assert_not_applied();
}

/// §5.1, §5.6: whatever order, duplicates and lost answers there are.
async fn what_comes_out_of_order_is_applied_in_order<D: On>(db: TestDatabase<D>) {
    let (kit, _) = app(&db, kudos()).await;
    let network = Network::perfect()
        .reorder(6)
        .duplicates(0.3)
        .drop_answers(0.3);
    let kudos = producer(&kit, Preset::KUDOS).network(network);
    for story in kudos.run(&stream(12)).await {
        story.assert_applied_once();
    }
    kit.assert_effects("SELECT COUNT(*) FROM ledger", 12).await;
}

/// §5.4: within the recovery window of `sequenced`, 5 minutes.
async fn a_gap_that_stays_becomes_dead_letters<D: On>(db: TestDatabase<D>) {
    let source = Source::sequenced("crm").secrets([SECRET]);
    let (kit, clock) = app(&db, source).await;
    let gap = Network::perfect().leave_out("evt_2");
    let sequenced = producer(&kit, Preset::SEQUENCED).network(gap);
    let stories = sequenced.run(&stream(3)).await;
    stories[0].assert_applied_once();
    stories[1].assert_attempts(0);
    stories[2].assert_ended(Ending::Exhausted);
    clock.advance(Duration::from_secs(300));
    kit.settled().await;
    kit.story("evt_3").await.assert_dead(Reason::Gap);
    // It comes back by itself.
    kit.send(
        stream(2)[1]
            .request(Preset::SEQUENCED, SECRET)
            .to("/webhooks/crm"),
    )
    .await
    .assert_applied_once();
    kit.settled().await;
    kit.story("evt_3").await.assert_applied_once();
}

/// Kudos: "your inbox dedupes them away as duplicates"; §7.4.
async fn a_replay_burst_changes_nothing<D: On>(db: TestDatabase<D>) {
    let (kit, clock) = app(&db, kudos()).await;
    let kudos = producer(&kit, Preset::KUDOS);
    let events = events(5);
    kudos.run(&events).await;
    clock.advance(Duration::from_secs(72 * 3_600));
    for story in kudos.replay(&events).await {
        story.assert_applied_once().assert_duplicate();
    }
    kit.assert_effects("SELECT COUNT(*) FROM ledger", 5).await;
    let controls = kit.stories().await.into_iter().skip(5);
    let controls: Vec<_> = controls
        .map(|story| story.reply().outcome().to_owned())
        .collect();
    assert_eq!(controls, ["accepted", "accepted"]);
}

/// A handler that answers as it is told by the event's type on its first run, then 204.
fn answers_first<D: On>(status: u16, retry_after: Option<&'static str>) -> Router {
    let runs = Arc::new(AtomicUsize::new(0));
    let handler = move |mut tx: Tx<D>, event: Delivery| {
        let runs = Arc::clone(&runs);
        async move {
            append(&mut tx, &event).await;
            let first = runs.fetch_add(1, Ordering::Relaxed) == 0;
            let status = if first { status } else { 204 };
            let mut response = http::Response::new(axum::body::Body::empty());
            *response.status_mut() = StatusCode::from_u16(status).expect("a status");
            if let Some(after) = retry_after.filter(|_| first) {
                let after = after.parse().expect("a value");
                response.headers_mut().insert("retry-after", after);
            }
            response
        }
    };
    Router::new().route("/webhooks/{any}", post(handler))
}

/// Kudos: a `Retry-After` on 429 instead of the next step; other 4xx are terminal.
#[tokio::test]
async fn codes_and_retry_after_are_the_producers_own() {
    for (status, retry_after, verdict, pause) in [
        (429, Some("1200"), Ending::Delivered, Some(1_200..=1_200)),
        (503, None, Ending::Delivered, Some(22..=38)),
        (418, None, Ending::Refused, None),
    ] {
        let db = testkit::sqlite().await;
        let router = answers_first::<sqlx::Sqlite>(status, retry_after);
        let (kit, _) = app_with(&db, kudos(), router).await;
        let story = producer(&kit, Preset::KUDOS).deliver(&events(1)[0]).await;
        story.assert_ended(verdict);
        let attempts = story.attempts();
        let paused = attempts
            .get(1)
            .map(|next| next.at.since(attempts[0].at).as_secs());
        match pause {
            Some(pause) => assert!(pause.contains(&paused.expect("a second one")), "{story}"),
            None => assert_eq!(paused, None, "{story}"),
        }
    }
}

/// Of producers whose own schedule is not known: their retry span, and their codes.
#[tokio::test]
async fn any_preset_can_be_played() {
    for preset in Preset::ALL {
        let db = testkit::sqlite().await;
        let source = Source::new("crm", *preset)
            .secrets([SECRET])
            .url("https://a.test");
        let (kit, clock) = app(&db, source).await;
        let (start, down) = (clock.now(), Network::perfect().down_for(Duration::MAX));
        let away = producer(&kit, *preset)
            .signed_url("https://a.test")
            .network(down);
        let story = away.deliver(&testkit::event("evt_1")).await;
        story.assert_ended(Ending::Exhausted);
        let passed = clock.now().since(start);
        assert!(passed <= preset.retry_span, "{}: {passed:?}", preset.name);
        let there = producer(&kit, *preset).signed_url("https://a.test");
        let story = there.deliver(&testkit::event("evt_2")).await;
        // To Linear a handler's 204 is a failure, and a duplicate's 200 is not.
        story.assert_applied_once().assert_ended(Ending::Delivered);
    }
}

/// §6.1: the secrets change hands while events are on their way.
#[tokio::test]
async fn a_rotation_in_the_middle_of_the_traffic_loses_nothing() {
    let db = testkit::sqlite().await;
    let (kit, _) = app(&db, Source::kudos("crm").secrets(["old"])).await;
    let kudos = kit.producer(Preset::KUDOS, "old").to("/webhooks/crm");
    let (inbox, own) = (kit.inbox(), kudos.clone());
    let rotation = Network::perfect().each(move |sending| {
        let secrets = inbox.secrets("crm").expect("the source");
        match sending.attempts_before {
            3 => secrets
                .rotate(
                    tower_inbox::Secret::text("new")
                        .expect("a secret")
                        .labelled("new"),
                )
                .expect("a place"),
            5 => own.sign_with(["old", "new"]),
            7 => secrets.revoke("secret-1").expect("it is there"),
            9 => own.sign_with(["new"]),
            _ => {}
        }
        None
    });
    for story in kudos.network(rotation).run(&events(12)).await {
        story.assert_applied_once().assert_attempts(1);
    }
}

#[tokio::test]
async fn a_clock_that_is_off_is_refused() {
    let db = testkit::sqlite().await;
    let (kit, _) = app(&db, kudos()).await;
    let off = Duration::from_secs(301);
    for skewed in [
        producer(&kit, Preset::KUDOS).clock_ahead(off + Duration::from_secs(1)),
        producer(&kit, Preset::KUDOS).clock_behind(off),
    ] {
        let story = skewed.deliver(&testkit::event("evt_1")).await;
        story.assert_unauthorized().assert_ended(Ending::Refused);
    }
}

#[tokio::test]
async fn the_same_seed_makes_the_same_run() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let db = testkit::sqlite().await;
        let (kit, _) = app(&db, kudos()).await;
        let network = Network::perfect().reorder(4).drop_answers(0.5);
        let kudos = producer(&kit, Preset::KUDOS).network(network).seed(7);
        let stories = kudos.run(&events(8)).await;
        let counts = stories.iter().map(|story| {
            let start = stories
                .iter()
                .filter_map(|story| Some(story.attempts().first()?.at))
                .min();
            let start = start.expect("attempts");
            story
                .attempts()
                .iter()
                .map(|at| at.at.since(start))
                .collect::<Vec<_>>()
        });
        runs.push(counts.collect::<Vec<_>>());
        assert!(stories[0].to_string().contains("seed 7"));
    }
    assert_eq!(runs[0], runs[1]);
}

/// 72 hours of the brief, in no time.
#[tokio::test]
async fn three_days_pass_at_once() {
    let db = testkit::sqlite().await;
    let (kit, clock) = app(&db, kudos()).await;
    let began = Instant::now();
    let kudos = producer(&kit, Preset::KUDOS);
    for (hour, event) in events(72).iter().enumerate() {
        kudos.deliver(event).await.assert_applied_once();
        clock.advance(Duration::from_secs(3_600));
        assert!(hour < 72);
    }
    assert!(began.elapsed() < Duration::from_secs(60));
}

/// Over a real socket, a hundred times as fast as the schedule of `sequenced`: 1 s, 4 s, …
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_over_a_socket_takes_its_time() {
    let db = testkit::sqlite().await;
    db.execute("CREATE TABLE ledger (id TEXT, sequence INTEGER)")
        .await;
    let source = Source::sequenced("crm").secrets([SECRET]);
    let inbox = crate::support::builder(&db, source)
        .build()
        .await
        .expect("an inbox");
    let app = inbox.mount("crm", ledger::<sqlx::Sqlite>());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let served = app.clone();
    let server = tokio::spawn(async move { axum::serve(listener, served).await });
    let kit = Kit::new(&inbox, app);
    let network = Network::perfect()
        .reorder(3)
        .down_for(Duration::from_secs(4));
    let sequenced = producer(&kit, Preset::SEQUENCED)
        .over(&url)
        .time_scale(100.0);
    let began = Instant::now();
    for story in sequenced.network(network).run(&stream(3)).await {
        story.assert_applied_once().assert_ended(Ending::Delivered);
    }
    assert!(
        began.elapsed() >= Duration::from_millis(50),
        "1 s and 4 s of the schedule"
    );
    // Of a receiver elsewhere only the answers are known.
    let elsewhere = testkit::producer(Preset::SEQUENCED, SECRET)
        .over(&url)
        .to("/webhooks/crm");
    let story = elsewhere.deliver(&stream(1)[0]).await;
    story.assert_duplicate().assert_ended(Ending::Delivered);
    assert_eq!(story.letter(), None);
    server.abort();
}
