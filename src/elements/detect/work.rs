//! Work of the detector on a frame: selects the regions or tiles to run on, keeps the objects in the search area, and adds earlier results
//! to skipped frames.
//!
//! This module uses no pads and no properties.

use std::sync::{Arc, mpsc};

use gst::glib;
use gstreamer as gst;

use crate::elements::classes::{self, ClassCheck};
use crate::elements::regions::ObjectFilter;
use crate::elements::work::{Done, Work};
use crate::frame::{Classification, Detection, Frame, FrameResults, Rect};
use crate::stages::{self, RunGuard, SearchArea, Stage, StageResults, Tiles};

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
        let finish = move |mut found: StageResults| {
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
