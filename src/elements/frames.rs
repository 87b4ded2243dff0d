//! A frame's way through an inference element: it arrives, is given a place, a run or a reason why not, and leaves in its turn.
//!
//! Part of the driver ([`super::infer`]), which owns pads, events and flows. Here it is decided what becomes of one frame.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;

use super::infer::{Driver, Item, Stream};
use super::lifecycle::upstream_is_live;
use super::policy::{Policy, QueuePolicy, Reason};
use super::stage::Stage;
use super::stats::Left;
use super::{buffer, caps, meta};
use crate::frame::{FrameResults, InferenceStatus};
use crate::stages::window::{MAX_PASSING, Refused, Ticket};
use crate::stages::{self, Permit, Scheduling, Withdrawal};

/// A frame in the window.
pub(super) struct InFlight {
    buffer: gst::Buffer,
    /// What earlier elements found until its inference is done; then all that is known.
    results: FrameResults,
    /// How many of the detections were there before.
    n_before: usize,
    outcome: Outcome,
    arrived: Instant,
    /// From its place in the window to its results; what downstream takes does not count.
    took: Duration,
    /// When it passes without results.
    deadline: Option<Instant>,
    permit: Arc<Permit>,
    trace: FrameTrace,
    /// Counts it among those of upstream's pool.
    _held: Option<Held>,
}

enum Outcome {
    /// Nobody knows yet.
    Open,
    Inferred,
    Skipped(Reason),
    /// This element's own inference failed.
    Failed(Arc<str>),
}

impl InFlight {
    /// When it passes without results.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn skip(&mut self, reason: Reason) {
        if !matches!(self.results.status, InferenceStatus::Failed(_)) {
            self.results.status = InferenceStatus::Skipped(reason.text());
        }
        self.outcome = Outcome::Skipped(reason);
    }
}

/// What a trace shows of a frame: how long it was here, and in which part of its way.
struct FrameTrace {
    frame: tracing::Span,
    part: tracing::Span,
}

impl FrameTrace {
    fn begin(element: &gst::Element) -> Self {
        let empty = tracing::field::Empty;
        let frame = tracing::trace_span!(
            target: "roiflow::trace", parent: None, "frame", element = element.name().as_str(), frame = empty, outcome = empty, reason = empty
        );
        let part = tracing::trace_span!(target: "roiflow::trace", parent: &frame, "wait for a place");
        Self { frame, part }
    }

    fn infer(&mut self) {
        self.part = tracing::Span::none(); // One part ends before the next begins.
        self.part = tracing::trace_span!(target: "roiflow::trace", parent: &self.frame, "inference");
    }

    fn wait_for_turn(&mut self) {
        self.part = tracing::Span::none();
        self.part = tracing::trace_span!(target: "roiflow::trace", parent: &self.frame, "wait for its turn");
    }

    fn end(self, outcome: &str, reason: Option<Reason>) {
        drop(self.part);
        if let Some(reason) = reason {
            self.frame.record("reason", reason.name());
        }
        self.frame.record("outcome", outcome);
    }
}

/// One of the buffers of upstream's pool that are here.
struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What is known of upstream's pool.
#[derive(Default)]
pub(super) struct Pool {
    /// Tells it from others; 0 is none.
    address: usize,
    /// How many of its buffers may be here; more are copied. `None`: all that the window holds.
    max_held: Option<usize>,
    /// How many are.
    held: Arc<AtomicUsize>,
    /// Whether it was said that it is small.
    has_said: bool,
}

