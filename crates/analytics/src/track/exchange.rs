//! Exchange of track IDs: corrects an ambiguous assignment as soon as the objects show that it was wrong. `Hybrid` only.
//!
//! When one object hides another, a single frame often does not show which detection belongs to which track. The assignment must still be
//! made, because the frame needs its track IDs. A tracker with multiple hypotheses follows all possible assignments from there (Reid, "An
//! Algorithm for Tracking Multiple Targets", IEEE Transactions on Automatic Control, 1979). This module follows one alternative: the same
//! two tracks with exchanged IDs.
//!
//! 1. A track has a contest with a rival track if the rival got the detection that the track needed, or if both tracks were matched, but
//!    could have exchanged their detections at almost the same cost. The contest stores where both objects were expected in that frame,
//!    their velocities, and their mean bottom edges. Later detections do not change these values.
//! 2. The contest is decided in the first frame in which both tracks have a detection, but not before [`DELAY`] frames have passed. If the
//!    detections fit the stored values better with exchanged IDs, the tracks exchange their IDs.
//!
//! The bottom edge has a large weight, because it shows the distance to the camera (the idea of SparseTrack: Liu et al., 2023), and objects
//! that pass each other keep the order of their distances. In 13 DanceTrack sequences, the order of the bottom edges is the same before and
//! after 94 % of the overlaps. The order of the heights is the same in 78 %. The difference of the mean bottom edges does not depend on the
//! motion of the camera.

use super::hybrid::{Weights, geometric_cost, overlaps};
use super::{Track, TrackOptions, Tracker};
use crate::frame::{Detection, ObjectId, Rect, Transform};

/// Smallest number of frames from the contest to the decision. Directly after the contest, the boxes still overlap.
const DELAY: u32 = 2;
/// The tracks exchange their IDs if this lowers the cost by more.
const MARGIN: f32 = 0.12;
/// Matched tracks have a contest if exchanged detections raise the cost by less.
const CONTEST_MARGIN: f32 = 0.5;
/// Smallest IoU of the predicted box of a track with the detection of its rival.
const CONTEST_IOU: f32 = 0.3;
const WEIGHTS: Weights = Weights { bottom: 3.0, size: 0.3 };
/// Weight of a new box in [`Track::mean_bottom`].
pub(super) const MEAN_RATE: f32 = 0.2;

/// An assignment that may be wrong.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contest {
    /// Track ID of the rival.
    rival: ObjectId,
    own: Course,
    of_rival: Course,
    /// [`Track::mean_bottom`] of the track minus that of the rival.
    bottom_difference: f32,
    /// Frames since the assignment.
    n_frames: u32,
}

/// The expected box of an object that moves with constant velocity.
#[derive(Debug, Clone, Copy)]
struct Course {
    rect: Rect,
    /// Pixels per frame.
    velocity: (f32, f32),
}

impl Contest {
    fn new(track: &Track, rival: &Track) -> Option<Self> {
        let course = |track: &Track| Course { rect: track.predicted, velocity: track.velocity };
        Some(Self {
            rival: rival.track_id?,
            own: course(track),
            of_rival: course(rival),
            bottom_difference: track.mean_bottom - rival.mean_bottom,
            n_frames: 0,
        })
    }

    /// Advances to the next frame.
    pub(super) fn predict(&mut self) {
        self.n_frames = self.n_frames.saturating_add(1);
        for Course { rect, velocity } in [&mut self.own, &mut self.of_rival] {
            (rect.x, rect.y) = (rect.x + velocity.0, rect.y + velocity.1);
        }
    }

    /// Moves the expected boxes with the camera.
    pub(super) fn map(&mut self, to: &Transform) {
        for course in [&mut self.own, &mut self.of_rival] {
            course.rect = to.apply(course.rect);
        }
        self.bottom_difference *= to.scale.1;
    }

    /// The cost of the assumption that `own` is the object of the track, and `of_rival` that of the rival.
    fn cost(&self, own: &Rect, of_rival: &Rect) -> f32 {
        let height = (self.own.rect.height + self.of_rival.rect.height) / 2.0;
        let bottom = (own.y_max() - of_rival.y_max() - self.bottom_difference).abs() / height;
        geometric_cost(&self.own.rect, own, WEIGHTS) + geometric_cost(&self.of_rival.rect, of_rival, WEIGHTS) + WEIGHTS.bottom * bottom
    }
}

