//! One inference request of the built-in engine: the state of its plan, and input memory that the engine reads in place.

use std::ptr::NonNull;
use std::sync::Arc;

use tract_onnx::prelude::Tensor as EngineTensor;
use tract_onnx::prelude::{TValue, TVec, TractError, TypedSimpleState, tvec};
use tract_onnx::tract_core::ops::OpState;
use tract_onnx::tract_core::plan;

use super::model::{Plan, Plans, datum_of, has_batch};
use super::profile::Profile;
use super::scratch::Life;
use crate::panics;
use crate::runtime::device::{DeviceRequest, profiling_is_off};
use crate::runtime::io::DeviceIo;
use crate::runtime::{CancelToken, Error, ErrorKind, ModelInfo, NodeTime, Port, Result};
use crate::tensor::{ElementType, ForeignMemory, Layout, MAX_RANK, Shape, Tensor};

pub(super) struct CpuRequest {
    plans: Arc<Plans>,
    inputs: Vec<Port>,
    /// For each input, the engine tensor that this request allocated for it, if any.
    own_inputs: Vec<Option<Arc<EngineTensor>>>,
    /// For each input, a buffer into which the tensor, or one batch item of it, is copied.
    rows: Vec<Option<Arc<EngineTensor>>>,
    /// The state of the plan that ran last. Only one state is kept, because shapes change rarely.
    running: Option<Running>,
    /// The batch size of the latest run that could compute its items one by one.
    latest_rows: usize,
    /// `Some` if `Config::profiling` is set.
    profile: Option<Profile>,
}

/// The execution state of a plan, with the input shapes of the plan.
struct Running {
    shapes: TVec<Shape>,
    state: TypedSimpleState,
    /// The states of the operators before the first run; empty if no operator has one. The engine would begin a loop such as an LSTM with
    /// the state in which the previous run ended.
    fresh: Vec<Option<Box<dyn OpState>>>,
    life: Life,
}

impl CpuRequest {
    pub(super) fn new(plans: Arc<Plans>, info: &ModelInfo, profiling: bool) -> Self {
        let none = || info.inputs.iter().map(|_| None).collect();
        Self {
            plans,
            inputs: info.inputs.clone(),
            own_inputs: none(),
            rows: none(),
            running: None,
            latest_rows: 0,
            profile: profiling.then(Profile::default),
        }
    }

    /// Returns the batch size and the shapes of the inputs. The batch size is `Some` if at least one input has a dynamic first axis, and
    /// all such inputs have the same length on that axis.
    fn shapes(&self, io: &DeviceIo<'_>) -> Result<(Option<usize>, TVec<Shape>)> {
        let mut shapes = tvec![];
        for (input_idx, port) in self.inputs.iter().enumerate() {
            let shape = *io.input(input_idx).layout().shape();
            if shape.contains(&0) && port.shape.to_static().is_none() && !io.is_given(input_idx) {
                return Err(Error::new(ErrorKind::Tensor, format!("input {port}: got the empty shape {shape}; set a tensor first")));
            }
            shapes.push(shape);
        }
        let mut batches = self.inputs.iter().zip(&shapes).filter(|(port, _)| has_batch(port)).map(|(_, shape)| shape[0]);
        let n_rows = batches.next().filter(|n_rows| batches.all(|other| other == *n_rows));
        Ok((n_rows, shapes))
    }

    /// Returns the input shapes for one batch item.
    fn row_shapes(&self, shapes: &[Shape]) -> TVec<Shape> {
        let of_row = |(port, shape): (&Port, &Shape)| {
            if !has_batch(port) {
                return *shape;
            }
            let mut dims = [0; MAX_RANK];
            dims[..shape.len()].copy_from_slice(shape);
            dims[0] = 1;
            Shape::new(&dims[..shape.len()])
        };
        self.inputs.iter().zip(shapes).map(of_row).collect()
    }

    /// Returns the engine's tensor for one input, or for one batch item of it. If possible, the input is used in place. Otherwise, it is
    /// copied.
    fn turn_input(&mut self, input_idx: usize, shape: &Shape, row_idx: Option<usize>, io: &DeviceIo<'_>) -> Result<TValue> {
        let bytes = io.input(input_idx);
        // The memory can be used in place only if the input is still the whole memory. After the allocation, the caller may have set a
        // different shape, or a region of the memory.
        if let Some(own) = &self.own_inputs[input_idx]
            && own.shape() == &**shape
            && bytes.layout().shape() == shape
            && bytes.layout().is_dense()
            && own.as_bytes().as_ptr() == bytes.extent().as_ptr()
        {
            return Ok(TValue::from_const(own.clone()));
        }
        let mut row = match self.rows[input_idx].take() {
            Some(row) if row.shape() == &**shape && Arc::strong_count(&row) == 1 => row,
            _ => Arc::new(zeros(self.inputs[input_idx].element, shape)?),
        };
        let target = Arc::get_mut(&mut row)
            .expect("the tensor is new or has no other owner, and the engine creates no weak references")
            .as_bytes_mut();
        match row_idx {
            Some(row_idx) => bytes.copy_row_to_dense(row_idx, target)?,
            None => bytes.copy_all_to_dense(target)?,
        }
        self.rows[input_idx] = Some(row.clone());
        Ok(TValue::from_const(row))
    }
}

