//! One event of a stream at a time in this process (§2.5), the lowest sequence of those that wait first.
//!
//! Two deliveries that a producer sent one after the other are two threads' work, so that the later one may be here first.
//! It would be parked, and drained by the worker: several times the work of letting the other one go ahead.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::broken::{self, Variant};

/// Source and correlation id.
type Pair = (Arc<str>, Arc<str>);

/// So many in a row may go before the one that waits longest. Far more than are overtaken on their way; and those that come
/// again and again, with low sequences, keep nobody waiting until its patience ends.
const PASSED_OVER: u32 = 64;

/// A queue per correlation id.
#[derive(Default)]
pub(crate) struct Lanes {
    map: Mutex<HashMap<Pair, Queue>>,
}

/// Those that wait behind somebody whose turn it is: nobody else has a queue.
#[derive(Default)]
struct Queue {
    /// By when they came.
    waiting: BTreeMap<u64, Waiter>,
    /// Those that have a sequence, by it, and then by when they came.
    in_order: BTreeSet<(i64, u64)>,
    /// The next one to come.
    ticket: u64,
    /// How often in a row the one that waits longest was not the next one.
    passed_over: u32,
}

struct Waiter {
    sequence: Option<i64>,
    go: oneshot::Sender<()>,
}

impl Lanes {
    /// Waits for this correlation id's turn. Dropping the future gives the place up. Who has no sequence goes when nobody
    /// has waited longer.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        source: &Arc<str>,
        id: &Arc<str>,
        sequence: Option<i64>,
    ) -> Lane {
        let mut pair = (Arc::clone(source), Arc::clone(id));
        if broken::is(Variant::LanesOpen) {
            pair.1 = Arc::from(format!("{:x}", fastrand::u128(..)));
        }
        // Made before the wait, so that a future that is dropped in it cleans up too.
        let (lane, turn) = self.join(pair, sequence);
        if let Some(turn) = turn {
            // The sender is not dropped before it has sent: the queue has it for as long as this place is there.
            let _ = turn.await;
        }
        lane
    }

    fn join(
        self: &Arc<Self>,
        pair: Pair,
        sequence: Option<i64>,
    ) -> (Lane, Option<oneshot::Receiver<()>>) {
        let mut map = self.lock();
        let (ticket, turn) = match map.get_mut(&pair) {
            None => {
                map.insert(pair.clone(), Queue::default());
                (None, None)
            }
            Some(queue) => {
                let (go, turn) = oneshot::channel();
                let ticket = queue.push(Waiter { sequence, go });
                (Some(ticket), Some(turn))
            }
        };
        let lane = Lane {
            lanes: Arc::clone(self),
            pair,
            ticket,
        };
        (lane, turn)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Pair, Queue>> {
        // The queues are whole after every statement under this lock, so that a panic elsewhere is no reason to stop.
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn push(&mut self, waiter: Waiter) -> u64 {
        let ticket = self.ticket;
        self.ticket += 1;
        self.in_order
            .extend(waiter.sequence.map(|sequence| (sequence, ticket)));
        self.waiting.insert(ticket, waiter);
        ticket
    }

    fn remove(&mut self, ticket: u64) -> Option<Waiter> {
        if self.first() == Some(ticket) {
            self.passed_over = 0;
        }
        let waiter = self.waiting.remove(&ticket)?;
        if let Some(sequence) = waiter.sequence {
            self.in_order.remove(&(sequence, ticket));
        }
        Some(waiter)
    }

    /// Who waits longest.
    fn first(&self) -> Option<u64> {
        Some(*self.waiting.first_key_value()?.0)
    }

    /// Whose turn is next. It waits no more.
    fn next(&mut self) -> Option<Waiter> {
        let (&first, waiter) = self.waiting.first_key_value()?;
        let lowest = match self.in_order.first() {
            Some(&(_, ticket)) if waiter.sequence.is_some() && self.passed_over < PASSED_OVER => {
                ticket
            }
            _ => first,
        };
        self.passed_over += 1;
        self.remove(lowest)
    }
}

/// This correlation id's turn, or a place among those that wait for it, until dropped.
pub(crate) struct Lane {
    lanes: Arc<Lanes>,
    pair: Pair,
    /// Of one that had to wait.
    ticket: Option<u64>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut map = self.lanes.lock();
        let Some(queue) = map.get_mut(&self.pair) else {
            return;
        };
        let waits = self.ticket.and_then(|ticket| queue.remove(ticket));
        if waits.is_some() {
            return;
        }
        match queue.next() {
            // Should it be about to be dropped, it passes the turn on when it is.
            Some(next) => drop(next.go.send(())),
            // Nobody can have joined meanwhile, under this lock.
            None => drop(map.remove(&self.pair)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Entering<'a> = Pin<Box<dyn Future<Output = Lane> + 'a>>;

    /// One stream, and who enters it.
    struct Stream {
        lanes: Arc<Lanes>,
        source: Arc<str>,
        id: Arc<str>,
    }

    impl Stream {
        fn new() -> Self {
            Self {
                lanes: Arc::default(),
                source: Arc::from("crm"),
                id: Arc::from("acct"),
            }
        }

        /// One that has come, and waits unless nobody is there.
        fn comes(&self, sequence: Option<i64>) -> Entering<'_> {
            let mut entering: Entering<'_> =
                Box::pin(self.lanes.enter(&self.source, &self.id, sequence));
            // Polled, so that it has its place.
            if let Some(lane) = poll(&mut entering) {
                entering = Box::pin(std::future::ready(lane));
            }
            entering
        }

        fn is_forgotten(&self) -> bool {
            self.lanes.lock().is_empty()
        }
    }

    fn poll(entering: &mut Entering<'_>) -> Option<Lane> {
        match entering
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(lane) => Some(lane),
            Poll::Pending => None,
        }
    }

    /// The indices of those that wait in the order of their turns: `first` ends, and each ends as soon as it is its turn.
    fn turns(first: Lane, mut waiting: Vec<Entering<'_>>) -> Vec<usize> {
        let (mut turns, mut holds) = (Vec::new(), Some(first));
        while holds.take().is_some() {
            for (index, entering) in waiting.iter_mut().enumerate() {
                if turns.contains(&index) {
                    continue;
                }
                if let Some(lane) = poll(entering) {
                    assert!(holds.replace(lane).is_none(), "it is one's turn at a time");
                    turns.push(index);
                }
            }
        }
        turns
    }

    /// §2.5
    #[tokio::test]
    async fn a_lane_is_taken_in_turn_and_forgotten_when_nobody_is_in_it() {
        let stream = Stream::new();
        let first = stream.comes(Some(1)).await;
        let mut second = stream.comes(Some(2));
        assert!(poll(&mut second).is_none());
        drop(first);
        drop(second.await);
        assert!(stream.is_forgotten());
    }

    /// §2.5, §5.1
    #[tokio::test]
    async fn the_lowest_sequence_goes_first_and_equal_ones_as_they_came() {
        let stream = Stream::new();
        let first = stream.comes(Some(1)).await;
        let waiting = [5, 3, 4, 3, 2].map(|sequence| stream.comes(Some(sequence)));
        assert_eq!(turns(first, waiting.into()), [4, 1, 3, 2, 0]);
        assert!(stream.is_forgotten());
    }

    /// §2.5: the worker, which has no sequence, is not overtaken by those that came after it.
    #[tokio::test]
    async fn who_has_no_sequence_goes_when_nobody_has_waited_longer() {
        let stream = Stream::new();
        let first = stream.comes(None).await;
        let waiting = [Some(9), None, Some(8), None, Some(7)].map(|it| stream.comes(it));
        // Until 9, which has waited longest, has had its turn, the lowest one is next.
        assert_eq!(turns(first, waiting.into()), [4, 2, 0, 1, 3]);
        let first = stream.comes(None).await;
        let waiting = [None, Some(2), None, Some(1)].map(|it| stream.comes(it));
        assert_eq!(turns(first, waiting.into()), [0, 3, 1, 2]);
        assert!(stream.is_forgotten());
    }

    /// §2.5
    #[tokio::test]
    async fn nobody_is_passed_over_for_ever() {
        let stream = Stream::new();
        let mut holds = stream.comes(Some(1)).await;
        let mut high = stream.comes(Some(1_000));
        let mut passed_over = 0;
        loop {
            let low = stream.comes(Some(1));
            drop(holds);
            if poll(&mut high).is_some() {
                break;
            }
            passed_over += 1;
            holds = low.await;
        }
        assert_eq!(passed_over, PASSED_OVER);
    }

    /// §2.5
    #[tokio::test]
    async fn a_wait_that_is_given_up_leaves_the_lane_usable() {
        let stream = Stream::new();
        let first = stream.comes(Some(1)).await;
        let gone = stream.comes(Some(2));
        let mut third = stream.comes(Some(3));
        drop(gone);
        assert!(poll(&mut third).is_none());
        // Its turn has come, and it does not know yet.
        let late = stream.comes(Some(2));
        drop(first);
        drop(late);
        drop(third.await);
        assert!(stream.is_forgotten());
        drop(stream.comes(None).await);
        assert!(stream.is_forgotten());
    }
}
