//! The state changes of an inference element: its stage is made from READY on, while the pipeline starts its other elements, and is
//! released on the way to NULL.
//!
//! No state change waits for it: a source starts and a decoder is found meanwhile. The first thread that needs the stage waits ([`super::model`]).
//! Why there is none goes onto the bus as soon as it is known, but not before PAUSED, for in READY the settings may still change.
//!
//! The change to NULL waits for the threads that make a stage or warm it up, for a bounded time.
//!
//! Knows when. What is made, of which settings, is the element's. Uses `infer`, `loading` and `work`.

use std::sync::{Arc, Mutex};

use gstreamer as gst;

use super::infer::Driver;
use super::loading::Loading;
use super::settings::post_load_error;
use super::stream::upstream_is_live;
use super::work::Work;
use crate::stages;

/// What an inference element was asked for.
pub(super) trait Settings: Clone + PartialEq + Send + 'static {
    /// What is wrong with them at a glance.
    fn check(&self, element: &gst::Element) -> stages::Result<()>;
}

/// A stage and the settings that it was made of. Stays over READY, so that a stream that starts again need not load again.
pub(super) struct KeptStage<S>(Mutex<Option<Kept<S>>>);

struct Kept<S> {
    loading: Arc<Loading>,
    made_of: S,
}

impl<S> Default for KeptStage<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Settings> KeptStage<S> {
    /// Does the element's part of a state change around the parent class's. `load` makes a stage of settings; its error goes onto
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
        load: impl FnOnce(&S) -> stages::Result<Arc<dyn Work>> + Send + 'static,
        parent: impl FnOnce() -> Result<gst::StateChangeSuccess, gst::StateChangeError>,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        let load = {
            let (driver, element) = (driver.clone(), element.clone());
            move |settings: &S| {
                let work = load(settings)?;
                if driver.needs_warm_up(upstream_is_live(&element)) {
                    work.stage().try_warm_up()?;
                }
                Ok(work)
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
        load: impl FnOnce(&S) -> stages::Result<Arc<dyn Work>> + Send + 'static,
    ) -> Result<(), gst::StateChangeError> {
        let kept = self.0.lock().unwrap().take();
        let kept = match kept {
            // The cause of a failure that was reported may be mended.
            Some(kept) if kept.made_of == settings && !kept.loading.is_reported() => kept,
            other => {
                driver.release();
                drop(other);
                Kept::begin(settings, load)
            }
        };
        let loading = kept.loading.clone();
        if loading.report_failure(element) {
            return Err(gst::StateChangeError);
        }
        *self.0.lock().unwrap() = Some(kept);
        driver.begin_stream(loading);
        Ok(())
    }
}

impl<S: Settings> Kept<S> {
    fn begin(settings: S, load: impl FnOnce(&S) -> stages::Result<Arc<dyn Work>> + Send + 'static) -> Self {
        let made_of = settings.clone();
        Self { loading: Loading::begin(move || load(&settings)), made_of }
    }
}

impl<S> Drop for Kept<S> {
    fn drop(&mut self) {
        // Its thread holds the element, and what it loads takes memory: unless an engine hangs, neither outlives the state that asked for it.
        self.loading.wait_for_threads();
    }
}
