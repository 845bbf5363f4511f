//! Streams: gaps, places and what operators do about them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tower_inbox::envelope::Place;
use tower_inbox::operator::{AuditFilter, Erasure, Filter, Operator, StreamInfo, Waiting};
use tower_inbox::{OperatorErrorKind, Park};

use super::Scene;
use crate::db::TestDb;
use crate::kit::{Call, Event, SOURCE, numbered};
use crate::walk::hook::Besides;
use crate::walk::play::{Expected, Play};

const SOON: Duration = Duration::from_millis(1);
const WHY: &str = "a walk";

/// A gap that is filled, with a successor that fails once; and a dead letter whose place another event takes.
pub(crate) fn stream<D: TestDb>() -> Scene<D> {
    Scene {
        name: "stream",
        setup: |setup, _| {
            setup
                .source(|source| source.backoff([SOON]).park_limit_per_stream(10))
                .answers(
                    |call: &Call<D>| match (call.delivery.event_id(), call.run) {
                        ("evt_acct_2", 1) => 503,
                        ("refused", _) => 422,
                        _ => 0,
                    },
                )
        },
        before: &[],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                for sequence in [3, 2, 3, 1] {
                    play.deliver(&numbered("acct", sequence)).await;
                }
                play.deliver(&Event::new("refused").of("other", 1)).await;
                play.deliver(&Event::new("instead").of("other", 1)).await;
                play.deliver(&numbered("other", 2)).await;
                play.drained("other", &[1, 2]).await;
                play.drained("acct", &[1, 2, 3]).await;
            })
        },
        expected: Expected {
            streams: &[("acct", &[1, 2, 3]), ("other", &[1, 2])],
            events: &[],
            none: &[],
        },
        points: &[
            "claimed",
            "drained",
            "begun",
            "entered",
            "handled",
            "released",
            "committed",
            "settled",
            "store.acquire",
            "store.done",
            "store.begin",
            "store.release",
            "store.commit",
            "store.committed",
            "store.rollback",
            "store.restore",
            "store.lock_event",
            "store.insert_event",
            "store.swap_state",
            "store.slot_holder",
            "store.yield_slot",
            "store.advance_cursor",
            "store.open_cursor",
            "store.lock_cursor",
            "store.insert_pending",
            "store.delete_pending",
            "store.postpone",
            "store.stream_is_used",
            "store.pending_of_stream",
            "store.claim",
            "store.due_streams",
            "store.due_head",
            "store.pending_counts",
            "store.stale",
            "store.settled_streams",
            "store.stale_audit",
        ],
        on: &[
            ("postgres", "store.notify"),
            ("postgres", "store.listen"),
            ("postgres", "store.insert_first"),
        ],
    }
}

/// A gap behind which several events wait, which are applied together, and one that they are undone by.
pub(crate) fn batch<D: TestDb>() -> Scene<D> {
    Scene {
        name: "batch",
        setup: |setup, _| {
            setup
                .source(|source| {
                    source
                        .backoff([SOON])
                        .batch(8)
                        .batch_time(Duration::from_secs(60))
                        .store_answers(true)
                })
                .answers(
                    |call: &Call<D>| match (call.delivery.event_id(), call.run) {
                        ("evt_acct_4", 1) => 503,
                        _ => 0,
                    },
                )
        },
        before: &[],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                for account in ["acct", "other"] {
                    for sequence in [5, 4, 3, 2, 1] {
                        play.deliver(&numbered(account, sequence)).await;
                    }
                    play.drained(account, &[1, 2, 3, 4, 5]).await;
                }
            })
        },
        expected: Expected {
            streams: &[("acct", &[1, 2, 3, 4, 5]), ("other", &[1, 2, 3, 4, 5])],
            events: &[],
            none: &[],
        },
        points: &[
            "claimed",
            "drained",
            "entered",
            "handled",
            "released",
            "committed",
            "store.due_batch",
            "store.claim_batch",
            "store.mark_member",
            "store.hand_back_batch",
            "store.insert_answer",
            "store.rollback",
            "store.commit",
            "store.committed",
        ],
        on: &[
            ("postgres", "store.lock_batch"),
            ("mysql", "store.lock_batch"),
        ],
    }
}

/// A gap that is given up, and filled after all.
pub(crate) fn expiry<D: TestDb>() -> Scene<D> {
    Scene {
        name: "expiry",
        setup: |setup, _| {
            setup.source(|source| {
                source
                    .backoff([SOON])
                    .recovery_window(Duration::from_millis(50))
            })
        },
        before: &[],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                play.deliver(&numbered("acct", 3)).await;
                play.dead("evt_acct_3").await;
                for sequence in [1, 2] {
                    play.deliver(&numbered("acct", sequence)).await;
                }
                play.drained("acct", &[1, 2, 3]).await;
            })
        },
        expected: Expected {
            streams: &[("acct", &[1, 2, 3])],
            events: &[],
            none: &[],
        },
        points: &[
            "opening",
            "decided",
            "store.expired",
            "store.lock_event",
            "store.lock_cursor",
            "store.swap_state",
            "store.record_attempt",
            "store.commit",
            "store.committed",
            "store.strayed",
        ],
        on: &[],
    }
}

