//! §5.15: "safe in a race with worker and delivery". What `operators`, `skips`, `generations`, `letter_races` and `seams` do not
//! race: whichever comes first, one of both is done, and everybody is told so.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use http::Request;
use tower_inbox::operator::{BulkOptions, Erased, Erasure, Filter, Operator, Seen};
use tower_inbox::{OperatorError, OperatorErrorKind as Kind};

use crate::db::TestDb;
use crate::fence;
use crate::kit::{Call, Event, Reply, SOURCE, Setup, World, eventually, numbered};

suite![
    a_fast_forward_raced_with_a_delivery_ends_in_one_of_both,
    a_skip_raced_with_the_worker_ends_in_one_of_both,
    a_discard_raced_with_a_redelivery_ends_in_one_of_both,
    a_replay_out_of_order_raced_with_a_redelivery_applies_once,
    a_replay_and_a_discard_of_many_at_once_decide_each_of_them,
    a_release_raced_with_redeliveries_and_itself_applies_once,
    an_erasure_raced_with_a_replay_leaves_no_half_of_an_event,
    a_reset_raced_with_the_worker_leaves_no_hole,
    deregistrations_raced_with_deliveries_are_answered_truly,
];

const WHY: &str = "ticket 7";

fn ada<D: TestDb>(world: &World<D>) -> Operator<D::DB> {
    world.inbox.operator("ada").expect("a name")
}

fn at(next: i64) -> Seen {
    Seen {
        generation: 0,
        next,
    }
}

/// Refuses everything with 422 until it is mended.
fn strict<D: TestDb>(db: &D, mended: &Arc<AtomicBool>) -> Setup<D> {
    let mended = Arc::clone(mended);
    World::<D>::over(db).answers(move |_: &Call<D>| {
        if mended.load(Ordering::Relaxed) {
            0
        } else {
            422
        }
    })
}

/// As a producer that is answered 503 sends it again: behind an attempt of the worker's that came too late one is told that
/// it failed.
async fn answer<D: TestDb>(world: &World<D>, request: impl Fn() -> Request<Body>) -> Reply {
    let mut answered = None;
    eventually("it is answered", async || {
        let reply = world.post(request()).await;
        let is_told = reply.status != 503;
        answered = Some(reply);
        is_told
    })
    .await;
    answered.expect("an answer")
}

async fn sequences_are<D: TestDb>(world: &World<D>, account: &str, expected: &[i64]) {
    eventually("the stream goes on", async || {
        world.sequences(account).await == expected
    })
    .await;
}

/// §5.15, §9
async fn a_fast_forward_raced_with_a_delivery_ends_in_one_of_both<D: TestDb>(db: D) {
    let worlds = [World::<D>::start(&db).await, World::<D>::start(&db).await];
    for n in 0..12 {
        let account = format!("acct_{n}");
        worlds[0].send(&numbered(&account, 1)).await.is_applied();
        worlds[0].send(&numbered(&account, 4)).await.is_parked(2);
        let moving = {
            let (ada, account) = (ada(&worlds[0]), account.clone());
            tokio::spawn(async move { ada.fast_forward(SOURCE, &account, 4, at(2), WHY).await })
        };
        let delivery = worlds[n % 2].spawn(&numbered(&account, 2)).await.unwrap();
        match moving.await.unwrap() {
            Ok(moved) => {
                assert!(moved.changed);
                assert_eq!((delivery.status, delivery.outcome()), (202, "parked"));
                sequences_are(&worlds[0], &account, &[1, 4]).await;
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::CursorMoved { now: at(3) }, "{error}");
                assert_eq!((delivery.status, delivery.outcome()), (204, "applied"));
                let again = ada(&worlds[0])
                    .fast_forward(SOURCE, &account, 4, at(3), WHY)
                    .await;
                assert!(again.unwrap().changed);
                sequences_are(&worlds[0], &account, &[1, 2, 4]).await;
            }
        }
    }
}

