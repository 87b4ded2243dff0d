//! Measured times: the durations of the steps of a run, and, if profiling is enabled, the times of the model's nodes.
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

/// The duration of one step in the latest run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StepTime {
    /// The name of the step: `fill`, a step of the device, or a user step.
    #[cfg_attr(feature = "serde", serde(with = "crate::formats::text"))]
    pub name: Arc<str>,
    /// The time that the step ran. The time that the step waited for its executor does not count.
    #[cfg_attr(feature = "serde", serde(with = "crate::formats::seconds"))]
    pub duration: Duration,
}

/// The times of one node in the latest run. `OPENVINO.CPU` instead reports the mean of all its runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeTime {
    /// The name of the node in the model file. If the node has no name there, the name that the device chose (`Conv_12`). An engine may
    /// split a node into several parts and name each part after the node (`conv1.im2col`).
    pub name: String,
    /// The engine's name of the node's operator, such as `Conv`.
    pub kind: String,
    /// Whether the node was executed.
    pub status: NodeStatus,
    /// Elapsed time in this node, for all batch items together.
    #[cfg_attr(feature = "serde", serde(with = "crate::formats::seconds"))]
    pub real: Duration,
    /// CPU time in this node. `None` if the engine does not report it; ONNX Runtime does not.
    #[cfg_attr(feature = "serde", serde(default, with = "crate::formats::maybe_seconds"))]
    pub cpu: Option<Duration>,
}

/// Whether a node was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum NodeStatus {
    /// The node was executed.
    Executed,
    /// The node was not executed: there was no run, or the run ended before this node.
    NotRun,
    /// The node is not executed on its own: compilation fused it into another node, or folded it into a constant.
    OptimizedOut,
}
