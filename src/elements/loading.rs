//! Loads a stage on one thread, and warms it up on a second thread. So a flush or a stop can release waiting threads even if compiling
//! takes long or an engine hangs.
//!
//! A load error is posted once on the bus of the element, when the error has occurred and the element has been set.
//!
//! This module uses `work` and `settings`, but no stream.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use gst::prelude::*;
use gstreamer as gst;

use super::settings::post_load_error;
use super::work::Work;
use crate::stages;

/// A stage that is loading, is loaded, or failed to load.
pub(super) struct Loading {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    outcome: Option<stages::Result<Arc<dyn Work>>>,
    /// The element on whose bus a load error is posted.
    element: Option<gst::glib::WeakRef<gst::Element>>,
    is_reported: bool,
    /// The thread that is posting the load error.
    reporting: Option<ThreadId>,
    warm_up: WarmUp,
    /// Number of threads that load or warm up the stage. `threads` has the IDs of those threads that have started.
    n_threads: usize,
    threads: Vec<ThreadId>,
}

#[derive(Default)]
enum WarmUp {
    /// The warm-up has not started.
    #[default]
    Open,
    Running,
    Over(stages::Result<Option<Duration>>),
}

/// Maximum time for which a change to NULL waits for threads that load or warm up a stage.
const MAX_WAIT: Duration = Duration::from_secs(5);

impl Loading {
    /// Starts loading a stage.
    pub(super) fn begin(make: impl FnOnce() -> stages::Result<Arc<dyn Work>> + Send + 'static) -> Arc<Self> {
        let loading = Arc::new(Self { state: Mutex::default(), changed: Condvar::new() });
        loading.spawn("roiflow-load", "loading the model", make, Self::finish);
        loading
    }

    /// Whether the load error was posted.
    pub(super) fn is_reported(&self) -> bool {
        self.state.lock().unwrap().is_reported
    }

    /// Runs `work` on a separate thread and calls `finish` with its result.
    fn spawn<T: 'static>(
        self: &Arc<Self>,
        name: &str,
        what: &'static str,
        work: impl FnOnce() -> stages::Result<T> + Send + 'static,
        finish: impl FnOnce(&Self, stages::Result<T>) + Copy + Send + 'static,
    ) {
        let this = self.clone();
        let body = move || {
            let here = thread::current().id();
            this.state.lock().unwrap().threads.push(here);
            let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(stages::Error::of_panic(what, &*panic)));
            finish(&this, done);
            {
                let mut state = this.state.lock().unwrap();
                state.n_threads -= 1;
                state.threads.retain(|thread| *thread != here);
            }
            this.changed.notify_all();
        };
        self.state.lock().unwrap().n_threads += 1;
        if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(body) {
            self.state.lock().unwrap().n_threads -= 1;
            let message = format!("cannot start the thread for {what}: {error}");
            finish(self, Err(stages::Error::new(stages::ErrorKind::Device, message)));
        }
    }

    /// Waits until the threads that load and warm up the stage have ended, at most [`MAX_WAIT`]. Returns at once if it is called on
    /// one of these threads, or on the thread that posts the load error.
    pub(super) fn wait_for_threads(&self) {
        let here = thread::current().id();
        let mut state = self.state.lock().unwrap();
        // Remove the element, so that a later load error is not posted.
        state.element = None;
        if state.reporting == Some(here) || state.threads.contains(&here) {
            return;
        }
        let (state, waited) = self.changed.wait_timeout_while(state, MAX_WAIT, |state| state.n_threads > 0).unwrap();
        drop(state);
        if waited.timed_out() {
            tracing::warn!(
                "a model is still being loaded or run {MAX_WAIT:?} after its element was stopped: the model is released when this work ends"
            );
        }
    }

    /// Warms up the loaded stage. Returns the time of one run, or `Ok(None)` if the warm-up failed for a reason other than the model
    /// ([`stages::Stage::try_warm_up`]). Returns `None` once `is_canceled` returns true.
    pub(super) fn warm_up(
        self: &Arc<Self>,
        work: &Arc<dyn Work>,
        is_canceled: impl Fn() -> bool,
    ) -> Option<stages::Result<Option<Duration>>> {
        let mut state = self.state.lock().unwrap();
        // Start a warm-up if no warm-up is running or has succeeded. A failed warm-up is repeated.
        if !matches!(state.warm_up, WarmUp::Running | WarmUp::Over(Ok(Some(_)))) {
            state.warm_up = WarmUp::Running;
            drop(state);
            let work = work.clone();
            let finish = |this: &Self, warmed| {
                this.state.lock().unwrap().warm_up = WarmUp::Over(warmed);
                this.changed.notify_all();
            };
            self.spawn("roiflow-warm-up", "the warm-up of the model", move || work.stage().try_warm_up(), finish);
            state = self.state.lock().unwrap();
        }
        let waits = |state: &mut State| matches!(state.warm_up, WarmUp::Running) && !is_canceled();
        match &self.changed.wait_while(state, waits).unwrap().warm_up {
            WarmUp::Over(warmed) => Some(warmed.clone()),
            WarmUp::Open | WarmUp::Running => None,
        }
    }

    /// Waits for the stage. Returns `None` if loading failed, or once `is_canceled` returns true. A load error is already posted by then.
    pub(super) fn wait(&self, is_canceled: impl Fn() -> bool) -> Option<Arc<dyn Work>> {
        let here = thread::current().id();
        // If loading fails, also wait until the load error is on the bus, because it must be posted before the errors that it causes. The
        // posting thread itself does not wait: a handler of the message may call `wait` on that thread.
        let waits =
            |state: &mut State| (state.outcome.is_none() || state.reporting.is_some_and(|reporting| reporting != here)) && !is_canceled();
        let state = self.changed.wait_while(self.state.lock().unwrap(), waits).unwrap();
        state.outcome.as_ref().and_then(|outcome| outcome.as_ref().ok()).cloned()
    }

    /// Wakes up the waiting threads, so that they check `is_canceled` again.
    pub(super) fn wake(&self) {
        let _state = self.state.lock().unwrap();
        self.changed.notify_all();
    }

    /// Posts a load error on this element's bus, now or when it occurs. Returns whether loading has failed.
    pub(super) fn report_failure(&self, element: &gst::Element) -> bool {
        self.report(|state| state.element = Some(element.downgrade()))
    }

    /// Marks a loaded stage as failed, because the model does not run.
    pub(super) fn fail(&self, error: stages::Error) {
        self.finish(Err(error));
    }

    fn finish(&self, outcome: stages::Result<Arc<dyn Work>>) {
        let mut before = None;
        self.report(|state| before = state.outcome.replace(outcome));
        self.wake();
        // Drop outside the lock, because dropping the last reference to a stage waits for its runs.
        drop(before);
    }

    /// Applies a change to the state. Then posts a load error that was not posted yet. Returns whether loading has failed.
    fn report(&self, change: impl FnOnce(&mut State)) -> bool {
        let (element, error) = {
            let mut state = self.state.lock().unwrap();
            change(&mut state);
            let Some(Err(error)) = &state.outcome else { return false };
            let error = error.clone();
            let Some(element) = state.element.as_ref().and_then(gst::glib::WeakRef::upgrade) else { return true };
            if std::mem::replace(&mut state.is_reported, true) {
                return true;
            }
            state.reporting = Some(thread::current().id());
            (element, error)
        };
        post_load_error(&element, &error);
        self.state.lock().unwrap().reporting = None;
        self.changed.notify_all();
        true
    }
}
