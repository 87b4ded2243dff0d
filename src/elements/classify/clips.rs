//! Clips in `roiclassify`: stores the frames of objects for models whose input is a clip.
//!
//! [`crate::stages::Clips`] decides when a clip is complete. This file adds a lock, the results of whole frames, and a warning.

use std::sync::Mutex;

use crate::frame::{Classification, Detection, Frame, FrameResults, ObjectId};
use crate::stages::{Clips, Crop, Error, ModelSpec, Result, Stage};
use crate::tensor::Tensor;

/// After this many objects without a track ID in a row, the element warns that there is no tracker upstream.
const MIN_UNTRACKED: usize = 16;

/// The clips of one element.
pub(super) struct ClipStore(Mutex<State>);

struct State {
    clips: Clips,
    /// The results of whole frames, with the numbers of their frames, in this order. A run without a result has an empty list, and so has a
    /// frame in which a new clip begins.
    of_frames: Vec<(u64, Vec<Classification>)>,
    /// Number of calls of [`ClipStore::clear`]. Results of runs that began before the last call are ignored.
    n_clears: u64,
    n_untracked: usize,
    has_tracked: bool,
    has_warned: bool,
}

/// A whole frame that was stored.
pub(super) struct StoredFrame {
    /// The input of the model, if the clip is complete.
    pub(super) input: Result<Option<Tensor>>,
    /// The argument of [`ClipStore::record_frame`].
    pub(super) n_clears: u64,
}

/// The tracked objects of a frame.
#[derive(Default)]
pub(super) struct StoredObjects {
    /// Detection ID and track ID of each object whose clip is complete.
    pub(super) complete: Vec<(ObjectId, ObjectId)>,
    /// Track ID of each object without earlier frames. Its earlier results are outdated.
    pub(super) new: Vec<ObjectId>,
    /// The first error of preprocessing, and the number of objects that could not be stored.
    pub(super) failed: Option<(Error, usize)>,
    /// A warning for the bus.
    pub(super) warning: Option<String>,
}

impl ClipStore {
    /// Creates the store of an element. `None` if the input of the model is not a clip.
    pub(super) fn new(stage: &Stage) -> Option<Self> {
        let clips = Clips::new(stage)?;
        let of_frames = Vec::new();
        Some(Self(Mutex::new(State { clips, of_frames, n_clears: 0, n_untracked: 0, has_tracked: false, has_warned: false })))
    }

    /// Stores a whole frame. The caller must pass frames in stream order.
    pub(super) fn add_frame(&self, stage: &Stage, frame: &Frame, frame_number: u64) -> StoredFrame {
        let state = &mut *self.0.lock().unwrap();
        state.clips.release_missing(frame_number);
        if state.clips.is_empty() {
            state.insert(frame_number, Vec::new());
        }
        let input = match state.clips.add(stage, frame, frame_number, None) {
            Ok(true) => state.clips.input(None).map(Some),
            Ok(false) => Ok(None),
            Err(error) => Err(error),
        };
        StoredFrame { input, n_clears: state.n_clears }
    }

    /// Stores the results of a complete run of a whole frame, also if there are none. They replace the earlier results.
    pub(super) fn record_frame(&self, n_clears: u64, frame_number: u64, classifications: &[Classification]) {
        let state = &mut *self.0.lock().unwrap();
        if n_clears == state.n_clears {
            state.insert(frame_number, classifications.to_vec());
        }
    }

    /// Stores the regions of the tracked objects of a frame. The caller must pass frames in stream order. Objects outside the frame are left
    /// out, and also new objects while the store is full.
    pub(super) fn add_objects<'a>(
        &self,
        stage: &Stage,
        frame: &Frame,
        frame_number: u64,
        objects: impl Iterator<Item = &'a Detection>,
        crop: &Crop,
    ) -> StoredObjects {
        let state = &mut *self.0.lock().unwrap();
        let mut stored = StoredObjects::default();
        state.clips.release_missing(frame_number);
        for object in objects {
            let Some(track) = object.track else {
                state.n_untracked += 1;
                continue;
            };
            state.has_tracked = true;
            if !state.clips.has(Some(track)) {
                stored.new.push(track);
            }
            match state.clips.add(stage, frame, frame_number, Some((track, &crop.region(object)))) {
                Ok(true) => stored.complete.push((object.id, track)),
                Ok(false) => {}
                Err(error) => stored.failed.get_or_insert((error, 0)).1 += 1,
            }
        }
        if state.n_untracked >= MIN_UNTRACKED && !state.has_tracked && !state.has_warned {
            state.has_warned = true;
            stored.warning = Some(format!(
                "none of the first {} objects has a track ID, so none of them is classified: the input of the model is a clip, which has the frames of one object over time. Put `roitrack` between the detector and this element",
                state.n_untracked
            ));
        }
        stored
    }

    /// Returns the input of the model for an object whose clip is complete.
    pub(super) fn input(&self, track: ObjectId) -> Result<Tensor> {
        self.0.lock().unwrap().clips.input(Some(track))
    }

    /// Adds the latest results of whole frames to a frame without results of this classifier. Called in stream order.
    pub(super) fn apply(&self, spec: &ModelSpec, results: &mut FrameResults) {
        let of_frames = &mut self.0.lock().unwrap().of_frames;
        let n_until = of_frames.partition_point(|(frame_number, _)| *frame_number <= results.frame_number);
        of_frames.drain(..n_until.saturating_sub(1));
        if let Some((frame_number, latest)) = of_frames.first()
            && *frame_number < results.frame_number
            && !results.classifications.iter().any(|own| spec.says(&own.name))
        {
            results.classifications.extend(latest.iter().cloned());
        }
    }

    /// Releases all frames and results.
    pub(super) fn clear(&self) {
        let state = &mut *self.0.lock().unwrap();
        state.clips.clear();
        state.of_frames.clear();
        state.n_clears += 1;
    }
}

impl State {
    fn insert(&mut self, frame_number: u64, classifications: Vec<Classification>) {
        let idx = self.of_frames.partition_point(|(other, _)| *other <= frame_number);
        self.of_frames.insert(idx, (frame_number, classifications));
    }
}
