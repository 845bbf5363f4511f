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
use crate::kit::{Event, Gate, Reply, SOURCE, World, numbered};

suite![
    who_waits_behind_a_reconciliation_that_finds_the_event_known_finds_out,
    other_content_is_refused_behind_an_event_that_is_fenced,
    other_content_is_refused_behind_an_event_that_is_discarded,
    who_waits_behind_a_worker_whose_event_is_gone_finds_out,
    who_waits_behind_one_that_load_turns_away_is_turned_away_by_load,
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

/// §4.8: another process applies what this one's worker is about to claim, or has claimed. Nothing has failed.
async fn who_waits_behind_a_worker_whose_event_is_gone_finds_out<D: TestDb>(db: D) {
    for (account, point) in [("a", "store.claim"), ("b", "claimed")] {
        let gate = Gate::shut();
        let world = World::<D>::over(&db)
            .one_by_one()
            .held_at(point, &gate)
            .start()
            .await;
        world.send(&numbered(account, 2)).await.is_parked(1);
        world.send(&numbered(account, 1)).await.is_applied();
        gate.reached_by(1).await;
        let behind = followers(&world, &numbered(account, 2)).await;
        let other = World::<D>::start(&db).await;
        // By the delivery, or by its worker before that.
        let reply = other.send(&numbered(account, 2)).await;
        assert!(
            matches!(reply.outcome(), "applied" | "duplicate"),
            "{reply:?}"
        );
        gate.open();
        for reply in behind {
            reply.await.unwrap().is_duplicate();
        }
        assert_eq!(world.sequences(account).await, [1, 2]);
        assert_eq!(world.probe.runs(numbered(account, 2).id()), 0, "{point}");
        other.stop().await;
        world.stop().await;
    }
}

/// §3: "load is 429".
async fn who_waits_behind_one_that_load_turns_away_is_turned_away_by_load<D: TestDb>(db: D) {
    let full = |source: Source| source.park_limit(1);
    let first = World::<D>::over(&db).source(full).start().await;
    first.send(&numbered("a", 2)).await.is_parked(1);
    let gate = Gate::shut();
    let world = World::<D>::over(&db)
        .source(full)
        .held_at("store.known", &gate)
        .start()
        .await;
    let ahead = world.spawn(&numbered("b", 2));
    gate.reached_by(1).await;
    let behind = followers(&world, &numbered("b", 2)).await;
    gate.open();
    ahead.await.unwrap().is(429, "failed");
    for reply in behind {
        reply.await.unwrap().is(429, "failed");
    }
}

/// §4.8, §7.5: what reconciliation finds applied it does not try. Nothing has failed.
async fn who_waits_behind_a_reconciliation_that_finds_the_event_known_finds_out<D: TestDb>(db: D) {
    let other = World::<D>::start(&db).await;
    let event = numbered("acct", 1);
    other.send(&event).await.is_applied();
    let gate = Gate::shut();
    let world = World::<D>::over(&db)
        .one_by_one()
        .held_at("store.known", &gate)
        .start()
        .await;
    let replays = crate::kit::Replays::new();
    replays.exhausted(&event, tower_inbox::clock::Timestamp::now());
    let inbox = world.inbox.clone();
    let run = tokio::spawn(async move { inbox.reconcile(SOURCE, &replays).await });
    gate.reached_by(1).await;
    let behind = followers(&world, &event).await;
    gate.open();
    let report = run.await.unwrap().unwrap();
    assert_eq!(report.already_applied, 1, "{report:?}");
    for reply in behind {
        reply.await.unwrap().is_duplicate();
    }
}
