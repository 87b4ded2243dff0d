//! SSD detectors without NMS. For each prior the outputs have decoded corners in 0..=1, and a score for each class. One prior can result in
//! boxes of several classes.

use serde::Deserialize;

use super::boxes::bad;
use super::{Activation, BoxScheme, Coordinates, Output, Port, RawDetection, Results, ScoreRange, differs, named, only, unexpected};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Outputs `[1, N, 4]` and `[1, N, classes]`.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) struct BoxesScores {
    /// Index of the background class.
    background: Option<u32>,
}

impl BoxScheme for BoxesScores {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let (_, scores) = find(outputs)?;
        let n_classes = outputs[scores].1[2];
        match self.background {
            Some(background) if background as usize >= n_classes => {
                Err(bad(format!("`background`: expected a class from 0 to {}, got {background}", n_classes - 1)))
            }
            _ => Ok(if n_classes == usize::MAX { 0 } else { n_classes as u32 }),
        }
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let (corners, scores) = find(outputs)?;
        let (corners, scores) = (&outputs[corners], &outputs[scores]);
        let (width, height) = (input.width as f32, input.height as f32);
        for (row_idx, (corners, scores)) in corners.data.chunks_exact(4).zip(scores.data.chunks_exact(scores.shape[2])).enumerate() {
            let &[x_min, y_min, x_max, y_max] = corners else { unreachable!("chunks are of this length") };
            let rect = Rect::from_corners(x_min * width, y_min * height, x_max * width, y_max * height);
            for (class_id, &score) in (0..).zip(scores) {
                if score > score_min && Some(class_id) != self.background {
                    results.boxes.push(RawDetection { rect, score, class_id, row: row_idx as u32 });
                }
            }
        }
        Ok(())
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Softmax)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<Vec<ScoreRange>> {
        let (_, output_idx) = find(outputs)?;
        Ok(vec![ScoreRange { output_idx, axis: 2, begin: 0, end: outputs[output_idx].1[2] }])
    }

    fn coordinates(&self) -> Option<Coordinates> {
        Some(Coordinates::Normalized)
    }

    fn roles(&self) -> &'static [&'static str] {
        &["box", "score"]
    }
}

/// Returns the indexes of the outputs with boxes and with scores. If both outputs have four columns, their names identify them.
fn find<P: Port>(outputs: &[P]) -> Result<(usize, usize)> {
    let is_table = |shape: &[usize]| shape.len() == 3 && shape[2] > 0;
    let is_boxes = |shape: &[usize]| is_table(shape) && !differs(shape[2], 4);
    let by_shape = || {
        let boxes = only(outputs, is_boxes)?;
        Some((boxes, only(outputs, |shape| is_table(shape) && !is_boxes(shape))?))
    };
    let by_name = || Some((named(outputs, "box", is_boxes)?, named(outputs, "score", is_table)?));
    let fits = |&(boxes, scores): &(usize, usize)| {
        let (n_boxes, n_scores) = (outputs[boxes].shape()[1], outputs[scores].shape()[1]);
        boxes != scores && (n_boxes == n_scores || n_boxes == usize::MAX || n_scores == usize::MAX)
    };
    let expected = "two outputs, [1, N, 4] and [1, N, classes], or `tensors = { box = ..., score = ... }`";
    by_shape().or_else(by_name).filter(fits).ok_or_else(|| unexpected("boxes-scores", expected, outputs))
}
