//! Limits of a run: `--frames`, `--seconds`, and the timeouts of a source, `--source-timeout` and `--no-frame-timeout`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gst::prelude::*;
use gstreamer as gst;

use super::Plan;
use super::plan::{ENTRY, PUBLISH, SOURCE};

/// The limits of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The stream ends after this number of frames.
    pub n_frames: Option<u64>,
    /// The stream ends after this time, measured in timestamps from the first frame on.
    pub duration: Option<Duration>,
    /// A camera or network source that delivers no data for this long counts as lost. `None` = no limit.
    pub source_timeout: Option<Duration>,
    /// A live source that delivers data but no decoded frame for this long counts as lost. Before its first frame, it may take three
    /// times as long. `None` = no limit.
    pub frame_timeout: Option<Duration>,
}

/// Default of `source_timeout` and `frame_timeout`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

impl Default for Limits {
    fn default() -> Self {
        Self { n_frames: None, duration: None, source_timeout: Some(DEFAULT_TIMEOUT), frame_timeout: Some(DEFAULT_TIMEOUT) }
    }
}

/// Name of the application message that reports a reached limit.
pub(super) const REACHED: &str = "roiflow-limit-reached";

/// Passes frames up to a limit of frames or time, and refuses all later frames.
pub(super) struct Gate {
    pad: gst::Pad,
    is_reached: Arc<AtomicBool>,
}

#[derive(Default)]
struct Passed {
    n_frames: u64,
    first: Option<gst::ClockTime>,
}

impl Gate {
    /// Adds the gate to a pipeline. Returns `None` if the plan limits neither frames nor time. The gate counts frames at the source. If an
    /// element may drop or repeat frames, the gate counts frames at the JSON writer instead, so that the number of lines is exact. If the
    /// graph has branches, the gate always counts frames at the source.
    pub(super) fn new(pipeline: &gst::Pipeline, plan: &Plan) -> Option<Self> {
        let Limits { n_frames, duration, .. } = plan.limits;
        if n_frames.is_none() && duration.is_none() {
            return None;
        }
        let has_branches = plan.elements.iter().any(|element| element.factory == "tee");
        let publish = pipeline.by_name(PUBLISH).and_then(|publish| publish.static_pad("sink")?.peer());
        let is_inference = |factory: &str| matches!(factory, "roidetect" | "roiclassify");
        let inference = || plan.elements.iter().rfind(|element| is_inference(&element.factory));
        let inferred = || pipeline.by_name(&inference()?.name)?.static_pad("src");
        let source = || [ENTRY, SOURCE].iter().find_map(|name| pipeline.by_name(name)?.static_pad("src"));
        let keeps_all = keeps_all_frames(plan) || has_branches;
        let pad = publish.or_else(inferred).filter(|_| !keeps_all).or_else(source)?;
        let is_reached = Arc::new(AtomicBool::new(false));
        let (passed, of_probe) = (Mutex::new(Passed::default()), is_reached.clone());
        pad.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
            if of_probe.load(Ordering::Acquire) {
                return refuse(info);
            }
            let mut passed = passed.lock().unwrap_or_else(PoisonError::into_inner);
            let time = info.buffer().and_then(|buffer| buffer.pts()).and_then(|pts| running_time(pad, pts));
            if let (Some(limit), Some(time)) = (duration, time) {
                let first = *passed.first.get_or_insert(time);
                if Duration::from_nanos(time.saturating_sub(first).nseconds()) >= limit {
                    reach(pad, &of_probe);
                    return refuse(info);
                }
            }
            passed.n_frames += 1;
            if n_frames != Some(passed.n_frames) {
                return gst::PadProbeReturn::Ok;
            }
            // Push the last frame in this probe, so that EOS, which `reach` sends, cannot overtake the frame.
            if let (Some(peer), Some(gst::PadProbeData::Buffer(buffer))) = (pad.peer(), info.data.take()) {
                info.flow_res = peer.chain(buffer);
            }
            reach(pad, &of_probe);
            gst::PadProbeReturn::Handled
        });
        Some(Self { pad, is_reached })
    }

    pub(super) fn is_reached(&self) -> bool {
        self.is_reached.load(Ordering::Acquire)
    }

    /// Returns the flag that is set when the limit is reached.
    pub(super) fn reached(&self) -> Arc<AtomicBool> {
        self.is_reached.clone()
    }

    /// Ends the stream after the last frame that passed.
    pub(super) fn end(&self) {
        push_end(&self.pad);
    }
}

/// Whether no element of the graph can drop or repeat frames.
fn keeps_all_frames(plan: &Plan) -> bool {
    let are_ours = plan.elements.iter().all(|element| element.factory.starts_with("roi"));
    let mut properties = plan.literals.iter().map(|literal| &literal.property).chain(plan.assignments.iter().map(|set| &set.property));
    are_ours && properties.all(|property| property != "drop-frames")
}

/// Sends EOS to the peer of a pad, on a thread of GStreamer, because the event waits until downstream has accepted the previous
/// frame.
///
/// The event is sent to the peer and not pushed on the pad, because the pad of a lost source may still be flushing.
pub(super) fn push_end(pad: &gst::Pad) {
    let Some((element, peer)) = pad.parent_element().zip(pad.peer()) else { return };
    element.call_async(move |_| {
        peer.send_event(gst::event::Eos::new());
    });
}

/// Discards the frame and returns EOS to upstream, so that upstream stops.
fn refuse(info: &mut gst::PadProbeInfo<'_>) -> gst::PadProbeReturn {
    info.data.take();
    info.flow_res = Err(gst::FlowError::Eos);
    gst::PadProbeReturn::Handled
}

fn reach(pad: &gst::Pad, is_reached: &AtomicBool) {
    is_reached.store(true, Ordering::Release);
    if let Some(element) = pad.parent_element() {
        let structure = gst::Structure::new_empty(REACHED);
        // Posting fails only if the pipeline is stopping.
        let _posted = element.post_message(gst::message::Application::builder(structure).src(&element).build());
    }
}

/// Returns the running time of a timestamp. When a loop starts the input again, timestamps start again, but running time continues.
fn running_time(pad: &gst::Pad, pts: gst::ClockTime) -> Option<gst::ClockTime> {
    let segment = pad.sticky_event::<gst::event::Segment>(0)?;
    segment.segment().downcast_ref::<gst::ClockTime>()?.to_running_time(pts)
}
