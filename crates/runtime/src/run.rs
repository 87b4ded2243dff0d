//! Executes the runs of a request: exclusive access to its state, the steps of a run, the order of completion, stopping and waiting.
//!
//! Locks: `Shared::guarded` is held only to read state, or to move the [`Body`] (everything that belongs to a run) in and out. It is never
//! held while user or device code runs: fillers, steps, callbacks, interrupts, wakers, executors, and drops of user values.
//! `Shared::in_flight` holds the body while the run waits in the queue of an executor. No thread holds both locks at the same time.
//!
//! Each time a body is put into `in_flight`, it gets a new number. The task that is queued on the executor stores the same number. Exactly
//! one thread takes the body out and continues or ends the run: the thread that executes the task, a thread that cancels, or the thread
//! that drops the request. A task that is executed late or twice finds no body with its number and does nothing.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
// The model checker replaces atomics in order to explore thread interleavings. Request IDs do not order accesses, so they use a plain
// atomic.
use std::sync::atomic::AtomicU64 as Counter;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::Duration;

use super::compiled::CompiledShared;
use super::error::catch;
use super::executor::{Executor, Executors, Task, Ticket};
use super::request::InferRequest;
use super::state::{EndOfCallback, EndOfRun, Refusal, RequestState};
use super::steps::{Body, CancelToken};
use super::waits::{self, Inside, Registry, Target, Waits};
use super::{Error, ErrorKind, Inputs, Port, Result, spans};
use crate::sync::{AtomicBool, AtomicU64, Condvar, Deadline, Mutex, MutexGuard, Ordering, spawn, this_thread};

pub(super) type Callback = Arc<dyn Fn(&InferRequest, Result<()>) + Send + Sync>;

/// Called when no run and no callback of the request is in progress any more. The argument is the number of the latest run.
pub(super) type OnQuiet = Arc<dyn Fn(u64) + Send + Sync>;

/// The part of a request that its runs use. A thread of an executor may hold this part for a short time after the last handle was dropped.
/// But the drop of the last handle must free the resources of the device. Between runs, only the body holds these resources, so the drop of
/// the last handle takes the body out and frees it.
pub(super) struct Shared {
    pub(super) id: u64,
    pub(super) cancel: CancelToken,
    pub(super) guarded: Mutex<Guarded>,
    finished: Condvar,
    in_flight: Mutex<Option<Box<Body>>>,
    is_urgent: AtomicBool,
    /// The thread ([`this_thread`]) that executes a filler or step of this request; 0 if no thread does.
    stepping: AtomicU64,
    handle: OnceLock<Weak<Handle>>,
    /// The executors that all models of the core share.
    executors: Executors,
    /// The number of the model, by which a pool groups tasks, see [`Task::group`].
    group: u64,
}

pub(super) struct Guarded {
    pub(super) state: RequestState,
    /// `Some` while the request is idle. An edit or a run takes the body out, and puts it back when the edit or run ends.
    pub(super) body: Option<Box<Body>>,
    pub(super) callback: Option<Callback>,
    pub(super) user_data: Option<Arc<dyn Any + Send + Sync>>,
    /// The name that the user gave to the request.
    pub(super) name: Option<Arc<str>>,
    pub(super) latency: Duration,
    on_quiet: Option<OnQuiet>,
    keeper: Keeper,
    /// Whether the end of the run clears the request, see [`Shared::clear`].
    clears_at_end: bool,
    /// Whether a thread reads the body, see [`Shared::read`]. Other threads wait until it has read.
    is_read: bool,
    /// The number and the outcome of the run that ended last.
    outcome: (u64, Result<()>),
    /// The runs for which threads and futures wait. Each entry keeps the outcome of its run, because a later run may end before the waiter
    /// reads it.
    awaited: Vec<Awaited>,
    /// The wakers of futures that wait for a run, at most one per future.
    wakers: Vec<Wakes>,
    n_futures: u64,
}

/// A waker, with the number of its future and the number of the run that the future waits for.
struct Wakes {
    future: u64,
    run: u64,
    waker: Waker,
}

/// Which code may start the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeper {
    /// Any code that has a handle.
    User,
    /// Only the queue to which the request belongs.
    Queue,
    /// The owner of an [`IdleRequest`](super::queue::IdleRequest). The callback of the request still belongs to the queue.
    Holder,
}

struct Awaited {
    run: u64,
    n_waiting: usize,
    outcome: Option<Result<()>>,
}

