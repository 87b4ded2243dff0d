//! One inference request of ONNX Runtime. It creates the library's values over the tensors of a run. Later runs use the same values as long
//! as the addresses stay the same.

use std::ffi::c_char;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::api::{RunOptions, Value};
use super::calls;
use super::ffi::OrtValue;
use super::model::OrtModel;
use super::nodes::NodeTimes;
use crate::engine::{BoundValue, EngineResult, Extent, check_inputs, device_error};
use crate::exit;
use crate::runtime::device::{DeviceRequest, profiling_is_off};
use crate::runtime::io::DeviceIo;
use crate::runtime::{CancelToken, Error, ErrorKind, Interrupt, NodeTime, Port, Result};
use crate::tensor::{Shape, Tensor};

pub(super) struct OrtRequest {
    model: Arc<OrtModel>,
    options: Arc<RunOptions>,
    interrupt: Arc<dyn Interrupt>,
    input_names: Pointers<*const c_char>,
    output_names: Pointers<*const c_char>,
    inputs: Vec<BoundValue<Value>>,
    outputs: Vec<BoundValue<Value>>,
    /// For each output, whether the library writes it into the tensor of the run. It allocates outputs of dynamic shape. It would also
    /// take the tensor of an output that is an input of the model as that input.
    in_place: Vec<bool>,
    /// The addresses of the input values, in the order of `input_names`. They are rewritten before every run.
    input_values: Pointers<*const OrtValue>,
    output_values: Pointers<*mut OrtValue>,
    /// Reads node times. `Some` if `Config::profiling` is set and the library reports node times for each run.
    times: Option<NodeTimes>,
    /// Whether the exit handler was registered after the first run. It is registered after that run, because the run may have registered
    /// destructors, and the handler must run before them.
    is_guarded: bool,
}

/// A list of pointers to objects that the request owns or keeps alive.
struct Pointers<T>(Vec<T>);

// SAFETY: the names belong to the model, which the request keeps alive. They never change.
unsafe impl Send for Pointers<*const c_char> {}
// SAFETY: the values belong to the request's `BoundValue`s. Only the thread that runs the request uses them, and only during the run.
unsafe impl Send for Pointers<*const OrtValue> {}
// SAFETY: as for the input values.
unsafe impl Send for Pointers<*mut OrtValue> {}

impl OrtRequest {
    pub(super) fn new(model: Arc<OrtModel>) -> EngineResult<Self> {
        let options = Arc::new(RunOptions::new(&model.api)?);
        let times = match &model.profiling {
            Some(nodes) if model.api.profiles_runs() => Some(NodeTimes::new(nodes.clone())?),
            _ => None,
        };
        if let Some(times) = &times {
            options.profile(&model.api, &times.prefix())?;
        }
        let (n_inputs, n_outputs) = (model.info.inputs.len(), model.info.outputs.len());
        let is_input = |output: &Port| model.info.inputs.iter().any(|input| input.name() == output.name());
        Ok(Self {
            input_names: Pointers(model.input_names.iter().map(|name| name.as_ptr()).collect()),
            output_names: Pointers(model.output_names.iter().map(|name| name.as_ptr()).collect()),
            inputs: BoundValue::list(n_inputs),
            outputs: BoundValue::list(n_outputs),
            in_place: model
                .info
                .outputs
                .iter()
                .zip(&model.outputs_counted)
                .map(|(port, is_counted)| port.shape.to_static().is_some() && !is_input(port) && !is_counted)
                .collect(),
            input_values: Pointers(Vec::with_capacity(n_inputs)),
            output_values: Pointers(Vec::with_capacity(n_outputs)),
            interrupt: options.clone(),
            options,
            times,
            is_guarded: false,
            model,
        })
    }

    /// Creates values over the run's tensors. The library allocates the outputs that are not `in_place`.
    fn place(&mut self, io: &mut DeviceIo<'_>) -> Result<()> {
        let model = &self.model;
        let make = |extent: &Extent| model.api.value_over(extent).map_err(device_error(&model.device));
        self.input_values.0.clear();
        for (input_idx, place) in self.inputs.iter_mut().enumerate() {
            self.input_values.0.push(place.input(io, input_idx, make)?.as_ptr());
        }
        self.output_values.0.clear();
        for (output_idx, (place, port)) in self.outputs.iter_mut().zip(&model.info.outputs).enumerate() {
            let value = match port.shape.to_static().filter(|_| self.in_place[output_idx]) {
                Some(shape) => place.output(io, output_idx, shape, make)?.as_ptr(),
                None => ptr::null_mut(),
            };
            self.output_values.0.push(value);
        }
        Ok(())
    }

