//! The driver that all inference elements share. It runs the stream's state machine ([`crate::stages::flow`]) on the element's pads.
//!
//! # Files
//!
//! Each file uses only files that are below it in this table:
//!
//! | file | content |
//! |---|---|
//! | `detect`, `classify` | an element: its properties, and what it infers for each frame |
//! | `lifecycle` | state changes of the element: when a model is loaded |
//! | `pads` | pads of the element; their functions call the driver |
//! | `infer` | the driver: events, queries, pad activation, the source pad's task |
//! | `frames`, `model` | the path of one frame; waiting for the inference stage |
//! | `stream` | the in-flight queue and the state of the stream, behind one lock |
//! | `in_flight`, `events`, `loading` | items of the queue; stored sticky events; a stage that is being loaded |
//! | `pool`, `latency`, `backlog`, `policy`, `stats` | upstream's buffer pool, latency, lateness, properties, counters |
//! | `work` | the interface between driver and element |
//!
//! The state machine in [`crate::stages::flow`] is pure: it does no I/O and takes no locks.
//!
//! # Threads
//!
//! - The *streaming thread* of upstream brings buffers and events to the sink pad. It maps a buffer, starts the inference and returns. It
//!   blocks while the in-flight queue is full, which is the backpressure for upstream. Under a policy that skips frames, it blocks while
//!   too many skipped frames wait for their turn. With a live source, it blocks only while the stream keeps up ([`super::backlog`]).
//! - *Workers* of the stage complete runs and put the results into the frame's slot. They never block, push, or touch a pad.
//! - The *source pad's task* takes completed frames in arrival order, attaches the results and pushes them. So a complete frame leaves even
//!   if no further frame arrives, and no separate `queue` element is needed. One call of the task's function is a *turn*.
//!
//! The stage may still be loading when the stream begins. [`super::model`] then waits for the stage before the first caps or
//! frame pass.
//!
//! Serialized events pass through the queue in order. Frames leave only through the task. [`super::frames`] decides the path of each
//! frame.
//!
//! # How a stream ends
//!
//! The states and transitions are in [`crate::stages::flow`]. In short:
//!
//! - *Flush*: FLUSH_START empties the queue and returns when the task's turn is over. Runs that have not begun are canceled, so repeated
//!   flushes do not pile up work. A run that completes later is ignored. FLUSH_STOP restarts the task. Upstream sends a sticky event only
//!   once. So sticky events that were in the in-flight queue are stored on the source pad, as the element `queue` does.
//! - *EOS returned by downstream*: the task discards items up to the next segment or EOS, and continues. Upstream gets `Eos` for its next
//!   buffer. Upstream then sends its own EOS event, which passes.
//! - *Error returned by downstream*: the queue is closed and the task pauses. Upstream gets the error for its next buffer. If upstream
//!   has already sent EOS, the error is posted on the bus. The error state of `NotLinked` ends when the source pad is linked
//!   (RECONFIGURE). The error state of all other errors ends with a flush or a new activation of the pad. A peer that is linked after EOS
//!   receives EOS again.
//! - *Too many failures in a row* (`max-failures`), or a model that has never run: an error with the reason is posted on the bus. The
//!   queue is then closed as after an error returned by downstream.
//!
//! # Locks
//!
//! [`Driver::task_control`] is held while a thread other than the task's own starts, stops or pauses the task. This lock is taken before
//! the locks of the stream ([`super::stream`]). A thread that holds the lock may wait for the end of the task's turn. So the task itself
//! never takes this lock.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video as gst_video;

use super::backlog::Backlog;
use super::events::is_storable;
use super::frames::{Departure, Leaving};
use super::in_flight::{InFlight, Item};
use super::loading::Loading;
use super::reuse::ReuseCounts;
use super::stream::Stream;
use super::work::Work;
use super::{buffer, caps, policy};
use crate::stages;
use crate::stages::flow::{Action, Return, State, Transition, Trigger, Turn};
use crate::stages::in_flight_queue::Taken;

/// Driver of one inference element. See the module.
pub(super) struct Driver {
    cat: gst::DebugCategory,
    stream: Arc<Stream>,
    /// Serializes starting, stopping and pausing the task. See the module's section on locks.
    task_control: Mutex<()>,
    /// Counters of result reuse. They are created when a classifier first loads a model.
    pub(super) reuse: OnceLock<Arc<ReuseCounts>>,
}

