//! EfficientDet (Tan et al., 2020) and EfficientDet-Lite without post-processing in the model: offsets of boxes from anchors, and class
//! scores. Anchors are boxes of fixed positions and sizes.
//!
//! The anchors are at the centers of the cells of five grids with strides of 8 to 128 pixels. Each cell has three sizes, and for each size
//! an anchor of each aspect ratio. Models with TensorFlow Lite's post-processing need the decoder `tf-ssd` instead.

use serde::Deserialize;

use super::boxes::bad;
use super::grid::{self, Grid};
use super::{
    Activation, BoxScheme, BoxThresholds, Output, Port, RawDetection, Results, ScoreRange, Section, boxes_and_scores, differs, unexpected,
};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Strides in pixels, in the order of the grids in the outputs.
const STRIDES: [u32; 5] = [8, 16, 32, 64, 128];
/// Number of anchor sizes. Each is larger than the previous one by the factor `2 ^ (1 / N_SIZES)`.
const N_SIZES: usize = 3;
/// Default of `aspect-ratios`.
const ASPECT_RATIOS: [f32; 3] = [1.0, 2.0, 0.5];

/// Description keys of the anchors.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
struct AnchorKeys {
    /// Side length of the smallest anchor in cells: 3 for EfficientDet-Lite0 to Lite2, 4 for others. Default: 4.
    anchor_scale: Option<f32>,
    /// Width divided by height of the anchors, in order. Default: [1, 2, 0.5].
    aspect_ratios: Option<Vec<f32>>,
}

/// Outputs `[1, N, 4]` and `[1, N, classes]`.
#[derive(Debug)]
pub(super) struct EfficientDet {
    anchor_scale: f32,
    aspect_ratios: Vec<f32>,
}

impl EfficientDet {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        let AnchorKeys { anchor_scale, aspect_ratios } = section.keys()?;
        let anchor_scale = anchor_scale.unwrap_or(4.0);
        if !(0.1..=100.0).contains(&anchor_scale) {
            return Err(bad(format!("`anchor-scale`: expected 0.1 to 100, got {anchor_scale}")));
        }
        let aspect_ratios = aspect_ratios.unwrap_or(ASPECT_RATIOS.to_vec());
        if !(1..=16).contains(&aspect_ratios.len()) || !aspect_ratios.iter().all(|ratio| (0.01..=100.0).contains(ratio)) {
            return Err(bad(format!("`aspect-ratios`: expected 1 to 16 numbers from 0.01 to 100, got {aspect_ratios:?}")));
        }
        Ok(Self { anchor_scale, aspect_ratios })
    }

    /// Number of anchors of a cell.
    fn n_anchors(&self) -> usize {
        N_SIZES * self.aspect_ratios.len()
    }

    /// Returns the indexes of the outputs with boxes and with scores. If both outputs have four columns, their names identify them.
    fn find<P: Port>(&self, outputs: &[P], input: Size) -> Result<[usize; 2]> {
        let n_rows = grid::n_cells(input, &STRIDES) * self.n_anchors();
        let is_scores = |shape: &[usize]| shape.len() == 3 && shape[2] > 0 && !differs(shape[1], n_rows);
        let is_boxes = |shape: &[usize]| is_scores(shape) && !differs(shape[2], 4);
        boxes_and_scores(outputs, is_boxes, is_scores).ok_or_else(|| {
            let expected = format!(
                "outputs [1, {n_rows}, 4] and [1, {n_rows}, classes], with {} rows per cell of an input of {input}, or `tensors = {{ box = ..., score = ... }}`",
                self.n_anchors()
            );
            unexpected("efficientdet", expected, outputs)
        })
    }

    /// Center, width and height of an anchor.
    fn anchor(&self, grid: Grid, cell_idx: usize, anchor_idx: usize) -> [f32; 4] {
        let ((column, line), pixels) = (grid.place(cell_idx), grid.stride as f32);
        let (size_idx, ratio) = (anchor_idx / self.aspect_ratios.len(), self.aspect_ratios[anchor_idx % self.aspect_ratios.len()].sqrt());
        let side = self.anchor_scale * pixels * 2_f32.powf(size_idx as f32 / N_SIZES as f32);
        [(column + 0.5) * pixels, (line + 0.5) * pixels, side * ratio, side / ratio]
    }
}

