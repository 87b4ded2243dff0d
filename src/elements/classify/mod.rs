//! `roiclassify`: classifies every region of interest of a frame, over the same memory, and attaches what it says.
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roidetect model=face.onnx ! roiclassify model=gender.onnx ! roiclassify model=age.onnx
//!     ! roipublish ! fakesink
//! ```
//!
//! Works on what `roidetect` found, and on the ROI metas of other detectors. A region is a view of the frame, cut out by the
//! pass that fills the model's input. Frames without regions pass at once, in order.
//!
//! A frame of which a region failed goes on without that answer, marked failed. Frames in a row of which every region failed end the
//! stream with an error, if they are more than `max-failures`; frames without regions count neither way.

mod imp;

use gst::glib;
use gstreamer as gst;

glib::wrapper! {
    /// See the module.
    pub struct RoiClassify(ObjectSubclass<imp::RoiClassify>) @extends gst::Element, gst::Object;
}
