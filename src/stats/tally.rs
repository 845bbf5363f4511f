//! What is counted of one event type of a source in this process, until it is added to the table.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use super::latency;
use crate::clock::Timestamp;
use crate::event::Outcome;
use crate::store::{BUCKETS, StatCounts};

/// How many outcomes there are.
pub(crate) const OUTCOMES: usize = 6;

/// Numbers that deliveries add to, each with one atomic step, and that the upkeep takes away.
#[derive(Default)]
pub(crate) struct Tally {
    /// Deliveries, by outcome.
    answered: [AtomicU64; OUTCOMES],
    /// What was done with nobody waiting, by outcome.
    aside: [AtomicU64; OUTCOMES],
    handler: [AtomicU64; BUCKETS],
    /// The latest; 0: none.
    last_5xx: AtomicI64,
}

impl Tally {
    /// A delivery was answered.
    pub(crate) fn answered(&self, outcome: Outcome) {
        add(&self.answered[outcome as usize]);
    }

    /// The worker or a reconciliation has decided about an event, or has failed to.
    pub(crate) fn tried(&self, outcome: Outcome) {
        add(&self.aside[outcome as usize]);
    }

    /// A handler has run for so long.
    pub(crate) fn ran(&self, took: Duration) {
        add(&self.handler[latency::bucket(took)]);
    }

    pub(crate) fn failed_with_5xx(&self, at: Timestamp) {
        self.last_5xx.fetch_max(at.as_micros(), Ordering::Relaxed);
    }

    /// What was counted since the last time.
    pub(crate) fn take(&self) -> StatCounts {
        let [applied, duplicates, parked, accepted, rejected, failed] =
            self.answered.each_ref().map(taken);
        let aside = self.aside.each_ref().map(taken);
        let aside = |outcome: Outcome| aside[outcome as usize];
        StatCounts {
            total: applied + duplicates + parked + accepted + rejected + failed,
            delivered: applied + aside(Outcome::Applied),
            duplicates,
            // What a deferred source has accepted waits for the worker as well.
            parked: parked + accepted,
            discarded: rejected + aside(Outcome::Rejected),
            failed: failed + aside(Outcome::Failed),
            refused: 0,
            last_5xx: self.last_5xx.swap(0, Ordering::Relaxed),
            handler: self.handler.each_ref().map(taken),
        }
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// A look first: most are 0 most of the time, and a look leaves the line of memory where it is.
pub(crate) fn taken(count: &AtomicU64) -> i64 {
    if count.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    i64::try_from(count.swap(0, Ordering::Relaxed)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §8
    #[test]
    fn what_is_taken_is_what_was_counted_once() {
        let tally = Tally::default();
        for (outcome, times) in [
            (Outcome::Applied, 6),
            (Outcome::Duplicate, 5),
            (Outcome::Parked, 4),
            (Outcome::Accepted, 3),
            (Outcome::Rejected, 2),
            (Outcome::Failed, 1),
        ] {
            (0..times).for_each(|_| tally.answered(outcome));
        }
        tally.tried(Outcome::Applied);
        tally.tried(Outcome::Rejected);
        tally.tried(Outcome::Failed);
        tally.ran(Duration::from_millis(3));
        tally.failed_with_5xx(Timestamp::from_secs(9));
        tally.failed_with_5xx(Timestamp::from_secs(7));
        let mut handler = [0; BUCKETS];
        handler[latency::bucket(Duration::from_millis(3))] = 1;
        let wanted = StatCounts {
            total: 21,
            delivered: 7,
            duplicates: 5,
            parked: 7,
            discarded: 3,
            failed: 2,
            refused: 0,
            last_5xx: 9_000_000,
            handler,
        };
        assert_eq!(tally.take(), wanted);
        assert!(tally.take().is_empty());
    }
}
