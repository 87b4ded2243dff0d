//! What is in the in-flight queue of an inference element: frames, with all that is known of them, and events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;

use super::policy::Reason;
use super::pool::Held;
use crate::frame::{FrameResults, InferenceStatus};
use crate::stages::RunGuard;

/// What is in the queue.
pub(super) enum Item {
    Frame(Box<InFlight>),
    Event(gst::Event),
}

impl Item {
    /// When a frame passes without results.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Frame(frame) => frame.deadline,
            Self::Event(_) => None,
        }
    }
}

/// A frame in the queue.
pub(super) struct InFlight {
    pub(super) buffer: gst::Buffer,
    /// Its number in this element's stream.
    pub(super) number: u64,
    /// The number of the frame that it looks like, where that is why it is not inferred.
    pub(super) looks_like: Option<u64>,
    /// What earlier elements found until its inference is done; then all that is known.
    pub(super) results: FrameResults,
    /// How many of the detections were there before.
    pub(super) n_before: usize,
    pub(super) outcome: Outcome,
    pub(super) arrived: Instant,
    /// From its admission to its results; what downstream takes does not count.
    pub(super) took: Duration,
    /// When it passes without results.
    pub(super) deadline: Option<Instant>,
    pub(super) guard: Arc<RunGuard>,
    pub(super) trace: FrameTrace,
    /// Counts it among those of upstream's pool.
    pub(super) held: Option<Held>,
}

/// What became of a frame.
pub(super) enum Outcome {
    /// Not known yet.
    Open,
    Inferred,
    Skipped(Reason),
    /// This element's own inference failed.
    Failed(Arc<str>),
}

impl InFlight {
    pub(super) fn skip(&mut self, reason: Reason) {
        if !matches!(self.results.status, InferenceStatus::Failed(_)) {
            self.results.status = InferenceStatus::Skipped(reason.text());
        }
        self.outcome = Outcome::Skipped(reason);
    }
}

/// What a trace shows of a frame: how long it was here, and in which part of its way.
pub(super) struct FrameTrace {
    pub(super) frame: tracing::Span,
    pub(super) part: tracing::Span,
}

impl FrameTrace {
    pub(super) fn begin(element: &gst::Element) -> Self {
        let empty = tracing::field::Empty;
        let frame = tracing::trace_span!(
            target: "roiflow::trace", parent: None, "frame", element = element.name().as_str(), frame = empty, outcome = empty, reason = empty
        );
        let part = tracing::trace_span!(target: "roiflow::trace", parent: &frame, "wait for a place");
        Self { frame, part }
    }

    pub(super) fn infer(&mut self) {
        self.part = tracing::Span::none(); // One part ends before the next begins.
        self.part = tracing::trace_span!(target: "roiflow::trace", parent: &self.frame, "inference");
    }

    pub(super) fn wait_for_turn(&mut self) {
        self.part = tracing::Span::none();
        self.part = tracing::trace_span!(target: "roiflow::trace", parent: &self.frame, "wait for its turn");
    }

    pub(super) fn end(self, outcome: &str, reason: Option<Reason>) {
        drop(self.part);
        if let Some(reason) = reason {
            self.frame.record("reason", reason.name());
        }
        self.frame.record("outcome", outcome);
    }
}
