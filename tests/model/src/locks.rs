//! Who holds what. Locks are not stored: they follow from how far each transaction has come.

use crate::state::{EVENTS, PROCESSES, Process, State, Step, Worker};
use crate::{Mutation, Protocol};

/// A transaction with a handler in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Of a delivery that leads.
    Delivery {
        /// Where.
        process: usize,
        /// Which.
        event: usize,
    },
    /// Of a process's worker.
    Attempt {
        /// Where.
        process: usize,
    },
}

impl Who {
    /// Where.
    pub fn process(self) -> usize {
        match self {
            Self::Delivery { process, .. } | Self::Attempt { process } => process,
        }
    }

    /// Whether it is a worker's.
    pub fn is_attempt(self) -> bool {
        matches!(self, Self::Attempt { .. })
    }
}

impl State {
    /// The event and the step of a transaction, if there is one.
    pub fn at(&self, who: Who) -> Option<(usize, Step)> {
        match who {
            Who::Delivery { process, event } => {
                Some((event, self.processes[process].deliveries[event]?))
            }
            Who::Attempt { process } => match self.processes[process].worker {
                Worker::Trying { event, step, .. } => Some((event.into(), step)),
                _ => None,
            },
        }
    }

    /// Every transaction, begun or about to.
    pub fn transactions(&self) -> impl Iterator<Item = (Who, usize, Step)> {
        (0..PROCESSES)
            .flat_map(|process| {
                (0..EVENTS)
                    .map(move |event| Who::Delivery { process, event })
                    .chain([Who::Attempt { process }])
            })
            .filter_map(|who| self.at(who).map(|(event, step)| (who, event, step)))
    }
}

impl Protocol {
    /// Whether this transaction has locked its event's row.
    pub fn holds_event(&self, who: Who, step: Step) -> bool {
        let careless = if who.is_attempt() {
            self.is(Mutation::LeaseExcludes)
        } else {
            self.is(Mutation::CheckThenInsert)
        };
        let first = !(who.is_attempt() && self.is(Mutation::CursorFirst));
        match step {
            Step::Event => first && !careless,
            Step::Entered | Step::Handled | Step::Park | Step::Aside => !careless,
            Step::Ask | Step::Open | Step::Undone(_) | Step::Done(_) => false,
        }
    }

    /// Whether this transaction has locked the cursor.
    pub fn holds_cursor(&self, who: Who, event: usize, step: Step) -> bool {
        let careless = who.is_attempt() && self.is(Mutation::LeaseExcludes);
        self.sequence(event).is_some()
            && match step {
                Step::Event => who.is_attempt() && self.is(Mutation::CursorFirst),
                Step::Entered | Step::Handled | Step::Aside => !careless,
                Step::Park => !self.is(Mutation::ParkWithoutLock),
                Step::Ask | Step::Open | Step::Undone(_) | Step::Done(_) => false,
            }
    }

    /// Whether an event's row is locked. Nobody asks who has it.
    pub fn event_is_locked(&self, state: &State, event: usize) -> bool {
        state
            .sweep
            .is_some_and(|sweep| usize::from(sweep.event) == event)
            || self.operator_holds(state, event)
            || state
                .transactions()
                .any(|(who, of, step)| of == event && self.holds_event(who, step))
    }

    /// Whether the cursor is locked by somebody else.
    pub fn cursor_is_locked(&self, state: &State, by_other_than: Option<Who>) -> bool {
        state.transactions().any(|(who, event, step)| {
            Some(who) != by_other_than && self.holds_cursor(who, event, step)
        })
    }

    /// Whether a transaction has an event's pending row: it has written it, and not committed.
    pub fn pending_is_locked(&self, state: &State, event: usize) -> bool {
        let deleted = state.transactions().any(|(who, of, step)| {
            of == event
                && matches!(step, Step::Entered | Step::Handled)
                && self.holds_event(who, step)
        });
        deleted || self.operator_holds(state, event)
    }

    fn operator_holds(&self, state: &State, event: usize) -> bool {
        state
            .skip
            .is_some_and(|skip| skip.holds_event && self.sequence(event) == Some(skip.sequence))
    }

    /// Whether a correlation id's turn is taken in a process (§2.5): by a transaction, or by the worker.
    pub fn lane_is_taken(&self, process: &Process) -> bool {
        process.worker != Worker::Idle
            || (0..EVENTS).any(|event| {
                self.sequence(event).is_some()
                    && !matches!(
                        process.deliveries[event],
                        None | Some(Step::Ask | Step::Open | Step::Done(_))
                    )
            })
    }
}
