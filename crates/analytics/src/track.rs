//! Object tracking by box overlap. Reads no pixels and no clocks; the output depends on the input only.
//!
//! Detections are matched with the predicted box of each track (constant velocity), then the remaining ones with its last box. In both
//! passes, pairs are taken greedily by descending overlap (intersection over union); ties are decided by the older track, then by the
//! higher confidence. Tracks match detections of the same class only.
//!
//! A frame without inference does not age the tracks. Detections that were carried over into such a frame keep their track ID.
//!
//! The number of tracks is bounded. Buffers are reused, so nothing is allocated in steady state.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::frame::{Detection, FrameResults, InferenceStatus, ObjectId, Rect, Size, TrackState};

/// Options of a tracker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrackOptions {
    /// Smallest intersection over union of a box with the predicted or last box of its track, 0 to 1. Default: 0.3.
    pub iou_threshold: f32,
    /// Inferred frames in a row without the object until its track ends. Default: 30.
    pub max_age: u32,
    /// Frames in a row with the object until its track gets an ID. Default: 1.
    pub min_hits: u32,
    /// Maximum number of tracks, lost ones included. Default: 1000.
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
    is_open: Vec<bool>,
    pairs: Vec<Pair>,
}

/// Counters of a [`Tracker`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrackCounts {
    /// Current tracks, tentative ones included.
    pub n_tracks: u64,
    /// Track IDs that were given.
    pub n_begun: u64,
    /// Tracks with an ID that ended, except by [`Tracker::reset`].
    pub n_ended: u64,
    /// Objects with a track ID, summed over frames.
    pub n_named: u64,
    /// Objects without a track because the maximum number of tracks was reached.
    pub n_refused: u64,
}

#[derive(Debug)]
struct Track {
    /// The track ID, once the object was seen in enough frames.
    name: Option<ObjectId>,
    label_id: u32,
    label: Option<Arc<str>>,
    /// Last detected box.
    rect: Rect,
    /// Velocity of its center, in pixels per frame.
    velocity: (f32, f32),
    /// Id of its last detection.
    seen_as: ObjectId,
    n_hits: u32,
    /// Frames since the last detection.
    n_frames: u32,
    /// Inferred frames since the last detection.
    n_missed: u32,
    /// Whether it was matched in this frame.
    is_seen: bool,
}

/// A candidate pair of a track and a detection.
#[derive(Debug, Clone, Copy)]
struct Pair {
    iou: f32,
    track_idx: usize,
    detection_idx: usize,
}

/// The box of a track that detections are compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Expected,
    LastSeen,
}

impl Tracker {
    /// Sets the track IDs of the `wanted` detections of the next frame; `new_name` makes a new ID. IDs of other trackers are kept.
    pub fn update(
        &mut self,
        results: &mut FrameResults,
        options: &TrackOptions,
        wanted: impl Fn(&Detection) -> bool,
        mut new_name: impl FnMut() -> ObjectId,
    ) {
        self.fit(results.size);
        let is_inferred = results.status == InferenceStatus::Inferred;
        let detections = &mut *results.detections;
        self.is_open.clear();
        self.is_open.extend(detections.iter().map(|found| found.track.is_none() && found.rect.is_proper() && wanted(found)));
        for track in &mut self.tracks {
            track.n_frames = track.n_frames.saturating_add(1);
            track.is_seen = false;
        }
        if !is_inferred {
            self.find_carried(detections);
        }
        for place in [Place::Expected, Place::LastSeen] {
            self.find(place, detections, options, &mut new_name);
        }
        if is_inferred {
            self.grow_older(options);
        }
        for (detection_idx, detection) in detections.iter_mut().enumerate() {
            if self.is_open[detection_idx] {
                self.begin(detection, options, &mut new_name);
            }
        }
        self.counts.n_tracks = self.tracks.len() as u64;
    }

    /// Removes all tracks, for a new stream or after a seek.
    pub fn reset(&mut self) {
        self.tracks.clear();
        self.size = Size::default();
        self.counts.n_tracks = 0;
    }

    /// Counters since the tracker was made.
    pub fn counts(&self) -> TrackCounts {
        self.counts
    }

    /// Scales the tracks to another frame size.
    fn fit(&mut self, size: Size) {
        if self.size != size && self.size.width > 0 && self.size.height > 0 {
            for track in &mut self.tracks {
                track.rect = track.rect.rescaled(self.size, size);
                track.velocity = (0.0, 0.0);
            }
        }
        self.size = size;
    }

