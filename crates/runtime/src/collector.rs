//! Combines the runs of a model's requests into calls of its engine, and returns each run its batch item of the results.
//!
//! Knows seats (one per request), calls (requests of the batched model, a fixed number) and the executor on which runs continue. Knows no
//! ports and no shapes; `batching` does.
//!
//! # A seat
//!
//! A run that cannot be batched (with a batch of its own, or device memory) stays away. A synchronous run offers and never arrives: it
//! computes on the calling thread, and leaves.
//!
//! ```text
//!                                           lone and due, or recalled by a cancel
//!  Away ─offer─▶ Offered ─arrive─▶ Waiting ─────────────────────────────────────────────────────────────▶ Alone
//!   ▲                                 │ others too, and due                                                ▲ │
//!   │                                 ▼                      the call failed: run by run                   │ │
//!   │                              Aboard ─────────────────────────────────────────────────────────────────┘ │
//!   │                                 │ the call ended                                                       │
//!   │                                 ▼                                                                      │
//!   └───────── row copied ───────── Landed           Away ◀── the run ended, from wherever it was (`leave`) ─┘
//! ```
//!
//! | part | action |
//! |---|---|
//! | the run, on its executor | offers its inputs, arrives, copies its row, leaves |
//! | any thread that changes the state | afterwards makes every move that is due (`pump`): starts calls, continues single runs |
//! | the watcher, one thread per model | sleeps until the time limit of the oldest run, then does the same |
//! | the end of a call | lands the seats aboard and continues their runs |
//!
//! A move is due when an engine is free and the waiting runs are a full batch, or are all requests of the model, or the oldest has reached
//! its time limit. Engines are counted: a call takes one from its start until its last batch item is copied, a single run until its last
//! step. So runs gather while all engines compute, and no run waits for others while an engine is free for it. Runs that stay away, that
//! are synchronous, or that run alone after a failed call or a cancel are not counted: they wait at the executor as without batching.
//!
//! With a time limit of 0, a run that arrives is considered only after the runs in the executor's queue. On a CPU these wait for the same
//! threads on which the engine computes, and would never be combined.
//!
//! # Why nothing is lost, and which sizes are bounded
//!
//! - All of this state is under one lock, and `pump` follows each change that may make a move due. The watcher sleeps without a limit only
//!   while no run waits for a time limit, and sets `sleeps` under the lock; `pump` wakes it.
//! - Time limits are equal, so the oldest waiting run is the first to be due.
//! - The lock is held only to read and change the state. Calls are started, runs continued, and tensors of the user dropped without it.
//! - A seat waits once, so the queue is at most as long as the number of requests. A call has at most `size` seats. There are as many calls
//!   as engines, and one [`Look`]. A seat holds clones of its inputs only from `offer` to the start of its call.
//! - A run that leaves early, because its request is dropped, gives up its batch item. The call continues for the others, and is canceled
//!   when no run is left.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::executor::{Executor, Task};
use super::inputs::Inputs;
use super::{Error, ErrorKind, InferRequest, Input, NodeTime, PortKey, Result};
use crate::sync::{Condvar, Deadline, Mutex, spawn};
use crate::tensor::Tensor;

/// Combines runs into calls; see the module. Lives as long as the model or a seat.
pub(super) struct Collector {
    shared: Arc<Shared>,
}

struct Shared {
    size: usize,
    timeout: Duration,
    resume: Arc<dyn Executor>,
    /// Calls end on that executor, so one of their runs can continue without a hop.
    lands_there: bool,
    profiles: bool,
    state: Mutex<State>,
    /// Notifies the watcher.
    changed: Condvar,
}

struct State {
    seats: Vec<Seat>,
    n_seats_taken: usize,
    waiting: VecDeque<Waiting>,
    calls: Vec<Call>,
    idle_calls: Vec<usize>,
    n_engines_free: usize,
    /// The watcher waits without a time limit.
    sleeps: bool,
    /// A [`Look`] is queued.
    looks: bool,
    closed: bool,
    /// An empty list, to be reused.
    tasks: Vec<Arc<dyn Task>>,
}

#[derive(Default)]
struct Seat {
    is_taken: bool,
    place: Place,
    inputs: Vec<Tensor>,
    task: Option<Arc<dyn Task>>,
}

struct Waiting {
    seat_idx: usize,
    /// `None` for no time limit.
    until: Option<Deadline>,
}

