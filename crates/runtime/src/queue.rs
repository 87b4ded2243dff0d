//! A fixed number of requests that share one callback, and jobs that run on them. A job starts as soon as one of the requests is idle.
//!
//! Lock order: `Shared::state`, then the lock of a request. Neither lock is held while a callback is called or a run is started. The queue
//! counts a request as idle only after its callback has returned, so a start of an idle request never fails with `Busy`.
//!
//! Each handle of a request may read the request, but only the queue or the owner of an [`IdleRequest`] can start it. The queue sets the
//! callback of each request, and no other code can replace it. So user code cannot make the queue lose a job or a request.

use std::fmt;
use std::ops::{Deref, Index};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError, TryLockError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use super::error::catch;
use super::run::{self, Keeper};
use super::waits::{self, Target, Waits};
use super::{CompiledModel, Error, ErrorKind, InferRequest, Inputs, Result};
use crate::sync::{AtomicU64, Condvar, Deadline, Mutex, MutexGuard, Ordering, this_thread};

/// Maximum number of errors in the result of [`AsyncInferQueue::wait_all`]. Further errors are only counted.
const MAX_ERRORS: usize = 16;

/// A fixed number of requests of one model, and a queue of jobs that run on them. `U` is the type of the user data of a job.
///
/// ```
/// # use std::sync::{Arc, Mutex};
/// # use roiflow::{devices, runtime::{AsyncInferQueue, Config}};
/// # fn main() -> roiflow::runtime::Result<()> {
/// # let core = devices::core();
/// # let model = core.compile_model(&core.read_model("assets/tiny/double.onnx")?, "CPU", &Config::default())?;
/// let queue = AsyncInferQueue::new(&model, 0)?; // as many requests as keep the device busy
/// let answers = Arc::new(Mutex::new(vec![0.0; 8]));
/// let to = answers.clone();
/// queue.set_callback(move |request, job: usize, result| {
///     if result.is_ok() && let Ok(results) = request.results() && let Ok(output) = results.view::<f32>(()) {
///         to.lock().unwrap()[job] = output[[0, 0]];
///     }
/// });
/// for job in 0..8 {
///     queue.start_async(&ndarray::arr2(&[[job as f32; 4]]), job)?; // waits for an idle request
/// }
/// queue.wait_all()?;
/// assert_eq!(*answers.lock().unwrap(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]);
/// # Ok(())
/// # }
/// ```
///
/// Dropping the queue cancels the running jobs and waits until they end. After that, no callback is called.
pub struct AsyncInferQueue<U = ()> {
    shared: Arc<Shared<U>>,
}

/// The callback of a queue. If it returns an error, this error becomes the error of the job.
type Callback<U> = Arc<dyn Fn(&InferRequest, U, Result<()>) -> Result<()> + Send + Sync>;

struct Shared<U> {
    requests: Vec<InferRequest>,
    state: Mutex<State<U>>,
    /// Notified when a request becomes idle. A job has ended when its request is idle.
    changed: Condvar,
}

struct State<U> {
    slots: Vec<Slot<U>>,
    /// The indices of idle requests. The request that was used last is taken first, because its memory is likely in the CPU caches.
    idle: Vec<usize>,
    callback: Option<Callback<U>>,
    n_started: u64,
    errors: Vec<JobError>,
    n_more_errors: u64,
    /// The wakers of tasks that wait for an idle request.
    wakers: Vec<Waker>,
}

enum Slot<U> {
    Idle,
    /// An [`IdleRequest`] owns the request.
    Taken,
    /// A run is in progress. The request becomes idle when a run with a number above `after` completes.
    Started {
        after: u64,
        job: Option<Job<U>>,
    },
}

struct Job<U> {
    number: u64,
    then: Then<U>,
}

/// The receiver of the result of a job.
enum Then<U> {
    /// The queue's callback is called with this user data.
    Callback(U),
    /// This function is called instead of the queue's callback.
    Tell(Tell),
}

