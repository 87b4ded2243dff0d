//! Properties of `roipublish`, and the way from a buffer to a line.
//!
//! Owns when lines are flushed, and what is said on the bus when a destination fails. What a line says is `json`'s, where it
//! goes is `sink`'s, how results travel is `meta`'s.

use std::io::{self, ErrorKind};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gst_base::prelude::*;
use gst_base::subclass::BaseTransformMode;
use gst_base::subclass::prelude::*;
use gstreamer as gst;
use gstreamer_base as gst_base;

use super::sink::{Counts, Sink};
use super::{Format, Method, json};
use crate::elements::destination::{Deadline, Destination, IfExists};
use crate::elements::{caps, meta, origin};
use crate::frame::{FrameResults, InferenceStatus, Size};
use crate::redaction;

static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| gst::DebugCategory::new("roipublish", gst::DebugColorFlags::empty(), Some("Writes results as JSON")));

/// Lines wait at most this long, in the time of the stream, for a write costs more than a line. The first one does not wait: it says
/// that everything works.
const FLUSH_INTERVAL: gst::ClockTime = gst::ClockTime::from_mseconds(100);

/// What the user asked for.
#[derive(Debug, Clone)]
struct Settings {
    method: Method,
    address: String,
    if_exists: IfExists,
    format: Format,
    stream_id: Option<String>,
    /// Redacted.
    source: Option<String>,
    add_empty_results: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            method: Method::default(),
            address: "-".into(),
            if_exists: IfExists::default(),
            format: Format::default(),
            stream_id: None,
            source: None,
            add_empty_results: true,
        }
    }
}

/// Exists between start and stop.
struct State {
    sink: Sink,
    /// What people know it by.
    destination: String,
    /// Whether the sink was opened, or an attempt to open it failed.
    is_open: bool,
    /// What the caps say.
    size: Option<Size>,
    n_frames: u64,
    flushed_at: Option<gst::ClockTime>,
    /// Reused from frame to frame.
    line: Vec<u8>,
    has_warned: bool,
    /// The sizes between which regions were dropped, and whether that was said.
    lost_rois: Option<((Size, Size), bool)>,
}

/// The element's inside. Lock order: settings before state; neither is held while posting or pushing.
#[derive(Default)]
pub struct RoiPublish {
    settings: Mutex<Settings>,
    state: Mutex<Option<State>>,
    /// Frames seen and the sink's account, of this run or the last one.
    stats: Mutex<(u64, Counts)>,
    /// Until when lines may wait for a reader.
    pub(super) deadline: Deadline,
}

/// What came of a line.
struct Outcome {
    written: io::Result<()>,
    opened: io::Result<()>,
}

#[glib::object_subclass]
impl ObjectSubclass for RoiPublish {
    const NAME: &'static str = "RoiPublish";
    /// Another copy of the library may be in the process.
    const ALLOW_NAME_CONFLICT: bool = true;
    type Type = super::RoiPublish;
    type ParentType = gst_base::BaseTransform;
}

