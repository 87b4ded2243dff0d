//! RetinaFace (Deng et al., 2019), as exported from the PyTorch implementation of biubug6.
//!
//! Each prior has a face score (after softmax), box offsets, and offsets of five keypoints. The priors are two squares per cell.

use super::grid;
use super::{Activation, BoxScheme, BoxThresholds, Output, Port, RawDetection, Results, ScoreRange, differs, only, unexpected};
use crate::frame::{Point, Rect, Size};
use crate::tensor::Result;

const STRIDES: [u32; 3] = [8, 16, 32];
/// Side lengths of the priors in pixels, by stride.
const SIDES: [[f32; 2]; 3] = [[16.0, 32.0], [64.0, 128.0], [256.0, 512.0]];
const N_PRIORS: usize = 2;
/// The two variances of the encoding. Training divides offsets of centers and keypoints by the first variance, and logarithms of
/// sizes by the second.
const VARIANCE: [f32; 2] = [0.1, 0.2];
/// Number of values of the five keypoints, which have x and y each.
const N_KEYPOINT_COLUMNS: usize = 10;

/// Outputs `[1, N, 4]`, `[1, N, 2]` and optionally `[1, N, 10]`.
#[derive(Debug)]
pub(super) struct RetinaFace;

/// Indexes of the outputs.
struct Found {
    boxes: usize,
    scores: usize,
    keypoints: Option<usize>,
}

/// A square prior: center and side length in pixels.
struct Prior {
    x: f32,
    y: f32,
    side: f32,
}

impl BoxScheme for RetinaFace {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        find(outputs, input).map(|_| 1)
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let found = find(outputs, input)?;
        let scores = outputs[found.scores].data.as_chunks::<2>().0;
        let rows = outputs[found.boxes].data.as_chunks::<4>().0;
        let keypoints = found.keypoints.map(|port| outputs[port].data.as_chunks::<N_KEYPOINT_COLUMNS>().0);
        for (row_idx, (&[_, score], &[dx, dy, log_width, log_height])) in scores.iter().zip(rows).enumerate() {
            if score > score_min
                && let Some(prior) = prior(input, row_idx)
            {
                let Point { x, y } = prior.point(dx, dy);
                let [width, height] = [log_width, log_height].map(|log| prior.side * (log * VARIANCE[1]).exp());
                results.boxes.push(RawDetection { rect: Rect::from_center(x, y, width, height), score, class_id: 0, row: row_idx as u32 });
                if let Some(keypoints) = keypoints {
                    results.add_keypoints(row_idx as u32, keypoints[row_idx].as_chunks().0.iter().map(|&[dx, dy]| prior.point(dx, dy)));
                }
            }
        }
        Ok(())
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Softmax)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<Vec<ScoreRange>> {
        Ok(vec![ScoreRange { output_idx: find(outputs, input)?.scores, axis: 2, begin: 0, end: 2 }])
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.5, iou: 0.4, ..Default::default() }
    }
}

impl Prior {
    /// Returns the point with these encoded offsets from the prior.
    fn point(&self, dx: f32, dy: f32) -> Point {
        Point { x: self.x + dx * VARIANCE[0] * self.side, y: self.y + dy * VARIANCE[0] * self.side }
    }
}

/// Returns the prior of an output row; `None` if there are fewer priors.
fn prior(input: Size, row_idx: usize) -> Option<Prior> {
    let (grid, cell_idx) = grid::find_cell(input, &STRIDES, row_idx / N_PRIORS)?;
    let sides = SIDES[STRIDES.iter().position(|&stride| stride == grid.stride)?];
    let ((column, line), pixels) = (grid.place(cell_idx), grid.stride as f32);
    Some(Prior { x: (column + 0.5) * pixels, y: (line + 0.5) * pixels, side: sides[row_idx % N_PRIORS] })
}

fn find<P: Port>(outputs: &[P], input: Size) -> Result<Found> {
    let n_rows = grid::n_cells(input, &STRIDES) * N_PRIORS;
    let only_of = |n_columns| only(outputs, |shape| shape.len() == 3 && shape[2] == n_columns && !differs(shape[1], n_rows));
    let found = only_of(4).zip(only_of(2)).map(|(boxes, scores)| Found { boxes, scores, keypoints: only_of(N_KEYPOINT_COLUMNS) });
    found.ok_or_else(|| {
        let expected = format!(
            "outputs [1, {n_rows}, 4], [1, {n_rows}, 2] and optionally [1, {n_rows}, 10], with two rows per cell of an input of {input}"
        );
        unexpected("retinaface", expected, outputs)
    })
}
