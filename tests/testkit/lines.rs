//! What a story says where a plain answer would not: its last line, bodies, reasons, numbers.

use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse as _;
use axum::routing::post;
use http::{Request, StatusCode};
use tower::ServiceExt as _;
use tower_inbox::testkit::{
    self, Ending, Event, Kit, Network, Reason, SignedRequest, State, TestDatabase, VirtualClock,
    Way,
};
use tower_inbox::{Delivery, Origin, Preset, Tx};

use crate::support::{
    On, SECRET, app, app_with, append, builder, kudos, ledger, on_each_database, panics,
};

on_each_database!(
    what_came_without_the_kit_is_looked_up,
    a_gap_that_was_given_up_has_a_line,
    a_backoff_has_a_line,
    other_content_has_a_line,
);

fn deliver(event: &Event) -> SignedRequest {
    event.request(Preset::KUDOS, SECRET).to("/webhooks/crm")
}

fn at(sequence: i64) -> Event {
    testkit::event(format!("evt_{sequence}")).stream("acct", sequence)
}

async fn what_came_without_the_kit_is_looked_up<D: On>(db: TestDatabase<D>) {
    db.execute("CREATE TABLE ledger (id VARCHAR(255), sequence BIGINT)")
        .await;
    let inbox = builder(&db, kudos()).build().await.expect("an inbox");
    let app = inbox.mount("crm", ledger::<D>());
    let kit = Kit::new(&inbox, app.clone());
    let request: Request<axum::body::Body> = deliver(&testkit::event("evt_1")).into();
    let answer = app.oneshot(request).await.expect("an answer");
    assert_eq!(answer.status(), 204);
    let story = kit.story("evt_1").await;
    assert_eq!(story.state(), Some(State::Applied));
    assert_eq!(story.source(), Some("crm"));
    let last = "never sent through this kit; in the database: Applied";
    assert!(story.to_string().ends_with(last), "{story}");
    kit.send(deliver(&testkit::event("evt_2"))).await;
    let mistyped = kit.story("evt_3").await.to_string();
    let last = "never sent through this kit; it knows: evt_2";
    assert!(mistyped.ends_with(last), "{mistyped}");
}

/// §5.4
async fn a_gap_that_was_given_up_has_a_line<D: On>(db: TestDatabase<D>) {
    let (kit, clock) = app(&db, kudos()).await;
    let kudos = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
    let network = Network::perfect().leave_out("evt_1");
    let stories = kudos.network(network).run(&[at(1), at(2)]).await;
    let left_out = stories[0].to_string();
    assert!(
        left_out.ends_with("left out by the network: never sent"),
        "{left_out}"
    );
    assert_eq!(kit.stories().await.len(), 1, "of what was sent");
    clock.advance(Duration::from_secs(80 * 3_600));
    kit.settled().await;
    let said = panics({
        let parked = stories[1].clone();
        async move { drop(parked.assert_dead(Reason::Gap).clone()) }
    })
    .await;
    let later = " s; kit.story(\"evt_2\") has what came later)\n\nevt_2";
    assert!(said.contains(later), "{said}");
    let story = kit.story("evt_2").await;
    story.assert_dead(Reason::Gap);
    let line = "its gap was not filled in time: it becomes a dead letter";
    assert!(story.to_string().contains(line), "{story}");
}

/// §5.5
async fn a_backoff_has_a_line<D: On>(db: TestDatabase<D>) {
    let handler = |mut tx: Tx<D>, event: Delivery| async move {
        append(&mut tx, &event).await;
        match event.origin() {
            Origin::Drained => StatusCode::BAD_GATEWAY,
            _ => StatusCode::NO_CONTENT,
        }
    };
    let router = Router::new().route("/webhooks/{any}", post(handler));
    let (kit, clock) = app_with(&db, kudos(), router).await;
    kit.send(deliver(&at(2))).await;
    kit.send(deliver(&at(1))).await;
    kit.settled().await;
    let story = kit.story("evt_2").await.to_string();
    assert!(story.contains("the worker tries it again in "), "{story}");
    let last = "Parked, 2 of acct, 1 attempt in vain, the last one with 502";
    assert!(story.contains(last), "{story}");
    for _ in 0..9 {
        clock.advance(Duration::from_secs(500));
        kit.settled().await;
    }
    let story = kit.story("evt_2").await.to_string();
    let line = "attempt 10 of the worker's was its last: it becomes a dead letter";
    assert!(story.contains(line), "{story}");
    assert!(story.contains(", 10 attempts in vain"), "{story}");
}