thread_local! {
    /// The address of the driver whose task is running on this thread; 0 if none.
    static IN_TURN: Cell<usize> = const { Cell::new(0) };
}

impl Driver {
    pub(super) fn new(cat: gst::DebugCategory) -> Arc<Self> {
        Arc::new(Self { cat, stream: Arc::new(Stream::new(cat)), task_control: Mutex::default(), reuse: OnceLock::new() })
    }

    /// Begins a stream. Its stage may still be loading.
    pub(super) fn begin_stream(&self, loading: Arc<Loading>) {
        self.stream.begin(loading);
    }

    /// Wakes up the threads that wait for the stage or for a slot, so that they return. The element calls this before it stops.
    pub(super) fn stop_waiting(&self) {
        let _stopped = self.stream.handle(Trigger::Deactivate);
        let loading = self.stream.lock().model.loading.take();
        // Drop outside the lock, because dropping the last reference to a stage waits for its runs.
        drop(loading);
    }

    /// Ends the stream. The stage stays loaded for the next stream.
    pub(super) fn end_stream(&self) {
        self.stream.reset_results();
        self.stream.counts.end();
    }

    /// Releases the stage, and waits until its runs have ended.
    pub(super) fn release(&self) {
        self.stream.release();
    }

    pub(super) fn work(&self) -> Option<Arc<dyn Work>> {
        self.stream.work()
    }

    /// Whether the stage must be warmed up, because the run time must be known before the first frame.
    pub(super) fn needs_warm_up(&self, is_live: bool) -> bool {
        self.stream.needs_warm_up(is_live)
    }

    /// Sets the thresholds of the stage, also while it runs.
    pub(super) fn set_thresholds(&self, element: &gst::Element, thresholds: stages::Thresholds) {
        self.stream.set_thresholds(element, thresholds);
    }

    /// Sets a property of the policy. Returns false if the policy has no property `name`.
    pub(super) fn set_policy(&self, name: &str, value: &gst::glib::Value) -> bool {
        let known = self.stream.policy.lock().unwrap().set(name, value);
        if known {
            if name == policy::MOTION_THRESHOLD {
                // While the threshold was 0, frames were inferred without a motion comparison. So the reference frame of the motion gate
                // may be outdated.
                self.stream.reset_motion();
            }
            // Wake the task, because the interval of the statistics may have changed.
            self.stream.queue.wake();
        }
        known
    }

    /// Returns the value of a property of the policy; `None` if the policy has no property `name`.
    pub(super) fn policy(&self, name: &str) -> Option<gst::glib::Value> {
        self.stream.policy.lock().unwrap().get(name)
    }

    pub(super) fn sink_chain(&self, element: &gst::Element, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let arrived = Instant::now();
        let stream = &self.stream;
        stream.upstream()?;
        // If there is no stage, the reason has already been reported.
        let work = match stream.work() {
            Some(work) => work,
            None => stream.warm_stage(element, stream.is_live(element)).ok_or_else(|| stream.no_stage())?,
        };
        let Some(info) = stream.lock().input.info.clone() else {
            gst::element_error!(
                element,
                gst::StreamError::Format,
                ("expected raw video, got data without usable caps; add `decodebin` and `videoconvert` upstream")
            );
            return Err(gst::FlowError::NotNegotiated);
        };
        stream.arrive(element, buffer, &info, &work, arrived)?;
        stream.upstream()
    }

