//! Writes lines of the input tensor: interpolates two rows vertically, normalizes, and encodes values as the element type of the input, for
//! any strides. This module uses no pixel formats and no colors.

use std::ops::Range;

use super::preprocess::{InputLayout, Rotation};
use super::resize::integer_pixel;
use super::simd::{Arithmetic, Kernel, Simd};
use crate::tensor::{BytesMut, ElementType, Error, ErrorKind, Result};

/// Element types of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputElement {
    F32,
    F16,
    Bf16,
    U8,
    I8,
    I32,
}

impl InputElement {
    /// Converts an element type to the enumeration of supported types.
    ///
    /// # Errors
    /// Returns [`ErrorKind::ElementType`] if the type is not supported.
    pub(super) fn new(element: ElementType) -> Result<Self> {
        Ok(match element {
            ElementType::F32 => Self::F32,
            ElementType::F16 => Self::F16,
            ElementType::Bf16 => Self::Bf16,
            ElementType::U8 => Self::U8,
            ElementType::I8 => Self::I8,
            ElementType::I32 => Self::I32,
            other => {
                return Err(Error::new(
                    ErrorKind::ElementType,
                    format!("image input: expected an element type of f32, f16, bf16, u8, i8 or i32, got {other}"),
                ));
            }
        })
    }
}

/// Normalization of pixel values: `(pixel - mean) / scale`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Normalizer {
    pub(super) mean: f32,
    /// `1 / scale`.
    pub(super) factor: f32,
}

impl Normalizer {
    /// Returns the normalization for pixel values in units of `1 / n_steps`, where `n_steps` is a power of two. Its results have the same
    /// bits as those of `self`. Returns `None` if values would overflow or lose precision.
    pub(super) fn of_steps(self, n_steps: f32) -> Option<Self> {
        let of_steps = Self { mean: self.mean * n_steps, factor: self.factor / n_steps };
        (of_steps.mean / n_steps == self.mean && of_steps.factor * n_steps == self.factor).then_some(of_steps)
    }

    #[inline(always)]
    pub(super) fn value(self, pixel: f32) -> f32 {
        (pixel - self.mean) * self.factor
    }
}

/// The values from which a line of the input is computed.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) blend: Blend<'a>,
    /// Number of columns, which is the distance between the rows of two colors.
    pub(super) n_columns: usize,
    /// For each channel, the index of its color.
    pub(super) color_of_channel: [usize; 3],
    /// Normalization of each channel.
    pub(super) normalizers: [Normalizer; 3],
}

/// The two rows to interpolate, for each color, and the weight of the second row.
#[derive(Debug)]
pub(super) enum Blend<'a> {
    /// Pixel values. If [`Normalizer::of_steps`] created the normalizers, the values are in units of 1 / `n_steps`.
    Exact { first: &'a [f32], second: &'a [f32], weight: f32 },
    /// Fixed-point sums, which [`integer_pixel`] combines into a pixel.
    Integer { first: &'a [u16], second: &'a [u16], steps: u16 },
}

/// Writes one batch item of an input line by line. If the image is rotated, its lines can be columns of the input.
pub(super) struct InputRow<'a> {
    /// Bytes of each channel, from the first line on. If the channels are not in separate ranges of memory, the first slice has
    /// the bytes of all channels.
    planes: [&'a mut [u8]; 3],
    /// Index of the first line that `planes` contains.
    first_line: usize,
    element: InputElement,
    n_channels: usize,
    /// Offset in a plane of the first value of the first line. It depends on the rotation.
    offset_bytes: usize,
    /// Distance of adjacent channels, if one plane contains all channels.
    channel_stride_bytes: usize,
    has_plane_per_channel: bool,
    line_stride_bytes: isize,
    column_stride_bytes: isize,
    /// Whether each line is after the previous line in memory, so that the lines can be divided among threads.
    is_divisible: bool,
    simd: Simd,
    /// Buffer for one line of each channel, which is used if the channels of the input are interleaved.
    lines: &'a mut Vec<u8>,
}

