//! The class `AsyncInferQueue`.
//!
//! The runtime's queue calls a closure that has only a weak reference to `State`. `State` owns the Python objects. Python's garbage
//! collector reaches these objects through the Python object of the queue. The requests of the queue have weak references to the queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use pyo3::exceptions::{PyBaseException, PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use crate::compiled::{Compiled, CompiledModel};
use crate::errors::{Busy, Error, OrRaise, OwnedByQueue, raise};
use crate::inputs::Given;
use crate::interpreter::{called, detached, do_detached, wait_in_slices};
use crate::interrupted;
use crate::package;
use crate::request::{Handle, InferRequest, visit_exception};
use crate::run::infer;
use crate::runtime::{self, ErrorKind};

/// The user data of a job.
type Userdata = Option<Py<PyAny>>;
type Queue = runtime::AsyncInferQueue<Userdata>;

/// The state that the callbacks of jobs need.
struct State {
    /// This flag is read without the interpreter's lock, so that a job without a callback does not take the lock.
    has_callback: AtomicBool,
    inner: Mutex<Inner>,
}

struct Inner {
    callback: Option<Py<PyAny>>,
    /// The user data of the latest job of each request.
    userdata: Vec<Userdata>,
    requests: Vec<Py<PyAny>>,
    /// The IDs of the requests in the runtime, in the same order.
    ids: Vec<u64>,
    /// The first exception of a run or of the callback since the latest `wait_all`.
    raised: Option<Py<PyBaseException>>,
}

impl State {
    /// Handles the end of a job: calls the callback and stores its exception. Runs on a thread of the runtime.
    fn complete(&self, py: Python<'_>, request: &runtime::InferRequest, userdata: Userdata, result: runtime::Result<()>) {
        let raised = match result {
            Err(error) => Some(raise(error)),
            Ok(()) => {
                let (callback, object) = {
                    let inner = self.inner.lock().unwrap();
                    let idx = inner.ids.iter().position(|id| *id == request.id());
                    let object = idx.and_then(|idx| inner.requests.get(idx)).map(|object| object.clone_ref(py));
                    (inner.callback.as_ref().map(|callback| callback.clone_ref(py)), object)
                };
                match (callback, object) {
                    (Some(callback), Some(object)) => callback.call1(py, (object, userdata)).err(),
                    _ => None,
                }
            }
        };
        if let Some(raised) = raised.map(|raised| raised.into_value(py)) {
            let mut inner = self.inner.lock().unwrap();
            let later = if inner.raised.is_none() { inner.raised.replace(raised) } else { Some(raised) };
            drop(inner);
            drop(later);
        }
    }

    fn set_userdata(&self, idx: usize, userdata: Userdata) {
        let mut inner = self.inner.lock().unwrap();
        let before = inner.userdata.get_mut(idx).map(|own| std::mem::replace(own, userdata));
        drop(inner);
        drop(before);
    }
}

/// The place of a request in its queue.
pub struct Slot {
    queue: Weak<Queue>,
    state: Weak<State>,
    idx: usize,
}

impl Slot {
    fn queue(&self) -> PyResult<(Arc<Queue>, Arc<State>)> {
        let gone = || OwnedByQueue::new_err("the queue of this request is gone; make a request of its own with create_infer_request");
        Ok((self.queue.upgrade().ok_or_else(gone)?, self.state.upgrade().ok_or_else(gone)?))
    }

    fn busy() -> PyErr {
        Busy::new_err("busy: the request is running a job of its queue; wait for it, or start another job of the queue")
    }