/// §5.15, §5.10. The worker is about to apply what is skipped.
async fn a_skip_raced_with_the_worker_ends_in_one_of_both<D: TestDb>(db: D) {
    let worlds = [World::<D>::start(&db).await, World::<D>::start(&db).await];
    for n in 0..12 {
        let account = format!("acct_{n}");
        for sequence in [2, 3] {
            worlds[0]
                .send(&numbered(&account, sequence))
                .await
                .is_parked(1);
        }
        let skipping = {
            let (ada, account) = (ada(&worlds[n % 2]), account.clone());
            tokio::spawn(async move {
                loop {
                    let skipped = ada.skip(SOURCE, &account, 2, at(2), WHY).await;
                    let is_early = |error: &OperatorError| matches!(error.kind(), Kind::CursorMoved { now } if now.next < 2);
                    match skipped {
                        Err(error) if is_early(&error) => {}
                        skipped => return skipped,
                    }
                }
            })
        };
        worlds[0].send(&numbered(&account, 1)).await.is_applied();
        match skipping.await.unwrap() {
            Ok(moved) => {
                assert!(moved.changed);
                sequences_are(&worlds[0], &account, &[1, 3]).await;
            }
            Err(error) => {
                assert!(matches!(error.kind(), Kind::CursorMoved { .. }), "{error}");
                sequences_are(&worlds[0], &account, &[1, 2, 3]).await;
            }
        }
    }
    // What was skipped is there still, for whoever wants it; nothing else is.
    let letters = worlds[0].in_state(3).await;
    let skipped = "SELECT COUNT(*) FROM {p}pending WHERE reason = 5";
    assert_eq!(worlds[0].number(skipped).await, letters);
    assert_eq!(worlds[0].in_state(2).await, 0);
}

/// §5.11, §5.15
async fn a_discard_raced_with_a_redelivery_ends_in_one_of_both<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let worlds = [
        strict(&db, &mended).start().await,
        strict(&db, &mended).start().await,
    ];
    let accounts: Vec<_> = (0..12).map(|n| format!("acct_{n}")).collect();
    for account in &accounts {
        worlds[0]
            .send(&numbered(account, 1))
            .await
            .is(422, "rejected");
        worlds[0].send(&numbered(account, 2)).await.is_parked(1);
    }
    mended.store(true, Ordering::Relaxed);
    for (n, account) in accounts.iter().enumerate() {
        let event = numbered(account, 1);
        let discard = {
            let (ada, id) = (ada(&worlds[0]), event.id().to_owned());
            tokio::spawn(async move { ada.discard(SOURCE, &id, WHY).await })
        };
        let reply = worlds[n % 2].spawn(&event).await.unwrap();
        let expected: &[i64] = match discard.await.unwrap() {
            Ok(changed) => {
                assert!(changed);
                assert_ne!(reply.outcome(), "applied", "{reply:?}");
                &[2]
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::Applied, "{error}");
                reply.is_applied();
                &[1, 2]
            }
        };
        sequences_are(&worlds[0], account, expected).await;
        answer(&worlds[1], || worlds[1].request(&event))
            .await
            .is(200, "duplicate");
    }
    assert_eq!(worlds[0].number("SELECT COUNT(*) FROM {p}pending").await, 0);
}

/// §5.15, §4.3
async fn a_replay_out_of_order_raced_with_a_redelivery_applies_once<D: TestDb>(db: D) {
    let worlds = [World::<D>::start(&db).await, World::<D>::start(&db).await];
    for n in 0..12 {
        let account = format!("acct_{n}");
        let late = numbered(&account, 2);
        worlds[0].send(&numbered(&account, 1)).await.is_applied();
        let skipped = ada(&worlds[0]).skip(SOURCE, &account, 2, at(2), WHY).await;
        assert!(skipped.unwrap().changed);
        assert_eq!(worlds[0].send(&late).await.status, 202);
        let replay = {
            let (ada, id) = (ada(&worlds[0]), late.id().to_owned());
            tokio::spawn(async move { ada.replay_out_of_order(SOURCE, &id, WHY).await })
        };
        let reply = worlds[n % 2].spawn(&late).await.unwrap();
        assert!(matches!(reply.status, 200 | 202 | 204 | 503), "{reply:?}");
        assert!(replay.await.unwrap().expect("it is set aside"));
        sequences_are(&worlds[0], &account, &[1, 2]).await;
        let runs: usize = worlds.iter().map(|world| world.probe.runs(late.id())).sum();
        assert_eq!(runs, 1);
        answer(&worlds[1], || worlds[1].request(&late))
            .await
            .is_duplicate();
    }
}

