//! The strategy of guaranteed consistency, step by step: `docs/consistency.md`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::producer::{Producer, Story, Way, pauses, request, status_in_amount};
use crate::db::TestDb;
use crate::kit::{Call, Gate, eventually, seeded};
use crate::shared::plan::Event;
use crate::shared::preset::Preset;
use crate::shared::schedule::Ending;
use axum::body::Body;
use http::{HeaderValue, Request};

suite![
    an_event_is_numbered_in_the_transaction_of_its_state_change,
    a_delivery_has_all_three_identifiers_and_none_may_contradict_the_body,
    the_signature_comes_first_and_then_the_table,
    an_event_after_a_gap_is_parked_with_202_and_comes_again_until_its_200,
    the_state_change_and_the_key_are_there_together_or_not_at_all,
    no_answer_goes_out_before_the_commit,
    an_acknowledgment_that_is_lost_is_followed_by_already_processed,
    timeouts_and_5xx_are_tried_again_with_the_same_identifiers,
    reordered_duplicated_and_lost_deliveries_are_applied_once_and_in_order,
    a_duplicate_that_slips_past_the_table_is_stopped_by_the_sequence,
];

const MINUTE: Duration = Duration::from_secs(60);

/// Step 1: the producer's own database. A change that is rolled back takes its number back with it: no gap.
async fn an_event_is_numbered_in_the_transaction_of_its_state_change<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let world = producer.receiver(&db).start().await;
    for table in [
        "CREATE TABLE orders (id VARCHAR(40) PRIMARY KEY, state VARCHAR(40) NOT NULL, last_sequence BIGINT NOT NULL)",
        "CREATE TABLE outbox (event_id VARCHAR(40) PRIMARY KEY, correlation_id VARCHAR(40) NOT NULL,
            sequence BIGINT NOT NULL, UNIQUE (correlation_id, sequence))",
        "INSERT INTO orders (id, state, last_sequence) VALUES ('order-7', 'new', 0)",
    ] {
        world.execute(table).await;
    }
    let changes = [
        ("paid", "COMMIT"),
        ("lost", "ROLLBACK"),
        ("packed", "COMMIT"),
        ("sent", "COMMIT"),
    ];
    for (state, end) in changes {
        let mut conn = world.eyes.acquire().await.expect("a connection");
        for sql in [
            "BEGIN",
            &format!(
                "UPDATE orders SET state = '{state}', last_sequence = last_sequence + 1 WHERE id = 'order-7'"
            ),
            &format!(
                "INSERT INTO outbox (event_id, correlation_id, sequence)
                SELECT 'evt_{state}', id, last_sequence FROM orders WHERE id = 'order-7'"
            ),
            end,
        ] {
            D::execute(&mut conn, sql).await.expect("it is executed");
        }
    }
    // The dispatcher reads what was committed, and nothing else.
    let ids = world
        .texts("SELECT event_id FROM outbox ORDER BY sequence")
        .await;
    assert_eq!(ids, ["evt_paid", "evt_packed", "evt_sent"]);
    let template = producer.events(1, 1, true).remove(0);
    for id in ids {
        let sequence = format!("SELECT sequence FROM outbox WHERE event_id = '{id}'");
        let mut event = template.clone();
        let order = event.order.as_mut().expect("it is sequenced");
        order.sequence = u64::try_from(world.number(&sequence).await).expect("positive");
        order.correlation = "order-7".into();
        event.id = id;
        producer.send(&world, &event).await.is_applied();
    }
    assert_eq!(world.sequences("order-7").await, [1, 2, 3]);
}

/// Step 2: in the body, which is signed; the headers say the same, or the delivery is refused.
async fn a_delivery_has_all_three_identifiers_and_none_may_contradict_the_body<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let world = producer.receiver(&db).start().await;
    let event = producer.events(1, 1, true).remove(0);
    let order = event.order.clone().expect("it is sequenced");
    let identifiers = [
        ("x-event-id", event.id.clone()),
        ("x-correlation-id", order.correlation.clone()),
        ("x-sequence", order.sequence.to_string()),
    ];
    let body = producer.body(&event);
    let headers = producer.headers(&event, &body, 1);
    let said: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(said["event_id"], event.id);
    assert_eq!(said["correlation_id"], order.correlation);
    assert_eq!(said["sequence"], order.sequence);
    for (name, value) in &identifiers {
        assert_eq!(headers[*name], value);
        let mut other = headers.clone();
        other.insert(*name, HeaderValue::from_static("7"));
        let reply = world.post(request(other, body.clone())).await;
        reply.is_problem_about(400, "rejected", name);
    }
    assert!(world.ledger().await.is_empty());
    world.post(request(headers, body)).await.is_applied();
}

