//! Properties of `roipublish`, and conversion of a buffer's results to messages.
//!
//! The streaming thread formats and queues messages; a [`Publisher`] writes them on a separate thread. This module also decides which
//! message is posted on the bus when a destination fails. The format is in [`crate::frame::json`]; `meta` transports results.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gst_base::prelude::*;
use gst_base::subclass::BaseTransformMode;
use gst_base::subclass::prelude::*;
use gstreamer as gst;
use gstreamer_base as gst_base;
use gstreamer_video as gst_video;

use super::filter::{self, Filter, FilterSettings};
use super::frame_memory::FrameMemory;
use super::route::{Destination, Name, Route, cannot_open};
use super::{Format, Maps, Masks, Method, Numbering, WhenFull, gaps, permit};
use crate::elements::if_exists::IfExists;
use crate::elements::{buffer, caps, meta, origin, records, scene};
use crate::frame::{EPOCHS_PER_ASSIGNMENT, FrameResults, InferenceStatus, Size, coco, csv, json};
use crate::publish::{self, Counts, Deadline, Event, Limits, Message, Publisher, Refused, SpoolStatus, Url};
use crate::redaction;

static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| gst::DebugCategory::new("roipublish", gst::DebugColorFlags::empty(), Some("Writes results as JSON")));

/// The largest number of an assignment whose epochs fit into 64 bits.
const MAX_ASSIGNMENT: u64 = u64::MAX / EPOCHS_PER_ASSIGNMENT - 1;

/// Settings of the element.
#[derive(Debug, Clone)]
struct Settings {
    method: Method,
    address: String,
    /// A URL that was set as a property is from the user.
    url: Option<Url>,
    spool: Option<String>,
    spool_max_bytes: u64,
    /// Maximum age of stored results in seconds; 0 = no limit.
    spool_max_age: u64,
    if_exists: IfExists,
    when_full: WhenFull,
    format: Format,
    masks: Masks,
    maps: Maps,
    /// Number of the assignment of the stream to a machine; 0 = none.
    assignment: u64,
    stream_id: Option<Arc<str>>,
    /// Name of the input, without credentials.
    source: Option<String>,
    add_empty_results: bool,
    filter: FilterSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            method: Method::default(),
            address: "-".into(),
            url: None,
            spool: None,
            spool_max_bytes: Limits::default().max_bytes,
            spool_max_age: 0,
            if_exists: IfExists::default(),
            when_full: WhenFull::default(),
            format: Format::default(),
            masks: Masks::default(),
            maps: Maps::default(),
            assignment: 0,
            stream_id: None,
            source: None,
            add_empty_results: true,
            filter: FilterSettings::default(),
        }
    }
}

impl Settings {
    fn destination(&self) -> Destination {
        let address = if self.method == Method::Stdout { "-" } else { &*self.address };
        let max_age = Some(Duration::from_secs(self.spool_max_age)).filter(|age| !age.is_zero());
        Destination {
            address: address.to_owned(),
            url: self.url.clone(),
            if_exists: self.if_exists.into(),
            when_full: self.when_full,
            spool: self.spool.as_ref().map(Into::into),
            limits: Limits { max_bytes: self.spool_max_bytes, max_age },
            framing: publish::Framing::LINES,
        }
    }
}

/// State of the element between start and stop.
struct State {
    route: Arc<Route>,
    name: Name,
    masks: Masks,
    maps: Maps,
    /// The format, which is never `Auto`.
    format: Format,
    /// Number of objects that the format leaves out because of their labels.
    n_unknown: u64,
    /// Number of the assignment of the stream to a machine; 0 = none.
    assignment: u64,
    /// What [`permit::generation`] was at the start.
    generation: u64,
    filter: Filter,
    /// Epoch of the run, as part of message IDs: see [`next_epoch`].
    epoch: u64,
    /// Number of the last frame with a message, and the number of records since then.
    last_frame: Option<u64>,
    n_records: u32,
    /// Frame size in the caps.
    size: Option<Size>,
    /// Format of raw video.
    info: Option<gst_video::VideoInfo>,
    n_frames: u64,
    /// Frame sizes before and after ROI metas were lost, and whether a warning was posted.
    lost_rois: Option<((Size, Size), bool)>,
}

/// Number of frames, message counters, number of queued messages, state of the spool, and number of messages of the spool that the server
/// did not accept.
type Stats = (u64, Counts, u64, SpoolStatus, u64);

