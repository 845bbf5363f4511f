//! The quickstart, run as a new user runs it.

#[path = "support/mod.rs"]
mod support;

use std::process::Command;
use std::time::{Duration, Instant};

/// Duplicates, reordering, lost answers, a failing handler and a rotation: the ledger is exact, and the table says so.
#[test]
fn the_quickstart_ends_with_the_exact_ledger_in_under_a_minute() {
    let began = Instant::now();
    let output = Command::new(support::binary::example("quickstart"))
        .output()
        .expect("it runs");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}{err}");
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
    let value = |name: &str| {
        let line = out.lines().find(|line| line.trim_start().starts_with(name));
        let rest = line
            .unwrap_or_else(|| panic!("{name} is not in {out}"))
            .trim_start();
        rest[name.len()..]
            .split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(value("events"), "1,000");
    assert_eq!(value("refused"), "6");
    assert_eq!(value("rotation"), "yes");
    assert_eq!(value("ledger exact"), "yes");
    for name in ["deliveries", "applied", "parked", "duplicates", "failed"] {
        assert_ne!(value(name), "0", "{name} in {out}");
    }
}

/// A bad option is one line and status 2.
#[test]
fn a_bad_option_of_the_quickstart_is_refused() {
    for args in [["--events", "0"], ["--seed", "x"], ["--no-such", "1"]] {
        let output = Command::new(support::binary::example("quickstart"))
            .args(args)
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
