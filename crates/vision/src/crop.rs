//! The region of a frame that a classifier gets for a detection: a box with a margin, a square, a rotated box, or an alignment by keypoints.
//! This module contains only geometry, no pixels.

use std::fmt;
use std::sync::Arc;

use crate::frame::{Detection, Geometry, ObjectId, Outcome, PixelRect, Point, Rect, RotatedRect, Similarity, Size};
use crate::letterbox::Placement;
use crate::preprocess::Resize;

/// A region of a frame to classify.
#[derive(Debug, Clone, PartialEq)]
pub struct Region {
    /// ID of the region. The results of the region contain this ID.
    pub id: ObjectId,
    /// The box of the detection, in frame pixels.
    pub rect: Rect,
    /// The keypoints of the detection, in frame pixels; may be empty.
    pub keypoints: Vec<Point>,
    /// The rotated box in frame pixels, which replaces `rect` if it is present.
    pub rotated: Option<RotatedRect>,
}

impl From<(ObjectId, PixelRect)> for Region {
    fn from((id, rect): (ObjectId, PixelRect)) -> Self {
        Self { id, rect: rect.to_rect(), keypoints: Vec::new(), rotated: None }
    }
}

/// How a region is derived from a detection. Default: the detection's box.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Crop {
    /// Margin on each side, as a fraction of the box's width or height; at least 0. Applied after `square`.
    pub margin: f32,
    /// Whether the shorter side is extended around the center to a square.
    pub square: bool,
    /// Target positions of the keypoints, in fractions of the input's width and height. Empty: no alignment.
    pub align: Vec<Point>,
    /// Whether the rotated box of a detection is used, if it has one.
    pub rotated: bool,
    /// Name of the attribute whose label is the angle of the image, in degrees clockwise. The box is turned back by this angle.
    pub turned_by: Option<Arc<str>>,
}

/// The place of a rotated box in the input of a model: the box is turned upright, and resized like an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotatedPlacement {
    /// Top left, top right and bottom left corner of the box in the frame.
    corners: [Point; 3],
    /// Position and size of the resized box in the input.
    offset: (i64, i64),
    scaled: Size,
}

impl RotatedPlacement {
    /// Computes the place of a box in an input of this size. `None` if the box has no area or is not finite.
    pub fn new(rect: &RotatedRect, resize: Resize, input: Size) -> Option<Self> {
        let [top_left, top_right, _, bottom_left] = rect.corners();
        let is_finite = [top_left, top_right, bottom_left].iter().all(|point| point.x.is_finite() && point.y.is_finite());
        let extent = |extent: f32| (extent.round().clamp(1.0, 65_536.0)) as u32;
        let is_proper = is_finite && rect.width > 0.0 && rect.height > 0.0 && input.width > 0 && input.height > 0;
        is_proper.then(|| {
            let Placement { scaled, offset, .. } = Placement::new(resize, Size::new(extent(rect.width), extent(rect.height)), input);
            Self { corners: [top_left, top_right, bottom_left], offset, scaled }
        })
    }

    /// Maps a point from input to frame coordinates.
    pub fn apply(&self, x: f64, y: f64) -> (f64, f64) {
        let [origin, right, down] = self.corners.map(|point| (f64::from(point.x), f64::from(point.y)));
        let u = (x - self.offset.0 as f64) / f64::from(self.scaled.width);
        let v = (y - self.offset.1 as f64) / f64::from(self.scaled.height);
        (origin.0 + (right.0 - origin.0) * u + (down.0 - origin.0) * v, origin.1 + (right.1 - origin.1) * u + (down.1 - origin.1) * v)
    }

    /// Returns the frame position of the input pixel in this column and row. Pixel centers have integer coordinates. Returns NaN for pixels
    /// outside the box: these pixels become borders.
    pub(super) fn sample(&self, column: usize, row: usize) -> (f64, f64) {
        let is_inside = |at: usize, offset: i64, extent: u32| (offset..offset + i64::from(extent)).contains(&(at as i64));
        if is_inside(column, self.offset.0, self.scaled.width) && is_inside(row, self.offset.1, self.scaled.height) {
            let (x, y) = self.apply(column as f64 + 0.5, row as f64 + 0.5);
            (x - 0.5, y - 0.5)
        } else {
            (f64::NAN, f64::NAN)
        }
    }
}

