//! §9: what happens while a group is on its way: clients that leave, commits that are lost, crashes, shutdowns, random traffic.

use std::collections::HashSet;
use std::time::Duration;

use axum::response::IntoResponse;
use http::StatusCode;

use crate::batch::{Act, nothing};
use crate::db::{Isolation, TestDb};
use crate::group_commit::{
    applied_once, evt, grouped, held_at, others, send_behind, succeeds, together, with_places,
};
use crate::kit::{Call, Event, Gate, World, eventually, numbered, seeded};

suite![
    clients_that_leave_a_group_change_nothing,
    a_commit_that_is_lost_is_acknowledged_to_nobody_and_not_remembered,
    a_commit_whose_answer_is_lost_applies_nothing_twice,
    a_statement_that_fails_between_two_members_undoes_the_group,
    a_process_that_ends_in_a_group_leaves_nothing_of_it,
    a_shutdown_waits_for_a_group,
    a_member_whose_time_is_spent_while_it_waits_is_told_in_time_and_known_later,
    copies_of_members_wait_and_are_duplicates,
    random_traffic_in_groups_ends_with_the_exact_ledger,
    groups_of_two_processes_end_with_the_exact_ledger_though_clients_leave,
    streams_that_share_groups_are_applied_in_order,
    two_receivers_that_group_apply_each_event_once,
    a_handler_in_a_shared_transaction_sees_what_its_predecessor_wrote,
];

/// §4.5: whether it waits for its turn, runs, or waits for the others.
async fn clients_that_leave_a_group_change_nothing<D: TestDb>(db: D) {
    if !D::JOINS_ANY {
        return;
    }
    let last = Gate::shut();
    let (setup, _, gate) = grouped(&db, 8, nothing, held_at(&last, "evt_3"));
    let world = setup.start().await;
    let mut sent = send_behind(&world, &gate, &others(5)).await;
    // Waits for its turn.
    sent[4].abort();
    gate.open();
    last.reached_by(1).await;
    // Has succeeded; runs.
    sent[1].abort();
    sent[3].abort();
    last.open();
    for n in [5, 2, 0] {
        sent.remove(n).await.expect("an answer").is_applied();
    }
    eventually("all are applied", async || world.applied().await.len() == 6).await;
    for n in 0..=5 {
        assert_eq!(world.probe.runs(evt(n).id()), 1);
    }
    applied_once(&world, 5).await;
}

/// §2.4, §4.2: it was not sent.
async fn a_commit_that_is_lost_is_acknowledged_to_nobody_and_not_remembered<D: TestDb>(db: D) {
    let (setup, _, gate) = grouped(
        &db,
        8,
        |name, nth| match (name, nth) {
            ("store.commit", 1) => Act::Fail,
            _ => Act::Nothing,
        },
        succeeds,
    );
    let world = setup.start().await;
    let replies = together(&world, &gate, &others(3)).await;
    let failed = replies.iter().filter(|reply| reply.status == 503).count();
    assert_eq!(failed, if D::JOINS_ANY { 4 } else { 1 });
    assert_eq!(world.applied().await.len(), 4 - failed);
    for n in 0..=3 {
        let reply = world.send(&evt(n)).await;
        assert!(reply.status < 300, "{reply:?}");
    }
    applied_once(&world, 3).await;
}

/// §4.2: it was.
async fn a_commit_whose_answer_is_lost_applies_nothing_twice<D: TestDb>(db: D) {
    let (setup, _, gate) = grouped(
        &db,
        8,
        |name, nth| match (name, nth) {
            ("store.committed", 1) => Act::Fail,
            _ => Act::Nothing,
        },
        succeeds,
    );
    let world = setup.start().await;
    let replies = together(&world, &gate, &others(3)).await;
    let failed = replies.iter().filter(|reply| reply.status == 503).count();
    assert_eq!(failed, if D::JOINS_ANY { 4 } else { 1 });
    applied_once(&world, 3).await;
    for n in 0..=3 {
        assert_eq!(world.probe.runs(evt(n).id()), 1);
    }
}

