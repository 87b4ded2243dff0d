//! Whether a live stream keeps up with its source, told by the times of its frames. Pure: knows no clocks, no pads and no queue.
//!
//! A frame that finds the in-flight queue full may wait for a slot while the stream is less than one run behind. It is behind by as much as
//! this frame came later than the last one that found a slot at once, each compared to its own running time.
//! So a burst of frames that come late already, as they do behind a model that was loading, is worked off without a skipped frame: each of
//! them is less late than the one before. Behind an engine that is too slow each frame is later than the one before. Once the stream is one
//! run behind, frames are skipped, until one finds a slot at once.
//!
//! Until the first run has ended nothing can be told: frames wait.

use std::time::Duration;

/// A thread may wake up so late on a busy machine; to be behind by less says nothing about an engine.
const WAKE_UP: Duration = Duration::from_millis(10);
/// Frames wait so long for the first run.
const START: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug, Default)]
pub(super) enum Backlog {
    /// No run has ended.
    #[default]
    Starting,
    /// A run has ended, and no frame came since.
    Started,
    /// The lateness of a frame that is not behind, in nanoseconds.
    KeepingUp(i64),
    /// The engine is too slow: frames that find no slot don't wait for one.
    Skipping,
}

impl Backlog {
    /// A run has ended.
    pub(super) fn run_ended(&mut self) {
        if matches!(self, Self::Starting) {
            *self = Self::Started;
        }
    }

    /// A frame that came so late, in nanoseconds, found a slot at once.
    pub(super) fn found_slot(&mut self, lateness: i64) {
        if !matches!(self, Self::Starting) {
            *self = Self::KeepingUp(lateness);
        }
    }

    /// How long a frame that came so late, and found no slot, may wait for one: one run where the stream is not behind, two where it
    /// catches up. `run_time` is that of a run.
    pub(super) fn patience(&mut self, lateness: i64, run_time: Duration) -> Duration {
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

    /// A frame waited as long as it might, and there is no slot: frames are skipped from here on.
    pub(super) fn waited_in_vain(&mut self) {
        *self = Self::Skipping;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Duration = Duration::from_millis(20);

    /// So many milliseconds late; early, if below 0.
    fn late(milliseconds: i64) -> i64 {
        milliseconds * 1_000_000
    }

    #[test]
    fn a_frame_waits_one_run_and_less_the_further_the_stream_is_behind() {
        let mut backlog = Backlog::Started;
        backlog.found_slot(late(100));
        let mut patience = |lateness| backlog.patience(late(lateness), RUN).as_millis();
        assert_eq!([100, 110, 120, 1000].map(&mut patience), [20, 10, 0, 0]);
        assert_eq!([90, 0, -100].map(&mut patience), [30, 40, 40], "frames that catch up have more time, and not without end");
        assert_eq!([-90, -60, 0].map(&mut patience), [30, 0, 0], "behind what was caught up with, not behind the first");
    }

    #[test]
    fn after_a_wait_in_vain_none_waits_until_one_finds_a_slot() {
        let mut backlog = Backlog::Started;
        backlog.found_slot(late(0));
        backlog.waited_in_vain();
        assert_eq!(backlog.patience(late(-1000), RUN), Duration::ZERO);
        backlog.found_slot(late(50));
        assert_eq!(backlog.patience(late(50), RUN), RUN);
    }

    #[test]
    fn frames_wait_for_the_first_run_however_late_they_come_then() {
        let mut backlog = Backlog::default();
        backlog.found_slot(late(0));
        assert_eq!(backlog.patience(late(30), RUN), START);
        backlog.run_ended();
        assert_eq!([500, 510, 520].map(|lateness| backlog.patience(late(lateness), RUN).as_millis()), [20, 10, 0]);
    }

    /// Times in milliseconds: frames come each `interval`, those of before `begin` at once, and a run takes `run`. How many frames
    /// of the first hundred wait in vain, and by how much the last one came late.
    fn simulate(begin: u64, interval: u64, run: u64) -> (usize, u64) {
        const N_SLOTS: usize = 3;
        let run_time = Duration::from_millis(run);
        let (mut backlog, mut n_in_vain, mut now, mut came) = (Backlog::Started, 0, begin, 0);
        // When those in the queue are done.
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
                let patience = backlog.patience(lateness, run_time).as_millis() as u64;
                if slot_at - now > patience {
                    now += patience;
                    backlog.waited_in_vain();
                    n_in_vain += 1;
                    continue;
                }
                now = slot_at;
                done.remove(0);
            }
            done.push(done.last().map_or(now, |last| now.max(*last)) + run);
        }
        (n_in_vain, came)
    }

    #[test]
    fn a_burst_at_the_start_is_worked_off_by_an_engine_that_keeps_up() {
        for (begin, interval, run) in [(0, 33, 30), (1000, 33, 10), (3000, 33, 25), (500, 33, 33), (300, 10, 9)] {
            assert_eq!(simulate(begin, interval, run).0, 0, "{run} ms a run for a frame each {interval} ms, {begin} ms late");
        }
    }

    #[test]
    fn an_engine_that_is_too_slow_skips_and_the_delay_is_bounded() {
        for (begin, interval, run) in [(0, 33, 66), (1000, 33, 100), (0, 10, 200)] {
            let (n_in_vain, late) = simulate(begin, interval, run);
            assert!(n_in_vain > 30, "{n_in_vain} for {run} ms a run and a frame each {interval} ms");
            assert!(late <= 2 * run, "the last one came {late} ms late, with {run} ms a run");
        }
    }
}
