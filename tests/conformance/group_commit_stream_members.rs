//! Groups of one stream whose members do not all succeed, and what happens while one is on its way: each effect is there once,
//! in its order, and no success is acknowledged that is none (`Source::batch`).

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tower_inbox::Park;

use crate::batch::{Act, batched, drained, nothing};
use crate::db::{Nested, TestDb, Then};
use crate::group_commit::succeeds;
use crate::group_commit_streams::{
    HOT, applied_in_order, ends_with, held_at, hot, is, send_behind, streamed, together,
};
use crate::kit::{Call, Event, Gate, World, eventually};

suite![
    a_member_that_fails_leaves_those_before_it_their_transaction,
    a_member_of_a_stream_with_a_verdict_becomes_a_dead_letter_alone,
    a_member_of_a_stream_that_panics_undoes_the_group_which_is_run_alone_in_order,
    a_member_of_a_stream_that_is_put_off_is_kept_alone,
    a_member_of_a_stream_over_its_budget_undoes_the_group,
    whatever_a_member_of_a_stream_does_to_the_transaction_each_effect_is_there_once,
    a_member_of_a_stream_that_leaves_a_transaction_open_is_not_acknowledged,
    a_member_of_a_stream_that_drops_a_transaction_of_its_own_stays_in_the_group,
    groups_of_a_stream_that_are_undone_make_the_next_deliveries_run_alone,
    clients_that_leave_a_stream_s_group_change_nothing,
    a_stream_s_commit_that_is_lost_is_acknowledged_to_nobody_and_not_remembered,
    a_stream_s_commit_whose_answer_is_lost_applies_nothing_twice,
    a_statement_that_fails_in_a_stream_s_group_loses_nothing,
    a_process_that_ends_in_a_stream_s_group_leaves_nothing_of_it,
    a_shutdown_waits_for_a_stream_s_group,
    one_whose_time_is_spent_while_its_group_goes_on_is_told_in_time_and_known_later,
    copies_of_members_of_a_stream_s_group_are_duplicates,
    a_member_has_its_own_time_and_not_what_the_first_one_had_left,
];

/// Those that the answers to 1 and those behind it are about.
const BEHIND: [u64; 4] = [2, 3, 4, 5];

/// §2.9, §3, §5.1: its own work is taken back, and nothing of theirs; those behind it wait for it.
async fn a_member_that_fails_leaves_those_before_it_their_transaction<D: TestDb>(db: D) {
    let fails = ends_with(3, StatusCode::SERVICE_UNAVAILABLE);
    let (setup, _, gate) = streamed(&db, 8, nothing, fails);
    let world = setup.start().await;
    let replies = together(&world, &gate, &BEHIND).await;
    for (reply, sequence) in replies.iter().zip(1..) {
        match sequence {
            1 | 2 => reply.is_applied(),
            3 => reply.is(503, "failed"),
            _ => reply.is_parked(3),
        };
    }
    for sequence in 1..=3 {
        assert_eq!(world.probe.runs(hot(sequence).id()), 1);
    }
    assert_eq!(world.sequences(HOT).await, [1, 2]);
    world.send(&hot(3)).await.is_applied();
    applied_in_order(&world, 5).await;
}

/// §4.13, §5.10: with its request, in a transaction of its own.
async fn a_member_of_a_stream_with_a_verdict_becomes_a_dead_letter_alone<D: TestDb>(db: D) {
    let (setup, _, gate) = streamed(&db, 8, nothing, |call: Call<D>| {
        let rejects = is(&call, 3) && call.run <= 2;
        std::future::ready(if rejects {
            StatusCode::UNPROCESSABLE_ENTITY
        } else {
            StatusCode::NO_CONTENT
        })
    });
    let world = setup.start().await;
    let replies = together(&world, &gate, &BEHIND).await;
    for (reply, sequence) in replies.iter().zip(1..) {
        match sequence {
            1 | 2 => reply.is_applied(),
            3 => reply.is(422, "rejected"),
            _ => reply.is_parked(3),
        };
    }
    assert_eq!((world.in_state(1).await, world.in_state(3).await), (2, 1));
    assert_eq!(world.probe.runs(hot(3).id()), 2);
    world.send(&hot(3)).await.is_applied();
    applied_in_order(&world, 5).await;
}

/// §3, §5.1, §9: nobody knows what it has left behind. None of those before it is parked for the other.
async fn a_member_of_a_stream_that_panics_undoes_the_group_which_is_run_alone_in_order<
    D: TestDb,
