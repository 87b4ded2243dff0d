//! A session is one pipeline of a stream in the bus loop: it handles messages, requests and timers, drains and stops the pipeline, and
//! determines why the pipeline has ended.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;

use super::carry::{self, Carried};
use super::descriptors::Reservation;
use super::handle::{Board, Event, Phase, StreamId};
use super::plan::{ENTRY, SOURCE};
use super::reasons::Reason;
use super::run::MAX_WARNINGS;
use super::stats::Meter;
use super::supervision::Supervision;
use super::supervisor::{self, Inbox, Request};
use super::{
    Ending, Error, ErrorKind, Input, Plan, Progress, Result, Uri, build, display, images, images_out, limits, live, outputs, reasons, tap,
    uri,
};
use crate::elements;
use crate::elements::publish::{self, RoiPublish};
use crate::elements::retry;
use crate::elements::video::{self, Video};
use crate::frame::Size;
use crate::redaction::Secrets;
use crate::restart::{End, Fault};
use crate::stages::Snapshot;

/// Interval of progress reports and source checks.
const TICK: Duration = Duration::from_millis(100);
/// Maximum time that writing results may wait for a reader after the end of the stream was requested.
const MAX_WRITE_WAIT: Duration = Duration::from_secs(3);
/// Maximum time for a stream to drain. Stopping the stream may take a few seconds more. Draining and stopping together take at most ten
/// seconds.
const MAX_DRAIN: Duration = Duration::from_secs(5);
/// Maximum time for a stream to drain before its first frame. It is short, because no frames can be lost: a model is still being
/// compiled, or a source is being opened.
const MAX_DRAIN_WITHOUT_FRAMES: Duration = Duration::from_secs(1);
/// Maximum time that a failed source may deliver neither frames nor EOS, before the session itself sends EOS.
const MAX_SOURCE_STALL: Duration = Duration::from_secs(2);
/// Maximum time for a pipeline to stop. After that, it is abandoned. An inference element takes up to five seconds to stop.
const MAX_STOP: Duration = Duration::from_secs(6);
/// Additional time for a stop after an error, in which the reason why a server could not be reached is determined.
const MAX_REASON: Duration = Duration::from_secs(4);

/// One pipeline of a supervised stream.
pub(super) struct Session {
    stream: StreamId,
    /// Number of the session among the sessions of its stream, from 0.
    attempt: u32,
    board: Arc<Board>,
    inbox: Arc<Inbox>,
    parts: Arc<Parts>,
    state: State,
    /// The time at which [`Session::tick`] is due.
    timer: Instant,
    /// Data collected for the ending.
    ending: Ending,
    /// Whether the input is played again when it ends. False after a request to end the stream.
    repeats: bool,
    gate: Option<Gate>,
    /// The outputs that could not be written.
    unwritable: Vec<gst::Object>,
    /// The address to which the server of the input redirects, if its source element did not follow.
    redirected_to: Option<Uri>,
}

/// A pipeline that is built, and that no stream supervises yet.
pub(super) struct NewSession(Parts);

/// How a session ended.
pub(super) struct Finished {
    pub(super) ending: Ending,
    /// Why the stream failed; `None` if it did not fail.
    pub(super) error: Option<Error>,
    pub(super) end: End,
    /// State for the next session; `None` if the pipeline hung before this state was known.
    pub(super) carried: Option<Carried>,
}

/// Data of a session that does not change. The threads that run blocking operations of the session share it.
pub(super) struct Parts {
    plan: Plan,
    secrets: Secrets,
    pipeline: gst::Pipeline,
    meter: Arc<Meter>,
    supervision: Supervision,
    images: images::Feed,
    /// Number of frames that could not be written as images.
    n_images_failed: Arc<AtomicU64>,
    /// Whether the pipeline was stopped. After that, its state must not change. The lock is held during state changes.
    is_stopped: Mutex<bool>,
    changes: live::Pending,
    _descriptors: Reservation,
}

enum State {
    /// Frames may arrive.
    Playing,
    /// An element failed to start. It usually posts the reason on the bus.
    Refused,
    /// No more frames are accepted; see [`Closing`].
    Closing(Closing),
    /// A thread is stopping the pipeline. The value is the result of the session if the stop takes too long.
    Stopping(Box<Finished>),
}

/// Why a stream is ending.
enum Cause {
    Interrupt,
    Limit,
    /// The source failed.
    Lost(Reason),
    /// Results cannot be written.
    Unwritable(Error),
}

/// State of a draining stream, which completes all frames in flight and finishes its files.
struct Closing {
    cause: Cause,
    since: Instant,
    /// Number of decoded frames, and the time when that number last changed.
    progress: (u64, Instant),
    /// Whether the session itself has sent EOS to the elements after the source.
    is_pushed: bool,
}

impl Closing {
    fn new(cause: Cause) -> Self {
        let now = Instant::now();
        Self { cause, since: now, progress: (0, now), is_pushed: false }
    }

