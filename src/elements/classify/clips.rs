//! Clips in `roiclassify`: stores the frames of objects for models whose input is a clip.
//!
//! [`crate::stages::Clips`] decides when a clip is complete. This file adds a lock, the results of whole frames, and a warning.

use std::sync::Mutex;

use crate::frame::{Classification, Detection, Frame, FrameResults, ObjectId};
use crate::stages::{Clips, Crop, ModelSpec, Result, Stage};
use crate::tensor::Tensor;

/// After this many objects without a track ID in a row, the element warns that there is no tracker upstream.
const MIN_UNTRACKED: usize = 16;

/// The clips of one element.
pub(super) struct ClipStore(Mutex<State>);

struct State {
    clips: Clips,
    /// The latest results of whole frames.
    latest: Vec<Classification>,
    n_untracked: usize,
    has_tracked: bool,
    has_warned: bool,
}

/// The objects of a frame whose clips are complete.
#[derive(Default)]
pub(super) struct Complete {
    /// Detection ID and track ID of each object.
    pub(super) objects: Vec<(ObjectId, ObjectId)>,
    /// A warning for the bus.
    pub(super) warning: Option<String>,
}

impl ClipStore {
    /// Creates the store of an element. `None` if the input of the model is not a clip.
    pub(super) fn new(stage: &Stage) -> Option<Self> {
        let clips = Clips::new(stage)?;
        Some(Self(Mutex::new(State { clips, latest: Vec::new(), n_untracked: 0, has_tracked: false, has_warned: false })))
    }

    /// Stores a whole frame. Returns the input of the model if the clip is complete. The caller must pass frames in stream order.
    pub(super) fn add_frame(&self, stage: &Stage, frame: &Frame, frame_number: u64) -> Result<Option<Tensor>> {
        let clips = &mut self.0.lock().unwrap().clips;
        if clips.add(stage, frame, frame_number, None)? { clips.input(None).map(Some) } else { Ok(None) }
    }

    /// Stores the regions of the tracked objects of a frame. The caller must pass frames in stream order. Objects outside the frame are left
    /// out.
    pub(super) fn add_objects<'a>(
        &self,
        stage: &Stage,
        frame: &Frame,
        frame_number: u64,
        objects: impl Iterator<Item = &'a Detection>,
        crop: &Crop,
    ) -> Complete {
        let state = &mut *self.0.lock().unwrap();
        let mut complete = Complete::default();
        state.clips.release_missing(frame_number);
        for object in objects {
            let Some(track) = object.track else {
                state.n_untracked += 1;
                continue;
            };
            state.has_tracked = true;
            if state.clips.add(stage, frame, frame_number, Some((track, &crop.region(object)))).unwrap_or_default() {
                complete.objects.push((object.id, track));
            }
        }
        if state.n_untracked >= MIN_UNTRACKED && !state.has_tracked && !state.has_warned {
            state.has_warned = true;
            complete.warning = Some(format!(
                "none of the first {} objects has a track ID, so none of them is classified: the input of the model is a clip, which has the frames of one object over time. Put `roitrack` between the detector and this element",
                state.n_untracked
            ));
        }
        complete
    }

    /// Returns the input of the model for an object whose clip is complete.
    pub(super) fn input(&self, track: ObjectId) -> Result<Tensor> {
        self.0.lock().unwrap().clips.input(Some(track))
    }

    /// Adds the latest results of whole frames to a frame without results. Called in stream order.
    pub(super) fn apply(&self, spec: &ModelSpec, results: &mut FrameResults) {
        let state = &mut *self.0.lock().unwrap();
        let mut own = results.classifications.iter().filter(|own| spec.says(&own.name)).peekable();
        if own.peek().is_some() {
            state.latest = own.cloned().collect();
        } else {
            results.classifications.extend(state.latest.iter().cloned());
        }
    }

    /// Releases all frames and results.
    pub(super) fn clear(&self) {
        let state = &mut *self.0.lock().unwrap();
        state.clips.clear();
        state.latest.clear();
    }
}
