//! One inference request of OpenVINO. It creates the library's tensors over the memory of a run's tensors. Later runs use the same objects
//! as long as the addresses stay the same.

use std::sync::Arc;
use std::time::Duration;

use super::api::{EngineRequest, TensorOver};
use super::integers;
use super::model::OpenVinoModel;
use crate::engine::{BoundValue, EngineResult, Extent, check_inputs, device_error};
use crate::exit::{self, Inside};
use crate::runtime::device::{DeviceRequest, profiling_is_off};
use crate::runtime::io::DeviceIo;
use crate::runtime::{CancelToken, Completion, Interrupt, ModelInfo, NodeStatus, NodeTime, Port, Result};
use crate::tensor::{Shape, Tensor};

pub(super) struct OpenVinoRequest {
    // Declared before `model`, so that this request is freed before the model to which it belongs.
    engine: Arc<EngineRequest>,
    interrupt: Arc<dyn Interrupt>,
    /// `Some` if the device computes asynchronously. Otherwise, a run computes on the thread that executes the step.
    completion: Option<Arc<Completion>>,
    /// Whether an asynchronous run was started and its result was not taken yet.
    is_started: bool,
    /// Whether the latest run succeeded. The library has the times of nodes only after a successful run.
    has_run: bool,
    /// Whether the exit handler was registered after the first run. It is registered after that run, because the run may have registered
    /// destructors, and the handler must run before them.
    is_guarded: bool,
    /// Delays the exit of the process from the start to the end of a run, because an accelerator also computes between the two steps of a
    /// run.
    inside: Option<Inside<'static>>,
    inputs: Vec<BoundValue<TensorOver>>,
    outputs: Vec<BoundValue<TensorOver>>,
    /// For each output, whether the library writes it into the tensor of the run. The other outputs are copied after the run.
    in_place: Vec<bool>,
    model: Arc<OpenVinoModel>,
}

impl OpenVinoRequest {
    pub(super) fn new(model: Arc<OpenVinoModel>) -> EngineResult<Self> {
        // SAFETY: the request keeps the model alive, so the compiled model is not freed.
        let mut engine = unsafe { EngineRequest::new(&model.api, model.compiled.as_ptr()) }?;
        let completion = model.calls_back.then(Completion::new);
        if let Some(completion) = &completion {
            engine.call_back(completion.clone())?;
        }
        let in_place = in_place(&engine, &model.info, &model.outputs_counted)?;
        let engine = Arc::new(engine);
        let (inputs, outputs) = (BoundValue::list(model.info.inputs.len()), BoundValue::list(model.info.outputs.len()));
        Ok(Self {
            interrupt: engine.clone(),
            engine,
            completion,
            is_started: false,
            has_run: false,
            is_guarded: false,
            inside: None,
            inputs,
            outputs,
            in_place,
            model,
        })
    }

    /// Binds the run's tensors to the request. The library allocates the outputs that are not `in_place`.
    fn place(&mut self, io: &mut DeviceIo<'_>) -> Result<()> {
        let (model, engine) = (&self.model, &self.engine);
        let failed = device_error(&model.device);
        let set = |extent: &Extent, set: &dyn Fn(&TensorOver) -> EngineResult<()>| {
            model.api.tensor_over(extent).and_then(|tensor| set(&tensor).map(|()| tensor)).map_err(&failed)
        };
        for (input_idx, (place, port)) in self.inputs.iter_mut().zip(&model.info.inputs).enumerate() {
            integers::check(&model.device, port, input_idx, io)?;
            place.input(io, input_idx, |extent| set(extent, &|tensor| engine.set_input(input_idx, tensor)))?;
        }
        for (output_idx, (place, port)) in self.outputs.iter_mut().zip(&model.info.outputs).enumerate() {
            if let Some(shape) = port.shape.to_static().filter(|_| self.in_place[output_idx]) {
                place.output(io, output_idx, shape, |extent| set(extent, &|tensor| engine.set_output(output_idx, tensor)))?;
            }
        }
        Ok(())
    }

    /// Runs inference on this thread.
    fn infer(&self, cancel: &CancelToken) -> Result<()> {
        // SAFETY: the leases of the run and the bound values of this request keep the memory of the tensors valid. The leases also prevent
        // other threads from writing to it.
        let ran = cancel.interrupting(&self.interrupt, || cancel.check().map(|()| unsafe { self.engine.infer() }))?;
        self.outcome(ran, cancel)
    }

    /// Starts a run on the accelerator.
    fn submit(&mut self, completion: &Completion, cancel: &CancelToken) -> Result<()> {
        // SAFETY: as in `infer`. The run holds its leases until the completion is notified, and `end_run` calls `wait` before they end.
        if let Err(said) = completion.start(|| unsafe { self.engine.start() }) {
            return self.outcome(Err(said), cancel);
        }
        self.is_started = true;
        cancel.interrupt_with(&self.interrupt);
        Ok(())
    }

