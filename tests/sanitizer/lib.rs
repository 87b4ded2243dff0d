//! The code that the sanitizers check. Modules have the same names as in roiflow. The only device is NULL.

pub use roiflow_runtime::{self as runtime, inputs};
pub use roiflow_tensor as tensor;
pub use roiflow_vision as vision;

/// The only device: NULL.
pub mod devices {
    use std::sync::{Arc, OnceLock};

    use roiflow_runtime::Core;
    pub use roiflow_runtime::null;

    /// Like `roiflow::devices::core`, with only the device NULL.
    pub fn core() -> &'static Core {
        static CORE: OnceLock<Core> = OnceLock::new();
        CORE.get_or_init(|| {
            let mut core = Core::new();
            core.register(Arc::new(null::NullDevice::default()));
            core
        })
    }
}

/// The module `frame` of roiflow.
pub mod frame {
    pub use roiflow_results::*;
    pub use roiflow_vision::frame::*;
}

/// The parts of the module `stages` of roiflow that need no engine.
pub mod stages {
    pub use roiflow_vision::crop::{Crop, Region};
}
