//! How much of a source is parked and dead, against its bounds (§5.8).
//!
//! The numbers are what the database held when it was asked last, and what this process has done since: they cost no
//! statement, and what other processes park meanwhile is not in them until the next look, 5 s later at most.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::broken::{self, Variant};
use crate::store::Size;

/// A stream's number that is older than this is counted anew.
const FRESH: Duration = Duration::from_secs(5);
/// For so long a stream that was seen to be empty is not looked at after each of its commits. What another process parks in
/// it meanwhile is found by the worker's next look, or told by that process.
const QUIET: Duration = Duration::from_secs(1);
/// Streams whose numbers are remembered; others are counted when they park.
const STREAMS: usize = 1_024;

/// The most that there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) events: u32,
    pub(crate) bytes: u64,
}

impl Bound {
    fn holds(self, size: Size) -> bool {
        size.events <= i64::from(self.events)
            && u64::try_from(size.bytes).unwrap_or(0) <= self.bytes
    }
}

#[derive(Default)]
struct Counts {
    known: Size,
    /// On its way into the database.
    reserved: Size,
    /// How often this process changed `known`.
    moves: u64,
    /// Another process has said that it parked something.
    hinted: bool,
    streams: HashMap<Arc<str>, (Size, Instant)>,
    /// Streams in which nothing was stored when it was looked.
    quiet: HashMap<Arc<str>, Instant>,
}

/// See the module.
pub(crate) struct Room {
    whole: Bound,
    /// None: a stream has no bound of its own, so that nothing is counted for it.
    stream: Option<Bound>,
    counts: Mutex<Counts>,
}

