//! §2.5, §4.8: many deliveries of one event, or of one stream, hold one connection between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::StatusCode;
use tokio::task::JoinHandle;

use crate::db::TestDb;
use crate::kit::{Call, Event, Feed, Gate, Reply, Setup, World, eventually, numbered, within};

suite![
    followers_of_a_committed_leader_get_duplicates,
    followers_of_a_parked_leader_get_parked,
    followers_of_a_rejected_leader_get_its_4xx_without_another_run,
    followers_of_a_failed_leader_get_503_without_another_run,
    followers_of_a_panicked_leader_get_503_without_another_run,
    followers_do_not_outwait_their_budget,
    copies_of_one_event_hold_one_connection_and_others_are_served,
    events_of_one_stream_hold_one_connection_and_others_are_served,
    a_thousand_copies_on_a_pool_of_five_are_applied_once,
    a_crowd_of_events_of_one_stream_on_a_pool_of_five_is_applied_in_order,
    a_handler_that_uses_the_pool_itself_does_not_deadlock_it,
    a_handler_holds_up_no_look_at_what_is_known,
];

/// A handler that waits at the gate in its first run, and then answers with `status` or panics.
fn held<D: TestDb>(db: &D, gate: &Gate, status: u16) -> Setup<D> {
    let gate = gate.clone();
    World::<D>::over(db).handler(move |mut call: Call<D>| {
        let gate = gate.clone();
        async move {
            call.append().await;
            if call.run == 1 {
                gate.pass().await;
                assert!(status > 0, "this panic is part of the test");
                return StatusCode::from_u16(status).unwrap();
            }
            StatusCode::NO_CONTENT
        }
    })
}

const FOLLOWERS: usize = 20;

/// Copies whose bodies have been read to their end: what is left for them is to join the leader, which takes no wait.
async fn followers<D: TestDb>(world: &World<D>, event: &Event) -> Vec<JoinHandle<Reply>> {
    let read = Arc::new(AtomicUsize::new(0));
    let copies = (0..FOLLOWERS)
        .map(|_| {
            let body = Feed::whole(event.body(), &read);
            let request = world.request(event).map(|_| Body::new(body));
            let world = world.clone();
            tokio::spawn(async move { world.post(request).await })
        })
        .collect();
    eventually("the copies are read", async || read.load(Ordering::Relaxed) >= FOLLOWERS).await;
    // Deliveries that begin after them are answered: so they had their turn on the runtime's threads.
    for _ in 0..50 {
        let sentinel = Event::new("sentinel").with("event_type", "subscription.replay_started");
        world.spawn(&sentinel).await.unwrap().is(200, "accepted");
    }
    copies
}

async fn lead_and_follow<D: TestDb>(
    world: &World<D>,
    gate: &Gate,
    event: &Event,
    leader: (u16, &str),
    follower: (u16, &str),
) {
    let lead = world.spawn(event);
    gate.reached_by(1).await;
    let copies = followers(world, event).await;
    assert!(copies.iter().all(|copy| !copy.is_finished()), "a follower did not wait");
    gate.open();
    lead.await.unwrap().is(leader.0, leader.1);
    for copy in copies {
        copy.await.unwrap().is(follower.0, follower.1);
    }
    assert_eq!(world.probe.runs(event.id()), 1, "a follower ran the handler");
}

/// §4.8: "committed: duplicate"
async fn followers_of_a_committed_leader_get_duplicates<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let world = held(&db, &gate, 201).start().await;
    lead_and_follow(&world, &gate, &numbered("acct", 1), (201, "applied"), (200, "duplicate")).await;
    assert_eq!(world.applied().await, ["evt_acct_1"]);
}

/// §4.8: "parked: parked". The leader waits for the stream's turn, which another event has.
async fn followers_of_a_parked_leader_get_parked<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let world = held(&db, &gate, 204).start().await;
    let first = world.spawn(&numbered("acct", 1));
    gate.reached_by(1).await;
    let copies = followers(&world, &numbered("acct", 3)).await;
    assert!(copies.iter().all(|copy| !copy.is_finished()), "a copy did not wait for the stream's turn");
    gate.open();
    first.await.unwrap().is_applied();
    for copy in copies {
        copy.await.unwrap().is_parked(2);
    }
    assert_eq!(world.in_state(2).await, 1);
}

