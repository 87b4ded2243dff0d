//! Source rows as wide as the input: sampled, converted, mixed horizontally, and kept as long as the next line may need them.
//! Owns the buffers of that. Knows no lines of the input.

use std::ops::Range;

use super::aligned::Aligned;
use super::color::{Colors, WithColors, with_colors};
use super::letterbox::Placement;
use super::pairs::Pairs;
use super::picture::{Meaning, Picture, Rows, SampleType};
use super::preprocess::{Preprocess, Rounding};
use super::resize::{Axis, Columns, FINE_STEPS, MixExact, MixTwo, MixWhole, Tap, split_rows, steps};
use super::sample::{Picked, Sample};
use super::samples::Samples;
use super::simd::Instructions;
use super::store::{Blend, Line, Normalizer};

/// The source rows that were made last: the two of a line, and one that was made together with one of them.
#[derive(Debug, Default)]
pub(super) struct ScaledRows {
    columns: Columns,
    samples: Samples,
    /// Instead of `samples`, for pictures whose bytes are colors.
    pairs: Pairs,
    slots: [Slot; 3],
    /// Rows before this one are not asked for again.
    prefetch_begin: u32,
    /// Of each group of components, the one that comes first in memory.
    first_components: Vec<usize>,
    /// Of the channels.
    normalizers: [Normalizer; 3],
    /// Which of red, green and blue each is; 0 for gray.
    color_of_channel: [usize; 3],
    n_channels: usize,
    is_whole: bool,
    /// Whether rows that share a row of a plane are made together.
    is_by_two: bool,
    /// Whether samples are mixed in whole numbers; then rows are in [`FINE_STEPS`].
    is_by_pairs: bool,
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
        self.color_of_channel = preprocess.color_of_channel();
        let axis = Axis::new(picture.size().width, placement.scaled.width, preprocess.rounding);
        // Such bytes need no conversion before they are mixed.
        let are_colors = (picture.meaning(), picture.sample(), self.n_channels) == (Meaning::Rgb, SampleType::U8, 3);
        let in_fine_steps = are_colors && !self.is_whole;
        self.columns.set(&axis, visible, placement.offset.0, in_fine_steps);
        let normalizers = preprocess.normalizers();
        let of_steps = normalizers.map(|normalizer| normalizer.of_steps(FINE_STEPS.into()));
        self.is_by_pairs = in_fine_steps
            && self.columns.is_mixed
            && of_steps.iter().all(Option::is_some)
            && self.pairs.set(picture, &self.columns, instructions);
        if !self.is_by_pairs {
            self.samples.begin(picture, 1, |_| self.columns.pairs.iter().copied(), instructions);
        }
        self.normalizers = if self.is_by_pairs { of_steps.map(Option::unwrap_or_default) } else { normalizers };
        let lines = Axis::new(picture.size().height, placement.scaled.height, preprocess.rounding);
        self.is_by_two = lines.takes_all() && self.columns.is_mixed && !self.is_whole;
        self.prefetch_begin = 0;
        self.first_components.clear();
        self.first_components.extend(picture.groups().map(|group| group.first_component));
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

    /// Has the rows of a tap brought near, unless they were before. Taps come in their order.
    pub(super) fn prefetch(&mut self, tap: Tap, source: Rows<'_>, instructions: Instructions) {
        let (Some([first, _]), Some([_, last])) = (self.columns.pairs.first(), self.columns.pairs.last()) else { return };
        for row in tap.first.max(self.prefetch_begin)..=tap.second {
            for component_idx in &self.first_components {
                source.prefetch(*component_idx, row, *first..=*last, instructions);
            }
        }
        self.prefetch_begin = tap.second + 1;
    }

    /// What the rows of a tap make; they are made unless they are there.
    pub(super) fn line(&mut self, tap: Tap, source: Rows<'_>, instructions: Instructions) -> Line<'_> {
        self.hold(tap, source, instructions);
        let slot = |row: u32| self.slots.iter().find(|slot| slot.source_row == Some(row)).expect("the rows of the tap are held");
        let (first, second) = (slot(tap.first), slot(tap.second));
        let blend = if self.is_whole {
            Blend::Whole { first: &first.whole, second: &second.whole, steps: steps(tap.weight) }
        } else {
            Blend::Exact { first: &first.exact, second: &second.exact, weight: tap.weight }
        };
        Line { blend, n_columns: self.columns.pairs.len(), color_of_channel: self.color_of_channel, normalizers: self.normalizers }
    }

    fn hold(&mut self, tap: Tap, source: Rows<'_>, instructions: Instructions) {
        for wanted in [tap.first, tap.second] {
            if self.slots.iter().any(|slot| slot.source_row == Some(wanted)) {
                continue;
            }
            let is_free = |slot: &Slot| slot.source_row.is_none_or(|row| row != tap.first && row != tap.second);
            let mut free = (0..self.slots.len()).filter(|slot_idx| is_free(&self.slots[*slot_idx]));
            // At most one is taken, by the other row of the tap.
            let (Some(slot_idx), Some(next_idx)) = (free.next(), free.next()) else { unreachable!("there is a slot for a third row") };
            if self.is_by_pairs {
                let slot = &mut self.slots[slot_idx];
                slot.source_row = Some(wanted);
                self.pairs.mix(source, wanted, split_rows(&mut slot.exact), instructions);
                continue;
            }
            let of_two = (self.is_by_two && source.shares_with_next(wanted)).then_some(next_idx);
            match source.picture.sample() {
                SampleType::U8 => self.make::<1>(slot_idx, of_two, wanted, source, instructions),
                SampleType::U16 => self.make::<2>(slot_idx, of_two, wanted, source, instructions),
                SampleType::F32 => self.make::<4>(slot_idx, of_two, wanted, source, instructions),
            }
        }
    }

    /// Makes a row in a slot, and the next one in another, if one is given.
    #[inline(never)]
    fn make<const N: usize>(
        &mut self,
        slot_idx: usize,
        next_idx: Option<usize>,
        source_row: u32,
        source: Rows<'_>,
        instructions: Instructions,
    ) where
        [u8; N]: Sample,
    {
        let (meaning, n_channels, columns) = (source.picture.meaning(), self.n_channels, &self.columns);
        self.slots[slot_idx].source_row = Some(source_row);
        let Some(next_idx) = next_idx else {
            let picked = self.samples.pick::<N>(source, source_row, instructions);
            let slot = &mut self.slots[slot_idx];
            return with_colors(meaning, n_channels, Mix { picked, columns, slot, is_whole: self.is_whole, instructions });
        };
        self.slots[next_idx].source_row = Some(source_row + 1);
        let picked = self.samples.pick_two::<N>(source, source_row, instructions);
        let slots = self.slots.get_disjoint_mut([slot_idx, next_idx]).expect("two slots");
        with_colors(meaning, n_channels, MixOfTwo { picked, columns, slots, instructions });
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

/// The mixing of two rows that share samples.
struct MixOfTwo<'a, S> {
    picked: [Picked<'a, S>; 2],
    columns: &'a Columns,
    slots: [&'a mut Slot; 2],
    instructions: Instructions,
}

impl<S: Sample> WithColors for MixOfTwo<'_, S> {
    fn run<T: Colors<C>, const C: usize>(self, colors: T) {
        let Self { picked, columns, slots, instructions } = self;
        let rows = slots.map(|slot| &mut *slot.exact);
        instructions.run(MixTwo { colors, picked, weights: &columns.weights, rows });
    }
}
