//! The part of roiflow that the model checks use, with the `sync` module of a model checker (`--cfg roiflow_check`).

pub use roiflow_nodes as nodes;
pub use roiflow_runtime as runtime;
pub use roiflow_tensor::{self as tensor, sync};

/// The only device of the checks.
pub mod devices {
    pub use roiflow_runtime::null;
}

/// This file is included directly, because building its whole crate for each broken variant would take a minute.
#[path = "../../crates/inference/src/flow.rs"]
pub mod flow;
