//! Camera motion, estimated from the boxes.
//!
//! A moving camera shifts all boxes by the same amount, in addition to the predicted motion of each track. The estimate is the median
//! difference between detected and predicted boxes. It is correct as long as fewer than half of the objects change their own motion. Camera
//! motion compensation in trackers is usually estimated from pixels (Aharon et al., "BoT-SORT: Robust Associations Multi-Pedestrian
//! Tracking", 2022). Boxes need no pixels, so the estimate also works on encoded video and costs microseconds. It needs several objects.

use super::assign::{Assignment, Candidate};
use super::hybrid::overlaps;
use super::{Motion, Track};
use crate::frame::{Detection, Transform};

/// Smallest number of pairs for an estimate.
const MIN_PAIRS: usize = 5;
/// Largest cost (1 - IoU) of a pair.
const LIMIT: f32 = 0.9;

/// The estimator, with buffers that are reused from frame to frame.
#[derive(Debug, Default)]
pub(super) struct Camera {
    assignment: Assignment,
    candidates: Vec<Candidate>,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Camera {
    /// Moves the tracks with the camera. Only detections with at least this confidence are used.
    pub(super) fn compensate(&mut self, tracks: &mut [Track], detections: &[Detection], is_unmatched: &[bool], min_confidence: f32) {
        let Self { assignment, candidates, x, y } = self;
        candidates.clear();
        for (track_idx, track) in tracks.iter().enumerate().filter(|(_, track)| track.n_hits > 1 && track.n_missed <= 1) {
            for (detection_idx, detection) in detections.iter().enumerate() {
                if !is_unmatched[detection_idx] || detection.confidence < min_confidence || !overlaps(&track.predicted, &detection.rect) {
                    continue;
                }
                let cost = 1.0 - track.predicted.iou(&detection.rect);
                if cost < LIMIT && track.class.is_of(detection) {
                    candidates.push(Candidate { track_idx: track_idx as u32, detection_idx: detection_idx as u32, cost });
                }
            }
        }
        x.clear();
        y.clear();
        assignment.solve(tracks.len(), detections.len(), candidates, LIMIT, |track_idx, detection_idx| {
            let (predicted, detected) = (&tracks[track_idx].predicted, &detections[detection_idx].rect);
            x.push(detected.x + detected.width / 2.0 - predicted.x - predicted.width / 2.0);
            // Use the bottom edge: it is more stable than the center, because the height of a box changes with the camera angle.
            y.push(detected.y_max() - predicted.y_max());
        });
        if x.len() < MIN_PAIRS {
            return;
        }
        let (x, y) = (median(x), median(y));
        let shift = Transform { offset: (x, y), ..Transform::IDENTITY };
        for track in tracks {
            if let Motion::Box(filter) = &mut track.motion {
                filter.shift(x, y);
                if let Some(contest) = &mut track.contest {
                    contest.map(&shift);
                }
                (track.predicted.x, track.predicted.y) = (track.predicted.x + x, track.predicted.y + y);
                (track.rect.x, track.rect.y) = (track.rect.x + x, track.rect.y + y);
            }
        }
    }
}

/// The median. For an even number of values: the larger of the two middle values.
fn median(values: &mut [f32]) -> f32 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f32::total_cmp).1
}
