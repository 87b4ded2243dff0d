//! The engine's part of one request: values over the run's tensors, kept while these stay where they are.

use std::ffi::c_char;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ort_sys::OrtValue;

use super::api::{RunOptions, Said, Value, device_error};
use super::model::OrtModel;
use crate::devices::denormals::FlushDenormals;
use crate::runtime::device::DeviceRequest;
use crate::runtime::io::DeviceIo;
use crate::runtime::{CancelToken, Error, ErrorKind, Interrupt, Result};
use crate::tensor::{ElementType, Shape, Tensor};

pub(super) struct OrtRequest {
    model: Arc<OrtModel>,
    options: Arc<RunOptions>,
    interrupt: Arc<dyn Interrupt>,
    input_names: Pointers<*const c_char>,
    output_names: Pointers<*const c_char>,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
    /// Handed to the engine; filled anew for every run.
    input_values: Pointers<*const OrtValue>,
    output_values: Pointers<*mut OrtValue>,
}

/// Lists of pointers into what the request owns.
struct Pointers<T>(Vec<T>);

// SAFETY: the names live in the model, which the request holds; the values are looked at during a run only, on its thread.
unsafe impl<T> Send for Pointers<T> {}

/// What stands for one input or output.
#[derive(Default)]
struct Place {
    /// Over memory that lay at this address with this shape in the last run.
    value: Option<(usize, Shape, Value)>,
    /// Without gaps, for tensors that have some.
    dense: Option<Tensor>,
}

impl OrtRequest {
    pub(super) fn new(model: Arc<OrtModel>) -> Said<Self> {
        let options = Arc::new(RunOptions::new(&model.api)?);
        let places = |n_ports: usize| (0..n_ports).map(|_| Place::default()).collect::<Vec<_>>();
        let (n_inputs, n_outputs) = (model.info.inputs.len(), model.info.outputs.len());
        Ok(Self {
            input_names: Pointers(model.input_names.iter().map(|name| name.as_ptr()).collect()),
            output_names: Pointers(model.output_names.iter().map(|name| name.as_ptr()).collect()),
            inputs: places(n_inputs),
            outputs: places(n_outputs),
            input_values: Pointers(Vec::with_capacity(n_inputs)),
            output_values: Pointers(Vec::with_capacity(n_outputs)),
            interrupt: options.clone(),
            options,
            model,
        })
    }

    fn place_inputs(&mut self, io: &DeviceIo<'_>) -> Result<()> {
        self.input_values.0.clear();
        for (input_idx, place) in self.inputs.iter_mut().enumerate() {
            let bytes = io.input(input_idx);
            let (element, shape) = (bytes.layout().element(), *bytes.layout().shape());
            if bytes.layout().is_dense() {
                let extent = bytes.extent();
                // The engine takes pointers to write for inputs, too, but only reads them.
                place.over(&self.model, extent.as_ptr().cast_mut(), extent.len(), &shape, element)?;
            } else {
                let mut dense = place.dense(element, &shape)?.bytes_mut()?;
                bytes.copy_all_to_dense(dense.extent_mut())?;
                place.over(&self.model, dense.extent_mut().as_mut_ptr(), dense.extent().len(), &shape, element)?;
            }
            self.input_values.0.push(place.as_ptr());
        }
        Ok(())
    }

    /// Outputs whose shape is known are written where they are to lie; the engine allocates the others.
    fn place_outputs(&mut self, io: &mut DeviceIo<'_>) -> Result<()> {
        self.output_values.0.clear();
        for (output_idx, (place, port)) in self.outputs.iter_mut().zip(&self.model.info.outputs).enumerate() {
            let Some(shape) = port.shape.to_static() else {
                self.output_values.0.push(ptr::null_mut());
                continue;
            };
            let bytes = io.output(output_idx, &shape)?;
            if bytes.layout().is_dense() {
                let extent = bytes.extent_mut();
                place.over(&self.model, extent.as_mut_ptr(), extent.len(), &shape, port.element)?;
                place.dense = None;
            } else {
                let mut dense = place.dense(port.element, &shape)?.bytes_mut()?;
                place.over(&self.model, dense.extent_mut().as_mut_ptr(), dense.extent().len(), &shape, port.element)?;
            }
            self.output_values.0.push(place.as_ptr());
        }
        Ok(())
    }

