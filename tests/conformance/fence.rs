//! §6.7: sources whose event id is not signed, so that a captured delivery could be sent again under any id.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse;
use bytes::Bytes;
use http::{Request, StatusCode};
use serde_json::json;
use tower_inbox::operator::{Filter, Reason};
use tower_inbox::preset::Preset;
use tower_inbox::verify::{Secret, Signer};
use tower_inbox::{OperatorErrorKind, Park, Source};

use crate::db::TestDb;
use crate::kit::{Reply, SOURCE, World, eventually, now};

suite![
    a_captured_delivery_under_a_new_id_is_fenced,
    of_concurrent_deliveries_of_one_body_one_is_applied,
    the_first_id_stays_a_duplicate_and_another_type_passes,
    types_whose_bodies_may_repeat_are_not_fenced,
    a_body_that_signs_its_time_is_fenced_by_the_whole_message,
    what_was_rolled_back_fences_nothing,
    an_operator_releases_what_the_fence_holds,
    a_release_leaves_what_the_fence_does_not_hold,
    an_operator_discards_what_the_fence_holds,
    without_the_fence_the_same_body_is_applied_again,
    what_is_held_without_its_body_cannot_be_released,
    fences_that_have_expired_are_removed_however_many_there_are,
    what_the_fence_held_is_forgotten_with_its_request,
    what_is_stored_for_later_leaves_its_fence,
    what_is_put_off_leaves_its_fence,
    what_an_operator_replays_leaves_its_fence,
];

pub(crate) const SECRET: &str = "a webhook secret";

fn github(_: Source) -> Source {
    Source::new(SOURCE, Preset::GITHUB).secrets([SECRET])
}

/// A delivery as GitHub sends it: its id is in a header that nobody signs.
pub(crate) fn push(id: &str, kind: &str, amount: i64) -> Request<Body> {
    let body = Bytes::from(json!({"data": {"amount": amount}}).to_string());
    request(
        Preset::GITHUB,
        body,
        &[("x-github-delivery", id), ("x-github-event", kind)],
    )
}

fn request(preset: Preset, body: Bytes, headers: &[(&str, &str)]) -> Request<Body> {
    let secret = Secret::text(SECRET).expect("not empty");
    let signer = Signer::new(&preset.scheme(), [secret]).expect("an HMAC scheme");
    let mut request = Request::post("/hooks/acme");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::from(body.clone())).expect("a request");
    request
        .headers_mut()
        .extend(signer.sign(now(), None, &body).expect("signed"));
    request
}

pub(crate) async fn start<D: TestDb>(db: &D) -> World<D> {
    World::over(db).source(github).start().await
}

fn is_fenced(reply: &Reply) {
    assert_eq!(
        (reply.status, reply.outcome()),
        (200, "duplicate"),
        "{reply:?}"
    );
    assert_eq!(reply.json(), json!({"status": "fenced"}));
}

/// §3, §6.7. A hit is recorded under its own id with its request, and answered the same way ever after.
async fn a_captured_delivery_under_a_new_id_is_fenced<D: TestDb>(db: D) {
    let world = start(&db).await;
    world.post(push("guid-1", "push", 5)).await.is_applied();
    for _ in 0..2 {
        is_fenced(&world.post(push("guid-2", "push", 5)).await);
    }
    assert_eq!(world.applied().await, ["guid-1"]);
    assert_eq!(
        world
            .texts("SELECT event_id FROM {p}event WHERE state = 4")
            .await,
        ["guid-2"]
    );
    let held = "SELECT COUNT(*) FROM {p}pending WHERE event_id = 'guid-2' AND reason = 7";
    assert_eq!(world.number(held).await, 1);
    // A process that remembers nothing says the same.
    let again = start(&db).await;
    is_fenced(&again.post(push("guid-2", "push", 5)).await);
    is_fenced(&again.post(push("guid-3", "push", 5)).await);
}

