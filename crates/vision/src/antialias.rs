//! Triangle filter for antialiased downscaling. The more an image is reduced, the more source samples each output pixel uses.
//!
//! This module computes the source samples and weights of each output pixel, and applies the weights to columns and rows. This module uses
//! no pixel formats and no tensors.

use std::ops::Range;

use super::aligned::Aligned;
use super::color::Colors;
use super::resize::{blocks, n_blocks, split_rows, store_block};
use super::sample::{GROUP, LANES, Picked, Sample};
use super::simd::{Arithmetic, Kernel};

/// Fraction bits of integer weights, as in Pillow's 8-bit resampling. With this number of bits, sums of weighted 8-bit samples fit into 32
/// bits.
const FRACTION_BITS: u32 = 22;

/// The filter taps along one axis, for a range of pixels of the scaled image.
#[derive(Debug, Default)]
pub(super) struct Taps {
    /// Number of taps (source samples with a weight) per pixel. If a pixel needs fewer taps, its remaining taps have weight 0.
    pub(super) n_taps: usize,
    /// Index of the first source sample that each pixel uses.
    firsts: Vec<u32>,
    /// Index of the last source sample that each pixel uses.
    lasts: Vec<u32>,
    /// Weights of the first tap of all pixels, then of the second tap of all pixels, and so on. The pixels are padded to full
    /// groups.
    pub(super) weights: Aligned<f32>,
    /// The same weights as integers with [`FRACTION_BITS`] fraction bits.
    pub(super) integer: Aligned<i32>,
}

impl Taps {
    /// Computes the taps for the pixels `visible` of the input. The image is scaled from `extent` to `scaled` pixels, and the first pixel
    /// of the scaled image is at `offset`.
    pub(super) fn set(&mut self, extent: u32, scaled: u32, visible: Range<usize>, offset: i64) {
        let step = f64::from(extent) / f64::from(scaled);
        let reach = step.max(1.0);
        let per_reach = 1.0 / reach;
        let window = |pixel: usize| {
            let center = ((pixel as i64 - offset) as f64 + 0.5) * step;
            let first = (center - reach + 0.5).max(0.0) as u32;
            let end = ((center + reach + 0.5) as u32).min(extent);
            (center, first, end)
        };
        self.firsts.clear();
        self.lasts.clear();
        let n_filled = visible.len().next_multiple_of(GROUP);
        for pixel in visible.clone() {
            let (_, first, end) = window(pixel);
            self.firsts.push(first);
            self.lasts.push(end - 1);
        }
        let counts = self.firsts.iter().zip(&self.lasts).map(|(first, last)| (last - first) as usize + 1);
        self.n_taps = counts.max().unwrap_or(1);
        self.weights.resize(self.n_taps * n_filled);
        self.integer.resize(self.n_taps * n_filled);
        self.weights.fill(0.0);
        self.integer.fill(0);
        let weight = |center: f64, sample: u32| (1.0 - ((f64::from(sample) - center + 0.5) * per_reach).abs()).max(0.0);
        for (pixel_idx, pixel) in visible.enumerate() {
            let (center, first, end) = window(pixel);
            let sum: f64 = (first..end).map(|sample| weight(center, sample)).sum();
            for (tap_idx, sample) in (first..end).enumerate() {
                let part = weight(center, sample) / sum;
                self.weights[tap_idx * n_filled + pixel_idx] = part as f32;
                self.integer[tap_idx * n_filled + pixel_idx] = (part * f64::from(1_u32 << FRACTION_BITS) + 0.5) as i32;
            }
        }
        self.firsts.resize(n_filled, self.firsts.last().copied().unwrap_or_default());
        self.lasts.resize(n_filled, self.lasts.last().copied().unwrap_or_default());
    }

    /// Returns the number of pixels, padded to full groups.
    pub(super) fn n_filled(&self) -> usize {
        self.firsts.len()
    }

    /// Returns the index of the source sample of tap `tap_idx`, for each pixel. Unused taps repeat the last used sample.
    pub(super) fn samples(&self, tap_idx: usize) -> impl Iterator<Item = u32> + '_ {
        self.firsts.iter().zip(&self.lasts).map(move |(first, last)| (first + tap_idx as u32).min(*last))
    }

    /// Returns the range of source samples that one pixel uses.
    pub(super) fn window(&self, pixel_idx: usize) -> Range<u32> {
        self.firsts[pixel_idx]..self.lasts[pixel_idx] + 1
    }
}

