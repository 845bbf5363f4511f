//! §4.3, §5.1, §5.10: sequences that are never waited for.

use std::time::Duration;

use tower_inbox::operator::{Operator, Seen, StreamInfo};
use tower_inbox::{OperatorErrorKind as Kind, Source};

use crate::db::TestDb;
#[cfg(feature = "failpoints")]
use crate::kit::Gate;
use crate::kit::{Call, Event, Reply, SOURCE, World, eventually, numbered};

suite![
    a_skipped_head_lets_its_successors_go_on,
    a_sequence_ahead_is_skipped_before_the_stream_comes_there,
    several_in_a_row_are_skipped_over_ranges_that_are_there,
    what_is_stored_in_a_skipped_place_becomes_a_dead_letter,
    a_skip_goes_by_the_cursor_that_was_seen,
    a_stream_is_skipped_before_anything_of_it_was_applied,
    of_two_ids_for_one_skipped_sequence_both_are_kept,
    what_is_set_aside_counts_for_the_bounds,
    a_discarded_event_ahead_is_never_waited_for,
    a_fast_forward_leaves_out_what_has_not_come,
    a_cursor_that_version_1_has_put_inside_of_a_range_goes_on,
    a_terminal_verdict_skips_its_place_where_the_source_says_so,
];

#[cfg(feature = "failpoints")]
mod races {
    use super::*;
    suite![
        a_delivery_that_waits_on_the_cursor_while_its_sequence_is_skipped_is_set_aside,
        the_expiry_sweep_while_a_skip_fills_the_gap_strands_nothing,
    ];
}

fn ada<D: TestDb>(world: &World<D>) -> Operator<D::DB> {
    world.inbox.operator("ada").expect("a name")
}

async fn stream<D: TestDb>(world: &World<D>) -> StreamInfo {
    let stream = ada(world).cursor(SOURCE, "acct").await;
    stream
        .expect("the database answers")
        .expect("it has a cursor")
}

/// Skips by the cursor as it is.
async fn skip<D: TestDb>(world: &World<D>, sequence: i64) -> Seen {
    let seen = stream(world).await.seen();
    let skipped = ada(world)
        .skip(SOURCE, "acct", sequence, seen, "lost")
        .await
        .expect("it is skipped");
    assert!(skipped.changed);
    skipped.cursor
}

#[track_caller]
fn is_set_aside(reply: &Reply) {
    reply.is(202, "parked");
    assert_eq!(reply.body, r#"{"status":"set_aside"}"#);
}

async fn sequences<D: TestDb>(world: &World<D>, expected: &[i64]) {
    eventually("the stream goes on", async || {
        world.sequences("acct").await.len() >= expected.len()
    })
    .await;
    assert_eq!(world.sequences("acct").await, expected);
}

const SKIPPED: &str = "SELECT e.event_id FROM {p}event e JOIN {p}pending p
    ON p.source = e.source AND p.event_id = e.event_id
    WHERE e.state = 3 AND p.reason = 5 AND LENGTH(p.body) > 0 ORDER BY e.event_id";

/// §5.4: "skip fills a gap as an apply does"; §4.3: what comes late is stored whole and answered 202 `set_aside`.
async fn a_skipped_head_lets_its_successors_go_on<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 3)).await.is_parked(2);
    world.send(&numbered("acct", 4)).await.is_parked(2);
    assert_eq!(skip(&world, 2).await.next, 3);
    sequences(&world, &[1, 3, 4]).await;
    // The second one is known before the transaction.
    for _ in 0..2 {
        is_set_aside(&world.send(&numbered("acct", 2)).await);
        assert_eq!(world.texts(SKIPPED).await, ["evt_acct_2"]);
    }
    let elsewhere = World::<D>::start(&db).await;
    is_set_aside(&elsewhere.send(&numbered("acct", 2)).await);
    elsewhere.send(&numbered("acct", 5)).await.is_applied();
    assert_eq!(world.probe.runs("evt_acct_2"), 0);
    let audit = "SELECT detail FROM {p}audit WHERE action = 'skip' AND actor = 'ada'";
    let audit = world.texts(audit).await;
    assert!(
        audit.len() == 1 && audit[0].ends_with("cursor 2 to 3: lost"),
        "{audit:?}"
    );
    world.pool_is_whole().await;
}

