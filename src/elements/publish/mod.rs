//! `roipublish`: the results of every frame as one line of JSON, to a file or to standard output.
//!
//! ```text
//! gst-launch-1.0 -q filesrc location=clip.mp4 ! decodebin ! videoconvert ! roidetect model=face.onnx ! roipublish address=faces.jsonl ! fakesink
//! ```
//!
//! Frames pass untouched, and a destination that fails never stops them: what it lost is counted and said on the bus. The
//! destination is opened when the first frame is there, so that a start that fails leaves earlier results as they are.
//! The schema is that of DL Streamer's `gvametaconvert`, with additions; [`json`] states it.
//!
//! [`json`] and [`sink`] know no GStreamer.

mod imp;
pub mod json;
pub mod sink;

pub(super) use imp::capture_time;

use gst::glib;
use gstreamer as gst;
use gstreamer_base as gst_base;

use super::format_type_name as format;

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

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiPublishFormat", allow_name_conflict)]
pub enum Format {
    /// One JSON object a frame, each on a line of its own.
    #[default]
    #[enum_value(name = "One JSON object a frame, one a line", nick = "json-lines")]
    JsonLines,
}
