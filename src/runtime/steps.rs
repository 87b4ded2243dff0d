//! What a run is made of: a list of (executor, task), and everything that the run owns meanwhile.
//!
//! First come the steps that the user prepended, then `fill` (inputs are filled or gathered), the device's own steps, the steps
//! that the user appended, and completion, which calls back. The run walks the list; where the next step's executor is another
//! one, the request is queued there, else it goes on at once. On a processor engine that makes one task of the whole run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::DeviceRequest;
use super::executor::Executor;
use super::io::{DeviceIo, RunContext, RunIo};
use super::{Error, ErrorKind, Result, StepTime};
use crate::sync::{AtomicBool, Ordering};

/// Asks a run to end; a flag that steps and devices look at.
#[derive(Debug, Default)]
pub struct CancelToken(AtomicBool);

impl CancelToken {
    /// Whether the run was canceled.
    pub fn is_canceled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// `Ok` while the run may go on.
    ///
    /// # Errors
    /// [`ErrorKind::Canceled`] once it was canceled.
    pub fn check(&self) -> Result<()> {
        if self.is_canceled() { Err(Error::new(ErrorKind::Canceled, "the run was canceled")) } else { Ok(()) }
    }

    pub(super) fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn reset(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A step of the user's.
pub(super) type CustomStep = Box<dyn FnMut(&RunContext<'_>) -> Result<()> + Send>;

pub(super) enum StepTask {
    /// Fill or gather the inputs.
    Inputs,
    /// A step of the device.
    Device(usize),
    /// A step of the user.
    Custom(CustomStep),
}

pub(super) struct Step {
    pub(super) name: Arc<str>,
    pub(super) executor: Arc<dyn Executor>,
    pub(super) task: StepTask,
    pub(super) duration: Duration,
}

/// Everything that a run owns: moved out of the request when it starts, and back when it ends.
pub(super) struct Body {
    pub(super) device: Box<dyn DeviceRequest>,
    pub(super) io: RunIo,
    pub(super) steps: Vec<Step>,
    /// How many of the steps the user prepended.
    pub(super) n_prepended: usize,
    /// Where a run ends that calls back.
    pub(super) completion: Arc<dyn Executor>,
    pub(super) next_step_idx: usize,
    pub(super) run: u64,
    pub(super) outcome: Result<()>,
    pub(super) calls_back: bool,
    pub(super) started: Instant,
}

impl Body {
    /// Makes the body ready for a run whose leases are taken.
    pub(super) fn begin(&mut self, run: u64, calls_back: bool) {
        self.run = run;
        self.calls_back = calls_back;
        self.next_step_idx = 0;
        self.outcome = Ok(());
        self.started = Instant::now();
    }

    /// Runs the next step; its error, or its panic, becomes the outcome of the run.
    pub(super) fn run_next_step(&mut self, cancel: &CancelToken, request_id: u64) {
        let step_idx = self.next_step_idx;
        self.next_step_idx += 1;
        if let Err(error) = cancel.check() {
            self.outcome = Err(error);
            return;
        }
        let step = &mut self.steps[step_idx];
        let _span = tracing::trace_span!("step", request = request_id, run = self.run, step = &*step.name).entered();
        let begin = Instant::now();
        let (device, io, run) = (&mut self.device, &mut self.io, self.run);
        let task = &mut step.task;
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match task {
            StepTask::Inputs => io.fill(),
            StepTask::Device(device_step_idx) => device.run_step(*device_step_idx, &mut DeviceIo { io }, cancel),
            StepTask::Custom(custom) => custom(&RunContext { io, cancel, run }),
        }));
        step.duration = begin.elapsed();
        self.outcome = done.unwrap_or_else(|panic| Err(panic_error(&format!("step `{}`", step.name), &*panic)));
    }

    /// The executor of the next step, or of the run's end.
    pub(super) fn next_executor(&self) -> &Arc<dyn Executor> {
        if self.is_over() { &self.completion } else { &self.steps[self.next_step_idx].executor }
    }

    pub(super) fn is_over(&self) -> bool {
        self.outcome.is_err() || self.next_step_idx == self.steps.len()
    }

    pub(super) fn step_times(&self) -> Vec<StepTime> {
        self.steps.iter().map(|step| StepTime { name: step.name.clone(), duration: step.duration }).collect()
    }
}

/// What a panic said, as an error.
pub(super) fn panic_error(place: &str, panic: &(dyn std::any::Any + Send)) -> Error {
    let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::new(ErrorKind::Panic, format!("{place} panicked: {}", said.unwrap_or("(no message)")))
}