/// §5.1: "no hole, except ranges that an operator skipped".
async fn a_sequence_ahead_is_skipped_before_the_stream_comes_there<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 5)).await.is_parked(2);
    assert_eq!(skip(&world, 3).await.next, 2);
    assert_eq!(skip(&world, 4).await.next, 2);
    let ranges = stream(&world).await.ranges;
    let ahead: Vec<_> = ranges
        .iter()
        .map(|range| (range.first, range.last))
        .collect();
    assert_eq!(ahead, [(3, 3), (4, 4)]);
    is_set_aside(&world.send(&numbered("acct", 3)).await);
    world.send(&numbered("acct", 6)).await.is_parked(2);
    world.send(&numbered("acct", 2)).await.is_applied();
    sequences(&world, &[1, 2, 5, 6]).await;
    is_set_aside(&world.send(&numbered("acct", 4)).await);
    world.send(&numbered("acct", 7)).await.is_applied();
    let bare = "SELECT COUNT(*) FROM {p}cursor WHERE next_sequence = 8 AND next_range IS NULL";
    assert_eq!(world.number(bare).await, 1);
}

/// §5.15. Ranges do not overlap, whatever is skipped twice.
async fn several_in_a_row_are_skipped_over_ranges_that_are_there<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    for ahead in [4, 6] {
        skip(&world, ahead).await;
    }
    let seen = stream(&world).await.seen();
    let skip = async |sequences| {
        let ada = ada(&world);
        let skipped = ada.skip_range(SOURCE, "acct", sequences, seen, "lost");
        skipped.await.expect("it is skipped")
    };
    let all = skip(3..=7).await;
    assert_eq!((all.changed, all.cursor.next), (true, 2));
    assert!(!skip(3..=7).await.changed);
    assert!(!skip(4..=5).await.changed);
    assert_eq!(skip(2..=3).await.cursor.next, 8);
    assert_eq!(
        world
            .number("SELECT COUNT(*) FROM {p}range WHERE first_sequence = last_sequence")
            .await,
        6
    );
    world.send(&numbered("acct", 8)).await.is_applied();
    is_set_aside(&world.send(&numbered("acct", 5)).await);
}

/// §5.11: what is skipped is for operators alone.
async fn what_is_stored_in_a_skipped_place_becomes_a_dead_letter<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .answers(|call: &Call<D>| {
            if call.run == 1 && call.delivery.sequence() == Some(2) {
                422
            } else {
                0
            }
        })
        .start()
        .await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 3)).await.is_parked(2);
    world.send(&numbered("acct", 4)).await.is_parked(2);
    world.send(&numbered("acct", 2)).await.is(422, "rejected");
    skip(&world, 3).await;
    skip(&world, 2).await;
    sequences(&world, &[1, 4]).await;
    assert_eq!(world.texts(SKIPPED).await, ["evt_acct_2", "evt_acct_3"]);
    let told = "SELECT COUNT(*) FROM {p}pending WHERE last_status = 422 AND last_error IS NOT NULL";
    assert_eq!(world.number(told).await, 1);
    for n in [2, 3] {
        is_set_aside(&world.send(&numbered("acct", n)).await);
    }
    assert_eq!(world.probe.runs("evt_acct_2"), 1);
    assert_eq!(world.probe.runs("evt_acct_3"), 0);
}

