//! Makes an area of a frame unrecognizable: it keeps only the mean colors of coarse cells.

use crate::draw::{Area, Canvas, Inside};

/// How an area is made unrecognizable. Both keep the same information: one mean color for each cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// The colors between the centers of the cells are interpolated.
    Blur,
    /// Each cell has one color.
    Pixelate,
}

/// The samples of one color component in a plane.
struct Component {
    plane_idx: usize,
    /// Bytes from one sample to the next, and of the first sample in a row.
    step: usize,
    offset: usize,
    /// Pixels per sample and axis: 1, or 2 for subsampled chroma.
    pixels: usize,
}

/// The mean values of the cells of an area.
struct Cells {
    columns: usize,
    rows: usize,
    means: Vec<u32>,
}

impl Canvas<'_> {
    /// Makes the pixels of `area` unrecognizable for which `is_inside` returns true. Opacity stays unchanged.
    ///
    /// `cell` is the side of a cell in pixels, at least 2; it is rounded up to an even number. With subsampled chroma, the area grows to
    /// whole chroma samples. Pixels outside this area are not changed.
    pub fn obscure(&mut self, area: Area, manner: Manner, cell: u32, is_inside: Option<&dyn Fn(usize, usize) -> bool>) {
        let pixels = if self.format.is_subsampled() { 2 } else { 1 };
        let grown = |value: i64, add: i64| if pixels == 2 { value.saturating_add(add) & !1 } else { value };
        let area =
            Area { x_min: grown(area.x_min, 0), y_min: grown(area.y_min, 0), x_max: grown(area.x_max, 1), y_max: grown(area.y_max, 1) };
        let Some(inside) = area.cut(self.size) else { return };
        let cell = (cell.max(2) as usize).next_multiple_of(2);
        for component in self.components() {
            let n = component.pixels;
            let Inside { x_min, y_min, x_max, y_max } = inside;
            let samples = Inside { x_min: x_min / n, y_min: y_min / n, x_max: x_max.div_ceil(n), y_max: y_max.div_ceil(n) };
            let cells = self.means(&component, samples, cell / n);
            self.replace(&component, samples, &cells, (manner, cell / n), is_inside);
        }
    }

    fn components(&self) -> Vec<Component> {
        let n = self.format.element().size();
        if let Some(offsets) = self.format.rgb_offsets() {
            let step = self.format.pixel_bytes();
            return offsets.map(|offset| Component { plane_idx: 0, step, offset, pixels: 1 }).into();
        }
        let luma = Component { plane_idx: 0, step: n, offset: 0, pixels: 1 };
        let chroma = [0, 1].map(|component| {
            let (plane_idx, step, offset) = self.chroma_place(component);
            Component { plane_idx, step: step * n, offset: offset * n, pixels: 2 }
        });
        std::iter::once(luma).chain(chroma.into_iter().filter(|_| self.format.is_subsampled())).collect()
    }

    fn means(&self, component: &Component, area: Inside, cell: usize) -> Cells {
        let (columns, rows) = ((area.x_max - area.x_min).div_ceil(cell), (area.y_max - area.y_min).div_ceil(cell));
        let mut sums = vec![0_u64; columns * rows];
        let plane = &self.planes[component.plane_idx];
        let (is_wide, low_bits) = (self.format.depth() > 8, self.format.n_low_bits());
        for y in area.y_min..area.y_max {
            let row = &plane.bytes[y * plane.row_stride_bytes + component.offset..];
            let sums = &mut sums[(y - area.y_min) / cell * columns..][..columns];
            for (column, sum) in sums.iter_mut().enumerate() {
                let begin = area.x_min + column * cell;
                let samples = (begin..(begin + cell).min(area.x_max)).map(|x| x * component.step);
                *sum += if is_wide {
                    samples.map(|at| u64::from(u16::from_le_bytes([row[at], row[at + 1]]) >> low_bits)).sum::<u64>()
                } else {
                    samples.map(|at| u64::from(row[at])).sum::<u64>()
                };
            }
        }
        let extent = |idx: usize, length: usize| cell.min(length - idx * cell) as u64;
        let means = sums.iter().enumerate().map(|(idx, sum)| {
            let n = extent(idx % columns, area.x_max - area.x_min) * extent(idx / columns, area.y_max - area.y_min);
            ((sum + n / 2) / n) as u32
        });
        Cells { columns, rows, means: means.collect() }
    }

    fn replace(
        &mut self,
        component: &Component,
        area: Inside,
        cells: &Cells,
        (manner, cell): (Manner, usize),
        is_inside: Option<&dyn Fn(usize, usize) -> bool>,
    ) {
        let (is_wide, low_bits) = (self.format.depth() > 8, self.format.n_low_bits());
        let plane = &mut self.planes[component.plane_idx];
        // The two cells of a sample, and the part of the second in 256ths.
        let split = |at: usize, n_cells: usize| {
            if manner == Manner::Pixelate {
                return (at / cell, at / cell, 0);
            }
            let position = (2 * at + 1) as i64 * 128 / cell as i64 - 128;
            let first = position.div_euclid(256);
            let limit = |idx: i64| idx.clamp(0, n_cells as i64 - 1) as usize;
            (limit(first), limit(first + 1), position.rem_euclid(256) as u32)
        };
        let columns: Vec<(usize, usize, u32)> = (0..area.x_max - area.x_min).map(|x| split(x, cells.columns)).collect();
        let mut line = vec![0_u32; cells.columns];
        for y in area.y_min..area.y_max {
            let (upper, lower, part) = split(y - area.y_min, cells.rows);
            for (column, value) in line.iter_mut().enumerate() {
                *value = cells.means[upper * cells.columns + column] * (256 - part) + cells.means[lower * cells.columns + column] * part;
            }
            let row = &mut plane.bytes[y * plane.row_stride_bytes + component.offset..];
            for (x, (left, right, part)) in (area.x_min..area.x_max).zip(&columns) {
                let n = component.pixels;
                let is_covered =
                    |is_inside: &dyn Fn(usize, usize) -> bool| (n * y..n * y + n).any(|py| (n * x..n * x + n).any(|px| is_inside(px, py)));
                if is_inside.is_some_and(|is_inside| !is_covered(is_inside)) {
                    continue;
                }
                let value = (line[*left] * (256 - part) + line[*right] * part + (1 << 15)) >> 16;
                let at = x * component.step;
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
                changed.push(match plane_idx {
                    0 => (x / format.pixel_bytes(), y, 0),
                    _ if format.has_interleaved_chroma() => (x / (2 * n) * 2, 2 * y, plane_idx),
                    _ => (x / n * 2, 2 * y, plane_idx),
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
                let slack = usize::from(format.is_subsampled());
                let within = |(x, y, _): &(usize, usize, usize)| (11 - slack..42).contains(x) && (7 - slack..27 + slack).contains(y);
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
        for format in [PixelFormat::Rgba, PixelFormat::Bgra, PixelFormat::Rgbx, PixelFormat::Bgrx] {
            let (before, after) = (pattern(format).0, obscured(format, Area::at(0, 0, 67, 45), Manner::Blur, None));
            assert!(before[0].iter().zip(&after[0]).skip(3).step_by(4).all(|(before, after)| before == after), "{format}");
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
