//! The traits that a device implements: [`Device`], [`DeviceModel`] and [`DeviceRequest`]. All three are object-safe.
//!
//! The runtime checks element types, static shapes and leases before it calls a device. So a device needs to report only errors that the
//! runtime cannot detect in advance.

use std::sync::Arc;

pub use super::batching::Gathering;
pub use super::completion::Completion;
use super::executor::{Executor, Executors};
use super::io::DeviceIo;
use super::steps::CancelToken;
use super::{Config, ContextParams, Error, ErrorKind, Ignored, Model, ModelInfo, ModelSource, NodeTime, RemoteContext, Result};
use crate::tensor::{Shape, Tensor};

/// The description of a device, for people and scripts.
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
    /// A text for people: which files were searched, in which folders, and what was found instead.
    pub reason: String,
    /// The command that installs the missing software.
    pub install: Option<&'static str>,
}

impl Missing {
    /// Returns the error of an operation that needs the missing device `device`.
    pub fn error(&self, device: &str) -> Error {
        let install = self.install.map(|command| format!("; install it with `{command}`")).unwrap_or_default();
        Error::new(ErrorKind::Unsupported, format!("device {device} is not available: {}{install}", self.reason))
    }
}

/// An engine that runs models.
pub trait Device: Send + Sync {
    /// Returns the name by which users choose the device, for example `CPU` or `NULL`.
    fn name(&self) -> &str;

    /// Returns the description, properties and availability of the device.
    fn info(&self) -> DeviceInfo;

    /// Returns the prefix of the device's own options in [`Config::engine_options`], if it has such options.
    fn option_prefix(&self) -> Option<&str> {
        None
    }

    /// Reads the ports and metadata of a model. The device recognizes the format of a file by its extension, and the format of bytes by the
    /// first of them.
    ///
    /// # Errors
    /// Returns `Io` if the file cannot be read. Returns `Model` if the device does not know the format. Returns `Unsupported` if the device
    /// does not read this kind of source. After any of these errors, the runtime tries the next device.
    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo>;

