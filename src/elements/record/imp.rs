//! Properties and pads of `roirecord`. The streaming threads pass frames on, and send a reference to each recorded frame to the worker
//! thread.
//!
//! EOS leaves the element when the pads `sink` and `video` have received EOS and all clips are complete. So the lines of all clips arrive
//! before EOS.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;
use serde::Serialize;

use super::RunningTimes;
use super::contents::Contents;
use super::encoder::Encoder;
use super::recorder::Durations;
use super::worker::{Clip, Input, News, OnNews, Options, PREFIX, Worker};
use crate::elements::regions::ObjectClasses;
use crate::elements::retry::{self, Retry};
use crate::elements::source::encoded;
use crate::elements::{caps, meta, records};
use crate::frame::{FrameResults, Size, TrackState};
use crate::publish::{FileStore, absolute};
use crate::stages::Printable;

static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| gst::DebugCategory::new("roirecord", gst::DebugColorFlags::empty(), Some("Writes clips around events")));

/// Name of the structure of a custom downstream event with which an application triggers a clip. Its field `label` names the trigger.
const TRIGGER: &str = "roirecord-trigger";
/// How long EOS waits for the last clips.
const MAX_END: Duration = Duration::from_secs(70);
/// Interval at which waiting calls check whether the element stops.
const TICK: Duration = Duration::from_millis(100);

/// Settings of the element. Durations are in milliseconds.
#[derive(Debug, Clone)]
struct Settings {
    folder: Option<PathBuf>,
    classes: ObjectClasses,
    min_confidence: f32,
    pre_roll: u32,
    post_roll: u32,
    max_duration: u32,
    max_bytes: u64,
    bitrate: u32,
    stream_id: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            folder: None,
            classes: ObjectClasses::default(),
            min_confidence: 0.0,
            pre_roll: 5000,
            post_roll: 5000,
            max_duration: 300_000,
            max_bytes: 10 << 30,
            bitrate: 2048,
            stream_id: None,
        }
    }
}

impl Settings {
    fn durations(&self) -> Durations {
        let nanoseconds = |milliseconds: u32| u64::from(milliseconds) * 1_000_000;
        let max = Some(nanoseconds(self.max_duration)).filter(|max| *max > 0);
        Durations { pre: nanoseconds(self.pre_roll), post: nanoseconds(self.post_roll), max }
    }

    /// Returns the labels of the objects that are events; `None` if there is no event.
    fn event(&self, results: &FrameResults) -> Option<Vec<Arc<str>>> {
        let objects = results.detections.iter().filter(|detection| {
            self.classes.has(detection) && detection.rank() >= self.min_confidence && detection.track_state != Some(TrackState::Tentative)
        });
        let labels: BTreeSet<Arc<str>> = objects.map(|detection| detection.label.clone().unwrap_or_else(|| "object".into())).collect();
        (!labels.is_empty()).then(|| labels.into_iter().collect())
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    clips: u64,
    frames: u64,
    bytes: u64,
    errors: u64,
}

/// Source of the recorded frames.
#[derive(Clone, Default)]
enum Video {
    /// There is no source yet, or the caps cannot be recorded.
    #[default]
    None,
    /// The pad `video`.
    Pad,
    /// The pad `sink` has encoded video.
    Encoded,
    /// The pad `sink` has raw video.
    Raw(Arc<Encoder>),
    /// The pad `sink` has raw video, and the encoder has failed.
    Failed,
}

/// State of the element between start and stop.
struct State {
    /// Declared before `_worker`, so that it is dropped first: the worker ends only when all senders are dropped.
    sender: SyncSender<Input>,
    video: Video,
    /// Decides when a failed encoder is started again.
    retry: Retry,
    size: Option<Size>,
    sink_segment: Arc<Mutex<gst::FormattedSegment<gst::ClockTime>>>,
    video_segment: gst::FormattedSegment<gst::ClockTime>,
    /// Times of the frames at `sink` and at `video`.
    sink_times: RunningTimes,
    video_times: RunningTimes,
    trigger: Option<Arc<str>>,
    video_has_ended: bool,
    /// EOS of `sink`, which waits for the end of `video`.
    eos: Option<gst::Event>,
    /// Declared last, so that it is dropped last. Dropping the worker completes its clips.
    _worker: Worker,
}

/// Instance data of `roirecord`. Lock order: settings, state. No lock is held while the worker, the encoder or a pad is called.
pub struct RoiRecord {
    sink: gst::Pad,
    src: gst::Pad,
    video: Mutex<Option<gst::Pad>>,
    settings: Mutex<Settings>,
    state: Mutex<Option<State>>,
    counts: Arc<Mutex<Counts>>,
    /// Lines to send with the next frame.
    lines: Arc<Mutex<Vec<gst::Event>>>,
    is_stopping: AtomicBool,
    /// Whether the element continues the recording of an earlier pipeline.
    is_continued: AtomicBool,
}

/// The JSON line about a clip.
#[derive(Serialize)]
struct Line<'a> {
    timestamp: Option<u64>,
    event_timestamp: Option<u64>,
    duration: u64,
    frames: u64,
    bytes: u64,
    labels: &'a [String],
    path: String,
}

