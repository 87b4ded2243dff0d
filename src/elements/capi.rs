//! The C API of the plugin: reads and changes the results of a buffer, for programs in any language. `include/roiflow.h` documents it.
//!
//! Pointers from C are checked for null, and buffers for their type. `guarded` catches panics: the function then returns its "no result"
//! value. The structs have the layout of the header, which `tests/stream/capi.rs` checks with a C compiler.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use gst::glib::translate::IntoGlib;
use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video as gst_video;

use super::publish::capture_time;
use super::roi::without_nul;
use super::{meta, origin};
use crate::frame::{Classification, Detection, FrameResults, ObjectId, Outcome, Rect, ScoredLabel, Size, json};

/// Incremented when a function or a struct of the header changes its meaning or its layout, but not when a function is added.
pub const ABI_VERSION: u32 = 1;

/// Results of one buffer, owned by the C program.
pub struct RoiflowResults {
    results: Arc<FrameResults>,
    /// The objects that cover at least one pixel of the frame: their indices in the results, and their strings for C.
    objects: Vec<Object>,
    context: Context,
    json: OnceLock<CString>,
}

/// Data that the JSON contains in addition to the results.
struct Context {
    source: Option<String>,
    pts_ns: Option<u64>,
    time: SystemTime,
}

struct Object {
    detection_idx: usize,
    parent: i32,
    label: Option<CString>,
    attributes: Vec<Attribute>,
}

struct Attribute {
    name: CString,
    model: CString,
    label: Option<CString>,
    kind: RoiflowAttributeKind,
    label_id: u32,
    confidence: f32,
    value: f32,
}

/// The struct `RoiflowObject` of the C header.
#[derive(Debug)]
#[repr(C)]
pub struct RoiflowObject {
    pub x: f32,
    pub y: f32,
    pub width: f32,
    pub height: f32,
    pub confidence: f32,
    pub label_id: u32,
    pub label: *const c_char,
    pub track_id: i32,
    pub parent: i32,
    pub n_attributes: usize,
}

/// The enumeration `RoiflowAttributeKind` of the C header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum RoiflowAttributeKind {
    Other = 0,
    Label = 1,
    Value = 2,
}

/// The struct `RoiflowAttribute` of the C header.
#[derive(Debug)]
#[repr(C)]
pub struct RoiflowAttribute {
    pub name: *const c_char,
    pub model: *const c_char,
    pub label: *const c_char,
    pub kind: i32,
    pub label_id: u32,
    pub confidence: f32,
    pub value: f32,
}

/// Returns [`ABI_VERSION`], so that a program can compare it with the version in the header.
#[unsafe(no_mangle)]
pub extern "C" fn roiflow_abi_version() -> u32 {
    ABI_VERSION
}

/// Returns the results that are attached to a buffer, for a frame of this size in pixels. Returns null if the buffer has no
/// results.
///
/// # Safety
/// `buffer` is null or a buffer to which the caller has a reference, and which no other thread changes during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn roiflow_results_from_buffer(buffer: *mut gst::ffi::GstBuffer, width: u32, height: u32) -> *mut RoiflowResults {
    guarded(ptr::null_mut(), || {
        // SAFETY: the caller guarantees that a pointer that is not null refers to a buffer. Every mini object begins with its type.
        if buffer.is_null() || unsafe { (*buffer).mini_object.type_ } != gst::Buffer::static_type().into_glib() {
            return ptr::null_mut();
        }
        // SAFETY: the caller holds a reference to the buffer, and guarantees that no other thread changes it during the call.
        let buffer = unsafe { gst::BufferRef::from_ptr(buffer) };
        RoiflowResults::of(buffer, Size::new(width, height)).map_or(ptr::null_mut(), |results| Box::into_raw(Box::new(results)))
    })
}

/// Frees the results that [`roiflow_results_from_buffer`] returned.
///
/// # Safety
/// `results` is null, or comes from [`roiflow_results_from_buffer`] and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn roiflow_results_free(results: *mut RoiflowResults) {
    guarded((), || {
        if !results.is_null() {
            // SAFETY: the pointer comes from `Box::into_raw` above, and the caller guarantees that it is not used afterwards.
            drop(unsafe { Box::from_raw(results) });
        }
    });
}

/// Returns the number of objects; 0 if `results` is null.
///
/// # Safety
/// `results` is null, or comes from [`roiflow_results_from_buffer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn roiflow_results_n_objects(results: *const RoiflowResults) -> usize {
    // SAFETY: the caller guarantees that `results` is null or comes from `roiflow_results_from_buffer`.
    guarded(0, || unsafe { results.as_ref() }.map_or(0, |results| results.objects.len()))
}

