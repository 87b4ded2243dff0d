//! Schedules the jobs of several streams on a bounded set of requests. An idle request takes the next jobs. The callback of a request
//! delivers the results and starts the next jobs on it, so no thread waits.
//!
//! A [`Queue`] owns the requests of one compiled model. Each stage of the model is a [`Client`] with its own jobs and statistics. A client
//! that leaves discards only its own jobs, and waits only for its running ones.
//!
//! # Order of jobs
//!
//! Jobs are ordered by time: their arrival at the stage ([`Scheduling::Throughput`]), or the arrival of their frame at the element
//! ([`Scheduling::Latency`]). Both use one clock, so clients of both kinds share a queue, and no job waits behind a younger one. Callers
//! bound the number of jobs by their in-flight queues. A job that is dropped before it runs reports an error.
//!
//! # Batches
//!
//! A call takes the first job and those directly after it, up to [`Rows::max`]: only jobs of the same frame, or with [`Rows::timeout`] jobs
//! of any frame and stream. In the latter case the call starts when the batch is full, or when its oldest job has waited for the timeout,
//! which the thread [`Queue::watch`] checks. A batch item that cannot be preprocessed or decoded fails alone. A batch that fails as a whole
//! runs again item by item, so that one stream cannot break the results of another.
//!
//! # Copies of the model
//!
//! If each request has a separate copy of the model, only the first exists at the start. When a call ends and jobs wait, a thread compiles
//! the others; see [`Copies`].
//!
//! # Locks
//!
//! Order: `Queue::state`, then the lock of a `Slot`. Neither is held while results are delivered, a request is started, or a batch item is
//! preprocessed or decoded. A panic there is an error of that job only.

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

/// Longest time that a leaving client waits for its running jobs, and a released queue for its runs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Batching of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    /// Maximum batch size.
    pub(super) max: usize,
    /// Longest time that jobs of different frames wait for each other; `None`: only jobs of one frame share a call, without waiting.
    pub(super) timeout: Option<Duration>,
}

/// The requests of one model, and the waiting jobs.
pub(super) struct Queue {
    pub(super) rows: Rows,
    pub(super) device: String,
    /// Number of requests.
    pub(super) n_requests: usize,
    n_cores: usize,
    /// Runs of this model have priority.
    urgent: bool,
    compile_another: Option<CompileAnother>,
    state: Mutex<State>,
    follows_pace: bool,
    pace: Mutex<Pace>,
    /// Notified when jobs of a client are complete.
    ended: Condvar,
    /// Notifies the watcher thread.
    watched: Condvar,
    /// A client timed out waiting for its jobs.
    hangs: AtomicBool,
    /// A run of any client has succeeded.
    pub(super) has_run: AtomicBool,
}

struct State {
    /// Empty once the queue is closed.
    workers: Vec<Arc<Worker>>,
    /// Number of workers still to be made, each with a copy of the model.
    n_to_make: usize,
    maker: Option<JoinHandle<()>>,
    pending: VecDeque<Row>,
    idle: Vec<usize>,
    n_groups: u64,
    /// When the watcher wakes up next; `None` while it is awake, or waits without a limit.
    looks_at: Option<Instant>,
    watcher: Option<JoinHandle<()>>,
    closed: bool,
}

pub(super) struct Worker {
    request: InferRequest,
    slot: Arc<Mutex<Slot>>,
}

thread_local! {
    /// This thread is delivering a result, and must not wait for the end of the delivery.
    static IS_TELLING: Cell<bool> = const { Cell::new(false) };
}

impl Queue {
    /// Makes the requests of a model. `urgent` runs have priority. `follows_pace` reduces in-flight frames while requests wait for threads.
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
        // The first request is taken first.
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

    /// Adds an idle request of this model.
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

