//! From memory into the table, by addition: each count once, whatever fails.
//!
//! What is taken from the counters becomes a batch with a number, which is written in the batch's own transaction. A batch
//! whose commit nobody saw is tried again as it is: if its number is there, it is there.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Paced, Stored, first_slot, slot_of};
use crate::clock::Timestamp;
use crate::dispatch::{Ended, Own, Stop, own};
use crate::error::OperatorError;
use crate::operator::UrgentStreams;
use crate::order::{every_source, in_time};
use crate::shared::Shared;
use crate::source::Counted;
use crate::store::{Backend, StatCounts, StatKey};

/// Rows of one transaction: on SQLite nobody else writes meanwhile.
const ROWS: usize = 200;
/// Between two of them.
const BREATH: Duration = Duration::from_millis(20);
/// A process that has not added anything for so long has ended, or has nothing left to add again.
const FLUSHES_KEPT: Duration = Duration::from_secs(48 * 3_600);
/// As long as the audit table is kept. Counts of rows too: of tenants that are no more.
const SECRETS_KEPT: Duration = Duration::from_secs(400 * 24 * 3_600);
/// Where more secrets than one batch takes are in use, what is written of one is this old before it is written again.
const SECRETS_APART: Duration = Duration::from_secs(60);
/// Uses of secrets that are remembered as written.
const MOST_SECRETS: usize = 20_000;
/// Longer labels of secrets do not fit their column, in bytes.
const LONGEST_LABEL: usize = 255;
/// Sources of one look.
const SOURCES: i64 = 500;

/// Source, event type, and when the hour began, in µs.
type RowKey = (Arc<str>, Arc<str>, i64);
type Rows = BTreeMap<RowKey, StatCounts>;
/// Source, label, and when a delivery was verified by it.
type Uses = Vec<(Arc<str>, Arc<str>, Timestamp)>;

/// What the handles of one inbox share about it.
#[derive(Default)]
pub(crate) struct Statistics {
    /// Nothing is kept, which is for measuring what that costs.
    pub(crate) off: AtomicBool,
    /// The counters of every source, tenants included: they may be gone before their counts are written.
    counted: Mutex<Vec<Arc<Counted>>>,
    flushing: tokio::sync::Mutex<Flushing>,
    pub(super) stored: Paced<Stored>,
    /// Streams, those first that need somebody most.
    pub(crate) urgent: Paced<UrgentStreams>,
}

#[derive(Default)]
struct Flushing {
    number: i64,
    /// What is being written, or could not be: the same again before anything else.
    batch: Option<Batch>,
    /// Taken from the counters, and in no batch yet.
    next: Rows,
    /// The same of secrets' uses.
    next_uses: Uses,
    /// What is written of each secret's use, by source and label.
    secrets: HashMap<(Arc<str>, Arc<str>), Timestamp>,
    /// The hour in which what is over was removed last.
    purged: Option<Timestamp>,
}

struct Batch {
    number: i64,
    rows: Rows,
    secrets: Uses,
}

impl Statistics {
    pub(crate) fn new(off: bool) -> Self {
        Self {
            off: AtomicBool::new(off),
            ..Self::default()
        }
    }

    /// From now on its counts are written.
    pub(crate) fn register(&self, counted: &Arc<Counted>) {
        if self.off.load(Ordering::Relaxed) {
            return counted.turn_off();
        }
        self.all().push(Arc::clone(counted));
    }

    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Counted>>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what was counted since the last time.
    fn take(&self, slot: Timestamp, into: &mut Rows) {
        self.all().retain(|counted| {
            // Looked at first: nobody adds to one that only this holds.
            let alive = Arc::strong_count(counted) > 1;
            for (kind, more) in counted.take() {
                let key = (Arc::clone(counted.name()), kind, slot.as_micros());
                into.entry(key).or_default().add(&more);
            }
            alive
        });
    }
}

