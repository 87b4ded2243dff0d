//! What a device implements: three object-safe traits, one per stage of a model's life.
//!
//! The runtime validates what it passes down (element types, static shapes, leases); a device reports only what nobody could
//! foresee.

use std::sync::Arc;

pub use super::batching::Gathering;
pub use super::completion::Completion;
use super::executor::{Executor, Executors};
use super::io::DeviceIo;
use super::steps::CancelToken;
use super::{Config, ContextParams, Error, ErrorKind, Ignored, Model, ModelInfo, ModelSource, NodeTime, RemoteContext, Result};
use crate::tensor::{Shape, Tensor};

/// What a device says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// One line for people: engine, version.
    pub description: String,
    /// Key and value pairs for people and scripts.
    pub properties: Vec<(&'static str, String)>,
    /// Why it can't be used on this machine; `None` if it can.
    pub missing: Option<Missing>,
}

/// Why a device can't be used, and what would change that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What was looked for, where, and what was found instead.
    pub reason: String,
    /// The command that installs what is missing.
    pub install: Option<&'static str>,
}

impl Missing {
    /// The error of everything that needs the device with this name.
    pub fn error(&self, device: &str) -> Error {
        let install = self.install.map(|command| format!("; install it with `{command}`")).unwrap_or_default();
        Error::new(ErrorKind::Unsupported, format!("device {device} is not available: {}{install}", self.reason))
    }
}

/// An engine that runs models.
pub trait Device: Send + Sync {
    /// The name by which users choose it: `CPU`, `NULL`.
    fn name(&self) -> &str;

    /// What it is.
    fn info(&self) -> DeviceInfo;

    /// Reads ports and metadata of a model. What its format is, a file says by its ending, and bytes by how they begin.
    ///
    /// # Errors
    /// `Io` if the file can't be read, `Model` if it is not a model of a format that the device knows, `Unsupported` if the
    /// device reads no such source: then the next device is asked.
    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo>;

    /// Makes the model ready to run. `executors` are shared by all devices of the process.
    ///
    /// # Errors
    /// `Model` if the device can't run it; the message names the operator or port.
    fn compile(&self, model: &Model, config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>>;

    /// As [`Device::compile`], for a caller that can use a compiled model only if `accept` finds nothing wrong with its ports. A device
    /// that chooses among others goes on to the next one where it does.
    ///
    /// # Errors
    /// As there, and those of `accept`.
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

    /// Loads what every model needs, where that takes time; whether the device can be used. What is wrong is told by who compiles.
    fn prepare(&self) -> bool {
        self.info().missing.is_none()
    }

    /// What a further compiled model takes, where requests that run side by side are faster if each has one of its own, made for one
    /// request of one thread: about as many bytes as the weights. `None` where they are not, or where that is not known.
    fn copy_bytes(&self, _model: &Model) -> Option<u64> {
        None
    }

    /// The device's own memory.
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

    /// Memory as `params` say.
    ///
    /// # Errors
    /// `Unsupported` if the device can't use such memory.
    fn create_context(&self, params: &ContextParams) -> Result<RemoteContext> {
        match params {
            ContextParams::SharedMemory => RemoteContext::shared_memory(self.name()),
            ContextParams::DeviceMemory { .. } => self.default_context(),
        }
    }
}

/// The devices of one engine, whose names begin with the same word: `ORT.CPU`, `ORT.CUDA`. The engine is looked for, and asked
/// what it has, only when somebody wants to know.
pub trait DeviceFamily: Send + Sync {
    /// What stands before the dot.
    fn prefix(&self) -> &str;

    /// The devices that the engine has on this machine; without the engine those that users would look for, as missing.
    fn devices(&self) -> Vec<Arc<dyn Device>>;

    /// The device with this name, prefix included; it may turn out to be missing when it is used.
    fn device(&self, name: &str) -> Arc<dyn Device>;

    /// As [`Device::read_model`], for sources that no other device reads.
    ///
    /// # Errors
    /// As there.
    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo>;
}

/// One step that a device declares.
#[derive(Debug, Clone)]
pub struct DeviceStep {
    /// For profiles and traces.
    pub name: &'static str,
    /// Who runs it.
    pub executor: Arc<dyn Executor>,
}

/// A compiled model.
pub trait DeviceModel: Send + Sync {
    /// The ports as compiled.
    fn info(&self) -> &ModelInfo;

    /// The device that runs it, where that is another one than was asked for.
    fn device(&self) -> Option<&str> {
        None
    }

    /// The options that the caller gave and that change nothing here.
    fn ignored(&self) -> Vec<Ignored> {
        Vec::new()
    }

    /// The steps of a run, in order; at least one.
    fn steps(&self) -> Vec<DeviceStep>;

    /// How many requests keep the device busy.
    fn optimal_number_of_requests(&self) -> usize;

    /// Whether each row of a batch is computed as if it were alone, where the device knows that by itself. With `None`, the
    /// default, the runtime tries it out where it matters.
    fn rows_are_independent(&self) -> Option<bool> {
        None
    }

    /// Whether it computes the rows of a batch one after the other, so that a call of several takes as long as as many calls.
    fn computes_rows_in_turn(&self) -> bool {
        false
    }

    /// How the runtime gathers its runs. A device has none of its own; one that stands for others gives out theirs.
    fn gathering(&self) -> Option<&Gathering> {
        None
    }

    /// The state of one request.
    ///
    /// # Errors
    /// If the device has no room for it.
    fn create_request(&self) -> Result<Box<dyn DeviceRequest>>;
}

/// The device's part of one request.
pub trait DeviceRequest: Send {
    /// Memory for an input in which the device can run without a copy.
    ///
    /// # Errors
    /// If the shape overflows.
    fn allocate_input(&mut self, port_idx: usize, shape: Shape) -> Result<Tensor>;

    /// Runs the step with this index of [`DeviceModel::steps`].
    ///
    /// # Errors
    /// `Canceled` where the device notices `cancel`, `Device` where it fails.
    fn run_step(&mut self, step_idx: usize, io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()>;

    /// Told when work is done that a step starts and that goes on beside the processor; asked for once, when the request is made. `None`,
    /// the default: when a step has returned, its work is done.
    ///
    /// A step that starts work with [`Completion::start`] is done when [`Completion::complete`] is called, and the next one begins
    /// then, on the executor that it names. Until then the device may use the tensors that it got from [`DeviceIo`].
    fn completion(&self) -> Option<Arc<Completion>> {
        None
    }

    /// The run is over, in whatever way: also where it ended before the device's first step, or between two of them. No work is pending.
    fn end_run(&mut self) {}

    /// Whether the device runs on this tensor in a device's memory ([`Tensor::is_remote`]): in general, if it is its own. Such a
    /// tensor has no bytes in [`DeviceIo`]: see [`Tensor::in_remote`].
    fn accepts_remote(&self, _tensor: &Tensor) -> bool {
        false
    }

    /// What each node of the model did in the latest run.
    ///
    /// # Errors
    /// `Config` if the model was compiled without [`Config::profiling`], `Unsupported` if the engine does not tell.
    fn profiling_info(&self) -> Result<Vec<NodeTime>> {
        Err(Error::new(ErrorKind::Unsupported, "this device does not tell the times of nodes; `step_times` tells those of steps"))
    }
}

/// The error of a device that could tell the times of nodes and was not asked to when the model was compiled.
pub fn profiling_is_off() -> Error {
    Error::new(
        ErrorKind::Config,
        "the times of nodes were not taken: compile the model with `Config { profiling: true, ..Config::default() }`",
    )
}
