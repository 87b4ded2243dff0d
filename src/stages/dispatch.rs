//! Jobs on a bounded set of requests: whoever is idle takes the oldest job; a request's callback delivers the result and starts
//! the next job on the same request, so no thread ever waits for another.
//!
//! A job waits at most as long as those before it; their number is bounded by the caller (the window of frames in flight). A
//! job that is dropped without having run tells its owner so: nobody waits for a result that does not come.
//!
//! Lock order: `Queue::state`, then a `Slot`'s; neither is held while a job is delivered, a request is started, or a picture or
//! an output is worked on: whatever panics there is an error of that one job.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::Permit;
use crate::frame::{Frame, Transform};
use crate::runtime::{CompiledModel, Error, ErrorKind, FillInput, InferRequest, Port, Result, RunContext};
use crate::tensor::{BytesMut, Shape};
use crate::vision::{Preprocess, Scratch};

/// One frame or region for one run of the model.
pub(super) trait Job: Send + 'static {
    /// What the run finds.
    type Output: Send + 'static;

    /// The picture.
    fn frame(&self) -> &Frame;

    /// The number of the frame in its stream, for traces.
    fn frame_number(&self) -> u64;

    /// Whether it may begin.
    fn permit(&self) -> &Permit;

    /// The frame's span, in which its runs are started; for traces.
    fn span(&self) -> &tracing::Span;

    /// Takes the result. The job, and its share of the frame's memory, are gone before this returns.
    fn deliver(self, result: Result<Self::Output>);
}

/// Reads the outputs of a run.
pub(super) type Decode<T> = Box<dyn FnMut(&RunContext<'_>, &Transform) -> Result<T> + Send>;

/// Which of the jobs that wait is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheduling {
    /// The one that came to the stage first.
    #[default]
    Throughput,
    /// The one whose frame is oldest.
    Latency,
}

/// How often a stage ran, and how long its steps took in all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StageStats {
    /// The device that runs the model; the one that was chosen, where a device chooses among others.
    pub device: String,
    /// Runs of the model.
    pub n_runs: u64,
    /// Runs that failed.
    pub n_failed: u64,
    /// The steps of a run, in order.
    pub steps: Vec<StepStats>,
}

/// Time spent in one step, over all runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepStats {
    /// The step: `fill`, the device's own, `decode`.
    pub name: Arc<str>,
    /// The sum.
    pub total: Duration,
}

/// The requests of one stage and the jobs that wait for them.
pub(super) struct Dispatcher<J: Job> {
    queue: Arc<Queue<J>>,
    patience: Duration,
}

struct Queue<J: Job> {
    state: Mutex<State<J>>,
    workers: Vec<Worker<J>>,
    scheduling: Scheduling,
    stats: Mutex<StageStats>,
}

struct State<J> {
    pending: VecDeque<J>,
    idle: Vec<usize>,
}

struct Worker<J: Job> {
    request: InferRequest,
    slot: Arc<Mutex<Slot<J>>>,
}

/// What passes between the steps of a run.
struct Slot<J: Job> {
    job: Option<J>,
    frame_from_input: Transform,
    found: Option<J::Output>,
}

impl<J: Job> Dispatcher<J> {
    /// `n_requests` requests whose input is filled with `preprocess` and whose outputs are read by a `decode` each.
    pub(super) fn new(
        model: &CompiledModel,
        n_requests: usize,
        scheduling: Scheduling,
        input_shape: Shape,
        preprocess: &Preprocess,
        mut decode: impl FnMut() -> Decode<J::Output>,
    ) -> Result<Self> {
        let mut workers = Vec::with_capacity(n_requests);
        for _ in 0..n_requests {
            let request = model.create_infer_request()?;
            let slot = Arc::new(Mutex::new(Slot { job: None, frame_from_input: Transform::IDENTITY, found: None }));
            let fill = JobInput { slot: slot.clone(), shape: input_shape, preprocess: preprocess.clone(), scratch: Scratch::default() };
            request.set_input((), fill)?;
            let (of_step, mut decode) = (slot.clone(), decode());
            request.append_step("decode", move |context| {
                let frame_from_input = of_step.lock().unwrap().frame_from_input;
                let found = decode(context, &frame_from_input)?;
                of_step.lock().unwrap().found = Some(found);
                Ok(())
            })?;
            workers.push(Worker { request, slot });
        }
        let state = Mutex::new(State { pending: VecDeque::new(), idle: (0..n_requests).rev().collect() });
        let queue = Arc::new(Queue {
            state,
            workers,
            scheduling,
            stats: Mutex::new(StageStats { device: model.device().to_owned(), ..StageStats::default() }),
        });
        for (worker_idx, worker) in queue.workers.iter().enumerate() {
            let queue: Weak<Queue<J>> = Arc::downgrade(&queue);
            worker.request.set_callback(move |_request, result| {
                if let Some(queue) = queue.upgrade() {
                    queue.finish(worker_idx, result);
                }
            })?;
        }
        Ok(Self { queue, patience: model.properties().config.drop_patience })
    }

