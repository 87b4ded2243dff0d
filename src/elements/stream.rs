//! The stream of an inference element: the in-flight queue, the stream's state machine, and its state.
//!
//! # Locks
//!
//! [`StreamState`] has one lock. The queue is open exactly while [`Flow::is_open`] returns true, because both change under this lock
//! ([`Stream::handle`]). The lock is never held while a buffer is pushed, a message is posted, a model runs, or a model or a frame is
//! released. Lock order: loading model, stream state, queue. `Stream::motion` is held during a motion comparison. `Stream::last_results` is
//! held while results are stored or added to a frame, and `Stream::policy` is locked during that time.
//!
//! This module uses `in_flight`, `events`, `pool`, `backlog`, `latency`, `loading` and `work`. Frames are handled in [`super::frames`], the
//! model in [`super::model`], pads in [`super::infer`].

use std::sync::{Arc, Mutex, MutexGuard};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video as gst_video;

use super::backlog::Backlog;
use super::events::{self, StoredEvents};
use super::in_flight::{InFlight, Item};
use super::latency::Latency;
use super::loading::Loading;
use super::policy::{Policy, Reason};
use super::pool::{Pool, Slots};
use super::stats::Counts;
use super::work::Work;
use crate::frame::FrameResults;
use crate::stages;
use crate::stages::flow::{Action, Epoch, Flow, Output, Return, State, Transition, Trigger};
use crate::stages::{InFlightQueue, MotionGate};

/// Stream of one inference element. See the module.
pub(super) struct Stream {
    pub(super) cat: gst::DebugCategory,
    pub(super) queue: InFlightQueue<Item>,
    state: Mutex<StreamState>,
    /// Values of the policy properties, which the driver copies once per frame.
    pub(super) policy: Mutex<Policy>,
    /// Number and results of the newest inferred frame. `None` unless the policy adds earlier results to skipped frames.
    pub(super) last_results: Mutex<Option<(u64, FrameResults)>>,
    /// The motion gate, and the number of its reference frame: the newest frame that was selected for inference.
    pub(super) motion: Mutex<(MotionGate, u64)>,
    pub(super) counts: Counts,
    /// The thresholds that were set last; `None`: never.
    thresholds: Mutex<Option<stages::Thresholds>>,
}

/// State of the stream. All fields except `flow` are reset when the element starts.
#[derive(Default)]
pub(super) struct StreamState {
    pub(super) flow: Flow<gst::FlowError>,
    /// Sticky events that were in the queue when it was closed.
    pub(super) stored: StoredEvents,
    pub(super) model: Model,
    pub(super) input: Input,
    pub(super) slots: Slots,
    pub(super) pool: Pool,
    /// Whether a live stream keeps up.
    pub(super) backlog: Backlog,
    pub(super) latency: Latency,
    pub(super) frames: FrameCounts,
    pub(super) warned_of_lost_rois: bool,
}

/// The model of the stream.
#[derive(Default)]
pub(super) struct Model {
    /// The stage, loading or loaded. `None` while the element is stopped, and after a failed warm-up.
    pub(super) loading: Option<Arc<Loading>>,
    /// The loaded stage with the element's work. Stays loaded while the element is stopped.
    pub(super) work: Option<Arc<dyn Work>>,
}

/// Properties of the input, from upstream and the sink's QoS events.
#[derive(Default)]
pub(super) struct Input {
    pub(super) info: Option<gst_video::VideoInfo>,
    pub(super) segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    /// Whether upstream is live; `None` until it was queried.
    pub(super) is_live: Option<bool>,
    /// Frames with an earlier running time are too late for the sink, according to its QoS events.
    pub(super) earliest: Option<gst::ClockTime>,
}

impl Input {
    /// Returns the running time of a buffer's timestamp; `None` if the buffer has no timestamp, or no segment has arrived.
    pub(super) fn running_time(&self, buffer: &gst::BufferRef) -> Option<gst::ClockTime> {
        self.segment.as_ref()?.to_running_time(buffer.pts()?)
    }
}

/// Frame counters of this stream.
#[derive(Default)]
pub(super) struct FrameCounts {
    /// Number of frames that have arrived. This is also the number that the next frame gets.
    pub(super) n_arrived: u64,
    /// Number of the frame that leaves next if no frame is dropped.
    pub(super) next_to_leave: u64,
    /// Number of frames whose inference failed since the last successful run.
    pub(super) n_failed_in_a_row: u64,
}

