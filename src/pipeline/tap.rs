//! Shows an application each frame of a pipeline with its results, without delaying the pipeline.
//!
//! The application is called on a streaming thread, at `{json}` in the graph. It must return quickly. Results are shared, not copied, and
//! pixels are read only if the application asks for them.

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use gst::prelude::*;
use gstreamer as gst;
use roiflow_images::{crop, picture};
use roiflow_vision::Scratch;

use super::Plan;
use super::compressed::{Compressed, CompressedFrame};
use crate::elements::publish::capture_time;
use crate::elements::{buffer, caps, meta};
use crate::frame::{Detection, Frame, FrameResults, PixelRect, Size};

/// Name of the element at which the tap receives frames.
pub(super) const NAME: &str = "roiflow-tap";

/// Receives the frames of a stream with their results.
pub trait FrameTap: Send + Sync + 'static {
    /// Called on a streaming thread for each frame.
    fn frame(&self, frame: &TappedFrame<'_>);

    /// Whether the application uses compressed frames at present.
    fn wants_compressed(&self) -> bool {
        false
    }

    /// Called on a streaming thread for each compressed frame of the source, before it is decoded, while they are wanted and
    /// [`TappedFrame::is_passed`] is true for the frames of the stream. Returns false if the application cannot use them; it is then not
    /// called again.
    fn compressed(&self, _frame: &CompressedFrame<'_>) -> bool {
        false
    }
}

/// A shared [`FrameTap`].
#[derive(Clone)]
pub struct Tap(Arc<dyn FrameTap>);

impl Tap {
    /// Creates a tap from an implementation of [`FrameTap`].
    pub fn new(tap: impl FrameTap) -> Self {
        Self(Arc::new(tap))
    }
}

impl PartialEq for Tap {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Tap {}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}

/// A frame that passes the tap, with its results.
pub struct TappedFrame<'a> {
    pad: &'a gst::Pad,
    buffer: &'a gst::Buffer,
    caps: Option<gst::Caps>,
    /// Results of all elements upstream.
    pub results: Arc<FrameResults>,
    /// Stream time in nanoseconds.
    pub timestamp_ns: Option<u64>,
    /// Presentation timestamp in nanoseconds.
    pub pts_ns: Option<u64>,
    /// Capture time, or the current time.
    pub time: SystemTime,
    /// Whether [`FrameTap::compressed`] gets the compressed frames of this stream.
    pub is_passed: bool,
}

impl TappedFrame<'_> {
    /// Returns the frame as a buffer of GStreamer, and its caps.
    pub fn buffer(&self) -> (&gst::Buffer, Option<&gst::Caps>) {
        (self.buffer, self.caps.as_ref())
    }

    /// Returns when the frame has arrived from its source, by the clock of the pipeline: for a camera, when its data was received; for a file that
    /// is played at its own rate, when the frame was due. Returns `None` if the time stamps do not tell it.
    pub fn arrived(&self) -> Option<Instant> {
        arrival(self.pad, self.buffer)
    }

    /// Returns the pixels with the results, without a copy. The memory of the frame stays in use until the returned value is dropped.
    ///
    /// # Errors
    /// Returns an error if the pixel format is not supported, or the memory cannot be mapped.
    pub fn picture(&self) -> Result<Picture, String> {
        let caps = self.caps.as_ref().ok_or("the frame has no caps")?;
        let info = caps::video_info(caps).map_err(|_| format!("expected raw video, got {caps}"))?;
        let frame = buffer::frame(self.buffer, &info).map_err(|error| error.to_string())?;
        Ok(Picture { frame, results: self.results.clone() })
    }
}

/// Pixels of a frame with its results.
pub struct Picture {
    frame: Frame,
    results: Arc<FrameResults>,
}

impl Picture {
    /// Encodes a JPEG image with a width of at most `max_width` pixels. If `boxes` is true, the results are drawn on the image.
    ///
    /// # Errors
    /// Returns an error if the frame cannot be read.
    pub fn jpeg(&self, max_width: u32, boxes: bool) -> Result<Vec<u8>, String> {
        picture::jpeg(&self.frame, boxes.then_some(&*self.results), max_width, picture::QUALITY)
    }

    /// Cuts out the objects with the highest confidence, at most `max_objects`, as JPEG images whose longer side has at most `max_side` pixels.
    ///
    /// # Errors
    /// Returns an error if the frame cannot be read.
    pub fn objects(&self, max_objects: usize, max_side: u32) -> Result<Vec<(&Detection, Vec<u8>)>, String> {
        let mut inside: Vec<(&Detection, PixelRect)> =
            self.results.detections.iter().filter_map(|found| Some((found, found.rect.to_pixels(self.frame.size())?))).collect();
        inside.sort_by(|(one, _), (other, _)| other.rank().total_cmp(&one.rank()));
        let mut scratch = Scratch::default();
        let cut = |(found, region)| {
            let image = crop::cut_smaller(&self.frame, region, max_side, &mut scratch).map_err(|error| error.to_string())?;
            Ok((found, crop::jpeg(&image, picture::QUALITY).map_err(|error| error.to_string())?))
        };
        inside.into_iter().take(max_objects).map(cut).collect()
    }

    /// Size of the frame in pixels.
    pub fn size(&self) -> Size {
        self.frame.size()
    }
}

/// Returns when the frame that passes a pad has arrived from its source. Sources give frames the running time at which they arrive.
pub(super) fn arrival(pad: &gst::Pad, buffer: &gst::BufferRef) -> Option<Instant> {
    /// A longer time belongs to time stamps that do not follow the clock.
    const MAX_AGE: gst::ClockTime = gst::ClockTime::from_seconds(60);
    let element = pad.parent_element()?;
    let now = element.clock()?.time().checked_sub(element.base_time()?)?;
    let segment = pad.sticky_event::<gst::event::Segment>(0)?;
    let running = segment.segment().downcast_ref::<gst::ClockTime>()?.to_running_time(buffer.pts())?;
    let age = now.checked_sub(running).filter(|age| *age < MAX_AGE)?;
    Instant::now().checked_sub(age.into())
}

/// Installs the tap of a plan.
pub(super) fn install(pipeline: &gst::Pipeline, plan: &Plan) {
    let Some(Tap(tap)) = plan.outputs.tap.clone() else { return };
    let Some(pad) = pipeline.by_name(NAME).and_then(|element| element.static_pad("src")) else { return };
    let compressed = Compressed::install(pipeline, &tap);
    pad.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
        if let Some(buffer) = info.buffer() {
            let caps = pad.current_caps();
            let size = caps.as_deref().and_then(caps::size_in_caps).unwrap_or(Size::new(0, 0));
            let segment = pad.sticky_event::<gst::event::Segment>(0);
            let stream_time = segment.and_then(|event| {
                event.segment().downcast_ref::<gst::ClockTime>().and_then(|segment| segment.to_stream_time(buffer.pts()))
            });
            tap.frame(&TappedFrame {
                pad,
                buffer,
                results: meta::read_shared(buffer, size).unwrap_or_else(|| FrameResults { size, ..FrameResults::default() }.into()),
                caps,
                timestamp_ns: stream_time.map(gst::ClockTime::nseconds),
                pts_ns: buffer.pts().map(gst::ClockTime::nseconds),
                time: capture_time(buffer).unwrap_or_else(SystemTime::now),
                is_passed: compressed.is_passed_to(pad),
            });
        }
        gst::PadProbeReturn::Ok
    });
}
