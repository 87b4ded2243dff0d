//! Postprocessing: decodes output tensors to typed results.
//!
//! A [`Decoder`] reads the outputs of one image and writes [`Results`] in input space. Each file implements one output format and its
//! description keys. [`DecoderRegistry`] finds decoders by name. [`boxes`] has the common part of box decoders; this file has functions
//! that access outputs.
//!
//! Decoders use neither requests nor frames. The caller maps the results to the frame with the transform `frame_from_input`.
//!
//! To add a decoder: write a file that implements [`Decoder`], or [`BoxScheme`] for boxes in rows. Then add a line in
//! `registry::BUILT_IN`, a row in `docs/model-descriptions.md`, and golden data.

mod activate;
mod anchors;
mod blazeface;
pub mod boxes;
mod boxes_labels;
mod boxes_scores;
mod centerface;
mod classes;
mod detr;
mod efficientdet;
mod expectation;
mod extra;
mod fastestdet;
mod final_boxes;
mod gallery;
mod grid;
mod landmarks;
mod maps;
mod masks;
mod nanodet;
mod pose;
mod registry;
mod results;
mod retinaface;
mod rotated;
mod scrfd;
mod section;
mod ssd;
pub mod survey;
mod text;
mod text_format;
mod tf_ssd;
mod ultraface;
mod vector;
mod yolov10;
mod yolov5;
mod yolov8;
mod yolox;
mod yunet;

use std::fmt;
use std::sync::Arc;

use crate::frame::Size;
use crate::tensor::{Error, ErrorKind, Result};

pub use activate::ScoreRange;
pub use boxes::{BoxDecoder, BoxScheme, BoxThresholds, Coordinates};
pub use classes::{Activation, top_k};
pub use gallery::{Gallery, Nearest};
pub use registry::{DecoderRegistry, Subject};
pub use results::{RawAttribute, RawDetection, Results};
pub use rotated::Overlap;
pub use section::Section;
pub use survey::{Finding, Survey};

/// Reads the outputs of a model, with the options of one description.
///
/// Built-in decoders implement this trait. Programs can add decoders to a [`DecoderRegistry`].
pub trait Decoder: fmt::Debug + Send + Sync {
    /// Checks that this decoder can read these outputs, given as names and shapes, for an input of this size.
    ///
    /// Returns the number of classes; 0 if there are no classes or the shapes do not determine the number. The first axis may have any
    /// extent. `usize::MAX` is a dynamic extent, which matches any other extent.
    ///
    /// # Errors
    /// Returns `Shape` if this decoder cannot read the outputs. The message names the expected and the actual outputs.
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32>;

    /// Decodes the outputs of one image into `results`, in input pixels. `results` must be empty. Allocates only to grow `results`.
    ///
    /// # Errors
    /// Returns the errors of [`Decoder::check`], and `Shape` if an output has the wrong number of values. Returns `Unsupported` if the
    /// values of an output are invalid.
    fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()>;

    /// Returns which outputs the decoder reads together. Default: all.
    fn reads(&self) -> Reads {
        Reads::All
    }

    /// Returns the roles of outputs that have the same shape. The key `tensors` of a description assigns outputs to the roles. Without
    /// this key, an output has a role if its name contains the role. Default: none.
    fn roles(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the minimum score of results; `None` if results have no scores. Default: `None`.
    fn threshold(&self) -> Option<f32> {
        None
    }

    /// Sets thresholds by class index. Classes beyond the list use [`Decoder::threshold`]. Returns false if the decoder does not support
    /// class thresholds. Default: false.
    fn set_class_thresholds(&mut self, _thresholds: Vec<f32>) -> bool {
        false
    }

    /// Sets the labels of the classes, before the outputs are checked. Only decoders whose results contain labels need them. Default: no
    /// effect, because the caller replaces class indexes by labels.
    fn set_labels(&mut self, _labels: &[Arc<str>]) {}

    /// Returns a readable summary of the decoder's options, without the threshold. Default: empty.
    fn summary(&self) -> String {
        String::new()
    }

    /// Returns the default unit of boxes; `None` if a description cannot set the unit. Default: `None`.
    fn coordinates(&self) -> Option<Coordinates> {
        None
    }

    /// Whether boxes of different classes suppress each other. Default: false.
    fn is_class_agnostic(&self) -> bool {
        false
    }

    /// Returns the index of the class for "no object" or for the background. This class needs no label. Default: `None`.
    fn background(&self) -> Option<u32> {
        None
    }

    /// Whether each row of a table with this number of columns names its image, so that one table can have the rows of all images of a batch.
    /// The decoder then returns those of the first image. Default: false.
    fn names_images(&self, _n_columns: usize) -> bool {
        false
    }

    /// Returns the last activation of the model, which some exports lack; see the description key `activation`. `None` if a
    /// description cannot set it. Default: `None`.
    fn missing_activation(&self) -> Option<Activation> {
        None
    }
}

/// Number of outputs that a decoder reads together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// All outputs of the model.
    All,
    /// One output. If the model has several, the description selects it with `tensor`.
    One,
    /// One output. If the description does not select one, each output is decoded separately.
    Each,
}