impl Driver {
    pub(super) fn sink_chain(self: &Arc<Self>, element: &gst::Element, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let arrived = Instant::now();
        self.flow()?;
        // Why there is none was told.
        let stage = self.ready_stage(element).ok_or_else(|| self.no_stage())?;
        let Some(info) = self.stream.lock().unwrap().info.clone() else {
            gst::element_error!(
                element,
                gst::StreamError::Format,
                ("expected raw video, got data without usable caps; put a decoder (`decodebin`) and `videoconvert` in front")
            );
            return Err(gst::FlowError::NotNegotiated);
        };
        // From here on the frame is counted, and every way out has to say what became of it.
        self.counts.arrive();
        let trace = FrameTrace::begin(element);
        let policy = *self.policy.lock().unwrap();
        let is_live = policy.queue == QueuePolicy::Auto && self.is_live(element);
        let (frame_number, reason) = self.number(&buffer, &policy);
        trace.frame.record("frame", frame_number);
        let (buffer, held) = self.hold(element, buffer);
        let size = caps::size(&info);
        let mut results = meta::read(&buffer, size).unwrap_or_else(|| FrameResults { size, ..FrameResults::default() });
        if meta::size_when_attached(&buffer).is_none() {
            // Nobody has numbered the frame, whoever found something in it.
            results.frame_number = frame_number;
        }
        if stage.reads_results() {
            self.warn_of_lost_rois(element, &buffer, &results);
        }
        let reason = reason.or_else(|| self.is_still(&buffer, &info, &policy).then_some(Reason::Motion));
        let (deadline, begin_by) = self.times(&policy, arrived);
        let frame = InFlight {
            n_before: results.detections.len(),
            buffer,
            results,
            outcome: Outcome::Open,
            arrived,
            took: Duration::ZERO,
            deadline,
            permit: Permit::new(arrived, begin_by),
            trace,
            _held: held,
        };
        match reason {
            Some(reason) => self.pass(frame, reason, &policy)?,
            None => self.infer(frame, &info, &stage, &policy, is_live)?,
        }
        self.flow()
    }

    /// The number of the frame in this element's stream, and the reason to pass it by, if there is one already.
    fn number(&self, buffer: &gst::BufferRef, policy: &Policy) -> (u64, Option<Reason>) {
        let mut stream = self.stream.lock().unwrap();
        let frame_number = stream.n_frames;
        stream.n_frames += 1;
        let is_due = frame_number.is_multiple_of(policy.inference_interval.max(1).into());
        let shown_at = || stream.segment.as_ref().zip(buffer.pts()).and_then(|(segment, pts)| segment.to_running_time(pts));
        let is_behind = || policy.qos && stream.earliest.zip(shown_at()).is_some_and(|(earliest, shown_at)| shown_at < earliest);
        let reason = match is_due {
            false => Some(Reason::Interval),
            true => is_behind().then_some(Reason::Qos),
        };
        (frame_number, reason)
    }

    /// Whether the picture is what it was when it was last inferred. If not, this frame is to be: whoever keeps it from that calls
    /// [`Driver::forget_motion`].
    fn is_still(&self, buffer: &gst::Buffer, info: &gstreamer_video::VideoInfo, policy: &Policy) -> bool {
        let share = policy.motion_threshold;
        if share <= 0.0 {
            return false;
        }
        // A frame that can't be read is for the inference to fail on.
        let frame = buffer::frame(buffer, info);
        frame.and_then(|frame| self.motion.lock().unwrap().passes(&frame, share)).is_ok_and(|passes| !passes)
    }

    /// What was looked at last was not inferred: the next frame is.
    pub(super) fn forget_motion(&self) {
        self.motion.lock().unwrap().forget();
    }

    /// When a frame passes without its results, and when its first run has to begin so that they may be there.
    fn times(&self, policy: &Policy, arrived: Instant) -> (Option<Instant>, Option<Instant>) {
        let Some(max_latency) = policy.max_latency else { return (None, None) };
        // A little before its time, for threads wake up late.
        let wait = max_latency - max_latency / 20;
        // Some begin whatever runs took lately: only they can tell that runs are fast again.
        let run = self.stream.lock().unwrap().run_time.min(max_latency * 3 / 4);
        (Some(arrived + wait), Some(arrived + wait.saturating_sub(run)))
    }

