//! The statistics as they are shown.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::flush::flush;
use super::{Counts, HOUR, SecretUse, Slot, SourceStats, Stats, Stored, TypeStats};
use super::{first_slot, latency, slot_of};
use crate::clock::Timestamp;
use crate::error::OperatorError;
use crate::inbox::Inbox;
use crate::operator::Operator;
use crate::order::{every_source, in_time};
use crate::shared::Shared;
use crate::source::{MAX_EVENT_TYPES, OTHER, SourceState};
use crate::store::{Backend, PendingCount, REASONS, Reason, StatCounts};

impl<DB: Backend> Inbox<DB> {
    /// The statistics of the last 24 hours by source and event type, and what is stored just now: of all processes, and from
    /// before the last restart too. What this process has counted is added first, if the database can be written to; what
    /// others have counted is some seconds old. They are JSON by [`serde`]:
    ///
    /// ```no_run
    /// # async fn example(inbox: &tower_inbox::Inbox<sqlx::Sqlite>) -> Result<(), Box<dyn std::error::Error>> {
    /// let stats = inbox.stats().await?;
    /// for source in &stats.sources {
    ///     println!("{}: {:?} of {}", source.source, source.counts.success_rate, source.counts.total);
    /// }
    /// let json = serde_json::to_string(&stats)?;
    /// # Ok(()) }
    /// ```
    ///
    /// A few statements, none of which looks at the rows of events; what is parked and dead is read, once for everybody where
    /// that takes long.
    ///
    /// # Errors
    /// If the database could not be asked, or is busy.
    pub async fn stats(&self) -> Result<Stats, OperatorError> {
        view(&self.shared).await
    }
}

impl<DB: Backend> Operator<DB> {
    /// As [`Inbox::stats`].
    ///
    /// # Errors
    /// As [`Inbox::stats`].
    pub async fn stats(&self) -> Result<Stats, OperatorError> {
        view(self.shared()).await
    }
}

/// What is known of the sources, by name.
struct View {
    at: Timestamp,
    sources: BTreeMap<String, SourceStats>,
}

async fn view<DB: Backend>(shared: &Arc<Shared<DB>>) -> Result<Stats, OperatorError> {
    // A database that takes no writes at present tells what it has all the same.
    if let Err(error) = flush(shared).await {
        tracing::debug!(%error, "could not write the statistics; what is written is told");
    }
    let stored = Stored::now(shared).await.map_err(OperatorError::database)?;
    let at = shared.clock.now();
    let states: HashMap<_, _> = every_source(shared)
        .into_iter()
        .map(|state| (state.name().to_owned(), state))
        .collect();
    let mut view = View {
        at,
        sources: BTreeMap::new(),
    };
    for name in states.keys() {
        view.of(name);
    }
    let read = in_time(async {
        let mut conn = shared.acquire_statements().await?;
        let read = view.read::<DB>(shared, &mut conn, &states).await;
        conn.done(read).await
    });
    read.await.map_err(OperatorError::database)?;
    view.put_stored(&stored, &states);
    Ok(Stats {
        at,
        sources: view.sources.into_values().collect(),
    })
}

impl View {
    fn of(&mut self, name: &str) -> &mut SourceStats {
        if !self.sources.contains_key(name) {
            let new = SourceStats::empty(name, self.at);
            self.sources.insert(name.to_owned(), new);
        }
        self.sources.get_mut(name).expect("it was put there")
    }

    async fn read<DB: Backend>(
        &mut self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
        states: &HashMap<String, Arc<SourceState>>,
    ) -> Result<(), sqlx::Error> {
        let (sql, at) = (&shared.sql, self.at);
        let (types, slots) = DB::stats(conn, sql, first_slot(at), slot_of(at)).await?;
        let mut by_source: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for of_type in types {
            let of_source: &mut Vec<_> = by_source.entry(of_type.source).or_default();
            of_source.push((of_type.event_type, of_type.counts));
        }
        for (name, types) in by_source {
            let most = states.get(&name).map(|state| state.max_event_types());
            self.of(&name)
                .put_types(types, most.unwrap_or(MAX_EVENT_TYPES));
        }
        for slot in slots {
            if let Some(told) = self.of(&slot.source).slot(slot.slot) {
                told.total = count(slot.total);
                told.failed = count(slot.failed);
            }
        }
        for pending in DB::pending_counts(conn, sql).await? {
            self.of(&pending.source).put_pending(&pending);
        }
        for rows in DB::row_counts(conn, sql).await? {
            let source = self.of(&rows.source);
            source.rows = Some(count(rows.rows));
            source.rows_at = Some(rows.at);
        }
        for used in DB::secret_uses(conn, sql).await? {
            self.of(&used.source).secrets.push(SecretUse {
                label: used.label,
                last_verified: used.at,
            });
        }
        for (name, at) in DB::reconciled(conn, sql).await? {
            self.of(&name).reconciled_at = Some(at);
        }
        Ok(())
    }

    fn put_stored(&mut self, stored: &Stored, states: &HashMap<String, Arc<SourceState>>) {
        for name in stored.sources() {
            self.of(name);
        }
        for (name, source) in &mut self.sources {
            let state = states.get(name).map(Arc::as_ref);
            source.gaps = stored.gaps(name, state);
            source.leases = stored.leases(name);
            source.drain_lag = stored.drain_lag(name, state);
        }
    }
}

