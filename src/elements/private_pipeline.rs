//! A pipeline inside an element, which the element feeds with frames. Its errors stay inside: the pipeline of the element never sees them.
//!
//! `appsrc` does not wake a blocked push when an element downstream fails. So this module counts the waiting frames itself.

use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gst::buffer::BufferMetaForeachAction;
use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;
use gstreamer_video as gst_video;

use super::video_file;

/// Time step after the previous frame, for a frame whose timestamp is not later than that of the previous frame.
pub(super) const MIN_STEP: gst::ClockTime = gst::ClockTime::from_mseconds(1);

/// Interval at which a blocked push checks whether frames move. If the process is stopped for some time, this counts as one interval.
const TICK: Duration = Duration::from_millis(100);

/// Why a private pipeline has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) text: String,
    pub(super) cause: Cause,
}

/// Causes of failures that callers handle differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The reader of a pipe has closed it.
    Closed,
    /// The file was deleted.
    Deleted,
    /// No frame left the pipeline for some time. Its stop may block: see [`Stopper`].
    Stalled,
    Other,
}

/// A running pipeline. See the module.
pub(super) struct PrivatePipeline {
    pub(super) pipeline: gst::Pipeline,
    pub(super) source: gst_app::AppSrc,
    flow: Arc<Flow>,
    /// Maximum number of frames that wait. At this number, [`PrivatePipeline::push`] blocks.
    max_waiting: u64,
    /// Maximum time for which a blocked [`PrivatePipeline::push`] waits without a frame that leaves the source; `None`: no limit.
    max_stall: Option<Duration>,
}

#[derive(Default)]
struct Flow {
    state: Mutex<State>,
    /// Notified when a frame leaves the source, and at the end.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    n_waiting: u64,
    /// Number of frames that have left the source.
    n_left: u64,
    /// The first error.
    failure: Option<Failure>,
    has_ended: bool,
    is_stopped: bool,
}

impl Flow {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

impl PrivatePipeline {
    /// Starts a pipeline whose source is an `appsrc` with the name `source`, for frames with these caps.
    ///
    /// # Errors
    /// Returns a description if an element does not start.
    pub(super) fn start(pipeline: gst::Pipeline, caps: &gst::Caps, max_waiting: u64, max_stall: Option<Duration>) -> Result<Self, Failure> {
        let source = pipeline.by_name("source").and_then(|source| source.downcast::<gst_app::AppSrc>().ok());
        let source = source.expect("the caller has given the source this name");
        source.set_caps(Some(caps));
        source.set_format(gst::Format::Time);
        source.set_max_bytes(0);
        let flow = Arc::new(Flow::default());
        let of_probe = flow.clone();
        source.static_pad("src").expect("a source has this pad").add_probe(gst::PadProbeType::BUFFER, move |_, _| {
            of_probe.change(|state| (state.n_waiting, state.n_left) = (state.n_waiting.saturating_sub(1), state.n_left + 1));
            gst::PadProbeReturn::Ok
        });
        let of_bus = flow.clone();
        pipeline.bus().expect("a pipeline has a bus").set_sync_handler(move |_, message| {
            match message.view() {
                gst::MessageView::Error(error) => {
                    of_bus.change(|state| state.failure = state.failure.take().or_else(|| Some(Failure::of(error))));
                }
                gst::MessageView::Eos(_) => of_bus.change(|state| state.has_ended = true),
                _ => {}
            }
            gst::BusSyncReply::Drop
        });
        let private = Self { pipeline, source, flow, max_waiting, max_stall };
        match private.pipeline.set_state(gst::State::Playing) {
            Ok(_) => Ok(private),
            Err(_) => Err(private.failure().unwrap_or_else(|| Failure::new("an element does not start"))),
        }
    }

    /// The error with which the pipeline has failed.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.flow.lock().failure.clone()
    }

    /// Whether all frames were completed after [`PrivatePipeline::end`]. A pipeline that has failed may reach EOS, too.
    pub(super) fn has_ended(&self) -> bool {
        let state = self.flow.lock();
        state.has_ended && state.failure.is_none()
    }

