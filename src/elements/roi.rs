//! Content of a `GstVideoRegionOfInterestMeta`, in the layout that DL Streamer's elements write and read.
//!
//! A region has one structure per result. `detection` has the box relative to the frame (0 to 1), `confidence` and `label_id`. `object_id`
//! has the track ID. All other structures are classifications: `label`, `label_id`, `confidence`, `model_name`, and `attribute_name` if it
//! differs from the structure's name. The field `type` distinguishes classifications from tensors and keypoints. Tensors and keypoints are
//! not read.
//!
//! This module handles one region, and detects changes by other elements ([`Mark`]). [`super::meta`] matches regions with detections.

use std::borrow::Cow;

use gst::glib;
use gst::glib::value::ToSendValue;
use gstreamer as gst;
use gstreamer_video::VideoRegionOfInterestMeta as RoiMeta;

use crate::frame::{Classification, Detection, ObjectId, Outcome, PixelRect, Point, Rect, ScoredLabel, Size};

/// Name of the structure with the result of a detector.
const DETECTION: &str = "detection";
/// Name of the structure with the track ID, which is in the field `id`.
const OBJECT_ID: &str = "object_id";
/// Value of `type` in the structure of a label.
const CLASSIFICATION: &str = "classification_result";
/// Type of a region whose detection has no label.
const UNLABELED: &str = "object";
/// Model name given to classifications that other elements wrote without a model name.
const UNKNOWN_MODEL: &str = "unknown";

/// Returns the region type of this detection.
pub(super) fn type_of(detection: &Detection) -> Cow<'_, str> {
    without_nul(detection.label.as_deref().unwrap_or(UNLABELED))
}

/// Returns the numbers in a region. They may lie beyond the frame: see [`rect_of`].
pub(super) fn pixel_rect(roi: &RoiMeta) -> PixelRect {
    let (x, y, width, height) = roi.rect();
    PixelRect { x, y, width, height }
}

/// Returns the rectangle of the numbers in a region. A program that writes a negative coordinate writes a huge one, because the fields
/// are unsigned.
pub(super) fn rect_of(place: PixelRect) -> Rect {
    let signed = |coordinate: u32| coordinate.cast_signed() as f32;
    Rect { x: signed(place.x), y: signed(place.y), ..place.to_rect() }
}

/// Whether a rectangle is at the place of a region in a frame of this size. Only the parts inside the frame are compared, because a region
/// of another element may reach beyond the frame.
pub(super) fn is_at(rect: &Rect, place: PixelRect, size: Size) -> bool {
    let place = rect_of(place);
    *rect == place || rect.to_pixels(size).is_some_and(|pixels| place.to_pixels(size) == Some(pixels))
}

/// Converts the region of another detector to a detection without a parent.
pub(super) fn read(roi: &RoiMeta, id: ObjectId) -> Detection {
    let detection = roi.param(DETECTION);
    let confidence = detection.and_then(|structure| structure.get::<f64>("confidence").ok());
    let label_id = detection.and_then(|structure| structure.get::<i32>("label_id").ok());
    let mut read = Detection {
        id,
        track: None,
        track_state: None,
        parent: None,
        rect: rect_of(pixel_rect(roi)),
        keypoints: Vec::new(),
        confidence: confidence.map_or(Detection::UNKNOWN_CONFIDENCE, |confidence| confidence as f32),
        label_id: label_id.and_then(|id| u32::try_from(id).ok()).unwrap_or(0),
        label: Some(roi.roi_type().into()),
        classifications: Vec::new(),
    };
    read_into(roi, &mut read);

    read
}

/// Whether the region has no confidence, or that of the detection.
pub(super) fn has_confidence_of(roi: &RoiMeta, detection: &Detection) -> bool {
    let confidence = roi.param(DETECTION).and_then(|structure| structure.get::<f64>("confidence").ok());
    confidence.is_none_or(|confidence| (confidence as f32 - detection.rank()).abs() < 1e-4)
}

/// Adds the track ID and new classifications that other elements wrote into the region of a detection.
pub(super) fn read_into(roi: &RoiMeta, detection: &mut Detection) {
    if let Some(track) = track_of(roi) {
        detection.adopt_track(track);
    }
    for structure in roi.params() {
        if let Some(new) = classification(structure)
            && !detection.classifications.iter().any(|known| without_nul(&known.name) == *new.name)
        {
            detection.classifications.push(new);
        }
    }
}

