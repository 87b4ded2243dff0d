//! Measures a running pipeline: frames, objects, latency from the first to behind the last inference element, time per step.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;

use super::Plan;
use super::plan::PUBLISH;

/// Latencies kept for the percentiles: all of an hour at 30 frames a second, of longer streams every second one, every fourth and so on.
const MAX_LATENCIES: usize = 108_000;
/// Frames that can be on their way from the first inference element to the last: more than windows hold. Those beyond were dropped, or
/// something between has given them other time stamps.
const MAX_INSIDE: usize = 4096;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stats {
    /// Frames that left the last inference element.
    pub n_frames: u64,
    /// Objects that the detectors found.
    pub n_objects: u64,
    /// From the first buffer to the last.
    pub duration: Duration,
    /// From the arrival at the first inference element to leaving the last one; sorted. Of a long stream an even sample; of several
    /// streams together those of each.
    pub latencies: Vec<Duration>,
    /// Per inference element.
    pub stages: Vec<StageTimes>,
    /// Frames on which inference failed.
    pub n_failed: u64,
    /// Frames that were dropped on the way.
    pub n_dropped: u64,
    /// Frames that an inference element let pass without inference, or dropped: the element, what it did, why, and how many.
    pub not_inferred: Vec<NotInferred>,
    /// JSON lines that could not be written.
    pub n_lines_lost: u64,
}

/// The steps of one inference element.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StageTimes {
    /// The element's name in the pipeline.
    pub name: String,
    /// The device that runs its model.
    pub device: String,
    /// Runs of its model.
    pub n_runs: u64,
    /// Mean time per run, by step.
    pub steps: Vec<(String, Duration)>,
}

/// Frames that were not inferred for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotInferred {
    /// The element's name in the pipeline.
    pub element: String,
    /// Whether they went no further.
    pub dropped: bool,
    /// The property that is the reason, or "flush", "downstream".
    pub reason: String,
    /// How many.
    pub n_frames: u64,
}

impl Stats {
    /// What streams that ran at the same time did together: everything is added up, but for the duration, which is that of the
    /// longest. Inference elements of the same name are one.
    pub fn sum<'a>(of: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        for stats in of {
            sum.n_frames += stats.n_frames;
            sum.n_objects += stats.n_objects;
            sum.duration = sum.duration.max(stats.duration);
            sum.latencies.extend(&stats.latencies);
            sum.n_failed += stats.n_failed;
            sum.n_dropped += stats.n_dropped;
            sum.n_lines_lost += stats.n_lines_lost;
            for stage in &stats.stages {
                match sum.stages.iter_mut().find(|known| known.name == stage.name) {
                    Some(known) => known.add(stage),
                    None => sum.stages.push(stage.clone()),
                }
            }
            for frames in &stats.not_inferred {
                let is_same = |known: &&mut NotInferred| {
                    (&known.element, known.dropped, &known.reason) == (&frames.element, frames.dropped, &frames.reason)
                };
                match sum.not_inferred.iter_mut().find(is_same) {
                    Some(known) => known.n_frames += frames.n_frames,
                    None => sum.not_inferred.push(frames.clone()),
                }
            }
        }
        sum.latencies.sort();
        sum
    }

    /// Frames a second.
    pub fn fps(&self) -> f64 {
        let seconds = self.duration.as_secs_f64();
        if seconds > 0.0 { self.n_frames as f64 / seconds } else { 0.0 }
    }

    /// The latency that this share of the frames stays within; `None` without frames.
    pub fn latency_percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.latencies.len() * percent).div_ceil(100).max(1);
        self.latencies.get(rank - 1).copied()
    }
}

