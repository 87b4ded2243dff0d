//! Schedules the jobs of all stages of a model on a bounded set of requests.
//!
//! An idle request takes the next jobs. The callback of a request delivers the results and starts the next jobs on the same request. No
//! thread has to wait for the end of a run.
//!
//! A [`Queue`] owns the requests of one compiled model. Each stage of the model is a [`Client`] with its own jobs and counters. Removing a
//! client discards its waiting jobs and waits for its running jobs. Other clients are not affected.
//!
//! # Order of jobs
//!
//! Jobs are ordered by time. [`Scheduling::Throughput`] uses the arrival at the stage, [`Scheduling::Latency`] the arrival of the frame at
//! the element. Both arrival times come from the same clock, so clients with different scheduling can share a queue. The queue does not
//! bound the number of jobs, because the in-flight queues of the callers bound it. A job that is discarded reports an error.
//!
//! # Batches
//!
//! A call, which is one run of a request, takes the first waiting job and the jobs directly after it, up to [`BatchLimits::max_items`].
//! Without [`BatchLimits::timeout`], all jobs of a batch belong to one frame. With a timeout, the jobs can belong to any frames and
//! streams. The call then starts when the batch is full, or when its oldest job has waited for the timeout. The thread [`Queue::watch`]
//! checks both conditions.
//!
//! A batch item that cannot be preprocessed or decoded fails alone. If a whole batch fails, its items run again one by one. So one stream
//! cannot break the results of another stream.
//!
//! # Copies of the model
//!
//! If each request has a separate copy of the model, only the first copy exists at the start. When a call ends while jobs wait, a separate
//! thread compiles the remaining copies; see [`Copies`]. Further copies are compiled when other processes use the cores; see [`Spares`].
//! Each of them has a thread of its own, and its request rests while it is not needed.
//!
//! # Locks
//!
//! Lock order: `Queue::state`, then a `Batch`. No lock is held while results are delivered, a request is started, or a batch item is
//! preprocessed or decoded. If one of these operations panics, only the job that it handles gets an error.

use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::ClockId;

use super::batch::{Batch, BatchInput, BatchItem, DecodeMemory, decode_batch};
use super::client::{Client, Scheduling, StepStats, stopped};
use super::copies::{CompileAnother, Copies};
use super::job::Job;
use super::model_inputs::ModelInputs;
use super::spares::Spares;
use super::throttle::Throttle;
use crate::runtime::executor::Pool;
use crate::runtime::{CompiledModel, Error, ErrorKind, InferRequest, Result};

/// Maximum time to wait for the running jobs of a removed client, and for the runs of a closed queue.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Limits of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchLimits {
    /// Maximum batch size.
    pub(super) max_items: usize,
    /// Maximum time that a job waits for jobs of other frames to fill the batch. `None`: a batch contains only jobs of one frame, and
    /// starts without waiting.
    pub(super) timeout: Option<Duration>,
}

/// The requests of one model, and the waiting jobs.
pub(super) struct Queue {
    pub(super) batch_limits: BatchLimits,
    pub(super) device: String,
    /// Number of requests.
    pub(super) n_requests: usize,
    n_cores: usize,
    /// Whether runs of this model have priority over runs of other models.
    urgent: bool,
    compile_another: Option<CompileAnother>,
    state: Mutex<State>,
    throttles: bool,
    throttle: Mutex<Throttle>,
    spares: Mutex<Spares>,
    /// Whether a frame had to wait for its admission since the last decision about spare requests.
    has_waiting_frames: AtomicBool,
    /// Number of spare requests that should be used. Changed only while `state` is locked.
    n_spares: AtomicUsize,
    /// Condition variable that is notified when all running jobs of a client are complete.
    ended: Condvar,
    /// Wakes up the watcher thread.
    watched: Condvar,
    /// Whether the removal of a client has timed out, because a run hangs.
    hangs: AtomicBool,
    /// Whether a run of any client has succeeded.
    pub(super) has_run: AtomicBool,
}

struct State {
    /// The requests with their callbacks. The list is empty after the queue was closed.
    workers: Vec<Arc<Worker>>,
    /// Number of workers that are added later, each with its own copy of the model.
    n_workers_to_add: usize,
    /// Indexes of the spare requests.
    spares: Vec<usize>,
    /// Indexes of the spare requests that rest: they are neither idle nor busy.
    resting: Vec<usize>,
    maker: Option<JoinHandle<()>>,
    /// Compiles the copy of a spare request.
    spare_maker: Option<JoinHandle<()>>,
    /// Whether a spare request is being made.
    is_making_spare: bool,
    /// Whether no further spare request is made, because one could not be made.
    cannot_make_spares: bool,
    pending: VecDeque<BatchItem>,
    idle: Vec<usize>,
    n_groups: u64,
    /// Time at which the watcher wakes up. `None` while the watcher is not waiting, or waits without a timeout.
    wakes_at: Option<Instant>,
    watcher: Option<JoinHandle<()>>,
    closed: bool,
}

