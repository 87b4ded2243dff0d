//! `roiclassify`: classifies each region of interest of a frame, over the same memory, and attaches the result to its object.
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roidetect model=face.onnx ! roiclassify model=gender.onnx ! roiclassify model=age.onnx
//!     ! roipublish ! fakesink
//! ```
//!
//! `roiclassify` works on the objects of `roidetect`, and on the ROI metas of other detectors. A region is a view of the frame:
//! preprocessing reads it directly. Frames without regions pass immediately, in order.
//!
//! With `inference-region=full-frame`, the whole frame is classified, for example the scene or the weather. The result is in
//! `classifications` of the JSON:
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roiclassify model=scene.onnx inference-region=full-frame ! roipublish ! fakesink
//! ```
//!
//! If the run of a region fails, the frame passes without the result of that region and is marked `failed`. The stream ends with an error
//! after more than `max-failures` frames in a row in which all regions failed. Frames without regions are not counted.
//!
//! Tracked objects need not be classified in every frame. Here an object is classified when it is new, every ten frames, and when its box
//! has grown by a fifth. Its label is a vote of the last five results, its age their mean:
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roidetect model=face.onnx ! roitrack
//!     ! roiclassify model=gender.onnx reclassify-interval=10 reclassify-growth=0.2 consensus=5
//!     ! roiclassify model=age.onnx reclassify-interval=10 reclassify-growth=0.2 consensus=5
//!     ! roipublish ! fakesink
//! ```
//!
//! - `reclassify-interval`: frames between two classifications; 1: every frame, 0: only once. `reclassify-growth`: also when the box area
//!   has grown by more than this fraction. `reclassify-movement`: when the interval expires, only if the box moved by more than this
//!   fraction of its width or height. In between, the object carries its last results, also on frames without inference.
//! - `consensus`: number of results that vote; until then, the object is classified in every frame. The most frequent label wins; ties are
//!   decided by the sum of confidences, then by the newest result. Its confidence is the mean of the winning results. Numbers are averaged.
//!   A result below `threshold` is an attempt without a vote; a failed run is no attempt.
//! - `classifier-async-mode`: frames do not wait; results appear on later frames, and failures are reported with the next frame. While a
//!   background run holds a buffer, downstream elements that draw on it must copy it.
//! - `min-object-width`, `-height`, `max-object-width`, `-height`: only objects of this size, in pixels of the frame, are classified. An
//!   object that becomes too small keeps its earlier results.
//!
//! All these properties except the size limits need track IDs. Objects without a track ID are classified in every frame, their frames wait
//! for the results, and one warning is posted. A flush and a stop discard all results. Results of at most 1024 objects are stored.
//!
//! `stats` counts `objects-classified`, `objects-recalled`, `objects-nameless`, `objects-passed-over` and `objects-unaligned`.

mod imp;
mod work;

use gst::glib;
use gstreamer as gst;

use crate::elements::inference::Inference;

glib::wrapper! {
    /// See the module.
    pub struct RoiClassify(ObjectSubclass<imp::RoiClassify>) @extends Inference, gst::Element, gst::Object;
}
