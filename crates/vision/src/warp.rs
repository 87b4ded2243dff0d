//! Computes the lines of an input that is aligned by a similarity transform. Each pixel is interpolated bilinearly between the four
//! samples around its source position. At image edges, it is blended with the border color. This module uses no keypoints and no
//! tensors.

use super::aligned::Aligned;
use super::color::{Colors, WithColors, with_colors};
use super::image::{Rows, SampleType};
use super::preprocess::{Preprocess, Rounding};
use super::resize::{InterpolateExact, blocks};
use super::sample::{GROUP, LANES, Picked, Sample};
use super::simd::{Arithmetic, Kernel, Simd};
use super::store::{Blend, Line, Normalizer};

/// A line of the input, and the buffers for its computation.
#[derive(Debug, Default)]
pub(super) struct WarpedLine {
    /// For each column of the line, the positions of its four samples: left and right columns, top and bottom rows.
    taps: Vec<Corners>,
    /// For each column, the weight of the right samples. `below` has the weight of the bottom samples, and `inside` the weight of the
    /// image relative to the border.
    right: Aligned<f32>,
    below: Aligned<f32>,
    inside: Aligned<f32>,
    /// The picked samples of each component: the samples of the top row, then the samples of the bottom row. Within a row, blocks of left
    /// samples alternate with blocks of right samples.
    samples: Aligned<u8>,
    above: Aligned<f32>,
    lower: Aligned<f32>,
    line: Aligned<f32>,
    n_channels: usize,
    pad: f32,
    is_integer: bool,
    normalizers: [Normalizer; 3],
    color_of_channel: [usize; 3],
}

#[derive(Debug, Clone, Copy, Default)]
struct Corners {
    columns: [u32; 2],
    rows: [u32; 2],
}

impl WarpedLine {
    /// Prepares the buffers for lines of `width` pixels.
    pub(super) fn begin(&mut self, preprocess: &Preprocess, width: usize, sample: SampleType) {
        self.is_integer = preprocess.rounding == Rounding::U8;
        self.n_channels = preprocess.color.n_channels();
        self.normalizers = preprocess.normalizers();
        self.color_of_channel = preprocess.color_of_channel();
        self.pad = preprocess.pad;
        let n_columns = width.next_multiple_of(GROUP);
        self.taps.clear();
        self.taps.resize(n_columns, Corners::default());
        for list in [&mut self.right, &mut self.below, &mut self.inside] {
            list.resize(n_columns);
            list.fill(0.0);
        }
        self.samples.resize(12 * n_columns * sample.n_bytes());
        for rows in [&mut self.above, &mut self.lower, &mut self.line] {
            rows.resize(self.n_channels * n_columns);
        }
    }

    /// Computes line `y` of an input of `width` pixels. `position` maps the column and row of an input pixel to a position in the image.
    /// Pixel centers have integer coordinates.
    pub(super) fn line(
        &mut self,
        y: usize,
        width: usize,
        position: impl Fn(usize, usize) -> (f64, f64),
        source: Rows<'_>,
        on: Simd,
    ) -> Line<'_> {
        let size = source.image.size();
        for x in 0..width {
            let (column, row) = position(x, y);
            let (columns, right, across) = tap(column, size.width);
            let (rows, below, down) = tap(row, size.height);
            self.taps[x] = Corners { columns, rows };
            (self.right[x], self.below[x], self.inside[x]) = (right, below, across * down);
        }
        match source.image.sample() {
            SampleType::U8 => self.interpolate::<1>(source, on),
            SampleType::U16 => self.interpolate::<2>(source, on),
            SampleType::F32 => self.interpolate::<4>(source, on),
        }
        on.run(Join {
            above: &self.above,
            lower: &self.lower,
            below: &self.below,
            inside: &self.inside,
            pad: self.pad,
            is_integer: self.is_integer,
            line: &mut self.line,
        });
        Line {
            blend: Blend::Exact { first: &self.line, second: &self.line, weight: 0.0 },
            n_columns: self.taps.len(),
            color_of_channel: self.color_of_channel,
            normalizers: self.normalizers,
        }
    }

    fn interpolate<const N: usize>(&mut self, source: Rows<'_>, on: Simd)
    where
        [u8; N]: Sample,
    {
        let n_pieces = 2 * self.taps.len() / LANES;
        let mut components = self.samples.as_chunks_mut::<N>().0.as_chunks_mut::<LANES>().0.chunks_exact_mut(2 * n_pieces);
        for component_idx in 0..source.image.n_components() {
            let Some(pieces) = components.next() else { unreachable!("there are three components") };
            for (column, taps) in self.taps.iter().enumerate() {
                for (row_idx, row) in taps.rows.into_iter().enumerate() {
                    let pieces = &mut pieces[row_idx * n_pieces + column / LANES * 2..][..2];
                    for (piece, column_of_picture) in pieces.iter_mut().zip(taps.columns) {
                        piece[column % LANES] = source.sample(component_idx, column_of_picture, row);
                    }
                }
            }
        }
        let pieces = self.samples.as_chunks::<N>().0.as_chunks().0;
        for (row_idx, rows) in [&mut self.above, &mut self.lower].into_iter().enumerate() {
            let begins = std::array::from_fn(|component_idx| (2 * component_idx + row_idx) * n_pieces);
            let picked = Picked { pieces, begins, steps: [2; 3], pair_steps: [0; 3] };
            let interpolate = Interpolate { picked, weights: &self.right, rows, is_integer: self.is_integer, on };
            with_colors(source.image.color_model(), self.n_channels, interpolate);
        }
    }
}

