//! The state changes of an inference element: its stage is made from READY on, is there in PAUSED, and is let go on the way to NULL.
//!
//! Knows when. What is made, of which settings, is the element's.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use gstreamer as gst;

use super::infer::{Driver, Stage, WarmStage};
use super::settings::post_load_error;
use crate::stages;

/// A stage and the settings that it was made of. Stays over READY, so that a stream that starts again need not load again.
pub(super) struct KeptStage<S>(Mutex<Option<Kept<S>>>);

struct Kept<S> {
    progress: Progress,
    made_of: S,
}

enum Progress {
    /// A thread makes it.
    Loading(JoinHandle<Loaded>),
    Loaded(WarmStage),
}

type Loaded = stages::Result<WarmStage>;

impl<S> Default for KeptStage<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Clone + PartialEq + Send + 'static> KeptStage<S> {
    /// Does the element's part of a state change around the parent class's. `load` makes a stage of settings; what it says goes onto
    /// the bus.
    ///
    /// It begins on the way to READY, on a thread of its own: all elements of a pipeline come there before the first goes on, so their
    /// models are compiled side by side. On the way to PAUSED it is waited for.
    pub(super) fn change_state(
        &self,
        driver: &Driver,
        element: &gst::Element,
        transition: gst::StateChange,
        settings: &Mutex<S>,
        load: impl FnOnce(&S) -> stages::Result<Arc<dyn Stage>> + Send + 'static,
        parent: impl FnOnce() -> Result<gst::StateChangeSuccess, gst::StateChangeError>,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::NullToReady => self.begin_to_load(settings.lock().unwrap().clone(), load),
            gst::StateChange::ReadyToPaused => {
                if let Err(error) = self.start(driver, element, settings, load) {
                    post_load_error(element, &error);
                    return Err(gst::StateChangeError);
                }
            }
            _ => {}
        }
        let changed = parent()?;
        match transition {
            gst::StateChange::PausedToReady => driver.end_stream(),
            gst::StateChange::ReadyToNull => {
                driver.release();
                // Outside the lock: the last share waits for its runs.
                let kept = self.0.lock().unwrap().take();
                drop(kept.map(Kept::stage));
            }
            _ => {}
        }
        Ok(changed)
    }

    fn begin_to_load(&self, settings: S, load: impl FnOnce(&S) -> stages::Result<Arc<dyn Stage>> + Send + 'static) {
        let made_of = settings.clone();
        let load = move || WarmStage::new(load(&settings)?);
        // Without a thread the stage is made where it is waited for.
        let loading = std::thread::Builder::new().name("roiflow-load".to_owned()).spawn(load).ok();
        *self.0.lock().unwrap() = loading.map(|loading| Kept { progress: Progress::Loading(loading), made_of });
    }

    /// Puts a stage to work; it is made here unless there is one that fits.
    fn start(
        &self,
        driver: &Driver,
        element: &gst::Element,
        settings: &Mutex<S>,
        load: impl FnOnce(&S) -> stages::Result<Arc<dyn Stage>>,
    ) -> stages::Result<()> {
        let settings = settings.lock().unwrap().clone();
        let kept = self.0.lock().unwrap().take();
        let is_made_of_these = kept.as_ref().is_some_and(|kept| kept.made_of == settings);
        let kept = kept.map(Kept::stage);
        let stage = match kept {
            Some(stage) if is_made_of_these => stage?,
            other => {
                driver.release();
                drop(other);
                WarmStage::new(load(&settings)?)?
            }
        };
        driver.prepare(element, stage.clone());
        *self.0.lock().unwrap() = Some(Kept { progress: Progress::Loaded(stage), made_of: settings });
        Ok(())
    }
}

impl<S> Kept<S> {
    /// Waits until it is there.
    fn stage(self) -> Loaded {
        match self.progress {
            Progress::Loaded(stage) => Ok(stage),
            Progress::Loading(loading) => loading.join().unwrap_or_else(|panic| Err(stages::Error::of_panic("loading the model", &*panic))),
        }
    }
}
