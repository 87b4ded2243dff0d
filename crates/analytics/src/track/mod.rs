//! Object tracking: gives each object a track ID that stays the same from frame to frame.
//!
//! | method | prediction | association | source |
//! |---|---|---|---|
//! | [`Method::Hybrid`] | Kalman filter of center and size, camera motion | optimal, in two stages by confidence, see [`hybrid`] | below |
//! | [`Method::ByteTrack`] | Kalman filter of the corners | optimal by IoU, in two stages by confidence | Zhang et al., ECCV 2022 |
//! | [`Method::Sort`] | Kalman filter of the corners | optimal by IoU | Bewley et al., ICIP 2016 |
//! | [`Method::Iou`] | constant velocity | greedy by IoU, with the predicted and with the last box | Bochinski et al., AVSS 2017 |
//!
//! IoU is the intersection of two boxes over their union. Reading order: this file manages the tracks. `hybrid`, `classic` and `overlap`
//! match tracks with detections, and `pace` does so if the time between results is long. `exchange` corrects wrong matches. `camera` estimates the motion of the camera, and
//! `appearance` compares embeddings. `kalman` and `assign` contain the mathematics.
//!
//! # Life of a track
//!
//! - An object that matches no track starts a tentative track. The track gets its ID after [`TrackOptions::min_hits`] frames with the
//!   object. An uncertain object needs one frame more, and an object that overlaps a track needs four frames (`Hybrid` only).
//! - A track whose object is not detected is lost. It predicts where the object is, and continues with the same ID when the object is found
//!   again. It ends after [`TrackOptions::max_age`] inferred frames. A tentative track ends in the first frame without a matching
//!   detection.
//! - A track matches detections of its own class. With `Hybrid`, it also matches a detection of another class that covers its predicted box
//!   and matches no other track, because detectors confuse similar classes.
//!
//! A frame without inference does not age the tracks. Detections that are carried over into such a frame keep their track IDs.
//!
//! If the motion of the camera is known, [`Tracker::set_camera_motion`] moves the boxes of all tracks with the image. Lost tracks are then found
//! again although the camera has turned. `Hybrid` also estimates this motion from the boxes, if the frame has several objects.
//!
//! The number of tracks is bounded. Buffers are reused, so nothing is allocated in steady state. The tracker reads no pixels and no clocks,
//! so its output depends on its input only.

mod appearance;
mod assign;
mod camera;
mod classic;
mod exchange;
pub mod hybrid;
mod kalman;
mod overlap;
mod pace;

use std::sync::Arc;
use std::time::Duration;

use appearance::Appearance;
use assign::{Assignment, Candidate};
use exchange::Contest;
use kalman::{BoxFilter, Coordinate};
use pace::Pace;

use crate::frame::{Detection, FrameResults, InferenceStatus, LostTrack, ObjectId, Rect, Size, TrackState, Transform};

/// How detections are associated with tracks; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// Overlap, size, position and confidence, with camera motion: the most accurate method.
    #[default]
    Hybrid,
    /// Kalman filter and overlap. Detections with a high confidence are matched first.
    ByteTrack,
    /// Kalman filter and overlap.
    Sort,
    /// Overlap only: the fastest method.
    Iou,
}

/// Options of a tracker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrackOptions {
    /// The method of association. Default: `Hybrid`.
    pub method: Method,
    /// Minimum IoU of a detection with the box of its track, 0 to 1. `Hybrid` does not use it. Default: 0.3.
    pub iou_threshold: f32,
    /// `Hybrid` and `ByteTrack`: detections with at least this confidence are associated first, and only these start tracks (`ByteTrack`
    /// starts tracks only if the confidence is 0.1 higher). Other detections continue tracks. `Hybrid` ignores detections with less than
    /// half of this confidence. Default: 0.5.
    pub high_confidence: f32,
    /// Number of consecutive inferred frames without a matching detection after which a track ends. Default: 30.
    pub max_age: u32,
    /// Number of consecutive frames with a matching detection until a track gets its ID. Default: 1.
    pub min_hits: u32,
    /// Maximum number of tracks, including lost tracks. Default: 1000.
    pub max_tracks: usize,
    /// `Hybrid`: weight of the difference of embeddings in the cost of a pair, see [`hybrid`]. 0: embeddings are not used. Default: 0.
    pub appearance_weight: f32,
    /// Whether lost tracks are added to the results. Default: false.
    pub reports_lost: bool,
}

