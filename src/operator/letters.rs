//! Looking at stored events.

use std::fmt;

use bytes::Bytes;
use http::Request;

use super::{MOST, Operator, Rows, StreamInfo, info};
use crate::clock::Timestamp;
use crate::error::OperatorError;
use crate::request;
use crate::store::{
    AT_ONCE, Backend, FoundLetter, Key, Lease, LetterFilter, LetterRow, Place, Reason, State,
    Stream,
};

/// Stored events around one, on either side of it.
const NEIGHBOURS: i64 = 10;

/// Which stored events. Without anything: every dead letter of every source.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Filter {
    source: Option<String>,
    event_type: Option<String>,
    correlation_id: Option<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    reasons: Vec<Option<Reason>>,
}

impl Filter {
    /// Every dead letter.
    pub fn new() -> Self {
        Self::default()
    }

    /// Of this source.
    pub fn source(mut self, name: impl Into<String>) -> Self {
        self.source = Some(name.into());
        self
    }

    /// Of this event type.
    pub fn event_type(mut self, kind: impl Into<String>) -> Self {
        self.event_type = Some(kind.into());
        self
    }

    /// Of this correlation id.
    pub fn correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// With this reason; several times for one of several. [`Reason::Fenced`] finds what the fence holds.
    pub fn reason(mut self, reason: Reason) -> Self {
        self.reasons.push(Some(reason));
        self
    }

    /// Parked ones: instead of dead letters, or beside those of the reasons that are asked for. They are no dead letters
    /// ([`Operator::waiting`] lists them), but [`Operator::discard_where`] discards them as those.
    pub fn parked(mut self) -> Self {
        self.reasons.push(None);
        self
    }

    /// What was parked, or became a dead letter, at this time or later.
    pub fn since(mut self, time: Timestamp) -> Self {
        self.since = Some(time);
        self
    }

    /// What was parked, or became a dead letter, at this time or earlier.
    pub fn until(mut self, time: Timestamp) -> Self {
        self.until = Some(time);
        self
    }

    /// With these reasons, if none is asked for.
    pub(super) fn or_reasons(mut self, reasons: &[Reason]) -> Self {
        if self.reasons.is_empty() {
            self.reasons = reasons.iter().copied().map(Some).collect();
        }
        self
    }

    fn for_database(&self) -> LetterFilter<'_> {
        let mut asked: Vec<i64> = self
            .reasons
            .iter()
            .map(|reason| reason.map_or(0, |reason| reason as i64))
            .collect();
        asked.sort_unstable();
        asked.dedup();
        let mut reasons = [-1; 8];
        for (place, number) in reasons.iter_mut().zip(asked) {
            *place = number;
        }
        LetterFilter {
            source: self.source.as_deref(),
            event_type: self.event_type.as_deref(),
            correlation_id: self.correlation_id.as_deref(),
            since: self.since.unwrap_or(Timestamp::from_micros(i64::MIN)),
            until: self.until.unwrap_or(Timestamp::from_micros(i64::MAX)),
            reasons,
        }
    }
}

/// Dead: everything but what the fence holds.
const DEAD: [Reason; 6] = [
    Reason::Gap,
    Reason::Handler,
    Reason::Rejected,
    Reason::Crash,
    Reason::Skipped,
    Reason::BeforeStart,
];

/// Where a page ended: what the next one comes after.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PageKey {
    /// The name of a source.
    pub source: String,
    /// An event id of it.
    pub event_id: String,
}

impl PageKey {
    /// From a key that was written down.
    pub fn new(source: impl Into<String>, event_id: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            event_id: event_id.into(),
        }
    }
}

/// Some stored events, by source and event id.
#[derive(Debug)]
#[non_exhaustive]
pub struct Page {
    /// A row that cannot be read is told of in its place, and hides no other.
    pub letters: Vec<Result<Letter, Unreadable>>,
    /// Where the next page goes on; nothing if this is the last one.
    pub next: Option<PageKey>,
}

/// A row that cannot be read, such as one that a newer version of this crate has written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreadable {
    /// Which one it is, if that can be read.
    pub key: Option<PageKey>,
    /// What is wrong with it.
    pub why: String,
}

/// A stored event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Letter {
    /// The name of its source.
    pub source: String,
    /// The producer's own id of it.
    pub event_id: String,
    /// What its row says.
    pub state: State,
    /// Why it is dead or held, if it is.
    pub reason: Option<Reason>,
    /// The event type, if the producer names one.
    pub event_type: Option<String>,
    /// The correlation id, if it has one.
    pub correlation_id: Option<String>,
    /// Its place among those of its correlation id.
    pub sequence: Option<i64>,
    /// How often the stream had been reset when it came.
    pub generation: i64,
    /// The event id that has taken its place.
    pub yielded_to: Option<String>,
    /// When it came first.
    pub received_at: Timestamp,
    /// When its state last changed.
    pub decided_at: Timestamp,
    /// When its handler was last begun by a worker, where that is known.
    pub tried_at: Option<Timestamp>,
    /// How often its handler has run in vain since it was stored or replayed.
    pub attempts: i64,
    /// The status that the handler last answered.
    pub last_status: Option<u16>,
    /// What went wrong last, in words.
    pub last_error: Option<String>,
    /// The worker's next attempt comes no earlier, of a parked event: after a failure, or since its handler said "not yet".
    /// Nothing if it waits for its turn, or for the worker, alone. [`Operator::try_now`] does not wait.
    pub not_before: Option<Timestamp>,
    /// The size of its stored body; nothing if there is none, as of an applied one or over the bound on parking.
    pub body_bytes: Option<u64>,
    /// An operator has had it replayed out of its order.
    pub out_of_order: bool,
    /// A worker has claimed it, or had when it ended.
    pub leased: bool,
}