    /// Adds a frame. Blocks while too many frames wait. Has no effect if the pipeline was stopped.
    ///
    /// # Errors
    /// Returns the error if the pipeline has failed, or no frame has left it for too long.
    pub(super) fn push(&self, buffer: gst::Buffer) -> Result<(), Failure> {
        let mut state = self.flow.lock();
        let (mut n_left, mut n_ticks) = (state.n_left, 0);
        while state.n_waiting >= self.max_waiting && state.failure.is_none() && !state.is_stopped {
            let (next, timeout) = self.flow.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner);
            state = next;
            n_ticks = if state.n_left == n_left { n_ticks + u32::from(timeout.timed_out()) } else { 0 };
            n_left = state.n_left;
            if let Some(max) = self.max_stall.filter(|max| TICK * n_ticks >= *max) {
                let text = format!("the disk or the reader did not accept video for {} s", max.as_secs());
                return Err(Failure { text, cause: Cause::Stalled });
            }
        }
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        state.n_waiting += 1;
        drop(state);
        match self.source.push_buffer(buffer) {
            // `Flushing`: the element stops. `Eos`: an error follows, or has arrived.
            Ok(_) | Err(gst::FlowError::Flushing | gst::FlowError::Eos) => self.failure().map_or(Ok(()), Err),
            Err(flow) => Err(self.failure().unwrap_or_else(|| Failure::new(format!("a frame is refused ({flow})")))),
        }
    }

    /// Completes all frames without waiting for them.
    pub(super) fn end(&self) {
        // Ignore an error: the caller asks for it.
        let _ended = self.source.end_of_stream();
    }

    /// Waits for the end that [`PrivatePipeline::end`] began. Returns early if the pipeline was stopped.
    ///
    /// # Errors
    /// Returns the error if the pipeline has failed, or does not end in time.
    pub(super) fn wait_for_end(&self, limit: Duration) -> Result<(), Failure> {
        let until = Instant::now() + limit;
        let mut state = self.flow.lock();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.has_ended || state.is_stopped {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!("the disk did not accept the video within {} s", limit.as_secs());
                return Err(Failure { text, cause: Cause::Stalled });
            }
            state = self.flow.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Stops without completing the frames. Ends a blocked [`PrivatePipeline::push`].
    pub(super) fn stop(&self) {
        self.flow.change(|state| state.is_stopped = true);
        // Ignore the result, because nothing can be done if the pipeline does not stop.
        let _stopped = self.pipeline.set_state(gst::State::Null);
    }
}

impl Drop for PrivatePipeline {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Failure {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), cause: Cause::Other }
    }

    fn of(error: &gst::message::Error) -> Self {
        let details = error.details().filter(|details| details.name() == video_file::WRITE_FAILED);
        let has = |field: &str| details.is_some_and(|details| details.get::<bool>(field).unwrap_or(false));
        let cause = match (has("closed"), has("deleted")) {
            (true, _) => Cause::Closed,
            (_, true) => Cause::Deleted,
            _ => Cause::Other,
        };
        Self { text: error.error().message().to_owned(), cause }
    }
}

/// Stops stalled pipelines on a separate thread, because the stop blocks as long as the disk does.
#[derive(Default)]
pub(super) struct Stopper(Option<JoinHandle<()>>);

impl Stopper {
    /// Runs `stop` on a thread. The caller has checked that the stopper is not busy.
    pub(super) fn run(&mut self, stop: impl FnOnce() + Send + 'static) {
        self.0 = std::thread::Builder::new().name("roiflow-stalled".to_owned()).spawn(stop).ok();
    }