    pub(super) fn sink_event(self: &Arc<Self>, pad: &gst::Pad, element: &gst::Element, event: gst::Event, srcpad: &gst::Pad) -> bool {
        match event.view() {
            gst::EventView::FlushStart(_) => {
                self.handle(Trigger::FlushStart, element, srcpad);
                let pushed = srcpad.push_event(event);
                // Block until the task's turn is over. There is no wait on the task's own thread, which gets here if downstream
                // seeks during a push.
                let control = self.task_control();
                let transition = self.stream.handle(Trigger::FlushForwarded { sink_is_flushing: is_flushing(pad) });
                let control = control.filter(|_| transition.requires(Action::AwaitPause));
                self.perform(&transition, element, srcpad);
                drop(control);
                pushed
            }
            gst::EventView::FlushStop(_) => {
                let control = self.task_control();
                self.handle(Trigger::FlushStop, element, srcpad);
                drop(control);
                let pushed = srcpad.push_event(event);
                // Open the queue even if the pad is not linked. Otherwise, upstream would get `Flushing` for its next buffer instead of
                // `NotLinked`.
                self.open(element, srcpad) && pushed
            }
            gst::EventView::Caps(caps) => {
                // If the stream stops or is flushed while this thread waits for the stage, the caps event does not fail. The next buffer
                // then returns the flow error to upstream, or after a flush waits for the stage again.
                let stream = &self.stream;
                if stream.warm_stage(element, stream.is_live(element)).is_none() && stream.no_stage() != gst::FlowError::Flushing {
                    return false;
                }
                if let Err(error) = self.set_caps(caps.caps()) {
                    gst::element_error!(element, gst::StreamError::Format, ("{}", stages::Printable(&error.to_string())));
                    return false;
                }
                self.enqueue(event)
            }
            gst::EventView::StreamStart(_) | gst::EventView::Segment(_) => {
                let segment = match event.view() {
                    gst::EventView::Segment(segment) => segment.segment().downcast_ref::<gst::ClockTime>().cloned(),
                    _ => None,
                };
                if !self.enqueue(event) {
                    return false;
                }
                let _skipped = self.stream.handle_and(Trigger::BeginStream, |state, _| {
                    (state.input.segment, state.input.earliest, state.input.is_live) = (segment, None, None);
                    // In a new segment, the running time may start again at 0. So lateness cannot be compared with the lateness
                    // of frames of the previous segment.
                    state.backlog = Backlog::default();
                });
                true
            }
            gst::EventView::Eos(_) => {
                let transition = self.stream.handle(Trigger::Eos);
                self.perform(&transition, element, srcpad);
                !transition.requires(Action::RefuseEvent) && self.enqueue(event)
            }
            _ if event.is_serialized() => self.enqueue(event),
            _ => gst::Pad::event_default(pad, Some(element), event),
        }
    }

    /// Adds an event to the queue. While the queue is closed, a sticky event is stored, because upstream does not send it again.
    fn enqueue(&self, event: gst::Event) -> bool {
        loop {
            if self.stream.queue.push(Item::Event(event.clone())).is_ok() {
                return true;
            }
            let trigger = Trigger::EventRefused { is_kept: is_storable(&event) };
            let transition = self.stream.handle_and(trigger, |state, transition| {
                if transition.requires(Action::KeepEvent) {
                    state.stored.store(event.clone());
                }
            });
            if !transition.requires(Action::RetryEvent) {
                return transition.requires(Action::KeepEvent);
            }
        }
    }

    /// Passes a trigger to the state machine and executes the actions of the transition.
    fn handle(self: &Arc<Self>, trigger: Trigger<gst::FlowError>, element: &gst::Element, srcpad: &gst::Pad) {
        let transition = self.stream.handle(trigger);
        self.perform(&transition, element, srcpad);
    }

    /// Executes those actions of a transition that need no lock, in order. Returns false if the task cannot be started.
    fn perform(self: &Arc<Self>, transition: &Transition<gst::FlowError>, element: &gst::Element, srcpad: &gst::Pad) -> bool {
        let mut is_started = true;
        for action in transition.actions() {
            match action {
                Action::DiscardResults => self.stream.reset_results(),
                Action::ResetMotion => self.stream.reset_motion(),
                Action::AwaitPause => {
                    let _paused = srcpad.pause_task();
                }
                // Stop the task completely, because restarting a task that is only paused would leak its previous closure. The
                // task's own thread skips this action, because a thread cannot join itself.
                Action::StopTask if !self.is_in_turn() => {
                    let _stopped = srcpad.stop_task();
                }
                Action::StartTask => is_started = start_task(self, srcpad, element),
                Action::RepeatEos => {
                    // Pushing any event makes the pad first send the sticky events that its peer has not received, including EOS.
                    let prompt = gst::event::CustomDownstream::new(gst::Structure::new_empty("roiflow-end-again"));
                    let _refused = srcpad.push_event(prompt);
                }
                Action::EndFlushDownstream if is_flushing(srcpad) => {
                    srcpad.push_event(gst::event::FlushStop::new(true));
                }
                Action::Reopen => {
                    gst::debug!(self.cat, obj = srcpad, "opening the queue again");
                    is_started = self.open(element, srcpad);
                }
                Action::ReportError => report(element, transition),
                // All other actions are executed under the lock of the stream, or by the caller of this function.
                _ => {}
            }
        }
        is_started
    }