impl DeviceRequest for CpuRequest {
    fn allocate_input(&mut self, port_idx: usize, shape: Shape) -> Result<Tensor> {
        let element = self.inputs[port_idx].element;
        let layout = Layout::dense(element, shape)?;
        if layout.n_elements() == 0 {
            // An empty tensor of the engine has no address, so return an ordinary tensor. A run with an empty input returns an error
            // anyway.
            return Ok(Tensor::new(element, shape)?);
        }
        let (memory, own) = EngineMemory::new(element, &shape)?;
        self.own_inputs[port_idx] = Some(own);
        Ok(Tensor::foreign_whole(Box::new(memory), layout)?)
    }

    fn run_step(&mut self, _step_idx: usize, io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()> {
        if let Some(profile) = &mut self.profile {
            profile.begin_run();
        }
        let (n_rows, shapes) = self.shapes(io)?;
        match n_rows {
            Some(n_rows) if n_rows > 1 && self.runs_rows(n_rows, &shapes, io) => self.run_rows(n_rows, &shapes, io, cancel),
            Some(n_rows) if n_rows > 1 => match self.plans.get(&shapes) {
                Ok(_) => self.run_whole(&shapes, io, cancel),
                // Many exporters write a batch size of one into the graph although the input is dynamic. No plan for more items exists then.
                // With an input that is no batch, outputs may not be batches either.
                Err(error) if self.inputs.iter().all(has_batch) => {
                    tracing::debug!("a batch of {n_rows} items runs item by item: {error}");
                    self.run_rows(n_rows, &shapes, io, cancel)
                }
                Err(error) => Err(error),
            },
            _ => self.run_whole(&shapes, io, cancel),
        }
    }

    fn profiling_info(&self) -> Result<Vec<NodeTime>> {
        let profile = self.profile.as_ref().ok_or_else(profiling_is_off)?;
        Ok(profile.nodes(&self.plans.nodes_of_file()))
    }
}

impl CpuRequest {
    fn run_whole(&mut self, shapes: &[Shape], io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()> {
        let outputs = self.compute(shapes, None, io, cancel)?;
        write_whole(&outputs, io)
    }

    /// Returns whether the items of a batch run one by one. Many small items run together, because each run has a fixed cost. But their
    /// plan is compiled only if the batch size repeats: to compile a plan takes longer than many runs.
    fn runs_rows(&mut self, n_rows: usize, shapes: &[Shape], io: &DeviceIo<'_>) -> bool {
        const MANY_ROWS: usize = 64;
        const SMALL_ROW_BYTES: usize = 256;
        let n_bytes: usize = (0..self.inputs.len()).map(|input_idx| io.input(input_idx).layout().dense_bytes()).sum();
        let repeats = std::mem::replace(&mut self.latest_rows, n_rows) == n_rows;
        self.plans.has_independent_rows
            && (n_rows <= MANY_ROWS || n_bytes / n_rows > SMALL_ROW_BYTES || !(repeats || self.plans.has(shapes)))
    }

    fn run_rows(&mut self, n_rows: usize, shapes: &[Shape], io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()> {
        let row_shapes = self.row_shapes(shapes);
        for row_idx in 0..n_rows {
            let row = self.compute(&row_shapes, Some(row_idx), io, cancel)?;
            write_row(&row, row_idx, n_rows, io)?;
        }
        Ok(())
    }

    /// Runs the plan for these shapes, on one batch item or on the whole batch.
    fn compute(&mut self, shapes: &[Shape], row_idx: Option<usize>, io: &DeviceIo<'_>, cancel: &CancelToken) -> Result<TVec<TValue>> {
        // The state is put back only after success, because a failed or panicked call leaves values in it.
        let mut running = match self.running.take() {
            Some(running) if *running.shapes == *shapes => running,
            _ => {
                let plan: Plan = self.plans.get(shapes)?;
                let state = plan.spawn().map_err(device_error)?;
                let fresh = if state.op_states.iter().any(Option::is_some) { state.op_states.clone() } else { Vec::new() };
                Running { shapes: shapes.into(), state, fresh, life: Life::default() }
            }
        };
        let Running { state, fresh, life, .. } = &mut running;
        if !fresh.is_empty() {
            state.op_states.clone_from(fresh);
        }
        let mut inputs: TVec<TValue> = tvec![];
        for (input_idx, shape) in shapes.iter().enumerate() {
            let row_idx = row_idx.filter(|_| has_batch(&self.inputs[input_idx]));
            inputs.push(self.turn_input(input_idx, shape, row_idx, io)?);
        }
        let check_cancel = || if cancel.is_canceled() { Err(TractError::msg("canceled")) } else { Ok(()) };
        let mut session = None;
        // There are two closures, so that a run without profiling does not check at each node whether to measure.
        let ran = panics::catch(|| match &mut self.profile {
            None => state.run_plan_with_eval(inputs, |context, op_state, node, inputs| {
                check_cancel()?;
                session = Some(context.session);
                plan::eval(context, op_state, node, inputs)
            }),
            Some(profile) => {
                profile.begin_turn(state.plan());
                state.run_plan_with_eval(inputs, |context, op_state, node, inputs| {
                    check_cancel()?;
                    session = Some(context.session);
                    profile.time(node.id, || plan::eval(context, op_state, node, inputs))
                })
            }
        });
        let ran = ran.map_err(|why| Error::new(ErrorKind::Panic, format!("device CPU: {why}")))?;
        if let Some(session) = session {
            life.ran(session, state.plan());
        }
        let outputs = ran.map_err(|error| cancel.check().err().unwrap_or_else(|| device_error(error)))?;
        self.running = Some(running);
        Ok(outputs)
    }
}

fn write_whole(outputs: &[TValue], io: &mut DeviceIo<'_>) -> Result<()> {
    for (output_idx, output) in outputs.iter().enumerate() {
        io.output(output_idx, output.shape())?.copy_all_from_dense(output.as_bytes())?;
    }
    Ok(())
}

/// Writes the outputs of one batch item into the outputs of the batch.
fn write_row(outputs: &[TValue], row_idx: usize, n_rows: usize, io: &mut DeviceIo<'_>) -> Result<()> {
    for (output_idx, output) in outputs.iter().enumerate() {
        let mut shape = TVec::from_slice(output.shape());
        if shape.first() != Some(&1) {
            let got = output.shape();
            let message = format!("output {output_idx} of one batch item has shape {got:?}: expected a first axis of length 1");
            return Err(Error::new(ErrorKind::Device, message));
        }
        shape[0] = n_rows;
        io.output(output_idx, &shape)?.row_mut(row_idx)?.copy_from_dense(output.as_bytes())?;
    }
    Ok(())
}

/// Allocates a tensor of the engine, filled with zeros. First tests whether the memory can be allocated, because the engine ends the
/// process if it cannot.
fn zeros(element: ElementType, shape: &Shape) -> Result<EngineTensor> {
    let n_bytes = Layout::dense(element, *shape)?.dense_bytes();
    // The engine's tensor is aligned, which takes some additional bytes.
    if Vec::<u8>::new().try_reserve_exact(n_bytes.saturating_add(1024)).is_err() {
        let message = format!("device CPU: no memory for a tensor of {n_bytes} bytes, {shape} {element}; use a smaller shape");
        return Err(Error::new(ErrorKind::OutOfMemory, message));
    }
    EngineTensor::zero_dt(datum_of(element)?, shape).map_err(device_error)
}

fn device_error(error: TractError) -> Error {
    Error::new(ErrorKind::Device, format!("device CPU: {error:#}"))
}

/// A tensor of the engine, used as the memory of a [`Tensor`]. Callers write to it between runs, and the engine reads it during runs.
struct EngineMemory {
    ptr: NonNull<u8>,
    len: usize,
    _owner: Arc<EngineTensor>,
}

// SAFETY: the bytes belong to `_owner`, an initialized heap block that never moves or shrinks. The engine reads them only in `run_step`,
// while the run holds a lease for reading, and never writes to them. All other code accesses them only under leases.
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

// SAFETY: the value owns plain bytes, which no thread accesses without a lease, and leases exclude conflicting accesses.
unsafe impl Send for EngineMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for EngineMemory {}

impl EngineMemory {
    fn new(element: ElementType, shape: &Shape) -> Result<(Self, Arc<EngineTensor>)> {
        let mut tensor = zeros(element, shape)?;
        // Take the pointer from a mutable borrow, while the tensor has only one owner. If the pointer came from a shared borrow, writing
        // through it would be undefined behavior.
        let bytes = tensor.as_bytes_mut();
        let (ptr, len) = (NonNull::from(&mut *bytes).cast::<u8>(), bytes.len());
        let owner = Arc::new(tensor);
        Ok((Self { ptr, len, _owner: owner.clone() }, owner))
    }
}
