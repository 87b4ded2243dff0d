//! The path of a frame through an inference element: it arrives, gets a slot, is inferred or skipped with a reason, and leaves in order.
//!
//! This module decides what happens to a frame. It uses `stream`, `in_flight`, `pool` and `work`. Pads, events and flow returns belong to
//! the driver ([`super::infer`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video as gst_video;

use super::in_flight::{FrameTrace, InFlight, Item, Outcome};
use super::policy::{CarryResults, Policy, QueuePolicy, Reason};
use super::pool::{Full, Held};
use super::stats::Left;
use super::stream::Stream;
use super::work::Work;
use super::{buffer, caps, meta};
use crate::frame::{Detection, FrameResults, InferenceStatus, Size, TrackState};
use crate::stages::flow::Epoch;
use crate::stages::in_flight_queue::{Refused, Ticket};
use crate::stages::{CancelReason, RunGuard, Scheduling, Stage};

/// The runs of an admitted frame. The owner of this value calls [`Runs::end`] when all runs have ended. If the value is dropped
/// without that call, as in a panic, the frame fails.
struct Runs {
    stream: Arc<Stream>,
    /// Epoch in which the runs began. Runs of an older epoch do not affect the statistics.
    epoch: Epoch,
    ticket: Ticket,
    guard: Arc<RunGuard>,
    /// Status of the frame before the runs.
    earlier: InferenceStatus,
    size: Size,
    frame_number: u64,
    admitted: Instant,
    policy: Policy,
    are_over: bool,
}

impl Runs {
    fn end(mut self, results: FrameResults) {
        self.are_over = true;
        self.stream.finish_runs(&self, results);
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        if !self.are_over {
            let status = InferenceStatus::Failed("internal error: a panic lost the results of this frame".into());
            let (size, frame_number) = (self.size, self.frame_number);
            self.stream.finish_runs(self, FrameResults { size, frame_number, status, ..FrameResults::default() });
        }
    }
}

/// A frame that leaves the element.
pub(super) struct Leaving {
    pub(super) buffer: gst::Buffer,
    pub(super) results: FrameResults,
    pub(super) guard: Arc<RunGuard>,
    /// Time from the frame's admission to its results.
    pub(super) took: Duration,
    pub(super) left: Departure,
    number: u64,
    held: Option<Held>,
}

/// How a frame left the element, as counted in the statistics.
pub(super) enum Departure {
    Inferred,
    Skipped,
    Failed {
        reason: Arc<str>,
        /// Number of frames that failed so far.
        n_failed: u64,
    },
}

impl Stream {
    /// Accepts a frame from upstream and infers it, or skips it with a reason.
    pub(super) fn arrive(
        self: &Arc<Self>,
        element: &gst::Element,
        buffer: gst::Buffer,
        info: &gst_video::VideoInfo,
        work: &Arc<dyn Work>,
        arrived: Instant,
    ) -> Result<(), gst::FlowError> {
        // From here on, the frame is counted as arrived, so every return path must also count the outcome of the frame.
        self.counts.arrive();
        let trace = FrameTrace::begin(element);
        let policy = self.policy();
        let queue = policy.queue(policy.queue == QueuePolicy::Auto && self.is_live(element));
        // A frame of a live source may wait for a slot if the user has set neither a queue policy nor a latency limit.
        let waits_for_slot = policy.queue == QueuePolicy::Auto && queue == QueuePolicy::DropOldest && policy.max_latency.is_none();
        let lateness = if waits_for_slot { self.lateness(element, &buffer) } else { None };
        let (number, reason) = self.number(&buffer, &policy);
        trace.frame.record("frame", number);
        let (mut buffer, held) = self.hold(element, buffer, queue);
        let size = caps::size(info);
        let mut results = meta::take(&mut buffer, size).unwrap_or_else(|| meta::no_results(size));
        if results.frame_number == meta::UNNUMBERED {
            results.frame_number = number;
        }
        if work.reads_results() {
            self.warn_of_lost_rois(element, &buffer, &results);
        }
        let looks_like = if reason.is_none() { self.looks_like(number, &buffer, info, &policy) } else { None };
        let reason = reason.or_else(|| looks_like.map(|_| Reason::Motion));
        let (deadline, begin_by) = self.times(&policy, arrived);
        let frame = InFlight {
            n_before: results.detections.len(),
            buffer,
            number,
            looks_like,
            results,
            outcome: Outcome::Open,
            arrived,
            took: Duration::ZERO,
            deadline,
            guard: RunGuard::new(arrived, begin_by),
            trace,
            held,
        };
        match reason {
            Some(reason) => self.pass(frame, reason, &policy),
            None => self.infer(frame, info, work, &policy, (queue, lateness)),
        }
    }