    /// Whether upstream is live; asked once per stream.
    pub(super) fn is_live(&self, element: &gst::Element) -> bool {
        if let Some(is_live) = self.stream.lock().unwrap().is_live {
            return is_live;
        }
        let is_live = upstream_is_live(element);
        gst::debug!(self.cat, obj = element, "upstream is {}live", if is_live { "" } else { "not " });
        self.stream.lock().unwrap().is_live = Some(is_live);
        is_live
    }

    /// The buffer, or a copy of it if upstream's pool would run dry.
    fn hold(&self, element: &gst::Element, buffer: gst::Buffer) -> (gst::Buffer, Option<Held>) {
        let address = buffer::pool_address(&buffer);
        let (max_held, held, said) = {
            let mut stream = self.stream.lock().unwrap();
            let is_new = address != 0 && stream.pool.address != address;
            let said = is_new.then(|| {
                let has_said = stream.pool.has_said;
                stream.pool = Pool { address, has_said, ..Pool::default() };
                self.fit_into(buffer::pool_size(&buffer).filter(|&n| n > 0), &mut stream).filter(|_| !has_said)
            });
            let said = said.flatten();
            stream.pool.has_said |= said.is_some();
            (stream.pool.max_held, stream.pool.held.clone(), said)
        };
        if let Some(said) = said {
            gst::element_info!(element, gst::ResourceError::Settings, ("{said}; give the source more buffers if it can have them"));
        }
        if address == 0 {
            return (buffer, None);
        }
        if max_held.is_some_and(|max_held| held.load(Ordering::Acquire) >= max_held) {
            if let Ok(copy) = buffer.copy_deep() {
                self.counts.copy();
                return (copy, None);
            }
            gst::warning!(self.cat, obj = element, "no memory for a copy: the frame itself is held");
        }
        held.fetch_add(1, Ordering::AcqRel);
        (buffer, Some(Held(held)))
    }

    /// Adapts the window to a pool that has so many buffers, one of which upstream is filling; says what it did if it matters.
    fn fit_into(&self, max_buffers: Option<usize>, stream: &mut Stream) -> Option<String> {
        let (wanted, n_at_once) = (stream.wanted, stream.n_at_once);
        stream.capacity = wanted;
        let Some(max_buffers) = max_buffers else {
            self.window.set_capacity(wanted, MAX_PASSING);
            return None;
        };
        let most = max_buffers.saturating_sub(1).max(1);
        let has = format!("upstream's pool has {max_buffers} buffers, and {wanted} frames in flight were wanted");
        if most >= wanted {
            self.window.set_capacity(wanted, (most - wanted).clamp(1, MAX_PASSING));
            None
        } else if most >= n_at_once {
            stream.capacity = most;
            self.window.set_capacity(most, 1);
            Some(format!("{has}: there will be at most {most}"))
        } else {
            stream.pool.max_held = Some(most);
            self.window.set_capacity(wanted, MAX_PASSING);
            Some(format!("{has}: frames are copied while {most} are here, so that {n_at_once} can run at once"))
        }
    }

    /// Lets a frame go on without inference, or drops it.
    fn pass(&self, mut frame: InFlight, reason: Reason, policy: &Policy) -> Result<(), gst::FlowError> {
        if policy.drops(reason) {
            self.drop_frame(frame, reason);
            return Ok(());
        }
        frame.skip(reason);
        frame.trace.wait_for_turn();
        self.window.pass(Item::Frame(Box::new(frame))).map_err(|item| self.refused(item))
    }

