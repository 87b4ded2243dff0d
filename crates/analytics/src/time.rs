//! The time of a stream, from timestamps of which single ones may be wrong.
//!
//! | timestamp | rule |
//! |---|---|
//! | up to two seconds earlier than the last one | time stays: frames of encoded video are reordered, and a camera corrects its clock |
//! | far from the last one, and the next timestamp is near the last one | it was wrong: the frame gets the time after the last frame |
//! | far from the last one, and the next one as well | time has jumped; a jump back begins a new scene |
//! | a discontinuity, earlier or far ahead | a new scene begins at once |
//!
//! This module reads no clocks.

use std::time::Duration;

/// Timestamps within this time of the last one are not suspicious.
const MAX_GAP: Duration = Duration::from_secs(2);
/// The same as a multiple of the usual time between frames, for streams with few frames.
const MAX_GAP_FRAMES: u32 = 8;
/// Duration of a frame in streams without timestamps.
const FRAME_TIME: Duration = Duration::from_millis(40);

/// Time of the current frame of a stream; see the module.
#[derive(Debug, Clone, Default)]
pub struct StreamTime {
    time: Duration,
    /// The last timestamp that was not suspicious.
    last: Option<Duration>,
    /// Usual time between frames.
    usual: Option<Duration>,
    /// Whether the previous timestamp was suspicious.
    is_suspicious: bool,
}

/// Time of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameTime {
    /// Does not decrease within a scene.
    pub time: Duration,
    /// Time since the frame before; `None` for the first frame of a scene, and if the timestamp tells nothing.
    pub interval: Option<Duration>,
    /// Whether the frame continues none of the frames before it.
    pub is_new_scene: bool,
}

impl StreamTime {
    /// Returns the time of the next frame. `is_discont`: the stream declares a discontinuity before the frame.
    pub fn next(&mut self, timestamp: Option<Duration>, is_discont: bool) -> FrameTime {
        let was_suspicious = std::mem::take(&mut self.is_suspicious);
        let usual = self.usual.unwrap_or(FRAME_TIME);
        let Some(now) = timestamp else { return self.at(self.time + usual, None) };
        let Some(last) = self.last else { return self.begin(now, false) };
        let max_gap = MAX_GAP.max(usual * MAX_GAP_FRAMES);
        let is_ahead = now > last + max_gap;
        let is_back = last > now + MAX_GAP;
        if is_discont && (now < last || is_ahead) {
            return self.begin(now, true);
        }
        match (is_ahead, is_back) {
            (false, false) => {}
            _ if !was_suspicious => {
                self.is_suspicious = true;
                return self.at(self.time + usual, None);
            }
            (_, true) => return self.begin(now, true),
            (true, false) => {}
        }
        let interval = now.checked_sub(last).filter(|interval| !interval.is_zero());
        if let Some(interval) = interval {
            // The mean follows slowly, because the time between frames varies.
            self.usual = Some(self.usual.map_or(interval, |usual| (usual * 7 + interval.min(usual * 4)) / 8));
            self.last = Some(now);
        }
        self.at(now, interval.filter(|_| !is_ahead))
    }

    /// Begins a new scene with the next frame.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    fn begin(&mut self, now: Duration, is_new_scene: bool) -> FrameTime {
        *self = Self { time: now, last: Some(now), ..Self::default() };
        FrameTime { time: now, interval: None, is_new_scene }
    }

    fn at(&mut self, time: Duration, interval: Option<Duration>) -> FrameTime {
        self.time = self.time.max(time);
        FrameTime { time: self.time, interval, is_new_scene: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times of frames with these timestamps, in milliseconds, and the indexes of frames that begin a new scene.
    fn times(timestamps: &[u64]) -> (Vec<u64>, Vec<usize>) {
        let mut stream = StreamTime::default();
        let times: Vec<FrameTime> = timestamps.iter().map(|ms| stream.next(Some(Duration::from_millis(*ms)), false)).collect();
        let scenes = times.iter().enumerate().filter(|(_, at)| at.is_new_scene).map(|(idx, _)| idx).collect();
        (times.iter().map(|at| at.time.as_millis() as u64).collect(), scenes)
    }

    #[test]
    fn one_wrong_timestamp_gets_the_time_after_the_last_frame() {
        const HOURS: u64 = 10_000_000;
        for wrong in [HOURS, 5_000, 0] {
            let begin = if wrong == 0 { HOURS } else { 0 };
            let mut given: Vec<u64> = (0..10).map(|n| begin + 40 * n).collect();
            given[5] = wrong;
            let expected: Vec<u64> = (0..10).map(|n| begin + 40 * n).collect();
            assert_eq!(times(&given), (expected, vec![]), "{wrong}");
        }
    }

    #[test]
    fn time_stays_while_timestamps_are_a_little_back() {
        assert_eq!(times(&[2000, 2040, 500, 2120]), (vec![2000, 2040, 2040, 2120], vec![]));
        assert_eq!(times(&[0, 120, 40, 80, 240, 160, 200]), (vec![0, 120, 120, 120, 240, 240, 240], vec![]), "reordered frames");
        assert_eq!(times(&[2000, 2040, 1000, 1500, 2200]).0, [2000, 2040, 2040, 2040, 2200], "a clock was corrected");
    }

    #[test]
    fn second_timestamp_confirms_a_jump() {
        assert_eq!(times(&[9000, 9040, 0, 40, 80]), (vec![9000, 9040, 9080, 40, 80], vec![3]));
        assert_eq!(times(&[0, 40, 9000, 9040]), (vec![0, 40, 80, 9040], vec![]));
        // One frame in ten seconds.
        assert_eq!(times(&[0, 10_000, 20_000, 30_000, 40_000]).0[2..], [20_000, 30_000, 40_000]);
    }

    #[test]
    fn discontinuity_begins_a_scene_at_once() {
        let mut stream = StreamTime::default();
        let ms = Duration::from_millis;
        let given =
            [(5000, true, false), (5040, true, false), (5000, true, true), (9000, true, true), (9040, false, false), (9000, false, false)];
        for (timestamp, is_discont, is_new_scene) in given {
            assert_eq!(stream.next(Some(ms(timestamp)), is_discont).is_new_scene, is_new_scene, "{timestamp}");
        }
    }

    #[test]
    fn interval_is_that_between_two_good_timestamps() {
        let mut stream = StreamTime::default();
        let given = [Some(0), Some(500), Some(1000), None, Some(9_000_000), Some(2500)];
        let intervals = given.map(|ms| stream.next(ms.map(Duration::from_millis), false).interval.map(|interval| interval.as_millis()));
        assert_eq!(intervals, [None, Some(500), Some(500), None, None, Some(1500)]);
    }
}