    /// Returns the number of the frame in this element's stream, and the skip reason if it is already known.
    fn number(&self, buffer: &gst::BufferRef, policy: &Policy) -> (u64, Option<Reason>) {
        let mut state = self.lock();
        let number = state.frames.n_arrived;
        state.frames.n_arrived += 1;
        let is_due = number.is_multiple_of(policy.inference_interval.max(1).into());
        let input = &state.input;
        let is_behind =
            || policy.qos && input.earliest.zip(input.running_time(buffer)).is_some_and(|(earliest, shown_at)| shown_at < earliest);
        let reason = match is_due {
            false => Some(Reason::Interval),
            true => is_behind().then_some(Reason::Qos),
        };
        (number, reason)
    }

    /// Returns the number of the last frame selected for inference, if there is no motion since that frame. `None` means that the
    /// current frame is selected for inference. Code that then skips this frame must call [`Stream::reset_motion`].
    fn looks_like(&self, number: u64, buffer: &gst::Buffer, info: &gst_video::VideoInfo, policy: &Policy) -> Option<u64> {
        let share = policy.motion_threshold;
        if share <= 0.0 {
            return None;
        }
        // If the frame cannot be read, it is selected for inference, which reports the error.
        let frame = buffer::frame(buffer, info).ok()?;
        let (gate, reference_number) = &mut *self.motion.lock().unwrap();
        if gate.passes(&frame, share).ok()? {
            *reference_number = number;
            return None;
        }
        Some(*reference_number)
    }

    /// Returns the time when a frame leaves without results, and the latest time at which its first run must begin. Both are
    /// `None` if `max-latency` is not set.
    fn times(&self, policy: &Policy, arrived: Instant) -> (Option<Instant>, Option<Instant>) {
        let Some(max_latency) = policy.max_latency else { return (None, None) };
        // Leave a margin, because threads wake up late.
        let wait = max_latency - max_latency / 20;
        // The assumed run time is limited, so that some frames run even after slow runs. Only a new run shows that inference is fast
        // again.
        let run = self.lock().latency.run_time().min(max_latency * 3 / 4);
        (Some(arrived + wait), Some(arrived + wait.saturating_sub(run)))
    }

    /// Returns the buffer, or a copy of the buffer if upstream's pool has too few free buffers.
    fn hold(&self, element: &gst::Element, buffer: gst::Buffer, queue: QueuePolicy) -> (gst::Buffer, Option<Held>) {
        let address = buffer::pool_address(&buffer);
        if address == 0 {
            return (buffer, None);
        }
        let (share, message) = {
            let state = &mut *self.lock();
            let before = state.slots.capacity;
            let shared = state.pool.share(address, &buffer, &mut state.slots);
            if state.slots.capacity != before {
                self.queue.set_capacity(state.slots.capacity);
            }
            shared
        };
        let report = |message: String| {
            gst::element_info!(element, gst::ResourceError::Settings, ("{message}; configure more buffers in the source if possible"));
        };
        message.into_iter().for_each(report);
        let full = match share.take(&buffer, queue != QueuePolicy::Wait) {
            Ok(held) => return (buffer, Some(held)),
            Err(full) => full,
        };
        let Ok(copy) = buffer.copy_deep() else {
            gst::warning!(self.cat, obj = element, "cannot copy a frame because no memory is left: its original buffer is held");
            let held = share.take_always(&buffer);
            return (buffer, Some(held));
        };
        if let Full::AllElements(most) = full
            && self.lock().pool.reports_copies()
        {
            report(format!("upstream's pool is small: frames are copied while inference elements hold {most} of its buffers"));
        }
        self.counts.copy();
        (copy, None)
    }

    /// Skips a frame: passes it without inference, or drops it.
    fn pass(&self, mut frame: InFlight, reason: Reason, policy: &Policy) -> Result<(), gst::FlowError> {
        if policy.drops(reason) {
            self.drop_frame(frame, reason);
            return Ok(());
        }
        frame.skip(reason);
        frame.trace.wait_for_turn();
        self.queue.push_skipped(Item::Frame(Box::new(frame))).map_err(|item| self.refused(item))
    }

