//! The IETF's Idempotency-Key draft, as the brief's header has it: `docs/brief.md`.

use std::time::Duration;

use axum::body::Body;
use http::HeaderValue;
use tower_inbox::Preset as Row;
use tower_inbox::envelope::{Lookup, Mapping, Place};
use tower_inbox::preset::Reaction;
use tower_inbox::verify::IdForm;

use super::producer::{Producer, request};
use crate::db::TestDb;
use crate::kit::{Call, Event, Gate, World};
use crate::shared::preset::Preset;

suite![
    a_key_is_the_same_as_a_bare_token_and_as_a_string,
    a_missing_key_is_a_401_where_it_is_signed,
    a_missing_key_is_a_400_where_it_is_not_signed,
    another_payload_under_a_known_key_is_a_422,
    a_key_in_flight_elsewhere_gets_503_and_is_served_afterwards,
];

const KEY: &str = "idempotency-key";

/// draft, 2.1: an RFC 8941 string; the brief's own is bare. One key in either form and case.
async fn a_key_is_the_same_as_a_bare_token_and_as_a_string<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Brief);
    let world = producer.receiver(&db).start().await;
    let event = producer.event();
    producer.send(&world, &event).await.is_applied();
    let upper = event.id.to_uppercase();
    for spelled in [
        event.id.clone(),
        format!("\"{}\"", event.id),
        upper.clone(),
        format!("\"{upper}\""),
    ] {
        let body = producer.body(&event);
        let mut headers = producer.headers(&event, &body, 2);
        headers.insert(KEY, HeaderValue::from_str(&spelled).expect("ASCII"));
        let reply = world.post(request(headers, body)).await;
        reply.is(204, "duplicate");
    }
    assert_eq!(world.applied().await, [event.id]);
}

/// draft, 2.7: "400"; here the key is a part of what is signed, so that nothing can be verified without it, and nobody
/// who has not signed is told more than 401 (§6.6). An unusable one and two of them are the same.
async fn a_missing_key_is_a_401_where_it_is_signed<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Brief);
    let world = producer.receiver(&db).start().await;
    let event = producer.event();
    let other = producer.event().id;
    for keys in [
        &[][..],
        &[""],
        &["no-uuid"],
        &[other.as_str()],
        &[event.id.as_str(), event.id.as_str()],
    ] {
        let body = producer.body(&event);
        let mut headers = producer.headers(&event, &body, 1);
        headers.remove(KEY);
        for key in keys {
            headers.append(KEY, HeaderValue::from_str(key).expect("ASCII"));
        }
        let reply = world.post(request(headers, body)).await;
        reply.is(401, "rejected");
        assert!(reply.json()["detail"].is_null(), "{reply:?}");
    }
    assert!(world.ledger().await.is_empty());
    producer.send(&world, &event).await.is_applied();
}

/// draft, 2.7: "400"
async fn a_missing_key_is_a_400_where_it_is_not_signed<D: TestDb>(db: D) {
    let key = Lookup::from(Place::header(KEY)).in_form(IdForm::Uuid);
    let world = World::<D>::over(&db)
        .source(|source| source.mapping(Mapping::new(key)))
        .start()
        .await;
    let with = |key: &str| {
        let mut request = world.request(&Event::new("not looked at"));
        if !key.is_empty() {
            let key = HeaderValue::from_str(key).expect("ASCII");
            request.headers_mut().insert(KEY, key);
        }
        world.post(request)
    };
    for unusable in ["", "no-uuid", "\"0191d6b0-7c1e-4d2f-8a3b-5c6d7e8f9a0b"] {
        let reply = with(unusable).await;
        reply.is_problem_about(400, "rejected", KEY);
    }
    with("0191d6b0-7c1e-4d2f-8a3b-5c6d7e8f9a0b")
        .await
        .is_applied();
}

/// draft, 2.7: "422"; by the raw body (§4.12).
async fn another_payload_under_a_known_key_is_a_422<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Brief);
    let world = producer.receiver(&db).start().await;
    let mut event = producer.event();
    producer.send(&world, &event).await.is_applied();
    event.amount += 1;
    for _ in 0..2 {
        let reply = producer.send(&world, &event).await;
        reply.is_problem_about(422, "rejected", "other content");
    }
    event.amount -= 1;
    producer.send(&world, &event).await.is(204, "duplicate");
    assert_eq!(world.ledger().await.len(), 1);
}

/// draft, 2.7: "409"; but the brief's sender takes a 409 as terminal, and an event whose first delivery then fails would
/// be lost. 503 is in its list of what is tried again.
async fn a_key_in_flight_elsewhere_gets_503_and_is_served_afterwards<D: TestDb>(db: D) {
    assert_eq!(Row::BRIEF.answers.reaction(409), Some(Reaction::Stops));
    assert_eq!(Row::BRIEF.answers.reaction(503), Some(Reaction::Retries));
    let mut producer = Producer::new(Preset::Brief);
    let gate = Gate::shut();
    let held = gate.clone();
    let world = producer.receiver(&db).handler(move |mut call: Call<D>| {
        let gate = held.clone();
        async move {
            call.append().await;
            gate.pass().await;
            "the answer"
        }
    });
    let world = world.start().await;
    let hasty = producer.receiver(&db);
    let hasty = hasty.source(|source| source.budget(Duration::from_millis(500)));
    let hasty = hasty.start().await;
    let event = producer.event();
    let first = tokio::spawn({
        let (world, body) = (world.clone(), producer.body(&event));
        let request = request(producer.headers(&event, &body, 1), body).map(Body::from);
        async move { world.post(request).await }
    });
    gate.reached_by(1).await;
    let meanwhile = producer.send(&hasty, &event).await;
    meanwhile.is(503, "failed");
    assert!(meanwhile.retry_after().is_some());
    gate.open();
    first.await.expect("an answer").is(200, "applied");
    let again = producer.send(&hasty, &event).await;
    assert_eq!(again.is(200, "duplicate").body, "the answer");
    assert_eq!(world.applied().await, [event.id]);
}
