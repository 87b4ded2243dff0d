//! Sink for the bytes of a video file, inside `roiflow-video` and `roirecord`. The element has no factory, so no gst-launch line has it.
//!
//! The element differs from `filesink` in these ways:
//!
//! - The file is opened, and an existing file replaced, when the first bytes arrive. With `hold-until-moov`, the file is opened only once
//!   the video can be played.
//! - If the destination is a FIFO or standard output and has no reader, the element still starts and stops without blocking.
//! - A file that was deleted is an error at the next write or at EOS.
//! - Errors describe what failed and whether the file can be played.

use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Instant;

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gst_base::prelude::*;
use gst_base::subclass::prelude::*;
use gstreamer as gst;
use gstreamer_base as gst_base;

use super::if_exists::IfExists;
use crate::publish::{Deadline, OutputFile};

/// Name of the structure in the details of an error. Its field `closed` is true if the reader closed the destination, and `deleted` if the
/// file was deleted.
pub const WRITE_FAILED: &str = "roiflow-video-file-write-failed";

glib::wrapper! {
    /// The element; see the [module](self).
    pub struct VideoFile(ObjectSubclass<imp::VideoFile>) @extends gst_base::BaseSink, gst::Element, gst::Object;
}

impl VideoFile {
    /// Sets the time until which a write may wait for a reader of the destination. A write that still waits at that time is an error.
    pub fn write_until(&self, deadline: Instant) {
        self.imp().deadline.set(deadline);
    }

    /// Tells that the caller holds a lock on the file. Call this before the start.
    pub fn set_locked(&self) {
        self.imp().settings.lock().unwrap().is_locked = true;
    }

    /// Number of bytes written since the start.
    pub fn n_written(&self) -> u64 {
        self.imp().progress.n_written.load(Ordering::Acquire)
    }

    /// Whether the file was opened since the start.
    pub fn is_open(&self) -> bool {
        self.imp().progress.is_open.load(Ordering::Acquire)
    }

    /// Whether the open file was found deleted.
    pub fn is_deleted(&self) -> bool {
        self.imp().progress.is_deleted.load(Ordering::Acquire)
    }
}

mod imp {
    use super::*;

    #[derive(Default)]
    pub struct Settings {
        location: String,
        if_exists: IfExists,
        hold_until_moov: bool,
        /// Whether the owner of this element holds a lock on the file.
        pub(super) is_locked: bool,
    }

    /// Maximum number of bytes held back: a few seconds of video.
    const MAX_HELD_BYTES: usize = 64 << 20;

    /// Values since the start, without a lock, because a write may block as long as the disk does.
    #[derive(Default)]
    pub(super) struct Progress {
        pub(super) n_written: AtomicU64,
        pub(super) is_open: AtomicBool,
        pub(super) is_deleted: AtomicBool,
    }

    /// State of the element from its start until its stop.
    struct State {
        file: OutputFile,
        progress: Arc<Progress>,
        /// The first bytes of the file, which are held back until the video can be played. `None` once they were written.
        held: Option<Vec<u8>>,
        /// Position in the file at which the next bytes belong.
        position: u64,
        /// Current position of the open file, which differs from `position` before a seek.
        at: u64,
    }

    #[derive(Default)]
    pub struct VideoFile {
        pub(super) settings: Mutex<Settings>,
        state: Mutex<Option<State>>,
        pub(super) progress: Arc<Progress>,
        pub(super) deadline: Deadline,
    }

    #[glib::object_subclass]
    impl ObjectSubclass for VideoFile {
        const NAME: &'static str = "RoiflowVideoFile";
        /// If two copies of the library are in one process, both register this type name. So a name conflict is not an error.
        const ALLOW_NAME_CONFLICT: bool = true;
        type Type = super::VideoFile;
        type ParentType = gst_base::BaseSink;
    }