    /// A detection that was carried over with the id it had is not new: the track is not updated.
    fn find_carried(&mut self, detections: &mut [Detection]) {
        for (detection, is_open) in detections.iter_mut().zip(&mut self.is_open) {
            let is_it = |track: &&mut Track| *is_open && !track.is_seen && track.seen_as == detection.id;
            if let Some(track) = self.tracks.iter_mut().find(is_it) {
                (track.is_seen, *is_open) = (true, false);
                detection.track = track.name;
                detection.track_state = Some(if track.name.is_some() { TrackState::Held } else { TrackState::Tentative });
                self.counts.n_named += u64::from(track.name.is_some());
            }
        }
    }

    /// Matches the remaining tracks with the remaining detections, by descending overlap.
    fn find(&mut self, place: Place, detections: &mut [Detection], options: &TrackOptions, new_name: &mut impl FnMut() -> ObjectId) {
        self.pairs.clear();
        for (track_idx, track) in self.tracks.iter().enumerate().filter(|(_, track)| !track.is_seen) {
            let Some(rect) = track.place(place) else { continue };
            for (detection_idx, detection) in detections.iter().enumerate().filter(|(idx, _)| self.is_open[*idx]) {
                let iou = rect.iou(&detection.rect);
                // Boxes are compared first: they differ more often than classes, and the comparison is faster.
                if iou > 0.0 && iou >= options.iou_threshold && track.is_of_class(detection) {
                    self.pairs.push(Pair { iou, track_idx, detection_idx });
                }
            }
        }
        self.pairs.sort_unstable_by(Pair::order);
        for pair in &self.pairs {
            let track = &mut self.tracks[pair.track_idx];
            if track.is_seen || !self.is_open[pair.detection_idx] {
                continue; // A better pair has one of them.
            }
            self.is_open[pair.detection_idx] = false;
            let detection = &mut detections[pair.detection_idx];
            track.follow(detection);
            self.counts.name(track, detection, options, new_name);
        }
    }

    /// Ends tracks that have been lost too long; tentative tracks at once.
    fn grow_older(&mut self, options: &TrackOptions) {
        let n_ended = &mut self.counts.n_ended;
        self.tracks.retain_mut(|track| {
            if track.is_seen {
                track.n_missed = 0;
                return true;
            }
            track.n_missed = track.n_missed.saturating_add(1);
            let stays = track.name.is_some() && track.n_missed <= options.max_age;
            *n_ended += u64::from(track.name.is_some() && !stays);
            stays
        });
    }

    /// Starts a track for a new object.
    fn begin(&mut self, detection: &mut Detection, options: &TrackOptions, new_name: &mut impl FnMut() -> ObjectId) {
        if self.tracks.len() >= options.max_tracks && !self.make_room() {
            self.counts.n_refused += 1;
            return;
        }
        let mut track = Track {
            name: None,
            label_id: detection.label_id,
            label: detection.label.clone(),
            rect: detection.rect,
            velocity: (0.0, 0.0),
            seen_as: detection.id,
            n_hits: 1,
            n_frames: 0,
            n_missed: 0,
            is_seen: true,
        };
        self.counts.name(&mut track, detection, options, new_name);
        self.tracks.push(track);
    }

    /// Evicts the track that has been lost longest, the oldest of equal ones; false if no track is lost.
    fn make_room(&mut self) -> bool {
        let lost = self.tracks.iter().enumerate().filter(|(_, track)| !track.is_seen);
        // `max_by_key` takes the last of equal ones.
        let Some((track_idx, _)) = lost.rev().max_by_key(|(_, track)| track.n_frames) else { return false };
        let track = self.tracks.remove(track_idx);
        self.counts.n_ended += u64::from(track.name.is_some());
        true
    }
}

impl Track {
    fn is_of_class(&self, detection: &Detection) -> bool {
        self.label_id == detection.label_id && self.label == detection.label
    }

    /// The last box, unless it equals the predicted one.
    fn place(&self, place: Place) -> Option<Rect> {
        match place {
            Place::Expected => {
                let (x, y) = (self.velocity.0 * self.n_frames as f32, self.velocity.1 * self.n_frames as f32);
                Some(Rect { x: self.rect.x + x, y: self.rect.y + y, ..self.rect })
            }
            Place::LastSeen => (self.velocity != (0.0, 0.0)).then_some(self.rect),
        }
    }

