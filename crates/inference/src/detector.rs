//! Frame in, detections in frame space out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::dispatch::{Client, Job, stopped};
use super::instance::{Instance, instance};
use super::output_check::OutputCheck;
use super::results::add_results;
use super::spec::describe;
use super::{ModelSpec, Permit, Scheduling, StageOptions, StageStats, Task};
use crate::frame::{Classification, Detection, Frame, ObjectId, PixelRect, Point, Rect, Transform};
use crate::runtime::{CompiledModel, Error, ErrorKind, Result};
use crate::vision::decode::{Output, Results};

/// A detector put to work. Runs several frames at once; each result goes to the closure given with its frame.
///
/// Dropping it takes the frames along that it has not run; the last of those that share a model frees it.
pub struct Detector {
    // Leaves before the instance is let go of.
    client: Client<DetectJob>,
    instance: Arc<Instance<DetectJob>>,
    spec: Arc<ModelSpec>,
    check: Arc<OutputCheck>,
}

/// What was found in one frame.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    /// The detections, in the frame's space, best first.
    pub detections: Vec<Detection>,
    /// The outputs of a model that is described as `custom`, as they are; such a model has no detections.
    pub said: Vec<Classification>,
}

/// Takes what was found in one frame. Runs on a worker thread and must not block.
pub type Detected = Box<dyn FnOnce(Result<Found>) + Send>;

/// What was found in the regions of one frame.
#[derive(Debug, Default)]
pub struct DetectedInRegions {
    /// The detections, in the frame's space and with the region's object as their parent: those of the first region first, and
    /// of each region the best first, in whichever order the runs ended.
    pub detections: Vec<Detection>,
    /// The outputs of a model that is described as `custom`, by the object in whose region they were computed.
    pub said: Vec<(ObjectId, Classification)>,
    /// The first error, and how many regions failed.
    pub failed: Option<(Error, usize)>,
}

/// Takes what was found in the regions of one frame. Runs on a worker thread and must not block.
pub type DetectedInRegionsFn = Box<dyn FnOnce(DetectedInRegions) + Send>;

impl Detector {
    /// Loads and compiles the model, or joins those who share it.
    ///
    /// # Errors
    /// If a file is missing or wrong, or the model is not a detector.
    pub fn new(options: &StageOptions) -> Result<Self> {
        let instance = instance::<DetectJob>(options, "detector", false)?;
        let spec = Arc::new(describe(options, &instance.info)?);
        if spec.task != Task::Detection {
            let message = format!(
                "`{}` is described as {} by its description {}: a detector needs `task = \"detection\"`",
                options.model.display(),
                spec.task,
                spec.source
            );
            return Err(Error::new(ErrorKind::Config, message));
        }
        Ok(Self { client: Client::new(&instance.queue, options.scheduling), instance, spec, check: Arc::default() })
    }

    /// Detects on `frame` as soon as a request is idle; never blocks. `done` gets the detections, best first, or the error, and
    /// runs after the stage let go of the frame's memory.
    pub fn submit(&self, frame: Frame, frame_number: u64, done: Detected) {
        self.submit_with(frame, frame_number, Permit::new(Instant::now(), None), done);
    }

    /// As [`Detector::submit`], if the permit is still there when a request is idle; else `done` gets an error.
    pub fn submit_with(&self, frame: Frame, frame_number: u64, permit: Arc<Permit>, done: Detected) {
        self.client.submit([self.job(frame, frame_number, permit, done)]);
    }

    /// Detects in regions of `frame`, each the region of the object that is given with it, as requests become idle; never blocks.
    /// `done` runs once, when the last region is done, after the stage let go of the frame's memory; at once if there is no
    /// region.
    ///
    /// A region that does not lie in the frame counts as failed, and so does one that finds no permit when a request is idle.
    pub fn submit_regions(
        &self,
        frame: Frame,
        frame_number: u64,
        regions: &[(ObjectId, PixelRect)],
        permit: &Arc<Permit>,
        done: DetectedInRegionsFn,
    ) {
        if regions.is_empty() {
            drop(frame);
            return done(DetectedInRegions::default());
        }
        let task = Arc::new(RegionsTask {
            n_open: AtomicUsize::new(regions.len()),
            state: Mutex::new(RegionsState { found: vec![Vec::new(); regions.len()], said: Vec::new(), failed: None, done: Some(done) }),
        });
        let mut jobs = Vec::with_capacity(regions.len());
        for (region_idx, &(parent, rect)) in regions.iter().enumerate() {
            let task = task.clone();
            let detected: Detected = Box::new(move |found| task.finish(region_idx, parent, rect, found));
            match frame.region(rect) {
                Ok(region) => jobs.push(self.job(region, frame_number, permit.clone(), detected)),
                Err(error) => detected(Err(error.into())),
            }
        }
        // Only the regions hold the memory from here on.
        drop(frame);
        self.client.submit(jobs);
    }

    fn job(&self, frame: Frame, frame_number: u64, permit: Arc<Permit>, done: Detected) -> DetectJob {
        let (frame, span, spec, check) = (Some(frame), tracing::Span::current(), self.spec.clone(), self.check.clone());
        DetectJob { frame, frame_number, permit, span, spec, check, found: Found::default(), done: Some(done) }
    }

    /// As [`Detector::submit`], and waits for the detections. It runs by itself, whatever the batch size.
    ///
    /// # Errors
    /// What the run says.
    pub fn detect(&self, frame: &Frame) -> Result<Vec<Detection>> {
        Ok(self.detect_with(frame, &Permit::new(Instant::now(), None))?.detections)
    }