impl Default for TrackOptions {
    fn default() -> Self {
        Self {
            method: Method::Hybrid,
            iou_threshold: 0.3,
            high_confidence: 0.5,
            max_age: 30,
            min_hits: 1,
            max_tracks: 1000,
            appearance_weight: 0.0,
            reports_lost: false,
        }
    }
}

/// The tracker; see the module.
#[derive(Debug, Default)]
pub struct Tracker {
    /// Oldest first.
    tracks: Vec<Track>,
    /// Size of the frame that the boxes of the tracks refer to.
    size: Size,
    counts: TrackCounts,
    /// Buffers, reused from frame to frame.
    is_unmatched: Vec<bool>,
    candidates: Vec<Candidate>,
    pairs: Vec<(usize, usize)>,
    assignment: Assignment,
    camera: camera::Camera,
    /// Tracks that may be rivals in a contest, and their boxes. Searching this list is faster than searching `tracks`.
    rivals: Vec<(u32, Rect)>,
    /// Transform from the previous frame to the next frame.
    camera_motion: Option<Transform>,
    pace: Pace,
}

/// Counters of a [`Tracker`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrackCounts {
    /// Current tracks, including tentative and lost tracks.
    pub n_tracks: u64,
    /// Current tracks with an ID whose object was not detected in the last inferred frame.
    pub n_lost: u64,
    /// Track IDs assigned.
    pub n_started: u64,
    /// Tracks with an ID that ended. Tracks that [`Tracker::reset`] removes do not count.
    pub n_ended: u64,
    /// Lost tracks whose object was found again.
    pub n_recovered: u64,
    /// Objects with a track ID, summed over all frames.
    pub n_tracked: u64,
    /// Objects that got no track because [`TrackOptions::max_tracks`] was reached.
    pub n_refused: u64,
}

#[derive(Debug)]
struct Track {
    /// The track ID; `None` while the track is tentative.
    track_id: Option<ObjectId>,
    class: Class,
    /// Last detected box.
    rect: Rect,
    /// Moving average of the bottom edge of the detected boxes. The motion that `camera` estimates from the boxes does not move it, because
    /// the errors of these estimates would add up.
    mean_bottom: f32,
    /// Predicted box in the current frame.
    predicted: Rect,
    /// Velocity of the predicted box in pixels per frame. `Hybrid` only.
    velocity: (f32, f32),
    motion: Motion,
    appearance: Appearance,
    /// Confidences of the last two detections, the last one first.
    confidences: [f32; 2],
    /// ID of the last detection.
    last_detection: ObjectId,
    n_hits: u32,
    /// Frames since the last detection.
    n_frames: u32,
    /// Inferred frames since the last detection.
    n_missed: u32,
    /// Number of detections until the track gets its ID, if it is larger than [`TrackOptions::min_hits`]. `Hybrid` only.
    n_required: u32,
    /// An assignment that may have to be corrected. `Hybrid` only.
    contest: Option<Contest>,
    /// The detection that matches in the current frame.
    detection_idx: Option<usize>,
}

/// The class of a track: the label that most of its detections had.
#[derive(Debug, Clone)]
struct Class {
    label_id: u32,
    label: Option<Arc<str>>,
    /// Counter of the majority vote: detections with this label minus detections with other labels.
    n_votes: u32,
}

/// Motion model of a track. Coordinates are in pixels, velocities in pixels per frame.
#[derive(Debug)]
enum Motion {
    /// Velocity of the center.
    Velocity(f32, f32),
    /// Filters of left, top, right and bottom edge.
    Corners([Coordinate; 4]),
    /// Filter of center and size.
    Box(BoxFilter),
}

