//! The traits that a device implements: [`Device`], [`DeviceModel`] and [`DeviceRequest`]. All are object-safe.
//!
//! The runtime validates element types, static shapes and leases before it calls a device. A device reports only errors that cannot be
//! foreseen.

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
    /// One line for people: engine, version.
    pub description: String,
    /// Key and value pairs for people and scripts.
    pub properties: Vec<(&'static str, String)>,
    /// Why it cannot be used on this machine; `None` if it can.
    pub missing: Option<Missing>,
}

/// Why a device cannot be used, and how to install it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What was searched, where, and what was found instead.
    pub reason: String,
    /// The command that installs what is missing.
    pub install: Option<&'static str>,
}

impl Missing {
    /// The error of operations that need the device with this name.
    pub fn error(&self, device: &str) -> Error {
        let install = self.install.map(|command| format!("; install it with `{command}`")).unwrap_or_default();
        Error::new(ErrorKind::Unsupported, format!("device {device} is not available: {}{install}", self.reason))
    }
}

/// An engine that runs models.
pub trait Device: Send + Sync {
    /// The name by which users choose it: `CPU`, `NULL`.
    fn name(&self) -> &str;

    /// Description, properties, and availability.
    fn info(&self) -> DeviceInfo;

    /// Reads ports and metadata of a model. The format of a file is known by its ending, that of bytes by their first bytes.
    ///
    /// # Errors
    /// `Io` if the file cannot be read; `Model` if the device does not know the format; `Unsupported` if the device does not read such
    /// sources. Then the next device is tried.
    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo>;

