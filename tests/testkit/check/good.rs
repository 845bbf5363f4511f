//! Apps that are as they should be.

use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use tower_inbox::testkit::{self, App, Check, TestDatabase};
use tower_inbox::{Delivery, Inbox, Preset, Source, Tx, TxError};

use super::{NotBooked, SCHEMA, book, mail, of_routes};
use crate::support::{On, SECRET, on_each_database, panics};

on_each_database!(a_good_app_has_no_finding);

async fn on_event<D: On>(mut tx: Tx<D>, event: Delivery, Json(body): Json<Value>) -> StatusCode {
    let done = match event.event_type() {
        Some("payment" | "refund") => book(&mut tx, &event, &body).await,
        _ => Ok(()),
    };
    match done {
        Ok(()) if mail::<D>(&mut tx, event.event_id()).await.is_ok() => StatusCode::NO_CONTENT,
        Ok(()) | Err(NotBooked::Failed) => StatusCode::INTERNAL_SERVER_ERROR,
        Err(NotBooked::Unreadable) => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

pub(super) fn routes<D: On>() -> Router {
    Router::new().route("/webhooks/{who}", post(on_event::<D>))
}

/// A column that the database numbers, one that refers to it, and triggers that fill both for each booking.
fn numbering(database: &str) -> [&'static str; 4] {
    match database {
        "sqlite" => [
            "INTEGER PRIMARY KEY",
            "INTEGER",
            "CREATE TRIGGER entered AFTER INSERT ON bookings \
             BEGIN INSERT INTO entries (text) VALUES ('booked'); END",
            "CREATE TRIGGER noted AFTER INSERT ON entries BEGIN INSERT INTO notes VALUES (NEW.n); END",
        ],
        "postgres" => [
            "BIGSERIAL PRIMARY KEY",
            "BIGINT",
            "CREATE FUNCTION entered() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN INSERT INTO entries (text) VALUES ('booked'); RETURN NEW; END $$; \
             CREATE TRIGGER entered AFTER INSERT ON bookings FOR EACH ROW EXECUTE FUNCTION entered()",
            "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN INSERT INTO notes VALUES (NEW.n); RETURN NEW; END $$; \
             CREATE TRIGGER noted AFTER INSERT ON entries FOR EACH ROW EXECUTE FUNCTION noted()",
        ],
        _ => [
            "BIGINT AUTO_INCREMENT PRIMARY KEY",
            "BIGINT",
            "CREATE TRIGGER entered AFTER INSERT ON bookings FOR EACH ROW \
             INSERT INTO entries (text) VALUES ('booked')",
            "CREATE TRIGGER noted AFTER INSERT ON entries FOR EACH ROW INSERT INTO notes VALUES (NEW.n)",
        ],
    }
}

/// A table whose names must be quoted, with values that are no texts.
fn odd(database: &str) -> &'static str {
    match database {
        "sqlite" => {
            "CREATE TABLE \"odd \"\"Table\" (\"a column\" BLOB, n REAL); \
             INSERT INTO \"odd \"\"Table\" VALUES (x'ff00', NULL)"
        }
        "postgres" => {
            "CREATE SCHEMA other; \
             CREATE TABLE other.\"odd \"\"Table\" (\"a column\" BYTEA, list TEXT[]); \
             INSERT INTO other.\"odd \"\"Table\" VALUES ('\\xff00', '{a,NULL}')"
        }
        _ => {
            "CREATE TABLE `odd ``Table` (`a column` BLOB, bits BIT(3), n DECIMAL(9, 2)); \
             INSERT INTO `odd ``Table` VALUES (x'ff00', b'101', 0.5)"
        }
    }
}

/// §4.1, §5.1: with columns that are something else in each run.
async fn a_good_app_has_no_finding<D: On>(db: TestDatabase<D>) {
    let [numbered, drawn, entered, noted] = numbering(D::LISTED_AS);
    let tables = format!(
        "CREATE TABLE entries (n {numbered}, text VARCHAR(20), at TIMESTAMP DEFAULT CURRENT_TIMESTAMP); \
         CREATE TABLE notes (entry {drawn}, FOREIGN KEY (entry) REFERENCES entries (n))"
    );
    let mut check = of_routes(db, |_| routes::<D>())
        .schema(tables)
        .schema(odd(D::LISTED_AS))
        .schema(entered)
        .schema(noted);
    if D::LISTED_AS == "sqlite" {
        // Each sample takes four databases, which are dear elsewhere.
        check = check.event("refund", json!({"amount": -2}));
    }
    let report = check.run().await;
    report.assert_ok().assert_clean();
    assert_eq!(report.not_run(), [], "{report}");
}

/// A producer without an order, an app that is no router, and a pool of one connection.
#[tokio::test]
async fn a_good_service_in_memory_has_no_finding() {
    async fn handler(request: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, TxError> {
        let event = request.extensions().get::<Delivery>().cloned();
        let mut tx = Tx::<sqlx::Sqlite>::take(request.extensions())?;
        let id = event.as_ref().map_or("", Delivery::event_id);
        let status = match mail::<sqlx::Sqlite>(&mut tx, id).await {
            Ok(()) => 204,
            Err(_) => 503,
        };
        let mut answer = Response::new(Full::new(Bytes::new()));
        *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
        Ok(answer)
    }
    let report = testkit::check_idempotent(testkit::sqlite_in_memory().await, |pool| async {
        let source = Source::new("crm", Preset::BRIEF).secrets([SECRET]);
        let inbox = Inbox::builder(pool).source(source).build().await;
        let inbox = inbox.expect("an inbox");
        let service = tower::ServiceBuilder::new()
            .layer(inbox.layer("crm"))
            .service_fn(handler);
        App::for_service(&inbox, service)
    })
    .schema(SCHEMA)
    .producer(Preset::BRIEF, SECRET)
    .sample(testkit::event("any").body(json!({"event_type": "note", "text": "a"})))
    .run()
    .await;
    report.assert_clean();
    let not_run: Vec<_> = report.not_run().iter().map(|(check, _)| *check).collect();
    assert_eq!(not_run, [Check::Rotation, Check::Drained]);
}

#[tokio::test]
async fn a_database_that_is_not_empty_is_refused() {
    let db = testkit::sqlite().await;
    db.execute(SCHEMA).await;
    let said = panics(of_routes(db, |_| routes::<sqlx::Sqlite>()).run()).await;
    assert!(said.contains("`.schema(…)`"), "{said}");
}
