//! Kudos' page, the producer's side of it: state machine, backoff, status codes, headers, rotation. `docs/kudos.md`.

use std::collections::HashSet;
use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse as _;
use http::HeaderValue;
use serde_json::json;
use tower_inbox::Secret;
use tower_inbox::clock::Clock as _;
use tower_inbox::envelope::{Mapping, Place};
use tower_inbox::preset::Reaction;

use super::producer::{Producer, Way, pauses, request, status_in_amount};
use crate::db::TestDb;
use crate::kit::{Call, Event as Sent, SOURCE, World, eventually, seeded};
use crate::shared::plan::Event;
use crate::shared::preset::Preset;
use crate::shared::schedule::{Answer, Ending, Next, Retries, Schedule};

suite![
    a_delivery_ends_delivered_or_failed_as_the_state_machine_has_it,
    within_one_event_type_a_source_can_be_ordered_and_across_types_nothing_waits,
    a_429_with_retry_after_takes_the_place_of_the_next_step,
    a_status_that_would_end_an_event_which_failed_goes_out_as_503,
    a_deregistered_source_answers_410_and_the_subscription_is_paused,
    every_retry_says_which_attempt_it_is_and_the_handler_can_read_it,
    a_replay_burst_changes_nothing_and_its_control_events_reach_nobody,
    a_delivery_that_is_sent_again_from_the_log_is_a_duplicate,
    a_rotation_with_overlap_refuses_nobody_until_the_old_secret_is_revoked,
];

fn through(_: &Event, _: u32, _: Duration) -> Way {
    Way::Through
}

/// "Delivery state machine"
async fn a_delivery_ends_delivered_or_failed_as_the_state_machine_has_it<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Kudos);
    let world = status_in_amount(producer.receiver(&db)).start().await;
    let mut applied = 0;
    for (status, verdict, attempts, first) in [
        (200, Ending::Delivered, 1, 200),
        (299, Ending::Delivered, 1, 299),
        (408, Ending::Delivered, 2, 408),
        (429, Ending::Delivered, 2, 429),
        (500, Ending::Delivered, 2, 500),
        (599, Ending::Delivered, 2, 599),
        (301, Ending::Refused, 1, 301),
        (400, Ending::Refused, 1, 400),
        (404, Ending::Refused, 1, 404),
        (409, Ending::Refused, 1, 409),
        (422, Ending::Refused, 1, 422),
    ] {
        let mut event = producer.event();
        event.amount = status;
        let story = producer.deliver(&world, &event, through).await;
        story.ends(verdict, attempts);
        assert_eq!(story.statuses()[0], first);
        applied += usize::from(verdict == Ending::Delivered);
        assert_eq!(world.ledger().await.len(), applied, "{status}");
    }
    // Away for all of the 1 h 45 m: failed after six attempts. Away for less: delivered, once.
    let event = producer.event();
    let story = producer.deliver(&world, &event, |_, _, _| Way::Down).await;
    story.ends(Ending::Exhausted, 6);
    assert!(story.sent[5].at <= tower_inbox::Preset::KUDOS.retry_span);
    let mut event = producer.event();
    event.amount = 204;
    let away = |_: &Event, number, _| match number {
        1..=3 => Way::Down,
        4 | 5 => Way::AnswerLost,
        _ => Way::Through,
    };
    let story = producer.deliver(&world, &event, away).await;
    story.ends(Ending::Delivered, 6).last().is_duplicate();
    assert_eq!(story.statuses(), [0, 0, 0, 204, 200, 200]);
    assert_eq!(world.ledger().await.len(), applied + 1);
}

