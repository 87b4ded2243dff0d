//! State changes of an inference element: loading starts in READY, while other elements start, and the stage is released on the way to
//! NULL.
//!
//! No state change waits for loading, so sources and decoders start at the same time. The first thread that needs the stage waits
//! ([`super::model`]). A load error is posted at once in PAUSED. In READY, a load error is not posted yet, because settings may still
//! change.
//!
//! The change to NULL waits for threads that load a stage or warm it up, for a limited time.
//!
//! This module decides when a stage is loaded, and the element decides which stage. It uses `infer`, `loading` and `work`.

use std::sync::{Arc, Mutex};

use gstreamer as gst;

use super::infer::Driver;
use super::loading::Loading;
use super::settings::post_load_error;
use super::stream::upstream_is_live;
use super::work::Work;
use crate::{intake, stages};

/// Settings of an inference element.
pub(super) trait Settings: Clone + PartialEq + Send + 'static {
    /// Checks the settings without loading a model.
    fn check(&self, element: &gst::Element) -> stages::Result<()>;
}

/// A stage, and the settings with which it was loaded. The stage stays cached while the element is in READY, so that a restart
/// need not load it again.
pub(super) struct CachedStage<S>(Mutex<Option<Cached<S>>>);

struct Cached<S> {
    loading: Arc<Loading>,
    loaded_with: S,
}

impl<S> Default for CachedStage<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Settings> CachedStage<S> {
    /// Changes the state of the element: runs the actions of the element before and after the state change of the parent class. `load`
    /// loads a stage. An error of `load` is posted on the bus.
    ///
    /// Loading starts on the way to READY, on a separate thread. All elements of a pipeline reach READY before the first element
    /// goes on to PAUSED, so their models are compiled in parallel.
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
            gst::StateChange::NullToReady => {
                intake::protect_decoders(element);
                *self.0.lock().unwrap() = Some(Cached::begin(settings.lock().unwrap().clone(), load));
            }
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
                // Drop outside the lock, because dropping the last reference to a stage waits for its runs.
                let cached = self.0.lock().unwrap().take();
                drop(cached);
            }
            _ => {}
        }
        Ok(changed)
    }

    /// Begins a stream with the cached stage if that stage was loaded with equal settings, otherwise with a new stage.
    fn start(
        &self,
        driver: &Driver,
        element: &gst::Element,
        settings: S,
        load: impl FnOnce(&S) -> stages::Result<Arc<dyn Work>> + Send + 'static,
    ) -> Result<(), gst::StateChangeError> {
        let cached = self.0.lock().unwrap().take();
        let cached = match cached {
            // If the load error of the cached stage was reported, load again, because the user may have fixed the cause.
            Some(cached) if cached.loaded_with == settings && !cached.loading.is_reported() => cached,
            other => {
                driver.release();
                drop(other);
                Cached::begin(settings, load)
            }
        };
        let loading = cached.loading.clone();
        if loading.report_failure(element) {
            return Err(gst::StateChangeError);
        }
        *self.0.lock().unwrap() = Some(cached);
        driver.begin_stream(loading);
        Ok(())
    }
}

impl<S: Settings> Cached<S> {
    fn begin(settings: S, load: impl FnOnce(&S) -> stages::Result<Arc<dyn Work>> + Send + 'static) -> Self {
        let loaded_with = settings.clone();
        Self { loading: Loading::begin(move || load(&settings)), loaded_with }
    }
}

impl<S> Drop for Cached<S> {
    fn drop(&mut self) {
        // Wait for the loading thread, because it references the element and uses memory. The thread must end before the element is
        // in NULL. If an engine hangs, the wait ends after a time limit.
        self.loading.wait_for_threads();
    }
}