impl StageTimes {
    /// Adds the runs of an element of the same name.
    fn add(&mut self, other: &Self) {
        let n_runs = self.n_runs + other.n_runs;
        for (name, time) in &other.steps {
            match self.steps.iter_mut().find(|(known, _)| known == name) {
                // Means, weighed by the runs.
                Some((_, known)) if n_runs > 0 => {
                    let total = known.as_secs_f64() * self.n_runs as f64 + time.as_secs_f64() * other.n_runs as f64;
                    *known = Duration::from_secs_f64(total / n_runs as f64);
                }
                Some(_) => {}
                None => self.steps.push((name.clone(), *time)),
            }
        }
        if self.device != other.device {
            self.device = format!("{}, {}", self.device, other.device);
        }
        self.n_runs = n_runs;
    }
}

/// Probes on a pipeline.
#[derive(Debug)]
pub(super) struct Meter {
    seen: Arc<Mutex<Seen>>,
    inference: Vec<gst::Element>,
    publish: Option<gst::Element>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Frames between the two probes, by time stamp.
    inside: VecDeque<(Option<gst::ClockTime>, Instant)>,
    latencies: Latencies,
    n_in: u64,
    n_out: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Meter {
    pub(super) fn new(pipeline: &gst::Pipeline, plan: &Plan) -> Self {
        let is_inference = |factory: &str| matches!(factory, "roidetect" | "roiclassify");
        let named = plan.elements.iter().filter(|element| is_inference(&element.factory));
        let inference: Vec<gst::Element> = named.filter_map(|element| pipeline.by_name(&element.name)).collect();
        let seen = Arc::new(Mutex::new(Seen::default()));
        if let (Some(first), Some(last)) = (inference.first(), inference.last()) {
            probe(first, "sink", &seen, Seen::enter);
            probe(last, "src", &seen, Seen::leave);
        }
        Self { seen, inference, publish: pipeline.by_name(PUBLISH) }
    }

    /// Frames that left so far.
    pub(super) fn n_frames(&self) -> u64 {
        self.seen.lock().unwrap().n_out
    }

    /// What was measured. `ended` says that nothing is in flight any more.
    pub(super) fn stats(&self, ended: bool) -> Stats {
        let mut stats = Stats::default();
        {
            let seen = self.seen.lock().unwrap();
            stats.n_frames = seen.n_out;
            stats.n_dropped = if ended { seen.n_in.saturating_sub(seen.n_out) } else { 0 };
            stats.duration = seen.first.zip(seen.last).map(|(first, last)| last - first).unwrap_or_default();
            stats.latencies = seen.latencies.kept.clone();
        }
        stats.latencies.sort();
        for element in &self.inference {
            let structure: gst::Structure = element.property("stats");
            let count = |name: &str| structure.get::<u64>(name).unwrap_or(0);
            stats.n_failed += count("failed");
            if element.factory().is_some_and(|factory| factory.name() == "roidetect") {
                stats.n_objects += count("objects");
            }
            for (field, value) in structure.iter() {
                let (skipped, dropped) = (field.strip_prefix("skipped-"), field.strip_prefix("dropped-"));
                let n_frames = value.get::<u64>().unwrap_or(0);
                if let Some(reason) = skipped.or(dropped).filter(|_| n_frames > 0) {
                    let (element, reason) = (element.name().to_string(), reason.to_owned());
                    stats.not_inferred.push(NotInferred { element, dropped: dropped.is_some(), reason, n_frames });
                }
            }
            let n_runs = count("runs");
            let device = structure.get::<String>("device").unwrap_or_default();
            let steps = structure.iter().filter_map(|(field, total)| {
                let step = field.strip_prefix("step-")?.strip_suffix("-ns")?;
                Some((step.to_owned(), Duration::from_nanos(total.get::<u64>().ok()? / n_runs.max(1))))
            });
            stats.stages.push(StageTimes { name: element.name().to_string(), device, n_runs, steps: steps.collect() });
        }
        stats.n_lines_lost = self.n_lines_lost();
        stats
    }

    /// Lines of results that could not be written; all of them once the pipeline has stopped.
    pub(super) fn n_lines_lost(&self) -> u64 {
        let errors = |publish: &gst::Element| publish.property::<gst::Structure>("stats").get::<u64>("errors").ok();
        self.publish.as_ref().and_then(errors).unwrap_or(0)
    }

    /// Frames that came to the first inference element and did not leave the last one.
    pub(super) fn n_in_flight(&self) -> u64 {
        let seen = self.seen.lock().unwrap();
        seen.n_in.saturating_sub(seen.n_out)
    }

    /// Whether frames are inferred, and none came yet.
    pub(super) fn waits_for_frames(&self) -> bool {
        !self.inference.is_empty() && self.seen.lock().unwrap().n_in == 0
    }
}

impl Seen {
    fn enter(&mut self, pts: Option<gst::ClockTime>, now: Instant) {
        self.n_in += 1;
        self.first.get_or_insert(now);
        if self.inside.len() == MAX_INSIDE {
            self.inside.pop_front();
        }
        self.inside.push_back((pts, now));
    }