/// "Per-source ordering inside a single event_type. Across event types, no ordering is guaranteed": the type as a part
/// of the correlation id.
async fn within_one_event_type_a_source_can_be_ordered_and_across_types_nothing_waits<D: TestDb>(
    db: D,
) {
    let per_type = Place::Composed(vec![
        Place::json("event_type"),
        Place::json("correlation_id"),
    ]);
    let mapping = Mapping::new(Place::json("event_id"))
        .with_event_type(Place::json("event_type"))
        .with_correlation_id(per_type)
        .with_sequence(Place::json("sequence"));
    let world = World::<D>::over(&db)
        .source(|source| source.mapping(mapping))
        .start()
        .await;
    let event = |kind: &str, sequence| {
        Sent::new(&format!("evt_{kind}_{sequence}"))
            .with("event_type", kind)
            .of("tenant-a", sequence)
    };
    // Fired after two payments, and here before both.
    world.send(&event("upgraded", 1)).await.is_applied();
    world.send(&event("paid", 2)).await.is_parked(1);
    world.send(&event("upgraded", 2)).await.is_applied();
    world.send(&event("paid", 1)).await.is_applied();
    // Without a sequence nothing waits for anything.
    world.send(&Sent::new("evt_free")).await.is_applied();
    eventually("what was parked is applied", async || {
        world.ledger().await.len() == 5
    })
    .await;
    let applied = world.applied().await;
    let place = |id: &str| applied.iter().position(|applied| applied == id);
    assert!(place("evt_paid_1") < place("evt_paid_2"), "{applied:?}");
}

/// "Backoff curve": "six attempts …, on a fixed schedule with ±25 % jitter".
#[test]
fn six_attempts_lie_on_the_curve_within_25_percent() {
    let mut rng = seeded("the curve of kudos");
    let curve = [30.0, 120.0, 600.0, 1_800.0, 3_600.0];
    let mut spread = [(f64::MAX, f64::MIN); 5];
    for _ in 0..2_000 {
        let pauses = pauses("kudos", &mut rng);
        assert_eq!(pauses.len(), 5);
        for ((pause, step), (low, high)) in pauses.iter().zip(curve).zip(&mut spread) {
            let share = pause.as_secs_f64() / step;
            (*low, *high) = (low.min(share), high.max(share));
        }
        assert!(pauses.iter().sum::<Duration>() <= tower_inbox::Preset::KUDOS.retry_span);
    }
    for (low, high) in spread {
        assert!((0.75..0.78).contains(&low), "{low}");
        assert!(high > 1.22 && high <= 1.25, "{high}");
    }
    // "Cumulative since the first attempt": 1 h 42 min 30 s.
    assert_eq!(curve.iter().sum::<f64>(), 6_150.0);
}

/// "Why jitter": a hundred subscriptions that failed at the same instant wake up over half of each step.
#[test]
fn those_that_failed_together_do_not_wake_up_together() {
    let mut rng = seeded("the jitter of kudos");
    let first: Vec<_> = (0..100).map(|_| pauses("kudos", &mut rng)[0]).collect();
    let seconds: HashSet<_> = first.iter().map(Duration::as_secs).collect();
    assert!(seconds.len() >= 12, "of 15 seconds: {seconds:?}");
}

/// "Retry-After honoured", as the receiver sends it.
async fn a_429_with_retry_after_takes_the_place_of_the_next_step<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Kudos);
    let world = producer.receiver(&db).handler(|call: Call<D>| async move {
        let wait = call.entry().amount.to_string();
        match call.run {
            1 => (http::StatusCode::TOO_MANY_REQUESTS, [("retry-after", wait)]).into_response(),
            _ => http::StatusCode::OK.into_response(),
        }
    });
    let world = world.start().await;
    // "capped at our longest slot".
    for (wait, after) in [(7, 7), (3_000, 3_000), (86_400, 3_600)] {
        let mut event = producer.event();
        event.amount = wait;
        let story = producer.deliver(&world, &event, through).await;
        story.ends(Ending::Delivered, 2);
        assert_eq!(story.sent[1].at, Duration::from_secs(after));
    }
}

