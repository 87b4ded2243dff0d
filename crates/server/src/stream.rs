//! What a stream is for clients: its description, its state and its counters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Description of a stream, as a client gives it and the store keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// Name: 1 to 100 letters, digits, `-`, `_` or `.`.
    pub name: String,
    /// Name of a pipeline; `GET /api/pipelines` lists them.
    pub pipeline: String,
    /// Address of a camera such as `rtsp://camera/stream`, a file in the server's media folder, or `test:`.
    pub input: String,
    /// Values for parameters of the pipeline. Files are named relative to the server's model folder.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Value>,
    /// Whether a file starts again at its end.
    #[serde(default, rename = "loop")]
    pub repeat: bool,
    /// Servers that also get each line of results, such as `mqtt://broker/topic`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub publish: Vec<String>,
    /// Labels that the node must have, each with the allowed values; an empty list allows any value. `node` is the name of the node, and
    /// `device` is one of its devices. Only for servers with several nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub needs: BTreeMap<String, Vec<String>>,
    /// Frames per second that the stream needs of a node; 25 by default. Only for servers with several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Memory in bytes that the stream needs of a node. Only for servers with several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

/// A change of a stream: fields that are present replace those of the stream.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Name of a pipeline. The parameters of the earlier pipeline are dropped.
    pub pipeline: Option<String>,
    /// Address of the input.
    pub input: Option<String>,
    /// Values for parameters of the pipeline; `null` returns a parameter to its default.
    #[serde(default)]
    pub parameters: BTreeMap<String, Option<Value>>,
    /// Whether a file starts again at its end.
    #[serde(rename = "loop")]
    pub repeat: Option<bool>,
    /// Servers that also get each line of results.
    pub publish: Option<Vec<String>>,
    /// Labels that the node must have.
    pub needs: Option<BTreeMap<String, Vec<String>>>,
    /// Frames per second that the stream needs of a node.
    pub cost: Option<f64>,
    /// Memory in bytes that the stream needs of a node.
    pub memory: Option<u64>,
}

/// Value of a parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Value {
    Boolean(bool),
    Integer(i64),
    Number(f64),
    Text(String),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Boolean(flag) => flag.fmt(f),
            Self::Integer(number) => number.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl StreamSpec {
    /// Returns the names of the lines and zones in the parameters `lines` and `zones`.
    pub fn places(&self) -> BTreeSet<String> {
        let texts = ["lines", "zones"].into_iter().filter_map(|name| match self.parameters.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        });
        let names = texts.flat_map(|text| text.split(';')).filter_map(|place| place.split_once(':'));
        names.map(|(name, _)| name.trim().to_owned()).collect()
    }

    /// Returns the stream after a change.
    #[must_use]
    pub fn changed(&self, change: Change) -> Self {
        let Change { pipeline, input, parameters, repeat, publish, needs, cost, memory } = change;
        let mut changed = self.clone();
        if let Some(pipeline) = pipeline.filter(|pipeline| *pipeline != self.pipeline) {
            changed.pipeline = pipeline;
            changed.parameters.clear();
        }
        for (name, value) in parameters {
            match value {
                Some(value) => changed.parameters.insert(name, value),
                None => changed.parameters.remove(&name),
            };
        }
        changed.input = input.unwrap_or(changed.input);
        changed.repeat = repeat.unwrap_or(changed.repeat);
        changed.publish = publish.unwrap_or(changed.publish);
        changed.needs = needs.unwrap_or(changed.needs);
        changed.cost = cost.or(changed.cost);
        changed.memory = memory.or(changed.memory);
        changed
    }
}

/// What a stream is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The stream opens its source and loads its models.
    Starting,
    /// The stream processes frames.
    Running,
    /// The source is lost; the stream tries until it is back.
    Reconnecting,
    /// The stream completes its frames, because it is changed, restarted or removed.
    Stopping,
    /// The input has reached its end.
    Ended,
    /// The stream failed; the server tries again later.
    Failed,
}

impl State {
    /// All states.
    pub const ALL: [Self; 6] = [Self::Starting, Self::Running, Self::Reconnecting, Self::Stopping, Self::Ended, Self::Failed];

    /// Returns the name of the state in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Reconnecting => "reconnecting",
            Self::Stopping => "stopping",
            Self::Ended => "ended",
            Self::Failed => "failed",
        }
    }
}

