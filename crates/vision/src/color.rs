//! Color conversion: converts the samples of one pixel to RGB or gray, with clamping and rounding.
//!
//! Conversion of Y'CbCr follows ITU-R BT.601, BT.709 and BT.2020. This module does not handle rows, scaling, normalization or tensors.

use super::sample::Sample;
use super::simd::{Arithmetic, Separate};
use crate::frame::format::YuvCoefficients;

/// Converts the samples of a pixel to `C` channels: red, green and blue, or gray.
pub(super) trait Colors<const C: usize>: Copy {
    /// Converts the samples without rounding.
    fn exact<S: Sample>(self, arithmetic: impl Arithmetic, samples: [S; 3]) -> [f32; C];

    /// Converts the samples, and rounds to integers, half up, after each step.
    fn integer<S: Sample>(self, samples: [S; 3]) -> [u8; C];
}

/// Code that the compiler instantiates for each [`Colors`] implementation.
pub(super) trait WithColors {
    fn run<T: Colors<C>, const C: usize>(self, colors: T);
}

/// Color model of the components of a pixel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ColorModel {
    /// Luma and two chroma components.
    Yuv(Yuv),
    /// Luma only. The luma sample is used for all three components.
    Luma(Luma),
    /// Red, green and blue.
    Rgb,
    /// Gray. The gray sample is used for all three components.
    Gray,
}

impl ColorModel {
    pub(super) fn yuv(to: YuvCoefficients) -> Self {
        Self::Yuv(Yuv::new(to))
    }

    pub(super) fn luma(to: YuvCoefficients) -> Self {
        Self::Luma(Luma::new(to))
    }
}

/// Runs `work` for this color model and an input of one or three channels.
#[inline(always)]
pub(super) fn with_colors(color_model: ColorModel, n_channels: usize, work: impl WithColors) {
    match (color_model, n_channels) {
        (ColorModel::Yuv(yuv), 3) => work.run::<_, 3>(yuv),
        (ColorModel::Yuv(yuv), _) => work.run::<_, 1>(Grayscale(yuv)),
        (ColorModel::Rgb, 3) => work.run::<_, 3>(Rgb),
        (ColorModel::Rgb, _) => work.run::<_, 1>(Grayscale(Rgb)),
        (ColorModel::Luma(luma), 3) => work.run::<_, 3>(luma),
        (ColorModel::Luma(luma), _) => work.run::<_, 1>(luma),
        (ColorModel::Gray, 3) => work.run::<_, 3>(Gray),
        (ColorModel::Gray, _) => work.run::<_, 1>(Gray),
    }
}

/// Converts luma and chroma to RGB.
///
/// The conversion without rounding multiplies 8-bit samples by factors that are multiples of 1/16384. All products and sums are multiples
/// of 1/16384 below 1024, so they have at most 24 bits. Single precision represents each of them exactly, in any order of operations. The
/// error of a color, which is 0 to 255, is below 0.01.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Yuv {
    luma: Luma,
    to: YuvCoefficients,
    /// Factors for 8-bit samples, rounded to multiples of 1/16384.
    of_bytes: YuvFactors,
}

/// Factors that convert stored 8-bit samples to colors: `r = y * Y + r_v * V + zero[0]`, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct YuvFactors {
    pub(super) y: f32,
    pub(super) r_v: f32,
    pub(super) g_u: f32,
    pub(super) g_v: f32,
    pub(super) b_u: f32,
    /// Red, green and blue of a pixel whose three samples are 0.
    pub(super) zero: [f32; 3],
}

impl YuvFactors {
    fn new(to: YuvCoefficients) -> Self {
        /// A power of two, so that multiplication and division are exact.
        const STEPS: f32 = 16384.0;
        let in_steps = |factor: f32| (factor * STEPS).round() / STEPS;
        let [y, r_v, g_u, g_v, b_u] = [to.y, to.r_v, to.g_u, to.g_v, to.b_u].map(in_steps);
        let zero = [r_v, g_u + g_v, b_u].map(|differences| -(to.y_offset as f32 * y + to.c_offset as f32 * differences));
        Self { y, r_v, g_u, g_v, b_u, zero }
    }
}

