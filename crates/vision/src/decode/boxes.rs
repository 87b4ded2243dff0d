//! Box decoding: the common part of all detectors.
//!
//! A [`BoxScheme`] turns rows of outputs into candidates. This file validates, suppresses and counts the candidates. For any output values,
//! the resulting boxes are finite, touch the input, and have scores from 0 to 1. This module does not handle output layouts.

use std::fmt;

use serde::Deserialize;

use super::{Activation, Decoder, Output, Overlap, RawDetection, Results, ScoreRange, Section, activate};
use crate::frame::{Point, Rect, Size};
use crate::nms::{self, NmsMethod, NmsOptions};
use crate::tensor::{Error, ErrorKind, Result};

/// Options that select the boxes which a detector reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoxThresholds {
    /// Boxes with a score up to this value are dropped. Range: 0 to 1.
    pub score: f32,
    /// A box is suppressed if its intersection over union (IoU) with a better box exceeds this value. Range: 0 to 1.
    pub iou: f32,
    /// Maximum number of boxes.
    pub max_boxes: usize,
    /// Suppression method.
    pub method: NmsMethod,
    /// Whether boxes suppress each other across classes.
    pub class_agnostic: bool,
}

impl Default for BoxThresholds {
    fn default() -> Self {
        Self { score: 0.5, iou: 0.45, max_boxes: 300, method: NmsMethod::Hard, class_agnostic: false }
    }
}

/// Unit of the boxes in a model's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Coordinates {
    /// Pixels of the model's input.
    Pixels,
    /// Fractions of the input's width and height, 0..=1.
    Normalized,
}

/// Meaning of the four values of a box.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) enum BoxFormat {
    /// Left, top, right, bottom.
    #[default]
    Corners,
    /// Top, left, bottom, right.
    CornersYFirst,
    /// Center (x, y), width, height.
    Center,
    /// Left, top, width, height.
    CornerSize,
}

impl BoxFormat {
    pub(super) fn rect(self, [first, second, third, fourth]: [f32; 4]) -> Rect {
        match self {
            Self::Corners => Rect::from_corners(first, second, third, fourth),
            Self::CornersYFirst => Rect::from_corners(second, first, fourth, third),
            Self::Center => Rect::from_center(first, second, third, fourth),
            Self::CornerSize => Rect { x: first, y: second, width: third, height: fourth },
        }
    }
}

/// An output format of detectors with one box per row. [`BoxDecoder`] implements [`Decoder`] for it.
pub trait BoxScheme: fmt::Debug + Send + Sync {
    /// Checks the outputs like [`Decoder::check`].
    ///
    /// # Errors
    /// Returns the errors of [`Decoder::check`].
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32>;

    /// Appends the boxes whose score exceeds `score_min` to [`Results::boxes`], with their keypoints.
    ///
    /// If a row can have several classes, the scheme appends one box per class. Boxes may contain any values: boxes that are not finite or
    /// have no area are dropped later.
    ///
    /// # Errors
    /// Returns the errors of [`BoxScheme::check`].
    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()>;

    /// Whether candidates overlap, so that NMS is needed. False if the model includes NMS. Default: true.
    fn overlaps(&self) -> bool {
        true
    }

