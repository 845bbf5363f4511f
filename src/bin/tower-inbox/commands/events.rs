//! `tower-inbox events`: one of them, or what waits.

use std::fmt::Write as _;
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use sqlx::Pool;
use tower_inbox::Backend;
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::{AuditEntry, AuditFilter, Reason, State, Story};

use super::act::{Act, Among, Verb};
use super::dead::Many;
use super::{First, Office, audit, known, letter, outlook, stream, waiting};
use crate::cli::{Global, Why};
use crate::failure::Failure;
use crate::show::{self, Shown, ago, duration, moment, safe, safe_lines};

/// Lines of the audit table about one event.
const AUDITED: usize = 100;

/// Events: what is known of one, what is parked, and having it tried
#[derive(clap::Args)]
pub(crate) struct Given {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Show(Show),
    List(waiting::List),
    TryNow(TryNow),
}

/// Has a parked event tried as soon as its turn is there, without waiting for the time of its next attempt
///
/// For what waits for its backoff, or was put off by its handler. Attempts stay counted. It is no attempt before its turn: what
/// waits for a lower sequence goes on waiting. One, by source and event id; or all that match and wait for such a time.
#[derive(clap::Args)]
struct TryNow {
    /// One: the name of its source
    #[arg(value_name = "SOURCE", requires = "event_id", conflicts_with_all = ["all", "Which"])]
    source_name: Option<String>,
    /// The producer's own id of it
    event_id: Option<String>,
    /// Every one of every source
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    which: waiting::Which,
    #[command(flatten)]
    many: Many,
}

impl TryNow {
    fn one(&self) -> Option<(&String, &String)> {
        Some((self.source_name.as_ref()?, self.event_id.as_ref()?))
    }

    fn check(&self, global: &Global) -> Result<(), Failure> {
        let one = self.one().is_some();
        let named = match one || self.all || !self.which.is_empty() {
            true => Ok(()),
            false => Err(Failure::usage(
                "which ones: name a source and an event id, or say by options which ones, or --all",
            )),
        };
        let confirmed = match one {
            true => Ok(()),
            false => self.many.confirmation.can_be_given(),
        };
        let why = &self.many.why;
        Failure::all_of([
            named,
            why.check(global, self.many.confirmation.dry_run),
            confirmed,
        ])
    }
}

/// The whole story of one event, in whatever state it is
#[derive(clap::Args)]
pub(crate) struct Show {
    /// The name of its source
    source: String,
    /// The producer's own id of it
    event_id: String,
    /// The headers of the stored request, too
    #[arg(long)]
    headers: bool,
    /// The stored body, too: that it was read, by whom and why, goes into the audit table (--reason)
    #[arg(long)]
    body: bool,
    #[command(flatten)]
    why: Why,
}

pub(crate) async fn run<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: Given,
) -> Result<ExitCode, Failure> {
    match given.command {
        Command::Show(given) => show(pool, global, &given).await,
        Command::List(given) => waiting::list(pool, global, &given).await,
        Command::TryNow(given) => {
            let act = Act {
                verb: Verb::TryNow,
                among: match given.one() {
                    Some((source, id)) => Among::One(source.clone(), id.clone()),
                    None => Among::Waiting(given.which.waiting()),
                },
                source: given.which.source(),
                out_of_order: false,
                wait: None,
                first: First::Adopt,
                many: &given.many,
            };
            act.run(pool, global).await
        }
    }
}

impl Given {
    pub(crate) fn check(&self, global: &Global) -> Result<(), Failure> {
        match &self.command {
            Command::Show(_) | Command::List(_) => Ok(()),
            Command::TryNow(given) => given.check(global),
        }
    }
}

pub(crate) async fn show<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: &Show,
) -> Result<ExitCode, Failure> {
    let office = if given.body {
        given.why.given()?;
        Office::of_actor(pool, global, Vec::new()).await?
    } else {
        Office::open(pool, global).await?
    };
    let (source, event_id) = (&given.source, &given.event_id);
    let story = office.operator.inspect(source, event_id).await?;
    let story = known::event(&office.operator, story, source, event_id).await?;
    let body = if given.body {
        let reason = given.why.given()?;
        office.operator.body(source, event_id, reason).await?
    } else {
        None
    };
    let filter = AuditFilter::new().event(source, event_id);
    let audited = office.operator.audit(&filter, None, AUDITED).await?;
    let shown = Shown {
        json: as_json(&story, &audited.entries, given, body.as_ref()),
        text: as_text(&story, &audited.entries, given, body.as_ref()),
    };
    shown.print(global.json);
    office.close().await;
    Ok(ExitCode::SUCCESS)
}

