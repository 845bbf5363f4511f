//! Where parts of the inbox meet: leases and operators, deferred mode and skipped places, adopted streams and discards,
//! stored answers and generations, erasure and memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tower_inbox::envelope::Place;
use tower_inbox::operator::{Erasure, Operator, Seen};
use tower_inbox::{FailPoints, Inbox, Park, Source};

use crate::answers::{BUDGET, MARGIN, held};
use crate::db::TestDb;
use crate::followers::followers;
use crate::kit::{
    Call, Event, Gate, Reply, SOURCE, Setup, TestClock, World, eventually, numbered, within,
};

suite![
    a_copy_that_looked_before_the_other_one_committed_is_a_duplicate,
    a_source_that_is_armed_again_is_so_whatever_was_read_before,
    a_delivery_whose_time_is_spent_behind_another_process_is_ended_at_the_server,
    what_was_discarded_before_its_stream_began_does_not_hold_it_up,
    what_is_lower_than_a_start_with_a_discarded_event_below_it_is_set_aside,
    what_another_process_made_due_is_not_left_for_the_hour_that_a_handler_asked_for,
    a_replay_takes_the_lease_away_and_counts_attempts_anew,
    a_replay_while_a_redelivery_is_rejected_is_not_lost,
    an_expiry_that_comes_late_leaves_what_an_operator_has_replayed,
    a_redelivery_leaves_what_an_operator_has_replayed,
    a_deferred_event_in_turn_is_stored_where_an_older_version_left_a_range_behind,
    what_is_sent_again_to_a_deferred_source_in_a_skipped_place_is_set_aside,
    what_is_of_an_earlier_generation_is_looked_at_where_answers_are_stored_too,
    an_erased_answer_is_forgotten_in_memory_too,
    what_was_erased_is_whole_again_when_it_is_sent_again,
    the_last_answer_of_a_quiet_source_is_forgotten_too,
    an_old_version_that_waits_does_not_outlive_a_reset,
    other_content_is_refused_behind_an_event_that_is_set_aside_too,
];

/// §2.6, §4.1: whatever was known before, it is the insert that decides. The copy has found nothing when it is held.
async fn a_copy_that_looked_before_the_other_one_committed_is_a_duplicate<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let (one, two) = (
        World::<D>::over(&db)
            .held_at("store.begin", &gate)
            .start()
            .await,
        World::<D>::start(&db).await,
    );
    let event = Event::new("evt_1");
    let copy = one.spawn(&event);
    gate.reached_by(1).await;
    two.send(&event).await.is_applied();
    gate.open();
    copy.await.unwrap().is_duplicate();
    assert_eq!((one.probe.runs("evt_1"), one.applied().await.len()), (0, 1));
}

const WHY: &str = "a test";
const DAY: Duration = Duration::from_secs(24 * 3600);

fn ada<D: TestDb>(world: &World<D>) -> Operator<D::DB> {
    world.inbox.operator("ada").expect("a name")
}

