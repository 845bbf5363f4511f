//! §2.4, §9: the database is put back to an earlier state under a running receiver, and the producer replays.
//!
//! Only a file can be put back while it is open, so these are tests of SQLite alone; a restored or failed-over server
//! breaks connections, and has its own.
#![cfg(feature = "sqlite")]

use sqlx::SqlitePool;
use sqlx::pool::PoolOptions;

use crate::db::TestDb;
use crate::db::sqlite::SqliteFile;
use crate::kit::watch::Watch;
use crate::kit::{Call, Event, Gate, World, eventually};

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
