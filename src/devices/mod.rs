//! The only list of built-in devices. One folder per device, the same file names in each: `mod.rs` (the device), `model.rs`
//! (a compiled model), `request.rs` (the device's part of one request).
//!
//! A device knows `runtime` and `tensor`, and nothing of the other devices.

pub mod cpu;
pub mod null;

use std::sync::{Arc, OnceLock};

use crate::runtime::Core;

/// The core of this process: all built-in devices, one set of executors.
pub fn core() -> &'static Core {
    static CORE: OnceLock<Core> = OnceLock::new();
    CORE.get_or_init(|| {
        let mut core = Core::new();
        core.register(Arc::new(cpu::CpuDevice));
        core.register(Arc::new(null::NullDevice::default()));
        core
    })
}