    /// Locks `task_control`, so that other threads cannot start the task. Returns `None` on the task's own thread. That thread must not
    /// wait for this lock, because a thread that holds the lock may wait for the task.
    fn task_control(&self) -> Option<MutexGuard<'_, ()>> {
        (!self.is_in_turn()).then(|| self.task_control.lock().unwrap())
    }

    /// Whether the calling thread is the task's own thread and executes a turn of the task.
    fn is_in_turn(&self) -> bool {
        IN_TURN.get() == std::ptr::from_ref(self).addr()
    }

    /// Opens the queue and starts the task. Called after a flush, after an activation of the pad, and when the source pad is linked.
    /// Returns false if the task cannot be started.
    fn open(self: &Arc<Self>, element: &gst::Element, srcpad: &gst::Pad) -> bool {
        let _control = self.task_control();
        let mut epoch = None;
        let transition = self.stream.handle_and(Trigger::Open, |state, _| epoch = Some(state.flow.epoch()));
        let Some(epoch) = epoch.filter(|_| !transition.is_skipped()) else { return true };
        self.perform(&transition, element, srcpad);
        loop {
            let mut events = Vec::new();
            let transition = self.stream.task_stopped(epoch, &mut events);
            if !transition.requires(Action::StoreEvents) {
                return self.perform(&transition, element, srcpad);
            }
            self.store(srcpad, events);
        }
    }

    /// Stores sticky events on the source pad, which sends them before the next item.
    fn store(&self, srcpad: &gst::Pad, events: impl IntoIterator<Item = gst::Event>) {
        for event in events {
            let stored = srcpad.store_sticky_event(&event);
            gst::log!(self.cat, obj = srcpad, "stored {event:?}: {stored:?}");
        }
    }

    fn set_caps(&self, caps: &gst::CapsRef) -> stages::Result<()> {
        // Clear the previous caps first: if the new caps are refused, later frames must not be read with the previous caps.
        self.stream.lock().input.info = None;
        let refused = || {
            stages::Error::new(
                stages::ErrorKind::Config,
                format!(
                    "expected raw video in system memory, got `{caps}`; add a decoder and `videoconvert` upstream (`gldownload`, `vapostproc` or \
                     the like if the frames are in a device's memory)"
                ),
            )
        };
        // Check the caps too, because `VideoInfo` also accepts encoded video and frames in device memory.
        let info = caps::video_info(caps).ok().filter(|_| caps::is_raw_in_system_memory(caps)).ok_or_else(refused)?;
        if caps::pixel_format(&info).is_none() {
            return Err(buffer::unsupported(&info).into());
        }
        self.stream.lock().input.info = Some(info);
        Ok(())
    }

    pub(super) fn sink_query(&self, pad: &gst::Pad, element: &gst::Element, query: &mut gst::QueryRef, srcpad: &gst::Pad) -> bool {
        let serialized = query.is_serialized();
        match query.view_mut() {
            gst::QueryViewMut::AcceptCaps(accept) => {
                // The query accepts all caps. The caps event refuses unsupported caps, with an error that says what to do.
                accept.set_result(true);
                true
            }
            gst::QueryViewMut::Allocation(allocation) => {
                if self.stream.ready_stage(element).is_none() {
                    return false;
                }
                // Downstream answers the query for the caps that it received last. So the current caps, and all earlier frames, must leave
                // first.
                if self.stream.queue.drain().is_err() {
                    return false;
                }
                let answered = srcpad.peer_query(allocation.query_mut());
                self.propose_allocation(allocation);
                gst::debug!(
                    self.cat,
                    obj = element,
                    "allocation query: downstream returned {answered}; {} more buffers requested for the in-flight queue",
                    self.capacity()
                );
                true
            }
            _ if serialized => {
                if self.stream.queue.drain().is_err() {
                    return false;
                }
                srcpad.peer_query(query)
            }
            _ => gst::Pad::query_default(pad, Some(element), query),
        }
    }

    /// Adds the capacity of the in-flight queue to the buffer counts of each pool that downstream proposed.
    fn propose_allocation(&self, allocation: &mut gst::query::Allocation<gst::QueryRef>) {
        let n_held = self.capacity() as u32;
        let pools: Vec<_> =
            allocation.allocation_pools().map(|(pool, size, min, max)| (pool.map(|pool| pool.to_owned()), size, min, max)).collect();
        for (pool_idx, (pool, size, min, max)) in pools.iter().enumerate() {
            let max = if *max == 0 { 0 } else { max.saturating_add(n_held) };
            allocation.set_nth_allocation_pool(pool_idx as u32, pool.as_ref(), *size, min.saturating_add(n_held), max);
        }
        let size = self.stream.lock().input.info.as_ref().map_or(0, gst_video::VideoInfo::size);
        if pools.is_empty() && size > 0 {
            allocation.add_allocation_pool(None::<&gst::BufferPool>, size as u32, n_held, 0);
        }
    }

    fn capacity(&self) -> usize {
        self.stream.lock().slots.capacity
    }

    pub(super) fn src_query(&self, pad: &gst::Pad, element: &gst::Element, query: &mut gst::QueryRef, sinkpad: &gst::Pad) -> bool {
        let gst::QueryViewMut::Latency(latency) = query.view_mut() else {
            return gst::Pad::query_default(pad, Some(element), query);
        };
        let mut upstream = gst::query::Latency::new();
        if !sinkpad.peer_query(&mut upstream) {
            return false;
        }
        let (live, min, max) = upstream.result();
        // Only a pipeline with a live source uses the reported latency. So only then does the query wait for the warm-up that measures the
        // latency.
        if live && self.stream.warm_stage(element, live).is_none() {
            return false;
        }
        let max_latency = self.stream.policy().max_latency.unwrap_or(Duration::MAX);
        let reported = {
            let state = self.stream.lock();
            state.latency.reported(state.slots.capacity)
        };
        let ours = clock_time(reported.min(max_latency));
        latency.set(live, min + ours, max.map(|max| max + ours));
        true
    }

    pub(super) fn src_event(self: &Arc<Self>, pad: &gst::Pad, element: &gst::Element, event: gst::Event) -> bool {
        match event.view() {
            gst::EventView::Reconfigure(_) => self.handle(Trigger::Relink, element, pad),
            gst::EventView::Qos(qos) => self.stream.lock().input.earliest = earliest(qos),
            _ => {}
        }
        gst::Pad::event_default(pad, Some(element), event)
    }

    pub(super) fn src_activate(self: &Arc<Self>, pad: &gst::Pad, element: &gst::Element, active: bool) -> Result<(), gst::LoggableError> {
        if active {
            self.handle(Trigger::Activate, element, pad);
            if !self.open(element, pad) {
                return Err(gst::loggable_error!(self.cat, "cannot start the source pad's task"));
            }
        } else {
            self.handle(Trigger::Deactivate, element, pad);
            // Take this lock before the task is stopped. A thread that opens the queue holds this lock until it has also started the task.
            // Without the lock, such a thread could start the task after the stop.
            let _control = self.task_control();
            pad.stop_task().map_err(|_| gst::loggable_error!(self.cat, "cannot stop the source pad's task"))?;
        }
        Ok(())
    }

    pub(super) fn sink_activate(self: &Arc<Self>, pad: &gst::Pad, element: &gst::Element, active: bool, srcpad: &gst::Pad) {
        // If a flush has closed the queue, open it again. This is possible because the source pad is already active: GStreamer activates it
        // before the sink pad.
        if active {
            self.handle(Trigger::SinkActivated { sink_is_flushing: is_flushing(pad) }, element, srcpad);
        }
    }

    /// Executes one turn of the source pad's task: takes an item from the queue and pushes it.
    fn src_task(self: &Arc<Self>, pad: &gst::Pad, element: &gst::Element) {
        let mut turn = Turn::default();
        let transition = self.stream.handle_and(Trigger::BeginTurn, |state, _| turn = state.flow.turn());
        self.perform(&transition, element, pad);
        let Ok(taken) = self.stream.queue.take(Item::deadline, self.stats_due(element)) else {
            self.handle_in_turn(Trigger::QueueClosed, element, pad);
            return;
        };
        let item = match taken {
            Taken::Complete(item) => Some(item),
            Taken::Late(Item::Frame(frame)) => self.stream.leave_late(frame).map(Item::Frame),
            Taken::Late(item) => Some(item),
            Taken::WokenUp => return,
        };
        match item {
            None => self.stream.queue.finish_taken(),
            Some(Item::Event(event)) => {
                let is_eos = event.type_() == gst::EventType::Eos;
                if is_eos {
                    // End the counters before downstream sees EOS, so that statistics read from then on are final.
                    self.stream.counts.end();
                }
                self.push_event(pad, event, turn);
                self.stream.queue.finish_taken();
                if is_eos {
                    gst::info!(self.cat, obj = element, "{:?}", self.stats());
                }
            }
            Some(Item::Frame(frame)) => {
                let pushed = self.push_frame(pad, element, *frame, turn);
                self.stream.queue.finish_taken();
                let Err(error) = pushed else { return };
                gst::debug!(self.cat, obj = pad, "downstream returned {error:?}");
                let trigger = Trigger::FramePushed { turn, result: returned(error), is_linked: pad.is_linked() };
                if error != gst::FlowError::Eos {
                    self.handle_in_turn(trigger, element, pad);
                } else if let Some(events) = self.stream.skip_to_segment(trigger) {
                    self.store(pad, events);
                    self.stream.reset_motion();
                }
            }
        }
    }

    /// Like [`Driver::handle`], but also pauses the task if the transition requires it. The task is paused under the lock of the stream.
    fn handle_in_turn(self: &Arc<Self>, trigger: Trigger<gst::FlowError>, element: &gst::Element, pad: &gst::Pad) {
        let transition = self.stream.handle_and(trigger, |_, transition| {
            if transition.requires(Action::PauseTask) {
                let _paused = pad.pause_task();
            }
        });
        self.perform(&transition, element, pad);
    }

    /// Closes the queue after a panic in the task, so that upstream does not wait for a slot forever.
    fn close_after_panic(self: &Arc<Self>, pad: &gst::Pad, element: &gst::Element) {
        let turn = self.stream.lock().flow.turn();
        let _reported = self.stream.handle(Trigger::Break { turn });
        let trigger = Trigger::FramePushed { turn, result: Return::Error(gst::FlowError::Error), is_linked: pad.is_linked() };
        self.handle_in_turn(trigger, element, pad);
    }

    fn push_event(&self, pad: &gst::Pad, event: gst::Event, turn: Turn) {
        gst::log!(self.cat, obj = pad, "pushing {event:?}");
        let is_taken = pad.push_event(event.clone());
        let is_eos = event.type_() == gst::EventType::Eos;
        let trigger = Trigger::EventPushed { turn, is_eos, is_refused_and_kept: !is_taken && is_storable(&event) };
        let _pushed = self.stream.handle_and(trigger, |state, transition| {
            if transition.requires(Action::KeepEventFirst) {
                state.stored.store_first(event);
            }
        });
    }

    fn push_frame(
        self: &Arc<Self>,
        pad: &gst::Pad,
        element: &gst::Element,
        frame: InFlight,
        turn: Turn,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        let leaving = self.stream.leave(frame);
        let mut too_many = None;
        let mut runs = Ok(());
        match &leaving.left {
            Departure::Skipped => {}
            Departure::Failed { reason, n_failed } => {
                if let Some(error) = self.stream.never_runs() {
                    // The error is posted before the frame is pushed, because a sink in PAUSED blocks the push.
                    runs = self.fail(element, &self.describe_never_runs(&error), turn);
                } else {
                    too_many = self.count_failure(element, &leaving, reason, *n_failed);
                }
            }
            Departure::Inferred => self.frame_inferred(element, &leaving),
        }
        let (buffer, held) = self.stream.attach(leaving);
        gst::trace!(self.cat, obj = pad, "pushing {buffer:?}");
        let pushed = pad.push(buffer);
        // If a downstream element of roiflow holds the buffer, that element has counted the buffer during the push. So this
        // element's count can end now.
        drop(held);
        runs?;
        let pushed = pushed?;
        too_many.map_or(Ok(()), |message| self.fail(element, &message, turn)).map(|()| pushed)
    }

    /// Updates the latency after an inferred frame, because the frame may have taken longer than the reported latency.
    fn frame_inferred(&self, element: &gst::Element, frame: &Leaving) {
        let is_raised = {
            let state = &mut *self.stream.lock();
            if frame.guard.has_succeeded() {
                state.frames.n_failed_in_a_row = 0;
            }
            state.latency.inferred(frame.took, state.slots.capacity)
        };
        if is_raised {
            gst::info!(self.cat, obj = element, "the reported latency is raised to {:?}", frame.took);
            let _posted = element.post_message(gst::message::Latency::builder().src(element).build());
        }
    }

    /// Counts a failed frame and posts a warning. Returns an error message after more than `max-failures` failed frames in a row.
    fn count_failure(&self, element: &gst::Element, frame: &Leaving, reason: &str, n_failed: u64) -> Option<String> {
        self.warn_of_failure(element, frame, reason, n_failed);
        // Frames during an outage of the device do not count, because the stream goes on when the device is back.
        if frame.guard.has_met_outage() && !frame.guard.has_succeeded() {
            return None;
        }
        let n_in_a_row = {
            let frames = &mut self.stream.lock().frames;
            // The count starts again if the run of any region of this frame succeeded.
            frames.n_failed_in_a_row = if frame.guard.has_succeeded() { 0 } else { frames.n_failed_in_a_row + 1 };
            frames.n_failed_in_a_row
        };
        let frame_number = frame.results.frame_number;
        let max_failures = self.stream.policy().max_failures.filter(|&max_failures| n_in_a_row > u64::from(max_failures))?;
        let device = self.device();
        Some(format!(
            "inference failed on {n_in_a_row} frames in a row, expected at most {max_failures} (max-failures); {n_failed} frames \
             failed in total. Last error, frame {frame_number}: {reason}. Check the model with `roiflow bench MODEL --device {device}`, \
             use another device, or set max-failures=-1 to continue without results"
        ))
    }

    /// Posts a warning about a failed frame.
    fn warn_of_failure(&self, element: &gst::Element, frame: &Leaving, reason: &str, n_failed: u64) {
        let frame_number = frame.results.frame_number;
        // Warns after 1, 2, 4, 8, ... failures: the first is reported at once, and failures do not flood the bus.
        if n_failed.is_power_of_two() {
            gst::element_warning!(
                element,
                gst::StreamError::Failed,
                (
                    "inference failed on frame {frame_number}: {}; the frame passes without results ({n_failed} failed so far)",
                    stages::Printable(reason)
                )
            );
        }
    }

    fn describe_never_runs(&self, error: &stages::Error) -> String {
        let device = self.device();
        format!(
            "the model has never run, and fails on a black frame: {error}; check the model with `roiflow bench MODEL --device {device}`, or \
             use another device"
        )
    }

    /// Returns the name of the stage's device, for the option `--device` in messages.
    fn device(&self) -> String {
        self.work().map_or_else(|| "NAME".to_owned(), |work| work.stage().stats().device)
    }

    /// Posts an error about failed inference and ends the stream with an error. No effect if a flush has begun since `turn`.
    fn fail(&self, element: &gst::Element, message: &str, turn: Turn) -> Result<(), gst::FlowError> {
        if self.stream.handle(Trigger::Break { turn }).is_skipped() {
            return Ok(());
        }
        gst::element_error!(element, gst::StreamError::Failed, ("{}", stages::Printable(message)));
        Err(gst::FlowError::Error)
    }

    /// Posts the statistics if they are due. Returns the time at which they are due next.
    fn stats_due(&self, element: &gst::Element) -> Option<Instant> {
        let (is_due, next) = self.stream.counts.due(self.stream.policy().stats_interval);
        if is_due {
            let _posted = element.post_message(gst::message::Element::builder(self.stats()).src(element).build());
        }
        next
    }

    /// Returns the read-only property `stats`.
    pub(super) fn stats(&self) -> gst::Structure {
        let stage = self.work().map(|work| work.stage().stats()).unwrap_or_default();
        let mut structure = self.stream.counts.structure(stage, self.stream.queue.capacity());
        if let Some(reuse) = self.reuse.get() {
            reuse.add_to(&mut structure);
        }
        structure
    }
}