/// Returns the two samples around a position on one axis, the weight of the second sample, and the fraction of the total weight that
/// is inside the image. Integer positions are sample centers. The fraction is 0 for positions outside the image.
fn tap(place: f64, extent: u32) -> ([u32; 2], f32, f32) {
    let last = f64::from(extent - 1);
    let place = if place.is_nan() { -1.0 } else { place.clamp(-1.0, last + 1.0) };
    let first = place.floor();
    let second_weight = (place - first) as f32;
    let part = |at: f64, weight: f32| if (0.0..=last).contains(&at) { weight } else { 0.0 };
    let inside = part(first, 1.0 - second_weight) + part(first + 1.0, second_weight);
    let sample = |at: f64| at.clamp(0.0, last) as u32;
    ([sample(first), sample(first + 1.0)], second_weight, inside)
}

/// Interpolates the picked samples of a row horizontally.
struct Interpolate<'a, S> {
    picked: Picked<'a, S>,
    weights: &'a [f32],
    rows: &'a mut [f32],
    is_integer: bool,
    on: Simd,
}

impl<S: Sample> WithColors for Interpolate<'_, S> {
    fn run<T: Colors<C>, const C: usize>(self, colors: T) {
        let Self { picked, weights, rows, is_integer, on } = self;
        let weights = Some(weights);
        if is_integer {
            on.run(InterpolateExact { colors: Rounded(colors), picked, weights, rows });
        } else {
            on.run(InterpolateExact { colors, picked, weights, rows });
        }
    }
}

/// Converts colors as the inner value does, and rounds them to integers.
#[derive(Clone, Copy)]
struct Rounded<T>(T);

impl<T: Colors<C>, const C: usize> Colors<C> for Rounded<T> {
    #[inline(always)]
    fn exact<S: Sample>(self, _: impl Arithmetic, samples: [S; 3]) -> [f32; C] {
        self.0.integer(samples).map(f32::from)
    }

    #[inline(always)]
    fn integer<S: Sample>(self, samples: [S; 3]) -> [u8; C] {
        self.0.integer(samples)
    }
}

/// Interpolates two rows vertically and blends the result with the border. In each slice, the rows of the colors are
/// concatenated.
struct Join<'a> {
    above: &'a [f32],
    lower: &'a [f32],
    below: &'a [f32],
    inside: &'a [f32],
    pad: f32,
    is_integer: bool,
    line: &'a mut [f32],
}

impl Kernel for Join<'_> {
    #[inline(always)]
    fn run(self, _: impl Arithmetic) {
        let Self { above, lower, below, inside, pad, is_integer, line } = self;
        let n_columns = below.len();
        let (below, inside) = (blocks(below), blocks(inside));
        let colors = line.chunks_exact_mut(n_columns).zip(above.chunks_exact(n_columns).zip(lower.chunks_exact(n_columns)));
        for (line, (above, lower)) in colors {
            let (line, above, lower) = (line.as_chunks_mut::<LANES>().0, blocks(above), blocks(lower));
            for block_idx in 0..line.len() {
                let (above, lower, below, inside) = (&above[block_idx], &lower[block_idx], &below[block_idx], &inside[block_idx]);
                let mut block = [0.0; LANES];
                for lane in 0..LANES {
                    let interpolated = above[lane] + (lower[lane] - above[lane]) * below[lane];
                    let interpolated = pad + (interpolated - pad) * inside[lane];
                    // Pixels and border are 0 to 255, so truncation equals `floor`.
                    block[lane] = if is_integer { (interpolated + 0.5) as i32 as f32 } else { interpolated };
                }
                line[block_idx] = block;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_outside_the_image_have_no_weight() {
        #[derive(Debug)]
        struct Case(f64, ([u32; 2], f32, f32));
        let cases = [
            Case(0.0, ([0, 1], 0.0, 1.0)),
            Case(1.25, ([1, 2], 0.25, 1.0)),
            Case(3.0, ([3, 3], 0.0, 1.0)),
            Case(3.25, ([3, 3], 0.25, 0.75)),
            Case(-0.25, ([0, 0], 0.75, 0.75)),
            Case(-1.0, ([0, 0], 0.0, 0.0)),
            Case(4.0, ([3, 3], 0.0, 0.0)),
            Case(1e300, ([3, 3], 0.0, 0.0)),
            Case(f64::NEG_INFINITY, ([0, 0], 0.0, 0.0)),
            Case(f64::NAN, ([0, 0], 0.0, 0.0)),
        ];
        for case in cases {
            assert_eq!(tap(case.0, 4), case.1, "{case:?}");
        }
    }
}
