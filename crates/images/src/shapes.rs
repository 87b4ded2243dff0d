//! Draws geometry on a frame: masks and maps as areas; poses, rotated boxes and polygons as lines.

use crate::draw::{Area, Canvas, PALETTE, Rgb};
use crate::frame::{Geometry, Grid, Keypoints, Point, Rect};

/// Keypoints with a lower confidence, and their edges, are not drawn.
const MIN_CONFIDENCE: f32 = 0.3;

/// Draws the areas of a geometry: masks in `color`, and maps with a color for each class or value. `opacity` is in percent.
pub(crate) fn fill(canvas: &mut Canvas, geometry: &Geometry, color: Rgb, opacity: u32) {
    let part = (opacity * 255 / 100) as u8;
    if part == 0 {
        return;
    }
    match geometry {
        Geometry::Mask(mask) => {
            let ink = canvas.ink(color);
            shade(canvas, mask, ink, |value| if *value >= 128 { part } else { 0 });
        }
        // Class 0 is usually the background, which stays as it is.
        Geometry::ClassMap { classes, .. } => {
            let mut is_present = [false; 256];
            classes.values.iter().for_each(|class| is_present[usize::from(*class)] = true);
            for class in (1..=255_u8).filter(|class| is_present[usize::from(*class)]) {
                let ink = canvas.ink(PALETTE[usize::from(class - 1) % PALETTE.len()]);
                shade(canvas, classes, ink, |value| if *value == class { part } else { 0 });
            }
        }
        // The highest values are the most opaque.
        Geometry::ValueMap(values) => {
            let finite = values.values.iter().filter(|value| value.is_finite());
            let (min, max) = finite.fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), value| (min.min(*value), max.max(*value)));
            let (ink, scale) = (canvas.ink(color), if max > min { f32::from(part) / (max - min) } else { 0.0 });
            shade(canvas, values, ink, |value| ((*value - min) * scale) as u8);
        }
        _ => {}
    }
}

/// Draws the lines and points of a geometry.
pub(crate) fn outline(canvas: &mut Canvas, geometry: &Geometry, color: Rgb, thickness: u32) {
    match geometry {
        Geometry::Keypoints(keypoints) => pose(canvas, keypoints, color, thickness),
        Geometry::RotatedRect(rect) => closed(canvas, &rect.corners(), color, thickness),
        Geometry::Polygons(polygons) => polygons.iter().for_each(|polygon| closed(canvas, polygon, color, thickness)),
        _ => {}
    }
}

fn closed(canvas: &mut Canvas, points: &[Point], color: Rgb, thickness: u32) {
    let ink = canvas.ink(color);
    for (from, to) in points.iter().zip(points.iter().cycle().skip(1)) {
        canvas.line((from.x, from.y), (to.x, to.y), thickness, ink);
    }
}

/// Draws the edges of a skeleton, each in its own color, and then the keypoints.
fn pose(canvas: &mut Canvas, keypoints: &Keypoints, color: Rgb, thickness: u32) {
    let visible = |idx: u32| {
        let of = keypoints.points.get(idx as usize)?;
        of.confidence.is_none_or(|confidence| confidence >= MIN_CONFIDENCE).then_some(of.point)
    };
    for (edge_idx, &(first, second)) in keypoints.skeleton.edges.iter().enumerate() {
        if let (Some(from), Some(to)) = (visible(first), visible(second)) {
            let ink = canvas.ink(PALETTE[edge_idx % PALETTE.len()]);
            canvas.line((from.x, from.y), (to.x, to.y), thickness, ink);
        }
    }
    let (ink, radius) = (canvas.ink(color), thickness as f32);
    for point in (0..keypoints.points.len() as u32).filter_map(visible) {
        let dot = Rect { x: point.x - radius, y: point.y - radius, width: 2.0 * radius, height: 2.0 * radius };
        if let Some(dot) = Area::of(&dot) {
            canvas.fill_rect(dot, ink);
        }
    }
}