    fn detect_with(&self, frame: &Frame, permit: &Arc<Permit>) -> Result<Found> {
        super::classifier::wait_for(|done| self.client.submit_alone(self.job(frame.clone(), 0, permit.clone(), done)))
    }

    /// Drops the frames whose run has not begun: they fail.
    pub fn drop_pending(&self) {
        self.client.drop_pending();
    }

    /// Drops the frames whose permit was taken back before their run began: they fail.
    pub fn drop_withdrawn(&self) {
        self.client.drop_withdrawn();
    }

    /// Which frame is next.
    pub fn scheduling(&self) -> Scheduling {
        self.client.scheduling()
    }

    /// How many runs are possible at once, of all who share the model.
    pub fn n_requests(&self) -> usize {
        self.client.n_requests()
    }

    /// How many frames have to wait for a run so that none need be smaller than was asked for.
    pub fn n_frames_at_once(&self) -> usize {
        self.client.n_frames_at_once()
    }

    /// Whether a call waits for several frames, of whatever stream.
    pub fn gathers_frames(&self) -> bool {
        self.client.gathers_frames()
    }

    /// How many frames fewer would do now, for those that run wait for threads that others need too.
    pub fn n_frames_fewer(&self) -> usize {
        self.client.n_frames_fewer()
    }

    /// How long a frame takes, without what it waits for others: runs on black frames, once for all who share the model.
    ///
    /// # Errors
    /// What a run says; the next one tries again.
    pub fn warm_up(&self) -> Result<Duration> {
        self.instance.warm_up(self.spec.input_size, |frame, permit| self.detect_with(frame, permit).map(drop))
    }

    /// Whether a run, of whoever shares the model, has given a result.
    pub fn has_run(&self) -> bool {
        self.client.has_run()
    }

    /// What the first outputs of the model say against its description, once: for people. See the module `output_check`.
    pub fn take_warning(&self) -> Option<String> {
        self.check.take_warning()
    }

    /// The model.
    pub fn model(&self) -> &CompiledModel {
        &self.instance.model
    }

    /// What is known of the model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Runs and times so far.
    pub fn stats(&self) -> StageStats {
        self.client.stats()
    }
}

/// The regions of one frame that are not done yet.
struct RegionsTask {
    n_open: AtomicUsize,
    state: Mutex<RegionsState>,
}

#[derive(Default)]
struct RegionsState {
    /// By region.
    found: Vec<Vec<Detection>>,
    said: Vec<(ObjectId, Classification)>,
    /// The first error, and how many there were.
    failed: Option<(Error, usize)>,
    /// Whom to tell.
    done: Option<DetectedInRegionsFn>,
}

impl RegionsTask {
    fn finish(&self, region_idx: usize, parent: ObjectId, region: PixelRect, found: Result<Found>) {
        {
            let mut state = self.state.lock().unwrap();
            match found {
                Ok(Found { mut detections, said }) => {
                    // The region's space begins at its corner, and has the frame's scale.
                    let (left, top) = (region.x as f32, region.y as f32);
                    state.said.extend(said.into_iter().map(|mut said| {
                        said.outcome.map(|point| Point { x: point.x + left, y: point.y + top });
                        (parent, said)
                    }));
                    for detection in &mut detections {
                        detection.parent = Some(parent);
                        let Rect { x, y, .. } = detection.rect;
                        detection.move_to(Rect { x: x + left, y: y + top, ..detection.rect });
                    }
                    state.found[region_idx] = detections;
                }
                Err(error) => {
                    state.failed = match state.failed.take() {
                        None => Some((error, 1)),
                        Some((first, n_failed)) => Some((first, n_failed + 1)),
                    }
                }
            }
        }
        if self.n_open.fetch_sub(1, Ordering::AcqRel) == 1 {
            let RegionsState { found, said, failed, done } = std::mem::take(&mut *self.state.lock().unwrap());
            if let Some(done) = done {
                done(DetectedInRegions { detections: found.into_iter().flatten().collect(), said, failed });
            }
        }
    }
}

struct DetectJob {
    frame: Option<Frame>,
    frame_number: u64,
    permit: Arc<Permit>,
    span: tracing::Span,
    spec: Arc<ModelSpec>,
    check: Arc<OutputCheck>,
    found: Found,
    done: Option<Detected>,
}

impl Job for DetectJob {
    type Scratch = Results;

    fn frame(&self) -> &Frame {
        self.frame.as_ref().expect("only deliver takes it")
    }

    fn frame_number(&self) -> u64 {
        self.frame_number
    }

    fn permit(&self) -> &Permit {
        &self.permit
    }

    fn span(&self) -> &tracing::Span {
        &self.span
    }

    fn spec(&self) -> &Arc<ModelSpec> {
        &self.spec
    }

    fn decode(&mut self, outputs: &[Output<'_>], frame_from_input: &Transform, results: &mut Results) -> Result<()> {
        let (spec, Found { detections, said }) = (&self.spec, &mut self.found);
        self.check.decode(spec, outputs, results, |head, results| {
            add_results(head, &spec.model_name, results, frame_from_input, detections, said);
        })
    }

    fn deliver(mut self, ended: Result<()>) {
        let found = std::mem::take(&mut self.found);
        self.finish(ended.map(|()| found));
    }
}

impl DetectJob {
    fn finish(&mut self, result: Result<Found>) {
        // The frame goes first, so that the buffer under it is writable when the owner hears of the result.
        self.frame = None;
        if let Some(done) = self.done.take() {
            done(result);
        }
    }
}

impl Drop for DetectJob {
    fn drop(&mut self) {
        self.finish(Err(stopped()));
    }
}

impl std::fmt::Debug for Detector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Detector({:?}, {} requests)", self.model(), self.n_requests())
    }
}

// Shared by elements of several threads.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Arc<Detector>>();
};
