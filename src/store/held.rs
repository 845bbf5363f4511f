//! Migrations that wait: for the lock of a table, and for another process that migrates.

use std::fmt;
use std::time::{Duration, Instant};

use sqlx::migrate::MigrateError;

use super::migrate::PATIENCE;

/// How long one try of a step waits for the lock of a table. Deliveries queue behind it meanwhile, so it is less than the
/// shortest budget of a preset (2 s); and a second is the unit of MySQL's setting.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Between two tries: deliveries go on for twice as long as they were held up.
const PAUSE: Duration = Duration::from_secs(2);

/// Between two looks whether another process still migrates, where the database cannot wait for that.
#[cfg(feature = "postgres")]
const LOOK: Duration = Duration::from_millis(500);

/// What needs a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// To read the list of versions, or to make it.
    List,
    /// A version, or its row in that list.
    Version(i64),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List => f.write_str("the list of versions"),
            Self::Version(version) => write!(f, "version {version}"),
        }
    }
}

/// A step that does not get the lock of a table.
pub(crate) struct Held {
    since: Option<Instant>,
    patience: Duration,
}

impl Held {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            since: None,
            patience,
        }
    }

    /// Pauses before the next try. `holder`: who seems to hold the lock, for people.
    ///
    /// # Errors
    /// If it has been tried for long enough.
    pub(crate) async fn pause(&mut self, step: Step, holder: &str) -> Result<(), MigrateError> {
        let first = self.since.is_none();
        let tried = self.since.get_or_insert_with(Instant::now).elapsed();
        if tried >= self.patience {
            return Err(failed(format!(
                "{step} needs the lock of a table for a moment, and did not get it for {} s; {holder}. Nothing is \
                 lost, and receivers of the version before go on. Let that transaction end, or end it, and start again; or \
                 run `tower-inbox migrate` while no long handler and no backup is at work",
                self.patience.as_secs()
            )));
        }
        if first {
            tracing::warn!(%step, "a migration waits for the lock of a table: {holder}");
        }
        tokio::time::sleep(PAUSE.min(self.patience)).await;
        Ok(())
    }
}

/// How long a process waits in all while another one migrates: that one may have to wait as long as its patience itself, and
/// may be at work on a large table however short the patience is. A year is what MariaDB takes.
pub(crate) fn peer_wait(patience: Duration) -> Duration {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    patience.saturating_mul(2).clamp(PATIENCE, YEAR)
}

/// Another process has been at work for longer than [`peer_wait`].
pub(crate) fn peer_at_work(wait: Duration) -> MigrateError {
    let wait = wait.as_secs();
    failed(format!(
        "another process has been migrating for {wait} s; what it waits for is in its log. Start again when it is done"
    ))
}

/// Another process that migrates at the same time. It is at work, and nobody is to end it.
#[cfg(feature = "postgres")]
pub(crate) struct Peer {
    since: Option<Instant>,
    wait: Duration,
}

#[cfg(feature = "postgres")]
impl Peer {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            since: None,
            wait: peer_wait(patience),
        }
    }

    /// Pauses before the next look.
    ///
    /// # Errors
    /// If it has been at work for too long.
    pub(crate) async fn pause(&mut self) -> Result<(), MigrateError> {
        if self.since.is_none() {
            tracing::info!("another process migrates; waiting for it");
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() >= self.wait {
            return Err(peer_at_work(self.wait));
        }
        tokio::time::sleep(LOOK).await;
        Ok(())
    }
}

/// An error of ours. The driver has a variant for texts of others, in which it means the files, which are in the program here.
pub(crate) fn failed(why: String) -> MigrateError {
    MigrateError::Source(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (schema): it follows the patience of the process that migrates.
    #[test]
    fn another_process_is_waited_for_as_long_as_it_may_have_to_wait() {
        let wait = |secs| peer_wait(Duration::from_secs(secs)).as_secs();
        assert_eq!((wait(60), wait(600)), (120, 1_200));
        assert_eq!((wait(0), wait(1)), (60, 60));
        assert_eq!(wait(u64::MAX), 31_536_000);
    }
}
