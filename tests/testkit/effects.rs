//! What a handler has done, as a query finds it: one whole number, when all that is due is done.

use tower_inbox::Preset;
use tower_inbox::testkit::{self, Event, SignedRequest, TestDatabase};

use crate::support::{On, SECRET, app, kudos, on_each_database, panics};

on_each_database!(
    sums_and_counts_are_numbers,
    what_is_not_one_whole_number_is_refused,
    effects_of_what_was_parked_are_waited_for,
);

fn deliver(event: &Event) -> SignedRequest {
    event.request(Preset::KUDOS, SECRET).to("/webhooks/crm")
}

/// Sums are decimals on servers, and NULL where there is nothing to add up.
async fn sums_and_counts_are_numbers<D: On>(db: TestDatabase<D>) {
    db.execute(
        "CREATE TABLE t (n BIGINT, d DECIMAL(9,2)); INSERT INTO t VALUES (3, 2.00), (4, 3.00)",
    )
    .await;
    for (sql, number) in [
        ("SELECT COUNT(*) FROM t", 2),
        ("SELECT SUM(n) FROM t", 7),
        ("SELECT -SUM(d) FROM t", -5),
        ("SELECT MAX(n) FROM t;", 4),
        ("SELECT SUM(n) FROM t WHERE n > 9", 0),
    ] {
        assert_eq!(db.number(sql).await, number, "{sql}");
    }
}

/// Each of these came to some number silently, once.
async fn what_is_not_one_whole_number_is_refused<D: On>(db: TestDatabase<D>) {
    let (kit, _) = app(&db, kudos()).await;
    db.execute(
        "CREATE TABLE t (n BIGINT, name VARCHAR(9)); INSERT INTO t VALUES (2, '12abc'), (3, '5')",
    )
    .await;
    for (sql, found) in [
        ("SELECT name FROM t WHERE n = 2", "finds \"12abc\" ("),
        ("SELECT name FROM t WHERE n = 3", "finds \"5\" ("),
        ("SELECT AVG(n) FROM t", "finds \"2.5"),
        (
            "SELECT n FROM t ORDER BY n",
            "finds 2 rows, the first one with \"2\" (",
        ),
        ("SELECT n FROM t WHERE n > 9", "finds no row ("),
        ("SELECT n, n FROM t WHERE n = 2", "finds 2 columns ("),
    ] {
        let said = panics(kit.assert_effects(sql, 0)).await;
        assert!(said.contains(found), "{found}: {said}");
        assert!(said.contains("(tests/testkit/effects.rs:"), "{said}");
    }
}

/// §5.1
async fn effects_of_what_was_parked_are_waited_for<D: On>(db: TestDatabase<D>) {
    let (kit, _) = app(&db, kudos()).await;
    let at = |sequence| testkit::event(format!("evt_{sequence}")).stream("acct", sequence);
    for sequence in (2..=6).rev() {
        kit.send(deliver(&at(sequence)))
            .await
            .assert_parked_behind(1);
    }
    kit.assert_effects("SELECT COUNT(*) FROM ledger", 0).await;
    kit.send(deliver(&at(1))).await.assert_applied_once();
    kit.assert_effects("SELECT COUNT(*) FROM ledger", 6).await;
}
