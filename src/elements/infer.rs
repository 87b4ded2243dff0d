//! The driver that all inference elements share: it executes what the state machine of the stream ([`crate::stages::flow`]) asks for, on the element's pads.
//!
//! # Files
//!
//! Each uses only those below it:
//!
//! | file | is |
//! |---|---|
//! | `detect`, `classify` | an element: its properties, and what it does with a frame |
//! | `lifecycle` | the state changes of the element: when a model is made |
//! | `pads` | the pads of the element, whose functions call the driver |
//! | `infer` | the driver: events, queries and flows of pads, the task of the source pad |
//! | `frames`, `model` | what becomes of a frame; how the stream comes by its stage |
//! | `stream` | the in-flight queue, and what is known of the stream, behind one lock |
//! | `in_flight`, `events`, `loading` | what is in the queue, and kept of it; a stage that is being made |
//! | `pool`, `latency`, `backlog`, `policy`, `stats` | upstream's buffers, times, what was asked for, what was counted |
//! | `work` | the interface to what an element does with a frame |
//!
//! The state machine is in [`crate::stages::flow`], and pure.
//!
//! # Threads
//!
//! - The *streaming thread* (upstream's) brings buffers and events to the sink pad. It maps a buffer, starts the run, and goes
//!   on; it blocks only while the queue is full, or, under a policy that skips frames, while too many frames that
//!   pass without inference wait for their turn. That is the backpressure. Behind a live source it blocks only while the stream
//!   keeps up ([`super::backlog`]).
//! - *Workers* of the stage end runs and put the result into its slot of the queue. They never block, push, or touch a pad.
//! - The *source pad's task* takes what is complete, in arrival order, attaches the results and pushes. So results leave as
//!   soon as they are ready, also when no next frame comes, and no further `queue` is needed.
//!
//! The stage may still be made when the stream begins; [`super::model`] waits for it, for the caps and whatever comes first.
//!
//! Serialized events pass through the queue and keep their place; frames leave by the task or not at all. What becomes of one
//! frame is decided in [`super::frames`].
//!
//! # Ends
//!
//! The states, and what leads from one to the next, are in [`crate::stages::flow`]. In short:
//!
//! - *Flush*: FLUSH_START empties the queue, and returns when the task's turn is over. Runs that have not begun are dropped, so
//!   that flushes in a row pile nothing up; those that end later find nothing.
//!   FLUSH_STOP starts the task anew. Upstream sends a sticky event once, so those that were in the queue are kept and put on the
//!   source pad then, as a `queue` does.
//! - *Downstream's end of stream*: the task drops what lies before the next segment or EOS, and goes on; upstream hears `Eos`
//!   with its next buffer and sends its own EOS, which passes.
//! - *An error downstream*: the queue is closed, the task pauses, and upstream hears of it with its next buffer; the bus, if
//!   upstream has sent EOS already. NotLinked
//!   ends when the source pad is linked (RECONFIGURE), everything else with a flush or a new activation. A peer that is linked after the end
//!   hears it then.
//! - *Too many failures in a row* (`max-failures`), or one of a model that never runs: an error on the bus that says why, and then as after an
//!   error downstream.
//!
//! # Locks
//!
//! [`Driver::task_control`] is held while a thread other than the task's starts, stops or pauses the task. It comes before those of the stream
//! ([`super::stream`]). It is held while the task's turn ends, so the task never takes it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video as gst_video;

use super::backlog::Backlog;
use super::events::is_kept;
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

/// See the module.
pub(super) struct Driver {
    cat: gst::DebugCategory,
    stream: Arc<Stream>,
    /// See the module.
    task_control: Mutex<()>,
    /// What a classifier saved, once it has had a model.
    pub(super) reuse: OnceLock<Arc<ReuseCounts>>,
}

thread_local! {
    /// The address of the driver whose task has its turn on this thread; 0 for none.
    static IN_TURN: Cell<usize> = const { Cell::new(0) };
}

impl Driver {
    pub(super) fn new(cat: gst::DebugCategory) -> Arc<Self> {
        Arc::new(Self { cat, stream: Arc::new(Stream::new(cat)), task_control: Mutex::default(), reuse: OnceLock::new() })
    }

