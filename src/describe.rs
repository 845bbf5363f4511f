//! What the metrics mean: every name, once, for recorders that show it, for the pages, and for tests.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    pub unit: Unit,
    pub labels: &'static [&'static str],
    pub what: &'static str,
}

macro_rules! listed {
    ($($name:literal $kind:ident $unit:ident [$($label:literal),*] $what:literal;)*) => {
        /// Every metric there is, in the order of `docs/metrics.md`.
        #[doc(hidden)]
        pub const METRICS: &[Metric] = &[$(Metric {
            name: $name,
            kind: MetricKind::$kind,
            unit: Unit::$unit,
            labels: &[$($label),*],
            what: $what,
        }),*];
    };
}

listed! {
    "inbox_deliveries_total" Counter Count ["source", "event_type", "outcome"]
        "Deliveries that were answered, by source, event type and outcome.";
    "inbox_delivery_duration_seconds" Histogram Seconds ["source", "outcome"]
        "From a delivery's arrival to its answer.";
    "inbox_handler_duration_seconds" Histogram Seconds ["source"]
        "One run of the handler.";
    "inbox_handler_runs_total" Counter Count ["source", "event_type", "verdict"]
        "Runs of the handler, by what it said.";
    "inbox_refused_total" Counter Count ["source", "reason"]
        "Deliveries that were turned away before it was known which event they carry, by reason.";
    "inbox_verified_total" Counter Count ["source", "secret"]
        "Verified deliveries by source and label of the secret.";
    "inbox_other_content_total" Counter Count ["source"]
        "Known events that came with other content, and were only noted.";
    "inbox_fenced_total" Counter Count ["source"]
        "Deliveries that the fence caught, by source.";
    "inbox_superseded_total" Counter Count ["source"]
        "Events that came after a later version of theirs, by source.";
    "inbox_bursts_total" Counter Count ["source", "end"]
        "Replay bursts that have ended, by source and end: complete, short, abandoned or uncounted.";
    "inbox_bursts_missing_total" Counter Count ["source"]
        "Events that a replay burst announced and that did not arrive, by source.";
    "inbox_in_flight" Gauge Count ["source"]
        "Verified deliveries and drained events of this process that hold a place.";
    "inbox_in_flight_limit" Gauge Count []
        "How many may hold a place in this process.";
    "inbox_waiting" Gauge Count []
        "Deliveries of this process that wait in memory.";
    "inbox_waiting_limit" Gauge Count []
        "How many may wait in memory in this process.";
    "inbox_pool_wait_seconds" Histogram Seconds []
        "How long the pool took to give a connection.";
    "inbox_group_commits_total" Counter Count ["outcome"]
        "Transactions that live deliveries shared, by outcome.";
    "inbox_group_commit_deliveries_total" Counter Count []
        "Deliveries that were committed in shared transactions.";
    "inbox_parked" Gauge Count ["source"]
        "Events that wait for a lower sequence or for the worker, by source.";
    "inbox_oldest_parked_age_seconds" Gauge Seconds ["source"]
        "For how long the oldest parked event has waited.";
    "inbox_gaps" Gauge Count ["source"]
        "Streams that wait for a sequence that has not come.";
    "inbox_drain_lag_seconds" Gauge Seconds ["source"]
        "For how long the oldest due event has been due.";
    "inbox_dead_letters" Gauge Count ["source", "reason"]
        "Stored events that are not tried again by themselves, by source and reason.";
    "inbox_fenced" Gauge Count ["source"]
        "Events that the fence holds, by source.";
    "inbox_leases" Gauge Count ["source"]
        "Stored events that a worker of any process is at work on.";
    "inbox_rows" Gauge Count ["source"]
        "Rows of events in the inbox, as they were counted last.";
    "inbox_drained_total" Counter Count ["source", "outcome"]
        "Stored events that the worker tried, by source and outcome.";
    "inbox_retries_total" Counter Count ["source"]
        "Tries of the worker that failed and are made again later.";
    "inbox_expired_total" Counter Count ["source"]
        "Parked events that became dead letters since their gap was not filled in time.";
    "inbox_purged_rows_total" Counter Count ["source"]
        "Rows of events that retention removed, by source.";
    "inbox_worker_last_look_timestamp_seconds" Gauge Seconds []
        "When this process's worker last looked for what is due and the database answered, in seconds since 1970.";
    "inbox_worker_last_applied_timestamp_seconds" Gauge Seconds []
        "When this process's worker last applied a stored event, in seconds since 1970.";
    "inbox_sweep_last_success_timestamp_seconds" Gauge Seconds ["task"]
        "When a task of the upkeep was last done, in seconds since 1970.";
    "inbox_sweep_failures_total" Counter Count ["task"]
        "Tasks of the upkeep that failed, and are tried again.";
    "inbox_reconciled_total" Counter Count ["source", "outcome"]
        "Events on producers' lists, by source and outcome of their reconciliation.";
    "inbox_reconciliations_total" Counter Count ["source", "result"]
        "Runs of reconciliation, by result: complete or broken_off.";
    "inbox_reconciliation_last_success_timestamp_seconds" Gauge Seconds ["source"]
        "When a run of this process last came to the end of the lists, in seconds since 1970.";
    "inbox_reconciliation_interval_seconds" Gauge Seconds ["source"]
        "How often this process reconciles a source by itself; 0: not any more.";
}