    /// Whether a failed source delivers neither frames nor EOS.
    fn is_stuck(&mut self, n_frames: u64) -> bool {
        if self.progress.0 != n_frames {
            self.progress = (n_frames, Instant::now());
        }
        !self.is_pushed && matches!(self.cause, Cause::Lost(_)) && self.progress.1.elapsed() > MAX_SOURCE_STALL
    }

    /// Records that results could not be written while the stream was ending. If an earlier failure is the cause of the end, it
    /// stays the cause.
    fn fail_writing(&mut self, error: Error) {
        if matches!(self.cause, Cause::Interrupt | Cause::Limit) {
            self.cause = Cause::Unwritable(error);
        }
    }

    /// Whether the cause is a closed standard output, which is not reported.
    fn is_reader_closed(&self) -> bool {
        matches!(&self.cause, Cause::Unwritable(error) if error.kind() == ErrorKind::Closed)
    }
}

/// How a stream ended.
enum Outcome {
    /// EOS has passed all elements. The value is the cause of the end; `None` if the input ended by itself.
    Ended(Option<Cause>),
    /// The stream was draining, but did not end in time.
    Forced(Cause),
    /// The stream was stopped on request.
    Stopped,
    Failed(Reason),
}

impl NewSession {
    /// Builds the pipeline of a plan without starting it. `first_frame` is the number of the first frame. The elements get models and files
    /// from the snapshot.
    ///
    /// # Errors
    /// Returns the errors of [`super::PipelineHandle::add`].
    pub(super) fn build(plan: &Plan, first_frame: u64, snapshot: &Snapshot) -> Result<Self> {
        let secrets = plan.secrets();
        let build = || {
            let _descriptors = Reservation::of(&plan.input)?;
            let pipeline = build::build(plan)?;
            elements::set_snapshot(&pipeline, snapshot);
            outputs::check_built(&pipeline, plan)?;
            let meter = Arc::new(Meter::new(&pipeline, plan));
            let supervision = Supervision::new(&pipeline, plan);
            let n_images_failed = images_out::write_from(&pipeline, plan, first_frame)?;
            tap::install(&pipeline, plan);
            let images = images::Feed::default();
            let (is_stopped, changes) = (Mutex::new(false), live::Pending::default());
            let (plan_of_parts, secrets) = (plan.clone(), secrets.clone());
            let mut parts = Parts {
                plan: plan_of_parts,
                secrets,
                pipeline,
                meter,
                supervision,
                images,
                n_images_failed,
                is_stopped,
                changes,
                _descriptors,
            };
            display::open(&parts.pipeline)?;
            parts.images = feed_images(&parts.pipeline, &parts.plan)?;
            Ok(Self(parts))
        };
        // Remove credentials from the error, because GStreamer's messages contain the address of the input.
        build().map_err(|error: Error| error.scrubbed(&secrets))
    }

    pub(super) fn pipeline(&self) -> &gst::Pipeline {
        &self.0.pipeline
    }

    pub(super) fn meter(&self) -> Arc<Meter> {
        self.0.meter.clone()
    }

    /// Makes a session of the pipeline, whose messages are sent to the bus loop from now on. `warnings` were already reported by
    /// earlier sessions.
    pub(super) fn supervised(self, stream: StreamId, attempt: u32, board: Arc<Board>, inbox: Arc<Inbox>, warnings: Vec<String>) -> Session {
        let parts = Arc::new(self.0);
        let to_loop = inbox.clone();
        let bus = parts.pipeline.bus().expect("a pipeline has a bus");
        bus.set_sync_handler(move |_, message| {
            use gst::MessageView::{Application, Eos, Error, Info, Latency, SegmentDone, Warning};
            let is_handled =
                matches!(message.view(), Eos(_) | Error(_) | Warning(_) | Info(_) | Application(_) | SegmentDone(_) | Latency(_));
            if is_handled || uri::redirect(message).is_some() {
                to_loop.send(supervisor::Input::OfSession(stream, attempt, Request::Message(message.clone())));
            }
            gst::BusSyncReply::Drop
        });
        let repeats = parts.plan.outputs.repeat && matches!(parts.plan.input, Input::File(_));
        let gate = repeats.then(|| Gate::closed(&parts.pipeline)).flatten();
        let (state, timer, ending) = (State::Playing, Instant::now() + TICK, Ending { warnings, ..Ending::default() });
        let (unwritable, redirected_to) = (Vec::new(), None);
        Session { stream, attempt, board, inbox, parts, state, timer, ending, repeats, gate, unwritable, redirected_to }
    }
}

impl Session {
    /// Returns the times of the first and the last frame of the source, if the source is watched.
    pub(super) fn frames(&self) -> Option<(Instant, Instant)> {
        self.parts.supervision.watch.as_ref()?.frames()
    }

