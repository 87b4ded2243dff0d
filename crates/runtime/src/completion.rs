//! Asynchronous completion: a device reports that its work is complete, and then the run continues. No thread blocks while the device
//! works.
//!
//! A device with an asynchronous engine creates one [`Completion`] per request and returns it from
//! [`DeviceRequest::completion`](super::device::DeviceRequest::completion). One step starts the work. The next step, on a CPU executor,
//! reads the results:
//!
//! ```text
//!         start                         complete                  the run goes on
//!  Idle ─────────▶ Pending ──────────────────────▶ Complete ─────────────────────▶ Idle
//!   ▲                 │
//!   └─────────────────┘ the engine refused to start
//! ```
//!
//! After the start, two events happen in any order: the runtime hands the run over to the [`Completion`], and the engine completes its
//! work. The event that happens last queues the run on the executor of its next step. The engine's thread does nothing else. In particular,
//! it frees no request, so it may call [`Completion::complete`] in a callback even if the engine forbids freeing its requests there.
//!
//! While work is pending, the engine uses the tensors of the run, so the run cannot end. If the request is canceled or dropped, the engine
//! is interrupted ([`CancelToken::interrupt_with`](super::CancelToken::interrupt_with)), but the run stays pending until the engine reports
//! completion. A synchronous run blocks its calling thread while work is pending. If the engine never reports completion, the memory of the
//! run is never freed. `wait_for` and the drop of the request still return after their time limit.

use std::fmt;
use std::sync::Arc;

use super::Result;
use super::executor::Executor;
use super::run::RunTask;
use crate::sync::{Condvar, Mutex};

/// Reports that the work of an asynchronous step is complete. The module documentation explains how to use this type.
#[derive(Default)]
pub struct Completion {
    /// The lock is held only to read or change the state.
    state: Mutex<State>,
    /// Notifies the calling thread of a synchronous run that work is no longer pending.
    changed: Condvar,
}

#[derive(Default)]
enum State {
    /// No work is in progress: no work was started, or the run has taken the result.
    #[default]
    Idle,
    /// The engine uses the tensors of the run. Contains the run as soon as the runtime has handed it over.
    Pending(Option<Waiting>),
    /// The work is complete, but the run has not continued yet.
    Complete(Result<()>),
}

/// A run and the executor of its next step.
type Waiting = (Arc<RunTask>, Arc<dyn Executor>);

impl Completion {
    /// Creates a completion without pending work.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Calls `start`, which hands the work to the engine. The step is complete when [`Completion::complete`] is called, which may happen
    /// before `start` returns. Devices call this method in [`DeviceRequest::run_step`](super::device::DeviceRequest::run_step), at most
    /// once per run.
    ///
    /// # Errors
    /// Returns the error of `start`. After an error or a panic of `start`, no work is pending, so the engine must not use the tensors.
    pub fn start<T, E>(&self, start: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        struct Withdraw<'a>(&'a Completion);
        impl Drop for Withdraw<'_> {
            fn drop(&mut self) {
                *self.0.state.lock().unwrap() = State::Idle;
            }
        }
        *self.state.lock().unwrap() = State::Pending(None);
        let also_after_a_panic = Withdraw(self);
        let started = start()?;
        std::mem::forget(also_after_a_panic);
        Ok(started)
    }

    /// Reports that the engine no longer uses the tensors of the run. An error becomes the error of the run, unless the run has another
    /// error or was canceled. May be called on any thread and never blocks. Has no effect if no work is pending.
    pub fn complete(&self, result: Result<()>) {
        let waiting = {
            let mut state = self.state.lock().unwrap();
            let State::Pending(waiting) = &mut *state else { return };
            let waiting = waiting.take();
            *state = State::Complete(result);
            waiting
        };
        self.changed.notify_all();
        if let Some((task, executor)) = waiting {
            task.queue_on(&*executor);
        }
    }

    /// Returns whether work is pending.
    pub fn is_pending(&self) -> bool {
        matches!(*self.state.lock().unwrap(), State::Pending(_))
    }

    /// Queues the run on the executor of its next step: when the work is complete, or immediately if no work is pending.
    pub(super) fn queue(&self, task: Arc<RunTask>, executor: Arc<dyn Executor>) {
        {
            let mut state = self.state.lock().unwrap();
            if let State::Pending(waiting) = &mut *state {
                // A canceled earlier run may be handed over late. Its task must not replace the task of the newer run.
                if waiting.as_ref().is_none_or(|(known, _)| known.n_queued < task.n_queued) {
                    *waiting = Some((task, executor));
                }
                return;
            }
        }
        task.queue_on(&*executor);
    }

    /// Blocks until no work is pending.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        while matches!(*state, State::Pending(_)) {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// Takes the result of the work. Returns `Ok` if there was no work.
    pub(super) fn take(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        match std::mem::take(&mut *state) {
            State::Idle => Ok(()),
            State::Complete(result) => result,
            pending @ State::Pending(_) => {
                *state = pending;
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Completion({})", if self.is_pending() { "pending" } else { "not pending" })
    }
}
