//! §5.13: deferred mode, for producers whose patience is shorter than the work.

use std::time::Duration;

use tower_inbox::Source;
use tower_inbox::envelope::Place;

use crate::db::TestDb;
use crate::kit::{Call, Event, Gate, Setup, World, eventually, numbered, seeded, within};

suite![
    a_delivery_is_answered_before_its_handler_has_run_and_is_applied_once,
    what_has_a_sequence_is_applied_in_order_whatever_order_it_came_in,
    what_is_known_with_other_content_or_holds_anothers_place_is_refused,
    a_sequence_that_was_applied_and_forgotten_is_a_duplicate,
    a_handler_that_fails_is_tried_again_by_the_worker,
    a_redelivery_of_a_dead_letter_is_a_new_attempt,
    deliveries_of_one_event_at_the_same_time_store_it_once,
    a_delivery_of_what_is_being_applied_waits_for_no_handler,
    the_backlog_is_bounded,
    another_process_applies_what_was_stored_before_it_began,
    two_receivers_apply_each_event_once,
    a_request_of_several_events_is_stored_whole,
    what_only_waits_for_its_handler_is_no_gap,
    what_was_overtaken_while_it_waited_is_superseded,
    the_worker_gives_a_handler_a_time_of_its_own,
];

fn over<D: TestDb>(db: &D) -> Setup<D> {
    World::<D>::over(db).source(Source::deferred)
}

/// With one writer a delivery waits for the handler that writes: it is held up before it writes.
fn held<D: TestDb>(setup: Setup<D>, gate: &Gate) -> Setup<D> {
    let gate = gate.clone();
    setup.handler(move |mut call: Call<D>| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            call.append().await;
        }
    })
}

const NOTHING_PENDING: &str = "SELECT COUNT(*) FROM {p}pending";

/// §3, §5.13
async fn a_delivery_is_answered_before_its_handler_has_run_and_is_applied_once<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let world = held(over(&db), &gate).start().await;
    world.send(&Event::new("a")).await.is_accepted();
    gate.reached_by(1).await;
    // Its redeliveries too, until it is applied.
    for _ in 0..3 {
        world.send(&Event::new("a")).await.is_accepted();
    }
    assert!(world.ledger().await.is_empty());
    gate.open();
    eventually("it is applied", async || world.applied().await == ["a"]).await;
    eventually("it is known", async || world.in_state(1).await == 1).await;
    world.send(&Event::new("a")).await.is_duplicate();
    let other = over(&db).start().await;
    other.send(&Event::new("a")).await.is_duplicate();
    assert_eq!(world.probe.runs("a") + other.probe.runs("a"), 1);
    assert_eq!(world.number(NOTHING_PENDING).await, 0);
    world.pool_is_whole().await;
}

/// §5.1: "a gap changes nothing" for the producer.
async fn what_has_a_sequence_is_applied_in_order_whatever_order_it_came_in<D: TestDb>(db: D) {
    let mut random = seeded("what_has_a_sequence_is_applied_in_order_whatever_order_it_came_in");
    let world = over(&db).start().await;
    let mut events: Vec<_> = (1..=12)
        .flat_map(|n| [numbered("a", n), numbered("b", n)])
        .collect();
    random.shuffle(&mut events);
    for event in &events {
        let reply = world.send(event).await;
        reply.is_accepted();
        assert!(reply.retry_after().is_none(), "{reply:?}");
    }
    eventually("all are applied", async || world.ledger().await.len() == 24).await;
    for account in ["a", "b"] {
        assert_eq!(world.sequences(account).await, (1..=12).collect::<Vec<_>>());
    }
    for event in &events {
        assert_eq!(world.probe.runs(event.id()), 1);
    }
}

