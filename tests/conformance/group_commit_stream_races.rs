//! §9: groups of a stream under random traffic: copies, failures, clients that leave, other processes, and what is parked and
//! drained beside them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;

use crate::batch::{Act, Passed, batched, drained, nothing};
use crate::db::TestDb;
use crate::kit::{Call, Event, World, eventually, numbered, seeded};

suite![
    random_traffic_of_streams_in_groups_ends_with_the_exact_ledger,
    a_stream_of_two_processes_is_applied_in_order_though_clients_leave,
    groups_and_what_is_parked_behind_gaps_are_applied_in_order,
    groups_whose_commits_are_lost_now_and_then_apply_nothing_twice,
    a_stream_whose_members_lock_rows_of_others_is_applied_in_order,
];

const STREAMS: usize = 2;
const EVENTS: u64 = 36;
/// Of each stream.
const CLIENTS: usize = 8;
const ATTEMPTS: usize = 1_000;
/// Before one that is parked is sent again.
const PAUSE: Duration = Duration::from_millis(20);

fn account(stream: usize) -> String {
    format!("s{stream}")
}

/// A world whose handlers fail now and then, each way in some first runs.
async fn failing<D: TestDb>(
    db: &D,
    act: impl Fn(&'static str, usize) -> Act + Send + Sync + 'static,
) -> (World<D>, Passed) {
    let (setup, passed) = batched(db, 16, act);
    let world = setup
        .connections(6)
        .answers(
            |call: &Call<D>| match (call.run, call.delivery.sequence().unwrap_or(0) % 23) {
                (1, 9) => 503,
                (1, 13) => 500,
                (1 | 2, 17) => 422,
                (1, 21) => std::panic::resume_unwind(Box::new("planned")),
                _ => 0,
            },
        )
        .start()
        .await;
    (world, passed)
}

/// Sends the events of all streams, each stream's by several clients that take the next one by turns, until each is
/// acknowledged; some several times. Now and then a client leaves.
async fn send_all<D: TestDb>(worlds: &[&World<D>], random: &mut fastrand::Rng, leave: bool) {
    let mut clients = Vec::new();
    for stream in 0..STREAMS {
        let next = Arc::new(AtomicU64::new(1));
        for _ in 0..CLIENTS {
            let (next, mut random) = (Arc::clone(&next), random.fork());
            let worlds: Vec<_> = worlds.iter().map(|world| (*world).clone()).collect();
            clients.push(tokio::spawn(async move {
                loop {
                    let sequence = next.fetch_add(1, Ordering::Relaxed);
                    if sequence > EVENTS {
                        return;
                    }
                    let event = numbered(&account(stream), sequence);
                    send_one(&worlds, stream, &event, &mut random, leave).await;
                }
            }));
        }
    }
    for client in clients {
        client.await.expect("all is acknowledged");
    }
}

async fn send_one<D: TestDb>(
    worlds: &[World<D>],
    stream: usize,
    event: &Event,
    random: &mut fastrand::Rng,
    leave: bool,
) {
    for _ in 0..ATTEMPTS {
        // Mostly to the same process, where others of its stream wait.
        let process = match random.u8(..8) {
            0 => random.usize(..),
            _ => stream,
        };
        let world = &worlds[process % worlds.len()];
        let copy = (random.u8(..8) == 0).then(|| {
            let world = &worlds[random.usize(..worlds.len())];
            world.spawn(event)
        });
        let one = world.spawn(event);
        if leave && random.u8(..8) == 0 {
            tokio::task::yield_now().await;
            one.abort();
        }
        let reply = one.await;
        if let Some(copy) = copy {
            copy.await.expect("an answer");
        }
        match reply {
            Ok(reply) if reply.status == 200 || reply.status == 204 => return,
            // Not yet: had it gone on, all behind a failure would be parked, and nobody would wait for the stream's turn.
            Ok(reply) if reply.status == 202 => tokio::time::sleep(PAUSE).await,
            Ok(reply) => assert!(
                matches!(reply.status, 422 | 429 | 500 | 503),
                "{}: {reply:?}",
                event.id()
            ),
            // It has left.
            Err(_) => {}
        }
    }
    panic!("{} is never acknowledged", event.id());
}

async fn all_in_order<D: TestDb>(world: &World<D>) {
    // What was parked when it came may be a dead letter of the worker's since: its producer sends it again, as an operator has it.
    eventually("all are applied", async || {
        let applied: BTreeSet<_> = world.applied().await.into_iter().collect();
        for stream in 0..STREAMS {
            for sequence in 1..=EVENTS {
                let event = numbered(&account(stream), sequence);
                if !applied.contains(event.id()) {
                    world.send(&event).await;
                    break;
                }
            }
        }
        applied.len() as u64 >= STREAMS as u64 * EVENTS
    })
    .await;
    for stream in 0..STREAMS {
        drained(world, &account(stream), EVENTS.cast_signed()).await;
    }
    let all = STREAMS as i64 * EVENTS.cast_signed();
    assert_eq!(world.in_state(1).await, all);
    assert_eq!(world.applied().await.len() as i64, all);
    world.pool_is_whole().await;
}

/// That they share is shown elsewhere; how much of it came about here depends on the machine.
fn say(passed: &[&Passed]) {
    let joined: usize = passed.iter().map(|it| it.of("store.insert_behind")).sum();
    eprintln!("{joined} went on in the transaction of another one");
}

/// §4.1, §5.1: as one by one.
async fn random_traffic_of_streams_in_groups_ends_with_the_exact_ledger<D: TestDb>(db: D) {
    let mut random = seeded("streams in groups");
    let (world, passed) = failing(&db, nothing).await;
    send_all(&[&world], &mut random, true).await;
    all_in_order(&world).await;
    say(&[&passed]);
}

/// §4.1, §4.5, §5.1: a copy in the other process may have its row before the group comes to it, and wait for the stream's cursor,
/// which the group holds.
async fn a_stream_of_two_processes_is_applied_in_order_though_clients_leave<D: TestDb>(db: D) {
    let mut random = seeded("streams of two processes in groups");
    let (one, passed) = failing(&db, nothing).await;
    let (two, others) = failing(&db, nothing).await;
    send_all(&[&one, &two], &mut random, true).await;
    all_in_order(&one).await;
    two.pool_is_whole().await;
    say(&[&passed, &others]);
}

/// §5.1, §5.6, §5.10
async fn groups_and_what_is_parked_behind_gaps_are_applied_in_order<D: TestDb>(db: D) {
    let mut random = seeded("groups beside drains");
    let (world, passed) = failing(&db, nothing).await;
    let mut all: Vec<_> = (0..STREAMS)
        .flat_map(|stream| (1..=EVENTS).map(move |sequence| (stream, sequence)))
        .collect();
    // Half of them come early, and are parked behind gaps.
    random.shuffle(&mut all);
    let (early, _) = all.split_at(all.len() / 2);
    for (stream, sequence) in early {
        world.send(&numbered(&account(*stream), *sequence)).await;
    }
    send_all(&[&world], &mut random, false).await;
    all_in_order(&world).await;
    say(&[&passed]);
}

/// §4.2, §9: before it, and behind it; and connections that are lost anywhere in a group.
async fn groups_whose_commits_are_lost_now_and_then_apply_nothing_twice<D: TestDb>(db: D) {
    let mut random = seeded("groups whose commits are lost");
    let act = |name: &'static str, nth: usize| match name {
        "store.commit" if nth % 13 == 5 => Act::Fail,
        "store.committed" if nth % 11 == 3 => Act::Fail,
        "store.insert_behind" if nth % 7 == 6 => Act::Fail,
        "handled" | "entered" | "begun" if nth % 41 == 17 => Act::Fail,
        _ => Act::Nothing,
    };
    let (world, passed) = failing(&db, act).await;
    send_all(&[&world], &mut random, true).await;
    all_in_order(&world).await;
    say(&[&passed]);
}

