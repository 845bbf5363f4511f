//! §4.13, §5.10, §5.11, §4.3: terminal verdicts, what they leave behind, and what frees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::response::IntoResponse;
use http::StatusCode;
use tower_inbox::Park;

use crate::db::TestDb;
use crate::kit::{Call, Event, Gate, World, eventually, numbered};

suite![
    a_terminal_verdict_leaves_a_dead_letter_and_nothing_of_its_work,
    a_redelivery_of_a_rejected_event_is_a_new_attempt,
    a_handlers_410_goes_out_as_422_unless_it_is_allowed,
    dead_letters_of_verdicts_can_be_turned_off,
    successors_of_a_rejected_event_wait_until_a_redelivery_frees_them,
    a_dead_letter_gives_its_place_to_another_id_and_both_are_kept,
    a_dead_letter_gives_its_place_to_an_id_that_is_refused_too,
    a_dead_letter_gives_its_place_to_an_id_that_is_put_off_too,
    a_dead_letter_that_gave_its_place_away_does_not_get_it_back,
    a_dead_letter_of_a_gap_that_gave_its_place_away_does_not_get_it_back,
    a_rejected_delivery_and_its_duplicate_elsewhere_end_in_one_state,
    over_the_bound_a_dead_letter_keeps_no_body,
];

/// The ledger's handler, which answers 422 until it is mended.
fn strict<D: TestDb>(db: &D, mended: &Arc<AtomicBool>, ids: &'static str) -> crate::kit::Setup<D> {
    let mended = Arc::clone(mended);
    World::<D>::over(db).answers(move |call: &Call<D>| {
        let wrong = call.delivery.event_id().starts_with(ids) && !mended.load(Ordering::Relaxed);
        if wrong { 422 } else { 0 }
    })
}

const DEAD: &str = "SELECT COUNT(*) FROM {p}event e JOIN {p}pending p ON p.source = e.source AND p.event_id = e.event_id
    WHERE e.state = 3 AND p.reason = 3 AND p.last_status = 422";

/// §4.13: with its request, and committed before the answer.
async fn a_terminal_verdict_leaves_a_dead_letter_and_nothing_of_its_work<D: TestDb>(db: D) {
    let world = strict(&db, &Arc::default(), "evt").start().await;
    world.send(&Event::new("evt_1")).await.is(422, "rejected");
    assert_eq!(world.number(DEAD).await, 1);
    world.send(&numbered("acct", 1)).await.is(422, "rejected");
    assert_eq!(world.number(DEAD).await, 2);
    assert!(world.ledger().await.is_empty());
    assert_eq!(
        world
            .number("SELECT MAX(LENGTH(body)) FROM {p}pending")
            .await,
        i64::try_from(numbered("acct", 1).body().len()).unwrap()
    );
    // The cursor stays where it was (§5.10).
    assert_eq!(
        world
            .number("SELECT COUNT(*) FROM {p}cursor WHERE next_sequence > 1")
            .await,
        0
    );
    world.pool_is_whole().await;
}

/// §5.11: "somebody sent it again on purpose"; success closes it.
async fn a_redelivery_of_a_rejected_event_is_a_new_attempt<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let world = strict(&db, &mended, "evt").start().await;
    for event in [Event::new("evt_1"), numbered("acct", 1)] {
        mended.store(false, Ordering::Relaxed);
        for attempt in 1..=3 {
            world.send(&event).await.is(422, "rejected");
            assert_eq!(world.probe.runs(event.id()), attempt);
        }
        assert_eq!(world.number(DEAD).await, 1);
        mended.store(true, Ordering::Relaxed);
        world.send(&event).await.is_applied();
        assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
        world.send(&event).await.is_duplicate();
    }
    assert_eq!(world.in_state(1).await, 2);
    assert_eq!(world.applied().await, ["evt_1", "evt_acct_1"]);
}

/// §3: producers disable the endpoint on a 410.
async fn a_handlers_410_goes_out_as_422_unless_it_is_allowed<D: TestDb>(db: D) {
    for (allowed, status) in [(false, 422), (true, 410)] {
        let world = World::<D>::over(&db)
            .source(|source| source.allow_gone(allowed))
            .answers(|_| 410)
            .start()
            .await;
        world
            .send(&Event::new(&format!("evt_{allowed}")))
            .await
            .is(status, "rejected");
        world.stop().await;
    }
}