    /// Begins a stream with the stage that is, or will be, made.
    pub(super) fn begin_stream(&self, loading: Arc<Loading>) {
        self.stream.begin(loading);
    }

    /// The element is about to stop: releases the threads that wait for the stage, or for a slot.
    pub(super) fn stop_waiting(&self) {
        let _stopped = self.stream.handle(Trigger::Deactivate);
        let loading = self.stream.lock().model.loading.take();
        // Outside the lock: the last share of a stage waits for its runs.
        drop(loading);
    }

    /// Ends the stream; the stage stays for the next one.
    pub(super) fn end_stream(&self) {
        self.stream.forget_results();
        self.stream.counts.end();
    }

    /// Releases the stage, and waits for its runs.
    pub(super) fn release(&self) {
        self.stream.release();
    }

    pub(super) fn work(&self) -> Option<Arc<dyn Work>> {
        self.stream.work()
    }

    /// Whether it has to be known how long a frame takes.
    pub(super) fn needs_warm_up(&self, is_live: bool) -> bool {
        self.stream.needs_warm_up(is_live)
    }

    /// Takes a property of the policy; false if it is not one.
    pub(super) fn set_policy(&self, name: &str, value: &gst::glib::Value) -> bool {
        let known = self.stream.policy.lock().unwrap().set(name, value);
        if known {
            if name == policy::MOTION_THRESHOLD {
                // Frames may have been inferred without being looked at.
                self.stream.forget_motion();
            }
            // The task looks at the interval of the statistics.
            self.stream.queue.wake();
        }
        known
    }

    /// The value of a property of the policy; `None` if it is not one.
    pub(super) fn policy(&self, name: &str) -> Option<gst::glib::Value> {
        self.stream.policy.lock().unwrap().get(name)
    }

