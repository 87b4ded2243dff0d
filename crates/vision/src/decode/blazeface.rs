//! BlazeFace (Bazarevsky et al., 2019), and the detectors of palms and persons of MediaPipe. For each cell of a grid, the outputs have
//! boxes and keypoints relative to the center of the cell, in pixels, and a score before sigmoid. Overlapping boxes are averaged, as in
//! MediaPipe.

use super::activate::sigmoid;
use super::grid::Grid;
use super::{BoxScheme, BoxThresholds, Output, Port, RawDetection, Results, differs, unexpected};
use crate::frame::{Point, Rect, Size};
use crate::nms::NmsMethod;
use crate::tensor::Result;

/// A grid: its stride (side of a cell) in pixels, and the number of output rows per cell.
type Cells = (u32, usize);

/// The grids of the published models. The number of output rows identifies the grids, because it differs between them for each input size.
const LAYOUTS: [&[Cells]; 4] = [
    // Faces at short range; palms at 192x192.
    &[(8, 2), (16, 6)],
    // Faces of the back camera, at 256x256.
    &[(16, 2), (32, 6)],
    // Faces at full range.
    &[(4, 1)],
    // Persons at 224x224; palms at 256x256.
    &[(8, 2), (16, 2), (32, 6)],
];
/// Number of columns before the keypoints: center and size.
const N_LEADING: usize = 4;
/// Maximum number of keypoints.
const MAX_KEYPOINTS: usize = 100;

/// Outputs `[1, N, 4 + 2 * keypoints]` and `[1, N, 1]`.
#[derive(Debug)]
pub(super) struct BlazeFace;

struct Found {
    boxes: usize,
    scores: usize,
    layout: &'static [Cells],
}

impl BoxScheme for BlazeFace {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        find(outputs, input).map(|_| 1)
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let Found { boxes, scores, layout } = find(outputs, input)?;
        let boxes = &outputs[boxes];
        let mut rows = (0_u32..).zip(boxes.data.chunks_exact(boxes.shape[2]).zip(outputs[scores].data));
        for &(stride, n_each) in layout {
            let grid = Grid::new(input, stride);
            for (idx, (row_idx, (row, &logit))) in rows.by_ref().take(grid.n_cells() * n_each).enumerate() {
                let score = sigmoid(logit);
                if score > score_min {
                    let ((column, line), pixels) = (grid.place(idx / n_each), stride as f32);
                    let (x, y) = ((column + 0.5) * pixels, (line + 0.5) * pixels);
                    let rect = Rect::from_center(x + row[0], y + row[1], row[2], row[3]);
                    results.boxes.push(RawDetection { rect, score, class_id: 0, row: row_idx });
                    let keypoints = row[N_LEADING..].as_chunks().0;
                    if !keypoints.is_empty() {
                        results.add_keypoints(row_idx, keypoints.iter().map(|[dx, dy]| Point { x: x + dx, y: y + dy }));
                    }
                }
            }
        }
        Ok(())
    }

    fn has_free_sizes(&self) -> bool {
        true
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.5, iou: 0.3, method: NmsMethod::Weighted, ..Default::default() }
    }
}

fn n_rows(layout: &[Cells], input: Size) -> usize {
    layout.iter().map(|&(stride, n_each)| Grid::new(input, stride).n_cells() * n_each).sum()
}

