//! How results travel with a buffer: one meta of our own ([`super::results_meta`]), and with it those that GStreamer knows. The only place
//! that knows all.
//!
//! Our meta carries [`FrameResults`] whole. It has no tags, so that converters, scalers and encoders keep it, and it is shared
//! when a buffer is copied. Beside it lies a `GstVideoRegionOfInterestMeta` per detection for readers who don't know us, and, where the
//! process's GStreamer has it, an entry of the `GstAnalyticsRelationMeta` (`analytics`). The id of a region is that of its analytics
//! entry, as DL Streamer's elements expect, or the detection's id where there is no entry; our meta keeps which entry is whose.
//! GStreamer rescales the geometry of both where a frame is scaled, and drops the
//! parameters of ROI metas; so the geometry is read from there if it has changed, and everything else from ours.
//!
//! What other elements wrote into such metas is read as results too, once: what is joined to ours, or says the same of the same
//! place in both, is no second object.
//!
//! Where an element drops the ROI metas (videocrop does), our rectangles are all there is: see [`has_lost_rois`].

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use gst::buffer::BufferMetaForeachAction;
use gstreamer as gst;
use gstreamer_video::VideoRegionOfInterestMeta as RoiMeta;

use super::analytics::{self, Foreign, Written};
use super::payload::Payload;
use super::results_meta;
use super::roi::{self, pixel_rect};
use crate::frame::{Classification, Detection, FrameResults, ObjectId, PixelRect, Size};

/// As [`attach_to`], with analytics metas where GStreamer has them.
pub fn attach(buffer: &mut gst::BufferRef, results: FrameResults) {
    attach_to(buffer, results, true);
}

/// Makes `results` the results of this buffer, in place of those it has, and updates the ROI metas beside them; and the
/// analytics meta, `with_analytics`.
///
/// A detection without a ROI meta gets one, unless it has no pixel in the frame. A ROI meta that is there keeps its
/// geometry, gets the parameters that it lacks, and has the id of the detection's analytics entry. ROI metas of detections that were in
/// the earlier results and are not in these are removed; those of others stay.
pub fn attach_to(buffer: &mut gst::BufferRef, results: FrameResults, with_analytics: bool) {
    let earlier = results_meta::get(buffer).unwrap_or_default();
    let mut written = earlier.written.clone();
    if with_analytics {
        analytics::write(buffer, &results, &mut written);
    }
    let plans = plan(buffer, &earlier, &results);
    remove_left_out(buffer, &plans);
    let has_roi = update_rois(buffer, &results, &written, &plans);
    for (detection, _) in results.detections.iter().zip(has_roi).filter(|(_, has_roi)| !has_roi) {
        if let Some(pixels) = pixels_in(detection, results.size) {
            let mut roi = RoiMeta::add(buffer, &roi::type_of(detection), (pixels.x, pixels.y, pixels.width, pixels.height));
            fill_roi(&mut roi, detection, results.size, &written);
        }
    }
    results_meta::put(buffer, Arc::new(Payload { results, written }));
}

/// The results of this buffer, in a frame of `size`, which is what the caps say now.
///
/// The geometry of a detection is our own if its ROI meta still says the same, that of the ROI meta if it says otherwise, or else of
/// the analytics meta, and our own in proportion if there is neither and the frame was of another size. What other elements
/// wrote into ROI metas or the analytics meta is added: their detections behind ours, and what they say of ours. Ids that are not there
/// (0 or less) are given, anew on each call.
///
/// `None` if there is nothing of all that.
pub fn read(buffer: &gst::BufferRef, size: Size) -> Option<FrameResults> {
    let own = results_meta::get(buffer);
    let (mut results, written) = match own.as_deref() {
        Some(Payload { results, written }) => (results.clone(), Cow::Borrowed(written)),
        None => (FrameResults::default(), Cow::Owned(Written::default())),
    };
    let read = analytics::read(buffer, &written);
    let attached_size = results.size;
    let (own_rois, foreign_rois) = rois_of(buffer, &results, &written);
    for (detection, roi) in results.detections.iter_mut().zip(&own_rois) {
        let place = roi.as_ref().map(|roi| pixel_rect(roi));
        match place.or_else(|| read.ours.get(&detection.id)?.to_pixels(size)) {
            Some(now) if size == attached_size && pixels_in(detection, size) == Some(now) => {}
            Some(now) => detection.move_to(now.to_rect()),
            None if size != attached_size && attached_size.width > 0 && attached_size.height > 0 => {
                detection.move_to(detection.rect.rescaled(attached_size, size));
            }
            None => {}
        }
        if let Some(roi) = roi {
            roi::read_into(roi, detection);
        }
    }
    results.size = size;
    for (id, track) in read.tracks {
        if let Some(detection) = results.detection_mut(id) {
            detection.adopt_track(track);
        }
    }
    for (id, said) in read.said {
        if let Some(detection) = results.detection_mut(id) {
            add_once(&mut detection.classifications, said);
        }
    }
    add_foreign(buffer, &mut results, &written, foreign_rois, read.foreign);
    (own.is_some() || !results.detections.is_empty()).then_some(results)
}

