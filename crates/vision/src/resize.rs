//! Bilinear interpolation. This module computes the source samples and weights of output pixels, and interpolates source rows
//! horizontally. It uses no pixel formats and no tensors.

use std::ops::Range;

use super::aligned::Aligned;
use super::color::Colors;
use super::preprocess::Rounding;
use super::sample::{GROUP, LANES, Picked, Sample};
use super::simd::{Arithmetic, Kernel};

/// Indexes of two samples, and the weight of the second sample. The interpolated value is `first + (second - first) * weight`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tap {
    pub(super) first: u32,
    pub(super) second: u32,
    /// Weight of the second sample in `0..=1`. If the weight is known to be 0, `second` equals `first`, so that no second sample
    /// is fetched.
    pub(super) weight: f32,
}

/// One axis of an image, before and after scaling.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    extent: u32,
    /// Source samples per output pixel.
    step: f64,
    rounding: Rounding,
}

impl Axis {
    pub(super) fn new(extent: u32, scaled_extent: u32, rounding: Rounding) -> Self {
        Self { extent, step: f64::from(extent) / f64::from(scaled_extent), rounding }
    }

    /// Whether the output pixels together use every source sample, so that none is skipped.
    pub(super) fn takes_all(&self) -> bool {
        self.step < 2.0
    }

    /// Returns the two samples next to the position `(scaled_idx + 0.5) * step - 0.5`, with replicated edges.
    ///
    /// With [`Rounding::U8`], the weight is a multiple of 1/[`WEIGHT_STEPS`], computed from the position in single precision as in OpenCV.
    /// The weight also matters at an edge, where both samples are equal: each of the two products is truncated, so their sum depends on
    /// the weight.
    pub(super) fn tap(&self, scaled_idx: u64) -> Tap {
        let unbounded = (scaled_idx as f64 + 0.5) * self.step - 0.5;
        // Left of the center of the first sample, the result is that sample. All other positions are positive, so truncation equals
        // `floor`.
        let position = unbounded.max(0.0);
        let first = (position as u32).min(self.extent - 1);
        let weight = (position - f64::from(first)) as f32;
        let tap = if first == self.extent - 1 || weight == 0.0 {
            Tap { first, second: first, weight: 0.0 }
        } else {
            Tap { first, second: first + 1, weight }
        };
        match self.rounding {
            Rounding::Exact => tap,
            Rounding::U8 => {
                let position = unbounded as f32;
                let fraction = if tap.first == tap.second { position - position.floor() } else { position - first as f32 };
                let n_steps = f32::from(WEIGHT_STEPS);
                Tap { weight: (fraction * n_steps).round_ties_even() / n_steps, ..tap }
            }
        }
    }
}

/// Number of steps for a weight of 1, if bytes are interpolated without rounding. The product of a byte and a weight, and the sum of two
/// products, are exact in single precision. So integer code and floating-point code give the same bits. The error of a weight is at most
/// 1/32768.
pub(super) const FINE_STEPS: u16 = 1 << 14;

/// For each column of the input, its two source columns and their weights.
#[derive(Debug, Default)]
pub(super) struct Columns {
    /// Number of visible columns. The lists are padded to full groups with copies of the last column.
    pub(super) n_visible: usize,
    /// Indexes of the two source columns of each column.
    pub(super) pairs: Vec<[u32; 2]>,
    /// Weights of the second source columns.
    pub(super) weights: Aligned<f32>,
    /// The same weights, in units of 1/[`WEIGHT_STEPS`].
    pub(super) steps: Aligned<u16>,
    /// Whether any column has a weight other than 0. False if an image is scaled to exactly a third, for example.
    pub(super) is_interpolated: bool,
}

impl Columns {
    /// Computes the source columns and weights for the columns `visible` of an input. The left edge of the scaled image is at column
    /// `offset`. If `in_fine_steps` is true, rounds the weights to multiples of 1/[`FINE_STEPS`].
    pub(super) fn set(&mut self, axis: &Axis, visible: Range<usize>, offset: i64, in_fine_steps: bool) {
        self.n_visible = visible.len();
        let n_filled = self.n_visible.next_multiple_of(GROUP);
        self.weights.resize(n_filled);
        self.steps.resize(n_filled);
        self.pairs.clear();
        for ((column, to_weight), to_steps) in visible.zip(self.weights.iter_mut()).zip(self.steps.iter_mut()) {
            let Tap { first, second, weight } = axis.tap((column as i64 - offset) as u64);
            self.pairs.push([first, second]);
            (*to_weight, *to_steps) = (weight, steps(weight));
        }
        if in_fine_steps {
            for weight in &mut self.weights[..self.n_visible] {
                let n_steps = f32::from(FINE_STEPS);
                *weight = f32::from((*weight * n_steps + 0.5) as u16) / n_steps;
            }
        }
        self.is_interpolated = self.weights[..self.n_visible].iter().any(|weight| *weight != 0.0);
        self.pairs.resize(n_filled, self.pairs.last().copied().unwrap_or_default());
        self.weights[self.n_visible..].fill(0.0);
        self.steps[self.n_visible..].fill(0);
    }
}