pub(super) struct Worker {
    request: InferRequest,
    batch: Arc<Mutex<Batch>>,
}

thread_local! {
    /// Whether this thread is delivering a result. A thread that delivers a result must not wait for the end of all deliveries, because it
    /// would wait for itself.
    static IS_DELIVERING: Cell<bool> = const { Cell::new(false) };
}

impl Queue {
    /// Creates the requests of a model. If `urgent` is true, the runs have priority over runs of other models. If `throttles` is true, the
    /// number of in-flight frames is reduced while requests wait for CPU threads.
    pub(super) fn new(copies: Copies, limits: BatchLimits, urgent: bool, throttles: bool) -> Result<Arc<Self>> {
        let Copies { first, n_requests, compile_another } = copies;
        let n_at_first = if compile_another.is_some() { 1 } else { n_requests };
        let state = State {
            workers: Vec::with_capacity(n_requests),
            n_workers_to_add: n_requests - n_at_first,
            spares: Vec::new(),
            resting: Vec::new(),
            maker: None,
            spare_maker: None,
            is_making_spare: false,
            cannot_make_spares: false,
            pending: VecDeque::new(),
            idle: Vec::with_capacity(n_requests),
            n_groups: 0,
            wakes_at: None,
            watcher: None,
            closed: false,
        };
        let queue = Arc::new(Self {
            batch_limits: limits,
            device: first.device().to_owned(),
            n_requests,
            n_cores: std::thread::available_parallelism().map_or(1, NonZero::get),
            urgent,
            compile_another,
            state: Mutex::new(state),
            throttles,
            throttle: Mutex::default(),
            spares: Mutex::default(),
            has_waiting_frames: AtomicBool::new(false),
            n_spares: AtomicUsize::new(0),
            ended: Condvar::new(),
            watched: Condvar::new(),
            hangs: AtomicBool::new(false),
            has_run: AtomicBool::new(false),
        });
        for _ in 0..n_at_first {
            queue.add_worker(&first)?;
        }
        // Reverse the list of idle requests: `pop` takes the last request of the list, but request 0 must be used first.
        queue.state.lock().unwrap().idle.reverse();
        if limits.max_items > 1 && limits.timeout.is_some_and(|timeout| !timeout.is_zero()) {
            let watching = queue.clone();
            let watcher = std::thread::Builder::new().name("roiflow-batches".to_owned()).spawn(move || watching.watch());
            let watcher = watcher.map_err(|error| Error::with_source(ErrorKind::Device, "starting the batching thread failed", error))?;
            queue.state.lock().unwrap().watcher = Some(watcher);
        }
        Ok(queue)
    }

    /// Creates a request of `model`, adds it to the idle requests, and returns its index.
    fn add_worker(self: &Arc<Self>, model: &CompiledModel) -> Result<usize> {
        let request = model.create_infer_request()?;
        request.set_urgent(self.urgent);
        let batch = Arc::new(Mutex::new(Batch::new(self.batch_limits.max_items)));
        let inputs = ModelInputs::of(model.inputs()).unwrap_or_default();
        request.set_input(inputs.image, BatchInput::new(batch.clone(), Arc::downgrade(self)))?;
        for (input_idx, values) in inputs.number_values(model.inputs())? {
            request.set_input_tensor(input_idx, &values)?;
        }
        let (of_step, mut memory) = (batch.clone(), DecodeMemory::default());
        request.append_step("decode", move |context| decode_batch(&of_step, context, &mut memory))?;
        let worker = Arc::new(Worker { request, batch });
        let mut state = self.state.lock().unwrap();
        let worker_idx = state.workers.len();
        let (weak_queue, weak_worker) = (Arc::downgrade(self), Arc::downgrade(&worker));
        worker.request.set_callback(move |_request, result| {
            if let (Some(queue), Some(worker)) = (weak_queue.upgrade(), weak_worker.upgrade()) {
                queue.finish(worker_idx, &worker, result);
            }
        })?;
        if !state.closed {
            state.workers.push(worker);
            state.idle.push(worker_idx);
        }
        Ok(worker_idx)
    }