fn is_set_aside(reply: &Reply) {
    reply.is(202, "parked");
    assert_eq!(reply.body, r#"{"status":"set_aside"}"#, "{reply:?}");
}

/// The first that comes to this point waits at the gate.
fn first_at(point: &'static str, gate: &Gate) -> FailPoints {
    let (gate, come) = (gate.clone(), Arc::new(AtomicBool::new(false)));
    FailPoints::new(move |name| {
        let held = (name == point && !come.swap(true, Ordering::Relaxed)).then(|| gate.clone());
        async move {
            if let Some(gate) = held {
                gate.pass().await;
            }
            Ok(())
        }
    })
}

fn adopting<D: TestDb>(db: &D, clock: &TestClock) -> Setup<D> {
    let clock = clock.clone();
    World::<D>::over(db)
        .source(|source| source.adopt_first_sequence(Duration::from_secs(30)))
        .inbox(move |inbox| inbox.clock(clock).poll_every(Duration::from_millis(100)))
}

/// §3: a producer pauses the endpoint on a 410. The worker has read that the source is deregistered, and is held up with it
/// until it is armed again.
async fn a_source_that_is_armed_again_is_so_whatever_was_read_before<D: TestDb>(db: D) {
    let gate = Gate::shut();
    // 0: not yet; 1: to be held; 2: has read; 3: held, or gone on.
    let (stage, looked) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let points = {
        let (gate, stage, looked) = (gate.clone(), Arc::clone(&stage), Arc::clone(&looked));
        FailPoints::new(move |name| {
            let step = |from, to| {
                let swapped = stage.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
                swapped.is_ok()
            };
            let held = match name {
                "store.gone_sources" => {
                    step(1, 2);
                    false
                }
                "store.done" => step(2, 3),
                "store.pending_counts" => {
                    looked.fetch_add(1, Ordering::SeqCst);
                    false
                }
                _ => false,
            };
            let gate = held.then(|| gate.clone());
            async move {
                if let Some(gate) = gate {
                    gate.pass().await;
                }
                Ok(())
            }
        })
    };
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.fail_points(points))
        .start()
        .await;
    let ada = ada(&world);
    ada.deregister(SOURCE, WHY).await.expect("it is");
    stage.store(1, Ordering::SeqCst);
    gate.reached_by(1).await;
    ada.rearm(SOURCE, WHY).await.expect("it is");
    world.send(&Event::new("evt_1")).await.is_applied();
    let before = looked.load(Ordering::SeqCst);
    gate.open();
    // It has dealt with what it read when it asks for the next thing.
    eventually("the worker goes on", async || {
        looked.load(Ordering::SeqCst) > before
    })
    .await;
    world.send(&Event::new("evt_2")).await.is_applied();
}

/// §5.2, §5.14: the place of what was discarded is in the way of nothing.
async fn what_was_discarded_before_its_stream_began_does_not_hold_it_up<D: TestDb>(db: D) {
    let clock = TestClock::new();
    let world = adopting(&db, &clock).start().await;
    for sequence in [0, 1, 2] {
        world.send(&numbered("acct", sequence)).await.is_parked(0);
    }
    assert!(
        ada(&world)
            .discard(SOURCE, "evt_acct_0", WHY)
            .await
            .unwrap()
    );
    clock.advance(Duration::from_secs(30));
    eventually("it begins", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
}

/// §4.3, §5.2
async fn what_is_lower_than_a_start_with_a_discarded_event_below_it_is_set_aside<D: TestDb>(db: D) {
    let clock = TestClock::new();
    let world = adopting(&db, &clock).start().await;
    for sequence in [3, 5] {
        world.send(&numbered("acct", sequence)).await.is_parked(0);
    }
    assert!(
        ada(&world)
            .discard(SOURCE, "evt_acct_3", WHY)
            .await
            .unwrap()
    );
    clock.advance(Duration::from_secs(30));
    eventually("it begins", async || world.sequences("acct").await == [5]).await;
    for sequence in [4, 2] {
        is_set_aside(&world.send(&numbered("acct", sequence)).await);
    }
    world.send(&numbered("acct", 6)).await.is_applied();
}

/// §5.14: the obstacle is gone when the head is discarded, and whoever did it cannot tell this process.
async fn what_another_process_made_due_is_not_left_for_the_hour_that_a_handler_asked_for<
    D: TestDb,
>(
    db: D,
) {
    let world = World::<D>::over(&db)
        .inbox(|inbox| inbox.poll_every(Duration::from_millis(200)))
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            match (call.delivery.sequence(), call.run) {
                (Some(2), _) if call.delivery.correlation_id() == Some("failing") => {
                    let hour = [("retry-after", "3600")];
                    (StatusCode::SERVICE_UNAVAILABLE, hour).into_response()
                }
                (Some(2), _) => Park::after(Duration::from_secs(3_600)).into_response(),
                _ => StatusCode::NO_CONTENT.into_response(),
            }
        })
        .start()
        .await;
    for account in ["failing", "waiting"] {
        for sequence in [3, 2] {
            world.send(&numbered(account, sequence)).await.is_parked(1);
        }
        world.send(&numbered(account, 1)).await.is_applied();
    }
    let postponed =
        "SELECT COUNT(*) FROM {p}pending WHERE sequence = 2 AND not_before > parked_at + 60000000
        AND lease_token = 0";
    eventually("both were tried", async || {
        world.number(postponed).await == 2
    })
    .await;
    // A process that mounts nothing, such as the command line's.
    let other = Inbox::builder(world.eyes.clone())
        .source(Source::kudos(SOURCE).secrets([world.secret()]))
        .table_prefix(world.db.prefix())
        .build()
        .await
        .expect("it is built");
    for account in ["failing", "waiting"] {
        let id = format!("evt_{account}_2");
        let operator = other.operator("ada").expect("a name");
        assert!(operator.discard(SOURCE, &id, WHY).await.unwrap());
        let applied = eventually("3 follows", async || {
            world.sequences(account).await == [1, 3]
        });
        within(Duration::from_secs(10), applied).await;
    }
    other.shutdown().await;
}