impl Tracker {
    /// Processes the next frame and sets the track IDs of the frame's detections.
    ///
    /// Only detections for which `is_tracked` returns true are tracked. `new_track_id` creates IDs. Detections that already have a track ID
    /// keep it. A changed method ends all tracks.
    pub fn update(
        &mut self,
        results: &mut FrameResults,
        options: &TrackOptions,
        is_tracked: impl Fn(&Detection) -> bool,
        mut new_track_id: impl FnMut() -> ObjectId,
    ) {
        if self.tracks.iter().any(|track| !track.motion.is_of(options.method)) {
            self.reset();
        }
        self.rescale_tracks(results.size);
        let is_inferred = results.status == InferenceStatus::Inferred;
        let detections = &mut *results.detections;
        self.is_unmatched.clear();
        self.is_unmatched.extend(detections.iter().map(|found| found.track.is_none() && found.rect.is_proper() && is_tracked(found)));
        for _ in 0..self.pace.n_frames {
            self.tracks.iter_mut().for_each(|track| track.predict(self.pace.factor));
        }
        self.pace.n_frames = 1;
        if let Some(motion) = self.camera_motion.take() {
            self.tracks.iter_mut().for_each(|track| track.map(&motion));
        }
        if !is_inferred {
            self.match_carried_over(detections);
        }
        match options.method {
            Method::Hybrid => self.match_hybrid(detections, options),
            Method::ByteTrack => self.match_byte_track(detections, options),
            Method::Sort => self.match_sort(detections, options),
            Method::Iou => self.match_overlap(detections, options),
        }
        if is_inferred {
            self.match_far(detections, options);
            self.pace.since_results = 0.0;
        }
        if options.method == Method::Hybrid && is_inferred {
            self.exchange_ids(detections, options);
        }
        for track in &mut self.tracks {
            self.counts.assign_track_id(track, detections, options, &mut new_track_id);
        }
        if is_inferred {
            self.age_tracks(options);
        }
        for (detection_idx, detection) in detections.iter_mut().enumerate() {
            if self.is_unmatched[detection_idx] && self.may_start(detection, options) {
                self.start_track(detection_idx, detection, options, &mut new_track_id);
            }
        }
        if options.method == Method::Hybrid && options.appearance_weight > 0.0 && is_inferred {
            for track in &mut self.tracks {
                if let Some(detection_idx) = track.detection_idx {
                    track.appearance.update(&detections[detection_idx]);
                }
            }
        }
        if options.reports_lost {
            results.lost_tracks.extend(self.tracks.iter().filter_map(Track::lost));
        }
        self.counts.n_tracks = self.tracks.len() as u64;
        self.counts.n_lost = self.tracks.iter().filter(|track| track.n_missed > 0).count() as u64;
    }

    /// Sets the motion of the camera for the next frame: the transform from coordinates of the previous frame to coordinates of the next frame.
    /// Without a call, the camera does not move.
    pub fn set_camera_motion(&mut self, motion: Option<Transform>) {
        self.camera_motion = motion;
    }

    /// Sets the time from the previous frame to the next frame. The longer it is, the farther an object may have moved, see `pace`. Without a
    /// call, the next frame follows the previous one as usual.
    pub fn set_interval(&mut self, interval: Duration) {
        if self.pace.advance(interval) {
            // The filters were created before the time between frames was known.
            let factor = self.pace.factor;
            self.tracks.iter_mut().for_each(|track| track.motion.restart(&track.rect, factor));
        }
    }

    /// Removes all tracks. Call this for a new stream or after a seek.
    pub fn reset(&mut self) {
        self.tracks.clear();
        self.pace = Pace::default();
        self.camera_motion = None;
        self.size = Size::default();
        (self.counts.n_tracks, self.counts.n_lost) = (0, 0);
    }

    /// Counters since the tracker was created.
    pub fn counts(&self) -> TrackCounts {
        self.counts
    }

    /// Scales the tracks when the frame size changes. The velocities start again from 0.
    fn rescale_tracks(&mut self, size: Size) {
        if self.size != size && self.size.width > 0 && self.size.height > 0 {
            for track in &mut self.tracks {
                track.rect = track.rect.rescaled(self.size, size);
                track.motion.restart(&track.rect, self.pace.factor);
                track.mean_bottom = track.rect.y_max();
                track.contest = None;
            }
        }
        self.size = size;
    }

