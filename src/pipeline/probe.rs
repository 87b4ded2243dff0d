//! Tests an input: opens it, decodes the first frames, and closes it.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;

use super::descriptors::Reservation;
use super::plan::{ENTRY, SOURCE};
use super::reasons::Reason;
use super::spec::Spec;
use super::{Error, Input, Outputs, Plan, Result, Uri, build, reasons, uri};
use crate::elements::caps;
use crate::intake::{self, Intake};

/// Time over which the frame rate is measured.
const MEASURE: Duration = Duration::from_secs(2);
/// Number of frames after which a file is known well enough, because it is read faster than it plays.
const MAX_FRAMES: u64 = 100;

/// The video that an input sends.
#[derive(Debug, Clone, PartialEq)]
pub struct Video {
    /// Width of a frame in pixels.
    pub width: u32,
    /// Height of a frame in pixels.
    pub height: u32,
    /// Name of the codec; `None`: not compressed.
    pub codec: Option<String>,
    /// Frames per second: measured for a live source, otherwise as declared. `None`: unknown.
    pub fps: Option<f64>,
}

/// A frame that has arrived.
struct Arrival {
    time: Instant,
    caps: Option<gst::Caps>,
}

/// Opens an input, and returns what it sends. Blocks until the first frames are decoded, at most for `limit` and the time that the source
/// takes to close.
///
/// # Errors
/// Returns why the input cannot be opened or decoded, without credentials.
pub fn probe(input: Input, limit: Duration) -> Result<Video> {
    let (mut input, deadline) = (input, Instant::now() + limit);
    loop {
        let (secrets, mut redirected_to) = (input.secrets(), None);
        match (open(input, (limit, deadline), &mut redirected_to), redirected_to) {
            (Err(_), Some(uri)) => input = Input::Uri(uri),
            (opened, _) => return opened.map_err(|error| error.scrubbed(&secrets)),
        }
    }
}

/// Opens an input. Sets `redirected_to` if the server redirects, and the source does not follow.
fn open(input: Input, (limit, deadline): (Duration, Instant), redirected_to: &mut Option<Uri>) -> Result<Video> {
    let is_live = matches!(&input, Input::Uri(uri) if uri.is_live());
    let spec = Spec::parse(DESCRIPTION, Path::new("probe"))?;
    let plan = Plan::resolve(&spec, &[], input, Outputs::default())?;
    let _descriptors = Reservation::of(&plan.input)?;
    let pipeline = build::build(&plan)?;
    let entry = pipeline.by_name(ENTRY).ok_or_else(|| Error::usage("expected a file or an address, got an input that needs no test"))?;
    let intake = pipeline.by_name(SOURCE).and_then(|source| source.downcast::<gst::Bin>().ok()).map(|source| Intake::of(&source));
    let pad = entry.static_pad("src").ok_or_else(|| Error::failed("internal error: the entry has no pad"))?;
    let (sender, arrivals) = mpsc::channel();
    pad.add_probe(gst::PadProbeType::BUFFER, move |pad, _| {
        // Sending fails after enough frames.
        let _sent = sender.send(Arrival { time: Instant::now(), caps: pad.current_caps() });
        gst::PadProbeReturn::Ok
    });
    let stopped = Stopped(&pipeline, intake.as_deref());
    // The reason is on the bus, or follows there.
    let _started = pipeline.set_state(gst::State::Playing);
    let seen = frames((&plan, intake.as_deref()), (&pipeline, &arrivals), deadline, redirected_to)?;
    let Some((first, n_frames, last)) = seen else {
        let seconds = limit.as_secs();
        return Err(Error::failed(format!(
            "`{}` was opened, but sent no frame within {seconds} s; check that the camera sends video",
            reasons::name(&plan)
        )));
    };
    let structure = first.caps.as_ref().and_then(|caps| caps.structure(0));
    let size = first.caps.as_ref().and_then(|caps| caps::size_in_caps(caps)).ok_or_else(|| Error::failed("the frames have no size"))?;
    let declared = structure.and_then(|structure| structure.get::<gst::Fraction>("framerate").ok());
    let declared = declared.filter(|rate| rate.numer() > 0).map(|rate| f64::from(rate.numer()) / f64::from(rate.denom()));
    let measured = (n_frames > 2).then(|| (n_frames - 1) as f64 / last.duration_since(first.time).as_secs_f64().max(1e-3));
    let fps = if is_live { measured.or(declared) } else { declared };
    let codec = codec(&pipeline);
    drop(stopped);
    Ok(Video { width: size.width, height: size.height, codec, fps })
}

