//! What a run is made of: a list of (executor, task), and the tensors that the run owns meanwhile.
//!
//! The list of a request is fixed: first the inputs are filled or gathered, then the device's steps, then what the user
//! appended. The run walks it; where the next step's executor is another one, the request is queued there, else it goes on at
//! once. On a processor engine that makes one task of the whole run.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::DeviceRequest;
use super::executor::Executor;
use super::sync::{AtomicBool, Mutex, Ordering};
use super::{Error, ErrorKind, Port, Result, StepTime};
use crate::tensor::{Bytes, BytesMut, Element, Shape, Tensor};

/// Writes an input just before the device reads it. `stages` implements it for frames.
pub trait FillInput: Send {
    /// The shape that the input has in the next run; must be one that the port admits.
    ///
    /// # Errors
    /// If there is nothing to fill from.
    fn shape(&mut self, port: &Port) -> Result<Shape>;

    /// Writes all of `input`, which has the shape that [`FillInput::shape`] gave.
    ///
    /// # Errors
    /// If the source does not fit; the run ends with this error.
    fn fill(&mut self, input: &mut BytesMut) -> Result<()>;
}

/// What interrupts an engine that is computing.
pub trait Interrupt: Send + Sync {
    /// Asks the engine to end; from another thread than the engine's, and without blocking.
    fn interrupt(&self);
}

/// Asks a run to end; a flag that steps and devices look at, and the engine that is to be told.
#[derive(Default)]
pub struct CancelToken {
    canceled: AtomicBool,
    running: Mutex<Option<Arc<dyn Interrupt>>>,
}

impl CancelToken {
    /// Whether the run was canceled.
    pub fn is_canceled(&self) -> bool {
        self.canceled.load(Ordering::Acquire)
    }

    /// `Ok` while the run may go on.
    ///
    /// # Errors
    /// [`ErrorKind::Canceled`] once it was canceled.
    pub fn check(&self) -> Result<()> {
        if self.is_canceled() { Err(Error::new(ErrorKind::Canceled, "the run was canceled")) } else { Ok(()) }
    }

    /// Runs `action`; a cancel meanwhile, or before, calls `interrupt`.
    pub fn interrupting<R>(&self, interrupt: &Arc<dyn Interrupt>, action: impl FnOnce() -> R) -> R {
        struct Forget<'a>(&'a CancelToken);
        impl Drop for Forget<'_> {
            fn drop(&mut self) {
                let _told = self.0.running.lock().unwrap().take();
            }
        }
        *self.running.lock().unwrap() = Some(interrupt.clone());
        let _also_after_a_panic = Forget(self);
        // One of both sees the other: `cancel` writes the flag before it looks for the engine.
        if self.is_canceled() {
            interrupt.interrupt();
        }
        action()
    }

    pub(crate) fn cancel(&self) {
        self.canceled.store(true, Ordering::Release);
        if let Some(interrupt) = &*self.running.lock().unwrap() {
            interrupt.interrupt();
        }
    }

    pub(crate) fn reset(&self) {
        self.canceled.store(false, Ordering::Release);
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CancelToken({})", if self.is_canceled() { "canceled" } else { "not canceled" })
    }
}

/// What an appended step may see: the run's outputs and inputs.
pub struct RunContext<'a> {
    pub(crate) body: &'a RunIo,
    pub(crate) cancel: &'a CancelToken,
    pub(crate) run: u64,
}

impl RunContext<'_> {
    /// The number of the run, from 1.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// For steps that take long.
    pub fn cancel(&self) -> &CancelToken {
        self.cancel
    }

    /// Number of outputs.
    pub fn n_outputs(&self) -> usize {
        self.body.outputs.len()
    }

    /// The port of an output.
    pub fn output_port(&self, output_idx: usize) -> &Port {
        &self.body.outputs[output_idx].port
    }

    /// The values of an output, last axis fastest, and their shape.
    ///
    /// # Errors
    /// [`ErrorKind::Tensor`] if the elements are not `T`, or the user's own output tensor has gaps.
    pub fn output<T: Element>(&self, output_idx: usize) -> Result<(Shape, &[T])> {
        let bytes = self.body.outputs[output_idx].lease.as_ref().expect("a run leases its outputs");
        Ok((*bytes.layout().shape(), bytes.dense::<T>()?))
    }
}

impl fmt::Debug for RunContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunContext(run {})", self.run)
    }
}

