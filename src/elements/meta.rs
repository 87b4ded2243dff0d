//! How results travel with a buffer: one meta of our own, and the ROI metas beside it. The only place that knows either.
//!
//! Our meta carries [`FrameResults`] whole. It has no tags, so that converters, scalers and encoders keep it, and it is shared
//! when a buffer is copied. Beside it lies a `GstVideoRegionOfInterestMeta` per detection for readers who don't know us; the two are
//! joined by the detection's id. GStreamer rescales the geometry of ROI metas where a frame is scaled, and drops their parameters;
//! so the geometry is read from the ROI meta if it has changed, and everything else from ours.
//!
//! Where an element drops the ROI metas (videocrop does), our rectangles are all there is: see [`has_lost_rois`].

use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use gst::buffer::BufferMetaForeachAction;
use gstreamer as gst;
use gstreamer_video::VideoRegionOfInterestMeta as RoiMeta;

use crate::frame::{Classification, Detection, FrameResults, InferenceStatus, ObjectId, Outcome, PixelRect, Size};

/// The name of the parameter of a ROI meta that says what a detector said; DL Streamer's.
const DETECTION: &str = "detection";
/// The type of a ROI meta whose detection has no label.
const UNLABELED: &str = "object";

/// Makes `results` the results of this buffer, in place of those it has, and updates the ROI metas beside them.
///
/// A detection whose id has no ROI meta gets one, unless it has no pixel in the frame. A ROI meta that is there keeps its
/// geometry and gets the parameters that it lacks. ROI metas of detections that were in the earlier results and are not in
/// these are removed; those of others stay.
pub fn attach(buffer: &mut gst::BufferRef, results: FrameResults) {
    let earlier = buffer.meta::<ResultsMeta>().map(|meta| meta.0.results().clone());
    if let Some(earlier) = earlier {
        remove_left_out(buffer, &earlier, &results);
    }
    let has_rois = buffer.meta::<RoiMeta>().is_some();
    for detection in &results.detections {
        let pixels = pixels_in(detection, results.size);
        if !(has_rois && update_roi(buffer, detection, pixels, results.size))
            && let Some(pixels) = pixels
        {
            add_roi(buffer, detection, pixels, results.size);
        }
    }
    put(buffer, Arc::new(results));
}

/// The results of this buffer, in a frame of `size`, which is what the caps say now.
///
/// The geometry of a detection is our own if its ROI meta still says the same, that of the ROI meta if it says otherwise, and our
/// own in proportion if there is no ROI meta and the frame was of another size. A buffer that has only ROI metas, from
/// another detector, gives results made of them.
///
/// `None` if there is neither.
pub fn read(buffer: &gst::BufferRef, size: Size) -> Option<FrameResults> {
    let Some(meta) = buffer.meta::<ResultsMeta>() else {
        return read_foreign(buffer, size);
    };
    let mut results = FrameResults::clone(meta.0.results());
    let attached_size = results.size;
    for detection in &mut results.detections {
        let roi = roi_of(buffer, detection.id).map(|roi| pixel_rect(&roi));
        match roi {
            Some(roi) if size == attached_size && pixels_in(detection, size) == Some(roi) => {}
            Some(roi) => detection.rect = roi.to_rect(),
            None if size != attached_size && attached_size.width > 0 && attached_size.height > 0 => {
                detection.rect = detection.rect.rescaled(attached_size, size);
            }
            None => {}
        }
    }
    results.size = size;
    Some(results)
}

/// Whether [`read`] would find anything.
pub fn has_results(buffer: &gst::BufferRef) -> bool {
    buffer.meta::<ResultsMeta>().is_some() || buffer.meta::<RoiMeta>().is_some()
}

/// The size of the frame when our results were attached; `None` if the buffer has none of ours.
pub fn size_when_attached(buffer: &gst::BufferRef) -> Option<Size> {
    buffer.meta::<ResultsMeta>().map(|meta| meta.0.results().size)
}

/// Whether detections of ours that lie in the frame have no ROI meta any more: an element between dropped them, and may have
/// moved the picture as well (videocrop, videobox).
///
/// `results` are those that [`read`] gave.
pub fn has_lost_rois(buffer: &gst::BufferRef, results: &FrameResults) -> bool {
    buffer.meta::<ResultsMeta>().is_some()
        && results.detections.iter().any(|detection| pixels_in(detection, results.size).is_some() && roi_of(buffer, detection.id).is_none())
}

/// Another detector's ROI metas as results of ours. Ids that are not there (0 or less) are given, anew on each call.
fn read_foreign(buffer: &gst::BufferRef, size: Size) -> Option<FrameResults> {
    let detections: Vec<Detection> = buffer
        .iter_meta::<RoiMeta>()
        .map(|roi| {
            let detection = roi.param(DETECTION);
            let number = |name: &str| detection.and_then(|structure| structure.get::<f64>(name).ok());
            let label_id = detection.and_then(|structure| structure.get::<i32>("label_id").ok());
            Detection {
                id: if roi.id() > 0 { ObjectId(roi.id()) } else { unused_id(buffer) },
                parent: (roi.parent_id() > 0).then(|| ObjectId(roi.parent_id())),
                rect: pixel_rect(&roi).to_rect(),
                confidence: number("confidence").unwrap_or(1.0) as f32,
                label_id: label_id.and_then(|id| u32::try_from(id).ok()).unwrap_or(0),
                label: Some(roi.roi_type().into()),
                classifications: Vec::new(),
            }
        })
        .collect();
    (!detections.is_empty()).then_some(FrameResults { size, frame_number: 0, status: InferenceStatus::Inferred, detections })
}