fn as_json(story: &Story, audited: &[AuditEntry], given: &Show, body: Option<&Bytes>) -> Value {
    let mut value = letter::json(&story.letter);
    let headers = |request| {
        let pairs = letter::headers(request).into_iter();
        pairs
            .map(|(name, value)| json!([name, value]))
            .collect::<Value>()
    };
    value["request"] = match &story.request {
        None => Value::Null,
        Some(request) => json!({
            "method": request.method().as_str(),
            "uri": request.uri().to_string(),
            "headers": given.headers.then(|| headers(request)),
        }),
    };
    if let Some(body) = body {
        let (name, text) = match std::str::from_utf8(body) {
            Ok(text) => ("body", text.to_owned()),
            Err(_) => ("body_base64", STANDARD.encode(body)),
        };
        value["request"][name] = text.into();
    }
    value["stream"] = story.stream.as_ref().map_or(Value::Null, stream::info_json);
    let neighbours = story.neighbours.iter().map(|near| {
        json!({
            "event_id": near.event_id,
            "sequence": near.sequence,
            "reason": near.reason.map(Reason::as_str),
        })
    });
    value["neighbours"] = neighbours.collect();
    value["audit"] = audited.iter().map(audit::json).collect();
    value
}

/// When it is tried, or what must happen first.
fn next_attempt(story: &Story, now: Timestamp) -> Option<String> {
    let letter = &story.letter;
    Some(match (letter.state, letter.reason) {
        (State::Parked, _) => match (
            letter.not_before.filter(|at| *at > now),
            outlook::waits_for(story),
        ) {
            (Some(at), _) => format!(
                "{}, in {}: events try-now does not wait",
                moment(at),
                duration(at.since(now))
            ),
            (None, Some(next)) if next >= 0 => format!("when its turn is there, behind {next}"),
            (None, Some(_)) => "when its stream has begun".into(),
            (None, None) => "as soon as a receiver takes it up".into(),
        },
        (State::Dead, Some(Reason::Gap)) => "when the gap before it is filled or skipped".into(),
        (State::Dead, _) => "none: dead replay, or dead discard".into(),
        _ => return None,
    })
}

fn as_text(story: &Story, audited: &[AuditEntry], given: &Show, body: Option<&Bytes>) -> String {
    let (letter, now) = (&story.letter, Timestamp::now());
    let mut out = String::new();
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "{name:<14}{}", safe(text));
    };
    let at = |at: Timestamp| format!("{}, {} ago", moment(at), ago(at, now));
    line("source", &letter.source);
    line("event", &letter.event_id);
    let reason = letter.reason.map(|reason| format!(": {}", reason.as_str()));
    line(
        "state",
        &(letter::state(letter) + &reason.unwrap_or_default()),
    );
    if let Some(kind) = &letter.event_type {
        line("type", kind);
    }
    if let Some(id) = &letter.correlation_id {
        line("correlation", id);
    }
    if let Some(sequence) = letter.sequence {
        let generation = letter.generation;
        line(
            "sequence",
            &format!("{sequence} in generation {generation}"),
        );
    }
    if let Some(stream) = &story.stream {
        line("stream", &stream::stands(stream));
    }
    if let Some(other) = &letter.yielded_to {
        line("place taken by", other);
    }
    line("received", &at(letter.received_at));
    line("decided", &at(letter.decided_at));
    if let Some(tried) = letter.tried_at {
        line("last tried", &at(tried));
    }
    if letter.attempts > 0 || letter.last_error.is_some() || letter.state == State::Parked {
        let status = letter
            .last_status
            .map(|status| format!(", last status {status}"));
        let tries = format!("{} so far{}", letter.attempts, status.unwrap_or_default());
        line("attempts", &tries);
    }
    if let Some(next) = next_attempt(story, now) {
        line("next attempt", &next);
    }
    if let Some(error) = &letter.last_error {
        line("last error", error);
    }
    if letter.out_of_order {
        line("", "to be applied out of its order");
    }
    match (&story.request, letter.body_bytes) {
        (Some(request), bytes) => {
            let bytes = bytes.map_or("its body is not kept".into(), |n| format!("{n} bytes"));
            line(
                "request",
                &format!("{} {}, {bytes}", request.method(), request.uri()),
            );
            if given.headers {
                for (name, value) in letter::headers(request) {
                    line("", &format!("{name}: {value}"));
                }
            }
        }
        (None, _) => line("request", "none is kept"),
    }
    for near in &story.neighbours {
        let what = near.reason.map_or("parked", Reason::as_str);
        line(
            "near",
            &format!("{} {} ({what})", near.sequence, near.event_id),
        );
    }
    for entry in audited {
        line("audit", &audit::sentence(entry));
    }
    match body {
        Some(body) => {
            let _ = writeln!(out, "\n{}", safe_lines(&String::from_utf8_lossy(body)));
        }
        None if given.body => show::say("no body is kept of it"),
        None => {}
    }
    out
}
