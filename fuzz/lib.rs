//! The part of the product that is fuzzed, under the product's names, without GStreamer, and without what engines link.

pub use roiflow_devices as devices;
pub use roiflow_runtime as runtime;
pub use roiflow_tensor as tensor;
pub use roiflow_vision as vision;

/// As the product's.
pub mod frame {
    pub use roiflow_results::*;
    pub use roiflow_vision::frame::*;
}

/// As the product's.
pub mod stages {
    pub use roiflow_inference::*;
    pub use roiflow_vision::cut::{Cut, Region};
}
