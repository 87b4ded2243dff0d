//! The part of the product that the address sanitizer looks at, under the product's names, with the null device alone.

pub use roiflow_runtime::{self as runtime, inputs};
pub use roiflow_tensor as tensor;
pub use roiflow_vision as vision;

/// The one device.
pub mod devices {
    use std::sync::{Arc, OnceLock};

    use roiflow_runtime::Core;
    pub use roiflow_runtime::null;

    /// As the product's, with fewer devices.
    pub fn core() -> &'static Core {
        static CORE: OnceLock<Core> = OnceLock::new();
        CORE.get_or_init(|| {
            let mut core = Core::new();
            core.register(Arc::new(null::NullDevice::default()));
            core
        })
    }
}

/// As the product's.
pub mod frame {
    pub use roiflow_results::*;
    pub use roiflow_vision::frame::*;
}

/// Of the stages what needs no engine.
pub mod stages {
    pub use roiflow_vision::crop::{Crop, Region};
}
