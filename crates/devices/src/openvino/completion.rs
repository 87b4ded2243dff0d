//! The end of a run on an accelerator: OpenVINO calls back, and the run's next step is queued. No thread waits meanwhile.
//!
//! Two things happen in either order: the runtime hands over the task of the next step ([`Executor::execute`]), and the library
//! tells that it has computed. Whoever comes second queues the task on the processor's pool. On the library's thread nothing else
//! happens: a request that is freed inside its own callback would wait for itself.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::runtime::executor::{Executor, Task};

/// The executor of the step that waits for the engine; one for each request.
pub(super) struct Completion {
    /// Held only to look or to change.
    state: Mutex<State>,
    /// Where the waiting step then runs.
    pool: Arc<dyn Executor>,
}

enum State {
    /// Nothing was started, or its end was seen.
    Idle,
    /// The engine computes; the task is here once the runtime has handed it over.
    Computing(Option<Arc<dyn Task>>),
    /// The engine is done with the tensors; nobody has asked yet how it went.
    Computed,
}

impl Completion {
    pub(super) fn new(pool: Arc<dyn Executor>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::Idle), pool })
    }

    /// A run is about to start.
    pub(super) fn begin(&self) {
        *self.state.lock().unwrap() = State::Computing(None);
    }

    /// The end of the run was seen, or it did not start.
    pub(super) fn end(&self) {
        *self.state.lock().unwrap() = State::Idle;
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(*self.state.lock().unwrap(), State::Idle)
    }

    pub(super) fn is_computing(&self) -> bool {
        matches!(*self.state.lock().unwrap(), State::Computing(_))
    }

    /// The engine is done with the tensors of the run.
    pub(super) fn has_computed(&self) {
        let mut state = self.state.lock().unwrap();
        // A synchronous run may have seen the end by itself already.
        let State::Computing(task) = &mut *state else { return };
        let task = task.take();
        *state = State::Computed;
        drop(state);
        if let Some(task) = task {
            self.pool.execute(task);
        }
    }
}

impl Executor for Completion {
    fn execute(&self, task: Arc<dyn Task>) {
        {
            let mut state = self.state.lock().unwrap();
            if let State::Computing(waiting) = &mut *state {
                *waiting = Some(task);
                return;
            }
        }
        self.pool.execute(task);
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Completion({}, then {:?})", if self.is_computing() { "computing" } else { "not computing" }, self.pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::executor::Manual;

    struct Nothing;

    impl Task for Nothing {
        fn run(self: Arc<Self>) {}
    }

    #[test]
    fn the_task_is_queued_once_whichever_comes_first() {
        for engine_first in [true, false] {
            let pool = Arc::new(Manual::default());
            let completion = Completion::new(pool.clone());
            for n_runs in 1..=3 {
                completion.begin();
                assert!(completion.is_computing());
                if engine_first {
                    completion.has_computed();
                    completion.execute(Arc::new(Nothing));
                } else {
                    completion.execute(Arc::new(Nothing));
                    assert_eq!(pool.n_queued(), n_runs - 1, "the engine has not computed yet");
                    completion.has_computed();
                }
                completion.has_computed();
                assert_eq!((pool.n_queued(), completion.is_computing(), completion.is_idle()), (n_runs, false, false));
                completion.end();
            }
        }
    }
}
