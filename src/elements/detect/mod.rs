//! `roidetect`: finds objects in frames, and attaches them to the same buffers.
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roidetect model=face.onnx ! roioverlay ! videoconvert ! autovideosink
//! ```
//!
//! The model needs a description (`face.toml` beside it, or `description=`). Frames pass in order; several are in flight at
//! once, so no `queue` is needed around the element. Boxes travel as `GstVideoRegionOfInterestMeta` too, for other readers.

mod imp;

use gst::glib;
use gstreamer as gst;

glib::wrapper! {
    /// See the module.
    pub struct RoiDetect(ObjectSubclass<imp::RoiDetect>) @extends gst::Element, gst::Object;
}
