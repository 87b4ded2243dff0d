//! Executors of steps: the calling thread, a thread pool, or a manual executor for tests.
//!
//! A pool runs urgent tasks first, for example those of classifiers. A request is queued at most once at a time, on one executor, so a
//! queue of `MAX_REQUESTS` slots holds all of them. Creating more requests fails; running them never does. Further tasks (of the user, or
//! left by canceled runs) go to an overflow list that allocates, so `execute` never blocks.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::{process, thread};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use super::error::catch;
use super::{Config, Error, ErrorKind, Result};

/// Maximum number of requests on the executors of one process.
pub const MAX_REQUESTS: usize = 4096;

/// A task. Requests implement it, so queueing a run clones an `Arc` and does not allocate.
pub trait Task: Send + Sync {
    /// Runs the task. A pool survives a panic and logs it.
    fn run(self: Arc<Self>);

    /// Whether a pool runs it before tasks that are not urgent; read when it is queued.
    fn is_urgent(&self) -> bool {
        false
    }
}

/// Runs tasks.
pub trait Executor: Send + Sync + fmt::Debug {
    /// Queues a task, or runs it immediately. Must not block for long. A panic here becomes the error of the run.
    fn execute(&self, task: Arc<dyn Task>);

    /// Whether tasks run within `execute`, on the calling thread. Such a step is merged with the previous one.
    fn is_inline(&self) -> bool {
        false
    }

    /// The executor that finally runs the tasks, if this one only delays them. Steps on that executor are merged with them.
    fn goes_on_at(&self) -> Option<Arc<dyn Executor>> {
        None
    }

    /// A run whose task waits here was canceled: release the task if it waits for something other than a thread.
    fn recall(&self) {}
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

/// Maximum number of urgent tasks that a worker runs in a row while others wait.
const MAX_URGENT_IN_A_ROW: usize = 16;

/// A thread pool with a queue for tasks and a queue for urgent tasks.
pub struct Pool {
    name: String,
    queue: Option<Queue>,
    workers: Vec<thread::JoinHandle<()>>,
    /// The process with the workers: a forked process has none.
    process: u32,
}

struct Queue {
    turns: Sender<Turn>,
    urgent: Sender<Arc<dyn Task>>,
    overflow: Arc<Overflow>,
}

/// Tasks that did not fit into the queue.
#[derive(Default)]
struct Overflow {
    n_tasks: AtomicUsize,
    tasks: Mutex<VecDeque<Arc<dyn Task>>>,
}

impl Overflow {
    fn push(&self, task: Arc<dyn Task>) {
        self.tasks().push_back(task);
        self.n_tasks.fetch_add(1, Ordering::SeqCst);
    }

    fn pop(&self) -> Option<Arc<dyn Task>> {
        if self.n_tasks.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let task = self.tasks().pop_front()?;
        self.n_tasks.fetch_sub(1, Ordering::SeqCst);
        Some(task)
    }

