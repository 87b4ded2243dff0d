//! Combines runs of the same model into batched calls of the engine, and gives each run its batch item of the outputs.
//!
//! The collector handles seats (one for each request), calls (a fixed number of requests of the batched model) and the executor on which
//! runs continue. It knows nothing about ports and shapes; the module `batching` handles these.
//!
//! # The states of a seat
//!
//! Each request has a seat, which is its entry in the collector. The diagram shows the state of a seat during a run. The seat of a run that
//! cannot be batched stays `Idle`: the inputs of this run have a batch size above 1, or are in device memory. The seat of a synchronous run
//! becomes `Offered` but never `Waiting`: the run computes on the calling thread and leaves.
//!
//! ```text
//!                                           due and no other run waits, or recalled by a cancel
//!  Idle ─offer─▶ Offered ─arrive─▶ Waiting ────────────────────────────────────────────────────────────▶ Single
//!   ▲                                 │ due, and other runs wait                                           ▲ │
//!   │                                 ▼                      the call failed                               │ │
//!   │                              InCall ─────────────────────────────────────────────────────────────────┘ │
//!   │                                 │ the call succeeded                                                   │
//!   │                                 ▼                                                                      │
//!   └────── batch item copied ───── HasResult        Idle ◀── the run ended, in any state (`leave`) ─────────┘
//! ```
//!
//! | code | action |
//! |---|---|
//! | the run, on its executor | offers its inputs, waits, copies its batch item, leaves |
//! | each thread that has changed the state | performs all actions that are due (function `pump`): starts calls, continues single runs |
//! | the watcher, one thread per model | sleeps until the time limit of the oldest waiting run, then performs all actions that are due |
//! | the end of a call | changes the state of the seats in the call, and continues their runs |
//!
//! An action is due when an engine is free and one of these holds: the waiting runs fill a batch, all requests of the model wait, or the
//! oldest waiting run has reached its time limit. The collector counts free engines, one for each call that can run concurrently. A call
//! occupies an engine from its start until its last batch item is copied. A single run occupies an engine until its last device step.
//! Therefore runs are collected while all engines compute. While an engine is free, a run waits at most until its time limit.
//!
//! Some runs occupy no counted engine: runs whose seat stays `Idle`, synchronous runs, and runs that continue alone after a failed call or
//! a cancel. These runs wait in the queue of the device's executor, as they do without batching.
//!
//! With a time limit of 0, the collector looks for due actions only after the tasks that are already in the queue of the executor. On a
//! CPU, these tasks need the threads on which the engine computes. Without this delay, the first run would start to compute immediately.
//! The runs that these tasks are about to offer would then always be too late to be batched with the first run.
//!
//! # Why no run is lost, and which sizes are bounded
//!
//! - One lock protects the state of all seats, calls and engines. `pump` is called after each change that may make an action due. The
//!   watcher sleeps without a limit only while no waiting run has a time limit that it must watch. It sets `sleeps` under the lock before
//!   it sleeps, so `pump` knows that it must wake the watcher.
//! - All time limits are equal, so the run that has waited longest reaches its limit first.
//! - The lock is held only to read and change the state. The collector starts calls, continues runs, and drops tensors of the user while it
//!   does not hold the lock.
//! - A seat waits at most once at a time, so the queue of waiting runs is at most as long as the number of requests. A call has at most
//!   `size` seats. There are as many calls as engines, and at most one queued [`Look`]. A seat holds clones of its inputs only from `offer`
//!   to the start of its call.
//! - The thread that starts a call copies its inputs, and holds leases on them only until then. A run that is canceled meanwhile waits for
//!   this copy, so its tensors are free when it ends. The lock is not held during the copy, and the copy waits for nothing.
//! - A run that ends early, because its request is dropped, releases its batch item. The call continues for its other runs, and is canceled
//!   when none of its runs is left.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::error::catch;
use super::executor::{Executor, Task};
use super::inputs::Inputs;
use super::{Error, ErrorKind, InferRequest, Input, NodeTime, PortKey, Result};
use crate::sync::{Condvar, Deadline, Mutex, spawn};
use crate::tensor::Tensor;

/// Combines runs into batched calls, see the module documentation. Dropped when the model and all its seats are dropped.
pub(super) struct Collector {
    shared: Arc<Shared>,
}

