//! What monitors a running pipeline: the data of its source, its frames, and its limits. The session asks whether the source is lost, and why
//! the input has ended.

use std::sync::Arc;

use gst::prelude::*;
use gstreamer as gst;

use super::decoded::Decoded;
use super::plan::SOURCE;
use super::watch::Watch;
use super::{Error, Plan, arrival, limits, start};
use crate::intake::Intake;

/// The parts that monitor a running pipeline.
pub(super) struct Supervision {
    /// What the source has sent. `None` for sources that decode nothing.
    pub(super) intake: Option<Arc<Intake>>,
    pub(super) watch: Option<Watch>,
    pub(super) decoded: Decoded,
    pub(super) limit: Option<limits::Gate>,
}

impl Supervision {
    pub(super) fn new(pipeline: &gst::Pipeline, plan: &Plan) -> Self {
        // The stamps come first: the limit and the watch read the time stamps of frames.
        arrival::stamp(pipeline, plan);
        start::at_first_frame(pipeline, plan);
        let source = pipeline.by_name(SOURCE).and_then(|source| source.downcast::<gst::Bin>().ok());
        let intake = source.map(|source| Intake::of(&source));
        let watch = intake.clone().and_then(|intake| Watch::new(pipeline, plan, intake));
        let limit = limits::Gate::new(pipeline, plan);
        let decoded = Decoded::new(pipeline, plan, limit.as_ref().map(limits::Gate::reached));
        Self { intake, watch, decoded, limit }
    }

    pub(super) fn is_at_limit(&self) -> bool {
        self.limit.as_ref().is_some_and(limits::Gate::is_reached)
    }

    /// Whether data of the input has arrived.
    pub(super) fn has_played(&self) -> bool {
        self.decoded.n_frames() > 0 || self.watch.as_ref().is_some_and(Watch::has_arrived)
    }

    /// Whether data arrived before this error of the source, so that results for this data may still follow.
    pub(super) fn may_have_results(&self, error: &gst::message::Error) -> bool {
        let is_reading = error.error().is::<gst::ResourceError>();
        self.decoded.n_frames() > 0 || is_reading && self.watch.as_ref().is_some_and(Watch::has_arrived)
    }

    /// Returns the error if the source has sent what it must not send.
    pub(super) fn excess(&self) -> Option<Error> {
        let reason = self.intake.as_ref()?.excess()?;
        Some(Error::failed(format!("the source `{}` was lost: {reason}", self.decoded.name())))
    }

    /// Returns the error if the EOS of the input was not expected. `n_shown` is the number of frames that have left the graph.
    pub(super) fn broken_end(&self, n_shown: u64) -> Option<Error> {
        if self.is_at_limit() {
            return None;
        }
        let declares = self.decoded.declares_duration();
        let lost = self.watch.as_ref().and_then(|watch| watch.broken_end(self.decoded.reached(), declares));
        // The data beyond a limit may be the last of the input.
        self.excess().or(lost).or_else(|| self.decoded.missing()).or_else(|| self.decoded.nothing(self.intake.as_ref()?, n_shown))
    }
}
