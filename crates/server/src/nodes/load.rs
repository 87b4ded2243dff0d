//! What this node can do and does: its processors, its memory, and the frames per second of its streams.
//!
//! Without a value from the administrator, the capacity begins with an estimate for each processor. It is measured while the node works: if
//! the streams process `f` frames per second, and the machine uses the part `p` of its processors, then `f / p` frames per second would use
//! all of them. The capacity is a part of that, so that a full node still has reserves. It changes only by large steps, because each change
//! may move streams.
//!
//! Each model has a capacity of its own. The part of the processors that a model uses is estimated from the time that its inference steps
//! take: if they take a third of the time of all steps, the model uses a third of `p`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use roiflow_nodes::types::{Capacity, Facts, Load};

use super::model;
use crate::stream::{Counters, StreamSpec};

/// Frames per second that one processor is expected to process before anything is known.
const FPS_PER_PROCESSOR: f64 = 25.0;
/// Part of the processors that streams may use.
const USABLE: f64 = 0.8;
/// Below this part, the measurement says little.
const MIN_USED: f64 = 0.3;
/// Smaller changes of the capacity are not published.
const STEP: f64 = 0.25;
/// Weight of the newest measurement.
const WEIGHT: f64 = 0.1;
/// A model whose steps take a smaller part of the time of all steps is not measured.
const MIN_PART: f64 = 0.1;

/// Measures the load of this machine.
#[derive(Debug)]
pub(super) struct Meter {
    /// The capacity that the administrator has set.
    fixed: Option<f64>,
    /// Used and available processor time at the last measurement, in ticks.
    last: Option<(u64, u64)>,
    /// Mean of the measured capacities.
    mean: Option<f64>,
    /// The same for each model.
    means: BTreeMap<String, f64>,
    /// Time of the inference steps of each stream at the last measurement.
    busy: HashMap<String, Duration>,
}

impl Meter {
    pub(super) fn new(fixed: Option<f64>) -> Self {
        Self { fixed, last: None, mean: None, means: BTreeMap::new(), busy: HashMap::new() }
    }

    /// The capacity before anything was measured.
    pub(super) fn first(&self) -> Capacity {
        let n_processors = std::thread::available_parallelism().map_or(1, usize::from);
        Capacity { default: self.fixed.unwrap_or(FPS_PER_PROCESSOR * n_processors as f64), models: BTreeMap::new() }
    }

    /// Returns `facts` with the present load. `streams` are those of this node, with their counters and frame rates.
    pub(super) fn measure(&mut self, mut facts: Facts, streams: Vec<(StreamSpec, Counters, f64)>) -> Facts {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        // The sum of no numbers is -0.
        let fps = streams.iter().map(|(_, _, fps)| fps).sum::<f64>() + 0.0;
        let processor = self.processor(&read("/proc/stat")).unwrap_or(0.0);
        let (total, available) = memory(&read("/proc/meminfo"));
        facts.load = Load { processor: rounded(processor), memory: total.saturating_sub(available), fps: rounded(fps) };
        facts.memory = total;
        let by_model = self.by_model(streams);
        self.forget_models(&mut facts.capacity.models, &by_model);
        if self.fixed.is_none() && processor >= MIN_USED && fps > 0.0 {
            let mean = averaged(self.mean, fps / processor * USABLE);
            self.mean = Some(mean);
            publish(&mut facts.capacity.default, mean);
            self.measure_models(&mut facts.capacity.models, processor, &by_model);
        }
        facts
    }

    /// Returns the frame rate of each model, and the time of its inference steps since the last call. Both are without streams that have
    /// started since then: nothing is known of their time.
    fn by_model(&mut self, streams: Vec<(StreamSpec, Counters, f64)>) -> BTreeMap<String, (f64, Duration)> {
        let mut by_model: BTreeMap<String, (f64, Duration)> = BTreeMap::new();
        let before = std::mem::take(&mut self.busy);
        for (spec, counters, fps) in streams {
            let busy: Duration = counters.stages.iter().flat_map(|stage| &stage.steps).map(|(_, time)| *time).sum();
            let sum = by_model.entry(model(&spec)).or_default();
            // The counters of a stream begin again with each start.
            if let Some(since) = before.get(&spec.name).and_then(|before| busy.checked_sub(*before)) {
                *sum = (sum.0 + fps, sum.1 + since);
            }
            self.busy.insert(spec.name, busy);
        }
        by_model
    }

    /// Removes models that no stream of this node uses: their capacity would only become older.
    fn forget_models(&mut self, published: &mut BTreeMap<String, f64>, by_model: &BTreeMap<String, (f64, Duration)>) {
        self.means.retain(|model, _| by_model.contains_key(model));
        published.retain(|model, _| by_model.contains_key(model));
    }

