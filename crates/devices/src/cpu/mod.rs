//! `CPU`: the embedded engine, tract. Pure Rust, always available. No other module uses that crate.
//!
//! - Reads ONNX. It cannot run quantized graphs with `u8` inputs, and some control flow; the error names the node.
//! - A plan is compiled for each set of input shapes. If the first axis is dynamic, batch items run one by one on the plan for one: a symbolic
//!   batch is two to five times slower, or fails. The first batch of more than one item runs in both ways, as a test of whether the items
//!   are independent. If they are not, each batch size gets a plan of its own.
//! - Inputs with an extent of 0 are refused.
//! - Inputs that the request allocated are tensors of the engine, and are not copied. A tensor that the caller set, and batch items, are copied
//!   once. The engine allocates its outputs, so they are copied once into those of the request.
//! - Denormal weights are set to zero when a model is compiled: models full of them run faster, see `denormals`.
//! - A cancel is checked between nodes. With `Config::profiling`, the times of nodes are taken there.

mod denormals;
mod model;
mod profile;
mod request;
mod scratch;

use std::sync::Arc;

use crate::engine::{no_source, other_format};
use crate::runtime::device::{Device, DeviceInfo, DeviceModel};
use crate::runtime::executor::Executors;
use crate::runtime::{Config, Error, ErrorKind, Model, ModelInfo, ModelSource, Result};

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
            missing: None,
        }
    }

    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo> {
        match source {
            ModelSource::File(_) | ModelSource::Bytes(_) if other_format(source).is_none() => model::OnnxFile::read_info(source),
            _ => Err(Error::new(ErrorKind::Unsupported, "device CPU reads ONNX files")),
        }
    }

    fn compile(&self, model: &Model, config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>> {
        match model.source() {
            ModelSource::Remote(_) | ModelSource::Ports => Err(no_source(self.name(), model.source())),
            source if other_format(source).is_some() => Err(Error::new(
                ErrorKind::Model,
                format!("device CPU reads ONNX files, `{source}` is of another format; use OPENVINO.CPU or AUTO"),
            )),
            source => Ok(Arc::new(model::CpuModel::compile(source, model.info(), config, executors.for_model(self.name(), config)?)?)),
        }
    }
}
