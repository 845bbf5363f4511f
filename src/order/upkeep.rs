//! What has to be done from time to time: gaps that nobody fills any more, rows that may be forgotten, counts.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::expire;
use super::purge::{self, NotPurged};
use super::sample::{Samples, sample};
use super::slice::{SLICE, Slice};
use super::sweeps::Sweeps;
use crate::burst;
use crate::error::OperatorError;
use crate::reconcile::alive;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::stats;
use crate::store::Backend;

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

pub(super) async fn run<DB: Backend>(shared: Weak<Shared<DB>>) {
    let mut next: HashMap<(&'static str, Arc<str>), Instant> = HashMap::new();
    let mut next_sample = Instant::now();
    let mut next_bursts = next_sample + SAMPLE_EVERY;
    let mut next_statistics = next_sample + SAMPLE_EVERY;
    let mut next_audit = Instant::now();
    let mut sweeps = Sweeps::default();
    let mut samples = Samples::default();
    // Where the expiry of a source goes on that was not done in its time.
    let mut left_off: HashMap<Arc<str>, String> = HashMap::new();
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
            left_off.retain(|name, _| names.contains(&**name));
            sweeps.retain(&names);
            if sources.is_empty() {
                sweeps.nothing_to_do(&TASKS, shared.clock.now());
            }
            let pass = Instant::now();
            for (task, source) in due(&mut next, &sources, pass, |source| source.name_arc()) {
                let slice = Slice::begin();
                let setting = match task {
                    EXPIRE => source.recovery_window(),
                    _ => purge::shortest(source),
                };
                let done = match task {
                    EXPIRE if samples.is_idle(source, shared.clock.now()) => Ok(true),
                    EXPIRE => {
                        let after = left_off.remove(source.name()).unwrap_or_default();
                        let left = expire::run(&shared, source, after, slice).await;
                        left.map_err(NotPurged::from).map(|left| {
                            let whole = left.is_none();
                            left_off.extend(left.map(|after| (source.name_arc(), after)));
                            whole
                        })
                    }
                    _ => purge::run(&shared, source, slice).await.1,
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
                if pass.elapsed() >= SLICE {
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
