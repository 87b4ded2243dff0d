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
#[cfg(any(feature = "cpu", feature = "openvino", feature = "onnxruntime"))]
pub mod engine;
#[cfg(any(feature = "cpu", feature = "openvino", feature = "onnxruntime"))]
pub mod exit;
#[cfg(any(feature = "openvino", feature = "onnxruntime"))]
mod find;
#[cfg(any(feature = "openvino", feature = "onnxruntime"))]
mod float_control;
pub mod folders;
pub mod heaps;
#[cfg(any(feature = "openvino", feature = "onnxruntime"))]
pub mod kept;
#[cfg(any(feature = "cpu", feature = "openvino", feature = "onnxruntime"))]
pub mod onnx;
#[cfg(feature = "onnxruntime")]
pub mod onnxruntime;
#[cfg(feature = "openvino")]
pub mod openvino;
#[cfg(feature = "cpu")]
pub mod quiet;

use std::sync::{Arc, OnceLock};

pub use roiflow_runtime::null;
use roiflow_runtime::{self as runtime, Core};
#[cfg(any(feature = "cpu", feature = "openvino", feature = "onnxruntime"))]
use roiflow_tensor as tensor;

/// The core of this process: all devices whose features are on, one set of executors.
pub fn core() -> &'static Core {
    static CORE: OnceLock<Core> = OnceLock::new();
    CORE.get_or_init(|| {
        let mut core = Core::new();
        #[cfg(feature = "cpu")]
        core.register(Arc::new(cpu::CpuDevice));
        core.register(Arc::new(null::NullDevice::default()));
        #[cfg(feature = "openvino")]
        core.register_family(Arc::new(openvino::OpenVino::default()));
        #[cfg(feature = "onnxruntime")]
        core.register_family(Arc::new(onnxruntime::OnnxRuntime::default()));
        // Chooses among the others, so it comes last.
        core.register(Arc::new(auto::AutoDevice::new(core.clone())));
        core
    })
}
