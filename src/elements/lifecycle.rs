//! The state changes of an inference element: its stage is made from READY on, beside whatever else the pipeline starts, and is
//! let go on the way to NULL.
//!
//! Nobody waits for it in a state change: a source starts and a decoder is found meanwhile. Who first needs the stage waits, which
//! is the streaming thread with its caps, or whoever asks for the latency of a live pipeline. Why there is none goes onto the bus as soon as it is
//! known, but not before PAUSED, for in READY the settings may still change.
//!
//! Runs of a warm-up are made on a thread of their own, too. So whoever waits can be let go: by the end of the stream, or by a flush, however
//! long a model is being made or an engine hangs. Who goes to NULL waits for these threads for a bounded time.
//!
//! Knows when. What is made, of which settings, is the element's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use gst::prelude::*;
use gstreamer as gst;

use super::infer::Driver;
use super::settings::post_load_error;
use super::stage::Stage;
use crate::stages;

/// What an inference element was asked for.
pub(super) trait Settings: Clone + PartialEq + Send + 'static {
    /// What is wrong with them at a glance.
    fn check(&self, element: &gst::Element) -> stages::Result<()>;
}

/// Whether upstream says that it is live; false where it is not linked yet.
pub(super) fn upstream_is_live(element: &gst::Element) -> bool {
    let mut query = gst::query::Latency::new();
    element.static_pad("sink").is_some_and(|pad| pad.peer_query(&mut query)) && query.result().0
}

/// A stage and the settings that it was made of. Stays over READY, so that a stream that starts again need not load again.
pub(super) struct KeptStage<S>(Mutex<Option<Kept<S>>>);

struct Kept<S> {
    loading: Arc<Loading>,
    made_of: S,
}

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

impl<S> Default for KeptStage<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Settings> KeptStage<S> {
    /// Does the element's part of a state change around the parent class's. `load` makes a stage of settings; what it says goes onto
    /// the bus.
    ///
    /// It begins on the way to READY, on a thread of its own: all elements of a pipeline come there before the first goes on, so their
    /// models are compiled side by side.
    pub(super) fn change_state(
        &self,
        driver: &Arc<Driver>,
        element: &gst::Element,
        transition: gst::StateChange,
        settings: &Mutex<S>,
        load: impl FnOnce(&S) -> stages::Result<Arc<dyn Stage>> + Send + 'static,
        parent: impl FnOnce() -> Result<gst::StateChangeSuccess, gst::StateChangeError>,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        let load = {
            let (driver, element) = (driver.clone(), element.clone());
            move |settings: &S| {
                let stage = load(settings)?;
                if driver.needs_warm_up(upstream_is_live(&element)) {
                    stage.try_warm_up()?;
                }
                Ok(stage)
            }
        };
        match transition {
            gst::StateChange::NullToReady => *self.0.lock().unwrap() = Some(Kept::begin(settings.lock().unwrap().clone(), load)),
            gst::StateChange::ReadyToPaused => {
                let settings = settings.lock().unwrap().clone();
                if let Err(error) = settings.check(element) {
                    post_load_error(element, &error);
                    return Err(gst::StateChangeError);
                }
                self.start(driver, element, settings, load)?;
            }
            gst::StateChange::PausedToReady => driver.stop_waiting(),
            _ => {}
        }
        let changed = parent()?;
        match transition {
            gst::StateChange::PausedToReady => driver.end_stream(),
            gst::StateChange::ReadyToNull => {
                driver.release();
                // Outside the lock: the last share waits for its runs.
                let kept = self.0.lock().unwrap().take();
                drop(kept);
            }
            _ => {}
        }
        Ok(changed)
    }

    /// Begins a stream with a stage; it is made now unless one is, or will be, that fits.
    fn start(
        &self,
        driver: &Driver,
        element: &gst::Element,
        settings: S,
        load: impl FnOnce(&S) -> stages::Result<Arc<dyn Stage>> + Send + 'static,
    ) -> Result<(), gst::StateChangeError> {
        let kept = self.0.lock().unwrap().take();
        let kept = match kept {
            // What went wrong and was said may have been put right.
            Some(kept) if kept.made_of == settings && !kept.loading.state.lock().unwrap().is_told => kept,
            other => {
                driver.release();
                drop(other);
                Kept::begin(settings, load)
            }
        };
        let loading = kept.loading.clone();
        if loading.tell_failure(element) {
            return Err(gst::StateChangeError);
        }
        *self.0.lock().unwrap() = Some(kept);
        driver.begin_stream(loading);
        Ok(())
    }
}

impl<S: Settings> Kept<S> {
    fn begin(settings: S, load: impl FnOnce(&S) -> stages::Result<Arc<dyn Stage>> + Send + 'static) -> Self {
        let loading = Arc::new(Loading { state: Mutex::default(), changed: Condvar::new() });
        let made_of = settings.clone();
        loading.spawn("roiflow-load", "loading the model", move || load(&settings), Loading::finish);
        Self { loading, made_of }
    }
}

impl<S> Drop for Kept<S> {
    fn drop(&mut self) {
        // Its thread holds the element, and what it loads takes memory: unless an engine hangs, neither outlives the state that asked for it.
        self.loading.wait_for_threads();
    }
}

impl Loading {
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
    fn wait_for_threads(&self) {
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

    /// Whether there is a stage.
    pub(super) fn is_made(&self) -> bool {
        matches!(self.state.lock().unwrap().outcome, Some(Ok(_)))
    }

    /// Lets those who wait look again whether they have been given up.
    pub(super) fn wake(&self) {
        let _state = self.state.lock().unwrap();
        self.changed.notify_all();
    }

    /// Tells this element's bus why there is no stage, now or when that is known; whether it is known.
    fn tell_failure(&self, element: &gst::Element) -> bool {
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