#[glib::object_subclass]
impl ObjectSubclass for RoiRecord {
    const NAME: &'static str = "RoiRecord";
    /// Two copies of the library in one process register this type name, so a name conflict is not an error.
    const ALLOW_NAME_CONFLICT: bool = true;
    type Type = super::RoiRecord;
    type ParentType = gst::Element;

    fn with_class(class: &Self::Class) -> Self {
        let template = |name: &str| class.pad_template(name).expect("one of the templates below");
        let sink = gst::Pad::builder_from_template(&template("sink"))
            .chain_function(|_, parent, buffer| {
                Self::catch_panic_pad_function(parent, || Err(gst::FlowError::Error), |imp| imp.sink_chain(buffer))
            })
            .event_function(|_, parent, event| Self::catch_panic_pad_function(parent, || false, |imp| imp.sink_event(event)))
            .flags(gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION | gst::PadFlags::PROXY_SCHEDULING)
            .build();
        // Without these functions, upstream events and queries would also go to the pad `video`.
        let src = gst::Pad::builder_from_template(&template("src"))
            .event_function(|_, parent, event| Self::catch_panic_pad_function(parent, || false, |imp| imp.sink.push_event(event)))
            .query_function(|_, parent, query| Self::catch_panic_pad_function(parent, || false, |imp| imp.sink.peer_query(query)))
            .flags(gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION | gst::PadFlags::PROXY_SCHEDULING)
            .build();
        let (video, settings, state, counts, lines, is_stopping, is_continued) = Default::default();
        Self { sink, src, video, settings, state, counts, lines, is_stopping, is_continued }
    }
}