/// §1: "with the cursor he saw (compare-and-swap)"; §5.15: safe to repeat.
async fn a_skip_goes_by_the_cursor_that_was_seen<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let ada = ada(&world);
    world.send(&numbered("acct", 1)).await.is_applied();
    let seen = stream(&world).await.seen();
    let skip = |sequence, seen| ada.skip(SOURCE, "acct", sequence, seen, "lost");
    assert!(skip(2, seen).await.unwrap().changed);
    let again = skip(2, seen).await.unwrap();
    assert_eq!((again.changed, again.cursor.next), (false, 3));
    let now = Seen { next: 3, ..seen };
    assert_eq!(
        skip(3, seen).await.unwrap_err().kind(),
        Kind::CursorMoved { now }
    );
    let other = Seen {
        generation: 1,
        ..now
    };
    assert_eq!(
        skip(3, other).await.unwrap_err().kind(),
        Kind::CursorMoved { now }
    );
    assert_eq!(skip(1, now).await.unwrap_err().kind(), Kind::Applied);
    for wrong in [-1, i64::MAX] {
        assert_eq!(skip(wrong, now).await.unwrap_err().kind(), Kind::Invalid);
    }
    let unknown = ada.skip("nobody", "acct", 1, seen, "lost").await;
    assert_eq!(unknown.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}range").await, 1);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}audit").await, 1);
}

/// §5.10: its cursor went with the rollback of its first event.
async fn a_stream_is_skipped_before_anything_of_it_was_applied<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .answers(|call: &Call<D>| {
            if call.delivery.sequence() == Some(1) {
                422
            } else {
                0
            }
        })
        .start()
        .await;
    world.send(&numbered("acct", 1)).await.is(422, "rejected");
    let ada = ada(&world);
    assert_eq!(ada.cursor(SOURCE, "acct").await.unwrap(), None);
    let first = Seen {
        generation: 0,
        next: 1,
    };
    ada.skip(SOURCE, "acct", 1, first, "wrong")
        .await
        .expect("it is skipped");
    world.send(&numbered("acct", 2)).await.is_applied();
    is_set_aside(&world.send(&numbered("acct", 1)).await);
}

/// §4.3: "a dead one yields to the new id, both kept and linked".
async fn of_two_ids_for_one_skipped_sequence_both_are_kept<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    skip(&world, 2).await;
    is_set_aside(&world.send(&numbered("acct", 2)).await);
    is_set_aside(&world.send(&Event::new("evt_other").of("acct", 2)).await);
    assert_eq!(world.texts(SKIPPED).await, ["evt_acct_2", "evt_other"]);
    let linked = "SELECT yielded_to FROM {p}event WHERE event_id = 'evt_acct_2'";
    assert_eq!(world.texts(linked).await, ["evt_other"]);
    for event in [numbered("acct", 2), Event::new("evt_other").of("acct", 2)] {
        is_set_aside(&world.send(&event).await);
    }
    // Of an applied one the place stays taken.
    let taken = world.send(&Event::new("evt_third").of("acct", 1)).await;
    assert_eq!(taken.status, 422);
}

/// §5.8: over the bound a dead letter keeps id, headers and reason only.
async fn what_is_set_aside_counts_for_the_bounds<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.park_limit(2))
        .start()
        .await;
    world.send(&numbered("acct", 1)).await.is_applied();
    let seen = stream(&world).await.seen();
    ada(&world)
        .skip_range(SOURCE, "acct", 2..=9, seen, "lost")
        .await
        .expect("skipped");
    for n in 2..=4 {
        is_set_aside(&world.send(&numbered("acct", n)).await);
    }
    assert_eq!(world.texts(SKIPPED).await, ["evt_acct_2", "evt_acct_3"]);
    let over = world.send(&numbered("acct", 12)).await;
    assert_eq!(over.status, 429);
}

