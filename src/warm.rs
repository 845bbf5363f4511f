//! Connections that stay with the inbox for a moment, between two deliveries.
//!
//! The pool asks a connection whether it still answers when it is handed out and when it comes back: two round trips
//! besides the four of an event. One that was used a moment ago needs no such question. It goes back to the pool, and is
//! asked, when nothing has needed it for some milliseconds, and after a second in any case; much sooner when the pool is
//! exhausted, for somebody else may be waiting for it there, and at once when a delivery does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Pool, SqlSafeStr, SqlStr};
use sqlx_core::transaction::TransactionManager as _;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use crate::store::{Backend, close_hard};
use crate::watch::Start;

/// How long one stays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stays {
    /// Unused for so long, it goes back.
    idle: Duration,
    /// Since it was taken from the pool: then the pool's own rules (its age, its tests) have their turn.
    longest: Duration,
    /// The same while the pool has no other to give.
    scarce: Duration,
}

impl Stays {
    pub(crate) const SHORT: Self = Self {
        idle: Duration::from_millis(50),
        longest: Duration::from_secs(1),
        scarce: Duration::from_millis(100),
    };

    /// For tests that are about one that has stayed: a machine may be busy for longer than that.
    #[cfg(feature = "failpoints")]
    pub(crate) const LONG: Self = Self {
        idle: Duration::from_secs(20),
        longest: Duration::from_secs(20),
        scarce: Duration::from_secs(20),
    };
}

/// For three statements without any work.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection, what the inbox knows about it, and since when it was not in the pool.
pub(crate) struct Warmed<DB: Backend> {
    pub(crate) conn: PoolConnection<DB>,
    pub(crate) session: DB::Session,
    /// The incarnation of the database that it was taken under, counted.
    pub(crate) generation: u64,
    pub(crate) since: Instant,
    /// The server's start before it was last heard of.
    pub(crate) heard: Start,
}

/// What a connection is wanted for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    Transaction,
    Statements,
}

/// The connections that stay.
pub(crate) struct Warm<DB: Backend>(Arc<Kept<DB>>);

struct Kept<DB: Backend> {
    pool: Pool<DB>,
    runtime: Handle,
    /// Of this inbox's, idle or in use, at most so many are kept from the pool.
    most: usize,
    stays: Stays,
    in_use: AtomicUsize,
    taken: AtomicUsize,
    idle: Mutex<Idle<DB>>,
}

struct Idle<DB: Backend> {
    /// The one that was used last is the last, and each with the time of that.
    list: Vec<(Warmed<DB>, Instant)>,
    /// Who waits for the pool.
    waiting: usize,
    /// Those of an earlier one are not kept.
    generation: u64,
    swept: bool,
    closed: bool,
}

/// Says that somebody waits for the pool, until dropped.
pub(crate) struct Waits<'a, DB: Backend>(&'a Kept<DB>);

impl<DB: Backend> Drop for Waits<'_, DB> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

impl<DB: Backend> Warm<DB> {
    pub(crate) fn new(pool: Pool<DB>, most: usize, stays: Stays) -> Self {
        Self(Arc::new(Kept {
            pool,
            runtime: Handle::current(),
            most,
            stays,
            in_use: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            idle: Mutex::new(Idle {
                list: Vec::new(),
                waiting: 0,
                generation: 0,
                swept: false,
                closed: false,
            }),
        }))
    }

