//! The traits that a device implements: [`Device`], [`DeviceModel`] and [`DeviceRequest`]. All three are object-safe.
//!
//! The runtime checks element types, static shapes and leases before it calls a device. So a device reports only errors that the runtime
//! cannot detect in advance.

use std::sync::Arc;

pub use super::batching::Gathering;
pub use super::completion::Completion;
use super::executor::{Executor, Executors};
use super::io::DeviceIo;
use super::steps::CancelToken;
use super::{Config, ContextParams, Error, ErrorKind, Ignored, Model, ModelInfo, ModelSource, NodeTime, RemoteContext, Result};
use crate::tensor::{Shape, Tensor};

/// Description of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// One line for people: the engine and its version.
    pub description: String,
    /// Pairs of key and value, for people and scripts.
    pub properties: Vec<(&'static str, String)>,
    /// The reason why the device cannot be used on this machine; `None` if it can be used.
    pub missing: Option<Missing>,
}

/// The reason why a device cannot be used, and how to install it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// A text for people: which files were searched, where, and what was found instead.
    pub reason: String,
    /// The command that installs the missing software.
    pub install: Option<&'static str>,
}

impl Missing {
    /// The error of an operation that needs the device with this name.
    pub fn error(&self, device: &str) -> Error {
        let install = self.install.map(|command| format!("; install it with `{command}`")).unwrap_or_default();
        Error::new(ErrorKind::Unsupported, format!("device {device} is not available: {}{install}", self.reason))
    }
}

/// An engine that runs models.
pub trait Device: Send + Sync {
    /// The name by which users choose the device, for example `CPU` or `NULL`.
    fn name(&self) -> &str;

    /// The description, properties and availability of the device.
    fn info(&self) -> DeviceInfo;

    /// Reads the ports and metadata of a model. The format of a file is recognized by its extension, and the format of bytes by their first
    /// bytes.
    ///
    /// # Errors
    /// Returns `Io` if the file cannot be read; `Model` if the device does not know the format; `Unsupported` if the device does not read
    /// such sources. After `Model` or `Unsupported`, the runtime tries the next device.
    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo>;