impl BoxScheme for EfficientDet {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        let [_, scores] = self.find(outputs, input)?;
        let n_classes = outputs[scores].1[2];
        Ok(if n_classes == usize::MAX { 0 } else { n_classes as u32 })
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let [boxes, scores] = self.find(outputs, input)?.map(|port| &outputs[port]);
        let mut rows = (0_u32..).zip(boxes.data.as_chunks::<4>().0.iter().zip(scores.data.chunks_exact(scores.shape[2])));
        for grid in STRIDES.map(|stride| Grid::new(input, stride)) {
            for (idx, (row_idx, (&[dy, dx, log_height, log_width], scores))) in
                rows.by_ref().take(grid.n_cells() * self.n_anchors()).enumerate()
            {
                let mut rect = None;
                for (class_id, &score) in (0..).zip(scores).filter(|(_, score)| **score > score_min) {
                    let rect = *rect.get_or_insert_with(|| {
                        let [x, y, width, height] = self.anchor(grid, idx / self.n_anchors(), idx % self.n_anchors());
                        Rect::from_center(x + dx * width, y + dy * height, width * log_width.exp(), height * log_height.exp())
                    });
                    results.boxes.push(RawDetection { rect, score, class_id, row: row_idx });
                }
            }
        }
        Ok(())
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Sigmoid)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<Vec<ScoreRange>> {
        let [_, output_idx] = self.find(outputs, input)?;
        Ok(vec![ScoreRange { output_idx, axis: 2, begin: 0, end: outputs[output_idx].1[2] }])
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.5, iou: 0.5, ..Default::default() }
    }

    fn roles(&self) -> &'static [&'static str] {
        &["box", "score"]
    }
}

#[cfg(test)]
mod tests {
    use crate::decode::Output;
    use crate::decode::tests::{boxes, decoder};
    use crate::frame::{Rect, Size};

    /// With this size, the grids have 16x16, 8x8, 4x4, 2x2 and 1x1 cells.
    const INPUT: Size = Size::new(128, 128);
    const N_ROWS: usize = 9 * (256 + 64 + 16 + 4 + 1);

    #[test]
    fn offsets_are_relative_to_the_anchor() {
        // Column 1, line 2 of the second grid; the second size, with the aspect ratio 4.
        let row = 9 * (256 + 2 * 8 + 1) + 3 + 1;
        let (mut offsets, mut scores) = (vec![0.0; 4 * N_ROWS], vec![0.0; 2 * N_ROWS]);
        offsets[4 * row..][..4].copy_from_slice(&[0.5, -0.25, 2_f32.ln(), 0.0]);
        scores[2 * row + 1] = 0.75;
        let tensors = [
            Output { name: "Identity", shape: &[1, N_ROWS, 2], data: &scores },
            Output { name: "Identity_1", shape: &[1, N_ROWS, 4], data: &offsets },
        ];
        let found = boxes(&*decoder("efficientdet", "anchor-scale = 2\naspect-ratios = [1, 4, 0.25]"), &tensors, INPUT);
        assert_eq!((found.len(), found[0].class_id, found[0].score, found[0].row), (1, 1, 0.75, row as u32));
        let side = 2.0 * 16.0 * 2_f32.powf(1.0 / 3.0);
        let (width, height) = (2.0 * side, side / 2.0);
        let expected = Rect::from_center(24.0 - 0.25 * width, 40.0 + 0.5 * height, width, 2.0 * height);
        let edges = |rect: Rect| [rect.x, rect.y, rect.width, rect.height];
        let is_near = edges(found[0].rect).iter().zip(edges(expected)).all(|(edge, expected)| (edge - expected).abs() < 1e-3);
        assert!(is_near, "{:?}, {expected:?}", found[0].rect);
    }

    #[test]
    fn number_of_rows_follows_from_input_and_ratios() {
        let check =
            |keys: &str, n_rows: usize| decoder("efficientdet", keys).check(&[("a", &[1, n_rows, 4]), ("b", &[1, n_rows, 90])], INPUT);
        assert_eq!(check("", N_ROWS), Ok(90));
        assert_eq!(check("aspect-ratios = [1]", N_ROWS / 3), Ok(90));
        let message = check("aspect-ratios = [1]", N_ROWS).unwrap_err().to_string();
        assert!(message.contains(&format!("[1, {}, classes]", N_ROWS / 3)) && message.contains("128x128"), "{message}");
    }
}
