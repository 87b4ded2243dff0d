//! When threads leave and enter the interpreter, and the end of the process.
//!
//! A thread that takes the interpreter's lock while the interpreter is finalized is ended by CPython in the middle of our frames, which aborts
//! the process. So `atexit` closes a gate: it cancels the runs, waits for the callbacks that are on and for the threads that are on
//! their way back into the interpreter, with the lock released; every later one stays outside until the process is gone. Only
//! the main thread, which finalizes, passes.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::runtime::{InferRequest, WeakInferRequest};

/// How long the end of the process waits for callbacks that are on.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);

/// How often a wait on the main thread looks for signals.
pub const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// The process ends: set once, by `atexit`.
static ENDS: AtomicBool = AtomicBool::new(false);
/// Threads that are inside a callback.
static CALLING: AtomicUsize = AtomicUsize::new(0);
/// Threads on their way back into the interpreter.
static RETURNING: AtomicUsize = AtomicUsize::new(0);
/// The requests that exist, by number.
static REQUESTS: LazyLock<Mutex<HashMap<u64, WeakInferRequest>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// Callbacks on this thread's stack.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Whether this is the main thread, once it is known.
    static IS_MAIN: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Whether this is the main thread of the interpreter, on which signals are handled.
pub fn is_main(py: Python<'_>) -> bool {
    IS_MAIN.get().unwrap_or_else(|| {
        let ask = || -> PyResult<bool> {
            let threading = py.import("threading")?;
            let main: u64 = threading.call_method0("main_thread")?.getattr("ident")?.extract()?;
            Ok(main == threading.call_method0("get_ident")?.extract::<u64>()?)
        };
        // A failure is that of an interpreter that is half gone, which only the main thread sees.
        let is_main = ask().unwrap_or(true);
        IS_MAIN.set(Some(is_main));
        is_main
    })
}

/// Runs `action` without the interpreter's lock.
pub fn detached<R: Send>(py: Python<'_>, action: impl FnOnce() -> R + Send) -> R {
    let is_main = is_main(py);
    let done = py.detach(|| {
        let done = action();
        begin_to_return(is_main);
        done
    });
    RETURNING.fetch_sub(1, Ordering::SeqCst);
    done
}

/// The thread is about to take the lock; it stays here if the process ends.
fn begin_to_return(is_main: bool) {
    RETURNING.fetch_add(1, Ordering::SeqCst);
    if ENDS.load(Ordering::SeqCst) && !is_main {
        RETURNING.fetch_sub(1, Ordering::SeqCst);
        CALLING.fetch_sub(DEPTH.get(), Ordering::SeqCst);
        loop {
            std::thread::park();
        }
    }
}

/// Calls into the interpreter from any thread, unless the process ends.
pub fn called<R>(action: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
            CALLING.fetch_sub(1, Ordering::SeqCst);
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    CALLING.fetch_add(1, Ordering::SeqCst);
    let _leave = Leave;
    if ENDS.load(Ordering::SeqCst) { None } else { Python::try_attach(action) }
}

/// Does what may wait for threads that want the interpreter's lock.
pub fn do_detached(action: impl FnOnce() + Send) {
    let mut action = Some(action);
    let mut act = |py: Option<Python<'_>>| match (action.take(), py) {
        (Some(action), Some(py)) => detached(py, action),
        (Some(action), None) => action(),
        (None, _) => {}
    };
    if Python::try_attach(|py| act(Some(py))).is_none() {
        act(None);
    }
}

/// Drops what may wait for threads that want the interpreter's lock.
pub fn drop_detached<T: Send>(value: T) {
    do_detached(move || drop(value));
}

/// Waits until `wait` says that it is over: on the main thread in slices, between which signals are handled; on other threads with `None`, for as
/// long as it takes. The runtime then knows of the wait, and refuses one that could never end.
pub fn wait_in_slices<T: Send>(py: Python<'_>, mut wait: impl FnMut(Option<Duration>) -> Option<T> + Send) -> PyResult<T> {
    let slice = is_main(py).then_some(SIGNAL_INTERVAL);
    loop {
        if let Some(done) = detached(py, || wait(slice)) {
            return Ok(done);
        }
        py.check_signals()?;
    }
}

/// Notes a request, to be canceled when the process ends.
pub fn note(request: &InferRequest) {
    REQUESTS.lock().unwrap().insert(request.id(), request.downgrade());
}

/// The request is gone.
pub fn forget(request_id: u64) {
    REQUESTS.lock().unwrap().remove(&request_id);
}

/// Ends all runs before the interpreter is finalized. Registered with `atexit`.
#[pyfunction]
pub fn _end(py: Python<'_>) {
    ENDS.store(true, Ordering::SeqCst);
    py.detach(|| {
        let requests: Vec<InferRequest> = REQUESTS.lock().unwrap().values().filter_map(WeakInferRequest::upgrade).collect();
        requests.iter().for_each(InferRequest::cancel);
        let deadline = Instant::now() + EXIT_PATIENCE;
        for request in &requests {
            let _over = request.wait_for(deadline.saturating_duration_since(Instant::now()));
        }
        while CALLING.load(Ordering::SeqCst) + RETURNING.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Not dropped: the handles that Python has may be the last ones, and are dropped when it drops them.
        std::mem::forget(requests);
    });
}
