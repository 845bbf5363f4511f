//! The protocol of tower-inbox as a state machine that is explored to the end: `docs/model.md` says what it shows.
//!
//! Read [`state`] first, then [`transaction`] (what a delivery and a worker's attempt do in the database), [`worker`],
//! [`operator`] and [`faults`], and last [`properties`], which are the contract's rules.

pub mod faults;
pub mod locks;
mod model;
mod mutation;
pub mod operator;
pub mod properties;
pub mod scenarios;
mod situations;
pub mod state;
pub mod transaction;
pub mod worker;

pub use model::Action;
pub use mutation::Mutation;
pub use situations::Situations;
use state::{Database, EVENTS, Marks, PROCESSES, Process, State, Told};

/// How much of everything there is, so that there is an end of it.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The events' places in the one stream; none: an event without a sequence.
    pub sequences: [Option<u8>; EVENTS],
    /// How often an event may be delivered: the producer's retries, its replays, and what the network doubles.
    pub copies: [u8; EVENTS],
    /// Crashes, broken connections, commits whose outcome is lost, leases that could not be given back: together.
    pub faults: u8,
    /// Failures of the handler (5xx).
    pub failures: u8,
    /// Terminal verdicts of the handler (4xx).
    pub rejections: u8,
    /// Sequences that an operator skips.
    pub skips: u8,
    /// Dead letters that an operator replays.
    pub replays: u8,
    /// Restores of a backup.
    pub restores: u8,
    /// Whether a live worker may be taken for dead, which clocks and beats can never exclude.
    pub suspicion: bool,
    /// Whether the recovery window may end.
    pub sweeps: bool,
    /// `Source::max_crashes`.
    pub max_crashes: u8,
    /// `Source::max_attempts`.
    pub max_attempts: u8,
}

impl Default for Bounds {
    /// Nothing happens.
    fn default() -> Self {
        Self {
            sequences: [None; EVENTS],
            copies: [0; EVENTS],
            faults: 0,
            failures: 0,
            rejections: 0,
            skips: 0,
            replays: 0,
            restores: 0,
            suspicion: false,
            sweeps: false,
            max_crashes: 2,
            max_attempts: 2,
        }
    }
}

/// The protocol as it is, or with one thing done otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// How far it goes.
    pub bounds: Bounds,
    /// What is done otherwise.
    pub mutation: Option<Mutation>,
    /// Whether states that differ only in names count as one. A path then changes the processes' names on its way.
    pub fold: bool,
}

impl Protocol {
    /// The protocol as it is.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            mutation: None,
            fold: true,
        }
    }

    /// The protocol with one thing done otherwise, and paths that can be read.
    pub fn mutant(bounds: Bounds, mutation: Mutation) -> Self {
        Self {
            bounds,
            mutation: Some(mutation),
            fold: false,
        }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn sequence(&self, event: usize) -> Option<u8> {
        self.bounds.sequences[event]
    }

    fn start(&self) -> State {
        let bounds = &self.bounds;
        State {
            db: Database::new(),
            processes: [Process::new(); PROCESSES],
            sweep: None,
            skip: None,
            copies: bounds.copies,
            told: [Told::default(); EVENTS],
            crashed: [0; EVENTS],
            marks: Marks::default(),
            faults: bounds.faults,
            failures: bounds.failures,
            rejections: bounds.rejections,
            skips: bounds.skips,
            replays: bounds.replays,
            restores: bounds.restores,
            backup: None,
        }
    }
}