/// §4.13
async fn dead_letters_of_verdicts_can_be_turned_off<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.keep_rejected(false))
        .answers(|_| 422)
        .start()
        .await;
    world.send(&Event::new("evt_1")).await.is(422, "rejected");
    world.send(&numbered("acct", 1)).await.is(422, "rejected");
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 0);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
    assert!(world.ledger().await.is_empty());
    world.pool_is_whole().await;
}

/// §5.10
async fn successors_of_a_rejected_event_wait_until_a_redelivery_frees_them<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let world = strict(&db, &mended, "evt_acct_2").start().await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 2)).await.is(422, "rejected");
    world.send(&numbered("acct", 3)).await.is_parked(2);
    world.send(&numbered("acct", 4)).await.is_parked(2);
    world.send(&numbered("acct", 3)).await.is_parked(2);
    mended.store(true, Ordering::Relaxed);
    world.send(&numbered("acct", 2)).await.is_applied();
    eventually("the successors follow", async || {
        world.ledger().await.len() == 4
    })
    .await;
    assert_eq!(world.sequences("acct").await, [1, 2, 3, 4]);
}

/// §4.3: "a dead one yields to the new id, both kept and linked".
async fn a_dead_letter_gives_its_place_to_another_id_and_both_are_kept<D: TestDb>(db: D) {
    let world = strict(&db, &Arc::default(), "evt_bad").start().await;
    world
        .send(&Event::new("evt_bad").of("acct", 1))
        .await
        .is(422, "rejected");
    world
        .send(&Event::new("evt_corrected").of("acct", 1))
        .await
        .is_applied();
    world.send(&numbered("acct", 2)).await.is_applied();
    let linked = "SELECT yielded_to FROM {p}event WHERE event_id = 'evt_bad' AND state = 3";
    assert_eq!(world.texts(linked).await, ["evt_corrected"]);
    assert_eq!(world.number(DEAD).await, 1);
    assert_eq!(world.applied().await, ["evt_corrected", "evt_acct_2"]);
}

/// §4.3, §3: the place is held by another id now.
async fn a_dead_letter_that_gave_its_place_away_does_not_get_it_back<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let world = strict(&db, &mended, "evt_bad").start().await;
    let bad = Event::new("evt_bad").of("acct", 1);
    world.send(&bad).await.is(422, "rejected");
    world
        .send(&Event::new("evt_corrected").of("acct", 1))
        .await
        .is_applied();
    mended.store(true, Ordering::Relaxed);
    world
        .send(&bad)
        .await
        .is_problem_about(422, "rejected", "another event id");
    assert_eq!(world.applied().await, ["evt_corrected"]);
}

/// §4.3: the same while the one that took the place is still parked: it must not be stranded there.
async fn a_dead_letter_of_a_gap_that_gave_its_place_away_does_not_get_it_back<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.recovery_window(Duration::from_millis(200)))
        .start()
        .await;
    let given_up = Event::new("evt_given_up").of("acct", 2);
    world.send(&given_up).await.is_parked(1);
    eventually("it is dead", async || world.in_state(3).await == 1).await;
    let other = Event::new("evt_other").of("acct", 2);
    world.send(&other).await.is_parked(1);
    assert_eq!(world.send(&given_up).await.status, 422);
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("the second place is applied", async || {
        world.ledger().await.len() == 2
    })
    .await;
    assert_eq!(world.applied().await, ["evt_acct_1", "evt_other"]);
    assert_eq!(world.send(&given_up).await.status, 422);
    world.send(&numbered("acct", 3)).await.is_applied();
    assert_eq!(world.sequences("acct").await, [1, 2, 3]);
}

