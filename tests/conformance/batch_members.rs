//! Batches whose events do not all end with a commit: each is judged alone (`Source::batch`).

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tower_inbox::Park;

use crate::batch::{LEASES, batched, drained, make_due, nothing, park};
use crate::db::{TestDb, Then};
use crate::kit::{Call, World, eventually, numbered};

suite![
    a_member_that_fails_undoes_the_batch_and_is_judged_alone,
    a_member_with_a_verdict_becomes_a_dead_letter_alone,
    a_member_that_panics_or_is_not_to_be_applied_yet_is_run_alone,
    a_member_over_its_budget_is_run_alone,
    whatever_a_member_does_to_the_transaction_each_effect_is_there_once,
    nothing_is_marked_behind_a_member_that_has_ended_the_transaction,
];

/// What is pending of a sequence, as `SELECT` has it.
async fn of<D: TestDb>(world: &World<D>, column: &str, sequence: u64) -> i64 {
    let find = format!("SELECT {column} FROM {{p}}pending WHERE sequence = {sequence}");
    world.number(&find).await
}

/// §5.1, §5.5, §9: nothing of the others' is lost or counted, and of its own only the attempt that it had alone.
async fn a_member_that_fails_undoes_the_batch_and_is_judged_alone<D: TestDb>(db: D) {
    let (setup, _) = batched(&db, 8, nothing);
    let world = setup
        .source(|source| source.backoff([Duration::from_secs(300)]))
        .answers(
            |call: &Call<D>| match (call.delivery.sequence(), call.run) {
                (Some(4), 1 | 2) => 503,
                _ => 0,
            },
        )
        .start()
        .await;
    make_due(&world, "acct", 7).await;
    eventually("it is judged", async || {
        of(&world, "COALESCE(last_status, 0)", 4).await == 503
    })
    .await;
    assert_eq!(world.sequences("acct").await, [1, 2, 3]);
    assert_eq!(
        (
            of(&world, "attempts", 4).await,
            of(&world, "unfinished", 4).await
        ),
        (1, 0)
    );
    assert_eq!(world.number(LEASES).await, 0);
    for sequence in 5..=7 {
        let untouched = (
            of(&world, "attempts", sequence).await,
            of(&world, "unfinished", sequence).await,
        );
        assert_eq!(untouched, (0, 0));
        assert_eq!(world.probe.runs(numbered("acct", sequence).id()), 0);
    }
    for sequence in [2, 3, 4] {
        assert_eq!(world.probe.runs(numbered("acct", sequence).id()), 2);
    }
    // Sent again, it is a new attempt, and the others follow.
    world.send(&numbered("acct", 4)).await.is_applied();
    drained(&world, "acct", 7).await;
    world.pool_is_whole().await;
}

/// §4.13, §5.5, §5.10, §9
async fn a_member_with_a_verdict_becomes_a_dead_letter_alone<D: TestDb>(db: D) {
    let (setup, _) = batched(&db, 8, nothing);
    let world = setup
        .answers(
            |call: &Call<D>| match (call.delivery.sequence(), call.run) {
                (Some(4), 1 | 2) => 422,
                _ => 0,
            },
        )
        .start()
        .await;
    make_due(&world, "acct", 7).await;
    let letter = "SELECT COUNT(*) FROM {p}pending
        WHERE sequence = 4 AND reason = 3 AND attempts = 1 AND last_status = 422 AND lease_token = 0";
    eventually("it is a dead letter", async || {
        world.number(letter).await == 1
    })
    .await;
    assert_eq!(world.sequences("acct").await, [1, 2, 3]);
    assert_eq!((world.in_state(3).await, world.in_state(2).await), (1, 3));
    assert_eq!(world.number(LEASES).await, 0);
    let reply = world.send_after(422, &numbered("acct", 4)).await;
    reply.is_applied();
    drained(&world, "acct", 7).await;
}