/// Step 3: "validates the signature and checks the dedup table; if present, returns already processed (200) immediately".
async fn the_signature_comes_first_and_then_the_table<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let world = producer.receiver(&db).start().await;
    let event = producer.events(1, 1, true).remove(0);
    producer.send(&world, &event).await.is_applied();
    producer.send(&world, &event).await.is_duplicate();
    // By another process, which has to look, and which knows a forgery without looking: its database is away.
    let other = producer.receiver(&db).start().await;
    producer.send(&other, &event).await.is_duplicate();
    assert_eq!(other.probe.runs(&event.id), 0);
    let blind = producer.receiver(&db).start().await;
    blind.pool.close().await;
    let body = producer.body(&event);
    let headers = producer.headers(&event, &body, 1);
    let mut forged = headers.clone();
    let signature = headers["x-signature"].to_str().expect("text");
    let (time, _) = signature.split_once(",v1=").expect("a signature");
    let signature = format!("{time},v1={}", "0".repeat(64));
    forged.insert(
        "x-signature",
        HeaderValue::from_str(&signature).expect("ASCII"),
    );
    let refused = blind.post(request(forged, body.clone())).await;
    refused.is(401, "rejected");
    blind.post(request(headers, body)).await.is(503, "failed");
}

/// Step 4: "on a gap, parks the event and returns 202 (retry later)".
async fn an_event_after_a_gap_is_parked_with_202_and_comes_again_until_its_200<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let world = producer.receiver(&db).start().await;
    let mut events = producer.events(3, 1, true);
    events.reverse();
    let (first, now) = (events[2].id.clone(), Duration::from_secs(16));
    // What fills the gap is held up on its way.
    let way = |event: &Event, _: u32, at: Duration| match event.id == first && at < now {
        true => Way::Down,
        false => Way::Through,
    };
    let stories = producer.run(&world, &events, way).await;
    for story in &stories[..2] {
        let statuses = story.statuses();
        let (last, parked) = statuses.split_last().expect("attempts");
        assert!(matches!(last, 200 | 204), "{statuses:?}");
        assert!(
            parked.len() >= 2 && parked.iter().all(|status| *status == 202),
            "{statuses:?}"
        );
        let reply = story.sent[0].reply.as_ref().expect("an answer");
        reply.is_parked(1);
        // It comes when it was told to.
        let wait = reply.retry_after().expect("a time to come again");
        assert_eq!(story.sent[1].at, wait);
    }
    assert!(
        stories
            .iter()
            .all(|story| story.verdict == Some(Ending::Delivered))
    );
    let account = &events[0]
        .order
        .as_ref()
        .expect("it is sequenced")
        .correlation;
    eventually("all are applied", async || world.ledger().await.len() == 3).await;
    assert_eq!(world.sequences(account).await, [1, 2, 3]);
}

/// Step 5: whatever the handler has written goes with the key.
async fn the_state_change_and_the_key_are_there_together_or_not_at_all<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let world = status_in_amount(producer.receiver(&db)).start().await;
    let both = async || {
        let keys = world.in_state(1).await;
        let effects = i64::try_from(world.ledger().await.len()).expect("few");
        assert_eq!(keys, effects);
        effects
    };
    for (n, mut event) in (0..).zip(producer.events(3, 1, true)) {
        event.amount = 503;
        producer.send(&world, &event).await.is(503, "failed");
        assert_eq!(both().await, n);
        producer.send(&world, &event).await.is_applied();
        assert_eq!(both().await, n + 1);
        producer.send(&world, &event).await.is_duplicate();
        assert_eq!(both().await, n + 1);
    }
}

/// Step 6: "only after commit".
async fn no_answer_goes_out_before_the_commit<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let gate = Gate::shut();
    let held = gate.clone();
    let world = producer.receiver(&db).handler(move |mut call: Call<D>| {
        let gate = held.clone();
        async move {
            call.append().await;
            gate.pass().await;
            http::StatusCode::OK
        }
    });
    let world = world.start().await;
    let event = producer.events(1, 1, true).remove(0);
    let sent = {
        let (world, body) = (world.clone(), producer.body(&event));
        let request: Request<Body> = request(producer.headers(&event, &body, 1), body);
        tokio::spawn(async move { world.post(request).await })
    };
    gate.reached_by(1).await;
    assert!(!sent.is_finished());
    assert!(world.ledger().await.is_empty(), "nobody else sees it yet");
    gate.open();
    sent.await.expect("an answer").is(200, "applied");
    // By another connection, which sees what is committed.
    assert_eq!(world.applied().await, [event.id]);
    assert_eq!(world.in_state(1).await, 1);
}

