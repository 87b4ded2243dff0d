//! Scales source rows to the width of the input: samples them, converts them, and interpolates them horizontally. Rows are buffered as
//! long as a later line may use them. This module does not access tensors.

use std::ops::Range;

use super::aligned::Aligned;
use super::color::{ColorModel, Colors, WithColors, with_colors};
use super::image::{Image, Rows, SampleType};
use super::letterbox::Placement;
use super::pairs::Pairs;
use super::preprocess::{Preprocess, Rounding};
use super::resize::{Axis, Columns, FINE_STEPS, InterpolateExact, InterpolateInteger, InterpolateTwo, Tap, split_rows, steps};
use super::sample::{Picked, Sample};
use super::samples::Samples;
use super::simd::Simd;
use super::store::{Blend, Line, Normalizer};
use super::yuv::YuvBytes;

/// Number of buffered rows. A line needs two rows. A third row may have been computed together with one of these two rows. A fourth
/// slot is there so that the slot index is simply the row number modulo 4.
const N_SLOTS: usize = 4;

/// Number of lines by which prefetching is ahead. Rows are prefetched explicitly, because a row of a large image exceeds a memory page,
/// and hardware prefetchers stop at page boundaries.
const LINES_AHEAD: usize = 2;

/// Buffered source rows.
#[derive(Debug, Default)]
pub(super) struct ScaledRows {
    columns: Columns,
    samples: Samples,
    /// Interpolates packed RGB bytes. Used instead of `samples` if the image and the SIMD backend are supported.
    pairs: Pairs,
    /// Interpolates 8-bit luma and chroma. Used instead of `samples` if the image and the SIMD backend are supported.
    yuv: YuvBytes,
    slots: [Slot; N_SLOTS],
    /// Source rows and weights of each visible line.
    taps: Vec<Tap>,
    /// Index of the first source row that was not prefetched yet.
    prefetch_begin: u32,
    /// First component of each component group.
    first_components: Vec<usize>,
    /// Normalization of each channel.
    normalizers: [Normalizer; 3],
    /// For each channel, the index of its color; 0 for gray.
    color_of_channel: [usize; 3],
    n_channels: usize,
    is_integer: bool,
    /// Whether two rows that share chroma samples are computed together.
    is_by_two: bool,
    source: RowSource,
}

/// Selects the code that computes rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum RowSource {
    #[default]
    Samples,
    /// [`Pairs`], which computes with integers. The values of its rows are in units of 1/[`FINE_STEPS`].
    Pairs,
    Yuv,
}

#[derive(Debug, Default)]
struct Slot {
    source_row: Option<u32>,
    /// One row per color, concatenated. Either `exact` or `integer` is used.
    exact: Aligned<f32>,
    integer: Aligned<u16>,
}

impl ScaledRows {
    /// Prepares the buffers for an image whose visible part has these columns and lines of the input. Discards buffered rows.
    pub(super) fn begin(
        &mut self,
        preprocess: &Preprocess,
        image: &Image,
        placement: &Placement,
        (columns, lines): (Range<usize>, Range<usize>),
        simd: Simd,
    ) {
        self.is_integer = preprocess.rounding == Rounding::U8;
        self.n_channels = preprocess.color.n_channels();
        self.color_of_channel = preprocess.color_of_channel();
        let axis = Axis::new(image.size().width, placement.scaled.width, preprocess.rounding);
        // RGB bytes for an input of three channels need no conversion before the interpolation.
        let are_colors = (image.color_model(), image.sample(), self.n_channels) == (ColorModel::Rgb, SampleType::U8, 3);
        let in_fine_steps = are_colors && !self.is_integer;
        self.columns.set(&axis, columns, placement.offset.0, in_fine_steps);
        let normalizers = preprocess.normalizers();
        let of_steps = normalizers.map(|normalizer| normalizer.of_steps(FINE_STEPS.into()));
        let is_interpolated = self.columns.is_interpolated && !self.is_integer && self.n_channels == 3;
        self.source = if !is_interpolated {
            RowSource::Samples
        } else if in_fine_steps && of_steps.iter().all(Option::is_some) && self.pairs.set(image, &self.columns, simd) {
            RowSource::Pairs
        } else if self.yuv.set(image, &self.columns, simd) {
            RowSource::Yuv
        } else {
            RowSource::Samples
        };
        if self.source == RowSource::Samples {
            self.samples.begin(image, 1, |_| self.columns.pairs.iter().copied(), simd);
        }
        let is_in_steps = self.source == RowSource::Pairs;
        self.normalizers = if is_in_steps { of_steps.map(Option::unwrap_or_default) } else { normalizers };
        let axis = Axis::new(image.size().height, placement.scaled.height, preprocess.rounding);
        self.is_by_two = axis.takes_all() && self.columns.is_interpolated && !self.is_integer && self.source != RowSource::Pairs;
        self.taps.clear();
        self.taps.extend(lines.map(|line| axis.tap((line as i64 - placement.offset.1) as u64)));
        self.prefetch_begin = 0;
        self.first_components.clear();
        self.first_components.extend(image.groups().map(|group| group.first_component));
        let n_columns = self.columns.pairs.len();
        for slot in &mut self.slots {
            slot.source_row = None;
            if self.is_integer {
                slot.integer.resize(self.n_channels * n_columns);
            } else {
                slot.exact.resize(self.n_channels * n_columns);
            }
        }
    }