    /// Takes the result of the accelerator's run. The callback may still be running, so this method waits until it has ended. Only then may
    /// the next run start.
    fn take_outcome(&mut self) -> EngineResult<()> {
        if std::mem::take(&mut self.is_started) { self.engine.wait() } else { Ok(()) }
    }

    fn outcome(&self, ran: EngineResult<()>, cancel: &CancelToken) -> Result<()> {
        ran.map_err(|said| cancel.check().err().unwrap_or_else(|| device_error(&self.model.device)(said)))
    }

    /// Copies the outputs that the library did not write in place.
    fn finish_outputs(&self, io: &mut DeviceIo<'_>) -> Result<()> {
        let failed = device_error(&self.model.device);
        for output_idx in 0..self.in_place.len() {
            if self.in_place[output_idx] {
                self.outputs[output_idx].finish(io, output_idx)?;
                continue;
            }
            let tensor = self.engine.output(output_idx).map_err(&failed)?;
            let target = io.output(output_idx, &tensor.shape().map_err(&failed)?)?;
            if target.layout().n_elements() > 0 {
                let (data, n_bytes) = tensor.data().map_err(&failed)?;
                // SAFETY: the tensor has `n_bytes` initialized bytes and lives until the end of this iteration. The run has ended, so no
                // thread writes to the tensor.
                target.copy_all_from_dense(unsafe { std::slice::from_raw_parts(data, n_bytes) })?;
            }
        }
        Ok(())
    }
}

/// Returns for each output whether the library may write it into the tensor of the run.
///
/// If an output is an input of the model, or becomes one when the library folds the graph, both have one tensor in the library. The same
/// holds for two outputs with one value. Setting the tensor of the second port would replace the tensor of the first port: the library
/// would no longer read the caller's input, or no longer write the first output. So such an output keeps the library's tensor. So does an
/// output on whose values the library relies during the run (`are_counted`), because other code may write the tensor of the run.
fn in_place(engine: &EngineRequest, info: &ModelInfo, are_counted: &[bool]) -> EngineResult<Vec<bool>> {
    let mut known = Vec::new();
    for (input_idx, port) in info.inputs.iter().enumerate() {
        if port.shape.to_static().is_some() {
            known.push(engine.input(input_idx)?.data()?.0);
        }
    }
    let is_in_place = |(output_idx, port): (usize, &Port)| {
        if port.shape.to_static().is_none() {
            return Ok(false);
        }
        let data = engine.output(output_idx)?.data()?.0;
        let is_alone = !known.contains(&data);
        known.push(data);
        Ok(is_alone && !are_counted[output_idx])
    };
    info.outputs.iter().enumerate().map(is_in_place).collect()
}

impl DeviceRequest for OpenVinoRequest {
    fn allocate_input(&mut self, port_idx: usize, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::new(self.model.info.inputs[port_idx].element, shape)?)
    }

    fn run_step(&mut self, step_idx: usize, io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()> {
        let completion = self.completion.clone();
        if step_idx == 0 {
            self.inside = Some(exit::try_enter_with_threads()?);
            self.has_run = false;
            check_inputs(&self.model.info, io)?;
            self.place(io)?;
        }
        match (&completion, step_idx) {
            (None, _) => self.infer(cancel)?,
            (Some(completion), 0) => return self.submit(completion, cancel),
            (Some(_), _) => {
                let ran = self.take_outcome();
                self.outcome(ran, cancel)?;
            }
        }
        self.has_run = true;
        if !std::mem::replace(&mut self.is_guarded, true) {
            exit::guard();
        }
        self.finish_outputs(io)
    }

    fn completion(&self) -> Option<Arc<Completion>> {
        self.completion.clone()
    }

    fn end_run(&mut self) {
        // A canceled run may still be active. Wait for its end, and discard its result.
        let _ended = self.take_outcome();
        self.inside = None;
    }

    fn counts_with(&self, port_idx: usize) -> bool {
        self.model.inputs_counted.get(port_idx).is_some_and(|is_counted| *is_counted)
    }

    fn profiling_info(&self) -> Result<Vec<NodeTime>> {
        if !self.model.profiling {
            return Err(profiling_is_off());
        }
        let _inside = exit::try_enter()?;
        let mut nodes = self.engine.nodes().map_err(device_error(&self.model.device))?;
        // Keep only operations. roiflow does not count weights, inputs and outputs as nodes.
        nodes.retain(|node| !matches!(&*node.kind, "Parameter" | "Result" | "Const" | "Constant"));
        for node in &mut nodes {
            if !self.has_run {
                (node.status, node.real, node.cpu) = (NodeStatus::NotRun, Duration::ZERO, Some(Duration::ZERO));
            } else if node.status == NodeStatus::NotRun && self.model.rounds_to_not_run {
                node.status = NodeStatus::Executed;
            }
        }
        Ok(nodes)
    }
}
