//! The only list of built-in devices. One folder per device, the same file names in each: `mod.rs` (the device), `model.rs`
//! (a compiled model), `request.rs` (the device's part of one request).
//!
//! A device knows `runtime` and `tensor`, and nothing of the other devices. Seven helpers are shared: [`find`] looks for
//! libraries that are loaded at run time, [`engine`] puts a run's tensors before them, [`exit`] keeps their calls and the end of the
//! process apart, [`denormals`] keeps engines from computing with numbers that are next to nothing, [`onnx`] changes the shapes in a
//! file, [`quiet`] makes an engine's panics errors, [`kept`] names what is kept for the next process; and [`heaps`] is for programs that use them.

pub mod auto;
#[cfg(feature = "cpu")]
pub mod cpu;
pub mod denormals;
pub mod engine;
pub mod exit;
pub mod find;
pub mod folders;
pub mod heaps;
pub mod kept;
pub mod onnx;
pub mod onnxruntime;
pub mod openvino;
pub mod quiet;

use std::sync::{Arc, OnceLock};

pub use roiflow_runtime::null;
use roiflow_runtime::{self as runtime, Core};
use roiflow_tensor as tensor;

/// The core of this process: all devices, one set of executors.
pub fn core() -> &'static Core {
    static CORE: OnceLock<Core> = OnceLock::new();
    CORE.get_or_init(|| {
        let mut core = Core::new();
        core.register(Arc::new(cpu::CpuDevice));
        core.register(Arc::new(null::NullDevice::default()));
        core.register_family(Arc::new(openvino::OpenVino::default()));
        core.register_family(Arc::new(onnxruntime::OnnxRuntime::default()));
        // Chooses among the others, so it comes last.
        core.register(Arc::new(auto::AutoDevice::new(core.clone())));
        core
    })
}