impl<'a> InputRow<'a> {
    /// Creates a writer for batch item `row` of `input`, whose axes are in the order `axes`. The lines and columns of the writer
    /// are those of the unrotated image.
    ///
    /// # Errors
    /// Returns [`ErrorKind::ElementType`] if the element type of the input is not supported.
    pub(super) fn new(
        input: &'a mut BytesMut,
        axes: InputLayout,
        rotation: Rotation,
        row: usize,
        simd: Simd,
        lines: &'a mut Vec<u8>,
    ) -> Result<Self> {
        let layout = *input.layout();
        let element = InputElement::new(layout.element())?;
        let strides = layout.stride_bytes();
        let (channel, line, column) = match axes {
            InputLayout::Nchw => (1, 2, 3),
            InputLayout::Nhwc => (3, 1, 2),
        };
        // An axis of length 1 may have any stride, including 0.
        let stride = |axis: usize| (if layout.shape()[axis] > 1 { strides[axis] } else { layout.element().size() }) as isize;
        let last_bytes = |axis: usize| (layout.shape()[axis] - 1) * strides[axis];
        let (begin_bytes, line_stride_bytes, column_stride_bytes) = match rotation {
            Rotation::None => (0, stride(line), stride(column)),
            Rotation::Clockwise => (last_bytes(column), -stride(column), stride(line)),
            Rotation::Half => (last_bytes(line) + last_bytes(column), -stride(line), -stride(column)),
            Rotation::Counterclockwise => (last_bytes(line), stride(column), -stride(line)),
        };
        let (n_channels, channel_stride_bytes) = (layout.shape()[channel], strides[channel]);
        let bytes = &mut input.extent_mut()[row * strides[0]..];
        let plane_bytes = last_bytes(line) + last_bytes(column) + layout.element().size();
        let has_plane_per_channel = n_channels == 3 && channel_stride_bytes >= plane_bytes;
        let planes = if has_plane_per_channel {
            let (first, rest) = bytes.split_at_mut(channel_stride_bytes);
            let (second, third) = rest.split_at_mut(channel_stride_bytes);
            [first, second, third]
        } else {
            [bytes, &mut [], &mut []]
        };
        let channels_bytes = if has_plane_per_channel { 0 } else { last_bytes(channel) };
        let line_bytes = last_bytes(column) + channels_bytes + layout.element().size();
        Ok(Self {
            planes,
            first_line: 0,
            element,
            n_channels,
            offset_bytes: begin_bytes,
            channel_stride_bytes,
            has_plane_per_channel,
            line_stride_bytes,
            column_stride_bytes,
            is_divisible: rotation == Rotation::None && stride(line) as usize >= line_bytes,
            simd,
            lines,
        })
    }

    /// Whether [`InputRow::split_off`] can be used.
    pub(super) fn is_divisible(&self) -> bool {
        self.is_divisible
    }

    /// Splits off the lines from `line` on, and returns a writer for them. `lines` is the buffer of that writer. Requires
    /// [`InputRow::is_divisible`].
    pub(super) fn split_off(&mut self, line: usize, lines: &'a mut Vec<u8>) -> Self {
        let at = (line - self.first_line) * self.line_stride_bytes.unsigned_abs();
        let planes = self.planes.each_mut().map(|plane| {
            let bytes = std::mem::take(plane);
            let (own, rest) = bytes.split_at_mut(at.min(bytes.len()));
            *plane = own;
            rest
        });
        Self { planes, first_line: line, lines, ..*self }
    }

    /// Writes `pixel` to `n` pixels of line `y`, from column `x` on.
    pub(super) fn fill(&mut self, y: usize, x: usize, n: usize, pixel: [f32; 3]) {
        if n == 0 {
            return;
        }
        match self.element {
            InputElement::F32 => self.fill_cells(y, x, n, pixel.map(f32::to_ne_bytes)),
            InputElement::F16 => self.fill_cells(y, x, n, pixel.map(f16_cell)),
            InputElement::Bf16 => self.fill_cells(y, x, n, pixel.map(bf16_cell)),
            InputElement::U8 => self.fill_cells(y, x, n, pixel.map(u8_cell)),
            InputElement::I8 => self.fill_cells(y, x, n, pixel.map(i8_cell)),
            InputElement::I32 => self.fill_cells(y, x, n, pixel.map(i32_cell)),
        }
    }

