//! Output tensors to typed results: a [`Decoder`] reads the outputs for one image and gives [`Results`] in input space. One file for each
//! way in which models write outputs, with the keys that it has in a description; [`DecoderRegistry`] finds them by name. [`boxes`] has what
//! all detectors of boxes share, this file how outputs are handed over and found.
//!
//! Knows no requests and no frames beyond geometry: the caller maps results with `frame_from_input`.
//!
//! To add a decoder: a file with an `impl` of [`Decoder`], or of [`BoxScheme`] if it reads rows of boxes, its line in `registry::BUILT_IN`, its
//! row in `docs/model-descriptions.md`, and golden data.

mod activate;
pub mod boxes;
mod boxes_labels;
mod boxes_scores;
mod centerface;
mod classes;
mod expectation;
mod grid;
mod nanodet;
mod registry;
mod results;
mod retinaface;
mod scrfd;
mod section;
mod ssd;
pub mod survey;
mod tf_ssd;
mod ultraface;
mod vector;
mod yolov10;
mod yolov5;
mod yolov8;
mod yolox;
mod yunet;

use std::fmt;

use crate::frame::Size;
use crate::tensor::{Error, ErrorKind, Result};

pub use activate::ScorePlace;
pub use boxes::{BoxDecoder, BoxScheme, BoxThresholds, Coordinates};
pub use classes::{Activation, top_k};
pub use registry::{DecoderRegistry, Gives};
pub use results::{RawAttribute, RawDetection, Results};
pub use section::Section;
pub use survey::{Finding, Survey};

/// A way to read the outputs of a model, with the options of one description.
///
/// Those that are built in implement it, and a program can add its own to a [`DecoderRegistry`].
pub trait Decoder: fmt::Debug + Send + Sync {
    /// Whether a model with these outputs (names and shapes) and an input of this size is one that this decoder reads, and how many
    /// classes it tells apart: 0 if the shapes do not say, or there are none.
    ///
    /// The first axis may have any extent. `usize::MAX` stands for an extent that is not known yet and fits everything.
    ///
    /// # Errors
    /// `Shape` if not; the message says what was expected and what came.
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32>;

    /// Puts what is in the outputs for one image into `results`, which is empty, in pixels of the input. Allocates nothing but what `results`
    /// needs.
    ///
    /// # Errors
    /// As [`Decoder::check`], or if an output has not as many values as its shape; `Unsupported` if its values give no result.
    fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()>;

    /// How many outputs it reads at once. Default: all.
    fn reads(&self) -> Reads {
        Reads::All
    }

    /// What outputs are called that shapes do not tell apart: a description names them by these (`tensors`), and they are found by
    /// names that have these words in them. Default: none.
    fn roles(&self) -> &'static [&'static str] {
        &[]
    }

    /// The least score of what it reports, if that has scores, and so classes. Default: it has none.
    fn threshold(&self) -> Option<f32> {
        None
    }

    /// Sets a threshold for each class by its index; those beyond the end keep [`Decoder::threshold`]. Returns whether it can; default: no.
    fn set_class_thresholds(&mut self, _thresholds: Vec<f32>) -> bool {
        false
    }

    /// What matters of its options beside the threshold, for people. Default: nothing.
    fn summary(&self) -> String {
        String::new()
    }

    /// The unit in which models usually write boxes for this decoder, if a description can name another one. Default: it can't.
    fn coordinates(&self) -> Option<Coordinates> {
        None
    }

    /// The activation that exports may leave out and a description can name, see `activation` there. Default: none can be named.
    fn missing_activation(&self) -> Option<Activation> {
        None
    }
}

/// How many outputs a decoder reads at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// All of a model.
    All,
    /// One: of several a description names it with `tensor`.
    One,
    /// One, and all of a model one after the other if the description names none.
    Each,
}

/// One output of a model for one row of the batch.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    /// The port's name, or the role that a description gives it.
    pub name: &'a str,
    /// The extent of each axis; the first one is 1.
    pub shape: &'a [usize],
    /// The values without gaps, last axis fastest.
    pub data: &'a [f32],
}

impl Output<'_> {
    /// # Errors
    /// [`ErrorKind::Shape`] if it is not one row of a batch, or has not as many values as its shape says.
    pub fn check(&self) -> Result<()> {
        if self.shape.first() == Some(&1) && self.is_complete() { Ok(()) } else { Err(self.incomplete()) }
    }

    /// As [`Output::check`], also for tables and columns that lack the axis of the batch: `[n, columns]` or `[n]`.
    fn check_table(&self) -> Result<()> {
        let is_table = matches!(self.shape, [1, ..] | [_, _] | [_]);
        if is_table && self.is_complete() { Ok(()) } else { Err(self.incomplete()) }
    }

    fn is_complete(&self) -> bool {
        let n_values = self.shape.iter().try_fold(1_usize, |product, &extent| product.checked_mul(extent));
        n_values == Some(self.data.len())
    }

    fn incomplete(&self) -> Error {
        Error::new(
            ErrorKind::Shape,
            format!(
                "output `{}`: expected one row of a batch, as many values as the shape says, got shape {:?} with {} values",
                self.name,
                self.shape,
                self.data.len()
            ),
        )
    }
}