    /// Gets a slot for a frame and starts its runs. If there is no free slot, skips this frame or displaces another frame.
    fn infer(
        self: &Arc<Self>,
        mut frame: InFlight,
        info: &gst_video::VideoInfo,
        work: &Arc<dyn Work>,
        policy: &Policy,
        (queue, lateness): (QueuePolicy, Option<i64>),
    ) -> Result<(), gst::FlowError> {
        let (buffer, guard, span) = (frame.buffer.clone(), frame.guard.clone(), frame.trace.frame.clone());
        // The frame in the queue needs a copy of the earlier results only if it may leave before its runs end.
        let mut results = if frame.deadline.is_some() { frame.results.clone() } else { std::mem::take(&mut frame.results) };
        self.limit_in_flight(work.stage(), queue);
        // Read the epoch before admission. If a flush occurs before the admission, these runs must count as outdated.
        let epoch = self.lock().flow.epoch();
        let mut item = Item::Frame(Box::new(frame));
        let mut has_waited = false;
        let ticket = loop {
            if queue == QueuePolicy::Wait {
                break self.queue.admit(item).map_err(|item| self.refused(item))?;
            }
            item = match self.try_admit(item, lateness) {
                Ok(ticket) => break ticket,
                Err(Refused::Flushing(item)) => return Err(self.refused(item)),
                Err(Refused::Full(item)) => item,
            };
            if queue == QueuePolicy::DropOldest && !policy.drops(Reason::Queue) && !has_waited {
                // A displaced frame stays in the queue as a skipped frame until its turn. The number of skipped frames in the queue is
                // limited, so first wait until a further skipped frame is allowed.
                if self.queue.wait_to_skip().is_err() {
                    return Err(self.refused(item));
                }
                has_waited = true;
                continue;
            }
            if queue == QueuePolicy::DropNewest || !self.displace_oldest(work.stage()) {
                let Item::Frame(mut frame) = item else { unreachable!("made a frame above") };
                frame.results = results;
                drop(buffer);
                self.reset_motion();
                return self.pass(*frame, Reason::Queue, policy);
            }
            // Wait for the slot of the displaced frame. Displacing a second frame instead could leave the engine idle. The wait is short:
            // at most, a worker that was about to run the displaced frame must still release the slot.
            break self.queue.admit(item).map_err(|item| self.refused(item))?;
        };
        if guard.has_deadline() {
            self.queue.recheck_deadlines();
        }
        let runs = Runs {
            stream: self.clone(),
            epoch,
            ticket,
            guard: guard.clone(),
            earlier: results.status.clone(),
            admitted: Instant::now(),
            policy: *policy,
            size: results.size,
            frame_number: results.frame_number,
            are_over: false,
        };
        let done = move |results| runs.end(results);
        let mapped = buffer::frame(&buffer, info);
        // Drop this reference, so that only the mapping and the queue hold the buffer. The mapping ends before the results are attached,
        // so the buffer is writable by then.
        drop(buffer);
        if !span.is_disabled() {
            self.queue.update(ticket, |item| {
                if let Item::Frame(frame) = item {
                    frame.trace.infer();
                }
            });
        }
        match mapped {
            Ok(frame) => span.in_scope(|| work.run(frame, results, guard, Box::new(done))),
            Err(error) => {
                results.status = InferenceStatus::Failed(error.to_string().into());
                done(results);
            }
        }
        Ok(())
    }

    /// Gets a slot for a frame under a policy that drops frames. If no slot is free and `lateness` is `Some`, waits for a slot, but
    /// only while the live stream keeps up.
    fn try_admit(&self, item: Item, lateness: Option<i64>) -> Result<Ticket, Refused<Item>> {
        let admitted = self.queue.try_admit(item);
        let Some(lateness) = lateness else { return admitted };
        let item = match admitted {
            Err(Refused::Full(item)) => item,
            Ok(_) => {
                self.lock().backlog.found_slot(lateness);
                return admitted;
            }
            Err(Refused::Flushing(_)) => return admitted,
        };
        let allowed_wait = {
            let mut state = self.lock();
            let run_time = state.latency.run_time();
            state.backlog.allowed_wait(lateness, run_time)
        };
        let admitted = self.queue.admit_by(item, Instant::now() + allowed_wait);
        if matches!(admitted, Err(Refused::Full(_))) {
            self.lock().backlog.wait_timed_out();
        }
        admitted
    }