    /// Interpolates and normalizes `n` pixels of `line`, and writes them into line `y` of the input, from column `x` on.
    pub(super) fn blend(&mut self, y: usize, x: usize, n: usize, line: &Line<'_>) {
        match self.element {
            InputElement::F32 => self.blend_cells(y, x, n, line, f32::to_ne_bytes),
            InputElement::F16 => self.blend_cells(y, x, n, line, f16_cell),
            InputElement::Bf16 => self.blend_cells(y, x, n, line, bf16_cell),
            InputElement::U8 => self.blend_cells(y, x, n, line, u8_cell),
            InputElement::I8 => self.blend_cells(y, x, n, line, i8_cell),
            InputElement::I32 => self.blend_cells(y, x, n, line, i32_cell),
        }
    }

    fn fill_cells<const N: usize>(&mut self, y: usize, x: usize, n: usize, pixel: [[u8; N]; 3]) {
        if self.is_interleaved(N) {
            self.from(0, y, x)[..3 * N * n].as_chunks_mut::<N>().0.as_chunks_mut::<3>().0.fill(pixel);
            return;
        }
        let simd = self.simd;
        for (channel, cell) in pixel.into_iter().enumerate().take(self.n_channels) {
            if self.column_stride_bytes == N as isize {
                simd.run(Repeat { cell, target: self.from(channel, y, x)[..N * n].as_chunks_mut().0 });
            } else {
                let (offset_bytes, stride_bytes) = (self.offset_bytes(channel, y, x), self.column_stride_bytes);
                scatter(self.planes[self.plane_of(channel)], offset_bytes, stride_bytes, std::iter::repeat_n(&cell, n));
            }
        }
    }

    fn blend_cells<const N: usize>(&mut self, y: usize, x: usize, n: usize, line: &Line<'_>, encode: impl Fn(f32) -> [u8; N] + Copy) {
        let (simd, stride_bytes) = (self.simd, self.column_stride_bytes);
        if stride_bytes == N as isize {
            if self.has_plane_per_channel {
                let begin = self.offset_bytes(0, y, x);
                let [first, second, third] = &mut self.planes;
                let targets = [first, second, third].map(|plane| plane[begin..][..N * n].as_chunks_mut().0);
                return simd.run(EncodeLine { line, channels: 0..3, targets, encode });
            }
            for channel in 0..self.n_channels {
                let target = self.from(channel, y, x)[..N * n].as_chunks_mut().0;
                simd.run(EncodeLine { line, channels: channel..channel + 1, targets: [target], encode });
            }
            return;
        }
        self.lines.resize(self.n_channels * N * n, 0);
        for (channel, target) in self.lines.chunks_exact_mut(N * n).enumerate() {
            simd.run(EncodeLine { line, channels: channel..channel + 1, targets: [target.as_chunks_mut().0], encode });
        }
        if self.is_interleaved(N) {
            let offset_bytes = self.offset_bytes(0, y, x);
            let target = self.planes[0][offset_bytes..][..3 * N * n].as_chunks_mut::<N>().0.as_chunks_mut::<3>().0;
            let lines = self.lines.as_chunks::<N>().0;
            simd.run(Interleave { channels: [&lines[..n], &lines[n..2 * n], &lines[2 * n..]], target });
            return;
        }
        for channel in 0..self.n_channels {
            let offset_bytes = self.offset_bytes(channel, y, x);
            let cells = self.lines[channel * N * n..][..N * n].as_chunks::<N>().0.iter();
            scatter(self.planes[self.plane_of(channel)], offset_bytes, stride_bytes, cells);
        }
    }

