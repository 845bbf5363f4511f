//! Waiting for a condition with a limit, time that a test sets, and randomness that can be repeated.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tower_inbox::clock::{Clock, Timestamp};

/// More than a slow machine needs for anything in these tests.
const LIMIT: Duration = Duration::from_secs(30);

/// Waits until `condition` holds; panics if it does not come to that.
#[track_caller]
pub(crate) fn eventually<F>(what: &str, mut condition: F) -> impl Future<Output = ()>
where
    F: AsyncFnMut() -> bool,
{
    let caller = std::panic::Location::caller();
    async move {
        let start = Instant::now();
        while !condition().await {
            assert!(
                start.elapsed() < LIMIT,
                "not within {LIMIT:?}: {what} ({caller})"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// The output of a future that must be done in this time.
#[track_caller]
pub(crate) fn within<F: Future>(limit: Duration, future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(limit, future).await {
            Ok(output) => output,
            Err(_) => panic!("not within {limit:?} ({caller})"),
        }
    }
}

/// A clock that a test moves; the database's goes on by itself, unless it is said to follow.
#[derive(Clone)]
pub(crate) struct TestClock(Arc<AtomicI64>, bool);

impl TestClock {
    /// Stands at the time now.
    pub(crate) fn new() -> Self {
        let now = Timestamp::from(SystemTime::now());
        Self(Arc::new(AtomicI64::new(now.as_micros())), false)
    }

    /// The same for both: all time is the test's own.
    pub(crate) fn of_the_database_too(mut self) -> Self {
        self.1 = true;
        self
    }

    pub(crate) fn advance(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).expect("a short time");
        self.0.fetch_add(micros, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }

    fn database(&self, said: Timestamp) -> Timestamp {
        if self.1 { self.now() } else { said }
    }
}

/// Random numbers from the seed in `TOWER_INBOX_TEST_SEED`, or from another one each time; printed, to repeat it.
pub(crate) fn seeded(what: &str) -> fastrand::Rng {
    let seed = match std::env::var("TOWER_INBOX_TEST_SEED") {
        Ok(text) => text.parse().expect("TOWER_INBOX_TEST_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    eprintln!("{what}: TOWER_INBOX_TEST_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}
