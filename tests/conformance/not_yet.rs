//! "Not yet": a handler answers that its event is to be kept and tried again later (§2.9, §5.6, §5.10).

use std::time::{Duration, SystemTime};

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tower_inbox::envelope::Place;
use tower_inbox::{Park, Source};

use crate::db::TestDb;
use crate::kit::{Call, Event, Gate, Setup, World, eventually, numbered};

suite![
    nothing_of_its_work_is_committed_and_it_comes_again_by_itself,
    it_keeps_its_turn_and_its_successors_wait_behind_it,
    it_is_not_counted_as_a_failed_attempt,
    a_drained_event_can_be_put_off_too,
    a_redelivery_runs_the_handler_again_whenever_it_comes,
    after_the_longest_time_it_is_a_failure_like_another,
    a_dead_letter_that_is_sent_again_can_be_put_off,
    who_waits_for_the_delivery_gets_its_answer,
    one_element_that_is_not_to_be_applied_yet_undoes_all,
    what_was_overtaken_meanwhile_is_superseded,
    another_process_applies_what_this_one_has_put_off,
    what_is_put_off_is_bounded_as_what_is_parked,
];

const LONG: Duration = Duration::from_secs(3_600);
const SHORT: Duration = Duration::ZERO;

/// The ledger's handler; what `not_yet` says beats its 204.
fn over<D: TestDb>(
    db: &D,
    not_yet: impl Fn(&str, usize) -> Option<Duration> + Copy + Send + Sync + 'static,
) -> Setup<D> {
    World::<D>::over(db).handler(move |mut call: Call<D>| async move {
        call.append().await;
        let wait = not_yet(call.delivery.event_id(), call.run);
        answer(wait.map(Park::after))
    })
}

fn answer(park: Option<Park>) -> Response {
    match park {
        Some(park) => (park, StatusCode::NO_CONTENT).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

const KEPT: &str = "SELECT COUNT(*) FROM {p}event e JOIN {p}pending p ON p.source = e.source AND p.event_id = e.event_id
    WHERE e.state = 2 AND p.reason IS NULL AND p.attempts = 0 AND p.not_before > p.parked_at";
const PENDING: &str = "SELECT COUNT(*) FROM {p}pending";

/// (not-yet). In each of the forms that the answer can have.
async fn nothing_of_its_work_is_committed_and_it_comes_again_by_itself<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            let soon = SystemTime::now() + Duration::from_millis(300);
            match (call.delivery.event_id(), call.run) {
                ("whole", 1) => Park::until(soon).into_response(),
                ("part", 1) => (StatusCode::OK, Park::until(soon), "a body").into_response(),
                ("extension", 1) => {
                    let mut response = StatusCode::UNPROCESSABLE_ENTITY.into_response();
                    response.extensions_mut().insert(Park::after(SHORT));
                    response
                }
                _ => StatusCode::NO_CONTENT.into_response(),
            }
        })
        .start()
        .await;
    for id in ["whole", "part", "extension"] {
        let reply = world.send(&Event::new(id)).await;
        reply.is(202, "parked");
        assert_eq!(reply.body, r#"{"status":"parked"}"#);
    }
    eventually("all are applied", async || world.ledger().await.len() == 3).await;
    for id in ["whole", "part", "extension"] {
        assert_eq!(world.probe.runs(id), 2);
        world.send(&Event::new(id)).await.is_duplicate();
    }
    assert_eq!(world.number(PENDING).await, 0);
    world.pool_is_whole().await;
}

/// §5.10
async fn it_keeps_its_turn_and_its_successors_wait_behind_it<D: TestDb>(db: D) {
    let world = over(&db, |id, run| {
        (id == "evt_acct_1" && run == 1).then_some(LONG)
    })
    .start()
    .await;
    let reply = world.send(&numbered("acct", 1)).await;
    reply.is_parked(1);
    let hour = LONG.as_secs();
    let wait = reply.retry_after().expect("a time").as_secs();
    assert!((hour - 60..=hour).contains(&wait), "{wait}");
    assert_eq!(world.number(KEPT).await, 1);
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("other", 1)).await.is_applied();
    assert!(world.sequences("acct").await.is_empty());
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("2 follows", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
}

