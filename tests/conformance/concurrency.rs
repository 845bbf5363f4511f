//! §2.5, §4.8: many deliveries of one event, or of one stream, hold one connection between them.

use std::time::Duration;

use http::StatusCode;

use crate::db::TestDb;
use crate::followers::{followers, held};
use crate::kit::{Call, Event, Gate, World, eventually, numbered, within};

suite![
    copies_of_one_event_hold_one_connection_and_others_are_served,
    events_of_one_stream_hold_one_connection_and_others_are_served,
    a_thousand_copies_on_a_pool_of_five_are_applied_once,
    a_crowd_of_events_of_one_stream_on_a_pool_of_five_is_applied_in_order,
    a_handler_that_uses_the_pool_itself_does_not_deadlock_it,
    a_handler_holds_up_no_look_at_what_is_known,
    the_firsts_of_many_new_streams_at_once_are_all_applied,
];

/// Connections of the pool that somebody holds.
fn held_connections<D: TestDb>(world: &World<D>) -> usize {
    (world.pool.size() as usize).saturating_sub(world.pool.num_idle())
}

/// §4.8, measured: while the leader's handler runs and its copies wait, the pool has all connections but one. The
/// worker may look at the database for a moment, so the least of some looks counts.
async fn one_is_held<D: TestDb>(world: &World<D>) {
    eventually("no more than one connection is held", async || {
        held_connections(world) == 1
    })
    .await;
    for _ in 0..20 {
        assert!(
            held_connections(world) <= 2,
            "{} connections are held",
            held_connections(world)
        );
        tokio::task::yield_now().await;
    }
}

/// Others are served: what is known already, and where the database has more than one writer, a new event too.
async fn others_are_served<D: TestDb>(world: &World<D>, known: &Event) {
    within(Duration::from_secs(3), world.send(known))
        .await
        .is_duplicate();
    if !D::SINGLE_WRITER {
        let other = Event::new(&format!("evt_other_{}", fastrand::u64(..)));
        within(Duration::from_secs(3), world.send(&other))
            .await
            .is(204, "applied");
    }
}

/// §4.8
async fn copies_of_one_event_hold_one_connection_and_others_are_served<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let inner = gate.clone();
    let world = World::<D>::over(&db)
        .connections(3)
        .inbox(|inbox| inbox.remembered(0))
        .handler(move |mut call: Call<D>| {
            let gate = inner.clone();
            async move {
                call.append().await;
                if call.delivery.event_id() == "evt_held" {
                    gate.pass().await;
                }
                StatusCode::NO_CONTENT
            }
        })
        .start()
        .await;
    let known = Event::new("evt_known");
    world.send(&known).await.is_applied();
    let event = Event::new("evt_held");
    let leader = world.spawn(&event);
    gate.reached_by(1).await;
    let copies = followers(&world, &event).await;
    one_is_held(&world).await;
    others_are_served(&world, &known).await;
    gate.open();
    leader.await.unwrap().is_applied();
    for copy in copies {
        copy.await.unwrap().is_duplicate();
    }
}

/// §2.5: the same for the events of one correlation id.
async fn events_of_one_stream_hold_one_connection_and_others_are_served<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let inner = gate.clone();
    let world = World::<D>::over(&db)
        .connections(3)
        .inbox(|inbox| inbox.remembered(0))
        .handler(move |mut call: Call<D>| {
            let gate = inner.clone();
            async move {
                call.append().await;
                if call.delivery.event_id() == "evt_acct_1" {
                    gate.pass().await;
                }
                StatusCode::NO_CONTENT
            }
        })
        .start()
        .await;
    let known = Event::new("evt_known");
    world.send(&known).await.is_applied();
    let first = world.spawn(&numbered("acct", 1));
    gate.reached_by(1).await;
    let others: Vec<_> = (2..=20)
        .map(|n| world.spawn(&numbered("acct", n)))
        .collect();
    eventually("they have looked what is known", async || {
        world.acquired() >= 21
    })
    .await;
    one_is_held(&world).await;
    others_are_served(&world, &known).await;
    gate.open();
    first.await.unwrap().is_applied();
    for other in others {
        let reply = other.await.unwrap();
        assert!(matches!(reply.outcome(), "applied" | "parked"), "{reply:?}");
    }
    eventually("all are applied", async || {
        world.sequences("acct").await.len() == 20
    })
    .await;
    assert_eq!(world.sequences("acct").await, (1..=20).collect::<Vec<_>>());
}

