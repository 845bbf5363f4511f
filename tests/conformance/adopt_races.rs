//! §5.2, §9: a stream begins while something arrives that is lower than all that has come, at every isolation level.

use std::sync::Arc;
use std::time::Duration;

use tower_inbox::{FailPoints, Source};

use crate::db::{Isolation, TestDb};
use crate::isolation::at;
use crate::kit::{Gate, TestClock, World, eventually, numbered};

suite![
    what_parks_under_the_lock_that_the_adoption_waits_for_is_where_the_stream_begins,
    what_waits_for_the_lock_while_a_stream_begins_is_before_its_start,
];

const ROUNDS: u64 = 4;

/// Two receivers, the fail point of this name a gate in both; the gate is opened anew for each round.
async fn receivers<D: TestDb>(
    db: &D,
    level: Isolation,
    clock: &TestClock,
    point: &'static str,
    gate: &Arc<std::sync::Mutex<Gate>>,
) -> [World<D>; 2] {
    let receiver = async || {
        let (clock, gate) = (clock.clone(), Arc::clone(gate));
        at(db, level, 4)
            .await
            .source(|source| source.adopt_first_sequence(Source::SETTLE))
            .inbox(move |inbox| {
                let points = FailPoints::new(move |name| {
                    let gate = (name == point).then(|| gate.lock().unwrap().clone());
                    async move {
                        if let Some(gate) = gate {
                            gate.pass().await;
                        }
                        Ok(())
                    }
                });
                inbox
                    .clock(clock)
                    .poll_every(Duration::from_millis(50))
                    .fail_points(points)
            })
            .start()
            .await
    };
    [receiver().await, receiver().await]
}

fn open() -> Gate {
    let gate = Gate::shut();
    gate.open();
    gate
}

/// Nothing that is parked is below the cursor of its stream: nobody would ever come for it.
async fn nothing_is_stranded<D: TestDb>(world: &World<D>) {
    let stranded = "SELECT COUNT(*) FROM {p}pending p JOIN {p}cursor c ON c.source = p.source
        AND c.correlation_id = p.correlation_id WHERE p.reason IS NULL AND p.sequence < c.next_sequence";
    assert_eq!(world.number(stranded).await, 0);
}

/// §5.2, §9. The arrival holds the cursor when the stream settles.
async fn what_parks_under_the_lock_that_the_adoption_waits_for_is_where_the_stream_begins<
    D: TestDb,
>(
    db: D,
) {
    for level in D::ISOLATION {
        let gate = Arc::new(std::sync::Mutex::new(open()));
        let clock = TestClock::new();
        let [early, late] = receivers(&db, *level, &clock, "entered", &gate).await;
        for round in 0..ROUNDS {
            let account = format!("{}-{round}", level.name);
            early.send(&numbered(&account, 5)).await.is_parked(0);
            let held = Gate::shut();
            *gate.lock().unwrap() = held.clone();
            let lower = late.spawn(&numbered(&account, 3));
            held.reached_by(1).await;
            clock.advance(Source::SETTLE);
            // Both workers come for it, and wait for the lock, if the database lets them begin at all.
            if !D::SINGLE_WRITER {
                eventually("the adoption has begun", async || {
                    D::open_transactions(&early.eyes).await >= 1
                })
                .await;
            }
            *gate.lock().unwrap() = open();
            held.open();
            lower.await.unwrap().is_parked(0);
            eventually("it begins", async || early.sequences(&account).await == [3]).await;
            early.send(&numbered(&account, 4)).await.is_applied();
            eventually("the rest follows", async || {
                early.sequences(&account).await == [3, 4, 5]
            })
            .await;
            nothing_is_stranded(&early).await;
        }
        early.stop().await;
        late.stop().await;
    }
}

/// §4.3, §5.2, §9. The adoption holds the cursor when the arrival comes.
async fn what_waits_for_the_lock_while_a_stream_begins_is_before_its_start<D: TestDb>(db: D) {
    for level in D::ISOLATION {
        let gate = Arc::new(std::sync::Mutex::new(open()));
        let clock = TestClock::new();
        let [early, late] = receivers(&db, *level, &clock, "adopted", &gate).await;
        for round in 0..ROUNDS {
            let account = format!("{}-{round}", level.name);
            early.send(&numbered(&account, 5)).await.is_parked(0);
            let held = Gate::shut();
            *gate.lock().unwrap() = held.clone();
            clock.advance(Source::SETTLE);
            held.reached_by(1).await;
            let lower = late.spawn(&numbered(&account, 3));
            // It is on its way, with a connection or in front of the one writer.
            tokio::task::yield_now().await;
            *gate.lock().unwrap() = open();
            held.open();
            let reply = lower.await.unwrap();
            assert!(
                matches!(reply.status, 200 | 202) || level.may_fail && reply.status == 503,
                "{reply:?}"
            );
            eventually("it begins", async || early.sequences(&account).await == [5]).await;
            early.send(&numbered(&account, 6)).await.is_applied();
            assert_eq!(early.sequences(&account).await, [5, 6]);
            nothing_is_stranded(&early).await;
        }
        early.stop().await;
        late.stop().await;
    }
}
