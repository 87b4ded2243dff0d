//! `GstAnalyticsRelationMeta`: detections and classifications in the layout of GStreamer's own analytics elements.
//!
//! GStreamer 1.24 introduced this meta in a separate library. If the process has GStreamer 1.24 or newer, this module loads the library at
//! run time, so one plugin file also works on older systems. Without the library, all functions of this module have no effect.
//!
//! [`write`] adds our results to the meta; [`read`] reads results of other elements. [`Written`], which is stored in our own meta, has the
//! IDs of our entries. These IDs stay valid, because an ID is an index in the append-only list of entries of the meta. Copies of the
//! buffer and scalers keep that list.
//!
//! The relations between entries are those that the elements of GStreamer and DL Streamer use. A detection contains its classifications and
//! its child detections, and each of them is part of the detection. A tracked detection relates to a tracking entry with its track ID; the
//! first-seen time of that entry is set to unknown. A classification entry has no field for the attribute name or for a number such as an
//! age. Only our own meta and the parameters of the ROI metas contain the attribute name and the number. GStreamer 1.30 has a text for each
//! entry, the semantic tag: ours is the name of the model.
//!
//! A classification of the whole frame has no relation to a detection. The module `parts` has masks, tensors and keypoints; the module
//! `library` has the functions of the library.
//!
//! A detection of another element may have a rotation (GStreamer 1.26 and newer). Its rectangle is then the smallest one around the rotated
//! box, and the rotated box is one of its classifications. Our entries have the rotated box of a detection that has one.
//!
//! DL Streamer's elements also write class descriptors: a classification entry that lists all labels of a model with confidence 0.
//! Detections and classifications relate to this descriptor. A class descriptor is not a result: it maps a label ID, which is an index, to
//! the label.
//!
//! This module uses neither our own meta nor ROI metas. [`super::meta`] combines the three kinds of meta.

// Folders beside this file are elements.
#[path = "relations_library.rs"]
mod library;
#[path = "relations_parts.rs"]
mod parts;

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_int, c_uint};
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::ptr;
use std::sync::{Arc, LazyLock};

use gst::buffer::BufferMetaForeachAction;
use gst::glib;
use gst::glib::ffi::GQuark;
use gst::glib::translate::{FromGlib, IntoGlib};
use gstreamer as gst;

use self::library::{Api, InitParams, Mtd, RelationMeta, api};
use crate::frame::{Classification, Detection, FrameResults, Geometry, ObjectId, Outcome, PixelRect, Point, Rect, RotatedRect, Size};

/// Type of an object without a label.
const UNLABELED: &str = "object";
/// Attribute name given to classifications of other elements, because the relation meta stores no attribute name.
const FOREIGN_NAME: &str = "classification";
/// Attribute name of the rotated box of a detection of another element.
const FOREIGN_ROTATED: &str = "rotated";
/// Model name given to results of other elements without a semantic tag.
const FOREIGN_MODEL: &str = "GstAnalyticsRelationMeta";
/// Largest distance in pixels between the edges of a box and of its rotated box, if the rotated box is the box of the object.
const MAX_ROTATED_GAP: u32 = 2;
/// Largest coordinate of a rotated box, in pixels.
const MAX_EDGE: f32 = 1e6;

/// Maximum number of entries in a relation meta. The meta stores one byte per pair of entries, so this maximum limits the memory of
/// these pairs to 4 MB. If a frame has more objects, the least confident objects get no entry. They are only in our own meta and in
/// the ROI metas.
const MAX_ENTRIES: usize = 2048;

/// Relation of two entries: the first is part of the second.
const IS_PART_OF: c_int = 1 << 1;
/// Relation of two entries: the first contains the second.
const CONTAINS: c_int = 1 << 2;
/// Relation of two entries: the first relates to the second.
const RELATES_TO: c_int = 1 << 3;
/// Relation of two entries: each part of the first corresponds to the part of the second with the same index.
const N_TO_N: c_int = 1 << 4;
const ANY_RELATION: c_int = c_int::MAX;
/// `GST_CLOCK_TIME_NONE`.
const UNKNOWN_TIME: u64 = u64::MAX;

static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| gst::DebugCategory::new("roianalytics", gst::DebugColorFlags::empty(), Some("GStreamer's analytics metas")));

/// Entries of a buffer's relation meta that we wrote: those of detections, sorted by detection ID, and those of the whole frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Written(Vec<Entry>, OfFrame);

/// Entries of the classifications of the whole frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct OfFrame {
    /// ID and label of each entry. The label shows whether the entry with this ID is still ours. An entry that is no classification has
    /// the label 0.
    classes: Vec<(c_uint, GQuark)>,
    /// Number of the frame's classifications that are complete, as for a detection.
    n_classifications: usize,
}

/// Entries of the whole frame as plain numbers: ID and label of each entry, and the number of complete classifications.
pub(super) type WrittenOfFrame = (Vec<(c_uint, GQuark)>, usize);

/// An [`Entry`] as plain numbers, in field order. Another copy of the library in the process can use the quark, because quarks
/// are valid in the whole process.
pub(super) type WrittenEntry = (i32, c_uint, GQuark, Vec<c_uint>, usize, Option<c_uint>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    object: ObjectId,
    /// The ID of the detection's entry. The object type in `label` shows whether the entry with this ID is still ours.
    id: c_uint,
    label: GQuark,
    /// IDs of the entries of the detection's attributes: classifications, masks, tensors, keypoints.
    classes: Vec<c_uint>,
    /// Number of the detection's classifications that are complete: written to the meta, or skipped because the meta cannot represent them.
    n_classifications: usize,
    /// ID of the detection's tracking entry.
    track: Option<c_uint>,
}