/// One output of a model for one batch item.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    /// Name of the port, or its role from the description.
    pub name: &'a str,
    /// Extents of the axes; the first is 1.
    pub shape: &'a [usize],
    /// Contiguous values in row-major order.
    pub data: &'a [f32],
}

impl Output<'_> {
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if the output is not one batch item, or the number of values does not match the shape.
    pub fn check(&self) -> Result<()> {
        if self.shape.first() == Some(&1) && self.is_complete() { Ok(()) } else { Err(self.incomplete()) }
    }

    /// Like [`Output::check`], but also accepts outputs without a batch axis: `[n, columns]`, `[n]`, or one number without axes.
    fn check_table(&self) -> Result<()> {
        let is_table = matches!(self.shape, [1, ..] | [_, _] | [_] | []);
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
                "output `{}`: expected one batch item with as many values as its shape has elements, got shape {:?} with {} values",
                self.name,
                self.shape,
                self.data.len()
            ),
        )
    }
}

/// Returns the output for a decoder that reads one output. Checks that the output is complete and contains one batch item.
fn one<'a>(outputs: &[Output<'a>]) -> Result<Output<'a>> {
    let output = *outputs.first().ok_or_else(no_output)?;
    output.check()?;
    Ok(output)
}

/// Like [`one`], but for the names and shapes of [`Decoder::check`].
fn one_port<'a>(outputs: &[(&'a str, &'a [usize])]) -> Result<(&'a str, &'a [usize])> {
    outputs.first().copied().ok_or_else(no_output)
}

fn no_output() -> Error {
    Error::new(ErrorKind::Shape, "expected an output, got none")
}

/// A named shape: an argument of [`Decoder::check`], or an [`Output`].
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

/// Whether an extent is static and differs from `expected`.
fn differs(extent: usize, expected: usize) -> bool {
    extent != expected && extent != usize::MAX
}

/// Returns the index of the only port whose shape fits; `None` if no port or several ports fit.
fn only<P: Port>(ports: &[P], fits: impl Fn(&[usize]) -> bool) -> Option<usize> {
    let mut fitting = (0..ports.len()).filter(|&port_idx| fits(ports[port_idx].shape()));
    fitting.next().filter(|_| fitting.next().is_none())
}

/// Returns the index of the port that is named `role`, or else of the only port whose name contains `role`. Considers only ports
/// whose shape fits. `None` if there is no such port.
fn named<P: Port>(ports: &[P], role: &str, fits: impl Fn(&[usize]) -> bool) -> Option<usize> {
    let only_name = |is_it: &dyn Fn(&str) -> bool| {
        let mut fitting = (0..ports.len()).filter(|&port_idx| is_it(ports[port_idx].name()) && fits(ports[port_idx].shape()));
        fitting.next().filter(|_| fitting.next().is_none())
    };
    only_name(&|name| name == role).or_else(|| only_name(&|name| name.to_ascii_lowercase().contains(role)))
}

/// Returns the indexes of the outputs with boxes and with scores: the only outputs with these shapes, or else the outputs with these names.
/// The names decide if the shape of the scores is also a shape of boxes, such as that of the scores of four classes. `None` if there are no
/// such outputs.
fn boxes_and_scores<P: Port>(ports: &[P], is_boxes: impl Fn(&[usize]) -> bool, is_scores: impl Fn(&[usize]) -> bool) -> Option<[usize; 2]> {
    let by_shape = || Some([only(ports, &is_boxes)?, only(ports, |shape| is_scores(shape) && !is_boxes(shape))?]);
    let by_name = || Some([named(ports, "box", &is_boxes)?, named(ports, "score", &is_scores)?]);
    by_shape().or_else(by_name).filter(|[boxes, scores]| boxes != scores)
}

/// Converts a class index, which lists of boxes contain as a float; `None` if the value is not a valid index. Numbers of quantized models are
/// rounded.
fn class_of(value: f32) -> Option<u32> {
    (-0.05..65535.5).contains(&value).then_some(value.round() as u32)
}

/// Whether a number is a whole number. Numbers of quantized models are a little off.
fn is_whole(value: f32) -> bool {
    (value - value.round()).abs() <= 0.05
}

/// Creates the error for a model that lacks the outputs that a decoder expects.
fn unexpected<P: Port>(decoder: &str, expected: impl fmt::Display, ports: &[P]) -> Error {
    let list: Vec<String> = ports.iter().map(|port| format!("`{}` {}", port.name(), shape_text(port.shape()))).collect();
    let list = if list.is_empty() { "no output".to_owned() } else { list.join(", ") };
    Error::new(ErrorKind::Shape, format!("decoder `{decoder}`: expected {expected}, got {list}"))
}

