//! What there is: the tables, the processes, what they hold in memory, and what the producer was told.

/// Events of a model at most.
pub const EVENTS: usize = 3;
/// Receiver processes, each with its deliveries and a worker.
pub const PROCESSES: usize = 2;

/// What `tower_inbox_event` says of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Row {
    /// No row.
    Absent,
    /// The handler's transaction has committed.
    Applied,
    /// Waits for its turn.
    Parked,
    /// A dead letter.
    Dead(Reason),
}

/// Why an event is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Its gap was not filled in time. It comes back by itself.
    Gap,
    /// It failed too often.
    Handler,
    /// The handler's verdict.
    Rejected,
    /// Its process ended each time while it was tried.
    Crash,
    /// An operator decided that its place is never waited for.
    Skipped,
}

impl Row {
    /// Whether a worker takes it up when it is its turn.
    pub fn waits(self) -> bool {
        matches!(self, Self::Parked | Self::Dead(Reason::Gap))
    }

    /// The column `state` alone: a dead letter is one, whatever its reason.
    pub fn same_state(self, other: Self) -> bool {
        self == other || matches!((self, other), (Self::Dead(_), Self::Dead(_)))
    }
}

/// A worker's claim on a pending event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// Unlike every other token that anybody holds.
    pub token: u8,
    /// The process, or none if that start of it has ended.
    pub owner: Option<u8>,
}

/// A row of `tower_inbox_pending`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pending {
    /// Who is at work on it.
    pub lease: Option<Lease>,
    /// Counted when an attempt begins.
    pub attempts: u8,
    /// Those in a row that did not end in an ordinary way.
    pub unfinished: u8,
}

/// What is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Database {
    /// The events' rows.
    pub rows: [Row; EVENTS],
    /// What is stored with those that are not applied.
    pub pending: [Option<Pending>; EVENTS],
    /// The next sequence of the stream that may be applied.
    pub cursor: u8,
    /// The sequences that an operator skipped, as bits.
    pub skipped: u8,
    /// How often the handler's work for an event was committed.
    pub effects: [u8; EVENTS],
    /// The sequences that were applied, in the order of their commits; 0: none.
    pub journal: [u8; EVENTS + 1],
}

/// How far a delivery or a worker's attempt has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// Leads the flight of its event in this process; next: one statement, is it known? (§2.4)
    Ask,
    /// Next: BEGIN, and the event's row.
    Open,
    /// The event's row is inserted or locked; next: the cursor.
    Event,
    /// Cursor and pending row are locked and written; the handler runs.
    Entered,
    /// The handler's work is done; next: COMMIT.
    Handled,
    /// Higher than the cursor, which is locked; next: the pending row and COMMIT.
    Park,
    /// Its place is skipped, and the cursor is locked; next: its dead letter and COMMIT.
    Aside,
    /// Rolled back to the savepoint, and the locks are gone with that; next: the dead letter. With what the row said before.
    Undone(Row),
    /// The transaction has ended; next: the answer.
    Done(Answer),
}

/// What a producer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    /// 2xx: applied now, or before.
    Applied,
    /// 202: stored, to be applied in its turn or set aside.
    Parked,
    /// The handler's 4xx.
    Rejected,
    /// 503.
    Failed,
}

/// What a process's worker is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Worker {
    /// Looks for what is due.
    Idle,
    /// Has read a due event; next: the claim.
    Looked {
        /// The event.
        event: u8,
        /// The token that it read; 0: none.
        seen: u8,
        /// The attempts that it read.
        attempts: u8,
        /// Too many of them ended their process.
        poison: bool,
    },
    /// Has claimed it.
    Trying {
        /// The event.
        event: u8,
        /// Its own.
        token: u8,
        /// Those before this one.
        attempts: u8,
        /// How far it has come.
        step: Step,
    },
    /// Its transaction has ended; next: the end of the lease.
    Ended {
        /// The event.
        event: u8,
        /// Its own.
        token: u8,
        /// Those before this one.
        attempts: u8,
        /// Whether the handler failed. Otherwise nothing was found out about the event.
        failed: bool,
    },
}

/// A receiver process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// The delivery that leads, one an event.
    pub deliveries: [Option<Step>; EVENTS],
    /// Deliveries that wait in memory behind the leader, or behind the worker.
    pub followers: [u8; EVENTS],
    /// Commits that this process saw succeed.
    pub memory: [bool; EVENTS],
    /// Its worker.
    pub worker: Worker,
    /// It was told of something due. Only kept for [`Mutation::NoPoll`](crate::Mutation::NoPoll).
    pub woken: bool,
}

/// A sweep that gives an event up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sweep {
    /// Whose row it has locked.
    pub event: u8,
}

/// An operator's skip of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Skip {
    /// Which.
    pub sequence: u8,
    /// The cursor that the operator saw.
    pub seen: u8,
    /// Its transaction has begun, and looked at what is stored for the sequence; next: the cursor.
    pub looked: bool,
    /// Something was, and its row is locked.
    pub holds_event: bool,
}

/// What was sent to the producer of an event, whether it got there or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Told {
    /// A 2xx that says applied.
    pub applied: bool,
    /// A 202 that says stored.
    pub parked: bool,
    /// The handler's 4xx.
    pub rejected: bool,
}

