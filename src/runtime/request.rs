//! The inference request: set inputs, start, wait, cancel, be called back.
//!
//! Locks: `Shared::guarded` is held only to look or to move the body in and out, never while a filler, a step, a callback or an
//! executor runs, or while something of the user's is dropped. `Shared::in_flight` holds the body between two executors and is
//! never taken together with `guarded`.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::compiled::CompiledShared;
use super::executor::{Executor, Task, Ticket};
use super::state::{EndOfCallback, EndOfRun, Refusal, RequestState};
use super::steps::{Body, CancelToken, CustomStep, FillInput, RunContext, Step, StepTask, check_fits, panic_error};
use super::sync::{AtomicU64, Condvar, Mutex, Ordering};
use super::{CompiledModel, Error, ErrorKind, NodeTime, PortKey, Result, StepTime};
use crate::tensor::Tensor;

/// How long dropping the last handle of a running request waits for the run. What then still runs keeps its memory and frees
/// it when it ends.
const DROP_PATIENCE: Duration = Duration::from_secs(5);

/// A handle to one inference request. Clones are the same request.
///
/// Dropping the last handle stops it, see [`runtime`](super).
#[derive(Clone)]
pub struct InferRequest(Arc<Handle>);

/// A handle that does not keep the request alive: the one to capture in the request's own callback.
#[derive(Debug, Clone)]
pub struct WeakInferRequest(Weak<Handle>);

type Callback = Arc<dyn Fn(&InferRequest, Result<()>) + Send + Sync>;

#[derive(Debug)]
struct Handle(Arc<Shared>);

pub(crate) struct Shared {
    id: u64,
    model: Arc<CompiledShared>,
    cancel: CancelToken,
    guarded: Mutex<Guarded>,
    finished: Condvar,
    in_flight: Mutex<Option<Box<Body>>>,
    /// The thread that is inside a filler or step of this request, see [`thread_token`]; 0 for none.
    stepping: AtomicU64,
    handle: OnceLock<Weak<Handle>>,
    _ticket: Ticket,
}

struct Guarded {
    state: RequestState,
    /// Here while idle; taken by the run.
    body: Option<Box<Body>>,
    callback: Option<Callback>,
    /// The latest run that ended, and how.
    outcome: (u64, Result<()>),
    /// The runs that somebody waits for: a later run may end before the waiter has looked.
    awaited: Vec<Awaited>,
    latency: Duration,
}

struct Awaited {
    run: u64,
    n_waiting: usize,
    outcome: Option<Result<()>>,
}

