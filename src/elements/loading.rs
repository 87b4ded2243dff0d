//! A stage that is being made, or was: on threads of its own, so that a flush or a stop can release the threads that wait for it, however
//! long a model is compiled or an engine hangs. The same holds for its warm-up.
//!
//! Why there is no stage goes onto the bus as soon as it is known and an element is to be told, and once.
//!
//! Uses `stage` and `settings`. Knows no stream.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use gst::prelude::*;
use gstreamer as gst;

use super::settings::post_load_error;
use super::stage::Stage;
use crate::stages;

/// A stage that is being made, or was.
pub(super) struct Loading {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    outcome: Option<stages::Result<Arc<dyn Stage>>>,
    /// Whose bus hears why there is none. It is said once.
    tell: Option<gst::glib::WeakRef<gst::Element>>,
    is_told: bool,
    /// The thread that says so just now.
    telling: Option<ThreadId>,
    warm_up: WarmUp,
    /// Those that make the stage or warm it up, and which they are, so far as they have begun.
    n_threads: usize,
    threads: Vec<ThreadId>,
}

#[derive(Default)]
enum WarmUp {
    /// Nobody asked, or it came to nothing for no fault of the model's.
    #[default]
    Open,
    Running,
    Over(stages::Result<Option<Duration>>),
}

/// How long who goes to NULL waits for threads that make a stage or warm it up.
const PATIENCE: Duration = Duration::from_secs(5);

impl Loading {
    /// Makes a stage.
    pub(super) fn begin(make: impl FnOnce() -> stages::Result<Arc<dyn Stage>> + Send + 'static) -> Arc<Self> {
        let loading = Arc::new(Self { state: Mutex::default(), changed: Condvar::new() });
        loading.spawn("roiflow-load", "loading the model", make, Self::finish);
        loading
    }

    /// Whether the bus has been told why there is no stage.
    pub(super) fn is_reported(&self) -> bool {
        self.state.lock().unwrap().is_told
    }

    /// Does something on a thread of its own, and tells of it.
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

    /// Waits until its threads are at their end, which is soon unless an engine hangs; not on one of them, nor on the one that says what is wrong.
    pub(super) fn wait_for_threads(&self) {
        let here = thread::current().id();
        let mut state = self.state.lock().unwrap();
        // Nobody is to hear of it any more.
        state.tell = None;
        if state.telling == Some(here) || state.threads.contains(&here) {
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

    /// Runs the stage, which is made, until it is warm; tells how long a frame takes then, or `None` if that failed and the model is not to
    /// blame ([`Stage::try_warm_up`]). `None` in place of all of it if the caller need not wait any more.
    pub(super) fn warm_up(
        self: &Arc<Self>,
        stage: &Arc<dyn Stage>,
        is_given_up: impl Fn() -> bool,
    ) -> Option<stages::Result<Option<Duration>>> {
        let mut state = self.state.lock().unwrap();
        // What failed is tried again.
        if !matches!(state.warm_up, WarmUp::Running | WarmUp::Over(Ok(Some(_)))) {
            state.warm_up = WarmUp::Running;
            drop(state);
            let stage = stage.clone();
            let finish = |this: &Self, warmed| {
                this.state.lock().unwrap().warm_up = WarmUp::Over(warmed);
                this.changed.notify_all();
            };
            self.spawn("roiflow-warm-up", "warming up the model", move || stage.try_warm_up(), finish);
            state = self.state.lock().unwrap();
        }
        let waits = |state: &mut State| matches!(state.warm_up, WarmUp::Running) && !is_given_up();
        match &self.changed.wait_while(state, waits).unwrap().warm_up {
            WarmUp::Over(warmed) => Some(warmed.clone()),
            WarmUp::Open | WarmUp::Running => None,
        }
    }

    /// Waits for the stage. `None` if there will be none, for a reason that was told, or the caller need not wait any more.
    pub(super) fn wait(&self, is_given_up: impl Fn() -> bool) -> Option<Arc<dyn Stage>> {
        let here = thread::current().id();
        // The reason comes to the bus before what follows of it. Who hears it there may ask, and is the thread that says it.
        let waits = |state: &mut State| (state.outcome.is_none() || state.telling.is_some_and(|telling| telling != here)) && !is_given_up();
        let state = self.changed.wait_while(self.state.lock().unwrap(), waits).unwrap();
        state.outcome.as_ref().and_then(|outcome| outcome.as_ref().ok()).cloned()
    }

    /// Lets those who wait look again whether they have been given up.
    pub(super) fn wake(&self) {
        let _state = self.state.lock().unwrap();
        self.changed.notify_all();
    }

    /// Tells this element's bus why there is no stage, now or when that is known; whether it is known.
    pub(super) fn tell_failure(&self, element: &gst::Element) -> bool {
        self.tell(|state| state.tell = Some(element.downgrade()))
    }

    /// The stage was made, and does not run.
    pub(super) fn fail(&self, error: stages::Error) {
        self.finish(Err(error));
    }

    fn finish(&self, outcome: stages::Result<Arc<dyn Stage>>) {
        let mut before = None;
        self.tell(|state| before = state.outcome.replace(outcome));
        self.wake();
        // The last share of a stage waits for its runs.
        drop(before);
    }

    /// After a change, says why there is no stage, if somebody is to be told and was not; whether there is none.
    fn tell(&self, change: impl FnOnce(&mut State)) -> bool {
        let (element, error) = {
            let mut state = self.state.lock().unwrap();
            change(&mut state);
            let Some(Err(error)) = &state.outcome else { return false };
            let error = error.clone();
            let Some(element) = state.tell.as_ref().and_then(gst::glib::WeakRef::upgrade) else { return true };
            if std::mem::replace(&mut state.is_told, true) {
                return true;
            }
            state.telling = Some(thread::current().id());
            (element, error)
        };
        post_load_error(&element, &error);
        self.state.lock().unwrap().telling = None;
        self.changed.notify_all();
        true
    }
}
