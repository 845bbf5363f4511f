//! §2.4: what this process remembers, and when it must forget.

use crate::db::TestDb;
use crate::kit::{Call, Event, World};

suite![
    the_memory_is_emptied_when_a_connection_breaks,
    only_commits_that_were_seen_to_succeed_are_remembered,
    what_another_process_has_applied_is_looked_up_each_time,
    the_memory_knows_other_content,
    the_memory_is_bounded_and_what_it_forgot_is_still_a_duplicate,
];

/// Whether the answer to a duplicate came from memory: then its row can be gone and it is a duplicate all the same.
async fn is_remembered<D: TestDb>(world: &World<D>, event: &Event) -> bool {
    let before = world.acquired();
    // The worker may take a connection meanwhile: the duplicate itself takes one each time or never.
    for _ in 0..5 {
        let before = world.acquired();
        world.send(event).await.is_duplicate();
        if world.acquired() == before {
            return true;
        }
    }
    assert!(world.acquired() >= before + 5);
    false
}

/// §2.4: "emptied when any pooled connection breaks": the commit before it may be lost with it.
async fn the_memory_is_emptied_when_a_connection_breaks<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .remembering()
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            if call.delivery.event_id().starts_with("evt_breaks") {
                D::execute(&mut call.tx, "ROLLBACK").await.unwrap();
            }
        })
        .start()
        .await;
    let event = Event::new("evt_1");
    world.send(&event).await.is(200, "applied");
    assert!(is_remembered(&world, &event).await);
    // The statistics may take a connection at the same moment, once.
    for n in 0..5 {
        let breaks = Event::new(&format!("evt_breaks_{n}"));
        world.send(&breaks).await.is(500, "failed");
        let before = world.acquired();
        world.send(&event).await.is_duplicate();
        assert!(
            world.acquired() > before,
            "answered from a memory that should be empty"
        );
    }
}

/// §2.4: neither failures, nor verdicts, nor what is parked.
async fn only_commits_that_were_seen_to_succeed_are_remembered<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .answers(|call| match (call.run, call.delivery.event_id()) {
            (1, "evt_503") => 503,
            (1, "evt_422") => 422,
            _ => 0,
        })
        .start()
        .await;
    for (id, status) in [("evt_503", 503), ("evt_422", 422)] {
        assert_eq!(world.send(&Event::new(id)).await.status, status);
        world.send(&Event::new(id)).await.is_applied();
    }
    world
        .send(&Event::new("evt_2").of("acct", 2))
        .await
        .is_parked(1);
    world
        .send(&Event::new("evt_2").of("acct", 2))
        .await
        .is_parked(1);
    assert_eq!(world.applied().await, ["evt_503", "evt_422"]);
}

/// §2.4: a row that says applied is no commit that this process has seen succeed: whoever committed it may have seen it lost
/// since. Whether the duplicate was found by a look or by its own transaction.
async fn what_another_process_has_applied_is_looked_up_each_time<D: TestDb>(db: D) {
    let start = || World::<D>::over(&db).remembering().start();
    let (first, second) = (start().await, start().await);
    for n in 0..4 {
        let event = Event::new(&format!("evt_{n}"));
        first.send(&event).await.is_applied();
        assert!(is_remembered(&first, &event).await);
        assert!(!is_remembered(&second, &event).await);
        // One of its own, after which it does not look for the next.
        let own = Event::new(&format!("evt_own_{n}"));
        second.send(&own).await.is_applied();
        assert!(is_remembered(&second, &own).await);
    }
}

/// §2.4, §4.12: the fingerprint is part of what is remembered.
async fn the_memory_knows_other_content<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world
        .send(&Event::new("evt_1").amount(1))
        .await
        .is_applied();
    world
        .send(&Event::new("evt_1").amount(2))
        .await
        .is(422, "rejected");
    world
        .send(&Event::new("evt_1").amount(1))
        .await
        .is_duplicate();
}

/// §2.4
async fn the_memory_is_bounded_and_what_it_forgot_is_still_a_duplicate<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .inbox(|inbox| inbox.remembered(4))
        .start()
        .await;
    for n in 0..12 {
        world
            .send(&Event::new(&format!("evt_{n}")))
            .await
            .is_applied();
    }
    let before = world.acquired();
    world.send(&Event::new("evt_0")).await.is_duplicate();
    assert!(
        world.acquired() > before,
        "12 are remembered where 4 were allowed"
    );
    for n in 0..12 {
        world
            .send(&Event::new(&format!("evt_{n}")))
            .await
            .is_duplicate();
    }
}