/// A stream with its state. Addresses are without credentials.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct StreamView {
    /// Description of the stream, without credentials.
    #[serde(flatten)]
    pub spec: StreamSpec,
    /// The node that runs the stream; missing: no node runs it, or the server has no other nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What the stream is doing.
    pub state: State,
    /// Why the stream failed or waits for its source.
    pub error: Option<String>,
    /// Seconds until the server tries a failed stream again.
    pub seconds_to_retry: Option<f64>,
    /// Frames per second over the last seconds.
    pub fps: f64,
    /// Frames since the stream was added or the server was started.
    pub frames: u64,
    /// Frames that were dropped, by element and reason.
    pub dropped: Vec<Skipped>,
    /// Frames that passed without inference, by element and reason.
    pub skipped: Vec<Skipped>,
    /// Frames without inference because it was too slow: all dropped frames, and the skipped frames except for those that the user wants to be
    /// skipped (reasons `inference-interval` and `motion-threshold`).
    pub missed: u64,
    /// Frames on which inference failed.
    pub failed: u64,
    /// How often the source was lost: once per outage, however many attempts it takes to open it again.
    pub restarts: u64,
    /// Frames between the first and the last inference element.
    pub in_flight: u64,
    /// Mean time from the first to the last inference element, in milliseconds.
    pub latency_ms: Option<f64>,
    /// Percentiles of this time since the stream has started. Missing in lists, and unless a client asks for them with `percentiles=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_percentiles_ms: Option<Percentiles>,
    /// Objects in the newest frame, by label.
    pub objects: BTreeMap<String, u64>,
    /// Counts of lines and zones at which something has happened, by name.
    pub places: Vec<Place>,
    /// Destinations of results, with the number of results that wait for them.
    pub destinations: Vec<Destination>,
}

impl StreamView {
    /// A stream of which only this much is known.
    pub(crate) fn unknown(spec: StreamSpec, state: State, error: Option<String>) -> Self {
        Self {
            spec,
            node: None,
            state,
            error,
            seconds_to_retry: None,
            fps: 0.0,
            frames: 0,
            dropped: Vec::new(),
            skipped: Vec::new(),
            missed: 0,
            failed: 0,
            restarts: 0,
            in_flight: 0,
            latency_ms: None,
            latency_percentiles_ms: None,
            objects: BTreeMap::new(),
            places: Vec::new(),
            destinations: Vec::new(),
        }
    }
}

/// Times in milliseconds that 50, 95 and 99 % of the frames do not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Counts of a line or a zone since the stream was added or the server was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Place {
    /// Name of the line or zone.
    pub name: String,
    /// Crossings of a line in the direction `in`, or objects that entered a zone.
    pub r#in: u64,
    /// Crossings of a line in the direction `out`, or objects that left a zone.
    pub out: u64,
    /// Objects that are in a zone; `null` for a line.
    pub inside: Option<u64>,
}

/// Number of frames that were not inferred for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Skipped {
    /// Name of the element in the pipeline.
    pub element: String,
    /// Property of the element that is the reason.
    pub reason: String,
    /// Number of frames.
    pub frames: u64,
}

/// Reasons of skipped frames that the user has chosen. The alert `RoiflowFramesDropped` names the same reasons.
const CHOSEN: [&str; 2] = ["inference-interval", "motion-threshold"];

/// Whether the user has chosen that frames are skipped for this reason. Such frames are not missed.
pub fn is_chosen(reason: &str) -> bool {
    CHOSEN.contains(&reason)
}

/// Counters of a stream, for metrics. All but `in_flight` only grow.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Counters {
    /// Frames that left the last inference element.
    pub frames: u64,
    /// Objects of the detectors.
    pub objects: u64,
    /// Frames on which inference failed.
    pub failed: u64,
    /// Dropped frames.
    pub dropped: Vec<Skipped>,
    /// Skipped frames.
    pub skipped: Vec<Skipped>,
    /// Results that could not be written to a destination.
    pub results_lost: u64,
    /// Destinations of results.
    pub destinations: Vec<Destination>,
    /// How often the source was lost: once per outage, however many attempts it takes to open it again.
    pub restarts: u64,
    /// Time without a source.
    pub time_down: Duration,
    /// Frames between the first and the last inference element.
    pub in_flight: u64,
    /// Time from the first to the last inference element.
    pub latency: Histogram,
    /// Inference elements.
    pub stages: Vec<Stage>,
}