    /// Schedules the jobs of one frame. Never blocks. If `alone` is true, each job runs in a separate call and does not wait for a batch to
    /// fill. Blocking callers set `alone`.
    pub(super) fn submit(&self, jobs: impl IntoIterator<Item = Job>, alone: bool) {
        let submitted = Instant::now();
        let mut state = self.state.lock().unwrap();
        state.n_groups += 1;
        let group = state.n_groups;
        let mut place = None;
        for job in jobs {
            let order = match job.runs.client.scheduling {
                Scheduling::Throughput => submitted,
                Scheduling::Latency => job.runs.guard.arrived(),
            };
            // Jobs of one frame stay together: each job follows directly after the previous job of the frame.
            let at = place.unwrap_or_else(|| state.pending.iter().rposition(|other| other.order <= order).map_or(0, |place| place + 1));
            state.pending.insert(at, BatchItem::new(job, group, order, submitted, alone));
            place = Some(at + 1);
        }
        drop(state);
        self.start_calls(None);
    }

    /// Returns by how many frames the in-flight queue is to shrink; see [`super::throttle`].
    pub(super) fn n_frames_to_remove(&self) -> usize {
        self.throttle.lock().unwrap().n_removed()
    }

    /// Removes a client. Discards its waiting jobs, cancels its running jobs that are not in a shared batch, and waits until all results
    /// are delivered.
    pub(super) fn remove_client(&self, client: &Arc<Client>) {
        let workers = {
            let state = self.state.lock().unwrap();
            client.is_removed.store(true, Ordering::Release);
            state.workers.clone()
        };
        self.discard_jobs(|job| job.is_of(client));
        for worker in &workers {
            // While the batch is locked, this request cannot start another run, so only the current run is canceled.
            let batch = worker.batch.lock().unwrap();
            if !batch.items.is_empty() && batch.items.iter().all(|item| item.job.is_of(client)) {
                worker.request.cancel();
            }
        }
        drop(workers);
        if IS_DELIVERING.get() {
            return;
        }
        let state = self.state.lock().unwrap();
        let runs = |_: &mut State| client.n_running.load(Ordering::Acquire) > 0;
        let (state, waited) = self.ended.wait_timeout_while(state, LEAVE_TIMEOUT, runs).unwrap();
        drop(state);
        if waited.timed_out() {
            self.hangs.store(true, Ordering::Release);
            tracing::warn!(
                "removing a stage timed out: an engine or a result closure did not return within {LEAVE_TIMEOUT:?}, and runs continue"
            );
        }
    }

    /// If jobs wait, starts a thread that compiles the remaining copies of the model and adds a worker for each copy.
    fn add_workers(self: &Arc<Self>) {
        let mut state = self.state.lock().unwrap();
        if state.n_workers_to_add == 0 || state.pending.is_empty() || state.closed {
            return;
        }
        let n_workers_to_add = std::mem::take(&mut state.n_workers_to_add);
        let queue = self.clone();
        let maker = std::thread::Builder::new().name("roiflow-copies".to_owned()).spawn(move || {
            for n_added in 0..n_workers_to_add {
                if queue.state.lock().unwrap().closed {
                    return;
                }
                let Some(compile_another) = &queue.compile_another else { return };
                if let Err(error) = compile_another(None).and_then(|model| queue.add_worker(&model)) {
                    tracing::warn!(
                        "compiling {} of {} copies of the model on {} failed: {error}",
                        n_workers_to_add - n_added,
                        n_workers_to_add + 1,
                        queue.device
                    );
                    return;
                }
                queue.start_calls(None);
            }
        });
        match maker {
            Ok(maker) => state.maker = Some(maker),
            Err(error) => tracing::warn!("starting the thread that compiles copies of the model failed: {error}"),
        }
    }

    /// Returns the number of requests that are used in addition to [`Queue::n_requests`].
    pub(super) fn n_spare_requests(&self) -> usize {
        self.n_spares.load(Ordering::Acquire)
    }

    /// Notes that a frame has to wait for its admission, because the requests are too slow.
    pub(super) fn note_waiting_frame(&self) {
        self.has_waiting_frames.store(true, Ordering::Relaxed);
    }

    /// Sets the number of spare requests that are used. Requests that are missing are made on a separate thread, which compiles a copy of the
    /// model.
    fn use_spares(self: &Arc<Self>, n_spares: usize) {
        let mut state = self.state.lock().unwrap();
        self.n_spares.store(n_spares, Ordering::Release);
        while !state.closed && state.n_used_spares() < n_spares {
            let Some(idx) = state.resting.pop() else { break };
            state.idle.push(idx);
        }
        if !state.is_making_spare && state.lacks_spares_for(n_spares) {
            self.make_spares(&mut state);
        }
        drop(state);
        self.start_calls(None);
    }