/// Whether [`read`] would find anything.
pub fn has_results(buffer: &gst::BufferRef) -> bool {
    results_meta::is_there(buffer) || buffer.meta::<RoiMeta>().is_some() || analytics::has_any(buffer)
}

/// Whether the buffer has results in an analytics meta.
pub fn has_analytics(buffer: &gst::BufferRef) -> bool {
    analytics::has_any(buffer)
}

/// The size of the frame when our results were attached; `None` if the buffer has none of ours.
pub fn size_when_attached(buffer: &gst::BufferRef) -> Option<Size> {
    results_meta::get(buffer).map(|payload| payload.results.size)
}

/// Whether detections of ours that lie in the frame have no ROI meta any more: an element between dropped them, and may have
/// moved the picture as well (videocrop, videobox).
///
/// `results` are those that [`read`] gave.
pub fn has_lost_rois(buffer: &gst::BufferRef, results: &FrameResults) -> bool {
    let Some(payload) = results_meta::get(buffer) else { return false };
    let Payload { results: attached, written } = &*payload;
    let (own_rois, _) = rois_of(buffer, attached, written);
    let without: HashSet<ObjectId> =
        attached.detections.iter().zip(own_rois).filter(|(_, roi)| roi.is_none()).map(|(detection, _)| detection.id).collect();
    let has_pixels = |detection: &&Detection| pixels_in(detection, results.size).is_some();
    let is_lost = |id: &ObjectId| without.contains(id);
    let mut lost = results.detections.iter().filter(has_pixels).map(|detection| detection.id).filter(is_lost).peekable();
    if lost.peek().is_none() {
        return false;
    }
    // The analytics meta tells where they are as well.
    let placed = analytics::read(buffer, written).ours;
    lost.any(|id| !placed.contains_key(&id))
}

/// A ROI meta of a buffer that is read.
type Roi<'a> = gst::MetaRef<'a, RoiMeta>;

/// The ROI metas of our detections, in their order, and those of others.
fn rois_of<'a>(buffer: &'a gst::BufferRef, results: &FrameResults, written: &Written) -> (Vec<Option<Roi<'a>>>, Vec<Roi<'a>>) {
    let mut claims = Claims::new(results, written);
    let (mut own, mut foreign) = (vec![None; results.detections.len()], Vec::new());
    for roi in buffer.iter_meta::<RoiMeta>() {
        match claims.claim(&roi) {
            Some(idx) => own[idx] = Some(roi),
            None => foreign.push(roi),
        }
    }
    (own, foreign)
}

/// Tells which ROI meta is whose: of those that have a detection's region id and its label as their type the first.
struct Claims<'a> {
    results: &'a FrameResults,
    unclaimed: HashMap<i32, usize>,
}

impl<'a> Claims<'a> {
    fn new(results: &'a FrameResults, written: &Written) -> Self {
        let id_of = |(idx, detection): (usize, &Detection)| (written.region_id(detection.id), idx);
        Self { results, unclaimed: results.detections.iter().enumerate().rev().map(id_of).collect() }
    }

    fn claim(&mut self, roi: &RoiMeta) -> Option<usize> {
        let idx = *self.unclaimed.get(&roi.id())?;
        (roi.roi_type() == roi::type_of(&self.results.detections[idx])).then(|| self.unclaimed.remove(&roi.id()))?
    }
}

/// Adds the detections of other elements, from ROI metas and from the analytics meta; what is in both is added once.
fn add_foreign(buffer: &gst::BufferRef, results: &mut FrameResults, written: &Written, rois: Vec<Roi<'_>>, entries: Vec<Foreign>) {
    let size = results.size;
    let mut known = ids(results);
    // By region, which is an entry where there is one.
    let mut object_of: HashMap<i32, ObjectId> = written.objects().collect();
    object_of.extend(results.detections.iter().map(|detection| (written.region_id(detection.id), detection.id)));
    let n_ours = results.detections.len();
    let mut parents: Vec<Option<i32>> = Vec::with_capacity(rois.len() + entries.len());
    for roi in &rois {
        let id = if roi.id() > 0 && known.insert(roi.id()) { ObjectId(roi.id()) } else { unused_id(buffer) };
        object_of.entry(roi.id()).or_insert(id);
        parents.push((roi.parent_id() > 0).then(|| roi.parent_id()));
        results.detections.push(roi::read(roi, id));
    }
    for Foreign { entry, parent, mut detection } in entries {
        let pixels = pixels_in(&detection, size);
        let is_same = |other: &Detection| other.label == detection.label && pixels_in(other, size) == pixels;
        let of_region = object_of.get(&entry).and_then(|id| results.detections.iter().position(|other| other.id == *id && is_same(other)));
        let Some(idx) = of_region.or_else(|| results.detections.iter().position(is_same)) else {
            detection.id = unused_id(buffer);
            object_of.insert(entry, detection.id);
            parents.push(parent);
            results.detections.push(detection);
            continue;
        };
        let same = &mut results.detections[idx];
        object_of.insert(entry, same.id);
        detection.track.into_iter().for_each(|track| same.adopt_track(track));
        detection.classifications.into_iter().for_each(|said| add_once(&mut same.classifications, said));
        if let Some(known) = idx.checked_sub(n_ours) {
            parents[known] = parents[known].or(parent);
        }
    }
    for (child, parent) in results.detections[n_ours..].iter_mut().zip(parents) {
        child.parent = parent.and_then(|parent| object_of.get(&parent).copied()).filter(|parent| *parent != child.id);
    }
}

