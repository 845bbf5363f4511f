//! What has to be done from time to time: gaps that nobody fills any more, rows that may be forgotten, counts.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::in_time;
use super::purge::{self, NotPurged};
use super::worker::{self, Work};
use crate::burst;
use crate::dispatch::{Bury, Heal, own};
use crate::probe::Happened;
use crate::reconcile::alive;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{AT_ONCE, Attempt, Backend, Expired, Key, Lease, Reason, Size, Stream};

/// Counts are this old at most.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// A count that was overtaken is made again soon; one among so many is taken as it is, so that a process that parks all
/// the time learns of what others do.
const SAMPLE_AGAIN: Duration = Duration::from_millis(250);
const MOST_OVERTAKEN: u32 = 8;
/// Expiry and purge run at least this often, and twice within their setting.
const SWEEP_AT_MOST: Duration = Duration::from_secs(60);
const SWEEP_AT_LEAST: Duration = Duration::from_millis(100);
/// Events of one page.
const BATCH: i64 = 500;

pub(super) async fn run<DB: Backend>(shared: Weak<Shared<DB>>) {
    let mut next: HashMap<(&'static str, Arc<str>), Instant> = HashMap::new();
    let mut next_sample = Instant::now();
    let mut next_bursts = next_sample + SAMPLE_EVERY;
    let mut next_audit = Instant::now();
    let mut reported = HashSet::new();
    let mut overtaken = 0;
    loop {
        let soonest = {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            if shared.worker.stopped() {
                return;
            }
            if Instant::now() >= next_sample {
                let current = sample(&shared, &mut reported, overtaken == MOST_OVERTAKEN).await;
                overtaken = if current { 0 } else { overtaken + 1 };
                let pause = if current { SAMPLE_EVERY } else { SAMPLE_AGAIN };
                next_sample = Instant::now() + pause;
            }
            if let Err(error) = alive::look(&shared, false).await {
                tracing::debug!(%error, "could not give a sign of life");
            }
            if Instant::now() >= next_bursts {
                if let Err(error) = burst::tend(&shared).await {
                    tracing::debug!(%error, "could not add to the counts of replay bursts");
                }
                next_bursts = Instant::now() + SAMPLE_EVERY;
            }
            if Instant::now() >= next_audit {
                if let Err(error) = purge::audit(&shared).await {
                    tracing::warn!(%error, "a sweep of the audit table failed; it is tried again");
                }
                next_audit = Instant::now() + SWEEP_AT_MOST;
            }
            for source in &every_source(&shared) {
                for (task, setting) in [
                    ("expire", source.recovery_window()),
                    ("purge", purge::shortest(source)),
                ] {
                    let due = next
                        .entry((task, source.name_arc()))
                        .or_insert_with(Instant::now);
                    if Instant::now() < *due {
                        continue;
                    }
                    let done = match task {
                        "expire" => expire(&shared, source).await.map_err(NotPurged::from),
                        _ => purge::run(&shared, source).await.map(drop),
                    };
                    if let Err(error) = done {
                        tracing::warn!(source = source.name(), task, %error, "a sweep failed; it is tried again");
                    }
                    *due = Instant::now() + (setting / 2).clamp(SWEEP_AT_LEAST, SWEEP_AT_MOST);
                }
            }
            let soonest = next_sample.min(next_bursts);
            next.values()
                .min()
                .map_or(soonest, |soon| soonest.min(*soon))
        };
        tokio::time::sleep_until(soonest).await;
    }
}

/// The inbox's own, and the tenants that are alive in this process. What is stored for others waits until they are.
pub(crate) fn every_source<DB: Backend>(shared: &Shared<DB>) -> Vec<Arc<SourceState>> {
    shared
        .sources
        .values()
        .cloned()
        .chain(shared.tenants.alive())
        .collect()
}

/// Parked events whose gap was not filled within the recovery window become dead letters (§5.4). They come back by
/// themselves when it is filled after all, since *due* counts them too.
pub(super) async fn expire<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &SourceState,
) -> Result<(), sqlx::Error> {
    heal(shared, source).await?;
    let now = shared.clock.now();
    let mut after = String::new();
    loop {
        let before = now.minus(source.recovery_window());
        let page = in_time(async {
            let mut conn = shared.acquire_statements().await?;
            let page =
                DB::expired(&mut conn, &shared.sql, source.name(), before, &after, BATCH).await;
            conn.done(page).await
        })
        .await?;
        let readable = |event: &Expired| !event.event_id.is_empty();
        let full = page.len() as i64 == BATCH && page.iter().any(readable);
        for event in page.into_iter().filter(readable) {
            let bury = Bury {
                shared,
                key: Key {
                    source: source.name(),
                    event_id: &event.event_id,
                },
                // Only while the gap is there: the cursor is looked at again, under its lock.
                stream: Some((
                    Stream {
                        source: source.name(),
                        correlation_id: &event.correlation_id,
                    },
                    event.sequence,
                )),
                attempt: Attempt {
                    reason: Some(Reason::Gap),
                    not_before: AT_ONCE,
                    status: None,
                    error: Some("a lower sequence did not come within the recovery window"),
                    lease: Lease::NONE,
                },
            };
            if bury.run().await == Ok(true) {
                let key = Key {
                    source: source.name(),
                    event_id: &event.event_id,
                };
                let what = "its gap was not filled in time: it becomes a dead letter";
                shared.probes.saw(key, || Happened::Noted(what.into()));
                tracing::warn!(
                    source = source.name(),
                    event_id = event.event_id,
                    sequence = event.sequence,
                    "gave up waiting for a gap: an event becomes a dead letter"
                );
            }
            // One event that cannot be buried now stops no other.
            after = event.event_id;
        }
        if !full {
            return Ok(());
        }
    }
}

