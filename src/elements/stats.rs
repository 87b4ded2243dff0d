//! Statistics of an inference element: frame counts by outcome, frame rate, and latency.
//!
//! Each frame that arrived has left, was dropped, or is in flight. Each frame that left was inferred, skipped, or failed. Dropped and
//! skipped frames are counted by reason. This module uses no pads. Memory use is constant.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gstreamer as gst;

use super::policy::Reason;
use crate::stages::StageStats;

/// Counters since the element was created. See the module.
#[derive(Default)]
pub(super) struct Counts {
    arrived: AtomicU64,
    left: AtomicU64,
    inferred: AtomicU64,
    failed: AtomicU64,
    skipped: [AtomicU64; Reason::N_OF_SKIPS],
    dropped: [AtomicU64; Reason::ALL.len()],
    copied: AtomicU64,
    objects: AtomicU64,
    latency: Histogram,
    latency_total_ns: AtomicU64,
    pace: Mutex<Pace>,
    /// The time at which the statistics are posted next.
    due: Mutex<Option<Instant>>,
}

/// Outcome of a frame that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    Inferred,
    Skipped(Reason),
    Failed,
}

impl Counts {
    /// Resets the time at which statistics are posted, at the begin of a stream.
    pub(super) fn begin(&self) {
        *self.due.lock().unwrap() = None;
    }

    /// Returns whether the statistics are due, and the time at which they are due next. `interval` is the current interval;
    /// `None` = never due.
    pub(super) fn due(&self, interval: Option<Duration>) -> (bool, Option<Instant>) {
        let now = Instant::now();
        let mut due = self.due.lock().unwrap();
        let is_due = interval.is_some() && due.is_some_and(|due| due <= now);
        // A shorter interval takes effect at once.
        *due = interval.map(|interval| due.filter(|&due| due > now).map_or(now + interval, |due| due.min(now + interval)));
        (is_due, *due)
    }

    pub(super) fn arrive(&self) {
        add(&self.arrived, 1);
    }

    pub(super) fn drop(&self, reason: Reason) {
        add(&self.dropped[reason as usize], 1);
    }

    pub(super) fn copy(&self) {
        add(&self.copied, 1);
    }

    /// Counts a frame that leaves. If the frame failed, returns the number of frames that failed so far, including this frame.
    pub(super) fn leave(&self, left: Left, n_objects: usize, latency: Duration, now: Instant) -> u64 {
        add(&self.left, 1);
        add(&self.objects, n_objects as u64);
        let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency.add(latency_ns);
        add(&self.latency_total_ns, latency_ns);
        self.pace.lock().unwrap().leave(now);
        match left {
            Left::Inferred => {
                add(&self.inferred, 1);
                0
            }
            Left::Skipped(reason) => {
                add(&self.skipped[reason as usize], 1);
                0
            }
            Left::Failed => add(&self.failed, 1),
        }
    }

    /// Ends the measurement of the frame rate at the end of the stream. From then on, the reported frame rate does not change.
    pub(super) fn end(&self) {
        self.pace.lock().unwrap().ended = Some(Instant::now());
    }

