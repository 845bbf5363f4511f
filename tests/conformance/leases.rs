//! §5.7: attempts at pending events: counted before they begin, fenced, given back, taken over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tower_inbox::BuildErrorKind;

use crate::db::TestDb;
use crate::kit::{Call, Gate, TestClock, World, eventually, numbered};

suite![
    an_attempt_is_counted_before_its_handler_runs,
    a_failed_attempt_gives_its_lease_back_and_is_no_crash,
    an_event_whose_process_ended_each_time_becomes_a_dead_letter,
    what_a_worker_that_is_gone_has_left_is_taken_over_whatever_the_clocks_say,
    an_expired_lease_is_taken_over_at_once,
    a_live_redelivery_of_a_leased_event_waits_for_the_lock_and_reads_again,
    an_event_older_than_its_limit_fails_for_good_the_first_time,
    a_lease_shorter_than_an_attempt_is_refused,
    clocks_an_hour_apart_break_no_promise,
];

const LEASES: &str = "SELECT COUNT(*) FROM {p}pending WHERE lease_token <> 0";

/// 2 is parked; 1 makes it due. `more` lie behind.
async fn make_due<D: TestDb>(world: &World<D>) {
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await;
}

/// §5.7: on entry, committed before the handler runs.
async fn an_attempt_is_counted_before_its_handler_runs<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let world = World::<D>::over(&db)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                if call.delivery.sequence() == Some(2) {
                    gate.pass().await;
                }
                call.append().await;
            }
        })
        .start()
        .await;
    make_due(&world).await;
    gate.reached_by(1).await;
    assert_eq!(world.number("SELECT attempts FROM {p}pending").await, 1);
    assert_eq!(world.number("SELECT unfinished FROM {p}pending").await, 1);
    assert_eq!(world.number(LEASES).await, 1);
    if !D::SINGLE_WRITER {
        // A heartbeat while a handler runs (§9): a table of its own, and no lock of the event's.
        eventually("its worker gives signs of life", async || {
            world
                .number("SELECT COALESCE(MAX(beat), 0) FROM {p}worker")
                .await
                >= 2
        })
        .await;
    }
    gate.open();
    eventually("it is applied", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
    world.inbox.shutdown().await;
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}worker").await, 0);
}

/// §5.5, §5.7
async fn a_failed_attempt_gives_its_lease_back_and_is_no_crash<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.backoff([Duration::from_secs(300)]))
        .answers(|call| {
            if call.delivery.sequence() == Some(2) {
                503
            } else {
                0
            }
        })
        .start()
        .await;
    make_due(&world).await;
    eventually("the attempt is over", async || {
        world
            .number("SELECT COUNT(*) FROM {p}pending WHERE last_status = 503")
            .await
            == 1
    })
    .await;
    assert_eq!(world.number(LEASES).await, 0);
    assert_eq!(world.number("SELECT attempts FROM {p}pending").await, 1);
    assert_eq!(world.number("SELECT unfinished FROM {p}pending").await, 0);
}

/// Puts the event of a process that is gone into the table: sequence 2 of a new account, leased.
async fn leave_behind<D: TestDb>(world: &World<D>, until: &str, unfinished: u32) {
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world
        .execute(&format!(
            "UPDATE {{p}}pending SET lease_token = 7, lease_owner = 'gone', lease_until = {until},
                attempts = {unfinished}, unfinished = {unfinished}"
        ))
        .await;
}

/// §1, §5.7, §5.10. Issue 5: a poison event is a dead letter, not a crash loop. Five times, in a row.
async fn an_event_whose_process_ended_each_time_becomes_a_dead_letter<D: TestDb>(db: D) {
    for (unfinished, applied) in [(4, true), (5, false)] {
        let world = World::<D>::start(&db).await;
        world.execute("DELETE FROM ledger").await;
        let account = format!("acct{unfinished}");
        world.send(&numbered(&account, 2)).await.is_parked(1);
        world
            .execute(&format!(
                "UPDATE {{p}}pending SET lease_token = 7, lease_owner = 'gone', lease_until = 0,
                    attempts = {unfinished}, unfinished = {unfinished} WHERE reason IS NULL"
            ))
            .await;
        world.send(&numbered(&account, 1)).await.is_applied();
        if applied {
            eventually("it is tried once more", async || {
                world.sequences(&account).await == [1, 2]
            })
            .await;
        } else {
            eventually("it is a dead letter", async || {
                world
                    .number("SELECT COUNT(*) FROM {p}pending WHERE reason = 4 AND attempts = 5")
                    .await
                    == 1
            })
            .await;
            assert_eq!(world.probe.runs(numbered(&account, 2).id()), 0);
            // Its successors wait, as behind any dead letter (§5.10).
            world.send(&numbered(&account, 3)).await.is_parked(2);
        }
        world.stop().await;
    }
}

