//! How results travel with a buffer: one meta of our own, and beside it those that GStreamer knows. The only place that knows all.
//!
//! Our meta carries [`FrameResults`] whole. It has no tags, so that converters, scalers and encoders keep it, and it is shared
//! when a buffer is copied. Beside it lies a `GstVideoRegionOfInterestMeta` per detection for readers who don't know us, joined by the
//! detection's id, and, where the process's GStreamer has it, an entry of the `GstAnalyticsRelationMeta` (`analytics`),
//! joined by the entry's id, which our meta keeps. GStreamer rescales the geometry of both where a frame is scaled, and drops the
//! parameters of ROI metas; so the geometry is read from there if it has changed, and everything else from ours.
//!
//! What other elements wrote into such metas is read as results too, once: what is joined to ours, or says the same of the same
//! place in both, is no second object.
//!
//! Where an element drops the ROI metas (videocrop does), our rectangles are all there is: see [`has_lost_rois`].

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use gst::buffer::BufferMetaForeachAction;
use gst::glib::value::ToSendValue;
use gstreamer as gst;
use gstreamer_video::VideoRegionOfInterestMeta as RoiMeta;

use super::analytics::{self, Written};
use crate::frame::{Classification, Detection, FrameResults, ObjectId, Outcome, PixelRect, Point, Size};

/// The name of the parameter of a ROI meta that says what a detector said; DL Streamer's.
const DETECTION: &str = "detection";
/// The name of the parameter of a ROI meta that says which object of a tracker it is, as its field `id`; DL Streamer's.
const OBJECT_ID: &str = "object_id";
/// The type of a ROI meta whose detection has no label.
const UNLABELED: &str = "object";

/// As [`attach_to`], with analytics metas where GStreamer has them.
pub fn attach(buffer: &mut gst::BufferRef, results: FrameResults) {
    attach_to(buffer, results, true);
}

/// Makes `results` the results of this buffer, in place of those it has, and updates the ROI metas beside them; and the
/// analytics meta, `with_analytics`.
///
/// A detection whose id has no ROI meta gets one, unless it has no pixel in the frame. A ROI meta that is there keeps its
/// geometry and gets the parameters that it lacks. ROI metas of detections that were in the earlier results and are not in
/// these are removed; those of others stay.
pub fn attach_to(buffer: &mut gst::BufferRef, results: FrameResults, with_analytics: bool) {
    let earlier = buffer.meta::<ResultsMeta>().map(|meta| meta.0.payload().clone());
    if let Some(earlier) = &earlier {
        remove_left_out(buffer, &earlier.results, &results);
    }
    let has_roi = update_rois(buffer, &results);
    for (detection, _) in results.detections.iter().zip(has_roi).filter(|(_, has_roi)| !has_roi) {
        if let Some(pixels) = pixels_in(detection, results.size) {
            add_roi(buffer, detection, pixels, results.size);
        }
    }
    let mut written = earlier.map(|earlier| earlier.written.clone()).unwrap_or_default();
    if with_analytics {
        analytics::write(buffer, &results, &mut written);
    }
    put(buffer, Arc::new(Payload { results, written }));
}