impl InferRequest {
    pub(crate) fn new(model: Arc<CompiledShared>, body: Box<Body>, ticket: Ticket) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let shared = Arc::new(Shared {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            model,
            cancel: CancelToken::default(),
            guarded: Mutex::new(Guarded {
                state: RequestState::default(),
                body: Some(body),
                callback: None,
                outcome: (0, Ok(())),
                awaited: Vec::new(),
                latency: Duration::ZERO,
            }),
            finished: Condvar::new(),
            in_flight: Mutex::new(None),
            stepping: AtomicU64::new(0),
            handle: OnceLock::new(),
            _ticket: ticket,
        });
        let (request, model, device) = (shared.id, &*shared.model.name, &*shared.model.device);
        tracing::trace!(target: "roiflow::trace", request, model, device, "request");
        let handle = Arc::new(Handle(shared));
        let _first = handle.0.handle.set(Arc::downgrade(&handle));
        Self(handle)
    }

    /// Runs on the caller's thread and returns when the outputs are there. The callback is not called.
    ///
    /// `inputs` are set first: `()` leaves them as they are, a tensor goes to the only input, a list of `(key, tensor)` to the
    /// inputs named.
    ///
    /// # Errors
    /// `Busy` if the request runs already or a tensor is in use, `Tensor` if one does not fit, and what steps and device say.
    pub fn infer(&self, inputs: impl Inputs) -> Result<()> {
        inputs.set(self)?;
        let shared = self.shared();
        let mut body = shared.begin(false)?;
        shared.step(|| {
            while !body.is_over() {
                body.run_next_step(&shared.cancel, shared.id);
            }
        });
        let outcome = body.outcome.clone();
        shared.end(body);
        outcome
    }

    /// Starts a run and returns. `inputs` as for [`InferRequest::infer`].
    ///
    /// # Errors
    /// `Busy` if the request runs already or a tensor is in use, `Tensor` if one does not fit; the request stays idle then.
    pub fn start_async(&self, inputs: impl Inputs) -> Result<()> {
        inputs.set(self)?;
        let shared = self.shared();
        let body = shared.begin(true)?;
        shared.pass_on(body);
        Ok(())
    }

    /// Waits until the run that was started last has ended and its callback returned. Returns at once if none was started.
    ///
    /// # Errors
    /// The error of the run, also for every other waiter; `WouldDeadlock` inside the request's own callback, steps and fillers.
    pub fn wait(&self) -> Result<()> {
        self.wait_until(None).map(|_in_time| ())
    }

    /// As [`InferRequest::wait`], but gives up after `timeout`: `false` if the run is not over, or none was ever started.
    ///
    /// # Errors
    /// As [`InferRequest::wait`].
    pub fn wait_for(&self, timeout: Duration) -> Result<bool> {
        match Instant::now().checked_add(timeout) {
            Some(deadline) => self.wait_until(Some(deadline)),
            // So far away that it never comes.
            None if self.shared().guarded.lock().unwrap().state.latest_run() == 0 => Ok(false),
            None => self.wait_until(None),
        }
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Result<bool> {
        let shared = self.shared();
        let mut guarded = shared.guarded.lock().unwrap();
        let run = guarded.state.latest_run();
        if run == 0 {
            return Ok(deadline.is_none());
        }
        if guarded.state.is_finished(run) {
            return guarded.outcome.1.clone().map(|()| true);
        }
        if guarded.state.is_called_on(thread::current().id()) || shared.is_stepping_here() {
            return Err(Error::new(
                ErrorKind::WouldDeadlock,
                "wait inside the request's own callback or step would wait for itself; start the next run from the callback and return instead",
            ));
        }
        guarded.begin_to_wait(run);
        while !guarded.state.is_finished(run) {
            guarded = match deadline {
                None => shared.finished.wait(guarded).unwrap(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        drop(guarded.end_to_wait(run));
                        return Ok(false);
                    }
                    shared.finished.wait_timeout(guarded, left).unwrap().0
                }
            };
        }
        guarded.end_to_wait(run).map(|()| true)
    }

    /// Asks the current run to end at the next step boundary, or inside the device where the engine can. The run then ends with
    /// `Canceled`, or as if nothing had been asked if it was over first. Harmless on an idle request.
    pub fn cancel(&self) {
        let guarded = self.shared().guarded.lock().unwrap();
        if guarded.state.is_running() {
            self.shared().cancel.cancel();
        }
    }

    /// Sets the closure that is called after each asynchronous run, with the result or the error, before waiters go on. It may
    /// start the request again. It is called on an executor's thread, so it should be short.
    ///
    /// The request itself is passed in; a callback that captures another handle of it keeps the request alive for ever: use
    /// [`InferRequest::downgrade`].
    ///
    /// # Errors
    /// `Busy` while the request runs.
    pub fn set_callback(&self, callback: impl Fn(&InferRequest, Result<()>) + Send + Sync + 'static) -> Result<()> {
        let previous = {
            let mut guarded = self.shared().guarded.lock().unwrap();
            guarded.check_idle()?;
            guarded.callback.replace(Arc::new(callback))
        };
        drop(previous); // Outside the lock: what it captured may be handles.
        Ok(())
    }

    /// Removes the callback.
    ///
    /// # Errors
    /// `Busy` while the request runs.
    pub fn clear_callback(&self) -> Result<()> {
        let previous = {
            let mut guarded = self.shared().guarded.lock().unwrap();
            guarded.check_idle()?;
            guarded.callback.take()
        };
        drop(previous);
        Ok(())
    }

    /// The tensor of an input or output, inputs first. Its content changes only while the request runs.
    ///
    /// # Errors
    /// `NotFound`, or `Busy` while the request runs.
    pub fn tensor<'a>(&self, key: impl Into<PortKey<'a>>) -> Result<Tensor> {
        let key = key.into();
        self.input_tensor(key).or_else(|error| match error.kind() {
            ErrorKind::NotFound => self.output_tensor(key).map_err(|of_outputs| neither(&error, of_outputs)),
            _ => Err(error),
        })
    }

    /// The tensor of an input, by name, index, port, or `()` for the only one.
    ///
    /// # Errors
    /// `NotFound`, or `Busy` while the request runs.
    pub fn input_tensor<'a>(&self, key: impl Into<PortKey<'a>>) -> Result<Tensor> {
        let input_idx = key.into().find("input", &self.shared().model.info.inputs)?;
        self.with_body(|body| Ok(body.io.inputs[input_idx].tensor.clone()))
    }

    /// The tensor of an output, by name, index, port, or `()` for the only one.
    ///
    /// # Errors
    /// `NotFound`, or `Busy` while the request runs.
    pub fn output_tensor<'a>(&self, key: impl Into<PortKey<'a>>) -> Result<Tensor> {
        let output_idx = key.into().find("output", &self.shared().model.info.outputs)?;
        self.with_body(|body| Ok(body.io.outputs[output_idx].tensor.clone()))
    }

    /// Makes `tensor` the input; no copy. The request leases its memory while it runs.
    ///
    /// # Errors
    /// `NotFound`, `Tensor` if element type or shape do not fit the port, `Unsupported` if it lies in memory that the device can't
    /// use, `Busy` while the request runs.
    pub fn set_input_tensor<'a>(&self, key: impl Into<PortKey<'a>>, tensor: &Tensor) -> Result<()> {
        let input_idx = key.into().find("input", &self.shared().model.info.inputs)?;
        let replaced = self.with_body(|body| {
            body.check_memory("input", &body.io.inputs[input_idx].port, tensor)?;
            let slot = &mut body.io.inputs[input_idx];
            check_fits("input", &slot.port, tensor.element(), &tensor.shape())?;
            slot.own = false;
            Ok((slot.fill.take(), std::mem::replace(&mut slot.tensor, tensor.clone())))
        })?;
        drop(replaced); // Outside the lock: memory and fillers may be the user's.
        Ok(())
    }

    /// Makes `tensor` the output; the run writes into its memory.
    ///
    /// # Errors
    /// As [`InferRequest::set_input_tensor`].
    pub fn set_output_tensor<'a>(&self, key: impl Into<PortKey<'a>>, tensor: &Tensor) -> Result<()> {
        let output_idx = key.into().find("output", &self.shared().model.info.outputs)?;
        let replaced = self.with_body(|body| {
            body.check_memory("output", &body.io.outputs[output_idx].port, tensor)?;
            let slot = &mut body.io.outputs[output_idx];
            check_fits("output", &slot.port, tensor.element(), &tensor.shape())?;
            Ok(std::mem::replace(&mut slot.tensor, tensor.clone()))
        })?;
        drop(replaced);
        Ok(())
    }

    /// Sets an input or output, inputs first.
    ///
    /// # Errors
    /// As [`InferRequest::set_input_tensor`].
    pub fn set_tensor<'a>(&self, key: impl Into<PortKey<'a>>, tensor: &Tensor) -> Result<()> {
        let key = key.into();
        match self.set_input_tensor(key, tensor) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.set_output_tensor(key, tensor).map_err(|of_outputs| neither(&error, of_outputs))
            }
            set => set,
        }
    }

    /// Lets `fill` write the input at the start of every run, as the run's first step, straight into memory in which the
    /// device can run. Replaces a tensor that was set, and is replaced by one.
    ///
    /// # Errors
    /// `NotFound`, or `Busy` while the request runs.
    pub fn set_input<'a>(&self, key: impl Into<PortKey<'a>>, fill: impl FillInput + 'static) -> Result<()> {
        let input_idx = key.into().find("input", &self.shared().model.info.inputs)?;
        let replaced = self.with_body(|body| Ok(body.io.inputs[input_idx].fill.replace(Box::new(fill))))?;
        drop(replaced);
        Ok(())
    }

    /// Appends a step to every run, on the pool of the processor: a decoder, say.
    ///
    /// # Errors
    /// `Busy` while the request runs.
    pub fn append_step(&self, name: &str, step: impl FnMut(&RunContext<'_>) -> Result<()> + Send + 'static) -> Result<()> {
        let executor: Arc<dyn Executor> = self.shared().model.executors.cpu()?;
        let custom: CustomStep = Box::new(step);
        self.with_body(|body| {
            body.steps.push(Step { name: name.into(), executor, task: StepTask::Custom(custom), duration: Duration::ZERO });
            Ok(())
        })
    }

    /// Time from start to end of the latest run, without the callback.
    ///
    /// # Errors
    /// `Busy` while the request runs.
    pub fn latency(&self) -> Result<Duration> {
        let guarded = self.shared().guarded.lock().unwrap();
        guarded.check_idle()?;
        Ok(guarded.latency)
    }

    /// How long each step of the latest run took.
    ///
    /// # Errors
    /// `Busy` while the request runs.
    pub fn step_times(&self) -> Result<Vec<StepTime>> {
        self.with_body(|body| Ok(body.step_times()))
    }

    /// What each node of the model did in the latest run. The model must have been compiled with
    /// [`Config::profiling`](super::Config::profiling).
    ///
    /// # Errors
    /// `Config` if it was not, `Unsupported` if the device does not tell, `Busy` while the request runs.
    pub fn profiling_info(&self) -> Result<Vec<NodeTime>> {
        self.with_body(|body| body.device.profiling_info())
    }

    /// As [`InferRequest::step_times`], without allocating.
    ///
    /// # Errors
    /// `Busy` while the request runs.
    pub fn visit_step_times(&self, mut visit: impl FnMut(&Arc<str>, Duration)) -> Result<()> {
        self.with_body(|body| {
            body.steps.iter().for_each(|step| visit(&step.name, step.duration));
            Ok(())
        })
    }

    /// The model that this is a request of.
    pub fn compiled_model(&self) -> CompiledModel {
        CompiledModel::from_shared(self.shared().model.clone())
    }

    /// A handle that does not keep the request alive.
    pub fn downgrade(&self) -> WeakInferRequest {
        WeakInferRequest(Arc::downgrade(&self.0))
    }

    /// A number that names the request in traces.
    pub fn id(&self) -> u64 {
        self.shared().id
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    fn with_body<R>(&self, action: impl FnOnce(&mut Body) -> Result<R>) -> Result<R> {
        let mut guarded = self.shared().guarded.lock().unwrap();
        guarded.check_idle()?;
        action(guarded.body.as_mut().expect("an idle request has its body"))
    }
}

impl WeakInferRequest {
    /// The request, if it still exists.
    pub fn upgrade(&self) -> Option<InferRequest> {
        self.0.upgrade().map(InferRequest)
    }
}

impl PartialEq for InferRequest {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for InferRequest {}

impl Hash for InferRequest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl fmt::Debug for InferRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InferRequest({})", self.id())
    }
}

