//! §5.7, §9: what happens while a batch runs: crashes, leases that are lost, operators, redeliveries, outages.

use tower_inbox::OperatorErrorKind;

use crate::batch::{Act, LEASES, batched, drained, make_due, nothing, park};
use crate::db::TestDb;
use crate::kit::{Call, Gate, SOURCE, World, eventually, numbered};

suite![
    what_a_batch_left_behind_is_run_one_by_one,
    a_process_that_ends_in_a_batch_counts_for_none_of_its_events,
    what_this_process_has_left_of_a_batch_is_run_one_by_one,
    a_shutdown_gives_the_leases_of_a_batch_back_uncounted,
    redeliveries_of_members_wait_and_are_duplicates,
    redeliveries_of_a_batch_that_is_undone_get_what_is_so,
    a_redelivery_elsewhere_waits_for_the_lock_and_reads_again,
    a_member_that_is_applied_elsewhere_after_the_claim_is_not_run,
    a_member_whose_lease_was_taken_over_is_not_run,
    a_member_that_is_skipped_after_the_claim_is_not_run,
    an_operator_who_skips_or_discards_a_member_waits_and_sees_the_cursor_moved,
    a_commit_that_is_refused_or_lost_leaves_all_of_it_due,
    a_commit_whose_answer_is_lost_applies_nothing_twice,
];

/// §5.7, §9: each is counted for its own run, and for that alone.
async fn what_a_batch_left_behind_is_run_one_by_one<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let (setup, passed) = batched(&db, 8, nothing);
    let world = setup
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                if call.delivery.sequence() == Some(3) {
                    gate.pass().await;
                }
            }
        })
        .start()
        .await;
    park(&world, "acct", 6).await;
    let left = "UPDATE {p}pending SET lease_token = -7, lease_owner = 'gone', lease_until = 1";
    assert_eq!(world.execute(left).await, 5);
    let reply = world.send(&numbered("acct", 1)).await;
    assert_eq!(reply.outcome(), "applied");
    gate.reached_by(1).await;
    let counted =
        "SELECT sequence FROM {p}pending WHERE attempts = 1 AND unfinished = 1 AND lease_token > 0";
    let others = "SELECT COUNT(*) FROM {p}pending WHERE attempts = 0 AND unfinished = 0 AND lease_token = -7";
    assert_eq!(
        (world.number(counted).await, world.number(others).await),
        (3, 3)
    );
    gate.open();
    drained(&world, "acct", 6).await;
    assert_eq!(
        (passed.of("store.claim_batch"), passed.of("store.claim")),
        (0, 5)
    );
}

/// §5.7, §5.9, §9: its runtime ends with the handler in the middle, as `kill -9` would have it.
async fn a_process_that_ends_in_a_batch_counts_for_none_of_its_events<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let (setup, _) = batched(&db, 8, nothing);
    let setup = setup.handler(move |mut call: Call<D>| {
        let gate = held.clone();
        async move {
            call.append().await;
            if call.delivery.sequence() == Some(4) {
                gate.pass().await;
            }
        }
    });
    let first = runtime.spawn(async move {
        let world = setup.start().await;
        make_due(&world, "acct", 6).await;
        world
    });
    let first = first.await.expect("it is due");
    gate.reached_by(1).await;
    assert_eq!(first.probe.runs(numbered("acct", 3).id()), 1);
    runtime.shutdown_background();
    drop(first);
    let (setup, passed) = batched(&db, 8, nothing);
    let next = setup.start().await;
    drained(&next, "acct", 6).await;
    assert_eq!(
        (passed.of("store.claim_batch"), passed.of("store.claim")),
        (0, 5)
    );
    for sequence in 2..=6 {
        assert_eq!(next.probe.runs(numbered("acct", sequence).id()), 1);
    }
}