/// The results of this buffer, in a frame of `size`, which is what the caps say now.
///
/// The geometry of a detection is our own if its ROI meta still says the same, that of the ROI meta if it says otherwise, or else of
/// the analytics meta, and our own in proportion if there is neither and the frame was of another size. What other detectors
/// found, and wrote into ROI metas or the analytics meta, comes behind ours; ids that are not there (0 or less) are given, anew on
/// each call.
///
/// `None` if there is nothing of all that.
pub fn read(buffer: &gst::BufferRef, size: Size) -> Option<FrameResults> {
    let own = buffer.meta::<ResultsMeta>().map(|meta| meta.0.payload().clone());
    let (mut results, written) = match own.as_deref() {
        Some(Payload { results, written }) => (results.clone(), Cow::Borrowed(written)),
        None => (FrameResults::default(), Cow::Owned(Written::default())),
    };
    let read = analytics::read(buffer, &written, || unused_id(buffer));
    let attached_size = results.size;
    let rois = rois_by_id(buffer);
    for detection in &mut results.detections {
        let now = rois.get(&detection.id.0).copied().or_else(|| read.ours.get(&detection.id)?.to_pixels(size));
        match now {
            Some(now) if size == attached_size && pixels_in(detection, size) == Some(now) => {}
            Some(now) => detection.move_to(now.to_rect()),
            None if size != attached_size && attached_size.width > 0 && attached_size.height > 0 => {
                detection.move_to(detection.rect.rescaled(attached_size, size));
            }
            None => {}
        }
    }
    results.size = size;
    add_foreign_tracks(buffer, &mut results);
    add_foreign_rois(buffer, &mut results);
    for found in read.foreign {
        let is_same = |other: &Detection| other.label == found.label && pixels_in(other, size) == pixels_in(&found, size);
        if !results.detections.iter().any(is_same) {
            results.detections.push(found);
        }
    }
    for (id, track) in read.tracks {
        if let Some(detection) = results.detection_mut(id) {
            detection.track.get_or_insert(track);
        }
    }
    for (id, said) in read.said {
        let detection = results.detection_mut(id);
        if let Some(detection) = detection.filter(|detection| !detection.classifications.contains(&said)) {
            detection.classifications.push(said);
        }
    }
    (own.is_some() || !results.detections.is_empty()).then_some(results)
}

/// Whether [`read`] would find anything.
pub fn has_results(buffer: &gst::BufferRef) -> bool {
    buffer.meta::<ResultsMeta>().is_some() || buffer.meta::<RoiMeta>().is_some() || analytics::has_any(buffer)
}

/// Whether the buffer has results in an analytics meta.
pub fn has_analytics(buffer: &gst::BufferRef) -> bool {
    analytics::has_any(buffer)
}

/// The size of the frame when our results were attached; `None` if the buffer has none of ours.
pub fn size_when_attached(buffer: &gst::BufferRef) -> Option<Size> {
    buffer.meta::<ResultsMeta>().map(|meta| meta.0.payload().results.size)
}

/// Whether detections of ours that lie in the frame have no ROI meta any more: an element between dropped them, and may have
/// moved the picture as well (videocrop, videobox).
///
/// `results` are those that [`read`] gave.
pub fn has_lost_rois(buffer: &gst::BufferRef, results: &FrameResults) -> bool {
    let Some(meta) = buffer.meta::<ResultsMeta>() else { return false };
    let Payload { results: attached, written } = &**meta.0.payload();
    let (ours, rois) = (ids(attached), rois_by_id(buffer));
    let has_pixels = |detection: &&Detection| pixels_in(detection, results.size).is_some();
    let is_lost = |id: &ObjectId| ours.contains(&id.0) && !rois.contains_key(&id.0);
    let mut lost = results.detections.iter().filter(has_pixels).map(|detection| detection.id).filter(is_lost).peekable();
    if lost.peek().is_none() {
        return false;
    }
    // The analytics meta tells where they are as well.
    let placed = analytics::read(buffer, written, || unused_id(buffer)).ours;
    lost.any(|id| !placed.contains_key(&id))
}

/// Takes over the names that another tracker gave to objects of ours.
fn add_foreign_tracks(buffer: &gst::BufferRef, results: &mut FrameResults) {
    if results.detections.iter().all(|detection| detection.track.is_some()) {
        return;
    }
    for roi in buffer.iter_meta::<RoiMeta>() {
        if let Some(track) = track_of(&roi)
            && let Some(detection) = results.detection_mut(ObjectId(roi.id()))
        {
            detection.track.get_or_insert(track);
        }
    }
}

