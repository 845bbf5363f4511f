//! Counts what is running, so that a shutdown can wait for it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// In the count of what is running: no new work is taken.
const CLOSED: usize = 1;
/// One more that is running.
const ONE: usize = 2;

/// The count, and whether new work is taken.
#[derive(Clone, Default)]
pub(crate) struct Tracker(Arc<State>);

#[derive(Default)]
struct State {
    running: AtomicUsize,
    /// How many have ever entered. Counted before they leave.
    entered: AtomicU64,
    idle: Notify,
}

impl State {
    fn is_idle(&self) -> bool {
        self.running.load(Ordering::SeqCst) < ONE
    }
}

impl Tracker {
    /// A place among what is running; nothing once it is closed.
    pub(crate) fn enter(&self) -> Option<Tracked> {
        let before = self.0.running.fetch_add(ONE, Ordering::SeqCst);
        let tracked = Tracked(Arc::clone(&self.0));
        if before & CLOSED != 0 {
            // And dropped, as any other: whoever waits until nothing is running may have seen it.
            return None;
        }
        self.0.entered.fetch_add(1, Ordering::SeqCst);
        Some(tracked)
    }

    pub(crate) fn close(&self) {
        self.0.running.fetch_or(CLOSED, Ordering::SeqCst);
    }

    /// If nothing is running: how many have ever entered. The same number twice says that nothing has run in between.
    #[cfg(feature = "testkit")]
    pub(crate) fn quiet(&self) -> Option<u64> {
        // Read first: one that comes and goes meanwhile is in the next number.
        let entered = self.0.entered.load(Ordering::SeqCst);
        self.0.is_idle().then_some(entered)
    }

    /// Waits until nothing is running.
    pub(crate) async fn idle(&self) {
        loop {
            let mut idle = pin!(self.0.idle.notified());
            // Before the look, so that nothing leaves unseen.
            idle.as_mut().enable();
            if self.0.is_idle() {
                return;
            }
            idle.await;
        }
    }
}

/// Counts as running until dropped.
pub(crate) struct Tracked(Arc<State>);

impl Drop for Tracked {
    fn drop(&mut self) {
        let before = self.0.running.fetch_sub(ONE, Ordering::SeqCst);
        if before < 2 * ONE {
            self.0.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (shutdown)
    #[tokio::test]
    async fn it_is_idle_when_the_last_one_has_left_and_takes_nobody_once_closed() {
        let tracker = Tracker::default();
        let one = tracker.enter().expect("open");
        tracker.close();
        assert!(tracker.enter().is_none());
        let idle = tokio::spawn({
            let tracker = tracker.clone();
            async move { tracker.idle().await }
        });
        tokio::task::yield_now().await;
        assert!(!idle.is_finished());
        drop(one);
        idle.await.expect("idle");
    }

    /// For `settled`.
    #[cfg(feature = "testkit")]
    #[test]
    fn whoever_came_and_went_between_two_looks_is_seen() {
        let tracker = Tracker::default();
        let before = tracker.quiet();
        assert!(before.is_some());
        assert_eq!(tracker.quiet(), before);
        let one = tracker.enter().expect("open");
        assert_eq!(tracker.quiet(), None);
        drop(one);
        assert!(tracker.quiet().is_some());
        assert_ne!(tracker.quiet(), before);
    }
}
