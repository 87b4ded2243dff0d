//! What is compiled for instructions of x86 processors. Every function here may be called only where they are.

use std::arch::x86_64::{
    __m128i, __m512i, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_loadu_si128, _mm_or_si128, _mm_shuffle_epi8, _mm512_loadu_si512,
    _mm512_maskz_permutex2var_epi8, _mm512_movepi8_mask, _mm512_or_si512, _mm512_permutex2var_epi8, _mm512_permutexvar_epi8,
    _mm512_setzero_si512, _mm512_storeu_si512,
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

/// Registers and windows of 16 bytes, by `pshufb`, which gives zero where the highest bit of its control is set. `offsets` are those of the
/// components; each has two pieces in a block of `block_bytes`.
#[target_feature(enable = "avx2")]
pub(super) fn pick_avx2(windows: &Windows, offsets: &[usize], row: &[u8], target: &mut [u8], block_bytes: usize) {
    // Each register has 8 bytes of both pieces of a component.
    match block_bytes / n_pieces(offsets) {
        16 => pick_of_pieces::<2>(windows, offsets, row, target),
        32 => pick_of_pieces::<4>(windows, offsets, row, target),
        64 => pick_of_pieces::<8>(windows, offsets, row, target),
        other => unreachable!("16 samples of {other} bytes in all"),
    }
}

/// Of pieces that are filled by `P` registers.
#[target_feature(enable = "avx2")]
fn pick_of_pieces<const P: usize>(windows: &Windows, offsets: &[usize], row: &[u8], target: &mut [u8]) {
    match windows.n_per_register() {
        1 => pick_of_windows::<1, P>(windows, offsets, row, target),
        2 => pick_of_windows::<2, P>(windows, offsets, row, target),
        3 => pick_of_windows::<3, P>(windows, offsets, row, target),
        4 => pick_of_windows::<4, P>(windows, offsets, row, target),
        5 => pick_of_windows::<5, P>(windows, offsets, row, target),
        6 => pick_of_windows::<6, P>(windows, offsets, row, target),
        7 => pick_of_windows::<7, P>(windows, offsets, row, target),
        8 => pick_of_windows::<8, P>(windows, offsets, row, target),
        more => unreachable!("with {more} windows for a register they are not used"),
    }
}

/// With `W` windows for each register.
#[target_feature(enable = "avx2")]
fn pick_of_windows<const W: usize, const P: usize>(windows: &Windows, offsets: &[usize], row: &[u8], target: &mut [u8]) {
    let pieces: &mut [[[u8; 8]; P]] = target.as_chunks_mut().0.as_chunks_mut().0;
    for (component, offset) in offsets.iter().enumerate() {
        let row = &row[*offset..];
        let mut registers = windows.registers_of::<16, W>();
        for block in pieces.chunks_exact_mut(n_pieces(offsets)) {
            let (firsts, seconds) = block.split_at_mut(2 * component + 1);
            let (firsts, seconds) = (&mut firsts[2 * component], &mut seconds[0]);
            for ((firsts, seconds), (begin, controls)) in firsts.iter_mut().zip(seconds).zip(&mut registers) {
                let windows: &[_; W] = row[begin..].as_chunks().0.first_chunk().expect("a row reaches to the end of its windows");
                let mut picked = _mm_shuffle_epi8(load_16(&windows[0]), load_16(&controls[0]));
                for idx in 1..W {
                    picked = _mm_or_si128(picked, _mm_shuffle_epi8(load_16(&windows[idx]), load_16(&controls[idx])));
                }
                store_halves_16(picked, firsts, seconds);
            }
        }
    }
}

/// Registers of 64 bytes and windows of as many, by `vpermb`, or of 128, by `vpermi2b` with the highest bits of its control as a mask.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn pick_avx512(windows: &Windows, row: &[u8], target: &mut [u8]) {
    const REACHES: &str = "a row reaches to the end of its windows";
    let targets = target.as_chunks_mut::<64>().0.iter_mut();
    if let Some(registers) = windows.single(64) {
        for ((begin, control), target) in registers.zip(targets) {
            let (window, _) = row[begin..].split_first_chunk().expect(REACHES);
            store_64(_mm512_permutexvar_epi8(load_64(control), load_64(window)), target);
        }
        return;
    }
    if let Some(registers) = windows.single(128) {
        for ((begin, control), target) in registers.zip(targets) {
            let (window, _) = row[begin..].split_first_chunk().expect(REACHES);
            let [left, right] = load_128(window);
            store_64(_mm512_permutex2var_epi8(left, load_64(control), right), target);
        }
        return;
    }
    for ((begin, controls), target) in windows.registers().zip(targets) {
        let mut picked = _mm512_setzero_si512();
        for (window, control) in row[begin..].as_chunks().0.iter().zip(controls) {
            let ([left, right], control) = (load_128(window), load_64(control));
            let is_inside = !_mm512_movepi8_mask(control);
            picked = _mm512_or_si512(picked, _mm512_maskz_permutex2var_epi8(is_inside, left, control, right));
        }
        store_64(picked, target);
    }
}

/// Of a block: two for each component, and what fills it up.
fn n_pieces(offsets: &[usize]) -> usize {
    (2 * offsets.len()).next_power_of_two()
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
fn store_64(bytes: __m512i, target: &mut [u8; 64]) {
    // SAFETY: there are 64 bytes, and the store needs no alignment.
    unsafe { _mm512_storeu_si512(target.as_mut_ptr().cast(), bytes) }
}