impl SourceStats {
    fn empty(name: &str, at: Timestamp) -> Self {
        let first = first_slot(at).as_micros();
        let slots = (0..super::SLOTS).map(|hour| Slot {
            at: Timestamp::from_micros(first + hour * HOUR),
            total: 0,
            failed: 0,
        });
        Self {
            source: name.to_owned(),
            counts: Counts::default(),
            types: Vec::new(),
            slots: slots.collect(),
            rows: None,
            rows_at: None,
            parked: 0,
            oldest_parked: None,
            gaps: 0,
            dead_letters: REASONS.map(|reason| (reason.as_str(), 0)).into(),
            fenced: 0,
            leases: 0,
            drain_lag: None,
            refused: 0,
            secrets: Vec::new(),
            reconciled_at: None,
        }
    }

    fn slot(&mut self, at: Timestamp) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.at == at)
    }

    /// By type, all hours together. Each process tells the first types apart that it has seen, so that there may be more of
    /// them here than one of them has.
    fn put_types(&mut self, mut types: Vec<(String, StatCounts)>, most: usize) {
        let mut all = StatCounts::default();
        for (_, counts) in &types {
            all.add(counts);
        }
        self.refused = count(all.refused);
        self.counts = Counts::read(&all);
        // What was refused at the door has no type.
        types.retain_mut(|(_, counts)| {
            counts.refused = 0;
            !counts.is_empty()
        });
        types.sort_by(|a, b| b.1.total.cmp(&a.1.total).then_with(|| a.0.cmp(&b.0)));
        let named = |(kind, _): &&(String, StatCounts)| !kind.is_empty() && kind != OTHER;
        let kept: Vec<_> = types.iter().filter(named).take(most).cloned().collect();
        let mut others = StatCounts::default();
        for (kind, counts) in &types {
            if !kind.is_empty() && !kept.iter().any(|(named, _)| named == kind) {
                others.add(counts);
            }
        }
        let untyped = types.iter().find(|(kind, _)| kind.is_empty());
        self.types = kept
            .iter()
            .chain(untyped)
            .map(|(kind, counts)| TypeStats {
                event_type: (!kind.is_empty()).then(|| kind.clone()),
                counts: Counts::read(counts),
            })
            .collect();
        self.types
            .sort_by_key(|of_type| u64::MAX - of_type.counts.total);
        if !others.is_empty() {
            self.types.push(TypeStats {
                event_type: Some(OTHER.to_owned()),
                counts: Counts::read(&others),
            });
        }
    }

    fn put_pending(&mut self, pending: &PendingCount) {
        let events = count(pending.events);
        match pending.reason {
            Ok(None) => {
                self.parked = events;
                self.oldest_parked = Some(pending.oldest);
            }
            Ok(Some(Reason::Fenced)) => self.fenced = events,
            Ok(Some(reason)) => *self.dead_letters.entry(reason.as_str()).or_default() = events,
            // Of a newer version, which has a name for it.
            Err(_) => {}
        }
    }
}

impl Counts {
    fn read(counts: &StatCounts) -> Self {
        let (delivered, duplicates) = (count(counts.delivered), count(counts.duplicates));
        let (discarded, failed) = (count(counts.discarded), count(counts.failed));
        let good = delivered + duplicates;
        let decided = good + discarded + failed;
        #[allow(
            clippy::cast_precision_loss,
            reason = "a share; counts are far below 2^52"
        )]
        let success_rate = (decided > 0).then(|| good as f64 / decided as f64);
        Self {
            total: count(counts.total),
            delivered,
            duplicates,
            parked: count(counts.parked),
            discarded,
            failed,
            success_rate,
            last_5xx: (counts.last_5xx > 0).then(|| Timestamp::from_micros(counts.last_5xx)),
            p95: latency::percentile(&counts.handler, 95),
            p99: latency::percentile(&counts.handler, 99),
        }
    }
}

fn count(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_type(kind: &str, total: i64) -> (String, StatCounts) {
        let counts = StatCounts {
            total,
            delivered: total,
            ..StatCounts::default()
        };
        (kind.to_owned(), counts)
    }

    /// §8: every process tells some types apart; together they may be more than one of them does.
    #[test]
    fn types_beyond_the_bound_are_told_together() {
        let mut source = SourceStats::empty("crm", Timestamp::from_secs(1_700_000_000));
        let mut types: Vec<_> = (1..=5).map(|n| of_type(&format!("t{n}"), n)).collect();
        types.extend([of_type(OTHER, 100), of_type("", 3)]);
        types[6].1.refused = 9;
        source.put_types(types, 3);
        let told: Vec<_> = source
            .types
            .iter()
            .map(|of| (of.event_type.as_deref(), of.counts.total))
            .collect();
        let wanted = [
            (Some("t5"), 5),
            (Some("t4"), 4),
            (Some("t3"), 3),
            (None, 3),
            (Some(OTHER), 103),
        ];
        assert_eq!(told, wanted);
        assert_eq!((source.counts.total, source.refused), (118, 9));
    }

    /// §8
    #[test]
    fn the_success_rate_is_of_what_was_decided() {
        let counts = StatCounts {
            total: 20,
            delivered: 4,
            duplicates: 2,
            parked: 10,
            discarded: 1,
            failed: 1,
            ..StatCounts::default()
        };
        assert_eq!(Counts::read(&counts).success_rate, Some(0.75));
        assert_eq!(Counts::read(&StatCounts::default()).success_rate, None);
    }
}
