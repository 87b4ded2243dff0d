//! Fast horizontal interpolation of packed RGB bytes, in integers: the two source pixels of each column are loaded, weighted and added in
//! registers. This module computes the byte positions and weights for the interpolation. It handles no other formats.

use super::aligned::Aligned;
use super::image::{Image, Rows};
use super::resize::{Columns, FINE_STEPS, blocks};
use super::sample::{LANES, reaching, window_bytes};
use super::simd::{Simd, SimdBackend};

/// Interpolation plan for packed RGB bytes; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    /// Index of the color component that is the first byte of a pixel.
    first_component: usize,
    /// Byte offsets of the two source pixels of each column, from the start of the row. The offsets are in ascending order.
    positions: Vec<[usize; 2]>,
    /// Weights of the two pixels, in units of 1/[`FINE_STEPS`].
    weights: Aligned<[i16; 2]>,
    /// Whether interpolation uses `windows`. If false, it uses `pixels`.
    is_by_windows: bool,
    windows: PairWindows,
    pixels: PixelPairs,
    /// A copy of a row with padding, which is used if loads would exceed the end of the row.
    padded: Vec<u8>,
}

impl Pairs {
    /// Prepares the plan for these columns. Their weights must be multiples of 1/[`FINE_STEPS`]. Returns false if the image or the SIMD
    /// backend is not supported.
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

    /// Interpolates row `y` into one row per color. The values of these rows are in units of 1/[`FINE_STEPS`].
    #[inline(never)]
    pub(super) fn interpolate(&mut self, source: Rows<'_>, y: u32, rows: [&mut [[f32; LANES]]; 3], simd: Simd) {
        let reach_bytes = if self.is_by_windows { self.windows.reach_bytes } else { self.pixels.reach_bytes };
        let row = reaching(source.row(self.first_component, y), reach_bytes, &mut self.padded);
        debug_assert!(rows.iter().all(|row| row.len() * LANES == self.positions.len()));
        if self.is_by_windows {
            simd.interpolate_windows(&self.windows, blocks(&self.weights), row, rows);
        } else {
            simd.interpolate_pixels(&self.pixels, blocks(&self.weights), row, rows);
        }
    }
}

/// Byte windows for permute instructions: one window contains all pixels of a block of [`LANES`] columns.
#[derive(Debug, Default)]
pub(super) struct PairWindows {
    /// Length of a window: 64 or 128 bytes.
    window_bytes: usize,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "used on x86-64 only"))]
    offsets: [usize; 3],
    /// For each block, the offset of its window in the row. For each column of a block, `controls` has the offsets of both pixels within
    /// the window, each in the lower of two bytes.
    begins: Vec<usize>,
    controls: Aligned<u8>,
    /// Offset in the row at which the last window ends.
    reach_bytes: usize,
}

impl PairWindows {
    /// Prepares the windows for these positions. Returns false if a block does not fit into the longest window.
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

    /// Returns the byte offset of each component in a pixel.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn offsets(&self) -> [usize; 3] {
        self.offsets
    }

    /// Returns, for each block, the offset of its window and the permute control.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn blocks(&self) -> impl Iterator<Item = (usize, &[u8; 4 * LANES])> {
        self.begins.iter().copied().zip(self.controls.as_chunks().0)
    }
}

/// Plan for loads of 8 bytes. Each load contains both source pixels of a column, which are adjacent.
#[derive(Debug, Default)]
pub(super) struct PixelPairs {
    /// Offset of the first pixel of each column.
    begins: Vec<u32>,
    /// Shuffle control that selects the pairs of each component from the 16 bytes of two columns.
    control: [u8; 16],
    /// Offset in the row at which the last load ends.
    reach_bytes: usize,
}

impl PixelPairs {
    /// Number of bytes that are loaded for a column.
    pub(super) const N_BYTES: usize = 8;
    /// Shuffle control that produces a zero byte.
    const NOTHING: u8 = 0x80;

    /// Prepares the loads for these positions. Returns false if the two pixels of a column are not adjacent.
    fn set(&mut self, positions: &[[usize; 2]], offsets: [usize; 3]) -> bool {
        // At an edge, both source pixels of a column are the same, so their distance is 0. Ignore these columns.
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

    /// Returns the offsets of the first pixels of the columns, in blocks.
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

    /// Interpolates one column without vector instructions, as the reference.
    fn reference(row: &[u8], pixel_bytes: usize, offsets: [usize; 3], columns: &Columns, column: usize) -> [f32; 3] {
        let [first, second] = columns.pairs[column].map(|pixel| pixel as usize * pixel_bytes);
        offsets.map(|offset| {
            let (first, second) = (f32::from(row[first + offset]), f32::from(row[second + offset]));
            (first + (second - first) * columns.weights[column]) * f32::from(FINE_STEPS)
        })
    }

    #[test]
    fn pairs_match_the_reference() {
        let mut n_rows_compared = 0;
        for format in [PixelFormat::Rgb, PixelFormat::Bgr, PixelFormat::Bgrx] {
            let bytes: Vec<u8> = (0..WIDTH * 2 * 4).map(|idx| (idx * 7919 % 251) as u8).collect();
            let pixel_bytes = if format == PixelFormat::Bgrx { 4 } else { 3 };
            let frame = Frame::from_packed(format, Size::new(WIDTH, 2), &bytes[..2 * WIDTH as usize * pixel_bytes]).unwrap();
            let (image, offsets) = (Image::of_frame(&frame).unwrap(), if format == PixelFormat::Rgb { [0, 1, 2] } else { [2, 1, 0] });
            // The scales range from six columns per source pixel to nearly three source pixels per column.
            for columns in [1200, 223, 149, 97, 70].map(columns) {
                let mut pairs = Pairs::default();
                for simd in SimdBackend::ALL.into_iter().filter_map(Simd::of) {
                    if !pairs.set(&image, &columns, simd) {
                        assert_eq!(simd.backend(), SimdBackend::Portable);
                        continue;
                    }
                    for y in 0..2 {
                        let mut sums = vec![0.0; 3 * columns.pairs.len()];
                        pairs.interpolate(image.rows(), y, split_rows(&mut sums), simd);
                        let row = image.rows().row(offsets[0], y);
                        for column in 0..columns.n_visible {
                            let got = [0, 1, 2].map(|color| sums[color * columns.pairs.len() + column]);
                            let case = format!("{format}, {} columns, {simd:?}, row {y}, column {column}", columns.n_visible);
                            assert_eq!(got, reference(row, pixel_bytes, offsets, &columns, column), "{case}");
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

    /// Tests only the plan, so that the test also runs without AVX-512.
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