struct Shared {
    size: usize,
    timeout: Duration,
    resume: Arc<dyn Executor>,
    /// Whether a call ends on a thread of `resume`. One run of the call can then continue on that thread.
    ends_on_resume: bool,
    profiles: bool,
    state: Mutex<State>,
    /// Notifies the watcher that a run waits, or that the collector is closed.
    changed: Condvar,
    /// Notifies threads whose run leaves that the inputs of a call are copied.
    copied: Condvar,
}

struct State {
    seats: Vec<Seat>,
    n_seats_taken: usize,
    waiting: VecDeque<Waiting>,
    calls: Vec<Call>,
    idle_calls: Vec<usize>,
    n_engines_free: usize,
    /// Whether the watcher sleeps without a time limit, so that it must be notified when a run waits.
    sleeps: bool,
    /// Whether a [`Look`] is queued.
    looks: bool,
    closed: bool,
    /// An empty list of tasks, kept so that the end of a call allocates nothing.
    tasks: Vec<Arc<dyn Task>>,
}

#[derive(Default)]
struct Seat {
    is_taken: bool,
    state: SeatState,
    inputs: Vec<Tensor>,
    task: Option<Arc<dyn Task>>,
}

struct Waiting {
    seat_idx: usize,
    /// When the time limit of the run ends; `None` if it never ends.
    until: Option<Deadline>,
}

/// The state of a seat during a run; see the diagram in the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum SeatState {
    #[default]
    Idle,
    Offered,
    Waiting,
    InCall {
        call_idx: usize,
        row_idx: usize,
    },
    HasResult {
        call_idx: usize,
        row_idx: usize,
    },
    Single {
        /// Whether the run occupies an engine that the collector counts.
        has_engine: bool,
    },
}

/// A request of the batched model, and the seats of the runs in its current call.
struct Call {
    request: InferRequest,
    is_on: bool,
    /// Whether a thread copies the inputs of the runs into the batch. Meanwhile their tensors are leased.
    is_copied: bool,
    /// The seat of each batch item; `None` if the run has left.
    seats: Vec<Option<usize>>,
    n_in_call: usize,
    /// Empty lists for the inputs, one for each port, kept so that the start of a call allocates nothing.
    lists: Vec<Vec<Tensor>>,
    /// The results of the latest call.
    results: Results,
}

#[derive(Default)]
struct Results {
    outputs: Vec<Tensor>,
    /// The durations of the device's steps in the call.
    times: Vec<Duration>,
    profile: Option<Arc<[NodeTime]>>,
}

/// The part of a due action that must be done while the lock is not held. The action has already changed the state, under the lock.
enum Action {
    RunAlone {
        seat_idx: usize,
        task: Arc<dyn Task>,
    },
    /// Start a call. `slices` has a list for each port, with one input for each batch item.
    StartCall {
        call_idx: usize,
        request: InferRequest,
        slices: Vec<Vec<Tensor>>,
    },
}

/// Which single run `pump` may continue on the current thread instead of queuing it. Except for `NoRun`, the thread must belong to the
/// executor `resume`.
#[derive(Clone, Copy)]
enum Here {
    NoRun,
    Run(usize),
    AnyRun,
}

/// A task that performs all actions that are due. It is queued behind the tasks that are already in the queue of the executor.
struct Look(Arc<Shared>);

impl Task for Look {
    fn run(self: Arc<Self>) {
        self.0.state.lock().unwrap().looks = false;
        self.0.pump(Here::AnyRun);
    }
}

/// A batch item of a completed call.
pub(super) struct Row {
    pub(super) call_idx: usize,
    pub(super) row_idx: usize,
}

/// The parameters of a collector.
pub(super) struct Terms {
    pub(super) size: usize,
    pub(super) timeout: Duration,
    /// The executor on which runs continue after they have waited.
    pub(super) resume: Arc<dyn Executor>,
    /// Whether calls end on a thread of `resume`.
    pub(super) ends_on_resume: bool,
    /// Whether to collect the execution times of the model's nodes.
    pub(super) profiles: bool,
}