/// Instance data of `roipublish`. Lock order: settings, state, numbering. No lock is held during a post, a publish or a push.
#[derive(Default)]
pub struct RoiPublish {
    settings: Mutex<Settings>,
    state: Mutex<Option<State>>,
    /// Statistics of the last run.
    last_stats: Mutex<Stats>,
    /// Whether upstream is flushing. Calls must not block during a flush.
    is_flushing: AtomicBool,
    /// Time until which messages may wait for a reader of the destination.
    pub(super) deadline: Deadline,
    pub(super) numbering: Mutex<Numbering>,
    /// Shared memory for the pixels of the frames.
    pub(super) frame_memory: Mutex<Option<FrameMemory>>,
}

#[glib::object_subclass]
impl ObjectSubclass for RoiPublish {
    const NAME: &'static str = "RoiPublish";
    /// Two copies of the library in one process register this type name, so a name conflict is not an error.
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
            let text = |name: &str, nick, blurb| glib::ParamSpecString::builder(name).nick(nick).blurb(blurb).mutable_ready().build();
            let of_element = vec![
                glib::ParamSpecEnum::builder_with_default("method", default.method)
                    .nick("Method")
                    .blurb("Kind of destination")
                    .mutable_ready()
                    .build(),
                address("address", "Address", "Path of the file, which is opened when the first frame arrives; - is standard output; may change while stopped"),
                address("file-path", "File path", "Alias of address; may change while stopped"),
                text("url", "URL", "Server or file, instead of address: mqtt://host/topic, nats://host/subject, redis://host, http://host/path or file:///path; {stream} in the topic is the name of the stream; ${NAME} in user, password or options is an environment variable; reads without credentials"),
                text("spool", "Spool", "Folder where results are stored until the server of url acknowledges them, also beyond the end of the process"),
                glib::ParamSpecUInt64::builder("spool-max-bytes")
                    .nick("Maximum size of the spool")
                    .blurb("Maximum size of the spool in bytes; then the oldest results are replaced by a record of the gap")
                    .default_value(default.spool_max_bytes)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt64::builder("spool-max-age")
                    .nick("Maximum age in the spool")
                    .blurb("Age in seconds at which stored results are replaced by a record of the gap; 0 = no limit")
                    .default_value(default.spool_max_age)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("if-exists", default.if_exists)
                    .nick("If it exists")
                    .blurb("What to do with an existing file")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("when-full", default.when_full)
                    .nick("When full")
                    .blurb("What to do with results when the queue of the destination is full")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("format", default.format)
                    .nick("Format")
                    .blurb("Format of the results; servers get JSON lines")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("masks", default.masks)
                    .nick("Masks")
                    .blurb("How masks of objects are written")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("maps", default.maps)
                    .nick("Maps")
                    .blurb("How maps of classes (semantic segmentation) and of numbers (depth) are written")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt64::builder("assignment")
                    .nick("Assignment")
                    .blurb("Number of the assignment of the stream to a machine, for the epoch in message IDs; 0 = none")
                    .maximum(MAX_ASSIGNMENT)
                    .default_value(default.assignment)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecString::builder("stream-id")
                    .nick("Stream id")
                    .blurb("Name of the stream: the field `stream` of each line")
                    .mutable_playing()
                    .build(),
                glib::ParamSpecString::builder("source")
                    .nick("Source")
                    .blurb("Origin of the stream: the field `source` of each line; user and password of a URI are removed")
                    .mutable_playing()
                    .build(),
                glib::ParamSpecBoolean::builder("add-empty-results")
                    .nick("Add empty results")
                    .blurb("Also write a line for frames without objects")
                    .default_value(default.add_empty_results)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
                    .nick("Statistics")
                    .blurb("Counters: frames received; lines and bytes written; errors: lines that could not be written; dropped: lines dropped because the queue was full; waiting: lines in the queue; spool-...: state of the spool, which all streams with the same url share; spool-refused: after the stop, results of the spool that the server did not accept")
                    .read_only()
                    .build(),
            ];
            of_element.into_iter().chain(filter::PROPERTIES.specs()).collect()
        });
        PROPERTIES.as_ref()
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        let text = || value.get::<Option<String>>().expect("GObject checked the type");
        let mut settings = self.settings.lock().unwrap();
        match pspec.name() {
            "method" => settings.method = value.get().expect("GObject checked the type"),
            "address" | "file-path" => settings.address = text().unwrap_or_else(|| Settings::default().address),
            "url" => settings.url = text().filter(|url| !url.is_empty()).map(Url::of_user),
            "spool" => settings.spool = text().filter(|folder| !folder.is_empty()),
            "spool-max-bytes" => settings.spool_max_bytes = value.get().expect("GObject checked the type"),
            "spool-max-age" => settings.spool_max_age = value.get().expect("GObject checked the type"),
            "if-exists" => settings.if_exists = value.get().expect("GObject checked the type"),
            "when-full" => settings.when_full = value.get().expect("GObject checked the type"),
            "format" => settings.format = value.get().expect("GObject checked the type"),
            "masks" => settings.masks = value.get().expect("GObject checked the type"),
            "maps" => settings.maps = value.get().expect("GObject checked the type"),
            "assignment" => settings.assignment = value.get().expect("GObject checked the type"),
            "stream-id" => settings.stream_id = text().map(Into::into),
            "source" => settings.source = text().map(without_credentials),
            "add-empty-results" => settings.add_empty_results = value.get().expect("GObject checked the type"),
            name => {
                let known = filter::PROPERTIES.set(&mut settings.filter, name, value);
                debug_assert!(known, "GObject passes on known properties only");
            }
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        if pspec.name() == "stats" {
            let (n_frames, counts, n_waiting, spool, n_refused) = self.stats();
            return gst::Structure::builder("roipublish-stats")
                .field("frames", n_frames)
                .field("lines", counts.acknowledged)
                // `bytes` does not count the newline at the end of each line.
                .field("bytes", counts.bytes + counts.acknowledged)
                .field("errors", counts.lost)
                .field("dropped", counts.dropped)
                .field("waiting", n_waiting)
                .field("spool-waiting", spool.waiting)
                .field("spool-delivered", spool.delivered)
                .field("spool-dropped", spool.dropped + spool.refused)
                .field("spool-refused", n_refused)
                .field("spool-bytes", spool.bytes)
                .build()
                .to_value();
        }
        let settings = self.settings.lock().unwrap();
        match pspec.name() {
            "method" => settings.method.to_value(),
            "address" | "file-path" => settings.address.to_value(),
            // Remove credentials, because tools such as gst-launch-1.0 -v print this value.
            "url" => settings.url.as_ref().map(|url| publish::redact(&url.text)).as_deref().to_value(),
            "spool" => settings.spool.to_value(),
            "spool-max-bytes" => settings.spool_max_bytes.to_value(),
            "spool-max-age" => settings.spool_max_age.to_value(),
            "if-exists" => settings.if_exists.to_value(),
            "when-full" => settings.when_full.to_value(),
            "format" => settings.format.to_value(),
            "masks" => settings.masks.to_value(),
            "maps" => settings.maps.to_value(),
            "assignment" => settings.assignment.to_value(),
            "stream-id" => settings.stream_id.as_deref().to_value(),
            "source" => settings.source.to_value(),
            "add-empty-results" => settings.add_empty_results.to_value(),
            name => filter::PROPERTIES.get(&settings.filter, name).expect("GObject passes on known properties only"),
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
                "Writes the results of each frame as one line of JSON to a file, standard output or a server",
                "The roiflow developers",
            )
        });
        Some(&*METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static PAD_TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            // The element does not read pixels, so it accepts any memory type, and also encoded video with metas.
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
            // Set the deadline to now, because a message that waits for a reader would block the stop.
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
        let Settings { format, masks, maps, assignment, filter, .. } = self.settings.lock().unwrap().clone();
        let mut destination = self.settings.lock().unwrap().destination();
        let filter = Filter::new(&filter).map_err(|error| gst::error_msg!(gst::ResourceError::Settings, ("{error}")))?;
        let failed = |error: String| gst::error_msg!(gst::ResourceError::OpenWrite, ("{error}"));
        let (target, name) = destination.check().map_err(failed)?;
        let format = format.of(target.file()).map_err(failed)?;
        destination.framing = format.framing();
        gst::debug!(CAT, imp = self, "publishing results to {}", name.shown);
        let route = destination.open((target, &name), self.deadline.clone(), self.report(&name)).map_err(failed)?;
        *self.last_stats.lock().unwrap() = Default::default();
        self.is_flushing.store(false, Ordering::Release);
        let (epoch, route) = (next_epoch(assignment, 0), Arc::new(route));
        *self.state.lock().unwrap() = Some(State {
            route,
            name,
            masks,
            maps,
            format,
            n_unknown: 0,
            assignment,
            generation: permit::generation(),
            filter,
            epoch,
            last_frame: None,
            n_records: 0,
            size: None,
            info: None,
            n_frames: 0,
            lost_rois: None,
        });
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        let state = self.state.lock().unwrap().take();
        if let Some(State { route, n_frames, .. }) = state {
            // Do not wait for the queue, because EOS has usually emptied it.
            let counts = route.publisher.close(Instant::now());
            *self.last_stats.lock().unwrap() = (n_frames, counts, 0, route.spool_status(), route.n_refused());
        }
        Ok(())
    }

    fn set_caps(&self, incaps: &gst::Caps, _outcaps: &gst::Caps) -> Result<(), gst::LoggableError> {
        if let Some(state) = self.state.lock().unwrap().as_mut() {
            state.size = caps::size_in_caps(incaps);
            state.info = caps::video_info(incaps).ok();
        }
        Ok(())
    }

    fn sink_event(&self, event: gst::Event) -> bool {
        match event.type_() {
            gst::EventType::FlushStart => {
                self.is_flushing.store(true, Ordering::Release);
                self.with_publisher(Publisher::interrupt);
            }
            gst::EventType::FlushStop => {
                self.is_flushing.store(false, Ordering::Release);
                self.with_publisher(Publisher::resume);
            }
            gst::EventType::Eos => {
                // A stream that ends without a frame does not open the destination.
                if self.stats().0 > 0 {
                    self.finish();
                }
                self.warn_of_losses();
            }
            gst::EventType::CustomDownstream => self.publish_event(&event),
            gst::EventType::CustomDownstreamSticky => {
                if let (Some((element, zones)), Some(state)) = (scene::zones(&event), self.state.lock().unwrap().as_mut()) {
                    state.filter.zones.insert(element, zones);
                }
            }
            _ => {}
        }
        self.parent_sink_event(event)
    }

    fn transform_ip_passthrough(&self, buffer: &gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let (stream_id, source, add_empty_results) = {
            let settings = self.settings.lock().unwrap();
            (settings.stream_id.clone(), settings.source.clone(), settings.add_empty_results)
        };
        let image = self.share_pixels(buffer)?;
        let (route, is_first, has_assignment, message, lost_rois, unknown_zones) = {
            let mut guard = self.state.lock().unwrap();
            let state = guard.as_mut().ok_or(gst::FlowError::Flushing)?;
            let is_first = state.n_frames == 0;
            let mut numbering = self.numbering.lock().unwrap();
            let image = image.as_ref().map(|(_, place)| *place);
            let about = About { stream_time: self.stream_time(buffer), stream_id, source: source.as_deref(), image, add_empty_results };
            let message = state.message(buffer, about, &mut numbering).filter(|_| state.may_publish());
            drop(numbering);
            let lost_rois = state.lost_rois.as_mut().filter(|(_, is_reported)| !is_reported).map(|(sizes, is_reported)| {
                *is_reported = true;
                *sizes
            });
            (state.route.clone(), is_first, state.assignment > 0, message, lost_rois, state.filter.take_unknown_zones())
        };
        let publisher = &route.publisher;
        if let Some((attached_size, size)) = lost_rois {
            gst::element_imp_warning!(
                self,
                gst::StreamError::Format,
                ("the frame changed from {attached_size} to {size} after detection, and an element dropped its regions of interest \
                     (as videocrop does), so boxes may be wrong; crop before the detector, or publish before cropping")
            );
        }
        if let Some((unknown, known)) = unknown_zones {
            let known = if known.is_empty() {
                "no roianalytics upstream defines places".to_owned()
            } else {
                format!("the places upstream are {known}")
            };
            gst::element_imp_warning!(
                self,
                gst::ResourceError::Settings,
                ("zones: expected names of zones or lines of roianalytics, got {unknown}: {known}. No object is published there")
            );
        }
        if is_first {
            // The first frame opens the destination even if the frame has no results.
            publisher.connect();
        }
        if let (Some((memory, place)), None) = (&image, &message) {
            memory.discard(place.offset);
        }
        let published = message.map_or(Ok(()), |message| publisher.publish(message));
        if has_assignment {
            self.publish_gap();
        }
        published.map(|()| gst::FlowSuccess::Ok).map_err(|refused| match refused {
            Refused::Interrupted | Refused::Closed => gst::FlowError::Flushing,
            Refused::Failed => gst::FlowError::Error,
        })
    }
}

