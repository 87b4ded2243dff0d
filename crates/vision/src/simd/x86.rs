//! Code for x86 backends. Each function requires the CPU features of its backend.

use std::arch::x86_64::{
    __m128i, __m256i, __m512, __m512i, _MM_HINT_T0, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_loadu_si128, _mm_or_si128, _mm_prefetch,
    _mm_set_epi64x, _mm_shuffle_epi8, _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32, _mm_unpacklo_epi64, _mm256_cvtepi32_ps,
    _mm256_cvtepu8_epi16, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_storeu_ps, _mm512_add_epi8, _mm512_add_ps, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_madd_epi16,
    _mm512_maskz_permutex2var_epi8, _mm512_maskz_permutexvar_epi8, _mm512_max_epi32, _mm512_min_epi32, _mm512_movepi8_mask, _mm512_mul_ps,
    _mm512_or_si512, _mm512_permutex2var_epi8, _mm512_permutexvar_epi8, _mm512_set1_epi8, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_storeu_ps, _mm512_storeu_si512, _mm512_sub_ps,
};
use std::hint::black_box;

use super::{Fused, Kernel, Weights};
use crate::color::YuvFactors;
use crate::pairs::{PairWindows, PixelPairs};
use crate::sample::{LANES, Windows};
use crate::yuv::{YuvSource, YuvWindows};

/// Runs a kernel that is compiled for AVX2.
#[target_feature(enable = "avx2,fma")]
pub(super) fn run_avx2(kernel: impl Kernel) {
    kernel.run(Fused);
}

/// Runs a kernel that is compiled for AVX-512.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn run_avx512(kernel: impl Kernel) {
    kernel.run(Fused);
}

/// Samples a row with `pshufb`. Registers and windows have 16 bytes. `pshufb` writes zero where the highest bit of the control is set.
/// `offsets` are the byte offsets of the components in a pixel. Each component has two pieces in a block of `block_bytes` bytes;
/// `sample::Grid` defines pieces.
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

/// Implements [`pick_avx2`] for pieces of `P * 8` bytes. A component has a pair of pieces in each block: the first and the second samples
/// of [`LANES`] columns. `P` registers hold such a pair.
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
        more => unreachable!("windows are not used if a register needs {more} of them"),
    }
}

/// Implements [`pick_of_pieces`] for `W` windows per register.
#[target_feature(enable = "avx2")]
fn pick_of_windows<const W: usize, const P: usize>(windows: &Windows, offsets: &[usize], row: &[u8], target: &mut [u8]) {
    let pieces: &mut [[[u8; 8]; P]] = target.as_chunks_mut().0.as_chunks_mut().0;
    for (component, offset) in offsets.iter().enumerate() {
        let row = &row[*offset..];
        let mut registers = windows.registers_of::<16, W>();
        for block in pieces.chunks_exact_mut(n_pieces(offsets)) {
            let [firsts, seconds] = block[2 * component..].first_chunk_mut().expect("each component has two pieces");
            for ((firsts, seconds), (begin, controls)) in firsts.iter_mut().zip(seconds).zip(&mut registers) {
                let bytes: &[_; W] = row[begin..].as_chunks().0.first_chunk().expect("a row reaches to the end of its windows");
                let mut picked = _mm_shuffle_epi8(load_16(&bytes[0]), load_16(&controls[0]));
                for idx in 1..W {
                    picked = _mm_or_si128(picked, _mm_shuffle_epi8(load_16(&bytes[idx]), load_16(&controls[idx])));
                }
                store_halves_16(picked, firsts, seconds);
            }
        }
    }
}

