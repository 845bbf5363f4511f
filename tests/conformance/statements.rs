//! §2.2, §2.4: what reaches the database. Two counts together: statements on the inbox's tables, and connections that
//! were taken out of its pool, which no statement does without.

use axum::body::Body;
use bytes::Bytes;

use crate::db::TestDb;
use crate::kit::watch::Watch;
use crate::kit::{Event, World, eventually, http, now, numbered};

suite![
    no_statement_is_caused_before_the_signature_is_verified,
    no_statement_is_caused_by_what_is_no_event,
    a_known_duplicate_costs_no_statement_where_this_process_saw_the_commit,
    a_known_duplicate_costs_one_statement_otherwise,
    a_redelivery_of_what_is_parked_costs_one_statement,
    the_memory_can_be_turned_off,
];

/// Statements and connections.
type Cost = (usize, usize);

/// Of the same work.
const TRIES: usize = 10;

/// What `work` costs. The worker looks at the database from time to time, so the least of a few tries counts: what a
/// delivery itself causes is in each of them.
async fn cost<D: TestDb>(world: &World<D>, mut work: impl AsyncFnMut()) -> Cost {
    let watch = Watch::statements(world.db.prefix());
    // What a start asks the database for is soon over.
    let mut quiet = 0;
    eventually("nobody else asks the database", async || {
        quiet = if watch.take().is_empty() {
            quiet + 1
        } else {
            0
        };
        quiet >= 20
    })
    .await;
    let mut least = (usize::MAX, usize::MAX);
    for _ in 0..TRIES {
        watch.take();
        let before = world.acquired();
        work().await;
        let cost = (watch.take().len(), world.acquired() - before);
        least = (least.0.min(cost.0), least.1.min(cost.1));
    }
    least
}

/// §2.2; and the same counts are above 0 for a verified delivery, so that this test can fail.
async fn no_statement_is_caused_before_the_signature_is_verified<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.body_limit(1_000))
        .start()
        .await;
    let forged = async || {
        for _ in 0..20 {
            let body = numbered("acct", 1).body();
            let forged = http(&["wrong"], now(), body.clone()).map(|()| Body::from(body));
            world.post(forged).await.is(401, "rejected");
            let mut unsigned = world.request(&numbered("acct", 1));
            unsigned.headers_mut().remove("x-kudos-signature");
            world.post(unsigned).await.is(401, "rejected");
            let mut other = world.request(&numbered("acct", 1));
            *other.method_mut() = http::Method::GET;
            world.post(other).await.is(405, "rejected");
            world
                .send(&Event::new("evt").with("filler", "x".repeat(2_000)))
                .await
                .is(413, "rejected");
        }
    };
    assert_eq!(cost(&world, forged).await, (0, 0));
    let mut n = 0;
    let verified = async || {
        n += 1;
        world.send(&numbered("acct", n)).await.is_applied();
    };
    let (statements, connections) = cost(&world, verified).await;
    assert!(
        statements >= 1 && connections >= 1,
        "{statements} statements, {connections} connections"
    );
}

/// §2.3: verified, but no event.
async fn no_statement_is_caused_by_what_is_no_event<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let work = async || {
        world
            .post(world.signed(Bytes::from_static(b"{}")))
            .await
            .is(400, "rejected");
    };
    assert_eq!(cost(&world, work).await, (0, 0));
}

/// §2.4
async fn a_known_duplicate_costs_no_statement_where_this_process_saw_the_commit<D: TestDb>(db: D) {
    let world = World::<D>::over(&db).remembering().start().await;
    let event = numbered("acct", 1);
    world.send(&event).await.is_applied();
    let again = async || {
        world.send(&event).await.is_duplicate();
    };
    assert_eq!(cost(&world, again).await, (0, 0));
}

/// §2.4: "with at most one statement, outside any transaction". Another process saw the commit.
async fn a_known_duplicate_costs_one_statement_otherwise<D: TestDb>(db: D) {
    let other = World::<D>::start(&db).await;
    let events: Vec<_> = (1..=TRIES as u64).map(|n| numbered("acct", n)).collect();
    for event in &events {
        other.send(event).await.is_applied();
    }
    other.stop().await;
    let world = World::<D>::start(&db).await;
    let mut next = events.iter();
    let again = async || {
        world.send(next.next().unwrap()).await.is_duplicate();
    };
    assert_eq!(cost(&world, again).await.0, 1);
}

/// §2.4, §3
async fn a_redelivery_of_what_is_parked_costs_one_statement<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let event = numbered("acct", 2);
    world.send(&event).await.is_parked(1);
    // The first event of the stream has no cursor yet, and its redelivery needs a look under the lock.
    world
        .send(&numbered("acct", 1).with("event_id", "evt_first"))
        .await;
    world.send(&numbered("acct", 5)).await;
    let again = async || {
        world.send(&numbered("acct", 5)).await;
    };
    assert_eq!(cost(&world, again).await.0, 1);
}

/// §2.4
async fn the_memory_can_be_turned_off<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .inbox(|inbox| inbox.remembered(0))
        .start()
        .await;
    let event = Event::new("evt_1");
    world.send(&event).await.is_applied();
    let again = async || {
        world.send(&event).await.is_duplicate();
    };
    assert_eq!(cost(&world, again).await.0, 1);
}