/// The name under which a tracker knows the object of a region.
fn track_of(roi: &RoiMeta) -> Option<ObjectId> {
    let id = roi.param(OBJECT_ID)?.get::<i32>("id").ok()?;
    (id > 0).then_some(ObjectId(id))
}

/// Adds what ROI metas of other detectors say: those whose id is none of ours.
fn add_foreign_rois(buffer: &gst::BufferRef, results: &mut FrameResults) {
    let ours = ids(results);
    for roi in buffer.iter_meta::<RoiMeta>().filter(|roi| !ours.contains(&roi.id())) {
        let id = ObjectId(roi.id());
        let detection = roi.param(DETECTION);
        let number = |name: &str| detection.and_then(|structure| structure.get::<f64>(name).ok());
        let label_id = detection.and_then(|structure| structure.get::<i32>("label_id").ok());
        results.detections.push(Detection {
            id: if id.0 > 0 { id } else { unused_id(buffer) },
            track: track_of(&roi),
            parent: (roi.parent_id() > 0).then(|| ObjectId(roi.parent_id())),
            rect: pixel_rect(&roi).to_rect(),
            keypoints: Vec::new(),
            confidence: number("confidence").unwrap_or(1.0) as f32,
            label_id: label_id.and_then(|id| u32::try_from(id).ok()).unwrap_or(0),
            label: Some(roi.roi_type().into()),
            classifications: Vec::new(),
        });
    }
}

/// A new id that no ROI meta of the buffer has: another detector numbers its objects as it likes.
fn unused_id(buffer: &gst::BufferRef) -> ObjectId {
    loop {
        let id = ObjectId::next();
        if buffer.iter_meta::<RoiMeta>().all(|roi| roi.id() != id.0) {
            return id;
        }
    }
}

fn pixels_in(detection: &Detection, size: Size) -> Option<PixelRect> {
    if size.width == 0 || size.height == 0 { None } else { detection.rect.to_pixels(size) }
}

fn pixel_rect(roi: &RoiMeta) -> PixelRect {
    let (x, y, width, height) = roi.rect();
    PixelRect { x, y, width, height }
}

/// Where the ROI metas are, by their id; of several with one id the first.
fn rois_by_id(buffer: &gst::BufferRef) -> HashMap<i32, PixelRect> {
    let mut rois = HashMap::new();
    for roi in buffer.iter_meta::<RoiMeta>() {
        rois.entry(roi.id()).or_insert_with(|| pixel_rect(&roi));
    }
    rois
}

fn ids(results: &FrameResults) -> HashSet<i32> {
    results.detections.iter().map(|detection| detection.id.0).collect()
}

fn remove_left_out(buffer: &mut gst::BufferRef, earlier: &FrameResults, results: &FrameResults) {
    let left_out: HashSet<i32> = ids(earlier).difference(&ids(results)).copied().collect();
    if left_out.is_empty() {
        return;
    }
    buffer.foreach_meta_mut(|mut meta| {
        let is_left_out = meta.downcast_ref::<RoiMeta>().is_some_and(|roi| left_out.contains(&roi.id()));
        ControlFlow::Continue(if is_left_out { BufferMetaForeachAction::Remove } else { BufferMetaForeachAction::Keep })
    });
}

