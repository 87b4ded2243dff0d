//! A stage as its jobs and the queue of its model know it: how it reads pictures and outputs, which of its jobs is next, and what it counts.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::ModelSpec;
use super::output_check::OutputCheck;
use crate::runtime::{Error, ErrorKind};

/// Which of the jobs that wait is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheduling {
    /// The one that came to the stage first.
    #[default]
    Throughput,
    /// The one whose frame is oldest.
    Latency,
}

/// How often a stage ran, and how long its steps took in all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StageStats {
    /// The device that runs the model; the one that was chosen, where a device chooses among others.
    pub device: String,
    /// Runs of the model in which frames of this stage took part.
    pub n_runs: u64,
    /// Those of them that failed.
    pub n_failed: u64,
    /// The pictures and regions of this stage in them.
    pub n_rows: u64,
    /// The steps of a run, in order.
    pub steps: Vec<StepStats>,
}

/// Time spent in one step, over all runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepStats {
    /// The step: `fill`, the device's own, `decode`.
    pub name: Arc<str>,
    /// The sum. Of a run that several stages shared, this stage's part by its rows.
    pub total: Duration,
}

/// See the module.
pub(super) struct Client {
    /// How pictures become inputs, and outputs results.
    pub(super) spec: ModelSpec,
    pub(super) check: OutputCheck,
    pub(super) scheduling: Scheduling,
    /// Of its jobs. Changes under the queue's lock.
    pub(super) n_running: AtomicUsize,
    pub(super) has_left: AtomicBool,
    pub(super) stats: Mutex<StageStats>,
}

impl Client {
    pub(super) fn new(spec: ModelSpec, scheduling: Scheduling, device: String) -> Arc<Self> {
        let stats = Mutex::new(StageStats { device, ..StageStats::default() });
        let (n_running, has_left) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { spec, check: OutputCheck::default(), scheduling, n_running, has_left, stats })
    }

    pub(super) fn stats(&self) -> StageStats {
        self.stats.lock().unwrap().clone()
    }
}

/// The error of a job that never ran.
pub(super) fn stopped() -> Error {
    Error::new(ErrorKind::Stopped, "the stage was stopped before it got to this frame")
}