/// Samples a row in registers of 64 bytes. Uses `vpermb` for windows of 64 bytes, and `vpermi2b` for windows of 128 bytes. If a register
/// has several windows, the highest bit of a control byte marks a byte that another window contains.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn pick_avx512(windows: &Windows, row: &[u8], target: &mut [u8]) {
    let targets = target.as_chunks_mut::<64>().0.iter_mut();
    if let Some(registers) = windows.single(64) {
        for ((begin, control), target) in registers.zip(targets) {
            store_64(_mm512_permutexvar_epi8(load_64(control), load_64(window(row, begin))), target);
        }
        return;
    }
    if let Some(registers) = windows.single(128) {
        for ((begin, control), target) in registers.zip(targets) {
            let [left, right] = load_128(window(row, begin));
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

/// Implements [`super::Simd::interpolate_windows`]. `vpermb` (windows of 64 bytes) or `vpermi2b` (128 bytes) moves one component of both
/// pixels of each column to the lower bytes of words. `vpmaddwd` multiplies the two values by their weights and adds the products.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn interpolate_windows_avx512(windows: &PairWindows, weights: &[Weights], row: &[u8], rows: [&mut [[f32; LANES]]; 3]) {
    match windows.window_bytes() {
        64 => interpolate_of_windows::<64>(windows, weights, row, rows, |control, window| {
            _mm512_maskz_permutexvar_epi8(LOWER_BYTES, control, load_64(window))
        }),
        128 => interpolate_of_windows::<128>(windows, weights, row, rows, |control, window| {
            let [left, right] = load_128(window);
            _mm512_maskz_permutex2var_epi8(LOWER_BYTES, left, control, right)
        }),
        other => unreachable!("windows of {other} bytes"),
    }
}

/// Mask of the lower byte of each word.
const LOWER_BYTES: u64 = 0x5555_5555_5555_5555;

/// Implements [`interpolate_windows_avx512`] for windows of `W` bytes.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn interpolate_of_windows<const W: usize>(
    windows: &PairWindows,
    weights: &[Weights],
    row: &[u8],
    [first, second, third]: [&mut [[f32; LANES]]; 3],
    pick: impl Fn(__m512i, &[u8; W]) -> __m512i,
) {
    let offsets = windows.offsets().map(|offset| _mm512_set1_epi8(offset as i8));
    let rows = first.iter_mut().zip(second).zip(third);
    for (((begin, control), weights), ((first, second), third)) in windows.blocks().zip(weights).zip(rows) {
        let window = window(row, begin);
        let (control, weights) = (load_64(control), load_pairs_16(weights));
        for (offset, interpolated) in offsets.into_iter().zip([first, second, third]) {
            let pairs = pick(_mm512_add_epi8(control, offset), window);
            store_f32s_16(_mm512_cvtepi32_ps(_mm512_madd_epi16(pairs, weights)), interpolated);
        }
    }
}

/// Implements [`super::Simd::interpolate_yuv`]. `vpermb` (windows of 64 bytes) or `vpermi2b` (128 bytes) moves a sample of each column to
/// the lowest byte of a double word. The double words are converted to `f32`. The contribution of chroma is computed once for all `R`
/// rows.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn interpolate_yuv_avx512<const R: usize>(
    factors: &YuvFactors,
    windows: &YuvWindows,
    weights: &[[f32; LANES]],
    source: YuvSource<'_, R>,
    rows: [[&mut [[f32; LANES]]; 3]; R],
) {
    // Hide the constant from the compiler. Otherwise, the compiler replaces the masked permutation by a permutation and a
    // separate masking instruction.
    let lowest_bytes = black_box(LOWEST_BYTES);
    match windows.window_bytes {
        64 => interpolate_yuv_of_windows::<R, 64>(factors, windows, weights, source, rows, |control, window| {
            _mm512_maskz_permutexvar_epi8(lowest_bytes, load_64(control), load_64(window))
        }),
        128 => interpolate_yuv_of_windows::<R, 128>(factors, windows, weights, source, rows, |control, window| {
            let [left, right] = load_128(window);
            _mm512_maskz_permutex2var_epi8(lowest_bytes, left, load_64(control), right)
        }),
        other => unreachable!("windows of {other} bytes"),
    }
}

/// Mask of the lowest byte of each double word.
const LOWEST_BYTES: u64 = 0x1111_1111_1111_1111;

