//! Writes one clip: a small pipeline that packs encoded frames into an MP4 file, without encoding.

use std::path::Path;
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;

/// Maximum size of the frames that wait for the disk.
const MAX_WAITING_BYTES: u64 = 128 << 20;
/// Maximum time for which the end of a clip waits for the disk.
const MAX_FINISH: Duration = Duration::from_secs(60);

/// A clip that is being written.
pub(super) struct ClipWriter {
    pipeline: gst::Pipeline,
    source: gst_app::AppSrc,
    /// Subtracted from all timestamps, so that the clip begins at 0.
    base: Option<gst::ClockTime>,
    pub(super) n_frames: u64,
    end: gst::ClockTime,
}

impl ClipWriter {
    /// Starts a clip of frames with these caps. The file is created at once.
    ///
    /// # Errors
    /// Returns a description if an element is missing, or the file cannot be created.
    pub(super) fn begin(caps: &gst::Caps, path: &Path) -> Result<Self, String> {
        let is_h265 = caps.structure(0).is_some_and(|structure| structure.name() == "video/x-h265");
        let source = gst_app::AppSrc::builder().name("source").caps(caps).format(gst::Format::Time).block(false).max_bytes(0).build();
        let make = |factory: &str| gst::ElementFactory::make(factory).build().map_err(|error| format!("element {factory}: {error}"));
        let (parse, mux) = (make(if is_h265 { "h265parse" } else { "h264parse" })?, make("mp4mux")?);
        let sink = make("filesink")?;
        sink.set_property("location", path.to_str().ok_or("expected a path in UTF-8")?);
        sink.set_property("async", false);
        let pipeline = gst::Pipeline::new();
        let elements = [source.upcast_ref(), &parse, &mux, &sink];
        pipeline.add_many(elements).and_then(|()| gst::Element::link_many(elements)).map_err(|error| error.to_string())?;
        let clip = Self { pipeline, source, base: None, n_frames: 0, end: gst::ClockTime::ZERO };
        if clip.pipeline.set_state(gst::State::Playing).is_err() {
            return Err(clip.error().unwrap_or_else(|| format!("cannot create {}", path.display())));
        }
        Ok(clip)
    }

    /// Adds a frame. The first frame is a key frame.
    ///
    /// # Errors
    /// Returns a description if the disk is full, or much slower than the video.
    pub(super) fn push(&mut self, mut buffer: gst::Buffer) -> Result<(), String> {
        if let Some(error) = self.error() {
            return Err(error);
        }
        if self.source.current_level_bytes() > MAX_WAITING_BYTES {
            return Err(format!("the disk is too slow: {} MiB of video wait", MAX_WAITING_BYTES >> 20));
        }
        let base = *self.base.get_or_insert_with(|| buffer.dts().or(buffer.pts()).unwrap_or_default());
        let own = buffer.make_mut();
        // If a frame has no presentation timestamp, use its decoding timestamp, because the muxer requires a presentation timestamp.
        let (pts, dts) = (own.pts().or(own.dts()), own.dts());
        own.set_pts(pts.map(|pts| pts.saturating_sub(base)));
        own.set_dts(dts.map(|dts| dts.saturating_sub(base)));
        self.end = self.end.max(own.pts().unwrap_or_default() + own.duration().unwrap_or_default());
        self.n_frames += 1;
        self.source
            .push_buffer(buffer)
            .map(|_| ())
            .map_err(|flow| self.error().unwrap_or_else(|| format!("the writer refuses a frame ({flow})")))
    }

    /// Duration of the frames so far.
    pub(super) fn duration(&self) -> gst::ClockTime {
        self.end
    }

    /// Completes the file. Blocks until the file is written.
    ///
    /// # Errors
    /// Returns a description if the file cannot be written.
    pub(super) fn finish(self) -> Result<(), String> {
        let end = Instant::now() + MAX_FINISH;
        self.source.end_of_stream().map_err(|flow| self.error().unwrap_or_else(|| format!("the writer refuses the end ({flow})")))?;
        let bus = self.pipeline.bus().expect("a pipeline has a bus");
        let left = gst::ClockTime::try_from(end.saturating_duration_since(Instant::now())).unwrap_or_default();
        match bus.timed_pop_filtered(left, &[gst::MessageType::Eos, gst::MessageType::Error]) {
            None => Err(format!("the disk did not accept the clip within {} s", MAX_FINISH.as_secs())),
            Some(message) => text_of(&message).map_or(Ok(()), Err),
        }
    }

    /// Returns the error of the pipeline, if it has failed.
    fn error(&self) -> Option<String> {
        text_of(&self.pipeline.bus()?.pop_filtered(&[gst::MessageType::Error])?)
    }
}

impl Drop for ClipWriter {
    fn drop(&mut self) {
        // Ignore the result, because nothing can be done if the pipeline does not stop.
        let _stopped = self.pipeline.set_state(gst::State::Null);
    }
}

/// Returns the text of an error message; `None` for other messages.
pub(super) fn text_of(message: &gst::Message) -> Option<String> {
    match message.view() {
        gst::MessageView::Error(error) => Some(error.error().message().to_owned()),
        _ => None,
    }
}
