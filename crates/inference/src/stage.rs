//! An inference stage is a model with its preprocessing and decoding. A stage takes frames and regions, and returns results in frame
//! coordinates.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use super::batch::fill_item;
use super::client::{Client, stopped};
use super::instance::{Instance, Role, instance};
use super::job::{Alignment, FrameRuns, Job, JobImage, JobInput};
use super::model_inputs::ModelInputs;
use super::spec::describe;
use super::{ModelSpec, RunGuard, Scheduling, Sharing, StageOptions, StageResults, StageStats, Task, Thresholds};
use crate::frame::{Classification, Detection, Frame, ObjectId, PixelFormat, Point, Size, Transform};
use crate::runtime::{CompiledModel, Error, ErrorKind, Port, Result};
use crate::tensor::Tensor;
use crate::vision::crop::RotatedPlacement;
use crate::vision::{Region, Scratch};

/// A detector or a classifier. Infers several frames and regions concurrently, and passes the results of each frame to a closure.
///
/// A region is not copied: it uses the memory of its frame. The regions of a frame run as one batch if the model and the device support
/// it. Otherwise each region runs alone, and the regions are distributed over all inference requests.
///
/// Dropping a stage discards its waiting frames. Dropping the last stage of a model releases the model.
pub struct Stage {
    client: Arc<Client>,
    instance: Arc<Instance>,
    n_unaligned: AtomicU64,
    options: StageOptions,
    /// The current thresholds.
    thresholds: Mutex<Thresholds>,
    /// Typical number of areas per frame, for a detector of tiles. 1 for other stages, also if their frames have several regions.
    n_areas: usize,
    /// Stages of the same model with wider inputs, in ascending order, for regions that are too wide for this stage.
    wider: Vec<Self>,
}

impl Stage {
    /// Creates a detector of frames or regions. Loads and compiles the model, or shares a compiled model.
    ///
    /// # Errors
    /// Returns an error if a file is missing or invalid, or the model is not a detector.
    pub fn detector(options: &StageOptions) -> Result<Self> {
        Self::new(options, Role::Detector)
    }

    /// Creates a detector for [`Stage::submit_tiles`]. The areas of a frame form a batch if the model and the device support it. `n_areas` is
    /// the typical number of areas of a frame.
    ///
    /// # Errors
    /// Returns the errors of [`Stage::detector`].
    pub fn detector_of_tiles(options: &StageOptions, n_areas: usize) -> Result<Self> {
        let mut stage = Self::new(options, Role::DetectorOfTiles)?;
        stage.n_areas = n_areas.max(1);
        Ok(stage)
    }

    /// Creates a classifier of regions, whose runs have priority over the runs of detectors.
    ///
    /// # Errors
    /// Returns an error if a file is missing or invalid, or the model is not a classifier.
    pub fn classifier(options: &StageOptions) -> Result<Self> {
        Self::new(options, Role::Classifier)
    }

    /// Creates a classifier of whole frames, whose runs have no priority.
    ///
    /// # Errors
    /// Returns the errors of [`Stage::classifier`].
    pub fn classifier_of_frames(options: &StageOptions) -> Result<Self> {
        Self::new(options, Role::ClassifierOfFrames)
    }

