//! Blocking waits of the runtime. This module reports them to the thread pool of the waiting worker, and rejects waits that would never
//! end.
//!
//! Each blocking wait of the runtime holds a [`Waits`] guard. If the waiting thread is a worker of a [`Pool`](super::executor::Pool), the
//! guard lets another worker run the tasks of the pool meanwhile. Declare the `Waits` guard before the guard of the lock that the wait
//! uses, so that the lock is released first.
//!
//! A wait may be part of a cycle: the callback of one request waits for a second request, whose callback waits for the first one. Therefore
//! a thread inside a callback, step, filler or interrupt registers the requests that it waits for with [`Registry::begin`]. The registry
//! rejects a wait if every request that could end it is inside a callback or step, and the thread of that callback or step waits in the
//! same cycle. Waits with a time limit always end, so they are not registered.
//!
//! Lock order: first the registry, then a request. Never lock the registry while the lock of a request is held.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use super::pool::Workers;
use super::run::Shared;
use super::{Error, ErrorKind, Result};
use crate::sync::{Mutex, this_thread, thread_local};

/// What the runtime knows about the current thread.
#[derive(Default)]
struct Here {
    /// The pool to which this worker thread belongs, and the number of the worker.
    worker: RefCell<Option<(Arc<Workers>, usize)>>,
    /// Whether this thread is in a wait that was already reported to the pool.
    is_waiting: Cell<bool>,
    /// The nesting depth of callbacks, steps, fillers and interrupts on this thread; 0 outside of them.
    depth: Cell<usize>,
}

thread_local! {
    static HERE: Here = Here::default();
}

/// Calls `action` with the state of the current thread. Returns `None` while the thread ends: its state is already destroyed, but the
/// destructors of other thread-local values may still drop requests.
fn with_here<R>(action: impl FnOnce(&Here) -> R) -> Option<R> {
    HERE.try_with(action).ok()
}

/// Records that the current thread is a worker of a pool.
pub(super) fn enter_worker(workers: Arc<Workers>, worker_idx: usize) {
    with_here(|here| *here.worker.borrow_mut() = Some((workers, worker_idx)));
}

/// Returns the number of the current thread among these workers; `None` if the thread is not one of them.
pub(super) fn worker_idx(workers: &Arc<Workers>) -> Option<usize> {
    let of_here = |here: &Here| here.worker.borrow().as_ref().filter(|(known, _)| Arc::ptr_eq(known, workers)).map(|(_, idx)| *idx);
    with_here(of_here).flatten()
}

/// Marks the current thread as inside a callback, step, filler or interrupt until this value is dropped.
pub(super) struct Inside(());

impl Inside {
    pub(super) fn enter() -> Self {
        with_here(|here| here.depth.set(here.depth.get() + 1));
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        with_here(|here| here.depth.set(here.depth.get() - 1));
    }
}

/// Returns whether a wait on this thread must be reported, because the thread is a worker or is inside a callback, step, filler or
/// interrupt.
pub(super) fn must_report() -> bool {
    with_here(|here| here.depth.get() > 0 || here.worker.borrow().is_some()).unwrap_or(false)
}

/// Runs `action`, which blocks, and reports this wait to the thread pool. Use this function for waits that the runtime does not detect: for
/// locks, channels, futures and files.
///
/// Call this function in callbacks and steps, around code that waits for other requests or blocks for long. If the current thread is a
/// worker of a [`Pool`](super::executor::Pool), another worker runs the tasks of the pool meanwhile. On other threads, this function only
/// calls `action`. Waits for requests and queues, such as [`InferRequest::wait`](super::InferRequest::wait), are reported automatically.
///
/// # Errors
/// Returns `WouldDeadlock` if `action` would block the last worker of the pool and the system cannot start another thread. In this case,
/// `action` is not called.
///
/// ```
/// # use roiflow::{devices, runtime::{Config, executor}};
/// # fn main() -> roiflow::runtime::Result<()> {
/// # let core = devices::core();
/// # let model = core.compile_model(&core.read_model("assets/tiny/double.onnx")?, "CPU", &Config::default())?;
/// let (first, second) = (model.create_infer_request()?, model.create_infer_request()?);
/// first.set_callback(move |_, _| {
///     let run = second.run(&ndarray::arr2(&[[1.0_f32; 4]]));
///     // The runtime does not detect that `block_on` blocks.
///     executor::blocking(|| futures::executor::block_on(run)).expect("a worker is left").expect("the run succeeds");
/// })?;
/// first.start_async(&ndarray::arr2(&[[1.0_f32; 4]]))?;
/// first.wait()?;
/// # Ok(())
/// # }
/// ```
pub fn blocking<R>(action: impl FnOnce() -> R) -> Result<R> {
    let _waits = Waits::lend()?;
    Ok(action())
}