    /// Runs the model with this request. The request must be idle, or the caller must be the callback of this request.
    pub fn infer<'py>(&self, py: Python<'py>, handle: &Handle, inputs: Given, share_outputs: bool) -> PyResult<Bound<'py, PyAny>> {
        let (queue, _state) = self.queue()?;
        handle.note_start();
        let done = match queue.try_take(self.idx) {
            Some(idle) => infer(py, &idle, &handle.compiled, inputs, share_outputs),
            None => match infer(py, handle.request(), &handle.compiled, inputs, share_outputs) {
                Err(error) if error.is_instance_of::<OwnedByQueue>(py) => Err(Self::busy()),
                done => done,
            },
        };
        do_detached(move || drop(queue));
        done
    }

    /// Starts a job on this request, if the request is idle.
    pub fn start(&self, py: Python<'_>, inputs: Given, userdata: Userdata) -> PyResult<()> {
        let (queue, state) = self.queue()?;
        let of_slot = userdata.as_ref().map(|userdata| userdata.clone_ref(py));
        let started = match queue.try_take(self.idx) {
            Some(idle) => idle.start(inputs, userdata).or_raise().map(drop),
            None => Err(Self::busy()),
        };
        if started.is_ok() {
            state.set_userdata(self.idx, of_slot);
        }
        do_detached(move || drop(queue));
        started
    }

    /// Returns the user data of the latest job.
    pub fn userdata(&self, py: Python<'_>) -> Py<PyAny> {
        let Some(state) = self.state.upgrade() else { return py.None() };
        let inner = state.inner.lock().unwrap();
        inner.userdata.get(self.idx).and_then(Option::as_ref).map_or_else(|| py.None(), |userdata| userdata.clone_ref(py))
    }
}

/// Runs jobs on a fixed number of requests of one model. A job starts as soon as a request is idle.
///
/// `jobs` is the number of requests; 0 selects the device's optimal number. Any number of threads may use the queue at the same time.
///
/// Raises TypeError if an argument has another type, and ValueError if `jobs` is invalid.
#[pyclass(frozen, module = "roiflow._roiflow", subclass, name = "AsyncInferQueue")]
pub struct AsyncInferQueue {
    /// Empty until `__init__` of a subclass calls `__init__` of this class.
    parts: OnceLock<Parts>,
}

struct Parts {
    queue: Arc<Queue>,
    state: Arc<State>,
    compiled: Arc<Compiled>,
}

impl AsyncInferQueue {
    fn parts(&self) -> PyResult<&Parts> {
        self.parts.get().ok_or_else(|| Error::new_err("AsyncInferQueue.__init__ was not called with a compiled model"))
    }

    fn queue(&self) -> PyResult<&Queue> {
        Ok(&self.parts()?.queue)
    }

    fn ids(&self) -> PyResult<Vec<u64>> {
        Ok(self.parts()?.state.inner.lock().unwrap().ids.clone())
    }

    fn idle(&self, py: Python<'_>) -> PyResult<runtime::IdleRequest<'_, Userdata>> {
        let queue = self.queue()?;
        // If a request is idle, take it without releasing the interpreter's lock first.
        let idle = match queue.try_take_longest_idle() {
            Some(idle) => Ok(idle),
            None => {
                interrupted::check_all(&self.ids()?)?;
                wait_in_slices(py, |slice| match slice {
                    Some(slice) => queue.take_idle_for(slice).transpose(),
                    None => Some(queue.take_idle()),
                })?
            }
        };
        idle.or_raise()
    }
}

#[pymethods]
impl AsyncInferQueue {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn py_new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        // A subclass may have other arguments in its constructor. Such a subclass passes the model to `__init__`.
        Self { parts: OnceLock::new() }
    }

