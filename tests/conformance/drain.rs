//! §5.5, §5.6, §5.9 to §5.11, §5.14: what the worker does by itself, what it gives up, and what it never forgets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tower_inbox::clock::Clock as _;
use tower_inbox::verify::Tolerance;

use crate::db::TestDb;
use crate::kit::{Call, Event, Gate, TestClock, World, eventually, numbered};

suite![
    the_answer_never_waits_for_the_drain,
    a_drained_event_that_fails_is_tried_again_until_it_is_a_dead_letter,
    a_failed_attempt_waits_for_its_backoff,
    a_drained_event_that_panics_or_takes_too_long_has_failed,
    a_drained_event_that_gets_a_terminal_verdict_is_a_dead_letter_at_once,
    a_redelivery_of_a_due_event_applies_it_there_and_then,
    a_restart_drains_what_is_due_without_any_request,
    a_restart_brings_back_the_gap_too,
    an_event_without_a_route_stays_due_until_there_is_one,
    two_receivers_drain_one_database_without_running_anything_twice,
    a_wait_that_the_handler_asks_for_is_honoured,
    a_dead_letter_of_a_gap_that_fails_when_it_comes_back_is_tried_again,
    a_dead_letter_of_a_gap_that_fails_too_often_is_a_dead_letter_of_the_handlers,
    a_failed_attempt_does_not_undo_a_verdict_that_was_given_meanwhile,
    a_clock_that_was_ahead_holds_up_no_drain,
];

/// §2.10
async fn the_answer_never_waits_for_the_drain<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let world = World::<D>::over(&db)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                if call.delivery.sequence() == Some(2) {
                    gate.pass().await;
                }
            }
        })
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is(200, "applied");
    gate.reached_by(1).await;
    assert_eq!(world.sequences("acct").await, [1]);
    gate.open();
    eventually("2 follows", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
}

const DEAD: &str = "SELECT COUNT(*) FROM {p}pending WHERE reason = 2";

/// §5.5, §5.10, §5.11
async fn a_drained_event_that_fails_is_tried_again_until_it_is_a_dead_letter<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .one_by_one()
        .source(|source| source.backoff([Duration::from_millis(10)]).max_attempts(3))
        .answers(|call| match call.delivery.event_id() {
            "evt_acct_2" if call.run <= 3 => 503,
            _ => 0,
        })
        .start()
        .await;
    for n in [2, 3, 1] {
        world.send(&numbered("acct", n)).await;
    }
    eventually("it is a dead letter", async || {
        world.number(DEAD).await == 1
    })
    .await;
    assert_eq!(world.probe.runs("evt_acct_2"), 3);
    assert_eq!(
        world
            .number("SELECT attempts FROM {p}pending WHERE reason = 2")
            .await,
        3
    );
    assert_eq!(
        world
            .number("SELECT last_status FROM {p}pending WHERE reason = 2")
            .await,
        503
    );
    // Its successor waits, and the worker leaves both alone, however often it comes round.
    for n in [2, 1] {
        world.send(&numbered("other", n)).await;
    }
    eventually("the other stream is drained", async || {
        world.sequences("other").await.len() == 2
    })
    .await;
    world.send(&numbered("acct", 3)).await.is_parked(2);
    assert_eq!(
        (
            world.sequences("acct").await,
            world.probe.runs("evt_acct_2")
        ),
        (vec![1], 3)
    );
    // "A redelivery … is a new attempt when its turn is there; success closes it."
    world.send(&numbered("acct", 2)).await.is_applied();
    eventually("3 follows", async || {
        world.sequences("acct").await == [1, 2, 3]
    })
    .await;
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
}

