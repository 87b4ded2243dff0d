//! Masks of objects, from prototypes and coefficients (YOLACT, Bolya et al. 2019) or from a map per object.
//!
//! A mask has one cell for each pixel of the input inside the box. Only the values inside the box are computed, so the time and the memory
//! depend on the sizes of the boxes. Values are interpolated bilinearly between the centers of the map's cells, as `interpolate` of PyTorch
//! without `align_corners`. Then they become probabilities.

use std::sync::LazyLock;

use super::activate::sigmoid;
use super::{Output, Port, only};
use crate::frame::{Geometry, Grid, Outcome, Point, Rect, Size};

/// Meaning of the values in a mask map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    /// Values before the sigmoid: an object covers the cells with values of 0 or more.
    Logits,
    /// Probabilities: an object covers the cells with values of 0.5 or more.
    Probabilities,
}

/// A map of values over the whole input, or over a box.
#[derive(Debug, Clone, Copy)]
pub(super) struct MapShape {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl MapShape {
    /// Returns the shape of a map: the last two axes of an output.
    pub(super) fn of(shape: &[usize]) -> Option<Self> {
        match *shape {
            [.., rows, columns] if rows > 0 && columns > 0 => Some(Self { rows, columns }),
            _ => None,
        }
    }
}

/// Index of the output `[1, n, rows, columns]` with prototypes. `None` if there is no such output, or several.
pub(super) fn find_prototypes<P: Port>(outputs: &[P]) -> Option<usize> {
    only(outputs, |shape| shape.len() == 4 && shape[1] > 0)
}

/// Buffers that are used for all masks of an image.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// Values of the cells of the map near the box.
    near: Vec<f32>,
    /// `near`, interpolated along the rows.
    wide: Vec<f32>,
}

impl Buffers {
    /// Returns the mask of a box in a map that covers the input. `fill(row, column, buffer)` writes the values of this map row, from this
    /// column on, into the buffer. Returns `None` if the box covers no center of a pixel of the input, or a value is not finite.
    pub(super) fn mask(
        &mut self,
        rect: &Rect,
        input: Size,
        map: MapShape,
        values: Values,
        mut fill: impl FnMut(usize, usize, &mut [f32]),
    ) -> Option<Outcome> {
        let (columns, rows) = (pixels(rect.x, rect.x_max(), input.width)?, pixels(rect.y, rect.y_max(), input.height)?);
        let scale = |cells: usize, extent: u32| cells as f32 / extent as f32;
        let (x_scale, y_scale) = (scale(map.columns, input.width), scale(map.rows, input.height));
        let across: Vec<Tap> = columns.clone().map(|x| Tap::at(x as f32 + 0.5, x_scale, map.columns)).collect();
        let down: Vec<Tap> = rows.clone().map(|y| Tap::at(y as f32 + 0.5, y_scale, map.rows)).collect();
        let values = self.interpolated(&across, &down, values, &mut fill)?;
        let at = |x: usize, y: usize| Point { x: x as f32, y: y as f32 };
        let corners = [at(columns.start, rows.start), at(columns.end, rows.start), at(columns.start, rows.end)];
        Some(Outcome::Geometry(Geometry::Mask(Grid { columns: columns.len(), values: values.into(), corners })))
    }

    /// Like [`Buffers::mask`], for a map that covers the box.
    pub(super) fn mask_of_box(
        &mut self,
        rect: &Rect,
        input: Size,
        map: MapShape,
        values: Values,
        mut fill: impl FnMut(usize, usize, &mut [f32]),
    ) -> Option<Outcome> {
        let (columns, rows) = (pixels(rect.x, rect.x_max(), input.width)?, pixels(rect.y, rect.y_max(), input.height)?);
        let across: Vec<Tap> =
            columns.clone().map(|x| Tap::at(x as f32 + 0.5 - rect.x, map.columns as f32 / rect.width, map.columns)).collect();
        let down: Vec<Tap> = rows.clone().map(|y| Tap::at(y as f32 + 0.5 - rect.y, map.rows as f32 / rect.height, map.rows)).collect();
        let values = self.interpolated(&across, &down, values, &mut fill)?;
        let at = |x: usize, y: usize| Point { x: x as f32, y: y as f32 };
        let corners = [at(columns.start, rows.start), at(columns.end, rows.start), at(columns.start, rows.end)];
        Some(Outcome::Geometry(Geometry::Mask(Grid { columns: columns.len(), values: values.into(), corners })))
    }

