//! Stores results on a buffer and reads them: in roiflow's own meta (`results_meta`, "our meta") and in the metas that GStreamer defines.
//! Only this module uses all of these metas.
//!
//! Our meta contains the complete [`FrameResults`]. Our meta has no tags, so converters, scalers and encoders keep the meta. Copies of a
//! buffer share the content of this meta. For other readers, each detection also gets a `GstVideoRegionOfInterestMeta`. With GStreamer 1.24
//! or newer, each detection also gets an entry in the `GstAnalyticsRelationMeta` (`analytics`). The ID of a region is the ID of its
//! detection's analytics entry, as DL Streamer's elements expect. If the detection has no such entry, the ID of the region is the
//! detection's ID. Our meta stores the ID of the entry of each detection.
//!
//! # Precedence of the metas
//!
//! Attached results are immutable, and all readers share them. A reader uses our meta alone if nothing has changed since the results were
//! attached. This means: the frame has the same size, every region is ours and has the same ID, type, rectangle and structure names
//! (`roi::Mark`), and every analytics entry is ours. This check is one pass over the regions without allocation.
//!
//! If anything has changed, the metas are combined on each read, until results are attached again:
//!
//! | value | source |
//! |---|---|
//! | rectangle, if region or entry has a different rectangle | the region, which GStreamer rescales with the frame, or else the entry |
//! | rectangle without region and entry, in a frame of another size | ours, rescaled |
//! | rectangle in all other cases | ours, with subpixel precision |
//! | label, confidence, keypoints, parent, classifications | ours |
//! | classifications and track IDs that other elements added to our region or entry | added, unless ours has the same name |
//! | regions and entries of other elements | added as detections; equal detections once |
//!
//! An element that adds results and is the only owner of the buffer moves the earlier results out of our meta without a copy ([`take`]).
//! When the element attaches results again, it adds only the new structures to unchanged regions.
//!
//! # Missing ROI metas
//!
//! If a program removes the ROI meta of an object, the object is removed. If an element drops all ROI metas, as videocrop does, only the
//! rectangles in our meta are left, which may be wrong: see [`has_lost_rois`]. `marker` tells the two cases apart. Objects that never had a
//! ROI meta, because they lie outside the frame, stay in both cases.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use gst::buffer::BufferMetaForeachAction;
use gstreamer as gst;
use gstreamer_video::VideoRegionOfInterestMeta as RoiMeta;

use super::marker;
use super::payload::Payload;
use super::relations::{self, Foreign};
use super::results_meta;
use super::roi::{self, Mark, pixel_rect};
use crate::frame::{Classification, Detection, FrameResults, ObjectId, PixelRect, Size};

/// Frame number of results of other elements, which have no frame number.
pub const UNNUMBERED: u64 = u64::MAX;

/// Returns the results of a frame without results.
pub fn no_results(size: Size) -> FrameResults {
    FrameResults { size, frame_number: UNNUMBERED, ..FrameResults::default() }
}

/// Like [`attach_to`], with analytics metas if GStreamer supports them.
pub fn attach(buffer: &mut gst::BufferRef, results: FrameResults) {
    attach_to(buffer, results, true);
}

/// Replaces the results of this buffer, and updates its ROI metas. With `with_analytics`, also updates the analytics meta.
///
/// A detection without a ROI meta gets one, unless it lies outside the frame. An existing ROI meta moves with its detection,
/// unless an element has changed it since; it gets missing parameters, and the ID of the detection's analytics entry. ROI metas of detections that are no longer in the results are removed.
/// ROI metas that other elements wrote stay, except repeated ones.
pub fn attach_to(buffer: &mut gst::BufferRef, results: FrameResults, with_analytics: bool) {
    let earlier = results_meta::get(buffer).unwrap_or_default();
    let mut written = earlier.written.clone();
    if with_analytics {
        relations::write(buffer, &results, &mut written);
    }
    let left = are_as_left(buffer, &earlier.marks).then_some(&*earlier.marks);
    let plans = left.map_or_else(|| plan(buffer, &earlier, &results), |marks| plan_for(marks, &results));
    remove_left_out(buffer, &plans);
    let ids = |detection: &Detection| (written.region_id(detection.id), detection.parent.map(|parent| written.region_id(parent)));
    let followed = if earlier.size == results.size { &*earlier.marks } else { &[] };
    let (has_roi, mut marks) = update_rois(buffer, &results, &plans, (left, followed), ids);
    for (detection, _) in results.detections.iter().zip(has_roi).filter(|(_, has_roi)| !has_roi) {
        if let Some(place) = pixels_in(detection, results.size) {
            marks.push(roi::add(buffer, detection, results.size, place, ids(detection)));
        }
    }
    if !marks.is_empty() {
        marker::put(buffer);
    }
    let is_complete = !plans.contains(&Plan::Keep) && marks.iter().all(|mark| mark.is_complete);
    let size = results.size;
    results_meta::put(buffer, Arc::new(Payload { results: Some(Arc::new(results)), size, written, marks, is_complete }));
}

