//! What an inbox should do, in memory and one thing at a time: the rules of the contract, and nothing of how they are kept.
//!
//! Where the contract leaves two outcomes open, there are two references afterwards, and reality picks one.

mod deliver;
mod verbs;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub(super) use self::worker::Move;

/// In ms of the test's clock. A gap is given up after this (§5.4).
pub(super) const WINDOW: u64 = 200;
/// Between two attempts of the worker; what is drawn is at most a quarter more (§5.5).
pub(super) const BACKOFF: u64 = 60;
const LONGEST_BACKOFF: u64 = BACKOFF * 5 / 4;
/// Attempts of the worker before it gives an event up, and crashes in a row before it does.
pub(super) const MAX_ATTEMPTS: u32 = 2;
pub(super) const MAX_CRASHES: u32 = 2;
/// Longer than a lease, which is 30 s where budgets are short (§5.7).
pub(super) const LEASE: u64 = 40_000;
/// Applied events are remembered for so long (§7.1): longer than all else in a schedule takes together.
pub(super) const RETENTION: u64 = 10_000_000;

/// An event id: of an event without a place, or of the `n`th one of a stream; or another id for the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id {
    pub(super) stream: Option<u8>,
    pub(super) n: u8,
    pub(super) other: bool,
}

impl Id {
    /// Its place: a stream and a sequence.
    pub(super) fn place(self) -> Option<(u8, i64)> {
        self.stream.map(|stream| (stream, i64::from(self.n)))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stream = self.stream.map_or("free", stream_name);
        write!(f, "{stream}{}{}", self.n, if self.other { "x" } else { "" })
    }
}

pub(super) fn stream_name(stream: u8) -> &'static str {
    ["a", "b", "c"][usize::from(stream)]
}

/// Why an event is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Reason {
    Gap = 1,
    Handler,
    Rejected,
    Crash,
    Skipped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum State {
    Applied,
    Parked,
    Dead(Reason),
    Discarded,
}

/// What is stored of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Row {
    pub(super) state: State,
    pub(super) content: u8,
    /// Another id has taken its place over.
    pub(super) yielded: bool,
    pub(super) attempts: u32,
    pub(super) unfinished: u32,
    /// The worker is at it; or one that is gone was.
    pub(super) leased: bool,
    pub(super) left_behind: bool,
    pub(super) out_of_order: bool,
    parked_at: u64,
    decided_at: u64,
    ready_at: u64,
}

impl Row {
    /// Nobody is at it any more, and what was tried came to an end.
    fn ended(&mut self) {
        (self.unfinished, self.leased, self.left_behind) = (0, false, false);
    }
}

/// Where a stream stands, and which sequences an operator took out of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Stream {
    pub(super) next: i64,
    pub(super) never: BTreeSet<i64>,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            next: 1,
            never: BTreeSet::new(),
        }
    }
}

impl Stream {
    fn land(&mut self) {
        while self.never.contains(&self.next) {
            self.next += 1;
        }
    }
}

/// What the handler does in the next run of an event, after it has written its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Plan {
    Fail,
    Reject,
    Panic,
    /// Fails, and goes on failing.
    Break,
}

/// What somebody was told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Answer {
    Applied,
    Duplicate,
    Discarded,
    Parked(i64),
    SetAside,
    OtherContent,
    PlaceTaken,
    /// The handler's verdict.
    Rejected,
    /// That verdict, to somebody who waited for it.
    SameVerdict,
    /// The handler failed.
    Failed,
    /// A fault that is not the handler's.
    Away,
    /// 401.
    Refused,
    /// An operator's action was done, or was done already.
    Done,
    Already,
    /// It was refused.
    Error(&'static str),
    /// What no reference says.
    Odd(String),
}

/// Something that the reference believes and that is not so, to show that it would be noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Lie {
    DuplicatesAreAppliedAgain,
    ASkipFreesNobody,
    APurgeForgetsCursors,
    ARejectionMovesTheCursor,
    AGapIsWaitedForForEver,
    ARevokedSecretStillSigns,
    ADeadLetterKeepsItsPlace,
    AFailedRunLeavesItsLine,
    AReplayComesAtOnce,
    ACrashTakesAnAcknowledgedEvent,
}

/// A stream; or the number of an event without a place, which is in order with none.
type Line = (Option<u8>, u8);

