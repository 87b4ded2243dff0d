//! Bilinear interpolation: which samples an output pixel mixes, and the mixing of a source row to the width of the input. Owns the
//! sampling positions. Knows no formats and no tensors.

use std::ops::Range;

use super::aligned::Aligned;
use super::color::Colors;
use super::preprocess::Rounding;
use super::sample::{GROUP, LANES, Picked, Sample};
use super::simd::{Arithmetic, Kernel};

/// Two samples and how much of the second one: `first + (second - first) * weight`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tap {
    pub(super) first: u32,
    pub(super) second: u32,
    /// `0..=1`; what is certain not to count is not fetched: there, `second` is `first`.
    pub(super) weight: f32,
}

/// One axis of an image and of its scaled self.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    extent: u32,
    /// Samples of the image for one of the scaled one.
    step: f64,
    rounding: Rounding,
}

impl Axis {
    pub(super) fn new(extent: u32, scaled_extent: u32, rounding: Rounding) -> Self {
        Self { extent, step: f64::from(extent) / f64::from(scaled_extent), rounding }
    }

    /// Whether neighbors of the scaled image take neighbors of the image, none of which is passed by.
    pub(super) fn takes_all(&self) -> bool {
        self.step < 2.0
    }

    /// The samples at `(scaled_idx + 0.5) * step - 0.5`, edges replicated.
    ///
    /// With [`Rounding::U8`] the weight is a whole number of steps, taken from the position in single precision as OpenCV does. There
    /// it counts at an edge although both samples are one, because each of the two terms is cut.
    pub(super) fn tap(&self, scaled_idx: u64) -> Tap {
        let unbounded = (scaled_idx as f64 + 0.5) * self.step - 0.5;
        // Left of the first sample's center is the first sample; from here on, truncation is `floor`.
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

/// So many steps of weight are one where bytes are mixed and nothing is rounded. A byte times a number of them, and the sum of two such,
/// are numbers that single precision has, so that mixing in whole numbers gives the same bits. A weight is off by at most 1/32768.
pub(super) const FINE_STEPS: u16 = 1 << 14;

/// The columns of an image that a row of the input is made of.
#[derive(Debug, Default)]
pub(super) struct Columns {
    /// How many there are. The lists are filled up to whole groups with more of the last one.
    pub(super) n_visible: usize,
    /// The two samples of each.
    pub(super) pairs: Vec<[u32; 2]>,
    /// How much of the second one.
    pub(super) weights: Aligned<f32>,
    /// The same in whole steps of [`WEIGHT_STEPS`].
    pub(super) steps: Aligned<u16>,
    /// Whether any of them mixes; where an image is scaled down to a third, none does.
    pub(super) is_mixed: bool,
}

impl Columns {
    /// Plans the columns `visible` of an input in which column `offset` shows the left edge of the scaled image; their weights are rounded
    /// to whole steps of [`FINE_STEPS`], if so wanted.
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
        self.is_mixed = self.weights[..self.n_visible].iter().any(|weight| *weight != 0.0);
        self.pairs.resize(n_filled, self.pairs.last().copied().unwrap_or_default());
        self.weights[self.n_visible..].fill(0.0);
        self.steps[self.n_visible..].fill(0);
    }
}

/// Mixes samples of one source row to `C` rows, one per color and as long as the lists.
pub(super) struct MixExact<'a, S, T, const C: usize> {
    pub(super) colors: T,
    pub(super) picked: Picked<'a, S>,
    /// Of the columns; none if the second samples do not count.
    pub(super) weights: Option<&'a [f32]>,
    /// The rows, one after the other.
    pub(super) rows: &'a mut [f32],
}

impl<S: Sample, T: Colors<C>, const C: usize> Kernel for MixExact<'_, S, T, C> {
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

/// As [`MixExact`], of two source rows that differ in their first component alone: what the others make of a color is computed once.
pub(super) struct MixTwo<'a, S, T, const C: usize> {
    pub(super) colors: T,
    pub(super) picked: [Picked<'a, S>; 2],
    pub(super) weights: &'a [f32],
    pub(super) rows: [&'a mut [f32]; 2],
}

impl<S: Sample, T: Colors<C>, const C: usize> Kernel for MixTwo<'_, S, T, C> {
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
            // Each row has a loop of its own, because that is how they become vectors; what both compute is found to be the same after that.
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

/// As [`MixExact`] in whole numbers: sums with seven bits after the point.
pub(super) struct MixWhole<'a, S, T, const C: usize> {
    pub(super) colors: T,
    pub(super) picked: Picked<'a, S>,
    pub(super) steps: &'a [u16],
    pub(super) rows: &'a mut [u16],
}

impl<S: Sample, T: Colors<C>, const C: usize> Kernel for MixWhole<'_, S, T, C> {
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
                let first = colors.whole(firsts.map(|samples| samples[lane]));
                let second = colors.whole(seconds.map(|samples| samples[lane]));
                for color_idx in 0..C {
                    block[color_idx][lane] = whole_sum(first[color_idx], second[color_idx], steps[lane]);
                }
            }
            store_block(&mut rows, block_idx, block);
        }
    }
}

