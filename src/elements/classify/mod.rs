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
//! With `inference-region=full-frame` the frame as a whole is classified, whatever was found in it: a scene, the weather. The answer is one
//! of the frame, `classifications` in the JSON:
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roiclassify model=scene.onnx inference-region=full-frame ! roipublish ! fakesink
//! ```
//!
//! A frame of which a region failed goes on without that answer, marked failed. Frames in a row of which every region failed end the
//! stream with an error, if they are more than `max-failures`; frames without regions count neither way.
//!
//! Behind a tracker, objects need not be classified in every frame. Here each is when it is new, then every tenth frame, and when its
//! box has grown by a fifth; its label is the vote of its last five answers, its age their mean:
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roidetect model=face.onnx ! roitrack
//!     ! roiclassify model=gender.onnx reclassify-interval=10 reclassify-growth=0.2 consensus=5
//!     ! roiclassify model=age.onnx reclassify-interval=10 reclassify-growth=0.2 consensus=5
//!     ! roipublish ! fakesink
//! ```
//!
//! - `reclassify-interval`: after so many frames; 1: in every frame, 0: never again. `reclassify-growth`: also when the area of the box has
//!   grown by more than this share. `reclassify-movement`: at its time only if the box has moved by more than this share of its
//!   width or height. In between the object carries what is known of it, also in frames that pass without inference.
//! - `consensus`: how many answers vote; until there are as many, the object is classified in every frame. The label that was given most
//!   often wins, of equal ones that with the larger sum of confidences, then the newer; its confidence is the mean of those with
//!   which it was given. Numbers are averaged. An answer below `threshold` is a try without a vote, a run that failed is no try.
//! - `classifier-async-mode`: frames do not wait; answers go with later ones. What fails then is told with the next frame. A frame whose
//!   buffer is held by a run in the background can't be written in place downstream: who draws on it pays for a copy.
//! - `min-object-width`, `-height`, `max-object-width`, `-height`: only objects of such a size, in pixels of the frame, are classified. One
//!   that is too small now keeps what was said when it was larger.
//!
//! All but the last go by the ids of a tracker; objects without one are classified in every frame, their frames wait, and a warning says
//! so once. A flush and a stop forget everything; at most 1024 objects are remembered. `stats` counts `objects-classified`,
//! `objects-recalled`, `objects-nameless`, `objects-passed-over` and `objects-unaligned`.

mod imp;
mod work;

use gst::glib;
use gstreamer as gst;

use crate::elements::inference::Inference;

glib::wrapper! {
    /// See the module.
    pub struct RoiClassify(ObjectSubclass<imp::RoiClassify>) @extends Inference, gst::Element, gst::Object;
}
