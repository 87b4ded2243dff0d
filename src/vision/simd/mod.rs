//! Which instructions the pass over the pixels runs on. A kernel is written once, in plain Rust, and compiled once more for each set
//! of instructions that a processor may have beyond those of the compilation target; the choice is made at run time. Only what
//! no compiler finds by itself is written per set: the picking of bytes, and the sums of their pairs.
//!
//! No kernel fuses a multiplication with an addition or changes the order of operations, so every set gives the same bits.
//!
//! Owns all `unsafe` of `vision`. Knows no pixels.

#[cfg(target_arch = "x86_64")]
mod x86;

use super::sample::{LANES, Pixels, Windows};

/// A set of instructions that the pass has code for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InstructionSet {
    /// What every processor of the compilation target has.
    Portable,
    /// AVX2: Haswell, Zen, and newer.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VBMI: Ice Lake, Zen 4, and newer.
    Avx512,
}

impl InstructionSet {
    /// All of them, the fastest last.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vbmi")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }
}

/// A set of instructions that this processor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instructions(InstructionSet);

/// A loop that is worth being compiled for each set.
pub(super) trait Kernel {
    /// Runs it. To be marked `#[inline(always)]`: it is compiled for the instructions of the function that it becomes part of.
    fn run(self);
}

impl Instructions {
    /// The fastest set of this processor.
    pub(super) fn fastest() -> Self {
        let available = InstructionSet::ALL.into_iter().rev().find(|set| set.is_available());
        Self(available.unwrap_or(InstructionSet::Portable))
    }

    /// This set, if the processor has it.
    pub(super) fn of(set: InstructionSet) -> Option<Self> {
        set.is_available().then_some(Self(set))
    }

    /// Runs a kernel.
    pub(super) fn run(self, kernel: impl Kernel) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a value with this set exists only where the processor has it.
            InstructionSet::Avx2 => unsafe { x86::run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            InstructionSet::Avx512 => unsafe { x86::run_avx512(kernel) },
            _ => kernel.run(),
        }
    }

    /// Which one it is.
    pub(super) fn set(self) -> InstructionSet {
        self.0
    }

    /// Picks bytes of `row` as `windows` says, which was made for this set, for components at these offsets, into blocks of `block_bytes`.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "no set of other processors has windows"))]
    pub(super) fn pick_windows(self, windows: &Windows, offsets: &[usize], row: &[u8], target: &mut [u8], block_bytes: usize) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a value with this set exists only where the processor has it.
            InstructionSet::Avx2 => unsafe { x86::pick_avx2(windows, offsets, row, target, block_bytes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            InstructionSet::Avx512 => unsafe { x86::pick_avx512(windows, row, target) },
            _ => unreachable!("a set without windows is never asked for them"),
        }
    }

    /// Picks the pairs of three components, into blocks of as many, and room for a fourth. For AVX2 alone.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "no set of other processors does"))]
    pub(super) fn pick_pixels(self, pixels: &Pixels, row: &[u8], blocks: &mut [[[[u8; LANES]; 2]; 4]]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a value with this set exists only where the processor has it.
            InstructionSet::Avx2 => unsafe { x86::pick_pixels_avx2(pixels, row, blocks) },
            _ => unreachable!("no other set is asked for pixels"),
        }
    }

    /// Whether it has an instruction that multiplies whole numbers and adds those of a pair.
    pub(super) fn adds_pairs(self) -> bool {
        self.0 != InstructionSet::Portable
    }

    /// Multiplies the bytes of pairs by weights, adds the two of each, and writes the sums. For sets that [add pairs](Self::adds_pairs).
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "no set of other processors does"))]
    pub(super) fn add_pairs<'a>(
        self,
        pairs: impl Iterator<Item = &'a [[[u8; 1]; 2]; LANES]>,
        weights: &[[[i16; 2]; LANES]],
        sums: &mut [[f32; LANES]],
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a value with this set exists only where the processor has it.
            InstructionSet::Avx2 => unsafe { x86::add_pairs_avx2(pairs, weights, sums) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            InstructionSet::Avx512 => unsafe { x86::add_pairs_avx512(pairs, weights, sums) },
            _ => unreachable!("a set that does not add pairs is never asked to"),
        }
    }
}