/// Formats the crop as keys of a model description.
impl fmt::Display for Crop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { margin, square, align, rotated, turned_by } = self;
        write!(f, "margin {margin}, square {square}")?;
        if *rotated {
            f.write_str(", rotated boxes")?;
        }
        if let Some(attribute) = turned_by {
            write!(f, ", turned by `{attribute}`")?;
        }
        if align.is_empty() { Ok(()) } else { write!(f, ", align {} keypoints", align.len()) }
    }
}

/// Returns the angle that an attribute with this name has as its label, such as `180` or `180 degrees`. `None` for 0 and other labels.
fn angle_of(detection: &Detection, attribute: &str) -> Option<f32> {
    let label = detection.classifications.iter().find_map(|of| match &of.outcome {
        Outcome::Label { label: Some(label), .. } if *of.name == *attribute => Some(label),
        _ => None,
    })?;
    let digits = label.split(|character: char| !character.is_ascii_digit()).find(|digits| !digits.is_empty())?;
    digits.parse().ok().filter(|angle| (1.0..360.0).contains(angle))
}

/// Turns a box around its center. Quarter turns exchange its sides.
fn turned(rect: RotatedRect, angle: f32) -> RotatedRect {
    let RotatedRect { width, height, .. } = rect;
    let (width, height) = if (angle / 90.0).round() as i32 % 2 == 1 { (height, width) } else { (width, height) };
    RotatedRect { width, height, angle: rect.angle + angle, ..rect }
}

impl Crop {
    /// Returns the region of a detection. The region has keypoints only if the crop uses alignment.
    pub fn region(&self, detection: &Detection) -> Region {
        let keypoints = if self.align.is_empty() { Vec::new() } else { detection.keypoints.clone() };
        let rotated_box = || {
            detection.classifications.iter().find_map(|classification| match &classification.outcome {
                Outcome::Geometry(Geometry::RotatedRect(rect)) => Some(*rect),
                _ => None,
            })
        };
        let mut rotated = if self.rotated { rotated_box() } else { None };
        if let Some(angle) = self.turned_by.as_deref().and_then(|attribute| angle_of(detection, attribute)) {
            let Rect { x, y, width, height } = detection.rect;
            let upright = RotatedRect { center: Point { x: x + width / 2.0, y: y + height / 2.0 }, width, height, angle: 0.0 };
            rotated = Some(rotated.unwrap_or(upright)).map(|rect| turned(rect, angle));
        }
        Region { id: detection.id, rect: detection.rect, keypoints, rotated }
    }

    /// Returns the region in pixels. Edges are rounded half up and clipped to the frame. `None` if the region is outside the frame.
    pub fn rect(&self, rect: Rect, frame: Size) -> Option<PixelRect> {
        if !self.square && self.margin == 0.0 {
            return rect.to_pixels(frame);
        }
        // Compute in double precision, so that intermediate values are not rounded to single precision.
        let Rect { x, y, width, height } = rect;
        let [x, y, width, height] = [x, y, width, height].map(f64::from);
        let (center_x, center_y) = (x + width / 2.0, y + height / 2.0);
        let (width, height) = if self.square { (width.max(height), width.max(height)) } else { (width, height) };
        let grown = |extent: f64| extent * (1.0 + 2.0 * f64::from(self.margin));
        let (width, height) = (grown(width), grown(height));
        let (x, y) = (center_x - width / 2.0, center_y - height / 2.0);
        // A margin must not turn an invalid box into a valid box.
        let grown = Rect::from_corners(x as f32, y as f32, (x + width) as f32, (y + height) as f32);
        if rect.is_proper() { grown.to_pixels(frame) } else { None }
    }

