//! Outlines of masks as polygons, and masks in the run-length format of COCO.
//!
//! [`polygons`] follows the edges between cells inside and outside the object. Then it removes each point whose distance to the line
//! between its neighbors is below a tolerance (Douglas and Peucker, 1973). [`coco_counts`] samples the mask at the centers of the frame's
//! pixels.

use super::{Grid, Point, Size};

/// Whether a cell of a mask belongs to the object.
pub const fn is_inside(probability: u8) -> bool {
    probability >= 128
}

/// Maximum distance of a removed point from the polygon, in cells.
const TOLERANCE: f32 = 0.75;

/// The outlines of a mask in frame coordinates, with the outlines of its holes. The even-odd rule tells which points are inside. Cells that
/// touch only at a corner are separate.
pub fn polygons(mask: &Grid<u8>) -> Vec<Vec<Point>> {
    let (columns, rows) = (mask.columns, mask.rows());
    if columns == 0 || rows == 0 {
        return Vec::new();
    }
    let [origin, right, down] = mask.corners;
    let to_frame = |(x, y): (usize, usize)| {
        let (u, v) = (x as f32 / columns as f32, y as f32 / rows as f32);
        Point {
            x: origin.x + (right.x - origin.x) * u + (down.x - origin.x) * v,
            y: origin.y + (right.y - origin.y) * u + (down.y - origin.y) * v,
        }
    };
    outlines(mask).iter().map(|outline| simplified(outline).into_iter().map(to_frame).collect()).collect()
}

/// The area of the cells inside the object, in pixels of the frame.
pub fn area(mask: &Grid<u8>) -> f32 {
    let [origin, right, down] = mask.corners;
    let (along, across) = ((right.x - origin.x, right.y - origin.y), (down.x - origin.x, down.y - origin.y));
    let n_inside = mask.values.iter().filter(|value| is_inside(**value)).count();
    (along.0 * across.1 - along.1 * across.0).abs() * n_inside as f32 / mask.values.len().max(1) as f32
}

/// The classes of a map, in the order of their indexes. Each class has the fraction of the cells in the frame that belong to it. Cells with
/// a center outside the frame, such as cells of letterbox borders, do not count.
pub fn class_areas(classes: &Grid<u8>, size: Size) -> Vec<(u8, f64)> {
    let (columns, rows) = (classes.columns, classes.rows());
    let [origin, right, down] = classes.corners;
    let (mut counts, mut n_cells) = ([0_u64; 256], 0_u64);
    for (row, cells) in classes.values.chunks_exact(columns.max(1)).enumerate() {
        let v = (row as f32 + 0.5) / rows as f32;
        for (column, class) in cells.iter().enumerate() {
            let u = (column as f32 + 0.5) / columns as f32;
            let x = origin.x + (right.x - origin.x) * u + (down.x - origin.x) * v;
            let y = origin.y + (right.y - origin.y) * u + (down.y - origin.y) * v;
            if (0.0..size.width as f32).contains(&x) && (0.0..size.height as f32).contains(&y) {
                counts[usize::from(*class)] += 1;
                n_cells += 1;
            }
        }
    }
    (0..=255).zip(counts).filter(|(_, count)| *count > 0).map(|(class, count)| (class, count as f64 / n_cells as f64)).collect()
}

/// Corners of the outlines, in units of cells. The object is on the right side of each step.
fn outlines(mask: &Grid<u8>) -> Vec<Vec<(usize, usize)>> {
    /// Steps to the right, down, left and up.
    const STEPS: [(isize, isize); 4] = [(1, 0), (0, 1), (-1, 0), (0, -1)];
    let (columns, rows) = (mask.columns, mask.rows());
    let inside = |x: isize, y: isize| {
        (0..columns as isize).contains(&x) && (0..rows as isize).contains(&y) && is_inside(mask.values[y as usize * columns + x as usize])
    };
    // The two cells in front of a corner, when looking in the direction `to`: the right cell and the left cell.
    let right_front = |x: isize, y: isize, to: usize| [(x, y), (x - 1, y), (x - 1, y - 1), (x, y - 1)][to];
    let left_front = |x: isize, y: isize, to: usize| right_front(x, y, (to + 3) % 4);
    let mut is_used = vec![false; columns * rows];
    let mut found = Vec::new();
    for y in 0..rows as isize {
        for x in 0..columns as isize {
            if !inside(x, y) || inside(x, y - 1) || is_used[y as usize * columns + x as usize] {
                continue;
            }
            // Each outline contains the upper edge of at least one cell, so a search of upper edges finds all outlines.
            let (mut at, mut to, mut outline) = ((x, y), 0, Vec::new());
            loop {
                if to == 0 {
                    let cell = at.1 as usize * columns + at.0 as usize;
                    if is_used[cell] {
                        break;
                    }
                    is_used[cell] = true;
                }
                at = (at.0 + STEPS[to].0, at.1 + STEPS[to].1);
                let (right, left) = (right_front(at.0, at.1, to), left_front(at.0, at.1, to));
                let turned = if !inside(right.0, right.1) {
                    (to + 1) % 4
                } else if inside(left.0, left.1) {
                    (to + 3) % 4
                } else {
                    to
                };
                if turned != to {
                    outline.push((at.0 as usize, at.1 as usize));
                }
                to = turned;
            }
            found.push(outline);
        }
    }
    found
}