/// Implements [`interpolate_yuv_avx512`] for windows of `W` bytes.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn interpolate_yuv_of_windows<const R: usize, const W: usize>(
    factors: &YuvFactors,
    windows: &YuvWindows,
    weights: &[[f32; LANES]],
    source: YuvSource<'_, R>,
    rows: [[&mut [[f32; LANES]]; 3]; R],
    pick: impl Fn(&[u8; 64], &[u8; W]) -> __m512i,
) {
    let [y_factor, r_v, g_u, g_v, b_u] =
        [factors.y, factors.r_v, factors.g_u, factors.g_v, factors.b_u].map(|factor| _mm512_set1_ps(factor));
    let [r_zero, g_zero, b_zero] = factors.zero.map(|zero| _mm512_set1_ps(zero));
    let max = _mm512_castps_si512(_mm512_set1_ps(255.0));
    // Clamps colors to 0..=255 by integer comparisons, as `color::bounded` does.
    let bounded = |color: __m512| {
        let color = _mm512_max_epi32(_mm512_castps_si512(color), _mm512_setzero_si512());
        _mm512_castsi512_ps(_mm512_min_epi32(color, max))
    };
    let blocks = windows.luma.blocks().zip(windows.chroma.blocks()).zip(weights).enumerate();
    for (block_idx, (((y_begin, y_controls), (begin, controls)), weights)) in blocks {
        let weights = load_f32s_16(weights);
        // Execute each step for all values before the next step. The instructions of a step are independent, so the processor can
        // execute them in parallel.
        let (u, v) = (window(source.u, begin), window(source.v, begin));
        let (u, v) = ([pick(&controls[0], u), pick(&controls[1], u)], [pick(&controls[0], v), pick(&controls[1], v)]);
        let (u, v) = (u.map(|u| _mm512_cvtepi32_ps(u)), v.map(|v| _mm512_cvtepi32_ps(v)));
        let mut lumas = [[_mm512_setzero_ps(); 2]; R];
        for (luma, row) in lumas.iter_mut().zip(source.lumas) {
            let row = window(row, y_begin);
            *luma = [_mm512_cvtepi32_ps(pick(&y_controls[0], row)), _mm512_cvtepi32_ps(pick(&y_controls[1], row))];
        }
        let mut chroma = [[r_zero; 2], [g_zero; 2], [b_zero; 2]];
        for tap in 0..2 {
            chroma[0][tap] = _mm512_fmadd_ps(r_v, v[tap], chroma[0][tap]);
            chroma[1][tap] = _mm512_fmadd_ps(g_v, v[tap], chroma[1][tap]);
            chroma[2][tap] = _mm512_fmadd_ps(b_u, u[tap], chroma[2][tap]);
        }
        for tap in 0..2 {
            chroma[1][tap] = _mm512_fmadd_ps(g_u, u[tap], chroma[1][tap]);
        }
        let mut colors = [[[_mm512_setzero_ps(); 2]; 3]; R];
        for row in 0..R {
            for color in 0..3 {
                for tap in 0..2 {
                    colors[row][color][tap] = _mm512_fmadd_ps(y_factor, lumas[row][tap], chroma[color][tap]);
                }
            }
        }
        for color in colors.as_flattened_mut().as_flattened_mut() {
            *color = bounded(*color);
        }
        let mut interpolated = [[_mm512_setzero_ps(); 3]; R];
        for row in 0..R {
            for color in 0..3 {
                let [first, second] = colors[row][color];
                interpolated[row][color] = _mm512_mul_ps(_mm512_sub_ps(second, first), weights);
            }
        }
        for row in 0..R {
            for color in 0..3 {
                store_f32s_16(_mm512_add_ps(colors[row][color][0], interpolated[row][color]), &mut rows[row][color][block_idx]);
            }
        }
    }
}

