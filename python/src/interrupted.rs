//! The synchronous runs for which the main thread waits while a signal handler interrupts it.
//!
//! The results of such a run are read before its request becomes idle, and the main thread reads them. So the run ends only after the signal
//! handler has returned. A handler that waits for the same request would wait forever.

use std::cell::RefCell;

use pyo3::prelude::*;

use crate::errors::WouldDeadlock;

thread_local! {
    /// The IDs of the requests whose runs this thread waits for.
    static REQUESTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Calls the signal handlers that are due, while this thread waits for a run of this request. Raises the exception of a handler.
pub fn check_signals(py: Python<'_>, request_id: u64) -> PyResult<()> {
    REQUESTS.with_borrow_mut(|requests| requests.push(request_id));
    let handled = py.check_signals();
    REQUESTS.with_borrow_mut(Vec::pop);
    handled
}

/// Raises WouldDeadlock if this thread is inside a signal handler that has interrupted a synchronous run of one of these requests.
pub fn check(request_ids: &[u64]) -> PyResult<()> {
    refuse_if(REQUESTS.with_borrow(|requests| requests.iter().any(|request| request_ids.contains(request))))
}

/// Same as [`check`], for a call that waits until any of the requests is idle: raises WouldDeadlock if the runs of all of them are
/// interrupted.
pub fn check_all(request_ids: &[u64]) -> PyResult<()> {
    refuse_if(REQUESTS.with_borrow(|requests| request_ids.iter().all(|request| requests.contains(request))))
}

fn refuse_if(would_deadlock: bool) -> PyResult<()> {
    if would_deadlock {
        let message = "a signal handler that has interrupted `infer` waits for the same request, whose run ends only after the handler; \
                       wait after `infer` has returned";
        return Err(WouldDeadlock::new_err(message));
    }
    Ok(())
}