    fn measure_models(&mut self, published: &mut BTreeMap<String, f64>, processor: f64, by_model: &BTreeMap<String, (f64, Duration)>) {
        let all: Duration = by_model.values().map(|(_, busy)| *busy).sum();
        for (model, (fps, busy)) in by_model.iter().filter(|(_, (fps, busy))| *fps > 0.0 && !busy.is_zero()) {
            let part = busy.as_secs_f64() / all.as_secs_f64();
            if part < MIN_PART {
                continue;
            }
            let mean = averaged(self.means.get(model).copied(), fps / (processor * part) * USABLE);
            self.means.insert(model.clone(), mean);
            match published.get_mut(model) {
                Some(capacity) => publish(capacity, mean),
                None => drop(published.insert(model.clone(), mean.round().max(1.0))),
            }
        }
    }

    /// Returns the used part of all processors since the last call, from the content of `/proc/stat`.
    fn processor(&mut self, stat: &str) -> Option<f64> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = fields.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        let all: u64 = ticks.iter().take(8).sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        let used = all - idle;
        let (used_before, all_before) = self.last.replace((used, all))?;
        let passed = all.saturating_sub(all_before);
        (passed > 0).then(|| used.saturating_sub(used_before) as f64 / passed as f64)
    }
}

/// Returns the mean of the measurements, after one more.
fn averaged(mean: Option<f64>, measured: f64) -> f64 {
    mean.map_or(measured, |mean| mean + WEIGHT * (measured - mean))
}

/// Changes a published capacity if the mean differs by a large step.
fn publish(capacity: &mut f64, mean: f64) {
    if (mean - *capacity).abs() > STEP * *capacity {
        *capacity = mean.round().max(1.0);
    }
}

fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// Returns all and the available memory in bytes, from the content of `/proc/meminfo`.
fn memory(text: &str) -> (u64, u64) {
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).unwrap_or(0) << 10
    };
    (of("MemTotal:"), of("MemAvailable:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Stage;

    #[test]
    fn node_without_streams_has_a_rate_of_zero() {
        let facts = Meter::new(None).measure(Facts::default(), Vec::new());
        assert_eq!(facts.load.fps.to_string(), "0");
    }

    #[test]
    fn used_part_of_the_processors_is_that_since_the_last_measurement() {
        let mut meter = Meter::new(None);
        assert_eq!(meter.processor("cpu  100 0 100 700 100 0 0 0 0 0\n"), None);
        assert_eq!(meter.processor("cpu  130 0 120 740 110 0 0 0 0 0\n"), Some(0.5));
        assert_eq!(meter.processor("nothing"), None);
        assert_eq!(memory("MemTotal:  8 kB\nMemAvailable:  2 kB\n"), (8192, 2048));
    }

    #[test]
    fn capacity_of_a_model_follows_its_part_of_the_inference_time() {
        let stream = |name: &str, pipeline: &str, seconds: u64| {
            let steps = vec![("infer".to_owned(), Duration::from_secs(seconds))];
            let stage = Stage { element: "detect".to_owned(), device: "CPU".to_owned(), runs: 1, steps };
            let spec = serde_json::json!({"name": name, "pipeline": pipeline, "input": "test:"});
            (serde_json::from_value::<StreamSpec>(spec).unwrap(), Counters { stages: vec![stage], ..Counters::default() }, 10.0)
        };
        let mut meter = Meter::new(None);
        meter.by_model(vec![stream("a", "slow", 100), stream("b", "fast", 7)]);
        let by_model = meter.by_model(vec![stream("a", "slow", 103), stream("b", "fast", 8), stream("new", "fast", 50)]);
        assert_eq!(by_model["slow"], (10.0, Duration::from_secs(3)));
        assert_eq!(by_model["fast"], (10.0, Duration::from_secs(1)), "a new stream is measured from its second time on");
        let mut published = BTreeMap::new();
        meter.measure_models(&mut published, 0.8, &by_model);
        // 0.6 of the processors for 10 frames per second, and 0.2 for 10; a full node uses 0.8 of them.
        assert_eq!(published, BTreeMap::from([("slow".to_owned(), 13.0), ("fast".to_owned(), 40.0)]));
        let by_model = meter.by_model(vec![stream("b", "fast", 9), stream("new", "fast", 2)]);
        assert_eq!(by_model, BTreeMap::from([("fast".to_owned(), (10.0, Duration::from_secs(1)))]), "a stream that was restarted");
        meter.forget_models(&mut published, &by_model);
        assert_eq!((published, meter.means.len()), (BTreeMap::from([("fast".to_owned(), 40.0)]), 1));
    }

    #[test]
    fn capacity_of_the_administrator_is_kept() {
        assert_eq!(Meter::new(Some(300.0)).first().default, 300.0);
        assert!(Meter::new(None).first().default >= FPS_PER_PROCESSOR);
    }
}
