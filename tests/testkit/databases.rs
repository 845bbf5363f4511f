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
    assert!(said.contains("(tests/testkit/databases.rs:"), "{said}");
}

/// Its pool would be out of time at once, and would not say why.
#[tokio::test(start_paused = true)]
async fn a_clock_of_tokio_that_stands_still_is_refused() {
    for said in [
        panics(testkit::sqlite()).await,
        panics(testkit::sqlite_in_memory()).await,
    ] {
        assert!(said.contains("do not pause tokio's clock"), "{said}");
        assert!(said.contains("VirtualClock"), "{said}");
    }
}

#[cfg(all(feature = "postgres", feature = "mysql"))]
#[tokio::test]
async fn the_url_of_another_kind_of_server_is_refused_at_once() {
    let said = panics(testkit::postgres("mysql://nobody:secret@nowhere/x")).await;
    assert!(
        said.ends_with("begins with `mysql://`, and not with `postgres://`"),
        "{said}"
    );
    let said = panics(testkit::mysql("postgresql://nobody:secret@nowhere/x")).await;
    assert!(
        said.ends_with("begins with `postgresql://`, and not with `mysql://`"),
        "{said}"
    );
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

    use super::{D, gone, hours_ago};

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

    /// The kit looks for them once in a process, on each server: this one has another name.
    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn what_a_killed_run_left_behind_on_postgres_is_removed() {
        crate::support::run::<sqlx::Postgres, _>(|_db: D<sqlx::Postgres>| async move {
            let server = crate::support::server("TEST_POSTGRES_URL").expect("a server");
            let server = format!("{server}?application_name=left_over");
            let mut conn = sqlx::PgConnection::connect(&server).await.expect("it");
            let (old, young) = (hours_ago(25), hours_ago(23));
            for name in [&old, &young] {
                let create = format!("CREATE DATABASE {name}");
                let made = sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(&mut conn);
                made.await.expect("a database");
            }
            drop(tower_inbox::testkit::postgres(&server).await);
            let left = "SELECT datname::text FROM pg_database WHERE datname IN ($1, $2)";
            let left: Vec<String> = sqlx::query_scalar(left)
                .bind(&old)
                .bind(&young)
                .fetch_all(&mut conn)
                .await
                .expect("names");
            assert_eq!(left, [young.as_str()]);
            let remove = format!("DROP DATABASE {young}");
            let removed = sqlx::raw_sql(sqlx::AssertSqlSafe(remove)).execute(&mut conn);
            removed.await.expect("it is ours");
        })
        .await;
    }

    #[cfg(feature = "mysql")]
    #[tokio::test]
    async fn what_a_killed_run_left_behind_on_mysql_is_removed() {
        crate::support::run::<sqlx::MySql, _>(|_db: D<sqlx::MySql>| async move {
            let server = crate::support::server("TEST_MYSQL_URL").expect("a server");
            let server = format!("{server}?charset=utf8mb4");
            let mut conn = sqlx::MySqlConnection::connect(&server).await.expect("it");
            let (old, young) = (hours_ago(25), hours_ago(23));
            for name in [&old, &young] {
                let create = format!("CREATE DATABASE {name}");
                let made = sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(&mut conn);
                made.await.expect("a database");
            }
            drop(tower_inbox::testkit::mysql(&server).await);
            let left = "SELECT CAST(schema_name AS CHAR) FROM information_schema.schemata
                WHERE schema_name IN (?, ?)";
            let left: Vec<String> = sqlx::query_scalar(left)
                .bind(&old)
                .bind(&young)
                .fetch_all(&mut conn)
                .await
                .expect("names");
            assert_eq!(left, [young.as_str()]);
            let remove = format!("DROP DATABASE {young}");
            let removed = sqlx::raw_sql(sqlx::AssertSqlSafe(remove)).execute(&mut conn);
            removed.await.expect("it is ours");
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

/// The name of a database that was made so long ago.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn hours_ago(hours: i64) -> String {
    let made = tower_inbox::clock::Timestamp::now().as_secs() - hours * 3_600;
    format!("tower_inbox_kit_{made:x}_{:016x}", fastrand::u64(..))
}

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