    fn interpolated(
        &mut self,
        across: &[Tap],
        down: &[Tap],
        values: Values,
        fill: &mut dyn FnMut(usize, usize, &mut [f32]),
    ) -> Option<Vec<u8>> {
        let (first_column, last_column) = (across.first()?.first, across.last()?.second);
        let (first_row, last_row) = (down.first()?.first, down.last()?.second);
        let (n_near, n_columns) = (last_column - first_column + 1, across.len());
        self.wide.resize((last_row - first_row + 1) * n_columns, 0.0);
        for (row, wide) in (first_row..=last_row).zip(self.wide.chunks_exact_mut(n_columns)) {
            self.near.clear();
            self.near.resize(n_near, 0.0);
            fill(row, first_column, &mut self.near);
            if self.near.iter().any(|value| !value.is_finite()) {
                return None;
            }
            for (value, tap) in wide.iter_mut().zip(across) {
                let (left, right) = (self.near[tap.first - first_column], self.near[tap.second - first_column]);
                *value = left + (right - left) * tap.second_weight;
            }
        }
        let to_byte = Bytes::of(values);
        let mut cells = Vec::with_capacity(n_columns * down.len());
        for tap in down {
            let row = |row: usize| &self.wide[(row - first_row) * n_columns..][..n_columns];
            let pairs = row(tap.first).iter().zip(row(tap.second));
            cells.extend(pairs.map(|(above, below)| to_byte.of_value(above + (below - above) * tap.second_weight)));
        }
        Some(cells)
    }
}

/// The pixels whose left or upper edge is inside the interval, as `crop_mask` of the YOLO packages selects them. `None` if there is none.
fn pixels(min: f32, max: f32, limit: u32) -> Option<std::ops::Range<usize>> {
    let edge = |value: f32| value.ceil().clamp(0.0, limit as f32) as usize;
    let pixels = edge(min)..edge(max);
    (!pixels.is_empty()).then_some(pixels)
}

/// A position in a map, for linear interpolation: the two cells around it, and the weight of the second cell.
#[derive(Debug, Clone, Copy)]
struct Tap {
    first: usize,
    second: usize,
    second_weight: f32,
}

impl Tap {
    /// Returns the tap at the position `place * scale`, in cells. Cell centers are at 0.5, 1.5 and so on. Before the first center, only the
    /// first cell is used; after the last center, only the last cell.
    fn at(place: f32, scale: f32, n_cells: usize) -> Self {
        let place = (place * scale - 0.5).max(0.0);
        let first = (place as usize).min(n_cells - 1);
        let second = (first + 1).min(n_cells - 1);
        Self { first, second, second_weight: (place - first as f32).min(1.0) }
    }
}

/// Conversion of values to probabilities of 0 to 255.
enum Bytes {
    Logits(&'static [u8; Bytes::N]),
    Probabilities,
}

impl Bytes {
    /// Number of table entries. The table covers logits from -8 to 8. Logit 0 is at the beginning of an entry, so no entry contains both
    /// negative and positive logits.
    const N: usize = 4096;
    const PER_UNIT: f32 = Self::N as f32 / 16.0;

    fn of(values: Values) -> Self {
        static TABLE: LazyLock<[u8; Bytes::N]> = LazyLock::new(|| {
            std::array::from_fn(|entry| {
                let logit = (entry as f32 + 0.5) / Bytes::PER_UNIT - 8.0;
                byte_of(sigmoid(logit))
            })
        });
        match values {
            Values::Logits => Self::Logits(&TABLE),
            Values::Probabilities => Self::Probabilities,
        }
    }

