//! Motion gate: detects whether a frame differs from a reference frame, by comparing luma samples.
//!
//! The gate takes at most 128 x 72 evenly spaced samples. A sample is the mean of 4 x 2 pixels, which reduces noise. A sample has changed
//! if it differs by more than [`TOLERANCE`]. The fraction of changed samples estimates the changed fraction of the area. Objects smaller
//! than the sample spacing (15 pixels at 1080p) can be missed.
//!
//! Luma is the first plane of YUV and gray formats, scaled to 8 bits. For RGB formats, luma is computed with the weights of BT.601
//! (0.299 R + 0.587 G + 0.114 B).

use crate::frame::{Frame, PixelFormat, Size};
use crate::tensor::Result;

/// Maximum number of samples per row and per column.
const N_COLUMNS: usize = 128;
const N_ROWS: usize = 72;
/// Size of a sample in pixels.
const SAMPLE_WIDTH: usize = 4;
const SAMPLE_HEIGHT: usize = 2;
const SAMPLE_PIXELS: u32 = (SAMPLE_WIDTH * SAMPLE_HEIGHT) as u32;
/// A sample has changed if its luma, 0 to 255, differs by more than this value.
pub const TOLERANCE: u8 = 12;

/// The motion gate; see the module.
#[derive(Debug, Default)]
pub struct MotionGate {
    /// Format and size of the reference frame; `None` if there is no reference frame.
    reference_kind: Option<(PixelFormat, Size)>,
    /// Samples of the reference frame, row by row.
    reference: Vec<u8>,
    /// Samples of the current frame.
    latest: Vec<u8>,
}

impl MotionGate {
    /// Returns whether at least the fraction `share` of the frame's area has changed since the reference frame. `share` is 0 to 1.
    ///
    /// If the result is true, this frame becomes the reference frame. The result is also true if there is no reference frame, or if the
    /// size or format of the frame has changed.
    ///
    /// # Errors
    /// Returns an error if the frame's memory cannot be read.
    pub fn passes(&mut self, frame: &Frame, share: f32) -> Result<bool> {
        sample(frame, &mut self.latest)?;
        let reference_kind = Some((frame.format(), frame.size()));
        if self.reference_kind == reference_kind && changed_share(&self.reference, &self.latest) < share {
            return Ok(false);
        }
        self.reference_kind = reference_kind;
        std::mem::swap(&mut self.reference, &mut self.latest);
        Ok(true)
    }

    /// Removes the reference frame: the next frame counts as changed.
    pub fn reset(&mut self) {
        self.reference_kind = None;
    }
}

/// Fraction of changed samples; 0 if there are no samples.
fn changed_share(reference: &[u8], latest: &[u8]) -> f32 {
    let n_changed = reference.iter().zip(latest).filter(|(was, is)| was.abs_diff(**is) > TOLERANCE).count();
    n_changed as f32 / latest.len().max(1) as f32
}

/// Replaces `samples` with the samples of a frame.
fn sample(frame: &Frame, samples: &mut Vec<u8>) -> Result<()> {
    samples.clear();
    let Some(plane) = frame.planes().next() else { return Ok(()) };
    let bytes = plane.bytes()?;
    let row_stride_bytes = bytes.layout().stride_bytes()[0];
    let plane = Plane { bytes: bytes.extent(), row_stride_bytes, size: frame.size() };
    let n_low_bits = frame.format().n_low_bits() + frame.format().depth() - 8;
    let at = frame.format().luma_offset();
    match (frame.format().rgb_offsets(), frame.format().pixel_bytes()) {
        (None, 2) if frame.format().depth() > 8 => {
            plane.sample(samples, |luma| u32::from(u16::from_le_bytes(*luma) >> n_low_bits).min(255))
        }
        (None, 2) => plane.sample::<2>(samples, |pixel| u32::from(pixel[at])),
        (None, 4) => plane.sample::<4>(samples, |pixel| u32::from(pixel[at])),
        (None, _) if frame.format().is_rgb() => return sample_planes(frame, samples),
        (None, _) => plane.sample(samples, |[luma]| u32::from(*luma)),
        (Some(offsets), 3) => plane.sample::<3>(samples, |pixel| luma_of(pixel, offsets)),
        (Some(offsets), _) => plane.sample::<4>(samples, |pixel| luma_of(pixel, offsets)),
    }
    Ok(())
}

