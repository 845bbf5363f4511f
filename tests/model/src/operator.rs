//! What an operator decides: `src/dispatch/verbs.rs`. Event first, then cursor, as everywhere.

use crate::state::{EVENTS, Pending, Reason, Row, Skip, State};
use crate::{Mutation, Protocol};

impl Protocol {
    fn event_at(&self, sequence: u8) -> Option<usize> {
        (0..EVENTS).find(|event| self.sequence(*event) == Some(sequence))
    }

    /// A sequence will never be applied, by the cursor that the operator sees now.
    pub(crate) fn skip(&self, state: &mut State, event: usize) -> Option<()> {
        let sequence = self.sequence(event)?;
        if state.skip.is_some() || sequence < state.db.cursor || state.db.is_skipped(sequence) {
            return None;
        }
        state.skips = state.skips.checked_sub(1)?;
        state.skip = Some(Skip {
            sequence,
            seen: state.db.cursor,
            looked: false,
            holds_event: false,
        });
        Some(())
    }

    /// BEGIN, and what is stored for the sequence is locked and set aside. Where nothing is, there is nothing to lock.
    pub(crate) fn set_aside(&self, state: &mut State) -> Option<()> {
        let skip = state.skip.filter(|skip| !skip.looked)?;
        let event = self.event_at(skip.sequence)?;
        let stored = matches!(state.db.rows[event], Row::Parked | Row::Dead(_));
        if stored && self.event_is_locked(state, event) {
            return None;
        }
        state.skip = Some(Skip {
            looked: true,
            holds_event: stored,
            ..skip
        });
        Some(())
    }

    /// The cursor, which must be what the operator saw; again what is stored, now that nobody can park; and COMMIT.
    pub(crate) fn pass_over(&self, state: &mut State) -> Option<()> {
        let skip = state.skip.filter(|skip| skip.looked)?;
        if self.cursor_is_locked(state, None) {
            return None;
        }
        state.skip = None;
        if state.db.cursor != skip.seen {
            return Some(());
        }
        let event = self.event_at(skip.sequence)?;
        let row = state.db.rows[event];
        let stored = matches!(row, Row::Parked | Row::Dead(_));
        let looks_again = !self.is(Mutation::SkipLooksOnce);
        if stored && looks_again && self.event_is_locked(state, event) {
            // A redelivery has the event and waits for the cursor. The database ends one of the two; say, this one.
            // It begins again.
            state.skip = Some(Skip {
                looked: false,
                holds_event: false,
                ..skip
            });
            return Some(());
        }
        state.db.skipped |= 1 << skip.sequence;
        state.db.cursor = state.db.land(state.db.cursor);
        if stored && (skip.holds_event || looks_again) {
            state.db.rows[event] = Row::Dead(Reason::Skipped);
        }
        Some(())
    }

    /// A dead letter goes back into its turn: a short transaction that has both locks at its commit.
    pub(crate) fn replay(&self, state: &mut State, event: usize) -> Option<()> {
        let Row::Dead(reason) = state.db.rows[event] else {
            return None;
        };
        let to_come = self
            .sequence(event)
            .is_some_and(|sequence| sequence >= state.db.cursor && !state.db.is_skipped(sequence));
        let free = !self.event_is_locked(state, event) && !self.cursor_is_locked(state, None);
        if !to_come || !free || reason == Reason::Skipped {
            return None;
        }
        state.replays = state.replays.checked_sub(1)?;
        state.db.rows[event] = Row::Parked;
        state.db.pending[event] = Some(Pending::default());
        state.crashed[event] = 0;
        Some(())
    }
}
