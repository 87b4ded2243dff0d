//! `roitrack` gives an object the same track ID in every frame.

use std::collections::{BTreeMap, BTreeSet};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video::VideoRegionOfInterestMeta as RoiMeta;
use roiflow::elements::meta;
use roiflow::frame::{Detection, FrameResults, InferenceStatus, ObjectId, PixelRect, Rect, Size};
use serde_json::Value;

use crate::harness::{
    FRAME_TIME, Folder, attach, caps, collect, detect, face, feed, make_clip, on_buffers, picture, pipeline, results, run, stamp,
};
use crate::reference::real;
use crate::rig::{Rig, SIZE, black};

/// Returns an object without classifications that moves to the right.
fn walker(id: i32, n: u64) -> Detection {
    Detection { classifications: vec![], ..face(id, Rect { x: 4.0 + 2.0 * n as f32, y: 10.0, width: 20.0, height: 24.0 }) }
}

/// Frame `n` with these objects.
fn frame(n: u64, detections: Vec<Detection>) -> gst::Buffer {
    let mut buffer = black(n);
    meta::attach(buffer.get_mut().unwrap(), results(SIZE, n, detections));
    buffer
}

/// Returns all lines of a publisher.
fn lines(file: &str) -> Vec<Value> {
    std::fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn object_has_same_id_in_every_frame() {
    let folder = Folder::new("track");
    let clip = folder.file("clip.mp4");
    // The object moves in the clip and jumps back after some frames.
    let rects = make_clip(&clip, 16, "mp4mux");
    let pipeline = pipeline(&format!(
        "filesrc name=file ! decodebin ! videoconvert ! {} ! roitrack name=track ! videoconvert ! roipublish name=publish ! fakesink name=sink",
        detect("rectangle", "")
    ));
    pipeline.by_name("file").unwrap().set_property("location", &clip);
    pipeline.by_name("publish").unwrap().set_property("address", folder.file("o.jsonl"));
    let arrived = collect(&pipeline, "sink", "sink");
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let lines = lines(&folder.file("o.jsonl"));
    assert_eq!(lines.len(), rects.len());
    let object = |line: &Value| line["objects"][0].clone();
    let ids: BTreeSet<i64> = lines.iter().map(|line| object(line)["id"].as_i64().unwrap()).collect();
    let regions: BTreeSet<i64> = lines.iter().map(|line| object(line)["region_id"].as_i64().unwrap()).collect();
    assert_eq!((ids, regions), ([1].into(), [1].into()), "one object with track ID 1 in every frame");
    assert!(lines.iter().all(|line| object(line)["track_state"] == "confirmed"));
    for arrived in arrived.lock().unwrap().iter() {
        let found = arrived.results().unwrap().detections;
        assert_eq!(found.iter().map(|found| found.track.unwrap().0).collect::<Vec<_>>(), [1]);
    }
    let stats: gst::Structure = pipeline.by_name("track").unwrap().property("stats");
    let count = |field: &str| stats.get::<u64>(field).unwrap();
    assert_eq!(["frames", "objects", "tracks-begun", "tracks-ended", "objects-refused"].map(count), [16, 16, 1, 0, 0], "{stats}");
}

#[test]
fn object_has_no_id_before_confirmation() {
    let folder = Folder::new("tentative");
    let line = format!(
        "appsrc name=source ! {} ! roitrack min-hits=3 ! roipublish name=publish ! fakesink",
        detect("rectangle", "inference-interval=2 carry-results=true")
    );
    let pipeline = pipeline(&line);
    pipeline.by_name("publish").unwrap().set_property("address", folder.file("o.jsonl"));
    let size = Size::new(256, 192);
    let place = PixelRect { x: 40, y: 48, width: 80, height: 72 };
    feed(&pipeline, &caps("RGB", size), (0..6).map(|_| picture(size, place, [255, 0, 0])));
    assert_eq!(run(&pipeline).error, None);
    let seen: Vec<Value> = lines(&folder.file("o.jsonl"))
        .iter()
        .map(|line| serde_json::json!([line["objects"][0]["id"], line["objects"][0]["track_state"], line["objects"][0]["region_id"]]))
        .collect();
    let tentative = serde_json::json!([null, "tentative", 1]);
    let named = |state: &str| serde_json::json!([1, state, 1]);
    let expected = [tentative.clone(), tentative.clone(), tentative.clone(), tentative, named("confirmed"), named("held")];
    assert_eq!(seen, expected);
}

#[test]
fn lost_tracks_are_published_on_request() {
    for (properties, expected) in [("report-lost=true", vec![0, 0, 1, 2, 0]), ("", vec![0; 5])] {
        let folder = Folder::new("lost");
        let pipeline = pipeline(&format!(
            "appsrc name=source ! identity name=attach ! roitrack {properties} ! videoscale ! video/x-raw,width=128,height=96 ! \
             roipublish name=publish ! fakesink"
        ));
        pipeline.by_name("publish").unwrap().set_property("address", folder.file("o.jsonl"));
        attach(&pipeline, |n| results(SIZE, n, if (2..4).contains(&n) { vec![] } else { vec![walker(n as i32 + 1, n)] }));
        feed(&pipeline, &caps("RGB", SIZE), (0..5).map(black));
        assert_eq!(run(&pipeline).error, None);
        let lines = lines(&folder.file("o.jsonl"));
        let missed: Vec<i64> = lines.iter().map(|line| line["lost_tracks"][0]["missed"].as_i64().unwrap_or(0)).collect();
        assert_eq!(missed, expected);
        if let Some(lost) = lines[3].get("lost_tracks") {
            assert_eq!((&lost[0]["id"], &lost[0]["track_state"], &lost[0]["roi_type"]), (&1.into(), &"lost".into(), &"face".into()));
            // The object went on for two frames. The box is in fractions, so it does not change with the size of the frame.
            let x = lost[0]["bounding_box"]["x_min"].as_f64().unwrap();
            assert!((x - 10.0 / 64.0).abs() < 4.0 / 64.0, "{lost}");
        }
        assert!(lines[2]["objects"].as_array().unwrap().is_empty());
        assert_eq!(lines[4]["objects"][0]["id"], 1, "the object is found again");
    }
}

/// Returns frame `n` of a camera that turns to and fro, as a part of a large pattern. The second value is the place of an object that stands
/// still.
fn turning(n: u64) -> (gst::Buffer, Rect) {
    let turned = (0..n).map(|n| if (n / 12) % 2 == 0 { 6 } else { -6 }).sum::<i64>() + 60;
    let value = |x: i64, y: i64| {
        let bump = |x: i64, y: i64| ((x / 8 * 37 + y / 8 * 91 + (x / 8) * (y / 8) * 13) % 200) as u8;
        (u16::from(bump(x, y)) / 2 + u16::from(bump(x / 3 + 1000, y / 3)) / 2) as u8
    };
    let (width, height) = (320, 240);
    let bytes: Vec<u8> = (0..height).flat_map(|y| (0..width).map(move |x| value(x + turned, y))).collect();
    let buffer = gst::Buffer::from_mut_slice(bytes);
    (buffer, Rect { x: 200.0 - turned as f32, y: 100.0, width: 20.0, height: 30.0 })
}

#[test]
fn object_keeps_its_id_while_the_camera_turns() {
    let size = Size::new(320, 240);
    let ids = |properties: &str, format: &str| {
        let pipeline = pipeline(&format!("appsrc name=source ! identity name=attach ! roitrack {properties} ! fakesink name=sink"));
        attach(&pipeline, move |n| {
            // The object is not detected in the four frames after each turn.
            let is_detected = n < 12 || n % 12 >= 4;
            let object = Detection { classifications: vec![], ..face(n as i32 + 1, turning(n).1) };
            results(size, n, if is_detected { vec![object] } else { vec![] })
        });
        let arrived = collect(&pipeline, "sink", "sink");
        feed(&pipeline, &caps(format, size), (0..48).map(|n| turning(n).0));
        let ending = run(&pipeline);
        assert_eq!(ending.error, None);
        let ids: BTreeSet<i32> = arrived
            .lock()
            .unwrap()
            .iter()
            .flat_map(|arrived| arrived.results().map_or_else(Vec::new, |results| results.detections))
            .filter_map(|found| Some(found.track?.0))
            .collect();
        (ids.len(), ending.warnings)
    };
    assert_eq!(ids("camera-motion=true", "GRAY8"), (1, vec![]));
    assert!(ids("", "GRAY8").0 > 1);
    let (_, warnings) = ids("camera-motion=true", "GRAY16_LE");
    assert!(warnings.len() == 1 && warnings[0].contains("camera-motion has no effect"), "{warnings:?}");
}

/// Starts a stream of the turning camera.
fn turning_rig() -> Rig {
    let rig = Rig::new("roitrack camera-motion=true");
    rig.link();
    rig.event(gst::event::StreamStart::new("stream"));
    rig.event(gst::event::Caps::new(&caps("GRAY8", Size::new(320, 240))));
    rig.segment();
    rig
}

/// Pushes frame `n` with the view of frame `turned` of the turning camera. Returns the track ID of the object.
fn track_in(rig: &Rig, n: u64, turned: u64) -> i32 {
    let (buffer, rect) = turning(turned);
    let mut buffer = stamp(buffer, n);
    let object = Detection { classifications: vec![], ..face(n as i32 + 1, rect) };
    meta::attach(buffer.make_mut(), results(Size::new(320, 240), n, vec![object]));
    rig.source.push(buffer).unwrap();
    rig.left()[0].tracks[0]
}

#[test]
fn camera_motion_that_is_set_again_is_not_compared_with_an_old_frame() {
    let rig = turning_rig();
    // Between the frames 0 and 5, the camera turns by 30 pixels. The tracker follows the object, which moves by 6 pixels per frame.
    let track = |n: u64| {
        rig.element.set_property("camera-motion", !(1..5).contains(&n));
        track_in(&rig, n, n)
    };
    assert_eq!((0..8).map(track).collect::<Vec<_>>(), [1; 8]);
}

#[test]
fn first_frame_after_a_time_jump_is_compared_with_the_next_frame() {
    let rig = turning_rig();
    // The time goes back by 1000 frames, so the tracks end with the second frame. Then the camera turns by 30 pixels, which is more than the
    // width of the object.
    assert_eq!([(1000, 0), (0, 0), (1, 1), (2, 6)].map(|(n, turned)| track_in(&rig, n, turned)), [1, 1, 2, 2]);
}

#[test]
fn trackers_in_a_row_give_different_ids() {
    for first in ["car", "bus"] {
        let pipeline = pipeline(
            "videotestsrc num-buffers=4 ! video/x-raw,width=64,height=48 ! identity name=attach ! roitrack object-class=car ! queue ! tee ! \
             roitrack object-class=bus ! fakesink name=sink",
        );
        attach(&pipeline, move |n| {
            let labeled = |id: i32, label: &str, y: f32| {
                let rect = Rect { x: 4.0, y, width: 20.0, height: 10.0 };
                Detection { label: Some(label.into()), classifications: vec![], ..face(id, rect) }
            };
            let both = [labeled(2 * n as i32 + 1, "car", 4.0), labeled(2 * n as i32 + 2, "bus", 30.0)];
            results(SIZE, n, both.into_iter().filter(|found| n > 0 || found.label.as_deref() == Some(first)).collect())
        });
        let arrived = collect(&pipeline, "sink", "sink");
        assert_eq!(run(&pipeline).error, None);
        let arrived = arrived.lock().unwrap();
        let of = |label: &str| -> BTreeSet<i32> {
            let found = arrived.iter().flat_map(|arrived| arrived.results().unwrap().detections);
            found.filter(|found| found.label.as_deref() == Some(label)).map(|found| found.track.unwrap().0).collect()
        };
        assert_eq!((of("car"), of("bus")), ([1].into(), [(1 << 24) + 1].into()), "{first} first");
    }
}

#[test]
fn track_id_is_region_parameter_as_in_gvatrack() {
    let pipeline =
        pipeline("videotestsrc num-buffers=4 ! video/x-raw,width=64,height=48 ! identity name=attach ! roitrack ! fakesink name=sink");
    // Attach regions as another detector writes them, with arbitrary IDs, and one region with a track ID of another tracker.
    on_buffers(&pipeline, "attach", "src", |n, buffer| {
        let buffer = buffer.make_mut();
        RoiMeta::add(buffer, "car", (4 + 2 * n as u32, 10, 20, 24));
        let mut known = RoiMeta::add(buffer, "car", (40, 20, 20, 20));
        known.set_id(3);
        known.add_param(gst::Structure::builder("object_id").field("id", 77).build());
    });
    let arrived = collect(&pipeline, "sink", "sink");
    assert_eq!(run(&pipeline).error, None);
    let mut names = BTreeSet::new();
    for arrived in arrived.lock().unwrap().iter() {
        let object_id = |roi: &RoiMeta| roi.param("object_id").unwrap().get::<i32>("id").unwrap();
        let written: Vec<i32> = arrived.buffer.iter_meta::<RoiMeta>().map(|roi| object_id(&roi)).collect();
        let read: Vec<i32> = arrived.results().unwrap().detections.iter().map(|found| found.track.unwrap().0).collect();
        assert_eq!((written.len(), written.iter().collect::<BTreeSet<_>>()), (2, read.iter().collect()), "{written:?} {read:?}");
        assert!(written.contains(&77), "a foreign track ID is kept");
        names.extend(written);
    }
    assert_eq!(names.len(), 2, "two objects in four frames");
}

#[test]
fn only_flush_new_stream_and_time_jump_end_tracks() {
    let rig = Rig::begun("roitrack");
    let mut n = 0;
    let mut region = 100;
    let mut see = |rig: &Rig, at: u64, is_marked: bool| {
        region += 1;
        let mut buffer = frame(at, vec![walker(region, 3)]);
        if is_marked {
            buffer.get_mut().unwrap().set_flags(gst::BufferFlags::DISCONT);
        }
        rig.source.push(buffer).unwrap();
        rig.left().pop().unwrap().tracks[0]
    };
    let mut next = || {
        n += 1;
        n
    };
    let first = see(&rig, next(), true);
    assert!(first > 0);
    // The following events do not end tracks.
    rig.event(gst::event::Gap::builder(FRAME_TIME * 2).duration(FRAME_TIME).build());
    assert_eq!(see(&rig, next(), false), first, "a gap");
    rig.segment();
    assert_eq!(see(&rig, next(), false), first, "a segment");
    assert_eq!(see(&rig, next() + 20, true), first, "dropped frames");
    // The following events end tracks.
    let known = std::cell::RefCell::new(vec![first]);
    let is_new = |name: i32, what: &str| {
        let mut known = known.borrow_mut();
        assert!(!known.contains(&name), "{what}: {name} of {known:?}");
        known.push(name);
    };
    is_new(see(&rig, next(), true), "back in time");
    is_new(see(&rig, 1000, true), "ahead in time");
    assert_eq!(see(&rig, 10, false), *known.borrow().last().unwrap(), "one timestamp far back");
    is_new(see(&rig, 11, false), "a second one");
    rig.event(gst::event::FlushStart::new());
    rig.event(gst::event::FlushStop::new(true));
    rig.segment();
    is_new(see(&rig, 12, false), "a flush");
    rig.event(gst::event::Eos::new());
    rig.begin();
    is_new(see(&rig, 13, false), "another stream");
    rig.element.set_state(gst::State::Ready).unwrap();
    rig.element.set_state(gst::State::Playing).unwrap();
    rig.begin();
    is_new(see(&rig, 14, false), "a stop");
}

#[test]
fn one_wrong_timestamp_keeps_tracks() {
    // Hours ahead, hours back, 1.5 s back, and at the begin.
    for wrong in [1_000_000, 0, 4_962, 4_999] {
        let rig = Rig::begun("roitrack");
        let tracks: Vec<i32> = (0..10)
            .map(|n| {
                rig.source.push(frame(if n == 5 { wrong } else { 5_000 + n }, vec![walker(n as i32 + 1, n)])).unwrap();
                rig.left().pop().unwrap().tracks[0]
            })
            .collect();
        assert_eq!(tracks, [1; 10], "{wrong}");
    }
}

#[test]
fn walkers_at_two_frames_per_second_keep_their_ids() {
    for method in ["hybrid", "bytetrack", "sort", "iou"] {
        let rig = Rig::begun(&format!("roitrack tracking-type={method}"));
        let mut seen = BTreeSet::new();
        for n in 0..14 {
            // Both walk by a whole box from frame to frame, and pass each other.
            let walker = |id: i32, x: f32, y: f32| Detection {
                classifications: vec![],
                confidence: 0.9,
                ..face(id, Rect { x, y, width: 4.0, height: 14.0 })
            };
            let moved = 4.0 * n as f32;
            let both = vec![walker(2 * n + 1, 2.0 + moved, 8.0), walker(2 * n + 2, 56.0 - moved, 14.0)];
            let mut buffer = frame(n as u64, both);
            buffer.get_mut().unwrap().set_pts(gst::ClockTime::from_mseconds(500) * n as u64);
            rig.source.push(buffer).unwrap();
            seen.insert(rig.left().pop().unwrap().tracks.clone());
        }
        assert_eq!(seen, [vec![1, 2]].into(), "{method}");
    }
}

#[test]
fn predicted_boxes_move_between_inferences() {
    let folder = Folder::new("predicted");
    let size = Size::new(640, 192);
    let place = |n: u32| PixelRect { x: 20 + n * 6, y: 48, width: 80, height: 72 };
    let run_with = |rest: &str| {
        let pipeline = pipeline(&format!(
            "appsrc name=source ! {} ! {rest} ! roipublish name=publish ! fakesink name=sink",
            detect("rectangle", "inference-interval=5 carry-results=predicted")
        ));
        pipeline.by_name("publish").unwrap().set_property("address", folder.file("o.jsonl"));
        let arrived = collect(&pipeline, "sink", "sink");
        feed(&pipeline, &caps("RGB", size), (0..60).map(|n| picture(size, place(n), [255, 0, 0])));
        assert_eq!(run(&pipeline).error, None);
        (lines(&folder.file("o.jsonl")), arrived)
    };
    let (with_tracker, arrived) = run_with("roitrack");
    for (n, line) in with_tracker.iter().enumerate().skip(20) {
        let object = &line["objects"][0];
        let off = (object["x"].as_i64().unwrap() - i64::from(place(n as u32).x)).abs();
        let state = if n % 5 == 0 { "confirmed" } else { "predicted" };
        assert!(off < 8 && object["track_state"] == state && object["id"] == 1, "frame {n}: {object}");
        // Elements of GStreamer and DL Streamer get the same box.
        let regions: Vec<u32> = arrived.lock().unwrap()[n].buffer.iter_meta::<RoiMeta>().map(|roi| roi.rect().0).collect();
        assert_eq!(regions, [object["x"].as_u64().unwrap() as u32], "frame {n}");
    }
    // Without a tracker, the objects stay where they were, and are not marked.
    let (without, _) = run_with("queue");
    assert_eq!(without[21]["objects"][0]["x"], without[20]["objects"][0]["x"]);
    assert!(without.iter().all(|line| line["objects"][0].get("track_state").is_none()), "{}", without[21]);
}

#[test]
fn changed_frame_size_keeps_tracks() {
    let rig = Rig::begun("roitrack");
    rig.source.push(frame(0, vec![walker(1, 0)])).unwrap();
    let size = Size::new(SIZE.width * 2, SIZE.height * 2);
    rig.event(gst::event::Caps::new(&caps("RGB", size)));
    let mut large = black(1);
    let doubled = Detection { rect: walker(2, 1).rect.rescaled(SIZE, size), ..walker(2, 1) };
    meta::attach(large.get_mut().unwrap(), results(size, 1, vec![doubled]));
    rig.source.push(large).unwrap();
    let left = rig.left();
    assert_eq!(left[0].tracks, left[1].tracks);
}

#[test]
fn skipped_frames_keep_tracks() {
    for carry in [false, true] {
        let line = format!(
            "appsrc name=source ! {} ! roitrack max-age=0 ! fakesink name=sink",
            detect("rectangle", &format!("inference-interval=4 carry-results={carry}"))
        );
        let pipeline = pipeline(&line);
        let arrived = collect(&pipeline, "sink", "sink");
        let size = Size::new(256, 192);
        let place = |n: u32| PixelRect { x: n * 4, y: 48, width: 80, height: 72 };
        feed(&pipeline, &caps("RGB", size), (0..20).map(|n| picture(size, place(n), [255, 0, 0])));
        assert_eq!(run(&pipeline).error, None);
        let mut names = BTreeSet::new();
        for (n, arrived) in arrived.lock().unwrap().iter().enumerate() {
            let found = arrived.results().unwrap().detections;
            assert_eq!(found.len(), usize::from(carry || n.is_multiple_of(4)), "frame {n}");
            names.extend(found.iter().map(|found| found.track.unwrap().0));
        }
        assert_eq!(names.len(), 1, "carry-results={carry}");
    }
}

#[test]
fn object_class_and_limits_apply_to_tracker() {
    let rig = Rig::begun("roitrack object-class=\"car, bus\" min-hits=2 max-tracks=1");
    let labeled = |id: i32, label: &str, y: f32| {
        let rect = Rect { x: 4.0, y, width: 10.0, height: 10.0 };
        Detection { label: Some(label.into()), rect, classifications: vec![], ..face(id, rect) }
    };
    for n in 0..3 {
        let id = 10 * n as i32;
        let objects = vec![labeled(id + 1, "tree", 0.0), labeled(id + 2, "car", 14.0), labeled(id + 3, "bus", 28.0)];
        rig.source.push(frame(n, objects)).unwrap();
    }
    let tracks: Vec<Vec<bool>> = rig.left().iter().map(|left| left.tracks.iter().map(|&name| name > 0).collect()).collect();
    assert_eq!(tracks, [[false, false, false], [false, true, false], [false, true, false]]);
    assert_eq!((rig.count("tracks"), rig.count("objects-refused")), (1, 3));
    for (name, value) in [("iou-threshold", "0.5"), ("max-age", "7"), ("tracking-type", "iou")] {
        rig.element.set_property_from_str(name, value);
    }
    assert_eq!((rig.element.property::<f32>("iou-threshold"), rig.element.property::<u32>("max-age")), (0.5, 7));
}

#[test]
fn shared_buffer_is_not_copied_for_track_ids() {
    let rig = Rig::begun("roitrack");
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seeing = seen.clone();
    rig.element.static_pad("src").unwrap().add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        seeing.lock().unwrap().push(info.buffer().unwrap().peek_memory(0).as_ptr() as usize);
        gst::PadProbeReturn::Ok
    });
    let held = frame(0, vec![walker(1, 0)]);
    rig.source.push(held.clone()).unwrap();
    assert_eq!(*seen.lock().unwrap(), [held.peek_memory(0).as_ptr() as usize]);
    assert_eq!(meta::read(&held, SIZE).unwrap().detections[0].track, None, "the holder has the unchanged buffer");
}