    /// Returns the property `stats`: all counters, and the counters of the stage.
    pub(super) fn structure(&self, stage: StageStats, capacity: usize) -> gst::Structure {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let sum = |counters: &[AtomicU64]| counters.iter().map(count).sum::<u64>();
        // Read the number of frames that left first. Otherwise the statistics could show more frames leaving than arriving.
        let (left, dropped) = (count(&self.left), sum(&self.dropped));
        let arrived = count(&self.arrived);
        let mut structure = gst::Structure::builder("application/x-roiflow-stats")
            .field("device", stage.device)
            .field("frames-in", arrived)
            .field("frames-out", left)
            .field("frames-here", arrived.saturating_sub(left + dropped))
            .field("inferred", count(&self.inferred))
            .field("skipped", sum(&self.skipped))
            .field("failed", count(&self.failed))
            .field("dropped", dropped)
            .field("copied", count(&self.copied))
            .field("objects", count(&self.objects))
            .field("fps", self.pace.lock().unwrap().fps(Instant::now()))
            .field("latency-p50-ns", self.latency.percentile(50))
            .field("latency-p95-ns", self.latency.percentile(95))
            .field("latency-p99-ns", self.latency.percentile(99))
            .field("latency-total-ns", count(&self.latency_total_ns))
            .field("window", capacity as u64)
            .field("runs", stage.n_runs)
            .field("rows", stage.n_items)
            .field("runs-failed", stage.n_failed)
            .build();
        for (reason, counter) in Reason::ALL.into_iter().zip(&self.skipped) {
            structure.set(format!("skipped-{}", reason.name()), count(counter));
        }
        // Frames that `inference-interval` or `motion-threshold` skips are never dropped. So there are no fields for dropped frames with
        // these reasons.
        for (reason, counter) in Reason::ALL.into_iter().zip(&self.dropped).skip(Reason::N_OF_CHOICES) {
            structure.set(format!("dropped-{}", reason.name()), count(counter));
        }
        for step in stage.steps {
            structure.set(format!("step-{}-ns", step.name), step.total.as_nanos() as u64);
        }
        structure
    }
}

fn add(counter: &AtomicU64, n: u64) -> u64 {
    counter.fetch_add(n, Ordering::Relaxed) + n
}

/// Frame rate over the newest frames.
struct Pace {
    /// Ring buffer of the times at which the newest frames left.
    times: [Option<Instant>; Self::N_FRAMES],
    next: usize,
    ended: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { times: [None; Self::N_FRAMES], next: 0, ended: None }
    }
}

impl Pace {
    const N_FRAMES: usize = 64;

    fn leave(&mut self, now: Instant) {
        if self.ended.take().is_some() {
            // This is the first frame of a new stream, so begin with an empty ring.
            self.times = [None; Self::N_FRAMES];
        }
        self.times[self.next] = Some(now);
        self.next = (self.next + 1) % Self::N_FRAMES;
    }

    /// Returns the frame rate in frames per second. While no frame leaves, the value falls.
    fn fps(&self, now: Instant) -> f64 {
        let (oldest, newest) = (self.times.iter().flatten().min(), self.times.iter().flatten().max());
        let (Some(&oldest), Some(&newest)) = (oldest, newest) else { return 0.0 };
        let n_frames = self.times.iter().flatten().count();
        let (until_newest, until_now) = (newest - oldest, self.ended.unwrap_or(now).saturating_duration_since(oldest));
        // `frame_time` is the mean interval between frames. If the next frame is overdue, it counts as if it left now.
        let frame_time = until_newest.as_secs_f64() / (n_frames.max(2) - 1) as f64;
        let is_overdue = self.ended.is_none() && (until_now - until_newest).as_secs_f64() > frame_time;
        let (n_spans, span) = if is_overdue { (n_frames, until_now) } else { (n_frames - 1, until_newest) };
        if span.is_zero() { 0.0 } else { n_spans as f64 / span.as_secs_f64() }
    }
}

/// Histogram of durations with 3 % resolution: 32 buckets per doubling.
struct Histogram {
    buckets: Vec<AtomicU64>,
    max: AtomicU64,
}

impl Histogram {
    /// Each value below this number has its own bucket.
    const N_EXACT: u64 = 64;
    const N_PER_DOUBLING: u64 = Self::N_EXACT / 2;

    fn bucket(value: u64) -> usize {
        if value < Self::N_EXACT {
            return value as usize;
        }
        // The six highest bits of the value select one of the buckets between two powers of two.
        let shift = u64::from(value.ilog2()) - 5;
        (Self::N_EXACT + (shift - 1) * Self::N_PER_DOUBLING + (value >> shift) - Self::N_PER_DOUBLING) as usize
    }

