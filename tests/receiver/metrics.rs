//! What a scrape of the receiver shows.

#[path = "../ops/documented.rs"]
mod documented;

use std::collections::{BTreeMap, BTreeSet};

use documented::{Documented, Kind};

use crate::support::event::Event;
use crate::support::receiver::{Receiver, Setup};
use crate::support::wait_until;

/// The names in a scrape, each with its labels and their values.
type Scraped = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn scraped(receiver: &Receiver) -> Scraped {
    let scrape = receiver.get("/metrics");
    let mut names = Scraped::new();
    for line in scrape.text().lines() {
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        let (series, _) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let known = names.entry(name.to_owned()).or_default();
        for label in labels.trim_end_matches('}').split("\",") {
            if let Some((label, value)) = label.split_once("=\"") {
                let values = known.entry(label.to_owned()).or_default();
                values.insert(value.trim_end_matches('"').to_owned());
            }
        }
    }
    names
}

/// Labels whose values are no words of the page: names, and numbers.
const OPEN: [&str; 4] = ["event_type", "le", "secret", "source"];

/// §8: everything that is scraped is on the page that describes it, by its name and its labels; and histograms have buckets,
/// without which no percentile comes out of several processes.
#[test]
fn what_is_scraped_is_what_docs_metrics_describes() {
    let page = include_str!("../../docs/metrics.md");
    let described = documented::metrics(page);
    let words: BTreeSet<_> = described
        .values()
        .flat_map(|metric| metric.words.clone())
        .collect();
    let receiver = Setup::new().start();
    receiver.deliver(&Event::of("acct", 2)).is(202, "parked");
    receiver.deliver(&Event::of("acct", 1)).is(200, "applied");
    receiver.deliver(&Event::of("acct", 1)).is(200, "duplicate");
    let fails = Event::of("other", 1).fault("status:422");
    receiver.deliver(&fails).is(422, "rejected");
    wait_until("the gauges are sampled", || {
        scraped(&receiver).contains_key("inbox_parked")
    });
    let scraped = scraped(&receiver);
    for (name, labels) in &scraped {
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end));
        let histogram = base.and_then(|base| described.get(base));
        let histogram = histogram.filter(|metric| metric.kind == Kind::Histogram);
        let metric: &Documented = histogram
            .or_else(|| described.get(name))
            .unwrap_or_else(|| panic!("docs/metrics.md has no {name}"));
        let mut expected = metric.labels.clone();
        if name.ends_with("_bucket") {
            expected.insert("le".to_owned());
        }
        let found: BTreeSet<_> = labels.keys().cloned().collect();
        assert_eq!(found, expected, "{name}");
        for (label, values) in labels {
            let closed = !OPEN.contains(&&**label);
            let unknown = values.difference(&words).next();
            assert!(!closed || unknown.is_none(), "{name}: {label} {unknown:?}");
        }
    }
    for name in [
        "inbox_delivery_duration_seconds",
        "inbox_handler_duration_seconds",
    ] {
        assert!(
            scraped.contains_key(&format!("{name}_bucket")),
            "{name} has no buckets"
        );
    }
}
