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
//!
//! A camera that mostly shows an empty room: frames in which less than a hundredth of the area has changed since the last inferred one
//! are spared, and carry what was found there:
//!
//! ```text
//! gst-launch-1.0 v4l2src ! videoconvert ! roidetect model=person.onnx motion-threshold=0.01 class-thresholds=person=0.6
//!     ! roitrack ! roipublish address=people.jsonl ! fakesink
//! ```
//!
//! `motion-threshold` looks at a sample of the luma, in every format; a frame whose inference failed or was taken back spares no other.
//! `class-thresholds` sets thresholds for single classes by their labels. With `inference-region=roi-list`, `min-object-width`, `-height`,
//! `max-object-width` and `-height` say, in pixels of the frame, how large the objects are in which it looks.

mod imp;
mod work;

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use crate::elements::inference::Inference;
use crate::stages::labels::Labels;

glib::wrapper! {
    /// See the module.
    pub struct RoiDetect(ObjectSubclass<imp::RoiDetect>) @extends Inference, gst::Element, gst::Object;
}

impl RoiDetect {
    /// The labels of the objects that it finds; empty if they have none, `None` if its model is not loaded.
    pub(super) fn labels(&self) -> Option<Labels> {
        self.upcast_ref::<Inference>().work().map(|work| work.stage().spec().labels.clone())
    }
}