/// Returns the track ID in a region.
fn track_of(roi: &RoiMeta) -> Option<ObjectId> {
    let id = roi.param(OBJECT_ID)?.get::<i32>("id").ok()?;
    (id > 0).then_some(ObjectId(id))
}

/// Returns the classification in a structure; `None` if it has another kind of result.
fn classification(structure: &gst::StructureRef) -> Option<Classification> {
    if [DETECTION, OBJECT_ID].contains(&structure.name().as_str()) {
        return None;
    }
    let text = |field: &str| structure.get::<&str>(field).ok();
    if text("type").is_some_and(|kind| kind != CLASSIFICATION) {
        return None;
    }
    let (label, label_id) = (text("label"), structure.get::<i32>("label_id").ok());
    if label.is_none() && label_id.is_none() {
        return None;
    }
    let outcome = Outcome::Label {
        label_id: label_id.and_then(|id| u32::try_from(id).ok()).unwrap_or(0),
        label: label.map(Into::into),
        confidence: structure.get::<f64>("confidence").map_or(1.0, |confidence| confidence as f32),
    };
    Some(Classification { name: name_of(structure).into(), model: text("model_name").unwrap_or(UNKNOWN_MODEL).into(), outcome })
}

/// Returns the name of the attribute in the structure of a classification.
fn name_of(structure: &gst::StructureRef) -> &str {
    structure.get::<&str>("attribute_name").unwrap_or_else(|_| structure.name().as_str())
}

/// Snapshot of a region that we wrote, to recognize it and to detect changes by other elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// The detection of the region.
    pub(super) object: ObjectId,
    id: i32,
    /// The region type, a quark string.
    kind: &'static str,
    place: PixelRect,
    /// Hash of the names of the region's structures.
    params: u64,
    has_track: bool,
    /// Number of the detection's classifications. `names` is the hash of their names.
    n_classifications: usize,
    names: u64,
    /// Whether the detection has all results that the region contains.
    pub(super) is_complete: bool,
}

impl Mark {
    /// Returns a snapshot for a region that another copy of the library wrote. With this snapshot, the region is recognized by ID and
    /// type, or by place and type, and always counts as changed.
    pub(super) fn unseen(detection: &Detection, id: i32, place: PixelRect) -> Self {
        let kind = glib::Quark::from_str(&*type_of(detection)).as_str();
        Self { object: detection.id, id, kind, place, params: 0, has_track: false, n_classifications: 0, names: 0, is_complete: false }
    }

    /// Takes a snapshot of the region of a detection. `has_more` is true if the region contains results that the detection lacks.
    fn of(roi: &RoiMeta, detection: &Detection, size: Size, has_more: bool) -> Self {
        let place = pixel_rect(roi);
        let (params, has_track) = (hash(roi.params().map(|structure| structure.name().as_str())), roi.param(OBJECT_ID).is_some());
        let (n_classifications, names) = (detection.classifications.len(), hash_of_names(&detection.classifications));
        let is_complete = !has_more && is_at(&detection.rect, place, size);
        Self { object: detection.id, id: roi.id(), kind: roi.roi_type(), place, params, has_track, n_classifications, names, is_complete }
    }

    /// Returns the region's ID.
    pub(super) fn id(&self) -> i32 {
        self.id
    }

    /// Returns left, top, width and height of the region.
    pub(super) fn place(&self) -> [u32; 4] {
        let PixelRect { x, y, width, height } = self.place;
        [x, y, width, height]
    }

    /// Whether `roi` has the ID and type of this snapshot.
    pub(super) fn is_of(&self, roi: &RoiMeta) -> bool {
        self.id == roi.id() && self.kind == roi.roi_type()
    }

    /// Whether `roi` has the type of this snapshot, and its place after the frame was scaled from the size `from` to the size `to`.
    pub(super) fn is_where(&self, roi: &RoiMeta, from: Size, to: Size) -> bool {
        if self.kind != roi.roi_type() {
            return false;
        }
        if from == to || from.width == 0 || from.height == 0 {
            return self.place == pixel_rect(roi);
        }
        // Scalers round differently.
        let (was, is) = (rect_of(self.place).rescaled(from, to), rect_of(pixel_rect(roi)));
        [is.x - was.x, is.y - was.y, is.width - was.width, is.height - was.height].iter().all(|difference| difference.abs() < 1.5)
    }

    /// Whether `roi` is the region of this snapshot, with the same rectangle and the same structure names.
    pub(super) fn is_unchanged(&self, roi: &RoiMeta) -> bool {
        self.is_of(roi) && self.place == pixel_rect(roi) && self.params == hash(roi.params().map(|structure| structure.name().as_str()))
    }

