//! The driver that all inference elements share: caps, the window of frames in flight, flush, EOS, latency, statistics.
//!
//! # Threads
//!
//! - The *streaming thread* (upstream's) brings buffers and events to the sink pad. It maps a buffer, starts the run, and goes
//!   on; it blocks only while the window is full, or, where a policy says what else to do then, while too many frames that
//!   pass without inference wait for their turn. That is the backpressure. Behind a live source it blocks only while the stream
//!   keeps up ([`super::backlog`]).
//! - *Workers* of the stage end runs and put the result into its place in the window. They never block, push, or touch a pad.
//! - The *source pad's task* takes what is complete, in arrival order, attaches the results and pushes. So results leave as
//!   soon as they are ready, also when no next frame comes, and no further `queue` is needed.
//!
//! The stage may still be made when the stream begins; [`super::stage`] waits for it, for the caps and whatever comes first.
//!
//! Serialized events pass through the window and keep their place; frames leave by the task or not at all. What becomes of one
//! frame is decided in [`super::frames`].
//!
//! # Ends
//!
//! - *Flush*: FLUSH_START empties the window, and returns when the task's turn is over. Runs that have not begun are dropped, so
//!   that flushes in a row pile nothing up; those that end later find nothing.
//!   FLUSH_STOP starts the task anew. Upstream sends a sticky event once, so those that were in the window are kept and put on the
//!   source pad then, as a `queue` does.
//! - *Downstream's end of stream*: the task drops what lies before the next segment or EOS, and goes on; upstream hears `Eos`
//!   with its next buffer and sends its own EOS, which passes.
//! - *An error downstream*: the window is closed, the task pauses, and upstream hears of it with its next buffer; the bus, if
//!   upstream has sent EOS already. Exactly one of them: `Stream::flow` and `Stream::has_eos` change under one lock. NotLinked
//!   ends when the source pad is linked (RECONFIGURE), everything else with a flush or a new activation. Who is linked behind the end hears
//!   it then.
//! - *Too many failures in a row* (`max-failures`), or one of a model that never runs: an error on the bus that says why, and then as after an
//!   error downstream.
//!
//! `Driver::motion` is held alone, while a picture is looked at; `Driver::found` while results are carried, which takes `Driver::policy`.
//!
//! `Window` is closed exactly while `Stream::flow` is an error other than `Eos`. Lock order: `Driver::opening`, `Driver::stream`,
//! the window's own. The last two are never held while something is pushed, posted or run; `opening` is held while the task's
//! turn ends, so the task never takes it. `Driver::loading` comes before the lock inside of what it holds ([`super::lifecycle`]), and that
//! before `stream`; `loading` also before `stage`.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video as gst_video;

use super::backlog::Backlog;
use super::economy::EconomyCounts;
use super::frames::InFlight;
use super::lifecycle::Loading;
use super::policy::Policy;
use super::pool::Pool;
use super::stage::Stage;
use super::stats::Counts;
use super::{buffer, caps, meta};
use crate::frame::FrameResults;
use crate::stages;
use crate::stages::window::Taken;
use crate::stages::{MotionGate, Window};

/// What is in the window.
pub(super) enum Item {
    Frame(Box<InFlight>),
    Event(gst::Event),
}

/// See the module.
pub(super) struct Driver {
    pub(super) cat: gst::DebugCategory,
    pub(super) window: Window<Item>,
    /// Once it is put to work.
    pub(super) stage: Mutex<Option<Arc<dyn Stage>>>,
    /// The making of it.
    pub(super) loading: Mutex<Option<Arc<Loading>>>,
    /// Nobody need wait for it any more.
    pub(super) is_given_up: AtomicBool,
    pub(super) stream: Mutex<Stream>,
    /// One thread at a time starts the task anew.
    opening: Mutex<()>,
    /// Copied once per frame.
    pub(super) policy: Mutex<Policy>,
    /// What the latest inferred frame had, while it is to be carried on, and its number.
    pub(super) found: Mutex<Option<(u64, FrameResults)>>,
    /// What the latest frame looked like that was to be inferred, while that matters, and its number.
    pub(super) motion: Mutex<(MotionGate, u64)>,
    pub(super) counts: Counts,
    /// What a classifier saved, once it has had a model.
    pub(super) economy: OnceLock<Arc<EconomyCounts>>,
}

