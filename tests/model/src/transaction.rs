//! One transaction with a handler in it, step by step: `src/dispatch/`. Event first, then cursor.
//!
//! A step is nothing while it has to wait for a lock. What the transaction writes is not kept anywhere: it follows from
//! its step, and is there for others when it commits.

use std::cmp::Ordering;

use crate::locks::Who;
use crate::state::{Answer, Pending, Reason, Row, State, Step, Worker};
use crate::{Mutation, Protocol};

impl Protocol {
    /// A delivery arrives: from memory, behind the one that leads, or as the leader (§2.4, §4.8).
    pub(crate) fn deliver(&self, state: &mut State, process: usize, event: usize) -> Option<()> {
        state.copies[event] = state.copies[event].checked_sub(1)?;
        let here = &mut state.processes[process];
        if here.memory[event] {
            state.told[event].applied = true;
        } else if here.deliveries[event].is_none() && !here.worker.flies(event) {
            here.deliveries[event] = Some(Step::Ask);
        } else if self.is(Mutation::DuplicateBeforeCommit) {
            state.told[event].applied = true;
        } else {
            here.followers[event] += 1;
        }
        Some(())
    }

    /// One statement outside any transaction: what the database knows already.
    pub(crate) fn ask(&self, state: &mut State, process: usize, event: usize) -> Option<()> {
        let higher = self
            .sequence(event)
            .is_some_and(|sequence| sequence > state.db.cursor);
        let next = match state.db.rows[event] {
            Row::Applied => Step::Done(Answer::Applied),
            Row::Dead(Reason::Crash | Reason::Skipped) => Step::Done(Answer::Parked),
            row if row.waits() && higher => Step::Done(Answer::Parked),
            _ => Step::Open,
        };
        state.processes[process].deliveries[event] = Some(next);
        Some(())
    }

    /// BEGIN, and the event's row: inserted by a delivery, or locked.
    pub(crate) fn lock_event(&self, state: &mut State, who: Who) -> Option<()> {
        let (event, _) = state.at(who)?;
        let row = state.db.rows[event];
        if who.is_attempt() {
            if self.is(Mutation::LeaseExcludes) {
                return state.go(who, Step::Event);
            }
            if self.is(Mutation::CursorFirst) {
                let free = !self.cursor_is_locked(state, None);
                return free.then_some(()).and_then(|()| state.go(who, Step::Event));
            }
        } else {
            let process = &state.processes[who.process()];
            if self.sequence(event).is_some() && self.lane_is_taken(process) {
                return None;
            }
        }
        let looks_only = !who.is_attempt() && self.is(Mutation::CheckThenInsert);
        if !looks_only && self.event_is_locked(state, event) {
            return None;
        }
        match row {
            Row::Applied if !who.is_attempt() => state.end(who, Answer::Applied, false),
            row if who.is_attempt() && !row.waits() => state.end(who, Answer::Failed, false),
            _ => state.go(who, Step::Event),
        }
    }