    /// Compiles a model. All devices of the process share `executors`.
    ///
    /// # Errors
    /// Returns `Model` if the device cannot run the model. The message names the operator or port.
    fn compile(&self, model: &Model, config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>>;

    /// Same as [`Device::compile`], but calls `accept` to check the compiled ports. If `accept` fails, a device that delegates to other
    /// devices tries the next one.
    ///
    /// # Errors
    /// The errors of [`Device::compile`] and of `accept`.
    fn compile_accepted(
        &self,
        model: &Model,
        config: &Config,
        executors: &Executors,
        accept: &dyn Fn(&ModelInfo) -> Result<()>,
    ) -> Result<Arc<dyn DeviceModel>> {
        let compiled = self.compile(model, config, executors)?;
        accept(compiled.info())?;
        Ok(compiled)
    }

    /// Loads the engine, for devices that need time to load it. Returns whether the device can be used. If the device cannot be used, a
    /// later `compile` returns the error.
    fn prepare(&self) -> bool {
        self.info().missing.is_none()
    }

    /// The reason why results on this device differ from the arithmetic of the model's element types. Example: the engine computes `i64` in
    /// 32 bits. The default, `None`, means that the results do not differ. The device `AUTO` skips a device that returns a reason.
    ///
    /// Differences by rounding in the order of sums, or by options that the caller sets ([`Config::precision`]), do not count.
    fn inexact(&self, _model: &Model) -> Option<String> {
        None
    }

    /// The approximate memory of a further compiled model, in bytes; usually the size of the weights. Returned only if concurrent requests
    /// are faster when each has its own compiled model (one request, one thread). `None` if they are not faster, or if the device does not
    /// know.
    fn copy_bytes(&self, _model: &Model) -> Option<u64> {
        None
    }

    /// The context of the device's own memory, as in OpenVINO's remote context.
    ///
    /// # Errors
    /// Returns `Unsupported` if the device has no such context.
    fn default_context(&self) -> Result<RemoteContext> {
        let message = format!(
            "device {} has no memory of its own: it uses plain tensors and shared memory (ContextParams::SharedMemory)",
            self.name()
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Creates a context of memory with these parameters.
    ///
    /// # Errors
    /// Returns `Unsupported` if the device cannot use such memory.
    fn create_context(&self, params: &ContextParams) -> Result<RemoteContext> {
        match params {
            ContextParams::SharedMemory => RemoteContext::shared_memory(self.name()),
            ContextParams::DeviceMemory { .. } => self.default_context(),
        }
    }
}

/// The devices of one engine. The names of these devices share a prefix, for example `ORT.CPU` and `ORT.CUDA`. The engine is searched and
/// loaded only when it is needed.
pub trait DeviceFamily: Send + Sync {
    /// The part of the device names before the dot.
    fn prefix(&self) -> &str;

    /// The devices of the engine on this machine. If the engine is not installed, returns its usual devices, marked as missing.
    fn devices(&self) -> Vec<Arc<dyn Device>>;

    /// The device with this full name, including the prefix. The device may be missing; its use then reports an error.
    fn device(&self, name: &str) -> Arc<dyn Device>;

    /// Same as [`Device::read_model`], for model sources that no other device reads.
    ///
    /// # Errors
    /// The errors of [`Device::read_model`].
    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo>;
}

/// A step of a run that a device defines.
#[derive(Debug, Clone)]
pub struct DeviceStep {
    /// The name of the step, for profiles and traces.
    pub name: &'static str,
    /// The executor that runs the step.
    pub executor: Arc<dyn Executor>,
}

/// A compiled model.
pub trait DeviceModel: Send + Sync {
    /// The ports of the compiled model.
    fn info(&self) -> &ModelInfo;

    /// The name of the device that runs the model, if it differs from the requested device.
    fn device(&self) -> Option<&str> {
        None
    }

    /// The options that were set but have no effect.
    fn ignored(&self) -> Vec<Ignored> {
        Vec::new()
    }

    /// The steps of a run, in order. There is at least one.
    fn steps(&self) -> Vec<DeviceStep>;

    /// The number of concurrent requests that is optimal for this model and device.
    fn optimal_number_of_requests(&self) -> usize;

    /// Whether the outputs of each batch item depend on that item only, if the device knows. The default, `None`, means that the device
    /// does not know. The runtime then tests it if necessary.
    fn rows_are_independent(&self) -> Option<bool> {
        None
    }

    /// Whether batch items run sequentially, so that batching does not save time.
    fn computes_rows_in_turn(&self) -> bool {
        false
    }

    /// The batching of the runs of this model. Only a device that delegates to other devices returns it, taken from the other device's
    /// model.
    fn gathering(&self) -> Option<&Gathering> {
        None
    }

    /// Creates the device's part of a request.
    ///
    /// # Errors
    /// Any error, for example if the device has no resources for a further request.
    fn create_request(&self) -> Result<Box<dyn DeviceRequest>>;
}

/// The device's part of one request.
pub trait DeviceRequest: Send {
    /// Allocates an input tensor that the device can use without a copy.
    ///
    /// # Errors
    /// Returns `Tensor` if the number of bytes of this shape overflows.
    fn allocate_input(&mut self, port_idx: usize, shape: Shape) -> Result<Tensor>;

    /// Runs the step with this index of [`DeviceModel::steps`].
    ///
    /// # Errors
    /// Returns `Canceled` if the device noticed `cancel`; `Device` if the engine failed.
    fn run_step(&mut self, step_idx: usize, io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()>;

    /// The completion of asynchronous work. The runtime calls this once, when the request is created. The default, `None`, means that the
    /// work of a step is complete when the step returns.
    ///
    /// A step that starts work with [`Completion::start`] is complete when [`Completion::complete`] is called. The next step then starts on
    /// its executor. Before that, the device may use the tensors of [`DeviceIo`].
    fn completion(&self) -> Option<Arc<Completion>> {
        None
    }

    /// Called at the end of every run, also if the run ended before the first step of the device or between two steps. No work is pending
    /// at that time.
    fn end_run(&mut self) {}

    /// Whether the device can use this tensor in device memory ([`Tensor::is_remote`]). Usually a device accepts only its own memory. A
    /// tensor in device memory has no bytes in [`DeviceIo`]; see [`Tensor::in_remote`].
    fn accepts_remote(&self, _tensor: &Tensor) -> bool {
        false
    }

    /// The execution times of the model's nodes in the latest run.
    ///
    /// # Errors
    /// Returns `Config` if the model was compiled without [`Config::profiling`]; `Unsupported` if the engine does not report times.
    fn profiling_info(&self) -> Result<Vec<NodeTime>> {
        Err(Error::new(ErrorKind::Unsupported, "this device does not report the times of nodes; `step_times` reports the times of steps"))
    }
}

/// The error that [`DeviceRequest::profiling_info`] returns if the model was compiled without profiling.
pub fn profiling_is_off() -> Error {
    Error::new(
        ErrorKind::Config,
        "the times of nodes were not measured: compile the model with `Config { profiling: true, ..Config::default() }`",
    )
}
