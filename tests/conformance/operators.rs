//! §5.11, §5.15: "every operator's action is safe to repeat, safe in a race with worker and delivery, and audited with
//! actor and reason".

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tower_inbox::operator::{Operator, Seen};
use tower_inbox::{OperatorError, OperatorErrorKind as Kind};

use crate::db::TestDb;
use crate::kit::{Call, Event, SOURCE, Setup, World, eventually, numbered};

suite![
    a_replayed_dead_letter_is_applied_in_its_turn,
    a_replayed_first_event_of_a_stream_is_applied_too,
    a_replay_never_comes_before_its_turn,
    what_is_set_aside_is_replayed_out_of_its_order_only,
    a_replay_that_cannot_be_is_refused_with_the_reason,
    a_crash_is_for_operators_alone,
    a_crash_that_is_passed_or_has_lost_its_place_waits_for_nothing,
    an_event_without_a_place_is_discarded_and_stays_so,
    a_stream_whose_first_event_is_discarded_goes_on_behind_it,
    an_actor_and_a_reason_are_demanded,
    every_verb_repeated_by_ten_tasks_in_two_processes_is_done_once,
    a_replay_raced_with_a_redelivery_applies_once,
    a_skip_raced_with_a_delivery_ends_in_one_of_both,
    a_discard_raced_with_the_filling_of_the_gap_ends_in_one_of_both,
];

fn ada<D: TestDb>(world: &World<D>) -> Operator<D::DB> {
    world.inbox.operator("ada").expect("a name")
}

/// The ledger's handler, which answers 422 to sequence 2, and to what has no place, until it is mended.
fn strict<D: TestDb>(db: &D, mended: &Arc<AtomicBool>) -> Setup<D> {
    let mended = Arc::clone(mended);
    World::<D>::over(db).answers(move |call: &Call<D>| {
        let wrong = matches!(call.delivery.sequence(), None | Some(2));
        if wrong && !mended.load(Ordering::Relaxed) {
            422
        } else {
            0
        }
    })
}

fn kind<T: std::fmt::Debug>(result: Result<T, OperatorError>) -> Kind {
    result.expect_err("it is refused").kind()
}

async fn audited<D: TestDb>(world: &World<D>, action: &str) -> i64 {
    let audit =
        format!("SELECT COUNT(*) FROM {{p}}audit WHERE action = '{action}' AND actor = 'ada'");
    world.number(&audit).await
}

/// §1: "an operator puts a dead letter back in its turn"; with a place, and without one.
async fn a_replayed_dead_letter_is_applied_in_its_turn<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let world = strict(&db, &mended).one_by_one().start().await;
    let ada = ada(&world);
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 3)).await.is_parked(2);
    world.send(&numbered("acct", 2)).await.is(422, "rejected");
    world
        .send(&Event::new("evt_free"))
        .await
        .is(422, "rejected");
    // In vain: it is a dead letter again, by the worker's own attempt.
    assert!(ada.replay(SOURCE, "evt_acct_2", "a try").await.unwrap());
    eventually("it was tried", async || world.probe.runs("evt_acct_2") == 2).await;
    eventually("it is dead again", async || world.in_state(3).await == 2).await;
    mended.store(true, Ordering::Relaxed);
    for id in ["evt_acct_2", "evt_free"] {
        assert!(
            ada.replay(SOURCE, id, "the account exists now")
                .await
                .unwrap()
        );
    }
    eventually("all is applied", async || world.ledger().await.len() == 4).await;
    assert_eq!(world.sequences("acct").await, [1, 2, 3]);
    for id in ["evt_acct_2", "evt_free"] {
        assert!(!ada.replay(SOURCE, id, "again").await.unwrap());
        assert_eq!(kind(ada.discard(SOURCE, id, "again").await), Kind::Applied);
    }
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
    assert_eq!(audited(&world, "replay").await, 3);
    let detail = "SELECT detail FROM {p}audit WHERE event_id = 'evt_free'";
    assert_eq!(world.texts(detail).await, ["the account exists now"]);
    world.send(&numbered("acct", 2)).await.is_duplicate();
}

