//! Shapes other than boxes: keypoints with a skeleton, rotated boxes, polygons, masks and maps. Coordinates are pixels of a coordinate
//! space, and can be mapped to another coordinate space.

use std::sync::Arc;

use super::Point;

/// A shape, or a map of values.
#[derive(Debug, Clone, PartialEq)]
pub enum Geometry {
    /// Keypoints of a pose, a face or a hand.
    Keypoints(Keypoints),
    /// A rotated box, for example of text or in aerial images.
    RotatedRect(RotatedRect),
    /// Outlines of a shape, filled by the even-odd rule: points inside an odd number of outlines belong to the shape.
    Polygons(Vec<Vec<Point>>),
    /// Mask: the probability of each cell that it belongs to the object. Values 0 to 255 represent 0 to 1. Cells of 128 or more
    /// belong to the object.
    Mask(Grid<u8>),
    /// Semantic segmentation: class index of each cell.
    ClassMap {
        classes: Grid<u8>,
        /// Labels of the classes; may be empty.
        labels: Arc<[Arc<str>]>,
    },
    /// A number per cell, such as a depth map or a heat map.
    ValueMap(Grid<f32>),
}

/// The keypoints of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct Keypoints {
    /// Keypoints in the order of the model.
    pub points: Vec<Keypoint>,
    /// Names and edges, shared by the objects of a model.
    pub skeleton: Arc<Skeleton>,
}

/// One keypoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Keypoint {
    /// Position; may be outside the frame.
    pub point: Point,
    /// Confidence, 0..=1, if the model outputs a confidence.
    pub confidence: Option<f32>,
}

/// Names and edges of a model's keypoints.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Skeleton {
    /// Names of the keypoints, in order; may be empty.
    pub names: Vec<Arc<str>>,
    /// Pairs of indexes of connected keypoints.
    pub edges: Vec<(u32, u32)>,
}

/// A rotated rectangle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotatedRect {
    pub center: Point,
    pub width: f32,
    pub height: f32,
    /// Clockwise angle from the x axis to the side of length `width`, in degrees (y points down).
    pub angle: f32,
}

/// A grid of cells with values, at any position in the frame and possibly rotated.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid<T> {
    /// Number of cells per row.
    pub columns: usize,
    /// Values in row-major order.
    pub values: Arc<[T]>,
    /// Top left, top right and bottom left corner of the unrotated grid. These are outer corners of the first cell, of the last cell of the
    /// first row, and of the first cell of the last row.
    pub corners: [Point; 3],
}

impl RotatedRect {
    /// Returns the corners in clockwise order. The first is the corner that is top left if the angle is 0.
    pub fn corners(&self) -> [Point; 4] {
        let (sin, cos) = self.angle.to_radians().sin_cos();
        [(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)].map(|(x, y)| {
            let (x, y) = (x * self.width, y * self.height);
            Point { x: self.center.x + x * cos - y * sin, y: self.center.y + x * sin + y * cos }
        })
    }

    /// Maps the midpoints of the sides with `to`, and returns the rectangle through the mapped points. The result is exact if
    /// `to` preserves angles.
    fn map(&self, to: impl Fn(Point) -> Point) -> Self {
        let [top_left, top_right, bottom_right, bottom_left] = self.corners();
        let middle = |one: Point, other: Point| to(Point { x: (one.x + other.x) / 2.0, y: (one.y + other.y) / 2.0 });
        let vector = |from: Point, to: Point| (to.x - from.x, to.y - from.y);
        let along = vector(middle(top_left, bottom_left), middle(top_right, bottom_right));
        let across = vector(middle(top_left, top_right), middle(bottom_left, bottom_right));
        Self {
            center: to(self.center),
            width: along.0.hypot(along.1),
            height: across.0.hypot(across.1),
            angle: along.1.atan2(along.0).to_degrees(),
        }
    }
}

impl<T> Grid<T> {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.values.len().checked_div(self.columns).unwrap_or(0)
    }

    /// Returns the value of the cell at a point; `None` if the point is outside the grid.
    pub fn at(&self, point: Point) -> Option<&T> {
        let [origin, right, down] = self.corners;
        let (along, across) = ((right.x - origin.x, right.y - origin.y), (down.x - origin.x, down.y - origin.y));
        let (x, y) = (point.x - origin.x, point.y - origin.y);
        let area = along.0 * across.1 - along.1 * across.0;
        let (u, v) = ((x * across.1 - y * across.0) / area, (along.0 * y - along.1 * x) / area);
        if !((0.0..1.0).contains(&u) && (0.0..1.0).contains(&v)) {
            return None;
        }
        let (column, row) = ((u * self.columns as f32) as usize, (v * self.rows() as f32) as usize);
        self.values.get(row.min(self.rows() - 1) * self.columns + column.min(self.columns - 1))
    }
}

