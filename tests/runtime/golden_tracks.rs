//! The methods SORT and ByteTrack, compared with stored track IDs of the reference implementation.

use std::collections::HashMap;

use roiflow::frame::{Detection, FrameResults, ObjectId, Rect, Size};
use roiflow::stages::{TrackMethod, TrackOptions, Tracker};

/// The boxes of a golden file with their confidences and track IDs, by frame.
fn golden(text: &str) -> Vec<Vec<(Rect, f32, i32)>> {
    let mut frames: Vec<Vec<_>> = Vec::new();
    for line in text.lines() {
        let values: Vec<f32> = line.split(' ').map(|value| value.parse().unwrap()).collect();
        let &[frame, x_min, y_min, x_max, y_max, confidence, track] = &values[..] else { panic!("{line}") };
        frames.resize_with(frames.len().max(frame as usize), Vec::new);
        frames[frame as usize - 1].push((Rect::from_corners(x_min, y_min, x_max, y_max), confidence, track as i32));
    }
    frames
}

fn check(text: &str, options: &TrackOptions) {
    let (mut tracker, mut last_id, mut n_named) = (Tracker::default(), 0, 0);
    // The reference numbers its tracks in another order. So check that each reference ID corresponds to exactly one ID of roiflow.
    let (mut expected_of, mut ours_of) = (HashMap::new(), HashMap::new());
    for (frame_idx, boxes) in golden(text).into_iter().enumerate() {
        let detection = |&(rect, confidence, _): &(Rect, f32, i32)| Detection {
            id: ObjectId::next(),
            track: None,
            track_state: None,
            parent: None,
            rect,
            keypoints: vec![],
            confidence,
            label_id: 0,
            label: None,
            classifications: vec![],
        };
        let detections = boxes.iter().map(detection).collect();
        let mut results = FrameResults { size: Size::new(640, 480), detections, ..FrameResults::default() };
        let new_track_id = || {
            last_id += 1;
            ObjectId(last_id)
        };
        tracker.update(&mut results, options, |_| true, new_track_id);
        for (found, (rect, _, expected)) in results.detections.iter().zip(boxes) {
            let ours = found.track.map_or(0, |track| track.0);
            let pair = (*expected_of.entry(ours).or_insert(expected), *ours_of.entry(expected).or_insert(ours));
            assert_eq!(pair, (expected, ours), "frame {}, {rect:?}", frame_idx + 1);
            n_named += usize::from(ours > 0);
        }
    }
    assert!(n_named > 300 && last_id > 9, "{n_named} objects with an ID, {last_id} IDs");
}

#[test]
fn sort_gives_the_track_ids_of_the_reference() {
    let options = TrackOptions { method: TrackMethod::Sort, min_hits: 3, max_age: 5, iou_threshold: 0.3, ..TrackOptions::default() };
    check(include_str!("../golden/tracks/sort.txt"), &options);
}

#[test]
fn byte_track_gives_the_track_ids_of_the_reference() {
    let method = TrackMethod::ByteTrack;
    let options = TrackOptions { method, min_hits: 2, max_age: 5, iou_threshold: 0.1, high_confidence: 0.6, ..TrackOptions::default() };
    check(include_str!("../golden/tracks/bytetrack.txt"), &options);
}