pub(super) type Tell = Box<dyn FnOnce(&InferRequest, Result<()>) + Send>;

/// The error of one job.
#[derive(Debug, Clone)]
pub struct JobError {
    /// The number of the job, which [`AsyncInferQueue::start_async`] returned.
    pub job: u64,
    /// The reason why the job failed.
    pub error: Error,
}

/// The jobs that failed since errors were last returned, by [`AsyncInferQueue::wait_all`] or `wait_all_for`.
#[derive(Debug, Clone)]
pub struct JobErrors {
    /// The failures that happened first, in order; at least one.
    pub errors: Vec<JobError>,
    /// Number of failures that are not in `errors`.
    pub n_more: u64,
}

/// A job that could not be started, with its user data.
#[derive(Debug)]
pub struct RefusedJob<U> {
    /// The reason why the job could not be started.
    pub error: Error,
    /// The user data that was passed for the job.
    pub user_data: U,
}

/// The reason why [`AsyncInferQueue::try_start_async`] did not start a job.
#[derive(Debug)]
pub enum TryStartError<U> {
    /// All requests are busy. Contains the user data of the job.
    Full(U),
    /// An input is invalid, or a tensor is in use. The user data is dropped. To get it back, use [`AsyncInferQueue::start_or_return`].
    Refused(Error),
}

