//! The built-in devices. Only this module lists them. Each device has its own folder with the same file names: `mod.rs` (the device),
//! `model.rs` (a compiled model), `request.rs` (one inference request). The device `REMOTE` is a crate of its own, `roiflow-remote`.
//!
//! The code of a device uses `runtime` and `tensor`, but no other device. The devices share these modules:
//!
//! | module | does |
//! |---|---|
//! | `find` | searches for libraries that are loaded at run time |
//! | [`engine`] | passes the tensors of a run to an engine, and returns its errors |
//! | [`exit`] | delays the exit of the process until calls into engines return |
//! | `float_control` | calls engines with denormals flushed to zero, and restores the thread |
//! | [`onnx`] | reads and changes the shapes in an ONNX file |
//! | `panics` | turns panics of an engine into errors |
//! | `model_cache` | stores compiled models for later processes |
//! | [`folders`] | the folders of roiflow on a user's system |
//! | [`malloc_arenas`] | limits glibc's malloc arenas, for programs |

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
#[cfg(any(feature = "cpu", feature = "openvino", feature = "onnxruntime"))]
#[cfg_attr(not(any(feature = "cpu", feature = "openvino")), allow(dead_code, reason = "ONNX Runtime computes with all constants"))]
mod graph;
pub mod malloc_arenas;
#[cfg(any(feature = "openvino", feature = "onnxruntime"))]
mod model_cache;
#[cfg(any(feature = "cpu", feature = "openvino", feature = "onnxruntime"))]
pub mod onnx;
#[cfg(feature = "onnxruntime")]
pub mod onnxruntime;
#[cfg(feature = "openvino")]
pub mod openvino;
#[cfg(feature = "cpu")]
mod panics;

use std::sync::{Arc, OnceLock};

#[cfg(any(feature = "openvino", feature = "onnxruntime"))]
pub use find::set_python_path;
#[cfg(feature = "remote")]
pub use roiflow_remote as remote;
pub use roiflow_runtime::null;
use roiflow_runtime::{self as runtime, Core};
#[cfg(any(feature = "cpu", feature = "openvino", feature = "onnxruntime"))]
use roiflow_tensor as tensor;

/// Returns the core of this process: all devices that are compiled in, and one set of executors.
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
        #[cfg(feature = "remote")]
        core.register(Arc::new(remote::RemoteDevice));
        // `AUTO` gets a copy of the core with all other devices, so it is created and registered last.
        core.register(Arc::new(auto::AutoDevice::new(core.clone())));
        core
    })
}
