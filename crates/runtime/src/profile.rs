//! Time spent per step of a run, always; and per node of the model, where it was asked for.
//!
//! ```
//! use roiflow::devices;
//! use roiflow::runtime::{Config, NodeStatus};
//!
//! # fn main() -> roiflow::runtime::Result<()> {
//! let core = devices::core();
//! let model = core.read_model("assets/tiny/add.onnx")?;
//! let model = core.compile_model(&model, "CPU", &Config { profiling: true, ..Config::default() })?;
//! let request = model.create_infer_request()?;
//! request.infer(())?;
//! for node in request.profiling_info()? {
//!     println!("{:<20} {:<12} {:?} {:?}", node.name, node.kind, node.status, node.real);
//!     assert_eq!(node.status, NodeStatus::Executed);
//! }
//! # Ok(())
//! # }
//! ```

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

/// What one node of the model did in the latest run; `OPENVINO.CPU` knows only the mean of all runs so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTime {
    /// The node's name in the model file, or the device's own where the file gives it none (`Conv_12`); what the engine made of one
    /// node may be several, named after it (`conv1.im2col`).
    pub name: String,
    /// The engine's word for what it computes.
    pub kind: String,
    /// Whether it ran.
    pub status: NodeStatus,
    /// Time between its begin and its end, in all rows of a batch.
    pub real: Duration,
    /// Time of the processor that it took; `None` where the engine does not tell (ONNX Runtime).
    pub cpu: Option<Duration>,
}

/// Whether a node ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeStatus {
    /// It ran.
    Executed,
    /// It did not: no run yet, or the run ended before.
    NotRun,
    /// Folded into another node, or into a constant, when the model was compiled.
    OptimizedOut,
}