impl Letter {
    fn new(key: PageKey, row: LetterRow) -> Self {
        Self {
            source: key.source,
            event_id: key.event_id,
            state: row.state,
            reason: row.reason,
            event_type: row.event_type,
            correlation_id: row.correlation_id,
            sequence: row.sequence,
            generation: row.generation,
            yielded_to: row.yielded_to,
            received_at: row.received_at,
            decided_at: row.decided_at,
            tried_at: row.tried_at,
            attempts: row.attempts.unwrap_or(0) - row.lease.counts(),
            last_status: status(row.last_status),
            last_error: row.last_error,
            not_before: row
                .not_before
                .map(Timestamp::from_micros)
                .filter(|at| row.state == State::Parked && *at > AT_ONCE),
            body_bytes: row
                .body_bytes
                .and_then(|bytes| u64::try_from(bytes).ok())
                .filter(|bytes| *bytes > 0),
            out_of_order: row.out_of_order == Some(1),
            leased: row.lease != Lease::NONE,
        }
    }
}

/// What the handler answered, from its column.
pub(super) fn status(column: Option<i64>) -> Option<u16> {
    column.and_then(|status| u16::try_from(status).ok())
}

/// All that is known of one event. Its `Debug` shows neither headers nor body.
#[non_exhaustive]
pub struct Story {
    /// What its rows say.
    pub letter: Letter,
    /// The stored request: method, URI, headers without signatures and credentials, raw body. Nothing if it is not kept,
    /// as of an applied event, or cannot be read. Over the bound on parking its body is empty.
    pub request: Option<Request<Bytes>>,
    /// Where its stream stands, if it has a place in one and that has begun.
    pub stream: Option<StreamInfo>,
    /// Stored events of the same stream, up to ten on either side of it, lowest first.
    pub neighbours: Vec<Neighbour>,
}

impl fmt::Debug for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = self
            .request
            .as_ref()
            .map(|request| (request.method(), request.uri()));
        f.debug_struct("Story")
            .field("letter", &self.letter)
            .field("request", &request)
            .field("stream", &self.stream)
            .field("neighbours", &self.neighbours)
            .finish()
    }
}

/// A stored event near another one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Neighbour {
    /// The producer's own id of it.
    pub event_id: String,
    /// Its place in the stream.
    pub sequence: i64,
    /// Why it is dead; nothing if it is parked.
    pub reason: Option<Reason>,
}

/// What was found, of which there were to be so many.
pub(super) fn page(found: Vec<FoundLetter>, limit: usize) -> Page {
    let full = found.len() == limit;
    let mut last = None;
    let letters = found.into_iter().map(|(key, row)| {
        let key = key.map(|(source, event_id)| PageKey { source, event_id });
        if let Ok(key) = &key {
            last = Some(key.clone());
        }
        let unreadable = |key: Option<PageKey>, error: sqlx::Error| Unreadable {
            key,
            why: error.to_string(),
        };
        match (key, row) {
            (Ok(key), Ok(row)) => Ok(Letter::new(key, row)),
            (key, Err(error)) => Err(unreadable(key.ok(), error)),
            (Err(error), Ok(_)) => Err(unreadable(None, error)),
        }
    });
    Page {
        letters: letters.collect(),
        next: last.filter(|_| full),
    }
}

impl<DB: Backend> Operator<DB> {
    /// Stored events that match, up to `limit` (at most 1,000) after `after`, by source and event id.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn dead_letters(
        &self,
        filter: &Filter,
        after: Option<&PageKey>,
        limit: usize,
    ) -> Result<Page, OperatorError> {
        let limit = limit.clamp(1, MOST);
        let filter = filter.clone().or_reasons(&DEAD);
        let key = after.map_or(("", ""), |key| (&key.source, &key.event_id));
        let after = Key {
            source: key.0,
            event_id: key.1,
        };
        let found = self
            .look(async |shared, conn| {
                DB::letters(
                    conn,
                    &shared.sql,
                    &filter.for_database(),
                    after,
                    limit.rows(),
                )
                .await
            })
            .await?;
        Ok(page(found, limit))
    }

    /// All that is known of one event, in whatever state it is. Nothing if it never came, or was forgotten.
    ///
    /// # Errors
    /// If the database could not be asked, or its row cannot be read.
    pub async fn inspect(
        &self,
        source: &str,
        event_id: &str,
    ) -> Result<Option<Story>, OperatorError> {
        self.look(async |shared, conn| {
            let key = Key { source, event_id };
            let Some((row, stored)) = DB::story(conn, &shared.sql, key).await? else {
                return Ok(None);
            };
            let letter = Letter::new(PageKey::new(source, event_id), row);
            let (mut stream, mut neighbours) = (None, Vec::new());
            if let (Some(correlation_id), Some(sequence)) =
                (&letter.correlation_id, letter.sequence)
            {
                let of = Stream {
                    source,
                    correlation_id,
                };
                stream = info(shared, conn, of).await?;
                let place = Place {
                    stream: of,
                    generation: letter.generation,
                    sequence,
                };
                let near = DB::neighbours(conn, &shared.sql, &place, NEIGHBOURS).await?;
                neighbours = near
                    .into_iter()
                    .map(|(event_id, sequence, reason)| Neighbour {
                        event_id,
                        sequence,
                        reason,
                    })
                    .collect();
            }
            Ok(Some(Story {
                letter,
                request: stored.and_then(|stored| request::restore(&stored)),
                stream,
                neighbours,
            }))
        })
        .await
    }
}
