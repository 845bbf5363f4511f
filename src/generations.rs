//! Which generation a stream is in, as far as this process knows (§5.15).
//!
//! An event's row is inserted before its cursor is locked, so that the generation must be known before. Here are the
//! streams that were ever reset; every other one is in its first, 0. It is a guess: whoever locks the cursor compares.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::store::Stream;

/// Streams that are known at most. One that is not costs its next delivery a second transaction.
const CAPACITY: usize = 16_384;

/// By source, then by correlation id: looked up without an allocation.
type Known = HashMap<Box<str>, HashMap<Box<str>, i64>>;

#[derive(Default)]
pub(crate) struct Generations {
    map: Mutex<Known>,
    known: AtomicUsize,
}

impl Generations {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, stream: Stream<'_>) -> i64 {
        if self.known.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let map = self.lock();
        let found = map
            .get(stream.source)
            .and_then(|source| source.get(stream.correlation_id));
        found.copied().unwrap_or(0)
    }

    /// What the database says, whether it is later than what was known or, after a restore, earlier.
    pub(crate) fn learn(&self, stream: Stream<'_>, generation: i64) {
        let mut map = self.lock();
        if self.known.load(Ordering::Relaxed) >= CAPACITY {
            map.clear();
            self.known.store(0, Ordering::Release);
        }
        let source = map.entry(stream.source.into()).or_default();
        let before = if generation == 0 {
            source.remove(stream.correlation_id)
        } else {
            source.insert(stream.correlation_id.into(), generation)
        };
        match (before, generation) {
            (Some(_), 0) => drop(self.known.fetch_sub(1, Ordering::AcqRel)),
            (None, 1..) => drop(self.known.fetch_add(1, Ordering::AcqRel)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(correlation_id: &str) -> Stream<'_> {
        Stream {
            source: "crm",
            correlation_id,
        }
    }

    /// §5.15
    #[test]
    fn it_follows_the_database_up_and_down() {
        let generations = Generations::default();
        assert_eq!(generations.get(stream("a")), 0);
        generations.learn(stream("a"), 2);
        generations.learn(stream("a"), 3);
        assert_eq!(
            (generations.get(stream("a")), generations.get(stream("b"))),
            (3, 0)
        );
        generations.learn(stream("a"), 0);
        generations.learn(stream("b"), 0);
        assert_eq!(generations.get(stream("a")), 0);
        assert_eq!(generations.known.load(Ordering::Relaxed), 0);
    }

    /// §5.15
    #[test]
    fn it_never_holds_more_than_its_capacity() {
        let generations = Generations::default();
        for n in 0..=CAPACITY {
            generations.learn(stream(&n.to_string()), 1);
        }
        assert!(generations.known.load(Ordering::Relaxed) <= CAPACITY);
        assert_eq!(generations.get(stream(&CAPACITY.to_string())), 1);
        assert_eq!(generations.get(stream("0")), 0);
    }
}