impl Entry {
    /// Returns the number of entries that the detection has in the meta: its own, those of its attributes, and its tracking entry.
    fn n_entries(&self) -> usize {
        1 + self.classes.len() + usize::from(self.track.is_some())
    }

    /// Returns the entry's ID as a region ID. Entry IDs are list indices, far below the maximum of an `i32`.
    fn region_id(&self) -> i32 {
        i32::try_from(self.id).unwrap_or(i32::MAX)
    }
}

impl Written {
    /// Returns the ID of the detection's region meta. This is the ID of the detection's entry, as DL Streamer's elements expect, or the
    /// detection's own ID if it has no entry.
    pub(super) fn region_id(&self, object: ObjectId) -> i32 {
        self.0.binary_search_by_key(&object, |entry| entry.object).map_or(object.0, |idx| self.0[idx].region_id())
    }

    /// Returns the entries as plain numbers, so that another copy of the library in the process can read them.
    pub(super) fn entries(&self) -> Vec<WrittenEntry> {
        let plain = |entry: &Entry| (entry.object.0, entry.id, entry.label, entry.classes.clone(), entry.n_classifications, entry.track);
        self.0.iter().map(plain).collect()
    }

    /// Returns the entries of the whole frame as plain numbers.
    pub(super) fn entries_of_frame(&self) -> WrittenOfFrame {
        (self.1.classes.clone(), self.1.n_classifications)
    }

    /// Converts plain numbers from [`Written::entries`] and [`Written::entries_of_frame`] back to entries.
    pub(super) fn of_entries(entries: Vec<WrittenEntry>, (classes, n_of_frame): WrittenOfFrame) -> Self {
        let entry = |(object, id, label, classes, n_classifications, track)| Entry {
            object: ObjectId(object),
            id,
            label,
            classes,
            n_classifications,
            track,
        };
        Self(entries.into_iter().map(entry).collect(), OfFrame { classes, n_classifications: n_of_frame })
    }

    /// Returns the region ID and the detection ID of each of our entries.
    pub(super) fn objects(&self) -> impl Iterator<Item = (i32, ObjectId)> {
        self.0.iter().map(|entry| (entry.region_id(), entry.object))
    }
}

/// Content of a buffer's relation meta.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// Rectangles of our detections as they are in the meta now. GStreamer may have rescaled them together with the frame.
    pub(super) ours: HashMap<ObjectId, Rect>,
    /// Detections of other elements.
    pub(super) foreign: Vec<Foreign>,
    /// Classifications that other elements added to our detections.
    pub(super) classifications: Vec<(ObjectId, Classification)>,
    /// Track IDs that other trackers gave to our detections.
    pub(super) tracks: Vec<(ObjectId, ObjectId)>,
    /// Classifications of the whole frame by other elements.
    pub(super) of_frame: Vec<Classification>,
}

/// A detection of another element.
#[derive(Debug)]
pub(super) struct Foreign {
    /// ID of the detection's entry. `parent` is the ID of the parent detection's entry.
    pub(super) entry: i32,
    pub(super) parent: Option<i32>,
    /// The detection, without ID and parent: the caller sets these.
    pub(super) detection: Detection,
}

/// Whether the buffer has detections or classifications in a relation meta.
pub(super) fn has_any(buffer: &gst::BufferRef) -> bool {
    Relations::of(buffer).is_some_and(|relations| relations.len() > 0)
}

/// Whether we wrote all entries of the buffer's relation meta. True if the buffer has no relation meta.
pub(super) fn is_all_ours(buffer: &gst::BufferRef, written: &Written) -> bool {
    let Some(relations) = Relations::of(buffer) else { return true };
    let ids = relations.ids(relations.object_type());
    let n_of_objects = relations.still_there(&ids, written).map(Entry::n_entries).sum::<usize>();
    n_of_objects + relations.classes_still_there(written).count() == relations.len()
}

