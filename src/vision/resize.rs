//! Bilinear interpolation: which samples an output pixel mixes, and the mixing of a row. Owns the sampling positions.
//! Knows no formats, no colors, no tensors.

use std::ops::Range;

use super::color::Pixel;

/// Two samples and how much of the second one: `first + (second - first) * weight`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tap {
    pub(super) first: u32,
    pub(super) second: u32,
    /// `0..=1`; what is certain not to count is not fetched: there, `second` is `first`.
    pub(super) weight: f32,
}

impl Tap {
    /// The samples at `(scaled_idx + 0.5) * extent / scaled_extent - 0.5`, edges replicated.
    pub(super) fn at(scaled_idx: u64, extent: u32, scaled_extent: u32) -> Self {
        let step = f64::from(extent) / f64::from(scaled_extent);
        // Left of the first sample's center is the first sample; from here on, truncation is `floor`.
        let position = ((scaled_idx as f64 + 0.5) * step - 0.5).max(0.0);
        let first = (position as u32).min(extent - 1);
        let weight = (position - f64::from(first)) as f32;
        if first == extent - 1 || weight == 0.0 {
            return Self { first, second: first, weight: 0.0 };
        }
        Self { first, second: first + 1, weight }
    }

    /// As [`Tap::at`] for [`mix_whole`]: the weight is a whole number of steps, taken from the position in single precision as
    /// OpenCV does. At an edge it counts although both samples are one: each of the two terms is cut.
    pub(super) fn whole_at(scaled_idx: u64, extent: u32, scaled_extent: u32) -> Self {
        let Self { first, second, .. } = Self::at(scaled_idx, extent, scaled_extent);
        let step = f64::from(extent) / f64::from(scaled_extent);
        let position = ((scaled_idx as f64 + 0.5) * step - 0.5) as f32;
        let fraction = if first == second { position - position.floor() } else { position - first as f32 };
        Self { first, second, weight: (fraction * WEIGHT_STEPS).round_ties_even() / WEIGHT_STEPS }
    }
}

/// The columns of a picture that a row of the input is made of.
#[derive(Debug, Default)]
pub(super) struct ColumnPlan {
    /// Per visible input column, indexes into the converted pixels.
    pub(super) taps: Vec<Tap>,
    /// The source columns to convert, if only some are needed; empty if it is `n_pixels` from `first` on.
    pub(super) listed: Vec<u32>,
    /// The first source column to convert, where they are neighbors.
    pub(super) first: usize,
    /// How many are converted.
    pub(super) n_pixels: usize,
}

/// Where a source row has at least this many columns per output column, only the sampled ones are converted. Two are sampled,
/// and picking them one by one costs about twice as much as converting neighbors.
const SPARSE_FROM: usize = 4;

impl ColumnPlan {
    /// Plans the columns `visible` of an input in which column `offset` shows the left edge of the scaled picture.
    ///
    /// `tap` is [`Tap::at`] or [`Tap::whole_at`].
    pub(super) fn set(&mut self, tap: fn(u64, u32, u32) -> Tap, visible: Range<usize>, offset: i64, extent: u32, scaled_extent: u32) {
        self.taps.clear();
        self.listed.clear();
        let taps = visible.map(|column| tap((column as i64 - offset) as u64, extent, scaled_extent));
        self.taps.extend(taps);
        let first = self.taps.first().map_or(0, |tap| tap.first);
        let n_span = self.taps.last().map_or(0, |tap| tap.second + 1 - first) as usize;
        self.first = first as usize;
        if n_span >= SPARSE_FROM * self.taps.len() {
            self.listed.extend(self.taps.iter().flat_map(|tap| [tap.first, tap.second]));
            for (pair_idx, tap) in self.taps.iter_mut().enumerate() {
                (tap.first, tap.second) = (2 * pair_idx as u32, 2 * pair_idx as u32 + 1);
            }
            self.n_pixels = self.listed.len();
        } else {
            for tap in &mut self.taps {
                (tap.first, tap.second) = (tap.first - first, tap.second - first);
            }
            self.n_pixels = n_span;
        }
    }
}

/// Eight-bit pictures are mixed in whole numbers as OpenCV does it: weights are whole steps of this many to one.
const WEIGHT_STEPS: f32 = 2048.0;

/// A whole number from two values of rows that were mixed of whole numbers with weights in whole steps: each term is cut to
/// quarters, and their sum is rounded half up. (`VResizeLinear` for 8 bits in OpenCV's `resize.cpp`; the sums of a row keep seven
/// of their eleven bits after the point.)
pub(super) fn mix_whole(first: f32, second: f32, weight: f32) -> f32 {
    let second_steps = (weight * WEIGHT_STEPS) as u32;
    let quarters = |value: f32, steps: u32| ((value * (WEIGHT_STEPS / 16.0)) as u32 * steps) >> 16;
    ((quarters(first, WEIGHT_STEPS as u32 - second_steps) + quarters(second, second_steps) + 2) >> 2) as f32
}

