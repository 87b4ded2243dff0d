//! Plausibility statistics: whether the first outputs of a model match its decoder.
//!
//! A model with a wrong description usually finds nothing and reports no error. The output values indicate the reason. Boxes smaller than a
//! pixel are fractions of the input. Corners in the wrong order are offsets from priors (anchor boxes). Scores outside 0 to 1 are logits
//! (scores before the activation). A survey counts such values over several frames. The caller compares the counts with the description
//! and suggests corrections.

use super::{Output, RawDetection, is_whole};
use crate::frame::{Rect, Size};

/// Tolerance of scores around 0..=1, for quantized models.
const SCORE_TOLERANCE: f32 = 0.02;
/// Boxes with coordinates up to this value are probably in fractions of the input, if the input has at least [`MIN_INPUT`] pixels per axis.
const MAX_PART: f32 = 4.0;
const MIN_INPUT: u32 = 16;
/// A box larger than this multiple of the input is implausible.
const MAX_INPUTS: f32 = 4.0;
/// Statistics over all rows of a table need at least this number of rows.
const MIN_ROWS: usize = 20;
/// In a table of at least [`MANY_ROWS`] rows, it is implausible that more than this fraction of the rows is above the threshold.
const CROWDED: f32 = 0.5;
const MANY_ROWS: usize = 1000;

/// A contradiction between outputs and description.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Finding {
    /// Boxes or scores that are not finite.
    NotFinite,
    /// Scores outside 0 to 1. Contains the smallest and the largest score.
    Scores { min: f32, max: f32 },
    /// The description applies softmax to values that are already probabilities.
    SoftmaxTwice,
    /// Boxes smaller than a pixel, which are probably fractions of the input. Contains the largest coordinate.
    Parts { max: f32 },
    /// Corners in the wrong order, or negative sizes. Contains the number of such boxes, and of all boxes.
    Inverted { n: usize, of: usize },
    /// Boxes outside the input, or much larger than the input. Contains the largest coordinate.
    Beyond { max: f32 },
    /// More than half of all rows are above the threshold. Contains the number of these rows, and of all rows.
    Crowded { n: usize, of: usize },
    /// Class numbers that are not whole. Contains the number of such rows, and of all rows.
    Classes { n: usize, of: usize },
    /// Final boxes that nearly equal a better box of their class. Contains the number of such boxes, and of all boxes.
    Repeated { n: usize, of: usize },
}

/// Rows with a score above this fraction of the threshold are expected to have a positive size in all models.
const LIKELY: f32 = 0.1;
/// A list of final boxes is not suppressed if at least this number of boxes overlap a better box of their class by more than this IoU.
const MANY_REPEATED: usize = 8;
const REPEATED_IOU: f32 = 0.9;

/// Counts boxes with implausible coordinates.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    n_boxes: usize,
    n_not_finite: usize,
    n_parts: usize,
    n_inverted: usize,
    n_beyond: usize,
    /// The largest absolute coordinate.
    max: f32,
    /// The largest absolute coordinate of the boxes in `n_parts`.
    max_of_parts: f32,
}

impl Tally {
    fn add(&mut self, rect: Rect, input: Size) {
        let Rect { x, y, width, height } = rect;
        // Unused rows have no size. They say nothing about the unit.
        if width == 0.0 && height == 0.0 {
            return;
        }
        self.n_boxes += 1;
        let corners = [x, y, x + width, y + height];
        if corners.iter().any(|value| !value.is_finite()) {
            self.n_not_finite += 1;
            return;
        }
        let largest = corners.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        self.max = self.max.max(largest);
        let (input_width, input_height) = (input.width as f32, input.height as f32);
        let touches = x < input_width && y < input_height && x + width > 0.0 && y + height > 0.0;
        let is_large = width > MAX_INPUTS * input_width || height > MAX_INPUTS * input_height;
        if largest <= MAX_PART && input.width.min(input.height) >= MIN_INPUT && width < 1.5 && height < 1.5 {
            self.n_parts += 1;
            self.max_of_parts = self.max_of_parts.max(largest);
        }
        if width < 0.0 || height < 0.0 {
            self.n_inverted += 1;
        } else if !touches || is_large {
            self.n_beyond += 1;
        }
    }
}

/// The statistics of one decoder; see the module documentation.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Whether all rows of the next outputs are counted, not only boxes above the threshold. Counting all rows takes several times as long.
    pub in_whole: bool,
    /// Counts of the boxes above the threshold.
    candidates: Tally,
    /// Number of consecutive outputs whose values are already probabilities.
    n_distributions: u32,
    /// Number of class numbers in lists, and how many of them are not whole.
    n_classes: usize,
    n_fractional: usize,
    found: Option<Finding>,
}

