//! The modules of roiflow that are fuzzed, with the same names as in roiflow, without GStreamer and engines.

pub use roiflow_devices as devices;
pub use roiflow_runtime as runtime;
pub use roiflow_tensor as tensor;
pub use roiflow_vision as vision;

/// The module `frame` of roiflow.
pub mod frame {
    pub use roiflow_results::*;
    pub use roiflow_vision::frame::*;
}

/// The module `stages` of roiflow, without the parts that the fuzz targets do not need.
pub mod stages {
    pub use roiflow_inference::*;
    pub use roiflow_vision::crop::{Crop, Region};
}