    /// Returns how late a buffer arrives, in nanoseconds: the current running time minus the running time of the buffer. `None`
    /// if the buffer has no timestamp or the element has no clock.
    fn lateness(&self, element: &gst::Element, buffer: &gst::BufferRef) -> Option<i64> {
        let now = element.current_running_time()?;
        let due = self.lock().input.running_time(buffer)?;
        let nanoseconds = |time: gst::ClockTime| i64::try_from(time.nseconds()).ok();
        Some(nanoseconds(now)? - nanoseconds(due)?)
    }

    /// Limits the number of frames in flight, so that no frame waits for a request. Also reduces the number of running frames if
    /// these frames lack CPU time, and raises it if the stage uses more requests because other processes use the cores.
    ///
    /// The limit applies only under [`QueuePolicy::Wait`]: upstream then waits for a slot and has the next frame ready, so a frame that
    /// waits in the queue would add latency without making a request busier. Under the other queue policies, the limit would skip frames of
    /// a burst although there is time to infer them.
    fn limit_in_flight(&self, stage: &Stage, queue: QueuePolicy) {
        /// Number of frames that wait for each spare request.
        const WAITING: usize = 3;
        // Under other policies, more slots would make frames late. A pool with few buffers has none for more slots.
        let may_hold_more = || queue == QueuePolicy::Wait && self.lock().pool.is_unbounded();
        let n_spares = Some(stage.n_spare_requests()).filter(|n_spares| *n_spares > 0 && may_hold_more()).unwrap_or(0);
        let n_at_once = stage.n_frames_at_once() + n_spares;
        // A thread that other processes have displaced starts again some milliseconds late. Meanwhile, the requests need frames.
        let n_waiting = if stage.scheduling() == Scheduling::Throughput { WAITING * n_spares } else { 0 };
        let (n_fewer, most_in_flight) = match queue {
            // Do not limit the number of frames that wait for a run, because a batch fills sooner if frames already wait.
            QueuePolicy::Wait if stage.gathers_frames() => (stage.n_frames_to_remove(), usize::MAX),
            QueuePolicy::Wait => (stage.n_frames_to_remove(), n_at_once + n_waiting),
            _ => (0, usize::MAX),
        };
        let most = match (n_fewer, stage.scheduling()) {
            (0, _) => usize::MAX,
            // The term 1 stands for a completed frame on its way downstream. No frame needs to wait for a request, because requests that
            // lack CPU time are not idle.
            (n_fewer, Scheduling::Throughput) => n_at_once + 1 - n_fewer,
            (n_fewer, Scheduling::Latency) => n_at_once - n_fewer,
        };
        if self.queue.set_limits(most, most_in_flight, n_spares + n_waiting) && n_fewer > 0 {
            gst::debug!(self.cat, "the in-flight queue holds at most {most} frames, because requests wait for threads");
        }
        if self.queue.is_full() {
            stage.note_waiting_frame();
        }
    }

    /// Displaces the frame that has waited longest for inference. Returns false if no frame waits.
    fn displace_oldest(&self, stage: &Stage) -> bool {
        let displaced = self.queue.find_in_flight(|item| matches!(item, Item::Frame(frame) if frame.guard.displace()));
        if displaced {
            // The canceled runs of the displaced frame end in `finish_runs`.
            stage.discard_canceled();
        }
        displaced
    }

    /// Completes a frame after its runs have ended or were canceled.
    fn finish_runs(&self, runs: &Runs, mut results: FrameResults) {
        let Runs { ticket, ref guard, ref earlier, admitted, ref policy, .. } = *runs;
        if let Some(waited) = guard.waited() {
            let (run, mut state) = (guard.arrived().elapsed().saturating_sub(waited), self.lock());
            if state.flow.epoch() == runs.epoch {
                state.latency.run_ended(run);
                state.backlog.run_ended();
            }
        }
        let reason = guard.cancel_reason().map(|reason| match reason {
            CancelReason::Displaced => Reason::Queue,
            CancelReason::Late => Reason::Latency,
        });
        if reason.is_some() || (matches!(results.status, InferenceStatus::Failed(_)) && results.status != *earlier) {
            self.reset_motion();
        }
        let update = |item: &mut Item, results, outcome| {
            if let Item::Frame(frame) = item {
                (frame.results, frame.outcome, frame.took) = (results, outcome, admitted.elapsed());
                frame.trace.wait_for_turn();
            }
        };
        match reason {
            Some(reason) if policy.drops(reason) => {
                // Remove the frame and count it under one lock of the queue. A stop counts the frames that are still in the queue,
                // and does not wait for this thread. So each frame is counted exactly once.
                if let Some(Item::Frame(frame)) = self.queue.discard(ticket, || self.counts.drop(reason)) {
                    frame.trace.end("dropped", Some(reason));
                }
            }
            Some(reason) => {
                results.status = earlier.clone();
                self.queue.skip(ticket, |item| {
                    update(item, results, Outcome::Open);
                    if let Item::Frame(frame) = item {
                        frame.skip(reason);
                    }
                });
            }
            None => {
                // Compare the identity of the text, because an earlier element may have failed with an equal text.
                let was_known = |reason: &Arc<str>| matches!(earlier, InferenceStatus::Failed(known) if Arc::ptr_eq(known, reason));
                let outcome = match &results.status {
                    InferenceStatus::Failed(reason) if !was_known(reason) => Outcome::Failed(reason.clone()),
                    _ => Outcome::Inferred,
                };
                self.queue.complete(ticket, |item| update(item, results, outcome));
            }
        }
    }

