//! YOLOv5 and YOLOv7 models that export decoded anchors. The output has one row per anchor: center and size in input pixels, objectness and
//! class scores (after sigmoid). Exports with one raw output per grid are not supported.

use super::{
    Activation, BoxScheme, BoxThresholds, Coordinates, Output, Port, RawDetection, Results, ScoreRange, best_class, grid, only, unexpected,
};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Number of columns before the class scores: center, size and objectness.
const N_LEADING: usize = 5;

/// Output `[1, N, 5 + classes]`.
#[derive(Debug)]
pub(super) struct YoloV5;

impl BoxScheme for YoloV5 {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        let n_columns = outputs[find(outputs, input)?].1[2];
        Ok(if n_columns == usize::MAX { 0 } else { (n_columns - N_LEADING) as u32 })
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let output = &outputs[find(outputs, input)?];
        for (row_idx, row) in output.data.chunks_exact(output.shape[2]).enumerate() {
            // The score is objectness times class score, and class scores are at most 1. So rows with a low objectness, which are
            // most rows, are skipped without a look at their class scores.
            let objectness = row[4];
            if objectness.is_nan() || objectness <= score_min {
                continue;
            }
            let (class_id, class_score) = best_class(&row[N_LEADING..]);
            let score = objectness * class_score;
            if score > score_min {
                let rect = Rect::from_center(row[0], row[1], row[2], row[3]);
                results.boxes.push(RawDetection { rect, score, class_id, row: row_idx as u32 });
            }
        }
        Ok(())
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Sigmoid)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<Vec<ScoreRange>> {
        let output_idx = find(outputs, input)?;
        Ok(vec![ScoreRange { output_idx, axis: 2, begin: 4, end: outputs[output_idx].1[2] }])
    }

    fn coordinates(&self) -> Option<Coordinates> {
        Some(Coordinates::Pixels)
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.25, iou: 0.45, ..Default::default() }
    }
}

fn find<P: Port>(outputs: &[P], input: Size) -> Result<usize> {
    let port = only(outputs, |shape| shape.len() == 3 && shape[2] > N_LEADING)
        .ok_or_else(|| unexpected("yolov5", "one output [1, N, 5 + classes]", outputs))?;
    // One row per cell with the same columns is the output of YOLOX, whose values are offsets that still must be decoded.
    if outputs[port].shape()[1] == grid::n_cells(input, &[8, 16, 32]) {
        return Err(unexpected(
            "yolov5",
            "one output [1, N, 5 + classes] with three rows per cell, one for each anchor (for one row per cell use decoder `yolox`)",
            outputs,
        ));
    }
    Ok(port)
}
