//! §7.4: replay bursts, between two control events of the producer.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use serde_json::{Value, json};
use tower_inbox::clock::Clock;
use tower_inbox::{Burst, BurstState};

use crate::db::TestDb;
use crate::kit::watch::Watch;
use crate::kit::{Event, SOURCE, TestClock, World, eventually, http, numbered};

suite![
    what_arrives_between_start_and_end_is_counted_by_outcome,
    fewer_than_announced_is_told_once_and_only_when_all_have_had_time_to_count,
    a_control_event_counts_once_however_often_it_is_delivered,
    control_events_reach_the_handler_only_if_they_are_asked_for,
    an_end_that_overtakes_its_start_is_put_together_with_it,
    an_end_that_never_comes_is_given_up,
    bursts_at_the_same_time_end_in_the_order_in_which_they_began,
    only_the_type_that_is_sent_again_is_counted,
    the_counts_of_several_processes_add_up,
    what_cannot_be_noted_is_not_acknowledged,
];

fn started(id: &str, data: Value) -> Event {
    Event::new(id)
        .with("event_type", "subscription.replay_started")
        .with("data", data)
}

fn completed(id: &str, emitted: u64) -> Event {
    Event::new(id)
        .with("event_type", "subscription.replay_completed")
        .with("data", json!({"events_emitted": emitted}))
}

async fn bursts<D: TestDb>(world: &World<D>) -> Vec<Burst> {
    world.inbox.bursts(SOURCE).await.expect("they are listed")
}

async fn only<D: TestDb>(world: &World<D>) -> Burst {
    let mut all = bursts(world).await;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// §7.4. Kudos' page: started, the original events with their ids, completed.
async fn what_arrives_between_start_and_end_is_counted_by_outcome<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .answers(|call| match call.delivery.event_id() {
            "evt_bad" => 422,
            _ => 0,
        })
        .start()
        .await;
    for id in ["evt_1", "evt_2"] {
        world.send(&Event::new(id)).await.is_applied();
    }
    let what = json!({"since": "2026-05-01T00:00:00Z", "until": "2026-05-30T08:42:11.5+02:00", "event_type": null});
    let start = started("ctl_1", what);
    world.send(&start).await.is(200, "accepted");
    let running = only(&world).await;
    assert_eq!(
        (running.state, running.missing()),
        (BurstState::Running, None)
    );
    assert_eq!(running.since.unwrap().as_secs(), 1_777_593_600);
    assert_eq!(running.until.unwrap().as_micros(), 1_780_123_331_500_000);
    for id in ["evt_1", "evt_2"] {
        world.send(&Event::new(id)).await.is_duplicate();
    }
    world.send(&Event::new("evt_3")).await.is_applied();
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&Event::new("evt_bad")).await.is(422, "rejected");
    world.send(&completed("ctl_2", 5)).await.is(200, "accepted");
    let burst = only(&world).await;
    assert_eq!(
        (burst.id.as_str(), burst.state),
        ("ctl_1", BurstState::Completed)
    );
    assert_eq!(
        (burst.applied, burst.duplicates, burst.parked, burst.others),
        (1, 2, 1, 1)
    );
    assert_eq!(
        (burst.announced, burst.arrived(), burst.missing()),
        (Some(5), 5, Some(0))
    );
    assert_eq!(world.probe.runs("ctl_1"), 0);
}

