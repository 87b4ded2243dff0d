//! A frame's way through an inference element: it arrives, is given a place, a run or a reason why not, and leaves in its turn.
//!
//! Part of the driver ([`super::infer`]), which owns pads, events and flows. Here it is decided what becomes of one frame.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;

use super::infer::{Driver, Item};
use super::lifecycle::upstream_is_live;
use super::policy::{Policy, QueuePolicy, Reason};
use super::pool::Held;
use super::stage::Stage;
use super::stats::Left;
use super::{buffer, caps, meta};
use crate::frame::{FrameResults, InferenceStatus, Size};
use crate::stages::window::{Refused, Ticket};
use crate::stages::{self, Permit, Scheduling, Withdrawal};

/// A frame in the window.
pub(super) struct InFlight {
    buffer: gst::Buffer,
    /// Its number in this element's stream.
    number: u64,
    /// The number of the frame that it looks like, where that is why it is not inferred.
    looks_like: Option<u64>,
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
    held: Option<Held>,
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

/// The runs of a frame that has a place. Whoever has them tells how they end; if that panics, and lets go of them, they have failed.
struct Runs {
    driver: Arc<Driver>,
    ticket: Ticket,
    permit: Arc<Permit>,
    /// Of the frame before them.
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
        self.driver.settle(&self, results);
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        if !self.are_over {
            let status = InferenceStatus::Failed("a bug: a panic lost its results".into());
            let (size, frame_number) = (self.size, self.frame_number);
            self.driver.settle(self, FrameResults { size, frame_number, status, ..FrameResults::default() });
        }
    }
}

