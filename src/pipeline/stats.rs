//! Measures a running pipeline: frames, objects, latency across the inference elements, time per step.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;

use super::Plan;
use super::plan::{ENTRY, PUBLISH, SOURCE};
use crate::publish::{Target, Url};

/// Maximum number of stored latencies: one hour at 30 frames per second. For longer streams, every second latency is stored, then every
/// fourth, and so on.
const MAX_LATENCIES: usize = 108_000;
/// Maximum number of entries of frames between the first and the last inference element. In-flight queues hold fewer frames. So beyond this
/// number, the oldest entries belong to frames that were dropped, or that got new timestamps.
const MAX_INSIDE: usize = 4096;

/// Measurements of one or more streams.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stats {
    /// Number of frames that left the last inference element. In a pipeline without inference: number of frames of the source.
    pub n_frames: u64,
    /// Number of objects that the detectors found.
    pub n_objects: u64,
    /// Wall-clock time from the arrival of the first frame at the first inference element until the last frame leaves the last inference
    /// element.
    pub duration: Duration,
    /// Latencies from arriving at the first inference element to leaving the last inference element, sorted. For long streams, the
    /// list is an even sample of the latencies.
    pub latencies: Vec<Duration>,
    /// Step times per inference element.
    pub stages: Vec<StageTimes>,
    /// Number of frames on which inference failed.
    pub n_failed: u64,
    /// Number of frames that were dropped.
    pub n_dropped: u64,
    /// Numbers of skipped and dropped frames, per element and reason.
    pub not_inferred: Vec<NotInferred>,
    /// Number of JSON lines that could not be written.
    pub n_lines_lost: u64,
    /// Number of failures of recordings, which are videos and images. After each failure, frames may be missing in the recording.
    pub n_recordings_failed: u64,
    /// The servers and files of `--publish`.
    pub destinations: Box<Destinations>,
    /// Number of restarts after the source was lost. Attempts that delivered no frame are included.
    pub n_restarts: u64,
    /// How often the source was lost: once per outage, however many attempts it takes to open the source again.
    pub n_outages: u64,
    /// Time without a source: from the last frame before each loss to the first frame after it.
    pub time_down: Duration,
    /// Number of frames by latency, in the buckets of [`LATENCY_BOUNDS`]. The last bucket is for longer latencies.
    pub latency_buckets: Box<[u64; LATENCY_BOUNDS.len() + 1]>,
    /// Sum of all latencies.
    pub latency_sum: Duration,
    /// Frames between the first and the last inference element.
    pub n_in_flight: u64,
}

/// Upper bounds of the buckets of latencies, in seconds.
pub const LATENCY_BOUNDS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

/// Number of runs and mean time per step of one inference element.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StageTimes {
    /// The element's name in the pipeline.
    pub name: String,
    /// The device that runs the element's model.
    pub device: String,
    /// Number of inferences.
    pub n_runs: u64,
    /// Mean time per inference, by step.
    pub steps: Vec<(String, Duration)>,
}

/// Counters of all destinations of results.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Destinations(pub Vec<DestinationCounts>);

/// Counters of one destination of results.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DestinationCounts {
    /// The address, without credentials.
    pub name: String,
    /// Lines that the destination or its spool has stored.
    pub n_written: u64,
    /// Lines that the destination did not accept.
    pub n_lost: u64,
    /// Lines that were dropped because the queue was full.
    pub n_dropped: u64,
    /// Lines in the queue.
    pub n_waiting: u64,
    /// Lines that the spool dropped because it was full, or that the server refused. This counter and the next two belong to the spool,
    /// which all streams with the same destination share.
    pub n_spool_dropped: u64,
    /// Lines in the spool.
    pub n_spool_waiting: u64,
    /// Size of the spool in bytes.
    pub spool_bytes: u64,
}

/// Number of frames that were not inferred for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotInferred {
    /// The element's name in the pipeline.
    pub element: String,
    /// Whether the frames were dropped.
    pub dropped: bool,
    /// The reason: the name of a property, or a name such as `flush`.
    pub reason: String,
    /// Number of frames.
    pub n_frames: u64,
}