/// The value that all handles of a request share. Dropping it stops the request.
pub(super) struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) model: Arc<CompiledShared>,
    /// Counts the request for [`MAX_REQUESTS`](super::executor::MAX_REQUESTS). The ticket belongs to the handles and not to `shared`: a
    /// task that stays in the queue of an executor holds `shared`, but must not count as a request.
    _ticket: Ticket,
}

impl Handle {
    pub(super) fn new(model: Arc<CompiledShared>, body: Box<Body>, ticket: Ticket) -> Arc<Self> {
        static NEXT_ID: Counter = Counter::new(0);
        let shared = Arc::new(Shared {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            cancel: CancelToken::default(),
            guarded: Mutex::new(Guarded {
                state: RequestState::default(),
                body: Some(body),
                callback: None,
                user_data: None,
                name: None,
                latency: Duration::ZERO,
                on_quiet: None,
                keeper: Keeper::User,
                clears_at_end: false,
                is_read: false,
                outcome: (0, Ok(())),
                awaited: Vec::new(),
                wakers: Vec::new(),
                n_futures: 0,
            }),
            finished: Condvar::new(),
            in_flight: Mutex::new(None),
            is_urgent: AtomicBool::new(false),
            stepping: AtomicU64::new(0),
            handle: OnceLock::new(),
            executors: model.executors.clone(),
            group: Arc::as_ptr(&model).addr() as u64,
        });
        let (request, name, device) = (shared.id, &*model.name, &*model.device);
        tracing::trace!(target: "roiflow::trace", request, model = name, device, "request");
        let handle = Arc::new(Self { shared, model, _ticket: ticket });
        let _first = handle.shared.handle.set(Arc::downgrade(&handle));
        handle
    }

    /// Begins a run of the idle request, see [`Shared::begin`]. Fails if the request belongs to a queue.
    pub(super) fn begin(&self, inputs: &impl Inputs, calls_back: bool) -> Result<Box<Body>> {
        let guarded = self.shared.guarded.lock().unwrap();
        // If a queue owns the request, a synchronous run inside the request's own callback is still allowed, because it does not touch the
        // queue's job.
        let is_allowed = guarded.keeper != Keeper::Queue || (!calls_back && guarded.state.is_called_on(this_thread()));
        drop(guarded);
        if !is_allowed {
            return Err(owned_by_queue("start a job of the queue, or take an idle request out of the queue"));
        }
        self.begin_for_queue(inputs, calls_back).map_err(|error| self.named(error))
    }

    /// If the user gave the request a name, adds this name to the error.
    fn named(&self, error: Error) -> Error {
        let name = self.shared.guarded.lock().unwrap().name.clone();
        match name {
            Some(name) => error.context(format!("request `{name}`")),
            None => error,
        }
    }

    /// Same as [`Handle::begin`], but for the queue that owns the request.
    pub(super) fn begin_for_queue(&self, inputs: &impl Inputs, calls_back: bool) -> Result<Box<Body>> {
        // A synchronous run needs no thread of an executor, so it works in a forked process.
        if calls_back {
            self.shared.check_process()?;
        }
        self.shared.begin(&self.model.info.inputs, inputs, calls_back)
    }
}

impl Guarded {
    /// Fails unless the callback may be set: the request must be idle and must not belong to a queue.
    pub(super) fn check_callback(&self) -> Result<()> {
        match self.keeper {
            Keeper::User => self.check_idle(),
            Keeper::Queue | Keeper::Holder => Err(owned_by_queue("set the callback of the queue")),
        }
    }

    pub(super) fn check_idle(&self) -> Result<()> {
        if self.state.is_busy(this_thread()) { Err(busy()) } else { Ok(()) }
    }

    /// Stores the outcome of a run for the threads that wait for that run. Also stores it as the latest outcome, unless a later run has
    /// already ended. Returns the outcomes that were replaced. The caller must drop them while no lock is held, because an error may hold a
    /// value of the user.
    #[must_use = "it is dropped without the lock"]
    fn settle(&mut self, run: u64, outcome: Result<()>) -> (Option<Result<()>>, Result<()>) {
        let awaited = self.awaited.iter_mut().find(|awaited| awaited.run == run);
        let of_waiters = awaited.and_then(|awaited| awaited.outcome.replace(outcome.clone()));
        if run < self.outcome.0 {
            return (of_waiters, outcome);
        }
        (of_waiters, std::mem::replace(&mut self.outcome, (run, outcome)).1)
    }

