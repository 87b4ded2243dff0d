//! What an inference element does with a frame, and how its driver comes by it.
//!
//! A stage is made on a thread of its own ([`super::lifecycle`]). Whoever needs it first waits for it and puts it to work.
//!
//! # Warm-up
//!
//! What engines make lazily makes a first run slow, and how long one takes has to be known beforehand where that is told to a live
//! pipeline (the latency query) or decides which frames are inferred (`max-latency`). There a stage runs on a black frame before the caps
//! pass: behind the making of it where a live source is known by then, or when the caps come. Elsewhere the first frame is the warm-up: a
//! file's first result is there sooner by the time of two runs.
//!
//! A warm-up that fails is an error of the element. So that a model which never runs is one everywhere, and not a warning for each frame,
//! a stage of which no run has given a result has to show on a black frame that a failure is the frame's fault.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gstreamer as gst;

use super::infer::{Driver, Stream};
use super::lifecycle::Loading;
use crate::frame::{Frame, FrameResults};
use crate::stages::labels::Labels;
use crate::stages::{self, Permit, Scheduling, StageStats};

/// What an inference element does with a frame.
pub(super) trait Stage: Send + Sync {
    /// Starts on a frame; never blocks. `done` is called once, on any thread, after the frame's memory was let go of. Runs begin
    /// only while `permit` allows it.
    fn run(&self, frame: Frame, results: FrameResults, permit: Arc<Permit>, done: Done);

    /// Runs on a black frame, unless somebody who shares the model has; tells how long a frame takes once it is warm.
    fn warm_up(&self) -> stages::Result<Duration>;

    /// Whether a run, of whoever shares the model, has given a result.
    fn has_run(&self) -> bool;

    /// As [`Stage::warm_up`]; `None` where that failed and the model is not to blame: it has run for somebody, or a flush came between.
    fn try_warm_up(&self) -> stages::Result<Option<Duration>> {
        match self.warm_up() {
            Ok(run_time) => Ok(Some(run_time)),
            Err(error) if self.has_run() || error.kind() == stages::ErrorKind::Stopped => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Drops the frames whose run has not begun; their `done` is called.
    fn drop_pending(&self);

    /// Drops the frames whose permit was taken back before their run began; their `done` is called.
    fn drop_withdrawn(&self);

    /// What of these results is this stage's, of which `n_before` detections are not.
    fn found(&self, results: &FrameResults, n_before: usize) -> FrameResults;

    /// How many objects this stage found in a frame, or was given, of whose detections `n_before` were there before.
    fn n_objects(&self, results: &FrameResults, n_before: usize) -> usize;

    /// Adds what was found in an earlier frame to the results of one that was not inferred.
    fn carry(&self, found: &FrameResults, results: &mut FrameResults);

    /// Adds to the results of a frame what is known of its objects from others; called for every frame that leaves, in the order of
    /// the stream.
    fn leave(&self, _results: &mut FrameResults) {}

    /// The stream is flushed or over: what comes next has nothing to do with what came before.
    fn reset(&self) {}

    /// The labels of the objects that it finds; empty if they have none, `None` if it finds no objects.
    fn labels(&self) -> Option<Labels> {
        None
    }

    /// How many frames can run at once, where nobody else does on a model that is shared.
    fn n_frames_at_once(&self) -> usize;

    /// How many fewer would do now, for those that run wait for threads that others need too.
    fn n_frames_fewer(&self) -> usize;

    /// Whether calls wait for several frames.
    fn gathers_frames(&self) -> bool;

    /// Which frame is next.
    fn scheduling(&self) -> Scheduling;

    /// Runs and times so far.
    fn stats(&self) -> StageStats;

    /// Whether results of earlier elements are needed.
    fn reads_results(&self) -> bool;
}

/// Takes the results of a frame.
pub(super) type Done = Box<dyn FnOnce(FrameResults) + Send>;

impl Driver {
    /// Begins a stream with the stage that is, or will be, made.
    pub(super) fn begin_stream(&self, stage: Arc<Loading>) {
        *self.stream.lock().unwrap() = Stream::default();
        // It is put to work anew, for the policy may have changed.
        self.release();
        self.is_given_up.store(false, Ordering::Release);
        *self.loading.lock().unwrap() = Some(stage);
    }

    /// The stage, put to work. Waits until it is made. `None` if there is none, for a reason that was told, or the stream ends, or is
    /// flushed.
    pub(super) fn ready_stage(&self, element: &gst::Element) -> Option<Arc<dyn Stage>> {
        if let Some(stage) = self.stage() {
            return Some(stage);
        }
        let loading = self.loading.lock().unwrap().clone()?;
        let stage = loading.wait(|| self.waits_in_vain())?;
        {
            let current = self.loading.lock().unwrap();
            // Another thread may have waited as well, the stream may be over, or the stage may have failed to run.
            if self.stage().is_none() && current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &loading)) && loading.is_made() {
                self.put_to_work(element, stage);
            }
        }
        self.stage()
    }

