//! Retention: rows that may be forgotten are removed in small batches, so that deliveries get in between (§7.1).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::in_time;
use super::slice::{BATCH, Slice, breathe, readable};
use crate::broken::{self, Variant};
use crate::clock::Timestamp;
use crate::dispatch::{Forget, Stop, own};
use crate::error::OperatorError;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{Backend, Key};

/// Clocks that differ by this much cannot say what is old: nothing is removed.
const MOST_APART: Duration = Duration::from_secs(5 * 60);
/// The audit table's own retention.
const AUDIT_KEPT: Duration = Duration::from_secs(400 * 24 * 3600);

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// Rows of applied and superseded events, against which duplicates were known.
    pub events: u64,
    /// Stored answers.
    pub answers: u64,
    /// What was signed, of sources with a fence.
    pub fences: u64,
    /// Dead letters, with the rows of their events, of sources that keep them for a time only.
    pub letters: u64,
}

impl Purged {
    fn most(self) -> u64 {
        self.events.max(self.answers).max(self.fences)
    }

    /// In words; nothing if nothing was removed.
    pub(crate) fn told(self) -> Option<String> {
        let told = [
            (self.events, "events"),
            (self.answers, "stored answers"),
            (self.fences, "fences"),
            (self.letters, "dead letters"),
        ];
        let told: Vec<_> = told
            .iter()
            .filter(|(removed, _)| *removed > 0)
            .map(|(removed, what)| format!("{what} {removed}"))
            .collect();
        (!told.is_empty()).then(|| format!("removed before that: {}", told.join(", ")))
    }

    fn add(&mut self, more: Self) {
        self.events += more.events;
        self.answers += more.answers;
        self.fences += more.fences;
        self.letters += more.letters;
    }
}

/// Why nothing was removed, or no more.
pub(crate) enum NotPurged {
    Database(sqlx::Error),
    /// One dead letter could not be removed.
    Letter(OperatorError),
    /// This process's clock and the database's.
    Apart(Timestamp, Timestamp),
}

impl From<sqlx::Error> for NotPurged {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl std::fmt::Display for NotPurged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Database(error) => error.fmt(f),
            Self::Letter(error) => error.fmt(f),
            Self::Apart(ours, database) => write!(
                f,
                "the clocks of this process ({ours:?}) and of the database ({database:?}) are apart: nothing is forgotten \
                 until they agree within 5 minutes"
            ),
        }
    }
}

/// What is kept for the shortest time, whether applied or dead.
pub(super) fn shortest(source: &SourceState) -> Duration {
    let of_letters = source.dead_letter_retention();
    of_letters.map_or(source.retention(), |kept| kept.min(source.retention()))
}

/// Removes what is older than the source's retention, by the earlier of two clocks: so much, whatever it came to in the end.
/// False: its time was over, and there may be more.
pub(crate) async fn run<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &SourceState,
    slice: Slice,
) -> (Purged, Result<bool, NotPurged>) {
    let mut purged = Purged::default();
    let done = sweep(shared, source, slice, &mut purged).await;
    let removed = purged.events + purged.letters;
    if removed > 0 {
        metrics::counter!("inbox_purged_rows_total", "source" => source.name_shared())
            .increment(removed);
        tracing::debug!(
            source = source.name(),
            removed = purged.events,
            answers = purged.answers,
            dead_letters = purged.letters,
            "removed rows of events whose retention is over"
        );
    }
    (purged, done)
}

async fn sweep<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &SourceState,
    slice: Slice,
    purged: &mut Purged,
) -> Result<bool, NotPurged> {
    let (sql, name) = (&shared.sql, source.name());
    // One statement, as long as there is nothing to do by this process's clock: nothing is done then by the earlier of two.
    let in_passing = !slice.is_whole() && source.dead_letter_retention().is_none();
    let looked = in_time(async {
        let mut conn = shared.acquire_statements().await?;
        let looked = async {
            let ours = shared.clock.now();
            let before = |now: Timestamp| now.minus(source.retention());
            if in_passing && !DB::stale(&mut conn, sql, name, before(ours), ours).await? {
                return Ok(Looked::Nothing);
            }
            let database = shared.clock.database(DB::now(&mut conn, sql).await?);
            let apart = ours.since(database).max(database.since(ours)) >= MOST_APART;
            if apart && !broken::is(Variant::ClocksApart) {
                return Ok(Looked::Apart(ours, database));
            }
            let now = if broken::is(Variant::ClocksApart) {
                ours
            } else {
                ours.min(database)
            };
            let stale = DB::stale(&mut conn, sql, name, before(now), now).await?;
            Ok(Looked::Stale(stale, now))
        };
        let looked = looked.await;
        conn.done(looked).await
    })
    .await?;
    match looked {
        Looked::Nothing => Ok(true),
        Looked::Apart(ours, database) => Err(NotPurged::Apart(ours, database)),
        Looked::Stale(stale, now) => {
            let sweep = Sweep { stale, now, slice };
            remove(shared, source, &sweep, purged).await
        }
    }
}

