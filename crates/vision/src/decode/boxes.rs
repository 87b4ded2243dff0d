//! The boxes of a detector: what every scheme of writing them has in common, and which there are.
//!
//! A scheme turns rows of outputs into candidates; here they are suppressed, counted and checked, so that whatever a model writes,
//! boxes have finite numbers, touch the input, and have scores from 0 to 1. Knows no layouts of outputs.

use std::fmt;
use std::sync::Arc;

use super::{
    Activation, BoxSurvey, Output, ScorePlace, activate, boxes_labels, boxes_scores, centerface, nanodet, retinaface, scrfd, ssd, tf_ssd,
    ultraface, yolov5, yolov8, yolov10, yolox, yunet,
};
use crate::frame::{Point, Rect, Size};
use crate::nms::{self, NmsMethod, NmsOptions};
use crate::tensor::Result;

/// A box as a model gives it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RawDetection {
    /// Where, in input pixels; may reach outside.
    pub rect: Rect,
    /// The larger the better; 0..=1.
    pub score: f32,
    /// Index of the class.
    pub class_id: u32,
    /// The row of the outputs (anchor, cell, entry of a list) that it comes from: of equal scores the first is better, and
    /// [`BoxDecoder::keypoints`] finds the rest of the row again.
    pub row: u32,
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
    /// What becomes of those that overlap more.
    pub method: NmsMethod,
    /// Whether boxes suppress each other whatever their classes.
    pub class_agnostic: bool,
}

impl Default for BoxThresholds {
    fn default() -> Self {
        Self { score: 0.5, iou: 0.45, max_boxes: 300, method: NmsMethod::Hard, class_agnostic: false }
    }
}

/// In which unit a model writes boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coordinates {
    /// Pixels of the model's input.
    Pixels,
    /// Parts of the width and height of the model's input, 0..=1.
    Normalized,
}

/// What a description may say of a scheme beside its name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BoxOptions {
    /// The class that stands for nothing; `boxes-scores` alone has one.
    pub background: Option<u32>,
}

/// A way in which detectors write boxes into their outputs.
///
/// Those that are built in implement it, and an application can add its own: `stages::register_box_scheme`.
pub trait BoxScheme: fmt::Debug + Send + Sync {
    /// Whether a model with these outputs (names and shapes) and an input of this size is one that this scheme reads, and how many
    /// classes it tells apart: 0 if the shapes do not say.
    ///
    /// The first axis may have any extent. `usize::MAX` stands for an extent that is not known yet and fits everything.
    ///
    /// # Errors
    /// `Shape` if not; the message says what was expected and what came.
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32>;

    /// Appends a box for each row, and for each of its classes if it can have several, whose score is larger than `score_min`.
    /// Boxes may have any numbers: those that are not finite and those without an extent are dropped later.
    ///
    /// # Errors
    /// As [`BoxScheme::check`].
    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, boxes: &mut Vec<RawDetection>) -> Result<()>;

    /// Appends the keypoints of a box that [`BoxScheme::candidates`] gave for these outputs, in input pixels. Default: it has none.
    ///
    /// # Errors
    /// As [`BoxScheme::check`].
    fn keypoints(&self, _outputs: &[Output<'_>], _input: Size, _found: &RawDetection, _points: &mut Vec<Point>) -> Result<()> {
        Ok(())
    }

    /// Whether candidates overlap and suppress each other; else the model has seen to that. Default: they do.
    fn overlaps(&self) -> bool {
        true
    }

    /// The unit of the boxes in the outputs, of which [`BoxScheme::candidates`] makes pixels. Default, `None`: they are computed from cells
    /// or priors, so that there is no other.
    fn coordinates(&self) -> Option<Coordinates> {
        None
    }

    /// Where the scores are in these outputs, for exports that leave the last activation out. Default: nowhere, and no activation can be said.
    ///
    /// # Errors
    /// As [`BoxScheme::check`].
    fn score_places(&self, _outputs: &[(&str, &[usize])], _input: Size) -> Result<Vec<ScorePlace>> {
        Ok(Vec::new())
    }

    /// The thresholds of the models' authors.
    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds::default()
    }

    /// What outputs are called that shapes do not tell apart: a description names them by these (`tensors`), and they are found by
    /// names that have these words in them. Default: none.
    fn roles(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether outputs are tables that may lack the axis of the batch, `[n, columns]`, as those of models that take one picture may.
    /// Default: no.
    fn takes_unbatched(&self) -> bool {
        false
    }
}

type Make = fn(&BoxOptions) -> Arc<dyn BoxScheme>;

