//! Sources of another kind, lists of producers, and what is forgotten.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::Request;
use serde_json::{Value, json};
use tower_inbox::Source;
use tower_inbox::clock::Timestamp;
use tower_inbox::preset::Preset;
use tower_inbox::verify::{Secret, Signer, Tolerance};

use super::Scene;
use crate::db::TestDb;
use crate::kit::{Call, Event, Replays, SOURCE, item, numbered};
use crate::walk::hook::Besides;
use crate::walk::play::Expected;

const SECRET: &str = "a webhook secret";
const SOON: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn signed(preset: &Preset, at: Timestamp, body: &Value, headers: &[(&str, &str)]) -> Request<Body> {
    let body = Bytes::from(body.to_string());
    let secret = Secret::text(SECRET).expect("not empty");
    let signer = Signer::new(&preset.scheme(), [secret]).expect("an HMAC scheme");
    let mut request = Request::post("/hooks/acme");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::from(body.clone())).expect("a request");
    request
        .headers_mut()
        .extend(signer.sign(at, None, &body).expect("signed"));
    request
}

/// The same body under another id: held, and let go by an operator.
pub(crate) fn fenced<D: TestDb>() -> Scene<D> {
    Scene {
        name: "fenced",
        setup: |setup, _| {
            setup.source(|_| {
                Source::new(SOURCE, Preset::GITHUB)
                    .secrets([SECRET])
                    .backoff([SOON])
            })
        },
        before: &[],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                for id in ["one", "two"] {
                    let at = play.now();
                    let make = move || {
                        let headers = [("x-github-delivery", id), ("x-github-event", "push")];
                        signed(
                            &Preset::GITHUB,
                            at,
                            &json!({"data": {"amount": 1}}),
                            &headers,
                        )
                    };
                    play.deliver_as(id, Arc::new(make)).await;
                }
                let inbox = &play.world.inbox;
                let released = play
                    .acts(async || inbox.release_fenced(SOURCE, "two", "ada", "a walk").await)
                    .await;
                released.expect("it is, or was");
                play.applied("two").await;
            })
        },
        expected: Expected {
            streams: &[],
            events: &["one", "two"],
            none: &[],
        },
        points: &[
            "store.insert_fence",
            "store.fence_holder",
            "store.release_pending",
            "store.commit",
            "store.committed",
        ],
        on: &[],
    }
}

/// Several events of one request.
pub(crate) fn group<D: TestDb>() -> Scene<D> {
    Scene {
        name: "group",
        setup: |setup, _| {
            setup.source(|_| {
                Source::new(SOURCE, Preset::STRIPE)
                    .secrets([SECRET])
                    .elements(Some("events".into()))
            })
        },
        before: &[],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                for (batch, ids) in [("batch 1", ["a", "b"]), ("batch 2", ["b", "c"])] {
                    let at = play.now();
                    let make = move || {
                        let event = |id| json!({"id": id, "type": "charge", "data": {"amount": 1}});
                        signed(&Preset::STRIPE, at, &json!({"events": ids.map(event)}), &[])
                    };
                    play.deliver_as(batch, Arc::new(make)).await;
                }
            })
        },
        expected: Expected {
            streams: &[],
            events: &["a", "b", "c"],
            none: &[],
        },
        points: &[
            "settled",
            "released",
            "committed",
            "store.insert_event",
            "store.checkpoint",
            "store.release",
            "store.commit",
            "store.committed",
        ],
        on: &[],
    }
}

/// A month later.
pub(crate) fn forgetting<D: TestDb>() -> Scene<D> {
    Scene {
        name: "forgetting",
        setup: |setup, stage| {
            let clock = stage.clock.clone();
            setup
                .source(|source| {
                    let far = DAY * 4000;
                    source
                        .store_answers(true)
                        .dead_letter_retention(DAY * 30)
                        .tolerance(Tolerance::new(far, far))
                })
                .inbox(move |inbox| inbox.clock(clock))
                .answers(|call: &Call<D>| match call.delivery.event_id() {
                    "refused" => 422,
                    _ => 0,
                })
        },
        // What operators did long ago.
        before: &[
            "INSERT INTO {p}audit (at, source, action, actor, detail) VALUES (1, 'crm', 'discard', 'ada', '')",
        ],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                play.deliver(&Event::new("refused")).await;
                play.deliver_once(&numbered("acct", 1)).await;
                // Once their rows are gone, the cursor says that they were applied.
                play.deliver_once(&numbered("acct", 2)).await;
                play.stage.clock.advance(DAY * 31);
                let inbox = &play.world.inbox;
                let purged = play.acts(async || inbox.purge(SOURCE).await).await;
                purged.expect("there is such a source");
                assert_eq!(play.world.in_state(1).await, 0);
                // Looked at as soon as there is a worker; if that failed, in a minute, or by the next process.
                let swept = async {
                    while play.world.number("SELECT COUNT(*) FROM {p}audit").await > 0 {
                        tokio::time::sleep(SOON).await;
                    }
                };
                let _ = tokio::time::timeout(Duration::from_secs(1), swept).await;
                play.deliver(&numbered("acct", 2)).await;
            })
        },
        expected: Expected {
            streams: &[("acct", &[1, 2])],
            events: &[],
            none: &[
                "SELECT COUNT(*) FROM {p}audit",
                "SELECT COUNT(*) FROM {p}pending",
            ],
        },
        points: &[
            "store.now",
            "store.stale_letters",
            "store.forget_letter",
            "store.stale",
            "store.purge_fences",
            "store.purge_answers",
            "store.purge",
            "store.stale_audit",
            "store.purge_audit",
        ],
        on: &[],
    }
}