/// Whether there is anything to be removed.
enum Looked {
    Nothing,
    /// This process's clock and the database's.
    Apart(Timestamp, Timestamp),
    /// Events, or not; by the earlier clock.
    Stale(bool, Timestamp),
}

/// One round of it.
struct Sweep {
    /// There are events to be removed, or what belongs to them.
    stale: bool,
    now: Timestamp,
    slice: Slice,
}

async fn remove<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    sweep: &Sweep,
    purged: &mut Purged,
) -> Result<bool, NotPurged> {
    let mut whole = true;
    if sweep.stale {
        whole &= rows(shared, source, sweep, purged).await?;
    }
    if let Some(kept) = source.dead_letter_retention() {
        whole &= letters(shared, source, sweep, sweep.now.minus(kept), purged).await?;
    }
    Ok(whole)
}

/// What was applied, and what belongs to it, batch by batch.
async fn rows<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    sweep: &Sweep,
    purged: &mut Purged,
) -> Result<bool, sqlx::Error> {
    let (sql, name, now) = (&shared.sql, source.name(), sweep.now);
    let before = now.minus(source.retention());
    loop {
        let _alone = shared.purging.lock().await;
        let (batch, took) = {
            // On a database with one writer, a batch waits for its turn like everybody else.
            let _turn = shared.turn().await;
            let began = Instant::now();
            let batch = in_time(async {
                let mut conn = shared.acquire_statements().await?;
                let batch = async {
                    Ok(Purged {
                        fences: DB::purge_fences(&mut conn, sql, name, now, BATCH).await?,
                        answers: DB::purge_answers(&mut conn, sql, name, before, BATCH).await?,
                        events: DB::purge(&mut conn, sql, name, before, BATCH).await?,
                        letters: 0,
                    })
                };
                let batch = batch.await;
                conn.done(batch).await
            });
            (batch.await?, began.elapsed())
        };
        purged.add(batch);
        if batch.most() < BATCH.unsigned_abs() {
            return Ok(true);
        }
        if sweep.slice.is_over(shared) {
            return Ok(false);
        }
        breathe(took).await;
    }
}

/// Dead letters that became one before `before`, each in a transaction of its own: there is a bound for them. Each may take
/// ten seconds to fail, and whatever else the upkeep does waits: the first fault ends it, and the next sweep tries again.
async fn letters<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    sweep: &Sweep,
    before: Timestamp,
    purged: &mut Purged,
) -> Result<bool, NotPurged> {
    let (sql, name) = (&shared.sql, source.name());
    let mut after = String::new();
    loop {
        let page = in_time(async {
            let mut conn = shared.acquire_statements().await?;
            let page = DB::stale_letters(&mut conn, sql, name, before, &after, BATCH).await;
            conn.done(page).await
        })
        .await?;
        let (page, more) = readable(page, |event_id| event_id);
        for event_id in page {
            let forget = Forget {
                key: Key {
                    source: name,
                    event_id: &event_id,
                },
                before,
                revives: source.revives_gaps(),
            };
            match own(shared, &forget).await {
                Ok(done) => purged.letters += u64::from(done),
                // Its own row cannot be read, which takes no time, and would hide all behind it for ever.
                Err(Stop::Database(sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. })) => {}
                Err(stop) => return Err(NotPurged::Letter(stop.into())),
            }
            if sweep.slice.is_over(shared) {
                return Ok(false);
            }
            after = event_id;
        }
        if !more {
            return Ok(true);
        }
        breathe(Duration::ZERO).await;
    }
}

/// Removes what operators did more than a year ago, one batch at a time.
pub(super) async fn audit<DB: Backend>(shared: &Shared<DB>) -> Result<(), sqlx::Error> {
    let before = shared.clock.now().minus(AUDIT_KEPT);
    let _turn = shared.turn().await;
    in_time(async {
        let mut conn = shared.acquire_statements().await?;
        let removed = async {
            // Looked at first, for the reason that `stale` has.
            if DB::stale_audit(&mut conn, &shared.sql, before).await? {
                DB::purge_audit(&mut conn, &shared.sql, before, BATCH).await?;
            }
            Ok(())
        };
        let removed = removed.await;
        conn.done(removed).await
    })
    .await
}
