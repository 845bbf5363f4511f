//! §4.6: whatever holds a delivery up in the database, its producer gets an answer in time, and the retry finds the
//! event's lock gone. The numbers are those of issue 3: a budget of 2 s, 503 within 4 s, the retry within 3 s.

use std::time::Duration;

use crate::db::TestDb;
use crate::kit::{Call, Event, Gate, Setup, World, eventually, numbered, within};

suite![
    a_handler_asleep_in_the_database_gets_503_in_time_and_the_retry_is_served,
    a_handler_burning_cpu_in_the_database_gets_503_in_time_and_the_retry_is_served,
    a_handler_that_waits_for_a_row_of_somebody_else_gets_503_in_time,
    a_delivery_that_waits_for_an_event_or_a_stream_of_another_receiver_gets_503_in_time,
    a_drained_event_over_its_budget_frees_its_stream,
    a_receiver_that_is_frozen_inside_a_transaction_blocks_others_only_for_its_budget,
    a_purge_waits_for_no_delivery_and_holds_up_none,
];

const BUDGET: Duration = Duration::from_secs(2);
const IN_TIME: Duration = Duration::from_secs(4);
const SERVED: Duration = Duration::from_secs(3);

/// A handler that does its work and then, in the first run of an event, a statement.
fn stuck<D: TestDb>(db: &D, statement: &'static str) -> Setup<D> {
    World::<D>::over(db)
        .source(|source| source.budget(BUDGET))
        .handler(move |mut call: Call<D>| async move {
            call.append().await;
            if call.run == 1 {
                // An error that the limit makes of it is the handler's to pass on.
                return failed(D::execute(&mut call.tx, statement).await.is_err());
            }
            failed(false)
        })
}

fn failed(failed: bool) -> http::StatusCode {
    if failed {
        return http::StatusCode::SERVICE_UNAVAILABLE;
    }
    http::StatusCode::NO_CONTENT
}

async fn fails_in_time<D: TestDb>(world: &World<D>, event: &Event) {
    let reply = within(IN_TIME, world.send(event)).await;
    reply.is(503, "failed");
    assert!(world.ledger().await.is_empty());
}

async fn is_served<D: TestDb>(world: &World<D>, event: &Event) {
    within(SERVED, world.send(event)).await.is_applied();
    assert_eq!(world.applied().await, [event.id()]);
}

/// §4.6, issue 3
async fn a_handler_asleep_in_the_database_gets_503_in_time_and_the_retry_is_served<D: TestDb>(
    db: D,
) {
    // SQLite runs in this process and has no way to sleep.
    let Some(nap) = D::NAP else { return };
    let world = stuck(&db, nap).start().await;
    for event in [Event::new("evt_1"), numbered("acct", 1)] {
        fails_in_time(&world, &event).await;
        is_served(&world, &event).await;
        world.pool_is_whole().await;
        world.execute("DELETE FROM ledger").await;
    }
}

/// §4.6, issue 3
async fn a_handler_burning_cpu_in_the_database_gets_503_in_time_and_the_retry_is_served<
    D: TestDb,
>(
    db: D,
) {
    let world = World::<D>::over(&db)
        .source(|source| source.budget(BUDGET))
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            failed(call.run == 1 && D::burn(&mut call.tx).await.is_err())
        })
        .start()
        .await;
    let event = numbered("acct", 1);
    fails_in_time(&world, &event).await;
    is_served(&world, &event).await;
    world.pool_is_whole().await;
}

/// §4.6: a lock of the user's own tables, held by somebody who is no receiver.
async fn a_handler_that_waits_for_a_row_of_somebody_else_gets_503_in_time<D: TestDb>(db: D) {
    let take = "UPDATE taken SET times = times + 1 WHERE n = 1";
    let world = stuck(&db, take).start().await;
    let mut holder = world.eyes.acquire().await.unwrap();
    D::execute(&mut holder, D::HOLD_ROW).await.unwrap();
    let event = numbered("acct", 1);
    fails_in_time(&world, &event).await;
    // Its own locks are gone, whoever still holds the row; on SQLite there is but one lock.
    if D::SINGLE_WRITER {
        D::execute(&mut holder, "ROLLBACK").await.unwrap();
    }
    is_served(&world, &event).await;
    if !D::SINGLE_WRITER {
        D::execute(&mut holder, "ROLLBACK").await.unwrap();
    }
    drop(holder);
    world.pool_is_whole().await;
}

/// §4.6, §5.7: "a live redelivery … waits on the lock, then re-reads; 503 when its budget is spent".
async fn a_delivery_that_waits_for_an_event_or_a_stream_of_another_receiver_gets_503_in_time<
    D: TestDb,
>(
    db: D,
) {
    let gate = Gate::shut();
    let held = gate.clone();
    let slow = World::<D>::over(&db)
        .source(|source| source.budget(Duration::from_secs(25)))
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
    let others = [
        World::<D>::over(&db)
            .source(|source| source.budget(BUDGET))
            .start()
            .await,
        World::<D>::over(&db)
            .source(|source| source.budget(BUDGET))
            .start()
            .await,
    ];
    let at_work = slow.spawn(&numbered("acct", 1));
    gate.reached_by(1).await;
    // The same event, and the next one of its stream, each elsewhere: inside one receiver they would not get that far.
    let waiting = [
        others[0].spawn(&numbered("acct", 1)),
        others[1].spawn(&numbered("acct", 2)),
    ];
    let start = tokio::time::Instant::now();
    for reply in waiting {
        let reply = within(IN_TIME, reply).await.unwrap();
        // On SQLite the upkeep of the same receiver may be waiting for the lock before it: that is load.
        let load = D::SINGLE_WRITER && reply.status == 429;
        assert!(reply.status == 503 || load, "{reply:?}");
    }
    assert!(start.elapsed() < IN_TIME);
    let [world, _] = &others;
    gate.open();
    at_work.await.unwrap().is_applied();
    within(SERVED, world.send(&numbered("acct", 1)))
        .await
        .is_duplicate();
    within(SERVED, world.send(&numbered("acct", 2)))
        .await
        .is_applied();
    assert_eq!(world.sequences("acct").await, [1, 2]);
    world.pool_is_whole().await;
}