/// §5.5: each wait of the backoff, ± at most a quarter, by the clock.
async fn a_failed_attempt_waits_for_its_backoff<D: TestDb>(db: D) {
    let hour = Duration::from_secs(3_600);
    let clock = TestClock::new().of_the_database_too();
    let at = clock.clone();
    let world = World::<D>::over(&db)
        .source(move |source| source.backoff([hour, 2 * hour]).max_attempts(4))
        .inbox(move |inbox| inbox.clock(clock).poll_every(Duration::from_millis(100)))
        .answers(|call| match call.delivery.event_id() {
            "evt_acct_2" if call.run <= 2 => 503,
            _ => 0,
        })
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    let lease = "SELECT COUNT(*) FROM {p}pending WHERE lease_token <> 0";
    // How many minutes pass, and how often it was tried then.
    for (minutes, tries) in [(0, 1), (44, 1), (32, 2), (89, 2), (62, 3)] {
        at.advance(Duration::from_secs(minutes * 60));
        eventually(
            "it is tried that often, and its end is recorded",
            async || world.probe.runs("evt_acct_2") == tries && world.number(lease).await == 0,
        )
        .await;
        // Twice: the first of them may have begun before.
        for _ in 0..2 {
            at.advance(Duration::from_micros(1));
            eventually("the worker looks for what is due", async || {
                world.inbox.worker_status().last_look == Some(at.now())
            })
            .await;
        }
        assert_eq!(world.probe.runs("evt_acct_2"), tries, "{minutes}");
    }
    eventually("it is applied", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
}

/// §5.5
async fn a_drained_event_that_panics_or_takes_too_long_has_failed<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| {
            source
                .backoff([Duration::from_millis(10)])
                .budget(Duration::from_millis(300))
        })
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            match (call.delivery.sequence(), call.run) {
                (Some(2), 1) => panic!("this panic is part of the test"),
                (Some(2), 2) => std::future::pending().await,
                _ => {}
            }
        })
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is(200, "applied");
    let attempts = "SELECT COALESCE(MAX(attempts), 0) FROM {p}pending";
    eventually("both are counted", async || {
        world.number(attempts).await == 2 || world.probe.runs("evt_acct_2") >= 3
    })
    .await;
    eventually("the third one succeeds", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
    assert_eq!(world.probe.runs("evt_acct_2"), 3);
    world.pool_is_whole().await;
}

/// §5.5, §5.10
async fn a_drained_event_that_gets_a_terminal_verdict_is_a_dead_letter_at_once<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .one_by_one()
        .answers(|call| {
            if call.delivery.sequence() == Some(2) && call.run == 1 {
                422
            } else {
                0
            }
        })
        .start()
        .await;
    for n in [2, 3, 1] {
        world.send(&numbered("acct", n)).await;
    }
    let rejected = "SELECT COUNT(*) FROM {p}pending WHERE reason = 3 AND last_status = 422";
    eventually("it is a dead letter", async || {
        world.number(rejected).await == 1
    })
    .await;
    assert_eq!(
        (world.in_state(3).await, world.sequences("acct").await),
        (1, vec![1])
    );
    world.send(&numbered("acct", 3)).await.is_parked(2);
    // A redelivery is a new attempt.
    let reply = world.send_after(422, &numbered("acct", 2)).await;
    reply.is_applied();
    eventually("3 follows", async || {
        world.sequences("acct").await == [1, 2, 3]
    })
    .await;
}

/// §5.6
async fn a_redelivery_of_a_due_event_applies_it_there_and_then<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .one_by_one()
        .source(|source| source.backoff([Duration::from_secs(3_600)]))
        .answers(|call| {
            if call.delivery.sequence() == Some(2) && call.run == 1 {
                503
            } else {
                0
            }
        })
        .start()
        .await;
    for n in [2, 3, 1] {
        world.send(&numbered("acct", n)).await;
    }
    let failed = "SELECT COUNT(*) FROM {p}pending WHERE attempts = 1 AND lease_token = 0";
    eventually("it has failed once", async || {
        world.number(failed).await == 1
    })
    .await;
    let reply = world.send_after(503, &numbered("acct", 2)).await;
    reply.is_applied();
    eventually("3 follows", async || {
        world.sequences("acct").await == [1, 2, 3]
    })
    .await;
}