impl Collector {
    /// Creates a collector. `calls` are requests of the batched model, as many as the engine can run concurrently.
    pub(super) fn new(terms: Terms, calls: Vec<InferRequest>) -> Result<Self> {
        let Terms { size, timeout, resume, ends_on_resume, profiles } = terms;
        let n_calls = calls.len();
        let new = |request: InferRequest| {
            let lists = request.model_inputs().iter().map(|_| Vec::with_capacity(size)).collect();
            Call {
                request,
                is_on: false,
                is_copied: false,
                seats: Vec::with_capacity(size),
                n_in_call: 0,
                lists,
                results: Results::default(),
            }
        };
        let state = State {
            seats: Vec::new(),
            n_seats_taken: 0,
            waiting: VecDeque::new(),
            calls: calls.into_iter().map(new).collect(),
            idle_calls: (0..n_calls).rev().collect(),
            n_engines_free: n_calls,
            sleeps: false,
            looks: false,
            closed: false,
            tasks: Vec::with_capacity(size),
        };
        let shared = Arc::new(Shared {
            size,
            timeout,
            resume,
            ends_on_resume,
            profiles,
            state: Mutex::new(state),
            changed: Condvar::new(),
            copied: Condvar::new(),
        });
        for (call_idx, call) in shared.state.lock().unwrap().calls.iter().enumerate() {
            let weak = Arc::downgrade(&shared);
            call.request.set_on_quiet(Arc::new(move |_run| collect_results(&weak, call_idx)));
        }
        if !timeout.is_zero() && Deadline::after(timeout).is_some() {
            let watched = shared.clone();
            spawn("roiflow-batches", move || watched.watch())
                .map_err(|error| Error::with_source(ErrorKind::Device, "cannot start the thread for batch timeouts", error))?;
        }
        Ok(Self { shared })
    }

    /// Reserves a seat for a new request and returns its index.
    pub(super) fn take_seat(&self) -> usize {
        let mut state = self.shared.state.lock().unwrap();
        state.n_seats_taken += 1;
        let seat_idx = state.seats.iter().position(|seat| !seat.is_taken).unwrap_or_else(|| {
            state.seats.push(Seat::default());
            state.seats.len() - 1
        });
        state.seats[seat_idx].is_taken = true;
        seat_idx
    }

    /// Frees the seat of a request that is dropped. The request has no run.
    pub(super) fn give_seat_back(&self, seat_idx: usize) {
        let mut state = self.shared.state.lock().unwrap();
        debug_assert_eq!(state.seats[seat_idx].state, SeatState::Idle);
        state.n_seats_taken -= 1;
        state.seats[seat_idx].is_taken = false;
        drop(state);
        // There is one request fewer, so the runs that wait may now be the runs of all requests, which makes a call due.
        self.shared.pump(Here::NoRun);
    }

    /// Returns the executor on which the run of this seat waits for other runs.
    pub(super) fn waiting_room(&self, seat_idx: usize) -> Arc<dyn Executor> {
        Arc::new(WaitingRoom { shared: self.shared.clone(), seat_idx })
    }

    /// Registers the inputs of a new run, in the order of the ports.
    pub(super) fn offer(&self, seat_idx: usize, inputs: Vec<Tensor>) {
        let mut state = self.shared.state.lock().unwrap();
        let seat = &mut state.seats[seat_idx];
        debug_assert!(seat.state == SeatState::Idle && seat.inputs.is_empty(), "the previous run must have left its seat");
        (seat.inputs, seat.state) = (inputs, SeatState::Offered);
    }

    /// Returns the batch item of the run in a completed call; `None` for a single run. [`Collector::leave`] releases the item.
    pub(super) fn row(&self, seat_idx: usize) -> Option<Row> {
        match self.shared.state.lock().unwrap().seats[seat_idx].state {
            SeatState::HasResult { call_idx, row_idx } => Some(Row { call_idx, row_idx }),
            _ => None,
        }
    }

    /// Returns an output of a completed call, with the batch items of all its runs.
    pub(super) fn output(&self, row: &Row, output_idx: usize) -> Tensor {
        self.shared.state.lock().unwrap().calls[row.call_idx].results.outputs[output_idx].clone()
    }

    /// Copies the durations of the device's steps in a completed call into `times`. Returns the execution times of its nodes.
    pub(super) fn times(&self, row: &Row, times: &mut Vec<Duration>) -> Option<Arc<[NodeTime]>> {
        let state = self.shared.state.lock().unwrap();
        let results = &state.calls[row.call_idx].results;
        times.clone_from(&results.times);
        results.profile.clone()
    }

