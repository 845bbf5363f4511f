//! Time that a test moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::clock::{Clock, Timestamp};

/// A clock that stands until it is moved, shared by inbox, database and producers: 72 hours pass in no time.
///
/// It goes to the inbox by [`InboxBuilder::clock`](crate::InboxBuilder::clock); producers of a kit, and the kit's
/// `settled`, move and ask the same one by [`Kit::clock`](super::Kit::clock). Clones are handles of the same clock.
///
/// Timeouts inside one delivery (the budget, the reading of a body) are real time all the same.
#[derive(Clone, Debug)]
pub struct VirtualClock(Arc<AtomicI64>);

impl VirtualClock {
    /// Shows the real time of now.
    pub fn new() -> Self {
        Self::at(Timestamp::now())
    }

    /// Shows this time.
    pub fn at(time: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(time.as_micros())))
    }

    /// Moves it on.
    pub fn advance(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        self.0.fetch_add(micros, Ordering::AcqRel);
    }

    /// Moves it on to this time; not at all if that is past.
    pub fn advance_to(&self, time: Timestamp) {
        self.0.fetch_max(time.as_micros(), Ordering::AcqRel);
    }
}

impl VirtualClock {
    /// # Panics
    /// If that is another clock.
    #[track_caller]
    pub(super) fn demand_of(&self, clock: &dyn Clock) {
        // By so many µs, each of its own: no clock that runs by itself goes just as far four times.
        let follows = [3, 17, 5, 101].into_iter().all(|micros| {
            let before = clock.now().as_micros();
            self.0.fetch_add(micros, Ordering::AcqRel);
            let after = clock.now().as_micros();
            self.0.fetch_sub(micros, Ordering::AcqRel);
            after - before == micros
        });
        assert!(
            follows,
            "the inbox goes by another clock than the kit: `Inbox::builder(…).clock(clock.clone())` gives it this one"
        );
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Acquire))
    }

    fn database(&self, _: Timestamp) -> Timestamp {
        self.now()
    }
}