    /// The one that was used last, the same way if there is one, if it is of this generation; otherwise the caller waits for
    /// the pool.
    pub(crate) fn take(&self, generation: u64, what: For) -> Result<Warmed<DB>, Waits<'_, DB>> {
        let mut idle = self.0.lock();
        let limited = what == For::Transaction;
        let fits = |(warmed, _): &(Warmed<DB>, _)| DB::is_limited(&warmed.session) == limited;
        while let Some(last) = idle.list.len().checked_sub(1) {
            let at = idle.list.iter().rposition(fits).unwrap_or(last);
            let (warmed, _) = idle.list.remove(at);
            if warmed.generation == generation {
                return Ok(warmed);
            }
            close_hard(warmed.conn);
        }
        idle.waiting += 1;
        drop(idle);
        Err(Waits(&self.0))
    }

    /// Whether any is kept.
    pub(crate) fn keeps(&self) -> bool {
        self.0.most > 0
    }

    /// How often one was taken, from here or from the pool.
    pub(crate) fn taken(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// One more is in use.
    pub(crate) fn used(&self) {
        self.0.taken.fetch_add(1, Ordering::Relaxed);
        self.0.in_use.fetch_add(1, Ordering::Relaxed);
    }

    /// One less is.
    pub(crate) fn unused(&self) {
        self.0.in_use.fetch_sub(1, Ordering::Relaxed);
    }

    /// Keeps it, or gives it back to the pool. All that was sent over it was answered, and no transaction is open.
    pub(crate) fn put(&self, warmed: Warmed<DB>) {
        let now = Instant::now();
        let kept = &self.0;
        let mut idle = kept.lock();
        if warmed.generation < idle.generation {
            drop(idle);
            return close_hard(warmed.conn);
        }
        let room = idle.list.len() + kept.in_use.load(Ordering::Relaxed) < kept.most;
        if !room || idle.closed || idle.waiting > 0 || now - warmed.since > kept.longest() {
            drop(idle);
            return kept.leave(warmed);
        }
        idle.list.push((warmed, now));
        if !std::mem::replace(&mut idle.swept, true) {
            kept.runtime.spawn(sweep(Arc::downgrade(kept)));
        }
    }

    /// All go back to the pool, which asks them whether they still answer.
    pub(crate) fn return_all(&self) {
        self.0.return_all();
    }

    /// From now on none is kept.
    pub(crate) fn close(&self) {
        self.0.lock().closed = true;
        self.0.return_all();
    }

    /// The database is another one: of this generation.
    pub(crate) fn discard_all(&self, generation: u64) {
        let mut idle = self.0.lock();
        idle.generation = idle.generation.max(generation);
        let list = std::mem::take(&mut idle.list);
        drop(idle);
        for (warmed, _) in list {
            close_hard(warmed.conn);
        }
    }
}

impl<DB: Backend> Kept<DB> {
    fn lock(&self) -> MutexGuard<'_, Idle<DB>> {
        // The list is whole after every statement under its lock.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn longest(&self) -> Duration {
        let most = self.pool.options().get_max_connections();
        if self.pool.num_idle() > 0 || self.pool.size() < most {
            self.stays.longest
        } else {
            self.stays.scarce
        }
    }

    fn return_all(&self) {
        let list = std::mem::take(&mut self.lock().list);
        for (warmed, _) in list {
            self.leave(warmed);
        }
    }

    /// Those whose time has come go back. False if none is left.
    fn sweep(&self) -> bool {
        let (now, longest) = (Instant::now(), self.longest());
        let mut idle = self.lock();
        let due = |(warmed, used): &mut (Warmed<DB>, Instant)| {
            now - *used >= self.stays.idle || now - warmed.since > longest
        };
        let leaving: Vec<_> = idle.list.extract_if(.., due).collect();
        let left = !idle.list.is_empty();
        idle.swept = left;
        drop(idle);
        for (warmed, _) in leaving {
            self.leave(warmed);
        }
        left
    }

    /// Back to the pool, as it came from there. The driver may think itself inside of a transaction that has ended, since a
    /// COMMIT that goes with other statements is none that it has seen.
    fn leave(&self, warmed: Warmed<DB>) {
        let Warmed {
            conn, mut session, ..
        } = warmed;
        if DB::depth(&conn) == 0 && !DB::is_limited(&session) {
            return drop(conn);
        }
        let mut leaving = Discarded(Some(conn));
        self.runtime.spawn(async move {
            let Some(conn) = leaving.0.as_mut() else {
                return;
            };
            let cleared = async {
                let restore = DB::restore(&mut session);
                if DB::depth(conn) > 0 {
                    // Without BEGIN the ROLLBACK would be a warning in PostgreSQL's log, and an error on SQLite.
                    let begin = match restore {
                        Some(restore) => AssertSqlSafe(format!("{restore}; BEGIN")).into_sql_str(),
                        None => SqlStr::from_static("BEGIN"),
                    };
                    DB::run(conn, begin).await?;
                    DB::TransactionManager::rollback(conn).await?;
                } else if let Some(restore) = restore {
                    DB::run(conn, SqlStr::from_static(restore)).await?;
                }
                Ok::<_, sqlx::Error>(())
            };
            if let Ok(Ok(())) = timeout(PATIENCE, cleared).await
                && DB::depth(conn) == 0
            {
                drop(leaving.0.take());
            }
        });
    }
}