impl Yuv {
    fn new(to: YuvCoefficients) -> Self {
        Self { luma: Luma::new(to), to, of_bytes: YuvFactors::new(to) }
    }

    pub(super) fn of_bytes(self) -> YuvFactors {
        self.of_bytes
    }

    #[inline(always)]
    fn precise<S: Sample>(self, [y, u, v]: [S; 3]) -> [f32; 3] {
        let (y, u, v, to) = (self.luma.unbounded(y), u.above(self.to.c_offset), v.above(self.to.c_offset), self.to);
        [y + to.r_v * v, y + (to.g_u * u + to.g_v * v), y + to.b_u * u].map(bounded)
    }
}

impl Colors<3> for Yuv {
    #[inline(always)]
    fn exact<S: Sample>(self, arithmetic: impl Arithmetic, samples: [S; 3]) -> [f32; 3] {
        if !S::IS_BYTE {
            return self.precise(samples);
        }
        let ([y, u, v], of, add) = (samples.map(|sample| sample.above(0)), self.of_bytes, |a, b, c| arithmetic.multiply_add(a, b, c));
        let differences = [add(of.r_v, v, of.zero[0]), add(of.g_u, u, add(of.g_v, v, of.zero[1])), add(of.b_u, u, of.zero[2])];
        differences.map(|difference| bounded(add(of.y, y, difference)))
    }

    #[inline(always)]
    fn integer<S: Sample>(self, samples: [S; 3]) -> [u8; 3] {
        self.precise(samples).map(round)
    }
}

/// Converts luma to gray or to three equal channels. The frame's colorimetry determines the range (limited or full).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Luma {
    black: i32,
    factor: f32,
}

impl Luma {
    fn new(to: YuvCoefficients) -> Self {
        Self { black: to.y_offset, factor: to.y }
    }

    #[inline(always)]
    fn unbounded<S: Sample>(self, luma: S) -> f32 {
        luma.above(self.black) * self.factor
    }
}

impl<const C: usize> Colors<C> for Luma {
    #[inline(always)]
    fn exact<S: Sample>(self, _: impl Arithmetic, samples: [S; 3]) -> [f32; C] {
        [bounded(self.unbounded(samples[0])); C]
    }

    #[inline(always)]
    fn integer<S: Sample>(self, samples: [S; 3]) -> [u8; C] {
        self.exact(Separate, samples).map(round)
    }
}

/// Takes the samples of RGB formats as colors, without conversion.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rgb;

impl Colors<3> for Rgb {
    #[inline(always)]
    fn exact<S: Sample>(self, _: impl Arithmetic, samples: [S; 3]) -> [f32; 3] {
        samples.map(|sample| sample.above(0))
    }

    #[inline(always)]
    fn integer<S: Sample>(self, samples: [S; 3]) -> [u8; 3] {
        self.exact(Separate, samples).map(round)
    }
}

/// Takes a gray sample as the only channel, or as three equal channels, without conversion.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gray;

impl<const C: usize> Colors<C> for Gray {
    #[inline(always)]
    fn exact<S: Sample>(self, _: impl Arithmetic, samples: [S; 3]) -> [f32; C] {
        [samples[0].above(0); C]
    }

    #[inline(always)]
    fn integer<S: Sample>(self, samples: [S; 3]) -> [u8; C] {
        [round(samples[0].above(0)); C]
    }
}

/// Converts colors to gray with the weights of BT.601, as OpenCV does. The weights do not depend on the color matrix of the frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grayscale<T>(pub(super) T);

impl<T: Colors<3>> Colors<1> for Grayscale<T> {
    #[inline(always)]
    fn exact<S: Sample>(self, arithmetic: impl Arithmetic, samples: [S; 3]) -> [f32; 1] {
        [gray_of(self.0.exact(arithmetic, samples))]
    }

    #[inline(always)]
    fn integer<S: Sample>(self, samples: [S; 3]) -> [u8; 1] {
        [round(gray_of(self.0.integer(samples).map(f32::from)))]
    }
}

