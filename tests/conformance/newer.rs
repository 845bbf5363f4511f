//! §5.12: newer-than order, for producers without gap-free numbers.

use std::time::Duration;

use serde_json::json;
use tower_inbox::envelope::{Mapping, Place};
use tower_inbox::{BuildErrorKind, EqualVersions, Inbox, Source};

use crate::db::TestDb;
use crate::kit::{Call, Event, Gate, SOURCE, Setup, World, eventually, seeded};

suite![
    an_older_version_is_acknowledged_recorded_and_never_handed_over,
    equal_versions_are_applied_unless_the_source_says_otherwise,
    times_are_compared_as_instants,
    a_handler_that_fails_leaves_the_version_as_it_was,
    a_dead_letter_that_was_overtaken_is_superseded_when_it_comes_again,
    two_receivers_apply_the_versions_of_one_entity_in_rising_order,
    an_older_version_that_waits_for_a_newer_one_in_flight_is_superseded,
    new_entities_do_not_hold_each_other_up,
    what_has_no_version_or_no_entity_is_refused,
    superseded_rows_are_purged_and_the_version_is_kept,
    a_request_of_several_events_applies_what_is_newer_in_it,
    orders_that_contradict_each_other_are_refused,
];

fn newer(source: Source) -> Source {
    source.newer_than(Place::json("correlation_id"), Place::json("version"))
}

fn over<D: TestDb>(db: &D) -> Setup<D> {
    World::<D>::over(db).source(newer)
}

/// A version of an entity.
fn of(entity: &str, id: &str, version: impl Into<serde_json::Value>) -> Event {
    Event::new(id)
        .with("correlation_id", entity)
        .with("version", version)
}

const VERSION: &str = "SELECT MAX(version) FROM {p}cursor WHERE correlation_id = 'acct'";

/// §3, §5.12. And its redeliveries get the same answer, by this process and by another one.
async fn an_older_version_is_acknowledged_recorded_and_never_handed_over<D: TestDb>(db: D) {
    let (world, other) = (over(&db).start().await, over(&db).start().await);
    world.send(&of("acct", "b", 20)).await.is_applied();
    for world in [&world, &world, &other] {
        let reply = world.send(&of("acct", "a", 10)).await;
        reply.is_superseded();
        world.send(&of("acct", "b", 20)).await.is_duplicate();
    }
    world.send(&of("else", "c", 1)).await.is_applied();
    world.send(&of("acct", "d", 30)).await.is_applied();
    assert_eq!(world.applied().await, ["b", "c", "d"]);
    assert_eq!(world.probe.runs("a") + other.probe.runs("a"), 0);
    assert_eq!(
        (world.in_state(5).await, world.number(VERSION).await),
        (1, 30)
    );
    assert_eq!(
        world
            .number("SELECT version FROM {p}event WHERE event_id = 'a'")
            .await,
        10
    );
    // "A known id with other content" is no other matter here (§4.12).
    other
        .send(&of("acct", "a", 10).amount(7))
        .await
        .is_problem_about(422, "rejected", "other content");
    world.pool_is_whole().await;
}

/// §5.12
async fn equal_versions_are_applied_unless_the_source_says_otherwise<D: TestDb>(db: D) {
    let world = over(&db).start().await;
    world.send(&of("acct", "a", 10)).await.is_applied();
    world.send(&of("acct", "b", 10)).await.is_applied();
    world.send(&of("acct", "a", 10)).await.is_duplicate();
    world.stop().await;
    let world = over(&db)
        .source(|source| source.equal_versions(EqualVersions::Supersede))
        .start()
        .await;
    let reply = world.send(&of("acct", "c", 10)).await;
    reply.is_superseded();
    world.send(&of("acct", "d", 11)).await.is_applied();
    // The ends of the range.
    for (id, version) in [("e", i64::MIN), ("f", i64::MIN)] {
        let reply = world.send(&of("low", id, version)).await;
        reply.is(
            if id == "e" { 204 } else { 200 },
            if id == "e" { "applied" } else { "duplicate" },
        );
    }
    world.send(&of("low", "g", i64::MAX)).await.is_applied();
    assert_eq!(world.applied().await, ["a", "b", "d", "e", "g"]);
}