/// §5.14, §5.15: its cursor went with the rollback of the handler's work, and a worker finds what is due by a cursor.
async fn a_replayed_first_event_of_a_stream_is_applied_too<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .inbox(|inbox| inbox.poll_every(Duration::from_millis(100)))
        .answers(|call: &Call<D>| if call.run == 1 { 422 } else { 0 })
        .start()
        .await;
    world.send(&numbered("acct", 1)).await.is(422, "rejected");
    assert!(
        ada(&world)
            .replay(SOURCE, "evt_acct_1", "the account exists now")
            .await
            .unwrap()
    );
    eventually("it is applied", async || {
        world.sequences("acct").await == [1]
    })
    .await;
    let stream = ada(&world).cursor(SOURCE, "acct").await.unwrap();
    assert_eq!(stream.expect("it has a cursor").next, 2);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
}

/// §1: "never before it".
async fn a_replay_never_comes_before_its_turn<D: TestDb>(db: D) {
    let window = Duration::from_millis(200);
    let world = World::<D>::over(&db)
        .source(|source| source.recovery_window(window).revive_gaps(false))
        .start()
        .await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 3)).await.is_parked(2);
    eventually("it is dead", async || world.in_state(3).await == 1).await;
    world.stop().await;
    let world = World::<D>::start(&db).await;
    assert!(
        ada(&world)
            .replay(SOURCE, "evt_acct_3", "soon")
            .await
            .unwrap()
    );
    assert!(
        !ada(&world)
            .replay(SOURCE, "evt_acct_3", "soon")
            .await
            .unwrap()
    );
    assert_eq!(
        kind(
            ada(&world)
                .replay_out_of_order(SOURCE, "evt_acct_3", "now")
                .await
        ),
        Kind::InTurn
    );
    world.send(&numbered("acct", 3)).await.is_parked(2);
    world.send(&numbered("acct", 2)).await.is_applied();
    eventually("it follows", async || world.ledger().await.len() == 3).await;
    assert_eq!(world.sequences("acct").await, [1, 2, 3]);
    assert_eq!(world.probe.runs("evt_acct_3"), 1);
}

/// §4.3: "handed over only if an operator replays it out of order on purpose".
async fn what_is_set_aside_is_replayed_out_of_its_order_only<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let world = strict(&db, &mended).start().await;
    let ada = ada(&world);
    world.send(&numbered("acct", 1)).await.is_applied();
    let seen = ada.cursor(SOURCE, "acct").await.unwrap().unwrap().seen();
    ada.skip_range(SOURCE, "acct", 2..=3, seen, "lost")
        .await
        .unwrap();
    world.send(&numbered("acct", 4)).await.is_applied();
    for n in [2, 3] {
        assert_eq!(world.send(&numbered("acct", n)).await.status, 202);
    }
    let error = ada.replay(SOURCE, "evt_acct_2", "found").await.unwrap_err();
    assert_eq!(error.kind(), Kind::SetAside);
    assert!(error.to_string().contains("replay_out_of_order"), "{error}");
    // In vain at first: it stays one that is replayed out of its order only.
    assert!(
        ada.replay_out_of_order(SOURCE, "evt_acct_2", "found")
            .await
            .unwrap()
    );
    eventually("it is dead again", async || {
        world.probe.runs("evt_acct_2") == 1 && world.in_state(3).await == 2
    })
    .await;
    assert_eq!(
        kind(ada.replay(SOURCE, "evt_acct_2", "found").await),
        Kind::SetAside
    );
    assert_eq!(world.send(&numbered("acct", 2)).await.status, 202);
    assert_eq!(world.probe.runs("evt_acct_2"), 1);
    mended.store(true, Ordering::Relaxed);
    for n in [2, 3] {
        let id = format!("evt_acct_{n}");
        assert!(ada.replay_out_of_order(SOURCE, &id, "found").await.unwrap());
        eventually("it is applied", async || {
            world.ledger().await.len() as i64 == n + 1
        })
        .await;
        assert!(!ada.replay_out_of_order(SOURCE, &id, "found").await.unwrap());
    }
    assert_eq!(world.sequences("acct").await, [1, 4, 2, 3]);
    world.send(&numbered("acct", 2)).await.is_duplicate();
    world.send(&numbered("acct", 5)).await.is_applied();
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
    assert_eq!(audited(&world, "replay_out_of_order").await, 3);
}