/// A connection that the pool does not get back as it is: whoever is to clear it may not come to that, and its runtime may have
/// been shut down.
pub(crate) struct Discarded<DB: Backend>(pub(crate) Option<PoolConnection<DB>>);

impl<DB: Backend> Drop for Discarded<DB> {
    fn drop(&mut self) {
        if let Some(conn) = self.0.take() {
            crate::tx::discard(conn);
        }
    }
}

impl<DB: Backend> Drop for Kept<DB> {
    fn drop(&mut self) {
        // The inbox is gone, and perhaps the runtime too.
        for (warmed, _) in std::mem::take(&mut self.lock().list) {
            crate::tx::discard(warmed.conn);
        }
    }
}

async fn sweep<DB: Backend>(kept: Weak<Kept<DB>>) {
    loop {
        sleep(Stays::SHORT.idle / 2).await;
        let Some(kept) = kept.upgrade() else {
            return;
        };
        if !kept.sweep() {
            return;
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use sqlx::Sqlite;
    use sqlx::sqlite::SqlitePoolOptions;

    use super::*;
    use crate::watch::Watch;

    async fn pool() -> Pool<Sqlite> {
        let options = SqlitePoolOptions::new().max_connections(1);
        options.connect("sqlite::memory:").await.expect("a pool")
    }

    /// A connection whose driver counts a transaction that has ended.
    async fn counting(pool: &Pool<Sqlite>) -> PoolConnection<Sqlite> {
        let mut conn = Pool::acquire(pool).await.expect("a connection");
        <Sqlite as sqlx::Database>::TransactionManager::begin(&mut conn, None)
            .await
            .expect("it begins");
        Sqlite::run(&mut conn, SqlStr::from_static("COMMIT"))
            .await
            .expect("it ends");
        assert_eq!(Sqlite::depth(&conn), 1);
        conn
    }

    fn warmed(conn: PoolConnection<Sqlite>, generation: u64) -> Warmed<Sqlite> {
        Warmed {
            conn,
            session: None,
            generation,
            since: Instant::now(),
            heard: Watch::new().0.start(),
        }
    }

    /// §4.5: a transaction that somebody else begins on it would be a savepoint.
    #[tokio::test]
    async fn the_pool_gets_none_that_counts_a_transaction_though_the_inbox_has_lost_its_runtime() {
        let (pool, runtime) = (pool().await, tokio::runtime::Runtime::new().unwrap());
        let warm = {
            let _inside = runtime.enter();
            Warm::<Sqlite>::new(pool.clone(), 0, Stays::SHORT)
        };
        runtime.shutdown_background();
        warm.put(warmed(counting(&pool).await, 0));
        let conn = Pool::acquire(&pool).await.expect("a connection");
        assert_eq!(Sqlite::depth(&conn), 0);
    }

    /// §2.4: it looked at the generation before, and comes late.
    #[tokio::test]
    async fn none_of_an_earlier_generation_is_kept() {
        let pool = pool().await;
        let warm = Warm::<Sqlite>::new(pool.clone(), 1, Stays::SHORT);
        let mut conn = Pool::acquire(&pool).await.expect("a connection");
        Sqlite::run(
            &mut conn,
            SqlStr::from_static("CREATE TEMPORARY TABLE mark (n INTEGER)"),
        )
        .await
        .expect("it is marked");
        warm.discard_all(1);
        warm.put(warmed(conn, 0));
        let mut other = Pool::acquire(&pool).await.expect("a connection");
        let marked = Sqlite::run(&mut other, SqlStr::from_static("SELECT n FROM mark"));
        assert!(marked.await.is_err(), "it is another connection");
    }
}
