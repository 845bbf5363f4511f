//! §5.15: `reset` starts a new generation of a stream: uniqueness is (source, correlation id, generation, sequence).

use tower_inbox::OperatorErrorKind as Kind;
use tower_inbox::operator::{Operator, Seen};

use crate::db::TestDb;
use crate::kit::{Call, Event, Gate, SOURCE, World, eventually, numbered};

suite![
    a_reset_stream_begins_again_and_what_was_stored_is_set_aside,
    another_process_finds_out_that_a_stream_was_reset,
    what_is_lower_than_the_new_start_is_set_aside,
    a_process_follows_the_database_back_to_an_earlier_generation,
    a_reset_while_a_delivery_is_at_work_waits_for_it_and_finds_the_cursor_moved,
    deliveries_and_resets_from_two_processes_end_in_one_order,
];

fn ada<D: TestDb>(world: &World<D>) -> Operator<D::DB> {
    world.inbox.operator("ada").expect("a name")
}

async fn seen<D: TestDb>(world: &World<D>) -> Seen {
    let stream = ada(world).cursor(SOURCE, "acct").await;
    stream.unwrap().expect("it has a cursor").seen()
}

async fn reset<D: TestDb>(world: &World<D>, first: i64) -> Seen {
    let seen = seen(world).await;
    let reset = ada(world)
        .reset(
            SOURCE,
            "acct",
            first,
            seen,
            "their database was set up anew",
        )
        .await
        .expect("it is reset");
    assert!(reset.changed);
    reset.cursor
}

/// An event of the new life of the stream.
fn anew(sequence: u64) -> Event {
    Event::new(&format!("evt_anew_{sequence}")).of("acct", sequence)
}

/// §4.3, §5.15
async fn a_reset_stream_begins_again_and_what_was_stored_is_set_aside<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    for n in 1..=2 {
        world.send(&numbered("acct", n)).await.is_applied();
    }
    world.send(&numbered("acct", 4)).await.is_parked(3);
    let before = seen(&world).await;
    let now = reset(&world, 1).await;
    assert_eq!((now.generation, now.next), (1, 1));
    let again = ada(&world).reset(SOURCE, "acct", 1, before, "again").await;
    assert_eq!(again.unwrap_err().kind(), Kind::CursorMoved { now });
    // Its places are others: those of the old generation are held there.
    world.send(&anew(4)).await.is_parked(1);
    world.send(&anew(2)).await.is_parked(1);
    world.send(&anew(1)).await.is_applied();
    world.send(&anew(3)).await;
    eventually("all follow", async || world.ledger().await.len() == 6).await;
    assert_eq!(world.sequences("acct").await, [1, 2, 1, 2, 3, 4]);
    // Known ids stay known, and what waited never comes.
    world.send(&numbered("acct", 1)).await.is_duplicate();
    let old = world.send(&numbered("acct", 4)).await;
    assert_eq!(old.json(), serde_json::json!({"status": "set_aside"}));
    assert_eq!(world.probe.runs("evt_acct_4"), 0);
    let taken = world.send(&Event::new("evt_other").of("acct", 1)).await;
    assert_eq!(taken.status, 422);
    // Only out of its order.
    let ada = ada(&world);
    let replayed = ada.replay(SOURCE, "evt_acct_4", "needed").await;
    assert_eq!(replayed.unwrap_err().kind(), Kind::SetAside);
    assert!(
        ada.replay_out_of_order(SOURCE, "evt_acct_4", "needed")
            .await
            .unwrap()
    );
    eventually("it is applied", async || {
        world.probe.runs("evt_acct_4") == 1
    })
    .await;
    eventually("nothing is left", async || {
        world.number("SELECT COUNT(*) FROM {p}pending").await == 0
    })
    .await;
    world.send(&anew(5)).await.is_applied();
}