    pub(super) fn sink_chain(&self, element: &gst::Element, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let arrived = Instant::now();
        let stream = &self.stream;
        stream.upstream()?;
        // Why there is none was reported.
        let work = match stream.work() {
            Some(work) => work,
            None => stream.warm_stage(element, stream.is_live(element)).ok_or_else(|| stream.no_stage())?,
        };
        let Some(info) = stream.lock().input.info.clone() else {
            gst::element_error!(
                element,
                gst::StreamError::Format,
                ("expected raw video, got data without usable caps; put a decoder (`decodebin`) and `videoconvert` in front")
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
                // Returns when the task's turn is over; at once if this is the task's own thread (a seek made downstream).
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
                // Also if the pad is not linked: upstream has to hear so.
                self.open(element, srcpad) && pushed
            }
            gst::EventView::Caps(caps) => {
                // A stream that ends or is flushed is no error; what comes next hears that it does, and waits anew behind a flush.
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
                    // Running time may begin anew.
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

    /// Lets an event enter the queue. While the queue is closed, a sticky one is kept, because upstream will not send it again.
    fn enqueue(&self, event: gst::Event) -> bool {
        loop {
            if self.stream.queue.push(Item::Event(event.clone())).is_ok() {
                return true;
            }
            let trigger = Trigger::EventRefused { is_kept: is_kept(&event) };
            let transition = self.stream.handle_and(trigger, |state, transition| {
                if transition.requires(Action::KeepEvent) {
                    state.kept.keep(event.clone());
                }
            });
            if !transition.requires(Action::RetryEvent) {
                return transition.requires(Action::KeepEvent);
            }
        }
    }

    /// Takes a trigger, and executes all that the transition asks for.
    fn handle(self: &Arc<Self>, trigger: Trigger<gst::FlowError>, element: &gst::Element, srcpad: &gst::Pad) {
        let transition = self.stream.handle(trigger);
        self.perform(&transition, element, srcpad);
    }

    /// Executes the actions of a transition that are done without the lock, in their order. False if the task can't be started.
    fn perform(self: &Arc<Self>, transition: &Transition<gst::FlowError>, element: &gst::Element, srcpad: &gst::Pad) -> bool {
        let mut is_started = true;
        for action in transition.actions() {
            match action {
                Action::DiscardResults => self.stream.forget_results(),
                Action::ResetMotion => self.stream.forget_motion(),
                Action::AwaitPause => {
                    let _paused = srcpad.pause_task();
                }
                // A task that is only paused would leak the closure that it is started with again. It can't join itself, though.
                Action::StopTask if !self.is_in_turn() => {
                    let _stopped = srcpad.stop_task();
                }
                Action::StartTask => is_started = start_task(self, srcpad, element),
                Action::RepeatEos => {
                    // The pad sends its peer the sticky events that this has not seen before any other event, which finds it at its EOS then.
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
                // Done under the lock, or by the caller.
                _ => {}
            }
        }
        is_started
    }

    /// Keeps other threads from starting the task, unless this is its own thread: one of them may wait for it.
    fn task_control(&self) -> Option<MutexGuard<'_, ()>> {
        (!self.is_in_turn()).then(|| self.task_control.lock().unwrap())
    }

    /// Whether this thread is that of the task, in its turn.
    fn is_in_turn(&self) -> bool {
        IN_TURN.get() == std::ptr::from_ref(self).addr()
    }

    /// Opens the queue and starts the task after a flush, an activation, or when the source pad is linked. False if the task can't be started.
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

    /// Puts sticky events on the source pad, which passes them on before whatever is pushed next.
    fn store(&self, srcpad: &gst::Pad, events: impl IntoIterator<Item = gst::Event>) {
        for event in events {
            let stored = srcpad.store_sticky_event(&event);
            gst::log!(self.cat, obj = srcpad, "stored {event:?}: {stored:?}");
        }
    }

    fn set_caps(&self, caps: &gst::CapsRef) -> stages::Result<()> {
        // What comes with caps that are refused must not be taken for what came before.
        self.stream.lock().input.info = None;
        let refused = || {
            stages::Error::new(
                stages::ErrorKind::Config,
                format!(
                    "expected raw video in system memory, got `{caps}`; put a decoder and `videoconvert` in front (`gldownload`, `vapostproc` or \
                     the like if the frames are in a device's memory)"
                ),
            )
        };
        // A video info can be made of encoded video and of frames on a device as well.
        let info = gst_video::VideoInfo::from_caps(caps).ok().filter(|_| caps::is_raw_in_system_memory(caps)).ok_or_else(refused)?;
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
                // Caps that are not ours are refused by the caps event, with an error that helps.
                accept.set_result(true);
                true
            }
            gst::QueryViewMut::Allocation(allocation) => {
                if self.stream.ready_stage(element).is_none() {
                    return false;
                }
                // Downstream answers for the caps that it has seen: let them, and all frames of the old ones, leave first.
                if self.stream.queue.drain().is_err() {
                    return false;
                }
                let answered = srcpad.peer_query(allocation.query_mut());
                self.propose_allocation(allocation);
                gst::debug!(
                    self.cat,
                    obj = element,
                    "allocation: downstream answered {answered}, {} frames more for the queue",
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

    /// Asks for as many buffers more as the queue can hold.
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
        // Where nothing is live the answer is not used.
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
            // A thread that has opened the queue just before starts the task first.
            let _control = self.task_control();
            pad.stop_task().map_err(|_| gst::loggable_error!(self.cat, "cannot stop the source pad's task"))?;
        }
        Ok(())
    }

    pub(super) fn sink_activate(self: &Arc<Self>, pad: &gst::Pad, element: &gst::Element, active: bool, srcpad: &gst::Pad) {
        // The source pad was activated before.
        if active {
            self.handle(Trigger::SinkActivated { sink_is_flushing: is_flushing(pad) }, element, srcpad);
        }
    }

    /// One turn of the source pad's task.
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
            Taken::Late(Item::Frame(frame)) => self.stream.give_up(frame).map(Item::Frame),
            Taken::Late(item) => Some(item),
            Taken::WokenUp => return,
        };
        match item {
            None => self.stream.queue.finish_taken(),
            Some(Item::Event(event)) => {
                let is_eos = event.type_() == gst::EventType::Eos;
                if is_eos {
                    // Before downstream knows: statistics that are read then stay.
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
                } else if let Some(kept) = self.stream.skip_to_segment(trigger) {
                    self.store(pad, kept);
                    self.stream.forget_motion();
                }
            }
        }
    }

    /// As [`Driver::handle`], for a trigger that may pause the task.
    fn handle_in_turn(self: &Arc<Self>, trigger: Trigger<gst::FlowError>, element: &gst::Element, pad: &gst::Pad) {
        let transition = self.stream.handle_and(trigger, |_, transition| {
            if transition.requires(Action::PauseTask) {
                let _paused = pad.pause_task();
            }
        });
        self.perform(&transition, element, pad);
    }

    /// The task does not go on: upstream must not wait for it.
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
        let trigger = Trigger::EventPushed { turn, is_eos, is_refused_and_kept: !is_taken && is_kept(&event) };
        let _pushed = self.stream.handle_and(trigger, |state, transition| {
            if transition.requires(Action::KeepEventFirst) {
                state.kept.keep_first(event);
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
                    // Before the frame goes on: a sink in PAUSED blocks the push.
                    runs = self.break_off(element, &self.describe_never_runs(&error), turn);
                } else {
                    too_many = self.count_failure(element, &leaving, reason, *n_failed);
                }
            }
            Departure::Inferred => self.frame_inferred(element, &leaving),
        }
        let (buffer, held) = self.stream.attach(leaving);
        gst::trace!(self.cat, obj = pad, "pushing {buffer:?}");
        let pushed = pad.push(buffer);
        // If downstream holds the buffer, it has counted it by now.
        drop(held);
        runs?;
        let pushed = pushed?;
        too_many.map_or(Ok(()), |said| self.break_off(element, &said, turn)).map(|()| pushed)
    }

