//! Trails: where tracked objects were in the last frames.

use std::collections::{HashMap, VecDeque};

use crate::draw::{Canvas, Rgb};
use crate::frame::{FrameResults, ObjectId, Point};

/// Maximum number of trails. The time to draw a frame stays bounded.
const MAX_TRAILS: usize = 500;

/// The trail of one object.
#[derive(Debug)]
struct Trail {
    /// The middle of the bottom edge of the box, oldest first.
    points: VecDeque<Point>,
    color: Rgb,
    is_seen: bool,
}

/// The trails of a stream.
#[derive(Debug, Default)]
pub(crate) struct Trails(HashMap<ObjectId, Trail>);

impl Trails {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the positions of a frame. The trail of an object that is not in the frame gets shorter.
    pub(crate) fn follow(&mut self, results: &FrameResults, length: usize, color: impl Fn(&crate::frame::Detection) -> Rgb) {
        if length == 0 {
            return self.clear();
        }
        self.0.values_mut().for_each(|trail| trail.is_seen = false);
        for detection in results.detections.iter().filter(|detection| detection.rect.is_proper()) {
            let Some(track) = detection.track else { continue };
            if self.0.len() >= MAX_TRAILS && !self.0.contains_key(&track) {
                continue;
            }
            let trail = self.0.entry(track).or_insert_with(|| Trail { points: VecDeque::new(), color: [0; 3], is_seen: false });
            (trail.color, trail.is_seen) = (color(detection), true);
            trail.points.push_back(Point { x: detection.rect.x + detection.rect.width / 2.0, y: detection.rect.y_max() });
        }
        self.0.retain(|_, trail| {
            let n_more = trail.points.len().saturating_sub(length).max(usize::from(!trail.is_seen));
            trail.points.drain(..n_more);
            !trail.points.is_empty()
        });
    }

    pub(crate) fn draw(&self, canvas: &mut Canvas, thickness: u32) {
        let mut trails: Vec<_> = self.0.iter().collect();
        // The order must not depend on the hash map, so that the same results give the same pixels.
        trails.sort_unstable_by_key(|(track, _)| **track);
        for (_, trail) in trails {
            let ink = canvas.ink(trail.color);
            let Some(mut from) = trail.points.front() else { continue };
            for (idx, to) in trail.points.iter().enumerate().skip(1) {
                // An object that hardly moves has many points at one place.
                if (to.x - from.x).hypot(to.y - from.y) >= 2.0 * thickness as f32 || idx + 1 == trail.points.len() {
                    canvas.line((from.x, from.y), (to.x, to.y), thickness, ink);
                    from = to;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Detection, Rect, Size};

    fn frame(tracks: &[(i32, f32)]) -> FrameResults {
        let detection = |(track, x): &(i32, f32)| Detection {
            id: ObjectId(1),
            track: Some(ObjectId(*track)),
            track_state: None,
            parent: None,
            rect: Rect { x: *x, y: 0.0, width: 10.0, height: 20.0 },
            keypoints: vec![],
            confidence: 0.9,
            label_id: 0,
            label: None,
            classifications: vec![],
        };
        FrameResults { size: Size::new(100, 100), detections: tracks.iter().map(detection).collect(), ..FrameResults::default() }
    }

    #[test]
    fn trails_have_the_last_positions_and_end_after_the_object() {
        let mut trails = Trails::default();
        let lengths = |trails: &Trails| {
            let mut lengths: Vec<_> = trails.0.iter().map(|(track, trail)| (track.0, trail.points.len())).collect();
            lengths.sort_unstable();
            lengths
        };
        for n in 0..6 {
            trails.follow(&frame(&[(1, n as f32), (2, 50.0)]), 4, |_| [0; 3]);
        }
        assert_eq!(lengths(&trails), [(1, 4), (2, 4)]);
        assert_eq!(trails.0[&ObjectId(1)].points[3], Point { x: 10.0, y: 20.0 });
        for expected in [vec![(1, 4), (2, 3)], vec![(1, 4), (2, 2)], vec![(1, 4), (2, 1)], vec![(1, 4)]] {
            trails.follow(&frame(&[(1, 9.0)]), 4, |_| [0; 3]);
            assert_eq!(lengths(&trails), expected);
        }
        trails.follow(&frame(&[(1, 9.0)]), 0, |_| [0; 3]);
        assert!(trails.is_empty());
    }
}