impl Survey {
    /// For two classes, this number of consecutive outputs must have values that add up to 1 before they count as probabilities.
    /// For more classes, one output is sufficient.
    const N_DISTRIBUTIONS: u32 = 5;

    /// Adds the boxes of one frame with scores above the threshold.
    pub(super) fn add_candidates(&mut self, boxes: &[RawDetection], input: Size) {
        boxes.iter().for_each(|found| self.candidates.add(found.rect, input));
        let Tally { n_boxes, n_not_finite, n_parts, n_inverted, n_beyond, max, max_of_parts } = self.candidates;
        let is_mostly_inverted = n_boxes >= 8 && n_inverted * 4 >= n_boxes;
        let finding = if self.n_classes >= MIN_ROWS && self.n_fractional * 2 > self.n_classes {
            Some(Finding::Classes { n: self.n_fractional, of: self.n_classes })
        } else if n_boxes == 0 {
            None
        } else if n_not_finite == n_boxes {
            Some(Finding::NotFinite)
        } else if n_parts == n_boxes {
            Some(Finding::Parts { max: max_of_parts })
        } else if n_inverted == n_boxes || is_mostly_inverted {
            Some(Finding::Inverted { n: n_inverted, of: n_boxes })
        } else if n_not_finite + n_inverted + n_beyond == n_boxes {
            Some(Finding::Beyond { max })
        } else {
            None
        };
        self.found = self.found.or(finding);
    }

    /// Adds the class number of a row of a list.
    pub(super) fn add_class(&mut self, class: f32) {
        self.n_classes += 1;
        self.n_fractional += usize::from(!is_whole(class));
    }

    /// Adds the final boxes of one frame, best first, of a model that includes NMS.
    pub(super) fn add_final(&mut self, boxes: &[RawDetection]) {
        let is_repeated = |(idx, found): &(usize, &RawDetection)| {
            let mut better = boxes[..*idx].iter().filter(|better| better.class_id == found.class_id);
            better.any(|better| better.rect.iou(&found.rect) > REPEATED_IOU)
        };
        let n = boxes.iter().enumerate().filter(is_repeated).count();
        if n >= MANY_REPEATED {
            self.found = self.found.or(Some(Finding::Repeated { n, of: boxes.len() }));
        }
    }

    /// Adds all output rows of one frame. If `are_cells` is true, every row is a box, as in grids and priors. Otherwise, rows can be
    /// padding, as in lists of boxes. If `has_free_sizes` is true, rows without an object may have a negative size.
    pub(super) fn add_rows(
        &mut self,
        rows: &[RawDetection],
        outputs: &[Output<'_>],
        input: Size,
        are_cells: bool,
        has_free_sizes: bool,
        threshold: f32,
    ) {
        let mut tally = Tally::default();
        let least = if has_free_sizes { threshold * LIKELY } else { f32::NEG_INFINITY };
        let (mut min, mut max, mut n_above) = (0.0_f32, 0.0_f32, 0);
        for row in rows {
            let is_inverted = row.rect.width < 0.0 || row.rect.height < 0.0;
            if !is_inverted || row.score > least {
                tally.add(row.rect, input);
            }
            (min, max) = (min.min(row.score), max.max(row.score));
            n_above += usize::from(row.score > threshold);
        }
        let has_values = outputs.iter().any(|output| !output.data.is_empty());
        let is_all_broken = outputs
            .iter()
            .any(|output| !output.data.is_empty() && output.data.iter().filter(|v| !v.is_finite()).count() * 10 >= output.data.len());
        let finding = if is_all_broken || (are_cells && has_values && rows.is_empty()) || !(min.is_finite() && max.is_finite()) {
            Some(Finding::NotFinite)
        } else if max > 1.0 + SCORE_TOLERANCE || (are_cells && min < -SCORE_TOLERANCE) {
            Some(Finding::Scores { min, max })
        } else if !are_cells || tally.n_boxes < MIN_ROWS {
            None
        } else if tally.n_parts * 100 >= tally.n_boxes * 99 {
            Some(Finding::Parts { max: tally.max_of_parts })
        } else if tally.n_inverted * 20 >= tally.n_boxes {
            Some(Finding::Inverted { n: tally.n_inverted, of: tally.n_boxes })
        } else if tally.n_boxes >= MANY_ROWS && threshold > 0.01 && n_above as f32 > CROWDED * tally.n_boxes as f32 {
            Some(Finding::Crowded { n: n_above, of: tally.n_boxes })
        } else {
            None
        };
        self.found = self.found.or(finding);
    }

    /// Adds the values of one output.
    pub(super) fn add_values(&mut self, output: &Output<'_>, expected: Expected) {
        let data = output.data;
        let (min, max) = data.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), &value| (min.min(value), max.max(value)));
        let is_probability = min >= -SCORE_TOLERANCE && max <= 1.0 + SCORE_TOLERANCE;
        let finding = if data.iter().any(|value| !value.is_finite()) {
            Some(Finding::NotFinite)
        } else if expected == Expected::Probabilities && !is_probability {
            Some(Finding::Scores { min, max })
        } else if expected == Expected::Logits && data.len() >= 2 {
            let sum: f64 = data.iter().map(|&value| f64::from(value)).sum();
            let is_distribution = min >= 0.0 && max <= 1.0 && (sum - 1.0).abs() < 1e-4;
            self.n_distributions = if is_distribution { self.n_distributions + 1 } else { 0 };
            let n_wanted = if data.len() == 2 { Self::N_DISTRIBUTIONS } else { 1 };
            (self.n_distributions >= n_wanted).then_some(Finding::SoftmaxTwice)
        } else {
            None
        };
        self.found = self.found.or(finding);
    }

    /// Returns the contradiction; `None` if there is none, or not enough evidence for one.
    pub fn finding(&self) -> Option<Finding> {
        self.found
    }

    /// Returns the number of boxes above the threshold so far.
    pub fn n_candidates(&self) -> usize {
        self.candidates.n_boxes
    }
}