impl Flushing {
    /// What is to be written next; nothing if there is nothing.
    fn batch(&mut self) -> Option<&Batch> {
        if self.batch.is_none() {
            let mut rows = match self.next.keys().nth(ROWS).cloned() {
                Some(key) => self.next.split_off(&key),
                None => Rows::new(),
            };
            std::mem::swap(&mut rows, &mut self.next);
            let rest = self.next_uses.split_off(self.next_uses.len().min(ROWS));
            let secrets = std::mem::replace(&mut self.next_uses, rest);
            if rows.is_empty() && secrets.is_empty() {
                return None;
            }
            self.number += 1;
            self.batch = Some(Batch {
                number: self.number,
                rows,
                secrets,
            });
        }
        self.batch.as_ref()
    }

    /// The secrets that were used since the last time. Looked for once in a flush: with deliveries coming in there would be
    /// some each time, and no end.
    fn used(&self, used: impl Iterator<Item = (Arc<str>, Arc<str>, Timestamp)>) -> Uses {
        let written = |(source, label, _): &(Arc<str>, Arc<str>, Timestamp)| {
            let key = (Arc::clone(source), Arc::clone(label));
            self.secrets.get(&key).copied()
        };
        // One that the database refuses would hold up all counts for ever.
        let fits = |label: &str| label.len() <= LONGEST_LABEL && !label.contains('\0');
        let mut used: Uses = used
            .filter(|one| fits(&one.1) && written(one).is_none_or(|written| written < one.2))
            .collect();
        if used.len() > ROWS {
            used.retain(|one| {
                written(one).is_none_or(|written| one.2.since(written) >= SECRETS_APART)
            });
        }
        used
    }

    fn written(&mut self) {
        for (source, label, at) in self
            .batch
            .take()
            .into_iter()
            .flat_map(|batch| batch.secrets)
        {
            self.secrets.insert((source, label), at);
        }
        // Of tenants that come and go: what is forgotten is written once more.
        if self.secrets.len() > MOST_SECRETS {
            self.secrets.clear();
        }
    }
}

/// The secrets of every source, with their last use.
fn uses<DB: Backend>(shared: &Shared<DB>) -> impl Iterator<Item = (Arc<str>, Arc<str>, Timestamp)> {
    every_source(shared).into_iter().flat_map(|source| {
        let used = source.secrets().active().into_iter();
        let used = used.filter_map(|secret| Some((secret.label, secret.last_verified?)));
        used.map(move |(label, at)| (source.name_arc(), label, at))
            .collect::<Uses>()
    })
}

/// Adds what this process has counted to the table.
pub(crate) async fn flush<DB: Backend>(shared: &Shared<DB>) -> Result<(), OperatorError> {
    if shared.stats.off.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut flushing = shared.stats.flushing.lock().await;
    let flushing = &mut *flushing;
    let now = shared.clock.now();
    shared.stats.take(slot_of(now), &mut flushing.next);
    // Of a database that has been away for a day, or a clock that was put ahead.
    let first = first_slot(now).as_micros();
    flushing.next.retain(|(_, _, slot), _| *slot >= first);
    // In the order of their keys, as every process writes them.
    let mut used = flushing.used(uses(shared));
    used.sort_unstable();
    flushing.next_uses = used;
    let owner = shared.worker.leases.owner();
    while let Some(batch) = flushing.batch() {
        // It stays where it is until it is known to be written, should somebody give this up.
        own(shared, &Add { owner, batch }).await?;
        flushing.written();
        if !flushing.next.is_empty() || !flushing.next_uses.is_empty() {
            tokio::time::sleep(BREATH).await;
        }
    }
    Ok(())
}

/// One batch.
struct Add<'a> {
    owner: &'a str,
    batch: &'a Batch,
}

impl<DB: Backend> Own<DB> for Add<'_> {
    type Done = ();
    const OF_AN_EVENT: bool = false;

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<()>, Stop> {
        let (sql, at, batch) = (&shared.sql, shared.clock.now(), self.batch);
        if !DB::claim_flush(conn, sql, self.owner, batch.number, at).await? {
            return Ok(Ended::RollBack(()));
        }
        // In the order of their keys, as every process does it.
        for ((source, event_type, slot), more) in &batch.rows {
            let key = StatKey {
                source,
                event_type,
                slot: Timestamp::from_micros(*slot),
            };
            DB::add_stats(conn, sql, key, more).await?;
        }
        for (source, label, at) in &batch.secrets {
            DB::use_secret(conn, sql, source, label, *at).await?;
        }
        Ok(Ended::Commit(()))
    }
}