    /// Number of requests.
    pub(super) fn n_requests(&self) -> usize {
        self.queue.workers.len()
    }

    /// Runs the job as soon as a request is idle. Never blocks.
    pub(super) fn submit(&self, job: J) {
        let worker_idx = {
            let mut state = self.queue.state.lock().unwrap();
            let place = match self.queue.scheduling {
                Scheduling::Throughput => state.pending.len(),
                Scheduling::Latency => {
                    let came = job.permit().arrived();
                    state.pending.iter().rposition(|other| other.permit().arrived() <= came).map_or(0, |place| place + 1)
                }
            };
            state.pending.insert(place, job);
            state.idle.pop()
        };
        if let Some(worker_idx) = worker_idx {
            self.queue.start_next(worker_idx);
        }
    }

    /// Drops the jobs that have not begun; their owners are told.
    pub(super) fn drop_pending(&self) {
        let pending = std::mem::take(&mut self.queue.state.lock().unwrap().pending);
        pending.into_iter().for_each(|job| deliver(job, Err(stopped())));
    }

    /// Drops the jobs whose permit was taken back; their owners are told.
    pub(super) fn drop_withdrawn(&self) {
        let mut withdrawn = Vec::new();
        let mut state = self.queue.state.lock().unwrap();
        // From the end, so that those that stay keep their order.
        for place in (0..state.pending.len()).rev() {
            if state.pending[place].permit().withdrawal().is_some() {
                withdrawn.extend(state.pending.remove(place));
            }
        }
        drop(state);
        withdrawn.into_iter().rev().for_each(|job| deliver(job, Err(stopped())));
    }

    pub(super) fn scheduling(&self) -> Scheduling {
        self.queue.scheduling
    }

    pub(super) fn stats(&self) -> StageStats {
        self.queue.stats.lock().unwrap().clone()
    }
}

impl<J: Job> Queue<J> {
    /// Gives the worker, which is idle and in nobody else's hands, the oldest job; or puts it among the idle ones.
    fn start_next(&self, worker_idx: usize) {
        let worker = &self.workers[worker_idx];
        loop {
            let job = {
                let mut state = self.state.lock().unwrap();
                match state.pending.pop_front() {
                    Some(job) => job,
                    None => return state.idle.push(worker_idx),
                }
            };
            if !job.permit().begin() {
                deliver(job, Err(stopped()));
                continue;
            }
            let span = job.span().clone();
            worker.slot.lock().unwrap().job = Some(job);
            let _entered = span.entered();
            let Err(error) = worker.start() else { return };
            let job = worker.slot.lock().unwrap().job.take();
            if let Some(job) = job {
                deliver(job, Err(error));
            }
        }
    }

    fn finish(&self, worker_idx: usize, result: Result<()>) {
        let worker = &self.workers[worker_idx];
        self.count(&worker.request, result.is_err());
        let (job, found) = {
            let mut slot = worker.slot.lock().unwrap();
            (slot.job.take(), slot.found.take())
        };
        if let Some(job) = job {
            deliver(job, result.and_then(|()| found.ok_or_else(|| Error::new(ErrorKind::Device, "the run ended without a result"))));
        }
        self.start_next(worker_idx);
    }

    fn count(&self, request: &InferRequest, failed: bool) {
        let mut stats = self.stats.lock().unwrap();
        stats.n_runs += 1;
        stats.n_failed += u64::from(failed);
        let mut step_idx = 0;
        let counted = request.visit_step_times(|name, duration| {
            match stats.steps.get_mut(step_idx) {
                Some(step) => step.total += duration,
                None => stats.steps.push(StepStats { name: name.clone(), total: duration }),
            }
            step_idx += 1;
        });
        debug_assert!(counted.is_ok(), "the request is idle in its own callback");
    }
}

impl<J: Job> Worker<J> {
    fn start(&self) -> Result<()> {
        match self.request.start_async(()) {
            Err(error) if error.kind() == ErrorKind::Busy => {
                // The callback that put the worker among the idle ones has yet to return: a matter of some instructions, and
                // it needs nothing of ours any more. How its run ended has been told.
                let _ended = self.request.wait();
                self.request.start_async(())
            }
            started => started,
        }
    }
}

/// Tells the owner. A panic of the owner's closure must not cost the stage the request, or the other owners their results.
fn deliver<J: Job>(job: J, result: Result<J::Output>) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.deliver(result))).is_err() {
        tracing::error!("the closure that takes a result panicked");
    }
}

impl<J: Job> Drop for Dispatcher<J> {
    /// Ends the runs and waits for their callbacks, so that it is this thread that frees the requests and, with the last of them, the
    /// model: one that a worker freed a moment later might meet the end of the process.
    fn drop(&mut self) {
        self.drop_pending();
        self.queue.workers.iter().for_each(|worker| worker.request.cancel());
        for worker in &self.queue.workers {
            // Inside a callback of its own this is refused at once; the request stops when its last handle goes.
            let _over = worker.request.wait_for(self.patience);
        }
    }
}

