//! Ultra-Light-Fast face detectors (RFB and slim): scores (after softmax) and decoded corners in 0..=1. Supports both exports: one output,
//! or separate outputs for scores and boxes.

use super::{
    Activation, BoxScheme, BoxThresholds, Coordinates, Output, Port, RawDetection, Results, ScoreRange, differs, only, unexpected,
};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Output `[1, N, 6]` (background, face, box), or outputs `[1, N, 2]` and `[1, N, 4]` in any order. One row per prior.
#[derive(Debug)]
pub(super) struct UltraFace;

/// Indexes of the outputs with scores and boxes.
enum Found {
    /// One output. Each of its rows has the columns background, face, and box corners.
    Together(usize),
    Apart {
        scores: usize,
        boxes: usize,
    },
}

impl BoxScheme for UltraFace {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        find(outputs).map(|_| 1)
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let (width, height) = (input.width as f32, input.height as f32);
        let mut take = |(row, (score, corners)): (u32, (f32, &[f32]))| {
            if score > score_min {
                let &[x_min, y_min, x_max, y_max] = corners else { return };
                let rect = Rect::from_corners(x_min * width, y_min * height, x_max * width, y_max * height);
                results.boxes.push(RawDetection { rect, score, class_id: 0, row });
            }
        };
        match find(outputs)? {
            Found::Together(output) => {
                let rows = outputs[output].data.chunks_exact(6);
                (0..).zip(rows.map(|row| (row[1], &row[2..]))).for_each(&mut take);
            }
            Found::Apart { scores, boxes } => {
                let (scores, corners) = (outputs[scores].data.chunks_exact(2), outputs[boxes].data.chunks_exact(4));
                (0..).zip(scores.map(|scores| scores[1]).zip(corners)).for_each(&mut take);
            }
        }
        Ok(())
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Softmax)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<Vec<ScoreRange>> {
        let output_idx = match find(outputs)? {
            Found::Together(output_idx) => output_idx,
            Found::Apart { scores, .. } => scores,
        };
        Ok(vec![ScoreRange { output_idx, axis: 2, begin: 0, end: 2 }])
    }

    fn coordinates(&self) -> Option<Coordinates> {
        Some(Coordinates::Normalized)
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.7, iou: 0.3, ..Default::default() }
    }
}

fn find<P: Port>(outputs: &[P]) -> Result<Found> {
    let with_columns = |n_columns: usize| only(outputs, move |shape: &[usize]| shape.len() == 3 && shape[2] == n_columns);
    let found = match (with_columns(6), with_columns(2), with_columns(4)) {
        (Some(together), None, None) => Some(Found::Together(together)),
        (None, Some(scores), Some(boxes)) => {
            let (n_scores, n_boxes) = (outputs[scores].shape()[1], outputs[boxes].shape()[1]);
            (!differs(n_scores, n_boxes) || n_boxes == usize::MAX).then_some(Found::Apart { scores, boxes })
        }
        _ => None,
    };
    found.ok_or_else(|| unexpected("ultraface", "one output [1, N, 6], or two, [1, N, 2] and [1, N, 4]", outputs))
}

#[cfg(test)]
mod tests {
    use crate::decode::tests::{boxes, decoder};
    use crate::decode::{Output, RawDetection};
    use crate::frame::{Rect, Size};

    const INPUT: Size = Size::new(320, 240);

    #[rustfmt::skip]
    const ROWS: [[f32; 6]; 6] = [
        [0.2, 0.8, 0.125, 0.25, 0.25, 0.5],
        [0.1, 0.9, 0.5, 0.5, 0.75, 0.625],
        // The IoU of this box and the previous box is 7/8.
        [0.15, 0.85, 0.5, 0.5, 0.71875, 0.625],
        [0.3, 0.7, 0.0, 0.0, 0.1, 0.1],
        [0.0, 1.0, 0.5, 0.5, 0.5, 0.9],
        [0.0, 1.0, f32::NAN, 0.5, 0.6, 0.9],
    ];

    fn expected() -> Vec<RawDetection> {
        [(Rect::from_corners(160.0, 120.0, 240.0, 150.0), 0.9, 1), (Rect::from_corners(40.0, 60.0, 80.0, 120.0), 0.8, 0)]
            .map(|(rect, score, row)| RawDetection { rect, score, class_id: 0, row })
            .into()
    }

    fn decode(outputs: &[Output<'_>]) -> Vec<RawDetection> {
        boxes(&*decoder("ultraface", ""), outputs, INPUT)
    }

    #[test]
    fn both_exports_give_the_same_faces() {
        let together = Output { name: "all", shape: &[1, 6, 6], data: ROWS.as_flattened() };
        assert_eq!(decode(&[together]), expected());
        let scores: Vec<f32> = ROWS.iter().flat_map(|row| [row[0], row[1]]).collect();
        let corners: Vec<f32> = ROWS.iter().flat_map(|row| [row[2], row[3], row[4], row[5]]).collect();
        let scores = Output { name: "scores", shape: &[1, 6, 2], data: &scores };
        let boxes = Output { name: "boxes", shape: &[1, 6, 4], data: &corners };
        assert_eq!(decode(&[scores, boxes]), expected());
        assert_eq!(decode(&[boxes, scores]), expected());
    }

    #[test]
    fn configured_thresholds_are_used() {
        let together = Output { name: "all", shape: &[1, 6, 6], data: ROWS.as_flattened() };
        let n_boxes = |score: f32, iou: f32, max_boxes: usize| {
            let keys = format!("threshold = {score:?}\niou-threshold = {iou:?}\nmax-boxes = {max_boxes}");
            boxes(&*decoder("ultraface", &keys), &[together], INPUT).len()
        };
        assert_eq!((n_boxes(0.7, 0.3, 300), n_boxes(0.69, 0.3, 300), n_boxes(0.7, 0.9, 300), n_boxes(0.0, 1.0, 2)), (2, 3, 3, 2));
    }

    #[test]
    fn other_outputs_are_errors() {
        #[derive(Debug)]
        struct Case(&'static [(&'static str, &'static [usize])], bool);
        let cases = [
            Case(&[("all", &[1, 4420, 6])], true),
            Case(&[("all", &[usize::MAX, usize::MAX, 6])], true),
            Case(&[("boxes", &[1, 4420, 4]), ("scores", &[1, 4420, 2])], true),
            Case(&[("boxes", &[1, usize::MAX, 4]), ("scores", &[1, 4420, 2])], true),
            Case(&[("boxes", &[1, 4420, 4]), ("scores", &[1, usize::MAX, 2])], true),
            Case(&[("boxes", &[1, 4420, 4]), ("scores", &[1, 4419, 2])], false),
            Case(&[("boxes", &[1, 4420, 4])], false),
            Case(&[("all", &[1, 4420, 85])], false),
            Case(&[("all", &[4420, 6])], false),
            Case(&[("one", &[1, 9, 6]), ("two", &[1, 9, 6])], false),
            Case(&[], false),
        ];
        for case in cases {
            let result = decoder("ultraface", "").check(case.0, INPUT);
            assert_eq!(result.is_ok(), case.1, "{case:?}: {result:?}");
        }
        let error = decoder("ultraface", "").check(&[("all", &[1, usize::MAX, 85])], INPUT).unwrap_err();
        assert_eq!(
            error.to_string(),
            "decoder `ultraface`: expected one output [1, N, 6], or two, [1, N, 2] and [1, N, 4], got `all` [1, ?, 85]"
        );
    }
}