#[test]
fn frames_without_results_pass_unchanged() {
    let rig = Rig::begun("roitrack");
    rig.source.push(frame(0, vec![])).unwrap();
    let failed = FrameResults { status: InferenceStatus::Failed("no memory".into()), ..results(SIZE, 1, vec![]) };
    let mut buffer = black(1);
    meta::attach(buffer.get_mut().unwrap(), failed);
    rig.source.push(buffer).unwrap();
    rig.event(gst::event::Eos::new());
    assert_eq!(rig.until_eos(), ["frame 0 of 64x48", "frame 1 of 64x48"]);
    let statuses: Vec<String> = rig.left().into_iter().map(|left| left.status).collect();
    assert_eq!(statuses, ["inferred", "no memory"]);
}

#[test]
fn other_data_than_video_is_an_error() {
    let ending = run(&pipeline("audiotestsrc num-buffers=1 ! roitrack ! fakesink"));
    let said = ending.error.unwrap();
    assert!(said.contains("width and height") && said.contains("roitrack"), "{said}");
}

#[test]
fn carried_labels_follow_tracker_id() {
    // The detector runs on every frame with new object IDs; the classifier runs on every third frame.
    let pipeline = pipeline(&format!(
        "appsrc name=source ! {} ! roitrack ! {} ! fakesink name=sink",
        detect("rectangle", ""),
        crate::harness::classify("color", "inference-interval=3 carry-results=true")
    ));
    let arrived = collect(&pipeline, "sink", "sink");
    let size = Size::new(64, 64);
    let rect = |n: u32| PixelRect { x: 4 + n, y: 15, width: 32, height: 30 };
    feed(&pipeline, &caps("RGB", size), (0..7).map(|n| picture(size, rect(n), [255, 0, 0])));
    assert_eq!(run(&pipeline).error, None);
    for (n, arrived) in arrived.lock().unwrap().iter().enumerate() {
        assert_eq!(crate::harness::labels(&arrived.results().unwrap()), ["red"], "frame {n}");
    }
}

