//! As much of PromQL as the queries of `ops/` have.

use std::collections::{BTreeMap, BTreeSet};

/// What a query asks for.
#[derive(Debug, Default)]
pub(crate) struct Query {
    pub(crate) metrics: Vec<Asked>,
    /// The labels of every `by` and `on`.
    pub(crate) grouped_by: BTreeSet<String>,
}

/// A metric in a query.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) name: String,
    /// The label, and the text that its value is compared with.
    pub(crate) matchers: BTreeMap<String, String>,
    /// It stands in a function that takes the growth of a counter.
    pub(crate) is_a_rate: bool,
}

impl Query {
    /// Reads a query; what is not known here is passed over.
    pub(crate) fn read(expr: &str) -> Self {
        let mut query = Self::default();
        let mut rest = expr;
        let mut before = "";
        while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic() || c == '"') {
            rest = &rest[start..];
            if let Some(behind) = rest.strip_prefix('"') {
                rest = behind.split_once('"').expect("a string ends").1;
                continue;
            }
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
            let next = behind.trim_start();
            rest = behind;
            match word {
                "by" | "on" => {
                    let (labels, behind) = next[1..].split_once(')').expect("a list ends");
                    let labels = labels.split(',').map(|label| label.trim().to_owned());
                    query.grouped_by.extend(labels);
                    rest = behind;
                }
                _ if word.starts_with("inbox_") => {
                    let mut matchers = BTreeMap::new();
                    if let Some(inside) = next.strip_prefix('{') {
                        let (inside, behind) = inside.split_once('}').expect("matchers end");
                        matchers = read_matchers(inside);
                        rest = behind;
                    }
                    query.metrics.push(Asked {
                        name: word.to_owned(),
                        matchers,
                        is_a_rate: matches!(before, "rate" | "increase"),
                    });
                }
                _ => {}
            }
            before = word;
        }
        query
    }
}

fn read_matchers(inside: &str) -> BTreeMap<String, String> {
    let mut matchers = BTreeMap::new();
    let mut rest = inside;
    while let Some((label, behind)) = rest.split_once(['=', '!']) {
        let value = behind.split('"').nth(1).expect("a quoted value");
        let label = label.trim_matches([',', ' ']);
        matchers.insert(label.to_owned(), value.to_owned());
        let (_, behind) = behind.split_once('"').expect("it begins");
        rest = behind.split_once('"').expect("it ends").1;
    }
    matchers
}

#[test]
fn queries_are_read() {
    let query = Query::read(
        r#"sum by (source, le) (rate(inbox_a_bucket{job=~"$job", outcome!="x|y"}[5m])) / on (job) inbox_b > 0.5"#,
    );
    let [a, b] = &query.metrics[..] else {
        panic!("{query:?}");
    };
    assert_eq!((&*a.name, a.is_a_rate), ("inbox_a_bucket", true));
    assert_eq!(
        (&*a.matchers["job"], &*a.matchers["outcome"]),
        ("$job", "x|y")
    );
    assert_eq!((&*b.name, b.is_a_rate), ("inbox_b", false));
    let grouped: Vec<_> = query.grouped_by.iter().collect();
    assert_eq!(grouped, ["job", "le", "source"]);
}
