//! Grids of cells over the input, for detectors with output rows per cell. This module does not handle scores or boxes.

use super::Port;
use crate::frame::{Point, Size};

/// A grid of cells of `stride` pixels, in row-major order. Cells at the right and bottom edges may extend beyond the input.
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

    /// Returns the column and the line of a cell.
    pub(super) fn place(&self, cell_idx: usize) -> (f32, f32) {
        ((cell_idx % self.n_columns) as f32, (cell_idx / self.n_columns) as f32)
    }

    /// Converts pairs of x and y, relative to the cell's corner and in units of cells, to points in input pixels.
    pub(super) fn points<'a>(&self, cell_idx: usize, values: &'a [f32]) -> impl Iterator<Item = Point> + 'a {
        let ((column, line), pixels) = (self.place(cell_idx), self.stride as f32);
        values.as_chunks().0.iter().map(move |[x, y]| Point { x: (column + x) * pixels, y: (line + y) * pixels })
    }
}

/// Returns the total number of cells of the grids with these strides.
pub(super) fn n_cells(input: Size, strides: &[u32]) -> usize {
    strides.iter().map(|&stride| Grid::new(input, stride).n_cells()).sum()
}

/// Returns the grid of a cell, and the index of the cell in that grid. `cell_idx` counts the cells of all grids in the order of `strides`.
pub(super) fn find_cell(input: Size, strides: &[u32], cell_idx: usize) -> Option<(Grid, usize)> {
    let mut before = 0;
    strides.iter().map(|&stride| Grid::new(input, stride)).find_map(|grid| {
        let inside = cell_idx.checked_sub(before).filter(|&inside| inside < grid.n_cells());
        before += grid.n_cells();
        inside.map(|inside| (grid, inside))
    })
}

/// Returns the indexes of the outputs with this number of rows and columns. Their shape is `[1, n, columns]` or `[n, columns]`.
pub(super) fn tables<P: Port>(outputs: &[P], n_rows: usize, n_columns: usize) -> impl Iterator<Item = usize> {
    let is_table = move |port: &P| matches!(*port.shape(), [_, rows, columns] | [rows, columns] if (rows, columns) == (n_rows, n_columns));
    (0..outputs.len()).filter(move |&port_idx| is_table(&outputs[port_idx]))
}

/// Returns the index of the output with this number of rows and columns; `None` if there is no such output, or more than one.
pub(super) fn only_table<P: Port>(outputs: &[P], n_rows: usize, n_columns: usize) -> Option<usize> {
    let mut tables = tables(outputs, n_rows, n_columns);
    tables.next().filter(|_| tables.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_indexes_continue_over_the_grids() {
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