    /// Whether the candidates of these outputs overlap, for a scheme whose outputs determine it. Default: as [`BoxScheme::overlaps`], which
    /// determines the keys of the description.
    fn suppresses(&self, _outputs: &[Output<'_>]) -> bool {
        self.overlaps()
    }

    /// Whether several boxes of a class may nearly equal each other although nothing is suppressed, as for queries of transformers. Default:
    /// false.
    fn may_repeat(&self) -> bool {
        false
    }

    /// Whether rows without an object may have a negative size, because the model outputs sizes as they are. Default: false.
    fn has_free_sizes(&self) -> bool {
        false
    }

    /// Returns the class for "no object", like [`Decoder::background`].
    fn background(&self) -> Option<u32> {
        None
    }

    /// Whether [`BoxScheme::candidates`] appends every row of the outputs if `score_min` is negative infinity, as for grids and priors. The
    /// plausibility statistics (`survey`) then treat every row as a candidate. Default: as [`BoxScheme::overlaps`].
    fn appends_all_rows(&self) -> bool {
        self.overlaps()
    }

    /// Returns the unit of the boxes in the outputs, which [`BoxScheme::candidates`] converts to pixels. Default: `None`, for boxes that
    /// are computed from cells or priors and so have a fixed unit.
    fn coordinates(&self) -> Option<Coordinates> {
        None
    }

    /// Whether boxes are fractions of the input if no box is larger than a pixel and the description does not set the unit. Default: false.
    fn guesses_unit(&self) -> bool {
        false
    }

    /// Whether rows name their image, see [`Decoder::names_images`]. Default: false.
    fn names_images(&self, _n_columns: usize) -> bool {
        false
    }

    /// Returns the last activation of the model, which some exports lack; see [`BoxScheme::score_ranges`]. Default: `None`.
    fn missing_activation(&self) -> Option<Activation> {
        None
    }

    /// Returns the positions of the scores in the outputs, for exports that lack the last activation. Default: none.
    ///
    /// # Errors
    /// Returns the errors of [`BoxScheme::check`].
    fn score_ranges(&self, _outputs: &[(&str, &[usize])], _input: Size) -> Result<Vec<ScoreRange>> {
        Ok(Vec::new())
    }

    /// Returns the default thresholds, which are those of the models' authors.
    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds::default()
    }

    /// Returns the roles of outputs, like [`Decoder::roles`].
    fn roles(&self) -> &'static [&'static str] {
        &[]
    }

    /// The activation of scores if a description does not set one. Only for schemes with [`BoxScheme::missing_activation`]. Default: none.
    fn default_activation(&self) -> Activation {
        Activation::None
    }

    /// The overlap of the candidates in `results`, which replaces the IoU of their boxes in NMS. Default: `None`.
    ///
    /// # Errors
    /// Returns the errors of [`BoxScheme::check`].
    fn overlap(&self, _outputs: &[Output<'_>], _results: &Results) -> Result<Option<Overlap>> {
        Ok(None)
    }

    /// Adds attributes to the boxes that remain after NMS, such as masks. [`RawDetection::row`] identifies the row of a box. Default: none.
    ///
    /// # Errors
    /// Returns the errors of [`BoxScheme::check`].
    fn add_attributes(&self, _outputs: &[Output<'_>], _input: Size, _results: &mut Results) -> Result<()> {
        Ok(())
    }

    /// Whether outputs may lack the batch axis: `[n, columns]`. Default: false.
    fn takes_unbatched(&self) -> bool {
        false
    }

    /// Whether outputs may be maps without a batch axis: `[n, rows, columns]`. Default: false.
    fn takes_unbatched_maps(&self) -> bool {
        false
    }
}

/// Upper limit of `max-boxes`.
const MAX_BOXES: usize = 100_000;

/// Description keys of all box decoders.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
struct BoxKeys {
    /// Minimum score, 0 to 1.
    threshold: Option<f32>,
    /// Maximum number of boxes; the best are kept.
    max_boxes: Option<usize>,
}

/// Description keys of decoders with NMS.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
struct OverlapKeys {
    /// A box is suppressed if its intersection over union with a better box exceeds this, 0 to 1.
    iou_threshold: Option<f32>,
    /// NMS method.
    nms: Option<Nms>,
    /// Sigma of `nms = "gaussian"`; larger values suppress less.
    nms_sigma: Option<f32>,
    /// Whether boxes suppress each other across classes.
    class_agnostic: Option<bool>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum Nms {
    Hard,
    Linear,
    Gaussian,
    Weighted,
}

/// Description key of decoders with a configurable box unit.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct UnitKeys {
    /// Unit of the boxes: pixels of the input, or fractions of its width and height.
    coordinates: Option<Coordinates>,
}

/// Description key of decoders whose exports may lack the last activation.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ActivationKeys {
    /// The activation that turns scores into probabilities.
    activation: Option<Activation>,
}

/// Decodes boxes of a [`BoxScheme`].
#[derive(Debug, Clone)]
pub struct BoxDecoder<S> {
    scheme: S,
    thresholds: BoxThresholds,
    /// Whether the description sets `max-boxes`.
    is_limited: bool,
    /// Thresholds by class index, which replace the common threshold.
    class_scores: Vec<f32>,
    /// Unit of the boxes from the description, which overrides the unit of the scheme.
    coordinates: Option<Coordinates>,
    /// Activation that is applied to scores before decoding.
    activation: Activation,
}

