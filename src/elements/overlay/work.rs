//! What `roioverlay` does with a frame: it makes objects unrecognizable, and draws results.

use std::fmt::Write as _;
use std::time::SystemTime;

use gst::glib;
use gst_video::VideoFrameExt;
use gstreamer as gst;
use gstreamer_video as gst_video;
use roiflow_images::draw::{Canvas, Plane};
use roiflow_images::overlay::{Painter, Surroundings};
use roiflow_images::privacy::{Obscured, Privacy};
use roiflow_images::scene::Scene;

use super::Clock;
use super::composition::Layer;
use super::settings::Settings;
use crate::elements::publish::capture_time;
use crate::elements::{buffer, caps, meta};
use crate::frame::{Colorimetry, FrameResults, PixelFormat, Size};

/// State of the stream.
pub(super) struct Work {
    format: Option<Format>,
    pub(super) painter: Painter,
    privacy: Privacy,
    /// Lines and zones of each element upstream.
    scenes: Vec<Scene>,
    layer: Layer,
    /// Buffer reused for all titles.
    title: String,
    warned_of_lost_rois: bool,
}

struct Format {
    info: gst_video::VideoInfo,
    format: PixelFormat,
    colorimetry: Colorimetry,
    /// Whether downstream combines attached images with the frame.
    attaches: bool,
}

/// The frame size when the results were attached, and the current frame size.
pub(super) type LostFrom = Option<(Size, Size)>;

impl Work {
    pub(super) fn new(painter: Painter) -> Self {
        let (privacy, layer) = (Privacy::default(), Layer::default());
        Self { format: None, painter, privacy, scenes: Vec::new(), layer, title: String::new(), warned_of_lost_rois: false }
    }

    /// Sets the format of the next frames. `attaches`: downstream combines attached images with the frame.
    pub(super) fn set_format(&mut self, info: gst_video::VideoInfo, format: PixelFormat, attaches: bool) {
        let colorimetry = caps::colorimetry(&info);
        if self.format.as_ref().is_none_or(|before| caps::size(&before.info) != caps::size(&info)) {
            self.forget();
        }
        self.format = Some(Format { info, format, colorimetry, attaches });
    }

    /// Paints the next frames instead of attaching images, until the next caps.
    pub(super) fn paint(&mut self) {
        if let Some(format) = &mut self.format {
            format.attaches = false;
        }
    }

    /// Replaces the lines and zones of one element.
    pub(super) fn set_scene(&mut self, scene: Scene) {
        match self.scenes.iter_mut().find(|of| of.element == scene.element) {
            Some(known) => *known = scene,
            None => self.scenes.push(scene),
        }
    }

    /// Called after a flush: earlier frames say nothing about the next frame.
    pub(super) fn flush(&mut self) {
        self.forget();
        self.scenes.iter_mut().for_each(Scene::flush);
    }

    /// Called for a new stream. Each element upstream sends its lines and zones again.
    pub(super) fn begin_stream(&mut self) {
        self.forget();
        self.scenes.clear();
    }

    fn forget(&mut self) {
        self.painter.clear();
        self.privacy.clear();
    }

    /// Whether [`transform`](Self::transform) may change this buffer. If not, the buffer passes, so that a shared buffer is not copied to
    /// become writable.
    pub(super) fn may_change(&self, settings: &Settings, buffer: &gst::BufferRef) -> bool {
        let has_results = meta::has_results(buffer);
        if settings.privacy.is_active() && (has_results || self.privacy.is_pending(&settings.privacy)) {
            return true;
        }
        let has_title = || !settings.title.is_empty() || settings.clock != Clock::None;
        settings.draw && (has_results || self.painter.is_pending() || has_title() || (settings.zones && !self.scenes.is_empty()))
    }

