//! Plain data that goes into and comes out of statements.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::broken::{self, Variant};
use crate::clock::Timestamp;
use crate::kept::Kept;

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

/// A version that is to be the one applied last of its stream, if it is newer (§5.12).
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Raise {
    pub to: i64,
    /// An equal one counts as newer.
    pub or_equal: bool,
    /// The next sequence of the stream, which has none and needs a value.
    pub first: i64,
    pub at: Timestamp,
}

/// The cursor of a stream that has not begun: lower than every sequence, so that all of them park.
pub(crate) const SETTLING: i64 = -1;

/// Where a stream's cursor stands at first.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Start {
    pub next: i64,
    /// With [`SETTLING`]: when the stream begins, at the lowest sequence that is parked by then.
    pub settles_at: Option<Timestamp>,
}

impl Start {
    /// Where a stream begins whose cursor is missing although an event of it has had its turn. Where streams are adopted,
    /// that event was the first one before they were.
    pub(crate) fn after_a_turn_of(self, sequence: i64) -> Self {
        Self {
            next: match self.settles_at {
                Some(_) => sequence,
                None => self.next,
            },
            settles_at: None,
        }
    }
}

/// The cursor of a stream that has not begun.
#[doc(hidden)]
pub struct Settling {
    pub settles_at: Timestamp,
    pub generation: i64,
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
    /// A lower sequence was not applied within the recovery window: it did not come, or is a dead letter itself.
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

/// All of them but the fence's, which are no dead letters.
pub(crate) const REASONS: [Reason; 6] = [
    Reason::Gap,
    Reason::Handler,
    Reason::Rejected,
    Reason::Crash,
    Reason::Skipped,
    Reason::BeforeStart,
];

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
    pub version: Option<i64>,
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
    /// Its first answer, where answers are stored.
    pub kept: Option<Arc<Kept>>,
    /// Of newer-than order (§5.12).
    pub version: Option<i64>,
}

impl Known {
    /// The place that it was stored with.
    pub(crate) fn place<'a>(&'a self, source: &'a str) -> Option<Place<'a>> {
        let stream = Stream {
            source,
            correlation_id: self.correlation_id.as_deref()?,
        };
        Some(Place {
            stream,
            generation: self.generation,
            sequence: self.sequence?,
        })
    }

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
    pub not_before: Timestamp,
    pub last_error: Option<&'a str>,
    pub at: Timestamp,
    pub request: &'a StoredRequest,
}

/// One more attempt that did not apply.
#[derive(Clone, Copy)]
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

    /// Of a batch: below zero, so that whoever finds it left behind runs its events one by one.
    pub(crate) fn of_batch() -> Self {
        Self(-fastrand::i64(1..))
    }

    /// Whether nobody has counted an attempt under it.
    pub(crate) const fn is_of_batch(self) -> bool {
        self.0 < 0
    }

    /// How many attempts are counted under it, which have neither failed nor succeeded yet.
    pub(crate) fn counts(self) -> i64 {
        i64::from(self.0 > 0)
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
    /// As it was read: whoever changes it first has the event, and one who has tried it meanwhile has given it another time.
    pub from: &'a Pending,
    pub to: Lease,
    pub owner: &'a str,
    pub until: Timestamp,
    pub at: Timestamp,
    /// For whoever finds it claimed by somebody who is gone.
    pub not_before: Timestamp,
}

/// What is due of a stream, from its cursor on without a hole.
#[doc(hidden)]
pub struct Due {
    pub events: Vec<Pending>,
    pub generation: i64,
    /// Where the lowest skipped range ahead begins.
    pub next_range: Option<i64>,
}

/// Places of a stream in a row that a worker has claimed together, both ends included.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Stretch<'a> {
    pub stream: Stream<'a>,
    pub generation: i64,
    pub first: i64,
    pub last: i64,
    pub lease: Lease,
}

/// The rows of a batch's events, in its transaction.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Locked {
    /// Each of them is parked, and was free.
    pub all: bool,
    /// The transaction's own number, where it is known by that.
    pub transaction: i64,
}

/// An event of a batch whose turn it is.
#[doc(hidden)]
pub struct Member<'a> {
    pub key: Key<'a>,
    pub place: Place<'a>,
    pub lease: Lease,
    /// As [`Locked`] has it.
    pub transaction: i64,
    pub at: Timestamp,
}

/// A handler's "not yet".
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct PutOff {
    pub until: Timestamp,
    /// Since it was parked.
    pub longest: Duration,
    pub now: Timestamp,
}

impl PutOff {
    /// So that it can be added to any time of this age without an overflow in the database.
    pub(crate) fn longest_micros(&self) -> i64 {
        const CENTURY: i64 = 100 * 365 * 24 * 3600 * 1_000_000;
        i64::try_from(self.longest.as_micros())
            .unwrap_or(i64::MAX)
            .min(CENTURY)
    }
}

/// The condition under which an entity's version is moved.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub enum Guarding {
    /// It is at this version; to the next one.
    At(i64),
    /// It is below this number; to it.
    Above(i64),
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
    pub version: Option<i64>,
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
    /// Err: one that a newer version wrote.
    pub reason: Result<Option<Reason>, i64>,
    pub events: i64,
    pub bytes: i64,
    pub oldest: Timestamp,
}

/// A number of events, and of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub struct Size {
    pub events: i64,
    pub bytes: i64,
}

