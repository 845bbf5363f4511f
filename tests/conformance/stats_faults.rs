//! §8: whatever fails while counts are written, each is added once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_inbox::FailPoints;

use crate::db::TestDb;
use crate::kit::{Event, SOURCE, TestClock, World, eventually, now, numbered};

suite![
    a_flush_that_fails_anywhere_is_added_again_once,
    a_count_of_rows_that_fails_is_made_again,
    a_database_that_takes_no_writes_tells_what_it_has,
    a_process_whose_clock_is_ahead_removes_nobodys_counts,
    whoever_rests_for_long_while_it_counts_rows_keeps_its_lease,
    a_delivery_that_ends_abnormally_is_counted_as_failed,
    a_look_that_has_failed_is_not_made_again_by_everybody,
];

/// The point at which the database is gone once, when it is armed.
type Armed = Arc<Mutex<Option<&'static str>>>;

async fn start<D: TestDb>(db: &D, armed: &Armed) -> World<D> {
    let armed = Arc::clone(armed);
    World::<D>::over(db)
        .inbox(|inbox| {
            inbox.fail_points(FailPoints::new(move |name| {
                let hit = armed
                    .lock()
                    .unwrap()
                    .take_if(|armed| *armed == name)
                    .is_some();
                async move {
                    if hit {
                        return Err(sqlx::Error::WorkerCrashed);
                    }
                    Ok(())
                }
            }))
        })
        .start()
        .await
}

async fn delivered<D: TestDb>(world: &World<D>) -> Option<(u64, u64)> {
    let stats = world.inbox.stats().await.ok()?;
    let source = stats.sources.iter().find(|one| one.source == SOURCE)?;
    Some((source.counts.total, source.counts.delivered))
}

/// §8. At the last two, the commit has happened or not, and nobody knows.
async fn a_flush_that_fails_anywhere_is_added_again_once<D: TestDb>(db: D) {
    let armed = Armed::default();
    let world = start(&db, &armed).await;
    let mut sent = 0;
    for point in [
        "store.acquire",
        "store.begin",
        "store.claim_flush",
        "store.add_stats",
        "store.commit",
        "store.committed",
    ] {
        for _ in 0..2 {
            sent += 1;
            world
                .send(&Event::new(&format!("evt_{sent}")))
                .await
                .is_applied();
        }
        *armed.lock().unwrap() = Some(point);
        eventually("it has failed, or is not asked for", async || {
            let _ = world.inbox.stats().await;
            armed.lock().unwrap().is_none()
        })
        .await;
        eventually("all is counted", async || {
            delivered(&world).await == Some((sent, sent))
        })
        .await;
    }
    assert_eq!(delivered(&world).await, Some((sent, sent)));
    // What could not be written is not lost with the process either.
    world.send(&Event::new("evt_last")).await.is_applied();
    *armed.lock().unwrap() = Some("store.committed");
    let _ = world.inbox.stats().await;
    world.stop().await;
    let world = start(&db, &Armed::default()).await;
    assert_eq!(delivered(&world).await, Some((sent + 1, sent + 1)));
}

/// §8
async fn a_count_of_rows_that_fails_is_made_again<D: TestDb>(db: D) {
    let armed = Armed::default();
    *armed.lock().unwrap() = Some("store.count_rows");
    let world = start(&db, &armed).await;
    for n in 1..=3 {
        world.send(&numbered("acct", n)).await.is_applied();
    }
    eventually("it has failed", async || armed.lock().unwrap().is_none()).await;
    eventually("it is counted", async || {
        let stats = world.inbox.stats().await.expect("they are read");
        stats.sources[0].rows == Some(3)
    })
    .await;
}

/// §8: when it is looked at most, as after a failover.
async fn a_database_that_takes_no_writes_tells_what_it_has<D: TestDb>(db: D) {
    let read_only = Arc::new(AtomicBool::new(false));
    let refuses = Arc::clone(&read_only);
    let points = FailPoints::new(move |name| {
        let refused = name == "store.claim_flush" && refuses.load(Ordering::Relaxed);
        async move {
            if refused {
                return Err(sqlx::Error::WorkerCrashed);
            }
            Ok(())
        }
    });
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.fail_points(points))
        .start()
        .await;
    world.send(&Event::new("evt_1")).await.is_applied();
    assert_eq!(delivered(&world).await, Some((1, 1)));
    read_only.store(true, Ordering::Relaxed);
    world.send(&Event::new("evt_2")).await.is_applied();
    assert_eq!(delivered(&world).await, Some((1, 1)));
    read_only.store(false, Ordering::Relaxed);
    assert_eq!(delivered(&world).await, Some((2, 2)));
}