impl ObjectImpl for RoiPublish {
    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
            let default = Settings::default();
            let address = |name: &str, nick, blurb| {
                glib::ParamSpecString::builder(name).nick(nick).blurb(blurb).default_value(Some(&*default.address)).mutable_ready().build()
            };
            vec![
                glib::ParamSpecEnum::builder_with_default("method", default.method)
                    .nick("Method")
                    .blurb("Where results go; may change while stopped")
                    .mutable_ready()
                    .build(),
                address("address", "Address", "Path of the file, which is opened when the first frame is there; - is standard output; may change while stopped"),
                address("file-path", "File path", "Another name of address; may change while stopped"),
                glib::ParamSpecEnum::builder_with_default("if-exists", default.if_exists)
                    .nick("If it exists")
                    .blurb("What happens to a file that exists; may change while stopped")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("format", default.format)
                    .nick("Format")
                    .blurb("How results are written; may change while stopped")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecString::builder("stream-id")
                    .nick("Stream id")
                    .blurb("Name of the stream, in every line as stream; may change at any time")
                    .mutable_playing()
                    .build(),
                glib::ParamSpecString::builder("source")
                    .nick("Source")
                    .blurb("Where the stream comes from, in every line as source; user and password of a URI are taken out; may change at any time")
                    .mutable_playing()
                    .build(),
                glib::ParamSpecBoolean::builder("add-empty-results")
                    .nick("Add empty results")
                    .blurb("Write a line also for frames without objects; may change at any time")
                    .default_value(default.add_empty_results)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
                    .nick("Statistics")
                    .blurb("Frames seen; lines and bytes written; errors, the lines that could not be written")
                    .read_only()
                    .build(),
            ]
        });
        PROPERTIES.as_ref()
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        let text = || value.get::<Option<String>>().expect("GObject checked the type");
        let mut settings = self.settings.lock().unwrap();
        match pspec.name() {
            "method" => settings.method = value.get().expect("GObject checked the type"),
            "address" | "file-path" => settings.address = text().unwrap_or_else(|| Settings::default().address),
            "if-exists" => settings.if_exists = value.get().expect("GObject checked the type"),
            "format" => settings.format = value.get().expect("GObject checked the type"),
            "stream-id" => settings.stream_id = text(),
            "source" => settings.source = text().map(without_credentials),
            "add-empty-results" => settings.add_empty_results = value.get().expect("GObject checked the type"),
            name => unreachable!("property {name} is not in the list above"),
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        if pspec.name() == "stats" {
            let (n_frames, counts) = *self.stats.lock().unwrap();
            return gst::Structure::builder("roipublish-stats")
                .field("frames", n_frames)
                .field("lines", counts.lines)
                .field("bytes", counts.bytes)
                .field("errors", counts.errors)
                .build()
                .to_value();
        }
        let settings = self.settings.lock().unwrap();
        match pspec.name() {
            "method" => settings.method.to_value(),
            "address" | "file-path" => settings.address.to_value(),
            "if-exists" => settings.if_exists.to_value(),
            "format" => settings.format.to_value(),
            "stream-id" => settings.stream_id.to_value(),
            "source" => settings.source.to_value(),
            "add-empty-results" => settings.add_empty_results.to_value(),
            name => unreachable!("property {name} is not in the list above"),
        }
    }
}

impl GstObjectImpl for RoiPublish {}

impl ElementImpl for RoiPublish {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Write results as JSON",
                "Filter/Analyzer/Video",
                "Writes the results of every frame as a line of JSON to a file or to standard output",
                "The roiflow developers",
            )
        });
        Some(&*METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static PAD_TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            // Pixels are not read, so any memory will do, and encoded video too as long as the metas are there.
            let caps = gst::Caps::new_any();
            let template = |name, direction| {
                gst::PadTemplate::new(name, direction, gst::PadPresence::Always, &caps).expect("names and caps of pads are valid")
            };
            vec![template("sink", gst::PadDirection::Sink), template("src", gst::PadDirection::Src)]
        });
        PAD_TEMPLATES.as_ref()
    }

    fn change_state(&self, transition: gst::StateChange) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::ReadyToPaused => self.deadline.clear(),
            // A line that waits for a reader would hold up the stop.
            gst::StateChange::PausedToReady => self.deadline.set(Instant::now()),
            _ => {}
        }
        self.parent_change_state(transition)
    }
}

impl BaseTransformImpl for RoiPublish {
    const MODE: BaseTransformMode = BaseTransformMode::AlwaysInPlace;
    const PASSTHROUGH_ON_SAME_CAPS: bool = true;
    const TRANSFORM_IP_ON_PASSTHROUGH: bool = true;

    fn start(&self) -> Result<(), gst::ErrorMessage> {
        let settings = self.settings.lock().unwrap().clone();
        let address = if settings.method == Method::Stdout { "-" } else { &*settings.address };
        let target = Destination::new(address, settings.if_exists, self.deadline.clone());
        let destination = if target.is_stdout() { "standard output" } else { address }.to_owned();
        target.check().map_err(|error| gst::error_msg!(gst::ResourceError::OpenWrite, ("{}", cannot_open(address, &error))))?;
        gst::debug!(CAT, imp = self, "writing results to {destination}");
        *self.stats.lock().unwrap() = Default::default();
        *self.state.lock().unwrap() = Some(State {
            sink: Sink::new(target),
            destination,
            is_open: false,
            size: None,
            n_frames: 0,
            flushed_at: None,
            line: Vec::new(),
            has_warned: false,
            lost_rois: None,
        });
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        // What is lost only here is said here; usually EOS has flushed before.
        self.flush();
        *self.state.lock().unwrap() = None;
        Ok(())
    }

    fn set_caps(&self, incaps: &gst::Caps, _outcaps: &gst::Caps) -> Result<(), gst::LoggableError> {
        if let Some(state) = self.state.lock().unwrap().as_mut() {
            state.size = caps::size_in_caps(incaps);
        }
        Ok(())
    }

