//! Jobs of several streams on a bounded set of requests: whoever is idle takes the next jobs; a request's callback delivers the
//! results and starts the next jobs on the same request, so no thread ever waits for another.
//!
//! A [`Queue`] has the requests of one compiled model. Each stage that uses them is a [`Client`] of it, with jobs, statistics and an
//! end of its own: who leaves takes only its own jobs along, and waits only for those of them that run.
//!
//! # Which jobs are next
//!
//! Jobs stand in one queue in the order of a time that each brings: when it came to the stage ([`Scheduling::Throughput`]), or when
//! its frame came to the element ([`Scheduling::Latency`]). Both are times of one clock, so clients of either kind can stand in one
//! queue; nobody's job waits behind one that is younger than itself. The number of jobs is bounded by the callers (the windows of
//! frames in flight). A job that is dropped without having run tells its owner so: nobody waits for a result that does not come.
//!
//! # Calls of several rows
//!
//! A call takes the first job and, up to [`Rows::max`] of them, those right behind it: of the same frame only, or, where
//! [`Rows::timeout`] says how long a job may wait for company, of whatever frame and stream. In the latter case a call begins when
//! it is full, or when the job that has waited longest has waited so long; [`Queue::watch`] is the thread that sees to that. A row
//! whose picture can't be used, or whose outputs can't be read, fails alone. A call of several rows that fails as a whole is run
//! once more, row by row, so that one stream can't spoil another's results.
//!
//! # Copies of the model
//!
//! Where each request has a copy of the model to itself, there is one at the beginning. When a call ends and jobs still wait, a thread
//! compiles the others; [`Copies`] says why.
//!
//! # Locks
//!
//! Order: `Queue::state`, then a `Slot`'s. Neither is held while a job is delivered, a request is started, or a picture or an
//! output is worked on: whatever panics there is an error of that one job.

use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::copies::{CompileAnother, Copies};
use super::pace::Pace;
use super::rows::{JobRows, Row, Slot, decode_rows};
use super::{ModelSpec, Permit};
use crate::frame::{Frame, Similarity, Transform};
use crate::runtime::{CompiledModel, Error, ErrorKind, InferRequest, Result};
use crate::vision::decode::Output;

/// How long a client that leaves waits for its jobs that run, and an engine that is freed for its runs.
const PATIENCE: Duration = Duration::from_secs(5);

/// One frame or region for one row of a call.
pub(super) trait Job: Send + 'static {
    /// What a request keeps for decoding.
    type Scratch: Default + Send;

    /// The picture.
    fn frame(&self) -> &Frame;

    /// The way from the pixels of its input to those of the picture, where the picture is not simply fitted in.
    fn alignment(&self) -> Option<Similarity> {
        None
    }

    /// The number of the frame in its stream, for traces.
    fn frame_number(&self) -> u64;

    /// Whether it may begin.
    fn permit(&self) -> &Permit;

    /// The frame's span, in which its runs are started; for traces.
    fn span(&self) -> &tracing::Span;

    /// How the picture becomes an input, and the outputs a result.
    fn spec(&self) -> &Arc<ModelSpec>;

    /// Reads the outputs of its row, and keeps what it finds.
    fn decode(&mut self, outputs: &[Output<'_>], frame_from_input: &Transform, scratch: &mut Self::Scratch) -> Result<()>;

    /// Tells the owner what was kept, or the error. The job, and its share of the frame's memory, are gone before this returns.
    fn deliver(self, ended: Result<()>);
}

/// Which of the jobs that wait is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheduling {
    /// The one that came to the stage first.
    #[default]
    Throughput,
    /// The one whose frame is oldest.
    Latency,
}

/// How often a stage ran, and how long its steps took in all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StageStats {
    /// The device that runs the model; the one that was chosen, where a device chooses among others.
    pub device: String,
    /// Runs of the model in which frames of this stage took part.
    pub n_runs: u64,
    /// Those of them that failed.
    pub n_failed: u64,
    /// The pictures and regions of this stage in them.
    pub n_rows: u64,
    /// The steps of a run, in order.
    pub steps: Vec<StepStats>,
}

