//! The back end as a parameter: a throw-away database for each test, and the few statements that tests need in it.

#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(all(unix, any(feature = "postgres", feature = "mysql")))]
pub(crate) mod server;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

use std::env;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::{Database, Pool};
use tower_inbox::{Backend, Tx};

use crate::kit::BoxFuture;

/// A test that takes longer hangs. The test runner has a limit too, but names the test only, not the reason.
const LIMIT: Duration = Duration::from_secs(100);

/// Heavy forms take their time.
fn limit() -> Duration {
    match env::var_os("TOWER_INBOX_TEST_ALL") {
        None => LIMIT,
        Some(_) => 10 * LIMIT,
    }
}

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
    /// Deliveries that wait go on in any other one's transaction (`Source::batch`), and not in that of their stream alone.
    #[cfg(feature = "failpoints")]
    const JOINS_ANY: bool;
    /// Sleeps in the database for 9 s; nothing where the database is in this process and cannot sleep.
    const NAP: Option<&'static str>;
    /// Begins a transaction that locks the row 1 of `taken` against writers, and whatever must be locked with it.
    const HOLD_ROW: &'static str;
    /// The isolation levels that a user may choose.
    const ISOLATION: &'static [Isolation];
    /// All settings of the session as one text; nothing where a connection has none to leave changed.
    const SESSION: Option<&'static str>;
    /// Gives the session limits of the user's own.
    const ODD_SESSION: &'static str;
    /// The number by which the server knows a connection; nothing where there is no server.
    const CONNECTION_ID: Option<&'static str>;

    /// A fresh database with the ledger's tables, or what is missing for it.
    fn create() -> impl Future<Output = Result<Self, String>> + Send;
    /// Removes it.
    fn destroy(self) -> impl Future<Output = ()> + Send;
    /// What the inbox's tables begin with: another one for each database, so that its statements can be told apart.
    fn prefix(&self) -> &str;
    /// A pool with settings that the contract allows.
    fn pool(&self, options: PoolOptions<Self::DB>) -> impl Future<Output = Pool<Self::DB>> + Send;

    /// Statements that make the database read-only for new sessions and cut all others but the one that runs them, and
    /// that undo it; nothing where a database alone cannot be demoted.
    fn demotion(&self) -> Option<(String, String)>;

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
    fn number(pool: &Pool<Self::DB>, sql: &str) -> impl Future<Output = i64> + Send {
        async move {
            let mut conn = pool.acquire().await.expect("a connection");
            Self::number_on(&mut conn, sql).await.expect("a number")
        }
    }
    /// The same on a connection, such as a handler's transaction.
    fn number_on(
        conn: &mut Conn<Self>,
        sql: &str,
    ) -> impl Future<Output = sqlx::Result<i64>> + Send;
    /// The first column of the one row that a query finds, on a connection.
    fn text_on(
        conn: &mut Conn<Self>,
        sql: &str,
    ) -> impl Future<Output = sqlx::Result<String>> + Send;
    /// The first column of what a query finds.
    fn texts(pool: &Pool<Self::DB>, sql: &str) -> impl Future<Output = Vec<String>> + Send;
    /// The transactions that are open in this database and idle, as far as there is a server that knows.
    fn open_transactions(pool: &Pool<Self::DB>) -> impl Future<Output = i64> + Send;
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

/// An isolation level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Isolation {
    pub(crate) name: &'static str,
    /// Makes it the level of a new connection.
    pub(crate) set: &'static str,
    /// Above READ COMMITTED: contention between processes may end in 503 (§4.7).
    pub(crate) may_fail: bool,
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
    /// 503, since the connection is gone and the commit's outcome unknown (§4.2); nothing is committed: the retry applies.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    UnknownThenApplied,
}

impl Then {
    pub(crate) fn leaves_nothing(self) -> bool {
        !matches!(self, Self::Applied | Self::FailedThenDuplicate)
    }
}

/// Runs one test in a database of its own, unless the database is to be left out.
pub(crate) async fn run<D: TestDb, F: Future<Output = ()>>(test: impl FnOnce(D) -> F) {
    #[cfg(feature = "failpoints")]
    crate::broken::choose();
    let Some(db) = made(D::NAME, D::create).await else {
        return;
    };
    let ended = caught(tokio::time::timeout(limit(), test(db.clone()))).await;
    // What a failed test has made goes too.
    db.destroy().await;
    passed(ended);
}

/// What a test on this database needs; nothing if it is to be left out, or cannot be had and need not be.
async fn made<T, F>(name: &str, make: impl FnOnce() -> F) -> Option<T>
where
    F: Future<Output = Result<T, String>>,
{
    let listed = env::var("TOWER_INBOX_TEST_DATABASES").ok();
    if let Some(listed) = &listed
        && !listed.split(',').any(|listed| listed.trim() == name)
    {
        return None;
    }
    match make().await {
        Ok(made) => Some(made),
        Err(missing) if listed.is_some() => {
            panic!("{name} must be tested and cannot be: {missing}")
        }
        Err(missing) => {
            eprintln!("NOT TESTED on {name}: {missing}");
            None
        }
    }
}

fn passed(ended: std::thread::Result<Result<(), tokio::time::error::Elapsed>>) {
    match ended {
        Ok(in_time) => assert!(in_time.is_ok(), "the test did not end within {LIMIT:?}"),
        Err(panic) => resume_unwind(panic),
    }
}

async fn caught<T>(future: impl Future<Output = T>) -> std::thread::Result<T> {
    let mut future = pin!(future);
    poll_fn(
        |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(panic)),
        },
    )
    .await
}

/// A fault that is made of statements whose errors the handler ignores.
#[cfg(any(feature = "postgres", feature = "mysql"))]
macro_rules! fault {
    ($name:literal, $then:expr, [$($sql:literal),+]) => {
        Fault {
            name: $name,
            spoil: |mut tx| {
                Box::pin(async move {
                    $(let _ = Self::execute(&mut tx, $sql).await;)+
                })
            },
            then: $then,
        }
    };
}
#[cfg(any(feature = "postgres", feature = "mysql"))]
use fault;

/// A handler that gives its transaction to a task which outlives its answer.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn kept_by_a_task<D: TestDb>() -> Fault<D> {
    Fault {
        name: "kept by a task",
        spoil: |tx| {
            Box::pin(async move {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    drop(tx);
                });
            })
        },
        then: Then::FailedThenApplied,
    }
}

/// Makes one test for each database out of each of these functions.
macro_rules! suite {
    ($($test:ident),+ $(,)?) => {
        suite! { @on sqlite "sqlite" SqliteFile: $($test),+ }
        suite! { @on postgres "postgres" PostgresDb: $($test),+ }
        suite! { @on mysql "mysql" MySqlDb: $($test),+ }
    };
    (@on $module:ident $feature:literal $db:ident: $($test:ident),+) => {
        #[cfg(feature = $feature)]
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    crate::db::run(super::$test::<crate::db::$module::$db>).await;
                }
            )+
        }
    };
}
