//! What people do, and what time and restarts do.

use super::{Answer, Id, Lie, RETENTION, Reason, Reference, State};

impl Reference {
    /// A skip of `n`, by the cursor as it is or by another one.
    pub(in crate::schedules) fn skip(&mut self, stream: u8, n: i64, stale: bool) -> Answer {
        if self.is_skipped(stream, n) {
            return Answer::Already;
        }
        if stale {
            return Answer::Error("CursorMoved");
        }
        if n < self.next(stream) {
            return Answer::Error("Applied");
        }
        for (id, row) in &mut self.rows {
            let is_open = !matches!(row.state, State::Applied | State::Discarded);
            if id.place() == Some((stream, n)) && is_open {
                row.state = State::Dead(Reason::Skipped);
                row.out_of_order = false;
                row.decided_at = self.now;
            }
        }
        self.never(stream, n);
        Answer::Done
    }

    fn never(&mut self, stream: u8, n: i64) {
        let lies = self.lies(Lie::ASkipFreesNobody);
        let stream = self.streams.entry(stream).or_default();
        stream.never.insert(n);
        if !lies {
            stream.land();
        }
    }

    pub(in crate::schedules) fn discard(&mut self, id: Id) -> Answer {
        let Some(row) = self.rows.get(&id).copied() else {
            return Answer::Error("NotFound");
        };
        match row.state {
            State::Applied => return Answer::Error("Applied"),
            State::Discarded => return Answer::Already,
            State::Parked | State::Dead(_) => {}
        }
        self.decide(id, State::Discarded);
        if let Some((stream, n)) = id.place()
            && !row.yielded
        {
            self.streams.entry(stream).or_default();
            if n >= self.next(stream) {
                self.never(stream, n);
            }
        }
        Answer::Done
    }

    /// Back into its turn, or out of its order where that never comes.
    pub(in crate::schedules) fn replay(&mut self, id: Id, out_of_order: bool) -> Answer {
        let Some(row) = self.rows.get(&id).copied() else {
            return Answer::Error("NotFound");
        };
        match row.state {
            State::Applied => return Answer::Already,
            State::Discarded => return Answer::Error("Closed"),
            State::Parked | State::Dead(_) => {}
        }
        if row.yielded {
            return Answer::Error("Yielded");
        }
        let never = id
            .place()
            .map(|(stream, n)| n < self.next(stream) || self.is_skipped(stream, n));
        match never {
            Some(false) if out_of_order => return Answer::Error("InTurn"),
            _ if row.state == State::Parked => return Answer::Already,
            Some(true) if !out_of_order => return Answer::Error("SetAside"),
            _ => {}
        }
        if let Some((stream, _)) = id.place() {
            self.streams.entry(stream).or_default();
        }
        let now = self.now;
        let row = self.row(id);
        row.attempts = 0;
        row.ended();
        (row.parked_at, row.ready_at) = (now, 0);
        row.out_of_order = never == Some(true);
        self.decide(id, State::Parked);
        Answer::Done
    }

    /// §6.1
    pub(in crate::schedules) fn rotate(&mut self) -> Answer {
        if self.secrets.len() == 2 {
            return Answer::Error("TooMany");
        }
        self.secrets.insert(0, self.secrets_ever);
        self.secrets_ever += 1;
        Answer::Done
    }

    pub(in crate::schedules) fn revoke_oldest(&mut self) -> Answer {
        if self.secrets.len() == 1 {
            return Answer::Error("None");
        }
        self.secrets.pop();
        Answer::Done
    }

    /// §7.1, §7.2
    pub(in crate::schedules) fn purge(&mut self) {
        let now = self.now;
        let (old, kept) = std::mem::take(&mut self.rows)
            .into_iter()
            .partition(|(_, row)| row.state == State::Applied && row.decided_at + RETENTION < now);
        self.rows = kept;
        if self.remembers {
            let old: std::collections::BTreeMap<_, _> = old;
            let old = old.into_iter().map(|(id, row)| (id, row.content));
            self.remembered.extend(old);
        }
        if self.lies(Lie::APurgeForgetsCursors) {
            self.streams.clear();
        }
    }

    /// Another process begins.
    pub(in crate::schedules) fn restart(&mut self) {
        self.remembered.clear();
        self.refused_before.clear();
    }

    /// The worker is gone, and its leases have run out.
    pub(in crate::schedules) fn crash(&mut self) {
        for row in self.rows.values_mut() {
            row.left_behind |= std::mem::take(&mut row.leased);
        }
        if self.lies(Lie::ACrashTakesAnAcknowledgedEvent) {
            let last = self
                .rows
                .iter()
                .find(|(_, row)| row.state == State::Applied);
            if let Some(id) = last.map(|(id, _)| *id) {
                self.rows.remove(&id);
            }
        }
        self.ran.clear();
        self.refused.clear();
        self.plans.clear();
        self.restart();
    }

    /// Whether the worker has left something that it was at.
    pub(in crate::schedules) fn has_leases(&self) -> bool {
        self.rows.values().any(|row| row.leased || row.left_behind)
    }

    /// Whether it was applied, and only its cursor tells.
    pub(in crate::schedules) fn has_forgotten(&self) -> bool {
        let applied = self.ledger.values().flatten();
        applied
            .into_iter()
            .any(|(id, _)| !self.rows.contains_key(id))
    }
}
