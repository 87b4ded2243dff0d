//! Makes an area of a frame unrecognizable: it keeps only the mean colors of coarse cells.

use crate::draw::{Area, Canvas, Inside};
use crate::frame::{ComponentPlace, PixelFormat};

/// How an area is made unrecognizable. Both keep the same information: one mean color for each cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// The colors between the centers of the cells are interpolated.
    Blur,
    /// Each cell has one color.
    Pixelate,
}

/// The mean values of the cells of an area.
struct Cells {
    columns: usize,
    rows: usize,
    /// Width and height of a cell, in samples.
    cell: (usize, usize),
    means: Vec<u32>,
}

impl Canvas<'_> {
    /// Makes the pixels of `area` unrecognizable for which `is_inside` returns true. Opacity stays unchanged.
    ///
    /// `cell` is the side of a cell in pixels, at least 2; it is rounded up to an even number. With subsampled chroma, the area grows to
    /// whole chroma samples. Pixels outside this area are not changed.
    pub fn obscure(&mut self, area: Area, manner: Manner, cell: u32, is_inside: Option<&dyn Fn(usize, usize) -> bool>) {
        let (of_width, of_height) = self.format.chroma_pixels();
        let grown = |value: i64, add: i64, pixels: usize| if pixels == 2 { value.saturating_add(add) & !1 } else { value };
        let area = Area {
            x_min: grown(area.x_min, 0, of_width),
            y_min: grown(area.y_min, 0, of_height),
            x_max: grown(area.x_max, 1, of_width),
            y_max: grown(area.y_max, 1, of_height),
        };
        let Some(inside) = area.cut(self.size) else { return };
        let cell = (cell.max(2) as usize).next_multiple_of(2);
        let n_components = if self.format == PixelFormat::Gray8 { 1 } else { 3 };
        for component in self.format.components().into_iter().take(n_components) {
            let (nx, ny) = component.n_pixels;
            let Inside { x_min, y_min, x_max, y_max } = inside;
            let samples = Inside { x_min: x_min / nx, y_min: y_min / ny, x_max: x_max.div_ceil(nx), y_max: y_max.div_ceil(ny) };
            let cells = self.means(&component, samples, (cell / nx, cell / ny));
            self.replace(&component, samples, &cells, manner, is_inside);
        }
    }

    fn means(&self, component: &ComponentPlace, area: Inside, cell: (usize, usize)) -> Cells {
        let (columns, rows) = ((area.x_max - area.x_min).div_ceil(cell.0), (area.y_max - area.y_min).div_ceil(cell.1));
        let mut sums = vec![0_u64; columns * rows];
        let plane = &self.planes[component.plane_idx];
        let (is_wide, low_bits) = (self.format.depth() > 8, self.format.n_low_bits());
        for y in area.y_min..area.y_max {
            let row = &plane.bytes[y * plane.row_stride_bytes + component.offset_bytes..];
            let sums = &mut sums[(y - area.y_min) / cell.1 * columns..][..columns];
            for (column, sum) in sums.iter_mut().enumerate() {
                let begin = area.x_min + column * cell.0;
                let samples = (begin..(begin + cell.0).min(area.x_max)).map(|x| x * component.stride_bytes);
                *sum += if is_wide {
                    samples.map(|at| u64::from(u16::from_le_bytes([row[at], row[at + 1]]) >> low_bits)).sum::<u64>()
                } else {
                    samples.map(|at| u64::from(row[at])).sum::<u64>()
                };
            }
        }
        let extent = |idx: usize, length: usize, cell: usize| cell.min(length - idx * cell) as u64;
        let means = sums.iter().enumerate().map(|(idx, sum)| {
            let n = extent(idx % columns, area.x_max - area.x_min, cell.0) * extent(idx / columns, area.y_max - area.y_min, cell.1);
            ((sum + n / 2) / n) as u32
        });
        Cells { columns, rows, cell, means: means.collect() }
    }

    fn replace(
        &mut self,
        component: &ComponentPlace,
        area: Inside,
        cells: &Cells,
        manner: Manner,
        is_inside: Option<&dyn Fn(usize, usize) -> bool>,
    ) {
        let (is_wide, low_bits) = (self.format.depth() > 8, self.format.n_low_bits());
        let plane = &mut self.planes[component.plane_idx];
        // The two cells of a sample, and the part of the second in 256ths.
        let split = |at: usize, n_cells: usize, cell: usize| {
            if manner == Manner::Pixelate {
                return (at / cell, at / cell, 0);
            }
            let position = (2 * at + 1) as i64 * 128 / cell as i64 - 128;
            let first = position.div_euclid(256);
            let limit = |idx: i64| idx.clamp(0, n_cells as i64 - 1) as usize;
            (limit(first), limit(first + 1), position.rem_euclid(256) as u32)
        };
        let columns: Vec<(usize, usize, u32)> = (0..area.x_max - area.x_min).map(|x| split(x, cells.columns, cells.cell.0)).collect();
        let mut line = vec![0_u32; cells.columns];
        for y in area.y_min..area.y_max {
            let (upper, lower, part) = split(y - area.y_min, cells.rows, cells.cell.1);
            for (column, value) in line.iter_mut().enumerate() {
                *value = cells.means[upper * cells.columns + column] * (256 - part) + cells.means[lower * cells.columns + column] * part;
            }
            let row = &mut plane.bytes[y * plane.row_stride_bytes + component.offset_bytes..];
            for (x, (left, right, part)) in (area.x_min..area.x_max).zip(&columns) {
                let (nx, ny) = component.n_pixels;
                let is_covered = |is_inside: &dyn Fn(usize, usize) -> bool| {
                    (ny * y..ny * y + ny).any(|py| (nx * x..nx * x + nx).any(|px| is_inside(px, py)))
                };
                if is_inside.is_some_and(|is_inside| !is_covered(is_inside)) {
                    continue;
                }
                let value = (line[*left] * (256 - part) + line[*right] * part + (1 << 15)) >> 16;
                let at = x * component.stride_bytes;
                if is_wide {
                    row[at..at + 2].copy_from_slice(&((value as u16) << low_bits).to_le_bytes());
                } else {
                    row[at] = value as u8;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Plane;
    use crate::frame::{Colorimetry, PixelFormat, Size};

    const SIZE: Size = Size::new(67, 45);

    /// Planes with a pattern in which neighbors differ, without gaps between the rows.
    fn pattern(format: PixelFormat) -> ([Vec<u8>; 3], [usize; 3]) {
        let mut strides = [0; 3];
        let planes = [0, 1, 2].map(|plane_idx| {
            if plane_idx >= format.n_planes() {
                return Vec::new();
            }
            let shape = format.plane_shape(plane_idx, SIZE);
            strides[plane_idx] = shape.iter().skip(1).product::<usize>() * format.element().size();
            (0..shape[0] * strides[plane_idx]).map(|idx| (idx * 7919 % 251) as u8).collect()
        });
        (planes, strides)
    }

    fn obscured(format: PixelFormat, area: Area, manner: Manner, mask: Option<&dyn Fn(usize, usize) -> bool>) -> [Vec<u8>; 3] {
        let (mut planes, strides) = pattern(format);
        let [a, b, c] = &mut planes;
        let views = [(a, 0), (b, 1), (c, 2)].map(|(bytes, plane_idx)| Plane { bytes, row_stride_bytes: strides[plane_idx] });
        Canvas::new(format, SIZE, Colorimetry::default(), views).unwrap().obscure(area, manner, 8, mask);
        planes
    }

    /// The pixels whose bytes changed: the top-left pixel of each chroma sample.
    fn changed(format: PixelFormat, planes: &[Vec<u8>; 3]) -> Vec<(usize, usize, usize)> {
        let (before, strides) = pattern(format);
        let mut changed = Vec::new();
        for plane_idx in 0..format.n_planes() {
            for (idx, _) in before[plane_idx].iter().zip(&planes[plane_idx]).enumerate().filter(|(_, (before, after))| before != after) {
                let (x, y, n) = (idx % strides[plane_idx], idx / strides[plane_idx], format.element().size());
                let (of_width, of_height) = format.chroma_pixels();
                changed.push(match plane_idx {
                    0 => (x / format.pixel_bytes(), y, 0),
                    _ if format.has_interleaved_chroma() => (x / (2 * n) * 2, 2 * y, plane_idx),
                    _ => (x / n * of_width, of_height * y, plane_idx),
                });
            }
        }
        changed
    }

    #[test]
    fn pixels_outside_the_box_stay_in_every_format() {
        for format in PixelFormat::ALL {
            for manner in [Manner::Blur, Manner::Pixelate] {
                let changed = changed(format, &obscured(format, Area::at(11, 7, 31, 20), manner, None));
                // With subsampled chroma the box grows to whole samples.
                let (nx, ny) = format.chroma_pixels();
                let (dx, dy) = (nx - 1, ny - 1);
                let within = |(x, y, _): &(usize, usize, usize)| (11 - dx..42).contains(x) && (7 - dy..27 + dy).contains(y);
                assert!(changed.iter().all(within), "{format} {manner:?}: {:?}", changed.iter().find(|pixel| !within(pixel)));
                assert!(changed.len() > 31 * 20 * 9 / 10, "{format} {manner:?}: {} samples changed", changed.len());
                assert!((0..format.n_planes()).all(|plane| changed.iter().any(|(.., of)| *of == plane)), "{format}: all planes change");
            }
        }
    }

    #[test]
    fn a_pixelated_cell_has_one_value_and_a_blur_has_the_same_means() {
        let planes = obscured(PixelFormat::Gray8, Area::at(8, 8, 16, 16), Manner::Pixelate, None);
        let at = |planes: &[Vec<u8>; 3], x: usize, y: usize| planes[0][y * 67 + x];
        let (original, _) = pattern(PixelFormat::Gray8);
        for (column, row) in [(8, 8), (16, 8), (8, 16), (16, 16)] {
            let cell = (0..64).map(|idx| (column + idx % 8, row + idx / 8));
            let sum: u32 = cell.clone().map(|(x, y)| u32::from(at(&original, x, y))).sum();
            assert!(cell.clone().all(|(x, y)| u32::from(at(&planes, x, y)) == (sum + 32) / 64), "cell at ({column}, {row})");
        }
        let blurred = obscured(PixelFormat::Gray8, Area::at(8, 8, 16, 16), Manner::Blur, None);
        let corners = [(8, 8), (23, 8), (8, 23), (23, 23)];
        assert!(corners.iter().all(|(x, y)| at(&blurred, *x, *y) == at(&planes, *x, *y)), "a corner has the mean of its cell");
        let steps = (9..23).map(|x| at(&blurred, x, 12).abs_diff(at(&blurred, x + 1, 12))).max().unwrap();
        assert!(steps <= at(&planes, 8, 12).abs_diff(at(&planes, 23, 12)) / 4 + 1, "the change is gradual: {steps}");
    }

    #[test]
    fn only_the_pixels_of_a_mask_change() {
        let mask = |x: usize, y: usize| x + y < 40;
        for format in [PixelFormat::Gray8, PixelFormat::Rgb, PixelFormat::Nv12] {
            let slack = if format.is_subsampled() { 2 } else { 0 };
            let changed = changed(format, &obscured(format, Area::at(10, 10, 30, 30), Manner::Pixelate, Some(&mask)));
            assert!(changed.iter().all(|(x, y, plane)| if *plane == 0 { mask(*x, *y) } else { x + y < 40 + slack }), "{format}");
            assert!(changed.len() > 150, "{format}: {}", changed.len());
        }
    }

    #[test]
    fn opacity_and_padding_stay() {
        let first =
            [PixelFormat::Argb, PixelFormat::Abgr, PixelFormat::Xrgb, PixelFormat::Xbgr, PixelFormat::Ayuv].map(|format| (format, 0));
        let last = [PixelFormat::Rgba, PixelFormat::Bgra, PixelFormat::Rgbx, PixelFormat::Bgrx].map(|format| (format, 3));
        for (format, at) in last.into_iter().chain(first) {
            let (before, after) = (pattern(format).0, obscured(format, Area::at(0, 0, 67, 45), Manner::Blur, None));
            assert!(before[0].iter().zip(&after[0]).skip(at).step_by(4).all(|(before, after)| before == after), "{format}");
        }
    }

    #[test]
    fn boxes_are_clipped_to_the_frame() {
        for format in PixelFormat::ALL {
            for area in [Area::at(-1000, -1000, 5000, 5000), Area::at(60, 40, 99, 99), Area::at(66, 44, 1, 1), Area::at(-5, 3, 2, 2)] {
                for manner in [Manner::Blur, Manner::Pixelate] {
                    obscured(format, area, manner, None);
                }
            }
        }
    }
}
