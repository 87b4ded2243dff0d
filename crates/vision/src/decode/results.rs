//! What a decoder makes of the outputs for one image, in input space.

use super::survey::Expected;
use super::{Output, Survey};
use crate::frame::{Outcome, Point, Rect};

/// A box as a model gives it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RawDetection {
    /// Where, in input pixels; may reach outside.
    pub rect: Rect,
    /// The larger the better; 0..=1.
    pub score: f32,
    /// Index of the class.
    pub class_id: u32,
    /// The row of the outputs (anchor, cell, entry of a list) that it comes from: of equal scores the first is better, and
    /// [`Results::keypoints`] and decoders find the rest of the row by it.
    pub row: u32,
}

/// Something that a model says of a detection, or of the whole image.
#[derive(Debug, Clone, PartialEq)]
pub struct RawAttribute {
    /// Index of the detection in [`Results::boxes`]; `None`: it is about the whole image.
    pub of: Option<usize>,
    /// What it is called in results; `None`: as the description calls the output.
    pub name: Option<std::sync::Arc<str>>,
    /// The value, with places in input pixels and classes without names.
    pub outcome: Outcome,
}

/// The results for one image, in input space. Cleared and reused for the next one, so that its lists keep their memory.
#[derive(Debug, Default)]
pub struct Results {
    /// Objects, best first; while a [`BoxScheme`](super::BoxScheme) reads rows, its candidates.
    pub boxes: Vec<RawDetection>,
    /// Everything else.
    pub attributes: Vec<RawAttribute>,
    points: Vec<Point>,
    /// Row, and the first and the end of its keypoints, by row.
    points_of_rows: Vec<(u32, u32, u32)>,
    /// Takes what the outputs look like, where the caller wants to know.
    pub survey: Option<Survey>,
}

impl Results {
    /// Removes all results; the survey stays.
    pub fn clear(&mut self) {
        self.boxes.clear();
        self.attributes.clear();
        self.points.clear();
        self.points_of_rows.clear();
    }

    /// Adds something about the whole image, under the name that the description gives it.
    pub fn say(&mut self, outcome: Outcome) {
        self.attributes.push(RawAttribute { of: None, name: None, outcome });
    }

    /// Adds to the survey, if there is one, what an output looks like.
    pub(super) fn look_at(&mut self, output: &Output<'_>, expected: Expected) {
        if let Some(survey) = &mut self.survey {
            survey.add_values(output, expected);
        }
    }

    /// Adds the keypoints of the box of a row, in input pixels and in the model's order. They may lie outside the input.
    pub fn add_keypoints(&mut self, row: u32, points: impl IntoIterator<Item = Point>) {
        let begin = self.points.len() as u32;
        self.points.extend(points);
        self.points_of_rows.push((row, begin, self.points.len() as u32));
    }

    /// The keypoints of a box; empty if it has none, or one is not finite.
    pub fn keypoints(&self, found: &RawDetection) -> &[Point] {
        let Ok(place) = self.points_of_rows.binary_search_by_key(&found.row, |(row, ..)| *row) else { return &[] };
        let (_, begin, end) = self.points_of_rows[place];
        let points = &self.points[begin as usize..end as usize];
        if points.iter().all(|point| point.x.is_finite() && point.y.is_finite()) { points } else { &[] }
    }

    /// Brings keypoints into the order of rows, in which decoders usually add them.
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