    fn new(options: &StageOptions, role: Role) -> Result<Self> {
        // Later changes of the thresholds use the files that are read now.
        let snapshot = Some(options.snapshot.clone().unwrap_or_default());
        let options = &StageOptions { snapshot, ..options.clone() };
        let instance = instance(options, role)?;
        let spec = describe(options, &instance.info)?;
        let (task, is, other) = match role {
            Role::Detector | Role::DetectorOfTiles => (Task::Detection, Role::Detector, Role::Classifier),
            Role::Classifier | Role::ClassifierOfFrames => (Task::Classification, Role::Classifier, Role::Detector),
        };
        if spec.task != task {
            let message = format!(
                "`{}` is described as {} by its description {}: a {is} needs `task = \"{task}\"`. Load the model as a {other} instead, or correct its description",
                options.model.display(),
                spec.task,
                spec.source
            );
            return Err(Error::new(ErrorKind::Config, message));
        }
        let client = Client::new(spec, options.scheduling, instance.queue.device.clone());
        let (n_images, max_items) = (client.spec.n_images, instance.queue.batch_limits.max_items);
        if n_images > 1 && options.batch_size.is_none() {
            let advice =
                if max_items == 1 { format!("Set batch-size={n_images} to fill a run with several frames, or e") } else { "E".to_owned() };
            client.check.warn(format!(
                "model `{}` has a fixed batch size of {n_images}: each run computes {n_images} images and takes the time of all of them, also if {} in use. {advice}xport the model with batch size 1 or a dynamic batch size",
                options.model.display(),
                if max_items == 1 { "only one of them is" } else { "not all of them are" }
            ));
        }
        let thresholds = Mutex::new(options.thresholds());
        let widths = if options.input_width.is_none() { client.spec.widths.clone() } else { Vec::new() };
        let wider = widths.into_iter().filter(|width| *width > client.spec.input_size.width as usize).map(|width| {
            let sharing = match &options.sharing {
                Sharing::Named(name) => Sharing::Named(format!("{name}, width {width}")),
                other => other.clone(),
            };
            Self::new(&StageOptions { input_width: Some(width), sharing, ..options.clone() }, role)
        });
        let wider = wider.collect::<Result<_>>()?;
        Ok(Self { client, instance, n_unaligned: AtomicU64::new(0), options: options.clone(), thresholds, n_areas: 1, wider })
    }

    /// Schedules `frame` for inference. Never blocks.
    ///
    /// Calls `done` once with the results, on a worker thread, after the stage has released the frame's memory. `done` must not block. If
    /// the guard is canceled before the run starts, the frame fails.
    pub fn submit(&self, frame: Frame, frame_number: u64, guard: Arc<RunGuard>, done: impl FnOnce(StageResults) + Send + 'static) {
        self.submit_whole(JobImage::Frame(frame), frame_number, guard, false, done);
    }

    fn submit_whole(
        &self,
        image: JobImage,
        frame_number: u64,
        guard: Arc<RunGuard>,
        alone: bool,
        done: impl FnOnce(StageResults) + Send + 'static,
    ) {
        let stage = match &image {
            JobImage::Frame(frame) => self.stage(self.fitting(frame.size().width as f32, frame.size().height as f32)),
            JobImage::Values(..) => self,
        };
        let runs = FrameRuns::new(stage.client.clone(), frame_number, guard, 1, StageResults::default(), done);
        stage.instance.queue.submit([Job::new(JobInput::whole(image), runs)], alone);
    }

    /// This stage (0), or one of [`Self::wider`].
    fn stage(&self, idx: usize) -> &Self {
        idx.checked_sub(1).map_or(self, |idx| &self.wider[idx])
    }

    /// Returns the index of the first stage whose input is wide enough for an image of this size; the widest stage if there is none.
    fn fitting(&self, width: f32, height: f32) -> usize {
        let fits = |stage: &Self| {
            let input = stage.spec().input_size;
            width * input.height as f32 <= height * input.width as f32
        };
        (0..self.wider.len()).find(|idx| fits(self.stage(*idx))).unwrap_or(self.wider.len())
    }