>(
    db: D,
) {
    let (setup, _, gate) = streamed(&db, 8, nothing, |call: Call<D>| async move {
        if is(&call, 4) && call.run == 1 {
            std::panic::resume_unwind(Box::new("planned"));
        }
        StatusCode::NO_CONTENT
    });
    let world = setup.start().await;
    let replies = together(&world, &gate, &BEHIND).await;
    for (reply, sequence) in replies.iter().zip(1..) {
        match sequence {
            4 => reply.is_problem_about(500, "failed", "panicked"),
            5 => reply.is_parked(4),
            _ => reply.is_applied(),
        };
        let runs = match sequence {
            4 => 1,
            5 => 0,
            _ => 2,
        };
        assert_eq!(world.probe.runs(hot(sequence).id()), runs, "{sequence}");
    }
    assert_eq!(world.sequences(HOT).await, [1, 2, 3]);
    world.send(&hot(4)).await.is_applied();
    applied_in_order(&world, 5).await;
}

/// §5.5: with its request, in a transaction of its own.
async fn a_member_of_a_stream_that_is_put_off_is_kept_alone<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let (setup, _) = batched(&db, 8, nothing);
    let world = setup
        .connections(8)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                match (call.delivery.sequence(), call.run) {
                    (Some(1), 1) => gate.pass().await,
                    (Some(3), 1 | 2) => {
                        return Park::after(Duration::from_millis(50)).into_response();
                    }
                    _ => {}
                }
                Response::default()
            }
        })
        .start()
        .await;
    let replies = together(&world, &gate, &BEHIND).await;
    for (reply, sequence) in replies.iter().zip(1..) {
        match sequence {
            1 | 2 => reply.is(200, "applied"),
            _ => reply.is(202, "parked"),
        };
    }
    applied_in_order(&world, 5).await;
}

/// §4.6: it has its answer in time, and the others are run alone.
async fn a_member_of_a_stream_over_its_budget_undoes_the_group<D: TestDb>(db: D) {
    let (setup, _, gate) = streamed(&db, 8, nothing, |call: Call<D>| async move {
        if is(&call, 3) && call.run == 1 {
            std::future::pending::<()>().await;
        }
        StatusCode::NO_CONTENT
    });
    let setup = setup.source(|source| source.budget(Duration::from_secs(2)));
    let world = setup.start().await;
    let sent = send_behind(&world, &gate, &[2, 3]).await;
    gate.open();
    for (one, sequence) in sent.into_iter().zip(1..) {
        let reply = one.await.expect("an answer");
        // What had succeeded before it came a moment earlier, and may have as little time left.
        match sequence {
            3 => assert_eq!(reply.status, 503, "{reply:?}"),
            _ => assert!(matches!(reply.status, 204 | 202 | 503), "{reply:?}"),
        }
    }
    for sequence in 1..=3 {
        let reply = world.send(&hot(sequence)).await;
        assert!(reply.status < 300, "{reply:?}");
    }
    applied_in_order(&world, 3).await;
}

/// §4.4, §9: all that a handler can do to a transaction, done in the middle of a group, and at its end.
async fn whatever_a_member_of_a_stream_does_to_the_transaction_each_effect_is_there_once<
    D: TestDb,
>(
    db: D,
) {
    for (index, fault) in D::faults().into_iter().enumerate() {
        // Some cannot be done twice in one database.
        let bad = [1, 3, 5][index % 3];
        let account = format!("{HOT}_{index}");
        let event =
            |sequence: u64| Event::new(&format!("evt_{index}_{sequence}")).of(&account, sequence);
        let gate = Gate::shut();
        let held = gate.clone();
        let (setup, _) = batched(&db, 8, nothing);
        // It remembers nothing, so that all that follows goes to the database, over the session that this one has left.
        let world = setup
            .connections(8)
            .inbox(|inbox| inbox.remembered(0))
            .handler(move |mut call: Call<D>| {
                let gate = held.clone();
                async move {
                    call.append().await;
                    let sequence = call.delivery.sequence();
                    if call.run == 1 && sequence == Some(1) {
                        gate.pass().await;
                    }
                    if call.run == 1 && sequence == Some(bad) {
                        (D::faults()[index].spoil)(call.tx).await;
                    }
                }
            })
            .start()
            .await;
        let mut sent = vec![world.spawn(&event(1))];
        gate.reached_by(1).await;
        for sequence in 2..=5 {
            sent.push(world.spawn(&event(sequence)));
        }
        eventually("they wait", async || world.inbox.waiting_to_share().0 == 4).await;
        gate.open();
        for (one, sequence) in sent.into_iter().zip(1..) {
            let reply = one.await.expect("an answer");
            let spoils = sequence >= bad && fault.then != Then::Applied;
            let context = format!("{}: {sequence} of {bad}: {reply:?}", fault.name);
            assert!(
                reply.status == 200 || spoils && (reply.status >= 500 || reply.status == 202),
                "{context}"
            );
        }
        for sequence in 1..=5 {
            let reply = world.send(&event(sequence)).await;
            assert!(reply.status < 300, "{}: {reply:?}", fault.name);
        }
        drained(&world, &account, 5).await;
        for sequence in 1..=5 {
            world.send(&event(sequence)).await.is_duplicate();
        }
        eventually(fault.name, async || world.probe.running() == 0).await;
        world.pool_is_whole().await;
        world.stop().await;
    }
}

