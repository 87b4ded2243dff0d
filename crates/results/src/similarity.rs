//! Similarity transforms (rotation, uniform scale, translation) between two coordinate spaces, such as frame and model input, and their
//! least-squares estimation.

use super::Point;

/// A similarity transform, which preserves angles and proportions: `x' = a x - b y + c`, `y' = b x + a y + d`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Similarity {
    a: f64,
    b: f64,
    c: f64,
    d: f64,
}

impl Similarity {
    /// Returns the transform from `points` to `targets` with the least sum of squared distances between the mapped points and the
    /// targets.
    ///
    /// Source: Umeyama, "Least-Squares Estimation of Transformation Parameters Between Two Point Patterns", 1991. Returns `None` if there
    /// are fewer than two points, if `targets` has another length, if a value is not finite, or if all points or all targets coincide.
    pub fn estimate(points: &[Point], targets: &[Point]) -> Option<Self> {
        if points.len() != targets.len() || points.len() < 2 {
            return None;
        }
        let mean = |points: &[Point]| {
            let n = points.len() as f64;
            let sum = points.iter().fold((0.0, 0.0), |(x, y), point| (x + f64::from(point.x), y + f64::from(point.y)));
            (sum.0 / n, sum.1 / n)
        };
        let (from, to) = (mean(points), mean(targets));
        let (mut along, mut across, mut spread) = (0.0, 0.0, 0.0);
        for (point, target) in points.iter().zip(targets) {
            let (x, y) = (f64::from(point.x) - from.0, f64::from(point.y) - from.1);
            let (u, v) = (f64::from(target.x) - to.0, f64::from(target.y) - to.1);
            along += x * u + y * v;
            across += x * v - y * u;
            spread += x * x + y * y;
        }
        let (a, b) = (along / spread, across / spread);
        let found = Self { a, b, c: to.0 - a * from.0 + b * from.1, d: to.1 - b * from.0 - a * from.1 };
        let is_proper = [found.a, found.b, found.c, found.d].iter().all(|value| value.is_finite()) && a.hypot(b) > 1e-9;
        is_proper.then_some(found)
    }

    /// Maps a point.
    pub fn apply(&self, x: f64, y: f64) -> (f64, f64) {
        (self.a * x - self.b * y + self.c, self.b * x + self.a * y + self.d)
    }

    /// Returns the inverse transform.
    #[must_use]
    pub fn invert(&self) -> Self {
        let square = self.a * self.a + self.b * self.b;
        let (a, b) = (self.a / square, -self.b / square);
        Self { a, b, c: -a * self.c + b * self.d, d: -b * self.c - a * self.d }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(of: &[(f32, f32)]) -> Vec<Point> {
        of.iter().map(|&(x, y)| Point { x, y }).collect()
    }

    #[test]
    fn estimated_transform_maps_points_to_targets() {
        let (targets, angle) = (points(&[(3.0, 4.0), (9.0, 4.5), (6.0, 8.0), (4.0, 11.0), (8.0, 11.5)]), 0.7_f32);
        let turned = |point: &Point| Point {
            x: 5.0 * (angle.cos() * point.x - angle.sin() * point.y) + 100.0,
            y: 5.0 * (angle.sin() * point.x + angle.cos() * point.y) - 20.0,
        };
        let moved: Vec<Point> = targets.iter().map(turned).collect();
        let back = Similarity::estimate(&moved, &targets).unwrap();
        for (from, to) in moved.iter().zip(&targets) {
            let (x, y) = back.apply(from.x.into(), from.y.into());
            assert!((x - f64::from(to.x)).abs() < 1e-4 && (y - f64::from(to.y)).abs() < 1e-4, "{x} {y} {to:?}");
            let (x, y) = back.invert().apply(to.x.into(), to.y.into());
            assert!((x - f64::from(from.x)).abs() < 1e-3 && (y - f64::from(from.y)).abs() < 1e-3, "{x} {y} {from:?}");
        }
    }

    #[test]
    fn estimated_transform_has_no_reflection() {
        let targets = points(&[(0.0, 0.0), (4.0, 0.0), (2.0, 2.0)]);
        let mirrored = points(&[(4.0, 0.0), (0.0, 0.0), (2.0, 2.0)]);
        let found = Similarity::estimate(&mirrored, &targets).unwrap();
        let (from, to) = (found.apply(0.0, 0.0), found.apply(1.0, 0.0));
        let turned = found.apply(0.0, 1.0);
        let area = (to.0 - from.0) * (turned.1 - from.1) - (to.1 - from.1) * (turned.0 - from.0);
        assert!(area > 0.0, "{found:?}");
    }

    #[test]
    fn coinciding_points_have_no_transform() {
        let face = points(&[(1.0, 1.0), (2.0, 1.0), (1.5, 2.0)]);
        for others in [points(&[(5.0, 5.0); 3]), points(&[(f32::NAN, 0.0), (1.0, 1.0), (2.0, 2.0)]), points(&[(1.0, 1.0), (2.0, 2.0)])] {
            assert_eq!(Similarity::estimate(&others, &face), None, "{others:?}");
            assert_eq!(Similarity::estimate(&face, &others), None, "{others:?}");
        }
        assert_eq!(Similarity::estimate(&face[..1], &face[..1]), None);
    }
}
