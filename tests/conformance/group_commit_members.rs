//! Groups whose members do not all succeed: each effect is there once, and no success is acknowledged that is none
//! (`Source::batch`).

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tower_inbox::envelope::Place;
use tower_inbox::{Park, Preset, Source};

use crate::batch::{batched, nothing};
use crate::db::{Nested, TestDb, Then};
use crate::fence::push;
use crate::group_commit::{applied_once, evt, grouped, others, together, waiting};
use crate::kit::{Call, Event, Gate, Reply, SOURCE, World, eventually, numbered};

suite![
    a_member_that_fails_leaves_the_others_their_transaction,
    a_first_one_that_fails_holds_up_nobody,
    a_member_with_a_verdict_becomes_a_dead_letter_alone,
    a_member_that_panics_undoes_the_group_and_the_others_are_run_alone,
    a_member_that_is_put_off_is_kept_alone,
    a_member_over_its_budget_undoes_the_group,
    whatever_a_member_does_to_the_transaction_each_effect_is_there_once,
    nothing_is_marked_behind_a_member_that_has_ended_the_transaction,
    a_member_that_leaves_a_transaction_open_is_not_acknowledged,
    a_member_that_drops_a_transaction_of_its_own_stays_in_the_group,
    duplicates_in_a_group_are_told_so_and_the_others_share,
    an_older_version_leaves_the_group_and_is_superseded,
    what_is_fenced_leaves_the_group_and_is_held,
    groups_that_are_undone_make_the_next_deliveries_run_alone,
];

/// Of `evt_0` to `evt_5`, this one ends with `status` in its first run.
fn third_fails<D: TestDb>(
    status: StatusCode,
) -> impl Fn(Call<D>) -> std::future::Ready<StatusCode> + Clone + Send + Sync {
    move |call: Call<D>| {
        let fails = call.delivery.event_id() == "evt_3" && call.run == 1;
        std::future::ready(if fails {
            status
        } else {
            StatusCode::NO_CONTENT
        })
    }
}

/// §2.9, §3: its own work is taken back, and nothing of theirs.
async fn a_member_that_fails_leaves_the_others_their_transaction<D: TestDb>(db: D) {
    let fails = third_fails(StatusCode::SERVICE_UNAVAILABLE);
    let (setup, passed, gate) = grouped(&db, 8, nothing, fails);
    let world = setup.start().await;
    let replies = together(&world, &gate, &others(5)).await;
    for (n, reply) in replies.iter().enumerate() {
        match n {
            3 => reply.is(503, "failed"),
            _ => reply.is_applied(),
        };
        assert_eq!(world.probe.runs(evt(n).id()), 1);
    }
    if D::JOINS_ANY {
        assert_eq!(passed.of("store.commit"), 1);
    }
    assert_eq!(world.applied().await.len(), 5);
    world.send(&evt(3)).await.is_applied();
    applied_once(&world, 5).await;
}

/// §2.9: there is no group then.
async fn a_first_one_that_fails_holds_up_nobody<D: TestDb>(db: D) {
    let (setup, _, gate) = grouped(&db, 8, nothing, |call: Call<D>| {
        let fails = call.delivery.event_id() == "evt_0" && call.run == 1;
        std::future::ready(if fails {
            StatusCode::INTERNAL_SERVER_ERROR
        } else {
            StatusCode::NO_CONTENT
        })
    });
    let world = setup.start().await;
    let replies = together(&world, &gate, &others(3)).await;
    for (n, reply) in replies.iter().enumerate() {
        match n {
            0 => reply.is(500, "failed"),
            _ => reply.is_applied(),
        };
    }
    world.send(&evt(0)).await.is_applied();
    applied_once(&world, 3).await;
}

/// §4.13: in a transaction of its own, in which it runs again.
async fn a_member_with_a_verdict_becomes_a_dead_letter_alone<D: TestDb>(db: D) {
    let (setup, _, gate) = grouped(&db, 8, nothing, |call: Call<D>| {
        let refuses = call.delivery.event_id() == "evt_3" && call.run <= 2;
        std::future::ready(if refuses && (call.run == 1 || D::JOINS_ANY) {
            StatusCode::UNPROCESSABLE_ENTITY
        } else {
            StatusCode::NO_CONTENT
        })
    });
    let world = setup.start().await;
    let replies = together(&world, &gate, &others(5)).await;
    for (n, reply) in replies.iter().enumerate() {
        match n {
            3 => reply.is(422, "rejected"),
            _ => reply.is_applied(),
        };
    }
    let letter = "SELECT COUNT(*) FROM {p}pending WHERE event_id = 'evt_3' AND reason = 3 AND last_status = 422";
    let letter = match D::NAME {
        "mysql" => letter.replace("'evt_3'", "X'6576745F33'"),
        _ => letter.to_owned(),
    };
    assert_eq!(world.number(&letter).await, 1);
    assert_eq!((world.in_state(1).await, world.in_state(3).await), (5, 1));
    assert_eq!(world.applied().await.len(), 5);
    world.send(&evt(3)).await.is_applied();
    applied_once(&world, 5).await;
}