impl Size {
    pub(crate) fn one(bytes: i64) -> Self {
        Self { events: 1, bytes }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            events: self.events.saturating_add(other.events),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// Never below nothing: what is taken away may be another process's, which was not counted yet.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            events: self.events.saturating_sub(other.events).max(0),
            bytes: self.bytes.saturating_sub(other.bytes).max(0),
        }
    }
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
    pub not_before: Option<i64>,
    pub lease: Lease,
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

/// Which parked events; no source: any.
#[doc(hidden)]
pub struct WaitingFilter<'a> {
    pub source: Option<&'a str>,
    /// Those that are tried again after this.
    pub not_until: Timestamp,
    /// Those alone that have no place in a stream.
    pub apart: bool,
}

/// A row's key and what it says; each may be unreadable by itself.
#[doc(hidden)]
pub(crate) type FoundLetter = (
    Result<(String, String), sqlx::Error>,
    Result<LetterRow, sqlx::Error>,
);

/// Whose requests and answers are erased; nothing: any.
#[derive(Clone, Copy, Default)]
#[doc(hidden)]
pub struct ErasureFilter<'a> {
    pub event_id: Option<&'a str>,
    pub correlation_id: Option<&'a str>,
    pub before: Option<Timestamp>,
}

/// A line of the audit table. One about a whole stream has an empty event id here, and none in the table.
#[doc(hidden)]
pub struct Audit<'a> {
    pub at: Timestamp,
    pub key: Key<'a>,
    /// Of the event, if it has one, or the stream that it is about.
    pub correlation_id: Option<&'a str>,
    pub action: &'static str,
    pub actor: &'a str,
    pub detail: &'a str,
}

/// A line of the audit table, as it stands there.
#[doc(hidden)]
pub struct AuditRow {
    pub id: i64,
    pub at: Timestamp,
    pub source: String,
    pub event_id: Option<String>,
    pub correlation_id: Option<String>,
    pub action: String,
    pub actor: String,
    pub detail: String,
}

/// Which lines of the audit table; nothing: any.
#[doc(hidden)]
#[derive(Clone, Copy, Default)]
pub struct AuditRows<'a> {
    pub source: Option<&'a str>,
    /// Of the source.
    pub about: About<'a>,
    pub actor: Option<&'a str>,
}

/// What of a source lines of the audit table are about.
#[doc(hidden)]
#[derive(Clone, Copy, Default)]
pub enum About<'a> {
    #[default]
    All,
    Event(&'a str),
    /// By its correlation id: the stream, and its events.
    Stream(&'a str),
}

/// What waits in a stream, in one generation of it.
#[doc(hidden)]
pub struct StreamRow {
    pub source: String,
    pub correlation_id: String,
    pub generation: i64,
    /// Where the cursor is, if it is of this generation.
    pub next: Option<i64>,
    pub lowest: i64,
    pub highest: i64,
    pub parked: i64,
    pub dead: i64,
    pub oldest: Timestamp,
    /// At the cursor; at the lowest, if there is none.
    pub head: Option<HeadRow>,
}

/// The most urgent of the streams in which something waits.
#[doc(hidden)]
#[derive(Default)]
pub struct UrgentRows {
    pub streams: Vec<StreamRow>,
    /// How many there are in all.
    pub all: i64,
    /// A dead letter is at the cursor of so many of them.
    pub held_up: i64,
    /// An event that has failed is at the cursor of so many.
    pub failing: i64,
}

/// What is stored where a stream stands.
#[doc(hidden)]
pub struct HeadRow {
    pub reason: Option<Reason>,
    pub attempts: i64,
    pub last_status: Option<i64>,
    pub not_before: Timestamp,
}

/// A stored event in its stream.
#[doc(hidden)]
pub struct StreamEventRow {
    pub event_id: String,
    pub sequence: i64,
    pub reason: Option<Reason>,
    pub parked_at: Timestamp,
    pub not_before: Timestamp,
    pub attempts: i64,
    pub last_status: Option<i64>,
    pub last_error: Option<String>,
    pub lease: Lease,
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

/// [`Progress`] of one list, for people.
#[derive(Debug)]
#[doc(hidden)]
pub struct ListRow {
    pub source: String,
    pub kind: i64,
    pub through: Option<Timestamp>,
    pub next_page: Option<String>,
    pub held_back: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub lease_until: Timestamp,
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

/// A new event, as the first thing that its transaction writes.
#[doc(hidden)]
pub struct First<'a> {
    pub event: NewEvent<'a>,
    pub state: State,
    /// Where nothing is to be done between its row and the step of its cursor.
    pub turn: Option<Turn<'a>>,
}

/// A step of a cursor.
#[derive(Clone, Copy)]
#[doc(hidden)]
pub struct Turn<'a> {
    pub place: Place<'a>,
    /// It would be the stream's first.
    pub opens: bool,
}

/// What of a new event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Inserted {
    /// Its id or its place is taken.
    Nothing,
    /// Its row; its cursor may have to be moved yet.
    Event,
    /// Its row, and it is its turn: its cursor has moved.
    InTurn,
}

impl Inserted {
    /// Of an INSERT that moves no cursor.
    pub(crate) fn event(inserted: bool) -> Self {
        if inserted { Self::Event } else { Self::Nothing }
    }

    /// By how many rows were written: the event's is the first, its cursor's the second.
    pub(crate) fn rows(rows: u64) -> Self {
        match rows {
            0 if broken::is(Variant::InsertAlwaysWins) => Self::Event,
            0 => Self::Nothing,
            1 => Self::Event,
            _ => Self::InTurn,
        }
    }
}