impl ObjectImpl for RoiRecord {
    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
            let default = Settings::default();
            let number = |name: &str, nick, blurb, default: u32| {
                glib::ParamSpecUInt::builder(name).nick(nick).blurb(blurb).default_value(default).mutable_ready().build()
            };
            vec![
                glib::ParamSpecString::builder("folder")
                    .nick("Folder")
                    .blurb("Folder of the clips, which is created if it is missing")
                    .mutable_ready()
                    .build(),
                ObjectClasses::property("Labels of the objects that are events, with commas between; unset: all objects"),
                glib::ParamSpecFloat::builder("min-confidence")
                    .nick("Minimum confidence")
                    .blurb("Minimum confidence of objects that are events")
                    .minimum(0.0)
                    .maximum(1.0)
                    .default_value(default.min_confidence)
                    .mutable_ready()
                    .build(),
                number("pre-roll", "Pre-roll", "Milliseconds of video before the first event of a clip", default.pre_roll),
                number("post-roll", "Post-roll", "Milliseconds of video after the last event of a clip", default.post_roll),
                number(
                    "max-duration",
                    "Maximum duration",
                    "Milliseconds after which a clip is continued by another clip; 0: no limit",
                    default.max_duration,
                ),
                glib::ParamSpecUInt64::builder("max-bytes")
                    .nick("Maximum size")
                    .blurb("Maximum size of all clips in the folder; the oldest are deleted; 0: no limit")
                    .default_value(default.max_bytes)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt::builder("bitrate")
                    .nick("Bit rate")
                    .blurb("Kilobits per second of clips of raw video")
                    .minimum(1)
                    .maximum(1_000_000)
                    .default_value(default.bitrate)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecString::builder("stream-id")
                    .nick("Stream id")
                    .blurb("Name of the stream in file names and messages")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
                    .nick("Statistics")
                    .blurb("Counters: clips written, their frames and bytes; errors: clips that could not be written")
                    .read_only()
                    .build(),
            ]
        });
        PROPERTIES.as_ref()
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        let text = || value.get::<Option<String>>().expect("GObject checked the type").filter(|text| !text.is_empty());
        let mut settings = self.settings.lock().unwrap();
        match pspec.name() {
            "folder" => settings.folder = text().map(Into::into),
            "object-class" => settings.classes = ObjectClasses::from_value(value),
            "min-confidence" => settings.min_confidence = value.get().expect("GObject checked the type"),
            "pre-roll" => settings.pre_roll = value.get().expect("GObject checked the type"),
            "post-roll" => settings.post_roll = value.get().expect("GObject checked the type"),
            "max-duration" => settings.max_duration = value.get().expect("GObject checked the type"),
            "max-bytes" => settings.max_bytes = value.get().expect("GObject checked the type"),
            "bitrate" => settings.bitrate = value.get().expect("GObject checked the type"),
            "stream-id" => settings.stream_id = text(),
            name => unreachable!("property {name} is not in the list above"),
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        let settings = self.settings.lock().unwrap();
        match pspec.name() {
            "folder" => settings.folder.as_ref().map(|folder| folder.display().to_string()).to_value(),
            "object-class" => settings.classes.to_value(),
            "min-confidence" => settings.min_confidence.to_value(),
            "pre-roll" => settings.pre_roll.to_value(),
            "post-roll" => settings.post_roll.to_value(),
            "max-duration" => settings.max_duration.to_value(),
            "max-bytes" => settings.max_bytes.to_value(),
            "bitrate" => settings.bitrate.to_value(),
            "stream-id" => settings.stream_id.to_value(),
            "stats" => {
                let Counts { clips, frames, bytes, errors } = *self.counts.lock().unwrap();
                let stats = gst::Structure::builder("roirecord-stats").field("clips", clips).field("frames", frames);
                stats.field("bytes", bytes).field("errors", errors).build().to_value()
            }
            name => unreachable!("property {name} is not in the list above"),
        }
    }

    fn constructed(&self) {
        self.parent_constructed();
        let element = self.obj();
        element.add_pad(&self.sink).and_then(|()| element.add_pad(&self.src)).expect("a new element has no pads");
    }
}

impl GstObjectImpl for RoiRecord {}