impl Guarded {
    fn check_idle(&self) -> Result<()> {
        if self.state.is_running() {
            return Err(Error::new(ErrorKind::Busy, "the request is running: wait for it, or use another request"));
        }
        Ok(())
    }

    /// Notes how a run ended: for who asks later, if no later run ended before, and for who waits for this one.
    fn settle(&mut self, run: u64, outcome: Result<()>) {
        if let Some(awaited) = self.awaited.iter_mut().find(|awaited| awaited.run == run) {
            awaited.outcome = Some(outcome.clone());
        }
        if run >= self.outcome.0 {
            self.outcome = (run, outcome);
        }
    }

    fn begin_to_wait(&mut self, run: u64) {
        match self.awaited.iter_mut().find(|awaited| awaited.run == run) {
            Some(awaited) => awaited.n_waiting += 1,
            None => self.awaited.push(Awaited { run, n_waiting: 1, outcome: None }),
        }
    }

    fn end_to_wait(&mut self, run: u64) -> Result<()> {
        let awaited_idx = self.awaited.iter().position(|awaited| awaited.run == run).expect("noted when the wait began");
        let awaited = &mut self.awaited[awaited_idx];
        awaited.n_waiting -= 1;
        // A start that was taken back has no outcome of its own.
        let outcome = awaited.outcome.clone().unwrap_or_else(|| self.outcome.1.clone());
        if awaited.n_waiting == 0 {
            self.awaited.swap_remove(awaited_idx);
        }
        outcome
    }
}

