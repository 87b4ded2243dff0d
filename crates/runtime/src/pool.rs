//! A thread pool. When one of its workers blocks, the pool starts or wakes another worker.
//!
//! # Order of tasks
//!
//! Urgent tasks run before other tasks. While other tasks wait, at most [`MAX_URGENT_IN_A_ROW`] urgent tasks run in a row. Within each of
//! these two levels, the groups of tasks are interleaved, so the backlog of one group does not delay another group. The tasks of one model
//! usually form a group, see [`Task::group`]. Tasks of one group run in the order in which they were queued. [`Pool::in_order`] creates a
//! pool that ignores groups.
//!
//! # Blocked workers
//!
//! A task may block, for example in a callback that waits for another request. The runtime reports each blocking wait ([`super::waits`]),
//! and another worker replaces the blocked worker:
//!
//! ```text
//!            takes a task                wait begins                 wait ends
//!   Active ───────────────▶ Active, busy ───────────▶ Blocked ───────────────────▶ Active, busy
//!     ▲  │ no task: sleeps                    │                                       │ too many active: at its next task
//!     └──┘                                    └─▶ a worker in reserve, or a new one,  ▼
//!                                                 becomes active                   Reserve, or ends
//! ```
//!
//! - `n_threads` workers are active. After a wait has ended, more workers are active, until one of them looks for its next task and goes
//!   into reserve or ends.
//! - At least one worker stays active. If a wait would block the last active worker and no further thread can be started, the wait fails
//!   with `WouldDeadlock`. There are at most `n_threads` + [`MAX_SPARE_WORKERS`] threads.
//! - No other lock is taken while the pool's lock is held. The only function that the pool calls while it holds its lock starts a thread.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError};

use super::error::catch;
use super::executor::{Executor, Task};
use super::{Error, ErrorKind, Result, waits};
use crate::sync::{Condvar, JoinHandle, MAX_PAUSES, Mutex, MutexGuard, pause, spawn_joinable};
use crate::tensor::process::ProcessToken;

/// Maximum number of urgent tasks that run in a row while non-urgent tasks wait.
const MAX_URGENT_IN_A_ROW: usize = 16;

/// Maximum number of additional workers that replace blocked workers.
pub const MAX_SPARE_WORKERS: usize = 256;

/// A thread pool. Urgent tasks run first, and groups of tasks are interleaved ([`Task::group`]).
///
/// If a worker blocks in a wait of the runtime, or in [`blocking`](super::executor::blocking), another worker runs the tasks of the pool
/// meanwhile. At most [`MAX_SPARE_WORKERS`] workers are added in this way.
pub struct Pool {
    workers: Arc<Workers>,
    /// The process that started the workers. A process that was forked from it has no workers.
    process: ProcessToken,
}

/// The state that the workers of a pool share.
pub(crate) struct Workers {
    name: String,
    /// The number of workers that are meant to be active. More workers are active for a short time when workers return from a wait.
    n_threads: usize,
    has_groups: bool,
    state: Mutex<State>,
    /// Notifies active workers that a task is queued.
    has_task: Condvar,
    /// Notifies workers in reserve that one of them must become active.
    has_place: Condvar,
}

#[derive(Default)]
struct State {
    urgent: Level,
    others: Level,
    n_urgent_in_a_row: usize,
    /// Number of workers that run tasks or wait for a task. Blocked workers and workers in reserve are not counted.
    n_active: usize,
    n_reserve: usize,
    /// Number of workers in reserve that were notified to become active, but have not woken up yet. They count in `n_reserve` and
    /// `n_active`.
    n_called: usize,
    n_started: usize,
    /// The threads of all workers that have not ended, each with the number of its worker.
    threads: Vec<(usize, JoinHandle<()>)>,
    is_closed: bool,
}

/// The waiting tasks of one of the two levels: urgent tasks or other tasks.
#[derive(Default)]
struct Level {
    /// The groups that have waiting tasks. The next task is taken from the first group, which then moves to the end.
    groups: VecDeque<Group>,
    /// Empty lists of tasks, kept for new groups to avoid allocations.
    lists: Vec<VecDeque<Arc<dyn Task>>>,
}

struct Group {
    id: u64,
    tasks: VecDeque<Arc<dyn Task>>,
}

