//! The tables of docs/metrics.md.

use std::collections::{BTreeMap, BTreeSet};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric as the page has it.
#[derive(Debug)]
pub(crate) struct Documented {
    pub(crate) kind: Kind,
    pub(crate) labels: BTreeSet<String>,
    /// All that stands in code quotes: the values of its labels are among them.
    pub(crate) words: BTreeSet<String>,
}

fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// By their names.
pub(crate) fn metrics(page: &str) -> BTreeMap<String, Documented> {
    let mut metrics = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `inbox_")) {
        let cells: Vec<_> = line.split(" | ").collect();
        let [name, kind, labels, what] = cells[..] else {
            panic!("a row of docs/metrics.md has four cells: {line}");
        };
        let kind = match kind {
            "counter" => Kind::Counter,
            "gauge" => Kind::Gauge,
            "histogram" => Kind::Histogram,
            other => panic!("docs/metrics.md has a kind {other:?}"),
        };
        let documented = Documented {
            kind,
            labels: quoted(labels),
            words: quoted(what),
        };
        let name = quoted(name).pop_first().expect("a name");
        let before = metrics.insert(name, documented);
        assert!(before.is_none(), "docs/metrics.md has it twice: {line}");
    }
    assert!(
        metrics.len() >= 35,
        "the tables of docs/metrics.md were not found"
    );
    metrics
}
