//! YOLOv5 and YOLOv7, exported with their anchors in the graph: per anchor center, size, objectness and class scores (all sigmoid
//! already), in input pixels. Knows no anchors: a raw head per grid is another format.

use super::{
    Activation, BoxScheme, BoxThresholds, Coordinates, Output, Port, RawDetection, Results, ScorePlace, best_class, grid, only, unexpected,
};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Center, size, objectness.
const N_LEADING: usize = 5;

/// One output `[1, N, 5 + classes]`.
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
            // No class score exceeds 1, so that most rows end here; the others are read to their end.
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

    fn score_places(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<Vec<ScorePlace>> {
        let output_idx = find(outputs, input)?;
        Ok(vec![ScorePlace { output_idx, axis: 2, begin: 4, end: outputs[output_idx].1[2] }])
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
    // The same columns in one row per cell are offsets that nobody has decoded yet.
    if outputs[port].shape()[1] == grid::n_cells(input, &[8, 16, 32]) {
        return Err(unexpected("yolov5", "one output [1, N, 5 + classes] of three anchors per cell (one per cell is `yolox`)", outputs));
    }
    Ok(port)
}
