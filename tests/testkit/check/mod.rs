//! `check_idempotent`: a good app has no finding, and each bad one has its own and no other.

mod bad;
mod good;
mod outer;

use std::future::Future;

use axum::Router;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Pool, SqlSafeStr as _};
use tower_inbox::testkit::{self, Check, Checking, Report, TestBackend, TestDatabase};
use tower_inbox::{Delivery, Inbox, Preset, Source, Tx};

use crate::support::{On, SECRET};

/// Makes a test on SQLite out of each of these functions: what they show is the same on every database, and a check makes
/// a handful of them.
macro_rules! on_sqlite {
    ($($test:ident),+ $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test] async fn $test() { crate::support::run::<sqlx::Sqlite, _>(super::$test).await })+
        }
    };
}
use on_sqlite;

/// The secret that the producer rotates to.
const NEXT_SECRET: &str = "whsec_dG93ZXItaW5ib3gtdGVzdC1raXQtc2VjcmV0LTAy";

const SCHEMA: &str = "CREATE TABLE bookings (id VARCHAR(255) NOT NULL, amount BIGINT NOT NULL); \
     CREATE TABLE accounts (name VARCHAR(20) NOT NULL, balance BIGINT NOT NULL); \
     CREATE TABLE mails (id VARCHAR(255) NOT NULL); \
     INSERT INTO accounts VALUES ('a', 0)";

/// Kudos as `crm`, with both secrets.
fn source() -> Source {
    Source::kudos("crm").secrets([NEXT_SECRET, SECRET])
}

/// An app over this source, behind the inbox.
async fn app<D: TestBackend>(pool: Pool<D>, source: Source, router: Router) -> (Inbox<D>, Router) {
    let inbox = Inbox::builder(pool).source(source).build().await;
    let inbox = inbox.expect("an inbox");
    let routes = inbox.mount("crm", router);
    (inbox, routes)
}

/// A check of an app, with one payment of 5.
fn checking<D, F>(
    db: TestDatabase<D>,
    app: impl Fn(Pool<D>) -> F + Send + Sync + 'static,
) -> Checking<D>
where
    D: On,
    F: Future<Output = (Inbox<D>, Router)> + Send + 'static,
{
    testkit::check_idempotent(db, app)
        .schema(SCHEMA)
        .producer(Preset::KUDOS, SECRET)
        .rotating_to(NEXT_SECRET)
        .to("/webhooks/crm")
        .event("payment", json!({"amount": 5}))
}

/// A check of the routes that this makes, behind an inbox over Kudos.
fn of_routes<D: On>(
    db: TestDatabase<D>,
    router: impl Fn(Pool<D>) -> Router + Send + Sync + 'static,
) -> Checking<D> {
    checking(db, move |pool| app(pool.clone(), source(), router(pool)))
}

/// Demands that there are findings of this check, all with this in what they say, and none of another one.
#[track_caller]
fn assert_only(report: &Report, check: Check, says: &str) {
    let findings = report.findings();
    assert!(!findings.is_empty(), "nothing found, instead of {check}");
    for finding in findings {
        assert_eq!(finding.check, check, "{report}");
        assert!(finding.what.contains(says), "{says}\n\n{report}");
    }
    let text = report.to_string();
    assert!(text.contains(&findings[0].remedy), "{text}");
    assert!(text.contains("  | check-payment"), "its story: {text}");
}

/// What a booking comes to: refused, or failed.
enum NotBooked {
    Unreadable,
    Failed,
}

/// Books a payment as it should be done.
async fn book<D: TestBackend>(
    tx: &mut Tx<D>,
    event: &Delivery,
    body: &Value,
) -> Result<(), NotBooked> {
    let amount = body["data"]["amount"].as_i64();
    let amount = amount.ok_or(NotBooked::Unreadable)?;
    let id = event.event_id();
    for statement in [
        format!("INSERT INTO bookings (id, amount) VALUES ('{id}', {amount})"),
        format!("UPDATE accounts SET balance = balance + {amount} WHERE name = 'a'"),
    ] {
        let done = D::run(tx, AssertSqlSafe(statement).into_sql_str()).await;
        done.map_err(|_| NotBooked::Failed)?;
    }
    Ok(())
}

/// Notes a mail by whatever connection there is.
async fn mail<D: TestBackend>(conn: &mut D::Connection, id: &str) -> Result<(), sqlx::Error> {
    let statement = format!("INSERT INTO mails (id) VALUES ('{id}')");
    D::run(conn, AssertSqlSafe(statement).into_sql_str()).await
}
