//! §4.5: clients that disconnect at any await point. axum drops the response's future then.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use tower::ServiceExt;

use crate::db::TestDb;
use crate::kit::{Call, Event, Feed, Gate, Reply, World, eventually, http, now, numbered, seeded};

suite![
    clients_that_disconnect_at_random_instants_lose_nothing_and_leave_the_pool_whole,
    a_client_that_disconnects_while_the_handler_runs_changes_nothing,
    a_client_that_disconnects_while_it_waits_in_a_queue_holds_up_nobody,
    a_client_that_disconnects_in_the_middle_of_its_body_leaves_nothing,
];

/// When a client goes.
#[derive(Clone, Copy, Debug)]
enum Gone {
    /// After so many looks at the answer's future.
    Polls(usize),
    After(Duration),
    Never,
}

/// Sends, and disconnects. The answer, if it came before.
async fn send<D: TestDb>(world: &World<D>, event: &Event, gone: Gone) -> Option<Reply> {
    let mut answer = Box::pin(world.app.clone().oneshot(world.request(event)));
    let answer = match gone {
        Gone::Never => Some(answer.await),
        Gone::After(time) => tokio::time::timeout(time, answer.as_mut()).await.ok(),
        Gone::Polls(mut left) => {
            poll_fn(|context| {
                if left == 0 {
                    return Poll::Ready(None);
                }
                left -= 1;
                answer.as_mut().poll(context).map(Some)
            })
            .await
        }
    };
    match answer {
        Some(answer) => Some(Reply::read(answer.unwrap_or_else(|never| match never {})).await),
        None => None,
    }
}

/// §4.5, issue 3: "250 clients that disconnect at random instants leave the pool whole".
async fn clients_that_disconnect_at_random_instants_lose_nothing_and_leave_the_pool_whole<
    D: TestDb,
>(
    db: D,
) {
    let mut random = seeded("disconnects");
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            tokio::task::yield_now().await;
            D::execute(&mut call.tx, "INSERT INTO mark (m) VALUES (0)")
                .await
                .unwrap();
        })
        .start()
        .await;
    let mut traffic: Vec<_> = (0..150).map(|n| Event::new(&format!("evt_{n}"))).collect();
    for account in ["a", "b", "c", "d"] {
        traffic.extend((1..=25).map(|n| numbered(account, n)));
    }
    random.shuffle(&mut traffic);
    let clients: Vec<_> = traffic
        .iter()
        .map(|event| {
            let gone = match random.u8(..10) {
                0..4 => Gone::Polls(random.usize(..4)),
                4..9 => Gone::After(Duration::from_micros(random.u64(..4_000))),
                _ => Gone::Never,
            };
            let (world, event) = (world.clone(), event.clone());
            // They do not all come at once, so that they go in every state of the others.
            let start = Duration::from_micros(random.u64(..20_000));
            tokio::spawn(async move {
                tokio::time::sleep(start).await;
                let reply = send(&world, &event, gone).await;
                reply
                    .filter(|reply| reply.outcome() == "applied")
                    .map(|_| event.id().to_owned())
            })
        })
        .collect();
    let mut acknowledged = Vec::new();
    for client in clients {
        acknowledged.extend(client.await.unwrap());
    }
    eventually("nothing runs any more", async || world.probe.running() == 0).await;
    let applied = world.applied().await;
    for id in &acknowledged {
        assert_eq!(
            applied.iter().filter(|line| *line == id).count(),
            1,
            "{id} was acknowledged"
        );
    }
    world.pool_is_whole().await;
    // The producer, which saw no answer, sends all of them again.
    for event in &traffic {
        eventually("it is taken", async || {
            let reply = world.send(event).await;
            // Who waited for a batch of the worker's that the database undid is told so (§4.8: two batches may meet in a
            // deadlock), and sends it once more.
            let undone = reply.status == 503 && reply.outcome() == "failed";
            assert!(
                undone || matches!(reply.outcome(), "applied" | "duplicate" | "parked"),
                "{reply:?}"
            );
            !undone
        })
        .await;
    }
    eventually("all are applied", async || {
        world.ledger().await.len() == 250
    })
    .await;
    let mut applied = world.applied().await;
    applied.sort();
    applied.dedup();
    assert_eq!(applied.len(), 250);
    for account in ["a", "b", "c", "d"] {
        assert_eq!(world.sequences(account).await, (1..=25).collect::<Vec<_>>());
    }
    world.pool_is_whole().await;
}

/// §4.5: the delivery is a task of its own.
async fn a_client_that_disconnects_while_the_handler_runs_changes_nothing<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let world = World::<D>::over(&db)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                gate.pass().await;
                call.append().await;
            }
        })
        .start()
        .await;
    let client = world.spawn(&Event::new("evt_1"));
    gate.reached_by(1).await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    gate.open();
    eventually("it is applied all the same", async || {
        world.in_state(1).await == 1
    })
    .await;
    assert_eq!(world.applied().await, ["evt_1", "evt_1"]);
    world.send(&Event::new("evt_1")).await.is_duplicate();
    assert_eq!(world.probe.runs("evt_1"), 1);
    world.pool_is_whole().await;
}

/// §2.5, §4.5
async fn a_client_that_disconnects_while_it_waits_in_a_queue_holds_up_nobody<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let world = World::<D>::over(&db)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                gate.pass().await;
                http::StatusCode::NO_CONTENT
            }
        })
        .start()
        .await;
    let first = world.spawn(&numbered("acct", 1));
    gate.reached_by(1).await;
    // Copies of the first, and events that wait for the stream's turn.
    let waiting: Vec<_> = (0..10)
        .flat_map(|n| {
            [
                world.spawn(&numbered("acct", 1)),
                world.spawn(&numbered("acct", n + 2)),
            ]
        })
        .collect();
    eventually("they have looked what is known", async || {
        world.acquired() >= 10
    })
    .await;
    for client in waiting {
        client.abort();
    }
    gate.open();
    first.await.unwrap().is_applied();
    for n in 2..=11 {
        let reply = world.send(&numbered("acct", n)).await;
        assert!(
            matches!(reply.outcome(), "applied" | "duplicate"),
            "{reply:?}"
        );
    }
    eventually("all are applied", async || {
        world.sequences("acct").await.len() == 11
    })
    .await;
    assert_eq!(world.sequences("acct").await, (1..=11).collect::<Vec<_>>());
    world.pool_is_whole().await;
}

/// §2.1, §4.5: and its share of the bodies' budget is free again.
async fn a_client_that_disconnects_in_the_middle_of_its_body_leaves_nothing<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.body_limit(1_000))
        .inbox(|inbox| inbox.body_budget(1_000))
        .start()
        .await;
    let event = Event::new("evt_1").with("filler", "x".repeat(700));
    for _ in 0..5 {
        let (feed, body) = Feed::new();
        feed.send(event.body().slice(..700)).unwrap();
        let request = http(&[&world.secret()], now(), event.body()).map(|()| Body::new(body));
        let mut answer = pin!(world.app.clone().oneshot(request));
        // Polled once, it holds the first part and waits for the second.
        poll_fn(|context| {
            assert!(answer.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    }
    world.send(&event).await.is_applied();
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 1);
}