/// §4.12: from memory, and from the database.
async fn other_content_has_a_line<D: On>(db: TestDatabase<D>) {
    let (kit, clock) = app(&db, kudos()).await;
    let (one, other) = (
        testkit::event("evt_1").data(1),
        testkit::event("evt_1").data(2),
    );
    kit.send(deliver(&one)).await.assert_applied_once();
    let story = kit.send(deliver(&other)).await.to_string();
    assert!(story.contains("but with other content: refused"), "{story}");
    assert!(story.contains("its body: {"), "{story}");
    // Another process of the same app.
    let inbox = builder(&db, kudos()).clock(clock).build().await;
    let inbox = inbox.expect("an inbox");
    let kit = Kit::new(&inbox, inbox.mount("crm", ledger::<D>()));
    let story = kit.send(deliver(&other)).await.to_string();
    assert!(story.contains("other content"), "{story}");
}

#[tokio::test]
async fn a_receiver_elsewhere_is_known_by_its_answers() {
    let db = testkit::sqlite().await;
    let (kit, _) = app(&db, kudos()).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let routes = kit.inbox().mount("crm", ledger::<sqlx::Sqlite>());
    let server = tokio::spawn(async move { axum::serve(listener, routes).await });
    let elsewhere = testkit::producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
    let story = elsewhere.over(&url).deliver(&testkit::event("evt_1")).await;
    story
        .assert_answered(204, "applied")
        .assert_ended(Ending::Delivered);
    let text = story.to_string();
    assert!(
        text.ends_with("not asked: the receiver is elsewhere"),
        "{text}"
    );
    for asked in [
        |story: &testkit::Story| drop(story.assert_applied_once().clone()),
        |story: &testkit::Story| drop(story.assert_not_applied().clone()),
        |story: &testkit::Story| drop(story.assert_runs(1).clone()),
        |story: &testkit::Story| drop(story.assert_dead(Reason::Gap).clone()),
    ] {
        let story = story.clone();
        let said = panics(async move { asked(&story) }).await;
        let why =
            "only answers are known of a receiver elsewhere: use assert_answered or assert_ended";
        assert!(said.contains(why), "{said}");
    }
    server.abort();
}

/// A handler that asks for another database's transaction.
#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_transaction_of_another_database_is_named() {
    let db = testkit::sqlite().await;
    let handler = |_: Tx<sqlx::Postgres>| async { StatusCode::NO_CONTENT };
    let router = Router::new().route("/webhooks/{any}", post(handler));
    let (kit, _) = app_with(&db, kudos(), router).await;
    let story = kit.send(deliver(&testkit::event("evt_1"))).await;
    let why = "the handler answers 500: no inbox transaction in this request";
    assert!(story.to_string().contains(why), "{story}");
}

#[tokio::test]
async fn the_beginning_of_a_handlers_own_body_is_shown() {
    let db = testkit::sqlite().await;
    let handler = |_: Tx<sqlx::Sqlite>| async {
        let body = format!("no such\naccount{}", " and so on".repeat(30));
        (StatusCode::UNPROCESSABLE_ENTITY, body).into_response()
    };
    let router = Router::new().route("/webhooks/{any}", post(handler));
    let (kit, _) = app_with(&db, kudos(), router).await;
    let story = kit.send(deliver(&testkit::event("evt_1"))).await;
    let text = story.to_string();
    let line = text.lines().find(|line| line.contains("its body: "));
    let line = line.expect("a line").trim_start();
    assert!(line.starts_with("its body: no such account and"), "{text}");
    assert_eq!(line.chars().count(), "its body: ".len() + 200 + 1, "{text}");
}

