//! An open loop: requests are due at random times, so many a second, whether or not those before them are answered.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

/// As the timer's: what is due meanwhile is released together, and its time counts from then.
const TICK: Duration = Duration::from_millis(1);

pub(crate) struct Pace {
    rate: f64,
    ended: Cell<bool>,
    due: Semaphore,
    since: RefCell<VecDeque<Instant>>,
}

impl Pace {
    pub(crate) fn new(rate: f64) -> Self {
        Self {
            rate,
            ended: Cell::new(false),
            due: Semaphore::new(0),
            since: RefCell::default(),
        }
    }

    /// Releases what is due, until [`Self::end`].
    pub(crate) async fn run(&self) {
        let (from, mut next) = (Instant::now(), 0.0);
        let mut tick = tokio::time::interval(TICK);
        while !self.ended.get() {
            let now = Instant::now();
            while next < (now - from).as_secs_f64() {
                self.since.borrow_mut().push_back(now);
                self.due.add_permits(1);
                // As if from many who know nothing of each other.
                next += -(1.0 - fastrand::f64()).ln() / self.rate;
            }
            tick.tick().await;
        }
        self.due.close();
    }

    pub(crate) fn end(&self) {
        self.ended.set(true);
    }

    /// Since when the next request is due; None at the end.
    pub(crate) async fn next(&self) -> Option<Instant> {
        self.due.acquire().await.ok()?.forget();
        self.since.borrow_mut().pop_front()
    }
}