    /// Returns the size of the frames; `None` before the first frame.
    pub(super) fn frame_size(&self) -> Option<Size> {
        carry::frame_size(&self.parts.pipeline)
    }

    /// Returns the address to which the server of the input redirects, if the stream has to follow.
    pub(super) fn redirected_to(&self) -> Option<&Uri> {
        self.redirected_to.as_ref()
    }

    /// Returns a weak reference to the data of a pipeline that did not stop in time. The data is freed when the pipeline has ended.
    pub(super) fn abandoned(&self) -> Weak<Parts> {
        Arc::downgrade(&self.parts)
    }

    /// Sets properties of running elements on a separate thread, because setting them may read files. False if the pipeline is about to
    /// end, and takes no changes.
    pub(super) fn change(&self, changes: Vec<live::Change>) -> bool {
        let is_playing = matches!(self.state, State::Playing);
        if is_playing {
            self.parts.changes.add(changes);
            self.spawn("roiflow-change", |parts, _| {
                parts.changes.apply(&parts.pipeline);
                None
            });
        }
        is_playing
    }

    /// Stops the pipeline at once, without draining it. Called during an outage of the source.
    pub(super) fn abort(&mut self) {
        if !matches!(self.state, State::Stopping(_)) {
            self.finish(Outcome::Stopped);
        }
    }

    /// Returns the time at which [`Session::tick`] is due.
    pub(super) fn timer(&self) -> Instant {
        self.timer
    }

    /// Starts the pipeline on a separate thread, because a source may block.
    pub(super) fn start(&mut self) {
        self.spawn("roiflow-start", |parts, send| {
            parts.supervision.decoded.is_truncated().into_iter().for_each(|damage| send(Request::Warning(damage)));
            Some(Request::Started(parts.play()))
        });
        // Handle the messages that were posted before `supervised` installed the bus handler.
        while let Some(message) = self.parts.pipeline.bus().and_then(|bus| bus.pop()) {
            self.on_message(&message);
        }
    }

    /// Handles a request. Returns `Break` if the session has ended.
    pub(super) fn handle(&mut self, request: Request) -> ControlFlow<Box<Finished>> {
        match request {
            Request::Stopped(mut finished) => {
                if let State::Stopping(fallback) = &mut self.state {
                    finished.carried = fallback.carried.take();
                }
                return ControlFlow::Break(finished);
            }
            Request::Carried(carried) => {
                if let State::Stopping(fallback) = &mut self.state {
                    fallback.carried = Some(*carried);
                }
            }
            Request::Built(_) | Request::Reload(..) | Request::Checked(..) => {}
            Request::Message(message) => self.on_message(&message),
            _ if matches!(self.state, State::Stopping(_)) => {}
            Request::Warning(warning) => self.warn(warning),
            Request::Started(true) => self.board.report(self.stream, Event::Started),
            Request::Started(false) => {
                if matches!(self.state, State::Playing) {
                    self.state = State::Refused;
                    self.timer = Instant::now() + TICK;
                }
            }
            Request::Failed(error) => self.finish(Outcome::Failed(Reason::Known(error))),
            Request::Drain => self.drain(),
            Request::Stop => {
                (self.ending.interrupted, self.ending.forced) = (true, true);
                self.finish(Outcome::Stopped);
            }
        }
        ControlFlow::Continue(())
    }

    /// Handles timeouts that are due. Returns `Break` if the session has ended because its pipeline did not stop in time.
    pub(super) fn tick(&mut self, now: Instant) -> ControlFlow<Box<Finished>> {
        self.timer = now + TICK;
        match &mut self.state {
            State::Stopping(_) => {
                tracing::warn!("a pipeline did not stop in time; the run continues without waiting for this pipeline");
                if let State::Stopping(finished) = std::mem::replace(&mut self.state, State::Playing) {
                    return ControlFlow::Break(finished);
                }
            }
            State::Refused => {
                let error = Error::failed("the pipeline did not start, and no element reported a reason; try --log debug");
                self.finish(Outcome::Failed(Reason::Known(error)));
                return ControlFlow::Continue(());
            }
            State::Playing => {
                self.check_limit();
                self.check_source();
            }
            State::Closing(_) => {}
        }
        if let Some(damage) = self.parts.supervision.decoded.news() {
            self.warn(damage);
        }
        self.report_progress();
        self.check_closing();
        ControlFlow::Continue(())
    }

    fn check_limit(&mut self) {
        if let (State::Playing, Some(limit)) = (&self.state, &self.parts.supervision.limit)
            && limit.is_reached()
        {
            limit.end();
            self.close(Cause::Limit);
        }
    }