/// §4.4: nobody can say what it meant by it.
async fn a_member_of_a_stream_that_leaves_a_transaction_open_is_not_acknowledged<D: TestDb>(db: D) {
    let (setup, _, gate) = streamed(&db, 8, nothing, |mut call: Call<D>| async move {
        if is(&call, 3) && call.run <= 2 {
            let entry = call.entry();
            D::nested(&mut call.tx, entry, Nested::Leak)
                .await
                .expect("it is written");
        }
        StatusCode::NO_CONTENT
    });
    let world = setup.start().await;
    let replies = together(&world, &gate, &[2, 3]).await;
    for (reply, sequence) in replies.iter().zip(1..) {
        match sequence {
            3 => reply.is(500, "failed"),
            _ => reply.is_applied(),
        };
    }
    assert_eq!(world.sequences(HOT).await, [1, 2]);
    eventually("it is applied", async || {
        world.send(&hot(3)).await.status < 300
    })
    .await;
    applied_in_order(&world, 3).await;
}

/// §2.9, §4.4: that takes a part of its work back, and is its own business.
async fn a_member_of_a_stream_that_drops_a_transaction_of_its_own_stays_in_the_group<D: TestDb>(
    db: D,
) {
    let (setup, passed, gate) = streamed(&db, 8, nothing, |mut call: Call<D>| async move {
        let entry = call.entry();
        D::nested(&mut call.tx, entry, Nested::Drop)
            .await
            .expect("it is written");
        StatusCode::NO_CONTENT
    });
    let world = setup.start().await;
    for reply in together(&world, &gate, &BEHIND).await {
        reply.is_applied();
    }
    for sequence in 1..=5 {
        assert_eq!(world.probe.runs(hot(sequence).id()), 1);
    }
    assert_eq!(passed.of("store.commit"), 1);
    applied_in_order(&world, 5).await;
}

/// §2.9: what fails often costs little.
async fn groups_of_a_stream_that_are_undone_make_the_next_deliveries_run_alone<D: TestDb>(db: D) {
    let (setup, passed, gate) = streamed(&db, 8, nothing, |call: Call<D>| async move {
        if is(&call, 3) && call.run == 1 {
            std::panic::resume_unwind(Box::new("planned"));
        }
        StatusCode::NO_CONTENT
    });
    let world = setup.start().await;
    together(&world, &gate, &[2, 3]).await;
    world.send(&hot(3)).await.is_applied();
    let behind = passed.of("store.insert_behind");
    let sent: Vec<_> = (4..=10)
        .map(|sequence| world.spawn(&hot(sequence)))
        .collect();
    for one in sent {
        assert!(one.await.expect("an answer").status < 300);
    }
    drained(&world, HOT, 10).await;
    assert_eq!(passed.of("store.insert_behind"), behind);
}

/// §4.5: whether it waits for its turn, runs, or waits for the others.
async fn clients_that_leave_a_stream_s_group_change_nothing<D: TestDb>(db: D) {
    let last = Gate::shut();
    let (setup, _, gate) = streamed(&db, 8, nothing, held_at(&last, 4));
    let world = setup.start().await;
    let mut sent = send_behind(&world, &gate, &BEHIND).await;
    // Waits for its turn.
    sent[4].abort();
    gate.open();
    last.reached_by(1).await;
    // Has succeeded; runs.
    sent[1].abort();
    sent[3].abort();
    last.open();
    for n in [2, 0] {
        sent.remove(n).await.expect("an answer").is_applied();
    }
    eventually("all are applied", async || world.applied().await.len() == 5).await;
    for sequence in 1..=5 {
        assert_eq!(world.probe.runs(hot(sequence).id()), 1);
    }
    applied_in_order(&world, 5).await;
}