/// §4.3, §4.12
async fn what_is_known_with_other_content_or_holds_anothers_place_is_refused<D: TestDb>(db: D) {
    let world = over(&db).start().await;
    world.send(&numbered("acct", 2)).await.is_accepted();
    world
        .send(&numbered("acct", 2).amount(7))
        .await
        .is_problem_about(422, "rejected", "other content");
    world
        .send(&Event::new("impostor").of("acct", 2))
        .await
        .is_problem_about(422, "rejected", "belongs to another");
    assert_eq!(world.number(NOTHING_PENDING).await, 1);
    let audited = world.texts("SELECT action FROM {p}audit ORDER BY id").await;
    assert_eq!(audited, ["other_content", "place_taken"]);
}

/// §4.3, §7.2
async fn a_sequence_that_was_applied_and_forgotten_is_a_duplicate<D: TestDb>(db: D) {
    let world = over(&db).start().await;
    world.send(&numbered("acct", 1)).await.is_accepted();
    eventually("it is applied", async || world.in_state(1).await == 1).await;
    world.execute("DELETE FROM {p}event").await;
    let forgetful = over(&db).start().await;
    forgetful.send(&numbered("acct", 1)).await.is_duplicate();
    assert_eq!(world.ledger().await.len(), 1);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 0);
}

/// §5.5
async fn a_handler_that_fails_is_tried_again_by_the_worker<D: TestDb>(db: D) {
    let world = over(&db)
        .source(|source| source.backoff([Duration::from_millis(10)]).max_attempts(4))
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            match (call.delivery.event_id(), call.run) {
                ("a" | "evt_acct_1", 1) => http::StatusCode::SERVICE_UNAVAILABLE,
                ("a", 2) => panic!("this panic is part of the test"),
                ("hopeless", _) => http::StatusCode::BAD_GATEWAY,
                _ => http::StatusCode::OK,
            }
        })
        .start()
        .await;
    for event in [
        Event::new("a"),
        numbered("acct", 1),
        numbered("acct", 2),
        Event::new("hopeless"),
    ] {
        world.send(&event).await.is_accepted();
    }
    eventually("all others are applied", async || {
        world.ledger().await.len() == 3
    })
    .await;
    assert_eq!(world.sequences("acct").await, [1, 2]);
    assert_eq!(world.probe.runs("a"), 3);
    let dead =
        "SELECT COUNT(*) FROM {p}pending WHERE reason = 2 AND attempts = 4 AND last_status = 502";
    eventually("one is given up", async || world.number(dead).await == 1).await;
}

/// §5.11, with what a dead letter has kept; of one that kept no body, with the body that came now (§5.8).
async fn a_redelivery_of_a_dead_letter_is_a_new_attempt<D: TestDb>(db: D) {
    let world = over(&db)
        .source(|source| source.backoff([Duration::from_millis(1)]).max_attempts(2))
        .answers(
            |call: &Call<D>| match (call.delivery.event_id(), call.run) {
                ("rejected" | "evt_acct_1" | "bodiless", 1) => 422,
                ("failed", 1 | 2) => 503,
                _ => 0,
            },
        )
        .start()
        .await;
    let events = [
        Event::new("rejected"),
        Event::new("failed"),
        Event::new("bodiless").amount(9),
        numbered("acct", 1),
    ];
    for event in &events {
        world.send(event).await.is_accepted();
    }
    eventually("all are dead", async || world.in_state(3).await == 4).await;
    world
        .execute("UPDATE {p}pending SET body = SUBSTR(body, 1, 0) WHERE event_id = 'bodiless'")
        .await;
    for event in &events {
        world.send(event).await.is_accepted();
    }
    eventually("all are applied", async || world.in_state(1).await == 4).await;
    assert_eq!(world.number(NOTHING_PENDING).await, 0);
    let ledger = world.ledger().await;
    let amount = ledger.iter().find(|entry| entry.event_id == "bodiless");
    assert_eq!(amount.map(|entry| entry.amount), Some(9));
}

