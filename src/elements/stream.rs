//! The stream of an inference element: the in-flight queue, the state machine of its life, and what is known of its frames.
//!
//! # Locks
//!
//! [`StreamState`] has one lock. The queue is open exactly while [`Flow::is_open`]: both change under it ([`Stream::handle`]). It is never held
//! while something is pushed, posted or run, nor while a model or a frame is released. The queue has a lock of its own, which comes after it.
//! `Stream::motion` is held while a frame is looked at; `Stream::found` while results are carried, which takes `Stream::policy`.
//! The lock of a model that is loading comes before that of the state.
//!
//! Uses `in_flight`, `events`, `pool`, `backlog`, `latency`, `loading` and `work`. What is done with a frame is in [`super::frames`], with a model in
//! [`super::model`], with pads in [`super::infer`].

use std::sync::{Arc, Mutex, MutexGuard};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video as gst_video;

use super::backlog::Backlog;
use super::events::{self, KeptEvents};
use super::in_flight::{InFlight, Item};
use super::latency::Latency;
use super::loading::Loading;
use super::policy::{Policy, Reason};
use super::pool::{Pool, Slots};
use super::stats::Counts;
use super::work::Work;
use crate::frame::FrameResults;
use crate::stages::flow::{Action, Epoch, Flow, Output, Return, State, Transition, Trigger};
use crate::stages::{InFlightQueue, MotionGate};

/// See the module.
pub(super) struct Stream {
    pub(super) cat: gst::DebugCategory,
    pub(super) queue: InFlightQueue<Item>,
    state: Mutex<StreamState>,
    /// Copied once per frame.
    pub(super) policy: Mutex<Policy>,
    /// What the latest inferred frame had, while it is to be carried on, and its number.
    pub(super) found: Mutex<Option<(u64, FrameResults)>>,
    /// What the latest frame looked like that was to be inferred, while that matters, and its number.
    pub(super) motion: Mutex<(MotionGate, u64)>,
    pub(super) counts: Counts,
}

/// What is known of the stream. All but `flow` is reset when the element is started.
#[derive(Default)]
pub(super) struct StreamState {
    pub(super) flow: Flow<gst::FlowError>,
    /// Sticky events that were in the queue when it was closed.
    pub(super) kept: KeptEvents,
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
    /// Makes it, or has made it. `None` while the element is stopped, and if the model does not run.
    pub(super) loading: Option<Arc<Loading>>,
    /// What is done with frames, once its stage is ready. Stays while the element is stopped.
    pub(super) work: Option<Arc<dyn Work>>,
}

/// What upstream and the sink say of frames.
#[derive(Default)]
pub(super) struct Input {
    pub(super) info: Option<gst_video::VideoInfo>,
    pub(super) segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    /// Whether upstream is live, if it was queried.
    pub(super) is_live: Option<bool>,
    /// The sink wants no frame of before this running time.
    pub(super) earliest: Option<gst::ClockTime>,
}

impl Input {
    /// When a buffer is to be shown.
    pub(super) fn running_time(&self, buffer: &gst::BufferRef) -> Option<gst::ClockTime> {
        self.segment.as_ref()?.to_running_time(buffer.pts()?)
    }
}

/// Frames of this stream.
#[derive(Default)]
pub(super) struct FrameCounts {
    /// Those that came: the number of the next one.
    pub(super) n_arrived: u64,
    /// The number of the frame that leaves next, if none is missing.
    pub(super) next_to_leave: u64,
    /// Frames whose inference failed since the last run that succeeded.
    pub(super) n_failed_in_a_row: u64,
}

impl StreamState {
    /// What upstream's next buffer returns.
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
            found: Mutex::default(),
            motion: Mutex::default(),
            counts: Counts::default(),
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