/// §4.7: streams whose handlers lock the same rows in different orders. Groups that deadlock are undone, and run one by one.
async fn a_stream_whose_members_lock_rows_of_others_is_applied_in_order<D: TestDb>(db: D) {
    let (setup, _) = batched(&db, 16, nothing);
    let world = setup
        .connections(6)
        .handler(|mut call: Call<D>| async move {
            // The two streams lock the same two rows by turns, each the other way round.
            let second = u64::from(call.delivery.correlation_id() == Some("s1"));
            let row = (call.delivery.sequence().unwrap_or(0).unsigned_abs() + second) % 2;
            let guarded = call.tx.guard(&format!("row_{row}"), 1).await;
            if guarded.is_err() {
                return StatusCode::INTERNAL_SERVER_ERROR;
            }
            call.append().await;
            StatusCode::NO_CONTENT
        })
        .start()
        .await;
    let mut sent = Vec::new();
    for sequence in 1..=10 {
        for stream in 0..2 {
            sent.push(world.spawn(&numbered(&account(stream), sequence)));
        }
    }
    for one in sent {
        let reply = one.await.expect("an answer");
        assert!(
            matches!(reply.status, 202 | 204 | 429 | 500 | 503),
            "{reply:?}"
        );
    }
    eventually("all are applied", async || {
        for sequence in 1..=10 {
            for stream in 0..2 {
                world.send(&numbered(&account(stream), sequence)).await;
            }
        }
        world.applied().await.len() >= 20
    })
    .await;
    for stream in 0..2 {
        drained(&world, &account(stream), 10).await;
    }
    tokio::time::timeout(Duration::from_secs(10), world.pool_is_whole())
        .await
        .expect("nobody holds a lock");
}