/// The position of a run; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    #[default]
    Away,
    Offered,
    Waiting,
    Aboard {
        call_idx: usize,
        row_idx: usize,
    },
    Landed {
        call_idx: usize,
        row_idx: usize,
    },
    Alone {
        /// Whether it has one of the counted engines.
        has_engine: bool,
    },
}

/// A request of the batched model, and the seats aboard.
struct Call {
    request: InferRequest,
    is_on: bool,
    /// By batch item; `None` if the run has left.
    seats: Vec<Option<usize>>,
    n_aboard: usize,
    /// Empty lists for the inputs, one per port.
    lists: Vec<Vec<Tensor>>,
    /// The results of the latest call.
    results: Results,
}

#[derive(Default)]
struct Results {
    outputs: Vec<Tensor>,
    /// The times of the device's steps.
    times: Vec<Duration>,
    profile: Option<Arc<[NodeTime]>>,
}

/// A move that is due.
enum Move {
    Alone {
        seat_idx: usize,
        task: Arc<dyn Task>,
    },
    /// With the inputs by port and batch item.
    Start {
        call_idx: usize,
        request: InferRequest,
        slices: Vec<Vec<Tensor>>,
    },
}

/// The single run that may continue on this thread, because the thread belongs to its executor.
#[derive(Clone, Copy)]
enum Here {
    Nobody,
    Run(usize),
    AnyRun,
}

/// Makes moves that are due, after the tasks that are in the executor's queue already.
struct Look(Arc<Shared>);

impl Task for Look {
    fn run(self: Arc<Self>) {
        self.0.state.lock().unwrap().looks = false;
        self.0.pump(Here::AnyRun);
    }
}

/// A batch item of a call that ended.
pub(super) struct Row {
    pub(super) call_idx: usize,
    pub(super) row_idx: usize,
}

/// Parameters of a collector.
pub(super) struct Terms {
    pub(super) size: usize,
    pub(super) timeout: Duration,
    /// The executor on which runs continue.
    pub(super) resume: Arc<dyn Executor>,
    /// Calls end on that executor, too.
    pub(super) lands_there: bool,
    /// The times of nodes are wanted.
    pub(super) profiles: bool,
}