    fn run(&mut self, cancel: &CancelToken) -> Result<()> {
        let (model, table) = (&self.model, self.model.api.table());
        self.options.rearm().map_err(device_error(&model.device))?;
        let ran = cancel.interrupting(&self.interrupt, || {
            // SAFETY: the session is not released and allows concurrent runs. Each list has as many entries as the call says. The leases of
            // the run and the bound values of this request keep the memory of the values valid, and no other thread writes to it.
            unsafe {
                calls::run(
                    table,
                    model.session.ptr.as_ptr(),
                    self.options.as_ptr(),
                    self.input_names.0.as_ptr(),
                    self.input_values.0.as_ptr(),
                    self.input_values.0.len(),
                    self.output_names.0.as_ptr(),
                    self.output_values.0.len(),
                    self.output_values.0.as_mut_ptr(),
                )
            }
        });
        model.api.check(ran).map_err(|said| cancel.check().err().unwrap_or_else(|| device_error(&model.device)(said)))
    }

    /// Copies the outputs that ONNX Runtime did not write in place.
    fn finish_outputs(&mut self, io: &mut DeviceIo<'_>) -> Result<()> {
        let model = &self.model;
        let failed = device_error(&model.device);
        for (output_idx, port) in model.info.outputs.iter().enumerate() {
            if self.in_place[output_idx] {
                self.outputs[output_idx].finish(io, output_idx)?;
                continue;
            }
            let Some(value) = NonNull::new(self.output_values.0[output_idx]) else {
                return Err(failed(format!("ONNX Runtime did not compute output {port}")));
            };
            self.output_values.0[output_idx] = ptr::null_mut();
            // SAFETY: the request passed null for this output, so the run created the value. The pointer was removed from the list, so no
            // other code releases it.
            let value = unsafe { Value::owned(&model.api, value) };
            let (element, shape) = value.element_and_shape(&model.api).map_err(&failed)?;
            let shape = shape.to_static().ok_or_else(|| failed(format!("ONNX Runtime did not report the shape of output {port}")))?;
            if element != port.element {
                return Err(failed(format!("output {port}: expected elements of type {}, got {element}", port.element)));
            }
            let target = io.output(output_idx, &shape)?;
            let n_bytes = target.layout().dense_bytes();
            if n_bytes > 0 {
                let data = value.data(&model.api).map_err(&failed)?;
                // SAFETY: a tensor of this type and shape has `n_bytes` initialized bytes. It lives until `value` is dropped below, and no
                // code writes to it.
                target.copy_all_from_dense(unsafe { std::slice::from_raw_parts(data, n_bytes) })?;
            }
            drop(value);
        }
        Ok(())
    }
}

impl DeviceRequest for OrtRequest {
    fn allocate_input(&mut self, port_idx: usize, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::new(self.model.info.inputs[port_idx].element, shape)?)
    }

    fn run_step(&mut self, _step_idx: usize, io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()> {
        let _inside = exit::try_enter()?;
        check_inputs(&self.model.info, io)?;
        if let Some(times) = &mut self.times {
            times.begin_run();
        }
        self.place(io)?;
        let ran = self.run(cancel);
        if !std::mem::replace(&mut self.is_guarded, true) {
            exit::guard();
        }
        if let Some(times) = &mut self.times {
            times.end_run();
        }
        let ran = ran.and_then(|()| self.finish_outputs(io));
        if ran.is_err() {
            // Release the outputs that ONNX Runtime allocated before the run failed.
            for (value, is_in_place) in self.output_values.0.iter_mut().zip(&self.in_place) {
                if let (false, Some(value)) = (is_in_place, NonNull::new(std::mem::replace(value, ptr::null_mut()))) {
                    // SAFETY: as in `finish_outputs`: the run created the value, and the pointer was removed from the list.
                    drop(unsafe { Value::owned(&self.model.api, value) });
                }
            }
        }
        ran
    }

    fn counts_with(&self, port_idx: usize) -> bool {
        self.model.inputs_counted.get(port_idx).is_some_and(|is_counted| *is_counted)
    }

    fn profiling_info(&self) -> Result<Vec<NodeTime>> {
        if self.model.profiling.is_none() {
            return Err(profiling_is_off());
        }
        let (device, api) = (&self.model.device, &self.model.api);
        let Some(times) = &self.times else {
            let message = format!("device {device}: node times need ONNX Runtime 1.25 or newer, got {}", api.version);
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        times.nodes().map_err(device_error(device))
    }
}
