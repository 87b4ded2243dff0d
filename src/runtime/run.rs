//! A request from start to end: who may touch it, how a run walks its steps, the order of completion, stop and wait.
//!
//! Locks: `Shared::guarded` is held only to look or to move the body in and out, never while a filler, a step, a callback or an
//! executor runs, or while something of the user's is dropped. `Shared::in_flight` holds the body between two executors and is
//! never taken together with `guarded`.

use std::any::Any;
use std::fmt;
// A name is no matter of order: the model checks need not see it.
use std::sync::atomic::AtomicU64 as Counter;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::Duration;

use super::compiled::CompiledShared;
use super::executor::{Task, Ticket};
use super::request::InferRequest;
use super::state::{EndOfCallback, EndOfRun, Refusal, RequestState};
use super::steps::{Body, CancelToken};
use super::{Error, ErrorKind, Inputs, Port, Result};
use crate::sync::{AtomicBool, AtomicU64, Condvar, Deadline, Mutex, MutexGuard, Ordering, this_thread};

pub(super) type Callback = Arc<dyn Fn(&InferRequest, Result<()>) + Send + Sync>;

/// Told after a run when the request has nothing on any more, no run and no callback; with the latest run.
pub(super) type OnQuiet = Arc<dyn Fn(u64) + Send + Sync>;

/// What a run needs of its request. An executor's thread may keep it a moment longer than the last handle, so nothing that the
/// device made stays here between runs but the body, which goes with the last handle.
pub(super) struct Shared {
    pub(super) id: u64,
    pub(super) cancel: CancelToken,
    pub(super) guarded: Mutex<Guarded>,
    finished: Condvar,
    in_flight: Mutex<Option<Box<Body>>>,
    is_urgent: AtomicBool,
    /// The thread that is inside a filler or step of this request, see [`this_thread`]; 0 for none.
    stepping: AtomicU64,
    handle: OnceLock<Weak<Handle>>,
    _ticket: Ticket,
}

pub(super) struct Guarded {
    pub(super) state: RequestState,
    /// Here while idle; taken by an edit and by the run.
    pub(super) body: Option<Box<Body>>,
    pub(super) callback: Option<Callback>,
    pub(super) user_data: Option<Arc<dyn Any + Send + Sync>>,
    pub(super) latency: Duration,
    on_quiet: Option<OnQuiet>,
    /// The latest run that ended, and how.
    outcome: (u64, Result<()>),
    /// The runs that somebody waits for: a later run may end before the waiter has looked.
    awaited: Vec<Awaited>,
    /// Tasks of other executors that wait for a run.
    wakers: Vec<(u64, Waker)>,
}

struct Awaited {
    run: u64,
    n_waiting: usize,
    outcome: Option<Result<()>>,
}

/// What all handles of a request share: when it is dropped, the request stops.
pub(super) struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) model: Arc<CompiledShared>,
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
                latency: Duration::ZERO,
                on_quiet: None,
                outcome: (0, Ok(())),
                awaited: Vec::new(),
                wakers: Vec::new(),
            }),
            finished: Condvar::new(),
            in_flight: Mutex::new(None),
            is_urgent: AtomicBool::new(false),
            stepping: AtomicU64::new(0),
            handle: OnceLock::new(),
            _ticket: ticket,
        });
        let (request, name, device) = (shared.id, &*model.name, &*model.device);
        tracing::trace!(target: "roiflow::trace", request, model = name, device, "request");
        let handle = Arc::new(Self { shared, model });
        let _first = handle.shared.handle.set(Arc::downgrade(&handle));
        handle
    }

    /// Idle to running, see [`Shared::begin`].
    pub(super) fn begin(&self, inputs: &impl Inputs, calls_back: bool) -> Result<Box<Body>> {
        self.shared.begin(&self.model.info.inputs, inputs, calls_back)
    }
}

impl Guarded {
    pub(super) fn check_idle(&self) -> Result<()> {
        if self.state.is_busy(this_thread()) { Err(busy()) } else { Ok(()) }
    }

