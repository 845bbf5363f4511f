//! What is stored, in numbers that take more than counting rows: gaps, what is due, leases.
//!
//! The rows of what is parked and dead are read for it, of which there is a bound for each source. Where that takes long all
//! the same, it is not done again for fifty times as long.

use std::collections::HashMap;
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::order::in_time;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{Backend, StoredNow};

/// By source.
#[derive(Default)]
pub(crate) struct Stored {
    at: Timestamp,
    by_source: HashMap<String, OfSource>,
}

#[derive(Clone, Copy, Default)]
struct OfSource {
    gaps: u64,
    /// Streams that have not begun, with sequence 1 stored: they wait where the first one is 0.
    begun_at_one: u64,
    leases: u64,
    due_since: Option<Timestamp>,
    /// Of dead letters of a gap that is filled.
    revived_since: Option<Timestamp>,
}

impl Stored {
    /// Looks now, or takes the last look where that took long or has just failed.
    pub(crate) async fn now<DB: Backend>(shared: &Shared<DB>) -> Result<Arc<Self>, sqlx::Error> {
        let look = async {
            let at = shared.clock.now();
            let found = in_time(async {
                let mut conn = shared.acquire_statements().await?;
                let found = DB::stored_now(&mut conn, &shared.sql, at).await;
                conn.done(found).await
            });
            Ok(Self::of(at, found.await?))
        };
        shared.stats.stored.or_last(look).await
    }

    fn of(at: Timestamp, found: StoredNow) -> Self {
        let mut by_source: HashMap<_, OfSource> = HashMap::new();
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        for gaps in found.gaps {
            let of_source = by_source.entry(gaps.source).or_default();
            match gaps.lowest {
                0 => {}
                1 => of_source.begun_at_one = count(gaps.streams),
                _ => of_source.gaps = count(gaps.streams),
            }
        }
        for (source, leases) in found.leases {
            by_source.entry(source).or_default().leases = count(leases);
        }
        for due in found.due {
            let of_source = by_source.entry(due.source).or_default();
            let since = if due.is_dead {
                &mut of_source.revived_since
            } else {
                &mut of_source.due_since
            };
            *since = Some(since.map_or(due.since, |since| since.min(due.since)));
        }
        Self { at, by_source }
    }

    fn of_source(&self, source: &str) -> OfSource {
        self.by_source.get(source).copied().unwrap_or_default()
    }

    /// The sources that something is known of.
    pub(super) fn sources(&self) -> impl Iterator<Item = &String> {
        self.by_source.keys()
    }

    /// `state`: the source as it is known here.
    pub(crate) fn gaps(&self, source: &str, state: Option<&SourceState>) -> u64 {
        let of_source = self.of_source(source);
        let from_zero = state.is_some_and(|state| state.mapping().first_sequence() == 0);
        of_source.gaps + if from_zero { of_source.begun_at_one } else { 0 }
    }

    pub(crate) fn leases(&self, source: &str) -> u64 {
        self.of_source(source).leases
    }

    /// In seconds; nothing if nothing is due.
    pub(crate) fn drain_lag(&self, source: &str, state: Option<&SourceState>) -> Option<f64> {
        let of_source = self.of_source(source);
        let revives = state.is_none_or(SourceState::revives_gaps);
        let revived = of_source.revived_since.filter(|_| revives);
        let since = of_source.due_since.into_iter().chain(revived).min()?;
        Some(self.at.since(since).as_secs_f64())
    }
}
