//! Wall-clock time, as a value that tests can set.
//!
//! Safety never depends on a clock (§4.10); freshness of signatures and forgetting do.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An instant in microseconds since the Unix epoch, UTC.
///
/// It is what the database columns hold, so that no time zone and no driver type is involved.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The operating system's time.
    pub fn now() -> Self {
        SystemClock.now()
    }

    /// From microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// From whole seconds since the Unix epoch; saturates at the ends of the range.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded towards the past.
    pub const fn as_secs(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// This instant moved into the future; saturates.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }

    /// This instant moved into the past; saturates.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(micros(by)))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.as_secs(), self.0.rem_euclid(1_000_000))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(micros(after)),
            Err(before) => Self(-micros(before.duration())),
        }
    }
}

/// Where an inbox takes the wall-clock time from.
///
/// Deadlines inside one delivery are measured on the runtime's monotonic clock instead.
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Timestamp;

    /// What the database's clock shows, which said `said`. Retention goes by the earlier of the two clocks, and removes
    /// nothing while they are 5 minutes apart (§7.1). A test whose clock makes its own time says here that the database
    /// shares it.
    fn database(&self, said: Timestamp) -> Timestamp {
        said
    }
}

/// The operating system's clock: the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        SystemTime::now().into()
    }
}
