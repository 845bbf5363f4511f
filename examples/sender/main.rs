//! A webhook producer: signs, delivers over real HTTP, retries by a real producer's schedule, and reports.
//!
//! `cargo run --example sender -- --secret SECRET --check`, beside a running `examples/receiver`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

mod replays;
#[path = "../shared/mod.rs"]
mod shared;
#[cfg(test)]
mod tests;

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use replays::Lists;
use shared::args::{Cli, Opt, Settings, Wrong};
use shared::client::{Client, Target};
use shared::engine::{self, Progress, Sender};
use shared::ledger::{self, Expectation};
use shared::plan::{Plan, Traffic};
use shared::preset::Preset;
use shared::schedule::Schedule;
use shared::sign::Signer;
use shared::values;

const CLI: Cli = Cli {
    name: "sender",
    about: "A webhook producer: signs, delivers over HTTP, retries as a real producer would, and reports.",
    options: &[
        Opt::new(
            "url",
            "URL",
            "the receiver (plain http only); without a path, /webhooks/<preset> is added",
        )
        .default("http://127.0.0.1:3000"),
        Opt::new(
            "preset",
            "NAME",
            "whose requests to send: kudos, sequenced, brief, standard, stripe, github, shopify or slack",
        )
        .default("kudos"),
        Opt::new(
            "secret",
            "TEXT",
            "signs; two of them make a dual-signature header. Without it the receiver's own variable is \
             read: <PRESET>_SECRETS, such as KUDOS_SECRETS. For standard: whsec_ and base64",
        )
        .up_to(2)
        .secret(),
        Opt::new("events", "N", "how many events").default("1000"),
        Opt::new(
            "accounts",
            "K",
            "spread over this many accounts: acct-1 to acct-K",
        )
        .default("20"),
        Opt::switch(
            "sequenced",
            "give each account's events a correlation id and a sequence (always so with preset sequenced)",
        ),
        Opt::new(
            "duplicates",
            "P",
            "share of events sent more than once, half of them at the same time; 0.3 or 30%",
        )
        .default("0"),
        Opt::new("reorder", "W", "shuffle within windows of W events").default("0"),
        Opt::new(
            "drop",
            "P",
            "share of answers it pretends not to have seen; 0.1 or 10%",
        )
        .default("0"),
        Opt::new(
            "schedule",
            "NAME",
            "retry by the rules of kudos, sequenced or brief [default: as the preset; kudos where it is none of them]",
        ),
        Opt::new(
            "time-scale",
            "X",
            "how much faster than the real schedule to run; a Retry-After is scaled, too",
        )
        .default("1"),
        Opt::new("concurrency", "C", "deliveries in flight").default("16"),
        Opt::new(
            "timeout",
            "TIME",
            "how long an answer may take, such as 8s or 500ms; not scaled",
        )
        .default("8s"),
        Opt::new(
            "seed",
            "S",
            "same seed, same traffic [default: random, told on standard error]",
        ),
        Opt::switch(
            "check",
            "at the end compare GET /ledger/<account> with what was sent: each event exactly once, \
             sequences in order, the balance the sum; waits for parked events first. A ledger may hold other \
             runs' entries as well",
        ),
        Opt::new(
            "serve-replays",
            "ADDR",
            "at the end go on as the replay endpoint: GET http://ADDR/replays lists the events that were given up \
             (list=exhausted) or delivered (list=delivered); until SIGINT",
        ),
        Opt::new("replay-key", "TEXT", "the bearer key to that list")
            .env("REPLAY_KEY")
            .secret(),
    ],
    notes: "\
Schedules:
  kudos      30 s, 2 min, 10 min, 30 min, 1 h, ±25 %, 6 attempts; retries 408, 429, 5xx; 410 ends the run
  brief      30 s doubling to 480 s, ±20 %, 6 attempts; retries 408, 425, 429, 500, 502, 503, 504
  sequenced  1 s, 4 s, 16 s, 64 s, then until 5 minutes are over; retries 202 with Retry-After, 408, 425,
             429, 5xx
  All retry when there is no answer, and obey Retry-After on 429.

The last line on standard output is JSON: events, delivered, refused, exhausted, deliveries, answers by
status and outcome, p50_ms, p95_ms, p99_ms, check (true or false) and more. Exit status: 0; 1 if --check finds a
difference; 2 for wrong options.",
};

