//! §2.4, §9: the database is put back to an earlier state under a running receiver, and the producer replays.
//!
//! Only a file can be put back while it is open, so these are tests of SQLite alone; a restored or failed-over server
//! breaks connections, and has its own.
#![cfg(feature = "sqlite")]

use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::pool::PoolOptions;
use tower_inbox::clock::{Clock, Timestamp};
use tower_inbox::reconcile::List;

use crate::db::sqlite::SqliteFile;
use crate::db::{Entry, TestDb};
use crate::kit::watch::Watch;
use crate::kit::{Call, Event, Gate, Replays, SOURCE, TestClock, World, eventually, numbered};

/// The pool on the paved path: over one with other hooks, the inbox sees only to connections that it finds idle or holds.
async fn pool(db: &SqliteFile) -> SqlitePool {
    tower_inbox::sqlite::connect(&db.url(), 4)
        .await
        .expect("a pool")
}

/// The ids in the ledger of the database that is in its place now.
async fn in_place(db: &SqliteFile) -> Vec<String> {
    let pool = db.pool(PoolOptions::new().max_connections(1)).await;
    let ledger = SqliteFile::ledger(&pool).await;
    pool.close().await;
    ledger.into_iter().map(|entry| entry.event_id).collect()
}

/// §2.4: "the replay ordered because of it is answered 200 and never applied" must not happen.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_restore_took_is_applied_again_by_a_replay() {
    crate::db::run(|db: SqliteFile| async move {
        let world = World::over(&db).pool(pool(&db).await).start().await;
        world.send(&Event::new("evt_kept")).await.is_applied();
        let copy = db.copy_aside(&world.eyes).await;
        world.send(&Event::new("evt_lost")).await.is_applied();
        world.send(&Event::new("evt_lost")).await.is_duplicate();
        db.put_back(&copy);
        // The replay, and nothing before it: no other delivery gave the receiver a hint.
        world.send(&Event::new("evt_lost")).await.is_applied();
        world.send(&Event::new("evt_kept")).await.is_duplicate();
        assert_eq!(in_place(&db).await, ["evt_kept", "evt_lost"]);
        world.send(&Event::new("evt_lost")).await.is_duplicate();
    })
    .await;
}

/// §4.1: a commit into a file that nobody will see again is not acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_in_flight_while_the_database_is_replaced_is_not_acknowledged() {
    crate::db::run(|db: SqliteFile| async move {
        let gate = Gate::shut();
        let held = gate.clone();
        let world = World::over(&db)
            .pool(pool(&db).await)
            .handler(move |mut call: Call<SqliteFile>| {
                let gate = held.clone();
                async move {
                    call.append().await;
                    if call.delivery.event_id() == "evt_held" && call.run == 1 {
                        gate.pass().await;
                    }
                }
            })
            .start()
            .await;
        let copy = db.copy_aside(&world.eyes).await;
        let leader = world.spawn(&Event::new("evt_held"));
        gate.reached_by(1).await;
        db.put_back(&copy);
        // Another delivery finds the new database first.
        let watch = Watch::statements(db.prefix());
        let other = world.spawn(&Event::new("evt_other"));
        let look = |line: &String| line.contains("next_sequence");
        eventually("the other one has looked", async || {
            watch.take().iter().any(look)
        })
        .await;
        gate.open();
        leader.await.unwrap().is(503, "failed");
        let other = other.await.unwrap();
        assert!(matches!(other.outcome(), "applied" | "failed"), "{other:?}");
        for event in ["evt_held", "evt_other"] {
            let reply = world.send(&Event::new(event)).await;
            assert_eq!(reply.status, 200, "{reply:?}");
        }
        let mut applied = in_place(&db).await;
        applied.sort();
        assert_eq!(applied, ["evt_held", "evt_other"]);
    })
    .await;
}

/// §4.1: connections that others held during the swap do not come back and take writes.
#[tokio::test(flavor = "multi_thread")]
async fn no_connection_to_the_replaced_database_is_used_again() {
    crate::db::run(|db: SqliteFile| async move {
        let world = World::over(&db).pool(pool(&db).await).start().await;
        let copy = db.copy_aside(&world.eyes).await;
        // A handler's own reads, say, hold connections of the same pool meanwhile.
        let held = [
            world.pool.acquire().await.unwrap(),
            world.pool.acquire().await.unwrap(),
        ];
        db.put_back(&copy);
        world.send(&Event::new("evt_1")).await.is_applied();
        drop(held);
        eventually("they are back", async || world.pool.num_idle() >= 2).await;
        let ids: Vec<_> = (2..12).map(|n| format!("evt_{n}")).collect();
        for id in &ids {
            world.send(&Event::new(id)).await.is_applied();
        }
        let mut expected = vec!["evt_1".to_owned()];
        expected.extend(ids);
        assert_eq!(in_place(&db).await, expected);
    })
    .await;
}