impl ElementImpl for RoiRecord {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Record clips of events",
                "Filter/Analyzer/Video",
                "Writes MP4 clips around events, such as objects of a class, with the video before and after them",
                "The roiflow developers",
            )
        });
        Some(&*METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static PAD_TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            let any = gst::Caps::new_any();
            let template = |name, direction, presence, caps: &gst::Caps| {
                gst::PadTemplate::new(name, direction, presence, caps).expect("names and caps of pads are valid")
            };
            let encoded = encoded::caps();
            vec![
                template("sink", gst::PadDirection::Sink, gst::PadPresence::Always, &any),
                template("video", gst::PadDirection::Sink, gst::PadPresence::Request, &encoded),
                template("src", gst::PadDirection::Src, gst::PadPresence::Always, &any),
            ]
        });
        PAD_TEMPLATES.as_ref()
    }

    fn request_new_pad(&self, template: &gst::PadTemplate, _name: Option<&str>, _caps: Option<&gst::Caps>) -> Option<gst::Pad> {
        let mut video = self.video.lock().unwrap();
        if video.is_some() {
            gst::warning!(CAT, imp = self, "expected at most one pad `video`, got another request");
            return None;
        }
        let pad = gst::Pad::builder_from_template(template)
            .name("video")
            .chain_function(|_, parent, buffer| {
                Self::catch_panic_pad_function(parent, || Err(gst::FlowError::Error), |imp| imp.video_chain(buffer))
            })
            .event_function(|pad, parent, event| Self::catch_panic_pad_function(parent, || false, |imp| imp.video_event(pad, event)))
            .query_function(|pad, parent, query| {
                let is_own = matches!(query.type_(), gst::QueryType::Caps | gst::QueryType::AcceptCaps);
                Self::catch_panic_pad_function(parent, || false, |imp| is_own && gst::Pad::query_default(pad, Some(&*imp.obj()), query))
            })
            .build();
        pad.set_active(true).ok()?;
        self.obj().add_pad(&pad).ok()?;
        *video = Some(pad.clone());
        Some(pad)
    }

    fn release_pad(&self, pad: &gst::Pad) {
        // An inactive pad has no frames. Removing it cannot fail, because it belongs to this element.
        let _inactive = pad.set_active(false);
        let _removed = self.obj().remove_pad(pad);
        *self.video.lock().unwrap() = None;
    }

    fn change_state(&self, transition: gst::StateChange) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::ReadyToPaused => self.start().map_err(|error| {
                self.post_error_message(error);
                gst::StateChangeError
            })?,
            gst::StateChange::PausedToReady => {
                self.is_stopping.store(true, Ordering::Release);
                // Stop the encoder, because a frame that waits for it would block the stop of the element.
                if let Some(Video::Raw(encoder)) = self.state.lock().unwrap().as_ref().map(|state| state.video.clone()) {
                    encoder.stop();
                }
            }
            _ => {}
        }
        let changed = self.parent_change_state(transition)?;
        if transition == gst::StateChange::PausedToReady {
            // Dropping the state waits until the worker has completed the current clip. Drop it outside the lock, because a completed clip
            // posts a message.
            let state = self.state.lock().unwrap().take();
            drop(state);
        }
        Ok(changed)
    }
}

impl RoiRecord {
    fn start(&self) -> Result<(), gst::ErrorMessage> {
        let settings = self.settings.lock().unwrap().clone();
        let Some(folder) = settings.folder.clone() else {
            return Err(gst::error_msg!(gst::ResourceError::Settings, ("roirecord: expected a folder for clips, got none; set `folder`")));
        };
        let (path, max_bytes) = (absolute(&folder), settings.max_bytes);
        let open_store = Box::new(move || {
            let (store, recovered) = FileStore::open_recovering(&path, PREFIX, max_bytes, |part| Contents::of(part).is_some())?;
            for clip in recovered {
                gst::info!(CAT, "recovered {}, which a killed process has left", clip.display());
            }
            Ok(store)
        });
        let store = match open_store() {
            Ok(store) => Some(store),
            Err(_) if self.is_continued.load(Ordering::Acquire) => None,
            Err(error) => {
                let text =
                    format!("cannot write clips to {}: {error}; set `folder` to a folder that this user may write", folder.display());
                return Err(gst::error_msg!(gst::ResourceError::OpenWrite, ("{text}")));
            }
        };
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let stream = settings.stream_id.clone().unwrap_or_else(|| "stream".to_owned());
        *self.counts.lock().unwrap() = Counts::default();
        self.lines.lock().unwrap().clear();
        self.is_stopping.store(false, Ordering::Release);
        let options = Options { durations: settings.durations(), stream, epoch };
        let worker = Worker::start(options, store, open_store, self.on_news(settings.stream_id))
            .map_err(|error| gst::error_msg!(gst::ResourceError::Failed, ("cannot start the thread that writes clips: {error}")))?;
        let video = if self.video.lock().unwrap().is_some() { Video::Pad } else { Video::None };
        *self.state.lock().unwrap() = Some(State {
            sender: worker.sender(),
            video,
            retry: Retry::default(),
            size: None,
            sink_segment: Arc::default(),
            video_segment: gst::FormattedSegment::new(),
            sink_times: RunningTimes::default(),
            video_times: RunningTimes::default(),
            trigger: None,
            video_has_ended: false,
            eos: None,
            _worker: worker,
        });
        Ok(())
    }