    /// A frame was inferred: it may have taken longer than was reported.
    fn frame_inferred(&self, element: &gst::Element, frame: &Leaving) {
        let is_raised = {
            let state = &mut *self.stream.lock();
            if frame.guard.has_succeeded() {
                state.frames.n_failed_in_a_row = 0;
            }
            state.latency.inferred(frame.took, state.slots.capacity)
        };
        if is_raised {
            gst::info!(self.cat, obj = element, "latency raised to {:?}", frame.took);
            let _posted = element.post_message(gst::message::Latency::builder().src(element).build());
        }
    }

    /// One more frame on which inference failed: a warning; if that is one too many, what to say behind the frame.
    fn count_failure(&self, element: &gst::Element, frame: &Leaving, reason: &str, n_failed: u64) -> Option<String> {
        let n_in_a_row = {
            let frames = &mut self.stream.lock().frames;
            // A region of the frame may have had a result.
            frames.n_failed_in_a_row = if frame.guard.has_succeeded() { 0 } else { frames.n_failed_in_a_row + 1 };
            frames.n_failed_in_a_row
        };
        let frame_number = frame.results.frame_number;
        // 1, 2, 4, 8, ...: the first is reported at once, and a stream of failures does not flood the bus.
        if n_failed.is_power_of_two() {
            gst::element_warning!(
                element,
                gst::StreamError::Failed,
                (
                    "inference failed on frame {frame_number}: {}; the frame goes on without results ({n_failed} failed so far)",
                    stages::Printable(reason)
                )
            );
        }
        let max_failures = self.stream.policy().max_failures.filter(|&max_failures| n_in_a_row > u64::from(max_failures))?;
        let device = self.device();
        Some(format!(
            "inference failed on {n_in_a_row} frames in a row, expected at most {max_failures} (max-failures); {n_failed} failed in all, the last \
             one, frame {frame_number}, because: {reason}; see whether `roiflow bench MODEL --device {device}` runs the model, take another \
             device, or set max-failures=-1 to go on without results"
        ))
    }

    fn describe_never_runs(&self, error: &stages::Error) -> String {
        let device = self.device();
        format!(
            "the model has not run once, nor does it on a black frame: {error}; see whether `roiflow bench MODEL --device {device}` runs it, or \
             take another device"
        )
    }

    /// What the stage runs on, for `--device`.
    fn device(&self) -> String {
        self.work().map_or_else(|| "NAME".to_owned(), |work| work.stage().stats().device)
    }

