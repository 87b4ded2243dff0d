//! How long frames take from their arrival at the server to a viewer, counted in buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets in seconds.
const BOUNDS: [f64; 16] = [0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0];

/// Delays of the frames of one kind of video.
#[derive(Debug, Default)]
pub struct Delays {
    /// Number of delays by bucket. The last one has no bound.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

impl Delays {
    /// Counts a delay.
    pub fn add(&self, delay: Duration) {
        self.buckets[BOUNDS.partition_point(|bound| *bound < delay.as_secs_f64())].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(u64::try_from(delay.as_micros()).unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the sum in seconds, and the upper bound and the number of delays of each bucket. The last bound is infinite.
    pub fn read(&self) -> (f64, Vec<(f64, u64)>) {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        let buckets = bounds.zip(&self.buckets).map(|(bound, count)| (bound, count.load(Ordering::Relaxed)));
        (self.sum_us.load(Ordering::Relaxed) as f64 / 1e6, buckets.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_is_in_the_bucket_with_the_next_bound() {
        let delays = Delays::default();
        [5, 6, 10, 3000].into_iter().for_each(|ms| delays.add(Duration::from_millis(ms)));
        let (sum, buckets) = delays.read();
        assert!((sum - 3.021).abs() < 1e-9);
        assert_eq!((buckets[0], buckets[1], buckets.last()), ((0.005, 1), (0.01, 2), Some(&(f64::INFINITY, 1))));
    }
}