    /// Like [`Stage::submit`], for an input that the caller has preprocessed. `values` has the shape [`ModelSpec::input_shape`] and the element
    /// type of the model's input. `frame_from_input` maps results to the frame.
    ///
    /// # Errors
    /// Returns `Tensor` if element type or shape differ, or the values are not dense.
    pub fn submit_values(
        &self,
        values: Tensor,
        frame_from_input: Transform,
        frame_number: u64,
        guard: Arc<RunGuard>,
        done: impl FnOnce(StageResults) + Send + 'static,
    ) -> Result<()> {
        let (shape, expected) = (values.shape(), self.image_port());
        if shape != self.spec().input_shape || values.element() != expected.element || !values.layout().is_dense() {
            let message = format!(
                "preprocessed input: expected dense values of {} {}, got {shape} {}",
                self.spec().input_shape,
                expected.element,
                values.element()
            );
            return Err(Error::new(ErrorKind::Tensor, message));
        }
        let runs = FrameRuns::new(self.client.clone(), frame_number, guard, 1, StageResults::default(), done);
        self.instance.queue.submit([Job::new(JobInput::whole(JobImage::Values(values, frame_from_input)), runs)], false);
        Ok(())
    }

    /// Like [`Stage::submit`], for regions of `frame`.
    ///
    /// Calls `done` when the last region is complete, or immediately if there are no regions. If the guard is canceled before the run of
    /// a region starts, that region fails. [`ModelSpec::crop`] defines the part of the frame that belongs to a region, clipped to the
    /// frame. A region outside the frame fails.
    pub fn submit_regions(
        &self,
        frame: Frame,
        frame_number: u64,
        regions: impl IntoIterator<Item = impl Into<Region>>,
        guard: Arc<RunGuard>,
        done: impl FnOnce(StageResults) + Send + 'static,
    ) {
        let mut results = StageResults::default();
        let mut inputs: Vec<Vec<JobInput>> = (0..=self.wider.len()).map(|_| Vec::new()).collect();
        for (region_idx, region) in regions.into_iter().enumerate() {
            let region = region.into();
            match self.input(&frame, region_idx, &region) {
                Ok(Some((stage_idx, input))) => inputs[stage_idx].push(input),
                Ok(None) => {
                    let message = format!("region {:?}: expected at least a part inside the frame of {}", region.rect, frame.size());
                    results.fail(Error::new(ErrorKind::Tensor, message), true);
                }
                Err(error) => results.fail(error, true),
            }
        }
        // Release this reference to the frame, so that only the regions hold the frame's memory.
        drop(frame);
        let n_groups = inputs.iter().filter(|inputs| !inputs.is_empty()).count();
        if n_groups <= 1 {
            let idx = inputs.iter().position(|inputs| !inputs.is_empty()).unwrap_or(0);
            return self.stage(idx).submit_inputs(inputs.swap_remove(idx), frame_number, guard, results, done);
        }
        let joined = Arc::new(Mutex::new((n_groups, results, Some(done))));
        for (idx, inputs) in inputs.into_iter().enumerate().filter(|(_, inputs)| !inputs.is_empty()) {
            let joined = joined.clone();
            let join = move |found: StageResults| {
                let (n_open, results, done) = &mut *joined.lock().unwrap_or_else(PoisonError::into_inner);
                results.join(found);
                *n_open -= 1;
                // The caller runs `done` after the lock is released.
                if *n_open == 0 { done.take().map(|done| (done, std::mem::take(results))) } else { None }
            };
            self.stage(idx).submit_inputs(inputs, frame_number, guard.clone(), StageResults::default(), move |found| {
                if let Some((done, results)) = join(found) {
                    done(results);
                }
            });
        }
    }

    /// Schedules the jobs of one frame, whose results are added to `results`. Calls `done` immediately if there are no inputs.
    pub(super) fn submit_inputs(
        &self,
        inputs: Vec<JobInput>,
        frame_number: u64,
        guard: Arc<RunGuard>,
        results: StageResults,
        done: impl FnOnce(StageResults) + Send + 'static,
    ) {
        if inputs.is_empty() {
            return done(results);
        }
        let runs = FrameRuns::new(self.client.clone(), frame_number, guard, inputs.len(), results, done);
        self.instance.queue.submit(inputs.into_iter().map(|input| Job::new(input, runs.clone())), false);
    }

