//! Executors of steps: the calling thread ([`Inline`]), a thread pool ([`Pool`]), or an executor that a test drives ([`Manual`]).
//!
//! A request is in the queue of at most one executor, and only once. A process has at most [`MAX_REQUESTS`] requests.

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

/// A task for an executor. A run implements this trait, so queueing it clones an `Arc` and does not allocate.
pub trait Task: Send + Sync {
    /// Runs the task. If the task panics, a pool catches the panic and logs it.
    fn run(self: Arc<Self>);

    /// Returns whether a pool runs this task before tasks that are not urgent. The pool calls this method when the task is queued.
    fn is_urgent(&self) -> bool {
        false
    }

    /// Returns the group of the task, for example the number of its model. A pool interleaves the tasks of different groups. It calls this
    /// method when the task is queued.
    fn group(&self) -> u64 {
        0
    }
}

/// Runs tasks on threads of its choice.
pub trait Executor: Send + Sync + fmt::Debug {
    /// Queues a task, or runs it immediately. This method must not block for long. If it panics, the panic becomes the error of the run.
    fn execute(&self, task: Arc<dyn Task>);

    /// Returns whether `execute` runs tasks on the calling thread. A step on such an executor runs in the same task as the step before it.
    fn is_inline(&self) -> bool {
        false
    }

    /// Returns the executor on which tasks finally run, if this executor only delays them. After a delayed step, the same task also
    /// executes the next steps of the run that use the returned executor.
    fn goes_on_at(&self) -> Option<Arc<dyn Executor>> {
        None
    }

    /// Called when a run was canceled while its task waits in this executor. If the executor holds the task until an event (and not only
    /// until a thread is free), it must now queue the task.
    fn recall(&self) {}

    /// Returns the number of tasks that run concurrently on this executor. Devices compute their optimal number of requests from it. The
    /// default is the number of cores that the process may use.
    fn n_threads(&self) -> usize {
        n_cores()
    }
}

/// Two executors are equal only if they are the same object.
impl PartialEq for dyn Executor {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self, other)
    }
}

impl Eq for dyn Executor {}

/// Returns the number of cores that the process may use.
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

/// Keeps tasks in a queue until a test runs them.
#[derive(Default)]
pub struct Manual {
    tasks: Mutex<VecDeque<Arc<dyn Task>>>,
}

impl Manual {
    /// Runs the oldest queued task on the calling thread. Returns false if no task is queued.
    pub fn run_one(&self) -> bool {
        let task = self.tasks.lock().unwrap().pop_front();
        task.map(Task::run).is_some()
    }

    /// Returns the number of queued tasks.
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

/// The executors that all devices of a core share, and the number of requests on them.
///
/// Preprocessing, decoding and CPU engines of all models and requests share one pool, so together they start only one thread per core.
#[derive(Debug, Clone, Default)]
pub struct Executors(Arc<ExecutorsInner>);

#[derive(Debug, Default)]
struct ExecutorsInner {
    /// The named pools. A pool exists only while it is in use.
    named: Mutex<BTreeMap<String, Weak<Pool>>>,
    cpu: OnceLock<Arc<Pool>>,
    n_requests: AtomicUsize,
    /// The process that started the threads of the pools. A process that was forked from it does not have these threads.
    process: OnceLock<ProcessToken>,
    registry: Registry,
}

impl Executors {
    /// Returns the CPU pool, which has one worker per core that the process may use. The first call starts it.
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

    /// Returns the pool with this name, for example for callbacks or for waiting on a device. If no such pool is in use, starts a pool with
    /// `n_threads` threads.
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

    /// Returns the executor of the CPU steps of a model: [`Config::executor`] if set, otherwise the CPU pool.
    ///
    /// # Errors
    /// Returns `Device` if the system cannot start a thread.
    pub fn for_steps(&self, config: &Config) -> Result<Arc<dyn Executor>> {
        match &config.executor {
            Some(executor) => Ok(executor.clone()),
            None => Ok(self.cpu()?),
        }
    }

    /// Returns the executor of the CPU steps of a device. If [`Config::exclusive_requests`] is set, this is a pool of one worker, which all
    /// models of the device with this option share. Otherwise, it is the result of [`Executors::for_steps`].
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

    /// Returns the number of named pools that are in use.
    pub fn n_named(&self) -> usize {
        self.0.named.lock().unwrap().values().filter(|pool| pool.strong_count() > 0).count()
    }

    /// Returns the process that started the first pool or created the first request. A process that was forked from it does not have its
    /// threads.
    fn process(&self) -> ProcessToken {
        *self.0.process.get_or_init(ProcessToken::current)
    }

    /// Returns whether the current process has the threads of the pools.
    pub(crate) fn are_in_this_process(&self) -> bool {
        self.process().is_current()
    }

    /// Returns the registry of waits by threads that are inside callbacks and steps.
    pub(crate) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Counts one more request until the returned ticket is dropped. Fails if [`MAX_REQUESTS`] requests exist.
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

/// Counts one request until the ticket is dropped. At most [`MAX_REQUESTS`] tickets exist.
#[derive(Debug)]
pub(crate) struct Ticket(Executors);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.0.n_requests.fetch_sub(1, Ordering::AcqRel);
    }
}
