//! Work of the detector on a frame: selects the regions or tiles to run on, keeps the objects in the search area, and adds earlier results
//! to skipped frames.
//!
//! This module uses no pads and no properties.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};

use gst::glib;
use gstreamer as gst;

use crate::elements::classes::{self, ClassCheck};
use crate::elements::regions::ObjectFilter;
use crate::elements::work::{Done, Work};
use crate::frame::{Classification, Detection, Frame, FrameResults, ObjectId, Rect};
use crate::stages::tiles::SAME_OBJECT_IOU;
use crate::stages::{self, RunGuard, SearchArea, Stage, StageResults, Tiles};

/// Part of a box that must be inside both parents, for one of two boxes that show the same object.
const MIN_SEEN: f32 = 0.75;

/// Work of `roidetect`. See the module.
pub(super) struct DetectWork {
    pub(super) detector: Stage,
    /// Filter for the objects to run on; `None` = the whole frame.
    pub(super) parents: Option<ObjectFilter>,
    /// The tiles to run on in addition to the whole frame; `None` = no tiles.
    pub(super) tiles: Option<Tiles>,
    /// Area of the frame in which objects are reported.
    pub(super) search_area: Arc<SearchArea>,
    pub(super) class_check: ClassCheck,
    /// The element, for warnings on the bus.
    pub(super) element: glib::WeakRef<gst::Element>,
}

impl Work for DetectWork {
    fn stage(&self) -> &Stage {
        &self.detector
    }

    fn run(&self, frame: Frame, mut results: FrameResults, guard: Arc<RunGuard>, done: Done) {
        let frame_number = results.frame_number;
        let regions = self.parents.as_ref().map(|parents| -> Vec<_> {
            self.class_check.check(&self.element, parents.classes(), &results);
            parents.regions(&results).map(|(object, rect)| (object.id, rect)).collect()
        });
        let (size, search_area) = (frame.size(), Arc::clone(&self.search_area));
        let parent_rects: HashMap<ObjectId, Rect> = regions.iter().flatten().map(|(parent, region)| (*parent, region.to_rect())).collect();
        let finish = move |mut found: StageResults| {
            drop_repeated(&mut found.detections, &parent_rects);
            if !search_area.is_whole_frame() {
                found.detections.retain(|detection| search_area.contains(&detection.rect, size));
            }
            found.add_to(&mut results);
            done(results);
        };
        match (regions, &self.tiles) {
            (Some(regions), _) => self.detector.submit_regions(frame, frame_number, regions, guard, finish),
            (None, Some(tiles)) => self.detector.submit_tiles(frame, frame_number, (tiles, &*self.search_area), guard, finish),
            (None, None) => self.detector.submit(frame, frame_number, guard, finish),
        }
    }

    fn try_frame(&self, frame: &Frame) -> stages::Result<()> {
        let Some(tiles) = &self.tiles else { return self.detector.run(frame).map(drop) };
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = move |found: StageResults| {
            // Sending fails only if the receiver was dropped, and it exists until it gets the results.
            let _delivered = sender.send(found.into_result());
        };
        self.detector.submit_tiles(frame.clone(), 0, (tiles, &*self.search_area), RunGuard::now(), done);
        let stopped = |_| Err(stages::Error::new(stages::ErrorKind::Stopped, "the model was stopped"));
        receiver.recv().unwrap_or_else(stopped).map(drop)
    }

    fn leave(&self, _results: &mut FrameResults) {
        if let Some(warning) = self.detector.take_warning() {
            classes::warn(&self.element, &warning);
        }
    }

    /// Returns the results of this detector, and the parent objects of its detections. `carry` compares the earlier and the current box of
    /// a parent to move the detections inside the parent.
    fn own_results(&self, results: &FrameResults, n_before: usize) -> FrameResults {
        let (before, found) = results.detections.split_at(n_before.min(results.detections.len()));
        let is_parent = |earlier: &&Detection| self.parents.is_some() && found.iter().any(|found| found.parent == Some(earlier.id));
        let parents = before.iter().filter(is_parent).map(|parent| Detection { parent: None, ..parent.clone() });
        let is_own = |classification: &&Classification| classification.model == self.detector.spec().model_name;
        FrameResults {
            size: results.size,
            detections: parents.chain(found.iter().cloned()).collect(),
            classifications: results.classifications.iter().filter(is_own).cloned().collect(),
            ..FrameResults::default()
        }
    }

    fn n_objects(&self, results: &FrameResults, n_before: usize) -> usize {
        results.detections.len().saturating_sub(n_before)
    }

    /// Detections inside a parent object move with that object. If the object is gone, the detections inside it are dropped.
    fn carry(&self, earlier: &FrameResults, results: &mut FrameResults) {
        let size = results.size;
        let moved = |object: &Detection, rect: Rect| {
            let mut moved = object.clone();
            moved.move_to(rect);
            moved
        };
        let in_this_size = |rect: Rect| if earlier.size == size { rect } else { rect.rescaled(earlier.size, size) };
        if self.parents.is_none() {
            results
                .detections
                .extend(earlier.detections.iter().map(|earlier_object| moved(earlier_object, in_this_size(earlier_object.rect))));
            results.classifications.extend(earlier.classifications.iter().cloned());
            return;
        }
        let children = earlier.detections.iter().filter_map(|child| {
            let was = earlier.detections.iter().find(|parent| child.parent == Some(parent.id))?;
            let is = results.detections.iter().find(|parent| parent.is_same_object(was))?;
            let rect = in_this_size(child.rect).moved_with(in_this_size(was.rect), is.rect);
            Some(Detection { parent: Some(is.id), ..moved(child, rect) })
        });
        let children: Vec<Detection> = children.collect();
        results.detections.extend(children);
    }

