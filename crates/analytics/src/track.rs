//! Object tracking by box overlap.
//!
//! A simplified variant of SORT (Bewley et al., "Simple Online and Realtime Tracking", ICIP 2016). Boxes are predicted with constant
//! velocity instead of a Kalman filter. Pairs are matched greedily by intersection over union (IoU), as in the IOU tracker (Bochinski et
//! al., "High-Speed Tracking-by-Detection Without Using Image Information", AVSS 2017).
//!
//! 1. Detections are matched with the predicted boxes of the tracks.
//! 2. The remaining detections are matched with the last boxes of the remaining tracks.
//!
//! Both passes accept pairs by descending IoU. Ties are decided by the older track, then by the order of detections. A track matches
//! detections of its own class only.
//!
//! A frame without inference does not age the tracks. Detections that are carried over into such a frame keep their track IDs.
//!
//! The number of tracks is bounded. Buffers are reused, so nothing is allocated in steady state. Reads no pixels and no clocks: the output
//! depends on the input only.
use std::cmp::Ordering;
use std::sync::Arc;

use crate::frame::{Detection, FrameResults, InferenceStatus, ObjectId, Rect, Size, TrackState};

/// Options of a tracker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrackOptions {
    /// Minimum IoU of a detection with the predicted or last box of its track, 0 to 1. Default: 0.3.
    pub iou_threshold: f32,
    /// Number of consecutive inferred frames without a matching detection after which a track ends. Default: 30.
    pub max_age: u32,
    /// Number of consecutive frames with a matching detection until a track gets its ID. Default: 1.
    pub min_hits: u32,
    /// Maximum number of tracks, including lost tracks. Default: 1000.
    pub max_tracks: usize,
}

impl Default for TrackOptions {
    fn default() -> Self {
        Self { iou_threshold: 0.3, max_age: 30, min_hits: 1, max_tracks: 1000 }
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
    pairs: Vec<Pair>,
}

/// Counters of a [`Tracker`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrackCounts {
    /// Current tracks, including tentative tracks.
    pub n_tracks: u64,
    /// Track IDs assigned.
    pub n_started: u64,
    /// Tracks with an ID that ended. [`Tracker::reset`] does not count.
    pub n_ended: u64,
    /// Objects with a track ID, summed over all frames.
    pub n_tracked: u64,
    /// Objects that got no track because [`TrackOptions::max_tracks`] was reached.
    pub n_refused: u64,
}

#[derive(Debug)]
struct Track {
    /// The track ID; `None` while the track is tentative.
    track_id: Option<ObjectId>,
    label_id: u32,
    label: Option<Arc<str>>,
    /// Last detected box.
    rect: Rect,
    /// Velocity of the box center, in pixels per frame.
    velocity: (f32, f32),
    /// ID of the last detection.
    last_detection: ObjectId,
    n_hits: u32,
    /// Frames since the last detection.
    n_frames: u32,
    /// Inferred frames since the last detection.
    n_missed: u32,
    /// Whether the track was matched in the current frame.
    is_seen: bool,
}

/// A candidate pair of a track and a detection.
#[derive(Debug, Clone, Copy)]
struct Pair {
    iou: f32,
    track_idx: usize,
    detection_idx: usize,
}

/// The box of a track that detections are matched with.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ReferenceBox {
    Predicted,
    Last,
}

impl Tracker {
    /// Processes the next frame and sets the track IDs of the frame's detections.
    ///
    /// Only detections for which `is_tracked` returns true are tracked. `new_track_id` creates IDs. Detections that already have a track ID
    /// keep it.
    pub fn update(
        &mut self,
        results: &mut FrameResults,
        options: &TrackOptions,
        is_tracked: impl Fn(&Detection) -> bool,
        mut new_track_id: impl FnMut() -> ObjectId,
    ) {
        self.rescale_tracks(results.size);
        let is_inferred = results.status == InferenceStatus::Inferred;
        let detections = &mut *results.detections;
        self.is_unmatched.clear();
        self.is_unmatched.extend(detections.iter().map(|found| found.track.is_none() && found.rect.is_proper() && is_tracked(found)));
        for track in &mut self.tracks {
            track.n_frames = track.n_frames.saturating_add(1);
            track.is_seen = false;
        }
        if !is_inferred {
            self.match_carried_over(detections);
        }
        for reference in [ReferenceBox::Predicted, ReferenceBox::Last] {
            self.match_by(reference, detections, options, &mut new_track_id);
        }
        if is_inferred {
            self.age_tracks(options);
        }
        for (detection_idx, detection) in detections.iter_mut().enumerate() {
            if self.is_unmatched[detection_idx] {
                self.start_track(detection, options, &mut new_track_id);
            }
        }
        self.counts.n_tracks = self.tracks.len() as u64;
    }

