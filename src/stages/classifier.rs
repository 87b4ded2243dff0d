//! Frame and regions in, one classification per region out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::dispatch::{Decode, Dispatcher, Job, stopped};
use super::spec::load_model;
use super::{ModelSpec, Permit, Scheduling, StageOptions, StageStats, Task};
use crate::frame::{Classification, Frame, ObjectId, Outcome, PixelRect};
use crate::runtime::{CompiledModel, Error, ErrorKind, Result};
use crate::vision::decode::{ClassDecoder, ClassOutcome, Output};

/// A classifier put to work. Each region is a frame of its own, zero-copy, and one run; the regions of a frame, and of several
/// frames, run at once.
pub struct Classifier {
    dispatcher: Dispatcher<RegionJob>,
    model: CompiledModel,
    spec: ModelSpec,
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
    /// Loads and compiles the model.
    ///
    /// # Errors
    /// If a file is missing or wrong, or the model is not a classifier.
    pub fn new(options: &StageOptions) -> Result<Self> {
        let (model, spec) = load_model(options)?;
        let Task::Classification { decoder, output_idx, threshold } = spec.task.clone() else {
            let message = format!(
                "`{}` is described as {} in `{}`: a classifier needs `task = \"classification\"`",
                options.model.display(),
                spec.task_name(),
                spec.description.display()
            );
            return Err(Error::new(ErrorKind::Config, message));
        };
        let n_requests = model.optimal_number_of_requests();
        let dispatcher = Dispatcher::new(&model, n_requests, options.scheduling, spec.input_shape, &spec.preprocess, || {
            decode(decoder.clone(), output_idx, threshold, &spec)
        })?;
        Ok(Self { dispatcher, model, spec })
    }

    /// Classifies regions of `frame` as requests become idle; never blocks. `done` runs once, when the last region is done,
    /// after the stage let go of the frame's memory; at once if there is no region.
    ///
    /// A region that does not lie in the frame counts as failed.
    pub fn submit(&self, frame: Frame, frame_number: u64, regions: impl IntoIterator<Item = (ObjectId, PixelRect)>, done: Done) {
        self.submit_with(frame, frame_number, regions, Permit::new(Instant::now(), None), done);
    }

    /// As [`Classifier::submit`], for the regions that find the permit still there when a request is idle; the others fail.
    pub fn submit_with(
        &self,
        frame: Frame,
        frame_number: u64,
        regions: impl IntoIterator<Item = (ObjectId, PixelRect)>,
        permit: Arc<Permit>,
        done: Done,
    ) {
        let mut results = Classified::default();
        let mut jobs = Vec::new();
        for (id, rect) in regions {
            match frame.region(rect) {
                Ok(region) => jobs.push((id, region)),
                Err(error) => results.fail(error.into()),
            }
        }
        // Only the regions hold the memory from here on.
        drop(frame);
        if jobs.is_empty() {
            return done(results);
        }
        let task = Arc::new(FrameTask { n_open: AtomicUsize::new(jobs.len()), results: Mutex::new((results, Some(done))) });
        for (id, region) in jobs {
            self.dispatcher.submit(RegionJob {
                id,
                frame_number,
                permit: permit.clone(),
                span: tracing::Span::current(),
                region: Some(region),
                task: Some(task.clone()),
            });
        }
    }

    /// Classifies one picture and waits for the answer; `None` if it was below the threshold.
    ///
    /// # Errors
    /// What the run says.
    pub fn classify(&self, frame: &Frame) -> Result<Option<Classification>> {
        let whole = [(ObjectId::next(), PixelRect::whole(frame.size()))];
        let mut classified = wait_for(|done| self.submit(frame.clone(), 0, whole, Box::new(move |classified| done(Ok(classified)))))?;
        match classified.failed.take() {
            Some((error, _)) => Err(error),
            None => Ok(classified.classifications.pop().map(|(_, classification)| classification)),
        }
    }

    /// Drops the regions whose run has not begun: they fail.
    pub fn drop_pending(&self) {
        self.dispatcher.drop_pending();
    }

    /// Drops the regions of frames whose permit was taken back before their run began: they fail.
    pub fn drop_withdrawn(&self) {
        self.dispatcher.drop_withdrawn();
    }

    /// Which region is next.
    pub fn scheduling(&self) -> Scheduling {
        self.dispatcher.scheduling()
    }

    /// How many runs are possible at once.
    pub fn n_requests(&self) -> usize {
        self.dispatcher.n_requests()
    }

    /// The model.
    pub fn model(&self) -> &CompiledModel {
        &self.model
    }

    /// What is known of the model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Runs and times so far.
    pub fn stats(&self) -> StageStats {
        self.dispatcher.stats()
    }
}

fn decode(decoder: ClassDecoder, output_idx: usize, threshold: f32, spec: &ModelSpec) -> Decode<Option<Classification>> {
    let (labels, name, model) = (spec.labels.clone(), spec.name.clone(), spec.model_name.clone());
    Box::new(move |context, _frame_from_input| {
        let (shape, data) = context.output::<f32>(output_idx)?;
        let output = Output { name: context.output_port(output_idx).name(), shape: &shape, data };
        let outcome = match decoder.decode(&output)? {
            ClassOutcome::Label { score, .. } if score < threshold => return Ok(None),
            ClassOutcome::Label { class_id, score } => {
                Outcome::Label { label_id: class_id, label: labels.get(class_id).cloned(), confidence: score }
            }
            ClassOutcome::Value(value) => Outcome::Value(value),
        };
        Ok(Some(Classification { name: name.clone(), model: model.clone(), outcome }))
    })
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

struct RegionJob {
    id: ObjectId,
    frame_number: u64,
    permit: Arc<Permit>,
    span: tracing::Span,
    region: Option<Frame>,
    task: Option<Arc<FrameTask>>,
}

impl Job for RegionJob {
    type Output = Option<Classification>;

    fn frame(&self) -> &Frame {
        self.region.as_ref().expect("only deliver takes it")
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

    fn deliver(mut self, result: Result<Option<Classification>>) {
        self.finish(result);
    }
}

impl RegionJob {
    fn finish(&mut self, result: Result<Option<Classification>>) {
        // The region goes first, so that the buffer under the frame is writable when the owner hears of the last result.
        self.region = None;
        let Some(task) = self.task.take() else { return };
        let mut results = task.results.lock().unwrap();
        match result {
            Ok(Some(classification)) => results.0.classifications.push((self.id, classification)),
            Ok(None) => {}
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
        write!(f, "Classifier({:?}, {} requests)", self.model, self.n_requests())
    }
}