/// §6.7. The fence is a unique key in the handler's transaction.
async fn of_concurrent_deliveries_of_one_body_one_is_applied<D: TestDb>(db: D) {
    let world = start(&db).await;
    let deliveries: Vec<_> = (0..24)
        .map(|n| {
            let world = world.clone();
            tokio::spawn(async move { world.post(push(&format!("guid-{n}"), "push", 1)).await })
        })
        .collect();
    let applied = AtomicUsize::new(0);
    for delivery in deliveries {
        let reply = delivery.await.expect("an answer");
        if reply.outcome() == "applied" {
            applied.fetch_add(1, Ordering::Relaxed);
        } else {
            is_fenced(&reply);
        }
    }
    assert_eq!(applied.into_inner(), 1);
    assert_eq!(world.ledger().await.len(), 1);
}

/// §6.7. After the id: a redelivery is a duplicate, not a hit. On (event type, body): another type is another event.
async fn the_first_id_stays_a_duplicate_and_another_type_passes<D: TestDb>(db: D) {
    let world = World::over(&db)
        .source(github)
        .inbox(|builder| builder.remembered(0))
        .start()
        .await;
    world.post(push("guid-1", "push", 1)).await.is_applied();
    world.post(push("guid-1", "push", 1)).await.is_duplicate();
    world.post(push("guid-2", "release", 1)).await.is_applied();
    world.post(push("guid-3", "push", 2)).await.is_applied();
}

/// §6.7. Two honest events may have equal bodies.
async fn types_whose_bodies_may_repeat_are_not_fenced<D: TestDb>(db: D) {
    let world = start(&db).await;
    for id in ["guid-1", "guid-2", "guid-3"] {
        world
            .post(push(id, "workflow_dispatch", 1))
            .await
            .is_applied();
    }
    assert_eq!(world.ledger().await.len(), 3);
}

/// §6.7. Linear signs a time in the body: the same message is caught, the same data at another time is not.
async fn a_body_that_signs_its_time_is_fenced_by_the_whole_message<D: TestDb>(db: D) {
    let world = World::over(&db)
        .source(|_| Source::new(SOURCE, Preset::LINEAR).secrets([SECRET]))
        .start()
        .await;
    let millis = now().as_micros() / 1_000;
    let send = |id: &'static str, at: i64| {
        let body = json!({"type": "Issue", "data": {"amount": 1}, "webhookTimestamp": at});
        world.post(request(
            Preset::LINEAR,
            body.to_string().into(),
            &[("linear-delivery", id)],
        ))
    };
    send("one", millis).await.is_applied();
    is_fenced(&send("two", millis).await);
    send("three", millis + 1_000).await.is_applied();
    let kept = "SELECT COUNT(*) FROM {p}fence WHERE expires_at > 0";
    assert_eq!(world.number(kept).await, 2);
}

/// §6.7. The fence is in the handler's transaction: a failed run leaves a clean slate.
async fn what_was_rolled_back_fences_nothing<D: TestDb>(db: D) {
    let failing = |status: u16| {
        World::over(&db)
            .source(github)
            .answers(move |call| {
                if call.delivery.event_id() == "guid-1" {
                    status
                } else {
                    0
                }
            })
            .start()
    };
    let world = failing(503).await;
    assert_eq!(world.post(push("guid-1", "push", 1)).await.status, 503);
    world.post(push("guid-2", "push", 1)).await.is_applied();
    let world = failing(422).await;
    assert_eq!(world.post(push("guid-1", "release", 1)).await.status, 422);
    world.post(push("guid-3", "release", 1)).await.is_applied();
    // What was refused is sent again, and its body has been applied under another id meanwhile.
    is_fenced(&start(&db).await.post(push("guid-1", "release", 1)).await);
    assert_eq!(world.applied().await, ["guid-2", "guid-3"]);
}

/// §5.15, §6.7. Released, the stored request goes to the handler; the audit table has who and why.
async fn an_operator_releases_what_the_fence_holds<D: TestDb>(db: D) {
    let world = start(&db).await;
    world.post(push("guid-1", "push", 1)).await.is_applied();
    is_fenced(&world.post(push("guid-2", "push", 1)).await);
    let release = || {
        world
            .inbox
            .release_fenced(SOURCE, "guid-2", "ada", "two honest pushes")
    };
    assert!(release().await.expect("the database answers"));
    eventually("the released event is applied", async || {
        world.applied().await == ["guid-1", "guid-2"]
    })
    .await;
    assert!(
        !release().await.expect("the database answers"),
        "safe to repeat"
    );
    assert!(
        !world
            .inbox
            .release_fenced(SOURCE, "guid-9", "ada", "a slip")
            .await
            .unwrap()
    );
    world.post(push("guid-2", "push", 1)).await.is_duplicate();
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
    let audit = "SELECT detail FROM {p}audit WHERE action = 'release' AND actor = 'ada'";
    assert_eq!(world.texts(audit).await, ["two honest pushes"]);
}

