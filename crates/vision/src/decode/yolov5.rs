//! YOLOv5 and YOLOv7 models that export decoded anchors. The output has one row per anchor: center and size in input pixels, objectness,
//! class scores (after sigmoid), and mask coefficients of models with masks. For exports with one raw output per grid, use `yolo-anchors`.

use super::extra::Extra;
use super::{
    Activation, BoxScheme, BoxThresholds, Coordinates, Output, Port, RawDetection, Results, ScoreRange, best_class, grid, only, unexpected,
};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Number of columns before the class scores: center, size and objectness.
const N_LEADING: usize = 5;

/// Output `[1, N, 5 + classes + additional values]`, and prototypes for masks.
#[derive(Debug)]
pub(super) struct YoloV5(pub(super) Extra);

impl YoloV5 {
    /// Returns the index of the output and the number of classes. The number is `usize::MAX` if it is unknown.
    fn find<P: Port>(&self, outputs: &[P], input: Size) -> Result<(usize, usize)> {
        let Self(extra) = self;
        let name = format!("yolov5{}", extra.suffix());
        let shape = format!("one output [1, N, 5 + classes{}]", extra.words());
        let table = || {
            let output_idx = only(outputs, |shape| shape.len() == 3 && shape[2] > N_LEADING)?;
            let n_columns = outputs[output_idx].shape()[2];
            Some((output_idx, extra.n_classes(if n_columns == usize::MAX { n_columns } else { n_columns - N_LEADING }, outputs)?))
        };
        let found = table().ok_or_else(|| unexpected(&name, format!("{shape}{}", extra.further_outputs()), outputs))?;
        // One row per cell means that the model is a YOLOX. Its rows have the same columns, but contain offsets that still must be decoded.
        if outputs[found.0].shape()[1] == grid::n_cells(input, &[8, 16, 32]) {
            let expected = format!("{shape} with three rows per cell, one for each anchor (for one row per cell use decoder `yolox`)");
            return Err(unexpected(&name, expected, outputs));
        }
        Ok(found)
    }
}

impl BoxScheme for YoloV5 {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        let (_, n_classes) = self.find(outputs, input)?;
        Ok(if n_classes == usize::MAX { 0 } else { n_classes as u32 })
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let (output_idx, n_classes) = self.find(outputs, input)?;
        let output = &outputs[output_idx];
        for (row_idx, row) in output.data.chunks_exact(output.shape[2]).enumerate() {
            // The score is objectness times class score, and class scores are at most 1. So rows with a low objectness are skipped without
            // reading their class scores. Most rows have a low objectness.
            let objectness = row[4];
            if objectness.is_nan() || objectness <= score_min {
                continue;
            }
            let (class_id, class_score) = best_class(&row[N_LEADING..][..n_classes]);
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
        let (output_idx, n_classes) = self.find(outputs, input)?;
        Ok(vec![ScoreRange { output_idx, axis: 2, begin: 4, end: N_LEADING.saturating_add(n_classes) }])
    }

    fn coordinates(&self) -> Option<Coordinates> {
        matches!(self.0, Extra::None).then_some(Coordinates::Pixels)
    }

    fn add_attributes(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        let (output_idx, n_classes) = self.find(outputs, input)?;
        let output = &outputs[output_idx];
        let row = |row: u32| &output.data[row as usize * output.shape[2]..][..output.shape[2]];
        let place = |idx: u32| [row(idx)[0], row(idx)[1], row(idx)[2], row(idx)[3]];
        self.0.add_to(results, outputs, input, place, |idx, values| values.extend(&row(idx)[N_LEADING + n_classes..]));
        Ok(())
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.25, iou: 0.45, ..Default::default() }
    }
}
