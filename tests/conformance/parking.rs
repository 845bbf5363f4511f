//! §5.3, §5.4, §5.8: what is parked, how much of it, and for how long.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tower_inbox::Origin;

use crate::db::TestDb;
use crate::kit::{Call, Event, World, eventually, numbered, within};

suite![
    a_drained_request_is_the_same_as_a_live_one,
    kept_headers_are_kept_live_and_parked,
    over_the_bound_on_events_what_would_be_parked_gets_429,
    over_the_bound_on_bytes_what_would_be_parked_gets_429,
    over_the_bound_of_its_stream_what_would_be_parked_gets_429_and_other_streams_park,
    the_bound_of_a_stream_counts_what_other_receivers_have_parked,
    over_the_bound_of_its_stream_a_dead_letter_keeps_no_body,
    a_crowd_of_streams_does_not_get_over_the_bound_together,
    a_gap_that_nobody_fills_ends_in_a_dead_letter_and_comes_back_by_itself,
    a_dead_letter_of_a_gap_comes_back_only_by_a_redelivery_where_the_source_says_so,
    the_window_counts_from_the_parking,
];

/// A request as a handler sees it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    method: http::Method,
    uri: http::Uri,
    tenant: String,
    headers: BTreeMap<String, Vec<HeaderValue>>,
    body: Bytes,
    source: String,
    event_type: Option<String>,
}

type Log = Arc<Mutex<Vec<(Origin, Seen)>>>;

fn seeing<D: TestDb>(db: &D, log: &Log) -> crate::kit::Setup<D> {
    let log = Arc::clone(log);
    World::<D>::over(db).handler(move |mut call: Call<D>| {
        let log = Arc::clone(&log);
        async move {
            call.append().await;
            let mut headers = BTreeMap::<_, Vec<_>>::new();
            for (name, value) in call.request.headers() {
                headers
                    .entry(name.to_string())
                    .or_default()
                    .push(value.clone());
            }
            let seen = Seen {
                method: call.request.method().clone(),
                uri: call.request.uri().clone(),
                tenant: call.tenant.clone(),
                headers,
                body: call.request.body().clone(),
                source: call.delivery.source().to_owned(),
                event_type: call.delivery.event_type().map(str::to_owned),
            };
            log.lock().unwrap().push((call.delivery.origin(), seen));
        }
    })
}

/// A delivery with all that could get lost on the way through a table.
fn rich<D: TestDb>(world: &World<D>, sequence: u64) -> (Request<Body>, Bytes) {
    // Blanks, an escape and the order of the members are of no use to anybody but must come back.
    let body = format!(
        "\n{{ \"event_type\":\"t\",\t\"data\": {{\"b\":1, \"a\":\"\\u00e9 é\"}}, \"event_id\":\"evt_{sequence}\",\r\n
        \"sequence\": {sequence}, \"correlation_id\":\"acct\"}} "
    );
    let body = Bytes::from(body);
    let mut request = world.signed(body.clone());
    *request.uri_mut() = "/hooks/a%20b%2Fc?x=1&y=%C3%A9&x=2".parse().unwrap();
    let headers: &mut HeaderMap = request.headers_mut();
    headers.append("x-twice", HeaderValue::from_static("one: two"));
    headers.append("x-twice", HeaderValue::from_static(""));
    headers.insert("x-bytes", HeaderValue::from_bytes(b"\xe9\x80").unwrap());
    headers.insert("user-agent", HeaderValue::from_static("Kudos/1"));
    headers.insert("authorization", HeaderValue::from_static("Bearer private"));
    headers.insert("cookie", HeaderValue::from_static("session=private"));
    headers.insert("connection", HeaderValue::from_static("keep-alive, x-hop"));
    headers.insert("x-hop", HeaderValue::from_static("private"));
    (request, body)
}

/// §5.3: "method, URI, headers, raw body … path parameters included"; signatures and credentials removed both ways.
async fn a_drained_request_is_the_same_as_a_live_one<D: TestDb>(db: D) {
    let log = Log::default();
    let world = seeing(&db, &log).start().await;
    let (second, second_body) = rich(&world, 2);
    let (first, first_body) = rich(&world, 1);
    world.post(second).await.is_parked(1);
    world.post(first).await.is(200, "applied");
    eventually("both have run", async || log.lock().unwrap().len() == 2).await;
    let log = log.lock().unwrap();
    let [(Origin::Live, live), (Origin::Drained, drained)] = &log[..] else {
        panic!("{log:?}")
    };
    assert_eq!((&live.body, &drained.body), (&first_body, &second_body));
    assert_eq!(live.tenant, "a b/c");
    assert_eq!(
        *live,
        Seen {
            body: first_body.clone(),
            ..drained.clone()
        }
    );
    for private in [
        "x-kudos-signature",
        "authorization",
        "cookie",
        "connection",
        "x-hop",
    ] {
        assert!(!live.headers.contains_key(private), "{private}");
    }
    assert_eq!(live.headers["x-twice"], ["one: two", ""]);
    assert_eq!(
        live.headers["x-bytes"],
        [HeaderValue::from_bytes(b"\xe9\x80").unwrap()]
    );
}

