//! The compiled part of the Python package `roiflow`: models that take images, and inference requests with OpenVINO's Python API, on
//! roiflow's runtime.
//!
//! The Python files of the package contain the classes that need not be fast, and the classes that programs may derive from. Reading order:
//! `core`, `model`, `port`, `compiled`, `request`, `queue` (the classes), `inputs`, `run` (how a run gets its inputs and returns its
//! results), `stage`, `image`, `results`, `decoder` (models that take images), `tensor_class`, `array`, `types` (memory), `interpreter`,
//! `interrupted` (threads, signals, the end of the process). The other files are `errors`, `properties`, `package`, `arguments`, `remote` and `variable`.
//!
//! Rules:
//!
//! - No mutex is locked while Python code may run. A value behind a mutex is cloned or taken out first, and dropped after the mutex is
//!   unlocked.
//! - Before a thread waits for other threads, or drops a value whose drop can wait for them, it releases the interpreter's lock.
//! - Only `array` and `types` contain `unsafe` code, for the C interface of numpy.

mod arguments;
mod array;
mod compiled;
mod core;
mod decoder;
mod errors;
mod image;
mod inputs;
mod interpreter;
mod interrupted;
mod model;
mod package;
mod port;
mod properties;
mod queue;
mod remote;
mod request;
mod results;
mod run;
mod stage;
mod tensor_class;
mod types;
mod variable;

use pyo3::prelude::*;
use roiflow_runtime as runtime;
use roiflow_tensor as tensor;

/// The module `roiflow._roiflow`, whose items the package `roiflow` re-exports.
#[pymodule]
mod _roiflow {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::compiled::CompiledModel;
    #[pymodule_export]
    use crate::core::Core;
    #[pymodule_export]
    use crate::decoder::_register_decoder;
    #[pymodule_export]
    use crate::errors::{
        Busy, Canceled, ConfigError, DeviceError, Error, ModelError, NotFound, OutOfMemory, OwnedByQueue, Panicked, ReadError, Stopped,
        TensorError, Unsupported, WouldDeadlock,
    };
    #[pymodule_export]
    use crate::image::{_plot, _read_gray, _read_image};
    #[pymodule_export]
    use crate::interpreter::_end;
    #[pymodule_export]
    use crate::model::Model;
    #[pymodule_export]
    use crate::port::{ConstOutput, Output};
    #[pymodule_export]
    use crate::queue::AsyncInferQueue;
    #[pymodule_export]
    use crate::remote::RemoteContext;
    #[pymodule_export]
    use crate::request::InferRequest;
    #[pymodule_export]
    use crate::results::PyResults;
    #[pymodule_export]
    use crate::stage::{PyRun, PyStage};
    #[pymodule_export]
    use crate::tensor_class::{RemoteTensor, Tensor};
    #[pymodule_export]
    use crate::types::Type;
    #[pymodule_export]
    use crate::variable::VariableState;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        std::sync::LazyLock::force(&crate::interpreter::LOADED_IN);
        let path: Vec<std::path::PathBuf> = module.py().import("sys")?.getattr("path")?.extract().unwrap_or_default();
        roiflow_devices::set_python_path(path);
        let end = module.getattr("_end")?;
        module.py().import("atexit")?.call_method1("register", (end,)).map(drop)
    }
}
