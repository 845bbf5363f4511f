//! For one stream under many connections: sequences are handed out in order, and what came early all the same is sent again
//! when it is its turn, before anything else is handed out.
//!
//! Without that, one request that overtakes another on its way (two that are read by two threads) would leave everything
//! behind it early for good: an early one is answered at once, so that the next one is sent even earlier.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Notify};

/// From one connection to the next, when they begin and when they begin again: more than a busy machine needs to get
/// round to a request that has arrived.
const ENTRANCES: Duration = Duration::from_millis(3);
/// From one request to the next: two that arrive at once are two threads' work, in either order.
const REQUESTS: Duration = Duration::from_micros(150);

#[derive(Default)]
pub(crate) struct Gate {
    /// Everything below this index is applied.
    applied: Cell<usize>,
    under_way: Cell<usize>,
    closed: Cell<bool>,
    changed: Notify,
    entrance: Mutex<()>,
    last: Cell<Option<Instant>>,
}

impl Gate {
    /// A connection begins.
    pub(crate) async fn enter(&self) {
        let _one_by_one = self.entrance.lock().await;
        tokio::time::sleep(ENTRANCES).await;
        while self.closed.get() {
            self.changed.notified().await;
            tokio::time::sleep(ENTRANCES).await;
        }
    }

    /// Waits until a request may be handed out. [`Self::sent`] is next, without an await between them.
    pub(crate) async fn pass(&self) {
        if self.closed.get() {
            self.enter().await;
        }
    }

    pub(crate) fn sent(&self) {
        self.under_way.set(self.under_way.get() + 1);
        let since = self.last.get().map_or(REQUESTS, |last| last.elapsed());
        // The whole thread: a timer of the runtime is not as exact, and there is nothing else to do for it.
        std::thread::sleep(REQUESTS.saturating_sub(since));
        self.last.set(Some(Instant::now()));
    }

    /// That one came early: waits until it is its turn.
    pub(crate) async fn early(&self, index: usize) {
        self.closed.set(true);
        while self.applied.get() < index {
            self.changed.notified().await;
        }
    }

    pub(crate) fn applied(&self, index: usize) {
        self.applied.set(self.applied.get().max(index + 1));
        self.under_way.set(self.under_way.get() - 1);
        if self.under_way.get() == 0 {
            self.closed.set(false);
        }
        self.changed.notify_waiters();
    }
}
