//! Output tensors to what they mean: [`BoxDecoder`] gives boxes in input space, [`ClassDecoder`] a class or a number. One file
//! per scheme; this one picks it by name and finds the outputs it reads.
//!
//! Knows no requests and no frames beyond rectangles: the caller maps boxes with `frame_from_input`.
//!
//! To add a scheme: a file with `check` and `decode`, a variant here, its arm in each `match`, its name in
//! [`BoxDecoder::NAMES`].

mod classes;
mod expectation;
mod ssd;
mod ultraface;
mod yolox;

use std::fmt;

use super::nms::{self, NmsOptions};
use crate::frame::{Rect, Size};
use crate::tensor::{Error, ErrorKind, Result};

pub use classes::{Activation, top_k};

/// One output of a model for one row of the batch.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    /// The port's name, for messages.
    pub name: &'a str,
    /// The extent of each axis; the first one is 1.
    pub shape: &'a [usize],
    /// The values without gaps, last axis fastest.
    pub data: &'a [f32],
}

/// A box as a model gives it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RawDetection {
    /// Where, in input pixels; may reach outside.
    pub rect: Rect,
    /// The larger the better; 0..=1 with the models known.
    pub score: f32,
    /// Index of the class.
    pub class_id: u32,
}

/// Which boxes are reported.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoxThresholds {
    /// Boxes with a score larger than this.
    pub score: f32,
    /// Boxes whose intersection over union with a better one is at most this.
    pub iou: f32,
    /// At most so many.
    pub max_boxes: usize,
}

impl Default for BoxThresholds {
    fn default() -> Self {
        Self { score: 0.5, iou: 0.45, max_boxes: 300 }
    }
}

/// How the outputs of a detector become boxes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum BoxDecoder {
    /// Two scores and a box of corners in 0..=1 per prior, as one output `[1, N, 6]` (background, face, box) or two,
    /// `[1, N, 2]` and `[1, N, 4]` in any order.
    UltraFace,
    /// One output `[1, N, 5 + classes]` with offsets in the cells of grids of 8, 16 and 32 pixels.
    Yolox,
    /// One output `[1, 1, N, 7]`, a list of final boxes (the DetectionOutput operation of OpenVINO and Caffe).
    Ssd,
}

impl BoxDecoder {
    /// The names that [`BoxDecoder::from_name`] knows.
    pub const NAMES: [&'static str; 3] = ["ultraface", "yolox", "ssd"];

    /// The decoder of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "ultraface" => Some(Self::UltraFace),
            "yolox" => Some(Self::Yolox),
            "ssd" => Some(Self::Ssd),
            _ => None,
        }
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::UltraFace => "ultraface",
            Self::Yolox => "yolox",
            Self::Ssd => "ssd",
        }
    }

    /// The thresholds of the models' authors.
    pub fn default_thresholds(&self) -> BoxThresholds {
        match self {
            Self::UltraFace => BoxThresholds { score: 0.7, iou: 0.3, ..Default::default() },
            Self::Yolox => BoxThresholds { score: 0.3, iou: 0.45, ..Default::default() },
            Self::Ssd => BoxThresholds::default(),
        }
    }

    /// Whether a model with these outputs (names and shapes) and an input of this size is one that this decoder reads, and how
    /// many classes it tells apart: 0 if the shapes do not say.
    ///
    /// The first axis may have any extent. `usize::MAX` stands for an extent that is not known yet and fits everything.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if not; the message says what was expected and what came.
    pub fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        match self {
            Self::UltraFace => ultraface::find(outputs).map(|_| 1),
            Self::Yolox => yolox::check(outputs, input),
            Self::Ssd => ssd::find(outputs).map(|_| 0),
        }
    }

    /// Replaces `boxes` by those in the outputs, score descending, equal scores in the order of the outputs.
    ///
    /// Boxes whose numbers are not finite or whose extent is not positive are dropped. Allocates only to grow `boxes`.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] as [`BoxDecoder::check`], or if an output is not one row or has not as many values as its shape.
    pub fn decode(&self, outputs: &[Output<'_>], input: Size, thresholds: &BoxThresholds, boxes: &mut Vec<RawDetection>) -> Result<()> {
        self.decode_by_class(outputs, input, thresholds, &[], boxes)
    }

    /// As [`BoxDecoder::decode`], with a threshold of its own for each class: `class_scores` by class, in place of
    /// `thresholds.score`, which those beyond its end have.
    ///
    /// # Errors
    /// As [`BoxDecoder::decode`].
    pub fn decode_by_class(
        &self,
        outputs: &[Output<'_>],
        input: Size,
        thresholds: &BoxThresholds,
        class_scores: &[f32],
        boxes: &mut Vec<RawDetection>,
    ) -> Result<()> {
        boxes.clear();
        outputs.iter().try_for_each(Output::check)?;
        let score_min = class_scores.iter().copied().fold(thresholds.score, f32::min);
        let is_wanted = |found: &RawDetection| found.score > class_scores.get(found.class_id as usize).copied().unwrap_or(thresholds.score);
        match self {
            Self::UltraFace => ultraface::candidates(outputs, input, score_min, boxes)?,
            Self::Yolox => yolox::candidates(outputs, input, score_min, boxes)?,
            Self::Ssd => return ssd::decode(outputs, input, score_min, thresholds.max_boxes, is_wanted, boxes),
        }
        if !class_scores.is_empty() {
            // Before they suppress each other, and before they are counted.
            boxes.retain(is_wanted);
        }
        let options = NmsOptions { iou: thresholds.iou, class_aware: true, max_boxes: thresholds.max_boxes };
        let n_kept = nms::suppress(boxes, &options);
        boxes.truncate(n_kept);
        Ok(())
    }
}

/// How the output of a classifier becomes an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ClassDecoder {
    /// The best of several classes.
    Classes {
        /// What makes probabilities of the output.
        activation: Activation,
    },
    /// The mean of a number whose distribution the output is: `sum(p[i] * weights[i])`.
    Expectation {
        /// The number that each class stands for.
        weights: Vec<f32>,
    },
}