/// §9: at each of them, once.
async fn a_statement_that_fails_between_two_members_undoes_the_group<D: TestDb>(db: D) {
    if !D::JOINS_ANY {
        return;
    }
    for point in [
        "store.insert_behind",
        "begun",
        "entered",
        "handled",
        "released",
        "store.rollback_to",
    ] {
        let of_the_third = if point.starts_with("store") || point == "released" {
            1
        } else {
            3
        };
        let (setup, _, gate) = grouped(
            &db,
            8,
            move |name, nth| match name == point && nth == of_the_third {
                true => Act::Fail,
                false => Act::Nothing,
            },
            move |call: Call<D>| async move {
                let fails = call.delivery.event_id() == "evt_2" && call.run == 1;
                match fails && point == "store.rollback_to" {
                    true => StatusCode::SERVICE_UNAVAILABLE,
                    false => StatusCode::NO_CONTENT,
                }
            },
        );
        let world = setup.start().await;
        let before = world.applied().await.len();
        let replies = together(&world, &gate, &others(4)).await;
        for reply in &replies {
            assert!(
                matches!(reply.status, 204 | 200 | 503),
                "{point}: {reply:?}"
            );
        }
        for n in 0..=4 {
            let reply = world.send(&evt(n)).await;
            assert!(reply.status < 300, "{point}: {reply:?}");
        }
        applied_once(&world, 4).await;
        assert!(before == 0 || before == 5);
        let clear =
            world.execute("DELETE FROM {p}event").await + world.execute("DELETE FROM ledger").await;
        assert_eq!(clear, 10);
        world.stop().await;
    }
}

/// §5.9, §9: its runtime ends with a handler in the middle, as `kill -9` would have it.
async fn a_process_that_ends_in_a_group_leaves_nothing_of_it<D: TestDb>(db: D) {
    if !D::JOINS_ANY {
        return;
    }
    let last = Gate::shut();
    let held = last.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let (setup, _, gate) = grouped(&db, 8, nothing, move |call: Call<D>| {
        let last = held.clone();
        async move {
            if call.delivery.event_id() == "evt_3" {
                last.pass().await;
            }
            StatusCode::NO_CONTENT
        }
    });
    let first = runtime.spawn(setup.start()).await.expect("it starts");
    let mut sent = Vec::new();
    for n in 0..=4 {
        let (world, request) = (first.clone(), first.request(&evt(n)));
        sent.push(runtime.spawn(async move { world.post(request).await }));
        match n {
            0 => gate.reached_by(1).await,
            _ => eventually("it waits", async || first.inbox.waiting_to_share().0 == n).await,
        }
    }
    eventually("all have looked, and wait", async || {
        first.inbox.waiting_to_share().1 == 4
    })
    .await;
    gate.open();
    last.reached_by(1).await;
    assert_eq!(first.probe.runs(evt(2).id()), 1);
    runtime.shutdown_background();
    for one in sent {
        assert!(one.await.is_err(), "nobody is answered");
    }
    drop(first);
    let next = World::<D>::start(&db).await;
    assert!(next.applied().await.is_empty());
    for n in 0..=4 {
        next.send(&evt(n)).await.is_applied();
    }
    applied_once(&next, 4).await;
}

/// (shutdown)
async fn a_shutdown_waits_for_a_group<D: TestDb>(db: D) {
    if !D::JOINS_ANY {
        return;
    }
    let (setup, _, gate) = grouped(&db, 8, nothing, succeeds);
    let world = setup.start().await;
    let sent = send_behind(&world, &gate, &others(3)).await;
    let mut stopping = Box::pin(world.inbox.shutdown());
    let begun = tokio::time::timeout(Duration::from_millis(20), &mut stopping).await;
    assert!(begun.is_err(), "it waits for them");
    world.send(&evt(9)).await.is(503, "failed");
    gate.open();
    for one in sent {
        one.await.expect("an answer").is_applied();
    }
    stopping.await;
    assert_eq!(world.applied().await.len(), 4);
    world.pool_is_whole().await;
}

