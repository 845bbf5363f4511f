//! What must be possible. A model in which nothing happens keeps every rule.

use stateright::{Model, Property};

use crate::locks::Who;
use crate::scenarios::{DUPLICATES, GAP, OPERATOR, POISON, RESTORE, STREAM, Scenario};
use crate::state::{Reason, Row, State, Step, Worker};
use crate::{Action, Protocol};

/// The protocol, with situations to be found instead of rules to be kept.
#[derive(Clone, Copy, Debug)]
pub struct Situations {
    protocol: Protocol,
    world: &'static str,
}

impl Situations {
    /// Those of one of the short scenarios.
    pub fn of((world, bounds): Scenario) -> Self {
        let protocol = Protocol::new(bounds);
        Self { protocol, world }
    }
}

impl Model for Situations {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        self.protocol.init_states()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.protocol.actions(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.protocol.next_state(state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all = [
            (DUPLICATES, duplicates as fn() -> _),
            (STREAM, stream),
            (GAP, gap),
            (POISON, poison),
            (RESTORE, restore),
            (OPERATOR, operator),
        ];
        let here = all.iter().find(|((world, _), _)| *world == self.world);
        here.map(|(_, situations)| situations()).unwrap_or_default()
    }
}

/// To be found in [`DUPLICATES`](crate::scenarios::DUPLICATES).
fn duplicates() -> Vec<Property<Situations>> {
    vec![
        Property::sometimes(
            "a duplicate waits for a leader that may still fail",
            |_, s: &State| {
                s.processes.iter().any(|process| {
                    (process.followers.iter().zip(process.deliveries))
                        .any(|(waiting, leader)| *waiting > 0 && leader == Some(Step::Handled))
                })
            },
        ),
        Property::sometimes(
            "one process waits for the row that another has locked",
            |_, s: &State| {
                pairs(s).any(|((_, a, one), (_, b, other))| {
                    a == b && one == Step::Open && other == Step::Handled
                })
            },
        ),
        Property::sometimes(
            "somebody else decides while a verdict is without its locks",
            |_, s: &State| {
                s.transactions().any(|(_, event, step)| {
                    matches!(step, Step::Undone(from) if !s.db.rows[event].same_state(from))
                })
            },
        ),
        Property::sometimes(
            "a dead letter of the handler's is tried again by its producer",
            |_, s: &State| {
                s.transactions().any(|(who, event, step)| {
                    let dead = matches!(
                        s.db.rows[event],
                        Row::Dead(Reason::Handler | Reason::Rejected)
                    );
                    !who.is_attempt() && step == Step::Handled && dead
                })
            },
        ),
        Property::sometimes(
            "an event is applied, and nobody was told",
            |_, s: &State| {
                let untold = (s.db.rows.iter().zip(s.told))
                    .any(|(row, told)| *row == Row::Applied && !told.applied);
                untold && s.transactions().next().is_none()
            },
        ),
    ]
}

/// To be found in [`STREAM`](crate::scenarios::STREAM).
fn stream() -> Vec<Property<Situations>> {
    vec![
        Property::sometimes(
            "all is applied, and all is quiet",
            |it: &Situations, s: &State| {
                it.protocol
                    .bounds
                    .sequences
                    .iter()
                    .zip(s.db.rows)
                    .all(|(sequence, row)| sequence.is_none() || row == Row::Applied)
                    && it.protocol.is_quiet(s)
            },
        ),
        Property::sometimes(
            "one event waits for the cursor that another has moved",
            |_, s: &State| {
                pairs(s).any(|((_, a, one), (_, b, other))| {
                    a != b && one == Step::Event && other == Step::Handled
                })
            },
        ),
        Property::sometimes(
            "a worker works on under a lease that was taken over",
            |_, s: &State| {
                (0..s.processes.len()).any(|process| {
                    let token =
                        trying(s, process).map(|(event, token)| (event, token, s.db.token(event)));
                    token.is_some_and(|(event, own, now)| {
                        own != now && now != 0 && s.db.rows[event] == Row::Parked
                    })
                })
            },
        ),
        Property::sometimes(
            "a delivery applies what a worker has claimed",
            |_, s: &State| {
                pairs(s).any(|((who, a, one), (other, b, _))| {
                    a == b && !who.is_attempt() && one == Step::Handled && other.is_attempt()
                })
            },
        ),
        Property::sometimes(
            "the sweep waits for a cursor that is just moved to its event",
            |it: &Situations, s: &State| {
                s.sweep.is_some_and(|sweep| sweep.event == 1)
                    && it.protocol.cursor_is_locked(s, None)
            },
        ),
    ]
}

/// To be found in [`GAP`](crate::scenarios::GAP).
fn gap() -> Vec<Property<Situations>> {
    vec![
        Property::sometimes(
            "all is quiet while an event waits behind a gap",
            |it: &Situations, s: &State| {
                s.db.rows.contains(&Row::Parked) && it.protocol.is_quiet(s)
            },
        ),
        Property::sometimes(
            "a worker drains behind a gap that it did not see filled",
            |_, s: &State| {
                s.transactions().any(|(who, event, step)| {
                    let seen = s.processes[who.process()].memory[0];
                    who.is_attempt() && event == 1 && step == Step::Handled && !seen
                })
            },
        ),
        Property::sometimes(
            "what was given up for a gap is taken up again",
            |_, s: &State| {
                s.transactions().any(|(who, event, step)| {
                    let given_up = s.db.rows[event] == Row::Dead(Reason::Gap);
                    who.is_attempt() && step == Step::Handled && given_up
                })
            },
        ),
    ]
}

/// To be found in [`POISON`](crate::scenarios::POISON).
fn poison() -> Vec<Property<Situations>> {
    vec![
        Property::sometimes(
            "an event is dead because it ended its process",
            |_, s: &State| s.db.rows.contains(&Row::Dead(Reason::Crash)),
        ),
        Property::sometimes(
            "it is so although no process has ended: workers were thought dead",
            |it: &Situations, s: &State| {
                let all_left = s.faults == it.protocol.bounds.faults;
                s.db.rows.contains(&Row::Dead(Reason::Crash)) && all_left
            },
        ),
        Property::sometimes(
            "an event is dead because it failed too often",
            |_, s: &State| s.db.rows.contains(&Row::Dead(Reason::Handler)),
        ),
        Property::sometimes(
            "a worker finds its own lease left behind",
            |it: &Situations, s: &State| {
                (0..s.processes.len())
                    .any(|process| it.protocol.after(s, Action::LeftBehind(process)).is_some())
            },
        ),
    ]
}

/// To be found in [`RESTORE`](crate::scenarios::RESTORE).
fn restore() -> Vec<Property<Situations>> {
    vec![Property::sometimes(
        "all is applied after a restore that took a commit back",
        |_, s: &State| {
            let untold = (s.db.rows.iter().zip(s.told))
                .any(|(row, told)| *row == Row::Applied && !told.applied);
            untold && s.restores == 0 && s.db.cursor == 3 && s.transactions().next().is_none()
        },
    )]
}

/// To be found in [`OPERATOR`](crate::scenarios::OPERATOR).
fn operator() -> Vec<Property<Situations>> {
    vec![
        Property::sometimes(
            "a delivery waits for the cursor while its place is skipped",
            |it: &Situations, s: &State| {
                s.skip.is_some_and(|skip| {
                    skip.looked
                        && s.transactions().any(|(_, event, step)| {
                            step == Step::Event
                                && it.protocol.sequence(event) == Some(skip.sequence)
                        })
                })
            },
        ),
        Property::sometimes(
            "what comes for a skipped place is set aside",
            |_, s: &State| s.transactions().any(|(_, _, step)| step == Step::Aside),
        ),
        Property::sometimes("a worker has claimed what is skipped", |_, s: &State| {
            (0..s.processes.len()).any(|process| {
                trying(s, process)
                    .is_some_and(|(event, _)| s.db.rows[event] == Row::Dead(Reason::Skipped))
            })
        }),
        Property::sometimes(
            "the stream goes on behind a skipped place",
            |_, s: &State| s.db.journal[0] == 1 && s.db.journal[1] == 3,
        ),
        Property::sometimes("a dead letter was replayed and applied", |_, s: &State| {
            s.replays == 0 && s.db.cursor == 4 && s.db.skipped == 0
        }),
    ]
}

/// A worker's event and token.
fn trying(state: &State, process: usize) -> Option<(usize, u8)> {
    match state.processes[process].worker {
        Worker::Trying { event, token, .. } => Some((event.into(), token)),
        _ => None,
    }
}

type Transaction = (Who, usize, Step);

/// Two transactions of different processes.
fn pairs(state: &State) -> impl Iterator<Item = (Transaction, Transaction)> {
    state.transactions().flat_map(|one| {
        state
            .transactions()
            .filter(move |other| other.0.process() != one.0.process())
            .map(move |other| (one, other))
    })
}