/// Removes the hours that are over, once an hour, source by source. By the earlier of two clocks, as rows of events are: a
/// process whose clock is ahead would remove what all others tell.
pub(crate) async fn purge<DB: Backend>(shared: &Shared<DB>) -> Result<(), sqlx::Error> {
    let mut flushing = shared.stats.flushing.lock().await;
    let now = shared.clock.now();
    if flushing.purged == Some(slot_of(now)) {
        return Ok(());
    }
    let database = in_time(async {
        let mut conn = shared.acquire_statements().await?;
        let said = DB::now(&mut conn, &shared.sql).await;
        conn.done(said).await
    });
    let earlier = shared.clock.database(database.await?).min(now);
    let before = first_slot(earlier);
    loop {
        let stale = in_time(async {
            let mut conn = shared.acquire_statements().await?;
            let stale = DB::stale_stats(&mut conn, &shared.sql, before, SOURCES).await;
            conn.done(stale).await
        });
        let stale = stale.await?;
        for source in &stale {
            removed(shared, async |conn| {
                DB::purge_stats(conn, &shared.sql, source, before)
                    .await
                    .map(drop)
            })
            .await?;
        }
        if (stale.len() as i64) < SOURCES {
            break;
        }
    }
    let (flushes, secrets) = (earlier.minus(FLUSHES_KEPT), earlier.minus(SECRETS_KEPT));
    removed(shared, async |conn| {
        DB::purge_notes(conn, &shared.sql, flushes, secrets).await
    })
    .await?;
    flushing.purged = Some(slot_of(now));
    Ok(())
}

/// Statements that write, in their turn.
async fn removed<DB: Backend>(
    shared: &Shared<DB>,
    work: impl AsyncFnOnce(&mut DB::Connection) -> Result<(), sqlx::Error>,
) -> Result<(), sqlx::Error> {
    in_time(async {
        let _turn = shared.turn().await;
        let mut conn = shared.acquire_statements().await?;
        let done = work(&mut conn).await;
        conn.done(done).await
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(tenants: usize, seconds: i64) -> impl Iterator<Item = (Arc<str>, Arc<str>, Timestamp)> {
        let at = Timestamp::from_secs(seconds);
        (0..tenants).map(move |n| (format!("tenant-{n}").into(), "secret-1".into(), at))
    }

    /// Writes it all, while deliveries go on to be verified.
    fn flushed(flushing: &mut Flushing, tenants: usize, seconds: i64) -> Vec<usize> {
        flushing.next_uses = flushing.used(uses(tenants, seconds));
        let mut batches = Vec::new();
        while let Some(batch) = flushing.batch() {
            batches.push(batch.secrets.len());
            flushing.written();
        }
        batches
    }

    /// §8: with many tenants whose deliveries come in, the upkeep would be at it for ever.
    #[test]
    fn a_flush_has_an_end_however_many_secrets_are_in_use() {
        let mut flushing = Flushing::default();
        assert_eq!(flushed(&mut flushing, 450, 1_000), [200, 200, 50]);
        assert_eq!(flushed(&mut flushing, 450, 1_059), [] as [usize; 0]);
        assert_eq!(flushed(&mut flushing, 450, 1_060), [200, 200, 50]);
        // A few are written to the second.
        assert_eq!(flushed(&mut flushing, 200, 1_061), [200]);
        assert_eq!(flushed(&mut flushing, 200, 1_061), [] as [usize; 0]);
    }

    /// §8: its column takes 255 bytes, and the database refuses the whole batch for one that has more.
    #[test]
    fn a_label_that_does_not_fit_holds_up_no_counts() {
        let flushing = Flushing::default();
        let at = Timestamp::from_secs(1);
        let labels = ["x".repeat(256), "a\0b".to_owned(), "x".repeat(255)];
        let used = labels.map(|label| ("crm".into(), label.into(), at));
        let kept = flushing.used(used.into_iter());
        let lengths: Vec<_> = kept.iter().map(|(_, label, _)| label.len()).collect();
        assert_eq!(lengths, [255]);
    }
}
