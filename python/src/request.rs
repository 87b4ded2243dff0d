//! The class `InferRequest`.
//!
//! Several Python objects (`InferRequest` and its subclasses) can share one `Handle`. The `Handle` is a Python object as well, so that the
//! garbage collector can visit the callback. The closure in the runtime has only a weak reference to the callback, so the callback is
//! dropped with the last Python object of the request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyBaseException, PyRuntimeWarning, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use crate::arguments::bind;
use crate::compiled::{Compiled, CompiledModel};
use crate::errors::{Error, OrRaise, raise};
use crate::inputs::{Given, each_item};
use crate::interpreter::{self, called, detached, do_detached, wait_in_slices};
use crate::interrupted;
use crate::package;
use crate::port::{ConstOutput, Key, index_from, no_key};
use crate::queue::Slot;
use crate::run::{infer, results};
use crate::runtime::{self, Input, NodeStatus, PortKey};
use crate::tensor::Tensor;
use crate::tensor_class::{tensor_from, tensors_from, wrap, wrap_all};
use crate::variable::VariableState;

/// A callback, with its user data and the exception that it raised last.
pub struct Callback {
    state: Mutex<CallbackState>,
}

struct CallbackState {
    function: Py<PyAny>,
    userdata: Py<PyAny>,
    /// The exception that the callback raised after the latest run. Its traceback refers to the objects of the callback, which may refer to
    /// the request. As an object, the garbage collector can visit it.
    raised: Option<Py<PyBaseException>>,
}

impl Callback {
    fn new(function: Py<PyAny>, userdata: Py<PyAny>) -> Self {
        Self { state: Mutex::new(CallbackState { function, userdata, raised: None }) }
    }

    /// Calls the function and stores its exception. Runs on a thread of the runtime.
    fn call(&self, py: Python<'_>) {
        let (function, userdata) = {
            let state = self.state.lock().unwrap();
            (state.function.clone_ref(py), state.userdata.clone_ref(py))
        };
        let raised = function.call1(py, (userdata,)).err().map(|raised| raised.into_value(py));
        if raised.is_some() {
            let before = std::mem::replace(&mut self.state.lock().unwrap().raised, raised);
            drop(before);
        }
    }

    /// Prepares for a new run: if `userdata` is `Some`, replaces the user data. Also removes the exception of the previous run.
    fn begin(&self, userdata: Option<Py<PyAny>>) {
        let mut state = self.state.lock().unwrap();
        let before = (userdata.map(|userdata| std::mem::replace(&mut state.userdata, userdata)), state.raised.take());
        drop(state);
        drop(before);
    }
}

/// The state that all Python objects of a request share.
#[pyclass(frozen, module = "roiflow._roiflow", name = "_Handle")]
pub struct Handle {
    /// `None` only while the handle is dropped.
    request: Option<runtime::InferRequest>,
    pub compiled: Arc<Compiled>,
    callback: Mutex<Option<Arc<Callback>>>,
    /// Whether a run was ever started. If not, waits return immediately.
    has_started: AtomicBool,
    /// The slot of the request, if it belongs to a queue.
    slot: Option<Slot>,
}

impl Handle {
    /// Creates the shared state of a request. Registers the request with `interpreter`, so that it is canceled when the process ends.
    pub fn new(compiled: Arc<Compiled>, request: runtime::InferRequest, slot: Option<Slot>) -> Self {
        interpreter::note(&request);
        Self { request: Some(request), compiled, callback: Mutex::default(), has_started: AtomicBool::new(false), slot }
    }

    /// Returns the request.
    pub fn request(&self) -> &runtime::InferRequest {
        self.request.as_ref().expect("only the drop takes it")
    }

    /// Records that a run was started.
    pub fn note_start(&self) {
        self.has_started.store(true, Ordering::Release);
    }

    fn callback(&self) -> Option<Arc<Callback>> {
        self.callback.lock().unwrap().clone()
    }

    /// Raises the exception that the callback raised after the latest run.
    fn check_callback(&self, py: Python<'_>) -> PyResult<()> {
        let Some(callback) = self.callback() else { return Ok(()) };
        let raised = callback.state.lock().unwrap().raised.as_ref().map(|raised| raised.clone_ref(py));
        raised.map_or(Ok(()), |raised| Err(PyErr::from_value(raised.into_bound(py).into_any())))
    }

