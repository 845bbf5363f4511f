//! §3, second row: where a source stores answers, a duplicate gets the first one again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use crate::db::TestDb;
use crate::kit::{Call, Event, Gate, Reply, Setup, World, eventually, numbered};

suite![
    a_duplicate_gets_the_first_answer_byte_for_byte,
    the_answer_of_a_drained_run_is_the_first_answer,
    duplicates_that_waited_get_it_too,
    an_answer_whose_body_breaks_is_a_500_and_nothing_is_applied,
    an_answer_too_large_to_keep_goes_out_whole_and_forbids_a_second_run,
    what_failed_is_not_stored,
    without_the_setting_no_answer_is_stored,
    answers_go_when_their_events_go,
    a_transaction_that_the_handler_ended_is_a_500_all_the_same,
];

/// Answers each run differently, with headers of all kinds.
fn answering<D: TestDb>(db: &D) -> Setup<D> {
    World::<D>::over(db)
        .source(|source| source.store_answers(true))
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            let mut response =
                Response::new(Body::from(body_of(call.delivery.event_id(), call.run)));
            *response.status_mut() = http::StatusCode::CREATED;
            for (name, value) in [
                ("link", "</a>"),
                ("link", "</b>"),
                ("content-type", "application/octet-stream"),
                ("set-cookie", "session=another-callers"),
                ("date", "Thu, 01 Jan 1970 00:00:00 GMT"),
            ] {
                let (name, value) = (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                );
                response.headers_mut().append(name, value);
            }
            response
        })
}

fn body_of(event_id: &str, run: usize) -> Vec<u8> {
    [
        b"\0\xff",
        event_id.as_bytes(),
        &[u8::try_from(run).expect("few")],
    ]
    .concat()
}

#[track_caller]
fn is_first_answer(reply: &Reply, event_id: &str) {
    reply.is(201, "duplicate");
    assert_eq!(reply.body, body_of(event_id, 1), "{reply:?}");
    let links: Vec<_> = reply.headers.get_all("link").iter().collect();
    assert_eq!(links, ["</a>", "</b>"]);
    assert_eq!(reply.headers["content-type"], "application/octet-stream");
    assert!(!reply.headers.contains_key("set-cookie"), "{reply:?}");
    assert!(!reply.headers.contains_key("date"), "{reply:?}");
}

/// §2.4, §3. From this process's memory, and by one statement from the database.
async fn a_duplicate_gets_the_first_answer_byte_for_byte<D: TestDb>(db: D) {
    let world = answering(&db).remembering().start().await;
    let event = Event::new("evt_1");
    let first = world.send(&event).await;
    first.is(201, "applied");
    assert_eq!(first.body, body_of("evt_1", 1));
    assert!(
        first.headers.contains_key("set-cookie"),
        "the handler's own"
    );
    let other = answering(&db).start().await;
    is_first_answer(&other.send(&event).await, "evt_1");
    // What a process has seen itself it remembers.
    assert_eq!(world.execute("DELETE FROM {p}answer").await, 1);
    is_first_answer(&world.send(&event).await, "evt_1");
    assert_eq!(world.applied().await, ["evt_1"]);
}

/// §3
async fn the_answer_of_a_drained_run_is_the_first_answer<D: TestDb>(db: D) {
    let world = answering(&db).start().await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is(201, "applied");
    eventually("2 is drained", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
    is_first_answer(&world.send(&numbered("acct", 2)).await, "evt_acct_2");
    let other = answering(&db).start().await;
    is_first_answer(&other.send(&numbered("acct", 2)).await, "evt_acct_2");
}

/// §4.8
async fn duplicates_that_waited_get_it_too<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let world = World::<D>::over(&db)
        .source(|source| source.store_answers(true))
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                gate.pass().await;
                "the answer"
            }
        })
        .start()
        .await;
    let event = Event::new("evt_1");
    let first = world.spawn(&event);
    gate.reached_by(1).await;
    let others: Vec<_> = (0..5).map(|_| world.spawn(&event)).collect();
    // In another process the row's lock is what they wait for.
    let elsewhere = answering(&db).start().await;
    let far = elsewhere.spawn(&event);
    eventually("it is in its transaction", async || {
        elsewhere.acquired() >= 2
    })
    .await;
    gate.open();
    first.await.expect("an answer").is(200, "applied");
    for other in others.into_iter().chain([far]) {
        let reply = other.await.expect("an answer");
        reply.is(200, "duplicate");
        assert_eq!(reply.body, "the answer");
    }
}