/// §8, §7.1: by the earlier of two clocks, as rows of events.
async fn a_process_whose_clock_is_ahead_removes_nobodys_counts<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    assert_eq!(delivered(&world).await, Some((1, 1)));
    let clock = TestClock::new();
    clock.advance(Duration::from_secs(48 * 3_600));
    let swept = Arc::new(AtomicBool::new(false));
    let sweeps = Arc::clone(&swept);
    let points = FailPoints::new(move |name| {
        if name == "store.purge_notes" {
            sweeps.store(true, Ordering::Relaxed);
        }
        async { Ok(()) }
    });
    let ahead = World::<D>::over(&db)
        .inbox(move |inbox| inbox.clock(clock).fail_points(points))
        .start()
        .await;
    eventually("it has looked for hours that are over", async || {
        swept.load(Ordering::Relaxed)
    })
    .await;
    assert_eq!(delivered(&world).await, Some((1, 1)));
    ahead.stop().await;
    world.stop().await;
}

/// §8: two that rest for longer than their lease after a page would take it from each other, and none would come to an end.
async fn whoever_rests_for_long_while_it_counts_rows_keeps_its_lease<D: TestDb>(db: D) {
    let points = FailPoints::new(|name| async move {
        if name == "store.count_rows" {
            // Fifty times as long is its rest.
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
        Ok(())
    });
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.fail_points(points))
        .start()
        .await;
    world.send(&Event::new("evt_1")).await.is_applied();
    eventually("the lease is longer than the rest", async || {
        let lease = "SELECT COALESCE(MAX(lease_until), 0) FROM {p}row_count WHERE source = ''";
        let left = world.number(lease).await - now().as_micros();
        left > Duration::from_secs(60 + 25).as_micros() as i64
    })
    .await;
}

/// §8: what panics is the inbox's own, outside of its handler; its producer has a 500 all the same, with or without a client
/// that waits for it.
async fn a_delivery_that_ends_abnormally_is_counted_as_failed<D: TestDb>(db: D) {
    let armed = Arc::new(AtomicBool::new(false));
    let panics = Arc::clone(&armed);
    let points = FailPoints::new(move |name| {
        assert!(
            name != "settled" || !panics.swap(false, Ordering::Relaxed),
            "in a test"
        );
        async { Ok(()) }
    });
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.fail_points(points))
        .start()
        .await;
    armed.store(true, Ordering::Relaxed);
    world.send(&Event::new("evt_1")).await.is(500, "failed");
    let failed = async || {
        let stats = world.inbox.stats().await.ok()?;
        let counts = stats.sources.into_iter().next()?.counts;
        assert!(counts.last_5xx.is_some() == (counts.failed > 0));
        Some((counts.total, counts.delivered, counts.failed))
    };
    assert_eq!(failed().await, Some((1, 0, 1)));
    // Its commit was done.
    world.send(&Event::new("evt_1")).await.is_duplicate();
    assert_eq!(failed().await, Some((2, 0, 1)));
}

/// §8, and TRAPS: "a sweep that hot-loops while the database is away": who asks shortly after a failure gets that.
async fn a_look_that_has_failed_is_not_made_again_by_everybody<D: TestDb>(db: D) {
    let (away, looks) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (is_away, counted) = (Arc::clone(&away), Arc::clone(&looks));
    let points = FailPoints::new(move |name| {
        let failed = name == "store.stored_now" && is_away.load(Ordering::Relaxed);
        counted.fetch_add(usize::from(failed), Ordering::Relaxed);
        async move {
            if failed {
                // As one that is away, and says so after a while.
                tokio::time::sleep(Duration::from_millis(300)).await;
                return Err(sqlx::Error::WorkerCrashed);
            }
            Ok(())
        }
    });
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.fail_points(points))
        .start()
        .await;
    let mut asked = Vec::new();
    for _ in 0..20 {
        let inbox = world.inbox.clone();
        asked.push(tokio::spawn(async move { inbox.stats().await }));
    }
    for stats in asked {
        let error = stats.await.unwrap().expect_err("it is away");
        assert_eq!(error.kind(), tower_inbox::OperatorErrorKind::Database);
    }
    // On a machine that takes seconds to come to all of them, one more or two.
    let looks = looks.load(Ordering::Relaxed);
    assert!((1..10).contains(&looks), "{looks}");
    away.store(false, Ordering::Relaxed);
    eventually("it is asked again", async || {
        world.inbox.stats().await.is_ok()
    })
    .await;
}
