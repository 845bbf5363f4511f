//! §7.1, §7.3, §9: what comes while a purge is on its way, held up by fail points.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower_inbox::operator::Operator;
use tower_inbox::verify::Tolerance;
use tower_inbox::{FailPoints, OperatorError, OperatorErrorKind as Kind};

use crate::db::TestDb;
use crate::kit::{Call, Event, Gate, SOURCE, Setup, TestClock, World, eventually, numbered};

suite![
    a_letter_that_died_again_after_the_purge_found_it_stays,
    a_redelivery_beside_the_purge_of_its_letter_is_applied_once,
    a_replay_beside_the_purge_of_its_letter_is_done_or_refused,
    a_purge_ends_at_the_first_letter_that_it_cannot_remove,
    a_purge_that_fails_on_its_way_says_what_it_has_removed,
    a_letter_that_cannot_be_read_hides_no_other_from_the_purge,
    a_duplicate_whose_row_is_purged_before_its_look_up_is_a_duplicate,
    a_duplicate_that_looked_before_the_event_came_is_one_after_the_purge_too,
];

const DAY: Duration = Duration::from_secs(24 * 3600);
const KEPT: Duration = Duration::from_secs(40 * 24 * 3600);
const WHY: &str = "a test";

fn at<D: TestDb>(db: &D, clock: &TestClock) -> Setup<D> {
    let (read, far) = (clock.clone(), DAY * 5000);
    World::<D>::over(db)
        .inbox(move |inbox| inbox.clock(read))
        .source(|source| source.tolerance(Tolerance::new(far, far)))
}

/// The only one of two worlds that forgets dead letters: whoever purges in it, the worker included, waits at the gate.
async fn forgetting<D: TestDb>(
    db: &D,
    clock: &TestClock,
    point: &'static str,
    gate: &Gate,
) -> World<D> {
    at(db, clock)
        .source(|source| source.dead_letter_retention(KEPT))
        .held_at(point, gate)
        .answers(|_| 422)
        .start()
        .await
}

fn purge<D: TestDb>(world: &World<D>) -> JoinHandle<u64> {
    let inbox = world.inbox.clone();
    tokio::spawn(async move { inbox.purge(SOURCE).await.expect("it is").letters })
}

fn ada<D: TestDb>(world: &World<D>) -> Operator<D::DB> {
    world.inbox.operator("ada").expect("a name")
}

/// §7.3: its retention counts from its last death.
async fn a_letter_that_died_again_after_the_purge_found_it_stays<D: TestDb>(db: D) {
    let (clock, gate) = (TestClock::new().of_the_database_too(), Gate::shut());
    let world = at(&db, &clock).answers(|_| 422).start().await;
    let other = forgetting(&db, &clock, "opening", &gate).await;
    world.send(&Event::new("evt_1")).await.is(422, "rejected");
    clock.advance(KEPT + DAY);
    let purging = purge(&other);
    gate.reached_by(1).await;
    assert!(ada(&world).replay(SOURCE, "evt_1", WHY).await.unwrap());
    eventually("it is dead again", async || {
        world.probe.runs("evt_1") + other.probe.runs("evt_1") == 2 && world.in_state(3).await == 1
    })
    .await;
    gate.open();
    assert_eq!(purging.await.unwrap(), 0);
    assert_eq!(world.in_state(3).await, 1);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 1);
}

/// Where a purge that has the letter's lock may be: before anything is removed, and before its COMMIT.
const REMOVING: [&str; 2] = ["store.forget_letter", "decided"];

/// While the purge is held, another one has begun, or waits for its lock; then the purge goes on.
async fn beside<T>(gate: &Gate, mut other: JoinHandle<T>) -> T {
    let early = timeout(Duration::from_millis(500), &mut other).await;
    gate.open();
    match early {
        Ok(done) => done,
        Err(_) => other.await,
    }
    .expect("it ends")
}

/// Refuses the first time.
fn mended_later<D: TestDb>(db: &D, clock: &TestClock) -> Setup<D> {
    at(db, clock).answers(|call: &Call<D>| if call.run == 1 { 422 } else { 0 })
}