/// §5.7, §5.14: by its beat, which stands still. Its lease runs for years by the clock of whoever wrote it.
async fn what_a_worker_that_is_gone_has_left_is_taken_over_whatever_the_clocks_say<D: TestDb>(
    db: D,
) {
    let world = World::<D>::start(&db).await;
    leave_behind(&world, "9000000000000000", 1).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("it is taken over", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
}

/// §5.7
async fn an_expired_lease_is_taken_over_at_once<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    leave_behind(&world, "1", 1).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("it is taken over", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
}

/// §5.7: with two processes, of which one drains what the other is asked for.
async fn a_live_redelivery_of_a_leased_event_waits_for_the_lock_and_reads_again<D: TestDb>(db: D) {
    let (gate, drained) = (Gate::shut(), Arc::new(AtomicUsize::new(0)));
    let (held, count) = (gate.clone(), Arc::clone(&drained));
    let draining = World::<D>::over(&db)
        .handler(move |mut call: Call<D>| {
            let (gate, count) = (held.clone(), Arc::clone(&count));
            async move {
                call.append().await;
                if call.delivery.sequence() == Some(2) {
                    count.fetch_add(1, Ordering::Relaxed);
                    gate.pass().await;
                }
            }
        })
        .start()
        .await;
    make_due(&draining).await;
    gate.reached_by(1).await;
    let other = World::<D>::start(&db).await;
    let again = other.spawn(&numbered("acct", 2));
    // The look, and the transaction that waits.
    eventually("it is in its transaction", async || other.acquired() >= 2).await;
    assert!(!again.is_finished());
    gate.open();
    again.await.expect("an answer").is_duplicate();
    assert_eq!(drained.load(Ordering::Relaxed), 1);
    assert_eq!(other.probe.runs(numbered("acct", 2).id()), 0);
    assert_eq!(draining.sequences("acct").await, [1, 2]);
}

/// §5.5, by age.
async fn an_event_older_than_its_limit_fails_for_good_the_first_time<D: TestDb>(db: D) {
    let clock = TestClock::new();
    let read = clock.clone();
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.clock(read))
        .source(|source| {
            source
                .max_age(Duration::from_secs(60))
                .recovery_window(Duration::from_secs(600))
        })
        .answers(|call| {
            if call.delivery.sequence() == Some(2) {
                503
            } else {
                0
            }
        })
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    clock.advance(Duration::from_secs(61));
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("it is a dead letter", async || {
        world
            .number("SELECT COUNT(*) FROM {p}pending WHERE reason = 2 AND attempts = 1")
            .await
            == 1
    })
    .await;
}

/// §5.7: the budget, SQLite's busy timeout and a margin; and not so long that §5.14 could not be kept.
async fn a_lease_shorter_than_an_attempt_is_refused<D: TestDb>(db: D) {
    let pool = World::<D>::start(&db).await.pool;
    for (budget, lease, good) in [
        (7, 12, false),
        (7, 13, true),
        (40, 30, false),
        (7, 240, true),
        (7, 241, false),
    ] {
        let source = tower_inbox::Source::kudos("crm")
            .secrets(["whk_any"])
            .budget(Duration::from_secs(budget));
        let built = tower_inbox::Inbox::builder(pool.clone())
            .source(source)
            .table_prefix(db.prefix())
            .lease(Duration::from_secs(lease))
            .build()
            .await;
        match built {
            Ok(_) => assert!(good, "{budget} {lease}"),
            Err(error) => {
                assert!(!good, "{budget} {lease}: {error}");
                assert_eq!(error.kind(), BuildErrorKind::UnsafeSetting);
            }
        }
    }
}

/// §4.10, issue 5: two processes whose clocks are an hour apart.
async fn clocks_an_hour_apart_break_no_promise<D: TestDb>(db: D) {
    let ahead = TestClock::new();
    ahead.advance(Duration::from_secs(3600));
    let tolerant = |source: tower_inbox::Source| {
        let hours = Duration::from_secs(7200);
        source.tolerance(tower_inbox::verify::Tolerance::new(hours, hours))
    };
    let one = World::<D>::over(&db).source(tolerant).start().await;
    let other = World::<D>::over(&db)
        .source(tolerant)
        .inbox(move |inbox| inbox.clock(ahead))
        .start()
        .await;
    let worlds = [&one, &other];
    for account in ["a", "b", "c"] {
        for n in (1..=20_u64).rev() {
            let world = worlds[usize::try_from(n % 2).expect("small")];
            world.send(&numbered(account, n)).await;
        }
    }
    for account in ["a", "b", "c"] {
        eventually("all of it is applied", async || {
            one.sequences(account).await == (1..=20).collect::<Vec<i64>>()
        })
        .await;
    }
    let runs = |id: &str| one.probe.runs(id) + other.probe.runs(id);
    for n in 1..=20 {
        assert_eq!(runs(numbered("a", n).id()), 1);
    }
    eventually("nothing is parked", async || {
        one.number("SELECT COUNT(*) FROM {p}pending").await == 0
    })
    .await;
}
