//! Adapts the number of in-flight frames when requests wait for a CPU thread.
//!
//! A full in-flight queue keeps a lone engine busy. In front of a cascade on the same cores it only increases latency, because classifiers
//! run first. So the number of frames is reduced while runs wait longer than they take, and raised when they hardly wait. The waiting time
//! of a run lasts from its assignment to a request to the start of its first step. A device that delays a run later does not count. With a
//! fixed number of requests (`nireq`) nothing is reduced.

use std::time::Duration;

/// Number of runs between two decisions.
const RUNS_PER_DECISION: u32 = 16;
/// Shorter waiting times never reduce the number of frames.
const MIN_LONG_WAIT: Duration = Duration::from_millis(1);
/// Shorter waiting times count as no waiting.
const MAX_SHORT_WAIT: Duration = Duration::from_micros(500);

/// The adaptation; see the module.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Runs since the last decision, with their total waiting time and duration.
    n_runs: u32,
    waited: Duration,
    ran: Duration,
    n_removed: usize,
}

impl Throttle {
    /// Adds the waiting time and the duration of a run; at most `max_removed` frames can be removed.
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

    /// Number of frames to remove.
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
    fn a_frame_is_left_out_for_each_decision_while_runs_wait_longer_than_they_take() {
        let mut throttle = Throttle::default();
        assert_eq!(after(&mut throttle, 15, 12_000, 10_000), 0, "it takes some runs to know");
        assert_eq!(after(&mut throttle, 1, 12_000, 10_000), 1);
        assert_eq!(after(&mut throttle, 16, 12_000, 10_000), 2);
        assert_eq!(after(&mut throttle, 32, 12_000, 10_000), 2, "one is to be there");
    }

    #[test]
    fn they_come_back_when_runs_hardly_wait_and_stay_as_they_are_in_between() {
        let mut throttle = Throttle::default();
        assert_eq!(after(&mut throttle, 32, 30_000, 10_000), 2);
        assert_eq!(after(&mut throttle, 64, 5_000, 10_000), 2, "half as long as they take is neither");
        assert_eq!(after(&mut throttle, 16, 2_000, 10_000), 1);
        assert_eq!(after(&mut throttle, 16, 2_000, 10_000), 0);
        assert_eq!(after(&mut throttle, 16, 0, 0), 0);
    }

    #[test]
    fn what_takes_no_time_is_no_reason() {
        let mut throttle = Throttle::default();
        assert_eq!(after(&mut throttle, 64, 900, 10), 0, "less than a millisecond is what a thread takes to wake up");
        assert_eq!(after(&mut throttle, 64, 1_100, 10), 2);
        assert_eq!(after(&mut throttle, 64, 400, 10), 0);
    }

    #[test]
    fn one_run_that_hangs_is_forgotten_with_the_next_decision() {
        let mut throttle = Throttle::default();
        assert_eq!(after(&mut throttle, 15, 0, 10_000), 0);
        assert_eq!(after(&mut throttle, 1, 10_000_000, 10_000), 1);
        assert_eq!(after(&mut throttle, 16, 0, 10_000), 0);
    }
}