impl RoiPublish {
    /// Returns the stream time of this buffer; `None` without a timestamp, and outside the segment.
    fn stream_time(&self, buffer: &gst::BufferRef) -> Option<gst::ClockTime> {
        self.obj().segment().downcast::<gst::ClockTime>().ok()?.to_stream_time(buffer.pts())
    }

    /// Writes the pixels of a frame to the shared memory, if there is one.
    fn share_pixels(&self, buffer: &gst::Buffer) -> Result<Option<(FrameMemory, json::ImagePlace)>, gst::FlowError> {
        let Some(memory) = self.frame_memory.lock().unwrap().clone() else { return Ok(None) };
        let info = self.state.lock().unwrap().as_ref().and_then(|state| state.info.clone());
        let share = || {
            let info = info.ok_or_else(|| "expected raw video, got encoded frames; publish before the encoder".to_owned())?;
            let frame = buffer::frame(buffer, &info).map_err(|error| error.to_string())?;
            memory.write(&frame, || self.is_over()).map_err(|error| error.to_string())
        };
        match share() {
            Ok(place) => Ok(place.map(|place| (memory.clone(), place))),
            Err(error) => {
                gst::element_imp_error!(self, gst::StreamError::Format, ("cannot share the pixels of a frame: {error}"));
                Err(gst::FlowError::Error)
            }
        }
    }

