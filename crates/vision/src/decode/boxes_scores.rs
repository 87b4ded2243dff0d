//! Decoded boxes and class scores in two outputs, before NMS: SSD, DAMO-YOLO, PP-YOLOE and similar detectors. For each prior (anchor box)
//! or cell, the outputs have corners and a score for each class. One row can result in boxes of several classes.

use serde::Deserialize;

use super::boxes::bad;
use super::maps::ClassesAxis;
use super::{Activation, BoxScheme, Coordinates, Output, Port, RawDetection, Results, ScoreRange, boxes_and_scores, differs, unexpected};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Outputs `[1, N, 4]` and `[1, N, classes]`, or `[1, classes, N]` with `classes-axis = "first"`.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) struct BoxesScores {
    /// Index of the background class.
    background: Option<u32>,
    /// Position of the class axis of the scores: last, `[1, N, classes]`, or first, `[1, classes, N]` (PP-YOLOE). Default: last.
    classes_axis: Option<ClassesAxis>,
}

impl BoxesScores {
    /// Axes of the scores: rows, and classes.
    fn axes(&self) -> [usize; 2] {
        if self.classes_axis == Some(ClassesAxis::First) { [2, 1] } else { [1, 2] }
    }

    /// Returns the indexes of the outputs with boxes and with scores. If both outputs have four columns, their names identify them.
    /// Outputs may have no rows, but must have classes.
    fn find<P: Port>(&self, outputs: &[P]) -> Result<[usize; 2]> {
        let [rows, classes] = self.axes();
        let is_scores = |shape: &[usize]| shape.len() == 3 && shape[classes] > 0;
        // The boxes of some ports of YOLOv4 have a further axis of extent 1.
        let is_boxes = |shape: &[usize]| matches!(shape, [_, _, columns] | [_, _, 1, columns] if !differs(*columns, 4));
        let fits = |&[boxes, scores]: &[usize; 2]| {
            let (n_boxes, n_scores) = (outputs[boxes].shape()[1], outputs[scores].shape()[rows]);
            n_boxes == n_scores || n_boxes == usize::MAX || n_scores == usize::MAX
        };
        let expected = match rows {
            1 => {
                "two outputs, [1, N, 4] and [1, N, classes], or `tensors = { box = ..., score = ... }`; for [1, classes, N] set `classes-axis = \"first\"`"
            }
            _ => "two outputs, [1, N, 4] and [1, classes, N], or `tensors = { box = ..., score = ... }`",
        };
        boxes_and_scores(outputs, is_boxes, is_scores).filter(fits).ok_or_else(|| unexpected("boxes-scores", expected, outputs))
    }
}

impl BoxScheme for BoxesScores {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let [_, scores] = self.find(outputs)?;
        let n_classes = outputs[scores].1[self.axes()[1]];
        match self.background {
            Some(background) if background as usize >= n_classes => {
                Err(bad(format!("`background`: expected a class from 0 to {}, got {background}", n_classes - 1)))
            }
            _ => Ok(if n_classes == usize::MAX { 0 } else { n_classes as u32 }),
        }
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let [corners, scores] = self.find(outputs)?.map(|output_idx| &outputs[output_idx]);
        let (width, height) = (input.width as f32, input.height as f32);
        let mut take = |row_idx: usize, class_id: u32, score: f32| {
            if score > score_min && Some(class_id) != self.background {
                let [x_min, y_min, x_max, y_max] = [0, 1, 2, 3].map(|column| corners.data[4 * row_idx + column]);
                let rect = Rect::from_corners(x_min * width, y_min * height, x_max * width, y_max * height);
                results.boxes.push(RawDetection { rect, score, class_id, row: row_idx as u32 });
            }
        };
        // With the class axis first, the last axis can be empty. There is no data then.
        let columns = scores.data.chunks_exact(scores.shape[2].max(1));
        match self.axes() {
            [1, 2] => {
                columns.enumerate().for_each(|(row_idx, row)| (0..).zip(row).for_each(|(class_id, score)| take(row_idx, class_id, *score)))
            }
            _ => (0..)
                .zip(columns)
                .for_each(|(class_id, scores)| (0..).zip(scores).for_each(|(row_idx, score)| take(row_idx, class_id, *score))),
        }
        Ok(())
    }

    fn background(&self) -> Option<u32> {
        self.background
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Softmax)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<Vec<ScoreRange>> {
        let [_, output_idx] = self.find(outputs)?;
        let [_, axis] = self.axes();
        Ok(vec![ScoreRange { output_idx, axis, begin: 0, end: outputs[output_idx].1[axis] }])
    }

    fn coordinates(&self) -> Option<Coordinates> {
        Some(Coordinates::Normalized)
    }

    fn roles(&self) -> &'static [&'static str] {
        &["box", "score"]
    }
}

#[cfg(test)]
mod tests {
    use crate::decode::tests::{boxes, decoder};
    use crate::decode::{Output, RawDetection};
    use crate::frame::{Rect, Size};

    const INPUT: Size = Size::new(64, 32);

    #[test]
    fn class_axis_may_be_the_first() {
        let corners = [1.0, 2.0, 11.0, 22.0, 20.0, 4.0, 40.0, 24.0, 0.0, 0.0, 8.0, 8.0];
        let corners = Output { name: "boxes", shape: &[1, 3, 4], data: &corners };
        // Two classes of three boxes each.
        let scores = Output { name: "scores", shape: &[1, 2, 3], data: &[0.9, 0.1, 0.2, 0.1, 0.8, 0.3] };
        let found = boxes(&*decoder("boxes-scores", "coordinates = \"pixels\"\nclasses-axis = \"first\""), &[scores, corners], INPUT);
        let expected = [(Rect::from_corners(1.0, 2.0, 11.0, 22.0), 0.9, 0, 0), (Rect::from_corners(20.0, 4.0, 40.0, 24.0), 0.8, 1, 1)];
        assert_eq!(found, expected.map(|(rect, score, class_id, row)| RawDetection { rect, score, class_id, row }));
        let check = |keys: &str| decoder("boxes-scores", keys).check(&[("boxes", &[1, 3, 4]), ("scores", &[1, 2, 3])], INPUT);
        assert_eq!(check("classes-axis = \"first\""), Ok(2));
        let message = check("").unwrap_err().to_string();
        assert!(message.contains("[1, N, classes]") && message.contains("`classes-axis = \"first\"`"), "{message}");
    }

    #[test]
    fn outputs_without_rows_give_no_boxes() {
        let corners = Output { name: "boxes", shape: &[1, 0, 4], data: &[] };
        for (keys, shape) in [("", [1, 0, 3]), ("classes-axis = \"first\"", [1, 3, 0]), ("", [1, 0, 4])] {
            let decoder = decoder("boxes-scores", keys);
            let scores = Output { name: "scores", shape: &shape, data: &[] };
            assert_eq!(boxes(&*decoder, &[scores, corners], INPUT), [], "{shape:?}");
        }
        for (keys, shape) in [("", [1, 8, 0]), ("classes-axis = \"first\"", [1, 0, 8])] {
            let checked = decoder("boxes-scores", keys).check(&[("boxes", &[1, 8, 4]), ("scores", &shape)], INPUT);
            assert!(checked.is_err(), "no classes: {shape:?}");
        }
    }
}
