//! What is counted about a source in this process: for the metrics at once, and for the statistics until they are written.
//!
//! Keys are made once. The recorder is asked for the counter each time, as the macros of `metrics` do: it may be installed
//! later, or be one thread's own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use http::StatusCode;
use metrics::{Key, Label, Level, Metadata, SharedString, with_recorder};

use crate::clock::Timestamp;
use crate::event::Outcome;
use crate::stats::{OUTCOMES, Tally, taken};
use crate::store::StatCounts;

/// The label, and the type in the statistics, of all types beyond those that are told apart.
pub(crate) const OTHER: &str = "other";

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// All of them, in their order.
const ALL: [Outcome; OUTCOMES] = [
    Outcome::Applied,
    Outcome::Duplicate,
    Outcome::Parked,
    Outcome::Accepted,
    Outcome::Rejected,
    Outcome::Failed,
];

/// What a handler said, as far as it can be told before the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdicts {
    Commit,
    Reject,
    NotYet,
    Fail,
}

const VERDICTS: [(Verdicts, &str); 4] = [
    (Verdicts::Commit, "commit"),
    (Verdicts::Reject, "reject"),
    (Verdicts::NotYet, "not_yet"),
    (Verdicts::Fail, "fail"),
];

/// Of one event type.
struct OfType {
    deliveries: [Key; OUTCOMES],
    runs: [Key; VERDICTS.len()],
    tally: Tally,
}

impl OfType {
    fn new(source: &SharedString, event_type: &SharedString) -> Self {
        let key = |name: &'static str, word: &'static str, value: &'static str| {
            let labels = vec![
                Label::new("source", source.clone()),
                Label::new("event_type", event_type.clone()),
                Label::from_static_parts(word, value),
            ];
            Key::from_parts(name, labels)
        };
        Self {
            deliveries: ALL
                .map(|outcome| key("inbox_deliveries_total", "outcome", outcome.as_str())),
            runs: VERDICTS.map(|(_, verdict)| key("inbox_handler_runs_total", "verdict", verdict)),
            tally: Tally::default(),
        }
    }
}

/// What is counted about one source.
pub(crate) struct Counted {
    name: Arc<str>,
    source: SharedString,
    /// Types that are told apart.
    most: usize,
    types: RwLock<HashMap<Arc<str>, Arc<OfType>>>,
    untyped: OnceLock<Arc<OfType>>,
    /// Of types beyond so many: a producer must not be able to make labels.
    others: OnceLock<Arc<OfType>>,
    durations: OnceLock<[Key; OUTCOMES]>,
    handler: OnceLock<Key>,
    /// Deliveries that were not verified.
    refused: AtomicU64,
    /// Nobody takes the counts.
    off: AtomicBool,
}

