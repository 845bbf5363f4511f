//! A handler with a ledger, on each database.

use std::env;
use std::future::Future;

use axum::Router;
use axum::routing::post;
use http::StatusCode;
use sqlx::{AssertSqlSafe, SqlSafeStr as _};
use tower_inbox::testkit::{self, Kit, TestBackend, TestDatabase, VirtualClock};
use tower_inbox::{Delivery, Inbox, InboxBuilder, Source, Tx};

/// The secret of the sources in these tests.
pub(crate) const SECRET: &str = testkit::SECRET;

const LEDGER: &str = "CREATE TABLE ledger (n INTEGER, id VARCHAR(255) NOT NULL, sequence BIGINT)";

/// A back end of these tests.
pub(crate) trait On: TestBackend {
    /// As `TOWER_INBOX_TEST_DATABASES` names it.
    const LISTED_AS: &'static str;

    /// A database of a server, or why there is none.
    fn fresh() -> impl Future<Output = Result<TestDatabase<Self>, String>>;
}

impl On for sqlx::Sqlite {
    const LISTED_AS: &'static str = "sqlite";

    async fn fresh() -> Result<TestDatabase<Self>, String> {
        Ok(testkit::sqlite().await)
    }
}

#[cfg(feature = "postgres")]
impl On for sqlx::Postgres {
    const LISTED_AS: &'static str = "postgres";

    async fn fresh() -> Result<TestDatabase<Self>, String> {
        let url = server("TEST_POSTGRES_URL")?;
        Ok(testkit::postgres(&url).await)
    }
}

#[cfg(feature = "mysql")]
impl On for sqlx::MySql {
    const LISTED_AS: &'static str = "mysql";

    async fn fresh() -> Result<TestDatabase<Self>, String> {
        let url = server("TEST_MYSQL_URL")?;
        Ok(testkit::mysql(&url).await)
    }
}

/// The URL of a server of the tests.
pub(crate) fn server(variable: &str) -> Result<String, String> {
    env::var(variable).map_err(|_| format!("{variable} is not set: tests/run starts a server"))
}

/// Runs a test on a database, unless it is to be left out.
pub(crate) async fn run<D: On, F: Future<Output = ()>>(test: impl FnOnce(TestDatabase<D>) -> F) {
    let listed = env::var("TOWER_INBOX_TEST_DATABASES").ok();
    if let Some(listed) = &listed
        && !listed.split(',').any(|name| name.trim() == D::LISTED_AS)
    {
        return;
    }
    match D::fresh().await {
        Ok(db) => test(db).await,
        Err(missing) if listed.is_some() => {
            panic!("{} must be tested and cannot be: {missing}", D::LISTED_AS)
        }
        Err(missing) => eprintln!("NOT TESTED on {}: {missing}", D::LISTED_AS),
    }
}

/// Makes one test for each database out of each of these functions.
macro_rules! on_each_database {
    ($($test:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test] async fn $test() { crate::support::run::<sqlx::Sqlite, _>(super::$test).await })+
        }
        #[cfg(feature = "postgres")]
        mod postgres {
            $(#[tokio::test] async fn $test() { crate::support::run::<sqlx::Postgres, _>(super::$test).await })+
        }
        #[cfg(feature = "mysql")]
        mod mysql {
            $(#[tokio::test] async fn $test() { crate::support::run::<sqlx::MySql, _>(super::$test).await })+
        }
    };
}
pub(crate) use on_each_database;

/// A router whose handler writes a line into the ledger, and answers 204; on `/webhooks/{any}`.
pub(crate) fn ledger<D: TestBackend>() -> Router {
    let handler = |mut tx: Tx<D>, event: Delivery| async move {
        append(&mut tx, &event).await;
        StatusCode::NO_CONTENT
    };
    Router::new().route("/webhooks/{any}", post(handler))
}

/// Writes an event into the ledger.
pub(crate) async fn append<D: TestBackend>(tx: &mut Tx<D>, event: &Delivery) {
    let sequence = event
        .sequence()
        .map_or("NULL".into(), |number| number.to_string());
    let id = event.event_id().replace('\'', "''");
    let line = format!("INSERT INTO ledger (id, sequence) VALUES ('{id}', {sequence})");
    D::run(tx, AssertSqlSafe(line).into_sql_str())
        .await
        .expect("the ledger takes it");
}

/// The ledger's app over one source, in virtual time.
pub(crate) async fn app<D: TestBackend>(
    db: &TestDatabase<D>,
    source: Source,
) -> (Kit<D>, VirtualClock) {
    app_with(db, source, ledger::<D>()).await
}

/// Another app over one source, in virtual time.
pub(crate) async fn app_with<D: TestBackend>(
    db: &TestDatabase<D>,
    source: Source,
    router: Router,
) -> (Kit<D>, VirtualClock) {
    db.execute(LEDGER).await;
    let clock = VirtualClock::new();
    let inbox = builder(db, source)
        .clock(clock.clone())
        .build()
        .await
        .expect("an inbox");
    let app = inbox.mount("crm", router);
    (Kit::new(&inbox, app).clock(&clock), clock)
}

/// The builder of an inbox over one source.
pub(crate) fn builder<D: TestBackend>(db: &TestDatabase<D>, source: Source) -> InboxBuilder<D> {
    Inbox::builder(db.pool()).source(source)
}

/// Kudos as `crm`.
pub(crate) fn kudos() -> Source {
    Source::kudos("crm").secrets([SECRET])
}

/// What a panic said.
pub(crate) async fn panics<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> String {
    let Err(error) = tokio::spawn(work).await else {
        panic!("it does not panic");
    };
    let panic = error.into_panic();
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .expect("a text")
}