    /// Whether the last stop has not ended yet.
    pub(super) fn is_busy(&self) -> bool {
        self.0.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

/// Returns a frame for an encoder: the same memory, with this timestamp, without results.
pub(super) fn frame_at(buffer: &gst::BufferRef, time: gst::ClockTime) -> gst::Buffer {
    let mut copy = buffer.copy();
    let own = copy.get_mut().expect("a new buffer has one owner");
    own.set_pts(time);
    own.set_dts(gst::ClockTime::NONE);
    own.foreach_meta_mut(|mut meta| {
        let is_layout = meta.downcast_ref::<gst_video::VideoMeta>().is_some();
        ControlFlow::Continue(if is_layout { BufferMetaForeachAction::Keep } else { BufferMetaForeachAction::Remove })
    });
    copy
}

/// Timestamps that increase, as encoders and muxers need them. After a process was not running for some time, and when a file begins
/// again, several frames have the same timestamp.
#[derive(Debug, Default)]
pub(super) struct Increasing(Option<gst::ClockTime>);

impl Increasing {
    /// The timestamp of the last frame.
    pub(super) fn last(&self) -> Option<gst::ClockTime> {
        self.0
    }

    /// Returns the timestamp of the next frame: `time`, but later than that of the previous frame.
    pub(super) fn next(&mut self, time: Option<gst::ClockTime>) -> gst::ClockTime {
        let after_last = self.0.map(|last| last + MIN_STEP);
        let next = match (time, self.0) {
            (Some(time), Some(last)) if time <= last => last + MIN_STEP,
            (Some(time), _) => time,
            (None, _) => after_last.unwrap_or(gst::ClockTime::ZERO),
        };
        self.0 = Some(next);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(line: &str, max_waiting: u64, max_stall: Option<Duration>) -> PrivatePipeline {
        gst::init().unwrap();
        let pipeline = gst::parse::launch(line).unwrap().downcast::<gst::Pipeline>().unwrap();
        PrivatePipeline::start(pipeline, &gst::Caps::new_empty_simple("application/x-test"), max_waiting, max_stall).unwrap()
    }

    #[test]
    fn failure_wakes_a_blocked_push() {
        let private = start("appsrc name=source ! identity error-after=2 ! fakesink sync=false", 1, None);
        let failure = (0..100).find_map(|_| private.push(gst::Buffer::with_size(10).unwrap()).err()).expect("an error");
        assert_eq!(private.failure(), Some(failure.clone()));
        assert!(failure.cause == Cause::Other && !failure.text.is_empty());
        private.end();
        assert_eq!(private.wait_for_end(Duration::from_secs(60)), Err(failure));
    }

    #[test]
    fn end_of_a_failed_pipeline_completes_no_frames() {
        let private = start("appsrc name=source ! fakesink sync=false", 1, None);
        private.end();
        assert_eq!((private.wait_for_end(Duration::from_secs(60)), private.has_ended()), (Ok(()), true));
        private.flow.change(|state| state.failure = Some(Failure::new("full")));
        assert!(!private.has_ended());
    }

    /// A pad that blocks stands for a disk that hangs.
    #[test]
    fn pipeline_whose_frames_do_not_move_fails_in_time() {
        let private = start("appsrc name=source ! identity name=disk ! fakesink sync=false", 2, Some(TICK * 2));
        let pad = private.pipeline.by_name("disk").unwrap().static_pad("sink").unwrap();
        let block = pad.add_probe(gst::PadProbeType::BLOCK | gst::PadProbeType::BUFFER, |_, _| gst::PadProbeReturn::Ok).unwrap();
        let push = || private.push(gst::Buffer::with_size(10).unwrap());
        let failure = (0..5).find_map(|_| push().err()).expect("an error");
        assert_eq!((failure.cause, private.failure()), (Cause::Stalled, None));
        pad.remove_probe(block);
        (0..100).for_each(|_| push().unwrap());
    }

    #[test]
    fn stopper_is_busy_as_long_as_the_stop_blocks() {
        let mut stopper = Stopper::default();
        assert!(!stopper.is_busy());
        let (gate, opened) = std::sync::mpsc::channel::<()>();
        stopper.run(move || opened.recv().unwrap());
        assert!(stopper.is_busy());
        gate.send(()).unwrap();
        stopper.0.take().unwrap().join().unwrap();
        assert!(!stopper.is_busy());
    }

    #[test]
    fn stop_wakes_a_blocked_push() {
        let private = Arc::new(start("appsrc name=source ! identity sleep-time=60000000 ! fakesink", 1, None));
        private.push(gst::Buffer::with_size(10).unwrap()).unwrap();
        let pushed = {
            let private = private.clone();
            std::thread::spawn(move || (0..3).try_for_each(|_| private.push(gst::Buffer::with_size(10).unwrap())))
        };
        private.flow.change(|state| state.is_stopped = true);
        assert_eq!(pushed.join().unwrap(), Ok(()));
        // Dropping would wait for the sleeping element.
        std::mem::forget(private);
    }

    #[test]
    fn times_that_do_not_grow_get_one_step_each() {
        let mut times = Increasing::default();
        let ms = gst::ClockTime::from_mseconds;
        let given = [Some(ms(5)), Some(ms(5)), Some(ms(3)), None, Some(ms(20)), Some(ms(20) + gst::ClockTime::NSECOND)];
        let got: Vec<_> = given.into_iter().map(|time| times.next(time)).collect();
        assert_eq!(got, [ms(5), ms(6), ms(7), ms(8), ms(20), ms(20) + gst::ClockTime::NSECOND]);
    }
}