    /// Notes how a run ended: for who asks later, if no later run ended before, and for who waits for this one.
    fn settle(&mut self, run: u64, outcome: Result<()>) {
        if let Some(awaited) = self.awaited.iter_mut().find(|awaited| awaited.run == run) {
            awaited.outcome = Some(outcome.clone());
        }
        if run >= self.outcome.0 {
            self.outcome = (run, outcome);
        }
    }

    fn begin_to_wait(&mut self, run: u64) {
        match self.awaited.iter_mut().find(|awaited| awaited.run == run) {
            Some(awaited) => awaited.n_waiting += 1,
            None => {
                // It may have ended already, while its callback is still on; a later run ends before the waiter looks.
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

fn busy() -> Error {
    Error::new(ErrorKind::Busy, "the request is running: wait for it, or use another request")
}

impl Shared {
    /// Takes the body out for an edit.
    fn begin_edit(&self) -> Result<Box<Body>> {
        let mut guarded = self.guarded.lock().unwrap();
        guarded.state.edit(this_thread()).map_err(|refusal| match refusal {
            Refusal::Busy => busy(),
            Refusal::Stopped => Error::new(ErrorKind::Stopped, "the request was stopped"),
        })?;
        Ok(guarded.body.take().expect("an idle request has its body"))
    }

    fn end_edit(&self, body: Box<Body>) {
        let mut guarded = self.guarded.lock().unwrap();
        guarded.state.end_edit();
        guarded.body = Some(body);
        drop(guarded);
        self.finished.notify_all(); // A drop may wait for it.
    }

    /// Changes the idle request without the lock; everybody else meets a busy request meanwhile.
    pub(super) fn edit<R>(&self, action: impl FnOnce(&mut Body) -> Result<R>) -> Result<R> {
        let mut body = self.begin_edit()?;
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.step(|| action(&mut body))));
        self.end_edit(body);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Looks at, or changes, the idle request under the lock: nothing in `action` may run or drop what is the user's.
    pub(super) fn with_body<R>(&self, action: impl FnOnce(&mut Body) -> Result<R>) -> Result<R> {
        let mut guarded = self.guarded.lock().unwrap();
        guarded.check_idle()?;
        action(guarded.body.as_mut().expect("an idle request has its body"))
    }

    /// Idle to running: inputs are set, all tensors checked, and leased. Where that fails the request is idle again.
    fn begin(&self, ports: &[Port], inputs: &impl Inputs, calls_back: bool) -> Result<Box<Body>> {
        let mut body = self.begin_edit()?;
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.step(|| {
                let Body { device, io, .. } = &mut *body;
                io.set_inputs(&mut **device, ports, inputs)?;
                io.lease(&mut **device)
            })
        }));
        match done.unwrap_or_else(|panic| Err(Error::of_panic("setting the inputs", &*panic))) {
            Ok(()) => {
                let mut guarded = self.guarded.lock().unwrap();
                let run = guarded.state.start();
                self.cancel.reset();
                drop(guarded);
                body.begin(self.id, run, calls_back);
                Ok(body)
            }
            Err(error) => {
                self.end_edit(body);
                Err(error)
            }
        }
    }

    /// Runs all steps on the caller's thread.
    pub(super) fn run_here(self: &Arc<Self>, mut body: Box<Body>) -> Result<()> {
        self.step(|| {
            while !body.is_over() {
                body.run_next_step(&self.cancel, self.id);
            }
        });
        let outcome = body.outcome.clone();
        self.end(body);
        outcome
    }

    /// Runs what belongs to the user or the device, so that it is known on which thread it runs.
    fn step<R>(&self, action: impl FnOnce() -> R) -> R {
        let before = self.stepping.swap(this_thread(), Ordering::AcqRel);
        let result = action();
        self.stepping.store(before, Ordering::Release);
        result
    }

    fn is_stepping_here(&self) -> bool {
        self.stepping.load(Ordering::Acquire) == this_thread()
    }

    /// Whether waiting on this thread would be waiting for oneself: it is inside the request's own callback, step or filler.
    pub(super) fn is_inside(&self, guarded: &Guarded) -> bool {
        guarded.state.is_called_on(this_thread()) || self.is_stepping_here()
    }