    fn reads_results(&self) -> bool {
        self.parents.is_some()
    }
}

/// Drops detections that show the same object as a detection in another parent, if the parents overlap. The detection with the higher
/// confidence remains. Two detections of one parent are never the same object, because the decoder suppresses overlapping boxes.
///
/// As for tiles, only the parts that are inside both parents are compared, because the region of a parent may cut an object. Most of one of
/// the two must be there: two people whose regions overlap a little both fill the overlap.
fn drop_repeated(detections: &mut Vec<Detection>, parents: &HashMap<ObjectId, Rect>) {
    let parent_of = |detection: &Detection| Some((detection.parent?, parents.get(&detection.parent?)?));
    let mut is_repeated = vec![false; detections.len()];
    let mut order: Vec<usize> = (0..detections.len()).collect();
    order.sort_by(|one, other| detections[*other].rank().total_cmp(&detections[*one].rank()));
    for (at, &best_idx) in order.iter().enumerate() {
        let best = &detections[best_idx];
        let Some((best_parent, best_region)) = parent_of(best).filter(|_| !is_repeated[best_idx]) else { continue };
        for &idx in &order[at + 1..] {
            let other = &detections[idx];
            if (other.label_id, &other.label) != (best.label_id, &best.label) || is_repeated[idx] {
                continue;
            }
            let Some((_, region)) = parent_of(other).filter(|(parent, _)| *parent != best_parent) else { continue };
            let seen = common(best_region, region);
            let parts = [&best.rect, &other.rect].map(|rect| (common(rect, &seen), area(rect)));
            let is_seen = parts.iter().any(|(part, whole)| area(part) >= MIN_SEEN * whole);
            is_repeated[idx] = is_seen && parts[0].0.iou(&parts[1].0) > SAME_OBJECT_IOU;
        }
    }
    let mut is_repeated = is_repeated.into_iter();
    detections.retain(|_| is_repeated.next() != Some(true));
}

fn area(rect: &Rect) -> f32 {
    rect.width.max(0.0) * rect.height.max(0.0)
}

/// The part of both rectangles. Its size is negative if they do not overlap.
fn common(one: &Rect, other: &Rect) -> Rect {
    Rect::from_corners(one.x.max(other.x), one.y.max(other.y), one.x_max().min(other.x_max()), one.y_max().min(other.y_max()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_in_overlapping_parents_is_reported_once() {
        let found = |parent: i32, label_id: u32, [x, y, x_max, y_max]: [f32; 4], confidence: f32| Detection {
            id: ObjectId::next(),
            track: None,
            track_state: None,
            parent: Some(ObjectId(parent)),
            rect: Rect::from_corners(x, y, x_max, y_max),
            keypoints: vec![],
            confidence,
            label_id,
            label: None,
            classifications: vec![],
        };
        let parents = [
            (1, [0.0, 0.0, 100.0, 100.0]),
            (2, [60.0, 0.0, 200.0, 100.0]),
            (3, [300.0, 0.0, 400.0, 100.0]),
            (4, [390.0, 0.0, 490.0, 100.0]),
        ];
        let parents = parents.map(|(id, [x, y, x_max, y_max])| (ObjectId(id), Rect::from_corners(x, y, x_max, y_max))).into();
        let mut detections = vec![
            found(1, 0, [70.0, 20.0, 90.0, 40.0], 0.8),
            found(2, 0, [71.0, 20.0, 90.0, 41.0], 0.9),
            // The first parent cuts this object.
            found(1, 0, [80.0, 60.0, 100.0, 80.0], 0.7),
            found(2, 0, [80.0, 60.0, 160.0, 80.0], 0.8),
            found(2, 1, [70.0, 20.0, 90.0, 40.0], 0.5),
            found(1, 0, [10.0, 10.0, 20.0, 20.0], 0.5),
            found(1, 0, [10.0, 10.0, 20.0, 20.0], 0.4),
            found(3, 0, [70.0, 20.0, 90.0, 40.0], 0.3),
            // Two people next to each other, each in their own region.
            found(3, 0, [302.0, 2.0, 398.0, 98.0], 0.2),
            found(4, 0, [392.0, 2.0, 488.0, 98.0], 0.1),
        ];
        drop_repeated(&mut detections, &parents);
        let kept: Vec<(i32, f32)> = detections.iter().map(|kept| (kept.parent.unwrap().0, kept.confidence)).collect();
        assert_eq!(kept, [(2, 0.9), (2, 0.8), (2, 0.5), (1, 0.5), (1, 0.4), (3, 0.3), (3, 0.2), (4, 0.1)]);
    }
}
