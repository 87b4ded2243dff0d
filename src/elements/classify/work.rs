//! Work of the classifier on a frame: selects the regions to classify, or the whole frame, and handles the results.
//!
//! This module uses no pads and no properties.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gst::glib;
use gstreamer as gst;

use super::clips::{ClipStore, StoredFrame, StoredObjects};
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
    pub(super) clips: Option<Arc<ClipStore>>,
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
        let add = |clips: &Arc<ClipStore>| clips.add_objects(&self.classifier, &frame, frame_number, filter.objects(&results), crop);
        let stored = self.clips.as_ref().map(add);
        let FramePlan { now, in_background, pending, warning, background } = match &stored {
            None => self.reuse.plan(&results, filter.objects(&results), crop),
            Some(StoredObjects { complete, new, .. }) => {
                self.reuse.restart(frame_number, new);
                let is_complete = |object: &&Detection| complete.iter().any(|(id, _)| *id == object.id);
                self.reuse.plan(&results, results.detections.iter().filter(is_complete), crop)
            }
        };
        let (tracks, not_stored, of_clips) = match stored {
            None => (None, None, None),
            Some(StoredObjects { complete, failed, warning, .. }) => (Some(complete), failed, warning),
        };
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
        let finish = move |mut classified: StageResults| {
            if of_frame.cancel_reason().is_some() {
                reuse.report_later(background);
            }
            if let Some(pending) = pending {
                reuse.record(&pending, &classified);
            }
            if let Some((error, n_not_stored)) = not_stored {
                let n_failed = classified.failed.map_or(0, |(_, n_failed)| n_failed);
                classified.failed = Some((error, n_not_stored + n_failed));
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
        let Some(clips) = &self.clips else {
            let finish = move |classified: StageResults| {
                classified.add_to(&mut results);
                done(results);
            };
            return self.classifier.submit(frame, frame_number, guard, finish);
        };
        let StoredFrame { input, n_clears } = clips.add_frame(&self.classifier, &frame, frame_number);
        drop(frame);
        let input = input.transpose();
        let (clips, is_run) = (clips.clone(), input.is_some());
        let finish = move |classified: StageResults| {
            if is_run && classified.failed.is_none() {
                clips.record_frame(n_clears, frame_number, &classified.classifications);
            }
            classified.add_to(&mut results);
            done(results);
        };
        self.classifier.submit_clips(input.map(|input| (None, input)), frame_number, guard, finish);
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
            Some((Some(region.id), clips.input(*track)))
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;

    use super::*;
    use crate::elements::reuse::ReuseSettings;
    use crate::frame::{Colorimetry, PixelFormat, Rect, Size};
    use crate::stages::StageOptions;
    use crate::tensor::{ElementType, Tensor};

    const SIZE: Size = Size::new(16, 8);

    #[test]
    fn failed_preprocessing_of_a_clip_fails_the_frame_and_keeps_its_frames() {
        for objects in [None, Some(ObjectFilter::default())] {
            let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/clip.onnx");
            let options = StageOptions { model, device: Some("CPU".to_owned()), ..StageOptions::default() };
            let classifier = if objects.is_some() { Stage::classifier(&options) } else { Stage::classifier_of_frames(&options) }.unwrap();
            let is_whole = objects.is_none();
            let work = ClassifyWork {
                clips: ClipStore::new(&classifier).map(Arc::new),
                classifier,
                objects,
                reuse: Arc::new(ResultReuse::new(&ReuseSettings::default(), 1, Arc::default(), true)),
                n_unaligned: AtomicU64::new(0),
                class_check: ClassCheck::default(),
                element: glib::WeakRef::new(),
            };
            let plane = Tensor::new(ElementType::U8, PixelFormat::Rgb.plane_shape(0, SIZE)).unwrap();
            let run = |frame_number: u64| {
                let rect = Rect { x: 0.0, y: 0.0, width: 16.0, height: 8.0 };
                let detection = |track: i32| Detection {
                    id: ObjectId(10 + track),
                    track: Some(ObjectId(track)),
                    track_state: None,
                    parent: None,
                    rect,
                    keypoints: Vec::new(),
                    confidence: 1.0,
                    label_id: 0,
                    label: None,
                    classifications: Vec::new(),
                };
                let detections = if is_whole { Vec::new() } else { vec![detection(1), detection(2)] };
                let results = FrameResults { size: SIZE, frame_number, detections, ..FrameResults::default() };
                let frame = Frame::from_planes(PixelFormat::Rgb, SIZE, std::slice::from_ref(&plane), Colorimetry::default()).unwrap();
                let (sender, receiver) = mpsc::channel();
                work.run(frame, results, RunGuard::now(), Box::new(move |results| sender.send(results).unwrap()));
                receiver.recv().unwrap()
            };
            let n_results = |results: &FrameResults| {
                results.classifications.len() + results.detections.iter().map(|object| object.classifications.len()).sum::<usize>()
            };
            for frame_number in 0..5 {
                assert_eq!(run(frame_number).status, InferenceStatus::Inferred);
            }
            // Nothing can be read from a frame whose memory is leased for writing.
            let lease = plane.bytes_mut().unwrap();
            let failed = run(6);
            let start = if is_whole { "" } else { "2 regions failed: " };
            let is_expected = |reason: &str| reason.starts_with(start) && reason.contains("is being written");
            assert!(matches!(&failed.status, InferenceStatus::Failed(reason) if is_expected(reason)), "{:?}", failed.status);
            drop(lease);
            // The frames 0, 2 and 4 are still stored: the next frame completes the clip.
            let complete = run(7);
            assert_eq!((&complete.status, n_results(&complete)), (&InferenceStatus::Inferred, if is_whole { 1 } else { 2 }));
        }
    }
}