/// Reads the relation meta of a buffer. `written` lists the entries that we wrote.
pub(super) fn read(buffer: &gst::BufferRef, written: &Written) -> Read {
    let mut read = Read::default();
    let Some(relations) = Relations::of(buffer) else { return read };
    let ids = relations.ids(relations.object_type());
    let ours: Vec<&Entry> = relations.still_there(&ids, written).collect();
    read.ours = ours.iter().filter_map(|entry| Some((entry.object, relations.place(entry.id)?.0))).collect();
    let classes_of_frame: Vec<c_uint> = relations.classes_still_there(written).map(|(id, _)| *id).collect();
    let n_ours: usize = ours.iter().map(|entry| entry.n_entries()).sum::<usize>() + classes_of_frame.len();
    if n_ours == relations.len() {
        return read;
    }
    read.of_frame = relations.classifications_of_frame(&ids, &classes_of_frame);
    let has_parts = relations.has_parts();
    if has_parts {
        read.of_frame.extend(relations.parts_of_frame(&ids, &classes_of_frame));
    }
    let of_ours: HashSet<c_uint> = ours.iter().map(|entry| entry.id).collect();
    for id in ids.into_iter().filter(|id| !of_ours.contains(id)) {
        let Some((rect, confidence)) = relations.place(id).filter(|(rect, _)| rect.is_proper()) else { continue };
        let mut classifications = relations.classifications_of(id, &[]);
        if has_parts {
            classifications.extend(relations.parts_of(id, &[]));
        }
        if let Some(rotated) = relations.location(id).and_then(|(place, _)| place.rotated()) {
            let outcome = Outcome::Geometry(Geometry::RotatedRect(rotated));
            classifications.push(Classification { name: FOREIGN_ROTATED.into(), model: FOREIGN_MODEL.into(), outcome });
        }
        let mut detection = Detection {
            id: ObjectId(0),
            track: None,
            track_state: None,
            parent: None,
            rect,
            keypoints: Vec::new(),
            confidence,
            label_id: relations.class_index(id, relations.label(id)).unwrap_or(0),
            label: text_of(relations.label(id)),
            classifications,
        };
        relations.track_of(id).into_iter().for_each(|track| detection.adopt_track(track));
        let (Ok(entry), parent) = (i32::try_from(id), relations.parent_of(id)) else { continue };
        read.foreign.push(Foreign { entry, parent: parent.and_then(|parent| i32::try_from(parent).ok()), detection });
    }
    for entry in ours {
        read.classifications.extend(relations.classifications_of(entry.id, &entry.classes).into_iter().map(|class| (entry.object, class)));
        if has_parts {
            read.classifications.extend(relations.parts_of(entry.id, &entry.classes).into_iter().map(|part| (entry.object, part)));
        }
        if entry.track.is_none() {
            read.tracks.extend(relations.track_of(entry.id).map(|track| (entry.object, track)));
        }
    }
    read
}

