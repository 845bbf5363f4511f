//! Handlers that are wrong in one way each.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Pool, SqlSafeStr as _};
use tower_inbox::testkit::{self, Check, Severity, TestDatabase};
use tower_inbox::{Delivery, Origin, Preset, Tx};

use super::{NotBooked, app, assert_only, book, checking, mail, of_routes, on_sqlite, source};
use crate::support::{On, SECRET, on_each_database, panics};

on_each_database!(
    a_transaction_that_is_kept_is_found,
    a_transaction_that_is_ended_is_found,
    an_error_that_is_swallowed_is_found,
    an_error_that_aborts_the_transaction_is_found,
    a_fault_that_becomes_a_verdict_is_found,
    an_effect_in_no_table_is_found,
    a_write_by_another_connection_is_found,
    a_transaction_that_is_never_taken_is_found,
    a_memory_of_what_is_done_is_found,
    a_worker_that_is_not_obeyed_is_found,
);

on_sqlite!(
    a_verdict_on_a_good_sample_is_found,
    a_panic_on_missing_fields_is_found,
    an_unknown_type_that_fails_is_found,
    a_second_writer_is_told_that_there_is_one,
    what_the_first_delivery_lacks_is_named,
);

/// A route of one handler.
macro_rules! route {
    ($handler:expr) => {
        Router::new().route("/webhooks/{any}", post($handler))
    };
}

