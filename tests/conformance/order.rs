//! §5.1, §5.2, §4.3: within one correlation id, in the order of the sequences and with no hole.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tower_inbox::Source;
use tower_inbox::envelope::Sequence;

use crate::db::TestDb;
use crate::kit::{Call, Event, SOURCE, World, eventually, numbered, seeded};

suite![
    a_gap_parks_what_comes_after_it_and_its_filling_frees_it,
    a_reversed_stream_is_applied_in_order,
    shuffled_streams_with_duplicates_are_applied_in_order,
    shuffled_streams_against_failing_handlers_are_applied_in_order,
    a_stream_may_begin_at_0,
    a_sequence_below_the_first_one_is_refused,
    events_without_a_sequence_wait_for_nobody,
    a_source_may_demand_an_order,
    the_header_preset_orders_too,
    of_two_firsts_of_a_new_stream_one_is_applied,
    the_first_two_of_a_new_stream_at_once_are_both_applied,
    a_purged_event_that_is_delivered_again_is_a_duplicate,
    retention_forgets_rows_and_keeps_the_order,
    a_stream_that_fails_holds_up_no_other,
];

/// §2.7, §3, §5.1, §5.6
async fn a_gap_parks_what_comes_after_it_and_its_filling_frees_it<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 4)).await.is_parked(1);
    world.send(&numbered("acct", 2)).await.is_parked(1);
    assert_eq!(
        (world.in_state(2).await, world.ledger().await.len()),
        (2, 0)
    );
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("2 follows", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
    // What is waited for is the lowest missing sequence.
    world.send(&numbered("acct", 4)).await.is_parked(3);
    world.send(&numbered("acct", 5)).await.is_parked(3);
    world.send(&numbered("acct", 3)).await.is_applied();
    eventually("the rest follows", async || world.ledger().await.len() == 5).await;
    assert_eq!(world.sequences("acct").await, [1, 2, 3, 4, 5]);
    for n in 1..=5 {
        world.send(&numbered("acct", n)).await.is_duplicate();
    }
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
    assert_eq!(world.in_state(1).await, 5);
}

/// §5.1
async fn a_reversed_stream_is_applied_in_order<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    for n in (2..=30).rev() {
        world.send(&numbered("acct", n)).await.is_parked(1);
    }
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("all follow", async || world.ledger().await.len() == 30).await;
    assert_eq!(world.sequences("acct").await, (1..=30).collect::<Vec<_>>());
}

const ACCOUNTS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Every event of five streams, each one to three times, shuffled.
fn shuffled(random: &mut fastrand::Rng, length: u64) -> Vec<Event> {
    let mut traffic = Vec::new();
    for account in ACCOUNTS {
        for n in 1..=length {
            traffic.extend((0..random.usize(1..4)).map(|_| numbered(account, n)));
        }
    }
    random.shuffle(&mut traffic);
    traffic
}