fn start_task(driver: &Arc<Driver>, pad: &gst::Pad, element: &gst::Element) -> bool {
    // The references are weak, because the pad owns the task, and strong references would keep the element alive forever.
    let (driver, weak_pad, weak_element) = (Arc::downgrade(driver), pad.downgrade(), element.downgrade());
    let turn = move || {
        if let (Some(driver), Some(pad), Some(element)) = (driver.upgrade(), weak_pad.upgrade(), weak_element.upgrade()) {
            IN_TURN.set(Arc::as_ptr(&driver).addr());
            // A panic must not unwind into C: it ends the stream with an error, as in a pad function.
            let turned = catch_unwind(AssertUnwindSafe(|| driver.src_task(&pad, &element)));
            if turned.is_err() {
                gst::element_error!(
                    element,
                    gst::LibraryError::Failed,
                    ("internal error in `{}`: the source pad's task panicked", element.name())
                );
                let _closed = catch_unwind(AssertUnwindSafe(|| driver.close_after_panic(&pad, &element)));
                let _paused = pad.pause_task();
            }
            IN_TURN.set(0);
        }
    };
    pad.start_task(turn).is_ok()
}

/// Whether the pad is flushing: from FLUSH_START to FLUSH_STOP, and while the pad is inactive.
fn is_flushing(pad: &gst::Pad) -> bool {
    pad.pad_flags().contains(gst::PadFlags::FLUSHING)
}