    /// Starts a thread that makes the missing spare requests.
    fn make_spares(self: &Arc<Self>, state: &mut State) {
        let queue = self.clone();
        let make = move || {
            let Some(compile_another) = &queue.compile_another else { return };
            loop {
                let compiled = Pool::new("roiflow-spare", 1).and_then(|pool| compile_another(Some(Arc::new(pool))));
                let made = compiled.and_then(|model| queue.add_worker(&model));
                let mut state = queue.state.lock().unwrap();
                match made {
                    Ok(idx) => state.spares.push(idx),
                    Err(error) => {
                        state.cannot_make_spares = true;
                        tracing::warn!("compiling a spare copy of the model on {} failed: {error}", queue.device);
                    }
                }
                // More spare requests may be needed meanwhile.
                let is_missing = state.lacks_spares_for(queue.n_spares.load(Ordering::Acquire));
                state.is_making_spare = is_missing;
                drop(state);
                queue.start_calls(None);
                if !is_missing {
                    return;
                }
            }
        };
        match std::thread::Builder::new().name("roiflow-copies".to_owned()).spawn(make) {
            Ok(maker) => (state.spare_maker, state.is_making_spare) = (Some(maker), true),
            Err(error) => tracing::warn!("starting the thread that compiles a spare copy of the model failed: {error}"),
        }
    }

    /// Closes the queue and releases the requests. Called after the last client was removed. A run that does not end within the timeout
    /// keeps its engine resources until it ends.
    pub(super) fn close(&self) {
        let (workers, threads) = {
            let mut state = self.state.lock().unwrap();
            state.closed = true;
            state.idle.clear();
            (std::mem::take(&mut state.workers), [state.watcher.take(), state.maker.take(), state.spare_maker.take()])
        };
        self.watched.notify_all();
        // If this thread is delivering a result, do not join: this thread may be the watcher or the compiling thread, and a thread cannot
        // wait for itself. The requests are released even without the join.
        for thread in threads.into_iter().flatten().filter(|_| !IS_DELIVERING.get()) {
            let _ended = thread.join();
        }
        let timeout = if self.hangs.load(Ordering::Acquire) { Duration::ZERO } else { LEAVE_TIMEOUT };
        for worker in &workers {
            // Wait until the callback of the request has returned. If this thread is inside that callback, the wait fails
            // immediately.
            let _over = worker.request.wait_for(timeout);
        }
    }

    /// Returns the number of cores that a run may use: all cores divided by the number of busy requests.
    pub(super) fn n_cores_of_a_run(&self) -> usize {
        let state = self.state.lock().unwrap();
        let n_busy = state.workers.len().saturating_sub(state.idle.len() + state.resting.len());
        self.n_cores / n_busy.max(1)
    }

    /// Discards the waiting jobs for which `is_one` returns true. Discarded jobs report an error.
    pub(super) fn discard_jobs(&self, is_one: impl Fn(&Job) -> bool) {
        let mut dropped = Vec::new();
        let mut state = self.state.lock().unwrap();
        // Visit the jobs in reverse order, because a removal changes the indexes of all jobs behind the removed job.
        for place in (0..state.pending.len()).rev() {
            if is_one(&state.pending[place].job) {
                dropped.extend(state.pending.remove(place));
            }
        }
        drop(state);
        dropped.into_iter().rev().for_each(|item| deliver(item.job, Err(stopped())));
    }

    /// Starts calls until no job is due or no request is idle. Uses the request with the index `own` first: the caller has just completed a
    /// call on this request.
    fn start_calls(&self, mut own: Option<usize>) {
        loop {
            let mut canceled = Vec::new();
            let mut state = self.state.lock().unwrap();
            if state.closed {
                return;
            }
            let first = own.take().filter(|idx| !state.rests(*idx, self.n_spares.load(Ordering::Acquire)));
            let Some(worker_idx) = first.or_else(|| state.idle.pop()) else { return };
            let worker = state.workers[worker_idx].clone();
            let has_call = state.take_call(self.batch_limits, &mut worker.batch.lock().unwrap(), &mut canceled);
            if !has_call {
                state.idle.push(worker_idx);
                self.wake_watcher(state);
            } else {
                drop(state);
            }
            canceled.into_iter().for_each(|item| deliver(item.job, Err(stopped())));
            if !has_call {
                return;
            }
            if let Err(error) = worker.start() {
                self.complete_call(&worker, Err(error));
                own = Some(worker_idx);
            }
        }
    }

