//! Questions about polygons. A polygon is a list of at least three corners; the last corner is connected to the first.

use super::{Point, Rect};

/// Returns the edges of a polygon, each as its two ends.
pub fn edges(polygon: &[Point]) -> impl Iterator<Item = (Point, Point)> {
    polygon.iter().copied().zip(polygon.iter().copied().cycle().skip(1))
}

/// Whether a point is inside a polygon (even-odd rule).
pub fn contains(polygon: &[Point], point: Point) -> bool {
    let is_crossed =
        |(a, b): &(Point, Point)| (a.y > point.y) != (b.y > point.y) && point.x < (b.x - a.x) * (point.y - a.y) / (b.y - a.y) + a.x;
    edges(polygon).filter(is_crossed).count() % 2 == 1
}

/// Whether a polygon and a rectangle have a common point.
pub fn touches(polygon: &[Point], rect: &Rect) -> bool {
    let top_left = Point { x: rect.x, y: rect.y };
    contains(polygon, top_left) || edges(polygon).any(|(a, b)| segment_touches(a, b, rect))
}

/// Whether a part of the segment from `a` to `b` is in the rectangle.
///
/// Source: Liang and Barsky, "A New Concept and Method for Line Clipping", ACM Transactions on Graphics, 1984.
fn segment_touches(a: Point, b: Point, rect: &Rect) -> bool {
    let (x, y) = (b.x - a.x, b.y - a.y);
    let sides = [(-x, a.x - rect.x), (x, rect.x_max() - a.x), (-y, a.y - rect.y), (y, rect.y_max() - a.y)];
    // The part of the segment that is inside of all sides so far, as fractions of its length.
    let (mut begin, mut end) = (0.0_f32, 1.0_f32);
    for (step, distance) in sides {
        match step {
            0.0 if distance < 0.0 => return false,
            0.0 => {}
            step if step < 0.0 => begin = begin.max(distance / step),
            step => end = end.min(distance / step),
        }
    }
    begin <= end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polygon(points: &[(f32, f32)]) -> Vec<Point> {
        points.iter().map(|&(x, y)| Point { x, y }).collect()
    }

    #[test]
    fn point_in_a_notch_is_outside() {
        // The letter U: two columns and a bottom.
        let shape = polygon(&[(0.0, 0.0), (3.0, 0.0), (3.0, 6.0), (6.0, 6.0), (6.0, 0.0), (9.0, 0.0), (9.0, 9.0), (0.0, 9.0)]);
        let at = |x, y| contains(&shape, Point { x, y });
        assert_eq!([at(1.0, 1.0), at(4.5, 1.0), at(4.5, 8.0), at(7.0, 1.0), at(10.0, 8.0)], [true, false, true, true, false]);
    }

    #[test]
    fn rectangle_touches_by_an_edge_a_corner_or_as_a_whole() {
        let triangle = polygon(&[(0.0, 0.0), (10.0, 0.0), (0.0, 10.0)]);
        for (rect, expected) in [
            (Rect::from_corners(1.0, 1.0, 2.0, 2.0), true),     // inside
            (Rect::from_corners(-5.0, -5.0, 20.0, 20.0), true), // around
            (Rect::from_corners(4.0, 4.0, 9.0, 9.0), true),     // cut by the long edge, the top left corner is inside
            (Rect::from_corners(-3.0, 4.0, 1.0, 5.0), true),    // cut by an edge, no corner of the triangle inside
            (Rect::from_corners(6.0, 6.0, 9.0, 9.0), false),    // in the bounding box, but beyond the long edge
            (Rect::from_corners(-3.0, 0.0, -1.0, 10.0), false), // on the left
        ] {
            assert_eq!(touches(&triangle, &rect), expected, "{rect:?}");
        }
    }
}