    /// Too many frames have failed: tells the bus. Fails, unless that was before a flush.
    fn break_off(&self, element: &gst::Element, said: &str, turn: Turn) -> Result<(), gst::FlowError> {
        if self.stream.handle(Trigger::Break { turn }).is_skipped() {
            return Ok(());
        }
        gst::element_error!(element, gst::StreamError::Failed, ("{}", stages::Printable(said)));
        Err(gst::FlowError::Error)
    }

    /// Posts the statistics if it is time, and tells when it is time again.
    fn stats_due(&self, element: &gst::Element) -> Option<Instant> {
        let (is_due, next) = self.stream.counts.due(self.stream.policy().stats_interval);
        if is_due {
            let _posted = element.post_message(gst::message::Element::builder(self.stats()).src(element).build());
        }
        next
    }

    /// The read-only property `stats`.
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
    // Weak, because the pad owns the task: the element must be able to go.
    let (driver, weak_pad, weak_element) = (Arc::downgrade(driver), pad.downgrade(), element.downgrade());
    let turn = move || {
        if let (Some(driver), Some(pad), Some(element)) = (driver.upgrade(), weak_pad.upgrade(), weak_element.upgrade()) {
            IN_TURN.set(Arc::as_ptr(&driver).addr());
            // A panic must not unwind into C: it ends the stream with an error, as in a pad function.
            let turned = catch_unwind(AssertUnwindSafe(|| driver.src_task(&pad, &element)));
            if turned.is_err() {
                gst::element_error!(element, gst::LibraryError::Failed, ("a bug in `{}`: its source pad's task panicked", element.name()));
                let _closed = catch_unwind(AssertUnwindSafe(|| driver.close_after_panic(&pad, &element)));
                let _paused = pad.pause_task();
            }
            IN_TURN.set(0);
        }
    };
    pad.start_task(turn).is_ok()
}

/// Between the begin of a flush and its end, and while the pad is not active.
fn is_flushing(pad: &gst::Pad) -> bool {
    pad.pad_flags().contains(gst::PadFlags::FLUSHING)
}

/// What a push returned, for the state machine.
fn returned(error: gst::FlowError) -> Return<gst::FlowError> {
    match error {
        gst::FlowError::Eos => Return::Eos,
        gst::FlowError::Flushing => Return::Flushing,
        gst::FlowError::NotLinked => Return::NotLinked,
        error => Return::Error(error),
    }
}

/// Posts the error of downstream that upstream will not hear of.
fn report(element: &gst::Element, transition: &Transition<gst::FlowError>) {
    let error = match transition.state() {
        State::Failed(error) | State::Broken(error) => error,
        _ => gst::FlowError::NotLinked,
    };
    gst::element_error!(
        element,
        gst::StreamError::Failed,
        ("the frames in flight are lost: downstream answered {error:?}; link every pad, and see the first error on the bus")
    );
}

/// The running time before which the sink shows nothing: behind the frame that was late, by as much again, so that it catches up; or
/// the time of the next frame that it wants, where it throttles. `None` if it is not behind.
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
    fn while_the_queue_is_closed_the_latest_event_of_each_type_is_kept() {
        gst::init().unwrap();
        let driver = Driver::new(*CAT);
        let caps = |width: i32| gst::event::Caps::new(&gst::Caps::builder("video/x-raw").field("width", width).build());
        let segment = gst::event::Segment::new(&gst::FormattedSegment::<gst::ClockTime>::new());
        assert!(driver.enqueue(gst::event::StreamStart::new("stream")));
        for width in 1..=100 {
            assert!(driver.enqueue(caps(width)) && driver.enqueue(segment.clone()));
            assert!(driver.enqueue(gst::event::Tag::new(gst::TagList::new())));
        }
        let kept = driver.stream.lock().kept.take();
        let types: Vec<_> = kept.iter().map(|event| event.type_()).collect();
        assert_eq!(types, [gst::EventType::StreamStart, gst::EventType::Caps, gst::EventType::Segment, gst::EventType::Tag]);
        let gst::EventView::Caps(latest) = kept[1].view() else { panic!("by its type") };
        assert_eq!(latest.structure().unwrap().get::<gst::Caps>("caps").unwrap().structure(0).unwrap().get::<i32>("width").unwrap(), 100);
    }
}