/// The error of a job that never ran.
pub(super) fn stopped() -> Error {
    Error::new(ErrorKind::Stopped, "the stage was stopped before it got to this frame")
}

/// Fills the input from the job in the slot.
struct JobInput<J: Job> {
    slot: Arc<Mutex<Slot<J>>>,
    shape: Shape,
    preprocess: Preprocess,
    scratch: Scratch,
}

impl<J: Job> FillInput for JobInput<J> {
    fn shape(&mut self, _port: &Port) -> Result<Shape> {
        Ok(self.shape)
    }

    fn frame(&mut self) -> Option<u64> {
        self.slot.lock().unwrap().job.as_ref().map(Job::frame_number)
    }

    fn fill(&mut self, input: &mut BytesMut) -> Result<()> {
        let frame = {
            let slot = self.slot.lock().unwrap();
            let Some(job) = &slot.job else { return Err(stopped()) };
            job.frame().clone()
        };
        let frame_from_input = self.preprocess.fill(&frame, input, 0, &mut self.scratch)?;
        self.slot.lock().unwrap().frame_from_input = frame_from_input;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;
    use crate::devices;
    use crate::frame::{PixelFormat, Size};
    use crate::runtime::Config;

    struct Picture(Frame, mpsc::Sender<Result<usize>>, Arc<Permit>);

    impl Picture {
        fn new(frame: &Frame, sender: &mpsc::Sender<Result<usize>>, permit: Arc<Permit>) -> Self {
            Self(frame.clone(), sender.clone(), permit)
        }
    }

    impl Job for Picture {
        type Output = usize;

        fn frame(&self) -> &Frame {
            &self.0
        }

        fn frame_number(&self) -> u64 {
            0
        }

        fn span(&self) -> &tracing::Span {
            static NONE: std::sync::LazyLock<tracing::Span> = std::sync::LazyLock::new(tracing::Span::none);
            &NONE
        }

        fn permit(&self) -> &Permit {
            &self.2
        }

        fn deliver(self, result: Result<usize>) {
            self.1.send(result).unwrap();
        }
    }

    /// The owner of the job may be the one who drops the stage: as soon as it has the result, while the worker is on its way out.
    #[test]
    fn the_model_is_freed_when_the_drop_returns() {
        let core = devices::core();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/color.onnx");
        let model = core.compile_model(&core.read_model(path).unwrap(), "CPU", &Config::default()).unwrap();
        let frame = Frame::from_packed(PixelFormat::Gray8, Size::new(2, 2), &[0; 4]).unwrap();
        for _ in 0..200 {
            let watched = Arc::new(());
            let of_decoder = &watched;
            let decode = || -> Decode<usize> {
                let kept = of_decoder.clone();
                Box::new(move |context, _| {
                    let _kept = &kept;
                    Ok(context.n_outputs())
                })
            };
            let shape = Shape::from([1, 3, 8, 8]);
            let dispatcher = Dispatcher::<Picture>::new(&model, 2, Scheduling::Throughput, shape, &Preprocess::default(), decode).unwrap();
            let (sender, receiver) = mpsc::channel();
            (0..2).for_each(|_| dispatcher.submit(Picture::new(&frame, &sender, Permit::new(Instant::now(), None))));
            (0..2).for_each(|_| drop(receiver.recv_timeout(Duration::from_secs(60)).unwrap()));
            drop(dispatcher);
            assert_eq!(Arc::strong_count(&watched), 1, "a request is still there");
        }
    }

    #[test]
    fn a_panic_in_the_decoder_is_the_error_of_that_job_alone() {
        let core = devices::core();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/color.onnx");
        let model = core.compile_model(&core.read_model(path).unwrap(), "CPU", &Config::default()).unwrap();
        let preprocess = Preprocess::default();
        let dispatcher = Dispatcher::<Picture>::new(&model, 1, Scheduling::Throughput, Shape::from([1, 3, 8, 8]), &preprocess, || {
            Box::new(|context, _| if context.run() == 2 { panic!("in the decoder") } else { Ok(context.n_outputs()) })
        })
        .unwrap();
        let (sender, receiver) = mpsc::channel();
        let frame = Frame::from_packed(PixelFormat::Gray8, Size::new(2, 2), &[0; 4]).unwrap();
        (0..3).for_each(|_| dispatcher.submit(Picture::new(&frame, &sender, Permit::new(Instant::now(), None))));
        let results: Vec<_> = (0..3).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
        assert_eq!(results[1].as_ref().unwrap_err().kind(), ErrorKind::Panic);
        assert!(matches!((&results[0], &results[2]), (Ok(1), Ok(1))), "{results:?}");
    }
}
