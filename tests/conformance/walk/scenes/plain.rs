//! Single events, and how workers take turns with them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tower_inbox::{Park, Source};

use super::Scene;
use crate::db::TestDb;
use crate::kit::{Call, Event, Setup, numbered};
use crate::walk::hook::Besides;
use crate::walk::play::{Expected, Stage};

const SOON: Duration = Duration::from_millis(1);

/// Everything that one event without an order can meet with its producer waiting.
pub(crate) fn live<D: TestDb>() -> Scene<D> {
    Scene {
        name: "live",
        setup: |setup, stage| {
            let stage = stage.clone();
            setup
                .source(|source| source.store_answers(true).backoff([SOON]))
                .inbox(|inbox| inbox.remembered(0))
                .handler(move |call: Call<D>| answer(call, stage.clone()))
        },
        before: &[],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                play.deliver(&Event::new("plain")).await;
                play.deliver(&Event::new("plain")).await;
                let other = play.deliver(&Event::new("plain").amount(2)).await;
                assert_eq!(other.status, 422, "{other:?}");
                play.deliver(&Event::new("fails")).await;
                // Of two at the same time, one follows the other, and gets its answer.
                let (one, two) = (Event::new("slow"), Event::new("slow"));
                tokio::join!(play.deliver(&one), play.deliver(&two));
                play.deliver(&Event::new("bad")).await;
                play.deliver(&Event::new("bad").amount(2)).await;
                play.stage.fixed.store(true, Ordering::Release);
                play.deliver(&Event::new("bad")).await;
                play.deliver(&Event::new("later")).await;
                play.applied("later").await;
                while play.world.inbox.ping(Duration::from_secs(1)).await.is_err() {
                    tokio::time::sleep(SOON).await;
                }
            })
        },
        expected: Expected {
            streams: &[],
            events: &["plain", "fails", "slow", "bad", "later"],
            none: &[],
        },
        points: &[
            "begun",
            "entered",
            "handled",
            "undone",
            "released",
            "committed",
            "settled",
            "store.acquire",
            "store.done",
            "store.begin",
            "store.begin_with_first",
            "store.release",
            "store.commit",
            "store.committed",
            "store.rollback",
            "store.restore",
            "store.rollback_to",
            "store.known",
            "store.lock_event",
            "store.insert_event",
            "store.swap_state",
            "store.guard",
            "store.insert_answer",
            "store.answer",
            "store.audit",
            "store.insert_pending",
            "store.delete_pending",
            "store.put_off",
            "store.due_events",
            "store.due_event",
            "store.gone_sources",
        ],
        on: &[
            ("sqlite", "store.ping"),
            ("postgres", "watch.look"),
            ("postgres", "store.prepared"),
            ("mysql", "watch.look"),
        ],
    }
}

async fn answer<D: TestDb>(mut call: Call<D>, stage: Stage) -> Response {
    let (id, run) = (call.delivery.event_id().to_owned(), call.run);
    if id == "plain" && call.tx.guard("entity", 1).await.is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    call.append().await;
    match (id.as_str(), run) {
        ("fails", 1) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        ("bad", _) if !stage.is_fixed() => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
        ("later", 1 | 2) => Park::after(SOON).into_response(),
        ("slow", _) => {
            tokio::time::sleep(Duration::from_millis(20)).await;
            id.into_response()
        }
        _ => id.into_response(),
    }
}

/// Deliveries that wait while another one's handler runs, and go on in its transaction; one that fails there, and one that is
/// known.
pub(crate) fn shared<D: TestDb>() -> Scene<D> {
    Scene {
        name: "shared",
        setup: |setup, _| {
            setup
                .source(|source| {
                    source
                        .batch(8)
                        .batch_time(Duration::from_secs(60))
                        .store_answers(true)
                })
                .inbox(|inbox| {
                    let inbox = inbox.remembered(0);
                    match D::JOINS_ANY && !D::SINGLE_WRITER {
                        // So that they wait for it.
                        true => inbox.max_in_flight(1),
                        // More than the pool has: those that wait need none.
                        false => inbox.max_in_flight(6),
                    }
                })
                .handler(|mut call: Call<D>| async move {
                    call.append().await;
                    match (call.delivery.event_id(), call.run) {
                        ("slow", _) => {
                            tokio::time::sleep(Duration::from_millis(20)).await;
                            StatusCode::OK
                        }
                        ("fails", 1) => StatusCode::SERVICE_UNAVAILABLE,
                        _ => StatusCode::OK,
                    }
                })
        },
        before: &[],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                play.deliver(&Event::new("known")).await;
                let ids = ["slow", "one", "fails", "known", "two"];
                let [slow, one, fails, known, two] = ids.map(Event::new);
                let first = numbered("acct", 1);
                tokio::join!(
                    play.deliver(&slow),
                    play.deliver(&one),
                    play.deliver(&fails),
                    play.deliver(&first),
                    play.deliver(&known),
                    play.deliver(&two),
                );
            })
        },
        expected: Expected {
            streams: &[("acct", &[1])],
            events: &["slow", "one", "fails", "known", "two"],
            none: &[],
        },
        points: &[
            "begun",
            "entered",
            "handled",
            "committed",
            "settled",
            "store.rollback_to",
            "store.insert_answer",
            "store.commit",
            "store.committed",
        ],
        on: &[
            ("sqlite", "store.insert_behind"),
            ("sqlite", "store.checkpoint"),
            ("postgres", "store.insert_behind"),
            ("postgres", "store.checkpoint"),
        ],
    }
}

