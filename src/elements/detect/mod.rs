//! `roidetect`: detects objects in frames, and attaches them to the same buffers.
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roidetect model=face.onnx ! roioverlay ! videoconvert ! autovideosink
//! ```
//!
//! The model's description is found automatically, or set with `description=`. Frames leave in order. Several frames are in flight at once,
//! so no `queue` is needed before or after the element. Other elements find the boxes as `GstVideoRegionOfInterestMeta`.
//!
//! A detector can run on the objects of another detector. The following pipeline finds the plates of cars and trucks; the `parent_id` of a
//! plate is the ID of the vehicle:
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roidetect model=vehicle.onnx ! roidetect model=plate.onnx inference-region=roi-list object-class=car,truck
//!     ! roiclassify model=color.onnx object-class=car,truck ! roipublish address=plates.jsonl ! fakesink
//! ```
//!
//! If a camera is faster than the machine, the frame that has waited longest is skipped. In the following pipeline, frames whose results
//! would be older than 200 ms are skipped as well, and counters are posted on the bus once per second:
//!
//! ```text
//! gst-launch-1.0 -m v4l2src ! videoconvert ! roidetect model=face.onnx max-latency=200 stats-interval=1000
//!     ! roipublish address=faces.jsonl ! fakesink
//! ```
//!
//! A frame whose run fails passes without results. More than `max-failures` failed frames in a row end the stream with an error. In the
//! following pipeline, the first failed frame ends the stream:
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert ! roidetect model=face.onnx max-failures=0
//!     ! roipublish address=faces.jsonl ! fakesink
//! ```
//!
//! The next pipeline suits a camera that mostly shows an empty room. Frames in which less than 1 % of the area changed since the last
//! inferred frame are not inferred, and carry the objects of that frame:
//!
//! ```text
//! gst-launch-1.0 v4l2src ! videoconvert ! roidetect model=person.onnx motion-threshold=0.01 class-thresholds=person=0.6
//!     ! roitrack ! roipublish address=people.jsonl ! fakesink
//! ```
//!
//! For `motion-threshold`, luma samples of the frame are compared with those of the last frame whose inference succeeded. This works with
//! every pixel format. `class-thresholds` sets thresholds by label. With `inference-region=roi-list`, `min-object-width`, `-height`,
//! `max-object-width` and `-height` limit the size of the parent objects, in pixels of the frame.

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
    /// Returns the labels of the detected objects; empty if the model has no labels, `None` if the model is not loaded.
    pub(super) fn labels(&self) -> Option<Labels> {
        self.upcast_ref::<Inference>().work().map(|work| work.stage().spec().labels.clone())
    }
}
