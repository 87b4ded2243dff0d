//! An inference stage: a model with preprocessing and decoding. Frames and regions in, results in frame coordinates out.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, mpsc};
use std::time::Duration;

use super::client::{Client, stopped};
use super::instance::{Instance, Role, instance};
use super::job::{FrameRuns, Job, JobInput};
use super::spec::describe;
use super::{ModelSpec, RunGuard, Scheduling, StageOptions, StageResults, StageStats, Task};
use crate::frame::{Classification, Detection, Frame, PixelFormat, Point, Size};
use crate::runtime::{CompiledModel, Error, ErrorKind, Result};
use crate::vision::Region;

/// A detector or a classifier. Runs several frames and regions at once, and passes the results of each frame to its closure.
///
/// A region is a zero-copy view of its frame. The regions of a frame run as one batch if the model and its device gain by it; otherwise one
/// by one, on all requests.
///
/// Dropping a stage discards its frames that have not run. The last stage of a model frees it.
pub struct Stage {
    client: Arc<Client>,
    instance: Arc<Instance>,
    n_unaligned: AtomicU64,
}

impl Stage {
    /// Makes a detector of frames or regions. Loads and compiles the model, or shares it with other stages.
    ///
    /// # Errors
    /// If a file is missing or invalid, or the model is not a detector.
    pub fn detector(options: &StageOptions) -> Result<Self> {
        Self::new(options, Role::Detector)
    }

    /// Makes a classifier of regions, as [`Stage::detector`]. Its runs have priority over those of detectors.
    ///
    /// # Errors
    /// If a file is missing or invalid, or the model is not a classifier.
    pub fn classifier(options: &StageOptions) -> Result<Self> {
        Self::new(options, Role::Classifier)
    }

    /// Makes a classifier of whole frames, as [`Stage::classifier`]. Its runs have no priority.
    ///
    /// # Errors
    /// As there.
    pub fn classifier_of_frames(options: &StageOptions) -> Result<Self> {
        Self::new(options, Role::ClassifierOfFrames)
    }

    fn new(options: &StageOptions, role: Role) -> Result<Self> {
        let instance = instance(options, role)?;
        let spec = describe(options, &instance.info)?;
        let (task, is, other) = match role {
            Role::Detector => (Task::Detection, Role::Detector, Role::Classifier),
            Role::Classifier | Role::ClassifierOfFrames => (Task::Classification, Role::Classifier, Role::Detector),
        };
        if spec.task != task {
            let message = format!(
                "`{}` is described as {} by its description {}: a {is} needs `task = \"{task}\"`. Load it as a {other} instead, or correct its description",
                options.model.display(),
                spec.task,
                spec.source
            );
            return Err(Error::new(ErrorKind::Config, message));
        }
        let client = Client::new(spec, options.scheduling, instance.queue.device.clone());
        Ok(Self { client, instance, n_unaligned: AtomicU64::new(0) })
    }

    /// Runs `frame` as soon as a request is idle, unless the guard is withdrawn before; never blocks. `done` gets the results once, on a
    /// worker thread, after the stage released the frame's memory. It must not block.
    pub fn submit(&self, frame: Frame, frame_number: u64, guard: Arc<RunGuard>, done: impl FnOnce(StageResults) + Send + 'static) {
        self.submit_whole(frame, frame_number, guard, false, done);
    }

    fn submit_whole(
        &self,
        frame: Frame,
        frame_number: u64,
        guard: Arc<RunGuard>,
        alone: bool,
        done: impl FnOnce(StageResults) + Send + 'static,
    ) {
        let runs = FrameRuns::new(self.client.clone(), frame_number, guard, 1, StageResults::default(), done);
        self.instance.queue.submit([Job::new(JobInput::whole(frame), runs)], alone);
    }

    /// As [`Stage::submit`], for regions of `frame`. `done` gets the results of all regions when the last one is complete; immediately if
    /// there is none. Regions whose guard is withdrawn fail.
    ///
    /// [`ModelSpec::cut`] says which part of the frame belongs to a region; it is clipped to the frame. A region without a pixel in the
    /// frame fails.
    pub fn submit_regions(
        &self,
        frame: Frame,
        frame_number: u64,
        regions: impl IntoIterator<Item = impl Into<Region>>,
        guard: Arc<RunGuard>,
        done: impl FnOnce(StageResults) + Send + 'static,
    ) {
        let mut results = StageResults::default();
        let mut inputs = Vec::new();
        for (region_idx, region) in regions.into_iter().enumerate() {
            match self.input(&frame, region_idx, &region.into()) {
                Ok(input) => inputs.push(input),
                Err(error) => results.fail(error, true),
            }
        }
        // From here on only the regions hold the memory.
        drop(frame);
        if inputs.is_empty() {
            return done(results);
        }
        let runs = FrameRuns::new(self.client.clone(), frame_number, guard, inputs.len(), results, done);
        self.instance.queue.submit(inputs.into_iter().map(|input| Job::new(input, runs.clone())), false);
    }