/// What is known of the stream; reset on stop.
pub(super) struct Stream {
    pub(super) info: Option<gst_video::VideoInfo>,
    pub(super) segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    /// What upstream hears with its next buffer.
    flow: Result<gst::FlowSuccess, gst::FlowError>,
    /// Upstream has sent EOS, so it hears nothing any more.
    has_eos: bool,
    /// Tells a turn of the task that a flush came meanwhile.
    n_flushes: u64,
    /// Tells a turn of the task that somebody was linked downstream meanwhile.
    n_reconfigures: u64,
    /// Sticky events that were in the window when it was closed, in order.
    kept: Vec<gst::Event>,
    /// The end was the last that left: `n_reconfigures` of before.
    ended_at: Option<u64>,
    /// The thread of the source pad's task.
    task_thread: Option<ThreadId>,
    /// Frames that can run at once.
    pub(super) n_at_once: usize,
    /// Frames that are to be in flight so that no request is idle.
    pub(super) wanted: usize,
    /// Frames that may be in flight.
    pub(super) capacity: usize,
    /// Whether upstream is live, if it was asked.
    pub(super) is_live: Option<bool>,
    pub(super) pool: Pool,
    /// Whether a live stream keeps up.
    pub(super) backlog: Backlog,
    /// How long runs took lately, from the begin of a frame's first to the end of its last.
    pub(super) run_time: Duration,
    /// Told to live pipelines; zero until the stage is warm, and then only ever raised.
    pub(super) latency: Duration,
    /// How long a frame takes is known: from a warm-up, or, where that came to nothing, from the first run.
    pub(super) is_warm: bool,
    /// Live, and nothing was told, for the warm-up failed, and not for the model's fault: the first run tells.
    pub(super) owes_latency: bool,
    pub(super) n_frames: u64,
    /// The number of the frame that leaves next, if none is missing.
    pub(super) next_to_leave: u64,
    /// Frames whose inference failed since the last run that succeeded.
    pub(super) n_failed_in_a_row: u64,
    /// They were too many, and the bus knows.
    pub(super) is_broken: bool,
    /// The sink wants no frame of before this running time.
    pub(super) earliest: Option<gst::ClockTime>,
    /// When the statistics are posted next.
    stats_due: Option<Instant>,
    warned_of_lost_rois: bool,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            info: None,
            segment: None,
            flow: Err(gst::FlowError::Flushing),
            has_eos: false,
            n_flushes: 0,
            n_reconfigures: 0,
            kept: Vec::new(),
            ended_at: None,
            task_thread: None,
            n_at_once: 1,
            wanted: 1,
            capacity: 1,
            is_live: None,
            pool: Pool::default(),
            backlog: Backlog::default(),
            run_time: Duration::ZERO,
            latency: Duration::ZERO,
            is_warm: false,
            owes_latency: false,
            n_frames: 0,
            next_to_leave: 0,
            n_failed_in_a_row: 0,
            is_broken: false,
            earliest: None,
            stats_due: None,
            warned_of_lost_rois: false,
        }
    }
}

impl Stream {
    /// For a full window: what is told, or, where nobody was told, what is known so far.
    fn latency(&self) -> Duration {
        if self.is_warm { self.latency } else { self.expected_latency() }
    }

    /// For a frame that waits one run for a slot and then goes through a full window.
    pub(super) fn expected_latency(&self) -> Duration {
        self.run_time * (1 + self.capacity as u32)
    }
}

impl Driver {
    pub(super) fn new(cat: gst::DebugCategory) -> Arc<Self> {
        Arc::new(Self {
            cat,
            window: Window::new(1),
            stage: Mutex::default(),
            loading: Mutex::default(),
            is_given_up: AtomicBool::new(false),
            stream: Mutex::default(),
            opening: Mutex::default(),
            policy: Mutex::default(),
            found: Mutex::default(),
            motion: Mutex::default(),
            counts: Counts::default(),
            economy: OnceLock::new(),
        })
    }

