//! YuNet, the face detector of the OpenCV Zoo, export of 2023.
//!
//! The model has grids with strides of 8, 16 and 32 pixels. Each cell has a class score, objectness, a box and five keypoints. The export
//! of 2022 has other outputs and is not supported.

use super::grid::{Grid, only_table, tables};
use super::{BoxScheme, BoxThresholds, Output, Port, RawDetection, Results, unexpected};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

const STRIDES: [u32; 3] = [8, 16, 32];
/// Number of values of the five keypoints, which have x and y each.
const N_KEYPOINT_COLUMNS: usize = 10;

/// Outputs per grid: `[1, n, 1]` twice (class score and objectness, in any order, because their product is used), `[1, n, 4]` and
/// `[1, n, 10]`.
#[derive(Debug)]
pub(super) struct YuNet;

/// Indexes of the outputs of one grid.
struct Found {
    scores: [usize; 2],
    boxes: usize,
    keypoints: usize,
}

impl BoxScheme for YuNet {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        STRIDES.iter().try_for_each(|&stride| find(outputs, input, Grid::new(input, stride)).map(|_| ())).map(|()| 1)
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let mut n_before = 0;
        for grid in STRIDES.map(|stride| Grid::new(input, stride)) {
            let found = find(outputs, input, grid)?;
            let [one, other] = found.scores.map(|port| outputs[port].data);
            let rows = outputs[found.boxes].data.chunks_exact(4);
            let keypoints = outputs[found.keypoints].data.as_chunks::<N_KEYPOINT_COLUMNS>().0;
            let pixels = grid.stride as f32;
            for (cell_idx, ((row, one), other)) in rows.zip(one).zip(other).enumerate() {
                let score = (one.clamp(0.0, 1.0) * other.clamp(0.0, 1.0)).sqrt();
                if score > score_min {
                    let (column, line) = grid.place(cell_idx);
                    let (x, y) = ((column + row[0]) * pixels, (line + row[1]) * pixels);
                    let rect = Rect::from_center(x, y, row[2].exp() * pixels, row[3].exp() * pixels);
                    results.boxes.push(RawDetection { rect, score, class_id: 0, row: (n_before + cell_idx) as u32 });
                    results.add_keypoints((n_before + cell_idx) as u32, grid.points(cell_idx, &keypoints[cell_idx]));
                }
            }
            n_before += grid.n_cells();
        }
        Ok(())
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.9, iou: 0.3, ..Default::default() }
    }
}

fn find<P: Port>(outputs: &[P], input: Size, grid: Grid) -> Result<Found> {
    let n_cells = grid.n_cells();
    let scores = || {
        let mut scores = tables(outputs, n_cells, 1);
        let both = [scores.next()?, scores.next()?];
        scores.next().is_none().then_some(both)
    };
    let only_of = |n_columns| only_table(outputs, n_cells, n_columns);
    let found = || Some(Found { scores: scores()?, boxes: only_of(4)?, keypoints: only_of(N_KEYPOINT_COLUMNS)? });
    found().ok_or_else(|| {
        let expected = format!(
            "for each of the strides 8, 16 and 32 two outputs [1, n, 1], one output [1, n, 4] and one output [1, n, 10], with one row per cell of an input of {input}"
        );
        unexpected("yunet", expected, outputs)
    })
}