    fn is_expected_by(&self, future: u64) -> Option<usize> {
        self.wakers.iter().position(|wakes| wakes.future == future)
    }

    fn begin_to_wait(&mut self, run: u64) {
        match self.awaited.iter_mut().find(|awaited| awaited.run == run) {
            Some(awaited) => awaited.n_waiting += 1,
            None => {
                // The run may have ended already, while its callback is still executed. Store the outcome now, because a later run may end
                // before the waiter reads it.
                let outcome = (self.outcome.0 == run).then(|| self.outcome.1.clone());
                self.awaited.push(Awaited { run, n_waiting: 1, outcome });
            }
        }
    }

    fn end_to_wait(&mut self, run: u64) -> Result<()> {
        let awaited_idx = self.awaited.iter().position(|awaited| awaited.run == run).expect("noted when the wait began");
        let awaited = &mut self.awaited[awaited_idx];
        awaited.n_waiting -= 1;
        let outcome = awaited.outcome.clone().unwrap_or_else(|| self.outcome.1.clone());
        if awaited.n_waiting == 0 {
            self.awaited.swap_remove(awaited_idx);
        }
        outcome
    }
}

fn owned_by_queue(what_to_do: &str) -> Error {
    Error::new(ErrorKind::OwnedByQueue, format!("the request belongs to a queue: {what_to_do}"))
}

fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Busy => busy(),
        Refusal::Stopped => Error::new(ErrorKind::Stopped, "the request was stopped"),
    }
}

fn busy() -> Error {
    Error::new(ErrorKind::Busy, "the request is running: wait for it, or use another request")
}