    /// What upstream's next buffer returns.
    pub(super) fn upstream(&self) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.lock().upstream()
    }

    /// Whether a flush or a stop is in progress: threads that wait for the model must return.
    pub(super) fn is_flushing(&self) -> bool {
        self.lock().flow.is_flushing()
    }

    /// As [`Stream::handle_and`], for a trigger without an event or a task.
    pub(super) fn handle(&self, trigger: Trigger<gst::FlowError>) -> Transition<gst::FlowError> {
        self.handle_and(trigger, |_, _| {})
    }

    /// Takes a trigger, and does what is to be done under the lock; `and` does the part of it that is about an event or the task of a pad.
    /// The other actions are for the caller.
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
                    kept_of(&discarded).for_each(|event| state.kept.keep(event));
                }
                Action::OpenQueue => {
                    state.frames.n_failed_in_a_row = 0;
                    self.queue.resume();
                }
                Action::WakeQueue => self.queue.wake(),
                Action::DiscardEvents => drop(state.kept.take()),
                Action::DiscardSegment => state.kept.forget_segment(),
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
            // Runs that have not begun are dropped: flushes in a row pile nothing up, and other streams may wait for the requests.
            if let Some(work) = self.work() {
                work.stage().discard_pending();
            }
        }
        transition
    }

    /// The task was stopped, in order to be started. `events` are those to be put on the source pad first.
    pub(super) fn task_stopped(&self, epoch: Epoch, events: &mut Vec<gst::Event>) -> Transition<gst::FlowError> {
        let state = self.lock();
        let has_events = !state.kept.is_empty();
        self.handle_locked(state, Trigger::TaskStopped { epoch, has_events }, |state, transition| {
            if transition.requires(Action::StoreEvents) {
                *events = state.kept.take();
            }
        })
    }

    /// Downstream has enough of this segment: discards the rest of it. Returns the sticky events in it.
    pub(super) fn skip_to_segment(&self, trigger: Trigger<gst::FlowError>) -> Option<Vec<gst::Event>> {
        let mut state = self.lock();
        if !state.flow.handle(trigger).requires(Action::SkipToSegment) {
            return None;
        }
        let (skipped, found) = self.queue.skip_to(|item| matches!(item, Item::Event(event) if events::begins_or_ends(event)));
        let _input = state.flow.handle(Trigger::SegmentSkipped { found });
        drop(state);
        let kept = kept_of(&skipped).collect();
        self.discard(skipped, Reason::Downstream);
        Some(kept)
    }

    /// The queue is closed: what upstream hears.
    pub(super) fn refused(&self, item: Item) -> gst::FlowError {
        let (error, reason) = {
            let state = self.lock();
            (state.upstream().err().unwrap_or(gst::FlowError::Flushing), discard_reason(state.flow.state()))
        };
        self.discard([item], reason);
        error
    }

    /// Counts the frames among these, which go no further.
    fn discard(&self, items: impl IntoIterator<Item = Item>, reason: Reason) {
        for item in items {
            if let Item::Frame(frame) = item {
                self.drop_frame(*frame, reason);
            }
        }
    }

    /// The frame goes no further.
    pub(super) fn drop_frame(&self, frame: InFlight, reason: Reason) {
        self.counts.drop(reason);
        frame.trace.end("dropped", Some(reason));
    }

    /// What was found before has nothing to do with what comes.
    pub(super) fn forget_results(&self) {
        *self.found.lock().unwrap() = None;
        self.forget_motion();
        if let Some(work) = self.work() {
            work.reset();
        }
    }

    /// What was looked at last was not inferred: the next frame is.
    pub(super) fn forget_motion(&self) {
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

/// Whether upstream says that it is live; false where it is not linked yet.
pub(super) fn upstream_is_live(element: &gst::Element) -> bool {
    let mut query = gst::query::Latency::new();
    element.static_pad("sink").is_some_and(|pad| pad.peer_query(&mut query)) && query.result().0
}

/// Why frames are dropped in this state.
fn discard_reason(state: State<gst::FlowError>) -> Reason {
    match state {
        State::Stopped | State::Flushing | State::PeerFlushing => Reason::Flush,
        State::Broken(_) | State::Streaming { output: Output::Breaking, .. } => Reason::Failures,
        State::Streaming { .. } | State::Unlinked | State::Failed(_) => Reason::Downstream,
    }
}

fn kept_of(items: &[Item]) -> impl Iterator<Item = gst::Event> {
    items.iter().filter_map(|item| match item {
        Item::Event(event) if events::is_kept(event) => Some(event.clone()),
        _ => None,
    })
}