/// Adds missing results to the buffer's relation meta, and creates the meta if the buffer has none. No effect without the library.
///
/// Entries cannot be removed from a relation meta, and cannot be moved. If objects were removed or moved and all entries are ours, the meta
/// is created again. If the meta has entries of other elements, our outdated entries stay.
pub(super) fn write(buffer: &mut gst::BufferRef, results: &FrameResults, written: &mut Written) {
    let Some(api) = api() else { return };
    let mut unclaimed: Vec<(c_uint, GQuark, Option<PixelRect>)> = Vec::new();
    // IDs of the detections that have a tracking entry.
    let mut tracked: HashSet<c_uint> = HashSet::new();
    // Classifications in the meta that other elements wrote, by the ID of their detection's entry. If our results contain an equal
    // classification, it must not be written a second time.
    let mut foreign_classifications: HashMap<c_uint, Vec<Classification>> = HashMap::new();
    let mut foreign_of_frame: Vec<Classification> = Vec::new();
    let mut n_entries = 0;
    let detection_of: HashMap<ObjectId, &Detection> = results.detections.iter().map(|detection| (detection.id, detection)).collect();
    let mut is_outdated = false;
    match Relations::of(buffer) {
        None => *written = Written::default(),
        Some(relations) => {
            let ids = relations.ids(relations.object_type());
            let classes: Vec<(c_uint, GQuark)> = relations.classes_still_there(written).copied().collect();
            let n_classifications = if classes.len() == written.1.classes.len() { written.1.n_classifications } else { 0 };
            *written = Written(relations.still_there(&ids, written).cloned().collect(), OfFrame { classes, n_classifications });
            tracked.extend(ids.iter().filter(|id| relations.track_of(**id).is_some()));
            n_entries = relations.len();
            if written.0.iter().map(Entry::n_entries).sum::<usize>() + written.1.classes.len() == n_entries {
                let is_current = |entry: &Entry| {
                    let Some(detection) = detection_of.get(&entry.object) else { return false };
                    let now = relations.location(entry.id).map(|(place, _)| place);
                    let is_at = |now: Place| Place::of(detection, results.size, api).is_some_and(|place| now.is_at(&place, results.size));
                    // Without the size of the frame, no box has pixels.
                    results.size == Size::default() || now.is_some_and(is_at)
                };
                is_outdated = !written.0.iter().all(is_current);
            } else {
                let known: HashMap<c_uint, &[c_uint]> = written.0.iter().map(|entry| (entry.id, &*entry.classes)).collect();
                let of_others = |id: &c_uint| (*id, relations.classifications_of(*id, known.get(id).copied().unwrap_or_default()));
                foreign_classifications.extend(ids.iter().map(of_others));
                let ours: Vec<c_uint> = written.1.classes.iter().map(|(id, _)| *id).collect();
                foreign_of_frame = relations.classifications_of_frame(&ids, &ours);
                let ours: HashSet<c_uint> = written.0.iter().map(|entry| entry.id).collect();
                let place = |id| relations.place(id).and_then(|(rect, _)| rect.to_pixels(results.size));
                unclaimed = ids.iter().filter(|id| !ours.contains(id)).map(|&id| (id, relations.label(id), place(id))).collect();
            }
        }
    }
    if is_outdated {
        remove(buffer, api);
        *written = Written::default();
        tracked.clear();
        n_entries = 0;
    }
    let mut entry_of: HashMap<ObjectId, usize> = written.0.iter().enumerate().map(|(idx, entry)| (entry.object, idx)).collect();
    let new: Vec<(&Detection, PixelRect)> = results
        .detections
        .iter()
        .filter(|detection| !entry_of.contains_key(&detection.id))
        .filter_map(|new| Some((new, new.rect.to_pixels(results.size)?)))
        .collect();
    let n_classifications: usize = results.detections.iter().map(|detection| detection.classifications.len()).sum();
    let n_known: usize = written.0.iter().map(|entry| entry.n_classifications).sum();
    let n_tracks = results.detections.iter().filter(|detection| detection.track.is_some()).count();
    let n_known_tracks = written.0.iter().filter(|entry| entry.track.is_some()).count();
    let of_frame = results.classifications.get(written.1.n_classifications..).unwrap_or_default();
    if new.is_empty() && n_classifications <= n_known && n_tracks <= n_known_tracks && of_frame.is_empty() {
        return;
    }
    let mut n_free = MAX_ENTRIES.saturating_sub(n_entries);
    let n_new = new.len() + n_classifications + n_tracks + of_frame.len();
    let Some(relations) = RelationsMut::of(buffer, api, n_free.min(n_new)) else { return };
    let mut added = Vec::with_capacity(new.len());
    for (detection, pixels) in new {
        let label = quark(detection.label.as_deref().unwrap_or(UNLABELED));
        // A detection that we read from an entry of another element keeps that entry, and gets no second entry.
        let is_it = |(_, of, place): &(c_uint, GQuark, Option<PixelRect>)| {
            *place == Some(pixels) && (*of == label || (*of == 0 && detection.label.is_none()))
        };
        let known = unclaimed.iter().position(is_it).map(|at| unclaimed.swap_remove(at));
        let id = match known {
            Some((id, ..)) => Some(id),
            None => Place::of(detection, results.size, api)
                .and_then(|place| take(&mut n_free).and_then(|()| relations.add_object(label, place, detection.rank()))),
        };
        let Some(id) = id else { continue };
        entry_of.insert(detection.id, written.0.len());
        added.push((detection, id));
        let label = known.map_or(label, |(_, of, _)| of);
        written.0.push(Entry { object: detection.id, id, label, classes: Vec::new(), n_classifications: 0, track: None });
    }
    for (child, id) in added {
        if let Some(&parent_idx) = child.parent.and_then(|parent| entry_of.get(&parent)) {
            let parent_id = written.0[parent_idx].id;
            relations.relate(parent_id, CONTAINS, id);
            relations.relate(id, IS_PART_OF, parent_id);
        }
    }
    for entry in &mut written.0 {
        let Some(detection) = detection_of.get(&entry.object) else { continue };
        for new in detection.classifications.iter().skip(entry.n_classifications).filter(|new| *new.model != *FOREIGN_MODEL) {
            let Outcome::Label { label_id, label, confidence } = &new.outcome else {
                let Some(place) = detection.rect.to_pixels(results.size) else { continue };
                let ids = relations.add_part(new, place, region_of(entry.id), &mut n_free);
                if let Some((id, _)) = ids.first() {
                    relations.relate_part(entry.id, *id, &new.outcome);
                    relations.tag(*id, new);
                }
                entry.classes.extend(ids.into_iter().map(|(id, _)| id));
                continue;
            };
            if foreign_classifications.get(&entry.id).is_some_and(|others| others.iter().any(|other| is_same_label(other, new))) {
                continue;
            }
            let label = quark_of(label.as_deref(), *label_id);
            if let Some(id) = take(&mut n_free).and_then(|()| relations.add_class(label, *confidence)) {
                // The relation is not `RELATES_TO`, because DL Streamer treats the target of that relation as the class descriptor.
                relations.relate(entry.id, CONTAINS, id);
                relations.relate(id, IS_PART_OF, entry.id);
                relations.tag(id, new);
                entry.classes.push(id);
            }
        }
        entry.n_classifications = detection.classifications.len();
        if let Some(track) = detection.track.filter(|_| !tracked.contains(&entry.id))
            && let Some(id) = take(&mut n_free).and_then(|()| relations.add_track(track))
        {
            relations.relate(entry.id, RELATES_TO, id);
            entry.track = Some(id);
        }
    }
    for new in of_frame.iter().filter(|new| *new.model != *FOREIGN_MODEL) {
        let Outcome::Label { label_id, label, confidence } = &new.outcome else {
            let ids = relations.add_part(new, PixelRect::whole(results.size), region_of(0), &mut n_free);
            if let Some((id, _)) = ids.first() {
                relations.tag(*id, new);
            }
            written.1.classes.extend(ids);
            continue;
        };
        if foreign_of_frame.iter().any(|other| is_same_label(other, new)) {
            continue;
        }
        let label = quark_of(label.as_deref(), *label_id);
        if let Some(id) = take(&mut n_free).and_then(|()| relations.add_class(label, *confidence)) {
            relations.tag(id, new);
            written.1.classes.push((id, label));
        }
    }
    written.1.n_classifications = results.classifications.len();
    written.0.sort_unstable_by_key(|entry| entry.object);
}

/// Returns the region ID of an object's mask, 1 to 255. Objects with consecutive entries have different IDs, because GStreamer's
/// `segmentationoverlay` chooses the color by the ID.
fn region_of(entry: c_uint) -> u8 {
    (entry % 255) as u8 + 1
}

/// Returns the quark of a label, or of the class index if there is no label.
fn quark_of(label: Option<&str>, label_id: u32) -> GQuark {
    label.map_or_else(|| quark(&label_id.to_string()), quark)
}

