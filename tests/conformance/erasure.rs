//! Erasure (issue 6): what was sent and answered goes, and the keys stay; and sources that their owner deregisters (§3).

use std::time::Duration;

use tower_inbox::operator::{Erased, Erasure};

use crate::db::TestDb;
use crate::kit::{Event, Setup, TestClock, World, numbered};

suite![
    what_is_erased_is_gone_and_its_duplicates_are_known,
    what_waits_is_left_alone_and_counted,
    erasure_goes_by_correlation_and_by_age_too,
    a_source_is_deregistered_and_armed_again_with_both_in_the_audit_table,
];

const WHY: &str = "a data-protection request";
/// Of whatever is stored, in bytes.
const STORED: &str = "SELECT COALESCE(SUM(LENGTH(headers) + LENGTH(body)), 0) FROM {p}pending";

fn setup<D: TestDb>(db: &D) -> Setup<D> {
    World::<D>::over(db)
        .source(|source| source.store_answers(true))
        .answers(|call| match call.delivery.event_id() {
            id if id.contains("refused") => 422,
            _ => 0,
        })
}

/// (erasure)
async fn what_is_erased_is_gone_and_its_duplicates_are_known<D: TestDb>(db: D) {
    let world = setup(&db).start().await;
    let ada = world.inbox.operator("ada").expect("a name");
    let (applied, refused) = (Event::new("evt_1"), Event::new("evt_refused"));
    world.send(&applied).await.is(204, "applied");
    assert_eq!(world.send(&refused).await.status, 422);
    assert!(world.number(STORED).await > 0);
    for (event, letters, answers) in [(&applied, 0, 1), (&refused, 1, 0)] {
        let which = Erasure::Event(event.id());
        let erased = ada.erase("crm", which, WHY).await.expect("it is");
        assert_eq!((erased.letters, erased.answers), (letters, answers));
        // Again: there is nothing left.
        let again = ada.erase("crm", which, WHY).await.expect("it is");
        assert_eq!(again, Erased::default());
    }
    assert_eq!(world.number(STORED).await, 0);
    let audited = "SELECT COUNT(*) FROM {p}audit WHERE action = 'erase' AND actor = 'ada'";
    assert_eq!(world.number(audited).await, 2);
    // Nor from memory.
    world.send(&applied).await.is_duplicate();
    // Another process, which remembers no answer.
    let other = setup(&db).start().await;
    other.send(&applied).await.is_duplicate();
    assert_eq!(other.probe.runs("evt_1"), 0);
    // Its producer may send it again; nobody can hand over what is not there.
    let replayed = ada.replay("crm", "evt_refused", WHY).await;
    assert!(replayed.is_err(), "{replayed:?}");
    assert_eq!(other.send(&refused).await.status, 422);
}

/// (erasure)
async fn what_waits_is_left_alone_and_counted<D: TestDb>(db: D) {
    let world = setup(&db).start().await;
    let ada = world.inbox.operator("ada").expect("a name");
    world.send(&numbered("acct", 2)).await.is_parked(1);
    let which = Erasure::Correlation("acct");
    let erased = ada.erase("crm", which, WHY).await.expect("it is");
    assert_eq!((erased.letters, erased.waiting), (0, 1));
    assert!(world.number(STORED).await > 0);
    let id = numbered("acct", 2);
    ada.discard("crm", id.id(), WHY).await.expect("it is");
    let erased = ada.erase("crm", which, WHY).await.expect("it is");
    assert_eq!(erased.waiting, 0);
    assert_eq!(world.number(STORED).await, 0);
}

/// (erasure)
async fn erasure_goes_by_correlation_and_by_age_too<D: TestDb>(db: D) {
    let clock = TestClock::new();
    let read = clock.clone();
    let world = setup(&db)
        .inbox(move |inbox| inbox.clock(read))
        .start()
        .await;
    let ada = world.inbox.operator("ada").expect("a name");
    for n in 1..=3 {
        world.send(&numbered("acct", n)).await.is(204, "applied");
    }
    world.send(&numbered("other", 1)).await.is(204, "applied");
    let erased = ada
        .erase("crm", Erasure::Correlation("acct"), WHY)
        .await
        .expect("it is");
    assert_eq!((erased.answers, erased.letters), (3, 0));
    clock.advance(Duration::from_secs(60));
    let young = tower_inbox::clock::Clock::now(&clock);
    world.send(&numbered("other", 2)).await.is(204, "applied");
    let erased = ada
        .erase("crm", Erasure::Before(young), WHY)
        .await
        .expect("it is");
    assert_eq!(erased.answers, 1);
    let kept = "SELECT COUNT(*) FROM {p}answer WHERE body IS NOT NULL";
    assert_eq!(world.number(kept).await, 1);
}

/// §3, §5.15
async fn a_source_is_deregistered_and_armed_again_with_both_in_the_audit_table<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let ada = world.inbox.operator("ada").expect("a name");
    for _ in 0..2 {
        ada.deregister("crm", "we move").await.expect("it is");
        world
            .send(&Event::new("evt_1"))
            .await
            .is_problem_about(410, "rejected", "deregistered");
    }
    assert!(world.applied().await.is_empty());
    ada.rearm("crm", "we have moved").await.expect("it is");
    world.send(&Event::new("evt_1")).await.is_applied();
    let audited = |action: &str| {
        format!("SELECT COUNT(*) FROM {{p}}audit WHERE action = '{action}' AND actor = 'ada'")
    };
    assert_eq!(world.number(&audited("deregister")).await, 2);
    assert_eq!(world.number(&audited("rearm")).await, 1);
    assert!(
        ada.deregister("crm", "").await.is_err(),
        "a reason is demanded"
    );
}
