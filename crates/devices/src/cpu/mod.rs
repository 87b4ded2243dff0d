//! `CPU`: the embedded engine, tract. Pure Rust, always there. Nobody else names that crate.
//!
//! - Reads ONNX. Quantized graphs with `u8` inputs and some control flow are beyond it; the error names the node.
//! - A plan is compiled per set of input shapes. Where the first axis is open, a batch runs row by row on the plan of one: a
//!   symbolic batch is two to five times slower, or fails. Whether it is a batch is tried on the first one with more than one
//!   row, which runs in both ways; a model that mixes its rows gets a plan for each length.
//! - Inputs with an extent of 0 are refused.
//! - Inputs that the request allocated are the engine's own tensors and go in without a copy; a tensor that the user set, and
//!   the rows of a batch, are copied once. The engine allocates its outputs, so they are copied once into the request's.
//! - Denormal weights are set to zero when a model is compiled: models full of them run faster, see `denormals`.
//! - Cancel is looked at between nodes, and their times are taken there if they are asked for.

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