    /// Whether the element is flushing or stopping.
    fn is_over(&self) -> bool {
        self.is_flushing.load(Ordering::Acquire) || self.deadline.remaining(Duration::MAX).is_err()
    }

    pub(super) fn set_url(&self, url: Url) {
        self.settings.lock().unwrap().url = Some(url);
    }

    /// Opens the destination of a stream that ended without a frame.
    pub(super) fn open(&self) {
        self.with_publisher(Publisher::flush);
    }

    /// Publishes the record in this event, if the event contains a record of an element upstream.
    fn publish_event(&self, event: &gst::Event) {
        match records::read(event) {
            None => {}
            Some(Ok(record)) => self.publish_record(record),
            Some(Err(error)) => {
                gst::element_imp_warning!(self, gst::StreamError::Format, ("{}", crate::stages::Printable(&error)));
            }
        }
    }

    /// Reports results that are missing before the first result of this assignment, once. Usually the first result has just been published.
    /// If the earlier machine has ended during a hand-over, the gap may be announced later.
    fn publish_gap(&self) {
        let stream_id = self.settings.lock().unwrap().stream_id.clone();
        let gap = self
            .state
            .lock()
            .unwrap()
            .as_ref()
            .filter(|state| state.may_publish())
            .and_then(|state| gaps::take(stream_id.as_deref(), state.assignment, &state.name.key));
        if let Some(record) = gap {
            self.publish_record(record);
        }
    }