    fn finish(self: &Arc<Self>, worker_idx: usize, worker: &Worker, result: Result<()>) {
        worker.count(result.is_err());
        self.update_limits(worker);
        self.complete_call(worker, result);
        self.add_workers();
        self.start_calls(Some(worker_idx));
    }

    /// Records the waiting time and duration of a run for the throttle and the spare requests. Records nothing if batches gather several
    /// frames, because full batches need many frames in flight.
    fn update_limits(self: &Arc<Self>, worker: &Worker) {
        let (assigned, began) = {
            let mut batch = worker.batch.lock().unwrap();
            (batch.assigned.take(), batch.began.take())
        };
        if let (true, None, Some((assigned, began))) = (self.throttles, self.batch_limits.timeout, assigned.zip(began)) {
            self.throttle.lock().unwrap().add(began - assigned, began.elapsed(), self.n_requests - 1);
            if self.compile_another.is_some() {
                let measure = || (clock(ClockId::ProcessCPUTime), self.has_waiting_frames.swap(false, Ordering::Relaxed));
                let (now, numbers) = (clock(ClockId::Monotonic), (self.n_requests, self.n_cores));
                let changed = self.spares.lock().unwrap().add(assigned.elapsed(), now, measure, numbers);
                changed.into_iter().for_each(|n_spares| self.use_spares(n_spares));
            }
        }
    }

    /// Delivers the results of a call. If a batch failed as a whole, schedules its jobs again one by one.
    fn complete_call(&self, worker: &Worker, result: Result<()>) {
        let mut items = std::mem::take(&mut worker.batch.lock().unwrap().items);
        let again = match &result {
            Err(error) if items.len() > 1 && !matches!(error.kind(), ErrorKind::Canceled | ErrorKind::Stopped) => {
                tracing::debug!("a batch of {} items failed and runs again item by item: {error}", items.len());
                true
            }
            _ => false,
        };
        if again {
            let mut state = self.state.lock().unwrap();
            for place in (0..items.len()).rev() {
                let item = &items[place];
                let client = &item.job.runs.client;
                if item.failed.is_some() || client.is_removed.load(Ordering::Acquire) || state.closed {
                    continue;
                }
                client.n_running.fetch_sub(1, Ordering::AcqRel);
                let mut item = items.remove(place);
                item.alone = true;
                state.pending.push_front(item);
            }
            drop(state);
        }
        let mut clients: Vec<Arc<Client>> = Vec::new();
        // In most calls, all jobs have the same client. Count the jobs of the first client separately: the list of clients then stays empty
        // and allocates nothing.
        let mut first: Option<(Arc<Client>, usize)> = None;
        for BatchItem { job, failed, .. } in items.drain(..) {
            let client = job.runs.client.clone();
            let ended = match (failed, &result) {
                (Some(error), _) => Err(error),
                (None, result) => result.clone(),
            };
            match &ended {
                Ok(_) => {
                    job.runs.guard.succeed();
                    self.has_run.store(true, Ordering::Release);
                }
                Err(error) if error.kind().is_outage() => job.runs.guard.meet_outage(),
                Err(_) => {}
            }
            deliver(job, ended);
            match &mut first {
                None => first = Some((client, 1)),
                Some((first, n)) if Arc::ptr_eq(first, &client) => *n += 1,
                Some(_) => clients.push(client),
            }
        }
        worker.batch.lock().unwrap().items = items;
        let state = self.state.lock().unwrap();
        if let Some((client, n)) = first {
            client.n_running.fetch_sub(n, Ordering::AcqRel);
        }
        for client in clients {
            client.n_running.fetch_sub(1, Ordering::AcqRel);
        }
        drop(state);
        self.ended.notify_all();
    }

    /// Wakes up the watcher if the next call must start earlier than the watcher would wake up.
    fn wake_watcher(&self, state: MutexGuard<'_, State>) {
        let Some(due) = state.due_at(self.batch_limits) else { return };
        let is_late = state.watcher.is_some() && state.wakes_at.is_none_or(|wakes_at| due < wakes_at);
        drop(state);
        if is_late {
            self.watched.notify_all();
        }
    }

    /// Function of the watcher thread: starts incomplete batches when their timeout expires.
    fn watch(&self) {
        let mut state = self.state.lock().unwrap();
        while !state.closed {
            state.wakes_at = if state.idle.is_empty() { None } else { state.due_at(self.batch_limits) };
            let now = Instant::now();
            match state.wakes_at {
                None => state = self.watched.wait(state).unwrap(),
                Some(due) if due <= now => {
                    drop(state);
                    self.start_calls(None);
                    state = self.state.lock().unwrap();
                }
                Some(due) => state = self.watched.wait_timeout(state, due - now).unwrap().0,
            }
        }
    }
}

