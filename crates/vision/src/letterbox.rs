//! The placement of an image in the input (stretched, letterboxed or cropped, and rotated), and its inverse transform. This module computes
//! only geometry.

use std::ops::Range;

use super::preprocess::{Anchor, Resize, Rotation};
use crate::frame::{Size, Transform};

/// Scale and position of an image in the input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Placement {
    /// Size of the scaled image. Exceeds the input if the image is cropped.
    pub(super) scaled: Size,
    /// Top left corner of the scaled image in input pixels; negative if cropped.
    pub(super) offset: (i64, i64),
    /// Transform from input pixels to image pixels.
    pub(super) frame_from_input: Transform,
}

impl Placement {
    /// Computes the placement of an image in an input. Both sizes must be at least 1x1.
    pub(super) fn new(resize: Resize, image: Size, input: Size) -> Self {
        let (width, height) = (f64::from(image.width), f64::from(image.height));
        let ratio_x = f64::from(input.width) / width;
        let ratio_y = f64::from(input.height) / height;
        match resize {
            Resize::Stretch => Self {
                scaled: input,
                offset: (0, 0),
                frame_from_input: Transform {
                    scale: ((1.0 / ratio_x) as f32, (1.0 / ratio_y) as f32),
                    offset: (0.0, 0.0),
                    swaps_axes: false,
                },
            },
            Resize::Letterbox { anchor } => {
                let ratio = ratio_x.min(ratio_y);
                // The programs that define the two anchors round differently: with the anchor top left, the size is truncated;
                // with center, it is rounded with ties to even.
                let extent = |extent: f64, limit: u32| {
                    match anchor {
                        Anchor::TopLeft => (extent * ratio) as u32,
                        Anchor::Center => (extent * ratio).round_ties_even() as u32,
                    }
                    .clamp(1, limit)
                };
                let scaled = Size::new(extent(width, input.width), extent(height, input.height));
                let offset = match anchor {
                    Anchor::TopLeft => (0, 0),
                    Anchor::Center => (i64::from((input.width - scaled.width) / 2), i64::from((input.height - scaled.height) / 2)),
                };
                Self { scaled, offset, frame_from_input: undo(ratio, offset) }
            }
            Resize::Crop => {
                let ratio = ratio_x.max(ratio_y);
                let extent = |extent: f64, at_least: u32| ((extent * ratio).round_ties_even() as u32).max(at_least);
                let scaled = Size::new(extent(width, input.width), extent(height, input.height));
                let offset = (-i64::from((scaled.width - input.width) / 2), -i64::from((scaled.height - input.height) / 2));
                Self { scaled, offset, frame_from_input: undo(ratio, offset) }
            }
        }
    }

    /// Computes the placement of an image that is rotated first.
    ///
    /// In the returned placement, the scaled size and the offset are those of the unrotated image in an input of size
    /// `rotation.turned(input)`. The transform maps from the actual input, which shows the rotated image.
    pub(super) fn of_turned(resize: Resize, rotation: Rotation, image: Size, input: Size) -> Self {
        let Self { scaled, offset: (x, y), frame_from_input } = Self::new(resize, rotation.turned(image), input);
        let far = |extent: u32, scaled: u32, offset: i64| i64::from(extent) - i64::from(scaled) - offset;
        let (far_x, far_y) = (far(input.width, scaled.width, x), far(input.height, scaled.height, y));
        let ((sx, sy), (ox, oy)) = (frame_from_input.scale, frame_from_input.offset);
        let (width, height) = (image.width as f32, image.height as f32);
        let (offset, scale, back) = match rotation {
            Rotation::None => ((x, y), (sx, sy), (ox, oy)),
            Rotation::Clockwise => ((y, far_x), (sy, -sx), (oy, height - ox)),
            Rotation::Half => ((far_x, far_y), (-sx, -sy), (width - ox, height - oy)),
            Rotation::Counterclockwise => ((far_y, x), (-sy, sx), (width - oy, ox)),
        };
        let frame_from_input = Transform { scale, offset: back, swaps_axes: rotation.swaps_axes() };
        Self { scaled: rotation.turned(scaled), offset, frame_from_input }
    }

