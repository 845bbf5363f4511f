//! `tower-inbox check`.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use sqlx::Pool;
use tower_inbox::operator::Operator;
use tower_inbox::{Backend, BuildErrorKind};

use super::held::{self, Held};
use super::{SILENT, builder, count};
use crate::cli::Global;
use crate::failure::Failure;
use crate::show::{Shown, ago, duration, quoted, safe, took};
use crate::warnings;

/// Clocks that are so far apart keep everything from being forgotten (§7.1); half a minute is worth a look.
const APART: Duration = Duration::from_secs(300);
const ODD: Duration = Duration::from_secs(30);
/// What is due is tried within five minutes at worst (§5.14).
const DUE: f64 = 300.0;
/// As the alert `InboxOldestParked` has it.
const LONG: Duration = Duration::from_secs(600);

/// Looks for what is wrong: tables, settings of the database, clocks, receivers, streams that are held up, events that nobody
/// applies
///
/// Exit status 0 if everything is in order, 1 if there is a problem, 4 if the tables are not right. Notes are no problem: a gap
/// of the last five minutes, say, or dead letters that hold nothing up.
#[derive(clap::Args)]
pub(crate) struct Given {}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Ok,
    Note,
    Problem,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }
}

#[derive(Default)]
struct Findings(Vec<(Level, &'static str, String)>);

impl Findings {
    fn ok(&mut self, about: &'static str, text: impl Into<String>) {
        self.0.push((Level::Ok, about, text.into()));
    }

    fn note(&mut self, about: &'static str, text: impl Into<String>) {
        self.0.push((Level::Note, about, text.into()));
    }

    fn problem(&mut self, about: &'static str, text: impl Into<String>) {
        self.0.push((Level::Problem, about, text.into()));
    }

    fn are_bad(&self) -> bool {
        self.0.iter().any(|(level, ..)| *level == Level::Problem)
    }

    fn shown(&self) -> Shown {
        let mut text = String::new();
        for (level, about, what) in &self.0 {
            let _ = writeln!(text, "{:<8} {about:<10} {}", level.as_str(), safe(what));
        }
        let findings: Vec<_> = self
            .0
            .iter()
            .map(|(level, about, text)| {
                json!({"level": level.as_str(), "about": about, "text": text})
            })
            .collect();
        let number = |level| self.0.iter().filter(|found| found.0 == level).count() as u64;
        let notes = count(number(Level::Note), "note");
        let _ = match number(Level::Problem) {
            0 => writeln!(text, "in order; {notes}"),
            problems => writeln!(
                text,
                "not in order: {}; {notes}",
                count(problems, "problem")
            ),
        };
        Shown {
            json: json!({"ok": !self.are_bad(), "findings": findings}),
            text,
        }
    }
}

pub(crate) async fn run<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    _: &Given,
) -> Result<ExitCode, Failure> {
    let mut found = Findings::default();
    found.ok("database", format!("{} answers", DB::NAME));
    if !tables(&pool, global, &mut found).await? {
        found.shown().print(global.json);
        return Ok(ExitCode::from(4));
    }
    match builder(pool, global).build().await {
        Ok(inbox) => {
            let operator = inbox.operator("tower-inbox")?;
            settings(&mut found, None);
            clocks(&operator, &mut found).await?;
            let there = receivers(&operator, &mut found).await?;
            let waiting = stored(&operator, there, &mut found).await?;
            streams(&operator, &waiting, &mut found).await?;
            incidents(&operator, &mut found).await?;
        }
        Err(error) if error.kind() == BuildErrorKind::UnsafeSetting => {
            settings(&mut found, Some(error.to_string()));
        }
        Err(error) => return Err(error.into()),
    }
    found.shown().print(global.json);
    Ok(ExitCode::from(u8::from(found.are_bad())))
}

async fn tables<DB: Backend>(
    pool: &Pool<DB>,
    global: &Global,
    found: &mut Findings,
) -> Result<bool, Failure> {
    let schema = builder(pool.clone(), global).schema().await?;
    let missing: Vec<_> = schema
        .iter()
        .filter(|version| !version.applied)
        .map(|version| version.number.to_string())
        .collect();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        found.problem(
            "tables",
            format!("version {missing} is missing: tower-inbox migrate"),
        );
        return Ok(false);
    }
    let last = schema.last().map_or(0, |version| version.number);
    if schema.iter().any(|version| version.name.is_none()) {
        found.note("tables", format!("version {last}, newer than this command"));
    } else {
        found.ok("tables", format!("version {last}"));
    }
    Ok(true)
}

fn settings(found: &mut Findings, refused: Option<String>) {
    let warned = warnings::take();
    if warned.is_empty() && refused.is_none() {
        found.ok("settings", "of the database keep the contract");
    }
    for text in warned.into_iter().chain(refused) {
        found.problem("settings", text);
    }
}

async fn clocks<DB: Backend>(operator: &Operator<DB>, found: &mut Findings) -> Result<(), Failure> {
    let apart = operator.clocks().await?.apart();
    let text = format!(
        "of this machine and of the database are {} apart",
        duration(apart)
    );
    if apart >= APART {
        found.problem(
            "clocks",
            text + ": nothing is forgotten until they agree within 5 min",
        );
    } else if apart >= ODD {
        found.note("clocks", text);
    } else {
        found.ok("clocks", text);
    }
    Ok(())
}

