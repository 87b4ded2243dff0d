//! The time between frames and between results, and association after a long time.
//!
//! The other methods of association compare boxes that overlap. At two frames per second, a walking person moves by a whole box between two
//! frames. So the longer the time between frames, the more the Kalman filter expects the velocity to change. After a long time between
//! results, the boxes of unmatched tracks and detections are also compared with a buffer around them (C-BIoU: Yang et al., WACV 2023). The
//! buffer is the distance that an object can move in this time.

use std::time::Duration;

use super::assign::Candidate;
use super::hybrid::overlaps;
use super::{Track, TrackOptions, Tracker};
use crate::frame::{Detection, Rect};

/// Time between frames up to which the noise of the filters is that of [`super::hybrid::NOISE`], in seconds.
const USUAL_SECONDS: f32 = 0.08;
/// The noise of the filters does not grow further than that of this multiple of the usual time.
const MAX_FACTOR: f32 = 8.0;
/// Maximum number of missing frames that are predicted one by one.
const MAX_FRAMES: f32 = 30.0;
/// Time between results from which objects may move out of their boxes, in seconds.
const FAR_SECONDS: f32 = 0.12;
/// Distance that an object moves in a second, and maximum buffer, relative to the square root of the area of its box.
const SPEED: f32 = 2.2;
const MAX_BUFFER: f32 = 1.0;
/// Part of the buffer for objects whose velocity is known.
const KNOWN: f32 = 0.5;
/// Number of results without the object after which a track is compared no longer.
const MAX_MISSED: u32 = 1;
/// Largest cost of a pair.
const LIMIT: f32 = 0.9;
/// Weight of the difference of the logarithms of width and height.
const SIZE_WEIGHT: f32 = 0.2;

/// The time between frames and results.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Number of frames to predict, of which all but the last are missing.
    pub(super) n_frames: u32,
    /// Time between frames relative to [`USUAL_SECONDS`], at least 1.
    pub(super) factor: f32,
    /// Usual time between frames.
    seconds: Option<f32>,
    /// Time since the last inferred frame.
    pub(super) since_results: f32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { n_frames: 1, factor: 1.0, seconds: None, since_results: 0.0 }
    }
}

impl Pace {
    /// Advances by the time between two frames. Returns whether it is the first one.
    pub(super) fn advance(&mut self, interval: Duration) -> bool {
        let seconds = interval.as_secs_f32();
        let known = self.seconds;
        let usual = known.map_or(seconds, |usual| usual + (seconds.min(2.0 * usual) - usual) / 8.0);
        self.n_frames = known.map_or(1, |usual| (seconds / usual.max(1e-3)).round().clamp(1.0, MAX_FRAMES) as u32);
        self.factor = (usual / USUAL_SECONDS).clamp(1.0, MAX_FACTOR);
        self.seconds = Some(usual);
        self.since_results += seconds;
        known.is_none()
    }

    /// A number of frames at the usual time between frames, as a number of frames that take as long.
    pub(super) fn n_hits(&self, n_frames: u32) -> u32 {
        (n_frames as f32 / self.factor).ceil() as u32
    }
}

impl Tracker {
    /// Matches tracks with detections that would start tracks, if the time between results is long.
    pub(super) fn match_far(&mut self, detections: &[Detection], options: &TrackOptions) {
        let seconds = self.pace.since_results;
        if seconds < FAR_SECONDS {
            return;
        }
        self.candidates.clear();
        for (detection_idx, detection) in detections.iter().enumerate() {
            if !self.is_unmatched[detection_idx] || !self.may_start(detection, options) {
                continue;
            }
            let is_open = |track: &Track| !track.is_seen() && track.n_missed <= MAX_MISSED && track.class.is_of(detection);
            for (track_idx, track) in self.tracks.iter().enumerate().filter(|(_, track)| is_open(track)) {
                let (was, is) = (&track.predicted, &detection.rect);
                let part = if track.n_hits > 1 { KNOWN } else { 1.0 };
                let buffer = part * (SPEED * seconds).min(MAX_BUFFER) * (was.width * was.height).sqrt();
                let (grown, found) = (with_buffer(was, buffer), with_buffer(is, buffer));
                if !overlaps(&grown, &found) {
                    continue;
                }
                let size = (is.height / was.height).ln().abs() + (is.width / was.width).ln().abs();
                let cost = 1.0 - grown.iou(&found) + SIZE_WEIGHT * size;
                if cost < LIMIT {
                    self.candidates.push(Candidate { track_idx: track_idx as u32, detection_idx: detection_idx as u32, cost });
                }
            }
        }
        // Candidates are grouped by track.
        self.candidates.sort_unstable_by_key(|candidate| (candidate.track_idx, candidate.detection_idx));
        self.assign(detections, LIMIT);
    }
}

fn with_buffer(rect: &Rect, buffer: f32) -> Rect {
    Rect { x: rect.x - buffer, y: rect.y - buffer, width: rect.width + 2.0 * buffer, height: rect.height + 2.0 * buffer }
}