    fn publish_record(&self, record: records::Record) {
        let (stream_id, source) = {
            let settings = self.settings.lock().unwrap();
            (settings.stream_id.clone(), settings.source.clone())
        };
        let (route, message) = {
            let mut guard = self.state.lock().unwrap();
            // Only JSON lines can contain records.
            let Some(state) = guard.as_mut().filter(|state| state.format == Format::JsonLines) else { return };
            let numbering = *self.numbering.lock().unwrap();
            let message = state.record(record, numbering, stream_id, source.as_deref());
            if !state.may_publish() {
                return;
            }
            (state.route.clone(), message)
        };
        // Ignore the result: a message is refused only if its loss is already counted, or if the stream is flushing.
        let _published = route.publisher.publish(message);
    }

    fn with_publisher(&self, act: impl FnMut(&Publisher)) {
        let route = self.state.lock().unwrap().as_ref().map(|state| state.route.clone());
        route.as_deref().map(|route| &route.publisher).into_iter().for_each(act);
    }

    /// Waits until the destination has acknowledged the messages of the stream.
    fn finish(&self) {
        let of_run = |state: &State| (state.route.clone(), state.name.clone(), (state.assignment, state.generation));
        let Some((route, name, (assignment, generation))) = self.state.lock().unwrap().as_ref().map(of_run) else { return };
        // A machine that has lost its right to run the stream must stop at once, because another machine starts it.
        let n_waiting = route.finish(|| self.is_over() || !permit::may_publish(assignment, generation));
        if let Some(folder) = name.spool.filter(|_| n_waiting > 0) {
            gst::element_imp_warning!(
                self,
                gst::ResourceError::Write,
                (
                    "{n_waiting} results wait in the spool {} for {}; a later run with the same spool and URL delivers them",
                    folder.display(),
                    name.shown
                )
            );
        }
    }