/// §5.3: "a setting keeps named ones".
async fn kept_headers_are_kept_live_and_parked<D: TestDb>(db: D) {
    let log = Log::default();
    let world = seeing(&db, &log)
        .source(|source| {
            source
                .keep_header(HeaderName::from_static("x-kudos-signature"))
                .keep_header(HeaderName::from_static("authorization"))
        })
        .start()
        .await;
    world.post(rich(&world, 2).0).await.is_parked(1);
    world.post(rich(&world, 1).0).await.is(200, "applied");
    eventually("both have run", async || log.lock().unwrap().len() == 2).await;
    for (origin, seen) in &*log.lock().unwrap() {
        for kept in ["x-kudos-signature", "authorization"] {
            assert!(seen.headers.contains_key(kept), "{origin:?}: {kept}");
        }
        assert!(!seen.headers.contains_key("cookie"));
    }
}

/// §5.8: and what was refused is not there, so that its retry is welcome when there is room.
async fn over_the_bound_on_events_what_would_be_parked_gets_429<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.park_limit(2))
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 3)).await.is_parked(1);
    world
        .send(&numbered("acct", 4))
        .await
        .is_problem_about(429, "failed", "parked");
    world
        .send(&numbered("other", 2))
        .await
        .is_problem_about(429, "failed", "parked");
    // Those that have their place are answered as ever, and nobody else is held up.
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("other", 1)).await.is_applied();
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 3);
    world.send(&numbered("acct", 1)).await.is_applied();
    // At once: not only when the parked ones are counted again.
    let room = eventually("there is room again", async || {
        world.send(&numbered("acct", 5)).await.outcome() == "parked"
    });
    within(Duration::from_secs(3), room).await;
    eventually("those before it are drained", async || {
        world.sequences("acct").await.len() == 3
    })
    .await;
    world.send(&numbered("acct", 4)).await.is_applied();
    eventually("all is applied", async || {
        world.sequences("acct").await.len() == 5
    })
    .await;
    assert_eq!(world.sequences("acct").await, [1, 2, 3, 4, 5]);
}

/// §5.8
async fn over_the_bound_on_bytes_what_would_be_parked_gets_429<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.park_bytes(1_500))
        .start()
        .await;
    let heavy = |n| numbered("acct", n).with("filler", "x".repeat(1_000));
    world.send(&heavy(2)).await.is_parked(1);
    world
        .send(&heavy(3))
        .await
        .is_problem_about(429, "failed", "parked");
    world.send(&numbered("acct", 3)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("all is applied", async || world.ledger().await.len() == 3).await;
}

/// §5.8: "bounded per correlation …, in number and in bytes"
async fn over_the_bound_of_its_stream_what_would_be_parked_gets_429_and_other_streams_park<
    D: TestDb,
>(
    db: D,
) {
    let world = World::<D>::over(&db)
        .source(|source| source.park_limit_per_stream(2).park_bytes_per_stream(4_000))
        .start()
        .await;
    for n in [2, 3] {
        world.send(&numbered("acct", n)).await.is_parked(1);
    }
    for _ in 0..2 {
        let reply = world.send(&numbered("acct", 4)).await;
        reply.is_problem_about(429, "failed", "correlation id");
    }
    world.send(&numbered("acct", 2)).await.is_parked(1);
    let heavy = |n| numbered("heavy", n).with("filler", "x".repeat(2_500));
    world.send(&heavy(2)).await.is_parked(1);
    let reply = world.send(&heavy(3)).await;
    reply.is_problem_about(429, "failed", "correlation id");
    world.send(&numbered("other", 2)).await.is_parked(1);
    // What is applied makes room at once.
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("they are drained", async || {
        world.sequences("acct").await == [1, 2, 3]
    })
    .await;
    for n in [5, 6] {
        world.send(&numbered("acct", n)).await.is_parked(4);
    }
    world.send(&numbered("acct", 7)).await.is(429, "failed");
    world.send(&numbered("acct", 4)).await.is_applied();
}

/// §5.8, in two processes: a stream that is new to one of them is counted when it parks.
async fn the_bound_of_a_stream_counts_what_other_receivers_have_parked<D: TestDb>(db: D) {
    let receiver = async || {
        let setup = World::<D>::over(&db).source(|source| source.park_limit_per_stream(3));
        setup.start().await
    };
    let (one, other) = (receiver().await, receiver().await);
    for n in [2, 3, 4] {
        one.send(&numbered("acct", n)).await.is_parked(1);
    }
    let reply = other.send(&numbered("acct", 5)).await;
    reply.is_problem_about(429, "failed", "correlation id");
}

