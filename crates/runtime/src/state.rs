//! The states of a request and their transitions, without locks, threads or I/O.
//!
//! | state | meaning | entered when | left when |
//! |---|---|---|---|
//! | idle | its tensors belong to the user | created; a run ended | `edit` |
//! | edited | a thread sets its tensors, or checks and leases them for a run | `edit` | `end_edit`, `start` |
//! | running | its tensors belong to the run | `start`, from edited | the last step ended, and no earlier callback is running |
//! | calling back | idle or running again, during the callback of an earlier run | a run with a callback ended | the callback returned |
//! | stopped | the last handle was dropped; no run can start | drop | never |
//!
//! A callback may start its own request again, so "calling back" overlaps with idle and with running. Therefore a separate field stores it
//! (`calling`).

/// The thread number that means "no thread".
const NOBODY: u64 = 0;

/// The state of a request; the module documentation lists the states.
#[derive(Debug, Default)]
pub(crate) struct RequestState {
    editing: bool,
    running: bool,
    stopped: bool,
    /// While a callback is executed: the number of its thread ([`this_thread`](crate::sync::this_thread)), and the number of the run that
    /// it belongs to.
    calling: Option<(u64, u64)>,
    /// Whether a run with a callback ended while the callback of an earlier run was executed.
    ended_meanwhile: bool,
    n_started: u64,
    n_finished: u64,
}

/// The reason why an edit or a start of a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Busy,
    Stopped,
}

/// What the caller must do next after a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum EndOfRun {
    /// Call the callback, then [`RequestState::end_callback`].
    CallBack,
    /// Do nothing: a callback of an earlier run is being executed. Its thread later calls the callback of this run.
    LeftToEarlierCallback,
    /// Notify the waiters: the run is finished.
    Finished,
}

/// What the caller must do next after a callback returned. In both cases the caller must notify the threads that wait for the callback's
/// run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum EndOfCallback {
    /// Notify the waiters, then call the callback of the run that ended meanwhile ([`RequestState::begin_callback`]). Until that call, the
    /// request is busy for all threads.
    CallBackAgain,
    /// Notify the waiters: no further callback follows.
    Finished,
}

impl RequestState {
    /// Changes the state from idle to edited. `thread` is the calling thread.
    pub(crate) fn edit(&mut self, thread: u64) -> Result<(), Refusal> {
        if self.stopped {
            return Err(Refusal::Stopped);
        }
        if self.is_busy(thread) {
            return Err(Refusal::Busy);
        }
        self.editing = true;
        Ok(())
    }

    /// Changes the state from edited to idle.
    pub(crate) fn end_edit(&mut self) {
        self.editing = false;
    }

    /// Changes the state from edited to running. Returns the number of the run.
    pub(crate) fn start(&mut self) -> u64 {
        debug_assert!(self.editing && !self.running, "a run starts from an edit");
        self.editing = false;
        self.running = true;
        self.n_started += 1;
        self.n_started
    }

    /// Ends the run after its last step. `thread` is the calling thread, which then executes the callback. Returns what to do next.
    pub(crate) fn end_run(&mut self, calls_back: bool, thread: u64) -> EndOfRun {
        debug_assert!(self.running, "only a running request ends");
        let calls_back = calls_back && !self.stopped;
        match (calls_back, self.calling) {
            (true, Some(_)) => {
                self.ended_meanwhile = true;
                EndOfRun::LeftToEarlierCallback
            }
            (true, None) => {
                self.running = false;
                self.calling = Some((thread, self.n_started));
                EndOfRun::CallBack
            }
            (false, calling) => {
                self.running = false;
                if calling.is_none() {
                    self.n_finished = self.n_started;
                }
                EndOfRun::Finished
            }
        }
    }

    /// Begins the callback that [`EndOfCallback::CallBackAgain`] announced. `thread` is the thread that executes it.
    pub(crate) fn begin_callback(&mut self, thread: u64) {
        let (calling, _) = self.calling.as_mut().expect("a run waits for its callback");
        debug_assert_eq!(*calling, NOBODY);
        *calling = thread;
    }

    /// Ends the callback. Returns what to do next.
    pub(crate) fn end_callback(&mut self) -> EndOfCallback {
        let (_, called_run) = self.calling.take().expect("a callback ends only after it began");
        if self.ended_meanwhile {
            self.ended_meanwhile = false;
            self.running = false;
            self.n_finished = called_run;
            if !self.stopped {
                self.calling = Some((NOBODY, self.n_started));
                return EndOfCallback::CallBackAgain;
            }
        }
        self.n_finished = if self.running { called_run } else { self.n_started };
        EndOfCallback::Finished
    }

    /// Stops the request: no new run can start.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Returns whether the request was stopped, so that no new run can start.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns whether `thread` must not access the request: it is edited or running, or a different thread executes its callback.
    pub(crate) fn is_busy(&self, thread: u64) -> bool {
        self.editing || self.running || self.calling.is_some_and(|(calling, _)| calling != thread)
    }