    /// Must be called when the run no longer needs its engine, its batch item or its entry in the queue. Returns the list of its inputs,
    /// which the caller must empty. Returns `None` if the run had left before, or was never offered.
    pub(super) fn leave(&self, seat_idx: usize) -> Option<Vec<Tensor>> {
        let mut state = self.shared.state.lock().unwrap();
        // A canceled run ends here before its call. Its tensors must be free then.
        while let SeatState::InCall { call_idx, .. } = state.seats[seat_idx].state
            && state.calls.get(call_idx).is_some_and(|call| call.is_copied)
        {
            state = self.shared.copied.wait(state).unwrap();
        }
        let seat_state = std::mem::take(&mut state.seats[seat_idx].state);
        let mut abandoned = None;
        match seat_state {
            SeatState::Idle => return None,
            SeatState::Offered | SeatState::Single { has_engine: false } => {}
            SeatState::Single { has_engine: true } => state.n_engines_free += 1,
            SeatState::Waiting => state.waiting.retain(|waiting| waiting.seat_idx != seat_idx),
            SeatState::InCall { call_idx, row_idx } | SeatState::HasResult { call_idx, row_idx } => {
                let call = &mut state.calls[call_idx];
                call.seats[row_idx] = None;
                call.n_in_call -= 1;
                if call.is_on && call.n_in_call == 0 {
                    abandoned = Some(call.request.clone());
                }
                state.settle(call_idx);
            }
        }
        let seat = &mut state.seats[seat_idx];
        let (inputs, task) = (std::mem::take(&mut seat.inputs), seat.task.take());
        drop(state);
        drop(task);
        if let Some(call) = abandoned {
            // Meanwhile the request of the call may have been started for other runs. The cancel then ends their call, and these runs
            // continue alone.
            call.cancel();
        }
        self.shared.pump(Here::NoRun);
        Some(inputs)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock().unwrap();
        state.closed = true;
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        self.shared.changed.notify_all();
        drop(calls); // Blocks until running calls have ended.
    }
}

impl State {
    /// If an action is due, changes the state for it, and returns the part of the action that must be done while the lock is not held.
    fn next_action(&mut self, size: usize) -> Option<Action> {
        let oldest = self.waiting.front()?;
        let n_waiting = self.waiting.len();
        let is_due = n_waiting >= size.min(self.n_seats_taken) || oldest.until.as_ref().is_some_and(Deadline::is_over);
        if !is_due || self.n_engines_free == 0 || self.closed {
            return None;
        }
        self.n_engines_free -= 1;
        if n_waiting == 1 {
            let Waiting { seat_idx, .. } = self.waiting.pop_front()?;
            let seat = &mut self.seats[seat_idx];
            seat.state = SeatState::Single { has_engine: true };
            let task = seat.task.take().expect("a run that waits has its task here");
            return Some(Action::RunAlone { seat_idx, task });
        }
        let call_idx = self.idle_calls.pop().expect("an engine is free, so a call is idle");
        let call = &mut self.calls[call_idx];
        call.is_on = true;
        call.is_copied = true;
        call.seats.clear();
        let mut slices = std::mem::take(&mut call.lists);
        // The lists are missing if the thread that started the previous call of this request has not returned them yet.
        slices.resize_with(call.request.model_inputs().len(), Vec::new);
        for (row_idx, Waiting { seat_idx, .. }) in self.waiting.drain(..n_waiting.min(size)).enumerate() {
            let seat = &mut self.seats[seat_idx];
            seat.state = SeatState::InCall { call_idx, row_idx };
            call.seats.push(Some(seat_idx));
            slices.iter_mut().zip(seat.inputs.drain(..)).for_each(|(slices, input)| slices.push(input));
        }
        call.n_in_call = call.seats.len();
        Some(Action::StartCall { call_idx, request: call.request.clone(), slices })
    }

    /// Frees a call that has ended, if all its runs have copied their batch items.
    fn settle(&mut self, call_idx: usize) {
        if !self.calls[call_idx].is_on && self.calls[call_idx].n_in_call == 0 {
            self.idle_calls.push(call_idx);
            self.n_engines_free += 1;
        }
    }
}

