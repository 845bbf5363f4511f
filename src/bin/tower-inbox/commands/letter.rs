//! Stored events, as JSON and as rows.

use http::Request;
use serde_json::{Value, json};
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::{Filter, Letter, Reason, State, Unreadable};

use crate::failure::Failure;
use crate::show::{Column, Table, ago, instant, rfc3339};

/// Which stored events.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Which events")]
pub(crate) struct FilterArgs {
    /// Of this source
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Of this event type
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Of this correlation id
    #[arg(long, value_name = "ID")]
    correlation_id: Option<String>,
    /// Dead for this reason: gap, handler, rejected, crash, skipped, before_start; or fenced. May be repeated. `dead discard`
    /// takes parked, too
    #[arg(long = "dead-reason", value_name = "REASON", value_parser = Kind::parse)]
    kinds: Vec<Kind>,
    /// Parked, or dead, since: RFC 3339, or how long ago, such as 2h
    #[arg(long, value_name = "TIME", value_parser = instant)]
    since: Option<Timestamp>,
    /// Parked, or dead, until then
    #[arg(long, value_name = "TIME", value_parser = instant)]
    until: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Dead(Reason),
    Parked,
}

const REASONS: [Reason; 7] = [
    Reason::Gap,
    Reason::Handler,
    Reason::Rejected,
    Reason::Crash,
    Reason::Skipped,
    Reason::BeforeStart,
    Reason::Fenced,
];

impl Kind {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "parked" {
            return Ok(Self::Parked);
        }
        let reason = REASONS.into_iter().find(|reason| reason.as_str() == text);
        reason.map(Self::Dead).ok_or_else(|| {
            let names: Vec<_> = REASONS.iter().map(|reason| reason.as_str()).collect();
            format!("there are {}, parked", names.join(", "))
        })
    }
}

impl FilterArgs {
    pub(crate) fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// What is parked waits, and is in a list of its own.
    pub(crate) fn is_of_dead_letters(&self) -> Result<(), Failure> {
        match self.kinds.iter().any(|kind| matches!(kind, Kind::Parked)) {
            false => Ok(()),
            true => Err(Failure::usage(
                "a parked event is no dead letter: tower-inbox events list --parked",
            )),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.source.is_none()
            && self.event_type.is_none()
            && self.correlation_id.is_none()
            && self.kinds.is_empty()
            && self.since.is_none()
            && self.until.is_none()
    }

    pub(crate) fn filter(&self) -> Filter {
        let mut filter = Filter::new();
        if let Some(source) = &self.source {
            filter = filter.source(source);
        }
        if let Some(kind) = &self.event_type {
            filter = filter.event_type(kind);
        }
        if let Some(id) = &self.correlation_id {
            filter = filter.correlation_id(id);
        }
        if let Some(at) = self.since {
            filter = filter.since(at);
        }
        if let Some(at) = self.until {
            filter = filter.until(at);
        }
        self.kinds.iter().fold(filter, |filter, kind| match kind {
            Kind::Dead(reason) => filter.reason(*reason),
            Kind::Parked => filter.parked(),
        })
    }

    /// Replaying goes for these where no reason is asked for.
    pub(crate) fn replayable(&self) -> Filter {
        let turns = [
            Reason::Gap,
            Reason::Handler,
            Reason::Rejected,
            Reason::Crash,
        ];
        if !self.kinds.is_empty() {
            return self.filter();
        }
        turns.into_iter().fold(self.filter(), Filter::reason)
    }
}

/// The contract's word for a state.
pub(crate) fn state(letter: &Letter) -> String {
    let word = match letter.state {
        State::Applied => "applied",
        State::Parked => "parked",
        State::Dead => "dead",
        State::Fenced => "fenced",
        State::Superseded => "superseded",
        State::Discarded => "discarded",
        _ => "unknown",
    };
    word.to_owned()
}

/// Why it is dead, or its state.
pub(crate) fn kind(letter: &Letter) -> String {
    let reason = letter.reason;
    reason.map_or_else(|| state(letter), |reason| reason.as_str().to_owned())
}

pub(crate) fn json(letter: &Letter) -> Value {
    json!({
        "source": letter.source,
        "event_id": letter.event_id,
        "state": state(letter),
        "reason": letter.reason.map(Reason::as_str),
        "event_type": letter.event_type,
        "correlation_id": letter.correlation_id,
        "sequence": letter.sequence,
        "generation": letter.generation,
        "yielded_to": letter.yielded_to,
        "received_at": rfc3339(letter.received_at),
        "decided_at": rfc3339(letter.decided_at),
        "tried_at": letter.tried_at.map(rfc3339),
        "attempts": letter.attempts,
        "not_before": letter.not_before.map(rfc3339),
        "last_status": letter.last_status,
        "last_error": letter.last_error,
        "body_bytes": letter.body_bytes,
        "out_of_order": letter.out_of_order,
    })
}

pub(crate) fn any_json(letter: &Result<Letter, Unreadable>) -> Value {
    match letter {
        Ok(letter) => json(letter),
        Err(unreadable) => unreadable_json(unreadable),
    }
}

fn unreadable_json(unreadable: &Unreadable) -> Value {
    let key = unreadable.key.as_ref();
    json!({
        "source": key.map(|key| &key.source),
        "event_id": key.map(|key| &key.event_id),
        "unreadable": unreadable.why,
    })
}

/// Rows of stored events: of dead letters, or of what waits.
pub(crate) struct Letters {
    table: Table,
    wait: bool,
}

impl Letters {
    pub(crate) fn dead() -> Self {
        Self::with(Column::new("REASON"), false)
    }

