//! How the tasks of the upkeep get on, as the metrics have it.

use std::collections::HashSet;

use super::show_time;
use crate::clock::Timestamp;

/// What the metrics say of a task is true of all its sources.
#[derive(Default)]
pub(super) struct Sweeps {
    /// Tasks that failed last, by source where they have one.
    failing: HashSet<(&'static str, String)>,
    /// Those that a time is shown of.
    shown: HashSet<&'static str>,
}

impl Sweeps {
    /// It was done for this source, or for all if it has none; or it failed.
    pub(super) fn done(&mut self, task: &'static str, source: &str, well: bool, now: Timestamp) {
        let key = (task, source.to_owned());
        if well {
            self.failing.remove(&key);
        } else {
            metrics::counter!("inbox_sweep_failures_total", "task" => task).increment(1);
            self.failing.insert(key);
        }
        let fails = self.failing.iter().any(|(failing, _)| *failing == task);
        // One that has never been done has a time too, since when it is overdue: nobody misses a series that never was.
        if self.shown.insert(task) || !fails {
            show_time(
                metrics::gauge!("inbox_sweep_last_success_timestamp_seconds", "task" => task),
                now,
            );
        }
    }

    /// Of tenants none of which is alive there is nothing to be done, and it is not overdue.
    pub(super) fn nothing_to_do(&mut self, tasks: &[&'static str], now: Timestamp) {
        for task in tasks {
            self.done(task, "", true, now);
        }
    }

    /// Forgets what failed for sources that are no more.
    pub(super) fn retain(&mut self, sources: &HashSet<&str>) {
        self.failing
            .retain(|(_, source)| source.is_empty() || sources.contains(source.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::{Arc, Mutex};

    use metrics::{
        Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
        with_local_recorder,
    };

    use super::*;

    /// Gauges, by their first label.
    #[derive(Clone, Default)]
    struct Gauges(Arc<Mutex<HashMap<String, f64>>>);

    struct Cell(Gauges, String);

    impl GaugeFn for Cell {
        fn increment(&self, _: f64) {}

        fn decrement(&self, _: f64) {}

        fn set(&self, to: f64) {
            self.0.0.lock().unwrap().insert(self.1.clone(), to);
        }
    }

    impl Recorder for Gauges {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            let label = key.labels().next().expect("a label").value().to_owned();
            Gauge::from_arc(Arc::new(Cell(self.clone(), label)))
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    /// §8: an alert goes by this time. It must be there for what never works, and move for what has nothing to do.
    #[test]
    fn the_time_of_a_task_is_its_last_success_or_its_first_try() {
        let (gauges, mut sweeps) = (Gauges::default(), Sweeps::default());
        let at = Timestamp::from_secs;
        let shown = |task: &str| gauges.0.lock().unwrap().get(task).copied();
        with_local_recorder(&gauges, || {
            sweeps.done("sample", "", false, at(10));
            sweeps.done("sample", "", false, at(20));
            assert_eq!(shown("sample"), Some(10.0));
            sweeps.done("sample", "", true, at(30));
            sweeps.done("sample", "", false, at(40));
            assert_eq!(shown("sample"), Some(30.0));

            sweeps.done("purge", "a", false, at(10));
            sweeps.done("purge", "b", true, at(20));
            assert_eq!(shown("purge"), Some(10.0), "it is not done for all");
            sweeps.retain(&HashSet::from(["b"]));
            sweeps.done("purge", "b", true, at(30));
            assert_eq!(shown("purge"), Some(30.0));
            sweeps.retain(&HashSet::new());
            sweeps.nothing_to_do(&["purge"], at(5_000));
            assert_eq!(shown("purge"), Some(5_000.0));
        });
    }
}
