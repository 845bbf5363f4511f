//! Kudos' page, "What your handler must do": what the middleware does in its place. `docs/kudos.md`.

use std::time::Duration;

use tower_inbox::Preset as Row;

use super::producer::{Producer, status_in_amount};
use crate::db::TestDb;
use crate::kit::{Call, within};
use crate::shared::preset::Preset;

suite![
    the_row_is_inserted_before_any_business_logic,
    a_known_event_is_answered_200_and_no_handler_runs,
    a_handler_that_fails_takes_the_row_back_with_it,
    any_2xx_within_the_producers_patience_is_an_acknowledgment,
    a_known_event_id_with_other_data_is_refused,
];

/// 1: "attempt to insert a row before any business logic runs", in the handler's own transaction.
async fn the_row_is_inserted_before_any_business_logic<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Kudos);
    let prefix = db.prefix().to_owned();
    let world = producer.receiver(&db).handler(move |mut call: Call<D>| {
        let rows = format!(
            "SELECT COUNT(*) FROM {prefix}event WHERE state = 1 AND event_id = '{}'",
            call.delivery.event_id()
        );
        async move {
            match D::number_on(&mut call.tx, &rows).await {
                Ok(1) => http::StatusCode::NO_CONTENT,
                _ => http::StatusCode::UNPROCESSABLE_ENTITY,
            }
        }
    });
    let world = world.start().await;
    for event in producer
        .events(3, 1, true)
        .into_iter()
        .chain([producer.event()])
    {
        producer.send(&world, &event).await.is_applied();
    }
}

/// 2: "return 200 immediately … returning 4xx is wrong".
async fn a_known_event_is_answered_200_and_no_handler_runs<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Kudos);
    let world = producer.receiver(&db).start().await;
    let other = producer.receiver(&db).start().await;
    let event = producer.event();
    producer.send(&world, &event).await.is_applied();
    for world in [&world, &other, &world, &other] {
        producer.send(world, &event).await.is_duplicate();
    }
    assert_eq!(world.probe.runs(&event.id) + other.probe.runs(&event.id), 1);
}

/// 3: "If your handler throws, the insert rolls back too — the next retry has a clean slate."
async fn a_handler_that_fails_takes_the_row_back_with_it<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Kudos);
    let world = producer
        .receiver(&db)
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            match call.run {
                1 => panic!("this panic is part of the test"),
                2 => http::StatusCode::INTERNAL_SERVER_ERROR,
                _ => http::StatusCode::NO_CONTENT,
            }
        });
    let world = world.start().await;
    let event = producer.event();
    for _ in 0..2 {
        producer.send(&world, &event).await.is(500, "failed");
        assert_eq!(world.number("SELECT COUNT(*) FROM {p}event").await, 0);
        assert!(world.ledger().await.is_empty());
    }
    producer.send(&world, &event).await.is_applied();
    assert_eq!(world.applied().await, [event.id]);
}

/// 4: "2xx (anything in 200..299) within 8 seconds". A handler that would take longer is cut off a second earlier.
async fn any_2xx_within_the_producers_patience_is_an_acknowledgment<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Kudos);
    let world = status_in_amount(producer.receiver(&db)).start().await;
    for status in [200, 201, 202, 204, 250, 299] {
        let mut event = producer.event();
        event.amount = status;
        let status = u16::try_from(status).expect("a status");
        producer.send(&world, &event).await.is(status, "applied");
        producer.send(&world, &event).await.is_duplicate();
    }
    assert_eq!(Row::KUDOS.patience, Duration::from_secs(8));
    let budget = Duration::from_millis(500);
    let slow = producer
        .receiver(&db)
        .source(|source| source.budget(budget));
    let slow = slow.handler(|mut call: Call<D>| async move {
        call.append().await;
        if call.run == 1 {
            std::future::pending::<()>().await;
        }
    });
    let slow = slow.start().await;
    let event = producer.event();
    let cut = within(Row::KUDOS.patience, producer.send(&slow, &event)).await;
    cut.is(503, "failed");
    producer.send(&slow, &event).await.is(200, "applied");
    assert_eq!(slow.ledger().await.len(), 7);
}

/// "always carries the same event_type and the same data payload. The producer never edits a previously-fired event."
async fn a_known_event_id_with_other_data_is_refused<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Kudos);
    let world = producer.receiver(&db).start().await;
    let event = producer.event();
    producer.send(&world, &event).await.is_applied();
    let (mut amount, mut kind) = (event.clone(), event.clone());
    amount.amount += 1;
    kind.kind = "payment.disputed";
    for edited in [&amount, &kind] {
        let reply = producer.send(&world, edited).await;
        reply.is_problem_about(422, "rejected", "other content");
    }
    producer.send(&world, &event).await.is_duplicate();
    assert_eq!(world.applied().await, [event.id]);
}
