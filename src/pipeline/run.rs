//! Plays a plan to its end: the bus loop, the proper end on interrupt, the reason of the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;

use super::decoded::Decoded;
use super::plan::{ENTRY, SOURCE};
use super::stats::{Meter, Stats};
use super::watch::Watch;
use super::{Error, ErrorKind, Input, Plan, Result, build, display, images, limits, outputs, pictures_out, reasons};
use crate::elements::publish::{self, RoiPublish};
use crate::elements::video_file::{self, VideoFile};
use crate::redaction::Secrets;

/// How often progress is told.
const TICK: gst::ClockTime = gst::ClockTime::from_mseconds(100);
/// How long results may wait for a reader after an interrupt.
const WRITE_PATIENCE: Duration = Duration::from_secs(3);
/// How long a stream may take to end after an interrupt. Its stop may take some seconds more, and all has ten.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same if no frame has come: a model is being compiled, or a source opened, and nothing is lost.
const PATIENCE_WITHOUT_FRAMES: Duration = Duration::from_secs(1);
/// How long a source that failed may deliver nothing more until the stream is ended for it.
const PATIENCE_WITH_SOURCE: Duration = Duration::from_secs(2);

/// How a stream ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ending {
    /// What was measured.
    pub stats: Stats,
    /// Whether the user ended it.
    pub interrupted: bool,
    /// Whether it did not end in time after an interrupt and was stopped: what was in flight is lost.
    pub forced: bool,
    /// What elements warned of, each once.
    pub warnings: Vec<String>,
    /// Pictures that could not be read and were skipped.
    pub n_skipped_pictures: u64,
}

/// Where a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Frames that have left the last inference element.
    pub n_frames: u64,
    /// The place in the input, if it has one.
    pub position: Option<Duration>,
    /// The length of the input, if it has one.
    pub duration: Option<Duration>,
}

impl Progress {
    /// Of several streams together: as many frames as all have, and where the one is that has most before it.
    pub fn of_all<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let left = |progress: &Self| progress.duration.zip(progress.position).map(|(duration, position)| duration.saturating_sub(position));
        let mut sum: Option<Self> = None;
        for progress in all {
            sum = Some(match sum {
                None => *progress,
                Some(sum) => {
                    // Who has no end has the most before it.
                    let is_behind = left(&sum).is_some_and(|most| left(progress).is_none_or(|left| left > most));
                    let last = if is_behind { *progress } else { sum };
                    Self { n_frames: sum.n_frames + progress.n_frames, ..last }
                }
            });
        }
        sum.unwrap_or(Self { n_frames: 0, position: None, duration: None })
    }
}

/// Reported by a running stream, when it happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// Where the stream is; ten times a second.
    Progress(Progress),
    /// An element warns; each text once.
    Warning(&'a str),
}

