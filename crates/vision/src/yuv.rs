//! Fast conversion and horizontal interpolation of 8-bit luma and chroma. Samples are loaded into registers, and converted and interpolated
//! in these registers. This module handles no other formats.

use super::aligned::Aligned;
use super::color::{ColorModel, YuvFactors};
use super::image::{Image, Rows, SampleType};
use super::resize::{Columns, blocks};
use super::sample::{LANES, reaching, window_bytes};
use super::simd::{Simd, SimdBackend};

/// Interpolation plan for 8-bit luma and chroma; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct YuvBytes {
    factors: YuvFactors,
    windows: YuvWindows,
    /// Buffer for the byte offsets of the two samples of each column, for one component.
    positions: Vec<[usize; 2]>,
    /// Copies of rows with padding, which are used if loads would exceed the end of a row.
    padded: [Vec<u8>; 4],
}

/// `R` luma rows that share a row of chroma.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "used on x86-64 only"))]
pub(super) struct YuvSource<'a, const R: usize> {
    pub(super) lumas: [&'a [u8]; R],
    pub(super) u: &'a [u8],
    pub(super) v: &'a [u8],
}

impl YuvBytes {
    /// Prepares the plan for these columns. Returns false if the image or the SIMD backend is not supported, or if samples are too far
    /// apart.
    pub(super) fn set(&mut self, image: &Image, columns: &Columns, simd: Simd) -> bool {
        let (ColorModel::Yuv(yuv), SampleType::U8, SimdBackend::Avx512) = (image.color_model(), image.sample(), simd.backend()) else {
            return false;
        };
        self.factors = yuv.of_bytes();
        debug_assert_eq!(image.spacing(1), image.spacing(2));
        let YuvWindows { luma, chroma, .. } = &mut self.windows;
        let mut span_max = 0;
        for (component_idx, windows) in [(0, luma), (1, chroma)] {
            let spacing = image.spacing(component_idx);
            self.positions.clear();
            self.positions.extend(columns.pairs.iter().map(|pair| pair.map(|column| spacing.position(column))));
            span_max = span_max.max(windows.set(&self.positions));
        }
        let window_bytes = window_bytes(span_max);
        self.windows.window_bytes = window_bytes.unwrap_or_default();
        window_bytes.is_some()
    }

    /// Converts and interpolates `R` rows from row `y` on, which share chroma samples. Each of these rows results in one row per
    /// color.
    pub(super) fn interpolate<const R: usize>(
        &mut self,
        source: Rows<'_>,
        y: u32,
        weights: &[f32],
        rows: [[&mut [[f32; LANES]]; 3]; R],
        simd: Simd,
    ) {
        let [of_u, of_v, of_lumas @ ..] = &mut self.padded;
        let window_bytes = self.windows.window_bytes;
        let reach_bytes = |windows: &SampleWindows| windows.begins.last().map_or(0, |begin| begin + window_bytes);
        let (of_luma, of_chroma) = (reach_bytes(&self.windows.luma), reach_bytes(&self.windows.chroma));
        let mut lumas = [&[][..]; R];
        for ((luma, padded), row) in lumas.iter_mut().zip(of_lumas).zip(y..) {
            *luma = reaching(source.row(0, row), of_luma, padded);
        }
        let u = reaching(source.row(1, y), of_chroma, of_u);
        let v = reaching(source.row(2, y), of_chroma, of_v);
        simd.interpolate_yuv(&self.factors, &self.windows, blocks(weights), YuvSource { lumas, u, v }, rows);
    }
}

/// Byte windows for permute instructions: one window contains all samples of a block of [`LANES`] columns.
#[derive(Debug, Default)]
pub(super) struct YuvWindows {
    /// Length of a window: 64 or 128 bytes.
    pub(super) window_bytes: usize,
    pub(super) luma: SampleWindows,
    /// Windows for U and V.
    pub(super) chroma: SampleWindows,
}