    /// Returns the frame count, message counters and state of the spool. The values are those of the current run, or of the last run.
    fn stats(&self) -> Stats {
        let state = self.state.lock().unwrap();
        let current = |state: &State| {
            let publisher = &state.route.publisher;
            (state.n_frames, publisher.counts(), publisher.n_waiting() as u64, state.route.spool_status(), 0)
        };
        state.as_ref().map_or_else(|| *self.last_stats.lock().unwrap(), current)
    }

    /// Posts losses on the bus. A destination that cannot be opened is an error. A file that fails later is a warning, posted once, and the
    /// stream continues. The outage of a server is a warning, and its end is an information.
    fn report(&self, name: &Name) -> impl FnMut(Event<'_>) + Send + 'static {
        let (element, name) = (self.obj().downgrade(), name.clone());
        let mut has_warned = false;
        move |event| {
            let Some(element) = element.upgrade() else { return };
            let Name { address, shown, .. } = &name;
            let warn = |text: String, details: gst::Structure| {
                gst::element_warning!(element, gst::ResourceError::Write, ("{}", crate::stages::Printable(&text)), details: details);
            };
            let outage = |is_down: bool| gst::Structure::builder(super::OUTAGE).field("url", shown).field("is-down", is_down).build();
            match event {
                Event::Lost { failure, .. } if failure.is_fatal() => {
                    let error = failure.error();
                    let text =
                        if name.is_server { format!("cannot publish results to {address} ({error})") } else { cannot_open(address, error) };
                    gst::element_error!(element, gst::ResourceError::OpenWrite, ("{}", crate::stages::Printable(&text)));
                }
                Event::Lost { failure, .. } if name.is_server => {
                    if !std::mem::replace(&mut has_warned, true) {
                        let kept = match &name.spool {
                            Some(folder) => format!("it is kept in {}", folder.join("refused.jsonl").display()),
                            None => "the result is counted as lost".to_owned(),
                        };
                        warn(format!("{shown} does not accept a result ({}); {kept}", failure.error()), outage(false));
                    }
                }
                Event::Lost { failure, .. } => {
                    if !std::mem::replace(&mut has_warned, true) {
                        let error = failure.error();
                        // Applications read this field, because the message text may change.
                        let details = gst::Structure::builder(super::WRITE_FAILED).field("closed", error.kind() == ErrorKind::BrokenPipe);
                        let text = format!("cannot write results to {shown}: {error}; results that cannot be written are counted as lost");
                        warn(text, details.build());
                    }
                }
                Event::Down(failure) => {
                    let kept = match &name.spool {
                        Some(folder) => format!("results are stored in {} and delivered later", folder.display()),
                        None => "results wait in memory, and are dropped if the queue is full; add a spool to keep them".to_owned(),
                    };
                    let what = if failure.is_refused() { format!("{shown} accepts no results") } else { format!("cannot reach {shown}") };
                    warn(format!("{what} ({}); attempts continue; {kept}", failure.error()), outage(true));
                }
                Event::Up => {
                    let details = outage(false);
                    gst::element_info!(element, gst::ResourceError::Write, ("{shown} accepts results again"), details: details);
                }
                Event::InMemory(reason) => {
                    let kept = "results are kept in memory, at most 4096 or 8 MiB, until it can";
                    warn(format!("{reason}; {kept}; {shown} gets them from there"), outage(false));
                }
                Event::Dropping(reason) => {
                    warn(format!("results for {shown} are dropped ({reason}); a gap record replaces them"), outage(false))
                }
            }
        }
    }

    fn warn_of_losses(&self) {
        let state = self.state.lock().unwrap().as_ref().map(|state| (state.name.shown.clone(), state.n_unknown));
        let Some((destination, n_unknown)) = state else { return };
        let counts = self.stats().1;
        let n_written = counts.acknowledged;
        let warn = |sentence: String| {
            gst::element_imp_warning!(self, gst::ResourceError::Write, ("{}", crate::stages::Printable(&sentence)));
        };
        if n_unknown > 0 {
            warn(format!(
                "{n_unknown} objects are not in {destination}, because their labels are none of COCO's classes; set `format=coco`"
            ));
        }
        if counts.lost > 0 {
            let n_lost = counts.lost;
            warn(format!("{n_lost} results could not be written to {destination} and are lost; {n_written} were written"));
        }
        if counts.dropped > 0 {
            let n_dropped = counts.dropped;
            warn(format!("{n_dropped} results were dropped because {destination} was too slow; {n_written} were written"));
        }
    }
}

/// What a message contains in addition to the metadata of its buffer.
struct About<'a> {
    stream_time: Option<gst::ClockTime>,
    stream_id: Option<Arc<str>>,
    source: Option<&'a str>,
    /// Place of the pixels in shared memory.
    image: Option<json::ImagePlace>,
    /// Whether a frame without results gets a message.
    add_empty_results: bool,
}

