//! Wall-clock time, as a value that tests can set.
//!
//! Safety never depends on a clock (§4.10); freshness of signatures and forgetting do.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An instant in microseconds since the Unix epoch, UTC.
///
/// It is what the database columns hold, so that no time zone and no driver type is involved. Shown and serialised as
/// RFC 3339 in UTC, to the microsecond:
///
/// ```
/// use tower_inbox::clock::Timestamp;
///
/// assert_eq!(Timestamp::from_secs(1_700_000_000).to_string(), "2023-11-14T22:13:20.000000Z");
/// ```
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

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (
            self.as_secs().div_euclid(DAY),
            self.as_secs().rem_euclid(DAY),
        );
        let (year, month, day) = date(days);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let micros = self.0.rem_euclid(1_000_000);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z"
        )
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Seconds.
const DAY: i64 = 24 * 3_600;
/// Days of 400 years, after which the calendar repeats.
const ERA: i64 = 146_097;

/// Year, month and day of a number of days since 1970, in the Gregorian calendar. Years begin in March while it counts, so
/// that the day that is not always there is a year's last.
fn date(days: i64) -> (i64, i64, i64) {
    // From the first of March of the year 0.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    // 1,460, 36,524 and 146,096: the days after which a year has one more or one less than a plain division says.
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // From March on, five months have 153 days, again and again.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + next, month, day)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// §8: what people and programs read; against the reader of times, which has another way to count.
    #[test]
    fn a_time_is_shown_as_it_is_read() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_799, "2000-02-29T23:59:59.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
            (-62_167_219_200, "0000-01-01T00:00:00.000000Z"),
        ] {
            assert_eq!(Timestamp::from_secs(secs).to_string(), text);
        }
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..10_000 {
            let at = Timestamp::from_micros(rng.i64(0..4_000_000_000_000_000));
            let text = at.to_string();
            let read = crate::verify::time::rfc3339(&text).map(|(read, _)| read);
            assert_eq!(read, Some(at), "{text}");
            assert_eq!(serde_json::to_string(&at).unwrap(), format!("{text:?}"));
        }
        // Nothing that a column may hold is too much.
        for odd in [i64::MIN, i64::MAX] {
            assert!(Timestamp::from_micros(odd).to_string().ends_with('Z'));
        }
    }
}