impl<U: Send + 'static> AsyncInferQueue<U> {
    /// Creates a queue with `n_requests` requests. 0 selects the device's optimal number of requests.
    ///
    /// # Errors
    /// Returns the errors of [`CompiledModel::create_infer_request`].
    pub fn new(model: &CompiledModel, n_requests: usize) -> Result<Self> {
        let n_requests = if n_requests == 0 { model.optimal_number_of_requests() } else { n_requests };
        let requests = (0..n_requests).map(|_| model.create_infer_request()).collect::<Result<Vec<_>>>()?;
        let shared = Arc::new(Shared {
            requests,
            state: Mutex::new(State {
                slots: (0..n_requests).map(|_| Slot::Idle).collect(),
                idle: (0..n_requests).rev().collect(),
                callback: None,
                n_started: 0,
                errors: Vec::new(),
                n_more_errors: 0,
                wakers: Vec::new(),
            }),
            changed: Condvar::new(),
        });
        for (request_idx, request) in shared.requests.iter().enumerate() {
            let queue: Weak<Shared<U>> = Arc::downgrade(&shared);
            request.set_callback(move |request, result| {
                if let Some(queue) = queue.upgrade() {
                    queue.finish(request_idx, request, result);
                }
            })?;
            let queue: Weak<Shared<U>> = Arc::downgrade(&shared);
            request.set_on_quiet(Arc::new(move |run| {
                if let Some(queue) = queue.upgrade() {
                    queue.make_idle(request_idx, run);
                }
            }));
            request.shared().set_keeper(Keeper::Queue);
        }
        Ok(Self { shared })
    }

    /// Sets the callback of all jobs that complete after this call. The callback gets the request, the user data, and the result or the
    /// error. The callback may start another job. If all requests are busy then, no request can become idle before the callback returns, so
    /// the start fails with [`ErrorKind::WouldDeadlock`].
    pub fn set_callback(&self, callback: impl Fn(&InferRequest, U, Result<()>) + Send + Sync + 'static) {
        self.replace_callback(Arc::new(move |request, user_data, result| {
            callback(request, user_data, result);
            Ok(())
        }));
    }

    /// Same as [`AsyncInferQueue::set_callback`], but the callback may change captured variables. So it is called for one job at a time, in
    /// the order in which jobs complete. While it runs, the threads that complete further jobs block. Therefore keep the callback short. It
    /// must not wait for other jobs of the queue. If the callback starts a job that completes on the same thread before the callback
    /// returns, that job fails with [`ErrorKind::WouldDeadlock`].
    ///
    /// ```
    /// # use roiflow::{devices, runtime::AsyncInferQueue};
    /// # fn main() -> roiflow::runtime::Result<()> {
    /// # let model = devices::core().compile("assets/tiny/double.onnx", "CPU")?;
    /// let queue = AsyncInferQueue::new(&model, 2)?;
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// let mut sum = 0.0;
    /// queue.set_callback_mut(move |request, _job: (), result| {
    ///     if result.is_ok() && let Ok(output) = request.output::<f32>("y") {
    ///         sum += output[[0, 0]];
    ///     }
    ///     let _sent = sender.send(sum);
    /// });
    /// for n in 0..4 {
    ///     queue.start_async(vec![n as f32; 4], ())?;
    /// }
    /// queue.wait_all()?;
    /// assert_eq!(receiver.try_iter().last(), Some(12.0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_callback_mut(&self, callback: impl FnMut(&InferRequest, U, Result<()>) + Send + 'static) {
        let (callback, calling) = (Mutex::new(callback), AtomicU64::new(0));
        self.replace_callback(Arc::new(move |request, user_data, result| {
            if calling.load(Ordering::Acquire) == this_thread() {
                let message = "the job completed inside the queue's own callback, which cannot be called again before it returns; start the job after the callback";
                return Err(Error::new(ErrorKind::WouldDeadlock, message));
            }
            let mut _waits = Waits::none(); // Declared first, so that it is dropped after the lock guard.
            let mut callback = match callback.try_lock() {
                Ok(callback) => callback,
                Err(TryLockError::Poisoned(callback)) => callback.into_inner(),
                // The callback may wait for a run that needs this thread.
                Err(TryLockError::WouldBlock) => {
                    _waits = Waits::lend()?;
                    callback.lock().unwrap_or_else(PoisonError::into_inner)
                }
            };
            calling.store(this_thread(), Ordering::Release);
            let called = catch_unwind(AssertUnwindSafe(|| callback(request, user_data, result)));
            calling.store(0, Ordering::Release);
            drop(callback);
            called.unwrap_or_else(|panic| resume_unwind(panic));
            Ok(())
        }));
    }

    fn replace_callback(&self, callback: Callback<U>) {
        let previous = self.shared.state.lock().unwrap().callback.replace(callback);
        drop(previous); // Dropped outside the lock, because the drop runs the destructors of the values that the closure captured.
    }

    /// Waits until a request is idle, starts a job on it, and returns the number of the job, counted from 0. A refused job gets no number.
    /// `inputs` has one of the forms that [`InferRequest::infer`] accepts. Inputs that are not set keep the values of the previous job of
    /// that request.
    ///
    /// # Errors
    /// Returns `Tensor` or `Busy` if the inputs cannot be set. Returns `WouldDeadlock` if no request is idle and the caller is inside the
    /// queue's own callback.
    pub fn start_async(&self, inputs: impl Inputs, user_data: U) -> Result<u64> {
        self.take_idle()?.start(inputs, user_data)
    }

    /// Same as [`AsyncInferQueue::start_async`], but returns the user data of a refused job.
    ///
    /// # Errors
    /// Returns the errors of [`AsyncInferQueue::start_async`].
    pub fn start_or_return(&self, inputs: impl Inputs, user_data: U) -> Result<u64, RefusedJob<U>> {
        match self.take_idle() {
            Ok(idle) => idle.start_or_return(inputs, user_data),
            Err(error) => Err(RefusedJob { error, user_data }),
        }
    }

    /// Same as [`AsyncInferQueue::start_async`], but does not wait.
    ///
    /// # Errors
    /// Returns `Full` if no request is idle. Otherwise returns the errors of [`AsyncInferQueue::start_async`].
    pub fn try_start_async(&self, inputs: impl Inputs, user_data: U) -> Result<u64, TryStartError<U>> {
        match self.try_take_idle() {
            Some(idle) => idle.start(inputs, user_data).map_err(TryStartError::Refused),
            None => Err(TryStartError::Full(user_data)),
        }
    }

    /// Takes an idle request out of the queue. Blocks until a request is idle. Set the inputs of the request, then start a job with
    /// [`IdleRequest::start`]. Dropping the [`IdleRequest`] returns it to the queue.
    ///
    /// # Errors
    /// Returns `WouldDeadlock` if no request is idle and the caller is inside the queue's own callback.
    pub fn take_idle(&self) -> Result<IdleRequest<'_, U>> {
        let shared = &self.shared;
        let mut _waits = Waits::none(); // Declared first, so that it is dropped after the lock guard.
        let mut state = shared.state.lock().unwrap();
        if state.idle.is_empty() {
            shared.check_process()?;
            if waits::must_report() {
                drop(state);
                _waits = shared.begin_wait(Target::Any)?;
                state = shared.state.lock().unwrap();
            }
        }
        while state.idle.is_empty() {
            state = shared.changed.wait(state).unwrap();
        }
        Ok(shared.take(&mut state).expect("a request is idle"))
    }

    /// Same as [`AsyncInferQueue::take_idle`], but takes the request that has been idle longest, and waits for at most `timeout`. Returns
    /// `None` if no request is idle after that time.
    ///
    /// # Errors
    /// Returns the errors of [`AsyncInferQueue::take_idle`].
    pub fn take_idle_for(&self, timeout: Duration) -> Result<Option<IdleRequest<'_, U>>> {
        let mut state = self.wait_for_idle(timeout)?;
        Ok((!state.idle.is_empty()).then(|| self.shared.take_at(&mut state, 0)))
    }

    /// Returns the index of the request that [`AsyncInferQueue::take_idle_for`] would take. Waits for an idle request for at most
    /// `timeout`.
    ///
    /// # Errors
    /// Returns the errors of [`AsyncInferQueue::take_idle`].
    pub fn longest_idle_for(&self, timeout: Duration) -> Result<Option<usize>> {
        Ok(self.wait_for_idle(timeout)?.idle.first().copied())
    }

    /// Same as [`AsyncInferQueue::take_idle_for`], but does not wait.
    pub fn try_take_longest_idle(&self) -> Option<IdleRequest<'_, U>> {
        let mut state = self.shared.state.lock().unwrap();
        (!state.idle.is_empty()).then(|| self.shared.take_at(&mut state, 0))
    }

    fn wait_for_idle(&self, timeout: Duration) -> Result<MutexGuard<'_, State<U>>> {
        let shared = &self.shared;
        let mut state = shared.state.lock().unwrap();
        if state.idle.is_empty() {
            shared.check_wait_for_idle()?;
        }
        let deadline = Deadline::after(timeout);
        while state.idle.is_empty() {
            state = match &deadline {
                Some(deadline) if deadline.is_over() => break,
                Some(deadline) => deadline.wait(&shared.changed, state),
                None => shared.changed.wait(state).unwrap(),
            };
        }
        Ok(state)
    }

    /// Takes this request out of the queue, if it is idle.
    pub fn try_take(&self, request_idx: usize) -> Option<IdleRequest<'_, U>> {
        let mut state = self.shared.state.lock().unwrap();
        let at = state.idle.iter().position(|idle_idx| *idle_idx == request_idx)?;
        Some(self.shared.take_at(&mut state, at))
    }

    /// Same as [`AsyncInferQueue::start_async`], but for async code: while no request is idle, the future waits without blocking the
    /// thread.
    ///
    /// ```
    /// # use roiflow::{devices, runtime::AsyncInferQueue};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let model = devices::core().compile("assets/tiny/double.onnx", "CPU")?;
    /// let queue = AsyncInferQueue::new(&model, 2)?;
    /// queue.set_callback(|request, n: u64, result| println!("job {n}: {result:?} {:?}", request.results()));
    /// futures::executor::block_on(async {
    ///     for n in 0..8 {
    ///         queue.push(&ndarray::arr2(&[[n as f32; 4]]), n).await?;
    ///     }
    ///     Ok::<(), roiflow::runtime::Error>(())
    /// })?;
    /// queue.wait_all()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`AsyncInferQueue::start_async`].
    pub async fn push(&self, inputs: impl Inputs, user_data: U) -> Result<u64> {
        self.idle().await?.start(inputs, user_data)
    }

    /// Same as [`AsyncInferQueue::take_idle`], but does not block the thread.
    ///
    /// # Errors
    /// Returns `Unsupported` in a process that was forked from the process that created the queue.
    pub async fn idle(&self) -> Result<IdleRequest<'_, U>> {
        std::future::poll_fn(|context| match self.poll_idle(context.waker()) {
            Some(idle) => Poll::Ready(Ok(idle)),
            None => match self.shared.check_process() {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
        })
        .await
    }

    /// Takes an idle request out of the queue, if there is one.
    pub fn try_take_idle(&self) -> Option<IdleRequest<'_, U>> {
        self.shared.take(&mut self.shared.state.lock().unwrap())
    }

    /// Returns whether a request is idle.
    pub fn is_ready(&self) -> bool {
        !self.shared.state.lock().unwrap().idle.is_empty()
    }

    /// Blocks until all jobs and their callbacks are complete. Each error is returned by only one call.
    ///
    /// # Errors
    /// Returns the errors of jobs, and the panics of callbacks, since errors were last returned. Returns `WouldDeadlock` inside the queue's
    /// own callback.
    pub fn wait_all(&self) -> Result<(), JobErrors> {
        let shared = &self.shared;
        let refused = |error| JobErrors { errors: vec![JobError { job: 0, error }], n_more: 0 };
        let mut _waits = Waits::none(); // Declared first, so that it is dropped after the lock guard.
        let mut state = shared.state.lock().unwrap();
        if shared.is_inside() {
            let message = "wait_all inside the queue's own callback would never return; return from the callback instead";
            return Err(refused(Error::new(ErrorKind::WouldDeadlock, message)));
        }
        let is_started = |slot: &Slot<U>| matches!(slot, Slot::Started { .. });
        if state.slots.iter().any(is_started) {
            shared.check_process().map_err(refused)?;
            if waits::must_report() {
                drop(state);
                _waits = shared.begin_wait(Target::All).map_err(refused)?;
                state = shared.state.lock().unwrap();
            }
        }
        while state.slots.iter().any(is_started) {
            state = shared.changed.wait(state).unwrap();
        }
        state.take_errors()
    }

    /// Same as [`AsyncInferQueue::wait_all`], but blocks for at most `timeout`. Returns whether all jobs and their callbacks are complete.
    ///
    /// # Errors
    /// If all jobs are complete, returns the errors of [`AsyncInferQueue::wait_all`].
    pub fn wait_all_for(&self, timeout: Duration) -> Result<bool, JobErrors> {
        let shared = &self.shared;
        let mut state = shared.state.lock().unwrap();
        shared.check_wait_for_all(&state)?;
        let deadline = Deadline::after(timeout);
        while state.has_started() {
            state = match &deadline {
                Some(deadline) if deadline.is_over() => return Ok(false),
                Some(deadline) => deadline.wait(&shared.changed, state),
                None => shared.changed.wait(state).unwrap(),
            };
        }
        state.take_errors().map(|()| true)
    }

    /// Returns the requests of the queue, so that the caller can read their ports, tensors and times. Reading the tensors or times of a
    /// running request fails with `Busy`.
    pub fn iter(&self) -> impl Iterator<Item = &InferRequest> {
        self.shared.requests.iter()
    }

    /// Fails in a fork of the process that created the queue.
    pub(super) fn check_process(&self) -> Result<()> {
        self.shared.check_process()
    }

    /// Registers that the current thread blocks until one of the queue's jobs completes.
    pub(super) fn begin_wait(&self) -> Result<Waits<'_>> {
        self.shared.begin_wait(Target::Any)
    }

    /// Takes an idle request. If there is none, stores `waker`, which is woken when a request becomes idle.
    pub(super) fn poll_idle(&self, waker: &Waker) -> Option<IdleRequest<'_, U>> {
        let waker = waker.clone(); // Cloned before the lock is taken, because cloning a waker runs user code.
        let mut state = self.shared.state.lock().unwrap();
        let idle = self.shared.take(&mut state);
        let unused = match idle.is_some() || state.wakers.iter().any(|known| known.will_wake(&waker)) {
            true => Some(waker),
            false => {
                state.wakers.push(waker);
                None
            }
        };
        drop(state);
        drop(unused);
        idle
    }
}