/// §9: "discard(n+1) with n+2 parked, then its redelivery".
async fn a_discarded_event_ahead_is_never_waited_for<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let ada = ada(&world);
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 3)).await.is_parked(2);
    world.send(&numbered("acct", 4)).await.is_parked(2);
    let discard = || ada.discard(SOURCE, "evt_acct_3", "a test of theirs");
    assert!(discard().await.unwrap());
    assert!(!discard().await.unwrap());
    let redelivered = async |world: &World<D>| {
        let reply = world.send(&numbered("acct", 3)).await;
        reply.is(200, "duplicate");
        assert_eq!(reply.body, r#"{"status":"discarded"}"#);
    };
    redelivered(&world).await;
    world.send(&numbered("acct", 4)).await.is_parked(2);
    is_set_aside(&world.send(&Event::new("evt_other").of("acct", 3)).await);
    world.send(&numbered("acct", 2)).await.is_applied();
    sequences(&world, &[1, 2, 4]).await;
    redelivered(&world).await;
    redelivered(&World::<D>::start(&db).await).await;
    assert_eq!(world.probe.runs("evt_acct_3"), 0);
    let refused = ada.discard(SOURCE, "evt_acct_4", "too late").await;
    assert_eq!(refused.unwrap_err().kind(), Kind::Applied);
    // The head, too; and an event without a place.
    world.send(&numbered("acct", 6)).await.is_parked(5);
    let body = "SELECT COUNT(*) FROM {p}event WHERE event_id = 'evt_acct_3' AND state = 6 AND slot IS NULL";
    assert_eq!(world.number(body).await, 1);
}

/// §5.4: "fast-forward fills a gap as an apply does".
async fn a_fast_forward_leaves_out_what_has_not_come<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let ada = ada(&world);
    world.send(&numbered("acct", 1)).await.is_applied();
    for n in [3, 7, 8] {
        world.send(&numbered("acct", n)).await.is_parked(2);
    }
    let seen = stream(&world).await.seen();
    let forward = || ada.fast_forward(SOURCE, "acct", 7, seen, "restored from a copy");
    assert_eq!(forward().await.unwrap().cursor.next, 7);
    assert!(!forward().await.unwrap().changed);
    sequences(&world, &[1, 7, 8]).await;
    assert_eq!(world.texts(SKIPPED).await, ["evt_acct_3"]);
    for n in [3, 5] {
        is_set_aside(&world.send(&numbered("acct", n)).await);
    }
    assert!(
        !ada.fast_forward(SOURCE, "acct", 2, seen, "back")
            .await
            .unwrap()
            .changed
    );
    assert_eq!(
        world.number("SELECT COUNT(*) FROM {p}range WHERE kind = 2 AND first_sequence = 2 AND last_sequence = 6").await,
        1
    );
}

/// §5.14. Version 1 of the crate moves the cursor by one, wherever that is.
async fn a_cursor_that_version_1_has_put_inside_of_a_range_goes_on<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.recovery_window(Duration::from_millis(400)))
        .start()
        .await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 4)).await.is_parked(2);
    skip(&world, 3).await;
    let as_version_1 = "UPDATE {p}cursor SET next_sequence = 3";
    world.execute(as_version_1).await;
    sequences(&world, &[1, 4]).await;
    // The same for a delivery that comes before a sweep does.
    let seen = stream(&world).await.seen();
    ada(&world)
        .skip(SOURCE, "acct", 6, seen, "lost")
        .await
        .expect("skipped");
    world
        .execute("UPDATE {p}cursor SET next_sequence = 6")
        .await;
    world.send(&numbered("acct", 7)).await.is_applied();
}