/// §5.5: however often.
async fn it_is_not_counted_as_a_failed_attempt<D: TestDb>(db: D) {
    let world = over(&db, |_, run| (run <= 4).then_some(SHORT))
        .source(|source| source.max_attempts(1))
        .start()
        .await;
    world.send(&Event::new("a")).await.is(202, "parked");
    world.send(&numbered("acct", 1)).await.is_parked(1);
    eventually("both are applied", async || world.ledger().await.len() == 2).await;
    assert_eq!(
        (world.probe.runs("a"), world.probe.runs("evt_acct_1")),
        (5, 5)
    );
    assert_eq!(world.in_state(3).await, 0);
}

/// §5.6, (not-yet). With the attempts that it has behind it.
async fn a_drained_event_can_be_put_off_too<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .one_by_one()
        .source(|source| source.backoff([Duration::from_millis(1)]))
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            match (call.delivery.event_id(), call.run) {
                ("evt_acct_2", 1) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
                ("evt_acct_2", 2) => Park::after(LONG).into_response(),
                _ => StatusCode::OK.into_response(),
            }
        })
        .start()
        .await;
    for n in [3, 2, 1] {
        world.send(&numbered("acct", n)).await;
    }
    let put_off = "SELECT COUNT(*) FROM {p}pending WHERE attempts = 1 AND not_before - parked_at > 3000000000";
    eventually("it is put off", async || world.number(put_off).await == 1).await;
    assert_eq!(world.sequences("acct").await, [1]);
    let reply = world.send_after(202, &numbered("acct", 2)).await;
    reply.is(200, "applied");
    eventually("3 follows", async || {
        world.sequences("acct").await == [1, 2, 3]
    })
    .await;
}

/// §5.6
async fn a_redelivery_runs_the_handler_again_whenever_it_comes<D: TestDb>(db: D) {
    let world = over(&db, |_, run| (run <= 2).then_some(LONG)).start().await;
    for event in [Event::new("a"), numbered("acct", 1)] {
        for run in 1..=2 {
            world.send(&event).await.is(202, "parked");
            assert_eq!(world.probe.runs(event.id()), run);
            assert_eq!(world.number(KEPT).await, 1);
        }
        world.send(&event).await.is_applied();
        world.send(&event).await.is_duplicate();
        assert_eq!(world.number(PENDING).await, 0);
    }
}

/// §5.5, (not-yet)
async fn after_the_longest_time_it_is_a_failure_like_another<D: TestDb>(db: D) {
    let world = over(&db, |_, _| Some(SHORT)).start().await;
    world.send(&Event::new("a")).await.is(202, "parked");
    world.send(&numbered("acct", 1)).await.is_parked(1);
    world.stop().await;
    let world = over(&db, |_, _| Some(SHORT))
        .source(|source| {
            source
                .longest_park(Duration::from_millis(1))
                .backoff([Duration::from_millis(1)])
                .max_attempts(3)
        })
        .start()
        .await;
    let dead = "SELECT COUNT(*) FROM {p}pending WHERE reason = 2 AND attempts = 3";
    eventually("both are dead letters", async || {
        world.number(dead).await == 2
    })
    .await;
    assert_eq!((world.probe.runs("a"), world.in_state(3).await), (3, 2));
    assert!(world.ledger().await.is_empty());
}

/// §5.11, §5.8: as if it came for the first time; the producer's own body where none was kept.
async fn a_dead_letter_that_is_sent_again_can_be_put_off<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.longest_park(Duration::from_millis(500)))
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            match call.run {
                1 => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
                2 => Park::after(LONG).into_response(),
                _ => StatusCode::NO_CONTENT.into_response(),
            }
        })
        .start()
        .await;
    let events = [Event::new("a").amount(5), numbered("acct", 1).amount(6)];
    for event in &events {
        world.send(event).await.is(422, "rejected");
    }
    // It died long ago.
    world
        .execute(
            "UPDATE {p}pending SET parked_at = parked_at - 3600000000, body = SUBSTR(body, 1, 0)",
        )
        .await;
    for event in &events {
        world.send(event).await.is(202, "parked");
    }
    assert_eq!((world.number(KEPT).await, world.in_state(3).await), (2, 0));
    // Not for as long as was asked for: for as long as the source allows.
    eventually("both are applied", async || world.ledger().await.len() == 2).await;
    let mut amounts: Vec<_> = world
        .ledger()
        .await
        .iter()
        .map(|entry| entry.amount)
        .collect();
    amounts.sort_unstable();
    assert_eq!(amounts, [5, 6]);
}

