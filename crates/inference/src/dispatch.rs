//! Jobs of several streams on a bounded set of requests: whoever is idle takes the next jobs; a request's callback delivers the
//! results and starts the next jobs on the same request, so no thread ever waits for another.
//!
//! A [`Queue`] has the requests of one compiled model. Each stage that uses them is a [`Client`] of it, with jobs, statistics and an
//! end of its own: a client that leaves takes only its own jobs along, and waits only for those of them that run.
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::client::{Client, Scheduling, StepStats, stopped};
use super::copies::{CompileAnother, Copies};
use super::job::Job;
use super::pace::Pace;
use super::rows::{JobRows, Row, Slot, decode_rows};
use crate::runtime::{CompiledModel, Error, ErrorKind, InferRequest, Result};
use crate::vision::decode::Results;

/// How long a client that leaves waits for its jobs that run, and an engine that is freed for its runs.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many jobs run in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    /// At most so many.
    pub(super) max: usize,
    /// Jobs of different frames share calls, and wait so long for each other; `None`: only jobs of one frame do, and nobody waits.
    pub(super) timeout: Option<Duration>,
}

/// The requests of one model, and the jobs that wait for them.
pub(super) struct Queue {
    pub(super) rows: Rows,
    pub(super) device: String,
    /// Those of all clients.
    pub(super) n_requests: usize,
    n_cores: usize,
    /// Runs of this model go before others.
    urgent: bool,
    compile_another: Option<CompileAnother>,
    state: Mutex<State>,
    follows_pace: bool,
    pace: Mutex<Pace>,
    /// Jobs of a client have ended.
    ended: Condvar,
    /// The watcher has something to see.
    watched: Condvar,
    /// A client has waited in vain for its jobs.
    hangs: AtomicBool,
    /// A run, of whichever client, has given a result.
    pub(super) has_run: AtomicBool,
}

struct State {
    /// Empty once the queue is closed.
    workers: Vec<Arc<Worker>>,
    /// Workers that are to be made when there is work for them, each with a copy of the model.
    n_to_make: usize,
    maker: Option<JoinHandle<()>>,
    pending: VecDeque<Row>,
    idle: Vec<usize>,
    n_groups: u64,
    /// When the watcher looks next; `None` while it is awake, or waits without a limit.
    looks_at: Option<Instant>,
    watcher: Option<JoinHandle<()>>,
    closed: bool,
}

pub(super) struct Worker {
    request: InferRequest,
    slot: Arc<Mutex<Slot>>,
}

thread_local! {
    /// This thread is telling an owner of a result: it can't wait for that to be over.
    static IS_TELLING: Cell<bool> = const { Cell::new(false) };
}

impl Queue {
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
        let (of_step, mut scratch) = (slot.clone(), Results::default());
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

    /// Runs the jobs of one frame as soon as requests are idle. Never blocks. `alone`: each in a call of its own that waits for no others,
    /// for a caller that waits for the result.
    pub(super) fn submit(&self, jobs: impl IntoIterator<Item = Job>, alone: bool) {
        let submitted = Instant::now();
        let mut state = self.state.lock().unwrap();
        state.n_groups += 1;
        let group = state.n_groups;
        let mut place = None;
        for job in jobs {
            let order = match job.runs.client.scheduling {
                Scheduling::Throughput => submitted,
                Scheduling::Latency => job.runs.permit.arrived(),
            };
            // Those of one frame stay together.
            let at = place.unwrap_or_else(|| state.pending.iter().rposition(|other| other.order <= order).map_or(0, |place| place + 1));
            state.pending.insert(at, Row::new(job, group, order, submitted, alone));
            place = Some(at + 1);
        }
        drop(state);
        self.start_calls(None);
    }

    /// How many frames fewer would do now, for requests wait for threads; see [`super::pace`].
    pub(super) fn n_frames_fewer(&self) -> usize {
        self.pace.lock().unwrap().n_fewer()
    }