impl Tracker {
    /// Decides contests, and finds new contests. Call this after the detections are matched.
    pub(super) fn exchange_ids(&mut self, detections: &[Detection], options: &TrackOptions) {
        for track_idx in 0..self.tracks.len() {
            self.decide_contest(track_idx, detections, options);
        }
        self.rivals.clear();
        let rivals = self.tracks.iter().enumerate().filter(|(_, track)| is_settled(track) && track.is_seen());
        self.rivals.extend(rivals.map(|(track_idx, track)| (track_idx as u32, track.rect)));
        for track_idx in 0..self.tracks.len() {
            let track = &self.tracks[track_idx];
            if track.contest.is_none() && is_settled(track) {
                self.tracks[track_idx].contest = self.find_rival(track).and_then(|rival| Contest::new(track, rival));
            }
        }
    }

    /// Decides the contest of a track, if both objects are detected. Removes a contest whose rival is lost or has ended.
    fn decide_contest(&mut self, track_idx: usize, detections: &[Detection], options: &TrackOptions) {
        let track = &self.tracks[track_idx];
        let Some(contest) = track.contest else { return };
        let rival_idx = self.tracks.iter().position(|rival| rival.track_id == Some(contest.rival) && !std::ptr::eq(rival, track));
        let rival = rival_idx.map(|idx| &self.tracks[idx]);
        let (own, of_rival) = (track.detection_idx, rival.and_then(|rival| rival.detection_idx));
        if rival.is_some() && (own.is_none() || of_rival.is_some() && contest.n_frames < DELAY) {
            return;
        }
        self.tracks[track_idx].contest = None;
        let (Some(rival_idx), Some(own), Some(of_rival)) = (rival_idx, own, of_rival) else { return };
        let [track, rival] = self.tracks.get_disjoint_mut([track_idx, rival_idx]).expect("different tracks");
        let [own, of_rival] = [&detections[own], &detections[of_rival]];
        let cost = |own: &Detection, of_rival: &Detection| {
            let appearance = track.appearance.distance(own) + rival.appearance.distance(of_rival);
            contest.cost(&own.rect, &of_rival.rect) + options.appearance_weight * appearance
        };
        if cost(of_rival, own) + MARGIN < cost(own, of_rival) {
            std::mem::swap(&mut track.track_id, &mut rival.track_id);
            std::mem::swap(&mut track.appearance, &mut rival.appearance);
        }
    }

    /// The track that may follow the object of `track` since the current frame.
    fn find_rival(&self, track: &Track) -> Option<&Track> {
        let cost = |track: &Track, detected: &Rect| geometric_cost(&track.predicted, detected, WEIGHTS);
        // The additional cost if `track` gets the detection of the rival.
        let loss = |rival: &Track| {
            let has_contest = rival.contest.is_some_and(|contest| Some(contest.rival) == track.track_id);
            if std::ptr::eq(rival, track) || has_contest || !rival.class.is_same(&track.class) {
                return None;
            }
            let loss = cost(track, &rival.rect);
            if !track.is_seen() {
                return Some(loss);
            }
            Some(loss + cost(rival, &track.rect) - cost(track, &track.rect) - cost(rival, &rival.rect))
                .filter(|loss| *loss < CONTEST_MARGIN)
        };
        let is_near = |rect: &Rect| overlaps(&track.predicted, rect) && track.predicted.iou(rect) >= CONTEST_IOU;
        let near = self.rivals.iter().filter(|(_, rect)| is_near(rect)).map(|(rival_idx, _)| &self.tracks[*rival_idx as usize]);
        near.filter_map(|rival| Some((loss(rival)?, rival))).min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, rival)| rival)
    }
}

/// Whether the track has an ID, and its object was detected in the last inferred frame before the current one.
fn is_settled(track: &Track) -> bool {
    track.track_id.is_some() && track.was_seen()
}
