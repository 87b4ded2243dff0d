//! The most accurate method. It uses overlap, height, bottom edge and confidence of the boxes, and camera motion.
//!
//! 1. The Kalman filter of each track predicts its box. Noise is proportional to the size of the box (BoT-SORT: Aharon et al., 2022), and
//!    larger for detections with a low confidence (NSA Kalman: Du et al., "GIAOTracker", ICCV workshops 2021).
//! 2. The tracks are moved with the camera, see `camera`.
//! 3. Tracks with an ID, including lost tracks, are assigned to detections with a high confidence.
//! 4. The remaining tracks with an ID are assigned to the remaining detections (ByteTrack: Zhang et al., ECCV 2022). A hidden object is
//!    often still detected, with a low confidence.
//! 5. For objects that stopped: lost tracks are compared again, with their last detected box instead of their predicted box
//!    (observation-centric recovery of OC-SORT: Cao et al., CVPR 2023).
//! 6. Tentative tracks are assigned to the remaining detections with a high confidence.
//! 7. A remaining detection of another class that covers the box of a track continues the track: detectors confuse similar classes.
//! 8. Tracks exchange their IDs if the objects show that an earlier assignment was wrong, see `exchange`.
//!
//! A remaining detection that mostly covers the box of a matched track starts no track, because it is a duplicate (TrackTrack: Shim et al.,
//! CVPR 2025, calls this track-aware initialization). A new track that overlaps another track gets its ID later than other tracks. Many of
//! these detections are boxes around two persons, or belong to a lost track that then continues.
//!
//! # Cost of a pair
//!
//! The cost is 1 minus the product of IoU and height IoU (intersection over union of the vertical intervals, from Hybrid-SORT: Yang et al.,
//! AAAI 2024), plus these terms:
//!
//! | term | why | source |
//! |---|---|---|
//! | distance of the bottom edges, relative to the height | it shows which object is nearer | the idea of SparseTrack: Liu et al., 2023 |
//! | difference of the logarithms of width and height | objects do not change their size from frame to frame | |
//! | difference from the extrapolated confidence | an object that becomes hidden loses confidence step by step | Hybrid-SORT |
//! | angle between the embeddings, if `appearance_weight` is set | objects that meet and turn around keep their IDs | DeepSORT: Wojke et al., ICIP 2017 |
//!
//! The weights were chosen with the public benchmarks MOT17 and DanceTrack, forwards and backwards in time, and with noise added to the
//! boxes.
//!
//! # How to measure a change
//!
//! One run on DanceTrack shows little. With noise of 0.3 % of the box size, HOTA varies between runs with a standard deviation of up to 0.8
//! (on MOT17: 0.2), and its mean is 0.6 to 1.0 lower than without noise. So compare the means of several runs with noise, forwards and
//! backwards, for each half of the sequences.
//!
//! `Hybrid` does not use the following ideas, because they do not raise HOTA in both halves of both data sets. Each number is the change
//! of HOTA: the mean of at least eight runs, with the best of the weights that were tried. The standard error is about 0.3 on DanceTrack and
//! 0.06 on MOT17.
//!
//! | idea | source | DanceTrack | MOT17 |
//! |---|---|---|---|
//! | consistent direction of motion | OC-SORT | -0.7 | 0.0 |
//! | velocity from the last two detections when a lost object is found again | the idea of OC-SORT | -0.7 | -0.1 |
//! | uncertain detections on the predicted box of a track count as certain | BoostTrack: Stanojevic and Todorovic, 2024 | -0.6 | -0.1 |
//! | Mahalanobis distance to the predicted box, for lost tracks | DeepSORT | -0.7 | 0.0 |
//! | buffered boxes for lost tracks | C-BIoU | 0.0 | 0.0 |
//! | one stage for all confidences, with a penalty | TrackTrack | 0.0 | -0.3 |
//! | overlap with the last box as part of the cost | | -0.6 | 0.0 |
//! | lost tracks slow down | | -0.5 | 0.1 |
//! | higher cost of tracks that are lost for 12 frames | | -0.1 | 0.1 |
//! | less trust in boxes of objects that another object covers | | -0.1 | 0.1 |
//! | ratio of the heights in the decision of `exchange` | | 0.0 | 0.0 |
//!
//! Of the contests whose objects can be identified in the ground truth, `exchange` decides 90.8 % correctly. A logistic regression of eleven
//! differences between boxes decides 90.6 % correctly, if it is fitted to the other half of the sequences.

