//! Draws into images that a sink combines with the frame: `GstVideoOverlayComposition`.

use gstreamer as gst;
use gstreamer_video as gst_video;
use roiflow_images::draw::{Area, Canvas, Plane};

use crate::frame::{Colorimetry, PixelFormat, Size};

/// Maximum number of images of a frame.
const MAX_RECTANGLES: usize = 48;
/// The format of these images on little-endian processors: blue, green, red and opacity, multiplied by the opacity.
const FORMAT: gst_video::VideoFormat = gst_video::VideoFormat::Bgra;

/// A transparent image of the frame's size, on which the drawing of each frame is done.
#[derive(Default)]
pub(super) struct Layer {
    /// All bytes are 0 between two frames.
    bytes: Vec<u8>,
    size: Size,
}

impl Layer {
    /// Draws, and returns the images with their places in the frame. `None` if nothing was drawn.
    ///
    /// # Errors
    /// Returns an error if there is no memory for the images.
    pub(super) fn compose(
        &mut self,
        size: Size,
        draw: impl FnOnce(&mut Canvas),
    ) -> Result<Option<gst_video::VideoOverlayComposition>, gst::glib::BoolError> {
        let stride = 4 * size.width as usize;
        if self.size != size {
            (self.bytes, self.size) = (vec![0; stride * size.height as usize], size);
        }
        let planes = [Plane { bytes: &mut self.bytes, row_stride_bytes: stride }, Plane::default(), Plane::default()];
        let Some(mut canvas) = Canvas::new(PixelFormat::Bgra, size, Colorimetry::default(), planes) else { return Ok(None) };
        draw(&mut canvas);
        let areas = canvas.into_damage().rectangles(MAX_RECTANGLES);
        let rectangles: Vec<_> = areas.iter().map(|area| self.take(*area)).collect::<Result<_, _>>()?;
        if rectangles.is_empty() {
            return Ok(None);
        }
        gst_video::VideoOverlayComposition::new(&rectangles).map(Some)
    }

    /// Moves an area into an image, and makes the area transparent again.
    fn take(&mut self, area: Area) -> Result<gst_video::VideoOverlayRectangle, gst::glib::BoolError> {
        let (x, y) = (area.x_min as usize, area.y_min as usize);
        let (width, height) = ((area.x_max - area.x_min) as usize, (area.y_max - area.y_min) as usize);
        let stride = 4 * self.size.width as usize;
        let mut image = Vec::with_capacity(4 * width * height);
        for row in self.bytes.chunks_exact_mut(stride).skip(y).take(height) {
            let row = &mut row[4 * x..][..4 * width];
            image.extend_from_slice(row);
            row.fill(0);
        }
        let mut buffer = gst::Buffer::from_mut_slice(image);
        if let Some(buffer) = buffer.get_mut() {
            let flags = gst_video::VideoFrameFlags::empty();
            gst_video::VideoMeta::add(buffer, flags, FORMAT, width as u32, height as u32)?;
        }
        let flags = gst_video::VideoOverlayFormatFlags::PREMULTIPLIED_ALPHA;
        Ok(gst_video::VideoOverlayRectangle::new_raw(&buffer, x as i32, y as i32, width as u32, height as u32, flags))
    }
}
