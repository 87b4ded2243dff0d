//! Plays plans to their end on the calling thread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::stats::Stats;
use super::{Event, PipelineHandle, Plan, Result, streams};

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ending {
    /// What was measured.
    pub stats: Stats,
    /// Whether it was drained or stopped on request.
    pub interrupted: bool,
    /// Whether it was stopped before its proper end: frames in flight are lost.
    pub forced: bool,
    /// What elements warned of, each once.
    pub warnings: Vec<String>,
    /// Pictures that could not be read and were skipped.
    pub n_skipped_pictures: u64,
}

/// Where a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Frames that have left the last inference element.
    pub n_frames: u64,
    /// The place in the input, if it has one.
    pub position: Option<Duration>,
    /// The length of the input, if it has one.
    pub duration: Option<Duration>,
}

impl Progress {
    /// Of several streams together: as many frames as all have, and where the one is that has most before it.
    pub fn of_all<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let left = |progress: &Self| progress.duration.zip(progress.position).map(|(duration, position)| duration.saturating_sub(position));
        let mut sum: Option<Self> = None;
        for progress in all {
            sum = Some(match sum {
                None => *progress,
                Some(sum) => {
                    // Who has no end has the most before it.
                    let is_behind = left(&sum).is_some_and(|most| left(progress).is_none_or(|left| left > most));
                    let last = if is_behind { *progress } else { sum };
                    Self { n_frames: sum.n_frames + progress.n_frames, ..last }
                }
            });
        }
        sum.unwrap_or_default()
    }
}

/// Asks running streams to end properly: files are completed. Clones share the request.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<Mutex<Asked>>);

#[derive(Debug, Default)]
struct Asked {
    is_asked: bool,
    /// Whose streams it ends.
    handles: Vec<PipelineHandle>,
}

impl Interrupt {
    /// Asks.
    pub fn interrupt(&self) {
        let mut asked = self.lock();
        asked.is_asked = true;
        asked.handles.iter().for_each(PipelineHandle::drain_all);
    }

    /// Ends the streams that this handle has now, when it is asked; at once if it has been.
    pub(super) fn attach(&self, handle: &PipelineHandle) {
        let mut asked = self.lock();
        if asked.is_asked {
            handle.drain_all();
        }
        asked.handles.push(handle.clone());
    }

    pub(super) fn detach(&self, handle: &PipelineHandle) {
        self.lock().handles.retain(|other| !other.is_same(handle));
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Plays the plan and returns at the end of the stream. Events are passed to `report` on this thread.
///
/// # Errors
/// The error of an element, with the element's name; or the number of lines of results that could not be written.
pub fn run(plan: &Plan, interrupt: &Interrupt, mut report: impl FnMut(&Event)) -> Result<Ending> {
    streams::run_all(std::slice::from_ref(plan), interrupt, |_, event| report(event)).remove(0)
}
