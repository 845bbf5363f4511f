//! `tower-inbox skip`.

use std::ops::RangeInclusive;
use std::process::ExitCode;

use serde_json::{Value, json};
use sqlx::Pool;
use tower_inbox::Backend;
use tower_inbox::operator::{Ahead, Moved, Operator, Reason, Seen, StreamEvent};

use super::ahead::{self, REHEARSED};
use super::stream::{parse_seen, seen, seen_json};
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
    let ends @ (first, last) = (*given.sequences.start(), *given.sequences.end());
    let stored = stored(operator, source, id, ends).await?;
    let ahead = ahead::of_a_skip(operator, source, id, ends).await?;
    let what = format!(
        "{} of {} {}: {} to be skipped, {} stored there{}",
        safe(id),
        safe(source),
        stands(seen),
        if first == last {
            format!("sequence {first} is")
        } else {
            format!("sequences {first} to {last} are")
        },
        stored_text(stored),
        then(ahead.as_ref()),
    );
    let sequences = given.sequences.clone();
    if dry_run {
        let moved = operator
            .rehearsal()
            .skip_range(source, id, sequences, seen, REHEARSED)
            .await;
        let (moved, objection) = ahead::would(moved)?;
        let json = json!({"first": first, "last": last, "stored": stored});
        let would = Would {
            what,
            json,
            seen,
            ahead: ahead.map(|(_, ahead)| ahead),
            moved,
            objection,
        };
        return Ok(would.shown(global));
    }
    given.confirmation.ask(&what)?;
    let reason = given.why.given()?;
    let moved = operator
        .skip_range(source, id, sequences, seen, reason)
        .await?;
    moved_shown(&moved, "skipped").print(global.json);
    office.close().await;
    Ok(ExitCode::SUCCESS)
}

/// `waits for 7`, and in which generation if that is not the first.
pub(super) fn stands(seen: Seen) -> String {
    let Seen { next, generation } = seen;
    match (next, generation) {
        (..0, _) => "has not begun".into(),
        (_, 0) => format!("waits for sequence {next}"),
        _ => format!("waits for sequence {next} in generation {generation}"),
    }
}

/// A line about what comes of it.
pub(super) fn then(ahead: Option<&(i64, Ahead)>) -> String {
    ahead.map_or_else(String::new, |(stands, ahead)| {
        format!("\n{}", ahead::words(*stands, ahead))
    })
}

/// What a rehearsal came to.
pub(super) struct Would {
    pub(super) what: String,
    pub(super) json: Value,
    pub(super) seen: Seen,
    pub(super) ahead: Option<Ahead>,
    pub(super) moved: Option<Moved>,
    pub(super) objection: Option<String>,
}

impl Would {
    /// What would be done, or why not. Status 1 where it would be refused.
    pub(super) fn shown(mut self, global: &Global) -> ExitCode {
        let refused = self.objection.is_some();
        let changes = self.moved.as_ref().is_some_and(|moved| moved.changed);
        let text = match (&self.objection, &self.moved) {
            (Some(why), _) => format!("refused: {why}\n"),
            (None, Some(moved)) if !moved.changed => {
                format!("{}\n", so_already(moved, "would be"))
            }
            (None, _) => format!("{}\n", self.what),
        };
        self.json["dry_run"] = true.into();
        self.json["seen"] = seen_json(self.seen);
        self.json["changed"] = changes.into();
        self.json["objection"] = self.objection.into();
        self.json["then"] = match self.ahead.filter(|_| changes) {
            Some(ahead) => ahead::json(&ahead),
            None => Value::Null,
        };
        let shown = Shown {
            json: self.json,
            text,
        };
        shown.print(global.json);
        ExitCode::from(u8::from(refused))
    }
}

/// How many [`stored`] has counted.
pub(super) fn stored_text(stored: u64) -> String {
    match stored {
        0 => "nothing".into(),
        COUNTED.. => format!("{stored} events or more"),
        _ => count(stored, "event"),
    }
}

/// Events that are stored in these places and would be set aside, the first thousand of them.
pub(super) async fn stored<DB: Backend>(
    operator: &Operator<DB>,
    source: &str,
    correlation_id: &str,
    (first, last): (i64, i64),
) -> Result<u64, Failure> {
    let view = operator
        .stream(source, correlation_id, Some(first), COUNTED as usize)
        .await?;
    let events = view.map(|view| view.events).unwrap_or_default();
    let is_aside =
        |event: &StreamEvent| matches!(event.reason, Some(Reason::Skipped | Reason::BeforeStart));
    let there = events
        .iter()
        .filter(|event| event.sequence <= last && !is_aside(event));
    Ok(there.count() as u64)
}

/// Nothing is done, or would be.
fn so_already(moved: &Moved, is: &str) -> String {
    let stands = stands(moved.cursor);
    format!("so already: nothing {is} done, and the stream {stands}")
}

pub(super) fn moved_shown(moved: &Moved, done: &str) -> Shown {
    let text = if moved.changed {
        format!("{done}; the stream {}\n", stands(moved.cursor))
    } else {
        format!("{}\n", so_already(moved, "was"))
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