    /// Queues the next step where it belongs.
    pub(super) fn pass_on(self: &Arc<Self>, body: Box<Body>) {
        let executor = body.next_executor().clone();
        *self.in_flight.lock().unwrap() = Some(body);
        executor.execute(self.clone());
        // A cancel that came before the run was there found nobody to recall.
        if self.cancel.is_canceled() {
            executor.recall();
        }
    }

    /// After a cancel, and without any lock: a run that waits for something else than a thread goes on, to its end.
    pub(super) fn recall(&self) {
        let waits_at = self.in_flight.lock().unwrap().as_ref().map(|body| body.next_executor().clone());
        if let Some(executor) = waits_at {
            executor.recall();
        }
    }

    /// The run is over: give everything back, then complete in the order that the module promises.
    fn end(self: &Arc<Self>, mut body: Box<Body>) {
        body.io.release();
        body.device.end_run();
        body.span = tracing::Span::none(); // Ends it.
        if body.outcome.is_ok() {
            body.io.commit_variables();
        }
        let here = this_thread();
        let mut guarded = self.guarded.lock().unwrap();
        guarded.latency = body.started.elapsed();
        guarded.settle(body.run, body.outcome.clone());
        let calls_back = body.calls_back && guarded.callback.is_some();
        guarded.body = Some(body);
        match guarded.state.end_run(calls_back, here) {
            EndOfRun::LeftToEarlierCallback => return,
            EndOfRun::Finished => {}
            EndOfRun::CallBack => loop {
                let callback = guarded.callback.clone();
                let (run, outcome) = guarded.outcome.clone();
                drop(guarded);
                let called = self.call_back(callback, run, outcome);
                guarded = self.guarded.lock().unwrap();
                if let Err(error) = called {
                    guarded.settle(run, Err(error));
                }
                match guarded.state.end_callback() {
                    EndOfCallback::Finished => break,
                    EndOfCallback::CallBackAgain => {
                        // Now, not after the last callback: each may start the next run, without end.
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
        // Also after a synchronous run, and while somebody edits: whoever gave the request back meanwhile relies on being told.
        let on_quiet = if guarded.state.is_finished(latest_run) { guarded.on_quiet.clone() } else { None };
        drop(guarded);
        if let Some(on_quiet) = on_quiet {
            on_quiet(latest_run);
        }
    }

    /// Wakes the tasks whose run is finished, one by one and without the lock.
    fn wake<'a>(&'a self, mut guarded: MutexGuard<'a, Guarded>) -> MutexGuard<'a, Guarded> {
        while let Some(waker_idx) = guarded.wakers.iter().position(|(run, _)| guarded.state.is_finished(*run)) {
            let (_, waker) = guarded.wakers.swap_remove(waker_idx);
            drop(guarded);
            waker.wake();
            guarded = self.guarded.lock().unwrap();
        }
        guarded
    }

    fn call_back(&self, callback: Option<Callback>, run: u64, outcome: Result<()>) -> Result<()> {
        // No handle left: the request is being dropped, and nobody wants to hear of it.
        let (Some(callback), Some(handle)) = (callback, self.handle.get().and_then(Weak::upgrade)) else { return Ok(()) };
        let request = InferRequest::of(handle);
        let _span =
            tracing::trace_span!(target: "roiflow::trace", parent: None, "callback", request = self.id, run, step = "callback").entered();
        let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            callback(&request, outcome);
            drop(callback);
        }));
        drop(request);
        called.map_err(|panic| Error::of_panic("the callback", &*panic))
    }

    /// Waits for the latest run; `None` for a deadline that never comes.
    pub(super) fn wait_until(&self, deadline: Option<Deadline>) -> Result<bool> {
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
        guarded.begin_to_wait(run);
        while !guarded.state.is_finished(run) {
            guarded = match &deadline {
                None => self.finished.wait(guarded).unwrap(),
                Some(deadline) if deadline.is_over() => {
                    drop(guarded.end_to_wait(run));
                    return Ok(false);
                }
                Some(deadline) => deadline.wait(&self.finished, guarded),
            };
        }
        guarded.end_to_wait(run).map(|()| true)
    }

    /// Begins to wait for the latest run without a thread; the answer is kept until [`Shared::forget`]. 0 if there is none.
    pub(super) fn expect_latest(&self) -> u64 {
        let mut guarded = self.guarded.lock().unwrap();
        let run = guarded.state.latest_run();
        if run > 0 {
            guarded.begin_to_wait(run);
        }
        run
    }

    /// The outcome of a run that is expected, or its waker noted.
    pub(super) fn poll(&self, run: u64, waker: &Waker) -> Option<Result<()>> {
        let mut guarded = self.guarded.lock().unwrap();
        if guarded.state.is_finished(run) {
            return Some(guarded.end_to_wait(run));
        }
        if self.is_inside(&guarded) {
            drop(guarded.end_to_wait(run));
            return Some(Err(would_deadlock()));
        }
        match guarded.wakers.iter_mut().find(|(of, known)| *of == run && known.will_wake(waker)) {
            Some(_) => {}
            None => guarded.wakers.push((run, waker.clone())),
        }
        None
    }

    /// Ends to expect a run, and cancels it if it is still on.
    pub(super) fn forget(&self, run: u64) {
        let mut guarded = self.guarded.lock().unwrap();
        if guarded.state.is_running() && guarded.state.latest_run() == run {
            self.cancel.cancel();
        }
        drop(guarded.end_to_wait(run));
        drop(guarded);
        if self.cancel.is_canceled() {
            self.recall();
        }
    }

    pub(super) fn set_on_quiet(&self, on_quiet: OnQuiet) {
        self.guarded.lock().unwrap().on_quiet = Some(on_quiet);
    }
}

fn would_deadlock() -> Error {
    Error::new(
        ErrorKind::WouldDeadlock,
        "wait inside the request's own callback or step would wait for itself; start the next run from the callback and return instead",
    )
}

impl Shared {
    pub(super) fn set_urgent(&self, is_urgent: bool) {
        self.is_urgent.store(is_urgent, Ordering::Relaxed);
    }
}

impl Task for Shared {
    fn run(self: Arc<Self>) {
        let Some(mut body) = self.in_flight.lock().unwrap().take() else { return };
        if !body.is_over() {
            let executor = body.next_executor();
            let executor = executor.goes_on_at().unwrap_or_else(|| executor.clone());
            // Neighbors on this executor, and inline ones, go on without a hop.
            self.step(|| {
                loop {
                    body.run_next_step(&self.cancel, self.id);
                    let next = body.next_executor();
                    if body.is_over() || !(next.is_inline() || Arc::ptr_eq(next, &executor)) {
                        break;
                    }
                }
            });
            let next = body.next_executor();
            if !(body.is_over() && (next.is_inline() || Arc::ptr_eq(next, &executor))) {
                return self.pass_on(body);
            }
        }
        self.end(body);
    }