/// Time spent in one step, over all runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepStats {
    /// The step: `fill`, the device's own, `decode`.
    pub name: Arc<str>,
    /// The sum. Of a run that several stages shared, this stage's part by its rows.
    pub total: Duration,
}

/// How many jobs run in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    /// At most so many.
    pub(super) max: usize,
    /// Jobs of different frames share calls, and wait so long for each other; `None`: only jobs of one frame do, and nobody waits.
    pub(super) timeout: Option<Duration>,
}

/// The requests of one model, and the jobs that wait for them.
pub(super) struct Queue<J: Job> {
    rows: Rows,
    device: String,
    n_requests: usize,
    n_cores: usize,
    /// Runs of this model go before others.
    urgent: bool,
    compile_another: Option<CompileAnother>,
    state: Mutex<State<J>>,
    follows_pace: bool,
    pace: Mutex<Pace>,
    /// Jobs of a client have ended.
    ended: Condvar,
    /// The watcher has something to see.
    watched: Condvar,
    /// A client has waited in vain for its jobs.
    hangs: AtomicBool,
    /// A run has given a result.
    has_run: AtomicBool,
}

struct State<J: Job> {
    /// Empty once the queue is closed.
    workers: Vec<Arc<Worker<J>>>,
    /// Workers that are to be made when there is work for them, each with a copy of the model.
    n_to_make: usize,
    maker: Option<JoinHandle<()>>,
    pending: VecDeque<Pending<J>>,
    idle: Vec<usize>,
    n_groups: u64,
    /// When the watcher looks next; `None` while it is awake, or waits without a limit.
    looks_at: Option<Instant>,
    watcher: Option<JoinHandle<()>>,
    closed: bool,
}

/// A job that waits.
struct Pending<J> {
    job: J,
    client: Arc<Tally>,
    /// Jobs that came together: those of one frame.
    group: u64,
    /// Its place in the queue.
    order: Instant,
    submitted: Instant,
    /// It runs in a call of its own: one with others failed, or somebody waits for it.
    alone: bool,
}

pub(super) struct Worker<J: Job> {
    request: InferRequest,
    slot: Arc<Mutex<Slot<J>>>,
}

/// What is known of one client.
pub(super) struct Tally {
    /// Of its jobs. Changes under the queue's lock.
    n_running: AtomicUsize,
    has_left: AtomicBool,
    stats: Mutex<StageStats>,
}

/// A stage as its queue knows it. Dropped, it takes its jobs along: those that wait are told so; those that run alone are canceled;
/// and it waits until all have been told of.
pub(super) struct Client<J: Job> {
    queue: Arc<Queue<J>>,
    tally: Arc<Tally>,
    scheduling: Scheduling,
}

thread_local! {
    /// This thread is telling an owner of a result: it can't wait for that to be over.
    static IS_TELLING: Cell<bool> = const { Cell::new(false) };
}

impl<J: Job> Client<J> {
    pub(super) fn new(queue: &Arc<Queue<J>>, scheduling: Scheduling) -> Self {
        let stats = Mutex::new(StageStats { device: queue.device.clone(), ..StageStats::default() });
        let tally = Arc::new(Tally { n_running: AtomicUsize::new(0), has_left: AtomicBool::new(false), stats });
        Self { queue: queue.clone(), tally, scheduling }
    }

    /// Number of requests, which are those of all clients.
    pub(super) fn n_requests(&self) -> usize {
        self.queue.n_requests
    }

    /// How many frames have to wait so that all requests are busy with calls as large as was asked for.
    pub(super) fn n_frames_at_once(&self) -> usize {
        let Rows { max, timeout } = self.queue.rows;
        self.queue.n_requests * if timeout.is_some() { max } else { 1 }
    }

    /// Whether jobs wait for others, of whatever frame.
    pub(super) fn gathers_frames(&self) -> bool {
        self.queue.rows.max > 1 && self.queue.rows.timeout.is_some()
    }

    /// How many frames fewer would do now, for requests wait for threads; see [`super::pace`].
    pub(super) fn n_frames_fewer(&self) -> usize {
        self.queue.pace.lock().unwrap().n_fewer()
    }

    /// Runs the jobs of one frame as soon as requests are idle. Never blocks.
    pub(super) fn submit(&self, jobs: impl IntoIterator<Item = J>) {
        self.put(jobs, false);
    }