    /// Handles a frame that must leave before its results are complete. Returns the frame marked as skipped, or `None` if the
    /// policy drops it.
    pub(super) fn leave_late(&self, mut frame: Box<InFlight>) -> Option<Box<InFlight>> {
        frame.guard.cancel();
        self.reset_motion();
        if let Some(work) = self.work() {
            work.stage().discard_canceled();
        }
        if self.policy().drops(Reason::Latency) {
            self.drop_frame(*frame, Reason::Latency);
            return None;
        }
        frame.skip(Reason::Latency);
        Some(frame)
    }

    /// Finishes a frame that leaves next: completes the results of the frame, and counts the frame.
    pub(super) fn leave(&self, frame: InFlight) -> Leaving {
        let InFlight { buffer, number, looks_like, mut results, n_before, outcome, arrived, took, guard, trace, held, .. } = frame;
        let mut n_objects = 0;
        if let Some(work) = self.work() {
            self.carry(&*work, (number, looks_like), &mut results, n_before, &outcome);
            work.leave(&mut results);
            n_objects = work.n_objects(&results, n_before);
        }
        let now = Instant::now();
        let count = |left, n_objects| self.counts.leave(left, n_objects, now - arrived, now);
        let left = match outcome {
            Outcome::Skipped(reason) => {
                count(Left::Skipped(reason), 0);
                trace.end("skipped", Some(reason));
                Departure::Skipped
            }
            Outcome::Failed(reason) => {
                let n_failed = count(Left::Failed, n_objects);
                trace.end("failed", None);
                Departure::Failed { reason, n_failed }
            }
            Outcome::Open | Outcome::Inferred => {
                count(Left::Inferred, n_objects);
                trace.end("inferred", None);
                Departure::Inferred
            }
        };
        Leaving { buffer, results, guard, took, left, number, held }
    }

    /// Attaches the results to the buffer that leaves now. The caller drops the returned `Held` after the push; until then, the buffer
    /// counts as held.
    pub(super) fn attach(&self, frame: Leaving) -> (gst::Buffer, Option<Held>) {
        let Leaving { mut buffer, results, number, mut held, .. } = frame;
        let writable = buffer.make_mut();
        let expected = std::mem::replace(&mut self.lock().frames.next_to_leave, number + 1);
        if number != expected {
            writable.set_flags(gst::BufferFlags::DISCONT);
        }
        let is_to_be_predicted = |object: &Detection| object.track_state == Some(TrackState::Predicted) && object.track.is_none();
        if results.detections.iter().any(is_to_be_predicted) && !meta::has_regions(writable) {
            // The regions of these objects are not known before the tracker.
            meta::attach_without_regions(writable, results);
        } else {
            meta::attach_to(writable, results, self.policy().analytics_meta);
        }
        if let Some(held) = &mut held {
            held.leave();
        }
        (buffer, held)
    }