// The kernels compute block by block, each into an array of its own: so the compiler knows how many columns there are, and that what is
// written is nothing that is read.

#[inline(always)]
pub(super) fn blocks<T>(list: &[T]) -> &[[T; LANES]] {
    list.as_chunks().0
}

/// Rows that lie one after the other.
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

// Eight-bit images are mixed in whole numbers as OpenCV does it (`HResizeLinear` and `VResizeLinear` for 8 bits in its
// `resize.cpp`): weights are whole steps, the sums of a row keep seven of their eleven bits after the point, the terms of two rows
// are cut to quarters, and their sum is rounded half up.

/// So many steps of weight are one.
const WEIGHT_STEPS: u16 = 2048;

/// The steps of a weight that is a whole number of them.
pub(super) fn steps(weight: f32) -> u16 {
    (weight * f32::from(WEIGHT_STEPS)) as u16
}

#[inline(always)]
fn whole_sum(first: u8, second: u8, steps: u16) -> u16 {
    // At most 255 * 2048 / 16.
    ((u32::from(first) * u32::from(WEIGHT_STEPS - steps) + u32::from(second) * u32::from(steps)) >> 4) as u16
}

/// The pixel of two such sums, `steps` of the second one.
#[inline(always)]
pub(super) fn whole_pixel(first: u16, second: u16, steps: u16) -> u16 {
    let quarters = |sum: u16, steps: u16| ((u32::from(sum) * u32::from(steps)) >> 16) as u16;
    (quarters(first, WEIGHT_STEPS - steps) + quarters(second, steps) + 2) >> 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::Rgb;
    use crate::simd::Separate;

    #[test]
    fn taps_sit_at_pixel_centers_and_stop_at_the_edges() {
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
    fn eight_bit_mixes_cut_their_terms_to_quarters() {
        #[derive(Debug)]
        struct Case([u8; 2], [u8; 2], u16, u16, u16);
        let cases = [
            Case([0, 0], [0, 0], 1024, 1024, 0),
            Case([255, 255], [255, 255], 5, 0, 255),
            Case([255, 255], [255, 255], 5, 777, 255),
            Case([7, 7], [9, 9], 0, 1024, 8),
            Case([7, 7], [8, 8], 0, 1024, 8),
            // 7.1875 and 7.8125: 7.5 is rounded up, but here both terms lose a part of a quarter.
            Case([7, 8], [8, 7], 384, 1024, 7),
            Case([10, 10], [20, 20], 3, 2048, 20),
            Case([10, 20], [30, 40], 2048, 0, 20),
        ];
        for case in cases {
            let sum = |pair: [u8; 2]| whole_sum(pair[0], pair[1], case.2);
            assert_eq!(whole_pixel(sum(case.0), sum(case.1), case.3), case.4, "{case:?}");
        }
    }

    #[test]
    fn whole_weights_count_beyond_the_edges() {
        let at = |scaled_idx| Axis::new(2, 4, Rounding::U8).tap(scaled_idx);
        assert_eq!(
            [0, 1, 2, 3].map(|idx| (at(idx).first, at(idx).second, at(idx).weight)),
            [(0, 0, 0.75), (0, 1, 0.25), (0, 1, 0.75), (1, 1, 0.25)]
        );
        assert_eq!(Axis::new(3, 7, Rounding::U8).tap(0).weight, (5.0_f32 / 7.0 * 2048.0).round() / 2048.0);
    }

    #[test]
    fn columns_show_what_is_visible_and_are_filled_up_to_groups() {
        let mut columns = Columns::default();
        columns.set(&Axis::new(64, 2, Rounding::Exact), 0..2, 0, true);
        assert_eq!((&columns.pairs[..2], columns.n_visible, columns.pairs.len()), (&[[15, 16], [47, 48]][..], 2, GROUP));
        assert_eq!(columns.pairs[GROUP - 1], [47, 48]);
        // The middle of a cropped image: its left and right are not sampled, and nothing is mixed.
        columns.set(&Axis::new(8, 8, Rounding::Exact), 0..2, -3, true);
        assert_eq!((&columns.pairs[..2], columns.is_mixed), (&[[3, 3], [4, 4]][..], false));
    }

    #[test]
    fn rows_are_mixed_by_weight_and_split_by_color() {
        let of_first_two = |samples: [u8; 2]| std::array::from_fn::<[u8; 1], LANES, _>(|idx| [if idx < 2 { samples[idx] } else { 0 }]);
        let pieces = [[0, 8], [8, 8], [10, 30], [30, 30], [20, 20], [20, 20]].map(of_first_two);
        let mut weights = [0.0; LANES];
        weights[0] = 0.25;
        let mut rows = [0.0; 3 * LANES];
        let mix = MixExact {
            colors: Rgb,
            picked: Picked { pieces: &pieces, begins: [0, 2, 4], steps: [6; 3], pair_steps: [0; 3] },
            weights: Some(&weights),
            rows: &mut rows,
        };
        mix.run(Separate);
        assert_eq!([0, LANES, 2 * LANES].map(|begin| [rows[begin], rows[begin + 1]]), [[2.0, 8.0], [15.0, 30.0], [20.0, 20.0]]);
    }
}