/// What a careful handler makes of a booking.
fn careful(booked: Result<(), NotBooked>) -> StatusCode {
    match booked {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(NotBooked::Unreadable) => StatusCode::BAD_REQUEST,
        Err(NotBooked::Failed) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

async fn a_verdict_on_a_good_sample_is_found<D: On>(db: TestDatabase<D>) {
    let handler = |_: Tx<D>| async { StatusCode::IM_A_TEAPOT };
    let report = of_routes(db, move |_| route!(handler)).run().await;
    assert_only(&report, Check::First, "answered 418 rejected");
    assert!(report.findings()[0].remedy.contains("the answer's body"));
    let said = panics(async move { drop(report.assert_ok().clone()) }).await;
    let head = "1 finding\n\nerror: payment: is not applied [first]\n  answered 418 rejected, ";
    assert!(said.starts_with(head), "{said}");
}

/// §4.4
async fn a_transaction_that_is_kept_is_found<D: On>(db: TestDatabase<D>) {
    let handler = |mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>| async move {
        tokio::spawn(async move { drop(book(&mut tx, &event, &body).await) });
        StatusCode::ACCEPTED
    };
    let report = of_routes(db, move |_| route!(handler)).run().await;
    assert_only(&report, Check::Kept, "kept its transaction");
}

/// §4.4
async fn a_transaction_that_is_ended_is_found<D: On>(db: TestDatabase<D>) {
    let statement = match D::LISTED_AS {
        "sqlite" => "COMMIT",
        "postgres" => "ROLLBACK",
        // DDL commits.
        _ => "CREATE TABLE IF NOT EXISTS later (n INTEGER)",
    };
    let handler = move |mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>| async move {
        let booked = book(&mut tx, &event, &body).await;
        let _ = D::run(&mut tx, AssertSqlSafe(statement).into_sql_str()).await;
        careful(booked)
    };
    let report = of_routes(db, move |_| route!(handler)).run().await;
    assert_only(&report, Check::Ended, "was ended under it");
}

async fn an_error_that_is_swallowed_is_found<D: On>(db: TestDatabase<D>) {
    let handler = |mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>| async move {
        let _ = book(&mut tx, &event, &body).await;
        StatusCode::NO_CONTENT
    };
    let report = of_routes(db, move |_| route!(handler)).run().await;
    assert_only(
        &report,
        Check::Swallowed,
        "the database had refused its writes",
    );
}

/// §4.4: an error aborts a transaction on PostgreSQL only; elsewhere the statement alone is undone, and the 2xx counts.
async fn an_error_that_aborts_the_transaction_is_found<D: On>(db: TestDatabase<D>) {
    let handler = |mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>| async move {
        let booked = book(&mut tx, &event, &body).await;
        let nowhere = AssertSqlSafe("INSERT INTO nowhere VALUES (1)").into_sql_str();
        let _ = D::run(&mut tx, nowhere).await;
        careful(booked)
    };
    let report = of_routes(db, move |_| route!(handler)).run().await;
    if D::LISTED_AS == "postgres" {
        let says = "a statement of its transaction had failed";
        assert_only(&report, Check::Swallowed, says);
    } else {
        report.assert_clean();
    }
}

/// §4.13
async fn a_fault_that_becomes_a_verdict_is_found<D: On>(db: TestDatabase<D>) {
    let handler = |mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>| async move {
        match book(&mut tx, &event, &body).await {
            Ok(()) => StatusCode::NO_CONTENT,
            Err(_) => StatusCode::BAD_REQUEST,
        }
    };
    let report = of_routes(db, move |_| route!(handler)).run().await;
    assert_only(&report, Check::Fault, "answered 400 rejected");
}

/// §4.11
async fn an_effect_in_no_table_is_found<D: On>(db: TestDatabase<D>) {
    let mailer = Arc::new(AtomicI64::new(0));
    let sent = Arc::clone(&mailer);
    let routes = move |_| {
        let mailer = Arc::clone(&mailer);
        let handler = move |mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>| async move {
            let booked = book(&mut tx, &event, &body).await;
            if booked.is_ok() {
                mailer.fetch_add(1, Ordering::Relaxed);
            }
            careful(booked)
        };
        route!(handler)
    };
    let report = of_routes(db, routes)
        .watching("mails sent", move || sent.load(Ordering::Relaxed))
        .run()
        .await;
    assert_only(&report, Check::Outside, "+ mails sent (1)");
}

/// §4.11: SQLite has one writer, so that such a handler waits for itself there.
async fn a_write_by_another_connection_is_found<D: On>(db: TestDatabase<D>) {
    if D::LISTED_AS == "sqlite" {
        return;
    }
    let routes = |pool: Pool<D>| {
        let handler = move |mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>| async move {
            let booked = book(&mut tx, &event, &body).await;
            let mut other = pool.acquire().await.expect("a connection");
            match mail::<D>(&mut other, event.event_id()).await {
                Ok(()) => careful(booked),
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
            }
        };
        route!(handler)
    };
    let report = of_routes(db, routes).run().await;
    assert_only(&report, Check::Outside, "+ mails (check-payment)");
}

/// §4.11
async fn a_transaction_that_is_never_taken_is_found<D: On>(db: TestDatabase<D>) {
    let routes = |pool: Pool<D>| {
        let handler = move |event: Delivery| async move {
            let mut other = pool.acquire().await.expect("a connection");
            if D::LISTED_AS == "sqlite" {
                // It waits for its own inbox, and need not do so for long.
                let impatient = AssertSqlSafe("PRAGMA busy_timeout = 1").into_sql_str();
                D::run(&mut other, impatient).await.expect("a setting");
            }
            match mail::<D>(&mut other, event.event_id()).await {
                Ok(()) => StatusCode::NO_CONTENT,
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
            }
        };
        route!(handler)
    };
    let report = of_routes(db, routes).run().await;
    let check = match D::LISTED_AS {
        "sqlite" => Check::First,
        _ => Check::Outside,
    };
    assert_only(&report, check, "It never took its transaction");
    let waits = "a write through the pool waits for this transaction: write by `Tx`";
    let says_so = report.findings()[0].remedy.contains(waits);
    assert_eq!(says_so, D::LISTED_AS == "sqlite", "{report}");
}

async fn a_memory_of_what_is_done_is_found<D: On>(db: TestDatabase<D>) {
    let routes = |_| {
        let done = Arc::new(Mutex::new(HashSet::new()));
        let handler = move |mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>| async move {
            let is_new = match done.lock() {
                Ok(mut done) => done.insert(event.event_id().to_owned()),
                Err(_) => false,
            };
            if is_new {
                return careful(book(&mut tx, &event, &body).await);
            }
            StatusCode::NO_CONTENT
        };
        route!(handler)
    };
    let report = of_routes(db, routes).run().await;
    assert_only(&report, Check::Retry, "- bookings (");
}

/// §5.3
async fn a_worker_that_is_not_obeyed_is_found<D: On>(db: TestDatabase<D>) {
    let handler = |mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>| async move {
        if event.origin() == Origin::Drained {
            return StatusCode::NO_CONTENT;
        }
        careful(book(&mut tx, &event, &body).await)
    };
    let report = of_routes(db, move |_| route!(handler)).run().await;
    let finding = &report.findings()[0];
    assert_eq!(
        (report.findings().len(), finding.check),
        (1, Check::Drained)
    );
    assert!(finding.what.contains("- bookings ("), "{report}");
    assert!(finding.story.contains("called by the worker"), "{report}");
}

async fn a_panic_on_missing_fields_is_found<D: On>(db: TestDatabase<D>) {
    let handler = |mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>| async move {
        assert!(body["data"]["amount"].is_i64(), "there is always an amount");
        careful(book(&mut tx, &event, &body).await)
    };
    let report = of_routes(db, move |_| route!(handler)).run().await;
    assert_only(&report, Check::MissingFields, "the handler panicked");
    assert_eq!(report.findings()[0].check.severity(), Severity::Warning);
    report.assert_ok();
}

async fn an_unknown_type_that_fails_is_found<D: On>(db: TestDatabase<D>) {
    let handler = |mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>| async move {
        match event.event_type() {
            Some("payment") => careful(book(&mut tx, &event, &body).await),
            _ => StatusCode::NOT_IMPLEMENTED,
        }
    };
    let report = of_routes(db, move |_| route!(handler)).run().await;
    assert_only(&report, Check::UnknownType, "answered 501 failed");
}

/// SQLite has one writer: a handler that took its `Tx` waits for itself, until its time is spent.
async fn a_second_writer_is_told_that_there_is_one<D: On>(db: TestDatabase<D>) {
    let report = checking(db, |pool: Pool<D>| {
        let other = pool.clone();
        let handler = move |mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>| async move {
            let booked = book(&mut tx, &event, &body).await;
            let mut other = other.acquire().await.expect("a connection");
            match mail::<D>(&mut other, event.event_id()).await {
                Ok(()) => careful(booked),
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
            }
        };
        let source = source().budget(Duration::from_millis(500));
        app(pool, source, route!(handler))
    });
    let report = report.run().await;
    assert_only(&report, Check::Slow, "takes longer than the 500ms");
    let remedy = &report.findings()[0].remedy;
    assert!(remedy.ends_with("write by `Tx`."), "{report}");
}

async fn what_the_first_delivery_lacks_is_named<D: On>(db: TestDatabase<D>) {
    let handler = |mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>| async move {
        careful(book(&mut tx, &event, &body).await)
    };
    let without_tables =
        testkit::check_idempotent(db, move |pool| app(pool, source(), route!(handler)))
            .producer(Preset::KUDOS, SECRET)
            .to("/webhooks/crm")
            .event("payment", json!({"amount": 5}));
    let report = without_tables.run().await;
    assert_only(&report, Check::First, "answered 500 failed");
    assert!(
        report.findings()[0].remedy.contains("does `.schema(…)`"),
        "{report}"
    );
    let db = D::fresh().await.expect("another one");
    let other_secret = of_routes(db, move |_| route!(handler)).producer(Preset::KUDOS, "another");
    let report = other_secret.run().await;
    assert_only(&report, Check::First, "answered 401 rejected");
    assert!(
        report.findings()[0].remedy.contains("is not the source's"),
        "{report}"
    );
}

/// Enough for all that is not held up, on a machine that is busy.
const BUDGET: Duration = Duration::from_secs(2);

/// A handler that is held up once, in the first run of all.
fn slow_once(pause: Duration) -> impl Fn(Pool<sqlx::Sqlite>) -> Router {
    let was_slow = Arc::new(AtomicBool::new(false));
    move |_| {
        let was_slow = Arc::clone(&was_slow);
        let handler = move |mut tx: Tx<sqlx::Sqlite>, event: Delivery, Json(body): Json<Value>| async move {
            if !was_slow.swap(true, Ordering::Relaxed) {
                tokio::time::sleep(pause).await;
            }
            careful(book(&mut tx, &event, &body).await)
        };
        route!(handler)
    }
}

#[tokio::test]
async fn a_slow_handler_is_found() {
    let db = testkit::sqlite().await;
    let routes = slow_once(BUDGET * 11 / 20);
    let check = checking(db, move |pool| {
        app(pool.clone(), source().budget(BUDGET), routes(pool))
    });
    let report = check.run().await;
    assert_only(&report, Check::Slow, "that a delivery has");
}

#[tokio::test]
async fn a_handler_that_takes_all_of_its_time_is_found() {
    let db = testkit::sqlite().await;
    let routes = slow_once(Duration::MAX);
    let check = checking(db, move |pool| {
        app(pool.clone(), source().budget(BUDGET), routes(pool))
    });
    let report = check.run().await;
    assert_only(&report, Check::Slow, "takes longer than the 2s");
}