/// A stream that begins at the lowest of what has come.
pub(crate) fn adopting<D: TestDb>() -> Scene<D> {
    Scene {
        name: "adopting",
        setup: |setup, stage| {
            let clock = stage.clock.clone();
            setup
                .source(|source| {
                    source
                        .adopt_first_sequence(Duration::from_secs(30))
                        .backoff([SOON])
                })
                .inbox(move |inbox| inbox.clock(clock))
        },
        before: &[],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                for sequence in [5, 3] {
                    play.deliver(&numbered("acct", sequence)).await;
                }
                play.stage.clock.advance(Duration::from_secs(60));
                play.applied("evt_acct_3").await;
                play.deliver(&numbered("acct", 4)).await;
                play.drained("acct", &[3, 4, 5]).await;
            })
        },
        expected: Expected {
            streams: &[("acct", &[3, 4, 5])],
            events: &[],
            none: &[],
        },
        points: &[
            "adopted",
            "store.touch_settling",
            "store.lock_settling",
            "store.lowest_parked",
            "store.settle_cursor",
            "store.settled_streams",
            "store.insert_range",
            "store.commit",
            "store.committed",
        ],
        on: &[],
    }
}

/// An older version comes late, and another one waits when everything begins anew.
pub(crate) fn newer<D: TestDb>() -> Scene<D> {
    Scene {
        name: "newer",
        setup: |setup, _| {
            setup
                .source(|source| {
                    source.newer_than(Place::json("correlation_id"), Place::json("version"))
                })
                .handler(|mut call: Call<D>| async move {
                    call.append().await;
                    match call.delivery.event_id() {
                        "waits" => Park::after(Duration::from_secs(3_600)).into_response(),
                        _ => StatusCode::NO_CONTENT.into_response(),
                    }
                })
        },
        before: &[],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                let of = |id: &str, version: i64| {
                    Event::new(id)
                        .with("correlation_id", "acct")
                        .with("version", version)
                };
                play.deliver(&of("second", 20)).await;
                play.deliver(&of("first", 10)).await;
                play.deliver(&of("waits", 30)).await;
                reset(&play, "acct").await;
                play.deliver(&of("anew", 1)).await;
            })
        },
        expected: Expected {
            streams: &[],
            events: &["second", "anew"],
            none: &[],
        },
        points: &[
            "store.raise_version",
            "store.unplaced",
            "store.renew_cursor",
            "store.commit",
            "store.committed",
            "store.move_cursor",
        ],
        on: &[],
    }
}

async fn ada<D: TestDb>(play: &Play<D>) -> Operator<D::DB> {
    play.world.inbox.operator("ada").expect("a name")
}

async fn cursor<D: TestDb>(play: &Play<D>, account: &str) -> StreamInfo {
    let ada = ada(play).await;
    let found = play.acts(async || ada.cursor(SOURCE, account).await).await;
    found.expect("it is asked for").expect("it has begun")
}

/// Once, however often it is done.
async fn reset<D: TestDb>(play: &Arc<Play<D>>, account: &str) {
    let ada = ada(play).await;
    loop {
        let now = cursor(play, account).await;
        if now.generation > 0 {
            return;
        }
        let done = play
            .acts(async || ada.reset(SOURCE, account, 1, now.seen(), WHY).await)
            .await;
        assert!(
            matches!(done, Ok(_) | Err(OperatorErrorKind::CursorMoved { .. })),
            "{done:?}"
        );
    }
}

/// What operators do about streams and dead letters.
pub(crate) fn operators<D: TestDb>() -> Scene<D> {
    Scene {
        name: "operators",
        setup: |setup, stage| {
            let stage = stage.clone();
            setup
                .source(|source| source.backoff([SOON]).store_answers(true))
                .handler(move |mut call: Call<D>| {
                    let fixed = stage.is_fixed();
                    async move {
                        call.append().await;
                        match call.delivery.event_id() {
                            "hopeless" | "evt_given_1" => {
                                StatusCode::UNPROCESSABLE_ENTITY.into_response()
                            }
                            "bad" if !fixed => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
                            "put off" if !fixed => {
                                Park::after(Duration::from_secs(3_600)).into_response()
                            }
                            _ => Response::default(),
                        }
                    }
                })
        },
        before: &[],
        besides: Besides::Nothing,
        play: |play| Box::pin(operate(play)),
        expected: Expected {
            streams: &[("missed", &[2]), ("given", &[2]), ("anew", &[1, 1])],
            events: &["bad", "put off"],
            none: &[],
        },
        points: &[
            "opening",
            "decided",
            "store.set_gone",
            "store.letters",
            "store.waiting",
            "store.count_apart",
            "store.source_is_known",
            "store.story",
            "store.neighbours",
            "store.waiting_streams",
            "store.urgent_streams",
            "store.stream_events",
            "store.audit_lines",
            "store.cursor",
            "store.range_at",
            "store.ranges_after",
            "store.insert_range",
            "store.set_aside",
            "store.discard_event",
            "store.move_cursor",
            "store.renew_cursor",
            "store.unplaced",
            "store.release_pending",
            "store.hasten",
            "store.audit",
            "store.erase_pending",
            "store.erase_answers",
            "store.count_waiting",
            "store.commit",
            "store.committed",
            "store.begin",
            "store.release",
            "store.restore",
        ],
        on: &[],
    }
}