/// §5.8, §4.3: what is not there cannot be handed over; a place that was given away does not come back.
async fn a_replay_that_cannot_be_is_refused_with_the_reason<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let world = strict(&db, &mended)
        .source(|source| source.park_limit(1))
        .start()
        .await;
    let ada = ada(&world);
    assert_eq!(
        kind(ada.replay(SOURCE, "evt_none", "a slip").await),
        Kind::NotFound
    );
    assert_eq!(
        kind(ada.discard(SOURCE, "evt_none", "a slip").await),
        Kind::NotFound
    );
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 2)).await.is(422, "rejected");
    world
        .send(&Event::new("evt_over"))
        .await
        .is(422, "rejected");
    assert_eq!(
        kind(ada.replay(SOURCE, "evt_over", "mended").await),
        Kind::BodyNotKept
    );
    mended.store(true, Ordering::Relaxed);
    world
        .send(&Event::new("evt_other").of("acct", 2))
        .await
        .is_applied();
    for out_of_order in [false, true] {
        let replayed = match out_of_order {
            false => ada.replay(SOURCE, "evt_acct_2", "mended").await,
            true => {
                ada.replay_out_of_order(SOURCE, "evt_acct_2", "mended")
                    .await
            }
        };
        assert_eq!(kind(replayed), Kind::Yielded);
    }
    // Without its place it is out of nobody's way, and skips nothing.
    assert!(
        ada.discard(SOURCE, "evt_acct_2", "done by another id")
            .await
            .unwrap()
    );
    assert_eq!(
        kind(ada.replay(SOURCE, "evt_acct_2", "after all").await),
        Kind::Closed
    );
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}range").await, 0);
    assert_eq!(world.in_state(6).await, 1);
    assert_eq!(audited(&world, "replay").await, 0);
}

/// §5.11: redeliveries of a crash say what holds it up, and do not run it.
async fn a_crash_is_for_operators_alone<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let world = strict(&db, &mended).start().await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 2)).await.is(422, "rejected");
    world
        .send(&Event::new("evt_free"))
        .await
        .is(422, "rejected");
    world.execute("UPDATE {p}pending SET reason = 4").await;
    mended.store(true, Ordering::Relaxed);
    world.send(&numbered("acct", 2)).await.is_parked(2);
    world.send(&numbered("acct", 3)).await.is_parked(2);
    assert_eq!(
        world.send(&Event::new("evt_free")).await.body,
        r#"{"status":"set_aside"}"#
    );
    assert_eq!(
        (world.probe.runs("evt_acct_2"), world.probe.runs("evt_free")),
        (1, 1)
    );
    for id in ["evt_acct_2", "evt_free"] {
        assert!(
            ada(&world)
                .replay(SOURCE, id, "the leak is mended")
                .await
                .unwrap()
        );
    }
    eventually("all is applied", async || world.ledger().await.len() == 4).await;
    assert_eq!(world.sequences("acct").await, [1, 2, 3]);
}

/// §4.3: it is told what became of its place, and not to wait for a sequence that comes after it.
async fn a_crash_that_is_passed_or_has_lost_its_place_waits_for_nothing<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let world = strict(&db, &mended).start().await;
    for account in ["acct", "b"] {
        world.send(&numbered(account, 1)).await.is_applied();
        world.send(&numbered(account, 2)).await.is(422, "rejected");
    }
    let seen = ada(&world).cursor(SOURCE, "b").await.unwrap().unwrap();
    let skipped = ada(&world).skip(SOURCE, "b", 2, seen.seen(), "lost").await;
    assert!(skipped.unwrap().changed);
    world.execute("UPDATE {p}pending SET reason = 4").await;
    mended.store(true, Ordering::Relaxed);
    let other = Event::new("evt_other").of("acct", 2);
    world.send(&other).await.is_applied();
    let taken = world.send(&numbered("acct", 2)).await;
    taken.is_problem_about(422, "rejected", "belongs to another event id");
    let passed = world.send(&numbered("b", 2)).await;
    assert_eq!(passed.body, r#"{"status":"set_aside"}"#);
}