    /// Updates the track with a detection.
    fn follow(&mut self, detection: &Detection) {
        let center = |rect: &Rect| (rect.x + rect.width / 2.0, rect.y + rect.height / 2.0);
        let ((x, y), (was_x, was_y)) = (center(&detection.rect), center(&self.rect));
        let n_frames = self.n_frames.max(1) as f32;
        let moved = ((x - was_x) / n_frames, (y - was_y) / n_frames);
        // Averaged with the previous velocity, against noise of the boxes.
        self.velocity = if self.n_hits < 2 { moved } else { ((self.velocity.0 + moved.0) / 2.0, (self.velocity.1 + moved.1) / 2.0) };
        self.rect = detection.rect;
        self.seen_as = detection.id;
        self.n_hits = self.n_hits.saturating_add(1);
        (self.n_frames, self.is_seen) = (0, true);
    }
}

impl TrackCounts {
    /// Sets the detection's track ID and state.
    fn name(&mut self, track: &mut Track, detection: &mut Detection, options: &TrackOptions, new_name: &mut impl FnMut() -> ObjectId) {
        if track.name.is_none() && track.n_hits >= options.min_hits {
            track.name = Some(new_name());
            self.n_begun += 1;
        }
        detection.track = track.name;
        detection.track_state = Some(if track.name.is_some() { TrackState::Confirmed } else { TrackState::Tentative });
        self.n_named += u64::from(track.name.is_some());
    }
}

