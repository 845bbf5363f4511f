//! §4.4: what a handler can do to its transaction. None of it is acknowledged wrongly, and no connection with an
//! abnormal end goes back to the pool.

use crate::db::{Nested, TestDb, Then};
use crate::kit::{Call, Event, World, eventually, numbered};

suite![
    whatever_a_handler_does_to_its_transaction_its_effect_is_there_once,
    the_same_in_a_stream_leaves_no_hole_and_blocks_nobody,
    the_same_in_a_drained_event,
    the_same_by_a_handler_that_says_that_it_failed_spoils_no_session,
    a_nested_transaction_works,
    a_nested_transaction_that_is_dropped_is_undone_alone,
    a_nested_transaction_that_is_left_open_is_not_acknowledged,
    a_panic_is_a_500_and_the_retry_applies,
    a_panic_while_a_task_holds_the_transaction_is_a_500,
];

/// A handler that does its work and then, in the first run of an event, the fault.
fn world_of<D: TestDb>(db: &D, index: usize) -> crate::kit::Setup<D> {
    World::<D>::over(db)
        .source(|source| source.backoff([std::time::Duration::from_millis(20)]))
        .handler(move |mut call: Call<D>| async move {
            call.append().await;
            if call.run == 1 && call.delivery.event_id().starts_with("evt_bad") {
                let fault = &D::faults()[index];
                (fault.spoil)(call.tx).await;
            }
            http::StatusCode::OK
        })
}

async fn settled<D: TestDb>(world: &World<D>, name: &str) {
    // A kept transaction is given back late.
    eventually(name, async || world.probe.running() == 0).await;
    world.pool_is_whole().await;
}

/// What the producer is told is what happened, and not that the delivery itself fell over.
fn says_so(reply: &crate::kit::Reply) -> bool {
    reply.is_problem() && reply.json()["detail"].to_string().contains("transaction")
}

/// §4.4: a ROLLBACK succeeds where there is no transaction any more, and says nothing about what is left (`LOCK TABLES`).
async fn the_same_by_a_handler_that_says_that_it_failed_spoils_no_session<D: TestDb>(db: D) {
    for (index, fault) in D::faults().into_iter().enumerate() {
        let world = World::<D>::over(&db)
            .connections(2)
            .inbox(|inbox| inbox.remembered(0))
            .handler(move |mut call: Call<D>| async move {
                call.append().await;
                if call.run > 1 || !call.delivery.event_id().starts_with("evt_bad") {
                    return http::StatusCode::OK;
                }
                (D::faults()[index].spoil)(call.tx).await;
                http::StatusCode::SERVICE_UNAVAILABLE
            })
            .start()
            .await;
        let first = world.send(&Event::new(&format!("evt_bad_{index}"))).await;
        assert!(first.status >= 500, "{}: {first:?}", fault.name);
        for n in 0..3 {
            let reply = world.send(&Event::new(&format!("evt_{index}_{n}"))).await;
            assert_eq!(reply.status, 200, "{}: {reply:?}", fault.name);
        }
        settled(&world, fault.name).await;
        world.stop().await;
    }
}

/// §4.4, §9
async fn whatever_a_handler_does_to_its_transaction_its_effect_is_there_once<D: TestDb>(db: D) {
    for (index, fault) in D::faults().into_iter().enumerate() {
        let world = world_of(&db, index).start().await;
        let event = Event::new(&format!("evt_bad_{index}"));
        let before = world.ledger().await.len();
        let (name, first) = (fault.name, world.send(&event).await);
        let committed = world.ledger().await.len() - before;
        match fault.then {
            Then::Applied => {
                assert_eq!(
                    (first.status, first.outcome(), committed),
                    (200, "applied", 1),
                    "{name}"
                );
            }
            Then::FailedThenDuplicate => {
                assert_eq!(
                    (first.status, first.outcome(), committed),
                    (500, "failed", 1),
                    "{name}"
                );
                assert!(says_so(&first), "{name}: {first:?}");
            }
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            Then::UnknownThenApplied => {
                assert_eq!(
                    (first.status, first.outcome(), committed),
                    (503, "failed", 0),
                    "{name}"
                );
            }
            Then::FailedThenApplied => {
                assert_eq!(
                    (first.status, first.outcome(), committed),
                    (500, "failed", 0),
                    "{name}"
                );
                assert!(says_so(&first), "{name}: {first:?}");
            }
        }
        let retry = world.send(&event).await;
        let applied_now = fault.then.leaves_nothing();
        let expected = if applied_now { "applied" } else { "duplicate" };
        assert_eq!(
            (retry.status, retry.outcome()),
            (200, expected),
            "{name}: {retry:?}"
        );
        world.send(&event).await.is_duplicate();
        assert_eq!(world.ledger().await.len(), before + 1, "{name}");
        // And nobody after it suffers from it.
        world
            .send(&Event::new(&format!("evt_good_{index}")))
            .await
            .is(200, "applied");
        settled(&world, name).await;
        world.stop().await;
    }
}