/// §5.9, §5.14: stopped between the commit that makes an event due and its drain.
async fn a_restart_drains_what_is_due_without_any_request<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let world = World::<D>::over(&db)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                gate.pass().await;
            }
        })
        .start()
        .await;
    let streams: Vec<_> = (0..5).map(|n| format!("acct_{n}")).collect();
    for account in &streams {
        for n in [3, 2] {
            world.send(&numbered(account, n)).await.is_parked(1);
        }
    }
    let first = world.spawn(&numbered(&streams[0], 1));
    gate.reached_by(1).await;
    let stopping = tokio::spawn({
        let inbox = world.inbox.clone();
        async move { inbox.shutdown().await }
    });
    eventually("it takes no more", async || {
        world.send(&Event::new("")).await.status == 503
    })
    .await;
    gate.open();
    first.await.unwrap().is(200, "applied");
    stopping.await.unwrap();
    world.stop().await;
    let world = World::<D>::start(&db).await;
    eventually("the due ones are drained", async || {
        world.ledger().await.len() == 3
    })
    .await;
    assert_eq!(world.sequences(&streams[0]).await, [1, 2, 3]);
    // The others are where they were.
    for account in &streams[1..] {
        world.send(&numbered(account, 1)).await.is_applied();
    }
    eventually("all are drained", async || world.ledger().await.len() == 15).await;
    for account in &streams {
        assert_eq!(world.sequences(account).await, [1, 2, 3]);
    }
}

/// §5.4, §5.9: a dead letter of a gap that was filled while nobody was there.
async fn a_restart_brings_back_the_gap_too<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.recovery_window(Duration::from_millis(200)))
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    eventually("it is a dead letter", async || world.in_state(3).await == 1).await;
    world.stop().await;
    // A receiver whose source does not revive fills the gap and leaves the dead letter behind.
    let world = World::<D>::over(&db)
        .source(|source| source.revive_gaps(false))
        .start()
        .await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.stop().await;
    let world = World::<D>::start(&db).await;
    eventually("it comes back", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
}

/// §5.3: "a drained request that matches no route stays due with backoff".
async fn an_event_without_a_route_stays_due_until_there_is_one<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.stop().await;
    let moved = World::<D>::over(&db)
        .source(|source| source.backoff([Duration::from_millis(10)]))
        .route("/elsewhere/{tenant}")
        .start()
        .await;
    let mut first = moved.request(&numbered("acct", 1));
    *first.uri_mut() = "/elsewhere/acme".parse().unwrap();
    moved.post(first).await.is_applied();
    let failed = "SELECT COALESCE(MAX(attempts), 0) FROM {p}pending WHERE reason IS NULL";
    eventually("it finds no route", async || {
        moved.number(failed).await >= 1
    })
    .await;
    assert_eq!(moved.in_state(2).await, 1);
    moved.stop().await;
    let world = World::<D>::start(&db).await;
    eventually("it finds its route", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
}

/// §5.7
async fn two_receivers_drain_one_database_without_running_anything_twice<D: TestDb>(db: D) {
    let committed = Arc::new(AtomicUsize::new(0));
    let count = |committed: &Arc<AtomicUsize>| {
        let committed = Arc::clone(committed);
        World::<D>::over(&db).handler(move |mut call: Call<D>| {
            let committed = Arc::clone(&committed);
            async move {
                call.append().await;
                committed.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let (one, two) = (
        count(&committed).start().await,
        count(&committed).start().await,
    );
    for n in (2..=10).rev() {
        one.send(&numbered("a", n)).await.is_parked(1);
        two.send(&numbered("b", n)).await.is_parked(1);
    }
    one.send(&numbered("b", 1)).await.is(200, "applied");
    two.send(&numbered("a", 1)).await.is(200, "applied");
    eventually("both streams are complete", async || {
        one.ledger().await.len() == 20
    })
    .await;
    for account in ["a", "b"] {
        assert_eq!(one.sequences(account).await, (1..=10).collect::<Vec<_>>());
    }
    one.pool_is_whole().await;
    two.pool_is_whole().await;
}

/// §5.5: a handler's `Retry-After` on a drained run is its word on when to come again.
async fn a_wait_that_the_handler_asks_for_is_honoured<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.backoff([Duration::from_millis(1)]))
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            match call.delivery.sequence() {
                Some(2) => (
                    http::StatusCode::SERVICE_UNAVAILABLE,
                    [("retry-after", "3000")],
                ),
                _ => (http::StatusCode::OK, [("retry-after", "0")]),
            }
        })
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is(200, "applied");
    let failed = "SELECT COUNT(*) FROM {p}pending WHERE attempts = 1 AND not_before - parked_at > 2900000000";
    eventually("it waits that long", async || {
        world.number(failed).await == 1
    })
    .await;
}