/// §5.15. Each is applied or discarded, never both, and nothing is left between.
async fn a_replay_and_a_discard_of_many_at_once_decide_each_of_them<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let worlds = [
        strict(&db, &mended).start().await,
        strict(&db, &mended).start().await,
    ];
    let events: Vec<_> = (0..40)
        .map(|n| Event::new(&format!("evt_{n:02}")))
        .collect();
    for event in &events {
        worlds[0].send(event).await.is(422, "rejected");
    }
    mended.store(true, Ordering::Relaxed);
    let quickly = BulkOptions::default().per_second(NonZeroU32::new(100_000).expect("not 0"));
    let (here, there) = (ada(&worlds[0]), ada(&worlds[1]));
    let replaying = tokio::spawn(async move {
        let all = Filter::new().source(SOURCE);
        here.replay_where(&all, WHY, quickly).await
    });
    let discarding = tokio::spawn(async move {
        let all = Filter::new().source(SOURCE);
        there.discard_where(&all, WHY, quickly).await
    });
    // And producers that send some of them again.
    let again: Vec<_> = events
        .iter()
        .step_by(5)
        .map(|event| worlds[1].spawn(event))
        .collect();
    let replayed = replaying.await.unwrap().unwrap();
    let discarded = discarding.await.unwrap().unwrap();
    for report in [&replayed, &discarded] {
        assert!(report.stopped.is_none(), "{report:?}");
        assert_eq!(report.done + report.left, report.matched, "{report:?}");
    }
    for delivery in again {
        let reply = delivery.await.unwrap();
        assert!(matches!(reply.status, 200 | 202 | 204 | 503), "{reply:?}");
    }
    // What one of them did not get at, the other one's page has left behind it.
    let rest = ada(&worlds[0])
        .replay_where(&Filter::new(), WHY, quickly)
        .await;
    assert!(rest.unwrap().stopped.is_none());
    eventually("nothing is left", async || {
        worlds[0].number("SELECT COUNT(*) FROM {p}pending").await == 0
    })
    .await;
    let applied =
        worlds[0].texts("SELECT event_id FROM {p}event WHERE state = 1 ORDER BY event_id");
    let mut ledger = worlds[0].applied().await;
    ledger.sort_unstable();
    assert_eq!(ledger, applied.await, "each applied one once, and no other");
    assert_eq!(worlds[0].in_state(6).await + ledger.len() as i64, 40);
    let audited = "SELECT COUNT(*) FROM {p}audit WHERE action = 'discard'";
    assert_eq!(worlds[0].number(audited).await, worlds[0].in_state(6).await);
}

/// §6.7, §5.15
async fn a_release_raced_with_redeliveries_and_itself_applies_once<D: TestDb>(db: D) {
    let worlds = [fence::start(&db).await, fence::start(&db).await];
    for n in 0..8 {
        let (first, second) = (format!("guid-{n}-a"), format!("guid-{n}-b"));
        worlds[0]
            .post(fence::push(&first, "push", n))
            .await
            .is_applied();
        worlds[0]
            .post(fence::push(&second, "push", n))
            .await
            .is(200, "duplicate");
        let tasks: Vec<_> = (0..6)
            .map(|task| {
                let (inbox, id) = (worlds[task % 2].inbox.clone(), second.clone());
                tokio::spawn(async move { inbox.release_fenced(SOURCE, &id, "ada", WHY).await })
            })
            .collect();
        let deliveries: Vec<_> = worlds
            .iter()
            .map(|world| {
                let (world, id) = (world.clone(), second.clone());
                tokio::spawn(async move { world.post(fence::push(&id, "push", n)).await })
            })
            .collect();
        let mut released = 0;
        for task in tasks {
            released += u32::from(task.await.unwrap().expect("the database answers"));
        }
        assert_eq!(released, 1);
        for delivery in deliveries {
            let reply = delivery.await.unwrap();
            assert!(matches!(reply.status, 200 | 202 | 204 | 503), "{reply:?}");
        }
        eventually("the released event is applied", async || {
            let applied = worlds[0].applied().await;
            applied.iter().filter(|id| **id == second).count() == 1
        })
        .await;
        answer(&worlds[1], || fence::push(&second, "push", n))
            .await
            .is_duplicate();
    }
    let audited = "SELECT COUNT(*) FROM {p}audit WHERE action = 'release'";
    assert_eq!(worlds[0].number(audited).await, 8);
    assert_eq!(worlds[0].applied().await.len(), 16);
}

