//! Plays a plan to its end: the bus loop, the proper end on interrupt, the reason of the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;

use super::plan::{ENTRY, SOURCE};
use super::stats::{Meter, Stats};
use super::{Error, ErrorKind, Input, Plan, Result, build, display, images, outputs};
use crate::elements::destination;
use crate::elements::publish::{self, RoiPublish};
use crate::elements::video_file::{self, VideoFile};

/// How often progress is told.
const TICK: gst::ClockTime = gst::ClockTime::from_mseconds(100);
/// How long results may wait for a reader after an interrupt.
const WRITE_PATIENCE: Duration = Duration::from_secs(3);
/// How long a stream may take to end after an interrupt. Its stop may take some seconds more, and all has ten.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same if no frame has come: a model is being compiled, or a source opened, and nothing is lost.
const PATIENCE_WITHOUT_FRAMES: Duration = Duration::from_secs(1);

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
    let pipeline = build::build(plan)?;
    outputs::check_built(&pipeline, plan)?;
    let meter = Meter::new(&pipeline, plan);
    let stopper = Stopper(pipeline.clone());
    display::open(&pipeline)?;
    feed_images(&pipeline, plan)?;
    let played = play(&pipeline, plan, interrupt, &meter, &mut report);
    let mut stats = meter.stats(played.is_ok());
    drop(stopper);
    // A stop writes what waits, or loses it.
    stats.n_lines_lost = meter.n_lines_lost();
    let Played { interrupted, forced, warnings, failure } = played?;
    if stats.n_lines_lost > 0 {
        let path = plan.outputs.json.clone().unwrap_or_default();
        return Err(Error::failed(format!("{} lines of results could not be written to `{}`", stats.n_lines_lost, path.display())));
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    Ok(Ending { stats, interrupted, forced, warnings })
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

impl Played {
    fn ended(self, failure: Option<Error>) -> Result<Self> {
        match failure {
            Some(closed) if closed.kind() == ErrorKind::Closed => Err(closed),
            failure => Ok(Self { failure, ..self }),
        }
    }
}

/// Stops the pipeline however `run` is left.
struct Stopper(gst::Pipeline);

impl Drop for Stopper {
    fn drop(&mut self) {
        if let Err(error) = self.0.set_state(gst::State::Null) {
            tracing::warn!("the pipeline did not stop: {error}");
        }
    }
}

fn feed_images(pipeline: &gst::Pipeline, plan: &Plan) -> Result<()> {
    let Input::Images(paths) = &plan.input else { return Ok(()) };
    if let Some(filter) = pipeline.by_name("roiflow-size") {
        let (width, height) = images::size(&paths[0])?;
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

fn play(pipeline: &gst::Pipeline, plan: &Plan, interrupt: &Interrupt, meter: &Meter, report: &mut impl FnMut(Event<'_>)) -> Result<Played> {
    let bus = pipeline.bus().expect("a pipeline has a bus");
    let mut played = Played::default();
    let mut ending_since: Option<Instant> = None;
    // Why the stream is being ended, if results can't be written.
    let mut failure: Option<Error> = None;
    let mut repeats = plan.outputs.repeat && matches!(plan.input, Input::File(_));
    let gate = repeats.then(|| Gate::closed(pipeline)).flatten();
    // A failure to change state is on the bus as an error, with its reason.
    let started = pipeline.set_state(gst::State::Playing);
    loop {
        let is_asked = interrupt.is_asked() && !played.interrupted;
        played.interrupted |= is_asked;
        if ending_since.is_none() && (is_asked || failure.is_some()) {
            ending_since = Some(Instant::now());
            repeats = false;
            write_until(pipeline, Instant::now() + WRITE_PATIENCE);
            end(pipeline, plan);
        }
        let patience = if meter.waits_for_frames() { PATIENCE_WITHOUT_FRAMES } else { PATIENCE };
        if ending_since.is_some_and(|since| since.elapsed() > patience) {
            let n_lost = meter.n_in_flight();
            let warning = format!("the stream did not end within {patience:?} and was stopped; {n_lost} frames in flight are lost");
            report(Event::Warning(&warning));
            played.warnings.push(warning);
            played.forced = true;
            return played.ended(failure);
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
                if failure.is_none() && !played.interrupted {
                    let elements = pipeline.iterate_recurse().into_iter().flatten();
                    elements.for_each(|element| element.downcast_ref::<RoiPublish>().into_iter().for_each(RoiPublish::open));
                }
                return played.ended(failure);
            }
            // Cut off in mid-segment, a demuxer complains; the end is on its way all the same.
            gst::MessageView::Error(error) if ending_since.is_some() && is_from_source(error) => {}
            // What follows of results that can't be written is not their reason.
            gst::MessageView::Error(error) => return Err(failure.unwrap_or_else(|| told(plan, error))),
            gst::MessageView::Warning(warning) => {
                let text = warning.error().message().to_owned();
                if let Some(is_closed) = write_failure(warning.details(), warning.src()) {
                    // Nothing of what follows could be written either. Ended properly, so that the other files are complete.
                    failure.get_or_insert_with(|| if is_closed { Error::closed() } else { Error::failed(text.clone()) });
                    if is_closed {
                        continue;
                    }
                }
                // The parser's words for: the source has no pad that fits, now or later.
                if text.starts_with("Delayed linking failed") {
                    let name = publish::json::redact(&plan.input.name()).into_owned();
                    return Err(Error::failed(format!(
                        "cannot play `{name}`: it has no video that can be decoded; expected a file or stream with video in it"
                    )));
                }
                tracing::debug!(element = %source_name(&message), "{text}");
                if !played.warnings.contains(&text) && !failure.as_ref().is_some_and(|failure| failure.kind() == ErrorKind::Closed) {
                    report(Event::Warning(&text));
                    played.warnings.push(text);
                }
            }
            gst::MessageView::Application(_) => {
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
        is_method || path.is_some_and(|path| destination::is_stdout(path.as_ref()))
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
                let structure = gst::Structure::new_empty("roiflow-first-frame");
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
    let entry = pipeline.by_name(ENTRY).and_then(|entry| entry.static_pad("src"));
    match (&plan.input, entry) {
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

fn where_it_is(pipeline: &gst::Pipeline, meter: &Meter) -> Progress {
    let time = |time: gst::ClockTime| Duration::from_nanos(time.nseconds());
    Progress {
        n_frames: meter.n_frames(),
        position: pipeline.query_position::<gst::ClockTime>().map(time),
        duration: pipeline.query_duration::<gst::ClockTime>().map(time),
    }
}

/// An error message of an element, as a sentence of ours.
fn told(plan: &Plan, error: &gst::message::Error) -> Error {
    if write_failure(error.details(), error.src()) == Some(true) {
        return Error::closed();
    }
    let (reason, details) = (error.error(), error.debug().unwrap_or_default());
    tracing::debug!("{details}");
    let text = reason.message().trim_end_matches('.').to_owned();
    let from_input = is_from_source(error)
        || matches!(reason.kind::<gst::StreamError>(), Some(gst::StreamError::TypeNotFound | gst::StreamError::WrongType));
    if from_input {
        let name = publish::json::redact(&plan.input.name()).into_owned();
        // GStreamer's own words for a stream of audio alone say nothing of video.
        let no_video = details.contains("not-linked") || details.contains("no suitable");
        let hint = if no_video { "; expected a file or stream with video in it" } else { "" };
        return Error::failed(format!("cannot play `{name}`: {text}{hint}"));
    }
    let element = error.src().map(|source| source.name().to_string()).unwrap_or_default();
    Error::failed(format!("{element}: {text}"))
}

fn is_from_source(error: &gst::message::Error) -> bool {
    error.src().is_some_and(|source| source.path_string().contains(SOURCE))
}

fn source_name(message: &gst::Message) -> String {
    message.src().map(|source| source.name().to_string()).unwrap_or_default()
}
