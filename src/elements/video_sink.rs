//! Properties and states of `roiflow-video`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gst_base::prelude::*;
use gst_base::subclass::prelude::*;
use gstreamer as gst;
use gstreamer_base as gst_base;
use gstreamer_video as gst_video;

use super::video_parts::{Container, next_part};
use crate::elements::if_exists::IfExists;
use crate::elements::limited_range::{LimitedRange, encoded};
use crate::elements::private_pipeline::{Cause, Failure, Increasing, PrivatePipeline, Stopper, frame_at};
use crate::elements::retry::{self, Retry};
use crate::elements::stream::upstream_is_live;
use crate::elements::video_file::{VideoFile, WRITE_FAILED};
use crate::stages::Printable;

/// Maximum number of frames that wait for the encoder.
const MAX_WAITING: u64 = 4;
/// A file with more bytes has video that can be played. On a full disk, a few bytes may still have space in the last block of a file.
const MIN_BYTES: u64 = 4096;
/// Maximum time for which a frame waits while the disk accepts nothing. Afterwards the analysis goes on without the recording.
const MAX_STALL: Duration = Duration::from_secs(10);
/// Maximum time for which the end of a file waits for the disk.
const MAX_END: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Default)]
struct Settings {
    location: String,
    if_exists: IfExists,
    low_latency: bool,
}

/// State of the element from its start until its stop.
struct State {
    container: Container,
    caps: Option<gst::Caps>,
    part: Option<Arc<Part>>,
    /// The current or next file.
    path: PathBuf,
    /// Whether the file at `path` is complete, or has failed, and has video.
    is_used: bool,
    retry: Retry,
    /// Stops a file whose disk hangs. No file begins as long as it is busy.
    stopper: Stopper,
    /// Whether no other file follows: the reader of a pipe has accepted nothing for too long.
    is_over: bool,
    n_failures: u64,
}

/// A file that is being written.
struct Part {
    private: PrivatePipeline,
    file: VideoFile,
    format: Format,
    /// Running time of the first frame, which is at 0 in the file.
    begin: Mutex<Option<gst::ClockTime>>,
    times: Mutex<Increasing>,
    /// The conversion of frames with the full range.
    limited: Mutex<Option<LimitedRange>>,
}

/// The part of the caps that cannot change within a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Format {
    width: u32,
    height: u32,
    aspect: gst::Fraction,
    rate: gst::Fraction,
}

/// Instance data of `roiflow-video`. No lock is held while a part is started, fed or ended, or a message is posted.
#[derive(Default)]
pub struct Video {
    settings: Mutex<Settings>,
    state: Mutex<Option<State>>,
    /// The first file of this pipeline, if it continues the video of an earlier pipeline.
    continued: Mutex<Option<PathBuf>>,
    deadline: Mutex<Option<Instant>>,
}

#[glib::object_subclass]
impl ObjectSubclass for Video {
    const NAME: &'static str = "RoiflowVideo";
    /// If two copies of the library are in one process, both register this type name. So a name conflict is not an error.
    const ALLOW_NAME_CONFLICT: bool = true;
    type Type = super::video::Video;
    type ParentType = gst_base::BaseSink;
}

impl ObjectImpl for Video {
    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
            vec![
                glib::ParamSpecString::builder("location")
                    .nick("Location")
                    .blurb("Path of the first file; - is standard output; may change while stopped")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecEnum::builder_with_default("if-exists", IfExists::default())
                    .nick("If it exists")
                    .blurb("What happens to a file that exists; may change while stopped")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecBoolean::builder("low-latency")
                    .nick("Low latency")
                    .blurb("Whether the encoder delays no frames")
                    .mutable_ready()
                    .build(),
            ]
        });
        PROPERTIES.as_ref()
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        let mut settings = lock(&self.settings);
        match pspec.name() {
            "location" => settings.location = value.get::<Option<String>>().expect("GObject checked the type").unwrap_or_default(),
            "if-exists" => settings.if_exists = value.get().expect("GObject checked the type"),
            "low-latency" => settings.low_latency = value.get().expect("GObject checked the type"),
            name => unreachable!("property {name} is not in the list above"),
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        let settings = lock(&self.settings);
        match pspec.name() {
            "location" => settings.location.to_value(),
            "if-exists" => settings.if_exists.to_value(),
            "low-latency" => settings.low_latency.to_value(),
            name => unreachable!("property {name} is not in the list above"),
        }
    }

    fn constructed(&self) {
        self.parent_constructed();
        // Files are written without synchronization to the clock.
        self.obj().set_sync(false);
        self.obj().set_property("enable-last-sample", false);
    }
}