impl Shared {
    /// Performs all actions that are due.
    fn pump(&self, here: Here) {
        let mut own = None;
        loop {
            let mut state = self.state.lock().unwrap();
            match state.next_action(self.size) {
                Some(Action::StartCall { call_idx, request, slices }) => {
                    drop(state);
                    self.start(call_idx, &request, slices);
                }
                Some(Action::RunAlone { seat_idx, task }) => {
                    drop(state);
                    match here {
                        Here::Run(own_idx) if own_idx == seat_idx => own = Some(task),
                        Here::AnyRun if own.is_none() => own = Some(task),
                        _ => self.go_on(task),
                    }
                }
                None => {
                    let waits = state.n_engines_free > 0 && state.waiting.front().is_some_and(|oldest| oldest.until.is_some());
                    if state.sleeps && waits {
                        state.sleeps = false;
                        drop(state);
                        self.changed.notify_all();
                    }
                    break;
                }
            }
        }
        if let Some(task) = own {
            task.run();
        }
    }

    /// Queues a task. If the executor panics, runs the task here, so that no run of the batch waits for ever.
    fn go_on(&self, task: Arc<dyn Task>) {
        if let Err(error) = catch(format_args!("the executor"), || self.resume.execute(task.clone())) {
            tracing::warn!("{error}; a run of a batch goes on at another thread");
            task.run();
        }
    }

    fn start(&self, call_idx: usize, request: &InferRequest, mut slices: Vec<Vec<Tensor>>) {
        let started = request.start_copied(Gathered(&slices), || {
            if let Some(call) = self.state.lock().unwrap().calls.get_mut(call_idx) {
                call.is_copied = false;
            }
            self.copied.notify_all();
        });
        // The started call holds clones of the tensors, so the lists can be emptied and kept.
        slices.iter_mut().for_each(Vec::clear);
        if let Some(call) = self.state.lock().unwrap().calls.get_mut(call_idx) {
            std::mem::swap(&mut call.lists, &mut slices);
        }
        if let Err(error) = started {
            self.end_call(call_idx, Err(error));
        }
    }

    /// Ends a call. If it succeeded, its runs continue with their batch items. If it failed, each run continues alone.
    fn end_call(&self, call_idx: usize, ended: Result<Results>) {
        let mut state = self.state.lock().unwrap();
        let mut tasks = std::mem::take(&mut state.tasks);
        let State { calls, seats, .. } = &mut *state;
        let Some(call) = calls.get_mut(call_idx) else { return };
        call.is_on = false;
        let n_rows = call.seats.len();
        let failed = match ended {
            Ok(results) => {
                call.results = results;
                None
            }
            Err(error) => Some(error),
        };
        for (row_idx, entry) in call.seats.iter_mut().enumerate() {
            let Some(seat_idx) = *entry else { continue };
            let seat = &mut seats[seat_idx];
            match failed {
                None => seat.state = SeatState::HasResult { call_idx, row_idx },
                Some(_) => {
                    seat.state = SeatState::Single { has_engine: false };
                    *entry = None;
                    call.n_in_call -= 1;
                }
            }
            tasks.extend(seat.task.take());
        }
        state.settle(call_idx);
        drop(state);
        if let Some(error) = failed
            && !tasks.is_empty()
        {
            tracing::debug!("a call for {n_rows} runs failed ({error}); each run is repeated alone");
        }
        let mut own = None;
        for task in tasks.drain(..) {
            match own {
                None if self.ends_on_resume => own = Some(task),
                _ => self.go_on(task),
            }
        }
        self.state.lock().unwrap().tasks = tasks;
        self.pump(Here::NoRun);
        if let Some(task) = own {
            task.run();
        }
    }

    /// Called when a run begins to wait for other runs. `task` continues the run.
    fn arrive(self: &Arc<Self>, seat_idx: usize, task: Arc<dyn Task>) {
        let until = Deadline::after(self.timeout);
        let mut state = self.state.lock().unwrap();
        let seat = &mut state.seats[seat_idx];
        if seat.state != SeatState::Offered {
            drop(state);
            return task.run();
        }
        seat.state = SeatState::Waiting;
        seat.task = Some(task);
        state.waiting.push_back(Waiting { seat_idx, until });
        if !self.timeout.is_zero() || self.resume.is_inline() {
            drop(state);
            return self.pump(Here::Run(seat_idx));
        }
        // Tasks in the queue of the executor may be about to offer more runs. So look for due actions after these tasks.
        let looks = std::mem::replace(&mut state.looks, true);
        drop(state);
        if !looks {
            self.go_on(Arc::new(Look(self.clone())));
        }
    }

