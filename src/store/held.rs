//! Migrations that wait for the lock of a table.

use std::time::{Duration, Instant};

use sqlx::migrate::MigrateError;

/// How long one try of a step waits for the lock of a table. Deliveries queue behind it meanwhile, so it is less than the
/// shortest budget of a preset (2 s); and a second is the unit of MySQL's setting.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Between two tries: deliveries go on for twice as long as they were held up.
const PAUSE: Duration = Duration::from_secs(2);

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
    pub(crate) async fn pause(&mut self, version: i64, holder: &str) -> Result<(), MigrateError> {
        let first = self.since.is_none();
        let tried = self.since.get_or_insert_with(Instant::now).elapsed();
        if tried >= self.patience {
            return Err(failed(format!(
                "version {version} needs the lock of a table for a moment, and did not get it for {} s; {holder}. Nothing is \
                 lost, and receivers of the version before go on. Let that transaction end, or end it, and start again; or \
                 run `tower-inbox migrate` while no long handler and no backup is at work",
                self.patience.as_secs()
            )));
        }
        if first {
            tracing::warn!(
                version,
                "a migration waits for the lock of a table: {holder}"
            );
        }
        tokio::time::sleep(PAUSE.min(self.patience)).await;
        Ok(())
    }
}

/// An error of ours. The driver has a variant for texts of others, in which it means the files, which are in the program here.
pub(crate) fn failed(why: String) -> MigrateError {
    MigrateError::Source(why.into())
}