/// §7.3, §9, §4.1
async fn a_redelivery_beside_the_purge_of_its_letter_is_applied_once<D: TestDb>(db: D) {
    let clock = TestClock::new().of_the_database_too();
    let world = mended_later(&db, &clock).start().await;
    for (n, point) in (1..).zip(REMOVING) {
        let (gate, event) = (Gate::shut(), Event::new(&format!("evt_{n}")));
        let other = forgetting(&db, &clock, point, &gate).await;
        world.send(&event).await.is(422, "rejected");
        clock.advance(KEPT + DAY);
        let purging = purge(&other);
        gate.reached_by(1).await;
        let reply = beside(&gate, world.spawn(&event)).await;
        purging.await.unwrap();
        if reply.status != 204 {
            reply.is(503, "failed");
            world.send(&event).await.is_applied();
        }
        world.send(&event).await.is_duplicate();
        assert_eq!(world.in_state(3).await, 0);
        assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
        other.stop().await;
    }
    assert_eq!(world.applied().await, ["evt_1", "evt_2"]);
}

/// §7.3, §9, §5.15: what an operator was told is so.
async fn a_replay_beside_the_purge_of_its_letter_is_done_or_refused<D: TestDb>(db: D) {
    let clock = TestClock::new().of_the_database_too();
    let world = mended_later(&db, &clock).start().await;
    for (n, point) in (1..).zip(REMOVING) {
        let (gate, id) = (Gate::shut(), format!("evt_{n}"));
        let other = forgetting(&db, &clock, point, &gate).await;
        world.send(&Event::new(&id)).await.is(422, "rejected");
        clock.advance(KEPT + DAY);
        let purging = purge(&other);
        gate.reached_by(1).await;
        let (operator, replayed) = (ada(&world), id.clone());
        let replay = async move { operator.replay(SOURCE, &replayed, WHY).await };
        let replayed: Result<bool, OperatorError> = beside(&gate, tokio::spawn(replay)).await;
        purging.await.unwrap();
        match replayed {
            Ok(done) => {
                assert!(done);
                eventually("it is applied", async || world.applied().await.len() == n).await;
            }
            Err(refused) => {
                assert_eq!(refused.kind(), Kind::NotFound, "{refused}");
                assert_eq!(world.in_state(3).await, 0);
                world.send(&Event::new(&id)).await.is_applied();
            }
        }
        assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
        other.stop().await;
    }
    assert_eq!(world.applied().await, ["evt_1", "evt_2"]);
}

/// Three letters that may be forgotten, and a purge that gets this error at a point as long as the switch says so.
async fn three<D: TestDb>(
    db: &D,
    point: &'static str,
    error: fn() -> sqlx::Error,
    fails: impl Fn() -> bool + Clone + Send + Sync + 'static,
) -> World<D> {
    let clock = TestClock::new().of_the_database_too();
    let world = at(db, &clock).answers(|_| 422).start().await;
    let other = at(db, &clock)
        .source(|source| source.dead_letter_retention(KEPT))
        .inbox(move |inbox| {
            inbox.fail_points(FailPoints::new(move |name| {
                let failed = name == point && fails();
                async move { if failed { Err(error()) } else { Ok(()) } }
            }))
        })
        .start()
        .await;
    for n in 1..=3 {
        let event = Event::new(&format!("evt_{n}"));
        world.send(&event).await.is(422, "rejected");
    }
    clock.advance(KEPT + DAY);
    other
}