    fn tasks(&self) -> MutexGuard<'_, VecDeque<Arc<dyn Task>>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entry of the queue, which wakes a worker. The worker runs waiting urgent tasks first.
enum Turn {
    Task(Arc<dyn Task>),
    /// Urgent tasks wait.
    Look,
}

impl Pool {
    /// Starts `n_threads` workers.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn new(name: &str, n_threads: usize) -> Result<Self> {
        let n_threads = n_threads.max(1);
        // One wake-up entry per worker, in addition to the tasks.
        let (turns, turns_out) = bounded(MAX_REQUESTS + n_threads);
        let (urgent, urgent_out) = bounded(MAX_REQUESTS);
        let overflow = Arc::<Overflow>::default();
        let queue = Queue { turns, urgent, overflow: overflow.clone() };
        let mut pool = Self { name: name.to_owned(), queue: Some(queue), workers: Vec::new(), process: process::id() };
        for worker_idx in 0..n_threads {
            let (turns, urgent, overflow) = (turns_out.clone(), urgent_out.clone(), overflow.clone());
            let worker = thread::Builder::new()
                .name(format!("{name}-{worker_idx}"))
                .spawn(move || work(&turns, &urgent, &overflow))
                .map_err(|error| Error::with_source(ErrorKind::Device, format!("cannot start worker {worker_idx} of `{name}`"), error))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Number of threads.
    pub fn n_threads(&self) -> usize {
        self.workers.len()
    }
}

/// The loop of a worker, until the pool is dropped and all tasks are done.
fn work(turns: &Receiver<Turn>, urgent: &Receiver<Arc<dyn Task>>, overflow: &Overflow) {
    // Urgent tasks and overflow tasks may remain without a wake-up entry.
    let mut has_more = false;
    loop {
        let turn = match has_more {
            true => turns.try_recv().unwrap_or(Turn::Look),
            false => match turns.recv() {
                Ok(turn) => turn,
                Err(_) => break,
            },
        };
        let n_run = urgent.try_iter().take(MAX_URGENT_IN_A_ROW).map(run).count();
        has_more = n_run == MAX_URGENT_IN_A_ROW;
        if let Turn::Task(task) = turn {
            run(task);
        }
        if let Some(task) = overflow.pop() {
            has_more = true;
            run(task);
        }
    }
    urgent.try_iter().for_each(run);
    std::iter::from_fn(|| overflow.pop()).for_each(run);
}

/// Runs a task; the worker survives a panic.
fn run(task: Arc<dyn Task>) {
    let _survived = catch(format_args!("the log"), || {
        if let Err(error) = catch(format_args!("a task"), || task.run()) {
            tracing::error!("{error}");
        }
    });
}

impl Executor for Pool {
    fn execute(&self, task: Arc<dyn Task>) {
        let Queue { turns, urgent, overflow } = self.queue.as_ref().expect("only drop takes the queue");
        let is_urgent = task.is_urgent();
        let refused = match is_urgent {
            true => urgent.try_send(task).map_err(TrySendError::into_inner).err(),
            false => turns.try_send(Turn::Task(task)).err().and_then(|full| match full.into_inner() {
                Turn::Task(task) => Some(task),
                Turn::Look => None,
            }),
        };
        if let Some(task) = refused {
            overflow.push(task);
            // Fails if the queue is full: then a worker takes an entry, and checks the overflow list after it.
            let _sent = turns.try_send(Turn::Look);
            return;
        }
        if !is_urgent {
            return;
        }
        // A worker that takes a later entry checks for urgent tasks afterwards, so one entry per worker is enough.
        if turns.len() < self.workers.len() {
            // Fails if the queue is full: then no worker sleeps.
            let _sent = turns.try_send(Turn::Look);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({}, {} threads)", self.name, self.workers.len())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue = None;
        if process::id() != self.process {
            // Otherwise the task would never end.
            return std::mem::forget(std::mem::take(&mut self.workers));
        }
        let here = thread::current().id();
        for worker in self.workers.drain(..) {
            // The last owner may be a task on one of the workers, which must not join its own thread.
            if worker.thread().id() != here {
                let _ended = worker.join();
            }
        }
    }
}

/// Queues tasks until a test runs them.
#[derive(Default)]
pub struct Manual {
    tasks: Mutex<VecDeque<Arc<dyn Task>>>,
}

impl Manual {
    /// Runs the oldest task on the calling thread; false if there is none.
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
/// Preprocessing, decoding and CPU engines share one pool, and so one budget of cores, for all models and requests.
#[derive(Debug, Clone, Default)]
pub struct Executors(Arc<ExecutorsInner>);

#[derive(Debug, Default)]
struct ExecutorsInner {
    /// Named pools. A pool exists only while it is in use.
    named: Mutex<BTreeMap<String, Weak<Pool>>>,
    cpu: OnceLock<Arc<Pool>>,
    n_requests: AtomicUsize,
    /// The process with the threads of the pools.
    process: OnceLock<u32>,
}

impl Executors {
    /// The CPU pool: one worker per core that the process may use. Started by the first call.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn cpu(&self) -> Result<Arc<Pool>> {
        if let Some(pool) = self.0.cpu.get() {
            return Ok(pool.clone());
        }
        let n_threads = thread::available_parallelism().map_or(1, usize::from);
        let pool = Arc::new(Pool::new("roiflow-cpu", n_threads)?);
        Ok(self.0.cpu.get_or_init(|| pool).clone())
    }

    /// The pool with this name, started with `n_threads` if there is none: for waiting on a device, for exclusive requests of a device, for
    /// callbacks. Equal names return the same pool while it is in use.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn named(&self, name: &str, n_threads: usize) -> Result<Arc<Pool>> {
        let mut named = self.0.named.lock().unwrap();
        if let Some(pool) = named.get(name).and_then(Weak::upgrade) {
            return Ok(pool);
        }
        let pool = Arc::new(Pool::new(name, n_threads)?);
        named.insert(name.to_owned(), Arc::downgrade(&pool));
        Ok(pool)
    }

    /// The executor of a model's CPU steps: the CPU pool, or, with [`Config::exclusive_requests`](super::Config::exclusive_requests), the
    /// single worker that all such models of the device share.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn for_model(&self, device: &str, config: &Config) -> Result<Arc<Pool>> {
        if config.exclusive_requests { self.named(&format!("roiflow-{device}-exclusive"), 1) } else { self.cpu() }
    }

    /// Number of named pools that are in use.
    pub fn n_named(&self) -> usize {
        self.0.named.lock().unwrap().values().filter(|pool| pool.strong_count() > 0).count()
    }

    /// The process in which the first request was made. Forked processes do not have its threads.
    pub(crate) fn process(&self) -> u32 {
        *self.0.process.get_or_init(process::id)
    }

    /// Counts a request until the ticket is dropped.
    pub(crate) fn admit(&self) -> Result<Ticket> {
        let admitted = self.0.n_requests.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < MAX_REQUESTS).then_some(n + 1));
        match admitted {
            Ok(_) => Ok(Ticket(self.clone())),
            Err(_) => Err(Error::new(ErrorKind::Device, format!("{MAX_REQUESTS} requests exist already; drop some, or reuse them"))),
        }
    }
}

/// The slot of one request among [`MAX_REQUESTS`].
#[derive(Debug)]
pub(crate) struct Ticket(Executors);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.0.n_requests.fetch_sub(1, Ordering::AcqRel);
    }
}
