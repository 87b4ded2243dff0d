//! Rows of bytes that are colors as they are, mixed to the width of the input in whole numbers: the two pixels of each column are found,
//! weighed and added without a stop in memory. Owns where in a row they lie, and their weights. Knows no other formats.

use super::aligned::Aligned;
use super::image::{Image, Rows};
use super::resize::{Columns, FINE_STEPS, blocks};
use super::sample::{LANES, reaching, window_bytes};
use super::simd::{Simd, SimdBackend};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    /// The one whose byte is the first of a pixel.
    first_component: usize,
    /// Of the columns the first bytes of their two pixels, counted from the first byte of the row. They never decrease.
    positions: Vec<[usize; 2]>,
    /// How much of the first pixel and of the second one, in whole steps of [`FINE_STEPS`].
    weights: Aligned<[i16; 2]>,
    /// Whether `windows` were planned, or else `pixels`.
    is_by_windows: bool,
    windows: PairWindows,
    pixels: PixelPairs,
    /// A row that ends before the last byte that is loaded, and bytes that do not count.
    padded: Vec<u8>,
}

impl Pairs {
    /// Plans for these columns, whose weights are whole steps. False if the image does not lie so, or the processor has no instructions
    /// for it.
    pub(super) fn set(&mut self, image: &Image, columns: &Columns, simd: Simd) -> bool {
        if simd.backend() == SimdBackend::Portable {
            return false;
        }
        let mut groups = image.groups();
        let (Some(group), None) = (groups.next(), groups.next()) else { return false };
        let Ok(offsets) = group.offsets().try_into() else { return false };
        self.first_component = group.first_component;
        let spacing = image.spacing(group.first_component);
        self.positions.clear();
        self.positions.extend(columns.pairs.iter().map(|pair| pair.map(|column| spacing.position(column))));
        self.is_by_windows = simd.backend() == SimdBackend::Avx512 && self.windows.set(&self.positions, offsets);
        if !self.is_by_windows && !self.pixels.set(&self.positions, offsets) {
            return false;
        }
        self.weights.resize(columns.weights.len());
        for (of_both, weight) in self.weights.iter_mut().zip(&*columns.weights) {
            let of_second = (weight * f32::from(FINE_STEPS)) as i16;
            *of_both = [FINE_STEPS as i16 - of_second, of_second];
        }
        true
    }

    /// Mixes row `y` to one for each color, in steps.
    #[inline(never)]
    pub(super) fn mix(&mut self, source: Rows<'_>, y: u32, rows: [&mut [[f32; LANES]]; 3], simd: Simd) {
        let reach_bytes = if self.is_by_windows { self.windows.reach_bytes } else { self.pixels.reach_bytes };
        let row = reaching(source.row(self.first_component, y), reach_bytes, &mut self.padded);
        debug_assert!(rows.iter().all(|row| row.len() * LANES == self.positions.len()));
        if self.is_by_windows {
            simd.mix_windows(&self.windows, blocks(&self.weights), row, rows);
        } else {
            simd.mix_pixels(&self.pixels, blocks(&self.weights), row, rows);
        }
    }
}

/// The pixels of each block of [`LANES`] columns lie in one window of bytes, from which instructions that permute bytes take them.
#[derive(Debug, Default)]
pub(super) struct PairWindows {
    /// How long a window is: 64 bytes or 128.
    window_bytes: usize,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no other processor has instructions for it"))]
    offsets: [usize; 3],
    /// Of each block the first byte of its window, and for each of its columns at which bytes of the window its two pixels begin, each in
    /// the lower byte of two.
    begins: Vec<usize>,
    controls: Aligned<u8>,
    /// The end of the last window.
    reach_bytes: usize,
}

impl PairWindows {
    /// False if no window is long enough.
    fn set(&mut self, positions: &[[usize; 2]], offsets: [usize; 3]) -> bool {
        let blocks = positions.as_chunks::<LANES>().0;
        let last_offset = offsets.into_iter().max().unwrap_or(0);
        let span = |columns: &[[usize; 2]; LANES]| columns[LANES - 1][1] + last_offset + 1 - columns[0][0];
        let Some(window_bytes) = window_bytes(blocks.iter().map(span).max().unwrap_or(0)) else { return false };
        self.window_bytes = window_bytes;
        self.offsets = offsets;
        self.begins.clear();
        self.begins.extend(blocks.iter().map(|columns| columns[0][0]));
        self.reach_bytes = self.begins.last().map_or(0, |begin| begin + self.window_bytes);
        self.controls.resize(blocks.len() * 4 * LANES);
        for (columns, controls) in blocks.iter().zip(self.controls.as_chunks_mut::<{ 4 * LANES }>().0) {
            for (pair, controls) in columns.iter().zip(controls.as_chunks_mut().0) {
                let [first, second] = pair.map(|position| (position - columns[0][0]) as u8);
                *controls = [first, 0, second, 0];
            }
        }
        true
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn window_bytes(&self) -> usize {
        self.window_bytes
    }

    /// Of each component, where in a pixel it lies.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn offsets(&self) -> [usize; 3] {
        self.offsets
    }

    /// Where the window of each block begins, and its control.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn blocks(&self) -> impl Iterator<Item = (usize, &[u8; 4 * LANES])> {
        self.begins.iter().copied().zip(self.controls.as_chunks().0)
    }
}

/// Both pixels of a column lie side by side within 8 bytes, which are loaded at once, for all components.
#[derive(Debug, Default)]
pub(super) struct PixelPairs {
    /// Of each column its first pixel.
    begins: Vec<u32>,
    /// For the 8 bytes of two columns, one behind the other: which of them the pairs of each component are.
    control: [u8; 16],
    /// No column's 8 bytes end behind it.
    reach_bytes: usize,
}

