//! YOLOv8, YOLOv9, YOLO11 and YOLO12 detectors. The output has one column per cell: decoded center and size in input pixels, and class
//! scores (after sigmoid). There is no objectness. Masks, poses and rotated boxes are not supported.

use super::{Activation, BoxScheme, BoxThresholds, Coordinates, Output, Port, RawDetection, Results, ScoreRange, only, unexpected};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Number of rows before the class scores: center and size.
const N_LEADING: usize = 4;
/// Number of columns that are processed together. The loop compares one output row of all these columns after another, so that
/// the compiler uses vector instructions.
const N_TOGETHER: usize = 64;

/// Output `[1, 4 + classes, N]`.
#[derive(Debug)]
pub(super) struct YoloV8;

impl BoxScheme for YoloV8 {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let n_rows = outputs[find(outputs)?].1[1];
        Ok(if n_rows == usize::MAX { 0 } else { (n_rows - N_LEADING) as u32 })
    }

    fn candidates(&self, outputs: &[Output<'_>], _input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let output = &outputs[find(outputs)?];
        let n_cells = output.shape[2];
        let (place, class_scores) = output.data.split_at(N_LEADING * n_cells);
        for begin in (0..n_cells).step_by(N_TOGETHER) {
            let n_together = N_TOGETHER.min(n_cells - begin);
            let mut best = [f32::NEG_INFINITY; N_TOGETHER];
            for of_class in class_scores.chunks_exact(n_cells) {
                let scores = &of_class[begin..][..n_together];
                best.iter_mut().zip(scores).for_each(|(best, &score)| *best = if score > *best { score } else { *best });
            }
            for (offset, &score) in best[..n_together].iter().enumerate().filter(|(_, score)| **score > score_min) {
                let cell_idx = begin + offset;
                let class_id = class_scores.chunks_exact(n_cells).position(|of_class| of_class[cell_idx] == score).unwrap_or(0);
                let [x, y, width, height] = [0, 1, 2, 3].map(|row| place[row * n_cells + cell_idx]);
                let rect = Rect::from_center(x, y, width, height);
                results.boxes.push(RawDetection { rect, score, class_id: class_id as u32, row: cell_idx as u32 });
            }
        }
        Ok(())
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Sigmoid)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<Vec<ScoreRange>> {
        let output_idx = find(outputs)?;
        Ok(vec![ScoreRange { output_idx, axis: 1, begin: N_LEADING, end: outputs[output_idx].1[1] }])
    }

    fn coordinates(&self) -> Option<Coordinates> {
        Some(Coordinates::Pixels)
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.25, iou: 0.7, ..Default::default() }
    }
}

fn find<P: Port>(outputs: &[P]) -> Result<usize> {
    let port = only(outputs, |shape| shape.len() == 3 && shape[1] > N_LEADING)
        .ok_or_else(|| unexpected("yolov8", "one output [1, 4 + classes, N]", outputs))?;
    let (n_rows, n_cells) = (outputs[port].shape()[1], outputs[port].shape()[2]);
    if n_rows != usize::MAX && n_rows > n_cells {
        let expected = "one output [1, 4 + classes, N] with one column per cell (this output has the axes of decoder `yolov5`, or was transposed by the export)";
        return Err(unexpected("yolov8", expected, outputs));
    }
    Ok(port)
}