/// §3, §9: nobody knows what it has left behind.
async fn a_member_that_panics_undoes_the_group_and_the_others_are_run_alone<D: TestDb>(db: D) {
    let (setup, _, gate) = grouped(&db, 8, nothing, |call: Call<D>| async move {
        if call.delivery.event_id() == "evt_3" && call.run == 1 {
            std::panic::resume_unwind(Box::new("planned"));
        }
        StatusCode::NO_CONTENT
    });
    let world = setup.start().await;
    let replies = together(&world, &gate, &others(5)).await;
    for (n, reply) in replies.iter().enumerate() {
        match n {
            3 => reply.is_problem_about(500, "failed", "panicked"),
            _ => reply.is_applied(),
        };
        let again = D::JOINS_ANY && n < 3;
        assert_eq!(world.probe.runs(evt(n).id()), 1 + usize::from(again), "{n}");
    }
    assert_eq!(world.applied().await.len(), 5);
    world.send(&evt(3)).await.is_applied();
    applied_once(&world, 5).await;
}

/// §5.5: with its request, in a transaction of its own.
async fn a_member_that_is_put_off_is_kept_alone<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let (setup, _) = batched(&db, 8, nothing);
    let world = waiting(setup)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                match (call.delivery.event_id(), call.run) {
                    ("evt_0", 1) => gate.pass().await,
                    ("evt_2", 1 | 2) => {
                        return Park::after(Duration::from_millis(50)).into_response();
                    }
                    _ => {}
                }
                Response::default()
            }
        })
        .start()
        .await;
    let replies = together(&world, &gate, &others(4)).await;
    for (n, reply) in replies.iter().enumerate() {
        match n {
            2 => reply.is(202, "parked"),
            _ => reply.is(200, "applied"),
        };
    }
    eventually("it is applied in its time", async || {
        world.applied().await.len() == 5
    })
    .await;
    applied_once(&world, 4).await;
}

/// §4.6: it has its answer in time, and the others are run alone.
async fn a_member_over_its_budget_undoes_the_group<D: TestDb>(db: D) {
    let (setup, _, gate) = grouped(&db, 8, nothing, |call: Call<D>| async move {
        if call.delivery.event_id() == "evt_2" && call.run == 1 {
            std::future::pending::<()>().await;
        }
        StatusCode::NO_CONTENT
    });
    let setup = setup.source(|source| source.budget(Duration::from_secs(2)));
    let world = setup.start().await;
    let sent = crate::group_commit::send_behind(&world, &gate, &others(2)).await;
    gate.open();
    for (n, one) in sent.into_iter().enumerate() {
        let reply = one.await.expect("an answer");
        // What had succeeded before it came a moment earlier, and may have as little time left.
        match n {
            2 => assert_eq!(reply.status, 503, "{reply:?}"),
            _ => assert!(matches!(reply.status, 204 | 503), "{reply:?}"),
        }
    }
    for n in 0..=2 {
        let reply = world.send(&evt(n)).await;
        assert!(reply.status < 300, "{reply:?}");
    }
    applied_once(&world, 2).await;
}

/// §4.4, §9: all that a handler can do to a transaction, done in the middle of a group, and at its end.
async fn whatever_a_member_does_to_the_transaction_each_effect_is_there_once<D: TestDb>(db: D) {
    for (index, fault) in D::faults().into_iter().enumerate() {
        // Some cannot be done twice in one database.
        let places: &[usize] = match D::SINGLE_WRITER {
            true => &[1, 3, 5],
            false => &[3],
        };
        for bad in places.iter().copied() {
            let id = |n: usize| format!("evt_{index}_{bad}_{n}");
            let events: Vec<_> = (0..=5).map(|n| Event::new(&id(n))).collect();
            let (gate, world) = spoiled(&db, index, id(0), id(bad)).await;
            let before = world.ledger().await.len();
            let sent = crate::group_commit::queue(&world, &gate, &events[0], &events[1..]).await;
            gate.open();
            for (n, one) in sent.into_iter().enumerate() {
                let reply = one.await.expect("an answer");
                let spoils = n == bad && fault.then != Then::Applied;
                let context = format!("{}: {n} of {bad}: {reply:?}", fault.name);
                assert!(
                    reply.status == 200 || spoils && reply.status >= 500,
                    "{context}"
                );
            }
            for event in &events {
                let reply = world.send(event).await;
                assert_eq!(reply.status, 200, "{}: {reply:?}", fault.name);
                world.send(event).await.is_duplicate();
            }
            let mut applied = world.applied().await.split_off(before);
            applied.sort();
            let all: Vec<_> = (0..=5).map(id).collect();
            assert_eq!(applied, all, "{}", fault.name);
            eventually(fault.name, async || world.probe.running() == 0).await;
            world.pool_is_whole().await;
            world.stop().await;
        }
    }
}