/// "Status codes you can return": every code, as preset and schedule have it.
#[test]
fn the_table_of_status_codes_is_the_pages() {
    let answers = tower_inbox::Preset::KUDOS.answers;
    for status in 200..=599 {
        let listed = match status {
            200..=299 => Reaction::Delivered,
            408 | 429 | 500..=599 => Reaction::Retries,
            _ => Reaction::Stops,
        };
        assert_eq!(answers.reaction(status), Some(listed), "{status}");
        let sender = super::reactions::of_schedule("kudos", status, None, "");
        assert_eq!(sender, listed, "{status}");
    }
    let next = |status| {
        let answer = Answer::Status {
            status,
            retry_after: None,
            outcome: None,
        };
        let schedule = Schedule::named("kudos").expect("a seed's producer");
        schedule.next(&mut Retries::default(), &answer, &mut seeded("410"))
    };
    assert_eq!(next(410), Next::Done(Ending::Paused));
    assert_eq!(next(404), Next::Done(Ending::Refused));
}

/// "Any other 4xx: terminal on the first attempt": a handler that asks for a retry by 425 would not get one.
async fn a_status_that_would_end_an_event_which_failed_goes_out_as_503<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Kudos);
    let world = status_in_amount(producer.receiver(&db)).start().await;
    let mut event = producer.event();
    event.amount = 425;
    let story = producer.deliver(&world, &event, through).await;
    story.ends(Ending::Delivered, 2);
    assert_eq!(story.statuses(), [503, 204]);
    assert_eq!(world.applied().await, [event.id]);
}

/// "410 Gone": "this is how a receiver deregisters itself"; the source's owner does, never a handler.
async fn a_deregistered_source_answers_410_and_the_subscription_is_paused<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Kudos);
    let world = status_in_amount(producer.receiver(&db)).start().await;
    let mut event = producer.event();
    event.amount = 410;
    let story = producer.deliver(&world, &event, through).await;
    story.ends(Ending::Refused, 1).last().is(422, "rejected");
    let operator = world.inbox.operator("a test").expect("a name");
    let gone = operator.deregister(SOURCE, "no longer of use").await;
    gone.expect("it is deregistered");
    let mut event = producer.event();
    event.amount = 200;
    let story = producer.deliver(&world, &event, through).await;
    story.ends(Ending::Paused, 1).last().is(410, "rejected");
    // "Re-arm it … when you are ready".
    operator
        .rearm(SOURCE, "of use again")
        .await
        .expect("it is armed");
    let story = producer.deliver(&world, &event, through).await;
    story.ends(Ending::Delivered, 1);
    assert_eq!(world.applied().await, [event.id]);
}

/// "Headers on retries"; "stable across retries".
async fn every_retry_says_which_attempt_it_is_and_the_handler_can_read_it<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Kudos);
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let world = producer.receiver(&db).handler(move |call: Call<D>| {
        let envelope = call.delivery.envelope();
        let said = (envelope.attempt, envelope.first_sent_at);
        told.send(said).expect("the test listens");
        async move {
            match call.run {
                1..=3 => http::StatusCode::SERVICE_UNAVAILABLE,
                _ => http::StatusCode::NO_CONTENT,
            }
        }
    });
    let world = world.start().await;
    let first_sent = producer.clock.now().as_micros() / 1_000_000;
    let event = producer.event();
    let story = producer.deliver(&world, &event, through).await;
    story.ends(Ending::Delivered, 4);
    assert_eq!(story.header("x-kudos-event-id"), [event.id.as_str(); 4]);
    assert_eq!(story.header("x-kudos-delivery-attempt"), ["2", "3", "4"]);
    assert_eq!(
        story.header("x-kudos-original-event-id"),
        [event.id.as_str(); 3]
    );
    let times: HashSet<_> = story.header("x-kudos-first-sent-at").into_iter().collect();
    assert_eq!(times.len(), 1);
    for attempt in 1..=4 {
        let (number, since) = heard.try_recv().expect("it ran");
        let of_retry = attempt > 1;
        assert_eq!(number.map(u64::from), of_retry.then_some(attempt));
        let since = since.map(|since| since.as_micros() / 1_000_000);
        assert_eq!(since, of_retry.then_some(first_sent));
    }
}