impl Counted {
    pub(crate) fn new(source: &Arc<str>, most: usize) -> Self {
        Self {
            name: Arc::clone(source),
            source: SharedString::from_shared(Arc::clone(source)),
            most,
            types: RwLock::default(),
            untyped: OnceLock::new(),
            others: OnceLock::new(),
            durations: OnceLock::new(),
            handler: OnceLock::new(),
            refused: AtomicU64::new(0),
            off: AtomicBool::new(false),
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// From now on it counts for the metrics alone.
    pub(crate) fn turn_off(&self) {
        self.off.store(true, Ordering::Relaxed);
    }

    fn keeps(&self) -> bool {
        !self.off.load(Ordering::Relaxed)
    }

    /// A delivery of an event of this type was answered; with a 5xx at this time.
    pub(crate) fn answered(
        &self,
        event_type: Option<&Arc<str>>,
        outcome: Outcome,
        failed_at: Option<Timestamp>,
    ) {
        let counted = self.of_type(event_type);
        increment(&counted.deliveries[outcome as usize]);
        if !self.keeps() {
            return;
        }
        counted.tally.answered(outcome);
        if let Some(at) = failed_at {
            counted.tally.failed_with_5xx(at);
        }
    }

    /// A request was answered that carried no event: a handshake, or what a producer says about its deliveries.
    pub(crate) fn accepted(&self) {
        increment(&self.of_type(None).deliveries[Outcome::Accepted as usize]);
    }

    /// A delivery was turned away before it was known which event it carries.
    pub(crate) fn refused(
        &self,
        status: StatusCode,
        outcome: Outcome,
        verified: bool,
        failed_at: Option<Timestamp>,
    ) {
        refused(self.source.clone(), reason(status, verified));
        if verified {
            return self.answered(None, outcome, failed_at);
        }
        increment(&self.of_type(None).deliveries[outcome as usize]);
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How long a request took to be answered.
    pub(crate) fn took(&self, outcome: Outcome, time: Duration) {
        let keys = self.durations.get_or_init(|| {
            ALL.map(|outcome| {
                let labels = vec![
                    Label::new("source", self.source.clone()),
                    Label::from_static_parts("outcome", outcome.as_str()),
                ];
                Key::from_parts("inbox_delivery_duration_seconds", labels)
            })
        });
        record(&keys[outcome as usize], time);
    }

    /// A handler has run.
    pub(crate) fn ran(&self, event_type: Option<&Arc<str>>, verdict: Verdicts, time: Duration) {
        let counted = self.of_type(event_type);
        increment(&counted.runs[verdict as usize]);
        if self.keeps() {
            counted.tally.ran(time);
        }
        let key = self.handler.get_or_init(|| {
            let labels = vec![Label::new("source", self.source.clone())];
            Key::from_parts("inbox_handler_duration_seconds", labels)
        });
        record(key, time);
    }

    /// The worker or a reconciliation has decided about an event, or its handler has failed; with a 5xx at this time.
    pub(crate) fn tried(
        &self,
        event_type: Option<&Arc<str>>,
        outcome: Outcome,
        failed_at: Option<Timestamp>,
    ) {
        let tally = &self.of_type(event_type).tally;
        tally.tried(outcome);
        if let Some(at) = failed_at {
            tally.failed_with_5xx(at);
        }
    }

    /// What was counted since the last time, by event type: empty for none.
    pub(crate) fn take(&self) -> Vec<(Arc<str>, StatCounts)> {
        let of = |counted: Option<&Arc<OfType>>| {
            counted.map_or_else(StatCounts::default, |counted| counted.tally.take())
        };
        let mut untyped = of(self.untyped.get());
        untyped.refused = taken(&self.refused);
        let mut counts = vec![
            (Arc::from(""), untyped),
            (Arc::from(OTHER), of(self.others.get())),
        ];
        // The map is whole after every statement under its lock.
        let types = self.types.read().unwrap_or_else(PoisonError::into_inner);
        for (kind, counted) in types.iter() {
            counts.push((Arc::clone(kind), counted.tally.take()));
        }
        counts.retain(|(_, counts)| !counts.is_empty());
        counts
    }

    fn of_type(&self, kind: Option<&Arc<str>>) -> Arc<OfType> {
        let plain = |place: &OnceLock<Arc<OfType>>, label: &'static str| {
            let made = || {
                let label = SharedString::const_str(label);
                Arc::new(OfType::new(&self.source, &label))
            };
            Arc::clone(place.get_or_init(made))
        };
        match kind {
            None => plain(&self.untyped, ""),
            Some(kind) => self
                .of_known(kind)
                .unwrap_or_else(|| plain(&self.others, OTHER)),
        }
    }

    /// Nothing for a type that is not told apart.
    fn of_known(&self, kind: &Arc<str>) -> Option<Arc<OfType>> {
        let types = self.types.read().unwrap_or_else(PoisonError::into_inner);
        let known = types.get(kind).map(Arc::clone);
        if known.is_some() || types.len() >= self.most {
            return known;
        }
        drop(types);
        let mut types = self.types.write().unwrap_or_else(PoisonError::into_inner);
        if types.len() >= self.most && !types.contains_key(kind) {
            return None;
        }
        let label = SharedString::from_shared(Arc::clone(kind));
        let made = || Arc::new(OfType::new(&self.source, &label));
        Some(Arc::clone(
            types.entry(Arc::clone(kind)).or_insert_with(made),
        ))
    }
}

/// A delivery was turned away, as the metrics have it.
pub(crate) fn refused(source: SharedString, reason: &'static str) {
    metrics::counter!("inbox_refused_total", "source" => source, "reason" => reason).increment(1);
}

fn reason(status: StatusCode, verified: bool) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "signature",
        StatusCode::METHOD_NOT_ALLOWED => "method",
        StatusCode::REQUEST_TIMEOUT => "body_slow",
        StatusCode::PAYLOAD_TOO_LARGE => "body_too_large",
        StatusCode::TOO_MANY_REQUESTS => "body_budget",
        StatusCode::GONE => "deregistered",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable",
        _ if verified => "envelope",
        _ => "body_broken",
    }
}

