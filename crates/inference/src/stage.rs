//! An inference stage: a model put to work. Frames and regions in, results in the space of their frame out.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, mpsc};
use std::time::Duration;

use super::client::{Client, stopped};
use super::instance::{Instance, Role, instance};
use super::job::{FrameRuns, Job, Picture};
use super::spec::describe;
use super::{ModelSpec, Permit, Scheduling, StageOptions, StageResults, StageStats, Task};
use crate::frame::{Classification, Detection, Frame, PixelFormat, Point, Size};
use crate::runtime::{CompiledModel, Error, ErrorKind, Result};
use crate::vision::Region;

/// A model put to work: a detector or a classifier. Runs several frames and regions at once; the results of each frame go to the
/// closure that was given with it.
///
/// A region is a frame of its own, zero-copy. The regions of a frame run in one call where the model and its device gain by that, else one
/// by one, as many at once as there are requests.
///
/// Dropping it drops the frames that it has not run; the last of the stages that share a model frees it.
pub struct Stage {
    client: Arc<Client>,
    instance: Arc<Instance>,
    n_unaligned: AtomicU64,
}

impl Stage {
    /// A detector, of whole frames or of regions. Loads and compiles the model, or joins the stages that share it.
    ///
    /// # Errors
    /// If a file is missing or wrong, or the model is not a detector.
    pub fn detector(options: &StageOptions) -> Result<Self> {
        Self::new(options, Role::Detector)
    }

    /// As [`Stage::detector`], a classifier of regions. Its runs go before those of other stages.
    ///
    /// # Errors
    /// If a file is missing or wrong, or the model is not a classifier.
    pub fn classifier(options: &StageOptions) -> Result<Self> {
        Self::new(options, Role::Classifier)
    }

    /// As [`Stage::classifier`], for whole frames: its runs do not go before those of detectors.
    ///
    /// # Errors
    /// As there.
    pub fn classifier_of_frames(options: &StageOptions) -> Result<Self> {
        Self::new(options, Role::ClassifierOfFrames)
    }

    fn new(options: &StageOptions, role: Role) -> Result<Self> {
        let instance = instance(options, role)?;
        let spec = describe(options, &instance.info)?;
        let (task, is) = match role {
            Role::Detector => (Task::Detection, Role::Detector),
            Role::Classifier | Role::ClassifierOfFrames => (Task::Classification, Role::Classifier),
        };
        if spec.task != task {
            let message = format!(
                "`{}` is described as {} by its description {}: a {is} needs `task = \"{task}\"`",
                options.model.display(),
                spec.task,
                spec.source
            );
            return Err(Error::new(ErrorKind::Config, message));
        }
        let client = Client::new(spec, options.scheduling, instance.queue.device.clone());
        Ok(Self { client, instance, n_unaligned: AtomicU64::new(0) })
    }

    /// Runs on `frame` as soon as a request is idle, if the permit is still there then; never blocks. `done` gets the results once, on
    /// a worker thread, after the stage released the frame's memory; it must not block.
    pub fn submit(&self, frame: Frame, frame_number: u64, permit: Arc<Permit>, done: impl FnOnce(StageResults) + Send + 'static) {
        self.submit_whole(frame, frame_number, permit, false, done);
    }

    fn submit_whole(
        &self,
        frame: Frame,
        frame_number: u64,
        permit: Arc<Permit>,
        alone: bool,
        done: impl FnOnce(StageResults) + Send + 'static,
    ) {
        let runs = FrameRuns::new(self.client.clone(), frame_number, permit, 1, StageResults::default(), done);
        self.instance.queue.submit([Job::new(Picture::whole(frame), runs)], alone);
    }

    /// As [`Stage::submit`], on regions of `frame`: `done` gets the results of all of them when the last one is done; at once if there is
    /// none. Regions that find no permit when a request is idle fail.
    ///
    /// Which part of the frame becomes the picture of a region is [`ModelSpec::cut`]'s; it ends at the frame's edges. A region without a
    /// pixel in the frame fails.
    pub fn submit_regions(
        &self,
        frame: Frame,
        frame_number: u64,
        regions: impl IntoIterator<Item = impl Into<Region>>,
        permit: Arc<Permit>,
        done: impl FnOnce(StageResults) + Send + 'static,
    ) {
        let mut results = StageResults::default();
        let mut pictures = Vec::new();
        for (place, region) in regions.into_iter().enumerate() {
            match self.picture(&frame, place, &region.into()) {
                Ok(picture) => pictures.push(picture),
                Err(error) => results.fail(error, true),
            }
        }
        // Only the regions hold the memory from here on.
        drop(frame);
        if pictures.is_empty() {
            return done(results);
        }
        let runs = FrameRuns::new(self.client.clone(), frame_number, permit, pictures.len(), results, done);
        self.instance.queue.submit(pictures.into_iter().map(|picture| Job::new(picture, runs.clone())), false);
    }