    impl ObjectImpl for VideoFile {
        fn properties() -> &'static [glib::ParamSpec] {
            static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
                vec![
                    glib::ParamSpecString::builder("location")
                        .nick("Location")
                        .blurb("Path of the file; - is standard output; may change while stopped")
                        .mutable_ready()
                        .build(),
                    glib::ParamSpecEnum::builder_with_default("if-exists", IfExists::default())
                        .nick("If it exists")
                        .blurb("What happens to a file that exists; may change while stopped")
                        .mutable_ready()
                        .build(),
                    glib::ParamSpecBoolean::builder("hold-until-moov")
                        .nick("Hold until moov")
                        .blurb("Write nothing before the `moov` box of an MP4 file, without which the file cannot be played")
                        .mutable_ready()
                        .build(),
                ]
            });
            PROPERTIES.as_ref()
        }

        fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
            let mut settings = self.settings.lock().unwrap();
            match pspec.name() {
                "location" => settings.location = value.get::<Option<String>>().expect("GObject checked the type").unwrap_or_default(),
                "hold-until-moov" => settings.hold_until_moov = value.get().expect("GObject checked the type"),
                "if-exists" => settings.if_exists = value.get().expect("GObject checked the type"),
                name => unreachable!("property {name} is not in the list above"),
            }
        }

        fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
            let settings = self.settings.lock().unwrap();
            match pspec.name() {
                "location" => settings.location.to_value(),
                "hold-until-moov" => settings.hold_until_moov.to_value(),
                "if-exists" => settings.if_exists.to_value(),
                name => unreachable!("property {name} is not in the list above"),
            }
        }

        fn constructed(&self) {
            self.parent_constructed();
            // Files are written without synchronization to the clock.
            self.obj().set_sync(false);
        }
    }

    impl GstObjectImpl for VideoFile {}

    impl ElementImpl for VideoFile {
        fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
            static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
                gst::subclass::ElementMetadata::new(
                    "Write video",
                    "Sink/File",
                    "Writes encoded video to a file that is opened when the first bytes arrive",
                    "The roiflow developers",
                )
            });
            Some(&*METADATA)
        }

        fn pad_templates() -> &'static [gst::PadTemplate] {
            static PAD_TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
                let caps = gst::Caps::new_any();
                let template = gst::PadTemplate::new("sink", gst::PadDirection::Sink, gst::PadPresence::Always, &caps);
                vec![template.expect("names and caps of pads are valid")]
            });
            PAD_TEMPLATES.as_ref()
        }

        fn change_state(&self, transition: gst::StateChange) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
            match transition {
                gst::StateChange::ReadyToPaused => self.deadline.clear(),
                // Set the deadline to now, because bytes that wait for a reader would block the stop. The pipeline of this element is never
                // paused.
                gst::StateChange::PlayingToPaused | gst::StateChange::PausedToReady => self.deadline.set(Instant::now()),
                _ => {}
            }
            self.parent_change_state(transition)
        }
    }

    impl BaseSinkImpl for VideoFile {
        fn start(&self) -> Result<(), gst::ErrorMessage> {
            let settings = self.settings.lock().unwrap();
            let file = OutputFile::new(&*settings.location, settings.if_exists.into(), self.deadline.clone());
            let cannot = |error| gst::error_msg!(gst::ResourceError::OpenWrite, ("cannot write video `{}`: {error}", settings.location));
            file.check().map_err(cannot)?;
            let file = if settings.is_locked { file.without_lock() } else { file };
            let held = settings.hold_until_moov.then(Vec::new);
            let progress = self.progress.clone();
            progress.n_written.store(0, Ordering::Release);
            [&progress.is_open, &progress.is_deleted].iter().for_each(|flag| flag.store(false, Ordering::Release));
            *self.state.lock().unwrap() = Some(State { file, progress, held, position: 0, at: 0 });
            Ok(())
        }

        fn stop(&self) -> Result<(), gst::ErrorMessage> {
            *self.state.lock().unwrap() = None;
            Ok(())
        }

        fn render(&self, buffer: &gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
            let map = buffer.map_readable().map_err(|_| gst::FlowError::Error)?;
            let written = {
                let mut guard = self.state.lock().unwrap();
                let state = guard.as_mut().ok_or(gst::FlowError::Flushing)?;
                state.write(&map)
            };
            written.map(|()| gst::FlowSuccess::Ok).map_err(|error| self.fail(&error))
        }

        fn event(&self, event: gst::Event) -> bool {
            if let gst::EventView::Segment(segment) = event.view()
                && let Some(bytes) = segment.segment().downcast_ref::<gst::format::Bytes>()
                && let Some(state) = self.state.lock().unwrap().as_mut()
                && let Some(start) = bytes.start()
            {
                // A muxer seeks back to write values that it knows only at the end, such as the duration.
                state.position = *start;
            }
            if event.type_() == gst::EventType::Eos {
                let checked = self.state.lock().unwrap().as_ref().map_or(Ok(()), State::check_name);
                if let Err(error) = checked {
                    let _posted = self.fail(&error);
                    return false;
                }
            }
            self.parent_event(event)
        }

        fn query(&self, query: &mut gst::QueryRef) -> bool {
            match query.view_mut() {
                gst::QueryViewMut::Seeking(seeking) => {
                    let is_seekable = self.state.lock().unwrap().as_ref().is_some_and(|state| state.file.is_seekable());
                    if seeking.format() != gst::Format::Bytes {
                        return false;
                    }
                    seeking.set(is_seekable, gst::format::Bytes::ZERO, None::<gst::format::Bytes>);
                    true
                }
                _ => BaseSinkImplExt::parent_query(self, query),
            }
        }
    }

    impl VideoFile {
        /// Posts an error.
        fn fail(&self, error: &io::Error) -> gst::FlowError {
            let (n_written, is_deleted) = (self.obj().n_written(), self.obj().is_deleted());
            let left = if n_written > 0 && !is_deleted { "; the part written before can be played" } else { "" };
            let sentence = format!("cannot write video `{}`: {error}{left}", self.settings.lock().unwrap().location);
            let details = gst::Structure::builder(WRITE_FAILED).field("closed", error.kind() == ErrorKind::BrokenPipe);
            let details = details.field("deleted", is_deleted).build();
            gst::element_imp_error!(self, gst::ResourceError::Write, ("{sentence}"), details: details);
            gst::FlowError::Error
        }
    }

    impl State {
        fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
            let Some(mut held) = self.held.take() else { return self.write_now(bytes) };
            let begin = usize::try_from(self.position).unwrap_or(usize::MAX);
            let end = begin.saturating_add(bytes.len());
            if end <= MAX_HELD_BYTES {
                held.resize(held.len().max(end), 0);
                held[begin..end].copy_from_slice(bytes);
                self.position = end as u64;
            }
            // Bytes 4..8 of an MP4 box are its type. Muxers write the `moov` box in one buffer.
            if end <= MAX_HELD_BYTES && bytes.get(4..8) != Some(b"moov") {
                self.held = Some(held);
                return Ok(());
            }
            let position = std::mem::replace(&mut self.position, 0);
            self.write_now(&held)?;
            self.position = position;
            if end <= MAX_HELD_BYTES { Ok(()) } else { self.write_now(bytes) }
        }

        /// Returns an error if the file was deleted.
        fn check_name(&self) -> io::Result<()> {
            if !self.file.is_deleted() {
                return Ok(());
            }
            self.progress.is_deleted.store(true, Ordering::Release);
            Err(io::Error::new(ErrorKind::NotFound, "the file was deleted while it was written"))
        }

        fn write_now(&mut self, bytes: &[u8]) -> io::Result<()> {
            if !self.file.is_open() {
                // Open the file.
                self.file.flush()?;
                self.progress.is_open.store(true, Ordering::Release);
            }
            self.check_name()?;
            if self.at != self.position && self.file.is_seekable() {
                self.at = self.file.seek(SeekFrom::Start(self.position))?;
            }
            let mut rest = bytes;
            while !rest.is_empty() {
                match self.file.write(rest) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(n) => {
                        rest = &rest[n..];
                        self.position += n as u64;
                        self.at = self.position;
                        self.progress.n_written.fetch_add(n as u64, Ordering::AcqRel);
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        }
    }
}
