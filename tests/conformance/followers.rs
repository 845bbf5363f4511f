//! §4.8: what those get that waited behind another delivery of their event.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, StatusCode};
use tokio::task::JoinHandle;

use crate::db::TestDb;
use crate::kit::{Call, Event, Feed, Gate, Reply, Setup, World, eventually, numbered, within};

suite![
    followers_of_a_committed_leader_get_duplicates,
    followers_of_a_parked_leader_get_parked,
    followers_of_a_rejected_leader_get_its_4xx_without_another_run,
    followers_of_a_redirected_leader_get_503_without_another_run,
    followers_of_a_failed_leader_get_503_without_another_run,
    followers_of_a_panicked_leader_get_503_without_another_run,
    followers_do_not_outwait_their_budget,
];

/// A handler that waits at the gate in its first run, and then answers with `status` or panics.
pub(crate) fn held<D: TestDb>(db: &D, gate: &Gate, status: u16) -> Setup<D> {
    let gate = gate.clone();
    World::<D>::over(db).handler(move |mut call: Call<D>| {
        let gate = gate.clone();
        async move {
            call.append().await;
            if call.run == 1 {
                gate.pass().await;
                assert!(status > 0, "this panic is part of the test");
                return StatusCode::from_u16(status).unwrap();
            }
            StatusCode::NO_CONTENT
        }
    })
}

const FOLLOWERS: usize = 20;

/// Copies whose bodies have been read to their end: what is left for them is to join the leader, which takes no wait.
pub(crate) async fn followers<D: TestDb>(
    world: &World<D>,
    event: &Event,
) -> Vec<JoinHandle<Reply>> {
    followers_of(world, &event.body(), || world.request(event)).await
}

/// The same with any signed requests over this body.
pub(crate) async fn followers_of<D: TestDb>(
    world: &World<D>,
    body: &Bytes,
    request: impl Fn() -> Request<Body>,
) -> Vec<JoinHandle<Reply>> {
    let read = Arc::new(AtomicUsize::new(0));
    let copies = (0..FOLLOWERS)
        .map(|_| {
            let body = Feed::whole(body.clone(), &read);
            let request = request().map(|_| Body::new(body));
            let world = world.clone();
            tokio::spawn(async move { world.post(request).await })
        })
        .collect();
    eventually("the copies are read", async || {
        read.load(Ordering::Relaxed) >= FOLLOWERS
    })
    .await;
    // Deliveries that begin after them are answered: so they had their turn on the runtime's threads.
    for _ in 0..50 {
        // Refused for want of an id, or of the producer's signature, so that no statement is needed.
        let (world, sentinel) = (world.clone(), world.signed("{}".into()));
        let answered = tokio::spawn(async move { world.post(sentinel).await });
        let refused = answered.await.unwrap();
        assert!(matches!(refused.status, 400 | 401), "{refused:?}");
    }
    copies
}

async fn lead_and_follow<D: TestDb>(
    world: &World<D>,
    gate: &Gate,
    event: &Event,
    leader: (u16, &str),
    follower: (u16, &str),
) {
    let lead = world.spawn(event);
    gate.reached_by(1).await;
    let copies = followers(world, event).await;
    assert!(
        copies.iter().all(|copy| !copy.is_finished()),
        "a follower did not wait"
    );
    gate.open();
    lead.await.unwrap().is(leader.0, leader.1);
    for copy in copies {
        copy.await.unwrap().is(follower.0, follower.1);
    }
    assert_eq!(
        world.probe.runs(event.id()),
        1,
        "a follower ran the handler"
    );
}

/// §4.8: "committed: duplicate"
async fn followers_of_a_committed_leader_get_duplicates<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let world = held(&db, &gate, 201).start().await;
    lead_and_follow(
        &world,
        &gate,
        &numbered("acct", 1),
        (201, "applied"),
        (200, "duplicate"),
    )
    .await;
    assert_eq!(world.applied().await, ["evt_acct_1"]);
}

/// §4.8: "parked: parked". The leader waits for the stream's turn, which another event has.
async fn followers_of_a_parked_leader_get_parked<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let world = held(&db, &gate, 204).start().await;
    let first = world.spawn(&numbered("acct", 1));
    gate.reached_by(1).await;
    let copies = followers(&world, &numbered("acct", 3)).await;
    assert!(
        copies.iter().all(|copy| !copy.is_finished()),
        "a copy did not wait for the stream's turn"
    );
    gate.open();
    first.await.unwrap().is_applied();
    for copy in copies {
        copy.await.unwrap().is_parked(2);
    }
    assert_eq!(world.in_state(2).await, 1);
}

/// §4.8: "its 4xx: that 4xx"
async fn followers_of_a_rejected_leader_get_its_4xx_without_another_run<D: TestDb>(db: D) {
    for (status, sent) in [(422, 422), (404, 404), (410, 422)] {
        let gate = Gate::shut();
        let world = held(&db, &gate, status).start().await;
        let event = Event::new(&format!("evt_{status}"));
        lead_and_follow(
            &world,
            &gate,
            &event,
            (sent, "rejected"),
            (sent, "rejected"),
        )
        .await;
        assert_eq!(
            world
                .number(&format!(
                    "SELECT COUNT(*) FROM {{p}}pending WHERE event_id = 'evt_{status}'"
                ))
                .await,
            1
        );
        // Who comes after it is a new attempt.
        world.send(&event).await.is_applied();
        world.stop().await;
    }
}

/// §4.8: "failed or unknown: 503, without running the handler again"; TRAPS: never answered as a duplicate.
async fn followers_of_a_failed_leader_get_503_without_another_run<D: TestDb>(db: D) {
    for status in [500, 503, 429] {
        let gate = Gate::shut();
        let world = held(&db, &gate, status).start().await;
        let event = Event::new(&format!("evt_{status}"));
        lead_and_follow(&world, &gate, &event, (status, "failed"), (503, "failed")).await;
        world.send(&event).await.is_applied();
        world.stop().await;
    }
}

/// §4.8
async fn followers_of_a_panicked_leader_get_503_without_another_run<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let world = held(&db, &gate, 0).start().await;
    let event = Event::new("evt_1");
    lead_and_follow(&world, &gate, &event, (500, "failed"), (503, "failed")).await;
    world.send(&event).await.is_applied();
    assert_eq!(world.applied().await, ["evt_1"]);
}

/// §3: "leader of the same event failed or took too long: 503".
async fn followers_do_not_outwait_their_budget<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let budget = Duration::from_millis(600);
    let world = held(&db, &gate, 204)
        .source(|source| source.budget(budget))
        .start()
        .await;
    let event = Event::new("evt_1");
    let leader = world.spawn(&event);
    gate.reached_by(1).await;
    let follower = within(budget + Duration::from_secs(2), world.send(&event)).await;
    follower.is_problem_about(503, "failed", "");
    leader.await.unwrap().is(503, "failed");
    gate.open();
    world.send(&event).await.is_applied();
}

/// §3: "Never a 3xx of the middleware's own."
async fn followers_of_a_redirected_leader_get_503_without_another_run<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let world = held(&db, &gate, 302).start().await;
    lead_and_follow(
        &world,
        &gate,
        &Event::new("evt_1"),
        (302, "rejected"),
        (503, "failed"),
    )
    .await;
}