impl GstObjectImpl for Video {}

impl ElementImpl for Video {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Record video",
                "Sink/File/Video",
                "Encodes frames and writes them to files; a failure does not end the stream",
                "The roiflow developers",
            )
        });
        Some(&*METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static PAD_TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            let caps = gst::Caps::new_empty_simple("video/x-raw");
            let template = gst::PadTemplate::new("sink", gst::PadDirection::Sink, gst::PadPresence::Always, &caps);
            vec![template.expect("names and caps of pads are valid")]
        });
        PAD_TEMPLATES.as_ref()
    }

    fn change_state(&self, transition: gst::StateChange) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::ReadyToPaused => *lock(&self.deadline) = None,
            gst::StateChange::PausedToReady => {
                // Bytes that wait for a reader, and frames that wait for the encoder, would block the stop.
                self.write_until(Instant::now());
                self.with_state(|state| state.part.clone()).flatten().iter().for_each(|part| part.private.stop());
            }
            _ => {}
        }
        self.parent_change_state(transition)
    }
}

impl BaseSinkImpl for Video {
    fn start(&self) -> Result<(), gst::ErrorMessage> {
        let Settings { location, if_exists, low_latency } = lock(&self.settings).clone();
        let first = PathBuf::from(&location);
        let container = Container::of(&first, if_exists.into()).ok_or_else(|| {
            gst::error_msg!(gst::ResourceError::Settings, ("video `{location}`: expected a file that ends in .mp4, .mov or .mkv"))
        })?;
        let format = Format { width: 16, height: 16, aspect: gst::Fraction::new(1, 1), rate: gst::Fraction::new(1, 1) };
        // A missing element is an error of the installation, so it is reported before the first frame.
        gst::parse::launch(&line(&container, low_latency, &format))
            .map_err(|error| gst::error_msg!(gst::CoreError::MissingPlugin, ("cannot write video `{location}`: {error}")))?;
        let path = lock(&self.continued).clone().unwrap_or(first);
        let (caps, part, retry, stopper) = Default::default();
        let state = State { container, caps, part, path, is_used: false, retry, stopper, is_over: false, n_failures: 0 };
        *lock(&self.state) = Some(state);
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        // Keep the rest of the state for `file` and `n_failures`.
        drop(self.with_state(|state| state.part.take()));
        Ok(())
    }

    fn propose_allocation(&self, query: &mut gst::query::Allocation) -> Result<(), gst::LoggableError> {
        query.add_allocation_meta::<gst_video::VideoMeta>(None);
        Ok(())
    }

    fn set_caps(&self, caps: &gst::Caps) -> Result<(), gst::LoggableError> {
        let format = Format::of(caps).ok_or_else(|| gst::loggable_error!(gst::CAT_RUST, "expected raw video, got {caps}"))?;
        let part = self.with_state(|state| {
            state.caps = Some(caps.clone());
            (state.part.clone(), state.container.has_parts)
        });
        let Some((Some(part), has_parts)) = part else { return Ok(()) };
        if has_parts && !part.format.is_same_size(&format) {
            let reason = format!("the size of the frames has changed from {} to {}", part.format.size(), format.size());
            drop(part);
            self.end_part();
            self.with_state(|state| state.retry.changed(&reason));
        } else {
            let (limited, caps) = encoded(caps);
            *lock(&part.limited) = limited;
            part.private.source.set_caps(Some(&part.format.apply(&caps)));
        }
        Ok(())
    }

    fn render(&self, buffer: &gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let time = self.obj().segment().downcast_ref::<gst::ClockTime>().and_then(|segment| segment.to_running_time(buffer.pts()));
        self.report_work();
        // After the first failure in a row, the frame is the first one of the next file.
        for _ in 0..2 {
            // Release the part before the failure is handled, because dropping the last reference may block.
            let pushed = self.part()?.map_or(Ok(()), |part| part.push(buffer, time));
            match pushed {
                Ok(()) => break,
                Err(failure) => self.fail(&failure)?,
            }
        }
        Ok(gst::FlowSuccess::Ok)
    }

    fn event(&self, event: gst::Event) -> bool {
        if event.type_() == gst::EventType::Eos {
            self.end_part();
            let reason = self.with_state(|state| state.retry.end()).flatten();
            reason.iter().for_each(|reason| retry::report_lost(&*self.obj(), reason, true));
        }
        self.parent_event(event)
    }
}

impl Video {
    pub(super) fn write_until(&self, deadline: Instant) {
        *lock(&self.deadline) = Some(deadline);
        self.with_state(|state| state.part.clone()).flatten().iter().for_each(|part| part.file.write_until(deadline));
    }