/// Removes points of a closed outline that are near the line between the remaining points.
fn simplified(outline: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let n = outline.len();
    if n <= 4 {
        return outline.to_vec();
    }
    let at = |idx: usize| (outline[idx % n].0 as f32, outline[idx % n].1 as f32);
    let squared = |one: (f32, f32), other: (f32, f32)| (one.0 - other.0).powi(2) + (one.1 - other.1).powi(2);
    let farthest = (1..n).max_by(|&one, &other| squared(at(0), at(one)).total_cmp(&squared(at(0), at(other)))).unwrap_or(n / 2);
    let mut is_kept = vec![false; n + 1];
    is_kept[0] = true;
    is_kept[farthest] = true;
    let mut parts = vec![(0, farthest), (farthest, n)];
    while let Some((first, last)) = parts.pop() {
        let (begin, end) = (at(first), at(last));
        let length = squared(begin, end).sqrt().max(f32::MIN_POSITIVE);
        let distance = |idx: usize| {
            let point = at(idx);
            ((end.0 - begin.0) * (begin.1 - point.1) - (begin.0 - point.0) * (end.1 - begin.1)).abs() / length
        };
        let middle = (first + 1..last).max_by(|&one, &other| distance(one).total_cmp(&distance(other)));
        if let Some(middle) = middle.filter(|&middle| distance(middle) > TOLERANCE) {
            is_kept[middle] = true;
            parts.extend([(first, middle), (middle, last)]);
        }
    }
    let kept: Vec<_> = (0..n).filter(|&idx| is_kept[idx]).map(|idx| outline[idx]).collect();
    // Fewer than three points have no area, so a thin object keeps all its points.
    if kept.len() < 3 { outline.to_vec() } else { kept }
}

/// The mask in a frame of this size as COCO writes it: `counts` of an RLE in its compressed form. Runs go down the columns, and alternate
/// between pixels outside and inside. A pixel is inside if its center is.
pub fn coco_counts(mask: &Grid<u8>, size: Size) -> String {
    let (width, height) = (size.width as usize, size.height as usize);
    let corners = mask.corners;
    let last = Point { x: corners[1].x + corners[2].x - corners[0].x, y: corners[1].y + corners[2].y - corners[0].y };
    let all = [corners[0], corners[1], corners[2], last];
    let range = |values: [f32; 4], limit: usize| {
        let (min, max) = values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), value| (min.min(*value), max.max(*value)));
        (min.floor().clamp(0.0, limit as f32) as usize)..(max.ceil().clamp(0.0, limit as f32) as usize)
    };
    let (columns, rows) = (range(all.map(|point| point.x), width), range(all.map(|point| point.y), height));
    let (mut counts, mut is_within, mut n_pixels) = (Vec::new(), false, columns.start * height);
    for x in columns.clone() {
        n_pixels += rows.start;
        for y in rows.clone() {
            let center = Point { x: x as f32 + 0.5, y: y as f32 + 0.5 };
            if mask.at(center).is_some_and(|value| is_inside(*value)) != is_within {
                counts.push(std::mem::take(&mut n_pixels) as i64);
                is_within = !is_within;
            }
            n_pixels += 1;
        }
        if is_within && rows.end < height {
            counts.push(std::mem::take(&mut n_pixels) as i64);
            is_within = false;
        }
        n_pixels += height - rows.end;
    }
    let n_behind = (width - columns.end.max(columns.start)) * height;
    if is_within && n_behind > 0 {
        counts.push(std::mem::take(&mut n_pixels) as i64);
    }
    counts.push((n_pixels + n_behind) as i64);
    compressed(&counts)
}

