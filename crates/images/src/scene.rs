//! Draws lines and zones with their counts.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::draw::{Area, Canvas, PALETTE, Rgb, text_color};
use crate::font::Letters;
use crate::frame::{Direction, Point, SceneEvent, SceneEventKind, Size};

const LINE_COLOR: Rgb = PALETTE[5];
const ZONE_COLOR: Rgb = PALETTE[2];

/// The counts of a line or zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// Crossings of a line in each direction.
    Line { n_in: u64, n_out: u64 },
    /// Objects in a zone.
    Zone { occupancy: u64 },
}

/// A line or zone.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    pub name: Arc<str>,
    /// The two ends of a line, or the corners of a zone, in fractions of the frame.
    pub points: Vec<Point>,
    pub counts: Counts,
}

/// The lines and zones of one element.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scene {
    /// Name that stands for the element.
    pub element: Arc<str>,
    pub places: Vec<Place>,
}

impl Scene {
    /// Takes the counts of a frame's events.
    pub fn follow(&mut self, events: &[SceneEvent]) {
        for event in events {
            for place in self.places.iter_mut().filter(|place| place.name == event.place) {
                match (&mut place.counts, event.kind) {
                    (Counts::Line { n_in, .. }, SceneEventKind::Crossed { direction: Direction::In, count }) => *n_in = count,
                    (Counts::Line { n_out, .. }, SceneEventKind::Crossed { direction: Direction::Out, count }) => *n_out = count,
                    (Counts::Zone { occupancy: now }, SceneEventKind::Entered { occupancy } | SceneEventKind::Exited { occupancy, .. }) => {
                        *now = occupancy;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Objects leave their zones without events, after a flush.
    pub fn flush(&mut self) {
        for place in &mut self.places {
            if let Counts::Zone { occupancy } = &mut place.counts {
                *occupancy = 0;
            }
        }
    }

    /// Draws lines and borders.
    pub(crate) fn draw_lines(&self, canvas: &mut Canvas, size: Size, thickness: u32) {
        for place in &self.places {
            let ink = canvas.ink(place.color());
            let mut points = place.pixels(size);
            if matches!(place.counts, Counts::Zone { .. }) {
                points.extend(points.first().copied());
            }
            for pair in points.windows(2) {
                canvas.line((pair[0].x, pair[0].y), (pair[1].x, pair[1].y), thickness, ink);
            }
        }
    }

    /// Draws names and counts. `place` returns a free area for a text of a width and height near a point, which the text then takes.
    pub(crate) fn draw_counts(
        &self,
        canvas: &mut Canvas,
        size: Size,
        letters: &mut Letters,
        mut free: impl FnMut(Area, (i64, i64)) -> Area,
    ) {
        let mut text = String::new();
        for place in &self.places {
            text.clear();
            // Writing to a string can't fail.
            let _ = match place.counts {
                Counts::Line { n_in, n_out } => write!(text, "{}: in {n_in}, out {n_out}", place.name),
                Counts::Zone { occupancy } => write!(text, "{}: {occupancy}", place.name),
            };
            let (background, foreground) = (canvas.ink(place.color()), canvas.ink(text_color(place.color())));
            let bitmap = letters.line(&text);
            let at = place.label_point(size);
            if !at.x.is_finite() || !at.y.is_finite() {
                continue;
            }
            let (width, height) = (bitmap.width as i64, bitmap.height as i64);
            let area = free(Area::at(at.x as i64 - width / 2, at.y as i64, width, 2), (width, height));
            canvas.stamp(area.x_min, area.y_min, &bitmap, background, foreground);
        }
    }
}

impl Place {
    fn color(&self) -> Rgb {
        match self.counts {
            Counts::Line { .. } => LINE_COLOR,
            Counts::Zone { .. } => ZONE_COLOR,
        }
    }

    fn pixels(&self, size: Size) -> Vec<Point> {
        self.points.iter().map(|point| Point { x: point.x * size.width as f32, y: point.y * size.height as f32 }).collect()
    }

    /// The middle of a line, or the mean of a zone's corners.
    fn label_point(&self, size: Size) -> Point {
        let n = self.points.len().max(1) as f32;
        let sum = self.pixels(size).iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.x, sum.1 + point.y));
        Point { x: sum.0 / n, y: sum.1 / n }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::ObjectId;

    #[test]
    fn counts_are_those_of_the_last_event() {
        let place = |name: &str, counts| Place { name: name.into(), points: vec![], counts };
        let places = vec![place("door", Counts::Line { n_in: 3, n_out: 0 }), place("hall", Counts::Zone { occupancy: 0 })];
        let mut scene = Scene { places, ..Scene::default() };
        let event = |place: &str, kind| SceneEvent { kind, place: place.into(), track: ObjectId(1), label: None };
        let crossed = |direction, count| event("door", SceneEventKind::Crossed { direction, count });
        scene.follow(&[
            crossed(Direction::In, 4),
            crossed(Direction::Out, 1),
            event("hall", SceneEventKind::Entered { occupancy: 2 }),
            event("other", SceneEventKind::Entered { occupancy: 9 }),
        ]);
        let counts = |scene: &Scene| scene.places.iter().map(|place| place.counts).collect::<Vec<_>>();
        assert_eq!(counts(&scene), [Counts::Line { n_in: 4, n_out: 1 }, Counts::Zone { occupancy: 2 }]);
        scene.flush();
        assert_eq!(counts(&scene), [Counts::Line { n_in: 4, n_out: 1 }, Counts::Zone { occupancy: 0 }]);
    }
}
