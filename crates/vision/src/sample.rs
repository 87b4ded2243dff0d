//! Sampling of rows: loads the two source samples of each input column in an order that suits vector instructions. This module neither
//! converts nor weights samples.

use super::aligned::Aligned;
use super::image::Group;
use super::simd::{Simd, SimdBackend};

/// Columns are sampled in groups of this size. The last group is padded, so that there is no remainder.
pub(super) const GROUP: usize = 32;

/// Number of columns of a block, which is the number of `f32` lanes of the widest register.
pub(super) const LANES: usize = 16;

/// A sample as stored in memory.
pub(super) trait Sample: Copy {
    /// Whether the sample has 8 bits.
    const IS_BYTE: bool;

    /// Returns the sample minus `zero`.
    fn above(self, zero: i32) -> f32;
}

/// 8-bit sample.
impl Sample for [u8; 1] {
    const IS_BYTE: bool = true;

    #[inline(always)]
    fn above(self, zero: i32) -> f32 {
        // Integer subtraction is faster and gives the same result.
        (i32::from(self[0]) - zero) as f32
    }
}

/// 16-bit sample, little-endian.
impl Sample for [u8; 2] {
    const IS_BYTE: bool = false;

    #[inline(always)]
    fn above(self, zero: i32) -> f32 {
        (i32::from(u16::from_le_bytes(self)) - zero) as f32
    }
}

/// Single-precision sample.
impl Sample for [u8; 4] {
    const IS_BYTE: bool = false;

    #[inline(always)]
    fn above(self, zero: i32) -> f32 {
        f32::from_ne_bytes(self) - zero as f32
    }
}

/// Byte positions of the samples of a component group, for the columns of an input.
///
/// Picked samples are stored in blocks of [`LANES`] columns. A *piece* contains the first samples, or the second samples, of one component
/// for the columns of a block. A block has the two pieces of the first component, then the two pieces of the next component, and so on. The
/// components of a group are interleaved in memory and are picked together.
#[derive(Debug, Default)]
pub(super) struct Grid {
    /// Byte offsets of the two samples of each column, from the first sample of the row. The offsets are in ascending order.
    positions: Vec<[usize; 2]>,
    group: Group,
    windows: Windows,
    /// Whether samples are picked with `windows`. False if the samples are too far apart.
    is_windowed: bool,
    /// A copy of a row with padding, which is used if loads would exceed the end of the row.
    padded: Vec<u8>,
}

impl Grid {
    /// Prepares the grid for samples of `sample_bytes` bytes at these positions. The number of positions is a multiple of [`GROUP`].
    pub(super) fn set(&mut self, group: Group, positions: impl Iterator<Item = [usize; 2]>, sample_bytes: usize, simd: Simd) {
        self.group = group;
        self.positions.clear();
        self.positions.extend(positions);
        debug_assert!(self.positions.len().is_multiple_of(GROUP));
        debug_assert!(self.positions.is_sorted_by(|left, right| left[0] <= right[0] && left[1] <= right[1]));
        self.is_windowed = match simd.backend() {
            SimdBackend::Portable => false,
            SimdBackend::Avx2 => self.windows.set_for_columns(&self.positions, &group, sample_bytes),
            SimdBackend::Avx512 => self.windows.set_for_pieces(&self.positions, &group, sample_bytes),
        };
    }

    /// Returns the number of pieces that [`Grid::pick`] fills.
    pub(super) fn n_pieces(&self) -> usize {
        self.positions.len() / LANES * self.group.n_pieces()
    }

    /// Copies the samples of a row to `target`. `row` starts at the first sample of the group.
    pub(super) fn pick<const N: usize>(&mut self, row: &[u8], target: &mut [[[u8; N]; LANES]], simd: Simd) {
        let group = &self.group;
        if !self.is_windowed {
            let sample = |position: usize| *row[position..].first_chunk().expect("the row contains the sample");
            for (positions, pieces) in self.positions.as_chunks::<LANES>().0.iter().zip(target.chunks_exact_mut(group.n_pieces())) {
                for (offset, pair) in group.offsets().iter().zip(pieces.as_chunks_mut::<2>().0) {
                    for (lane, positions) in positions.iter().enumerate() {
                        (pair[0][lane], pair[1][lane]) = (sample(positions[0] + offset), sample(positions[1] + offset));
                    }
                }
            }
            return;
        }
        let reach_bytes = self.windows.reach_bytes;
        let row = reaching(row, reach_bytes, &mut self.padded);
        let block_bytes = group.n_pieces() * LANES * N;
        simd.pick_windows(&self.windows, group.offsets(), row, target.as_flattened_mut().as_flattened_mut(), block_bytes);
    }
}