/// What a device sees of a run.
#[derive(Debug)]
pub struct DeviceIo<'a> {
    pub(crate) io: &'a mut RunIo,
}

impl DeviceIo<'_> {
    /// Number of inputs.
    pub fn n_inputs(&self) -> usize {
        self.io.inputs.len()
    }

    /// Number of outputs.
    pub fn n_outputs(&self) -> usize {
        self.io.outputs.len()
    }

    /// The tensor of an input: for devices that know it by its memory.
    pub fn input_tensor(&self, input_idx: usize) -> &Tensor {
        &self.io.inputs[input_idx].tensor
    }

    /// The bytes of an input, for the length of the run. Any strides.
    pub fn input(&self, input_idx: usize) -> &Bytes {
        match &self.io.inputs[input_idx].lease {
            Some(InputLease::Read(bytes)) => bytes,
            _ => unreachable!("inputs are readable once the first step ended"),
        }
    }

    /// The bytes of an output, with the shape that the run gives it. The tensor grows where it is too small.
    ///
    /// # Errors
    /// [`ErrorKind::Tensor`] if the port does not admit the shape, or the user's own tensor can't take it.
    pub fn output(&mut self, output_idx: usize, shape: &[usize]) -> Result<&mut BytesMut> {
        let slot = &mut self.io.outputs[output_idx];
        if slot.lease.as_ref().is_none_or(|lease| **lease.layout().shape() != *shape) {
            slot.lease = None;
            let named = |error: crate::tensor::Error| Error::from(error).context(format!("output {}", slot.port));
            slot.tensor.set_shape(shape).map_err(named)?;
            slot.lease = Some(slot.tensor.bytes_mut().map_err(named)?);
        }
        Ok(slot.lease.as_mut().expect("set above"))
    }
}

/// A step that the user appended.
pub(crate) type CustomStep = Box<dyn FnMut(&RunContext<'_>) -> Result<()> + Send>;

pub(crate) enum StepTask {
    /// Fill or gather the inputs.
    Inputs,
    /// A step of the device.
    Device(usize),
    /// A step of the user.
    Custom(CustomStep),
}

pub(crate) struct Step {
    pub(crate) name: Arc<str>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) task: StepTask,
    pub(crate) duration: Duration,
}

/// An input of a request.
pub(crate) struct InputSlot {
    pub(crate) port: Port,
    pub(crate) tensor: Tensor,
    /// The tensor is the request's own, so that a filler may take another shape.
    pub(crate) own: bool,
    pub(crate) fill: Option<Box<dyn FillInput>>,
    pub(crate) lease: Option<InputLease>,
}

impl fmt::Debug for InputSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InputSlot({}, {:?})", self.port, self.tensor)
    }
}

#[derive(Debug)]
pub(crate) enum InputLease {
    Fill(BytesMut),
    Read(Bytes),
}

/// An output of a request.
#[derive(Debug)]
pub(crate) struct OutputSlot {
    pub(crate) port: Port,
    pub(crate) tensor: Tensor,
    pub(crate) lease: Option<BytesMut>,
}

/// The tensors of a request, and the leases of a run on them.
#[derive(Debug)]
pub(crate) struct RunIo {
    pub(crate) inputs: Vec<InputSlot>,
    pub(crate) outputs: Vec<OutputSlot>,
}

impl RunIo {
    pub(crate) fn release(&mut self) {
        self.inputs.iter_mut().for_each(|slot| slot.lease = None);
        self.outputs.iter_mut().for_each(|slot| slot.lease = None);
    }
}

/// Everything that a run owns: moved out of the request when it starts, and back when it ends.
pub(crate) struct Body {
    pub(crate) device: Box<dyn DeviceRequest>,
    pub(crate) io: RunIo,
    pub(crate) steps: Vec<Step>,
    pub(crate) next_step_idx: usize,
    pub(crate) run: u64,
    pub(crate) outcome: Result<()>,
    pub(crate) calls_back: bool,
    pub(crate) started: Instant,
}

impl Body {
    /// Checks the tensors against the ports and takes the leases of a run.
    pub(crate) fn prepare(&mut self) -> Result<()> {
        let prepared = self.lease_all();
        if prepared.is_err() {
            self.io.release();
        }
        self.next_step_idx = 0;
        self.outcome = Ok(());
        prepared
    }