/// §5.15, §6.7: a release is by the state that is found, and a dead letter of the handler's is none of the fence's.
async fn a_release_leaves_what_the_fence_does_not_hold<D: TestDb>(db: D) {
    let world = World::over(&db).source(github);
    let world = world.answers(|_| 422).start().await;
    world
        .post(push("guid-1", "push", 1))
        .await
        .is(422, "rejected");
    let released = world
        .inbox
        .release_fenced(SOURCE, "guid-1", "ada", "a slip")
        .await;
    assert!(!released.expect("the database answers"));
    let kept = "SELECT COUNT(*) FROM {p}pending WHERE reason = 3";
    assert_eq!(
        (world.number(kept).await, world.in_state(3).await),
        (1, 1),
        "it is a dead letter as before"
    );
}

/// §3, §6.7. It is not replayed like a dead letter: whoever lets it pass must mean that.
async fn an_operator_discards_what_the_fence_holds<D: TestDb>(db: D) {
    let world = start(&db).await;
    world.post(push("guid-1", "push", 1)).await.is_applied();
    is_fenced(&world.post(push("guid-2", "push", 1)).await);
    let ada = world.inbox.operator("ada").expect("a name");
    let held = Filter::new().reason(Reason::Fenced);
    let page = ada.dead_letters(&held, None, 10).await.expect("a page");
    assert_eq!(page.letters.len(), 1);
    let replayed = ada.replay(SOURCE, "guid-2", "a slip").await;
    let refused = replayed.expect_err("it is refused").kind();
    assert_eq!(refused, OperatorErrorKind::Fenced);
    let discarded = ada.discard(SOURCE, "guid-2", "captured").await;
    assert!(discarded.expect("it is discarded"));
    let again = world.post(push("guid-2", "push", 1)).await;
    assert_eq!(again.json(), json!({"status": "discarded"}));
    assert_eq!(world.applied().await, ["guid-1"]);
}

/// §6.7. Off only by a setting whose name says what it gives up.
async fn without_the_fence_the_same_body_is_applied_again<D: TestDb>(db: D) {
    let world = World::over(&db)
        .source(|source| github(source).insecure_unfenced())
        .start()
        .await;
    world.post(push("guid-1", "push", 1)).await.is_applied();
    world.post(push("guid-2", "push", 1)).await.is_applied();
}

/// §6.7: "kept for both time limits together", and no longer; also where no applied row is old enough to go.
async fn fences_that_have_expired_are_removed_however_many_there_are<D: TestDb>(db: D) {
    let world = start(&db).await;
    let fences = (0..1_200)
        .map(|n| {
            let digest = match D::NAME {
                "postgres" => format!("'\\x{n:064x}'"),
                _ => format!("X'{n:064x}'"),
            };
            format!("('{SOURCE}', {digest}, 'evt_{n}', 1)")
        })
        .collect::<Vec<_>>()
        .join(", ");
    world
        .execute(&format!(
            "INSERT INTO {{p}}fence (source, digest, event_id, expires_at) VALUES {fences}"
        ))
        .await;
    world.stop().await;
    let world = start(&db).await;
    eventually("all are gone", async || {
        world.number("SELECT COUNT(*) FROM {p}fence").await == 0
    })
    .await;
}

