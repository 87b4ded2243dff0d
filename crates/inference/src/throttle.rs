//! Reduces the number of in-flight frames while requests wait for CPU threads.
//!
//! A full in-flight queue keeps the engine busy. But if classifiers run on the same cores, they have priority over the detector. A full
//! in-flight queue of the detector then only increases latency. So the number of frames is reduced while the waiting time of runs exceeds
//! their duration, and raised when runs hardly wait.
//!
//! The waiting time of a run is the time from its assignment to a request to the start of its first step. Delays inside the device, after
//! that start, do not count. With a configured number of requests (`nireq`) there is no reduction.

use std::time::Duration;

/// Number of runs between two decisions.
const RUNS_PER_DECISION: u32 = 16;
/// Minimum mean waiting time for a reduction.
const MIN_LONG_WAIT: Duration = Duration::from_millis(1);
/// Maximum mean waiting time that counts as no waiting.
const MAX_SHORT_WAIT: Duration = Duration::from_micros(500);

/// Decides by how many frames the in-flight queue shrinks; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Number of runs since the last decision. `waited` is their total waiting time, and `ran` is their total duration.
    n_runs: u32,
    waited: Duration,
    ran: Duration,
    n_removed: usize,
}

impl Throttle {
    /// Adds a run, and decides again after every [`RUNS_PER_DECISION`] runs. The in-flight queue never shrinks by more than
    /// `max_removed` frames.
    pub(super) fn add(&mut self, waited: Duration, ran: Duration, max_removed: usize) {
        self.n_runs += 1;
        self.waited += waited;
        self.ran += ran;
        if self.n_runs < RUNS_PER_DECISION {
            return;
        }
        if self.waited > self.ran.max(MIN_LONG_WAIT * RUNS_PER_DECISION) {
            self.n_removed = (self.n_removed + 1).min(max_removed);
        } else if self.waited < (self.ran / 4).max(MAX_SHORT_WAIT * RUNS_PER_DECISION) {
            self.n_removed = self.n_removed.saturating_sub(1);
        }
        *self = Self { n_removed: self.n_removed, ..Self::default() };
    }

    /// Returns by how many frames the in-flight queue is to shrink.
    pub(super) fn n_removed(&self) -> usize {
        self.n_removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(throttle: &mut Throttle, n_runs: u32, waited: u64, ran: u64) -> usize {
        (0..n_runs).for_each(|_| throttle.add(Duration::from_micros(waited), Duration::from_micros(ran), 2));
        throttle.n_removed()
    }

    #[test]
    fn long_waits_remove_one_frame_per_decision() {
        let mut throttle = Throttle::default();
        assert_eq!(after(&mut throttle, 15, 12_000, 10_000), 0, "no decision yet");
        assert_eq!(after(&mut throttle, 1, 12_000, 10_000), 1);
        assert_eq!(after(&mut throttle, 16, 12_000, 10_000), 2);
        assert_eq!(after(&mut throttle, 32, 12_000, 10_000), 2, "the maximum");
    }

    #[test]
    fn short_waits_restore_frames_and_medium_waits_change_nothing() {
        let mut throttle = Throttle::default();
        assert_eq!(after(&mut throttle, 32, 30_000, 10_000), 2);
        assert_eq!(after(&mut throttle, 64, 5_000, 10_000), 2, "half the duration is a medium wait");
        assert_eq!(after(&mut throttle, 16, 2_000, 10_000), 1);
        assert_eq!(after(&mut throttle, 16, 2_000, 10_000), 0);
        assert_eq!(after(&mut throttle, 16, 0, 0), 0);
    }

    #[test]
    fn waits_below_a_millisecond_remove_no_frames() {
        let mut throttle = Throttle::default();
        assert_eq!(after(&mut throttle, 64, 900, 10), 0, "a wait below a millisecond is normal: a thread wakes up");
        assert_eq!(after(&mut throttle, 64, 1_100, 10), 2);
        assert_eq!(after(&mut throttle, 64, 400, 10), 0);
    }

    #[test]
    fn one_hanging_run_affects_one_decision() {
        let mut throttle = Throttle::default();
        assert_eq!(after(&mut throttle, 15, 0, 10_000), 0);
        assert_eq!(after(&mut throttle, 1, 10_000_000, 10_000), 1);
        assert_eq!(after(&mut throttle, 16, 0, 10_000), 0);
    }
}