fn increment(key: &Key) {
    with_recorder(|recorder| recorder.register_counter(key, &METADATA).increment(1));
}

fn record(key: &Key, time: Duration) {
    let seconds = time.as_secs_f64();
    with_recorder(|recorder| recorder.register_histogram(key, &METADATA).record(seconds));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 50;

    fn counted() -> Counted {
        Counted::new(&Arc::from("crm"), MOST)
    }

    fn labels(key: &Key) -> Vec<(&str, &str)> {
        key.labels()
            .map(|label| (label.key(), label.value()))
            .collect()
    }

    /// §8
    #[test]
    fn each_outcome_and_each_verdict_has_a_key_of_its_own() {
        let counted = counted();
        let paid = counted.of_type(Some(&Arc::from("paid")));
        for outcome in ALL {
            let key = &paid.deliveries[outcome as usize];
            assert_eq!(key.name(), "inbox_deliveries_total");
            let wanted = [
                ("source", "crm"),
                ("event_type", "paid"),
                ("outcome", outcome.as_str()),
            ];
            assert_eq!(labels(key), wanted);
        }
        for (verdict, word) in VERDICTS {
            let key = &paid.runs[verdict as usize];
            assert_eq!(key.name(), "inbox_handler_runs_total");
            assert_eq!(labels(key)[2], ("verdict", word));
        }
        let untyped = counted.of_type(None);
        assert_eq!(labels(&untyped.deliveries[0])[1], ("event_type", ""));
    }

    /// §8: a producer cannot make labels without end.
    #[test]
    fn types_beyond_a_number_share_a_label() {
        let counted = counted();
        let kind = |n: usize| Arc::from(n.to_string());
        for n in 0..MOST + 5 {
            counted.answered(Some(&kind(n)), Outcome::Applied, None);
        }
        counted.answered(Some(&kind(0)), Outcome::Applied, None);
        let others = counted.of_type(Some(&kind(MOST)));
        assert_eq!(labels(&others.deliveries[0])[1], ("event_type", OTHER));
        let taken: HashMap<_, _> = counted.take().into_iter().collect();
        assert_eq!(taken.len(), MOST + 1);
        assert_eq!((taken["0"].total, taken[OTHER].total), (2, 5));
    }

    /// §8, §2.2: what is not verified is no delivery of an event, and makes no type.
    #[test]
    fn what_is_refused_at_the_door_is_counted_apart() {
        let counted = counted();
        counted.refused(StatusCode::UNAUTHORIZED, Outcome::Rejected, false, None);
        counted.refused(StatusCode::BAD_REQUEST, Outcome::Rejected, true, None);
        counted.accepted();
        let taken = counted.take();
        let [(kind, counts)] = taken.as_slice() else {
            panic!("{taken:?}");
        };
        assert_eq!(&**kind, "");
        assert_eq!((counts.refused, counts.total, counts.discarded), (1, 1, 1));
        assert!(counted.take().is_empty());
    }
}