/// Blends a color into the pixels whose centers are in a grid. `part` returns the opacity, 0 to 255, for the value of a cell.
fn shade<T>(canvas: &mut Canvas, grid: &Grid<T>, ink: crate::draw::Ink, part: impl Fn(&T) -> u8) {
    let [origin, right, down] = grid.corners;
    let (along, across) = ((right.x - origin.x, right.y - origin.y), (down.x - origin.x, down.y - origin.y));
    let area = along.0 * across.1 - along.1 * across.0;
    let (columns, rows) = (grid.columns, grid.rows());
    if !area.is_finite() || area == 0.0 || columns == 0 || rows == 0 {
        return;
    }
    let last = Point { x: right.x + across.0, y: right.y + across.1 };
    let corners = [origin, right, down, last];
    let range = |values: [f32; 4]| values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), v| (min.min(*v), max.max(*v)));
    let ((x_min, x_max), (y_min, y_max)) = (range(corners.map(|point| point.x)), range(corners.map(|point| point.y)));
    let Some(bounds) = Area::of(&Rect::from_corners(x_min.floor(), y_min.floor(), x_max.ceil(), y_max.ceil())) else { return };
    // Factors that convert the center of a pixel to its position in the grid, in cells.
    let (x_scale, y_scale) = (columns as f32 / area, rows as f32 / area);
    let (ux, uy, vx, vy) = (across.1 * x_scale, -across.0 * x_scale, -along.1 * y_scale, along.0 * y_scale);
    let values = &*grid.values;
    canvas.shade(bounds, ink, |px, py| {
        let (x, y) = (px as f32 + 0.5 - origin.x, py as f32 + 0.5 - origin.y);
        let (column, row) = (x * ux + y * uy, x * vx + y * vy);
        if column < 0.0 || row < 0.0 || column >= columns as f32 || row >= rows as f32 {
            return 0;
        }
        values.get(row as usize * columns + column as usize).map_or(0, &part)
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::draw::Plane;
    use crate::frame::{Colorimetry, Keypoint, PixelFormat, RotatedRect, Size, Skeleton};

    const SIZE: Size = Size::new(40, 30);

    /// The pixels of a gray image, on which the geometry was drawn in white.
    fn drawn(draw: impl Fn(&mut Canvas)) -> Vec<u8> {
        let mut bytes = vec![0_u8; 40 * 30];
        let planes = [Plane { bytes: &mut bytes, row_stride_bytes: 40 }, Plane::default(), Plane::default()];
        draw(&mut Canvas::new(PixelFormat::Gray8, SIZE, Colorimetry::default(), planes).unwrap());
        bytes
    }

    const fn at(x: f32, y: f32) -> Point {
        Point { x, y }
    }

    #[test]
    fn mask_is_blended_into_the_pixels_of_its_cells() {
        let grid = |corners| Geometry::Mask(Grid { columns: 2, values: [255, 0, 0, 255].into(), corners });
        let pixels = drawn(|canvas| fill(canvas, &grid([at(10.0, 10.0), at(20.0, 10.0), at(10.0, 16.0)]), [255; 3], 100));
        let is_lit = |x: usize, y: usize| pixels[y * 40 + x] > 200;
        assert!(is_lit(10, 10) && is_lit(14, 12) && !is_lit(15, 12) && is_lit(15, 13) && is_lit(19, 15) && !is_lit(14, 13));
        assert_eq!(pixels.iter().filter(|pixel| **pixel > 0).count(), 30);
        let half = drawn(|canvas| fill(canvas, &grid([at(10.0, 10.0), at(20.0, 10.0), at(10.0, 16.0)]), [255; 3], 50));
        assert!((100..140).contains(&half[10 * 40 + 10]), "{}", half[10 * 40 + 10]);
        let turned = drawn(|canvas| fill(canvas, &grid([at(20.0, 10.0), at(20.0, 20.0), at(10.0, 10.0)]), [255; 3], 100));
        assert!(turned[11 * 40 + 19] > 200 && turned[19 * 40 + 11] > 200 && turned[11 * 40 + 11] == 0, "rotated by 90 degrees");
    }

    #[test]
    fn lines_join_visible_keypoints_and_corners() {
        let point = |x: f32, y: f32, confidence: f32| Keypoint { point: at(x, y), confidence: Some(confidence) };
        let skeleton = Arc::new(Skeleton { names: vec![], edges: vec![(0, 1), (1, 2), (0, 9)] });
        let pose =
            Geometry::Keypoints(Keypoints { points: vec![point(5.0, 5.0, 0.9), point(30.0, 5.0, 0.9), point(30.0, 25.0, 0.1)], skeleton });
        let pixels = drawn(|canvas| outline(canvas, &pose, [255; 3], 2));
        assert!(pixels[5 * 40 + 18] > 0 && pixels[15 * 40 + 30] == 0, "the third point is not visible");
        let rect = RotatedRect { center: at(20.0, 15.0), width: 20.0, height: 10.0, angle: 90.0 };
        let pixels = drawn(|canvas| outline(canvas, &Geometry::RotatedRect(rect), [255; 3], 2));
        assert!(pixels[15 * 40 + 15] > 0 && pixels[5 * 40 + 20] > 0 && pixels[15 * 40 + 20] == 0);
    }

    #[test]
    fn any_coordinates_are_drawn_in_any_format() {
        let far = [f32::NAN, f32::INFINITY, -1e30, -7.3, 0.0, 13.7, 1e9, 1e30];
        for format in PixelFormat::ALL {
            let mut planes: Vec<Vec<u8>> = (0..3).map(|_| vec![0; 40 * 30 * 8]).collect();
            let [a, b, c] = &mut planes[..] else { unreachable!() };
            let planes = [a, b, c].map(|bytes| Plane { bytes, row_stride_bytes: 160 });
            let mut canvas = Canvas::new(format, SIZE, Colorimetry::default(), planes).unwrap();
            for x in far {
                for y in far {
                    let mask = Grid { columns: 2, values: [255_u8, 255].into(), corners: [at(x, y), at(y, x), at(3.0, y)] };
                    fill(&mut canvas, &Geometry::Mask(mask), [9; 3], 40);
                    let map = Grid { columns: 2, values: [x, y].into(), corners: [at(0.0, 0.0), at(y, 0.0), at(0.0, x)] };
                    fill(&mut canvas, &Geometry::ValueMap(map), [9; 3], 40);
                    outline(&mut canvas, &Geometry::Polygons(vec![vec![at(x, y), at(y, x), at(4.0, 4.0)]]), [9; 3], 3);
                }
            }
        }
    }
}