    /// The picture of a region: the part of the frame that is cut out, or the frame and the way to the keypoints in it.
    fn picture(&self, frame: &Frame, place: usize, region: &Region) -> Result<Picture> {
        let (cut, size, id) = (&self.spec().cut, frame.size(), Some((place, region.id)));
        if let Some(alignment) = cut.alignment(&region.keypoints, self.spec().input_size) {
            return Ok(Picture { frame: frame.clone(), corner: Point::default(), alignment: Some(alignment), region: id });
        }
        self.n_unaligned.fetch_add(u64::from(!cut.align.is_empty()), Ordering::Relaxed);
        let Some(rect) = cut.rect(region.rect, size) else {
            let message = format!("region {:?}: expected at least a part of it inside a frame of {size}", region.rect);
            return Err(Error::new(ErrorKind::Tensor, message));
        };
        let corner = Point { x: rect.x as f32, y: rect.y as f32 };
        Ok(Picture { frame: frame.region(rect)?, corner, alignment: None, region: id })
    }

    /// As [`Stage::submit`], and waits for the results. It runs by itself, whatever the batch size.
    ///
    /// # Errors
    /// Those of the run.
    pub fn run(&self, frame: &Frame) -> Result<StageResults> {
        self.run_with(frame, Permit::now())
    }

    fn run_with(&self, frame: &Frame, permit: Arc<Permit>) -> Result<StageResults> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = move |results: StageResults| {
            // The receiver waits below until the results, or the closure's end.
            let _delivered = sender.send(results.into_result());
        };
        self.submit_whole(frame.clone(), 0, permit, true, done);
        receiver.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// As [`Stage::run`]: the detections, best first.
    ///
    /// # Errors
    /// As there.
    pub fn detect(&self, frame: &Frame) -> Result<Vec<Detection>> {
        Ok(self.run(frame)?.detections)
    }

    /// As [`Stage::run`]: a classification for each head of the model that is not below its threshold.
    ///
    /// # Errors
    /// As there.
    pub fn classify(&self, frame: &Frame) -> Result<Vec<Classification>> {
        Ok(self.run(frame)?.classifications)
    }

    /// How long a run takes, without what it waits for others: that of the second of two on a black frame, for the first pays for what
    /// engines make lazily. Measured once for all who share the model.
    ///
    /// # Errors
    /// Those of a run; the next call tries again.
    pub fn warm_up(&self) -> Result<Duration> {
        let mut warmed_up = self.instance.warmed_up.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(took) = *warmed_up {
            return Ok(took);
        }
        let size @ Size { width, height } = self.spec().input_size;
        let frame = Frame::from_packed(PixelFormat::Rgb, size, &vec![0; width as usize * height as usize * 3])?;
        let mut took = Duration::ZERO;
        for _ in 0..2 {
            let permit = Permit::now();
            self.run_with(&frame, permit.clone())?;
            took = permit.arrived().elapsed().saturating_sub(permit.waited().unwrap_or_default());
        }
        Ok(*warmed_up.insert(took))
    }

    /// As [`Stage::warm_up`]; `None` where that failed and the model is not to blame: it has run before, or a flush came between.
    ///
    /// # Errors
    /// As there, of a model that has never run.
    pub fn try_warm_up(&self) -> Result<Option<Duration>> {
        match self.warm_up() {
            Ok(run_time) => Ok(Some(run_time)),
            Err(error) if self.has_run() || error.kind() == ErrorKind::Stopped => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a run, of any stage that shares the model, has given a result.
    pub fn has_run(&self) -> bool {
        self.instance.queue.has_run.load(Ordering::Acquire)
    }

    /// Drops the frames and regions whose run has not begun: they fail.
    pub fn drop_pending(&self) {
        self.instance.queue.drop_those(|job| job.is_of(&self.client));
    }

    /// Drops the frames and regions whose permit was taken back before their run began: they fail.
    pub fn drop_withdrawn(&self) {
        self.instance.queue.drop_those(|job| job.is_of(&self.client) && job.runs.permit.withdrawal().is_some());
    }

    /// Which frame is next.
    pub fn scheduling(&self) -> Scheduling {
        self.client.scheduling
    }

    /// How many runs are possible at once, of all stages that share the model.
    pub fn n_requests(&self) -> usize {
        self.instance.queue.n_requests
    }

    /// How many frames, with one region each, have to wait so that all requests are busy with calls as large as was asked for.
    pub fn n_frames_at_once(&self) -> usize {
        self.n_requests() * if self.instance.queue.rows.timeout.is_some() { self.instance.queue.rows.max } else { 1 }
    }

    /// Whether a call waits for several frames, of any stream.
    pub fn gathers_frames(&self) -> bool {
        self.instance.queue.rows.max > 1 && self.instance.queue.rows.timeout.is_some()
    }

    /// How many frames fewer would do now, because those that run wait for threads that others need too.
    pub fn n_frames_fewer(&self) -> usize {
        self.instance.queue.n_frames_fewer()
    }

    /// What the first outputs of the model say against its description, once: for people. See the module `output_check`.
    pub fn take_warning(&self) -> Option<String> {
        self.client.check.take_warning()
    }

    /// How many regions did not have the keypoints that the description aligns by: the pictures of their boxes were taken.
    pub fn n_unaligned(&self) -> u64 {
        self.n_unaligned.load(Ordering::Relaxed)
    }

    /// The model.
    pub fn model(&self) -> &CompiledModel {
        &self.instance.model
    }

    /// What is known of the model.
    pub fn spec(&self) -> &ModelSpec {
        &self.client.spec
    }

    /// Runs and times so far.
    pub fn stats(&self) -> StageStats {
        self.client.stats()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Before the instance is released.
        self.instance.queue.leave(&self.client);
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stage({:?}, {} requests)", self.model(), self.n_requests())
    }
}

// Shared by elements of several threads.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Stage>();
};