/// Windows of one component.
#[derive(Debug, Default)]
pub(super) struct SampleWindows {
    /// For each block, the offset of its window in the row.
    begins: Vec<usize>,
    /// For each block, the offsets within the window: first those of the first sample of each column, then those of the second sample.
    /// Each offset is in the lowest of four bytes.
    controls: Aligned<u8>,
}

impl SampleWindows {
    /// Prepares the windows for these positions. Returns the minimum window length.
    fn set(&mut self, positions: &[[usize; 2]]) -> usize {
        const N_BYTES: usize = 4 * LANES;
        self.begins.clear();
        self.controls.resize(2 * 4 * positions.len());
        let mut span_max = 0;
        for (columns, controls) in positions.as_chunks::<LANES>().0.iter().zip(self.controls.as_chunks_mut::<{ 2 * N_BYTES }>().0) {
            let begin = columns[0][0];
            self.begins.push(begin);
            span_max = span_max.max(columns[LANES - 1][1] + 1 - begin);
            for (tap_idx, controls) in controls.as_chunks_mut::<N_BYTES>().0.iter_mut().enumerate() {
                for (column, control) in columns.iter().zip(controls.as_chunks_mut().0) {
                    *control = [(column[tap_idx] - begin) as u8, 0, 0, 0];
                }
            }
        }
        span_max
    }

