//! YOLOv10, YOLO26 and similar models with a list of final boxes: corners in input pixels, score, class. The model includes NMS.

use super::{
    Activation, BoxScheme, BoxThresholds, Coordinates, Output, Port, RawDetection, Results, ScoreRange, class_of, only, unexpected,
};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Columns: corners, score, class.
const N_COLUMNS: usize = 6;

/// Output `[1, N, 6]`.
#[derive(Debug)]
pub(super) struct YoloV10;

impl BoxScheme for YoloV10 {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        find(outputs).map(|_| 0)
    }

    fn candidates(&self, outputs: &[Output<'_>], _input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        for (row_idx, row) in outputs[find(outputs)?].data.chunks_exact(N_COLUMNS).enumerate() {
            let &[x_min, y_min, x_max, y_max, score, class] = row else { unreachable!("chunks are of this length") };
            if let Some(class_id) = class_of(class).filter(|_| score > score_min) {
                let rect = Rect::from_corners(x_min, y_min, x_max, y_max);
                results.boxes.push(RawDetection { rect, score, class_id, row: row_idx as u32 });
            }
        }
        Ok(())
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Sigmoid)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<Vec<ScoreRange>> {
        Ok(vec![ScoreRange { output_idx: find(outputs)?, axis: 2, begin: 4, end: 5 }])
    }

    fn coordinates(&self) -> Option<Coordinates> {
        Some(Coordinates::Pixels)
    }

    fn overlaps(&self) -> bool {
        false
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.25, ..Default::default() }
    }
}

fn find<P: Port>(outputs: &[P]) -> Result<usize> {
    only(outputs, |shape| shape.len() == 3 && shape[2] == N_COLUMNS)
        .ok_or_else(|| unexpected("yolov10", "one output [1, N, 6]: corners, score, class", outputs))
}