/// Attaches results to a buffer for which [`has_regions`] is false, and writes no ROI metas and no analytics meta. So a later element may move
/// the boxes.
pub fn attach_without_regions(buffer: &mut gst::BufferRef, results: FrameResults) {
    let size = results.size;
    results_meta::put(buffer, Arc::new(Payload { results: Some(Arc::new(results)), size, is_complete: true, ..Payload::default() }));
}

/// Whether the buffer has ROI metas or an analytics meta.
pub fn has_regions(buffer: &gst::BufferRef) -> bool {
    buffer.meta::<RoiMeta>().is_some() || relations::has_any(buffer)
}

/// Changes the results of a buffer, for example in a pad probe. `size` is the size in the current caps.
///
/// `act` gets the results, and may remove, change and add objects. ROI metas of objects that it removes are removed, also those of other
/// elements. Use [`ObjectId::next`] for the ID of a new object. Updates the analytics meta if the buffer has one.
///
/// If `act` returns `None`, the buffer does not change.
pub fn edit<T>(buffer: &mut gst::BufferRef, size: Size, act: impl FnOnce(&mut FrameResults) -> Option<T>) -> Option<T> {
    let with_analytics = has_analytics(buffer);
    let earlier = read(buffer, size).unwrap_or_else(|| no_results(size));
    let mut results = earlier.clone();
    let done = act(&mut results)?;
    if !results_meta::get(buffer).is_some_and(|own| is_complete(buffer, &own, size)) {
        // First adopt the ROI metas and entries of other elements, because only adopted ones are removed.
        attach_to(buffer, earlier, with_analytics);
    }
    attach_to(buffer, results, with_analytics);
    Some(done)
}

/// Returns a copy of the buffer's results for a frame of `size`, the size in the current caps.
///
/// See the module for the precedence of the metas. Detections of other elements come after ours. A detection of another element with an ID
/// of 0 or less gets a new ID on each call.
///
/// Returns `None` if the buffer has no results.
pub fn read(buffer: &gst::BufferRef, size: Size) -> Option<FrameResults> {
    read_shared(buffer, size).map(Arc::unwrap_or_clone)
}

/// Like [`read`]. If no other element has changed anything, returns the attached value without a copy.
pub fn read_shared(buffer: &gst::BufferRef, size: Size) -> Option<Arc<FrameResults>> {
    let own = results_meta::get(buffer);
    if let Some(own) = own.as_deref().filter(|own| is_complete(buffer, own, size)) {
        return own.results.clone();
    }
    reconcile(buffer, own.as_deref(), size).map(Arc::new)
}

/// Like [`read`], for an element that attaches results again before it pushes the buffer. If the caller is the buffer's only owner and no
/// other element has changed anything, the results are moved out of the buffer. Results without objects stay in the buffer.
pub fn take(buffer: &mut gst::Buffer, size: Size) -> Option<FrameResults> {
    let has_objects = |own: &Payload| own.results.as_ref().is_some_and(|results| !results.detections.is_empty());
    if results_meta::get(buffer).is_some_and(|own| has_objects(&own) && is_complete(buffer, &own, size))
        && let Some(own) = buffer.get_mut().and_then(results_meta::get_mut)
    {
        return own.results.take().map(Arc::unwrap_or_clone);
    }
    read(buffer, size)
}

/// Whether our meta contains everything that the ROI metas and the analytics meta contain.
fn is_complete(buffer: &gst::BufferRef, own: &Payload, size: Size) -> bool {
    own.is_complete
        && own.results.is_some()
        && own.size == size
        && are_as_left(buffer, &own.marks)
        && relations::is_all_ours(buffer, &own.written)
}