/// Implements [`super::Simd::interpolate_pixels`]. Loads the pixels of two columns into a register and selects the two values of each
/// component with `pshufb`. `vpmaddwd` multiplies the two values by their weights and adds the products.
#[target_feature(enable = "avx2")]
pub(super) fn interpolate_pixels_avx2(
    pixels: &PixelPairs,
    weights: &[Weights],
    row: &[u8],
    [first, second, third]: [&mut [[f32; LANES]]; 3],
) {
    let control = load_16(pixels.control());
    let last_begin = row.len().checked_sub(PixelPairs::N_BYTES).expect("the row contains all loaded bytes");
    let rows = first.iter_mut().zip(second).zip(third);
    for ((begins, weights), ((first, second), third)) in pixels.begins().iter().zip(weights).zip(rows) {
        // This assertion is one check for all loads. Without it, the compiler would check each load.
        assert!(begins.iter().fold(0, |max, begin| max.max(*begin)) as usize <= last_begin, "the row contains all loaded bytes");
        let halves = begins.as_chunks::<8>().0.iter().zip(weights.as_chunks().0);
        let interpolated = [first, second, third].map(|interpolated| interpolated.as_chunks_mut().0);
        let [first, second, third] = interpolated;
        for ((begins, weights), ((first, second), third)) in halves.zip(first.iter_mut().zip(second).zip(third)) {
            let pairs_of = |idx: usize| {
                // SAFETY: the assertion above guarantees that the row has at least 8 bytes from each offset on. The read needs no
                // alignment.
                let load = |begin: u32| i64::from_le(unsafe { row.as_ptr().add(begin as usize).cast::<i64>().read_unaligned() });
                _mm_shuffle_epi8(_mm_set_epi64x(load(begins[idx + 1]), load(begins[idx])), control)
            };
            let (two, four, six, eight) = (pairs_of(0), pairs_of(2), pairs_of(4), pairs_of(6));
            let (low, high) = (_mm_unpacklo_epi32(two, four), _mm_unpacklo_epi32(six, eight));
            let (third_low, third_high) = (_mm_unpackhi_epi32(two, four), _mm_unpackhi_epi32(six, eight));
            let weights = load_pairs_8(weights);
            let interpolate = |pairs: __m128i| _mm256_madd_epi16(_mm256_cvtepu8_epi16(pairs), weights);
            store_f32s_8(interpolate(_mm_unpacklo_epi64(low, high)), first);
            store_f32s_8(interpolate(_mm_unpackhi_epi64(low, high)), second);
            store_f32s_8(interpolate(_mm_unpacklo_epi64(third_low, third_high)), third);
        }
    }
}

/// Prefetches the first cache lines of `bytes`. The hardware prefetcher continues from there.
pub(super) fn prefetch(bytes: &[u8]) {
    const LINE_BYTES: usize = 64;
    const N_LINES: usize = 4;
    for line in bytes.chunks(LINE_BYTES).take(N_LINES) {
        // SAFETY: the instruction requires SSE, which every x86-64 processor has. It is valid for any address, because it only
        // loads the cache.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

/// Returns the number of pieces of a block: two per component, rounded up to a power of two.
fn n_pieces(offsets: &[usize]) -> usize {
    (2 * offsets.len()).next_power_of_two()
}

#[inline(always)]
fn window<const W: usize>(row: &[u8], begin: usize) -> &[u8; W] {
    row[begin..].first_chunk().expect("a row reaches to the end of its windows")
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: there are 16 bytes, and the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_pairs_8(pairs: &[[i16; 2]; 8]) -> __m256i {
    // SAFETY: there are 32 bytes, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(pairs.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_pairs_16(pairs: &[[i16; 2]; 16]) -> __m512i {
    // SAFETY: there are 64 bytes, and the load needs no alignment.
    unsafe { _mm512_loadu_si512(pairs.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_f32s_16(values: &[f32; 16]) -> __m512 {
    // SAFETY: there are 16 numbers, and the load needs no alignment.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_f32s_16(values: __m512, target: &mut [f32; 16]) {
    // SAFETY: there are 16 numbers, and the store needs no alignment.
    unsafe { _mm512_storeu_ps(target.as_mut_ptr(), values) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_f32s_8(values: __m256i, target: &mut [f32; 8]) {
    // SAFETY: there are 8 numbers, and the store needs no alignment.
    unsafe { _mm256_storeu_ps(target.as_mut_ptr(), _mm256_cvtepi32_ps(values)) }
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
