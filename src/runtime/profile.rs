//! Time spent per step of a run.

use std::sync::Arc;
use std::time::Duration;

/// How long one step of the latest run took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepTime {
    /// The step: `fill`, the device's own names, the names of appended steps.
    pub name: Arc<str>,
    /// Time inside the step, without waiting for its executor.
    pub duration: Duration,
}