/// Whether both classifications have the same label and confidence, regardless of the attribute name.
pub(super) fn is_same_label(one: &Classification, other: &Classification) -> bool {
    match (&one.outcome, &other.outcome) {
        (Outcome::Label { label, confidence, .. }, Outcome::Label { label: other_label, confidence: other_confidence, .. }) => {
            label == other_label && (confidence - other_confidence).abs() < 1e-4
        }
        _ => false,
    }
}

/// Whether both are results of another element that is no label, and have the same name. A scaler may have changed one of them.
pub(super) fn is_same_part(one: &Classification, other: &Classification) -> bool {
    let is_part = |of: &Classification| *of.model == *FOREIGN_MODEL && !matches!(of.outcome, Outcome::Label { .. });
    is_part(one) && is_part(other) && one.name == other.name
}

/// Takes one entry from the number of entries that may still be added. Returns `None` if that number is 0.
fn take(n_free: &mut usize) -> Option<()> {
    *n_free = n_free.checked_sub(1)?;
    Some(())
}

fn remove(buffer: &mut gst::BufferRef, api: &Api) {
    // SAFETY: the function has no preconditions. It registers the type on the first call, and returns it.
    let relation_meta = unsafe { glib::Type::from_glib((api.gst_analytics_relation_meta_api_get_type)()) };
    buffer.foreach_meta_mut(|meta| {
        let is_it = meta.api() == relation_meta;
        ControlFlow::Continue(if is_it { BufferMetaForeachAction::Remove } else { BufferMetaForeachAction::Keep })
    });
}

/// Returns the quark of a string. GLib never frees quarks; this is acceptable because there are few labels.
fn quark(text: &str) -> GQuark {
    glib::Quark::from_str(text.replace('\0', "")).into_glib()
}

/// Returns the smallest rectangle around the corners, in whole pixels.
fn around(corners: &[Point; 4]) -> Rect {
    let edges = |of: fn(&Point) -> f32| {
        let least = corners.iter().map(of).fold(f32::INFINITY, f32::min).round();
        (least, corners.iter().map(of).fold(f32::NEG_INFINITY, f32::max).round() - least)
    };
    let ((x, width), (y, height)) = (edges(|corner| corner.x), edges(|corner| corner.y));
    Rect { x, y, width, height }
}

/// The box of an entry as the library stores it.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Left and top edge before the rotation, width, height.
    edges: [c_int; 4],
    /// Clockwise angle in radians, around the center of the box; 0 = not rotated.
    angle: f32,
}

impl Place {
    /// Returns the place of a detection; `None` if the detection is outside the frame.
    fn of(detection: &Detection, size: Size, api: &Api) -> Option<Self> {
        let pixels = detection.rect.to_pixels(size)?;
        let rotated = api.oriented.as_ref().and_then(|_| rotated_box(detection, pixels, size)).map(|rect| {
            let (x, y) = (rect.center.x - rect.width / 2.0, rect.center.y - rect.height / 2.0);
            // The library adds and rotates edges, so they must be far below the maximum of a `c_int`.
            let edges = [x, y, rect.width.max(1.0), rect.height.max(1.0)].map(|edge| edge.round().clamp(-MAX_EDGE, MAX_EDGE) as c_int);
            Self { edges, angle: rect.angle.rem_euclid(360.0).to_radians() }
        });
        let edges = [pixels.x, pixels.y, pixels.width, pixels.height];
        Some(rotated.unwrap_or_else(|| Self { edges: edges.map(|edge| c_int::try_from(edge).unwrap_or(c_int::MAX)), angle: 0.0 }))
    }

    /// Whether both places are equal in a frame of this size. Two rotated boxes may differ by one pixel, because a scaler rounds them before
    /// the rotation. Of other boxes, the parts inside the frame count.
    fn is_at(&self, other: &Self, size: Size) -> bool {
        if self.angle == 0.0 && other.angle == 0.0 {
            return self.rect().to_pixels(size) == other.rect().to_pixels(size);
        }
        let turn = self.angle - other.angle;
        self.edges.iter().zip(other.edges).all(|(one, other)| one.abs_diff(other) <= 1) && turn.sin().abs() < 1e-3 && turn.cos() > 0.0
    }

    fn rotated(&self) -> Option<RotatedRect> {
        let [x, y, width, height] = self.edges.map(|edge| edge as f32);
        let center = Point { x: x + width / 2.0, y: y + height / 2.0 };
        (self.angle != 0.0).then(|| RotatedRect { center, width, height, angle: self.angle.to_degrees() })
    }

    /// Returns the box. The box of a rotated one is the smallest one around it.
    fn rect(&self) -> Rect {
        let [x, y, width, height] = self.edges.map(|edge| edge as f32);
        self.rotated().map_or(Rect { x, y, width, height }, |rotated| around(&rotated.corners()))
    }
}

/// Returns the rotated box of a detection. A rotated box at another place than `pixels`, which are those of the detection, is the place of
/// a part of the object.
fn rotated_box(detection: &Detection, pixels: PixelRect, size: Size) -> Option<RotatedRect> {
    let edges = |PixelRect { x, y, width, height }| [x, y, x + width, y + height];
    let is_it = |rect: &&RotatedRect| {
        around(&rect.corners())
            .to_pixels(size)
            .is_some_and(|place| edges(place).into_iter().zip(edges(pixels)).all(|(one, other)| one.abs_diff(other) <= MAX_ROTATED_GAP))
    };
    let rects = detection.classifications.iter().filter_map(|classification| match &classification.outcome {
        Outcome::Geometry(Geometry::RotatedRect(rect)) => Some(rect),
        _ => None,
    });
    rects.filter(|rect| rect.angle % 360.0 != 0.0).find(is_it).copied()
}

