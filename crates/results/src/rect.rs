//! Rectangles and sizes.
//!
//! The origin of coordinates is the top left corner of the top left pixel, and coordinates grow right and down. A rectangle covers the
//! positions `px` with `x <= px < x + width`, and likewise for y. So its area is width times height, without the "+ 1" of inclusive pixel
//! ranges.

use std::fmt;

/// Width and height in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Size {
    pub width: u32,
    pub height: u32,
}

impl Size {
    /// Creates a size.
    pub const fn new(width: u32, height: u32) -> Self {
        Self { width, height }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// A point with real-valued coordinates; may be outside the frame.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Point {
    pub x: f32,
    pub y: f32,
}

impl Point {
    /// Moves the point with a rectangle that changes from `was` to `is`, so that its relative position stays the same. If `was` is empty, the
    /// point is only translated.
    pub fn moved_with(&self, was: Rect, is: Rect) -> Point {
        let Rect { x, y, .. } = Rect { x: self.x, y: self.y, width: 0.0, height: 0.0 }.moved_with(was, is);
        Point { x, y }
    }
}

/// A rectangle with real-valued edges; may extend beyond the frame.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rect {
    pub x: f32,
    pub y: f32,
    pub width: f32,
    pub height: f32,
}

impl Rect {
    /// Creates a rectangle from its top left and its bottom right corner. The bottom right corner is exclusive.
    pub const fn from_corners(x_min: f32, y_min: f32, x_max: f32, y_max: f32) -> Self {
        Self { x: x_min, y: y_min, width: x_max - x_min, height: y_max - y_min }
    }

    /// Creates a rectangle from its center and size.
    pub const fn from_center(x: f32, y: f32, width: f32, height: f32) -> Self {
        Self { x: x - width / 2.0, y: y - height / 2.0, width, height }
    }

    /// Returns the x coordinate of the right edge.
    pub fn x_max(&self) -> f32 {
        self.x + self.width
    }

    /// Returns the y coordinate of the bottom edge.
    pub fn y_max(&self) -> f32 {
        self.y + self.height
    }

    /// Returns the area; 0 if width or height is negative.
    pub fn area(&self) -> f32 {
        self.width.max(0.0) * self.height.max(0.0)
    }

    /// Whether all values are finite and the size is positive.
    pub fn is_proper(&self) -> bool {
        [self.x, self.y, self.width, self.height].iter().all(|v| v.is_finite()) && self.width > 0.0 && self.height > 0.0
    }

    /// Returns the intersection over union of two rectangles, 0..=1. The value is 0 if one of the two rectangles is empty.
    pub fn iou(&self, other: &Rect) -> f32 {
        let width = self.x_max().min(other.x_max()) - self.x.max(other.x);
        let height = self.y_max().min(other.y_max()) - self.y.max(other.y);
        let intersection = width.max(0.0) * height.max(0.0);
        let union = self.area() + other.area() - intersection;
        if union > 0.0 { intersection / union } else { 0.0 }
    }

    /// Returns the pixels of the rectangle in a frame. Edges are rounded half up and clipped to the frame.
    ///
    /// Returns `None` if the rectangle is invalid or outside the frame. Otherwise, the result has at least 1x1 pixels.
    pub fn to_pixels(&self, frame: Size) -> Option<PixelRect> {
        if frame.width == 0
            || frame.height == 0
            || !self.is_proper()
            || self.x >= frame.width as f32
            || self.y >= frame.height as f32
            || self.x_max() <= 0.0
            || self.y_max() <= 0.0
        {
            return None;
        }
        // The casts saturate, so coordinates that are too large for a `u32` are also clipped to the frame.
        let round = |v: f32| (v + 0.5).floor();
        let edge = |min: f32, max: f32, limit: u32| {
            let begin = (round(min).max(0.0) as u32).min(limit - 1);
            let end = (round(max).max(0.0) as u32).clamp(begin + 1, limit);
            (begin, end - begin)
        };
        let (x, width) = edge(self.x, self.x_max(), frame.width);
        let (y, height) = edge(self.y, self.y_max(), frame.height);
        Some(PixelRect { x, y, width, height })
    }

    /// Returns the rectangle after its frame was scaled from the size `from` to the size `to`.
    pub fn rescaled(&self, from: Size, to: Size) -> Rect {
        let (sx, sy) = (to.width as f32 / from.width as f32, to.height as f32 / from.height as f32);
        Rect { x: self.x * sx, y: self.y * sy, width: self.width * sx, height: self.height * sy }
    }

