//! The back end as a parameter: a throw-away database for each test, and the few statements that tests need in it.

#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

use std::env;
use std::future::Future;
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::{Database, Pool};
use tower_inbox::{Backend, Tx};

use crate::kit::BoxFuture;

/// A test that takes longer hangs. The test runner has a limit too, but names the test only, not the reason.
const LIMIT: Duration = Duration::from_secs(100);

/// A connection of a back end.
pub(crate) type Conn<D> = <<D as TestDb>::DB as Database>::Connection;

/// One throw-away database. Clones are handles of the same one.
///
/// `{p}` in a statement stands for the prefix of the inbox's tables.
pub(crate) trait TestDb: Clone + Send + Sync + 'static {
    /// The driver.
    type DB: Backend;
    /// As `TOWER_INBOX_TEST_DATABASES` and the modules name it.
    const NAME: &'static str;
    /// One transaction at a time may write, so that no new event is applied while another one's handler runs.
    const SINGLE_WRITER: bool;

    /// A fresh database with the ledger's tables, or what is missing for it.
    fn create() -> impl Future<Output = Result<Self, String>> + Send;
    /// Removes it.
    fn destroy(self) -> impl Future<Output = ()> + Send;
    /// What the inbox's tables begin with: another one for each database, so that its statements can be told apart.
    fn prefix(&self) -> &str;
    /// A pool with settings that the contract allows.
    fn pool(&self, options: PoolOptions<Self::DB>) -> impl Future<Output = Pool<Self::DB>> + Send;

    /// One line of the ledger.
    fn append(
        conn: &mut Conn<Self>,
        entry: &Entry,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
    /// The ledger, in the order in which it was written.
    fn ledger(pool: &Pool<Self::DB>) -> impl Future<Output = Vec<Entry>> + Send;
    /// Any statements, as they are.
    fn execute(conn: &mut Conn<Self>, sql: &str) -> impl Future<Output = sqlx::Result<u64>> + Send;
    /// The one number that a query finds.
    fn number(pool: &Pool<Self::DB>, sql: &str) -> impl Future<Output = i64> + Send;
    /// The first column of what a query finds.
    fn texts(pool: &Pool<Self::DB>, sql: &str) -> impl Future<Output = Vec<String>> + Send;
    /// A nested transaction of the driver with one line of the ledger in it.
    fn nested(
        conn: &mut Conn<Self>,
        entry: Entry,
        end: Nested,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
    /// A statement that keeps the database busy for much longer than any budget in these tests.
    fn burn(conn: &mut Conn<Self>) -> impl Future<Output = sqlx::Result<()>> + Send;
    /// What a handler can do to its transaction here (§4.4).
    fn faults() -> Vec<Fault<Self>>;
}

/// How a nested transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nested {
    Commit,
    /// Dropped: the driver rolls it back before the next statement.
    Drop,
    /// Neither: it stays open.
    Leak,
}

/// A line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) event_id: String,
    pub(crate) account: String,
    pub(crate) sequence: Option<i64>,
    pub(crate) amount: i64,
}

/// Something that a handler does to its transaction after its work, before it answers 200.
pub(crate) struct Fault<D: TestDb> {
    pub(crate) name: &'static str,
    pub(crate) spoil: fn(Tx<D::DB>) -> BoxFuture<()>,
    pub(crate) then: Then,
}

/// What must follow. Whatever it is, the effect is there once in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The transaction is good: 200, then duplicates.
    Applied,
    /// 500, and the work is committed: the retry is a duplicate.
    FailedThenDuplicate,
    /// 500, and nothing is committed: the retry applies.
    FailedThenApplied,
}

/// Runs one test in a database of its own, unless the database is to be left out.
pub(crate) async fn run<D: TestDb, F: Future<Output = ()>>(test: impl FnOnce(D) -> F) {
    let listed = env::var("TOWER_INBOX_TEST_DATABASES").ok();
    if let Some(listed) = &listed
        && !listed.split(',').any(|name| name.trim() == D::NAME)
    {
        return;
    }
    let db = match D::create().await {
        Ok(db) => db,
        Err(missing) if listed.is_some() => {
            panic!("{} must be tested and cannot be: {missing}", D::NAME)
        }
        Err(missing) => {
            eprintln!("NOT TESTED on {}: {missing}", D::NAME);
            return;
        }
    };
    let test = tokio::time::timeout(LIMIT, test(db.clone())).await;
    assert!(test.is_ok(), "the test did not end within {LIMIT:?}");
    db.destroy().await;
}

/// Makes one test for each database out of each of these functions.
macro_rules! suite {
    ($($test:ident),+ $(,)?) => {
        #[cfg(feature = "sqlite")]
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    crate::db::run(super::$test::<crate::db::sqlite::SqliteFile>).await;
                }
            )+
        }
    };
}
