//! Picks and buffers the samples of one source row, for all components. Samples that two adjacent rows share are loaded once. This
//! module neither converts nor weights samples.

use super::aligned::Aligned;
use super::image::{Group, Image, Rows};
use super::sample::{Grid, LANES, Picked};
use super::simd::Simd;

/// The buffered samples of one source row, and the plan by which they are picked.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// Positions of the samples. The list has one entry per sample pair of a column, and an entry has one grid per component group.
    grids: Vec<[Grid; 3]>,
    groups: [Group; 3],
    n_groups: usize,
    /// Index of the grid of each group. Groups with the same layout share a grid.
    grid_of_group: [usize; 3],
    /// For each group, the index of the plane row from which the buffered samples were picked.
    rows: [Option<usize>; 3],
    n_pairs: usize,
    /// The buffered sample blocks of the first group, then of the second group, and so on.
    bytes: Aligned<u8>,
    group_begins: [usize; 3],
    /// Number of pieces of each group, per pair.
    n_pieces: [usize; 3],
    /// Index of the first piece for the samples of the first component in the next row, see [`Samples::pick_two`].
    next_begin: usize,
    /// The fields of the same names in [`Picked`].
    begins: [usize; 3],
    steps: [usize; 3],
    pair_steps: [usize; 3],
}

impl Samples {
    /// Prepares the buffers for columns with `n_pairs` sample pairs each, and discards the buffered row. `columns` returns the source
    /// columns of a pair for each column. The number of columns is a multiple of the group size.
    pub(super) fn begin<I: Iterator<Item = [u32; 2]>>(&mut self, image: &Image, n_pairs: usize, columns: impl Fn(usize) -> I, simd: Simd) {
        let sample_bytes = image.sample().n_bytes();
        self.n_pairs = n_pairs;
        self.rows = [None; 3];
        if self.grids.len() < n_pairs {
            self.grids.resize_with(n_pairs, Default::default);
        }
        let (mut end, mut component_idx) = (0, 0);
        self.n_groups = 0;
        for (group_idx, group) in image.groups().enumerate() {
            let spacing = image.spacing(group.first_component);
            let is_like_the_last = group_idx > 0
                && spacing == image.spacing(self.groups[group_idx - 1].first_component)
                && group.offsets() == self.groups[group_idx - 1].offsets();
            self.grid_of_group[group_idx] = if is_like_the_last { self.grid_of_group[group_idx - 1] } else { group_idx };
            let grid_idx = self.grid_of_group[group_idx];
            if !is_like_the_last {
                for (pair_idx, grids) in self.grids.iter_mut().enumerate().take(n_pairs) {
                    let positions = columns(pair_idx).map(|pair| pair.map(|column| spacing.position(column)));
                    grids[grid_idx].set(group, positions, sample_bytes, simd);
                }
            }
            let n_pieces = self.grids[0][grid_idx].n_pieces();
            (self.groups[group_idx], self.group_begins[group_idx], self.n_pieces[group_idx]) = (group, end, n_pieces);
            for slot in 0..group.offsets().len() {
                self.begins[component_idx] = end + 2 * slot;
                (self.steps[component_idx], self.pair_steps[component_idx]) = (group.n_pieces(), n_pieces);
                component_idx += 1;
            }
            end += n_pairs * n_pieces;
            self.n_groups += 1;
        }
        // If the image has a single component, its samples also serve as the other two components.
        for missing_idx in component_idx..3 {
            self.begins[missing_idx] = self.begins[0];
            (self.steps[missing_idx], self.pair_steps[missing_idx]) = (self.steps[0], self.pair_steps[0]);
        }
        self.next_begin = end;
        self.bytes.resize((end + self.n_pieces[0]) * LANES * sample_bytes);
    }

    /// Picks the samples of row `y` and returns them. `N` is the number of bytes per sample.
    pub(super) fn pick<const N: usize>(&mut self, source: Rows<'_>, y: u32, simd: Simd) -> Picked<'_, [u8; N]> {
        let pieces = self.bytes.as_chunks_mut::<N>().0.as_chunks_mut::<LANES>().0;
        for group_idx in 0..self.n_groups {
            let component_idx = self.groups[group_idx].first_component;
            let row_idx = Some(source.row_idx(component_idx, y));
            // Two rows share the samples of a subsampled plane, so the samples may already be in the buffer.
            if self.rows[group_idx] == row_idx {
                continue;
            }
            self.rows[group_idx] = row_idx;
            let (row, grid_idx) = (source.row(component_idx, y), self.grid_of_group[group_idx]);
            let (mut begin, n_pieces) = (self.group_begins[group_idx], self.n_pieces[group_idx]);
            for grids in &mut self.grids[..self.n_pairs] {
                grids[grid_idx].pick(row, &mut pieces[begin..][..n_pieces], simd);
                begin += n_pieces;
            }
        }
        self.picked()
    }

    /// Picks the samples of rows `y` and `y + 1`, which differ in the first component only, and returns them. Requires that
    /// columns have one sample pair.
    pub(super) fn pick_two<const N: usize>(&mut self, source: Rows<'_>, y: u32, simd: Simd) -> [Picked<'_, [u8; N]>; 2] {
        self.pick::<N>(source, y, simd);
        let pieces = self.bytes.as_chunks_mut::<N>().0.as_chunks_mut::<LANES>().0;
        let (row, grid) = (source.row(0, y + 1), &mut self.grids[0][self.grid_of_group[0]]);
        grid.pick(row, &mut pieces[self.next_begin..][..self.n_pieces[0]], simd);
        let picked = self.picked();
        [picked, Picked { begins: [self.next_begin, picked.begins[1], picked.begins[2]], ..picked }]
    }

    fn picked<const N: usize>(&self) -> Picked<'_, [u8; N]> {
        let pieces = self.bytes.as_chunks::<N>().0.as_chunks().0;
        Picked { pieces, begins: self.begins, steps: self.steps, pair_steps: self.pair_steps }
    }
}
