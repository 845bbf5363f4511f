//! Requests that carry several events: one transaction, all or nothing.

use axum::body::Body;
use bytes::Bytes;
use http::Request;
use serde_json::{Value, json};
use tower_inbox::preset::Preset;
use tower_inbox::verify::{Secret, Signer};
use tower_inbox::{BuildErrorKind, Inbox, Source};

use crate::db::TestDb;
use crate::kit::{Call, SOURCE, World, eventually, now};

suite![
    each_new_element_is_applied_once,
    an_element_that_another_process_has_applied_is_not_remembered,
    one_element_that_fails_undoes_all_of_them,
    one_element_that_is_refused_undoes_all_and_keeps_all,
    overlapping_requests_apply_each_element_once,
    whatever_a_handler_does_to_the_transaction_each_effect_is_there_once,
    what_is_no_array_of_events_is_refused,
    a_source_that_cannot_be_split_is_refused,
];

const SECRET: &str = "a webhook secret";

pub(crate) fn split() -> Source {
    Source::new(SOURCE, Preset::STRIPE)
        .secrets([SECRET])
        .elements(Some("events".into()))
}

fn signed(body: &Value) -> Request<Body> {
    let body = Bytes::from(body.to_string());
    let secret = Secret::text(SECRET).expect("not empty");
    let signer = Signer::new(&Preset::STRIPE.scheme(), [secret]).expect("an HMAC scheme");
    let mut request = Request::post("/hooks/acme")
        .body(Body::from(body.clone()))
        .expect("a request");
    request
        .headers_mut()
        .extend(signer.sign(now(), None, &body).expect("signed"));
    request
}

/// A request with these events.
pub(crate) fn batch(ids: &[&str]) -> Request<Body> {
    let event = |id: &&str| json!({"id": id, "type": "charge", "data": {"amount": 1}});
    signed(&json!({"events": ids.iter().map(event).collect::<Vec<_>>()}))
}

/// §4.1, (elements). The handler runs once for each new element, with the element as its body.
async fn each_new_element_is_applied_once<D: TestDb>(db: D) {
    let world = World::over(&db).source(|_| split()).start().await;
    world.post(batch(&["a", "b", "a"])).await.is_applied();
    assert_eq!(world.applied().await, ["a", "b"]);
    world.post(batch(&["b", "c"])).await.is_applied();
    assert_eq!(world.applied().await, ["a", "b", "c"]);
    world.post(batch(&["c", "a"])).await.is_duplicate();
    let forgetful = World::over(&db)
        .source(|_| split())
        .inbox(|builder| builder.remembered(0))
        .start()
        .await;
    forgetful.post(batch(&["c", "a"])).await.is_duplicate();
    assert_eq!(
        world
            .ledger()
            .await
            .iter()
            .map(|entry| entry.amount)
            .sum::<i64>(),
        3
    );
}

/// §2.4: only what its own transaction has applied.
async fn an_element_that_another_process_has_applied_is_not_remembered<D: TestDb>(db: D) {
    let start = || World::over(&db).source(|_| split()).remembering().start();
    let (first, second) = (start().await, start().await);
    first.post(batch(&["a"])).await.is_applied();
    second.post(batch(&["a", "b"])).await.is_applied();
    for _ in 0..3 {
        let before = second.acquired();
        second.post(batch(&["a", "b"])).await.is_duplicate();
        assert!(
            second.acquired() > before,
            "it has not seen the commit of one"
        );
    }
    let from_memory = async || {
        let before = second.acquired();
        second.post(batch(&["b"])).await.is_duplicate();
        second.acquired() == before
    };
    // The worker may take a connection meanwhile.
    eventually("it remembers its own", from_memory).await;
    assert_eq!(second.applied().await, ["a", "b"]);
}

/// §4.1: the retry has a clean slate.
async fn one_element_that_fails_undoes_all_of_them<D: TestDb>(db: D) {
    let world = World::over(&db)
        .source(|_| split())
        .answers(
            |call: &Call<D>| match (call.delivery.event_id(), call.run) {
                ("b", 1) => 503,
                _ => 0,
            },
        )
        .start()
        .await;
    let reply = world.post(batch(&["a", "b", "c"])).await;
    assert_eq!((reply.status, reply.outcome()), (503, "failed"));
    assert!(world.ledger().await.is_empty());
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 0);
    world.post(batch(&["a", "b", "c"])).await.is_applied();
    assert_eq!(world.applied().await, ["a", "b", "c"]);
    world.pool_is_whole().await;
}

