//! A model compiled for one device.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::config::Properties;
use super::device::{DeviceModel, DeviceStep};
use super::executor::{Executor, Executors, Inline};
use super::io::{InputSlot, OutputSlot, Places, RunIo};
use super::request_pool::{PooledRequest, RequestPool};
use super::steps::{Body, Step, StepTask};
use super::{Config, Error, ErrorKind, InferFuture, InferRequest, Inputs, Model, ModelInfo, Port, Result, Results, batching};
use crate::tensor::Tensor;

/// The name of the thread that calls callbacks if [`Config::callback_thread`] is set.
const CALLBACKS: &str = "roiflow-callbacks";

/// A compiled model. It creates any number of independent requests. Clones share the model.
#[derive(Clone)]
pub struct CompiledModel {
    shared: Arc<CompiledShared>,
    /// The requests for [`CompiledModel::infer`]. Each request holds `shared`. So the pool must not be a part of `shared`, because this
    /// reference cycle would never be freed.
    direct: Arc<OnceLock<RequestPool>>,
}

pub(crate) struct CompiledShared {
    pub(crate) model: Arc<dyn DeviceModel>,
    pub(crate) info: ModelInfo,
    /// A copy of `info.outputs` for [`Results`], which may outlive the model.
    pub(crate) outputs: Arc<[Port]>,
    /// The input ports of the variables, in the order of the variables.
    pub(crate) variables: Vec<Port>,
    places: Arc<Places>,
    pub(crate) executors: Executors,
    steps: Vec<DeviceStep>,
    pub(crate) device: String,
    pub(crate) name: String,
    /// The options with which the caller compiled the model.
    pub(crate) config: Config,
}

impl CompiledModel {
    pub(crate) fn new(device: &str, model: &Model, compiled: Arc<dyn DeviceModel>, config: Config, executors: Executors) -> Self {
        let (mut info, steps) = (compiled.info().clone(), compiled.steps());
        // A device does not know the axes that the caller declared, so take them from the model.
        info.inputs.iter_mut().zip(&model.info().inputs).for_each(|(port, said)| port.axes.clone_from(&said.axes));
        // Take the metadata from the file, because some engines do not report the metadata of a compiled model.
        info.metadata.clone_from(&model.info().metadata);
        let places = Arc::new(Places::new(info.inputs.len(), info.outputs.len(), model.variables()));
        let variables = model.variables().iter().map(|variable| info.inputs[variable.input_idx].clone()).collect();
        let (n_inputs, n_outputs) = places.n_visible();
        info.inputs = info.inputs.into_iter().zip(&places.inputs).filter(|(_, at)| **at < n_inputs).map(|(port, _)| port).collect();
        info.outputs = info.outputs.into_iter().zip(&places.outputs).filter(|(_, at)| **at < n_outputs).map(|(port, _)| port).collect();
        Self::from_shared(Arc::new(CompiledShared {
            model: compiled,
            outputs: info.outputs.as_slice().into(),
            info,
            variables,
            places,
            executors,
            steps,
            device: device.to_owned(),
            name: model.name(),
            config,
        }))
    }

    pub(crate) fn from_shared(shared: Arc<CompiledShared>) -> Self {
        Self { shared, direct: Arc::default() }
    }

    /// Returns the inputs, in order. Inputs of variables are not included.
    pub fn inputs(&self) -> &[Port] {
        &self.shared.info.inputs
    }

    /// Returns the outputs, in order. Outputs of variables are not included.
    pub fn outputs(&self) -> &[Port] {
        &self.shared.info.outputs
    }

    /// Returns the ports and metadata of the model. Ports of variables are not included.
    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    /// Returns the name of the device for which the model was compiled.
    pub fn device(&self) -> &str {
        &self.shared.device
    }

    /// Returns the name of the model for messages.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the optimal number of concurrent requests: [`Config::n_requests`] if set, otherwise the number that keeps the device busy.
    pub fn optimal_number_of_requests(&self) -> usize {
        self.shared.config.n_requests.unwrap_or_else(|| self.shared.model.optimal_number_of_requests()).max(1)
    }

    /// Returns whether the device computes batch items sequentially, so that batching does not save time.
    pub fn computes_rows_in_turn(&self) -> bool {
        self.shared.model.computes_rows_in_turn()
    }

