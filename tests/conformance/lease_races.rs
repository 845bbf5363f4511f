//! §5.7, §9: what happens between a worker's claim and its commit, held up by fail points.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tower_inbox::FailPoints;

use crate::db::TestDb;
use crate::kit::{Gate, SOURCE, Setup, World, eventually, numbered};

suite![
    a_worker_that_lost_its_lease_does_not_even_begin,
    what_was_taken_over_and_failed_is_not_run_by_the_late_loser,
    what_was_tried_elsewhere_before_the_claim_waits_for_its_backoff,
    what_is_skipped_after_the_claim_is_not_run_by_the_late_worker,
    a_live_redelivery_between_claim_and_transaction_applies_and_the_worker_finds_nothing_left,
    the_lease_of_a_worker_that_lives_is_left_alone,
    what_is_not_the_handlers_fault_does_not_count_as_an_attempt,
    a_commit_that_fails_after_the_handler_leaves_the_event_due,
];

impl<D: TestDb> Setup<D> {
    /// Whoever comes to this point waits at the gate.
    pub(crate) fn held_at(self, point: &'static str, gate: &Gate) -> Self {
        let gate = gate.clone();
        self.inbox(move |inbox| {
            inbox.fail_points(FailPoints::new(move |name| {
                let gate = gate.clone();
                async move {
                    if name == point {
                        gate.pass().await;
                    }
                    Ok(())
                }
            }))
        })
    }

    /// The first `times` that come to this point are told that the database failed.
    fn broken_at(self, point: &'static str, times: usize) -> Self {
        let left = Arc::new(AtomicUsize::new(times));
        self.inbox(move |inbox| {
            inbox.fail_points(FailPoints::new(move |name| {
                let broken = name == point
                    && left
                        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                        .is_ok();
                async move {
                    if broken {
                        Err(sqlx::Error::WorkerCrashed)
                    } else {
                        Ok(())
                    }
                }
            }))
        })
    }
}

/// A world whose worker has claimed the second event of a stream, and stands at the gate before it does anything with it.
async fn held_at_its_claim<D: TestDb>(db: &D) -> (World<D>, Gate) {
    let gate = Gate::shut();
    let world = World::<D>::over(db).held_at("claimed", &gate).start().await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    gate.reached_by(1).await;
    (world, gate)
}

