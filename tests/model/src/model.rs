//! The steps that are possible in a state, for the explorer.

use std::fmt;

use stateright::{Model, Property};

use crate::Protocol;
use crate::locks::Who;
use crate::state::{EVENTS, PROCESSES, State, Step, Worker};

/// One step of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The network delivers an event to a process.
    Deliver(usize, usize),
    /// A delivery asks what the database knows.
    Ask(usize, usize),
    /// BEGIN, and the event's row.
    LockEvent(Who),
    /// The cursor and the pending row.
    Enter(Who),
    /// The handler says 2xx.
    Handle(Who),
    /// The handler fails.
    Fail(Who),
    /// The handler says 4xx.
    Reject(Who),
    /// The dead letter of that.
    KeepDead(Who),
    /// COMMIT.
    Commit(Who),
    /// A delivery's answer goes out.
    Answer(usize, usize),
    /// A worker reads what is due.
    Look(usize),
    /// A worker takes another one for dead, and reads what that one has claimed.
    Suspect(usize),
    /// A worker gives back what it left behind.
    LeftBehind(usize),
    /// A worker claims what it read.
    Claim(usize),
    /// A worker makes a dead letter of what ends processes.
    BuryPoison(usize),
    /// A worker ends its lease.
    EndLease(usize),
    /// The sweep locks an event.
    Sweep(usize),
    /// The sweep gives it up, or does not.
    GiveUp,
    /// An operator decides to skip the place of an event.
    Skip(usize),
    /// His transaction begins with what is stored for it.
    SetAside,
    /// And ends with the cursor.
    PassOver,
    /// An operator puts a dead letter back into its turn.
    Replay(usize),
    /// A process ends and is started again.
    Crash(usize),
    /// A transaction is lost before its COMMIT.
    Break(Who),
    /// A transaction commits, and nobody hears of it.
    LoseCommit(Who),
    /// A worker cannot end its lease.
    ForgetLease(usize),
    /// A backup is taken.
    BackUp,
    /// It is put back.
    Restore,
}

/// One of the processes `A` and `B`.
fn name(process: usize) -> char {
    char::from(b'A' + process as u8)
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delivery { process, event } => write!(f, "{}{}", name(*process), event + 1),
            Self::Attempt { process } => write!(f, "{}w", name(*process)),
        }
    }
}

/// As one reads a path: `commit A1` is the delivery of the first event in process A, `commit Aw` is A's worker.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let delivery = |process: &usize, event: &usize| Who::Delivery {
            process: *process,
            event: *event,
        };
        match self {
            Self::Deliver(process, event) => write!(f, "deliver {}", delivery(process, event)),
            Self::Ask(process, event) => write!(f, "ask {}", delivery(process, event)),
            Self::LockEvent(who) => write!(f, "lock {who}"),
            Self::Enter(who) => write!(f, "enter {who}"),
            Self::Handle(who) => write!(f, "handle {who}"),
            Self::Fail(who) => write!(f, "fail {who}"),
            Self::Reject(who) => write!(f, "reject {who}"),
            Self::KeepDead(who) => write!(f, "keep dead {who}"),
            Self::Commit(who) => write!(f, "commit {who}"),
            Self::Answer(process, event) => write!(f, "answer {}", delivery(process, event)),
            Self::Look(process) => write!(f, "look {}", name(*process)),
            Self::Suspect(process) => write!(f, "suspect {}", name(*process)),
            Self::LeftBehind(process) => write!(f, "left behind {}", name(*process)),
            Self::Claim(process) => write!(f, "claim {}", name(*process)),
            Self::BuryPoison(process) => write!(f, "bury poison {}", name(*process)),
            Self::EndLease(process) => write!(f, "end lease {}", name(*process)),
            Self::Sweep(event) => write!(f, "sweep {}", event + 1),
            Self::GiveUp => f.write_str("give up"),
            Self::Skip(event) => write!(f, "skip {}", event + 1),
            Self::SetAside => f.write_str("set aside"),
            Self::PassOver => f.write_str("pass over"),
            Self::Replay(event) => write!(f, "replay {}", event + 1),
            Self::Crash(process) => write!(f, "CRASH {}", name(*process)),
            Self::Break(who) => write!(f, "BREAK {who}"),
            Self::LoseCommit(who) => write!(f, "LOSE COMMIT {who}"),
            Self::ForgetLease(process) => write!(f, "FORGET LEASE {}", name(*process)),
            Self::BackUp => f.write_str("back up"),
            Self::Restore => f.write_str("RESTORE"),
        }
    }
}

impl Action {
    /// Whether it happens by itself sooner or later: no fault, no choice of the handler's, nothing that somebody else has
    /// to send, and no guess of a clock's.
    pub fn is_progress(self) -> bool {
        match self {
            Self::Ask(..)
            | Self::LockEvent(_)
            | Self::Enter(_)
            | Self::Handle(_)
            | Self::KeepDead(_)
            | Self::Commit(_)
            | Self::Answer(..)
            | Self::Look(_)
            | Self::LeftBehind(_)
            | Self::Claim(_)
            | Self::BuryPoison(_)
            | Self::EndLease(_)
            | Self::SetAside
            | Self::PassOver
            | Self::GiveUp => true,
            Self::Deliver(..)
            | Self::Fail(_)
            | Self::Reject(_)
            | Self::Suspect(_)
            | Self::Sweep(_)
            | Self::Skip(_)
            | Self::Replay(_)
            | Self::Crash(_)
            | Self::Break(_)
            | Self::LoseCommit(_)
            | Self::ForgetLease(_)
            | Self::BackUp
            | Self::Restore => false,
        }
    }
}

