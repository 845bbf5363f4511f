//! What goes wrong.

use crate::locks::Who;
use crate::state::{Answer, EVENTS, Process, State, Step, Worker};
use crate::{Mutation, Protocol};

impl Protocol {
    /// A process ends, and another start of it comes. Its transactions are rolled back; what it remembered is gone, and
    /// whoever waited there has no answer. Its leases stay, and their owner does not come back.
    pub(crate) fn crash(&self, state: &mut State, process: usize) -> Option<()> {
        state.faults = state.faults.checked_sub(1)?;
        if let Worker::Trying {
            event,
            step: Step::Entered | Step::Handled,
            ..
        } = state.processes[process].worker
        {
            state.crashed[usize::from(event)] += 1;
        }
        state.processes[process] = Process::new();
        state.each_lease(|lease| {
            if lease.owner == Some(process as u8) {
                lease.owner = None;
            }
        });
        Some(())
    }

    /// A connection breaks, a budget is spent, a deadlock is resolved: the transaction is rolled back, its process lives.
    pub(crate) fn break_off(&self, state: &mut State, who: Who) -> Option<()> {
        state.faults = state.faults.checked_sub(1)?;
        let (_, step) = state.at(who)?;
        self.lose(state, who, step)
    }

    /// The connection is lost after COMMIT has come through, and before its answer has (§4.2).
    pub(crate) fn lose_commit(&self, state: &mut State, who: Who) -> Option<()> {
        state.faults = state.faults.checked_sub(1)?;
        let (_, step) = state.at(who)?;
        self.write(state, who)?;
        self.lose(state, who, step)
    }

    fn lose(&self, state: &mut State, who: Who, step: Step) -> Option<()> {
        state.processes[who.process()].memory = [false; EVENTS];
        let taken_for_done = step == Step::Handled && self.is(Mutation::UnknownIsSuccess);
        let answer = if taken_for_done {
            Answer::Applied
        } else {
            Answer::Failed
        };
        state.end(who, answer, false)
    }

    /// The database cannot be told of a lease's end.
    pub(crate) fn forget_lease(&self, state: &mut State, process: usize) -> Option<()> {
        state.faults = state.faults.checked_sub(1)?;
        state.processes[process].worker = Worker::Idle;
        Some(())
    }

    /// A backup is taken, once.
    pub(crate) fn back_up(&self, state: &mut State) -> Option<()> {
        if state.restores == 0 || state.backup.is_some() {
            return None;
        }
        state.backup = Some(state.db);
        Some(())
    }

    /// The backup is put back. Every transaction is gone, and with it every connection: the memory of commits is emptied.
    /// What was answered before that is outside of the promise (§4.1a).
    pub(crate) fn restore(&self, state: &mut State) -> Option<()> {
        state.restores = state.restores.checked_sub(1)?;
        state.db = state.backup.take()?;
        state.sweep = None;
        state.skip = None;
        state.told = Default::default();
        state.crashed = Default::default();
        let begun: Vec<_> = state.transactions().collect();
        for (who, _, step) in begun {
            if !matches!(step, Step::Ask | Step::Open) {
                state.end(who, Answer::Failed, false)?;
            }
        }
        for process in &mut state.processes {
            if !self.is(Mutation::MemoryOutlivesRestore) {
                process.memory = [false; EVENTS];
            }
        }
        Some(())
    }
}