/// §5.8, §6.7: a handler never gets a request that lacks what was sent.
async fn what_is_held_without_its_body_cannot_be_released<D: TestDb>(db: D) {
    let world = World::over(&db)
        .source(|source| github(source).park_limit(1))
        .start()
        .await;
    world.post(push("guid-1", "push", 1)).await.is_applied();
    for id in ["guid-2", "guid-3"] {
        is_fenced(&world.post(push(id, "push", 1)).await);
    }
    let release = async |id: &str| {
        let released = world.inbox.release_fenced(SOURCE, id, "ada", "honest");
        released.await.unwrap()
    };
    assert!(!release("guid-3").await);
    assert_eq!(world.in_state(4).await, 2);
    assert!(release("guid-2").await);
    eventually("it is applied", async || world.ledger().await.len() == 2).await;
    assert_eq!(world.probe.runs("guid-3"), 0);
}

/// §5.13: the same signed under another id waits with it, or comes when it is applied: it is fenced.
async fn what_is_stored_for_later_leaves_its_fence<D: TestDb>(db: D) {
    let world = World::over(&db)
        .source(|source| github(source).deferred())
        .answers(|call| if call.run == 1 { 503 } else { 0 })
        .start()
        .await;
    world.post(push("guid-1", "push", 5)).await.is_accepted();
    is_fenced(&world.post(push("guid-2", "push", 5)).await);
    eventually("it is applied", async || {
        world.applied().await == ["guid-1"]
    })
    .await;
    is_fenced(&world.post(push("guid-3", "push", 5)).await);
    world.post(push("guid-1", "push", 5)).await.is_duplicate();
}

/// §6.7. What comes back by itself does not ask the fence again: it has to stand there meanwhile.
async fn what_is_put_off_leaves_its_fence<D: TestDb>(db: D) {
    let world = World::over(&db)
        .source(github)
        .handler(|mut call: crate::kit::Call<D>| async move {
            call.append().await;
            let not_yet = (call.run == 1).then_some(Park::after(Duration::from_secs(3_600)));
            match not_yet {
                Some(park) => park.into_response(),
                None => StatusCode::NO_CONTENT.into_response(),
            }
        })
        .start()
        .await;
    let reply = world.post(push("guid-1", "push", 5)).await;
    reply.is(202, "parked");
    is_fenced(&world.post(push("guid-2", "push", 5)).await);
    world.post(push("guid-1", "push", 5)).await.is_applied();
    is_fenced(&world.post(push("guid-2", "push", 5)).await);
    assert_eq!(world.applied().await, ["guid-1"]);
}

/// §6.7. What was refused has left none; when it is applied after all, it does.
async fn what_an_operator_replays_leaves_its_fence<D: TestDb>(db: D) {
    let world = World::over(&db)
        .source(github)
        .answers(|call| if call.run == 1 { 422 } else { 0 })
        .start()
        .await;
    world
        .post(push("guid-1", "push", 5))
        .await
        .is(422, "rejected");
    let ada = world.inbox.operator("ada").expect("a name");
    assert!(ada.replay(SOURCE, "guid-1", "mended").await.unwrap());
    eventually("it is applied", async || {
        world.applied().await == ["guid-1"]
    })
    .await;
    is_fenced(&world.post(push("guid-2", "push", 5)).await);
    assert_eq!(world.probe.runs("guid-2"), 0);
}

/// §7.1; what an operator released is not: it is as good as parked.
async fn what_the_fence_held_is_forgotten_with_its_request<D: TestDb>(db: D) {
    let world = World::over(&db)
        .source(|source| {
            github(source)
                .retention(Duration::from_millis(500))
                .insecure_short_retention()
                .backoff([Duration::from_secs(3_600)])
        })
        .answers(|call| {
            if call.delivery.event_id() == "guid-1" {
                0
            } else {
                503
            }
        })
        .start()
        .await;
    world.post(push("guid-1", "push", 5)).await.is_applied();
    for id in ["guid-2", "guid-3"] {
        is_fenced(&world.post(push(id, "push", 5)).await);
    }
    let released = world
        .inbox
        .release_fenced(SOURCE, "guid-2", "ops", "it was honest");
    assert!(released.await.expect("the database answers"));
    eventually("the rest is forgotten", async || {
        world.texts("SELECT event_id FROM {p}event").await == ["guid-2"]
    })
    .await;
    assert_eq!(
        world.texts("SELECT event_id FROM {p}pending").await,
        ["guid-2"]
    );
}
