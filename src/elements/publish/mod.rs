//! `roipublish`: writes the results of each frame as one line of JSON to a file, standard output or a server.
//!
//! ```text
//! gst-launch-1.0 -q filesrc location=clip.mp4 ! decodebin ! videoconvert ! roidetect model=face.onnx ! roipublish address=faces.jsonl ! fakesink
//! ```
//!
//! Frames pass unchanged. Lines are queued and written by a separate thread ([`crate::publish`]). The queue holds at most 256 lines or
//! 1 MiB. The first line is written at once, later lines within 100 ms.
//!
//! If the queue is full, `when-full` decides: `wait` (the default for files) blocks the stream, so that no result is lost. `drop-oldest`
//! and `drop-newest` drop lines, for live sources. EOS waits until the queue is empty. A stop writes only the lines that the destination
//! accepts without blocking.
//!
//! `url` names a server instead of a file, such as `mqtt://broker/roiflow/{stream}`. With the folder `spool`, results are stored on disk
//! until the server acknowledges them. So an outage of the server or a restart of this process loses nothing, and the stream never waits
//! for the server.
//!
//! `tags` adds constant fields to each line. `labels`, `zones`, `events-only`, `max-rate` and `only-changes` select the frames and
//! objects.
//!
//! A failing destination never stops the stream: lines that could not be written are counted and reported on the bus. The destination is
//! opened with the first frame, so a failed start does not change earlier results. The schema is that of DL Streamer's `gvametaconvert`,
//! with additions. It is described in [`crate::frame::json`].

mod filter;
mod frame_memory;
mod gaps;
mod imp;
mod permit;
mod route;

pub use frame_memory::FrameMemory;
pub use gaps::{announce_gap, forget_gap};
pub(crate) use imp::capture_time;
pub use permit::permit_results;

use gst::glib;
use gstreamer as gst;
use gstreamer_base as gst_base;

use super::format_type_name as format;
use crate::frame::json;
use crate::publish;

glib::wrapper! {
    /// The element; see the [module](self).
    pub struct RoiPublish(ObjectSubclass<imp::RoiPublish>) @extends gst_base::BaseTransform, gst::Element, gst::Object;
}

/// Name of the structure in the details of a warning about results that could not be written. Its field `closed` is true if the reader
/// closed the destination.
pub const WRITE_FAILED: &str = "roipublish-write-failed";

/// Name of the structure in the details of messages about a server that does not answer. Its field `is-down` is true while the server does
/// not answer.
pub const OUTAGE: &str = "roipublish-outage";

impl RoiPublish {
    /// Creates the empty results file of a stream that ended without a frame. EOS alone does not create it, because a failed start also
    /// ends with EOS.
    pub fn open(&self) {
        use gst::subclass::prelude::ObjectSubclassIsExt;
        self.imp().open();
    }

    /// Sets the first frame number and the first timestamp. Call this before the element starts.
    pub fn set_numbering(&self, numbering: Numbering) {
        use gst::subclass::prelude::ObjectSubclassIsExt;
        *self.imp().numbering.lock().unwrap() = numbering;
    }

    /// Returns the values that were set, and the largest timestamp written so far.
    pub fn numbering(&self) -> Numbering {
        use gst::subclass::prelude::ObjectSubclassIsExt;
        *self.imp().numbering.lock().unwrap()
    }

    /// Sets the property `url`, with the rights of the person who wrote the URL. Call this before the element starts.
    pub fn set_url(&self, url: publish::Url) {
        use gst::subclass::prelude::ObjectSubclassIsExt;
        self.imp().set_url(url);
    }

    /// Also writes the pixels of each frame to shared memory. The line of a frame contains the position of its pixels. The frames must be
    /// raw video.
    pub fn set_frame_memory(&self, memory: FrameMemory) {
        use gst::subclass::prelude::ObjectSubclassIsExt;
        *self.imp().frame_memory.lock().unwrap() = Some(memory);
    }

    /// Sets a deadline. Lines of results wait until then for a program that reads the destination, for example a FIFO. Lines that still
    /// wait at the deadline are counted as lost.
    pub fn write_until(&self, deadline: std::time::Instant) {
        use gst::subclass::prelude::ObjectSubclassIsExt;
        self.imp().deadline.set(deadline);
    }
}

/// First frame number and first timestamp of the lines. A restarted stream continues the numbers and timestamps of its earlier pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Numbering {
    /// Added to the number of each frame.
    pub first_frame: u64,
    /// Added to the stream time of each frame.
    pub first_timestamp_ns: u64,
    /// The largest timestamp written so far.
    pub last_timestamp_ns: Option<u64>,
}

/// Kind of destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiPublishMethod", allow_name_conflict)]
pub enum Method {
    /// The file with the path `address`.
    #[default]
    #[enum_value(name = "A file; - is standard output", nick = "file")]
    File,
    /// Standard output; `address` is ignored.
    #[enum_value(name = "Standard output", nick = "stdout")]
    Stdout,
}