/// Completes the ROI metas that are there, and tells which detections have one.
///
/// In one pass, as everywhere here: a frame may have thousands of objects.
fn update_rois(buffer: &mut gst::BufferRef, results: &FrameResults) -> Vec<bool> {
    let FrameResults { size, detections, .. } = results;
    let index_of: HashMap<i32, usize> = detections.iter().enumerate().rev().map(|(idx, detection)| (detection.id.0, idx)).collect();
    let mut has_roi = vec![false; detections.len()];
    let mut has_unnamed = false;
    for mut roi in buffer.iter_meta_mut::<RoiMeta>() {
        has_unnamed |= roi.id() <= 0;
        if let Some(&idx) = index_of.get(&roi.id())
            && !std::mem::replace(&mut has_roi[idx], true)
        {
            add_missing_params(&mut roi, &detections[idx], *size);
        }
    }
    if !has_unnamed {
        return has_roi;
    }
    // One that another detector wrote without an id is taken over by its place.
    for mut roi in buffer.iter_meta_mut::<RoiMeta>().filter(|roi| roi.id() <= 0) {
        let place = pixel_rect(&roi);
        let is_it = |(idx, detection): &(usize, &Detection)| !has_roi[*idx] && pixels_in(detection, *size) == Some(place);
        if let Some((idx, detection)) = detections.iter().enumerate().find(is_it) {
            has_roi[idx] = true;
            roi.set_id(detection.id.0);
            add_missing_params(&mut roi, detection, *size);
        }
    }
    has_roi
}

fn add_roi(buffer: &mut gst::BufferRef, detection: &Detection, pixels: PixelRect, size: Size) {
    let roi_type = without_nul(detection.label.as_deref().unwrap_or(UNLABELED));
    let mut roi = RoiMeta::add(buffer, &roi_type, (pixels.x, pixels.y, pixels.width, pixels.height));
    roi.set_id(detection.id.0);
    if let Some(parent) = detection.parent {
        roi.set_parent_id(parent.0);
    }
    add_missing_params(&mut roi, detection, size);
}

fn add_missing_params(roi: &mut RoiMeta, detection: &Detection, size: Size) {
    if roi.param(DETECTION).is_none() {
        roi.add_param(detection_structure(detection, size));
    }
    if let Some(track) = detection.track
        && roi.param(OBJECT_ID).is_none()
    {
        roi.add_param(gst::Structure::builder(OBJECT_ID).field("id", track.0).build());
    }
    for classification in &detection.classifications {
        let name = structure_name(&classification.name);
        if roi.param(&name).is_none() {
            roi.add_param(classification_structure(&name, classification));
        }
    }
}

/// Names and types of the fields are DL Streamer's.
fn detection_structure(detection: &Detection, size: Size) -> gst::Structure {
    let (width, height) = (f64::from(size.width.max(1)), f64::from(size.height.max(1)));
    let rect = detection.rect;
    // x and y of each in turn, in parts of the frame as the box is.
    let coordinates = |point: &Point| [f64::from(point.x) / width, f64::from(point.y) / height].map(|part| part.to_send_value());
    let keypoints = detection.keypoints.iter().flat_map(coordinates);
    gst::Structure::builder(DETECTION)
        .field("x_min", f64::from(rect.x) / width)
        .field("x_max", f64::from(rect.x_max()) / width)
        .field("y_min", f64::from(rect.y) / height)
        .field("y_max", f64::from(rect.y_max()) / height)
        .field("confidence", f64::from(detection.confidence))
        .field("label_id", detection.label_id as i32)
        .field_if_some("label", detection.label.as_deref().map(without_nul).as_deref())
        .field_if_some("keypoints", (!detection.keypoints.is_empty()).then(|| gst::Array::from_values(keypoints)))
        .build()
}

fn classification_structure(name: &str, classification: &Classification) -> gst::Structure {
    let builder = gst::Structure::builder(name)
        .field("attribute_name", &*without_nul(&classification.name))
        .field("model_name", &*without_nul(&classification.model));
    match &classification.outcome {
        Outcome::Label { label_id, label, confidence } => builder
            .field("label_id", *label_id as i32)
            .field_if_some("label", label.as_deref().map(without_nul).as_deref())
            .field("confidence", f64::from(*confidence))
            .build(),
        Outcome::Labels(labels) => {
            let names = labels.iter().map(|label| label.label.as_deref().map_or_else(|| label.label_id.to_string(), str::to_owned));
            let names = names.map(|name| without_nul(&name).to_send_value());
            let confidences = labels.iter().map(|label| f64::from(label.confidence).to_send_value());
            builder.field("labels", gst::Array::from_values(names)).field("confidences", gst::Array::from_values(confidences)).build()
        }
        Outcome::Value(value) => builder.field("value", f64::from(*value)).build(),
        Outcome::Tensor { shape, data } => {
            let shape = shape.iter().map(|&extent| (extent as i64).to_send_value());
            let data = data.iter().map(|&value| f64::from(value).to_send_value());
            builder.field("shape", gst::Array::from_values(shape)).field("data", gst::Array::from_values(data)).build()
        }
    }
}