/// §2.8, §4.2: others take their time in its transaction.
async fn a_member_whose_time_is_spent_while_it_waits_is_told_in_time_and_known_later<D: TestDb>(
    db: D,
) {
    if !D::JOINS_ANY {
        return;
    }
    let budget = Duration::from_secs(2);
    let last = Gate::shut();
    let (setup, passed, gate) = grouped(&db, 8, nothing, held_at(&last, "evt_1"));
    let setup = setup.source(move |source| source.budget(budget));
    let world = setup.start().await;
    let first = world.spawn(&evt(0));
    gate.reached_by(1).await;
    tokio::time::sleep(budget / 2).await;
    let second = world.spawn(&evt(1));
    eventually("it has looked, and waits", async || {
        world.inbox.waiting_to_share().1 == 1
    })
    .await;
    gate.open();
    last.reached_by(1).await;
    // The second one's time is not over yet.
    let reply = first.await.expect("an answer");
    reply.is(503, "failed");
    last.open();
    second.await.expect("an answer").is_applied();
    world.send(&evt(0)).await.is_duplicate();
    assert_eq!(
        (world.probe.runs("evt_0"), passed.of("store.commit")),
        (1, 1)
    );
    applied_once(&world, 1).await;
}

/// §4.8
async fn copies_of_members_wait_and_are_duplicates<D: TestDb>(db: D) {
    if !D::JOINS_ANY {
        return;
    }
    let (setup, _, gate) = grouped(&db, 8, nothing, succeeds);
    let world = setup.start().await;
    let sent = send_behind(&world, &gate, &others(3)).await;
    let copies: Vec<_> = (0..=3).map(|n| world.spawn(&evt(n))).collect();
    gate.open();
    for one in sent {
        one.await.expect("an answer").is_applied();
    }
    for copy in copies {
        copy.await.expect("an answer").is_duplicate();
    }
    applied_once(&world, 3).await;
}

/// §4.1: as one by one.
async fn random_traffic_in_groups_ends_with_the_exact_ledger<D: TestDb>(db: D) {
    let mut random = seeded("random traffic in groups");
    let (setup, passed) = crate::batch::batched(&db, 16, nothing);
    let world = with_places(setup, 3)
        .answers(
            |call: &Call<D>| match (call.run, call.delivery.event_id().as_bytes()[4] % 12) {
                (1 | 2, 0) => 503,
                (1, 1) => 500,
                (1 | 2, 3) => 422,
                (1, 2) => std::panic::resume_unwind(Box::new("planned")),
                _ => 0,
            },
        )
        .start()
        .await;
    for round in 0..10 {
        let mut events = Vec::new();
        for n in 0..40 {
            let event = Event::new(&format!("evt_{}_{round}_{n}", random.alphanumeric()));
            events.extend(vec![event; random.usize(1..3)]);
        }
        let all: HashSet<_> = events.iter().map(|event| event.id().to_owned()).collect();
        let mut acknowledged = HashSet::new();
        for _ in 0..8 {
            random.shuffle(&mut events);
            let sent: Vec<_> = events
                .iter()
                .map(|event| (event.id().to_owned(), world.spawn(event)))
                .collect();
            for (id, reply) in sent {
                if reply.await.expect("an answer").status < 300 {
                    acknowledged.insert(id);
                }
            }
        }
        assert_eq!(acknowledged, all);
    }
    let mut applied = world.applied().await;
    applied.sort();
    let before = applied.len();
    applied.dedup();
    assert_eq!((applied.len(), before), (400, 400));
    if D::JOINS_ANY {
        assert!(passed.of("store.insert_behind") > 0);
    }
    world.pool_is_whole().await;
}