/// A new id that no ROI meta of the buffer has: another detector numbers its objects as it likes.
fn unused_id(buffer: &gst::BufferRef) -> ObjectId {
    loop {
        let id = ObjectId::next();
        if roi_of(buffer, id).is_none() {
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

fn roi_of(buffer: &gst::BufferRef, id: ObjectId) -> Option<gst::MetaRef<'_, RoiMeta>> {
    buffer.iter_meta::<RoiMeta>().find(|roi| roi.id() == id.0)
}

fn remove_left_out(buffer: &mut gst::BufferRef, earlier: &FrameResults, results: &FrameResults) {
    let has = |results: &FrameResults, id: i32| results.detections.iter().any(|detection| detection.id.0 == id);
    buffer.foreach_meta_mut(|mut meta| {
        let left_out = meta.downcast_ref::<RoiMeta>().map(|roi| roi.id()).is_some_and(|id| has(earlier, id) && !has(results, id));
        ControlFlow::Continue(if left_out { BufferMetaForeachAction::Remove } else { BufferMetaForeachAction::Keep })
    });
}

/// Completes the ROI meta of this detection; false if there is none.
fn update_roi(buffer: &mut gst::BufferRef, detection: &Detection, pixels: Option<PixelRect>, size: Size) -> bool {
    // One that another detector wrote without an id is taken over by its place.
    let unnamed = |roi: &RoiMeta| roi.id() <= 0 && Some(pixel_rect(roi)) == pixels;
    let by_id = roi_of(buffer, detection.id).is_some();
    let mut rois = buffer.iter_meta_mut::<RoiMeta>();
    let Some(mut roi) = rois.find(|roi| if by_id { roi.id() == detection.id.0 } else { unnamed(roi) }) else {
        return false;
    };
    roi.set_id(detection.id.0);
    add_missing_params(&mut roi, detection, size);
    true
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
    gst::Structure::builder(DETECTION)
        .field("x_min", f64::from(rect.x) / width)
        .field("x_max", f64::from(rect.x_max()) / width)
        .field("y_min", f64::from(rect.y) / height)
        .field("y_max", f64::from(rect.y_max()) / height)
        .field("confidence", f64::from(detection.confidence))
        .field("label_id", detection.label_id as i32)
        .field_if_some("label", detection.label.as_deref().map(without_nul).as_deref())
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
        Outcome::Value(value) => builder.field("value", f64::from(*value)).build(),
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

/// Sets the payload; there is at most one meta of ours on a buffer.
fn put(buffer: &mut gst::BufferRef, results: Arc<FrameResults>) {
    if let Some(mut meta) = buffer.meta_mut::<ResultsMeta>() {
        meta.0.set_results(results);
        return;
    }
    imp::add(buffer, results);
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
        f.debug_tuple("ResultsMeta").field(self.0.results()).finish()
    }
}

/// The side that C sees. The shape is that of `originalbuffermeta` in gst-plugins-rs.
mod imp {
    use std::ptr;
    use std::sync::{Arc, LazyLock};

    use gst::glib;
    use gst::glib::translate::*;
    use gstreamer as gst;

    use crate::frame::FrameResults;

    /// Begins with GStreamer's header, as every meta does.
    #[repr(C)]
    pub struct ResultsMeta {
        parent: gst::ffi::GstMeta,
        results: Arc<FrameResults>,
    }

    impl ResultsMeta {
        pub fn results(&self) -> &Arc<FrameResults> {
            &self.results
        }

        pub fn set_results(&mut self, results: Arc<FrameResults>) {
            self.results = results;
        }
    }

    /// What [`add`] hands to [`init`]; taken out, so that it is freed exactly once whether or not `init` runs.
    type Params = Option<Arc<FrameResults>>;

    /// Adds our meta to a buffer that has none.
    pub fn add(buffer: &mut gst::BufferRef, results: Arc<FrameResults>) {
        let mut params: Params = Some(results);
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
        let results = params.and_then(Option::take).unwrap_or_default();
        // SAFETY: the caller's promise; the field is written without dropping what was there, which is not a value yet.
        unsafe { ptr::write(&raw mut (*meta.cast::<ResultsMeta>()).results, results) };
        glib::ffi::GTRUE
    }

    /// # Safety
    /// `meta` was initialized by [`init`] and is not used afterwards.
    unsafe extern "C" fn free(meta: *mut gst::ffi::GstMeta, _buffer: *mut gst::ffi::GstBuffer) {
        // SAFETY: the caller's promise; the header is GStreamer's to free.
        unsafe { ptr::drop_in_place(&raw mut (*meta.cast::<ResultsMeta>()).results) };
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
        let results = unsafe { (*meta.cast::<ResultsMeta>()).results.clone() };
        // SAFETY: the caller's promise; nobody else refers to `dest` during the call.
        super::put(unsafe { gst::BufferRef::from_mut_ptr(dest) }, results);
        glib::ffi::GTRUE
    }
}
