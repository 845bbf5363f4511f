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
    pub sequence: i64,
}

/// What an event's row says. The numbers are what the column holds and never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum State {
    Applied = 1,
    Parked = 2,
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
#[doc(hidden)]
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

    /// The contract's word for it.
    pub(crate) fn as_str(self) -> &'static str {
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
    pub sequence: Option<i64>,
    /// The cursor of its stream.
    pub next_sequence: Option<i64>,
    /// Another event id has its place in the stream now.
    pub has_yielded: bool,
}

impl Known {
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
    pub sequence: Option<i64>,
    pub reason: Option<Reason>,
    pub attempts: i64,
    pub last_status: Option<i64>,
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
    /// The lease that it was made under.
    pub lease: Lease,
}

/// The fencing token of an attempt at a pending event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Lease(i64);

impl Lease {
    /// Nobody's, and of a delivery with its producer waiting: the lock on the event's row is enough for that.
    pub(crate) const NONE: Self = Self(0);

    /// One that no other attempt has.
    pub(crate) fn fresh() -> Self {
        Self(fastrand::i64(1..))
    }

    pub(crate) const fn from_column(token: i64) -> Self {
        Self(token)
    }

    pub(crate) const fn token(self) -> i64 {
        self.0
    }
}

/// A worker takes an event up.
#[doc(hidden)]
pub struct Claim<'a> {
    /// As it was read: whoever changes it first has the event.
    pub from: Lease,
    pub to: Lease,
    pub owner: &'a str,
    pub until: Timestamp,
    pub at: Timestamp,
    /// For whoever finds it claimed by somebody who is gone.
    pub not_before: Timestamp,
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
    pub lease: Lease,
    pub lease_owner: Option<String>,
    pub lease_until: Timestamp,
    /// Attempts in a row that ended without a word.
    pub unfinished: i64,
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

/// A line of the audit table.
#[doc(hidden)]
pub struct Audit<'a> {
    pub at: Timestamp,
    pub key: Key<'a>,
    pub action: &'static str,
    pub actor: &'a str,
    pub detail: &'a str,
}

/// A replay burst, as its row has it.
#[doc(hidden)]
pub struct BurstRow {
    pub source: String,
    pub burst_id: String,
    pub event_type: Option<String>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub completed_by: Option<String>,
    pub announced: Option<i64>,
    pub arrived: Arrived,
}

/// Deliveries, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub struct Arrived {
    pub applied: i64,
    pub duplicates: i64,
    pub parked: i64,
    pub others: i64,
}

/// The start of a burst.
#[doc(hidden)]
pub struct BurstStart<'a> {
    pub key: Key<'a>,
    pub event_type: Option<&'a str>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub at: Timestamp,
}

/// The end of a burst.
#[doc(hidden)]
pub struct BurstEnd<'a> {
    pub key: Key<'a>,
    pub announced: Option<i64>,
    pub at: Timestamp,
}

/// The last sign of life by one incarnation of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Alive {
    pub incarnation: String,
    pub at: Timestamp,
}

/// Which list of a producer, and whose.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct ListKey<'a> {
    pub source: &'a str,
    /// 1 exhausted, 2 delivered.
    pub kind: i64,
}

/// How far a list has been dealt with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub struct Progress {
    pub through: Option<Timestamp>,
    pub run_since: Option<Timestamp>,
    pub next_page: Option<String>,
    pub highest: Option<Timestamp>,
    pub held_back: Option<Timestamp>,
    pub settled: Timestamp,
    pub finished_at: Option<Timestamp>,
}

/// What a stream's parked events wait for.
#[doc(hidden)]
pub struct Gap {
    pub correlation_id: String,
    /// The lowest missing sequence.
    pub missing: i64,
    /// The lowest parked one.
    pub parked: i64,
}
