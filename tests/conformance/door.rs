//! §2.1 to §2.3: what a delivery meets before anything is known about it, and in which order.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderName, HeaderValue, Method, Request};
use tower_inbox::clock::Timestamp;
use tower_inbox::verify::Tolerance;

use crate::db::TestDb;
use crate::kit::{Event, Feed, World, eventually, http, within};

suite![
    a_refused_signature_gets_a_bare_401,
    signed_times_are_held_to_both_limits_and_the_boundary_passes,
    each_limit_on_signed_times_is_its_own,
    a_captured_delivery_is_refused_once_it_is_too_old,
    the_method_comes_before_the_signature,
    the_signature_headers_come_before_the_announced_size,
    the_announced_size_comes_before_the_body,
    a_stale_delivery_is_refused_before_its_body_is_read,
    the_signature_comes_before_the_envelope,
    a_body_over_the_limit_is_refused_when_its_bytes_are_counted,
    a_body_of_exactly_the_limit_passes,
    a_body_that_comes_too_slowly_gets_408,
    bodies_that_are_being_read_share_a_budget,
];

const SIGNATURE: HeaderName = HeaderName::from_static("x-kudos-signature");

fn now() -> Timestamp {
    crate::kit::now()
}

fn signed_with(secrets: &[&str], at: Timestamp) -> Request<Body> {
    let body = Event::new("evt_1").body();
    http(secrets, at, body.clone()).map(|()| Body::from(body))
}

fn with_signature(
    world: &World<impl TestDb>,
    change: impl FnOnce(&str) -> String,
) -> Request<Body> {
    let mut request = world.request(&Event::new("evt_1"));
    let value = request.headers()[SIGNATURE].to_str().unwrap().to_owned();
    request
        .headers_mut()
        .insert(SIGNATURE, change(&value).parse().unwrap());
    request
}

pub(crate) async fn nothing_happened<D: TestDb>(world: &World<D>) {
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 0);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}audit").await, 0);
    assert!(world.ledger().await.is_empty());
}

/// §2.1, §2.2, §6.3, §6.4, §6.6
async fn a_refused_signature_gets_a_bare_401<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let mut missing = world.request(&Event::new("evt_1"));
    missing.headers_mut().remove(SIGNATURE);
    let mut twice = world.request(&Event::new("evt_1"));
    let value = twice.headers()[SIGNATURE].clone();
    twice.headers_mut().append(SIGNATURE, value);
    let mut bytes = world.request(&Event::new("evt_1"));
    bytes
        .headers_mut()
        .insert(SIGNATURE, HeaderValue::from_bytes(b"t=1,v1=\xff").unwrap());
    let mut other_body = world.request(&Event::new("evt_1"));
    *other_body.body_mut() = Body::from(Event::new("evt_2").body());
    let refused = [
        ("missing", missing),
        ("twice", twice),
        ("not ASCII", bytes),
        ("another body", other_body),
        ("another secret", signed_with(&["wrong"], now())),
        ("empty", with_signature(&world, |_| String::new())),
        (
            "no time",
            with_signature(&world, |value| value.split_once(',').unwrap().1.into()),
        ),
        (
            "no signature",
            with_signature(&world, |value| value.split_once(',').unwrap().0.into()),
        ),
        (
            "unknown version",
            with_signature(&world, |value| value.replace("v1=", "v0=")),
        ),
        (
            "cut",
            with_signature(&world, |value| value[..value.len() - 2].into()),
        ),
        (
            "another time",
            with_signature(&world, |value| value.replacen("t=", "t=1", 1)),
        ),
        (
            "no number",
            with_signature(&world, |value| value.replacen("t=", "t=-", 1)),
        ),
    ];
    for (what, request) in refused {
        let reply = world.post(request).await;
        assert_eq!(
            (reply.status, reply.outcome()),
            (401, "rejected"),
            "{what}: {reply:?}"
        );
        let problem = reply.json();
        let known = ["type", "title", "status"];
        assert!(reply.is_problem(), "{what}");
        assert!(
            problem
                .as_object()
                .unwrap()
                .keys()
                .all(|key| known.contains(&&**key)),
            "{what}: {problem}"
        );
    }
    nothing_happened(&world).await;
    world.send(&Event::new("evt_1")).await.is_applied();
}

