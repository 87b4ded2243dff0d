//! NanoDet, NanoDet-Plus and PicoDet: class scores per cell (after sigmoid), and distances from the cell's point to the four box sides.
//! Each distance is a distribution over bins (Li et al., "Generalized Focal Loss", 2020). The three models differ in the position of the
//! point.

use super::grid::{self, Grid};
use super::{BoxScheme, BoxThresholds, Output, Port, RawDetection, Results, best_class, differs, only, unexpected};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Sides: left, top, right, bottom.
const N_SIDES: usize = 4;
/// Number of bins per side. The bins represent distances of 0 to 7 cells. All published models have this number of bins.
const N_BINS: usize = 8;
const N_DISTANCES: usize = N_SIDES * N_BINS;
/// Strides in pixels, in the order of the grids in an output.
const STRIDES: [u32; 4] = [8, 16, 32, 64];

/// One output `[1, N, classes + 32]` with all grids, or two outputs per grid, `[1, n, classes]` and `[1, n, 32]`.
#[derive(Debug)]
pub(super) struct Gfl {
    name: &'static str,
    /// Number of grids. Their strides are the first entries of [`STRIDES`].
    n_grids: usize,
    /// Position of a cell's point relative to its corner, in cells.
    point: f32,
    iou: f32,
}

pub(super) const NANODET: Gfl = Gfl { name: "nanodet", n_grids: 3, point: 0.5, iou: 0.6 };
pub(super) const NANODET_PLUS: Gfl = Gfl { name: "nanodet-plus", n_grids: 4, point: 0.0, iou: 0.6 };
pub(super) const PICODET: Gfl = Gfl { name: "picodet", n_grids: 4, point: 0.5, iou: 0.5 };

/// Where the rows of the grids are in the outputs.
enum Found {
    /// All grids in one output.
    Together { port: usize },
    /// Indexes of the two outputs of each grid. If a model has fewer grids than [`STRIDES`] has entries, the remaining indexes are not
    /// used.
    Apart { scores: [usize; STRIDES.len()], distances: [usize; STRIDES.len()] },
}

impl BoxScheme for Gfl {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        let n_columns = match self.find(outputs, input)? {
            Found::Together { port } => outputs[port].1[2].saturating_sub(N_DISTANCES),
            Found::Apart { scores, .. } => outputs[scores[0]].1[2],
        };
        Ok(u32::try_from(n_columns).unwrap_or(0))
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let mut n_before = 0;
        match self.find(outputs, input)? {
            Found::Together { port } => {
                let output = &outputs[port];
                let n_classes = output.shape[2] - N_DISTANCES;
                let mut rows = output.data.chunks_exact(output.shape[2]).map(|row| row.split_at(n_classes));
                for stride in self.strides() {
                    let grid = Grid::new(input, *stride);
                    self.take_grid(grid, n_before, rows.by_ref().take(grid.n_cells()), score_min, &mut results.boxes);
                    n_before += grid.n_cells();
                }
            }
            Found::Apart { scores, distances } => {
                for (grid_idx, stride) in self.strides().iter().enumerate() {
                    let grid = Grid::new(input, *stride);
                    let scores = &outputs[scores[grid_idx]];
                    let distances = outputs[distances[grid_idx]].data.chunks_exact(N_DISTANCES);
                    self.take_grid(grid, n_before, scores.data.chunks_exact(scores.shape[2]).zip(distances), score_min, &mut results.boxes);
                    n_before += grid.n_cells();
                }
            }
        }
        Ok(())
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.4, iou: self.iou, ..Default::default() }
    }
}

impl Gfl {
    /// Appends the boxes of one grid, from rows of class scores and distances.
    fn take_grid<'a>(
        &self,
        grid: Grid,
        n_before: usize,
        rows: impl Iterator<Item = (&'a [f32], &'a [f32])>,
        score_min: f32,
        boxes: &mut Vec<RawDetection>,
    ) {
        let pixels = grid.stride as f32;
        for (cell_idx, (scores, distances)) in rows.enumerate() {
            if best_class(scores).1 <= score_min {
                continue;
            }
            let (column, line) = grid.place(cell_idx);
            let (x, y) = ((column + self.point) * pixels, (line + self.point) * pixels);
            let [left, top, right, bottom] = [0, 1, 2, 3].map(|side| mean_bin(&distances[side * N_BINS..][..N_BINS]) * pixels);
            let rect = Rect::from_corners(x - left, y - top, x + right, y + bottom);
            // A cell can result in boxes of several classes.
            for (class_id, &score) in (0..).zip(scores).filter(|(_, score)| **score > score_min) {
                boxes.push(RawDetection { rect, score, class_id, row: (n_before + cell_idx) as u32 });
            }
        }
    }

    fn strides(&self) -> &'static [u32] {
        &STRIDES[..self.n_grids]
    }

    fn find<P: Port>(&self, outputs: &[P], input: Size) -> Result<Found> {
        let strides = self.strides();
        let found = if let [port] = outputs { together(port, input, strides) } else { apart(outputs, input, strides) };
        found.ok_or_else(|| {
            let expected = format!(
                "one output [1, N, classes + 32], or two for each of the strides {strides:?}: [1, n, classes] and [1, n, 32], with a row \
                 per cell of an input of {input}"
            );
            unexpected(self.name, expected, outputs)
        })
    }
}

fn together<P: Port>(port: &P, input: Size, strides: &[u32]) -> Option<Found> {
    let &[_, n_rows, n_columns] = port.shape() else { return None };
    (n_columns > N_DISTANCES && !differs(n_rows, grid::n_cells(input, strides))).then_some(Found::Together { port: 0 })
}

fn apart<P: Port>(outputs: &[P], input: Size, strides: &[u32]) -> Option<Found> {
    if outputs.len() != 2 * strides.len() {
        return None;
    }
    let (mut scores, mut distances) = ([0; STRIDES.len()], [0; STRIDES.len()]);
    let mut n_classes = None;
    for (grid_idx, stride) in strides.iter().enumerate() {
        let n_cells = Grid::new(input, *stride).n_cells();
        let is_of_grid = |shape: &[usize]| shape.len() == 3 && shape[1] == n_cells && shape[2] > 0;
        distances[grid_idx] = only(outputs, |shape| is_of_grid(shape) && shape[2] == N_DISTANCES)?;
        scores[grid_idx] = only(outputs, |shape| is_of_grid(shape) && shape[2] != N_DISTANCES)?;
        let n_columns = outputs[scores[grid_idx]].shape()[2];
        if *n_classes.get_or_insert(n_columns) != n_columns {
            return None;
        }
    }
    Some(Found::Apart { scores, distances })
}

/// Returns the expected bin number: applies softmax to the values, and weights each bin number with the result.
fn mean_bin(values: &[f32]) -> f32 {
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (mut sum, mut weighted) = (0.0, 0.0);
    for (bin_idx, value) in values.iter().enumerate() {
        let weight = (value - max).exp();
        sum += weight;
        weighted += weight * bin_idx as f32;
    }
    weighted / sum
}