impl State {
    /// Whether a spare request must be made, so that this number of them can be used.
    fn lacks_spares_for(&self, n_spares: usize) -> bool {
        self.spares.len() < n_spares && !(self.closed || self.cannot_make_spares)
    }

    fn n_used_spares(&self) -> usize {
        self.spares.len() - self.resting.len()
    }

    /// Whether a request that has completed a call rests now, because it is a spare request and more of them are used than `n_spares`.
    fn rests(&mut self, worker_idx: usize, n_spares: usize) -> bool {
        let rests = self.n_used_spares() > n_spares && self.spares.contains(&worker_idx);
        if rests {
            self.resting.push(worker_idx);
        }
        rests
    }

    /// Returns the latest time at which the next call must start; `None` if no job waits.
    fn due_at(&self, limits: BatchLimits) -> Option<Instant> {
        let first = self.pending.front()?;
        match limits.timeout {
            Some(timeout) if self.pending.len() < limits.max_items && !self.pending.iter().any(|pending| pending.alone) => {
                // The queue can be ordered by the age of frames, so the job at the front is not always the job that was submitted first.
                self.pending.iter().map(|pending| pending.submitted).min().and_then(|oldest| oldest.checked_add(timeout))
            }
            _ => Some(first.submitted),
        }
    }

    /// Moves the jobs of the next call into the batch. Returns false if no call is due. Canceled jobs are moved to `canceled`.
    fn take_call(&mut self, limits: BatchLimits, batch: &mut Batch, canceled: &mut Vec<BatchItem>) -> bool {
        debug_assert!(batch.items.is_empty(), "the request is idle");
        let now = Instant::now();
        (batch.input_shape, batch.assigned, batch.began) = (None, Some(now), None);
        if self.due_at(limits).is_none_or(|due| due > now) {
            return false;
        }
        while let Some(next) = self.pending.front() {
            let fits = match batch.items.first() {
                None => true,
                Some(first) => {
                    batch.items.len() < limits.max_items
                        && !(first.alone || next.alone)
                        && (limits.timeout.is_some() || first.group == next.group)
                        && batch.input_shape == Some(next.job.runs.client.spec.input_shape)
                }
            };
            if !fits {
                break;
            }
            let Some(next) = self.pending.pop_front() else { break };
            if !next.job.runs.guard.begin() {
                canceled.push(next);
                continue;
            }
            let client = &next.job.runs.client;
            client.n_running.fetch_add(1, Ordering::AcqRel);
            batch.input_shape = Some(client.spec.input_shape);
            batch.items.push(next);
        }
        !batch.items.is_empty()
    }
}

impl Worker {
    fn start(&self) -> Result<()> {
        let span = self.batch.lock().unwrap().items.first().map(|item| item.job.runs.span.clone());
        let _entered = span.map(tracing::Span::entered);
        match self.request.start_async(()) {
            Err(error) if error.kind() == ErrorKind::Busy => {
                // The callback that made the request idle has delivered its result, but has not returned yet. Wait until the callback
                // returns.
                let _ended = self.request.wait();
                self.request.start_async(())
            }
            started => started,
        }
    }

    /// Counts a completed run in the statistics of each client that had jobs in it.
    fn count(&self, failed: bool) {
        let batch = self.batch.lock().unwrap();
        let n_items = batch.items.len() as u32;
        for (place, item) in batch.items.iter().enumerate() {
            let client = &item.job.runs.client;
            let is_own = |item: &&BatchItem| item.job.is_of(client);
            if batch.items[..place].iter().any(|item| is_own(&item)) {
                continue;
            }
            let n_own = batch.items[place..].iter().filter(is_own).count() as u32;
            let mut stats = client.stats.lock().unwrap();
            stats.n_runs += 1;
            stats.n_failed += u64::from(failed);
            stats.n_items += u64::from(n_own);
            let mut step_idx = 0;
            let counted = self.request.visit_step_times(|name, duration| {
                let own = if n_own == n_items { duration } else { duration * n_own / n_items };
                match stats.steps.get_mut(step_idx) {
                    Some(step) => step.total += own,
                    None => stats.steps.push(StepStats { name: name.clone(), total: own }),
                }
                step_idx += 1;
            });
            debug_assert!(counted.is_ok(), "the request is idle in its own callback");
        }
    }
}

