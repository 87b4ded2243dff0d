//! How a stream comes by its stage, and when that is warmed up.
//!
//! A stage is made on a thread of its own ([`super::loading`]). The thread that needs it first waits for it and puts it to work: the streaming
//! thread with its caps, or a thread that queries the latency of a live pipeline. A flush or a stop releases both.
//!
//! # Warm-up
//!
//! What engines make lazily makes a first run slow, and how long one takes has to be known beforehand where that is reported to a live
//! pipeline (the latency query) or decides which frames are inferred (`max-latency`). There a stage runs on a black frame before the caps
//! pass: behind the making of it where a live source is known by then, or when the caps come. Elsewhere the first frame is the warm-up: a
//! file's first result is there sooner by the time of two runs.
//!
//! A warm-up that fails is an error of the element. So that a model which never runs is one everywhere, and not a warning for each frame,
//! a stage of which no run has given a result has to show on a black frame that a failure is the frame's fault.
//!
//! What a thread has waited for carries the epoch in which it began to wait: it has no effect after the element was started again.
//!
//! Uses `stream`, `loading`, `pool` and `work`.

use std::sync::Arc;
use std::time::Duration;

use gstreamer as gst;

use super::loading::Loading;
use super::pool::Slots;
use super::stream::{Model, Stream, StreamState};
use super::work::Work;
use crate::stages;
use crate::stages::flow::{Epoch, Trigger};

impl Stream {
    /// Begins a stream with the stage that is, or will be, made.
    pub(super) fn begin(&self, loading: Arc<Loading>) {
        let ended = {
            let mut state = self.lock();
            let _same_state = state.flow.handle(Trigger::Start);
            let flow = state.flow.clone();
            // The stage is put to work anew, for the policy may have changed.
            let model = Model { loading: Some(loading), work: None };
            std::mem::replace(&mut *state, StreamState { flow, model, ..StreamState::default() })
        };
        // Outside the lock: the last share of a stage waits for its runs.
        drop(ended);
        self.counts.begin();
    }

    /// The stage, put to work. Waits until it is made. `None` if there is none, for a reason that was reported, or the stream ends, or is
    /// flushed.
    pub(super) fn ready_stage(&self, element: &gst::Element) -> Option<Arc<dyn Work>> {
        let (epoch, loading) = {
            let state = self.lock();
            if let Some(work) = &state.model.work {
                return Some(work.clone());
            }
            (state.flow.epoch(), state.model.loading.clone()?)
        };
        let work = loading.wait(|| self.is_flushing())?;
        self.put_to_work(element, epoch, &loading, work);
        self.work()
    }

    /// As [`Stream::ready_stage`], after a warm-up if it matters how long a frame takes.
    pub(super) fn warm_stage(&self, element: &gst::Element, is_live: bool) -> Option<Arc<dyn Work>> {
        if !self.needs_warm_up(is_live) {
            return self.ready_stage(element);
        }
        let (epoch, loading, work, is_known) = {
            let state = self.lock();
            (state.flow.epoch(), state.model.loading.clone(), state.model.work.clone(), state.latency.is_known())
        };
        if is_known {
            return self.ready_stage(element);
        }
        let loading = loading?;
        // Before it is put to work, where a flush finds it.
        let work = match work {
            Some(work) => work,
            None => loading.wait(|| self.is_flushing())?,
        };
        match loading.warm_up(&work, || self.is_flushing())? {
            Ok(Some(run_time)) => {
                self.ready_stage(element)?;
                self.warmed_up(element, epoch, run_time);
            }
            Ok(None) if is_live => self.lock().latency.owe(),
            Ok(None) => {}
            Err(error) => {
                drop(work);
                loading.fail(error);
                self.release();
                return None;
            }
        }
        self.ready_stage(element)
    }

    /// Whether it has to be known how long a frame takes.
    pub(super) fn needs_warm_up(&self, is_live: bool) -> bool {
        is_live || self.policy().max_latency.is_some()
    }

    /// What is wrong with the model itself, where a run has failed: `None` if one has given a result, or does on a black frame.
    /// A flush or a stop releases the caller.
    pub(super) fn never_runs(&self) -> Option<stages::Error> {
        let (work, loading) = {
            let state = self.lock();
            (state.model.work.clone()?, state.model.loading.clone())
        };
        if work.stage().has_run() {
            return None;
        }
        loading?.warm_up(&work, || self.is_flushing())?.err()
    }

    /// What upstream hears where there is no stage.
    pub(super) fn no_stage(&self) -> gst::FlowError {
        if self.is_flushing() { gst::FlowError::Flushing } else { gst::FlowError::Error }
    }

    /// Sizes the queue for a stage. No effect if another thread was as quick, the model does not run, or the element was started again.
    fn put_to_work(&self, element: &gst::Element, epoch: Epoch, loading: &Arc<Loading>, work: Arc<dyn Work>) {
        let slots = Slots::of(work.stage());
        {
            let mut state = self.lock();
            let is_current = state.flow.epoch().is_same_start(epoch)
                && state.model.loading.as_ref().is_some_and(|current| Arc::ptr_eq(current, loading));
            if state.model.work.is_some() || !is_current {
                return;
            }
            self.queue.set_capacity(slots.capacity);
            // What was found out with the stage before.
            self.queue.set_limits(usize::MAX, usize::MAX);
            (state.slots, state.model.work) = (slots, Some(work));
        }
        gst::info!(self.cat, obj = element, "{} frames in flight", slots.capacity);
    }

    /// So long takes a run, by a warm-up that began in this epoch.
    fn warmed_up(&self, element: &gst::Element, epoch: Epoch, run_time: Duration) {
        let latency = {
            let mut state = self.lock();
            if !state.flow.epoch().is_same_start(epoch) {
                return;
            }
            let capacity = state.slots.capacity;
            state.latency.warmed_up(run_time, capacity)
        };
        let Some(latency) = latency else { return };
        gst::info!(self.cat, obj = element, "{run_time:?} a run, latency {latency:?}");
        if let Some(max_latency) = self.policy().max_latency.filter(|&max_latency| max_latency < run_time) {
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

    /// Releases the model, and waits for its runs.
    pub(super) fn release(&self) {
        let model = std::mem::take(&mut self.lock().model);
        drop(model);
    }
}
