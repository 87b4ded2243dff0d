//! SIMD backends of preprocessing, selected at run time. This module contains all `unsafe` code of `vision`.
//!
//! A kernel is written once in portable Rust and compiled for each backend. Two kinds of code are written by hand per backend: sampling
//! with permute instructions, and interpolation of samples in registers. Compilers do not generate such code.
//!
//! All backends give the same bits:
//!
//! - No kernel changes the order of operations that round.
//! - A multiplication and an addition are fused only if the product is exact, so that the fused result is the same; see
//!   `color::Yuv`.
//! - Integer kernels use values that single precision represents exactly, see `resize::FINE_STEPS` and `store::Normalizer::of_steps`.

#[cfg(target_arch = "x86_64")]
mod x86;

use super::color::YuvFactors;
use super::pairs::{PairWindows, PixelPairs};
use super::sample::{LANES, Windows};
use super::yuv::{YuvSource, YuvWindows};

/// A SIMD backend: a set of CPU features for which preprocessing is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SimdBackend {
    /// The features of the compilation target.
    Portable,
    /// AVX2 and FMA: Intel Haswell, AMD Zen, and newer.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VBMI: Intel Ice Lake, AMD Zen 4, and newer.
    Avx512,
}

impl SimdBackend {
    /// All backends, the fastest last.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// Whether this processor supports the backend.
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

/// A SIMD backend that this processor supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Simd(SimdBackend);

/// A loop that is compiled for each backend.
pub(super) trait Kernel {
    /// Runs the loop. Implementations must be `#[inline(always)]`, so that they are compiled for the features of the caller.
    fn run(self, arithmetic: impl Arithmetic);
}

/// The operation multiply-add as a backend executes it.
pub(super) trait Arithmetic: Copy {
    /// Returns `a * b + c`. The caller guarantees that product and sum are exact in single precision. So all implementations give
    /// the same bits.
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32;
}

/// Multiplies and adds with two separate instructions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Separate;

impl Arithmetic for Separate {
    #[inline(always)]
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// Multiplies and adds with one fused instruction. Without hardware support for this instruction, it is slow.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "used on x86-64 only"))]
struct Fused;

impl Arithmetic for Fused {
    #[inline(always)]
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl Simd {
    /// Returns the fastest backend of this processor.
    pub(super) fn fastest() -> Self {
        let available = SimdBackend::ALL.into_iter().rev().find(|backend| backend.is_available());
        Self(available.unwrap_or(SimdBackend::Portable))
    }

    /// Returns this backend; `None` if the processor does not support it.
    pub(super) fn of(backend: SimdBackend) -> Option<Self> {
        backend.is_available().then_some(Self(backend))
    }

    /// Runs a kernel on this backend.
    pub(super) fn run(self, kernel: impl Kernel) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the function requires the CPU features of this backend. A `Simd` with this backend exists only if the processor has
            // them.
            SimdBackend::Avx2 => unsafe { x86::run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the function requires the CPU features of this backend. A `Simd` with this backend exists only if the processor has
            // them.
            SimdBackend::Avx512 => unsafe { x86::run_avx512(kernel) },
            _ => kernel.run(Separate),
        }
    }

    /// Prefetches the start of `bytes`. Call this before the bytes are read sequentially.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "used on x86-64 only"))]
    pub(super) fn prefetch(self, bytes: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        x86::prefetch(bytes);
    }

    /// Returns the backend.
    pub(super) fn backend(self) -> SimdBackend {
        self.0
    }

    /// Samples a row with permute instructions. `windows` must be prepared for this backend. `offsets` are the byte offsets of the
    /// components in a pixel. `target` has blocks of `block_bytes` bytes.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "used on x86-64 only"))]
    pub(super) fn pick_windows(self, windows: &Windows, offsets: &[usize], row: &[u8], target: &mut [u8], block_bytes: usize) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the function requires the CPU features of this backend. A `Simd` with this backend exists only if the processor has
            // them.
            SimdBackend::Avx2 => unsafe { x86::pick_avx2(windows, offsets, row, target, block_bytes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the function requires the CPU features of this backend. A `Simd` with this backend exists only if the processor has
            // them.
            SimdBackend::Avx512 => unsafe { x86::pick_avx512(windows, row, target) },
            _ => unreachable!("windows are prepared for x86 backends only"),
        }
    }

    /// Interpolates a row of packed RGB bytes into one row per color, with windows. Requires the backend AVX-512.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "used on x86-64 only"))]
    pub(super) fn interpolate_windows(self, windows: &PairWindows, weights: &[Weights], row: &[u8], rows: [&mut [[f32; LANES]]; 3]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the function requires the CPU features of this backend. A `Simd` with this backend exists only if the processor has
            // them.
            SimdBackend::Avx512 => unsafe { x86::interpolate_windows_avx512(windows, weights, row, rows) },
            _ => unreachable!("pair windows are prepared for AVX-512 only"),
        }
    }

    /// Like [`Simd::interpolate_windows`], but with one load for the two pixels of each column. Requires the backend AVX2 or
    /// AVX-512.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "used on x86-64 only"))]
    pub(super) fn interpolate_pixels(self, pixels: &PixelPairs, weights: &[Weights], row: &[u8], rows: [&mut [[f32; LANES]]; 3]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the function requires AVX2. A `Simd` with one of these backends exists only if the processor has AVX2, which the
            // backend `Avx512` also checks.
            SimdBackend::Avx2 | SimdBackend::Avx512 => unsafe { x86::interpolate_pixels_avx2(pixels, weights, row, rows) },
            _ => unreachable!("pixel pairs are prepared for AVX2 and AVX-512 only"),
        }
    }

    /// Converts and interpolates `R` luma rows that share chroma. Each luma row results in one row per color. Requires the
    /// backend AVX-512.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "used on x86-64 only"))]
    pub(super) fn interpolate_yuv<const R: usize>(
        self,
        factors: &YuvFactors,
        windows: &YuvWindows,
        weights: &[[f32; LANES]],
        source: YuvSource<'_, R>,
        rows: [[&mut [[f32; LANES]]; 3]; R],
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the function requires the CPU features of this backend. A `Simd` with this backend exists only if the processor has
            // them.
            SimdBackend::Avx512 => unsafe { x86::interpolate_yuv_avx512(factors, windows, weights, source, rows) },
            _ => unreachable!("YUV windows are prepared for AVX-512 only"),
        }
    }
}

/// For each column of a block, the weights of its two pixels.
pub(super) type Weights = [[i16; 2]; LANES];
