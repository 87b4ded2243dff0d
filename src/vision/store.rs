//! Values to bytes of the input's element type, whatever the distance between them. Owns the rounding of each type.
//! Knows no pictures.

use crate::tensor::{ElementType, Error, ErrorKind, Result};

/// The element types that an input can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputElement {
    F32,
    F16,
    Bf16,
    U8,
    I8,
}

impl InputElement {
    /// # Errors
    /// [`ErrorKind::ElementType`] if pictures are not filled into this type.
    pub(super) fn new(element: ElementType) -> Result<Self> {
        Ok(match element {
            ElementType::F32 => Self::F32,
            ElementType::F16 => Self::F16,
            ElementType::Bf16 => Self::Bf16,
            ElementType::U8 => Self::U8,
            ElementType::I8 => Self::I8,
            other => {
                return Err(Error::new(
                    ErrorKind::ElementType,
                    format!("image input: expected an element type of f32, f16, bf16, u8 or i8, got {other}"),
                ));
            }
        })
    }
}

/// Writes `values` into `target`, `stride_bytes` from the first byte of one to that of the next.
///
/// Floating-point types round to nearest even; `u8` and `i8` round half up and saturate (NaN gives 0).
pub(super) fn store_row(target: &mut [u8], stride_bytes: usize, element: InputElement, values: impl Iterator<Item = f32>) {
    match element {
        InputElement::F32 => store(target, stride_bytes, values, f32::to_ne_bytes),
        InputElement::F16 => store(target, stride_bytes, values, |value| f16_bits(value).to_ne_bytes()),
        InputElement::Bf16 => store(target, stride_bytes, values, |value| bf16_bits(value).to_ne_bytes()),
        // Below -0.5 the cast saturates, above it truncation is `floor`.
        InputElement::U8 => store(target, stride_bytes, values, |value| [(value + 0.5) as u8]),
        InputElement::I8 => store(target, stride_bytes, values, |value| ((value + 0.5).floor() as i8).to_ne_bytes()),
    }
}

#[inline(always)]
fn store<const N: usize>(target: &mut [u8], stride_bytes: usize, values: impl Iterator<Item = f32>, bytes: impl Fn(f32) -> [u8; N]) {
    if stride_bytes == N {
        let (cells, _) = target.as_chunks_mut::<N>();
        for (cell, value) in cells.iter_mut().zip(values) {
            *cell = bytes(value);
        }
    } else {
        for (cell, value) in target.chunks_mut(stride_bytes).zip(values) {
            cell[..N].copy_from_slice(&bytes(value));
        }
    }
}

/// The bits of the nearest bfloat16, ties to even. NaN stays NaN.
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// The bits of the nearest IEEE half, ties to even; too large gives infinity, NaN stays NaN.
///
/// Selects instead of branches, so that a row of them can be vectorized.
fn f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    // 2^-14 is the smallest normal half: below it, adding 0.5 lets the addition do shift and rounding, the unit of the sum's
    // last place being 2^-24, the smallest subnormal half.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    // The exponent's bias changes from 127 to 15; a carry of the rounding runs into the exponent as it should.
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

    /// The value of a half, from its definition.
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
    fn every_half_comes_back_and_midpoints_go_to_even() {
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
        // 65520 is half way to what would be the next value.
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
    fn bytes_round_half_up_and_saturate() {
        let values = [-0.6, -0.5, 0.49, 0.5, 254.5, 255.7, -1e9, f32::NAN];
        let mut bytes = [9; 8];
        store_row(&mut bytes, 1, InputElement::U8, values.into_iter());
        assert_eq!(bytes, [0, 0, 0, 1, 255, 255, 0, 0]);
        let values = [-128.6, -1.5, -0.6, -0.5, 126.5, 200.0, -1e9, f32::NAN];
        store_row(&mut bytes, 1, InputElement::I8, values.into_iter());
        assert_eq!(bytes.map(|byte| byte as i8), [-128, -1, -1, 0, 127, 127, -128, 0]);
    }

    #[test]
    fn strided_values_leave_the_gaps_alone() {
        let mut bytes = [9; 6];
        store_row(&mut bytes, 3, InputElement::U8, [1.0, 2.0].into_iter());
        assert_eq!(bytes, [1, 9, 9, 2, 9, 9]);
        let mut bytes = [9; 8];
        store_row(&mut bytes, 6, InputElement::F16, [1.0, 1.0].into_iter());
        let one = 0x3c00_u16.to_ne_bytes();
        assert_eq!(bytes, [one[0], one[1], 9, 9, 9, 9, one[0], one[1]]);
    }
}