/// §4.8: without running the handler again.
async fn who_waits_for_the_delivery_gets_its_answer<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let world = World::<D>::over(&db)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                gate.pass().await;
                Park::after(LONG)
            }
        })
        .start()
        .await;
    let event = numbered("acct", 1);
    let leader = world.spawn(&event);
    gate.reached_by(1).await;
    let followers: Vec<_> = (0..4).map(|_| world.spawn(&event)).collect();
    let wrong = world.spawn(&numbered("acct", 1).amount(7));
    // They are in memory by then: nothing else is left for them to wait at.
    tokio::time::sleep(Duration::from_millis(200)).await;
    gate.open();
    leader.await.expect("an answer").is_parked(1);
    for follower in followers {
        follower.await.expect("an answer").is_parked(1);
    }
    let wrong = wrong.await.expect("an answer");
    wrong.is_problem_about(422, "rejected", "other content");
    assert_eq!(world.probe.runs(event.id()), 1);
}

/// §4.1, (elements), (not-yet)
async fn one_element_that_is_not_to_be_applied_yet_undoes_all<D: TestDb>(db: D) {
    let world = over(&db, |id, run| (id == "b" && run == 1).then_some(LONG))
        .source(|source| {
            let mapping = tower_inbox::envelope::Mapping::new(Place::json("event_id"));
            source.mapping(mapping).elements(Some("events".into()))
        })
        .start()
        .await;
    let events = ["a", "b", "c"].map(Event::new);
    let reply = world.post(world.batch(&events)).await;
    reply.is_problem_about(503, "failed", "not to be applied yet");
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 0);
    world.post(world.batch(&events)).await.is_applied();
    assert_eq!(world.applied().await, ["a", "b", "c"]);
}

/// §5.12
async fn what_was_overtaken_meanwhile_is_superseded<D: TestDb>(db: D) {
    let newer =
        |source: Source| source.newer_than(Place::json("correlation_id"), Place::json("version"));
    let of = |id: &str, version: i64| {
        Event::new(id)
            .with("correlation_id", "acct")
            .with("version", version)
    };
    let world = over(&db, |id, _| (id != "b").then_some(SHORT))
        .source(newer)
        .start()
        .await;
    world.send(&of("a", 10)).await.is(202, "parked");
    world.send(&of("b", 20)).await.is_applied();
    eventually("it is superseded", async || world.in_state(5).await == 1).await;
    world.send(&of("a", 10)).await.is_superseded();
    assert_eq!(world.applied().await, ["b"]);
    assert_eq!(world.number(PENDING).await, 0);
}

/// §5.7, §5.9: whoever comes to it.
async fn another_process_applies_what_this_one_has_put_off<D: TestDb>(db: D) {
    let start = async || {
        over(&db, |_, run| (run <= 2).then_some(SHORT))
            .start()
            .await
    };
    let (world, other) = (start().await, start().await);
    let events = [Event::new("a"), numbered("acct", 1)];
    for event in &events {
        world.send(event).await.is(202, "parked");
        other.send(event).await.is(202, "parked");
    }
    eventually("both are applied", async || world.in_state(1).await == 2).await;
    assert_eq!(world.ledger().await.len(), 2);
    for world in [&world, &other] {
        for event in &events {
            // Who meets a worker that comes too late gets 503 once.
            eventually("it is known", async || {
                world.send(event).await.outcome() == "duplicate"
            })
            .await;
        }
    }
    world.pool_is_whole().await;
    other.pool_is_whole().await;
    world.stop().await;
    // What is left behind is found by who comes next.
    other.send(&Event::new("b")).await.is(202, "parked");
    other.stop().await;
    let next = World::<D>::start(&db).await;
    eventually("it is applied", async || next.in_state(1).await == 3).await;
}

/// §5.8
async fn what_is_put_off_is_bounded_as_what_is_parked<D: TestDb>(db: D) {
    let world = over(&db, |id, _| id.starts_with("evt").then_some(LONG))
        .source(|source| source.park_limit(1))
        .start()
        .await;
    world.send(&Event::new("evt_1")).await.is(202, "parked");
    let full = world.send(&Event::new("evt_2")).await;
    full.is_problem_about(429, "failed", "parked events");
    // What is kept already can be put off again.
    world.send(&Event::new("evt_1")).await.is(202, "parked");
    world.send(&Event::new("other")).await.is_applied();
    assert_eq!(world.number(PENDING).await, 1);
}