/// Interpolates one source row horizontally into `C` rows, one per color.
pub(super) struct InterpolateExact<'a, S, T, const C: usize> {
    pub(super) colors: T,
    pub(super) picked: Picked<'a, S>,
    /// Weights of the columns; `None` if no column interpolates.
    pub(super) weights: Option<&'a [f32]>,
    /// The output rows of the colors, concatenated.
    pub(super) rows: &'a mut [f32],
}

impl<S: Sample, T: Colors<C>, const C: usize> Kernel for InterpolateExact<'_, S, T, C> {
    #[inline(always)]
    fn run(self, arithmetic: impl Arithmetic) {
        let Self { colors, picked, weights, rows } = self;
        let mut rows = split_rows::<_, C>(rows);
        let Some(weights) = weights.map(blocks) else {
            for block_idx in 0..n_blocks(&rows) {
                let samples = picked.block(0, block_idx);
                let mut block = [[0.0; LANES]; C];
                for lane in 0..LANES {
                    let color = colors.exact(arithmetic, samples.map(|samples| samples[lane]));
                    for color_idx in 0..C {
                        block[color_idx][lane] = color[color_idx];
                    }
                }
                store_block(&mut rows, block_idx, block);
            }
            return;
        };
        for block_idx in 0..n_blocks(&rows) {
            let (firsts, seconds) = (picked.block(0, block_idx), picked.block(1, block_idx));
            let weights = &weights[block_idx];
            let mut block = [[0.0; LANES]; C];
            for lane in 0..LANES {
                let first = colors.exact(arithmetic, firsts.map(|samples| samples[lane]));
                let second = colors.exact(arithmetic, seconds.map(|samples| samples[lane]));
                for color_idx in 0..C {
                    block[color_idx][lane] = first[color_idx] + (second[color_idx] - first[color_idx]) * weights[lane];
                }
            }
            store_block(&mut rows, block_idx, block);
        }
    }
}

/// Like [`InterpolateExact`], but interpolates two source rows that differ in the first component only, such as two luma rows that
/// share chroma. The contribution of the shared components is computed once.
pub(super) struct InterpolateTwo<'a, S, T, const C: usize> {
    pub(super) colors: T,
    pub(super) picked: [Picked<'a, S>; 2],
    pub(super) weights: &'a [f32],
    pub(super) rows: [&'a mut [f32]; 2],
}

impl<S: Sample, T: Colors<C>, const C: usize> Kernel for InterpolateTwo<'_, S, T, C> {
    #[inline(always)]
    fn run(self, arithmetic: impl Arithmetic) {
        let Self { colors, picked: [picked, next], weights, rows: [rows, next_rows] } = self;
        let weights = blocks(weights);
        let (mut rows, mut next_rows) = (split_rows::<_, C>(rows), split_rows::<_, C>(next_rows));
        for block_idx in 0..n_blocks(&rows) {
            let (firsts, seconds) = (picked.block(0, block_idx), picked.block(1, block_idx));
            let (next_firsts, next_seconds) = (next.block(0, block_idx), next.block(1, block_idx));
            let weights = &weights[block_idx];
            let (mut block, mut next_block) = ([[0.0; LANES]; C], [[0.0; LANES]; C]);
            // Use one loop per row, because the compiler vectorizes only separate loops. It then removes the computations that
            // both loops have in common.
            for lane in 0..LANES {
                let first = colors.exact(arithmetic, firsts.map(|samples| samples[lane]));
                let second = colors.exact(arithmetic, seconds.map(|samples| samples[lane]));
                for color_idx in 0..C {
                    block[color_idx][lane] = first[color_idx] + (second[color_idx] - first[color_idx]) * weights[lane];
                }
            }
            for lane in 0..LANES {
                let first = colors.exact(arithmetic, [next_firsts[0][lane], firsts[1][lane], firsts[2][lane]]);
                let second = colors.exact(arithmetic, [next_seconds[0][lane], seconds[1][lane], seconds[2][lane]]);
                for color_idx in 0..C {
                    next_block[color_idx][lane] = first[color_idx] + (second[color_idx] - first[color_idx]) * weights[lane];
                }
            }
            store_block(&mut rows, block_idx, block);
            store_block(&mut next_rows, block_idx, next_block);
        }
    }
}

