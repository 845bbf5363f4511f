//! Plain data of the statistics.

use crate::clock::Timestamp;

/// Of a histogram of latencies; what they hold is said where they are filled.
pub(crate) const BUCKETS: usize = 32;

/// A row of the statistics: source, event type (empty: none) and when the hour began.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct StatKey<'a> {
    pub source: &'a str,
    pub event_type: &'a str,
    pub slot: Timestamp,
}

/// What it counts. Two are added column by column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub struct StatCounts {
    pub total: i64,
    pub delivered: i64,
    pub duplicates: i64,
    pub parked: i64,
    pub discarded: i64,
    pub failed: i64,
    pub refused: i64,
    /// The latest; 0: none.
    pub last_5xx: i64,
    pub handler: [i64; BUCKETS],
}

impl StatCounts {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn add(&mut self, more: &Self) {
        self.total += more.total;
        self.delivered += more.delivered;
        self.duplicates += more.duplicates;
        self.parked += more.parked;
        self.discarded += more.discarded;
        self.failed += more.failed;
        self.refused += more.refused;
        self.last_5xx = self.last_5xx.max(more.last_5xx);
        for (bucket, more) in self.handler.iter_mut().zip(more.handler) {
            *bucket += more;
        }
    }
}

/// All hours together, of one source and type.
#[doc(hidden)]
pub struct StatOfType {
    pub source: String,
    pub event_type: String,
    pub counts: StatCounts,
}

/// All types together, of one source and hour.
#[doc(hidden)]
pub struct StatOfSlot {
    pub source: String,
    pub slot: Timestamp,
    pub total: i64,
    pub failed: i64,
}

/// What is due of a source.
#[doc(hidden)]
pub struct DueSince {
    pub source: String,
    /// Dead letters of a gap, which come back only where the source has it so.
    pub is_dead: bool,
    /// Since when the oldest of them has been due.
    pub since: Timestamp,
}

/// Streams that may wait for a sequence that has not come.
#[doc(hidden)]
pub struct Gaps {
    pub source: String,
    /// The lowest sequence that is stored of them, 0 or 1, if they have not begun. Otherwise 2: they wait.
    pub lowest: i64,
    pub streams: i64,
}

/// What is stored, as far as it takes more than counting.
#[derive(Default)]
#[doc(hidden)]
pub struct StoredNow {
    pub gaps: Vec<Gaps>,
    pub due: Vec<DueSince>,
    /// Events that a worker has claimed, by source.
    pub leases: Vec<(String, i64)>,
}

/// How many rows of events a source has.
#[doc(hidden)]
pub struct RowCount {
    pub source: String,
    pub rows: i64,
    pub at: Timestamp,
}

/// When a delivery was last verified by a secret.
#[doc(hidden)]
pub struct SecretUsed {
    pub source: String,
    pub label: String,
    pub at: Timestamp,
}
