//! Group commit: one transaction for live deliveries that wait at the same time: for a connection, for the one writer's
//! turn, or for their stream's.
//!
//! A delivery whose handler has succeeded hands its open transaction on to one that waits, instead of committing it; the
//! last of them commits for all. The next one of its stream has it with the stream's turn ([`Places`](super::Places)), if
//! that waits; otherwise it is any of those that wait. Each runs its own code in its own future, so that nothing is shared
//! but the transaction.
//!
//! A group holds the rows of several events and streams. Where others write at the same time, those that join it do not wait
//! for what these hold ([`Backend::insert_behind`]), so that two groups do not wait for each other but by what their
//! handlers do.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use super::open::{Open, OpenParts};
use crate::broken::{self, Variant};
use crate::lane::{Entering, Way};
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::Backend;

/// So many deliveries run alone after the first group that was undone in a row.
const ALONE: u32 = 8;
/// And no more than so many, however many were: a handler may have been mended.
const MOST_ALONE: u32 = 1024;

/// The deliveries of one inbox that would go on in another one's transaction.
pub(crate) struct GroupCommit<DB: Backend> {
    waiting: Mutex<VecDeque<Waiter<DB>>>,
    tickets: AtomicU64,
    /// So many deliveries are to run alone, since groups came to nothing.
    alone: AtomicU32,
    /// The same of the next time.
    penalty: AtomicU32,
}

struct Waiter<DB: Backend> {
    ticket: Ticket,
    look: Look,
    /// The most members of a group that it takes part in.
    batch: usize,
    to: oneshot::Sender<Baton<DB>>,
    shared: Arc<Shared<DB>>,
}

/// Whether it looks for something else just now, and would keep a transaction waiting: once at most.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    NotYet,
    Away,
    Done,
}

/// Whose place it is among those that wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// How a delivery comes to its transaction.
pub(crate) enum Turn<DB: Backend> {
    /// By beginning it.
    Own {
        permit: Option<OwnedSemaphorePermit>,
        /// Those that wait when it is done may go on in it.
        shares: bool,
    },
    /// It is open, and others have written in it.
    Joined(Baton<DB>),
}

/// How a group ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Committed,
    /// Nothing of it is committed, as far as it was ours to commit.
    Undone,
    Unknown,
}

impl Fate {
    fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Undone => "undone",
            Self::Unknown => "unknown",
        }
    }
}

/// How a group ended, for one of its members. Undone, it has a place in its stream's queue again: before anybody else has its
/// turn.
pub(super) struct End<DB: Backend> {
    pub(super) fate: Fate,
    pub(super) entering: Option<Entering<Baton<DB>>>,
}

/// Those who share a transaction. Dropped without a word, they are undone.
pub(super) struct Members<DB: Backend> {
    waiting: Vec<Member<DB>>,
    most: usize,
    /// Nobody joins later.
    until: Instant,
    /// COMMIT may have been sent.
    committing: bool,
    told: bool,
}

/// One that has succeeded.
struct Member<DB: Backend> {
    end: oneshot::Sender<End<DB>>,
    way: Option<Way<Baton<DB>>>,
}

impl<DB: Backend> Members<DB> {
    pub(super) fn new(source: &SourceState, began: Instant) -> Self {
        Self {
            waiting: Vec::new(),
            most: source.batch(),
            until: began + source.batch_time(),
            committing: false,
            told: false,
        }
    }

    /// One more has succeeded, and waits for what becomes of it.
    pub(super) fn add(
        &mut self,
        source: &SourceState,
        way: Option<Way<Baton<DB>>>,
    ) -> oneshot::Receiver<End<DB>> {
        let (end, told) = oneshot::channel();
        self.waiting.push(Member { end, way });
        self.most = self.most.min(source.batch());
        told
    }

    pub(super) fn count(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_committing(&mut self) {
        self.committing = true;
    }

    pub(super) fn tell(&mut self, fate: Fate) {
        self.told = true;
        metrics::counter!("inbox_group_commits_total", "outcome" => fate.as_str()).increment(1);
        if fate == Fate::Committed {
            let count = u64::try_from(self.count()).unwrap_or(u64::MAX);
            metrics::counter!("inbox_group_commit_deliveries_total").increment(count);
        }
        for Member { end, way } in self.waiting.drain(..) {
            let way = way.filter(|_| fate == Fate::Undone);
            let entering = way.map(|way| way.enter());
            // Who is not there any more gives its place up again.
            drop(end.send(End { fate, entering }));
        }
    }

    pub(super) fn may_grow(&self) -> bool {
        self.count() < self.most && Instant::now() < self.until
    }
}

impl<DB: Backend> Drop for Members<DB> {
    fn drop(&mut self) {
        if !self.told {
            self.tell(match self.committing {
                true => Fate::Unknown,
                false => Fate::Undone,
            });
        }
    }
}

/// Waits for it. A group that nobody can tell about has no known end.
pub(super) async fn told<DB: Backend>(end: oneshot::Receiver<End<DB>>) -> End<DB> {
    let of = |fate| End {
        fate,
        entering: None,
    };
    if broken::is(Variant::GroupToldEarly) {
        return of(Fate::Committed);
    }
    end.await.unwrap_or_else(|_| of(Fate::Unknown))
}

/// An open transaction on its way to its next member. Dropped on the way, it is undone with its connection.
pub(crate) struct Baton<DB: Backend> {
    shared: Arc<Shared<DB>>,
    parts: Option<Box<OpenParts<DB>>>,
}

impl<DB: Backend> Baton<DB> {
    pub(super) fn new(shared: Arc<Shared<DB>>, open: Open<'_, DB>) -> Self {
        Self {
            shared,
            parts: Some(Box::new(open.into_parts())),
        }
    }