    pub(super) fn continue_recording(&self) {
        self.is_continued.store(true, Ordering::Release);
    }

    /// Counts and reports clips.
    fn on_news(&self, stream: Option<String>) -> OnNews {
        let (element, counts, lines) = (self.obj().downgrade(), self.counts.clone(), self.lines.clone());
        Arc::new(move |news| {
            let Some(element) = element.upgrade() else { return };
            let clip = match news {
                News::Clip(clip) => clip,
                News::Failed(error) => {
                    counts.lock().unwrap().errors += 1;
                    return gst::warning!(CAT, obj = element, "{error}");
                }
                News::Lost(reason) => return retry::report_lost(&element, &Printable(&reason).to_string(), false),
                News::Continued { reason, path } => return retry::report(&element, &Printable(&reason).to_string(), &path),
            };
            {
                let mut counts = counts.lock().unwrap();
                counts.clips += 1;
                counts.frames += clip.n_frames;
                counts.bytes += clip.n_bytes;
            }
            let Clip { path, n_frames: frames, n_bytes: bytes, duration_ns: duration, begin_ns, event_ns, labels } = &clip;
            let path = path.display().to_string();
            let line = Line {
                timestamp: *begin_ns,
                event_timestamp: *event_ns,
                duration: *duration,
                frames: *frames,
                bytes: *bytes,
                labels,
                path: path.clone(),
            };
            lines.lock().unwrap().push(records::event("clip", &line));
            let message = gst::Structure::builder(super::CLIP)
                .field("path", path)
                .field("stream", stream.as_deref())
                .field("timestamp", begin_ns.map(gst::ClockTime::from_nseconds))
                .field("event-timestamp", event_ns.map(gst::ClockTime::from_nseconds))
                .field("duration", gst::ClockTime::from_nseconds(*duration))
                .field("frames", *frames)
                .field("bytes", *bytes)
                .field("labels", labels.join(","));
            // Posting fails only if the element has no bus.
            let _posted = element.post_message(gst::message::Element::builder(message.build()).src(&element).build());
        })
    }

    fn with_state<T>(&self, act: impl FnOnce(&mut State) -> T) -> Option<T> {
        self.state.lock().unwrap().as_mut().map(act)
    }

    /// Sends a message to the worker. Has no effect if the element has stopped.
    fn send(&self, input: Input) {
        if let Some(sender) = self.with_state(|state| state.sender.clone()) {
            // Sending cannot fail, because the worker runs until all senders are dropped.
            let _sent = sender.send(input);
        }
    }

    /// Sends the lines of complete clips.
    fn send_lines(&self) {
        let lines = std::mem::take(&mut *self.lines.lock().unwrap());
        for line in lines {
            // Ignore the result, because a line has no receiver if no element is linked downstream.
            let _sent = self.src.push_event(line);
        }
    }

    fn sink_chain(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.send_lines();
        let settings = self.settings.lock().unwrap().clone();
        let taken = self.with_state(|state| {
            let segment = state.sink_segment.lock().unwrap().clone();
            let running_time = state.sink_times.next(&segment, &buffer, matches!(state.video, Video::Encoded));
            (state.video.clone(), state.size, segment, running_time, state.trigger.take())
        });
        let Some((video, size, segment, running_time, trigger)) = taken else { return Err(gst::FlowError::Flushing) };
        let stream_time = segment.to_stream_time(buffer.pts()).map(gst::ClockTime::nseconds);
        if let Some(running_time) = running_time {
            match video {
                Video::Raw(encoder) => match encoder.push(&buffer, gst::ClockTime::from_nseconds(running_time)) {
                    Ok(()) => {
                        let reason = self.with_state(|state| state.retry.works(Instant::now())).flatten();
                        if let Some(reason) = reason {
                            gst::element_imp_warning!(self, gst::StreamError::Encode, ("{reason}; the encoder was started again"));
                        }
                    }
                    Err(error) => self.fail_encoder(&error),
                },
                Video::Failed => self.restart_encoder(),
                Video::Encoded => self.send(Input::Frame { buffer: buffer.clone(), running_time, stream_time }),
                Video::Pad | Video::None => {}
            }
            let results = size.and_then(|size| meta::read_shared(&buffer, size));
            let mut event = results.and_then(|results| settings.event(&results));
            if let Some(trigger) = trigger {
                event.get_or_insert_default().push(trigger);
            }
            self.send(Input::Results { running_time, stream_time, event });
        }
        self.src.push(buffer)
    }

