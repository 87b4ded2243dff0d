//! The latency that an inference element reports to a live pipeline. Pure: knows no clocks, pads or frames.
//!
//! | state | reported | next |
//! |---|---|---|
//! | `Unknown` | what the runs so far suggest | `Reported` with a warm-up, `Owed` if that failed and not through the model's fault |
//! | `Owed` | what the runs so far suggest | `Reported` with the next frame that was inferred |
//! | `Reported` | a fixed latency | raised when a frame takes a fifth longer; never lowered |

use std::time::Duration;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Latency {
    /// How long runs took lately, from the begin of a frame's first to the end of its last.
    run_time: Duration,
    state: State,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum State {
    #[default]
    Unknown,
    Owed,
    Reported(Duration),
}

impl Latency {
    pub(super) fn run_time(&self) -> Duration {
        self.run_time
    }

    /// Whether a warm-up would bring no news.
    pub(super) fn is_known(&self) -> bool {
        matches!(self.state, State::Reported(_))
    }

    /// What a latency query is answered, with a queue of `capacity` frames.
    pub(super) fn reported(&self, capacity: usize) -> Duration {
        match self.state {
            State::Reported(latency) => latency,
            State::Unknown | State::Owed => self.expected(capacity),
        }
    }

    /// A frame waits one run for a slot and then goes through a full queue.
    fn expected(&self, capacity: usize) -> Duration {
        self.run_time * (1 + capacity as u32)
    }

    /// A warm-up has shown how long a run takes. Returns the latency if it is news.
    pub(super) fn warmed_up(&mut self, run_time: Duration, capacity: usize) -> Option<Duration> {
        if self.is_known() {
            return None;
        }
        self.run_time = run_time;
        let latency = self.expected(capacity);
        self.state = State::Reported(latency);
        Some(latency)
    }

    /// The warm-up failed, and not through the model's fault: the first inferred frame tells.
    pub(super) fn owe(&mut self) {
        if self.state == State::Unknown {
            self.state = State::Owed;
        }
    }

    pub(super) fn run_ended(&mut self, run: Duration) {
        self.run_time = if self.run_time.is_zero() { run } else { (self.run_time * 7 + run) / 8 };
    }

    /// A frame was inferred in this time. Whether the pipeline has to query the latency again.
    pub(super) fn inferred(&mut self, measured: Duration, capacity: usize) -> bool {
        let latency = match self.state {
            State::Owed => measured.max(self.expected(capacity)),
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
    fn a_warm_up_reports_and_longer_frames_raise() {
        let mut latency = Latency::default();
        assert!(!latency.inferred(50 * MS, 2), "nothing was reported");
        assert_eq!(latency.warmed_up(10 * MS, 2), Some(30 * MS));
        assert_eq!(latency.warmed_up(20 * MS, 2), None, "another thread was as quick");
        assert!(!latency.inferred(36 * MS, 2) && latency.inferred(37 * MS, 2));
        assert_eq!(latency.reported(9), 37 * MS);
    }

    #[test]
    fn after_a_failed_warm_up_the_first_frame_reports() {
        let mut latency = Latency::default();
        latency.owe();
        latency.run_ended(10 * MS);
        assert_eq!(latency.reported(2), 30 * MS);
        assert!(latency.inferred(5 * MS, 2) && !latency.inferred(31 * MS, 2));
        assert_eq!(latency.reported(2), 30 * MS);
    }
}
