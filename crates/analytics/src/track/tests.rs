//! Behavior of the tracker: moving, crossing, hidden and flickering objects, intervals, and bounds.

use super::*;
use crate::CameraMotion;
use crate::camera_motion::tests::view;
use crate::frame::{Classification, Outcome};

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

    /// Processes the next frame. Returns the track ID of each object, or 0 if it has none. An object is a class and the corner of its box.
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
            confidence: 0.9,
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
    // An object is hidden for ten frames. It reappears more than its width further on, or at its last box.
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

/// The camera turns to and fro. The object stands still, and is not detected in the four frames after each turn.
#[test]
fn object_keeps_its_track_id_while_the_camera_turns() {
    let size = Size::new(640, 360);
    for method in [Method::Hybrid, Method::ByteTrack, Method::Sort, Method::Iou] {
        let n_track_ids = [true, false].map(|uses_pixels| {
            let mut tracking = TestTracker::new(TrackOptions { method, ..TrackOptions::default() });
            let (mut motion, mut camera, mut step) = (CameraMotion::default(), 600.0, 14.0);
            for n in 0..60 {
                let since_turn = n % 15;
                if since_turn == 0 && n > 0 {
                    step = -step;
                }
                camera += step;
                let is_detected = n < 15 || since_turn >= 4;
                let detections = if is_detected { vec![tracking.object(0, 900.0 - camera, 150.0)] } else { vec![] };
                if uses_pixels {
                    let moved = motion.update(&view(size, (camera, 300.0), 1.0)).unwrap();
                    tracking.tracker.set_camera_motion(moved);
                }
                tracking.update(&mut FrameResults { size, detections, ..FrameResults::default() });
            }
            tracking.n_track_ids
        });
        assert!(n_track_ids[0] == 1 && n_track_ids[1] > 1, "{method:?}: IDs with and without pixels: {n_track_ids:?}");
    }
}

#[test]
fn lost_tracks_are_reported_with_their_predicted_boxes() {
    for reports_lost in [true, false] {
        let mut tracking = TestTracker::new(TrackOptions { max_age: 3, reports_lost, ..TrackOptions::default() });
        for n in 0..10 {
            let detections = vec![tracking.object(0, 50.0 + 6.0 * n as f32, 100.0), tracking.object(1, 400.0, 100.0)];
            let mut results = FrameResults { size: SIZE, detections, ..FrameResults::default() };
            tracking.update(&mut results);
            assert_eq!(results.lost_tracks, [], "all objects are detected");
        }
        let mut lost = Vec::new();
        for _ in 0..5 {
            let detections = vec![tracking.object(1, 400.0, 100.0)];
            let mut results = FrameResults { size: SIZE, detections, ..FrameResults::default() };
            assert_eq!(tracking.update(&mut results), [2]);
            lost.push(results.lost_tracks);
        }
        let missed: Vec<Vec<u32>> = lost.iter().map(|tracks| tracks.iter().map(|track| track.n_missed).collect()).collect();
        let expected: [&[u32]; 5] = if reports_lost { [&[1], &[2], &[3], &[], &[]] } else { [&[]; 5] };
        assert_eq!(missed, expected, "the track ends after three frames");
        if let Some(track) = lost[2].first() {
            assert_eq!((track.track, track.label_id, track.label.as_deref()), (ObjectId(1), 0, Some("class 0")));
            // The object went on by six pixels a frame for three frames.
            assert!((track.rect.x - (50.0 + 6.0 * 12.0)).abs() < 6.0, "{:?}", track.rect);
        }
    }
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
    for method in [Method::Iou, Method::Sort, Method::ByteTrack] {
        let mut tracking = TestTracker::new(TrackOptions { method, ..TrackOptions::default() });
        assert_eq!(tracking.update_objects(&[(0, 50.0, 100.0)]), [1]);
        assert_eq!(tracking.update_objects(&[(1, 50.0, 100.0)]), [2]);
        assert_eq!(tracking.update_objects(&[(1, 50.0, 100.0), (0, 50.0, 100.0)]), [2, 1]);
    }
    // Two objects at the same position, such as a person on a bicycle, remain two tracks.
    let mut tracking = TestTracker::new(TrackOptions::default());
    for n in 0..20 {
        let x = 50.0 + 5.0 * n as f32;
        assert_eq!(tracking.update_objects(&[(0, x, 100.0), (1, x, 104.0)]), [1, 2]);
    }
    assert_eq!(tracking.update_objects(&[(1, 150.0, 100.0)]), [2]);
    assert_eq!(tracking.update_objects(&[(0, 155.0, 100.0)]), [1], "the own class comes first");
}

#[test]
fn object_whose_class_flickers_keeps_its_track_id() {
    let mut tracking = TestTracker::new(TrackOptions::default());
    // The detector reports a car as a truck in every third frame, and a truck next to it as a car in every fourth frame.
    for n in 0..60 {
        let x = 50.0 + 4.0 * n as f32;
        let track_ids = tracking.update_objects(&[(u32::from(n % 3 == 1), x, 100.0), (u32::from(n % 4 != 2), x, 160.0)]);
        assert_eq!(track_ids, [1, 2], "frame {n}");
    }
    assert_eq!(tracking.tracker.counts().n_started, 2);
}

