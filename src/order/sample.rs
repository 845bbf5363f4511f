//! How much is parked, dead and held: for the gauges, and for the bounds on parking.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{every_source, gauges, in_time};
use crate::clock::Timestamp;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::stats::Stored;
use crate::store::{Backend, PendingCount, Size};

/// What is kept from one sample to the next.
#[derive(Default)]
pub(super) struct Samples {
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

impl Samples {
    /// By the last sample nothing of this source can be old enough to be given up.
    pub(super) fn is_idle(&self, source: &SourceState, now: Timestamp) -> bool {
        let is_idle = |stores: &Stores| stores.is_idle(source, now);
        self.stores.as_ref().is_some_and(is_idle)
    }
}

impl Stores {
    /// Nothing of this source can have waited for so long: what is stored of it has come since.
    fn is_idle(&self, source: &SourceState, now: Timestamp) -> bool {
        !self.sources.contains(source.name()) && now.since(self.at) < source.recovery_window()
    }
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
pub(super) async fn sample<DB: Backend>(
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
