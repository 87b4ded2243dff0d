//! The part of the product that the model checks look at, with `sync` from a model checker (`--cfg roiflow_check`).

pub use roiflow_runtime as runtime;
pub use roiflow_tensor::{self as tensor, sync};

/// The one device of the checks.
pub mod devices {
    pub use roiflow_runtime::null;
}

/// A file without dependencies: its crate would take a minute to build for each broken variant.
#[path = "../../crates/inference/src/flow.rs"]
pub mod flow;