    fn sink_event(&self, event: gst::Event) -> bool {
        if event.type_() == gst::EventType::Eos {
            self.flush();
            self.warn_of_losses();
        }
        self.parent_sink_event(event)
    }

    fn transform_ip_passthrough(&self, buffer: &gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let (stream_id, source, add_empty_results) = {
            let settings = self.settings.lock().unwrap();
            (settings.stream_id.clone(), settings.source.clone(), settings.add_empty_results)
        };
        let (outcome, lost_rois) = {
            let mut guard = self.state.lock().unwrap();
            let state = guard.as_mut().ok_or(gst::FlowError::Flushing)?;
            let opened = state.open();
            let written = state.publish(buffer, self.stream_time(buffer), stream_id.as_deref(), source.as_deref(), add_empty_results);
            *self.stats.lock().unwrap() = (state.n_frames, state.sink.counts());
            let lost_rois = state.lost_rois.as_mut().filter(|(_, is_said)| !is_said).map(|(sizes, is_said)| {
                *is_said = true;
                *sizes
            });
            (Outcome { written, opened }, lost_rois)
        };
        if let Some((attached_size, size)) = lost_rois {
            gst::element_imp_warning!(
                self,
                gst::StreamError::Format,
                ("the frame changed from {attached_size} to {size} after detection and its regions of interest were dropped on the way \
                     (videocrop does that), so boxes may be off; crop before the detector, or publish before cropping")
            );
        }
        self.report(outcome).map(|()| gst::FlowSuccess::Ok)
    }
}

impl RoiPublish {
    /// The time of this buffer in its stream; `None` without a time stamp, and outside the segment.
    fn stream_time(&self, buffer: &gst::BufferRef) -> Option<gst::ClockTime> {
        self.obj().segment().downcast::<gst::ClockTime>().ok()?.to_stream_time(buffer.pts())
    }

    fn flush(&self) {
        self.hand_on(|_| Ok(()));
    }

    /// Opens the destination if no frame has: the stream ended well without one.
    pub(super) fn open(&self) {
        self.hand_on(State::open);
    }

    fn hand_on(&self, open: impl FnOnce(&mut State) -> io::Result<()>) {
        let outcome = {
            let mut guard = self.state.lock().unwrap();
            let Some(state) = guard.as_mut() else { return };
            let opened = open(state);
            let written = state.sink.flush();
            *self.stats.lock().unwrap() = (state.n_frames, state.sink.counts());
            Outcome { written, opened }
        };
        // What failed is on the bus.
        let _said = self.report(outcome);
    }

    /// Says what went wrong. A destination that can't be opened is an error; one that takes no more is a warning, and the stream goes on.
    fn report(&self, outcome: Outcome) -> Result<(), gst::FlowError> {
        if let Err(error) = outcome.opened {
            let address = self.settings.lock().unwrap().address.clone();
            gst::element_imp_error!(self, gst::ResourceError::OpenWrite, ("{}", cannot_open(&address, &error)));
            return Err(gst::FlowError::Error);
        }
        let Err(error) = outcome.written else { return Ok(()) };
        let sentence = self.state.lock().unwrap().as_mut().and_then(|state| state.first_warning(&error));
        if let Some(sentence) = sentence {
            // The application tells by the kind what to do, and not by the sentence.
            let is_closed = error.kind() == ErrorKind::BrokenPipe;
            let details = gst::Structure::builder(super::WRITE_FAILED).field("closed", is_closed).build();
            gst::element_imp_warning!(self, gst::ResourceError::Write, ("{sentence}"), details: details);
        }
        Ok(())
    }

    fn warn_of_losses(&self) {
        let counts = self.stats.lock().unwrap().1;
        let destination = self.state.lock().unwrap().as_ref().map(|state| state.destination.clone());
        if let Some(destination) = destination.filter(|_| counts.errors > 0) {
            let (n_lost, n_written) = (counts.errors, counts.lines);
            self.warn(Some(format!("{n_lost} results could not be written to {destination} and are lost; {n_written} were written")));
        }
    }

    fn warn(&self, warning: Option<String>) {
        if let Some(sentence) = warning {
            gst::element_imp_warning!(self, gst::ResourceError::Write, ("{}", crate::stages::Printable(&sentence.to_string())));
        }
    }
}