/// §4.8
async fn deliveries_of_one_event_at_the_same_time_store_it_once<D: TestDb>(db: D) {
    let worlds = [over(&db).start().await, over(&db).start().await];
    for event in [Event::new("a"), numbered("acct", 1)] {
        let sent: Vec<_> = (0..16).map(|n| worlds[n % 2].spawn(&event)).collect();
        for reply in sent {
            let reply = reply.await.expect("an answer");
            assert!(
                matches!(
                    (reply.status, reply.outcome()),
                    (202, "accepted") | (200, "duplicate")
                ),
                "{reply:?}"
            );
        }
    }
    eventually("both are applied", async || {
        worlds[0].in_state(1).await == 2
    })
    .await;
    assert_eq!(worlds[0].ledger().await.len(), 2);
}

/// §5.13. Neither in memory nor in the database; where there are more writers than one, a successor neither.
async fn a_delivery_of_what_is_being_applied_waits_for_no_handler<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let world = held(over(&db), &gate).start().await;
    let other = held(over(&db), &gate).start().await;
    world.send(&numbered("acct", 1)).await.is_accepted();
    gate.reached_by(1).await;
    let soon = Duration::from_secs(3);
    for world in [&world, &other] {
        within(soon, world.send(&numbered("acct", 1)))
            .await
            .is_accepted();
        if !D::SINGLE_WRITER {
            within(soon, world.send(&numbered("acct", 2)))
                .await
                .is_accepted();
        }
    }
    gate.open();
    let count = if D::SINGLE_WRITER { 1 } else { 2 };
    eventually("all are applied", async || {
        world.sequences("acct").await.len() == count
    })
    .await;
}

/// §5.8, §3: load is 429.
async fn the_backlog_is_bounded<D: TestDb>(db: D) {
    let world = over(&db)
        .source(|source| source.park_limit(2))
        .start()
        .await;
    for n in [3, 4] {
        world.send(&numbered("acct", n)).await.is_accepted();
    }
    let full = world.send(&numbered("acct", 5)).await;
    full.is_problem_about(429, "failed", "parked events");
    assert!(full.retry_after().is_some());
    // What is stored already is not stored again.
    world.send(&numbered("acct", 3)).await.is_accepted();
    assert_eq!(world.number(NOTHING_PENDING).await, 2);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 2);
}

/// §5.9, §5.14
async fn another_process_applies_what_was_stored_before_it_began<D: TestDb>(db: D) {
    let world = over(&db)
        .source(|source| {
            source
                .backoff([Duration::from_millis(1)])
                .max_attempts(1_000)
        })
        .answers(|_| 503)
        .start()
        .await;
    let events = [
        Event::new("a"),
        Event::new("b"),
        numbered("acct", 1),
        numbered("acct", 2),
    ];
    for event in &events {
        world.send(event).await.is_accepted();
    }
    world.stop().await;
    // Whether it is deferred is no matter to what is stored.
    let world = World::<D>::start(&db).await;
    eventually("all are applied", async || world.ledger().await.len() == 4).await;
    assert_eq!(world.sequences("acct").await, [1, 2]);
    for event in &events {
        world.send(event).await.is_duplicate();
    }
}

/// §4.1, §5.7
async fn two_receivers_apply_each_event_once<D: TestDb>(db: D) {
    let worlds = [over(&db).start().await, over(&db).start().await];
    let events: Vec<_> = (1..=10)
        .flat_map(|n| [Event::new(&format!("e{n}")), numbered("acct", n)])
        .collect();
    for (n, event) in events.iter().enumerate() {
        worlds[n % 2].send(event).await.is_accepted();
    }
    eventually("all are applied", async || {
        worlds[0].in_state(1).await == 20
    })
    .await;
    let mut applied = worlds[0].applied().await;
    assert_eq!(applied.len(), 20);
    applied.sort();
    applied.dedup();
    assert_eq!(applied.len(), 20, "none twice");
    assert_eq!(
        worlds[0].sequences("acct").await,
        (1..=10).collect::<Vec<_>>()
    );
    for world in &worlds {
        world.pool_is_whole().await;
    }
}