    fn lease_all(&mut self) -> Result<()> {
        for (input_idx, slot) in self.io.inputs.iter_mut().enumerate() {
            if let Some(fill) = &mut slot.fill {
                let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fill.shape(&slot.port)));
                let asked = asked.unwrap_or_else(|panic| Err(panic_error("the filler", &*panic)));
                let shape = asked.map_err(|error| error.context(format!("input {}", slot.port)))?;
                if slot.tensor.shape() != shape || !slot.own {
                    check_fits("input", &slot.port, slot.port.element, &shape)?;
                    slot.tensor = self.device.allocate_input(input_idx, shape)?;
                    slot.own = true;
                }
                let bytes = slot.tensor.bytes_mut().map_err(|error| Error::from(error).context(format!("input {}", slot.port)))?;
                slot.lease = Some(InputLease::Fill(bytes));
            } else {
                let bytes = slot.tensor.bytes().map_err(|error| Error::from(error).context(format!("input {}", slot.port)))?;
                check_fits("input", &slot.port, slot.tensor.element(), bytes.layout().shape())?;
                slot.lease = Some(InputLease::Read(bytes));
            }
        }
        for slot in &mut self.io.outputs {
            let bytes = slot.tensor.bytes_mut().map_err(|error| Error::from(error).context(format!("output {}", slot.port)))?;
            if let Some(shape) = slot.port.shape.to_static()
                && shape != *bytes.layout().shape()
            {
                return Err(mismatch("output", &slot.port, slot.tensor.element(), bytes.layout().shape()));
            }
            slot.lease = Some(bytes);
        }
        Ok(())
    }

    /// Runs the next step; its error, or its panic, becomes the outcome of the run.
    pub(crate) fn run_next_step(&mut self, cancel: &CancelToken, request_id: u64) {
        let step_idx = self.next_step_idx;
        self.next_step_idx += 1;
        if let Err(error) = cancel.check() {
            self.outcome = Err(error);
            return;
        }
        let step = &mut self.steps[step_idx];
        let _span = tracing::trace_span!("step", request = request_id, run = self.run, step = &*step.name).entered();
        let begin = Instant::now();
        let (device, io, run) = (&mut self.device, &mut self.io, self.run);
        let task = &mut step.task;
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match task {
            StepTask::Inputs => fill_inputs(io),
            StepTask::Device(device_step_idx) => device.run_step(*device_step_idx, &mut DeviceIo { io }, cancel),
            StepTask::Custom(custom) => custom(&RunContext { body: io, cancel, run }),
        }));
        step.duration = begin.elapsed();
        self.outcome = done.unwrap_or_else(|panic| Err(panic_error(&format!("step `{}`", step.name), &*panic)));
    }

    pub(crate) fn is_over(&self) -> bool {
        self.outcome.is_err() || self.next_step_idx == self.steps.len()
    }

    pub(crate) fn step_times(&self) -> Vec<StepTime> {
        self.steps.iter().map(|step| StepTime { name: step.name.clone(), duration: step.duration }).collect()
    }
}

fn fill_inputs(io: &mut RunIo) -> Result<()> {
    for slot in &mut io.inputs {
        let Some(InputLease::Fill(mut bytes)) = slot.lease.take_if(|lease| matches!(lease, InputLease::Fill(_))) else { continue };
        let fill = slot.fill.as_mut().expect("a fill lease is taken for a filler");
        fill.fill(&mut bytes).map_err(|error| error.context(format!("input {}", slot.port)))?;
        slot.lease = Some(InputLease::Read(bytes.downgrade()));
    }
    Ok(())
}

/// A tensor of this type and shape fits the port.
pub(crate) fn check_fits(kind: &str, port: &Port, element: crate::tensor::ElementType, shape: &[usize]) -> Result<()> {
    if element == port.element && port.shape.admits(shape) { Ok(()) } else { Err(mismatch(kind, port, element, shape)) }
}

fn mismatch(kind: &str, port: &Port, element: crate::tensor::ElementType, shape: &[usize]) -> Error {
    Error::new(ErrorKind::Tensor, format!("{kind} `{}`: expected {} {}, got {shape:?} {element}", port.name(), port.shape, port.element))
}

/// What a panic said, as an error.
pub(crate) fn panic_error(place: &str, panic: &(dyn std::any::Any + Send)) -> Error {
    let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::new(ErrorKind::Panic, format!("{place} panicked: {}", said.unwrap_or("(no message)")))
}