    /// Changes the pixels of a buffer. If an upstream element has dropped ROI metas, returns once per stream the frame size when the
    /// results were attached, and the current frame size.
    ///
    /// # Errors
    /// Returns an error if the buffer cannot be mapped, or has fewer bytes than its caps say.
    pub(super) fn transform(
        &mut self,
        settings: &Settings,
        buffer: &mut gst::BufferRef,
        stream_time: Option<gst::ClockTime>,
    ) -> Result<LostFrom, gst::ErrorMessage> {
        let Some(Format { info, format, colorimetry, attaches }) = &self.format else {
            return Err(gst::error_msg!(gst::StreamError::Format, ("expected caps before the first frame, got none")));
        };
        let size = caps::size(info);
        let attached = meta::read_shared(buffer, size);
        let lost_from = attached.as_ref().and_then(|results| {
            let attached_size = meta::size_when_attached(buffer)?;
            let is_lost = !self.warned_of_lost_rois && attached_size != size && meta::has_lost_rois(buffer, results);
            is_lost.then_some((attached_size, size))
        });
        self.warned_of_lost_rois |= lost_from.is_some();

        let obscured = self.privacy.follow(&settings.privacy, size, attached.as_deref());
        let none = FrameResults { size, ..FrameResults::default() };
        let results = attached.as_deref().unwrap_or(&none);
        self.scenes.iter_mut().for_each(|scene| scene.follow(&results.events));
        self.title.clear();
        write_title(&mut self.title, settings, buffer, stream_time);
        let surroundings = Surroundings { scenes: if settings.zones { &self.scenes } else { &[] }, title: &self.title };
        let draws = settings.draw && {
            self.painter.follow(results, &settings.style);
            self.painter.has_something_to_draw(results, &settings.style, &surroundings)
        };
        if !draws && obscured.is_empty() {
            // Return without mapping the buffer, so that a buffer that is too short for its caps passes.
            return Ok(lost_from);
        }
        // Of two compositions, a sink draws one.
        let attaches = draws && *attaches && buffer.meta::<gst_video::VideoOverlayCompositionMeta>().is_none();
        if !obscured.is_empty() || !attaches {
            on_canvas(buffer, info, *format, *colorimetry, |canvas| {
                obscured.iter().for_each(|area: &Obscured| area.apply(canvas));
                if draws && !attaches {
                    self.painter.draw(canvas, size, results, &settings.style, &surroundings);
                }
            })?;
        }
        if attaches {
            let draw = |canvas: &mut Canvas| self.painter.draw(canvas, size, results, &settings.style, &surroundings);
            let composition = self.layer.compose(size, draw).map_err(|error| {
                gst::error_msg!(gst::ResourceError::Failed, ("attaching the drawing failed: {error}. Set attach-drawing=false"))
            })?;
            if let Some(composition) = composition {
                gst_video::VideoOverlayCompositionMeta::add(buffer, &composition);
            }
        }
        Ok(lost_from)
    }
}

/// Maps a buffer for writing, and calls `change` with its pixels.
fn on_canvas(
    buffer: &mut gst::BufferRef,
    info: &gst_video::VideoInfo,
    format: PixelFormat,
    colorimetry: Colorimetry,
    change: impl FnOnce(&mut Canvas),
) -> Result<(), gst::ErrorMessage> {
    let size = caps::size(info);
    let mut frame = gst_video::VideoFrameRef::from_buffer_ref_writable(buffer, info).map_err(|error| {
        gst::error_msg!(
            gst::ResourceError::Write,
            ("expected a writable {format} frame of {size}, got a buffer that cannot be mapped for writing: {error}")
        )
    })?;
    // A negative stride (bottom-up image) becomes 0, which the canvas refuses.
    let mut strides = [0; 3];
    for (stride, bytes) in strides.iter_mut().zip(frame.plane_stride()) {
        *stride = usize::try_from(*bytes).unwrap_or(0);
    }
    // The video meta may describe more bytes than the memory holds.
    let lengths = [0, 1, 2].map(|plane_idx| if plane_idx < format.n_planes() { buffer::mapped_bytes(&frame, plane_idx) } else { 0 });
    let [a, b, c, _] = frame.planes_data_mut();
    let planes = [(a, 0), (b, 1), (c, 2)].map(|(bytes, plane_idx)| {
        let n_bytes = bytes.len().min(lengths[plane_idx]);
        Plane { bytes: &mut bytes[..n_bytes], row_stride_bytes: strides[plane_idx] }
    });
    let mut canvas = Canvas::new(format, size, colorimetry, planes).ok_or_else(|| {
        gst::error_msg!(gst::StreamError::Format, ("expected rows of a {format} frame of {size}, got strides of {strides:?} bytes"))
    })?;
    change(&mut canvas);
    Ok(())
}

/// Writes the title, and the time after it.
fn write_title(title: &mut String, settings: &Settings, buffer: &gst::BufferRef, stream_time: Option<gst::ClockTime>) {
    title.push_str(&settings.title.replace("{stream}", &settings.stream_id));
    let separator = if title.is_empty() { "" } else { "  " };
    // Writing to a string can't fail.
    let _ = match settings.clock {
        Clock::None => Ok(()),
        Clock::Position => {
            let seconds = stream_time.or(buffer.pts()).map_or(0, gst::ClockTime::seconds);
            write!(title, "{separator}{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
        }
        clock => {
            let time = capture_time(buffer).unwrap_or_else(SystemTime::now);
            let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
            let time = if clock == Clock::Utc { glib::DateTime::from_unix_utc(seconds) } else { glib::DateTime::from_unix_local(seconds) };
            let text = time.and_then(|time| time.format(if clock == Clock::Utc { "%Y-%m-%d %H:%M:%SZ" } else { "%Y-%m-%d %H:%M:%S" }));
            text.map_or(Ok(()), |text| write!(title, "{separator}{text}"))
        }
    };
}
