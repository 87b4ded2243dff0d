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
//! A folder that cannot be written never stops the stream: lost clips are counted, and reported once on the bus.

mod clip;
mod encoder;
mod imp;
mod recorder;
mod worker;

use gst::glib;
use gstreamer as gst;

glib::wrapper! {
    /// The element; see the [module](self).
    pub struct RoiRecord(ObjectSubclass<imp::RoiRecord>) @extends gst::Element, gst::Object;
}

/// Name of the structure in the element message of a complete clip.
pub const CLIP: &str = "roirecord-clip";

/// Returns the running time at which an encoded frame is decoded, in nanoseconds. `None` if the frame has no timestamp, or is after the end of
/// the segment.
///
/// With B-frames, the first frames of a file are decoded before the first frame is shown, which can be before the segment begins. Their time
/// is the beginning of the segment, so that a clip has these frames, too.
fn decoding_time(segment: &gst::FormattedSegment<gst::ClockTime>, buffer: &gst::BufferRef) -> Option<u64> {
    let time = buffer.dts_or_pts()?;
    let begin = segment.start().filter(|begin| time < *begin);
    segment.to_running_time(begin.unwrap_or(time)).map(gst::ClockTime::nseconds)
}
