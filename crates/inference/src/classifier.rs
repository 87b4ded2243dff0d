//! Frame and regions in, a classification per region and head of the model out.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::dispatch::{Client, Job, stopped};
use super::instance::{Instance, instance};
use super::output_check::OutputCheck;
use super::results::add_attributes;
use super::spec::describe;
use super::{ModelSpec, Permit, Scheduling, StageOptions, StageStats, Task};
use crate::frame::{Classification, Frame, ObjectId, Point, Similarity, Transform};
use crate::runtime::{CompiledModel, Error, ErrorKind, Result};
use crate::vision::Region;
use crate::vision::decode::{Output, Results};

/// A classifier put to work. Each region is a frame of its own, zero-copy; the regions of a frame run in one call where the model
/// and its device gain by that, else one by one, as many at once as there are requests.
///
/// Dropping it takes the regions along that it has not run; the last of those that share a model frees it.
pub struct Classifier {
    // Leaves before the instance is let go of.
    client: Client<RegionJob>,
    instance: Arc<Instance<RegionJob>>,
    spec: Arc<ModelSpec>,
    check: Arc<OutputCheck>,
    n_unaligned: AtomicU64,
}

/// What was said of each region of one frame, by the id given with the region. Regions whose answer was below the threshold
/// are left out.
#[derive(Debug, Default)]
pub struct Classified {
    /// The answers, in the order in which the runs ended.
    pub classifications: Vec<(ObjectId, Classification)>,
    /// The first error, and how many regions failed.
    pub failed: Option<(Error, usize)>,
}

/// Takes the classifications of one frame. Runs on a worker thread and must not block.
pub type Done = Box<dyn FnOnce(Classified) + Send>;

impl Classifier {
    /// Loads and compiles the model, or joins those who share it.
    ///
    /// # Errors
    /// If a file is missing or wrong, or the model is not a classifier.
    pub fn new(options: &StageOptions) -> Result<Self> {
        Self::of(instance::<RegionJob>(options, "classifier", true)?, options)
    }

    /// As [`Classifier::new`], for whole frames, each a region by itself: its runs do not go before those of detectors, and calls
    /// of several rows are as for these.
    ///
    /// # Errors
    /// As there.
    pub fn of_frames(options: &StageOptions) -> Result<Self> {
        Self::of(instance::<RegionJob>(options, "classifier of frames", false)?, options)
    }

    fn of(instance: Arc<Instance<RegionJob>>, options: &StageOptions) -> Result<Self> {
        let spec = Arc::new(describe(options, &instance.info)?);
        if spec.task != Task::Classification {
            let message = format!(
                "`{}` is described as {} by its description {}: a classifier needs `task = \"classification\"`",
                options.model.display(),
                spec.task,
                spec.source
            );
            return Err(Error::new(ErrorKind::Config, message));
        }
        let client = Client::new(&instance.queue, options.scheduling);
        Ok(Self { client, instance, spec, check: Arc::default(), n_unaligned: AtomicU64::new(0) })
    }

    /// Classifies regions of `frame` as requests become idle; never blocks. `done` runs once, when the last region is done,
    /// after the stage let go of the frame's memory; at once if there is no region.
    ///
    /// What of the frame becomes the picture of a region is [`ModelSpec::cut`]'s; it ends at the frame's edges. A
    /// region without a pixel in the frame counts as failed.
    pub fn submit(&self, frame: Frame, frame_number: u64, regions: impl IntoIterator<Item = impl Into<Region>>, done: Done) {
        self.submit_with(frame, frame_number, regions, Permit::new(Instant::now(), None), done);
    }

