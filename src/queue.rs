//! In front of the pool: one event holds at most one connection in this process (§2.5), and, by `lane.rs`, one correlation id.
//!
//! At REPEATABLE READ, 32 clients on one row fail nine times in ten; and a pool whose connections all wait for one
//! row serves nobody else. So those who would wait on a lock wait here, in memory, bounded.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use tokio::sync::watch;

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

/// What becomes of those that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landed {
    /// The same as of the one that went ahead.
    End(End),
    /// Load turned that one away, and so it does them (§3).
    Busy,
    /// Nothing was tried: somebody else has the event, in another process say. They are as if they came now.
    Untried,
}

impl From<End> for Landed {
    fn from(end: End) -> Self {
        Self::End(end)
    }
}

/// What a leader leaves to its followers, and for which content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landing {
    pub(crate) landed: Landed,
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
            landed: End::Failed.into(),
        })
    }
}

/// Ends the flight when dropped: with [`End::Failed`] unless something else was said.
pub(crate) struct Leader {
    flights: Arc<Flights>,
    pair: Pair,
    sender: watch::Sender<Option<Landing>>,
    fingerprint: Fingerprint,
    landed: Landed,
}

impl Leader {
    pub(crate) fn leads(&self, source: &str, event_id: &str) -> bool {
        *self.pair.0 == *source && *self.pair.1 == *event_id
    }

    pub(crate) fn land(mut self, landed: impl Into<Landed>) {
        self.landed = landed.into();
    }

    /// Nothing is tried until it [`Self::begins`], should it be dropped before.
    pub(crate) fn waits(&mut self) {
        self.landed = Landed::Untried;
    }

    pub(crate) fn begins(&mut self) {
        self.landed = End::Failed.into();
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // Removed first: who comes after this finds the database's answer, not ours.
        lock(&self.flights.map).remove(&self.pair);
        let landing = Landing {
            landed: self.landed,
            fingerprint: self.fingerprint,
        };
        self.sender.send_replace(Some(landing));
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

    /// How many wait, and how many may.
    pub(crate) fn now(&self) -> (usize, usize) {
        (self.count.load(Ordering::Relaxed), self.limit)
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
        assert_eq!(landing.landed, Landed::End(End::Failed));
        assert!(lock(&flights.map).is_empty());
        assert!(matches!(
            flights.join(&name("crm"), &name("evt"), print),
            Joined::Leader(_)
        ));
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
}
