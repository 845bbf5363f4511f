//! `tower-inbox skip`.

use std::ops::RangeInclusive;
use std::process::ExitCode;

use serde_json::{Value, json};
use sqlx::Pool;
use tower_inbox::Backend;
use tower_inbox::operator::{Moved, Seen};

use super::stream::{objection, parse_seen, seen, seen_json};
use super::{First, Office, count};
use crate::cli::{Global, Why};
use crate::confirm::Confirmation;
use crate::failure::Failure;
use crate::show::{Shown, safe};

/// Stored events are counted up to here.
const COUNTED: u64 = 1_000;

/// Decides that a sequence is never waited for, so that its stream goes on without it
///
/// What is stored in its place becomes a dead letter `skipped`, and what comes for it later is set aside as one. It is done
/// only if the stream still stands where it was seen: just before, or --seen.
#[derive(clap::Args)]
pub(crate) struct Given {
    /// The name of the source
    source: String,
    /// The stream's correlation id
    correlation_id: String,
    /// The sequence, or FIRST..LAST, both included
    #[arg(value_parser = sequences)]
    sequences: RangeInclusive<i64>,
    #[command(flatten)]
    on: OnStream,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    confirmation: Confirmation,
}

/// What every action on a stream has.
#[derive(clap::Args)]
pub(super) struct OnStream {
    /// Only if the stream still waits for this sequence (in generation 0, or NEXT@GENERATION)
    #[arg(long, value_name = "NEXT", value_parser = parse_seen, allow_hyphen_values = true)]
    pub(super) seen: Option<Seen>,
    /// Where the source's streams begin, for one of which nothing was applied or parked yet
    #[arg(long, value_enum)]
    pub(super) first_sequence: Option<First>,
}

impl OnStream {
    /// The first sequence, if it is said.
    pub(super) fn begins(&self) -> Option<i64> {
        match self.first_sequence? {
            First::Zero => Some(0),
            First::One => Some(1),
            First::Adopt => None,
        }
    }

    pub(super) fn sources(&self, name: &str) -> Vec<tower_inbox::Source> {
        self.first_sequence
            .map(|first| first.of(name))
            .into_iter()
            .collect()
    }
}

pub(super) fn sequence(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(number) if (0..i64::MAX).contains(&number) => Ok(number),
        _ => Err("an integer from 0 to 2^63-2".into()),
    }
}

fn sequences(text: &str) -> Result<RangeInclusive<i64>, String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let (first, last) = (sequence(first)?, sequence(last)?);
    if last < first {
        return Err("the lower sequence first".into());
    }
    Ok(first..=last)
}

impl Given {
    pub(crate) fn check(&self, global: &Global) -> Result<(), Failure> {
        let dry_run = self.confirmation.dry_run;
        Failure::all_of([
            self.why.check(global, dry_run),
            self.confirmation.can_be_given(),
        ])
    }
}

pub(crate) async fn run<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: &Given,
) -> Result<ExitCode, Failure> {
    let (source, id) = (given.source.as_str(), given.correlation_id.as_str());
    let dry_run = given.confirmation.dry_run;
    let office = Office::to_act(pool, global, dry_run, given.on.sources(source)).await?;
    let operator = &office.operator;
    let seen = seen(operator, source, id, given.on.seen, given.on.begins()).await?;
    let (first, last) = (*given.sequences.start(), *given.sequences.end());
    let stored = stored(operator, source, id, first, last).await?;
    let what = format!(
        "{} of {} waits for {seen}: {} to be skipped, {} stored there",
        safe(id),
        safe(source),
        if first == last {
            format!("sequence {first} is")
        } else {
            format!("sequences {first} to {last} are")
        },
        stored_text(stored),
    );
    if dry_run {
        let info = operator.cursor(source, id).await?;
        let objection = objection(info.as_ref(), seen, Some(first));
        let mut json = json!({"dry_run": true, "seen": seen_json(seen), "first": first, "last": last, "stored": stored});
        json["objection"] = objection.as_deref().into();
        return Ok(would(what, json, objection, global));
    }
    given.confirmation.ask(&what)?;
    let reason = given.why.given()?;
    let sequences = given.sequences.clone();
    let moved = operator
        .skip_range(source, id, sequences, seen, reason)
        .await?;
    moved_shown(&moved, "skipped").print(global.json);
    office.close().await;
    Ok(ExitCode::SUCCESS)
}

/// Shows what would be done, and what speaks against it.
pub(super) fn would(
    what: String,
    json: Value,
    objection: Option<String>,
    global: &Global,
) -> ExitCode {
    let refused = objection.is_some();
    let text = match objection {
        Some(objection) => format!("{what}\n{objection}\n"),
        None => format!("{what}\n"),
    };
    Shown { json, text }.print(global.json);
    ExitCode::from(u8::from(refused))
}

/// How many [`stored`] has counted.
pub(super) fn stored_text(stored: u64) -> String {
    if stored < COUNTED {
        count(stored, "event")
    } else {
        format!("{stored} events or more")
    }
}

/// Events that are stored in these places, the first thousand of them.
pub(super) async fn stored<DB: Backend>(
    operator: &tower_inbox::Operator<DB>,
    source: &str,
    correlation_id: &str,
    first: i64,
    last: i64,
) -> Result<u64, Failure> {
    let view = operator
        .stream(source, correlation_id, Some(first), COUNTED as usize)
        .await?;
    let events = view.map(|view| view.events).unwrap_or_default();
    let there = events.iter().filter(|event| event.sequence <= last);
    Ok(there.count() as u64)
}

pub(super) fn moved_shown(moved: &Moved, done: &str) -> Shown {
    let text = if moved.changed {
        format!("{done}; the stream waits for {}\n", moved.cursor)
    } else {
        format!("so already; the stream waits for {}\n", moved.cursor)
    };
    Shown {
        json: json!({"changed": moved.changed, "cursor": seen_json(moved.cursor)}),
        text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sequence_or_several() {
        assert_eq!(sequences("7"), Ok(7..=7));
        assert_eq!(sequences("7..9"), Ok(7..=9));
        for wrong in [
            "",
            "-1",
            "9..7",
            "7..",
            "..7",
            "7...9",
            "9223372036854775807",
            "1.5",
        ] {
            assert!(sequences(wrong).is_err(), "{wrong}");
        }
    }
}