impl<U> AsyncInferQueue<U> {
    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.shared.requests.len()
    }

    /// Returns false, because a queue has at least one request.
    pub fn is_empty(&self) -> bool {
        self.shared.requests.is_empty()
    }
}

impl<U> Shared<U> {
    /// Returns whether this thread is inside a callback, step or filler of one of the requests.
    fn is_inside(&self) -> bool {
        self.requests.iter().any(|request| request.shared().is_inside(&request.shared().guarded.lock().unwrap()))
    }

    /// Registers that the current thread blocks until `target` (any or all) of the requests complete.
    fn begin_wait(&self, target: fn(Vec<Arc<run::Shared>>) -> Target) -> Result<Waits<'_>> {
        let requests = || self.requests.iter().map(|request| request.shared().clone()).collect();
        match self.requests.first() {
            Some(first) => first.shared().registry().begin(|| target(requests())),
            None => Ok(Waits::none()),
        }
    }

    /// Fails in a forked process, because such a process does not have the threads that run jobs.
    fn check_process(&self) -> Result<()> {
        self.requests.first().map_or(Ok(()), |request| request.shared().check_process())
    }

    /// Fails if a wait for an idle request would never end.
    fn check_wait_for_idle(&self) -> Result<()> {
        if self.is_inside() {
            let n_requests = self.requests.len();
            return Err(Error::new(
                ErrorKind::WouldDeadlock,
                format!(
                    "all {n_requests} requests are busy, and this callback belongs to one of them: use try_start_async, or more requests"
                ),
            ));
        }
        self.check_process()
    }

    /// Fails if a wait for all jobs would never end.
    fn check_wait_for_all(&self, state: &State<U>) -> Result<(), JobErrors> {
        let only = |error| JobErrors { errors: vec![JobError { job: 0, error }], n_more: 0 };
        if self.is_inside() {
            let message = "wait_all inside the queue's own callback would never return; return from the callback instead";
            return Err(only(Error::new(ErrorKind::WouldDeadlock, message)));
        }
        if state.has_started() { self.check_process().map_err(only) } else { Ok(()) }
    }

    fn take<'a>(&'a self, state: &mut MutexGuard<'_, State<U>>) -> Option<IdleRequest<'a, U>> {
        let last = state.idle.len().checked_sub(1)?;
        Some(self.take_at(state, last))
    }

    fn take_at<'a>(&'a self, state: &mut MutexGuard<'_, State<U>>, at: usize) -> IdleRequest<'a, U> {
        let request_idx = state.idle.remove(at);
        state.slots[request_idx] = Slot::Taken;
        self.requests[request_idx].shared().set_keeper(Keeper::Holder);
        IdleRequest { shared: self, request_idx }
    }

    /// Completes a job. The callback of the request calls this function.
    fn finish(&self, request_idx: usize, request: &InferRequest, result: Result<()>) {
        let mut state = self.state.lock().unwrap();
        let job = match &mut state.slots[request_idx] {
            Slot::Started { job, .. } => job.take(),
            // The owner of an [`IdleRequest`] started this run directly, so the run belongs to no job.
            Slot::Idle | Slot::Taken => None,
        };
        let Some(Job { number, then }) = job else { return };
        if let (Err(error), Then::Callback(_)) = (&result, &then) {
            state.note(number, error.clone());
        }
        let callback = state.callback.clone();
        drop(state);
        let called = catch_unwind(AssertUnwindSafe(|| match (then, callback) {
            (Then::Callback(user_data), Some(callback)) => callback(request, user_data, result),
            (Then::Callback(user_data), None) => {
                drop(user_data);
                Ok(())
            }
            (Then::Tell(tell), _) => {
                tell(request, result);
                Ok(())
            }
        }));
        match called {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.state.lock().unwrap().note(number, error),
            Err(panic) => {
                self.state.lock().unwrap().note(number, Error::of_panic("the queue's callback", &*panic));
                resume_unwind(panic); // The request reports the panic to the threads that wait for this run.
            }
        }
    }

    /// Returns the request to the queue. Called when no run and no callback of the request is in progress. `run` is the number of its
    /// latest run.
    fn make_idle(&self, request_idx: usize, run: u64) {
        let state = self.state.lock().unwrap();
        let is_of_the_queue = matches!(state.slots[request_idx], Slot::Started { after, .. } if run > after);
        if is_of_the_queue {
            self.put_back(state, request_idx);
        }
    }

    fn put_back(&self, mut state: MutexGuard<'_, State<U>>, request_idx: usize) {
        let before = std::mem::replace(&mut state.slots[request_idx], Slot::Idle);
        state.idle.push(request_idx);
        // Wake all tasks. If only one task were woken and it no longer needed a request, the request would stay idle while the other tasks
        // wait.
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.changed.notify_all();
        for waker in wakers {
            if let Err(error) = catch(format_args!("a waker"), || waker.wake()) {
                tracing::warn!("{error}");
            }
        }
        drop(before);
    }
}