    /// Waits for the latest run, at most for `timeout`. Returns whether the run has ended. Returns false if no run was ever started.
    fn wait_for(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<bool> {
        if !self.has_started.load(Ordering::Acquire) {
            return Ok(false);
        }
        let request = self.request();
        interrupted::check(&[request.id()])?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let outcome = wait_in_slices(py, |slice| {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let ended = match slice.into_iter().chain(left).min() {
                Some(limit) => request.wait_for(limit),
                None => request.wait().map(|()| true),
            };
            match ended {
                Ok(false) if deadline.is_none_or(|deadline| Instant::now() < deadline) => None,
                outcome => Some(outcome),
            }
        })?;
        match outcome {
            Ok(true) | Err(_) => self.check_callback(py)?,
            Ok(false) => {}
        }
        outcome.map_err(raise)
    }
}

/// Lets the garbage collector visit a stored exception.
pub fn visit_exception(raised: &Option<Py<PyBaseException>>, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
    raised.as_ref().map_or(Ok(()), |raised| visit.call(raised))
}

#[pymethods]
impl Handle {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // If the mutex is locked, a thread uses the request, so the objects in it are still reachable.
        let Ok(callback) = self.callback.try_lock() else { return Ok(()) };
        let Some(callback) = &*callback else { return Ok(()) };
        let Ok(state) = callback.state.try_lock() else { return Ok(()) };
        visit.call(&state.function)?;
        visit.call(&state.userdata)?;
        visit_exception(&state.raised, &visit)
    }

    fn __clear__(&self) {
        let before = self.callback.lock().unwrap().take();
        drop(before);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        interpreter::forget(request.id());
        let (is_of_queue, has_started) = (self.slot.is_some(), *self.has_started.get_mut());
        let compiled = self.compiled.clone();
        do_detached(move || {
            if has_started && !is_of_queue {
                request.cancel();
                // Wait until a running callback has returned. If the callback itself drops the request, this wait fails immediately.
                let _over = request.wait_for(Duration::from_secs(5));
            }
            drop((request, compiled));
        });
    }
}

/// Runs a compiled model, one run at a time, with its own tensors. `CompiledModel.create_infer_request` creates it.
///
/// `InferRequest(other)` is a second object for the same request. While the request runs, all methods and properties raise `roiflow.Busy`,
/// except `wait`, `wait_for`, `cancel`, `latency`, `userdata` and the ports.
#[pyclass(frozen, module = "roiflow._roiflow", subclass, name = "InferRequest")]
pub struct InferRequest {
    handle: OnceLock<Py<Handle>>,
}

impl InferRequest {
    /// Creates a Python object of a request.
    pub fn new(handle: Py<Handle>) -> Self {
        Self { handle: OnceLock::from(handle) }
    }

    /// Returns the state that this object shares with the other objects of the same request.
    pub fn handle(&self) -> PyResult<&Handle> {
        let handle = self.handle.get().ok_or_else(|| Error::new_err("InferRequest.__init__ was not called with a request"))?;
        Ok(handle.get())
    }

    fn request(&self) -> PyResult<&runtime::InferRequest> {
        Ok(self.handle()?.request())
    }

    fn given(&self, inputs: Option<&Bound<'_, PyAny>>, share: bool) -> PyResult<Given> {
        Given::parse(inputs, share, &self.handle()?.compiled.inputs)
    }

    /// Finds a port by its name or by a port object. Searches the inputs first. Returns whether the port is an input, and its index.
    fn find(&self, key: &Bound<'_, PyAny>) -> PyResult<(bool, usize)> {
        let key = Key::from_value(key)?.ok_or_else(|| no_key(key))?;
        if matches!(key, Key::Index(_)) {
            return Err(PyTypeError::new_err("expected a name or a port, got a number; use get_input_tensor or get_output_tensor"));
        }
        self.find_key(&key)
    }

    fn find_key(&self, key: &Key) -> PyResult<(bool, usize)> {
        let compiled = &self.handle()?.compiled;
        match key.find("input", &compiled.inputs) {
            Ok(idx) => Ok((true, idx)),
            Err(_) => key.find("output", &compiled.outputs).map(|idx| (false, idx)).map_err(|error| {
                match key.find("input or output", &[&compiled.inputs[..], &compiled.outputs[..]].concat()) {
                    Err(of_both) => of_both,
                    Ok(_) => error,
                }
            }),
        }
    }

    fn tensor_at(&self, py: Python<'_>, is_input: bool, idx: usize) -> PyResult<Py<PyAny>> {
        let request = self.request()?;
        wrap(py, if is_input { request.input_tensor(idx) } else { request.output_tensor(idx) }.or_raise()?)
    }

