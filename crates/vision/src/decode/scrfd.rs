//! SCRFD (Guo et al., 2021), the face detectors of InsightFace.
//!
//! Each anchor has a score, distances from the cell's corner to the four box sides, and optionally five keypoints. Models with the strides
//! 8, 16 and 32 have two anchors per cell. Models with five strides have one anchor per cell.

use super::grid::{Grid, only_table};
use super::{BoxScheme, BoxThresholds, Output, Port, RawDetection, Results, unexpected};
use crate::frame::{Rect, Size};
use crate::tensor::{Error, Result};

/// Number of values of the five keypoints, which have x and y each.
const N_KEYPOINT_COLUMNS: usize = 10;

/// Outputs per grid: `[1, n, 1]`, `[1, n, 4]` and optionally `[1, n, 10]`, or the same without the batch axis.
#[derive(Debug)]
pub(super) struct Scrfd;

/// Properties of a model, which its number of outputs determines.
#[derive(Clone, Copy)]
struct Kind {
    strides: &'static [u32],
    n_anchors: usize,
    has_keypoints: bool,
}

/// Indexes of the outputs of one grid.
struct Found {
    scores: usize,
    boxes: usize,
    keypoints: Option<usize>,
}

impl BoxScheme for Scrfd {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        let kind = kind(outputs, input)?;
        kind.strides.iter().try_for_each(|&stride| find(outputs, input, kind, Grid::new(input, stride)).map(|_| ())).map(|()| 1)
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let kind = kind(outputs, input)?;
        let mut n_before = 0;
        for &stride in kind.strides {
            let grid = Grid::new(input, stride);
            let found = find(outputs, input, kind, grid)?;
            let rows = outputs[found.boxes].data.as_chunks::<4>().0;
            let keypoints = found.keypoints.map(|port| outputs[port].data.as_chunks::<N_KEYPOINT_COLUMNS>().0);
            for (anchor_idx, (&score, row)) in outputs[found.scores].data.iter().zip(rows).enumerate() {
                if score > score_min {
                    let (cell_idx, row_idx) = (anchor_idx / kind.n_anchors, (n_before + anchor_idx) as u32);
                    let (column, line) = grid.place(cell_idx);
                    let pixels = stride as f32;
                    let [left, top, right, bottom] = row.map(|cells| cells * pixels);
                    let (x, y) = (column * pixels, line * pixels);
                    let rect = Rect::from_corners(x - left, y - top, x + right, y + bottom);
                    results.boxes.push(RawDetection { rect, score, class_id: 0, row: row_idx });
                    if let Some(keypoints) = keypoints {
                        results.add_keypoints(row_idx, grid.points(cell_idx, &keypoints[anchor_idx]));
                    }
                }
            }
            n_before += grid.n_cells() * kind.n_anchors;
        }
        Ok(())
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.5, iou: 0.4, ..Default::default() }
    }

    fn takes_unbatched(&self) -> bool {
        true
    }
}

fn kind<P: Port>(outputs: &[P], input: Size) -> Result<Kind> {
    const STRIDES: &[u32] = &[8, 16, 32, 64, 128];
    let (n_strides, n_anchors, has_keypoints) = match outputs.len() {
        6 => (3, 2, false),
        9 => (3, 2, true),
        10 => (5, 1, false),
        15 => (5, 1, true),
        _ => return Err(not_found(outputs, input)),
    };
    Ok(Kind { strides: &STRIDES[..n_strides], n_anchors, has_keypoints })
}

fn find<P: Port>(outputs: &[P], input: Size, kind: Kind, grid: Grid) -> Result<Found> {
    let n_anchors = grid.n_cells() * kind.n_anchors;
    let only_of = |n_columns| only_table(outputs, n_anchors, n_columns);
    let found = || {
        let keypoints = only_of(N_KEYPOINT_COLUMNS);
        (keypoints.is_some() == kind.has_keypoints).then_some(Found { scores: only_of(1)?, boxes: only_of(4)?, keypoints })
    };
    found().ok_or_else(|| not_found(outputs, input))
}

fn not_found<P: Port>(outputs: &[P], input: Size) -> Error {
    let expected = format!(
        "for each of the strides 8, 16 and 32 the outputs [1, n, 1], [1, n, 4] and optionally [1, n, 10], with two rows per cell of an input \
         of {input}; or the same for five strides (8 to 128), with one row per cell"
    );
    unexpected("scrfd", expected, outputs)
}