/// Counters of a destination of results. All but `waiting` and `spool_bytes` only grow.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct Destination {
    /// The address, without credentials.
    pub address: String,
    /// Results that the destination has stored, or its spool.
    pub written: u64,
    /// Results that the destination did not accept.
    pub lost: u64,
    /// Results that were dropped because the queue or the spool was full. Streams with the same destination share its spool.
    pub dropped: u64,
    /// The part of `dropped` that the spool has dropped for all its streams since the server started.
    #[serde(skip)]
    pub spool_dropped: u64,
    /// Results that wait in the queue and in the spool.
    pub waiting: u64,
    /// Size of the spool in bytes; 0 without a spool.
    pub spool_bytes: u64,
}

/// Counters of one inference element.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stage {
    /// Name of the element in the pipeline.
    pub element: String,
    /// Device that runs the model.
    pub device: String,
    /// Number of inferences.
    pub runs: u64,
    /// Total time per step.
    pub steps: Vec<(String, Duration)>,
}

/// Durations, counted in buckets.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Histogram {
    /// Upper bound in seconds and number of durations of each bucket, not cumulative; the last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    /// Sum of all durations.
    pub sum: Duration,
}

impl Histogram {
    /// Creates a histogram without durations. `bounds`: finite upper bounds of the buckets in seconds, in increasing order.
    pub fn new(bounds: &[f64]) -> Self {
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        Self { buckets: bounds.map(|bound| (bound, 0)).collect(), sum: Duration::ZERO }
    }