    fn set_tensor_at(&self, is_input: bool, idx: usize, tensor: &Tensor) -> PyResult<()> {
        let request = self.request()?;
        if is_input { request.set_input_tensor(idx, tensor) } else { request.set_output_tensor(idx, tensor) }.or_raise()
    }

    /// Converts an optional argument to the index of an input or output. Without an argument, returns the index of the only port. Raises
    /// RuntimeError if there are several ports and no argument.
    fn index(&self, is_input: bool, index: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
        let compiled = &self.handle()?.compiled;
        let (kind, ports) = if is_input { ("input", &compiled.inputs) } else { ("output", &compiled.outputs) };
        let key = match index {
            Some(index) => Key::Index(index_from(index)?),
            None => Key::Only,
        };
        key.find(kind, ports)
    }

    fn set_batch(&self, key: &Key, tensors: &Bound<'_, PyAny>) -> PyResult<()> {
        let handle = self.handle()?;
        let idx = key.find("input", &handle.compiled.inputs)?;
        handle.request().set_tensors(idx, &tensors_from(tensors)?).or_raise()
    }

    /// Sets input or output tensors from a dictionary that maps indexes to tensors.
    fn set_by_index(&self, is_input: bool, tensors: &Bound<'_, PyAny>) -> PyResult<()> {
        let tensors = tensors.cast::<PyDict>().map_err(|_| PyTypeError::new_err("expected a dictionary from index to Tensor"))?;
        let mut found: Vec<(usize, Tensor)> = Vec::with_capacity(tensors.len());
        each_item(tensors, |key, tensor| {
            let tensor = tensor_from(tensor)?;
            found.push((self.index(is_input, Some(key))?, tensor));
            Ok(())
        })?;
        let request = self.request()?;
        if is_input { request.set_inputs(&shared_inputs(&found)[..]) } else { request.set_output_tensors(found) }.or_raise()
    }
}

fn shared_inputs(found: &[(usize, Tensor)]) -> Vec<(PortKey<'static>, Input<'static>)> {
    found.iter().map(|(idx, tensor)| (PortKey::Index(*idx), Input::Share(tensor.clone()))).collect()
}

#[pymethods]
impl InferRequest {
    #[new]
    #[pyo3(signature = (*args, **_kwargs))]
    fn py_new(args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        // A subclass may have other arguments in its constructor. Such a subclass passes the request to `__init__`.
        let handle = OnceLock::new();
        if let Ok(other) = args.get_item(0)
            && let Ok(other) = other.cast::<InferRequest>()
            && let Some(shared) = other.get().handle.get()
        {
            let _first = handle.set(shared.clone_ref(args.py()));
        }
        Self { handle }
    }

    fn __init__(&self, py: Python<'_>, other: &Bound<'_, InferRequest>) -> PyResult<()> {
        other.get().handle()?;
        if let Some(shared) = other.get().handle.get() {
            let _unless_set_already = self.handle.set(shared.clone_ref(py));
        }
        Ok(())
    }

