//! Work of the classifier on a frame: selects the regions to classify, or the whole frame, and handles the results.
//!
//! This module uses no pads and no properties.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gst::glib;
use gstreamer as gst;

use super::clips::{ClipStore, Complete};
use crate::elements::classes::{self, ClassCheck};
use crate::elements::regions::ObjectFilter;
use crate::elements::reuse::{FramePlan, ResultReuse};
use crate::elements::work::{Done, Work};
use crate::frame::{Detection, Frame, FrameResults, InferenceStatus, ObjectId};
use crate::stages::{self, Region, RunGuard, Stage, StageResults};

/// Work of `roiclassify`. See the module.
pub(super) struct ClassifyWork {
    pub(super) classifier: Stage,
    /// Filter for the objects to classify; `None` = the whole frame.
    pub(super) objects: Option<ObjectFilter>,
    pub(super) reuse: Arc<ResultReuse>,
    /// Frames of the objects, if the input of the model is a clip.
    pub(super) clips: Option<ClipStore>,
    /// The last reported number of objects without usable keypoints.
    pub(super) n_unaligned: AtomicU64,
    pub(super) class_check: ClassCheck,
    /// The element, for warnings on the bus.
    pub(super) element: glib::WeakRef<gst::Element>,
}

impl Work for ClassifyWork {
    fn stage(&self) -> &Stage {
        &self.classifier
    }

    fn run(&self, frame: Frame, mut results: FrameResults, guard: Arc<RunGuard>, done: Done) {
        let frame_number = results.frame_number;
        let Some(filter) = &self.objects else {
            return self.run_whole(frame, results, guard, done);
        };
        self.class_check.check(&self.element, filter.classes(), &results);
        let crop = &self.classifier.spec().crop;
        let add = |clips: &ClipStore| clips.add_objects(&self.classifier, &frame, frame_number, filter.objects(&results), crop);
        let complete = self.clips.as_ref().map(add);
        let FramePlan { now, in_background, pending, warning, background } = match &complete {
            None => self.reuse.plan(&results, filter.objects(&results), crop),
            Some(Complete { objects, .. }) => {
                let is_complete = |object: &&Detection| objects.iter().any(|(id, _)| *id == object.id);
                self.reuse.plan(&results, results.detections.iter().filter(is_complete), crop)
            }
        };
        let (tracks, of_clips) = complete.map_or((None, None), |complete| (Some(complete.objects), complete.warning));
        if let Some((warning, element)) = of_clips.or(warning).zip(self.element.upgrade()) {
            gst::element_warning!(element, gst::ResourceError::Settings, ("{}", stages::Printable(&warning.to_string())));
        }
        if let Some(failed) = &background.failed {
            results.status = InferenceStatus::Failed(failed.as_str().into());
        }
        if background.has_succeeded {
            guard.succeed();
        }
        let reuse = self.reuse.clone();
        let pending = if in_background.is_empty() {
            Some(pending)
        } else {
            let (reuse, guard) = (reuse.clone(), RunGuard::now());
            let of_runs = guard.clone();
            let finish = move |classified: StageResults| reuse.record_in_background(&pending, &classified, of_runs.has_succeeded());
            self.submit(frame.clone(), frame_number, in_background, tracks.as_deref(), guard, finish);
            None
        };
        let of_frame = guard.clone();
        let finish = move |classified: StageResults| {
            if of_frame.cancel_reason().is_some() {
                reuse.report_later(background);
            }
            if let Some(pending) = pending {
                reuse.record(&pending, &classified);
            }
            classified.add_to(&mut results);
            done(results);
        };
        self.submit(frame, frame_number, now, tracks.as_deref(), guard, finish);
        let n_unaligned = self.classifier.n_unaligned();
        let n_known = self.n_unaligned.swap(n_unaligned, Ordering::Relaxed);
        if n_unaligned > n_known {
            self.reuse.count_unaligned(n_unaligned - n_known);
            if n_known == 0 {
                self.warn_of_unaligned();
            }
        }
    }

    fn leave(&self, results: &mut FrameResults) {
        self.reuse.apply(results);
        if let (Some(clips), None) = (&self.clips, &self.objects) {
            clips.apply(self.classifier.spec(), results);
        }
        if let Some(warning) = self.classifier.take_warning() {
            classes::warn(&self.element, &warning);
        }
    }