    fn check_source(&mut self) {
        let Supervision { intake, watch, decoded, .. } = &self.parts.supervision;
        let lost = watch.as_ref().and_then(|watch| watch.overdue(decoded.n_frames()).or_else(|| watch.starving()));
        let lost = self.parts.supervision.excess().or(lost);
        if let (State::Playing, Some(error)) = (&self.state, lost) {
            intake.iter().for_each(|intake| intake.hang_up());
            self.close(Cause::Lost(Reason::Known(error)));
            self.continue_without_source();
            // Send EOS on another thread, because a blocked source may hold its lock.
            self.parts.pipeline.call_async(|pipeline| {
                pipeline.send_event(gst::event::Eos::new());
            });
        }
    }

    /// Checks the progress of a draining stream.
    fn check_closing(&mut self) {
        let is_lost = matches!(&self.state, State::Closing(Closing { cause: Cause::Lost(_), .. }));
        if is_lost && self.parts.pipeline.current_state() != gst::State::Playing {
            // Continue without the source again, because a concurrent state change may have undone the first call.
            self.continue_without_source();
        }
        let Self { parts, state: State::Closing(closing), .. } = self else { return };
        if closing.is_stuck(parts.supervision.decoded.n_frames()) {
            closing.is_pushed = true;
            parts.entry_pad().iter().for_each(limits::push_end);
        }
        let max_drain = if parts.meter.waits_for_frames() { MAX_DRAIN_WITHOUT_FRAMES } else { MAX_DRAIN };
        // If the stream ends at a limit of frames or time, this is a regular end: the frames in flight may take any time to
        // complete.
        let is_limited = self.ending.interrupted || !matches!(closing.cause, Cause::Limit);
        if is_limited && closing.since.elapsed() > max_drain {
            let n_lost = parts.meter.n_in_flight();
            let lost = if n_lost > 0 { format!("; {n_lost} frames in flight are lost") } else { String::new() };
            self.warn(format!("the stream did not end within {} s and was stopped{lost}", max_drain.as_secs()));
            self.ending.forced = true;
            if let Some(cause) = self.take_cause() {
                self.finish(Outcome::Forced(cause));
            }
        }
    }

    /// Drains the stream: it accepts no more frames, and frames in flight complete.
    fn drain(&mut self) {
        if std::mem::replace(&mut self.ending.interrupted, true) {
            return;
        }
        self.repeats = false;
        self.parts.write_until(Instant::now() + MAX_WRITE_WAIT);
        match &mut self.state {
            State::Closing(closing) => closing.since = Instant::now(),
            _ => {
                // A source that has sent no video may not end by itself.
                self.parts.supervision.intake.iter().for_each(|intake| intake.hang_up());
                self.close(Cause::Interrupt);
                self.parts.end();
            }
        }
    }

    fn close(&mut self, cause: Cause) {
        self.repeats = false;
        self.state = State::Closing(Closing::new(cause));
        self.board.set_phase(self.stream, Phase::Draining);
    }

    /// If the stream is draining, returns the cause of its end, and leaves the draining state.
    fn take_cause(&mut self) -> Option<Cause> {
        match std::mem::replace(&mut self.state, State::Playing) {
            State::Closing(closing) => Some(closing.cause),
            other => {
                self.state = other;
                None
            }
        }
    }

    fn on_message(&mut self, message: &gst::Message) {
        if matches!(self.state, State::Stopping(_)) {
            return;
        }
        if let (Input::Uri(uri), Some(location)) = (&self.parts.plan.input, uri::redirect(message)) {
            self.redirected_to = uri.redirected_to(&location);
        }
        match message.view() {
            gst::MessageView::Eos(_) => {
                self.report_progress();
                let cause = self.take_cause();
                self.finish(Outcome::Ended(cause));
            }
            gst::MessageView::Error(error) => self.on_error(message, error),
            gst::MessageView::Warning(warning) => self.on_warning(warning),
            gst::MessageView::Info(info) => {
                if let Some((destination, false)) = outage(info.details()) {
                    self.board.report(self.stream, Event::DestinationBack { destination });
                }
            }
            gst::MessageView::Application(application) => match application.structure().map(|structure| structure.name().as_str()) {
                Some(limits::REACHED) => self.check_limit(),
                Some(FIRST_FRAME) => {
                    if let Some(gate) = self.gate.take() {
                        // Turn segment mode on with this first seek, which flushes. When the input ends, it is repeated by a segment seek
                        // without a flush. So running time continues from one repetition to the next, and encoders and muxers see one
                        // stream.
                        self.spawn("roiflow-seek", move |parts, _| {
                            let sought = parts.seek_to_start(gst::SeekFlags::FLUSH | gst::SeekFlags::SEGMENT);
                            gate.open();
                            sought.err().map(Request::Failed)
                        });
                    }
                }
                _ => {}
            },
            gst::MessageView::SegmentDone(_) if self.repeats => {
                self.spawn("roiflow-seek", |parts, _| parts.seek_to_start(gst::SeekFlags::SEGMENT).err().map(Request::Failed));
            }
            gst::MessageView::Latency(_) => self.parts.pipeline.call_async(|pipeline| {
                let _recalculated = pipeline.recalculate_latency();
            }),
            _ => {}
        }
    }