use super::assign::Candidate;
use super::kalman::BoxNoise;
use super::{Track, TrackOptions, Tracker};
use crate::frame::{Detection, Rect};

/// Noise of the filters.
pub(super) const NOISE: BoxNoise = BoxNoise { value: 0.04, velocity: 0.006, measurement: 0.07, unsure: 1.5 };
/// An object with at least this confidence gets its ID after `min_hits` frames. With a lower confidence, it needs one more frame.
pub(super) const CERTAIN: f32 = 0.75;
/// Detections with a lower confidence are ignored, as a fraction of [`TrackOptions::high_confidence`].
const MIN_CONFIDENCE: f32 = 0.5;
/// Largest cost of a pair in each matching stage.
const HIGH_LIMIT: f32 = 0.95;
const LOW_LIMIT: f32 = 0.5;
const LAST_LIMIT: f32 = 0.7;
const TENTATIVE_LIMIT: f32 = 0.7;
/// Smallest IoU at which a detection of another class continues a track.
const OTHER_CLASS_IOU: f32 = 0.7;
/// A detection with a larger IoU with a matched track is a duplicate.
const DUPLICATE_IOU: f32 = 0.6;
/// A new object that overlaps a track with an ID by more than this IoU gets its ID after [`CROWDED_HITS`] frames.
const CROWDED_IOU: f32 = 0.2;
pub(super) const CROWDED_HITS: u32 = 4;
/// Weights of the cost terms.
const WEIGHTS: Weights = Weights { bottom: 1.0, size: 0.1 };
const CONFIDENCE_WEIGHT: f32 = 0.3;

impl Tracker {
    /// Matches the detections of a frame; see the module.
    pub(super) fn match_hybrid(&mut self, detections: &[Detection], options: &TrackOptions) {
        let high = options.high_confidence;
        self.camera.compensate(&mut self.tracks, detections, &self.is_unmatched, high);
        let is_high = |detection: &Detection| detection.confidence >= high;
        let is_known = |track: &Track| track.track_id.is_some();
        let predicted = |track: &Track| track.predicted;
        self.match_stage(detections, options, HIGH_LIMIT, is_known, is_high, predicted);
        self.match_stage(detections, options, LOW_LIMIT, is_known, |_| true, predicted);
        self.match_stage(detections, options, LAST_LIMIT, |track| is_known(track) && !track.was_seen(), is_high, |track| track.rect);
        self.match_stage(detections, options, TENTATIVE_LIMIT, |track| !is_known(track), is_high, predicted);
        self.match_other_classes(detections, options);
    }

    /// Matches tracks for which `is_candidate` is true with detections for which `is_eligible` is true, if they are not matched yet.
    fn match_stage(
        &mut self,
        detections: &[Detection],
        options: &TrackOptions,
        limit: f32,
        is_candidate: impl Fn(&Track) -> bool,
        is_eligible: impl Fn(&Detection) -> bool,
        reference: impl Fn(&Track) -> Rect,
    ) {
        let min_confidence = MIN_CONFIDENCE * options.high_confidence;
        self.candidates.clear();
        for (track_idx, track) in self.tracks.iter().enumerate().filter(|(_, track)| !track.is_seen() && is_candidate(track)) {
            let rect = reference(track);
            for (detection_idx, detection) in detections.iter().enumerate() {
                let is_open =
                    self.is_unmatched[detection_idx] && overlaps(&rect, &detection.rect) && detection.confidence >= min_confidence;
                if is_open && is_eligible(detection) && track.class.is_of(detection) {
                    let mut cost = cost(track, &rect, detection);
                    // The distance is not negative, so it cannot bring the cost below the limit.
                    if cost < limit && options.appearance_weight > 0.0 {
                        cost += options.appearance_weight * track.appearance.distance(detection);
                    }
                    if cost < limit {
                        self.candidates.push(Candidate { track_idx: track_idx as u32, detection_idx: detection_idx as u32, cost });
                    }
                }
            }
        }
        self.assign(detections, limit);
    }