    /// The image of a region: a view of the frame, or the frame with the alignment to its keypoints.
    fn input(&self, frame: &Frame, region_idx: usize, region: &Region) -> Result<JobInput> {
        let (cut, size, id) = (&self.spec().cut, frame.size(), Some((region_idx, region.id)));
        if let Some(alignment) = cut.alignment(&region.keypoints, self.spec().input_size) {
            return Ok(JobInput { frame: frame.clone(), corner: Point::default(), alignment: Some(alignment), region: id });
        }
        self.n_unaligned.fetch_add(u64::from(!cut.align.is_empty()), Ordering::Relaxed);
        let Some(rect) = cut.rect(region.rect, size) else {
            let message = format!("region {:?}: expected at least a part of it inside a frame of {size}", region.rect);
            return Err(Error::new(ErrorKind::Tensor, message));
        };
        let corner = Point { x: rect.x as f32, y: rect.y as f32 };
        Ok(JobInput { frame: frame.region(rect)?, corner, alignment: None, region: id })
    }

    /// Runs `frame` and blocks until the results are complete. It is not batched with other frames.
    ///
    /// # Errors
    /// The error of the run.
    pub fn run(&self, frame: &Frame) -> Result<StageResults> {
        self.run_with(frame, RunGuard::now())
    }

    fn run_with(&self, frame: &Frame, guard: Arc<RunGuard>) -> Result<StageResults> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = move |results: StageResults| {
            // The receiver waits below until the results arrive or the closure is dropped.
            let _delivered = sender.send(results.into_result());
        };
        self.submit_whole(frame.clone(), 0, guard, true, done);
        receiver.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// As [`Stage::run`]: the detections, by descending confidence.
    ///
    /// # Errors
    /// As there.
    pub fn detect(&self, frame: &Frame) -> Result<Vec<Detection>> {
        Ok(self.run(frame)?.detections)
    }

    /// As [`Stage::run`]: one classification for each head of the model whose confidence reaches its threshold.
    ///
    /// # Errors
    /// As there.
    pub fn classify(&self, frame: &Frame) -> Result<Vec<Classification>> {
        Ok(self.run(frame)?.classifications)
    }

    /// The duration of a run, without waiting for others: the second of two runs on a black frame, because engines initialize lazily in the
    /// first. Measured once for all stages of the model.
    ///
    /// # Errors
    /// The error of a run. The next call tries again.
    pub fn warm_up(&self) -> Result<Duration> {
        let mut warmed_up = self.instance.warmed_up.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(took) = *warmed_up {
            return Ok(took);
        }
        let size @ Size { width, height } = self.spec().input_size;
        let frame = Frame::from_packed(PixelFormat::Rgb, size, &vec![0; width as usize * height as usize * 3])?;
        let mut took = Duration::ZERO;
        for _ in 0..2 {
            let guard = RunGuard::now();
            self.run_with(&frame, guard.clone())?;
            took = guard.arrived().elapsed().saturating_sub(guard.waited().unwrap_or_default());
        }
        Ok(*warmed_up.insert(took))
    }

    /// As [`Stage::warm_up`]; `None` if it failed for a reason other than the model: the model has run before, or a flush intervened.
    ///
    /// # Errors
    /// As [`Stage::warm_up`], for a model that has never run.
    pub fn try_warm_up(&self) -> Result<Option<Duration>> {
        match self.warm_up() {
            Ok(run_time) => Ok(Some(run_time)),
            Err(error) if self.has_run() || error.kind() == ErrorKind::Stopped => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a run of any stage of the model has succeeded.
    pub fn has_run(&self) -> bool {
        self.instance.queue.has_run.load(Ordering::Acquire)
    }

    /// Discards the frames and regions whose run has not started: they fail.
    pub fn discard_pending(&self) {
        self.instance.queue.discard_jobs(|job| job.is_of(&self.client));
    }

    /// Discards the frames and regions whose guard was withdrawn before their run started: they fail.
    pub fn discard_canceled(&self) {
        self.instance.queue.discard_jobs(|job| job.is_of(&self.client) && job.runs.guard.cancel_reason().is_some());
    }

    /// The order of frames.
    pub fn scheduling(&self) -> Scheduling {
        self.client.scheduling
    }

    /// Number of requests, shared by all stages of the model.
    pub fn n_requests(&self) -> usize {
        self.instance.queue.n_requests
    }

    /// Number of frames, with one region each, that keep all requests busy with full batches.
    pub fn n_frames_at_once(&self) -> usize {
        self.n_requests() * if self.instance.queue.batch_limits.timeout.is_some() { self.instance.queue.batch_limits.max_items } else { 1 }
    }

    /// Whether batches may contain several frames, of any stream.
    pub fn gathers_frames(&self) -> bool {
        self.instance.queue.batch_limits.max_items > 1 && self.instance.queue.batch_limits.timeout.is_some()
    }

    /// Number of in-flight frames that could be removed now, because requests wait for threads.
    pub fn n_frames_to_remove(&self) -> usize {
        self.instance.queue.n_frames_to_remove()
    }

    /// A contradiction between the first outputs and the description, reported once, as a message. See the module `output_check`.
    pub fn take_warning(&self) -> Option<String> {
        self.client.check.take_warning()
    }

    /// Number of regions without the keypoints that the description aligns by. Their boxes were used instead.
    pub fn n_unaligned(&self) -> u64 {
        self.n_unaligned.load(Ordering::Relaxed)
    }

    /// The model.
    pub fn model(&self) -> &CompiledModel {
        &self.instance.model
    }

    /// The description of the model, checked against its ports.
    pub fn spec(&self) -> &ModelSpec {
        &self.client.spec
    }

    /// Counters and times of its runs.
    pub fn stats(&self) -> StageStats {
        self.client.stats()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Must happen before the instance is released.
        self.instance.queue.remove_client(&self.client);
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stage({:?}, {} requests)", self.model(), self.n_requests())
    }
}

// Elements of several threads share it.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Stage>();
};