    /// Removes all tracks. Call this for a new stream or after a seek.
    pub fn reset(&mut self) {
        self.tracks.clear();
        self.size = Size::default();
        self.counts.n_tracks = 0;
    }

    /// Counters since the tracker was created.
    pub fn counts(&self) -> TrackCounts {
        self.counts
    }

    /// Scales the tracks when the frame size changes.
    fn rescale_tracks(&mut self, size: Size) {
        if self.size != size && self.size.width > 0 && self.size.height > 0 {
            for track in &mut self.tracks {
                track.rect = track.rect.rescaled(self.size, size);
                track.velocity = (0.0, 0.0);
            }
        }
        self.size = size;
    }

    /// Matches carried-over detections by detection ID. Their tracks are not updated, because the boxes are not new.
    fn match_carried_over(&mut self, detections: &mut [Detection]) {
        for (detection, is_unmatched) in detections.iter_mut().zip(&mut self.is_unmatched) {
            let is_it = |track: &&mut Track| *is_unmatched && !track.is_seen && track.last_detection == detection.id;
            if let Some(track) = self.tracks.iter_mut().find(is_it) {
                (track.is_seen, *is_unmatched) = (true, false);
                detection.track = track.track_id;
                detection.track_state = Some(if track.track_id.is_some() { TrackState::Held } else { TrackState::Tentative });
                self.counts.n_tracked += u64::from(track.track_id.is_some());
            }
        }
    }

    /// Matches the remaining tracks with the remaining detections, by descending IoU.
    fn match_by(
        &mut self,
        reference: ReferenceBox,
        detections: &mut [Detection],
        options: &TrackOptions,
        new_track_id: &mut impl FnMut() -> ObjectId,
    ) {
        self.pairs.clear();
        for (track_idx, track) in self.tracks.iter().enumerate().filter(|(_, track)| !track.is_seen) {
            let Some(rect) = track.reference_box(reference) else { continue };
            for (detection_idx, detection) in detections.iter().enumerate().filter(|(idx, _)| self.is_unmatched[*idx]) {
                let iou = rect.iou(&detection.rect);
                // Check the IoU before the class: this rejects more pairs and is faster.
                if iou > 0.0 && iou >= options.iou_threshold && track.is_of_class(detection) {
                    self.pairs.push(Pair { iou, track_idx, detection_idx });
                }
            }
        }
        self.pairs.sort_unstable_by(Pair::order);
        for pair in &self.pairs {
            let track = &mut self.tracks[pair.track_idx];
            if track.is_seen || !self.is_unmatched[pair.detection_idx] {
                continue; // Already part of a better pair.
            }
            self.is_unmatched[pair.detection_idx] = false;
            let detection = &mut detections[pair.detection_idx];
            track.update(detection);
            self.counts.assign_track_id(track, detection, options, new_track_id);
        }
    }

