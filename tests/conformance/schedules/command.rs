//! What can happen to an inbox, and how often. Commands name their events by where the reference stands, so that a schedule
//! still makes sense when some of it is left out.

use proptest::collection::vec;
use proptest::prelude::*;

use super::reference::{Id, Plan, Reason, Reference, State};

/// Which event is meant.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pick {
    /// One without a place.
    Free(u8),
    /// That place in a stream.
    At {
        stream: u8,
        n: u8,
        other: bool,
    },
    /// What a stream waits for.
    Next {
        stream: u8,
        other: bool,
    },
    /// What comes after that.
    After(u8),
    /// One of those that are stored, and of those that are not applied.
    Stored(u8),
    Waiting(u8),
    /// A place that an operator took out of its stream; and a dead letter in such a place.
    Skipped(u8),
    Aside(u8),
    /// The other id for the place of a dead letter.
    Heir(u8),
    /// What a stream waits for whose next one is stored already.
    Filler(u8),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Signer {
    Newest,
    Older,
    /// The first one that there was, revoked or not.
    First,
    /// A secret that never was one.
    Nobody,
}

/// Something happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    Deliver {
        event: Pick,
        content: u8,
        signer: Signer,
        plan: Option<Plan>,
    },
    /// Two deliveries at the same time.
    AtOnce {
        one: Pick,
        two: Option<Pick>,
        content: u8,
        plan: Option<Plan>,
    },
    /// What the handler does with an event when its turn comes.
    Plan {
        event: Pick,
        plan: Plan,
    },
    /// The database is lost during a delivery, at this fail point.
    Fault {
        event: Pick,
        at: &'static str,
    },
    /// The process ends when so many fail points were passed since a delivery began, and again as often as this when the
    /// next process has claimed what was left.
    Crash {
        event: Pick,
        after: u8,
        again: u8,
    },
    Restart,
    Rotate,
    Revoke,
    Skip {
        stream: u8,
        ahead: i8,
        stale: bool,
    },
    Replay {
        event: Pick,
        out_of_order: bool,
    },
    Discard {
        event: Pick,
    },
    /// Time goes by: ms.
    Advance(u64),
    /// The whole retention goes by.
    Forget,
}

impl Command {
    /// Its kind, to count it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Deliver { .. } => "deliver",
            Self::AtOnce { .. } => "at once",
            Self::Plan { .. } => "plan",
            Self::Fault { .. } => "fault",
            Self::Crash { .. } => "crash",
            Self::Restart => "restart",
            Self::Rotate => "rotate",
            Self::Revoke => "revoke",
            Self::Skip { .. } => "skip",
            Self::Replay { .. } => "replay",
            Self::Discard { .. } => "discard",
            Self::Advance(_) => "advance",
            Self::Forget => "forget",
        }
    }
}

impl Pick {
    /// The event, if there is such a one.
    pub(super) fn of(self, reference: &Reference) -> Option<Id> {
        let of_stream = |stream, n, other| Id {
            stream: Some(stream),
            n,
            other,
        };
        let nth =
            |which: u8, ids: Vec<Id>| ids.get(usize::from(which).checked_rem(ids.len())?).copied();
        let stored = |of: fn(State) -> bool| {
            let rows = reference.rows.iter().filter(|(_, row)| of(row.state));
            rows.map(|(id, _)| *id).collect::<Vec<_>>()
        };
        match self {
            Self::Free(n) => Some(Id {
                stream: None,
                n,
                other: false,
            }),
            Self::At { stream, n, other } => Some(of_stream(stream, n, other)),
            Self::Next { stream, other } => {
                let n = u8::try_from(reference.next(stream)).expect("schedules are short");
                Some(of_stream(stream, n, other))
            }
            Self::After(stream) => {
                let n = u8::try_from(reference.next(stream) + 1).expect("schedules are short");
                Some(of_stream(stream, n, false))
            }
            Self::Stored(which) => nth(which, stored(|_| true)),
            Self::Waiting(which) => nth(
                which,
                stored(|state| !matches!(state, State::Applied | State::Discarded)),
            ),
            Self::Skipped(which) => {
                let streams = reference.streams.iter();
                let places = streams.flat_map(|(stream, at)| {
                    let n = at.never.iter().filter_map(|n| u8::try_from(*n).ok());
                    n.map(|n| of_stream(*stream, n, false))
                });
                nth(which, places.collect())
            }
            Self::Aside(which) => nth(which, stored(|state| state == State::Dead(Reason::Skipped))),
            Self::Filler(which) => {
                let waiting = stored(|state| state == State::Parked).into_iter();
                let heads = waiting.filter_map(|id| {
                    let (stream, n) = id.place()?;
                    let is_next = n == reference.next(stream) + 1;
                    is_next.then(|| of_stream(stream, id.n - 1, false))
                });
                nth(which, heads.collect())
            }
            Self::Heir(which) => {
                let dead = stored(|state| matches!(state, State::Dead(_))).into_iter();
                let heirs = dead.filter(|id| id.stream.is_some()).map(|id| Id {
                    other: !id.other,
                    ..id
                });
                nth(which, heirs.collect())
            }
        }
    }
}

/// Most happens in the first stream, so that something comes of it.
fn stream() -> impl Strategy<Value = u8> {
    prop_oneof![6 => Just(0), 2 => Just(1), 1 => Just(2)]
}