    /// Matches carried-over detections by detection ID. Their tracks are not updated, because the boxes are not new. Detections whose state is
    /// [`TrackState::Predicted`] move to the predicted boxes of their tracks, and their children with them.
    fn match_carried_over(&mut self, detections: &mut [Detection]) {
        let mut moved: Vec<(ObjectId, Rect, Rect)> = Vec::new();
        for (detection_idx, detection) in detections.iter_mut().enumerate() {
            let is_unmatched = &mut self.is_unmatched[detection_idx];
            let is_it = |track: &&mut Track| *is_unmatched && !track.is_seen() && track.last_detection == detection.id;
            if let Some(track) = self.tracks.iter_mut().find(is_it) {
                track.detection_idx = Some(detection_idx);
                *is_unmatched = false;
                detection.track = track.track_id;
                let is_predicted = detection.track_state == Some(TrackState::Predicted);
                detection.track_state = Some(match track.track_id {
                    None => TrackState::Tentative,
                    Some(_) if is_predicted => TrackState::Predicted,
                    Some(_) => TrackState::Held,
                });
                // The corners of an object that shrinks may have passed each other.
                if is_predicted && track.predicted.is_proper() {
                    moved.push((detection.id, detection.rect, track.predicted));
                    detection.move_to(track.predicted);
                }
                self.counts.n_tracked += u64::from(track.track_id.is_some());
            }
        }
        // Children of children move, too. A child may have a track of its own, which has moved it.
        let mut n_done = 0;
        while let Some(&(parent, was, is)) = moved.get(n_done) {
            n_done += 1;
            for child in detections.iter_mut().filter(|child| child.parent == Some(parent)) {
                if moved.iter().all(|(id, ..)| *id != child.id) {
                    let place = child.rect.moved_with(was, is);
                    moved.push((child.id, child.rect, place));
                    child.move_to(place);
                }
            }
        }
    }

    /// Solves the assignment of `self.candidates`, and updates the tracks of all pairs.
    fn assign(&mut self, detections: &[Detection], limit: f32) {
        let Self { tracks, assignment, candidates, is_unmatched, .. } = self;
        assignment.solve(tracks.len(), detections.len(), candidates, limit, |track_idx, detection_idx| {
            is_unmatched[detection_idx] = false;
            tracks[track_idx].update(detection_idx, &detections[detection_idx]);
        });
    }

    /// Whether a detection that matches no track may start one.
    fn may_start(&self, detection: &Detection, options: &TrackOptions) -> bool {
        match options.method {
            Method::Hybrid => detection.confidence >= options.high_confidence && !self.is_duplicate(detection),
            Method::ByteTrack => detection.confidence >= options.high_confidence + classic::START_ABOVE_HIGH,
            Method::Sort | Method::Iou => true,
        }
    }

    /// Ends tracks that are lost for more than `max_age` frames, and unmatched tentative tracks.
    fn age_tracks(&mut self, options: &TrackOptions) {
        let n_ended = &mut self.counts.n_ended;
        self.tracks.retain_mut(|track| {
            if track.is_seen() {
                track.n_missed = 0;
                return true;
            }
            track.n_missed = track.n_missed.saturating_add(1);
            let stays = track.track_id.is_some() && track.n_missed <= options.max_age;
            *n_ended += u64::from(track.track_id.is_some() && !stays);
            stays
        });
    }

    /// Starts a track for a new object.
    fn start_track(
        &mut self,
        detection_idx: usize,
        detection: &mut Detection,
        options: &TrackOptions,
        new_track_id: &mut impl FnMut() -> ObjectId,
    ) {
        if self.tracks.len() >= options.max_tracks && !self.evict() {
            self.counts.n_refused += 1;
            return;
        }
        let mut track = Track::new(detection_idx, detection, options.method, self.pace.factor);
        if options.method == Method::Hybrid && self.is_crowded(detection) {
            track.n_required = self.pace.n_hits(hybrid::CROWDED_HITS);
        }
        self.counts.name_track(&mut track, detection, options, new_track_id);
        self.tracks.push(track);
    }