/// §7.3, §5.15. Its request goes with it, or is handed over whole.
async fn an_erasure_raced_with_a_replay_leaves_no_half_of_an_event<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let world = strict(&db, &mended).start().await;
    let events: Vec<_> = (0..12).map(|n| Event::new(&format!("evt_{n}"))).collect();
    for event in &events {
        world.send(event).await.is(422, "rejected");
    }
    mended.store(true, Ordering::Relaxed);
    for event in &events {
        let erasing = {
            let (ada, id) = (ada(&world), event.id().to_owned());
            tokio::spawn(async move { ada.erase(SOURCE, Erasure::Event(&id), WHY).await })
        };
        let replayed = ada(&world).replay(SOURCE, event.id(), WHY).await;
        let erased: Erased = erasing.await.unwrap().expect("the database answers");
        match replayed {
            Ok(changed) => {
                assert!(changed);
                assert_eq!(erased.letters, 0, "what is to be applied is whole");
            }
            Err(error) => {
                assert_eq!(
                    (error.kind(), erased.letters),
                    (Kind::BodyNotKept, 1),
                    "{error}"
                );
                world.send(event).await.is_applied();
            }
        }
        eventually("it is applied", async || {
            world.applied().await.contains(&event.id().to_owned())
        })
        .await;
        // Again, it changes nothing.
        let again = ada(&world)
            .erase(SOURCE, Erasure::Event(event.id()), WHY)
            .await;
        assert_eq!(again.unwrap(), Erased::default());
    }
    assert_eq!(world.applied().await.len(), events.len());
}

/// §5.1, §5.15
async fn a_reset_raced_with_the_worker_leaves_no_hole<D: TestDb>(db: D) {
    let worlds = [World::<D>::start(&db).await, World::<D>::start(&db).await];
    for n in 0..4 {
        let account = format!("acct_{n}");
        for sequence in 2..=12 {
            worlds[0]
                .send(&numbered(&account, sequence))
                .await
                .is_parked(1);
        }
        let resetting = {
            let (ada, account) = (ada(&worlds[n % 2]), account.clone());
            tokio::spawn(async move {
                loop {
                    let seen = ada
                        .cursor(SOURCE, &account)
                        .await
                        .unwrap()
                        .expect("it has begun");
                    if seen.next < 3 {
                        continue;
                    }
                    match ada.reset(SOURCE, &account, 1, seen.seen(), WHY).await {
                        Err(error) if matches!(error.kind(), Kind::CursorMoved { .. }) => {}
                        reset => return reset,
                    }
                }
            })
        };
        worlds[0].send(&numbered(&account, 1)).await.is_applied();
        let moved = resetting.await.unwrap().expect("it is begun again");
        assert_eq!(
            moved.cursor,
            Seen {
                generation: 1,
                next: 1
            }
        );
        for sequence in 1..=3 {
            let anew = Event::new(&format!("evt_{account}_anew_{sequence}")).of(&account, sequence);
            worlds[1].send(&anew).await.is_applied();
        }
        let ledger = worlds[0].sequences(&account).await;
        let (before, after) = ledger.split_at(ledger.len() - 3);
        assert_eq!(after, [1, 2, 3]);
        assert!(
            before.iter().copied().eq(1..=before.len() as i64),
            "{ledger:?}"
        );
        let letters = format!(
            "SELECT COUNT(*) FROM {{p}}pending WHERE correlation_id = '{account}' AND reason = 5"
        );
        assert_eq!(worlds[0].number(&letters).await, 12 - before.len() as i64);
    }
    assert_eq!(worlds[0].in_state(2).await, 0);
}

/// §3, §5.15: whoever is told that it is applied is told the truth, and so is whoever gets 410.
async fn deregistrations_raced_with_deliveries_are_answered_truly<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let deliveries: Vec<_> = (0..24)
        .map(|n| world.spawn(&Event::new(&format!("evt_{n}"))))
        .collect();
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let ada = ada(&world);
            tokio::spawn(async move { ada.deregister(SOURCE, WHY).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().expect("safe to repeat");
    }
    let mut told = Vec::new();
    for (n, delivery) in deliveries.into_iter().enumerate() {
        match delivery.await.unwrap().status {
            204 => told.push(format!("evt_{n}")),
            410 => {}
            other => panic!("{other}"),
        }
    }
    let mut applied = world.applied().await;
    applied.sort_unstable();
    told.sort_unstable();
    assert_eq!(applied, told);
    assert_eq!(world.send(&Event::new("evt_after")).await.status, 410);
    for _ in 0..2 {
        ada(&world)
            .rearm(SOURCE, WHY)
            .await
            .expect("safe to repeat");
    }
    world.send(&Event::new("evt_after")).await.is_applied();
}