/// Mixes pixels of one source row to three rows, one per color, each as long as `taps`.
pub(super) fn mix_colors(pixels: &[Pixel], taps: &[Tap], planar: &mut [f32]) {
    let (r, rest) = planar.split_at_mut(taps.len());
    let (g, b) = rest.split_at_mut(taps.len());
    for (((tap, r), g), b) in taps.iter().zip(r).zip(g).zip(b) {
        let (first, second) = (&pixels[tap.first as usize], &pixels[tap.second as usize]);
        // Four lanes at once, one of them idle, beat three scalars.
        let mixed: Pixel = std::array::from_fn(|lane| first[lane] + (second[lane] - first[lane]) * tap.weight);
        (*r, *g, *b) = (mixed[0], mixed[1], mixed[2]);
    }
}

/// As [`mix_colors`], of the first lane only.
pub(super) fn mix_gray(pixels: &[Pixel], taps: &[Tap], row: &mut [f32]) {
    for (tap, value) in taps.iter().zip(row) {
        let (first, second) = (pixels[tap.first as usize][0], pixels[tap.second as usize][0]);
        *value = first + (second - first) * tap.weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_sit_at_pixel_centers_and_stop_at_the_edges() {
        #[derive(Debug)]
        struct Case(u64, u32, u32, (u32, u32, f32));
        let cases = [
            Case(0, 4, 4, (0, 0, 0.0)),
            Case(3, 4, 4, (3, 3, 0.0)),
            Case(0, 4, 2, (0, 1, 0.5)),
            Case(1, 4, 2, (2, 3, 0.5)),
            Case(0, 2, 4, (0, 0, 0.0)),
            Case(1, 2, 4, (0, 1, 0.25)),
            Case(2, 2, 4, (0, 1, 0.75)),
            Case(3, 2, 4, (1, 1, 0.0)),
            Case(5, 1, 9, (0, 0, 0.0)),
            Case(0, 7680, 1, (3839, 3840, 0.5)),
        ];
        for case in cases {
            let tap = Tap::at(case.0, case.1, case.2);
            assert_eq!((tap.first, tap.second, tap.weight), case.3, "{case:?}");
        }
    }

    #[test]
    fn eight_bit_mixes_cut_their_terms_to_quarters() {
        #[derive(Debug)]
        struct Case(f32, f32, f32, f32);
        let cases = [
            Case(0.0, 0.0, 0.5, 0.0),
            Case(255.0, 255.0, 0.0, 255.0),
            Case(255.0, 255.0, 777.0 / 2048.0, 255.0),
            Case(7.0, 9.0, 0.5, 8.0),
            Case(7.0, 8.0, 0.5, 8.0),
            // 7.5 is rounded up, but here both terms lose a part of a quarter.
            Case(7.1875, 7.8125, 0.5, 7.0),
            Case(10.0, 20.0, 1.0, 20.0),
        ];
        for case in cases {
            assert_eq!(mix_whole(case.0, case.1, case.2), case.3, "{case:?}");
        }
    }

    #[test]
    fn whole_weights_count_beyond_the_edges() {
        let at = |scaled_idx| Tap::whole_at(scaled_idx, 2, 4);
        assert_eq!(
            [0, 1, 2, 3].map(|idx| (at(idx).first, at(idx).second, at(idx).weight)),
            [(0, 0, 0.75), (0, 1, 0.25), (0, 1, 0.75), (1, 1, 0.25)]
        );
        assert_eq!(Tap::whole_at(0, 3, 7).weight, (5.0_f32 / 7.0 * 2048.0).round() / 2048.0);
    }

    #[test]
    fn a_plan_converts_neighbors_or_only_what_is_sampled() {
        let mut plan = ColumnPlan::default();
        plan.set(Tap::at, 0..2, 0, 64, 2);
        assert_eq!((plan.listed.as_slice(), plan.n_pixels), (&[15, 16, 47, 48][..], 4));
        assert_eq!((plan.taps[1].first, plan.taps[1].second), (2, 3));
        // The middle of a cropped picture: its left and right are not converted.
        plan.set(Tap::at, 0..2, -3, 8, 8);
        assert_eq!((plan.listed.len(), plan.first, plan.n_pixels), (0, 3, 2));
        assert_eq!((plan.taps[0].first, plan.taps[1].first), (0, 1));
    }

    #[test]
    fn rows_are_mixed_by_weight_and_split_by_color() {
        let pixels = [[0.0, 10.0, 20.0, 0.0], [8.0, 30.0, 20.0, 0.0]];
        let taps = [Tap { first: 0, second: 1, weight: 0.25 }, Tap { first: 1, second: 1, weight: 0.0 }];
        let mut planar = [0.0; 6];
        mix_colors(&pixels, &taps, &mut planar);
        assert_eq!(planar, [2.0, 8.0, 15.0, 30.0, 20.0, 20.0]);
        let mut row = [0.0; 2];
        mix_gray(&pixels, &taps, &mut row);
        assert_eq!(row, [2.0, 8.0]);
    }
}