impl<S: BoxScheme> BoxDecoder<S> {
    /// Creates a decoder of this scheme with the keys of a section.
    ///
    /// # Errors
    /// Returns `Unsupported` if the value of a key is invalid.
    pub fn new(scheme: S, section: &mut Section<'_>) -> Result<Self> {
        let mut thresholds = scheme.default_thresholds();
        let BoxKeys { threshold, max_boxes } = section.keys()?;
        let score = section.threshold.or(threshold).unwrap_or_else(|| {
            section.assumed.push(format!("[output] `threshold` is not given: {}", thresholds.score));
            thresholds.score
        });
        thresholds.score = fraction("threshold", score)?;
        if let Some(max_boxes) = max_boxes {
            if !(1..=MAX_BOXES).contains(&max_boxes) {
                return Err(bad(format!("`max-boxes`: expected 1 to {MAX_BOXES}, got {max_boxes}")));
            }
            thresholds.max_boxes = max_boxes;
        }
        if scheme.overlaps() {
            let keys: OverlapKeys = section.keys()?;
            thresholds.iou = fraction("iou-threshold", section.iou_threshold.or(keys.iou_threshold).unwrap_or(thresholds.iou))?;
            thresholds.method = keys.method(thresholds.method)?;
            thresholds.class_agnostic = keys.class_agnostic.unwrap_or(thresholds.class_agnostic);
        }
        let UnitKeys { coordinates } = if scheme.coordinates().is_some() { section.keys()? } else { UnitKeys::default() };
        let ActivationKeys { activation } = if scheme.missing_activation().is_some() { section.keys()? } else { ActivationKeys::default() };
        let activation = activation.unwrap_or_else(|| scheme.default_activation());
        if activation == Activation::Bytes {
            return Err(bad("`activation`: expected none, sigmoid or softmax for a detector, got bytes".to_owned()));
        }
        Ok(Self { scheme, thresholds, is_limited: max_boxes.is_some(), class_scores: Vec::new(), coordinates, activation })
    }

    /// Creates a decoder with [`BoxDecoder::new`], as the boxed trait object that the registry stores.
    pub(super) fn boxed(scheme: S, section: &mut Section<'_>) -> Result<Box<dyn Decoder>>
    where
        S: 'static,
    {
        Ok(Box::new(Self::new(scheme, section)?))
    }

    /// Checks that outputs are complete. Returns the positions of the scores if an activation is configured, otherwise an empty
    /// list.
    fn score_ranges(&self, outputs: &[Output<'_>], input: Size) -> Result<Vec<ScoreRange>> {
        let check = if self.scheme.takes_unbatched() { Output::check_table } else { Output::check };
        let is_map = |output: &Output<'_>| self.scheme.takes_unbatched_maps() && output.shape.len() == 3 && output.is_complete();
        outputs.iter().try_for_each(|output| if is_map(output) { Ok(()) } else { check(output) })?;
        if self.activation == Activation::None {
            return Ok(Vec::new());
        }
        let ports: Vec<(&str, &[usize])> = outputs.iter().map(|output| (output.name, output.shape)).collect();
        self.scheme.score_ranges(&ports, input)
    }

    /// Appends the boxes with a score above `score_min`, in input pixels.
    fn find_candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        self.scheme.candidates(outputs, input, score_min, results)?;
        let (width, height) = (input.width as f32, input.height as f32);
        let guessed = || (self.scheme.guesses_unit() && are_fractions(&results.boxes, input)).then_some(Coordinates::Normalized);
        let (x_scale, y_scale) = match (self.scheme.coordinates(), self.coordinates.or_else(guessed)) {
            (Some(Coordinates::Pixels), Some(Coordinates::Normalized)) => (width, height),
            (Some(Coordinates::Normalized), Some(Coordinates::Pixels)) => (1.0 / width, 1.0 / height),
            _ => return Ok(()),
        };
        for Rect { x, y, width, height } in results.boxes.iter_mut().map(|found| &mut found.rect) {
            (*x, *width) = (*x * x_scale, *width * x_scale);
            (*y, *height) = (*y * y_scale, *height * y_scale);
        }
        Ok(())
    }

    /// Drops invalid boxes and boxes below class thresholds, then applies NMS.
    fn take_candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, overlap: Option<&Overlap>, results: &mut Results) {
        let BoxThresholds { score, iou, max_boxes, method, class_agnostic } = self.thresholds;
        let is_wanted = |found: &RawDetection| found.score > self.class_scores.get(found.class_id as usize).copied().unwrap_or(score);
        let mut boxes = std::mem::take(&mut results.boxes);
        // Invalid boxes are dropped before NMS and before boxes are counted, so that they displace no valid box.
        boxes.retain_mut(|found| {
            let is_good = is_wanted(found) && found.rect.is_proper() && touches(&found.rect, input);
            found.score = found.score.min(1.0);
            is_good
        });
        // One box more than allowed shows that boxes are dropped.
        let options = NmsOptions { method, iou, class_aware: !class_agnostic, max_boxes: max_boxes + 1, score_min };
        let n_kept = match (self.scheme.suppresses(outputs), overlap) {
            (false, _) => nms::take_best(&mut boxes, options.max_boxes),
            (true, _) if method == NmsMethod::Weighted => blend(&mut boxes, &options, results),
            (true, Some(overlap)) => nms::suppress_by(&mut boxes, &options, |one, other| overlap.of(one, other)),
            (true, None) => nms::suppress(&mut boxes, &options),
        };
        results.is_cut = n_kept > max_boxes && !self.is_limited;
        boxes.truncate(n_kept.min(max_boxes));
        if matches!(method, NmsMethod::Linear | NmsMethod::Gaussian { .. }) && !self.class_scores.is_empty() {
            // Soft-NMS has reduced scores, so compare them with the class thresholds again.
            boxes.retain(is_wanted);
        }
        results.boxes = boxes;
    }
}