/// §5.8: "dead letters then keep id, headers and reason only"
async fn over_the_bound_of_its_stream_a_dead_letter_keeps_no_body<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.park_limit_per_stream(1))
        .answers(|_| 422)
        .start()
        .await;
    let context = |id: &str| Event::new(id).with("correlation_id", "acct");
    for id in ["evt_1", "evt_2"] {
        world.send(&context(id)).await.is(422, "rejected");
    }
    world.send(&Event::new("evt_3")).await.is(422, "rejected");
    let bodies =
        "SELECT event_id FROM {p}pending WHERE reason = 3 AND LENGTH(body) > 0 ORDER BY event_id";
    assert_eq!(world.texts(bodies).await, ["evt_1", "evt_3"]);
    assert_eq!(world.in_state(3).await, 3);
}

/// §5.8: no check and then act.
async fn a_crowd_of_streams_does_not_get_over_the_bound_together<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.park_limit(5))
        .connections(12)
        .start()
        .await;
    let sent: Vec<_> = (0..24)
        .map(|n| world.spawn(&numbered(&format!("acct-{n}"), 2)))
        .collect();
    for reply in sent {
        let reply = reply.await.unwrap();
        // 503: too contended, on MySQL, where new streams lock the gap that they belong into.
        assert!(matches!(reply.status, 202 | 429 | 503), "{reply:?}");
    }
    // One that gave its room back, to begin again, may have had others refused meanwhile; more than five is never.
    let parked = world.in_state(2).await;
    assert!((1..=5).contains(&parked), "{parked}");
    for n in parked..5 {
        world
            .send(&numbered(&format!("late-{n}"), 2))
            .await
            .is_parked(1);
    }
    let full = world.send(&numbered("late", 2)).await;
    full.is_problem_about(429, "failed", "parked");
    assert_eq!(world.in_state(2).await, 5);
}

const WINDOW: Duration = Duration::from_millis(300);
const GAPS: &str = "SELECT COUNT(*) FROM {p}pending WHERE reason = 1";

/// §5.4
async fn a_gap_that_nobody_fills_ends_in_a_dead_letter_and_comes_back_by_itself<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.recovery_window(WINDOW))
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 3)).await.is_parked(1);
    eventually("both are dead letters", async || {
        world.number(GAPS).await == 2
    })
    .await;
    assert_eq!(world.in_state(3).await, 2);
    // §3: "every redelivery while it waits or is dead with reason gap".
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("they come back", async || world.ledger().await.len() == 3).await;
    assert_eq!(world.sequences("acct").await, [1, 2, 3]);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
    assert_eq!(world.in_state(1).await, 3);
}

/// §5.4: "a setting turns that off".
async fn a_dead_letter_of_a_gap_comes_back_only_by_a_redelivery_where_the_source_says_so<
    D: TestDb,
>(
    db: D,
) {
    let world = World::<D>::over(&db)
        .source(|source| source.recovery_window(WINDOW).revive_gaps(false))
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    eventually("it is a dead letter", async || {
        world.number(GAPS).await == 1
    })
    .await;
    world.send(&numbered("acct", 1)).await.is_applied();
    // Another stream is parked and drained meanwhile: the worker has been round.
    world.send(&numbered("other", 2)).await.is_parked(1);
    world.send(&numbered("other", 1)).await.is_applied();
    eventually("the other stream is drained", async || {
        world.sequences("other").await.len() == 2
    })
    .await;
    assert_eq!(
        (world.sequences("acct").await, world.number(GAPS).await),
        (vec![1], 1)
    );
    world.send(&numbered("acct", 2)).await.is_applied();
    assert_eq!(world.sequences("acct").await, [1, 2]);
    assert_eq!(world.number(GAPS).await, 0);
}

/// §5.4: a redelivery does not start the window again, and what is due is no gap however long it waits.
async fn the_window_counts_from_the_parking<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| {
            source
                .recovery_window(WINDOW)
                .backoff([Duration::from_secs(3_600)])
        })
        .answers(|call: &Call<D>| {
            match (call.delivery.correlation_id(), call.delivery.sequence()) {
                (Some("due"), Some(2)) => 503,
                _ => 0,
            }
        })
        .start()
        .await;
    world.send(&numbered("due", 2)).await.is_parked(1);
    world.send(&numbered("due", 1)).await.is_applied();
    eventually("the due one has failed", async || {
        world.probe.runs("evt_due_2") == 1
    })
    .await;
    world.send(&numbered("gap", 2)).await.is_parked(1);
    eventually(
        "the gap is given up although it is sent again and again",
        async || {
            world.send(&numbered("gap", 2)).await.is_parked(1);
            world.number(GAPS).await == 1
        },
    )
    .await;
    // The due one, parked before it, waits for its handler and for no gap.
    let due = "SELECT COUNT(*) FROM {p}pending WHERE correlation_id = 'due' AND reason IS NULL";
    assert_eq!(world.number(due).await, 1);
}