/// A world in which the handler of the bad event does this in its first run, and that of the first one waits at the gate.
async fn spoiled<D: TestDb>(db: &D, index: usize, first: String, bad: String) -> (Gate, World<D>) {
    let gate = Gate::shut();
    let held = gate.clone();
    let (setup, _) = batched(db, 8, nothing);
    // It remembers nothing, so that all that follows goes to the database, over the session that this one has left.
    let world = waiting(setup)
        .inbox(|inbox| inbox.remembered(0))
        .handler(move |mut call: Call<D>| {
            let (gate, first, bad) = (held.clone(), first.clone(), bad.clone());
            async move {
                call.append().await;
                if call.delivery.event_id() == first {
                    gate.pass().await;
                }
                if call.run == 1 && call.delivery.event_id() == bad {
                    (D::faults()[index].spoil)(call.tx).await;
                }
            }
        })
        .start()
        .await;
    (gate, world)
}

/// §4.4, §9: what comes behind a COMMIT of a handler's own would be committed statement by statement.
async fn nothing_is_marked_behind_a_member_that_has_ended_the_transaction<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let (setup, _) = batched(&db, 8, nothing);
    let setup = waiting(setup).handler(move |mut call: Call<D>| {
        let gate = held.clone();
        async move {
            if (call.delivery.event_id(), call.run) == ("evt_2", 1) {
                return StatusCode::SERVICE_UNAVAILABLE;
            }
            call.append().await;
            match (call.delivery.event_id(), call.run) {
                ("evt_0", 1) => gate.pass().await,
                ("evt_1", 1) => {
                    let _ = D::execute(&mut call.tx, "COMMIT").await;
                }
                _ => {}
            }
            StatusCode::NO_CONTENT
        }
    });
    let world = setup.start().await;
    let replies = together(&world, &gate, &others(3)).await;
    replies[2].is(503, "failed");
    let row = world.number("SELECT COUNT(*) FROM {p}event").await;
    assert_eq!(usize::try_from(row), Ok(world.applied().await.len()));
    for n in 0..=3 {
        let reply = world.send(&evt(n)).await;
        assert!(reply.status < 300, "{reply:?}");
    }
    applied_once(&world, 3).await;
}

/// §4.4: nobody can say what it meant by it.
async fn a_member_that_leaves_a_transaction_open_is_not_acknowledged<D: TestDb>(db: D) {
    let (setup, _, gate) = grouped(&db, 8, nothing, |mut call: Call<D>| async move {
        if call.delivery.event_id() == "evt_2" && call.run <= 2 {
            let entry = call.entry();
            D::nested(&mut call.tx, entry, Nested::Leak)
                .await
                .expect("it is written");
        }
        StatusCode::NO_CONTENT
    });
    let world = setup.start().await;
    let replies = together(&world, &gate, &others(4)).await;
    for (n, reply) in replies.iter().enumerate() {
        match n {
            2 => reply.is(500, "failed"),
            _ => reply.is_applied(),
        };
    }
    assert_eq!(world.applied().await.len(), 4);
    // On a database where each is alone, the second run leaves one open too.
    eventually("it is applied", async || {
        world.send(&evt(2)).await.status < 300
    })
    .await;
    applied_once(&world, 4).await;
}

/// §2.9, §4.4: that takes a part of its work back, and is its own business.
async fn a_member_that_drops_a_transaction_of_its_own_stays_in_the_group<D: TestDb>(db: D) {
    let (setup, passed, gate) = grouped(&db, 8, nothing, |mut call: Call<D>| async move {
        let entry = call.entry();
        D::nested(&mut call.tx, entry, Nested::Drop)
            .await
            .expect("it is written");
        StatusCode::NO_CONTENT
    });
    let world = setup.start().await;
    for reply in together(&world, &gate, &others(4)).await {
        reply.is_applied();
    }
    for n in 0..=4 {
        assert_eq!(world.probe.runs(evt(n).id()), 1);
    }
    if D::JOINS_ANY {
        assert_eq!(passed.of("store.commit"), 1);
    }
    applied_once(&world, 4).await;
}

