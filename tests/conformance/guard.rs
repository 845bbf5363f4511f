//! The second guard: versions of the handlers' own entities, moved in the handler's transaction (`Tx::guard`).

use http::StatusCode;
use tower_inbox::Guarded;

use crate::db::TestDb;
use crate::kit::{Call, Event, Setup, World, eventually, numbered};

suite![
    a_duplicate_that_slips_past_the_inbox_is_not_applied_twice,
    a_handler_that_fails_leaves_the_number_as_it_was,
    of_two_that_guard_one_number_at_the_same_time_one_passes,
    an_expected_version_passes_once,
    a_refusal_leaves_the_transaction_usable,
    names_are_told_apart_byte_for_byte_and_bounded,
];

/// Writes its line if its number, in `data.amount`, has not passed for its account.
fn guarded<D: TestDb>(db: &D) -> Setup<D> {
    World::<D>::over(db).handler(|mut call: Call<D>| async move {
        let entry = call.entry();
        let guarded = call.tx.guard("account", entry.amount).await;
        let Ok(guarded) = guarded else {
            return StatusCode::INTERNAL_SERVER_ERROR;
        };
        if guarded.passed() {
            call.append().await;
        }
        StatusCode::NO_CONTENT
    })
}

/// (guard): "mutations apply only if a version compare-and-swap passes, so a duplicate slipping past dedup still cannot
/// double-apply" (the guaranteed-consistency seed).
async fn a_duplicate_that_slips_past_the_inbox_is_not_applied_twice<D: TestDb>(db: D) {
    let world = guarded(&db)
        .inbox(|builder| builder.remembered(0))
        .start()
        .await;
    for n in 1..=3 {
        let event = numbered("acct", n).amount(i64::try_from(n).expect("small"));
        world.send(&event).await.is_applied();
    }
    // Whatever may have lost the inbox's own memory of it.
    world.execute("DELETE FROM {p}event").await;
    world
        .execute("UPDATE {p}cursor SET next_sequence = 1")
        .await;
    for n in 1..=4 {
        let event = numbered("acct", n).amount(i64::try_from(n).expect("small"));
        world.send(&event).await.is_applied();
        assert_eq!(world.probe.runs(event.id()), if n < 4 { 2 } else { 1 });
    }
    assert_eq!(world.sequences("acct").await, [1, 2, 3, 4]);
}

/// (guard)
async fn a_handler_that_fails_leaves_the_number_as_it_was<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            let number = call.tx.guard("account", 7).await;
            assert_eq!(number.expect("the database answers"), Guarded::Passed);
            let version = call.tx.guard_expecting("other", 0).await;
            assert_eq!(version.expect("the database answers"), Guarded::Passed);
            call.append().await;
            match call.run {
                1 => StatusCode::SERVICE_UNAVAILABLE,
                2 => StatusCode::UNPROCESSABLE_ENTITY,
                _ => StatusCode::NO_CONTENT,
            }
        })
        .start()
        .await;
    world.send(&Event::new("a")).await.is(503, "failed");
    world.send(&Event::new("a")).await.is(422, "rejected");
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}guard").await, 0);
    world.send(&Event::new("a")).await.is_applied();
    assert_eq!(world.ledger().await.len(), 1);
}

/// (guard). Two events of two receivers, and nothing else that would keep them apart.
async fn of_two_that_guard_one_number_at_the_same_time_one_passes<D: TestDb>(db: D) {
    let worlds = [guarded(&db).start().await, guarded(&db).start().await];
    for number in 1..=5 {
        let sent: Vec<_> = (0..8)
            .map(|n| {
                let event = Event::new(&format!("evt_{number}_{n}")).amount(number);
                worlds[n % 2].spawn(&event)
            })
            .collect();
        for (n, reply) in sent.into_iter().enumerate() {
            // Contention may end in a failure, which the producer makes up for (§4.7).
            if !reply.await.expect("an answer").outcome().eq("applied") {
                let event = Event::new(&format!("evt_{number}_{n}")).amount(number);
                eventually("it is applied", async || {
                    worlds[0].send(&event).await.status < 300
                })
                .await;
            }
        }
    }
    let amounts: Vec<_> = worlds[0]
        .ledger()
        .await
        .iter()
        .map(|entry| entry.amount)
        .collect();
    assert_eq!(amounts, [1, 2, 3, 4, 5]);
    assert_eq!(worlds[0].in_state(1).await, 40);
}

/// (guard)
async fn an_expected_version_passes_once<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            let expected = call.entry().amount;
            let guarded = call.tx.guard_expecting("account", expected).await;
            if guarded.expect("the database answers").passed() {
                call.append().await;
            }
        })
        .start()
        .await;
    for (n, expected) in [1, 0, 0, 2, 1, 1, 2, 0].into_iter().enumerate() {
        let event = Event::new(&format!("evt_{n}")).amount(expected);
        world.send(&event).await.is(200, "applied");
    }
    assert_eq!(world.applied().await, ["evt_1", "evt_4", "evt_6"]);
    assert_eq!(world.number("SELECT version FROM {p}guard").await, 3);
}

/// (guard). PostgreSQL would abort it after a violation that was caught.
async fn a_refusal_leaves_the_transaction_usable<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            let mut outcomes = Vec::new();
            for number in [5, 5, 4, 6] {
                outcomes.push(call.tx.guard("account", number).await.expect("answers"));
            }
            for expected in [0, 0, 1] {
                let guarded = call.tx.guard_expecting("other", expected).await;
                outcomes.push(guarded.expect("the database answers"));
            }
            call.append().await;
            use Guarded::{Passed, Refused};
            assert_eq!(
                outcomes,
                [Passed, Refused, Refused, Passed, Passed, Refused, Passed]
            );
        })
        .start()
        .await;
    world.send(&Event::new("a")).await.is(200, "applied");
    assert_eq!(world.applied().await, ["a"]);
}

/// §4.9; and from the lowest number on.
async fn names_are_told_apart_byte_for_byte_and_bounded<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            let longest = "e".repeat(255);
            for entity in ["acct", "Acct", "acct ", "acct\u{e9}", &longest] {
                for number in [-3, 0, i64::MAX] {
                    let guarded = call.tx.guard(entity, number).await.expect("answers");
                    assert!(guarded.passed(), "{entity} {number}");
                }
                let again = call.tx.guard(entity, i64::MAX).await.expect("answers");
                assert_eq!(again, Guarded::Refused, "{entity}");
            }
            for entity in ["", &format!("{longest}e")] {
                let refused = call.tx.guard(entity, 1).await;
                assert!(
                    matches!(refused, Err(sqlx::Error::Encode(_))),
                    "{refused:?}"
                );
            }
            call.append().await;
        })
        .start()
        .await;
    world.send(&Event::new("a")).await.is(200, "applied");
}