impl Protocol {
    /// What a transaction does next by itself.
    pub(crate) fn next_of(who: Who, step: Step) -> Option<Action> {
        Some(match (step, who) {
            (Step::Ask, Who::Delivery { process, event }) => Action::Ask(process, event),
            (Step::Done(_), Who::Delivery { process, event }) => Action::Answer(process, event),
            (Step::Ask | Step::Done(_), Who::Attempt { .. }) => return None,
            (Step::Open, _) => Action::LockEvent(who),
            (Step::Event, _) => Action::Enter(who),
            (Step::Entered, _) => Action::Handle(who),
            (Step::Handled | Step::Park | Step::Aside, _) => Action::Commit(who),
            (Step::Undone(_), _) => Action::KeepDead(who),
        })
    }

    /// What happens by itself, whether it has to wait for a lock or not.
    pub fn progress(&self, state: &State, actions: &mut Vec<Action>) {
        for (who, _, step) in state.transactions() {
            actions.extend(Self::next_of(who, step));
        }
        for (process, here) in state.processes.iter().enumerate() {
            match here.worker {
                Worker::Idle if self.due(state).is_some() => {
                    actions.extend([Action::Look(process), Action::LeftBehind(process)]);
                }
                Worker::Idle | Worker::Trying { .. } => {}
                Worker::Looked { poison, .. } => actions.push(if poison {
                    Action::BuryPoison(process)
                } else {
                    Action::Claim(process)
                }),
                Worker::Ended { .. } => actions.push(Action::EndLease(process)),
            }
        }
        if state.sweep.is_some() {
            actions.push(Action::GiveUp);
        }
        if let Some(skip) = state.skip {
            actions.push(if skip.looked {
                Action::PassOver
            } else {
                Action::SetAside
            });
        }
    }

    /// What others do, and what goes wrong.
    fn chance(&self, state: &State, actions: &mut Vec<Action>) {
        for process in 0..PROCESSES {
            for event in 0..EVENTS {
                if state.copies[event] > 0 {
                    actions.push(Action::Deliver(process, event));
                }
            }
            if self.bounds.suspicion && state.processes[process].worker == Worker::Idle {
                actions.push(Action::Suspect(process));
            }
        }
        if self.bounds.sweeps && state.sweep.is_none() {
            actions.extend((0..EVENTS).map(Action::Sweep));
        }
        for (who, _, step) in state.transactions() {
            if step == Step::Entered && state.failures > 0 {
                actions.push(Action::Fail(who));
            }
            if step == Step::Entered && state.rejections > 0 {
                actions.push(Action::Reject(who));
            }
        }
        if state.skips > 0 && state.skip.is_none() {
            actions.extend((0..EVENTS).map(Action::Skip));
        }
        if state.replays > 0 {
            actions.extend((0..EVENTS).map(Action::Replay));
        }
        if state.faults > 0 {
            self.faults(state, actions);
        }
        if state.restores > 0 {
            actions.push(if state.backup.is_none() {
                Action::BackUp
            } else {
                Action::Restore
            });
        }
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        for (process, here) in state.processes.iter().enumerate() {
            actions.push(Action::Crash(process));
            if matches!(here.worker, Worker::Ended { .. }) {
                actions.push(Action::ForgetLease(process));
            }
        }
        for (who, _, step) in state.transactions() {
            if !matches!(step, Step::Ask | Step::Done(_)) {
                actions.push(Action::Break(who));
            }
            if matches!(step, Step::Handled | Step::Park | Step::Aside) {
                actions.push(Action::LoseCommit(who));
            }
        }
    }

    /// The state after a step; none if the step has to wait.
    pub fn after(&self, before: &State, action: Action) -> Option<State> {
        let mut after = *before;
        let state = &mut after;
        match action {
            Action::Deliver(process, event) => self.deliver(state, process, event),
            Action::Ask(process, event) => self.ask(state, process, event),
            Action::LockEvent(who) => self.lock_event(state, who),
            Action::Enter(who) => self.enter(state, who),
            Action::Handle(who) => self.handle(state, who),
            Action::Fail(who) => self.fail(state, who),
            Action::Reject(who) => self.reject(state, who),
            Action::KeepDead(who) => self.keep_dead(state, who),
            Action::Commit(who) => self.commit(state, who),
            Action::Answer(process, event) => self.answer(state, process, event),
            Action::Look(process) => self.look(state, process, false),
            Action::Suspect(process) => self.look(state, process, true),
            Action::LeftBehind(process) => self.left_behind(state, process),
            Action::Claim(process) => self.claim(state, process),
            Action::BuryPoison(process) => self.bury_poison(state, process),
            Action::EndLease(process) => self.end_lease(state, process),
            Action::Sweep(event) => self.sweep(state, event),
            Action::GiveUp => self.give_up(state),
            Action::Skip(event) => self.skip(state, event),
            Action::SetAside => self.set_aside(state),
            Action::PassOver => self.pass_over(state),
            Action::Replay(event) => self.replay(state, event),
            Action::Crash(process) => self.crash(state, process),
            Action::Break(who) => self.break_off(state, who),
            Action::LoseCommit(who) => self.lose_commit(state, who),
            Action::ForgetLease(process) => self.forget_lease(state, process),
            Action::BackUp => self.back_up(state),
            Action::Restore => self.restore(state),
        }?;
        Some(if self.fold { after.folded() } else { after })
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.progress(state, actions);
        self.chance(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.after(state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.rules()
    }
}