/// The schemes that are built in, in the order in which messages name them.
const BUILT_IN: [(&str, Make); 16] = [
    ("yolov5", |_| Arc::new(yolov5::YoloV5)),
    ("yolov8", |_| Arc::new(yolov8::YoloV8)),
    ("yolov10", |_| Arc::new(yolov10::YoloV10)),
    ("yolox", |_| Arc::new(yolox::Yolox)),
    ("ssd", |_| Arc::new(ssd::Ssd)),
    ("boxes-labels", |_| Arc::new(boxes_labels::BoxesLabels)),
    ("boxes-scores", |options| Arc::new(boxes_scores::BoxesScores { background: options.background })),
    ("tf-ssd", |_| Arc::new(tf_ssd::TfSsd)),
    ("nanodet", |_| Arc::new(nanodet::NANODET)),
    ("nanodet-plus", |_| Arc::new(nanodet::NANODET_PLUS)),
    ("picodet", |_| Arc::new(nanodet::PICODET)),
    ("ultraface", |_| Arc::new(ultraface::UltraFace)),
    ("yunet", |_| Arc::new(yunet::YuNet)),
    ("scrfd", |_| Arc::new(scrfd::Scrfd)),
    ("retinaface", |_| Arc::new(retinaface::RetinaFace)),
    ("centerface", |_| Arc::new(centerface::CenterFace)),
];

/// How the outputs of a detector become boxes.
#[derive(Debug, Clone)]
pub struct BoxDecoder {
    name: Arc<str>,
    scheme: Arc<dyn BoxScheme>,
    /// Instead of the scheme's.
    coordinates: Option<Coordinates>,
    /// Applied to scores first.
    activation: Activation,
}

impl BoxDecoder {
    /// The names that [`BoxDecoder::from_name`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// The built-in decoder of this name.
    pub fn from_name(name: &str, options: &BoxOptions) -> Option<Self> {
        let (name, make) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        Some(Self::new(name, make(options)))
    }

    /// A decoder of this name that reads outputs in this way.
    pub fn new(name: &str, scheme: Arc<dyn BoxScheme>) -> Self {
        Self { name: name.into(), scheme, coordinates: None, activation: Activation::None }
    }

    /// The same for models that write boxes in this unit. No effect on a scheme that has no unit.
    #[must_use]
    pub fn with_coordinates(self, coordinates: Coordinates) -> Self {
        Self { coordinates: Some(coordinates), ..self }
    }

    /// The same for exports that leave out what makes probabilities of scores: the sigmoid, or the softmax over the scores of a box.
    #[must_use]
    pub fn with_activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Whether an activation can be said for a model with these outputs, see [`BoxScheme::score_places`].
    pub fn takes_activation(&self, outputs: &[(&str, &[usize])], input: Size) -> bool {
        self.scheme.score_places(outputs, input).is_ok_and(|places| !places.is_empty())
    }

    /// What is applied to scores.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// The unit in which models of this scheme write boxes, unless [`BoxDecoder::with_coordinates`] says otherwise; `None`: there is none to
    /// choose.
    pub fn default_coordinates(&self) -> Option<Coordinates> {
        self.scheme.coordinates()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The thresholds of the models' authors.
    pub fn default_thresholds(&self) -> BoxThresholds {
        self.scheme.default_thresholds()
    }

    /// Whether its boxes suppress each other; else the model has seen to that, and the thresholds of overlap say nothing.
    pub fn suppresses(&self) -> bool {
        self.scheme.overlaps()
    }

    /// What outputs are called that shapes do not tell apart, see [`BoxScheme::roles`].
    pub fn roles(&self) -> &'static [&'static str] {
        self.scheme.roles()
    }

