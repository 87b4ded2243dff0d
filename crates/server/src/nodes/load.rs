//! What this node can do and does: its processors, its memory, and the frames per second of its streams.
//!
//! Without a value from the administrator, the capacity begins with an estimate for each processor. It is measured while the node works: if
//! the streams process `f` frames per second, and the machine uses the part `p` of its processors, then `f / p` frames per second would use
//! all of them. The capacity is a part of that, so that a full node still has reserves. It changes only by large steps, because each change
//! may move streams.

use roiflow_nodes::types::{Capacity, Facts, Load};

use crate::registry::Registry;

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

/// Measures the load of this machine.
#[derive(Debug)]
pub(super) struct Meter {
    /// The capacity that the administrator has set.
    fixed: Option<f64>,
    /// Used and available processor time at the last measurement, in ticks.
    last: Option<(u64, u64)>,
    /// Mean of the measured capacities.
    mean: Option<f64>,
}

impl Meter {
    pub(super) fn new(fixed: Option<f64>) -> Self {
        Self { fixed, last: None, mean: None }
    }

    /// The capacity before anything was measured.
    pub(super) fn first(&self) -> Capacity {
        let n_processors = std::thread::available_parallelism().map_or(1, usize::from);
        Capacity { default: self.fixed.unwrap_or(FPS_PER_PROCESSOR * n_processors as f64), models: std::collections::BTreeMap::new() }
    }

    /// Returns `facts` with the present load.
    pub(super) fn measure(&mut self, mut facts: Facts, registry: &Registry) -> Facts {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let fps = registry.states().iter().map(|(_, _, _, feed)| feed.fps()).sum();
        let processor = self.processor(&read("/proc/stat")).unwrap_or(0.0);
        let (total, available) = memory(&read("/proc/meminfo"));
        facts.load = Load { processor: rounded(processor), memory: total.saturating_sub(available), fps: rounded(fps) };
        facts.memory = total;
        if self.fixed.is_none() && processor >= MIN_USED && fps > 0.0 {
            let measured = fps / processor * USABLE;
            let mean = self.mean.map_or(measured, |mean| mean + WEIGHT * (measured - mean));
            self.mean = Some(mean);
            let published = facts.capacity.default;
            if (mean - published).abs() > STEP * published {
                facts.capacity.default = mean.round().max(1.0);
            }
        }
        facts
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

    #[test]
    fn used_part_of_the_processors_is_that_since_the_last_measurement() {
        let mut meter = Meter::new(None);
        assert_eq!(meter.processor("cpu  100 0 100 700 100 0 0 0 0 0\n"), None);
        assert_eq!(meter.processor("cpu  130 0 120 740 110 0 0 0 0 0\n"), Some(0.5));
        assert_eq!(meter.processor("nothing"), None);
        assert_eq!(memory("MemTotal:  8 kB\nMemAvailable:  2 kB\n"), (8192, 2048));
    }

    #[test]
    fn capacity_of_the_administrator_is_kept() {
        assert_eq!(Meter::new(Some(300.0)).first().default, 300.0);
        assert!(Meter::new(None).first().default >= FPS_PER_PROCESSOR);
    }
}