impl State {
    /// Whether a message that was just made may be published.
    fn may_publish(&self) -> bool {
        permit::may_publish(self.assignment, self.generation)
    }

    /// Returns the message for this buffer; `None` if it has no results and `add-empty-results` is false.
    fn message(
        &mut self,
        buffer: &gst::BufferRef,
        About { stream_time, stream_id, source, image, add_empty_results }: About<'_>,
        numbering: &mut Numbering,
    ) -> Option<Message> {
        let own_frame_number = self.n_frames;
        self.n_frames += 1;
        let attached_size = meta::size_when_attached(buffer);
        let size = self.size.or(attached_size).unwrap_or_default();
        let results = meta::read_shared(buffer, size).unwrap_or_else(|| no_results(size).into());
        if self.lost_rois.is_none() && attached_size.is_some_and(|attached| attached != size) && meta::has_lost_rois(buffer, &results) {
            self.lost_rois = attached_size.map(|attached_size| ((attached_size, size), false));
        }
        let (results, mark) = self.filter.apply(results, stream_time.or_else(|| buffer.pts()).map(gst::ClockTime::nseconds))?;
        if !add_empty_results && !json::has_results(&results) {
            return None;
        }
        let origin = origin::read(buffer);
        let timestamp_ns = stream_time.map(|time| time.nseconds().saturating_add(numbering.first_timestamp_ns));
        numbering.last_timestamp_ns = numbering.last_timestamp_ns.max(timestamp_ns);
        let is_numbered = results.frame_number != meta::UNNUMBERED;
        let frame_number = numbering.first_frame + if is_numbered { results.frame_number } else { own_frame_number };
        if self.last_frame.is_some_and(|last| frame_number <= last) {
            // Frame numbers have started again, for example because of another detector. A new epoch keeps message IDs unique.
            self.epoch = next_epoch(self.assignment, self.epoch + 1);
        }
        (self.last_frame, self.n_records) = (Some(frame_number), 0);
        let mut message = Message { payload: Vec::new(), stream: stream_id.clone(), epoch: self.epoch, frame: frame_number, part: 0 };
        let message_id = self.name.is_server.then(|| message.id());
        let image_id = origin.as_ref().and_then(|origin| coco::image_id(&origin.path)).unwrap_or(frame_number);
        let context = json::Context {
            frame_number,
            stream_id: stream_id.as_deref(),
            // If the frame was read from an image file, that file is the source.
            source: origin.as_ref().map(|origin| &*origin.path).or(source),
            tags: self.filter.tags.as_deref(),
            timestamp_ns,
            pts_ns: buffer.pts().map(gst::ClockTime::nseconds),
            time: capture_time(buffer).unwrap_or_else(SystemTime::now),
            message_id: message_id.as_deref(),
            image,
            masks: self.masks.into(),
            maps: self.maps.into(),
        };
        let mut write_coco = |categories| self.n_unknown += coco::write_entries(&mut message.payload, &results, image_id, categories);
        match self.format {
            Format::Auto | Format::JsonLines => {
                json::write_line(&mut message.payload, &results, &context).expect("every value has a form in JSON");
                message.payload.pop();
            }
            Format::Csv => csv::write_rows(&mut message.payload, &results, &context),
            Format::Coco => write_coco(coco::Categories::LabelIds),
            Format::Coco91 => write_coco(coco::Categories::Coco),
        }
        // CSV and COCO files have no entry for a frame without objects.
        if message.payload.is_empty() {
            return None;
        }
        self.filter.published(mark);
        Some(message)
    }