/// Asks a running stream to end properly: files are completed.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Asks.
    pub fn interrupt(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Plays the plan and returns at the end of the stream. Events are passed to `report` on this thread.
///
/// # Errors
/// The error of an element, with the element's name; or the number of lines of results that could not be written.
pub fn run(plan: &Plan, interrupt: &Interrupt, mut report: impl FnMut(Event<'_>)) -> Result<Ending> {
    let secrets = plan.input.secrets();
    // GStreamer's texts quote the address of the input.
    let mut report = |event: Event<'_>| match event {
        Event::Warning(warning) => report(Event::Warning(&secrets.scrub(warning))),
        other => report(other),
    };
    let mut ended = play_to_end(plan, interrupt, &secrets, &mut report).map_err(|error| error.scrubbed(&secrets));
    if let Ok(ending) = &mut ended {
        ending.warnings.iter_mut().for_each(|warning| *warning = secrets.scrub(warning).into_owned());
    }
    ended
}

fn play_to_end(plan: &Plan, interrupt: &Interrupt, secrets: &Secrets, report: &mut impl FnMut(Event<'_>)) -> Result<Ending> {
    let pipeline = build::build(plan)?;
    outputs::check_built(&pipeline, plan)?;
    let meter = Meter::new(&pipeline, plan);
    let supervision = Supervision::new(&pipeline, plan);
    pictures_out::write_from(&pipeline, plan)?;
    let stopper = Stopper(pipeline.clone());
    display::open(&pipeline)?;
    let images = feed_images(&pipeline, plan)?;
    let played = play(&pipeline, plan, interrupt, &meter, &supervision, secrets, report);
    let mut stats = meter.stats(played.is_ok());
    drop(stopper);
    // A stop writes what waits, or loses it.
    stats.n_lines_lost = meter.n_lines_lost();
    if let Some(error) = images.nothing_read() {
        return Err(error);
    }
    let Played { interrupted, forced, warnings, failure } = played?;
    if stats.n_lines_lost > 0 {
        let path = plan.outputs.json.clone().unwrap_or_default();
        return Err(Error::failed(format!("{} lines of results could not be written to `{}`", stats.n_lines_lost, path.display())));
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    Ok(Ending { stats, interrupted, forced, warnings, n_skipped_pictures: images.n_skipped() })
}

/// How the bus loop ended.
#[derive(Default)]
struct Played {
    interrupted: bool,
    forced: bool,
    warnings: Vec<String>,
    /// Results could not be written, and so the stream was ended.
    failure: Option<Error>,
}

/// Stops the pipeline however `run` is left.
struct Stopper(gst::Pipeline);

impl Drop for Stopper {
    fn drop(&mut self) {
        if let Some(source) = self.0.by_name(SOURCE) {
            source.set_locked_state(false);
        }
        // A sink that waits for its reader would hold up the stop.
        write_until(&self.0, Instant::now());
        if let Err(error) = self.0.set_state(gst::State::Null) {
            tracing::warn!("the pipeline did not stop: {error}");
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
    let source = source.ok_or_else(|| Error::usage("the graph has no place for pictures: begin it with `{source}`"))?;
    images::feed(&source, paths.clone(), plan.outputs.repeat)
}

/// What is looked at while a stream runs.
struct Supervision {
    watch: Option<Watch>,
    decoded: Decoded,
    limit: Option<limits::Gate>,
}

impl Supervision {
    fn new(pipeline: &gst::Pipeline, plan: &Plan) -> Self {
        Self { watch: Watch::new(pipeline, plan), decoded: Decoded::new(pipeline, plan), limit: limits::Gate::new(pipeline, plan) }
    }

    fn is_at_limit(&self) -> bool {
        self.limit.as_ref().is_some_and(limits::Gate::is_reached)
    }

    /// Whether data of the input has come.
    fn has_played(&self) -> bool {
        self.decoded.n_frames() > 0 || self.watch.as_ref().is_some_and(Watch::has_arrived)
    }

    /// Whether results may come of what arrived before this error of the source.
    fn has_something(&self, error: &gst::message::Error) -> bool {
        let is_reading = error.error().is::<gst::ResourceError>();
        self.decoded.n_frames() > 0 || is_reading && self.watch.as_ref().is_some_and(Watch::has_arrived)
    }

    /// What is wrong with an end of the stream that came from the input.
    fn broken_end(&self) -> Option<Error> {
        if self.is_at_limit() {
            return None;
        }
        let declares = self.decoded.declares_duration();
        let lost = self.watch.as_ref().and_then(|watch| watch.broken_end(self.decoded.reached(), declares));
        lost.or_else(|| self.decoded.missing())
    }
}

/// Why a stream is ending, once it is.
enum Cause {
    Interrupt,
    Limit,
    /// The source failed.
    Lost(Error),
    /// Results can't be written.
    Unwritable(Error),
}

/// A stream that is ending: everything in flight comes out, and files are completed.
struct Closing {
    cause: Cause,
    since: Instant,
    /// How many frames had been decoded when that number last changed, and when.
    progress: (u64, Instant),
    /// The end of the stream was pushed behind the source.
    is_pushed: bool,
}

impl Closing {
    fn new(cause: Cause) -> Self {
        let now = Instant::now();
        Self { cause, since: now, progress: (0, now), is_pushed: false }
    }

    /// Whether a source that failed delivers neither frames nor the end of the stream.
    fn is_stuck(&mut self, n_frames: u64) -> bool {
        if self.progress.0 != n_frames {
            self.progress = (n_frames, Instant::now());
        }
        !self.is_pushed && matches!(self.cause, Cause::Lost(_)) && self.progress.1.elapsed() > PATIENCE_WITH_SOURCE
    }

    /// Results could not be written while the stream was ending. The first failure is the reason.
    fn give_up_writing(&mut self, error: Error) {
        if matches!(self.cause, Cause::Interrupt | Cause::Limit) {
            self.cause = Cause::Unwritable(error);
        }
    }

    /// Whether it ends because the reader of standard output closed it, which is not reported.
    fn is_of_closed_reader(&self) -> bool {
        matches!(&self.cause, Cause::Unwritable(error) if error.kind() == ErrorKind::Closed)
    }

    /// How the stream ended, or the error that was the reason.
    fn result(self, played: Played) -> Result<Played> {
        match self.cause {
            Cause::Interrupt | Cause::Limit => Ok(played),
            Cause::Unwritable(error) if error.kind() != ErrorKind::Closed => Ok(Played { failure: Some(error), ..played }),
            Cause::Lost(error) | Cause::Unwritable(error) => Err(error),
        }
    }
}

fn play(
    pipeline: &gst::Pipeline,
    plan: &Plan,
    interrupt: &Interrupt,
    meter: &Meter,
    supervision: &Supervision,
    secrets: &Secrets,
    report: &mut impl FnMut(Event<'_>),
) -> Result<Played> {
    let bus = pipeline.bus().expect("a pipeline has a bus");
    let mut played = Played::default();
    let mut damage = supervision.decoded.is_truncated();
    let mut closing: Option<Closing> = None;
    let mut repeats = plan.outputs.repeat && matches!(plan.input, Input::File(_));
    let gate = repeats.then(|| Gate::closed(pipeline)).flatten();
    // A failure to change state is on the bus as an error, with its reason.
    let started = pipeline.set_state(gst::State::Playing);
    loop {
        if interrupt.is_asked() && !played.interrupted {
            played.interrupted = true;
            repeats = false;
            write_until(pipeline, Instant::now() + WRITE_PATIENCE);
            match &mut closing {
                Some(closing) => closing.since = Instant::now(),
                None => {
                    closing = Some(Closing::new(Cause::Interrupt));
                    end(pipeline, plan);
                }
            }
        }
        if closing.is_none() {
            if let Some(limit) = supervision.limit.as_ref().filter(|limit| limit.is_reached()) {
                closing = Some(Closing::new(Cause::Limit));
                repeats = false;
                limit.end();
            } else if let Some(error) = supervision.watch.as_ref().and_then(|watch| watch.overdue(supervision.decoded.n_frames())) {
                closing = Some(Closing::new(Cause::Lost(error)));
                go_on_without_source(pipeline);
                // Not on this thread: a source that hangs may hold it.
                pipeline.call_async(|pipeline| {
                    pipeline.send_event(gst::event::Eos::new());
                });
            }
        }
        if let Some(damage) = damage.take().or_else(|| supervision.decoded.news()) {
            report(Event::Warning(&damage));
            played.warnings.push(damage);
        }
        if matches!(closing, Some(Closing { cause: Cause::Lost(_), .. })) && pipeline.current_state() != gst::State::Playing {
            // Again, because a change of state that was under way may have met the failing source and come to nothing.
            go_on_without_source(pipeline);
        }
        if let Some(closing) = &mut closing
            && closing.is_stuck(supervision.decoded.n_frames())
        {
            closing.is_pushed = true;
            entry_pad(pipeline).iter().for_each(limits::push_end);
        }
        let patience = if meter.waits_for_frames() { PATIENCE_WITHOUT_FRAMES } else { PATIENCE };
        // The end at a limit is an ordinary one, and takes as long as the frames in flight.
        let is_hurried = |closing: &Closing| played.interrupted || !matches!(closing.cause, Cause::Limit);
        if let Some(closing) = closing.take_if(|closing| is_hurried(closing) && closing.since.elapsed() > patience) {
            let n_lost = meter.n_in_flight();
            let lost = if n_lost > 0 { format!("; {n_lost} frames in flight are lost") } else { String::new() };
            let warning = format!("the stream did not end within {} s and was stopped{lost}", patience.as_secs());
            report(Event::Warning(&warning));
            played.warnings.push(warning);
            played.forced = true;
            return closing.result(played);
        }
        let Some(message) = bus.timed_pop(TICK) else {
            report(Event::Progress(where_it_is(pipeline, meter)));
            if started.is_err() {
                return Err(Error::failed("the pipeline did not start, and no element said why; try --log debug"));
            }
            continue;
        };
        match message.view() {
            gst::MessageView::Eos(_) => {
                report(Event::Progress(where_it_is(pipeline, meter)));
                let broken = if closing.is_none() { supervision.broken_end() } else { None };
                if broken.is_none() && closing.as_ref().is_none_or(|closing| matches!(closing.cause, Cause::Limit)) {
                    // An input without frames has a file without results. A pipe may have no reader.
                    write_until(pipeline, Instant::now() + WRITE_PATIENCE);
                    let elements = pipeline.iterate_recurse().into_iter().flatten();
                    elements.for_each(|element| element.downcast_ref::<RoiPublish>().into_iter().for_each(RoiPublish::open));
                }
                return match closing {
                    Some(closing) => closing.result(played),
                    None => broken.map_or(Ok(played), Err),
                };
            }
            // Cut off in mid-segment, a demuxer complains; the end is on its way all the same.
            gst::MessageView::Error(error) if closing.is_some() && reasons::is_from_source(error) => {}
            gst::MessageView::Error(error) => {
                if write_failure(error.details(), error.src()) == Some(true) {
                    return Err(Error::closed());
                }
                // An error that follows results that can't be written is not the reason of the end.
                if let Some(Closing { cause: Cause::Lost(first) | Cause::Unwritable(first), .. }) = closing {
                    return Err(first);
                }
                let told = reasons::told(plan, error, supervision.has_played());
                if !reasons::is_from_source(error) || !supervision.has_something(error) {
                    return Err(told);
                }
                // The source pushes the end of the stream behind its error, so that what it delivered is completed.
                closing = Some(Closing::new(Cause::Lost(told)));
                repeats = false;
                go_on_without_source(pipeline);
            }
            gst::MessageView::Warning(warning) => {
                if let Some(is_closed) = write_failure(warning.details(), warning.src()) {
                    // Nothing of what follows could be written either. Ended properly, so that the other files are complete.
                    let failure = if is_closed { Error::closed() } else { Error::failed(warning.error().message()) };
                    match &mut closing {
                        Some(closing) => closing.give_up_writing(failure),
                        None => {
                            closing = Some(Closing::new(Cause::Unwritable(failure)));
                            repeats = false;
                            write_until(pipeline, Instant::now() + WRITE_PATIENCE);
                            end(pipeline, plan);
                        }
                    }
                    if is_closed {
                        continue;
                    }
                }
                let name = reasons::name(plan);
                // The source has no pad that fits, now or later.
                if warning.error().kind::<gst::ParseError>() == Some(gst::ParseError::DelayedLink) {
                    return Err(Error::failed(format!(
                        "cannot play `{name}`: it has no video that can be decoded; expected a file or stream with video in it"
                    )));
                }
                let is_from_source = message.src().is_some_and(|source| source.path_string().contains(SOURCE));
                // A warning about a picture names it.
                let is_from_source = is_from_source && !matches!(plan.input, Input::Images(_));
                let text = warning.error().message().to_owned();
                let text = if is_from_source { format!("`{name}`: {text}") } else { text };
                tracing::debug!(element = %source_name(&message), "{}", secrets.scrub(&text));
                let is_closed = closing.as_ref().is_some_and(Closing::is_of_closed_reader);
                if !played.warnings.contains(&text) && !is_closed {
                    report(Event::Warning(&text));
                    played.warnings.push(text);
                }
            }
            gst::MessageView::Application(application)
                if application.structure().is_some_and(|structure| structure.name() == FIRST_FRAME) =>
            {
                if let Some(gate) = &gate {
                    // Segments instead of flushes: time runs on over the seams, so encoders and muxers see one stream.
                    seek_to_start(pipeline, gst::SeekFlags::FLUSH | gst::SeekFlags::SEGMENT)?;
                    gate.open();
                }
            }
            gst::MessageView::SegmentDone(_) if repeats => seek_to_start(pipeline, gst::SeekFlags::SEGMENT)?,
            gst::MessageView::Latency(_) => {
                let _recalculated = pipeline.recalculate_latency();
            }
            _ => {}
        }
    }
}

/// The name of the application message that says that the first frame of a loop is there.
const FIRST_FRAME: &str = "roiflow-first-frame";
/// The elements that write results give up waiting for readers at this time.
fn write_until(pipeline: &gst::Pipeline, deadline: Instant) {
    for element in pipeline.iterate_recurse().into_iter().flatten() {
        if let Some(publish) = element.downcast_ref::<RoiPublish>() {
            publish.write_until(deadline);
        }
        if let Some(file) = element.downcast_ref::<VideoFile>() {
            file.write_until(deadline);
        }
    }
}

/// Whether a message says that results could not be written; true in it if the reader of standard output closed it.
fn write_failure(details: Option<&gst::StructureRef>, source: Option<&gst::Object>) -> Option<bool> {
    let details = details.filter(|details| [publish::WRITE_FAILED, video_file::WRITE_FAILED].contains(&details.name().as_str()))?;
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

/// Holds the first frame of a loop back until the seek that makes it a segment is done: else the frames that came before the
/// seek would be seen twice.
struct Gate {
    pad: gst::Pad,
    probe: std::cell::RefCell<Option<gst::PadProbeId>>,
}

impl Gate {
    /// Says with an application message that the first frame is there. `None` if the source does not decode.
    fn closed(pipeline: &gst::Pipeline) -> Option<Self> {
        let entry = pipeline.by_name(ENTRY)?;
        let pad = entry.static_pad("src")?;
        let told = AtomicBool::new(false);
        let probe = pad.add_probe(gst::PadProbeType::BLOCK | gst::PadProbeType::BUFFER, move |_, _| {
            if !told.swap(true, Ordering::AcqRel) {
                let structure = gst::Structure::new_empty(FIRST_FRAME);
                let _posted = entry.post_message(gst::message::Application::builder(structure).src(&entry).build());
            }
            gst::PadProbeReturn::Ok
        })?;
        Some(Self { pad, probe: Some(probe).into() })
    }

    fn open(&self) {
        if let Some(probe) = self.probe.take() {
            self.pad.remove_probe(probe);
        }
    }
}

/// Seeks where the decoder's frames come in: a muxer further down would take the seek for its own.
fn seek_to_start(pipeline: &gst::Pipeline, flags: gst::SeekFlags) -> Result<()> {
    let (from, to) = ((gst::SeekType::Set, gst::ClockTime::ZERO), (gst::SeekType::None, gst::ClockTime::NONE));
    let seek = gst::event::Seek::new(1.0, flags, from.0, from.1, to.0, to.1);
    let sought = pipeline.by_name(ENTRY).and_then(|entry| entry.static_pad("src")).is_some_and(|pad| pad.send_event(seek));
    if sought { Ok(()) } else { Err(Error::failed("--loop: this input can't be played from its start again")) }
}

/// Ends the stream behind its source, so that everything in flight comes out and files are completed.
fn end(pipeline: &gst::Pipeline, plan: &Plan) {
    match (&plan.input, entry_pad(pipeline)) {
        // A file's source may be pulled from, and then hears of no event; its next frame is where the stream ends.
        (Input::File(_), Some(pad)) => {
            pad.add_probe(gst::PadProbeType::BUFFER, |pad, _info| {
                pad.push_event(gst::event::Eos::new());
                gst::PadProbeReturn::Drop
            });
        }
        _ => {
            // To each source, and not to the pipeline: that would hold its lock while a source waits for the first frame to be shown,
            // which waits for the lock. On threads of their own, because a source that hangs does not return.
            for source in pipeline.iterate_sources().into_iter().flatten() {
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

/// A source that failed refuses to play, and sinks that have not seen a frame yet would wait for it. Without it, they go on.
fn go_on_without_source(pipeline: &gst::Pipeline) {
    let source = pipeline.by_name(SOURCE);
    if let Some(source) = &source {
        source.set_locked_state(true);
    }
    pipeline.call_async(move |pipeline| {
        if let Err(error) = pipeline.set_state(gst::State::Playing) {
            tracing::debug!("the pipeline does not go on without its source: {error}");
        }
        // A source that failed while it was opened never reports that it is open, and the pipeline waits for that.
        if let Some(source) = source {
            let _posted = source.post_message(gst::message::AsyncDone::builder().src(&source).build());
        }
    });
}

/// Where decoded frames come in.
fn entry_pad(pipeline: &gst::Pipeline) -> Option<gst::Pad> {
    pipeline.by_name(ENTRY).and_then(|entry| entry.static_pad("src"))
}

fn where_it_is(pipeline: &gst::Pipeline, meter: &Meter) -> Progress {
    let time = |time: gst::ClockTime| Duration::from_nanos(time.nseconds());
    Progress {
        n_frames: meter.n_frames(),
        position: pipeline.query_position::<gst::ClockTime>().map(time),
        duration: pipeline.query_duration::<gst::ClockTime>().map(time),
    }
}

fn source_name(message: &gst::Message) -> String {
    message.src().map(|source| source.name().to_string()).unwrap_or_default()
}