/// §4.1, §4.5, §5.1: with stored answers, which take a savepoint more.
async fn groups_of_two_processes_end_with_the_exact_ledger_though_clients_leave<D: TestDb>(db: D) {
    let mut random = seeded("groups of two processes");
    let mut worlds = Vec::new();
    for _ in 0..2 {
        let (setup, passed) = crate::batch::batched(&db, 16, nothing);
        let world = with_places(setup, 3)
            .source(|source| source.store_answers(true))
            .answers(
                |call: &Call<D>| match (call.run, call.delivery.event_id().len() % 7) {
                    (1, 0) => 503,
                    (1, 1) => 422,
                    (1, 2) => std::panic::resume_unwind(Box::new("planned")),
                    _ => 0,
                },
            )
            .start()
            .await;
        worlds.push((world, passed));
    }
    let mut all = 0;
    for round in 0..5 {
        let pad = |random: &mut fastrand::Rng| "x".repeat(random.usize(..14));
        let mut events: Vec<_> = (0..30)
            .map(|n| Event::new(&format!("evt_{round}_{n}_{}", pad(&mut random))))
            .collect();
        for account in 0..6 {
            let account = format!("a{round}_{account}");
            events.extend((1..=3).map(|n| {
                Event::new(&format!("evt_{account}_{n}_{}", pad(&mut random))).of(&account, n)
            }));
        }
        all += events.len();
        for _ in 0..6 {
            random.shuffle(&mut events);
            let mut sent = Vec::new();
            for event in &events {
                let one = worlds[random.usize(..2)].0.spawn(event);
                if random.u8(..6) == 0 {
                    tokio::task::yield_now().await;
                    one.abort();
                }
                sent.push(one);
            }
            for one in sent {
                // Those that have left have none.
                let _ = one.await;
            }
        }
        eventually("all are applied", async || {
            let applied: HashSet<_> = worlds[0].0.applied().await.into_iter().collect();
            for event in &events {
                // As its producer does that saw no success.
                if !applied.contains(event.id()) {
                    worlds[random.usize(..2)].0.send(event).await;
                }
            }
            applied.len() >= all
        })
        .await;
    }
    let mut applied = worlds[0].0.applied().await;
    applied.sort();
    applied.dedup();
    assert_eq!(
        (applied.len(), worlds[1].0.applied().await.len()),
        (all, all)
    );
    for (round, account) in (0..5).flat_map(|round| (0..6).map(move |account| (round, account))) {
        let account = format!("a{round}_{account}");
        assert_eq!(worlds[0].0.sequences(&account).await, [1, 2, 3]);
    }
    for (world, passed) in worlds {
        if D::JOINS_ANY {
            assert!(passed.of("store.insert_behind") > 0);
        }
        world.pool_is_whole().await;
    }
}

/// §5.1
async fn streams_that_share_groups_are_applied_in_order<D: TestDb>(db: D) {
    let mut random = seeded("streams in groups");
    let (setup, passed) = crate::batch::batched(&db, 16, nothing);
    let world = with_places(setup, 3)
        .answers(
            |call: &Call<D>| match (call.run, call.delivery.sequence()) {
                (1, Some(sequence)) if sequence % 5 == 0 => 503,
                _ => 0,
            },
        )
        .start()
        .await;
    let mut events: Vec<_> = (1..=10)
        .flat_map(|sequence| (0..12).map(move |account| numbered(&format!("a{account}"), sequence)))
        .collect();
    for _ in 0..3 {
        let sent: Vec<_> = events.iter().map(|event| world.spawn(event)).collect();
        for one in sent {
            one.await.expect("an answer");
        }
        random.shuffle(&mut events[..30]);
    }
    eventually("all are applied", async || {
        world.applied().await.len() == 120
    })
    .await;
    for account in 0..12 {
        let all: Vec<_> = (1..=10).collect();
        assert_eq!(world.sequences(&format!("a{account}")).await, all);
    }
    if D::JOINS_ANY {
        assert!(passed.of("store.insert_behind") > 0);
    }
    world.pool_is_whole().await;
}

/// §4.1: two inboxes share nothing but the database, as two processes do.
async fn two_receivers_that_group_apply_each_event_once<D: TestDb>(db: D) {
    let start = async || {
        let (setup, passed) = crate::batch::batched(&db, 16, nothing);
        (setup.connections(8).start().await, passed)
    };
    let ((one, passed), (two, others)) = (start().await, start().await);
    let events: Vec<_> = (0..40).map(evt).collect();
    let sent: Vec<_> = events
        .iter()
        .flat_map(|event| [&one, &two].map(|world| world.spawn(event)))
        .collect();
    for reply in sent {
        let reply = reply.await.expect("an answer");
        assert!(
            matches!(reply.outcome(), "applied" | "duplicate" | "failed"),
            "{reply:?}"
        );
    }
    eventually("all are applied", async || {
        for event in &events {
            one.send(event).await;
        }
        one.applied().await.len() >= events.len()
    })
    .await;
    if D::JOINS_ANY {
        let shared = "store.insert_behind";
        assert!(passed.of(shared) + others.of(shared) > 0);
    }
    applied_once(&one, events.len() - 1).await;
    two.pool_is_whole().await;
}

