//! Where something is in a frame, beyond a rectangle: keypoints with a skeleton, rotated boxes, polygons, masks and maps. Plain values in
//! the pixels of a space, and how they get to another space.

use std::sync::Arc;

use super::Point;

/// Where something is, or what is at each place.
#[derive(Debug, Clone, PartialEq)]
pub enum Geometry {
    /// The points of a pose, a face, a hand.
    Keypoints(Keypoints),
    /// A box in any direction, as of text or in pictures from above.
    RotatedRect(RotatedRect),
    /// Outlines; points that lie in an odd number of them are inside.
    Polygons(Vec<Vec<Point>>),
    /// How sure it is that a place belongs to the object: 0 to 255 stand for 0 to 1, and 128 or more is inside.
    Mask(Grid<u8>),
    /// The class of each place, as of a semantic segmentation.
    ClassMap {
        classes: Grid<u8>,
        /// The names of the classes; may be empty.
        labels: Arc<[Arc<str>]>,
    },
    /// A number for each place, as of depth or heat.
    ValueMap(Grid<f32>),
}

/// Points that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct Keypoints {
    /// In the model's order.
    pub points: Vec<Keypoint>,
    /// What they are.
    pub skeleton: Arc<Skeleton>,
}

/// One of several points.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Keypoint {
    /// Where it is; may lie outside the frame.
    pub point: Point,
    /// 0..=1, if the model gives it.
    pub confidence: Option<f32>,
}

/// What the points of a model are, the same for all objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Skeleton {
    /// The names of the points in their order; may be empty.
    pub names: Vec<Arc<str>>,
    /// Which points are joined by a line, by their index.
    pub edges: Vec<(u32, u32)>,
}

/// A rectangle in any direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotatedRect {
    pub center: Point,
    pub width: f32,
    pub height: f32,
    /// From the x axis to the side that has the width, in degrees, clockwise as one sees it (y points down).
    pub angle: f32,
}

/// Values at the cells of a grid that lies anywhere in the frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid<T> {
    /// The number of cells in a row.
    pub columns: usize,
    /// Row by row.
    pub values: Arc<[T]>,
    /// The outer corners of the first cell, of the last one of its row, and of the first one of the last row: top left, top right and bottom
    /// left of the grid before it was turned.
    pub corners: [Point; 3],
}

impl RotatedRect {
    /// Its corners, clockwise from the one that is top left without an angle.
    pub fn corners(&self) -> [Point; 4] {
        let (sin, cos) = self.angle.to_radians().sin_cos();
        [(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)].map(|(x, y)| {
            let (x, y) = (x * self.width, y * self.height);
            Point { x: self.center.x + x * cos - y * sin, y: self.center.y + x * sin + y * cos }
        })
    }

    /// The nearest rectangle around the mapped middles of the sides: exact where angles are kept.
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
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.values.len().checked_div(self.columns).unwrap_or(0)
    }

    /// The value at a place of the space in which the corners are; `None` outside of the grid.
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
    /// Brings it to another space, to whose points `to` maps those of this one, lines to lines: as from the input of a model to the frame.
    /// The values of masks and maps stay, the grid moves.
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

    /// An input of 10x20 that shows a frame of 40x20, turned clockwise.
    const TURNED: Transform = Transform { scale: (2.0, -2.0), offset: (0.0, 20.0), swaps_axes: true };
    /// An input that shows a frame twice as wide and four times as high, from (8, -3) on.
    const STRETCHED: Transform = Transform { scale: (2.0, 4.0), offset: (8.0, -3.0), swaps_axes: false };

    fn mapped(mut geometry: Geometry, transform: Transform) -> Geometry {
        geometry.map(|point| transform.apply_to_point(point));
        geometry
    }

    #[test]
    fn keypoints_and_polygons_move_point_by_point() {
        let skeleton = Arc::new(Skeleton { names: vec!["nose".into()], edges: vec![] });
        let keypoints =
            |point| Geometry::Keypoints(Keypoints { points: vec![Keypoint { point, confidence: Some(0.5) }], skeleton: skeleton.clone() });
        assert_eq!(mapped(keypoints(at(1.0, 2.0)), STRETCHED), keypoints(at(10.0, 5.0)));
        let polygons = Geometry::Polygons(vec![vec![at(0.0, 0.0), at(1.0, 0.0), at(0.0, 1.0)]]);
        let expected = Geometry::Polygons(vec![vec![at(0.0, 20.0), at(0.0, 18.0), at(2.0, 20.0)]]);
        assert_eq!(mapped(polygons, TURNED), expected);
    }

    #[test]
    fn a_rotated_box_turns_with_the_image_and_stays_a_box() {
        let flat = RotatedRect { center: at(4.0, 3.0), width: 4.0, height: 2.0, angle: 0.0 };
        assert_eq!(flat.corners(), [at(2.0, 2.0), at(6.0, 2.0), at(6.0, 4.0), at(2.0, 4.0)]);
        let Geometry::RotatedRect(turned) = mapped(Geometry::RotatedRect(flat), TURNED) else { panic!() };
        assert_eq!((turned.center, turned.width, turned.height, turned.angle), (at(6.0, 12.0), 8.0, 4.0, -90.0));
        let Geometry::RotatedRect(wide) = mapped(Geometry::RotatedRect(flat), STRETCHED) else { panic!() };
        assert_eq!((wide.center, wide.width, wide.height, wide.angle), (at(16.0, 9.0), 8.0, 8.0, 0.0));
    }

    #[test]
    fn the_values_of_a_mask_are_where_they_were_in_the_image() {
        // Two rows of four cells of 2x3 pixels from (1, 2) on.
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
    fn maps_lie_where_the_image_lies() {
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
