//! `roipublish`: writes the results of each frame as one line of JSON to a file or standard output.
//!
//! ```text
//! gst-launch-1.0 -q filesrc location=clip.mp4 ! decodebin ! videoconvert ! roidetect model=face.onnx ! roipublish address=faces.jsonl ! fakesink
//! ```
//!
//! Frames pass untouched. Lines are queued and written by a thread of the element ([`crate::publish`]): at most 256 lines or 1 MiB, the
//! first one at once and later ones within 100 ms. If the destination does not take them in time, `when-full` decides: `wait` (the default)
//! blocks the stream, so that no result is lost; `drop-oldest` and `drop-newest` drop lines, which suits live sources. The end of the
//! stream waits until the queue is empty; a stop writes what can be written at once.
//!
//! A destination that fails never stops the stream: lines that it did not take are counted and reported on the bus. It is opened with the
//! first frame, so that a start that fails leaves earlier results as they are.
//! The schema is that of DL Streamer's `gvametaconvert`, with additions; [`crate::frame::json`] states it.

mod imp;

pub(super) use imp::capture_time;

use gst::glib;
use gstreamer as gst;
use gstreamer_base as gst_base;

use super::format_type_name as format;
use crate::publish;

glib::wrapper! {
    /// The element; see the [module](self).
    pub struct RoiPublish(ObjectSubclass<imp::RoiPublish>) @extends gst_base::BaseTransform, gst::Element, gst::Object;
}

/// The name of the structure in the details of a warning that results could not be written. Its field `closed` says whether that is
/// because the reader closed the destination.
pub const WRITE_FAILED: &str = "roipublish-write-failed";

impl RoiPublish {
    /// Makes the file of results of a stream that ended well without a frame, which is empty. The end of a stream alone does not: a start
    /// that fails ends it, too.
    pub fn open(&self) {
        use gst::subclass::prelude::ObjectSubclassIsExt;
        self.imp().open();
    }

    /// Until when lines may wait for a reader of the destination; later ones are counted as lost.
    pub fn write_until(&self, deadline: std::time::Instant) {
        use gst::subclass::prelude::ObjectSubclassIsExt;
        self.imp().deadline.set(deadline);
    }
}

/// Where results go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiPublishMethod", allow_name_conflict)]
pub enum Method {
    /// To the file that `address` names.
    #[default]
    #[enum_value(name = "A file; - is standard output", nick = "file")]
    File,
    /// To standard output, whatever `address` says.
    #[enum_value(name = "Standard output", nick = "stdout")]
    Stdout,
}

/// What happens to results that the destination does not take in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiPublishWhenFull", allow_name_conflict)]
pub enum WhenFull {
    /// The stream waits.
    #[default]
    #[enum_value(name = "Block the stream until the queue has space", nick = "wait")]
    Wait,
    /// The oldest results that wait are dropped.
    #[enum_value(name = "Drop the oldest waiting results", nick = "drop-oldest")]
    DropOldest,
    /// New results are dropped.
    #[enum_value(name = "Drop new results", nick = "drop-newest")]
    DropNewest,
}

impl From<WhenFull> for publish::WhenFull {
    fn from(when_full: WhenFull) -> Self {
        match when_full {
            WhenFull::Wait => Self::Wait,
            WhenFull::DropOldest => Self::DropOldest,
            WhenFull::DropNewest => Self::DropNewest,
        }
    }
}

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiPublishFormat", allow_name_conflict)]
pub enum Format {
    /// One JSON object a frame, each on a line of its own.
    #[default]
    #[enum_value(name = "One JSON object per frame and line", nick = "json-lines")]
    JsonLines,
}