    fn sink_event(&self, event: gst::Event) -> bool {
        match event.view() {
            gst::EventView::Caps(caps) => self.set_sink_caps(caps.caps()),
            gst::EventView::Segment(segment) => {
                if let Some(segment) = segment.segment().downcast_ref::<gst::ClockTime>() {
                    self.with_state(|state| *state.sink_segment.lock().unwrap() = segment.clone());
                }
            }
            gst::EventView::FlushStop(_) => self.flush(),
            gst::EventView::CustomDownstream(custom) if custom.structure().is_some_and(|structure| structure.name() == TRIGGER) => {
                let label = custom.structure().and_then(|structure| structure.get::<String>("label").ok());
                self.with_state(|state| state.trigger = Some(label.as_deref().unwrap_or("trigger").into()));
            }
            gst::EventView::Eos(_) => {
                let waits = self.with_state(|state| {
                    let waits = matches!(state.video, Video::Pad) && !state.video_has_ended;
                    state.eos = waits.then(|| event.clone());
                    waits
                });
                if waits == Some(true) {
                    return true;
                }
                self.finish();
            }
            _ => {}
        }
        self.src.push_event(event)
    }

    /// Completes the current clip after a flush. Running time starts again at 0, so raw video needs a new encoder.
    fn flush(&self) {
        let encoder = self.with_state(|state| {
            (state.sink_times, state.video_times) = Default::default();
            std::mem::take(&mut state.video)
        });
        let is_raw = matches!(encoder, Some(Video::Raw(_) | Video::Failed));
        match encoder {
            // Discard the frames that are not encoded yet, because they arrived before the flush.
            Some(Video::Raw(encoder)) => encoder.stop(),
            Some(video) => drop(self.with_state(|state| state.video = video)),
            None => {}
        }
        self.send(Input::Reset);
        if let (true, Some(caps)) = (is_raw, self.sink.current_caps()) {
            self.set_sink_caps(&caps);
        }
    }

    /// Completes all clips, and sends their lines.
    fn finish(&self) {
        if let Some(Video::Raw(encoder)) = self.with_state(|state| state.video.clone()) {
            self.finish_encoder(&encoder);
        }
        let (sender, done) = channel();
        self.send(Input::End(sender));
        self.wait(&done);
        self.send_lines();
    }