    /// Whether a model with these outputs and an input of this size is one that this decoder reads, see [`BoxScheme::check`].
    ///
    /// # Errors
    /// `Shape` if not; the message says what was expected and what came.
    pub fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        self.scheme.check(outputs, input)
    }

    /// Replaces `boxes` by those in the outputs, in the order of [`nms::better_first`].
    ///
    /// Every box has finite numbers and a positive extent and touches the input; every score is at most 1. Others are dropped,
    /// and larger scores taken for 1. Allocates only to grow `boxes`.
    ///
    /// # Errors
    /// `Shape` as [`BoxDecoder::check`], or if an output is not one row or has not as many values as its shape.
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
        let (mut changed, places) = (Vec::new(), self.score_places(outputs, input)?);
        let outputs = activate::activated(outputs, &places, self.activation, &mut changed);
        let score_min = self.find_candidates(&outputs, input, thresholds, class_scores, boxes)?;
        self.take_candidates(input, thresholds, class_scores, score_min, boxes);
        Ok(())
    }

    /// As [`BoxDecoder::decode_by_class`], and adds what the outputs look like to a survey: the boxes above the threshold, and with
    /// `all_rows` every row of the outputs, which takes several times as long.
    ///
    /// # Errors
    /// As [`BoxDecoder::decode`].
    #[allow(clippy::too_many_arguments)]
    pub fn decode_surveyed(
        &self,
        outputs: &[Output<'_>],
        input: Size,
        thresholds: &BoxThresholds,
        class_scores: &[f32],
        boxes: &mut Vec<RawDetection>,
        survey: &mut BoxSurvey,
        all_rows: bool,
    ) -> Result<()> {
        boxes.clear();
        let (mut changed, places) = (Vec::new(), self.score_places(outputs, input)?);
        let outputs = activate::activated(outputs, &places, self.activation, &mut changed);
        let score_min = self.find_candidates(&outputs, input, thresholds, class_scores, boxes)?;
        if all_rows {
            let mut rows = Vec::new();
            self.scheme.candidates(&outputs, input, f32::NEG_INFINITY, &mut rows)?;
            self.to_pixels(&mut rows, input);
            survey.add_rows(&rows, &outputs, input, self.scheme.overlaps(), score_min);
        }
        survey.add_candidates(boxes, input);
        self.take_candidates(input, thresholds, class_scores, score_min, boxes);
        Ok(())
    }

    /// Replaces `boxes` by all above the lowest threshold, in pixels, and returns that threshold.
    fn find_candidates(
        &self,
        outputs: &[Output<'_>],
        input: Size,
        thresholds: &BoxThresholds,
        class_scores: &[f32],
        boxes: &mut Vec<RawDetection>,
    ) -> Result<f32> {
        let score_min = class_scores.iter().copied().fold(thresholds.score, f32::min);
        self.scheme.candidates(outputs, input, score_min, boxes)?;
        self.to_pixels(boxes, input);
        Ok(score_min)
    }

    /// Checks that outputs are complete, and tells where their scores are if an activation is to be applied.
    fn score_places(&self, outputs: &[Output<'_>], input: Size) -> Result<Vec<ScorePlace>> {
        let check = if self.scheme.takes_unbatched() { Output::check_table } else { Output::check };
        outputs.iter().try_for_each(check)?;
        if self.activation == Activation::None {
            return Ok(Vec::new());
        }
        let ports: Vec<(&str, &[usize])> = outputs.iter().map(|output| (output.name, output.shape)).collect();
        self.scheme.score_places(&ports, input)
    }

    /// Brings boxes to pixels that the scheme has taken for another unit.
    fn to_pixels(&self, boxes: &mut [RawDetection], input: Size) {
        let (width, height) = (input.width as f32, input.height as f32);
        let (x_scale, y_scale) = match (self.scheme.coordinates(), self.coordinates) {
            (Some(Coordinates::Pixels), Some(Coordinates::Normalized)) => (width, height),
            (Some(Coordinates::Normalized), Some(Coordinates::Pixels)) => (1.0 / width, 1.0 / height),
            _ => return,
        };
        for Rect { x, y, width, height } in boxes.iter_mut().map(|found| &mut found.rect) {
            (*x, *width) = (*x * x_scale, *width * x_scale);
            (*y, *height) = (*y * y_scale, *height * y_scale);
        }
    }

    /// Drops what is no box or not wanted, and suppresses what overlaps.
    fn take_candidates(
        &self,
        input: Size,
        thresholds: &BoxThresholds,
        class_scores: &[f32],
        score_min: f32,
        boxes: &mut Vec<RawDetection>,
    ) {
        let is_wanted = |found: &RawDetection| found.score > class_scores.get(found.class_id as usize).copied().unwrap_or(thresholds.score);
        // Before they suppress each other, and before they are counted.
        boxes.retain_mut(|found| {
            let is_good = is_wanted(found) && found.rect.is_proper() && touches(&found.rect, input);
            found.score = found.score.min(1.0);
            is_good
        });
        let n_kept = if self.scheme.overlaps() {
            let BoxThresholds { iou, max_boxes, method, class_agnostic, .. } = *thresholds;
            nms::suppress(boxes, &NmsOptions { method, iou, class_aware: !class_agnostic, max_boxes, score_min })
        } else {
            nms::take_best(boxes, thresholds.max_boxes)
        };
        boxes.truncate(n_kept);
        if thresholds.method != NmsMethod::Hard && !class_scores.is_empty() {
            // Their scores have changed.
            boxes.retain(is_wanted);
        }
    }

    /// Appends the keypoints of a box that [`BoxDecoder::decode`] gave for these outputs, in input pixels, those that the model has
    /// in its order: of a face the eyes, the nose, the corners of the mouth. They may lie outside the input. If one is not finite
    /// there are none.
    ///
    /// # Errors
    /// As [`BoxDecoder::decode`].
    pub fn keypoints(&self, outputs: &[Output<'_>], input: Size, found: &RawDetection, points: &mut Vec<Point>) -> Result<()> {
        let begin = points.len();
        self.scheme.keypoints(outputs, input, found, points)?;
        if !points[begin..].iter().all(|point| point.x.is_finite() && point.y.is_finite()) {
            points.truncate(begin);
        }
        Ok(())
    }
}

/// Whether any of it lies in the input.
fn touches(rect: &Rect, input: Size) -> bool {
    rect.x < input.width as f32 && rect.y < input.height as f32 && rect.x_max() > 0.0 && rect.y_max() > 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::tests::decoder;

    /// 8 x 4, 4 x 2, 2 x 1 and 1 x 1 cells of strides 8, 16, 32 and 64.
    const INPUT: Size = Size::new(64, 32);
    const ANY: usize = usize::MAX;

    type Ports<'a> = &'a [(&'a str, &'a [usize])];

    #[test]
    fn models_of_each_decoder_are_known_by_their_outputs() {
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
            assert_eq!(decoder(case.0).check(case.1, INPUT), Ok(case.2), "{case:?}");
        }
    }

    #[test]
    fn other_outputs_are_refused_with_both_sides() {
        #[derive(Debug)]
        struct Case(&'static str, Ports<'static>, [&'static str; 2]);
        for case in [
            Case("yolov5", &[("y", &[1, 42, 85])], ["one per cell is `yolox`", "[1, 42, 85]"]),
            Case("yolov5", &[("y", &[1, 126, 5])], ["[1, N, 5 + classes]", "[1, 126, 5]"]),
            Case("yolov8", &[("y", &[1, 126, 84])], ["a transposed one", "[1, 126, 84]"]),
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
            Case("ssd", &[], ["[1, 1, N, 7]", "no output"]),
        ] {
            let message = decoder(case.0).check(case.1, INPUT).unwrap_err().to_string();
            assert!(case.2.iter().all(|part| message.contains(part)) && message.contains(case.0), "{case:?}: {message}");
        }
    }

    /// Where two maps have the same shape, the order of the outputs tells them apart, unless their names do.
    #[test]
    fn names_go_before_the_order_of_outputs() {
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
            let mut boxes = Vec::new();
            decoder("centerface").decode(&outputs, Size::new(8, 8), &BoxThresholds::default(), &mut boxes).unwrap();
            boxes[0].rect
        };
        assert_eq!(found("offset", "scale"), Rect { x: 0.0, y: -2.0, width: 4.0, height: 8.0 });
        assert_eq!(found("538", "539").height, 4.0, "the first is taken for sizes");
    }

    #[test]
    fn soft_suppression_lowers_scores_and_drops_what_falls_below_the_threshold() {
        let rows = [[0.0, 0.0, 8.0, 8.0, 0.9, 0.0], [0.0, 0.0, 8.0, 4.0, 0.8, 0.0], [32.0, 0.0, 40.0, 8.0, 0.7, 1.0]];
        // As yolov5 has them: center, size, objectness, two classes.
        let rows: Vec<f32> = rows
            .iter()
            .flat_map(|&[x, y, x_max, y_max, score, class]| {
                [(x + x_max) / 2.0, (y + y_max) / 2.0, x_max - x, y_max - y, score, 1.0 - class, class]
            })
            .collect();
        let output = Output { name: "y", shape: &[1, 3, 7], data: &rows };
        let scores = |method, class_scores: &[f32]| {
            let (mut boxes, thresholds) = (Vec::new(), BoxThresholds { score: 0.3, method, ..BoxThresholds::default() });
            decoder("yolov5").decode_by_class(&[output], INPUT, &thresholds, class_scores, &mut boxes).unwrap();
            boxes.iter().map(|found| (found.row, found.score)).collect::<Vec<_>>()
        };
        assert_eq!(scores(NmsMethod::Hard, &[]), [(0, 0.9), (2, 0.7)]);
        assert_eq!(scores(NmsMethod::Linear, &[]), [(0, 0.9), (2, 0.7), (1, 0.4)]);
        assert_eq!(scores(NmsMethod::Linear, &[0.5]), [(0, 0.9), (2, 0.7)]);
        let gaussian = scores(NmsMethod::Gaussian { sigma: 0.5 }, &[]);
        assert!(gaussian.len() == 3 && (gaussian[2].1 - 0.8 * (-0.5_f32).exp()).abs() < 1e-6, "{gaussian:?}");
        assert_eq!(scores(NmsMethod::Gaussian { sigma: 0.1 }, &[]), [(0, 0.9), (2, 0.7)]);
    }
}
