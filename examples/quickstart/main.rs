//! Receiver and sender in one process, over loopback HTTP: what the inbox is for, in some seconds.
//!
//! `cargo run --example quickstart` sends a thousand events on twenty correlation ids, with duplicates, out of order,
//! with lost answers, into a handler that fails at first, and rotates the secret meanwhile. Then it compares the
//! ledger with what was sent, entry by entry.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

#[path = "../receiver/ledger/mod.rs"]
mod ledger;
mod receiver;
#[path = "../shared/mod.rs"]
mod shared;
mod table;

use std::error::Error;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tower_inbox::verify::{Secret, Secrets};

use receiver::Receiver;
use shared::args::{Cli, Opt, Settings, Wrong};
use shared::client::{Client, Target};
use shared::engine::{self, Progress, Sender};
use shared::ledger::{Differences, Expectation, check};
use shared::plan::{Plan, Traffic};
use shared::preset::{Attempt, Preset};
use shared::report::Report;
use shared::schedule::Schedule;
use shared::sign::Signer;
use shared::values;
use table::{Table, count};

const CLI: Cli = Cli {
    name: "quickstart",
    about: "Sends webhooks to a receiver in the same process, with everything that goes wrong in practice, and \
            compares its ledger with what was sent.",
    options: &[
        Opt::new("events", "N", "how many events").default("1000"),
        Opt::new("seed", "S", "same seed, same traffic [default: random]"),
    ],
    notes: "Exit status: 0 if the ledger is exactly right, else 1.",
};

const ACCOUNTS: usize = 20;
const DUPLICATES: f64 = 0.3;
const WINDOW: usize = 16;
const DROPPED: f64 = 0.1;
/// The producer's first pause is 30 s: here it is 50 ms.
const TIME_SCALE: f64 = 600.0;
const CONCURRENCY: usize = 16;
/// Deliveries of somebody who does not know the secret.
const FORGED: usize = 5;
const OLD: &str = "quickstart-old-secret";
const NEW: &str = "quickstart-new-secret";

#[tokio::main]
async fn main() -> ExitCode {
    let traffic = traffic(&CLI.settings()).unwrap_or_else(|wrong| wrong.exit(CLI.name));
    match run(traffic).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{}: {error}", CLI.name);
            ExitCode::FAILURE
        }
    }
}

fn traffic(settings: &Settings) -> Result<Traffic, Wrong> {
    let events = settings.one("events", values::up_to(1_000_000_u32))?;
    let seed = settings.maybe("seed", values::count)?;
    Ok(Traffic {
        seed: seed.unwrap_or_else(|| fastrand::u64(..1 << 48)),
        events: events as usize,
        accounts: ACCOUNTS,
        sequenced: true,
        uuids: false,
        duplicates: DUPLICATES,
        reorder: WINDOW,
    })
}

async fn run(traffic: Traffic) -> Result<bool, Box<dyn Error>> {
    let began = Instant::now();
    let directory = Directory::new()?;
    let database = format!(
        "sqlite://{}?mode=rwc",
        directory.0.join("inbox.db").display()
    );
    let receiver = Receiver::start(&database, OLD).await?;
    println!(
        "receiving on http://{}, the database is a file in a temporary directory",
        receiver.address
    );

    let plan = Arc::new(Plan::new(traffic));
    let sender = Sender {
        preset: Preset::Kudos,
        target: Target::parse(&format!("http://{}", receiver.address), "kudos")?,
        client: Client::new(Duration::from_secs(8)),
        signer: Arc::new(Signer::new(Preset::Kudos, &[OLD.to_owned()])?),
        schedule: Schedule::named("kudos").ok_or("the schedule of kudos is missing")?,
        time_scale: TIME_SCALE,
        concurrency: CONCURRENCY,
        drop: DROPPED,
    };
    let progress = Arc::new(Progress::default());
    let watch = tokio::spawn(watch(progress.clone(), plan.sendings.len(), began));
    let secrets = receiver
        .inbox
        .secrets("kudos")
        .ok_or("the source kudos is missing")?
        .clone();
    let rotation = tokio::spawn(rotate(
        secrets,
        sender.clone(),
        plan.clone(),
        progress.clone(),
    ));
    let report = engine::run(plan.clone(), sender.clone(), progress).await;
    let refused = rotation.await?.map_err(|error| error.to_string())?;
    let patience = report.patience();
    let differences = check(
        &Expectation::of(&plan),
        &sender.client,
        &sender.target,
        patience,
        |_| {},
    )
    .await;
    watch.abort();
    // Whether it ended or was aborted: it writes nothing more.
    let _ = watch.await;
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let failures = receiver.failures();
    let shown = Shown {
        report: &report,
        differences: &differences,
        failures,
        refused,
        elapsed: began.elapsed(),
    };
    println!("{}", shown.table());
    for difference in &differences.told {
        println!("  {difference}");
    }
    receiver.stop().await;
    Ok(shown.exact() && shown.rotated())
}