    pub(super) fn file(&self) -> Option<(PathBuf, bool)> {
        self.with_state(|state| {
            let is_used = state.is_used || state.part.as_ref().is_some_and(|part| part.file.n_written() > 0);
            (state.path.clone(), is_used)
        })
    }

    pub(super) fn continue_at(&self, path: PathBuf) {
        *lock(&self.continued) = Some(path);
    }

    pub(super) fn n_failures(&self) -> u64 {
        self.with_state(|state| state.n_failures).unwrap_or(0)
    }

    fn with_state<T>(&self, act: impl FnOnce(&mut State) -> T) -> Option<T> {
        lock(&self.state).as_mut().map(act)
    }

    /// Returns the current file, or begins the next one. `None` while it may not begin yet.
    fn part(&self) -> Result<Option<Arc<Part>>, gst::FlowError> {
        let Settings { location, if_exists, low_latency } = lock(&self.settings).clone();
        let next = self.with_state(|state| match &state.part {
            Some(part) => Err(part.clone()),
            None if state.is_over || state.stopper.is_busy() || !state.retry.may_begin(Instant::now()) => Ok(None),
            None => {
                if std::mem::take(&mut state.is_used) {
                    state.path = next_part(Path::new(&location), &state.path);
                }
                Ok(state.caps.clone().map(|caps| (state.container.clone(), caps, state.path.clone())))
            }
        });
        let (container, caps, path) = match next.ok_or(gst::FlowError::Flushing)? {
            Err(part) => return Ok(Some(part)),
            Ok(None) => return Ok(None),
            Ok(Some(next)) => next,
        };
        if let Some(folder) = path.parent().filter(|_| container.has_parts) {
            // The folder may have been deleted. Ignore an error: the file reports it.
            let _created = std::fs::create_dir_all(folder);
        }
        // The reader of a pipe may pause: a source that is not live waits for it and loses no frame.
        let max_stall = (container.has_parts || upstream_is_live(self.obj().upcast_ref())).then_some(MAX_STALL);
        let started = Part::start(&container, &caps, (low_latency, max_stall), |file| {
            file.set_property("location", &*path.to_string_lossy());
            file.set_property("if-exists", if_exists);
            file.set_property("hold-until-moov", container.holds_until_moov);
        });
        match started {
            Ok(part) => {
                let part = Arc::new(part);
                if let Some(deadline) = *lock(&self.deadline) {
                    part.file.write_until(deadline);
                }
                self.with_state(|state| state.part = Some(part.clone()));
                Ok(Some(part))
            }
            Err(failure) => self.fail(&failure).map(|()| None),
        }
    }

    /// Completes the current file.
    fn end_part(&self) {
        let Some(part) = self.with_state(|state| state.part.clone()).flatten() else { return };
        part.private.end();
        match part.private.wait_for_end(MAX_END) {
            Ok(()) => {
                self.report_work();
                let _complete = self.with_state(|state| {
                    state.is_used = part.file.n_written() > 0;
                    state.part.take()
                });
            }
            Err(failure) => {
                drop(part);
                // Ignore the returned error, because no flow can return it: the error was posted.
                let _posted = self.fail(&failure);
            }
        }
    }

    /// Handles the failure of the current file, or of its begin.
    ///
    /// # Errors
    /// Returns an error, which was posted, if no other file can follow.
    fn fail(&self, failure: &Failure) -> Result<(), gst::FlowError> {
        let is_stalled = failure.cause == Cause::Stalled;
        let failed = self.with_state(|state| {
            state.n_failures += 1;
            (state.part.take(), state.path.clone(), state.container.has_parts)
        });
        let Some((part, path, has_parts)) = failed else { return Err(gst::FlowError::Flushing) };
        let text = if is_stalled { format!("cannot write video `{}`: {}", path.display(), failure.text) } else { failure.text.clone() };
        let text = Printable(&text).to_string();
        if !has_parts && !is_stalled {
            let details = gst::Structure::builder(WRITE_FAILED).field("closed", failure.cause == Cause::Closed).build();
            gst::element_imp_error!(self, gst::ResourceError::Write, ("{text}"), details: details);
            return Err(gst::FlowError::Error);
        }
        let file = part.as_ref().map(|part| &part.file);
        // Another file may have the name of a deleted file.
        let is_used = file.is_some_and(|file| file.n_written() > MIN_BYTES || file.is_deleted());
        let is_unused = !is_used && file.is_some_and(VideoFile::is_open);
        let discard = move || {
            drop(part);
            if is_unused && std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
                // The next attempt has the same name. Ignore an error: the file may be replaced.
                let _removed = std::fs::remove_file(&path);
            }
        };
        let is_gone = is_stalled || failure.cause == Cause::Deleted;
        if is_stalled {
            self.with_state(|state| state.stopper.run(discard));
        } else {
            discard();
        }
        let is_lost = self.with_state(|state| {
            (state.is_used, state.is_over) = (is_used, !has_parts);
            state.retry.failed(&text, Instant::now()) || is_gone && state.retry.lose()
        });
        if is_lost == Some(true) {
            retry::report_lost(&*self.obj(), &text, !has_parts);
        }
        Ok(())
    }

    /// Reports that the current file continues the recording, once it has video.
    fn report_work(&self) {
        let reported = self.with_state(|state| {
            let part = state.part.as_ref().filter(|part| part.file.n_written() > MIN_BYTES || part.private.has_ended())?;
            part.private.failure().is_none().then(|| state.retry.works(Instant::now())).flatten().map(|reason| (reason, state.path.clone()))
        });
        if let Some((reason, path)) = reported.flatten() {
            retry::report(&*self.obj(), &reason, &path);
        }
    }
}

