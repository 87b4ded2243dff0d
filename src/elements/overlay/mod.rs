//! `roioverlay`: draws the boxes and keypoints of a frame's results, and what is known of each, on the frame.
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert ! roidetect model=face.onnx ! roioverlay ! videoconvert ! autovideosink
//! ```
//!
//! Draws on the frame's own format, in place and without a conversion; a frame without results passes untouched, and so
//! does every frame with `draw=false`. Reads metas and
//! nothing else: no model runs here.
//!
//! [`draw`] is the drawing itself, which knows no GStreamer.

pub mod draw;
mod imp;

use gst::glib;
use gstreamer as gst;
use gstreamer_base as gst_base;

glib::wrapper! {
    /// The element; see the [module](self).
    pub struct RoiOverlay(ObjectSubclass<imp::RoiOverlay>) @extends gst_base::BaseTransform, gst::Element, gst::Object;
}