    /// Waits until `done` receives a message or its sender is dropped. Returns early if the element stops, or after [`MAX_END`].
    fn wait(&self, done: &Receiver<()>) {
        let end = Instant::now() + MAX_END;
        while done.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) && !self.is_stopping.load(Ordering::Acquire) && Instant::now() < end
        {
        }
    }

    /// Chooses the source of the recorded frames, from the caps of the pad `sink`.
    fn set_sink_caps(&self, caps: &gst::CapsRef) {
        self.with_state(|state| state.size = caps::size_in_caps(caps));
        if self.with_state(|state| matches!(state.video, Video::Pad)) != Some(false) {
            return;
        }
        // Drain the previous encoder, so that its frames arrive before the frames of the next encoder.
        if let Some(Video::Raw(encoder)) = self.with_state(|state| std::mem::take(&mut state.video)) {
            self.finish_encoder(&encoder);
        }
        let template = Self::pad_templates().iter().find(|template| template.name_template() == "video").map(gst::PadTemplate::caps);
        let name = caps.structure(0).map(|structure| structure.name().to_string()).unwrap_or_default();
        let video = if name == "video/x-raw" {
            self.start_encoder(&caps.to_owned())
        } else if template.is_some_and(|template| caps.is_subset(template)) {
            self.send(Input::Caps(caps.to_owned()));
            Ok(Video::Encoded)
        } else {
            Err(format!(
                "cannot record {name}: expected raw video, or H.264 or H.265 with alignment=au and stream-format=avc or hvc1; add h264parse \
                 or h265parse upstream"
            ))
        };
        match video {
            Ok(video) => drop(self.with_state(|state| state.video = video)),
            Err(error) => self.warn_of_video(&error),
        }
    }

    fn start_encoder(&self, caps: &gst::Caps) -> Result<Video, String> {
        let bitrate = self.settings.lock().unwrap().bitrate;
        let Some((sender, segment)) = self.with_state(|state| (state.sender.clone(), state.sink_segment.clone())) else {
            return Ok(Video::None);
        };
        let mut known: Option<gst::Caps> = None;
        let on_frame = move |buffer: gst::Buffer, caps: gst::Caps, running_time: Option<u64>| {
            // Sending cannot fail, because the worker runs until all senders are dropped.
            if known.as_ref() != Some(&caps) {
                let _sent = sender.send(Input::Caps(caps.clone()));
                known = Some(caps);
            }
            let Some(running_time) = running_time else { return };
            let segment = segment.lock().unwrap().clone();
            let position = segment.position_from_running_time(gst::ClockTime::from_nseconds(running_time));
            let stream_time = segment.to_stream_time(position).map(gst::ClockTime::nseconds);
            let _sent = sender.send(Input::Frame { buffer, running_time, stream_time });
        };
        Ok(Video::Raw(Arc::new(Encoder::start(caps, bitrate, on_frame)?)))
    }

    /// Drains the encoder.
    fn finish_encoder(&self, encoder: &Encoder) {
        if let Err(error) = encoder.finish(MAX_END) {
            self.fail_encoder(&error);
        }
    }

    /// Stops a failed encoder, which is started again later.
    fn fail_encoder(&self, error: &str) {
        let text = Printable(error).to_string();
        let failed =
            self.with_state(|state| (std::mem::replace(&mut state.video, Video::Failed), state.retry.failed(&text, Instant::now())));
        let is_lost = failed.is_some_and(|(_, is_lost)| is_lost);
        self.counts.lock().unwrap().errors += 1;
        if is_lost {
            retry::report_lost(&*self.obj(), &text, false);
        }
    }

    /// Starts a failed encoder again, if the failure is long enough ago.
    fn restart_encoder(&self) {
        let may_begin = self.with_state(|state| state.retry.may_begin(Instant::now()));
        if may_begin == Some(true)
            && let Some(caps) = self.sink.current_caps()
        {
            self.set_sink_caps(&caps);
        }
    }

    /// Warns that no video is recorded.
    fn warn_of_video(&self, error: &str) {
        self.with_state(|state| state.video = Video::None);
        gst::element_imp_warning!(self, gst::StreamError::Encode, ("{}; no clips are written", Printable(error)));
    }

    fn video_chain(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let times = self.with_state(|state| (state.video_segment.clone(), state.video_times.next(&state.video_segment, &buffer, true)));
        let (segment, running_time) = times.ok_or(gst::FlowError::Flushing)?;
        if let Some(running_time) = running_time {
            let stream_time = segment.to_stream_time(buffer.pts()).map(gst::ClockTime::nseconds);
            self.send(Input::Frame { buffer, running_time, stream_time });
        }
        Ok(gst::FlowSuccess::Ok)
    }

    fn video_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        match event.view() {
            gst::EventView::Caps(caps) => self.send(Input::Caps(caps.caps_owned())),
            gst::EventView::Segment(segment) => {
                let Some(segment) = segment.segment().downcast_ref::<gst::ClockTime>() else {
                    gst::warning!(CAT, obj = pad, "expected a segment in time, got another format");
                    return false;
                };
                self.with_state(|state| state.video_segment = segment.clone());
            }
            gst::EventView::FlushStop(_) => {
                self.with_state(|state| (state.video_has_ended, state.video_times) = Default::default());
                self.send(Input::Reset);
            }
            gst::EventView::Eos(_) => {
                let eos = self.with_state(|state| {
                    state.video_has_ended = true;
                    state.eos.take()
                });
                if let Some(eos) = eos.flatten() {
                    self.finish();
                    return self.src.push_event(eos);
                }
            }
            _ => {}
        }
        true
    }
}
