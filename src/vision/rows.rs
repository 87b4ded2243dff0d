//! Source rows as wide as the input: sampled, converted, mixed horizontally, and kept as long as the next line may need them.
//! Owns the buffers of that. Knows no lines of the input.

use std::ops::Range;

use super::aligned::Aligned;
use super::color::{Colors, WithColors, with_colors};
use super::letterbox::Placement;
use super::picture::{Picture, Rows, SampleType};
use super::preprocess::{Preprocess, Rounding};
use super::resize::{Axis, Columns, MixExact, MixWhole, Tap, steps};
use super::sample::{Grid, Sample};
use super::simd::Instructions;
use super::store::{Blend, Line, Normalizer};

/// The two source rows that were made last.
#[derive(Debug, Default)]
pub(super) struct ScaledRows {
    columns: Columns,
    /// Where components find their samples: that of the first, and another one if it is not good for all.
    grids: [Grid; 2],
    /// The first and the second samples of each component, one list after the other.
    samples: Aligned<u8>,
    slots: [Slot; 2],
    /// Of the channels.
    normalizers: [Normalizer; 3],
    /// Which of red, green and blue each is; 0 for gray.
    color_of_channel: [usize; 3],
    n_channels: usize,
    is_whole: bool,
}

#[derive(Debug, Default)]
struct Slot {
    source_row: Option<u32>,
    /// One row per channel, one after the other; in one of the two ways.
    exact: Aligned<f32>,
    whole: Aligned<u16>,
}

impl ScaledRows {
    /// Plans for the columns `visible` of the input and forgets the rows.
    pub(super) fn begin(
        &mut self,
        preprocess: &Preprocess,
        picture: &Picture,
        placement: &Placement,
        visible: Range<usize>,
        instructions: Instructions,
    ) {
        self.is_whole = preprocess.rounding == Rounding::U8;
        self.n_channels = preprocess.color.n_channels();
        self.normalizers = preprocess.normalizers();
        self.color_of_channel = preprocess.color_of_channel();
        let axis = Axis::new(picture.size().width, placement.scaled.width, preprocess.rounding);
        self.columns.set(&axis, visible, placement.offset.0);
        // The third component lies like the second one in all formats.
        for (component_idx, grid) in self.grids.iter_mut().enumerate() {
            let spacing = picture.spacing(component_idx);
            if component_idx == 0 || spacing != picture.spacing(0) {
                let positions = self.columns.pairs.iter().map(|pair| pair.map(|column| spacing.position(column)));
                grid.set(positions, picture.sample().n_bytes(), instructions);
            }
        }
        let n_columns = self.columns.pairs.len();
        self.samples.resize(6 * n_columns * picture.sample().n_bytes());
        for slot in &mut self.slots {
            slot.source_row = None;
            if self.is_whole {
                slot.whole.resize(self.n_channels * n_columns);
            } else {
                slot.exact.resize(self.n_channels * n_columns);
            }
        }
    }

    /// What the rows of a tap make; they are made unless they are there.
    pub(super) fn line(&mut self, tap: Tap, source: Rows<'_>, instructions: Instructions) -> Line<'_> {
        self.hold(tap, source, instructions);
        let slot = |row: u32| &self.slots[usize::from(self.slots[0].source_row != Some(row))];
        let (first, second) = (slot(tap.first), slot(tap.second));
        let blend = if self.is_whole {
            Blend::Whole { first: &first.whole, second: &second.whole, steps: steps(tap.weight) }
        } else {
            Blend::Exact { first: &first.exact, second: &second.exact, weight: tap.weight }
        };
        Line { blend, n_columns: self.columns.pairs.len(), color_of_channel: self.color_of_channel, normalizers: self.normalizers }
    }

    fn hold(&mut self, tap: Tap, source: Rows<'_>, instructions: Instructions) {
        for (wanted, kept) in [(tap.first, tap.second), (tap.second, tap.first)] {
            if self.slots.iter().all(|slot| slot.source_row != Some(wanted)) {
                let slot_idx = usize::from(self.slots[0].source_row == Some(kept));
                self.make(slot_idx, wanted, source, instructions);
            }
        }
    }

    fn make(&mut self, slot_idx: usize, source_row: u32, source: Rows<'_>, instructions: Instructions) {
        match source.picture.sample() {
            SampleType::U8 => self.make_of::<1>(slot_idx, source_row, source, instructions),
            SampleType::U16 => self.make_of::<2>(slot_idx, source_row, source, instructions),
            SampleType::F32 => self.make_of::<4>(slot_idx, source_row, source, instructions),
        }
        self.slots[slot_idx].source_row = Some(source_row);
    }

    fn make_of<const N: usize>(&mut self, slot_idx: usize, source_row: u32, source: Rows<'_>, instructions: Instructions)
    where
        [u8; N]: Sample,
    {
        let (picture, n_columns) = (source.picture, self.columns.pairs.len());
        let mut lists = self.samples.as_chunks_mut::<N>().0.chunks_exact_mut(n_columns);
        for component_idx in 0..picture.n_components() {
            let grid_idx = usize::from(picture.spacing(component_idx) != picture.spacing(0));
            let (Some(firsts), Some(seconds)) = (lists.next(), lists.next()) else { unreachable!("there are six lists") };
            self.grids[grid_idx].pick(source.row(component_idx, source_row), firsts, seconds, instructions);
        }
        let lists = self.samples.as_chunks::<N>().0;
        // Where there is only one component, the others are not looked at.
        let list = |idx: usize| &lists[idx * n_columns..][..n_columns];
        let mix = Mix {
            firsts: [list(0), list(2), list(4)],
            seconds: [list(1), list(3), list(5)],
            columns: &self.columns,
            slot: &mut self.slots[slot_idx],
            is_whole: self.is_whole,
            instructions,
        };
        with_colors(picture.meaning(), self.n_channels, mix);
    }
}

/// The mixing of a row whose samples were picked.
struct Mix<'a, S> {
    firsts: [&'a [S]; 3],
    seconds: [&'a [S]; 3],
    columns: &'a Columns,
    slot: &'a mut Slot,
    is_whole: bool,
    instructions: Instructions,
}

impl<S: Sample> WithColors for Mix<'_, S> {
    fn run<T: Colors<C>, const C: usize>(self, colors: T) {
        let Self { firsts, seconds, columns, slot, is_whole, instructions } = self;
        if is_whole {
            instructions.run(MixWhole { colors, firsts, seconds, steps: &columns.steps, rows: &mut slot.whole });
        } else {
            let weights = columns.is_mixed.then_some(&*columns.weights);
            instructions.run(MixExact { colors, firsts, seconds, weights, rows: &mut slot.exact });
        }
    }
}
