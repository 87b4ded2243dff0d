//! Encodes a frame, with its results drawn, as a small JPEG for live views. Do not use these images for measurements.

use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder};
use roiflow_tensor::{ElementType, Tensor};
use roiflow_vision::{InputLayout, Preprocess, Scratch};

use super::draw::{Canvas, Plane};
use super::frame::{Frame, PixelFormat};
use super::overlay::{Painter, Style, Surroundings};
use roiflow_vision::frame::{FrameResults, PixelRect, Size};

/// JPEG quality of images for live views.
pub const QUALITY: u8 = 80;

/// Scales a frame to at most `max_width` pixels per row, draws its results, and encodes it as JPEG. `quality` is 1 to 100.
///
/// # Errors
/// Returns an error if the frame is not in host memory, or is leased for writing.
pub fn jpeg(frame: &Frame, results: Option<&FrameResults>, max_width: u32, quality: u8) -> Result<Vec<u8>, String> {
    let size = scaled(frame.size(), max_width);
    let failed = |error: &dyn std::fmt::Display| format!("cannot read the frame: {error}");
    let shape = [1, size.height as usize, size.width as usize, 3];
    let tensor = Tensor::new(ElementType::U8, shape).map_err(|error| failed(&error))?;
    let mut pixels = tensor.bytes_mut().map_err(|error| failed(&error))?;
    let is_smaller = size != frame.size();
    let preprocess = Preprocess { layout: InputLayout::Nhwc, antialias: is_smaller, ..Preprocess::default() };
    preprocess.fill(frame, &mut pixels, 0, &mut Scratch::default()).map_err(|error| failed(&error))?;
    if let Some(results) = results {
        let results = moved(results, size);
        let plane = Plane { bytes: pixels.extent_mut(), row_stride_bytes: 3 * size.width as usize };
        if let Some(mut canvas) = Canvas::new(PixelFormat::Rgb, size, frame.colorimetry(), [plane, Plane::default(), Plane::default()]) {
            Painter::default().draw(&mut canvas, size, &results, &Style::default(), &Surroundings::default());
        }
    }
    let mut encoded = Vec::new();
    let encoder = JpegEncoder::new_with_quality(&mut encoded, quality);
    encoder
        .write_image(pixels.extent(), size.width, size.height, ExtendedColorType::Rgb8)
        .map_err(|error| format!("cannot encode the frame: {error}"))?;
    Ok(encoded)
}

/// Returns the size of the image, with the aspect ratio of the frame.
fn scaled(size: Size, max_width: u32) -> Size {
    if size.width <= max_width {
        return size;
    }
    let height = (u64::from(size.height) * u64::from(max_width)).div_ceil(u64::from(size.width.max(1)));
    Size::new(max_width.max(1), (height as u32).max(1))
}

/// Returns the results, scaled to a frame of another size.
fn moved(results: &FrameResults, size: Size) -> FrameResults {
    let mut moved = results.clone();
    if moved.size != size && moved.size.width > 0 && moved.size.height > 0 {
        let (was, is) = (PixelRect::whole(moved.size).to_rect(), PixelRect::whole(size).to_rect());
        for detection in &mut moved.detections {
            detection.move_to(detection.rect.moved_with(was, is));
        }
        moved.set_size(size);
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use roiflow_vision::frame::{Detection, ObjectId, Rect};

    #[test]
    fn picture_is_scaled_with_its_boxes() {
        let size = Size::new(1600, 800);
        let bytes: Vec<u8> = [10, 20, 30].repeat(1600 * 800);
        let frame = Frame::from_packed(PixelFormat::Rgb, size, &bytes).unwrap();
        let rect = Rect { x: 800.0, y: 160.0, width: 480.0, height: 480.0 };
        let found = Detection {
            id: ObjectId(1),
            track: None,
            track_state: None,
            parent: None,
            rect,
            keypoints: Vec::new(),
            confidence: 1.0,
            label_id: 0,
            label: None,
            classifications: Vec::new(),
        };
        let results = FrameResults { size, detections: vec![found], ..FrameResults::default() };
        let read = |results: Option<&FrameResults>, width: u32| {
            let jpeg = jpeg(&frame, results, width, 95).unwrap();
            image::load_from_memory(&jpeg).unwrap().into_rgb8()
        };
        assert_eq!(read(None, 4000).dimensions(), (1600, 800), "an image is never enlarged");
        let (plain, drawn) = (read(None, 400), read(Some(&results), 400));
        assert_eq!(plain.dimensions(), (400, 200));
        let difference = |x: u32, y: u32| (0..3).map(|c| plain[(x, y)][c].abs_diff(drawn[(x, y)][c]) as u32).sum::<u32>();
        // In the image, the box is at (200, 40), and 120 pixels wide and high. Its label is above the box.
        for (x, y) in [(200, 100), (319, 100), (260, 40), (260, 159)] {
            assert!(difference(x, y) > 60, "the edge of the box at ({x}, {y}): {}", difference(x, y));
        }
        for (x, y) in [(190, 100), (210, 100), (310, 100), (330, 100), (260, 150), (260, 170)] {
            assert!(difference(x, y) < 20, "next to the edge at ({x}, {y}): {}", difference(x, y));
        }
    }
}