/// Writes numbers as COCO does, in groups of five bits. From the fourth number on, writes the difference to the number two positions
/// earlier.
fn compressed(counts: &[i64]) -> String {
    let mut text = String::new();
    for (idx, &count) in counts.iter().enumerate() {
        let mut rest = if idx > 2 { count - counts[idx - 2] } else { count };
        loop {
            let bits = (rest & 0x1f) as u8;
            rest >>= 5;
            let is_last = if bits & 0x10 == 0 { rest == 0 } else { rest == -1 };
            text.push(char::from(48 + (bits | if is_last { 0 } else { 0x20 })));
            if is_last {
                break;
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(x: f32, y: f32) -> Point {
        Point { x, y }
    }

    fn mask(rows: &[&str], corners: [Point; 3]) -> Grid<u8> {
        let values: Vec<u8> = rows.iter().flat_map(|row| row.bytes().map(|cell| if cell == b'#' { 255 } else { 0 })).collect();
        Grid { columns: rows[0].len(), values: values.into(), corners }
    }

    /// The area inside the polygons, by the shoelace formula. The areas of holes have the opposite sign.
    fn area_of(polygons: &[Vec<Point>]) -> f32 {
        let edges = polygons.iter().flat_map(|polygon| polygon.iter().zip(polygon.iter().cycle().skip(1)));
        edges.map(|(one, other)| one.x * other.y - other.x * one.y).sum::<f32>() / 2.0
    }

    #[test]
    fn outlines_have_the_area_of_the_cells_and_holes() {
        let whole = [at(10.0, 20.0), at(20.0, 20.0), at(10.0, 28.0)];
        let ring = mask(&["#####", "#...#", "#...#", "#####"], whole);
        let found = polygons(&ring);
        assert_eq!((found.len(), area(&ring)), (2, 14.0 * 4.0));
        assert_eq!(area_of(&found), 56.0);
        assert!(found[0].contains(&at(10.0, 20.0)) && found[0].contains(&at(20.0, 28.0)), "{found:?}");
        let corner = mask(&["#.", ".#"], [at(0.0, 0.0), at(2.0, 0.0), at(0.0, 2.0)]);
        assert_eq!(polygons(&corner).len(), 2, "cells that touch at a corner are separate");
        assert_eq!(polygons(&mask(&["..", ".."], whole)), [] as [Vec<Point>; 0]);
    }

    #[test]
    fn round_shape_needs_few_points() {
        let (n, radius) = (80, 35.0_f32);
        let is_in = |x: usize, y: usize| (x as f32 - 39.5).hypot(y as f32 - 39.5) < radius;
        let values: Vec<u8> = (0..n * n).map(|cell| if is_in(cell % n, cell / n) { 255 } else { 0 }).collect();
        let circle = Grid { columns: n, values: values.into(), corners: [at(0.0, 0.0), at(80.0, 0.0), at(0.0, 80.0)] };
        let found = polygons(&circle);
        let (exact, simple) = (area(&circle), area_of(&found));
        assert!(
            found.len() == 1 && found[0].len() < 80 && (simple - exact).abs() < 0.03 * exact,
            "{} points, {simple} of {exact}",
            found[0].len()
        );
    }

    /// The strings are those of `pycocotools.mask.encode` (2.0.10).
    #[test]
    fn counts_are_those_of_coco() {
        let place = [at(1.0, 1.0), at(4.0, 1.0), at(1.0, 3.0)];
        assert_eq!(coco_counts(&mask(&["##.", ".##"], place), Size::new(6, 5)), COCO_SMALL);
        let outside = [at(-2.0, -1.0), at(4.0, -1.0), at(-2.0, 5.0)];
        assert_eq!(coco_counts(&mask(&["###", "###", "###"], outside), Size::new(6, 5)), COCO_EDGE);
        assert_eq!(coco_counts(&mask(&["#"], [at(3.0, 2.0), at(50.0, 2.0), at(3.0, 90.0)]), Size::new(60, 100)), COCO_LARGE);
        assert_eq!(coco_counts(&mask(&["."], place), Size::new(6, 5)), COCO_NONE);
    }

    const COCO_SMALL: &str = "61410O8";
    const COCO_EDGE: &str = "0d0:";
    const COCO_LARGE: &str = "^9h2<0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000Vo0";
    const COCO_NONE: &str = "n0";
}