    fn leave(&mut self, pts: Option<gst::ClockTime>, now: Instant) {
        self.n_out += 1;
        self.last = Some(now);
        // Order is kept on the way; a frame that was dropped between the probes is passed over.
        let Some(place) = self.inside.iter().position(|(inside, _)| *inside == pts) else { return };
        let (_, arrived) = self.inside.drain(..=place).next_back().expect("the range has at least one");
        self.latencies.add(now - arrived);
    }
}

/// An even sample of durations: each, then every second one, and so on, of those that came.
#[derive(Debug, Default)]
struct Latencies {
    kept: Vec<Duration>,
    n_seen: u64,
    /// One of two to the power of this is kept.
    shift: u32,
}

impl Latencies {
    fn add(&mut self, latency: Duration) {
        let is_kept = self.n_seen.is_multiple_of(1 << self.shift);
        self.n_seen += 1;
        if !is_kept {
            return;
        }
        if self.kept.len() == MAX_LATENCIES {
            let mut place = 0;
            self.kept.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.shift += 1;
            if !(self.n_seen - 1).is_multiple_of(1 << self.shift) {
                return;
            }
        }
        self.kept.push(latency);
    }
}

fn probe(
    element: &gst::Element,
    pad: &str,
    seen: &Arc<Mutex<Seen>>,
    count: impl Fn(&mut Seen, Option<gst::ClockTime>, Instant) + Send + Sync + 'static,
) {
    let Some(pad) = element.static_pad(pad) else { return };
    let seen = seen.clone();
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if let Some(buffer) = info.buffer() {
            count(&mut seen.lock().unwrap(), buffer.pts(), Instant::now());
        }
        gst::PadProbeReturn::Ok
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_a_long_stream_are_an_even_sample_of_it() {
        let mut latencies = Latencies::default();
        let n_frames = 5 * MAX_LATENCIES as u64 + 7;
        (0..n_frames).for_each(|n| latencies.add(Duration::from_nanos(n)));
        let kept: Vec<u64> = latencies.kept.iter().map(|latency| latency.as_nanos() as u64).collect();
        assert_eq!(kept, (0..n_frames).step_by(8).collect::<Vec<_>>());
        assert!(kept.len() <= MAX_LATENCIES);
    }

    #[test]
    fn frames_that_get_other_time_stamps_on_the_way_take_no_memory_and_no_latency() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        let pts = |n: u64| Some(gst::ClockTime::from_mseconds(n));
        for n in 0..3 * MAX_INSIDE as u64 {
            seen.enter(pts(2 * n), now);
            seen.leave(pts(2 * n + 1), now);
        }
        assert_eq!((seen.inside.len(), seen.latencies.kept.len()), (MAX_INSIDE, 0));
        assert_eq!(seen.n_in, seen.n_out);
        seen.enter(pts(1), now);
        seen.leave(pts(1), now + Duration::from_millis(5));
        assert_eq!(seen.latencies.kept, [Duration::from_millis(5)]);
        assert!(seen.inside.is_empty(), "what was before it is not on its way any more");
    }
}