/// §5.7: nobody could tell the database how it ended.
async fn what_this_process_has_left_of_a_batch_is_run_one_by_one<D: TestDb>(db: D) {
    let (setup, passed) = batched(&db, 8, |name, nth| match (name, nth) {
        ("claimed", 1) => Act::Fail,
        _ => Act::Nothing,
    });
    let world = setup.start().await;
    make_due(&world, "acct", 5).await;
    drained(&world, "acct", 5).await;
    assert_eq!(
        (passed.of("store.claim_batch"), passed.of("store.claim")),
        (1, 4)
    );
    assert_eq!(passed.of("store.hand_back"), 0);
    for sequence in 2..=5 {
        assert_eq!(world.probe.runs(numbered("acct", sequence).id()), 1);
    }
}

/// §5.7
async fn a_shutdown_gives_the_leases_of_a_batch_back_uncounted<D: TestDb>(db: D) {
    let (setup, passed) = batched(&db, 8, |name, _| match name {
        "claimed" => Act::Fail,
        _ => Act::Nothing,
    });
    // So that it beats, and has a row to take away.
    let world = setup.start().await;
    make_due(&world, "acct", 5).await;
    eventually("it is claimed", async || passed.of("claimed") >= 1).await;
    eventually(
        "it has given a sign of life, or there is but one writer",
        async || passed.of("store.beat") + passed.of("store.due_streams") > 1,
    )
    .await;
    world.inbox.shutdown().await;
    let odd = "SELECT COUNT(*) FROM {p}pending WHERE attempts < 0 OR unfinished < 0";
    assert_eq!(world.number(odd).await, 0);
    assert_eq!(world.sequences("acct").await, [1]);
    let next = World::<D>::start(&db).await;
    drained(&next, "acct", 5).await;
}

/// A world that stands in the handler of this sequence, with the batch around it, and fails there if it is to.
async fn held_in_a_batch<D: TestDb>(db: &D, at: u64, fails: bool) -> (World<D>, Gate) {
    let gate = Gate::shut();
    let held = gate.clone();
    let (setup, _) = batched(db, 8, nothing);
    let world = setup
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                if call.delivery.sequence() == Some(at.cast_signed()) && call.run == 1 {
                    gate.pass().await;
                    if fails {
                        return http::StatusCode::SERVICE_UNAVAILABLE;
                    }
                }
                http::StatusCode::NO_CONTENT
            }
        })
        .start()
        .await;
    make_due(&world, "acct", 6).await;
    gate.reached_by(1).await;
    (world, gate)
}

/// §4.8, §5.6, §9
async fn redeliveries_of_members_wait_and_are_duplicates<D: TestDb>(db: D) {
    let (world, gate) = held_in_a_batch(&db, 4, false).await;
    let again: Vec<_> = (2..=6)
        .map(|sequence| world.spawn(&numbered("acct", sequence)))
        .collect();
    tokio::task::yield_now().await;
    assert!(again.iter().all(|one| !one.is_finished()));
    gate.open();
    for one in again {
        one.await.expect("an answer").is_duplicate();
    }
    drained(&world, "acct", 6).await;
    for sequence in 2..=6 {
        assert_eq!(world.probe.runs(numbered("acct", sequence).id()), 1);
    }
}

/// §3, §4.8, §9: the first one is tried at once, and its redelivery waits for that; the others wait for it in their turn.
async fn redeliveries_of_a_batch_that_is_undone_get_what_is_so<D: TestDb>(db: D) {
    let (world, gate) = held_in_a_batch(&db, 4, true).await;
    let before = world.acquired();
    let again: Vec<_> = (2..=6)
        .map(|sequence| world.spawn(&numbered("acct", sequence)))
        .collect();
    // Each has looked whether its event is known, and waits for its flight now.
    eventually("all of them wait", async || world.acquired() >= before + 5).await;
    gate.open();
    for (one, sequence) in again.into_iter().zip(2..) {
        let reply = one.await.expect("an answer");
        match (sequence, reply.status) {
            (2, _) | (_, 200) => drop(reply.is_duplicate()),
            // It has come when the batch was over, and in its turn: its try, not the worker's.
            (_, 204) => drop(reply.is_applied()),
            (_, 503) => drop(reply.is(503, "failed")),
            _ => {
                reply.is(202, "parked");
                let waiting_for = reply.json()["waiting_for"].as_u64().expect("a number");
                assert!(waiting_for >= 2 && waiting_for <= sequence, "{reply:?}");
            }
        }
    }
    drained(&world, "acct", 6).await;
}