/// Old, then both, then new, while deliveries are on their way; and some that must be refused. How many were.
async fn rotate(
    secrets: Secrets,
    sender: Sender,
    plan: Arc<Plan>,
    progress: Arc<Progress>,
) -> Result<usize, Box<dyn Error + Send + Sync>> {
    let all = plan.sendings.len();
    let reached = async |share: usize| {
        while progress.begun.load(Ordering::Relaxed) * 100 < all * share {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let old = secrets
        .active()
        .first()
        .map(|secret| secret.label.clone())
        .ok_or("no secret is active")?;
    reached(30).await;
    // The receiver knows the new secret before the producer signs with it...
    secrets.rotate(Secret::text(NEW)?.labelled("new"))?;
    sender.signer.replace(&[OLD.to_owned(), NEW.to_owned()])?;
    let mut refused = 0;
    for index in 0..FORGED.min(plan.events.len()) {
        refused += usize::from(refuses(&sender, &plan, index, "not the secret").await?);
    }
    reached(60).await;
    // ...and forgets the old one while the producer signs with both.
    secrets.revoke(&old)?;
    sender.signer.replace(&[NEW.to_owned()])?;
    refused += usize::from(refuses(&sender, &plan, 0, OLD).await?);
    Ok(refused)
}

/// Whether a delivery that is signed with this secret gets a 401.
async fn refuses(sender: &Sender, plan: &Plan, index: usize, secret: &str) -> Result<bool, String> {
    let event = &plan.events[index];
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let attempt = Attempt {
        number: 1,
        first_sent: now,
        now,
    };
    let body = Bytes::from(sender.preset.body(event));
    let signer = Signer::new(sender.preset, &[secret.to_owned()])?;
    let headers = sender.preset.headers(event, &body, attempt, &signer);
    match sender.client.post(&sender.target.hook, headers, body).await {
        Ok(reply) => Ok(reply.status == 401),
        Err(lost) => Err(format!("a forged delivery got no answer: {lost:?}")),
    }
}

/// What the table shows.
struct Shown<'a> {
    report: &'a Report,
    differences: &'a Differences,
    failures: u64,
    /// Of the deliveries that must be.
    refused: usize,
    elapsed: Duration,
}

impl Shown<'_> {
    fn exact(&self) -> bool {
        self.differences.none() && self.report.delivered == self.report.events
    }

    /// Every forged delivery was refused, and no honest one.
    fn rotated(&self) -> bool {
        self.refused == FORGED.min(self.report.events) + 1 && self.outcome("rejected") == 0
    }

    fn outcome(&self, outcome: &str) -> u64 {
        self.report
            .answers
            .values()
            .filter_map(|outcomes| outcomes.get(outcome))
            .sum()
    }

    fn table(&self) -> Table {
        let yes = |right| if right { "yes" } else { "NO" };
        let report = self.report;
        let applied = self.outcome("applied");
        let drained = (report.events as u64).saturating_sub(applied);
        let mut table = Table::default();
        table.row(
            "events",
            count(report.events as u64),
            format!(
                "on {ACCOUNTS} correlation ids, windows of {WINDOW} shuffled (seed {})",
                report.seed
            ),
        );
        table.row(
            "deliveries",
            count(report.deliveries),
            format!(
                "30 % of the events more than once, {} retries, {} answers lost on the way",
                count(report.retries),
                count(report.dropped)
            ),
        );
        table.row("applied", count(applied), "on arrival, answered with 200");
        table.row(
            "parked",
            count(self.outcome("parked")),
            format!(
                "answered with 202: a lower sequence was missing; the worker applied {} events",
                count(drained)
            ),
        );
        table.row(
            "duplicates",
            count(self.outcome("duplicate")),
            "answered with 200: applied before, nothing done",
        );
        table.row(
            "failed",
            count(self.failures),
            "runs of the handler, on purpose, after its write: rolled back, tried again",
        );
        table.row(
            "refused",
            self.refused,
            "answered with 401: forged, or signed by the old secret after its time",
        );
        table.row(
            "rotation",
            yes(self.rotated()),
            format!(
                "old, old and new, new in mid-traffic: {} honest deliveries refused",
                self.outcome("rejected")
            ),
        );
        let answered = |percentile: Option<f64>| percentile.unwrap_or_default();
        table.row(
            "elapsed",
            format!("{:.1} s", self.elapsed.as_secs_f64()),
            format!(
                "answers after {:.1} ms (median), {:.1} ms (99 %)",
                answered(report.p50_ms),
                answered(report.p99_ms)
            ),
        );
        table.row(
            "ledger exact",
            yes(self.exact()),
            "each event once, in order, the balance their sum",
        );
        table
    }
}

/// Says how far it is: over and over on one line of a terminal, else a line every few seconds.
async fn watch(progress: Arc<Progress>, sendings: usize, began: Instant) {
    let terminal = std::io::stderr().is_terminal();
    let mut ticks =
        tokio::time::interval(Duration::from_millis(if terminal { 250 } else { 2_000 }));
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let line = format!(
            "{:.0} s: {} of {} sent, {} deliveries, {} waiting to retry",
            began.elapsed().as_secs_f64(),
            count(progress.begun.load(Ordering::Relaxed) as u64),
            count(sendings as u64),
            count(progress.deliveries.load(Ordering::Relaxed)),
            progress.waiting.load(Ordering::Relaxed),
        );
        if terminal {
            eprint!("\r\x1b[K{line}");
            // A progress line that cannot be written is not worth an end.
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }
}

/// A new temporary directory, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> std::io::Result<Self> {
        let name = format!(
            "tower-inbox-quickstart-{}-{:08x}",
            std::process::id(),
            fastrand::u32(..)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What cannot be removed is the system's to clear away.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
