//! Picking the samples of a row: for each column of the input the two that it mixes, side by side with those of its neighbors, as
//! they are. Owns where in a row they lie, and how they are found fast. Knows no colors and no weights.

use super::simd::{InstructionSet, Instructions};

/// Columns are sampled in groups of this many, the last one filled up: whole registers, and no remainder to care about.
pub(super) const GROUP: usize = 32;

/// A sample as it lies in memory.
pub(super) trait Sample: Copy {
    /// How much its number is above another one, which is a whole number.
    fn above(self, zero: i32) -> f32;
}

/// A byte.
impl Sample for [u8; 1] {
    #[inline(always)]
    fn above(self, zero: i32) -> f32 {
        // Whole numbers are subtracted faster than others, with the same result.
        (i32::from(self[0]) - zero) as f32
    }
}

/// Two bytes, the lower one first.
impl Sample for [u8; 2] {
    #[inline(always)]
    fn above(self, zero: i32) -> f32 {
        (i32::from(u16::from_le_bytes(self)) - zero) as f32
    }
}

/// A number in single precision.
impl Sample for [u8; 4] {
    #[inline(always)]
    fn above(self, zero: i32) -> f32 {
        f32::from_ne_bytes(self) - zero as f32
    }
}

/// Where the columns of an input find their samples in a row of a component.
#[derive(Debug, Default)]
pub(super) struct Grid {
    /// For each column the first bytes of its two samples, counted from the first sample of the row. They never decrease from one column
    /// to the next.
    positions: Vec<[usize; 2]>,
    windows: Windows,
    /// Whether the windows are in use: not where samples are too far apart.
    is_windowed: bool,
    /// A row that ends before its last window does, and bytes that nobody picks.
    padded: Vec<u8>,
}

impl Grid {
    /// Plans for samples of `sample_bytes` at these positions, as many as whole groups.
    pub(super) fn set(&mut self, positions: impl Iterator<Item = [usize; 2]>, sample_bytes: usize, instructions: Instructions) {
        self.positions.clear();
        self.positions.extend(positions);
        debug_assert!(self.positions.len().is_multiple_of(GROUP));
        debug_assert!(self.positions.is_sorted_by(|left, right| left[0] <= right[0] && left[1] <= right[1]));
        self.is_windowed = match instructions.set() {
            InstructionSet::Portable => false,
            InstructionSet::Avx2 => self.windows.set::<16, 16>(&self.positions, sample_bytes),
            InstructionSet::Avx512 => self.windows.set::<64, 128>(&self.positions, sample_bytes),
        };
    }

    /// Picks from a row that begins with its first sample and ends with its last, or later.
    pub(super) fn pick<const N: usize>(&mut self, row: &[u8], firsts: &mut [[u8; N]], seconds: &mut [[u8; N]], instructions: Instructions) {
        if !self.is_windowed {
            let sample = |position: usize| *row[position..].first_chunk().expect("a sample lies in its row");
            for (([first, second], to_first), to_second) in self.positions.iter().zip(firsts).zip(seconds) {
                (*to_first, *to_second) = (sample(*first), sample(*second));
            }
            return;
        }
        let reach_bytes = self.windows.reach_bytes;
        let row = if row.len() >= reach_bytes {
            row
        } else {
            self.padded.resize(reach_bytes, 0);
            self.padded[..row.len()].copy_from_slice(row);
            &self.padded
        };
        instructions.pick_windows(&self.windows, row, firsts.as_flattened_mut(), seconds.as_flattened_mut());
    }
}

/// Picking with instructions that permute the bytes of registers: a block of columns, whose samples fill a register, looks into one or
/// more windows of bytes, one after the other in the row, and takes from each what lies in it.
#[derive(Debug, Default)]
pub(super) struct Windows {
    n_per_block: usize,
    /// Of each block the first byte of its first window.
    begins: Vec<usize>,
    /// For each window, and each byte of the register (the first samples of the block, then the second ones), which byte of the window
    /// it is, or [`Windows::ELSEWHERE`].
    controls: Vec<u8>,
    /// The end of the last window.
    reach_bytes: usize,
}

impl Windows {
    /// The byte lies in another window.
    const ELSEWHERE: u8 = 0x80;
    /// With more windows for a block, it is faster to pick its bytes one by one.
    const PER_BLOCK_MAX: usize = 8;

    /// Plans blocks of `N` bytes and windows of `W`; false if it is better to have none.
    fn set<const N: usize, const W: usize>(&mut self, positions: &[[usize; 2]], sample_bytes: usize) -> bool {
        let n_columns = N / 2 / sample_bytes;
        let blocks = positions.chunks_exact(n_columns);
        let span = |block: &[[usize; 2]]| block[n_columns - 1][1] + sample_bytes - block[0][0];
        self.n_per_block = blocks.clone().map(span).max().unwrap_or(0).div_ceil(W);
        if self.n_per_block > Self::PER_BLOCK_MAX {
            return false;
        }
        self.begins.clear();
        self.begins.extend(blocks.clone().map(|block| block[0][0]));
        self.reach_bytes = self.begins.last().map_or(0, |begin| begin + self.n_per_block * W);
        self.controls.clear();
        self.controls.resize(self.begins.len() * self.n_per_block * N, Self::ELSEWHERE);
        for (block, controls) in blocks.zip(self.controls.chunks_exact_mut(self.n_per_block * N)) {
            for (column_idx, pair) in block.iter().enumerate() {
                for (half, position) in pair.iter().enumerate() {
                    for byte_idx in 0..sample_bytes {
                        let offset = position + byte_idx - block[0][0];
                        controls[offset / W * N + half * (N / 2) + column_idx * sample_bytes + byte_idx] = (offset % W) as u8;
                    }
                }
            }
        }
        true
    }

    /// Where each block begins, and its one control; `None` if blocks have more.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn single<const N: usize>(&self) -> Option<impl Iterator<Item = (usize, &[u8; N])>> {
        (self.n_per_block == 1).then(|| self.begins.iter().copied().zip(self.controls.as_chunks().0))
    }

    /// Where each block's windows begin, and the control of each.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn blocks<const N: usize>(&self) -> impl Iterator<Item = (usize, &[[u8; N]])> {
        self.begins.iter().copied().zip(self.controls.as_chunks().0.chunks_exact(self.n_per_block))
    }
}