    /// Whether a line has no gaps: the three values of each pixel and the pixels are contiguous. A value has `n_bytes` bytes.
    fn is_interleaved(&self, n_bytes: usize) -> bool {
        self.n_channels == 3 && self.channel_stride_bytes == n_bytes && self.column_stride_bytes == 3 * n_bytes as isize
    }

    fn plane_of(&self, channel: usize) -> usize {
        if self.has_plane_per_channel { channel } else { 0 }
    }

    /// Returns the offset of a value in the plane of its channel.
    fn offset_bytes(&self, channel: usize, y: usize, x: usize) -> usize {
        let within = if self.has_plane_per_channel { 0 } else { channel * self.channel_stride_bytes };
        let moved = (y - self.first_line) as isize * self.line_stride_bytes + x as isize * self.column_stride_bytes;
        (self.offset_bytes + within).strict_add_signed(moved)
    }

    fn from(&mut self, channel: usize, y: usize, x: usize) -> &mut [u8] {
        let offset_bytes = self.offset_bytes(channel, y, x);
        &mut self.planes[self.plane_of(channel)][offset_bytes..]
    }
}

/// Writes cells at a distance of `stride_bytes`, starting at `offset_bytes`.
fn scatter<'a, const N: usize>(bytes: &mut [u8], offset_bytes: usize, stride_bytes: isize, cells: impl Iterator<Item = &'a [u8; N]>) {
    let mut at = offset_bytes;
    for cell in cells {
        bytes[at..at + N].copy_from_slice(cell);
        // After the last cell, the offset may wrap around below 0, but it is not used any more.
        at = at.wrapping_add_signed(stride_bytes);
    }
}

/// Interpolates two rows vertically, normalizes the values, and encodes them.
struct EncodeLine<'a, F, const N: usize, const C: usize> {
    line: &'a Line<'a>,
    channels: Range<usize>,
    /// Output cells of each channel.
    targets: [&'a mut [[u8; N]]; C],
    encode: F,
}

impl<F: Fn(f32) -> [u8; N], const N: usize, const C: usize> Kernel for EncodeLine<'_, F, N, C> {
    #[inline(always)]
    fn run(self, _: impl Arithmetic) {
        let Self { line, channels, targets, encode } = self;
        for (channel, target) in channels.zip(targets) {
            let begin = line.color_of_channel[channel] * line.n_columns;
            let (range, normalizer) = (begin..begin + target.len(), line.normalizers[channel]);
            match line.blend {
                Blend::Exact { first, weight: 0.0, .. } => {
                    let row = &first[range];
                    encode_each(row, row, target, |pixel, _| encode(normalizer.value(pixel)));
                }
                Blend::Exact { first, second, weight } => {
                    let interpolated = |first, second| first + (second - first) * weight;
                    encode_each(&first[range.clone()], &second[range], target, |first, second| {
                        encode(normalizer.value(interpolated(first, second)))
                    });
                }
                Blend::Integer { first, second, steps } => {
                    let pixel = |first, second| f32::from(integer_pixel(first, second, steps));
                    encode_each(&first[range.clone()], &second[range], target, |first, second| {
                        encode(normalizer.value(pixel(first, second)))
                    });
                }
            }
        }
    }
}

// A separate function of slices, so that the compiler knows that the target does not overlap the sources.
#[inline(always)]
fn encode_each<T: Copy, const N: usize>(first: &[T], second: &[T], target: &mut [[u8; N]], encode: impl Fn(T, T) -> [u8; N]) {
    for ((cell, first), second) in target.iter_mut().zip(first).zip(second) {
        *cell = encode(*first, *second);
    }
}

/// Fills cells with one value.
struct Repeat<'a, const N: usize> {
    cell: [u8; N],
    target: &'a mut [[u8; N]],
}

impl<const N: usize> Kernel for Repeat<'_, N> {
    #[inline(always)]
    fn run(self, _: impl Arithmetic) {
        self.target.fill(self.cell);
    }
}