impl Level {
    fn push(&mut self, id: u64, task: Arc<dyn Task>) {
        match self.groups.iter_mut().find(|group| group.id == id) {
            Some(group) => group.tasks.push_back(task),
            None => {
                let mut tasks = self.lists.pop().unwrap_or_default();
                tasks.push_back(task);
                self.groups.push_back(Group { id, tasks });
            }
        }
    }

    fn pop(&mut self) -> Option<Arc<dyn Task>> {
        let mut group = self.groups.pop_front()?;
        let task = group.tasks.pop_front();
        match group.tasks.is_empty() {
            true => self.lists.push(group.tasks),
            false => self.groups.push_back(group),
        }
        task
    }

    fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

impl State {
    fn has_task(&self) -> bool {
        !self.urgent.is_empty() || !self.others.is_empty()
    }

    fn next_task(&mut self) -> Option<Arc<dyn Task>> {
        let may_be_urgent = self.n_urgent_in_a_row < MAX_URGENT_IN_A_ROW || self.others.is_empty();
        if may_be_urgent && let Some(task) = self.urgent.pop() {
            self.n_urgent_in_a_row += 1;
            return Some(task);
        }
        self.n_urgent_in_a_row = 0;
        self.others.pop()
    }
}

impl Pool {
    /// Starts `n_threads` workers.
    ///
    /// # Errors
    /// Returns `Device` if the system cannot start a thread.
    pub fn new(name: &str, n_threads: usize) -> Result<Self> {
        Self::start(name, n_threads, true)
    }

    /// Same as [`Pool::new`], but tasks of all groups start in the order in which they were queued. Urgent tasks still run before other
    /// tasks.
    ///
    /// # Errors
    /// Returns the errors of [`Pool::new`].
    pub fn in_order(name: &str, n_threads: usize) -> Result<Self> {
        Self::start(name, n_threads, false)
    }

    /// Returns the number of tasks that run concurrently.
    pub fn n_threads(&self) -> usize {
        self.workers.n_threads
    }

    fn start(name: &str, n_threads: usize, has_groups: bool) -> Result<Self> {
        let n_threads = n_threads.max(1);
        let workers = Arc::new(Workers {
            name: name.to_owned(),
            n_threads,
            has_groups,
            state: Mutex::default(),
            has_task: Condvar::new(),
            has_place: Condvar::new(),
        });
        // If one worker cannot be started, dropping the pool ends the workers that were started before.
        let pool = Self { workers, process: ProcessToken::current() };
        let mut state = pool.workers.lock();
        for _ in 0..n_threads {
            pool.workers.start_worker(&mut state)?;
        }
        drop(state);
        Ok(pool)
    }
}

impl Executor for Pool {
    fn execute(&self, task: Arc<dyn Task>) {
        let (is_urgent, group) = (task.is_urgent(), if self.workers.has_groups { task.group() } else { 0 });
        let mut state = self.workers.lock();
        let level = if is_urgent { &mut state.urgent } else { &mut state.others };
        level.push(group, task);
        drop(state);
        self.workers.has_task.notify_one();
    }

    fn n_threads(&self) -> usize {
        self.workers.n_threads
    }
}

impl Workers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a worker and counts it as active.
    fn start_worker(self: &Arc<Self>, state: &mut State) -> Result<()> {
        let (workers, worker_idx) = (self.clone(), state.n_started);
        let thread = spawn_joinable(&format!("{}-{worker_idx}", self.name), move || workers.work(worker_idx)).map_err(|error| {
            Error::with_source(ErrorKind::Device, format!("cannot start worker {worker_idx} of `{}`", self.name), error)
        })?;
        state.threads.push((worker_idx, thread));
        state.n_started += 1;
        state.n_active += 1;
        Ok(())
    }

    /// Runs tasks until the worker must end.
    fn work(self: &Arc<Self>, worker_idx: usize) {
        waits::enter_worker(self.clone(), worker_idx);
        let process = ProcessToken::current();
        while let Some(task) = self.next_task(worker_idx) {
            run(task);
            // A callback has forked the process. The child has only this thread, so it ends with this thread.
            if !process.is_current() {
                return;
            }
        }
    }