    fn on_error(&mut self, message: &gst::Message, error: &gst::message::Error) {
        let is_from_source = reasons::is_from_source(&self.parts.plan, error.src());
        // While the stream ends, ignore errors of the source: a demuxer reports an error if it is interrupted within a segment, but EOS
        // follows anyway.
        if matches!(self.state, State::Closing(_)) && is_from_source {
            return;
        }
        if write_failure(error.details(), error.src()) == Some(true) {
            return self.finish(Outcome::Failed(Reason::Known(Error::closed())));
        }
        // If the source was already lost, or results could not be written, that failure is the cause of the end, and not this
        // error.
        let first = match self.take_cause() {
            // The error of another element may be a consequence of the loss, and the next pipeline of the stream may work.
            Some(Cause::Lost(first)) => return self.finish(Outcome::Forced(Cause::Lost(first))),
            Some(Cause::Unwritable(first)) => Some(Reason::Known(first)),
            Some(Cause::Interrupt | Cause::Limit) | None => None,
        };
        let supervision = &self.parts.supervision;
        let is_lost = first.is_none() && is_from_source && supervision.may_have_results(error);
        let reason = first.unwrap_or_else(|| Reason::OfElement { message: message.clone(), has_played: supervision.has_played() });
        if is_lost {
            // The source pushes EOS after its error. So do not stop the pipeline yet: the frames that were delivered can complete.
            self.close(Cause::Lost(reason));
            self.continue_without_source();
        } else {
            self.finish(Outcome::Failed(reason));
        }
    }

    fn on_warning(&mut self, warning: &gst::message::Warning) {
        if let Some((reason, path)) = retry::read(warning.details()) {
            let reason = self.parts.secrets.scrub(&reason).into_owned();
            let event = match path {
                Some(path) => Event::RecordingContinued { reason, path },
                None => Event::RecordingLost { reason },
            };
            return self.board.report(self.stream, event);
        }
        let failed = write_failure(warning.details(), warning.src());
        self.unwritable.extend(warning.src().filter(|_| failed.is_some()).cloned());
        // While another destination gets results, the stream goes on: results that a file misses are counted as lost.
        if let Some(is_closed) = failed.filter(|is_closed| *is_closed || !self.parts.meter.publishes_elsewhere(&self.unwritable)) {
            // No further results can be written. Drain the stream, so that the other output files are complete.
            let failure = if is_closed { Error::closed() } else { Error::failed(warning.error().message()) };
            match &mut self.state {
                State::Closing(closing) => closing.fail_writing(failure),
                _ => {
                    self.close(Cause::Unwritable(failure));
                    self.parts.write_until(Instant::now() + MAX_WRITE_WAIT);
                    self.parts.end();
                }
            }
            if is_closed {
                return;
            }
        }
        let name = reasons::name(&self.parts.plan);
        // This warning means that the source will never have a pad for the delayed link, because it has no decodable video.
        if warning.error().kind::<gst::ParseError>() == Some(gst::ParseError::DelayedLink) {
            let error = format!("cannot play `{name}`: it has no decodable video; expected a file or stream with video");
            return self.finish(Outcome::Failed(Reason::Known(Error::failed(error))));
        }
        // Do not add the name of the input to warnings about an image, because they already contain the name of the image.
        let is_from_source = reasons::is_from_source(&self.parts.plan, warning.src()) && !matches!(self.parts.plan.input, Input::Images(_));
        let text = warning.error().message().to_owned();
        let is_reader_closed = matches!(&self.state, State::Closing(closing) if closing.is_reader_closed());
        if let Some((destination, true)) = outage(warning.details()) {
            // Each outage is reported, also if the text is that of an earlier one.
            let reason = self.parts.secrets.scrub(&text).into_owned();
            self.keep(&reason);
            self.board.report(self.stream, Event::DestinationLost { destination, reason });
        } else if !is_reader_closed {
            self.warn(if is_from_source { format!("`{name}`: {text}") } else { text });
        }
    }

    /// Reports a warning, unless it is among the stored ones.
    fn warn(&mut self, warning: String) {
        let warning = self.parts.secrets.scrub(&warning).into_owned();
        if self.keep(&warning) {
            self.board.report(self.stream, Event::Warning(warning));
        }
    }

    /// Stores a warning for the end of the stream. At most [`MAX_WARNINGS`] are stored. Returns whether it is new.
    fn keep(&mut self, warning: &str) -> bool {
        let is_new = self.ending.warnings.iter().all(|kept| kept != warning);
        if is_new && self.ending.warnings.len() < MAX_WARNINGS {
            self.ending.warnings.push(warning.to_owned());
        }
        is_new
    }