/// §4.1, §5.1; eight deliveries at a time.
async fn shuffled_streams_with_duplicates_are_applied_in_order<D: TestDb>(db: D) {
    let mut random = seeded("shuffled streams");
    let world = World::<D>::start(&db).await;
    let traffic = Arc::new(shuffled(&mut random, 20));
    let next = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (world, traffic, next) = (world.clone(), Arc::clone(&traffic), Arc::clone(&next));
            tokio::spawn(async move {
                while let Some(event) = traffic.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let reply = world.send(event).await;
                    let known = ["applied", "duplicate", "parked"];
                    assert!(known.contains(&reply.outcome()), "{reply:?}");
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    exact(&world, 20).await;
}

async fn exact<D: TestDb>(world: &World<D>, length: i64) {
    eventually("all is applied", async || {
        world.number("SELECT COUNT(*) FROM ledger").await >= length * 5
    })
    .await;
    for account in ACCOUNTS {
        assert_eq!(
            world.sequences(account).await,
            (1..=length).collect::<Vec<_>>(),
            "{account}"
        );
    }
    let left = "SELECT COUNT(*) FROM {p}pending";
    eventually("nothing is left", async || world.number(left).await == 0).await;
    world.pool_is_whole().await;
}

/// §5.1, §5.5: the same while every third event fails at first, live or drained.
async fn shuffled_streams_against_failing_handlers_are_applied_in_order<D: TestDb>(db: D) {
    let mut random = seeded("failing streams");
    let world = World::<D>::over(&db)
        .source(|source| source.backoff([Duration::from_millis(10)]))
        .answers(
            |call| match (call.run, call.delivery.sequence().unwrap() % 3) {
                (1, 0) => 503,
                _ => 0,
            },
        )
        .start()
        .await;
    let mut failed = shuffled(&mut random, 12);
    while !failed.is_empty() {
        let sent: Vec<_> = failed
            .drain(..)
            .map(|event| (world.spawn(&event), event))
            .collect();
        for (reply, event) in sent {
            if reply.await.unwrap().outcome() == "failed" {
                failed.push(event);
            }
        }
    }
    exact(&world, 12).await;
}

fn first(sequence: i64) -> Sequence {
    Sequence::new(sequence).unwrap()
}

/// §5.2
async fn a_stream_may_begin_at_0<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.first_sequence(first(0)))
        .start()
        .await;
    world.send(&numbered("acct", 1)).await.is_parked(0);
    world.send(&numbered("acct", 0)).await.is_applied();
    eventually("1 follows", async || world.ledger().await.len() == 2).await;
    assert_eq!(world.sequences("acct").await, [0, 1]);
    world.send(&numbered("acct", 0)).await.is_duplicate();
}

/// §4.9: "below the source's first one: 400".
async fn a_sequence_below_the_first_one_is_refused<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world
        .send(&numbered("acct", 0))
        .await
        .is_problem_about(400, "rejected", "sequence");
    world.send(&numbered("acct", 1)).await.is_applied();
    world
        .send(&numbered("acct", 0))
        .await
        .is_problem_about(400, "rejected", "sequence");
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 1);
}

/// §4.9: "a correlation id without a sequence: unordered".
async fn events_without_a_sequence_wait_for_nobody<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world
        .send(&Event::new("evt_free").with("correlation_id", "acct"))
        .await
        .is_applied();
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("2 follows", async || world.ledger().await.len() == 3).await;
    assert_eq!(
        world.applied().await,
        ["evt_free", "evt_acct_1", "evt_acct_2"]
    );
}

/// §4.9: "a source may demand both".
async fn a_source_may_demand_an_order<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(Source::require_order)
        .start()
        .await;
    world.send(&Event::new("evt_1")).await.is(400, "rejected");
    world
        .send(&Event::new("evt_1").with("correlation_id", "acct"))
        .await
        .is(400, "rejected");
    world.send(&numbered("acct", 1)).await.is_applied();
}

/// §2.3, §3. RECEIVER.md, `sequenced`: headers, if sent, must agree.
async fn the_header_preset_orders_too<D: TestDb>(db: D) {
    let secret = World::<D>::over(&db).start().await.secret();
    let world = World::<D>::over(&db)
        .source(|_| Source::sequenced(SOURCE).secrets([secret]))
        .start()
        .await;
    let request = |event: &Event, header: &'static str, value: &str| {
        let mut request = world.request(event);
        let signature = request.headers_mut().remove("x-kudos-signature").unwrap();
        request.headers_mut().insert("x-signature", signature);
        request.headers_mut().insert(header, value.parse().unwrap());
        request
    };
    world
        .post(request(&numbered("acct", 2), "x-sequence", "2"))
        .await
        .is_parked(1);
    world
        .post(request(&numbered("acct", 1), "x-sequence", "2"))
        .await
        .is(400, "rejected");
    world
        .post(request(&numbered("acct", 1), "x-event-id", "evt_other"))
        .await
        .is(400, "rejected");
    world
        .post(request(&numbered("acct", 1), "x-correlation-id", "acct"))
        .await
        .is_applied();
    eventually("2 follows", async || world.ledger().await.len() == 2).await;
}