    fn reset(&self) {
        self.reuse.reset();
        if let Some(clips) = &self.clips {
            clips.clear();
        }
    }

    /// Returns the results of this classifier for the whole frame, or for the objects that have a track ID. A tracker, or a detector with
    /// `carry-results`, sets the track IDs.
    fn own_results(&self, results: &FrameResults, _n_before: usize) -> FrameResults {
        let spec = self.classifier.spec();
        if self.objects.is_none() {
            let classifications = results.classifications.iter().filter(|own| spec.says(&own.name)).cloned().collect();
            return FrameResults { classifications, ..FrameResults::default() };
        }
        let of_this = |detection: &Detection| {
            let classifications: Vec<_> = detection.classifications.iter().filter(|own| spec.says(&own.name)).cloned().collect();
            (!classifications.is_empty()).then(|| Detection { classifications, ..detection.clone() })
        };
        FrameResults { detections: results.detections.iter().filter_map(of_this).collect(), ..FrameResults::default() }
    }

    fn n_objects(&self, results: &FrameResults, _n_before: usize) -> usize {
        if self.objects.is_some() { results.detections.len() } else { 0 }
    }

    fn carry(&self, earlier: &FrameResults, results: &mut FrameResults) {
        let spec = self.classifier.spec();
        results.classifications.extend(earlier.classifications.iter().cloned());
        for earlier_object in &earlier.detections {
            if let Some(detection) = results.detections.iter_mut().find(|detection| detection.is_same_object(earlier_object))
                && !detection.classifications.iter().any(|own| spec.says(&own.name))
            {
                detection.classifications.extend(earlier_object.classifications.iter().cloned());
            }
        }
    }

    fn reads_results(&self) -> bool {
        self.objects.is_some()
    }
}

impl ClassifyWork {
    /// Classifies the whole frame, or the clip of the latest whole frames.
    fn run_whole(&self, frame: Frame, mut results: FrameResults, guard: Arc<RunGuard>, done: Done) {
        let frame_number = results.frame_number;
        let finish = move |classified: StageResults| {
            classified.add_to(&mut results);
            done(results);
        };
        let Some(clips) = &self.clips else { return self.classifier.submit(frame, frame_number, guard, finish) };
        let added = clips.add_frame(&self.classifier, &frame, frame_number);
        drop(frame);
        match added {
            Ok(input) => self.classifier.submit_clips(input.map(|input| (None, input)), frame_number, guard, finish),
            Err(error) => finish(StageResults { failed: Some((error, 0)), ..StageResults::default() }),
        }
    }

    /// Runs the model on regions. `tracks` has pairs of detection ID and track ID if the input of the model is a clip.
    fn submit(
        &self,
        frame: Frame,
        frame_number: u64,
        regions: Vec<Region>,
        tracks: Option<&[(ObjectId, ObjectId)]>,
        guard: Arc<RunGuard>,
        done: impl FnOnce(StageResults) + Send + 'static,
    ) {
        let (Some(clips), Some(tracks)) = (&self.clips, tracks) else {
            return self.classifier.submit_regions(frame, frame_number, regions, guard, done);
        };
        drop(frame);
        let input = |region: Region| {
            let (_, track) = tracks.iter().find(|(id, _)| *id == region.id)?;
            Some((Some(region.id), clips.input(*track).ok()?))
        };
        self.classifier.submit_clips(regions.into_iter().filter_map(input), frame_number, guard, done);
    }

    fn warn_of_unaligned(&self) {
        if let Some(element) = self.element.upgrade() {
            let spec = self.classifier.spec();
            gst::element_warning!(
                element,
                gst::ResourceError::Settings,
                (
                    "`{}` aligns objects by {} keypoints (`align` in its description {}), but some objects have fewer keypoints, or all in one point: their boxes are classified without alignment; use a detector with such keypoints, for faces YuNet, SCRFD, RetinaFace, CenterFace or BlazeFace. This warning appears only once",
                    stages::OneLine(&spec.model_name),
                    spec.crop.align.len(),
                    stages::Printable(&spec.source.to_string())
                )
            );
        }
    }
}