    /// Returns the input of the job for a region: a part of the frame, or the whole frame with an alignment to the region's
    /// keypoints or to its rotated box. Also returns the index of the stage whose input is wide enough. `None` if no part of the region is
    /// inside the frame.
    fn input(&self, frame: &Frame, region_idx: usize, region: &Region) -> Result<Option<(usize, JobInput)>> {
        let (crop, size, id) = (&self.spec().crop, frame.size(), Some((region_idx, region.id)));
        let aligned = crop.alignment(&region.keypoints, self.spec().input_size).map(|similarity| (0, Alignment::Keypoints(similarity)));
        let turned = || {
            let rect = crop.rotated(region.rotated?);
            let stage_idx = self.fitting(rect.width, rect.height);
            let spec = self.stage(stage_idx).spec();
            let placement = RotatedPlacement::new(&rect, spec.preprocess.resize, spec.input_size)?;
            Some((stage_idx, Alignment::Rotated(placement)))
        };
        if let Some((stage_idx, alignment)) = aligned.or_else(turned) {
            let alignment = Some(alignment);
            let input = JobInput { image: JobImage::Frame(frame.clone()), corner: Point::default(), alignment, region: id };
            return Ok(Some((stage_idx, input)));
        }
        self.n_unaligned.fetch_add(u64::from(!crop.align.is_empty()), Ordering::Relaxed);
        let Some(rect) = crop.rect(region.rect, size) else { return Ok(None) };
        let corner = Point { x: rect.x as f32, y: rect.y as f32 };
        let input = JobInput { image: JobImage::Frame(frame.region(rect)?), corner, alignment: None, region: id };
        Ok(Some((self.fitting(rect.width as f32, rect.height as f32), input)))
    }

    /// Like [`Stage::submit_regions`], for a model whose input is a clip. Each clip is the ID of its region, and what
    /// [`Clips::input`](super::Clips::input) returns. A clip without an ID is the whole frame. A clip with an error fails.
    pub fn submit_clips(
        &self,
        clips: impl IntoIterator<Item = (Option<ObjectId>, Result<Tensor>)>,
        frame_number: u64,
        guard: Arc<RunGuard>,
        done: impl FnOnce(StageResults) + Send + 'static,
    ) {
        let mut results = StageResults::default();
        let mut inputs = Vec::new();
        for (region_idx, (id, values)) in clips.into_iter().enumerate() {
            let region = id.map(|id| (region_idx, id));
            match values {
                Ok(values) => inputs.push(JobInput { region, ..JobInput::whole(JobImage::Values(values, Transform::IDENTITY)) }),
                Err(error) => results.fail(error, region.is_some()),
            }
        }
        self.submit_inputs(inputs, frame_number, guard, results, done);
    }

    /// Writes a region, or the whole frame, into `target`: a tensor for one image, with batch size 1. Returns false if no part of the region
    /// is inside the frame.
    pub(super) fn preprocess_region(&self, frame: &Frame, region: Option<&Region>, target: &Tensor, scratch: &mut Scratch) -> Result<bool> {
        let whole = || Ok(Some((0, JobInput::whole(JobImage::Frame(frame.clone())))));
        let Some((_, JobInput { image, alignment, .. })) = region.map_or_else(whole, |region| self.input(frame, 0, region))? else {
            return Ok(false);
        };
        fill_item(&self.spec().preprocess, &image, alignment, &mut target.bytes_mut()?, 0, scratch)?;
        Ok(true)
    }

    /// Returns the port of the image input.
    pub(super) fn image_port(&self) -> &Port {
        let ports = self.model().inputs();
        &ports[ModelInputs::of(ports).map_or(0, |inputs| inputs.image)]
    }

    /// Runs `frame` without batching and blocks until the results are complete.
    ///
    /// # Errors
    /// Returns the error of the run if the run fails.
    pub fn run(&self, frame: &Frame) -> Result<StageResults> {
        self.run_with(JobImage::Frame(frame.clone()), RunGuard::now())
    }

