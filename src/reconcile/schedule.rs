//! Reconciling from time to time.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::{Options, ReplaySource, Report, once};
use crate::shared::Shared;
use crate::store::Backend;

/// A producer that wants to be left alone longer is asked all the same: its list ends some day.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

/// Reconciles a source from time to time, until the inbox is shut down or its last handle is gone. A handle: dropping it
/// ends nothing.
#[derive(Clone)]
pub struct Reconciler {
    inner: Arc<Inner>,
}

struct Inner {
    source: Arc<str>,
    woken: Notify,
    runs: watch::Sender<u64>,
    last: Mutex<Option<Result<Report, String>>>,
}

impl fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciler")
            .field("source", &self.inner.source)
            .field("runs", &*self.inner.runs.borrow())
            .finish()
    }
}

impl Reconciler {
    pub(super) fn spawn<DB: Backend>(
        shared: &Arc<Shared<DB>>,
        source: &str,
        every: Duration,
        options: Options,
        from: impl ReplaySource,
    ) -> Self {
        let inner = Arc::new(Inner {
            source: source.into(),
            woken: Notify::new(),
            runs: watch::Sender::new(0),
            last: Mutex::new(None),
        });
        let stop = shared.keeping.stop.subscribe();
        let task = run(
            Arc::downgrade(shared),
            Arc::clone(&inner),
            every,
            options,
            from,
            stop,
        );
        shared.runtime.spawn(task);
        Self { inner }
    }

    /// Runs now, or once more if it is running.
    pub fn wake(&self) {
        self.inner.woken.notify_one();
    }

    /// The runs that have ended.
    pub fn runs(&self) -> u64 {
        *self.inner.runs.borrow()
    }

    /// Waits until more runs than that have ended. False if there will be none any more.
    pub async fn after(&self, runs: u64) -> bool {
        let mut ended = self.inner.runs.subscribe();
        let more = ended.wait_for(|now| *now > runs).await;
        more.is_ok_and(|now| *now != u64::MAX)
    }

    /// What the last run came to, or why there was none.
    pub fn last(&self) -> Option<Result<Report, String>> {
        let last = self.inner.last.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn run<DB: Backend>(
    shared: Weak<Shared<DB>>,
    inner: Arc<Inner>,
    every: Duration,
    options: Options,
    from: impl ReplaySource,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let wait = {
            let Some(shared) = shared.upgrade() else {
                break;
            };
            // Each time: the recorder may have been installed since.
            show_interval(&inner.source, every);
            let ended = once(&shared, &inner.source, &from, &options).await;
            let wait = match &ended {
                Ok(report) => report.wait().unwrap_or(every).max(every),
                Err(error) => {
                    tracing::warn!(source = &*inner.source, %error, "could not reconcile");
                    every
                }
            };
            let ended = ended.map_err(|error| error.to_string());
            *inner.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
            inner.runs.send_modify(|runs| *runs += 1);
            wait.min(LONGEST_WAIT.max(every))
        };
        // Jitter, so that processes that started together do not ask together.
        let wait = wait.mul_f64(0.75 + fastrand::f64() / 2.0);
        tokio::select! {
            () = sleep(wait) => {}
            () = inner.woken.notified() => {}
            // The inbox is shut down, or gone.
            _ = stop.wait_for(|stopped| *stopped) => break,
        }
    }
    show_interval(&inner.source, Duration::ZERO);
    inner.runs.send_replace(u64::MAX);
}

/// What is reconciled on demand alone is never overdue: an alert goes by this.
fn show_interval(source: &Arc<str>, every: Duration) {
    let source = metrics::SharedString::from_shared(Arc::clone(source));
    metrics::gauge!("inbox_reconciliation_interval_seconds", "source" => source)
        .set(every.as_secs_f64());
}
