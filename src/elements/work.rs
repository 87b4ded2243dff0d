//! What an inference element does with a frame: the interface between the driver and an element's own work.

use std::sync::Arc;
use std::time::Duration;

use crate::frame::{Frame, FrameResults};
use crate::stages::labels::Labels;
use crate::stages::{self, Permit, Scheduling, StageStats};

/// What an inference element does with a frame.
pub(super) trait Stage: Send + Sync {
    /// Starts on a frame; never blocks. `done` is called once, on any thread, after the frame's memory was released. Runs begin
    /// only while `permit` allows it.
    fn run(&self, frame: Frame, results: FrameResults, permit: Arc<Permit>, done: Done);

    /// Runs on a black frame, unless another element that shares the model has; how long a frame takes once it is warm.
    fn warm_up(&self) -> stages::Result<Duration>;

    /// Whether a run of any element that shares the model has given a result.
    fn has_run(&self) -> bool;

    /// As [`Stage::warm_up`]; `None` where that failed and the model is not to blame: it has run before, or a flush came between.
    fn try_warm_up(&self) -> stages::Result<Option<Duration>> {
        match self.warm_up() {
            Ok(run_time) => Ok(Some(run_time)),
            Err(error) if self.has_run() || error.kind() == stages::ErrorKind::Stopped => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Drops the frames whose run has not begun; their `done` is called.
    fn drop_pending(&self);

    /// Drops the frames whose permit was taken back before their run began; their `done` is called.
    fn drop_withdrawn(&self);

    /// What of these results is this stage's, of which `n_before` detections are not.
    fn found(&self, results: &FrameResults, n_before: usize) -> FrameResults;

    /// How many objects this stage found in a frame, or was given, of whose detections `n_before` were there before.
    fn n_objects(&self, results: &FrameResults, n_before: usize) -> usize;

    /// Adds what was found in an earlier frame to the results of one that was not inferred.
    fn carry(&self, found: &FrameResults, results: &mut FrameResults);

    /// Adds to the results of a frame what is known of its objects from others; called for every frame that leaves, in the order of
    /// the stream.
    fn leave(&self, _results: &mut FrameResults) {}

    /// The stream is flushed or over: what comes next has nothing to do with what came before.
    fn reset(&self) {}

    /// The labels of the objects that it finds; empty if they have none, `None` if it finds no objects.
    fn labels(&self) -> Option<Labels> {
        None
    }

    /// How many frames can run at once, while no other element runs on a shared model.
    fn n_frames_at_once(&self) -> usize;

    /// How many fewer would do now, for those that run wait for threads that others need too.
    fn n_frames_fewer(&self) -> usize;

    /// Whether calls wait for several frames.
    fn gathers_frames(&self) -> bool;

    /// Which frame is next.
    fn scheduling(&self) -> Scheduling;

    /// Runs and times so far.
    fn stats(&self) -> StageStats;

    /// Whether results of earlier elements are needed.
    fn reads_results(&self) -> bool;
}

/// Takes the results of a frame.
pub(super) type Done = Box<dyn FnOnce(FrameResults) + Send>;