/// A dead letter of a gap that has come back; in its first `failures` runs the handler answers 503.
async fn revived<D: TestDb>(db: &D, failures: usize) -> World<D> {
    let world = World::<D>::over(db)
        .source(|source| {
            source
                .recovery_window(Duration::from_millis(200))
                .backoff([Duration::from_millis(10)])
                .max_attempts(3)
        })
        .answers(move |call| match call.delivery.event_id() {
            "evt_acct_2" if call.run <= failures => 503,
            _ => 0,
        })
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    eventually("it is a dead letter", async || world.in_state(3).await == 1).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world
}

/// §5.4, §5.5: what comes back by itself is tried like everything else that is due.
async fn a_dead_letter_of_a_gap_that_fails_when_it_comes_back_is_tried_again<D: TestDb>(db: D) {
    let world = revived(&db, 2).await;
    eventually("it is applied", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
    assert_eq!(world.probe.runs("evt_acct_2"), 3);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
}

/// §5.4, §5.5: and not for ever.
async fn a_dead_letter_of_a_gap_that_fails_too_often_is_a_dead_letter_of_the_handlers<D: TestDb>(
    db: D,
) {
    let world = revived(&db, usize::MAX).await;
    eventually("it is a dead letter of the handler's", async || {
        world.number(DEAD).await == 1
    })
    .await;
    // More than one round of the worker later it is left alone.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(world.probe.runs("evt_acct_2"), 3);
    assert_eq!((world.in_state(3).await, world.in_state(1).await), (1, 1));
}

/// §5.7, §5.11: another receiver's verdict on a redelivery comes between a failed attempt and its count.
async fn a_failed_attempt_does_not_undo_a_verdict_that_was_given_meanwhile<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let drains = World::<D>::over(&db)
        .connections(1)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                if call.delivery.sequence() != Some(2) {
                    return http::StatusCode::NO_CONTENT;
                }
                gate.pass().await;
                http::StatusCode::SERVICE_UNAVAILABLE
            }
        })
        .start()
        .await;
    drains.send(&numbered("acct", 2)).await.is_parked(1);
    drains.send(&numbered("acct", 1)).await.is_applied();
    gate.reached_by(1).await;
    // Not before: it has a worker, too.
    let refuses = World::<D>::over(&db)
        .source(|source| source.backoff([Duration::from_secs(3_600)]))
        .answers(|_| 422)
        .start()
        .await;
    // The connection that the attempt would be counted over is taken by somebody who asked first.
    let pool = drains.pool.clone();
    let taken = tokio::spawn(async move { pool.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    gate.open();
    let taken = taken.await.unwrap();
    refuses.send(&numbered("acct", 2)).await.is(422, "rejected");
    drop(taken);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let rejected = "SELECT COUNT(*) FROM {p}pending WHERE reason = 3 AND last_status = 422";
    assert_eq!(drains.number(rejected).await, 1);
    assert_eq!(drains.in_state(3).await, 1);
}

/// §4.10, §5.14: it was parked by a receiver whose clock was an hour ahead, and which is gone.
async fn a_clock_that_was_ahead_holds_up_no_drain<D: TestDb>(db: D) {
    let clock = TestClock::new();
    let ahead = World::<D>::over(&db)
        .inbox({
            let clock = clock.clone();
            |inbox| inbox.clock(clock)
        })
        .source(|source| {
            let tolerance = Tolerance::new(Duration::from_secs(7_200), Duration::from_secs(7_200));
            source.tolerance(tolerance)
        })
        .start()
        .await;
    clock.advance(Duration::from_secs(3_600));
    ahead.send(&numbered("acct", 2)).await.is_parked(1);
    ahead.stop().await;
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("2 follows", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
}
