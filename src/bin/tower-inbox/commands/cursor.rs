//! `tower-inbox cursor`.

use std::process::ExitCode;

use serde_json::json;
use sqlx::Pool;
use tower_inbox::Backend;
use tower_inbox::operator::{Operator, Seen};

use super::ahead::{self, REHEARSED};
use super::skip::{OnStream, Would, moved_shown, sequence, stands, stored, stored_text, then};
use super::stream::{self, info_json, seen};
use super::{First, Office, known};
use crate::cli::{Global, Why};
use crate::confirm::Confirmation;
use crate::failure::Failure;
use crate::show::{Shown, safe};

/// Where a stream stands, and setting it somewhere else
#[derive(clap::Args)]
pub(crate) struct Given {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Where a stream stands
    Show {
        #[command(flatten)]
        stream: StreamArgs,
    },
    /// Moves a stream on: all below that is not applied is never waited for
    FastForward(Move),
    /// Begins a stream again, as after a producer's restart from scratch: its sequences from there on are others than before
    ///
    /// What is parked or dead becomes dead letters `skipped`. Known event ids stay known.
    Reset(Move),
}

#[derive(clap::Args)]
struct StreamArgs {
    /// The name of the source
    source: String,
    /// The stream's correlation id
    correlation_id: String,
}

#[derive(clap::Args)]
struct Move {
    #[command(flatten)]
    stream: StreamArgs,
    /// The sequence that it waits for from then on
    #[arg(long, value_name = "SEQUENCE", value_parser = sequence)]
    to: i64,
    #[command(flatten)]
    on: OnStream,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    confirmation: Confirmation,
}

impl Move {
    fn check(&self, global: &Global, first: Result<(), Failure>) -> Result<(), Failure> {
        let dry_run = self.confirmation.dry_run;
        Failure::all_of([
            first,
            self.why.check(global, dry_run),
            self.confirmation.can_be_given(),
        ])
    }

    /// A source that begins at 1 answers a 0 with 400: its stream would wait for ever.
    fn takes_its_first(&self) -> Result<(), Failure> {
        match (self.to, self.on.first_sequence) {
            (0, None | Some(First::One)) => Err(Failure::usage(
                "only a source whose streams begin at 0, or where they stand, takes a sequence 0: if this one does, say so, by \
                 --first-sequence 0 or adopt",
            )),
            _ => Ok(()),
        }
    }
}

impl Given {
    pub(crate) fn check(&self, global: &Global) -> Result<(), Failure> {
        match &self.command {
            Command::Show { .. } => Ok(()),
            Command::FastForward(given) => given.check(global, Ok(())),
            Command::Reset(given) => given.check(global, given.takes_its_first()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    FastForward,
    Reset,
}

pub(crate) async fn run<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: Given,
) -> Result<ExitCode, Failure> {
    match given.command {
        Command::Show { stream } => {
            let office = Office::open(pool, global).await?;
            show(&office.operator, global, &stream).await?;
            office.close().await;
        }
        Command::FastForward(given) => {
            return move_to(pool, global, &given, Verb::FastForward).await;
        }
        Command::Reset(given) => return move_to(pool, global, &given, Verb::Reset).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn show<DB: Backend>(
    operator: &Operator<DB>,
    global: &Global,
    stream: &StreamArgs,
) -> Result<(), Failure> {
    let (source, id) = (&stream.source, &stream.correlation_id);
    let info = operator.cursor(source, id).await?;
    let info = known::stream(operator, info, source, id).await?;
    let mut json = info_json(&info);
    json["source"] = source.as_str().into();
    json["correlation_id"] = id.as_str().into();
    let text = format!(
        "{} of {} {}\n",
        safe(id),
        safe(source),
        stream::stands(&info)
    );
    Shown { json, text }.print(global.json);
    Ok(())
}

async fn move_to<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: &Move,
    verb: Verb,
) -> Result<ExitCode, Failure> {
    let (source, id) = (
        given.stream.source.as_str(),
        given.stream.correlation_id.as_str(),
    );
    if !given.confirmation.dry_run {
        given.why.given()?;
    }
    let dry_run = given.confirmation.dry_run;
    let office = Office::to_act(pool, global, dry_run, given.on.sources(source)).await?;
    let operator = &office.operator;
    let seen = seen(operator, source, id, given.on.seen, given.on.begins()).await?;
    let ends = match verb {
        Verb::FastForward => (seen.next.max(0), given.to.saturating_sub(1)),
        Verb::Reset => (0, i64::MAX),
    };
    let stored = stored(operator, source, id, ends).await?;
    let ahead = match verb {
        Verb::FastForward if ends.0 <= ends.1 => {
            ahead::of_a_skip(operator, source, id, ends).await?
        }
        _ => None,
    };
    let what = question(&given.stream, verb, given.to, seen, stored) + &then(ahead.as_ref());
    if dry_run {
        let rehearsal = operator.rehearsal();
        let moved = match verb {
            Verb::FastForward => {
                rehearsal
                    .fast_forward(source, id, given.to, seen, REHEARSED)
                    .await
            }
            Verb::Reset => rehearsal.reset(source, id, given.to, seen, REHEARSED).await,
        };
        let (moved, objection) = ahead::would(moved)?;
        let would = Would {
            what,
            json: json!({"to": given.to, "stored": stored}),
            seen,
            ahead: ahead.map(|(_, ahead)| ahead),
            moved,
            objection,
        };
        return Ok(would.shown(global));
    }
    given.confirmation.ask(&what)?;
    let reason = given.why.given()?;
    let (moved, done) = match verb {
        Verb::FastForward => (
            operator
                .fast_forward(source, id, given.to, seen, reason)
                .await?,
            "moved on",
        ),
        Verb::Reset => (
            operator.reset(source, id, given.to, seen, reason).await?,
            "begun again",
        ),
    };
    moved_shown(&moved, done).print(global.json);
    office.close().await;
    Ok(ExitCode::SUCCESS)
}

fn question(stream: &StreamArgs, verb: Verb, to: i64, seen: Seen, stored: u64) -> String {
    let (id, source) = (safe(&stream.correlation_id), safe(&stream.source));
    let (stands, stored) = (stands(seen), stored_text(stored));
    match verb {
        Verb::FastForward => format!(
            "{id} of {source} {stands}: it is to go on at {to}, {stored} below that to be set aside"
        ),
        Verb::Reset => format!(
            "{id} of {source} {stands}: it is to begin again at {to} in generation {}, {stored} to be set aside\n\
             then nothing is due: it waits for {to}, sent under a new event id",
            seen.generation + 1
        ),
    }
}