/// Converts the flow return of a push for the state machine.
fn returned(error: gst::FlowError) -> Return<gst::FlowError> {
    match error {
        gst::FlowError::Eos => Return::Eos,
        gst::FlowError::Flushing => Return::Flushing,
        gst::FlowError::NotLinked => Return::NotLinked,
        error => Return::Error(error),
    }
}

/// Posts a flow error of downstream as an error message. Called if upstream cannot receive the flow error, because it has already
/// sent EOS.
fn report(element: &gst::Element, transition: &Transition<gst::FlowError>) {
    let error = match transition.state() {
        State::Failed(error) | State::Broken(error) => error,
        _ => gst::FlowError::NotLinked,
    };
    gst::element_error!(
        element,
        gst::StreamError::Failed,
        ("downstream returned {error:?}: the frames in flight are lost; link every pad, and check the first error on the bus")
    );
}

/// Returns the earliest running time that is not late for the sink. For a late frame: its time plus twice the lateness, so that the stream
/// catches up. If the sink throttles the stream: the time of the next frame that the sink wants. `None` if the sink is not behind.
fn earliest(qos: &gst::event::Qos) -> Option<gst::ClockTime> {
    let (kind, _, jitter, timestamp) = qos.get();
    let late = u64::try_from(jitter).ok().filter(|&late| late > 0)?;
    let ahead = if kind == gst::QOSType::Throttle { late } else { late.saturating_mul(2) };
    Some(timestamp?.saturating_add(gst::ClockTime::from_nseconds(ahead)))
}