/// Applies NMS as MediaPipe does: each remaining box is the mean of the boxes that it suppresses and of itself, weighted by their scores, and
/// its keypoints are the means of their keypoints. Returns the number of remaining boxes, which are first.
fn blend(boxes: &mut [RawDetection], options: &NmsOptions, results: &mut Results) -> usize {
    let mut means = Vec::new();
    let n_kept = nms::suppress_into_groups(boxes, options, |best, members| {
        let mut weight = 0.0;
        let (mut corners, mut points) = ([0.0; 4], vec![Point::default(); results.keypoints(best).len()]);
        for member in members {
            let Rect { x, y, .. } = member.rect;
            let of_member = [x, y, member.rect.x_max(), member.rect.y_max()];
            corners.iter_mut().zip(of_member).for_each(|(sum, value)| *sum += value * member.score);
            for (sum, point) in points.iter_mut().zip(results.keypoints(member)) {
                (sum.x, sum.y) = (sum.x + point.x * member.score, sum.y + point.y * member.score);
            }
            weight += member.score;
        }
        let [x_min, y_min, x_max, y_max] = corners.map(|sum| sum / weight);
        points.iter_mut().for_each(|point| *point = Point { x: point.x / weight, y: point.y / weight });
        means.push((Rect::from_corners(x_min, y_min, x_max, y_max), points));
    });
    for (found, (rect, points)) in boxes.iter_mut().zip(means) {
        found.rect = rect;
        results.replace_keypoints(found, &points);
    }
    n_kept
}

/// Boxes are finite, have an area and touch the input. Invalid boxes are dropped; scores above 1 are set to 1. Boxes are in the order of
/// [`nms::better_first`].
impl<S: BoxScheme> Decoder for BoxDecoder<S> {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        self.scheme.check(outputs, input)
    }

    fn names_images(&self, n_columns: usize) -> bool {
        self.scheme.names_images(n_columns)
    }

    fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        let (mut changed, places) = (Vec::new(), self.score_ranges(outputs, input)?);
        let outputs = activate::activated(outputs, &places, self.activation, &mut changed);
        let score_min = self.class_scores.iter().copied().fold(self.thresholds.score, f32::min);
        self.find_candidates(&outputs, input, score_min, results)?;
        results.sort_keypoints();
        if let Some(survey) = &mut results.survey {
            if survey.in_whole {
                let mut all = Results::default();
                self.find_candidates(&outputs, input, f32::NEG_INFINITY, &mut all)?;
                let (are_cells, has_free_sizes) = (self.scheme.appends_all_rows(), self.scheme.has_free_sizes());
                survey.add_rows(&all.boxes, &outputs, input, are_cells, has_free_sizes, score_min);
            }
            survey.add_candidates(&results.boxes, input);
        }
        let overlap = self.scheme.overlap(&outputs, results)?;
        self.take_candidates(&outputs, input, score_min, overlap.as_ref(), results);
        if let Some(survey) = &mut results.survey
            && !self.scheme.suppresses(&outputs)
            && !self.scheme.may_repeat()
        {
            survey.add_final(&results.boxes);
        }
        self.scheme.add_attributes(&outputs, input, results)
    }

    fn roles(&self) -> &'static [&'static str] {
        self.scheme.roles()
    }

    fn threshold(&self) -> Option<f32> {
        Some(self.thresholds.score)
    }

    fn set_class_thresholds(&mut self, thresholds: Vec<f32>) -> bool {
        self.class_scores = thresholds;
        true
    }

    fn summary(&self) -> String {
        if self.scheme.overlaps() { format!("iou-threshold {}", self.thresholds.iou) } else { String::new() }
    }

    fn coordinates(&self) -> Option<Coordinates> {
        self.scheme.coordinates()
    }

    fn is_class_agnostic(&self) -> bool {
        self.thresholds.class_agnostic
    }

    fn background(&self) -> Option<u32> {
        self.scheme.background()
    }

    fn missing_activation(&self) -> Option<Activation> {
        self.scheme.missing_activation()
    }
}

