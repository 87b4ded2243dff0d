//! Asynchronous completion: a device tells that work which it does beside the processor is done, and the run goes on. No thread waits.
//!
//! A device whose engine calls back makes one [`Completion`] for each of its requests and gives it out with
//! [`DeviceRequest::completion`](super::device::DeviceRequest::completion). One step starts the work; the next one, on an executor of
//! the processor, takes the results:
//!
//! ```text
//!         start                         complete                  the run goes on
//!  Idle ─────────▶ Pending (run or not) ─────────▶ Complete ─────────────────────▶ Idle
//!   ▲                 │
//!   └─────────────────┘ the engine refused to start
//! ```
//!
//! Two things happen in either order: the runtime hands the run over, and the engine is done. The second of both queues the run on the
//! executor of its next step. That is all that happens on the engine's thread, so an engine may call [`Completion::complete`] where
//! its own requests must not be freed.
//!
//! While work is pending the engine uses the tensors of the run, so the run ends in no way: a cancel and the drop of the request
//! interrupt the engine ([`CancelToken::interrupt_with`](super::CancelToken::interrupt_with)) and leave the run where it is. A
//! synchronous run waits on its caller's thread. Work that is never completed keeps the memory of its run for ever; `wait_for` and the
//! drop of the request return when their time is over.

use std::fmt;
use std::sync::Arc;

use super::Result;
use super::executor::Executor;
use super::run::RunTask;
use crate::sync::{Condvar, Mutex};

/// Tells when the work that a step started is done. See the module.
#[derive(Default)]
pub struct Completion {
    /// Held only to look or to change.
    state: Mutex<State>,
    /// For a synchronous run.
    changed: Condvar,
}

#[derive(Default)]
enum State {
    /// Nothing was started, or its end was seen.
    #[default]
    Idle,
    /// The engine uses the tensors of the run, which is here once it was handed over.
    Pending(Option<Waiting>),
    /// The engine is done with them; the run has not gone on yet.
    Complete(Result<()>),
}

/// A run, and where its next step takes place.
type Waiting = (Arc<RunTask>, Arc<dyn Executor>);

impl Completion {
    /// Of a request that has started nothing.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Starts the work with `start`, which hands it to the engine: the step is done when [`Completion::complete`] is called, which may be
    /// before `start` returns. For [`DeviceRequest::run_step`](super::device::DeviceRequest::run_step), at most once in a run.
    ///
    /// # Errors
    /// Those of `start`. Nothing is pending then, and neither is it after a panic: the engine must not use the tensors.
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

    /// The engine is done with the tensors of the run. With an error the run ends, in general with that error. From any thread; never
    /// blocks. Without work that is pending, and when called again, it does nothing.
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

    /// Whether work was started and is not done.
    pub fn is_pending(&self) -> bool {
        matches!(*self.state.lock().unwrap(), State::Pending(_))
    }

    /// Lets the run go on when the work is done: now, if nothing is pending.
    pub(super) fn queue(&self, task: Arc<RunTask>, executor: Arc<dyn Executor>) {
        {
            let mut state = self.state.lock().unwrap();
            if let State::Pending(waiting) = &mut *state {
                // The task of a run that a cancel ended before it came here must not displace that of the next run.
                if waiting.as_ref().is_none_or(|(known, _)| known.n_queued < task.n_queued) {
                    *waiting = Some((task, executor));
                }
                return;
            }
        }
        task.queue_on(&*executor);
    }

    /// Returns when nothing is pending.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        while matches!(*state, State::Pending(_)) {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// How the work ended, once; `Ok` if there was none.
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