    /// As [`Classifier::submit`], for the regions that find the permit still there when a request is idle; the others fail.
    pub fn submit_with(
        &self,
        frame: Frame,
        frame_number: u64,
        regions: impl IntoIterator<Item = impl Into<Region>>,
        permit: Arc<Permit>,
        done: Done,
    ) {
        let mut results = Classified::default();
        let mut jobs = Vec::new();
        for region in regions {
            let region: Region = region.into();
            match self.picture(&frame, &region) {
                Ok(picture) => jobs.push((region.id, picture)),
                Err(error) => results.fail(error),
            }
        }
        // Only the regions hold the memory from here on.
        drop(frame);
        if jobs.is_empty() {
            return done(results);
        }
        let task = Arc::new(FrameTask { n_open: AtomicUsize::new(jobs.len()), results: Mutex::new((results, Some(done))) });
        let span = tracing::Span::current();
        self.client.submit(jobs.into_iter().map(|(id, picture)| self.job(id, picture, frame_number, &permit, &span, &task)));
    }

    /// The picture of a region: the part of the frame that is cut out, or the frame and the way to the keypoints in it.
    fn picture(&self, frame: &Frame, region: &Region) -> Result<Picture> {
        if let Some(alignment) = self.spec.cut.alignment(&region.keypoints, self.spec.input_size) {
            return Ok(Picture { frame: frame.clone(), corner: Point::default(), alignment: Some(alignment) });
        }
        self.n_unaligned.fetch_add(u64::from(!self.spec.cut.align.is_empty()), Ordering::Relaxed);
        match self.spec.cut.rect(region.rect, frame.size()) {
            Some(rect) => {
                let corner = Point { x: rect.x as f32, y: rect.y as f32 };
                Ok(Picture { frame: frame.region(rect)?, corner, alignment: None })
            }
            None => {
                let (rect, size) = (region.rect, frame.size());
                Err(Error::new(ErrorKind::Tensor, format!("region {rect:?}: expected at least a part of it inside a frame of {size}")))
            }
        }
    }

    fn job(
        &self,
        id: ObjectId,
        picture: Picture,
        frame_number: u64,
        permit: &Arc<Permit>,
        span: &tracing::Span,
        task: &Arc<FrameTask>,
    ) -> RegionJob {
        RegionJob {
            id,
            frame_number,
            permit: permit.clone(),
            span: span.clone(),
            spec: self.spec.clone(),
            check: self.check.clone(),
            picture: Some(picture.frame),
            corner: picture.corner,
            alignment: picture.alignment,
            said: Vec::new(),
            task: Some(task.clone()),
        }
    }

    /// Classifies one picture and waits for the answers, one for each head of the model whose answer is not below its threshold. It
    /// runs by itself, whatever the batch size.
    ///
    /// # Errors
    /// What the run says.
    pub fn classify(&self, frame: &Frame) -> Result<Vec<Classification>> {
        self.classify_with(frame, &Permit::new(Instant::now(), None))
    }

    fn classify_with(&self, frame: &Frame, permit: &Arc<Permit>) -> Result<Vec<Classification>> {
        let mut classified = wait_for(|done| {
            let done: Done = Box::new(move |classified| done(Ok(classified)));
            let picture = Picture { frame: frame.clone(), corner: Point::default(), alignment: None };
            let task = Arc::new(FrameTask { n_open: AtomicUsize::new(1), results: Mutex::new((Classified::default(), Some(done))) });
            self.client.submit_alone(self.job(ObjectId::next(), picture, 0, permit, &tracing::Span::current(), &task));
        })?;
        match classified.failed.take() {
            Some((error, _)) => Err(error),
            None => Ok(classified.classifications.into_iter().map(|(_, classification)| classification).collect()),
        }
    }

    /// How many regions had not the keypoints that the description aligns by: the pictures of their boxes were taken.
    pub fn n_unaligned(&self) -> u64 {
        self.n_unaligned.load(Ordering::Relaxed)
    }

    /// Drops the regions whose run has not begun: they fail.
    pub fn drop_pending(&self) {
        self.client.drop_pending();
    }

    /// Drops the regions of frames whose permit was taken back before their run began: they fail.
    pub fn drop_withdrawn(&self) {
        self.client.drop_withdrawn();
    }

    /// Which region is next.
    pub fn scheduling(&self) -> Scheduling {
        self.client.scheduling()
    }

    /// How many runs are possible at once, of all who share the model.
    pub fn n_requests(&self) -> usize {
        self.client.n_requests()
    }