#[test]
fn object_behind_another_for_30_frames_keeps_its_track_id() {
    let mut tracking = TestTracker::new(TrackOptions::default());
    // Object 1 walks behind the standing object 2, whose box hides it for 30 frames.
    for n in 0..80 {
        let x = 100.0 + 3.0 * n as f32;
        let is_hidden = (25..55).contains(&n);
        let objects = [(0, 220.0, 110.0), (0, x, 100.0)];
        let track_ids = tracking.update_objects(if is_hidden { &objects[..1] } else { &objects });
        assert_eq!(track_ids, if is_hidden { vec![1] } else { vec![1, 2] }, "frame {n}");
    }
    let counts = tracking.tracker.counts();
    assert_eq!((counts.n_started, counts.n_recovered, counts.n_lost), (2, 1, 0));
}

#[test]
fn objects_at_low_frame_rates_and_after_dropped_frames_keep_track_ids() {
    // Speed of a walking person at 5 frames per second: the box moves by a third of its width per frame.
    for step in [4.0, 13.0] {
        let mut tracking = TestTracker::new(TrackOptions::default());
        let mut random = Random(11);
        let mut n = 0;
        while n < 100 {
            let way = n as f32 * step;
            assert_eq!(tracking.update_objects(&[(0, 10.0 + way, 100.0), (0, 1500.0 - way, 300.0)]), [1, 2], "{step} pixels, frame {n}");
            // Frames that upstream drops never arrive. Drop at most two frames in a row, once the tracker knows the speed.
            n += if n > 5 && random.unit() < 0.2 { 1 + (random.next() % 2) as usize + 1 } else { 1 };
        }
    }
}

#[test]
fn camera_motion_keeps_track_ids_of_close_objects() {
    // A row of persons, and a camera that jumps by half the distance between them, in both directions.
    let jumps = [0.0, 0.0, 22.0, -20.0, 0.0, 24.0, 24.0, -30.0, 12.0, -24.0];
    let mut tracking = TestTracker::new(TrackOptions::default());
    let mut way = 100.0;
    for n in 0..60 {
        way += jumps[n % jumps.len()];
        let objects: Vec<_> = (0..8).map(|object| (0, way + 60.0 * object as f32, 100.0 + 9.0 * (object % 3) as f32)).collect();
        assert_eq!(tracking.update_objects(&objects), [1, 2, 3, 4, 5, 6, 7, 8], "frame {n}");
    }
}