/// §7.3: each may take ten seconds, and upkeep waits for it.
async fn a_purge_ends_at_the_first_letter_that_it_cannot_remove<D: TestDb>(db: D) {
    let (broken, tried) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (switch, count) = (Arc::clone(&broken), Arc::clone(&tried));
    let fails = move || {
        count.fetch_add(1, Ordering::Relaxed);
        switch.load(Ordering::Relaxed)
    };
    let world = three(&db, "opening", || sqlx::Error::WorkerCrashed, fails).await;
    let refused = world.inbox.purge(SOURCE).await.expect_err("it fails");
    assert_eq!(refused.kind(), Kind::Database);
    // The worker's first sweep may have been one of them.
    assert!(tried.load(Ordering::Relaxed) <= 2, "{tried:?}");
    assert_eq!(world.in_state(3).await, 3);
    broken.store(false, Ordering::Relaxed);
    // The worker's own sweep may be at it as well.
    assert!(world.inbox.purge(SOURCE).await.expect("it is").letters <= 3);
    eventually("all are gone", async || world.in_state(3).await == 0).await;
}

/// §7.3, and TRAPS: "report rows removed".
async fn a_purge_that_fails_on_its_way_says_what_it_has_removed<D: TestDb>(db: D) {
    let tried = Arc::new(AtomicUsize::new(0));
    let fails = move || tried.fetch_add(1, Ordering::Relaxed) == 1;
    let world = three(&db, "opening", || sqlx::Error::WorkerCrashed, fails).await;
    match world.inbox.purge(SOURCE).await {
        Err(refused) => {
            let told = refused.to_string();
            assert!(
                told.ends_with("; removed before that: dead letters 1"),
                "{told}"
            );
        }
        // The worker's first sweep was at it before, and has got the error.
        Ok(purged) => assert!(purged.letters <= 2, "{purged:?}"),
    }
    eventually("the others go the next time", async || {
        let _ = world.inbox.purge(SOURCE).await;
        world.in_state(3).await == 0
    })
    .await;
}

/// §7.3, §1: a row of a newer version of the crate.
async fn a_letter_that_cannot_be_read_hides_no_other_from_the_purge<D: TestDb>(db: D) {
    let unread = Arc::new(AtomicBool::new(false));
    let once = move || !unread.swap(true, Ordering::Relaxed);
    let error = || sqlx::Error::Decode("a test".into());
    let world = three(&db, "store.lock_event", error, once).await;
    // The worker's own sweep may be at it as well.
    world.inbox.purge(SOURCE).await.expect("it goes on");
    let left = "none but the one that could not be read is left";
    eventually(left, async || world.in_state(3).await <= 1).await;
}

/// §7.1, §7.2, §9
async fn a_duplicate_whose_row_is_purged_before_its_look_up_is_a_duplicate<D: TestDb>(db: D) {
    let (clock, gate) = (TestClock::new().of_the_database_too(), Gate::shut());
    let world = at(&db, &clock).start().await;
    world.send(&numbered("acct", 1)).await.is_applied();
    let other = at(&db, &clock).held_at("store.known", &gate).start().await;
    let copy = other.spawn(&numbered("acct", 1));
    gate.reached_by(1).await;
    purged(&world, &clock).await;
    gate.open();
    copy.await.unwrap().is_duplicate();
    assert_eq!(other.probe.runs("evt_acct_1"), 0);
    assert_eq!(world.sequences("acct").await, [1]);
}

/// §7.1, §7.2, §9: it found nothing, and comes to the insert when there is nothing again.
async fn a_duplicate_that_looked_before_the_event_came_is_one_after_the_purge_too<D: TestDb>(
    db: D,
) {
    let (clock, gate) = (TestClock::new().of_the_database_too(), Gate::shut());
    let world = at(&db, &clock).start().await;
    let other = at(&db, &clock).held_at("store.begin", &gate).start().await;
    let copy = other.spawn(&numbered("acct", 1));
    gate.reached_by(1).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    purged(&world, &clock).await;
    gate.open();
    copy.await.unwrap().is_duplicate();
    assert_eq!(other.probe.runs("evt_acct_1"), 0);
    assert_eq!(world.sequences("acct").await, [1]);
}

/// The retention of what is applied is over.
async fn purged<D: TestDb>(world: &World<D>, clock: &TestClock) {
    clock.advance(DAY * 31);
    eventually("the row is gone", async || {
        let _ = world.inbox.purge(SOURCE).await;
        world.in_state(1).await == 0
    })
    .await;
}
