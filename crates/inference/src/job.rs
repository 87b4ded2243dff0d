//! A job is one frame or region to run. This module also collects the results of all jobs of a frame.
//!
//! This module uses no queue and no request.

use std::sync::{Arc, Mutex};

use super::RunGuard;
use super::client::{Client, stopped};
use super::results::{ResultSpace, add_results};
use crate::frame::{Classification, Detection, Frame, FrameResults, InferenceStatus, ObjectId, Point, Rect, Similarity, Transform};
use crate::runtime::{Error, Result};
use crate::tensor::Tensor;
use crate::vision::crop::RotatedPlacement;
use crate::vision::decode::{Output, Results};

/// Results of a stage for one frame, or for the regions of one frame, in frame coordinates.
#[derive(Debug, Default)]
pub struct StageResults {
    /// Detections grouped by region, and in descending order of confidence within each region. The parent of a detection in a region
    /// is the object of that region.
    pub detections: Vec<Detection>,
    /// Classifications of the whole frame that reach their threshold, or raw outputs of a `custom` model.
    pub classifications: Vec<Classification>,
    /// Classifications of regions, each with the ID of its region, in the order in which the runs completed.
    pub of_regions: Vec<(ObjectId, Classification)>,
    /// The first error, and the number of failed regions. The number is 0 if the stage runs on the whole frame.
    pub failed: Option<(Error, usize)>,
}

impl StageResults {
    /// Returns the results, or the first error.
    ///
    /// # Errors
    /// Returns the first error if a run failed.
    pub fn into_result(mut self) -> Result<Self> {
        self.failed.take().map_or(Ok(self), |(error, _)| Err(error))
    }

    /// Adds these results to the results of a frame. Classifications of a region are added to the detection with the region's ID.
    pub fn add_to(self, frame: &mut FrameResults) {
        frame.detections.extend(self.detections);
        frame.classifications.extend(self.classifications);
        for (id, classification) in self.of_regions {
            if let Some(detection) = frame.detection_mut(id) {
                detection.classifications.push(classification);
            }
        }
        match self.failed {
            None => {}
            Some((error, 0)) => frame.status = InferenceStatus::Failed(error.to_string().into()),
            Some((error, n_failed)) => frame.status = InferenceStatus::Failed(format!("{n_failed} regions failed: {error}").into()),
        }
    }

    /// Adds the results of other regions of the same frame.
    pub(super) fn join(&mut self, other: Self) {
        self.detections.extend(other.detections);
        self.classifications.extend(other.classifications);
        self.of_regions.extend(other.of_regions);
        if let Some((error, n_failed)) = other.failed {
            let (_, n) = self.failed.get_or_insert((error, 0));
            *n += n_failed;
        }
    }

    pub(super) fn fail(&mut self, error: Error, is_region: bool) {
        let (_, n_failed) = self.failed.get_or_insert((error, 0));
        *n_failed += usize::from(is_region);
    }
}

/// The runs of one frame: the data that they share, and the results so far.
pub(super) struct FrameRuns<F: ?Sized = dyn FnMut(StageResults) + Send> {
    pub(super) client: Arc<Client>,
    /// Number of the frame in its stream, for traces.
    pub(super) frame_number: u64,
    pub(super) guard: Arc<RunGuard>,
    /// Tracing span of the frame. The runs of the frame are started in this span.
    pub(super) span: tracing::Span,
    gathered: Mutex<Gathered>,
    /// The closure that receives the results. It is called once.
    done: Mutex<F>,
}

struct Gathered {
    /// Number of runs of the frame that are not complete.
    n_open: usize,
    results: StageResults,
    /// For each completed region: the index of the region, and the detections in it.
    of_regions: Vec<(usize, Vec<Detection>)>,
}