    /// Checks that the model accepts up to `max_rows` independent batch items, as [`Core::compile_model`](super::Core::compile_model) does
    /// with a batch size above 1. The first axis of every input must be dynamic.
    ///
    /// # Errors
    /// Returns `Unsupported`, with the reason, if the items are not independent or the first axis is fixed. Also returns the errors of the
    /// runs.
    pub fn check_rows(&self, max_rows: usize) -> Result<()> {
        if !self.shared.variables.is_empty() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a request of a stateful model has one state, not one for each batch item; use batch size 1",
            ));
        }
        batching::check_rows(self, &*self.shared.model, max_rows)
    }

    /// Creates a request with its own tensors.
    ///
    /// # Errors
    /// Returns `Device` if too many requests exist. Returns `OutOfMemory`, with the number of bytes, if the tensors of the request cannot
    /// be allocated.
    pub fn create_infer_request(&self) -> Result<InferRequest> {
        let shared = &self.shared;
        let ticket = shared.executors.admit()?;
        let mut device = shared.model.create_request()?;
        let (device_info, places) = (shared.model.info(), &shared.places);
        let empty = |port: &Port| port.shape.with_dynamic(|_| Some(0)).expect("no extent is left open");
        let mut inputs = Vec::with_capacity(places.inputs.len());
        for (device_idx, port) in device_info.inputs.iter().enumerate() {
            // Inputs of dynamic shape have no elements until a tensor is set or a filler runs.
            let tensor = device.allocate_input(device_idx, empty(port))?;
            let port = Port { axes: shared.info.inputs.get(places.inputs[device_idx]).and_then(|port| port.axes.clone()), ..port.clone() };
            inputs.push((places.inputs[device_idx], InputSlot::new(port, device_idx, tensor)));
        }
        let mut outputs = Vec::with_capacity(places.outputs.len());
        for (device_idx, port) in device_info.outputs.iter().enumerate() {
            outputs.push((places.outputs[device_idx], OutputSlot::new(port.clone(), Tensor::new(port.element, empty(port))?)));
        }
        inputs.sort_by_key(|(slot_idx, _)| *slot_idx);
        outputs.sort_by_key(|(slot_idx, _)| *slot_idx);
        let io = RunIo {
            inputs: inputs.into_iter().map(|(_, slot)| slot).collect(),
            outputs: outputs.into_iter().map(|(_, slot)| slot).collect(),
            places: places.clone(),
            frame: None,
        };
        let first: Arc<dyn Executor> = match shared.steps.first() {
            // If the first step of the device is inline, it runs on the thread of the step before it. So `fill` is inline as well, and both
            // run as one task.
            Some(step) if step.executor.is_inline() => Arc::new(Inline),
            // Exclusive runs must keep the order of their starts. So `fill` runs on the executor of the device's first step, which has one
            // thread. On another executor, the `fill` of a later run could overtake the `fill` of this run.
            Some(step) if shared.config.exclusive_requests => step.executor.clone(),
            _ => shared.executors.for_steps(&shared.config)?,
        };
        let mut steps = vec![Step { name: "fill".into(), executor: first, task: StepTask::Inputs, duration: Duration::ZERO }];
        let seat = shared.model.gathering().map(|gathering| gathering.take_seat(device_info));
        if let Some(seat) = &seat {
            steps.extend(seat.steps());
        }
        steps.extend(shared.steps.iter().enumerate().map(|(step_idx, step)| Step {
            name: step.name.into(),
            executor: step.executor.clone(),
            task: StepTask::Device(step_idx),
            duration: Duration::ZERO,
        }));
        let body = Body {
            seat,
            completion: device.completion(),
            device,
            io,
            steps,
            n_prepended: 0,
            ends_on: shared.callback_executor()?,
            inline: Arc::new(Inline),
            next_step_idx: 0,
            run: 0,
            outcome: Ok(()),
            calls_back: false,
            started: Instant::now(),
            span: tracing::Span::none(),
            n_queued: 0,
            task: None,
            model: shared.clone(),
        };
        Ok(InferRequest::new(shared.clone(), Box::new(body), ticket))
    }

    /// Returns the name of the model, its device and its options.
    pub fn properties(&self) -> Properties {
        Properties {
            model_name: self.name().to_owned(),
            device: self.device().to_owned(),
            optimal_number_of_requests: self.optimal_number_of_requests(),
            config: self.shared.config.clone(),
            ignored: self.shared.model.ignored(),
        }
    }

    /// Runs the model once on the calling thread. Later calls use the same request again. Several threads may call this method
    /// concurrently.
    ///
    /// All inputs must be passed. Tensors are not copied but shared during the call. Later calls do not change the results of this call.
    /// Variables are zero at the start of each call.
    ///
    /// ```
    /// # use roiflow::{devices, runtime::Config};
    /// # fn main() -> roiflow::runtime::Result<()> {
    /// let core = devices::core();
    /// let model = core.compile_model(&core.read_model("assets/tiny/add.onnx")?, "CPU", &Config::default())?;
    /// let (a, b) = (ndarray::arr2(&[[1.0_f32, 2.0, 3.0, 4.0]]), ndarray::arr2(&[[0.5_f32; 4]]));
    /// let results = model.infer([("a", &a), ("b", &b)])?;
    /// assert_eq!(results.array::<f32>("sum")?.as_slice(), Some(&[1.5, 2.5, 3.5, 4.5][..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::infer`]. Also returns `Tensor` if an input is missing.
    pub fn infer(&self, inputs: impl Inputs) -> Result<Results> {
        self.check_complete(&inputs)?;
        let request = self.direct_request()?;
        request.infer(inputs)?;
        request.take_outputs()
    }

    /// Same as [`CompiledModel::infer`], but does not block the thread: starts the run immediately and returns a future of the results.
    /// Dropping the future cancels the run. If the start fails, the future returns that error.
    ///
    /// ```
    /// # use roiflow::{devices, runtime::Config};
    /// # fn main() -> roiflow::runtime::Result<()> {
    /// # let model = devices::core().compile("assets/tiny/double.onnx", "CPU")?;
    /// # futures::executor::block_on(async {
    /// let (one, two) = (ndarray::arr2(&[[1.0_f32; 4]]), ndarray::arr2(&[[2.0_f32; 4]]));
    /// let both = (model.infer_async(&one), model.infer_async(&two)); // both run already
    /// assert_eq!(both.0.await?.view::<f32>(())?[[0, 0]], 2.0);
    /// assert_eq!(both.1.await?.view::<f32>(())?[[0, 0]], 4.0);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn infer_async(&self, inputs: impl Inputs) -> InferFuture {
        match self.check_complete(&inputs).and_then(|()| self.direct_request()) {
            Ok(request) => InferFuture::running(request.run_then(inputs), request),
            Err(error) => InferFuture::failed(error),
        }
    }

    fn direct_request(&self) -> Result<PooledRequest> {
        self.direct.get_or_init(|| RequestPool::new(self.optimal_number_of_requests())).take_or_create(self)
    }

    /// Fails if an input is missing. Later calls use the same request again, so a missing input would silently keep the value of an earlier
    /// call.
    fn check_complete(&self, inputs: &impl Inputs) -> Result<()> {
        let ports = self.inputs();
        let mut given = vec![false; ports.len()];
        inputs.visit(&mut |key, _| {
            given[key.find("input", ports)?] = true;
            Ok(())
        })?;
        match given.iter().position(|given| !given) {
            None => Ok(()),
            Some(missing) => {
                let n_given = given.iter().filter(|given| **given).count();
                let message = format!("input {} is missing: expected all {}, got {n_given}", ports[missing], ports.len());
                Err(Error::new(ErrorKind::Tensor, message))
            }
        }
    }

    pub(super) fn device_model(&self) -> &Arc<dyn DeviceModel> {
        &self.shared.model
    }

    /// Frees the idle requests that [`CompiledModel::infer`] keeps for later calls.
    pub fn release(&self) {
        if let Some(direct) = self.direct.get() {
            direct.clear();
        }
    }
}

impl CompiledShared {
    /// Returns the executor of a user step for which the caller did not choose an executor.
    pub(super) fn step_executor(&self) -> Result<Arc<dyn Executor>> {
        self.executors.for_steps(&self.config)
    }

    fn callback_executor(&self) -> Result<Arc<dyn Executor>> {
        Ok(match &self.config.callback_executor {
            Some(executor) => executor.clone(),
            None if self.config.callback_thread => self.executors.named(CALLBACKS, 1)?,
            None => Arc::new(Inline),
        })
    }
}

impl fmt::Debug for CompiledModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompiledModel({} on {})", self.name(), self.device())
    }
}
