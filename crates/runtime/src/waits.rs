//! Blocking waits: reports them to the pool of the waiting worker, and refuses waits that could never end.
//!
//! Each blocking wait of the runtime holds a [`Waits`] guard. On a worker of a [`Pool`](super::executor::Pool) the guard makes another
//! worker take its place, so tasks of the pool still run. The guard must be declared before the lock guard of the wait, so that it is
//! dropped after it.
//!
//! A wait may be part of a cycle: the callback of one request waits for a second request, whose callback waits for the first one. A thread
//! that is inside a callback, step, filler or interrupt therefore registers what it waits for, with [`Registry::begin`]. A wait is refused
//! if the requests that it waits for are all inside callbacks or steps of threads whose waits cannot end either. Waits with a time limit
//! end by themselves and are not registered.
//!
//! Lock order: the registry, then the lock of a request. The registry is not locked while a request's lock is held.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use super::pool::Workers;
use super::run::Shared;
use super::{Error, ErrorKind, Result};
use crate::sync::{Mutex, this_thread, thread_local};

/// The state of the current thread.
#[derive(Default)]
struct Here {
    /// The pool of which the thread is a worker, and its number there.
    worker: RefCell<Option<(Arc<Workers>, usize)>>,
    /// A wait was reported already.
    is_waiting: Cell<bool>,
    /// Number of callbacks, steps, fillers and interrupts that the thread is inside.
    depth: Cell<usize>,
}

thread_local! {
    static HERE: Here = Here::default();
}

/// `None` while the thread ends, when its last variables may drop requests.
fn with_here<R>(action: impl FnOnce(&Here) -> R) -> Option<R> {
    HERE.try_with(action).ok()
}

/// The current thread is a worker from now on.
pub(super) fn enter_worker(workers: Arc<Workers>, worker_idx: usize) {
    with_here(|here| *here.worker.borrow_mut() = Some((workers, worker_idx)));
}

/// The number of the current thread among these workers, if it is one of them.
pub(super) fn worker_idx(workers: &Arc<Workers>) -> Option<usize> {
    let of_here = |here: &Here| here.worker.borrow().as_ref().filter(|(known, _)| Arc::ptr_eq(known, workers)).map(|(_, idx)| *idx);
    with_here(of_here).flatten()
}

/// Marks the current thread as inside a callback, step, filler or interrupt until it is dropped.
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

/// Whether a wait on this thread must be reported: it is a worker, or inside a callback, step, filler or interrupt.
pub(super) fn must_report() -> bool {
    with_here(|here| here.depth.get() > 0 || here.worker.borrow().is_some()).unwrap_or(false)
}

/// Reports that `action` blocks, for waits that the runtime does not see: locks, channels, futures, files.
///
/// Call it in callbacks and steps around code that waits for other requests, or blocks for long. If the current thread is a worker of a
/// [`Pool`](super::executor::Pool), another worker runs the pool's tasks meanwhile. On other threads it just calls `action`. Waits for
/// requests and queues, such as [`InferRequest::wait`](super::InferRequest::wait), report themselves.
///
/// # Errors
/// `WouldDeadlock` if `action` would block the last worker of the pool, and the system cannot start another thread. `action` is not called
/// then.
///
/// ```
/// # use roiflow::{devices, runtime::{Config, executor}};
/// # fn main() -> roiflow::runtime::Result<()> {
/// # let core = devices::core();
/// # let model = core.compile_model(&core.read_model("assets/tiny/double.onnx")?, "CPU", &Config::default())?;
/// let (first, second) = (model.create_infer_request()?, model.create_infer_request()?);
/// first.set_callback(move |_, _| {
///     let run = second.run(&ndarray::arr2(&[[1.0_f32; 4]]));
///     // `block_on` is not part of the runtime.
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

/// A blocking wait of the current thread, which ends when it is dropped.
#[derive(Default)]
#[must_use = "the wait ends when it is dropped"]
pub(super) struct Waits<'a> {
    /// The pool of the thread, if this guard has reported the wait to it.
    workers: Option<Arc<Workers>>,
    registry: Option<&'a Registry>,
}

impl<'a> Waits<'a> {
    /// No wait yet. See the module for the order of declarations.
    pub(super) fn none() -> Self {
        Self::default()
    }

    /// Reports a wait to the pool of the current thread. No effect within another reported wait, or if it is no worker.
    fn lend() -> Result<Self> {
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

/// What a thread waits for.
pub(super) enum Target {
    /// A run of a request. With a time limit, so that the wait ends in any case.
    Timed,
    /// This run of a request.
    Run(Arc<Shared>, u64),
    /// Any of these requests.
    Any(Vec<Arc<Shared>>),
    /// All of these requests.
    All(Vec<Arc<Shared>>),
}

/// The waits of threads that are inside callbacks, steps, fillers and interrupts.
#[derive(Default)]
pub(super) struct Registry {
    waiting: Mutex<Vec<Waiting>>,
}

struct Waiting {
    thread: u64,
    target: Target,
}

impl Registry {
    /// Reports a blocking wait of the current thread for `target`.
    ///
    /// # Errors
    /// `WouldDeadlock` if the wait could never end, or would block the last worker of a pool.
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
            drop(refused); // Without the lock: requests.
            return Err(Error::new(
                ErrorKind::WouldDeadlock,
                "the wait is part of a cycle: what it waits for is inside a callback or step that waits for this thread; \
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

/// The threads whose waits can never end. Each wait is assumed to be stuck until one of its requests turns out not to be.
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
