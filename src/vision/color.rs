//! A row of a frame to red, green and blue in 0..=255, as `f32`. Owns what a format and a colorimetry mean for one row.
//! Knows no scaling, no normalization, no tensors to write.

use crate::frame::format::YuvCoefficients;
use crate::frame::{Frame, MAX_PLANES, PixelFormat, Size};
use crate::tensor::{Bytes, Result};

/// Red, green, blue, and one lane to fill a vector register.
pub(super) type Pixel = [f32; 4];

/// Which source columns to convert.
#[derive(Debug, Clone, Copy)]
pub(super) enum Columns<'a> {
    /// `n` neighbors from this one on.
    From(usize),
    /// These, in this order.
    Listed(&'a [u32]),
}

/// What happens to the pixels after their conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conversion {
    /// Round to whole numbers, half up.
    pub(super) round: bool,
    /// Replace the color by its luma (BT.601 weights, whatever the frame's matrix, as OpenCV does).
    pub(super) gray: bool,
}

/// A picture whose rows can be had as pixels.
pub(super) trait PixelRows {
    /// At least 1x1.
    fn size(&self) -> Size;

    /// Converts `pixels.len()` columns of row `y`.
    fn convert_row(&self, y: usize, columns: Columns<'_>, conversion: Conversion, pixels: &mut [Pixel]);
}

impl PixelRows for Planes {
    fn size(&self) -> Size {
        self.size
    }

    fn convert_row(&self, y: usize, columns: Columns<'_>, conversion: Conversion, pixels: &mut [Pixel]) {
        if conversion.round {
            self.convert::<true>(y, columns, pixels);
        } else {
            self.convert::<false>(y, columns, pixels);
        }
        if conversion.gray && self.format != PixelFormat::Gray8 {
            to_gray(pixels, conversion.round);
        }
    }
}

/// Read leases on the planes of a frame.
pub(super) struct Planes {
    bytes: [Option<Bytes>; MAX_PLANES],
    format: PixelFormat,
    coefficients: YuvCoefficients,
    chroma_phase: (usize, usize),
    size: Size,
    width: usize,
}

impl Planes {
    /// Leases the planes.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::tensor::ErrorKind::Busy) while somebody writes to the frame.
    pub(super) fn lease(frame: &Frame) -> Result<Self> {
        let mut bytes = [const { None }; MAX_PLANES];
        for (slot, plane) in bytes.iter_mut().zip(frame.planes()) {
            *slot = Some(plane.bytes()?);
        }
        let (phase_x, phase_y) = frame.chroma_phase();
        Ok(Self {
            bytes,
            format: frame.format(),
            coefficients: frame.colorimetry().yuv_coefficients(),
            chroma_phase: (phase_x as usize, phase_y as usize),
            size: frame.size(),
            width: frame.size().width as usize,
        })
    }

    fn convert<const ROUND: bool>(&self, y: usize, columns: Columns<'_>, pixels: &mut [Pixel]) {
        let first_row = self.row(0, y, self.width * self.format.pixel_bytes());
        match self.format {
            PixelFormat::Nv12 => self.convert_nv12::<ROUND>(first_row, y, columns, pixels),
            PixelFormat::I420 => self.convert_i420::<ROUND>(first_row, y, columns, pixels),
            PixelFormat::Gray8 => {
                // The range of the caps holds for gray too: luma without chroma.
                let (black, factor) = (self.coefficients.y_offset, self.coefficients.y);
                let value = |gray: u8| {
                    let value = ((f32::from(gray) - black) * factor).clamp(0.0, 255.0);
                    if ROUND { round(value) } else { value }
                };
                convert_packed::<1>(first_row, columns, pixels, |&[gray]| [value(gray); 4]);
            }
            PixelFormat::Rgb => convert_packed::<3>(first_row, columns, pixels, |&[r, g, b]| pixel(r, g, b)),
            PixelFormat::Bgr => convert_packed::<3>(first_row, columns, pixels, |&[b, g, r]| pixel(r, g, b)),
            PixelFormat::Rgbx | PixelFormat::Rgba => convert_packed::<4>(first_row, columns, pixels, |&[r, g, b, _]| pixel(r, g, b)),
            PixelFormat::Bgrx | PixelFormat::Bgra => convert_packed::<4>(first_row, columns, pixels, |&[b, g, r, _]| pixel(r, g, b)),
        }
    }