    /// Computes the line `line_idx`, counted from the first visible line. Lines must be requested in order.
    pub(super) fn line(&mut self, line_idx: usize, source: Rows<'_>, simd: Simd) -> Line<'_> {
        if let Some(tap) = self.taps.get(line_idx + LINES_AHEAD) {
            self.prefetch(*tap, source, simd);
        }
        let tap = self.taps[line_idx];
        for row in tap.first..=tap.second {
            if self.slots[slot_of(row)].source_row != Some(row) {
                self.compute_row(row, source, simd);
            }
        }
        let (first, second) = (&self.slots[slot_of(tap.first)], &self.slots[slot_of(tap.second)]);
        let blend = if self.is_integer {
            Blend::Integer { first: &first.integer, second: &second.integer, steps: steps(tap.weight) }
        } else {
            Blend::Exact { first: &first.exact, second: &second.exact, weight: tap.weight }
        };
        Line { blend, n_columns: self.columns.pairs.len(), color_of_channel: self.color_of_channel, normalizers: self.normalizers }
    }

    /// Prefetches the rows of a tap, unless they have been prefetched before. The caller must pass the taps in the order of the
    /// lines.
    fn prefetch(&mut self, tap: Tap, source: Rows<'_>, simd: Simd) {
        let (Some([first, _]), Some([_, last])) = (self.columns.pairs.first(), self.columns.pairs.last()) else { return };
        for row in tap.first.max(self.prefetch_begin)..=tap.second {
            for component_idx in &self.first_components {
                source.prefetch(*component_idx, row, *first..=*last, simd);
            }
        }
        self.prefetch_begin = tap.second + 1;
    }

    /// Computes a row into its slot. Also computes the next row if both rows share samples.
    fn compute_row(&mut self, row: u32, source: Rows<'_>, simd: Simd) {
        let with_next = self.is_by_two && source.shares_with_next(row);
        self.slots[slot_of(row)].source_row = Some(row);
        if with_next {
            self.slots[slot_of(row + 1)].source_row = Some(row + 1);
        }
        match (self.source, source.image.sample()) {
            (RowSource::Pairs, _) => {
                let slot = &mut self.slots[slot_of(row)];
                self.pairs.interpolate(source, row, split_rows(&mut slot.exact), simd);
            }
            (RowSource::Yuv, _) if with_next => {
                let slots = self.slots.get_disjoint_mut([slot_of(row), slot_of(row + 1)]).expect("two slots");
                self.yuv.interpolate(source, row, &self.columns.weights, slots.map(|slot| split_rows(&mut slot.exact)), simd);
            }
            (RowSource::Yuv, _) => {
                let slot = &mut self.slots[slot_of(row)];
                self.yuv.interpolate(source, row, &self.columns.weights, [split_rows(&mut slot.exact)], simd);
            }
            (RowSource::Samples, SampleType::U8) => self.compute_with::<1>(row, with_next, source, simd),
            (RowSource::Samples, SampleType::U16) => self.compute_with::<2>(row, with_next, source, simd),
            (RowSource::Samples, SampleType::F32) => self.compute_with::<4>(row, with_next, source, simd),
        }
    }

    fn compute_with<const N: usize>(&mut self, row: u32, with_next: bool, source: Rows<'_>, simd: Simd)
    where
        [u8; N]: Sample,
    {
        let (color_model, n_channels, columns) = (source.image.color_model(), self.n_channels, &self.columns);
        if with_next {
            let picked = self.samples.pick_two::<N>(source, row, simd);
            let slots = self.slots.get_disjoint_mut([slot_of(row), slot_of(row + 1)]).expect("two slots");
            with_colors(color_model, n_channels, InterpolatePair { picked, columns, slots, simd });
        } else {
            let picked = self.samples.pick::<N>(source, row, simd);
            let slot = &mut self.slots[slot_of(row)];
            with_colors(color_model, n_channels, Interpolate { picked, columns, slot, is_integer: self.is_integer, simd });
        }
    }
}

/// Returns the index of the slot of a row.
fn slot_of(row: u32) -> usize {
    row as usize % N_SLOTS
}

/// Interpolates a sampled row horizontally.
struct Interpolate<'a, S> {
    picked: Picked<'a, S>,
    columns: &'a Columns,
    slot: &'a mut Slot,
    is_integer: bool,
    simd: Simd,
}

impl<S: Sample> WithColors for Interpolate<'_, S> {
    #[inline(always)]
    fn run<T: Colors<C>, const C: usize>(self, colors: T) {
        let Self { picked, columns, slot, is_integer, simd } = self;
        if is_integer {
            simd.run(InterpolateInteger { colors, picked, steps: &columns.steps, rows: &mut slot.integer });
        } else {
            let weights = columns.is_interpolated.then_some(&*columns.weights);
            simd.run(InterpolateExact { colors, picked, weights, rows: &mut slot.exact });
        }
    }
}

/// Interpolates two sampled rows that share samples horizontally.
struct InterpolatePair<'a, S> {
    picked: [Picked<'a, S>; 2],
    columns: &'a Columns,
    slots: [&'a mut Slot; 2],
    simd: Simd,
}

impl<S: Sample> WithColors for InterpolatePair<'_, S> {
    #[inline(always)]
    fn run<T: Colors<C>, const C: usize>(self, colors: T) {
        let Self { picked, columns, slots, simd } = self;
        let rows = slots.map(|slot| &mut *slot.exact);
        simd.run(InterpolateTwo { colors, picked, weights: &columns.weights, rows });
    }
}