impl Shared {
    /// Idle to running; a start that fails leaves the request idle.
    fn begin(&self, calls_back: bool) -> Result<Box<Body>> {
        let mut guarded = self.guarded.lock().unwrap();
        let run = guarded.state.start(thread::current().id()).map_err(|refusal| match refusal {
            Refusal::Busy => Error::new(ErrorKind::Busy, "the request is running: wait for it, or use another request"),
            Refusal::Stopped => Error::new(ErrorKind::Stopped, "the request was stopped"),
        })?;
        let mut body = guarded.body.take().expect("an idle request has its body");
        self.cancel.reset();
        drop(guarded);
        body.run = run;
        body.calls_back = calls_back;
        body.started = Instant::now();
        if let Err(error) = self.step(|| body.prepare(self.id)) {
            let mut guarded = self.guarded.lock().unwrap();
            guarded.state.take_back_start();
            guarded.body = Some(body);
            drop(guarded);
            self.finished.notify_all();
            return Err(error);
        }
        Ok(body)
    }

    /// Runs what belongs to the user or the device, so that it is known on which thread it runs.
    fn step<R>(&self, action: impl FnOnce() -> R) -> R {
        self.stepping.store(thread_token(), Ordering::Release);
        let result = action();
        self.stepping.store(0, Ordering::Release);
        result
    }

