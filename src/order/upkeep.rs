//! What has to be done from time to time: gaps that nobody fills any more, rows that may be forgotten, counts.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::purge::{self, NotPurged};
use super::sweeps::Sweeps;
use super::worker::{self, Work};
use super::{gauges, in_time};
use crate::burst;
use crate::clock::Timestamp;
use crate::dispatch::{Bury, Heal, own};
use crate::error::OperatorError;
use crate::probe::Happened;
use crate::reconcile::alive;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::stats::{self, Stored};
use crate::store::{
    AT_ONCE, Attempt, Backend, Expired, Key, Lease, PendingCount, Reason, Size, Stream,
};

/// Counts are this old at most.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// Between two counts, so many times what the last one took: of a hundred thousand stored events they are felt.
const SAMPLES_APART: u32 = 20;
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
    let mut next_statistics = next_sample + SAMPLE_EVERY;
    let mut next_audit = Instant::now();
    let mut sweeps = Sweeps::default();
    let mut samples = Samples::default();
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
                let began = Instant::now();
                let in_any_case = overtaken == MOST_OVERTAKEN;
                let sampled = sample(&shared, &mut samples, in_any_case).await;
                let took = began.elapsed();
                sweeps.done("sample", "", sampled.is_ok(), shared.clock.now());
                let current = sampled.unwrap_or_else(|error| {
                    tracing::debug!(%error, "could not count what is parked");
                    true
                });
                overtaken = if current { 0 } else { overtaken + 1 };
                let pause = if current { SAMPLE_EVERY } else { SAMPLE_AGAIN };
                next_sample = Instant::now() + pause.max(took * SAMPLES_APART).min(SWEEP_AT_MOST);
            }
            if let Err(error) = alive::look(&shared, false).await {
                tracing::debug!(%error, "could not give a sign of life");
            }
            if Instant::now() >= next_bursts {
                let tended = burst::tend(&shared).await;
                sweeps.done("bursts", "", tended.is_ok(), shared.clock.now());
                if let Err(error) = tended {
                    tracing::debug!(%error, "could not add to the counts of replay bursts");
                }
                next_bursts = Instant::now() + SAMPLE_EVERY;
            }
            if Instant::now() >= next_statistics {
                let kept = keep_statistics(&shared).await;
                sweeps.done("statistics", "", kept.is_ok(), shared.clock.now());
                if let Err(error) = kept {
                    tracing::debug!(%error, "could not write the statistics; it is tried again");
                }
                next_statistics = Instant::now() + SAMPLE_EVERY;
            }
            if Instant::now() >= next_audit {
                let swept = purge::audit(&shared).await;
                sweeps.done("audit", "", swept.is_ok(), shared.clock.now());
                if let Err(error) = swept {
                    tracing::warn!(%error, "a sweep of the audit table failed; it is tried again");
                }
                next_audit = Instant::now() + SWEEP_AT_MOST;
            }
            let sources = every_source(&shared);
            // A tenant that is gone is not waited for.
            let names: HashSet<_> = sources.iter().map(|source| source.name()).collect();
            next.retain(|(_, name), _| names.contains(&**name));
            sweeps.retain(&names);
            if sources.is_empty() {
                sweeps.nothing_to_do(&TASKS, shared.clock.now());
            }
            let pass = Instant::now();
            for (task, source) in due(&mut next, &sources, pass, |source| source.name_arc()) {
                let now = shared.clock.now();
                let is_idle = |stores: &Stores| stores.is_idle(source, now);
                let until = Instant::now() + purge::SLICE;
                let setting = match task {
                    EXPIRE => source.recovery_window(),
                    _ => purge::shortest(source),
                };
                let done = match task {
                    EXPIRE if samples.stores.as_ref().is_some_and(is_idle) => Ok(true),
                    EXPIRE => expire(&shared, source)
                        .await
                        .map(|()| true)
                        .map_err(NotPurged::from),
                    _ => purge::run(&shared, source, Some(until))
                        .await
                        .map(|(_, whole)| whole),
                };
                sweeps.done(task, source.name(), done.is_ok(), shared.clock.now());
                // What was not done in its time goes on after the others.
                let pause = match done {
                    Ok(false) => Duration::ZERO,
                    _ => (setting / 2).clamp(SWEEP_AT_LEAST, SWEEP_AT_MOST),
                };
                if let Err(error) = done {
                    tracing::warn!(source = source.name(), task, %error, "a sweep failed; it is tried again");
                }
                next.insert((task, source.name_arc()), Instant::now() + pause);
                // With many sources, the rest of what has to be done would wait for all of them otherwise.
                if pass.elapsed() >= purge::SLICE {
                    break;
                }
            }
            let soonest = next_sample.min(next_bursts).min(next_statistics);
            next.values()
                .min()
                .map_or(soonest, |soon| soonest.min(*soon))
        };
        tokio::time::sleep_until(soonest).await;
    }
}