/// Like [`sample`], for formats with a plane for each color.
fn sample_planes(frame: &Frame, samples: &mut Vec<u8>) -> Result<()> {
    let mut colors = [vec![], vec![], vec![]];
    for (place, color) in frame.format().components().iter().zip(&mut colors) {
        let Some(plane) = frame.planes().nth(place.plane_idx) else { return Ok(()) };
        let bytes = plane.bytes()?;
        let row_stride_bytes = bytes.layout().stride_bytes()[0];
        let plane = Plane { bytes: bytes.extent(), row_stride_bytes, size: frame.size() };
        plane.sample(color, |[value]| u32::from(*value));
    }
    let [red, green, blue] = &colors;
    samples.extend(red.iter().zip(green).zip(blue).map(|((red, green), blue)| luma_of(&[*red, *green, *blue], [0, 1, 2]) as u8));
    Ok(())
}

pub(super) fn luma_of(pixel: &[u8], rgb_offsets: [usize; 3]) -> u32 {
    let [red, green, blue] = rgb_offsets.map(|offset| u32::from(pixel[offset]));
    (77 * red + 150 * green + 29 * blue) >> 8
}

/// The luma plane, or the plane of an RGB format.
struct Plane<'a> {
    bytes: &'a [u8],
    row_stride_bytes: usize,
    size: Size,
}

impl Plane<'_> {
    /// Appends the samples of the plane. `N` is the number of bytes per pixel.
    fn sample<const N: usize>(&self, samples: &mut Vec<u8>, luma: impl Fn(&[u8; N]) -> u32) {
        let (width, height) = (self.size.width as usize, self.size.height as usize);
        let (sample_width, sample_height) = (SAMPLE_WIDTH.min(width), SAMPLE_HEIGHT.min(height));
        let (n_columns, n_rows) = (N_COLUMNS.min(width / sample_width), N_ROWS.min(height / sample_height));
        let mut begins = [0; N_COLUMNS];
        for (column_idx, begin) in begins.iter_mut().enumerate().take(n_columns) {
            *begin = begin_of(column_idx, n_columns, width, sample_width) * N;
        }
        let (sample_bytes, n_pixels) = (sample_width * N, (sample_width * sample_height) as u32);
        for row_idx in 0..n_rows {
            let y = begin_of(row_idx, n_rows, height, sample_height);
            let line = |y: usize| &self.bytes[y * self.row_stride_bytes..][..width * N];
            let lines = [line(y), line(y + sample_height - 1)];
            for &begin in &begins[..n_columns] {
                let sum_of = |line: &[u8]| line[begin..begin + sample_bytes].as_chunks::<N>().0.iter().map(&luma).sum::<u32>();
                let sum = lines.iter().take(sample_height).map(|line| sum_of(line)).sum::<u32>();
                // Dividing by a constant is faster, because it compiles to a multiplication. Only tiny frames have smaller samples.
                let mean = if n_pixels == SAMPLE_PIXELS { sum / SAMPLE_PIXELS } else { sum / n_pixels };
                samples.push(mean as u8);
            }
        }
    }
}

