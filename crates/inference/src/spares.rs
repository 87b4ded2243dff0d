//! Decides how many more requests than cores a model uses while other processes use the cores as well.
//!
//! The system divides the time of the cores among all threads that want to run. On two cores beside a process that keeps one thread busy,
//! two threads get two thirds of that time, three threads three quarters, and four threads four fifths. Without other processes, further
//! threads only compete with the other threads of this process. So spare requests are used only after the process got too little time, and
//! rest when the process gets the cores for itself again.
//!
//! The process got too little time if frames waited and requests were busy, but the threads did not use the cores. Only a model with copies
//! has spare requests, because its copies compute on the threads of the process; see [`super::copies`].

use std::time::Duration;

/// Number of runs between two decisions.
const RUNS_PER_DECISION: u32 = 32;
/// The requests were busy if they had a run for this part of the time. Otherwise the threads do not use the cores because the stream is slow.
const MIN_BUSY: f64 = 0.5;
/// If the process used less than this part of the cores, other processes use them.
const SHARED_BELOW: f64 = 0.85;
/// If the process used more than this part of the cores, it has them for itself.
const ALONE_ABOVE: f64 = 0.96;

/// Decides how many spare requests are used; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Spares {
    /// Time and processor time of the process at the last decision.
    since: Option<(Duration, Duration)>,
    n_runs: u32,
    /// Total time in which requests had runs since then.
    busy: Duration,
    n_used: usize,
}

impl Spares {
    /// Adds a run that took `took`, from its assignment to a request to its end, and decides again after every [`RUNS_PER_DECISION`] runs.
    /// `now` is the present time. `measure` returns the processor time of all threads of the process, and whether a frame had to wait for its
    /// admission since the last decision. Without spare requests, the model has `n_requests` requests. There is at most one spare request
    /// per core. Returns the number of spare requests if it has changed.
    pub(super) fn add(
        &mut self,
        took: Duration,
        now: Duration,
        measure: impl FnOnce() -> (Duration, bool),
        (n_requests, n_cores): (usize, usize),
    ) -> Option<usize> {
        self.n_runs += 1;
        self.busy += took;
        if self.since.is_some() && self.n_runs < RUNS_PER_DECISION {
            return None;
        }
        let (used, has_waited) = measure();
        let before = self.n_used;
        if let Some((begin, used_before)) = self.since {
            let elapsed = now.saturating_sub(begin).as_secs_f64().max(f64::MIN_POSITIVE);
            let is_busy = self.busy.as_secs_f64() >= MIN_BUSY * (n_requests + self.n_used) as f64 * elapsed;
            let share = used.saturating_sub(used_before).as_secs_f64() / (n_cores as f64 * elapsed);
            self.n_used = match self.n_used {
                _ if !(is_busy && has_waited) => 0,
                n_used if share < SHARED_BELOW => (n_used + 1).min(n_cores),
                n_used if share > ALONE_ABOVE => n_used.saturating_sub(1),
                n_used => n_used,
            };
        }
        (self.since, self.n_runs, self.busy) = (Some((now, used)), 0, Duration::ZERO);
        (self.n_used != before).then_some(self.n_used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two cores and two requests, whose time passes as a test says.
    #[derive(Default)]
    struct Process {
        spares: Spares,
        now: Duration,
        used: Duration,
    }

    impl Process {
        /// A process whose first run begins the first interval.
        fn new() -> Self {
            let mut process = Self::default();
            process.spares.add(Duration::ZERO, Duration::ZERO, Default::default, (2, 2));
            process
        }

        /// Adds the runs of a number of decisions while frames wait, and returns the number of spare requests. In each millisecond, the
        /// process uses `share` of the cores, and its requests are busy for `busy` of it.
        fn run(&mut self, n_decisions: u32, share: f64, busy: f64) -> usize {
            self.run_if(true, n_decisions, share, busy)
        }

        fn run_if(&mut self, has_waited: bool, n_decisions: u32, share: f64, busy: f64) -> usize {
            for _ in 0..n_decisions * RUNS_PER_DECISION {
                self.now += Duration::from_millis(1);
                self.used += Duration::from_secs_f64(share * 2e-3);
                let (took, used) = (busy * (2 + self.spares.n_used) as f64 * 1e-3, self.used);
                self.spares.add(Duration::from_secs_f64(took), self.now, || (used, has_waited), (2, 2));
            }
            self.spares.n_used
        }
    }

    #[test]
    fn spare_requests_are_used_while_other_processes_use_the_cores() {
        let mut process = Process::new();
        assert_eq!(process.run(100, 0.97, 0.95), 0, "the process has the cores for itself");
        assert_eq!(process.run(1, 0.67, 0.95), 1, "another process uses a core");
        assert_eq!(process.run(100, 0.92, 0.95), 1, "the process gets enough of the cores");
        assert_eq!(process.run(100, 0.75, 0.95), 2, "at most one spare request per core");
        assert_eq!(process.run(1, 0.98, 0.95), 1, "the other process has ended");
        assert_eq!(process.run(100, 0.98, 0.95), 0);
        assert_eq!(process.run(100, 0.90, 0.95), 0, "between the limits, nothing changes");
    }

    #[test]
    fn slow_stream_uses_no_spare_requests() {
        let mut process = Process::new();
        assert_eq!(process.run(100, 0.30, 0.32), 0, "the requests wait for frames");
        assert_eq!(process.run(100, 0.60, 0.95), 2);
        assert_eq!(process.run(1, 0.30, 0.32), 0, "the stream has become slow");
        assert_eq!(process.run_if(false, 100, 0.60, 0.65), 0, "the requests are fast enough for the camera");
    }

    #[test]
    fn processor_time_is_read_once_for_each_decision() {
        let (mut spares, mut n_reads) = (Spares::default(), 0);
        for n in 0..10 * RUNS_PER_DECISION {
            let read = || {
                n_reads += 1;
                (Duration::ZERO, true)
            };
            assert_eq!(spares.add(Duration::ZERO, Duration::from_millis(u64::from(n)), read, (2, 2)), None);
        }
        assert_eq!(n_reads, 10, "and once at the start");
    }
}