/// Like [`InterpolateExact`], but computes with integers. The sums have seven fraction bits.
pub(super) struct InterpolateInteger<'a, S, T, const C: usize> {
    pub(super) colors: T,
    pub(super) picked: Picked<'a, S>,
    pub(super) steps: &'a [u16],
    pub(super) rows: &'a mut [u16],
}

impl<S: Sample, T: Colors<C>, const C: usize> Kernel for InterpolateInteger<'_, S, T, C> {
    #[inline(always)]
    fn run(self, _: impl Arithmetic) {
        let Self { colors, picked, steps, rows } = self;
        let steps = blocks(steps);
        let mut rows = split_rows::<_, C>(rows);
        for block_idx in 0..n_blocks(&rows) {
            let (firsts, seconds) = (picked.block(0, block_idx), picked.block(1, block_idx));
            let steps = &steps[block_idx];
            let mut block = [[0; LANES]; C];
            for lane in 0..LANES {
                let first = colors.integer(firsts.map(|samples| samples[lane]));
                let second = colors.integer(seconds.map(|samples| samples[lane]));
                for color_idx in 0..C {
                    block[color_idx][lane] = integer_sum(first[color_idx], second[color_idx], steps[lane]);
                }
            }
            store_block(&mut rows, block_idx, block);
        }
    }
}

// The kernels above compute each block into a local array. The compiler then knows the number of columns, and that source and
// destination do not overlap.

#[inline(always)]
pub(super) fn blocks<T>(list: &[T]) -> &[[T; LANES]] {
    list.as_chunks().0
}

/// Splits concatenated rows into `C` rows of equal length.
#[inline(always)]
pub(super) fn split_rows<T, const C: usize>(rows: &mut [T]) -> [&mut [[T; LANES]]; C] {
    let mut rows = rows.chunks_exact_mut(rows.len() / C);
    std::array::from_fn(|_| rows.next().map_or(&mut [][..], |row| row.as_chunks_mut().0))
}

#[inline(always)]
pub(super) fn n_blocks<T, const C: usize>(rows: &[&mut [[T; LANES]]; C]) -> usize {
    rows[0].len()
}

#[inline(always)]
pub(super) fn store_block<T, const C: usize>(rows: &mut [&mut [[T; LANES]]; C], block_idx: usize, block: [[T; LANES]; C]) {
    for (row, block) in rows.iter_mut().zip(block) {
        row[block_idx] = block;
    }
}

// 8-bit images are interpolated with integers as in OpenCV (`HResizeLinear` and `VResizeLinear` in `resize.cpp`). Weights are multiples of
// 1/2048. The sums of a row keep 7 of 11 fraction bits. The products of two rows are truncated to quarters, and their sum is rounded half
// up.

/// Number of steps for a weight of 1, if 8-bit images are interpolated with integers.
const WEIGHT_STEPS: u16 = 2048;

/// Converts a weight to units of 1/[`WEIGHT_STEPS`]. The weight must be a multiple of this unit.
pub(super) fn steps(weight: f32) -> u16 {
    (weight * f32::from(WEIGHT_STEPS)) as u16
}

#[inline(always)]
fn integer_sum(first: u8, second: u8, steps: u16) -> u16 {
    // The result is at most 255 * 2048 / 16, which fits into 16 bits.
    ((u32::from(first) * u32::from(WEIGHT_STEPS - steps) + u32::from(second) * u32::from(steps)) >> 4) as u16
}

