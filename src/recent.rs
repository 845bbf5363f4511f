//! A process-local memory of commits that this process saw succeed (§2.4).
//!
//! It answers known duplicates without a statement. It outlives neither ten minutes nor a broken connection nor a
//! changed incarnation, since a restore or a failover may have lost the commit that it remembers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::broken::{self, Variant};
use crate::envelope::Fingerprint;
use crate::kept::Kept;

/// Half of the ten minutes: an entry lives through one turn of the generations, and at most two.
const GENERATION: Duration = Duration::from_secs(300);

/// By source, then by event id: looked up without an allocation.
#[derive(Default)]
struct Generation {
    sources: HashMap<Arc<str>, HashMap<Arc<str>, Seen>>,
    events: usize,
}

impl Generation {
    fn get(&self, source: &str, event_id: &str) -> Option<&Seen> {
        self.sources.get(source)?.get(event_id)
    }

    fn insert(&mut self, source: &Arc<str>, event_id: &Arc<str>, seen: Seen) {
        let events = match self.sources.get_mut(source) {
            Some(events) => events,
            None => self.sources.entry(Arc::clone(source)).or_default(),
        };
        let before = events.insert(Arc::clone(event_id), seen);
        self.events += usize::from(before.is_none());
    }
}

/// A commit that this process saw.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) fingerprint: Fingerprint,
    /// The first answer, where answers are stored.
    pub(crate) kept: Option<Arc<Kept>>,
}

pub(crate) struct Recent {
    capacity: usize,
    inner: Mutex<Inner>,
}

struct Inner {
    young: Generation,
    old: Generation,
    turned: Instant,
    /// Counts the times it was emptied: a commit that began before one must not be remembered after it.
    epoch: u64,
}

impl Recent {
    /// Remembers at most `capacity` events; with 0 it remembers nothing.
    pub(crate) fn new(capacity: usize) -> Self {
        let inner = Inner {
            young: Generation::default(),
            old: Generation::default(),
            turned: Instant::now(),
            epoch: 0,
        };
        Self {
            capacity,
            inner: Mutex::new(inner),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find(&self, source: &str, event_id: &str) -> Option<Seen> {
        let mut inner = self.lock();
        inner.turn(self.capacity);
        let Inner { young, old, .. } = &*inner;
        young
            .get(source, event_id)
            .or_else(|| old.get(source, event_id))
            .cloned()
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Remembers a commit, unless the memory was emptied since `epoch` was read.
    pub(crate) fn remember(&self, epoch: u64, source: &Arc<str>, event_id: &Arc<str>, seen: Seen) {
        let mut inner = self.lock();
        if self.capacity == 0 || inner.epoch != epoch {
            return;
        }
        inner.turn(self.capacity);
        inner.young.insert(source, event_id, seen);
    }

    pub(crate) fn clear(&self) {
        if broken::is(Variant::MemoryOutlivesItsDatabase) {
            return;
        }
        let mut inner = self.lock();
        inner.epoch += 1;
        inner.young = Generation::default();
        inner.old = Generation::default();
    }
}

impl Inner {
    fn turn(&mut self, capacity: usize) {
        let age = self.turned.elapsed();
        if age < GENERATION && self.young.events < capacity.div_ceil(2) {
            return;
        }
        let young = std::mem::take(&mut self.young);
        self.old = if age < GENERATION * 2 {
            young
        } else {
            Generation::default()
        };
        self.turned = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Arc<str> {
        Arc::from(text)
    }

    fn seen() -> Seen {
        Seen {
            fingerprint: Fingerprint::default(),
            kept: None,
        }
    }

    /// §2.4
    #[test]
    fn it_never_holds_more_than_its_capacity() {
        let recent = Recent::new(10);
        for i in 0..1_000 {
            let source = if i % 3 == 0 { "billing" } else { "crm" };
            // Twice: the second one takes no place.
            for _ in 0..2 {
                recent.remember(0, &name(source), &name(&i.to_string()), seen());
            }
            let inner = recent.lock();
            let held = |generation: &Generation| {
                let events: usize = generation.sources.values().map(HashMap::len).sum();
                assert_eq!(generation.events, events);
                events
            };
            assert!(held(&inner.young) + held(&inner.old) <= 10);
        }
        assert!(recent.find("billing", "999").is_some());
        assert!(recent.find("crm", "0").is_none() && recent.find("crm", "999").is_none());
    }

    /// §2.4
    #[tokio::test(start_paused = true)]
    async fn it_forgets_within_ten_minutes() {
        let recent = Recent::new(10);
        recent.remember(0, &name("crm"), &name("a"), seen());
        tokio::time::advance(GENERATION).await;
        assert!(recent.find("crm", "a").is_some());
        tokio::time::advance(GENERATION).await;
        assert!(recent.find("crm", "a").is_none());
    }

    /// §2.4
    #[test]
    fn a_commit_from_before_it_was_emptied_is_not_remembered_after() {
        let recent = Recent::new(10);
        let epoch = recent.epoch();
        recent.clear();
        recent.remember(epoch, &name("crm"), &name("a"), seen());
        assert!(recent.find("crm", "a").is_none());
    }
}