/// §5.7: the applied transition demands the lease's token.
async fn a_worker_that_lost_its_lease_does_not_even_begin<D: TestDb>(db: D) {
    let (world, gate) = held_at_its_claim(&db).await;
    // Its clock jumped, or it was stopped and goes on: another one has taken the event over, and is at work on it.
    let taken = "UPDATE {p}pending SET lease_token = 77, lease_owner = 'other', attempts = 2, unfinished = 2";
    assert_eq!(world.execute(taken).await, 1);
    gate.open();
    eventually("it is taken over in its turn", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
    // Once: with the token of 77's successor, and not with the one that was lost.
    assert_eq!(world.probe.runs(numbered("acct", 2).id()), 1);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
}

/// §5.7: nor does it run what another one has taken over, tried, and put off.
async fn what_was_taken_over_and_failed_is_not_run_by_the_late_loser<D: TestDb>(db: D) {
    let (world, gate) = held_at_its_claim(&db).await;
    let failed = "UPDATE {p}pending SET lease_token = 0, lease_owner = NULL, attempts = 2, last_status = 503,
        not_before = not_before + 9000000000000000";
    assert_eq!(world.execute(failed).await, 1);
    gate.open();
    // Which waits for the attempt that was held.
    world.inbox.shutdown().await;
    assert_eq!(world.probe.runs(numbered("acct", 2).id()), 0);
    assert_eq!(world.sequences("acct").await, [1]);
    let kept = "SELECT COUNT(*) FROM {p}pending WHERE attempts = 2 AND last_status = 503";
    assert_eq!(world.number(kept).await, 1);
}

/// §5.5, §5.7: a worker has seen it due, and another one, or a delivery, fails with it before this one claims it.
async fn what_was_tried_elsewhere_before_the_claim_waits_for_its_backoff<D: TestDb>(db: D) {
    let again = "not_before = not_before + 9000000000000000";
    for (account, size, point, failed) in [
        ("a", 1, "store.claim", "attempts = 1, last_status = 503,"),
        ("b", 1, "store.claim", ""),
        (
            "c",
            8,
            "store.claim_batch",
            "attempts = 1, last_status = 503,",
        ),
        ("d", 8, "store.claim_batch", ""),
    ] {
        let gate = Gate::shut();
        let world = World::<D>::over(&db)
            .source(|source| source.batch(size))
            .held_at(point, &gate)
            .start()
            .await;
        for n in [3, 2, 1] {
            world.send(&numbered(account, n)).await;
        }
        gate.reached_by(1).await;
        let tried = format!(
            "UPDATE {{p}}pending SET {failed} {again} WHERE correlation_id = '{account}' AND sequence = 2"
        );
        assert_eq!(world.execute(&tried).await, 1);
        gate.open();
        // Which waits for what was held.
        world.inbox.shutdown().await;
        assert_eq!(
            world.probe.runs(numbered(account, 2).id()),
            0,
            "{point}, {failed}"
        );
        assert_eq!(world.sequences(account).await, [1]);
        world.stop().await;
    }
}

/// §5.7, §5.15: its lease went with its place.
async fn what_is_skipped_after_the_claim_is_not_run_by_the_late_worker<D: TestDb>(db: D) {
    let (world, gate) = held_at_its_claim(&db).await;
    let ada = world.inbox.operator("ada").expect("a name");
    let seen = ada.cursor(SOURCE, "acct").await.unwrap().unwrap().seen();
    ada.skip(SOURCE, "acct", 2, seen, "a test").await.unwrap();
    let aside = "SELECT COUNT(*) FROM {p}pending WHERE reason = 5 AND lease_token = 0 AND lease_owner IS NULL";
    assert_eq!(world.number(aside).await, 1);
    gate.open();
    world.send(&numbered("acct", 3)).await.is_applied();
    // Which waits for the attempt that was held.
    world.inbox.shutdown().await;
    assert_eq!(world.probe.runs(numbered("acct", 2).id()), 0);
    assert_eq!(world.sequences("acct").await, [1, 3]);
    assert_eq!((world.number(aside).await, world.in_state(3).await), (1, 1));
}

/// §5.7, §5.6
async fn a_live_redelivery_between_claim_and_transaction_applies_and_the_worker_finds_nothing_left<
    D: TestDb,
>(
    db: D,
) {
    let (world, gate) = held_at_its_claim(&db).await;
    let other = World::<D>::start(&db).await;
    other.send(&numbered("acct", 2)).await.is_applied();
    gate.open();
    world.send(&numbered("acct", 3)).await.is_applied();
    assert_eq!(world.probe.runs(numbered("acct", 2).id()), 0);
    assert_eq!(world.sequences("acct").await, [1, 2, 3]);
}

/// §5.7: as long as its beat goes on. The other process sees the lease all the time.
async fn the_lease_of_a_worker_that_lives_is_left_alone<D: TestDb>(db: D) {
    let (world, gate) = held_at_its_claim(&db).await;
    let other = World::<D>::start(&db).await;
    // Both give signs of life: the one since it holds a lease, the other since it has seen that.
    let least = "SELECT CASE WHEN COUNT(*) = 2 THEN MIN(beat) ELSE 0 END FROM {p}worker";
    eventually("far more beats than a dead one is given", async || {
        other.number(least).await >= 9
    })
    .await;
    assert_eq!(world.number("SELECT attempts FROM {p}pending").await, 1);
    assert_eq!(other.probe.runs(numbered("acct", 2).id()), 0);
    gate.open();
    eventually("it is applied", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
    assert_eq!(world.probe.runs(numbered("acct", 2).id()), 1);
}

/// §5.5: only what the handler answers for.
async fn what_is_not_the_handlers_fault_does_not_count_as_an_attempt<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.stop().await;
    // The first transaction is the delivery's of 1, which fails as well.
    let world = World::<D>::over(&db)
        .source(|source| source.max_attempts(1).max_crashes(1))
        .broken_at("begun", 4)
        .start()
        .await;
    world.send(&numbered("acct", 1)).await.is(503, "failed");
    eventually("1 is sent until it is applied", async || {
        world.send(&numbered("acct", 1)).await.status != 503
    })
    .await;
    eventually("2 is applied all the same", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
}

/// §4.2, §5.9
async fn a_commit_that_fails_after_the_handler_leaves_the_event_due<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("other", 1)).await.is_applied();
    world.stop().await;
    let world = World::<D>::over(&db).broken_at("released", 2).start().await;
    eventually("1 is sent until it is applied", async || {
        world.send(&numbered("acct", 1)).await.status != 503
    })
    .await;
    eventually("2 is applied", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
    world.pool_is_whole().await;
}
