//! The pipeline of a request: its steps as a list of executor and task, which the caller may replace as a whole.

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
    /// A step of the caller's. It may read the inputs after the step `fill`, and the outputs after the last step of the device.
    pub fn new(name: &str, executor: Arc<dyn Executor>, task: impl FnMut(&RunContext<'_>) -> Result<()> + Send + 'static) -> Self {
        Self { name: name.into(), executor, task: Task::Custom(Box::new(task)) }
    }

    /// The same on another executor.
    #[must_use]
    pub fn on(self, executor: Arc<dyn Executor>) -> Self {
        Self { executor, ..self }
    }

    /// The name, for profiles and traces: `fill`, those of the device, those of the caller.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The executor that runs the step.
    pub fn executor(&self) -> &Arc<dyn Executor> {
        &self.executor
    }

    /// Whether the step belongs to every run, and not to the caller.
    pub fn is_built_in(&self) -> bool {
        matches!(self.task, Task::BuiltIn(_))
    }

    /// A description of a built-in step; `None` for a step of the caller's, whose task cannot be copied.
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

/// The steps of a run, if they are a pipeline in place of `present`.
///
/// # Errors
/// `Config` unless all built-in steps are there once and in their order, with no step between those of the device.
pub(super) fn checked(steps: Vec<PipelineStep>, present: &[Step]) -> Result<Vec<Step>> {
    let expected: Vec<BuiltIn> = present.iter().filter_map(|step| built_in(&step.task)).collect();
    let tasks = || steps.iter().map(|step| if let Task::BuiltIn(task) = &step.task { Some(*task) } else { None });
    let names = || present.iter().filter(|step| built_in(&step.task).is_some()).map(|step| &*step.name).collect::<Vec<_>>().join(", ");
    if !tasks().flatten().eq(expected.iter().copied()) {
        let got = steps.iter().map(PipelineStep::name).collect::<Vec<_>>().join(", ");
        let message = format!("pipeline: expected the built-in steps {} once and in this order, got {got}", names());
        return Err(Error::new(ErrorKind::Config, message).with_expected(names(), got));
    }
    // The device's state between its steps is its own, and a run that was computed by another one's call skips them together.
    let is_inner = |task: &Option<BuiltIn>| !matches!(task, None | Some(BuiltIn::Inputs));
    let first = tasks().position(|task| is_inner(&task));
    let last = steps.len() - tasks().collect::<Vec<_>>().iter().rev().position(is_inner).unwrap_or(0);
    if let Some(first) = first
        && let Some(between) = steps[first..last].iter().find(|step| !step.is_built_in())
    {
        let message = format!("pipeline: the step `{}` lies between those of the device; put it before or after them", between.name());
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