    /// A client leaves, and takes its jobs along: those that wait are dropped, those that run alone are canceled. Waits until the owners of
    /// all of them know.
    pub(super) fn leave(&self, client: &Arc<Client>) {
        let workers = {
            let state = self.state.lock().unwrap();
            client.has_left.store(true, Ordering::Release);
            state.workers.clone()
        };
        self.drop_those(|job| job.is_of(client));
        for worker in &workers {
            // With the slot's lock held no other run can begin on this request: only the one that is looked at is canceled.
            let slot = worker.slot.lock().unwrap();
            if !slot.rows.is_empty() && slot.rows.iter().all(|row| row.job.is_of(client)) {
                worker.request.cancel();
            }
        }
        drop(workers);
        if IS_TELLING.get() {
            return;
        }
        let state = self.state.lock().unwrap();
        let runs = |_: &mut State| client.n_running.load(Ordering::Acquire) > 0;
        let (state, waited) = self.ended.wait_timeout_while(state, PATIENCE, runs).unwrap();
        drop(state);
        if waited.timed_out() {
            self.hangs.store(true, Ordering::Release);
            tracing::warn!("runs of a stage go on after it was dropped: an engine, or who takes a result, did not return for {PATIENCE:?}");
        }
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

    /// Drops those of the jobs that wait; their owners are told.
    pub(super) fn drop_those(&self, is_one: impl Fn(&Job) -> bool) {
        let mut dropped = Vec::new();
        let mut state = self.state.lock().unwrap();
        // From the end, so that those that stay keep their order.
        for place in (0..state.pending.len()).rev() {
            if is_one(&state.pending[place].job) {
                dropped.extend(state.pending.remove(place));
            }
        }
        drop(state);
        dropped.into_iter().rev().for_each(|row| deliver(row.job, Err(stopped())));
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
            withdrawn.into_iter().for_each(|row| deliver(row.job, Err(stopped())));
            if !has_call {
                return;
            }
            if let Err(error) = worker.start() {
                self.settle(&worker, Err(error));
                own = Some(worker_idx);
            }
        }
    }

    fn finish(self: &Arc<Self>, worker_idx: usize, worker: &Worker, result: Result<()>) {
        worker.count(result.is_err());
        self.keep_pace(worker);
        self.settle(worker, result);
        self.make_more();
        self.start_calls(Some(worker_idx));
    }

    /// Counts what a run that has just ended waited and took. Calls of several frames need all that they can get.
    fn keep_pace(&self, worker: &Worker) {
        let (placed, began) = {
            let mut slot = worker.slot.lock().unwrap();
            (slot.placed.take(), slot.began.take())
        };
        if let (true, None, Some((placed, began))) = (self.follows_pace, self.rows.timeout, placed.zip(began)) {
            self.pace.lock().unwrap().add(began - placed, began.elapsed(), self.n_requests - 1);
        }
    }

    /// Tells the owners of a call's jobs; or puts the jobs back, to be run one by one.
    fn settle(&self, worker: &Worker, result: Result<()>) {
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
                let client = &row.job.runs.client;
                if row.failed.is_some() || client.has_left.load(Ordering::Acquire) || state.closed {
                    continue;
                }
                client.n_running.fetch_sub(1, Ordering::AcqRel);
                let mut row = rows.remove(place);
                row.alone = true;
                state.pending.push_front(row);
            }
            drop(state);
        }
        let mut clients: Vec<Arc<Client>> = Vec::new();
        // The usual call has one client: no list is needed for it.
        let mut first: Option<(Arc<Client>, usize)> = None;
        for Row { job, failed, .. } in rows.drain(..) {
            let client = job.runs.client.clone();
            let ended = match (failed, &result) {
                (Some(error), _) => Err(error),
                (None, result) => result.clone(),
            };
            if ended.is_ok() {
                job.runs.permit.succeed();
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
    fn tell_watcher(&self, state: MutexGuard<'_, State>) {
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

impl State {
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
    fn take_call(&mut self, rows: Rows, slot: &mut Slot, withdrawn: &mut Vec<Row>) -> bool {
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
                        && slot.input_shape == Some(next.job.runs.client.spec.input_shape)
                }
            };
            if !fits {
                break;
            }
            let Some(next) = self.pending.pop_front() else { break };
            if !next.job.runs.permit.begin() {
                withdrawn.push(next);
                continue;
            }
            let client = &next.job.runs.client;
            client.n_running.fetch_add(1, Ordering::AcqRel);
            slot.input_shape = Some(client.spec.input_shape);
            slot.rows.push(next);
        }
        !slot.rows.is_empty()
    }
}

