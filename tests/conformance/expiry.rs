//! §5.4, §5.14: giving up gaps takes its time where there are many, and holds up nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tower_inbox::{FailPoints, Source};

use crate::db::TestDb;
use crate::kit::{SOURCE, World, eventually, numbered};

suite![
    a_source_with_many_gaps_to_give_up_holds_up_no_other_one,
    what_cannot_be_given_up_now_hides_nothing_behind_it,
];

/// Another source of the same inbox.
const OTHER: &str = "other";

/// Events that wait for the first of their stream, stored by a process that gives up nothing yet.
async fn park<D: TestDb>(db: &D, source: &str, sequences: std::ops::RangeInclusive<u64>) {
    let world = World::<D>::over(db).named(source).start().await;
    for sequence in sequences {
        let event = numbered(source, sequence);
        world.send(&event).await.is_parked(1);
    }
    world.stop().await;
}

/// A process that gives up whatever is parked, on a database that takes so long for each. Also, how many it has begun with.
async fn gives_up<D: TestDb>(db: &D, each: Duration) -> (World<D>, Arc<AtomicUsize>) {
    let begun = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&begun);
    let points = FailPoints::new(move |name| {
        let is_one = name == "opening";
        counts.fetch_add(usize::from(is_one), Ordering::Relaxed);
        async move {
            if is_one {
                tokio::time::sleep(each).await;
            }
            Ok(())
        }
    });
    let short = |source: Source| source.recovery_window(Duration::from_millis(1));
    let other = short(Source::kudos(OTHER).secrets(["of no use here"]));
    let world = World::<D>::over(db)
        .source(short)
        .inbox(move |inbox| inbox.source(other).fail_points(points))
        .start()
        .await;
    (world, begun)
}

/// §5.4: what of the one is left after two seconds comes after the other.
async fn a_source_with_many_gaps_to_give_up_holds_up_no_other_one<D: TestDb>(db: D) {
    park(&db, SOURCE, 2..=9).await;
    let (world, begun) = gives_up(&db, Duration::from_millis(500)).await;
    eventually("it has begun", async || begun.load(Ordering::Relaxed) > 0).await;
    park(&db, OTHER, 2..=2).await;
    eventually("all are dead", async || world.in_state(3).await == 9).await;
    let later = "SELECT COUNT(*) FROM {p}event WHERE source = 'crm'
        AND decided_at > (SELECT MAX(decided_at) FROM {p}event WHERE source = 'other')";
    assert!(world.number(later).await > 0, "it was the last");
}

/// §5.4, and TRAPS: "a page of unrescuable rows hides the rescuable ones behind it". Each takes all the time that there is.
async fn what_cannot_be_given_up_now_hides_nothing_behind_it<D: TestDb>(db: D) {
    park(&db, SOURCE, 2..=4).await;
    let world = World::<D>::start(&db).await;
    // Of a version that is not known here.
    let spoil = "UPDATE {p}event SET state = 99 WHERE event_id = 'evt_crm_2'";
    assert_eq!(world.execute(spoil).await, 1);
    world.stop().await;
    let (world, _) = gives_up(&db, Duration::from_millis(2_100)).await;
    eventually("the others are dead", async || world.in_state(3).await == 2).await;
}
