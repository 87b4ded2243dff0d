//! Rotated boxes: their enclosing boxes, and their overlap for suppression.
//!
//! The overlap is the probabilistic IoU: boxes are Gaussian distributions, and their similarity is 1 minus the Hellinger distance (Llerena
//! et al., "Gaussian Bounding Boxes and Probabilistic Intersection-over-Union for Object Detection", 2021).

use super::RawDetection;
use crate::frame::{Geometry, Outcome, Point, Rect, RotatedRect};

/// A rotated box from center, size, and the angle in radians, clockwise.
pub(super) fn from_radians([x, y, width, height]: [f32; 4], angle: f32) -> RotatedRect {
    RotatedRect { center: Point { x, y }, width, height, angle: angle.to_degrees() }
}

/// The smallest axis-aligned box that contains the rotated box.
pub(super) fn enclosing(rect: &RotatedRect) -> Rect {
    let (sin, cos) = rect.angle.to_radians().sin_cos();
    let (sin, cos) = (sin.abs(), cos.abs());
    let RotatedRect { center, width, height, .. } = *rect;
    Rect::from_center(center.x, center.y, width * cos + height * sin, width * sin + height * cos)
}

/// The rotated box as a result; `None` if it has no area or is not finite.
pub(super) fn outcome(rect: RotatedRect) -> Option<Outcome> {
    let RotatedRect { center, width, height, angle } = rect;
    let is_proper = [center.x, center.y, width, height, angle].iter().all(|value| value.is_finite()) && width > 0.0 && height > 0.0;
    is_proper.then_some(Outcome::Geometry(Geometry::RotatedRect(rect)))
}

/// A box as a Gaussian distribution: center, variances along x and y, covariance.
#[derive(Debug, Clone, Copy)]
struct Gaussian {
    x: f32,
    y: f32,
    a: f32,
    b: f32,
    c: f32,
}

impl Gaussian {
    fn of(rect: &RotatedRect) -> Self {
        let (sin, cos) = rect.angle.to_radians().sin_cos();
        let (along, across) = (rect.width * rect.width / 12.0, rect.height * rect.height / 12.0);
        let (a, b) = (along * cos * cos + across * sin * sin, along * sin * sin + across * cos * cos);
        Self { x: rect.center.x, y: rect.center.y, a, b, c: (along - across) * cos * sin }
    }

    /// The probabilistic IoU, 0 to 1.
    fn iou(&self, other: &Self) -> f32 {
        const EPSILON: f32 = 1e-7;
        let (a, b, c) = (self.a + other.a, self.b + other.b, self.c + other.c);
        let (dx, dy) = (self.x - other.x, self.y - other.y);
        let determinant = a * b - c * c;
        let distance = (a * dy * dy + b * dx * dx) / (determinant + EPSILON) * 0.25 - (c * dx * dy) / (determinant + EPSILON) * 0.5;
        let own = |of: &Self| (of.a * of.b - of.c * of.c).max(0.0);
        let shape = 0.5 * (determinant / (4.0 * (own(self) * own(other)).sqrt() + EPSILON) + EPSILON).ln();
        let bhattacharyya = (distance + shape).clamp(EPSILON, 100.0);
        1.0 - (1.0 - (-bhattacharyya).exp() + EPSILON).sqrt()
    }
}

/// The Gaussian distributions of an image's rotated candidates, sorted by row. NMS uses them to compute the overlap of two candidates.
#[derive(Debug)]
pub struct Overlap(Vec<(u32, Gaussian)>);

impl Overlap {
    pub(super) fn new(boxes: impl Iterator<Item = (u32, RotatedRect)>) -> Self {
        let mut all: Vec<_> = boxes.map(|(row, rect)| (row, Gaussian::of(&rect))).collect();
        all.sort_unstable_by_key(|(row, _)| *row);
        Self(all)
    }

    /// The overlap of two candidates, 0 to 1; NaN counts as 0.
    pub(super) fn of(&self, one: &RawDetection, other: &RawDetection) -> f32 {
        let of_row = |row: u32| self.0.binary_search_by_key(&row, |(row, _)| *row).ok().map(|idx| self.0[idx].1);
        match (of_row(one.row), of_row(other.row)) {
            (Some(one), Some(other)) => one.iou(&other).max(0.0),
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::f32::consts::PI;

    use super::*;

    #[test]
    fn enclosing_box_contains_all_corners() {
        for (degrees, expected) in [(0.0, [20.0, 10.0]), (90.0, [10.0, 20.0]), (-90.0, [10.0, 20.0]), (45.0, [21.2132, 21.2132])] {
            let rect = enclosing(&from_radians([50.0, 40.0, 20.0, 10.0], degrees * PI / 180.0));
            let center = (rect.x + rect.width / 2.0, rect.y + rect.height / 2.0);
            assert!((rect.width - expected[0]).abs() < 1e-3 && (rect.height - expected[1]).abs() < 1e-3, "{degrees}: {rect:?}");
            assert!((center.0 - 50.0).abs() < 1e-3 && (center.1 - 40.0).abs() < 1e-3, "{degrees}: {rect:?}");
        }
    }

    #[test]
    fn overlap_falls_with_distance_and_with_the_angle() {
        let of = |x: f32, angle: f32| Gaussian::of(&from_radians([x, 0.0, 30.0, 6.0], angle));
        let own = of(0.0, 0.3);
        let ious = [of(0.0, 0.3), of(2.0, 0.3), of(12.0, 0.3), of(500.0, 0.3)].map(|other| own.iou(&other));
        assert!(ious[0] > 0.99 && ious.is_sorted_by(|one, other| one > other) && ious[3] < 0.01, "{ious:?}");
        let turned = own.iou(&of(0.0, 0.3 + PI / 2.0));
        assert!(turned < 0.5, "{turned}");
        assert!((own.iou(&of(0.0, 0.3 + PI)) - ious[0]).abs() < 1e-3, "a half turn is the same box");
    }
}