    /// Returns whether a run is in progress, or has ended and waits until the callback of an earlier run returns.
    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    /// Returns whether `thread` executes the request's callback.
    pub(crate) fn is_called_on(&self, thread: u64) -> bool {
        self.calling.is_some_and(|(calling, _)| calling == thread)
    }

    /// Returns the thread that executes the request's callback; 0 if no callback is executed.
    pub(crate) fn calling_thread(&self) -> u64 {
        self.calling.map_or(NOBODY, |(calling, _)| calling)
    }

    /// Returns the number of the run that was started last; 0 if no run was started yet.
    pub(crate) fn latest_run(&self) -> u64 {
        self.n_started
    }

    /// Returns whether this run and its callback have ended.
    pub(crate) fn is_finished(&self, run: u64) -> bool {
        self.n_finished >= run
    }

    /// Returns whether a run or a callback is in progress. If so, its end will notify the waiters.
    pub(crate) fn is_on(&self) -> bool {
        self.running || self.calling.is_some()
    }

    /// Returns whether there is no edit, no run and no callback.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.editing && !self.running && self.calling.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads() -> (u64, u64) {
        (1, 2)
    }

    fn start(state: &mut RequestState, thread: u64) -> Result<u64, Refusal> {
        state.edit(thread).map(|()| state.start())
    }

    #[test]
    fn a_run_is_finished_only_when_its_callback_ended() {
        let (here, _) = threads();
        let mut state = RequestState::default();
        assert_eq!(start(&mut state, here), Ok(1));
        assert_eq!(start(&mut state, here), Err(Refusal::Busy));
        assert_eq!(state.end_run(true, here), EndOfRun::CallBack);
        assert!(!state.is_running() && !state.is_finished(1));
        assert_eq!(state.end_callback(), EndOfCallback::Finished);
        assert!(state.is_finished(1) && state.is_quiet());
    }

    #[test]
    fn only_the_callback_itself_may_start_the_next_run() {
        let (here, other) = threads();
        let mut state = RequestState::default();
        start(&mut state, here).unwrap();
        assert_eq!(state.end_run(true, here), EndOfRun::CallBack);
        assert_eq!(start(&mut state, other), Err(Refusal::Busy));
        assert_eq!(start(&mut state, here), Ok(2));
    }

    #[test]
    fn a_run_that_ends_during_an_earlier_callback_waits_for_it() {
        let (here, other) = threads();
        let mut state = RequestState::default();
        start(&mut state, here).unwrap();
        assert_eq!(state.end_run(true, here), EndOfRun::CallBack);
        start(&mut state, here).unwrap();
        assert_eq!(state.end_run(true, other), EndOfRun::LeftToEarlierCallback);
        assert!(state.is_running(), "the callback of run 1 must not see the outputs of run 2");
        assert_eq!(state.end_callback(), EndOfCallback::CallBackAgain);
        assert!(state.is_finished(1) && !state.is_finished(2) && !state.is_running());
        assert!(state.is_busy(here) && state.is_busy(other), "a notified waiter must not start the request before its callback");
        state.begin_callback(here);
        assert!(!state.is_busy(here));
        assert_eq!(state.end_callback(), EndOfCallback::Finished);
        assert!(state.is_finished(2));
    }

    #[test]
    fn a_synchronous_run_inside_a_callback_does_not_release_that_callbacks_waiters() {
        let (here, _) = threads();
        let mut state = RequestState::default();
        start(&mut state, here).unwrap();
        assert_eq!(state.end_run(true, here), EndOfRun::CallBack);
        start(&mut state, here).unwrap();
        assert_eq!(state.end_run(false, here), EndOfRun::Finished);
        assert!(!state.is_finished(1));
        assert_eq!(state.end_callback(), EndOfCallback::Finished);
        assert!(state.is_finished(2));
    }

    #[test]
    fn nothing_starts_or_calls_back_after_stop() {
        let (here, _) = threads();
        let mut state = RequestState::default();
        start(&mut state, here).unwrap();
        state.stop();
        assert_eq!(state.end_run(true, here), EndOfRun::Finished);
        assert_eq!(start(&mut state, here), Err(Refusal::Stopped));
    }

    #[test]
    fn a_start_that_failed_leaves_no_trace() {
        let (here, _) = threads();
        let mut state = RequestState::default();
        state.edit(here).unwrap();
        assert!(!state.is_running() && state.is_busy(here));
        state.end_edit();
        assert!(state.is_quiet() && state.is_finished(state.latest_run()));
        assert_eq!(start(&mut state, here), Ok(1));
    }

    #[test]
    fn another_thread_must_not_touch_what_a_callback_looks_at() {
        let (here, other) = threads();
        let mut state = RequestState::default();
        start(&mut state, here).unwrap();
        assert_eq!(state.end_run(true, here), EndOfRun::CallBack);
        assert!(state.is_busy(other) && !state.is_busy(here));
    }
}