/// §5.5, §5.15: a dead letter that is on its way already is replayed, and its attempt then says nothing about it.
async fn a_replay_takes_the_lease_away_and_counts_attempts_anew<D: TestDb>(db: D) {
    let (gate, breaks) = (Gate::shut(), Arc::new(AtomicUsize::new(0)));
    let points = {
        let (gate, breaks) = (gate.clone(), Arc::clone(&breaks));
        FailPoints::new(move |name| {
            let (gate, breaks) = (gate.clone(), Arc::clone(&breaks));
            async move {
                if name == "claimed" {
                    gate.pass().await;
                }
                let broken = name == "begun"
                    && breaks
                        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                        .is_ok();
                if broken {
                    return Err(sqlx::Error::WorkerCrashed);
                }
                Ok(())
            }
        })
    };
    let world = World::<D>::over(&db)
        .source(|source| {
            source
                .recovery_window(Duration::from_millis(200))
                .backoff([Duration::from_millis(10)])
                .max_attempts(3)
        })
        .inbox(move |inbox| inbox.fail_points(points))
        .answers(|call: &Call<D>| match call.delivery.sequence() {
            Some(2) => 503,
            _ => 0,
        })
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    eventually("it is given up", async || world.in_state(3).await == 1).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    gate.reached_by(1).await;
    assert!(ada(&world).replay(SOURCE, "evt_acct_2", WHY).await.unwrap());
    breaks.store(1, Ordering::Relaxed);
    gate.open();
    eventually("it is a dead letter", async || {
        world
            .number("SELECT COUNT(*) FROM {p}pending WHERE reason = 2")
            .await
            == 1
    })
    .await;
    assert_eq!(world.probe.runs("evt_acct_2"), 3);
    assert_eq!(world.number("SELECT attempts FROM {p}pending").await, 3);
}

/// §5.15, §4.13: where the rollback of the handler's work gives the lock on its event back.
async fn a_replay_while_a_redelivery_is_rejected_is_not_lost<D: TestDb>(db: D) {
    let setup = || {
        World::<D>::over(&db).answers(|call: &Call<D>| match call.run {
            1 => 422,
            _ => 0,
        })
    };
    let first = setup().start().await;
    first.send(&Event::new("evt_1")).await.is(422, "rejected");
    let gate = Gate::shut();
    let points = first_at("undone", &gate);
    let world = setup()
        .inbox(move |inbox| inbox.fail_points(points))
        .start()
        .await;
    let redelivery = world.spawn(&Event::new("evt_1"));
    gate.reached_by(1).await;
    let replaying = ada(&first);
    let mut replay =
        tokio::spawn(async move { replaying.replay(SOURCE, "evt_1", WHY).await.unwrap() });
    // It has the lock there, or waits for it.
    let done = tokio::time::timeout(Duration::from_millis(500), &mut replay).await;
    gate.open();
    redelivery.await.expect("it is answered");
    let replayed = match done {
        Ok(done) => done,
        Err(_) => replay.await,
    };
    assert!(replayed.expect("it ends"));
    eventually("it is tried once more, and applied", async || {
        world.applied().await == ["evt_1"]
    })
    .await;
}