    /// Counts a duration.
    pub fn add(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        if let Some((_, count)) = self.buckets.iter_mut().find(|(bound, _)| seconds <= *bound) {
            *count += 1;
            self.sum += duration;
        }
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

impl Counters {
    /// Adds the counters of a later run of the same stream.
    pub fn add(&mut self, later: &Self) {
        self.frames += later.frames;
        self.objects += later.objects;
        self.failed += later.failed;
        self.results_lost += later.results_lost;
        self.restarts += later.restarts;
        self.time_down += later.time_down;
        self.in_flight = later.in_flight;
        add_skipped(&mut self.dropped, &later.dropped);
        add_skipped(&mut self.skipped, &later.skipped);
        for (idx, bucket) in later.latency.buckets.iter().enumerate() {
            match self.latency.buckets.get_mut(idx) {
                Some(known) => known.1 += bucket.1,
                None => self.latency.buckets.push(*bucket),
            }
        }
        self.latency.sum += later.latency.sum;
        self.add_destinations(&later.destinations);
        for stage in &later.stages {
            let known = self.stages.iter_mut().find(|known| (&known.element, &known.device) == (&stage.element, &stage.device));
            let Some(known) = known else {
                self.stages.push(stage.clone());
                continue;
            };
            known.runs += stage.runs;
            for (name, time) in &stage.steps {
                match known.steps.iter_mut().find(|(known, _)| known == name) {
                    Some((_, known)) => *known += *time,
                    None => known.steps.push((name.clone(), *time)),
                }
            }
        }
    }
}

impl Counters {
    /// Number of missed frames; see [`StreamView::missed`].
    pub(crate) fn missed(&self) -> u64 {
        let skipped = self.skipped.iter().filter(|skipped| !is_chosen(&skipped.reason));
        self.dropped.iter().chain(skipped).map(|frames| frames.frames).sum()
    }

    fn add_destinations(&mut self, later: &[Destination]) {
        // A destination that a stream no longer has keeps its counters, but nothing waits for it.
        self.destinations.iter_mut().for_each(|known| (known.waiting, known.spool_bytes) = (0, 0));
        for destination in later {
            match self.destinations.iter_mut().find(|known| known.address == destination.address) {
                Some(known) => {
                    known.written += destination.written;
                    known.lost += destination.lost;
                    // The number of the spool grows while the server runs, also when the spool is closed and opened again. So the later run
                    // reports the drops of earlier runs again.
                    let again = known.spool_dropped.min(destination.spool_dropped);
                    known.dropped += destination.dropped - again.min(destination.dropped);
                    known.spool_dropped = known.spool_dropped.max(destination.spool_dropped);
                    (known.waiting, known.spool_bytes) = (destination.waiting, destination.spool_bytes);
                }
                None => self.destinations.push(destination.clone()),
            }
        }
    }
}

fn add_skipped(to: &mut Vec<Skipped>, later: &[Skipped]) {
    for skipped in later {
        match to.iter_mut().find(|known| (&known.element, &known.reason) == (&skipped.element, &skipped.reason)) {
            Some(known) => known.frames += skipped.frames,
            None => to.push(skipped.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> StreamSpec {
        serde_json::from_str(r#"{"name":"door","pipeline":"faces","input":"test:","parameters":{"device":"CPU","n":3}}"#).unwrap()
    }

    #[test]
    fn change_replaces_only_present_fields() {
        let change = |text: &str| spec().changed(serde_json::from_str(text).unwrap());
        assert_eq!(change("{}"), spec());
        let changed = change(r#"{"input":"rtsp://x","parameters":{"n":null,"t":0.5},"loop":true}"#);
        assert_eq!((&*changed.input, changed.repeat), ("rtsp://x", true));
        assert_eq!(changed.parameters.keys().collect::<Vec<_>>(), ["device", "t"]);
        assert!(change(r#"{"pipeline":"other"}"#).parameters.is_empty(), "parameters belong to a pipeline");
        assert_eq!(change(r#"{"pipeline":"faces"}"#), spec());
    }

    #[test]
    fn values_keep_their_text() {
        let values: Vec<Value> = serde_json::from_str(r#"[true, 3, 0.25, "a b"]"#).unwrap();
        assert_eq!(values.iter().map(Value::to_string).collect::<Vec<_>>(), ["true", "3", "0.25", "a b"]);
    }

    #[test]
    fn counters_of_runs_add_up() {
        let run = |frames, bucket| Counters {
            frames,
            dropped: vec![Skipped { element: "detect".into(), reason: "qos".into(), frames }],
            destinations: vec![Destination { address: "mqtt://a/b".into(), written: frames, waiting: frames, ..Destination::default() }],
            latency: Histogram { buckets: vec![(0.1, bucket), (f64::INFINITY, 0)], sum: Duration::from_secs(1) },
            ..Counters::default()
        };
        let mut sum = Counters::default();
        sum.add(&run(3, 2));
        sum.add(&run(4, 5));
        assert_eq!((sum.frames, sum.dropped[0].frames, sum.latency.buckets[0].1, sum.latency.count()), (7, 7, 7, 7));
        assert_eq!(sum.latency.sum, Duration::from_secs(2));
        assert_eq!(
            (sum.destinations.len(), sum.destinations[0].written, sum.destinations[0].waiting),
            (1, 7, 4),
            "waiting results are not added"
        );
    }

    #[test]
    fn duration_is_in_the_bucket_with_the_next_bound() {
        let mut histogram = Histogram::new(&[0.005, 0.01, 2.0]);
        [5, 6, 10, 3000].into_iter().for_each(|ms| histogram.add(Duration::from_millis(ms)));
        assert_eq!(histogram.buckets, [(0.005, 1), (0.01, 2), (2.0, 0), (f64::INFINITY, 1)]);
        assert_eq!((histogram.count(), histogram.sum), (4, Duration::from_millis(3021)));
    }

    #[test]
    fn frames_that_the_user_skips_are_not_missed() {
        let frames = |reason: &str, frames| Skipped { element: "detect".into(), reason: reason.into(), frames };
        let counters = Counters {
            dropped: vec![frames("queue-policy", 7)],
            skipped: vec![frames("max-latency", 3), frames("inference-interval", 50), frames("motion-threshold", 20)],
            ..Counters::default()
        };
        assert_eq!(counters.missed(), 10);
        let rules = include_str!("../../../packaging/prometheus-rules.yml");
        assert!(rules.contains(&format!("reason!~\"{}\"", CHOSEN.join("|"))), "the alert leaves out the same reasons");
    }

    #[test]
    fn drops_of_a_shared_spool_are_counted_once() {
        let run = |queue, spool_dropped| {
            let address = "mqtt://a/b".into();
            let to = Destination { address, dropped: queue + spool_dropped, spool_dropped, ..Destination::default() };
            Counters { destinations: vec![to], ..Counters::default() }
        };
        let mut sum = Counters::default();
        [run(1, 10), run(2, 15), run(0, 0)].iter().for_each(|run| sum.add(run));
        assert_eq!(sum.destinations, run(3, 15).destinations);
        let text = serde_json::to_string(&sum.destinations).unwrap();
        assert!(text.contains("\"dropped\":18") && !text.contains("spool_dropped"), "{text}");
    }
}