fn text_of(quark: GQuark) -> Option<Arc<str>> {
    // Another element may have written any number.
    // SAFETY: the function returns null for a number that is no quark, and otherwise a text that is never freed.
    let text = unsafe { glib::ffi::g_quark_to_string(quark) };
    // SAFETY: the text is not null, and ends with a zero byte.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into())
}

/// The relation meta of a borrowed buffer.
struct Relations<'a> {
    api: &'static Api,
    /// Valid while the buffer is borrowed.
    meta: *mut RelationMeta,
    _buffer: PhantomData<&'a gst::BufferRef>,
}

impl<'a> Relations<'a> {
    fn of(buffer: &'a gst::BufferRef) -> Option<Self> {
        let api = api()?;
        // SAFETY: a `&BufferRef` is a valid buffer, and the function only reads.
        let meta = unsafe { (api.gst_buffer_get_analytics_relation_meta)(buffer.as_ptr().cast_mut()) };
        (!meta.is_null()).then_some(Self { api, meta, _buffer: PhantomData })
    }

    fn len(&self) -> usize {
        // SAFETY: the meta is valid.
        unsafe { (self.api.gst_analytics_relation_get_length)(self.meta) }
    }

    fn object_type(&self) -> usize {
        // SAFETY: the function has no preconditions.
        unsafe { (self.api.gst_analytics_od_mtd_get_mtd_type)() }
    }

    fn class_type(&self) -> usize {
        // SAFETY: the function has no preconditions.
        unsafe { (self.api.gst_analytics_cls_mtd_get_mtd_type)() }
    }

    /// Returns all entries of a type.
    fn ids(&self, of_type: usize) -> Vec<c_uint> {
        let (mut ids, mut state, mut found) = (Vec::new(), ptr::null_mut(), Mtd::NONE);
        // SAFETY: the meta is valid; the state is initialized with null and owned by the function.
        while unsafe { (self.api.gst_analytics_relation_meta_iterate)(self.meta, &raw mut state, of_type, &raw mut found) } != 0 {
            ids.push(found.id);
        }
        ids
    }

    /// Returns the entries of the type `to_type` to which the entry `id` has one of these relations.
    fn related(&self, id: c_uint, relations: c_int, to_type: usize) -> Vec<c_uint> {
        let (mut ids, mut state, mut found) = (Vec::new(), ptr::null_mut(), Mtd::NONE);
        let next = self.api.gst_analytics_relation_meta_get_direct_related;
        // SAFETY: the meta is valid, `id` is one of its entries; the state is initialized with null and owned by the function.
        while unsafe { next(self.meta, id, relations, to_type, &raw mut state, &raw mut found) } != 0 {
            ids.push(found.id);
        }
        ids
    }