/// §5.4, §4.3: the sweep has seen it parked, and comes to it when everything is different.
async fn an_expiry_that_comes_late_leaves_what_an_operator_has_replayed<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let points = first_at("opening", &gate);
    let backoff = Duration::from_secs(1);
    let world = World::<D>::over(&db)
        .source(move |source| {
            source
                .recovery_window(Duration::from_millis(200))
                .backoff([backoff])
        })
        .inbox(move |inbox| inbox.fail_points(points))
        .answers(|call: &Call<D>| match call.run {
            1 => 503,
            _ => 0,
        })
        .start()
        .await;
    world.send(&numbered("acct", 3)).await.is_parked(1);
    gate.reached_by(1).await;
    let ada = ada(&world);
    let seen = ada.cursor(SOURCE, "acct").await.unwrap().unwrap().seen();
    ada.skip_range(SOURCE, "acct", 1..=3, seen, WHY)
        .await
        .unwrap();
    assert!(
        ada.replay_out_of_order(SOURCE, "evt_acct_3", WHY)
            .await
            .unwrap()
    );
    eventually("it was tried in vain", async || {
        world.probe.runs("evt_acct_3") == 1
            && world
                .number("SELECT COUNT(*) FROM {p}pending WHERE last_status = 503")
                .await
                == 1
    })
    .await;
    gate.open();
    eventually("it is tried again, and applied", async || {
        world.sequences("acct").await == [3]
    })
    .await;
}

/// §4.3, §5.15: its producer sends it again while the worker waits to try it again.
async fn a_redelivery_leaves_what_an_operator_has_replayed<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.backoff([Duration::from_secs(2)]))
        .answers(|call: &Call<D>| match call.run {
            1 => 503,
            _ => 0,
        })
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    let ada = ada(&world);
    let seen = ada.cursor(SOURCE, "acct").await.unwrap().unwrap().seen();
    ada.skip_range(SOURCE, "acct", 1..=2, seen, WHY)
        .await
        .unwrap();
    assert!(
        ada.replay_out_of_order(SOURCE, "evt_acct_2", WHY)
            .await
            .unwrap()
    );
    eventually("it was tried in vain", async || {
        world
            .number("SELECT COUNT(*) FROM {p}pending WHERE last_status = 503")
            .await
            == 1
    })
    .await;
    is_set_aside(&world.send(&numbered("acct", 2)).await);
    eventually("it is tried again, and applied", async || {
        world.sequences("acct").await == [2]
    })
    .await;
    world.send(&numbered("acct", 2)).await.is_duplicate();
}

/// §4.3: version 1 moves the cursor and knows nothing of ranges.
async fn a_deferred_event_in_turn_is_stored_where_an_older_version_left_a_range_behind<
    D: TestDb,
>(
    db: D,
) {
    let world = World::<D>::over(&db).source(Source::deferred).start().await;
    world.send(&numbered("acct", 1)).await.is_accepted();
    eventually("it is applied", async || world.in_state(1).await == 1).await;
    world
        .execute("UPDATE {p}cursor SET next_sequence = 4, next_range = 3")
        .await;
    world
        .execute(
            "INSERT INTO {p}range (source, correlation_id, generation, first_sequence, last_sequence, kind, at)
                VALUES ('crm', 'acct', 0, 3, 3, 1, 1)",
        )
        .await;
    world.send(&numbered("acct", 4)).await.is_accepted();
    eventually("it is applied", async || {
        world.sequences("acct").await == [1, 4]
    })
    .await;
}

