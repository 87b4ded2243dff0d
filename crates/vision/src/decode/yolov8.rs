//! YOLOv8, YOLOv9, YOLO11 and YOLO12: detectors, and models with masks, poses and rotated boxes. The output has one column per cell: decoded
//! center and size in input pixels, class scores (after sigmoid), and mask coefficients, keypoints or an angle. There is no objectness.

use super::extra::Extra;
use super::{
    Activation, BoxScheme, BoxThresholds, Coordinates, Output, Overlap, Port, RawDetection, Results, ScoreRange, only, unexpected,
};
use crate::frame::Size;
use crate::tensor::Result;

/// Number of rows before the class scores: center and size.
const N_LEADING: usize = 4;
/// Number of columns that are processed together. For each output row, an inner loop compares the values of all these columns, so that the
/// compiler uses vector instructions.
const N_TOGETHER: usize = 64;

/// Output `[1, 4 + classes + additional values, N]`, and prototypes for masks.
#[derive(Debug)]
pub(super) struct YoloV8(pub(super) Extra);

/// The output with boxes.
struct Found {
    output_idx: usize,
    /// `usize::MAX` if unknown.
    n_classes: usize,
}

/// Access to the values of each cell in an output.
#[derive(Clone, Copy)]
struct Cells<'a> {
    data: &'a [f32],
    n_cells: usize,
    n_classes: usize,
}

impl Cells<'_> {
    fn place(&self, cell_idx: u32) -> [f32; N_LEADING] {
        [0, 1, 2, 3].map(|row| self.data[row * self.n_cells + cell_idx as usize])
    }

    /// Values after the class scores.
    fn rest(&self, cell_idx: u32) -> impl Iterator<Item = f32> {
        self.data.chunks_exact(self.n_cells).skip(N_LEADING + self.n_classes).map(move |row| row[cell_idx as usize])
    }
}

impl YoloV8 {
    fn cells<'a>(&self, outputs: &[Output<'a>]) -> Result<Cells<'a>> {
        let Found { output_idx, n_classes } = self.find(outputs)?;
        Ok(Cells { data: outputs[output_idx].data, n_cells: outputs[output_idx].shape[2], n_classes })
    }

    fn find<P: Port>(&self, outputs: &[P]) -> Result<Found> {
        let Self(extra) = self;
        let name = format!("yolov8{}", extra.suffix());
        let expected = || format!("one output [1, 4 + classes{}, N]{}", extra.words(), extra.further_outputs());
        let table = || {
            let output_idx = only(outputs, |shape| shape.len() == 3 && shape[1] > N_LEADING)?;
            let n_rows = outputs[output_idx].shape()[1];
            let n_classes = extra.n_classes(if n_rows == usize::MAX { n_rows } else { n_rows - N_LEADING }, outputs)?;
            Some(Found { output_idx, n_classes })
        };
        let found = table().ok_or_else(|| unexpected(&name, expected(), outputs))?;
        let shape = outputs[found.output_idx].shape();
        if shape[1] != usize::MAX && shape[1] > shape[2] {
            let expected = format!(
                "{} with one column per cell (this output has the axes of decoder `yolov5`, or was transposed by the export)",
                expected()
            );
            return Err(unexpected(&name, expected, outputs));
        }
        Ok(found)
    }
}

impl BoxScheme for YoloV8 {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let Found { n_classes, .. } = self.find(outputs)?;
        Ok(if n_classes == usize::MAX { 0 } else { n_classes as u32 })
    }

    fn candidates(&self, outputs: &[Output<'_>], _input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let cells = self.cells(outputs)?;
        let n_cells = cells.n_cells;
        let class_scores = &cells.data[N_LEADING * n_cells..][..cells.n_classes * n_cells];
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
                let row = cell_idx as u32;
                let rect = self.0.rect(cells.place(row), || cells.rest(row).next().unwrap_or(0.0));
                results.boxes.push(RawDetection { rect, score, class_id: class_id as u32, row });
            }
        }
        Ok(())
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Sigmoid)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<Vec<ScoreRange>> {
        let Found { output_idx, n_classes } = self.find(outputs)?;
        Ok(vec![ScoreRange { output_idx, axis: 1, begin: N_LEADING, end: N_LEADING.saturating_add(n_classes) }])
    }

    fn coordinates(&self) -> Option<Coordinates> {
        matches!(self.0, Extra::None).then_some(Coordinates::Pixels)
    }

    fn overlap(&self, outputs: &[Output<'_>], results: &Results) -> Result<Option<Overlap>> {
        let cells = self.cells(outputs)?;
        Ok(self.0.rotated(results, |row| cells.place(row), |row, values| values.extend(cells.rest(row))))
    }

    fn add_attributes(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        let cells = self.cells(outputs)?;
        self.0.add_to(results, outputs, input, |row| cells.place(row), |row, values| values.extend(cells.rest(row)));
        Ok(())
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.25, iou: 0.7, ..Default::default() }
    }
}