/// Steps 6 and 7: "a crash between commit and ack is safe — the retry hits the dedup table".
async fn an_acknowledgment_that_is_lost_is_followed_by_already_processed<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let world = producer.receiver(&db).start().await;
    let event = producer.events(1, 1, true).remove(0);
    let lost = |_: &Event, number, _| {
        if number < 4 {
            Way::AnswerLost
        } else {
            Way::Through
        }
    };
    let story = producer.deliver(&world, &event, lost).await;
    story.ends(Ending::Delivered, 4).last().is_duplicate();
    assert_eq!(story.statuses(), [204, 200, 200, 200]);
    assert_eq!(world.applied().await, [event.id]);
}

/// Step 7: at 0, 1, 5, 21 and 85 s, "reusing the same identifiers".
async fn timeouts_and_5xx_are_tried_again_with_the_same_identifiers<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let world = status_in_amount(producer.receiver(&db)).start().await;
    let mut event = producer.events(1, 1, true).remove(0);
    event.amount = 500;
    let down = |_: &Event, number, _| if number < 4 { Way::Down } else { Way::Through };
    let story = producer.deliver(&world, &event, down).await;
    story.ends(Ending::Delivered, 5);
    assert_eq!(story.statuses(), [0, 0, 0, 500, 204]);
    let at: Vec<_> = story.sent.iter().map(|sent| sent.at.as_secs()).collect();
    assert_eq!(at, [0, 1, 5, 21, 85]);
    let order = event.order.as_ref().expect("it is sequenced");
    assert_eq!(story.header("x-event-id"), [event.id.as_str(); 5]);
    assert_eq!(
        story.header("x-correlation-id"),
        [order.correlation.as_str(); 5]
    );
    assert_eq!(story.header("x-sequence"), ["1"; 5]);
    assert!(
        story
            .sent
            .iter()
            .all(|sent| sent.body == story.sent[0].body)
    );
}

/// Step 7: "1s, 4s, 16s, 64s, capped at 5 min", within the 5 minutes of step 8.
#[test]
fn the_pauses_are_1_4_16_and_64_seconds_and_the_rest_of_five_minutes() {
    let pauses = pauses("sequenced", &mut seeded("the pauses of sequenced"));
    let seconds: Vec<_> = pauses.iter().map(Duration::as_secs).collect();
    assert_eq!(seconds, [1, 4, 16, 64, 215]);
    assert_eq!(pauses.iter().sum::<Duration>(), 5 * MINUTE);
    let row = tower_inbox::Preset::SEQUENCED;
    assert_eq!(row.recovery_window(), 5 * MINUTE);
    assert!(row.retry_span >= 5 * MINUTE);
}

/// "Order integrity", with everything that can happen on the way.
async fn reordered_duplicated_and_lost_deliveries_are_applied_once_and_in_order<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let worlds = [
        producer.receiver(&db).start().await,
        producer.receiver(&db).start().await,
    ];
    let mut events = producer.events(40, 4, true);
    let mut expected = BTreeMap::<_, Vec<i64>>::new();
    for event in &events {
        let order = event.order.as_ref().expect("it is sequenced");
        let sequence = i64::try_from(order.sequence).expect("small");
        expected
            .entry(order.correlation.clone())
            .or_default()
            .push(sequence);
    }
    events.extend_from_within(..10);
    producer.rng.shuffle(&mut events);
    let mut rng = producer.rng.fork();
    let ways = [Way::Through, Way::Down, Way::AnswerLost];
    let any = |_: &Event, number, _| match number {
        1..=3 => ways[rng.usize(..3)],
        _ => Way::Through,
    };
    let stories: Vec<Story> = producer.run_over(&worlds, &events, any).await;
    assert!(
        stories
            .iter()
            .all(|story| story.verdict == Some(Ending::Delivered)),
        "{stories:?}"
    );
    eventually("all are applied", async || {
        worlds[0].ledger().await.len() == 40
    })
    .await;
    for (account, sequences) in expected {
        assert_eq!(worlds[0].sequences(&account).await, sequences, "{account}");
    }
}

/// "conditional writes …, so a duplicate slipping past dedup still cannot double-apply": the cursor is a
/// compare-and-swap. A handler's own entities have `Tx::guard`.
async fn a_duplicate_that_slips_past_the_table_is_stopped_by_the_sequence<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let forgetful = |producer: &Producer| producer.receiver(&db).inbox(|inbox| inbox.remembered(0));
    let world = forgetful(&producer).start().await;
    let events = producer.events(3, 1, true);
    for event in &events {
        producer.send(&world, event).await.is_applied();
    }
    assert_eq!(world.execute("DELETE FROM {p}event").await, 3);
    for event in &events {
        producer.send(&world, event).await.is_duplicate();
        assert_eq!(world.probe.runs(&event.id), 1);
    }
    assert_eq!(world.ledger().await.len(), 3);
}