fn pick() -> impl Strategy<Value = Pick> {
    let other = || prop::bool::weighted(0.15);
    prop_oneof![
        2 => (0..4u8).prop_map(Pick::Free),
        4 => (stream(), 1..=6u8, other()).prop_map(|(stream, n, other)| Pick::At { stream, n, other }),
        5 => (stream(), other()).prop_map(|(stream, other)| Pick::Next { stream, other }),
        3 => any::<u8>().prop_map(Pick::Stored),
        2 => any::<u8>().prop_map(Pick::Waiting),
        2 => any::<u8>().prop_map(Pick::Skipped),
        2 => any::<u8>().prop_map(Pick::Heir),
        2 => any::<u8>().prop_map(Pick::Filler),
    ]
}

/// What the worker goes on behind, or anything.
fn crashing() -> impl Strategy<Value = Pick> {
    prop_oneof![
        3 => any::<u8>().prop_map(Pick::Filler),
        2 => pick(),
    ]
}

/// Of what an operator looks at.
fn letter() -> impl Strategy<Value = Pick> {
    prop_oneof![
        6 => any::<u8>().prop_map(Pick::Waiting),
        2 => any::<u8>().prop_map(Pick::Stored),
        1 => pick(),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    prop_oneof![
        3 => Just(Plan::Reject),
        2 => Just(Plan::Fail),
        1 => Just(Plan::Panic),
        2 => Just(Plan::Break),
    ]
}

fn content() -> impl Strategy<Value = u8> {
    prop_oneof![12 => Just(1), 1 => Just(2)]
}

fn signer() -> impl Strategy<Value = Signer> {
    prop_oneof![
        12 => Just(Signer::Newest),
        3 => Just(Signer::Older),
        2 => Just(Signer::First),
        2 => Just(Signer::Nobody),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let maybe_plan = |often| prop::option::weighted(often, plan());
    let points = vec![
        "begun",
        "entered",
        "handled",
        "undone",
        "released",
        "committed",
    ];
    let waits = vec![100, 100, 250, 250, 1_000];
    prop_oneof![
        32 => (pick(), content(), signer(), maybe_plan(0.25)).prop_map(|(event, content, signer, plan)| {
            Command::Deliver { event, content, signer, plan }
        }),
        8 => (pick(), prop::option::of(pick()), content(), maybe_plan(0.2)).prop_map(
            |(one, two, content, plan)| Command::AtOnce { one, two, content, plan }
        ),
        6 => (letter(), plan()).prop_map(|(event, plan)| Command::Plan { event, plan }),
        6 => (pick(), prop::sample::select(points)).prop_map(|(event, at)| Command::Fault { event, at }),
        6 => (crashing(), 0..10u8, 0..=2u8).prop_map(|(event, after, again)| {
            Command::Crash { event, after, again }
        }),
        2 => Just(Command::Restart),
        5 => Just(Command::Rotate),
        6 => Just(Command::Revoke),
        7 => (stream(), -1..=2i8, prop::bool::weighted(0.15)).prop_map(|(stream, ahead, stale)| {
            Command::Skip { stream, ahead, stale }
        }),
        7 => (letter(), prop::bool::weighted(0.3)).prop_map(|(event, out_of_order)| {
            Command::Replay { event, out_of_order }
        }),
        3 => any::<u8>().prop_map(|which| Command::Replay {
            event: Pick::Aside(which),
            out_of_order: true,
        }),
        3 => letter().prop_map(|event| Command::Discard { event }),
        7 => prop::sample::select(waits).prop_map(Command::Advance),
        2 => Just(Command::Forget),
    ]
}

/// What chance alone comes to too seldom: something waits for the worker, and then it happens.
fn scene() -> impl Strategy<Value = Vec<Command>> {
    let deliver = |event, plan| Command::Deliver {
        event,
        content: 1,
        signer: Signer::Newest,
        plan,
    };
    let next = |stream| Pick::Next {
        stream,
        other: false,
    };
    prop_oneof![
        (stream(), plan(), 1..=2usize).prop_map(move |(stream, plan, waits)| {
            let mut scene = vec![
                deliver(Pick::After(stream), Some(plan)),
                deliver(next(stream), None),
            ];
            scene.extend(vec![Command::Advance(100); waits]);
            scene
        }),
        (stream(), 5..10u8, 0..=2u8).prop_map(move |(stream, after, again)| {
            let event = next(stream);
            vec![
                deliver(Pick::After(stream), None),
                Command::Crash {
                    event,
                    after,
                    again,
                },
            ]
        }),
        (stream(), any::<bool>()).prop_map(move |(stream, stored)| {
            let skip = Command::Skip {
                stream,
                ahead: 1,
                stale: false,
            };
            let late = deliver(Pick::After(stream), None);
            let replay = |out_of_order| Command::Replay {
                event: Pick::Aside(0),
                out_of_order,
            };
            if stored {
                vec![late, skip, replay(false), replay(true)]
            } else {
                vec![skip, late, replay(true)]
            }
        }),
        (stream(), 1..=6u8).prop_map(move |(stream, n)| {
            let place = |other| deliver(Pick::At { stream, n, other }, None);
            vec![place(false), place(true)]
        }),
        stream().prop_map(move |stream| {
            let place = Pick::At {
                stream,
                n: 5,
                other: false,
            };
            vec![
                deliver(place, None),
                Command::Discard { event: place },
                deliver(place, None),
            ]
        }),
    ]
}

/// A schedule, and whether the processes remember what they have seen (§2.4).
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) remembers: bool,
    pub(super) commands: Vec<Command>,
}

pub(super) fn schedule() -> impl Strategy<Value = Schedule> {
    let part = prop_oneof![5 => command().prop_map(|command| vec![command]), 1 => scene()];
    (any::<bool>(), vec(part, 4..24)).prop_map(|(remembers, parts)| Schedule {
        remembers,
        commands: parts.concat(),
    })
}