    fn run_with(&self, image: JobImage, guard: Arc<RunGuard>) -> Result<StageResults> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = move |results: StageResults| {
            // Sending fails only if the receiver was dropped, and the receiver exists until it gets the results.
            let _delivered = sender.send(results.into_result());
        };
        self.submit_whole(image, 0, guard, true, done);
        receiver.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// Like [`Stage::run`]. Returns the detections in descending order of confidence.
    ///
    /// # Errors
    /// Returns the errors of [`Stage::run`].
    pub fn detect(&self, frame: &Frame) -> Result<Vec<Detection>> {
        Ok(self.run(frame)?.detections)
    }

    /// Like [`Stage::run`]. Returns the classification of each head, except those with a confidence below the threshold of the
    /// head.
    ///
    /// # Errors
    /// Returns the errors of [`Stage::run`].
    pub fn classify(&self, frame: &Frame) -> Result<Vec<Classification>> {
        Ok(self.run(frame)?.classifications)
    }

    /// Measures the duration of a run, without the time for which the run waits for a request. The stages of a model share one
    /// measurement.
    ///
    /// Runs a black frame twice. Returns the duration of the second run, because the first run includes the initialization of the
    /// engine.
    ///
    /// # Errors
    /// Returns the error of a run if a run fails. The next call then measures again.
    pub fn warm_up(&self) -> Result<Duration> {
        self.wider.iter().try_for_each(|stage| stage.warm_up().map(drop))?;
        let mut warmed_up = self.instance.warmed_up.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(took) = *warmed_up {
            return Ok(took);
        }
        let size @ Size { width, height } = self.spec().input_size;
        let image = match self.spec().clip {
            None => JobImage::Frame(Frame::from_packed(PixelFormat::Rgb, size, &vec![0; width as usize * height as usize * 3])?),
            Some(_) => JobImage::Values(Tensor::new(self.image_port().element, self.spec().input_shape)?, Transform::IDENTITY),
        };
        let mut took = Duration::ZERO;
        for _ in 0..2 {
            let guard = RunGuard::now();
            self.run_with(image.clone(), guard.clone())?;
            took = guard.arrived().elapsed().saturating_sub(guard.waited().unwrap_or_default());
        }
        Ok(*warmed_up.insert(took))
    }