    /// Continues tracks with detections of another class in the same place.
    fn match_other_classes(&mut self, detections: &[Detection], options: &TrackOptions) {
        let min_confidence = MIN_CONFIDENCE * options.high_confidence;
        self.candidates.clear();
        for (track_idx, track) in self.tracks.iter().enumerate().filter(|(_, track)| !track.is_seen() && track.was_seen()) {
            for (detection_idx, detection) in detections.iter().enumerate().filter(|(idx, _)| self.is_unmatched[*idx]) {
                let cost = 1.0 - track.predicted.iou(&detection.rect);
                if cost < 1.0 - OTHER_CLASS_IOU && detection.confidence >= min_confidence && !track.class.is_of(detection) {
                    self.candidates.push(Candidate { track_idx: track_idx as u32, detection_idx: detection_idx as u32, cost });
                }
            }
        }
        self.assign(detections, 1.0 - OTHER_CLASS_IOU);
    }

    /// Whether a matched track of the same class covers most of the detection.
    pub(super) fn is_duplicate(&self, detection: &Detection) -> bool {
        let mut matched = self.tracks.iter().filter(|track| track.is_seen());
        matched.any(|track| track.rect.iou(&detection.rect) > DUPLICATE_IOU && track.class.is_of(detection))
    }

    /// Whether the detection overlaps a track of the same class that has an ID.
    pub(super) fn is_crowded(&self, detection: &Detection) -> bool {
        let rect = |track: &Track| if track.is_seen() { track.rect } else { track.predicted };
        let mut known = self.tracks.iter().filter(|track| track.track_id.is_some());
        known.any(|track| rect(track).iou(&detection.rect) > CROWDED_IOU && track.class.is_of(detection))
    }
}

/// The cost of a pair; see the module. `was` is the box of the track.
fn cost(track: &Track, was: &Rect, detection: &Detection) -> f32 {
    let [last, earlier] = track.confidences;
    let expected = if track.was_seen() { (2.0 * last - earlier).clamp(0.1, 1.0) } else { last };
    geometric_cost(was, &detection.rect, WEIGHTS) + CONFIDENCE_WEIGHT * (expected - detection.confidence).abs()
}

/// Weights of the terms of [`geometric_cost`] relative to that of the overlap.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weights {
    pub bottom: f32,
    pub size: f32,
}

/// The part of the cost that depends on the boxes.
pub(super) fn geometric_cost(was: &Rect, is: &Rect, weights: Weights) -> f32 {
    let bottom = (is.y_max() - was.y_max()).abs() / was.height;
    let size = (is.height / was.height).ln().abs() + (is.width / was.width).ln().abs();
    1.0 - was.iou(is) * height_iou(was, is) + weights.bottom * bottom + weights.size * size
}

/// Whether two boxes overlap. This is faster than the IoU.
pub(super) fn overlaps(a: &Rect, b: &Rect) -> bool {
    // Evaluating all comparisons is faster than a branch for each, because these branches are hard to predict.
    (a.x < b.x_max()) & (b.x < a.x_max()) & (a.y < b.y_max()) & (b.y < a.y_max())
}

/// Intersection over union of the vertical intervals of two overlapping boxes.
fn height_iou(a: &Rect, b: &Rect) -> f32 {
    (a.y_max().min(b.y_max()) - a.y.max(b.y)) / (a.y_max().max(b.y_max()) - a.y.min(b.y))
}