/// §5.5, §9: and neither is counted for the run in the batch.
async fn a_member_that_panics_or_is_not_to_be_applied_yet_is_run_alone<D: TestDb>(db: D) {
    let (setup, passed) = batched(&db, 8, nothing);
    let world = setup
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            let account = call.delivery.correlation_id().unwrap_or("").to_owned();
            match (account.as_str(), call.delivery.sequence(), call.run) {
                ("panics", Some(3), 1) => std::panic::resume_unwind(Box::new("planned")),
                ("waits", Some(3), 1) => Park::after(Duration::from_secs(60)).into_response(),
                _ => Response::default(),
            }
        })
        .start()
        .await;
    for account in ["panics", "waits"] {
        make_due(&world, account, 5).await;
        drained(&world, account, 5).await;
    }
    assert_eq!(passed.of("store.postpone") + passed.of("store.put_off"), 0);
    world.pool_is_whole().await;
}

/// §4.6, §5.5: a batch waits for a handler no longer than that may run.
async fn a_member_over_its_budget_is_run_alone<D: TestDb>(db: D) {
    let (setup, passed) = batched(&db, 8, nothing);
    let world = setup
        .source(|source| source.worker_budget(Duration::from_secs(2)))
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            if call.delivery.sequence() == Some(3) && call.run == 1 {
                std::future::pending::<()>().await;
            }
        })
        .start()
        .await;
    make_due(&world, "acct", 5).await;
    drained(&world, "acct", 5).await;
    assert_eq!(passed.of("store.postpone"), 0);
    world.pool_is_whole().await;
}

/// §4.4, §5.1, §9: all that a handler can do to a transaction, done in the middle of a batch.
async fn whatever_a_member_does_to_the_transaction_each_effect_is_there_once<D: TestDb>(db: D) {
    for (index, fault) in D::faults().into_iter().enumerate() {
        let (setup, passed) = batched(&db, 8, nothing);
        let world = setup
            .handler(move |mut call: Call<D>| async move {
                call.append().await;
                if call.run == 1 && call.delivery.sequence() == Some(3) {
                    (D::faults()[index].spoil)(call.tx).await;
                }
            })
            .start()
            .await;
        let account = format!("acct_{index}");
        park(&world, &account, 6).await;
        world.send(&numbered(&account, 1)).await.is(200, "applied");
        drained(&world, &account, 6).await;
        let again = usize::from(fault.then != Then::Applied);
        let runs = world.probe.runs(numbered(&account, 2).id()) - 1;
        let committed = usize::from(fault.then == Then::FailedThenDuplicate);
        assert_eq!(runs, again - committed, "{}", fault.name);
        assert_eq!(passed.of("store.claim_batch"), 1, "{}", fault.name);
        assert_eq!(passed.of("store.postpone"), 0, "{}", fault.name);
        eventually("no handler runs", async || world.probe.running() == 0).await;
        world.pool_is_whole().await;
        world.stop().await;
    }
}

/// §4.4, §5.1, §9: what comes behind a COMMIT of a handler's own would be committed statement by statement.
async fn nothing_is_marked_behind_a_member_that_has_ended_the_transaction<D: TestDb>(db: D) {
    let (setup, _) = batched(&db, 8, nothing);
    let world = setup
        .handler(|mut call: Call<D>| async move {
            match (call.delivery.sequence(), call.run) {
                (Some(3), 1) => {
                    call.append().await;
                    let _ = D::execute(&mut call.tx, "COMMIT").await;
                    StatusCode::OK
                }
                (Some(4), 1) => StatusCode::SERVICE_UNAVAILABLE,
                _ => {
                    call.append().await;
                    StatusCode::OK
                }
            }
        })
        .start()
        .await;
    park(&world, "acct", 6).await;
    world.send(&numbered("acct", 1)).await.is(200, "applied");
    drained(&world, "acct", 6).await;
    assert_eq!(world.in_state(1).await, 6);
}
