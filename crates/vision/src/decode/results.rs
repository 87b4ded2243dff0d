//! Results of a decoder for one image, in input space.

use super::survey::Expected;
use super::{Output, Survey};
use crate::frame::{Outcome, Point, Rect, RotatedRect};

/// A detected box.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RawDetection {
    /// The box in input pixels; may extend beyond the input.
    pub rect: Rect,
    /// Score in 0..=1.
    pub score: f32,
    /// Index of the class.
    pub class_id: u32,
    /// Row of the outputs (anchor, cell or list entry). Orders boxes of equal score, and identifies keypoints in [`Results::keypoints`].
    pub row: u32,
}

/// An attribute of a detection or of the whole image.
#[derive(Debug, Clone, PartialEq)]
pub struct RawAttribute {
    /// Index of the detection in [`Results::boxes`]; `None` for the whole image.
    pub of: Option<usize>,
    /// Name in the results. If `None`, the name from the description is used.
    pub name: Option<std::sync::Arc<str>>,
    /// The value. Coordinates are in input pixels; classes have no labels.
    pub outcome: Outcome,
}

/// Results for one image, in input space. Reused for the next image, to avoid allocations.
#[derive(Debug, Default)]
pub struct Results {
    /// Boxes by descending score. While a [`BoxScheme`](super::BoxScheme) runs, this list contains the candidates.
    pub boxes: Vec<RawDetection>,
    /// Attributes.
    pub attributes: Vec<RawAttribute>,
    points: Vec<Point>,
    /// For each row with keypoints: the row, and the range of its keypoints in `points`. Sorted by row.
    points_of_rows: Vec<(u32, u32, u32)>,
    /// Rotated boxes with their rows.
    rotated_of_rows: Vec<(u32, RotatedRect)>,
    /// Statistics of the outputs. `None` if statistics are not enabled.
    pub survey: Option<Survey>,
    /// Whether there were more boxes than the default of `max-boxes`. The boxes beyond it are dropped.
    pub is_cut: bool,
    /// Memory for the numbers of quantized outputs, which the caller of a decoder converts. Reused for the next image.
    pub numbers: Vec<Vec<f32>>,
}

impl Results {
    /// Removes all results, but not the statistics in `survey` and the memory in `numbers`.
    pub fn clear(&mut self) {
        self.boxes.clear();
        self.attributes.clear();
        self.points.clear();
        self.points_of_rows.clear();
        self.rotated_of_rows.clear();
        self.is_cut = false;
    }

    /// Stores the rotated box of a row, in input pixels.
    pub(super) fn add_rotated(&mut self, row: u32, rect: RotatedRect) {
        self.rotated_of_rows.push((row, rect));
    }

    /// The stored rotated box of a row.
    pub(super) fn rotated(&self, row: u32) -> Option<RotatedRect> {
        self.rotated_of_rows.iter().find(|(of, _)| *of == row).map(|(_, rect)| *rect)
    }

    /// Adds an attribute of the whole image with the name from the description.
    pub fn say(&mut self, outcome: Outcome) {
        self.attributes.push(RawAttribute { of: None, name: None, outcome });
    }

    /// Adds an output to the statistics in `survey`, if they are enabled.
    pub(super) fn look_at(&mut self, output: &Output<'_>, expected: Expected) {
        if let Some(survey) = &mut self.survey {
            survey.add_values(output, expected);
        }
    }

    /// Adds the class number of a row of a list to the statistics in `survey`, if they are enabled.
    pub(super) fn look_at_class(&mut self, class: f32) {
        if let Some(survey) = &mut self.survey {
            survey.add_class(class);
        }
    }

    /// Replaces the keypoints of a box by points that were computed from those of several boxes.
    pub(super) fn replace_keypoints(&mut self, found: &RawDetection, points: &[Point]) {
        let Ok(place) = self.points_of_rows.binary_search_by_key(&found.row, |(row, ..)| *row) else { return };
        let (_, begin, end) = self.points_of_rows[place];
        self.points[begin as usize..end as usize].iter_mut().zip(points).for_each(|(point, new)| *point = *new);
    }

    /// Adds the keypoints of the boxes of an output row. The points are in input pixels, in the order of the model, and may be
    /// outside the input.
    pub fn add_keypoints(&mut self, row: u32, points: impl IntoIterator<Item = Point>) {
        let begin = self.points.len() as u32;
        self.points.extend(points);
        self.points_of_rows.push((row, begin, self.points.len() as u32));
    }

    /// Returns the keypoints of a box; empty if the box has no keypoints, or if a keypoint is not finite.
    pub fn keypoints(&self, found: &RawDetection) -> &[Point] {
        let Ok(place) = self.points_of_rows.binary_search_by_key(&found.row, |(row, ..)| *row) else { return &[] };
        let (_, begin, end) = self.points_of_rows[place];
        let points = &self.points[begin as usize..end as usize];
        if points.iter().all(|point| point.x.is_finite() && point.y.is_finite()) { points } else { &[] }
    }

    /// Sorts the entries of rows with keypoints by row, as [`Results::keypoints`] requires. Usually they are already sorted.
    pub(super) fn sort_keypoints(&mut self) {
        self.points_of_rows.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keypoints_are_found_by_row() {
        let mut results = Results::default();
        let point = |x: f32| Point { x, y: 1.0 };
        for (row, x) in [(7, 70.0), (3, 30.0), (5, f32::NAN)] {
            results.add_keypoints(row, [point(x), point(x + 1.0)]);
        }
        results.sort_keypoints();
        let keypoints = |row| results.keypoints(&RawDetection { rect: Rect::default(), score: 1.0, class_id: 0, row });
        assert_eq!(keypoints(3), [point(30.0), point(31.0)]);
        assert_eq!(keypoints(7), [point(70.0), point(71.0)]);
        assert_eq!((keypoints(5), keypoints(4)), (&[][..], &[][..]), "a keypoint that is not finite, and a row without keypoints");
    }
}