/// The next ones of a stream, which go on in the transaction of the first one; one of them fails there.
pub(crate) fn hot<D: TestDb>() -> Scene<D> {
    Scene {
        name: "hot",
        setup: |setup, stage| {
            let stage = stage.clone();
            setup
                .source(|source| {
                    source
                        .batch(8)
                        .batch_time(Duration::from_secs(60))
                        .store_answers(true)
                })
                .inbox(|inbox| inbox.remembered(0))
                .handler(move |mut call: Call<D>| {
                    let stage = stage.clone();
                    async move {
                        call.append().await;
                        match (call.delivery.sequence(), call.run) {
                            (Some(1), _) => others_wait(&stage).await,
                            (Some(3), 1) => return StatusCode::SERVICE_UNAVAILABLE,
                            _ => {}
                        }
                        StatusCode::OK
                    }
                })
        },
        before: &[],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                let [one, two, fails, four] = [1, 2, 3, 4].map(|n| numbered("acct", n));
                let (probe, inbox) = (&play.world.probe, &play.world.inbox);
                let begun = || probe.runs(one.id()) > 0;
                let behind = async {
                    // What overtakes it would be parked.
                    soon(begun).await;
                    tokio::join!(
                        play.deliver(&two),
                        play.deliver(&fails),
                        play.deliver(&four)
                    );
                };
                let watch = async {
                    soon(begun).await;
                    soon(|| inbox.waiting_to_share().0 == 3).await;
                    play.stage.fixed.store(true, Ordering::Release);
                };
                tokio::join!(play.deliver(&one), behind, watch);
                play.drained("acct", &[1, 2, 3, 4]).await;
            })
        },
        expected: Expected {
            streams: &[("acct", &[1, 2, 3, 4])],
            events: &[],
            none: &[],
        },
        points: &[
            "begun",
            "entered",
            "handled",
            "released",
            "committed",
            "settled",
            "store.insert_behind",
            "store.checkpoint",
            "store.rollback_to",
            "store.insert_answer",
            "store.commit",
            "store.committed",
        ],
        on: &[],
    }
}

/// Longer than anybody takes to come, where nothing is held up.
const MOMENTS: u32 = 2_500;

async fn soon(is_so: impl Fn() -> bool) {
    for _ in 0..MOMENTS {
        if is_so() {
            return;
        }
        tokio::time::sleep(SOON).await;
    }
}

/// Until they do, or will not.
async fn others_wait(stage: &Stage) {
    while !stage.is_fixed() {
        tokio::time::sleep(SOON).await;
    }
}

/// The producer does not wait for the handler.
pub(crate) fn deferred<D: TestDb>() -> Scene<D> {
    Scene {
        name: "deferred",
        setup: |setup, stage| {
            let stage = stage.clone();
            setup
                .source(|source| source.deferred().backoff([SOON]))
                .answers(move |call: &Call<D>| match call.delivery.event_id() {
                    "bad" if !stage.is_fixed() => 422,
                    _ => 0,
                })
        },
        before: &[],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                play.deliver(&Event::new("plain")).await;
                for sequence in [2, 1] {
                    play.deliver(&numbered("acct", sequence)).await;
                }
                play.deliver(&Event::new("bad")).await;
                play.dead("bad").await;
                play.stage.fixed.store(true, Ordering::Release);
                play.deliver(&Event::new("bad")).await;
                play.applied("bad").await;
                play.applied("plain").await;
                play.drained("acct", &[1, 2]).await;
            })
        },
        expected: Expected {
            streams: &[("acct", &[1, 2])],
            events: &["plain", "bad"],
            none: &[],
        },
        points: &[
            "claimed",
            "drained",
            "store.keep_body",
            "store.requeue",
            "store.cursor",
            "store.claim",
            "store.due_event",
            "store.insert_pending",
            "store.record_attempt",
            "store.commit",
            "store.committed",
        ],
        on: &[],
    }
}

fn two_in_a_stream<D: TestDb>(setup: Setup<D>, _: &Stage) -> Setup<D> {
    setup.source(|source: Source| source.backoff([SOON]))
}

/// A worker's attempt fails, and not by the handler: its lease is given back.
pub(crate) fn handed_back<D: TestDb>() -> Scene<D> {
    Scene {
        name: "handed_back",
        setup: two_in_a_stream,
        before: &[],
        // Of the worker: 2 is parked first, and 1 applied.
        besides: Besides::Gone("begun", 3),
        play: |play| {
            Box::pin(async move {
                for sequence in [2, 1] {
                    play.deliver(&numbered("acct", sequence)).await;
                }
                play.drained("acct", &[1, 2]).await;
            })
        },
        expected: Expected {
            streams: &[("acct", &[1, 2])],
            events: &[],
            none: &[],
        },
        points: &["store.hand_back"],
        on: &[("mysql", "watch.kill")],
    }
}

/// A worker that is at work for long gives signs of life, and takes leave at its end.
pub(crate) fn beats<D: TestDb>() -> Scene<D> {
    Scene {
        name: "beats",
        setup: two_in_a_stream,
        before: &[],
        besides: Besides::Wait("claimed", "store.beat"),
        play: |play| {
            Box::pin(async move {
                for sequence in [2, 1] {
                    play.deliver(&numbered("acct", sequence)).await;
                }
                play.drained("acct", &[1, 2]).await;
            })
        },
        expected: Expected {
            streams: &[("acct", &[1, 2])],
            events: &[],
            none: &[],
        },
        points: &["store.beat", "store.hand_back_all", "store.retire"],
        on: &[],
    }
}