impl<U> State<U> {
    fn has_started(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Started { .. }))
    }

    fn take_errors(&mut self) -> Result<(), JobErrors> {
        let (errors, n_more) = (std::mem::take(&mut self.errors), std::mem::take(&mut self.n_more_errors));
        if errors.is_empty() { Ok(()) } else { Err(JobErrors { errors, n_more }) }
    }

    fn note(&mut self, job: u64, error: Error) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(JobError { job, error });
        } else {
            self.n_more_errors += 1;
        }
    }
}

/// An idle request that was taken out of a queue.
pub struct IdleRequest<'a, U> {
    shared: &'a Shared<U>,
    request_idx: usize,
}

impl<U: Send + 'static> IdleRequest<'_, U> {
    /// Returns the index of the request in the queue.
    pub fn index(&self) -> usize {
        self.request_idx
    }

    /// Starts a job on this request. Same as [`AsyncInferQueue::start_async`], but the request is already taken, so there is no wait.
    ///
    /// # Errors
    /// Returns the errors of [`AsyncInferQueue::start_async`].
    pub fn start(self, inputs: impl Inputs, user_data: U) -> Result<u64> {
        self.start_or_return(inputs, user_data).map_err(|refused| refused.error)
    }

    /// Same as [`IdleRequest::start`], but returns the user data of a refused job.
    ///
    /// # Errors
    /// Returns the errors of [`AsyncInferQueue::start_async`].
    pub fn start_or_return(self, inputs: impl Inputs, user_data: U) -> Result<u64, RefusedJob<U>> {
        self.start_then(inputs, Then::Callback(user_data)).map_err(|(error, then)| match then {
            Then::Callback(user_data) => RefusedJob { error, user_data },
            Then::Tell(_) => unreachable!("`start_then` returns the `then` that it got"),
        })
    }

