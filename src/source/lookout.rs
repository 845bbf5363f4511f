//! Whether a delivery is worth a look before its transaction begins.
//!
//! A duplicate of what another process applied, or this one before it was restarted, is answered by one statement. A new
//! event pays for that look and gets nothing from it. So it is taken where duplicates are about: for what its producer
//! says is a further attempt, for the first delivery of a process, and for some deliveries after one that was known.
//! Without it the transaction finds the same out, by four statements more.

use std::sync::atomic::{AtomicU32, Ordering};

/// Deliveries that are looked up after one that was known.
const AFTER_A_HIT: u32 = 32;

pub(crate) struct Lookout(AtomicU32);

impl Default for Lookout {
    fn default() -> Self {
        Self(AtomicU32::new(1))
    }
}

impl Lookout {
    /// Whether to look. `attempt`: as the producer counts; nothing depends on it but the number of statements.
    pub(crate) fn looks(&self, attempt: Option<u32>) -> bool {
        attempt.is_some_and(|attempt| attempt > 1) || self.0.load(Ordering::Relaxed) > 0
    }

    /// A delivery was known, whoever found that out.
    pub(crate) fn hit(&self) {
        self.0.store(AFTER_A_HIT, Ordering::Relaxed);
    }

    /// One that was looked up was new.
    pub(crate) fn missed(&self) {
        let less = |left: u32| left.checked_sub(1);
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §2.4
    #[test]
    fn it_looks_where_duplicates_are_about_and_nowhere_else() {
        let lookout = Lookout::default();
        assert!(lookout.looks(None));
        lookout.missed();
        assert!(!lookout.looks(None) && !lookout.looks(Some(1)));
        assert!(lookout.looks(Some(2)));
        lookout.missed();
        assert!(!lookout.looks(None));
        lookout.hit();
        for _ in 0..AFTER_A_HIT {
            assert!(lookout.looks(None));
            lookout.missed();
        }
        assert!(!lookout.looks(None));
    }
}
