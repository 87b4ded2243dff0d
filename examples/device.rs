//! A custom device of an application. This one runs on the CPU without an engine, and knows one model by its ports. Accelerators with
//! their own drivers are added in the same way; elements, stages and requests then use them by name.
//!
//! ```text
//! cargo run --no-default-features --example device
//! ```

use std::path::Path;
use std::sync::Arc;

use roiflow::frame::{Frame, PixelFormat, Size};
use roiflow::runtime::device::{Device, DeviceInfo, DeviceModel, DeviceRequest, DeviceStep};
use roiflow::runtime::executor::Executors;
use roiflow::runtime::io::DeviceIo;
use roiflow::runtime::{CancelToken, Config, Error, ErrorKind, Model, ModelInfo, ModelSource, Result};
use roiflow::stages::{Engine, Stage, StageOptions};
use roiflow::tensor::{Shape, Tensor};

/// The device. It cannot read model files: another device reads the ports of a model.
struct Averager;

impl Device for Averager {
    fn name(&self) -> &str {
        "AVERAGER"
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { description: "compares the means of red, green and blue".to_owned(), properties: Vec::new(), missing: None }
    }

    fn read_model(&self, _source: &ModelSource) -> Result<ModelInfo> {
        Err(Error::new(ErrorKind::Unsupported, "device AVERAGER cannot read model files"))
    }

    fn compile(&self, model: &Model, config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>> {
        let info = model.info().clone();
        if info.inputs.len() != 1 || info.outputs.len() != 1 {
            return Err(Error::new(ErrorKind::Model, format!("device AVERAGER: expected one input and one output, got {info:?}")));
        }
        // One step on the CPU. An accelerator has a step that starts its work, and reports the end to a `Completion`.
        let steps = vec![DeviceStep { name: "average", executor: executors.for_model(self.name(), config)? }];
        Ok(Arc::new(Averages { info, steps }))
    }
}

/// A compiled model.
struct Averages {
    info: ModelInfo,
    steps: Vec<DeviceStep>,
}

impl DeviceModel for Averages {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn steps(&self) -> Vec<DeviceStep> {
        self.steps.clone()
    }

    fn optimal_number_of_requests(&self) -> usize {
        1
    }

    fn create_request(&self) -> Result<Box<dyn DeviceRequest>> {
        Ok(Box::new(AveragesRequest { info: self.info.clone() }))
    }
}

/// The state of one request on this device.
struct AveragesRequest {
    info: ModelInfo,
}

impl DeviceRequest for AveragesRequest {
    fn allocate_input(&mut self, port_idx: usize, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::new(self.info.inputs[port_idx].element, shape)?)
    }

    /// `image` [1, 3, height, width] -> `probabilities` [1, 4]: red, green, blue, another color.
    fn run_step(&mut self, _step_idx: usize, io: &mut DeviceIo<'_>, _cancel: &CancelToken) -> Result<()> {
        let image = io.input_tensor(0).view::<f32>()?.to_vec();
        let sums: Vec<f32> = image.chunks(image.len() / 3).map(|channel| channel.iter().sum()).collect();
        let all = sums.iter().sum::<f32>().max(f32::EPSILON);
        let probabilities = sums.iter().map(|sum| sum / all).chain([0.0]);
        let bytes: Vec<u8> = probabilities.flat_map(f32::to_le_bytes).collect();
        Ok(io.output(0, &[1, 4])?.copy_all_from_dense(&bytes)?)
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::new(roiflow::devices::core().clone());
    engine.register_device(Arc::new(Averager));
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/color.onnx");
    let options = StageOptions { model, device: Some("AVERAGER".to_owned()), engine, ..StageOptions::default() };
    let classifier = Stage::classifier(&options)?;
    let blue = Frame::from_packed(PixelFormat::Rgb, Size::new(2, 2), &[0, 0, 255].repeat(4))?;
    println!("on {}: {:?}", classifier.model().device(), classifier.classify(&blue)?);
    Ok(())
}
