//! Controls when threads leave and enter the Python interpreter, also at the end of the process.
//!
//! While the interpreter is finalized, CPython ends each thread that takes the interpreter's lock. If such a thread has Rust functions on
//! its stack, this aborts the process. Therefore `_end`, which is registered with `atexit`, closes a gate: it releases the lock, cancels
//! all runs, and waits for threads that run a callback or are about to take the lock. A thread that reaches the closed gate sleeps until
//! the process ends. Only the main thread, which finalizes the interpreter, passes the gate.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use roiflow_devices::exit;

use crate::runtime::{InferRequest, WeakInferRequest};
use crate::tensor::process::ProcessToken;

/// Maximum time for which the end of the process waits for running callbacks.
const EXIT_PATIENCE: Duration = Duration::from_secs(2);

/// The interval after which a wait on the main thread handles signals.
pub const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Whether the process is ending. `_end` sets this flag once.
static ENDS: AtomicBool = AtomicBool::new(false);
/// Number of callbacks that are running now.
static CALLING: AtomicUsize = AtomicUsize::new(0);
/// Number of threads that are about to take the interpreter's lock.
static RETURNING: AtomicUsize = AtomicUsize::new(0);
/// All existing requests, by request ID.
static REQUESTS: LazyLock<Mutex<HashMap<u64, WeakInferRequest>>> = LazyLock::new(Mutex::default);

/// The process that loaded this package.
pub static LOADED_IN: LazyLock<ProcessToken> = LazyLock::new(ProcessToken::current);

thread_local! {
    /// Number of callbacks on this thread's stack.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Whether this is the main thread; `None` until it is determined.
    static IS_MAIN: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Returns whether this thread is the main thread of the interpreter, on which signals are handled.
pub fn is_main(py: Python<'_>) -> bool {
    IS_MAIN.get().unwrap_or_else(|| {
        let ask = || -> PyResult<bool> {
            let threading = py.import("threading")?;
            let main: u64 = threading.call_method0("main_thread")?.getattr("ident")?.extract()?;
            Ok(main == threading.call_method0("get_ident")?.extract::<u64>()?)
        };
        // `ask` fails only while the interpreter is finalized. Only the main thread runs Python code at that time, so the answer is true.
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

/// Records that this thread is about to take the interpreter's lock. If the process is ending, this function returns only on the main
/// thread.
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

/// Runs `action` with the interpreter's lock, on any thread. If the process is ending, returns `None` without running it.
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

/// Runs `action` without the interpreter's lock, because `action` can wait for threads that need the lock.
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

/// Drops `value` without the interpreter's lock, because the drop can wait for threads that need the lock.
pub fn drop_detached<T: Send>(value: T) {
    do_detached(move || drop(value));
}

/// Calls `wait` without the interpreter's lock, until it returns a value. On the main thread, `wait` gets a time limit, and signals are
/// handled between its calls. On other threads, it gets `None` and waits without a limit. If such a wait would be a deadlock, the runtime
/// refuses it.
pub fn wait_in_slices<T: Send>(py: Python<'_>, mut wait: impl FnMut(Option<Duration>) -> Option<T> + Send) -> PyResult<T> {
    let slice = is_main(py).then_some(SIGNAL_INTERVAL);
    loop {
        if let Some(done) = detached(py, || wait(slice)) {
            return Ok(done);
        }
        py.check_signals()?;
    }
}

/// Registers a request, so that it is canceled when the process ends.
pub fn note(request: &InferRequest) {
    REQUESTS.lock().unwrap().insert(request.id(), request.downgrade());
}

/// Removes a request that was dropped from the registered requests.
pub fn forget(request_id: u64) {
    REQUESTS.lock().unwrap().remove(&request_id);
}

/// Ends all runs before the interpreter is finalized. This function is registered with `atexit`.
///
/// If a callback still computes after [`EXIT_PATIENCE`], the process ends without it. Python ends a thread that asks for the interpreter's
/// lock from now on. Such a thread would abort the process, so it is blocked instead, and no destructors of libraries run at the exit.
///
/// A fork has none of the threads, and ends without any of this.
#[pyfunction]
pub fn _end(py: Python<'_>) {
    if !LOADED_IN.is_current() {
        return;
    }
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
        if CALLING.load(Ordering::SeqCst) > 0 {
            // A thread in a callback has used `DEPTH`, and this thread has used `IS_MAIN`.
            exit::block_aborting_threads(|| DEPTH.get() > 0);
            exit::leave_at_exit();
        }
        // Do not drop these references. If the Python handles of a request are gone, the drop would free the request and wait for its run.
        std::mem::forget(requests);
    });
}