/// §4.6, §5.5: nobody waits for the answer; the next attempt finds the locks gone.
async fn a_drained_event_over_its_budget_frees_its_stream<D: TestDb>(db: D) {
    let Some(nap) = D::NAP else { return };
    let world = World::<D>::over(&db)
        .source(|source| {
            source
                .budget(Duration::from_secs(1))
                .backoff([Duration::from_millis(20)])
        })
        .handler(move |mut call: Call<D>| async move {
            call.append().await;
            if call.delivery.event_id() == "evt_acct_2" && call.run == 1 {
                let _ = D::execute(&mut call.tx, nap).await;
                // A handler that does not look at the error, nor at the time.
                std::future::pending::<()>().await;
            }
            http::StatusCode::NO_CONTENT
        })
        .start()
        .await;
    for n in [2, 3] {
        world.send(&numbered("acct", n)).await.is_parked(1);
    }
    world.send(&numbered("acct", 1)).await.is_applied();
    within(
        Duration::from_secs(8),
        eventually("all are applied", async || {
            world.sequences("acct").await.len() == 3
        }),
    )
    .await;
    assert_eq!(world.sequences("acct").await, [1, 2, 3]);
    assert_eq!(world.probe.runs("evt_acct_2"), 2);
    world.pool_is_whole().await;
}

/// §4.6, §9: "a receiver that is frozen or vanished is bounded by the same server-side settings". Everything of the
/// first receiver stands still, as under SIGSTOP: its one thread sleeps inside the handler.
async fn a_receiver_that_is_frozen_inside_a_transaction_blocks_others_only_for_its_budget<
    D: TestDb,
>(
    db: D,
) {
    // On SQLite nobody but the process itself can end its transaction: documented.
    if D::CONNECTION_ID.is_none() {
        return;
    }
    let event = numbered("acct", 1);
    let (inside, frozen) = tokio::sync::oneshot::channel();
    let inside = std::sync::Mutex::new(Some(inside));
    let (wake, woken) = std::sync::mpsc::channel::<()>();
    let woken = std::sync::Mutex::new(woken);
    let (theirs, their_event) = (db.clone(), event.clone());
    let receiver = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let woken = std::sync::Arc::new(woken);
            let inside = std::sync::Arc::new(inside);
            let world = World::<D>::over(&theirs)
                .source(|source| source.budget(BUDGET))
                .handler(move |mut call: Call<D>| {
                    let (woken, inside) = (woken.clone(), inside.clone());
                    async move {
                        call.append().await;
                        if let Some(inside) = inside.lock().unwrap().take() {
                            inside.send(()).unwrap();
                            // The thread, and not the task alone.
                            let _ = woken.lock().unwrap().recv_timeout(Duration::from_secs(60));
                        }
                        http::StatusCode::NO_CONTENT
                    }
                })
                .start()
                .await;
            world.send(&their_event).await
        })
    });
    let world = World::<D>::over(&db)
        .source(|source| source.budget(BUDGET))
        .start()
        .await;
    frozen.await.unwrap();
    let served = async {
        loop {
            let reply = world.send(&event).await;
            if reply.status != 503 {
                return reply;
            }
        }
    };
    // Its budget, and the margin of its idle limit, which MySQL counts in whole seconds.
    within(BUDGET + Duration::from_secs(4), served)
        .await
        .is_applied();
    wake.send(()).unwrap();
    let late = tokio::task::spawn_blocking(|| receiver.join().unwrap())
        .await
        .unwrap();
    assert!(matches!(late.status, 500 | 503), "{late:?}");
    assert_eq!(world.applied().await, [event.id()]);
    world.send(&event).await.is_duplicate();
    world.pool_is_whole().await;
}

/// §7.1: "purged in small batches that do not stall deliveries", nor are they stalled by them.
async fn a_purge_waits_for_no_delivery_and_holds_up_none<D: TestDb>(db: D) {
    // One writer at a time: a purge waits for its turn, as everybody does.
    if D::SINGLE_WRITER {
        return;
    }
    let gate = Gate::shut();
    let held = gate.clone();
    let world = World::<D>::over(&db)
        .source(|source| {
            source
                .retention(Duration::from_millis(300))
                .insecure_short_retention()
        })
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                if call.delivery.event_id() == "evt_held" {
                    gate.pass().await;
                }
                http::StatusCode::NO_CONTENT
            }
        })
        .start()
        .await;
    world.send(&Event::new("evt_before")).await.is_applied();
    let at_work = world.spawn(&Event::new("evt_held"));
    gate.reached_by(1).await;
    for n in 1..=40 {
        let event = Event::new(&format!("evt_{n}"));
        within(Duration::from_secs(1), world.send(&event))
            .await
            .is_applied();
        within(Duration::from_secs(1), world.send(&numbered("acct", n)))
            .await
            .is_applied();
    }
    // The one in flight has been there for longer than the retention, and holds its row all the time.
    within(
        Duration::from_secs(5),
        eventually("the others are purged", async || {
            world.in_state(1).await == 0
        }),
    )
    .await;
    assert!(!at_work.is_finished());
    gate.open();
    at_work.await.unwrap().is_applied();
    assert_eq!(world.ledger().await.len(), 82);
}