/// Writes an object to `object`; returns 0 if the index is out of range.
///
/// # Safety
/// `results` is null, or comes from [`roiflow_results_from_buffer`]; `object` is null, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn roiflow_results_get_object(
    results: *const RoiflowResults,
    object_idx: usize,
    object: *mut RoiflowObject,
) -> c_int {
    guarded(0, || {
        // SAFETY: the caller guarantees that `results` is null or comes from `roiflow_results_from_buffer`.
        let found = unsafe { results.as_ref() }.and_then(|results| results.object(object_idx));
        // SAFETY: the caller guarantees that `object` is null or may be written.
        unsafe { write(object, found) }
    })
}

/// Writes an attribute of an object to `attribute`; returns 0 if an index is out of range.
///
/// # Safety
/// `results` is null, or comes from [`roiflow_results_from_buffer`]; `attribute` is null, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn roiflow_results_get_attribute(
    results: *const RoiflowResults,
    object_idx: usize,
    attribute_idx: usize,
    attribute: *mut RoiflowAttribute,
) -> c_int {
    guarded(0, || {
        // SAFETY: the caller guarantees that `results` is null or comes from `roiflow_results_from_buffer`.
        let found = unsafe { results.as_ref() }.and_then(|results| results.attribute(object_idx, attribute_idx));
        // SAFETY: the caller guarantees that `attribute` is null or may be written.
        unsafe { write(attribute, found) }
    })
}

/// Returns all results as one line of JSON; null if `results` is null.
///
/// # Safety
/// `results` is null, or comes from [`roiflow_results_from_buffer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn roiflow_results_json(results: *const RoiflowResults) -> *const c_char {
    // SAFETY: the caller guarantees that `results` is null or comes from `roiflow_results_from_buffer`.
    guarded(ptr::null(), || unsafe { results.as_ref() }.map_or(ptr::null(), |results| results.json().as_ptr()))
}

/// Makes the buffer of a pad probe writable, and returns it. Returns null if the probe has no buffer.
///
/// # Safety
/// `info` is null, or the information of a running pad probe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn roiflow_probe_buffer(info: *mut gst::ffi::GstPadProbeInfo) -> *mut gst::ffi::GstBuffer {
    guarded(ptr::null_mut(), || {
        // SAFETY: the caller guarantees that `info` is null or valid.
        let Some(info) = (unsafe { info.as_mut() }) else { return ptr::null_mut() };
        if info.type_ & gst::ffi::GST_PAD_PROBE_TYPE_BUFFER == 0 || info.data.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: the data of such a probe is a buffer that belongs to the probe. The function takes it and returns the new one.
        info.data = unsafe { gst::ffi::gst_mini_object_make_writable(info.data.cast()) }.cast();
        info.data.cast()
    })
}

/// Removes an object from the results of a writable buffer; returns 0 on failure.
///
/// # Safety
/// `buffer` is null or a buffer to which the caller has a reference, and which no other thread uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn roiflow_buffer_remove_object(
    buffer: *mut gst::ffi::GstBuffer,
    width: u32,
    height: u32,
    object_idx: usize,
) -> c_int {
    let remove = |results: &mut FrameResults| {
        let detection_idx = in_frame(results).nth(object_idx)?.0;
        results.detections.remove(detection_idx);
        Some(())
    };
    // SAFETY: the caller guarantees the same for `buffer`.
    guarded(0, || unsafe { edit(buffer, Size::new(width, height), remove) }.map_or(0, |()| 1))
}

/// Adds an object to the results of a writable buffer, and writes its index to `object_idx`; returns 0 on failure.
///
/// # Safety
/// `buffer` as for [`roiflow_buffer_remove_object`]; `object` is null or valid, with a label that is null or a C string; `object_idx` is
/// null, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn roiflow_buffer_add_object(
    buffer: *mut gst::ffi::GstBuffer,
    width: u32,
    height: u32,
    object: *const RoiflowObject,
    object_idx: *mut usize,
) -> c_int {
    let add = |results: &mut FrameResults| {
        // SAFETY: the caller guarantees that `object` is null or valid.
        let object = unsafe { object.as_ref() }?;
        let parent = match usize::try_from(object.parent) {
            Ok(parent_idx) => Some(in_frame(results).nth(parent_idx)?.1.id),
            Err(_) => None,
        };
        let detection = Detection {
            id: ObjectId::next(),
            track: None,
            track_state: None,
            parent,
            rect: Rect { x: object.x, y: object.y, width: object.width, height: object.height },
            keypoints: Vec::new(),
            confidence: object.confidence,
            label_id: object.label_id,
            // SAFETY: the caller guarantees that the label is null or a C string.
            label: unsafe { text_of(object.label) },
            classifications: Vec::new(),
        };
        meta::pixels_in(&detection, results.size)?;
        let n_before = in_frame(results).count();
        results.detections.push(detection);
        if object.track_id > 0 {
            results.detections.last_mut()?.adopt_track(ObjectId(object.track_id));
        }
        Some(n_before)
    };
    guarded(0, || {
        // SAFETY: the caller guarantees the same for `buffer`.
        let added = unsafe { edit(buffer, Size::new(width, height), add) };
        if !object_idx.is_null() {
            // SAFETY: the caller guarantees that `object_idx` is null or may be written.
            unsafe { write(object_idx, added) };
        }
        added.map_or(0, |_| 1)
    })
}