/// Adds a classification from the analytics meta, unless it is known: that meta has no place for the attribute and the model.
fn add_once(classifications: &mut Vec<Classification>, said: Classification) {
    let is_same = |known: &Classification| analytics::is_same_label(known, &said);
    if !classifications.iter().any(is_same) {
        classifications.push(said);
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

/// The pixels of a detection in a frame of this size; `None` if there are none.
pub(super) fn pixels_in(detection: &Detection, size: Size) -> Option<PixelRect> {
    if size.width == 0 || size.height == 0 { None } else { detection.rect.to_pixels(size) }
}

fn ids(results: &FrameResults) -> HashSet<i32> {
    results.detections.iter().map(|detection| detection.id.0).collect()
}

/// What becomes of a ROI meta when results are attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// It is somebody else's.
    Keep,
    /// Its detection is gone.
    Remove,
    /// It is that of this detection of the new results.
    Update(usize),
}

/// What becomes of each ROI meta, in their order.
///
/// In a few passes, as everywhere here: a frame may have thousands of objects.
fn plan(buffer: &gst::BufferRef, earlier: &Payload, results: &FrameResults) -> Vec<Plan> {
    let index_of: HashMap<ObjectId, usize> = results.detections.iter().enumerate().rev().map(|(idx, found)| (found.id, idx)).collect();
    let mut has_roi = vec![false; results.detections.len()];
    let mut take = |idx: usize| (!std::mem::replace(&mut has_roi[idx], true)).then_some(Plan::Update(idx));
    let mut claims = Claims::new(&earlier.results, &earlier.written);
    let mut plans: Vec<Plan> = Vec::new();
    let mut has_foreign = false;
    for roi in buffer.iter_meta::<RoiMeta>() {
        let plan = match claims.claim(&roi) {
            Some(earlier_idx) => {
                let id = earlier.results.detections[earlier_idx].id;
                index_of.get(&id).map_or(Some(Plan::Remove), |idx| take(*idx))
            }
            None => index_of.get(&ObjectId(roi.id())).and_then(|idx| take(*idx)),
        };
        has_foreign |= plan.is_none();
        plans.push(plan.unwrap_or(Plan::Keep));
    }
    if !has_foreign {
        return plans;
    }
    // One that another detector wrote under another id is taken over by its place.
    for (roi, plan) in buffer.iter_meta::<RoiMeta>().zip(&mut plans).filter(|(_, plan)| **plan == Plan::Keep) {
        let place = pixel_rect(&roi);
        let is_it = |(idx, found): &(usize, &Detection)| {
            !has_roi[*idx] && pixels_in(found, results.size) == Some(place) && roi.roi_type() == roi::type_of(found)
        };
        if let Some((idx, _)) = results.detections.iter().enumerate().find(is_it) {
            has_roi[idx] = true;
            *plan = Plan::Update(idx);
        }
    }
    plans
}

fn remove_left_out(buffer: &mut gst::BufferRef, plans: &[Plan]) {
    if !plans.contains(&Plan::Remove) {
        return;
    }
    let mut plans = plans.iter();
    buffer.foreach_meta_mut(|mut meta| {
        let is_left_out = meta.downcast_ref::<RoiMeta>().is_some() && plans.next() == Some(&Plan::Remove);
        ControlFlow::Continue(if is_left_out { BufferMetaForeachAction::Remove } else { BufferMetaForeachAction::Keep })
    });
}

/// Completes the ROI metas that stay, and tells which detections have one.
fn update_rois(buffer: &mut gst::BufferRef, results: &FrameResults, written: &Written, plans: &[Plan]) -> Vec<bool> {
    let mut has_roi = vec![false; results.detections.len()];
    let plans = plans.iter().filter(|plan| **plan != Plan::Remove);
    for (mut roi, plan) in buffer.iter_meta_mut::<RoiMeta>().zip(plans) {
        if let Plan::Update(idx) = *plan {
            has_roi[idx] = true;
            fill_roi(&mut roi, &results.detections[idx], results.size, written);
        }
    }
    has_roi
}

/// Gives a region its ids and the parameters that it lacks.
fn fill_roi(roi: &mut RoiMeta, detection: &Detection, size: Size, written: &Written) {
    roi.set_id(written.region_id(detection.id));
    if let Some(parent) = detection.parent {
        roi.set_parent_id(written.region_id(parent));
    }
    roi::add_missing_params(roi, detection, size);
}