/// Returns the row, or a padded copy if it has fewer than `reach_bytes` bytes.
pub(super) fn reaching<'a>(row: &'a [u8], reach_bytes: usize, padded: &'a mut Vec<u8>) -> &'a [u8] {
    if row.len() >= reach_bytes {
        return row;
    }
    padded.resize(reach_bytes, 0);
    padded[..row.len()].copy_from_slice(row);
    padded
}

/// Returns the length of the windows that can contain `span_bytes` bytes: one or two registers of 64 bytes. `None` if both lengths are too
/// short.
pub(super) fn window_bytes(span_bytes: usize) -> Option<usize> {
    [64, 128].into_iter().find(|window_bytes| span_bytes <= *window_bytes)
}

/// Picked samples of all components, in the order of [`Grid`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Picked<'a, S> {
    pub(super) pieces: &'a [[S; LANES]],
    /// Index of the first block of each component.
    pub(super) begins: [usize; 3],
    /// For each component, the distance from one of its blocks to the next.
    pub(super) steps: [usize; 3],
    /// For each component, the distance from one sample pair of a column to the next, if columns have several pairs.
    pub(super) pair_steps: [usize; 3],
}

impl<'a, S> Picked<'a, S> {
    /// Returns the samples of a block for each component. An even `tap_idx` selects the first samples of a pair, and an odd
    /// `tap_idx` the second samples.
    #[inline(always)]
    pub(super) fn block(&self, tap_idx: usize, block_idx: usize) -> [&'a [S; LANES]; 3] {
        std::array::from_fn(|component| {
            let pair = self.begins[component] + tap_idx / 2 * self.pair_steps[component];
            &self.pieces[pair + block_idx * self.steps[component] + tap_idx % 2]
        })
    }
}

/// Sampling with permute instructions: each output register is assembled from the bytes of one or more windows of the row.
#[derive(Debug, Default)]
pub(super) struct Windows {
    n_per_register: usize,
    /// Length of a window in bytes.
    window_bytes: usize,
    /// For each register, the offset of its first window in the row.
    begins: Vec<usize>,
    /// For each window and register byte: the index of the byte in the window, or [`Windows::ELSEWHERE`].
    controls: Aligned<u8>,
    /// Offset in the row at which the last window ends.
    reach_bytes: usize,
}

impl Windows {
    /// Control value for a byte that is taken from another window.
    const ELSEWHERE: u8 = 0x80;
    /// If a register needs more windows than this, sampling without permute instructions is faster.
    const PER_REGISTER_MAX: usize = 8;

    /// Prepares registers and windows of 16 bytes for each component: the first samples of several columns, then the second samples.
    /// Returns false if scalar sampling is faster.
    fn set_for_columns(&mut self, positions: &[[usize; 2]], group: &Group, sample_bytes: usize) -> bool {
        const N: usize = 16;
        let n_columns = N / 2 / sample_bytes;
        let blocks = positions.chunks_exact(n_columns);
        let span = |block: &[[usize; 2]]| block[n_columns - 1][1] + sample_bytes - block[0][0];
        self.window_bytes = N;
        self.n_per_register = blocks.clone().map(span).max().unwrap_or(0).div_ceil(N);
        if self.n_per_register > Self::PER_REGISTER_MAX {
            return false;
        }
        self.begins.clear();
        self.begins.extend(blocks.clone().map(|block| block[0][0]));
        let last = self.begins.last().copied().unwrap_or(0) + group.offsets().iter().max().unwrap_or(&0);
        self.reach_bytes = last + self.n_per_register * N;
        self.controls.resize(self.begins.len() * self.n_per_register * N);
        self.controls.fill(Self::ELSEWHERE);
        for (block, controls) in blocks.zip(self.controls.chunks_exact_mut(self.n_per_register * N)) {
            for (column_idx, pair) in block.iter().enumerate() {
                for (half, position) in pair.iter().enumerate() {
                    for byte_idx in 0..sample_bytes {
                        let offset = position + byte_idx - block[0][0];
                        controls[offset / N * N + half * (N / 2) + column_idx * sample_bytes + byte_idx] = (offset % N) as u8;
                    }
                }
            }
        }
        true
    }

