//! Association by overlap only.
//!
//! A simplified variant of SORT: boxes are predicted with constant velocity, and pairs are matched greedily by IoU, as in the IOU tracker
//! (Bochinski et al., "High-Speed Tracking-by-Detection Without Using Image Information", AVSS 2017).
//!
//! 1. Detections are matched with the predicted boxes of the tracks.
//! 2. The remaining detections are matched with the last boxes of the remaining tracks.
//!
//! Both passes accept pairs by descending IoU. If the IoUs are equal, the older track comes first, then the earlier detection.

use super::assign::Candidate;
use super::{Motion, Track, TrackOptions, Tracker};
use crate::frame::{Detection, Rect};

/// The box of a track that detections are matched with.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ReferenceBox {
    Predicted,
    Last,
}

impl Tracker {
    /// Matches detections by overlap with the predicted, then with the last box.
    pub(super) fn match_overlap(&mut self, detections: &[Detection], options: &TrackOptions) {
        for reference in [ReferenceBox::Predicted, ReferenceBox::Last] {
            self.match_greedily(reference, detections, options);
        }
    }

    /// Matches the remaining tracks with the remaining detections, by descending IoU.
    fn match_greedily(&mut self, reference: ReferenceBox, detections: &[Detection], options: &TrackOptions) {
        self.candidates.clear();
        for (track_idx, track) in self.tracks.iter().enumerate().filter(|(_, track)| !track.is_seen()) {
            let Some(rect) = reference_box(track, reference) else { continue };
            for (detection_idx, detection) in detections.iter().enumerate().filter(|(idx, _)| self.is_unmatched[*idx]) {
                let iou = rect.iou(&detection.rect);
                // Check the IoU before the class: this rejects more pairs and is faster.
                if iou > 0.0 && iou >= options.iou_threshold && track.class.is_of(detection) {
                    self.candidates.push(Candidate { track_idx: track_idx as u32, detection_idx: detection_idx as u32, cost: -iou });
                }
            }
        }
        let by_age = |pair: &Candidate| (pair.track_idx, pair.detection_idx);
        self.candidates.sort_unstable_by(|a, b| a.cost.total_cmp(&b.cost).then_with(|| by_age(a).cmp(&by_age(b))));
        for pair in &self.candidates {
            let (track, detection_idx) = (&mut self.tracks[pair.track_idx as usize], pair.detection_idx as usize);
            if track.is_seen() || !self.is_unmatched[detection_idx] {
                continue; // Already part of a better pair.
            }
            self.is_unmatched[detection_idx] = false;
            track.update(detection_idx, &detections[detection_idx]);
        }
    }
}

/// Returns the box to match. Returns `None` for the last box if it equals the predicted box, because that box has been matched already.
fn reference_box(track: &Track, reference: ReferenceBox) -> Option<Rect> {
    match reference {
        ReferenceBox::Predicted => Some(track.predicted),
        ReferenceBox::Last => (!matches!(track.motion, Motion::Velocity(0.0, 0.0))).then_some(track.rect),
    }
}

/// Velocity of the center between two boxes, in pixels per frame.
pub(super) fn velocity(was: &Rect, is: &Rect, n_frames: u32) -> (f32, f32) {
    let center = |rect: &Rect| (rect.x + rect.width / 2.0, rect.y + rect.height / 2.0);
    let ((x, y), (was_x, was_y)) = (center(is), center(was));
    ((x - was_x) / n_frames as f32, (y - was_y) / n_frames as f32)
}