    /// Returns, for each block, the offset of its window and the permute controls of the first and the second samples.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "used on x86-64 only"))]
    pub(super) fn blocks(&self) -> impl Iterator<Item = (usize, &[[u8; 4 * LANES]; 2])> {
        self.begins.iter().copied().zip(self.controls.as_chunks().0.as_chunks().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rounding;
    use crate::color::Colors;
    use crate::frame::{Colorimetry, Frame, PixelFormat, PixelRect, Size};
    use crate::resize::{Axis, split_rows};
    use crate::simd::Separate;
    use crate::tensor::Tensor;

    const WIDTH: u32 = 200;

    fn columns(n_columns: u32, extent: u32) -> Columns {
        let mut columns = Columns::default();
        columns.set(&Axis::new(extent, n_columns, Rounding::Exact), 0..n_columns as usize, 0, false);
        columns
    }

    /// Returns a region that starts and ends between two columns that share a chroma sample.
    fn region(format: PixelFormat) -> Frame {
        let size = Size::new(WIDTH, 6);
        let plane = |plane_idx: usize| {
            let shape = format.plane_shape(plane_idx, size);
            let n_bytes = shape.iter().product::<usize>();
            let bytes: Vec<u8> = (0..n_bytes).map(|idx| ((idx + 31 * plane_idx) * 7919 % 251) as u8).collect();
            Tensor::from_slice(shape, &bytes).unwrap()
        };
        let planes: Vec<Tensor> = (0..format.n_planes()).map(plane).collect();
        let frame = Frame::from_planes(format, size, &planes, Colorimetry::default()).unwrap();
        frame.region(PixelRect { x: 1, y: 1, width: WIDTH - 2, height: 5 }).unwrap()
    }

    #[test]
    fn rows_match_the_reference() {
        let mut n_compared = 0;
        for format in [PixelFormat::Nv12, PixelFormat::I420, PixelFormat::Y42b, PixelFormat::Y444, PixelFormat::Yuy2, PixelFormat::Ayuv] {
            let frame = region(format);
            let image = Image::of_frame(&frame).unwrap();
            let (ColorModel::Yuv(yuv), rows) = (image.color_model(), image.rows()) else { panic!("expected a YUV format, got {format}") };
            // The scales range from six columns per source pixel to more than seven source pixels per column.
            for columns in [1200, 223, 149, 97, 50, 27].map(|n_columns| columns(n_columns, WIDTH - 2)) {
                let (mut of_bytes, n_columns) = (YuvBytes::default(), columns.pairs.len());
                for simd in SimdBackend::ALL.into_iter().filter_map(Simd::of) {
                    if !of_bytes.set(&image, &columns, simd) {
                        // Samples of the formats with more chroma are farther apart, most of all those of four bytes per pixel.
                        let n_far = if format == PixelFormat::Ayuv { 100 } else { 60 };
                        let is_far = columns.n_visible < n_far && !format.is_subsampled();
                        assert!(simd.backend() != SimdBackend::Avx512 || is_far, "{format} {}", columns.n_visible);
                        continue;
                    }
                    let (mut one, mut next) = (vec![0.0; 3 * n_columns], vec![0.0; 3 * n_columns]);
                    for y in 0..5 {
                        let is_of_two = y + 1 < 5 && rows.shares_with_next(y);
                        if is_of_two {
                            let targets = [split_rows(&mut one), split_rows(&mut next)];
                            of_bytes.interpolate(rows, y, &columns.weights, targets, simd);
                        } else {
                            of_bytes.interpolate(rows, y, &columns.weights, [split_rows(&mut one)], simd);
                        }
                        for (row, got) in (y..).zip([&one, &next]).take(1 + usize::from(is_of_two)) {
                            for column in 0..columns.n_visible {
                                let color = |x: u32| yuv.exact(Separate, [0, 1, 2].map(|component| rows.sample::<1>(component, x, row)));
                                let [first, second] = columns.pairs[column].map(color);
                                for color in 0..3 {
                                    let interpolated = first[color] + (second[color] - first[color]) * columns.weights[column];
                                    let case =
                                        format!("{format}, {} columns, row {row}, column {column}, color {color}", columns.n_visible);
                                    assert_eq!(got[color * n_columns + column].to_bits(), interpolated.to_bits(), "{case}");
                                }
                            }
                            n_compared += 1;
                        }
                    }
                }
            }
        }
        if SimdBackend::Avx512.is_available() {
            assert!(n_compared >= 60, "{n_compared}");
        } else {
            eprintln!("skipped: this processor has no AVX-512");
        }
    }

    #[test]
    fn samples_too_far_apart_are_not_supported() {
        let frame = region(PixelFormat::Nv12);
        let image = Image::of_frame(&frame).unwrap();
        let can_be_set = |n_columns| {
            let set = |simd| YuvBytes::default().set(&image, &columns(n_columns, WIDTH - 2), simd);
            Simd::of(SimdBackend::Avx512).map(set)
        };
        assert_ne!(can_be_set(27), Some(false));
        assert_ne!(can_be_set(20), Some(true));
        assert!(!YuvBytes::default().set(&image, &columns(27, WIDTH - 2), Simd::of(SimdBackend::Portable).unwrap()));
    }

    /// Tests only the plan, so that the test also runs without AVX-512.
    #[test]
    fn windows_have_both_samples_of_each_column() {
        for step in [1, 2] {
            for columns in [1200, 223, 149, 97, 50, 27].map(|n_columns| columns(n_columns, WIDTH)) {
                let positions: Vec<_> = columns.pairs.iter().map(|pair| pair.map(|column| column as usize / 2 * step)).collect();
                let mut windows = SampleWindows::default();
                let span_max = windows.set(&positions);
                let mut n_blocks = 0;
                for (block, (begin, controls)) in positions.as_chunks::<LANES>().0.iter().zip(windows.blocks()) {
                    for (tap_idx, controls) in controls.iter().enumerate() {
                        let picked = controls.as_chunks::<4>().0.iter().map(|control| begin + usize::from(control[0]));
                        assert!(picked.eq(block.iter().map(|pair| pair[tap_idx])), "{} columns", columns.n_visible);
                        assert!(controls.iter().all(|at| usize::from(*at) < span_max));
                    }
                    n_blocks += 1;
                }
                assert_eq!(n_blocks * LANES, positions.len());
            }
        }
    }
}