    /// Returns the columns and rows of the input that show the image. All other pixels are border.
    pub(super) fn visible(&self, input: Size) -> (Range<usize>, Range<usize>) {
        let range = |offset: i64, scaled: u32, input: u32| {
            let (begin, end) = (offset.max(0), (offset + i64::from(scaled)).min(i64::from(input)));
            begin as usize..end as usize
        };
        (range(self.offset.0, self.scaled.width, input.width), range(self.offset.1, self.scaled.height, input.height))
    }
}

/// Returns the transform from input to image that the reference postprocessing uses: it subtracts the offset and then divides by the ideal
/// ratio. With the ratio of the rounded sizes, results would differ from the reference by less than a pixel at the far edge.
fn undo(ratio: f64, offset: (i64, i64)) -> Transform {
    let scale = 1.0 / ratio;
    let back = |offset: i64| (-(offset as f64) * scale) as f32;
    Transform { scale: (scale as f32, scale as f32), offset: (back(offset.0), back(offset.1)), swaps_axes: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Rect;

    #[test]
    fn placement_matches_the_reference() {
        #[derive(Debug)]
        struct Case(Resize, (u32, u32), (u32, u32), (u32, u32), (i64, i64));
        let (top_left, center) = (Resize::Letterbox { anchor: Anchor::TopLeft }, Resize::Letterbox { anchor: Anchor::Center });
        let cases = [
            Case(Resize::Stretch, (640, 360), (320, 240), (320, 240), (0, 0)),
            Case(top_left, (640, 272), (416, 416), (416, 176), (0, 0)),
            Case(top_left, (768, 576), (416, 416), (416, 312), (0, 0)),
            Case(center, (640, 272), (416, 416), (416, 177), (0, 119)),
            Case(center, (272, 640), (416, 416), (177, 416), (119, 0)),
            Case(center, (5, 4), (10, 9), (10, 8), (0, 0)),
            // 5 * 0.5 = 2.5 is rounded to even.
            Case(center, (4, 5), (2, 9), (2, 2), (0, 3)),
            Case(center, (1, 10_000), (8, 8), (1, 8), (3, 0)),
            Case(top_left, (10_000, 1), (8, 8), (8, 1), (0, 0)),
            Case(Resize::Crop, (640, 360), (320, 240), (427, 240), (-53, 0)),
            Case(Resize::Crop, (360, 640), (240, 320), (240, 427), (0, -53)),
            Case(Resize::Crop, (7, 7), (7, 7), (7, 7), (0, 0)),
        ];
        for case in cases {
            let placement = Placement::new(case.0, Size::new(case.1.0, case.1.1), Size::new(case.2.0, case.2.1));
            assert_eq!((placement.scaled.width, placement.scaled.height), case.3, "{case:?}");
            assert_eq!(placement.offset, case.4, "{case:?}");
        }
    }

    #[test]
    fn transform_maps_input_to_image() {
        let image = Size::new(640, 360);
        let whole = Rect { x: 0.0, y: 0.0, width: 640.0, height: 360.0 };
        for (resize, shown) in [
            (Resize::Stretch, Rect { x: 0.0, y: 0.0, width: 320.0, height: 320.0 }),
            (Resize::Letterbox { anchor: Anchor::TopLeft }, Rect { x: 0.0, y: 0.0, width: 320.0, height: 180.0 }),
            (Resize::Letterbox { anchor: Anchor::Center }, Rect { x: 0.0, y: 70.0, width: 320.0, height: 180.0 }),
        ] {
            assert_eq!(Placement::new(resize, image, Size::new(320, 320)).frame_from_input.apply(shown), whole, "{resize:?}");
        }
        let cropped = Placement::new(Resize::Crop, image, Size::new(180, 180)).frame_from_input;
        assert_eq!(
            cropped.apply(Rect { x: 0.0, y: 0.0, width: 180.0, height: 180.0 }),
            Rect { x: 140.0, y: 0.0, width: 360.0, height: 360.0 }
        );
    }
}