/// What the command line asks for.
struct Job {
    traffic: Traffic,
    sender: Sender,
    check: bool,
    /// Where to serve the lists, and the key to them.
    replays: Option<(SocketAddr, String)>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let settings = CLI.settings();
    let Job {
        traffic,
        sender,
        check,
        replays,
    } = job(&settings).unwrap_or_else(|wrong| wrong.exit(CLI.name));
    if !settings.has("seed") {
        eprintln!(
            "seed {} (--seed {0} sends the same traffic again)",
            traffic.seed
        );
    }
    let plan = Arc::new(Plan::new(traffic));
    let (client, target) = (sender.client.clone(), sender.target.clone());
    let producer = sender.clone();
    let progress = Arc::new(Progress::default());
    let watch = tokio::spawn(watch(progress.clone(), plan.sendings.len()));
    let mut report = engine::run(plan.clone(), sender, progress).await;
    watch.abort();
    // Whether it ended or was aborted: nothing more is written over the lines that follow.
    let _ = watch.await;
    clear();
    if report.unsent > 0 {
        eprintln!(
            "410 Gone: the receiver wants no more; {} events were not sent",
            report.unsent
        );
    }
    if check {
        eprintln!("comparing the ledger");
        let mut told = Instant::now();
        let tell = |left| {
            if left > 0 && told.elapsed() >= Duration::from_secs(5) {
                told = Instant::now();
                eprintln!("waiting for the receiver: {left} differences left");
            }
        };
        let expectation = Expectation::of(&plan);
        let patience = report.patience();
        let found = ledger::check(&expectation, &client, &target, patience, tell).await;
        for difference in &found.told {
            eprintln!("{difference}");
        }
        report.checked(found);
    }
    println!("{}", report.line());
    if let Some((address, key)) = replays {
        let lists = Lists::new(key, &plan, &producer, &report);
        if let Err(error) = serve(address, lists).await {
            eprintln!("--serve-replays {address}: {error}");
            return ExitCode::FAILURE;
        }
    }
    match report.check {
        Some(false) => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

/// Serves the lists until somebody says that it is enough.
async fn serve(address: SocketAddr, lists: Lists) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}/replays", listener.local_addr()?);
    let enough = async {
        // Without a signal to wait for: for ever.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    axum::serve(listener, lists.router())
        .with_graceful_shutdown(enough)
        .await
}

/// Checks every setting before anything is sent.
fn job(settings: &Settings) -> Result<Job, Wrong> {
    let preset = settings.one("preset", |name| {
        Preset::named(name).ok_or_else(|| {
            let names = Preset::ALL.map(Preset::name);
            format!("not one of {}", names.join(", "))
        })
    })?;
    let schedule = settings.maybe("schedule", |name| {
        Schedule::named(name).ok_or_else(|| "not one of brief, sequenced, kudos".to_owned())
    })?;
    let own_schedule = || {
        let own = Schedule::named(preset.name());
        own.unwrap_or_else(|| Schedule::named("kudos").expect("it is there"))
    };
    let sequenced = match (preset.sequenced(), settings.on("sequenced")?) {
        (Some(false), true) => {
            let name = preset.name();
            return Err(Wrong(format!("--sequenced: preset {name} has no order")));
        }
        (always, asked) => always.unwrap_or(asked),
    };
    // Every JSON reader keeps a whole number of 48 bits.
    let random = || fastrand::u64(..1 << 48);
    let traffic = Traffic {
        seed: settings
            .maybe("seed", values::count)?
            .unwrap_or_else(random),
        events: settings.one("events", up_to(10_000_000))?,
        accounts: settings.one("accounts", up_to(1_000_000))?,
        sequenced,
        uuids: preset.uuids(),
        duplicates: settings.one("duplicates", values::share)?,
        reorder: settings.one("reorder", values::count)?,
    };
    let sender = Sender {
        target: settings.one("url", |url| Target::parse(url, preset.name()))?,
        client: Client::new(settings.one("timeout", values::some_time)?),
        signer: Arc::new(
            Signer::new(preset, &secrets(settings, preset)?)
                .map_err(|why| Wrong(format!("--secret: {why}")))?,
        ),
        schedule: schedule.unwrap_or_else(own_schedule),
        time_scale: settings.one("time-scale", values::factor)?,
        concurrency: settings.one("concurrency", up_to(10_000))?,
        drop: settings.one("drop", values::share)?,
        preset,
    };
    let replays = match settings.maybe("serve-replays", |text| {
        text.parse()
            .map_err(|_| "not an address such as 127.0.0.1:4000".to_owned())
    })? {
        Some(address) => match settings.maybe("replay-key", values::secret)? {
            Some(key) => Some((address, key)),
            None => return Err(Wrong("--serve-replays needs --replay-key".into())),
        },
        None => None,
    };
    Ok(Job {
        traffic,
        sender,
        replays,
        check: settings.on("check")?,
    })
}

/// `--secret`, or what the receiver would read.
fn secrets(settings: &Settings, preset: Preset) -> Result<Vec<String>, Wrong> {
    let given = settings.all("secret", values::secret)?;
    if !given.is_empty() {
        return Ok(given);
    }
    let name = preset.secrets_variable();
    match std::env::var(&name) {
        Ok(text) => values::secrets(&text).map_err(|why| Wrong(format!("{name}: {why}"))),
        Err(std::env::VarError::NotPresent) => {
            Err(Wrong(format!("--secret (or {name}) is needed")))
        }
        Err(std::env::VarError::NotUnicode(_)) => Err(Wrong(format!("{name}: not UTF-8"))),
    }
}

fn up_to(most: u32) -> impl Fn(&str) -> Result<usize, String> {
    let parse = values::up_to(most);
    move |text| parse(text).map(|number| number as usize)
}

/// Says how far it is: over and over on one line of a terminal, else a line every few seconds.
async fn watch(progress: Arc<Progress>, sendings: usize) {
    let terminal = std::io::stderr().is_terminal();
    let every = Duration::from_secs(if terminal { 1 } else { 5 });
    let began = Instant::now();
    let mut ticks = tokio::time::interval(every);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let line = format!(
            "{} s: {} of {sendings} sent, {} deliveries, {} waiting to retry",
            began.elapsed().as_secs(),
            progress.begun.load(Ordering::Relaxed),
            progress.deliveries.load(Ordering::Relaxed),
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

/// Takes the progress line away.
fn clear() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}