    /// Ends tracks that are lost for more than `max_age` frames, and unmatched tentative tracks.
    fn age_tracks(&mut self, options: &TrackOptions) {
        let n_ended = &mut self.counts.n_ended;
        self.tracks.retain_mut(|track| {
            if track.is_seen {
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
    fn start_track(&mut self, detection: &mut Detection, options: &TrackOptions, new_track_id: &mut impl FnMut() -> ObjectId) {
        if self.tracks.len() >= options.max_tracks && !self.evict() {
            self.counts.n_refused += 1;
            return;
        }
        let mut track = Track {
            track_id: None,
            label_id: detection.label_id,
            label: detection.label.clone(),
            rect: detection.rect,
            velocity: (0.0, 0.0),
            last_detection: detection.id,
            n_hits: 1,
            n_frames: 0,
            n_missed: 0,
            is_seen: true,
        };
        self.counts.assign_track_id(&mut track, detection, options, new_track_id);
        self.tracks.push(track);
    }

    /// Evicts the track that has been lost longest; of tracks lost equally long, the oldest. Returns false if no track is lost.
    fn evict(&mut self) -> bool {
        let lost = self.tracks.iter().enumerate().filter(|(_, track)| !track.is_seen);
        // `max_by_key` returns the last of equal elements.
        let Some((track_idx, _)) = lost.rev().max_by_key(|(_, track)| track.n_frames) else { return false };
        let track = self.tracks.remove(track_idx);
        self.counts.n_ended += u64::from(track.track_id.is_some());
        true
    }
}

impl Track {
    fn is_of_class(&self, detection: &Detection) -> bool {
        self.label_id == detection.label_id && self.label == detection.label
    }

    /// Returns the box to match. Returns `None` for the last box if it equals the predicted box, because that box has been matched already.
    fn reference_box(&self, reference: ReferenceBox) -> Option<Rect> {
        match reference {
            ReferenceBox::Predicted => {
                let (x, y) = (self.velocity.0 * self.n_frames as f32, self.velocity.1 * self.n_frames as f32);
                Some(Rect { x: self.rect.x + x, y: self.rect.y + y, ..self.rect })
            }
            ReferenceBox::Last => (self.velocity != (0.0, 0.0)).then_some(self.rect),
        }
    }

    /// Updates the track with a detection.
    fn update(&mut self, detection: &Detection) {
        let center = |rect: &Rect| (rect.x + rect.width / 2.0, rect.y + rect.height / 2.0);
        let ((x, y), (was_x, was_y)) = (center(&detection.rect), center(&self.rect));
        let n_frames = self.n_frames.max(1) as f32;
        let moved = ((x - was_x) / n_frames, (y - was_y) / n_frames);
        // The mean with the previous velocity reduces the noise of the boxes.
        self.velocity = if self.n_hits < 2 { moved } else { ((self.velocity.0 + moved.0) / 2.0, (self.velocity.1 + moved.1) / 2.0) };
        self.rect = detection.rect;
        self.last_detection = detection.id;
        self.n_hits = self.n_hits.saturating_add(1);
        (self.n_frames, self.is_seen) = (0, true);
    }
}

impl TrackCounts {
    /// Sets the detection's track ID and state.
    fn assign_track_id(
        &mut self,
        track: &mut Track,
        detection: &mut Detection,
        options: &TrackOptions,
        new_track_id: &mut impl FnMut() -> ObjectId,
    ) {
        if track.track_id.is_none() && track.n_hits >= options.min_hits {
            track.track_id = Some(new_track_id());
            self.n_started += 1;
        }
        detection.track = track.track_id;
        detection.track_state = Some(if track.track_id.is_some() { TrackState::Confirmed } else { TrackState::Tentative });
        self.n_tracked += u64::from(track.track_id.is_some());
    }
}

impl Pair {
    fn order(&self, other: &Self) -> Ordering {
        let by_age = || (self.track_idx, self.detection_idx).cmp(&(other.track_idx, other.detection_idx));
        other.iou.total_cmp(&self.iou).then_with(by_age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size::new(640, 480);
    const SIDE: f32 = 40.0;

    /// A tracker whose IDs are 1, 2, 3. Detection IDs start at 1001.
    struct TestTracker {
        tracker: Tracker,
        options: TrackOptions,
        n_track_ids: i32,
        n_detections: i32,
    }

    impl TestTracker {
        fn new(options: TrackOptions) -> Self {
            Self { tracker: Tracker::default(), options, n_track_ids: 0, n_detections: 1000 }
        }

        /// Track IDs of the objects in the next frame, 0 for none. An object is a class and the corner of a box.
        fn update_objects(&mut self, objects: &[(u32, f32, f32)]) -> Vec<i32> {
            let detections = objects.iter().map(|&(class, x, y)| self.object(class, x, y)).collect();
            self.update(&mut FrameResults { size: SIZE, detections, ..FrameResults::default() })
        }

        fn object(&mut self, label_id: u32, x: f32, y: f32) -> Detection {
            self.n_detections += 1;
            Detection {
                id: ObjectId(self.n_detections),
                track: None,
                track_state: None,
                parent: None,
                rect: Rect { x, y, width: SIDE, height: SIDE * 1.5 },
                keypoints: vec![],
                confidence: 0.5,
                label_id,
                label: Some(format!("class {label_id}").into()),
                classifications: vec![],
            }
        }

        fn update(&mut self, results: &mut FrameResults) -> Vec<i32> {
            let Self { tracker, options, n_track_ids, .. } = self;
            let new_track_id = || {
                *n_track_ids += 1;
                ObjectId(*n_track_ids)
            };
            tracker.update(results, options, |_| true, new_track_id);
            results.detections.iter().map(|detection| detection.track.map_or(0, |track| track.0)).collect()
        }

        /// Processes a frame without inference.
        fn skip(&mut self, carried: &[Detection]) -> Vec<i32> {
            let status = InferenceStatus::Skipped("inference-interval".into());
            self.update(&mut FrameResults { size: SIZE, status, detections: carried.to_vec(), ..FrameResults::default() })
        }
    }

    #[test]
    fn moving_objects_keep_their_track_ids() {
        let mut tracking = TestTracker::new(TrackOptions::default());
        for n in 0..50 {
            let n = n as f32;
            let track_ids = tracking.update_objects(&[(0, 10.0 + 8.0 * n, 20.0), (0, 500.0 - 6.0 * n, 200.0), (1, 300.0, 400.0 - 3.0 * n)]);
            assert_eq!(track_ids, [1, 2, 3], "frame {n}");
        }
        // The order of detections does not matter.
        assert_eq!(tracking.update_objects(&[(1, 300.0, 250.0), (0, 500.0 - 300.0, 200.0), (0, 10.0 + 400.0, 20.0)]), [3, 2, 1]);
    }

    #[test]
    fn crossing_objects_keep_their_track_ids() {
        // Both objects have the same height, so they overlap for several frames. Test equal and different classes.
        for classes in [(0, 0), (0, 1)] {
            for step in [3.0, 7.0, 10.0, 13.0] {
                let mut tracking = TestTracker::new(TrackOptions::default());
                let n_frames = (400.0 / step) as i32;
                for n in 0..n_frames {
                    let way = n as f32 * step;
                    let track_ids = tracking.update_objects(&[(classes.0, 100.0 + way, 100.0), (classes.1, 500.0 - way, 104.0)]);
                    assert_eq!(track_ids, [1, 2], "classes {classes:?}, {step} pixels per frame, frame {n}");
                }
            }
        }
    }

    #[test]
    fn lost_object_is_matched_at_predicted_and_at_last_box() {
        // Hidden for ten frames and for more than its width: it reappears on the far side, or at its last box.
        for (way, what) in [(10.0, "went on"), (0.0, "stayed")] {
            let mut tracking = TestTracker::new(TrackOptions::default());
            for n in 0..10 {
                assert_eq!(tracking.update_objects(&[(0, 50.0 + 6.0 * n as f32, 100.0)]), [1]);
            }
            for _ in 0..10 {
                assert!(tracking.update_objects(&[]).is_empty());
            }
            assert_eq!(tracking.update_objects(&[(0, 50.0 + 6.0 * (9.0 + way + f32::min(way, 1.0)), 100.0)]), [1], "{what}");
        }
    }

    #[test]
    fn track_ends_after_max_age() {
        for (n_missing, expected) in [(3, 1), (4, 2)] {
            let mut tracking = TestTracker::new(TrackOptions { max_age: 3, ..TrackOptions::default() });
            assert_eq!(tracking.update_objects(&[(0, 50.0, 100.0)]), [1]);
            (0..n_missing).for_each(|_| drop(tracking.update_objects(&[])));
            assert_eq!(tracking.update_objects(&[(0, 50.0, 100.0)]), [expected], "missing in {n_missing} frames");
        }
        let mut tracking = TestTracker::new(TrackOptions { max_age: 0, ..TrackOptions::default() });
        tracking.update_objects(&[(0, 50.0, 100.0)]);
        tracking.update_objects(&[]);
        let TrackCounts { n_tracks, n_started, n_ended, .. } = tracking.tracker.counts();
        assert_eq!((n_tracks, n_started, n_ended), (0, 1, 1));
    }

    #[test]
    fn frames_without_inference_do_not_age_tracks() {
        let mut tracking = TestTracker::new(TrackOptions { max_age: 2, min_hits: 2, ..TrackOptions::default() });
        assert_eq!(tracking.update_objects(&[(0, 50.0, 100.0)]), [0]);
        (0..100).for_each(|_| drop(tracking.skip(&[])));
        assert_eq!(tracking.update_objects(&[(0, 50.0, 100.0)]), [1]);
        // A failed frame counts as a frame without inference.
        let failed = InferenceStatus::Failed("no memory".into());
        (0..100).for_each(|_| drop(tracking.update(&mut FrameResults { size: SIZE, status: failed.clone(), ..FrameResults::default() })));
        assert_eq!(tracking.update_objects(&[(0, 50.0, 100.0)]), [1]);
    }

    #[test]
    fn carried_over_detections_keep_track_ids_and_velocity() {
        let mut tracking = TestTracker::new(TrackOptions::default());
        // Every fifth frame is inferred. The other frames repeat the last box.
        for n in 0..20 {
            let found = tracking.object(0, 50.0 + 4.0 * (n * 5) as f32, 100.0);
            let mut results = FrameResults { size: SIZE, detections: vec![found], ..FrameResults::default() };
            assert_eq!(tracking.update(&mut results), [1], "frame {}", n * 5);
            let carried = Detection { track: None, ..results.detections.remove(0) };
            for _ in 0..4 {
                assert_eq!(tracking.skip(std::slice::from_ref(&carried)), [1]);
            }
        }
    }

    #[test]
    fn track_gets_its_id_after_min_hits() {
        let mut tracking = TestTracker::new(TrackOptions { min_hits: 3, max_age: 5, ..TrackOptions::default() });
        let here = [(0, 50.0, 100.0)];
        assert_eq!([tracking.update_objects(&here), tracking.update_objects(&here)], [[0], [0]]);
        assert!(tracking.update_objects(&[]).is_empty(), "an unmatched tentative track ends");
        assert_eq!([tracking.update_objects(&here), tracking.update_objects(&here), tracking.update_objects(&here)], [[0], [0], [1]]);
        tracking.update_objects(&[]);
        assert_eq!(tracking.update_objects(&here), [1]);
    }

    #[test]
    fn classes_do_not_match_each_other() {
        let mut tracking = TestTracker::new(TrackOptions::default());
        assert_eq!(tracking.update_objects(&[(0, 50.0, 100.0)]), [1]);
        assert_eq!(tracking.update_objects(&[(1, 50.0, 100.0)]), [2]);
        assert_eq!(tracking.update_objects(&[(1, 50.0, 100.0), (0, 50.0, 100.0)]), [2, 1]);
    }

    #[test]
    fn tracks_are_bounded_and_the_longest_lost_is_evicted() {
        let mut tracking = TestTracker::new(TrackOptions { max_tracks: 3, ..TrackOptions::default() });
        let object = |n: i32| (0, n as f32 * 60.0, 100.0);
        assert_eq!(tracking.update_objects(&[object(0), object(1), object(2), object(3)]), [1, 2, 3, 0], "no room for the fourth");
        assert_eq!(tracking.tracker.counts().n_refused, 1);
        tracking.update_objects(&[object(1), object(2)]);
        assert_eq!(tracking.update_objects(&[object(2)]), [3]);
        assert_eq!(tracking.update_objects(&[object(4)]), [4]);
        assert_eq!(tracking.update_objects(&[object(0), object(1), object(2)]), [5, 2, 3], "the track of object 0 was lost longest");
        let broken = Rect { x: f32::NAN, ..Rect::default() };
        let mut results = FrameResults { size: SIZE, ..FrameResults::default() };
        results.detections.push(Detection { rect: broken, ..tracking.object(0, 0.0, 0.0) });
        assert_eq!(tracking.update(&mut results), [0], "an invalid box gets no track");
    }

    #[test]
    fn tracks_are_scaled_with_the_frame_size() {
        let mut tracking = TestTracker::new(TrackOptions::default());
        tracking.update_objects(&[(0, 50.0, 100.0), (0, 400.0, 300.0)]);
        let half = Size::new(SIZE.width / 2, SIZE.height / 2);
        let mut small: Vec<Detection> = [(400.0, 300.0), (50.0, 100.0)].map(|(x, y)| tracking.object(0, x, y)).into();
        small.iter_mut().for_each(|found| found.rect = found.rect.rescaled(SIZE, half));
        assert_eq!(tracking.update(&mut FrameResults { size: half, detections: small, ..FrameResults::default() }), [2, 1]);
        tracking.tracker.reset();
        assert_eq!(tracking.update_objects(&[(0, 50.0, 100.0)]), [3], "a new track after the reset");
    }

    #[test]
    fn track_ids_of_other_trackers_are_kept() {
        let mut tracking = TestTracker::new(TrackOptions::default());
        for n in 0..3 {
            let mut results = FrameResults { size: SIZE, ..FrameResults::default() };
            results.detections.push(Detection { track: Some(ObjectId(77)), ..tracking.object(0, 50.0 * n as f32, 0.0) });
            results.detections.push(tracking.object(0, 300.0, 300.0));
            assert_eq!(tracking.update(&mut results), [77, 1]);
        }
        assert_eq!(tracking.tracker.counts().n_tracks, 1);
    }

    /// Objects in separate lanes at different speeds, with noisy boxes and missing detections.
    fn wander(seed: u64) -> Vec<Vec<(usize, i32)>> {
        const N_OBJECTS: usize = 7;
        let mut random = Random(seed | 1);
        let speeds: Vec<f32> = (0..N_OBJECTS).map(|_| random.unit() * 24.0 - 12.0).collect();
        let mut tracking = TestTracker::new(TrackOptions { max_age: 5, ..TrackOptions::default() });
        let mut missing = [0; N_OBJECTS];
        let mut frames = Vec::new();
        for n in 0..200 {
            let mut seen = Vec::new();
            let mut places = Vec::new();
            for (object, speed) in speeds.iter().enumerate() {
                missing[object] = if missing[object] == 0 && n > 10 && random.unit() < 0.05 { 3 } else { i32::max(missing[object] - 1, 0) };
                if missing[object] > 0 {
                    continue;
                }
                let x = 5000.0 + speed * n as f32 + random.unit() * 2.0 - 1.0;
                seen.push(object);
                places.push((0, x, object as f32 * 66.0 + random.unit() * 2.0 - 1.0));
            }
            // Shuffle the detections.
            for last in (1..seen.len()).rev() {
                let other = (random.next() % (last as u64 + 1)) as usize;
                seen.swap(last, other);
                places.swap(last, other);
            }
            frames.push(seen.into_iter().zip(tracking.update_objects(&places)).collect());
        }
        frames
    }

    #[test]
    fn noisy_objects_keep_track_ids_and_results_are_deterministic() {
        let seed = std::env::var("ROIFLOW_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed
            .unwrap_or_else(|| std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64));
        eprintln!("ROIFLOW_SEED={seed}");
        for round in 0..50 {
            let frames = wander(seed.wrapping_add(round * 7919));
            let mut track_of = std::collections::HashMap::new();
            for (n, frame) in frames.iter().enumerate() {
                for &(object, track_id) in frame {
                    assert_eq!(
                        *track_of.entry(object).or_insert(track_id),
                        track_id,
                        "round {round}, frame {n}, object {object}: {frame:?}"
                    );
                }
            }
            let mut track_ids: Vec<i32> = track_of.values().copied().collect();
            track_ids.sort_unstable();
            track_ids.dedup();
            assert_eq!(track_ids.len(), track_of.len(), "round {round}: IDs are unique");
            assert_eq!(frames, wander(seed.wrapping_add(round * 7919)));
        }
    }

    /// Pseudorandom numbers (xorshift).
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn unit(&mut self) -> f32 {
            (self.next() % 10_000) as f32 / 10_000.0
        }
    }
}