    #[pyo3(signature = (model, jobs=0))]
    fn __init__(&self, py: Python<'_>, model: &Bound<'_, CompiledModel>, jobs: i64) -> PyResult<()> {
        if self.parts.get().is_some() {
            return Err(Error::new_err("AsyncInferQueue.__init__ was called twice"));
        }
        let jobs = usize::try_from(jobs).map_err(|_| PyValueError::new_err(format!("jobs: expected 0 or more, got {jobs}")))?;
        let compiled = model.get().shared()?.clone();
        let queue = Arc::new(detached(py, || Queue::new(&compiled.model, jobs)).or_raise()?);
        let ids: Vec<u64> = queue.iter().map(runtime::InferRequest::id).collect();
        let inner = Inner { callback: None, userdata: ids.iter().map(|_| None).collect(), requests: Vec::new(), ids, raised: None };
        let state = Arc::new(State { has_callback: AtomicBool::new(false), inner: Mutex::new(inner) });
        for (idx, request) in queue.iter().enumerate() {
            let slot = Slot { queue: Arc::downgrade(&queue), state: Arc::downgrade(&state), idx };
            let handle = Py::new(py, Handle::new(compiled.clone(), request.clone(), Some(slot)))?;
            let own = Bound::new(py, InferRequest::new(handle))?;
            let object = package::request_class(py)?.call1((own,))?.unbind();
            state.inner.lock().unwrap().requests.push(object);
        }
        let weak = Arc::downgrade(&state);
        queue.set_callback(move |request, userdata, result| {
            let Some(state) = weak.upgrade() else { return };
            if result.is_err() || userdata.is_some() || state.has_callback.load(Ordering::Acquire) {
                // Move the state into the call, so that its Python objects are dropped while the interpreter's lock is held.
                let _unless_the_process_ends = called(move |py| {
                    state.complete(py, request, userdata, result);
                    drop(state);
                });
            }
        });
        let _only_once = self.parts.set(Parts { queue, state, compiled });
        Ok(())
    }

    /// Starts a job as soon as a request is idle. The arguments are those of `InferRequest.start_async`. The callback gets `userdata`.
    ///
    /// Raises RuntimeError if the inputs do not fit. Raises WouldDeadlock if the queue's own callback calls this method and no request is
    /// idle. `wait_all` raises the exception of a failed job.
    #[pyo3(signature = (inputs=None, userdata=None, share_inputs=false))]
    fn start_async(
        &self,
        py: Python<'_>,
        inputs: Option<&Bound<'_, PyAny>>,
        userdata: Option<&Bound<'_, PyAny>>,
        share_inputs: bool,
    ) -> PyResult<()> {
        let Parts { state, compiled, .. } = self.parts()?;
        let given = Given::parse(inputs, share_inputs, &compiled.inputs)?;
        let userdata = userdata.filter(|userdata| !userdata.is_none()).map(|userdata| userdata.clone().unbind());
        let idle = self.idle(py)?;
        let idx = idle.index();
        // This thread holds the interpreter's lock, so the callback cannot run before the user data is stored below.
        idle.start(given, userdata.as_ref().map(|userdata| userdata.clone_ref(py))).or_raise()?;
        let object = {
            let inner = state.inner.lock().unwrap();
            inner.requests.get(idx).map(|object| object.clone_ref(py))
        };
        if let Some(object) = object {
            object.bind(py).cast::<InferRequest>()?.get().handle()?.note_start();
        }
        state.set_userdata(idx, userdata);
        Ok(())
    }

    /// Sets the callback. It is called with the request and the user data after each successful job.
    ///
    /// `wait_all` raises the exceptions of the callback. Raises TypeError if `callback` is not callable.
    fn set_callback(&self, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        if !callback.is_callable() {
            return Err(PyTypeError::new_err(format!("set_callback: expected a function, got {}", callback.get_type())));
        }
        let state = &self.parts()?.state;
        let before = state.inner.lock().unwrap().callback.replace(callback.clone().unbind());
        state.has_callback.store(true, Ordering::Release);
        drop(before);
        Ok(())
    }

    /// Waits for all jobs and their callbacks. Raises the first exception of a job or callback since the previous call. Raises
    /// WouldDeadlock if the queue's own callback calls this method.
    fn wait_all(&self, py: Python<'_>) -> PyResult<()> {
        let queue = self.queue()?;
        interrupted::check(&self.ids()?)?;
        let outcome =
            wait_in_slices(py, |slice| match slice.map_or_else(|| queue.wait_all().map(|()| true), |slice| queue.wait_all_for(slice)) {
                Ok(false) => None,
                Ok(true) => Some(Ok(())),
                Err(errors) => Some(Err(runtime::Error::from(errors))),
            })?;
        match outcome {
            Err(error) if error.kind() == ErrorKind::WouldDeadlock => Err(raise(error)),
            outcome => {
                let raised = self.parts()?.state.inner.lock().unwrap().raised.take();
                raised.map_or(Ok(()), |raised| Err(PyErr::from_value(raised.into_bound(py).into_any())))?;
                outcome.or_raise()
            }
        }
    }