/// Replay bursts: an end that comes before its start, a whole one, and one whose end never comes.
pub(crate) fn bursts<D: TestDb>() -> Scene<D> {
    Scene {
        name: "bursts",
        setup: |setup, stage| {
            let clock = stage.clock.clone();
            setup.inbox(move |inbox| inbox.clock(clock))
        },
        before: &[],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                let started = |id: &str| {
                    Event::new(id)
                        .with("event_type", "subscription.replay_started")
                        .with("data", json!({}))
                };
                let completed = |id: &str| {
                    Event::new(id)
                        .with("event_type", "subscription.replay_completed")
                        .with("data", json!({"events_emitted": 1}))
                };
                play.deliver(&completed("ctl_end")).await;
                let (late, through) = (started("ctl_late"), Arc::clone(&play));
                let again = move || {
                    let mut request = through.signed(&late);
                    let attempt = "2".parse().expect("a value");
                    request
                        .headers_mut()
                        .insert("x-kudos-delivery-attempt", attempt);
                    request
                };
                play.deliver_as("ctl_late", Arc::new(again)).await;
                play.deliver(&started("ctl_start")).await;
                play.deliver(&Event::new("plain")).await;
                let inbox = &play.world.inbox;
                let counted = play.acts(async || inbox.bursts(SOURCE).await).await;
                assert!(counted.expect("they are listed").len() >= 2);
                play.deliver(&completed("ctl_stop")).await;
                play.stage.clock.advance(Duration::from_secs(60));
                let told = play.acts(async || inbox.bursts(SOURCE).await).await;
                for burst in told.expect("they are listed") {
                    assert!(burst.ended_at.is_some(), "{burst:?}");
                }
            })
        },
        expected: Expected {
            streams: &[],
            events: &["plain"],
            none: &[],
        },
        points: &[
            "store.start_burst",
            "store.orphan_burst",
            "store.adopt_burst",
            "store.burst_ended_by",
            "store.running_burst",
            "store.end_burst",
            "store.end_unknown_burst",
            "store.count_burst",
            "store.report_burst",
            "store.bursts",
        ],
        on: &[],
    }
}

/// What a producer gave up, a gap that it can fill, and what a restored database has lost.
pub(crate) fn reconciling<D: TestDb>() -> Scene<D> {
    Scene {
        name: "reconciling",
        setup: |setup, stage| {
            let clock = stage.clock.clone();
            setup
                .source(|source| {
                    let far = DAY * 4000;
                    source.backoff([SOON]).tolerance(Tolerance::new(far, far))
                })
                .inbox(move |inbox| inbox.clock(clock))
        },
        // Another database was here.
        before: &["INSERT INTO {p}alive (incarnation, at) VALUES ('another', 1)"],
        besides: Besides::Nothing,
        play: |play| {
            Box::pin(async move {
                play.deliver(&numbered("acct", 2)).await;
                let at = play.now();
                let replays = Replays::new().pages_of(1);
                for id in ["given up", "given up too"] {
                    replays.exhausted(&Event::new(id), at);
                }
                replays.delivered(&Event::new("lost"), at);
                replays.knows("acct", 1, item(&numbered("acct", 1), at));
                let inbox = &play.world.inbox;
                loop {
                    let reconcile = async || {
                        // A process that crashed has the lists until its lease ends.
                        play.stage.clock.advance(Duration::from_secs(600));
                        inbox.reconcile(SOURCE, &replays).await
                    };
                    let report = play.acts(reconcile).await;
                    let report = report.expect("there is such a source");
                    let all = ["given up", "given up too", "lost"];
                    let applied = play.world.applied().await;
                    if report.is_complete()
                        && all.iter().all(|id| applied.iter().any(|there| there == id))
                        && applied.iter().any(|there| there == "evt_acct_1")
                    {
                        break;
                    }
                }
                play.drained("acct", &[1, 2]).await;
            })
        },
        expected: Expected {
            streams: &[("acct", &[1, 2])],
            events: &["given up", "given up too", "lost"],
            none: &[],
        },
        points: &[
            "store.alive",
            "store.stay_alive",
            "store.add_incident",
            "store.incidents",
            "store.open_reconcile",
            "store.take_reconcile",
            "store.reconcile_state",
            "store.save_reconcile",
            "store.gaps",
            "store.known",
            "store.commit",
            "store.committed",
            "store.done",
        ],
        on: &[],
    }
}
