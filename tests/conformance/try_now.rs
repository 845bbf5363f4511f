//! §5.15, §5.5: an operator who has mended what failed does not wait for a backoff.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::response::IntoResponse as _;
use http::StatusCode;
use tower_inbox::operator::{AuditFilter, Operator};
use tower_inbox::{OperatorErrorKind as Kind, Park};

use crate::db::TestDb;
use crate::kit::{Call, Event, SOURCE, World, eventually, numbered};

suite![
    what_waits_for_its_backoff_is_tried_at_once_with_its_attempts_counted_on,
    what_its_handler_has_put_off_is_tried_at_once,
    what_waits_for_no_time_is_left_alone,
    tries_raced_with_the_workers_of_two_processes_run_nothing_twice,
];

/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3_600);
const WHY: &str = "mended in 1.4";

fn ada<D: TestDb>(world: &World<D>) -> Operator<D::DB> {
    world.inbox.operator("ada").expect("a name")
}

/// How often it was tried in vain, and whether it is tried again later.
async fn told<D: TestDb>(world: &World<D>, id: &str) -> (i64, bool) {
    let story = ada(world).inspect(SOURCE, id).await.expect("asked");
    let letter = story.expect("it is known").letter;
    (letter.attempts, letter.not_before.is_some())
}

async fn audited<D: TestDb>(world: &World<D>) -> usize {
    let filter = AuditFilter::new().source(SOURCE).actor("ada");
    let page = ada(world).audit(&filter, None, 1_000).await;
    let lines = page.expect("asked").entries;
    assert!(lines.iter().all(|line| line.detail == WHY), "{lines:?}");
    lines.iter().filter(|line| line.action == "try_now").count()
}

/// §5.5, §5.15: with a place and, deferred or not, without one.
async fn what_waits_for_its_backoff_is_tried_at_once_with_its_attempts_counted_on<D: TestDb>(
    db: D,
) {
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let world = World::<D>::over(&db)
        .source(|source| source.backoff([HOUR]).deferred())
        .one_by_one()
        .answers(move |call: &Call<D>| {
            let fails = !is_mended.load(Ordering::Relaxed);
            let first = call.delivery.sequence() == Some(1);
            if fails && !first { 503 } else { 0 }
        })
        .start()
        .await;
    for event in [
        &numbered("acct", 1),
        &numbered("acct", 2),
        &Event::new("evt_free"),
    ] {
        world.send(event).await.is(202, "accepted");
    }
    for id in ["evt_acct_2", "evt_free"] {
        eventually("it has failed once", async || {
            told(&world, id).await == (1, true)
        })
        .await;
        assert!(ada(&world).try_now(SOURCE, id, WHY).await.unwrap());
        // In vain: it is counted, and waited after again.
        eventually("it has failed twice", async || {
            told(&world, id).await == (2, true)
        })
        .await;
    }
    mended.store(true, Ordering::Relaxed);
    for id in ["evt_acct_2", "evt_free"] {
        assert!(ada(&world).try_now(SOURCE, id, WHY).await.unwrap());
    }
    eventually("both are applied", async || world.ledger().await.len() == 3).await;
    assert_eq!(world.sequences("acct").await, [1, 2]);
    for id in ["evt_acct_2", "evt_free"] {
        assert_eq!(world.probe.runs(id), 3);
        assert!(!ada(&world).try_now(SOURCE, id, WHY).await.unwrap());
    }
    assert_eq!(audited(&world).await, 4);
}

/// (not-yet), §5.15
async fn what_its_handler_has_put_off_is_tried_at_once<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            match call.run {
                1 => Park::after(HOUR).into_response(),
                _ => StatusCode::NO_CONTENT.into_response(),
            }
        })
        .start()
        .await;
    world.send(&Event::new("evt_free")).await.is(202, "parked");
    assert_eq!(told(&world, "evt_free").await, (0, true));
    assert!(ada(&world).try_now(SOURCE, "evt_free", WHY).await.unwrap());
    eventually("it is applied", async || {
        world.applied().await == ["evt_free"]
    })
    .await;
}

/// §5.15: it is never tried before its turn, and a dead letter is for a replay.
async fn what_waits_for_no_time_is_left_alone<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .answers(|call: &Call<D>| match call.delivery.event_id() {
            "evt_bad" => 422,
            _ => 0,
        })
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&Event::new("evt_bad")).await.is(422, "rejected");
    world.send(&Event::new("evt_free")).await.is_applied();
    let ada = ada(&world);
    assert_eq!(told(&world, "evt_acct_2").await, (0, false));
    for id in ["evt_acct_2", "evt_free"] {
        assert!(!ada.try_now(SOURCE, id, WHY).await.unwrap(), "{id}");
    }
    for (id, reason, kind) in [
        ("evt_bad", WHY, Kind::Dead),
        ("evt_none", WHY, Kind::NotFound),
        ("evt_acct_2", "", Kind::Invalid),
    ] {
        let refused = ada.try_now(SOURCE, id, reason).await;
        assert_eq!(refused.expect_err("it is refused").kind(), kind, "{id}");
    }
    ada.discard(SOURCE, "evt_bad", WHY).await.unwrap();
    let refused = ada.try_now(SOURCE, "evt_bad", WHY).await;
    assert_eq!(refused.expect_err("it is refused").kind(), Kind::Closed);
    assert_eq!((audited(&world).await, world.in_state(2).await), (0, 1));
}

/// §5.15, §5.7. None of them brings more than one attempt, and each that changed something is audited once.
async fn tries_raced_with_the_workers_of_two_processes_run_nothing_twice<D: TestDb>(db: D) {
    const FAILURES: usize = 5;
    let runs = Arc::new(AtomicUsize::new(0));
    let mut worlds = Vec::new();
    for _ in 0..2 {
        let runs = Arc::clone(&runs);
        let world = World::<D>::over(&db)
            .source(|source| source.backoff([HOUR]))
            .inbox(|inbox| inbox.poll_every(Duration::from_millis(100)))
            .answers(move |call: &Call<D>| {
                let is_second = call.delivery.sequence() == Some(2);
                if is_second && runs.fetch_add(1, Ordering::Relaxed) < FAILURES {
                    503
                } else {
                    0
                }
            })
            .start();
        worlds.push(world.await);
    }
    worlds[0].send(&numbered("acct", 2)).await.is_parked(1);
    worlds[1].send(&numbered("acct", 1)).await.is_applied();
    let tasks: Vec<_> = (0..6)
        .map(|task| {
            let (world, ada) = (worlds[task % 2].clone(), ada(&worlds[task % 2]));
            tokio::spawn(async move {
                let mut changed = 0;
                while world.sequences("acct").await.len() < 2 {
                    let tried = ada.try_now(SOURCE, "evt_acct_2", WHY).await;
                    changed += usize::from(tried.expect("the database answers"));
                }
                changed
            })
        })
        .collect();
    let mut changed = 0;
    for task in tasks {
        changed += task.await.expect("it ends");
    }
    assert_eq!(worlds[0].sequences("acct").await, [1, 2]);
    assert_eq!(runs.load(Ordering::Relaxed), FAILURES + 1);
    assert_eq!((changed, audited(&worlds[0]).await), (FAILURES, FAILURES));
}