/// What is due by now, whoever has waited longest first.
fn due<'a, S>(
    next: &mut HashMap<(&'static str, Arc<str>), Instant>,
    sources: &'a [S],
    now: Instant,
    name: impl Fn(&S) -> Arc<str>,
) -> Vec<(&'static str, &'a S)> {
    let mut due = Vec::new();
    for (source, task) in sources.iter().flat_map(|one| TASKS.map(|task| (one, task))) {
        let at = *next.entry((task, name(source))).or_insert(now);
        if at <= now {
            due.push((at, task, source));
        }
    }
    due.sort_by_key(|(at, ..)| *at);
    due.into_iter()
        .map(|(_, task, source)| (task, source))
        .collect()
}

const EXPIRE: &str = "expire";
/// What is done for each source.
const TASKS: [&str; 2] = [EXPIRE, "purge"];

/// What is kept from one sample to the next.
#[derive(Default)]
struct Samples {
    /// Sources that this process does not mount, each told of once.
    reported: HashSet<String>,
    stores: Option<Stores>,
    /// Sources whose gauges were set.
    shown: HashSet<Arc<str>>,
}

/// The sources of which something is stored, and when that was found out.
struct Stores {
    sources: HashSet<String>,
    at: Timestamp,
}

impl Stores {
    /// Nothing of this source can have waited for so long: what is stored of it has come since.
    fn is_idle(&self, source: &SourceState, now: Timestamp) -> bool {
        !self.sources.contains(source.name()) && now.since(self.at) < source.recovery_window()
    }
}

/// What was counted goes into the table, and hours that are over leave it.
async fn keep_statistics<DB: Backend>(shared: &Shared<DB>) -> Result<(), OperatorError> {
    stats::flush(shared).await?;
    stats::purge(shared).await.map_err(OperatorError::database)
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
                    error: Some("a lower sequence was not applied within the recovery window"),
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
                metrics::counter!("inbox_expired_total", "source" => source.name_shared())
                    .increment(1);
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
    let changes = shared.tenants.gone_changes();
    let gone = in_time(async {
        let mut conn = shared.acquire_statements().await?;
        let gone = DB::gone_sources(&mut conn, &shared.sql).await;
        conn.done(gone).await
    })
    .await?;
    let sources = every_source(shared);
    shared.tenants.learn_gone(changes, gone, &sources);
    Ok(())
}

