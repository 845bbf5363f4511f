//! Apps whose handler is as it should be, and what is around it is not.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Extension, Router};
use http::StatusCode;
use serde_json::json;
use sqlx::{AssertSqlSafe, Pool, SqlSafeStr as _};
use tower_inbox::testkit::{Check, TestDatabase};
use tower_inbox::{Delivery, Inbox, Source, Tx};

use super::good::routes;
use super::{app, assert_only, checking, mail, on_sqlite, source};
use crate::support::{On, SECRET};

on_sqlite!(
    a_route_that_is_not_behind_the_inbox_is_found,
    a_layer_that_writes_for_each_delivery_is_found,
    a_start_that_writes_is_found,
    a_start_that_forgets_what_is_applied_is_found,
    a_layer_that_refuses_copies_is_found,
    a_layer_that_has_effects_behind_the_answer_is_found,
    an_app_that_knows_one_secret_is_found,
    an_extension_of_an_outer_layer_is_found,
);

async fn a_route_that_is_not_behind_the_inbox_is_found<D: On>(db: TestDatabase<D>) {
    let report = checking(db, |pool| async {
        let inbox = Inbox::builder(pool).source(source()).build().await;
        let router = Router::new().route("/webhooks/crm", post(|| async {}));
        (inbox.expect("an inbox"), router)
    });
    let report = report.run().await;
    assert_only(&report, Check::Inbox, "answered 200, and not by an inbox");
}

/// What the inbox says of an answer.
fn outcome(answer: &Response) -> &str {
    let outcome = answer.headers().get("inbox-outcome");
    outcome
        .and_then(|outcome| outcome.to_str().ok())
        .unwrap_or("")
}

/// A mail for each answer of this outcome, from an outer layer.
async fn mailing<D: On>(pool: Pool<D>, when: &'static str) -> (Inbox<D>, Router) {
    let (inbox, app) = app(pool.clone(), source(), routes::<D>()).await;
    let layer = from_fn(move |request: Request, next: Next| {
        let pool = pool.clone();
        async move {
            let answer = next.run(request).await;
            if outcome(&answer) == when {
                let mut conn = pool.acquire().await.expect("a connection");
                let mailed = mail::<D>(&mut conn, "outer").await;
                mailed.expect("a mail is noted");
            }
            answer
        }
    });
    (inbox, app.layer(layer))
}

async fn a_layer_that_writes_for_each_delivery_is_found<D: On>(db: TestDatabase<D>) {
    let report = checking(db, |pool| mailing(pool, "duplicate")).run().await;
    let says = "a redelivery changed the app's tables:\n    + mails (";
    assert_only(&report, Check::Again, says);
}

/// §4.5: what the layer would have done is lost with its request.
async fn a_layer_that_has_effects_behind_the_answer_is_found<D: On>(db: TestDatabase<D>) {
    let report = checking(db, |pool| mailing(pool, "applied")).run().await;
    assert_only(&report, Check::Disconnect, "- mails (");
}

/// An app that does this when it is started.
async fn starting_with<D: On>(pool: Pool<D>, statement: &'static str) -> (Inbox<D>, Router) {
    let made = app(pool.clone(), source(), routes::<D>()).await;
    let mut conn = pool.acquire().await.expect("a connection");
    let done = D::run(&mut conn, AssertSqlSafe(statement).into_sql_str()).await;
    done.expect("it is done");
    made
}

async fn a_start_that_writes_is_found<D: On>(db: TestDatabase<D>) {
    let statement = "INSERT INTO accounts VALUES ('b', 0)";
    let report = checking(db, move |pool| starting_with(pool, statement));
    let report = report.run().await;
    assert_only(&report, Check::Restart, "starting the app again changed");
}

async fn a_start_that_forgets_what_is_applied_is_found<D: On>(db: TestDatabase<D>) {
    let statement = "DELETE FROM tower_inbox_event";
    let report = checking(db, move |pool| starting_with(pool, statement));
    let report = report.run().await;
    let says = "after a restart a redelivery was answered 204 applied";
    assert_only(&report, Check::Restart, says);
}

type Running = Arc<Mutex<HashSet<String>>>;

/// An event's place among those that are running, until it is dropped.
struct Place(Running, String);

impl Place {
    fn take(running: &Running, request: &Request) -> Option<Self> {
        let id = request.headers().get("x-kudos-event-id")?.to_str().ok()?;
        let is_new = lock(running).insert(id.to_owned());
        is_new.then(|| Self(Arc::clone(running), id.to_owned()))
    }
}

fn lock(running: &Running) -> MutexGuard<'_, HashSet<String>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.0).remove(&self.1);
    }
}

/// §3: a 409 is terminal for this producer.
async fn a_layer_that_refuses_copies_is_found<D: On>(db: TestDatabase<D>) {
    let report = checking(db, |pool| async {
        let (inbox, app) = app(pool, source(), routes::<D>()).await;
        let running = Running::default();
        let layer = from_fn(move |request: Request, next: Next| {
            let place = Place::take(&running, &request);
            async move {
                match place {
                    Some(_place) => next.run(request).await,
                    None => StatusCode::CONFLICT.into_response(),
                }
            }
        });
        (inbox, app.layer(layer))
    });
    let report = report.run().await;
    assert_only(&report, Check::AtOnce, "was answered 409");
}

/// §6.1
async fn an_app_that_knows_one_secret_is_found<D: On>(db: TestDatabase<D>) {
    let report = checking(db, |pool| {
        app(pool, Source::kudos("crm").secrets([SECRET]), routes::<D>())
    });
    // Of two samples: it is told once.
    let report = report.event("payment", json!({"amount": 7})).run().await;
    assert_only(&report, Check::Rotation, "it is signed by the new secret");
    assert_eq!(report.findings().len(), 1, "{report}");
}

#[derive(Clone)]
struct Trace(&'static str);

/// §5.3
async fn an_extension_of_an_outer_layer_is_found<D: On>(db: TestDatabase<D>) {
    let handler = |Extension(trace): Extension<Trace>, mut tx: Tx<D>, _: Delivery| async move {
        match mail::<D>(&mut tx, trace.0).await {
            Ok(()) => StatusCode::NO_CONTENT,
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    };
    let report = checking(db, move |pool| async move {
        let router = Router::new().route("/webhooks/crm", post(handler));
        let (inbox, app) = app(pool, source(), router).await;
        (inbox, app.layer(Extension(Trace("traced"))))
    });
    let report = report.run().await;
    let finding = &report.findings()[0];
    assert_eq!(
        (report.findings().len(), finding.check),
        (1, Check::Drained)
    );
    assert!(finding.what.contains("not when it was parked"), "{report}");
    assert!(
        finding.story.contains("the handler answers 500"),
        "{report}"
    );
}
