//! Results of a decoder for one image, in input space.

use super::survey::Expected;
use super::{Output, Survey};
use crate::frame::{Outcome, Point, Rect};

/// A box of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RawDetection {
    /// The box in input pixels; may reach outside.
    pub rect: Rect,
    /// Score in 0..=1.
    pub score: f32,
    /// Index of the class.
    pub class_id: u32,
    /// Row of the outputs (anchor, cell, list entry). Decides ties of equal scores, and identifies the keypoints in [`Results::keypoints`].
    pub row: u32,
}

/// An attribute of a detection or of the whole image.
#[derive(Debug, Clone, PartialEq)]
pub struct RawAttribute {
    /// Index of the detection in [`Results::boxes`]; `None`: the whole image.
    pub of: Option<usize>,
    /// Name in the results; `None`: the name in the description.
    pub name: Option<std::sync::Arc<str>>,
    /// The value; coordinates in input pixels, classes without names.
    pub outcome: Outcome,
}

/// Results for one image, in input space. Reused for the next image, so that lists keep their memory.
#[derive(Debug, Default)]
pub struct Results {
    /// Objects, by descending score; while a [`BoxScheme`](super::BoxScheme) reads rows, its candidates.
    pub boxes: Vec<RawDetection>,
    /// Attributes.
    pub attributes: Vec<RawAttribute>,
    points: Vec<Point>,
    /// Row with the range of its keypoints, sorted by row.
    points_of_rows: Vec<(u32, u32, u32)>,
    /// Collects statistics of the outputs, if the caller wants them.
    pub survey: Option<Survey>,
}

impl Results {
    /// Removes all results, and keeps the survey.
    pub fn clear(&mut self) {
        self.boxes.clear();
        self.attributes.clear();
        self.points.clear();
        self.points_of_rows.clear();
    }

    /// Adds an attribute of the whole image, under the name in the description.
    pub fn say(&mut self, outcome: Outcome) {
        self.attributes.push(RawAttribute { of: None, name: None, outcome });
    }

    /// Adds statistics of an output to the survey, if there is one.
    pub(super) fn look_at(&mut self, output: &Output<'_>, expected: Expected) {
        if let Some(survey) = &mut self.survey {
            survey.add_values(output, expected);
        }
    }

    /// Adds the keypoints of a row's box, in input pixels and the model's order. They may be outside the input.
    pub fn add_keypoints(&mut self, row: u32, points: impl IntoIterator<Item = Point>) {
        let begin = self.points.len() as u32;
        self.points.extend(points);
        self.points_of_rows.push((row, begin, self.points.len() as u32));
    }

    /// Keypoints of a box; empty if there are none, or one is not finite.
    pub fn keypoints(&self, found: &RawDetection) -> &[Point] {
        let Ok(place) = self.points_of_rows.binary_search_by_key(&found.row, |(row, ..)| *row) else { return &[] };
        let (_, begin, end) = self.points_of_rows[place];
        let points = &self.points[begin as usize..end as usize];
        if points.iter().all(|point| point.x.is_finite() && point.y.is_finite()) { points } else { &[] }
    }

    /// Sorts keypoints by row, the order in which decoders usually add them.
    pub(super) fn sort_keypoints(&mut self) {
        self.points_of_rows.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keypoints_are_found_by_the_row_of_their_box() {
        let mut results = Results::default();
        let point = |x: f32| Point { x, y: 1.0 };
        for (row, x) in [(7, 70.0), (3, 30.0), (5, f32::NAN)] {
            results.add_keypoints(row, [point(x), point(x + 1.0)]);
        }
        results.sort_keypoints();
        let keypoints = |row| results.keypoints(&RawDetection { rect: Rect::default(), score: 1.0, class_id: 0, row });
        assert_eq!(keypoints(3), [point(30.0), point(31.0)]);
        assert_eq!(keypoints(7), [point(70.0), point(71.0)]);
        assert_eq!((keypoints(5), keypoints(4)), (&[][..], &[][..]), "one that is not finite, and none at all");
    }
}