/// Interleaves the values of three channels.
struct Interleave<'a, const N: usize> {
    channels: [&'a [[u8; N]]; 3],
    target: &'a mut [[[u8; N]; 3]],
}

impl<const N: usize> Kernel for Interleave<'_, N> {
    #[inline(always)]
    fn run(self, _: impl Arithmetic) {
        let [r, g, b] = self.channels;
        interleave(r, g, b, self.target);
    }
}

#[inline(always)]
fn interleave<const N: usize>(first: &[[u8; N]], second: &[[u8; N]], third: &[[u8; N]], target: &mut [[[u8; N]; 3]]) {
    for (((pixel, first), second), third) in target.iter_mut().zip(first).zip(second).zip(third) {
        *pixel = [*first, *second, *third];
    }
}

// These functions encode a value. Floating-point types round to nearest even. `u8` and `i8` round half up and saturate; NaN gives 0.

#[inline(always)]
fn f16_cell(value: f32) -> [u8; 2] {
    f16_bits(value).to_ne_bytes()
}

#[inline(always)]
fn bf16_cell(value: f32) -> [u8; 2] {
    bf16_bits(value).to_ne_bytes()
}

#[inline(always)]
fn u8_cell(value: f32) -> [u8; 1] {
    // For values below -0.5, the cast saturates to 0. For all other values, truncation equals `floor`.
    [(value + 0.5) as u8]
}

#[inline(always)]
fn i8_cell(value: f32) -> [u8; 1] {
    ((value + 0.5).floor() as i8).to_ne_bytes()
}

#[inline(always)]
fn i32_cell(value: f32) -> [u8; 4] {
    ((value + 0.5).floor() as i32).to_ne_bytes()
}

