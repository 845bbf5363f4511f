//! What a receiver takes of memory: `--only memory`.

use std::process::Command;
use std::time::Duration;

use crate::fill;
use crate::load::closed;
use crate::place::{Kind, Place};
use crate::process::Receiver;
use crate::report::Report;
use crate::requests::{Feed, Mint};
use crate::servers::Servers;

const KIB: usize = 1_024;
/// HTTP connections, and bytes of a body: the biggest is just below the limit of 1 MiB.
const CASES: &[(usize, usize)] = &[
    (64, KIB),
    (2_000, KIB),
    (64, 1_024 * KIB),
    (2_000, 1_024 * KIB),
];
/// Different requests of a case: together less than memory.
const REQUESTS: usize = 64;
const SLICE: Duration = Duration::from_secs(3);
/// Commits that are remembered; fewer with `--quick`.
const REMEMBERED: usize = 50_000;
const FEWER: usize = 10_000;
/// Events that are parked: as many as a source's default bound takes, and some room.
const PARKED: usize = 8_000;

/// Each case in a process of its own, since what it took once it keeps.
pub(crate) async fn all(
    report: &mut Report,
    servers: &mut Servers,
    quick: bool,
) -> Result<(), String> {
    report.line("\nResident memory of a receiver on PostgreSQL: known events, the body budget at its default of 64 MiB\n");
    report.line("| connections | body | at first MiB | at most MiB | refused, % |");
    report.line("|---:|---:|---:|---:|---:|");
    for (connections, body) in CASES {
        let place = Place::new(Kind::Postgres, servers, None).await;
        let receiver = start(&place);
        let mut mint = Mint::new(fastrand::u64(..), *body);
        let first = resident(receiver.pid(), "VmRSS:");
        let forever = (Duration::ZERO, Duration::from_secs(600));
        // By few at first, so that none is refused.
        closed(receiver.port, mint.first(REQUESTS), 4, forever, &[]).await?;
        let mut known = mint.make(Feed::Known(REQUESTS), REQUESTS, 204, 200);
        // More bodies than the budget allows at a time are put off.
        known.refused = true;
        let slice = (Duration::ZERO, SLICE);
        let slice = closed(receiver.port, known, *connections, slice, &[]).await?;
        report.line(&format!(
            "| {connections} | {} KiB | {first:.0} | {:.0} | {:.0} |",
            body / KIB,
            resident(receiver.pid(), "VmHWM:"),
            100.0 * slice.early as f64 / slice.done.max(1) as f64
        ));
        drop(receiver);
        place.close().await;
    }
    let place = Place::new(Kind::Postgres, servers, None).await;
    let receiver = start(&place);
    let mut mint = Mint::new(fastrand::u64(..), KIB);
    let forever = || (Duration::ZERO, Duration::from_secs(600));
    // Pools and buffers are as big as they get.
    closed(receiver.port, mint.first(2_000), 64, forever(), &[]).await?;
    let before = resident(receiver.pid(), "VmRSS:");
    let events = if quick { FEWER } else { REMEMBERED };
    let new = mint.make(Feed::Unique, events, 204, 200);
    closed(receiver.port, new, 64, forever(), &[]).await?;
    let each = (resident(receiver.pid(), "VmRSS:") - before) * 1_048_576.0 / events as f64;
    report.line(&format!(
        "\nA commit that is remembered takes {each:.0} bytes."
    ));
    let before = resident(receiver.pid(), "VmRSS:");
    let behind = mint.make(Feed::Behind, PARKED, 202, 200);
    closed(receiver.port, behind, 64, forever(), &[]).await?;
    let each = (resident(receiver.pid(), "VmRSS:") - before) * 1_048_576.0 / PARKED as f64;
    report.line(&format!(
        "One that is parked takes {:.0} bytes of the receiver's memory: it is in the database.",
        each.max(0.0)
    ));
    drop(receiver);
    let event = fill::size(&place.url, "tower_inbox_event").await;
    let parked = fill::size(&place.url, "tower_inbox_pending").await;
    report.line(&format!(
        "On PostgreSQL's disk an event takes {event:.0} bytes with its indexes, and a parked one with 1 KiB of body {parked:.0} more."
    ));
    place.close().await;
    Ok(())
}

fn start(place: &Place) -> Receiver {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["serve", "ours", &place.url, "connections=32"]);
    Receiver::start(&mut command)
}

/// MiB, from `/proc/<pid>/status`.
fn resident(pid: u32, line: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|each| {
            each.strip_prefix(line)?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .map_or(0.0, |kib: f64| kib / 1_024.0)
}
