//! Gives time stamps to decoded frames of an address whose format has none, such as MJPEG by HTTP: the time at which they arrive.
//!
//! Without time stamps, results have no times, a limit of time is never reached, and a video of the frames cannot be written.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;

use super::plan::ENTRY;
use super::{Input, Plan};

/// Shortest time between two frames that get a time stamp. Containers store times with a resolution of a millisecond or less.
const LEAST_STEP: Duration = Duration::from_millis(1);

/// Makes a pipeline give a time stamp to each decoded frame without one. Call this before other probes read time stamps.
pub(super) fn stamp(pipeline: &gst::Pipeline, plan: &Plan) {
    let Input::Uri(_) = &plan.input else { return };
    let Some(pad) = pipeline.by_name(ENTRY).and_then(|entry| entry.static_pad("src")) else { return };
    let stamps = Mutex::new(Stamps::default());
    pad.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
        if let Some(gst::PadProbeData::Buffer(buffer)) = &mut info.data {
            let mut stamps = stamps.lock().unwrap_or_else(PoisonError::into_inner);
            let missing = stamps.next(buffer.pts(), Instant::now(), || segment_start(pad));
            missing.into_iter().for_each(|pts| buffer.make_mut().set_pts(pts));
        }
        gst::PadProbeReturn::Ok
    });
}

/// The time stamp of the last frame, and when the frame arrived.
#[derive(Debug, Default)]
struct Stamps(Option<(gst::ClockTime, Instant)>);

impl Stamps {
    /// Returns the time stamp that a frame needs; `None` if the frame has its own. Frames without time stamps continue the times of
    /// earlier frames. `first` is the time stamp of the first frame.
    fn next(&mut self, own: Option<gst::ClockTime>, now: Instant, first: impl FnOnce() -> gst::ClockTime) -> Option<gst::ClockTime> {
        let since = |at: Instant| gst::ClockTime::from_nseconds(now.saturating_duration_since(at).max(LEAST_STEP).as_nanos() as u64);
        let pts = own.or_else(|| self.0.map(|(pts, at)| pts + since(at))).unwrap_or_else(first);
        self.0 = Some((pts, now));
        own.is_none().then_some(pts)
    }
}

fn segment_start(pad: &gst::Pad) -> gst::ClockTime {
    let segment = pad.sticky_event::<gst::event::Segment>(0);
    let start = segment.and_then(|segment| segment.segment().downcast_ref::<gst::ClockTime>()?.start());
    start.unwrap_or(gst::ClockTime::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frames_without_time_stamps_get_one() {
        let (begin, second) = (Instant::now(), gst::ClockTime::SECOND);
        let mut stamps = Stamps::default();
        let mut next = |own, milliseconds| stamps.next(own, begin + Duration::from_millis(milliseconds), || second);
        assert_eq!(next(None, 0), Some(second), "the first time of the segment");
        assert_eq!(next(None, 40), Some(gst::ClockTime::from_mseconds(1040)));
        assert_eq!(next(None, 40), Some(gst::ClockTime::from_mseconds(1041)), "frames that arrive together");
        assert_eq!(next(Some(second * 5), 80), None);
        assert_eq!(next(None, 120), Some(gst::ClockTime::from_mseconds(5040)));
    }
}