    /// Starts a job whose result goes to `tell`. The queue's callback and `wait_all` do not get the result.
    pub(super) fn start_telling(self, inputs: impl Inputs, tell: Tell) -> Result<u64> {
        self.start_then(inputs, Then::Tell(tell)).map_err(|(error, _told_nothing)| error)
    }

    /// Starts a job and returns its number. A refused job gets no number, and its request becomes idle.
    fn start_then(self, inputs: impl Inputs, then: Then<U>) -> Result<u64, (Error, Then<U>)> {
        let (shared, request_idx) = (self.shared, self.request_idx);
        let request = &shared.requests[request_idx];
        let body = match request.begin_for_queue(&inputs) {
            Ok(body) => body,
            Err(error) => return Err((error, then)),
        };
        // From here on, the slot keeps track of the request, so the drop of this `IdleRequest` must not return the request to the queue.
        std::mem::forget(self);
        request.shared().set_keeper(Keeper::Queue);
        let mut state = shared.state.lock().unwrap();
        let number = state.n_started;
        state.n_started += 1;
        state.slots[request_idx] = Slot::Started { after: body.run - 1, job: Some(Job { number, then }) };
        drop(state);
        request.shared().pass_on(body);
        Ok(number)
    }
}

impl<U> Deref for IdleRequest<'_, U> {
    type Target = InferRequest;

    fn deref(&self) -> &InferRequest {
        &self.shared.requests[self.request_idx]
    }
}