    fn run(&mut self, cancel: &CancelToken) -> Result<()> {
        let (model, table) = (&self.model, self.model.api.table());
        self.options.rearm().map_err(device_error(&model.device))?;
        let ran = cancel.interrupting(&self.interrupt, || {
            let _flushed = FlushDenormals::enter();
            // SAFETY: the session lives and is made for concurrent runs; names and values are as many as said; values lie over
            // memory that the run's leases and the places of this request keep in place, written by nobody else meanwhile.
            unsafe {
                (table.Run)(
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

    /// Copies what did not go straight to its place.
    fn finish_outputs(&mut self, io: &mut DeviceIo<'_>) -> Result<()> {
        let model = &self.model;
        let failed = device_error(&model.device);
        for (output_idx, port) in model.info.outputs.iter().enumerate() {
            if port.shape.to_static().is_some() {
                let place = &self.outputs[output_idx];
                if let (Some(dense), Some((_, shape, _))) = (&place.dense, &place.value) {
                    io.output(output_idx, shape)?.copy_all_from_dense(dense.bytes()?.extent())?;
                }
                continue;
            }
            let Some(value) = NonNull::new(self.output_values.0[output_idx]) else {
                return Err(failed(format!("output {port} was not computed")));
            };
            self.output_values.0[output_idx] = ptr::null_mut();
            // SAFETY: made by the run for the null that was handed in, so it is ours.
            let value = unsafe { Value::owned(&model.api, value) };
            let (element, shape) = value.element_and_shape(&model.api).map_err(&failed)?;
            let shape = shape.to_static().ok_or_else(|| failed(format!("output {port} has no shape")))?;
            if element != port.element {
                return Err(failed(format!("output {port} came as {element}")));
            }
            let target = io.output(output_idx, &shape)?;
            let n_bytes = target.layout().dense_bytes();
            if n_bytes > 0 {
                let data = value.data(&model.api).map_err(&failed)?;
                // SAFETY: a tensor of this type and shape holds so many bytes, and lives until `value` is dropped below.
                target.copy_all_from_dense(unsafe { std::slice::from_raw_parts(data, n_bytes) })?;
            }
            drop(value);
        }
        Ok(())
    }
}

impl Place {
    fn over(&mut self, model: &OrtModel, ptr: *mut u8, n_bytes: usize, shape: &Shape, element: ElementType) -> Result<()> {
        if !matches!(&self.value, Some((address, known, _)) if *address == ptr as usize && known == shape) {
            self.value = None;
            let value = model.api.value_over(ptr, n_bytes, shape, element).map_err(device_error(&model.device))?;
            self.value = Some((ptr as usize, *shape, value));
        }
        Ok(())
    }

    fn as_ptr(&self) -> *mut OrtValue {
        self.value.as_ref().map_or(ptr::null_mut(), |(_, _, value)| value.as_ptr())
    }

    fn dense(&mut self, element: ElementType, shape: &Shape) -> Result<Tensor> {
        if let Some(dense) = &self.dense
            && dense.shape() == *shape
        {
            return Ok(dense.clone());
        }
        let dense = Tensor::new(element, *shape)?;
        self.dense = Some(dense.clone());
        Ok(dense)
    }
}

impl DeviceRequest for OrtRequest {
    fn allocate_input(&mut self, port_idx: usize, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::new(self.model.info.inputs[port_idx].element, shape)?)
    }

    fn run_step(&mut self, _step_idx: usize, io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()> {
        for (input_idx, port) in self.model.info.inputs.iter().enumerate() {
            let shape = io.input(input_idx).layout().shape();
            // Only where the shape was left open: there nothing was set yet.
            if shape.contains(&0) && port.shape.to_static().is_none() {
                return Err(Error::new(ErrorKind::Tensor, format!("input {port}: got the empty shape {shape}; set a tensor first")));
            }
        }
        self.place_inputs(io)?;
        self.place_outputs(io)?;
        let ran = self.run(cancel).and_then(|()| self.finish_outputs(io));
        if ran.is_err() {
            // What a failed run left behind, where the engine was to allocate.
            for (value, port) in self.output_values.0.iter_mut().zip(&self.model.info.outputs) {
                if let (None, Some(value)) = (port.shape.to_static(), NonNull::new(std::mem::replace(value, ptr::null_mut()))) {
                    // SAFETY: as in `finish_outputs`, and taken out of the list.
                    drop(unsafe { Value::owned(&self.model.api, value) });
                }
            }
        }
        ran
    }
}
