//! Plain data that goes into and comes out of statements.

use bytes::Bytes;

use crate::clock::Timestamp;

/// An event's identity: (source, event id).
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Key<'a> {
    pub source: &'a str,
    pub event_id: &'a str,
}

/// A stream: (source, correlation id).
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Stream<'a> {
    pub source: &'a str,
    pub correlation_id: &'a str,
}

/// A place in a stream.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Place<'a> {
    pub stream: Stream<'a>,
    /// Of the stream: a reset begins another one, whose places are others (§5.15).
    pub generation: i64,
    pub sequence: i64,
}

/// Where a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Cursor {
    pub next: i64,
    pub generation: i64,
    /// Where the lowest range ahead begins, if there is one.
    pub next_range: Option<i64>,
}

/// Sequences of a stream that are never waited for, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Range {
    /// The lowest one.
    pub first: i64,
    /// The highest one.
    pub last: i64,
    /// Why they are not.
    pub kind: RangeKind,
}

/// Why a range of sequences is never waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RangeKind {
    /// An operator skipped it, or discarded the event that had the place.
    Skipped = 1,
    /// An operator moved the cursor over it.
    FastForward = 2,
    /// It is lower than the sequence that the stream began with.
    BeforeStart = 3,
}

impl RangeKind {
    pub(crate) fn from_column(value: i64) -> Result<Self, sqlx::Error> {
        match value {
            1 => Ok(Self::Skipped),
            2 => Ok(Self::FastForward),
            3 => Ok(Self::BeforeStart),
            other => Err(unknown("kind", other)),
        }
    }

    /// What a dead letter in such a range has as its reason.
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::Skipped | Self::FastForward => Reason::Skipped,
            Self::BeforeStart => Reason::BeforeStart,
        }
    }
}

/// What an event's row says.
// The numbers are what the column holds and never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Its handler's transaction has committed.
    Applied = 1,
    /// It waits for its turn, or for a worker.
    Parked = 2,
    /// A dead letter: it is not tried again by itself, unless its reason is a gap that fills.
    Dead = 3,
    /// Signed under another id before (§6.7): kept with its request, never handed over unless an operator releases it.
    Fenced = 4,
    /// A later version of its correlation id was applied before it (§5.12).
    Superseded = 5,
    /// An operator decided that it will never be applied.
    Discarded = 6,
}

impl State {
    pub(crate) fn from_column(value: i64) -> Result<Self, sqlx::Error> {
        match value {
            1 => Ok(Self::Applied),
            2 => Ok(Self::Parked),
            3 => Ok(Self::Dead),
            4 => Ok(Self::Fenced),
            5 => Ok(Self::Superseded),
            6 => Ok(Self::Discarded),
            other => Err(unknown("state", other)),
        }
    }
}

/// Why a stored event will not be tried again by itself (§1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A lower sequence did not come within the recovery window.
    Gap = 1,
    /// The handler failed as often as the source allows.
    Handler = 2,
    /// The handler's own terminal verdict.
    Rejected = 3,
    /// Attempts of it ended, one after the other, with their process.
    Crash = 4,
    /// Its sequence lies in a range that an operator skipped.
    Skipped = 5,
    /// Its sequence is lower than the one that its stream began with.
    BeforeStart = 6,
    /// Not dead: held by the fence.
    Fenced = 7,
}

impl Reason {
    pub(crate) fn from_column(value: Option<i64>) -> Result<Option<Self>, sqlx::Error> {
        match value {
            None => Ok(None),
            Some(1) => Ok(Some(Self::Gap)),
            Some(2) => Ok(Some(Self::Handler)),
            Some(3) => Ok(Some(Self::Rejected)),
            Some(4) => Ok(Some(Self::Crash)),
            Some(5) => Ok(Some(Self::Skipped)),
            Some(6) => Ok(Some(Self::BeforeStart)),
            Some(7) => Ok(Some(Self::Fenced)),
            Some(other) => Err(unknown("reason", other)),
        }
    }

    /// The contract's word for it, as the metrics have it: `gap`, `handler`, `rejected`, …
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Handler => "handler",
            Self::Rejected => "rejected",
            Self::Crash => "crash",
            Self::Skipped => "skipped",
            Self::BeforeStart => "before_start",
            Self::Fenced => "fenced",
        }
    }
}

/// A newer version wrote a value that this one does not know: say so, and do nothing with the event.
fn unknown(column: &str, value: i64) -> sqlx::Error {
    sqlx::Error::Decode(
        format!("{column} {value} was written by a newer version of tower-inbox").into(),
    )
}

/// A row to insert.
#[doc(hidden)]
pub struct NewEvent<'a> {
    pub key: Key<'a>,
    pub fingerprint: &'a [u8],
    pub event_type: Option<&'a str>,
    pub correlation_id: Option<&'a str>,
    pub generation: i64,
    pub sequence: Option<i64>,
    pub at: Timestamp,
}

