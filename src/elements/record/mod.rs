//! `roirecord`: writes clips around events, with the video before and after them.
//!
//! ```text
//! gst-launch-1.0 rtspsrc location=rtsp://camera/1 ! rtph264depay ! h264parse ! tee name=camera
//!     roirecord name=record folder=clips object-class=person ! roipublish address=results.jsonl ! fakesink
//!     camera. ! queue ! record.video
//!     camera. ! queue ! decodebin ! videoconvert ! roidetect model=yolo11n.onnx ! roitrack ! record.sink
//! ```
//!
//! Each object on a frame at the pad `sink` is an event if it has one of the labels in `object-class` and at least the confidence
//! `min-confidence`. A clip begins `pre-roll` before its first event, at the key frame before that time, and ends `post-roll` after its
//! last event. Events whose clips would overlap share one clip. A clip that reaches `max-duration` is continued by another clip.
//!
//! Frames at `sink` pass unchanged to `src`. The recorded video has one of two sources:
//!
//! - With the request pad `video`: H.264 or H.265 of the same source, as above. This video is neither decoded nor encoded, so recording it
//!   costs nearly nothing. Frames are matched with results by running time.
//! - Without the pad `video`, and with raw video at `sink`: the frames are encoded once, by `x264enc` or `openh264enc`.
//!
//! A clip is an MP4 file, which appears under its final name only when it is complete. With `max-bytes`, the oldest clips in the folder are
//! deleted. For each clip, the element posts the message `roirecord-clip`, and `roipublish` downstream writes a line
//! `{"event":"clip", ...}` with the path.
//!
//! An application can also trigger a clip: it sends the custom downstream event `roirecord-trigger` to the pad `sink`. The optional field
//! `label` names the trigger.
//!
//! A failure of a recording never stops the stream. The written part of a clip is kept, and the next file begins at the next key frame. If it
//! fails, too, one warning says so, and further files are tried after a delay. Lost clips are counted.

mod clip;
mod contents;
mod encoder;
mod imp;
mod recorder;
mod worker;

use gst::glib;
use gst::subclass::prelude::*;
use gstreamer as gst;

use crate::elements::private_pipeline::Increasing;

glib::wrapper! {
    /// The element; see the [module](self).
    pub struct RoiRecord(ObjectSubclass<imp::RoiRecord>) @extends gst::Element, gst::Object;
}

impl RoiRecord {
    /// The element continues the recording of an earlier pipeline. So a folder that cannot be opened does not end the stream.
    pub(crate) fn continue_recording(&self) {
        self.imp().continue_recording();
    }
}

/// Name of the structure in the element message of a complete clip.
pub const CLIP: &str = "roirecord-clip";

/// Running times of the frames at a pad, which increase.
#[derive(Debug, Default)]
struct RunningTimes(Increasing);

impl RunningTimes {
    /// Returns the running time of the next frame in nanoseconds: for encoded frames, the time at which it is decoded. `None` if the frame is
    /// outside the segment, or before the first timestamp.
    ///
    /// With B-frames, the first frames of a file are decoded before the first frame is shown, which can be before the segment begins. Their
    /// time is the beginning of the segment, so that a clip has these frames, too. If a process was not running for some time, the frames that
    /// arrive afterwards may have no timestamps, or all the same.
    fn next(&mut self, segment: &gst::FormattedSegment<gst::ClockTime>, buffer: &gst::BufferRef, is_encoded: bool) -> Option<u64> {
        let time = match buffer.dts_or_pts() {
            Some(time) => {
                let begin = segment.start().filter(|begin| is_encoded && time < *begin);
                Some(segment.to_running_time(begin.unwrap_or(time))?)
            }
            None => {
                self.0.last()?;
                None
            }
        };
        Some(self.0.next(time).nseconds())
    }
}