/// §3, §4.3: "accepted" is for what a worker will apply.
async fn what_is_sent_again_to_a_deferred_source_in_a_skipped_place_is_set_aside<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .one_by_one()
        .source(|source| source.deferred().skip_rejected(true))
        .answers(|call: &Call<D>| match call.delivery.sequence() {
            Some(1) => 422,
            _ => 0,
        })
        .start()
        .await;
    world.send(&numbered("acct", 1)).await.is_accepted();
    world.send(&numbered("acct", 2)).await.is_accepted();
    eventually("1 is skipped", async || {
        world.sequences("acct").await == [2]
    })
    .await;
    for _ in 0..2 {
        is_set_aside(&world.send(&numbered("acct", 1)).await);
    }
    assert_eq!(
        world
            .number("SELECT COUNT(*) FROM {p}pending WHERE reason = 3")
            .await,
        1
    );
    assert_eq!(world.probe.runs("evt_acct_1"), 1);
}

/// §5.15: what version 1 of the crate, or a deferred delivery, stored beside a reset.
async fn what_is_of_an_earlier_generation_is_looked_at_where_answers_are_stored_too<D: TestDb>(
    db: D,
) {
    let world = World::<D>::over(&db)
        .source(|source| source.store_answers(true))
        .start()
        .await;
    world.send(&numbered("acct", 5)).await.is_parked(1);
    world.execute("UPDATE {p}cursor SET generation = 1").await;
    is_set_aside(&world.send(&numbered("acct", 5)).await);
}

/// (erasure). Issue 6: the process that applied it knows its answer without the database.
async fn an_erased_answer_is_forgotten_in_memory_too<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.store_answers(true))
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            "a person's name"
        })
        .start()
        .await;
    let event = Event::new("evt_1");
    world.send(&event).await.is(200, "applied");
    assert_eq!(world.send(&event).await.body, "a person's name");
    let erased = ada(&world)
        .erase(SOURCE, Erasure::Event("evt_1"), WHY)
        .await;
    assert_eq!(erased.expect("it is").answers, 1);
    world.send(&event).await.is_duplicate();
    assert_eq!(world.probe.runs("evt_1"), 1);
}

/// §5.11, §5.13: a request is more than its body.
async fn what_was_erased_is_whole_again_when_it_is_sent_again<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(Source::deferred)
        .handler(|mut call: Call<D>| async move {
            if call.run == 1 {
                return StatusCode::UNPROCESSABLE_ENTITY.into_response();
            }
            assert_eq!(call.request.headers()["content-type"], "application/json");
            assert_eq!(call.tenant, "acme");
            call.append().await;
            Response::default()
        })
        .start()
        .await;
    world.send(&Event::new("evt_1")).await.is_accepted();
    eventually("it is refused", async || world.in_state(3).await == 1).await;
    let erased = ada(&world)
        .erase(SOURCE, Erasure::Event("evt_1"), WHY)
        .await;
    assert_eq!(erased.expect("it is").letters, 1);
    world.send(&Event::new("evt_1")).await.is_accepted();
    eventually("it is applied", async || world.applied().await == ["evt_1"]).await;
}

/// §7.1: an answer is younger than its event by as long as the handler took.
async fn the_last_answer_of_a_quiet_source_is_forgotten_too<D: TestDb>(db: D) {
    let clock = TestClock::new().of_the_database_too();
    let (read, slow, far) = (clock.clone(), clock.clone(), DAY * 4000);
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.clock(read))
        .source(|source| {
            source
                .store_answers(true)
                .tolerance(tower_inbox::verify::Tolerance::new(far, far))
        })
        .handler(move |mut call: Call<D>| {
            slow.advance(Duration::from_secs(60));
            async move { call.append().await }
        })
        .start()
        .await;
    world.send(&Event::new("evt_1")).await.is(200, "applied");
    clock.advance(DAY * 30 - Duration::from_secs(30));
    world.inbox.purge(SOURCE).await.expect("it is");
    eventually("the event is gone", async || world.in_state(1).await == 0).await;
    clock.advance(DAY);
    world.inbox.purge(SOURCE).await.expect("it is");
    eventually("so is its answer", async || {
        world.number("SELECT COUNT(*) FROM {p}answer").await == 0
    })
    .await;
}

