//! Executors of steps: the calling thread ([`Inline`]), a thread pool ([`Pool`]), or an executor that a test drives ([`Manual`]).
//!
//! A request is queued at most once at a time, on one executor. A process has at most [`MAX_REQUESTS`] requests.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

pub use super::pool::{MAX_SPARE_WORKERS, Pool};
use super::waits::Registry;
pub use super::waits::blocking;
use super::{Config, Error, ErrorKind, Result};
use crate::tensor::process::ProcessToken;

/// Maximum number of requests on the executors of one process.
pub const MAX_REQUESTS: usize = 4096;

/// A task for an executor. A request implements this trait, so that queueing a run clones an `Arc` and does not allocate.
pub trait Task: Send + Sync {
    /// Runs the task. A pool catches a panic and logs it.
    fn run(self: Arc<Self>);

    /// Whether a pool runs this task before tasks that are not urgent. A pool reads it when the task is queued.
    fn is_urgent(&self) -> bool {
        false
    }

    /// The group of the task, for example its model. A pool interleaves tasks of different groups. A pool reads the group when the task is
    /// queued.
    fn group(&self) -> u64 {
        0
    }
}

/// Runs tasks.
pub trait Executor: Send + Sync + fmt::Debug {
    /// Queues a task, or runs it immediately. Must not block for long. A panic in this method becomes the error of the run.
    fn execute(&self, task: Arc<dyn Task>);

    /// Whether `execute` runs tasks on the calling thread. A step on such an executor is merged with the previous step.
    fn is_inline(&self) -> bool {
        false
    }

    /// The executor that finally runs the tasks, if this executor only delays them. After a delayed step, a run executes its following
    /// steps on that executor in the same task.
    fn goes_on_at(&self) -> Option<Arc<dyn Executor>> {
        None
    }

    /// Called when a run whose task waits in this executor was canceled. An executor that holds tasks for a reason other than a busy thread
    /// must then release the task.
    fn recall(&self) {}

    /// The number of tasks that run concurrently on this executor. Devices derive the optimal number of requests from it. Default: the
    /// number of cores that the process may use.
    fn n_threads(&self) -> usize {
        n_cores()
    }
}

/// Two executors are equal if they are the same object.
impl PartialEq for dyn Executor {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self, other)
    }
}

impl Eq for dyn Executor {}

/// Number of cores that the process may use.
fn n_cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs tasks on the calling thread.
#[derive(Debug, Clone, Copy)]
pub struct Inline;

impl Executor for Inline {
    fn execute(&self, task: Arc<dyn Task>) {
        task.run();
    }

    fn is_inline(&self) -> bool {
        true
    }
}

/// Queues tasks until a test runs them.
#[derive(Default)]
pub struct Manual {
    tasks: Mutex<VecDeque<Arc<dyn Task>>>,
}

impl Manual {
    /// Runs the oldest task on the calling thread. Returns false if there is none.
    pub fn run_one(&self) -> bool {
        let task = self.tasks.lock().unwrap().pop_front();
        task.map(Task::run).is_some()
    }

    /// Number of waiting tasks.
    pub fn n_queued(&self) -> usize {
        self.tasks.lock().unwrap().len()
    }
}

impl Executor for Manual {
    fn execute(&self, task: Arc<dyn Task>) {
        self.tasks.lock().unwrap().push_back(task);
    }
}

impl fmt::Debug for Manual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Manual({} queued)", self.n_queued())
    }
}

/// The executors that all devices of a process share, and the number of requests on them.
///
/// Preprocessing, decoding and CPU engines share one pool for all models and requests, and so use the cores of the process only once.
#[derive(Debug, Clone, Default)]
pub struct Executors(Arc<ExecutorsInner>);

#[derive(Debug, Default)]
struct ExecutorsInner {
    /// The named pools. A pool exists only while it is in use.
    named: Mutex<BTreeMap<String, Weak<Pool>>>,
    cpu: OnceLock<Arc<Pool>>,
    n_requests: AtomicUsize,
    /// The process that owns the threads of the pools. A forked process does not have these threads.
    process: OnceLock<ProcessToken>,
    registry: Registry,
}