impl Room {
    pub(crate) fn new(whole: Bound, stream: Bound) -> Self {
        let tighter = stream.events < whole.events || stream.bytes < whole.bytes;
        Self {
            whole,
            stream: tighter.then_some(stream),
            counts: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for one more event, held until it is committed; nothing if there is none. Others that ask meanwhile find it
    /// taken, so that a crowd does not get over the bound together.
    pub(crate) fn reserve(&self, bytes: i64) -> Option<Reserved<'_>> {
        let size = Size::one(bytes);
        let mut counts = self.lock();
        let after = counts.known.plus(counts.reserved).plus(size);
        if !self.whole.holds(after) && !broken::is(Variant::ParkUnbounded) {
            return None;
        }
        counts.reserved = counts.reserved.plus(size);
        Some(Reserved { room: self, size })
    }

    /// Whether one more event of this size fits the bound of its stream; nothing if the stream must be counted first.
    pub(crate) fn stream_holds(&self, correlation_id: &str, bytes: i64) -> Option<bool> {
        let Some(bound) = self.stream else {
            return Some(true);
        };
        let counts = self.lock();
        let (size, at) = counts.streams.get(correlation_id)?;
        (at.elapsed() < FRESH).then(|| bound.holds(size.plus(Size::one(bytes))))
    }

    /// What the database holds of a stream now.
    pub(crate) fn stream_counted(&self, correlation_id: &Arc<str>, size: Size) {
        let mut counts = self.lock();
        make_room(&mut counts.streams, |(_, at)| at.elapsed() < FRESH);
        let counted = (size, Instant::now());
        counts.streams.insert(Arc::clone(correlation_id), counted);
    }

    /// This process has stored one more.
    pub(crate) fn add(&self, correlation_id: Option<&str>, size: Size) {
        if let Some(id) = correlation_id {
            self.lock().quiet.remove(id);
        }
        self.change(correlation_id, |known| known.plus(size));
    }

    /// This process has taken one away.
    pub(crate) fn remove(&self, correlation_id: Option<&str>, size: Size) {
        self.change(correlation_id, |known| known.minus(size));
    }

    fn change(&self, correlation_id: Option<&str>, change: impl Fn(Size) -> Size) {
        let mut counts = self.lock();
        counts.moves += 1;
        counts.known = change(counts.known);
        if let Some(id) = correlation_id
            && let Some((size, _)) = counts.streams.get_mut(id)
        {
            *size = change(*size);
        }
    }

    /// Whether anything may be waiting in this stream: a hint that saves a statement after every ordered commit.
    pub(crate) fn may_wait(&self, correlation_id: &str) -> bool {
        let counts = self.lock();
        let quiet = || counts.quiet.get(correlation_id);
        (counts.hinted || counts.known.events > 0)
            && quiet().is_none_or(|since| since.elapsed() >= QUIET)
    }

    /// Whether anything is stored, as far as is known here.
    pub(crate) fn holds_some(&self) -> bool {
        let counts = self.lock();
        counts.hinted || counts.known.events > 0
    }

    /// Nothing was stored in this stream when it was looked, after `moves` were seen.
    pub(crate) fn found_empty(&self, correlation_id: &Arc<str>, moves: u64) {
        let mut counts = self.lock();
        if counts.moves != moves {
            return;
        }
        make_room(&mut counts.quiet, |since| since.elapsed() < QUIET);
        counts
            .quiet
            .insert(Arc::clone(correlation_id), Instant::now());
    }

    /// Another process has parked something, until the next count says otherwise; in this stream, if it is known in which.
    pub(crate) fn hint(&self, correlation_id: Option<&str>) {
        let mut counts = self.lock();
        counts.hinted = true;
        match correlation_id {
            Some(id) => drop(counts.quiet.remove(id)),
            None => counts.quiet.clear(),
        }
        // A count that was begun before may not have seen it.
        counts.moves += 1;
    }

    pub(crate) fn moves(&self) -> u64 {
        self.lock().moves
    }

    /// How much there is, if one more of the size that they have on average would not fit.
    pub(crate) fn full(&self) -> Option<Size> {
        let known = self.lock().known;
        let one = Size::one(known.bytes / known.events.max(1));
        (!self.whole.holds(known.plus(one))).then_some(known)
    }

    /// What the database holds, as it was counted after `moves` were seen. False, and not taken over, if this process
    /// has parked or applied something meanwhile, so that the count may be older than what is known here; or if something
    /// is on its way, which may be in the count already and would be added to it.
    pub(crate) fn sampled(&self, size: Size, moves: Option<u64>) -> bool {
        let mut counts = self.lock();
        let on_its_way = counts.reserved != Size::default();
        if moves.is_some_and(|moves| counts.moves != moves || on_its_way) {
            return false;
        }
        counts.known = size;
        counts.hinted = false;
        true
    }
}

/// Keeps a map of streams within its bound.
fn make_room<T>(streams: &mut HashMap<Arc<str>, T>, is_fresh: impl Fn(&T) -> bool) {
    if streams.len() >= STREAMS {
        streams.retain(|_, entry| is_fresh(entry));
    }
    if streams.len() >= STREAMS {
        streams.clear();
    }
}

/// Room that is taken before its event is committed, and given back if it never is.
pub(crate) struct Reserved<'a> {
    room: &'a Room,
    size: Size,
}

