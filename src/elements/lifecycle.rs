//! The state changes of an inference element: its stage is made on the way to PAUSED and let go on the way to NULL.
//!
//! Knows when. What is made, of which settings, is the element's.

use std::sync::{Arc, Mutex};

use gstreamer as gst;

use super::infer::{Driver, Stage};
use super::settings::post_load_error;
use crate::stages;

/// A stage and the settings that it was made of. Stays over READY, so that a stream that starts again need not load again.
pub(super) struct KeptStage<S>(Mutex<Option<(Arc<dyn Stage>, S)>>);

impl<S> Default for KeptStage<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Clone + PartialEq> KeptStage<S> {
    /// Does the element's part of a state change around the parent class's. `load` makes a stage where none fits `settings`;
    /// what it says goes onto the bus.
    pub(super) fn change_state(
        &self,
        driver: &Driver,
        element: &gst::Element,
        transition: gst::StateChange,
        settings: &Mutex<S>,
        load: impl FnOnce(&S) -> stages::Result<Arc<dyn Stage>>,
        parent: impl FnOnce() -> Result<gst::StateChangeSuccess, gst::StateChangeError>,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        if transition == gst::StateChange::ReadyToPaused
            && let Err(error) = self.start(driver, element, settings, load)
        {
            post_load_error(element, &error);
            return Err(gst::StateChangeError);
        }
        let changed = parent()?;
        match transition {
            gst::StateChange::PausedToReady => driver.end_stream(),
            gst::StateChange::ReadyToNull => {
                driver.release();
                let kept = self.0.lock().unwrap().take();
                drop(kept); // Outside the lock: the last share waits for its runs.
            }
            _ => {}
        }
        Ok(changed)
    }

    /// Makes the stage, unless the one of the last stream still fits, and warms it up.
    fn start(
        &self,
        driver: &Driver,
        element: &gst::Element,
        settings: &Mutex<S>,
        load: impl FnOnce(&S) -> stages::Result<Arc<dyn Stage>>,
    ) -> stages::Result<()> {
        let settings = settings.lock().unwrap().clone();
        let kept = self.0.lock().unwrap().take().filter(|(_, made_of)| *made_of == settings);
        let stage = match kept {
            Some((stage, _)) => stage,
            None => {
                driver.release();
                load(&settings)?
            }
        };
        driver.prepare(element, stage.clone())?;
        *self.0.lock().unwrap() = Some((stage, settings));
        Ok(())
    }
}
