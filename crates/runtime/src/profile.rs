//! Times of the steps of a run, always; times of the nodes of a model, if profiling is enabled.
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

/// Duration of one step of the latest run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StepTime {
    /// Name of the step: `fill`, the device's steps, user steps.
    #[cfg_attr(feature = "serde", serde(with = "crate::formats::text"))]
    pub name: Arc<str>,
    /// Time in the step, without waiting for its executor.
    #[cfg_attr(feature = "serde", serde(with = "crate::formats::seconds"))]
    pub duration: Duration,
}

/// Times of one node in the latest run; `OPENVINO.CPU` reports the mean of all runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeTime {
    /// Name of the node in the model file, or a name of the device if the file has none (`Conv_12`). The engine may split a node into
    /// several, named after it (`conv1.im2col`).
    pub name: String,
    /// The engine's operator name.
    pub kind: String,
    /// Whether the node was executed.
    pub status: NodeStatus,
    /// Elapsed time, over all batch items.
    #[cfg_attr(feature = "serde", serde(with = "crate::formats::seconds"))]
    pub real: Duration,
    /// CPU time; `None` if the engine does not report it (ONNX Runtime).
    #[cfg_attr(feature = "serde", serde(default, with = "crate::formats::maybe_seconds"))]
    pub cpu: Option<Duration>,
}

/// Whether a node was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum NodeStatus {
    /// Executed.
    Executed,
    /// Not executed: there was no run, or the run ended before.
    NotRun,
    /// Fused into another node, or folded into a constant, during compilation.
    OptimizedOut,
}
