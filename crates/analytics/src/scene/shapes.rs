//! Lines, polygons and the mapping of the image to the ground. All coordinates are in pixels.

use roiflow_results::polygon::edges;

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
