//! Counts what is running, so that a shutdown can wait for it.

use std::sync::Arc;

use tokio::sync::watch;

/// The count, and whether new work is taken.
#[derive(Clone)]
pub(crate) struct Tracker(Arc<watch::Sender<Running>>);

#[derive(Default)]
struct Running {
    count: usize,
    /// How many have ever entered.
    entered: u64,
    closed: bool,
}

impl Default for Tracker {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Running::default())))
    }
}

impl Tracker {
    /// A place among what is running; nothing once it is closed.
    pub(crate) fn enter(&self) -> Option<Tracked> {
        let mut entered = false;
        self.0.send_if_modified(|running| {
            entered = !running.closed;
            running.count += usize::from(entered);
            running.entered += u64::from(entered);
            false
        });
        entered.then(|| Tracked(Arc::clone(&self.0)))
    }

    pub(crate) fn close(&self) {
        self.0.send_modify(|running| running.closed = true);
    }

    /// If nothing is running: how many have ever entered. The same number twice says that nothing has run in between.
    #[cfg(feature = "testkit")]
    pub(crate) fn quiet(&self) -> Option<u64> {
        let running = self.0.borrow();
        (running.count == 0).then_some(running.entered)
    }

    /// Waits until nothing is running.
    pub(crate) async fn idle(&self) {
        // An error would mean that the sender is gone, which this very handle keeps.
        let _ = self
            .0
            .subscribe()
            .wait_for(|running| running.count == 0)
            .await;
    }
}

/// Counts as running until dropped.
pub(crate) struct Tracked(Arc<watch::Sender<Running>>);

impl Drop for Tracked {
    fn drop(&mut self) {
        self.0.send_if_modified(|running| {
            running.count -= 1;
            running.count == 0
        });
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