    /// Evicts the track that has been lost longest; of tracks lost equally long, the oldest. Returns false if no track is lost.
    fn evict(&mut self) -> bool {
        let lost = self.tracks.iter().enumerate().filter(|(_, track)| !track.is_seen());
        // `max_by_key` returns the last of equal elements.
        let Some((track_idx, _)) = lost.rev().max_by_key(|(_, track)| track.n_frames) else { return false };
        let track = self.tracks.remove(track_idx);
        self.counts.n_ended += u64::from(track.track_id.is_some());
        true
    }
}

impl Track {
    fn new(detection_idx: usize, detection: &Detection, method: Method, pace: f32) -> Self {
        Self {
            track_id: None,
            class: Class { label_id: detection.label_id, label: detection.label.clone(), n_votes: 1 },
            rect: detection.rect,
            mean_bottom: detection.rect.y_max(),
            predicted: detection.rect,
            velocity: (0.0, 0.0),
            motion: Motion::new(&detection.rect, method, pace),
            appearance: Appearance::default(),
            confidences: [detection.confidence; 2],
            last_detection: detection.id,
            n_hits: 1,
            n_frames: 0,
            n_missed: 0,
            n_required: 0,
            contest: None,
            detection_idx: Some(detection_idx),
        }
    }

    /// Returns the track as a lost track, if it has an ID and its object was not detected in the last inferred frame.
    fn lost(&self) -> Option<LostTrack> {
        let track = self.track_id.filter(|_| !self.is_seen() && self.n_missed > 0)?;
        let Class { label_id, label, .. } = &self.class;
        Some(LostTrack { track, rect: self.predicted, label_id: *label_id, label: label.clone(), n_missed: self.n_missed })
    }

    /// Whether the track has a detection in the current frame.
    fn is_seen(&self) -> bool {
        self.detection_idx.is_some()
    }

    /// Whether the track had a detection in the last inferred frame before the current one.
    fn was_seen(&self) -> bool {
        self.n_missed == 0
    }

    /// Advances the track to the next frame.
    fn predict(&mut self, pace: f32) {
        self.n_frames = self.n_frames.saturating_add(1);
        self.detection_idx = None;
        let was_seen = self.was_seen();
        self.predicted = self.motion.predict(&self.rect, self.n_frames, pace, was_seen);
        if let Motion::Box(filter) = &self.motion {
            self.velocity = filter.velocity();
        }
        if let Some(contest) = &mut self.contest {
            contest.predict();
        }
    }

    /// Moves the track with the camera.
    fn map(&mut self, to: &Transform) {
        (self.rect, self.predicted) = (to.apply(self.rect), to.apply(self.predicted));
        self.mean_bottom = self.mean_bottom * to.scale.1 + to.offset.1;
        match &mut self.motion {
            Motion::Box(filter) => filter.map(to),
            Motion::Corners([left, top, right, bottom]) => {
                let (scale, offset) = (to.scale, to.offset);
                (left.value, right.value) = (left.value * scale.0 + offset.0, right.value * scale.0 + offset.0);
                (top.value, bottom.value) = (top.value * scale.1 + offset.1, bottom.value * scale.1 + offset.1);
            }
            Motion::Velocity(..) => {}
        }
        if let Some(contest) = &mut self.contest {
            contest.map(to);
        }
    }

    /// Updates the track with a detection.
    fn update(&mut self, detection_idx: usize, detection: &Detection) {
        self.motion.update(&self.rect, detection, self.n_frames.max(1), self.n_hits < 2);
        let earlier = if self.n_missed > 0 { detection.confidence } else { self.confidences[0] };
        self.confidences = [detection.confidence, earlier];
        self.class.vote(detection);
        self.rect = detection.rect;
        self.mean_bottom += exchange::MEAN_RATE * (detection.rect.y_max() - self.mean_bottom);
        self.last_detection = detection.id;
        self.n_hits = self.n_hits.saturating_add(1);
        self.n_frames = 0;
        self.detection_idx = Some(detection_idx);
    }
}

impl Class {
    fn is_same(&self, other: &Self) -> bool {
        self.label_id == other.label_id && self.label == other.label
    }

    fn is_of(&self, detection: &Detection) -> bool {
        self.label_id == detection.label_id && self.label == detection.label
    }