impl Driver {
    pub(super) fn sink_chain(self: &Arc<Self>, element: &gst::Element, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let arrived = Instant::now();
        self.flow()?;
        // Why there is none was told.
        let stage = match self.stage() {
            Some(stage) => stage,
            None => self.warm_stage(element, self.is_live(element)).ok_or_else(|| self.no_stage())?,
        };
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
        let queue = policy.queue(policy.queue == QueuePolicy::Auto && self.is_live(element));
        // Who asks for a policy, or for less latency than a wait may take, gets that.
        let waits_for_slot = policy.queue == QueuePolicy::Auto && queue == QueuePolicy::DropOldest && policy.max_latency.is_none();
        let lateness = if waits_for_slot { self.lateness(element, &buffer) } else { None };
        let (number, reason) = self.number(&buffer, &policy);
        trace.frame.record("frame", number);
        let (mut buffer, held) = self.hold(element, buffer, queue);
        let size = caps::size(&info);
        let mut results = meta::take(&mut buffer, size).unwrap_or_else(|| FrameResults { size, ..FrameResults::default() });
        if meta::size_when_attached(&buffer).is_none() {
            // Nobody has numbered the frame, whoever found something in it.
            results.frame_number = number;
        }
        if stage.reads_results() {
            self.warn_of_lost_rois(element, &buffer, &results);
        }
        let looks_like = if reason.is_none() { self.looks_like(number, &buffer, &info, &policy) } else { None };
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
            permit: Permit::new(arrived, begin_by),
            trace,
            held,
        };
        match reason {
            Some(reason) => self.pass(frame, reason, &policy)?,
            None => self.infer(frame, &info, &stage, &policy, (queue, lateness))?,
        }
        self.flow()
    }

    /// The number of the frame in this element's stream, and the reason to pass it by, if there is one already.
    fn number(&self, buffer: &gst::BufferRef, policy: &Policy) -> (u64, Option<Reason>) {
        let mut stream = self.stream.lock().unwrap();
        let number = stream.n_frames;
        stream.n_frames += 1;
        let is_due = number.is_multiple_of(policy.inference_interval.max(1).into());
        let shown_at = || stream.segment.as_ref().zip(buffer.pts()).and_then(|(segment, pts)| segment.to_running_time(pts));
        let is_behind = || policy.qos && stream.earliest.zip(shown_at()).is_some_and(|(earliest, shown_at)| shown_at < earliest);
        let reason = match is_due {
            false => Some(Reason::Interval),
            true => is_behind().then_some(Reason::Qos),
        };
        (number, reason)
    }

    /// The number of the frame that was to be inferred last, if the picture is still what it was there. If not, this frame is to be
    /// inferred: whoever keeps it from that calls [`Driver::forget_motion`].
    fn looks_like(&self, number: u64, buffer: &gst::Buffer, info: &gstreamer_video::VideoInfo, policy: &Policy) -> Option<u64> {
        let share = policy.motion_threshold;
        if share <= 0.0 {
            return None;
        }
        // A frame that can't be read is for the inference to fail on.
        let frame = buffer::frame(buffer, info).ok()?;
        let (gate, of_frame) = &mut *self.motion.lock().unwrap();
        if gate.passes(&frame, share).ok()? {
            *of_frame = number;
            return None;
        }
        Some(*of_frame)
    }

    /// What was looked at last was not inferred: the next frame is.
    pub(super) fn forget_motion(&self) {
        self.motion.lock().unwrap().0.forget();
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
        (queue, lateness): (QueuePolicy, Option<i64>),
    ) -> Result<(), gst::FlowError> {
        let (buffer, permit, of_runs) = (frame.buffer.clone(), frame.permit.clone(), frame.trace.frame.clone());
        // The window needs them only where the frame may have to leave without its results.
        let mut results = if frame.deadline.is_some() { frame.results.clone() } else { std::mem::take(&mut frame.results) };
        self.follow_pace(&**stage, queue);
        let mut item = Item::Frame(Box::new(frame));
        let mut has_waited = false;
        let ticket = loop {
            if queue == QueuePolicy::Wait {
                break self.window.admit(item).map_err(|item| self.refused(item))?;
            }
            item = match self.try_admit(item, lateness) {
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
        let runs = Runs {
            driver: self.clone(),
            ticket,
            permit: permit.clone(),
            earlier: results.status.clone(),
            admitted: Instant::now(),
            policy: *policy,
            size: results.size,
            frame_number: results.frame_number,
            are_over: false,
        };
        let done = move |results| runs.end(results);
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

    /// A slot for a frame behind a policy that drops: at once, or, while a live stream keeps up, after a wait. `lateness` is that of a frame
    /// that may wait.
    fn try_admit(&self, item: Item, lateness: Option<i64>) -> Result<Ticket, Refused<Item>> {
        let admitted = self.window.try_admit(item);
        let Some(lateness) = lateness else { return admitted };
        let item = match admitted {
            Err(Refused::Full(item)) => item,
            Ok(_) => {
                self.stream.lock().unwrap().backlog.found_slot(lateness);
                return admitted;
            }
            Err(Refused::Flushing(_)) => return admitted,
        };
        let patience = {
            let mut stream = self.stream.lock().unwrap();
            let run_time = stream.run_time;
            stream.backlog.patience(lateness, run_time)
        };
        let admitted = self.window.admit_by(item, Instant::now() + patience);
        if matches!(admitted, Err(Refused::Full(_))) {
            self.stream.lock().unwrap().backlog.waited_in_vain();
        }
        admitted
    }

    /// How many nanoseconds later than its running time a frame comes; `None` if it has none, or there is no clock.
    fn lateness(&self, element: &gst::Element, buffer: &gst::BufferRef) -> Option<i64> {
        let now = element.current_running_time()?;
        let stream = self.stream.lock().unwrap();
        let due = stream.segment.as_ref()?.to_running_time(buffer.pts()?)?;
        let nanoseconds = |time: gst::ClockTime| i64::try_from(time.nseconds()).ok();
        Some(nanoseconds(now)? - nanoseconds(due)?)
    }

    /// Lets no frame wait in front of the requests, and fewer be in flight where those that are wait for threads. Only where upstream waits
    /// for a place, and has the next frame at hand as soon as one is free: to wait inside would make it older, and no request busier. Else
    /// frames that come together would pass without inference though there is time for them.
    fn follow_pace(&self, stage: &dyn Stage, queue: QueuePolicy) {
        let n_at_once = stage.n_frames_at_once();
        let (n_fewer, most_in_flight) = match queue {
            // A call of several frames begins sooner where some wait already.
            QueuePolicy::Wait if stage.gathers_frames() => (stage.n_frames_fewer(), usize::MAX),
            QueuePolicy::Wait => (stage.n_frames_fewer(), n_at_once),
            _ => (0, usize::MAX),
        };
        let most = match (n_fewer, stage.scheduling()) {
            (0, _) => usize::MAX,
            // One finished, on its way downstream; none need wait for a request where requests wait.
            (n_fewer, Scheduling::Throughput) => n_at_once + 1 - n_fewer,
            (n_fewer, Scheduling::Latency) => n_at_once - n_fewer,
        };
        if self.window.limit(most, most_in_flight) && n_fewer > 0 {
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
    fn settle(&self, runs: &Runs, mut results: FrameResults) {
        let Runs { ticket, ref permit, ref earlier, admitted, ref policy, .. } = *runs;
        if let Some(waited) = permit.waited() {
            let (run, mut stream) = (permit.arrived().elapsed().saturating_sub(waited), self.stream.lock().unwrap());
            stream.run_time = if stream.run_time.is_zero() { run } else { (stream.run_time * 7 + run) / 8 };
            stream.backlog.run_ended();
        }
        let reason = permit.withdrawal().map(|withdrawal| match withdrawal {
            Withdrawal::Displaced => Reason::Queue,
            Withdrawal::Late => Reason::Latency,
        });
        if reason.is_some() || (matches!(results.status, InferenceStatus::Failed(_)) && results.status != *earlier) {
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
                    frame.trace.end("dropped", Some(reason));
                }
            }
            Some(reason) => {
                results.status = earlier.clone();
                self.window.let_pass(ticket, |item| {
                    update(item, results, Outcome::Open);
                    if let Item::Frame(frame) = item {
                        frame.skip(reason);
                    }
                });
            }
            None => {
                // By identity: an element before this one may have failed for the same reason.
                let was_known = |reason: &Arc<str>| matches!(earlier, InferenceStatus::Failed(known) if Arc::ptr_eq(known, reason));
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
        let InFlight { mut buffer, number, looks_like, mut results, n_before, outcome, arrived, took, permit, trace, mut held, .. } = frame;
        let mut n_objects = 0;
        if let Some(stage) = self.stage() {
            self.carry(&*stage, (number, looks_like), &mut results, n_before, &outcome);
            stage.leave(&mut results);
            n_objects = stage.n_objects(&results, n_before);
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
                let n_failed = leave(Left::Failed, n_objects);
                trace.end("failed", None);
                if let Some(error) = self.never_runs() {
                    // Before the frame goes on, which may take as long as somebody looks at it.
                    runs = self.break_off(element, &self.say_never_runs(&error), n_flushes);
                } else {
                    too_many = self.count_failure(element, &permit, results.frame_number, &reason, n_failed);
                }
            }
            Outcome::Open | Outcome::Inferred => {
                leave(Left::Inferred, n_objects);
                if permit.has_succeeded() {
                    self.stream.lock().unwrap().n_failed_in_a_row = 0;
                }
                trace.end("inferred", None);
                self.raise_latency(element, took);
            }
        }
        let writable = buffer.make_mut();
        let expected = std::mem::replace(&mut self.stream.lock().unwrap().next_to_leave, number + 1);
        if number != expected {
            writable.set_flags(gst::BufferFlags::DISCONT);
        }
        let with_analytics = self.policy.lock().unwrap().analytics_meta;
        meta::attach_to(writable, results, with_analytics);
        if let Some(held) = &mut held {
            held.leave();
        }
        gst::trace!(self.cat, obj = pad, "pushing {buffer:?}");
        let pushed = pad.push(buffer);
        // Whoever is next holds it by now, if anybody does.
        drop(held);
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
    fn carry(
        &self,
        stage: &dyn Stage,
        (number, looks_like): (u64, Option<u64>),
        results: &mut FrameResults,
        n_before: usize,
        outcome: &Outcome,
    ) {
        let mut found = self.found.lock().unwrap();
        let policy = *self.policy.lock().unwrap();
        if !policy.keeps_results() {
            *found = None;
            return;
        }
        match outcome {
            Outcome::Inferred => *found = Some((number, stage.found(results, n_before))),
            Outcome::Skipped(_) => {
                // Where nothing has changed it still holds; but the frame to which that was compared may not have been inferred after all.
                let holds = |of_frame: u64| policy.carry_results || looks_like == Some(of_frame);
                if let Some((_, found)) = found.as_ref().filter(|(of_frame, _)| holds(*of_frame)) {
                    stage.carry(found, results);
                }
            }
            Outcome::Open | Outcome::Failed(_) => {}
        }
    }

    /// The frame goes no further.
    fn drop_frame(&self, frame: InFlight, reason: Reason) {
        self.counts.drop(reason);
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

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::elements::stage::Done;
    use crate::frame::Frame;
    use crate::stages::StageStats;
    use crate::stages::window::Taken;

    static CAT: LazyLock<gst::DebugCategory> =
        LazyLock::new(|| gst::DebugCategory::new("roitest", gst::DebugColorFlags::empty(), Some("of a test")));

    /// A stage with a bug: its results are lost on their way.
    struct LosesResults;

    impl Stage for LosesResults {
        fn run(&self, _frame: Frame, _results: FrameResults, _permit: Arc<Permit>, done: Done) {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _done = done;
                panic!("on the way to `done`");
            }));
            assert!(panicked.is_err());
        }

        fn warm_up(&self) -> stages::Result<Duration> {
            Ok(Duration::ZERO)
        }

        fn has_run(&self) -> bool {
            true
        }

        fn drop_pending(&self) {}

        fn drop_withdrawn(&self) {}

        fn found(&self, results: &FrameResults, _n_before: usize) -> FrameResults {
            results.clone()
        }

        fn n_objects(&self, _results: &FrameResults, _n_before: usize) -> usize {
            0
        }

        fn carry(&self, _found: &FrameResults, _results: &mut FrameResults) {}

        fn n_frames_at_once(&self) -> usize {
            1
        }

        fn n_frames_fewer(&self) -> usize {
            0
        }

        fn gathers_frames(&self) -> bool {
            false
        }

        fn scheduling(&self) -> Scheduling {
            Scheduling::Throughput
        }

        fn stats(&self) -> StageStats {
            StageStats::default()
        }

        fn reads_results(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_panic_on_the_way_of_the_results_is_a_failed_frame_and_not_one_that_stays_for_ever() {
        gst::init().unwrap();
        let driver = Driver::new(*CAT);
        driver.window.resume();
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
            permit: Permit::new(arrived, None),
            trace: FrameTrace { frame: tracing::Span::none(), part: tracing::Span::none() },
            held: None,
        };
        let stage: Arc<dyn Stage> = Arc::new(LosesResults);
        driver.infer(frame, &info, &stage, &Policy::default(), (QueuePolicy::Wait, None)).unwrap();
        let Ok(Taken::Complete(Item::Frame(frame))) = driver.window.take(|_| None, None) else { panic!("it is complete") };
        assert!(matches!(&frame.outcome, Outcome::Failed(reason) if reason.contains("a panic")));
        assert_eq!((frame.results.frame_number, frame.results.size), (7, caps::size(&info)));
    }
}