impl State {
    /// Opens the destination, once. One that no reader opened by its deadline is not an error here: its lines are lost.
    fn open(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.is_open, true) {
            return Ok(());
        }
        self.sink.open().or_else(|error| if error.kind() == ErrorKind::TimedOut { Ok(()) } else { Err(error) })
    }

    /// Writes the line of this buffer, and flushes where it is time.
    fn publish(
        &mut self,
        buffer: &gst::BufferRef,
        stream_time: Option<gst::ClockTime>,
        stream_id: Option<&str>,
        source: Option<&str>,
        add_empty: bool,
    ) -> io::Result<()> {
        let own_frame_number = self.n_frames;
        self.n_frames += 1;
        let attached_size = meta::size_when_attached(buffer);
        let size = self.size.or(attached_size).unwrap_or_default();
        let results = meta::read_shared(buffer, size).unwrap_or_else(|| no_results(size).into());
        if self.lost_rois.is_none() && attached_size.is_some_and(|attached| attached != size) && meta::has_lost_rois(buffer, &results) {
            self.lost_rois = attached_size.map(|attached_size| ((attached_size, size), false));
        }
        if add_empty || json::has_results(&results) {
            let origin = origin::read(buffer);
            let context = json::Context {
                // Results of another detector have no frame number.
                frame_number: if attached_size.is_some() { results.frame_number } else { own_frame_number },
                stream_id,
                // Each picture has its own.
                source: origin.as_ref().map(|origin| &*origin.path).or(source),
                timestamp_ns: stream_time.map(gst::ClockTime::nseconds),
                pts_ns: buffer.pts().map(gst::ClockTime::nseconds),
                time: capture_time(buffer).unwrap_or_else(SystemTime::now),
            };
            self.line.clear();
            json::write_line(&mut self.line, &results, &context)?;
            self.sink.write_line(&self.line)?;
        }
        if self.is_flush_due(buffer.pts()) { self.sink.flush() } else { Ok(()) }
    }

    fn is_flush_due(&mut self, pts: Option<gst::ClockTime>) -> bool {
        let is_due = match (self.flushed_at, pts) {
            (Some(flushed_at), Some(pts)) => pts.absdiff(flushed_at) >= FLUSH_INTERVAL,
            // Without time stamps nobody knows how long a line has waited.
            (None, _) | (_, None) => true,
        };
        if is_due {
            self.flushed_at = pts;
        }
        is_due
    }

    /// The sentence for the bus, for the first error of a run.
    fn first_warning(&mut self, error: &io::Error) -> Option<String> {
        if std::mem::replace(&mut self.has_warned, true) {
            return None;
        }
        Some(format!("cannot write results to {}: {error}; results that can't be written are counted as lost", self.destination))
    }
}

/// The name of a file that exists is no address, whatever it looks like.
fn without_credentials(source: String) -> String {
    if std::path::Path::new(&source).exists() { source } else { redaction::redact(&source).into_owned() }
}

/// Why a destination can't be opened, and what to do.
fn cannot_open(address: &str, error: &io::Error) -> String {
    let remedy = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => "create the folder, or set `address` to a file in one that exists",
        ErrorKind::IsADirectory => "set `address` to a file in that folder",
        ErrorKind::PermissionDenied => "set `address` to a file that this user may write",
        ErrorKind::AlreadyExists => "remove it, set `if-exists`, or set `address` to another file",
        _ => "set `address` to a file that can be written, or to - for standard output",
    };
    format!("cannot write results to {address}: {error}; {remedy}")
}

fn no_results(size: Size) -> FrameResults {
    static REASON: LazyLock<std::sync::Arc<str>> = LazyLock::new(|| "no inference element upstream".into());
    FrameResults { size, status: InferenceStatus::Skipped(REASON.clone()), ..FrameResults::default() }
}

/// When the frame was taken, where the source knows it from RTP and NTP.
pub(in crate::elements) fn capture_time(buffer: &gst::BufferRef) -> Option<SystemTime> {
    /// From 1900, where NTP counts from, to 1970.
    const NTP_TO_UNIX: Duration = Duration::from_secs(2_208_988_800);
    buffer.iter_meta::<gst::ReferenceTimestampMeta>().find_map(|reference| {
        let since = Duration::from_nanos(reference.timestamp().nseconds());
        match reference.reference().structure(0)?.name().as_str() {
            "timestamp/x-unix" => UNIX_EPOCH.checked_add(since),
            "timestamp/x-ntp" => UNIX_EPOCH.checked_add(since.checked_sub(NTP_TO_UNIX)?),
            _ => None,
        }
    })
}