    /// Returns those of our entries that the current meta still contains. Another element may have replaced the meta since we wrote
    /// the entries. `ids` are the IDs of all detections in the current meta.
    fn still_there<'w>(&self, ids: &[c_uint], written: &'w Written) -> impl Iterator<Item = &'w Entry> {
        let ids: HashSet<c_uint> = ids.iter().copied().collect();
        written.0.iter().filter(move |entry| ids.contains(&entry.id) && self.label(entry.id) == entry.label)
    }

    /// Returns those of our entries for the whole frame that the current meta still contains.
    fn classes_still_there<'w>(&self, written: &'w Written) -> impl Iterator<Item = &'w (c_uint, GQuark)> {
        written.1.classes.iter().filter(move |(id, label)| (*id as usize) < self.len() && self.first_label(*id) == Some(*label))
    }

    /// Returns the label of the first class of an entry; 0 for an entry without classes, `None` for a detection.
    fn first_label(&self, id: c_uint) -> Option<GQuark> {
        let mut entry = self.mtd(id);
        // SAFETY: the meta is valid, and `id` is one of its entries. The functions of classes get a classification, and an index below its
        // length.
        unsafe {
            let of_type = (self.api.gst_analytics_mtd_get_mtd_type)(&raw mut entry);
            if of_type != self.class_type() || (self.api.gst_analytics_cls_mtd_get_length)(&raw mut entry) == 0 {
                return (of_type != self.object_type()).then_some(0);
            }
            Some((self.api.gst_analytics_cls_mtd_get_quark)(&raw mut entry, 0))
        }
    }

    /// Returns the classifications that belong to no detection, except the entries in `known`. `objects` are all detections.
    fn classifications_of_frame(&self, objects: &[c_uint], known: &[c_uint]) -> Vec<Classification> {
        let ids = self.entries_of_frame(objects, self.class_type()).into_iter().filter(|id| !known.contains(id));
        ids.filter_map(|id| self.classification(id)).collect()
    }

    /// Returns the entries of a type that belong to no detection. `objects` are all detections.
    fn entries_of_frame(&self, objects: &[c_uint], of_type: usize) -> Vec<c_uint> {
        let mut ids = self.ids(of_type);
        if !ids.is_empty() {
            let of_objects: HashSet<c_uint> = objects.iter().flat_map(|id| self.related(*id, CONTAINS | RELATES_TO, of_type)).collect();
            ids.retain(|id| !of_objects.contains(id) && self.related(*id, IS_PART_OF | RELATES_TO, self.object_type()).is_empty());
        }
        ids
    }

    /// Returns the entries of a type that belong to a detection.
    fn entries_of(&self, id: c_uint, of_type: usize) -> Vec<c_uint> {
        let mut ids = self.related(id, CONTAINS | RELATES_TO, of_type);
        for part in self.ids(of_type) {
            if !ids.contains(&part) && self.related(part, IS_PART_OF | RELATES_TO, self.object_type()).contains(&id) {
                ids.push(part);
            }
        }
        ids
    }

    /// Returns the object type of a detection; 0 = none.
    fn label(&self, id: c_uint) -> GQuark {
        let mut object = self.mtd(id);
        // SAFETY: the meta is valid, and `id` is one of its detections.
        unsafe { (self.api.gst_analytics_od_mtd_get_obj_type)(&raw mut object) }
    }

    /// Returns the rectangle and confidence of a detection. The rectangle of a rotated box is the smallest one around it.
    fn place(&self, id: c_uint) -> Option<(Rect, f32)> {
        self.location(id).map(|(place, confidence)| (place.rect(), confidence))
    }

    /// Returns the place and confidence of a detection.
    fn location(&self, id: c_uint) -> Option<(Place, f32)> {
        let (mut object, mut angle, mut confidence) = (self.mtd(id), 0.0, 0.0);
        let [mut x, mut y, mut width, mut height] = [0; 4];
        let get = self.api.gst_analytics_od_mtd_get_location;
        // SAFETY: the meta is valid, `id` is one of its detections, and all pointers are to local values.
        let got = unsafe {
            match &self.api.oriented {
                Some(api) => {
                    let get = api.gst_analytics_od_mtd_get_oriented_location;
                    get(&raw mut object, &raw mut x, &raw mut y, &raw mut width, &raw mut height, &raw mut angle, &raw mut confidence)
                }
                None => get(&raw mut object, &raw mut x, &raw mut y, &raw mut width, &raw mut height, &raw mut confidence),
            }
        };
        // Another element may have written any angle.
        let angle = if angle.is_finite() { angle } else { 0.0 };
        (got != 0).then_some((Place { edges: [x, y, width, height], angle }, confidence))
    }

    /// Returns the ID of the detection that contains the detection `id`.
    fn parent_of(&self, id: c_uint) -> Option<c_uint> {
        let stated = self.related(id, IS_PART_OF, self.object_type()).into_iter().find(|parent| *parent != id);
        let contains = |other: &c_uint| {
            // SAFETY: the meta is valid, and `other` and `id` are two of its entries.
            let relation = unsafe { (self.api.gst_analytics_relation_meta_get_relation)(self.meta, *other, id) };
            *other != id && relation & CONTAINS != 0
        };
        stated.or_else(|| self.ids(self.object_type()).into_iter().find(contains))
    }

    /// Returns the classifications of a detection, except the entries in `known`. Each classification is the most confident class of
    /// its entry. Entries that are class descriptors are skipped.
    fn classifications_of(&self, id: c_uint, known: &[c_uint]) -> Vec<Classification> {
        let ids = self.entries_of(id, self.class_type());
        ids.iter().filter(|id| !known.contains(id)).filter_map(|id| self.classification(*id)).collect()
    }

    fn classification(&self, id: c_uint) -> Option<Classification> {
        let mut class = self.mtd(id);
        // SAFETY: the meta is valid, and `id` is one of its classifications.
        let n_classes = unsafe { (self.api.gst_analytics_cls_mtd_get_length)(&raw mut class) };
        let mut best: Option<(usize, f32)> = None;
        for class_idx in 0..n_classes {
            // SAFETY: the meta is valid, `id` is one of its classifications, and the index is below the length of that entry.
            let confidence = unsafe { (self.api.gst_analytics_cls_mtd_get_level)(&raw mut class, class_idx) };
            if confidence > best.map_or(0.0, |(_, most)| most) {
                best = Some((class_idx, confidence));
            }
        }
        // An entry in which all confidences are 0 is a class descriptor.
        let (class_idx, confidence) = best?;
        // SAFETY: the meta is valid, `id` is one of its classifications, and `class_idx` is below the length of that entry.
        let label = unsafe { (self.api.gst_analytics_cls_mtd_get_quark)(&raw mut class, class_idx) };
        // An entry with a single class does not contain the label ID of that class. If there is a class descriptor, it contains the label
        // ID.
        let label_id = Some(id).filter(|_| n_classes == 1).and_then(|id| self.class_index(id, label)).unwrap_or(class_idx as u32);
        let outcome = Outcome::Label { label_id, label: text_of(label), confidence };
        Some(Classification { name: FOREIGN_NAME.into(), model: self.tag(id).unwrap_or_else(|| FOREIGN_MODEL.into()), outcome })
    }

    /// Returns the index of a label in the class descriptor to which an entry relates. `None` if the entry relates to no
    /// descriptor with this label.
    fn class_index(&self, id: c_uint, label: GQuark) -> Option<u32> {
        let descriptors = self.related(id, RELATES_TO, self.class_type()).into_iter().filter(|other| *other != id);
        descriptors.filter_map(|descriptor| self.index_in_descriptor(descriptor, label)).next()
    }

    fn index_in_descriptor(&self, id: c_uint, label: GQuark) -> Option<u32> {
        let mut class = self.mtd(id);
        // SAFETY: the meta is valid, and `id` is one of its classifications.
        let n_classes = unsafe { (self.api.gst_analytics_cls_mtd_get_length)(&raw mut class) };
        let mut index = None;
        for class_idx in 0..n_classes {
            // SAFETY: the meta is valid, `id` is one of its classifications, and the index is below the length of that entry.
            let (level, quark) = unsafe {
                let level = (self.api.gst_analytics_cls_mtd_get_level)(&raw mut class, class_idx);
                (level, (self.api.gst_analytics_cls_mtd_get_quark)(&raw mut class, class_idx))
            };
            if level > 0.0 {
                return None; // The entry is a result, because a descriptor has only confidences of 0.
            }
            if quark == label && index.is_none() {
                index = Some(class_idx as u32);
            }
        }
        index
    }

    /// Returns the track ID of a detection; `None` if the detection has none, or if the ID is not a positive `i32`.
    fn track_of(&self, id: c_uint) -> Option<ObjectId> {
        // SAFETY: the function has no preconditions.
        let tracking_type = unsafe { (self.api.gst_analytics_tracking_mtd_get_mtd_type)() };
        let mut tracking = self.mtd(self.related(id, ANY_RELATION, tracking_type).into_iter().next()?);
        let (mut track, mut first_seen, mut last_seen, mut is_lost) = (0, 0, 0, 0);
        let get = self.api.gst_analytics_tracking_mtd_get_info;
        // SAFETY: the meta is valid, the entry is a tracking entry, and all pointers are to local values.
        let got = unsafe { get(&raw mut tracking, &raw mut track, &raw mut first_seen, &raw mut last_seen, &raw mut is_lost) };
        (got != 0 && track > 0).then(|| i32::try_from(track).ok().map(ObjectId))?
    }

    fn mtd(&self, id: c_uint) -> Mtd {
        Mtd { id, meta: self.meta }
    }
}