    /// Prepares registers of 64 bytes in the order of [`Grid`]. Windows have 64 bytes if one window per register suffices, otherwise 128.
    /// Returns false if scalar sampling is faster.
    fn set_for_pieces(&mut self, positions: &[[usize; 2]], group: &Group, sample_bytes: usize) -> bool {
        const N: usize = 64;
        let piece_bytes = LANES * sample_bytes;
        // A register holds one, two or four pieces, which may belong to several blocks. Pieces that only pad a block, and
        // registers that hold only such pieces, are empty.
        let (block_shift, slot_mask) = (group.n_pieces().trailing_zeros(), group.n_pieces() - 1);
        let n_pieces = positions.len() / LANES * group.n_pieces();
        let per_register = N / piece_bytes;
        let blocks = positions.as_chunks::<LANES>().0;
        let piece = |piece_idx: usize| {
            let slot = piece_idx & slot_mask;
            let offset = *group.offsets().get(slot / 2)?;
            Some((&blocks[piece_idx >> block_shift], slot % 2, offset))
        };
        self.begins.clear();
        let mut span_max = 0;
        for register_idx in 0..n_pieces / per_register {
            let (mut begin, mut end) = (usize::MAX, 0);
            for (columns, half, offset) in (0..per_register).filter_map(|idx| piece(register_idx * per_register + idx)) {
                begin = begin.min(columns[0][half] + offset);
                end = end.max(columns[LANES - 1][half] + offset + sample_bytes);
            }
            let begin = begin.min(end);
            self.begins.push(begin);
            span_max = span_max.max(end - begin);
        }
        self.window_bytes = if span_max <= N { N } else { 2 * N };
        self.n_per_register = span_max.div_ceil(self.window_bytes);
        if self.n_per_register > Self::PER_REGISTER_MAX {
            return false;
        }
        self.reach_bytes = self.begins.iter().max().map_or(0, |begin| begin + self.n_per_register * self.window_bytes);
        self.controls.resize(self.begins.len() * self.n_per_register * N);
        if self.n_per_register > 1 {
            self.controls.fill(Self::ELSEWHERE);
        }
        let window_shift = self.window_bytes.trailing_zeros();
        for (register_idx, controls) in self.controls.chunks_exact_mut(self.n_per_register * N).enumerate() {
            let begin = self.begins[register_idx];
            for idx in 0..per_register {
                let Some((columns, half, offset)) = piece(register_idx * per_register + idx) else { continue };
                if self.n_per_register == 1 && sample_bytes == 1 {
                    // Handle the most common case separately, which is faster: one window per register, and samples of one byte.
                    let controls = controls[idx * LANES..].first_chunk_mut::<LANES>().expect("a register has all of its pieces");
                    *controls = columns.map(|pair| (pair[half] + offset - begin) as u8);
                    continue;
                }
                for (lane, pair) in columns.iter().enumerate() {
                    for byte_idx in 0..sample_bytes {
                        let at = pair[half] + offset + byte_idx - begin;
                        let (window_idx, byte_of_window) = (at >> window_shift, at & (self.window_bytes - 1));
                        controls[window_idx * N + idx * piece_bytes + lane * sample_bytes + byte_idx] = byte_of_window as u8;
                    }
                }
            }
        }
        true
    }