/// §4.8: "its 4xx: that 4xx"
async fn followers_of_a_rejected_leader_get_its_4xx_without_another_run<D: TestDb>(db: D) {
    for (status, sent) in [(422, 422), (404, 404), (410, 422)] {
        let gate = Gate::shut();
        let world = held(&db, &gate, status).start().await;
        let event = Event::new(&format!("evt_{status}"));
        lead_and_follow(&world, &gate, &event, (sent, "rejected"), (sent, "rejected")).await;
        assert_eq!(world.number(&format!("SELECT COUNT(*) FROM {{p}}pending WHERE event_id = 'evt_{status}'")).await, 1);
        // Who comes after it is a new attempt.
        world.send(&event).await.is_applied();
        world.stop().await;
    }
}

/// §4.8: "failed or unknown: 503, without running the handler again"; TRAPS: never answered as a duplicate.
async fn followers_of_a_failed_leader_get_503_without_another_run<D: TestDb>(db: D) {
    for status in [500, 503, 429] {
        let gate = Gate::shut();
        let world = held(&db, &gate, status).start().await;
        let event = Event::new(&format!("evt_{status}"));
        lead_and_follow(&world, &gate, &event, (status, "failed"), (503, "failed")).await;
        world.send(&event).await.is_applied();
        world.stop().await;
    }
}

/// §4.8
async fn followers_of_a_panicked_leader_get_503_without_another_run<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let world = held(&db, &gate, 0).start().await;
    let event = Event::new("evt_1");
    lead_and_follow(&world, &gate, &event, (500, "failed"), (503, "failed")).await;
    world.send(&event).await.is_applied();
    assert_eq!(world.applied().await, ["evt_1"]);
}

/// §3: "leader of the same event failed or took too long: 503".
async fn followers_do_not_outwait_their_budget<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let budget = Duration::from_millis(600);
    let world = held(&db, &gate, 204).source(|source| source.budget(budget)).start().await;
    let event = Event::new("evt_1");
    let leader = world.spawn(&event);
    gate.reached_by(1).await;
    let follower = within(budget + Duration::from_secs(2), world.send(&event)).await;
    follower.is_problem_about(503, "failed", "");
    leader.await.unwrap().is(503, "failed");
    gate.open();
    world.send(&event).await.is_applied();
}

/// Connections of the pool that somebody holds.
fn held_connections<D: TestDb>(world: &World<D>) -> usize {
    (world.pool.size() as usize).saturating_sub(world.pool.num_idle())
}

/// §4.8, measured: while the leader's handler runs and its copies wait, the pool has all connections but one. The
/// worker may look at the database for a moment, so the least of some looks counts.
async fn one_is_held<D: TestDb>(world: &World<D>) {
    eventually("no more than one connection is held", async || held_connections(world) == 1).await;
    for _ in 0..20 {
        assert!(held_connections(world) <= 2, "{} connections are held", held_connections(world));
        tokio::task::yield_now().await;
    }
}

/// Others are served: what is known already, and where the database has more than one writer, a new event too.
async fn others_are_served<D: TestDb>(world: &World<D>, known: &Event) {
    within(Duration::from_secs(3), world.send(known)).await.is_duplicate();
    if !D::SINGLE_WRITER {
        let other = Event::new(&format!("evt_other_{}", fastrand::u64(..)));
        within(Duration::from_secs(3), world.send(&other)).await.is(204, "applied");
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
    let others: Vec<_> = (2..=20).map(|n| world.spawn(&numbered("acct", n))).collect();
    eventually("they have looked what is known", async || world.acquired() >= 21).await;
    one_is_held(&world).await;
    others_are_served(&world, &known).await;
    gate.open();
    first.await.unwrap().is_applied();
    for other in others {
        let reply = other.await.unwrap();
        assert!(matches!(reply.outcome(), "applied" | "parked"), "{reply:?}");
    }
    eventually("all are applied", async || world.sequences("acct").await.len() == 20).await;
    assert_eq!(world.sequences("acct").await, (1..=20).collect::<Vec<_>>());
}

/// Issue 3: "exactly one 200 applied, the rest 200 duplicate or 429/503 with Retry-After".
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
    assert_eq!((applied, world.probe.runs("evt_1"), world.probe.peak()), (1, 1, 1));
    assert_eq!(world.applied().await, ["evt_1"]);
    world.pool_is_whole().await;
}

