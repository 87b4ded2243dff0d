//! The configuration of a [`SceneCounter`](super::SceneCounter): lines, zones, the anchor point, and times.

use std::sync::Arc;
use std::time::Duration;

use super::shapes::{self, Ground};
use crate::frame::{Point, Rect, Size};

/// The point of a box that represents the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Anchor {
    /// The middle of the bottom edge: where a person or vehicle touches the ground.
    #[default]
    Bottom,
    Center,
    Top,
    Left,
    Right,
}

impl Anchor {
    /// The point of a box.
    pub fn of(self, rect: &Rect) -> Point {
        let (center_x, center_y) = (rect.x + rect.width / 2.0, rect.y + rect.height / 2.0);
        let (x, y) = match self {
            Self::Bottom => (center_x, rect.y_max()),
            Self::Center => (center_x, center_y),
            Self::Top => (center_x, rect.y),
            Self::Left => (rect.x, center_y),
            Self::Right => (rect.x_max(), center_y),
        };
        Point { x, y }
    }
}

/// Unit of the coordinates of lines, zones and ground points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Units {
    /// Fractions of the width and height of the frame, 0 to 1. Valid for any frame size.
    #[default]
    Fractions,
    /// Pixels of the frame.
    Pixels,
}

/// A line that objects cross.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub name: Arc<str>,
    pub from: Point,
    pub to: Point,
    /// Labels of the objects that count; empty: all.
    pub classes: Vec<Arc<str>>,
    /// Minimum time that an object must be on the old side before the crossing, and on the new side after it.
    pub min_time: Duration,
    /// Whether an object counts again if it returns and crosses in the same direction again.
    pub repeats: bool,
}

/// An area of the frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Zone {
    pub name: Arc<str>,
    /// At least three corners.
    pub corners: Vec<Point>,
    /// Labels of the objects that count; empty: all.
    pub classes: Vec<Arc<str>>,
    /// Minimum time inside until an object counts as entered, and minimum time outside until it counts as left.
    pub min_time: Duration,
    /// Time in the zone after which an object loiters; `None`: no loitering.
    pub loiter_time: Option<Duration>,
}

/// Lines, zones and settings of a scene.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    pub units: Units,
    pub anchor: Anchor,
    /// Distance from a line or border within which an object stays on its side, as a fraction of the height of its box. This prevents
    /// repeated crossings by a box that jitters.
    pub hysteresis: f32,
    /// Time without detection after which an object counts as having left its zones. Also the time in which a new track ID may continue an
    /// object.
    pub absence: Duration,
    pub lines: Vec<Line>,
    pub zones: Vec<Zone>,
    /// Four points of the image, and the same points on the ground in meters.
    pub ground: Option<([Point; 4], [Point; 4])>,
    /// Columns and rows of the heat map; 0: no heat map.
    pub heat_map: (usize, usize),
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            units: Units::Fractions,
            anchor: Anchor::Bottom,
            hysteresis: 0.05,
            absence: Duration::from_secs(1),
            lines: vec![],
            zones: vec![],
            ground: None,
            heat_map: (0, 0),
        }
    }
}

impl Layout {
    /// Checks names, lengths and corners.
    ///
    /// # Errors
    /// Returns a text with the expected and the actual value.
    pub fn check(&self) -> Result<(), String> {
        let names = || self.lines.iter().map(|line| &line.name).chain(self.zones.iter().map(|zone| &zone.name));
        if self.lines.is_empty() && self.zones.is_empty() && self.ground.is_none() && self.heat_map == (0, 0) {
            return Err("expected at least one line, zone, ground or heat map, got none".into());
        }
        for (idx, name) in names().enumerate() {
            if name.is_empty() || names().take(idx).any(|earlier| earlier == name) {
                return Err(format!("expected a name of its own for each line and zone, got {name:?} twice or empty"));
            }
        }
        let is_finite = |point: &Point| point.x.is_finite() && point.y.is_finite();
        for Line { name, from, to, .. } in &self.lines {
            if from == to || !is_finite(from) || !is_finite(to) {
                return Err(format!("line {name:?}: expected two different points, got {from:?} and {to:?}"));
            }
        }
        for Zone { name, corners, .. } in &self.zones {
            if corners.len() < 3 || !corners.iter().all(is_finite) {
                return Err(format!("zone {name:?}: expected at least three corners with finite coordinates, got {}", corners.len()));
            }
            if !shapes::has_area(corners) {
                let corners: Vec<String> = corners.iter().map(|corner| format!("({}, {})", corner.x, corner.y)).collect();
                return Err(format!(
                    "zone {name:?}: expected corners that enclose an area, got {}, which enclose none; no object could be inside",
                    corners.join(", ")
                ));
            }
        }
        let points = self.lines.iter().flat_map(|line| [&line.from, &line.to]).chain(self.zones.iter().flat_map(|zone| &zone.corners));
        if let Some(point) = points.into_iter().find(|point| self.units == Units::Fractions && (point.x.abs().max(point.y.abs())) > 2.0) {
            return Err(format!(
                "expected fractions of the frame, 0 to 1, got ({}, {}); for pixels, set units to pixels",
                point.x, point.y
            ));
        }
        if self.ground.is_some_and(|(image, meters)| Ground::new(image, meters).is_none()) {
            return Err("ground: expected four points in the image and four in meters; in neither may three points be on one line".into());
        }
        if !(0.0..=10.0).contains(&self.hysteresis) || self.heat_map.0.max(self.heat_map.1) > 1000 {
            return Err("expected a hysteresis of 0 to 10 and a heat map of at most 1000 columns and rows".into());
        }
        Ok(())
    }

    /// A point in pixels of a frame.
    pub(super) fn pixels(&self, point: Point, size: Size) -> Point {
        match self.units {
            Units::Fractions => Point { x: point.x * size.width as f32, y: point.y * size.height as f32 },
            Units::Pixels => point,
        }
    }
}