    /// As [`Driver::ready_stage`], after a warm-up if it matters how long a frame takes.
    pub(super) fn warm_stage(&self, element: &gst::Element, is_live: bool) -> Option<Arc<dyn Stage>> {
        if !self.needs_warm_up(is_live) || self.stream.lock().unwrap().is_warm {
            return self.ready_stage(element);
        }
        let loading = self.loading.lock().unwrap().clone()?;
        // Before it is put to work, where a flush finds it.
        let stage = match self.stage() {
            Some(stage) => stage,
            None => loading.wait(|| self.waits_in_vain())?,
        };
        match loading.warm_up(&stage, || self.waits_in_vain())? {
            Ok(Some(run_time)) => {
                self.ready_stage(element)?;
                self.set_run_time(element, &loading, run_time);
            }
            Ok(None) => self.stream.lock().unwrap().owes_latency |= is_live,
            Err(error) => {
                drop(stage);
                loading.fail(error);
                self.release();
                return None;
            }
        }
        self.ready_stage(element)
    }

    /// Whether it has to be known how long a frame takes.
    pub(super) fn needs_warm_up(&self, is_live: bool) -> bool {
        is_live || self.policy.lock().unwrap().max_latency.is_some()
    }

    /// What is wrong with the model itself, where a run has failed: `None` if one has given a result, or does on a black frame.
    /// A flush or the end of the stream lets go who asks.
    pub(super) fn never_runs(&self) -> Option<stages::Error> {
        let stage = self.stage().filter(|stage| !stage.has_run())?;
        let loading = self.loading.lock().unwrap().clone()?;
        loading.warm_up(&stage, || self.waits_in_vain())?.err()
    }

    /// Whether who waits for the stage need not do so any more.
    fn waits_in_vain(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire) || self.flow() == Err(gst::FlowError::Flushing)
    }

    /// What upstream hears where there is no stage.
    pub(super) fn no_stage(&self) -> gst::FlowError {
        if self.waits_in_vain() { gst::FlowError::Flushing } else { gst::FlowError::Error }
    }

    /// Lets those look again who wait for the stage.
    pub(super) fn wake_waiting(&self) {
        let loading = self.loading.lock().unwrap().clone();
        if let Some(loading) = loading {
            loading.wake();
        }
    }

    /// Sizes the window for a stage.
    fn put_to_work(&self, element: &gst::Element, stage: Arc<dyn Stage>) {
        let n_at_once = stage.n_frames_at_once();
        let capacity = match stage.scheduling() {
            Scheduling::Throughput => {
                n_at_once // one running on each request, or as many as run in a call
                    + 1    // one waiting for a request; where upstream waits for a place, one finished behind one that runs
                    + 1 // one finished, on its way downstream
            }
            Scheduling::Latency => n_at_once,
        };
        self.window.set_capacity(capacity);
        // What was found out with the stage before.
        self.window.limit(usize::MAX, usize::MAX);
        gst::info!(self.cat, obj = element, "{n_at_once} at once, window of {capacity} frames");
        let mut stream = self.stream.lock().unwrap();
        (stream.n_at_once, stream.wanted, stream.capacity) = (n_at_once, capacity, capacity);
        drop(stream);
        *self.stage.lock().unwrap() = Some(stage);
    }

    /// So long takes a run of the warm stage of this making.
    fn set_run_time(&self, element: &gst::Element, of: &Arc<Loading>, run_time: Duration) {
        let latency = {
            let current = self.loading.lock().unwrap();
            let mut stream = self.stream.lock().unwrap();
            // The stream may be another one by now, or another thread was as quick.
            if stream.is_warm || !current.as_ref().is_some_and(|current| Arc::ptr_eq(current, of)) {
                return;
            }
            (stream.is_warm, stream.run_time) = (true, run_time);
            stream.latency = stream.expected_latency();
            stream.latency
        };
        gst::info!(self.cat, obj = element, "{run_time:?} a run, latency {latency:?}");
        let max_latency = self.policy.lock().unwrap().max_latency;
        if let Some(max_latency) = max_latency.filter(|&max_latency| max_latency < run_time) {
            gst::element_warning!(
                element,
                gst::ResourceError::Settings,
                (
                    "max-latency is {} ms, and one run took {} ms: hardly a frame will be inferred in time; raise max-latency, or take a faster device or a smaller model",
                    max_latency.as_millis(),
                    run_time.as_millis()
                )
            );
        }
    }

    /// Lets those go who wait for the stage.
    pub(super) fn stop_waiting(&self) {
        self.is_given_up.store(true, Ordering::Release);
        let loading = self.loading.lock().unwrap().take();
        if let Some(loading) = loading {
            loading.wake();
        }
    }

    /// Lets go of the stage, and waits for its runs.
    pub(super) fn release(&self) {
        let stage = self.stage.lock().unwrap().take();
        drop(stage);
    }

    pub(super) fn stage(&self) -> Option<Arc<dyn Stage>> {
        self.stage.lock().unwrap().clone()
    }
}