#[test]
fn uncertain_detections_continue_tracks_but_start_none() {
    let mut tracking = TestTracker::new(TrackOptions::default());
    let mut see = |confidence: f32| {
        let detection = Detection { confidence, ..tracking.object(0, 50.0, 100.0) };
        tracking.update(&mut FrameResults { size: SIZE, detections: vec![detection], ..FrameResults::default() })[0]
    };
    assert_eq!([0.3, 0.3, 0.6, 0.6, 0.3, 0.3, 0.6].map(&mut see), [0, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn lost_object_is_found_again_with_a_low_confidence() {
    for (confidence, expected) in [(0.3, 1), (0.2, 0)] {
        let mut tracking = TestTracker::new(TrackOptions::default());
        (0..5).for_each(|_| drop(tracking.update_objects(&[(0, 50.0, 100.0)])));
        (0..3).for_each(|_| drop(tracking.update_objects(&[])));
        let detection = Detection { confidence, ..tracking.object(0, 50.0, 100.0) };
        let track_ids = tracking.update(&mut FrameResults { size: SIZE, detections: vec![detection], ..FrameResults::default() });
        assert_eq!(track_ids, [expected], "confidence {confidence}");
    }
}

#[test]
fn new_object_that_overlaps_a_track_gets_its_id_after_four_frames() {
    let known = (0, 50.0, 100.0);
    for (new, what, expected) in [
        ((0, 70.0, 100.0), "overlaps", [0, 0, 0, 2, 2]),
        ((0, 90.0, 100.0), "is next to the track", [2, 2, 2, 2, 2]),
        ((1, 70.0, 100.0), "is of another class", [2, 2, 2, 2, 2]),
    ] {
        let mut tracking = TestTracker::new(TrackOptions::default());
        assert_eq!(tracking.update_objects(&[known]), [1]);
        let track_ids: Vec<i32> = (0..5).map(|_| tracking.update_objects(&[known, new])[1]).collect();
        assert_eq!(track_ids, expected, "the new object {what}");
    }
    // The same holds for a lost track.
    let mut tracking = TestTracker::new(TrackOptions::default());
    (0..3).for_each(|_| drop(tracking.update_objects(&[known])));
    let track_ids: Vec<i32> = (0..4).map(|_| tracking.update_objects(&[(0, 70.0, 112.0)])[0]).collect();
    assert_eq!(track_ids, [0, 0, 0, 2]);
}

/// The far object is hidden behind the near object. The first box that the detector then finds looks like that of the far object, so the
/// track of the far object follows the near object.
#[test]
fn tracks_that_followed_each_others_objects_exchange_their_ids() {
    let (near, far) = ((0, 300.0, 112.0), (0, 315.0, 100.0));
    for max_age in [30, 5] {
        let mut tracking = TestTracker::new(TrackOptions { max_age, ..TrackOptions::default() });
        (0..10).for_each(|_| drop(tracking.update_objects(&[near, far])));
        for n in 0..=10 {
            let way = n as f32;
            assert_eq!(tracking.update_objects(&[(0, 312.0 - 2.0 * way, 102.0 + way)]), [2], "hidden for {n} frames");
        }
        let track_ids = tracking.update_objects(&[(0, 290.0, 112.0), (0, 310.0, 102.0)]);
        // A track that has ended cannot exchange its ID.
        assert_eq!(track_ids, if max_age == 30 { [1, 2] } else { [2, 0] }, "the far object is detected again, max-age {max_age}");
    }
}

#[test]
fn objects_of_different_classes_do_not_exchange_their_ids() {
    let mut tracking = TestTracker::new(TrackOptions::default());
    for n in 0..20 {
        // The objects slowly exchange their places.
        let way = (n as f32 - 8.0).clamp(0.0, 4.0);
        let track_ids = tracking.update_objects(&[(0, 300.0 + way / 2.0, 100.0 + way), (1, 302.0 - way / 2.0, 104.0 - way)]);
        assert_eq!(track_ids, [1, 2], "frame {n}");
    }
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
    let seed: u64 =
        seed.unwrap_or_else(|| std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64));
    eprintln!("ROIFLOW_SEED={seed}");
    for round in 0..50 {
        let frames = wander(seed.wrapping_add(round * 7919));
        let mut track_of = std::collections::HashMap::new();
        for (n, frame) in frames.iter().enumerate() {
            for &(object, track_id) in frame {
                assert_eq!(*track_of.entry(object).or_insert(track_id), track_id, "round {round}, frame {n}, object {object}: {frame:?}");
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

/// Two objects walk towards each other, meet, and turn around. Their positions alone look as if they had passed each other.
#[test]
fn objects_that_turn_around_keep_their_ids_by_appearance() {
    let ids_after_the_turn = |appearance_weight: f32, embeddings: [Option<[f32; 3]>; 2]| {
        let mut tracking = TestTracker::new(TrackOptions { appearance_weight, ..TrackOptions::default() });
        let mut ids = Vec::new();
        for n in -20..=20_i32 {
            let distance = n.abs() as f32 * 6.0 + 3.0;
            let mut detections = vec![tracking.object(0, 300.0 - distance, 100.0), tracking.object(0, 300.0 + distance, 100.0)];
            for (detection, embedding) in detections.iter_mut().zip(embeddings) {
                let outcome = embedding.map(|data| Outcome::Tensor { shape: vec![1, 3], data: data.into() });
                let attribute = |outcome| Classification { name: "person".into(), model: "reid".into(), outcome };
                detection.classifications.extend(outcome.map(attribute));
            }
            ids = tracking.update(&mut FrameResults { size: SIZE, detections, ..FrameResults::default() });
        }
        ids
    };
    let (left, right) = (Some([1.0, 0.1, 0.0]), Some([0.0, 0.2, 2.0]));
    assert_eq!(ids_after_the_turn(0.0, [left, right]), [2, 1], "the weight is 0");
    assert_eq!(ids_after_the_turn(1.0, [left, right]), [1, 2]);
    // Without embeddings, or with vectors that have no direction, the position decides.
    for embeddings in [[None, None], [left, None], [Some([0.0; 3]); 2], [Some([f32::NAN; 3]), right]] {
        assert_eq!(ids_after_the_turn(1.0, embeddings), [2, 1], "{embeddings:?}");
    }
}

#[test]
fn only_the_hybrid_method_averages_embeddings() {
    for method in [Method::Hybrid, Method::ByteTrack, Method::Sort, Method::Iou] {
        let mut tracking = TestTracker::new(TrackOptions { method, appearance_weight: 1.0, ..TrackOptions::default() });
        let with_embedding = |detection: Detection, data: [f32; 2]| {
            let outcome = Outcome::Tensor { shape: vec![1, 2], data: data.to_vec().into() };
            let classifications = vec![Classification { name: "person".into(), model: "reid".into(), outcome }];
            Detection { classifications, ..detection }
        };
        let detection = with_embedding(tracking.object(0, 50.0, 100.0), [1.0, 0.0]);
        tracking.update(&mut FrameResults { size: SIZE, detections: vec![detection.clone()], ..FrameResults::default() });
        let [track] = &*tracking.tracker.tracks else { panic!("{method:?}") };
        let expected = if method == Method::Hybrid { 1.0 } else { 0.0 };
        assert_eq!(track.appearance.distance(&with_embedding(detection, [0.0, 1.0])), expected, "{method:?}");
    }
}