/// Filters one source row horizontally into `C` rows, one per color.
pub(super) struct FilterExact<'a, S, T, const C: usize> {
    pub(super) colors: T,
    pub(super) picked: Picked<'a, S>,
    pub(super) weights: &'a [f32],
    /// The output rows of the colors, concatenated.
    pub(super) rows: &'a mut [f32],
}

impl<S: Sample, T: Colors<C>, const C: usize> Kernel for FilterExact<'_, S, T, C> {
    #[inline(always)]
    fn run(self, arithmetic: impl Arithmetic) {
        let Self { colors, picked, weights, rows } = self;
        let (weights, mut rows) = (blocks(weights), split_rows::<_, C>(rows));
        let n_blocks = n_blocks(&rows);
        for block_idx in 0..n_blocks {
            let mut block = [[0.0; LANES]; C];
            for (tap_idx, weights) in weights.chunks_exact(n_blocks).enumerate() {
                let (samples, weights) = (picked.block(tap_idx, block_idx), &weights[block_idx]);
                for lane in 0..LANES {
                    let color = colors.exact(arithmetic, samples.map(|samples| samples[lane]));
                    for color_idx in 0..C {
                        block[color_idx][lane] += color[color_idx] * weights[lane];
                    }
                }
            }
            store_block(&mut rows, block_idx, block);
        }
    }
}

/// Like [`FilterExact`], but computes with integers. Used for 8-bit pixels.
pub(super) struct FilterInteger<'a, S, T, const C: usize> {
    pub(super) colors: T,
    pub(super) picked: Picked<'a, S>,
    pub(super) weights: &'a [i32],
    pub(super) rows: &'a mut [u16],
}

impl<S: Sample, T: Colors<C>, const C: usize> Kernel for FilterInteger<'_, S, T, C> {
    #[inline(always)]
    fn run(self, _: impl Arithmetic) {
        let Self { colors, picked, weights, rows } = self;
        let (weights, mut rows) = (blocks(weights), split_rows::<_, C>(rows));
        let n_blocks = n_blocks(&rows);
        for block_idx in 0..n_blocks {
            let mut block = [[0; LANES]; C];
            for (tap_idx, weights) in weights.chunks_exact(n_blocks).enumerate() {
                let (samples, weights) = (picked.block(tap_idx, block_idx), &weights[block_idx]);
                for lane in 0..LANES {
                    let color = colors.integer(samples.map(|samples| samples[lane]));
                    for color_idx in 0..C {
                        block[color_idx][lane] += i32::from(color[color_idx]) * weights[lane];
                    }
                }
            }
            store_block(&mut rows, block_idx, block.map(|sums| sums.map(|sum| integer_pixel(sum) as u16)));
        }
    }
}

/// Rows in a ring buffer, with the weights of one output line.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingRows<'a, T, W> {
    /// Rows of equal length, concatenated. After the last row, the ring continues with the first row.
    pub(super) ring: &'a [T],
    pub(super) row_len: usize,
    /// Index of the first row in the ring.
    pub(super) first: usize,
    pub(super) n_rows: usize,
    /// Weights of the rows: row `n` has the weight at `line + n * n_lines`.
    pub(super) weights: &'a [W],
    pub(super) line: usize,
    pub(super) n_lines: usize,
}

impl<'a, T, W: Copy> RingRows<'a, T, W> {
    /// Returns block `block_idx` of each row, with the weight of the row.
    #[inline(always)]
    fn blocks(&self, block_idx: usize) -> impl Iterator<Item = (&'a [T; LANES], W)> {
        let (row_blocks, n_ring) = (self.row_len / LANES, self.ring.len() / self.row_len);
        let (ring, weights, line, n_lines) = (blocks(self.ring), self.weights, self.line, self.n_lines);
        let mut row = self.first;
        (0..self.n_rows).map(move |tap_idx| {
            let block = &ring[row * row_blocks + block_idx];
            row = if row + 1 == n_ring { 0 } else { row + 1 };
            (block, weights[tap_idx * n_lines + line])
        })
    }
}