    fn report_progress(&self) {
        let time = |time: gst::ClockTime| Duration::from_nanos(time.nseconds());
        let Parts { pipeline, meter, .. } = &*self.parts;
        let progress = Progress {
            n_frames: meter.n_frames(),
            position: pipeline.query_position::<gst::ClockTime>().map(time),
            duration: pipeline.query_duration::<gst::ClockTime>().map(time),
        };
        self.board.report(self.stream, Event::Progress(progress));
    }

    /// Stops the pipeline on a separate thread, because stopping may block.
    fn finish(&mut self, outcome: Outcome) {
        let ending = std::mem::take(&mut self.ending);
        let has_reason = matches!(outcome, Outcome::Failed(_) | Outcome::Ended(Some(Cause::Lost(_))) | Outcome::Forced(Cause::Lost(_)));
        let is_live = matches!(&self.parts.plan.input, Input::Uri(uri) if uri.is_live());
        // Do not query whether the source has a duration, because the query may block.
        let end = if is_live { self.parts.end_of(&outcome, || false) } else { End::Final };
        let error = has_reason.then(|| Error::failed("the stream failed, and its pipeline did not stop in time; try --log debug"));
        let late = Ending { forced: true, stats: self.parts.meter.stats(false), ..ending.clone() };
        let fallback = Box::new(Finished { ending: late, error, end, carried: None });
        self.timer = Instant::now() + MAX_STOP + if has_reason { MAX_REASON } else { Duration::ZERO };
        self.state = State::Stopping(fallback);
        self.board.set_phase(self.stream, Phase::Stopping);
        self.spawn("roiflow-stop", |parts, send| Some(Request::Stopped(Box::new(parts.finish(outcome, ending, send)))));
    }

    /// Makes the pipeline continue without its failed source. Otherwise, sinks that have not received a frame would wait for the
    /// source.
    fn continue_without_source(&self) {
        let source = self.parts.pipeline.by_name(SOURCE);
        if let Some(source) = &source {
            source.set_locked_state(true);
        }
        self.spawn("roiflow-go-on", move |parts, _| {
            if !parts.play() {
                tracing::debug!("the pipeline cannot continue without its source");
            }
            // If the source failed to open, its state change never completes, and the pipeline waits for it. This message ends the wait.
            if let Some(source) = source {
                let _posted = source.post_message(gst::message::AsyncDone::builder().src(&source).build());
            }
            None
        });
    }

    /// Runs a blocking operation on a separate thread. The operation may send requests, and returns the last request.
    fn spawn(&self, name: &str, act: impl FnOnce(&Parts, &dyn Fn(Request)) -> Option<Request> + Send + 'static) {
        let (parts, inbox, stream, attempt) = (self.parts.clone(), self.inbox.clone(), self.stream, self.attempt);
        let send = move |request| inbox.send(supervisor::Input::OfSession(stream, attempt, request));
        let body = {
            let send = send.clone();
            move || {
                let last = act(&parts, &send);
                // Drop the pipeline before the end of the stream is reported.
                drop(parts);
                last.into_iter().for_each(send);
            }
        };
        if let Err(error) = std::thread::Builder::new().name(name.to_owned()).spawn(body) {
            send(Request::Failed(Error::failed(format!("cannot start the thread {name}: {error}"))));
        }
    }
}

impl Parts {
    /// Converts an outcome to the kind of end that determines whether the stream is restarted. `is_recording` is called only for
    /// failures of the source.
    fn end_of(&self, outcome: &Outcome, is_recording: impl FnOnce() -> bool) -> End {
        match outcome {
            Outcome::Ended(None) => End::Eos,
            Outcome::Ended(Some(Cause::Lost(reason))) | Outcome::Forced(Cause::Lost(reason)) => {
                End::Source(Fault { is_refused: reason.is_refusal(self.supervision.intake.as_deref()), is_recording: is_recording() })
            }
            Outcome::Failed(reason) if reason.is_of_source(&self.plan) => {
                End::Source(Fault { is_refused: reason.is_refusal(self.supervision.intake.as_deref()), is_recording: is_recording() })
            }
            _ => End::Final,
        }
    }

    /// Whether the source is a recording, which has a duration.
    fn is_recording(&self) -> bool {
        let Supervision { watch, decoded, .. } = &self.supervision;
        watch.as_ref().is_some_and(|watch| watch.is_recording(decoded.declares_duration()))
    }

