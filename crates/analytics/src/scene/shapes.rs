//! Lines, polygons and the mapping of the image to the ground. All coordinates are in pixels.

use roiflow_results::polygon::{self, edges};

use crate::frame::Point;

/// Signed distance of a point from the line through `a` and `b`, in pixels. It is negative on the left side, seen from `a` towards `b`. `a`
/// and `b` must differ.
pub(super) fn signed_distance(a: Point, b: Point, point: Point) -> f32 {
    let (x, y) = (b.x - a.x, b.y - a.y);
    (x * (point.y - a.y) - y * (point.x - a.x)) / x.hypot(y)
}

/// Where the path from `from` to `to` meets the line through `a` and `b`, as a fraction of the way from `a` to `b`. `None` if the path is
/// parallel to the line.
pub(super) fn meeting_point(a: Point, b: Point, from: Point, to: Point) -> Option<f32> {
    let (x, y) = (b.x - a.x, b.y - a.y);
    let (path_x, path_y) = (to.x - from.x, to.y - from.y);
    let determinant = x * path_y - y * path_x;
    (determinant.abs() > f32::EPSILON).then(|| ((from.x - a.x) * path_y - (from.y - a.y) * path_x) / determinant)
}

/// Whether two segments have a common point.
fn segments_meet(a: Point, b: Point, from: Point, to: Point) -> bool {
    let is_within = |share: Option<f32>| share.is_some_and(|share| (0.0..=1.0).contains(&share));
    is_within(meeting_point(a, b, from, to)) && is_within(meeting_point(from, to, a, b))
}

/// Distance of a point from the border of a polygon.
pub(super) fn border_distance(polygon: &[Point], point: Point) -> f32 {
    let distance = |(a, b): (Point, Point)| {
        let (x, y) = (b.x - a.x, b.y - a.y);
        let length = x * x + y * y;
        let share = if length > 0.0 { (((point.x - a.x) * x + (point.y - a.y) * y) / length).clamp(0.0, 1.0) } else { 0.0 };
        (point.x - a.x - share * x).hypot(point.y - a.y - share * y)
    };
    edges(polygon).map(distance).fold(f32::INFINITY, f32::min)
}

/// Whether a polygon encloses an area, by the even-odd rule.
///
/// A polygon without crossing edges has an ear (Meisters, 1975): a corner whose triangle with its two neighbors is inside. Of a polygon with
/// crossing edges, a part of such a triangle is inside, or its signed area is not 0.
pub(super) fn has_area(corners: &[Point]) -> bool {
    const WEIGHTS: [[f32; 3]; 4] = [[1.0, 1.0, 1.0], [3.0, 1.0, 1.0], [1.0, 3.0, 1.0], [1.0, 1.0, 3.0]];
    let around = |idx: usize| corners[idx % corners.len()];
    let extent = corners.iter().flat_map(|corner| [(corner.x - corners[0].x).abs(), (corner.y - corners[0].y).abs()]).fold(0.0, f32::max);
    // Rounding errors are smaller.
    let least = extent * extent * 1e-5;
    let triangle = |[a, b, c]: [Point; 3]| ((b.x - a.x) * (c.y - a.y) - (c.x - a.x) * (b.y - a.y)) / 2.0;
    let signed: f32 = (1..corners.len().saturating_sub(1)).map(|idx| triangle([corners[0], corners[idx], corners[idx + 1]])).sum();
    signed.abs() > least
        || (0..corners.len()).map(|idx| [around(idx), around(idx + 1), around(idx + 2)]).any(|ear| {
            triangle(ear).abs() > least
                && WEIGHTS.iter().any(|weights| {
                    let sum: f32 = weights.iter().sum();
                    let of =
                        |value: fn(&Point) -> f32| ear.iter().zip(weights).map(|(point, weight)| value(point) * weight).sum::<f32>() / sum;
                    polygon::contains(corners, Point { x: of(|point| point.x), y: of(|point| point.y) })
                })
        })
}

/// Whether the path between two points outside a polygon leads through the polygon.
pub(super) fn leads_through(polygon: &[Point], from: Point, to: Point) -> bool {
    edges(polygon).filter(|(a, b)| segments_meet(*a, *b, from, to)).count() >= 2
}

/// Maps points of the image to the ground plane: a homography.
///
/// Source: Hartley and Zisserman, "Multiple View Geometry in Computer Vision", section 4.1 (the direct linear transformation of four
/// points).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ground {
    /// The matrix, row by row; its last element is 1.
    matrix: [f64; 9],
    /// The center of the four points of the image. The matrix has its origin there, so that the depth of all four points is positive.
    center: (f64, f64),
}

/// Whether three of the points are on one line.
fn has_line(points: &[Point; 4]) -> bool {
    [(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)].into_iter().any(|(a, b, c)| {
        let [(x, y), (u, v)] = [b, c].map(|to: usize| (points[to].x - points[a].x, points[to].y - points[a].y));
        (x * v - y * u).abs() <= 1e-6 * (x.hypot(y) * u.hypot(v))
    })
}

impl Ground {
    /// Computes the mapping of four points of the image to the ground, in meters. `None` if three of the points are on one line.
    pub fn new(image: [Point; 4], meters: [Point; 4]) -> Option<Self> {
        if has_line(&image) || has_line(&meters) {
            return None;
        }
        let mean = |value: fn(&Point) -> f32| image.iter().map(|point| f64::from(value(point))).sum::<f64>() / 4.0;
        let center = (mean(|point| point.x), mean(|point| point.y));
        let mut rows = [[0.0_f64; 9]; 8];
        for (idx, (from, to)) in image.iter().zip(&meters).enumerate() {
            let [x, y, u, v] = [from.x, from.y, to.x, to.y].map(f64::from);
            let (x, y) = (x - center.0, y - center.1);
            rows[2 * idx] = [x, y, 1.0, 0.0, 0.0, 0.0, -u * x, -u * y, u];
            rows[2 * idx + 1] = [0.0, 0.0, 0.0, x, y, 1.0, -v * x, -v * y, v];
        }
        // Elimination with the largest pivot (Gauss and Jordan).
        for column in 0..8 {
            let pivot = (column..8).max_by(|a, b| rows[*a][column].abs().total_cmp(&rows[*b][column].abs()))?;
            if rows[pivot][column].abs() < 1e-9 {
                return None;
            }
            rows.swap(column, pivot);
            let pivot_row = rows[column];
            for (_, row) in rows.iter_mut().enumerate().filter(|(idx, _)| *idx != column) {
                let factor = row[column] / pivot_row[column];
                row.iter_mut().zip(pivot_row).for_each(|(value, of_pivot)| *value -= factor * of_pivot);
            }
        }
        let mut matrix = [1.0; 9];
        (0..8).for_each(|idx| matrix[idx] = rows[idx][8] / rows[idx][idx]);
        matrix.iter().all(|value| value.is_finite()).then_some(Self { matrix, center })
    }

    /// Maps a point of the image to meters. `None` at and above the horizon.
    pub fn map(&self, point: Point) -> Option<(f64, f64)> {
        let (x, y, m) = (f64::from(point.x) - self.center.0, f64::from(point.y) - self.center.1, &self.matrix);
        let depth = m[6] * x + m[7] * y + m[8];
        (depth > 1e-9).then(|| ((m[0] * x + m[1] * y + m[2]) / depth, (m[3] * x + m[4] * y + m[5]) / depth))
    }
}