/// Cursors that version 1 of the crate has put inside of a skipped range: nothing comes there, and what waits behind it
/// is not found.
async fn heal<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &SourceState,
) -> Result<(), sqlx::Error> {
    let strayed = in_time(async {
        let mut conn = shared.acquire_statements().await?;
        let strayed = DB::strayed(&mut conn, &shared.sql, source.name(), BATCH).await;
        conn.done(strayed).await
    })
    .await?;
    for correlation_id in strayed {
        let stream = Stream {
            source: source.name(),
            correlation_id: &correlation_id,
        };
        if own(shared, &Heal(stream)).await.is_ok() {
            let (source, correlation_id) = (source.name_arc(), Arc::from(correlation_id));
            worker::wake(
                shared,
                Work::Stream {
                    source,
                    correlation_id,
                },
            );
        }
    }
    Ok(())
}

/// Another process, or the command line, may have deregistered a source, or armed it again.
pub(crate) async fn learn_who_is_gone<DB: Backend>(shared: &Shared<DB>) -> Result<(), sqlx::Error> {
    let gone = in_time(async {
        let mut conn = shared.acquire_statements().await?;
        let gone = DB::gone_sources(&mut conn, &shared.sql).await;
        conn.done(gone).await
    })
    .await?;
    for source in every_source(shared) {
        source.set_gone(gone.iter().any(|name| name == source.name()));
    }
    shared.tenants.set_all_gone(gone);
    Ok(())
}

/// How much is parked and dead: for the metrics, and for the bounds on parking.
///
/// False if a count was overtaken by what this process did meanwhile, and not taken over for the bounds; `in_any_case` it is.
async fn sample<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    reported: &mut HashSet<String>,
    in_any_case: bool,
) -> bool {
    let sources: Vec<_> = every_source(shared)
        .into_iter()
        .map(|source| (source.room().moves(), source))
        .collect();
    let counts = in_time(async {
        let mut conn = shared.acquire_statements().await?;
        let counts = DB::pending_counts(&mut conn, &shared.sql).await;
        conn.done(counts).await
    });
    if let Err(error) = learn_who_is_gone(shared).await {
        tracing::debug!(%error, "could not look which sources are deregistered");
    }
    let counts = match counts.await {
        Ok(counts) => counts,
        Err(error) => {
            tracing::debug!(%error, "could not count what is parked");
            return true;
        }
    };
    for count in &counts {
        if shared.worker.target(&count.source).is_none() && reported.insert(count.source.clone()) {
            tracing::warn!(
                source = count.source,
                events = count.events,
                "events are stored for a source that this process does not mount: another one must"
            );
        }
    }
    let mut current = true;
    for (moves, source) in &sources {
        let (mut events, mut bytes, mut parked, mut fenced) = (0, 0, 0, 0);
        let mut dead = HashMap::from([
            (Reason::Gap, 0),
            (Reason::Handler, 0),
            (Reason::Rejected, 0),
            (Reason::Crash, 0),
            (Reason::Skipped, 0),
            (Reason::BeforeStart, 0),
        ]);
        for count in counts.iter().filter(|count| count.source == source.name()) {
            events += count.events;
            bytes += count.bytes;
            match count.reason {
                Ok(None) => parked += count.events,
                Ok(Some(Reason::Fenced)) => fenced += count.events,
                Ok(Some(reason)) => *dead.entry(reason).or_default() += count.events,
                // It takes its room, and a newer version has the gauge for it.
                Err(reason) => tracing::debug!(reason, "rows with a reason of a newer version"),
            }
        }
        let size = Size { events, bytes };
        current &= source
            .room()
            .sampled(size, (!in_any_case).then_some(*moves));
        #[allow(
            clippy::cast_precision_loss,
            reason = "a gauge is a float; counts are far below 2^52"
        )]
        {
            metrics::gauge!("inbox_parked", "source" => source.name_shared()).set(parked as f64);
            metrics::gauge!("inbox_fenced", "source" => source.name_shared()).set(fenced as f64);
            for (reason, events) in dead {
                metrics::gauge!(
                    "inbox_dead_letters",
                    "source" => source.name_shared(), "reason" => reason.as_str()
                )
                .set(events as f64);
            }
        }
    }
    current
}
