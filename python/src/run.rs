//! Synchronous runs, for which the caller waits, and their results.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array;
use crate::compiled::Compiled;
use crate::errors::{OrRaise, Panicked, raise};
use crate::inputs::Given;
use crate::interpreter::{SIGNAL_INTERVAL, detached, is_main};
use crate::interrupted;
use crate::package;
use crate::runtime::{EndedRun, InferRequest, PreparedRun, Results};

/// A limit for short runs. If the previous run took at least this time, or had fewer elements, the next run handles signals while it waits.
const SHORT_RUN: Duration = Duration::from_millis(20);

/// Sets the inputs, runs the model and returns the results, as one atomic operation.
pub fn infer<'py>(
    py: Python<'py>,
    request: &InferRequest,
    compiled: &Compiled,
    inputs: Given,
    share_outputs: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let latency = request.latest_latency();
    let prepared = request.prepare(inputs, false).or_raise()?;
    let (n_elements, of_short_runs, begin) = (prepared.n_input_elements(), &compiled.n_elements_of_short_runs, Instant::now());
    let is_no_larger = n_elements.is_some_and(|n_elements| n_elements <= of_short_runs.load(Ordering::Relaxed));
    let is_short = !latency.is_zero() && latency < SHORT_RUN && is_no_larger;
    // Python handles signals only on the main thread. A short run, or a run on a different thread, needs no second thread.
    let ended = if is_short || !is_main(py) { detached(py, || prepared.run()) } else { run_aside(py, request, prepared)? };
    ended.outcome().map_err(raise)?;
    if begin.elapsed() < SHORT_RUN && !is_no_larger {
        of_short_runs.fetch_max(n_elements.unwrap_or(0), Ordering::Relaxed);
    }
    let arrays = arrays(py, &ended.results(), share_outputs)?;
    // The request becomes idle before Python code runs: a signal handler may wait for it.
    drop(ended);
    with_ports(py, compiled, arrays)
}

/// Runs the model on a second thread, while this thread handles signals. If a signal handler raises an exception, the run is canceled.
fn run_aside(py: Python<'_>, request: &InferRequest, prepared: PreparedRun) -> PyResult<EndedRun> {
    let (send, receive) = sync_channel(1);
    let run = std::thread::Builder::new().name("roiflow-infer".to_owned()).spawn(move || {
        let _nobody_waits = send.send(prepared.run());
    });
    run.map_err(|error| Panicked::new_err(format!("the system refuses a thread: {error}")))?;
    let receive = std::sync::Mutex::new(receive);
    let mut interrupted = None;
    loop {
        match detached(py, || receive.lock().unwrap().recv_timeout(SIGNAL_INTERVAL)) {
            Ok(ended) => return interrupted.map_or(Ok(ended), Err),
            Err(RecvTimeoutError::Disconnected) => return Err(Panicked::new_err("the thread of a run ended without a result")),
            Err(RecvTimeoutError::Timeout) if interrupted.is_none() => {
                if let Err(error) = interrupted::check_signals(py, request.id()) {
                    interrupted = Some(error);
                    detached(py, || request.cancel());
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Converts the outputs to a mapping from ports to arrays. If `share_outputs` is true, the arrays are views of the request's tensors.
/// Otherwise, they are copies.
pub fn results<'py>(py: Python<'py>, compiled: &Compiled, results: &Results, share_outputs: bool) -> PyResult<Bound<'py, PyAny>> {
    with_ports(py, compiled, arrays(py, results, share_outputs)?)
}

fn arrays<'py>(py: Python<'py>, results: &Results, share_outputs: bool) -> PyResult<Vec<Bound<'py, PyUntypedArray>>> {
    let array = |tensor| if share_outputs { array::view(py, tensor) } else { array::copied(py, tensor) };
    results.iter().map(|(_, tensor)| array(tensor)).collect()
}

fn with_ports<'py>(py: Python<'py>, compiled: &Compiled, arrays: Vec<Bound<'py, PyUntypedArray>>) -> PyResult<Bound<'py, PyAny>> {
    let values = PyDict::new(py);
    for (array, port) in arrays.into_iter().zip(&compiled.output_objects) {
        values.set_item(port, array)?;
    }
    package::results(py, values)
}