impl FrameRuns {
    /// Creates the shared data of `n_runs` runs. The results of the runs are added to `results`.
    pub(super) fn new(
        client: Arc<Client>,
        frame_number: u64,
        guard: Arc<RunGuard>,
        n_runs: usize,
        results: StageResults,
        done: impl FnOnce(StageResults) + Send + 'static,
    ) -> Arc<Self> {
        let mut done = Some(done);
        let done = move |results: StageResults| {
            if let Some(done) = done.take() {
                done(results);
            }
        };
        let gathered = Mutex::new(Gathered { n_open: n_runs, results, of_regions: Vec::new() });
        Arc::new(FrameRuns { client, frame_number, guard, span: tracing::Span::current(), gathered, done: Mutex::new(done) })
    }

    fn finish(&self, region: Option<(usize, ObjectId)>, ended: Result<(Vec<Detection>, Vec<Classification>)>) {
        let results = {
            let Gathered { n_open, results, of_regions } = &mut *self.gathered.lock().unwrap();
            match (ended, region) {
                (Ok((detections, classifications)), None) => (results.detections, results.classifications) = (detections, classifications),
                (Ok((detections, classifications)), Some((region_idx, id))) => {
                    results.of_regions.extend(classifications.into_iter().map(|classification| (id, classification)));
                    if !detections.is_empty() {
                        of_regions.push((region_idx, detections));
                    }
                }
                (Err(error), region) => results.fail(error, region.is_some()),
            }
            *n_open -= 1;
            if *n_open > 0 {
                return;
            }
            of_regions.sort_unstable_by_key(|(region_idx, _)| *region_idx);
            results.detections.extend(of_regions.drain(..).flat_map(|(_, detections)| detections));
            std::mem::take(results)
        };
        (self.done.lock().unwrap())(results);
    }
}

/// The image of a job: pixels, or the values of a model's input.
#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "a frame stores its planes inline, so that creating a region allocates nothing")]
pub(super) enum JobImage {
    Frame(Frame),
    /// Values that the caller has preprocessed, and the transform from input coordinates to frame coordinates.
    Values(Tensor, Transform),
}

/// Mapping from input coordinates to frame coordinates, for an image that is not an upright region.
#[derive(Debug, Clone, Copy)]
pub(super) enum Alignment {
    /// Aligned by keypoints. In the input and in the frame, pixel centers have integer coordinates.
    Keypoints(Similarity),
    /// A rotated box that is turned upright.
    Rotated(RotatedPlacement),
}

/// The image of a job, and how it is mapped to the frame.
pub(super) struct JobInput {
    pub(super) image: JobImage,
    /// Top left corner of the image in the frame.
    pub(super) corner: Point,
    /// Mapping from input to frame, for images that are aligned by keypoints or turned upright.
    pub(super) alignment: Option<Alignment>,
    /// Index and ID of the region; `None` for the whole frame.
    pub(super) region: Option<(usize, ObjectId)>,
}

impl JobInput {
    pub(super) fn whole(image: JobImage) -> Self {
        Self { image, corner: Point::default(), alignment: None, region: None }
    }
}

/// One frame or region to run. Dropping a job before it ran reports the error `Stopped`.
pub(super) struct Job {
    /// The image of the job. `None` after the job is complete.
    input: Option<JobInput>,
    pub(super) runs: Arc<FrameRuns>,
    detections: Vec<Detection>,
    classifications: Vec<Classification>,
}

impl Job {
    pub(super) fn new(input: JobInput, runs: Arc<FrameRuns>) -> Self {
        Self { input: Some(input), runs, detections: Vec::new(), classifications: Vec::new() }
    }

    pub(super) fn input(&self) -> &JobInput {
        self.input.as_ref().expect("the input is present until the job finishes")
    }

    pub(super) fn is_of(&self, client: &Arc<Client>) -> bool {
        Arc::ptr_eq(&self.runs.client, client)
    }