    /// Compiles a model. All devices of the core share `executors`.
    ///
    /// # Errors
    /// Returns `Model` if the device cannot run the model. The message names the operator or port that is not supported.
    fn compile(&self, model: &Model, config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>>;

    /// Same as [`Device::compile`], but calls `accept` to check the ports of the compiled model. If `accept` fails, a device that delegates
    /// to other devices tries the next device.
    ///
    /// # Errors
    /// Returns the errors of [`Device::compile`] and of `accept`.
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

    /// Loads the engine now, if the device loads its engine only when it is needed. Returns whether the device can be used. If it cannot, a
    /// later `compile` returns the reason as an error.
    fn prepare(&self) -> bool {
        self.info().missing.is_none()
    }

    /// Returns the reason why results on this device differ from the arithmetic of the model's element types. Example: the engine computes
    /// `i64` in 32 bits. The default, `None`, means that the results do not differ. `AUTO` skips a device that returns a reason, unless it
    /// is the only device in the list of `AUTO`.
    ///
    /// Differences that come from the order of sums, or from options that the caller sets ([`Config::precision`]), do not count.
    fn inexact(&self, _model: &Model) -> Option<String> {
        None
    }

    /// Returns the approximate memory, in bytes, that another compiled copy of the model needs; usually the size of the weights. A device
    /// returns `Some` only if concurrent requests are faster when each has its own compiled copy (one request and one thread per copy). It
    /// returns `None` if they are not faster, or if it does not know.
    fn copy_bytes(&self, _model: &Model) -> Option<u64> {
        None
    }

    /// Returns the context for tensors in the device's own memory, like the default remote context of OpenVINO.
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

    /// Creates a context for tensors in the memory that `params` describes.
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

/// The devices of one engine. The names of these devices share a prefix, for example `ORT.CPU` and `ORT.CUDA`. The library of the engine is
/// searched and loaded only when it is needed.
pub trait DeviceFamily: Send + Sync {
    /// Returns the part of the device names before the dot.
    fn prefix(&self) -> &str;

    /// Returns the devices of the engine on this machine. If the engine is not installed, returns its usual devices, marked as missing.
    fn devices(&self) -> Vec<Arc<dyn Device>>;

    /// Returns the device with this full name, including the prefix. If the device is missing, using it returns an error.
    fn device(&self, name: &str) -> Arc<dyn Device>;

    /// Same as [`Device::read_model`]. Called only for sources that no registered device could read.
    ///
    /// # Errors
    /// Returns the errors of [`Device::read_model`].
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

/// A compiled model, as a device implements it.
pub trait DeviceModel: Send + Sync {
    /// Returns the ports of the compiled model.
    fn info(&self) -> &ModelInfo;

    /// Returns the name of the device that runs the model, if it differs from the name with which the model was compiled.
    fn device(&self) -> Option<&str> {
        None
    }

    /// Returns the options that were set but have no effect.
    fn ignored(&self) -> Vec<Ignored> {
        Vec::new()
    }

    /// Returns the steps of a run, in order. There must be at least one.
    fn steps(&self) -> Vec<DeviceStep>;

    /// Returns the number of concurrent requests that is optimal for this model and device.
    fn optimal_number_of_requests(&self) -> usize;

    /// Returns whether the outputs of each batch item depend on that item only. The default, `None`, means that the device does not know.
    /// If the runtime needs to know, it then tests the model with a few runs, provided that [`DeviceModel::rows_can_be_tried`] is true.
    fn rows_are_independent(&self) -> Option<bool> {
        None
    }

    /// Returns whether a few runs may answer what [`DeviceModel::rows_are_independent`] does not. A device that knows nothing about the
    /// computation returns `false`. The runtime then batches runs only with [`Config::batch_independent`].
    fn rows_can_be_tried(&self) -> bool {
        true
    }

    /// Returns whether batch items are computed sequentially, so that batching does not save time.
    fn computes_rows_in_turn(&self) -> bool {
        false
    }

    /// Returns how the runs of this model are batched. Only a device that delegates implements this method. It returns the value from the
    /// model of the device to which it delegates.
    fn gathering(&self) -> Option<&Gathering> {
        None
    }

    /// Creates the device's part of a request.
    ///
    /// # Errors
    /// May return any error, for example if the device has no resources for another request.
    fn create_request(&self) -> Result<Box<dyn DeviceRequest>>;
}

/// The device's part of one request.
pub trait DeviceRequest: Send {
    /// Allocates an input tensor that the device can use without a copy.
    ///
    /// # Errors
    /// Returns `Tensor` if the number of bytes of this shape overflows.
    fn allocate_input(&mut self, port_idx: usize, shape: Shape) -> Result<Tensor>;

    /// Runs the step at this index in [`DeviceModel::steps`].
    ///
    /// # Errors
    /// Returns `Canceled` if the device noticed that the run was canceled. Returns `Device` if the engine failed.
    fn run_step(&mut self, step_idx: usize, io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()>;

    /// Returns the completion of asynchronous work. The runtime calls this method once, when the request is created. The default, `None`,
    /// means that the work of a step is complete when the step returns.
    ///
    /// A step that starts work with [`Completion::start`] is complete only when [`Completion::complete`] is called. Until then, the device
    /// may use the tensors of [`DeviceIo`]. After that, the next step starts on its executor.
    fn completion(&self) -> Option<Arc<Completion>> {
        None
    }

    /// Called at the end of every run, even if the run ended before the first step of the device or between two of its steps. The engine
    /// has no pending work then.
    fn end_run(&mut self) {}

    /// Returns whether the device can use this tensor, which is in device memory ([`Tensor::is_remote`]). Usually a device accepts only its
    /// own memory. [`DeviceIo`] has no bytes of such a tensor; use [`Tensor::in_remote`].
    fn accepts_remote(&self, _tensor: &Tensor) -> bool {
        false
    }

    /// Returns whether the device may crash if other code writes this input during a run, although its values are no integers: it counts
    /// or sorts the values, and relies on the result. A run then copies the input if other code may write it.
    fn counts_with(&self, _port_idx: usize) -> bool {
        false
    }

    /// Returns the execution times of the model's nodes in the latest run.
    ///
    /// # Errors
    /// Returns `Config` if the model was compiled without [`Config::profiling`]. Returns `Unsupported` if the engine does not report times.
    fn profiling_info(&self) -> Result<Vec<NodeTime>> {
        Err(Error::new(ErrorKind::Unsupported, "this device does not report the times of nodes; `step_times` reports the times of steps"))
    }
}

/// Creates the error that [`DeviceRequest::profiling_info`] returns if the model was compiled without profiling.
pub fn profiling_is_off() -> Error {
    Error::new(
        ErrorKind::Config,
        "the times of nodes were not measured: compile the model with `Config { profiling: true, ..Config::default() }`, \
         in Python with `{\"PERF_COUNT\": True}`",
    )
}