impl Pair {
    fn order(&self, other: &Self) -> Ordering {
        let by_place = || (self.track_idx, self.detection_idx).cmp(&(other.track_idx, other.detection_idx));
        other.iou.total_cmp(&self.iou).then_with(by_place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size::new(640, 480);
    const SIDE: f32 = 40.0;

    /// A tracker with IDs 1, 2, 3, and detections numbered from 1000.
    struct Sight {
        tracker: Tracker,
        options: TrackOptions,
        n_names: i32,
        n_detections: i32,
    }

    impl Sight {
        fn new(options: TrackOptions) -> Self {
            Self { tracker: Tracker::default(), options, n_names: 0, n_detections: 1000 }
        }

        /// The track IDs in the next frame, 0 for none, of objects with these classes and boxes.
        fn see(&mut self, objects: &[(u32, f32, f32)]) -> Vec<i32> {
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
            let Self { tracker, options, n_names, .. } = self;
            let new_name = || {
                *n_names += 1;
                ObjectId(*n_names)
            };
            tracker.update(results, options, |_| true, new_name);
            results.detections.iter().map(|detection| detection.track.map_or(0, |track| track.0)).collect()
        }

        /// A frame without inference.
        fn skip(&mut self, carried: &[Detection]) -> Vec<i32> {
            let status = InferenceStatus::Skipped("inference-interval".into());
            self.update(&mut FrameResults { size: SIZE, status, detections: carried.to_vec(), ..FrameResults::default() })
        }
    }

    #[test]
    fn an_object_keeps_its_name_while_it_moves_and_another_gets_another() {
        let mut sight = Sight::new(TrackOptions::default());
        for n in 0..50 {
            let n = n as f32;
            let names = sight.see(&[(0, 10.0 + 8.0 * n, 20.0), (0, 500.0 - 6.0 * n, 200.0), (1, 300.0, 400.0 - 3.0 * n)]);
            assert_eq!(names, [1, 2, 3], "frame {n}");
        }
        // In either order.
        assert_eq!(sight.see(&[(1, 300.0, 250.0), (0, 500.0 - 300.0, 200.0), (0, 10.0 + 400.0, 20.0)]), [3, 2, 1]);
    }

    #[test]
    fn objects_that_cross_keep_their_names() {
        // At the same height, so that they overlap for some frames; of one class and of two.
        for classes in [(0, 0), (0, 1)] {
            for step in [3.0, 7.0, 10.0, 13.0] {
                let mut sight = Sight::new(TrackOptions::default());
                let n_frames = (400.0 / step) as i32;
                for n in 0..n_frames {
                    let way = n as f32 * step;
                    let names = sight.see(&[(classes.0, 100.0 + way, 100.0), (classes.1, 500.0 - way, 104.0)]);
                    assert_eq!(names, [1, 2], "classes {classes:?}, {step} pixels a frame, frame {n}");
                }
            }
        }
    }

    #[test]
    fn who_is_lost_is_found_where_it_went_and_where_it_stayed() {
        // Hidden for ten frames, over more than its width: it reappears on the other side, or turns back.
        for (way, what) in [(10.0, "went on"), (0.0, "stayed")] {
            let mut sight = Sight::new(TrackOptions::default());
            for n in 0..10 {
                assert_eq!(sight.see(&[(0, 50.0 + 6.0 * n as f32, 100.0)]), [1]);
            }
            for _ in 0..10 {
                assert!(sight.see(&[]).is_empty());
            }
            assert_eq!(sight.see(&[(0, 50.0 + 6.0 * (9.0 + way + f32::min(way, 1.0)), 100.0)]), [1], "{what}");
        }
    }

    #[test]
    fn a_track_ends_when_it_is_missing_too_long() {
        for (n_missing, expected) in [(3, 1), (4, 2)] {
            let mut sight = Sight::new(TrackOptions { max_age: 3, ..TrackOptions::default() });
            assert_eq!(sight.see(&[(0, 50.0, 100.0)]), [1]);
            (0..n_missing).for_each(|_| drop(sight.see(&[])));
            assert_eq!(sight.see(&[(0, 50.0, 100.0)]), [expected], "missing in {n_missing} frames");
        }
        let mut sight = Sight::new(TrackOptions { max_age: 0, ..TrackOptions::default() });
        sight.see(&[(0, 50.0, 100.0)]);
        sight.see(&[]);
        let TrackCounts { n_tracks, n_begun, n_ended, .. } = sight.tracker.counts();
        assert_eq!((n_tracks, n_begun, n_ended), (0, 1, 1));
    }

    #[test]
    fn frames_that_were_not_inferred_make_no_track_older() {
        let mut sight = Sight::new(TrackOptions { max_age: 2, min_hits: 2, ..TrackOptions::default() });
        assert_eq!(sight.see(&[(0, 50.0, 100.0)]), [0]);
        (0..100).for_each(|_| drop(sight.skip(&[])));
        assert_eq!(sight.see(&[(0, 50.0, 100.0)]), [1]);
        // A failed frame counts as one without inference.
        let failed = InferenceStatus::Failed("no memory".into());
        (0..100).for_each(|_| drop(sight.update(&mut FrameResults { size: SIZE, status: failed.clone(), ..FrameResults::default() })));
        assert_eq!(sight.see(&[(0, 50.0, 100.0)]), [1]);
    }

    #[test]
    fn what_is_carried_on_is_known_by_its_name_and_says_nothing_of_its_way() {
        let mut sight = Sight::new(TrackOptions::default());
        // Every fifth frame is inferred; the others repeat the last box.
        for n in 0..20 {
            let found = sight.object(0, 50.0 + 4.0 * (n * 5) as f32, 100.0);
            let mut results = FrameResults { size: SIZE, detections: vec![found], ..FrameResults::default() };
            assert_eq!(sight.update(&mut results), [1], "frame {}", n * 5);
            let carried = Detection { track: None, ..results.detections.remove(0) };
            for _ in 0..4 {
                assert_eq!(sight.skip(std::slice::from_ref(&carried)), [1]);
            }
        }
    }

    #[test]
    fn a_name_is_given_when_an_object_was_found_often_enough() {
        let mut sight = Sight::new(TrackOptions { min_hits: 3, max_age: 5, ..TrackOptions::default() });
        let here = [(0, 50.0, 100.0)];
        assert_eq!([sight.see(&here), sight.see(&here)], [[0], [0]]);
        assert!(sight.see(&[]).is_empty(), "missing once before it has a name: it begins anew");
        assert_eq!([sight.see(&here), sight.see(&here), sight.see(&here)], [[0], [0], [1]]);
        sight.see(&[]);
        assert_eq!(sight.see(&here), [1]);
    }

    #[test]
    fn classes_never_meet() {
        let mut sight = Sight::new(TrackOptions::default());
        assert_eq!(sight.see(&[(0, 50.0, 100.0)]), [1]);
        assert_eq!(sight.see(&[(1, 50.0, 100.0)]), [2]);
        assert_eq!(sight.see(&[(1, 50.0, 100.0), (0, 50.0, 100.0)]), [2, 1]);
    }

    #[test]
    fn the_tracks_are_bounded_and_those_missing_longest_make_room() {
        let mut sight = Sight::new(TrackOptions { max_tracks: 3, ..TrackOptions::default() });
        let place = |n: i32| (0, n as f32 * 60.0, 100.0);
        assert_eq!(sight.see(&[place(0), place(1), place(2), place(3)]), [1, 2, 3, 0], "the fourth finds no room");
        assert_eq!(sight.tracker.counts().n_refused, 1);
        sight.see(&[place(1), place(2)]);
        assert_eq!(sight.see(&[place(2)]), [3]);
        assert_eq!(sight.see(&[place(4)]), [4]);
        assert_eq!(sight.see(&[place(0), place(1), place(2)]), [5, 2, 3], "the one of place 0 had been missing longest");
        let broken = Rect { x: f32::NAN, ..Rect::default() };
        let mut results = FrameResults { size: SIZE, ..FrameResults::default() };
        results.detections.push(Detection { rect: broken, ..sight.object(0, 0.0, 0.0) });
        assert_eq!(sight.update(&mut results), [0], "what is nowhere is no track");
    }

    #[test]
    fn a_frame_of_another_size_is_the_same_picture() {
        let mut sight = Sight::new(TrackOptions::default());
        sight.see(&[(0, 50.0, 100.0), (0, 400.0, 300.0)]);
        let half = Size::new(SIZE.width / 2, SIZE.height / 2);
        let mut small: Vec<Detection> = [(400.0, 300.0), (50.0, 100.0)].map(|(x, y)| sight.object(0, x, y)).into();
        small.iter_mut().for_each(|found| found.rect = found.rect.rescaled(SIZE, half));
        assert_eq!(sight.update(&mut FrameResults { size: half, detections: small, ..FrameResults::default() }), [2, 1]);
        sight.tracker.reset();
        assert_eq!(sight.see(&[(0, 50.0, 100.0)]), [3], "what was forgotten is a new object");
    }

    #[test]
    fn what_another_tracker_named_keeps_its_name() {
        let mut sight = Sight::new(TrackOptions::default());
        for n in 0..3 {
            let mut results = FrameResults { size: SIZE, ..FrameResults::default() };
            results.detections.push(Detection { track: Some(ObjectId(77)), ..sight.object(0, 50.0 * n as f32, 0.0) });
            results.detections.push(sight.object(0, 300.0, 300.0));
            assert_eq!(sight.update(&mut results), [77, 1]);
        }
        assert_eq!(sight.tracker.counts().n_tracks, 1);
    }

    /// Objects in separate lanes at different speeds, with noisy boxes that are sometimes missing.
    fn wander(seed: u64) -> Vec<Vec<(usize, i32)>> {
        const N_OBJECTS: usize = 7;
        let mut random = Random(seed | 1);
        let speeds: Vec<f32> = (0..N_OBJECTS).map(|_| random.unit() * 24.0 - 12.0).collect();
        let mut sight = Sight::new(TrackOptions { max_age: 5, ..TrackOptions::default() });
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
            // In any order.
            for place in (1..seen.len()).rev() {
                let other = (random.next() % (place as u64 + 1)) as usize;
                seen.swap(place, other);
                places.swap(place, other);
            }
            frames.push(seen.into_iter().zip(sight.see(&places)).collect());
        }
        frames
    }

    #[test]
    fn objects_that_wander_tremble_and_vanish_keep_their_names_and_chance_has_no_part_in_it() {
        let seed = std::env::var("ROIFLOW_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed
            .unwrap_or_else(|| std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64));
        eprintln!("ROIFLOW_SEED={seed}");
        for round in 0..50 {
            let frames = wander(seed.wrapping_add(round * 7919));
            let mut name_of = std::collections::HashMap::new();
            for (n, frame) in frames.iter().enumerate() {
                for &(object, name) in frame {
                    assert_eq!(*name_of.entry(object).or_insert(name), name, "round {round}, frame {n}, object {object}: {frame:?}");
                }
            }
            let mut names: Vec<i32> = name_of.values().copied().collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), name_of.len(), "round {round}: each has its own");
            assert_eq!(frames, wander(seed.wrapping_add(round * 7919)));
        }
    }

    /// Good enough for tests (xorshift).
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