    /// As [`Client::submit`], in a call of its own that waits for no others: for who waits for the result.
    pub(super) fn submit_alone(&self, job: J) {
        self.put([job], true);
    }

    fn put(&self, jobs: impl IntoIterator<Item = J>, alone: bool) {
        let submitted = Instant::now();
        let mut state = self.queue.state.lock().unwrap();
        state.n_groups += 1;
        let group = state.n_groups;
        let mut place = None;
        for job in jobs {
            let order = match self.scheduling {
                Scheduling::Throughput => submitted,
                Scheduling::Latency => job.permit().arrived(),
            };
            // Those of one frame stay together.
            let at = place.unwrap_or_else(|| state.pending.iter().rposition(|other| other.order <= order).map_or(0, |place| place + 1));
            state.pending.insert(at, Pending { job, client: self.tally.clone(), group, order, submitted, alone });
            place = Some(at + 1);
        }
        drop(state);
        self.queue.start_calls(None);
    }

    /// Drops the jobs that have not begun; their owners are told.
    pub(super) fn drop_pending(&self) {
        self.queue.drop_those(|pending| Arc::ptr_eq(&pending.client, &self.tally));
    }

    /// Drops the jobs whose permit was taken back; their owners are told.
    pub(super) fn drop_withdrawn(&self) {
        self.queue.drop_those(|pending| Arc::ptr_eq(&pending.client, &self.tally) && pending.job.permit().withdrawal().is_some());
    }

    pub(super) fn scheduling(&self) -> Scheduling {
        self.scheduling
    }

    /// Whether a run, of whichever client, has given a result.
    pub(super) fn has_run(&self) -> bool {
        self.queue.has_run.load(Ordering::Acquire)
    }

    pub(super) fn stats(&self) -> StageStats {
        self.tally.stats.lock().unwrap().clone()
    }
}

impl<J: Job> Drop for Client<J> {
    fn drop(&mut self) {
        let Self { queue, tally, .. } = &*self;
        let workers = {
            let state = queue.state.lock().unwrap();
            tally.has_left.store(true, Ordering::Release);
            state.workers.clone()
        };
        self.drop_pending();
        for worker in &workers {
            // With the slot's lock held no other run can begin on this request: only the one that is looked at is canceled.
            let slot = worker.slot.lock().unwrap();
            if !slot.rows.is_empty() && slot.rows.iter().all(|row| Arc::ptr_eq(&row.client, tally)) {
                worker.request.cancel();
            }
        }
        drop(workers);
        if IS_TELLING.get() {
            return;
        }
        let state = queue.state.lock().unwrap();
        let runs = |_: &mut State<J>| tally.n_running.load(Ordering::Acquire) > 0;
        let (state, waited) = queue.ended.wait_timeout_while(state, PATIENCE, runs).unwrap();
        drop(state);
        if waited.timed_out() {
            queue.hangs.store(true, Ordering::Release);
            tracing::warn!("runs of a stage go on after it was dropped: an engine, or who takes a result, did not return for {PATIENCE:?}");
        }
    }
}

impl<J: Job> Queue<J> {
    /// The requests of the model, whose runs go before others if they are `urgent`; with `follows_pace` frames are kept from them where
    /// they wait for threads.
    pub(super) fn new(copies: Copies, rows: Rows, urgent: bool, follows_pace: bool) -> Result<Arc<Self>> {
        let Copies { first, n_requests, compile_another } = copies;
        let n_at_first = if compile_another.is_some() { 1 } else { n_requests };
        let state = State {
            workers: Vec::with_capacity(n_requests),
            n_to_make: n_requests - n_at_first,
            maker: None,
            pending: VecDeque::new(),
            idle: Vec::with_capacity(n_requests),
            n_groups: 0,
            looks_at: None,
            watcher: None,
            closed: false,
        };
        let queue = Arc::new(Self {
            rows,
            device: first.device().to_owned(),
            n_requests,
            n_cores: std::thread::available_parallelism().map_or(1, NonZero::get),
            urgent,
            compile_another,
            state: Mutex::new(state),
            follows_pace,
            pace: Mutex::default(),
            ended: Condvar::new(),
            watched: Condvar::new(),
            hangs: AtomicBool::new(false),
            has_run: AtomicBool::new(false),
        });
        for _ in 0..n_at_first {
            queue.add_worker(&first)?;
        }
        // The first is the first that is taken.
        queue.state.lock().unwrap().idle.reverse();
        if rows.max > 1 && rows.timeout.is_some_and(|timeout| !timeout.is_zero()) {
            let watching = queue.clone();
            let watcher = std::thread::Builder::new().name("roiflow-batches".to_owned()).spawn(move || watching.watch());
            let watcher = watcher
                .map_err(|error| Error::with_source(ErrorKind::Device, "cannot start the thread that watches over batches", error))?;
            queue.state.lock().unwrap().watcher = Some(watcher);
        }
        Ok(queue)
    }