    fn convert_nv12<const ROUND: bool>(&self, luma: &[u8], y: usize, columns: Columns<'_>, pixels: &mut [Pixel]) {
        let chroma = self.row(1, (y + self.chroma_phase.1) / 2, self.n_chroma_columns() * 2);
        let (pairs, _) = chroma.as_chunks::<2>();
        let matrix = Matrix::new(&self.coefficients);
        self.convert_subsampled::<ROUND>(luma, columns, pixels, matrix, pairs.iter().copied(), |column| pairs[column]);
    }

    fn convert_i420<const ROUND: bool>(&self, luma: &[u8], y: usize, columns: Columns<'_>, pixels: &mut [Pixel]) {
        let chroma_row = (y + self.chroma_phase.1) / 2;
        let n_columns = self.n_chroma_columns();
        let (u, v) = (self.row(1, chroma_row, n_columns), self.row(2, chroma_row, n_columns));
        let matrix = Matrix::new(&self.coefficients);
        let pairs = u.iter().zip(v).map(|(&u, &v)| [u, v]);
        self.convert_subsampled::<ROUND>(luma, columns, pixels, matrix, pairs, |column| [u[column], v[column]]);
    }

    /// `pairs` are U and V of the row from its first sample on, `pair_at` one of them.
    fn convert_subsampled<const ROUND: bool>(
        &self,
        luma: &[u8],
        columns: Columns<'_>,
        pixels: &mut [Pixel],
        matrix: Matrix,
        pairs: impl Iterator<Item = [u8; 2]>,
        pair_at: impl Fn(usize) -> [u8; 2],
    ) {
        let phase = self.chroma_phase.0;
        match columns {
            Columns::Listed(list) => {
                for (pixel, &column) in pixels.iter_mut().zip(list) {
                    let column = column as usize;
                    *pixel = matrix.color::<ROUND>(luma[column], matrix.chroma(pair_at((column + phase) / 2)));
                }
            }
            Columns::From(first) => {
                let mut pairs = pairs.skip((first + phase) / 2);
                // The first pixel may be the right one of its pair.
                let n_alone = ((first + phase) % 2).min(pixels.len());
                let (luma_alone, luma) = luma[first..][..pixels.len()].split_at(n_alone);
                let (pixels_alone, pixels) = pixels.split_at_mut(n_alone);
                if let ([pixel], [y]) = (pixels_alone, luma_alone)
                    && let Some(pair) = pairs.next()
                {
                    *pixel = matrix.color::<ROUND>(*y, matrix.chroma(pair));
                }
                let (pixel_pairs, last_pixel) = pixels.as_chunks_mut::<2>();
                let (luma_pairs, last_luma) = luma.as_chunks::<2>();
                for ((pixels, luma), pair) in pixel_pairs.iter_mut().zip(luma_pairs).zip(&mut pairs) {
                    let chroma = matrix.chroma(pair);
                    *pixels = [matrix.color::<ROUND>(luma[0], chroma), matrix.color::<ROUND>(luma[1], chroma)];
                }
                if let ([pixel], [y], Some(pair)) = (last_pixel, last_luma, pairs.next()) {
                    *pixel = matrix.color::<ROUND>(*y, matrix.chroma(pair));
                }
            }
        }
    }

    fn n_chroma_columns(&self) -> usize {
        (self.width + self.chroma_phase.0).div_ceil(2)
    }

