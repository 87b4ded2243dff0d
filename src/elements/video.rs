//! `roiflow-video`: sink of `roiflow run` that encodes frames and writes them to video files. The element is not part of the plugin.
//!
//! The frames are encoded and written by a pipeline inside the element, one for each file. So the analysis goes on if the recording fails,
//! for example because the disk is full:
//!
//! - If a file fails, or the size of the frames changes, the file is closed, and the next file begins: `out.mp4`, `out.part2.mp4`,
//!   `out.part3.mp4`. `retry` decides when.
//! - The element posts a warning when it stops to record, and when it continues with a new file.
//!
//! A pipe or device gets only one stream of bytes. Frames of another size are scaled to the first size, and a failure is an error.

use std::path::PathBuf;
use std::time::Instant;

use gst::glib;
use gst::subclass::prelude::*;
use gstreamer as gst;
use gstreamer_base as gst_base;

pub use super::video_file::WRITE_FAILED;
pub use super::video_parts::{check, next_part};
use super::video_sink;

/// The name of the element in a gst-launch line.
pub const NAME: &str = "roiflow-video";

glib::wrapper! {
    /// The element; see the [module](self).
    pub struct Video(ObjectSubclass<video_sink::Video>) @extends gst_base::BaseSink, gst::Element, gst::Object;
}

impl Video {
    /// Sets the time until which a write may wait for a reader of the destination. A write that still waits at that time is an error.
    pub fn write_until(&self, deadline: Instant) {
        self.imp().write_until(deadline);
    }

    /// The current or last file, and whether it has bytes. `None` before the first file.
    pub fn file(&self) -> Option<(PathBuf, bool)> {
        self.imp().file()
    }

    /// Sets the path of the first file of this pipeline, which continues the video of an earlier pipeline.
    pub fn continue_at(&self, path: PathBuf) {
        self.imp().continue_at(path);
    }

    /// Number of failures since the start, after each of which frames may be missing in the recording.
    pub fn n_failures(&self) -> u64 {
        self.imp().n_failures()
    }
}