    /// Whether the detection still has all results that it had when the region was written.
    fn has_all_in(&self, detection: &Detection) -> bool {
        let known = detection.classifications.get(..self.n_classifications);
        known.is_some_and(|known| hash_of_names(known) == self.names) && (detection.track.is_some() || !self.has_track)
    }

    /// Whether the detection has as many results as when the region was written.
    fn is_all_of(&self, detection: &Detection) -> bool {
        detection.classifications.len() == self.n_classifications && detection.track.is_some() == self.has_track
    }
}

fn hash_of_names(classifications: &[Classification]) -> u64 {
    hash(classifications.iter().map(|classification| &*classification.name))
}

/// Returns the FNV-1a hash of strings, each followed by a separator.
fn hash<'a>(texts: impl Iterator<Item = &'a str>) -> u64 {
    let bytes = texts.flat_map(|text| text.bytes().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// IDs of a region: the region's ID, and the ID of its parent region.
pub(super) type Ids = (i32, Option<i32>);

/// Adds a region for a detection. `size` is the size of the frame, and `place` is the region in pixels.
pub(super) fn add(buffer: &mut gst::BufferRef, detection: &Detection, size: Size, place: PixelRect, ids: Ids) -> Mark {
    let mut roi = RoiMeta::add(buffer, &type_of(detection), (place.x, place.y, place.width, place.height));
    set_ids(&mut roi, ids);
    roi.add_param(detection_structure(detection, size));
    add_track(&mut roi, detection);
    add_classifications(&mut roi, &detection.classifications, 0);
    Mark::of(&roi, detection, size, false)
}

/// Sets the IDs of a detection's region and adds missing structures. The rectangle stays. `left` is the snapshot of the region, or `None`
/// if the region has changed.
pub(super) fn update(roi: &mut RoiMeta, detection: &Detection, size: Size, ids: Ids, left: Option<&Mark>) -> Mark {
    set_ids(roi, ids);
    let left = left.map(|left| Mark { place: pixel_rect(roi), ..*left });
    if let Some(left) = left.as_ref().filter(|left| left.is_complete && left.has_all_in(detection)) {
        if left.is_all_of(detection) {
            let is_complete = is_at(&detection.rect, left.place, size);
            return Mark { id: ids.0, is_complete, ..*left };
        }
        if !left.has_track {
            add_track(roi, detection);
        }
        add_classifications(roi, &detection.classifications, left.n_classifications);
        return Mark::of(roi, detection, size, false);
    }
    if roi.param(DETECTION).is_none() {
        roi.add_param(detection_structure(detection, size));
    }
    if roi.param(OBJECT_ID).is_none() {
        add_track(roi, detection);
    }
    for classification in &detection.classifications {
        let name = without_nul(&classification.name);
        if !roi.params().any(|structure| name_of(structure) == name) {
            roi.add_param(classification_structure(classification));
        }
    }
    let has_more = has_more(roi, detection);
    Mark::of(roi, detection, size, has_more)
}

/// Moves a region to its object if it is elsewhere, and still where it was when one of the `marks` was made.
pub(super) fn follow(roi: &mut RoiMeta, detection: &Detection, size: Size, marks: &[Mark]) {
    let was = pixel_rect(roi);
    if !is_at(&detection.rect, was, size)
        && marks.iter().any(|mark| mark.object == detection.id && mark.place == was)
        && let Some(PixelRect { x, y, width, height }) = detection.rect.to_pixels(size)
    {
        roi.set_rect((x, y, width, height));
    }
}

fn set_ids(roi: &mut RoiMeta, (id, parent_id): Ids) {
    roi.set_id(id);
    if let Some(parent_id) = parent_id {
        roi.set_parent_id(parent_id);
    }
}

fn add_track(roi: &mut RoiMeta, detection: &Detection) {
    if let Some(track) = detection.track {
        roi.add_param(gst::Structure::builder(OBJECT_ID).field("id", track.0).build());
    }
}

/// Adds the classifications from index `begin` on. If several classifications have the same name, the region gets only the first of them.
fn add_classifications(roi: &mut RoiMeta, classifications: &[Classification], begin: usize) {
    for (idx, classification) in classifications.iter().enumerate().skip(begin) {
        let is_same = |earlier: &Classification| without_nul(&earlier.name) == without_nul(&classification.name);
        if !classifications[..idx].iter().any(is_same) {
            roi.add_param(classification_structure(classification));
        }
    }
}

/// Whether [`read_into`] would change the detection.
fn has_more(roi: &RoiMeta, detection: &Detection) -> bool {
    let is_new = |structure: &gst::StructureRef| {
        let is_known = detection.classifications.iter().any(|known| without_nul(&known.name) == name_of(structure));
        !is_known && classification(structure).is_some()
    };
    (detection.track.is_none() && track_of(roi).is_some()) || roi.params().any(is_new)
}

fn detection_structure(detection: &Detection, size: Size) -> gst::Structure {
    let (width, height) = (f64::from(size.width.max(1)), f64::from(size.height.max(1)));
    let rect = detection.rect;
    // The box is relative to the frame and clipped to the frame, as in `gvadetect`; readers multiply it by the frame size.
    let part = |edge: f32, extent: f64| (f64::from(edge) / extent).clamp(0.0, 1.0);
    // The list contains x and y alternately, relative to the frame size.
    let coordinates = |point: &Point| [f64::from(point.x) / width, f64::from(point.y) / height].map(|part| part.to_send_value());
    let keypoints = detection.keypoints.iter().flat_map(coordinates);
    gst::Structure::builder(DETECTION)
        .field("x_min", part(rect.x, width))
        .field("x_max", part(rect.x_max(), width))
        .field("y_min", part(rect.y, height))
        .field("y_max", part(rect.y_max(), height))
        .field_if_some("confidence", detection.known_confidence().map(f64::from))
        .field("label_id", detection.label_id as i32)
        .field_if_some("label", detection.label.as_deref().map(without_nul).as_deref())
        .field_if_some("keypoints", (!detection.keypoints.is_empty()).then(|| gst::Array::from_values(keypoints)))
        .build()
}

fn classification_structure(classification: &Classification) -> gst::Structure {
    let builder = gst::Structure::builder(&*structure_name(&classification.name))
        .field("attribute_name", &*without_nul(&classification.name))
        .field("model_name", &*without_nul(&classification.model));
    match &classification.outcome {
        Outcome::Label { label_id, label, confidence } => builder
            .field("type", CLASSIFICATION)
            .field("label_id", *label_id as i32)
            .field_if_some("label", label.as_deref().map(without_nul).as_deref())
            .field("confidence", f64::from(*confidence))
            .build(),
        Outcome::Labels(labels) => {
            let names = labels.iter().map(|label| label.label.as_deref().map_or_else(|| label.label_id.to_string(), str::to_owned));
            let names = names.map(|name| without_nul(&name).to_send_value());
            let confidences = labels.iter().map(|label| f64::from(label.confidence).to_send_value());
            builder
                .field("label", all_labels(labels))
                .field("labels", gst::Array::from_values(names))
                .field("confidences", gst::Array::from_values(confidences))
                .build()
        }
        // `label` contains the number as text, for readers that know only labels.
        Outcome::Value(value) => builder.field("label", value.to_string()).field("value", f64::from(*value)).build(),
        Outcome::Tensor { shape, data } => {
            let shape = shape.iter().map(|&extent| (extent as i64).to_send_value());
            let data = data.iter().map(|&value| f64::from(value).to_send_value());
            builder.field("shape", gst::Array::from_values(shape)).field("data", gst::Array::from_values(data)).build()
        }
        Outcome::Text { text, confidence } => {
            builder.field("label", &*without_nul(text)).field("confidence", f64::from(*confidence)).build()
        }
        // No structure field represents outcomes of other kinds. Only roiflow's own meta carries them.
        _ => builder.build(),
    }
}

/// Returns the labels joined by spaces, as DL Streamer writes them.
fn all_labels(labels: &[ScoredLabel]) -> String {
    let names = labels.iter().map(|label| label.label.as_deref().map_or_else(|| label.label_id.to_string(), str::to_owned));
    without_nul(&names.collect::<Vec<_>>().join(" ")).into_owned()
}

/// Removes NUL characters. A label file may contain them, but GStreamer's strings end at the first NUL.
pub(super) fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "")) } else { Cow::Borrowed(text) }
}

/// Converts a name to a valid name of a GStreamer structure: a letter, then letters, digits and `/-_.:+`.
fn structure_name(name: &str) -> Cow<'_, str> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "/-_.:+".contains(c);
    let has_letter_first = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if has_letter_first && name.chars().all(legal) {
        return Cow::Borrowed(name);
    }
    let prefix = if has_letter_first { "" } else { "attribute_" };
    Cow::Owned(prefix.chars().chain(name.chars().map(|c| if legal(c) { c } else { '_' })).collect())
}