    fn of_value(&self, value: f32) -> u8 {
        match self {
            Self::Logits(table) => table[(((value + 8.0) * Self::PER_UNIT) as usize).min(Self::N - 1)],
            Self::Probabilities => byte_of(value),
        }
    }
}

/// Probabilities of 0.5 or more become 128 or more.
fn byte_of(probability: f32) -> u8 {
    (probability * 256.0) as u8
}

/// Adds up prototypes, weighted by the coefficients of an object.
pub(super) fn combine(
    prototypes: &Output<'_>,
    map: MapShape,
    coefficients: impl Iterator<Item = f32>,
    row: usize,
    column: usize,
    values: &mut [f32],
) {
    let planes = prototypes.data.chunks_exact(map.rows * map.columns);
    for (plane, coefficient) in planes.zip(coefficients) {
        let cells = &plane[row * map.columns + column..][..values.len()];
        values.iter_mut().zip(cells).for_each(|(value, cell)| *value += coefficient * cell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(rect: Rect, values: Values, map: MapShape, cells: &[f32]) -> Option<Grid<u8>> {
        let fill = |row: usize, column: usize, values: &mut [f32]| {
            values.copy_from_slice(&cells[row * map.columns + column..][..values.len()]);
        };
        match Buffers::default().mask(&rect, Size::new(8, 4), map, values, fill)? {
            Outcome::Geometry(Geometry::Mask(grid)) => Some(grid),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn mask_covers_the_pixels_of_the_box_inside_the_input() {
        let map = MapShape { rows: 2, columns: 4 };
        let cells = [-4.0, -4.0, 4.0, 4.0, -4.0, -4.0, 4.0, 4.0];
        let found = mask(Rect::from_corners(2.5, -3.0, 100.0, 2.0), Values::Logits, map, &cells).unwrap();
        assert_eq!((found.columns, found.rows()), (5, 2));
        assert_eq!(found.corners, [Point { x: 3.0, y: 0.0 }, Point { x: 8.0, y: 0.0 }, Point { x: 3.0, y: 2.0 }]);
        // Centers of cells are at the pixels 1, 3, 5 and 7. The values at the pixels 3.5 and 4.5 are -2 and 2.
        let expected = [-2.0_f32, 2.0, 4.0, 4.0, 4.0].map(|logit| 256.0 / (1.0 + (-logit).exp()));
        for (value, expected) in found.values.iter().zip(expected.iter().chain(&expected)) {
            assert!((f32::from(*value) - expected).abs() < 1.5, "{:?}", found.values);
        }
        assert_eq!(mask(Rect::from_corners(2.2, 0.0, 2.8, 4.0), Values::Logits, map, &cells), None, "no edge of a pixel");
        assert_eq!(mask(Rect::from_corners(9.0, 0.0, 12.0, 4.0), Values::Logits, map, &cells), None, "outside");
    }

    #[test]
    fn half_is_inside_and_values_that_are_not_finite_give_no_mask() {
        let map = MapShape { rows: 1, columns: 1 };
        let whole = Rect::from_corners(0.0, 0.0, 8.0, 4.0);
        let value = |values, cell: f32| mask(whole, values, map, &[cell]).map(|grid| grid.values[0]);
        assert_eq!([0.0, -1e-3, 1e30, -1e30].map(|logit| value(Values::Logits, logit)), [Some(128), Some(127), Some(255), Some(0)]);
        assert_eq!([0.5, 0.499, 2.0, -1.0].map(|p| value(Values::Probabilities, p)), [Some(128), Some(127), Some(255), Some(0)]);
        assert_eq!([f32::NAN, f32::INFINITY].map(|logit| value(Values::Logits, logit)), [None, None]);
    }
}