    /// Sets the inputs, runs the model and returns the outputs, as one atomic operation.
    ///
    /// `inputs` is an array or Tensor for the only input, a list or tuple in the order of the inputs, a dictionary with names, indexes or
    /// ports as keys, or the results of another run. None keeps the current inputs. Arrays are cast with the rules of numpy; tensors are
    /// not cast. With `share_inputs`, arrays that are C-contiguous, writable and of the right type are not copied: the request keeps them
    /// alive until the input is replaced. With `share_outputs`, the results are views, and the next run changes them.
    ///
    /// Raises Busy while the request runs, TypeError if a value cannot be an input, and another RuntimeError if the inputs do not fit or
    /// the run fails.
    #[pyo3(signature = (inputs=None, share_inputs=false, share_outputs=false, *, shared_memory=None))]
    fn infer<'py>(
        &self,
        py: Python<'py>,
        inputs: Option<&Bound<'py, PyAny>>,
        share_inputs: bool,
        share_outputs: bool,
        shared_memory: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let handle = self.handle()?;
        let given = self.given(inputs, shared_memory.unwrap_or(share_inputs))?;
        if let Some(slot) = &handle.slot {
            return slot.infer(py, handle, given, share_outputs);
        }
        if let Some(callback) = handle.callback() {
            handle.request().latency().or_raise()?; // Raise Busy before `begin`, which would remove the callback's exception.
            callback.begin(None);
        }
        handle.note_start();
        infer(py, handle.request(), &handle.compiled, given, share_outputs)
    }

    /// Sets the inputs, starts a run and returns without waiting. The run keeps its inputs alive.
    ///
    /// `inputs` and `share_inputs` are those of `infer`. If `userdata` is not None, it replaces the user data of the callback. Without a
    /// callback it is discarded, with a RuntimeWarning. Raises the exceptions of `infer` for invalid inputs; `wait` raises the exception of
    /// the run.
    #[pyo3(signature = (inputs=None, userdata=None, share_inputs=false, *, shared_memory=None))]
    fn start_async(
        &self,
        py: Python<'_>,
        inputs: Option<&Bound<'_, PyAny>>,
        userdata: Option<&Bound<'_, PyAny>>,
        share_inputs: bool,
        shared_memory: Option<bool>,
    ) -> PyResult<()> {
        let handle = self.handle()?;
        let given = self.given(inputs, shared_memory.unwrap_or(share_inputs))?;
        let userdata = userdata.filter(|userdata| !userdata.is_none()).map(|userdata| userdata.clone().unbind());
        if let Some(slot) = &handle.slot {
            return slot.start(py, given, userdata);
        }
        let callback = handle.callback();
        if userdata.is_some() && callback.is_none() {
            let message = c"userdata is lost: the request has no callback to pass it to; call set_callback first";
            PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), message, 1)?;
        }
        let prepared = handle.request().prepare(given, true).or_raise()?;
        handle.note_start();
        if let Some(callback) = callback {
            callback.begin(userdata);
        }
        prepared.start();
        Ok(())
    }

    /// Waits for the run and its callback. Returns immediately if no run was started.
    ///
    /// Raises the exception of the callback, Canceled if the run was canceled, WouldDeadlock if the request's own callback calls this
    /// method, and another RuntimeError if the run failed.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        self.handle()?.wait_for(py, None).map(drop)
    }

    /// Like `wait`, but waits at most `timeout` milliseconds. Returns whether the run ended; False if no run was started.
    fn wait_for(&self, py: Python<'_>, timeout: u64) -> PyResult<bool> {
        self.handle()?.wait_for(py, Some(Duration::from_millis(timeout)))
    }

    /// Cancels the run, which ends as soon as its engine allows. No effect on an idle request.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let request = self.request()?;
        detached(py, || request.cancel());
        Ok(())
    }

    /// Sets the callback. It is called with `userdata` after each run that `start_async` started, even if the run failed or was canceled.
    ///
    /// The request is idle during the callback, so the callback may start the next run. `wait` raises the exception of the callback. Raises
    /// Busy while the request runs, TypeError if `callback` is not callable, and OwnedByQueue if the request belongs to a queue.
    fn set_callback(&self, callback: &Bound<'_, PyAny>, userdata: &Bound<'_, PyAny>) -> PyResult<()> {
        if !callback.is_callable() {
            return Err(PyTypeError::new_err(format!("set_callback: expected a function, got {}", callback.get_type())));
        }
        let handle = self.handle()?;
        let new = Arc::new(Callback::new(callback.clone().unbind(), userdata.clone().unbind()));
        let weak = Arc::downgrade(&new);
        let call = move |_: &runtime::InferRequest, _: runtime::Result<()>| {
            let _unless_the_process_ends = called(|py| {
                if let Some(callback) = weak.upgrade() {
                    callback.call(py);
                }
            });
        };
        handle.request().set_callback(call).or_raise()?;
        let before = handle.callback.lock().unwrap().replace(new);
        drop(before);
        Ok(())
    }

    /// The user data of the callback; None if there is no callback.
    #[getter]
    fn userdata(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let handle = self.handle()?;
        if let Some(slot) = &handle.slot {
            return Ok(slot.userdata(py));
        }
        let Some(callback) = handle.callback() else { return Ok(py.None()) };
        let userdata = callback.state.lock().unwrap().userdata.clone_ref(py);
        Ok(userdata)
    }

    /// Duration of the latest completed run in milliseconds; 0 before the first run.
    #[getter]
    fn latency(&self) -> PyResult<f64> {
        Ok(self.request()?.latest_latency().as_secs_f64() * 1e3)
    }

    /// Returns the tensor of an input or output, by name or port. Raises RuntimeError if there is no such port, and Busy while the request
    /// runs.
    #[pyo3(signature = (*args, **kwargs))]
    fn get_tensor(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Py<PyAny>> {
        let (_, values) = bind("get_tensor", &[&["name"], &["port"]], args, kwargs)?;
        let (is_input, idx) = self.find(&values[0])?;
        self.tensor_at(args.py(), is_input, idx)
    }

    /// Sets the tensor of an input or output, by name or port, without a copy.
    ///
    /// Raises RuntimeError if there is no such port or the tensor does not fit, Busy while the request runs, and TypeError if the value is
    /// not a Tensor.
    #[pyo3(signature = (*args, **kwargs))]
    fn set_tensor(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let (_, values) = bind("set_tensor", &[&["name", "tensor"], &["port", "tensor"]], args, kwargs)?;
        let (is_input, idx) = self.find(&values[0])?;
        self.set_tensor_at(is_input, idx, &tensor_from(&values[1])?)
    }

    /// Sets several tensors. In `set_tensors({key: tensor})`, a key is a name, the index of an input, or a port. `set_tensors(name or port,
    /// list)` sets one input to a batch of tensors.
    ///
    /// Raises the exceptions of `set_tensor`, and RuntimeError if the list does not match the batch.
    #[pyo3(signature = (*args, **kwargs))]
    fn set_tensors(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let (form, values) = bind("set_tensors", &[&["inputs"], &["tensor_name", "tensors"], &["port", "tensors"]], args, kwargs)?;
        if form > 0 {
            let key = Key::from_value(&values[0])?.ok_or_else(|| no_key(&values[0]))?;
            return self.set_batch(&key, &values[1]);
        }
        let tensors = values[0].cast::<PyDict>().map_err(|_| PyTypeError::new_err("set_tensors: expected a dictionary of tensors"))?;
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        each_item(tensors, |key, tensor| {
            let key = Key::from_value(key)?.ok_or_else(|| no_key(key))?;
            let (is_input, idx) = self.find_key(&key)?;
            if is_input { &mut inputs } else { &mut outputs }.push((idx, tensor_from(tensor)?));
            Ok(())
        })?;
        let request = self.request()?;
        let before: Vec<(usize, Tensor)> =
            outputs.iter().map(|(idx, _)| Ok((*idx, request.output_tensor(*idx)?))).collect::<runtime::Result<_>>().or_raise()?;
        if !outputs.is_empty() {
            request.set_output_tensors(outputs).or_raise()?;
        }
        request.set_inputs(&shared_inputs(&inputs)[..]).map_err(|error| {
            // One of the input tensors does not fit. Restore the previous output tensors, so that nothing is changed.
            let _as_they_were = request.set_output_tensors(before);
            raise(error)
        })
    }

    /// Returns the tensor of the input with this index; without an index, of the only input. Raises the exceptions of `get_tensor`.
    #[pyo3(signature = (*args, **kwargs))]
    fn get_input_tensor(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Py<PyAny>> {
        let (_, values) = bind("get_input_tensor", &[&[], &["index"]], args, kwargs)?;
        self.tensor_at(args.py(), true, self.index(true, values.first())?)
    }

    /// Returns the tensor of the output with this index; without an index, of the only output. Raises the exceptions of `get_tensor`.
    #[pyo3(signature = (*args, **kwargs))]
    fn get_output_tensor(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Py<PyAny>> {
        let (_, values) = bind("get_output_tensor", &[&[], &["index"]], args, kwargs)?;
        self.tensor_at(args.py(), false, self.index(false, values.first())?)
    }

    /// Sets the tensor of the input with this index; without an index, of the only input. Raises the exceptions of `set_tensor`.
    #[pyo3(signature = (*args, **kwargs))]
    fn set_input_tensor(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let (form, mut values) = bind("set_input_tensor", &[&["tensor"], &["index", "tensor"]], args, kwargs)?;
        let tensor = tensor_from(&values.pop().expect("both forms end with it"))?;
        self.set_tensor_at(true, self.index(true, (form == 1).then(|| &values[0]))?, &tensor)
    }

    /// Sets the tensor of the output with this index; without an index, of the only output. Raises the exceptions of `set_tensor`.
    #[pyo3(signature = (*args, **kwargs))]
    fn set_output_tensor(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let (form, mut values) = bind("set_output_tensor", &[&["tensor"], &["index", "tensor"]], args, kwargs)?;
        let tensor = tensor_from(&values.pop().expect("both forms end with it"))?;
        self.set_tensor_at(false, self.index(false, (form == 1).then(|| &values[0]))?, &tensor)
    }

    /// Sets several input tensors: `set_input_tensors({index: tensor})`, or `set_input_tensors([index,] list)` for a batch. Raises the
    /// exceptions of `set_tensors`.
    #[pyo3(signature = (*args, **kwargs))]
    fn set_input_tensors(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let (form, values) = bind("set_input_tensors", &[&["inputs"], &["tensors"], &["idx", "tensors"]], args, kwargs)?;
        match form {
            2 => self.set_batch(&Key::Index(index_from(&values[0])?), &values[1]),
            _ if values[0].is_instance_of::<PyDict>() => self.set_by_index(true, &values[0]),
            _ => self.set_batch(&Key::Only, &values[0]),
        }
    }

    /// Sets output tensors by index. Raises the exceptions of `set_tensor`.
    fn set_output_tensors(&self, outputs: &Bound<'_, PyAny>) -> PyResult<()> {
        self.set_by_index(false, outputs)
    }

    /// The tensors of all inputs, in order. Raises Busy while the request runs, and RuntimeError if an input is a batch of tensors.
    #[getter]
    fn input_tensors(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        wrap_all(py, self.request()?.input_tensors().or_raise()?)
    }

    /// The tensors of all outputs, in order. Raises Busy while the request runs.
    #[getter]
    fn output_tensors(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        wrap_all(py, self.request()?.output_tensors().or_raise()?)
    }

    /// Same as `input_tensors`.
    #[getter]
    fn inputs(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        self.input_tensors(py)
    }

    /// Same as `output_tensors`.
    #[getter]
    fn outputs(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        self.output_tensors(py)
    }

    /// The inputs of the compiled model, in order.
    #[getter]
    fn model_inputs(&self) -> PyResult<Vec<ConstOutput>> {
        Ok(self.handle()?.compiled.ports(true))
    }

    /// The outputs of the compiled model, in order.
    #[getter]
    fn model_outputs(&self) -> PyResult<Vec<ConstOutput>> {
        Ok(self.handle()?.compiled.ports(false))
    }

    /// Copies of the outputs of the latest run. Raises Busy while the request runs.
    #[getter]
    fn results<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let handle = self.handle()?;
        results(py, &handle.compiled, &handle.request().results().or_raise()?, false)
    }

    /// The compiled model.
    fn get_compiled_model<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let own = Bound::new(py, CompiledModel::of(self.handle()?.compiled.clone()))?;
        package::compiled_class(py)?.call1((own,))
    }

    /// Returns the execution times of the model's nodes in the latest run.
    ///
    /// Raises RuntimeError if the model was compiled without PERF_COUNT, and Busy while the request runs.
    fn get_profiling_info<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let request = self.request()?;
        let nodes = detached(py, || request.profiling_info()).or_raise()?;
        let class = package::profiling_class(py)?;
        let make = |node: runtime::NodeTime| {
            let status = match node.status {
                NodeStatus::Executed => "EXECUTED",
                NodeStatus::OptimizedOut => "OPTIMIZED_OUT",
                _ => "NOT_RUN",
            };
            let status = class.getattr("Status")?.getattr(status)?;
            let cpu = node.cpu.unwrap_or_default();
            class.call1((node.name, &node.kind, &node.kind, node.real, cpu, status))
        };
        nodes.into_iter().map(make).collect()
    }

    /// Same as `get_profiling_info()`.
    #[getter(profiling_info)]
    fn profiling_info_property<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.get_profiling_info(py)
    }

    /// Returns the variables of the request. Raises Busy while the request runs.
    fn query_state(&self) -> PyResult<Vec<VariableState>> {
        Ok(self.request()?.query_state().or_raise()?.into_iter().map(VariableState::new).collect())
    }

    /// Sets all variables to zeros. Raises Busy while the request runs.
    fn reset_state(&self) -> PyResult<()> {
        self.request()?.reset_state().or_raise()
    }

    fn _is_single_input(&self) -> PyResult<bool> {
        Ok(self.handle()?.compiled.inputs.len() == 1)
    }

    fn __repr__(&self) -> PyResult<String> {
        let compiled = &self.handle()?.compiled;
        let list = |ports: &[Arc<crate::port::PortOf>]| ports.iter().map(|port| port.port.to_string()).collect::<Vec<_>>().join(", ");
        Ok(format!("<InferRequest: inputs[{}] outputs[{}]>", list(&compiled.inputs), list(&compiled.outputs)))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot pickle 'InferRequest' object: make another request"))
    }

    fn __copy__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot copy 'InferRequest' object: make another request"))
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> PyResult<()> {
        self.__copy__()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.handle.get() {
            Some(handle) => visit.call(handle),
            None => Ok(()),
        }
    }
}
