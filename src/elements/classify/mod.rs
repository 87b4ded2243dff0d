//! `roiclassify`: classifies each region of interest of a frame without copying the region, and attaches the result to the region's object.
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roidetect model=face.onnx ! roiclassify model=gender.onnx ! roiclassify model=age.onnx
//!     ! roipublish ! fakesink
//! ```
//!
//! `roiclassify` works on the objects of `roidetect`, and on the ROI metas of other detectors. A region is a view of the frame's memory,
//! which preprocessing reads directly. Frames without regions pass immediately, in order.
//!
//! With `inference-region=full-frame`, the whole frame is classified, for example the scene or the weather. The result is in
//! `classifications` of the JSON:
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roiclassify model=scene.onnx inference-region=full-frame ! roipublish ! fakesink
//! ```
//!
//! With `gallery=FILE`, a model whose results are vectors names objects: the label is the name of the nearest vector in the file, or
//! `unknown` if the best cosine is below `threshold`. `roiflow gallery add` writes the file.
//!
//! If the input of the model is a clip (`[clip]` in its description), as for the recognition of actions, the model gets the last frames of one
//! object. Put `roitrack` upstream: objects without a track ID are not classified. An object carries its last result until the next run.
//! With `inference-region=full-frame`, the clip has the last whole frames.
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roidetect model=person.onnx ! roitrack ! roiclassify model=action.onnx ! roipublish ! fakesink
//! ```
//!
//! If the run of a region fails, the frame passes without the result of that region and is marked `failed`. The stream ends with an error
//! after more than `max-failures` frames in a row in which all regions failed. Frames without regions are not counted.
//!
//! Tracked objects need not be classified in every frame. In the following pipeline, an object is classified when it is new, every ten
//! frames, and when its box has grown by a fifth. The first classifier reports the most frequent gender among the last five results of the
//! object. The second classifier reports the mean age of the last five results:
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert
//!     ! roidetect model=face.onnx ! roitrack
//!     ! roiclassify model=gender.onnx reclassify-interval=10 reclassify-growth=0.2 consensus=5
//!     ! roiclassify model=age.onnx reclassify-interval=10 reclassify-growth=0.2 consensus=5
//!     ! roipublish ! fakesink
//! ```
//!
//! - `reclassify-interval`: an object is classified again after this number of frames; 1: in every frame, 0: only once. Until then, each
//!   frame has the last results of the object, also if the frame is not inferred.
//! - `reclassify-growth`: an object is also classified again when its box area has grown by more than this fraction.
//! - `reclassify-movement`: when the interval expires, an object is classified again only if its box moved by more than this fraction of
//!   the box's width or height.
//! - `consensus`: number of results that vote. An object is classified in every frame until it has been classified this many times. The
//!   most frequent label wins; ties are decided by the sum of confidences, then by the newest result. The reported confidence is the mean
//!   over the results with the winning label. Numbers, such as an age, are averaged. A result below `threshold` has no vote, but counts as
//!   a classification. A failed run does not count.
//! - `classifier-async-mode`: frames do not wait; results appear on later frames, and failures are reported with the next frame. While a
//!   background run holds a buffer, a downstream element that draws on the buffer must copy it.
//! - `min-object-width`, `-height`, `max-object-width`, `-height`: only objects of this size, in pixels of the frame, are classified. An
//!   object that becomes too small keeps its earlier results.
//!
//! All these properties except the size limits need track IDs. Objects without a track ID are classified in every frame, and their frames
//! wait for the results. A warning about this is posted once. Results of at most 1024 objects are stored. A flush and a stop discard all
//! stored results.
//!
//! `stats` counts objects: `objects-classified`, `objects-recalled` (results were reused), `objects-nameless` (without a track ID),
//! `objects-passed-over` (due, but too many background runs were active) and `objects-unaligned` (without keypoints for alignment).

mod clips;
mod imp;
mod work;

use gst::glib;
use gstreamer as gst;

use crate::elements::inference::Inference;

glib::wrapper! {
    /// See the module.
    pub struct RoiClassify(ObjectSubclass<imp::RoiClassify>) @extends Inference, gst::Element, gst::Object;
}
