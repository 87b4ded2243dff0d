//! Which instructions the pass over the pixels runs on. A kernel is written once, in plain Rust, and compiled once more for each set
//! of instructions that a processor may have beyond those of the compilation target; the choice is made at run time. Only what
//! no compiler finds by itself is written per set: the picking of bytes, and the mixing of what is picked in registers.
//!
//! Every set gives the same bits: no kernel changes the order of operations that round, or fuses a multiplication with an addition where the
//! product is rounded. Where luma and color differences of bytes become a color, no product is, see `color::Yuv`. What is mixed in pairs is
//! computed in another order and in whole numbers, all of which single precision has too, see `resize::FINE_STEPS` and
//! `store::Normalizer::of_steps`.
//!
//! Owns all `unsafe` of `vision`. Knows no pixels.

#[cfg(target_arch = "x86_64")]
mod x86;

use super::color::YuvFactors;
use super::pairs::{PairWindows, PixelPairs};
use super::sample::{LANES, Windows};
use super::yuv::{YuvSource, YuvWindows};

/// A set of instructions that the pass has code for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SimdBackend {
    /// What every processor of the compilation target has.
    Portable,
    /// AVX2 and FMA: Haswell, Zen, and newer.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VBMI: Ice Lake, Zen 4, and newer.
    Avx512,
}

impl SimdBackend {
    /// All of them, the fastest last.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
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
pub(super) struct Simd(SimdBackend);

/// A loop that is worth being compiled for each set.
pub(super) trait Kernel {
    /// Runs it. To be marked `#[inline(always)]`: it is compiled for the instructions of the function that it becomes part of.
    fn run(self, arithmetic: impl Arithmetic);
}

/// How a set multiplies and adds.
pub(super) trait Arithmetic: Copy {
    /// `a * b + c`. For numbers of which single precision has the product and the sum, so that all give the same bits.
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32;
}

/// One after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Separate;

impl Arithmetic for Separate {
    #[inline(always)]
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// Both at once; fast where there is an instruction for it.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no set of other processors is compiled for it"))]
struct Fused;

impl Arithmetic for Fused {
    #[inline(always)]
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl Simd {
    /// The fastest set of this processor.
    pub(super) fn fastest() -> Self {
        let available = SimdBackend::ALL.into_iter().rev().find(|backend| backend.is_available());
        Self(available.unwrap_or(SimdBackend::Portable))
    }

    /// This set, if the processor has it.
    pub(super) fn of(backend: SimdBackend) -> Option<Self> {
        backend.is_available().then_some(Self(backend))
    }

    /// Runs a kernel.
    pub(super) fn run(self, kernel: impl Kernel) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a value with this set exists only where the processor has it.
            SimdBackend::Avx2 => unsafe { x86::run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            SimdBackend::Avx512 => unsafe { x86::run_avx512(kernel) },
            _ => kernel.run(Separate),
        }
    }

    /// Has the first of these bytes brought near, because all will be read soon, one after the other.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "other processors are left to find out"))]
    pub(super) fn prefetch(self, bytes: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        x86::prefetch(bytes);
    }

    /// Which one it is.
    pub(super) fn backend(self) -> SimdBackend {
        self.0
    }

    /// Picks bytes of `row` as `windows` says, which was made for this set, for components at these offsets, into blocks of `block_bytes`.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "no set of other processors has windows"))]
    pub(super) fn pick_windows(self, windows: &Windows, offsets: &[usize], row: &[u8], target: &mut [u8], block_bytes: usize) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a value with this set exists only where the processor has it.
            SimdBackend::Avx2 => unsafe { x86::pick_avx2(windows, offsets, row, target, block_bytes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            SimdBackend::Avx512 => unsafe { x86::pick_avx512(windows, row, target) },
            _ => unreachable!("a set without windows is never asked for them"),
        }
    }

    /// Mixes the pixels of a row, weighed, to a row for each color, from windows. For AVX-512 alone.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "no set of other processors does"))]
    pub(super) fn mix_windows(self, windows: &PairWindows, weights: &[Weights], row: &[u8], rows: [&mut [[f32; LANES]]; 3]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a value with this set exists only where the processor has it.
            SimdBackend::Avx512 => unsafe { x86::mix_windows_avx512(windows, weights, row, rows) },
            _ => unreachable!("no other set is asked for windows of pairs"),
        }
    }

    /// The same, pixel by pixel. For AVX2, and what has it.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "no set of other processors does"))]
    pub(super) fn mix_pixels(self, pixels: &PixelPairs, weights: &[Weights], row: &[u8], rows: [&mut [[f32; LANES]]; 3]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a value with one of these sets exists only where the processor has it; AVX-512 is available only with AVX2.
            SimdBackend::Avx2 | SimdBackend::Avx512 => unsafe { x86::mix_pixels_avx2(pixels, weights, row, rows) },
            _ => unreachable!("the portable set is never asked for pixels"),
        }
    }

    /// Converts and mixes luma and color differences to a row for each color, for as many rows as share the differences. For AVX-512 alone.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "no set of other processors does"))]
    pub(super) fn mix_yuv<const R: usize>(
        self,
        factors: &YuvFactors,
        windows: &YuvWindows,
        weights: &[[f32; LANES]],
        source: YuvSource<'_, R>,
        rows: [[&mut [[f32; LANES]]; 3]; R],
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a value with this set exists only where the processor has it.
            SimdBackend::Avx512 => unsafe { x86::mix_yuv_avx512(factors, windows, weights, source, rows) },
            _ => unreachable!("no other set is asked for windows of luma and differences"),
        }
    }
}

/// Of a block of columns, how much of the first pixel and of the second one of each.
pub(super) type Weights = [[i16; 2]; LANES];