/// §5.6, §5.7, §9
async fn a_redelivery_elsewhere_waits_for_the_lock_and_reads_again<D: TestDb>(db: D) {
    let (world, gate) = held_in_a_batch(&db, 4, false).await;
    let other = World::<D>::start(&db).await;
    // As long as nothing is committed, the others wait for a lower sequence.
    other.send(&numbered("acct", 6)).await.is_parked(2);
    let before = other.acquired();
    let again = other.spawn(&numbered("acct", 2));
    // The look, and the transaction that waits.
    eventually("it is in its transaction", async || {
        other.acquired() >= before + 2
    })
    .await;
    assert!(!again.is_finished());
    gate.open();
    again.await.expect("an answer").is_duplicate();
    drained(&world, "acct", 6).await;
    for sequence in 2..=6 {
        assert_eq!(other.probe.runs(numbered("acct", sequence).id()), 0);
    }
}

/// A world whose worker has claimed 2 to 6 together, and stands at the gate before it does anything with them.
async fn held_at_its_claim<D: TestDb>(db: &D) -> (World<D>, Gate) {
    let gate = Gate::shut();
    let held = gate.clone();
    let (setup, _) = batched(db, 8, move |name, nth| match (name, nth) {
        ("claimed", 1) => Act::Wait(held.clone()),
        _ => Act::Nothing,
    });
    let world = setup.start().await;
    make_due(&world, "acct", 6).await;
    gate.reached_by(1).await;
    let of_a_batch =
        "SELECT COUNT(*) FROM {p}pending WHERE lease_token < 0 AND attempts = 0 AND unfinished = 0";
    assert_eq!(world.number(of_a_batch).await, 5);
    (world, gate)
}

/// §5.6, §5.7
async fn a_member_that_is_applied_elsewhere_after_the_claim_is_not_run<D: TestDb>(db: D) {
    let (world, gate) = held_at_its_claim(&db).await;
    let other = World::<D>::start(&db).await;
    other.send(&numbered("acct", 2)).await.is_applied();
    gate.open();
    drained(&world, "acct", 6).await;
    assert_eq!(world.probe.runs(numbered("acct", 2).id()), 0);
}

/// §5.7: the applied transition of each demands its lease.
async fn a_member_whose_lease_was_taken_over_is_not_run<D: TestDb>(db: D) {
    let (world, gate) = held_at_its_claim(&db).await;
    let taken = "UPDATE {p}pending SET lease_token = 77, lease_owner = 'other', lease_until = 1, attempts = 2,
        unfinished = 2 WHERE sequence = 4";
    assert_eq!(world.execute(taken).await, 1);
    gate.open();
    drained(&world, "acct", 6).await;
    // Once, by its own lease; the two before it in the batch that came to nothing, too.
    let runs = |sequence| world.probe.runs(numbered("acct", sequence).id());
    assert_eq!([2, 3, 4, 5, 6].map(runs), [2, 2, 1, 1, 1]);
}