/// §6.3: 5 minutes each way by default, whole seconds compared.
async fn signed_times_are_held_to_both_limits_and_the_boundary_passes<D: TestDb>(db: D) {
    let clock = crate::kit::TestClock::new();
    let at = clock.clone();
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.clock(clock))
        .start()
        .await;
    let secret = world.secret();
    let now = tower_inbox::clock::Clock::now(&at).as_secs();
    for (offset, status) in [(-301, 401), (301, 401), (-300, 204), (300, 200), (0, 200)] {
        let reply = world
            .post(signed_with(&[&secret], Timestamp::from_secs(now + offset)))
            .await;
        assert_eq!(reply.status, status, "{offset}: {reply:?}");
    }
}

/// §6.3: two settings.
async fn each_limit_on_signed_times_is_its_own<D: TestDb>(db: D) {
    let clock = crate::kit::TestClock::new();
    let at = clock.clone();
    let limits = Tolerance::new(Duration::from_secs(600), Duration::from_secs(10));
    let world = World::<D>::over(&db)
        .source(|source| source.tolerance(limits))
        .inbox(move |inbox| inbox.clock(clock))
        .start()
        .await;
    let secret = world.secret();
    let now = tower_inbox::clock::Clock::now(&at).as_secs();
    for (offset, status) in [(-601, 401), (11, 401), (-600, 204), (10, 200)] {
        let reply = world
            .post(signed_with(&[&secret], Timestamp::from_secs(now + offset)))
            .await;
        assert_eq!(reply.status, status, "{offset}: {reply:?}");
    }
}

/// §6.3: the age is counted from the signing, whenever it was first delivered.
async fn a_captured_delivery_is_refused_once_it_is_too_old<D: TestDb>(db: D) {
    let clock = crate::kit::TestClock::new();
    let at = clock.clone();
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.clock(clock))
        .start()
        .await;
    let captured = || world.request(&Event::new("evt_1"));
    let signature = captured().headers()[SIGNATURE].clone();
    let again = async || {
        let mut request = captured();
        request.headers_mut().insert(SIGNATURE, signature.clone());
        world.post(request).await
    };
    again().await.is_applied();
    at.advance(Duration::from_secs(290));
    again().await.is_duplicate();
    at.advance(Duration::from_secs(20));
    again().await.is(401, "rejected");
    // Signed anew, as a retry is, it is known.
    let fresh = tower_inbox::clock::Clock::now(&at);
    let retry = signed_with(&[&world.secret()], fresh);
    world.post(retry).await.is_duplicate();
}

/// §2.1
async fn the_method_comes_before_the_signature<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::PATCH] {
        let mut signed = world.request(&Event::new("evt_1"));
        *signed.method_mut() = method.clone();
        let bare = Request::builder()
            .method(&method)
            .uri("/hooks/acme")
            .body(Body::empty())
            .unwrap();
        for request in [signed, bare] {
            let reply = world.post(request).await;
            assert_eq!(
                (reply.status, reply.outcome()),
                (405, "rejected"),
                "{method}: {reply:?}"
            );
            assert_eq!(reply.headers["allow"], "POST", "{method}");
        }
    }
    nothing_happened(&world).await;
}

fn announced(mut request: Request<Body>, bytes: &'static str) -> Request<Body> {
    request
        .headers_mut()
        .insert(CONTENT_LENGTH, HeaderValue::from_static(bytes));
    request
}

/// §2.1
async fn the_signature_headers_come_before_the_announced_size<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let request = Request::post("/hooks/acme").body(Body::empty()).unwrap();
    world
        .post(announced(request, "99999999999"))
        .await
        .is(401, "rejected");
    let stale = signed_with(&[&world.secret()], Timestamp::from_secs(0));
    world
        .post(announced(stale, "99999999999"))
        .await
        .is(401, "rejected");
}

/// §2.1, §3
async fn the_announced_size_comes_before_the_body<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.body_limit(1_000))
        .start()
        .await;
    let (_feed, body) = Feed::new();
    let polls = body.polls();
    // Signed by somebody else: nobody can know that before the body is there.
    let request = http(&["wrong"], now(), Bytes::new()).map(|()| Body::new(body));
    let reply = within(
        Duration::from_secs(5),
        world.post(announced(request, "1001")),
    )
    .await;
    reply.is_problem_about(413, "rejected", "1000");
    assert_eq!(polls.load(Ordering::Relaxed), 0, "the body was asked for");
}