/// GStreamer's strings end at the first NUL; a label file may hold anything.
fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "")) } else { Cow::Borrowed(text) }
}

/// A name that GStreamer takes for a structure: a letter, then letters, digits and `/-_.:+`.
fn structure_name(name: &str) -> Cow<'_, str> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "/-_.:+".contains(c);
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if begins_well && name.chars().all(legal) {
        return Cow::Borrowed(name);
    }
    let prefix = if begins_well { "" } else { "attribute_" };
    Cow::Owned(prefix.chars().chain(name.chars().map(|c| if legal(c) { c } else { '_' })).collect())
}

/// What our meta carries.
#[derive(Debug, Default)]
struct Payload {
    results: FrameResults,
    /// What of the analytics meta is ours.
    written: Written,
}

/// Sets the payload; there is at most one meta of ours on a buffer.
fn put(buffer: &mut gst::BufferRef, payload: Arc<Payload>) {
    if let Some(mut meta) = buffer.meta_mut::<ResultsMeta>() {
        meta.0.set_payload(payload);
        return;
    }
    imp::add(buffer, payload);
}

/// Our meta, as gstreamer-rs sees it.
#[repr(transparent)]
struct ResultsMeta(imp::ResultsMeta);

// SAFETY: the payload is an `Arc` of plain values that nobody changes, and GStreamer guards the rest by the buffer's writability.
unsafe impl Send for ResultsMeta {}
// SAFETY: as above.
unsafe impl Sync for ResultsMeta {}

// SAFETY: `ResultsMeta` is a transparent wrapper of the type that is registered under this API with its size.
unsafe impl gst::MetaAPI for ResultsMeta {
    type GstType = imp::ResultsMeta;

    fn meta_api() -> gst::glib::Type {
        imp::api_type()
    }
}

impl fmt::Debug for ResultsMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ResultsMeta").field(&self.0.payload().results).finish()
    }
}

/// The side that C sees. The shape is that of `originalbuffermeta` in gst-plugins-rs.
mod imp {
    use std::ptr;
    use std::sync::{Arc, LazyLock};

    use gst::glib;
    use gst::glib::translate::*;
    use gstreamer as gst;

    use super::Payload;

    /// Begins with GStreamer's header, as every meta does.
    #[repr(C)]
    pub struct ResultsMeta {
        parent: gst::ffi::GstMeta,
        payload: Arc<Payload>,
    }

    impl ResultsMeta {
        pub(super) fn payload(&self) -> &Arc<Payload> {
            &self.payload
        }

        pub(super) fn set_payload(&mut self, payload: Arc<Payload>) {
            self.payload = payload;
        }
    }

    /// What [`add`] hands to [`init`]; taken out, so that it is freed exactly once whether or not `init` runs.
    type Params = Option<Arc<Payload>>;

    /// Adds our meta to a buffer that has none.
    pub(super) fn add(buffer: &mut gst::BufferRef, payload: Arc<Payload>) {
        let mut params: Params = Some(payload);
        // SAFETY: a `&mut BufferRef` is a writable buffer; the info lives for ever; `params` is what `init` expects and outlives the call.
        let meta =
            unsafe { gst::ffi::gst_buffer_add_meta(buffer.as_mut_ptr(), info(), ptr::from_mut(&mut params).cast::<std::ffi::c_void>()) };
        debug_assert!(!meta.is_null(), "init never refuses");
    }