/// How much is parked and dead: for the metrics, and for the bounds on parking.
///
/// False if a count was overtaken by what this process did meanwhile, and not taken over for the bounds; `in_any_case` it is.
async fn sample<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    samples: &mut Samples,
    in_any_case: bool,
) -> Result<bool, sqlx::Error> {
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
    let at = shared.clock.now();
    samples.stores = None;
    let counts = counts.await?;
    samples.stores = Some(Stores {
        sources: counts.iter().map(|count| count.source.clone()).collect(),
        at,
    });
    for count in &counts {
        if shared.worker.target(&count.source).is_none()
            && samples.reported.insert(count.source.clone())
        {
            tracing::warn!(
                source = count.source,
                events = count.events,
                "events are stored for a source that this process does not mount: another one must"
            );
        }
    }
    let mut by_source: HashMap<&str, Vec<&PendingCount>> = HashMap::new();
    for count in &counts {
        by_source.entry(&count.source).or_default().push(count);
    }
    let of = |name: &str| by_source.get(name).map_or(&[][..], Vec::as_slice);
    let mut current = true;
    for (moves, source) in &sources {
        let mut size = Size::default();
        for count in of(source.name()) {
            size.events += count.events;
            size.bytes += count.bytes;
        }
        current &= source
            .room()
            .sampled(size, (!in_any_case).then_some(*moves));
    }
    show_load(shared, &sources);
    let stored = Stored::now(shared).await;
    let now = shared.clock.now();
    let mut alive = HashMap::new();
    for (_, source) in &sources {
        alive.insert(source.name_arc(), source);
        samples.shown.insert(source.name_arc());
        if source.mapping().replay_types().is_some() {
            // A counter that is not there before it counts has never risen, for whoever asks how much it has.
            metrics::counter!("inbox_bursts_missing_total", "source" => source.name_shared())
                .increment(0);
        }
    }
    // A tenant that is gone would have had what it had last for ever. It is told of until there is nothing to tell.
    samples.shown.retain(|name| {
        let state = alive.get(name).map(|source| &***source);
        let held = gauges::pending(name, of(name), now);
        let waits = stored
            .as_ref()
            .is_ok_and(|stored| gauges::stored(name, stored, state));
        if state.is_none() {
            gauges::set("inbox_in_flight", name, 0.0);
        }
        state.is_some() || held || waits || stored.is_err()
    });
    stored.map(|_| current)
}

/// What this process holds and what it keeps waiting.
fn show_load<DB: Backend>(shared: &Shared<DB>, sources: &[(u64, Arc<SourceState>)]) {
    #[allow(
        clippy::cast_precision_loss,
        reason = "a gauge is a float; places are far fewer than 2^52"
    )]
    let show = |gauge: metrics::Gauge, places: usize| gauge.set(places as f64);
    for (_, source) in sources {
        let gauge = metrics::gauge!("inbox_in_flight", "source" => source.name_shared());
        show(gauge, source.in_flight_now());
    }
    let (waiting, limit) = shared.waiting.now();
    show(
        metrics::gauge!("inbox_in_flight_limit"),
        shared.max_in_flight,
    );
    show(metrics::gauge!("inbox_waiting"), waiting);
    show(metrics::gauge!("inbox_waiting_limit"), limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §5.14, §7.1: one that is put off by others comes before them the next time.
    #[test]
    fn whoever_has_waited_longest_is_first() {
        let (mut next, now) = (HashMap::new(), Instant::now());
        let names: Vec<Arc<str>> = ["a", "b", "c"].map(Arc::from).into();
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        let told = |next: &mut _, now| -> Vec<String> {
            let due = due(next, &names, now, Arc::clone);
            due.into_iter()
                .map(|(task, name)| format!("{task} {name}"))
                .collect()
        };
        assert_eq!(told(&mut next, now).len(), 6);
        for (task, name, seconds) in [
            (EXPIRE, 0, 9),
            (EXPIRE, 1, 3),
            (EXPIRE, 2, 2),
            ("purge", 0, 1),
            ("purge", 1, 8),
            ("purge", 2, 9),
        ] {
            next.insert((task, Arc::clone(&names[name])), at(seconds));
        }
        let wanted = ["purge a", "expire c", "expire b"];
        assert_eq!(told(&mut next, at(7)), wanted);
        // The first was not done in its time, and nothing else was.
        next.insert(("purge", Arc::clone(&names[0])), at(7));
        let wanted = ["expire c", "expire b", "purge a", "purge b"];
        assert_eq!(told(&mut next, at(8)), wanted);
    }
}
