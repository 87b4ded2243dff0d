//! The engine's part of one request: its state per plan, and input memory that the engine can read in place.

use std::ptr::NonNull;
use std::sync::Arc;

use tract_onnx::prelude::Tensor as EngineTensor;
use tract_onnx::prelude::{DatumType, TValue, TVec, TractError, TypedSimpleState, tvec};

use super::model::{Plan, Plans, datum_of, has_batch};
use crate::devices::denormals::FlushDenormals;
use crate::runtime::device::DeviceRequest;
use crate::runtime::io::DeviceIo;
use crate::runtime::{CancelToken, Error, ErrorKind, ModelInfo, Port, Result};
use crate::tensor::{ForeignMemory, Layout, Shape, Tensor};

pub(super) struct CpuRequest {
    plans: Arc<Plans>,
    inputs: Vec<Port>,
    /// The memory of the inputs that this request allocated, by address.
    own_inputs: Vec<Option<Arc<EngineTensor>>>,
    /// One row per input, for what is copied.
    rows: Vec<Option<Arc<EngineTensor>>>,
    /// The state of the plan that ran last; shapes change seldom.
    running: Option<(Vec<Shape>, TypedSimpleState)>,
}

impl CpuRequest {
    pub(super) fn new(plans: Arc<Plans>, info: &ModelInfo) -> Self {
        let none = || info.inputs.iter().map(|_| None).collect();
        Self { plans, inputs: info.inputs.clone(), own_inputs: none(), rows: none(), running: None }
    }

    /// The number of rows to run one by one, if the batch is open; and the shapes of one turn.
    fn turns(&self, io: &DeviceIo<'_>) -> Result<(Option<usize>, Vec<Shape>)> {
        let mut n_rows = None;
        let mut shapes = Vec::with_capacity(self.inputs.len());
        for (input_idx, port) in self.inputs.iter().enumerate() {
            let mut shape = *io.input(input_idx).layout().shape();
            if shape.contains(&0) {
                return Err(Error::new(ErrorKind::Tensor, format!("input {port}: got the empty shape {shape}; set a tensor first")));
            }
            if has_batch(port) {
                if n_rows.is_some_and(|n| n != shape[0]) {
                    return Err(Error::new(
                        ErrorKind::Tensor,
                        format!("input {port}: got a batch of {}, another input has {n_rows:?}", shape[0]),
                    ));
                }
                n_rows = Some(shape[0]);
                let mut dims = shape.to_vec();
                dims[0] = 1;
                shape = Shape::new(&dims);
            }
            shapes.push(shape);
        }
        Ok((n_rows, shapes))
    }

    /// The engine's tensor for one input in this turn: in place where it can be, else copied.
    fn turn_input(&mut self, input_idx: usize, shape: &Shape, row_idx: Option<usize>, io: &DeviceIo<'_>) -> Result<TValue> {
        let bytes = io.input(input_idx);
        // The same memory may have been given another shape since, or be seen through a window.
        if let Some(own) = &self.own_inputs[input_idx]
            && own.shape() == &**shape
            && bytes.layout().shape() == shape
            && bytes.layout().is_dense()
            && own.as_bytes().as_ptr() == bytes.extent().as_ptr()
        {
            return Ok(TValue::from_const(own.clone()));
        }
        let port = &self.inputs[input_idx];
        let reused = self.rows[input_idx].take().and_then(|row| Arc::try_unwrap(row).ok()).filter(|row| row.shape() == &**shape);
        let mut row = match reused {
            Some(row) => row,
            None => EngineTensor::zero_dt(datum_of(port.element)?, shape).map_err(device_error)?,
        };
        match row_idx {
            Some(row_idx) => bytes.copy_row_to_dense(row_idx, row.as_bytes_mut())?,
            None => bytes.copy_all_to_dense(row.as_bytes_mut())?,
        }
        let row = Arc::new(row);
        self.rows[input_idx] = Some(row.clone());
        Ok(TValue::from_const(row))
    }
}