/// §5.15. It inserts by what it knows, which is the old generation: neither a 422 for the old place, nor a row in it.
async fn another_process_finds_out_that_a_stream_was_reset<D: TestDb>(db: D) {
    let (office, counter) = (World::<D>::start(&db).await, World::<D>::start(&db).await);
    for n in 1..=2 {
        counter.send(&numbered("acct", n)).await.is_applied();
    }
    counter.send(&numbered("acct", 5)).await.is_parked(3);
    reset(&office, 1).await;
    counter.send(&anew(2)).await.is_parked(1);
    counter.send(&anew(1)).await.is_applied();
    eventually("2 follows", async || {
        counter.sequences("acct").await == [1, 2, 1, 2]
    })
    .await;
    reset(&office, 1).await;
    // A dead letter's place of the old generation is not given away either.
    counter
        .send(&Event::new("evt_third_1").of("acct", 1))
        .await
        .is_applied();
    counter
        .send(&Event::new("evt_third_5").of("acct", 5))
        .await
        .is_parked(2);
    let places = "SELECT COUNT(*) FROM {p}event WHERE generation = 2 AND slot IS NOT NULL";
    assert_eq!(office.number(places).await, 2);
    let yielded = "SELECT COUNT(*) FROM {p}event WHERE yielded_to IS NOT NULL";
    assert_eq!(office.number(yielded).await, 0);
    let wrong = "SELECT COUNT(*) FROM {p}event e JOIN {p}pending p ON p.event_id = e.event_id
        WHERE p.generation <> e.generation";
    assert_eq!(office.number(wrong).await, 0);
    counter.pool_is_whole().await;
}

/// §4.3: before-start ranges.
async fn what_is_lower_than_the_new_start_is_set_aside<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    reset(&world, 10).await;
    let early = world.send(&anew(9)).await;
    assert_eq!(early.json(), serde_json::json!({"status": "set_aside"}));
    let kept = "SELECT COUNT(*) FROM {p}pending WHERE reason = 6 AND event_id = 'evt_anew_9'";
    assert_eq!(world.number(kept).await, 1);
    world.send(&anew(10)).await.is_applied();
    let low = ada(&world)
        .reset(SOURCE, "acct", 0, seen(&world).await, "low")
        .await;
    assert_eq!(low.unwrap_err().kind(), Kind::Invalid);
}

/// §5.15. A restored backup may be older than what a process remembers.
async fn a_process_follows_the_database_back_to_an_earlier_generation<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    reset(&world, 1).await;
    world.send(&anew(1)).await.is_applied();
    world
        .execute("UPDATE {p}cursor SET generation = 0, next_sequence = 2")
        .await;
    world.send(&anew(2)).await.is_applied();
    let back = "SELECT COUNT(*) FROM {p}event WHERE event_id = 'evt_anew_2' AND generation = 0";
    assert_eq!(world.number(back).await, 1);
}

/// §5.15
async fn a_reset_while_a_delivery_is_at_work_waits_for_it_and_finds_the_cursor_moved<D: TestDb>(
    db: D,
) {
    let gate = Gate::shut();
    let held = gate.clone();
    let world = World::<D>::over(&db)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                if call.delivery.sequence() == Some(2) {
                    gate.pass().await;
                }
                http::StatusCode::NO_CONTENT
            }
        })
        .start()
        .await;
    world.send(&numbered("acct", 1)).await.is_applied();
    let seen = seen(&world).await;
    let delivery = world.spawn(&numbered("acct", 2));
    gate.reached_by(1).await;
    let resetting = {
        let ada = ada(&world);
        tokio::spawn(async move { ada.reset(SOURCE, "acct", 1, seen, "anew").await })
    };
    gate.open();
    delivery.await.unwrap().is_applied();
    let refused = resetting.await.unwrap().unwrap_err();
    let now = Seen { next: 3, ..seen };
    assert_eq!(refused.kind(), Kind::CursorMoved { now });
    world.send(&numbered("acct", 3)).await.is_applied();
}

/// §5.1, §5.15. Each generation is applied from its start on without a hole.
async fn deliveries_and_resets_from_two_processes_end_in_one_order<D: TestDb>(db: D) {
    let worlds = [World::<D>::start(&db).await, World::<D>::start(&db).await];
    worlds[0].send(&numbered("acct", 1)).await.is_applied();
    for life in 1..=4 {
        let office = &worlds[life % 2];
        let events: Vec<_> = (1..=3)
            .map(|n| Event::new(&format!("evt_{life}_{n}")).of("acct", n))
            .collect();
        reset(office, 1).await;
        let deliveries: Vec<_> = events
            .iter()
            .rev()
            .enumerate()
            .map(|(n, event)| worlds[n % 2].spawn(event))
            .collect();
        for delivery in deliveries {
            let reply = delivery.await.unwrap();
            assert!(matches!(reply.outcome(), "applied" | "parked"), "{reply:?}");
        }
        eventually("this life is complete", async || {
            office.sequences("acct").await.len() == 1 + life * 3
        })
        .await;
    }
    let mut expected = vec![1];
    expected.extend([1, 2, 3].repeat(4));
    assert_eq!(worlds[0].sequences("acct").await, expected);
}
