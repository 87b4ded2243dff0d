//! The engine's part of one request: tensors of the library over the run's tensors, kept while these stay where they are.

use std::sync::Arc;

use super::api::{EngineRequest, Said, TensorOver, device_error};
use super::model::OpenVinoModel;
use crate::runtime::device::DeviceRequest;
use crate::runtime::io::DeviceIo;
use crate::runtime::{CancelToken, Error, ErrorKind, Interrupt, Result};
use crate::tensor::{ElementType, Shape, Tensor};

pub(super) struct OpenVinoRequest {
    // Freed before the model that it belongs to.
    engine: Arc<EngineRequest>,
    interrupt: Arc<dyn Interrupt>,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
    model: Arc<OpenVinoModel>,
}

/// What stands for one input or output.
#[derive(Default)]
struct Place {
    /// Over memory that lay at this address with this shape in the last run; set in the engine.
    set: Option<(usize, Shape, TensorOver)>,
    /// Without gaps, for tensors that have some.
    dense: Option<Tensor>,
}

impl OpenVinoRequest {
    pub(super) fn new(model: Arc<OpenVinoModel>) -> Said<Self> {
        // SAFETY: the model lives.
        let engine = Arc::new(unsafe { EngineRequest::new(&model.api, model.compiled.as_ptr()) }?);
        let places = |n_ports: usize| (0..n_ports).map(|_| Place::default()).collect::<Vec<_>>();
        let (inputs, outputs) = (places(model.info.inputs.len()), places(model.info.outputs.len()));
        Ok(Self { interrupt: engine.clone(), engine, inputs, outputs, model })
    }

    fn place_inputs(&mut self, io: &DeviceIo<'_>) -> Result<()> {
        let (model, engine) = (&self.model, &self.engine);
        for (input_idx, place) in self.inputs.iter_mut().enumerate() {
            let bytes = io.input(input_idx);
            let (element, shape) = (bytes.layout().element(), *bytes.layout().shape());
            let ptr = if bytes.layout().is_dense() {
                // The engine takes pointers to write for inputs, too, but only reads them.
                bytes.extent().as_ptr().cast_mut()
            } else {
                let mut dense = place.dense(element, &shape)?.bytes_mut()?;
                bytes.copy_all_to_dense(dense.extent_mut())?;
                dense.extent_mut().as_mut_ptr()
            };
            place.over(model, ptr, &shape, element, |tensor| engine.set_input(input_idx, tensor))?;
        }
        Ok(())
    }

    /// Outputs whose shape is known are written where they are to lie; the engine allocates the others.
    fn place_outputs(&mut self, io: &mut DeviceIo<'_>) -> Result<()> {
        let (model, engine) = (&self.model, &self.engine);
        for (output_idx, (place, port)) in self.outputs.iter_mut().zip(&model.info.outputs).enumerate() {
            let Some(shape) = port.shape.to_static() else { continue };
            let bytes = io.output(output_idx, &shape)?;
            let ptr = if bytes.layout().is_dense() {
                place.dense = None;
                bytes.extent_mut().as_mut_ptr()
            } else {
                place.dense(port.element, &shape)?.bytes_mut()?.extent_mut().as_mut_ptr()
            };
            place.over(model, ptr, &shape, port.element, |tensor| engine.set_output(output_idx, tensor))?;
        }
        Ok(())
    }

    /// Copies what did not go straight to its place.
    fn finish_outputs(&mut self, io: &mut DeviceIo<'_>) -> Result<()> {
        let failed = device_error(&self.model.device);
        for (output_idx, port) in self.model.info.outputs.iter().enumerate() {
            if port.shape.to_static().is_some() {
                let place = &self.outputs[output_idx];
                if let (Some(dense), Some((_, shape, _))) = (&place.dense, &place.set) {
                    io.output(output_idx, shape)?.copy_all_from_dense(dense.bytes()?.extent())?;
                }
                continue;
            }
            let tensor = self.engine.output(output_idx).map_err(&failed)?;
            let target = io.output(output_idx, &tensor.shape().map_err(&failed)?)?;
            if target.layout().n_elements() > 0 {
                let (data, n_bytes) = tensor.data().map_err(&failed)?;
                // SAFETY: the tensor holds so many bytes, and lives until the end of this turn; nobody writes it between runs.
                target.copy_all_from_dense(unsafe { std::slice::from_raw_parts(data, n_bytes) })?;
            }
        }
        Ok(())
    }
}

impl Place {
    fn over(
        &mut self,
        model: &OpenVinoModel,
        ptr: *mut u8,
        shape: &Shape,
        element: ElementType,
        set: impl FnOnce(&TensorOver) -> Said<()>,
    ) -> Result<()> {
        if !matches!(&self.set, Some((address, known, _)) if *address == ptr as usize && known == shape) {
            self.set = None;
            let tensor = model.api.tensor_over(ptr, shape, element).map_err(device_error(&model.device))?;
            set(&tensor).map_err(device_error(&model.device))?;
            self.set = Some((ptr as usize, *shape, tensor));
        }
        Ok(())
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

impl DeviceRequest for OpenVinoRequest {
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
        // SAFETY: the tensors lie over memory that the run's leases and the places of this request keep in place; the leases
        // keep everybody else from writing.
        let ran = cancel.interrupting(&self.interrupt, || cancel.check().map(|()| unsafe { self.engine.infer() }))?;
        ran.map_err(|said| cancel.check().err().unwrap_or_else(|| device_error(&self.model.device)(said)))?;
        self.finish_outputs(io)
    }
}
