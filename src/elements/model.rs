//! Waits for the inference stage of a stream, installs the stage, and decides when it is warmed up.
//!
//! A stage is loaded on a separate thread ([`super::loading`]). The first thread that needs the stage waits for it. That thread is the
//! streaming thread, when it handles caps or a frame, or a thread that queries the latency of a live pipeline. A flush or a stop wakes each
//! of these threads.
//!
//! # Warm-up
//!
//! Engines initialize lazily, so the first run is slow. The run time must be known in advance in two cases: a live pipeline queries the
//! latency, or `max-latency` decides which frames are inferred. In these two cases, the stage runs on a black frame before the caps pass.
//! If upstream is already known to be live, this run starts right after loading. If not, it starts when the caps arrive. In all other cases
//! the first frame serves as the warm-up, so the first result of a file does not wait for a separate warm-up.
//!
//! A failed warm-up is an error of the element and ends the stream. A model that never runs must also end the stream with an error, instead
//! of a warning for each frame. So after a failed run, if no run has succeeded yet, the stage runs on a black frame. If the run on the
//! black frame succeeds, the earlier failure was due to the frame and not to the model.
//!
//! A waiting thread stores the epoch in which it began to wait. If the element was restarted during the wait, the epoch has changed, and
//! the thread ignores the result of the wait.
//!
//! This module uses `stream`, `loading`, `pool` and `work`.

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
    /// Begins a stream. Its stage may still be loading.
    pub(super) fn begin(&self, loading: Arc<Loading>) {
        let ended = {
            let mut state = self.lock();
            let _same_state = state.flow.handle(Trigger::Start);
            let flow = state.flow.clone();
            // `work` is `None`, so that the stage is installed again even if it was cached. The installation sets the capacity and the
            // limits of the queue, and warms up the stage if `max-latency` now requires a warm-up.
            let model = Model { loading: Some(loading), work: None };
            std::mem::replace(&mut *state, StreamState { flow, model, ..StreamState::default() })
        };
        // Drop outside the lock, because dropping the last reference to a stage waits for its runs.
        drop(ended);
        self.counts.begin();
    }

    /// Waits until the stage is loaded, installs the stage and returns it. `None` if loading failed (already reported), or if the stream
    /// stops or is flushed.
    pub(super) fn ready_stage(&self, element: &gst::Element) -> Option<Arc<dyn Work>> {
        let (epoch, loading) = {
            let state = self.lock();
            if let Some(work) = &state.model.work {
                return Some(work.clone());
            }
            (state.flow.epoch(), state.model.loading.clone()?)
        };
        let work = loading.wait(|| self.is_flushing())?;
        self.install(element, epoch, &loading, work);
        self.work()
    }

    /// Like [`Stream::ready_stage`], but first warms up the stage if the run time must be known in advance.
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
        // Warm up the stage before it is installed, so that a flush can interrupt the wait.
        let work = match work {
            Some(work) => work,
            None => loading.wait(|| self.is_flushing())?,
        };
        match loading.warm_up(&work, || self.is_flushing())? {
            Ok(Some(run_time)) => {
                self.ready_stage(element)?;
                self.warmed_up(element, epoch, run_time);
            }
            Ok(None) if is_live => self.lock().latency.defer(),
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

    /// Whether the run time must be known in advance.
    pub(super) fn needs_warm_up(&self, is_live: bool) -> bool {
        is_live || self.policy().max_latency.is_some()
    }

    /// Returns the error of a model that never runs. The driver calls this after a failed run. Returns `None` if any run has succeeded, or
    /// if a run on a black frame succeeds. A flush or a stop ends the wait for that run.
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

    /// Returns the flow error that upstream gets while there is no stage.
    pub(super) fn no_stage(&self) -> gst::FlowError {
        if self.is_flushing() { gst::FlowError::Flushing } else { gst::FlowError::Error }
    }

    /// Installs a stage and sets the queue's capacity. Has no effect if another thread has already installed the stage, if loading
    /// failed, or if the element was restarted since `epoch`.
    fn install(&self, element: &gst::Element, epoch: Epoch, loading: &Arc<Loading>, work: Arc<dyn Work>) {
        let slots = Slots::of(work.stage());
        {
            let mut state = self.lock();
            let is_current = state.flow.epoch().is_same_start(epoch)
                && state.model.loading.as_ref().is_some_and(|current| Arc::ptr_eq(current, loading));
            if state.model.work.is_some() || !is_current {
                return;
            }
            self.queue.set_capacity(slots.capacity);
            // Reset the limits that were set for the previous stage.
            self.queue.set_limits(usize::MAX, usize::MAX, 0);
            (state.slots, state.model.work) = (slots, Some(work));
        }
        // The thresholds may have changed while the stage was loading.
        self.apply_thresholds(element);
        gst::info!(self.cat, obj = element, "the in-flight queue holds up to {} frames", slots.capacity);
    }

    /// Sets the latency after a warm-up that began in `epoch`. No effect if the element was restarted since then.
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
        gst::info!(self.cat, obj = element, "one run takes {run_time:?}; the element reports the latency {latency:?}");
        if let Some(max_latency) = self.policy().max_latency.filter(|&max_latency| max_latency < run_time) {
            gst::element_warning!(
                element,
                gst::ResourceError::Settings,
                (
                    "max-latency is {} ms, but one run took {} ms: most frames will be skipped; raise max-latency, or use a faster device or a smaller model",
                    max_latency.as_millis(),
                    run_time.as_millis()
                )
            );
        }
    }

    /// Releases the stage and waits until its runs have ended.
    pub(super) fn release(&self) {
        let model = std::mem::take(&mut self.lock().model);
        drop(model);
    }
}