/// Whether a receiver is there.
async fn receivers<DB: Backend>(
    operator: &Operator<DB>,
    found: &mut Findings,
) -> Result<bool, Failure> {
    let now = operator.clocks().await?.database;
    let Some(last) = operator.last_sign().await? else {
        // Whatever it has applied: its first sign comes some seconds after its start.
        found.note(
            "receivers",
            "none has given a sign of life yet: one does so within a minute of its start, and every half minute from then on",
        );
        return Ok(false);
    };
    let since = format!("one gave a sign of life {} ago", ago(last, now));
    let there = now.since(last) < SILENT;
    if there {
        found.ok("receivers", since);
    } else {
        found.problem(
            "receivers",
            format!("the last {since}: no source is mounted anywhere, or nothing gets through"),
        );
    }
    Ok(there)
}

async fn stored<DB: Backend>(
    operator: &Operator<DB>,
    there: bool,
    found: &mut Findings,
) -> Result<Vec<Waiting>, Failure> {
    let stats = operator.stats().await?;
    let now = operator.clocks().await?.process;
    let mut waiting = Vec::new();
    for source in &stats.sources {
        let name = &source.source;
        if let Some(oldest) = source.oldest_parked {
            waiting.push(Waiting {
                source: name.clone(),
                events: source.parked,
                oldest: now.since(oldest),
            });
        }
        if let Some(lag) = source.drain_lag.filter(|lag| *lag >= DUE) {
            let why = if there {
                "it is mounted in no process that runs, or its handler hangs"
            } else {
                "no receiver runs"
            };
            let lag = took(lag);
            found.problem(
                "due",
                format!("an event of {name} has been due for {lag}: {why}"),
            );
        }
        let dead: u64 = source.dead_letters.values().sum();
        if dead > 0 {
            found.note(
                "dead",
                format!(
                    "{} of {name}: tower-inbox dead list",
                    count(dead, "dead letter")
                ),
            );
        }
    }
    if !found.0.iter().any(|(_, about, _)| *about == "due") {
        found.ok("due", "nothing has been due for 5 min");
    }
    Ok(waiting)
}

/// What a source has parked.
struct Waiting {
    source: String,
    events: u64,
    oldest: Duration,
}

/// What nobody frees but a person, or the producer: it is no problem of a stream in which something has come early just now.
async fn streams<DB: Backend>(
    operator: &Operator<DB>,
    waiting: &[Waiting],
    found: &mut Findings,
) -> Result<(), Failure> {
    let all = held::look(operator).await?;
    for (source, held) in &all {
        let look = format!("tower-inbox streams --source {}", quoted(source));
        if let Some(what) = held.by_dead_letters.words() {
            let text = format!(
                "{what} of {source} held up by a dead letter: {look}, then dead show, and dead replay, dead discard or skip"
            );
            found.problem("dead", text);
        }
        if let Some(what) = held.by_gaps.words() {
            let text = format!(
                "{what} of {source} behind a sequence that has not come for 5 min: have it sent again, or skip it; {look}"
            );
            found.problem("gaps", text);
        }
        if let Some(what) = held.by_new_gaps.words() {
            let text = format!("{what} of {source} behind a sequence that has not come yet");
            found.note("gaps", text);
        }
        // Where nothing else is held up they are among what is parked, below.
        if held.is_held_up() {
            if let Some(what) = held.by_failures.words() {
                let text =
                    format!("{what} of {source} behind an event that fails, for 10 min: {look}");
                found.problem("failing", text);
            }
            if let Some(what) = held.by_new_failures.words() {
                let text = format!(
                    "{what} of {source} behind an event that fails: tried again by itself; {look}"
                );
                found.note("failing", text);
            }
        }
    }
    // In a stream that nothing holds up, or in none: it fails, or is due.
    for Waiting {
        source,
        events,
        oldest,
    } in waiting
    {
        if all.get(source).is_some_and(Held::is_held_up) {
            continue;
        }
        let what = count(*events, "event");
        let text = format!(
            "{what} of {source} parked, the oldest for {}",
            duration(*oldest)
        );
        if *oldest >= LONG {
            let look = quoted(source);
            found.problem(
                "parked",
                format!(
                    "{text}: a handler fails or puts them off, or nobody drains; tower-inbox events list --parked --source {look}"
                ),
            );
        } else {
            let text = format!(
                "{text}: tried again by itself; tower-inbox events list --parked --source {}",
                quoted(source)
            );
            found.note("parked", text);
        }
    }
    if !all.values().any(Held::is_held_up) {
        found.ok("streams", "none is held up by a gap or a dead letter");
    }
    Ok(())
}

async fn incidents<DB: Backend>(
    operator: &Operator<DB>,
    found: &mut Findings,
) -> Result<(), Failure> {
    let incidents = operator.incidents().await?;
    if let Some(last) = incidents.last() {
        let (times, now) = (
            count(incidents.len() as u64, "time"),
            operator.clocks().await?.database,
        );
        found.note(
            "copies",
            format!(
                "the database was another one than before {times}, {} ago at last: tower-inbox reconcile status",
                ago(last.found_at, now)
            ),
        );
    }
    Ok(())
}