/// Returns the index and the value of the best score. Of equal scores, returns the first. Ignores NaN. If all scores are NaN, the value
/// is negative infinity.
fn best_class(scores: &[f32]) -> (u32, f32) {
    let larger = |one: f32, other: f32| if other > one { other } else { one };
    // Compute the maximum of each of 16 lanes first, because the compiler vectorizes this loop.
    let (blocks, rest) = scores.as_chunks::<16>();
    let mut best = [f32::NEG_INFINITY; 16];
    for block in blocks {
        best.iter_mut().zip(block).for_each(|(best, &score)| *best = larger(*best, score));
    }
    let best = best.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger);
    let class_id = scores.iter().position(|&score| score == best).unwrap_or(0);
    (class_id as u32, best)
}

/// Formats a shape, with `?` for dynamic extents.
fn shape_text(shape: &[usize]) -> String {
    let extents: Vec<String> = shape.iter().map(|&extent| if extent == usize::MAX { "?".to_owned() } else { extent.to_string() }).collect();
    format!("[{}]", extents.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Outcome;

    /// Returns a built-in decoder with these keys.
    pub(super) fn decoder(name: &str, keys: &str) -> Box<dyn Decoder> {
        DecoderRegistry::built_in().make_from_text(name, keys).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Decodes the outputs of one image and returns the boxes.
    pub(super) fn boxes(decoder: &dyn Decoder, outputs: &[Output<'_>], input: Size) -> Vec<RawDetection> {
        let mut results = Results::default();
        decoder.decode(outputs, input, &mut results).unwrap();
        results.boxes
    }

    /// Decodes the values of one output and returns the attribute; `None` if the decoder reports none.
    pub(super) fn outcome_of(decoder: &dyn Decoder, data: &[f32]) -> Result<Option<Outcome>> {
        let mut results = Results::default();
        decoder.decode(&[Output { name: "color", shape: &[1, data.len(), 1, 1], data }], Size::default(), &mut results)?;
        assert!(results.boxes.is_empty() && results.attributes.len() <= 1);
        Ok(results.attributes.pop().map(|outcome_of| outcome_of.outcome))
    }

    #[test]
    fn default_thresholds_are_those_of_the_authors() {
        let thresholds = |name, keys| (decoder(name, keys).threshold(), decoder(name, keys).summary());
        assert_eq!(thresholds("ultraface", ""), (Some(0.7), "iou-threshold 0.3".to_owned()));
        assert_eq!(thresholds("yolox", "iou-threshold = 0.5"), (Some(0.3), "iou-threshold 0.5".to_owned()));
        assert_eq!(thresholds("yolov10", ""), (Some(0.25), String::new()));
    }

    #[test]
    fn best_class_is_the_first_of_equal_ones_and_not_nan() {
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
    fn class_thresholds_apply_before_max_boxes() {
        // The rows are decoded twice: once as a list of final boxes, and once as grid cells with NMS per class.
        let rows: Vec<[f32; 7]> = [(1, 0.9), (1, 0.8), (0, 0.7), (0, 0.4), (1, 0.5), (2, 0.6), (2, 0.2)]
            .iter()
            .zip(0..)
            .map(|(&(class, score), n)| [0.0, class as f32, score, 0.1 * n as f32, 0.0, 0.1 * n as f32 + 0.1, 0.1])
            .collect();
        let list = Output { name: "list", shape: &[1, 1, 7, 7], data: rows.as_flattened() };
        let mut cells = vec![0.0_f32; 42 * 8];
        for (row, cell) in rows.iter().zip(cells.chunks_exact_mut(8)) {
            // The boxes of the cells are side by side and do not overlap.
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
    fn incomplete_or_batched_outputs_are_errors() {
        for (shape, n_values) in [(&[2, 4, 6][..], 48), (&[1, 4, 6], 23), (&[], 1)] {
            let data = vec![0.0; n_values];
            let output = Output { name: "faces", shape, data: &data };
            let mut results = Results::default();
            let error = decoder("ultraface", "").decode(&[output], Size::new(8, 8), &mut results).unwrap_err();
            assert!(error.kind() == ErrorKind::Shape && error.to_string().contains("`faces`"), "{error}");
            assert!(results.boxes.is_empty());
        }
        // An output whose batch axis has the extent 0 is an error, even for a decoder that accepts outputs without a batch axis.
        let shapes: [[usize; 3]; 6] = [[1, 64, 1], [1, 16, 1], [1, 4, 1], [1, 64, 4], [1, 16, 4], [0, 4, 4]];
        let tensors = shapes.map(|shape| vec![0.9; shape.iter().product()]);
        let outputs: Vec<Output<'_>> = shapes.iter().zip(&tensors).map(|(shape, data)| Output { name: "faces", shape, data }).collect();
        let error = decoder("scrfd", "").decode(&outputs, Size::new(64, 32), &mut Results::default()).unwrap_err();
        assert!(error.to_string().contains("got shape [0, 4, 4]"), "{error}");
    }
}
