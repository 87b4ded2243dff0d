//! Samples to colors: what the numbers of one pixel mean. Owns the conversion, its clamping and its rounding.
//! Knows no rows, no scaling, no normalization, no tensors.

use super::picture::Meaning;
use super::sample::Sample;
use crate::frame::format::YuvCoefficients;

/// Makes the `C` channels of a pixel (red, green and blue, or gray) of its samples, as many as it needs of three.
pub(super) trait Colors<const C: usize>: Copy {
    /// Not rounded.
    fn exact<S: Sample>(self, samples: [S; 3]) -> [f32; C];

    /// Rounded to whole numbers, half up, after each step.
    fn whole<S: Sample>(self, samples: [S; 3]) -> [u8; C];
}

/// Work that is compiled for each way to make colors.
pub(super) trait WithColors {
    fn run<T: Colors<C>, const C: usize>(self, colors: T);
}

/// Does the work for pixels of this meaning and inputs of three channels, or of one.
pub(super) fn with_colors(meaning: Meaning, n_channels: usize, work: impl WithColors) {
    match (meaning, n_channels) {
        (Meaning::Yuv(coefficients), 3) => work.run::<_, 3>(Yuv::new(coefficients)),
        (Meaning::Yuv(coefficients), _) => work.run::<_, 1>(Weighed(Yuv::new(coefficients))),
        (Meaning::Rgb, 3) => work.run::<_, 3>(Rgb),
        (Meaning::Rgb, _) => work.run::<_, 1>(Weighed(Rgb)),
        (Meaning::Luma(coefficients), 3) => work.run::<_, 3>(Luma::new(coefficients)),
        (Meaning::Luma(coefficients), _) => work.run::<_, 1>(Luma::new(coefficients)),
        (Meaning::Gray, 3) => work.run::<_, 3>(Gray),
        (Meaning::Gray, _) => work.run::<_, 1>(Gray),
    }
}

/// Luma and two color differences.
#[derive(Debug, Clone, Copy)]
pub(super) struct Yuv {
    luma: Luma,
    to: YuvCoefficients,
}

impl Yuv {
    pub(super) fn new(to: YuvCoefficients) -> Self {
        Self { luma: Luma::new(to), to }
    }
}

impl Colors<3> for Yuv {
    #[inline(always)]
    fn exact<S: Sample>(self, [y, u, v]: [S; 3]) -> [f32; 3] {
        let (y, u, v, to) = (self.luma.unbounded(y), u.above(self.to.c_offset), v.above(self.to.c_offset), self.to);
        [y + to.r_v * v, y + (to.g_u * u + to.g_v * v), y + to.b_u * u].map(|color| color.clamp(0.0, 255.0))
    }

    #[inline(always)]
    fn whole<S: Sample>(self, samples: [S; 3]) -> [u8; 3] {
        self.exact(samples).map(round)
    }
}

/// Luma alone, one or three times. The range of the caps holds for gray too.
#[derive(Debug, Clone, Copy)]
pub(super) struct Luma {
    black: i32,
    factor: f32,
}

impl Luma {
    pub(super) fn new(to: YuvCoefficients) -> Self {
        Self { black: to.y_offset, factor: to.y }
    }

    #[inline(always)]
    fn unbounded<S: Sample>(self, luma: S) -> f32 {
        luma.above(self.black) * self.factor
    }
}

impl<const C: usize> Colors<C> for Luma {
    #[inline(always)]
    fn exact<S: Sample>(self, samples: [S; 3]) -> [f32; C] {
        [self.unbounded(samples[0]).clamp(0.0, 255.0); C]
    }

    #[inline(always)]
    fn whole<S: Sample>(self, samples: [S; 3]) -> [u8; C] {
        self.exact(samples).map(round)
    }
}

/// Red, green and blue as they are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rgb;

impl Colors<3> for Rgb {
    #[inline(always)]
    fn exact<S: Sample>(self, samples: [S; 3]) -> [f32; 3] {
        samples.map(|sample| sample.above(0))
    }

    #[inline(always)]
    fn whole<S: Sample>(self, samples: [S; 3]) -> [u8; 3] {
        self.exact(samples).map(round)
    }
}

/// Gray as it is, one or three times.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gray;

impl<const C: usize> Colors<C> for Gray {
    #[inline(always)]
    fn exact<S: Sample>(self, samples: [S; 3]) -> [f32; C] {
        [samples[0].above(0); C]
    }

    #[inline(always)]
    fn whole<S: Sample>(self, samples: [S; 3]) -> [u8; C] {
        [round(samples[0].above(0)); C]
    }
}

/// The gray of these colors: BT.601 weights, whatever the frame's matrix, as OpenCV does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weighed<T>(pub(super) T);

impl<T: Colors<3>> Colors<1> for Weighed<T> {
    #[inline(always)]
    fn exact<S: Sample>(self, samples: [S; 3]) -> [f32; 1] {
        [weigh(self.0.exact(samples))]
    }

    #[inline(always)]
    fn whole<S: Sample>(self, samples: [S; 3]) -> [u8; 1] {
        [round(weigh(self.0.whole(samples).map(f32::from)))]
    }
}

#[inline(always)]
fn weigh([r, g, b]: [f32; 3]) -> f32 {
    0.299 * r + 0.587 * g + 0.114 * b
}

/// Rounds a value in `0..=255` half up. The cast truncates, which is `floor` there.
#[inline(always)]
fn round(value: f32) -> u8 {
    (value + 0.5) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Colorimetry, PixelFormat};

    #[test]
    fn known_colors_come_out_of_limited_range_yuv() {
        // BT.601 limited: black, white, and the red of (81, 90, 240).
        let colors = Yuv::new(Colorimetry::default().yuv_coefficients(PixelFormat::Nv12));
        for (yuv, rgb) in [([16, 128, 128], [0; 3]), ([235, 128, 128], [255; 3]), ([81, 90, 240], [254, 0, 0])] {
            assert_eq!(colors.whole(yuv.map(|sample| [sample])), rgb, "{yuv:?}");
        }
    }

    #[test]
    fn halves_are_rounded_up() {
        assert_eq!([0.0, 0.49, 0.5, 1.5, 2.5, 254.5, 255.0].map(round), [0, 0, 1, 2, 3, 255, 255]);
    }

    #[test]
    fn gray_weighs_the_colors_and_leaves_gray_pictures_alone() {
        let [gray] = Weighed(Rgb).exact([[200], [100], [10]]);
        assert!((gray - (0.299 * 200.0 + 0.587 * 100.0 + 0.114 * 10.0)).abs() < 1e-4);
        assert_eq!(Weighed(Rgb).whole([[200], [100], [10]]), [120]);
        assert_eq!((Gray.exact([[201], [7], [7]]), Gray.whole([[201], [7], [7]])), ([201.0], [201]));
    }
}
