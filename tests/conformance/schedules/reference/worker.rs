//! What the worker does by itself: one attempt after the other, and gaps that it gives up.

use super::deliver::Ran;
use super::{
    Id, LONGEST_BACKOFF, Lie, MAX_ATTEMPTS, MAX_CRASHES, Reason, Reference, Row, State, WINDOW,
};

/// What the worker may do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::schedules) enum Move {
    /// Claims an event that is due, or gives it up for its crashes.
    Claim(Id),
    /// Runs what it has claimed.
    Finish(Id),
    /// Gives up waiting for the gap before it.
    Expire(Id),
}

impl Reference {
    /// Everything that the worker could do now. Nothing: it is idle.
    pub(in crate::schedules) fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for (id, row) in &self.rows {
            if row.leased {
                moves.push(Move::Finish(*id));
            } else if self.is_due(*id, row) {
                moves.push(Move::Claim(*id));
            }
            if self.is_given_up(*id, row) {
                moves.push(Move::Expire(*id));
            }
        }
        moves
    }

    pub(in crate::schedules) fn make(&mut self, next: Move) {
        match next {
            Move::Claim(id) => {
                let row = self.row(id);
                if row.unfinished >= MAX_CRASHES {
                    row.ended();
                    self.decide(id, State::Dead(Reason::Crash));
                } else {
                    row.attempts += 1;
                    row.unfinished += 1;
                    (row.leased, row.left_behind) = (true, false);
                }
            }
            Move::Finish(id) => self.finish(id),
            Move::Expire(id) => self.decide(id, State::Dead(Reason::Gap)),
        }
    }

    fn finish(&mut self, id: Id) {
        let (row, ready_at) = (self.rows[&id], self.now + LONGEST_BACKOFF);
        let ran = self.run(id, row.content);
        let kept = self.row(id);
        kept.ended();
        match ran {
            Ran::Applied => {
                if !row.out_of_order {
                    self.pass(id);
                }
                self.applied(id, row.content);
            }
            Ran::Failed if row.attempts >= MAX_ATTEMPTS => {
                self.decide(id, State::Dead(Reason::Handler));
            }
            Ran::Failed => kept.ready_at = ready_at,
            Ran::Rejected => self.decide(id, State::Dead(Reason::Rejected)),
        }
    }

    /// §1: parked, or dead for a gap, and its sequence equals the cursor; or it waits for no turn.
    fn is_due(&self, id: Id, row: &Row) -> bool {
        let in_turn = match id.place() {
            Some((stream, n)) if !row.out_of_order => match row.state {
                State::Parked if self.lies(Lie::AReplayComesAtOnce) => true,
                State::Parked | State::Dead(Reason::Gap) => n == self.next(stream) && !row.yielded,
                _ => false,
            },
            _ => row.state == State::Parked,
        };
        in_turn && row.ready_at <= self.now
    }

    /// §5.4: nobody is there that waits for the handler only.
    fn is_given_up(&self, id: Id, row: &Row) -> bool {
        let Some((stream, _)) = id.place() else {
            return false;
        };
        let next = self.next(stream);
        let has_head = self
            .rows
            .iter()
            .any(|(head, row)| head.place() == Some((stream, next)) && row.state == State::Parked);
        row.state == State::Parked
            && !row.out_of_order
            && row.parked_at + WINDOW <= self.now
            && !has_head
            && !self.lies(Lie::AGapIsWaitedForForEver)
    }
}