    fn row(&self, plane_idx: usize, row_idx: usize, n_bytes: usize) -> &[u8] {
        let plane = self.bytes[plane_idx].as_ref().expect("a frame has the planes of its format");
        &plane.extent()[row_idx * plane.layout().stride_bytes()[0]..][..n_bytes]
    }
}

fn pixel(r: u8, g: u8, b: u8) -> Pixel {
    [f32::from(r), f32::from(g), f32::from(b), 0.0]
}

fn convert_packed<const N: usize>(row: &[u8], columns: Columns<'_>, pixels: &mut [Pixel], read: impl Fn(&[u8; N]) -> Pixel) {
    let (row, _) = row.as_chunks::<N>();
    match columns {
        Columns::From(first) => {
            for (pixel, bytes) in pixels.iter_mut().zip(&row[first..]) {
                *pixel = read(bytes);
            }
        }
        Columns::Listed(list) => {
            for (pixel, &column) in pixels.iter_mut().zip(list) {
                *pixel = read(&row[column as usize]);
            }
        }
    }
}

/// The YUV coefficients arranged by lane, so that a pixel is a few operations on whole vectors.
#[derive(Clone, Copy)]
struct Matrix {
    y_offset: f32,
    y: f32,
    u: Pixel,
    v: Pixel,
}

impl Matrix {
    fn new(coefficients: &YuvCoefficients) -> Self {
        let &YuvCoefficients { y_offset, y, r_v, g_u, g_v, b_u } = coefficients;
        Self { y_offset, y, u: [0.0, g_u, b_u, 0.0], v: [r_v, g_v, 0.0, 0.0] }
    }

    /// What the chroma adds to each lane.
    #[inline(always)]
    fn chroma(&self, [u, v]: [u8; 2]) -> Pixel {
        let (u, v) = (f32::from(u) - 128.0, f32::from(v) - 128.0);
        std::array::from_fn(|lane| self.u[lane] * u + self.v[lane] * v)
    }

    #[inline(always)]
    fn color<const ROUND: bool>(&self, luma: u8, chroma: Pixel) -> Pixel {
        let y = self.y * (f32::from(luma) - self.y_offset);
        let color: Pixel = std::array::from_fn(|lane| (y + chroma[lane]).clamp(0.0, 255.0));
        if ROUND { color.map(round) } else { color }
    }
}

pub(super) fn to_gray(pixels: &mut [Pixel], rounded: bool) {
    for pixel in pixels.iter_mut() {
        *pixel = [0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]; 4];
    }
    if rounded {
        for pixel in pixels {
            *pixel = pixel.map(round);
        }
    }
}

