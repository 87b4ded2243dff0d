//! `roitrack`: names objects over time, so that whoever comes behind knows the same object in every frame.
//!
//! ```text
//! gst-launch-1.0 videotestsrc num-buffers=60 pattern=ball foreground-color=0xffff0000 ! videoconvert
//!     ! roidetect model=assets/tiny/rectangle.onnx ! roitrack
//!     ! roipublish address=tracks.jsonl ! fakesink
//! ```
//!
//! Works on what `roidetect` found, and on the metas of other detectors; put it behind the last detector. It reads no pixels and takes
//! little time, so frames of any format and memory pass, at once and in order, and no `queue` is needed.
//!
//! The name is the object's `id` in the JSON (`region_id` only numbers the objects of a frame), and the
//! parameter `object_id` of its `GstVideoRegionOfInterestMeta`, as DL Streamer's `gvatrack` writes it. What such a tracker named
//! keeps its name. Names are numbers from 1, the same in every run; a second tracker in the same stream begins with 2^24 + 1. `track_state`
//! in the JSON says whether the object is `tentative`, without a name yet, `confirmed`, or `held`, carried over to a frame without inference.
//!
//! - `tracking-type=iou`: by the overlap of boxes (`iou-threshold`), each object where it would be if it went on as before, or else
//!   where it was last seen. Objects of different classes are different objects. `object-class`: only those with one of these labels.
//! - `max-age`: in how many inferred frames in a row an object may be missing until its name ends; `min-hits`: in how many frames it is
//!   found until it gets one. Frames that were not inferred say nothing about who is gone: there tracks are kept as they are.
//! - `max-tracks` bounds what is kept; those that have been missing longest make room.
//! - A flush, another stream, and a jump in time forget all tracks: a time stamp more than two seconds back, or, in
//!   a frame that is marked as a discontinuity, back at all or more than two seconds ahead. A change of size does not: it is the same
//!   picture.
//!
//! `stats` counts `frames`, `objects` (those named, in each frame), `tracks` (now), `tracks-begun`, `tracks-ended` and
//! `objects-refused` (for want of room).

mod imp;

use gst::glib;
use gstreamer as gst;

use super::format_type_name as format;

glib::wrapper! {
    /// See the module.
    pub struct RoiTrack(ObjectSubclass<imp::RoiTrack>) @extends gst::Element, gst::Object;
}

/// How objects are found again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiTrackingType", allow_name_conflict)]
pub enum TrackingType {
    /// By the overlap of boxes.
    #[default]
    #[enum_value(name = "By the overlap of boxes", nick = "iou")]
    Iou,
}