/// §7.4
async fn fewer_than_announced_is_told_once_and_only_when_all_have_had_time_to_count<D: TestDb>(
    db: D,
) {
    let clock = TestClock::new();
    let own = clock.clone();
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.clock(own))
        .start()
        .await;
    let start = format!("ctl_{}", db.prefix());
    let watch = Watch::everything();
    world.send(&started(&start, json!({}))).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    world.send(&completed("ctl_end", 3)).await;
    assert_eq!(only(&world).await.missing(), Some(2));
    let told = |line: &String| {
        line.starts_with("WARN") && line.contains(&start) && line.contains("fewer events")
    };
    let mut lines = watch.take();
    assert!(!lines.iter().any(told), "too early");
    // The end overtook one of them.
    world.send(&Event::new("evt_2")).await.is_applied();
    clock.advance(Duration::from_secs(16));
    assert_eq!(only(&world).await.missing(), Some(1));
    only(&world).await;
    eventually("it is told", async || {
        lines.extend(watch.take());
        lines.iter().any(told)
    })
    .await;
    assert_eq!(lines.iter().filter(|line| told(line)).count(), 1);
    // Counted no more.
    world.send(&Event::new("evt_3")).await.is_applied();
    assert_eq!(only(&world).await.arrived(), 2);
}

/// §7.4
async fn a_control_event_counts_once_however_often_it_is_delivered<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let start = started("ctl_1", json!({}));
    let end = completed("ctl_2", 2);
    world.send(&start).await.is(200, "accepted");
    world.send(&Event::new("evt_1")).await.is_applied();
    world.send(&start).await.is(200, "accepted");
    world.send(&Event::new("evt_2")).await.is_applied();
    let both = [world.spawn(&end), world.spawn(&end)];
    for reply in both {
        reply.await.unwrap().is(200, "accepted");
    }
    world
        .send(&started("ctl_3", json!({})))
        .await
        .is(200, "accepted");
    // Of the first one, again: it does not end the second.
    world.send(&end).await.is(200, "accepted");
    world.send(&start).await.is(200, "accepted");
    let all = bursts(&world).await;
    let states: Vec<_> = all
        .iter()
        .map(|burst| (burst.id.as_str(), burst.state))
        .collect();
    assert_eq!(
        states,
        [
            ("ctl_3", BurstState::Running),
            ("ctl_1", BurstState::Completed)
        ]
    );
    assert_eq!((all[1].arrived(), all[1].missing()), (2, Some(0)));
}

/// §3, §7.4. Issue 6: "control events reach the handler only if asked for".
async fn control_events_reach_the_handler_only_if_they_are_asked_for<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.control_events_to_handler(true))
        .start()
        .await;
    let start = started("ctl_1", json!({}));
    world.send(&start).await.is_applied();
    world.send(&start).await.is_duplicate();
    world.send(&Event::new("evt_1")).await.is_applied();
    world.send(&completed("ctl_2", 1)).await.is_applied();
    assert_eq!(world.applied().await, ["ctl_1", "evt_1", "ctl_2"]);
    let burst = only(&world).await;
    assert_eq!(
        (burst.arrived(), burst.missing()),
        (1, Some(0)),
        "they are none of its events"
    );
}

/// §7.4
async fn an_end_that_overtakes_its_start_is_put_together_with_it<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world
        .send(&completed("ctl_end", 7))
        .await
        .is(200, "accepted");
    let orphan = only(&world).await;
    assert_eq!(
        (orphan.started_at, orphan.announced, orphan.missing()),
        (None, Some(7), None)
    );
    world.send(&Event::new("evt_1")).await.is_applied();
    // A retry, as Kudos marks it: what was sent first is another burst.
    let again = |event: &Event| -> Request<Body> {
        let mut request = world.request(event);
        let attempt = "2".parse().unwrap();
        request
            .headers_mut()
            .insert("x-kudos-delivery-attempt", attempt);
        request
    };
    let start = started("ctl_start", json!({"event_type": "payment.succeeded"}));
    world.post(again(&start)).await.is(200, "accepted");
    world.post(again(&start)).await.is(200, "accepted");
    let burst = only(&world).await;
    assert_eq!(
        (burst.id.as_str(), burst.state),
        ("ctl_start", BurstState::Completed)
    );
    assert_eq!(
        (burst.arrived(), burst.missing()),
        (0, None),
        "nothing could be counted"
    );
    world
        .send(&started("ctl_new", json!({})))
        .await
        .is(200, "accepted");
    assert_eq!(bursts(&world).await.len(), 2);
}