    /// Moves and scales this rectangle in the same way as a second rectangle that changes from `was` to `is`. The position of this
    /// rectangle relative to the second rectangle stays the same. If `was` is empty, this rectangle is only moved.
    pub fn moved_with(&self, was: Rect, is: Rect) -> Rect {
        let scale = |was: f32, is: f32| if was > 0.0 { is / was } else { 1.0 };
        let (sx, sy) = (scale(was.width, is.width), scale(was.height, is.height));
        Rect { x: is.x + (self.x - was.x) * sx, y: is.y + (self.y - was.y) * sy, width: self.width * sx, height: self.height * sy }
    }
}

/// A rectangle of integer pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PixelRect {
    pub x: u32,
    pub y: u32,
    pub width: u32,
    pub height: u32,
}

impl PixelRect {
    /// Returns the rectangle of a whole frame.
    pub const fn whole(size: Size) -> Self {
        Self { x: 0, y: 0, width: size.width, height: size.height }
    }

    /// Returns the width and height.
    pub const fn size(&self) -> Size {
        Size::new(self.width, self.height)
    }

    /// Converts to a rectangle with real-valued edges.
    pub fn to_rect(&self) -> Rect {
        Rect { x: self.x as f32, y: self.y as f32, width: self.width as f32, height: self.height as f32 }
    }
}

impl fmt::Display for PixelRect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{} at ({}, {})", self.width, self.height, self.x, self.y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iou_is_that_of_real_valued_rectangles() {
        let a = Rect::from_corners(0.0, 0.0, 10.0, 4.0);
        assert_eq!(a.iou(&a), 1.0);
        assert_eq!(a.iou(&Rect::from_corners(5.0, 0.0, 15.0, 4.0)), 20.0 / 60.0);
        assert_eq!(a.iou(&Rect::from_corners(10.0, 0.0, 20.0, 4.0)), 0.0);
        assert_eq!(Rect::default().iou(&Rect::default()), 0.0);
    }

    #[test]
    fn point_and_rectangle_follow_a_moved_rectangle() {
        let (was, is) = (Rect { x: 10.0, y: 20.0, width: 40.0, height: 10.0 }, Rect { x: 100.0, y: 0.0, width: 80.0, height: 10.0 });
        let part = Rect { x: 20.0, y: 22.0, width: 8.0, height: 5.0 };
        assert_eq!(part.moved_with(was, is), Rect { x: 120.0, y: 2.0, width: 16.0, height: 5.0 });
        assert_eq!(was.moved_with(was, is), is);
        let point = Rect { width: 0.0, height: 0.0, ..was };
        assert_eq!(part.moved_with(point, is), Rect { x: 110.0, y: 2.0, ..part });
        assert_eq!(Point { x: 20.0, y: 25.0 }.moved_with(was, is), Point { x: 120.0, y: 5.0 });
    }

    #[test]
    fn pixels_are_rounded_half_up_and_clipped() {
        #[derive(Debug)]
        struct Case(Rect, Option<[u32; 4]>);
        let frame = Size::new(20, 10);
        let cases = [
            Case(Rect::from_corners(2.5, 1.49, 7.5, 3.5), Some([3, 1, 5, 3])),
            Case(Rect::from_corners(-5.0, -5.0, 100.0, 100.0), Some([0, 0, 20, 10])),
            Case(Rect::from_corners(-1e30, -1e30, 1e30, 1e30), Some([0, 0, 20, 10])),
            Case(Rect::from_corners(19.9, 9.9, 30.0, 30.0), Some([19, 9, 1, 1])),
            Case(Rect::from_corners(3.1, 3.1, 3.2, 3.2), Some([3, 3, 1, 1])),
            Case(Rect::from_corners(20.0, 0.0, 30.0, 5.0), None),
            Case(Rect::from_corners(-9.0, 0.0, 0.0, 5.0), None),
            Case(Rect::from_corners(4.0, 4.0, 4.0, 8.0), None),
            Case(Rect::from_corners(8.0, 4.0, 4.0, 8.0), None),
            Case(Rect { x: f32::NAN, y: 0.0, width: 1.0, height: 1.0 }, None),
            Case(Rect { x: 0.0, y: 0.0, width: f32::INFINITY, height: 1.0 }, None),
        ];
        for case in cases {
            let pixels = case.0.to_pixels(frame).map(|p| [p.x, p.y, p.width, p.height]);
            assert_eq!(pixels, case.1, "{case:?}");
        }
    }
}