/// §2.7, §4.3, §9: their cursor's row does not exist yet.
async fn of_two_firsts_of_a_new_stream_one_is_applied<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    for n in 0..20 {
        let account = format!("acct_{n}");
        let firsts =
            ["left", "right"].map(|side| Event::new(&format!("evt_{side}_{n}")).of(&account, 1));
        let [left, right] = firsts.each_ref().map(|event| world.spawn(event));
        let mut answers = [left.await.unwrap().status, right.await.unwrap().status];
        answers.sort_unstable();
        assert_eq!(answers, [204, 422]);
        assert_eq!(world.sequences(&account).await, [1]);
    }
}

/// §5.1, §9
async fn the_first_two_of_a_new_stream_at_once_are_both_applied<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    for n in 0..20 {
        let account = format!("acct_{n}");
        let both = [2, 1].map(|sequence| world.spawn(&numbered(&account, sequence)));
        for reply in both {
            assert!(matches!(
                reply.await.unwrap().outcome(),
                "applied" | "parked"
            ));
        }
        eventually("both are applied", async || {
            world.sequences(&account).await == [1, 2]
        })
        .await;
    }
}

/// §4.3, §7.2: "an old sequenced event replayed after the purge is still a duplicate".
async fn a_purged_event_that_is_delivered_again_is_a_duplicate<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .inbox(|inbox| inbox.remembered(0))
        .start()
        .await;
    for n in 1..=3 {
        world.send(&numbered("acct", n)).await.is_applied();
    }
    assert_eq!(
        world
            .execute("DELETE FROM {p}event WHERE sequence < 3")
            .await,
        2
    );
    for n in 1..=3 {
        world.send(&numbered("acct", n)).await.is_duplicate();
        assert_eq!(world.probe.runs(&format!("evt_acct_{n}")), 1);
    }
    world.send(&numbered("acct", 4)).await.is_applied();
}

/// §7.1, §7.2: only applied rows go; cursors and dead letters stay.
async fn retention_forgets_rows_and_keeps_the_order<D: TestDb>(db: D) {
    let retention = Duration::from_millis(300);
    let world = World::<D>::over(&db)
        .source(|source| source.retention(retention).insecure_short_retention())
        .inbox(|inbox| inbox.remembered(0))
        .answers(|call| {
            if call.delivery.event_id() == "evt_bad" {
                422
            } else {
                0
            }
        })
        .start()
        .await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 2)).await.is_applied();
    world.send(&numbered("acct", 4)).await.is_parked(3);
    world.send(&Event::new("evt_bad")).await.is(422, "rejected");
    eventually("applied rows are purged", async || {
        world.in_state(1).await == 0
    })
    .await;
    assert_eq!((world.in_state(2).await, world.in_state(3).await), (1, 1));
    world.send(&numbered("acct", 1)).await.is_duplicate();
    world.send(&numbered("acct", 3)).await.is_applied();
    eventually("4 follows", async || world.ledger().await.len() == 4).await;
    assert_eq!(world.sequences("acct").await, [1, 2, 3, 4]);
}

/// §5.1: "no event waits for another correlation's sequence, failure or backoff".
async fn a_stream_that_fails_holds_up_no_other<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .one_by_one()
        .source(|source| source.backoff([Duration::from_secs(3_600)]))
        .answers(|call: &Call<D>| {
            if call.delivery.event_id() == "evt_bad_2" {
                503
            } else {
                0
            }
        })
        .start()
        .await;
    for n in [2, 3, 1] {
        world.send(&numbered("bad", n)).await;
    }
    eventually("it has failed", async || world.probe.runs("evt_bad_2") == 1).await;
    for n in (2..=5).rev() {
        world.send(&numbered("good", n)).await.is_parked(1);
        world.send(&numbered("bad", n + 1)).await;
    }
    world.send(&numbered("good", 1)).await.is_applied();
    eventually("the good stream is complete", async || {
        world.sequences("good").await.len() == 5
    })
    .await;
    assert_eq!(world.sequences("good").await, [1, 2, 3, 4, 5]);
    assert_eq!(world.sequences("bad").await, [1]);
}
