//! Items of the in-flight queue of an inference element: frames with their state, and events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;

use super::policy::Reason;
use super::pool::Held;
use crate::frame::{FrameResults, InferenceStatus};
use crate::stages::RunGuard;

/// An item of the in-flight queue.
pub(super) enum Item {
    Frame(Box<InFlight>),
    Event(gst::Event),
}

impl Item {
    /// Returns the time at which a frame leaves without results; `None` = never.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Frame(frame) => frame.deadline,
            Self::Event(_) => None,
        }
    }
}

/// A frame in the in-flight queue.
pub(super) struct InFlight {
    pub(super) buffer: gst::Buffer,
    /// Number of the frame in this element's stream.
    pub(super) number: u64,
    /// If the frame is not inferred because nothing has moved: the number of the earlier frame with which it was compared.
    pub(super) looks_like: Option<u64>,
    /// Results of earlier elements until inference completes, then all results.
    pub(super) results: FrameResults,
    /// Number of detections from earlier elements.
    pub(super) n_before: usize,
    pub(super) outcome: Outcome,
    pub(super) arrived: Instant,
    /// Time from the frame's admission to its results. The time in downstream elements is not included.
    pub(super) took: Duration,
    /// The time at which the frame leaves without results; `None` = never.
    pub(super) deadline: Option<Instant>,
    pub(super) guard: Arc<RunGuard>,
    pub(super) trace: FrameTrace,
    /// While this value exists, the buffer counts as held from upstream's pool. `None` if the buffer has no pool or was copied.
    pub(super) held: Option<Held>,
}

/// Result of the element's work on a frame.
pub(super) enum Outcome {
    /// The work is not complete yet.
    Open,
    Inferred,
    Skipped(Reason),
    /// The inference of this element failed.
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

/// Trace spans of a frame: its time in the element, and the current phase.
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
        let part = tracing::trace_span!(target: "roiflow::trace", parent: &frame, "wait for a slot");
        Self { frame, part }
    }

    pub(super) fn infer(&mut self) {
        self.part = tracing::Span::none(); // Ends the current phase before the next one begins.
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
