//! Stories of what nobody knows for certain: they say so.

use axum::Router;
use axum::routing::post;
use http::StatusCode;
use sqlx::{AssertSqlSafe, SqlSafeStr as _};
use tower_inbox::testkit::{self, Kit, SignedRequest, Story, TestDatabase};
use tower_inbox::{Delivery, Preset, Tx};

use crate::support::{On, SECRET, app_with, append, kudos, on_each_database, panics};

on_each_database!(
    a_commit_of_the_handler_s_own_is_not_told_as_nothing,
    nor_is_what_was_written_behind_a_rollback_of_its_own,
    nor_is_a_commit_before_a_verdict,
);

fn deliver() -> SignedRequest {
    let event = testkit::event("evt_1");
    event.request(Preset::KUDOS, SECRET).to("/webhooks/crm")
}

/// A handler that executes these statements, with a line of the ledger between each two of them, and answers so.
async fn executing<D: On>(
    db: &TestDatabase<D>,
    statements: &'static [&'static str],
    status: StatusCode,
) -> Kit<D> {
    let handler = move |mut tx: Tx<D>, event: Delivery| async move {
        for (n, statement) in statements.iter().enumerate() {
            if n > 0 {
                append(&mut tx, &event).await;
            }
            if !statement.is_empty() {
                let statement = AssertSqlSafe(*statement).into_sql_str();
                D::run(&mut tx, statement).await.expect("it may");
            }
        }
        status
    };
    let router = Router::new().route("/webhooks/{any}", post(handler));
    app_with(db, kudos(), router).await.0
}

const MAY_BE: &str = "the transaction had ended: what it wrote may be committed";

async fn assert_in_doubt(story: &Story) {
    let text = story.to_string();
    assert!(text.contains(MAY_BE), "{text}");
    assert!(!text.contains("nothing is committed"), "{text}");
    let other = story.clone();
    let said = panics(async move { drop(other.assert_not_applied().clone()) }).await;
    assert!(said.contains(MAY_BE), "{said}");
    let other = story.clone();
    let said = panics(async move { drop(other.assert_applied_once().clone()) }).await;
    assert!(
        said.contains("not applied by the inbox") || said.contains("not by the inbox"),
        "{said}"
    );
}

/// §4.4
async fn a_commit_of_the_handler_s_own_is_not_told_as_nothing<D: On>(db: TestDatabase<D>) {
    let kit = executing(&db, &["", "COMMIT"], StatusCode::NO_CONTENT).await;
    let story = kit.send(deliver()).await;
    story.assert_answered(500, "failed");
    assert_in_doubt(&story).await;
    // The event's row was committed with it.
    assert_eq!(story.times_applied(), 1, "{story}");
    kit.assert_effects("SELECT COUNT(*) FROM ledger", 1).await;
    let again = kit.send(deliver()).await;
    again.assert_duplicate();
    assert_eq!(again.times_applied(), 1, "{again}");
}

async fn nor_is_what_was_written_behind_a_rollback_of_its_own<D: On>(db: TestDatabase<D>) {
    let kit = executing(&db, &["ROLLBACK; BEGIN", "COMMIT"], StatusCode::NO_CONTENT).await;
    let story = kit.send(deliver()).await;
    assert_in_doubt(&story).await;
    assert_eq!((story.times_applied(), story.state()), (0, None), "{story}");
    kit.assert_effects("SELECT COUNT(*) FROM ledger", 1).await;
}

/// §4.13
async fn nor_is_a_commit_before_a_verdict<D: On>(db: TestDatabase<D>) {
    let kit = executing(&db, &["", "COMMIT"], StatusCode::UNPROCESSABLE_ENTITY).await;
    let story = kit.send(deliver()).await;
    assert_in_doubt(&story).await;
    kit.assert_effects("SELECT COUNT(*) FROM ledger", 1).await;
}

/// §4.2: the connection is lost when COMMIT was sent; the next delivery finds out what came of it.
#[cfg(feature = "failpoints")]
#[tokio::test]
async fn a_commit_that_nobody_heard_of_is_told_as_such() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tower_inbox::FailPoints;

    for (point, applied) in [("store.committed", 1), ("store.commit", 0)] {
        let db = testkit::sqlite().await;
        db.execute("CREATE TABLE ledger (id TEXT, sequence INTEGER)")
            .await;
        let lost = Arc::new(AtomicBool::new(false));
        let points = FailPoints::new(move |name| {
            let fails = name == point && !lost.swap(true, Ordering::Relaxed);
            async move {
                if fails {
                    let gone = std::io::ErrorKind::ConnectionReset;
                    return Err(sqlx::Error::Io(gone.into()));
                }
                Ok(())
            }
        });
        let inbox = crate::support::builder(&db, kudos())
            .fail_points(points)
            .build()
            .await
            .expect("an inbox");
        let app = inbox.mount("crm", crate::support::ledger::<sqlx::Sqlite>());
        let kit = Kit::new(&inbox, app);
        let story = kit.send(deliver()).await;
        let text = story.to_string();
        assert!(
            text.contains("nobody knows whether it is committed"),
            "{text}"
        );
        assert!(!text.contains("nothing is committed"), "{text}");
        assert_eq!(story.times_applied(), applied, "{text}");
        if applied == 0 {
            story.assert_not_applied();
        } else {
            story.assert_applied_once();
        }
        kit.send(deliver()).await.assert_applied_once();
        kit.assert_effects("SELECT COUNT(*) FROM ledger", 1).await;
    }
}

/// A 401 of the handler's is a verdict on an event whose signature was verified.
#[tokio::test]
async fn a_401_of_the_handler_s_is_no_refusal_of_the_inbox_s() {
    let db = testkit::sqlite().await;
    let kit = executing(&db, &[], StatusCode::UNAUTHORIZED).await;
    kit.send(deliver().tampered()).await.assert_unauthorized();
    let story = kit.send(deliver()).await;
    story.assert_answered(401, "rejected");
    let said = panics(async move { drop(story.assert_unauthorized().clone()) }).await;
    assert!(
        said.contains("behind the inbox: its signature was verified"),
        "{said}"
    );
    kit.send(deliver().tampered()).await.assert_unauthorized();
}