impl Collector {
    /// `calls` are as many requests of the batched model as the engine can run at once.
    pub(super) fn new(terms: Terms, calls: Vec<InferRequest>) -> Result<Self> {
        let Terms { size, timeout, resume, lands_there, profiles } = terms;
        let n_calls = calls.len();
        let new = |request: InferRequest| {
            let lists = request.model_inputs().iter().map(|_| Vec::with_capacity(size)).collect();
            Call { request, is_on: false, seats: Vec::with_capacity(size), n_aboard: 0, lists, results: Results::default() }
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
        let shared = Arc::new(Shared { size, timeout, resume, lands_there, profiles, state: Mutex::new(state), changed: Condvar::new() });
        for (call_idx, call) in shared.state.lock().unwrap().calls.iter().enumerate() {
            let weak = Arc::downgrade(&shared);
            call.request.set_on_quiet(Arc::new(move |_run| land(&weak, call_idx)));
        }
        if !timeout.is_zero() && Deadline::after(timeout).is_some() {
            let watched = shared.clone();
            spawn("roiflow-batches", move || watched.watch())
                .map_err(|error| Error::with_source(ErrorKind::Device, "cannot start the thread that watches over batches", error))?;
        }
        Ok(Self { shared })
    }

    /// A seat for a new request.
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

    /// The request was dropped after its run ended.
    pub(super) fn give_seat_back(&self, seat_idx: usize) {
        let mut state = self.shared.state.lock().unwrap();
        debug_assert_eq!(state.seats[seat_idx].place, Place::Away);
        state.n_seats_taken -= 1;
        state.seats[seat_idx].is_taken = false;
        drop(state);
        // The waiting runs may now be all requests of the model.
        self.shared.pump(Here::Nobody);
    }

    /// The executor on which the run of this seat waits.
    pub(super) fn waiting_room(&self, seat_idx: usize) -> Arc<dyn Executor> {
        Arc::new(WaitingRoom { shared: self.shared.clone(), seat_idx })
    }

    /// A run begins with these inputs, in the order of the ports.
    pub(super) fn offer(&self, seat_idx: usize, inputs: Vec<Tensor>) {
        let mut state = self.shared.state.lock().unwrap();
        let seat = &mut state.seats[seat_idx];
        debug_assert!(seat.place == Place::Away && seat.inputs.is_empty(), "the run before has left");
        (seat.inputs, seat.place) = (inputs, Place::Offered);
    }

    /// After the wait: the batch item of the run, returned by [`Collector::leave`]; `None` for a single run.
    pub(super) fn row(&self, seat_idx: usize) -> Option<Row> {
        match self.shared.state.lock().unwrap().seats[seat_idx].place {
            Place::Landed { call_idx, row_idx } => Some(Row { call_idx, row_idx }),
            _ => None,
        }
    }

    /// An output of a call that ended.
    pub(super) fn output(&self, row: &Row, output_idx: usize) -> Tensor {
        self.shared.state.lock().unwrap().calls[row.call_idx].results.outputs[output_idx].clone()
    }

    /// The times of the device's steps in a call that ended, and those of its nodes.
    pub(super) fn times(&self, row: &Row, times: &mut Vec<Duration>) -> Option<Arc<[NodeTime]>> {
        let state = self.shared.state.lock().unwrap();
        let results = &state.calls[row.call_idx].results;
        times.clone_from(&results.times);
        results.profile.clone()
    }

    /// The run no longer needs its engine, its batch item or its slot in the queue. Returns the list of its inputs, to be emptied; `None`
    /// if it had left before.
    pub(super) fn leave(&self, seat_idx: usize) -> Option<Vec<Tensor>> {
        let mut state = self.shared.state.lock().unwrap();
        let place = std::mem::take(&mut state.seats[seat_idx].place);
        let mut abandoned = None;
        match place {
            Place::Away => return None,
            Place::Offered | Place::Alone { has_engine: false } => {}
            Place::Alone { has_engine: true } => state.n_engines_free += 1,
            Place::Waiting => state.waiting.retain(|waiting| waiting.seat_idx != seat_idx),
            Place::Aboard { call_idx, row_idx } | Place::Landed { call_idx, row_idx } => {
                let call = &mut state.calls[call_idx];
                call.seats[row_idx] = None;
                call.n_aboard -= 1;
                if call.is_on && call.n_aboard == 0 {
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
            // If other runs use the call by now, they run one by one.
            call.cancel();
        }
        self.shared.pump(Here::Nobody);
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
        drop(calls); // Waits for running calls.
    }
}

impl State {
    /// Makes the next move if one is due, except for the part that must be done without the lock.
    fn next_move(&mut self, size: usize) -> Option<Move> {
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
            seat.place = Place::Alone { has_engine: true };
            let task = seat.task.take().expect("a run that waits has its task here");
            return Some(Move::Alone { seat_idx, task });
        }
        let call_idx = self.idle_calls.pop().expect("each call has an engine");
        let call = &mut self.calls[call_idx];
        call.is_on = true;
        call.seats.clear();
        let mut slices = std::mem::take(&mut call.lists);
        // The previous start may not have returned them yet.
        slices.resize_with(call.request.model_inputs().len(), Vec::new);
        for (row_idx, Waiting { seat_idx, .. }) in self.waiting.drain(..n_waiting.min(size)).enumerate() {
            let seat = &mut self.seats[seat_idx];
            seat.place = Place::Aboard { call_idx, row_idx };
            call.seats.push(Some(seat_idx));
            slices.iter_mut().zip(seat.inputs.drain(..)).for_each(|(slices, input)| slices.push(input));
        }
        call.n_aboard = call.seats.len();
        Some(Move::Start { call_idx, request: call.request.clone(), slices })
    }

    /// Frees a call that is over, if no run needs its batch item any more.
    fn settle(&mut self, call_idx: usize) {
        if !self.calls[call_idx].is_on && self.calls[call_idx].n_aboard == 0 {
            self.idle_calls.push(call_idx);
            self.n_engines_free += 1;
        }
    }
}

impl Shared {
    /// Makes all moves that are due.
    fn pump(&self, here: Here) {
        let mut own = None;
        loop {
            let mut state = self.state.lock().unwrap();
            match state.next_move(self.size) {
                Some(Move::Start { call_idx, request, slices }) => {
                    drop(state);
                    self.start(call_idx, &request, slices);
                }
                Some(Move::Alone { seat_idx, task }) => {
                    drop(state);
                    match here {
                        Here::Run(own_idx) if own_idx == seat_idx => own = Some(task),
                        Here::AnyRun if own.is_none() => own = Some(task),
                        _ => self.resume.execute(task),
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

    fn start(&self, call_idx: usize, request: &InferRequest, mut slices: Vec<Vec<Tensor>>) {
        let started = request.start_async(Gathered(&slices));
        // The call has its own clones.
        slices.iter_mut().for_each(Vec::clear);
        if let Some(call) = self.state.lock().unwrap().calls.get_mut(call_idx) {
            std::mem::swap(&mut call.lists, &mut slices);
        }
        if let Err(error) = started {
            self.landed(call_idx, Err(error));
        }
    }

    /// The call is over: the runs aboard continue, with their batch items or alone.
    fn landed(&self, call_idx: usize, ended: Result<Results>) {
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
        for (row_idx, aboard) in call.seats.iter_mut().enumerate() {
            let Some(seat_idx) = *aboard else { continue };
            let seat = &mut seats[seat_idx];
            match failed {
                None => seat.place = Place::Landed { call_idx, row_idx },
                Some(_) => {
                    seat.place = Place::Alone { has_engine: false };
                    *aboard = None;
                    call.n_aboard -= 1;
                }
            }
            tasks.extend(seat.task.take());
        }
        state.settle(call_idx);
        drop(state);
        if let Some(error) = failed
            && !tasks.is_empty()
        {
            tracing::debug!("a batch of {n_rows} runs failed ({error}); each is run by itself");
        }
        let mut own = None;
        for task in tasks.drain(..) {
            match own {
                None if self.lands_there => own = Some(task),
                _ => self.resume.execute(task),
            }
        }
        self.state.lock().unwrap().tasks = tasks;
        self.pump(Here::Nobody);
        if let Some(task) = own {
            task.run();
        }
    }

    /// A run arrives and waits for others.
    fn arrive(self: &Arc<Self>, seat_idx: usize, task: Arc<dyn Task>) {
        let until = Deadline::after(self.timeout);
        let mut state = self.state.lock().unwrap();
        let seat = &mut state.seats[seat_idx];
        if seat.place != Place::Offered {
            drop(state);
            return task.run();
        }
        seat.place = Place::Waiting;
        seat.task = Some(task);
        state.waiting.push_back(Waiting { seat_idx, until });
        if !self.timeout.is_zero() || self.resume.is_inline() {
            drop(state);
            return self.pump(Here::Run(seat_idx));
        }
        // Others may be in the executor's queue, about to arrive: checked again after them.
        let looks = std::mem::replace(&mut state.looks, true);
        drop(state);
        if !looks {
            self.resume.execute(Arc::new(Look(self.clone())));
        }
    }

    /// Continues a waiting run alone.
    fn recall(&self, seat_idx: usize) {
        let mut state = self.state.lock().unwrap();
        let seat = &mut state.seats[seat_idx];
        if seat.place != Place::Waiting {
            return;
        }
        seat.place = Place::Alone { has_engine: false };
        let task = seat.task.take();
        state.waiting.retain(|waiting| waiting.seat_idx != seat_idx);
        drop(state);
        if let Some(task) = task {
            self.resume.execute(task);
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
                    self.pump(Here::Nobody);
                    state = self.state.lock().unwrap();
                }
                Some(until) => state = until.wait(&self.changed, state),
            }
        }
    }
}

/// The end of a call, after its request became idle.
fn land(shared: &Weak<Shared>, call_idx: usize) {
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
        // Its first step is the gather.
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
    shared.landed(call_idx, forgotten.and(results));
}

/// Checks that each output has a batch item for each run.
fn check_rows(outputs: &[Tensor], n_rows: usize) -> Result<()> {
    match outputs.iter().enumerate().find(|(_, output)| output.shape().first() != Some(&n_rows)) {
        None => Ok(()),
        Some((output_idx, output)) => {
            let message = format!("output {output_idx}: expected {n_rows} rows for as many runs, got {}", output.shape());
            Err(Error::new(ErrorKind::Device, message))
        }
    }
}

/// The tensors of all inputs, by port and batch item.
struct Gathered<'a>(&'a [Vec<Tensor>]);

impl Inputs for Gathered<'_> {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        self.0.iter().enumerate().try_for_each(|(input_idx, slices)| see(PortKey::Index(input_idx), &Input::Batch(slices)))
    }
}

/// The executor on which the run of one seat waits.
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
