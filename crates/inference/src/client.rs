//! A client is the part of a stage that its jobs and the queue use: the model description, the scheduling and the counters.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::ModelSpec;
use super::output_check::OutputCheck;
use crate::runtime::{Error, ErrorKind};

/// Order in which waiting jobs of a stage run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheduling {
    /// In the order in which the jobs arrive at the stage.
    #[default]
    Throughput,
    /// In the order in which the frames of the jobs arrived at the element: the oldest frame first.
    Latency,
}

/// Counters of a stage, and total times of its steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StageStats {
    /// Name of the device that runs the model. If `AUTO` was requested, the name of the device that it selected.
    pub device: String,
    /// Number of runs of the model that contained batch items of this stage.
    pub n_runs: u64,
    /// Number of these runs that failed.
    pub n_failed: u64,
    /// Number of batch items of this stage, in all runs.
    pub n_items: u64,
    /// Total times of the steps of a run, in order.
    pub steps: Vec<StepStats>,
}

/// Total time of a step, over all runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepStats {
    /// Name of the step: `fill` (preprocessing), the device's steps, `decode`.
    pub name: Arc<str>,
    /// Total time. If a run has batch items of several stages, its time is divided among the stages in proportion to their batch items.
    pub total: Duration,
}

impl StageStats {
    /// Adds the counters and times of another stage of the same model.
    pub(super) fn add(&mut self, other: &Self) {
        self.n_runs += other.n_runs;
        self.n_failed += other.n_failed;
        self.n_items += other.n_items;
        for step in &other.steps {
            match self.steps.iter_mut().find(|own| own.name == step.name) {
                Some(own) => own.total += step.total,
                None => self.steps.push(step.clone()),
            }
        }
    }
}

/// The part of a stage that its jobs and the queue use. See the module documentation.
pub(super) struct Client {
    /// The checked description of the model, with its preprocessing and decoding.
    pub(super) spec: ModelSpec,
    /// Description with changed thresholds, which decodes later outputs; `None`: `spec`.
    changed: RwLock<Option<Arc<ModelSpec>>>,
    pub(super) check: OutputCheck,
    pub(super) scheduling: Scheduling,
    /// Number of running jobs. It changes only under the queue's lock.
    pub(super) n_running: AtomicUsize,
    pub(super) is_removed: AtomicBool,
    pub(super) stats: Mutex<StageStats>,
}

impl Client {
    pub(super) fn new(spec: ModelSpec, scheduling: Scheduling, device: String) -> Arc<Self> {
        let stats = Mutex::new(StageStats { device, ..StageStats::default() });
        let (n_running, is_removed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let changed = RwLock::default();
        Arc::new(Self { spec, changed, check: OutputCheck::default(), scheduling, n_running, is_removed, stats })
    }

    /// Returns the description with changed thresholds; `None` if they were never changed.
    pub(super) fn changed(&self) -> Option<Arc<ModelSpec>> {
        self.changed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Decodes later outputs with the thresholds of this description, whose other values are those of `spec`.
    pub(super) fn change(&self, spec: ModelSpec) {
        *self.changed.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(spec));
    }

    pub(super) fn stats(&self) -> StageStats {
        self.stats.lock().unwrap().clone()
    }
}

/// Returns the error of a job that was discarded before it ran.
pub(super) fn stopped() -> Error {
    Error::new(ErrorKind::Stopped, "inference stopped: the frame was discarded before its run started")
}
