//! The receiver under traffic for a long time: the ledger stays exact, and nothing grows that should not.
//!
//! A short form each time; ten minutes for each database with `tests/run --all`.
#![cfg(target_os = "linux")]
#![allow(
    clippy::print_stderr,
    reason = "seeds and figures must be told, so that a failure can be repeated"
)]

#[path = "support/mod.rs"]
mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use support::binary;
use support::database::{Kind, on_each_database};
use support::event::SECRET;
use support::receiver::{Receiver, Setup};
use support::wait_until;

/// Of one run of the sender.
const EVENTS: u32 = 400;
/// Runs of the short form: the first two warm everything up.
const SHORT: u32 = 4;
/// Of the long one.
const LONG: Duration = Duration::from_secs(600);
/// What an event that was applied may leave behind in memory, for up to ten minutes: its key among the remembered ones,
/// with room for the maps that grow by doubling.
const REMEMBERED: u64 = 600;
/// Allocators keep what they had, and threads their stacks.
const SLACK: u64 = 24 << 20;

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    resident: u64,
    files: usize,
}

fn held(receiver: &Receiver) -> Held {
    let process = format!("/proc/{}", receiver.id());
    let status = std::fs::read_to_string(format!("{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: u64 = kib.expect("a size").trim().parse().expect("a number");
    let files = std::fs::read_dir(format!("{process}/fd")).expect("it runs");
    Held {
        resident: kib << 10,
        files: files.count(),
    }
}

/// Duplicates, shuffled, with answers that get lost; the ledger is asked about at the end.
fn traffic(receiver: &Receiver, seed: u64) {
    let output = Command::new(binary::example("sender"))
        .args(["--url", &format!("http://{}", receiver.address)])
        .args(["--secret", SECRET, "--sequenced", "--check"])
        .args(["--accounts", "10", "--events", &EVENTS.to_string()])
        .args(["--duplicates", "30%", "--drop", "5%", "--reorder", "8"])
        .args(["--time-scale", "300", "--timeout", "5s"])
        .args(["--seed", &seed.to_string()])
        .stdin(Stdio::null())
        .output()
        .expect("the sender runs");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "seed {seed}: {out}");
    let report: Value = serde_json::from_str(out.lines().last().expect("a report")).expect("JSON");
    assert_eq!(report["check"], true, "seed {seed}: {report}");
    assert_eq!(report["delivered"], EVENTS, "seed {seed}: {report}");
}

/// §4.1, §5.1, §5.8: exact after every run; and neither memory, nor connections, nor parked rows pile up.
fn traffic_for_a_long_time_piles_nothing_up(kind: Kind) {
    let long = std::env::var_os("TOWER_INBOX_TEST_ALL").is_some();
    let first = fastrand::u64(..1 << 32);
    eprintln!("seed {first}");
    let receiver = Setup::on(kind).set("POOL_SIZE", "8").start();
    let (began, mut runs, mut warm) = (Instant::now(), 0, None);
    while runs < SHORT || long && began.elapsed() < LONG {
        traffic(&receiver, first + u64::from(runs));
        wait_until("nothing is parked any more", || {
            receiver.database().rows("pending") == 0
        });
        runs += 1;
        if runs == 2 {
            warm = Some(held(&receiver));
        }
    }
    let (warm, end) = (warm.expect("two runs"), held(&receiver));
    let more = u64::from((runs - 2) * EVENTS);
    eprintln!("{kind:?}: {warm:?} after two runs, {end:?} after {runs}");
    let allowed = warm.resident + SLACK + more * REMEMBERED;
    assert!(end.resident <= allowed, "{warm:?}, then {end:?}");
    assert!(end.files <= warm.files + 8, "{warm:?}, then {end:?}");
    // The worker opens some of its own at any time, for moments.
    wait_until("no transaction is left open", || {
        receiver.database().open_transactions() == 0
    });
}

on_each_database!(traffic_for_a_long_time_piles_nothing_up);