impl Part {
    /// Starts the pipeline of a file. The file is opened when the first bytes arrive.
    fn start(
        container: &Container,
        caps: &gst::Caps,
        (low_latency, max_stall): (bool, Option<Duration>),
        set: impl FnOnce(&VideoFile),
    ) -> Result<Self, Failure> {
        let format = Format::of(caps).ok_or_else(|| Failure::new(format!("expected raw video, got {caps}")))?;
        let pipeline = gst::parse::launch(&line(container, low_latency, &format)).map_err(|error| Failure::new(error.to_string()))?;
        let pipeline = pipeline.downcast::<gst::Pipeline>().expect("a line with several elements is a pipeline");
        let (mux, file) = (pipeline.by_name("mux").expect("the line has this element"), glib::Object::new::<VideoFile>());
        set(&file);
        pipeline.add(&file).and_then(|()| mux.link(&file)).map_err(|error| Failure::new(error.to_string()))?;
        let (limited, caps) = encoded(caps);
        let private = PrivatePipeline::start(pipeline, &format.apply(&caps), MAX_WAITING, max_stall)?;
        let (begin, times) = Default::default();
        Ok(Self { private, file, format, begin, times, limited: Mutex::new(limited) })
    }

    fn push(&self, buffer: &gst::BufferRef, time: Option<gst::ClockTime>) -> Result<(), Failure> {
        let begin = *lock(&self.begin).get_or_insert(time.unwrap_or_default());
        let time = lock(&self.times).next(time.map(|time| time.saturating_sub(begin)));
        let limited = lock(&self.limited).as_ref().and_then(|limited| limited.convert(buffer));
        self.private.push(frame_at(limited.as_deref().unwrap_or(buffer), time))
    }
}

impl Format {
    fn of(caps: &gst::CapsRef) -> Option<Self> {
        let info = gst_video::VideoInfo::from_caps(caps).ok()?;
        Some(Self { width: info.width(), height: info.height(), aspect: info.par(), rate: info.fps() })
    }

    fn is_same_size(&self, other: &Self) -> bool {
        (self.width, self.height, self.aspect) == (other.width, other.height, other.aspect)
    }

    fn size(&self) -> String {
        format!("{}x{}", self.width, self.height)
    }

    /// Returns the caps with this frame rate, because another rate would change the header of the encoded video.
    fn apply(&self, caps: &gst::CapsRef) -> gst::Caps {
        let mut caps = caps.to_owned();
        caps.make_mut().set("framerate", self.rate);
        caps
    }
}

/// Returns the elements that write a file with frames of this format. The encoder accepts only even sizes from 16 x 16. Without B-frames,
/// players show the last frames also if the frame rate varies: `mp4mux` computes the duration of a file from decoding times.
fn line(container: &Container, low_latency: bool, format: &Format) -> String {
    let Format { width, height, aspect, .. } = format;
    let even = |extent: u32| if extent < 16 { i64::from(extent) - 16 } else { i64::from(extent % 2) };
    let (right, bottom) = (even(*width), even(*height));
    let tune = if low_latency { " tune=zerolatency" } else { "" };
    format!(
        "appsrc name=source ! videoconvert ! videoscale add-borders=true \
         ! video/x-raw,format=I420,width={width},height={height},pixel-aspect-ratio={}/{} ! videobox right={right} bottom={bottom} \
         ! video/x-raw,format=I420 ! x264enc speed-preset=veryfast bframes=0{tune} ! h264parse ! {} name=mux",
        aspect.numer(),
        aspect.denom(),
        container.muxer
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
