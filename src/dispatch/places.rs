//! What a live delivery holds while its transaction is open: its stream's turn, and a place among those that may hold a
//! connection.

use std::future::Future;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use super::group_commit::{Baton, Ticket, Turn, Waited, or_joined};
use super::open::Open;
use super::patience;
use crate::answer::Answer;
use crate::envelope::{Envelope, Sequence};
use crate::lane::{Entering, Joins, Lane, Way};
use crate::shared::{Shared, permit};
use crate::source::SourceState;
use crate::store::Backend;

/// A delivery that waits for its places.
pub(crate) struct Waits<'a, DB: Backend> {
    shared: &'a Arc<Shared<DB>>,
    source: &'a Arc<SourceState>,
    envelope: &'a Envelope,
    deadline: Instant,
    /// It takes part in groups.
    shares: bool,
    /// Of any deliveries, not of its stream alone.
    joins_any: bool,
    ticket: Ticket,
    joins: Option<Arc<Joins>>,
}

impl<'a, DB: Backend> Waits<'a, DB> {
    pub(crate) fn new(
        shared: &'a Arc<Shared<DB>>,
        source: &'a Arc<SourceState>,
        envelope: &'a Envelope,
        is_fenced: bool,
        deadline: Instant,
    ) -> Self {
        let groups = &shared.group_commit;
        let is_next_of_another = envelope.correlation_id.is_some() && envelope.sequence.is_some();
        let shares = groups.takes_part(source);
        let waits_for_nobody = !is_fenced && envelope.version.is_none();
        Self {
            shared,
            source,
            envelope,
            deadline,
            shares,
            // Where others write at the same time, only what enters without waiting for any of them: two groups that did
            // would wait for each other.
            joins_any: shares && DB::JOINS_ANY && (DB::SINGLE_WRITER || waits_for_nobody),
            ticket: groups.ticket(),
            joins: (shares && is_next_of_another && (DB::SINGLE_WRITER || !is_fenced))
                .then(|| Joins::new(source.batch())),
        }
    }

    /// The stream's turn, a place among those that may hold a connection, and the one writer's turn. Or an open transaction,
    /// with the stream's turn or while it waits for what comes after it: it goes on in the place of the one that has begun
    /// that, which waits until the group has ended.
    pub(crate) async fn places(&self) -> Result<(Places<DB>, Turn<DB>), Answer> {
        let places = Places {
            shared: Arc::clone(self.shared),
            source: Arc::clone(self.source),
            sequence: self.envelope.sequence.map(Sequence::get),
            held: Mutex::new(Held {
                stream: InStream::Nothing,
                in_source: false,
                in_all: false,
            }),
        };
        match &self.envelope.correlation_id {
            // What is only stored waits for no handler.
            Some(id) if self.envelope.is_ordered() && !self.source.is_deferred() => {
                let (name, joins) = (self.source.name_arc(), self.joins.clone());
                let lanes = &self.shared.lanes;
                let entering = lanes.line_up(&name, id.as_arc(), places.sequence, joins);
                if let Some(baton) = places.enter(entering, self.deadline).await? {
                    return Ok((places, Turn::Joined(baton)));
                }
            }
            _ => {}
        }
        // It may be handed a transaction in place of its turn to write, where the database has one writer, and in place of a
        // connection otherwise. The source's own place it needs in any case: that limits how many of its handlers run.
        let until = patience(self.deadline);
        places.count_in_source(until).await?;
        let of_all = permit(&self.shared.in_flight, until);
        match self.or_joined(!DB::SINGLE_WRITER, of_all).await {
            Waited::Joined(baton) => return Ok((places, Turn::Joined(baton))),
            Waited::For(of_all) => places.count_in_all(of_all)?,
        }
        let writer = self.shared.turn_within(patience(self.deadline));
        match self.or_joined(DB::SINGLE_WRITER, writer).await {
            Waited::Joined(baton) => Ok((places, Turn::Joined(baton))),
            Waited::For(Ok(permit)) => {
                let shares = self.shares;
                Ok((places, Turn::Own { permit, shares }))
            }
            Waited::For(Err(())) => Err(Answer::busy("deliveries that wait to write")),
        }
    }

    async fn or_joined<T>(&self, may: bool, wait: impl Future<Output = T>) -> Waited<DB, T> {
        match may && self.joins_any {
            true => or_joined(self.shared, self.source, self.ticket, wait).await,
            false => Waited::For(wait.await),
        }
    }

    /// From now on it is handed nothing until it says that it is back. What it was handed before is there when it looks.
    pub(crate) fn away(&self) {
        self.shared.group_commit.away(self.ticket);
        if let Some(joins) = &self.joins {
            self.shared.lanes.away(joins);
        }
    }

    pub(crate) fn back(&self) {
        self.shared.group_commit.back(self.ticket);
        if let Some(joins) = &self.joins {
            self.shared.lanes.back(joins);
        }
    }
}

/// See above.
pub(crate) struct Places<DB: Backend> {
    shared: Arc<Shared<DB>>,
    source: Arc<SourceState>,
    sequence: Option<i64>,
    held: Mutex<Held<DB>>,
}

