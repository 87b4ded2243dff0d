//! Grids of cells over the input, with one or more rows of an output per cell, as detectors without a list of boxes have them.
//! Knows no scores and no boxes.

use super::Port;
use crate::frame::Size;

/// A grid: cells of `stride` pixels, row by row from the top left. Cells that reach beyond the input count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grid {
    pub(super) stride: u32,
    n_columns: usize,
    n_lines: usize,
}

impl Grid {
    pub(super) fn new(input: Size, stride: u32) -> Self {
        Self { stride, n_columns: input.width.div_ceil(stride) as usize, n_lines: input.height.div_ceil(stride) as usize }
    }

    pub(super) fn n_cells(&self) -> usize {
        self.n_columns * self.n_lines
    }

    /// Column and line of a cell.
    pub(super) fn place(&self, cell_idx: usize) -> (f32, f32) {
        ((cell_idx % self.n_columns) as f32, (cell_idx / self.n_columns) as f32)
    }
}

/// The cells of all grids, in the order of these strides.
pub(super) fn n_cells(input: Size, strides: &[u32]) -> usize {
    strides.iter().map(|&stride| Grid::new(input, stride).n_cells()).sum()
}

/// The grid in which a cell lies, and its index there, where the grids of all strides are listed one after the other.
pub(super) fn find_cell(input: Size, strides: &[u32], cell_idx: usize) -> Option<(Grid, usize)> {
    let mut before = 0;
    strides.iter().map(|&stride| Grid::new(input, stride)).find_map(|grid| {
        let inside = cell_idx.checked_sub(before).filter(|&inside| inside < grid.n_cells());
        before += grid.n_cells();
        inside.map(|inside| (grid, inside))
    })
}

/// The rows of an output `[1, n, n_columns]` or `[n, n_columns]`; `None` if it is another. `usize::MAX` if they are not known.
pub(super) fn n_rows<P: Port>(port: &P, n_columns: usize) -> Option<usize> {
    match *port.shape() {
        [_, n_rows, columns] | [n_rows, columns] if columns == n_columns => Some(n_rows),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_found_in_the_grids_one_after_the_other() {
        let (input, strides) = (Size::new(40, 24), [8, 16]);
        assert_eq!(n_cells(input, &strides), 5 * 3 + 3 * 2);
        let place = |cell_idx| find_cell(input, &strides, cell_idx).map(|(grid, cell_idx)| (grid.stride, grid.place(cell_idx)));
        assert_eq!(place(0), Some((8, (0.0, 0.0))));
        assert_eq!(place(14), Some((8, (4.0, 2.0))));
        assert_eq!(place(15), Some((16, (0.0, 0.0))));
        assert_eq!(place(19), Some((16, (1.0, 1.0))));
        assert_eq!(place(21), None);
    }
}