    /// Whether a request is idle.
    fn is_ready(&self) -> PyResult<bool> {
        Ok(self.queue()?.is_ready())
    }

    /// Returns the index of the request that the next job will use. Waits until a request is idle.
    fn get_idle_request_id(&self, py: Python<'_>) -> PyResult<usize> {
        let queue = self.queue()?;
        if !queue.is_ready() {
            interrupted::check_all(&self.ids()?)?;
        }
        let idle = wait_in_slices(py, |slice| match slice {
            Some(slice) => queue.longest_idle_for(slice).transpose(),
            // This call takes a request only to wait for it. It then drops the request, which becomes idle again.
            None => queue.longest_idle_for(Duration::ZERO).transpose().or_else(|| Some(queue.take_idle().map(|idle| idle.index()))),
        });
        idle?.or_raise()
    }

    /// The data of the latest job of each request.
    #[getter]
    fn userdata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let userdata: Vec<Userdata> = {
            let inner = self.parts()?.state.inner.lock().unwrap();
            inner.userdata.iter().map(|own| own.as_ref().map(|own| own.clone_ref(py))).collect()
        };
        PyList::new(py, userdata)
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.queue()?.len())
    }

    fn __getitem__(&self, py: Python<'_>, index: isize) -> PyResult<Py<PyAny>> {
        let inner = self.parts()?.state.inner.lock().unwrap();
        let n_requests = inner.requests.len();
        let at = if index < 0 { index + n_requests as isize } else { index };
        let request = usize::try_from(at).ok().and_then(|at| inner.requests.get(at)).map(|request| request.clone_ref(py));
        request.ok_or_else(|| PyIndexError::new_err(format!("no request number {index}: the queue has {n_requests}")))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let requests: Vec<Py<PyAny>> =
            self.parts()?.state.inner.lock().unwrap().requests.iter().map(|request| request.clone_ref(py)).collect();
        Ok(PyList::new(py, requests)?.try_iter()?.into_any())
    }

    fn __repr__(&self) -> PyResult<String> {
        let Parts { queue, compiled, .. } = self.parts()?;
        Ok(format!("<AsyncInferQueue: {} jobs of '{}'>", queue.len(), compiled.model.name()))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot pickle 'AsyncInferQueue' object: make another queue"))
    }

    fn __copy__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot copy 'AsyncInferQueue' object: make another queue"))
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> PyResult<()> {
        self.__copy__()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // If the mutex is locked, a running callback uses the state, so the objects in it are still reachable.
        let Some(Ok(inner)) = self.parts.get().map(|parts| parts.state.inner.try_lock()) else { return Ok(()) };
        inner.callback.iter().try_for_each(|callback| visit.call(callback))?;
        inner.userdata.iter().flatten().try_for_each(|userdata| visit.call(userdata))?;
        visit_exception(&inner.raised, &visit)?;
        inner.requests.iter().try_for_each(|request| visit.call(request))
    }

    fn __clear__(&self) {
        let Some(parts) = self.parts.get() else { return };
        let mut inner = parts.state.inner.lock().unwrap();
        let before = (inner.callback.take(), std::mem::take(&mut inner.userdata), std::mem::take(&mut inner.requests), inner.raised.take());
        drop(inner);
        drop(before);
    }
}

impl Drop for AsyncInferQueue {
    fn drop(&mut self) {
        let held = self.parts.take();
        // The drop cancels the jobs and waits for a running callback, which needs the interpreter's lock.
        do_detached(move || drop(held));
    }
}
