//! What is compiled for instructions of x86 processors. Every function here may be called only where they are.

use std::arch::x86_64::{
    __m128i, __m512i, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_loadu_si128, _mm_or_si128, _mm_setzero_si128, _mm_shuffle_epi8,
    _mm256_storeu_si256, _mm512_castsi512_si256, _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_maskz_permutex2var_epi8,
    _mm512_movepi8_mask, _mm512_or_si512, _mm512_permutex2var_epi8, _mm512_setzero_si512,
};

use super::Kernel;
use crate::vision::sample::Windows;

/// A kernel, compiled for AVX2.
#[target_feature(enable = "avx2")]
pub(super) fn run_avx2(kernel: impl Kernel) {
    kernel.run();
}

/// A kernel, compiled for AVX-512.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn run_avx512(kernel: impl Kernel) {
    kernel.run();
}

/// Blocks and windows of 16 bytes, by `pshufb`, which gives zero where the highest bit of its control is set.
#[target_feature(enable = "avx2")]
pub(super) fn pick_avx2(windows: &Windows, row: &[u8], firsts: &mut [u8], seconds: &mut [u8]) {
    let targets = firsts.as_chunks_mut::<8>().0.iter_mut().zip(seconds.as_chunks_mut::<8>().0);
    if let Some(blocks) = windows.single() {
        for ((begin, control), (firsts, seconds)) in blocks.zip(targets) {
            let (window, _) = row[begin..].split_first_chunk().expect("a row reaches to the end of its windows");
            store_halves_16(_mm_shuffle_epi8(load_16(window), load_16(control)), firsts, seconds);
        }
        return;
    }
    for ((begin, controls), (firsts, seconds)) in windows.blocks().zip(targets) {
        let mut picked = _mm_setzero_si128();
        for (window, control) in row[begin..].as_chunks().0.iter().zip(controls) {
            picked = _mm_or_si128(picked, _mm_shuffle_epi8(load_16(window), load_16(control)));
        }
        store_halves_16(picked, firsts, seconds);
    }
}

/// Blocks of 64 bytes and windows of 128, by `vpermi2b`, with the highest bits of its control as a mask.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn pick_avx512(windows: &Windows, row: &[u8], firsts: &mut [u8], seconds: &mut [u8]) {
    let targets = firsts.as_chunks_mut::<32>().0.iter_mut().zip(seconds.as_chunks_mut::<32>().0);
    if let Some(blocks) = windows.single() {
        for ((begin, control), (firsts, seconds)) in blocks.zip(targets) {
            let (window, _) = row[begin..].split_first_chunk().expect("a row reaches to the end of its windows");
            let [left, right] = load_128(window);
            store_halves_64(_mm512_permutex2var_epi8(left, load_64(control), right), firsts, seconds);
        }
        return;
    }
    for ((begin, controls), (firsts, seconds)) in windows.blocks().zip(targets) {
        let mut picked = _mm512_setzero_si512();
        for (window, control) in row[begin..].as_chunks().0.iter().zip(controls) {
            let ([left, right], control) = (load_128(window), load_64(control));
            let is_inside = !_mm512_movepi8_mask(control);
            picked = _mm512_or_si512(picked, _mm512_maskz_permutex2var_epi8(is_inside, left, control, right));
        }
        store_halves_64(picked, firsts, seconds);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: there are 16 bytes, and the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_halves_16(bytes: __m128i, low: &mut [u8; 8], high: &mut [u8; 8]) {
    *low = _mm_cvtsi128_si64(bytes).to_le_bytes();
    *high = _mm_extract_epi64::<1>(bytes).to_le_bytes();
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_64(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: there are 64 bytes, and the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_128(bytes: &[u8; 128]) -> [__m512i; 2] {
    // SAFETY: there are 128 bytes, and the loads need no alignment.
    unsafe { [_mm512_loadu_si512(bytes.as_ptr().cast()), _mm512_loadu_si512(bytes[64..].as_ptr().cast())] }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_halves_64(bytes: __m512i, low: &mut [u8; 32], high: &mut [u8; 32]) {
    // SAFETY: both are 32 bytes, and the stores need no alignment.
    unsafe {
        _mm256_storeu_si256(low.as_mut_ptr().cast(), _mm512_castsi512_si256(bytes));
        _mm256_storeu_si256(high.as_mut_ptr().cast(), _mm512_extracti64x4_epi64::<1>(bytes));
    }
}