/// Adds an attribute to an object of a writable buffer; returns 0 on failure.
///
/// # Safety
/// `buffer` as for [`roiflow_buffer_remove_object`]; `attribute` is null or valid, with texts that are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn roiflow_buffer_add_attribute(
    buffer: *mut gst::ffi::GstBuffer,
    width: u32,
    height: u32,
    object_idx: usize,
    attribute: *const RoiflowAttribute,
) -> c_int {
    let add = |results: &mut FrameResults| {
        // SAFETY: the caller guarantees that `attribute` is null or valid, and that its texts are null or C strings.
        let (attribute, name, model, label) = unsafe {
            let attribute = attribute.as_ref()?;
            (attribute, text_of(attribute.name)?, text_of(attribute.model), text_of(attribute.label))
        };
        let outcome = match attribute.kind {
            kind if kind == RoiflowAttributeKind::Label as i32 => {
                Outcome::Label { label_id: attribute.label_id, label, confidence: attribute.confidence }
            }
            kind if kind == RoiflowAttributeKind::Value as i32 => Outcome::Value(attribute.value),
            _ => return None,
        };
        let detection_idx = in_frame(results).nth(object_idx)?.0;
        let model = model.unwrap_or_else(|| APPLICATION.into());
        results.detections[detection_idx].classifications.push(Classification { name, model, outcome });
        Some(())
    };
    // SAFETY: the caller guarantees the same for `buffer`.
    guarded(0, || unsafe { edit(buffer, Size::new(width, height), add) }.map_or(0, |()| 1))
}

/// Name of the model of attributes that a program adds without a model.
const APPLICATION: &str = "application";

/// Changes the results of a buffer. Returns `None` if `buffer` is not a writable buffer, or if `act` returns `None`.
///
/// # Safety
/// `buffer` is null or a buffer to which the caller has a reference, and which no other thread uses during the call.
unsafe fn edit<T>(buffer: *mut gst::ffi::GstBuffer, size: Size, act: impl FnOnce(&mut FrameResults) -> Option<T>) -> Option<T> {
    // SAFETY: the caller guarantees that a pointer that is not null refers to a buffer. Every mini object begins with its type.
    let is_writable = !buffer.is_null()
        && unsafe {
            (*buffer).mini_object.type_ == gst::Buffer::static_type().into_glib()
                && gst::ffi::gst_mini_object_is_writable(buffer.cast()) != 0
        };
    if !is_writable {
        return None;
    }
    // SAFETY: the buffer is writable, so the caller has the only reference.
    let buffer = unsafe { gst::BufferRef::from_mut_ptr(buffer) };
    let size = frame_size(buffer, size);
    meta::edit(buffer, size, act)
}

/// Returns the frame size: `size`, or that of the buffer if `size` is empty.
fn frame_size(buffer: &gst::BufferRef, size: Size) -> Size {
    let size_in_meta = || buffer.meta::<gst_video::VideoMeta>().map(|meta| Size::new(meta.width(), meta.height()));
    if size == Size::default() { size_in_meta().or_else(|| meta::size_when_attached(buffer)).unwrap_or_default() } else { size }
}

/// The objects that the C API counts, those with at least one pixel in the frame, with their indices in the results.
fn in_frame(results: &FrameResults) -> impl Iterator<Item = (usize, &Detection)> {
    results.detections.iter().enumerate().filter(|(_, detection)| meta::pixels_in(detection, results.size).is_some())
}

/// Returns the text of a C string; `None` if it is null.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn text_of(text: *const c_char) -> Option<Arc<str>> {
    // SAFETY: the caller guarantees that a pointer that is not null is a C string.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into())
}

/// Calls `act` and returns its result, or `otherwise` if `act` panics.
fn guarded<T>(otherwise: T, act: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        // Dropping the panic payload could panic again.
        std::mem::forget(panic);
        otherwise
    })
}

/// Writes a value to `target` and returns 1. Returns 0 if there is no value, or if `target` is null.
///
/// # Safety
/// `target` is null, or may be written.
unsafe fn write<T>(target: *mut T, found: Option<T>) -> c_int {
    let Some(found) = found.filter(|_| !target.is_null()) else { return 0 };
    // SAFETY: `target` is not null, and the caller guarantees that a target that is not null may be written.
    unsafe { target.write(found) };
    1
}