    /// How many frames with one region have to wait for a run so that none need be smaller than was asked for.
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

    /// How long a region takes, without what it waits for others: runs on black frames, once for all who share the model.
    ///
    /// # Errors
    /// What a run says; the next one tries again.
    pub fn warm_up(&self) -> Result<Duration> {
        // A model may well say nothing of a black picture; only whether it runs, and how long, matters here.
        self.instance.warm_up(self.spec.input_size, |frame, permit| self.classify_with(frame, permit).map(drop))
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

/// Runs `start` with a closure that takes the answer, and waits for it.
pub(super) fn wait_for<T: Send + 'static>(start: impl FnOnce(Box<dyn FnOnce(Result<T>) + Send>)) -> Result<T> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    start(Box::new(move |answer| {
        // The receiver waits below until the answer, or the closure's end.
        let _delivered = sender.send(answer);
    }));
    receiver.recv().unwrap_or_else(|_| Err(stopped()))
}

/// The regions of one frame that are not done yet.
struct FrameTask {
    n_open: AtomicUsize,
    results: Mutex<(Classified, Option<Done>)>,
}

/// What a region's input is made of.
struct Picture {
    frame: Frame,
    /// Where it begins in the frame that was given.
    corner: Point,
    /// The way from the input to the frame, where keypoints are brought to their places.
    alignment: Option<Similarity>,
}

struct RegionJob {
    id: ObjectId,
    frame_number: u64,
    permit: Arc<Permit>,
    span: tracing::Span,
    spec: Arc<ModelSpec>,
    check: Arc<OutputCheck>,
    picture: Option<Frame>,
    /// Where the picture begins in the frame.
    corner: Point,
    alignment: Option<Similarity>,
    /// What the heads say, but for what is below their thresholds.
    said: Vec<Classification>,
    task: Option<Arc<FrameTask>>,
}

impl Job for RegionJob {
    type Scratch = Results;

    fn frame(&self) -> &Frame {
        self.picture.as_ref().expect("only deliver takes it")
    }

    fn alignment(&self) -> Option<Similarity> {
        self.alignment
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
        let (spec, alignment, said) = (&self.spec, self.alignment, &mut self.said);
        let in_region = frame_from_input.then_move(self.corner.x, self.corner.y);
        let place = |point: Point| match alignment {
            // Whole numbers are the centers of pixels there.
            Some(alignment) => {
                let (x, y) = alignment.apply(f64::from(point.x) - 0.5, f64::from(point.y) - 0.5);
                Point { x: x as f32 + 0.5, y: y as f32 + 0.5 }
            }
            None => in_region.apply_to_point(point),
        };
        self.check.decode(spec, outputs, results, |head, results| add_attributes(head, &spec.model_name, results, place, said))
    }

    fn deliver(mut self, ended: Result<()>) {
        let said = std::mem::take(&mut self.said);
        self.finish(ended.map(|()| said));
    }
}

impl RegionJob {
    fn finish(&mut self, result: Result<Vec<Classification>>) {
        // The picture goes first, so that the buffer under the frame is writable when the owner hears of the last result.
        self.picture = None;
        let Some(task) = self.task.take() else { return };
        let mut results = task.results.lock().unwrap();
        match result {
            Ok(said) => results.0.classifications.extend(said.into_iter().map(|classification| (self.id, classification))),
            Err(error) => results.0.fail(error),
        }
        drop(results);
        if task.n_open.fetch_sub(1, Ordering::AcqRel) == 1 {
            let (classified, done) = std::mem::take(&mut *task.results.lock().unwrap());
            if let Some(done) = done {
                done(classified);
            }
        }
    }
}

impl Drop for RegionJob {
    fn drop(&mut self) {
        self.finish(Err(stopped()));
    }
}

impl Classified {
    fn fail(&mut self, error: Error) {
        self.failed = match self.failed.take() {
            None => Some((error, 1)),
            Some((first, n_failed)) => Some((first, n_failed + 1)),
        };
    }
}

impl std::fmt::Debug for Classifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Classifier({:?}, {} requests)", self.model(), self.n_requests())
    }
}
