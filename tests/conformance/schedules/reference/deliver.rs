//! Deliveries, and the handler with the producer waiting.

use std::cmp::Ordering;

use super::{Answer, Id, Lie, Plan, Reason, Reference, Row, State};

/// What came of the handler.
pub(super) enum Ran {
    Applied,
    Failed,
    Rejected,
}

impl Reference {
    /// A delivery with this content, signed with that secret. Successors that become due are the worker's.
    pub(in crate::schedules) fn deliver(
        &self,
        id: Id,
        content: u8,
        secret: u8,
    ) -> Vec<(Answer, Self)> {
        let signs = self.secrets.contains(&secret)
            || self.lies(Lie::ARevokedSecretStillSigns) && secret < self.secrets_ever;
        if !signs {
            return vec![(Answer::Refused, self.clone())];
        }
        let mut outcomes = Vec::new();
        let mut here = self.clone();
        if !self.rows.contains_key(&id)
            && let Some(known) = here.remembered.remove(&id)
        {
            let answer = if known == content {
                Answer::Duplicate
            } else {
                Answer::OtherContent
            };
            outcomes.push((answer, self.clone()));
        }
        let answer = match self.rows.get(&id) {
            Some(row) => here.deliver_known(id, *row, content),
            None => here.deliver_new(id, content),
        };
        if matches!(answer, Answer::PlaceTaken | Answer::OtherContent) {
            here.refused.insert((id, true));
        }
        outcomes.push((answer, here));
        outcomes
    }

    /// §3, §4.12, §5.6, §5.11
    fn deliver_known(&mut self, id: Id, row: Row, content: u8) -> Answer {
        if row.content != content {
            return Answer::OtherContent;
        }
        match row.state {
            State::Applied if !self.lies(Lie::DuplicatesAreAppliedAgain) => {
                return Answer::Duplicate;
            }
            State::Discarded => return Answer::Discarded,
            State::Dead(Reason::Skipped) => return Answer::SetAside,
            _ => {}
        }
        let Some((stream, n)) = id.place() else {
            return match row.state {
                State::Dead(Reason::Crash) => Answer::SetAside,
                _ => self.run_live(id, Some(row), content),
            };
        };
        let next = self.next(stream);
        if row.yielded {
            return Answer::PlaceTaken;
        }
        // On its way out of its order, it waits for the worker.
        let on_its_way = row.state == State::Parked && row.out_of_order && n > next;
        if row.state != State::Applied && self.is_skipped(stream, n) && !on_its_way {
            return Answer::SetAside;
        }
        match n.cmp(&next) {
            Ordering::Less if row.state != State::Applied => Answer::SetAside,
            Ordering::Greater => Answer::Parked(next),
            _ if row.state == State::Dead(Reason::Crash) => Answer::Parked(next),
            _ => self.run_live(id, Some(row), content),
        }
    }

    /// §4.3, §5.1
    fn deliver_new(&mut self, id: Id, content: u8) -> Answer {
        let Some((stream, n)) = id.place() else {
            return self.run_live(id, None, content);
        };
        let before = self.clone();
        if let Some((holder, row)) = self.holder(id) {
            let is_dead = matches!(row.state, State::Dead(_));
            if !is_dead || self.lies(Lie::ADeadLetterKeepsItsPlace) {
                return Answer::PlaceTaken;
            }
            self.row(holder).yielded = true;
        }
        let next = self.next(stream);
        if self.is_skipped(stream, n) {
            self.store(id, State::Dead(Reason::Skipped), content);
            return Answer::SetAside;
        }
        match n.cmp(&next) {
            Ordering::Less => {
                // Its row was purged.
                *self = before;
                Answer::Duplicate
            }
            Ordering::Greater => {
                self.streams.entry(stream).or_default();
                self.store(id, State::Parked, content);
                Answer::Parked(next)
            }
            Ordering::Equal => {
                let answer = self.run_live(id, None, content);
                if answer == Answer::Failed {
                    let ran = std::mem::take(&mut self.ran);
                    let refused = std::mem::take(&mut self.refused);
                    *self = Self {
                        ran,
                        refused,
                        ..before
                    };
                }
                answer
            }
        }
    }

    /// Who holds the place of an event that is not stored.
    fn holder(&self, id: Id) -> Option<(Id, Row)> {
        let (id, row) = self.rows.iter().find(|(other, row)| {
            other.place() == id.place() && !row.yielded && row.state != State::Discarded
        })?;
        Some((*id, *row))
    }

    pub(super) fn row(&mut self, id: Id) -> &mut Row {
        self.rows.get_mut(&id).expect("it is stored")
    }

    fn store(&mut self, id: Id, state: State, content: u8) {
        let row = Row {
            state,
            content,
            yielded: false,
            attempts: u32::from(state == State::Dead(Reason::Rejected)),
            unfinished: 0,
            leased: false,
            left_behind: false,
            out_of_order: false,
            parked_at: self.now,
            decided_at: self.now,
            ready_at: 0,
        };
        self.rows.insert(id, row);
    }

    /// The handler, with the producer waiting: nothing is stored of a failure.
    fn run_live(&mut self, id: Id, known: Option<Row>, content: u8) -> Answer {
        match self.run(id, content) {
            Ran::Applied => {
                if known.is_none_or(|row| row.state != State::Applied) {
                    self.pass(id);
                }
                self.applied(id, content);
                Answer::Applied
            }
            Ran::Failed => Answer::Failed,
            Ran::Rejected => {
                match known {
                    None => self.store(id, State::Dead(Reason::Rejected), content),
                    Some(_) => {
                        let row = self.row(id);
                        row.attempts += 1;
                        row.ended();
                        self.decide(id, State::Dead(Reason::Rejected));
                    }
                }
                if self.lies(Lie::ARejectionMovesTheCursor) {
                    self.pass(id);
                }
                Answer::Rejected
            }
        }
    }

    pub(super) fn run(&mut self, id: Id, content: u8) -> Ran {
        self.ran.insert(id);
        match self.plans.get(&id) {
            None => Ran::Applied,
            Some(Plan::Reject) => {
                self.refused.insert((id, true));
                Ran::Rejected
            }
            Some(Plan::Fail | Plan::Panic | Plan::Break) => {
                self.refused.insert((id, false));
                if self.lies(Lie::AFailedRunLeavesItsLine) {
                    self.append(id, content);
                }
                Ran::Failed
            }
        }
    }

    fn append(&mut self, id: Id, content: u8) {
        let lane = (id.stream, id.stream.map_or(id.n, |_| 0));
        self.ledger.entry(lane).or_default().push((id, content));
    }

    /// The cursor behind an event that is applied in its turn.
    pub(super) fn pass(&mut self, id: Id) {
        if let Some((stream, _)) = id.place() {
            let stream = self.streams.entry(stream).or_default();
            stream.next += 1;
            stream.land();
        }
    }

    pub(super) fn applied(&mut self, id: Id, content: u8) {
        let yielded = self.rows.get(&id).is_some_and(|row| row.yielded);
        self.store(id, State::Applied, content);
        self.row(id).yielded = yielded;
        self.append(id, content);
    }

    pub(super) fn decide(&mut self, id: Id, state: State) {
        let now = self.now;
        let row = self.row(id);
        (row.state, row.decided_at) = (state, now);
    }
}