impl StreamState {
    /// Returns the flow return for upstream's next buffer.
    pub(super) fn upstream(&self) -> Result<gst::FlowSuccess, gst::FlowError> {
        match self.flow.upstream() {
            Return::Ok => Ok(gst::FlowSuccess::Ok),
            Return::Eos => Err(gst::FlowError::Eos),
            Return::Flushing => Err(gst::FlowError::Flushing),
            Return::NotLinked => Err(gst::FlowError::NotLinked),
            Return::Error(error) => Err(error),
        }
    }
}

impl Stream {
    pub(super) fn new(cat: gst::DebugCategory) -> Self {
        Self {
            cat,
            queue: InFlightQueue::new(1),
            state: Mutex::default(),
            policy: Mutex::default(),
            last_results: Mutex::default(),
            motion: Mutex::default(),
            counts: Counts::default(),
            thresholds: Mutex::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap()
    }

    pub(super) fn policy(&self) -> Policy {
        *self.policy.lock().unwrap()
    }

    pub(super) fn work(&self) -> Option<Arc<dyn Work>> {
        self.lock().model.work.clone()
    }

    /// Returns the flow return for upstream's next buffer.
    pub(super) fn upstream(&self) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.lock().upstream()
    }

    /// Whether a flush or a stop is in progress: threads that wait for the model must return.
    pub(super) fn is_flushing(&self) -> bool {
        self.lock().flow.is_flushing()
    }

    /// Like [`Stream::handle_and`], without a closure: for callers that have nothing else to do under the lock.
    pub(super) fn handle(&self, trigger: Trigger<gst::FlowError>) -> Transition<gst::FlowError> {
        self.handle_and(trigger, |_, _| {})
    }

    /// Passes a trigger to the state machine and executes the actions that need the lock. Then calls `and` under the same lock. In `and`,
    /// the caller can read the state, store events, and pause the task. The caller executes the remaining actions without the lock.
    pub(super) fn handle_and(
        &self,
        trigger: Trigger<gst::FlowError>,
        and: impl FnOnce(&mut StreamState, &Transition<gst::FlowError>),
    ) -> Transition<gst::FlowError> {
        self.handle_locked(self.lock(), trigger, and)
    }

    fn handle_locked(
        &self,
        mut guard: MutexGuard<'_, StreamState>,
        trigger: Trigger<gst::FlowError>,
        and: impl FnOnce(&mut StreamState, &Transition<gst::FlowError>),
    ) -> Transition<gst::FlowError> {
        let state = &mut *guard;
        let transition = state.flow.handle(trigger);
        let mut discarded = Vec::new();
        for action in transition.actions() {
            match action {
                Action::CloseQueue => {
                    discarded = self.queue.flush();
                    storable_events(&discarded).for_each(|event| state.stored.store(event));
                }
                Action::OpenQueue => {
                    state.frames.n_failed_in_a_row = 0;
                    self.queue.resume();
                }
                Action::WakeQueue => self.queue.wake(),
                Action::DiscardEvents => drop(state.stored.take()),
                Action::DiscardSegment => state.stored.discard_segment(),
                Action::DiscardResults => (state.input.earliest, state.backlog) = (None, Backlog::default()),
                _ => {}
            }
        }
        and(state, &transition);
        let loading = state.model.loading.clone();
        let reason = discard_reason(state.flow.state());
        drop(guard);
        if transition.requires(Action::CloseQueue) {
            if let Some(loading) = loading {
                loading.wake();
            }
            self.discard(discarded, reason);
            // Cancel runs that have not begun: repeated flushes must not pile up work, and other streams may wait for the requests.
            if let Some(work) = self.work() {
                work.stage().discard_pending();
            }
        }
        transition
    }

    /// Continues the restart of `epoch` after the task was stopped. `events` receives the sticky events that the caller must store on
    /// the source pad before it performs the transition's other actions.
    pub(super) fn task_stopped(&self, epoch: Epoch, events: &mut Vec<gst::Event>) -> Transition<gst::FlowError> {
        let state = self.lock();
        let has_events = !state.stored.is_empty();
        self.handle_locked(state, Trigger::TaskStopped { epoch, has_events }, |state, transition| {
            if transition.requires(Action::StoreEvents) {
                *events = state.stored.take();
            }
        })
    }