impl Worker {
    fn start(&self) -> Result<()> {
        let span = self.slot.lock().unwrap().rows.first().map(|row| row.job.runs.span.clone());
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
            let client = &row.job.runs.client;
            let is_own = |row: &&Row| row.job.is_of(client);
            if slot.rows[..place].iter().any(|row| is_own(&row)) {
                continue;
            }
            let n_own = slot.rows[place..].iter().filter(is_own).count() as u32;
            let mut stats = client.stats.lock().unwrap();
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
fn deliver(mut job: Job, ended: Result<()>) {
    let was_telling = IS_TELLING.replace(true);
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || job.end(ended))).is_err() {
        tracing::error!("the closure that takes a result panicked");
    }
    IS_TELLING.set(was_telling);
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;

    use super::*;
    use crate::frame::{Frame, PixelFormat, Size};
    use crate::job::{FrameRuns, Picture};
    use crate::spec::load_model;
    use crate::vision::decode::{Decoder, Output};
    use crate::{ModelSpec, Permit, StageOptions, StageResults};

    /// Sees that it gets the outputs of one row, or panics.
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
            assert_eq!((outputs.len(), outputs[0].shape, outputs[0].data.len()), (1, &[1, 4][..], 4), "a row");
            Ok(())
        }
    }

    fn color() -> (CompiledModel, ModelSpec) {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/color.onnx");
        load_model(&StageOptions { model, device: Some("CPU".to_owned()), ..StageOptions::default() }).unwrap()
    }

    /// A client whose decoder looks at its rows, or panics.
    fn client(queue: &Queue, spec: &ModelSpec, panics: bool) -> Arc<Client> {
        let mut spec = spec.clone();
        spec.heads[0].decoder = Arc::new(OneRow { panics });
        Client::new(spec, Scheduling::Throughput, queue.device.clone())
    }

    /// A job, and what takes its end.
    fn job(client: &Arc<Client>, sender: &mpsc::Sender<Result<()>>) -> Job {
        let frame = Frame::from_packed(PixelFormat::Gray8, Size::new(2, 2), &[0; 4]).unwrap();
        let (permit, sender) = (Permit::now(), sender.clone());
        let done = move |results: StageResults| sender.send(results.into_result().map(drop)).unwrap();
        Job::new(Picture::whole(frame), FrameRuns::new(client.clone(), 0, permit, 1, StageResults::default(), done))
    }

    #[test]
    fn copies_are_compiled_when_jobs_wait_and_work_goes_on_without_them() {
        let (model, spec) = color();
        for fails in [false, true] {
            let (said, compiled) = mpsc::channel();
            let another = model.clone();
            let compile_another: CompileAnother = Box::new(move || {
                said.send(()).unwrap();
                if fails { Err(Error::new(ErrorKind::Device, "no memory")) } else { Ok(another.clone()) }
            });
            let copies = Copies { first: model.clone(), n_requests: 2, compile_another: Some(compile_another) };
            let queue = Queue::new(copies, Rows { max: 1, timeout: None }, false, true).unwrap();
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
            assert!(compiled.try_recv().is_err(), "all that were wanted are there, or never will be");
            queue.leave(&client);
            queue.close();
        }
    }

    #[test]
    fn a_panic_in_the_decoder_is_the_error_of_that_job_alone() {
        let (model, spec) = color();
        for (max, timeout) in [(1, None), (3, None), (3, Some(Duration::from_secs(3600)))] {
            let queue = Queue::new(Copies { n_requests: 1, ..Copies::one(model.clone()) }, Rows { max, timeout }, false, true).unwrap();
            let clients = [false, true, false].map(|panics| client(&queue, &spec, panics));
            let (sender, receiver) = mpsc::channel();
            queue.submit(clients.iter().map(|client| job(client, &sender)), false);
            let results: Vec<_> = (0..3).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
            assert_eq!(results[1].as_ref().unwrap_err().kind(), ErrorKind::Panic);
            assert!(matches!((&results[0], &results[2]), (Ok(()), Ok(()))), "{results:?}");
            clients.iter().for_each(|client| queue.leave(client));
            queue.close();
        }
    }
}