    /// Its next member has it.
    pub(super) fn take<'a>(mut self, shared: &'a Shared<DB>) -> Open<'a, DB> {
        let parts = self.parts.take();
        Open::from_parts(shared, *parts.expect("it is taken once"))
    }
}

impl<DB: Backend> Drop for Baton<DB> {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            drop(Open::from_parts(&self.shared, *parts));
        }
    }
}

impl<DB: Backend> Default for GroupCommit<DB> {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            tickets: AtomicU64::default(),
            alone: AtomicU32::default(),
            penalty: AtomicU32::default(),
        }
    }
}

impl<DB: Backend> GroupCommit<DB> {
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.tickets.fetch_add(1, Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiter<DB>>> {
        // The queue is whole after every statement under its lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a delivery of this source takes part in groups. Asked once for each.
    pub(crate) fn takes_part(&self, source: &SourceState) -> bool {
        source.batch() > 1
            && !source.is_deferred()
            && source.handler_time().is_short(source.batch_time())
            && !self.is_to_run_alone()
    }

    fn is_to_run_alone(&self) -> bool {
        let less = |alone: u32| alone.checked_sub(1);
        self.alone
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }

    /// A group was undone, or a handler ran for nothing in it: the next deliveries run alone, twice as many each time.
    pub(super) fn failed(&self) {
        let doubled = |penalty: u32| Some((penalty * 2).clamp(ALONE, MOST_ALONE));
        let before = self
            .penalty
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, doubled);
        let before = before.unwrap_or_default();
        self.alone
            .store((before * 2).clamp(ALONE, MOST_ALONE), Ordering::Relaxed);
    }

    /// A group was committed.
    pub(super) fn succeeded(&self) {
        let halved = |penalty: u32| (penalty > 0).then_some(penalty / 2);
        let _ = self
            .penalty
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, halved);
    }

    /// Whoever has this ticket is not handed anything until it says that it is back. What it was handed before is there when
    /// it looks.
    pub(super) fn away(&self, ticket: Ticket) {
        self.set_look(ticket, Look::Away);
    }

    pub(super) fn back(&self, ticket: Ticket) {
        self.set_look(ticket, Look::Done);
    }

    fn set_look(&self, ticket: Ticket, look: Look) {
        let mut waiting = self.lock();
        let found = waiting.iter_mut().find(|waiter| waiter.ticket == ticket);
        if let Some(waiter) = found {
            waiter.look = look;
        }
    }

    #[cfg(feature = "failpoints")]
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let waiting = self.lock();
        let have_looked = waiting.iter().filter(|waiter| waiter.look == Look::Done);
        (waiting.len(), have_looked.count())
    }

    pub(super) fn anybody_waits(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Hands it on to one that waits, if there is one and the group may grow; otherwise it is given back.
    pub(super) fn hand_on<'a>(&self, mut open: Open<'a, DB>) -> Option<Open<'a, DB>> {
        let Some(count) = open.members().filter(|members| members.may_grow()) else {
            return Some(open);
        };
        let (count, shared) = (count.count(), open.shared());
        let mut waiting = self.lock();
        let fits = |waiter: &Waiter<DB>| waiter.look != Look::Away && waiter.batch > count;
        while let Some(at) = waiting.iter().position(fits) {
            let Some(waiter) = waiting.remove(at) else {
                break;
            };
            let baton = Baton::new(waiter.shared, open);
            // Under the lock, so that who gives its place up knows whether it was handed something.
            match waiter.to.send(baton) {
                Ok(()) => return None,
                Err(back) => open = back.take(shared),
            }
        }
        Some(open)
    }
}

/// A place among those that wait, given up when dropped.
struct Seat<'a, DB: Backend> {
    of: &'a GroupCommit<DB>,
    ticket: Ticket,
    from: oneshot::Receiver<Baton<DB>>,
}

impl<DB: Backend> Seat<'_, DB> {
    fn give_up(&mut self) {
        let mut waiting = self.of.lock();
        let mine = waiting
            .iter()
            .position(|waiter| waiter.ticket == self.ticket);
        if let Some(mine) = mine {
            waiting.remove(mine);
        }
    }
}

impl<DB: Backend> Drop for Seat<'_, DB> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// What came of waiting for something that another one's transaction does without.
pub(super) enum Waited<DB: Backend, T> {
    For(T),
    /// Its transaction came first, or at the same time.
    Joined(Baton<DB>),
}

/// Waits for that, and may be handed a transaction meanwhile.
pub(super) async fn or_joined<DB: Backend, T>(
    shared: &Arc<Shared<DB>>,
    source: &SourceState,
    ticket: Ticket,
    wait: impl Future<Output = T>,
) -> Waited<DB, T> {
    let mut wait = pin!(wait);
    // Who need not wait has no place among those that do.
    let at_once = poll_fn(|context| Poll::Ready(wait.as_mut().poll(context)));
    if let Poll::Ready(waited) = at_once.await {
        return Waited::For(waited);
    }
    let of = &shared.group_commit;
    let (to, from) = oneshot::channel();
    of.lock().push_back(Waiter {
        ticket,
        look: Look::NotYet,
        batch: source.batch(),
        to,
        shared: Arc::clone(shared),
    });
    let mut seat = Seat { of, ticket, from };
    let waited = tokio::select! {
        biased;
        Ok(baton) = &mut seat.from => return Waited::Joined(baton),
        waited = wait => waited,
    };
    seat.give_up();
    match seat.from.try_recv() {
        Ok(baton) => Waited::Joined(baton),
        Err(_) => Waited::For(waited),
    }
}
