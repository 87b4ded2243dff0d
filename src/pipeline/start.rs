//! Lets stream time begin at 0 with the first frame, for inputs whose own times begin elsewhere, and go on when a file is repeated.
//!
//! Times of MPEG-TS begin at any value, so GStreamer's stream time of the first frame depends on the demuxer. Containers such as mp4 define
//! when a frame is shown; their times stay. Running time, which encoders and sinks use, is the same with and without this module.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gst::prelude::*;
use gstreamer as gst;

use super::plan::{ENTRY, SOURCE};
use super::{Input, Plan};
use crate::intake::{factory_name, klass};

/// Demuxers of streams whose times begin at any value. Adaptive streaming is recognized by its class.
const DEMUXERS: [&str; 3] = ["tsdemux", "mpegpsdemux", "flvdemux"];

/// Makes stream time begin with the first frame of such an input. Call this after [`super::arrival::stamp`], because frames need a time.
pub(super) fn at_first_frame(pipeline: &gst::Pipeline, plan: &Plan) {
    let (Input::File(_) | Input::Uri(_)) = &plan.input else { return };
    let source = pipeline.by_name(SOURCE).and_then(|source| source.downcast::<gst::Bin>().ok());
    let pad = pipeline.by_name(ENTRY).and_then(|entry| entry.static_pad("src"));
    let Some((source, pad)) = source.zip(pad) else { return };
    let applies = Arc::new(AtomicBool::new(plan.outputs.repeat && matches!(plan.input, Input::File(_))));
    let of_elements = applies.clone();
    source.connect_deep_element_added(move |_, _, element| {
        if DEMUXERS.contains(&&*factory_name(element)) || klass(element).contains("Adaptive") {
            of_elements.store(true, Ordering::Relaxed);
        }
    });
    let times = Mutex::new(Times::default());
    pad.add_probe(gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM | gst::PadProbeType::EVENT_FLUSH, move |pad, info| {
        let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
        match &info.data {
            Some(gst::PadProbeData::Event(event)) => match event.view() {
                gst::EventView::Segment(_) => times.is_new = true,
                gst::EventView::FlushStop(_) => *times = Times::default(),
                _ => {}
            },
            Some(gst::PadProbeData::Buffer(buffer)) if applies.load(Ordering::Relaxed) => {
                let Some(pts) = buffer.pts() else { return gst::PadProbeReturn::Ok };
                if !std::mem::take(&mut times.is_new) {
                    times.go_on(pts);
                    return gst::PadProbeReturn::Ok;
                }
                let own = pad.sticky_event::<gst::event::Segment>(0);
                let segment = own.as_ref().and_then(|own| times.begin(own.segment().downcast_ref()?, pts));
                drop(times);
                if let Some((own, segment)) = own.zip(segment) {
                    // The probe is called again for this event.
                    pad.push_event(gst::event::Segment::builder(&segment).seqnum(own.seqnum()).build());
                }
            }
            _ => {}
        }
        gst::PadProbeReturn::Ok
    });
}

/// Times of the frames so far.
#[derive(Debug, Default)]
struct Times {
    /// Running time of the first frame.
    first: Option<gst::ClockTime>,
    /// Time stamp and stream time of the last frame.
    last: Option<(gst::ClockTime, gst::ClockTime)>,
    /// Time between the last two frames.
    step: gst::ClockTime,
    /// Whether no frame of the current segment has arrived.
    is_new: bool,
}

impl Times {
    /// A frame with this time stamp has followed in the same segment.
    fn go_on(&mut self, pts: gst::ClockTime) {
        if let Some((last_pts, time)) = self.last {
            self.step = pts.saturating_sub(last_pts);
            self.last = Some((pts, time + self.step));
        }
    }

    /// Returns the segment that begins with a frame, and whose stream time is the running time since the first frame, or later. `None` if
    /// stream time is correct without a new segment.
    fn begin(&mut self, own: &gst::FormattedSegment<gst::ClockTime>, pts: gst::ClockTime) -> Option<gst::FormattedSegment<gst::ClockTime>> {
        let running_time = own.to_running_time(pts)?;
        let time = running_time.saturating_sub(*self.first.get_or_insert(running_time));
        // The duration of the last frame of a file may be unknown. The next repetition then begins at the same running time.
        let after_last = self.last.map(|(_, time)| time + self.step);
        let time = time.max(after_last.unwrap_or_default());
        self.last = Some((pts, time));
        if own.to_stream_time(pts) == Some(time) {
            return None;
        }
        let mut segment = own.clone();
        segment.set_start(pts);
        segment.set_position(pts);
        segment.set_offset(gst::ClockTime::ZERO);
        segment.set_base(running_time);
        segment.set_time(time);
        Some(segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_time_counts_from_the_first_frame() {
        gst::init().unwrap();
        let at = gst::ClockTime::from_mseconds;
        let segment = |start: u64, base: u64| {
            let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
            segment.set_start(at(start));
            segment.set_time(at(start));
            segment.set_base(at(base));
            segment
        };
        let mut times = Times::default();
        let first = times.begin(&segment(0, 0), at(780)).unwrap();
        assert_eq!((first.to_stream_time(at(780)), first.to_stream_time(at(820))), (Some(at(0)), Some(at(40))));
        assert_eq!(first.to_running_time(at(820)), Some(at(820)), "running time stays");
        let second = times.begin(&segment(780, 2780), at(780)).unwrap();
        assert_eq!((second.to_stream_time(at(780)), second.to_running_time(at(780))), (Some(at(2000)), Some(at(2780))));
        assert_eq!(Times::default().begin(&segment(0, 0), at(0)), None);
    }
}
