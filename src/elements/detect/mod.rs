//! `roidetect`: finds objects in frames, and attaches them to the same buffers.
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roidetect model=face.onnx ! roioverlay ! videoconvert ! autovideosink
//! ```
//!
//! The model needs a description (`face.toml` beside it, or `description=`). Frames pass in order; several are in flight at
//! once, so no `queue` is needed around the element. Boxes travel as `GstVideoRegionOfInterestMeta` too, for other readers.
//!
//! A detector can look in the objects that another one found; here for the plates of cars and trucks, whose `parent_id` is then that
//! of the vehicle:
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roidetect model=vehicle.onnx ! roidetect model=plate.onnx inference-region=roi-list object-class=car,truck
//!     ! roiclassify model=color.onnx object-class=car,truck ! roipublish address=plates.jsonl ! fakesink
//! ```
//!
//! With a camera that is faster than the machine, the frame that has waited longest passes without inference; here a result that
//! would be older than 200 ms is given up as well, and what became of the frames is said once a second on the bus:
//!
//! ```text
//! gst-launch-1.0 -m v4l2src ! videoconvert ! roidetect model=face.onnx max-latency=200 stats-interval=1000
//!     ! roipublish address=faces.jsonl ! fakesink
//! ```
//!
//! A run that fails costs its frame the results; more than `max-failures` in a row end the stream with an error. Here the first does:
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert ! roidetect model=face.onnx max-failures=0
//!     ! roipublish address=faces.jsonl ! fakesink
//! ```

mod imp;

use gst::glib;
use gstreamer as gst;

glib::wrapper! {
    /// See the module.
    pub struct RoiDetect(ObjectSubclass<imp::RoiDetect>) @extends gst::Element, gst::Object;
}