/// Kind of values that a decoder expects in an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// Finite numbers.
    Numbers,
    /// Probabilities.
    Probabilities,
    /// Values to which a softmax is applied.
    Logits,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::tests::{boxes, decoder};
    use crate::decode::{Decoder, Results};

    const INPUT: Size = Size::new(64, 32);

    fn surveyed(decoder: &dyn Decoder, outputs: &[Output<'_>]) -> Results {
        let mut results = Results::default();
        results.survey = Some(Survey { in_whole: true, ..Survey::default() });
        decoder.decode(outputs, INPUT, &mut results).unwrap();
        results
    }

    /// Returns the contradiction that a survey of these outputs reports.
    fn survey(name: &str, outputs: &[Output<'_>]) -> Option<Finding> {
        surveyed(&*decoder(name, "threshold = 0.5"), outputs).survey.unwrap().finding()
    }

    fn one<'a>(shape: &'a [usize], data: &'a [f32]) -> [Output<'a>; 1] {
        [Output { name: "y", shape, data }]
    }

    /// Returns 126 rows of YOLOv5 outputs with one class. One row is above the threshold.
    fn yolov5(place: [f32; 4], scale: f32) -> Vec<f32> {
        let mut rows = Vec::new();
        for row_idx in 0..126 {
            let (x, y) = ((row_idx % 8) as f32 * 8.0 + 4.0, (row_idx / 8 % 4) as f32 * 8.0 + 4.0);
            let place = if row_idx == 40 { place } else { [x * scale, y * scale, 12.0 * scale, 10.0 * scale] };
            rows.extend(place);
            rows.extend([if row_idx == 40 { 0.9 } else { 0.01 }, 0.95]);
        }
        rows
    }

    #[test]
    fn correctly_read_detector_is_plausible() {
        assert_eq!(survey("yolov5", &one(&[1, 126, 6], &yolov5([30.0, 16.0, 20.0, 10.0], 1.0))), None);
        // A list is padded with zeros and may be empty.
        assert_eq!(survey("yolov10", &one(&[1, 300, 6], &[0.0; 1800])), None);
        let mut list = [0.0; 1800];
        list[..6].copy_from_slice(&[3.0, 4.0, 20.0, 30.0, 0.9, 2.0]);
        assert_eq!(survey("yolov10", &one(&[1, 300, 6], &list)), None);
    }

    #[test]
    fn relative_boxes_are_detected_with_and_without_objects() {
        for place in [[0.5, 0.5, 0.3, 0.3], [0.1, 0.2, 0.01, 0.02]] {
            let rows = yolov5(place, 1.0 / 64.0);
            assert!(matches!(survey("yolov5", &one(&[1, 126, 6], &rows)), Some(Finding::Parts { .. })), "{place:?}");
            let rows: Vec<f32> = rows.chunks(6).flat_map(|row| [row[0], row[1], row[2], row[3], 0.0, 0.0]).collect();
            assert!(matches!(survey("yolov5", &one(&[1, 126, 6], &rows)), Some(Finding::Parts { .. })), "{place:?}, no object");
        }
        let mut list = [0.0; 1800];
        list[..6].copy_from_slice(&[0.1, 0.2, 0.5, 0.9, 0.9, 2.0]);
        assert!(matches!(survey("yolov10", &one(&[1, 300, 6], &list)), Some(Finding::Parts { .. })));
    }

    #[test]
    fn pixel_boxes_read_as_relative_are_outside_the_input() {
        let row = [0.0, 1.0, 0.9, 10.0, 5.0, 30.0, 20.0];
        assert_eq!(survey("ssd", &one(&[1, 1, 1, 7], &row)), Some(Finding::Beyond { max: 1920.0 }));
        let wide = [0.0, 1.0, 0.9, 0.0, 0.0, 30.0, 20.0];
        assert!(matches!(survey("ssd", &one(&[1, 1, 1, 7], &wide)), Some(Finding::Beyond { .. })));
    }

    #[test]
    fn configured_coordinates_are_used() {
        let rows = yolov5([0.5, 0.5, 0.25, 0.5], 1.0 / 64.0);
        let parts = decoder("yolov5", "threshold = 0.5\ncoordinates = \"normalized\"");
        let found = surveyed(&*parts, &one(&[1, 126, 6], &rows));
        assert_eq!((found.boxes.len(), found.boxes[0].rect), (1, Rect { x: 24.0, y: 8.0, width: 16.0, height: 16.0 }));
        assert_eq!(found.survey.unwrap().finding(), None);
        let row = [0.0, 1.0, 0.9, 10.0, 5.0, 30.0, 20.0];
        let pixels = decoder("ssd", "coordinates = \"pixels\"");
        assert_eq!(boxes(&*pixels, &one(&[1, 1, 1, 7], &row), INPUT)[0].rect, Rect { x: 10.0, y: 5.0, width: 20.0, height: 15.0 });
    }

    #[test]
    fn prior_offsets_are_not_valid_corners() {
        // Offsets are around zero. If they are read as corners, half of the corners are in the wrong order.
        let rows: Vec<f32> = (0..200)
            .flat_map(|n: u32| {
                let at = |k: u32| ((n * 37 + k * 101) % 41) as f32 / 10.0 - 2.0;
                [0.9, 0.1, at(1), at(2), at(3), at(4)]
            })
            .collect();
        assert!(matches!(survey("ultraface", &one(&[1, 200, 6], &rows)), Some(Finding::Inverted { .. })));
    }

    #[test]
    fn scores_that_are_not_probabilities_are_detected() {
        let mut rows = yolov5([30.0, 16.0, 20.0, 10.0], 1.0);
        rows.chunks_mut(6).for_each(|row| row[4] = -6.0);
        assert!(matches!(survey("yolov5", &one(&[1, 126, 6], &rows)), Some(Finding::Scores { .. })));
        rows.chunks_mut(6).for_each(|row| row[4] = 3.0);
        assert!(matches!(survey("yolov5", &one(&[1, 126, 6], &rows)), Some(Finding::Scores { max, .. }) if max > 2.0));
        rows.fill(f32::NAN);
        assert_eq!(survey("yolov5", &one(&[1, 126, 6], &rows)), Some(Finding::NotFinite));
        // In these rows, class and score are swapped.
        let list: Vec<f32> = [3.0, 4.0, 20.0, 30.0, 17.0, 0.9].repeat(3);
        assert!(matches!(survey("yolov10", &one(&[1, 3, 6], &list)), Some(Finding::Scores { .. })));
    }

    #[test]
    fn unused_rows_of_zeros_are_not_fractions() {
        let mut rows = vec![0.0; 6 * 126];
        rows[..6].copy_from_slice(&[30.0, 16.0, 20.0, 10.0, 0.9, 0.9]);
        assert_eq!(survey("yolov5", &one(&[1, 126, 6], &rows)), None);
        // The largest coordinate is that of the small boxes.
        let mut rows = yolov5([0.5, 0.5, 0.3, 0.3], 1.0 / 64.0);
        rows[0..4].copy_from_slice(&[30.0, 16.0, 20.0, 10.0]);
        assert!(matches!(survey("yolov5", &one(&[1, 126, 6], &rows)), Some(Finding::Parts { max }) if max < 1.5));
    }

    #[test]
    fn rows_without_objects_may_have_negative_sizes_in_some_models() {
        // 112 rows of MediaPipe's detectors. Their sizes are learned only for objects.
        let regressors = [1.0, 1.0, -9.0, 9.0].repeat(112);
        let found = |logit: f32| {
            let logits = [logit; 112];
            let boxes = Output { name: "regressors", shape: &[1, 112, 4], data: &regressors };
            survey("blazeface", &[boxes, Output { name: "classificators", shape: &[1, 112, 1], data: &logits }])
        };
        assert_eq!(found(-20.0), None);
        assert!(matches!(found(-2.0), Some(Finding::Inverted { .. })));
        let mut rows = yolov5([30.0, 16.0, 20.0, 10.0], 1.0);
        rows.chunks_mut(6).filter(|row| row[4] < 0.5).for_each(|row| row[2] = -row[2]);
        assert!(matches!(survey("yolov5", &one(&[1, 126, 6], &rows)), Some(Finding::Inverted { .. })));
    }

    #[test]
    fn class_numbers_of_a_list_are_whole() {
        // A row of a grid with one class: offsets, sizes, objectness, class score.
        let rows: Vec<f32> = (0..126).flat_map(|n| [0.1, 0.2 * n as f32, 1.2, 1.2, 0.001, 0.9]).collect();
        for name in ["yolov10", "multiclass-nms"] {
            let mut rows = rows.clone();
            if name == "multiclass-nms" {
                rows.chunks_mut(6).for_each(|row| row.rotate_right(1));
            }
            assert_eq!(survey(name, &one(&[1, 126, 6], &rows)), Some(Finding::Classes { n: 126, of: 126 }), "{name}");
        }
        // Numbers of a half-precision or quantized model.
        let rows: Vec<f32> = (0..126).flat_map(|n| [4.0, 2.0, 20.0, 30.0, 0.001, n as f32 * 1.0001]).collect();
        assert_eq!(survey("yolov10", &one(&[1, 126, 6], &rows)), None);
    }

    #[test]
    fn final_boxes_that_repeat_each_other_lack_suppression() {
        let list = |n: usize, step: f32| {
            let mut rows = vec![0.0; 6 * 300];
            rows.chunks_mut(6).take(n).enumerate().for_each(|(idx, row)| {
                row.copy_from_slice(&[1.0 + step * idx as f32, 2.0, 21.0 + step * idx as f32, 30.0, 0.9 - 0.01 * idx as f32, 1.0]);
            });
            survey("yolov10", &one(&[1, 300, 6], &rows))
        };
        assert_eq!(list(40, 0.02), Some(Finding::Repeated { n: 39, of: 40 }));
        assert_eq!(list(8, 0.02), None, "a few repeated boxes");
        assert_eq!(list(8, 5.0), None);
        // Queries of a transformer may repeat each other.
        let boxes = [0.5, 0.5, 0.25, 0.5].repeat(20);
        let scores = [9.0, -9.0].repeat(20);
        let outputs =
            [Output { name: "boxes", shape: &[1, 20, 4], data: &boxes }, Output { name: "logits", shape: &[1, 20, 2], data: &scores }];
        assert_eq!(survey("detr", &outputs), None);
    }

    #[test]
    fn classifier_outputs_match_their_activation() {
        let survey = |data: &[f32], expected, n: u32| {
            let mut survey = Survey::default();
            (0..n).for_each(|_| survey.add_values(&Output { name: "y", shape: &[1, data.len()], data }, expected));
            survey.finding()
        };
        assert_eq!(survey(&[0.2, 0.7, 0.1], Expected::Probabilities, 3), None);
        assert_eq!(survey(&[-2.0, 7.0, 0.1], Expected::Probabilities, 1), Some(Finding::Scores { min: -2.0, max: 7.0 }));
        assert_eq!(survey(&[0.2, f32::NAN], Expected::Numbers, 1), Some(Finding::NotFinite));
        assert_eq!(survey(&[-2.0, 7.0, 0.1], Expected::Logits, 9), None);
        assert_eq!(survey(&[0.2, 0.7, 0.1], Expected::Logits, 1), Some(Finding::SoftmaxTwice));
        assert_eq!(survey(&[0.25, 0.75], Expected::Logits, 4), None);
        assert_eq!(survey(&[0.25, 0.75], Expected::Logits, 5), Some(Finding::SoftmaxTwice));
    }
}
