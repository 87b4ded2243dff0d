//! A stage that is being made, or was: on threads of its own, so that a flush or a stop can release the threads that wait for it, however
//! long a model is compiled or an engine hangs. The same holds for its warm-up.
//!
//! Why there is no stage is reported on the bus of an element, once, as soon as both are known.
//!
//! Uses `work` and `settings`. Knows no stream.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use gst::prelude::*;
use gstreamer as gst;

use super::settings::post_load_error;
use super::work::Work;
use crate::stages;

/// A stage that is being made, or was.
pub(super) struct Loading {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    outcome: Option<stages::Result<Arc<dyn Work>>>,
    /// On whose bus it is reported, once, why there is no stage.
    element: Option<gst::glib::WeakRef<gst::Element>>,
    is_reported: bool,
    /// The thread that reports it now.
    reporting: Option<ThreadId>,
    warm_up: WarmUp,
    /// Threads that make the stage or warm it up, and those of them that have begun.
    n_threads: usize,
    threads: Vec<ThreadId>,
}

#[derive(Default)]
enum WarmUp {
    /// Not begun.
    #[default]
    Open,
    Running,
    Over(stages::Result<Option<Duration>>),
}

/// How long a change to NULL waits for threads that make a stage or warm it up.
const PATIENCE: Duration = Duration::from_secs(5);

impl Loading {
    /// Makes a stage.
    pub(super) fn begin(make: impl FnOnce() -> stages::Result<Arc<dyn Work>> + Send + 'static) -> Arc<Self> {
        let loading = Arc::new(Self { state: Mutex::default(), changed: Condvar::new() });
        loading.spawn("roiflow-load", "loading the model", make, Self::finish);
        loading
    }

    /// Whether it was reported why there is no stage.
    pub(super) fn is_reported(&self) -> bool {
        self.state.lock().unwrap().is_reported
    }

    /// Works on a separate thread, and calls `finish` with what came of it.
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

    /// Waits until its threads have ended, which is soon unless an engine hangs; not on one of them, nor on the one that reports.
    pub(super) fn wait_for_threads(&self) {
        let here = thread::current().id();
        let mut state = self.state.lock().unwrap();
        // Nothing is reported any more.
        state.element = None;
        if state.reporting == Some(here) || state.threads.contains(&here) {
            return;
        }
        let (state, waited) = self.changed.wait_timeout_while(state, PATIENCE, |state| state.n_threads > 0).unwrap();
        drop(state);
        if waited.timed_out() {
            tracing::warn!(
                "a model is still being made, or run, {PATIENCE:?} after its element was stopped: it is freed when that is over"
            );
        }
    }

    /// Runs the stage, which is made, until it is warm; how long a frame takes then, or `None` if that failed and the model is not to
    /// blame ([`stages::Stage::try_warm_up`]). `None` in place of all of it if `is_given_up`.
    pub(super) fn warm_up(
        self: &Arc<Self>,
        work: &Arc<dyn Work>,
        is_given_up: impl Fn() -> bool,
    ) -> Option<stages::Result<Option<Duration>>> {
        let mut state = self.state.lock().unwrap();
        // What failed is tried again.
        if !matches!(state.warm_up, WarmUp::Running | WarmUp::Over(Ok(Some(_)))) {
            state.warm_up = WarmUp::Running;
            drop(state);
            let work = work.clone();
            let finish = |this: &Self, warmed| {
                this.state.lock().unwrap().warm_up = WarmUp::Over(warmed);
                this.changed.notify_all();
            };
            self.spawn("roiflow-warm-up", "warming up the model", move || work.stage().try_warm_up(), finish);
            state = self.state.lock().unwrap();
        }
        let waits = |state: &mut State| matches!(state.warm_up, WarmUp::Running) && !is_given_up();
        match &self.changed.wait_while(state, waits).unwrap().warm_up {
            WarmUp::Over(warmed) => Some(warmed.clone()),
            WarmUp::Open | WarmUp::Running => None,
        }
    }

    /// Waits for the stage. `None` if there will be none, for a reason that was reported, or `is_given_up`.
    pub(super) fn wait(&self, is_given_up: impl Fn() -> bool) -> Option<Arc<dyn Work>> {
        let here = thread::current().id();
        // The reason is on the bus before its consequences. A handler of that message may wait here, on the thread that reports.
        let waits =
            |state: &mut State| (state.outcome.is_none() || state.reporting.is_some_and(|reporting| reporting != here)) && !is_given_up();
        let state = self.changed.wait_while(self.state.lock().unwrap(), waits).unwrap();
        state.outcome.as_ref().and_then(|outcome| outcome.as_ref().ok()).cloned()
    }

    /// Wakes up the threads that wait, to look again at `is_given_up`.
    pub(super) fn wake(&self) {
        let _state = self.state.lock().unwrap();
        self.changed.notify_all();
    }

    /// Reports on this element's bus why there is no stage, now or when that is known; whether it is known.
    pub(super) fn report_failure(&self, element: &gst::Element) -> bool {
        self.report(|state| state.element = Some(element.downgrade()))
    }

    /// The stage was made, and does not run.
    pub(super) fn fail(&self, error: stages::Error) {
        self.finish(Err(error));
    }

    fn finish(&self, outcome: stages::Result<Arc<dyn Work>>) {
        let mut before = None;
        self.report(|state| before = state.outcome.replace(outcome));
        self.wake();
        // The last share of a stage waits for its runs.
        drop(before);
    }

    /// After a change, reports why there is no stage, unless it was reported; whether there is none.
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