impl Shared {
    /// Locks the state. If another thread reads the body, waits until it has read.
    pub(super) fn lock_unread(&self) -> MutexGuard<'_, Guarded> {
        let mut guarded = self.guarded.lock().unwrap();
        while guarded.is_read && !self.is_stepping_here() {
            guarded = self.finished.wait(guarded).unwrap();
        }
        guarded
    }

    /// Begins an edit: takes the body out of the idle request.
    fn begin_edit(&self) -> Result<Box<Body>> {
        let mut guarded = self.lock_unread();
        guarded.state.edit(this_thread()).map_err(refused)?;
        Ok(guarded.body.take().expect("an idle request has its body"))
    }

    fn end_edit(&self, body: Box<Body>) {
        let mut guarded = self.guarded.lock().unwrap();
        guarded.state.end_edit();
        guarded.is_read = false;
        guarded.body = Some(body);
        drop(guarded);
        self.finished.notify_all(); // The drop of the request may wait for the end of this edit.
    }

    /// Calls `action` with the body of the idle request, while no lock is held. Meanwhile the request is busy for other threads.
    pub(super) fn edit<R>(&self, action: impl FnOnce(&mut Body) -> Result<R>) -> Result<R> {
        let body = self.begin_edit()?;
        self.edit_body(body, action)
    }

    /// Same as [`Shared::edit`], but for an action that only reads: other threads wait for it, and do not find the request busy. The action
    /// must be short, and must not wait for another thread.
    pub(super) fn read<R>(&self, action: impl FnOnce(&Body) -> Result<R>) -> Result<R> {
        let mut guarded = self.lock_unread();
        guarded.state.edit(this_thread()).map_err(refused)?;
        guarded.is_read = true;
        let body = guarded.body.take().expect("an idle request has its body");
        drop(guarded);
        self.edit_body(body, |body| action(body))
    }

    fn edit_body<R>(&self, mut body: Box<Body>, action: impl FnOnce(&mut Body) -> Result<R>) -> Result<R> {
        let done = catch_unwind(AssertUnwindSafe(|| self.step(|| action(&mut body))));
        self.end_edit(body);
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Calls `action` with the body of the idle request, under the lock. `action` must not run or drop values of the user.
    pub(super) fn with_body<R>(&self, action: impl FnOnce(&mut Body) -> Result<R>) -> Result<R> {
        let mut guarded = self.lock_unread();
        guarded.check_idle()?;
        action(guarded.body.as_mut().expect("an idle request has its body"))
    }

    /// Begins a run: sets the inputs, and checks and leases all tensors. After an error the request is idle.
    fn begin(&self, ports: &[Port], inputs: &impl Inputs, calls_back: bool) -> Result<Box<Body>> {
        let mut body = self.begin_edit()?;
        let done = catch(format_args!("setting the inputs"), || {
            self.step(|| {
                let Body { device, io, .. } = &mut *body;
                io.set_inputs(&mut **device, ports, inputs)?;
                io.lease(&mut **device)
            })
        });
        match done.and_then(|done| done) {
            Ok(()) => {
                let mut guarded = self.guarded.lock().unwrap();
                let run = guarded.state.start();
                // The callback cannot be set or removed while the request runs, so this value stays valid.
                let calls_back = calls_back && guarded.callback.is_some();
                self.cancel.reset();
                let name = guarded.name.clone();
                drop(guarded);
                body.begin(self.id, run, calls_back, name.as_deref());
                Ok(body)
            }
            Err(error) => {
                // Release the leases that were taken before the error or panic.
                let released = catch(format_args!("the end of a lease"), || body.io.release());
                self.end_edit(body);
                released.and(Err(error))
            }
        }
    }

    /// Releases the inputs and resets the variables. If the request runs, the end of the run does this.
    pub(super) fn clear(&self) -> Result<()> {
        let mut guarded = self.guarded.lock().unwrap();
        if guarded.state.is_running() {
            guarded.clears_at_end = true;
            return Ok(());
        }
        drop(guarded);
        self.edit(Body::clear)
    }

    /// Runs all steps on the calling thread.
    pub(super) fn run_here(self: &Arc<Self>, mut body: Box<Body>) -> Result<()> {
        self.run_steps(&mut body);
        let outcome = body.outcome.clone();
        self.end(body);
        outcome
    }

    /// Runs all steps on the calling thread. The request stays running until the caller calls [`Shared::end`].
    pub(super) fn run_steps(&self, body: &mut Body) {
        self.step(|| {
            while !body.is_over() {
                body.run_next_step(&self.cancel, self.id);
                if body.is_pending() {
                    // If no other worker can replace this worker, `begin` returns an error. The error is ignored: this thread must wait in
                    // any case, and the engine completes its work without a worker.
                    let _waits = self.registry().begin(|| Target::Timed);
                    body.wait_for_completion();
                }
            }
            body.settle_completion(&self.cancel);
        });
    }

    /// Ends a run as canceled. The run was begun, but its steps were never started.
    pub(super) fn abandon(self: &Arc<Self>, mut body: Box<Body>) {
        body.abandon(&self.cancel, canceled());
        self.end(body);
    }

    /// Runs code of the user or the device. Meanwhile, `stepping` has the number of this thread.
    fn step<R>(&self, action: impl FnOnce() -> R) -> R {
        struct Restore<'a>(&'a AtomicU64, u64);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.store(self.1, Ordering::Release);
            }
        }
        let _also_after_a_panic = Restore(&self.stepping, self.stepping.swap(this_thread(), Ordering::AcqRel));
        let _inside = Inside::enter();
        action()
    }

    /// Fails in a forked process, because such a process does not have the threads of the executors.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.executors.are_in_this_process() {
            return Ok(());
        }
        let message = "this process is a fork of the process that created the request, and has none of its threads: \
                       create core, model and request in this process, or start the process with exec (in Python with `spawn`)";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    fn is_stepping_here(&self) -> bool {
        self.stepping.load(Ordering::Acquire) == this_thread()
    }

    /// Returns whether this thread is inside the request's own callback, step, filler or interrupt. If it is, a wait for the request never
    /// ends.
    pub(super) fn is_inside(&self, guarded: &Guarded) -> bool {
        guarded.state.is_called_on(this_thread()) || self.is_stepping_here() || self.cancel.is_telling_here()
    }

    /// Returns whether one of `threads` is inside the request's callback, step, filler or interrupt. If so, the request cannot complete
    /// `run` before that thread returns. If `run` is `None`, any run counts.
    pub(super) fn is_held_by(&self, threads: &[u64], run: Option<u64>) -> bool {
        let guarded = self.guarded.lock().unwrap();
        if run.is_some_and(|run| guarded.state.is_finished(run)) {
            return false;
        }
        let calling = guarded.state.calling_thread();
        drop(guarded);
        [calling, self.stepping.load(Ordering::Acquire), self.cancel.telling_thread()].iter().any(|thread| threads.contains(thread))
    }

    /// Queues the run on the executor of its next step. If the engine's work is pending, the run is queued when this work completes.
    pub(super) fn pass_on(self: &Arc<Self>, mut body: Box<Body>) {
        let executor = body.next_executor().clone();
        let task = body.next_task(self);
        let (run, completion) = (body.run, body.completion.clone());
        *self.in_flight.lock().unwrap() = Some(body);
        match completion {
            Some(completion) => completion.queue(task, executor),
            None => task.queue_on(&*executor),
        }
        // If a cancel came before the body was in `in_flight`, the canceling thread did not find the body. So end the canceled run now.
        if self.cancel.is_canceled() {
            self.end_canceled(run);
        }
    }

    /// Handles a panic of an executor that should have queued a task. The run ends with `error`, which describes the panic, unless a thread
    /// already executes the task.
    fn end_refused(self: &Arc<Self>, n_queued: u64, error: Error) {
        let refused = self.in_flight.lock().unwrap().take_if(|body| body.n_queued == n_queued);
        match refused {
            // All steps have ended, so the executor that panicked is the executor of callbacks. The callback is called on this thread.
            Some(mut body) if body.is_over() => {
                body.abandon(&self.cancel, error);
                self.end(body);
            }
            Some(mut body) => {
                body.abandon(&self.cancel, error);
                self.end_apart(body);
            }
            None => tracing::warn!("{error}, after the executor had taken the task"),
        }
    }

    /// Cancels the current run, if there is one.
    pub(super) fn cancel_latest(self: &Arc<Self>) {
        let guarded = self.guarded.lock().unwrap();
        if guarded.state.is_running() {
            let run = guarded.state.latest_run();
            self.cancel.mark();
            drop(guarded);
            self.cancel.tell_engine();
            self.end_canceled(run);
        }
    }

    /// Completes a cancel. Called while no lock is held. If the run waits in the queue of an executor and the engine has no pending work,
    /// ends the run. Otherwise, an executor that holds the task until an event (such as a full batch) must queue the task now. The run then
    /// ends at its next step.
    fn end_canceled(self: &Arc<Self>, run: u64) {
        let mut waits_at = None;
        let queued = {
            let mut in_flight = self.in_flight.lock().unwrap();
            let queued = in_flight.take_if(|body| body.run == run && !body.is_over() && !body.is_pending());
            if queued.is_none() {
                waits_at = in_flight.as_ref().map(|body| body.next_executor().clone());
            }
            queued
        };
        if let Some(executor) = waits_at {
            recall(&*executor);
        }
        if let Some(mut body) = queued {
            body.abandon(&self.cancel, canceled());
            self.end_apart(body);
        }
    }

    /// Ends a run on a thread that may be inside the user's call of `cancel`. If there are callbacks to call, uses another thread, because
    /// this thread may hold a lock of the user that a callback takes.
    fn end_apart(self: &Arc<Self>, mut body: Box<Body>) {
        let guarded = self.guarded.lock().unwrap();
        let calls = guarded.on_quiet.is_some() || (body.calls_back && guarded.callback.is_some());
        drop(guarded);
        if !calls {
            return self.end(body);
        }
        if !body.next_executor().is_inline() {
            return self.pass_on(body);
        }
        let task = body.next_task(self);
        *self.in_flight.lock().unwrap() = Some(body);
        let there = task.clone();
        if spawn("roiflow-cancel", move || there.run()).is_err() {
            task.run(); // The system could not start a thread, so this thread calls the callbacks.
        }
    }

    /// Ends the run: releases its leases, then completes the run in the order that the documentation of the crate defines.
    pub(super) fn end(self: &Arc<Self>, mut body: Box<Body>) {
        body.settle_completion(&self.cancel);
        let released = catch(format_args!("the end of a lease"), || body.io.release());
        let ended = catch(format_args!("the device's `end_run`"), || {
            body.leave_seat();
            body.device.end_run();
        });
        body.outcome = std::mem::replace(&mut body.outcome, Ok(())).and(released).and(ended);
        spans::end_run(&mut body);
        if body.outcome.is_ok() {
            body.io.commit_variables();
        }
        let here = this_thread();
        let mut guarded = self.guarded.lock().unwrap();
        if std::mem::take(&mut guarded.clears_at_end) {
            drop(guarded);
            if let Err(error) = catch(format_args!("clearing the request"), || body.clear()).and_then(|cleared| cleared) {
                tracing::warn!("{error}");
            }
            guarded = self.guarded.lock().unwrap();
        }
        guarded.latency = body.started.elapsed();
        let mut before = guarded.settle(body.run, body.outcome.clone());
        let calls_back = body.calls_back && guarded.callback.is_some();
        if guarded.state.is_stopped() {
            body.task = None; // Breaks a reference cycle: the request holds the body, which holds the task, which holds the request.
        }
        guarded.body = Some(body);
        match guarded.state.end_run(calls_back, here) {
            EndOfRun::LeftToEarlierCallback => {
                drop(guarded);
                drop(before);
                return;
            }
            EndOfRun::Finished => {}
            EndOfRun::CallBack => loop {
                let callback = guarded.callback.clone();
                let (run, outcome) = guarded.outcome.clone();
                drop(guarded);
                drop(before);
                let called = self.call_back(callback, run, outcome);
                guarded = self.guarded.lock().unwrap();
                before = match called {
                    Ok(()) => (None, Ok(())),
                    Err(error) => guarded.settle(run, Err(error)),
                };
                match guarded.state.end_callback() {
                    EndOfCallback::Finished => break,
                    EndOfCallback::CallBackAgain => {
                        // Notify before the next callback, and not after the loop: each callback may start a run, so the loop may never
                        // end.
                        self.finished.notify_all();
                        guarded = self.wake(guarded);
                        guarded.state.begin_callback(here);
                    }
                }
            },
        }
        self.finished.notify_all();
        guarded = self.wake(guarded);
        let latest_run = guarded.state.latest_run();
        // `on_quiet` is also called after a synchronous run, and while another thread edits the request. The owner of an `IdleRequest` may
        // have returned the request to the queue during the run. The queue then waits for this call before it counts the request as idle.
        let on_quiet = if guarded.state.is_finished(latest_run) { guarded.on_quiet.clone() } else { None };
        drop(guarded);
        drop(before);
        if let Some(on_quiet) = on_quiet {
            on_quiet(latest_run);
        }
    }

    /// Wakes the futures whose run is finished. Releases the lock while it calls a waker.
    fn wake<'a>(&'a self, mut guarded: MutexGuard<'a, Guarded>) -> MutexGuard<'a, Guarded> {
        while let Some(waker_idx) = guarded.wakers.iter().position(|wakes| guarded.state.is_finished(wakes.run)) {
            let Wakes { waker, .. } = guarded.wakers.swap_remove(waker_idx);
            drop(guarded);
            if let Err(error) = catch(format_args!("a waker"), || waker.wake()) {
                tracing::warn!("{error}");
            }
            guarded = self.guarded.lock().unwrap();
        }
        guarded
    }

    fn call_back(&self, callback: Option<Callback>, run: u64, outcome: Result<()>) -> Result<()> {
        // If no handle is left, the request is being dropped, so its callback is not called.
        let (Some(callback), Some(handle)) = (callback, self.handle.get().and_then(Weak::upgrade)) else { return Ok(()) };
        let request = InferRequest::of(handle);
        let _span =
            tracing::trace_span!(target: "roiflow::trace", parent: None, "callback", request = self.id, run, step = "callback").entered();
        let called = catch(format_args!("the callback"), || {
            let _inside = Inside::enter();
            callback(&request, outcome);
            drop(callback);
        });
        // `request` may be the last handle. Its drop then drops values of the user, whose code may panic.
        let dropped = catch(format_args!("the drop of the request"), || drop(request));
        called.and(dropped)
    }

    /// Waits for the latest run: until `deadline`, or without limit if `deadline` is `None`. Returns whether the run is complete.
    pub(super) fn wait_until(self: &Arc<Self>, deadline: Option<Deadline>) -> Result<bool> {
        let mut _waits = Waits::none(); // Declared first, so that it is dropped after the lock guard.
        let mut guarded = self.guarded.lock().unwrap();
        let run = guarded.state.latest_run();
        if run == 0 {
            return Ok(deadline.is_none());
        }
        if guarded.state.is_finished(run) {
            return guarded.outcome.1.clone().map(|()| true);
        }
        if self.is_inside(&guarded) {
            return Err(would_deadlock());
        }
        self.check_process()?;
        guarded.begin_to_wait(run);
        if waits::must_report() {
            drop(guarded);
            let target = || if deadline.is_some() { Target::Timed } else { Target::Run(self.clone(), run) };
            let begun = self.registry().begin(target);
            guarded = self.guarded.lock().unwrap();
            match begun {
                Ok(begun) => _waits = begun,
                Err(error) => {
                    let outcome = guarded.end_to_wait(run);
                    drop(guarded);
                    drop(outcome);
                    return Err(error);
                }
            }
        }
        while !guarded.state.is_finished(run) {
            guarded = match &deadline {
                None => self.finished.wait(guarded).unwrap(),
                Some(deadline) if deadline.is_over() => {
                    let outcome = guarded.end_to_wait(run);
                    drop(guarded);
                    drop(outcome);
                    return Ok(false);
                }
                Some(deadline) => deadline.wait(&self.finished, guarded),
            };
        }
        guarded.end_to_wait(run).map(|()| true)
    }

    /// Registers a future that waits for the latest run. The outcome of the run is kept until the future reads it, or until
    /// [`Shared::forget`].
    pub(super) fn expect_latest(&self) -> Expected {
        let mut guarded = self.guarded.lock().unwrap();
        let run = guarded.state.latest_run();
        if run > 0 {
            guarded.begin_to_wait(run);
        }
        guarded.n_futures += 1;
        Expected { run, future: guarded.n_futures }
    }

    /// Returns the outcome of the run that a future waits for. If there is no outcome yet, stores `waker` in place of the previous waker of
    /// this future.
    pub(super) fn poll(&self, Expected { run, future }: Expected, waker: &Waker) -> Option<Result<()>> {
        let waker = waker.clone(); // Cloned before the lock is taken, because cloning a waker runs user code.
        let mut guarded = self.guarded.lock().unwrap();
        let known_idx = guarded.is_expected_by(future);
        let is_inside = self.is_inside(&guarded);
        let is_finished = guarded.state.is_finished(run);
        let forked = if is_finished { None } else { self.check_process().err() };
        if is_finished || is_inside || forked.is_some() {
            let outcome = guarded.end_to_wait(run);
            let known = known_idx.map(|known_idx| guarded.wakers.swap_remove(known_idx));
            drop(guarded);
            drop((known, waker));
            return Some(if is_finished { outcome } else { Err(forked.unwrap_or_else(would_deadlock)) });
        }
        let before = match known_idx {
            Some(known_idx) => Some(std::mem::replace(&mut guarded.wakers[known_idx].waker, waker)),
            None => {
                guarded.wakers.push(Wakes { future, run, waker });
                None
            }
        };
        drop(guarded);
        drop(before);
        None
    }

    /// Unregisters a future. If `cancels` is true and the future's run is still in progress, cancels this run.
    pub(super) fn forget(self: &Arc<Self>, Expected { run, future }: Expected, cancels: bool) {
        let mut guarded = self.guarded.lock().unwrap();
        let cancels = cancels && guarded.state.is_running() && guarded.state.latest_run() == run;
        if cancels {
            self.cancel.mark();
        }
        let outcome = guarded.end_to_wait(run);
        let known = guarded.is_expected_by(future).map(|known_idx| guarded.wakers.swap_remove(known_idx));
        drop(guarded);
        drop((outcome, known));
        if cancels {
            self.cancel.tell_engine();
            self.end_canceled(run);
        }
    }

    /// Returns the registry of blocking waits by threads that are inside callbacks and steps.
    pub(super) fn registry(&self) -> &Registry {
        self.executors.registry()
    }

    pub(super) fn set_keeper(&self, keeper: Keeper) {
        self.guarded.lock().unwrap().keeper = keeper;
    }

    pub(super) fn set_on_quiet(&self, on_quiet: OnQuiet) {
        self.guarded.lock().unwrap().on_quiet = Some(on_quiet);
    }
}

