//! Detects whether a live stream keeps up with its source, from the lateness of its frames. This module uses no clocks, pads or queue.
//!
//! If the in-flight queue is full, a frame may wait for a slot while the stream is behind by less than the duration of one inference run.
//! The delay of a frame tells how far the stream is behind. Lateness is arrival time minus running time. The delay of a frame is its
//! lateness minus the lateness of the last frame that found a free slot at once.
//!
//! A burst of late frames, as after loading a model, is processed without skipping: each frame is less late than its predecessor. If the
//! engine is too slow, each frame is later than its predecessor. Once the stream is behind by the duration of one run, frames are skipped
//! until a frame finds a free slot at once.
//!
//! Until the first run has ended, the run time is unknown, so frames wait.

use std::time::Duration;

/// Wake-up delay of a thread on a busy machine. A frame delay below this value does not indicate a slow engine.
const WAKE_UP: Duration = Duration::from_millis(10);
/// Maximum time that a frame waits for a slot before the first run has ended.
const START: Duration = Duration::from_secs(2);

/// Whether the stream keeps up with its source. See the module.
#[derive(Debug, Default)]
pub(super) enum Backlog {
    /// No run has ended.
    #[default]
    Starting,
    /// A run has ended, but no frame has arrived since.
    Started,
    /// The stream keeps up. The value is the lateness of the reference frame in nanoseconds: the last frame that was not delayed.
    KeepingUp(i64),
    /// The engine is too slow: frames do not wait for a slot.
    Skipping,
}

impl Backlog {
    /// Reports that a run has ended.
    pub(super) fn run_ended(&mut self) {
        if matches!(self, Self::Starting) {
            *self = Self::Started;
        }
    }

    /// Reports that a frame of this lateness, in nanoseconds, found a free slot at once.
    pub(super) fn found_slot(&mut self, lateness: i64) {
        if !matches!(self, Self::Starting) {
            *self = Self::KeepingUp(lateness);
        }
    }

    /// Returns how long a frame of this lateness may wait for a slot: one run time minus the frame's delay. While the stream catches
    /// up, the delay is negative, and the result is at most two run times.
    pub(super) fn allowed_wait(&mut self, lateness: i64, run_time: Duration) -> Duration {
        let reference = match *self {
            Self::Starting => return START,
            Self::Skipping => return Duration::ZERO,
            Self::Started => lateness,
            Self::KeepingUp(reference) => reference,
        };
        let allowed = i64::try_from(run_time.max(WAKE_UP).as_nanos()).unwrap_or(i64::MAX);
        let reference = reference.min(lateness.saturating_add(allowed));
        *self = Self::KeepingUp(reference);
        let behind = lateness.saturating_sub(reference);
        Duration::from_nanos(u64::try_from(allowed.saturating_sub(behind)).unwrap_or(0))
    }

    /// Reports that no slot became free during the wait. From then on, frames that find no free slot are skipped.
    pub(super) fn wait_timed_out(&mut self) {
        *self = Self::Skipping;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Duration = Duration::from_millis(20);

    /// Returns the lateness in nanoseconds; negative = early.
    fn late(milliseconds: i64) -> i64 {
        milliseconds * 1_000_000
    }

    #[test]
    fn allowed_wait_shrinks_with_delay() {
        let mut backlog = Backlog::Started;
        backlog.found_slot(late(100));
        let mut allowed_wait = |lateness| backlog.allowed_wait(late(lateness), RUN).as_millis();
        assert_eq!([100, 110, 120, 1000].map(&mut allowed_wait), [20, 10, 0, 0]);
        assert_eq!([90, 0, -100].map(&mut allowed_wait), [30, 40, 40], "frames that catch up may wait up to two runs");
        assert_eq!([-90, -60, 0].map(&mut allowed_wait), [30, 0, 0], "the delay counts from the least late frame");
    }

    #[test]
    fn no_wait_after_timeout_until_a_slot_is_free() {
        let mut backlog = Backlog::Started;
        backlog.found_slot(late(0));
        backlog.wait_timed_out();
        assert_eq!(backlog.allowed_wait(late(-1000), RUN), Duration::ZERO);
        backlog.found_slot(late(50));
        assert_eq!(backlog.allowed_wait(late(50), RUN), RUN);
    }

    #[test]
    fn late_frames_wait_for_first_run() {
        let mut backlog = Backlog::default();
        backlog.found_slot(late(0));
        assert_eq!(backlog.allowed_wait(late(30), RUN), START);
        backlog.run_ended();
        assert_eq!([500, 510, 520].map(|lateness| backlog.allowed_wait(late(lateness), RUN).as_millis()), [20, 10, 0]);
    }

    /// Simulates a stream; all times are in milliseconds. One frame is due per `interval`, but the frames that are due before `begin` all
    /// arrive at `begin`. One inference takes `run`. Returns how many of 100 frames timed out, and the lateness of the last frame.
    fn simulate(begin: u64, interval: u64, run: u64) -> (usize, u64) {
        const N_SLOTS: usize = 3;
        let run_time = Duration::from_millis(run);
        let (mut backlog, mut n_timed_out, mut now, mut came) = (Backlog::Started, 0, begin, 0);
        // Completion times of the frames in the queue.
        let mut done: Vec<u64> = Vec::new();
        for n in 0..100 {
            now = now.max(n * interval);
            came = now - n * interval;
            let lateness = late(came as i64);
            done.retain(|done| *done > now);
            if done.len() < N_SLOTS {
                backlog.found_slot(lateness);
            } else {
                let slot_at = done[0];
                let allowed_wait = backlog.allowed_wait(lateness, run_time).as_millis() as u64;
                if slot_at - now > allowed_wait {
                    now += allowed_wait;
                    backlog.wait_timed_out();
                    n_timed_out += 1;
                    continue;
                }
                now = slot_at;
                done.remove(0);
            }
            done.push(done.last().map_or(now, |last| now.max(*last)) + run);
        }
        (n_timed_out, came)
    }

    #[test]
    fn fast_engine_skips_no_frame_of_initial_burst() {
        for (begin, interval, run) in [(0, 33, 30), (1000, 33, 10), (3000, 33, 25), (500, 33, 33), (300, 10, 9)] {
            assert_eq!(simulate(begin, interval, run).0, 0, "{run} ms per run, one frame per {interval} ms, {begin} ms late");
        }
    }

    #[test]
    fn slow_engine_skips_and_delay_stays_bounded() {
        for (begin, interval, run) in [(0, 33, 66), (1000, 33, 100), (0, 10, 200)] {
            let (n_timed_out, late) = simulate(begin, interval, run);
            assert!(n_timed_out > 30, "{n_timed_out} skipped: {run} ms per run, one frame per {interval} ms");
            assert!(late <= 2 * run, "the last frame was {late} ms late, {run} ms per run");
        }
    }
}