/// §5.12
async fn times_are_compared_as_instants<D: TestDb>(db: D) {
    let world = over(&db).start().await;
    let noon = "2026-01-01T12:00:00.000001Z";
    world.send(&of("acct", "a", noon)).await.is_applied();
    // As a text it is greater; it is an hour earlier.
    let earlier = world
        .send(&of("acct", "b", "2026-01-01T13:00:00.000001+02:00"))
        .await;
    earlier.is_superseded();
    world
        .send(&of("acct", "c", "2026-01-01T12:00:00.000002Z"))
        .await
        .is_applied();
    assert_eq!(world.applied().await, ["a", "c"]);
}

/// §5.12: "by compare-and-swap in the handler's transaction".
async fn a_handler_that_fails_leaves_the_version_as_it_was<D: TestDb>(db: D) {
    let world = over(&db)
        .answers(
            |call: &Call<D>| match (call.delivery.event_id(), call.run) {
                ("b", 1) => 503,
                _ => 0,
            },
        )
        .start()
        .await;
    world.send(&of("acct", "a", 10)).await.is_applied();
    world.send(&of("acct", "b", 30)).await.is(503, "failed");
    assert_eq!(world.number(VERSION).await, 10);
    world.send(&of("acct", "c", 20)).await.is_applied();
    world.send(&of("acct", "b", 30)).await.is_applied();
    assert_eq!(world.applied().await, ["a", "c", "b"]);
}

/// §5.11: it is a new attempt only as long as nothing newer was applied.
async fn a_dead_letter_that_was_overtaken_is_superseded_when_it_comes_again<D: TestDb>(db: D) {
    let world = over(&db)
        .answers(
            |call: &Call<D>| match (call.delivery.event_id(), call.run) {
                ("a" | "b", 1) => 422,
                _ => 0,
            },
        )
        .start()
        .await;
    world.send(&of("acct", "a", 10)).await.is(422, "rejected");
    world.send(&of("acct", "a", 10)).await.is_applied();
    world.send(&of("acct", "b", 20)).await.is(422, "rejected");
    assert_eq!(world.number(VERSION).await, 10);
    world.send(&of("acct", "c", 30)).await.is_applied();
    let reply = world.send(&of("acct", "b", 20)).await;
    reply.is_superseded();
    assert_eq!(world.probe.runs("b"), 1);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
    assert_eq!((world.in_state(5).await, world.in_state(3).await), (1, 0));
    assert_eq!(world.applied().await, ["a", "c"]);
}

/// §4.7, §5.12: "by compare-and-swap": whatever comes first, what is applied only ever rises, and the greatest is
/// applied.
async fn two_receivers_apply_the_versions_of_one_entity_in_rising_order<D: TestDb>(db: D) {
    let mut random = seeded("two_receivers_apply_the_versions_of_one_entity_in_rising_order");
    let ledger = || {
        over(&db)
            .source(|source| source.budget(Duration::from_secs(20)))
            .handler(|mut call: Call<D>| async move {
                let mut entry = call.entry();
                entry.amount = call.delivery.version().expect("demanded");
                D::append(&mut call.tx, &entry).await.expect("written");
            })
    };
    let worlds = [ledger().start().await, ledger().start().await];
    let mut events: Vec<_> = (0..40)
        .map(|n| of(["x", "y"][n % 2], &format!("e{n}"), n))
        .collect();
    events.extend(events.clone());
    random.shuffle(&mut events);
    for wave in events.chunks(16) {
        let sent: Vec<_> = wave
            .iter()
            .enumerate()
            .map(|(n, event)| worlds[n % 2].spawn(event))
            .collect();
        for reply in sent {
            let reply = reply.await.expect("an answer");
            // Above READ COMMITTED contention between processes may end in 503 (§4.7).
            assert!(
                matches!(reply.outcome(), "applied" | "duplicate" | "failed"),
                "{reply:?}"
            );
        }
    }
    for event in &events {
        eventually("each is decided", async || {
            worlds[0].send(event).await.outcome() == "duplicate"
        })
        .await;
    }
    let ledger = worlds[0].ledger().await;
    for (entity, greatest) in [("x", 38), ("y", 39)] {
        let versions: Vec<_> = ledger
            .iter()
            .filter(|entry| entry.account == entity)
            .map(|entry| entry.amount)
            .collect();
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
        assert_eq!(versions.last(), Some(&greatest));
    }
    let decided = worlds[0].in_state(1).await + worlds[0].in_state(5).await;
    assert_eq!(decided, 40);
}