    /// Returns the rotated box with the margin on each side; `square` extends its shorter side.
    pub fn rotated(&self, rect: RotatedRect) -> RotatedRect {
        let (width, height) =
            if self.square { (rect.width.max(rect.height), rect.width.max(rect.height)) } else { (rect.width, rect.height) };
        let factor = 1.0 + 2.0 * self.margin;
        RotatedRect { width: width * factor, height: height * factor, ..rect }
    }

    /// Returns the similarity transform from input pixels to frame pixels. Its inverse maps the keypoints as closely as possible to their
    /// targets. In the input and in the frame, pixel centers have integer coordinates.
    ///
    /// Returns `None` if the crop has no alignment, if the number of keypoints differs from the number of targets, or if all
    /// keypoints coincide.
    pub fn alignment(&self, keypoints: &[Point], input: Size) -> Option<Similarity> {
        if self.align.is_empty() {
            return None;
        }
        let place = |part: &Point| Point { x: part.x * input.width as f32, y: part.y * input.height as f32 };
        let places: Vec<Point> = self.align.iter().map(place).collect();
        Some(Similarity::estimate(keypoints, &places)?.invert())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Classification;
    use crate::preprocess::Anchor;

    const FRAME: Size = Size::new(1000, 667);

    fn pixels(crop: &Crop, rect: Rect) -> Option<[u32; 4]> {
        crop.rect(rect, FRAME).map(|rect| [rect.x, rect.y, rect.x + rect.width, rect.y + rect.height])
    }

    #[test]
    fn attribute_with_an_angle_turns_the_region() {
        let label = |name: &str, label: &str| Classification {
            name: name.into(),
            model: "cls".into(),
            outcome: Outcome::Label { label_id: 1, label: Some(label.into()), confidence: 0.95 },
        };
        let region = |crop: &Crop, classifications: Vec<Classification>| {
            let rect = Rect { x: 10.0, y: 20.0, width: 40.0, height: 10.0 };
            let (id, label_id, confidence) = (ObjectId(1), 0, 1.0);
            let detection = Detection {
                id,
                track: None,
                track_state: None,
                parent: None,
                rect,
                keypoints: Vec::new(),
                confidence,
                label_id,
                label: None,
                classifications,
            };
            crop.region(&detection).rotated.map(|rect| (rect.center.x, rect.center.y, rect.width, rect.height, rect.angle))
        };
        let crop = Crop { turned_by: Some("direction".into()), rotated: true, ..Crop::default() };
        assert_eq!(region(&crop, vec![label("direction", "180")]), Some((30.0, 25.0, 40.0, 10.0, 180.0)));
        assert_eq!(region(&crop, vec![label("direction", "90 degrees")]), Some((30.0, 25.0, 10.0, 40.0, 90.0)));
        for other in [label("direction", "0"), label("direction", "up"), label("color", "180")] {
            assert_eq!(region(&crop, vec![other]), None);
        }
        let slanted = RotatedRect { center: Point { x: 30.0, y: 25.0 }, width: 40.0, height: 10.0, angle: 5.0 };
        let shape = Classification { outcome: Outcome::Geometry(Geometry::RotatedRect(slanted)), ..label("rotated_box", "") };
        assert_eq!(region(&crop, vec![shape, label("direction", "180")]), Some((30.0, 25.0, 40.0, 10.0, 185.0)));
        assert_eq!(region(&Crop::default(), vec![label("direction", "180")]), None);
    }

    /// The expected crops come from the reference implementation of the model's author.
    #[test]
    fn square_with_margin_matches_the_reference() {
        let square_10 = Crop { margin: 0.1, square: true, ..Crop::default() };
        for (corners, expected, boxed) in [
            ([534.18, 310.81, 626.835, 429.714], [509, 299, 652, 442], [534, 311, 627, 430]),
            ([683.833, 292.786, 789.093, 418.813], [661, 280, 812, 431], [684, 293, 789, 419]),
        ] {
            let rect = Rect::from_corners(corners[0], corners[1], corners[2], corners[3]);
            assert_eq!(pixels(&square_10, rect), Some(expected));
            assert_eq!(pixels(&Crop::default(), rect), Some(boxed));
        }
    }

    #[test]
    fn regions_are_clipped_and_outside_regions_are_none() {
        let wide = Crop { margin: 0.5, ..Crop::default() };
        assert_eq!(pixels(&wide, Rect { x: 10.0, y: 600.0, width: 100.0, height: 60.0 }), Some([0, 570, 160, 667]));
        let square = Crop { square: true, ..Crop::default() };
        assert_eq!(pixels(&square, Rect { x: 0.0, y: 100.0, width: 10.0, height: 50.0 }), Some([0, 100, 30, 150]));
        for outside in [
            Rect { x: 2000.0, y: 0.0, width: 10.0, height: 10.0 },
            Rect { x: 5.0, y: 5.0, width: -1.0, height: 10.0 },
            Rect { x: f32::NAN, y: 5.0, width: 1.0, height: 10.0 },
            Rect { x: 5.0, y: 5.0, width: 0.0, height: 10.0 },
        ] {
            assert_eq!(pixels(&square, outside), None, "{outside:?}");
        }
    }

    #[test]
    fn alignment_maps_keypoints_to_their_targets() {
        let places = [(0.25, 0.25), (0.75, 0.25), (0.5, 0.75)].map(|(x, y)| Point { x, y });
        let crop = Crop { align: places.to_vec(), ..Crop::default() };
        let input = Size::new(8, 4);
        let keypoints = [(100.0, 50.0), (140.0, 50.0), (120.0, 70.0)].map(|(x, y)| Point { x, y });
        let frame_from_input = crop.alignment(&keypoints, input).unwrap();
        for (place, keypoint) in [((2.0, 1.0), (100.0, 50.0)), ((6.0, 1.0), (140.0, 50.0)), ((4.0, 3.0), (120.0, 70.0))] {
            let (x, y) = frame_from_input.apply(place.0, place.1);
            assert!((x - keypoint.0).abs() < 1e-3 && (y - keypoint.1).abs() < 1e-3, "{place:?}: {x}, {y}");
        }
        assert_eq!(crop.alignment(&keypoints[..2], input), None);
        assert_eq!(crop.alignment(&[], input), None);
        assert_eq!(Crop::default().alignment(&keypoints, input), None);
    }

    #[test]
    fn rotated_box_is_turned_upright_and_resized() {
        // A line of text that runs downward: its left end is at the top.
        let rect = RotatedRect { center: Point { x: 50.0, y: 40.0 }, width: 40.0, height: 10.0, angle: 90.0 };
        let placed = |resize| RotatedPlacement::new(&rect, resize, Size::new(20, 10)).unwrap();
        let near = |(x, y): (f64, f64), expected: (f64, f64)| (x - expected.0).abs() < 1e-4 && (y - expected.1).abs() < 1e-4;
        let stretched = placed(Resize::Stretch);
        assert!(near(stretched.apply(0.0, 0.0), (55.0, 20.0)) && near(stretched.apply(20.0, 0.0), (55.0, 60.0)));
        assert!(near(stretched.apply(0.0, 10.0), (45.0, 20.0)) && near(stretched.sample(0, 0), (54.0, 20.5)));
        // Scaled by 1/2, the line is 20x5, and the rest of the input is a border.
        let boxed = placed(Resize::Letterbox { anchor: Anchor::TopLeft });
        assert!(near(boxed.sample(0, 0), (53.5, 20.5)) && boxed.sample(0, 5).0.is_nan() && boxed.sample(19, 4).0.is_finite());
        let flat = RotatedRect { height: 0.0, ..rect };
        assert_eq!(RotatedPlacement::new(&flat, Resize::Stretch, Size::new(20, 10)), None);
        let grown = Crop { margin: 0.5, square: true, ..Crop::default() }.rotated(rect);
        assert_eq!((grown.width, grown.height, grown.angle), (80.0, 80.0, 90.0));
    }
}
