//! `roitrack`: gives each object a track ID that stays the same from frame to frame.
//!
//! ```text
//! gst-launch-1.0 videotestsrc num-buffers=60 pattern=ball foreground-color=0xffff0000 ! videoconvert
//!     ! roidetect model=assets/tiny/rectangle.onnx ! roitrack
//!     ! roipublish address=tracks.jsonl ! fakesink
//! ```
//!
//! `roitrack` works on the objects of `roidetect`, and on the metas of other detectors. Place it after the last detector. It takes little time,
//! and reads no pixels unless `camera-motion` is set. So frames of any format and memory pass immediately and in order, and no `queue` is needed.
//!
//! In the JSON, the track ID is the `id` of the object; `region_id` only numbers the objects of a frame. In the
//! `GstVideoRegionOfInterestMeta` of the object, the track ID is the parameter `object_id`, as in DL Streamer's `gvatrack`. IDs of
//! `gvatrack` are kept. IDs count from 1 and are the same in every run; a second tracker in the same stream counts from 2^24 + 1.
//! `track_state` in the JSON is `tentative` (no ID yet), `confirmed`, `held` (carried over to a frame without inference), or `predicted` (the
//! same with a box that the tracker has moved: `carry-results=predicted` of `roidetect`).
//!
//! - `tracking-type`: how objects are associated with tracks.
//!   - `hybrid` (default): by overlap, height, position of the feet, and confidence. Compensates the motion of the camera if the frame has
//!     several objects. An object keeps its ID if the detector changes its class between frames.
//!   - `bytetrack` and `sort`: by overlap with Kalman filters, as these methods were published.
//!   - `iou`: by overlap with the predicted boxes, then with the last boxes. This is the fastest method.
//! - `high-confidence`: objects with a lower confidence continue tracks, but start no tracks (only `hybrid` and `bytetrack`). A detector
//!   with a lower threshold reports hidden objects for longer, so tracks break less often: `roidetect threshold=0.2`.
//! - `iou-threshold`: smallest overlap of a box with the box of its track. `hybrid` does not use it.
//! - `object-class`: tracks only objects with one of these labels.
//! - `max-age`: inferred frames in a row without the object until its track ends. `min-hits`: frames in a row with the object until it gets
//!   an ID. Frames without inference do not age tracks.
//! - `camera-motion`: estimates the motion of the camera from the pixels, as a translation and a scale, and moves the tracks with it. Needs raw
//!   video in memory that the CPU can read.
//! - `report-lost`: adds the tracks whose objects are not detected to the results, with their predicted boxes. The JSON has them in
//!   `lost_tracks`, with the `track_state` `lost`.
//! - `max-tracks`: maximum number of tracks; the track that has been lost longest is evicted.
//! - A flush, a new stream, and a time jump end all tracks. A time jump are two timestamps in a row that are more than two seconds back. On a
//!   frame with the DISCONT flag, a time jump is any step back, or a step ahead of more than two seconds. A change of the frame size scales
//!   the tracks.
//! - At few frames per second, objects move farther between two frames, and are found in a larger area around their boxes.
//!
//! `stats` counts `frames`, `objects` (with a track ID, summed over frames), `tracks` (current), `tracks-lost` (current tracks whose object is
//! not detected), `tracks-begun`, `tracks-ended`, `tracks-recovered` (objects found again) and `objects-refused` (because all tracks are in use).

mod imp;

use gst::glib;
use gstreamer as gst;

use super::format_type_name as format;

glib::wrapper! {
    /// See the module.
    pub struct RoiTrack(ObjectSubclass<imp::RoiTrack>) @extends gst::Element, gst::Object;
}

impl RoiTrack {
    /// Returns the last track ID of this element; 0 before the first ID.
    pub fn last_id(&self) -> i32 {
        use gst::subclass::prelude::ObjectSubclassIsExt;
        self.imp().last_id()
    }

    /// Continues after this track ID, so that a restarted stream never uses an ID again.
    pub fn continue_after(&self, last_id: i32) {
        use gst::subclass::prelude::ObjectSubclassIsExt;
        self.imp().continue_after(last_id);
    }
}

/// Method that associates objects with tracks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiTrackingType", allow_name_conflict)]
pub enum TrackingType {
    /// By the overlap of boxes.
    #[enum_value(name = "By the overlap of boxes", nick = "iou")]
    Iou,
    /// By the method SORT.
    #[enum_value(name = "SORT: overlap with Kalman filters", nick = "sort")]
    Sort,
    /// By the method ByteTrack.
    #[enum_value(name = "ByteTrack: overlap in two stages by confidence", nick = "bytetrack")]
    ByteTrack,
    /// By overlap, size, position, confidence and camera motion.
    #[default]
    #[enum_value(name = "By overlap, size, position, confidence and camera motion", nick = "hybrid")]
    Hybrid,
}