/// Whether the ROI metas of this buffer are exactly those of `marks`, unchanged and in the same order.
fn are_as_left(buffer: &gst::BufferRef, marks: &[Mark]) -> bool {
    let mut marks = marks.iter();
    buffer.iter_meta::<RoiMeta>().all(|roi| marks.next().is_some_and(|mark| mark.is_unchanged(&roi))) && marks.next().is_none()
}

/// Combines the results of all metas of this buffer, with the precedence that the module describes.
fn reconcile(buffer: &gst::BufferRef, own: Option<&Payload>, size: Size) -> Option<FrameResults> {
    let none = Payload::default();
    let (has_own, own) = (own.is_some(), own.unwrap_or(&none));
    let Payload { results, size: attached_size, written, .. } = own;
    let mut results = results.as_deref().cloned().unwrap_or_else(|| no_results(size));
    let read = relations::read(buffer, written);
    let (own_rois, foreign_rois) = rois_of(buffer, own, size);
    if own_rois.len() < own.marks.len() && marker::is_there(buffer) {
        let removed: HashSet<ObjectId> = own.marks.iter().map(|mark| mark.object).filter(|id| !own_rois.contains_key(id)).collect();
        results.detections.retain(|detection| !removed.contains(&detection.id));
    }
    for detection in &mut results.detections {
        let roi = own_rois.get(&detection.id);
        let place = roi.map(|roi| pixel_rect(roi));
        match place.or_else(|| read.ours.get(&detection.id)?.to_pixels(size)) {
            Some(now) if size == *attached_size && roi::is_at(&detection.rect, now, size) => {}
            Some(now) => detection.move_to(roi::rect_of(now)),
            None if size != *attached_size && attached_size.width > 0 && attached_size.height > 0 => {
                detection.move_to(detection.rect.rescaled(*attached_size, size));
            }
            None => {}
        }
        if let Some(roi) = roi {
            roi::read_into(roi, detection);
        }
    }
    results.set_size(size);
    for (id, track) in read.tracks {
        if let Some(detection) = results.detection_mut(id) {
            detection.adopt_track(track);
        }
    }
    for (id, classification) in read.classifications {
        if let Some(detection) = results.detection_mut(id) {
            add_once(&mut detection.classifications, classification);
        }
    }
    read.of_frame.into_iter().for_each(|classification| add_once(&mut results.classifications, classification));
    if !foreign_rois.is_empty() || !read.foreign.is_empty() {
        // Maps region IDs to detection IDs. The region ID of a detection is the ID of its analytics entry, if it has one. Another element
        // may have given another ID to a region of ours.
        let mut object_of: HashMap<i32, ObjectId> = written.objects().collect();
        object_of.extend(results.detections.iter().map(|detection| (written.region_id(detection.id), detection.id)));
        object_of.extend(own_rois.iter().map(|(object, roi)| (roi.id(), *object)));
        add_foreign(buffer, &mut results, object_of, foreign_rois, read.foreign);
    }
    (has_own || !results.detections.is_empty() || !results.classifications.is_empty()).then_some(results)
}

/// Whether [`read`] would return results.
pub fn has_results(buffer: &gst::BufferRef) -> bool {
    results_meta::is_there(buffer) || buffer.meta::<RoiMeta>().is_some() || relations::has_any(buffer)
}

/// Whether the buffer has results in an analytics meta.
pub fn has_analytics(buffer: &gst::BufferRef) -> bool {
    relations::has_any(buffer)
}

/// Returns the frame size when our results were attached; `None` if the buffer has no results of ours.
pub fn size_when_attached(buffer: &gst::BufferRef) -> Option<Size> {
    results_meta::get(buffer).map(|own| own.size)
}