/// §3, §4.1. Its body is read before the commit.
async fn an_answer_whose_body_breaks_is_a_500_and_nothing_is_applied<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.store_answers(true))
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            match call.run {
                1 => Body::new(Broken(false)),
                _ => Body::from("whole"),
            }
        })
        .start()
        .await;
    let event = Event::new("evt_1");
    world.send(&event).await.is(500, "failed");
    assert!(world.applied().await.is_empty());
    assert_eq!(world.send(&event).await.is(200, "applied").body, "whole");
    assert_eq!(world.send(&event).await.is(200, "duplicate").body, "whole");
    world.pool_is_whole().await;
}

/// A body whose second frame is an error.
struct Broken(bool);

impl http_body::Body for Broken {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
        let begun = std::mem::replace(&mut self.0, true);
        std::task::Poll::Ready(Some(if begun {
            Err(std::io::Error::other("the body breaks"))
        } else {
            Ok(http_body::Frame::data(Bytes::from_static(b"wh")))
        }))
    }
}

/// §3
async fn an_answer_too_large_to_keep_goes_out_whole_and_forbids_a_second_run<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.store_answers(true).answer_limit(10))
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            "eleven byte"
        })
        .start()
        .await;
    let event = Event::new("evt_1");
    assert_eq!(
        world.send(&event).await.is(200, "applied").body,
        "eleven byte"
    );
    world.send(&event).await.is_duplicate();
    assert_eq!(world.probe.runs("evt_1"), 1);
    assert_eq!(
        world
            .number("SELECT COUNT(*) FROM {p}answer WHERE body IS NULL")
            .await,
        1
    );
}

/// It may go better another time; and a verdict is a dead letter, which a redelivery tries anew (§5.11).
async fn what_failed_is_not_stored<D: TestDb>(db: D) {
    for status in [503, 429, 422] {
        let world = World::<D>::over(&db)
            .source(|source| source.store_answers(true))
            .answers(move |call| if call.run == 1 { status } else { 0 })
            .start()
            .await;
        let event = Event::new(&format!("evt_{status}"));
        assert_eq!(world.send(&event).await.status, status);
        let stored = format!(
            "SELECT COUNT(*) FROM {{p}}answer WHERE event_id = '{}'",
            event.id()
        );
        assert_eq!(world.number(&stored).await, 0);
        world.send(&event).await.is(204, "applied");
        world.send(&event).await.is(204, "duplicate");
        world.stop().await;
    }
}

/// §3
async fn without_the_setting_no_answer_is_stored<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}answer").await, 0);
}

/// §7.1
async fn answers_go_when_their_events_go<D: TestDb>(db: D) {
    let setup = || {
        answering(&db).source(|source| {
            source
                .retention(std::time::Duration::from_millis(200))
                .insecure_short_retention()
        })
    };
    let world = setup().start().await;
    for n in 0..3 {
        world.send(&Event::new(&format!("evt_{n}"))).await;
    }
    eventually("nothing is left", async || {
        world.number("SELECT COUNT(*) FROM {p}event").await == 0
            && world.number("SELECT COUNT(*) FROM {p}answer").await == 0
    })
    .await;
}

/// §4.4
async fn a_transaction_that_the_handler_ended_is_a_500_all_the_same<D: TestDb>(db: D) {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let world = World::<D>::over(&db)
        .source(|source| source.store_answers(true))
        .handler(move |mut call: Call<D>| {
            let count = Arc::clone(&count);
            async move {
                call.append().await;
                if count.fetch_add(1, Ordering::Relaxed) == 0 {
                    D::execute(&mut call.tx, "COMMIT").await.expect("it does");
                }
                "the answer"
            }
        })
        .start()
        .await;
    let event = Event::new("evt_1");
    world.send(&event).await.is(500, "failed");
    world.send(&event).await.is_duplicate();
    assert_eq!(world.applied().await, ["evt_1"]);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    world.pool_is_whole().await;
}