impl OverlapKeys {
    fn method(&self, default: NmsMethod) -> Result<NmsMethod> {
        match (self.nms, self.nms_sigma) {
            (Some(Nms::Gaussian), sigma) => {
                let sigma = sigma.unwrap_or(0.5);
                if !(sigma > 0.0 && sigma <= 1000.0) {
                    return Err(bad(format!("`nms-sigma`: expected a number larger than 0, up to 1000, got {sigma}")));
                }
                Ok(NmsMethod::Gaussian { sigma })
            }
            (_, Some(_)) => Err(bad("`nms-sigma` requires `nms = \"gaussian\"`".to_owned())),
            (Some(Nms::Linear), None) => Ok(NmsMethod::Linear),
            (Some(Nms::Hard), None) => Ok(NmsMethod::Hard),
            (Some(Nms::Weighted), None) => Ok(NmsMethod::Weighted),
            (None, None) => Ok(default),
        }
    }
}

/// Checks that a number in a description is from 0 to 1.
pub(super) fn fraction(key: &str, value: f32) -> Result<f32> {
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(bad(format!("`{key}`: expected 0 to 1, got {value}"))) }
}

/// Returns the error for an invalid value of a key.
pub(super) fn bad(message: String) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

/// Whether all boxes are about as small as a pixel, which boxes in pixels of an input of this size never are.
fn are_fractions(boxes: &[RawDetection], input: Size) -> bool {
    const MAX: f32 = 1.5;
    let is_fraction = |rect: &Rect| rect.x >= -MAX && rect.y >= -MAX && rect.x_max() <= MAX && rect.y_max() <= MAX;
    input.width.min(input.height) >= 16 && !boxes.is_empty() && boxes.iter().all(|found| is_fraction(&found.rect))
}