/// An inbox with one source, and the ledger that its handler writes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Reference {
    pub(super) now: u64,
    pub(super) rows: BTreeMap<Id, Row>,
    pub(super) streams: BTreeMap<u8, Stream>,
    /// What was applied, in order: for each stream, and for each event without a place.
    pub(super) ledger: BTreeMap<Line, Vec<(Id, u8)>>,
    pub(super) plans: BTreeMap<Id, Plan>,
    /// What ran since the last command.
    pub(super) ran: BTreeSet<Id>,
    /// Whose delivery or drain was refused (true) or failed in this command, and in the one before it: who waited behind it
    /// was told so without a run of his own (§4.8).
    pub(super) refused: BTreeSet<(Id, bool)>,
    refused_before: BTreeSet<(Id, bool)>,
    /// Newest first.
    pub(super) secrets: Vec<u8>,
    pub(super) secrets_ever: u8,
    /// Whether the process remembers commits; and what it may still remember of rows that are gone (§2.4).
    pub(super) remembers: bool,
    remembered: BTreeMap<Id, u8>,
    pub(super) lie: Option<Lie>,
}

impl Reference {
    pub(super) fn new(remembers: bool, lie: Option<Lie>) -> Self {
        Self {
            now: 0,
            rows: BTreeMap::new(),
            streams: BTreeMap::new(),
            ledger: BTreeMap::new(),
            plans: BTreeMap::new(),
            ran: BTreeSet::new(),
            refused: BTreeSet::new(),
            refused_before: BTreeSet::new(),
            secrets: vec![0],
            secrets_ever: 1,
            remembers,
            remembered: BTreeMap::new(),
            lie,
        }
    }

    fn lies(&self, lie: Lie) -> bool {
        self.lie == Some(lie)
    }

    /// The next sequence of a stream.
    pub(super) fn next(&self, stream: u8) -> i64 {
        self.streams.get(&stream).map_or(1, |stream| stream.next)
    }

    fn is_skipped(&self, stream: u8, n: i64) -> bool {
        let stream = self.streams.get(&stream);
        stream.is_some_and(|stream| stream.never.contains(&n))
    }

    /// After each command: what ran has had its plan.
    pub(super) fn settle(&mut self) {
        for id in std::mem::take(&mut self.ran) {
            if self.plans.get(&id) != Some(&Plan::Break) {
                self.plans.remove(&id);
            }
        }
        self.refused_before = std::mem::take(&mut self.refused);
    }

    /// Whether somebody who comes now may be told so, since the other one may not be quite done yet.
    pub(super) fn was_refused(&self, id: Id, refused: bool) -> bool {
        let key = (id, refused);
        self.refused.contains(&key) || self.refused_before.contains(&key)
    }

    /// What is in the tables and in the ledger, in lines.
    pub(super) fn picture(&self) -> Picture {
        let row = |(id, row): (&Id, &Row)| {
            let (state, reason) = match row.state {
                State::Applied => (1, 0),
                State::Parked => (2, 0),
                State::Dead(reason) => (3, reason as u8),
                State::Discarded => (6, 0),
            };
            let flags =
                [row.yielded, row.leased || row.left_behind, row.out_of_order].map(u8::from);
            let kept = !matches!(row.state, State::Applied | State::Discarded);
            let tried = if kept {
                (row.attempts, row.unfinished)
            } else {
                (0, 0)
            };
            format!(
                "{id}|{state}|{reason}|{}|{}|{}|{}|{}",
                flags[0],
                if kept { flags[1] } else { 0 },
                if kept { flags[2] } else { 0 },
                tried.0,
                tried.1
            )
        };
        let mut lines: Vec<_> = self.rows.iter().map(row).collect();
        for (stream, at) in &self.streams {
            let name = stream_name(*stream);
            lines.push(format!("cursor|{name}|{}", at.next));
            lines.extend(at.never.iter().map(|n| format!("never|{name}|{n}")));
        }
        lines.sort();
        let mut ledger = BTreeMap::new();
        for (lane, entries) in &self.ledger {
            let entries = entries.iter().map(|(id, amount)| format!("{id}:{amount}"));
            ledger.insert(*lane, entries.collect());
        }
        Picture { lines, ledger }
    }
}

/// The tables in lines, and what was applied: for each stream in order, and for each event without a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Picture {
    pub(super) lines: Vec<String>,
    pub(super) ledger: BTreeMap<Line, Vec<String>>,
}