/// The first one that comes by this point fails there.
fn first_fails(point: &'static str) -> impl Fn(&'static str, usize) -> Act + Send + Sync {
    move |name, nth| match (name == point, nth) {
        (true, 1) => Act::Fail,
        _ => Act::Nothing,
    }
}

/// §2.4, §4.2: it was not sent.
async fn a_stream_s_commit_that_is_lost_is_acknowledged_to_nobody_and_not_remembered<D: TestDb>(
    db: D,
) {
    let (setup, _, gate) = streamed(&db, 8, first_fails("store.commit"), succeeds);
    let world = setup.start().await;
    for reply in together(&world, &gate, &[2, 3]).await {
        reply.is(503, "failed");
    }
    assert!(world.applied().await.is_empty());
    for sequence in 1..=3 {
        world.send(&hot(sequence)).await.is_applied();
    }
    applied_in_order(&world, 3).await;
}

/// §4.2: it was.
async fn a_stream_s_commit_whose_answer_is_lost_applies_nothing_twice<D: TestDb>(db: D) {
    let (setup, _, gate) = streamed(&db, 8, first_fails("store.committed"), succeeds);
    let world = setup.start().await;
    for reply in together(&world, &gate, &[2, 3]).await {
        reply.is(503, "failed");
    }
    applied_in_order(&world, 3).await;
    for sequence in 1..=3 {
        assert_eq!(world.probe.runs(hot(sequence).id()), 1);
    }
}

/// §9: at each of them, once.
async fn a_statement_that_fails_in_a_stream_s_group_loses_nothing<D: TestDb>(db: D) {
    for point in [
        "store.insert_behind",
        "begun",
        "entered",
        "handled",
        "released",
        "store.rollback_to",
    ] {
        let of_the_third = match point.starts_with("store") || point == "released" {
            true => 1,
            false => 3,
        };
        let act = move |name, nth| match name == point && nth == of_the_third {
            true => Act::Fail,
            false => Act::Nothing,
        };
        let then = move |call: Call<D>| async move {
            let fails = is(&call, 3) && call.run == 1;
            match fails && point == "store.rollback_to" {
                true => StatusCode::SERVICE_UNAVAILABLE,
                false => StatusCode::NO_CONTENT,
            }
        };
        let (setup, _, gate) = streamed(&db, 8, act, then);
        let world = setup.start().await;
        for reply in together(&world, &gate, &[2, 3, 4]).await {
            assert!(
                matches!(reply.status, 202 | 204 | 200 | 503),
                "{point}: {reply:?}"
            );
        }
        for sequence in 1..=4 {
            let reply = world.send(&hot(sequence)).await;
            assert!(reply.status < 300, "{point}: {reply:?}");
        }
        applied_in_order(&world, 4).await;
        world.stop().await;
        let eyes = World::<D>::start(&db).await;
        for table in ["{p}event", "{p}cursor", "ledger"] {
            eyes.execute(&format!("DELETE FROM {table}")).await;
        }
        eyes.stop().await;
    }
}

/// §5.9, §9: its runtime ends with a handler in the middle, as `kill -9` would have it.
async fn a_process_that_ends_in_a_stream_s_group_leaves_nothing_of_it<D: TestDb>(db: D) {
    let last = Gate::shut();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let (setup, _, gate) = streamed(&db, 8, nothing, held_at(&last, 4));
    let first = runtime.spawn(setup.start()).await.expect("it starts");
    let mut sent = Vec::new();
    for sequence in 1..=5 {
        let (world, request) = (first.clone(), first.request(&hot(sequence)));
        sent.push(runtime.spawn(async move { world.post(request).await }));
        if sequence == 1 {
            gate.reached_by(1).await;
        }
    }
    eventually("all have looked, and wait", async || {
        first.inbox.waiting_to_share().1 == 4
    })
    .await;
    gate.open();
    last.reached_by(1).await;
    assert_eq!(first.probe.runs(hot(3).id()), 1);
    runtime.shutdown_background();
    for one in sent {
        assert!(one.await.is_err(), "nobody is answered");
    }
    drop(first);
    let next = World::<D>::start(&db).await;
    assert!(next.applied().await.is_empty());
    for sequence in 1..=5 {
        eventually("the lock is gone", async || {
            next.send(&hot(sequence)).await.status < 300
        })
        .await;
    }
    applied_in_order(&next, 5).await;
}