/// §5.10: "a setting skips by itself": live, drained, and for the first of a stream.
async fn a_terminal_verdict_skips_its_place_where_the_source_says_so<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.skip_rejected(true))
        .answers(|call: &Call<D>| {
            if [1, 3, 5].contains(&call.delivery.sequence().unwrap()) {
                422
            } else {
                0
            }
        })
        .start()
        .await;
    world.send(&numbered("acct", 1)).await.is(422, "rejected");
    world.send(&numbered("acct", 2)).await.is_applied();
    world.send(&numbered("acct", 4)).await.is_parked(3);
    world.send(&numbered("acct", 3)).await.is(422, "rejected");
    sequences(&world, &[2, 4]).await;
    for n in [7, 6, 5] {
        world.send(&numbered("acct", n)).await;
    }
    sequences(&world, &[2, 4, 6, 7]).await;
    is_set_aside(&world.send(&numbered("acct", 3)).await);
    let kept = "SELECT COUNT(*) FROM {p}pending WHERE reason = 3 AND last_status = 422";
    assert_eq!(world.number(kept).await, 3);
    // Drained: the worker goes on behind it by itself.
    world.send(&numbered("b", 4)).await.is_parked(1);
    world.send(&numbered("b", 3)).await.is_parked(1);
    world.send(&numbered("b", 2)).await.is_parked(1);
    world.send(&numbered("b", 1)).await.is(422, "rejected");
    eventually("it goes on", async || world.sequences("b").await == [2, 4]).await;
    let without = Source::kudos("x")
        .secrets(["whk_x"])
        .skip_rejected(true)
        .keep_rejected(false);
    let refused = tower_inbox::Inbox::builder(world.pool.clone())
        .source(without)
        .build()
        .await;
    assert!(refused.unwrap_err().to_string().contains("keep_rejected"));
}

#[cfg(feature = "failpoints")]
fn gated<D: TestDb>(db: &D, point: &'static str, gate: &Gate) -> crate::kit::Setup<D> {
    let gate = gate.clone();
    World::<D>::over(db).inbox(move |builder| {
        builder.fail_points(tower_inbox::FailPoints::new(move |name| {
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

/// §9: "skip(n) while a delivery of n waits on the cursor". The skip holds the cursor's lock and is not committed.
#[cfg(feature = "failpoints")]
async fn a_delivery_that_waits_on_the_cursor_while_its_sequence_is_skipped_is_set_aside<
    D: TestDb,
>(
    db: D,
) {
    let (decided, begun) = (Gate::shut(), Gate::shut());
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 3)).await.is_parked(2);
    let seen = stream(&world).await.seen();
    let office = gated(&db, "decided", &decided).start().await;
    begun.open();
    let counter = gated(&db, "begun", &begun).start().await;
    let skipping = {
        let ada = ada(&office);
        tokio::spawn(async move { ada.skip(SOURCE, "acct", 2, seen, "lost").await })
    };
    decided.reached_by(1).await;
    let delivery = counter.spawn(&numbered("acct", 2));
    if !D::SINGLE_WRITER {
        begun.reached_by(1).await;
    }
    // Its insert and the wait for the cursor come right after; the answer is the same if they come later.
    tokio::time::sleep(Duration::from_millis(150)).await;
    decided.open();
    assert!(skipping.await.unwrap().expect("it is skipped").changed);
    is_set_aside(&delivery.await.unwrap());
    assert_eq!(world.texts(SKIPPED).await, ["evt_acct_2"]);
    sequences(&world, &[1, 3]).await;
    world.pool_is_whole().await;
}

/// §5.4, §9: "a sweep that races a fill strands nothing". The sweep holds its locks while the skip comes.
#[cfg(feature = "failpoints")]
async fn the_expiry_sweep_while_a_skip_fills_the_gap_strands_nothing<D: TestDb>(db: D) {
    let decided = Gate::shut();
    let office = World::<D>::start(&db).await;
    office.send(&numbered("acct", 1)).await.is_applied();
    office.send(&numbered("acct", 3)).await.is_parked(2);
    let seen = stream(&office).await.seen();
    let sweeping = gated(&db, "decided", &decided)
        .source(|source| source.recovery_window(Duration::from_millis(100)))
        .start()
        .await;
    decided.reached_by(1).await;
    let skipping = {
        let ada = ada(&office);
        tokio::spawn(async move { ada.skip(SOURCE, "acct", 2, seen, "lost").await })
    };
    decided.open();
    assert!(skipping.await.unwrap().expect("it is skipped").changed);
    sequences(&office, &[1, 3]).await;
    drop(sweeping);
}