    /// Ends the stream; the stage stays for the next one.
    pub(super) fn end_stream(&self) {
        {
            let mut stream = self.stream.lock().unwrap();
            // Who still deals with what was before must not take the next stream for it.
            *stream = Stream { n_flushes: stream.n_flushes + 1, n_reconfigures: stream.n_reconfigures + 1, ..Stream::default() };
        }
        self.forget_results();
        self.counts.end();
    }

    /// Takes a property of the policy; false if it is not one.
    pub(super) fn set_policy(&self, name: &str, value: &gst::glib::Value) -> bool {
        let known = self.policy.lock().unwrap().set(name, value);
        if known {
            if name == "motion-threshold" {
                // Frames may have been inferred without being looked at.
                self.forget_motion();
            }
            // The task looks at the interval of the statistics.
            self.window.wake();
        }
        known
    }

    /// The value of a property of the policy; `None` if it is not one.
    pub(super) fn policy(&self, name: &str) -> Option<gst::glib::Value> {
        self.policy.lock().unwrap().get(name)
    }

    pub(super) fn sink_event(self: &Arc<Self>, pad: &gst::Pad, element: &gst::Element, event: gst::Event, srcpad: &gst::Pad) -> bool {
        match event.view() {
            gst::EventView::FlushStart(_) => {
                self.begin_flush();
                let pushed = srcpad.push_event(event);
                self.pause_for_flush(pad, srcpad, element);
                pushed
            }
            gst::EventView::FlushStop(_) => {
                // Some send it without a FLUSH_START.
                self.begin_flush();
                // What comes next belongs to a new segment.
                self.stream.lock().unwrap().kept.retain(|event| event.type_() != gst::EventType::Segment);
                let pushed = srcpad.push_event(event);
                // Also if nobody is linked: the task has to tell upstream so.
                self.open_again(srcpad, element) && pushed
            }
            gst::EventView::Caps(caps) => {
                // A stream that ends or is flushed is no error; what comes next hears that it does, and waits anew behind a flush.
                if self.warm_stage(element, self.is_live(element)).is_none() && self.no_stage() != gst::FlowError::Flushing {
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
                let mut stream = self.stream.lock().unwrap();
                (stream.segment, stream.earliest, stream.is_live) = (segment, None, None);
                // Running time may begin anew.
                stream.backlog = Backlog::default();
                stream.has_eos = false;
                if stream.flow == Err(gst::FlowError::Eos) {
                    stream.flow = Ok(gst::FlowSuccess::Ok);
                }
                true
            }
            gst::EventView::Eos(_) => {
                let (flow, is_known) = {
                    let mut stream = self.stream.lock().unwrap();
                    stream.has_eos = true;
                    (stream.flow, stream.is_broken)
                };
                match flow {
                    Err(error) if is_fatal(error) => {
                        if !is_known {
                            post_flow_error(element, error);
                        }
                        false
                    }
                    _ => self.enqueue(event),
                }
            }
            _ if event.is_serialized() => self.enqueue(event),
            _ => gst::Pad::event_default(pad, Some(element), event),
        }
    }

    /// Gives an event its place. While the window is closed, a sticky one is kept, for upstream will not send it again.
    fn enqueue(&self, event: gst::Event) -> bool {
        loop {
            if self.window.push(Item::Event(event.clone())).is_ok() {
                return true;
            }
            let mut stream = self.stream.lock().unwrap();
            if is_open(stream.flow) {
                continue; // It was opened again meanwhile.
            }
            let keep = is_kept(&event);
            if keep {
                keep_in(&mut stream.kept, event);
            }
            return keep;
        }
    }

    fn begin_flush(&self) {
        let forgotten = {
            let mut stream = self.stream.lock().unwrap();
            stream.n_flushes += 1;
            stream.earliest = None;
            stream.backlog = Backlog::default();
            self.close(&mut stream, gst::FlowError::Flushing)
        };
        self.wake_waiting();
        self.forget(forgotten, gst::FlowError::Flushing);
        if let Some(stage) = self.stage() {
            stage.drop_pending();
        }
        self.forget_results();
    }

    /// Returns when the task's turn is over; at once if this is the task's own thread (a seek made downstream).
    fn pause_for_flush(self: &Arc<Self>, sinkpad: &gst::Pad, srcpad: &gst::Pad, element: &gst::Element) {
        let opening = self.opening();
        if is_flushing(sinkpad) {
            // A start may have opened it behind the begin of the flush: its task would wait for frames, and this one for the task.
            self.begin_flush();
            let _paused = srcpad.pause_task();
        } else {
            drop(opening);
            self.end_overtaken_flush(srcpad, element);
        }
    }

    /// Stopped and started in mid-flush, a sink pad may not hear of its end: who heard of its begin has to, and what that closed is opened.
    fn end_overtaken_flush(self: &Arc<Self>, srcpad: &gst::Pad, element: &gst::Element) {
        if is_flushing(srcpad) {
            srcpad.push_event(gst::event::FlushStop::new(true));
        }
        self.open_again(srcpad, element);
    }

    /// Keeps others from starting the task, unless this is its own thread: it may be waited for by one of them.
    fn opening(&self) -> Option<MutexGuard<'_, ()>> {
        let is_task = self.stream.lock().unwrap().task_thread == Some(thread::current().id());
        (!is_task).then(|| self.opening.lock().unwrap())
    }

