//! How long handlers take, in few numbers that can be added: a histogram whose buckets are the same everywhere and for ever,
//! since the columns of a table are made for them.
//!
//! Its bounds grow by the square root of 2, and what is told of a bucket is the middle of it, on a scale of factors: a
//! percentile is wrong by at most the fourth root of 2, 19 %. Below 1 ms only that is known, and above 33 s.

use std::time::Duration;

use crate::store::BUCKETS;

/// The first bucket's, in nanoseconds: 1 ms.
const FIRST: u64 = 1_000_000;
/// The second one's: 1.41 ms.
const SECOND: u64 = 1_414_214;

/// The upper bounds of all buckets but the last one, which has none, in nanoseconds.
const BOUNDS: [u64; BUCKETS - 1] = {
    let mut bounds = [0; BUCKETS - 1];
    let mut index = 0;
    while index < bounds.len() {
        let of_two = if index % 2 == 0 { FIRST } else { SECOND };
        bounds[index] = of_two << (index / 2);
        index += 1;
    }
    bounds
};

/// Where a time belongs.
pub(crate) fn bucket(took: Duration) -> usize {
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    BOUNDS.partition_point(|bound| *bound < nanos)
}

/// The time in seconds that so many of a hundred were not longer than. Nothing without any.
pub(crate) fn percentile(buckets: &[i64; BUCKETS], percent: u64) -> Option<f64> {
    let counts = buckets
        .iter()
        .map(|count| u64::try_from(*count).unwrap_or(0));
    let total: u64 = counts.clone().sum();
    let rank = (total * percent).div_ceil(100).max(1);
    let mut so_far = 0;
    for (index, count) in counts.enumerate() {
        so_far += count;
        if so_far >= rank {
            return Some(told(index));
        }
    }
    None
}

#[allow(clippy::cast_precision_loss, reason = "the bounds are far below 2^52")]
fn told(bucket: usize) -> f64 {
    let bound = |index: usize| BOUNDS[index] as f64 / 1e9;
    match bucket {
        0 => bound(0),
        last if last == BUCKETS - 1 => bound(last - 1),
        between => (bound(between - 1) * bound(between)).sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is promised of a percentile between the first and the last bound.
    const ERROR: f64 = 1.1893;

    /// §8: a bound is in its own bucket, and what is a little more in the next.
    #[test]
    fn each_time_has_its_bucket() {
        assert_eq!(bucket(Duration::ZERO), 0);
        for (index, bound) in BOUNDS.iter().enumerate() {
            assert_eq!(bucket(Duration::from_nanos(*bound)), index);
            assert_eq!(bucket(Duration::from_nanos(bound + 1)), index + 1);
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
        assert_eq!(BOUNDS[BUCKETS - 2], 32_768_000_000);
        assert!(BOUNDS.is_sorted_by(|a, b| a < b));
    }

    /// §8: against the exact ones, of times that lie as those of handlers do, and of ones that do not.
    #[test]
    fn a_percentile_is_wrong_by_19_percent_at_most() {
        let mut rng = fastrand::Rng::with_seed(8);
        for round in 0..200 {
            let runs = rng.usize(1..2_000);
            let mut times: Vec<_> = (0..runs)
                .map(|_| match round % 3 {
                    // From 1 ms to 10 s, each order of magnitude as often as the other.
                    0 => Duration::from_secs_f64(10_f64.powf(rng.f64() * 4.0 - 3.0)),
                    1 => Duration::from_micros(rng.u64(1_001..20_000)),
                    _ if rng.u8(..) < 20 => Duration::from_millis(rng.u64(2_000..30_000)),
                    _ => Duration::from_millis(rng.u64(2..9)),
                })
                .collect();
            let mut buckets = [0; BUCKETS];
            for time in &times {
                buckets[bucket(*time)] += 1;
            }
            times.sort_unstable();
            for percent in [1, 50, 95, 99, 100] {
                let exact = times[(runs * percent).div_ceil(100).max(1) - 1].as_secs_f64();
                let told = percentile(&buckets, percent as u64).expect("there are some");
                let ratio = (told / exact).max(exact / told);
                assert!(ratio <= ERROR, "{percent} of {runs}: {told} for {exact}");
            }
        }
    }

    /// §8
    #[test]
    fn where_little_is_known_the_bound_is_told() {
        let mut buckets = [0; BUCKETS];
        assert_eq!(percentile(&buckets, 95), None);
        buckets[0] = 99;
        buckets[BUCKETS - 1] = 1;
        assert_eq!(percentile(&buckets, 99), Some(0.001));
        assert_eq!(percentile(&buckets, 100), Some(32.768));
    }
}