    /// One more request of this model, idle.
    fn add_worker(self: &Arc<Self>, model: &CompiledModel) -> Result<()> {
        let request = model.create_infer_request()?;
        request.set_urgent(self.urgent);
        let slot = Arc::new(Mutex::new(Slot::new(self.rows.max)));
        request.set_input((), JobRows::new(slot.clone(), Arc::downgrade(self)))?;
        let (of_step, mut scratch) = (slot.clone(), J::Scratch::default());
        request.append_step("decode", move |context| decode_rows(&of_step, context, &mut scratch))?;
        let worker = Arc::new(Worker { request, slot });
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
        Ok(())
    }

    /// Makes the workers that are still to be made, beside those that run, if jobs wait for them.
    fn make_more(self: &Arc<Self>) {
        let mut state = self.state.lock().unwrap();
        if state.n_to_make == 0 || state.pending.is_empty() || state.closed {
            return;
        }
        let n_to_make = std::mem::take(&mut state.n_to_make);
        let queue = self.clone();
        let maker = std::thread::Builder::new().name("roiflow-copies".to_owned()).spawn(move || {
            for n_made in 0..n_to_make {
                if queue.state.lock().unwrap().closed {
                    return;
                }
                let Some(compile_another) = &queue.compile_another else { return };
                if let Err(error) = compile_another().and_then(|model| queue.add_worker(&model)) {
                    tracing::warn!(
                        "{} of {} copies of the model on {} are not there: {error}",
                        n_to_make - n_made,
                        n_to_make + 1,
                        queue.device
                    );
                    return;
                }
                queue.start_calls(None);
            }
        });
        match maker {
            Ok(maker) => state.maker = Some(maker),
            Err(error) => tracing::warn!("cannot start the thread that compiles copies of the model: {error}"),
        }
    }

    /// Frees the requests; for when the last client has left. Nothing of the engine's is left when it returns, but what a run still
    /// holds that does not end in time.
    pub(super) fn close(&self) {
        let (workers, threads) = {
            let mut state = self.state.lock().unwrap();
            state.closed = true;
            state.idle.clear();
            (std::mem::take(&mut state.workers), [state.watcher.take(), state.maker.take()])
        };
        self.watched.notify_all();
        // Who is told of a result may be waited for by one of them; they end by themselves.
        for thread in threads.into_iter().flatten().filter(|_| !IS_TELLING.get()) {
            let _ended = thread.join();
        }
        let patience = if self.hangs.load(Ordering::Acquire) { Duration::ZERO } else { PATIENCE };
        for worker in &workers {
            // Its callback may have yet to return. Inside the callback itself this is refused at once.
            let _over = worker.request.wait_for(patience);
        }
    }

    /// The cores that a run may take: its own, and those of the requests that have nothing to do.
    pub(super) fn n_cores_of_a_run(&self) -> usize {
        let state = self.state.lock().unwrap();
        let n_busy = state.workers.len().saturating_sub(state.idle.len());
        self.n_cores / n_busy.max(1)
    }

    fn drop_those(&self, is_one: impl Fn(&Pending<J>) -> bool) {
        let mut dropped = Vec::new();
        let mut state = self.state.lock().unwrap();
        // From the end, so that those that stay keep their order.
        for place in (0..state.pending.len()).rev() {
            if is_one(&state.pending[place]) {
                dropped.extend(state.pending.remove(place));
            }
        }
        drop(state);
        dropped.into_iter().rev().for_each(|pending| deliver(pending.job, Err(stopped())));
    }