    pub fn api_type() -> glib::Type {
        static TYPE: LazyLock<glib::Type> = LazyLock::new(|| {
            // No tag: a converter keeps what depends on neither memory, size, orientation nor colors.
            let mut tags: [*const std::ffi::c_char; 1] = [ptr::null()];
            // SAFETY: the name is a C string, the list of tags ends with a null; both are copied.
            let api = unsafe { from_glib(gst::ffi::gst_meta_api_type_register(c"RoiflowResultsMetaAPI".as_ptr(), tags.as_mut_ptr())) };
            assert_ne!(api, glib::Type::INVALID, "two copies of roiflow in one process: load the plugin or link the library, not both");
            api
        });
        *TYPE
    }

    fn info() -> *const gst::ffi::GstMetaInfo {
        struct Info(ptr::NonNull<gst::ffi::GstMetaInfo>);
        // SAFETY: GStreamer never changes or frees a registered info.
        unsafe impl Send for Info {}
        // SAFETY: as above.
        unsafe impl Sync for Info {}

        static INFO: LazyLock<Info> = LazyLock::new(|| {
            // SAFETY: size and functions are those of `ResultsMeta`, which begins with a `GstMeta`; the name is a C string.
            let info = unsafe {
                gst::ffi::gst_meta_register(
                    api_type().into_glib(),
                    c"RoiflowResultsMeta".as_ptr(),
                    size_of::<ResultsMeta>(),
                    Some(init),
                    Some(free),
                    Some(transform),
                )
            };
            Info(ptr::NonNull::new(info.cast_mut()).expect("the API type was registered by this process just now"))
        });
        INFO.0.as_ptr()
    }

    /// # Safety
    /// `meta` is memory of the registered size, not yet a `ResultsMeta`; `params` is a [`Params`] or null.
    unsafe extern "C" fn init(
        meta: *mut gst::ffi::GstMeta,
        params: glib::ffi::gpointer,
        _buffer: *mut gst::ffi::GstBuffer,
    ) -> glib::ffi::gboolean {
        // SAFETY: the caller's promise; only `add` passes parameters.
        let params = unsafe { params.cast::<Params>().as_mut() };
        let payload = params.and_then(Option::take).unwrap_or_default();
        // SAFETY: the caller's promise; the field is written without dropping what was there, which is not a value yet.
        unsafe { ptr::write(&raw mut (*meta.cast::<ResultsMeta>()).payload, payload) };
        glib::ffi::GTRUE
    }

    /// # Safety
    /// `meta` was initialized by [`init`] and is not used afterwards.
    unsafe extern "C" fn free(meta: *mut gst::ffi::GstMeta, _buffer: *mut gst::ffi::GstBuffer) {
        // SAFETY: the caller's promise; the header is GStreamer's to free.
        unsafe { ptr::drop_in_place(&raw mut (*meta.cast::<ResultsMeta>()).payload) };
    }

    /// Copies the payload whatever is done to the buffer: the results know the frame size that they refer to.
    ///
    /// # Safety
    /// `meta` was initialized by [`init`], `dest` is a writable buffer.
    unsafe extern "C" fn transform(
        dest: *mut gst::ffi::GstBuffer,
        meta: *mut gst::ffi::GstMeta,
        _buffer: *mut gst::ffi::GstBuffer,
        _transform_type: glib::ffi::GQuark,
        _data: glib::ffi::gpointer,
    ) -> glib::ffi::gboolean {
        // SAFETY: the caller's promise.
        let payload = unsafe { (*meta.cast::<ResultsMeta>()).payload.clone() };
        // SAFETY: the caller's promise; nobody else refers to `dest` during the call.
        super::put(unsafe { gst::BufferRef::from_mut_ptr(dest) }, payload);
        glib::ffi::GTRUE
    }
}