impl RoiflowResults {
    fn of(buffer: &gst::BufferRef, size: Size) -> Option<Self> {
        let results = meta::read_shared(buffer, frame_size(buffer, size))?;
        let context = Context {
            source: origin::read(buffer).map(|origin| origin.path),
            pts_ns: buffer.pts().map(gst::ClockTime::nseconds),
            time: capture_time(buffer).unwrap_or_else(SystemTime::now),
        };
        let in_frame: Vec<(usize, &Detection)> = in_frame(&results).collect();
        let index_of: HashMap<ObjectId, i32> = in_frame.iter().map(|(_, detection)| detection.id).zip(0..).collect();
        let object = |(detection_idx, detection): &(usize, &Detection)| Object {
            detection_idx: *detection_idx,
            parent: detection.parent.and_then(|parent| index_of.get(&parent).copied()).unwrap_or(-1),
            label: detection.label.as_deref().map(c_text),
            attributes: detection.classifications.iter().map(Attribute::of).collect(),
        };
        let objects = in_frame.iter().map(object).collect();
        Some(Self { results, objects, context, json: OnceLock::new() })
    }

    fn object(&self, object_idx: usize) -> Option<RoiflowObject> {
        let Object { detection_idx, parent, label, attributes } = self.objects.get(object_idx)?;
        let detection = &self.results.detections[*detection_idx];
        Some(RoiflowObject {
            x: detection.rect.x,
            y: detection.rect.y,
            width: detection.rect.width,
            height: detection.rect.height,
            confidence: detection.confidence,
            label_id: detection.label_id,
            label: pointer_to(label.as_ref()),
            track_id: detection.track.map_or(0, |track| track.0),
            parent: *parent,
            n_attributes: attributes.len(),
        })
    }

    fn attribute(&self, object_idx: usize, attribute_idx: usize) -> Option<RoiflowAttribute> {
        let attribute = self.objects.get(object_idx)?.attributes.get(attribute_idx)?;
        Some(RoiflowAttribute {
            name: attribute.name.as_ptr(),
            model: attribute.model.as_ptr(),
            label: pointer_to(attribute.label.as_ref()),
            kind: attribute.kind as i32,
            label_id: attribute.label_id,
            confidence: attribute.confidence,
            value: attribute.value,
        })
    }

    fn json(&self) -> &CString {
        self.json.get_or_init(|| {
            let Context { source, pts_ns, time } = &self.context;
            let context = json::Context {
                frame_number: Some(self.results.frame_number).filter(|number| *number != meta::UNNUMBERED).unwrap_or(0),
                stream_id: None,
                source: source.as_deref(),
                tags: None,
                timestamp_ns: None,
                pts_ns: *pts_ns,
                time: *time,
                message_id: None,
                image: None,
                masks: json::MaskFormat::default(),
                maps: json::MapFormat::default(),
            };
            let mut line = Vec::new();
            match json::write_line(&mut line, &self.results, &context) {
                Ok(()) => line.truncate(line.trim_ascii_end().len()),
                Err(error) => tracing::error!("cannot write results as JSON: {error}"),
            }
            // This conversion cannot fail, because JSON contains no NUL: JSON strings escape it.
            CString::new(line).unwrap_or_default()
        })
    }
}

impl Attribute {
    fn of(classification: &Classification) -> Self {
        let label = |label_id: u32, label: Option<&str>, confidence: f32| (label.map(c_text), label_id, confidence);
        let (kind, (label, label_id, confidence), value) = match &classification.outcome {
            Outcome::Label { label_id, label: text, confidence } => {
                (RoiflowAttributeKind::Label, label(*label_id, text.as_deref(), *confidence), 0.0)
            }
            Outcome::Labels(labels) if !labels.is_empty() => {
                let ScoredLabel { label_id, label: text, confidence } = &labels[0];
                (RoiflowAttributeKind::Label, label(*label_id, text.as_deref(), *confidence), 0.0)
            }
            Outcome::Value(value) => (RoiflowAttributeKind::Value, (None, 0, 0.0), *value),
            _ => (RoiflowAttributeKind::Other, (None, 0, 0.0), 0.0),
        };
        let (name, model) = (c_text(&classification.name), c_text(&classification.model));
        Self { name, model, label, kind, label_id, confidence, value }
    }
}

fn c_text(text: &str) -> CString {
    CString::new(without_nul(text).as_bytes()).unwrap_or_default()
}

fn pointer_to(text: Option<&CString>) -> *const c_char {
    text.map_or(ptr::null(), |text| text.as_ptr())
}