impl<U> Drop for IdleRequest<'_, U> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock().unwrap();
        // From here on, only the queue can start the request, so its state can be read and stays valid.
        self.shared().set_keeper(Keeper::Queue);
        let guarded = self.shared().guarded.lock().unwrap();
        let (is_on, latest_run) = (guarded.state.is_on(), guarded.state.latest_run());
        drop(guarded);
        if is_on {
            // The owner of the `IdleRequest` started a run directly. When that run completes, the request becomes idle in the queue.
            state.slots[self.request_idx] = Slot::Started { after: latest_run - 1, job: None };
        } else {
            self.shared.put_back(state, self.request_idx);
        }
    }
}

impl<U> fmt::Debug for IdleRequest<'_, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdleRequest({})", self.request_idx)
    }
}

impl<U> Index<usize> for AsyncInferQueue<U> {
    type Output = InferRequest;

    /// # Panics
    /// Panics if the queue has no request with this index.
    fn index(&self, request_idx: usize) -> &InferRequest {
        &self.shared.requests[request_idx]
    }
}

impl<U> fmt::Debug for AsyncInferQueue<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncInferQueue({} requests)", self.len())
    }
}

impl<U> Drop for AsyncInferQueue<U> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock().unwrap();
        let callback = state.callback.take();
        let jobs: Vec<Option<Job<U>>> = state
            .slots
            .iter_mut()
            .map(|slot| match slot {
                Slot::Started { job, .. } => job.take(),
                Slot::Idle | Slot::Taken => None,
            })
            .collect();
        drop(state);
        drop((callback, jobs));
        self.shared.requests.iter().for_each(InferRequest::cancel);
        for request in &self.shared.requests {
            // If this drop runs inside the request's own callback, the wait fails immediately. In this case, the request is stopped later,
            // when its last handle is dropped.
            let _over = request.wait_for(request.model().config.drop_patience);
        }
    }
}

impl fmt::Display for JobErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, JobError { job, error }) in self.errors.iter().enumerate() {
            write!(f, "{}job {job}: {error}", if idx > 0 { "; " } else { "" })?;
        }
        if self.n_more > 0 { write!(f, "; and {} more", self.n_more) } else { Ok(()) }
    }
}

impl std::error::Error for JobErrors {}

/// Converts to an error with the kind of the first failure and the messages of all failures.
impl From<JobErrors> for Error {
    fn from(errors: JobErrors) -> Self {
        let kind = errors.errors.first().map_or(ErrorKind::Device, |first| first.error.kind());
        Self::new(kind, errors.to_string())
    }
}

impl<U> fmt::Display for TryStartError<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("all requests of the queue are busy"),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl<U: fmt::Debug> std::error::Error for TryStartError<U> {}