struct Held<DB: Backend> {
    stream: InStream<DB>,
    /// Among those of its source in flight.
    in_source: bool,
    /// And among all.
    in_all: bool,
}

enum InStream<DB: Backend> {
    /// It has no order, or has given its turn away.
    Nothing,
    Turn(Lane<Baton<DB>>),
    /// It has come back.
    Enters(Entering<Baton<DB>>),
}

impl<DB: Backend> Places<DB> {
    fn lock(&self) -> MutexGuard<'_, Held<DB>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its stream's turn, and for what may be given with it.
    async fn enter(
        &self,
        entering: Entering<Baton<DB>>,
        deadline: Instant,
    ) -> Result<Option<Baton<DB>>, Answer> {
        let entered = entering.within(patience(deadline)).await;
        let (lane, given) =
            entered.ok_or_else(|| Answer::busy("deliveries of this correlation id"))?;
        self.lock().stream = InStream::Turn(lane);
        Ok(given)
    }

    /// Waits for a place among those in flight.
    async fn count(&self, deadline: Instant) -> Result<(), Answer> {
        let until = patience(deadline);
        self.count_in_source(until).await?;
        let counts = self.lock().in_all;
        match counts {
            true => Ok(()),
            false => self.count_in_all(permit(&self.shared.in_flight, until).await),
        }
    }

    async fn count_in_source(&self, until: Instant) -> Result<(), Answer> {
        let counts = self.lock().in_source;
        if !counts {
            let permit = permit(self.source.in_flight(), until).await;
            // Given back in `uncount`.
            permit.map_err(|()| in_flight())?.forget();
            self.lock().in_source = true;
        }
        Ok(())
    }

    fn count_in_all(&self, permit: Result<SemaphorePermit<'_>, ()>) -> Result<(), Answer> {
        permit.map_err(|()| in_flight())?.forget();
        self.lock().in_all = true;
        Ok(())
    }

    fn uncount(&self, held: &mut Held<DB>) {
        if mem::take(&mut held.in_source) {
            self.source.in_flight().add_permits(1);
        }
        if mem::take(&mut held.in_all) {
            self.shared.in_flight.add_permits(1);
        }
    }

    /// How it comes back to its place in its stream.
    pub(super) fn way(&self) -> Option<Way<Baton<DB>>> {
        match &self.lock().stream {
            InStream::Turn(lane) => Some(lane.way(self.sequence?)),
            _ => None,
        }
    }

    fn next(&self) -> Option<i64> {
        self.sequence?.checked_add(1)
    }

    /// Whether the very next one of its stream waits for its turn, and would go on in its transaction.
    pub(super) fn has_next(&self) -> bool {
        match (&self.lock().stream, self.next()) {
            (InStream::Turn(lane), Some(next)) => lane.has_joiner(next, 1),
            _ => false,
        }
    }

    /// Hands the transaction on with the stream's turn, if the very next one of the stream waits for that, and the group may
    /// grow; otherwise it is given back.
    pub(super) fn hand_on<'a>(&self, open: Open<'a, DB>) -> Option<Open<'a, DB>> {
        let Some(members) = open.members().filter(|members| members.may_grow()) else {
            return Some(open);
        };
        let count = members.count();
        let mut held = self.lock();
        let (lane, next) = match (
            mem::replace(&mut held.stream, InStream::Nothing),
            self.next(),
        ) {
            (InStream::Turn(lane), Some(next)) if lane.has_joiner(next, count) => (lane, next),
            (stream, _) => {
                held.stream = stream;
                return Some(open);
            }
        };
        let shared = open.shared();
        let baton = Baton::new(Arc::clone(&self.shared), open);
        match lane.give(next, count, baton) {
            Ok(()) => None,
            Err((lane, baton)) => {
                held.stream = InStream::Turn(lane);
                Some(baton.take(shared))
            }
        }
    }

    /// Gives back what it has, to wait for its places anew. Its place in its stream it has at once, if not already.
    pub(super) fn start_over(&self, entering: Option<Entering<Baton<DB>>>) {
        let mut held = self.lock();
        let entering = match (&held.stream, entering) {
            (_, Some(entering)) => entering,
            (InStream::Turn(lane), None) => match self.sequence {
                Some(sequence) => lane.way(sequence).enter(),
                // Who has none keeps its turn.
                None => return,
            },
            _ => return,
        };
        // Whoever waits for its stream may wait for its place among those in flight: that goes first.
        self.uncount(&mut held);
        held.stream = InStream::Enters(entering);
    }

    /// Waits for what it has given back.
    pub(super) async fn renew(&self, deadline: Instant) -> Result<(), Answer> {
        let entering = {
            let mut held = self.lock();
            match mem::replace(&mut held.stream, InStream::Nothing) {
                InStream::Enters(entering) => Some(entering),
                stream => {
                    held.stream = stream;
                    None
                }
            }
        };
        if let Some(entering) = entering {
            // Who does not join is given nothing.
            drop(self.enter(entering, deadline).await?);
        }
        self.count(deadline).await
    }
}

fn in_flight() -> Answer {
    Answer::busy("deliveries in flight")
}

impl<DB: Backend> Drop for Places<DB> {
    fn drop(&mut self) {
        let mut held = self.lock();
        self.uncount(&mut held);
    }
}