/// Whether a detection of ours inside the frame has lost its ROI meta. In that case, an element such as videocrop or videobox dropped the
/// ROI metas, and may have moved the image content as well.
///
/// `results` is the return value of [`read`].
pub fn has_lost_rois(buffer: &gst::BufferRef, results: &FrameResults) -> bool {
    let Some(own) = results_meta::get(buffer).filter(|_| !marker::is_there(buffer)) else { return false };
    let (own_rois, _) = rois_of(buffer, &own, results.size);
    let without: HashSet<ObjectId> = own.marks.iter().map(|mark| mark.object).filter(|id| !own_rois.contains_key(id)).collect();
    let has_pixels = |detection: &&Detection| pixels_in(detection, results.size).is_some();
    let is_lost = |id: &ObjectId| without.contains(id);
    let mut lost = results.detections.iter().filter(has_pixels).map(|detection| detection.id).filter(is_lost).peekable();
    if lost.peek().is_none() {
        return false;
    }
    // If the rectangle of a detection is in the analytics meta, its position is still known.
    let placed = relations::read(buffer, &own.written).ours;
    lost.any(|id| !placed.contains_key(&id))
}

/// A ROI meta of a borrowed buffer.
type Roi<'a> = gst::MetaRef<'a, RoiMeta>;

/// Returns the ROI metas of our detections, and the ROI metas of other elements. `size` is the size of the frame.
fn rois_of<'a>(buffer: &'a gst::BufferRef, own: &Payload, size: Size) -> (HashMap<ObjectId, Roi<'a>>, Vec<Roi<'a>>) {
    let (mut ours, mut foreign) = (HashMap::with_capacity(own.marks.len()), Vec::new());
    for (roi, object) in buffer.iter_meta::<RoiMeta>().zip(claims(buffer, own, size)) {
        match object {
            Some(object) => drop(ours.insert(object, roi)),
            None => foreign.push(roi),
        }
    }
    (ours, foreign)
}

/// Matches the ROI metas of a buffer with our snapshots. Returns the detection of each ROI meta, in the order of the metas; `None` for a
/// ROI meta of another element.
///
/// Elements that combine the metas of several buffers, such as `gvametaaggregate`, give new IDs to regions. So the ID decides only if the
/// place does not: in the order of the following rules, a ROI meta belongs to the first snapshot without a ROI meta that has
/// 1. the same type, place and ID,
/// 2. the same type and place,
/// 3. the same type and ID.
fn claims(buffer: &gst::BufferRef, own: &Payload, size: Size) -> Vec<Option<ObjectId>> {
    let rois: Vec<Roi<'_>> = buffer.iter_meta::<RoiMeta>().collect();
    let mut mark_of_id: HashMap<i32, usize> = own.marks.iter().enumerate().rev().map(|(idx, mark)| (mark.id(), idx)).collect();
    let mut free: Vec<Option<&Mark>> = own.marks.iter().map(Some).collect();
    let mut claimed: Vec<Option<ObjectId>> = vec![None; rois.len()];
    let is_there = |mark: &Mark, roi: &RoiMeta| mark.is_where(roi, own.size, size);
    let mut claim_by_id = |claimed: &mut [Option<ObjectId>], free: &mut [Option<&Mark>], must_be_there: bool| {
        for (roi, claimed) in rois.iter().zip(claimed).filter(|(_, claimed)| claimed.is_none()) {
            let Some(&idx) = mark_of_id.get(&roi.id()) else { continue };
            if free[idx].is_some_and(|mark| mark.is_of(roi) && (!must_be_there || is_there(mark, roi))) {
                mark_of_id.remove(&roi.id());
                *claimed = free[idx].take().map(|mark| mark.object);
            }
        }
    };
    claim_by_id(&mut claimed, &mut free, true);
    let mut left: Vec<&mut Option<&Mark>> = free.iter_mut().filter(|mark| mark.is_some()).collect();
    for (roi, claimed) in rois.iter().zip(&mut claimed).filter(|(_, claimed)| claimed.is_none()) {
        if let Some(at) = left.iter().position(|mark| mark.is_some_and(|mark| is_there(mark, roi))) {
            *claimed = left.swap_remove(at).take().map(|mark| mark.object);
        }
    }
    claim_by_id(&mut claimed, &mut free, false);
    claimed
}