/// First pixel of a sample along one axis. Samples are centered in equal parts of the axis.
fn begin_of(sample_idx: usize, n_samples: usize, extent: usize, sample_extent: usize) -> usize {
    let middle = (2 * sample_idx + 1) * extent / (2 * n_samples);
    middle.saturating_sub(sample_extent / 2).min(extent - sample_extent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Colorimetry, PixelRect, PlanePlace};
    use crate::tensor::Memory;

    /// A gray frame with a rectangle of another luma. Rows have padding.
    fn frame(format: PixelFormat, size: Size, luma: u8, rect: PixelRect, other: u8) -> Frame {
        let (width, height) = (size.width as usize, size.height as usize);
        let row = (width * format.pixel_bytes()).next_multiple_of(16) + 32;
        let chroma = row * height;
        let mut bytes = vec![128; row * height + 2 * chroma];
        for y in 0..height {
            for x in 0..width {
                let is_inside = |at: usize, begin: u32, extent: u32| at >= begin as usize && at < (begin + extent) as usize;
                let value = if is_inside(x, rect.x, rect.width) && is_inside(y, rect.y, rect.height) { other } else { luma };
                let pixel = &mut bytes[y * row + x * format.pixel_bytes()..][..format.pixel_bytes()];
                match format {
                    PixelFormat::I420Ten | PixelFormat::I422Ten | PixelFormat::Y444Ten => {
                        pixel.copy_from_slice(&(4 * u16::from(value)).to_le_bytes())
                    }
                    _ => pixel.fill(value),
                }
            }
        }
        let places: Vec<PlanePlace> = (0..format.n_planes())
            .map(|plane_idx| PlanePlace { offset_bytes: [0, row * height, row * height + chroma][plane_idx], row_stride_bytes: row })
            .collect();
        let memory = Memory::zeroed(bytes.len());
        memory.lease_write().unwrap().bytes_mut().copy_from_slice(&bytes);
        Frame::over(&memory, format, size, &places, Colorimetry::default()).unwrap()
    }

    const NOTHING: PixelRect = PixelRect { x: 0, y: 0, width: 0, height: 0 };

    #[test]
    fn changed_fraction_of_samples_matches_the_area() {
        for format in PixelFormat::ALL {
            for (width, height) in [(1920, 1080), (640, 360), (131, 77), (37, 21)] {
                let size = Size::new(width, height);
                let mut gate = MotionGate::default();
                assert!(gate.passes(&frame(format, size, 100, NOTHING, 0), 0.01).unwrap(), "no reference frame");
                // The right half changes: half of the area.
                let half = PixelRect { x: width / 2, y: 0, width: width - width / 2, height };
                let changed = frame(format, size, 100, half, 130);
                assert!(!gate.passes(&changed, 0.6).unwrap(), "{format} {size}");
                assert!(gate.passes(&changed, 0.4).unwrap(), "{format} {size}");
                assert!(!gate.passes(&changed, 0.001).unwrap(), "{format} {size}: equals the reference frame");
                let quarter = PixelRect { x: 0, y: height / 2, width: width / 2, height: height - height / 2 };
                let mut gate = MotionGate::default();
                gate.passes(&frame(format, size, 100, NOTHING, 0), 0.01).unwrap();
                let changed = frame(format, size, 100, quarter, 60);
                assert_eq!([0.35, 0.15].map(|share| gate.passes(&changed, share).unwrap()), [false, true], "{format} {size}");
            }
        }
    }

    #[test]
    fn noise_is_not_motion_but_slow_change_is() {
        let size = Size::new(320, 240);
        let gray = |luma: u8| frame(PixelFormat::Gray8, size, luma, NOTHING, 0);
        let mut gate = MotionGate::default();
        gate.passes(&gray(100), 0.01).unwrap();
        assert!(!gate.passes(&gray(100 + TOLERANCE), 0.01).unwrap() && !gate.passes(&gray(100 - TOLERANCE), 0.01).unwrap());
        // Each frame is compared with the reference frame, not with the previous frame.
        let passed: Vec<u8> = (100..130).filter(|&luma| gate.passes(&gray(luma), 0.01).unwrap()).collect();
        assert_eq!(passed, [113, 126]);
        // Pixels differ by up to twice the tolerance, like the noise of a dark scene.
        let mut random = 1_u64;
        let mut noisy = || {
            let noise = |_| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (100 + (random >> 33) % 49 - 24) as u8
            };
            let bytes: Vec<u8> = (0..320 * 240).map(noise).collect();
            Frame::from_packed(PixelFormat::Gray8, size, &bytes).unwrap()
        };
        let mut gate = MotionGate::default();
        gate.passes(&noisy(), 0.5).unwrap();
        let n_passed = (0..20).filter(|_| gate.passes(&noisy(), 0.2).unwrap()).count();
        assert_eq!(n_passed, 0);
    }

    #[test]
    fn reset_and_changed_format_or_size_pass() {
        let (small, large) = (Size::new(64, 48), Size::new(128, 96));
        let gray = |size| frame(PixelFormat::Gray8, size, 100, NOTHING, 0);
        let mut gate = MotionGate::default();
        let mut passes = |frame: &Frame| gate.passes(frame, 0.01).unwrap();
        assert_eq!(
            [gray(small), gray(small), gray(large), gray(large), gray(small)].map(|frame| passes(&frame)),
            [true, false, true, false, true]
        );
        assert!(passes(&frame(PixelFormat::Nv12, small, 100, NOTHING, 0)), "another format");
        gate.reset();
        assert!(gate.passes(&frame(PixelFormat::Nv12, small, 100, NOTHING, 0), 1.0).unwrap());
        for (width, height) in [(1, 1), (3, 1), (1, 5), (2, 2)] {
            let (size, mut gate) = (Size::new(width, height), MotionGate::default());
            let black = frame(PixelFormat::Bgrx, size, 0, NOTHING, 0);
            assert_eq!([gate.passes(&black, 0.5).unwrap(), gate.passes(&black, 0.5).unwrap()], [true, false], "{size}");
            assert!(gate.passes(&frame(PixelFormat::Bgrx, size, 200, NOTHING, 0), 0.5).unwrap(), "{size}");
        }
    }
}