/// §5.12, §5.15: versions that begin anew are not overtaken by one of before.
async fn an_old_version_that_waits_does_not_outlive_a_reset<D: TestDb>(db: D) {
    let of = |id: &str, version: i64| {
        Event::new(id)
            .with("correlation_id", "acct")
            .with("version", version)
    };
    let world = World::<D>::over(&db)
        .source(|source| {
            source
                .newer_than(Place::json("correlation_id"), Place::json("version"))
                .deferred()
        })
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            match (call.delivery.event_id(), call.run) {
                ("old", 1) => Park::after(Duration::from_secs(1)).into_response(),
                _ => StatusCode::NO_CONTENT.into_response(),
            }
        })
        .start()
        .await;
    world.send(&of("first", 900)).await.is_accepted();
    eventually("it is applied", async || world.in_state(1).await == 1).await;
    world.send(&of("old", 1_000)).await.is_accepted();
    eventually("it is put off", async || world.probe.runs("old") == 1).await;
    let ada = ada(&world);
    let seen = ada.cursor(SOURCE, "acct").await.unwrap().unwrap().seen();
    ada.reset(SOURCE, "acct", 1, seen, WHY).await.unwrap();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    world.send(&of("new", 1)).await.is_accepted();
    eventually("the new one is applied", async || {
        world.applied().await == ["first", "new"]
    })
    .await;
    is_set_aside(&world.send(&of("old", 1_000)).await);
}

/// §4.8, §4.12: what the one that goes ahead gets is for those with its content.
async fn other_content_is_refused_behind_an_event_that_is_set_aside_too<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let points = first_at("entered", &gate);
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.fail_points(points))
        .start()
        .await;
    let first = Seen {
        generation: 0,
        next: 1,
    };
    let skipped = ada(&world).skip(SOURCE, "acct", 1, first, WHY).await;
    assert!(skipped.unwrap().changed);
    let event = numbered("acct", 1);
    let ahead = world.spawn(&event);
    gate.reached_by(1).await;
    let behind = followers(&world, &event.amount(9)).await;
    gate.open();
    is_set_aside(&ahead.await.unwrap());
    for reply in behind {
        let reply = reply.await.unwrap();
        reply.is_problem_about(422, "rejected", "other content");
    }
}

/// §4.6: a new event goes with BEGIN, where it may wait for another process's. A server that does not look for clients that
/// are gone is told.
async fn a_delivery_whose_time_is_spent_behind_another_process_is_ended_at_the_server<D: TestDb>(
    db: D,
) {
    // Here nobody can be warm behind another process, which has the only write lock.
    if D::SINGLE_WRITER {
        return;
    }
    let gate = Gate::shut();
    let other = World::<D>::over(&db)
        .handler(held::<D>(&gate))
        .start()
        .await;
    let kills = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&kills);
    let world = World::<D>::over(&db)
        .source(|source| source.budget(BUDGET))
        .inbox(move |inbox| {
            inbox.fail_points(FailPoints::new(move |name| {
                let killed = usize::from(name == "watch.kill");
                counted.fetch_add(killed, Ordering::SeqCst);
                async { Ok(()) }
            }))
        })
        .start()
        .await;
    let slow = other.spawn(&Event::new("evt_held"));
    gate.reached_by(1).await;
    for n in 0..4 {
        // Its connection stays with the inbox for a moment.
        world
            .send(&Event::new(&format!("evt_{n}")))
            .await
            .is_applied();
        let before = kills.load(Ordering::SeqCst);
        let behind = within(BUDGET + MARGIN, world.send(&Event::new("evt_held"))).await;
        behind.is(503, "failed");
        if D::NAME == "mysql" {
            eventually("the server is told", async || {
                kills.load(Ordering::SeqCst) > before
            })
            .await;
        }
    }
    gate.open();
    slow.await.expect("an answer").is_applied();
    world.send(&Event::new("evt_held")).await.is_duplicate();
    world.pool_is_whole().await;
}
