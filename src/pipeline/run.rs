//! Plays plans to their end. The calling thread waits, and receives the events.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::stats::Stats;
use super::{Event, PipelineHandle, Plan, Result, streams};

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ending {
    /// Measurements of the stream.
    pub stats: Stats,
    /// Whether the stream was drained or stopped on request.
    pub interrupted: bool,
    /// Whether the stream was stopped before EOS had passed all elements, so that frames in flight were lost.
    pub forced: bool,
    /// Warnings of elements. Each text occurs once. At most 100 are stored.
    pub warnings: Vec<String>,
    /// Number of unreadable images, which were skipped.
    pub n_skipped_images: u64,
}

/// Maximum number of stored warnings of a stream.
pub(super) const MAX_WARNINGS: usize = 100;

/// Progress of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Frames that have left the last inference element. In a pipeline without inference: frames of the source.
    pub n_frames: u64,
    /// Position in the input, if known.
    pub position: Option<Duration>,
    /// Duration of the input, if known.
    pub duration: Option<Duration>,
}

impl Progress {
    /// Returns the combined progress of several streams: the sum of their frames, and position and duration of the stream with
    /// the most remaining time.
    pub fn of_all<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let left = |progress: &Self| progress.duration.zip(progress.position).map(|(duration, position)| duration.saturating_sub(position));
        let mut sum: Option<Self> = None;
        for progress in all {
            sum = Some(match sum {
                None => *progress,
                Some(sum) => {
                    // A stream without a known end counts as the stream with the most remaining time.
                    let is_behind = left(&sum).is_some_and(|most| left(progress).is_none_or(|left| left > most));
                    let last = if is_behind { *progress } else { sum };
                    Self { n_frames: sum.n_frames + progress.n_frames, ..last }
                }
            });
        }
        sum.unwrap_or_default()
    }
}

/// A request to drain all running streams, so that their output files are complete. Clones share the request.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<Mutex<Requests>>);

#[derive(Debug, Default)]
struct Requests {
    is_requested: bool,
    /// Handles of the streams to drain.
    handles: Vec<PipelineHandle>,
}

impl Interrupt {
    /// Requests the end of all attached streams.
    pub fn interrupt(&self) {
        let mut requests = self.lock();
        requests.is_requested = true;
        requests.handles.iter().for_each(PipelineHandle::drain_all);
    }

    /// Drains this handle's streams when an interrupt is requested, or at once if it was already requested.
    pub(super) fn attach(&self, handle: &PipelineHandle) {
        let mut requests = self.lock();
        if requests.is_requested {
            handle.drain_all();
        }
        requests.handles.push(handle.clone());
    }

    pub(super) fn detach(&self, handle: &PipelineHandle) {
        self.lock().handles.retain(|other| !other.is_same(handle));
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Plays the plan to its end. Calls `report` on the calling thread with each event of the stream.
///
/// # Errors
/// Returns the error of an element with the element's name, or an error with the number of result lines that could not be written.
pub fn run(plan: &Plan, interrupt: &Interrupt, mut report: impl FnMut(&Event)) -> Result<Ending> {
    streams::run_all(std::slice::from_ref(plan), interrupt, |_, event| report(event)).remove(0)
}