    /// Compiles a model. `executors` are shared by all devices of the process.
    ///
    /// # Errors
    /// `Model` if the device cannot run it; the message names the operator or port.
    fn compile(&self, model: &Model, config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>>;

    /// As [`Device::compile`], with a check of the compiled ports. If `accept` fails, a device that delegates to others tries the next one.
    ///
    /// # Errors
    /// As [`Device::compile`], and the errors of `accept`.
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

    /// Loads the engine, for devices where loading takes time. Returns whether the device can be used; compiling reports the error.
    fn prepare(&self) -> bool {
        self.info().missing.is_none()
    }

    /// Why results on this device differ from the arithmetic of the model's element types, for example because the engine computes `i64` in
    /// 32 bits. `None`, the default: they do not. `AUTO` skips such a device.
    ///
    /// Rounding in the order of sums, and options that the caller sets ([`Config::precision`]), do not count.
    fn inexact(&self, _model: &Model) -> Option<String> {
        None
    }

    /// Memory of a further compiled model, about the size of the weights, if concurrent requests are faster with a separate compiled model
    /// each (one request, one thread). `None` if they are not, or it is unknown.
    fn copy_bytes(&self, _model: &Model) -> Option<u64> {
        None
    }

    /// The context of the device's own memory.
    ///
    /// # Errors
    /// `Unsupported` if it has none.
    fn default_context(&self) -> Result<RemoteContext> {
        let message = format!(
            "device {} has no memory of its own: it runs on plain tensors, and on shared memory (ContextParams::SharedMemory)",
            self.name()
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// A context of memory with these parameters.
    ///
    /// # Errors
    /// `Unsupported` if the device cannot use such memory.
    fn create_context(&self, params: &ContextParams) -> Result<RemoteContext> {
        match params {
            ContextParams::SharedMemory => RemoteContext::shared_memory(self.name()),
            ContextParams::DeviceMemory { .. } => self.default_context(),
        }
    }
}

/// The devices of one engine, whose names share a prefix: `ORT.CPU`, `ORT.CUDA`. The engine is searched and loaded only when it is needed.
pub trait DeviceFamily: Send + Sync {
    /// The prefix: the part of the names before the dot.
    fn prefix(&self) -> &str;

    /// The devices of the engine on this machine; without the engine, its usual devices, marked as missing.
    fn devices(&self) -> Vec<Arc<dyn Device>>;

    /// The device with this name, including the prefix. It may be missing, which its use reports.
    fn device(&self, name: &str) -> Arc<dyn Device>;

    /// As [`Device::read_model`], for sources that no other device reads.
    ///
    /// # Errors
    /// As [`Device::read_model`].
    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo>;
}

/// A step of a run that a device declares.
#[derive(Debug, Clone)]
pub struct DeviceStep {
    /// For profiles and traces.
    pub name: &'static str,
    /// The executor that runs it.
    pub executor: Arc<dyn Executor>,
}

/// A compiled model.
pub trait DeviceModel: Send + Sync {
    /// The ports as compiled.
    fn info(&self) -> &ModelInfo;

    /// The device that runs it, if it differs from the requested one.
    fn device(&self) -> Option<&str> {
        None
    }

    /// The options that were set and have no effect.
    fn ignored(&self) -> Vec<Ignored> {
        Vec::new()
    }

    /// The steps of a run, in order; at least one.
    fn steps(&self) -> Vec<DeviceStep>;

    /// The optimal number of requests.
    fn optimal_number_of_requests(&self) -> usize;

    /// Whether batch items are independent of each other, if the device knows it. With `None`, the default, the runtime tests it if
    /// necessary.
    fn rows_are_independent(&self) -> Option<bool> {
        None
    }

    /// Whether batch items run sequentially, so that batching does not save time.
    fn computes_rows_in_turn(&self) -> bool {
        false
    }

    /// How the runtime batches its runs. Only devices that delegate to others return something: the batching of the delegate.
    fn gathering(&self) -> Option<&Gathering> {
        None
    }

    /// Makes the device's part of a request.
    ///
    /// # Errors
    /// If the device has no resources for it.
    fn create_request(&self) -> Result<Box<dyn DeviceRequest>>;
}

/// The device's part of one request.
pub trait DeviceRequest: Send {
    /// Allocates an input tensor that the device can use without a copy.
    ///
    /// # Errors
    /// If the shape overflows.
    fn allocate_input(&mut self, port_idx: usize, shape: Shape) -> Result<Tensor>;

    /// Runs the step with this index of [`DeviceModel::steps`].
    ///
    /// # Errors
    /// `Canceled` where the device notices `cancel`, `Device` where it fails.
    fn run_step(&mut self, step_idx: usize, io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()>;

    /// The completion of asynchronous work, queried once when the request is made. `None`, the default: the work of a step is complete when
    /// it returns.
    ///
    /// A step that starts work with [`Completion::start`] is complete when [`Completion::complete`] is called. Then the next step starts on
    /// its executor. Until then the device may use the tensors of [`DeviceIo`].
    fn completion(&self) -> Option<Arc<Completion>> {
        None
    }

    /// Called at the end of every run, also if it ended before the device's first step or between two steps. No work is pending.
    fn end_run(&mut self) {}

    /// Whether the device can use this tensor in device memory ([`Tensor::is_remote`]), usually if the memory is its own. Such a tensor has
    /// no bytes in [`DeviceIo`]: see [`Tensor::in_remote`].
    fn accepts_remote(&self, _tensor: &Tensor) -> bool {
        false
    }

    /// Times of the nodes in the latest run.
    ///
    /// # Errors
    /// `Config` if the model was compiled without [`Config::profiling`]; `Unsupported` if the engine does not report times.
    fn profiling_info(&self) -> Result<Vec<NodeTime>> {
        Err(Error::new(ErrorKind::Unsupported, "this device does not tell the times of nodes; `step_times` tells those of steps"))
    }
}

/// The error of [`DeviceRequest::profiling_info`] for a model that was compiled without profiling.
pub fn profiling_is_off() -> Error {
    Error::new(
        ErrorKind::Config,
        "the times of nodes were not taken: compile the model with `Config { profiling: true, ..Config::default() }`",
    )
}