impl Executors {
    /// The CPU pool, with one worker per core that the process may use. The first call starts it.
    ///
    /// # Errors
    /// Returns `Device` if the system cannot start a thread.
    pub fn cpu(&self) -> Result<Arc<Pool>> {
        if let Some(pool) = self.0.cpu.get() {
            return Ok(pool.clone());
        }
        self.process();
        let pool = Arc::new(Pool::new("roiflow-cpu", n_cores())?);
        Ok(self.0.cpu.get_or_init(|| pool).clone())
    }

    /// The pool with this name, for example for callbacks or for waiting on a device. If there is none, starts a pool with `n_threads`
    /// threads. While a pool is in use, its name returns the same pool.
    ///
    /// # Errors
    /// Returns `Device` if the system cannot start a thread.
    pub fn named(&self, name: &str, n_threads: usize) -> Result<Arc<Pool>> {
        self.named_or(name, || Pool::new(name, n_threads))
    }

    fn named_or(&self, name: &str, start: impl FnOnce() -> Result<Pool>) -> Result<Arc<Pool>> {
        self.process();
        let mut named = self.0.named.lock().unwrap();
        if let Some(pool) = named.get(name).and_then(Weak::upgrade) {
            return Ok(pool);
        }
        let pool = Arc::new(start()?);
        named.insert(name.to_owned(), Arc::downgrade(&pool));
        Ok(pool)
    }

    /// The executor of the CPU steps of a model: [`Config::executor`] if set, otherwise the CPU pool.
    ///
    /// # Errors
    /// Returns `Device` if the system cannot start a thread.
    pub fn for_steps(&self, config: &Config) -> Result<Arc<dyn Executor>> {
        match &config.executor {
            Some(executor) => Ok(executor.clone()),
            None => Ok(self.cpu()?),
        }
    }

    /// The executor of the CPU steps of a device. With [`Config::exclusive_requests`], this is one worker that all such models of the
    /// device share. Without that option, the executor is the result of [`Executors::for_steps`].
    ///
    /// # Errors
    /// Returns `Device` if the system cannot start a thread.
    pub fn for_model(&self, device: &str, config: &Config) -> Result<Arc<dyn Executor>> {
        if !config.exclusive_requests {
            return self.for_steps(config);
        }
        let name = format!("roiflow-{device}-exclusive");
        Ok(self.named_or(&name, || Pool::in_order(&name, 1))?)
    }

    /// Number of named pools that are in use.
    pub fn n_named(&self) -> usize {
        self.0.named.lock().unwrap().values().filter(|pool| pool.strong_count() > 0).count()
    }

    /// The process that started the first pool or created the first request. A forked process does not have the threads of this process.
    fn process(&self) -> ProcessToken {
        *self.0.process.get_or_init(ProcessToken::current)
    }

    /// Whether the current process has the threads of the pools.
    pub(crate) fn are_in_this_process(&self) -> bool {
        self.process().is_current()
    }

    /// The registry of threads that block inside callbacks and steps.
    pub(crate) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Counts a request until the returned ticket is dropped. Fails if [`MAX_REQUESTS`] exist.
    pub(crate) fn admit(&self) -> Result<Ticket> {
        let admitted = self.0.n_requests.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < MAX_REQUESTS).then_some(n + 1));
        match admitted {
            Ok(_) => Ok(Ticket(self.clone())),
            Err(_) => Err(Error::new(
                ErrorKind::Device,
                format!("cannot create a request: {MAX_REQUESTS} requests exist already; drop some requests, or reuse them"),
            )),
        }
    }
}

/// One of the [`MAX_REQUESTS`] requests that may exist.
#[derive(Debug)]
pub(crate) struct Ticket(Executors);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.0.n_requests.fetch_sub(1, Ordering::AcqRel);
    }
}