    /// If the frame was inferred, stores its results. If it was skipped, adds the stored results to it. Called in stream order.
    fn carry(
        &self,
        work: &dyn Work,
        (number, looks_like): (u64, Option<u64>),
        results: &mut FrameResults,
        n_before: usize,
        outcome: &Outcome,
    ) {
        let mut last_results = self.last_results.lock().unwrap();
        let policy = self.policy();
        if !policy.keeps_results() {
            *last_results = None;
            return;
        }
        match outcome {
            Outcome::Inferred => *last_results = Some((number, work.own_results(results, n_before))),
            Outcome::Skipped(_) => {
                // A frame that was skipped because nothing has moved gets only the results of the frame with which it was compared. The
                // stored results may belong to an earlier frame, because the inference of the compared frame may have failed or been
                // skipped.
                let carries = policy.carry_results != CarryResults::No;
                let holds = |frame_number: u64| carries || looks_like == Some(frame_number);
                if let Some((frame_number, earlier)) = last_results.as_ref().filter(|(frame_number, _)| holds(*frame_number)) {
                    let n_before = results.detections.len();
                    work.carry(earlier, results);
                    let may_have_moved = looks_like != Some(*frame_number);
                    if policy.carry_results == CarryResults::Predicted && may_have_moved {
                        // The tracker downstream moves the boxes of these objects. Children move with their parents.
                        let carried = results.detections[n_before..].iter_mut();
                        carried.filter(|carried| carried.track.is_none() && carried.parent.is_none()).for_each(|carried| {
                            carried.track_state = Some(TrackState::Predicted);
                        });
                    }
                }
            }
            Outcome::Open | Outcome::Failed(_) => {}
        }
    }

    fn warn_of_lost_rois(&self, element: &gst::Element, buffer: &gst::BufferRef, results: &FrameResults) {
        if !meta::has_lost_rois(buffer, results) || std::mem::replace(&mut self.lock().warned_of_lost_rois, true) {
            return;
        }
        gst::element_warning!(
            element,
            gst::StreamError::Failed,
            (
                "an element between the detector and `{}` dropped the region metas of objects (as videocrop and videobox do), so boxes may be wrong; move that element upstream of the detector or downstream of the last roi element",
                element.name()
            )
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::elements::work::Done;
    use crate::frame::Frame;
    use crate::stages::StageOptions;
    use crate::stages::in_flight_queue::Taken;

    static CAT: LazyLock<gst::DebugCategory> =
        LazyLock::new(|| gst::DebugCategory::new("roitest", gst::DebugColorFlags::empty(), Some("of a test")));

    /// Work whose results are lost, as in a panic.
    struct LosesResults(Stage);

    impl Work for LosesResults {
        fn stage(&self) -> &Stage {
            &self.0
        }

        fn run(&self, _frame: Frame, _results: FrameResults, _guard: Arc<RunGuard>, done: Done) {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _done = done;
                panic!("before `done`");
            }));
            assert!(panicked.is_err());
        }

        fn own_results(&self, results: &FrameResults, _n_before: usize) -> FrameResults {
            results.clone()
        }

        fn n_objects(&self, _results: &FrameResults, _n_before: usize) -> usize {
            0
        }

        fn carry(&self, _earlier: &FrameResults, _results: &mut FrameResults) {}

        fn reads_results(&self) -> bool {
            false
        }
    }

    #[test]
    fn panic_before_done_fails_the_frame() {
        gst::init().unwrap();
        let stream = Arc::new(Stream::new(*CAT));
        stream.queue.resume();
        let info = gstreamer_video::VideoInfo::builder(gstreamer_video::VideoFormat::Rgb, 8, 8).build().unwrap();
        let arrived = Instant::now();
        let frame = InFlight {
            buffer: gst::Buffer::with_size(info.size()).unwrap(),
            number: 7,
            looks_like: None,
            results: FrameResults { frame_number: 7, size: caps::size(&info), ..FrameResults::default() },
            n_before: 0,
            outcome: Outcome::Open,
            arrived,
            took: Duration::ZERO,
            deadline: None,
            guard: RunGuard::new(arrived, None),
            trace: FrameTrace { frame: tracing::Span::none(), part: tracing::Span::none() },
            held: None,
        };
        let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/rectangle.onnx");
        let options = StageOptions { model, device: Some("CPU".to_owned()), ..StageOptions::default() };
        let work: Arc<dyn Work> = Arc::new(LosesResults(Stage::detector(&options).unwrap()));
        stream.infer(frame, &info, &work, &Policy::default(), (QueuePolicy::Wait, None)).unwrap();
        let Ok(Taken::Complete(Item::Frame(frame))) = stream.queue.take(|_| None, None) else { panic!("expected a complete frame") };
        assert!(matches!(&frame.outcome, Outcome::Failed(reason) if reason.contains("a panic")));
        assert_eq!((frame.results.frame_number, frame.results.size), (7, caps::size(&info)));
    }
}
