//! One event of a stream at a time in this process (§2.5), the lowest sequence of those that wait first.
//!
//! Two deliveries that a producer sent one after the other are two threads' work, so that the later one may be here first.
//! It would be parked, and drained by the worker: several times the work of letting the other one go ahead.
//!
//! Who has the turn may give something with it to the very next sequence: its open transaction (`Source::batch`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::broken::{self, Variant};

/// Source and correlation id.
type Pair = (Arc<str>, Arc<str>);

/// So many in a row may go before the one that waits longest. Far more than are overtaken on their way; and those that come
/// again and again, with low sequences, keep nobody waiting until its patience ends.
const PASSED_OVER: u32 = 64;

/// A queue per correlation id.
pub(crate) struct Lanes<T> {
    map: Mutex<HashMap<Pair, Queue<T>>>,
}

/// Those that wait behind somebody whose turn it is: nobody else has a queue.
struct Queue<T> {
    /// By when they came.
    waiting: BTreeMap<u64, Waiter<T>>,
    /// Those that have a sequence, by it, and then by when they came.
    in_order: BTreeSet<(i64, u64)>,
    /// The next one to come.
    ticket: u64,
    /// How often in a row the one that waits longest was not the next one.
    passed_over: u32,
}

struct Waiter<T> {
    sequence: Option<i64>,
    /// Its turn, and what is given with it.
    go: oneshot::Sender<Option<T>>,
    joins: Option<Arc<Joins>>,
}

/// That a delivery would take what is given with its turn.
pub(crate) struct Joins {
    /// Of a group of no more than so many, itself included.
    most: usize,
    /// It looks for something else just now, and would keep what it is given waiting.
    away: AtomicBool,
    /// It has been away, and is back.
    looked: AtomicBool,
}

impl Joins {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            away: AtomicBool::new(false),
            looked: AtomicBool::new(false),
        })
    }
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self {
            map: Mutex::default(),
        }
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            in_order: BTreeSet::new(),
            ticket: 0,
            passed_over: 0,
        }
    }
}

