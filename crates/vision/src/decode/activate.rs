//! Applies the last activation (sigmoid or softmax) of a detector before decoding, for exports that lack it. The scores are then
//! probabilities.

use std::borrow::Cow;

use super::{Activation, Output};

/// Position of the scores in an output of a detector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoreRange {
    /// Index of the output.
    pub output_idx: usize,
    /// Axis of the scores of one box.
    pub axis: usize,
    /// Index of the first score on this axis.
    pub begin: usize,
    /// Index after the last score.
    pub end: usize,
}

/// The logistic function, which turns a logit into a probability.
pub(super) fn sigmoid(logit: f32) -> f32 {
    // For large negative values, the exponential overflows to infinity, and the result is 0, as it should be.
    1.0 / (1.0 + (-logit).exp())
}

/// Applies the activation to the scores and returns the outputs. The new values of an output with scores are stored in `changed`.
pub(super) fn activated<'a>(
    outputs: &'a [Output<'a>],
    places: &[ScoreRange],
    activation: Activation,
    changed: &'a mut Vec<(usize, Vec<f32>)>,
) -> Cow<'a, [Output<'a>]> {
    for place in places.iter().filter(|place| place.end > place.begin) {
        let output = &outputs[place.output_idx];
        let mut data = output.data.to_vec();
        let inner: usize = output.shape[place.axis + 1..].iter().product();
        let block = output.shape[place.axis] * inner;
        for block in data.chunks_exact_mut(block.max(1)) {
            for column in 0..inner {
                let places = (place.begin..place.end).map(|score_idx| score_idx * inner + column);
                match activation {
                    Activation::Sigmoid => places.for_each(|idx| block[idx] = sigmoid(block[idx])),
                    Activation::Softmax => {
                        let max = places.clone().map(|idx| block[idx]).fold(f32::NEG_INFINITY, f32::max);
                        let sum: f32 = places.clone().map(|idx| (block[idx] - max).exp()).sum();
                        places.for_each(|idx| block[idx] = (block[idx] - max).exp() / sum);
                    }
                    Activation::None | Activation::Bytes => {}
                }
            }
        }
        changed.push((place.output_idx, data));
    }
    if changed.is_empty() {
        return Cow::Borrowed(outputs);
    }
    let mut all = outputs.to_vec();
    for (output_idx, data) in changed.iter() {
        all[*output_idx].data = data;
    }
    Cow::Owned(all)
}

#[cfg(test)]
mod tests {
    use crate::decode::Output;
    use crate::decode::tests::{boxes, decoder};
    use crate::frame::{Rect, Size};

    fn logit(p: f32) -> f32 {
        (p / (1.0 - p)).ln()
    }

    #[test]
    fn scores_become_probabilities_in_any_layout() {
        let input = Size::new(64, 32);
        let found = |name: &str, activation: &str, outputs: &[Output<'_>]| {
            let decoder = decoder(name, &format!("threshold = 0.5\nactivation = \"{activation}\""));
            boxes(&*decoder, outputs, input)
                .iter()
                .map(|found| (found.rect, (found.score * 100.0).round(), found.class_id))
                .collect::<Vec<_>>()
        };
        let rect = Rect { x: 8.0, y: 4.0, width: 16.0, height: 8.0 };
        // A row of `yolov5`: center, size, objectness, two classes.
        let row = [16.0, 8.0, 16.0, 8.0, logit(0.9), logit(0.2), logit(0.8)];
        let yolov5 = Output { name: "y", shape: &[1, 1, 7], data: &row };
        assert_eq!(found("yolov5", "sigmoid", &[yolov5]), [(rect, 72.0, 1)]);
        // The same values in a column, next to a column without an object.
        let columns = [16.0, 1.0, 8.0, 1.0, 16.0, 1.0, 8.0, 1.0, logit(0.2), -9.0, logit(0.8), -9.0];
        let yolov8 = Output { name: "y", shape: &[1, 6, 2], data: &columns };
        // Repeat the column without an object, because outputs of this decoder have more columns than rows.
        let wide: Vec<f32> = columns.chunks(2).flat_map(|pair| [pair[0], pair[1], pair[1], pair[1], pair[1], pair[1], pair[1]]).collect();
        let yolov8 = Output { shape: &[1, 6, 7], data: &wide, ..yolov8 };
        assert_eq!(found("yolov8", "sigmoid", &[yolov8]), [(rect, 80.0, 1)]);
        let corners = Output { name: "boxes", shape: &[1, 1, 4], data: &[0.125, 0.125, 0.375, 0.375] };
        let scores = Output { name: "scores", shape: &[1, 1, 2], data: &[0.0, 9_f32.ln()] };
        assert_eq!(found("ultraface", "softmax", &[scores, corners]), [(rect, 90.0, 0)]);
        let row = [0.0, 3.0, logit(0.7), 0.125, 0.125, 0.375, 0.375];
        assert_eq!(found("ssd", "sigmoid", &[Output { name: "y", shape: &[1, 1, 1, 7], data: &row }]), [(rect, 70.0, 3)]);
    }
}