fn clock(id: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(id);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Delivers the result of a job to the closure of its frame. Catches a panic of that closure, because it must not affect the
/// request or the results of other jobs.
fn deliver(mut job: Job, ended: Result<()>) {
    let was_delivering = IS_DELIVERING.replace(true);
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || job.finish(ended))).is_err() {
        tracing::error!("the closure that receives the result of a job panicked");
    }
    IS_DELIVERING.set(was_delivering);
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;

    use super::*;
    use crate::frame::{Frame, PixelFormat, Size};
    use crate::job::{FrameRuns, JobImage, JobInput};
    use crate::spec::load_model;
    use crate::vision::decode::Results;
    use crate::vision::decode::{Decoder, Output};
    use crate::{ModelSpec, RunGuard, StageOptions, StageResults};

    /// A decoder that panics unless it gets exactly one batch item. If `panics` is true, it always panics.
    #[derive(Debug)]
    struct OneRow {
        panics: bool,
    }

    impl Decoder for OneRow {
        fn check(&self, _outputs: &[(&str, &[usize])], _input: Size) -> roiflow_tensor::Result<u32> {
            Ok(0)
        }

        fn decode(&self, outputs: &[Output<'_>], _input: Size, _results: &mut Results) -> roiflow_tensor::Result<()> {
            assert!(!self.panics, "in the decoder");
            assert_eq!((outputs.len(), outputs[0].shape, outputs[0].data.len()), (1, &[1, 4][..], 4), "one batch item");
            Ok(())
        }
    }

    fn color() -> (CompiledModel, ModelSpec) {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/color.onnx");
        load_model(&StageOptions { model, device: Some("CPU".to_owned()), ..StageOptions::default() }).unwrap()
    }

    /// Returns a client whose decoder checks its outputs, or panics.
    fn client(queue: &Queue, spec: &ModelSpec, panics: bool) -> Arc<Client> {
        let mut spec = spec.clone();
        spec.heads[0].decoder = Arc::new(OneRow { panics });
        Client::new(spec, Scheduling::Throughput, queue.device.clone())
    }

    /// Returns a job that sends its result to `sender`.
    fn job(client: &Arc<Client>, sender: &mpsc::Sender<Result<()>>) -> Job {
        let frame = Frame::from_packed(PixelFormat::Gray8, Size::new(2, 2), &[0; 4]).unwrap();
        let (guard, sender) = (RunGuard::now(), sender.clone());
        let done = move |results: StageResults| sender.send(results.into_result().map(drop)).unwrap();
        Job::new(JobInput::whole(JobImage::Frame(frame)), FrameRuns::new(client.clone(), 0, guard, 1, StageResults::default(), done))
    }

    #[test]
    fn copies_are_compiled_when_jobs_wait_and_are_optional() {
        let (model, spec) = color();
        for fails in [false, true] {
            let (said, compiled) = mpsc::channel();
            let another = model.clone();
            let compile_another: CompileAnother = Box::new(move |_| {
                said.send(()).unwrap();
                if fails { Err(Error::new(ErrorKind::Device, "no memory")) } else { Ok(another.clone()) }
            });
            let copies = Copies { first: model.clone(), n_requests: 2, compile_another: Some(compile_another) };
            let queue = Queue::new(copies, BatchLimits { max_items: 1, timeout: None }, false, true).unwrap();
            let client = client(&queue, &spec, false);
            let (sender, receiver) = mpsc::channel();
            let run = |n_jobs: usize| {
                queue.submit((0..n_jobs).map(|_| job(&client, &sender)), false);
                (0..n_jobs).for_each(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap().unwrap());
            };
            run(1);
            assert!(compiled.try_recv().is_err(), "nothing waited");
            run(3);
            compiled.recv_timeout(Duration::from_secs(60)).unwrap();
            let maker = queue.state.lock().unwrap().maker.take();
            maker.unwrap().join().unwrap();
            assert_eq!(queue.state.lock().unwrap().workers.len(), if fails { 1 } else { 2 });
            run(3);
            assert!(compiled.try_recv().is_err(), "no further copies are compiled");
            queue.remove_client(&client);
            queue.close();
        }
    }

    #[test]
    fn spare_requests_take_calls_only_while_they_are_used() {
        let (model, spec) = color();
        let another = model.clone();
        let compile_another: CompileAnother = Box::new(move |executor| {
            assert!(executor.is_some_and(|executor| executor.n_threads() == 1), "it has a thread of its own");
            Ok(another.clone())
        });
        let copies = Copies { first: model.clone(), n_requests: 1, compile_another: Some(compile_another) };
        // The queue itself does not decide about the spare request.
        let queue = Queue::new(copies, BatchLimits { max_items: 1, timeout: None }, false, false).unwrap();
        let client = client(&queue, &spec, false);
        let (sender, receiver) = mpsc::channel();
        let run = || {
            queue.submit((0..20).map(|_| job(&client, &sender)), false);
            (0..20).for_each(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap().unwrap());
        };
        // Waits until this number of requests wait for calls, and this number rests. A request waits soon after its last result.
        let requests = |n_idle: usize, n_resting: usize| {
            let begin = Instant::now();
            loop {
                let state = queue.state.lock().unwrap();
                if (state.idle.len(), state.resting.len()) == (n_idle, n_resting) {
                    return;
                }
                assert!(begin.elapsed() < Duration::from_secs(60), "{:?} {:?}", state.idle, state.resting);
                drop(state);
                std::thread::yield_now();
            }
        };
        run();
        requests(1, 0);
        for n_spares in [1, 2] {
            queue.use_spares(n_spares);
            let maker = queue.state.lock().unwrap().spare_maker.take();
            maker.unwrap().join().unwrap();
            run();
            requests(1 + n_spares, 0);
            assert_eq!((queue.n_requests, queue.n_spare_requests()), (1, n_spares));
        }
        for n_spares in [1, 0] {
            queue.use_spares(n_spares);
            // A spare request may have to complete one more call.
            while queue.state.lock().unwrap().n_used_spares() > n_spares {
                run();
            }
            run();
            requests(1 + n_spares, 2 - n_spares);
        }
        queue.use_spares(2);
        requests(3, 0);
        run();
        queue.remove_client(&client);
        queue.close();
    }

    #[test]
    fn spare_requests_that_are_needed_while_one_is_made_are_made_too() {
        let (model, spec) = color();
        let (another, (go, may_go)) = (model.clone(), mpsc::channel());
        let may_go = Mutex::new(may_go);
        let compile_another: CompileAnother = Box::new(move |_| {
            may_go.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
            Ok(another.clone())
        });
        let copies = Copies { first: model, n_requests: 1, compile_another: Some(compile_another) };
        let queue = Queue::new(copies, BatchLimits { max_items: 1, timeout: None }, false, false).unwrap();
        let client = client(&queue, &spec, false);
        queue.use_spares(1);
        queue.use_spares(2);
        [(); 2].iter().for_each(|()| go.send(()).unwrap());
        let maker = queue.state.lock().unwrap().spare_maker.take();
        maker.unwrap().join().unwrap();
        assert_eq!(queue.state.lock().unwrap().spares.len(), 2);
        queue.remove_client(&client);
        queue.close();
    }

    #[test]
    fn spare_request_that_cannot_be_made_is_tried_once() {
        let (model, spec) = color();
        let (said, compiled) = mpsc::channel();
        let compile_another: CompileAnother = Box::new(move |_| {
            said.send(()).unwrap();
            Err(Error::new(ErrorKind::Device, "no memory"))
        });
        let copies = Copies { first: model, n_requests: 1, compile_another: Some(compile_another) };
        let queue = Queue::new(copies, BatchLimits { max_items: 1, timeout: None }, false, false).unwrap();
        let client = client(&queue, &spec, false);
        for _ in 0..2 {
            queue.use_spares(1);
            let maker = queue.state.lock().unwrap().spare_maker.take();
            maker.into_iter().for_each(|maker| maker.join().unwrap());
        }
        assert_eq!(compiled.try_iter().count(), 1);
        let (sender, receiver) = mpsc::channel();
        queue.submit([job(&client, &sender)], false);
        receiver.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
        queue.remove_client(&client);
        queue.close();
    }

    #[test]
    fn panic_in_a_decoder_fails_only_its_job() {
        let (model, spec) = color();
        for (max, timeout) in [(1, None), (3, None), (3, Some(Duration::from_secs(3600)))] {
            let queue =
                Queue::new(Copies { n_requests: 1, ..Copies::one(model.clone()) }, BatchLimits { max_items: max, timeout }, false, true)
                    .unwrap();
            let clients = [false, true, false].map(|panics| client(&queue, &spec, panics));
            let (sender, receiver) = mpsc::channel();
            queue.submit(clients.iter().map(|client| job(client, &sender)), false);
            let results: Vec<_> = (0..3).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
            assert_eq!(results[1].as_ref().unwrap_err().kind(), ErrorKind::Panic);
            assert!(matches!((&results[0], &results[2]), (Ok(()), Ok(()))), "{results:?}");
            clients.iter().for_each(|client| queue.remove_client(client));
            queue.close();
        }
    }
}