/// §4.4: the cursor is committed with the row, whoever commits.
async fn the_same_in_a_stream_leaves_no_hole_and_blocks_nobody<D: TestDb>(db: D) {
    for (index, fault) in D::faults().into_iter().enumerate() {
        let (world, account) = (world_of(&db, index).start().await, format!("acct_{index}"));
        let event = |n| match n {
            2 => Event::new(&format!("evt_bad_{index}")).of(&account, 2),
            n => numbered(&account, n),
        };
        for n in [1, 2] {
            world.send(&event(n)).await;
        }
        let early = world.send(&event(3)).await;
        let expected = if fault.then.leaves_nothing() {
            "parked"
        } else {
            "applied"
        };
        assert_eq!(early.outcome(), expected, "{}", fault.name);
        world.send(&event(2)).await;
        eventually(fault.name, async || {
            world.sequences(&account).await.len() == 3
        })
        .await;
        assert_eq!(world.sequences(&account).await, [1, 2, 3], "{}", fault.name);
        world.send(&event(4)).await.is(200, "applied");
        settled(&world, fault.name).await;
        world.stop().await;
    }
}

/// §4.4, §5.5: nobody waits for the answer, and the next attempt finds out.
async fn the_same_in_a_drained_event<D: TestDb>(db: D) {
    for (index, fault) in D::faults().into_iter().enumerate() {
        let (world, account) = (
            world_of(&db, index).start().await,
            format!("drained_{index}"),
        );
        let bad = Event::new(&format!("evt_bad_drained_{index}")).of(&account, 2);
        world.send(&bad).await.is_parked(1);
        world.send(&numbered(&account, 3)).await.is_parked(1);
        world.send(&numbered(&account, 1)).await.is(200, "applied");
        eventually(fault.name, async || {
            world.sequences(&account).await.len() == 3
        })
        .await;
        assert_eq!(world.sequences(&account).await, [1, 2, 3], "{}", fault.name);
        world.send(&bad).await.is_duplicate();
        let left = "SELECT COUNT(*) FROM {p}pending";
        eventually(fault.name, async || world.number(left).await == 0).await;
        settled(&world, fault.name).await;
        world.stop().await;
    }
}

fn nesting<D: TestDb>(db: &D, end: Nested) -> crate::kit::Setup<D> {
    World::<D>::over(db).handler(move |mut call: Call<D>| async move {
        call.append().await;
        if call.run == 1 {
            let inner = crate::db::Entry {
                account: "nested".into(),
                ..call.entry()
            };
            D::nested(&mut call.tx, inner, end).await.unwrap();
        }
        http::StatusCode::OK
    })
}

/// §4.4: "a handler's own nested `begin` still works" (issue 3).
async fn a_nested_transaction_works<D: TestDb>(db: D) {
    let world = nesting(&db, Nested::Commit).start().await;
    world.send(&Event::new("evt_1")).await.is(200, "applied");
    world.send(&Event::new("evt_1")).await.is_duplicate();
    assert_eq!(world.ledger().await.len(), 2);
    settled(&world, "nested").await;
}

/// §4.4
async fn a_nested_transaction_that_is_dropped_is_undone_alone<D: TestDb>(db: D) {
    let world = nesting(&db, Nested::Drop).start().await;
    world.send(&Event::new("evt_1")).await.is(200, "applied");
    assert_eq!(world.ledger().await.len(), 1);
    assert_eq!(world.ledger().await[0].account, "");
    settled(&world, "nested").await;
}

/// §4.4: nobody can say what the handler meant by it.
async fn a_nested_transaction_that_is_left_open_is_not_acknowledged<D: TestDb>(db: D) {
    let world = nesting(&db, Nested::Leak).start().await;
    world.send(&Event::new("evt_1")).await.is(500, "failed");
    assert!(world.ledger().await.is_empty());
    world.send(&Event::new("evt_1")).await.is(200, "applied");
    assert_eq!(world.ledger().await.len(), 1);
    settled(&world, "nested").await;
}

/// §3
async fn a_panic_is_a_500_and_the_retry_applies<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            assert!(call.run > 2, "this panic is part of the test");
            http::StatusCode::OK
        })
        .start()
        .await;
    for _ in 0..2 {
        let reply = world.send(&numbered("acct", 1)).await;
        reply.is_problem_about(500, "failed", "panicked");
        assert!(world.ledger().await.is_empty());
        assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 0);
    }
    world.send(&numbered("acct", 1)).await.is(200, "applied");
    world.send(&numbered("acct", 1)).await.is_duplicate();
    settled(&world, "panic").await;
}

/// §3, §4.4
async fn a_panic_while_a_task_holds_the_transaction_is_a_500<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            if call.run == 1 {
                let tx = call.tx;
                let kept = tokio::spawn(async move {
                    tokio::task::yield_now().await;
                    drop(tx);
                });
                drop(kept);
                panic!("this panic is part of the test");
            }
            http::StatusCode::OK
        })
        .start()
        .await;
    world.send(&Event::new("evt_1")).await.is(500, "failed");
    world.send(&Event::new("evt_1")).await.is(200, "applied");
    assert_eq!(world.applied().await, ["evt_1"]);
    settled(&world, "panic").await;
}