/// The future, and the run that it waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    /// The number of the run; 0 if no run was ever started, so that the future is ready immediately.
    pub(super) run: u64,
    future: u64,
}

fn recall(executor: &dyn Executor) {
    if let Err(error) = catch(format_args!("the executor"), || executor.recall()) {
        tracing::warn!("{error}");
    }
}

fn canceled() -> Error {
    Error::new(ErrorKind::Canceled, "the run was canceled")
}

fn would_deadlock() -> Error {
    Error::new(
        ErrorKind::WouldDeadlock,
        "wait inside the request's own callback, step or interrupt would never return; start the next run in the callback and return",
    )
}

impl Shared {
    pub(super) fn set_urgent(&self, is_urgent: bool) {
        self.is_urgent.store(is_urgent, Ordering::Relaxed);
    }
}

impl Shared {
    /// Continues the run, unless its body was taken out, or was queued again under a newer number.
    fn run_queued(self: &Arc<Self>, n_queued: u64) {
        let Some(mut body) = self.in_flight.lock().unwrap().take_if(|body| body.n_queued == n_queued) else { return };
        if body.is_over() {
            return self.end(body);
        }
        match catch(format_args!("an executor or a device"), || self.run_neighbors(&mut body)) {
            Ok(true) => self.end(body),
            Ok(false) => self.pass_on(body),
            Err(error) => {
                body.abandon(&self.cancel, error);
                self.pass_on(body);
            }
        }
    }