fn clock_time(duration: Duration) -> gst::ClockTime {
    gst::ClockTime::from_nseconds(duration.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    static CAT: LazyLock<gst::DebugCategory> =
        LazyLock::new(|| gst::DebugCategory::new("roitest", gst::DebugColorFlags::empty(), Some("of a test")));

    #[test]
    fn closed_queue_stores_latest_event_of_each_type() {
        gst::init().unwrap();
        let driver = Driver::new(*CAT);
        let caps = |width: i32| gst::event::Caps::new(&gst::Caps::builder("video/x-raw").field("width", width).build());
        let segment = gst::event::Segment::new(&gst::FormattedSegment::<gst::ClockTime>::new());
        assert!(driver.enqueue(gst::event::StreamStart::new("stream")));
        for width in 1..=100 {
            assert!(driver.enqueue(caps(width)) && driver.enqueue(segment.clone()));
            assert!(driver.enqueue(gst::event::Tag::new(gst::TagList::new())));
        }
        let stored = driver.stream.lock().stored.take();
        let types: Vec<_> = stored.iter().map(|event| event.type_()).collect();
        assert_eq!(types, [gst::EventType::StreamStart, gst::EventType::Caps, gst::EventType::Segment, gst::EventType::Tag]);
        let gst::EventView::Caps(latest) = stored[1].view() else { panic!("by its type") };
        assert_eq!(latest.structure().unwrap().get::<gst::Caps>("caps").unwrap().structure(0).unwrap().get::<i32>("width").unwrap(), 100);
    }
}