impl Stats {
    /// Combines the measurements of streams that ran at the same time. Counts are added, and the duration is the longest duration of a
    /// stream. The measurements of inference elements with the same name are combined.
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
            sum.n_recordings_failed += stats.n_recordings_failed;
            sum.n_restarts += stats.n_restarts;
            sum.n_outages += stats.n_outages;
            sum.time_down += stats.time_down;
            sum.latency_buckets.iter_mut().zip(*stats.latency_buckets).for_each(|(bucket, count)| *bucket += count);
            sum.latency_sum += stats.latency_sum;
            sum.n_in_flight += stats.n_in_flight;
            for stage in &stats.stages {
                match sum.stages.iter_mut().find(|known| known.name == stage.name) {
                    Some(known) => known.add(stage),
                    None => sum.stages.push(stage.clone()),
                }
            }
            for destination in &stats.destinations.0 {
                match sum.destinations.0.iter_mut().find(|known| known.name == destination.name) {
                    Some(known) => known.add(destination),
                    None => sum.destinations.0.push(destination.clone()),
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

    /// Adds the measurements of a later pipeline of the same stream.
    pub(super) fn continue_with(&mut self, later: &Self) {
        let duration = self.duration + later.duration;
        // The queue of an earlier pipeline was emptied at its end, and a spool is the same one.
        for destination in &mut self.destinations.0 {
            (destination.n_waiting, destination.n_spool_waiting, destination.spool_bytes) = (0, 0, 0);
        }
        *self = Self { duration, ..Self::sum([&*self, later]) };
        // Keep the number of stored latencies bounded, however often the stream restarts.
        while self.latencies.len() > MAX_LATENCIES {
            self.latencies = self.latencies.iter().skip(1).step_by(2).copied().collect();
        }
    }

    /// Returns the counters without the stored latencies.
    pub(super) fn counters(&self) -> Self {
        Self {
            latencies: Vec::new(),
            stages: self.stages.clone(),
            not_inferred: self.not_inferred.clone(),
            destinations: self.destinations.clone(),
            n_frames: self.n_frames,
            n_objects: self.n_objects,
            duration: self.duration,
            n_failed: self.n_failed,
            n_dropped: self.n_dropped,
            n_lines_lost: self.n_lines_lost,
            n_recordings_failed: self.n_recordings_failed,
            n_restarts: self.n_restarts,
            n_outages: self.n_outages,
            time_down: self.time_down,
            latency_buckets: self.latency_buckets.clone(),
            latency_sum: self.latency_sum,
            n_in_flight: self.n_in_flight,
        }
    }

    /// Returns the number of frames per second.
    pub fn fps(&self) -> f64 {
        let seconds = self.duration.as_secs_f64();
        if seconds > 0.0 { self.n_frames as f64 / seconds } else { 0.0 }
    }

    /// Returns the latency that `percent` % of the frames do not exceed; `None` without frames.
    pub fn latency_percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.latencies.len() * percent).div_ceil(100).max(1);
        self.latencies.get(rank - 1).copied()
    }
}

impl DestinationCounts {
    /// Adds the counters of another stream or pipeline with the same destination. Counters of the spool are not added, because both share
    /// the spool.
    fn add(&mut self, other: &Self) {
        self.n_written += other.n_written;
        self.n_lost += other.n_lost;
        self.n_dropped += other.n_dropped;
        self.n_waiting += other.n_waiting;
        self.n_spool_dropped = self.n_spool_dropped.max(other.n_spool_dropped);
        self.n_spool_waiting = self.n_spool_waiting.max(other.n_spool_waiting);
        self.spool_bytes = self.spool_bytes.max(other.spool_bytes);
    }
}

impl StageTimes {
    /// Adds the measurements of an element with the same name in another pipeline.
    fn add(&mut self, other: &Self) {
        let n_runs = self.n_runs + other.n_runs;
        for (name, time) in &other.steps {
            match self.steps.iter_mut().find(|(known, _)| known == name) {
                // The new mean time is the mean of both times, weighted by their numbers of runs.
                Some((_, known)) if n_runs > 0 => {
                    let total = known.as_secs_f64() * self.n_runs as f64 + time.as_secs_f64() * other.n_runs as f64;
                    *known = Duration::from_secs_f64(total / n_runs as f64);
                }
                Some(_) => {}
                None => self.steps.push((name.clone(), *time)),
            }
        }
        // An element whose model was not loaded has no device.
        if self.device.is_empty() {
            self.device.clone_from(&other.device);
        } else if !other.device.is_empty() && !self.device.split(", ").any(|device| device == other.device) {
            self.device = format!("{}, {}", self.device, other.device);
        }
        self.n_runs = n_runs;
    }
}

/// Returns the names of destinations, without credentials. Different destinations that are shown alike, such as webhooks of one host, are numbered.
fn names_of(urls: &[Url]) -> Vec<String> {
    let mut names: Vec<String> = Vec::with_capacity(urls.len());
    for url in urls {
        let shown = Target::shown_of(&url.text, &url.access);
        let numbered = (2..).map(|number| format!("{shown} #{number}"));
        let is_new = |name: &String| !names.contains(name);
        names.extend(std::iter::once(shown.clone()).chain(numbered).find(is_new));
    }
    names
}