/// Adds detections of other elements from ROI metas and the analytics meta. A detection that is in several of them is added once.
///
/// `object_of` maps the region IDs of our detections to their detection IDs.
fn add_foreign(
    buffer: &gst::BufferRef,
    results: &mut FrameResults,
    mut object_of: HashMap<i32, ObjectId>,
    rois: Vec<Roi<'_>>,
    entries: Vec<Foreign>,
) {
    let size = results.size;
    let mut known = ids(results);
    let n_ours = results.detections.len();
    let mut parents: Vec<Option<i32>> = Vec::with_capacity(rois.len() + entries.len());
    let mut idx_at: HashMap<(String, PixelRect), usize> = HashMap::new();
    for (idx, detection) in results.detections.iter().enumerate() {
        if let Some(pixels) = pixels_in(detection, size) {
            idx_at.entry((roi::type_of(detection).into_owned(), pixels)).or_insert(idx);
        }
    }
    for roi in &rois {
        // An element that combines the metas of several buffers adds the regions of an object several times.
        let place = roi::rect_of(pixel_rect(roi)).to_pixels(size);
        let same_idx = place.and_then(|pixels| idx_at.get(&(roi.roi_type().to_owned(), pixels)).copied());
        if let Some(idx) = same_idx.filter(|idx| roi::has_confidence_of(roi, &results.detections[*idx])) {
            let same = &mut results.detections[idx];
            object_of.entry(roi.id()).or_insert(same.id);
            roi::read_into(roi, same);
            continue;
        }
        if let Some(pixels) = place {
            idx_at.entry((roi.roi_type().to_owned(), pixels)).or_insert(results.detections.len());
        }
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
        detection.classifications.into_iter().for_each(|classification| add_once(&mut same.classifications, classification));
        if let Some(known) = idx.checked_sub(n_ours) {
            parents[known] = parents[known].or(parent);
        }
    }
    for (child, parent) in results.detections[n_ours..].iter_mut().zip(parents) {
        child.parent = parent.and_then(|parent| object_of.get(&parent).copied()).filter(|parent| *parent != child.id);
    }
}

/// Adds a classification from the analytics meta, unless one with the same label and confidence exists. Attribute name and model are not
/// compared, because the analytics meta stores neither. Other results have a name, and one of each name is read.
fn add_once(classifications: &mut Vec<Classification>, classification: Classification) {
    let is_same =
        |known: &Classification| relations::is_same_label(known, &classification) || relations::is_same_part(known, &classification);
    if !classifications.iter().any(is_same) {
        classifications.push(classification);
    }
}

/// Returns a new ID that no ROI meta of the buffer has. The check is needed because other detectors choose their own IDs.
fn unused_id(buffer: &gst::BufferRef) -> ObjectId {
    loop {
        let id = ObjectId::next();
        if buffer.iter_meta::<RoiMeta>().all(|roi| roi.id() != id.0) {
            return id;
        }
    }
}

/// Returns the pixels of a detection in a frame of this size; `None` if the detection lies outside the frame.
pub(super) fn pixels_in(detection: &Detection, size: Size) -> Option<PixelRect> {
    if size.width == 0 || size.height == 0 { None } else { detection.rect.to_pixels(size) }
}

fn ids(results: &FrameResults) -> HashSet<i32> {
    results.detections.iter().map(|detection| detection.id.0).collect()
}

/// Action for a ROI meta when results are attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// The region belongs to another element.
    Keep,
    /// The region's detection was removed, or has another region.
    Remove,
    /// The region belongs to the detection with this index.
    Update(usize),
}

/// Returns the action for each ROI meta of the buffer, in the order of the metas.
///
/// A frame may have thousands of objects. So this function takes linear time, except for regions that match no snapshot.
fn plan(buffer: &gst::BufferRef, earlier: &Payload, results: &FrameResults) -> Vec<Plan> {
    let index_of: HashMap<ObjectId, usize> =
        results.detections.iter().enumerate().rev().map(|(idx, detection)| (detection.id, idx)).collect();
    let mut has_roi = vec![false; results.detections.len()];
    let mut take = |idx: usize| (!std::mem::replace(&mut has_roi[idx], true)).then_some(Plan::Update(idx));
    let mut plans: Vec<Plan> = Vec::new();
    let mut has_foreign = false;
    for (roi, object) in buffer.iter_meta::<RoiMeta>().zip(claims(buffer, earlier, results.size)) {
        let plan = match object {
            Some(object) => index_of.get(&object).map_or(Some(Plan::Remove), |idx| take(*idx)),
            None => index_of.get(&ObjectId(roi.id())).and_then(|idx| take(*idx)),
        };
        has_foreign |= plan.is_none();
        plans.push(plan.unwrap_or(Plan::Keep));
    }
    if !has_foreign {
        return plans;
    }
    // Adopt a region that another detector wrote under another ID, if type and rectangle match.
    for (roi, plan) in buffer.iter_meta::<RoiMeta>().zip(&mut plans).filter(|(_, plan)| **plan == Plan::Keep) {
        let place = pixel_rect(&roi);
        let is_it = |(idx, detection): &(usize, &Detection)| {
            !has_roi[*idx] && roi::is_at(&detection.rect, place, results.size) && roi.roi_type() == roi::type_of(detection)
        };
        if let Some((idx, _)) = results.detections.iter().enumerate().find(is_it) {
            has_roi[idx] = true;
            *plan = Plan::Update(idx);
            continue;
        }
        // The results of a region that is there twice are in the first one.
        let is_repeated = |detection: &Detection| {
            let is_there = pixels_in(detection, results.size).is_some() && roi::is_at(&detection.rect, place, results.size);
            is_there && roi.roi_type() == roi::type_of(detection) && roi::has_confidence_of(&roi, detection)
        };
        if results.detections.iter().any(is_repeated) {
            *plan = Plan::Remove;
        }
    }
    plans
}