/// §5.8, §5.13, (elements). One transaction, all or nothing; and each is applied on its own.
async fn a_request_of_several_events_is_stored_whole<D: TestDb>(db: D) {
    let unordered = |source: Source| {
        let mapping = tower_inbox::envelope::Mapping::new(Place::json("event_id"))
            .with_event_type(Place::json("event_type"));
        source
            .mapping(mapping)
            .elements(Some("events".into()))
            .park_limit(3)
    };
    let gate = Gate::shut();
    let world = held(over(&db).source(unordered), &gate).start().await;
    let batch = |ids: &[&str]| {
        let events: Vec<_> = ids.iter().map(|id| Event::new(id)).collect();
        world.batch(&events)
    };
    // Over the bound none of them is stored.
    world
        .post(batch(&["a", "b", "c", "d"]))
        .await
        .is_problem_about(429, "failed", "parked events");
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 0);
    world.post(batch(&["a", "b", "a"])).await.is_accepted();
    assert_eq!(world.number(NOTHING_PENDING).await, 2);
    gate.open();
    eventually("both are applied", async || world.in_state(1).await == 2).await;
    world.post(batch(&["b", "a"])).await.is_duplicate();
    world.post(batch(&["b", "c"])).await.is_accepted();
    eventually("the new one follows", async || world.in_state(1).await == 3).await;
    let mut applied = world.applied().await;
    applied.sort();
    assert_eq!(applied, ["a", "b", "c"]);
}

/// §5.4: expiry is for what waits for an event that has not come.
async fn what_only_waits_for_its_handler_is_no_gap<D: TestDb>(db: D) {
    let world = over(&db)
        .source(|source| {
            source
                .recovery_window(Duration::from_millis(200))
                .backoff([Duration::from_secs(3_600)])
                .revive_gaps(false)
        })
        .answers(|_| 503)
        .start()
        .await;
    for event in [
        numbered("acct", 1),
        numbered("acct", 2),
        numbered("acct", 3),
        Event::new("unordered"),
    ] {
        world.send(&event).await.is_accepted();
    }
    eventually("the heads have failed", async || {
        world
            .number("SELECT COUNT(*) FROM {p}pending WHERE attempts = 1")
            .await
            == 2
    })
    .await;
    // A real gap, which is stored last, is given up: the sweep has been here.
    world.send(&numbered("gap", 2)).await.is_accepted();
    eventually("the gap is given up", async || world.in_state(3).await >= 1).await;
    assert_eq!(
        world
            .texts("SELECT event_id FROM {p}event WHERE state = 3")
            .await,
        ["evt_gap_2"]
    );
}

/// §5.12
async fn what_was_overtaken_while_it_waited_is_superseded<D: TestDb>(db: D) {
    let newer =
        |source: Source| source.newer_than(Place::json("correlation_id"), Place::json("version"));
    let of = |id: &str, version: i64| {
        Event::new(id)
            .with("correlation_id", "acct")
            .with("version", version)
    };
    let world = over(&db).source(newer).start().await;
    world.send(&of("b", 20)).await.is_accepted();
    eventually("it is applied", async || world.in_state(1).await == 1).await;
    world.send(&of("a", 10)).await.is_accepted();
    eventually("it is superseded", async || world.in_state(5).await == 1).await;
    world.send(&of("a", 10)).await.is_superseded();
    assert_eq!(world.probe.runs("a"), 0);
    assert_eq!(world.number(NOTHING_PENDING).await, 0);
    assert_eq!(world.applied().await, ["b"]);
}

/// §5.13
async fn the_worker_gives_a_handler_a_time_of_its_own<D: TestDb>(db: D) {
    let world = over(&db)
        .source(|source| {
            source
                .budget(Duration::from_millis(200))
                .worker_budget(Duration::from_secs(20))
        })
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            tokio::time::sleep(Duration::from_millis(600)).await;
        })
        .start()
        .await;
    world.send(&Event::new("a")).await.is_accepted();
    eventually("it is applied", async || world.applied().await == ["a"]).await;
    assert_eq!(world.probe.runs("a"), 1);
}