/// §2.1
async fn a_stale_delivery_is_refused_before_its_body_is_read<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    for at in [0, now().as_secs() + 1_000] {
        let (_feed, body) = Feed::new();
        let polls = body.polls();
        let request = http(&[&world.secret()], Timestamp::from_secs(at), Bytes::new());
        let request = request.map(|()| Body::new(body));
        within(Duration::from_secs(5), world.post(request))
            .await
            .is(401, "rejected");
        assert_eq!(polls.load(Ordering::Relaxed), 0, "the body was asked for");
    }
}

/// §2.2, §2.3: a caller without the secret learns nothing about bodies.
async fn the_signature_comes_before_the_envelope<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let body = Bytes::from_static(b"{no json");
    let request = http(&["wrong"], now(), body.clone()).map(|()| Body::from(body.clone()));
    world.post(request).await.is(401, "rejected");
    world.post(world.signed(body)).await.is(400, "rejected");
}

/// §2.1: "counted as read", whatever was announced.
async fn a_body_over_the_limit_is_refused_when_its_bytes_are_counted<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.body_limit(1_000))
        .start()
        .await;
    let event = Event::new("evt_1").with("filler", "x".repeat(1_000));
    let request = world.request(&event);
    assert!(!request.headers().contains_key(CONTENT_LENGTH));
    world
        .post(request)
        .await
        .is_problem_about(413, "rejected", "1000");
    // In pieces that never end, and with a lie about their size.
    let (feed, body) = Feed::new();
    for _ in 0..11 {
        feed.send(Bytes::from(vec![b' '; 100])).unwrap();
    }
    let request = http(&[&world.secret()], now(), Bytes::new()).map(|()| Body::new(body));
    let reply = within(Duration::from_secs(5), world.post(announced(request, "10"))).await;
    reply.is(413, "rejected");
    nothing_happened(&world).await;
}

/// §2.1
async fn a_body_of_exactly_the_limit_passes<D: TestDb>(db: D) {
    let event = Event::new("evt_1").with("filler", "x".repeat(500));
    let limit = event.body().len();
    let world = World::<D>::over(&db)
        .source(|source| source.body_limit(limit))
        .start()
        .await;
    world.send(&event).await.is_applied();
    let one_more = Event::new("evt_2").with("filler", "x".repeat(501));
    world.send(&one_more).await.is(413, "rejected");
}

/// §2.1, §3
async fn a_body_that_comes_too_slowly_gets_408<D: TestDb>(db: D) {
    let patient = Duration::from_millis(200);
    let world = World::<D>::over(&db)
        .source(|source| source.read_timeout(patient))
        .start()
        .await;
    let (feed, body) = Feed::new();
    feed.send(Bytes::from_static(b"{")).unwrap();
    let request = http(&[&world.secret()], now(), Bytes::new()).map(|()| Body::new(body));
    let reply = within(Duration::from_secs(5), world.post(request)).await;
    reply.is_problem_about(408, "failed", "in time");
    nothing_happened(&world).await;
}

/// §2.1, §3
async fn bodies_that_are_being_read_share_a_budget<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.body_limit(1_000))
        .inbox(|inbox| inbox.body_budget(1_000))
        .start()
        .await;
    let event = Event::new("evt_slow").with("filler", "x".repeat(600));
    let body = event.body();
    let (feed, slow) = Feed::new();
    let polls = slow.polls();
    feed.send(body.slice(..600)).unwrap();
    let request = http(&[&world.secret()], now(), body.clone()).map(|()| Body::new(slow));
    let first = tokio::spawn({
        let world = world.clone();
        async move { world.post(request).await }
    });
    // Asked for again: so the first part is held.
    eventually("the first part is read", async || {
        polls.load(Ordering::Relaxed) >= 2
    })
    .await;
    let second = world
        .send(&Event::new("evt_2").with("filler", "x".repeat(600)))
        .await;
    second.is_problem_about(429, "failed", "bodies");
    world.send(&Event::new("evt_3")).await.is_applied();
    feed.send(body.slice(600..)).unwrap();
    drop(feed);
    first.await.unwrap().is_applied();
    world
        .send(&Event::new("evt_2").with("filler", "x".repeat(600)))
        .await
        .is_applied();
}