    /// Runs the next step, and the steps after it as long as they have the same executor or are inline. Returns whether the run is over and
    /// must be ended on this thread.
    fn run_neighbors(&self, body: &mut Body) -> bool {
        let executor = body.next_executor();
        let executor = executor.goes_on_at().unwrap_or_else(|| executor.clone());
        let goes_on_here = |next: &Arc<dyn Executor>| next.is_inline() || Arc::ptr_eq(next, &executor);
        self.step(|| {
            loop {
                body.run_next_step(&self.cancel, self.id);
                if body.is_pending() || body.is_over() || !goes_on_here(body.next_executor()) {
                    break;
                }
            }
        });
        !body.is_pending() && body.is_over() && goes_on_here(body.next_executor())
    }
}

/// A task in the queue of an executor, which continues a run.
pub(super) struct RunTask {
    pub(super) shared: Arc<Shared>,
    /// The number of the body that the task continues, see [`Body::n_queued`].
    pub(super) n_queued: u64,
}

impl RunTask {
    /// Queues the task on `executor`. If the executor panics, the panic becomes the error of the run.
    pub(super) fn queue_on(self: Arc<Self>, executor: &dyn Executor) {
        // Keep only a weak reference to the request. The current thread may belong to the engine, and must not free the request there.
        let (shared, n_queued) = (Arc::downgrade(&self.shared), self.n_queued);
        if let Err(error) = catch(format_args!("the executor"), || executor.execute(self))
            && let Some(shared) = shared.upgrade()
        {
            shared.end_refused(n_queued, error);
        }
    }
}

