//! Gauges of what is stored, source by source. What they hold is the database's, so that every process shows the same.

use std::sync::Arc;

use metrics::SharedString;

use crate::clock::Timestamp;
use crate::source::SourceState;
use crate::stats::Stored;
use crate::store::{PendingCount, REASONS, Reason};

pub(super) fn set(gauge: &'static str, source: &Arc<str>, value: f64) {
    let source = SharedString::from_shared(Arc::clone(source));
    metrics::gauge!(gauge, "source" => source).set(value);
}

/// What is parked and dead. False if nothing is.
pub(super) fn pending(source: &Arc<str>, counts: &[&PendingCount], now: Timestamp) -> bool {
    let (mut parked, mut fenced, mut oldest) = (0, 0, None);
    let mut dead = REASONS.map(|reason| (reason, 0));
    for count in counts {
        match count.reason {
            Ok(None) => {
                parked += count.events;
                oldest = Some(count.oldest);
            }
            Ok(Some(Reason::Fenced)) => fenced += count.events,
            Ok(Some(reason)) => {
                for (_, events) in dead.iter_mut().filter(|(of, _)| *of == reason) {
                    *events += count.events;
                }
            }
            // It takes its room, and a newer version has the gauge for it.
            Err(reason) => tracing::debug!(reason, "rows with a reason of a newer version"),
        }
    }
    set("inbox_parked", source, of(parked));
    set("inbox_fenced", source, of(fenced));
    let age = oldest.map_or(0.0, |oldest| now.since(oldest).as_secs_f64());
    set("inbox_oldest_parked_age_seconds", source, age);
    for (reason, events) in dead {
        let source = SharedString::from_shared(Arc::clone(source));
        metrics::gauge!("inbox_dead_letters", "source" => source, "reason" => reason.as_str())
            .set(of(events));
    }
    !counts.is_empty()
}

/// What waits, what is due and what is claimed. False if nothing is.
pub(super) fn stored(source: &Arc<str>, stored: &Stored, state: Option<&SourceState>) -> bool {
    let lag = stored.drain_lag(source, state);
    let (gaps, leases) = (stored.gaps(source, state), stored.leases(source));
    #[allow(
        clippy::cast_precision_loss,
        reason = "a gauge is a float; counts are far below 2^52"
    )]
    for (gauge, value) in [
        ("inbox_gaps", gaps as f64),
        ("inbox_leases", leases as f64),
        ("inbox_drain_lag_seconds", lag.unwrap_or_default()),
    ] {
        set(gauge, source, value);
    }
    gaps > 0 || leases > 0 || lag.is_some()
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a gauge is a float; counts are far below 2^52"
)]
fn of(events: i64) -> f64 {
    events as f64
}
