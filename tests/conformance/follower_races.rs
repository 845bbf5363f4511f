//! §4.8, §4.12: those with other content that wait behind a delivery which the database knows already, held up by fail
//! points.

use bytes::Bytes;
use serde_json::json;
use tower_inbox::Source;
use tower_inbox::envelope::{Compared, ContentPolicy};
use tower_inbox::preset::Preset;

use crate::db::TestDb;
use crate::fence::{SECRET, push};
use crate::followers::{followers, followers_of};
use crate::kit::{Event, Gate, Reply, SOURCE, World};

suite![
    other_content_is_refused_behind_an_event_that_is_fenced,
    other_content_is_refused_behind_an_event_that_is_discarded,
];

fn is(reply: &Reply, status: &str) {
    reply.is(200, "duplicate");
    assert_eq!(reply.json(), json!({ "status": status }), "{reply:?}");
}

/// §4.8, §4.12, §6.7
async fn other_content_is_refused_behind_an_event_that_is_fenced<D: TestDb>(db: D) {
    let strict = |_| {
        let mapping = Preset::GITHUB.mapping();
        let mapping = mapping.with_content_policy(ContentPolicy::Reject(Compared::RawBody));
        Source::new(SOURCE, Preset::GITHUB)
            .secrets([SECRET])
            .mapping(mapping)
    };
    let first = World::<D>::over(&db).source(strict).start().await;
    first.post(push("guid-1", "push", 5)).await.is_applied();
    is(&first.post(push("guid-2", "push", 5)).await, "fenced");
    let gate = Gate::shut();
    let world = World::<D>::over(&db)
        .source(strict)
        .held_at("store.known", &gate)
        .start()
        .await;
    let (ahead, request) = (world.clone(), push("guid-2", "push", 5));
    let ahead = tokio::spawn(async move { ahead.post(request).await });
    gate.reached_by(1).await;
    let body = Bytes::from(json!({"data": {"amount": 9}}).to_string());
    let behind = followers_of(&world, &body, || push("guid-2", "push", 9)).await;
    gate.open();
    is(&ahead.await.unwrap(), "fenced");
    for reply in behind {
        let reply = reply.await.unwrap();
        reply.is_problem_about(422, "rejected", "other content");
    }
}

/// §4.8, §4.12, §5.15
async fn other_content_is_refused_behind_an_event_that_is_discarded<D: TestDb>(db: D) {
    let first = World::<D>::over(&db).answers(|_| 422).start().await;
    let event = Event::new("evt_1").amount(1);
    first.send(&event).await.is(422, "rejected");
    let ada = first.inbox.operator("ada").expect("a name");
    assert!(ada.discard(SOURCE, "evt_1", "a test").await.unwrap());
    let gate = Gate::shut();
    let world = World::<D>::over(&db)
        .held_at("store.known", &gate)
        .start()
        .await;
    let ahead = world.spawn(&event);
    gate.reached_by(1).await;
    let behind = followers(&world, &event.amount(9)).await;
    gate.open();
    is(&ahead.await.unwrap(), "discarded");
    for reply in behind {
        let reply = reply.await.unwrap();
        reply.is_problem_about(422, "rejected", "other content");
    }
    assert_eq!(world.probe.runs("evt_1"), 0);
}
