//! Scale and offset between two named spaces.

use super::{Point, Rect};

/// Maps points and rectangles of one space to another: `target = source * scale + offset`, per axis.
///
/// Values are named by their spaces, so that names cancel: `box_in_frame = frame_from_input.apply(box_in_input)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transform {
    pub scale: (f32, f32),
    pub offset: (f32, f32),
}

impl Default for Transform {
    fn default() -> Self {
        Self::IDENTITY
    }
}

impl Transform {
    /// Leaves everything where it is.
    pub const IDENTITY: Transform = Transform { scale: (1.0, 1.0), offset: (0.0, 0.0) };

    /// The rectangle in the target space.
    pub fn apply(&self, rect: Rect) -> Rect {
        Rect {
            x: rect.x * self.scale.0 + self.offset.0,
            y: rect.y * self.scale.1 + self.offset.1,
            width: rect.width * self.scale.0,
            height: rect.height * self.scale.1,
        }
    }

    /// The point in the target space.
    pub fn apply_to_point(&self, point: Point) -> Point {
        Point { x: point.x * self.scale.0 + self.offset.0, y: point.y * self.scale.1 + self.offset.1 }
    }

    /// The way back.
    pub fn invert(&self) -> Transform {
        let scale = (1.0 / self.scale.0, 1.0 / self.scale.1);
        Transform { scale, offset: (-self.offset.0 * scale.0, -self.offset.1 * scale.1) }
    }

    /// First this, then a move by `(x, y)` in the target space, as from a region to the frame it lies in.
    pub fn then_move(&self, x: f32, y: f32) -> Transform {
        Transform { scale: self.scale, offset: (self.offset.0 + x, self.offset.1 + y) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inverse_leads_back() {
        let frame_from_input = Transform { scale: (2.0, 4.0), offset: (-8.0, 3.0) };
        let in_input = Rect { x: 5.0, y: 7.0, width: 2.0, height: 3.0 };
        let in_frame = frame_from_input.apply(in_input);
        assert_eq!(in_frame, Rect { x: 2.0, y: 31.0, width: 4.0, height: 12.0 });
        assert_eq!(frame_from_input.invert().apply(in_frame), in_input);
        assert_eq!(frame_from_input.apply_to_point(Point { x: 5.0, y: 7.0 }), Point { x: in_frame.x, y: in_frame.y });
    }
}