impl Reserved<'_> {
    /// The event is there.
    pub(crate) fn keep(self, correlation_id: Option<&str>) {
        self.room.add(correlation_id, self.size);
        // And drops what was reserved for it.
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut counts = self.room.lock();
        counts.reserved = counts.reserved.minus(self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Bound = Bound {
        events: 3,
        bytes: 100,
    };

    fn room() -> Room {
        Room::new(
            WHOLE,
            Bound {
                events: 2,
                bytes: 60,
            },
        )
    }

    /// §5.8, in number: those on their way count too.
    #[test]
    fn a_crowd_does_not_get_over_the_bound_together() {
        let room = room();
        let held: Vec<_> = (0..5).map_while(|_| room.reserve(1)).collect();
        assert_eq!(held.len(), 3);
        for reserved in held {
            reserved.keep(None);
        }
        assert!(room.reserve(1).is_none() && room.full().is_some());
        room.remove(None, Size::one(1));
        assert_eq!(room.full(), None);
        drop(room.reserve(1).expect("one has gone"));
        room.reserve(1).expect("it was given back").keep(None);
        assert!(room.reserve(1).is_none());
    }

    /// §5.8, in bytes
    #[test]
    fn bytes_are_bounded_to_the_last_one() {
        let room = room();
        room.reserve(99).expect("room").keep(None);
        assert!(room.reserve(2).is_none());
        room.reserve(1).expect("room").keep(None);
        assert!(room.reserve(0).is_some() && room.reserve(1).is_none());
        assert_eq!(
            room.full(),
            Some(Size {
                events: 2,
                bytes: 100
            })
        );
        assert!(room.reserve(i64::MAX).is_none());
    }

    /// §5.8. A debt would let in more than the bound allows, and hide what waits.
    #[test]
    fn what_another_process_parked_leaves_no_debt_when_it_is_applied_here() {
        let room = room();
        for _ in 0..10 {
            room.remove(None, Size::one(50));
        }
        for _ in 0..3 {
            room.reserve(1).expect("room").keep(None);
        }
        assert!(room.reserve(1).is_none() && room.may_wait("acct"));
    }

    /// §5.8, per correlation
    #[test]
    fn a_stream_is_counted_once_and_then_kept_up_to_date() {
        let room = room();
        let id: Arc<str> = "acct".into();
        assert_eq!(room.stream_holds(&id, 1), None);
        room.stream_counted(&id, Size::default());
        for _ in 0..2 {
            assert_eq!(room.stream_holds(&id, 1), Some(true));
            room.reserve(1).expect("room").keep(Some(&id));
        }
        assert_eq!(room.stream_holds(&id, 1), Some(false));
        room.remove(Some(&id), Size::one(1));
        assert_eq!(room.stream_holds(&id, 59), Some(true));
        assert_eq!(room.stream_holds(&id, 60), Some(false));
        for n in 0..3 * STREAMS {
            room.stream_counted(&format!("{n}").into(), Size::default());
        }
        assert!(room.lock().streams.len() <= STREAMS);
    }

    /// §5.8. With the bounds of the source, which hold in any case, nothing has to be counted.
    #[test]
    fn without_a_bound_of_its_own_a_stream_is_not_counted() {
        assert_eq!(
            Room::new(WHOLE, WHOLE).stream_holds("acct", 1_000),
            Some(true)
        );
    }

    /// §5.8
    #[test]
    fn a_count_that_was_overtaken_is_not_taken_over() {
        let room = room();
        let moves = room.moves();
        room.hint(None);
        assert!(!room.sampled(Size::default(), Some(moves)) && room.may_wait("acct"));
        assert!(room.sampled(Size::default(), None) && !room.may_wait("acct"));
    }

    /// §5.8. It is committed, and counted in the database, before it is counted here.
    #[test]
    fn what_is_on_its_way_is_not_counted_twice() {
        let room = room();
        let moves = room.moves();
        let reserved = room.reserve(1).expect("room");
        assert!(!room.sampled(Size::one(1), Some(moves)));
        reserved.keep(None);
        for _ in 0..2 {
            room.reserve(1).expect("room for three").keep(None);
        }
        assert!(room.reserve(1).is_none());
        assert!(room.sampled(Size::one(1), Some(room.moves())));
    }

    /// §5.8. A stream that is stuck costs the others no look after each of their commits.
    #[test]
    fn a_stream_that_was_found_empty_is_quiet_until_something_is_stored_in_it() {
        let room = room();
        let (stuck, healthy): (Arc<str>, Arc<str>) = ("stuck".into(), "healthy".into());
        room.add(Some(&stuck), Size::one(1));
        assert!(room.may_wait(&healthy));
        room.found_empty(&healthy, room.moves());
        assert!(!room.may_wait(&healthy) && room.may_wait(&stuck));
        room.add(Some(&healthy), Size::one(1));
        assert!(room.may_wait(&healthy));
        // Looked before, and said after.
        room.found_empty(&healthy, room.moves() - 1);
        assert!(room.may_wait(&healthy));
        room.found_empty(&healthy, room.moves());
        room.hint(Some(&healthy));
        assert!(room.may_wait(&healthy));
    }
}