/// "Replay events": "Your inbox dedupes them away as duplicates".
async fn a_replay_burst_changes_nothing_and_its_control_events_reach_nobody<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Kudos);
    let world = producer.receiver(&db).start().await;
    let events = producer.events(12, 3, true);
    for event in &events {
        producer.send(&world, event).await.is_applied();
    }
    producer.clock.advance(Duration::from_secs(20 * 24 * 3_600));
    let control = async |kind: &str, data: serde_json::Value| {
        let id = format!("evt_{kind}");
        let body = json!({"event_id": id, "event_type": kind, "data": data}).to_string();
        let t = u64::try_from(producer.clock.now().as_micros()).expect("after 1970") / 1_000_000;
        let headers = producer.signer.headers(t, &id, body.as_bytes());
        let reply = world.post(request(headers.into_iter().collect(), body.into()));
        let reply = reply.await;
        assert!(reply.is(200, "accepted").body.is_empty());
        assert_eq!(world.probe.runs(&id), 0);
    };
    let announced = json!({"since": "2026-05-01T00:00:00Z", "until": "2026-05-30T00:00:00Z"});
    control("subscription.replay_started", announced).await;
    for event in &events {
        producer.send(&world, event).await.is_duplicate();
        assert_eq!(world.probe.runs(&event.id), 1);
    }
    control(
        "subscription.replay_completed",
        json!({"events_emitted": 12}),
    )
    .await;
    assert_eq!(world.ledger().await.len(), 12);
}

/// "Backoff curve": "mints a new delivery from the old payload, so your dedupe key still means one attempt". Whatever
/// its unsigned headers say: the key is in the body.
async fn a_delivery_that_is_sent_again_from_the_log_is_a_duplicate<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Kudos);
    let world = producer.receiver(&db).start().await;
    let event = producer.event();
    producer.send(&world, &event).await.is_applied();
    for original in [event.id.as_str(), "evt_of_another_name"] {
        producer.clock.advance(Duration::from_secs(3_600));
        let body = producer.body(&event);
        let mut headers = producer.headers(&event, &body, 1);
        let original = HeaderValue::from_str(original).expect("ASCII");
        headers.insert("x-kudos-original-event-id", original);
        world.post(request(headers, body)).await.is_duplicate();
    }
    assert_eq!(world.applied().await, [event.id]);
}

/// "Signing-secret rotation (overlap, not cutover)", its four steps; the receiver is who verifies.
async fn a_rotation_with_overlap_refuses_nobody_until_the_old_secret_is_revoked<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Kudos);
    let (old, new) = ("the old secret".to_owned(), "the new secret".to_owned());
    let setup = producer.receiver(&db);
    let world = setup
        .source(|source| source.secrets([old.clone()]))
        .start()
        .await;
    let send = async |producer: &mut Producer, secrets: &[&String]| {
        let secrets: Vec<_> = secrets.iter().copied().cloned().collect();
        producer.signer.replace(&secrets).expect("secrets");
        let event = producer.event();
        let body = producer.body(&event);
        let headers = producer.headers(&event, &body, 1);
        let signatures = headers["x-kudos-signature"].to_str().expect("text");
        assert_eq!(signatures.matches("v1=").count(), secrets.len());
        world.post(request(headers, body).map(Body::from)).await
    };
    send(&mut producer, &[&old]).await.is_applied();
    // 1: the new one is minted, the old one stays valid.
    let secrets = world.inbox.secrets(SOURCE).expect("it has some");
    secrets
        .rotate(Secret::text(new.as_str()).expect("not empty"))
        .expect("there is room");
    send(&mut producer, &[&old]).await.is_applied();
    // 2, 3: both in the header.
    send(&mut producer, &[&old, &new]).await.is_applied();
    send(&mut producer, &[&new, &old]).await.is_applied();
    // 4: the old one is revoked, while both are still sent, and then it is dropped.
    let active = secrets.active();
    let demoted = active.iter().find(|active| !active.newest).expect("two");
    secrets.revoke(&demoted.label).expect("one is left");
    send(&mut producer, &[&old, &new]).await.is_applied();
    send(&mut producer, &[&new]).await.is_applied();
    // "the most common cause": here the new one was never sent.
    send(&mut producer, &[&old]).await.is(401, "rejected");
    assert_eq!(world.ledger().await.len(), 6);
}
