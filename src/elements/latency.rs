//! The latency that an inference element reports to a live pipeline. This module uses no clocks, pads or frames.
//!
//! | state | reported | next |
//! |---|---|---|
//! | `Unknown` | estimate from the runs so far | `Reported` after a warm-up; `Deferred` if it failed for a reason other than the model |
//! | `Deferred` | estimate from the runs so far | `Reported` after the next inferred frame |
//! | `Reported` | a fixed latency | raised if a frame takes 20 % longer; never lowered |

use std::time::Duration;

/// Latency of one element. See the module.
#[derive(Debug, Default)]
pub(super) struct Latency {
    /// Moving average of the run time, from the begin of a frame's first run to the end of the frame's last run.
    run_time: Duration,
    state: State,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum State {
    #[default]
    Unknown,
    Deferred,
    Reported(Duration),
}

impl Latency {
    pub(super) fn run_time(&self) -> Duration {
        self.run_time
    }

    /// Whether the latency was already measured.
    pub(super) fn is_known(&self) -> bool {
        matches!(self.state, State::Reported(_))
    }

    /// Returns the latency to report, with a queue of `capacity` frames.
    pub(super) fn reported(&self, capacity: usize) -> Duration {
        match self.state {
            State::Reported(latency) => latency,
            State::Unknown | State::Deferred => self.expected(capacity),
        }
    }

    /// Returns the expected latency of a frame that waits for a slot for the duration of one run and then passes a full queue.
    fn expected(&self, capacity: usize) -> Duration {
        self.run_time * (1 + capacity as u32)
    }

    /// Sets the run time to that of a warm-up. Returns the new latency. Returns `None` if the latency was already measured.
    pub(super) fn warmed_up(&mut self, run_time: Duration, capacity: usize) -> Option<Duration> {
        if self.is_known() {
            return None;
        }
        self.run_time = run_time;
        let latency = self.expected(capacity);
        self.state = State::Reported(latency);
        Some(latency)
    }

    /// Defers the measurement to the first inferred frame. Called if the warm-up failed for a reason other than the model.
    pub(super) fn defer(&mut self) {
        if self.state == State::Unknown {
            self.state = State::Deferred;
        }
    }

    pub(super) fn run_ended(&mut self, run: Duration) {
        self.run_time = if self.run_time.is_zero() { run } else { (self.run_time * 7 + run) / 8 };
    }

    /// Updates the latency after an inferred frame. Returns whether the pipeline must query the latency again.
    pub(super) fn inferred(&mut self, measured: Duration, capacity: usize) -> bool {
        let latency = match self.state {
            State::Deferred => measured.max(self.expected(capacity)),
            State::Reported(latency) if measured > latency + latency / 5 => measured,
            State::Unknown | State::Reported(_) => return false,
        };
        self.state = State::Reported(latency);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn warm_up_sets_latency_and_slower_frames_raise_it() {
        let mut latency = Latency::default();
        assert!(!latency.inferred(50 * MS, 2), "no latency reported yet");
        assert_eq!(latency.warmed_up(10 * MS, 2), Some(30 * MS));
        assert_eq!(latency.warmed_up(20 * MS, 2), None, "second warm-up has no effect");
        assert!(!latency.inferred(36 * MS, 2) && latency.inferred(37 * MS, 2));
        assert_eq!(latency.reported(9), 37 * MS);
    }

    #[test]
    fn first_frame_reports_after_failed_warm_up() {
        let mut latency = Latency::default();
        latency.defer();
        latency.run_ended(10 * MS);
        assert_eq!(latency.reported(2), 30 * MS);
        assert!(latency.inferred(5 * MS, 2) && !latency.inferred(31 * MS, 2));
        assert_eq!(latency.reported(2), 30 * MS);
    }
}