    /// Gives a frame a place and starts its runs; or passes it, or another one, where there is no place.
    fn infer(
        self: &Arc<Self>,
        mut frame: InFlight,
        info: &gstreamer_video::VideoInfo,
        stage: &Arc<dyn Stage>,
        policy: &Policy,
        is_live: bool,
    ) -> Result<(), gst::FlowError> {
        let (buffer, permit, of_runs) = (frame.buffer.clone(), frame.permit.clone(), frame.trace.frame.clone());
        // The window needs them only where the frame may have to leave without its results.
        let mut results = if frame.deadline.is_some() { frame.results.clone() } else { std::mem::take(&mut frame.results) };
        let queue = policy.queue(is_live);
        self.follow_pace(&**stage, queue);
        let mut item = Item::Frame(Box::new(frame));
        let mut has_waited = false;
        let ticket = loop {
            if queue == QueuePolicy::Wait {
                break self.window.admit(item).map_err(|item| self.refused(item))?;
            }
            item = match self.window.try_admit(item) {
                Ok(ticket) => break ticket,
                Err(Refused::Flushing(item)) => return Err(self.refused(item)),
                Err(Refused::Full(item)) => item,
            };
            if queue == QueuePolicy::DropOldest && !policy.drops(Reason::Queue) && !has_waited {
                // The one that makes room has to wait among those that pass, and they have a bound.
                if self.window.wait_to_pass().is_err() {
                    return Err(self.refused(item));
                }
                has_waited = true;
                continue;
            }
            if queue == QueuePolicy::DropNewest || !self.make_room(&**stage) {
                let Item::Frame(mut frame) = item else { unreachable!("made a frame above") };
                frame.results = results;
                drop(buffer);
                self.forget_motion();
                return self.pass(*frame, Reason::Queue, policy);
            }
            // A worker that was about to run the one that makes room may have yet to say that it does not. Its place is free in a moment,
            // and one is enough: if another made room as well, the engine could be left without a frame.
            break self.window.admit(item).map_err(|item| self.refused(item))?;
        };
        if permit.has_deadline() {
            self.window.look_at_deadlines();
        }
        let (driver, earlier, policy, admitted) = (self.clone(), results.status.clone(), *policy, Instant::now());
        let done = {
            let permit = permit.clone();
            move |results: FrameResults| driver.settle(ticket, &permit, results, earlier, admitted, &policy)
        };
        let mapped = buffer::frame(&buffer, info);
        // From here on only the mapping holds it, beside the window: who attaches the results finds it writable.
        drop(buffer);
        if !of_runs.is_disabled() {
            self.window.update(ticket, |item| {
                if let Item::Frame(frame) = item {
                    frame.trace.infer();
                }
            });
        }
        match mapped {
            Ok(frame) => of_runs.in_scope(|| stage.run(frame, results, permit, Box::new(done))),
            Err(error) => {
                results.status = InferenceStatus::Failed(error.to_string().into());
                done(results);
            }
        }
        Ok(())
    }

    /// Lets fewer frames be in flight where those that are wait for threads. Only where upstream waits for a place: else frames that come
    /// together would pass without inference though there is time for them.
    fn follow_pace(&self, stage: &dyn Stage, queue: QueuePolicy) {
        let n_fewer = if queue == QueuePolicy::Wait { stage.n_frames_fewer() } else { 0 };
        let n_at_once = stage.n_frames_at_once();
        let most = match (n_fewer, stage.scheduling()) {
            (0, _) => usize::MAX,
            // One finished, on its way downstream; none need wait for a request where requests wait.
            (n_fewer, Scheduling::Throughput) => n_at_once + 1 - n_fewer,
            (n_fewer, Scheduling::Latency) => n_at_once - n_fewer,
        };
        if self.window.limit(most) {
            gst::debug!(self.cat, "at most {most} frames now, as requests wait for threads");
        }
    }

    /// Takes the run from the frame that has waited longest for it; false if none waits.
    fn make_room(&self, stage: &dyn Stage) -> bool {
        let displaced = self.window.find_in_flight(|item| matches!(item, Item::Frame(frame) if frame.permit.displace()));
        if displaced {
            // Which ends in `settle`.
            stage.drop_withdrawn();
        }
        displaced
    }