/// Represents a blocking wait of the current thread. Dropping the value ends the wait.
#[derive(Default)]
#[must_use = "the wait ends when it is dropped"]
pub(super) struct Waits<'a> {
    /// The pool of the thread, if this guard reported the wait to the pool and must report its end.
    workers: Option<Arc<Workers>>,
    registry: Option<&'a Registry>,
}

impl<'a> Waits<'a> {
    /// Creates a guard that represents no wait yet. The module documentation explains where to declare the guard.
    pub(super) fn none() -> Self {
        Self::default()
    }

    /// Reports a wait to the pool of the current thread. Has no effect if the thread is not a worker, or is already in a reported wait.
    pub(super) fn lend() -> Result<Self> {
        let workers = with_here(|here| {
            if here.is_waiting.get() {
                return None;
            }
            here.worker.borrow().as_ref().map(|(workers, _)| workers.clone())
        });
        let workers = workers.flatten();
        if let Some(workers) = &workers {
            workers.begin_wait()?;
            with_here(|here| here.is_waiting.set(true));
        }
        Ok(Self { workers, registry: None })
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Some(registry) = self.registry {
            registry.end();
        }
        if let Some(workers) = &self.workers {
            with_here(|here| here.is_waiting.set(false));
            workers.end_wait();
        }
    }
}

/// The runs or requests for which a thread waits.
pub(super) enum Target {
    /// A run of a request, for a limited time, so the wait always ends.
    Timed,
    /// One run: the request, and the number of the run.
    Run(Arc<Shared>, u64),
    /// The wait ends when any of these requests completes.
    Any(Vec<Arc<Shared>>),
    /// The wait ends when all of these requests have completed.
    All(Vec<Arc<Shared>>),
}

/// The waits of all threads that are inside callbacks, steps, fillers and interrupts.
#[derive(Default)]
pub(super) struct Registry {
    waiting: Mutex<Vec<Waiting>>,
}

struct Waiting {
    thread: u64,
    target: Target,
}

impl Registry {
    /// Reports that the current thread blocks until `target` is complete.
    ///
    /// # Errors
    /// Returns `WouldDeadlock` if the wait would never end, or would block the last worker of a pool.
    pub(super) fn begin(&self, target: impl FnOnce() -> Target) -> Result<Waits<'_>> {
        let mut waits = Waits::none();
        if with_here(|here| here.depth.get() > 0).unwrap_or(false) {
            match target() {
                Target::Timed => {}
                target => {
                    self.register(target)?;
                    waits.registry = Some(self);
                }
            }
        }
        waits.workers = Waits::lend()?.workers.take();
        Ok(waits)
    }

    fn register(&self, target: Target) -> Result<()> {
        let mut waiting = self.waiting.lock().unwrap();
        let thread = this_thread();
        waiting.push(Waiting { thread, target });
        if stuck_threads(&waiting).contains(&thread) {
            let refused = waiting.pop();
            drop(waiting);
            drop(refused); // Dropped without the lock, because it may hold the last handle of a request, whose drop runs other code.
            return Err(Error::new(
                ErrorKind::WouldDeadlock,
                "the wait is part of a cycle: it waits for a run that is inside a callback or step, which waits for this thread; \
                 return from the callback instead, or use another request",
            ));
        }
        Ok(())
    }

    fn end(&self) {
        let mut waiting = self.waiting.lock().unwrap();
        let thread = this_thread();
        let ended = waiting.iter().rposition(|known| known.thread == thread).map(|idx| waiting.swap_remove(idx));
        drop(waiting);
        drop(ended);
    }
}

/// Returns the threads whose waits can never end. First assumes that no wait can end. Then removes each wait for a request that can still
/// complete, and repeats this until nothing changes.
fn stuck_threads(waiting: &[Waiting]) -> Vec<u64> {
    let mut stuck: Vec<&Waiting> = waiting.iter().collect();
    loop {
        let n_before = stuck.len();
        let threads: Vec<u64> = stuck.iter().map(|known| known.thread).collect();
        stuck.retain(|known| known.target.is_stuck(&threads));
        if stuck.len() == n_before {
            return threads;
        }
    }
}

impl Target {
    fn is_stuck(&self, threads: &[u64]) -> bool {
        match self {
            Self::Timed => false,
            Self::Run(request, run) => request.is_held_by(threads, Some(*run)),
            Self::Any(requests) => requests.iter().all(|request| request.is_held_by(threads, None)),
            Self::All(requests) => requests.iter().any(|request| request.is_held_by(threads, None)),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registry")
    }
}