/// The relation meta of a mutably borrowed buffer.
struct RelationsMut<'a> {
    api: &'static Api,
    /// Valid and writable while the buffer is borrowed.
    meta: *mut RelationMeta,
    _buffer: PhantomData<&'a mut gst::BufferRef>,
}

impl<'a> RelationsMut<'a> {
    /// Returns the existing meta, or a new meta with capacity for `n_entries`. A full meta grows by `n_entries`.
    fn of(buffer: &'a mut gst::BufferRef, api: &'static Api, n_entries: usize) -> Option<Self> {
        const ENTRY_BYTES: usize = 80; // Enough for most entries with their headers. The meta grows if needed.
        let mut params = InitParams { initial_relation_order: n_entries.max(8), initial_buf_size: n_entries.max(8) * ENTRY_BYTES };
        // SAFETY: a `&mut BufferRef` is a writable buffer; the parameters are read during the call.
        let meta = unsafe { (api.gst_buffer_add_analytics_relation_meta_full)(buffer.as_mut_ptr(), &raw mut params) };
        (!meta.is_null()).then_some(Self { api, meta, _buffer: PhantomData })
    }

    fn add_object(&self, label: GQuark, place: Place, confidence: f32) -> Option<c_uint> {
        let mut object = Mtd::NONE;
        let Place { edges: [x, y, width, height], angle } = place;
        let add = self.api.gst_analytics_relation_meta_add_od_mtd;
        // SAFETY: the meta is valid and its buffer is writable; the entry's handle is a local value.
        let added = unsafe {
            match &self.api.oriented {
                Some(api) => {
                    let add = api.gst_analytics_relation_meta_add_oriented_od_mtd;
                    add(self.meta, label, x, y, width, height, angle, confidence, &raw mut object)
                }
                None => add(self.meta, label, x, y, width, height, confidence, &raw mut object),
            }
        };
        (added != 0).then_some(object.id)
    }

    fn add_class(&self, label: GQuark, confidence: f32) -> Option<c_uint> {
        let (mut class, mut label, mut confidence) = (Mtd::NONE, label, confidence);
        let add = self.api.gst_analytics_relation_meta_add_cls_mtd;
        // SAFETY: the meta is valid and its buffer is writable. The length is 1, both arrays have one element, and the function
        // copies them. The entry's handle is a local value.
        let added = unsafe { add(self.meta, 1, &raw mut confidence, &raw mut label, &raw mut class) };
        (added != 0).then_some(class.id)
    }

    fn add_track(&self, track: ObjectId) -> Option<c_uint> {
        let mut tracking = Mtd::NONE;
        let (add, track) = (self.api.gst_analytics_relation_meta_add_tracking_mtd, u64::try_from(track.0).ok()?);
        // SAFETY: the meta is valid and its buffer is writable; the entry's handle is a local value.
        let added = unsafe { add(self.meta, track, UNKNOWN_TIME, &raw mut tracking) };
        (added != 0).then_some(tracking.id)
    }

    fn relate(&self, first: c_uint, relation: c_int, second: c_uint) {
        // SAFETY: the meta is valid, its buffer is writable, and `first` and `second` are two of its entries.
        let related = unsafe { (self.api.gst_analytics_relation_meta_set_relation)(self.meta, relation, first, second) };
        debug_assert_ne!(related, 0, "both are entries");
    }
}