    /// The runs of a frame are over, or will not begin.
    fn settle(
        &self,
        ticket: Ticket,
        permit: &Permit,
        mut results: FrameResults,
        earlier: InferenceStatus,
        admitted: Instant,
        policy: &Policy,
    ) {
        if let Some(waited) = permit.waited() {
            let (run, mut stream) = (permit.arrived().elapsed().saturating_sub(waited), self.stream.lock().unwrap());
            stream.run_time = if stream.run_time.is_zero() { run } else { (stream.run_time * 7 + run) / 8 };
        }
        let reason = permit.withdrawal().map(|withdrawal| match withdrawal {
            Withdrawal::Displaced => Reason::Queue,
            Withdrawal::Late => Reason::Latency,
        });
        if reason.is_some() || (matches!(results.status, InferenceStatus::Failed(_)) && results.status != earlier) {
            self.forget_motion();
        }
        let update = |item: &mut Item, results, outcome| {
            if let Item::Frame(frame) = item {
                (frame.results, frame.outcome, frame.took) = (results, outcome, admitted.elapsed());
                frame.trace.wait_for_turn();
            }
        };
        match reason {
            Some(reason) if policy.drops(reason) => {
                // Counted at once: who stops the stream meanwhile counts what is in the window, and does not wait for this thread.
                if let Some(Item::Frame(frame)) = self.window.discard(ticket, || self.counts.drop(reason)) {
                    self.has_dropped(*frame, reason);
                }
            }
            Some(reason) => {
                results.status = earlier;
                self.window.let_pass(ticket, |item| {
                    update(item, results, Outcome::Open);
                    if let Item::Frame(frame) = item {
                        frame.skip(reason);
                    }
                });
            }
            None => {
                // By identity: an element before this one may have failed for the same reason.
                let was_known = |reason: &Arc<str>| matches!(&earlier, InferenceStatus::Failed(known) if Arc::ptr_eq(known, reason));
                let outcome = match &results.status {
                    InferenceStatus::Failed(reason) if !was_known(reason) => Outcome::Failed(reason.clone()),
                    _ => Outcome::Inferred,
                };
                self.window.complete(ticket, |item| update(item, results, outcome));
            }
        }
    }

    /// A frame came out of the window before its results: it goes on without, if it does.
    pub(super) fn give_up(&self, mut frame: Box<InFlight>) -> Option<Box<InFlight>> {
        frame.permit.give_up();
        self.forget_motion();
        if let Some(stage) = self.stage() {
            stage.drop_withdrawn();
        }
        if self.policy.lock().unwrap().drops(Reason::Latency) {
            self.drop_frame(*frame, Reason::Latency);
            return None;
        }
        frame.skip(Reason::Latency);
        Some(frame)
    }

    pub(super) fn push_frame(
        &self,
        pad: &gst::Pad,
        element: &gst::Element,
        frame: InFlight,
        n_flushes: u64,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        let InFlight { mut buffer, mut results, n_before, outcome, arrived, took, permit, trace, _held: held, .. } = frame;
        self.carry(&mut results, n_before, &outcome);
        if let Some(stage) = self.stage() {
            stage.leave(&mut results);
        }
        let now = Instant::now();
        let leave = |left, n_objects| self.counts.leave(left, n_objects, now - arrived, now);
        let (mut runs, mut too_many) = (Ok(gst::FlowSuccess::Ok), None);
        match outcome {
            Outcome::Skipped(reason) => {
                leave(Left::Skipped(reason), 0);
                trace.end("skipped", Some(reason));
            }
            Outcome::Failed(reason) => {
                let n_failed = leave(Left::Failed, results.detections.len());
                trace.end("failed", None);
                if let Some(error) = self.never_runs() {
                    // Before the frame goes on, which may take as long as somebody looks at it.
                    runs = self.break_off(element, &self.say_never_runs(&error), n_flushes);
                } else {
                    too_many = self.count_failure(element, &permit, results.frame_number, &reason, n_failed);
                }
            }
            Outcome::Open | Outcome::Inferred => {
                leave(Left::Inferred, results.detections.len());
                if permit.has_succeeded() {
                    self.stream.lock().unwrap().n_failed_in_a_row = 0;
                }
                trace.end("inferred", None);
                self.raise_latency(element, took);
            }
        }
        let writable = buffer.make_mut();
        if std::mem::take(&mut self.stream.lock().unwrap().has_gap) {
            writable.set_flags(gst::BufferFlags::DISCONT);
        }
        let with_analytics = self.policy.lock().unwrap().analytics_meta;
        meta::attach_to(writable, results, with_analytics);
        drop(held);
        gst::trace!(self.cat, obj = pad, "pushing {buffer:?}");
        let pushed = pad.push(buffer);
        runs?;
        let pushed = pushed?;
        too_many.map_or(Ok(pushed), |said| self.break_off(element, &said, n_flushes))
    }