/// The only output of a decoder that reads one; one row of a batch with as many values as its shape says.
fn one<'a>(outputs: &[Output<'a>]) -> Result<Output<'a>> {
    let output = *outputs.first().ok_or_else(no_output)?;
    output.check()?;
    Ok(output)
}

/// As [`one`], of names and shapes.
fn one_port<'a>(outputs: &[(&'a str, &'a [usize])]) -> Result<(&'a str, &'a [usize])> {
    outputs.first().copied().ok_or_else(no_output)
}

fn no_output() -> Error {
    Error::new(ErrorKind::Shape, "expected an output, got none")
}

/// A name and a shape: what [`Decoder::check`] gets, and what an [`Output`] has.
trait Port {
    fn name(&self) -> &str;
    fn shape(&self) -> &[usize];
}

impl Port for (&str, &[usize]) {
    fn name(&self) -> &str {
        self.0
    }

    fn shape(&self) -> &[usize] {
        self.1
    }
}

impl Port for Output<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }
}

/// An extent that is known to be none of the right ones; one that is not known fits.
fn differs(extent: usize, expected: usize) -> bool {
    extent != expected && extent != usize::MAX
}

/// The index of the only port that fits, or none.
fn only<P: Port>(ports: &[P], fits: impl Fn(&[usize]) -> bool) -> Option<usize> {
    let mut fitting = (0..ports.len()).filter(|&port_idx| fits(ports[port_idx].shape()));
    fitting.next().filter(|_| fitting.next().is_none())
}

/// The index of the only port that is called like this, or of the only one whose name has the word in it, if its shape fits.
fn named<P: Port>(ports: &[P], role: &str, fits: impl Fn(&[usize]) -> bool) -> Option<usize> {
    let only_name = |is_it: &dyn Fn(&str) -> bool| {
        let mut fitting = (0..ports.len()).filter(|&port_idx| is_it(ports[port_idx].name()) && fits(ports[port_idx].shape()));
        fitting.next().filter(|_| fitting.next().is_none())
    };
    only_name(&|name| name == role).or_else(|| only_name(&|name| name.to_ascii_lowercase().contains(role)))
}

/// A class as a list of boxes has it, as a number; `None` if it is none, or larger than that of any model.
fn class_of(value: f32) -> Option<u32> {
    (0.0..65536.0).contains(&value).then_some(value as u32)
}

/// The error of a decoder that does not find its outputs.
fn unexpected<P: Port>(decoder: &str, expected: impl fmt::Display, ports: &[P]) -> Error {
    let list: Vec<String> = ports.iter().map(|port| format!("`{}` {}", port.name(), shape_text(port.shape()))).collect();
    let list = if list.is_empty() { "no output".to_owned() } else { list.join(", ") };
    Error::new(ErrorKind::Shape, format!("decoder `{decoder}`: expected {expected}, got {list}"))
}

/// The class of the best score, the first of equal ones, and that score. What is not a number never wins; of nothing else,
/// and of no scores, the result is minus infinity.
fn best_class(scores: &[f32]) -> (u32, f32) {
    let larger = |one: f32, other: f32| if other > one { other } else { one };
    // Side by side first, which the compiler turns into vector instructions; in which order is all the same to a maximum.
    let (blocks, rest) = scores.as_chunks::<16>();
    let mut best = [f32::NEG_INFINITY; 16];
    for block in blocks {
        best.iter_mut().zip(block).for_each(|(best, &score)| *best = larger(*best, score));
    }
    let best = best.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger);
    let class_id = scores.iter().position(|&score| score == best).unwrap_or(0);
    (class_id as u32, best)
}