/// §5.7, §5.15
async fn a_member_that_is_skipped_after_the_claim_is_not_run<D: TestDb>(db: D) {
    let (world, gate) = held_at_its_claim(&db).await;
    let ada = world.inbox.operator("ada").expect("a name");
    let seen = ada.cursor(SOURCE, "acct").await.unwrap().unwrap().seen();
    ada.skip(SOURCE, "acct", 4, seen, "a test").await.unwrap();
    let aside = "SELECT COUNT(*) FROM {p}pending WHERE reason = 5 AND lease_token = 0 AND lease_owner IS NULL";
    assert_eq!(world.number(aside).await, 1);
    gate.open();
    eventually("the others are applied", async || {
        world.sequences("acct").await == [1, 2, 3, 5, 6]
    })
    .await;
    world.inbox.shutdown().await;
    assert_eq!(world.probe.runs(numbered("acct", 4).id()), 0);
    assert_eq!(
        (world.number(aside).await, world.number(LEASES).await),
        (1, 0)
    );
}

/// §5.15, §9
async fn an_operator_who_skips_or_discards_a_member_waits_and_sees_the_cursor_moved<D: TestDb>(
    db: D,
) {
    let (world, gate) = held_in_a_batch(&db, 3, false).await;
    let (ada, other) = (
        world.inbox.operator("ada").unwrap(),
        world.inbox.operator("bob").unwrap(),
    );
    let seen = ada.cursor(SOURCE, "acct").await.unwrap().unwrap().seen();
    let before = world.acquired();
    let skipped = tokio::spawn(async move { ada.skip(SOURCE, "acct", 5, seen, "a test").await });
    let discarded = tokio::spawn(async move {
        other
            .discard(SOURCE, numbered("acct", 6).id(), "a test")
            .await
    });
    eventually("both are in their transactions", async || {
        D::SINGLE_WRITER || world.acquired() >= before + 2
    })
    .await;
    assert!(!skipped.is_finished() && !discarded.is_finished());
    gate.open();
    let skipped = skipped
        .await
        .expect("it ends")
        .map_err(|error| error.kind());
    assert!(
        matches!(
            skipped,
            Err(OperatorErrorKind::CursorMoved { .. } | OperatorErrorKind::Applied)
        ),
        "{skipped:?}"
    );
    let discarded = discarded
        .await
        .expect("it ends")
        .map_err(|error| error.kind());
    assert!(
        matches!(discarded, Err(OperatorErrorKind::Applied)),
        "{discarded:?}"
    );
    drained(&world, "acct", 6).await;
}

/// §4.2, §9: before the database has it.
async fn a_commit_that_is_refused_or_lost_leaves_all_of_it_due<D: TestDb>(db: D) {
    // The delivery of 1 has the sixth commit.
    let (setup, passed) = batched(&db, 8, |name, nth| match (name, nth) {
        ("store.commit", 7) => Act::Fail,
        _ => Act::Nothing,
    });
    let world = setup.start().await;
    make_due(&world, "acct", 6).await;
    drained(&world, "acct", 6).await;
    // It is not known that it was lost: what is left is run one by one.
    assert_eq!(
        (passed.of("store.claim_batch"), passed.of("store.claim")),
        (1, 5)
    );
    world.pool_is_whole().await;
}

/// §4.2, §9: behind it.
async fn a_commit_whose_answer_is_lost_applies_nothing_twice<D: TestDb>(db: D) {
    let (setup, passed) = batched(&db, 8, |name, nth| match (name, nth) {
        ("store.committed", 7) => Act::Fail,
        _ => Act::Nothing,
    });
    let world = setup.start().await;
    make_due(&world, "acct", 6).await;
    drained(&world, "acct", 6).await;
    for sequence in 1..=6 {
        assert_eq!(world.probe.runs(numbered("acct", sequence).id()), 1);
        // While the worker does not know what came of it, nor do those who wait for it (§4.8).
        eventually("it is known again", async || {
            let reply = world.send(&numbered("acct", sequence)).await;
            assert!(matches!(reply.status, 200 | 503), "{reply:?}");
            reply.status == 200 && reply.outcome() == "duplicate"
        })
        .await;
    }
    assert_eq!(passed.of("store.claim"), 0);
    world.pool_is_whole().await;
}
