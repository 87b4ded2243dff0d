//! The part of a stage that its jobs and the queue of its model use: description, scheduling and counters.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::ModelSpec;
use super::output_check::OutputCheck;
use crate::runtime::{Error, ErrorKind};

/// The order of waiting jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheduling {
    /// The job that reached the stage first.
    #[default]
    Throughput,
    /// The job whose frame is oldest.
    Latency,
}

/// Counters of a stage, and the total time of its steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StageStats {
    /// The device that runs the model; with `AUTO`, the chosen one.
    pub device: String,
    /// Runs of the model with batch items of this stage.
    pub n_runs: u64,
    /// Failed runs.
    pub n_failed: u64,
    /// Batch items of this stage in these runs.
    pub n_items: u64,
    /// Times of the steps of a run, in order.
    pub steps: Vec<StepStats>,
}

/// Total time of one step, over all runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepStats {
    /// Name of the step: `fill`, the device's steps, `decode`.
    pub name: Arc<str>,
    /// The sum. A run that several stages shared is divided by batch items.
    pub total: Duration,
}

/// See the module.
pub(super) struct Client {
    /// Preprocessing and decoding.
    pub(super) spec: ModelSpec,
    pub(super) check: OutputCheck,
    pub(super) scheduling: Scheduling,
    /// Number of its running jobs. Changes under the queue's lock.
    pub(super) n_running: AtomicUsize,
    pub(super) is_removed: AtomicBool,
    pub(super) stats: Mutex<StageStats>,
}

impl Client {
    pub(super) fn new(spec: ModelSpec, scheduling: Scheduling, device: String) -> Arc<Self> {
        let stats = Mutex::new(StageStats { device, ..StageStats::default() });
        let (n_running, is_removed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { spec, check: OutputCheck::default(), scheduling, n_running, is_removed, stats })
    }

    pub(super) fn stats(&self) -> StageStats {
        self.stats.lock().unwrap().clone()
    }
}

/// The error of a job that never ran.
pub(super) fn stopped() -> Error {
    Error::new(ErrorKind::Stopped, "the stage was stopped before it got to this frame")
}