/// §4.13: the verdict on one is the answer to all, and the producer sends none of them again: the dead letters of all are
/// there before the answer.
async fn one_element_that_is_refused_undoes_all_and_keeps_all<D: TestDb>(db: D) {
    let world = World::over(&db)
        .source(|_| split())
        .answers(
            |call: &Call<D>| match (call.delivery.event_id(), call.run) {
                ("b", 1) => 422,
                _ => 0,
            },
        )
        .start()
        .await;
    let reply = world.post(batch(&["a", "b", "c"])).await;
    assert_eq!((reply.status, reply.outcome()), (422, "rejected"));
    assert!(world.ledger().await.is_empty());
    assert_eq!(
        world
            .texts("SELECT event_id FROM {p}pending WHERE reason = 3 ORDER BY event_id")
            .await,
        ["a", "b", "c"]
    );
    assert_eq!(world.in_state(3).await, 3);
    // Sent again, it is a new attempt (§5.11).
    world.post(batch(&["a", "b", "c"])).await.is_applied();
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
    assert_eq!(world.applied().await, ["a", "b", "c"]);
}

/// §4.8: requests that share events wait for each other, in one order.
async fn overlapping_requests_apply_each_element_once<D: TestDb>(db: D) {
    let world = World::over(&db).source(|_| split()).start().await;
    let requests = [
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["b", "d", "a"],
        ["d", "c", "e"],
    ];
    let sent: Vec<_> = requests
        .iter()
        .cycle()
        .take(16)
        .map(|ids| {
            let (world, request) = (world.clone(), batch(ids));
            tokio::spawn(async move { world.post(request).await })
        })
        .collect();
    for reply in sent {
        let reply = reply.await.expect("an answer");
        assert!(
            matches!(reply.outcome(), "applied" | "duplicate"),
            "{reply:?}"
        );
    }
    let mut applied = world.applied().await;
    applied.sort();
    assert_eq!(applied, ["a", "b", "c", "d", "e"]);
}

/// §4.4: a transaction that the first handler ended must not let the second one's row in alone.
async fn whatever_a_handler_does_to_the_transaction_each_effect_is_there_once<D: TestDb>(db: D) {
    for (index, fault) in D::faults().into_iter().enumerate() {
        let world = World::over(&db)
            .source(|_| split())
            .handler(move |mut call: Call<D>| async move {
                call.append().await;
                let first = call.run == 1 && call.delivery.event_id().starts_with("bad");
                if first {
                    (D::faults()[index].spoil)(call.tx).await;
                }
                http::StatusCode::OK
            })
            .start()
            .await;
        let ids = [
            format!("a_{index}"),
            format!("bad_{index}"),
            format!("c_{index}"),
        ];
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let before = world.ledger().await.len();
        let first = world.post(batch(&ids)).await;
        let expected = if fault.then == crate::db::Then::Applied {
            200
        } else {
            500
        };
        assert_eq!(first.status, expected, "{}: {first:?}", fault.name);
        let again = world.post(batch(&ids)).await;
        assert_eq!(again.status, 200, "{}: {again:?}", fault.name);
        let mut applied = world.applied().await.split_off(before);
        applied.sort();
        assert_eq!(applied, ids, "{}", fault.name);
        world.stop().await;
    }
}

/// §4.9
async fn what_is_no_array_of_events_is_refused<D: TestDb>(db: D) {
    let world = World::over(&db).source(|_| split()).start().await;
    let many: Vec<_> = (0..1_001).map(|n| json!({"id": n.to_string()})).collect();
    for body in [
        json!({"events": {"id": "a"}}),
        json!({"event": []}),
        json!([]),
        json!({"events": [{"id": "a"}, {"no": "id"}]}),
        json!({"events": [{"id": "a"}, 7]}),
        json!({"events": many}),
    ] {
        let reply = world.post(signed(&body)).await;
        assert_eq!(
            (reply.status, reply.outcome()),
            (400, "rejected"),
            "{reply:?}"
        );
    }
    let nothing = world.post(signed(&json!({"events": []}))).await;
    assert_eq!((nothing.status, nothing.outcome()), (200, "accepted"));
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 0);
}

/// (elements)
async fn a_source_that_cannot_be_split_is_refused<D: TestDb>(db: D) {
    for preset in [Preset::KUDOS, Preset::STANDARD] {
        let secret = "whsec_bm90IGEgcmVhbCBzZWNyZXQ=";
        let source = Source::new(SOURCE, preset).secrets([secret]).elements(None);
        let pool = db
            .pool(sqlx::pool::PoolOptions::new().max_connections(2))
            .await;
        let built = Inbox::builder(pool)
            .table_prefix(db.prefix())
            .source(source)
            .build()
            .await;
        let error = built.expect_err("refused");
        assert_eq!(error.kind(), BuildErrorKind::UnsafeSetting, "{error}");
        assert!(error.to_string().contains("several events"), "{error}");
    }
}
