//! The steps of a run, each with its executor and task, and the state that the run owns.
//!
//! The order of the steps is: steps that the user prepended, `fill` (preprocesses or batches the inputs), the steps of the device, steps
//! that the user appended, and the completion with the callback. If the next step has a different executor, the run is queued there. If it
//! has the same executor, the run continues immediately. All steps of a CPU engine have the same executor, so a whole run is one task.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batching::Seat;
use super::compiled::CompiledShared;
use super::completion::Completion;
use super::context::RunContext;
use super::device::DeviceRequest;
use super::error::catch;
use super::executor::Executor;
use super::io::{DeviceIo, RunIo};
use super::run::{RunTask, Shared};
use super::{Error, ErrorKind, Result, StepTime, spans};
use crate::sync::{AtomicBool, Condvar, Mutex, Ordering, this_thread};

/// Stops an engine during a run.
pub trait Interrupt: Send + Sync {
    /// Requests the engine to stop. The implementation must not block. The runtime may call this method from any thread, once per run,
    /// while it holds no lock. The run does not end before this call returns, so a wait for the run inside this call fails with
    /// `WouldDeadlock`.
    fn interrupt(&self);
}

/// Cancels a run. Steps and devices check the token's flag. A cancel also interrupts the engine that currently works for the run.
#[derive(Default)]
pub struct CancelToken {
    canceled: AtomicBool,
    engine: Mutex<Engine>,
    /// Notified when the call of an interrupt has returned ([`Engine::telling`] becomes 0).
    has_told: Condvar,
}

/// The engine that currently works for the run, if any, and the state of its interruption.
#[derive(Default)]
struct Engine {
    running: Option<Arc<dyn Interrupt>>,
    /// Whether the engine was interrupted in this run.
    is_told: bool,
    /// The thread ([`this_thread`]) that is calling the engine's interrupt; 0 if no thread is.
    telling: u64,
}

impl CancelToken {
    /// Returns whether the run was canceled.
    pub fn is_canceled(&self) -> bool {
        self.canceled.load(Ordering::Acquire)
    }

    /// Returns `Ok` unless the run was canceled.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Canceled`] if the run was canceled.
    pub fn check(&self) -> Result<()> {
        if self.is_canceled() { Err(Error::new(ErrorKind::Canceled, "the run was canceled")) } else { Ok(()) }
    }

    /// Runs `action`. If the run is canceled before or during `action`, calls `interrupt`.
    pub fn interrupting<R>(&self, interrupt: &Arc<dyn Interrupt>, action: impl FnOnce() -> R) -> R {
        struct Forget<'a>(&'a CancelToken);
        impl Drop for Forget<'_> {
            fn drop(&mut self) {
                self.0.forget();
            }
        }
        let _also_after_a_panic = Forget(self);
        self.interrupt_with(interrupt);
        action()
    }

    /// Registers `interrupt`, which a cancel calls. If the run was already canceled, calls it immediately. Use this method for engines that
    /// still compute after the step that started them has returned. The registration ends with [`CancelToken::forget`], or when the run
    /// continues after its [`Completion`].
    pub fn interrupt_with(&self, interrupt: &Arc<dyn Interrupt>) {
        let before = {
            let mut engine = self.engine.lock().unwrap();
            engine.is_told = false;
            engine.running.replace(interrupt.clone())
        };
        drop(before);
        // The canceling thread writes the flag and then reads the engine. This thread has stored the engine and now reads the flag. So at
        // least one of the two threads sees the value that the other one wrote, and interrupts the engine.
        self.tell_engine();
    }

    /// Ends the registration that [`CancelToken::interrupt_with`] began. A later cancel does not interrupt the engine.
    pub fn forget(&self) {
        let mut engine = self.engine.lock().unwrap();
        // Another thread may be calling the interrupt. Wait until it returns, so that an interrupt of this run does not reach the engine in
        // its next run.
        while engine.telling != 0 && engine.telling != this_thread() {
            engine = self.has_told.wait(engine).unwrap();
        }
        let told = engine.running.take();
        drop(engine);
        drop(told); // Dropped without the lock, because the drop runs code of the device.
    }

    /// Marks the current run as canceled. The caller holds the lock of the request. After it has released the lock, it must call
    /// [`CancelToken::tell_engine`].
    pub(super) fn mark(&self) {
        self.canceled.store(true, Ordering::Release);
    }

    /// If the run was canceled and an engine works for it, interrupts the engine, at most once in a run.
    pub(super) fn tell_engine(&self) {
        if !self.is_canceled() {
            return;
        }
        let mut engine = self.engine.lock().unwrap();
        // Check the flag again under the lock: meanwhile a new run, which is not canceled, may have registered the engine.
        if !self.is_canceled() || engine.is_told || engine.telling != 0 {
            return;
        }
        let Some(interrupt) = engine.running.clone() else { return };
        (engine.is_told, engine.telling) = (true, this_thread());
        drop(engine);
        let told = catch(format_args!("the interruption of the engine"), || {
            interrupt.interrupt();
            drop(interrupt);
        });
        self.engine.lock().unwrap().telling = 0;
        self.has_told.notify_all();
        if let Err(error) = told {
            tracing::warn!("{error}; the run ends with its current step instead");
        }
    }

    /// Returns whether this thread is calling the engine's interrupt.
    pub(super) fn is_telling_here(&self) -> bool {
        self.telling_thread() == this_thread()
    }

    /// Returns the thread that is calling the engine's interrupt; 0 if no thread is.
    pub(super) fn telling_thread(&self) -> u64 {
        self.engine.lock().unwrap().telling
    }

    pub(super) fn reset(&self) {
        self.canceled.store(false, Ordering::Release);
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CancelToken({})", if self.is_canceled() { "canceled" } else { "not canceled" })
    }
}

