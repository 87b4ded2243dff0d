//! `roicrop`: writes the best image of each object as JPEG.
//!
//! ```text
//! gst-launch-1.0 filesrc location=street.mp4 ! decodebin ! videoconvert ! roidetect model=person.onnx ! roitrack
//!     ! roicrop folder=crops object-class=person ! roipublish address=results.jsonl ! fakesink
//! ```
//!
//! Frames pass unchanged. Of each object with a track ID, the element keeps the image with the largest product of confidence and area. The
//! element writes this image when the track ends: when the object is absent for more than `max-age` frames, or at the end of the stream.
//! Without a tracker upstream, each object of each frame is written.
//!
//! A file appears under its final name only when it is complete. With `max-bytes`, the oldest images in the folder are deleted. For each
//! image, `roipublish` downstream writes a line `{"event":"crop", ...}` with the path. With `in-message`, the line has the image itself,
//! encoded in Base64.
//!
//! A folder that cannot be written never stops the stream: lost images are counted, and reported once on the bus.

mod best;
mod imp;

use gst::glib;
use gstreamer as gst;
use gstreamer_base as gst_base;

glib::wrapper! {
    /// The element; see the [module](self).
    pub struct RoiCrop(ObjectSubclass<imp::RoiCrop>) @extends gst_base::BaseTransform, gst::Element, gst::Object;
}