impl Geometry {
    /// Maps all coordinates with `to`, for example from input to frame space. `to` must map lines to lines. The values of masks and maps
    /// stay the same, but the corners of their grids are mapped.
    pub fn map(&mut self, to: impl Fn(Point) -> Point) {
        match self {
            Self::Keypoints(keypoints) => keypoints.points.iter_mut().for_each(|of| of.point = to(of.point)),
            Self::RotatedRect(rect) => *rect = rect.map(to),
            Self::Polygons(polygons) => polygons.iter_mut().flatten().for_each(|point| *point = to(*point)),
            Self::Mask(Grid { corners, .. })
            | Self::ClassMap { classes: Grid { corners, .. }, .. }
            | Self::ValueMap(Grid { corners, .. }) => {
                corners.iter_mut().for_each(|corner| *corner = to(*corner));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Transform;

    const fn at(x: f32, y: f32) -> Point {
        Point { x, y }
    }

    /// Maps points of an input of 10x20 to a frame of 40x20. The input has the frame's image, rotated clockwise.
    const TURNED: Transform = Transform { scale: (2.0, -2.0), offset: (0.0, 20.0), swaps_axes: true };
    /// Maps points of an input to the part of the frame that the input shows. The part is twice as wide and four times as high as the
    /// input, and begins at (8, -3).
    const STRETCHED: Transform = Transform { scale: (2.0, 4.0), offset: (8.0, -3.0), swaps_axes: false };

    fn mapped(mut geometry: Geometry, transform: Transform) -> Geometry {
        geometry.map(|point| transform.apply_to_point(point));
        geometry
    }

    #[test]
    fn keypoints_and_polygons_are_mapped_point_by_point() {
        let skeleton = Arc::new(Skeleton { names: vec!["nose".into()], edges: vec![] });
        let keypoints =
            |point| Geometry::Keypoints(Keypoints { points: vec![Keypoint { point, confidence: Some(0.5) }], skeleton: skeleton.clone() });
        assert_eq!(mapped(keypoints(at(1.0, 2.0)), STRETCHED), keypoints(at(10.0, 5.0)));
        let polygons = Geometry::Polygons(vec![vec![at(0.0, 0.0), at(1.0, 0.0), at(0.0, 1.0)]]);
        let expected = Geometry::Polygons(vec![vec![at(0.0, 20.0), at(0.0, 18.0), at(2.0, 20.0)]]);
        assert_eq!(mapped(polygons, TURNED), expected);
    }

    #[test]
    fn rotated_box_stays_a_box_after_rotation() {
        let flat = RotatedRect { center: at(4.0, 3.0), width: 4.0, height: 2.0, angle: 0.0 };
        assert_eq!(flat.corners(), [at(2.0, 2.0), at(6.0, 2.0), at(6.0, 4.0), at(2.0, 4.0)]);
        let Geometry::RotatedRect(turned) = mapped(Geometry::RotatedRect(flat), TURNED) else { panic!() };
        assert_eq!((turned.center, turned.width, turned.height, turned.angle), (at(6.0, 12.0), 8.0, 4.0, -90.0));
        let Geometry::RotatedRect(wide) = mapped(Geometry::RotatedRect(flat), STRETCHED) else { panic!() };
        assert_eq!((wide.center, wide.width, wide.height, wide.angle), (at(16.0, 9.0), 8.0, 8.0, 0.0));
    }

    #[test]
    fn mask_values_keep_their_position_in_the_image() {
        // The mask has two rows of four cells. Each cell has 2x3 pixels, and the grid begins at (1, 2).
        let values: Vec<u8> = (0..8).collect();
        let mask = Grid { columns: 4, values: values.into(), corners: [at(1.0, 2.0), at(9.0, 2.0), at(1.0, 8.0)] };
        let (in_input, above) = (at(6.0, 7.0), at(6.0, 1.0));
        assert_eq!((mask.rows(), mask.at(in_input), mask.at(above)), (2, Some(&6), None));
        for transform in [TURNED, STRETCHED] {
            let Geometry::Mask(moved) = mapped(Geometry::Mask(mask.clone()), transform) else { panic!() };
            assert_eq!(moved.at(transform.apply_to_point(in_input)), Some(&6), "{transform:?}");
            assert_eq!(moved.at(transform.apply_to_point(above)), None, "{transform:?}");
        }
    }

    #[test]
    fn maps_are_placed_at_the_image() {
        let corners = [at(0.0, 0.0), at(4.0, 0.0), at(0.0, 4.0)];
        let classes = Geometry::ClassMap {
            classes: Grid { columns: 2, values: [0, 1, 2, 3].into(), corners },
            labels: ["road".into(), "car".into()].into(),
        };
        let Geometry::ClassMap { classes, labels } = mapped(classes, STRETCHED) else { panic!() };
        assert_eq!((classes.at(at(8.5, 12.0)), labels.len()), (Some(&2), 2));
        let depth = Geometry::ValueMap(Grid { columns: 1, values: [0.5, 2.5].into(), corners });
        let Geometry::ValueMap(depth) = mapped(depth, STRETCHED) else { panic!() };
        assert_eq!((depth.at(at(9.0, 0.0)), depth.at(at(15.0, 12.0)), depth.at(at(17.0, 12.0))), (Some(&0.5), Some(&2.5), None));
    }
}