    /// Counts the label of a detection in the majority vote (algorithm of Boyer and Moore, 1991).
    fn vote(&mut self, detection: &Detection) {
        if self.is_of(detection) {
            self.n_votes = self.n_votes.saturating_add(1);
        } else if self.n_votes > 1 {
            self.n_votes -= 1;
        } else {
            (self.label_id, self.label) = (detection.label_id, detection.label.clone());
        }
    }
}

impl Motion {
    fn new(rect: &Rect, method: Method, pace: f32) -> Self {
        match method {
            Method::Hybrid => Self::Box(BoxFilter::new(rect, &hybrid::NOISE, pace)),
            Method::ByteTrack | Method::Sort => Self::Corners(classic::filters(rect)),
            Method::Iou => Self::Velocity(0.0, 0.0),
        }
    }

    fn is_of(&self, method: Method) -> bool {
        match self {
            Self::Box(_) => method == Method::Hybrid,
            Self::Corners(_) => matches!(method, Method::ByteTrack | Method::Sort),
            Self::Velocity(..) => method == Method::Iou,
        }
    }

    fn restart(&mut self, rect: &Rect, pace: f32) {
        *self = match self {
            Self::Box(_) => Self::Box(BoxFilter::new(rect, &hybrid::NOISE, pace)),
            Self::Corners(_) => Self::Corners(classic::filters(rect)),
            Self::Velocity(..) => Self::Velocity(0.0, 0.0),
        };
    }

    /// Advances by one frame and returns the predicted box. `last` is the last detected box, `n_frames` ago.
    fn predict(&mut self, last: &Rect, n_frames: u32, pace: f32, was_seen: bool) -> Rect {
        match self {
            Self::Box(filter) => {
                filter.predict(&hybrid::NOISE, pace, was_seen);
                filter.rect()
            }
            Self::Corners(filters) => classic::predict(filters),
            Self::Velocity(x, y) => Rect { x: last.x + *x * n_frames as f32, y: last.y + *y * n_frames as f32, ..*last },
        }
    }

    fn update(&mut self, last: &Rect, detection: &Detection, n_frames: u32, is_first: bool) {
        match self {
            Self::Box(filter) => filter.update(&detection.rect, detection.confidence, &hybrid::NOISE),
            Self::Corners(filters) => classic::update(filters, &detection.rect),
            Self::Velocity(x, y) => {
                let moved = overlap::velocity(last, &detection.rect, n_frames);
                // The mean with the previous velocity reduces the noise of the boxes.
                (*x, *y) = if is_first { moved } else { ((*x + moved.0) / 2.0, (*y + moved.1) / 2.0) };
            }
        }
    }
}

impl TrackCounts {
    /// Sets the track ID and state of the detection that a track matches.
    fn assign_track_id(
        &mut self,
        track: &mut Track,
        detections: &mut [Detection],
        options: &TrackOptions,
        new_track_id: &mut impl FnMut() -> ObjectId,
    ) {
        let Some(detection_idx) = track.detection_idx else { return };
        let detection = &mut detections[detection_idx];
        if !matches!(detection.track_state, Some(TrackState::Held | TrackState::Predicted)) && track.n_frames == 0 {
            self.n_recovered += u64::from(track.n_missed > 0 && track.track_id.is_some());
            self.name_track(track, detection, options, new_track_id);
        }
    }

    /// Gives a track its ID once it has enough detections, and sets the ID and state of its detection.
    fn name_track(
        &mut self,
        track: &mut Track,
        detection: &mut Detection,
        options: &TrackOptions,
        new_track_id: &mut impl FnMut() -> ObjectId,
    ) {
        let is_uncertain = options.method == Method::Hybrid && detection.confidence < hybrid::CERTAIN;
        if track.track_id.is_none() && track.n_hits >= options.min_hits.saturating_add(u32::from(is_uncertain)).max(track.n_required) {
            track.track_id = Some(new_track_id());
            self.n_started += 1;
        }
        detection.track = track.track_id;
        detection.track_state = Some(if track.track_id.is_some() { TrackState::Confirmed } else { TrackState::Tentative });
        self.n_tracked += u64::from(track.track_id.is_some());
    }
}

#[cfg(test)]
mod tests;