    /// Returns the window offset and the permute control of each register. `None` if registers have several windows, or if the
    /// windows do not have `window_bytes` bytes.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn single<const N: usize>(&self, window_bytes: usize) -> Option<impl Iterator<Item = (usize, &[u8; N])>> {
        (self.n_per_register == 1 && self.window_bytes == window_bytes)
            .then(|| self.begins.iter().copied().zip(self.controls.as_chunks().0))
    }

    /// Returns the number of windows per register.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn n_per_register(&self) -> usize {
        self.n_per_register
    }

    /// Returns, for each register, the offset of its first window and the controls of all its windows.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn registers<const N: usize>(&self) -> impl Iterator<Item = (usize, &[[u8; N]])> {
        self.begins.iter().copied().zip(self.controls.as_chunks().0.chunks_exact(self.n_per_register))
    }

    /// Like [`Windows::registers`], but the number of windows per register is the constant `W`.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn registers_of<const N: usize, const W: usize>(&self) -> impl Iterator<Item = (usize, &[[u8; N]; W])> {
        debug_assert_eq!(self.n_per_register, W);
        self.begins.iter().copied().zip(self.controls.as_chunks().0.as_chunks().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Colorimetry, Frame, PixelFormat, Size};
    use crate::image::Image;
    use crate::tensor::Tensor;

    const WIDTH: u32 = 200;

    /// Returns, for each output column, the pair of source columns that it is interpolated from. The image is downscaled by `step`; `begin`
    /// is the first source column.
    fn pairs(begin: u32, step: f32) -> Vec<[u32; 2]> {
        let first = |idx: usize| (begin + (idx as f32 * step) as u32).min(WIDTH - 1);
        (0..2 * GROUP).map(|idx| [first(idx), (first(idx) + 1).min(WIDTH - 1)]).collect()
    }

    /// Picks the samples as the plan says, without vector instructions. Registers have `n_bytes` bytes.
    fn picked_by_windows(windows: &Windows, n_bytes: usize, row: &[u8]) -> Vec<u8> {
        let mut row = row.to_vec();
        row.resize(row.len().max(windows.reach_bytes), 0);
        let controls_bytes = windows.n_per_register * n_bytes;
        let registers = windows.begins.iter().zip(windows.controls.chunks_exact(controls_bytes));
        registers
            .flat_map(|(begin, controls)| {
                let (row, controls) = (&row[*begin..], controls.chunks_exact(n_bytes));
                let mut register = vec![0; n_bytes];
                for (window, controls) in row.chunks_exact(windows.window_bytes).zip(controls) {
                    for (byte, control) in register.iter_mut().zip(controls).filter(|(_, control)| **control != Windows::ELSEWHERE) {
                        *byte |= window[*control as usize];
                    }
                }
                register
            })
            .collect()
    }

    /// For registers of 64 bytes, only the plan is tested, so that the test also runs without AVX-512.
    #[test]
    fn windows_pick_the_same_as_scalar_sampling() {
        let mut n_compared = 0;
        for format in [PixelFormat::Rgb, PixelFormat::Bgrx, PixelFormat::Nv12, PixelFormat::P010] {
            let size = Size::new(WIDTH, 2);
            let planes: Vec<Tensor> = (0..format.n_planes())
                .map(|plane_idx| {
                    let plane = Tensor::new(format.element(), format.plane_shape(plane_idx, size)).unwrap();
                    plane.bytes_mut().unwrap().extent_mut().iter_mut().enumerate().for_each(|(idx, byte)| *byte = (idx * 7919 % 251) as u8);
                    plane
                })
                .collect();
            let frame = Frame::from_planes(format, size, &planes, Colorimetry::default()).unwrap();
            let image = Image::of_frame(&frame).unwrap();
            let sample_bytes = image.sample().n_bytes();
            let steps = [0.15, 0.9, 1.34, 2.0, 3.1];
            for (group, begin, step) in image.groups().flat_map(|group| steps.map(|step| (group, (step * 7.0) as u32, step))) {
                let spacing = image.spacing(group.first_component);
                let positions: Vec<_> = pairs(begin, step).iter().map(|pair| pair.map(|column| spacing.position(column))).collect();
                let row = image.rows().row(group.first_component, 0);
                let sample = |position: usize| &row[position..][..sample_bytes];
                let blocks = positions.as_chunks::<LANES>().0;
                let expected: Vec<Vec<u8>> = blocks
                    .iter()
                    .flat_map(|columns| group.offsets().iter().map(move |offset| (columns, *offset)))
                    .map(|(columns, offset)| {
                        let halves = [0, 1].into_iter().flat_map(|half| columns.iter().map(move |pair| pair[half] + offset));
                        halves.flat_map(sample).copied().collect()
                    })
                    .collect();
                let case = format!("{format} {group:?}, step {step}");
                let of_blocks = |bytes: &[u8]| -> Vec<Vec<u8>> {
                    let blocks = bytes.chunks_exact(group.n_pieces() * LANES * sample_bytes);
                    let components = |block: &[u8]| {
                        let components = block.chunks_exact(2 * LANES * sample_bytes).take(group.offsets().len());
                        components.map(<[u8]>::to_vec).collect::<Vec<_>>()
                    };
                    blocks.flat_map(components).collect()
                };
                let mut windows = Windows::default();
                if windows.set_for_pieces(&positions, &group, sample_bytes) {
                    assert_eq!(of_blocks(&picked_by_windows(&windows, 64, row)), expected, "{case}");
                    n_compared += 1;
                }
                let mut grid = Grid::default();
                for simd in SimdBackend::ALL.into_iter().filter_map(Simd::of) {
                    grid.set(group, positions.iter().copied(), sample_bytes, simd);
                    let mut target = vec![0; grid.n_pieces() * LANES * sample_bytes];
                    match sample_bytes {
                        1 => grid.pick::<1>(row, target.as_chunks_mut().0.as_chunks_mut().0, simd),
                        _ => grid.pick::<2>(row, target.as_chunks_mut().0.as_chunks_mut().0, simd),
                    }
                    assert_eq!(of_blocks(&target), expected, "{case}, {simd:?}");
                    n_compared += 1;
                }
            }
        }
        assert!(n_compared > 50, "{n_compared}");
    }
}
