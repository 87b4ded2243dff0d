//! `roiattach`: attaches regions of interest from a property, or the stored results of an earlier run.
//!
//! ```text
//! gst-launch-1.0 videotestsrc num-buffers=30 ! roiattach rois=door:0.1,0.2,0.4,0.9 ! roioverlay ! videoconvert ! fakesink
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert ! roiattach location=results.jsonl ! roioverlay ! videoconvert ! autovideosink
//! ```
//!
//! The elements downstream see the results as if a detector had attached them: `roioverlay` draws them, `roiclassify` and
//! `roidetect inference-region=roi-list` run models on them, `roianalytics` counts them. It reads no pixels.
//!
//! - `rois`: boxes as `[label:]x1,y1,x2,y2` in fractions of the frame, separated by `;`. They are attached to each frame.
//! - `location`: lines of JSON of `roipublish`, or of DL Streamer's `gvametaconvert`. The file is read while the stream runs, so it may be
//!   large. `match=timestamp` finds the line of a frame by its stream time, `match=frame` by its number. Boxes are scaled to the frame.
//!
//! Results that the buffer has already are kept, and the new ones are added. A line that cannot be read is skipped with a warning.
//!
//! `stats` has `frames`, `objects` (attached to frames), `matched` (frames with a line), `lines`, `unmatched` (lines without a frame) and
//! `errors` (lines that cannot be read).
//!
//! | file | has |
//! |---|---|
//! | `imp.rs` | properties and pads |
//! | `rois.rs` | boxes of the property |
//! | `stored.rs` | reads the file, and finds the line of a frame |

mod imp;
mod rois;
mod stored;

use gst::glib;
use gstreamer as gst;

use super::format_type_name as format;

glib::wrapper! {
    /// See the module.
    pub struct RoiAttach(ObjectSubclass<imp::RoiAttach>) @extends gst::Element, gst::Object;
}

/// How the line of a frame is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiAttachMatch", allow_name_conflict)]
pub enum Match {
    /// Stream time.
    #[default]
    #[enum_value(name = "By the stream time: the field timestamp", nick = "timestamp")]
    Timestamp,
    /// Frame number.
    #[enum_value(name = "By the number of the frame since the start: the field frame", nick = "frame")]
    Frame,
}
