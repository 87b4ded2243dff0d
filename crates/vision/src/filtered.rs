//! Computes the lines of an image that is scaled with the filter of `antialias`. Source rows are sampled, converted, filtered horizontally
//! and buffered. The buffered rows are then filtered vertically. This module does not write input tensors.

use std::ops::Range;

use super::aligned::Aligned;
use super::antialias::{FilterExact, FilterInteger, FilterRowsExact, FilterRowsInteger, RingRows, Taps};
use super::color::{Colors, WithColors, with_colors};
use super::image::{Image, Rows, SampleType};
use super::letterbox::Placement;
use super::preprocess::{Preprocess, Rounding};
use super::sample::{Picked, Sample};
use super::samples::Samples;
use super::simd::Simd;
use super::store::{Blend, Line, Normalizer};

/// Ring buffer of horizontally filtered source rows, and the current line.
#[derive(Debug, Default)]
pub(super) struct FilteredRows {
    columns: Taps,
    lines: Taps,
    /// Sampling plan of the columns. The taps of a column are sampled in pairs.
    samples: Samples,
    /// Ring buffer of filtered rows: source row `n` is in slot `n` modulo the number of slots. A slot has one row per channel. Either
    /// `exact` or `integer` is used.
    exact: Aligned<f32>,
    integer: Aligned<u16>,
    row_len: usize,
    /// Index after the last source row that was computed. The next line computes its missing rows from this index on.
    end: u32,
    line: Aligned<f32>,
    normalizers: [Normalizer; 3],
    color_of_channel: [usize; 3],
    n_channels: usize,
    is_integer: bool,
}

impl FilteredRows {
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
        self.normalizers = preprocess.normalizers();
        self.color_of_channel = preprocess.color_of_channel();
        self.columns.set(image.size().width, placement.scaled.width, columns, placement.offset.0);
        self.lines.set(image.size().height, placement.scaled.height, lines, placement.offset.1);
        let taps = |pair_idx: usize| {
            let (firsts, seconds) = (self.columns.samples(2 * pair_idx), self.columns.samples(2 * pair_idx + 1));
            firsts.zip(seconds).map(|(first, second)| [first, second])
        };
        self.samples.begin(image, self.columns.n_taps.div_ceil(2), taps, simd);
        let n_columns = self.columns.n_filled();
        self.row_len = self.n_channels * n_columns;
        self.line.resize(self.row_len);
        if self.is_integer {
            self.integer.resize(self.lines.n_taps * self.row_len);
        } else {
            self.exact.resize(self.lines.n_taps * self.row_len);
        }
        self.end = 0;
    }

    /// Computes the line `line_idx`, counted from the first visible line. Lines must be requested in order.
    pub(super) fn line(&mut self, line_idx: usize, source: Rows<'_>, simd: Simd) -> Line<'_> {
        let window = self.lines.window(line_idx);
        for row in self.end.max(window.start)..window.end {
            match source.image.sample() {
                SampleType::U8 => self.make::<1>(row, source, simd),
                SampleType::U16 => self.make::<2>(row, source, simd),
                SampleType::F32 => self.make::<4>(row, source, simd),
            }
        }
        self.end = window.end;
        let (first, n_rows) = (window.start as usize % self.lines.n_taps, window.len());
        let (row_len, n_lines) = (self.row_len, self.lines.n_filled());
        let target = &mut *self.line;
        if self.is_integer {
            let rows = RingRows { ring: &self.integer, row_len, first, n_rows, weights: &self.lines.integer, line: line_idx, n_lines };
            simd.run(FilterRowsInteger { rows, target });
        } else {
            let rows = RingRows { ring: &self.exact, row_len, first, n_rows, weights: &self.lines.weights, line: line_idx, n_lines };
            simd.run(FilterRowsExact { rows, target });
        }
        Line {
            blend: Blend::Exact { first: &self.line, second: &self.line, weight: 0.0 },
            n_columns: self.columns.n_filled(),
            color_of_channel: self.color_of_channel,
            normalizers: self.normalizers,
        }
    }

    fn make<const N: usize>(&mut self, source_row: u32, source: Rows<'_>, simd: Simd)
    where
        [u8; N]: Sample,
    {
        let slot = source_row as usize % self.lines.n_taps * self.row_len;
        let is_integer = self.is_integer;
        let filter = FilterRow {
            picked: self.samples.pick::<N>(source, source_row, simd),
            columns: &self.columns,
            exact: if is_integer { &mut [] } else { &mut self.exact[slot..][..self.row_len] },
            integer: if is_integer { &mut self.integer[slot..][..self.row_len] } else { &mut [] },
            is_integer,
            simd,
        };
        with_colors(source.image.color_model(), self.n_channels, filter);
    }
}

/// Filters a sampled row horizontally.
struct FilterRow<'a, S> {
    picked: Picked<'a, S>,
    columns: &'a Taps,
    exact: &'a mut [f32],
    integer: &'a mut [u16],
    is_integer: bool,
    simd: Simd,
}

impl<S: Sample> WithColors for FilterRow<'_, S> {
    fn run<T: Colors<C>, const C: usize>(self, colors: T) {
        let Self { picked, columns, exact, integer, is_integer, simd } = self;
        if is_integer {
            simd.run(FilterInteger { colors, picked, weights: &columns.integer, rows: integer });
        } else {
            simd.run(FilterExact { colors, picked, weights: &columns.weights, rows: exact });
        }
    }
}