/// Converts to bfloat16 bits, rounding to nearest even. NaN stays NaN.
#[inline(always)]
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Converts to IEEE half precision bits, rounding to nearest even. Overflow gives infinity; NaN stays NaN.
///
/// The code selects between values instead of branching, so that the compiler can vectorize loops.
#[inline(always)]
fn f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    // 2^-14 is the smallest normal half. For smaller magnitudes, the addition of 0.5 shifts and rounds the fraction: the last bit of the
    // sum has the value 2^-24, which is the smallest subnormal half.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    // Change the exponent bias from 127 to 15, and round. If the rounding carries out of the fraction, the carry increments the
    // exponent, which is correct.
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + ((magnitude >> 13) & 1)) >> 13;
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let half = if magnitude < 113 << 23 {
        subnormal
    } else if magnitude < 143 << 23 {
        normal
    } else {
        special
    };
    sign | half as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    /// Returns the value of a half, computed from the definition of the format.
    fn f16_value(bits: u16) -> f64 {
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
        let magnitude = match exponent {
            0 => fraction * 2_f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
        };
        if bits & 0x8000 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn halves_round_trip_and_midpoints_round_to_even() {
        for bits in 0..=u16::MAX {
            let value = f16_value(bits);
            if value.is_nan() {
                assert!(f16_value(f16_bits(value as f32)).is_nan());
                continue;
            }
            assert_eq!(f16_bits(value as f32), bits, "{value}");
            let (next, sign) = (bits + 1, bits & 0x8000);
            if next & 0x7fff < 0x7c00 && next & 0x8000 == sign {
                let middle = (value + f16_value(next)) / 2.0;
                let even = if bits & 1 == 0 { bits } else { next };
                assert_eq!(f16_bits(middle as f32), even, "{middle}");
                let (below, above) = (middle * (1.0 - 1e-6), middle * (1.0 + 1e-6));
                assert_eq!((f16_bits(below as f32), f16_bits(above as f32)), (bits, next), "about {middle}");
            }
        }
        // 65520 is the midpoint between the largest half, 65504, and 65536, which overflows.
        assert_eq!([65504.0, 65519.0, 65520.0, 1e9, -1e9].map(f16_bits), [0x7bff, 0x7bff, 0x7c00, 0x7c00, 0xfc00]);
    }

    #[test]
    fn bfloats_round_to_nearest_even() {
        #[derive(Debug)]
        struct Case(u32, u16);
        let cases = [
            Case(0x3f80_0000, 0x3f80),
            Case(0x3f80_8000, 0x3f80),
            Case(0x3f81_8000, 0x3f82),
            Case(0x3f80_8001, 0x3f81),
            Case(0xbfff_ffff, 0xc000),
            Case(0x7f80_0000, 0x7f80),
            Case(0x7f80_0001, 0x7fc0),
        ];
        for case in cases {
            assert_eq!(bf16_bits(f32::from_bits(case.0)), case.1, "{case:x?}");
        }
    }

    #[test]
    fn step_normalizers_exist_only_without_overflow() {
        let of_steps = |mean, factor| Normalizer { mean, factor }.of_steps(16384.0).map(|of_steps| of_steps.value(100.0 * 16384.0));
        for (mean, factor) in [(103.53, 1.0 / 57.375), (0.0, 1.0), (-1e-45, 1.0), (1e34, 1e-33)] {
            assert_eq!(of_steps(mean, factor), Some(Normalizer { mean, factor }.value(100.0)), "{mean}, {factor}");
        }
        assert_eq!([(f32::MAX, 1.0), (0.0, 1.1e-38), (f32::NAN, 1.0)].map(|(mean, factor)| of_steps(mean, factor)), [None; 3]);
    }

    #[test]
    fn bytes_round_half_up_and_saturate() {
        let values = [-0.6, -0.5, 0.49, 0.5, 254.5, 255.7, -1e9, f32::NAN];
        assert_eq!(values.map(u8_cell).as_flattened(), [0, 0, 0, 1, 255, 255, 0, 0]);
        let values = [-128.6, -1.5, -0.6, -0.5, 126.5, 200.0, -1e9, f32::NAN];
        assert_eq!(values.map(i8_cell).map(|[byte]| byte as i8), [-128, -1, -1, 0, 127, 127, -128, 0]);
    }

    #[test]
    fn values_follow_the_strides_and_gaps_are_unchanged() {
        #[derive(Debug)]
        struct Case(InputLayout, [usize; 4], [usize; 4], [usize; 4], &'static [u8]);
        let cases = [
            Case(InputLayout::Nchw, [1, 3, 1, 2], [0, 0, 0, 0], [1, 3, 1, 2], &[1, 4, 2, 5, 3, 6]),
            Case(InputLayout::Nhwc, [1, 1, 2, 3], [0, 0, 0, 0], [1, 1, 2, 3], &[1, 2, 3, 4, 5, 6]),
            Case(InputLayout::Nchw, [1, 3, 1, 3], [0, 0, 0, 1], [1, 3, 1, 3], &[9, 1, 4, 9, 2, 5, 9, 3, 6]),
            Case(InputLayout::Nhwc, [1, 1, 2, 4], [0, 0, 0, 1], [1, 1, 2, 4], &[9, 1, 2, 3, 9, 4, 5, 6]),
        ];
        for case in cases {
            let outer = Tensor::from_slice(case.1, &vec![9_u8; case.1.iter().product()]).unwrap();
            let part = outer.roi(&case.2, &case.3).unwrap();
            let (mut input, mut lines) = (part.bytes_mut().unwrap(), Vec::new());
            let mut target = InputRow::new(&mut input, case.0, Rotation::None, 0, Simd::fastest(), &mut lines).unwrap();
            let rows = [1.5, 3.0, 2.0, 3.5, 2.5, 4.0];
            let blend = Blend::Exact { first: &rows, second: &rows, weight: 0.0 };
            target.fill(0, 0, 2, [7.0; 3]);
            let normalizers = [Normalizer { mean: 1.0, factor: 2.0 }; 3];
            target.blend(0, 0, 2, &Line { blend, n_columns: 2, color_of_channel: [0, 1, 2], normalizers });
            drop(input);
            assert_eq!(outer.view::<u8>().unwrap().to_vec(), case.4, "{case:?}");
        }
    }
}
