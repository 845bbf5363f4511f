//! Statistics of the last 24 hours, over all processes and across restarts (§8):
//! [`Inbox::stats`](crate::Inbox::stats) and [`Operator::stats`](crate::Operator::stats).
//!
//! A delivery costs an atomic step or two in memory. Every few seconds, and when it is shut down, each process adds what it
//! has counted to a table with a row for each source, event type and hour, in one transaction; what could not be added is
//! added later, once. A process that is killed takes the counts of its last seconds with it, five as a rule. The hour that
//! something counts in is the one in which it was taken from memory, so that a few seconds of one may be in the next.
//!
//! **What counts as what.** `total` is deliveries of events that were verified: each retry and each duplicate by itself. What
//! was not verified is `refused` and nothing else. A handshake, or what a producer says about its deliveries, is neither.
//! `delivered`, `discarded` and `failed` count decisions: of deliveries, and of what the worker and a reconciliation try
//! later, which are no deliveries. So they do not add up to `total`, and the success rate is that of what was decided, not
//! of the total: what is parked is neither a success nor a failure yet.

mod flush;
mod latency;
mod paced;
mod rows;
mod stored;
mod tally;
mod view;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::clock::Timestamp;

pub(crate) use flush::{Statistics, flush, purge};
pub(crate) use paced::Paced;
pub(crate) use rows::run as count_rows;
pub(crate) use stored::Stored;
pub(crate) use tally::{OUTCOMES, Tally, taken};

/// Micro-seconds.
const HOUR: i64 = 3_600 * 1_000_000;
/// Hours that are told: the present one and those before it.
const SLOTS: i64 = 24;

/// When the hour began.
fn slot_of(at: Timestamp) -> Timestamp {
    Timestamp::from_micros(at.as_micros().div_euclid(HOUR) * HOUR)
}

/// The first of the hours that are told at this one.
fn first_slot(now: Timestamp) -> Timestamp {
    Timestamp::from_micros(slot_of(now).as_micros() - (SLOTS - 1) * HOUR)
}

/// The statistics of an inbox's database, as [`Inbox::stats`](crate::Inbox::stats) has them.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// When they were read.
    pub at: Timestamp,
    /// By name: the inbox's own sources, and every other one that something is known of.
    pub sources: Vec<SourceStats>,
}

/// The statistics of one source.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SourceStats {
    /// Its name.
    pub source: String,
    /// All event types together.
    pub counts: Counts,
    /// By event type, the ones with most deliveries first: as many as the source tells apart, the rest as `other`.
    pub types: Vec<TypeStats>,
    /// The 24 hours, oldest first, the present one last, none missing.
    pub slots: Vec<Slot>,
    /// Rows of events in the inbox: counted in the background, page by page, so that it is about right. Nothing before the
    /// first count.
    pub rows: Option<u64>,
    /// When they were counted.
    pub rows_at: Option<Timestamp>,
    /// Events that wait for a lower sequence or for the worker.
    pub parked: u64,
    /// When the oldest of them was stored.
    pub oldest_parked: Option<Timestamp>,
    /// Streams that wait for a sequence that has not come. This, `leases` and `drain_lag` are of the last look where a look
    /// takes long, which is then taken once in fifty times as long.
    pub gaps: u64,
    /// Dead letters by reason, each there, also with none.
    pub dead_letters: BTreeMap<&'static str, u64>,
    /// Events that the fence holds.
    pub fenced: u64,
    /// Stored events that a worker, of any process, is at work on.
    pub leases: u64,
    /// For how many seconds the oldest due event has been due; nothing if none is.
    pub drain_lag: Option<f64>,
    /// Deliveries in the 24 hours that were not verified: wrong or missing signatures, and whatever else ended them at the door.
    pub refused: u64,
    /// When a delivery was last verified by each secret that was ever used in the last 400 days, by label.
    pub secrets: Vec<SecretUse>,
    /// When a producer's list was last gone through to its end.
    pub reconciled_at: Option<Timestamp>,
}

/// What was counted in the 24 hours: the present one, and the 23 before it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// Deliveries of events: each retry and each duplicate by itself.
    pub total: u64,
    /// Events applied, by a delivery, the worker or a reconciliation.
    pub delivered: u64,
    /// Deliveries of events that were decided before.
    pub duplicates: u64,
    /// Deliveries that were stored for later: ahead of their turn, or for the worker of a deferred source.
    pub parked: u64,
    /// Terminal verdicts (4xx): the handler's, whoever ran it; and the inbox's own on what was verified, such as other content
    /// under a known id.
    pub discarded: u64,
    /// What may go better another time: deliveries that were answered 408, 429 or 5xx, and tries of the worker in which the
    /// handler failed.
    pub failed: u64,
    /// (delivered + duplicates) / (delivered + duplicates + discarded + failed), from 0 to 1. Nothing if nothing was decided.
    /// The error rate is what is missing to 1.
    pub success_rate: Option<f64>,
    /// When a delivery, or a try of the worker, last ended with a 5xx.
    pub last_5xx: Option<Timestamp>,
    /// The time in seconds that 95 of 100 runs of the handler did not exceed, also of those that were undone with their batch
    /// or transaction and made again: each took its time. Taken from a histogram: wrong by at most 19 %. 0.001 stands for up to a millisecond, 32.768 for that and more.
    pub p95: Option<f64>,
    /// The same for 99 of 100.
    pub p99: Option<f64>,
}

impl Counts {
    /// [`Counts::success_rate`] for people: rounded to a tenth, and neither "100 %" while there is one that did not succeed
    /// nor "0 %" while there is one that did.
    pub fn success_percent(&self) -> Option<String> {
        self.success_rate.map(percent)
    }
}

fn percent(share: f64) -> String {
    let tenths = (share * 1_000.0).round();
    if share >= 1.0 {
        "100 %".into()
    } else if tenths >= 1_000.0 {
        "> 99.9 %".into()
    } else if share <= 0.0 {
        "0 %".into()
    } else if tenths < 1.0 {
        "< 0.1 %".into()
    } else {
        format!("{:.1} %", tenths / 10.0)
    }
}

/// What was counted of one event type.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TypeStats {
    /// Nothing for events without a type; `other` for types beyond those that are told apart
    /// ([`Source::max_event_types`](crate::Source::max_event_types)).
    pub event_type: Option<String>,
    /// Its counts.
    pub counts: Counts,
}

/// One hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Slot {
    /// When it began.
    pub at: Timestamp,
    /// As [`Counts::total`].
    pub total: u64,
    /// As [`Counts::failed`].
    pub failed: u64,
}

/// When a secret was last used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SecretUse {
    /// The secret's label.
    pub label: String,
    /// When a delivery was last verified by it, in any process, to the second.
    pub last_verified: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_and_neither_all_nor_nothing_unless_it_is() {
        for (share, text) in [
            (1.0, "100 %"),
            (0.999_99, "> 99.9 %"),
            (0.999_4, "99.9 %"),
            (0.995_6, "99.6 %"),
            (0.5, "50.0 %"),
            (0.000_1, "< 0.1 %"),
            (0.0, "0 %"),
        ] {
            assert_eq!(percent(share), text);
        }
    }
}
