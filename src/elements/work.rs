//! The interface between the driver and an element's own work on a frame.

use std::sync::Arc;

use crate::frame::{Frame, FrameResults};
use crate::stages::{self, RunGuard, Stage};

/// A stage with the element's work on a frame and its results.
pub(super) trait Work: Send + Sync {
    /// Returns the inference stage.
    fn stage(&self) -> &Stage;

    /// Starts inference on a frame without blocking. Runs begin only while `guard` allows it. After the runs, the frame's memory is
    /// released, and then `done` is called once, on any thread.
    fn run(&self, frame: Frame, results: FrameResults, guard: Arc<RunGuard>, done: Done);

    /// Runs the model on a frame, and waits for the results. A model whose input is a clip runs on a black clip.
    fn try_frame(&self, frame: &Frame) -> stages::Result<()> {
        let stage = self.stage();
        if stage.spec().clip.is_some() { stage.warm_up().map(drop) } else { stage.run(frame).map(drop) }
    }

    /// Returns those of the results that this element produced. The first `n_before` detections come from earlier elements.
    fn own_results(&self, results: &FrameResults, n_before: usize) -> FrameResults;

    /// Returns the number of objects that this element detected or classified. The first `n_before` detections come from earlier elements.
    fn n_objects(&self, results: &FrameResults, n_before: usize) -> usize;

    /// Adds the results of this element for an earlier frame to the results of a skipped frame.
    fn carry(&self, earlier: &FrameResults, results: &mut FrameResults);

    /// Adds reused results of tracked objects. The driver calls this for every frame that leaves, in stream order.
    fn leave(&self, _results: &mut FrameResults) {}

    /// Discards the stored results of earlier frames. Called when the stream was flushed or has ended.
    fn reset(&self) {}

    /// Whether the element needs results of earlier elements.
    fn reads_results(&self) -> bool;
}

/// Closure that receives the results of a frame.
pub(super) type Done = Box<dyn FnOnce(FrameResults) + Send>;
