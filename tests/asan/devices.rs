//! The one device.

#[path = "../../src/devices/null/mod.rs"]
pub mod null;

use std::sync::{Arc, OnceLock};

use crate::runtime::Core;

/// As the product's, with fewer devices.
pub fn core() -> &'static Core {
    static CORE: OnceLock<Core> = OnceLock::new();
    CORE.get_or_init(|| {
        let mut core = Core::new();
        core.register(Arc::new(null::NullDevice::default()));
        core
    })
}
