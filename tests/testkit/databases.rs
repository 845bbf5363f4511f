//! Databases of one test each.

use tower_inbox::testkit::{self, TestDatabase};

use crate::support::{On, on_each_database, panics};

on_each_database!(
    every_test_has_a_database_of_its_own,
    statements_that_are_refused_are_named,
);

async fn every_test_has_a_database_of_its_own<D: On>(db: TestDatabase<D>) {
    let other = D::fresh().await.expect("another one");
    assert_ne!(db.url(), other.url());
    for (db, amount) in [(&db, 5), (&other, 7)] {
        // The second statement runs too.
        db.execute(&format!(
            "CREATE TABLE t (amount BIGINT); INSERT INTO t VALUES ({amount})"
        ))
        .await;
        db.execute("INSERT INTO t VALUES (1)").await;
    }
    assert_eq!(db.number("SELECT SUM(amount) FROM t").await, 6);
    assert_eq!(other.number("SELECT SUM(amount) FROM t").await, 8);
    assert_eq!(
        db.number("SELECT SUM(amount) FROM t WHERE amount > 9")
            .await,
        0
    );
}

async fn statements_that_are_refused_are_named<D: On>(db: TestDatabase<D>) {
    let said = panics(async move { db.execute("INSERT INTO nowhere VALUES (1)").await }).await;
    assert!(said.contains("INSERT INTO nowhere"), "{said}");
}

#[tokio::test]
async fn a_file_goes_with_its_test_even_if_that_panics() {
    let db = testkit::sqlite().await;
    let path = db.url().trim_start_matches("sqlite://");
    let path = std::path::PathBuf::from(path.trim_end_matches("?mode=rwc"));
    let directory = path.parent().expect("a directory").to_owned();
    db.execute("CREATE TABLE t (n INTEGER)").await;
    assert!(path.exists());
    let said = panics(async move {
        let _db = db;
        panic!("the test fails");
    });
    assert_eq!(said.await, "the test fails");
    assert!(!directory.exists(), "{directory:?}");
}

#[tokio::test]
async fn a_database_in_memory_is_another_one_each_time() {
    let (one, other) = (
        testkit::sqlite_in_memory().await,
        testkit::sqlite_in_memory().await,
    );
    one.execute("CREATE TABLE t (n INTEGER)").await;
    other.execute("CREATE TABLE t (n INTEGER)").await;
    assert_eq!(one.number("SELECT COUNT(*) FROM t").await, 0);
}

/// Databases on servers: made, dropped with somebody connected, and gone.
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod on_servers {
    use sqlx::{Connection as _, Executor as _};

    use super::{D, gone};

    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn postgres() {
        crate::support::run::<sqlx::Postgres, _>(|db: D<sqlx::Postgres>| async move {
            let url = db.url().to_owned();
            let mut conn = sqlx::PgConnection::connect(&url).await.expect("one more");
            conn.execute("BEGIN; CREATE TABLE t (n INTEGER)")
                .await
                .expect("it is used");
            drop(db);
            gone(sqlx::PgConnection::connect(&url).await.map(drop));
        })
        .await;
    }

    #[cfg(feature = "mysql")]
    #[tokio::test]
    async fn mysql() {
        crate::support::run::<sqlx::MySql, _>(|db: D<sqlx::MySql>| async move {
            let url = db.url().to_owned();
            db.execute("CREATE TABLE t (n INTEGER)").await;
            let mut conn = sqlx::MySqlConnection::connect(&url)
                .await
                .expect("one more");
            conn.execute("BEGIN").await.expect("a transaction");
            conn.execute("INSERT INTO t VALUES (1)")
                .await
                .expect("a lock");
            drop(db);
            gone(sqlx::MySqlConnection::connect(&url).await.map(drop));
        })
        .await;
    }
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
use TestDatabase as D;

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn gone(connected: Result<(), sqlx::Error>) {
    let error = connected.expect_err("there is no such database any more");
    let error = error.as_database_error().expect("the server says so");
    // invalid_catalog_name; of MySQL: 42000, or access is denied to what is not there.
    let code = error.code().expect("a code").into_owned();
    assert!(
        ["3D000", "42000", "HY000"].contains(&code.as_str()),
        "{error}"
    );
}
