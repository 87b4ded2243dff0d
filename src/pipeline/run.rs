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
use super::{Error, Input, Plan, Result, build, images, limits, reasons};

/// How often progress is told.
const TICK: gst::ClockTime = gst::ClockTime::from_mseconds(100);
/// How long a stream may take to end after an interrupt.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a source that failed may deliver nothing more until the stream is ended for it.
const PATIENCE_WITH_SOURCE: Duration = Duration::from_secs(2);

/// How a stream ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ending {
    /// What was measured.
    pub stats: Stats,
    /// Whether the user ended it.
    pub interrupted: bool,
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
    let meter = Meter::new(&pipeline, plan);
    let supervision = Supervision::new(&pipeline, plan);
    feed_images(&pipeline, plan)?;
    let stopper = Stopper(pipeline.clone());
    let played = play(&pipeline, plan, interrupt, &meter, &supervision, &mut report);
    let stats = meter.stats(played.is_ok());
    drop(stopper);
    let (interrupted, warnings) = played?;
    if stats.n_lines_lost > 0 {
        // The stream went on, but lost results are a failure.
        let path = plan.outputs.json.clone().unwrap_or_default();
        return Err(Error::failed(format!("{} lines of results could not be written to `{}`", stats.n_lines_lost, path.display())));
    }
    Ok(Ending { stats, interrupted, warnings })
}

/// Stops the pipeline however `run` is left.
struct Stopper(gst::Pipeline);

impl Drop for Stopper {
    fn drop(&mut self) {
        if let Some(source) = self.0.by_name(SOURCE) {
            source.set_locked_state(false);
        }
        if let Err(error) = self.0.set_state(gst::State::Null) {
            tracing::warn!("the pipeline did not stop: {error}");
        }
    }
}

fn feed_images(pipeline: &gst::Pipeline, plan: &Plan) -> Result<()> {
    let Input::Images(paths) = &plan.input else { return Ok(()) };
    if let Some(filter) = pipeline.by_name("roiflow-size") {
        let (width, height) = images::size(&paths[0])?;
        // Encoders of half-resolution chroma want even sizes.
        let even = |extent: u32| (extent.max(16) / 2 * 2) as i32;
        let square = gst::Fraction::new(1, 1);
        let caps = gst::Caps::builder("video/x-raw")
            .field("width", even(width))
            .field("height", even(height))
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
    Lost(Error),
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

    /// Whether the user ended it, or the error.
    fn result(self) -> Result<bool> {
        match self.cause {
            Cause::Interrupt => Ok(true),
            Cause::Limit => Ok(false),
            Cause::Lost(error) => Err(error),
        }
    }
}

fn play(
    pipeline: &gst::Pipeline,
    plan: &Plan,
    interrupt: &Interrupt,
    meter: &Meter,
    supervision: &Supervision,
    report: &mut impl FnMut(Event<'_>),
) -> Result<(bool, Vec<String>)> {
    let bus = pipeline.bus().expect("a pipeline has a bus");
    let mut warnings: Vec<String> = Vec::new();
    let mut damage = supervision.decoded.is_truncated();
    let mut closing: Option<Closing> = None;
    let mut repeats = plan.outputs.repeat && matches!(plan.input, Input::File(_));
    let gate = repeats.then(|| Gate::closed(pipeline)).flatten();
    // A failure to change state is on the bus as an error, with its reason.
    let started = pipeline.set_state(gst::State::Playing);
    loop {
        if interrupt.is_asked() && closing.is_none() {
            closing = Some(Closing::new(Cause::Interrupt));
            repeats = false;
            end(pipeline, plan);
        }
        if closing.is_none() {
            if let Some(limit) = supervision.limit.as_ref().filter(|limit| limit.is_reached()) {
                closing = Some(Closing::new(Cause::Limit));
                repeats = false;
                limit.end();
            } else if let Some(error) = supervision.watch.as_ref().and_then(Watch::overdue) {
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
            warnings.push(damage);
        }
        if let Some(closing) = &mut closing
            && closing.is_stuck(supervision.decoded.n_frames())
        {
            closing.is_pushed = true;
            entry_pad(pipeline).iter().for_each(limits::push_end);
        }
        if let Some(closing) = closing.take_if(|closing| closing.since.elapsed() > PATIENCE) {
            let warning = format!("the stream did not end within {PATIENCE:?} and was stopped; its files may be incomplete");
            report(Event::Warning(&warning));
            warnings.push(warning);
            return Ok((closing.result()?, warnings));
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
                return match closing {
                    Some(closing) => Ok((closing.result()?, warnings)),
                    None => supervision.broken_end().map_or(Ok((false, warnings)), Err),
                };
            }
            // Cut off in mid-segment, a demuxer complains; the end is on its way all the same.
            gst::MessageView::Error(error) if closing.is_some() && reasons::is_from_source(error) => {}
            gst::MessageView::Error(error) => {
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
                let name = reasons::name(plan);
                // The source has no pad that fits, now or later.
                if warning.error().kind::<gst::ParseError>() == Some(gst::ParseError::DelayedLink) {
                    return Err(Error::failed(format!(
                        "cannot play `{name}`: it has no video that can be decoded; expected a file or stream with video in it"
                    )));
                }
                let is_from_source = message.src().is_some_and(|source| source.path_string().contains(SOURCE));
                let text = warning.error().message().to_owned();
                let text = if is_from_source { format!("`{name}`: {text}") } else { text };
                tracing::debug!(element = %source_name(&message), "{text}");
                if !warnings.contains(&text) {
                    report(Event::Warning(&text));
                    warnings.push(text);
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
            pipeline.send_event(gst::event::Eos::new());
        }
    }
}

/// A source that failed refuses to play, and sinks that have not seen a frame yet would wait for it. Without it, they go on.
fn go_on_without_source(pipeline: &gst::Pipeline) {
    if let Some(source) = pipeline.by_name(SOURCE) {
        source.set_locked_state(true);
    }
    pipeline.call_async(|pipeline| {
        if let Err(error) = pipeline.set_state(gst::State::Playing) {
            tracing::debug!("the pipeline does not go on without its source: {error}");
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