    /// The cursor, then the pending row: its turn, or not.
    pub(crate) fn enter(&self, state: &mut State, who: Who) -> Option<()> {
        let (event, _) = state.at(who)?;
        let row = state.db.rows[event];
        if who.is_attempt() && self.is(Mutation::LeaseExcludes) {
            return state.go(who, Step::Entered);
        }
        if who.is_attempt() && self.is(Mutation::CursorFirst) {
            if self.event_is_locked(state, event) {
                return None;
            }
            if !row.waits() {
                return state.end(who, Answer::Failed, false);
            }
        }
        if let Some(sequence) = self.sequence(event) {
            let next = if who.is_attempt() && self.is(Mutation::CursorAtClaim) {
                state.db.cursor.saturating_sub(1)
            } else {
                state.db.cursor
            };
            let turn = sequence.cmp(&next);
            let looks_only = row == Row::Absent
                && turn == Ordering::Greater
                && self.is(Mutation::ParkWithoutLock);
            if !looks_only && self.cursor_is_locked(state, Some(who)) {
                return None;
            }
            match (turn, row) {
                // For operators alone (§5.11).
                (_, Row::Dead(Reason::Crash)) => return state.end(who, Answer::Parked, false),
                (Ordering::Equal, _) => {}
                (_, Row::Absent) if state.db.is_skipped(sequence) => {
                    return state.go(who, Step::Aside);
                }
                (Ordering::Greater, Row::Absent) => return state.go(who, Step::Park),
                // Purged, so applied (§4.3). Nothing is purged here, and so it never comes to this.
                (Ordering::Less, Row::Absent) => return state.end(who, Answer::Applied, false),
                (Ordering::Greater | Ordering::Less, _) => {
                    return state.end(who, Answer::Parked, false);
                }
            }
        }
        // The token is demanded where the pending row is deleted. A delivery takes it away from whoever has it.
        if let Worker::Trying { token, .. } = state.processes[who.process()].worker
            && who.is_attempt()
            && state.db.token(event) != token
            && !self.is(Mutation::NoFencing)
        {
            return state.end(who, Answer::Failed, false);
        }
        if row == Row::Absent && self.is(Mutation::AppliedAlone) {
            state.db.rows[event] = Row::Applied;
        }
        state.go(who, Step::Entered)
    }

    /// The handler has done its work in the transaction, and says 2xx.
    pub(crate) fn handle(&self, state: &mut State, who: Who) -> Option<()> {
        let (event, _) = state.at(who)?;
        if !who.is_attempt() && self.is(Mutation::AnswerBeforeCommit) {
            state.told[event].applied = true;
        }
        state.go(who, Step::Handled)
    }

    /// The handler fails: rolled back.
    pub(crate) fn fail(&self, state: &mut State, who: Who) -> Option<()> {
        state.failures = state.failures.checked_sub(1)?;
        state.end(who, Answer::Failed, true)
    }

    /// The handler says 4xx: back to our savepoint. On PostgreSQL that gives back every lock since (§4.13).
    pub(crate) fn reject(&self, state: &mut State, who: Who) -> Option<()> {
        state.rejections = state.rejections.checked_sub(1)?;
        let (event, _) = state.at(who)?;
        state.go(who, Step::Undone(state.db.rows[event]))
    }

    /// The dead letter of a verdict, in the same transaction: only if the row is what it was.
    pub(crate) fn keep_dead(&self, state: &mut State, who: Who) -> Option<()> {
        let (event, Step::Undone(from)) = state.at(who)? else {
            return None;
        };
        if self.event_is_locked(state, event) {
            return None;
        }
        let row = state.db.rows[event];
        let ours = match state.processes[who.process()].worker {
            Worker::Trying { token, .. } if who.is_attempt() => state.db.token(event) == token,
            _ => true,
        };
        if row.same_state(from) && ours || self.is(Mutation::RejectWithoutLook) {
            state.bury(event, Reason::Rejected);
            return state.end(who, Answer::Rejected, false);
        }
        // Somebody else decided meanwhile: answer by what is found.
        let answer = match row {
            Row::Applied => Answer::Applied,
            Row::Dead(_) => Answer::Rejected,
            Row::Absent | Row::Parked => Answer::Failed,
        };
        state.end(who, answer, false)
    }

    /// COMMIT: all that was written is there at once, and the locks are gone.
    pub(crate) fn commit(&self, state: &mut State, who: Who) -> Option<()> {
        let answer = self.write(state, who)?;
        state.end(who, answer, false)
    }

