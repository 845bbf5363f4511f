//! The contract's rules as properties of every state, and what must be possible.

use stateright::Property;

use crate::state::{EVENTS, Row, State};
use crate::{Action, Protocol};

/// §4.1: nothing is applied twice.
pub const NEVER_TWICE: &str = "an effect is never there twice";
/// §4.1: the handler's committed effects are there if and only if the row says applied.
pub const EFFECT_IFF_APPLIED: &str = "an effect is there if and only if its row says applied";
/// §4.1, §4.2: a 2xx is sent only after the commit that makes it true.
pub const ANSWERS_ARE_TRUE: &str = "whoever was told applied, stored or dead has it so";
/// §5.1: in the order of the sequences, without a hole but what an operator skipped.
pub const IN_ORDER: &str = "a stream is applied in order and without holes";
/// §4.4, §5.1: the cursor moves with the effect, and never otherwise.
pub const CURSOR: &str = "the cursor is the lowest sequence that is neither applied nor skipped";
/// §5.3, §5.9: what is stored has its request, and what is applied has none.
pub const STORED_WHOLE: &str = "what waits or is dead is stored, and nothing else";
/// §5.4, §5.9: nothing waits for a turn that has passed.
pub const TURN_TO_COME: &str = "what waits has its turn still to come";
/// §5.7: the applied transition demands the lease's token.
pub const NO_LATE_LOSER: &str = "a worker whose lease was taken over changes nothing";
/// §2.7, §3: a 202 says what is waited for, by the cursor under its lock.
pub const PARKED_BEHIND_GAP: &str = "an event is parked only while its gap is there";
/// §5.4: expiry re-checks the cursor under its lock.
pub const GIVEN_UP_FOR_GAP: &str = "an event is given up only while its gap is there";
/// §5.7: attempts are counted before the handler runs.
pub const CRASHES_ARE_BOUNDED: &str = "no event ends its process more often than it may";
/// §5.4, §5.9, §5.14: when nothing moves by itself any more, nothing is left that is due.
pub const NOTHING_DUE_IS_LEFT: &str = "nothing that is due is left when all is quiet";
/// §2.7: event first, then cursor, and nobody waits in a ring.
pub const NO_DEADLOCK: &str = "of those who hold a lock, one can always go on";

impl Protocol {
    pub(crate) fn rules(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_TWICE, |_, s: &State| {
                s.db.effects.iter().all(|times| *times <= 1)
            }),
            Property::always(EFFECT_IFF_APPLIED, |_, s: &State| {
                each(|event| (s.db.effects[event] > 0) == (s.db.rows[event] == Row::Applied))
            }),
            Property::always(ANSWERS_ARE_TRUE, |_, s| {
                each(|event| answers_are_true(s, event))
            }),
            Property::always(IN_ORDER, |_, s: &State| {
                let applied = s.db.journal.iter().filter(|place| **place > 0);
                let should = (1..).filter(|sequence| !s.db.is_skipped(*sequence));
                applied.zip(should).all(|(is, should)| *is == should)
            }),
            Property::always(CURSOR, |model: &Self, s: &State| model.cursor_is_right(s)),
            Property::always(STORED_WHOLE, |_, s: &State| {
                each(|event| {
                    let waits_or_dead = matches!(s.db.rows[event], Row::Parked | Row::Dead(_));
                    s.db.pending[event].is_some() == waits_or_dead
                })
            }),
            Property::always(TURN_TO_COME, |model: &Self, s: &State| {
                each(|event| {
                    let passed = model.sequence(event).is_some_and(|sequence| {
                        sequence < s.db.cursor || s.db.is_skipped(sequence)
                    });
                    !(s.db.rows[event].waits() && passed)
                })
            }),
            Property::always(NO_LATE_LOSER, |_, s: &State| !s.marks.late_loser),
            Property::always(PARKED_BEHIND_GAP, |_, s: &State| !s.marks.parked_in_turn),
            Property::always(GIVEN_UP_FOR_GAP, |_, s: &State| !s.marks.given_up_in_turn),
            Property::always(CRASHES_ARE_BOUNDED, |model: &Self, s: &State| {
                let most = model.bounds.max_crashes;
                s.crashed.iter().all(|crashes| *crashes <= most)
            }),
            Property::always(NOTHING_DUE_IS_LEFT, |model: &Self, s: &State| {
                model.due(s).is_none() || !model.is_quiet(s)
            }),
            Property::always(NO_DEADLOCK, |model: &Self, s: &State| model.goes_on(s)),
        ]
    }

    fn cursor_is_right(&self, state: &State) -> bool {
        let is_applied = |sequence: u8| {
            (0..EVENTS).any(|event| {
                self.sequence(event) == Some(sequence) && state.db.rows[event] == Row::Applied
            })
        };
        let lowest = (1..).find(|it| !is_applied(*it) && !state.db.is_skipped(*it));
        lowest == Some(state.db.cursor)
    }

    /// Nothing happens by itself any more.
    pub fn is_quiet(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.progress(state, &mut actions);
        !actions
            .iter()
            .any(|action| self.after(state, *action).is_some())
    }

    fn goes_on(&self, state: &State) -> bool {
        let mut somebody_holds = false;
        for (who, event, step) in state.transactions() {
            if self.holds_event(who, step) || self.holds_cursor(who, event, step) {
                somebody_holds = true;
                if Self::next_of(who, step).is_some_and(|it| self.after(state, it).is_some()) {
                    return true;
                }
            }
        }
        let short = [
            (state.sweep.is_some(), Action::GiveUp),
            (
                state.skip.is_some_and(|skip| skip.holds_event),
                Action::PassOver,
            ),
        ];
        for (holds, next) in short {
            somebody_holds |= holds;
            if holds && self.after(state, next).is_some() {
                return true;
            }
        }
        !somebody_holds
    }
}

fn each(holds: impl Fn(usize) -> bool) -> bool {
    (0..EVENTS).all(holds)
}

fn answers_are_true(state: &State, event: usize) -> bool {
    let (told, row) = (state.told[event], state.db.rows[event]);
    (!told.applied || row == Row::Applied) && (!told.parked && !told.rejected || row != Row::Absent)
}
