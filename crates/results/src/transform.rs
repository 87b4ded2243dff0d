//! Axis-aligned transforms (scale, offset, rotation by multiples of 90 degrees) between two coordinate spaces, such as frame and model
//! input.

use super::{Point, Rect};

/// Maps points and rectangles from a source space to a target space: `target = source * scale + offset`, per axis. If axes are swapped, the
/// target's x is computed from the source's y, and y from x.
///
/// Name variables after their spaces. Then the adjacent names of a correct expression agree:
/// `box_in_frame = frame_from_input.apply(box_in_input)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transform {
    /// Scale of the target's x and y; negative for a mirrored axis.
    pub scale: (f32, f32),
    pub offset: (f32, f32),
    pub swaps_axes: bool,
}

impl Default for Transform {
    fn default() -> Self {
        Self::IDENTITY
    }
}

impl Transform {
    /// The identity transform.
    pub const IDENTITY: Transform = Transform { scale: (1.0, 1.0), offset: (0.0, 0.0), swaps_axes: false };

    /// Maps a rectangle.
    pub fn apply(&self, rect: Rect) -> Rect {
        let corner = self.apply_to_point(Point { x: rect.x, y: rect.y });
        let (width, height) = if self.swaps_axes { (rect.height, rect.width) } else { (rect.width, rect.height) };
        let (width, height) = (width * self.scale.0, height * self.scale.1);
        // On a mirrored axis, the corner with the smaller coordinate is mapped to the larger coordinate, and the extent is
        // negative. So let the result begin at the other end of the extent.
        let first = |corner: f32, extent: f32, scale: f32| if scale < 0.0 { (corner + extent, -extent) } else { (corner, extent) };
        let ((x, width), (y, height)) = (first(corner.x, width, self.scale.0), first(corner.y, height, self.scale.1));
        Rect { x, y, width, height }
    }

    /// Maps a point.
    pub fn apply_to_point(&self, point: Point) -> Point {
        let (x, y) = if self.swaps_axes { (point.y, point.x) } else { (point.x, point.y) };
        Point { x: x * self.scale.0 + self.offset.0, y: y * self.scale.1 + self.offset.1 }
    }

    /// Returns the inverse transform.
    pub fn invert(&self) -> Transform {
        let scale = (1.0 / self.scale.0, 1.0 / self.scale.1);
        let offset = (-self.offset.0 * scale.0, -self.offset.1 * scale.1);
        if self.swaps_axes {
            return Transform { scale: (scale.1, scale.0), offset: (offset.1, offset.0), swaps_axes: true };
        }
        Transform { scale, offset, swaps_axes: false }
    }

    /// Returns the transform that applies this transform, and then a translation by `(x, y)` in the target space. The translation
    /// can map a region to its frame, for example.
    pub fn then_move(&self, x: f32, y: f32) -> Transform {
        Transform { offset: (self.offset.0 + x, self.offset.1 + y), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inverse_undoes_the_transform() {
        let frame_from_input = Transform { scale: (2.0, 4.0), offset: (-8.0, 3.0), swaps_axes: false };
        let in_input = Rect { x: 5.0, y: 7.0, width: 2.0, height: 3.0 };
        let in_frame = frame_from_input.apply(in_input);
        assert_eq!(in_frame, Rect { x: 2.0, y: 31.0, width: 4.0, height: 12.0 });
        assert_eq!(frame_from_input.invert().apply(in_frame), in_input);
        assert_eq!(frame_from_input.apply_to_point(Point { x: 5.0, y: 7.0 }), Point { x: in_frame.x, y: in_frame.y });
    }

    #[test]
    fn rotation_swaps_extents_and_is_invertible() {
        // The input of 10x20 shows a frame of 40x20, rotated clockwise.
        let frame_from_input = Transform { scale: (2.0, -2.0), offset: (0.0, 20.0), swaps_axes: true };
        let in_input = Rect { x: 1.0, y: 3.0, width: 2.0, height: 5.0 };
        let in_frame = frame_from_input.apply(in_input);
        assert_eq!(in_frame, Rect { x: 6.0, y: 14.0, width: 10.0, height: 4.0 });
        assert_eq!(frame_from_input.invert().apply(in_frame), in_input);
        assert_eq!(frame_from_input.apply_to_point(Point { x: 1.0, y: 3.0 }), Point { x: 6.0, y: 18.0 });
    }
}