    /// What was found before has nothing to do with what comes.
    fn forget_results(&self) {
        *self.found.lock().unwrap() = None;
        self.forget_motion();
        if let Some(stage) = self.stage() {
            stage.reset();
        }
    }

    /// Closes the window. `stream` is this driver's own. What was in the window is for the caller to forget, without the lock.
    fn close(&self, stream: &mut Stream, why: gst::FlowError) -> Vec<Item> {
        (stream.flow, stream.ended_at) = (Err(why), None);
        let forgotten = self.window.flush();
        kept_of(&forgotten).for_each(|event| keep_in(&mut stream.kept, event));
        forgotten
    }

    /// Opens the window after a flush, an activation, or when the source pad is linked; does nothing if it is open, or the pad is not
    /// active any more.
    fn open_again(self: &Arc<Self>, srcpad: &gst::Pad, element: &gst::Element) -> bool {
        let opening = self.opening();
        let n_flushes = {
            let stream = self.stream.lock().unwrap();
            if is_open(stream.flow) {
                return true;
            }
            stream.n_flushes
        };
        // A stop has overtaken it, which closed the window before the flushes were counted here, or closes it again.
        if !srcpad.is_active() {
            return true;
        }
        // A task that is only paused would leak the closure that it is started with again. It can't join itself, though.
        if opening.is_some() {
            let _stopped = srcpad.stop_task();
            // Its thread may be another element's by now.
            self.stream.lock().unwrap().task_thread = None;
        }
        match self.flow() {
            // A frame of before may have left since the flush began, and its results been kept.
            Err(gst::FlowError::Flushing) => self.forget_results(),
            // What was in the window when it was closed was not inferred.
            _ => self.forget_motion(),
        }
        loop {
            let kept = {
                let mut stream = self.stream.lock().unwrap();
                if is_open(stream.flow) {
                    break; // By the task that was stopped here, for it has sought.
                }
                if stream.n_flushes != n_flushes {
                    return true; // That flush's end opens it.
                }
                if stream.kept.is_empty() {
                    stream.flow = Ok(gst::FlowSuccess::Ok);
                    (stream.has_eos, stream.is_broken, stream.n_failed_in_a_row) = (false, false, 0);
                    self.window.resume();
                    break;
                }
                std::mem::take(&mut stream.kept)
            };
            self.store(srcpad, kept);
        }
        start_task(self, srcpad, element)
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
        self.stream.lock().unwrap().info = None;
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
        self.stream.lock().unwrap().info = Some(info);
        Ok(())
    }