/// §4.1, §9: a commit into a file that nobody will see again is acknowledged to none of them.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn a_group_in_flight_while_the_database_is_replaced_is_not_acknowledged() {
    crate::db::run(|db: crate::db::sqlite::SqliteFile| async move {
        let pool = tower_inbox::sqlite::connect(&db.url(), 16)
            .await
            .expect("a pool");
        let (setup, passed, gate) = grouped(&db, 8, nothing, succeeds);
        let world = setup.pool(pool).start().await;
        let copy = db.copy_aside(&world.eyes).await;
        let sent = send_behind(&world, &gate, &others(3)).await;
        db.put_back(&copy);
        gate.open();
        for one in sent {
            one.await.expect("an answer").is(503, "failed");
        }
        assert_eq!(
            (passed.of("store.commit"), passed.of("store.insert_behind")),
            (1, 3)
        );
        for n in 0..=3 {
            world.send(&evt(n)).await.is_applied();
            world.send(&evt(n)).await.is_duplicate();
        }
    })
    .await;
}

/// §4.7, §2.9: it waits for a place, and may be handed a transaction that began before its predecessor was committed.
async fn a_handler_in_a_shared_transaction_sees_what_its_predecessor_wrote<D: TestDb>(db: D) {
    if D::SINGLE_WRITER {
        return;
    }
    // There a look locks what it has seen, on MySQL: nobody could write beside the first one.
    let locks = |level: &Isolation| D::NAME == "mysql" && level.name == "SERIALIZABLE";
    for level in D::ISOLATION.iter().filter(|level| !locks(level)) {
        let (early, late) = (Gate::shut(), Gate::shut());
        let gates = (early.clone(), late.clone());
        let id = |name: &str| format!("{name}_{}", level.name.replace(' ', "_"));
        let account = id("acct");
        let setup = crate::isolation::at(&db, *level, 8)
            .await
            .source(|source| source.batch(8).batch_time(Duration::from_secs(60)));
        let of = account.clone();
        let world = setup
            .inbox(|inbox| inbox.max_in_flight(2))
            .handler(move |mut call: Call<D>| {
                let ((early, late), of) = (gates.clone(), of.clone());
                async move {
                    let before = format!("SELECT COUNT(*) FROM ledger WHERE account = '{of}'");
                    let Ok(before) = D::number_on(&mut call.tx, &before).await else {
                        return StatusCode::SERVICE_UNAVAILABLE.into_response();
                    };
                    let entry = call.entry();
                    if D::append(&mut call.tx, &entry).await.is_err() {
                        return StatusCode::SERVICE_UNAVAILABLE.into_response();
                    }
                    match (call.delivery.event_id(), call.run) {
                        (id, 1) if id.starts_with("early") => early.pass().await,
                        (id, 1) if id.starts_with("late") => late.pass().await,
                        _ => {}
                    }
                    before.to_string().into_response()
                }
            })
            .start()
            .await;
        let first = world.spawn(&Event::new(&id("early")));
        early.reached_by(1).await;
        world.send(&numbered(&account, 1)).await.is(200, "applied");
        let other = world.spawn(&Event::new(&id("late")));
        late.reached_by(1).await;
        let second = world.spawn(&numbered(&account, 2));
        if D::JOINS_ANY {
            eventually("it waits", async || world.inbox.waiting_to_share().1 == 1).await;
        }
        early.open();
        let second = second.await.expect("an answer");
        late.open();
        for reply in [first, other] {
            reply.await.expect("an answer").is(200, "applied");
        }
        second.is(200, "applied");
        assert_eq!(second.body, "1", "{}", level.name);
        assert_eq!(world.sequences(&account).await, [1, 2]);
        world.pool_is_whole().await;
        world.stop().await;
    }
}