/// Clamps to `0.0..=255.0`. Compares the bits as integers: for floats that are not negative, the bits have the same order as the values.
/// A negative float is a negative integer, because both have the sign in the same bit. A processor executes integer comparisons in
/// parallel with floating-point additions.
#[inline(always)]
fn bounded(color: f32) -> f32 {
    const MAX: i32 = 255.0_f32.to_bits() as i32;
    f32::from_bits((color.to_bits() as i32).clamp(0, MAX) as u32)
}

#[inline(always)]
fn gray_of([r, g, b]: [f32; 3]) -> f32 {
    0.299 * r + 0.587 * g + 0.114 * b
}

/// Rounds a value in `0..=255` half up. The cast truncates, which equals `floor` in this range.
#[inline(always)]
fn round(value: f32) -> u8 {
    (value + 0.5) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{ColorMatrix, ColorRange, Colorimetry, PixelFormat};

    /// Arithmetic that multiplies and adds with a single rounding, like a fused multiply-add instruction.
    #[derive(Clone, Copy)]
    struct Once;

    impl Arithmetic for Once {
        fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
            (f64::from(a) * f64::from(b) + f64::from(c)) as f32
        }
    }

    #[test]
    fn fused_multiply_add_gives_the_same_bits() {
        let mut worst = 0.0_f32;
        for matrix in [ColorMatrix::Bt601, ColorMatrix::Bt709, ColorMatrix::Bt2020] {
            for range in [ColorRange::Limited, ColorRange::Full] {
                let colors = Yuv::new(Colorimetry { matrix, range }.yuv_coefficients(PixelFormat::Nv12));
                for [y, u] in (0..=255).flat_map(|u| [0, 15, 16, 127, 171, 254, 255].map(|y| [y, u])) {
                    for v in 0..=255 {
                        let samples = [y, u, v].map(|sample| [sample]);
                        let [separate, once] = [colors.exact(Separate, samples), colors.exact(Once, samples)];
                        assert_eq!(separate.map(f32::to_bits), once.map(f32::to_bits), "{matrix:?} {range:?} {samples:?}");
                        let precise = colors.precise(samples);
                        worst = separate.iter().zip(precise).map(|(color, precise)| (color - precise).abs()).fold(worst, f32::max);
                    }
                }
            }
        }
        assert!(worst < 0.01, "{worst}");
    }

    #[test]
    fn colors_are_clamped_to_the_range() {
        assert_eq!(
            [-300.0, -0.0, 0.0, 1e-30, 17.5, 254.99, 255.0, 255.1, 600.0].map(bounded),
            [0.0, 0.0, 0.0, 1e-30, 17.5, 254.99, 255.0, 255.0, 255.0]
        );
    }

    #[test]
    fn limited_range_yuv_gives_known_colors() {
        // BT.601 limited range: black, white, and red (81, 90, 240).
        let colors = Yuv::new(Colorimetry::default().yuv_coefficients(PixelFormat::Nv12));
        for (yuv, rgb) in [([16, 128, 128], [0; 3]), ([235, 128, 128], [255; 3]), ([81, 90, 240], [254, 0, 0])] {
            assert_eq!(colors.integer(yuv.map(|sample| [sample])), rgb, "{yuv:?}");
        }
    }

    #[test]
    fn halves_are_rounded_up() {
        assert_eq!([0.0, 0.49, 0.5, 1.5, 2.5, 254.5, 255.0].map(round), [0, 0, 1, 2, 3, 255, 255]);
    }

    #[test]
    fn gray_is_weighted_and_gray_images_are_unchanged() {
        let [gray] = Grayscale(Rgb).exact(Separate, [[200], [100], [10]]);
        assert!((gray - (0.299 * 200.0 + 0.587 * 100.0 + 0.114 * 10.0)).abs() < 1e-4);
        assert_eq!(Grayscale(Rgb).integer([[200], [100], [10]]), [120]);
        assert_eq!((Gray.exact(Separate, [[201], [7], [7]]), Gray.integer([[201], [7], [7]])), ([201.0], [201]));
    }
}
