//! `NULL`: no arithmetic. Scripted outputs, gates, failures and counters, for tests of everything around an engine and for
//! trying the plumbing of a pipeline.

mod model;
mod request;
mod script;

use std::path::Path;
use std::sync::Arc;

pub use script::{Gate, Script};

use crate::runtime::device::{Device, DeviceInfo, DeviceModel};
use crate::runtime::executor::Executors;
use crate::runtime::{Config, Error, ErrorKind, Model, ModelInfo, Result};

/// The device. [`NullDevice::default`] writes zeros; a test gives a [`Script`].
#[derive(Debug, Clone, Default)]
pub struct NullDevice {
    script: Arc<Script>,
}

impl NullDevice {
    /// A device that does what the script says.
    pub fn new(script: Arc<Script>) -> Self {
        Self { script }
    }
}

impl Device for NullDevice {
    fn name(&self) -> &str {
        "NULL"
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { description: "computes nothing: outputs are zeros; for tests".to_owned(), properties: Vec::new(), missing: None }
    }

    fn read_model(&self, _path: &Path) -> Result<ModelInfo> {
        Err(Error::new(ErrorKind::Unsupported, "device NULL reads no files"))
    }

    fn compile(&self, model: &Model, _config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>> {
        Ok(Arc::new(model::NullModel::new(model.info().clone(), self.script.clone(), executors)?))
    }
}