async fn operate<D: TestDb>(play: Arc<Play<D>>) {
    let ada = ada(&play).await;
    let deregistered = play.acts(async || ada.deregister(SOURCE, WHY).await).await;
    let rearmed = play.acts(async || ada.rearm(SOURCE, WHY).await).await;
    assert_eq!((deregistered, rearmed), (Ok(()), Ok(())));
    // A gap that is skipped.
    play.deliver(&numbered("missed", 2)).await;
    loop {
        let now = cursor(&play, "missed").await;
        if now.next > 1 {
            break;
        }
        let skipped = play
            .acts(async || ada.skip(SOURCE, "missed", 1, now.seen(), WHY).await)
            .await;
        assert!(
            matches!(skipped, Ok(_) | Err(OperatorErrorKind::CursorMoved { .. })),
            "{skipped:?}"
        );
    }
    // A dead letter that is discarded, with its place.
    play.deliver(&numbered("given", 1)).await;
    play.deliver(&numbered("given", 2)).await;
    let discarded = play
        .acts(async || ada.discard(SOURCE, "evt_given_1", WHY).await)
        .await;
    discarded.expect("it is dead");
    // One that is replayed when the handler is better.
    play.deliver(&Event::new("bad")).await;
    play.deliver(&Event::new("put off")).await;
    play.stage.fixed.store(true, Ordering::Release);
    let replayed = play
        .acts(async || ada.replay(SOURCE, "bad", WHY).await)
        .await;
    replayed.expect("it is dead, or applied");
    // One that its handler has put off, and somebody does not wait for.
    let tried = play
        .acts(async || ada.try_now(SOURCE, "put off", WHY).await)
        .await;
    tried.expect("it is parked, or applied");
    play.applied("put off").await;
    // One that is looked at, and whose content goes.
    play.deliver(&Event::new("hopeless")).await;
    let letters = play
        .acts(async || ada.dead_letters(&Filter::new(), None, 10).await)
        .await;
    assert!(!letters.expect("they are asked for").letters.is_empty());
    for id in ["hopeless", "evt_given_2"] {
        let story = play.acts(async || ada.inspect(SOURCE, id).await).await;
        assert!(story.expect("it is asked for").is_some());
    }
    let streams = play.acts(async || ada.streams(None, None, 10).await).await;
    streams.expect("they are asked for");
    let waiting = play
        .acts(async || ada.waiting(&Waiting::new(), None, 10).await)
        .await;
    waiting.expect("they are asked for");
    let apart = play
        .acts(async || ada.parked_in_no_stream(None, 10).await)
        .await;
    apart.expect("they are counted");
    let known = play.acts(async || ada.knows(SOURCE).await).await;
    assert_eq!(known, Ok(true));
    let urgent = play.acts(async || ada.urgent_streams().await).await;
    urgent.expect("they are asked for");
    let stream = play
        .acts(async || ada.stream(SOURCE, "given", None, 10).await)
        .await;
    assert!(stream.expect("it is asked for").is_some());
    let lines = play
        .acts(async || ada.audit(&AuditFilter::new(), None, 10).await)
        .await;
    assert!(!lines.expect("they are asked for").entries.is_empty());
    let body = play
        .acts(async || ada.body(SOURCE, "hopeless", WHY).await)
        .await;
    // Where the scene is played again, it may be erased already.
    body.expect("it is asked for");
    let erased = play
        .acts(async || ada.erase(SOURCE, Erasure::Event("hopeless"), WHY).await)
        .await;
    erased.expect("it is erased, or was");
    // A stream that begins anew.
    play.deliver(&numbered("anew", 1)).await;
    reset(&play, "anew").await;
    play.deliver(&Event::new("again").of("anew", 1)).await;
    play.drained("anew", &[1, 1]).await;
    play.drained("given", &[2]).await;
    play.drained("missed", &[2]).await;
    play.applied("bad").await;
}
