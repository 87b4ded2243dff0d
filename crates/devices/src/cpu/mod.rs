//! The device `CPU`: the built-in engine tract. It is pure Rust and always available. No other module uses the tract crate.
//!
//! - It reads ONNX. It cannot run quantized graphs with `u8` inputs, and it lacks some control-flow operators. The error names the node.
//! - The engine compiles a plan for each set of input shapes. If the first axis is dynamic, independent items of a batch run one by one on
//!   the plan for one item, because a plan with a symbolic batch size is two to five times slower, or fails.
//! - If the operators of the model do not prove that batch items are independent (see `graph`), each batch size gets its own plan.
//! - A run whose input has an axis of length 0 returns an error.
//! - Input memory that the request allocated is memory of the engine, which reads it without a copy. A tensor that the caller set is copied
//!   once. Each batch item is copied once as well. The engine allocates its outputs, so each output is copied once into the tensor of the
//!   request.
//! - Denormal weights are set to zero when a model is compiled, because models with many of them run slowly; see `denormals`.
//! - Between nodes, the engine checks whether the run was canceled. With `Config::profiling`, it also measures the time of each node.

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

/// The device `CPU`.
#[derive(Debug, Clone, Copy)]
pub struct CpuDevice;

impl Device for CpuDevice {
    fn name(&self) -> &str {
        "CPU"
    }

    fn info(&self) -> DeviceInfo {
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        DeviceInfo {
            description: "built-in engine (tract, pure Rust), reads ONNX".to_owned(),
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
                format!("device CPU reads ONNX files, but `{source}` has another format; use OPENVINO.CPU or AUTO"),
            )),
            source => Ok(Arc::new(model::CpuModel::compile(source, model.info(), config, executors.for_model(self.name(), config)?)?)),
        }
    }
}