/// What only a step can show, not a state: kept until somebody looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Marks {
    /// A worker applied an event under a token that was not the row's.
    pub late_loser: bool,
    /// An event was parked although its turn had come.
    pub parked_in_turn: bool,
    /// An event was given up for a gap that was not there.
    pub given_up_in_turn: bool,
}

/// Everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    /// What is committed. What a transaction has written so far follows from its step.
    pub db: Database,
    /// The receivers.
    pub processes: [Process; PROCESSES],
    /// The sweep, if it is at something.
    pub sweep: Option<Sweep>,
    /// The operator's, if he is at something.
    pub skip: Option<Skip>,
    /// Sendings of an event that may still come, in any order.
    pub copies: [u8; EVENTS],
    /// What the producer was told.
    pub told: [Told; EVENTS],
    /// Worker's attempts in a row that ended their process within the handler.
    pub crashed: [u8; EVENTS],
    /// See there.
    pub marks: Marks,
    /// Faults that may still happen.
    pub faults: u8,
    /// Failures of the handler that may still happen.
    pub failures: u8,
    /// Terminal verdicts of the handler that may still happen.
    pub rejections: u8,
    /// Skips that an operator may still decide on.
    pub skips: u8,
    /// Replays that an operator may still decide on.
    pub replays: u8,
    /// Restores that may still happen.
    pub restores: u8,
    /// What a restore brings back.
    pub backup: Option<Database>,
}

impl Database {
    /// Empty tables; a stream begins at 1.
    pub fn new() -> Self {
        Self {
            rows: [Row::Absent; EVENTS],
            pending: [None; EVENTS],
            cursor: 1,
            skipped: 0,
            effects: [0; EVENTS],
            journal: [0; EVENTS + 1],
        }
    }

    /// Whether an operator skipped it.
    pub fn is_skipped(&self, sequence: u8) -> bool {
        self.skipped & 1 << sequence != 0
    }

    /// The first place from here on that is not skipped.
    pub fn land(&self, mut sequence: u8) -> u8 {
        while self.is_skipped(sequence) {
            sequence += 1;
        }
        sequence
    }

    /// The token of an event's lease; 0: none.
    pub fn token(&self, event: usize) -> u8 {
        let lease = self.pending[event].and_then(|pending| pending.lease);
        lease.map_or(0, |lease| lease.token)
    }

    fn leases(&mut self) -> impl Iterator<Item = &mut Lease> {
        self.pending
            .iter_mut()
            .flatten()
            .filter_map(|pending| pending.lease.as_mut())
    }
}

impl Default for Database {
    fn default() -> Self {
        Self::new()
    }
}

impl Process {
    /// One that has just started.
    pub fn new() -> Self {
        Self {
            deliveries: [None; EVENTS],
            followers: [0; EVENTS],
            memory: [false; EVENTS],
            worker: Worker::Idle,
            woken: false,
        }
    }
}

impl Default for Process {
    fn default() -> Self {
        Self::new()
    }
}

impl Worker {
    /// The event that it is at.
    pub fn event(self) -> Option<usize> {
        match self {
            Self::Idle => None,
            Self::Looked { event, .. } | Self::Trying { event, .. } | Self::Ended { event, .. } => {
                Some(event.into())
            }
        }
    }

    fn token(&mut self) -> Option<&mut u8> {
        match self {
            Self::Idle => None,
            Self::Looked { seen, .. } => Some(seen),
            Self::Trying { token, .. } | Self::Ended { token, .. } => Some(token),
        }
    }
}

impl State {
    /// A token that nobody holds or remembers. Real ones are random; that they differ is all that counts.
    pub fn fresh_token(mut self) -> u8 {
        let mut used = 0_u32;
        self.each_token(|token| used |= 1 << *token);
        (1..32).find(|token| used & (1 << token) == 0).unwrap_or(31)
    }

    /// One of the states that differ from this one only in which process is called the first, and in the names of tokens.
    pub fn folded(self) -> Self {
        let mut swapped = self;
        swapped.processes.swap(0, 1);
        swapped.each_lease(|lease| lease.owner = lease.owner.map(|owner| 1 - owner));
        self.renamed().min(swapped.renamed())
    }

    /// Tokens are named in the order in which they are come upon.
    fn renamed(mut self) -> Self {
        let mut names = [0_u8; 32];
        let mut next = 1;
        self.each_token(|token| {
            if *token == 0 {
                return;
            }
            let name = &mut names[usize::from(*token)];
            if *name == 0 {
                *name = next;
                next += 1;
            }
            *token = *name;
        });
        self
    }

    /// Every lease of the tables, and of those that may come back.
    pub fn each_lease(&mut self, mut each: impl FnMut(&mut Lease)) {
        self.db.leases().for_each(&mut each);
        if let Some(backup) = &mut self.backup {
            backup.leases().for_each(each);
        }
    }

    fn each_token(&mut self, mut each: impl FnMut(&mut u8)) {
        self.each_lease(|lease| each(&mut lease.token));
        for process in &mut self.processes {
            process.worker.token().into_iter().for_each(&mut each);
        }
    }
}