/// §2.4, §4.1: which of them are known is found out in the transaction.
async fn duplicates_in_a_group_are_told_so_and_the_others_share<D: TestDb>(db: D) {
    let before = World::<D>::start(&db).await;
    for n in [2, 4] {
        before.send(&evt(n)).await.is_applied();
    }
    before.send(&numbered("acct", 1)).await.is_applied();
    before.stop().await;
    let (setup, _, gate) = grouped(&db, 8, nothing, crate::group_commit::succeeds);
    let world = setup.start().await;
    let sent = crate::group_commit::queue_behind(&world, &gate, &others(5)).await;
    gate.open();
    for (n, one) in sent.into_iter().enumerate() {
        let reply = one.await.expect("an answer");
        match n {
            2 | 4 => reply.is_duplicate(),
            _ => reply.is_applied(),
        };
        let known = usize::from(n == 2 || n == 4);
        assert_eq!(world.probe.runs(evt(n).id()), 1 - known);
    }
    assert_eq!(world.applied().await.len(), 7);
    world.pool_is_whole().await;
}

/// §5.12: what has been written of it in the group is taken back, and written alone.
async fn an_older_version_leaves_the_group_and_is_superseded<D: TestDb>(db: D) {
    let (setup, _, gate) = grouped(&db, 8, nothing, crate::group_commit::succeeds);
    let world = setup
        .source(|source| source.newer_than(Place::json("correlation_id"), Place::json("version")))
        .start()
        .await;
    let of = |entity: &str, id: &str, version: i64| {
        let event = Event::new(id).with("correlation_id", entity);
        world.request(&event.with("version", version))
    };
    world.post(of("a", "before", 20)).await.is_applied();
    let requests = [
        of("b", "evt_0", 1),
        of("a", "older", 10),
        of("c", "other", 1),
    ];
    let [first, older, other] = all_at_once(&world, &gate, requests).await;
    older.is_superseded();
    for reply in [first, other] {
        reply.is_applied();
    }
    assert_eq!(world.in_state(5).await, 1);
    let versions = "SELECT COUNT(*) FROM {p}cursor WHERE version IN (20, 1)";
    assert_eq!(world.number(versions).await, 3);
    world.pool_is_whole().await;
}

/// §6.7
async fn what_is_fenced_leaves_the_group_and_is_held<D: TestDb>(db: D) {
    let (setup, _, gate) = grouped(&db, 8, nothing, crate::group_commit::succeeds);
    let github = Source::new(SOURCE, Preset::GITHUB).secrets([crate::fence::SECRET]);
    let github = github.batch(8).batch_time(Duration::from_secs(60));
    let world = setup.source(|_| github).start().await;
    world.post(push("same", "push", 1)).await.is_applied();
    let requests = [
        push("evt_0", "push", 2),
        push("copy", "push", 1),
        push("another", "push", 3),
    ];
    let [first, copy, another] = all_at_once(&world, &gate, requests).await;
    assert_eq!(copy.json(), serde_json::json!({"status": "fenced"}));
    for reply in [first, another] {
        reply.is_applied();
    }
    assert_eq!(world.in_state(4).await, 1);
    world.pool_is_whole().await;
}

/// The answers to these, of which the first one waits in its handler for the others. What may have to wait for others once it
/// is in a transaction begins its own where others write too.
async fn all_at_once<D: TestDb>(
    world: &World<D>,
    gate: &Gate,
    requests: [http::Request<axum::body::Body>; 3],
) -> [Reply; 3] {
    let send = |request| {
        let world = world.clone();
        tokio::spawn(async move { world.post(request).await })
    };
    let [first, second, third] = requests;
    let first = send(first);
    gate.reached_by(1).await;
    let mut behind = Vec::new();
    for request in [second, third] {
        let before = world.inbox.waiting_to_share().0;
        behind.push(send(request));
        if D::SINGLE_WRITER {
            eventually("it waits", async || {
                world.inbox.waiting_to_share().0 > before
            })
            .await;
        }
    }
    gate.open();
    let (third, second) = (behind.remove(1), behind.remove(0));
    let answers = tokio::try_join!(first, second, third);
    answers.expect("answers").into()
}

/// §2.9: what fails often costs little.
async fn groups_that_are_undone_make_the_next_deliveries_run_alone<D: TestDb>(db: D) {
    if !D::JOINS_ANY {
        return;
    }
    let (setup, passed, gate) = grouped(&db, 8, nothing, |call: Call<D>| async move {
        if call.delivery.event_id() == "evt_2" && call.run == 1 {
            std::panic::resume_unwind(Box::new("planned"));
        }
        StatusCode::NO_CONTENT
    });
    let world = setup.start().await;
    together(&world, &gate, &others(2)).await;
    let (commits, behind) = (passed.of("store.commit"), passed.of("store.insert_behind"));
    let sent: Vec<_> = (3..11).map(|n| world.spawn(&evt(n))).collect();
    for one in sent {
        one.await.expect("an answer").is_applied();
    }
    assert_eq!(passed.of("store.commit") - commits, 8);
    assert_eq!(passed.of("store.insert_behind"), behind);
}
