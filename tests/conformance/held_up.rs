//! §2.4, §2.5: deliveries that look what is known while they wait for their place, behind a handler that takes its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use tower_inbox::FailPoints;

use crate::db::TestDb;
use crate::kit::{Call, Event, Gate, World, eventually, numbered};

suite![
    other_content_is_refused_behind_a_handler_that_takes_long,
    of_a_stream_that_is_held_up_the_lowest_sequence_goes_first,
];

/// A world in which the handler of `slow` stands at the gate, and which has no reason to look what is known. How often it
/// looked all the same.
async fn held_up<D: TestDb>(db: &D, gate: &Gate) -> (World<D>, Arc<AtomicUsize>) {
    let (held, looks) = (gate.clone(), Arc::new(AtomicUsize::new(0)));
    let looked = Arc::clone(&looks);
    let world = World::<D>::over(db)
        .inbox(move |inbox| {
            inbox.fail_points(FailPoints::new(move |name| {
                if name == "store.known" {
                    looked.fetch_add(1, Ordering::SeqCst);
                }
                async { Ok(()) }
            }))
        })
        .handler(move |mut call: Call<D>| {
            let held = (call.delivery.event_id() == "slow").then(|| held.clone());
            async move {
                if let Some(gate) = held {
                    gate.pass().await;
                }
                call.append().await;
                StatusCode::NO_CONTENT
            }
        })
        .start()
        .await;
    // The first delivery of a process looks.
    world.send(&Event::new("first")).await.is_applied();
    (world, looks)
}

/// §2.4, §4.12: the refusal is written while others write.
async fn other_content_is_refused_behind_a_handler_that_takes_long<D: TestDb>(db: D) {
    let event = Event::new("evt_1").amount(1);
    let other = World::<D>::start(&db).await;
    other.send(&event).await.is_applied();
    let gate = Gate::shut();
    let (world, looks) = held_up(&db, &gate).await;
    let before = looks.load(Ordering::SeqCst);
    let slow = world.spawn(&Event::new("slow"));
    gate.reached_by(1).await;
    let refused = world.spawn(&event.amount(9));
    eventually("it has looked", async || {
        // Where there are several writers it need not.
        looks.load(Ordering::SeqCst) > before || refused.is_finished()
    })
    .await;
    gate.open();
    slow.await.unwrap().is_applied();
    let refused = refused.await.unwrap();
    refused.is_problem_about(422, "rejected", "other content");
    world.send(&Event::new("next")).await.is_applied();
}

/// §2.5, §5.1: those that overtook others on their way need not be parked for that.
async fn of_a_stream_that_is_held_up_the_lowest_sequence_goes_first<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let (world, looks) = held_up(&db, &gate).await;
    let before = looks.load(Ordering::SeqCst);
    let slow = world.spawn(&Event::new("slow").of("acct", 1));
    gate.reached_by(1).await;
    let waiting: Vec<_> = [5, 2, 4, 3, 6]
        .map(|n| world.spawn(&numbered("acct", n)))
        .into();
    // They do so while they wait for their turn.
    eventually("they have looked what is known", async || {
        looks.load(Ordering::SeqCst) >= before + waiting.len()
    })
    .await;
    gate.open();
    slow.await.unwrap().is_applied();
    for one in waiting {
        one.await.unwrap().is_applied();
    }
    assert_eq!(world.sequences("acct").await, (1..=6).collect::<Vec<_>>());
}
