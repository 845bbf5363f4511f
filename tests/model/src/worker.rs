//! The worker and the sweep: `src/order/`. Each of these is one statement, or one short transaction, that commits by
//! itself; the transaction with the handler in it is [`crate::transaction`].

use crate::state::{EVENTS, Lease, Pending, Reason, Row, State, Step, Sweep, Worker};
use crate::{Mutation, Protocol};

impl Protocol {
    /// What is due: computed from the cursor, and stored nowhere.
    pub fn due(&self, state: &State) -> Option<usize> {
        (0..EVENTS).find(|event| {
            self.sequence(*event) == Some(state.db.cursor) && state.db.rows[*event].waits()
        })
    }

    /// Reads what is due. Where another process has a lease on it that is not seen to be over, only with `suspicion`.
    pub(crate) fn look(&self, state: &mut State, process: usize, suspicion: bool) -> Option<()> {
        let (event, pending) = self.head(state, process)?;
        let owner = pending.lease.and_then(|lease| lease.owner);
        let is_taken = owner.is_some_and(|owner| usize::from(owner) != process);
        let left_behind = owner.is_some() && !is_taken;
        let for_ever = pending.lease.is_some() && self.is(Mutation::LeaseForEver);
        if left_behind || for_ever || is_taken != suspicion {
            return None;
        }
        state.processes[process].worker = Worker::Looked {
            event: event as u8,
            seen: state.db.token(event),
            attempts: pending.attempts,
            poison: pending.unfinished >= self.bounds.max_crashes,
        };
        Some(())
    }

    /// A lease of its own that it does not work under: it could not be given back when it ended.
    pub(crate) fn left_behind(&self, state: &mut State, process: usize) -> Option<()> {
        let (event, pending) = self.head(state, process)?;
        let own = pending.lease?.owner == Some(process as u8);
        if !own || self.is(Mutation::OwnLeaseIsTaken) || self.pending_is_locked(state, event) {
            return None;
        }
        self.hand_back(state, event);
        Some(())
    }

    fn head(&self, state: &State, process: usize) -> Option<(usize, Pending)> {
        let here = &state.processes[process];
        let event = self.due(state)?;
        let told = here.woken || !self.is(Mutation::NoPoll);
        let stays = state.db.rows[event] != Row::Parked && self.is(Mutation::GapLettersStay);
        if !told || stays || self.lane_is_taken(here) || here.deliveries[event].is_some() {
            return None;
        }
        Some((event, state.db.pending[event]?))
    }

    /// One statement, committed before the handler runs: only with the token that was read, and not over a locked row.
    pub(crate) fn claim(&self, state: &mut State, process: usize) -> Option<()> {
        let Worker::Looked {
            event: at,
            seen,
            attempts,
            poison: false,
        } = state.processes[process].worker
        else {
            return None;
        };
        let event = usize::from(at);
        let token = state.fresh_token();
        let stepped_over = self.pending_is_locked(state, event);
        let seen_again = state.db.token(event) == seen;
        let row = state.db.pending[event]
            .as_mut()
            .filter(|_| seen_again && !stepped_over);
        let Some(pending) = row else {
            state.processes[process].worker = Worker::Idle;
            return Some(());
        };
        pending.lease = Some(Lease {
            token,
            owner: Some(process as u8),
        });
        if !self.is(Mutation::CountedAfterwards) {
            pending.attempts += 1;
            pending.unfinished += 1;
        }
        if self.is(Mutation::CursorAtClaim) {
            state.db.cursor += 1;
        }
        state.processes[process].worker = Worker::Trying {
            event: at,
            token,
            attempts,
            step: Step::Open,
        };
        Some(())
    }

    /// It ended whoever tried it: a dead letter, in a short transaction that demands the token that was read.
    pub(crate) fn bury_poison(&self, state: &mut State, process: usize) -> Option<()> {
        let Worker::Looked {
            event,
            seen,
            poison: true,
            ..
        } = state.processes[process].worker
        else {
            return None;
        };
        let event = usize::from(event);
        if self.event_is_locked(state, event) {
            return None;
        }
        if state.db.rows[event].waits() && (seen == 0 || state.db.token(event) == seen) {
            state.bury(event, Reason::Crash);
        }
        state.processes[process].worker = Worker::Idle;
        Some(())
    }

    /// The end of a lease: given back as if it had never been, or counted as a failure. Only with its token.
    pub(crate) fn end_lease(&self, state: &mut State, process: usize) -> Option<()> {
        let Worker::Ended {
            event,
            token,
            attempts,
            failed,
        } = state.processes[process].worker
        else {
            return None;
        };
        let event = usize::from(event);
        let last = failed && attempts + 1 >= self.bounds.max_attempts;
        if self.pending_is_locked(state, event) || last && self.event_is_locked(state, event) {
            return None;
        }
        state.processes[process].worker = Worker::Idle;
        if state.db.token(event) != token {
            return Some(());
        }
        if last && state.db.rows[event].waits() {
            state.bury(event, Reason::Handler);
        } else if failed {
            self.postpone(state, event);
        } else {
            self.hand_back(state, event);
        }
        Some(())
    }

    /// As if it had never been claimed.
    fn hand_back(&self, state: &mut State, event: usize) {
        if let Some(pending) = &mut state.db.pending[event] {
            pending.lease = None;
            if !self.is(Mutation::CountedAfterwards) {
                pending.attempts -= 1;
                pending.unfinished -= 1;
            }
        }
    }

    /// It failed in an ordinary way, and is tried again.
    fn postpone(&self, state: &mut State, event: usize) {
        if let Some(pending) = &mut state.db.pending[event] {
            pending.lease = None;
            pending.unfinished = 0;
            pending.attempts += u8::from(self.is(Mutation::CountedAfterwards));
        }
        state.crashed[event] = 0;
    }

    /// The sweep comes to an event that it read as expired, however long ago that was, and locks its row (§5.4).
    pub(crate) fn sweep(&self, state: &mut State, event: usize) -> Option<()> {
        let expired = state.db.rows[event] == Row::Parked && self.sequence(event).is_some();
        if state.sweep.is_some() || !expired || self.event_is_locked(state, event) {
            return None;
        }
        let event = event as u8;
        state.sweep = Some(Sweep { event });
        Some(())
    }

    /// It looks at the cursor under its lock: is the gap still there?
    pub(crate) fn give_up(&self, state: &mut State) -> Option<()> {
        let event = usize::from(state.sweep?.event);
        let blind = self.is(Mutation::SweepWithoutLook);
        if !blind && self.cursor_is_locked(state, None) {
            return None;
        }
        state.sweep = None;
        let in_turn = self.sequence(event) == Some(state.db.cursor);
        if blind || !in_turn {
            state.marks.given_up_in_turn |= in_turn;
            let passed = self.sequence(event) < Some(state.db.cursor);
            state.bury(event, if passed { Reason::Skipped } else { Reason::Gap });
        }
        Some(())
    }
}