    /// Blocks until there is a task for this worker. Returns `None` if the worker must end: the pool was dropped and no task is left, or
    /// enough workers are already in reserve.
    fn next_task(&self, worker_idx: usize) -> Option<Arc<dyn Task>> {
        let mut state = self.lock();
        let mut n_pauses = 0;
        loop {
            if state.n_active > self.n_threads {
                state.n_active -= 1;
                if state.has_task() {
                    // This worker leaves without a task, but may have consumed the notification of that task. So notify another active
                    // worker.
                    self.has_task.notify_one();
                }
                if state.n_reserve == self.n_threads || state.is_closed {
                    return self.end(state, worker_idx);
                }
                state.n_reserve += 1;
                while state.n_called == 0 && !state.is_closed {
                    state = self.has_place.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                state.n_reserve -= 1;
                if state.n_called == 0 {
                    return self.end(state, worker_idx);
                }
                state.n_called -= 1;
            }
            if let Some(task) = state.next_task() {
                return Some(task);
            }
            if state.is_closed {
                state.n_active -= 1;
                return self.end(state, worker_idx);
            }
            if n_pauses < MAX_PAUSES {
                // The next task is often queued within microseconds if tasks are short. If this worker slept, the thread that queues the
                // task would have to wake it, which takes longer than a short task.
                drop(state);
                pause(n_pauses);
                n_pauses += 1;
                state = self.lock();
            } else {
                state = self.has_task.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Removes the worker, which is about to end, from the list of threads. Returns `None`, the value that ends the worker's loop. The
    /// worker must no longer be counted as active.
    fn end<T>(&self, mut state: MutexGuard<'_, State>, worker_idx: usize) -> Option<T> {
        state.threads.retain(|(known_idx, _)| *known_idx != worker_idx);
        None
    }

    /// Must be called when the current worker is about to block. Another worker then replaces it.
    ///
    /// # Errors
    /// Returns `WouldDeadlock` if no active worker would be left.
    pub(crate) fn begin_wait(self: &Arc<Self>) -> Result<()> {
        let mut state = self.lock();
        state.n_active -= 1;
        if state.n_active >= self.n_threads {
            return Ok(());
        }
        if state.n_reserve > state.n_called {
            state.n_called += 1;
            state.n_active += 1;
            drop(state);
            self.has_place.notify_one();
            return Ok(());
        }
        let started = match state.threads.len() < self.n_threads + MAX_SPARE_WORKERS {
            true => self.start_worker(&mut state),
            false => {
                Err(Error::new(ErrorKind::WouldDeadlock, format!("all {} workers of `{}` are blocked", state.threads.len(), self.name)))
            }
        };
        match started {
            Err(error) if state.n_active == 0 => {
                state.n_active += 1;
                let message = format!(
                    "the wait would block the last worker of `{}`: {error}; wait for fewer requests inside callbacks and steps",
                    self.name
                );
                Err(Error::new(ErrorKind::WouldDeadlock, message))
            }
            // If no thread could be started, the workers that are still active run the tasks.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Must be called when the wait of the current worker has ended.
    pub(crate) fn end_wait(&self) {
        self.lock().n_active += 1;
    }
}

/// Runs a task. If the task panics, logs the panic, so that the worker continues.
fn run(task: Arc<dyn Task>) {
    let _survived = catch(format_args!("the log"), || {
        if let Err(error) = catch(format_args!("a task"), || task.run()) {
            tracing::error!("{error}");
        }
    });
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({}, {} threads)", self.workers.name, self.workers.n_threads)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // This process was forked, so it has no workers. A worker of the parent process may have held the lock during the fork. The
            // lock is then never released here, so do not take it.
            return;
        }
        self.workers.lock().is_closed = true;
        self.workers.has_task.notify_all();
        self.workers.has_place.notify_all();
        // A task on one of the workers may drop the last handle of the pool. Then this code runs on that worker, which must not join its
        // own thread.
        let own_idx = waits::worker_idx(&self.workers);
        loop {
            let threads = std::mem::take(&mut self.workers.lock().threads);
            if threads.is_empty() {
                break;
            }
            // While these threads end, a task of a worker may block, and `begin_wait` then starts another worker. So look for further
            // threads afterwards.
            for (worker_idx, thread) in threads {
                if own_idx != Some(worker_idx) {
                    let _ended = thread.join();
                }
            }
        }
    }
}