    pub(super) fn sink_query(&self, pad: &gst::Pad, element: &gst::Element, query: &mut gst::QueryRef, srcpad: &gst::Pad) -> bool {
        let serialized = query.is_serialized();
        match query.view_mut() {
            gst::QueryViewMut::AcceptCaps(accept) => {
                // Caps that are not ours are refused by the caps event, with a sentence that says what to do.
                accept.set_result(true);
                true
            }
            gst::QueryViewMut::Allocation(allocation) => {
                if self.ready_stage(element).is_none() {
                    return false;
                }
                // Downstream answers for the caps that it has seen: let them, and all frames of the old ones, leave first.
                if self.window.drain().is_err() {
                    return false;
                }
                let answered = srcpad.peer_query(allocation.query_mut());
                self.propose_allocation(allocation);
                gst::debug!(
                    self.cat,
                    obj = element,
                    "allocation: downstream answered {answered}, {} frames more for the window",
                    self.capacity()
                );
                true
            }
            _ if serialized => {
                if self.window.drain().is_err() {
                    return false;
                }
                srcpad.peer_query(query)
            }
            _ => gst::Pad::query_default(pad, Some(element), query),
        }
    }

    /// Asks for as many buffers more as the window can hold.
    fn propose_allocation(&self, allocation: &mut gst::query::Allocation<gst::QueryRef>) {
        let n_held = self.capacity() as u32;
        let pools: Vec<_> =
            allocation.allocation_pools().map(|(pool, size, min, max)| (pool.map(|pool| pool.to_owned()), size, min, max)).collect();
        for (pool_idx, (pool, size, min, max)) in pools.iter().enumerate() {
            let max = if *max == 0 { 0 } else { max.saturating_add(n_held) };
            allocation.set_nth_allocation_pool(pool_idx as u32, pool.as_ref(), *size, min.saturating_add(n_held), max);
        }
        let size = self.stream.lock().unwrap().info.as_ref().map_or(0, gst_video::VideoInfo::size);
        if pools.is_empty() && size > 0 {
            allocation.add_allocation_pool(None::<&gst::BufferPool>, size as u32, n_held, 0);
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.stream.lock().unwrap().capacity
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
        // Where nothing is live nobody goes by the answer: it is what is known.
        if live && self.warm_stage(element, live).is_none() {
            return false;
        }
        let max_latency = self.policy.lock().unwrap().max_latency.unwrap_or(Duration::MAX);
        let ours = clock_time(self.stream.lock().unwrap().latency().min(max_latency));
        latency.set(live, min + ours, max.map(|max| max + ours));
        true
    }

    pub(super) fn src_event(self: &Arc<Self>, pad: &gst::Pad, element: &gst::Element, event: gst::Event) -> bool {
        if event.type_() == gst::EventType::Reconfigure {
            let flow = {
                let mut stream = self.stream.lock().unwrap();
                stream.n_reconfigures += 1;
                if stream.ended_at.is_some() {
                    self.window.wake();
                }
                stream.flow
            };
            if flow == Err(gst::FlowError::NotLinked) {
                gst::debug!(self.cat, obj = pad, "linked: trying again");
                self.open_again(pad, element);
            }
        }
        if let gst::EventView::Qos(qos) = event.view() {
            self.stream.lock().unwrap().earliest = earliest(qos);
        }
        gst::Pad::event_default(pad, Some(element), event)
    }

    pub(super) fn src_activate(self: &Arc<Self>, pad: &gst::Pad, element: &gst::Element, active: bool) -> Result<(), gst::LoggableError> {
        if active {
            self.stream.lock().unwrap().kept.clear();
            if !self.open_again(pad, element) {
                return Err(gst::loggable_error!(self.cat, "cannot start the source pad's task"));
            }
        } else {
            self.begin_flush();
            pad.stop_task().map_err(|_| gst::loggable_error!(self.cat, "cannot stop the source pad's task"))?;
        }
        Ok(())
    }

    pub(super) fn sink_activate(self: &Arc<Self>, pad: &gst::Pad, element: &gst::Element, active: bool, srcpad: &gst::Pad) {
        // The source pad was activated before.
        if active && !is_flushing(pad) {
            self.end_overtaken_flush(srcpad, element);
        }
    }

    /// One turn of the source pad's task.
    fn src_task(&self, pad: &gst::Pad, element: &gst::Element) {
        let (n_flushes, n_reconfigures, is_linked_at_end) = {
            let mut stream = self.stream.lock().unwrap();
            stream.task_thread = Some(thread::current().id());
            let n_now = stream.n_reconfigures;
            (stream.n_flushes, n_now, stream.ended_at.as_mut().is_some_and(|n_before| std::mem::replace(n_before, n_now) != n_now))
        };
        if is_linked_at_end {
            // The pad has stored the end, and tells its peer what that has not heard before any other event, which finds it at its end then.
            let prompt = gst::event::CustomDownstream::new(gst::Structure::new_empty("roiflow-end-again"));
            let _refused = pad.push_event(prompt);
        }
        let deadline = |item: &Item| match item {
            Item::Frame(frame) => frame.deadline(),
            Item::Event(_) => None,
        };
        let Ok(taken) = self.window.take(deadline, self.stats_due(element)) else {
            let stream = self.stream.lock().unwrap();
            // Who opens the window starts the task: it must not pause after that.
            if !is_open(stream.flow) {
                let _paused = pad.pause_task();
            }
            return;
        };
        let item = match taken {
            Taken::Complete(item) => Some(item),
            Taken::Late(Item::Frame(frame)) => self.give_up(frame).map(Item::Frame),
            Taken::Late(item) => Some(item),
            Taken::Nothing => return,
        };
        let Some(item) = item else { return self.window.taken() };
        match item {
            Item::Event(event) => {
                let is_eos = event.type_() == gst::EventType::Eos;
                if is_eos {
                    // Before anybody downstream knows: who asks then finds what stays.
                    self.counts.end();
                }
                self.push_event(pad, event, n_flushes, n_reconfigures);
                self.window.taken();
                if is_eos {
                    self.log_totals(element);
                }
            }
            Item::Frame(frame) => {
                let flow = self.push_frame(pad, element, *frame, n_flushes);
                self.window.taken();
                match flow {
                    Ok(_) => {}
                    Err(gst::FlowError::Eos) => self.skip_to_segment(pad, n_flushes),
                    Err(error) => self.stop_on(pad, element, error, n_flushes, n_reconfigures),
                }
            }
        }
    }

    fn push_event(&self, pad: &gst::Pad, event: gst::Event, n_flushes: u64, n_reconfigures: u64) {
        gst::log!(self.cat, obj = pad, "pushing {event:?}");
        let is_taken = pad.push_event(event.clone());
        let mut stream = self.stream.lock().unwrap();
        let was_flushed = stream.n_flushes != n_flushes;
        if !is_taken && was_flushed && is_kept(&event) {
            // The pad was flushing and did not store it; it is older than those that were in the window.
            stream.kept.insert(0, event.clone());
        }
        // Other sticky events are stored as well, and said before what comes next; nothing comes next behind an end.
        let is_end = !was_flushed && event.type_() == gst::EventType::Eos;
        stream.ended_at = is_end.then_some(n_reconfigures);
    }

    /// Posts the statistics if it is time, and tells when it is time again.
    fn stats_due(&self, element: &gst::Element) -> Option<Instant> {
        let interval = self.policy.lock().unwrap().stats_interval;
        let now = Instant::now();
        let (is_due, next) = {
            let mut stream = self.stream.lock().unwrap();
            let due = stream.stats_due;
            // A shorter interval than before holds at once.
            let next = interval.map(|interval| due.filter(|&due| due > now).map_or(now + interval, |due| due.min(now + interval)));
            stream.stats_due = next;
            (interval.is_some() && due.is_some_and(|due| due <= now), next)
        };
        if is_due {
            let _posted = element.post_message(gst::message::Element::builder(self.stats()).src(element).build());
        }
        next
    }

    /// Downstream has enough of this segment: drop the rest of it.
    fn skip_to_segment(&self, pad: &gst::Pad, n_flushes: u64) {
        gst::debug!(self.cat, obj = pad, "downstream is at its end of the stream");
        let begins_or_ends = |item: &Item| {
            use gst::EventType::{Eos, Segment, StreamStart};
            matches!(item, Item::Event(event) if matches!(event.type_(), Eos | Segment | StreamStart))
        };
        let skipped = {
            let mut stream = self.stream.lock().unwrap();
            if stream.n_flushes != n_flushes {
                return; // That is of before the flush.
            }
            let (skipped, found) = self.window.skip_to(begins_or_ends);
            if !found {
                stream.flow = Err(gst::FlowError::Eos);
            }
            skipped
        };
        self.store(pad, kept_of(&skipped));
        self.forget(skipped, gst::FlowError::Eos);
        self.forget_motion();
    }

    /// Downstream takes nothing more: tell upstream with its next buffer, or the bus if there will be none.
    fn stop_on(&self, pad: &gst::Pad, element: &gst::Element, error: gst::FlowError, n_flushes: u64, n_reconfigures: u64) {
        gst::debug!(self.cat, obj = pad, "downstream says {error:?}");
        // A neighbor that was parted from this pad in mid-push, and stopped.
        let was_parted = error == gst::FlowError::Flushing && !pad.is_linked();
        let error = if was_parted { gst::FlowError::NotLinked } else { error };
        let (is_unheard, forgotten) = {
            let mut stream = self.stream.lock().unwrap();
            if stream.n_flushes != n_flushes {
                return; // The error is of before the flush.
            }
            if matches!(error, gst::FlowError::NotLinked | gst::FlowError::Flushing) && stream.n_reconfigures != n_reconfigures {
                return; // Linked while the error was on its way: nobody will say so again.
            }
            let forgotten = self.close(&mut stream, error);
            let _paused = pad.pause_task();
            (stream.has_eos && !stream.is_broken, forgotten)
        };
        self.forget(forgotten, error);
        if let Some(stage) = self.stage() {
            // Others may wait for the requests.
            stage.drop_pending();
        }
        if is_unheard && is_fatal(error) {
            post_flow_error(element, error);
        }
    }

    pub(super) fn flow(&self) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.stream.lock().unwrap().flow
    }

