//! A model that is ready to run on one device.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::device::{DeviceModel, DeviceStep};
use super::executor::{Executor, Executors, Inline};
use super::request_pool::RequestPool;
use super::steps::{Body, InputSlot, OutputSlot, RunIo, Step, StepTask};
use super::{Config, InferRequest, Inputs, ModelInfo, Port, Result};
use crate::tensor::Tensor;

/// A compiled model. Cheap to clone; makes any number of independent requests.
#[derive(Clone)]
pub struct CompiledModel {
    shared: Arc<CompiledShared>,
    /// The requests of [`CompiledModel::infer`]. They hold `shared`, so they must not lie in it.
    direct: Arc<OnceLock<RequestPool>>,
}

pub(crate) struct CompiledShared {
    pub(crate) model: Arc<dyn DeviceModel>,
    pub(crate) info: ModelInfo,
    pub(crate) executors: Executors,
    steps: Vec<DeviceStep>,
    pub(crate) device: String,
    pub(crate) name: String,
    /// What the caller asked for.
    config: Config,
}

impl CompiledModel {
    pub(crate) fn new(device: &str, name: String, model: Arc<dyn DeviceModel>, config: Config, executors: Executors) -> Self {
        let (info, steps) = (model.info().clone(), model.steps());
        Self::from_shared(Arc::new(CompiledShared { model, info, executors, steps, device: device.to_owned(), name, config }))
    }

    pub(crate) fn from_shared(shared: Arc<CompiledShared>) -> Self {
        Self { shared, direct: Arc::default() }
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> &[Port] {
        &self.shared.info.inputs
    }

    /// The outputs, in order.
    pub fn outputs(&self) -> &[Port] {
        &self.shared.info.outputs
    }

    /// Ports and metadata.
    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    /// The device that it was compiled for.
    pub fn device(&self) -> &str {
        &self.shared.device
    }

    /// What to call it in messages.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// How many requests to run at once: as many as [`Config::n_requests`] says, else as many as keep the device busy.
    pub fn optimal_number_of_requests(&self) -> usize {
        self.shared.config.n_requests.unwrap_or_else(|| self.shared.model.optimal_number_of_requests()).max(1)
    }

    /// A new request with tensors of its own.
    ///
    /// # Errors
    /// `Device` if there are too many requests, or no memory for its tensors.
    pub fn create_infer_request(&self) -> Result<InferRequest> {
        let shared = &self.shared;
        let ticket = shared.executors.admit()?;
        let mut device = shared.model.create_request()?;
        let mut inputs = Vec::with_capacity(shared.info.inputs.len());
        for (input_idx, port) in shared.info.inputs.iter().enumerate() {
            // What is open is empty until a tensor is set or filled.
            let shape = port.shape.with_dynamic(|_| Some(0)).expect("no extent is left open");
            let tensor = device.allocate_input(input_idx, shape)?;
            inputs.push(InputSlot { port: port.clone(), tensor, own: true, fill: None, lease: None });
        }
        let mut outputs = Vec::with_capacity(shared.info.outputs.len());
        for port in &shared.info.outputs {
            let shape = port.shape.with_dynamic(|_| Some(0)).expect("no extent is left open");
            outputs.push(OutputSlot { port: port.clone(), tensor: Tensor::new(port.element, shape)?, lease: None, remote: None });
        }
        let first: Arc<dyn Executor> = match shared.steps.first() {
            // The fill joins the device's first step where that runs on the processor's pool, and runs there otherwise.
            Some(step) if step.executor.is_inline() => Arc::new(Inline),
            _ => shared.executors.cpu()?,
        };
        let mut steps = vec![Step { name: "fill".into(), executor: first, task: StepTask::Inputs, duration: Duration::ZERO }];
        steps.extend(shared.steps.iter().enumerate().map(|(step_idx, step)| Step {
            name: step.name.into(),
            executor: step.executor.clone(),
            task: StepTask::Device(step_idx),
            duration: Duration::ZERO,
        }));
        let body = Body {
            device,
            io: RunIo { inputs, outputs },
            steps,
            next_step_idx: 0,
            run: 0,
            outcome: Ok(()),
            calls_back: false,
            started: Instant::now(),
            span: tracing::Span::none(),
            frame: None,
        };
        Ok(InferRequest::new(shared.clone(), Box::new(body), ticket))
    }

    /// Runs once on the caller's thread, on a request that is kept for the next call; safe from many threads at once. Gives
    /// one tensor per output, the caller's own.
    ///
    /// # Errors
    /// As [`InferRequest::infer`].
    pub fn infer(&self, inputs: impl Inputs) -> Result<Vec<Tensor>> {
        let request = self.direct.get_or_init(|| RequestPool::new(self.optimal_number_of_requests())).take_or_create(self)?;
        request.infer(inputs)?;
        let mut results = Vec::with_capacity(self.outputs().len());
        for output_idx in 0..self.outputs().len() {
            let output = request.output_tensor(output_idx)?;
            let result = Tensor::new(output.element(), output.shape())?;
            output.copy_to(&result)?;
            results.push(result);
        }
        Ok(results)
    }

    /// Frees the requests that [`CompiledModel::infer`] keeps.
    pub fn release(&self) {
        if let Some(direct) = self.direct.get() {
            direct.clear();
        }
    }
}

impl fmt::Debug for CompiledModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompiledModel({} on {})", self.name(), self.device())
    }
}