    /// Starts calls while there are jobs for them and idle requests, that of `own` first: it is idle, and in nobody else's hands.
    fn start_calls(&self, mut own: Option<usize>) {
        loop {
            let mut withdrawn = Vec::new();
            let mut state = self.state.lock().unwrap();
            if state.closed {
                return;
            }
            let Some(worker_idx) = own.take().or_else(|| state.idle.pop()) else { return };
            let worker = state.workers[worker_idx].clone();
            let has_call = state.take_call(self.rows, &mut worker.slot.lock().unwrap(), &mut withdrawn);
            if !has_call {
                state.idle.push(worker_idx);
                self.tell_watcher(state);
            } else {
                drop(state);
            }
            withdrawn.into_iter().for_each(|job| deliver(job, Err(stopped())));
            if !has_call {
                return;
            }
            if let Err(error) = worker.start() {
                self.settle(&worker, Err(error));
                own = Some(worker_idx);
            }
        }
    }

    fn finish(self: &Arc<Self>, worker_idx: usize, worker: &Worker<J>, result: Result<()>) {
        worker.count(result.is_err());
        self.keep_pace(worker);
        self.settle(worker, result);
        self.make_more();
        self.start_calls(Some(worker_idx));
    }

    /// Counts what a run that has just ended waited and took. Calls of several frames need all that they can get.
    fn keep_pace(&self, worker: &Worker<J>) {
        let (placed, began) = {
            let mut slot = worker.slot.lock().unwrap();
            (slot.placed.take(), slot.began.take())
        };
        if let (true, None, Some((placed, began))) = (self.follows_pace, self.rows.timeout, placed.zip(began)) {
            self.pace.lock().unwrap().add(began - placed, began.elapsed(), self.n_requests - 1);
        }
    }