    pub(super) fn warn_of_failure(&self, element: &gst::Element, frame_number: u64, reason: &str, n_failed: u64) {
        // 1, 2, 4, 8, ...: the first is said at once, and a stream of failures does not flood the bus.
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
    }

    /// Too many frames have failed: tells the bus. Fails, unless that was before a flush.
    pub(super) fn break_off(&self, element: &gst::Element, said: &str, n_flushes: u64) -> Result<gst::FlowSuccess, gst::FlowError> {
        {
            let mut stream = self.stream.lock().unwrap();
            if stream.n_flushes != n_flushes {
                return Ok(gst::FlowSuccess::Ok);
            }
            stream.is_broken = true;
        }
        gst::element_error!(element, gst::StreamError::Failed, ("{}", stages::Printable(said)));
        Err(gst::FlowError::Error)
    }

    pub(super) fn warn_of_lost_rois(&self, element: &gst::Element, buffer: &gst::BufferRef, results: &FrameResults) {
        if !meta::has_lost_rois(buffer, results) || std::mem::replace(&mut self.stream.lock().unwrap().warned_of_lost_rois, true) {
            return;
        }
        gst::element_warning!(
            element,
            gst::StreamError::Failed,
            (
                "an element between the detector and `{}` dropped the regions (videocrop and videobox do), so boxes may be off; put it before the detector or behind the last roi element",
                element.name()
            )
        );
    }