/// Returns the result of [`plan`] for the case that no ROI meta has changed since `marks` were taken. The caller must check that this is
/// the case.
fn plan_for(marks: &[Mark], results: &FrameResults) -> Vec<Plan> {
    let detections = &results.detections;
    let mut index_of: Option<HashMap<ObjectId, usize>> = None;
    let mut next = 0;
    let plan = |mark: &Mark| {
        // In most frames, marks and detections have the same order. So the map from ID to index is built only when the order
        // differs.
        if detections.get(next).is_none_or(|detection| detection.id != mark.object) {
            let index_of = index_of.get_or_insert_with(|| detections.iter().map(|detection| detection.id).zip(0..).collect());
            let Some(idx) = index_of.get(&mark.object) else { return Plan::Remove };
            next = *idx;
        }
        next += 1;
        Plan::Update(next - 1)
    };
    marks.iter().map(plan).collect()
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

/// Updates the ROI metas of the buffer for which the plan is [`Plan::Update`]. The metas with [`Plan::Remove`] must already be
/// removed. Returns which detections have a ROI meta, and the new snapshots of these metas.
///
/// If all ROI metas are unchanged, `left` has their snapshots, in the order of the metas. If not, `left` is `None`. Metas at the place of a
/// `followed` snapshot move with their detections.
fn update_rois(
    buffer: &mut gst::BufferRef,
    results: &FrameResults,
    plans: &[Plan],
    (left, followed): (Option<&[Mark]>, &[Mark]),
    ids: impl Fn(&Detection) -> roi::Ids,
) -> (Vec<bool>, Vec<Mark>) {
    let (mut has_roi, mut marks) = (vec![false; results.detections.len()], Vec::with_capacity(results.detections.len()));
    let plans = plans.iter().enumerate().filter(|(_, plan)| **plan != Plan::Remove);
    for (mut roi, (roi_idx, plan)) in buffer.iter_meta_mut::<RoiMeta>().zip(plans) {
        if let Plan::Update(idx) = *plan {
            has_roi[idx] = true;
            let detection = &results.detections[idx];
            roi::follow(&mut roi, detection, results.size, followed);
            marks.push(roi::update(&mut roi, detection, results.size, ids(detection), left.map(|marks| &marks[roi_idx])));
        }
    }
    (has_roi, marks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Outcome, Rect};

    const SIZE: Size = Size::new(320, 240);

    /// A generator of reproducible pseudorandom numbers.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % end
        }
    }

    fn classification(name: &str, n: u64) -> Classification {
        let outcome = Outcome::Label { label_id: 1, label: Some(format!("label {n}").into()), confidence: 0.5 };
        Classification { name: name.into(), model: "m".into(), outcome }
    }

    fn detection(id: i32, numbers: &mut Numbers) -> Detection {
        // Some boxes lie outside the frame.
        let mut side = |end| numbers.below(end) as f32 / 4.0;
        Detection {
            id: ObjectId(id),
            track: None,
            track_state: None,
            parent: None,
            rect: Rect { x: side(1500), y: side(900), width: 4.0 + side(300), height: 4.0 + side(300) },
            keypoints: vec![],
            confidence: 0.5,
            label_id: 0,
            label: Some(["face", "car"][numbers.below(2) as usize].into()),
            classifications: vec![],
        }
    }

    /// Makes random changes to results, as one of our elements could make them.
    fn edit(results: &mut FrameResults, next_id: &mut i32, numbers: &mut Numbers) {
        let n = results.detections.len() as u64;
        for step in 0..1 + numbers.below(4) {
            let idx = numbers.below(n.max(1)) as usize;
            let detection_idx = (idx < results.detections.len()).then_some(idx);
            match (numbers.below(7), detection_idx) {
                (0, _) => {
                    *next_id += 1;
                    let at = numbers.below(n + 1).min(results.detections.len() as u64) as usize;
                    results.detections.insert(at, detection(*next_id, numbers));
                }
                (1, Some(idx)) => drop(results.detections.remove(idx)),
                (2, Some(idx)) => results.detections[idx].adopt_track(ObjectId(1 + idx as i32)),
                (3, Some(idx)) => results.detections.swap(0, idx),
                (4, Some(idx)) => results.detections[idx].rect.x += 8.0,
                (_, Some(idx)) => {
                    let name = ["gender", "age", "pose", "type"][numbers.below(4) as usize];
                    results.detections[idx].classifications.push(classification(name, step));
                }
                (_, None) => {}
            }
        }
    }

    /// Changes the metas of a buffer, as a foreign element could change them.
    fn change_as_foreign_element(buffer: &mut gst::BufferRef, kind: u64, roi_idx: usize, foreign_id: i32) {
        let label = gst::Structure::builder("type").field("label", format!("label {roi_idx}")).field("attribute_name", "type").build();
        match kind {
            0 => RoiMeta::add(buffer, "dog", (roi_idx as u32, 1, 20, 30)).set_id(foreign_id),
            1 => {
                let mut n_before = 0;
                buffer.foreach_meta_mut(|mut meta| {
                    let is_roi = meta.downcast_ref::<RoiMeta>().is_some();
                    let is_it = is_roi && n_before == roi_idx;
                    n_before += usize::from(is_roi);
                    ControlFlow::Continue(if is_it { BufferMetaForeachAction::Remove } else { BufferMetaForeachAction::Keep })
                });
            }
            _ => {
                let Some(mut roi) = buffer.iter_meta_mut::<RoiMeta>().nth(roi_idx) else { return };
                match kind {
                    2 => roi.add_param(label),
                    3 => roi.add_param(gst::Structure::builder("object_id").field("id", 5).build()),
                    4 => roi.add_param(gst::Structure::builder("raw").field("type", "tensor").build()),
                    5 => roi.set_rect((1, 2, 30, 40)),
                    _ => roi.set_id(foreign_id),
                }
            }
        }
    }

    type Region = (i32, i32, String, PixelRect, Vec<String>);

    fn regions(buffer: &gst::BufferRef) -> Vec<Region> {
        let params = |roi: &RoiMeta| roi.params().map(ToString::to_string).collect();
        let region =
            |roi: gst::MetaRef<'_, RoiMeta>| (roi.id(), roi.parent_id(), roi.roi_type().to_owned(), pixel_rect(&roi), params(&roi));
        buffer.iter_meta::<RoiMeta>().map(region).collect()
    }

    /// Discards the snapshots, as if another copy of the library had written the results.
    fn forget_marks(buffer: &mut gst::Buffer) {
        if let Some(own) = results_meta::get(buffer) {
            results_meta::put(buffer.make_mut(), Arc::new(Payload::decode(&own.encode()).unwrap()));
        }
    }

    /// Results as text. An unknown confidence is NaN, which is not equal to itself.
    fn shown(results: Option<&FrameResults>) -> String {
        format!("{results:?}")
    }

    #[test]
    fn unchanged_results_equal_reconciled_results() {
        gst::init().unwrap();
        let mut n_complete = 0;
        for seed in 0..400 {
            let mut numbers = Numbers(seed);
            let (mut next_id, mut foreign_id) = (100, 1);
            let mut fast = gst::Buffer::new();
            let mut slow = gst::Buffer::new();
            for step in 0..12 {
                let size = if numbers.below(8) == 0 { Size::new(640, 480) } else { SIZE };
                if numbers.below(3) == 0 {
                    let (kind, roi_idx) = (numbers.below(7), numbers.below(4) as usize);
                    foreign_id += 1;
                    for buffer in [&mut fast, &mut slow] {
                        change_as_foreign_element(buffer.make_mut(), kind, roi_idx, foreign_id);
                    }
                }
                let step_name = || format!("seed {seed}, step {step}");
                forget_marks(&mut slow);
                let expected = read(&slow, size);
                assert_eq!(shown(read_shared(&fast, size).as_deref()), shown(expected.as_ref()), "{}", step_name());
                n_complete += usize::from(results_meta::get(&fast).is_some_and(|own| is_complete(&fast, &own, size)));
                // In a quarter of the steps, the buffer has a second owner.
                let other = (numbers.below(4) == 0).then(|| fast.clone());
                let mut results = take(&mut fast, size).unwrap_or_else(|| FrameResults { size, ..FrameResults::default() });
                assert_eq!(shown(Some(&results)), shown(expected.as_ref().or(Some(&results))), "{}", step_name());
                if let Some(other) = other {
                    assert_eq!(shown(read(&other, size).as_ref()), shown(expected.as_ref()), "{}", step_name());
                }
                edit(&mut results, &mut next_id, &mut numbers);
                // In a tenth of the steps, keep at most one detection, as if an element had replaced the results.
                if numbers.below(10) == 0 {
                    results.detections.truncate(1);
                }
                attach(fast.make_mut(), results.clone());
                attach(slow.make_mut(), results);
                assert_eq!(regions(&fast), regions(&slow), "{}", step_name());
            }
        }
        assert!(n_complete > 1000, "results were complete {n_complete} times only");
    }

    #[test]
    fn region_moves_with_its_object_unless_it_was_changed() {
        gst::init().unwrap();
        let mut buffer = gst::Buffer::new();
        let rects = [Rect { x: 10.0, y: 20.0, width: 30.0, height: 40.0 }, Rect { x: 50.0, y: 60.0, width: 70.0, height: 80.0 }];
        let of = |rect: Rect| Detection { rect, ..detection(1, &mut Numbers(1)) };
        let results = |rect: Rect| FrameResults { size: SIZE, detections: vec![of(rect)], ..FrameResults::default() };
        let region = |buffer: &gst::Buffer| buffer.meta::<RoiMeta>().unwrap().rect();
        attach(buffer.make_mut(), results(rects[0]));
        attach(buffer.make_mut(), results(rects[1]));
        assert_eq!((region(&buffer), read(&buffer, SIZE)), ((50, 60, 70, 80), Some(results(rects[1]))));
        buffer.make_mut().meta_mut::<RoiMeta>().unwrap().set_rect((1, 2, 3, 4));
        attach(buffer.make_mut(), results(rects[0]));
        let seen = read(&buffer, SIZE).unwrap().detections[0].rect;
        assert_eq!((region(&buffer), seen), ((1, 2, 3, 4), Rect { x: 1.0, y: 2.0, width: 3.0, height: 4.0 }));
    }

    #[test]
    fn readers_share_the_attached_results() {
        gst::init().unwrap();
        let mut buffer = gst::Buffer::new();
        let mut numbers = Numbers(1);
        let detections = (1..4).map(|id| detection(id, &mut numbers)).collect();
        attach(buffer.make_mut(), FrameResults { size: SIZE, detections, ..FrameResults::default() });
        let [one, other] = [&buffer, &buffer.copy()].map(|buffer| read_shared(buffer, SIZE).unwrap());
        assert!(Arc::ptr_eq(&one, &other), "copies of the buffer share the results");
        drop((one, other));

        let place = read_shared(&buffer, SIZE).unwrap().detections.as_ptr();
        let copy = buffer.copy();
        assert_ne!(take(&mut buffer, SIZE).unwrap().detections.as_ptr(), place, "the copy of the buffer still owns the results");
        drop(copy);
        let taken = take(&mut buffer, SIZE).unwrap();
        assert_eq!(taken.detections.as_ptr(), place, "the results are moved");
        assert_eq!(size_when_attached(&buffer), Some(SIZE));
        attach(buffer.make_mut(), taken.clone());
        assert_eq!(read(&buffer, SIZE), Some(taken));

        attach(buffer.make_mut(), FrameResults { size: SIZE, frame_number: 7, ..FrameResults::default() });
        assert_eq!([take(&mut buffer, SIZE), read(&buffer, SIZE)].map(|results| results.unwrap().frame_number), [7, 7]);
    }
}