    /// Discards the items of the queue up to the next segment or EOS, after downstream returned EOS. Returns the sticky events
    /// among the discarded items.
    pub(super) fn skip_to_segment(&self, trigger: Trigger<gst::FlowError>) -> Option<Vec<gst::Event>> {
        let mut state = self.lock();
        if !state.flow.handle(trigger).requires(Action::SkipToSegment) {
            return None;
        }
        let (skipped, found) = self.queue.skip_to(|item| matches!(item, Item::Event(event) if events::begins_or_ends(event)));
        let _input = state.flow.handle(Trigger::SegmentSkipped { found });
        drop(state);
        let stored = storable_events(&skipped).collect();
        self.discard(skipped, Reason::Downstream);
        Some(stored)
    }

    /// Discards an item that the closed queue has refused. Returns the flow error for upstream.
    pub(super) fn refused(&self, item: Item) -> gst::FlowError {
        let (error, reason) = {
            let state = self.lock();
            (state.upstream().err().unwrap_or(gst::FlowError::Flushing), discard_reason(state.flow.state()))
        };
        self.discard([item], reason);
        error
    }

    /// Drops the frames among these items and counts each dropped frame.
    fn discard(&self, items: impl IntoIterator<Item = Item>, reason: Reason) {
        for item in items {
            if let Item::Frame(frame) = item {
                self.drop_frame(*frame, reason);
            }
        }
    }

    /// Drops a frame and counts it.
    pub(super) fn drop_frame(&self, frame: InFlight, reason: Reason) {
        self.counts.drop(reason);
        frame.trace.end("dropped", Some(reason));
    }

    /// Sets the thresholds of the stage, now and when it is installed later.
    pub(super) fn set_thresholds(&self, element: &gst::Element, thresholds: stages::Thresholds) {
        *self.thresholds.lock().unwrap() = Some(thresholds);
        self.apply_thresholds(element);
    }

    /// Applies the thresholds that were set last to the installed stage. Posts a warning if they are invalid.
    pub(super) fn apply_thresholds(&self, element: &gst::Element) {
        let failed = {
            // The lock orders concurrent calls, so that the thresholds that were set last stay in use.
            let thresholds = self.thresholds.lock().unwrap();
            let (Some(thresholds), Some(work)) = (&*thresholds, self.work()) else { return };
            work.stage().set_thresholds(thresholds).err()
        };
        if let Some(error) = failed {
            let error = error.to_string();
            let error = stages::Printable(&error);
            gst::element_warning!(element, gst::ResourceError::Settings, ("the earlier thresholds stay in use: {error}"));
        }
    }

    /// Discards results of earlier frames.
    pub(super) fn reset_results(&self) {
        *self.last_results.lock().unwrap() = None;
        self.reset_motion();
        if let Some(work) = self.work() {
            work.reset();
        }
    }

    /// Resets the motion gate, so that the next frame is inferred. Called when the reference frame of the gate was not inferred.
    pub(super) fn reset_motion(&self) {
        self.motion.lock().unwrap().0.reset();
    }

    /// Whether upstream is live; queried once per stream.
    pub(super) fn is_live(&self, element: &gst::Element) -> bool {
        if let Some(is_live) = self.lock().input.is_live {
            return is_live;
        }
        let is_live = upstream_is_live(element);
        gst::debug!(self.cat, obj = element, "upstream is {}live", if is_live { "" } else { "not " });
        self.lock().input.is_live = Some(is_live);
        is_live
    }
}

/// Whether upstream reports that it is live; false while the sink pad is not linked.
pub(super) fn upstream_is_live(element: &gst::Element) -> bool {
    let mut query = gst::query::Latency::new();
    element.static_pad("sink").is_some_and(|pad| pad.peer_query(&mut query)) && query.result().0
}

/// Returns the reason with which frames are counted if they are dropped in this state.
fn discard_reason(state: State<gst::FlowError>) -> Reason {
    match state {
        State::Stopped | State::Flushing | State::PeerFlushing => Reason::Flush,
        State::Broken(_) | State::Streaming { output: Output::Breaking, .. } => Reason::Failures,
        State::Streaming { .. } | State::Unlinked | State::Failed(_) => Reason::Downstream,
    }
}

fn storable_events(items: &[Item]) -> impl Iterator<Item = gst::Event> {
    items.iter().filter_map(|item| match item {
        Item::Event(event) if events::is_storable(event) => Some(event.clone()),
        _ => None,
    })
}