/// What the database knows of an event, in one statement.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Known {
    pub state: State,
    pub reason: Option<Reason>,
    pub fingerprint: Vec<u8>,
    pub correlation_id: Option<String>,
    pub generation: i64,
    pub sequence: Option<i64>,
    /// The cursor of its stream, if that is of the same generation still.
    pub next_sequence: Option<i64>,
    /// Another event id has its place in the stream now.
    pub has_yielded: bool,
}

impl Known {
    /// Whether it is a dead letter since its place is never waited for.
    pub(crate) fn is_set_aside(&self) -> bool {
        self.state == State::Dead
            && matches!(self.reason, Some(Reason::Skipped | Reason::BeforeStart))
    }

    /// Whether a worker applies it by itself when its turn comes.
    pub(crate) fn is_waiting(&self) -> bool {
        match self.state {
            State::Applied | State::Fenced | State::Superseded | State::Discarded => false,
            State::Parked => true,
            State::Dead => self.reason == Some(Reason::Gap) && !self.has_yielded,
        }
    }
}

/// What a delivery of a source with unsigned ids is known by (§6.7).
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Fence {
    pub digest: [u8; 32],
    pub expires_at: Timestamp,
}

/// Who holds a place in a stream.
#[doc(hidden)]
pub struct Holder {
    pub event_id: String,
    pub state: State,
}

/// A request as it is stored: credentials, signatures and hop-by-hop headers are gone already.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct StoredRequest {
    pub method: String,
    pub uri: String,
    pub headers: Bytes,
    pub body: Bytes,
}

impl StoredRequest {
    /// What it counts for against the bounds on parking.
    pub(crate) fn bytes(&self) -> i64 {
        i64::try_from(self.headers.len() + self.body.len()).unwrap_or(i64::MAX)
    }
}

/// An event to park, or a dead letter.
#[doc(hidden)]
pub struct NewPending<'a> {
    pub key: Key<'a>,
    pub correlation_id: Option<&'a str>,
    pub generation: i64,
    pub sequence: Option<i64>,
    pub reason: Option<Reason>,
    pub attempts: i64,
    pub last_status: Option<i64>,
    pub last_error: Option<&'a str>,
    pub at: Timestamp,
    pub request: &'a StoredRequest,
}

/// One more attempt that did not apply.
#[doc(hidden)]
pub struct Attempt<'a> {
    /// NULL: parked still.
    pub reason: Option<Reason>,
    pub not_before: Timestamp,
    pub status: Option<i64>,
    pub error: Option<&'a str>,
}

/// Not before any time at all: what is parked waits for its turn alone. A time of ours would be a wait for whoever drains
/// it by a slower clock.
pub(crate) const AT_ONCE: Timestamp = Timestamp::from_micros(0);

/// A parked event (or one dead for a gap) whose turn it is, with all that a worker needs.
#[doc(hidden)]
pub struct Pending {
    pub event_id: String,
    pub event_type: Option<String>,
    pub fingerprint: Vec<u8>,
    pub correlation_id: Option<String>,
    pub sequence: Option<i64>,
    pub reason: Option<Reason>,
    pub attempts: i64,
    pub not_before: Timestamp,
    pub parked_at: Timestamp,
    pub request: StoredRequest,
}

/// A parked event that has waited longer than the recovery window.
#[doc(hidden)]
pub struct Expired {
    pub event_id: String,
    pub correlation_id: String,
    pub sequence: i64,
}

/// How much is pending, by source and reason.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct PendingCount {
    pub source: String,
    pub reason: Option<Reason>,
    pub events: i64,
    pub bytes: i64,
    pub oldest: Timestamp,
}

/// What is told of a stored event.
#[doc(hidden)]
pub struct LetterRow {
    pub state: State,
    pub reason: Option<Reason>,
    pub event_type: Option<String>,
    pub correlation_id: Option<String>,
    pub generation: i64,
    pub sequence: Option<i64>,
    pub yielded_to: Option<String>,
    pub received_at: Timestamp,
    pub decided_at: Timestamp,
    /// Of the pending row, from here on, if there is one.
    pub attempts: Option<i64>,
    pub last_status: Option<i64>,
    pub last_error: Option<String>,
    pub tried_at: Option<Timestamp>,
    pub body_bytes: Option<i64>,
    pub out_of_order: Option<i64>,
}

/// Which stored events; nothing: any.
#[doc(hidden)]
pub struct LetterFilter<'a> {
    pub source: Option<&'a str>,
    pub event_type: Option<&'a str>,
    pub correlation_id: Option<&'a str>,
    pub since: Timestamp,
    pub until: Timestamp,
    /// Numbers of reasons; 0: parked; what is left over is -1.
    pub reasons: [i64; 8],
}

/// A row's key and what it says; each may be unreadable by itself.
#[doc(hidden)]
pub(crate) type FoundLetter = (
    Result<(String, String), sqlx::Error>,
    Result<LetterRow, sqlx::Error>,
);

/// A line of the audit table. One about a whole stream has an empty event id here, and none in the table.
#[doc(hidden)]
pub struct Audit<'a> {
    pub at: Timestamp,
    pub key: Key<'a>,
    pub action: &'static str,
    pub actor: &'a str,
    pub detail: &'a str,
}