/// A shape for people, `?` where it is not known.
fn shape_text(shape: &[usize]) -> String {
    let extents: Vec<String> = shape.iter().map(|&extent| if extent == usize::MAX { "?".to_owned() } else { extent.to_string() }).collect();
    format!("[{}]", extents.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Outcome;

    /// A decoder that is built in, with these keys.
    pub(super) fn decoder(name: &str, keys: &str) -> Box<dyn Decoder> {
        DecoderRegistry::built_in().make_from_text(name, keys).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The boxes that it finds.
    pub(super) fn boxes(decoder: &dyn Decoder, outputs: &[Output<'_>], input: Size) -> Vec<RawDetection> {
        let mut results = Results::default();
        decoder.decode(outputs, input, &mut results).unwrap();
        results.boxes
    }

    /// What a decoder says of the only output.
    pub(super) fn said(decoder: &dyn Decoder, data: &[f32]) -> Result<Option<Outcome>> {
        let mut results = Results::default();
        decoder.decode(&[Output { name: "color", shape: &[1, data.len(), 1, 1], data }], Size::default(), &mut results)?;
        assert!(results.boxes.is_empty() && results.attributes.len() <= 1);
        Ok(results.attributes.pop().map(|said| said.outcome))
    }

    #[test]
    fn thresholds_that_are_not_given_are_those_of_the_authors() {
        let thresholds = |name, keys| (decoder(name, keys).threshold(), decoder(name, keys).summary());
        assert_eq!(thresholds("ultraface", ""), (Some(0.7), "iou-threshold 0.3".to_owned()));
        assert_eq!(thresholds("yolox", "iou-threshold = 0.5"), (Some(0.3), "iou-threshold 0.5".to_owned()));
        assert_eq!(thresholds("yolov10", ""), (Some(0.25), String::new()));
    }

    #[test]
    fn the_best_class_is_the_first_of_equal_ones_and_a_number() {
        assert_eq!(best_class(&[]), (0, f32::NEG_INFINITY));
        assert_eq!(best_class(&[f32::NAN; 20]), (0, f32::NEG_INFINITY));
        let mut scores = [0.25; 37];
        assert_eq!(best_class(&scores), (0, 0.25));
        for (class_idx, score) in [(36, 0.5), (31, 0.5), (16, 0.75), (2, 0.75)] {
            scores[class_idx] = score;
            assert_eq!(best_class(&scores), (class_idx as u32, score));
        }
        scores[0] = f32::NAN;
        assert_eq!(best_class(&scores), (2, 0.75));
    }

    #[test]
    fn each_class_has_its_own_threshold_and_what_is_left_out_takes_no_place() {
        // Of class 0 and 1, the better ones of class 1; as a list, and as cells that suppress each other within a class.
        let rows: Vec<[f32; 7]> = [(1, 0.9), (1, 0.8), (0, 0.7), (0, 0.4), (1, 0.5), (2, 0.6), (2, 0.2)]
            .iter()
            .zip(0..)
            .map(|(&(class, score), n)| [0.0, class as f32, score, 0.1 * n as f32, 0.0, 0.1 * n as f32 + 0.1, 0.1])
            .collect();
        let list = Output { name: "list", shape: &[1, 1, 7, 7], data: rows.as_flattened() };
        let mut cells = vec![0.0_f32; 42 * 8];
        for (row, cell) in rows.iter().zip(cells.chunks_exact_mut(8)) {
            // Beside each other, 8 pixels each.
            cell[4] = row[2];
            cell[5 + row[1] as usize] = 1.0;
        }
        let grid = Output { name: "grid", shape: &[1, 42, 8], data: &cells };
        for (name, output) in [("ssd", list), ("yolox", grid)] {
            let found = |class_scores: &[f32], max_boxes| {
                let mut decoder = decoder(name, &format!("threshold = 0.5\nmax-boxes = {max_boxes}"));
                assert!(decoder.set_class_thresholds(class_scores.to_vec()));
                let boxes = boxes(&*decoder, &[output], Size::new(64, 32));
                boxes.iter().map(|found| (found.class_id, found.score)).collect::<Vec<_>>()
            };
            assert_eq!(found(&[], 300), [(1, 0.9), (1, 0.8), (0, 0.7), (2, 0.6)], "{name}");
            assert_eq!(found(&[0.3, 0.85], 300), [(1, 0.9), (0, 0.7), (2, 0.6), (0, 0.4)], "{name}");
            assert_eq!(found(&[0.3, 0.95, 0.1], 3), [(0, 0.7), (2, 0.6), (0, 0.4)], "{name}");
        }
    }

    #[test]
    fn outputs_that_are_not_one_row_or_not_complete_are_refused() {
        for (shape, n_values) in [(&[2, 4, 6][..], 48), (&[1, 4, 6], 23), (&[], 1)] {
            let data = vec![0.0; n_values];
            let output = Output { name: "faces", shape, data: &data };
            let mut results = Results::default();
            let error = decoder("ultraface", "").decode(&[output], Size::new(8, 8), &mut results).unwrap_err();
            assert!(error.kind() == ErrorKind::Shape && error.to_string().contains("`faces`"), "{error}");
            assert!(results.boxes.is_empty());
        }
        // Where the axis of the batch may be missing, it may not be empty.
        let shapes: [[usize; 3]; 6] = [[1, 64, 1], [1, 16, 1], [1, 4, 1], [1, 64, 4], [1, 16, 4], [0, 4, 4]];
        let tensors = shapes.map(|shape| vec![0.9; shape.iter().product()]);
        let outputs: Vec<Output<'_>> = shapes.iter().zip(&tensors).map(|(shape, data)| Output { name: "faces", shape, data }).collect();
        let error = decoder("scrfd", "").decode(&outputs, Size::new(64, 32), &mut Results::default()).unwrap_err();
        assert!(error.to_string().contains("got shape [0, 4, 4]"), "{error}");
    }
}
