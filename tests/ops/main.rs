//! What is in `ops/` against what the code exports, by the page that a test of its own holds to the code: docs/metrics.md.
//! The dashboard's queries and the alert rules are read word by word; `promtool` says whether the rules are right and fire.
#![allow(
    clippy::print_stderr,
    reason = "a test says on stderr what it leaves out"
)]

mod documented;
mod promql;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use documented::{Documented, Kind};
use promql::Query;

/// Labels that the scrape adds, and the one of buckets.
const OF_THE_SCRAPE: [&str; 3] = ["instance", "job", "le"];
/// Where `docs/on-call.md` is read: a section's mark is its title in small letters.
const ON_CALL: &str = "https://docs.rs/tower-inbox/latest/tower_inbox/guide/on_call/index.html";
/// What the command line can do, for the runbooks that name it.
const COMMANDS: [&str; 13] = [
    "audit",
    "check",
    "cursor",
    "dead",
    "events",
    "explain",
    "migrate",
    "purge",
    "reconcile",
    "send",
    "skip",
    "status",
    "streams",
];

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn dashboard() -> Value {
    serde_json::from_str(&read("ops/grafana/tower-inbox.json")).expect("the dashboard is JSON")
}

/// The panels that show something.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    panels.filter(|panel| panel["type"] != "row").collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// An alert of the rules: its name, its expression, and the lines of its own.
struct Alert {
    name: String,
    expr: String,
    lines: Vec<String>,
}

fn alerts() -> Vec<Alert> {
    let rules = read("ops/prometheus/tower-inbox.rules.yml");
    let mut alerts: Vec<Alert> = Vec::new();
    let mut in_expr = false;
    for line in rules
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
    {
        if let Some(name) = line.trim_start().strip_prefix("- alert: ") {
            alerts.push(Alert {
                name: name.to_owned(),
                expr: String::new(),
                lines: Vec::new(),
            });
        }
        let Some(alert) = alerts.last_mut() else {
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        if let Some(expr) = line.strip_prefix("        expr: ") {
            in_expr = true;
            alert.expr.push_str(expr.trim_start_matches('|'));
        } else if in_expr && indent > 8 {
            alert.expr.push_str(line);
            alert.expr.push('\n');
        } else {
            in_expr = false;
        }
        alert.lines.push(line.to_owned());
    }
    alerts
}

/// Demands that a query asks for what there is.
fn holds(place: &str, expr: &str, metrics: &BTreeMap<String, Documented>) -> Query {
    let query = Query::read(expr);
    assert!(
        !query.metrics.is_empty(),
        "{place} asks for nothing: {expr}"
    );
    let mut labels: BTreeSet<&str> = OF_THE_SCRAPE.into();
    for asked in &query.metrics {
        let name = asked.name.strip_suffix("_bucket").unwrap_or(&asked.name);
        let Some(metric) = metrics.get(name) else {
            panic!("{place}: {:?} is no metric of docs/metrics.md", asked.name);
        };
        let is_bucket = name != asked.name;
        assert_eq!(metric.kind == Kind::Histogram, is_bucket, "{place}: {name}");
        assert_eq!(
            asked.is_a_rate,
            metric.kind != Kind::Gauge,
            "{place}: counters are asked for their growth, gauges are not: {name}"
        );
        labels.extend(metric.labels.iter().map(String::as_str));
        for (label, values) in &asked.matchers {
            let known = metric.labels.contains(label) || OF_THE_SCRAPE.contains(&&**label);
            assert!(known, "{place}: {name} has no label {label}");
            for value in values.split('|').filter(|value| !value.starts_with('$')) {
                assert!(
                    metric.words.contains(value),
                    "{place}: docs/metrics.md knows no {label} {value:?} of {name}"
                );
            }
        }
    }
    for label in &query.grouped_by {
        assert!(labels.contains(&**label), "{place}: nothing has {label}");
    }
    query
}

/// (ops): "checked in tests against the metric names that the code exports" (issue 9).
#[test]
fn every_query_of_the_dashboard_asks_for_what_there_is() {
    let metrics = documented::metrics(&read("docs/metrics.md"));
    let dashboard = dashboard();
    let mut shown = BTreeSet::new();
    for panel in panels(&dashboard) {
        let title = text(&panel["title"]);
        for target in panel["targets"].as_array().expect("targets") {
            let query = holds(title, text(&target["expr"]), &metrics);
            let legend = text(&target["legendFormat"]);
            for (at, _) in legend.match_indices("{{") {
                let label = legend[at + 2..].split("}}").next().expect("it ends");
                let kept = query.grouped_by.contains(label)
                    || query.grouped_by.is_empty() && label == "instance";
                assert!(kept, "{title}: {label} is not among what is shown");
            }
            shown.extend(query.metrics.into_iter().map(|asked| asked.name));
        }
    }
    // What is only of use beside something else.
    let left_out = ["inbox_worker_last_applied_timestamp_seconds"];
    for (name, metric) in &metrics {
        let suffix = if metric.kind == Kind::Histogram {
            "_bucket"
        } else {
            ""
        };
        let is_shown = shown.contains(&format!("{name}{suffix}"));
        assert_ne!(is_shown, left_out.contains(&&**name), "{name}");
    }
}

/// (ops)
#[test]
fn the_dashboard_can_be_imported_and_every_panel_says_what_it_shows_in_which_unit() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(39) && dashboard["id"].is_null());
    let variables: BTreeSet<_> = dashboard["templating"]["list"]
        .as_array()
        .expect("variables")
        .iter()
        .map(|variable| text(&variable["name"]))
        .collect();
    assert_eq!(variables, ["datasource", "job", "source"].into());
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = text(&panel["title"]);
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}");
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        assert!(at("x") + at("w") <= 24, "{title}");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{title} lies over another panel");
            }
        }
    }
    for panel in panels(&dashboard) {
        let title = text(&panel["title"]);
        assert!(
            !title.is_empty() && !text(&panel["description"]).is_empty(),
            "{title}"
        );
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let unit = text(&panel["fieldConfig"]["defaults"]["unit"]);
        let mut references = BTreeSet::new();
        for target in panel["targets"].as_array().expect("targets") {
            assert!(references.insert(text(&target["refId"])), "{title}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            let expr = text(&target["expr"]);
            // A rate of times is a rate; a quotient of any two is a part.
            let expected = match expr {
                _ if expr.contains(" / ") => ["percentunit", "short"],
                _ if expr.contains("_seconds") => ["s", "s"],
                _ if expr.contains("rate(") => ["ops", "ops"],
                _ => ["short", "short"],
            };
            assert!(expected.contains(&unit), "{title}: the unit is {unit}");
            for (at, _) in expr.match_indices('$') {
                let end = expr[at + 1..].find(|c: char| !c.is_alphanumeric() && c != '_');
                let name = &expr[at + 1..][..end.expect("something follows")];
                assert!(
                    variables.contains(name) || name == "__rate_interval",
                    "{title}: {name}"
                );
            }
        }
    }
}

