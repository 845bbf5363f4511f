//! How long the handlers of a source take.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a source's handlers take, each a little less than the one after it.
#[derive(Default)]
pub(crate) struct HandlerTime(AtomicU64);

impl HandlerTime {
    pub(crate) fn took(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let before = self.0.load(Ordering::Relaxed);
        // Two at once may lose one of them, which is no matter.
        self.0
            .store(before - before / 8 + time / 8, Ordering::Relaxed);
    }

    /// Longer than 2 of the 5 ms that a batch has, they gain little by a shared commit, and make others wait.
    pub(crate) fn is_short(&self, batch_time: Duration) -> bool {
        let time = Duration::from_micros(self.0.load(Ordering::Relaxed));
        time <= batch_time.mul_f64(0.4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §2.8: one that takes long is soon known, and so is it when they are short again.
    #[test]
    fn what_counts_is_the_average_of_the_last_ones() {
        let (times, batch) = (HandlerTime::default(), Duration::from_millis(5));
        assert!(times.is_short(batch));
        times.took(Duration::from_millis(12));
        assert!(times.is_short(batch));
        times.took(Duration::from_millis(12));
        assert!(!times.is_short(batch));
        assert!(times.is_short(Duration::from_secs(1)));
        for _ in 0..4 {
            times.took(Duration::from_micros(100));
        }
        assert!(times.is_short(batch));
        times.took(Duration::MAX);
        assert!(!times.is_short(batch));
    }
}