    /// Decodes the outputs of the job's batch item and stores the results.
    pub(super) fn decode(&mut self, outputs: &[Output<'_>], frame_from_input: &Transform, results: &mut Results) -> Result<()> {
        let &JobInput { ref image, corner, alignment, region } = self.input();
        // An object of a region lies in the region, not wholly in a border that was added to it.
        let area = match (image, alignment) {
            (JobImage::Frame(image), None) if region.is_some() => {
                Some(Rect { x: corner.x, y: corner.y, width: image.size().width as f32, height: image.size().height as f32 })
            }
            _ => None,
        };
        let frame_from_input = frame_from_input.then_move(corner.x, corner.y);
        let space = ResultSpace { frame_from_input, alignment, parent: region.map(|(_, id)| id) };
        let (detections, classifications, client) = (&mut self.detections, &mut self.classifications, &*self.runs.client);
        let (changed, check) = (client.changed(), &client.check);
        let spec = changed.as_deref().unwrap_or(&client.spec);
        check.decode(spec, outputs, results, |head, results| add_results(spec, head, results, &space, detections, classifications))?;
        if let Some(area) = area {
            let touches = |rect: &Rect| rect.x < area.x_max() && rect.y < area.y_max() && rect.x_max() > area.x && rect.y_max() > area.y;
            detections.retain(|found| touches(&found.rect));
        }
        Ok(())
    }

    /// Whether the rows of this output name their image, see [`Decoder::names_images`](crate::decode::Decoder::names_images).
    pub(super) fn names_images(&self, output_idx: usize, n_columns: usize) -> bool {
        let heads = &self.runs.client.spec.heads;
        heads.iter().any(|head| head.output_idx.is_none_or(|idx| idx == output_idx) && head.decoder.names_images(n_columns))
    }

    /// Releases the frame's memory. Then adds the decoded results of the job, or the error in `ended`, to the results of the
    /// frame.
    pub(super) fn finish(&mut self, ended: Result<()>) {
        let Some(JobInput { image, region, .. }) = self.input.take() else { return };
        // Release the image before the results are delivered, so that the frame's buffer is writable when the owner of the frame
        // gets the results.
        drop(image);
        let found = (std::mem::take(&mut self.detections), std::mem::take(&mut self.classifications));
        self.runs.finish(region, ended.map(|()| found));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.finish(Err(stopped()));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;

    use super::*;
    use crate::frame::Outcome;
    use crate::spec::load_model;
    use crate::{Scheduling, StageOptions};

    #[test]
    fn region_results_are_delivered_once_in_region_order() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/color.onnx");
        let options = StageOptions { model, device: Some("CPU".to_owned()), ..StageOptions::default() };
        let (_, spec) = load_model(&options).unwrap();
        let client = Client::new(spec, Scheduling::Throughput, "CPU".to_owned());
        let (sender, receiver) = mpsc::channel();
        let done = move |results| sender.send(results).unwrap();
        let runs = FrameRuns::new(client, 0, RunGuard::now(), 3, StageResults::default(), done);
        let rect = Rect { x: 0.0, y: 0.0, width: 1.0, height: 1.0 };
        let detection = |id: i32| Detection {
            id: ObjectId(id),
            track: None,
            track_state: None,
            parent: None,
            rect,
            keypoints: Vec::new(),
            confidence: 1.0,
            label_id: 0,
            label: None,
            classifications: Vec::new(),
        };
        let classification = |value| Classification { name: "of".into(), model: "this".into(), outcome: Outcome::Value(value) };
        runs.finish(Some((2, ObjectId(7))), Ok((vec![detection(20), detection(21)], vec![classification(2.0)])));
        runs.finish(Some((1, ObjectId(8))), Err(stopped()));
        assert!(receiver.try_recv().is_err(), "one region runs");
        runs.finish(Some((0, ObjectId(9))), Ok((vec![detection(0)], vec![classification(0.0)])));
        let results = receiver.try_recv().unwrap();
        assert_eq!(results.detections, [detection(0), detection(20), detection(21)]);
        assert_eq!(results.of_regions, [(ObjectId(7), classification(2.0)), (ObjectId(9), classification(0.0))], "order of completion");
        assert_eq!(results.failed.as_ref().map(|(_, n_failed)| *n_failed), Some(1));
        let mut frame = FrameResults { detections: vec![detection(9)], ..FrameResults::default() };
        results.add_to(&mut frame);
        assert_eq!(frame.detections[0].classifications, [classification(0.0)]);
        assert!(matches!(&frame.status, InferenceStatus::Failed(reason) if reason.starts_with("1 regions failed: ")), "{:?}", frame.status);
    }
}