    /// Returns the highest value of a bucket.
    fn highest(bucket: usize) -> u64 {
        let bucket = bucket as u64;
        if bucket < Self::N_EXACT {
            return bucket;
        }
        let (doubling, place) = ((bucket - Self::N_EXACT) / Self::N_PER_DOUBLING, (bucket - Self::N_EXACT) % Self::N_PER_DOUBLING);
        let next = u128::from(Self::N_PER_DOUBLING + place + 1) << (doubling + 1);
        u64::try_from(next - 1).unwrap_or(u64::MAX)
    }

    fn add(&self, value: u64) {
        add(&self.buckets[Self::bucket(value)], 1);
        self.max.fetch_max(value, Ordering::Relaxed);
    }

    /// Returns the smallest bucket limit that `percent` % of the values do not exceed; 0 without values.
    fn percentile(&self, percent: u64) -> u64 {
        let n_values: u64 = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum();
        let rank = (n_values * percent).div_ceil(100);
        let mut n_seen = 0;
        for (bucket_idx, bucket) in self.buckets.iter().enumerate() {
            n_seen += bucket.load(Ordering::Relaxed);
            if n_seen >= rank {
                return Self::highest(bucket_idx).min(self.max.load(Ordering::Relaxed));
            }
        }
        0
    }
}

impl Default for Histogram {
    fn default() -> Self {
        let n_buckets = Self::bucket(u64::MAX) + 1;
        Self { buckets: (0..n_buckets).map(|_| AtomicU64::new(0)).collect(), max: AtomicU64::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_holds_only_its_own_values() {
        let mut last = 0;
        for value in (0..5000).chain((0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1])).chain([u64::MAX]) {
            let bucket = Histogram::bucket(value);
            let highest = Histogram::highest(bucket);
            assert!(value <= highest, "{value} in bucket {bucket}, which ends at {highest}");
            assert!(highest as f64 <= value as f64 * 1.032, "{value} in bucket {bucket}, which ends at {highest}");
            assert!(bucket == 0 || Histogram::highest(bucket - 1) < value, "{value} is too high for bucket {bucket}");
            last = last.max(bucket);
        }
        assert_eq!(last + 1, Histogram::default().buckets.len());
    }

    #[test]
    fn percentiles_match_values() {
        let histogram = Histogram::default();
        assert_eq!(histogram.percentile(99), 0, "empty histogram");
        (1..=1000).for_each(|n| histogram.add(n * 1000));
        for (percent, expected) in [(50, 500_000.0), (95, 950_000.0), (99, 990_000.0), (100, 1_000_000.0)] {
            let off = histogram.percentile(percent) as f64 / expected;
            assert!((1.0..1.032).contains(&off), "{percent} %: {off} of {expected}");
        }
    }

    #[test]
    fn fps_follows_newest_frames_and_falls_during_stall() {
        let begin = Instant::now();
        let at = |milliseconds: u64| begin + Duration::from_millis(milliseconds);
        let mut pace = Pace::default();
        assert_eq!(pace.fps(at(0)), 0.0);
        (0..100).for_each(|n| pace.leave(at(n * 10)));
        (0..100).for_each(|n| pace.leave(at(1000 + n * 40)));
        assert!((pace.fps(at(4960)) - 25.0).abs() < 0.01, "{}", pace.fps(at(4960)));
        let stalled = pace.fps(at(4960 + 63 * 40));
        assert!((stalled - 12.7).abs() < 0.1, "{stalled}");
        pace.ended = Some(at(4980));
        assert!((pace.fps(at(60_000)) - 25.0).abs() < 0.01, "the end of a stream is no stall");
        pace.leave(at(70_000));
        pace.leave(at(70_100));
        assert!((pace.fps(at(70_100)) - 10.0).abs() < 0.01, "second stream");
    }
}