    pub(super) fn raise_latency(&self, element: &gst::Element, measured: Duration) {
        let raised = {
            let mut stream = self.stream.lock().unwrap();
            let owed = std::mem::take(&mut stream.owes_latency);
            let raised = owed || (stream.is_warm && measured > stream.latency + stream.latency / 5);
            if raised {
                stream.latency = if owed { measured.max(stream.latency()) } else { measured };
                stream.is_warm = true;
            }
            raised
        };
        if raised {
            gst::info!(self.cat, obj = element, "latency raised to {measured:?}");
            let _posted = element.post_message(gst::message::Latency::builder().src(element).build());
        }
    }

    fn log_totals(&self, element: &gst::Element) {
        gst::info!(self.cat, obj = element, "{:?}", self.stats());
    }

    /// The read-only property `stats`.
    pub(super) fn stats(&self) -> gst::Structure {
        let stage = self.stage().map(|stage| stage.stats()).unwrap_or_default();
        let mut structure = self.counts.structure(stage, self.window.capacity());
        if let Some(economy) = self.economy.get() {
            economy.add_to(&mut structure);
        }
        structure
    }
}

fn start_task(driver: &Arc<Driver>, pad: &gst::Pad, element: &gst::Element) -> bool {
    // Weak, because the pad owns the task: the element must be able to go.
    let (driver, weak_pad, weak_element) = (Arc::downgrade(driver), pad.downgrade(), element.downgrade());
    let turn = move || {
        if let (Some(driver), Some(pad), Some(element)) = (driver.upgrade(), weak_pad.upgrade(), weak_element.upgrade()) {
            // A panic must not unwind into C: it ends the stream with an error, as in a pad function.
            let turned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| driver.src_task(&pad, &element)));
            if turned.is_err() {
                gst::element_error!(element, gst::LibraryError::Failed, ("a bug in `{}`: its source pad's task panicked", element.name()));
                let _paused = pad.pause_task();
            }
        }
    };
    pad.start_task(turn).is_ok()
}