impl PixelPairs {
    /// So many are loaded for a column.
    pub(super) const N_BYTES: usize = 8;
    /// What a control has for a byte that is to be zero.
    const NOTHING: u8 = 0x80;

    /// False if pixels do not lie so.
    fn set(&mut self, positions: &[[usize; 2]], offsets: [usize; 3]) -> bool {
        // Where the second pixel is the first one, at an edge, it does not count.
        let steps = || positions.iter().map(|[first, second]| second - first).filter(|step| *step > 0);
        let step = steps().next().unwrap_or(0);
        let last = step + offsets.into_iter().max().unwrap_or(0);
        let is_far = |[first, _]: &[usize; 2]| u32::try_from(*first).is_err();
        if last >= Self::N_BYTES || steps().any(|other| other != step) || positions.last().is_some_and(is_far) {
            return false;
        }
        self.begins.clear();
        self.begins.extend(positions.iter().map(|[first, _]| *first as u32));
        self.reach_bytes = positions.iter().map(|[first, _]| first + Self::N_BYTES).max().unwrap_or(0);
        self.control = [Self::NOTHING; 16];
        for (offset, pairs) in offsets.iter().zip(self.control.as_chunks_mut::<4>().0) {
            *pairs = [0, step, Self::N_BYTES, Self::N_BYTES + step].map(|begin| (begin + offset) as u8);
        }
        true
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn control(&self) -> &[u8; 16] {
        &self.control
    }

    /// The first pixels of each block of columns.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn begins(&self) -> &[[u32; LANES]] {
        self.begins.as_chunks().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rounding;
    use crate::frame::{Frame, PixelFormat, Size};
    use crate::resize::{Axis, split_rows};

    const WIDTH: u32 = 200;

    fn columns(n_columns: u32) -> Columns {
        let mut columns = Columns::default();
        columns.set(&Axis::new(WIDTH, n_columns, Rounding::Exact), 0..n_columns as usize, 0, true);
        columns
    }

    /// The colors of a column, by the definition.
    fn mixed(row: &[u8], pixel_bytes: usize, offsets: [usize; 3], columns: &Columns, column: usize) -> [f32; 3] {
        let [first, second] = columns.pairs[column].map(|pixel| pixel as usize * pixel_bytes);
        offsets.map(|offset| {
            let (first, second) = (f32::from(row[first + offset]), f32::from(row[second + offset]));
            (first + (second - first) * columns.weights[column]) * f32::from(FINE_STEPS)
        })
    }

    #[test]
    fn pairs_are_what_is_mixed_one_by_one() {
        let mut n_rows_compared = 0;
        for format in [PixelFormat::Rgb, PixelFormat::Bgr, PixelFormat::Bgrx] {
            let bytes: Vec<u8> = (0..WIDTH * 2 * 4).map(|idx| (idx * 7919 % 251) as u8).collect();
            let pixel_bytes = if format == PixelFormat::Bgrx { 4 } else { 3 };
            let frame = Frame::from_packed(format, Size::new(WIDTH, 2), &bytes[..2 * WIDTH as usize * pixel_bytes]).unwrap();
            let (image, offsets) = (Image::of_frame(&frame).unwrap(), if format == PixelFormat::Rgb { [0, 1, 2] } else { [2, 1, 0] });
            // From six columns of a pixel to nearly three pixels of a column.
            for columns in [1200, 223, 149, 97, 70].map(columns) {
                let mut pairs = Pairs::default();
                for simd in SimdBackend::ALL.into_iter().filter_map(Simd::of) {
                    if !pairs.set(&image, &columns, simd) {
                        assert_eq!(simd.backend(), SimdBackend::Portable);
                        continue;
                    }
                    for y in 0..2 {
                        let mut sums = vec![0.0; 3 * columns.pairs.len()];
                        pairs.mix(image.rows(), y, split_rows(&mut sums), simd);
                        let row = image.rows().row(offsets[0], y);
                        for column in 0..columns.n_visible {
                            let got = [0, 1, 2].map(|color| sums[color * columns.pairs.len() + column]);
                            let case = format!("{format}, {} columns, {simd:?}, row {y}, column {column}", columns.n_visible);
                            assert_eq!(got, mixed(row, pixel_bytes, offsets, &columns, column), "{case}");
                        }
                        n_rows_compared += 1;
                    }
                }
            }
        }
        if SimdBackend::Avx2.is_available() {
            assert!(n_rows_compared >= 30, "{n_rows_compared}");
        }
    }

    /// What registers of the processors that have them take, so that it runs on any.
    #[test]
    fn windows_have_both_pixels_of_each_column() {
        let mut n_planned = 0;
        for columns in [1200, 223, 149, 97, 70].map(columns) {
            let positions: Vec<_> = columns.pairs.iter().map(|pair| pair.map(|column| 3 * column as usize)).collect();
            let mut windows = PairWindows::default();
            if !windows.set(&positions, [2, 1, 0]) {
                continue;
            }
            for (block, (begin, controls)) in
                positions.as_chunks::<LANES>().0.iter().zip(windows.begins.iter().zip(windows.controls.as_chunks::<{ 4 * LANES }>().0))
            {
                let pixels = controls.as_chunks().0.iter().map(|[first, _, second, _]| [*first, *second].map(|at| begin + usize::from(at)));
                assert!(pixels.eq(block.iter().copied()), "{} columns", columns.n_visible);
                assert!(begin + windows.window_bytes <= windows.reach_bytes);
                assert!(block[LANES - 1][1] + 2 < begin + windows.window_bytes, "{} columns", columns.n_visible);
            }
            n_planned += 1;
        }
        assert_eq!(n_planned, 4);
    }
}