/// Tells the recorder what they mean.
pub(crate) fn metrics() {
    for Metric {
        name,
        kind,
        unit,
        what,
        ..
    } in METRICS
    {
        match kind {
            MetricKind::Counter => describe_counter!(*name, *unit, *what),
            MetricKind::Gauge => describe_gauge!(*name, *unit, *what),
            MetricKind::Histogram => describe_histogram!(*name, *unit, *what),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn here(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
    }

    /// The literals in a text that are names of metrics.
    fn names(text: &str) -> impl Iterator<Item = String> {
        text.split('"')
            .filter(|part| {
                let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                // The console's cookies are no metrics.
                let is_cookie = part.starts_with("inbox_console");
                part.starts_with("inbox_") && !is_cookie && part.chars().all(plain)
            })
            .map(str::to_owned)
    }

    /// What the sources emit, this file left out.
    fn emitted() -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut folders = vec![here("src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("the sources are here") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs")
                    && !path.ends_with("describe.rs")
                {
                    found.extend(names(&fs::read_to_string(&path).expect("a text")));
                }
            }
        }
        found
    }

    /// §8: what the code emits is described, and the other way round.
    #[test]
    fn every_metric_of_the_code_is_listed_and_every_listed_one_is_emitted() {
        let listed: BTreeSet<_> = METRICS
            .iter()
            .map(|metric| metric.name.to_owned())
            .collect();
        assert_eq!(listed.len(), METRICS.len(), "one is listed twice");
        assert_eq!(emitted(), listed);
    }

    /// §8: the page has them all, with kind and labels.
    #[test]
    fn the_page_has_every_metric_with_its_kind_and_labels() {
        let page = fs::read_to_string(here("docs/metrics.md")).expect("the page");
        let lines: Vec<_> = page
            .lines()
            .filter(|line| line.starts_with("| `inbox_"))
            .map(|line| {
                let cells: Vec<_> = line.split(" | ").collect();
                let [name, kind, labels, _] = cells[..] else {
                    panic!("{line}");
                };
                let name = name.trim_start_matches("| ").trim_matches('`');
                (name.to_owned(), kind.to_owned(), labels.to_owned())
            })
            .collect();
        let wanted: Vec<_> = METRICS
            .iter()
            .map(|metric| {
                let labels: Vec<_> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
                let labels = match labels.as_slice() {
                    [] => "–".to_owned(),
                    labels => labels.join(", "),
                };
                let kind = format!("{:?}", metric.kind).to_lowercase();
                (metric.name.to_owned(), kind, labels)
            })
            .collect();
        assert_eq!(lines, wanted);
    }

    /// §8: Prometheus' conventions.
    #[test]
    fn names_end_as_their_kind_and_unit_demand() {
        for metric in METRICS {
            let name = metric.name;
            let ends = |end| name.ends_with(end);
            assert_eq!(ends("_total"), metric.kind == MetricKind::Counter, "{name}");
            assert_eq!(ends("_seconds"), metric.unit == Unit::Seconds, "{name}");
            assert!(
                !metric.what.is_empty() && metric.what.ends_with('.'),
                "{name}"
            );
        }
    }
}