/// (ops): "checked in tests against the metric names that the code exports" (issue 9).
#[test]
fn every_alert_asks_for_what_there_is_and_says_what_to_do() {
    let metrics = documented::metrics(&read("docs/metrics.md"));
    let tests = read("ops/prometheus/tower-inbox.rules.test.yml");
    let alerts = alerts();
    assert!(alerts.len() >= 15, "the alerts were not found");
    let on_call = read("docs/on-call.md");
    let sections = on_call.matches("\n### Inbox").count();
    assert_eq!(sections, alerts.len(), "docs/on-call.md");
    for Alert { name, expr, lines } in alerts {
        let query = holds(&name, &expr, &metrics);
        let all = lines.join("\n");
        for key in [
            "severity: ",
            "summary: ",
            "description: ",
            "runbook: ",
            "runbook_url: ",
        ] {
            assert_eq!(all.matches(key).count(), 1, "{name}: {key}");
        }
        // A label that is not there shows as nothing.
        for (at, _) in all.match_indices("$labels.") {
            let rest = &all[at + "$labels.".len()..];
            let label: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
            let kept = query.grouped_by.contains(&label)
                || OF_THE_SCRAPE.contains(&&*label)
                || query
                    .metrics
                    .iter()
                    .any(|asked| asked.matchers.contains_key(&label));
            assert!(kept, "{name}: the alert has no label {label}");
        }
        for (at, _) in all.match_indices("`tower-inbox ") {
            let said = all[at + 1..].split('`').next().expect("it ends");
            let command = said.split_whitespace().nth(1).expect("a command");
            assert!(
                COMMANDS.contains(&command),
                "{name}: `tower-inbox {command}`"
            );
        }
        let section = format!("\n### {name}\n");
        assert!(on_call.contains(&section), "docs/on-call.md lacks {name}");
        let url = format!("runbook_url: \"{ON_CALL}#{}\"", name.to_lowercase());
        assert!(all.contains(&url), "{name}: no {url}");
        // "1 streams": a number is not followed by what it counts, unless that is a unit.
        for (at, _) in all.match_indices("$value }}") {
            let rest = &all[at + "$value }}".len()..];
            let word = rest.trim_start_matches(' ').chars().next();
            let counts = rest.starts_with(' ') && word.is_some_and(char::is_alphabetic);
            assert!(
                !counts,
                "{name}: what if it is one? {}",
                rest.lines().next().unwrap_or_default()
            );
        }
        let fires = format!("labels: 'ALERTS{{alertname=\"{name}\"");
        assert!(tests.contains(&fires), "{name}: no test has it fire");
    }
}

/// Nothing if it is to be left out: it is not there, and nobody asks for everything.
fn promtool() -> Option<Command> {
    let there = Command::new("promtool").arg("--version").output();
    if there.is_ok_and(|output| output.status.success()) {
        return Some(Command::new("promtool"));
    }
    let missing = "promtool was not found: tests/run installs it (Debian's package: prometheus)";
    assert!(
        std::env::var_os("TOWER_INBOX_TEST_DATABASES").is_none(),
        "the alert rules must be tested and cannot be: {missing}"
    );
    eprintln!("NOT TESTED: the alert rules: {missing}");
    None
}

#[track_caller]
fn passes(command: Option<Command>, arguments: [&str; 2], path: &str) {
    let Some(mut command) = command else {
        return;
    };
    let output = command.args(arguments).arg(file(path)).output();
    let output = output.expect("promtool runs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("SUCCESS"), "{said}");
}

/// (ops): "promtool from the distribution's packages" (issue 9).
#[test]
fn promtool_finds_nothing_wrong_with_the_alert_rules() {
    let path = "ops/prometheus/tower-inbox.rules.yml";
    passes(promtool(), ["check", "rules"], path);
}

/// (ops)
#[test]
fn every_alert_fires_when_it_must_and_only_then() {
    let path = "ops/prometheus/tower-inbox.rules.test.yml";
    passes(promtool(), ["test", "rules"], path);
}
