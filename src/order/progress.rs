//! What can be seen of the worker from outside.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::clock::Timestamp;
use crate::inbox::Inbox;
use crate::store::Backend;

/// What the worker of this process is doing, as [`Inbox::worker_status`] says it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// It runs: a source has been mounted, and the inbox has not been shut down.
    pub running: bool,
    /// When it last looked for what is due and the database answered. While it runs, this is never older than about
    /// [`poll_every`](crate::InboxBuilder::poll_every) and a quarter, unless the database is away.
    pub last_look: Option<Timestamp>,
    /// When it last applied a stored event.
    pub last_applied: Option<Timestamp>,
    /// The sources whose events it applies, in order. Tenants are not among them.
    pub mounted: Vec<String>,
}

impl<DB: Backend> Inbox<DB> {
    /// What the worker of this process is doing: for a health check, and for people.
    ///
    /// ```no_run
    /// # fn example(inbox: &tower_inbox::Inbox<sqlx::Sqlite>) {
    /// let worker = inbox.worker_status();
    /// assert!(worker.running && worker.last_look.is_some());
    /// # }
    /// ```
    pub fn worker_status(&self) -> WorkerStatus {
        let worker = &self.shared.worker;
        let progress = worker.progress();
        WorkerStatus {
            running: progress.running.load(Ordering::Acquire),
            last_look: progress.last_look.get(),
            last_applied: progress.last_applied.get(),
            mounted: worker.mounted(),
        }
    }
}

#[derive(Default)]
pub(super) struct Progress {
    running: AtomicBool,
    last_look: Moment,
    last_applied: Moment,
}

/// A time, once there is one.
#[derive(Default)]
struct Moment(AtomicI64);

impl Moment {
    fn get(&self) -> Option<Timestamp> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(Timestamp::from_micros(micros)),
        }
    }

    fn set(&self, at: Timestamp, gauge: &'static str) {
        self.0.store(at.as_micros(), Ordering::Relaxed);
        show_time(metrics::gauge!(gauge), at);
    }
}

/// A gauge of when something was, in seconds since 1970.
pub(crate) fn show_time(gauge: metrics::Gauge, at: Timestamp) {
    #[allow(
        clippy::cast_precision_loss,
        reason = "a gauge is a float; microseconds fit until the year 2255"
    )]
    gauge.set(at.as_micros() as f64 / 1e6);
}

impl Progress {
    pub(super) fn looked(&self, at: Timestamp) {
        self.last_look
            .set(at, "inbox_worker_last_look_timestamp_seconds");
    }

    pub(super) fn applied(&self, at: Timestamp) {
        self.last_applied
            .set(at, "inbox_worker_last_applied_timestamp_seconds");
    }

    /// Until what is returned is dropped.
    pub(super) fn runs(&self) -> Runs<'_> {
        self.running.store(true, Ordering::Release);
        Runs(self)
    }
}

pub(super) struct Runs<'a>(&'a Progress);

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}