#[test]
fn documented_pipeline_runs() {
    let [line] = &*crate::documentation::lines(include_str!("../../src/elements/track/mod.rs")) else { panic!("expected one line") };
    let line = line.replace("assets/", concat!(env!("CARGO_MANIFEST_DIR"), "/assets/"));
    let folder = Folder::new("track line");
    let line = line.replace("address=tracks.jsonl", &format!("address=\"{}\"", folder.file("o.jsonl")));
    let ending = run(&pipeline(&line));
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let lines = lines(&folder.file("o.jsonl"));
    let ids: BTreeSet<i64> =
        lines.iter().flat_map(|line| line["objects"].as_array().unwrap().iter().map(|object| object["id"].as_i64().unwrap())).collect();
    assert_eq!((lines.len(), ids.len()), (60, 1), "one ball");
}

#[test]
fn faces_keep_ids_in_real_clip() {
    let (Some(clip), Some(models)) = (real("videos/faces_grid_1280x720.mp4"), real("models")) else { return };
    let descriptions = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/models");
    let line = format!(
        "filesrc location={} ! decodebin ! videoconvert ! video/x-raw,format=NV12 \
         ! roidetect model={}/ultraface_rfb_320_nhwc.onnx description={}/ultraface-rfb-320.toml ! roitrack name=track ! fakesink name=sink",
        clip.display(),
        models.display(),
        descriptions.display()
    );
    let pipeline = pipeline(&line);
    let arrived = collect(&pipeline, "sink", "sink");
    assert_eq!(run(&pipeline).error, None);
    let arrived = arrived.lock().unwrap();
    let mut frames_of: BTreeMap<ObjectId, usize> = BTreeMap::new();
    let mut n_objects = 0;
    for arrived in arrived.iter() {
        let found = arrived.results().unwrap().detections;
        let names: BTreeSet<ObjectId> = found.iter().map(|found| found.track.unwrap()).collect();
        assert_eq!(names.len(), found.len(), "track IDs are unique in a frame");
        n_objects += found.len();
        names.into_iter().for_each(|name| *frames_of.entry(name).or_default() += 1);
    }
    let mut lengths: Vec<usize> = frames_of.into_values().collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    let of_longest = lengths.iter().take(6).sum::<usize>();
    eprintln!("{} frames, {n_objects} faces, {} tracks: {lengths:?}", arrived.len(), lengths.len());
    assert!(arrived.len() >= 200 && n_objects > 300);
    assert!(of_longest * 10 >= n_objects * 9, "nine of ten faces belong to the six longest tracks: {lengths:?}");
}
