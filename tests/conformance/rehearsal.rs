//! §5.15: a decision that is rehearsed comes to what it would come to, and nothing of it stays.

use tower_inbox::OperatorErrorKind as Kind;
use tower_inbox::operator::{AfterDiscard, AuditFilter, Erasure, Moved, Operator, Seen};

use crate::db::TestDb;
use crate::kit::{Call, Event, SOURCE, World, eventually, numbered};

suite![
    what_is_rehearsed_comes_to_what_it_would_and_leaves_nothing,
    what_would_be_refused_is_refused_in_a_rehearsal,
    a_stream_is_foreseen_as_it_goes_on,
];

const WHY: &str = "a test";

fn ada<D: TestDb>(world: &World<D>) -> Operator<D::DB> {
    world.inbox.operator("ada").expect("a name")
}

/// Refuses what is called "bad".
async fn refusing<D: TestDb>(db: &D) -> World<D> {
    let world = World::<D>::over(db).answers(|call: &Call<D>| {
        if call.delivery.event_id().starts_with("bad") {
            422
        } else {
            0
        }
    });
    world.start().await
}

/// All that an operator sees of it.
async fn told<D: TestDb>(world: &World<D>, ids: &[&str]) -> Vec<String> {
    let ada = ada(world);
    let mut told = Vec::new();
    for id in ids {
        told.push(format!(
            "{:?}",
            ada.inspect(SOURCE, id).await.expect("asked")
        ));
    }
    let audit = ada.audit(&AuditFilter::new(), None, 100).await;
    let cursor = ada.cursor(SOURCE, "acct").await.expect("asked");
    told.push(format!("{:?} {cursor:?}", audit.expect("asked")));
    told
}

/// §5.15
async fn what_is_rehearsed_comes_to_what_it_would_and_leaves_nothing<D: TestDb>(db: D) {
    let world = refusing(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    for n in [3, 4] {
        world.send(&numbered("acct", n)).await.is_parked(2);
    }
    world.send(&Event::new("bad")).await.is(422, "rejected");
    let seen = ada(&world)
        .cursor(SOURCE, "acct")
        .await
        .unwrap()
        .unwrap()
        .seen();
    let ids = ["bad", "evt_acct_1", "evt_acct_3", "evt_acct_4"];
    let before = told(&world, &ids).await;
    let moves = |next, generation| {
        let cursor = Seen { next, generation };
        move |moved: Moved| assert_eq!((moved.changed, moved.cursor), (true, cursor))
    };
    let rehearsal = ada(&world).rehearsal();
    let skipped = rehearsal.skip(SOURCE, "acct", 2, seen, WHY).await;
    moves(3, 0)(skipped.unwrap());
    let forward = rehearsal.fast_forward(SOURCE, "acct", 9, seen, WHY).await;
    moves(9, 0)(forward.unwrap());
    let reset = rehearsal.reset(SOURCE, "acct", 1, seen, WHY).await;
    moves(1, 1)(reset.unwrap());
    assert!(rehearsal.replay(SOURCE, "bad", WHY).await.unwrap());
    assert!(rehearsal.discard(SOURCE, "bad", WHY).await.unwrap());
    assert!(rehearsal.discard(SOURCE, "evt_acct_4", WHY).await.unwrap());
    let erased = rehearsal.erase(SOURCE, Erasure::Event("bad"), WHY).await;
    assert_eq!(erased.unwrap().letters, 1);
    rehearsal.deregister(SOURCE, WHY).await.unwrap();
    assert_eq!(told(&world, &ids).await, before);
    // This process has learned nothing of it either: deliveries go on as before.
    world.send(&numbered("acct", 2)).await.is_applied();
    eventually("what waited is applied", async || {
        world.sequences("acct").await == [1, 2, 3, 4]
    })
    .await;
}

/// §5.15
async fn what_would_be_refused_is_refused_in_a_rehearsal<D: TestDb>(db: D) {
    let world = refusing(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 3)).await.is_parked(2);
    world.send(&Event::new("bad")).await.is(422, "rejected");
    let rehearsal = ada(&world).rehearsal();
    let seen = Seen {
        next: 2,
        generation: 0,
    };
    let old = Seen {
        next: 1,
        generation: 0,
    };
    let refused =
        |done: Result<bool, tower_inbox::OperatorError>| done.expect_err("it is refused").kind();
    let moved =
        |done: Result<Moved, tower_inbox::OperatorError>| done.expect_err("it is refused").kind();
    let discard = rehearsal.discard(SOURCE, "evt_acct_1", WHY).await;
    assert_eq!(refused(discard), Kind::Applied);
    let none = rehearsal.replay(SOURCE, "evt_none", WHY).await;
    assert_eq!(refused(none), Kind::NotFound);
    let dead = rehearsal.try_now(SOURCE, "bad", WHY).await;
    assert_eq!(refused(dead), Kind::Dead);
    let in_turn = rehearsal
        .replay_out_of_order(SOURCE, "evt_acct_3", WHY)
        .await;
    assert_eq!(refused(in_turn), Kind::InTurn);
    let passed = rehearsal.skip(SOURCE, "acct", 1, seen, WHY).await;
    assert_eq!(moved(passed), Kind::Applied);
    let late = rehearsal.skip(SOURCE, "acct", 2, old, WHY).await;
    assert_eq!(moved(late), Kind::CursorMoved { now: seen });
    // So already, as it would be.
    let there = rehearsal.fast_forward(SOURCE, "acct", 1, seen, WHY).await;
    assert!(!there.unwrap().changed);
    assert!(!rehearsal.replay(SOURCE, "evt_acct_3", WHY).await.unwrap());
}

/// §5.4: what is foreseen is what comes.
async fn a_stream_is_foreseen_as_it_goes_on<D: TestDb>(db: D) {
    let world = refusing(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    for n in [3, 4, 7] {
        world.send(&numbered("acct", n)).await.is_parked(2);
    }
    let bad = Event::new("bad").of("held", 1);
    world.send(&bad).await.is(422, "rejected");
    world.send(&numbered("held", 2)).await.is_parked(1);
    let ada = ada(&world);
    let info = ada.cursor(SOURCE, "acct").await.unwrap().unwrap();
    let ahead = async |first, last| {
        let ahead = ada.foresee_skip(SOURCE, "acct", &info, first..=last).await;
        let ahead = ahead.expect("it is asked");
        let due: Vec<_> = ahead.due.iter().map(|event| event.sequence).collect();
        assert!(!ahead.more && ahead.held.is_none());
        (ahead.next, due)
    };
    assert_eq!(ahead(2, 2).await, (3, vec![3, 4]));
    assert_eq!(ahead(2, 6).await, (7, vec![7]));
    assert_eq!(ahead(5, 6).await, (2, vec![]));
    let story = ada.inspect(SOURCE, "bad").await.unwrap().unwrap();
    let after = ada.foresee_discard(&story).await.expect("it is asked");
    let AfterDiscard::Skips(ahead) = after else {
        panic!("{after:?}");
    };
    assert_eq!((ahead.next, ahead.due.len()), (2, 1));
    ada.skip(SOURCE, "acct", 2, info.seen(), WHY).await.unwrap();
    ada.discard(SOURCE, "bad", WHY).await.unwrap();
    eventually("both go on as foreseen", async || {
        world.sequences("acct").await == [1, 3, 4] && world.sequences("held").await == [2]
    })
    .await;
}
