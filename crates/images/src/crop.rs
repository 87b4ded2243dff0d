//! Cuts regions out of frames, as RGB images, and encodes them as JPEG.

use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder, RgbImage};
use roiflow_tensor::{ElementType, Result, Tensor};
use roiflow_vision::{InputLayout, Preprocess, Scratch};

use crate::frame::{Frame, PixelRect, Size};

/// Maximum length of an image's longer side in pixels. Larger regions are scaled down, so an image takes at most 3 MiB.
pub const MAX_SIDE: u32 = 1024;

/// Copies a region of a frame of any format. The image has the size of the region, or less: its longer side is at most [`MAX_SIDE`].
///
/// # Errors
/// Returns an error if the region is not inside the frame, or the frame cannot be read.
pub fn cut(frame: &Frame, region: PixelRect, scratch: &mut Scratch) -> Result<RgbImage> {
    cut_smaller(frame, region, MAX_SIDE, scratch)
}

/// Copies a region as [`cut`] does. The longer side of the image is at most `max_side`, which is at most [`MAX_SIDE`].
///
/// # Errors
/// Returns the errors of [`cut`].
pub fn cut_smaller(frame: &Frame, region: PixelRect, max_side: u32, scratch: &mut Scratch) -> Result<RgbImage> {
    let size = reduced(Size::new(region.width, region.height), max_side.clamp(1, MAX_SIDE));
    let region = frame.region(region)?;
    let image = Tensor::new(ElementType::U8, [1, size.height as usize, size.width as usize, 3])?;
    let preprocess = Preprocess { layout: InputLayout::Nhwc, antialias: true, ..Preprocess::default() };
    preprocess.fill(&region, &mut image.bytes_mut()?, 0, scratch)?;
    let bytes = image.bytes()?.extent().to_vec();
    Ok(RgbImage::from_raw(size.width, size.height, bytes).expect("the tensor has three bytes for each pixel"))
}

fn reduced(size: Size, max_side: u32) -> Size {
    let longer = size.width.max(size.height);
    if longer <= max_side {
        return size;
    }
    let side = |side: u32| (u64::from(side) * u64::from(max_side) / u64::from(longer)).max(1) as u32;
    Size::new(side(size.width), side(size.height))
}

/// Encodes an image as JPEG. `quality` is 1 to 100.
///
/// # Errors
/// Returns the error of the encoder. Images from [`cut`] cause no error.
pub fn jpeg(image: &RgbImage, quality: u8) -> image::ImageResult<Vec<u8>> {
    let mut bytes = Vec::new();
    let encoder = JpegEncoder::new_with_quality(&mut bytes, quality);
    encoder.write_image(image.as_raw(), image.width(), image.height(), ExtendedColorType::Rgb8)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::PixelFormat;

    fn frame(size: Size) -> Frame {
        let pixels: Vec<u8> = (0..size.height).flat_map(|y| (0..size.width).flat_map(move |x| [x as u8, y as u8, 7])).collect();
        Frame::from_packed(PixelFormat::Rgb, size, &pixels).unwrap()
    }

    #[test]
    fn region_has_the_pixels_of_the_frame() {
        let region = PixelRect { x: 5, y: 9, width: 31, height: 20 };
        let image = cut(&frame(Size::new(64, 48)), region, &mut Scratch::default()).unwrap();
        assert_eq!(image.dimensions(), (31, 20));
        assert!(image.enumerate_pixels().all(|(x, y, pixel)| pixel.0 == [(5 + x) as u8, (9 + y) as u8, 7]));
    }

    #[test]
    fn large_regions_are_reduced() {
        let size = Size::new(3000, 30);
        let image = cut(&frame(size), PixelRect::whole(size), &mut Scratch::default()).unwrap();
        assert_eq!(image.dimensions(), (1024, 10));
        let image = cut_smaller(&frame(size), PixelRect::whole(size), 256, &mut Scratch::default()).unwrap();
        assert_eq!(image.dimensions(), (256, 2));
    }

    #[test]
    fn jpeg_can_be_decoded() {
        let image = RgbImage::from_pixel(40, 30, image::Rgb([200, 30, 60]));
        let decoded = image::load_from_memory(&jpeg(&image, 90).unwrap()).unwrap().into_rgb8();
        assert_eq!(decoded.dimensions(), (40, 30));
        let near = |(one, other): (&u8, &u8)| one.abs_diff(*other) < 8;
        assert!(decoded.get_pixel(20, 15).0.iter().zip(&[200, 30, 60]).all(near));
    }
}