    fn is_stepping_here(&self) -> bool {
        self.stepping.load(Ordering::Acquire) == thread_token()
    }

    /// Queues the next step where it belongs.
    fn pass_on(self: &Arc<Self>, body: Box<Body>) {
        let executor = body.steps[body.next_step_idx].executor.clone();
        *self.in_flight.lock().unwrap() = Some(body);
        executor.execute(self.clone());
    }

    /// The run is over: give everything back, then complete in the order that the module promises.
    fn end(self: &Arc<Self>, mut body: Box<Body>) {
        body.io.release();
        body.span = tracing::Span::none(); // Ends it.
        let here = thread::current().id();
        let mut guarded = self.guarded.lock().unwrap();
        guarded.latency = body.started.elapsed();
        guarded.settle(body.run, body.outcome.clone());
        let calls_back = body.calls_back && guarded.callback.is_some();
        guarded.body = Some(body);
        match guarded.state.end_run(calls_back, here) {
            EndOfRun::LeftToEarlierCallback => return,
            EndOfRun::Finished => {}
            EndOfRun::CallBack => loop {
                let callback = guarded.callback.clone();
                let (run, outcome) = guarded.outcome.clone();
                drop(guarded);
                let called = self.call_back(callback, run, outcome);
                guarded = self.guarded.lock().unwrap();
                if let Err(error) = called {
                    guarded.settle(run, Err(error));
                }
                let follows = guarded.state.end_callback(here);
                self.finished.notify_all();
                if follows == EndOfCallback::Finished {
                    break;
                }
            },
        }
        drop(guarded);
        self.finished.notify_all();
    }

