//! Who runs a step: the caller's thread, a bounded pool, or a test that turns the crank by hand.
//!
//! A pool runs urgent tasks before others: those of requests that work on what others have found. A request is queued at most once
//! at a time, on one executor, so that a queue of `MAX_REQUESTS` places holds all that exist; a request that would exceed it is
//! refused when it is *created*, never when it runs. Tasks beyond that (a user's own, or places that canceled runs left behind)
//! overflow into a list that allocates: `execute` never blocks.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::{process, thread};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use super::error::catch;
use super::{Config, Error, ErrorKind, Result};

/// The most requests that may exist at a time on the executors of one process.
pub const MAX_REQUESTS: usize = 4096;

/// Something to run. Implemented by requests, so that queueing one is cloning an `Arc`: no allocation per run.
pub trait Task: Send + Sync {
    /// Runs it. A pool survives a panic, and says so in the log.
    fn run(self: Arc<Self>);

    /// Whether a pool runs it before tasks that are not urgent; asked when it is queued.
    fn is_urgent(&self) -> bool {
        false
    }
}

/// Runs tasks.
pub trait Executor: Send + Sync + fmt::Debug {
    /// Queues a task, or runs it at once. Never blocks for long. If it panics, the run ends with that as its error.
    fn execute(&self, task: Arc<dyn Task>);

    /// Whether a task runs inside `execute`, on the caller's thread: such a step joins its neighbor before it.
    fn is_inline(&self) -> bool {
        false
    }

    /// Where its tasks run in the end, if it only lets them wait: steps on that one are neighbors of theirs.
    fn goes_on_at(&self) -> Option<Arc<dyn Executor>> {
        None
    }

    /// The run whose task waits here is to end: a task that would wait for something else than a thread goes on now.
    fn recall(&self) {}
}

/// Runs tasks on the caller's thread.
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

/// Urgent tasks that a worker runs in a row while others wait.
const MAX_URGENT_IN_A_ROW: usize = 16;

/// A fixed number of worker threads and one queue, past which urgent tasks go.
pub struct Pool {
    name: String,
    queue: Option<Queue>,
    workers: Vec<thread::JoinHandle<()>>,
    /// That has the workers: one that was forked from it has none.
    process: u32,
}

struct Queue {
    turns: Sender<Turn>,
    urgent: Sender<Arc<dyn Task>>,
    overflow: Arc<Overflow>,
}

/// Tasks that found the queue full.
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

/// What wakes a worker. It runs the urgent tasks that wait before it does anything else.
enum Turn {
    Task(Arc<dyn Task>),
    /// There are urgent ones.
    Look,
}

impl Pool {
    /// Starts `n_threads` workers.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn new(name: &str, n_threads: usize) -> Result<Self> {
        let n_threads = n_threads.max(1);
        // A look for each worker, beside the tasks.
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

/// A worker, until the pool is dropped and all tasks are done.
fn work(turns: &Receiver<Turn>, urgent: &Receiver<Arc<dyn Task>>, overflow: &Overflow) {
    // Urgent tasks, or those of the overflow, may be left over for which nobody is woken any more.
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

/// Runs a task; the worker survives it.
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
            // Refused if the queue is still full: then a worker takes a turn, and looks here after it.
            let _sent = turns.try_send(Turn::Look);
            return;
        }
        if !is_urgent {
            return;
        }
        // Who takes a turn that was there after the task was looks for urgent ones after that: no more turns are needed than workers.
        if turns.len() < self.workers.len() {
            // Refused if it is full: then nobody sleeps.
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
            // Nobody would ever end.
            return std::mem::forget(std::mem::take(&mut self.workers));
        }
        let here = thread::current().id();
        for worker in self.workers.drain(..) {
            // The last owner may be a task on one of the workers: it can't wait for itself, and ends by itself.
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
    /// Runs the oldest task on the caller's thread; false if there is none.
    pub fn run_one(&self) -> bool {
        let task = self.tasks.lock().unwrap().pop_front();
        task.map(Task::run).is_some()
    }

    /// Number of tasks that wait.
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

/// The executors that all devices of a process share, and the count of requests on them.
///
/// Fill, decode and engines on the processor share one pool, so one budget of cores, whatever the number of models,
/// requests and runs.
#[derive(Debug, Clone, Default)]
pub struct Executors(Arc<ExecutorsInner>);

#[derive(Debug, Default)]
struct ExecutorsInner {
    /// By name. Those that nobody uses any more are gone: a name costs a thread only while a model of its device lives.
    named: Mutex<BTreeMap<String, Weak<Pool>>>,
    cpu: OnceLock<Arc<Pool>>,
    n_requests: AtomicUsize,
    /// That has the threads of the pools.
    process: OnceLock<u32>,
}

impl Executors {
    /// The pool of the processor: one worker per core that the process may use. Started at the first call.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn cpu(&self) -> Result<Arc<Pool>> {
        if let Some(pool) = self.0.cpu.get() {
            return Ok(pool.clone());
        }
        let n_threads = thread::available_parallelism().map_or(1, usize::from);
        let pool = Arc::new(Pool::new("roiflow-cpu", n_threads)?);
        Ok(self.0.cpu.get_or_init(|| pool).clone())
    }

    /// The pool with this name, started with `n_threads` if there is none: the waiter of a device's instance, the one worker of
    /// a device's exclusive requests, the callbacks. The same name gives the same pool for as long as somebody keeps it.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn named(&self, name: &str, n_threads: usize) -> Result<Arc<Pool>> {
        let mut named = self.0.named.lock().unwrap();
        if let Some(pool) = named.get(name).and_then(Weak::upgrade) {
            return Ok(pool);
        }
        let pool = Arc::new(Pool::new(name, n_threads)?);
        named.insert(name.to_owned(), Arc::downgrade(&pool));
        Ok(pool)
    }

    /// Where the processor's steps of a model run: on the pool of the processor, or, for
    /// [`Config::exclusive_requests`](super::Config::exclusive_requests), on the one worker that all such models of the device
    /// share.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn for_model(&self, device: &str, config: &Config) -> Result<Arc<Pool>> {
        if config.exclusive_requests { self.named(&format!("roiflow-{device}-exclusive"), 1) } else { self.cpu() }
    }

    /// Number of named pools that are in use.
    pub fn n_named(&self) -> usize {
        self.0.named.lock().unwrap().values().filter(|pool| pool.strong_count() > 0).count()
    }

    /// The process in which the first request was made: others that were forked from it have none of its threads.
    pub(crate) fn process(&self) -> u32 {
        *self.0.process.get_or_init(process::id)
    }

    /// Counts one more request in, until the ticket is dropped.
    pub(crate) fn admit(&self) -> Result<Ticket> {
        let admitted = self.0.n_requests.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < MAX_REQUESTS).then_some(n + 1));
        match admitted {
            Ok(_) => Ok(Ticket(self.clone())),
            Err(_) => Err(Error::new(ErrorKind::Device, format!("{MAX_REQUESTS} requests exist already; drop some, or reuse them"))),
        }
    }
}

/// The place of one request among [`MAX_REQUESTS`].
#[derive(Debug)]
pub(crate) struct Ticket(Executors);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.0.n_requests.fetch_sub(1, Ordering::AcqRel);
    }
}