/// Combines the sums of two rows into a pixel. `steps` is the weight of the second row in units of 1/[`WEIGHT_STEPS`].
#[inline(always)]
pub(super) fn integer_pixel(first: u16, second: u16, steps: u16) -> u16 {
    let quarters = |sum: u16, steps: u16| ((u32::from(sum) * u32::from(steps)) >> 16) as u16;
    (quarters(first, WEIGHT_STEPS - steps) + quarters(second, steps) + 2) >> 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::Rgb;
    use crate::simd::Separate;

    #[test]
    fn taps_are_at_pixel_centers_and_clamped_at_edges() {
        #[derive(Debug)]
        struct Case(u64, u32, u32, (u32, u32, f32));
        let cases = [
            Case(0, 4, 4, (0, 0, 0.0)),
            Case(3, 4, 4, (3, 3, 0.0)),
            Case(0, 4, 2, (0, 1, 0.5)),
            Case(1, 4, 2, (2, 3, 0.5)),
            Case(0, 2, 4, (0, 0, 0.0)),
            Case(1, 2, 4, (0, 1, 0.25)),
            Case(2, 2, 4, (0, 1, 0.75)),
            Case(3, 2, 4, (1, 1, 0.0)),
            Case(5, 1, 9, (0, 0, 0.0)),
            Case(0, 7680, 1, (3839, 3840, 0.5)),
        ];
        for case in cases {
            let tap = Axis::new(case.1, case.2, Rounding::Exact).tap(case.0);
            assert_eq!((tap.first, tap.second, tap.weight), case.3, "{case:?}");
        }
    }

    #[test]
    fn eight_bit_products_are_truncated_to_quarters() {
        #[derive(Debug)]
        struct Case([u8; 2], [u8; 2], u16, u16, u16);
        let cases = [
            Case([0, 0], [0, 0], 1024, 1024, 0),
            Case([255, 255], [255, 255], 5, 0, 255),
            Case([255, 255], [255, 255], 5, 777, 255),
            Case([7, 7], [9, 9], 0, 1024, 8),
            Case([7, 7], [8, 8], 0, 1024, 8),
            // 7.1875 and 7.8125 have the mean 7.5, which would round up to 8. With integers, both products are truncated, so the pixel is
            // 7.
            Case([7, 8], [8, 7], 384, 1024, 7),
            Case([10, 10], [20, 20], 3, 2048, 20),
            Case([10, 20], [30, 40], 2048, 0, 20),
        ];
        for case in cases {
            let sum = |pair: [u8; 2]| integer_sum(pair[0], pair[1], case.2);
            assert_eq!(integer_pixel(sum(case.0), sum(case.1), case.3), case.4, "{case:?}");
        }
    }

    #[test]
    fn eight_bit_weights_matter_beyond_the_edges() {
        let at = |scaled_idx| Axis::new(2, 4, Rounding::U8).tap(scaled_idx);
        assert_eq!(
            [0, 1, 2, 3].map(|idx| (at(idx).first, at(idx).second, at(idx).weight)),
            [(0, 0, 0.75), (0, 1, 0.25), (0, 1, 0.75), (1, 1, 0.25)]
        );
        assert_eq!(Axis::new(3, 7, Rounding::U8).tap(0).weight, (5.0_f32 / 7.0 * 2048.0).round() / 2048.0);
    }

    #[test]
    fn columns_are_limited_to_the_visible_and_padded_to_groups() {
        let mut columns = Columns::default();
        columns.set(&Axis::new(64, 2, Rounding::Exact), 0..2, 0, true);
        assert_eq!((&columns.pairs[..2], columns.n_visible, columns.pairs.len()), (&[[15, 16], [47, 48]][..], 2, GROUP));
        assert_eq!(columns.pairs[GROUP - 1], [47, 48]);
        // These are columns at the center of a cropped image. Its scale is 1, so no column interpolates.
        columns.set(&Axis::new(8, 8, Rounding::Exact), 0..2, -3, true);
        assert_eq!((&columns.pairs[..2], columns.is_interpolated), (&[[3, 3], [4, 4]][..], false));
    }

    #[test]
    fn rows_are_interpolated_and_split_by_color() {
        let of_first_two = |samples: [u8; 2]| std::array::from_fn::<[u8; 1], LANES, _>(|idx| [if idx < 2 { samples[idx] } else { 0 }]);
        let pieces = [[0, 8], [8, 8], [10, 30], [30, 30], [20, 20], [20, 20]].map(of_first_two);
        let mut weights = [0.0; LANES];
        weights[0] = 0.25;
        let mut rows = [0.0; 3 * LANES];
        let interpolate = InterpolateExact {
            colors: Rgb,
            picked: Picked { pieces: &pieces, begins: [0, 2, 4], steps: [6; 3], pair_steps: [0; 3] },
            weights: Some(&weights),
            rows: &mut rows,
        };
        interpolate.run(Separate);
        assert_eq!([0, LANES, 2 * LANES].map(|begin| [rows[begin], rows[begin + 1]]), [[2.0, 8.0], [15.0, 30.0], [20.0, 20.0]]);
    }
}
