//! SORT and ByteTrack: Kalman filters of the corners, and optimal assignment by IoU.
//!
//! Sources: Bewley et al., "Simple Online and Realtime Tracking", ICIP 2016; Zhang et al., "ByteTrack: Multi-Object Tracking by Associating
//! Every Detection Box", ECCV 2022. State, noise and rules are those of the Python package `trackers` 2.6, and `tests/golden/tracks`
//! contains results of this package for comparison.

use super::assign::Candidate;
use super::kalman::{Coordinate, Noise};
use super::{Track, TrackOptions, Tracker};
use crate::frame::{Detection, Rect};

/// Variances of the filters, in square pixels: the same for boxes of all sizes.
const NOISE: Noise = Noise { value: 0.01, velocity: 0.01 };
const MEASUREMENT: f32 = 0.1;
/// ByteTrack starts tracks with detections whose confidence is this much above the limit of the first stage.
pub(super) const START_ABOVE_HIGH: f32 = 0.1;

/// Filters of the corners of a first box.
pub(super) fn filters(rect: &Rect) -> [Coordinate; 4] {
    corners(rect).map(|corner| Coordinate::new(corner, [1.0, 1.0]))
}

/// Advances the filters by one frame and returns the predicted box.
pub(super) fn predict(filters: &mut [Coordinate; 4]) -> Rect {
    filters.iter_mut().for_each(|filter| filter.predict(NOISE));
    let [x_min, y_min, x_max, y_max] = filters.map(|filter| filter.value);
    Rect::from_corners(x_min, y_min, x_max, y_max)
}

/// Corrects the filters with a detected box.
pub(super) fn update(filters: &mut [Coordinate; 4], rect: &Rect) {
    filters.iter_mut().zip(corners(rect)).for_each(|(filter, corner)| filter.update(corner, MEASUREMENT));
}

fn corners(rect: &Rect) -> [f32; 4] {
    [rect.x, rect.y, rect.x_max(), rect.y_max()]
}

impl Tracker {
    /// SORT: all detections in one stage.
    pub(super) fn match_sort(&mut self, detections: &[Detection], options: &TrackOptions) {
        self.match_by_iou(detections, options, |_, _| true);
    }

    /// ByteTrack: matches detections with a high confidence first. Detections with a lower confidence are then matched with the remaining
    /// tracks.
    pub(super) fn match_byte_track(&mut self, detections: &[Detection], options: &TrackOptions) {
        let high = options.high_confidence;
        self.match_by_iou(detections, options, |_, detection| detection.confidence >= high);
        self.match_by_iou(detections, options, |_, detection| detection.confidence < high);
    }

    /// Matches the remaining tracks and detections with the largest sum of IoU. Pairs below the threshold are dropped afterwards, as in the
    /// reference implementation.
    fn match_by_iou(&mut self, detections: &[Detection], options: &TrackOptions, is_candidate: impl Fn(&Track, &Detection) -> bool) {
        let Self { tracks, is_unmatched, candidates, pairs, assignment, .. } = self;
        candidates.clear();
        for (track_idx, track) in tracks.iter().enumerate().filter(|(_, track)| !track.is_seen()) {
            for (detection_idx, detection) in detections.iter().enumerate().filter(|(idx, _)| is_unmatched[*idx]) {
                let iou = track.predicted.iou(&detection.rect);
                if iou > 0.0 && is_candidate(track, detection) && track.class.is_of(detection) {
                    candidates.push(Candidate { track_idx: track_idx as u32, detection_idx: detection_idx as u32, cost: -iou });
                }
            }
        }
        pairs.clear();
        assignment
            .solve(tracks.len(), detections.len(), candidates, 0.0, |track_idx, detection_idx| pairs.push((track_idx, detection_idx)));
        for &(track_idx, detection_idx) in &*pairs {
            let (track, detection) = (&mut tracks[track_idx], &detections[detection_idx]);
            if track.predicted.iou(&detection.rect) >= options.iou_threshold {
                is_unmatched[detection_idx] = false;
                track.update(detection_idx, detection);
            }
        }
    }
}
