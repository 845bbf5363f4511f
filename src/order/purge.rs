//! Retention: rows that may be forgotten are removed in small batches, so that deliveries get in between (§7.1).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::in_time;
use crate::broken::{self, Variant};
use crate::clock::Timestamp;
use crate::dispatch::{Forget, Stop, own};
use crate::error::OperatorError;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{Backend, Key};

/// Rows of one statement: short enough to hold up nobody.
const BATCH: i64 = 500;
/// Between two batches.
const BREATH: Duration = Duration::from_millis(50);
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

/// Removes what is older than the source's retention, by the earlier of two clocks.
pub(crate) async fn run<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &SourceState,
) -> Result<Purged, NotPurged> {
    let (sql, name) = (&shared.sql, source.name());
    let (stale, now) = in_time(async {
        let mut conn = shared.acquire_statements().await?;
        let looked = async {
            let database = shared.clock.database(DB::now(&mut conn, sql).await?);
            let ours = shared.clock.now();
            let apart = ours.since(database).max(database.since(ours)) >= MOST_APART;
            if apart && !broken::is(Variant::ClocksApart) {
                return Ok((Err((ours, database)), ours));
            }
            let now = if broken::is(Variant::ClocksApart) {
                ours
            } else {
                ours.min(database)
            };
            let before = now.minus(source.retention());
            let stale = DB::stale(&mut conn, sql, name, before, now).await?;
            Ok((Ok(stale), now))
        };
        let looked = looked.await;
        conn.done(looked).await
    })
    .await?;
    let stale = stale.map_err(|(ours, database)| NotPurged::Apart(ours, database))?;
    let mut purged = Purged::default();
    let done = remove(shared, source, stale, now, &mut purged).await;
    // What was removed is told of, even if something else could not be.
    let removed = purged.events + purged.letters;
    if removed > 0 {
        metrics::counter!("inbox_purged_rows_total", "source" => source.name_shared())
            .increment(removed);
        tracing::info!(
            source = name,
            removed = purged.events,
            answers = purged.answers,
            dead_letters = purged.letters,
            "removed rows of events whose retention is over"
        );
    }
    done.map(|()| purged)
}

async fn remove<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    stale: bool,
    now: Timestamp,
    purged: &mut Purged,
) -> Result<(), NotPurged> {
    if stale {
        rows(shared, source, now, purged).await?;
    }
    if let Some(kept) = source.dead_letter_retention() {
        letters(shared, source, now.minus(kept), purged).await?;
    }
    Ok(())
}

/// What was applied, and what belongs to it, batch by batch.
async fn rows<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    now: Timestamp,
    purged: &mut Purged,
) -> Result<(), sqlx::Error> {
    let (sql, name) = (&shared.sql, source.name());
    let before = now.minus(source.retention());
    loop {
        let batch = {
            // On a database with one writer, a batch waits for its turn like everybody else.
            let _turn = shared.turn().await;
            in_time(async {
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
            })
            .await?
        };
        purged.add(batch);
        if batch.most() < BATCH.unsigned_abs() || shared.worker.stopped() {
            return Ok(());
        }
        sleep(BREATH).await;
    }
}

/// Dead letters that became one before `before`, each in a transaction of its own: there is a bound for them. Each may take
/// ten seconds to fail, and whatever else the upkeep does waits: the first fault ends it, and the next sweep tries again.
async fn letters<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    before: Timestamp,
    purged: &mut Purged,
) -> Result<(), NotPurged> {
    let (sql, name) = (&shared.sql, source.name());
    let mut after = String::new();
    loop {
        let page = in_time(async {
            let mut conn = shared.acquire_statements().await?;
            let page = DB::stale_letters(&mut conn, sql, name, before, &after, BATCH).await;
            conn.done(page).await
        })
        .await?;
        let readable = |event_id: &String| !event_id.is_empty();
        let full = page.len() as i64 == BATCH && page.iter().any(readable);
        for event_id in page.into_iter().filter(readable) {
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
            if shared.worker.stopped() {
                return Ok(());
            }
            after = event_id;
        }
        if !full {
            return Ok(());
        }
        sleep(BREATH).await;
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