impl<T> Lanes<T> {
    /// Waits for this correlation id's turn. Dropping the future gives the place up. Who has no sequence goes when nobody
    /// has waited longer.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        source: &Arc<str>,
        id: &Arc<str>,
        sequence: Option<i64>,
    ) -> Lane<T> {
        self.line_up(source, id, sequence, None).turn().await
    }

    /// Has its place from now on. It takes what is given with its turn if it says so.
    pub(crate) fn line_up(
        self: &Arc<Self>,
        source: &Arc<str>,
        id: &Arc<str>,
        sequence: Option<i64>,
        joins: Option<Arc<Joins>>,
    ) -> Entering<T> {
        let mut pair = (Arc::clone(source), Arc::clone(id));
        if broken::is(Variant::LanesOpen) {
            pair.1 = Arc::from(format!("{:x}", fastrand::u128(..)));
        }
        self.join(pair, sequence, joins)
    }

    fn join(
        self: &Arc<Self>,
        pair: Pair,
        sequence: Option<i64>,
        joins: Option<Arc<Joins>>,
    ) -> Entering<T> {
        let mut map = self.lock();
        let (ticket, turn) = match map.get_mut(&pair) {
            None => {
                map.insert(pair.clone(), Queue::default());
                (None, None)
            }
            Some(queue) => {
                let (go, turn) = oneshot::channel();
                let waiter = Waiter {
                    sequence,
                    go,
                    joins,
                };
                (Some(queue.push(waiter)), Some(turn))
            }
        };
        let lane = Lane {
            lanes: Arc::clone(self),
            pair,
            ticket,
            gone: false,
        };
        Entering { turn, lane }
    }

    /// From now on it is given nothing until it is back. What it was given before is there when it looks.
    pub(crate) fn away(&self, joins: &Joins) {
        let _nobody_gives_just_now = self.lock();
        joins.away.store(true, Ordering::Relaxed);
    }

    pub(crate) fn back(&self, joins: &Joins) {
        let _nobody_gives_just_now = self.lock();
        joins.looked.store(true, Ordering::Relaxed);
        joins.away.store(false, Ordering::Relaxed);
    }

    /// How many would take what is given with their turn; and how many of these have been away.
    #[cfg(feature = "failpoints")]
    pub(crate) fn joining(&self) -> (usize, usize) {
        let map = self.lock();
        let joins: Vec<_> = map
            .values()
            .flat_map(|queue| queue.waiting.values())
            .filter_map(|waiter| waiter.joins.as_ref())
            .collect();
        let looked = |joins: &&&Arc<Joins>| joins.looked.load(Ordering::Relaxed);
        (joins.len(), joins.iter().filter(looked).count())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Pair, Queue<T>>> {
        // The queues are whole after every statement under this lock, so that a panic elsewhere is no reason to stop.
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Queue<T> {
    fn push(&mut self, waiter: Waiter<T>) -> u64 {
        let ticket = self.ticket;
        self.ticket += 1;
        self.in_order
            .extend(waiter.sequence.map(|sequence| (sequence, ticket)));
        self.waiting.insert(ticket, waiter);
        ticket
    }

    fn remove(&mut self, ticket: u64) -> Option<Waiter<T>> {
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

    /// Whose turn is next.
    fn coming(&self) -> Option<u64> {
        let (&first, waiter) = self.waiting.first_key_value()?;
        Some(match self.in_order.first() {
            Some(&(_, ticket)) if waiter.sequence.is_some() && self.passed_over < PASSED_OVER => {
                ticket
            }
            _ => first,
        })
    }

    /// The same. It waits no more.
    fn next(&mut self) -> Option<Waiter<T>> {
        let coming = self.coming()?;
        self.passed_over += 1;
        self.remove(coming)
    }

    /// Whose turn is next, if it has this sequence and would join a group of so many.
    fn joiner(&self, sequence: i64, members: usize) -> Option<u64> {
        let coming = self.coming()?;
        let waiter = self.waiting.get(&coming)?;
        let joins = waiter.joins.as_ref()?;
        let fits = waiter.sequence == Some(sequence)
            && members < joins.most
            && !joins.away.load(Ordering::Relaxed)
            && !waiter.go.is_closed();
        fits.then_some(coming)
    }

    fn give(&mut self, sequence: i64, members: usize, it: T) -> Result<(), T> {
        let Some(coming) = self.joiner(sequence, members) else {
            return Err(it);
        };
        let Some(waiter) = self.waiting.get_mut(&coming) else {
            return Err(it);
        };
        // It keeps its place until it has it: one that is being dropped gives that up by itself.
        let go = std::mem::replace(&mut waiter.go, oneshot::channel().0);
        match go.send(Some(it)) {
            Ok(()) => {
                drop(self.next());
                Ok(())
            }
            Err(Some(it)) => Err(it),
            // It was sent.
            Err(None) => Ok(()),
        }
    }
}

/// A place among those that wait for a turn, or the turn.
pub(crate) struct Entering<T> {
    /// Of one that had to wait. Dropped first: what was given is ended before the turn is passed on.
    turn: Option<oneshot::Receiver<Option<T>>>,
    lane: Lane<T>,
}

impl<T> Entering<T> {
    /// Of one that does not join.
    pub(crate) async fn turn(self) -> Lane<T> {
        let Self { turn, lane } = self;
        if let Some(turn) = turn {
            // The sender is not dropped before it has sent: the queue has it for as long as this place is there.
            let _ = turn.await;
        }
        lane
    }

    /// The turn, and what was given with it; nothing if it has not come until then.
    pub(crate) async fn within(self, until: Instant) -> Option<(Lane<T>, Option<T>)> {
        let Self { turn, mut lane } = self;
        let Some(mut turn) = turn else {
            return Some((lane, None));
        };
        if let Ok(given) = timeout_at(until, &mut turn).await {
            return Some((lane, given.ok().flatten()));
        }
        if lane.give_up() {
            return None;
        }
        // It has come just now.
        let given = turn.try_recv();
        Some((lane, given.ok().flatten()))
    }
}

/// This correlation id's turn, or a place among those that wait for it, until dropped.
pub(crate) struct Lane<T> {
    lanes: Arc<Lanes<T>>,
    pair: Pair,
    /// Of one that had to wait.
    ticket: Option<u64>,
    /// The turn was given away, or the place was given up.
    gone: bool,
}

/// How to come back to a lane.
pub(crate) struct Way<T> {
    lanes: Arc<Lanes<T>>,
    pair: Pair,
    sequence: i64,
}

impl<T> Way<T> {
    pub(crate) fn enter(&self) -> Entering<T> {
        self.lanes
            .join(self.pair.clone(), Some(self.sequence), None)
    }
}

impl<T> Lane<T> {
    pub(crate) fn way(&self, sequence: i64) -> Way<T> {
        Way {
            lanes: Arc::clone(&self.lanes),
            pair: self.pair.clone(),
            sequence,
        }
    }

    /// Whether the next one has this sequence, and would join a group of so many.
    pub(crate) fn has_joiner(&self, sequence: i64, members: usize) -> bool {
        let map = self.lanes.lock();
        let queue = map.get(&self.pair);
        queue.is_some_and(|queue| queue.joiner(sequence, members).is_some())
    }

    /// Gives its turn to the next one, and this with it, if that has this sequence and would join a group of so many.
    pub(crate) fn give(mut self, sequence: i64, members: usize, it: T) -> Result<(), (Self, T)> {
        let lanes = Arc::clone(&self.lanes);
        let mut map = lanes.lock();
        let given = match map.get_mut(&self.pair) {
            Some(queue) => queue.give(sequence, members, it),
            None => Err(it),
        };
        drop(map);
        match given {
            Ok(()) => {
                self.gone = true;
                Ok(())
            }
            Err(it) => Err((self, it)),
        }
    }

    /// False if its turn has come.
    fn give_up(&mut self) -> bool {
        let mut map = self.lanes.lock();
        let queue = map.get_mut(&self.pair);
        let ticket = self.ticket;
        let waits = queue.and_then(|queue| queue.remove(ticket?));
        self.gone = waits.is_some();
        self.gone
    }
}

impl<T> Drop for Lane<T> {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
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
            Some(next) => drop(next.go.send(None)),
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

    type Comes<'a> = Pin<Box<dyn Future<Output = Lane<u32>> + 'a>>;

    /// One stream, and who enters it.
    struct Stream {
        lanes: Arc<Lanes<u32>>,
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
        fn comes(&self, sequence: Option<i64>) -> Comes<'_> {
            let mut entering: Comes<'_> =
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

    fn poll(entering: &mut Comes<'_>) -> Option<Lane<u32>> {
        match entering
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(lane) => Some(lane),
            Poll::Pending => None,
        }
    }

    /// The indices of those that wait in the order of their turns: `first` ends, and each ends as soon as it is its turn.
    fn turns(first: Lane<u32>, mut waiting: Vec<Comes<'_>>) -> Vec<usize> {
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

    /// One that would take what is given with its turn, in a group of at most so many.
    fn joins(stream: &Stream, sequence: i64, most: usize) -> (Entering<u32>, Arc<Joins>) {
        let joins = Joins::new(most);
        let (lanes, own) = (&stream.lanes, Some(Arc::clone(&joins)));
        (
            lanes.line_up(&stream.source, &stream.id, Some(sequence), own),
            joins,
        )
    }

    async fn turn_of(entering: Entering<u32>) -> (Lane<u32>, Option<u32>) {
        let turn = entering.within(Instant::now());
        turn.await.expect("its turn has come")
    }

    /// §2.5, §2.9: and nobody else, who would not be in its turn.
    #[tokio::test(start_paused = true)]
    async fn what_is_given_with_the_turn_goes_to_the_very_next_one_that_takes_it() {
        let stream = Stream::new();
        let first = stream.comes(Some(1)).await;
        let mut other = stream.comes(Some(2));
        let (three, _) = joins(&stream, 3, 2);
        // 2 would not take it; 3 is not next.
        let Err((first, 7)) = first.give(2, 1, 7) else {
            panic!("it is given to nobody")
        };
        let Err((first, 7)) = first.give(3, 1, 7) else {
            panic!("it is given to nobody")
        };
        drop(first);
        let second = poll(&mut other).expect("it is its turn");
        // Of a group that is as large as it wants.
        let Err((second, 7)) = second.give(3, 2, 7) else {
            panic!("it is given to nobody")
        };
        assert!(second.has_joiner(3, 1) && !second.has_joiner(4, 1));
        assert!(second.give(3, 1, 7).is_ok());
        let (third, given) = turn_of(three).await;
        assert_eq!(given, Some(7));
        let mut fourth = stream.comes(Some(4));
        assert!(poll(&mut fourth).is_none());
        drop(third);
        drop(poll(&mut fourth).expect("it is its turn"));
        assert!(stream.is_forgotten());
    }

    /// §2.9: a transaction would wait for it.
    #[tokio::test(start_paused = true)]
    async fn nothing_is_given_to_one_that_is_away_or_leaves() {
        let stream = Stream::new();
        let first = stream.comes(Some(1)).await;
        let (two, how) = joins(&stream, 2, 8);
        stream.lanes.away(&how);
        let Err((first, 7)) = first.give(2, 1, 7) else {
            panic!("it is given to nobody")
        };
        stream.lanes.back(&how);
        assert!(first.has_joiner(2, 1));
        assert!(
            two.within(Instant::now()).await.is_none(),
            "its patience ends"
        );
        let Err((first, 7)) = first.give(2, 1, 7) else {
            panic!("it is given to nobody")
        };
        // Given a moment before its patience ends, it is there.
        let (two, _) = joins(&stream, 2, 8);
        assert!(first.give(2, 1, 7).is_ok());
        let (second, given) = turn_of(two).await;
        assert_eq!(given, Some(7));
        // Who leaves with it passes the turn on.
        let (three, _) = joins(&stream, 3, 8);
        let mut four = stream.comes(Some(4));
        assert!(second.give(3, 2, 7).is_ok());
        drop(three);
        drop(poll(&mut four).expect("it is its turn"));
        assert!(stream.is_forgotten());
    }

    /// §5.1: whoever comes back is before those behind it.
    #[tokio::test(start_paused = true)]
    async fn those_that_come_back_have_their_turns_in_order() {
        let stream = Stream::new();
        let first = stream.comes(Some(1)).await;
        let way = first.way(1);
        let (two, _) = joins(&stream, 2, 8);
        let mut three = stream.comes(Some(3));
        assert!(first.give(2, 1, 7).is_ok());
        let (second, _) = turn_of(two).await;
        let (one, two) = (way.enter(), second.way(2).enter());
        drop(second);
        assert!(poll(&mut three).is_none());
        let first = one.turn().await;
        assert!(poll(&mut three).is_none());
        drop(first);
        drop(two.turn().await);
        drop(poll(&mut three).expect("it is its turn"));
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