/// Handling of results when the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiPublishWhenFull", allow_name_conflict)]
pub enum WhenFull {
    /// For servers without a spool, the oldest waiting results are dropped. Otherwise the stream waits.
    #[default]
    #[enum_value(name = "Drop the oldest waiting results if a server without a spool does not answer; otherwise wait", nick = "auto")]
    Auto,
    /// The stream waits.
    #[enum_value(name = "Block the stream until the queue has space", nick = "wait")]
    Wait,
    /// The oldest waiting results are dropped.
    #[enum_value(name = "Drop the oldest waiting results", nick = "drop-oldest")]
    DropOldest,
    /// New results are dropped.
    #[enum_value(name = "Drop new results", nick = "drop-newest")]
    DropNewest,
}

impl WhenFull {
    /// Returns the policy for a full queue of this destination. `may_hang` is true if the destination may answer late or never.
    fn in_front_of(self, may_hang: bool) -> publish::WhenFull {
        match self {
            Self::Auto if may_hang => publish::WhenFull::DropOldest,
            Self::Auto | Self::Wait => publish::WhenFull::Wait,
            Self::DropOldest => publish::WhenFull::DropOldest,
            Self::DropNewest => publish::WhenFull::DropNewest,
        }
    }
}

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiPublishFormat", allow_name_conflict)]
pub enum Format {
    /// The format that the file name determines.
    #[default]
    #[enum_value(name = "By the file name: .csv, .coco.json; otherwise JSON lines", nick = "auto")]
    Auto,
    /// One JSON object per frame, each on its own line.
    #[enum_value(name = "One JSON object per frame and line", nick = "json-lines")]
    JsonLines,
    /// One row per object, after a header line.
    #[enum_value(name = "CSV: one row per object", nick = "csv")]
    Csv,
    /// The results format of COCO, with the class indexes of the model.
    #[enum_value(name = "COCO results: a JSON array; category_id is the class index of the model", nick = "coco")]
    Coco,
    /// The results format of COCO, with the category IDs of the COCO data set.
    #[enum_value(name = "COCO results with the category IDs 1 to 90 of COCO's classes, by label", nick = "coco-91")]
    Coco91,
}

impl Format {
    /// Returns the format for this file, or for a server if `file` is `None`.
    ///
    /// # Errors
    /// Returns an error text if the format is not possible for the destination.
    fn of(self, file: Option<&std::path::Path>) -> Result<Self, String> {
        let name = file.map(|file| file.to_string_lossy().to_lowercase()).unwrap_or_default();
        match self {
            Self::Auto if name.ends_with(".csv") => Ok(Self::Csv),
            Self::Auto if name.ends_with(".coco.json") => Ok(Self::Coco),
            Self::Auto => Ok(Self::JsonLines),
            Self::Csv | Self::Coco | Self::Coco91 if file.is_none() => {
                Err("format: expected json-lines for a server, got a format of files; set `format=json-lines`, or publish to a file"
                    .to_owned())
            }
            format => Ok(format),
        }
    }

    /// Returns the text that a file of this format has before, between and after its messages.
    fn framing(self) -> publish::Framing {
        match self {
            Self::Auto | Self::JsonLines => publish::Framing::LINES,
            Self::Csv => publish::Framing::with_header(crate::frame::csv::HEADER),
            Self::Coco | Self::Coco91 => publish::Framing::JSON_ARRAY,
        }
    }
}

/// Forms of masks in the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiPublishMasks", allow_name_conflict)]
pub enum Masks {
    /// Run lengths of the mask's cells.
    #[default]
    #[enum_value(name = "Run lengths of the mask's cells, and the corners of the mask", nick = "runs")]
    Runs,
    /// Outlines of the object and of its holes.
    #[enum_value(name = "Outlines of the object and of its holes", nick = "polygons")]
    Polygons,
    /// Compressed run lengths, as in the results format of COCO.
    #[enum_value(name = "Compressed run lengths of the frame's pixels, as in COCO", nick = "coco")]
    Coco,
    /// The values of the cells as a PNG image.
    #[enum_value(name = "The values of the mask's cells as a PNG image in base64, and the corners of the mask", nick = "png")]
    Png,
}

/// Forms of maps of classes and of numbers in the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiPublishMaps", allow_name_conflict)]
pub enum Maps {
    /// Run lengths of classes, or a list of numbers.
    #[default]
    #[enum_value(name = "Classes as run lengths, numbers as a list", nick = "lists")]
    Lists,
    /// A PNG image.
    #[enum_value(name = "A PNG image in base64, one pixel per cell; numbers are rounded to 65535 steps", nick = "png")]
    Png,
}

impl From<Maps> for json::MapFormat {
    fn from(maps: Maps) -> Self {
        match maps {
            Maps::Lists => Self::Lists,
            Maps::Png => Self::Png,
        }
    }
}

impl From<Masks> for json::MaskFormat {
    fn from(masks: Masks) -> Self {
        match masks {
            Masks::Runs => Self::Runs,
            Masks::Polygons => Self::Polygons,
            Masks::Coco => Self::Coco,
            Masks::Png => Self::Png,
        }
    }
}