/// Counters of a running pipeline, updated by pad probes.
#[derive(Debug)]
pub(super) struct Meter {
    seen: Arc<Mutex<Seen>>,
    inference: Vec<gst::Element>,
    /// The elements that attach stored results.
    attach: Vec<gst::Element>,
    /// The elements that write the results of `--json` and `--publish`.
    publish: Vec<gst::Element>,
    /// The elements of `--publish`, with the names of their destinations.
    destinations: Vec<(String, gst::Element)>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Timestamp and arrival time of each frame between the two probes.
    inside: VecDeque<(Option<gst::ClockTime>, Instant)>,
    latencies: Latencies,
    latency_buckets: [u64; LATENCY_BOUNDS.len() + 1],
    latency_sum: Duration,
    n_in: u64,
    n_out: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Meter {
    pub(super) fn new(pipeline: &gst::Pipeline, plan: &Plan) -> Self {
        let of = |factories: &[&str]| -> Vec<gst::Element> {
            let named = plan.elements.iter().filter(|element| factories.contains(&&*element.factory));
            named.filter_map(|element| pipeline.by_name(&element.name)).collect()
        };
        let (inference, attach) = (of(&["roidetect", "roiclassify"]), of(&["roiattach"]));
        let seen = Arc::new(Mutex::new(Seen::default()));
        // Frames are counted at the elements that find objects. A pipeline without a model may attach the results of an earlier run.
        let counted = if inference.is_empty() { &attach } else { &inference };
        if let (Some(first), Some(last)) = (counted.first(), counted.last()) {
            probe(first.static_pad("sink"), &seen, Seen::enter);
            probe(last.static_pad("src"), &seen, Seen::leave);
        } else {
            let source = [ENTRY, SOURCE].iter().find_map(|name| pipeline.by_name(name)?.static_pad("src"));
            probe(source, &seen, |seen, _, now| seen.pass(now));
        }
        let names = [PUBLISH.to_owned()].into_iter().chain((1..=plan.outputs.publish.len()).map(|number| format!("{PUBLISH}-{number}")));
        let publish = names.filter_map(|name| pipeline.by_name(&name)).collect();
        let numbered = names_of(&plan.outputs.publish).into_iter().enumerate();
        let destinations = numbered.filter_map(|(idx, name)| Some((name, pipeline.by_name(&format!("{PUBLISH}-{}", idx + 1))?)));
        let destinations = destinations.collect();
        Self { seen, inference, attach, publish, destinations }
    }

    /// Returns the number of frames that have left the last element that finds objects.
    pub(super) fn n_frames(&self) -> u64 {
        self.seen.lock().unwrap().n_out
    }

    /// Returns the measurements. `ended` is true if no frames are in flight any more.
    pub(super) fn stats(&self, ended: bool) -> Stats {
        let mut stats = self.counters(ended);
        stats.latencies = self.seen.lock().unwrap().latencies.kept.clone();
        stats.latencies.sort();
        stats
    }

    /// Returns the measurements without the stored latencies, whose number grows with the length of the stream.
    pub(super) fn counters(&self, ended: bool) -> Stats {
        let mut stats = Stats::default();
        {
            let seen = self.seen.lock().unwrap();
            stats.n_frames = seen.n_out;
            stats.n_dropped = if ended { seen.n_in.saturating_sub(seen.n_out) } else { 0 };
            stats.duration = seen.first.zip(seen.last).map(|(first, last)| last - first).unwrap_or_default();
            (*stats.latency_buckets, stats.latency_sum) = (seen.latency_buckets, seen.latency_sum);
            stats.n_in_flight = if ended { 0 } else { seen.n_in.saturating_sub(seen.n_out) };
        }
        for element in &self.attach {
            stats.n_objects += element.property::<gst::Structure>("stats").get::<u64>("objects").unwrap_or(0);
        }
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
        stats.destinations.0 = self.destinations.iter().map(|(name, element)| destination(name, element)).collect();
        stats
    }

    /// Returns the number of result lines that could not be written. The number is final once the pipeline has stopped.
    pub(super) fn n_lines_lost(&self) -> u64 {
        let lost = |publish: &gst::Element| {
            let stats = publish.property::<gst::Structure>("stats");
            ["errors", "spool-refused"].map(|field| stats.get::<u64>(field).unwrap_or(0)).iter().sum::<u64>()
        };
        self.publish.iter().map(lost).sum()
    }

    /// Whether only destinations of results have failed, and results go to another destination as well.
    pub(super) fn publishes_elsewhere(&self, failed: &[gst::Object]) -> bool {
        let is_failed = |element: &&gst::Element| failed.contains(element.upcast_ref());
        self.publish.iter().filter(is_failed).count() == failed.len() && !self.publish.iter().all(|element| is_failed(&element))
    }

    /// Returns the number of frames that have arrived at the first element that finds objects.
    pub(super) fn n_entered(&self) -> u64 {
        self.seen.lock().unwrap().n_in
    }

    /// Returns the number of frames between the first and the last element that finds objects.
    pub(super) fn n_in_flight(&self) -> u64 {
        let seen = self.seen.lock().unwrap();
        seen.n_in.saturating_sub(seen.n_out)
    }

    /// Whether the pipeline has an inference element at which no frame has arrived yet.
    pub(super) fn waits_for_frames(&self) -> bool {
        !self.inference.is_empty() && self.seen.lock().unwrap().n_in == 0
    }
}

/// Returns the counters of a destination, which a `roipublish` element serves.
fn destination(name: &str, element: &gst::Element) -> DestinationCounts {
    let structure: gst::Structure = element.property("stats");
    let count = |field: &str| structure.get::<u64>(field).unwrap_or(0);
    DestinationCounts {
        name: name.to_owned(),
        n_written: count("lines"),
        n_lost: count("errors"),
        n_dropped: count("dropped"),
        n_waiting: count("waiting"),
        n_spool_dropped: count("spool-dropped"),
        n_spool_waiting: count("spool-waiting"),
        spool_bytes: count("spool-bytes"),
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

    /// Counts a frame without latency.
    fn pass(&mut self, now: Instant) {
        self.n_in += 1;
        self.n_out += 1;
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    fn leave(&mut self, pts: Option<gst::ClockTime>, now: Instant) {
        self.n_out += 1;
        self.last = Some(now);
        // Frames keep their order between the probes. So earlier entries are frames that were dropped between the probes: discard them.
        let Some(place) = self.inside.iter().position(|(inside, _)| *inside == pts) else { return };
        let (_, arrived) = self.inside.drain(..=place).next_back().expect("the range contains at least one item");
        let latency = now - arrived;
        self.latencies.add(latency);
        self.latency_sum += latency;
        self.latency_buckets[LATENCY_BOUNDS.partition_point(|bound| *bound < latency.as_secs_f64())] += 1;
    }
}

/// An even sample of durations: first every duration is stored, later every second duration, and so on.
#[derive(Debug, Default)]
struct Latencies {
    kept: Vec<Duration>,
    n_seen: u64,
    /// One of 2^`shift` durations is stored.
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
    pad: Option<gst::Pad>,
    seen: &Arc<Mutex<Seen>>,
    count: impl Fn(&mut Seen, Option<gst::ClockTime>, Instant) + Send + Sync + 'static,
) {
    let Some(pad) = pad else { return };
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
    fn latencies_of_long_stream_are_an_even_sample() {
        let mut latencies = Latencies::default();
        let n_frames = 5 * MAX_LATENCIES as u64 + 7;
        (0..n_frames).for_each(|n| latencies.add(Duration::from_nanos(n)));
        let kept: Vec<u64> = latencies.kept.iter().map(|latency| latency.as_nanos() as u64).collect();
        assert_eq!(kept, (0..n_frames).step_by(8).collect::<Vec<_>>());
        assert!(kept.len() <= MAX_LATENCIES);
    }

    #[test]
    fn counters_of_a_shared_spool_are_not_added() {
        let stats = |n_dropped, n_waiting, n_spool_dropped, n_spool_waiting| {
            let name = "mqtt://a/b".to_owned();
            let counts = DestinationCounts { name, n_dropped, n_waiting, n_spool_dropped, n_spool_waiting, ..DestinationCounts::default() };
            Stats { destinations: Box::new(Destinations(vec![counts])), ..Stats::default() }
        };
        let (mut first, second) = (stats(1, 2, 30, 40), stats(3, 4, 50, 20));
        assert_eq!(Stats::sum([&first, &second]).destinations, stats(4, 6, 50, 40).destinations);
        // The counter of a spool grows while the process runs, also between two pipelines of a stream.
        first.continue_with(&second);
        assert_eq!(first.destinations, stats(4, 4, 50, 20).destinations);
    }

    #[test]
    fn frames_with_changed_timestamps_are_not_counted() {
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
        assert!(seen.inside.is_empty(), "earlier frames are discarded");
    }
}