/// Filters buffered rows vertically into one line.
pub(super) struct FilterRowsExact<'a> {
    pub(super) rows: RingRows<'a, f32, f32>,
    pub(super) target: &'a mut [f32],
}

impl Kernel for FilterRowsExact<'_> {
    #[inline(always)]
    fn run(self, _: impl Arithmetic) {
        for (block_idx, target) in self.target.as_chunks_mut().0.iter_mut().enumerate() {
            let mut sums = [0.0; LANES];
            for (block, weight) in self.rows.blocks(block_idx) {
                for lane in 0..LANES {
                    sums[lane] += block[lane] * weight;
                }
            }
            *target = sums;
        }
    }
}

/// Like [`FilterRowsExact`], but computes with integers.
pub(super) struct FilterRowsInteger<'a> {
    pub(super) rows: RingRows<'a, u16, i32>,
    pub(super) target: &'a mut [f32],
}

impl Kernel for FilterRowsInteger<'_> {
    #[inline(always)]
    fn run(self, _: impl Arithmetic) {
        for (block_idx, target) in self.target.as_chunks_mut().0.iter_mut().enumerate() {
            let mut sums = [0; LANES];
            for (block, weight) in self.rows.blocks(block_idx) {
                for lane in 0..LANES {
                    sums[lane] += i32::from(block[lane]) * weight;
                }
            }
            *target = sums.map(|sum| integer_pixel(sum) as f32);
        }
    }
}

/// Rounds a fixed-point sum half up and clamps it to a pixel value.
#[inline(always)]
fn integer_pixel(sum: i32) -> i32 {
    ((sum + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS).clamp(0, 255)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(taps: &Taps, pixel_idx: usize) -> Vec<f32> {
        (0..taps.n_taps).map(|tap_idx| taps.weights[tap_idx * taps.n_filled() + pixel_idx]).collect()
    }

    #[test]
    fn filter_is_a_triangle_cut_at_the_edges() {
        let mut taps = Taps::default();
        taps.set(8, 2, 0..2, 0);
        // The filters of the two pixels have their centers at 2 and 6, and reach 4 to each side. The samples are at 0.5, 1.5, and
        // so on.
        let expected: Vec<f32> = [2.5, 3.5, 3.5, 2.5, 1.5, 0.5].map(|weight| weight / 14.0).to_vec();
        assert_eq!((taps.window(0), taps.window(1)), (0..6, 2..8));
        let close = |got: &[f32], expected: &[f32]| got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-7);
        assert!(close(&weights(&taps, 0), &expected), "{:?}", weights(&taps, 0));
        assert!(close(&weights(&taps, 1), &expected.iter().copied().rev().collect::<Vec<f32>>()));
        assert_eq!(taps.samples(5).take(2).collect::<Vec<_>>(), [5, 7]);
    }

    #[test]
    fn filter_is_bilinear_without_downscaling() {
        let mut taps = Taps::default();
        taps.set(5, 5, 0..5, 0);
        for pixel_idx in 0..5 {
            let of_itself: f32 = taps.window(pixel_idx).zip(weights(&taps, pixel_idx)).map(|(sample, weight)| sample as f32 * weight).sum();
            assert_eq!(of_itself, pixel_idx as f32);
        }
        taps.set(2, 4, 0..4, 0);
        let interpolated: Vec<f32> =
            (0..4).map(|pixel_idx| taps.window(pixel_idx).zip(weights(&taps, pixel_idx)).map(|(s, w)| s as f32 * w).sum()).collect();
        assert_eq!(interpolated, [0.0, 0.25, 0.75, 1.0]);
    }

    #[test]
    fn integer_weights_keep_white_pixels_white() {
        let mut taps = Taps::default();
        for (extent, scaled) in [(7, 3), (1000, 7), (1080, 416), (7680, 1), (3, 224)] {
            taps.set(extent, scaled, 0..scaled as usize, 0);
            for pixel_idx in 0..scaled as usize {
                let sum: i32 = (0..taps.n_taps).map(|tap_idx| 255 * taps.integer[tap_idx * taps.n_filled() + pixel_idx]).sum();
                assert_eq!(integer_pixel(sum), 255, "{extent} to {scaled}, pixel {pixel_idx}");
            }
        }
    }
}