    /// Tells the owners of a call's jobs; or puts the jobs back, to be run one by one.
    fn settle(&self, worker: &Worker<J>, result: Result<()>) {
        let mut rows = std::mem::take(&mut worker.slot.lock().unwrap().rows);
        let again = match &result {
            Err(error) if rows.len() > 1 && !matches!(error.kind(), ErrorKind::Canceled | ErrorKind::Stopped) => {
                tracing::debug!("a call of {} rows failed ({error}); each is run by itself", rows.len());
                true
            }
            _ => false,
        };
        if again {
            let mut state = self.state.lock().unwrap();
            for place in (0..rows.len()).rev() {
                let row = &rows[place];
                if row.failed.is_some() || row.client.has_left.load(Ordering::Acquire) || state.closed {
                    continue;
                }
                let Row { job, client, group, order, submitted, .. } = rows.remove(place);
                client.n_running.fetch_sub(1, Ordering::AcqRel);
                state.pending.push_front(Pending { job, client, group, order, submitted, alone: true });
            }
            drop(state);
        }
        let mut clients: Vec<Arc<Tally>> = Vec::new();
        // The usual call has one client: no list is needed for it.
        let mut first: Option<(Arc<Tally>, usize)> = None;
        for Row { job, client, failed, .. } in rows.drain(..) {
            let ended = match (failed, &result) {
                (Some(error), _) => Err(error),
                (None, result) => result.clone(),
            };
            if ended.is_ok() {
                job.permit().succeed();
                self.has_run.store(true, Ordering::Release);
            }
            deliver(job, ended);
            match &mut first {
                None => first = Some((client, 1)),
                Some((first, n)) if Arc::ptr_eq(first, &client) => *n += 1,
                Some(_) => clients.push(client),
            }
        }
        worker.slot.lock().unwrap().rows = rows;
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

    /// Tells the watcher, if it would look too late.
    fn tell_watcher(&self, state: MutexGuard<'_, State<J>>) {
        let Some(due) = state.due_at(self.rows) else { return };
        let is_late = state.watcher.is_some() && state.looks_at.is_none_or(|looks_at| due < looks_at);
        drop(state);
        if is_late {
            self.watched.notify_all();
        }
    }

    /// Starts calls that are not full when it is time.
    fn watch(&self) {
        let mut state = self.state.lock().unwrap();
        while !state.closed {
            state.looks_at = if state.idle.is_empty() { None } else { state.due_at(self.rows) };
            let now = Instant::now();
            match state.looks_at {
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

impl<J: Job> State<J> {
    /// When the next call is to begin even if it is not full; `None` if nothing waits.
    fn due_at(&self, rows: Rows) -> Option<Instant> {
        let first = self.pending.front()?;
        match rows.timeout {
            Some(timeout) if self.pending.len() < rows.max && !self.pending.iter().any(|pending| pending.alone) => {
                // Not the front's: who is first by age may have come last.
                self.pending.iter().map(|pending| pending.submitted).min().and_then(|oldest| oldest.checked_add(timeout))
            }
            _ => Some(first.submitted),
        }
    }

    /// Moves the jobs of the next call into the slot; false if there is none now. Those that may not run any more come back.
    fn take_call(&mut self, rows: Rows, slot: &mut Slot<J>, withdrawn: &mut Vec<J>) -> bool {
        debug_assert!(slot.rows.is_empty(), "the request is idle");
        let now = Instant::now();
        (slot.input_shape, slot.placed, slot.began) = (None, Some(now), None);
        if self.due_at(rows).is_none_or(|due| due > now) {
            return false;
        }
        while let Some(next) = self.pending.front() {
            let fits = match slot.rows.first() {
                None => true,
                Some(first) => {
                    slot.rows.len() < rows.max
                        && !(first.alone || next.alone)
                        && (rows.timeout.is_some() || first.group == next.group)
                        && slot.input_shape == Some(next.job.spec().input_shape)
                }
            };
            if !fits {
                break;
            }
            let Some(next) = self.pending.pop_front() else { break };
            if !next.job.permit().begin() {
                withdrawn.push(next.job);
                continue;
            }
            next.client.n_running.fetch_add(1, Ordering::AcqRel);
            slot.input_shape = Some(next.job.spec().input_shape);
            slot.rows.push(Row::new(next.job, next.client, next.group, next.order, next.submitted, next.alone));
        }
        !slot.rows.is_empty()
    }
}

impl<J: Job> Worker<J> {
    fn start(&self) -> Result<()> {
        let span = self.slot.lock().unwrap().rows.first().map(|row| row.job.span().clone());
        let _entered = span.map(tracing::Span::entered);
        match self.request.start_async(()) {
            Err(error) if error.kind() == ErrorKind::Busy => {
                // The callback that put the worker among the idle ones has yet to return: a matter of some instructions, and
                // it needs nothing of ours any more. How its run ended has been told.
                let _ended = self.request.wait();
                self.request.start_async(())
            }
            started => started,
        }
    }

    /// Counts a run that has just ended, for each client by its rows.
    fn count(&self, failed: bool) {
        let slot = self.slot.lock().unwrap();
        let n_rows = slot.rows.len() as u32;
        for (place, row) in slot.rows.iter().enumerate() {
            let is_first = !slot.rows[..place].iter().any(|other| Arc::ptr_eq(&other.client, &row.client));
            if !is_first {
                continue;
            }
            let n_own = slot.rows[place..].iter().filter(|other| Arc::ptr_eq(&other.client, &row.client)).count() as u32;
            let mut stats = row.client.stats.lock().unwrap();
            stats.n_runs += 1;
            stats.n_failed += u64::from(failed);
            stats.n_rows += u64::from(n_own);
            let mut step_idx = 0;
            let counted = self.request.visit_step_times(|name, duration| {
                let own = if n_own == n_rows { duration } else { duration * n_own / n_rows };
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

/// Tells the owner. A panic of the owner's closure must not cost the stage the request, or the other owners their results.
fn deliver<J: Job>(job: J, ended: Result<()>) {
    let was_telling = IS_TELLING.replace(true);
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.deliver(ended))).is_err() {
        tracing::error!("the closure that takes a result panicked");
    }
    IS_TELLING.set(was_telling);
}

/// The error of a job that never ran.
pub(super) fn stopped() -> Error {
    Error::new(ErrorKind::Stopped, "the stage was stopped before it got to this frame")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;

    use super::*;
    use crate::StageOptions;
    use crate::frame::{PixelFormat, Size};
    use crate::spec::load_model;

    /// A job that panics where it is told to.
    struct Picture {
        frame: Frame,
        spec: Arc<ModelSpec>,
        permit: Arc<Permit>,
        panics: bool,
        sender: mpsc::Sender<Result<()>>,
    }

    impl Job for Picture {
        type Scratch = ();

        fn frame(&self) -> &Frame {
            &self.frame
        }

        fn frame_number(&self) -> u64 {
            0
        }

        fn span(&self) -> &tracing::Span {
            static NONE: std::sync::LazyLock<tracing::Span> = std::sync::LazyLock::new(tracing::Span::none);
            &NONE
        }

        fn permit(&self) -> &Permit {
            &self.permit
        }

        fn spec(&self) -> &Arc<ModelSpec> {
            &self.spec
        }

        fn decode(&mut self, outputs: &[Output<'_>], _: &Transform, (): &mut ()) -> Result<()> {
            assert!(!self.panics, "in the decoder");
            assert_eq!((outputs.len(), outputs[0].shape, outputs[0].data.len()), (1, &[1, 4][..], 4), "a row");
            Ok(())
        }

        fn deliver(self, ended: Result<()>) {
            self.sender.send(ended).unwrap();
        }
    }

    #[test]
    fn copies_are_compiled_when_jobs_wait_and_work_goes_on_without_them() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/color.onnx");
        let options = StageOptions { model, device: Some("CPU".to_owned()), ..StageOptions::default() };
        let (model, spec) = load_model(&options).unwrap();
        let (spec, frame) = (Arc::new(spec), Frame::from_packed(PixelFormat::Gray8, Size::new(2, 2), &[0; 4]).unwrap());
        for fails in [false, true] {
            let (said, compiled) = mpsc::channel();
            let another = model.clone();
            let compile_another: CompileAnother = Box::new(move || {
                said.send(()).unwrap();
                if fails { Err(Error::new(ErrorKind::Device, "no memory")) } else { Ok(another.clone()) }
            });
            let copies = Copies { first: model.clone(), n_requests: 2, compile_another: Some(compile_another) };
            let queue = Queue::<Picture>::new(copies, Rows { max: 1, timeout: None }, false, true).unwrap();
            let client = Client::new(&queue, Scheduling::Throughput);
            let (sender, receiver) = mpsc::channel();
            let run = |n_jobs: usize| {
                client.submit((0..n_jobs).map(|_| Picture {
                    frame: frame.clone(),
                    spec: spec.clone(),
                    permit: Permit::new(Instant::now(), None),
                    panics: false,
                    sender: sender.clone(),
                }));
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
            assert!(compiled.try_recv().is_err(), "all that were wanted are there, or never will be");
            drop(client);
            queue.close();
        }
    }

    #[test]
    fn a_panic_in_the_decoder_is_the_error_of_that_job_alone() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/color.onnx");
        let options = StageOptions { model, device: Some("CPU".to_owned()), ..StageOptions::default() };
        let (model, spec) = load_model(&options).unwrap();
        let spec = Arc::new(spec);
        let frame = Frame::from_packed(PixelFormat::Gray8, Size::new(2, 2), &[0; 4]).unwrap();
        for (max, timeout) in [(1, None), (3, None), (3, Some(Duration::from_secs(3600)))] {
            let queue =
                Queue::<Picture>::new(Copies { n_requests: 1, ..Copies::one(model.clone()) }, Rows { max, timeout }, false, true).unwrap();
            let client = Client::new(&queue, Scheduling::Throughput);
            let (sender, receiver) = mpsc::channel();
            client.submit((0..3).map(|n| Picture {
                frame: frame.clone(),
                spec: spec.clone(),
                permit: Permit::new(Instant::now(), None),
                panics: n == 1,
                sender: sender.clone(),
            }));
            let results: Vec<_> = (0..3).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
            assert_eq!(results[1].as_ref().unwrap_err().kind(), ErrorKind::Panic);
            assert!(matches!((&results[0], &results[2]), (Ok(()), Ok(()))), "{results:?}");
            drop(client);
            queue.close();
        }
    }
}