/// §3, §5.11. Without a place there is nothing to skip.
async fn an_event_without_a_place_is_discarded_and_stays_so<D: TestDb>(db: D) {
    let world = strict(&db, &Arc::default()).start().await;
    world
        .send(&Event::new("evt_free"))
        .await
        .is(422, "rejected");
    assert!(
        ada(&world)
            .discard(SOURCE, "evt_free", "a test of theirs")
            .await
            .unwrap()
    );
    for world in [&world, &World::<D>::start(&db).await] {
        let reply = world.send(&Event::new("evt_free")).await;
        reply.is(200, "duplicate");
        assert_eq!(reply.body, r#"{"status":"discarded"}"#);
    }
    assert_eq!(world.probe.runs("evt_free"), 1);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
    // Its content is compared all the same (§4.12).
    let other = world.send(&Event::new("evt_free").amount(9)).await;
    assert_eq!(other.status, 422);
}

/// §5.2, §5.15: its cursor went with the rollback of its run. Its source has begun to adopt what comes since, as one of which the
/// command line knows the name alone: there is nothing to wait for.
async fn a_stream_whose_first_event_is_discarded_goes_on_behind_it<D: TestDb>(db: D) {
    let world = World::<D>::over(&db).answers(|_| 422).start().await;
    world.send(&numbered("acct", 1)).await.is(422, "rejected");
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}cursor").await, 0);
    world.stop().await;
    let world = World::<D>::over(&db)
        .source(|source| source.adopt_first_sequence(Duration::from_secs(3_600)))
        .start()
        .await;
    let ada = ada(&world);
    let discarded = ada.discard(SOURCE, "evt_acct_1", "not ours").await;
    assert!(discarded.unwrap());
    world.send(&numbered("acct", 2)).await.is_applied();
}

/// §5.15
async fn an_actor_and_a_reason_are_demanded<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    for actor in ["", "a\nb", &"x".repeat(256)] {
        assert_eq!(kind(world.inbox.operator(actor)), Kind::Invalid);
    }
    let ada = ada(&world);
    for reason in ["", &"x".repeat(2_001), "a\0b"] {
        assert_eq!(kind(ada.replay(SOURCE, "evt", reason).await), Kind::Invalid);
    }
    let long = "x".repeat(2_000);
    assert_eq!(kind(ada.replay(SOURCE, "evt", &long).await), Kind::NotFound);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}audit").await, 0);
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Replay,
    Discard,
    Skip,
    FastForward,
    Reset,
    OutOfOrder,
}

async fn act<D: TestDb>(world: &World<D>, verb: Verb, seen: Seen) -> Result<bool, OperatorError> {
    let ada = ada(world);
    let moved = match verb {
        Verb::Replay => return ada.replay(SOURCE, "evt_acct_2", "why").await,
        Verb::Discard => return ada.discard(SOURCE, "evt_acct_3", "why").await,
        Verb::OutOfOrder => return ada.replay_out_of_order(SOURCE, "evt_late_4", "why").await,
        Verb::Skip => ada.skip(SOURCE, "acct", 4, seen, "why").await,
        Verb::FastForward => ada.fast_forward(SOURCE, "acct", 9, seen, "why").await,
        Verb::Reset => ada.reset(SOURCE, "acct", 1, seen, "why").await,
    };
    moved.map(|moved| moved.changed)
}

/// §5.15. Each of them, by ten tasks at the same time, while the worker is at work.
async fn every_verb_repeated_by_ten_tasks_in_two_processes_is_done_once<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let worlds = [
        strict(&db, &mended).start().await,
        strict(&db, &mended).start().await,
    ];
    let world = &worlds[0];
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 3)).await.is_parked(2);
    world.send(&numbered("acct", 5)).await.is_parked(2);
    world.send(&numbered("acct", 2)).await.is(422, "rejected");
    mended.store(true, Ordering::Relaxed);
    let steps = [
        (Verb::Discard, vec![1], "discard"),
        (Verb::Replay, vec![1, 2], "replay"),
        (Verb::Skip, vec![1, 2, 5], "skip"),
        (Verb::OutOfOrder, vec![1, 2, 5, 4], "replay_out_of_order"),
        (Verb::FastForward, vec![1, 2, 5, 4], "fast_forward"),
        (Verb::Reset, vec![1, 2, 5, 4], "reset"),
    ];
    for (verb, ledger, action) in steps {
        if matches!(verb, Verb::OutOfOrder) {
            let late = Event::new("evt_late_4").of("acct", 4);
            assert_eq!(world.send(&late).await.status, 202);
        }
        let seen = ada(world)
            .cursor(SOURCE, "acct")
            .await
            .unwrap()
            .unwrap()
            .seen();
        let tasks: Vec<_> = (0..10)
            .map(|n| {
                let world = worlds[n % 2].clone();
                tokio::spawn(async move { act(&world, verb, seen).await })
            })
            .collect();
        let mut done = 0;
        for task in tasks {
            match task.await.unwrap() {
                Ok(changed) => done += u32::from(changed),
                Err(error) => assert!(
                    matches!(error.kind(), Kind::CursorMoved { .. }),
                    "{verb:?}: {error}"
                ),
            }
        }
        assert_eq!((done, audited(world, action).await), (1, 1), "{verb:?}");
        eventually("the worker has done its part", async || {
            world.sequences("acct").await == ledger
        })
        .await;
    }
    let last = Event::new("evt_anew").of("acct", 1);
    worlds[1].send(&last).await.is_applied();
    for world in &worlds {
        world.pool_is_whole().await;
    }
}