/// A user step.
pub(super) type CustomStep = Box<dyn FnMut(&RunContext<'_>) -> Result<()> + Send>;

pub(super) enum StepTask {
    /// Preprocesses or batches the inputs.
    Inputs,
    /// Offers the inputs to the batching collector.
    Join,
    /// If the run was part of a batched call, copies the outputs of its batch item.
    TakeRow,
    /// A step of the device.
    Device(usize),
    /// A user step.
    Custom(CustomStep),
}

pub(super) struct Step {
    pub(super) name: Arc<str>,
    pub(super) executor: Arc<dyn Executor>,
    pub(super) task: StepTask,
    pub(super) duration: Duration,
}

impl Step {
    fn is_of_device(&self) -> bool {
        matches!(self.task, StepTask::Device(_))
    }

    pub(super) fn is_of_user(&self) -> bool {
        matches!(self.task, StepTask::Custom(_))
    }
}

/// Everything that belongs to a run. A start moves the body out of the request, and the end of the run moves it back.
pub(super) struct Body {
    /// The request's registration for batching, if the model batches runs. Must be dropped before `device`.
    pub(super) seat: Option<Seat>,
    pub(super) device: Box<dyn DeviceRequest>,
    /// The completion of the device, if the device is asynchronous.
    pub(super) completion: Option<Arc<Completion>>,
    pub(super) io: RunIo,
    pub(super) steps: Vec<Step>,
    /// Number of prepended user steps.
    pub(super) n_prepended: usize,
    /// The executor on which the callback is called.
    pub(super) ends_on: Arc<dyn Executor>,
    /// The executor [`Inline`](super::executor::Inline), on which a run without a callback ends.
    pub(super) inline: Arc<dyn Executor>,
    pub(super) next_step_idx: usize,
    pub(super) run: u64,
    pub(super) outcome: Result<()>,
    pub(super) calls_back: bool,
    pub(super) started: Instant,
    /// The tracing span of the run; disabled between runs.
    pub(super) span: tracing::Span,
    /// The number of times that the body was queued. Each task stores this number and compares it when it runs. If the body was queued
    /// again, or was taken by a cancel, the task finds no body with its number and does nothing.
    pub(super) n_queued: u64,
    /// The task that was queued last. It is used again if no executor still holds it.
    pub(super) task: Option<Arc<RunTask>>,
    /// The compiled model, for traces. Must be dropped after `device`.
    pub(super) model: Arc<CompiledShared>,
}

impl Body {
    /// Prepares the body for a run. The leases of the run are already taken. `name` is the name of the request.
    pub(super) fn begin(&mut self, request_id: u64, run: u64, calls_back: bool, name: Option<&str>) {
        self.run = run;
        self.calls_back = calls_back;
        self.next_step_idx = 0;
        self.outcome = Ok(());
        self.started = Instant::now();
        self.span = spans::of_run(self, request_id, name);
    }

    /// Resets all inputs to the request's own tensors, and all variables to zero.
    pub(super) fn clear(&mut self) -> Result<()> {
        self.io.clear_inputs();
        self.reset_variables()
    }

    /// Resets all variables to zero.
    pub(super) fn reset_variables(&mut self) -> Result<()> {
        (0..self.io.places.variables.len()).try_for_each(|variable_idx| self.io.set_variable(&mut *self.device, variable_idx, None))
    }

    /// Runs the next step. An error or panic of the step becomes the outcome of the run. Must not be called while the work of an
    /// asynchronous device is pending.
    pub(super) fn run_next_step(&mut self, cancel: &CancelToken, request_id: u64) {
        let step_idx = self.next_step_idx;
        self.next_step_idx += 1;
        let completed = self.completed(cancel);
        if let Err(error) = cancel.check().and(completed) {
            self.abandon(cancel, error);
            return;
        }
        let step = &mut self.steps[step_idx];
        let (run, frame) = (self.run, self.io.frame);
        let _span =
            tracing::trace_span!(target: "roiflow::trace", parent: &self.span, "step", request = request_id, run, frame, step = &*step.name)
                .entered();
        let begin = Instant::now();
        let (seat, device, io) = (&mut self.seat, &mut self.device, &mut self.io);
        let (name, task) = (&step.name, &mut step.task);
        let done = catch(format_args!("step `{name}`"), || match task {
            StepTask::Inputs => io.fill(),
            StepTask::Join => seat.as_mut().map_or(Ok(()), |seat| seat.join(&DeviceIo { io })),
            StepTask::TakeRow => seat.as_mut().map_or(Ok(()), |seat| seat.take_row(&mut DeviceIo { io })),
            StepTask::Device(device_step_idx) => device.run_step(*device_step_idx, &mut DeviceIo { io }, cancel),
            StepTask::Custom(custom) => custom(&RunContext { io, cancel, run }),
        });
        step.duration = begin.elapsed();
        self.outcome = done.and_then(|done| done);
        if let StepTask::TakeRow = step.task {
            self.skip_device_steps();
        } else if step.is_of_device() && !self.is_pending() && !self.steps.get(self.next_step_idx).is_some_and(Step::is_of_device) {
            self.leave_seat();
        }
    }

    /// If the run was part of a batched call, skips the device's steps, and takes their durations from the call.
    fn skip_device_steps(&mut self) {
        let Some(times) = self.seat.as_ref().and_then(Seat::times) else { return };
        for (step, time) in self.steps[self.next_step_idx..].iter_mut().take_while(|step| step.is_of_device()).zip(times) {
            step.duration = *time;
            self.next_step_idx += 1;
        }
    }

    /// Leaves the batching collector. Called when the run no longer needs its engine.
    pub(super) fn leave_seat(&mut self) {
        if let Some(seat) = &mut self.seat {
            seat.leave();
        }
    }

    /// Returns whether the engine still uses the tensors. While it does, the run can neither continue nor end.
    pub(super) fn is_pending(&self) -> bool {
        self.completion.as_ref().is_some_and(|completion| completion.is_pending())
    }

    /// Blocks until the engine's work is no longer pending.
    pub(super) fn wait_for_completion(&self) {
        if let Some(completion) = &self.completion {
            completion.wait();
        }
    }

    /// Must be called after the last step or a cancel. The result of the engine's work becomes the outcome of the run, unless the run
    /// already has an error.
    pub(super) fn settle_completion(&mut self, cancel: &CancelToken) {
        let completed = self.completed(cancel);
        if self.outcome.is_ok() {
            // An interrupted engine reports an error of its own. The run reports the cancel instead.
            self.outcome = completed.map_err(|error| cancel.check().err().unwrap_or(error));
        }
    }

    /// Takes the result of the engine's work. From now on, a cancel does not interrupt the engine.
    fn completed(&self, cancel: &CancelToken) -> Result<()> {
        let Some(completion) = &self.completion else { return Ok(()) };
        cancel.forget();
        completion.take()
    }

    /// Ends a run with this error. Must not be called while the engine's work is pending.
    pub(super) fn abandon(&mut self, cancel: &CancelToken, error: Error) {
        cancel.forget();
        self.outcome = Err(error);
    }

    /// Returns a task for the executor of the next step. Allocates a new task only if an executor still holds the previous one.
    pub(super) fn next_task(&mut self, shared: &Arc<Shared>) -> Arc<RunTask> {
        self.n_queued += 1;
        match self.task.as_mut().and_then(Arc::get_mut) {
            Some(task) => task.n_queued = self.n_queued,
            None => self.task = Some(Arc::new(RunTask { shared: shared.clone(), n_queued: self.n_queued })),
        }
        self.task.clone().expect("the task existed, or was just created")
    }

    /// Returns the executor of the next step. After the last step, returns the executor on which the run ends.
    pub(super) fn next_executor(&self) -> &Arc<dyn Executor> {
        match self.is_over() {
            false => &self.steps[self.next_step_idx].executor,
            true if self.calls_back => &self.ends_on,
            // Ending a run without a callback is short, so the current thread does it.
            true => &self.inline,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.outcome.is_err() || self.next_step_idx == self.steps.len()
    }

    pub(super) fn step_times(&self) -> Vec<StepTime> {
        self.steps.iter().map(|step| StepTime { name: step.name.clone(), duration: step.duration }).collect()
    }
}
