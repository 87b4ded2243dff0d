//! What an inference element does with a frame: the interface between the driver and an element's own work.

use std::sync::Arc;

use crate::frame::{Frame, FrameResults};
use crate::stages::{RunGuard, Stage};

/// A stage, and what an inference element does with a frame and its results.
pub(super) trait Work: Send + Sync {
    /// The model put to work.
    fn stage(&self) -> &Stage;

    /// Starts on a frame; never blocks. `done` is called once, on any thread, after the frame's memory was released. Runs begin
    /// only while `guard` allows it.
    fn run(&self, frame: Frame, results: FrameResults, guard: Arc<RunGuard>, done: Done);

    /// What of these results is this element's, of which `n_before` detections are not.
    fn found(&self, results: &FrameResults, n_before: usize) -> FrameResults;

    /// How many objects this element found in a frame, or was given, of whose detections `n_before` were there before.
    fn n_objects(&self, results: &FrameResults, n_before: usize) -> usize;

    /// Adds what was found in an earlier frame to the results of one that was not inferred.
    fn carry(&self, found: &FrameResults, results: &mut FrameResults);

    /// Adds to the results of a frame what is known of its objects from others; called for every frame that leaves, in the order of
    /// the stream.
    fn leave(&self, _results: &mut FrameResults) {}

    /// The stream is flushed or over: what comes next has nothing to do with what came before.
    fn reset(&self) {}

    /// Whether results of earlier elements are needed.
    fn reads_results(&self) -> bool;
}

/// Takes the results of a frame.
pub(super) type Done = Box<dyn FnOnce(FrameResults) + Send>;