    fn is_urgent(&self) -> bool {
        self.is_urgent.load(Ordering::Relaxed)
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
        shared.cancel.cancel();
        let of_the_user = (guarded.callback.take(), guarded.on_quiet.take(), guarded.user_data.take());
        if !shared.is_inside(&guarded) {
            // A run that still waits in a queue ends here and now, if no engine computes for it; its place in the queue will find
            // nothing to do.
            drop(guarded);
            let queued = shared.in_flight.lock().unwrap().take_if(|body| !body.device.is_computing());
            if let Some(mut body) = queued {
                body.outcome = shared.cancel.check();
                shared.end(body);
            }
            guarded = shared.guarded.lock().unwrap();
            let deadline = Deadline::after(self.model.config.drop_patience);
            while !guarded.state.is_quiet() {
                guarded = match &deadline {
                    None => shared.finished.wait(guarded).unwrap(),
                    Some(deadline) if deadline.is_over() => {
                        tracing::warn!(
                            request = shared.id,
                            "a run goes on after its request was dropped; its memory is freed when it ends"
                        );
                        break;
                    }
                    Some(deadline) => deadline.wait(&shared.finished, guarded),
                };
            }
        }
        // Freed here and now, model and all, not when a worker forgets the run: the caller may unload or exit next.
        let body = guarded.body.take();
        drop(guarded);
        shared.recall();
        drop((of_the_user, body));
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}