    pub(crate) fn waiting() -> Self {
        Self::with(Column::new("NEXT TRY"), true)
    }

    fn with(third: Column, wait: bool) -> Self {
        let table = Table::new(&[
            Column::text("SOURCE"),
            Column::text("EVENT"),
            third,
            Column::text("CORRELATION"),
            Column::number("SEQ"),
            Column::number("SINCE"),
            Column::number("TRIES"),
            Column::number("STATUS").optional(),
            Column::text("TYPE").optional(),
            Column::text("LAST ERROR").optional(),
        ]);
        Self { table, wait }
    }

    pub(crate) fn add(&mut self, letter: &Result<Letter, Unreadable>, now: Timestamp) {
        match letter {
            Ok(letter) => self.table.row([
                letter.source.clone(),
                letter.event_id.clone(),
                match self.wait {
                    true => next_try(letter, now),
                    false => kind(letter),
                },
                letter.correlation_id.clone().unwrap_or_default(),
                number(letter.sequence),
                ago(letter.decided_at, now),
                letter.attempts.to_string(),
                number(letter.last_status),
                letter.event_type.clone().unwrap_or_default(),
                letter.last_error.clone().unwrap_or_default(),
            ]),
            Err(unreadable) => {
                let key = unreadable.key.as_ref();
                self.table.row([
                    key.map_or("?", |key| &key.source).to_owned(),
                    key.map_or("?", |key| &key.event_id).to_owned(),
                    "unreadable".into(),
                    String::new(),
                    String::new(),
                    String::new(),
                    String::new(),
                    String::new(),
                    String::new(),
                    unreadable.why.clone(),
                ]);
            }
        }
    }

    pub(crate) fn render(&self) -> String {
        self.table.render(crate::show::width())
    }
}

/// When a worker tries it next, or what it waits for.
fn next_try(letter: &Letter, now: Timestamp) -> String {
    match letter.not_before.filter(|at| *at > now) {
        _ if letter.state != State::Parked => String::new(),
        Some(at) => format!("in {}", ago(now, at)),
        None if letter.sequence.is_none() || letter.out_of_order => "due".into(),
        None => "in its turn".into(),
    }
}

/// Nothing, where there is none.
pub(crate) fn number(number: Option<impl ToString>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

/// The headers of a stored request; those that sign or authorise were never stored.
pub(crate) fn headers<B>(request: &Request<B>) -> Vec<(String, String)> {
    let headers = request.headers().iter();
    headers
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes());
            (name.to_string(), value.into_owned())
        })
        .collect()
}