/// §7.4
async fn an_end_that_never_comes_is_given_up<D: TestDb>(db: D) {
    let clock = TestClock::new();
    let own = clock.clone();
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.clock(own))
        .start()
        .await;
    world.send(&started("ctl_1", json!({}))).await;
    clock.advance(Duration::from_secs(12 * 3_600 - 1));
    assert_eq!(only(&world).await.state, BurstState::Running);
    clock.advance(Duration::from_secs(2));
    assert_eq!(only(&world).await.state, BurstState::Abandoned);
    // The next end is of the next one.
    let post = async |event: Event| {
        let request = http(&[&world.secret()], clock.now(), event.body());
        world.post(request.map(|_| Body::from(event.body()))).await
    };
    post(started("ctl_2", json!({}))).await.is(200, "accepted");
    post(completed("ctl_3", 0)).await.is(200, "accepted");
    let all = bursts(&world).await;
    assert_eq!(
        (all[0].id.as_str(), all[0].state),
        ("ctl_2", BurstState::Completed)
    );
    assert_eq!((all[1].announced, all[1].missing()), (None, None));
}

/// §7.4
async fn bursts_at_the_same_time_end_in_the_order_in_which_they_began<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&started("ctl_1", json!({}))).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    world.send(&started("ctl_2", json!({}))).await;
    world.send(&Event::new("evt_2")).await.is_applied();
    world.send(&completed("ctl_3", 2)).await;
    world.send(&completed("ctl_4", 1)).await;
    let all = bursts(&world).await;
    let shown: Vec<_> = all
        .iter()
        .map(|burst| {
            (
                burst.id.as_str(),
                burst.announced,
                burst.arrived(),
                burst.missing(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("ctl_2", Some(1), 1, Some(0)),
            ("ctl_1", Some(2), 2, Some(0))
        ]
    );
}

/// §7.4
async fn only_the_type_that_is_sent_again_is_counted<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let start = started("ctl_1", json!({"event_type": "invoice.paid"}));
    world.send(&start).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    let invoice = Event::new("evt_2").with("event_type", "invoice.paid");
    world.send(&invoice).await.is_applied();
    world.send(&completed("ctl_2", 2)).await;
    let burst = only(&world).await;
    assert_eq!((burst.arrived(), burst.missing()), (1, Some(1)));
}

/// §7.4. A load balancer gives each process a part of it; the second learns of it from the database.
async fn the_counts_of_several_processes_add_up<D: TestDb>(db: D) {
    let one = World::<D>::start(&db).await;
    let other = World::<D>::start(&db).await;
    // Its last look was before the burst began.
    other.inbox.bursts(SOURCE).await.unwrap();
    one.send(&started("ctl_1", json!({}))).await;
    for n in 0..10 {
        let world = if n % 2 == 0 { &one } else { &other };
        world
            .send(&Event::new(&format!("evt_{n}")))
            .await
            .is_applied();
    }
    one.send(&completed("ctl_2", 10)).await;
    other.inbox.bursts(SOURCE).await.unwrap();
    let burst = only(&one).await;
    assert_eq!((burst.applied, burst.missing()), (10, Some(0)));
    other.inbox.bursts(SOURCE).await.unwrap();
    assert_eq!(only(&one).await.applied, 10, "nothing is added twice");
}

/// §3, §7.4. A 200 would end the producer's attempts, and nobody would know of the burst.
async fn what_cannot_be_noted_is_not_acknowledged<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world
        .execute("ALTER TABLE {p}burst RENAME TO {p}away")
        .await;
    let start = started("ctl_1", json!({}));
    world.send(&start).await.is(503, "failed");
    world
        .execute("ALTER TABLE {p}away RENAME TO {p}burst")
        .await;
    world.send(&start).await.is(200, "accepted");
    assert_eq!(only(&world).await.id, "ctl_1");
    world.pool_is_whole().await;
}