/// Whether a part of the box is inside the input.
fn touches(rect: &Rect, input: Size) -> bool {
    rect.x < input.width as f32 && rect.y < input.height as f32 && rect.x_max() > 0.0 && rect.y_max() > 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::tests::{boxes, decoder};

    /// With this size, the grids for strides 8, 16, 32 and 64 have 8x4, 4x2, 2x1 and 1x1 cells.
    const INPUT: Size = Size::new(64, 32);
    const ANY: usize = usize::MAX;

    type Ports<'a> = &'a [(&'a str, &'a [usize])];

    #[test]
    fn decoders_accept_their_models_outputs() {
        #[derive(Debug)]
        struct Case(&'static str, Ports<'static>, u32);
        let gfl: Ports =
            &[("a", &[1, 32, 3]), ("b", &[1, 8, 3]), ("c", &[1, 2, 3]), ("d", &[1, 32, 32]), ("e", &[1, 8, 32]), ("f", &[1, 2, 32])];
        let yunet: Ports = &[
            ("a", &[1, 32, 1]),
            ("b", &[1, 8, 1]),
            ("c", &[1, 2, 1]),
            ("d", &[1, 32, 1]),
            ("e", &[1, 8, 1]),
            ("f", &[1, 2, 1]),
            ("g", &[1, 32, 4]),
            ("h", &[1, 8, 4]),
            ("i", &[1, 2, 4]),
            ("j", &[1, 32, 10]),
            ("k", &[1, 8, 10]),
            ("l", &[1, 2, 10]),
        ];
        for case in [
            Case("yolov5", &[("y", &[1, 126, 85])], 80),
            Case("yolov5", &[("y", &[ANY, ANY, 6])], 1),
            Case("yolov5", &[("y", &[1, 126, ANY])], 0),
            Case("yolov8", &[("y", &[1, 84, 126])], 80),
            Case("yolov8", &[("y", &[ANY, 84, ANY])], 80),
            Case("yolov10", &[("y", &[1, 300, 6])], 0),
            Case("boxes-scores", &[("y", &[1, 9, 21]), ("x", &[1, 9, 4])], 21),
            Case("boxes-scores", &[("scores", &[1, 9, 4]), ("boxes", &[1, 9, 4])], 4),
            Case("tf-ssd", &[("boxes", &[1, 9, 4]), ("classes", &[1, 9]), ("scores", &[1, 9]), ("n", &[1])], 0),
            Case("tf-ssd", &[("PostProcess", &[1, 9, 4]), ("PostProcess:1", &[1, 9]), ("PostProcess:2", &[1, 9])], 0),
            Case(
                "tf-ssd",
                &[
                    ("StatefulPartitionedCall:1", &[1, 9]),
                    ("StatefulPartitionedCall:3", &[1, 9, 4]),
                    ("StatefulPartitionedCall:0", &[1]),
                    ("StatefulPartitionedCall:2", &[1, 9]),
                ],
                0,
            ),
            Case("multiclass-nms", &[("list", &[ANY, 6]), ("count", &[ANY])], 0),
            Case("multiclass-nms", &[("list", &[1, 300, 6])], 0),
            Case("fastestdet", &[("y", &[1, 85, 2, 4])], 80),
            Case("nanodet", gfl, 3),
            Case("nanodet", &[("y", &[1, 42, 35])], 3),
            Case("nanodet-plus", &[("y", &[1, 43, 112])], 80),
            Case("picodet", &[("y", &[ANY, ANY, ANY])], 0),
            Case("yunet", yunet, 1),
            Case("scrfd", &[("a", &[64, 1]), ("b", &[16, 1]), ("c", &[4, 1]), ("d", &[64, 4]), ("e", &[16, 4]), ("f", &[4, 4])], 1),
            Case("retinaface", &[("a", &[1, 84, 4]), ("b", &[1, 84, 2]), ("c", &[1, 84, 10])], 1),
            Case("retinaface", &[("a", &[1, 84, 4]), ("b", &[1, 84, 2])], 1),
            Case("centerface", &[("a", &[1, 1, 8, 16]), ("b", &[1, 2, 8, 16]), ("c", &[1, 2, 8, 16]), ("d", &[1, 10, 8, 16])], 1),
        ] {
            assert_eq!(decoder(case.0, "").check(case.1, INPUT), Ok(case.2), "{case:?}");
        }
    }

    #[test]
    fn other_outputs_are_errors_with_expected_and_actual_shapes() {
        #[derive(Debug)]
        struct Case(&'static str, Ports<'static>, [&'static str; 2]);
        for case in [
            Case("yolov5", &[("y", &[1, 42, 85])], ["use decoder `yolox`", "[1, 42, 85]"]),
            Case("yolov5", &[("y", &[1, 126, 5])], ["[1, N, 5 + classes]", "[1, 126, 5]"]),
            Case("yolov8", &[("y", &[1, 126, 84])], ["was transposed", "[1, 126, 84]"]),
            Case("yolov10", &[("y", &[1, 300, 7])], ["corners, score, class", "[1, 300, 7]"]),
            Case("boxes-scores", &[("x", &[1, 9, 4]), ("y", &[1, 9, 4])], ["tensors = { box", "`x` [1, 9, 4]"]),
            Case("boxes-scores", &[("x", &[1, 9, 4]), ("y", &[1, 8, 3])], ["[1, N, classes]", "`y` [1, 8, 3]"]),
            Case("tf-ssd", &[("a", &[1, 9, 4]), ("b", &[1, 9]), ("c", &[1, 9])], ["tensors = { class", "`c` [1, 9]"]),
            Case("nanodet", &[("y", &[1, 44, 35])], ["[1, N, classes + 32]", "[1, 44, 35]"]),
            Case("nanodet", &[("y", &[1, 42, 32])], ["[1, N, classes + 32]", "[1, 42, 32]"]),
            Case("yunet", &[("y", &[1, 42, 15])], ["[1, n, 10]", "64x32"]),
            Case("scrfd", &[("y", &[1, 84, 15])], ["two rows per cell", "64x32"]),
            Case("retinaface", &[("a", &[1, 42, 4]), ("b", &[1, 42, 2])], ["[1, 84, 4]", "[1, 42, 4]"]),
            Case("centerface", &[("a", &[1, 1, 8, 8])], ["[1, 1, 8, 16]", "[1, 1, 8, 8]"]),
            Case("final-boxes", &[("list", &[1, 300, 8])], ["one table", "[1, 300, 8]"]),
            Case("fastestdet", &[("y", &[1, 85, 3, 4])], ["[1, 5 + classes, h, w]", "[1, 85, 3, 4]"]),
            Case("ssd", &[], ["[1, 1, N, 7]", "no output"]),
        ] {
            let message = decoder(case.0, "").check(case.1, INPUT).unwrap_err().to_string();
            assert!(case.2.iter().all(|part| message.contains(part)) && message.contains(case.0), "{case:?}: {message}");
        }
    }

    /// Outputs of equal shape are identified by their names. If the names do not identify the outputs, the order of the outputs does.
    #[test]
    fn names_take_precedence_over_output_order() {
        let (score, keypoints) = ([0.9, 0.0, 0.0, 0.0], [0.0; 40]);
        let (sizes, offsets) = ([2_f32.ln(), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0; 8]);
        let found = |one: &str, other: &str| {
            let map = |name, shape, data| Output { name, shape, data };
            let outputs: [Output<'_>; 4] = [
                map("heatmap", &[1, 1, 2, 2], &score),
                map(one, &[1, 2, 2, 2], &offsets),
                map(other, &[1, 2, 2, 2], &sizes),
                map("points", &[1, 10, 2, 2], &keypoints),
            ];
            boxes(&*decoder("centerface", ""), &outputs, Size::new(8, 8))[0].rect
        };
        assert_eq!(found("offset", "scale"), Rect { x: 0.0, y: -2.0, width: 4.0, height: 8.0 });
        assert_eq!(found("538", "539").height, 4.0, "the first of the two outputs is used as the map of sizes");
    }

    #[test]
    fn soft_nms_lowers_scores_and_drops_low_ones() {
        let rows = [[0.0, 0.0, 8.0, 8.0, 0.9, 0.0], [0.0, 0.0, 8.0, 4.0, 0.8, 0.0], [32.0, 0.0, 40.0, 8.0, 0.7, 1.0]];
        // Rows of yolov5: center, size, objectness, two classes.
        let rows: Vec<f32> = rows
            .iter()
            .flat_map(|&[x, y, x_max, y_max, score, class]| {
                [(x + x_max) / 2.0, (y + y_max) / 2.0, x_max - x, y_max - y, score, 1.0 - class, class]
            })
            .collect();
        let output = Output { name: "y", shape: &[1, 3, 7], data: &rows };
        let scores = |method: &str, class_scores: &[f32]| {
            let mut decoder = decoder("yolov5", &format!("threshold = 0.3\nnms = {method}"));
            decoder.set_class_thresholds(class_scores.to_vec());
            boxes(&*decoder, &[output], INPUT).iter().map(|found| (found.row, found.score)).collect::<Vec<_>>()
        };
        assert_eq!(scores("\"hard\"", &[]), [(0, 0.9), (2, 0.7)]);
        assert_eq!(scores("\"linear\"", &[]), [(0, 0.9), (2, 0.7), (1, 0.4)]);
        assert_eq!(scores("\"linear\"", &[0.5]), [(0, 0.9), (2, 0.7)]);
        let gaussian = scores("\"gaussian\"\nnms-sigma = 0.5", &[]);
        assert!(gaussian.len() == 3 && (gaussian[2].1 - 0.8 * (-0.5_f32).exp()).abs() < 1e-6, "{gaussian:?}");
        assert_eq!(scores("\"gaussian\"\nnms-sigma = 0.1", &[]), [(0, 0.9), (2, 0.7)]);
    }
}