/// (shutdown)
async fn a_shutdown_waits_for_a_stream_s_group<D: TestDb>(db: D) {
    let (setup, _, gate) = streamed(&db, 8, nothing, succeeds);
    let world = setup.start().await;
    let sent = send_behind(&world, &gate, &[2, 3]).await;
    let mut stopping = Box::pin(world.inbox.shutdown());
    let begun = tokio::time::timeout(Duration::from_millis(20), &mut stopping).await;
    assert!(begun.is_err(), "it waits for them");
    gate.open();
    for one in sent {
        one.await.expect("an answer").is_applied();
    }
    stopping.await;
    assert_eq!(world.sequences(HOT).await, [1, 2, 3]);
    world.pool_is_whole().await;
}

/// §2.8, §4.2: others take their time in its transaction.
async fn one_whose_time_is_spent_while_its_group_goes_on_is_told_in_time_and_known_later<
    D: TestDb,
>(
    db: D,
) {
    let budget = Duration::from_secs(2);
    let last = Gate::shut();
    let (setup, passed, gate) = streamed(&db, 8, nothing, held_at(&last, 2));
    let world = setup
        .source(move |source| source.budget(budget))
        .start()
        .await;
    let first = world.spawn(&hot(1));
    gate.reached_by(1).await;
    tokio::time::sleep(budget / 2).await;
    let second = world.spawn(&hot(2));
    eventually("it has looked, and waits", async || {
        world.inbox.waiting_to_share().1 == 1
    })
    .await;
    gate.open();
    last.reached_by(1).await;
    // The second one's time is not over yet.
    first.await.expect("an answer").is(503, "failed");
    last.open();
    second.await.expect("an answer").is_applied();
    world.send(&hot(1)).await.is_duplicate();
    assert_eq!(
        (world.probe.runs(hot(1).id()), passed.of("store.commit")),
        (1, 1)
    );
    applied_in_order(&world, 2).await;
}

/// §4.6: what the server ends by itself is by the time of who is at work.
async fn a_member_has_its_own_time_and_not_what_the_first_one_had_left<D: TestDb>(db: D) {
    let (late, budget) = (Duration::from_secs(3), Duration::from_secs(4));
    let begin = Gate::shut();
    let held = begin.clone();
    let act = move |name, nth| match (name, nth) {
        ("store.begin", 1) => Act::Wait(held.clone()),
        _ => Act::Nothing,
    };
    let (setup, passed, gate) = streamed(&db, 8, act, |mut call: Call<D>| async move {
        if is(&call, 2) {
            // For longer than the first one's transaction may be idle, with a statement behind it.
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            call.append().await;
        }
        StatusCode::NO_CONTENT
    });
    let world = setup
        .source(move |source| source.budget(budget))
        .start()
        .await;
    gate.open();
    let first = world.spawn(&hot(1));
    begin.reached_by(1).await;
    tokio::time::sleep(late).await;
    let second = world.spawn(&hot(2));
    eventually("it has looked, and waits", async || {
        world.inbox.waiting_to_share().1 == 1
    })
    .await;
    begin.open();
    first.await.expect("an answer").is(503, "failed");
    second.await.expect("an answer").is_applied();
    assert_eq!(passed.of("store.insert_behind"), 1);
    let runs = [1, 2].map(|sequence| world.probe.runs(hot(sequence).id()));
    assert_eq!(runs, [1, 1], "it was not undone");
    assert_eq!(world.sequences(HOT).await, [1, 2, 2]);
    world.pool_is_whole().await;
}

/// §4.8
async fn copies_of_members_of_a_stream_s_group_are_duplicates<D: TestDb>(db: D) {
    let (setup, _, gate) = streamed(&db, 8, nothing, succeeds);
    let world = setup.start().await;
    let sent = send_behind(&world, &gate, &[2, 3]).await;
    let copies: Vec<_> = (1..=3)
        .map(|sequence| world.spawn(&hot(sequence)))
        .collect();
    gate.open();
    for one in sent {
        one.await.expect("an answer").is_applied();
    }
    for copy in copies {
        copy.await.expect("an answer").is_duplicate();
    }
    applied_in_order(&world, 3).await;
}
