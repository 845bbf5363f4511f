//! §5.14, §8: the worker's progress can be seen, and one bad row stops nobody else.

use std::time::{Duration, Instant};

use crate::db::TestDb;
use crate::kit::watch::Watch;
use crate::kit::{Setup, World, eventually, numbered};

suite![
    the_worker_says_when_it_looked_and_when_it_applied_something,
    bad_rows_stop_no_other_stream,
    rows_of_a_newer_version_do_not_blind_the_count,
    more_than_a_page_of_what_nobody_handles_hides_nothing_behind_it,
    a_look_that_fails_is_not_tried_again_at_once,
];

fn looking_often<D: TestDb>(db: &D) -> Setup<D> {
    World::<D>::over(db).inbox(|inbox| inbox.poll_every(Duration::from_millis(100)))
}

/// §8, and TRAPS: "show in metrics when a sweep last made progress"
async fn the_worker_says_when_it_looked_and_when_it_applied_something<D: TestDb>(db: D) {
    let world = looking_often(&db).start().await;
    let status = || world.inbox.worker_status();
    eventually("it has looked", async || status().last_look.is_some()).await;
    assert!(status().running && status().last_applied.is_none());
    assert_eq!(status().mounted, ["crm"]);
    let before = status().last_look;
    eventually("it looks again", async || status().last_look > before).await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("it has applied something", async || {
        status().last_applied.is_some()
    })
    .await;
    world.inbox.shutdown().await;
    eventually("it has stopped", async || !status().running).await;
}

/// §5.1, and TRAPS: "one bad row … wedges the sweep for everybody, quietly"
async fn bad_rows_stop_no_other_stream<D: TestDb>(db: D) {
    let world = looking_often(&db).start().await;
    for account in ["a_damaged", "a_newer", "a_no_text", "good"] {
        world.send(&numbered(account, 2)).await.is_parked(1);
    }
    world
        .execute("UPDATE {p}pending SET headers = body WHERE correlation_id = 'a_damaged'")
        .await;
    world
        .execute("UPDATE {p}pending SET reason = 99 WHERE correlation_id = 'a_newer'")
        .await;
    // Where the database itself does not know that it is text.
    if D::NAME == "mysql" {
        for table in ["cursor", "pending"] {
            let spoil = format!(
                "UPDATE {{p}}{table} SET correlation_id = X'61FF' WHERE correlation_id = 'a_no_text'"
            );
            assert_eq!(world.execute(&spoil).await, 1);
        }
    }
    // Due without a delivery, so that it is the look that finds them.
    world
        .execute("UPDATE {p}cursor SET next_sequence = 2")
        .await;
    eventually("the good one is applied", async || {
        world.sequences("good").await == [2]
    })
    .await;
    let tried =
        "SELECT COUNT(*) FROM {p}pending WHERE correlation_id = 'a_damaged' AND attempts > 0
        AND last_error = 'the stored request cannot be read'";
    eventually("the damaged one says why", async || {
        world.number(tried).await == 1
    })
    .await;
    // And it goes on looking.
    let before = world.inbox.worker_status().last_look;
    eventually("it looks again", async || {
        world.inbox.worker_status().last_look > before
    })
    .await;
}

/// §5.8: what this version does not understand takes its room all the same.
async fn rows_of_a_newer_version_do_not_blind_the_count<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    for n in [2, 3] {
        world.send(&numbered("acct", n)).await.is_parked(1);
    }
    world
        .execute("UPDATE {p}pending SET reason = 99 WHERE sequence = 3")
        .await;
    let bounded = World::<D>::over(&db)
        .source(|source| source.park_limit(2))
        .start()
        .await;
    let mut n = 3;
    eventually("it has counted them", async || {
        n += 1;
        let reply = bounded.send(&numbered("other", n)).await;
        assert!(matches!(reply.status, 202 | 429), "{reply:?}");
        reply.status == 429
    })
    .await;
    assert!(n <= 6, "its own two are known without a count");
}

/// §5.3, §5.14, and TRAPS: "a page of unrescuable rows hides the rescuable ones behind it". A look reads pages of 256; and
/// that nobody here handles them is told.
async fn more_than_a_page_of_what_nobody_handles_hides_nothing_behind_it<D: TestDb>(db: D) {
    let watch = Watch::everything();
    let world = looking_often(&db).start().await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    // Due streams of a source that no process has any more, and that comes first.
    let of_another = |n: usize| {
        format!(
            "INSERT INTO {{p}}cursor (source, correlation_id, next_sequence, updated_at)
                VALUES ('a_gone_one', 'acct_{n:04}', 2, 0);
            INSERT INTO {{p}}pending (source, event_id, correlation_id, sequence, not_before, parked_at, bytes,
                    method, uri, headers, body)
                SELECT 'a_gone_one', 'evt_{n:04}', 'acct_{n:04}', 2, 0, parked_at, bytes, method, uri, headers, body
                FROM {{p}}pending WHERE source = 'crm'"
        )
    };
    let all: Vec<_> = (0..300).map(of_another).collect();
    world.execute(&all.join("; ")).await;
    // Due without a delivery, so that it is the look that finds it.
    world
        .execute("UPDATE {p}cursor SET next_sequence = 2")
        .await;
    eventually("it is found behind them", async || {
        world.sequences("acct").await == [2]
    })
    .await;
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 300);
    eventually("it is told", async || {
        watch.take().iter().any(|line| {
            line.starts_with("WARN")
                && line.contains("a_gone_one")
                && line.contains("does not mount")
        })
    })
    .await;
}

/// §5.14, and TRAPS: "a sweep that hot-loops while the database is away". Between two looks there is a tenth of the longest
/// pause at least, less a quarter.
async fn a_look_that_fails_is_not_tried_again_at_once<D: TestDb>(db: D) {
    let watch = Watch::everything();
    let world = World::<D>::over(&db)
        .inbox(|inbox| inbox.poll_every(Duration::from_secs(1)))
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    let table = format!("{}pending", db.prefix());
    world
        .execute("ALTER TABLE {p}pending RENAME TO {p}away")
        .await;
    let failed = async |times: usize| {
        let mut seen = 0;
        eventually("it fails", async || {
            let lines = watch.take();
            let looks = lines
                .iter()
                .filter(|line| line.contains("could not look for due events"));
            seen += looks
                .filter(|line| line.contains("Stream") && line.contains(&table))
                .count();
            seen >= times
        })
        .await;
    };
    failed(1).await;
    let began = Instant::now();
    failed(5).await;
    assert!(
        began.elapsed() > Duration::from_millis(4 * 75 - 20),
        "{:?}",
        began.elapsed()
    );
    world
        .execute("ALTER TABLE {p}away RENAME TO {p}pending")
        .await;
    world
        .execute("UPDATE {p}cursor SET next_sequence = 2")
        .await;
    eventually("it goes on", async || world.sequences("acct").await == [2]).await;
}