/// What a [`ClassDecoder`] found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ClassOutcome {
    /// A class, and its value after the activation.
    Label { class_id: u32, score: f32 },
    /// A number.
    Value(f32),
}

impl ClassDecoder {
    /// Whether an output of this name and shape is one that this decoder reads, and how many classes it has: 0 if the shape
    /// does not say. The first axis may have any extent, `usize::MAX` stands for one that is not known yet.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if not.
    pub fn check(&self, name: &str, shape: &[usize]) -> Result<u32> {
        match self {
            Self::Classes { .. } => classes::check(name, shape),
            Self::Expectation { weights } => expectation::check(name, shape, weights),
        }
    }

    /// The answer in an output of one row, `[1, classes]`, with any further axes of extent 1.
    ///
    /// Of equal classes the first one is best; values that are not numbers are passed over.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] as [`ClassDecoder::check`], or if the output is not one row or has not as many values as its
    /// shape; [`ErrorKind::Unsupported`] if its values give no finite answer.
    pub fn decode(&self, output: &Output<'_>) -> Result<ClassOutcome> {
        output.check()?;
        self.check(output.name, output.shape)?;
        match self {
            Self::Classes { activation } => classes::best(output, *activation),
            Self::Expectation { weights } => expectation::mean(output, weights),
        }
    }
}

impl Output<'_> {
    fn check(&self) -> Result<()> {
        let n_values = self.shape.iter().try_fold(1_usize, |product, &extent| product.checked_mul(extent));
        if self.shape.first() != Some(&1) || n_values != Some(self.data.len()) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "output `{}`: expected one row of a batch, as many values as the shape says, got shape {:?} with {} values",
                    self.name,
                    self.shape,
                    self.data.len()
                ),
            ));
        }
        Ok(())
    }
}

/// A name and a shape: what [`BoxDecoder::check`] gets, and what an [`Output`] has.
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

/// The error of a decoder that does not find its outputs.
fn unexpected<P: Port>(decoder: &BoxDecoder, expected: impl fmt::Display, ports: &[P]) -> Error {
    let list: Vec<String> = ports.iter().map(|port| format!("`{}` {}", port.name(), shape_text(port.shape()))).collect();
    let list = if list.is_empty() { "no output".to_owned() } else { list.join(", ") };
    Error::new(ErrorKind::Shape, format!("decoder `{}`: expected {expected}, got {list}", decoder.name()))
}

/// A shape for people, `?` where it is not known.
fn shape_text(shape: &[usize]) -> String {
    let extents: Vec<String> = shape.iter().map(|&extent| if extent == usize::MAX { "?".to_owned() } else { extent.to_string() }).collect();
    format!("[{}]", extents.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_decoder_has_a_name_that_leads_back_to_it() {
        for name in BoxDecoder::NAMES {
            assert_eq!(BoxDecoder::from_name(name).unwrap().name(), name);
        }
        assert_eq!(BoxDecoder::from_name("YOLOX"), None);
        assert_eq!(BoxDecoder::UltraFace.default_thresholds(), BoxThresholds { score: 0.7, iou: 0.3, max_boxes: 300 });
        assert_eq!(BoxDecoder::Yolox.default_thresholds(), BoxThresholds { score: 0.3, iou: 0.45, max_boxes: 300 });
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
        for (decoder, output) in [(BoxDecoder::Ssd, list), (BoxDecoder::Yolox, grid)] {
            let found = |class_scores: &[f32], max_boxes| {
                let (mut boxes, thresholds) = (Vec::new(), BoxThresholds { score: 0.5, max_boxes, ..BoxThresholds::default() });
                decoder.decode_by_class(&[output], Size::new(64, 32), &thresholds, class_scores, &mut boxes).unwrap();
                boxes.iter().map(|found| (found.class_id, found.score)).collect::<Vec<_>>()
            };
            assert_eq!(found(&[], 300), [(1, 0.9), (1, 0.8), (0, 0.7), (2, 0.6)], "{decoder:?}");
            assert_eq!(found(&[0.3, 0.85], 300), [(1, 0.9), (0, 0.7), (2, 0.6), (0, 0.4)], "{decoder:?}");
            assert_eq!(found(&[0.3, 0.95, 0.1], 3), [(0, 0.7), (2, 0.6), (0, 0.4)], "{decoder:?}");
        }
    }

    #[test]
    fn outputs_that_are_not_one_row_or_not_complete_are_refused() {
        for (shape, n_values) in [(&[2, 4, 6][..], 48), (&[1, 4, 6], 23), (&[], 1)] {
            let data = vec![0.0; n_values];
            let output = Output { name: "faces", shape, data: &data };
            let mut boxes = vec![RawDetection { rect: Rect::default(), score: 1.0, class_id: 0 }];
            let error = BoxDecoder::UltraFace.decode(&[output], Size::new(8, 8), &BoxThresholds::default(), &mut boxes).unwrap_err();
            assert!(error.kind() == ErrorKind::Shape && error.to_string().contains("`faces`"), "{error}");
            assert!(boxes.is_empty());
        }
    }
}