    /// Lets a waiting run continue alone, after a cancel.
    fn recall(&self, seat_idx: usize) {
        let mut state = self.state.lock().unwrap();
        let seat = &mut state.seats[seat_idx];
        if seat.state != SeatState::Waiting {
            return;
        }
        seat.state = SeatState::Single { has_engine: false };
        let task = seat.task.take();
        state.waiting.retain(|waiting| waiting.seat_idx != seat_idx);
        drop(state);
        if let Some(task) = task {
            self.go_on(task);
        }
    }

    fn watch(&self) {
        let mut state = self.state.lock().unwrap();
        while !state.closed {
            let oldest = if state.n_engines_free > 0 { state.waiting.front() } else { None };
            match oldest.and_then(|oldest| oldest.until.clone()) {
                None => {
                    state.sleeps = true;
                    state = self.changed.wait(state).unwrap();
                    state.sleeps = false;
                }
                Some(until) if until.is_over() => {
                    drop(state);
                    self.pump(Here::NoRun);
                    state = self.state.lock().unwrap();
                }
                Some(until) => state = until.wait(&self.changed, state),
            }
        }
    }
}

/// Takes the results of a call out of its request. Called when this request has become idle.
fn collect_results(shared: &Weak<Shared>, call_idx: usize) {
    let Some(shared) = shared.upgrade() else { return };
    let (request, before, n_rows) = {
        let mut state = shared.state.lock().unwrap();
        let Some(call) = state.calls.get_mut(call_idx) else { return };
        (call.request.clone(), std::mem::take(&mut call.results), call.seats.len())
    };
    let Results { mut outputs, mut times, .. } = before;
    outputs.clear();
    times.clear();
    let collect = || -> Result<Results> {
        request.wait()?;
        for output_idx in 0..request.model_outputs().len() {
            outputs.push(request.output_tensor(output_idx)?);
        }
        check_rows(&outputs, n_rows)?;
        // Skip the first step, `fill`, because only the steps of the device count.
        let mut is_first = true;
        request.visit_step_times(|_name, time| {
            if !std::mem::replace(&mut is_first, false) {
                times.push(time);
            }
        })?;
        let profile = if shared.profiles { request.profiling_info().ok().map(Arc::from) } else { None };
        Ok(Results { outputs, times, profile })
    };
    let results = collect();
    let forgotten = request.forget_slices();
    shared.end_call(call_idx, forgotten.and(results));
}

/// Checks that each output has one batch item per run.
fn check_rows(outputs: &[Tensor], n_rows: usize) -> Result<()> {
    match outputs.iter().enumerate().find(|(_, output)| output.shape().first() != Some(&n_rows)) {
        None => Ok(()),
        Some((output_idx, output)) => {
            let message = format!("output {output_idx}: expected {n_rows} batch items, one per run, got the shape {}", output.shape());
            Err(Error::new(ErrorKind::Device, message))
        }
    }
}

/// The inputs of a call as [`Inputs`]: a list for each port, with one tensor for each batch item.
struct Gathered<'a>(&'a [Vec<Tensor>]);

impl Inputs for Gathered<'_> {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        self.0.iter().enumerate().try_for_each(|(input_idx, slices)| see(PortKey::Index(input_idx), &Input::Batch(slices)))
    }
}

/// The executor on which the run of one seat waits for other runs. It queues nothing: `execute` hands the task to the collector.
struct WaitingRoom {
    shared: Arc<Shared>,
    seat_idx: usize,
}

impl Executor for WaitingRoom {
    fn execute(&self, task: Arc<dyn Task>) {
        self.shared.arrive(self.seat_idx, task);
    }

    fn goes_on_at(&self) -> Option<Arc<dyn Executor>> {
        Some(self.shared.resume.clone())
    }

    fn recall(&self) {
        self.shared.recall(self.seat_idx);
    }
}

impl std::fmt::Debug for WaitingRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WaitingRoom(seat {})", self.seat_idx)
    }
}
