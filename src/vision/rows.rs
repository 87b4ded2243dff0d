//! Source rows as wide as the input: sampled, converted, mixed horizontally, and kept as long as the next line may need them.
//! Owns the buffers of that. Knows no lines of the input.

use std::ops::Range;

use super::aligned::Aligned;
use super::color::{Colors, WithColors, with_colors};
use super::letterbox::Placement;
use super::picture::{Picture, Rows, SampleType};
use super::preprocess::{Preprocess, Rounding};
use super::resize::{Axis, Columns, MixExact, MixWhole, Tap, steps};
use super::sample::{Picked, Sample};
use super::samples::Samples;
use super::simd::Instructions;
use super::store::{Blend, Line, Normalizer};

/// The two source rows that were made last.
#[derive(Debug, Default)]
pub(super) struct ScaledRows {
    columns: Columns,
    samples: Samples,
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
        self.samples.begin(picture, 1, |_| self.columns.pairs.iter().copied(), instructions);
        let n_columns = self.columns.pairs.len();
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
        let mix = Mix {
            picked: self.samples.pick::<N>(source, source_row, instructions),
            columns: &self.columns,
            slot: &mut self.slots[slot_idx],
            is_whole: self.is_whole,
            instructions,
        };
        with_colors(source.picture.meaning(), self.n_channels, mix);
    }
}

/// The mixing of a row whose samples were picked.
struct Mix<'a, S> {
    picked: Picked<'a, S>,
    columns: &'a Columns,
    slot: &'a mut Slot,
    is_whole: bool,
    instructions: Instructions,
}

impl<S: Sample> WithColors for Mix<'_, S> {
    fn run<T: Colors<C>, const C: usize>(self, colors: T) {
        let Self { picked, columns, slot, is_whole, instructions } = self;
        if is_whole {
            instructions.run(MixWhole { colors, picked, steps: &columns.steps, rows: &mut slot.whole });
        } else {
            let weights = columns.is_mixed.then_some(&*columns.weights);
            instructions.run(MixExact { colors, picked, weights, rows: &mut slot.exact });
        }
    }
}