    /// One more frame on which inference failed: a warning; if that is one too many, what to say behind the frame.
    fn count_failure(&self, element: &gst::Element, permit: &Permit, frame_number: u64, reason: &str, n_failed: u64) -> Option<String> {
        let n_in_a_row = {
            let mut stream = self.stream.lock().unwrap();
            // A region of the frame may have had a result.
            stream.n_failed_in_a_row = if permit.has_succeeded() { 0 } else { stream.n_failed_in_a_row + 1 };
            stream.n_failed_in_a_row
        };
        self.warn_of_failure(element, frame_number, reason, n_failed);
        let max_failures = self.policy.lock().unwrap().max_failures.filter(|&max_failures| n_in_a_row > u64::from(max_failures))?;
        let device = self.device();
        Some(format!(
            "inference failed on {n_in_a_row} frames in a row, expected at most {max_failures} (max-failures); {n_failed} failed in all, the last \
             one, frame {frame_number}, because: {reason}; see whether `roiflow bench MODEL --device {device}` runs the model, take another \
             device, or set max-failures=-1 to go on without results"
        ))
    }

    fn say_never_runs(&self, error: &stages::Error) -> String {
        let device = self.device();
        format!(
            "the model has not run once, nor does it on a black frame: {error}; see whether `roiflow bench MODEL --device {device}` runs it, or \
             take another device"
        )
    }

    /// What the stage runs on, for `--device`.
    fn device(&self) -> String {
        self.stage().map_or_else(|| "NAME".to_owned(), |stage| stage.stats().device)
    }

    /// Keeps what was found in an inferred frame, and gives it to those that were skipped; in the order of the stream.
    fn carry(&self, results: &mut FrameResults, n_before: usize, outcome: &Outcome) {
        let mut found = self.found.lock().unwrap();
        let policy = *self.policy.lock().unwrap();
        if !policy.keeps_results() {
            *found = None;
            return;
        }
        let Some(stage) = self.stage() else { return };
        match outcome {
            Outcome::Inferred => *found = Some(stage.found(results, n_before)),
            Outcome::Skipped(reason) => {
                if let Some(found) = found.as_ref().filter(|_| policy.carries(*reason)) {
                    stage.carry(found, results);
                }
            }
            Outcome::Open | Outcome::Failed(_) => {}
        }
    }

    /// The frame goes no further.
    fn drop_frame(&self, frame: InFlight, reason: Reason) {
        self.counts.drop(reason);
        self.has_dropped(frame, reason);
    }

    /// A frame that was counted goes no further.
    fn has_dropped(&self, frame: InFlight, reason: Reason) {
        self.stream.lock().unwrap().has_gap = true;
        frame.trace.end("dropped", Some(reason));
    }

    /// The window is closed: what upstream is to hear.
    fn refused(&self, item: Item) -> gst::FlowError {
        let error = self.flow().err().unwrap_or(gst::FlowError::Flushing);
        self.forget([item], error);
        error
    }

    /// Counts the frames among these, which left the window because of this flow.
    pub(super) fn forget(&self, items: impl IntoIterator<Item = Item>, why: gst::FlowError) {
        let reason = match why {
            gst::FlowError::Flushing => Reason::Flush,
            _ if self.stream.lock().unwrap().is_broken => Reason::Failures,
            _ => Reason::Downstream,
        };
        for item in items {
            if let Item::Frame(frame) = item {
                self.drop_frame(*frame, reason);
            }
        }
    }
}