#[tokio::test]
async fn an_answer_from_outside_the_inbox_says_so() {
    let db = testkit::sqlite().await;
    let (kit, _) = app(&db, kudos()).await;
    let one = testkit::event("evt_1");
    let nowhere = one.request(Preset::KUDOS, SECRET).to("/nowhere");
    let story = kit.send(nowhere).await.to_string();
    let line =
        "attempt 1, POST /nowhere: answered 404 ; no inbox answered: is the route mounted on it?";
    assert!(story.contains(line), "{story}");
}

/// A request and a producer of its own go where they say.
#[tokio::test]
async fn a_kit_has_a_path_for_all_that_have_none() {
    let db = testkit::sqlite().await;
    db.execute("CREATE TABLE ledger (id TEXT, sequence INTEGER)")
        .await;
    let inbox = builder(&db, kudos()).build().await.expect("an inbox");
    let handler = |mut tx: Tx<sqlx::Sqlite>, event: Delivery| async move {
        append(&mut tx, &event).await;
    };
    let router = Router::new().route("/hooks/crm", post(handler));
    let kit = Kit::new(&inbox, inbox.mount("crm", router)).to("/hooks/crm");
    let one = testkit::event("evt_1").request(Preset::KUDOS, SECRET);
    kit.send(one.clone()).await.assert_applied_once();
    let kudos = kit.producer(Preset::KUDOS, SECRET);
    let story = kudos.deliver(&testkit::event("evt_2")).await;
    story.assert_applied_once();
    assert_eq!(story.attempts()[0].path, "/hooks/crm");
    let own = kit.send(one.to("/elsewhere")).await;
    assert_eq!(own.reply().status, 404);
    let own = kudos.to("/elsewhere").deliver(&testkit::event("evt_3"));
    assert_eq!(own.await.reply().status, 404);
}

#[tokio::test]
async fn deliveries_of_an_event_are_numbered_whoever_made_them() {
    let db = testkit::sqlite().await;
    let (kit, clock) = app(&db, kudos()).await;
    let one = testkit::event("evt_1");
    kit.send(deliver(&one)).await;
    kit.send(deliver(&one)).await;
    clock.advance(Duration::from_secs(60));
    let network = Network::perfect().each(|sending| {
        let is_ours = sending.event_id == "evt_1";
        (is_ours && sending.attempt == 1).then_some(Way::Twice)
    });
    let kudos = kit.producer(Preset::KUDOS, SECRET).to("/webhooks/crm");
    let stories = kudos.network(network).replay(&[one]).await;
    let story = &stories[0];
    let numbers: Vec<_> = story.attempts().iter().map(|at| at.number).collect();
    assert_eq!(numbers, [1, 2, 3, 3]);
    let text = story.to_string();
    for line in [
        "    0.000 s  attempt 1, POST",
        "    0.000 s  attempt 2, POST",
        "   60.000 s  attempt 3, replay, POST",
        "   60.000 s  attempt 3, replay, copy, POST",
    ] {
        assert!(text.contains(line), "{line}\n\n{text}");
    }
}

#[tokio::test]
async fn a_clock_that_is_not_the_inboxs_is_refused() {
    let db = testkit::sqlite().await;
    let clock = VirtualClock::new();
    let inbox = builder(&db, kudos()).build().await.expect("an inbox");
    let (kit, own) = (Kit::new(&inbox, Router::new()), clock.clone());
    let said = panics(async move { kit.clock(&own) }).await;
    assert!(said.contains(".clock(clock.clone())"), "{said}");
    let inbox = builder(&db, kudos()).clock(clock.clone()).build().await;
    let kit = Kit::new(&inbox.expect("an inbox"), Router::new());
    let said = panics(async move { kit.clock(&VirtualClock::new()) }).await;
    assert!(said.contains("goes by another clock"), "{said}");
}

/// Requests of a producer are made in tasks of its own.
#[tokio::test]
async fn an_event_that_cannot_be_sent_tells_whose_run_it_was() {
    let db = testkit::sqlite().await;
    let (kit, _) = app(&db, kudos()).await;
    let stripe = kit.producer(Preset::STRIPE, SECRET);
    let said = panics(stripe.deliver(&at(1))).await;
    assert!(said.starts_with("stripe has no place for the "), "{said}");
    let caller = " (in a run from tests/testkit/lines.rs:";
    assert!(said.contains(caller), "{said}");
}