impl Task for RunTask {
    fn run(self: Arc<Self>) {
        let (shared, n_queued) = (self.shared.clone(), self.n_queued);
        drop(self); // Dropped now, so that the next task of the run can use this allocation again.
        shared.run_queued(n_queued);
    }

    fn is_urgent(&self) -> bool {
        self.shared.is_urgent.load(Ordering::Relaxed)
    }

    fn group(&self) -> u64 {
        self.shared.group
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.id)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let shared = &self.shared;
        let mut guarded = shared.guarded.lock().unwrap();
        guarded.state.stop();
        shared.cancel.mark();
        let of_the_user = (guarded.callback.take(), guarded.on_quiet.take(), guarded.user_data.take());
        let is_inside = shared.is_inside(&guarded);
        drop(guarded);
        shared.cancel.tell_engine();
        let mut is_left = false;
        let mut _waits = Waits::none(); // Declared first, so that it is dropped after the lock guard.
        if !is_inside && shared.check_process().is_ok() {
            // A run that waits in the queue of an executor ends immediately, unless the engine has pending work. Its task finds no body
            // later and does nothing.
            let queued = shared.in_flight.lock().unwrap().take_if(|body| !body.is_pending());
            if let Some(mut body) = queued {
                body.abandon(&shared.cancel, canceled());
                shared.end(body);
            }
            if waits::must_report() && !shared.guarded.lock().unwrap().state.is_quiet() {
                // If no other worker can replace this one, `begin` fails, and the wait is not reported to the pool. This is safe, because
                // the wait has a time limit.
                _waits = shared.registry().begin(|| Target::Timed).unwrap_or_default();
            }
            let mut guarded = shared.guarded.lock().unwrap();
            let deadline = Deadline::after(self.model.config.drop_patience);
            while !guarded.state.is_quiet() {
                guarded = match &deadline {
                    None => shared.finished.wait(guarded).unwrap(),
                    Some(deadline) if deadline.is_over() => {
                        is_left = true;
                        break;
                    }
                    Some(deadline) => deadline.wait(&shared.finished, guarded),
                };
            }
        }
        // Free the body and the model now. If the task of the run freed them, this could happen much later on a worker, after the caller
        // has unloaded the engine's library or while the process exits.
        let body = shared.guarded.lock().unwrap().body.take();
        let waits_at = shared.in_flight.lock().unwrap().as_ref().map(|body| body.next_executor().clone());
        if let Some(executor) = waits_at {
            recall(&*executor);
        }
        if is_left {
            tracing::warn!(request = shared.id, "a run continues after its request was dropped; its memory is freed when the run ends");
        }
        drop((of_the_user, body));
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}