/// Finds the outputs and the grids. If the number of rows is dynamic, returns the first entry of [`LAYOUTS`] that the input size permits.
fn find<P: Port>(outputs: &[P], input: Size) -> Result<Found> {
    let has_keypoints = |n_columns: usize| {
        n_columns == usize::MAX || (n_columns >= N_LEADING && n_columns.is_multiple_of(2) && n_columns <= N_LEADING + 2 * MAX_KEYPOINTS)
    };
    // An input whose size is not a multiple of the largest stride has no such grids.
    let fits = |layout: &&[Cells]| {
        let stride = layout[layout.len() - 1].0;
        let is_whole = input.width.is_multiple_of(stride) && input.height.is_multiple_of(stride) && input.width > 0 && input.height > 0;
        let n_rows = n_rows(layout, input);
        is_whole && outputs.iter().all(|port| port.shape().len() == 3 && !differs(port.shape()[1], n_rows))
    };
    let found = || {
        let layout = LAYOUTS.into_iter().find(fits)?;
        let (boxes, scores) = match outputs {
            [one, other] if has_keypoints(one.shape()[2]) && !differs(other.shape()[2], 1) => (0, 1),
            [one, other] if has_keypoints(other.shape()[2]) && !differs(one.shape()[2], 1) => (1, 0),
            _ => return None,
        };
        Some(Found { boxes, scores, layout })
    };
    found().ok_or_else(|| {
        let counts = LAYOUTS.map(|layout| n_rows(layout, input).to_string()).join(", ");
        let expected = format!("outputs [1, N, 4 + 2 * keypoints] and [1, N, 1], where N is one of {counts} for an input of {input}");
        unexpected("blazeface", expected, outputs)
    })
}

#[cfg(test)]
mod tests {
    use crate::decode::Output;
    use crate::decode::tests::{boxes, decoder};
    use crate::decode::{Decoder, Results};
    use crate::frame::{Point, Rect, Size};

    #[test]
    fn published_models_are_recognized_by_their_rows() {
        let check = |side: u32, n_rows: usize, n_columns: usize| {
            decoder("blazeface", "")
                .check(&[("regressors", &[1, n_rows, n_columns]), ("classificators", &[1, n_rows, 1])], Size::new(side, side))
        };
        for (side, n_rows, n_columns) in
            [(128, 896, 16), (256, 896, 16), (192, 2304, 16), (192, 2016, 18), (256, 2944, 18), (224, 2254, 12)]
        {
            assert_eq!(check(side, n_rows, n_columns), Ok(1), "{side}, {n_rows}");
        }
        for (side, n_rows, n_columns) in [(128, 895, 16), (192, 896, 16), (128, 896, 15), (128, 896, 3)] {
            let message = check(side, n_rows, n_columns).unwrap_err().to_string();
            assert!(message.contains("[1, N, 4 + 2 * keypoints]") && message.contains(&format!("{side}x{side}")), "{message}");
        }
    }

    #[test]
    fn boxes_and_keypoints_are_relative_to_the_cell() {
        let input = Size::new(32, 32);
        // 4x4 cells with two rows, then 2x2 cells with six rows. The rows of an object are in column 1, line 0 of the second grid.
        const N_ROWS: usize = 4 * 4 * 2 + 2 * 2 * 6;
        let row = 32 + 6 + 4;
        let (mut regressors, mut logits) = ([0.0; 6 * N_ROWS], [-100.0; N_ROWS]);
        regressors[6 * row..][..6].copy_from_slice(&[1.0, 2.0, 10.0, 6.0, -1.0, 3.0]);
        logits[row] = 3_f32.ln();
        let regressors = Output { name: "regressors", shape: &[1, N_ROWS, 6], data: &regressors };
        let logits = Output { name: "classificators", shape: &[1, N_ROWS, 1], data: &logits };
        for outputs in [[regressors, logits], [logits, regressors]] {
            let decoder = decoder("blazeface", "");
            let found = boxes(&*decoder, &outputs, input);
            assert_eq!((found.len(), found[0].rect, found[0].row), (1, Rect::from_center(25.0, 10.0, 10.0, 6.0), row as u32));
            assert!((found[0].score - 0.75).abs() < 1e-6, "{found:?}");
            let mut results = Results::default();
            Decoder::decode(&*decoder, &outputs, input, &mut results).unwrap();
            assert_eq!(results.keypoints(&found[0]), [Point { x: 23.0, y: 11.0 }]);
        }
    }
}
