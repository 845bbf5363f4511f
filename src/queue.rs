//! In front of the pool: one event and one correlation id hold at most one connection in this process (§2.5).
//!
//! At REPEATABLE READ, 32 clients on one row fail nine times in ten; and a pool whose connections all wait for one
//! row serves nobody else. So those who would wait on a lock wait here, in memory, bounded.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::broken::{self, Variant};
use crate::clock::Timestamp;
use crate::envelope::Fingerprint;

type Pair = (Arc<str>, Arc<str>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The maps are whole after every statement under their locks, so that a panic elsewhere is no reason to stop.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the delivery that went ahead ended, for those that waited behind it (§4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It committed, or was a duplicate of a committed one.
    Applied,
    Parked {
        waiting_for: u64,
    },
    /// Stored for a worker (§5.13).
    Stored,
    /// Kept until then, since the handler said so.
    PutOff {
        waiting_for: Option<u64>,
        until: Timestamp,
    },
    /// Held by the fence (§6.7).
    Fenced,
    /// A later version was applied before it (§5.12).
    Superseded,
    /// Its place is never waited for (§4.3).
    SetAside,
    /// An operator decided that it will never be applied.
    Discarded,
    /// The handler's terminal verdict.
    Rejected(StatusCode),
    /// Anything else: those who waited do not run the handler again.
    Failed,
}

/// What a leader leaves to its followers: the end, and for which content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landing {
    pub(crate) end: End,
    pub(crate) fingerprint: Fingerprint,
}

/// The events that are in flight in this process.
#[derive(Default)]
pub(crate) struct Flights {
    map: Mutex<HashMap<Pair, watch::Receiver<Option<Landing>>>>,
}

/// A delivery's part in the flight of its event.
pub(crate) enum Joined {
    Leader(Leader),
    Follower(watch::Receiver<Option<Landing>>),
}

impl Flights {
    pub(crate) fn join(
        self: &Arc<Self>,
        source: &Arc<str>,
        event_id: &Arc<str>,
        fingerprint: Fingerprint,
    ) -> Joined {
        let pair = (Arc::clone(source), Arc::clone(event_id));
        let mut map = lock(&self.map);
        let alone = broken::is(Variant::FollowersRun);
        if let Some(flight) = map.get(&pair).filter(|_| !alone) {
            return Joined::Follower(flight.clone());
        }
        let (sender, receiver) = watch::channel(None);
        map.insert(pair.clone(), receiver);
        Joined::Leader(Leader {
            flights: Arc::clone(self),
            pair,
            sender,
            fingerprint,
            end: End::Failed,
        })
    }
}

/// Ends the flight when dropped: with [`End::Failed`] unless something else was said.
pub(crate) struct Leader {
    flights: Arc<Flights>,
    pair: Pair,
    sender: watch::Sender<Option<Landing>>,
    fingerprint: Fingerprint,
    end: End,
}

impl Leader {
    pub(crate) fn land(mut self, end: End) {
        self.end = end;
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // Removed first: who comes after this finds the database's answer, not ours.
        lock(&self.flights.map).remove(&self.pair);
        let landing = Landing {
            end: self.end,
            fingerprint: self.fingerprint,
        };
        self.sender.send_replace(Some(landing));
    }
}

/// A queue per correlation id, first come first served.
#[derive(Default)]
pub(crate) struct Lanes {
    map: Mutex<HashMap<Pair, Arc<Semaphore>>>,
}

impl Lanes {
    /// Waits for this correlation id's turn. Dropping the future gives the place up.
    pub(crate) async fn enter(self: &Arc<Self>, source: &Arc<str>, id: &Arc<str>) -> Lane {
        let mut pair = (Arc::clone(source), Arc::clone(id));
        if broken::is(Variant::LanesOpen) {
            pair.1 = Arc::from(format!("{:x}", fastrand::u128(..)));
        }
        let gate = Arc::clone(
            lock(&self.map)
                .entry(pair.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(1))),
        );
        // Built before the wait, so that a future that is dropped in it cleans up too.
        let mut lane = Lane {
            lanes: Arc::clone(self),
            pair,
            gate: Some(Arc::clone(&gate)),
            permit: None,
        };
        lane.permit = gate.acquire_owned().await.ok();
        lane
    }
}

/// This correlation id's turn, until dropped.
pub(crate) struct Lane {
    lanes: Arc<Lanes>,
    pair: Pair,
    gate: Option<Arc<Semaphore>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut map = lock(&self.lanes.map);
        self.permit = None;
        self.gate = None;
        // Only the map's own reference is left: nobody waits, and nobody can begin to under this lock.
        if map
            .get(&self.pair)
            .is_some_and(|gate| Arc::strong_count(gate) == 1)
        {
            map.remove(&self.pair);
        }
    }
}

/// A bounded count of those who wait in memory.
pub(crate) struct Waiting {
    count: AtomicUsize,
    limit: usize,
}

impl Waiting {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            count: AtomicUsize::new(0),
            limit,
        }
    }

    /// A place to wait, or none if the bound is reached.
    pub(crate) fn enter(&self) -> Option<WaitingPlace<'_>> {
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.limit {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(WaitingPlace(self))
    }
}

/// Gives its place up when dropped.
pub(crate) struct WaitingPlace<'a>(&'a Waiting);

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Arc<str> {
        Arc::from(text)
    }

    /// §4.8
    #[tokio::test]
    async fn a_leader_that_vanishes_lands_as_failed_and_leaves_nothing_behind() {
        let flights = Arc::new(Flights::default());
        let print = Fingerprint::default();
        let Joined::Leader(leader) = flights.join(&name("crm"), &name("evt"), print) else {
            panic!("the first one leads")
        };
        let Joined::Follower(mut follower) = flights.join(&name("crm"), &name("evt"), print) else {
            panic!("the second one follows")
        };
        drop(leader);
        let landing = follower
            .wait_for(Option::is_some)
            .await
            .expect("landed")
            .expect("said so");
        assert_eq!(landing.end, End::Failed);
        assert!(lock(&flights.map).is_empty());
        assert!(matches!(
            flights.join(&name("crm"), &name("evt"), print),
            Joined::Leader(_)
        ));
    }

    /// §2.5
    #[tokio::test]
    async fn a_lane_is_taken_in_turn_and_forgotten_when_nobody_is_in_it() {
        let lanes = Arc::new(Lanes::default());
        let first = lanes.enter(&name("crm"), &name("acct")).await;
        let (source, id) = (name("crm"), name("acct"));
        let mut second = Box::pin(lanes.enter(&source, &id));
        assert!(futures_poll(second.as_mut()).is_none());
        drop(first);
        let second = second.await;
        drop(second);
        assert!(lock(&lanes.map).is_empty());
    }

    /// §2.5
    #[tokio::test]
    async fn a_wait_that_is_given_up_leaves_the_lane_usable() {
        let lanes = Arc::new(Lanes::default());
        let first = lanes.enter(&name("crm"), &name("acct")).await;
        let (source, id) = (name("crm"), name("acct"));
        let mut gone = Box::pin(lanes.enter(&source, &id));
        assert!(futures_poll(gone.as_mut()).is_none());
        drop(gone);
        drop(first);
        assert!(lock(&lanes.map).is_empty());
        lanes.enter(&source, &id).await;
    }

    /// §2.5
    #[test]
    fn waiting_is_bounded() {
        let waiting = Waiting::new(1);
        let place = waiting.enter().expect("room for one");
        assert!(waiting.enter().is_none());
        drop(place);
        assert!(waiting.enter().is_some());
    }

    fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }
}