    /// Returns the message of a record.
    fn record(&mut self, record: records::Record, numbering: Numbering, stream_id: Option<Arc<str>>, source: Option<&str>) -> Message {
        let records::Record { kind, mut body } = record;
        for (key, value) in &mut body {
            let first = match &**key {
                "frame" => numbering.first_frame,
                "timestamp" => numbering.first_timestamp_ns,
                key if key.ends_with("_timestamp") => numbering.first_timestamp_ns,
                _ => continue,
            };
            if let Some(own) = value.as_u64() {
                *value = own.saturating_add(first).into();
            }
        }
        self.n_records += 1;
        let frame = self.last_frame.unwrap_or(numbering.first_frame);
        let mut message = Message { payload: Vec::new(), stream: stream_id.clone(), epoch: self.epoch, frame, part: self.n_records };
        let message_id = self.name.is_server.then(|| message.id());
        let context = json::RecordContext {
            stream_id: stream_id.as_deref(),
            source,
            tags: self.filter.tags.as_deref(),
            time: SystemTime::now(),
            message_id: message_id.as_deref(),
        };
        message.payload = json::record_line(&kind, body, &context).expect("every value has a form in JSON");
        message
    }
}

/// Removes credentials from a URI; the name of an existing file stays as it is.
fn without_credentials(source: String) -> String {
    if std::path::Path::new(&source).exists() { source } else { redaction::redact(&source).into_owned() }
}

/// Returns a new epoch. A reader takes results of an earlier epoch for repeated results.
///
/// Without an assignment, it is the time in milliseconds since 1970, at least `least`. If the clock was set back, epochs still do not
/// decrease within the process.
///
/// With an assignment, it is the number of the assignment, followed by the number of starts in this process as six decimal digits. An
/// assignment belongs to one process. So epochs of a later assignment are larger, whatever the clocks of the machines say.
fn next_epoch(assignment: u64, least: u64) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    static STARTS: AtomicU64 = AtomicU64::new(0);
    if assignment > 0 {
        let n_starts = STARTS.fetch_add(1, Ordering::AcqRel).min(EPOCHS_PER_ASSIGNMENT - 1);
        return assignment.min(MAX_ASSIGNMENT) * EPOCHS_PER_ASSIGNMENT + n_starts;
    }
    raise(&LAST, milliseconds(SystemTime::now()).max(least))
}

/// Raises a number to `least` if it is less. Returns the new number.
fn raise(number: &AtomicU64, least: u64) -> u64 {
    number.fetch_max(least, Ordering::AcqRel).max(least)
}

/// Converts a time to milliseconds since 1970.
fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn no_results(size: Size) -> FrameResults {
    static REASON: LazyLock<Arc<str>> = LazyLock::new(|| "no inference element upstream".into());
    FrameResults { status: InferenceStatus::Skipped(REASON.clone()), ..meta::no_results(size) }
}

/// Returns the capture time of the frame, if an RTP source reports an NTP timestamp.
pub(crate) fn capture_time(buffer: &gst::BufferRef) -> Option<SystemTime> {
    /// Seconds from 1900, the NTP epoch, to 1970.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_do_not_decrease_if_the_clock_is_set_back() {
        let last = AtomicU64::new(0);
        let clock = [1000, 1000, 400, 900, 1001];
        assert_eq!(clock.map(|now| raise(&last, now)), [1000, 1000, 1000, 1000, 1001]);
        let first = next_epoch(0, 0);
        assert!(next_epoch(0, first + 5000) == first + 5000 && next_epoch(0, 0) >= first + 5000);
    }

    #[test]
    fn epochs_of_a_later_assignment_are_larger() {
        let (first, second) = (next_epoch(7, 0), next_epoch(7, 0));
        assert!((7_000_000..8_000_000).contains(&first) && second > first && next_epoch(8, 0) >= 8_000_000);
        assert_eq!(next_epoch(MAX_ASSIGNMENT, 0) / EPOCHS_PER_ASSIGNMENT, MAX_ASSIGNMENT);
    }
}