    /// What COMMIT makes true.
    pub(crate) fn write(&self, state: &mut State, who: Who) -> Option<Answer> {
        let (event, step) = state.at(who)?;
        let sequence = self.sequence(event);
        if step == Step::Park {
            state.marks.parked_in_turn |= sequence.is_some_and(|it| it <= state.db.cursor);
            state.db.rows[event] = Row::Parked;
            state.db.pending[event] = Some(Pending::default());
            return Some(Answer::Parked);
        }
        if step == Step::Aside {
            state.bury(event, Reason::Skipped);
            return Some(Answer::Parked);
        }
        let mut moves_cursor = true;
        if let Worker::Trying { token, .. } = state.processes[who.process()].worker
            && who.is_attempt()
        {
            state.marks.late_loser |= state.db.token(event) != token;
            moves_cursor = !self.is(Mutation::CursorAtClaim);
        }
        let db = &mut state.db;
        db.rows[event] = Row::Applied;
        db.pending[event] = None;
        db.effects[event] += 1;
        if let Some(sequence) = sequence {
            if let Some(free) = db.journal.iter_mut().find(|place| **place == 0) {
                *free = sequence;
            }
            if moves_cursor {
                db.cursor = db.land(sequence + 1);
            }
        }
        state.crashed[event] = 0;
        Some(Answer::Applied)
    }

    /// The answer goes out; those who waited behind it get theirs; a commit is remembered (§2.4, §4.8).
    pub(crate) fn answer(&self, state: &mut State, process: usize, event: usize) -> Option<()> {
        let Some(Step::Done(answer)) = state.processes[process].deliveries[event].take() else {
            return None;
        };
        state.tell(event, answer);
        state.land(process, event, answer);
        if self.is(Mutation::NoPoll) && answer == Answer::Applied {
            state.processes[process].woken = true;
        }
        Some(())
    }
}

impl Worker {
    /// Whether it leads the flight of an event in its process.
    pub(crate) fn flies(self, event: usize) -> bool {
        let flies = matches!(
            self,
            Self::Looked { poison: false, .. } | Self::Trying { .. }
        );
        flies && self.event() == Some(event)
    }
}

impl State {
    fn go(&mut self, who: Who, to: Step) -> Option<()> {
        match who {
            Who::Delivery { process, event } => {
                self.processes[process].deliveries[event] = Some(to);
            }
            Who::Attempt { process } => {
                if let Worker::Trying { step, .. } = &mut self.processes[process].worker {
                    *step = to;
                }
            }
        }
        Some(())
    }

    /// The end of a transaction: a delivery's answer is next; a worker lands its flight, and then ends its lease.
    pub(crate) fn end(&mut self, who: Who, answer: Answer, failed: bool) -> Option<()> {
        let Who::Attempt { process } = who else {
            return self.go(who, Step::Done(answer));
        };
        let Worker::Trying {
            event,
            token,
            attempts,
            ..
        } = self.processes[process].worker
        else {
            return None;
        };
        self.land(process, event.into(), answer);
        self.processes[process].worker = match answer {
            Answer::Applied | Answer::Rejected => Worker::Idle,
            Answer::Parked | Answer::Failed => Worker::Ended {
                event,
                token,
                attempts,
                failed,
            },
        };
        Some(())
    }

    /// An event becomes a dead letter, and its lease ends.
    pub(crate) fn bury(&mut self, event: usize, reason: Reason) {
        let pending = self.db.pending[event].get_or_insert_default();
        pending.lease = None;
        pending.unfinished = 0;
        self.db.rows[event] = Row::Dead(reason);
        self.crashed[event] = 0;
    }

    fn land(&mut self, process: usize, event: usize, answer: Answer) {
        let here = &mut self.processes[process];
        here.memory[event] |= answer == Answer::Applied;
        if std::mem::take(&mut here.followers[event]) > 0 {
            self.tell(event, answer);
        }
    }

    fn tell(&mut self, event: usize, answer: Answer) {
        let told = &mut self.told[event];
        match answer {
            Answer::Applied => told.applied = true,
            Answer::Parked => told.parked = true,
            Answer::Rejected => told.rejected = true,
            Answer::Failed => {}
        }
    }
}