/// Waits for frames. Returns the first one, the number of frames, and the time of the last one. `None`: no frame in time.
fn frames(
    (plan, intake): (&Plan, Option<&Intake>),
    (pipeline, arrivals): (&gst::Pipeline, &mpsc::Receiver<Arrival>),
    deadline: Instant,
    redirected_to: &mut Option<Uri>,
) -> Result<Option<(Arrival, u64, Instant)>> {
    let bus = pipeline.bus().expect("a pipeline has a bus");
    let mut first: Option<Arrival> = None;
    let (mut n_frames, mut last) = (0, Instant::now());
    let excess = || Some(Error::failed(format!("cannot play `{}`: {}", reasons::name(plan), intake?.excess()?)));
    loop {
        for arrival in arrivals.try_iter() {
            (n_frames, last) = (n_frames + 1, arrival.time);
            first.get_or_insert(arrival);
        }
        let now = Instant::now();
        let is_known = first.as_ref().is_some_and(|first| now >= first.time + MEASURE || n_frames >= MAX_FRAMES);
        let Some(time_left) = deadline.checked_duration_since(now).filter(|_| !is_known) else { break };
        let wait = time_left.min(Duration::from_millis(50));
        let wait = gst::ClockTime::from_nseconds(wait.as_nanos() as u64);
        if let Some(error) = excess() {
            return Err(error);
        }
        let types = [gst::MessageType::Error, gst::MessageType::Eos, gst::MessageType::Element];
        let Some(message) = bus.timed_pop_filtered(wait, &types) else { continue };
        if let (Input::Uri(uri), Some(location)) = (&plan.input, uri::redirect(&message)) {
            *redirected_to = uri.redirected_to(&location);
        }
        match message.view() {
            // A source may fail after its first frames; they answer the question.
            gst::MessageView::Error(_) if first.is_none() => {
                return Err(Reason::OfElement { message: message.clone(), has_played: false }.explain(plan, intake));
            }
            gst::MessageView::Element(_) => {}
            _ => break,
        }
    }
    for arrival in arrivals.try_iter() {
        (n_frames, last) = (n_frames + 1, arrival.time);
        first.get_or_insert(arrival);
    }
    // The data beyond a limit may be the last of the input.
    excess().filter(|_| first.is_none()).map_or_else(|| Ok(first.map(|first| (first, n_frames, last))), Err)
}

/// The name of the codec that the pipeline decodes.
fn codec(pipeline: &gst::Pipeline) -> Option<String> {
    let decoders = pipeline.iterate_recurse().into_iter().flatten().filter(|element| {
        let class = element.factory().and_then(|factory| factory.metadata("klass").map(str::to_owned)).unwrap_or_default();
        class.contains("Decoder") && !class.contains("Audio") && !intake::factory_name(element).contains("decodebin")
    });
    let caps = decoders.filter_map(|decoder| decoder.static_pad("sink")?.current_caps());
    let names = caps.filter_map(|caps| caps.structure(0).map(codec_name));
    names.into_iter().next()
}

/// The usual name of a codec.
fn codec_name(structure: &gst::StructureRef) -> String {
    match structure.name().as_str() {
        "video/x-h264" => "H.264".to_owned(),
        "video/x-h265" => "H.265".to_owned(),
        "video/x-vp8" => "VP8".to_owned(),
        "video/x-vp9" => "VP9".to_owned(),
        "video/x-av1" => "AV1".to_owned(),
        "image/jpeg" => "JPEG".to_owned(),
        "video/mpeg" => format!("MPEG-{}", structure.get::<i32>("mpegversion").unwrap_or(4)),
        other => other.trim_start_matches("video/x-").trim_start_matches("image/").to_owned(),
    }
}

/// Stops a pipeline when it is dropped.
struct Stopped<'a>(&'a gst::Pipeline, Option<&'a Intake>);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.1.into_iter().for_each(Intake::hang_up);
        let _stopped = self.0.set_state(gst::State::Null);
    }
}

/// A pipeline that only decodes.
const DESCRIPTION: &str = "version = 1\nname = \"probe\"\ndescription = \"Decodes.\"\n[pipeline]\ngraph = \"{source} ! {video}\"\n";