    /// Stops the pipeline and returns how the session ended. Sends the state for the next session before the stop, because the stop may
    /// hang.
    fn finish(&self, outcome: Outcome, mut ending: Ending, send: &dyn Fn(Request)) -> Finished {
        let mut end = self.end_of(&outcome, || self.is_recording());
        let played = match outcome {
            Outcome::Ended(None) => self.supervision.broken_end(self.meter.n_frames()).map_or_else(
                || {
                    self.open_results();
                    Ok(None)
                },
                Err,
            ),
            Outcome::Ended(Some(Cause::Limit)) => {
                self.open_results();
                Ok(None)
            }
            Outcome::Stopped | Outcome::Ended(Some(Cause::Interrupt)) | Outcome::Forced(Cause::Interrupt | Cause::Limit) => Ok(None),
            Outcome::Ended(Some(Cause::Unwritable(error))) | Outcome::Forced(Cause::Unwritable(error))
                if error.kind() != ErrorKind::Closed =>
            {
                Ok(Some(error))
            }
            Outcome::Ended(Some(Cause::Unwritable(error))) | Outcome::Forced(Cause::Unwritable(error)) => Err(error),
            Outcome::Failed(reason) | Outcome::Ended(Some(Cause::Lost(reason))) | Outcome::Forced(Cause::Lost(reason)) => {
                Err(reason.explain(&self.plan, self.supervision.intake.as_deref()))
            }
        };
        if end == End::Eos && played.is_err() {
            end = End::Source(Fault { is_recording: self.is_recording(), ..Fault::default() });
        }
        ending.stats = self.meter.stats(played.is_ok());
        // Make outputs stop waiting for their readers. A waiting output holds the lock of its state, which `Carried::of` needs.
        self.write_until(Instant::now());
        send(Request::Carried(Box::new(Carried::of(&self.pipeline, &self.plan, &self.meter))));
        self.stop();
        // Read the number of lost lines after the stop, because the stop writes or drops the lines that are still queued.
        ending.stats.n_lines_lost = self.meter.n_lines_lost();
        ending.stats.n_recordings_failed = self.n_recordings_failed();
        ending.n_skipped_images = self.images.n_skipped();
        let failure = match (self.images.nothing_read(), played) {
            (Some(error), _) | (None, Err(error)) => Some(error),
            (None, Ok(failure)) => outputs::lost(&self.plan, &ending.stats).or(failure),
        };
        let error = failure.map(|failure| failure.scrubbed(&self.secrets));
        Finished { ending, error, end, carried: None }
    }

    /// Opens the files of results, so that an empty file exists even if the input had no frames. If the file is a FIFO without a reader,
    /// opening it waits for a limited time.
    fn open_results(&self) {
        self.write_until(Instant::now() + MAX_WRITE_WAIT);
        let elements = self.pipeline.iterate_recurse().into_iter().flatten();
        elements.for_each(|element| element.downcast_ref::<RoiPublish>().into_iter().for_each(RoiPublish::open));
    }

    /// Sets the time at which the elements that write results stop waiting for readers.
    fn write_until(&self, deadline: Instant) {
        for element in self.pipeline.iterate_recurse().into_iter().flatten() {
            if let Some(publish) = element.downcast_ref::<RoiPublish>() {
                publish.write_until(deadline);
            }
            if let Some(video) = element.downcast_ref::<Video>() {
                video.write_until(deadline);
            }
        }
    }

    /// Returns the number of failures of recordings.
    fn n_recordings_failed(&self) -> u64 {
        let elements = self.pipeline.iterate_recurse().into_iter().flatten();
        let of_videos: u64 = elements.filter_map(|element| element.downcast_ref::<Video>().map(Video::n_failures)).sum();
        of_videos + self.n_images_failed.load(Ordering::Acquire)
    }

    /// Starts the pipeline. Returns false if an element fails or the pipeline was stopped.
    fn play(&self) -> bool {
        let is_stopped = self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner);
        !*is_stopped && self.pipeline.set_state(gst::State::Playing).is_ok()
    }

    fn stop(&self) {
        // Make sinks stop waiting for their readers, because a waiting sink would block the state change. So would a source that reads.
        self.write_until(Instant::now());
        self.supervision.intake.iter().for_each(|intake| intake.hang_up());
        let mut is_stopped = self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner);
        *is_stopped = true;
        if let Some(source) = self.pipeline.by_name(SOURCE) {
            source.set_locked_state(false);
        }
        if let Err(error) = self.pipeline.set_state(gst::State::Null) {
            tracing::warn!("the pipeline did not stop: {error}");
        }
    }

    /// Sends EOS through the pipeline, so that all frames in flight complete and files are finished.
    fn end(&self) {
        match (&self.plan.input, self.entry_pad()) {
            // A file source may work in pull mode, in which it ignores events. So a probe replaces the next decoded frame by EOS.
            (Input::File(_), Some(pad)) => {
                pad.add_probe(gst::PadProbeType::BUFFER, |pad, _info| {
                    pad.push_event(gst::event::Eos::new());
                    gst::PadProbeReturn::Drop
                });
            }
            _ => {
                // Send EOS to each source, not to the pipeline: the pipeline would hold its lock while a source waits for preroll, which
                // needs the lock. Each EOS is sent on a separate thread, because a blocked source does not return.
                for source in self.pipeline.iterate_sources().into_iter().flatten() {
                    let send = move || {
                        let _sent = source.send_event(gst::event::Eos::new());
                    };
                    if let Err(error) = std::thread::Builder::new().name("roiflow-end".to_owned()).spawn(send) {
                        tracing::warn!("cannot start the thread that ends the stream: {error}");
                    }
                }
            }
        }
    }

    /// Returns the pad where decoded frames enter the graph.
    fn entry_pad(&self) -> Option<gst::Pad> {
        self.pipeline.by_name(ENTRY).and_then(|entry| entry.static_pad("src"))
    }

    /// Seeks to the start of the input. The seek is sent at the decoder's output: a seek that is sent at the sink would reach a muxer,
    /// which would handle it itself.
    fn seek_to_start(&self, flags: gst::SeekFlags) -> Result<()> {
        let (from, to) = ((gst::SeekType::Set, gst::ClockTime::ZERO), (gst::SeekType::None, gst::ClockTime::NONE));
        let seek = gst::event::Seek::new(1.0, flags, from.0, from.1, to.0, to.1);
        let sought = self.entry_pad().is_some_and(|pad| pad.send_event(seek));
        if sought { Ok(()) } else { Err(Error::failed("--loop: this input cannot be restarted from its start; remove --loop")) }
    }
}