    fn call_back(&self, callback: Option<Callback>, run: u64, outcome: Result<()>) -> Result<()> {
        // No handle left: the request is being dropped, and nobody wants to hear of it.
        let (Some(callback), Some(handle)) = (callback, self.handle.get().and_then(Weak::upgrade)) else { return Ok(()) };
        let request = InferRequest(handle);
        let _span =
            tracing::trace_span!(target: "roiflow::trace", parent: None, "callback", request = self.id, run, step = "callback").entered();
        let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            callback(&request, outcome);
            drop(callback);
        }));
        drop(request);
        called.map_err(|panic| panic_error("the callback", &*panic))
    }
}

impl Task for Shared {
    fn run(self: Arc<Self>) {
        let Some(mut body) = self.in_flight.lock().unwrap().take() else { return };
        let executor = body.steps[body.next_step_idx].executor.clone();
        // Neighbors on this executor, and inline ones, go on without a hop.
        self.step(|| {
            loop {
                body.run_next_step(&self.cancel, self.id);
                if body.is_over() {
                    break;
                }
                let next = &body.steps[body.next_step_idx].executor;
                if !next.is_inline() && !Arc::ptr_eq(next, &executor) {
                    break;
                }
            }
        });
        if body.is_over() { self.end(body) } else { self.pass_on(body) }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.id)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let shared = &self.0;
        let here = thread::current().id();
        let mut guarded = shared.guarded.lock().unwrap();
        guarded.state.stop();
        shared.cancel.cancel();
        let callback = guarded.callback.take();
        if !guarded.state.is_called_on(here) && !shared.is_stepping_here() {
            // A run that still waits in a queue ends here and now; its place in the queue will find nothing to do.
            drop(guarded);
            let queued = shared.in_flight.lock().unwrap().take();
            if let Some(mut body) = queued {
                body.outcome = shared.cancel.check();
                shared.end(body);
            }
            guarded = shared.guarded.lock().unwrap();
            let deadline = Instant::now() + DROP_PATIENCE;
            while !guarded.state.is_quiet() {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    tracing::warn!(request = shared.id, "a run goes on after its request was dropped; its memory is freed when it ends");
                    break;
                }
                guarded = shared.finished.wait_timeout(guarded, left).unwrap().0;
            }
        }
        drop(guarded);
        drop(callback);
    }
}

/// A number that no other living thread has; never 0.
fn thread_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static TOKEN: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    TOKEN.with(|token| *token)
}

/// No port has that key: neither an input nor an output.
fn neither(of_inputs: &Error, of_outputs: Error) -> Error {
    match of_outputs.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::NotFound, format!("{of_inputs}; {of_outputs}")),
        _ => of_outputs,
    }
}

/// What can be given to [`InferRequest::infer`] and [`InferRequest::start_async`].
pub trait Inputs {
    /// Sets the inputs of `request`.
    ///
    /// # Errors
    /// As [`InferRequest::set_input_tensor`].
    fn set(self, request: &InferRequest) -> Result<()>;
}

impl Inputs for () {
    fn set(self, _request: &InferRequest) -> Result<()> {
        Ok(())
    }
}

impl Inputs for &Tensor {
    fn set(self, request: &InferRequest) -> Result<()> {
        request.set_input_tensor((), self)
    }
}

impl Inputs for &[Tensor] {
    fn set(self, request: &InferRequest) -> Result<()> {
        self.iter().enumerate().try_for_each(|(input_idx, tensor)| request.set_input_tensor(input_idx, tensor))
    }
}

impl<'a, K: Into<PortKey<'a>>, const N: usize> Inputs for [(K, &Tensor); N] {
    fn set(self, request: &InferRequest) -> Result<()> {
        self.into_iter().try_for_each(|(key, tensor)| request.set_input_tensor(key, tensor))
    }
}