/// §4.13, §9: two receivers, one of which says no while the other one says yes.
async fn a_rejected_delivery_and_its_duplicate_elsewhere_end_in_one_state<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let strict = World::<D>::over(&db)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                gate.pass().await;
                StatusCode::UNPROCESSABLE_ENTITY
            }
        })
        .start()
        .await;
    let lenient = World::<D>::start(&db).await;
    for event in [Event::new("evt_1"), numbered("acct", 1)] {
        let no = strict.spawn(&event);
        eventually("the first one runs", async || {
            strict.probe.runs(event.id()) == 1
        })
        .await;
        let yes = lenient.spawn(&event);
        // It waits for the first one's lock, or comes after it: either way it must find what was decided.
        gate.open();
        let (no, yes) = (no.await.unwrap(), yes.await.unwrap());
        assert!(
            matches!(
                (no.status, no.outcome()),
                (422, "rejected") | (200, "duplicate")
            ),
            "{no:?}"
        );
        yes.is_applied();
        assert_eq!(world_of(&lenient, &event).await, (1, 1, 0), "{event:?}");
        strict.send(&event).await.is_duplicate();
    }
}

/// Rows of applied state, lines in the ledger, and dead letters of one event.
async fn world_of<D: TestDb>(world: &World<D>, event: &Event) -> (i64, usize, i64) {
    let id = event.id();
    let applied = format!("SELECT COUNT(*) FROM {{p}}event WHERE state = 1 AND event_id = '{id}'");
    let dead = format!("SELECT COUNT(*) FROM {{p}}pending WHERE event_id = '{id}'");
    let lines = world
        .applied()
        .await
        .iter()
        .filter(|line| *line == id)
        .count();
    (
        world.number(&applied).await,
        lines,
        world.number(&dead).await,
    )
}

/// §5.8: "dead letters then keep id, headers and reason only".
async fn over_the_bound_a_dead_letter_keeps_no_body<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.park_limit(1))
        .answers(|_| 422)
        .start()
        .await;
    for n in 0..3 {
        world
            .send(&Event::new(&format!("evt_{n}")))
            .await
            .is(422, "rejected");
    }
    assert_eq!(world.number(DEAD).await, 3);
    assert_eq!(
        world
            .number("SELECT COUNT(*) FROM {p}pending WHERE LENGTH(body) = 0")
            .await,
        2
    );
    assert_eq!(
        world
            .number("SELECT COUNT(*) FROM {p}pending WHERE LENGTH(headers) = 0")
            .await,
        0
    );
}

const YIELDED: &str =
    "SELECT yielded_to FROM {p}event WHERE event_id = 'evt_acct_1' AND slot IS NULL";

/// §4.3, §4.13: the rollback of the handler's work takes the place back, and the verdict is kept all the same.
async fn a_dead_letter_gives_its_place_to_an_id_that_is_refused_too<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let world = strict(&db, &mended, "evt").start().await;
    let other = Event::new("evt_other").of("acct", 1);
    world.send(&numbered("acct", 1)).await.is(422, "rejected");
    for _ in 0..2 {
        world.send(&other).await.is(422, "rejected");
        assert_eq!(world.number(DEAD).await, 2);
        assert_eq!(world.texts(YIELDED).await, ["evt_other"]);
    }
    assert_eq!(world.send(&numbered("acct", 1)).await.status, 422);
    assert_eq!(world.probe.runs("evt_acct_1"), 1);
    mended.store(true, Ordering::Relaxed);
    world.send(&other).await.is_applied();
    assert_eq!(world.applied().await, ["evt_other"]);
    world.pool_is_whole().await;
}

/// §4.3: the same for "not yet".
async fn a_dead_letter_gives_its_place_to_an_id_that_is_put_off_too<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let world = World::<D>::over(&db)
        .handler(move |mut call: Call<D>| {
            let mended = is_mended.load(Ordering::Relaxed);
            async move {
                call.append().await;
                match call.delivery.event_id() {
                    "evt_acct_1" => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
                    _ if mended => StatusCode::NO_CONTENT.into_response(),
                    _ => Park::after(Duration::from_secs(3_600)).into_response(),
                }
            }
        })
        .start()
        .await;
    let other = Event::new("evt_other").of("acct", 1);
    world.send(&numbered("acct", 1)).await.is(422, "rejected");
    for _ in 0..2 {
        world.send(&other).await.is(202, "parked");
        assert_eq!((world.in_state(2).await, world.in_state(3).await), (1, 1));
        assert_eq!(world.texts(YIELDED).await, ["evt_other"]);
    }
    mended.store(true, Ordering::Relaxed);
    world.send(&other).await.is_applied();
    assert_eq!(world.applied().await, ["evt_other"]);
    world.pool_is_whole().await;
}
