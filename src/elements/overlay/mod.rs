//! `roioverlay`: draws boxes, keypoints, labels and attributes on the frame.
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert ! roidetect model=face.onnx ! roioverlay ! videoconvert ! autovideosink
//! ```
//!
//! `roioverlay` draws in the frame's own format, in place and without conversion. Frames without results, and all frames with `draw=false`,
//! pass unchanged. The element runs no model: it reads only metas.
//!
//! The drawing code, without GStreamer, is in `roiflow_images`.

mod imp;

use gst::glib;
use gstreamer as gst;
use gstreamer_base as gst_base;

glib::wrapper! {
    /// The element; see the [module](self).
    pub struct RoiOverlay(ObjectSubclass<imp::RoiOverlay>) @extends gst_base::BaseTransform, gst::Element, gst::Object;
}