/// §5.15: in one process and in two.
async fn a_replay_raced_with_a_redelivery_applies_once<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let worlds = [
        strict(&db, &mended).start().await,
        strict(&db, &mended).start().await,
    ];
    let accounts: Vec<_> = (0..12).map(|n| format!("acct_{n}")).collect();
    for account in &accounts {
        worlds[0].send(&numbered(account, 1)).await.is_applied();
        worlds[0]
            .send(&numbered(account, 2))
            .await
            .is(422, "rejected");
        worlds[0].send(&numbered(account, 3)).await.is_parked(2);
    }
    mended.store(true, Ordering::Relaxed);
    for (n, account) in accounts.iter().enumerate() {
        let event = numbered(account, 2);
        let replay = {
            let (ada, id) = (ada(&worlds[0]), event.id().to_owned());
            tokio::spawn(async move { ada.replay(SOURCE, &id, "mended").await })
        };
        let redelivery = worlds[n % 2].spawn(&event).await.unwrap();
        replay.await.unwrap().expect("it waits or is applied");
        let outcome = redelivery.outcome();
        assert!(
            matches!(outcome, "applied" | "duplicate" | "failed"),
            "{redelivery:?}"
        );
        eventually("the stream is complete", async || {
            worlds[0].sequences(account).await == [1, 2, 3]
        })
        .await;
        let runs: usize = worlds
            .iter()
            .map(|world| world.probe.runs(event.id()))
            .sum();
        assert_eq!(runs, 2, "the first one, and one more");
    }
    assert_eq!(worlds[0].number("SELECT COUNT(*) FROM {p}pending").await, 0);
}

/// §9: whichever comes first, the answer is true, and the stream goes on.
async fn a_skip_raced_with_a_delivery_ends_in_one_of_both<D: TestDb>(db: D) {
    let worlds = [World::<D>::start(&db).await, World::<D>::start(&db).await];
    for n in 0..16 {
        let account = format!("acct_{n}");
        worlds[0].send(&numbered(&account, 1)).await.is_applied();
        worlds[0].send(&numbered(&account, 3)).await.is_parked(2);
        let seen = Seen {
            generation: 0,
            next: 2,
        };
        let skip = {
            let (ada, account) = (ada(&worlds[0]), account.clone());
            tokio::spawn(async move { ada.skip(SOURCE, &account, 2, seen, "lost").await })
        };
        let delivery = worlds[n % 2].spawn(&numbered(&account, 2)).await.unwrap();
        let skipped = match skip.await.unwrap() {
            Ok(moved) => moved.changed,
            Err(error) => {
                assert!(matches!(error.kind(), Kind::CursorMoved { .. }), "{error}");
                false
            }
        };
        let expected = if skipped { vec![1, 3] } else { vec![1, 2, 3] };
        let answer = (delivery.status, delivery.outcome());
        assert_eq!(
            answer,
            if skipped {
                (202, "parked")
            } else {
                (204, "applied")
            }
        );
        eventually("the stream goes on", async || {
            worlds[0].sequences(&account).await == expected
        })
        .await;
    }
}

/// §5.15, §9. The worker applies what is discarded, or does not, and what comes after it is applied either way.
async fn a_discard_raced_with_the_filling_of_the_gap_ends_in_one_of_both<D: TestDb>(db: D) {
    let worlds = [World::<D>::start(&db).await, World::<D>::start(&db).await];
    for n in 0..16 {
        let account = format!("acct_{n}");
        for sequence in [2, 3] {
            worlds[0]
                .send(&numbered(&account, sequence))
                .await
                .is_parked(1);
        }
        let discard = {
            let (ada, id) = (ada(&worlds[n % 2]), numbered(&account, 2).id().to_owned());
            tokio::spawn(async move { ada.discard(SOURCE, &id, "theirs").await })
        };
        worlds[0].send(&numbered(&account, 1)).await.is_applied();
        let expected = match discard.await.unwrap() {
            Ok(true) => vec![1, 3],
            other => {
                assert_eq!(kind(other), Kind::Applied);
                vec![1, 2, 3]
            }
        };
        eventually("the stream goes on", async || {
            worlds[0].sequences(&account).await == expected
        })
        .await;
    }
}