    /// Like [`Stage::warm_up`], but returns the duration of all runs of a frame. Returns `None` if the warm-up failed for a reason other than
    /// the model: the model has run before, a flush canceled the warm-up, or the device was unavailable.
    ///
    /// # Errors
    /// Returns the errors of [`Stage::warm_up`] if the model has never run.
    pub fn try_warm_up(&self) -> Result<Option<Duration>> {
        match self.warm_up() {
            // The areas of a frame are distributed over all requests.
            Ok(run_time) => Ok(Some(run_time * self.n_areas.div_ceil(self.n_requests()) as u32)),
            Err(error) if self.has_run() || error.kind() == ErrorKind::Stopped || error.kind().is_outage() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether any stage of the model has completed a run successfully.
    pub fn has_run(&self) -> bool {
        self.stages().any(|stage| stage.instance.queue.has_run.load(Ordering::Acquire))
    }

    /// Returns this stage and the stages with wider inputs.
    fn stages(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.wider)
    }

    /// Discards the waiting frames and regions of this stage: those whose run has not started. Each of them gets an error as
    /// result.
    pub fn discard_pending(&self) {
        self.stages().for_each(|stage| stage.instance.queue.discard_jobs(|job| job.is_of(&stage.client)));
    }

    /// Discards the waiting frames and regions of this stage whose guard was canceled. Each of them gets an error as result.
    pub fn discard_canceled(&self) {
        self.stages().for_each(|stage| {
            stage.instance.queue.discard_jobs(|job| job.is_of(&stage.client) && job.runs.guard.cancel_reason().is_some());
        });
    }

    /// Returns the order in which waiting frames run.
    pub fn scheduling(&self) -> Scheduling {
        self.client.scheduling
    }

    /// Returns the number of requests. All stages that share the compiled model also share the requests.
    pub fn n_requests(&self) -> usize {
        self.instance.queue.n_requests
    }

    /// Returns the number of requests that are used in addition to [`Stage::n_requests`], because other processes use the cores. All stages that
    /// share the compiled model also share these requests.
    pub fn n_spare_requests(&self) -> usize {
        self.instance.queue.n_spare_requests()
    }

    /// Notes that a frame has to wait until the in-flight queue has a free slot. Without such frames, there are no spare requests.
    pub fn note_waiting_frame(&self) {
        self.instance.queue.note_waiting_frame();
    }

    /// Returns the number of frames that keep all requests busy with full batches. Each frame of a detector of tiles needs as many batch
    /// items as it has areas. For other stages: if each frame needs one batch item.
    pub fn n_frames_at_once(&self) -> usize {
        let limits = &self.instance.queue.batch_limits;
        // Without a timeout, a batch contains the areas of one frame only.
        let frames_of_request = if limits.timeout.is_some() { limits.max_items } else { 1 };
        let areas_of_request = if limits.timeout.is_some() { 1 } else { limits.max_items };
        (self.n_requests() * frames_of_request).div_ceil(self.n_areas.div_ceil(areas_of_request))
    }

    /// Whether a batch can contain several frames, also of different streams.
    pub fn gathers_frames(&self) -> bool {
        self.instance.queue.batch_limits.max_items > 1 && self.instance.queue.batch_limits.timeout.is_some()
    }

    /// Returns by how many frames the in-flight queue is to shrink, because requests wait for CPU threads.
    pub fn n_frames_to_remove(&self) -> usize {
        self.instance.queue.n_frames_to_remove()
    }

    /// If the outputs contradict the model's description, returns a message about the contradiction. Returns the message only once. See the
    /// module `output_check`.
    pub fn take_warning(&self) -> Option<String> {
        self.stages().find_map(|stage| stage.client.check.take_warning())
    }

    /// Returns the number of regions that lacked the keypoints for alignment, and for which the upright box was used instead.
    pub fn n_unaligned(&self) -> u64 {
        self.n_unaligned.load(Ordering::Relaxed)
    }

    /// Changes the thresholds, also for the outputs of frames that are waiting. Nothing is compiled, and no frame is discarded.
    ///
    /// # Errors
    /// Returns `Config` if a threshold is invalid; then the earlier thresholds stay in use.
    pub fn set_thresholds(&self, thresholds: &Thresholds) -> Result<()> {
        let mut current = self.thresholds.lock().unwrap_or_else(PoisonError::into_inner);
        if *current == *thresholds {
            return Ok(());
        }
        let changed = ModelSpec::load(&self.options.with_thresholds(thresholds), &self.instance.info)?;
        // Only the decoders have thresholds.
        self.client.change(ModelSpec { heads: changed.heads, ..self.client.spec.clone() });
        self.wider.iter().try_for_each(|stage| stage.set_thresholds(thresholds))?;
        current.clone_from(thresholds);
        Ok(())
    }

    /// Returns the compiled model.
    pub fn model(&self) -> &CompiledModel {
        &self.instance.model
    }

    /// Returns the description of the model, checked against its ports.
    pub fn spec(&self) -> &ModelSpec {
        &self.client.spec
    }

    /// Returns the counters and step times of the stage's runs.
    pub fn stats(&self) -> StageStats {
        let mut stats = self.client.stats();
        self.wider.iter().for_each(|stage| stats.add(&stage.client.stats()));
        stats
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Remove the client first, because its jobs use the instance.
        self.instance.queue.remove_client(&self.client);
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stage({:?}, {} requests)", self.model(), self.n_requests())
    }
}

// Threads share stages, so this function fails to compile if `Stage` is not `Send` and `Sync`.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Stage>();
};