/// §3, §4.1, §4.8. Issue 3: "exactly one 200 applied, the rest 200 duplicate or 429/503 with Retry-After".
async fn a_thousand_copies_on_a_pool_of_five_are_applied_once<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .connections(5)
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            tokio::task::yield_now().await;
        })
        .start()
        .await;
    let event = Event::new("evt_1");
    let copies: Vec<_> = (0..1_000).map(|_| world.spawn(&event)).collect();
    let mut applied = 0;
    for copy in copies {
        let reply = copy.await.unwrap();
        match (reply.status, reply.outcome()) {
            (200, "applied") => applied += 1,
            (200, "duplicate") | (429 | 503, "failed") => {}
            _ => panic!("{reply:?}"),
        }
    }
    assert_eq!(
        (applied, world.probe.runs("evt_1"), world.probe.peak()),
        (1, 1, 1)
    );
    assert_eq!(world.applied().await, ["evt_1"]);
    world.pool_is_whole().await;
}

/// §2.5, §5.1. Issue 3: "the same for 1,000 different events of one correlation id"; fewer of them without `--all`.
async fn a_crowd_of_events_of_one_stream_on_a_pool_of_five_is_applied_in_order<D: TestDb>(db: D) {
    let world = World::<D>::over(&db).connections(5).start().await;
    let crowd = if std::env::var_os("TOWER_INBOX_TEST_ALL").is_some() {
        1_000
    } else {
        200
    };
    let mut order: Vec<u64> = (1..=crowd).collect();
    crate::kit::seeded("one stream").shuffle(&mut order);
    while !order.is_empty() {
        let sent: Vec<_> = order
            .drain(..)
            .map(|n| (n, world.spawn(&numbered("acct", n))))
            .collect();
        for (n, reply) in sent {
            let reply = reply.await.unwrap();
            match (reply.status, reply.outcome()) {
                (204, "applied") | (202, "parked") | (200, "duplicate") => {}
                (429 | 503, "failed") => order.push(n),
                _ => panic!("{reply:?}"),
            }
        }
        // None, if the first of them was among those that were refused.
        assert!(
            world.probe.peak() <= 1,
            "two events of one stream ran at the same time"
        );
    }
    let (lines, crowd) = ("SELECT COUNT(*) FROM ledger", i64::try_from(crowd).unwrap());
    eventually("all are applied", async || {
        world.number(lines).await == crowd
    })
    .await;
    assert_eq!(
        world.sequences("acct").await,
        (1..=crowd).collect::<Vec<_>>()
    );
    world.pool_is_whole().await;
}

/// §2.2. Issue 3: "the in-flight limit defaults to what the pool can carry"; TRAPS: exactly one connection a delivery.
async fn a_handler_that_uses_the_pool_itself_does_not_deadlock_it<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let pool = world.pool.clone();
    let router = axum::Router::new().route(
        "/hooks/{tenant}",
        axum::routing::post(async move |mut tx: tower_inbox::Tx<D::DB>| {
            let entry = crate::db::Entry {
                event_id: "any".into(),
                account: String::new(),
                sequence: None,
                amount: 1,
            };
            D::append(&mut tx, &entry).await.unwrap();
            // A look at another table, beside the transaction.
            D::number(&pool, "SELECT COUNT(*) FROM taken").await;
            "done"
        }),
    );
    let world = world.through(world.inbox.mount(crate::kit::SOURCE, router));
    let sent: Vec<_> = (0..40)
        .map(|n| world.spawn(&Event::new(&format!("evt_{n}"))))
        .collect();
    for reply in sent {
        within(Duration::from_secs(20), reply)
            .await
            .unwrap()
            .is(200, "applied");
    }
    assert_eq!(world.ledger().await.len(), 40);
}

/// §2.4: known duplicates are answered "outside any transaction", whatever runs.
async fn a_handler_holds_up_no_look_at_what_is_known<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let world = held(&db, &gate, 204)
        .inbox(|inbox| inbox.remembered(0))
        .start()
        .await;
    gate.open();
    world.send(&Event::new("evt_known")).await.is_applied();
    world.send(&numbered("acct", 3)).await.is_parked(1);
    world.stop().await;
    let gate = Gate::shut();
    let world = held(&db, &gate, 204)
        .inbox(|inbox| inbox.remembered(0))
        .start()
        .await;
    let leader = world.spawn(&Event::new("evt_held"));
    gate.reached_by(1).await;
    within(Duration::from_secs(3), world.send(&Event::new("evt_known")))
        .await
        .is_duplicate();
    within(Duration::from_secs(3), world.send(&numbered("acct", 3)))
        .await
        .is_parked(1);
    assert!(!leader.is_finished());
    gate.open();
    leader.await.unwrap().is_applied();
}

/// §5.1: new streams do not get in each other's way, at the isolation level that the database has by default.
async fn the_firsts_of_many_new_streams_at_once_are_all_applied<D: TestDb>(db: D) {
    let world = World::<D>::over(&db).connections(17).start().await;
    for round in 0..10 {
        let sent: Vec<_> = (0..16)
            .map(|n| world.spawn(&numbered(&format!("acct_{round}_{n}"), 1)))
            .collect();
        for reply in sent {
            reply.await.unwrap().is_applied();
        }
    }
}