/// What the producer delivered, for its list.
fn delivered(replays: &Replays, event: &Event) {
    replays.delivered(event, Timestamp::now());
}

fn in_order(mut entries: Vec<Entry>) -> Vec<(String, Option<i64>)> {
    // Order is promised within an account only.
    entries.sort_by(|a, b| a.account.cmp(&b.account));
    let place = |entry: Entry| (entry.account, entry.sequence);
    entries.into_iter().map(place).collect()
}

/// The issue: "an older copy of the database put back under a running receiver, then a replay burst and a reconciliation
/// over delivered events: the ledger is exact" (§2.4, §4.1a).
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_burst_and_a_reconciliation_give_back_what_a_restore_took() {
    crate::db::run(|db: SqliteFile| async move {
        let world = World::over(&db).pool(pool(&db).await).start().await;
        let replays = Replays::new().pages_of(3);
        let send = async |sequences: std::ops::RangeInclusive<u64>| {
            for sequence in sequences {
                for account in ["acct-1", "acct-2"] {
                    let event = numbered(account, sequence);
                    world.send(&event).await.is_applied();
                    delivered(&replays, &event);
                }
            }
        };
        send(1..=3).await;
        // The receiver has given a sign of life before the copy is taken.
        let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
        assert_eq!(report.lists, [List::Exhausted], "nothing is lost yet");
        let copy = db.copy_aside(&world.eyes).await;
        send(4..=8).await;
        db.put_back(&copy);
        // The burst brings some of it, out of order and twice; live traffic goes on.
        for sequence in [6, 2, 5, 6] {
            let reply = world.send(&numbered("acct-1", sequence)).await;
            assert!(reply.status < 300, "{reply:?}");
        }
        world.send(&numbered("acct-2", 9)).await.is_parked(4);
        delivered(&replays, &numbered("acct-2", 9));
        replays.asked();
        let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(report.lists, [List::Exhausted, List::Delivered]);
        assert_eq!((report.failed, report.dead), (0, 0), "{report:?}");
        let pool = db.pool(PoolOptions::new().max_connections(1)).await;
        let ledger = async || SqliteFile::ledger(&pool).await;
        eventually("what was parked is drained", async || {
            ledger().await.len() >= 17
        })
        .await;
        let mut expected = Vec::new();
        expected.extend((1..=8).map(|n| ("acct-1".to_owned(), Some(n))));
        expected.extend((1..=9).map(|n| ("acct-2".to_owned(), Some(n))));
        assert_eq!(in_order(ledger().await), expected);
        pool.close().await;
        // It is settled.
        let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
        assert_eq!((report.lists, report.applied), (vec![List::Exhausted], 0));
    })
    .await;
}

/// §4.1a: nobody was there when the copy was put back.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_was_put_back_while_nobody_ran_is_noticed_at_the_start() {
    crate::db::run(|db: SqliteFile| async move {
        let clock = TestClock::new();
        let start = || {
            let clock = clock.clone();
            World::over(&db)
                .inbox(move |inbox| inbox.clock(clock))
                .start()
        };
        let world = start().await;
        let replays = Replays::new();
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        world.send(&Event::new("evt_kept")).await.is_applied();
        replays.delivered(&Event::new("evt_kept"), clock.now().minus(hours(2)));
        world.inbox.reconcile(SOURCE, &replays).await.unwrap();
        let taken = clock.now();
        let copy = db.copy_aside(&world.eyes).await;
        world.send(&Event::new("evt_lost")).await.is_applied();
        replays.delivered(&Event::new("evt_lost"), clock.now());
        world.stop().await;
        db.put_back(&copy);
        let world = start().await;
        let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
        assert_eq!((report.found, report.applied), (1, 1), "{report:?}");
        assert_eq!(in_place(&db).await, ["evt_kept", "evt_lost"]);
        // Since the copy was taken, and an hour more for clocks.
        let since = replays
            .asked()
            .into_iter()
            .find(|(list, ..)| *list == List::Delivered);
        assert_eq!(since.unwrap().1, Some(taken.minus(hours(1))));
    })
    .await;
}
