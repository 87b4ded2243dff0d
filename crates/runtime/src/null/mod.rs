//! The device `NULL`, which computes nothing. A script sets its outputs, blocks its runs, lets them fail, and counts them. Use this device
//! to test the code around an engine, and to measure a pipeline without inference.

mod memory;
mod model;
mod request;
mod script;

use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use memory::NullMemory;
pub use script::{Gate, Script};

use crate::device::{Device, DeviceInfo, DeviceModel};
use crate::executor::{Executor, Executors};
use crate::{Config, ContextParams, Error, ErrorKind, Model, ModelInfo, ModelSource, RemoteContext, Result};

/// The device `NULL`. The device of [`NullDevice::default`] writes zeros. A test can pass a [`Script`].
#[derive(Debug, Clone)]
pub struct NullDevice {
    name: String,
    script: Arc<Script>,
}

impl NullDevice {
    /// Creates a device that follows the script.
    pub fn new(script: Arc<Script>) -> Self {
        Self::instance("NULL", script)
    }

    /// Creates one of several devices with different names, such as `NULL.0` and `NULL.1`. If the script requires a waiter thread, each of
    /// these devices has its own thread.
    pub fn instance(name: &str, script: Arc<Script>) -> Self {
        Self { name: name.to_owned(), script }
    }
}

impl Default for NullDevice {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl Device for NullDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { description: "computes nothing: outputs are zeros; for tests".to_owned(), properties: Vec::new(), missing: None }
    }

    fn read_model(&self, _source: &ModelSource) -> Result<ModelInfo> {
        Err(Error::new(ErrorKind::Unsupported, "device NULL cannot read models"))
    }

    fn compile(&self, model: &Model, config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>> {
        self.script.n_compiled.fetch_add(1, Ordering::AcqRel);
        if let Some(gate) = &self.script.compile_gate {
            gate.pass();
        }
        let cpu: Arc<dyn Executor> = match &self.script.executor {
            Some(executor) => executor.clone(),
            None => executors.for_model(&self.name, config)?,
        };
        let waiter: Option<Arc<dyn Executor>> = match self.script.has_own_waiter && self.script.engine.is_none() {
            true => Some(executors.named(&format!("roiflow-{}-waiter", self.name), 1)?),
            false => None,
        };
        Ok(Arc::new(model::NullModel::new(model.info().clone(), self.script.clone(), config.clone(), cpu, waiter)))
    }

    fn default_context(&self) -> Result<RemoteContext> {
        self.create_context(&ContextParams::DeviceMemory { max_bytes: None })
    }

    fn create_context(&self, params: &ContextParams) -> Result<RemoteContext> {
        match params {
            ContextParams::SharedMemory => RemoteContext::shared_memory(self.name()),
            ContextParams::DeviceMemory { max_bytes } => {
                Ok(RemoteContext::new(self.name(), Arc::new(memory::Room::new(self.name(), *max_bytes))))
            }
        }
    }
}
