//! §7.5: reconciliation that is broken off at named places.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tower_inbox::FailPoints;
use tower_inbox::clock::Timestamp;

use crate::db::TestDb;
use crate::kit::{Replays, SOURCE, World, eventually, numbered};

suite![
    an_event_that_breaks_off_before_its_commit_is_applied_by_the_next_run,
    an_event_that_breaks_off_after_its_commit_is_known_to_the_next_run,
];

/// Breaks off at this place, at its n-th visitor. What is found then: (applied, already applied).
async fn breaks_off<D: TestDb>(db: D, place: &'static str, nth: usize, then: (u64, u64)) {
    let visitors = Arc::new(AtomicUsize::new(0));
    let fails = FailPoints::new(move |name| {
        let n = match name == place {
            true => visitors.fetch_add(1, Ordering::Relaxed) + 1,
            false => 0,
        };
        async move {
            match n == nth {
                true => Err(sqlx::Error::WorkerCrashed),
                false => Ok(()),
            }
        }
    });
    let world = World::<D>::over(&db)
        .inbox(|inbox| inbox.fail_points(fails))
        .start()
        .await;
    let replays = Replays::new().pages_of(2);
    for n in 1..=4 {
        replays.exhausted(&numbered("acct", n), Timestamp::now());
    }
    let first = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert!(first.failed >= 1, "{first:?}");
    let second = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert!(
        second.is_complete() && second.still_missing() == 0,
        "{second:?}"
    );
    assert_eq!(second.found, 4, "{second:?}");
    assert!(
        second.applied >= then.0 && second.already_applied >= then.1,
        "{second:?}"
    );
    eventually("what was parked is drained", async || {
        world.ledger().await.len() >= 4
    })
    .await;
    assert_eq!(world.sequences("acct").await, [1, 2, 3, 4]);
    world.pool_is_whole().await;
}

/// §4.1, §7.5
async fn an_event_that_breaks_off_before_its_commit_is_applied_by_the_next_run<D: TestDb>(db: D) {
    breaks_off(db, "released", 2, (1, 1)).await;
}

/// §4.1, §7.5
async fn an_event_that_breaks_off_after_its_commit_is_known_to_the_next_run<D: TestDb>(db: D) {
    breaks_off(db, "committed", 2, (0, 2)).await;
}