/// Whether the window is open when this is the flow.
fn is_open(flow: Result<gst::FlowSuccess, gst::FlowError>) -> bool {
    matches!(flow, Ok(_) | Err(gst::FlowError::Eos))
}

/// Between the begin of a flush and its end, and while the pad is not active.
fn is_flushing(pad: &gst::Pad) -> bool {
    pad.pad_flags().contains(gst::PadFlags::FLUSHING)
}

/// Errors that nobody hears of if upstream sends nothing more.
fn is_fatal(error: gst::FlowError) -> bool {
    !matches!(error, gst::FlowError::Flushing | gst::FlowError::Eos)
}

fn post_flow_error(element: &gst::Element, error: gst::FlowError) {
    gst::element_error!(
        element,
        gst::StreamError::Failed,
        ("the frames in flight are lost: downstream answered {error:?}; link every pad, and see the first error on the bus")
    );
}

fn kept_of(items: &[Item]) -> impl Iterator<Item = gst::Event> {
    items.iter().filter_map(|item| match item {
        Item::Event(event) if is_kept(event) => Some(event.clone()),
        _ => None,
    })
}

/// Adds an event to those that are kept, or puts it in the place of the one that it outdates; as a pad does.
fn keep_in(kept: &mut Vec<gst::Event>, event: gst::Event) {
    let name = event.structure().map(|structure| structure.name());
    let is_outdated = |kept: &&mut gst::Event| kept.type_() == event.type_() && kept.structure().map(|structure| structure.name()) == name;
    match kept.iter_mut().find(is_outdated) {
        Some(outdated) => *outdated = event,
        None => kept.push(event),
    }
}

/// Whether the event stays true when the frames around it are lost.
fn is_kept(event: &gst::Event) -> bool {
    event.is_sticky() && event.type_() != gst::EventType::Eos
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
    fn of_the_events_that_come_while_nobody_takes_frames_the_latest_of_each_kind_is_kept_in_its_place() {
        gst::init().unwrap();
        let driver = Driver::new(*CAT);
        let caps = |width: i32| gst::event::Caps::new(&gst::Caps::builder("video/x-raw").field("width", width).build());
        let segment = gst::event::Segment::new(&gst::FormattedSegment::<gst::ClockTime>::new());
        assert!(driver.enqueue(gst::event::StreamStart::new("stream")));
        for width in 1..=100 {
            assert!(driver.enqueue(caps(width)) && driver.enqueue(segment.clone()));
            assert!(driver.enqueue(gst::event::Tag::new(gst::TagList::new())));
        }
        let kept = std::mem::take(&mut driver.stream.lock().unwrap().kept);
        let types: Vec<_> = kept.iter().map(|event| event.type_()).collect();
        assert_eq!(types, [gst::EventType::StreamStart, gst::EventType::Caps, gst::EventType::Segment, gst::EventType::Tag]);
        let gst::EventView::Caps(latest) = kept[1].view() else { panic!("by its type") };
        assert_eq!(latest.structure().unwrap().get::<gst::Caps>("caps").unwrap().structure(0).unwrap().get::<i32>("width").unwrap(), 100);
    }
}