impl DeviceRequest for CpuRequest {
    fn allocate_input(&mut self, port_idx: usize, shape: Shape) -> Result<Tensor> {
        let element = self.inputs[port_idx].element;
        let layout = Layout::dense(element, shape)?;
        if layout.n_elements() == 0 {
            // An empty tensor of the engine has no address; this one is replaced before it is read.
            return Ok(Tensor::new(element, shape)?);
        }
        let (memory, own) = EngineMemory::new(datum_of(element)?, &shape)?;
        self.own_inputs[port_idx] = Some(own);
        Ok(Tensor::foreign_whole(Box::new(memory), layout)?)
    }

    fn run_step(&mut self, _step_idx: usize, io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()> {
        let (n_rows, shapes) = self.turns(io)?;
        // Taken out, and put back at the end: a turn that broke off, also by a panic, leaves values behind; a new state starts clean.
        let mut state = match self.running.take() {
            Some((known, state)) if known == shapes => state,
            _ => {
                let plan: Plan = self.plans.get(&shapes)?;
                plan.spawn().map_err(device_error)?
            }
        };
        for row_idx in 0..n_rows.unwrap_or(1) {
            let mut inputs: TVec<TValue> = tvec![];
            for (input_idx, shape) in shapes.iter().enumerate() {
                let batched = has_batch(&self.inputs[input_idx]);
                inputs.push(self.turn_input(input_idx, shape, (batched && n_rows != Some(1)).then_some(row_idx), io)?);
            }
            let flushed = FlushDenormals::enter();
            let ran = state.run_plan_with_eval(inputs, |context, op_state, node, inputs| {
                if cancel.is_canceled() {
                    return Err(TractError::msg("canceled"));
                }
                tract_onnx::tract_core::plan::eval(context, op_state, node, inputs)
            });
            drop(flushed);
            let outputs = ran.map_err(|error| cancel.check().err().unwrap_or_else(|| device_error(error)))?;
            for (output_idx, output) in outputs.iter().enumerate() {
                let mut shape = output.shape().to_vec();
                match (n_rows, shape.first_mut()) {
                    (Some(n_rows), Some(extent)) if n_rows > 1 => {
                        if *extent != 1 {
                            let message = format!(
                                "output {output_idx} of one row has shape {:?}: expected 1 in front, to be put into a batch",
                                output.shape()
                            );
                            return Err(Error::new(ErrorKind::Device, message));
                        }
                        *extent = n_rows;
                        io.output(output_idx, &shape)?.row_mut(row_idx)?.copy_from_dense(output.as_bytes())?;
                    }
                    _ => io.output(output_idx, &shape)?.copy_all_from_dense(output.as_bytes())?,
                }
            }
        }
        self.running = Some((shapes, state));
        Ok(())
    }
}

fn device_error(error: TractError) -> Error {
    Error::new(ErrorKind::Device, format!("device CPU: {error:#}"))
}

/// A tensor of the engine as memory of one of ours: we write it between runs, the engine reads it during runs.
struct EngineMemory {
    ptr: NonNull<u8>,
    len: usize,
    _owner: Arc<EngineTensor>,
}

// SAFETY: the bytes belong to `_owner`, a heap block that never moves or shrinks. The engine reads them only in `run_step`,
// while the run holds a read lease, and never writes: it sees them as a shared constant. We write only under a write lease.
unsafe impl ForeignMemory for EngineMemory {
    fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    fn len(&self) -> usize {
        self.len
    }

    fn is_writable(&self) -> bool {
        true
    }
}

// SAFETY: plain bytes; see above for who touches them when.
unsafe impl Send for EngineMemory {}
// SAFETY: as above.
unsafe impl Sync for EngineMemory {}

impl EngineMemory {
    fn new(datum: DatumType, shape: &[usize]) -> Result<(Self, Arc<EngineTensor>)> {
        let mut tensor = EngineTensor::zero_dt(datum, shape).map_err(device_error)?;
        // The pointer is taken while the tensor is still exclusively ours, so that writing through it is allowed later on.
        let bytes = tensor.as_bytes_mut();
        let (ptr, len) = (NonNull::from(&mut *bytes).cast::<u8>(), bytes.len());
        let owner = Arc::new(tensor);
        Ok((Self { ptr, len, _owner: owner.clone() }, owner))
    }
}
