//! `CPU`: the embedded engine, tract. Pure Rust, always there. Nobody else names that crate.
//!
//! - Reads ONNX. Quantized graphs with `u8` inputs and some control flow are beyond it; the error names the node.
//! - A plan is compiled per set of input shapes. Where the first axis is open, a batch runs row by row on the plan of one: a
//!   symbolic batch is two to five times slower, or fails. Whether it is a batch is tried on the first one with more than one
//!   row, which runs in both ways; a model that mixes its rows gets a plan for each length.
//! - Inputs with an extent of 0 are refused.
//! - Inputs that the request allocated are the engine's own tensors and go in without a copy; a tensor that the user set, and
//!   the rows of a batch, are copied once. The engine allocates its outputs, so they are copied once into the request's.
//! - Denormal numbers are taken for zero inside the engine: models full of them run three times faster, see `denormals`.
//! - Cancel is looked at between nodes.

mod denormals;
mod model;
mod request;

use std::path::Path;
use std::sync::Arc;

use crate::runtime::device::{Device, DeviceInfo, DeviceModel};
use crate::runtime::executor::Executors;
use crate::runtime::model::ModelSource;
use crate::runtime::{Config, Error, ErrorKind, Model, ModelInfo, Result};

/// The device.
#[derive(Debug, Clone, Copy)]
pub struct CpuDevice;

impl Device for CpuDevice {
    fn name(&self) -> &str {
        "CPU"
    }

    fn info(&self) -> DeviceInfo {
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        DeviceInfo {
            description: "embedded engine (tract, pure Rust), reads ONNX".to_owned(),
            properties: vec![("engine", "tract 0.23".to_owned()), ("threads", n_threads.to_string())],
        }
    }

    fn read_model(&self, path: &Path) -> Result<ModelInfo> {
        model::OnnxFile::read(path).map(|file| file.info)
    }

    fn compile(&self, model: &Model, config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>> {
        match model.source() {
            ModelSource::File(path) => {
                Ok(Arc::new(model::CpuModel::compile(path, model.info(), executors.for_model(self.name(), config)?)?))
            }
            ModelSource::Ports => Err(Error::new(ErrorKind::Unsupported, "device CPU runs model files; this model is ports alone")),
        }
    }
}
