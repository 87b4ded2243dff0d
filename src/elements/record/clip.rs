//! Writes one clip: a small pipeline that packs encoded frames into an MP4 file, without encoding. The file is written in fragments, so it can
//! be played at any time, also if the process is killed.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;

use crate::elements::private_pipeline::{Failure, Increasing, MIN_STEP, PrivatePipeline};
use crate::elements::video_file::VideoFile;

/// Maximum size of the frames that wait for the disk.
const MAX_WAITING_BYTES: u64 = 128 << 20;
/// Maximum time for which the end of a clip waits for the disk.
const MAX_FINISH: Duration = Duration::from_secs(60);
/// A file with more bytes has video that can be played.
const MIN_BYTES: u64 = 4096;

/// A clip that is being written.
pub(super) struct ClipWriter {
    private: PrivatePipeline,
    file: VideoFile,
    /// Locked as long as this process writes the file; see [`crate::publish::FileStore::open_recovering`].
    _lock: File,
    times: Times,
    /// The last frame, which waits for its duration.
    last: Option<gst::Buffer>,
}

/// Timestamps of the frames of a clip, which begins at 0.
#[derive(Debug, Default)]
struct Times {
    /// Subtracted from all timestamps.
    base: Option<gst::ClockTime>,
    first_pts: gst::ClockTime,
    last_pts: Option<gst::ClockTime>,
    decoding: Increasing,
    /// End of the frame that is shown last.
    end: gst::ClockTime,
}

impl ClipWriter {
    /// Starts a clip of frames with these caps. The file is created at once.
    ///
    /// # Errors
    /// Returns a description if an element is missing, or the file cannot be created.
    pub(super) fn begin(caps: &gst::Caps, path: &Path) -> Result<Self, String> {
        let lock = File::create(path).map_err(|error| error.to_string())?;
        // Ignore an error: on a file system without locks, a clip of a killed process may be recovered by a later start only.
        let _locked = lock.try_lock();
        let source = gst_app::AppSrc::builder().name("source").build();
        // No parser comes before the muxer, because it would replace the duration of the last frame.
        let mux = gst::ElementFactory::make("mp4mux").build().map_err(|error| format!("element mp4mux: {error}"))?;
        mux.set_property("fragment-duration", 500_u32);
        mux.set_property_from_str("fragment-mode", "first-moov-then-finalise");
        let file: VideoFile = glib::Object::new();
        file.set_property("location", path.to_str().ok_or("expected a path in UTF-8")?);
        file.set_property("hold-until-moov", true);
        file.set_locked();
        let pipeline = gst::Pipeline::new();
        let elements: [&gst::Element; 3] = [source.upcast_ref(), &mux, file.upcast_ref()];
        let link = || {
            pipeline.add_many(elements)?;
            // The source has caps only later. Without names, it would be linked to the first kind of pad of the muxer, which is audio.
            source.link_pads(Some("src"), &mux, Some("video_%u"))?;
            mux.link(&file)
        };
        link().map_err(|error: glib::BoolError| error.to_string())?;
        let private = PrivatePipeline::start(pipeline, caps, u64::MAX, None).map_err(|failure| failure.text)?;
        let (times, last) = Default::default();
        Ok(Self { private, file, _lock: lock, times, last })
    }

    /// Adds a frame. The first frame is a key frame.
    ///
    /// # Errors
    /// Returns a description if the disk is full, or much slower than the video.
    pub(super) fn push(&mut self, mut buffer: gst::Buffer) -> Result<(), String> {
        if self.private.source.current_level_bytes() > MAX_WAITING_BYTES {
            return Err(format!("the disk is too slow: {} MiB of video wait", MAX_WAITING_BYTES >> 20));
        }
        self.times.set(buffer.make_mut());
        match self.last.replace(buffer) {
            Some(buffer) => self.private.push(buffer).map_err(|failure| failure.text),
            None => self.private.failure().map_or(Ok(()), |failure| Err(failure.text)),
        }
    }

    /// Whether the file has video that can be played.
    pub(super) fn has_video(&self) -> bool {
        self.file.n_written() > MIN_BYTES || self.private.has_ended()
    }

    /// Completes the file. Blocks until the file is written.
    ///
    /// # Errors
    /// Returns a description if the file cannot be written.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        let mut end = || {
            if let Some(mut buffer) = self.last.take() {
                self.times.set_last_duration(buffer.make_mut());
                self.private.push(buffer)?;
            }
            self.private.end();
            self.private.wait_for_end(MAX_FINISH)
        };
        end().map_err(|failure: Failure| failure.text)
    }
}

impl Times {
    /// Sets the timestamps of the next frame.
    fn set(&mut self, buffer: &mut gst::BufferRef) {
        let after_last = self.last_pts.map(|last| last + MIN_STEP);
        // After a process was not running for some time, frames have no timestamps, or all have the same.
        let given = buffer.pts().or(buffer.dts());
        let base = *self.base.get_or_insert(buffer.dts().or(given).unwrap_or_default());
        let given = given.map(|pts| pts.saturating_sub(base));
        let pts = given.filter(|pts| Some(*pts) != self.last_pts).or(after_last).unwrap_or_default();
        if self.last_pts.is_none() {
            self.first_pts = pts;
        }
        self.last_pts = Some(pts);
        let dts = buffer.dts().map(|dts| self.decoding.next(Some(dts.saturating_sub(base))));
        buffer.set_pts(pts);
        buffer.set_dts(dts);
        self.end = self.end.max(pts + buffer.duration().unwrap_or_default());
    }

    /// Extends the duration of the last frame, so that the clip ends when all frames were shown. `mp4mux` computes the duration of a file
    /// from decoding times. With B-frames and a varying frame rate, players would not show the last frames otherwise.
    fn set_last_duration(&self, buffer: &mut gst::BufferRef) {
        let shown = self.end.saturating_sub(self.first_pts);
        let begin = buffer.dts_or_pts().unwrap_or_default();
        let duration = buffer.duration().unwrap_or_default().max(shown.saturating_sub(begin));
        if !duration.is_zero() {
            buffer.set_duration(duration);
        }
    }
}