/// Rounds a value in `0..=255` half up. Truncation after the sum is `floor` there, and needs no call on any processor.
#[inline(always)]
fn round(value: f32) -> f32 {
    (value + 0.5) as i32 as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Colorimetry, PixelRect, Size};
    use crate::tensor::Tensor;

    const PLAIN: Conversion = Conversion { round: false, gray: false };

    fn convert(frame: &Frame, y: usize, columns: Columns<'_>, n: usize, conversion: Conversion) -> Vec<[f32; 3]> {
        let mut pixels = vec![[0.0; 4]; n];
        Planes::lease(frame).unwrap().convert_row(y, columns, conversion, &mut pixels);
        pixels.iter().map(|&[r, g, b, _]| [r, g, b]).collect()
    }

    #[test]
    fn interleaved_formats_find_red_green_and_blue() {
        for (format, bytes) in [
            (PixelFormat::Rgb, &[1, 2, 3, 4, 5, 6][..]),
            (PixelFormat::Bgr, &[3, 2, 1, 6, 5, 4]),
            (PixelFormat::Rgbx, &[1, 2, 3, 99, 4, 5, 6, 99]),
            (PixelFormat::Rgba, &[1, 2, 3, 99, 4, 5, 6, 99]),
            (PixelFormat::Bgrx, &[3, 2, 1, 99, 6, 5, 4, 99]),
            (PixelFormat::Bgra, &[3, 2, 1, 99, 6, 5, 4, 99]),
        ] {
            let frame = Frame::from_packed(format, Size::new(2, 1), bytes).unwrap();
            let [left, right] = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
            assert_eq!(convert(&frame, 0, Columns::From(0), 2, PLAIN), [left, right], "{format}");
            assert_eq!(convert(&frame, 0, Columns::From(1), 1, PLAIN), [right], "{format}");
            assert_eq!(convert(&frame, 0, Columns::Listed(&[1, 0, 0]), 3, PLAIN), [right, left, left], "{format}");
        }
    }

    #[test]
    fn known_colors_come_out_of_limited_range_yuv() {
        // BT.601 limited: black, white, and the red of (81, 90, 240).
        for (yuv, rgb) in [([16_u8, 128, 128], [0.0, 0.0, 0.0]), ([235, 128, 128], [255.0; 3]), ([81, 90, 240], [254.0, 0.0, 0.0])] {
            let luma = Tensor::from_slice([1, 1], &[yuv[0]]).unwrap();
            let chroma = Tensor::from_slice([1, 1, 2], &yuv[1..]).unwrap();
            let frame = Frame::from_planes(PixelFormat::Nv12, Size::new(1, 1), &[luma, chroma], Colorimetry::default()).unwrap();
            assert_eq!(convert(&frame, 0, Columns::From(0), 1, Conversion { round: true, gray: false }), [rgb], "{yuv:?}");
        }
    }

    #[test]
    fn chroma_is_shared_by_the_pairs_of_the_whole_frame_also_in_a_region() {
        let luma = Tensor::from_slice([2, 5], &[100_u8; 10]).unwrap();
        let u = Tensor::from_slice([1, 3], &[128_u8; 3]).unwrap();
        let v = Tensor::from_slice([1, 3], &[128_u8, 138, 148]).unwrap();
        let frame = Frame::from_planes(PixelFormat::I420, Size::new(5, 2), &[luma, u, v], Colorimetry::default()).unwrap();
        let reds = |frame: &Frame, columns: Columns<'_>, n| {
            convert(frame, 1, columns, n, PLAIN).iter().map(|pixel| pixel[0].round() as i32).collect::<Vec<_>>()
        };
        assert_eq!(reds(&frame, Columns::From(0), 5), [98, 98, 114, 114, 130]);
        let region = frame.region(PixelRect { x: 1, y: 0, width: 4, height: 2 }).unwrap();
        assert_eq!(reds(&region, Columns::From(0), 4), [98, 114, 114, 130]);
        assert_eq!(reds(&region, Columns::From(1), 2), [114, 114]);
        assert_eq!(reds(&region, Columns::From(2), 2), [114, 130]);
        assert_eq!(reds(&region, Columns::Listed(&[0, 3]), 2), [98, 130]);
    }

    #[test]
    fn halves_are_rounded_up() {
        assert_eq!([0.0, 0.49, 0.5, 1.5, 2.5, 254.5, 255.0].map(round), [0.0, 0.0, 1.0, 2.0, 3.0, 255.0, 255.0]);
    }

    #[test]
    fn gray_weighs_the_colors_and_leaves_gray_pictures_alone() {
        let gray = Conversion { round: false, gray: true };
        let frame = Frame::from_packed(PixelFormat::Bgr, Size::new(1, 1), &[10, 100, 200]).unwrap();
        let luma = 0.299 * 200.0 + 0.587 * 100.0 + 0.114 * 10.0;
        assert!((convert(&frame, 0, Columns::From(0), 1, gray)[0][0] - luma).abs() < 1e-4);
        assert_eq!(convert(&frame, 0, Columns::From(0), 1, Conversion { round: true, gray: true })[0][0], 120.0);
        let frame = Frame::from_packed(PixelFormat::Gray8, Size::new(1, 1), &[201]).unwrap();
        assert_eq!(convert(&frame, 0, Columns::From(0), 1, gray)[0][0], 201.0);
    }
}