/// §5.12. It is decided by what commits, not by what has begun.
async fn an_older_version_that_waits_for_a_newer_one_in_flight_is_superseded<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let slow = over(&db)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                gate.pass().await;
            }
        })
        .start()
        .await;
    let other = over(&db).start().await;
    let newer = slow.spawn(&of("acct", "b", 20));
    gate.reached_by(1).await;
    let older = other.spawn(&of("acct", "a", 10));
    gate.open();
    newer.await.expect("an answer").is(200, "applied");
    let older = older.await.expect("an answer");
    older.is_superseded();
    assert_eq!(slow.applied().await, ["b"]);
}

/// §5.1, §5.12. Each opens a stream of its own: no handler waits for another one's, where the database has more than
/// one writer.
async fn new_entities_do_not_hold_each_other_up<D: TestDb>(db: D) {
    if D::SINGLE_WRITER {
        return;
    }
    let gate = Gate::shut();
    let held = gate.clone();
    let world = over(&db)
        .connections(6)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                gate.pass().await;
            }
        })
        .start()
        .await;
    let sent: Vec<_> = (0..4)
        .map(|n| world.spawn(&of(&format!("acct_{n}"), &format!("e{n}"), n)))
        .collect();
    gate.reached_by(4).await;
    gate.open();
    for reply in sent {
        reply.await.expect("an answer").is(200, "applied");
    }
    assert_eq!(world.probe.peak(), 4);
    for n in 0..4 {
        assert_eq!(world.probe.runs(&format!("e{n}")), 1, "no run was in vain");
    }
}

/// §3, §5.12
async fn what_has_no_version_or_no_entity_is_refused<D: TestDb>(db: D) {
    let world = over(&db).start().await;
    let entity = Event::new("a").with("correlation_id", "acct");
    for (event, field) in [
        (Event::new("a").with("version", 1), "correlation id"),
        (entity.clone(), "version"),
        (entity.clone().with("version", json!(null)), "version"),
        (entity.clone().with("version", "yesterday"), "version"),
        (entity.with("version", json!(1.5)), "version"),
    ] {
        world
            .send(&event)
            .await
            .is_problem_about(400, "rejected", field);
    }
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 0);
    // What the producer says about its own deliveries has neither.
    let control = Event::new("z").with("event_type", "subscription.replay_started");
    world.send(&control).await.is(200, "accepted");
}

/// §7.1, §7.2
async fn superseded_rows_are_purged_and_the_version_is_kept<D: TestDb>(db: D) {
    let world = over(&db)
        .source(|source| {
            source
                .retention(Duration::from_millis(300))
                .insecure_short_retention()
        })
        .start()
        .await;
    world.send(&of("acct", "b", 20)).await.is_applied();
    world.send(&of("acct", "a", 10)).await;
    eventually("both are purged", async || {
        world.number("SELECT COUNT(*) FROM {p}event").await == 0
    })
    .await;
    let reply = world.send(&of("acct", "a", 10)).await;
    reply.is_superseded();
    assert_eq!(world.applied().await, ["b"]);
}

/// §5.12, (elements)
async fn a_request_of_several_events_applies_what_is_newer_in_it<D: TestDb>(db: D) {
    let world = over(&db)
        .source(|source| source.elements(Some("events".into())))
        .start()
        .await;
    let first = [of("x", "b", 20), of("x", "a", 10), of("y", "c", 1)];
    world.post(world.batch(&first)).await.is_applied();
    assert_eq!(world.applied().await, ["b", "c"]);
    assert_eq!(world.in_state(5).await, 1);
    let older = world
        .post(world.batch(&[of("x", "d", 5), of("y", "e", 0)]))
        .await;
    older.is_superseded();
    assert_eq!((world.in_state(5).await, world.in_state(1).await), (3, 2));
    world.post(world.batch(&first)).await.is_duplicate();
    assert_eq!(world.applied().await, ["b", "c"]);
}

/// §5.12
async fn orders_that_contradict_each_other_are_refused<D: TestDb>(db: D) {
    let id = || Mapping::new(Place::json("event_id"));
    let version = || Place::json("version");
    let both = id()
        .with_correlation_id(Place::json("c"))
        .with_sequence(Place::json("n"))
        .with_version(version());
    for (mapping, says) in [
        (both, "not by both"),
        (id().with_version(version()), "a correlation id"),
    ] {
        let source = Source::kudos(SOURCE).secrets(["whk_any"]).mapping(mapping);
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
        assert!(error.to_string().contains(says), "{error}");
    }
}