/// Issue 3: "the same for 1,000 different events of one correlation id"; fewer of them without `--all`.
async fn a_crowd_of_events_of_one_stream_on_a_pool_of_five_is_applied_in_order<D: TestDb>(db: D) {
    let world = World::<D>::over(&db).connections(5).start().await;
    let crowd = if std::env::var_os("TOWER_INBOX_TEST_ALL").is_some() { 1_000 } else { 200 };
    let mut order: Vec<u64> = (1..=crowd).collect();
    crate::kit::seeded("one stream").shuffle(&mut order);
    while !order.is_empty() {
        let sent: Vec<_> = order.drain(..).map(|n| (n, world.spawn(&numbered("acct", n)))).collect();
        for (n, reply) in sent {
            let reply = reply.await.unwrap();
            match (reply.status, reply.outcome()) {
                (204, "applied") | (202, "parked") | (200, "duplicate") => {}
                (429 | 503, "failed") => order.push(n),
                _ => panic!("{reply:?}"),
            }
        }
        assert_eq!(world.probe.peak(), 1, "two events of one stream ran at the same time");
    }
    let (lines, crowd) = ("SELECT COUNT(*) FROM ledger", i64::try_from(crowd).unwrap());
    eventually("all are applied", async || world.number(lines).await == crowd).await;
    assert_eq!(world.sequences("acct").await, (1..=crowd).collect::<Vec<_>>());
    world.pool_is_whole().await;
}

/// Issue 3: "the in-flight limit defaults to what the pool can carry"; TRAPS: exactly one connection a delivery.
async fn a_handler_that_uses_the_pool_itself_does_not_deadlock_it<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let pool = world.pool.clone();
    let router = axum::Router::new().route(
        "/hooks/{tenant}",
        axum::routing::post(async move |mut tx: tower_inbox::Tx<D::DB>| {
            let entry = crate::db::Entry {
                event_id: "any".into(), account: String::new(), sequence: None, amount: 1,
            };
            D::append(&mut tx, &entry).await.unwrap();
            // A look at another table, beside the transaction.
            D::number(&pool, "SELECT COUNT(*) FROM taken").await;
            "done"
        }),
    );
    let world = world.through(world.inbox.mount(crate::kit::SOURCE, router));
    let sent: Vec<_> = (0..40).map(|n| world.spawn(&Event::new(&format!("evt_{n}")))).collect();
    for reply in sent {
        within(Duration::from_secs(20), reply).await.unwrap().is(200, "applied");
    }
    assert_eq!(world.ledger().await.len(), 40);
}

/// §2.4: known duplicates are answered "outside any transaction", whatever runs.
async fn a_handler_holds_up_no_look_at_what_is_known<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let world = held(&db, &gate, 204).inbox(|inbox| inbox.remembered(0)).start().await;
    gate.open();
    world.send(&Event::new("evt_known")).await.is_applied();
    world.send(&numbered("acct", 3)).await.is_parked(1);
    world.stop().await;
    let gate = Gate::shut();
    let world = held(&db, &gate, 204).inbox(|inbox| inbox.remembered(0)).start().await;
    let leader = world.spawn(&Event::new("evt_held"));
    gate.reached_by(1).await;
    within(Duration::from_secs(3), world.send(&Event::new("evt_known"))).await.is_duplicate();
    within(Duration::from_secs(3), world.send(&numbered("acct", 3))).await.is_parked(1);
    assert!(!leader.is_finished());
    gate.open();
    leader.await.unwrap().is_applied();
}
