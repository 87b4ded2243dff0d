//! The pipeline of a request: a list of steps, each with an executor and a task. The caller can replace this list.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::context::RunContext;
use super::executor::Executor;
use super::steps::{CustomStep, Step, StepTask};
use super::{Error, ErrorKind, Result};

/// One step of a run: a task and the executor that runs it.
pub struct PipelineStep {
    name: Arc<str>,
    executor: Arc<dyn Executor>,
    task: Task,
}

enum Task {
    BuiltIn(BuiltIn),
    Custom(CustomStep),
}

/// The task of a built-in step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BuiltIn {
    Inputs,
    Join,
    TakeRow,
    Device(usize),
}

impl PipelineStep {
    /// Creates a user step. The step may read the inputs if it comes after `fill`, and the outputs if it comes after the last step of the
    /// device.
    pub fn new(name: &str, executor: Arc<dyn Executor>, task: impl FnMut(&RunContext<'_>) -> Result<()> + Send + 'static) -> Self {
        Self { name: name.into(), executor, task: Task::Custom(Box::new(task)) }
    }

    /// Returns the same step, to be run on another executor.
    #[must_use]
    pub fn on(self, executor: Arc<dyn Executor>) -> Self {
        Self { executor, ..self }
    }

    /// Returns the name of the step in profiles and traces: `fill`, or the name that the device or the caller chose.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the executor that runs the step.
    pub fn executor(&self) -> &Arc<dyn Executor> {
        &self.executor
    }

    /// Returns true if the step is `fill` or a step of the device, and false if it is a user step.
    pub fn is_built_in(&self) -> bool {
        matches!(self.task, Task::BuiltIn(_))
    }

    /// Returns a copy of a built-in step. Returns `None` for a user step, because its task cannot be copied.
    pub(super) fn of(step: &Step) -> Option<Self> {
        let task = built_in(&step.task)?;
        Some(Self { name: step.name.clone(), executor: step.executor.clone(), task: Task::BuiltIn(task) })
    }
}

fn built_in(task: &StepTask) -> Option<BuiltIn> {
    match task {
        StepTask::Inputs => Some(BuiltIn::Inputs),
        StepTask::Join => Some(BuiltIn::Join),
        StepTask::TakeRow => Some(BuiltIn::TakeRow),
        StepTask::Device(step_idx) => Some(BuiltIn::Device(*step_idx)),
        StepTask::Custom(_) => None,
    }
}

/// Checks a new pipeline against the current steps (`present`), and converts it to steps.
///
/// # Errors
/// Returns `Config` unless each built-in step occurs exactly once and in the current order, and no user step is between the steps of the
/// device.
pub(super) fn checked(steps: Vec<PipelineStep>, present: &[Step]) -> Result<Vec<Step>> {
    let expected: Vec<BuiltIn> = present.iter().filter_map(|step| built_in(&step.task)).collect();
    let tasks = || steps.iter().map(|step| if let Task::BuiltIn(task) = &step.task { Some(*task) } else { None });
    let names = || present.iter().filter(|step| built_in(&step.task).is_some()).map(|step| &*step.name).collect::<Vec<_>>().join(", ");
    if !tasks().flatten().eq(expected.iter().copied()) {
        let got = steps.iter().map(PipelineStep::name).collect::<Vec<_>>().join(", ");
        let message = format!("pipeline: expected the built-in steps {} once and in this order, got {got}", names());
        return Err(Error::new(ErrorKind::Config, message).with_expected(names(), got));
    }
    // User steps may not come between the steps of the device: the device keeps private state from one step to the next, and a batched run
    // skips all of these steps.
    let is_inner = |task: &Option<BuiltIn>| !matches!(task, None | Some(BuiltIn::Inputs));
    let first = tasks().position(|task| is_inner(&task));
    let last = steps.len() - tasks().collect::<Vec<_>>().iter().rev().position(is_inner).unwrap_or(0);
    if let Some(first) = first
        && let Some(between) = steps[first..last].iter().find(|step| !step.is_built_in())
    {
        let message = format!("pipeline: the step `{}` is between the steps of the device; put it before or after them", between.name());
        return Err(Error::new(ErrorKind::Config, message));
    }
    let step = |PipelineStep { name, executor, task }| {
        let task = match task {
            Task::BuiltIn(BuiltIn::Inputs) => StepTask::Inputs,
            Task::BuiltIn(BuiltIn::Join) => StepTask::Join,
            Task::BuiltIn(BuiltIn::TakeRow) => StepTask::TakeRow,
            Task::BuiltIn(BuiltIn::Device(step_idx)) => StepTask::Device(step_idx),
            Task::Custom(custom) => StepTask::Custom(custom),
        };
        Step { name, executor, task, duration: Duration::ZERO }
    };
    Ok(steps.into_iter().map(step).collect())
}

impl fmt::Debug for PipelineStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({:?}, `{}`)", self.executor, self.name)
    }
}