impl Drop for Parts {
    /// Stops the pipeline if it was built but its session never ran. After a session, the pipeline is already stopped.
    fn drop(&mut self) {
        if self.pipeline.current_state() != gst::State::Null {
            self.stop();
        }
    }
}

fn feed_images(pipeline: &gst::Pipeline, plan: &Plan) -> Result<images::Feed> {
    let Input::Images(paths) = &plan.input else { return Ok(images::Feed::default()) };
    if let Some(filter) = pipeline.by_name("roiflow-size") {
        let (width, height) = images::size(paths)?;
        let square = gst::Fraction::new(1, 1);
        let caps = gst::Caps::builder("video/x-raw")
            .field("width", width as i32)
            .field("height", height as i32)
            .field("pixel-aspect-ratio", square)
            .build();
        filter.set_property("caps", caps);
    }
    let source = pipeline.by_name(SOURCE).and_then(|source| source.downcast::<gst_app::AppSrc>().ok());
    let source = source.ok_or_else(|| Error::usage("the graph has no source for images: begin it with `{source}`"))?;
    images::feed(&source, paths.clone(), plan.outputs.image_rate, plan.outputs.repeat)
}

/// Returns `Some` if an error or warning reports that results could not be written. The value is true if the reader of standard
/// output has closed the pipe.
fn write_failure(details: Option<&gst::StructureRef>, source: Option<&gst::Object>) -> Option<bool> {
    let details = details.filter(|details| [publish::WRITE_FAILED, video::WRITE_FAILED].contains(&details.name().as_str()))?;
    let is_closed = details.get::<bool>("closed").unwrap_or(false);
    let to_stdout = |source: &gst::Object| {
        let path = ["address", "location"].into_iter().find(|name| source.find_property(name).is_some());
        let path = path.and_then(|name| source.property::<Option<String>>(name));
        let is_method =
            source.downcast_ref::<RoiPublish>().is_some_and(|_| source.property::<publish::Method>("method") == publish::Method::Stdout);
        is_method || path.is_some_and(|path| crate::publish::is_stdout(path.as_ref()))
    };
    Some(is_closed && source.is_some_and(to_stdout))
}

/// Returns the address of the server that a message of `roipublish` is about, and whether the server does not answer.
fn outage(details: Option<&gst::StructureRef>) -> Option<(String, bool)> {
    let details = details.filter(|details| details.name() == publish::OUTAGE)?;
    Some((details.get("url").ok()?, details.get("is-down").ok()?))
}

/// Name of the application message that reports the first frame of a loop.
const FIRST_FRAME: &str = "roiflow-first-frame";

/// Blocks the first frame of a loop until the segment seek is done. Otherwise, frames before the seek would appear twice.
struct Gate {
    pad: gst::Pad,
    probe: gst::PadProbeId,
}

impl Gate {
    /// Adds the gate to a pipeline. It posts an application message when the first frame arrives. `None` if the source does not
    /// decode.
    fn closed(pipeline: &gst::Pipeline) -> Option<Self> {
        let entry = pipeline.by_name(ENTRY)?;
        let pad = entry.static_pad("src")?;
        let is_posted = AtomicBool::new(false);
        let probe = pad.add_probe(gst::PadProbeType::BLOCK | gst::PadProbeType::BUFFER, move |_, _| {
            if !is_posted.swap(true, Ordering::AcqRel) {
                let structure = gst::Structure::new_empty(FIRST_FRAME);
                let _posted = entry.post_message(gst::message::Application::builder(structure).src(&entry).build());
            }
            gst::PadProbeReturn::Ok
        })?;
        Some(Self { pad, probe })
    }

    fn open(self) {
        self.pad.remove_probe(self.probe);
    }
}