    /// Runs the jobs of one frame as soon as requests are idle. Never blocks. `alone`: each in a separate call without waiting for others,
    /// for a blocking caller.
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
            // Jobs of one frame stay together.
            let at = place.unwrap_or_else(|| state.pending.iter().rposition(|other| other.order <= order).map_or(0, |place| place + 1));
            state.pending.insert(at, Row::new(job, group, order, submitted, alone));
            place = Some(at + 1);
        }
        drop(state);
        self.start_calls(None);
    }

    /// Number of in-flight frames that could be removed now; see [`super::pace`].
    pub(super) fn n_frames_fewer(&self) -> usize {
        self.pace.lock().unwrap().n_fewer()
    }

    /// Removes a client: its waiting jobs are discarded, its unbatched running jobs are canceled. Waits until the results of all are
    /// delivered.
    pub(super) fn leave(&self, client: &Arc<Client>) {
        let workers = {
            let state = self.state.lock().unwrap();
            client.has_left.store(true, Ordering::Release);
            state.workers.clone()
        };
        self.drop_those(|job| job.is_of(client));
        for worker in &workers {
            // While the slot is locked, no other run can start on this request, so only this run is canceled.
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

    /// Makes the remaining workers on a separate thread, if jobs wait.
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

    /// Frees the requests when the last client has left. Only a run that does not end in time keeps resources of the engine after the
    /// return.
    pub(super) fn close(&self) {
        let (workers, threads) = {
            let mut state = self.state.lock().unwrap();
            state.closed = true;
            state.idle.clear();
            (std::mem::take(&mut state.workers), [state.watcher.take(), state.maker.take()])
        };
        self.watched.notify_all();
        // A thread that delivers a result must not wait here: the requests end on their own.
        for thread in threads.into_iter().flatten().filter(|_| !IS_TELLING.get()) {
            let _ended = thread.join();
        }
        let patience = if self.hangs.load(Ordering::Acquire) { Duration::ZERO } else { PATIENCE };
        for worker in &workers {
            // Its callback may not have returned yet. Within the callback the wait fails immediately.
            let _over = worker.request.wait_for(patience);
        }
    }

    /// The cores that a run may use: its own, and those of idle requests.
    pub(super) fn n_cores_of_a_run(&self) -> usize {
        let state = self.state.lock().unwrap();
        let n_busy = state.workers.len().saturating_sub(state.idle.len());
        self.n_cores / n_busy.max(1)
    }

    /// Discards waiting jobs that match, and reports it to their owners.
    pub(super) fn drop_those(&self, is_one: impl Fn(&Job) -> bool) {
        let mut dropped = Vec::new();
        let mut state = self.state.lock().unwrap();
        // From the end, so that the remaining jobs keep their order.
        for place in (0..state.pending.len()).rev() {
            if is_one(&state.pending[place].job) {
                dropped.extend(state.pending.remove(place));
            }
        }
        drop(state);
        dropped.into_iter().rev().for_each(|row| deliver(row.job, Err(stopped())));
    }

    /// Starts calls while there are jobs and idle requests, first on the idle request `own`.
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

    /// Records the waiting time and duration of a completed run. Batches of several frames need all frames, so they are not adapted.
    fn keep_pace(&self, worker: &Worker) {
        let (placed, began) = {
            let mut slot = worker.slot.lock().unwrap();
            (slot.placed.take(), slot.began.take())
        };
        if let (true, None, Some((placed, began))) = (self.follows_pace, self.rows.timeout, placed.zip(began)) {
            self.pace.lock().unwrap().add(began - placed, began.elapsed(), self.n_requests - 1);
        }
    }

    /// Delivers the results of a call, or queues its jobs again to run one by one.
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
        // Most calls have one client, which needs no list.
        let mut first: Option<(Arc<Client>, usize)> = None;
        for Row { job, failed, .. } in rows.drain(..) {
            let client = job.runs.client.clone();
            let ended = match (failed, &result) {
                (Some(error), _) => Err(error),
                (None, result) => result.clone(),
            };
            if ended.is_ok() {
                job.runs.guard.succeed();
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

    /// Wakes up the watcher, if it would wake up too late.
    fn tell_watcher(&self, state: MutexGuard<'_, State>) {
        let Some(due) = state.due_at(self.rows) else { return };
        let is_late = state.watcher.is_some() && state.looks_at.is_none_or(|looks_at| due < looks_at);
        drop(state);
        if is_late {
            self.watched.notify_all();
        }
    }

    /// Starts batches that are not full when their time has come.
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
    /// When the next call must start even if it is not full; `None` if no job waits.
    fn due_at(&self, rows: Rows) -> Option<Instant> {
        let first = self.pending.front()?;
        match rows.timeout {
            Some(timeout) if self.pending.len() < rows.max && !self.pending.iter().any(|pending| pending.alone) => {
                // Not the front job: the oldest frame may have been submitted last.
                self.pending.iter().map(|pending| pending.submitted).min().and_then(|oldest| oldest.checked_add(timeout))
            }
            _ => Some(first.submitted),
        }
    }

    /// Moves the jobs of the next call into the slot; false if there is none now. Withdrawn jobs are returned in `withdrawn`.
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
            if !next.job.runs.guard.begin() {
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
                // The callback that made the worker idle has not returned yet. It returns within some instructions, and its result was
                // delivered.
                let _ended = self.request.wait();
                self.request.start_async(())
            }
            started => started,
        }
    }

    /// Counts a completed run for each client, by its batch items.
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

/// Delivers a result. A panic of the closure must not lose the request, or the results of others.
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
    use crate::{ModelSpec, RunGuard, StageOptions, StageResults};

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
        let (guard, sender) = (RunGuard::now(), sender.clone());
        let done = move |results: StageResults| sender.send(results.into_result().map(drop)).unwrap();
        Job::new(Picture::whole(frame), FrameRuns::new(client.clone(), 0, guard, 1, StageResults::default(), done))
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
