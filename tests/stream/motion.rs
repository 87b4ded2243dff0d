//! `roidetect motion-threshold` compares frames before inference, and skips frames without motion.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gst::prelude::*;
use gstreamer as gst;
use roiflow::frame::{InferenceStatus, PixelFormat, PixelRect, Size, TrackState};
use roiflow::runtime::{Error, ErrorKind};
use serde_json::Value;

use crate::harness::{Folder, Slow, caps, collect, detect, eventually, feed, picture, pipeline, run, stamp};
use crate::reference::real;
use crate::rig::{Rig, SIZE};

/// Returns an image of a square. Its position depends on `scene`.
fn scene(size: Size, scene: u32) -> gst::Buffer {
    picture(size, PixelRect { x: scene * size.width / 8, y: size.height / 4, width: size.width / 4, height: size.height / 2 }, [255, 0, 0])
}

fn push(rig: &Rig, n: u64, of_scene: u32) {
    rig.source.push(stamp(scene(SIZE, of_scene), n)).unwrap();
}

/// Status and object IDs of the frames that have left.
fn left(rig: &Rig) -> Vec<(String, usize)> {
    rig.left().into_iter().map(|left| (left.status, left.ids.len())).collect()
}

#[test]
fn frames_without_motion_carry_results_in_every_format() {
    let size = Size::new(128, 96);
    let scenes = [0, 0, 0, 1, 1, 1, 1, 4];
    for format in PixelFormat::ALL {
        let line = format!(
            "appsrc name=source ! videoconvert ! video/x-raw,format={format} ! {} ! roitrack ! fakesink name=sink",
            detect("rectangle", "name=detect motion-threshold=0.02")
        );
        let pipeline = pipeline(&line);
        let arrived = collect(&pipeline, "sink", "sink");
        feed(&pipeline, &caps("RGB", size), scenes.map(|of_scene| scene(size, of_scene)));
        assert_eq!(run(&pipeline).error, None);
        let arrived = arrived.lock().unwrap();
        let results: Vec<_> = arrived.iter().map(|arrived| arrived.results().unwrap()).collect();
        let statuses: Vec<bool> = results.iter().map(|results| results.status == InferenceStatus::Inferred).collect();
        assert_eq!(statuses, [true, false, false, true, false, false, false, true], "{format}");
        let stats: gst::Structure = pipeline.by_name("detect").unwrap().property("stats");
        let count = |field: &str| stats.get::<u64>(field).unwrap();
        assert_eq!(["inferred", "skipped-motion-threshold", "skipped", "dropped"].map(count), [3, 5, 5, 0], "{format}: {stats}");
        if format == PixelFormat::Gray8 {
            continue; // The model detects colors, which gray frames lack.
        }
        for pair in results.windows(2).filter(|pair| pair[1].status != InferenceStatus::Inferred) {
            let mut carried = pair[0].detections.clone();
            carried.iter_mut().for_each(|found| found.track_state = Some(TrackState::Held));
            assert_eq!(carried, pair[1].detections, "{format}: expected the same object, box and IDs");
        }
        assert!(results.iter().all(|results| results.detections.len() == 1), "{format}");
        let names: BTreeSet<_> = results[..7].iter().map(|results| results.detections[0].track.unwrap()).collect();
        assert_eq!(names.len(), 1, "{format}: after a step of half its width, expected the same object");
    }
}

#[test]
fn json_has_skip_reason_of_frame() {
    let folder = Folder::new("motion");
    let line = format!("appsrc name=source ! {} ! roipublish name=publish ! fakesink", detect("rectangle", "motion-threshold=0.02"));
    let pipeline = pipeline(&line);
    pipeline.by_name("publish").unwrap().set_property("address", folder.file("o.jsonl"));
    feed(&pipeline, &caps("RGB", SIZE), [scene(SIZE, 0), scene(SIZE, 0)]);
    assert_eq!(run(&pipeline).error, None);
    let text = std::fs::read_to_string(folder.file("o.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["inference"], serde_json::json!({"status": "ok"}));
    assert_eq!(lines[1]["inference"], serde_json::json!({"status": "skipped", "reason": "motion-threshold"}));
    assert_eq!(lines[0]["objects"], lines[1]["objects"]);
}

#[test]
fn flush_resize_and_reactivation_reset_motion_gate() {
    let rig = Rig::begun(&detect("rectangle", "motion-threshold=0.02"));
    let see = |n: u64| {
        push(&rig, n, 0);
        while !rig.next().starts_with("frame") {}
        left(&rig).pop().unwrap().0
    };
    assert_eq!([see(0), see(1)], ["inferred", "motion-threshold"]);
    rig.event(gst::event::FlushStart::new());
    rig.event(gst::event::FlushStop::new(true));
    rig.segment();
    assert_eq!([see(2), see(3)], ["inferred", "motion-threshold"]);
    rig.element.set_property("motion-threshold", 0.0_f32);
    assert_eq!([see(4), see(5)], ["inferred", "inferred"]);
    rig.element.set_property("motion-threshold", 0.02_f32);
    assert_eq!([see(6), see(7)], ["inferred", "motion-threshold"]);
    let size = Size::new(SIZE.width * 2, SIZE.height * 2);
    rig.event(gst::event::Caps::new(&caps("RGB", size)));
    rig.source.push(stamp(scene(size, 0), 8)).unwrap();
    while !rig.next().starts_with("frame") {}
    assert_eq!(left(&rig).pop().unwrap().0, "inferred");
    rig.event(gst::event::Eos::new());
    rig.until_eos();
    rig.check_counts();
}

#[test]
fn skipped_or_failed_frame_resets_motion_gate() {
    // The run of frame 0 fails, so frame 1 must not be compared with frame 0.
    let n_runs = Arc::new(AtomicUsize::new(0));
    let counted = n_runs.clone();
    let slow = Slow::computing("motion-fails", 1, move |io| {
        if counted.fetch_add(1, Ordering::AcqRel) == 0 {
            return Err(Error::new(ErrorKind::Device, "no luck"));
        }
        io.output(0, &[1, 1, 6])?.dense_mut::<f32>()?.copy_from_slice(&[0.0, 1.0, 0.25, 0.25, 0.75, 0.75]);
        Ok(())
    });
    let rig = Rig::begun(&slow.detect("motion-threshold=0.02"));
    for n in 0..3 {
        push(&rig, n, 0);
        rig.next();
    }
    let seen = left(&rig);
    assert!(seen[0].0.contains("no luck"), "{seen:?}");
    assert_eq!(seen[1..], [("inferred".to_owned(), 1), ("motion-threshold".to_owned(), 1)]);

    // Frame 1 finds no free slot.
    let slow = Slow::open("motion-full", 1);
    let rig = Rig::begun(&slow.detect("nireq=1 scheduling-policy=latency queue-policy=drop-newest motion-threshold=0.02"));
    slow.hold();
    push(&rig, 0, 0);
    push(&rig, 1, 4); // This frame has motion, but finds no free slot.
    slow.wait_for(1);
    slow.release();
    rig.expect(&["frame 0 of 64x48", "frame 1 of 64x48"]);
    push(&rig, 2, 4);
    push(&rig, 3, 4);
    rig.event(gst::event::Eos::new());
    rig.until_eos();
    let statuses: Vec<String> = left(&rig).into_iter().map(|(status, _)| status).collect();
    assert_eq!(statuses[..3], ["inferred", "queue-policy", "inferred"]);
    assert_eq!(statuses[3], "motion-threshold");
    rig.check_counts();
}

#[test]
fn frame_matching_a_skipped_frame_carries_no_older_results() {
    let slow = Slow::open("motion-displaced", 1);
    let rig = Rig::begun(&slow.detect("nireq=1 queue-policy=drop-oldest motion-threshold=0.02"));
    push(&rig, 0, 0);
    rig.next();
    slow.hold();
    push(&rig, 1, 2);
    slow.wait_for(1);
    // Frame 3 shows the same scene as frame 2, so it is skipped. The last frame then displaces frame 2.
    for (n, of_scene) in [(2, 4), (3, 4), (4, 6), (5, 0)] {
        push(&rig, n, of_scene);
    }
    slow.release();
    rig.event(gst::event::Eos::new());
    rig.until_eos();
    let expected = [("inferred", 1), ("inferred", 1), ("queue-policy", 0), ("motion-threshold", 0), ("inferred", 1), ("inferred", 1)];
    assert_eq!(left(&rig), expected.map(|(status, n_objects)| (status.to_owned(), n_objects)));
    rig.check_counts();
}

#[test]
fn frames_lost_while_unlinked_are_no_motion_reference() {
    let slow = Slow::open("motion-unlinked", 1);
    let rig = Rig::begun(&slow.detect("nireq=1 queue-policy=wait motion-threshold=0.02"));
    push(&rig, 0, 0);
    rig.next();
    slow.hold();
    push(&rig, 1, 4);
    slow.wait_for(1);
    rig.element.static_pad("src").unwrap().unlink(&rig.sink).unwrap();
    slow.release();
    eventually("upstream gets the error", || rig.source.push(stamp(scene(SIZE, 4), 2)) == Err(gst::FlowError::NotLinked));
    rig.link();
    rig.left();
    push(&rig, 3, 4);
    while rig.next() != "frame 3 of 64x48" {}
    assert_eq!(left(&rig), [("inferred".to_owned(), 1)]);
}

#[test]
fn frames_without_motion_are_never_dropped() {
    let rig = Rig::begun(&detect("rectangle", "motion-threshold=0.02 inference-interval=2 drop-frames=true"));
    for n in 0..6 {
        push(&rig, n, 0);
    }
    rig.event(gst::event::Eos::new());
    rig.until_eos();
    let seen = left(&rig);
    let expected = ["inferred", "inference-interval", "motion-threshold", "inference-interval", "motion-threshold", "inference-interval"];
    assert_eq!(seen.iter().map(|(status, _)| &**status).collect::<Vec<_>>(), expected);
    // Without carry-results, frames skipped by interval carry nothing.
    assert_eq!(seen.iter().map(|(_, n_objects)| *n_objects).collect::<Vec<_>>(), [1, 0, 1, 0, 1, 0]);
    rig.check_counts();
}

#[test]
fn motion_gate_reduces_runs_on_real_clip() {
    let (Some(clip), Some(models)) = (real("videos/one-by-one-person-detection.mp4"), real("models")) else { return };
    let descriptions = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/models");
    for threshold in ["0.005", "0.02"] {
        let line = format!(
            "filesrc location={} ! decodebin ! videoconvert ! video/x-raw,format=NV12 ! identity eos-after=401 \
             ! roidetect name=detect model={}/ultraface_rfb_320_nhwc.onnx description={}/ultraface-rfb-320.toml motion-threshold={threshold} \
             ! fakesink",
            clip.display(),
            models.display(),
            descriptions.display()
        );
        let pipeline = pipeline(&line);
        assert_eq!(run(&pipeline).error, None);
        let stats: gst::Structure = pipeline.by_name("detect").unwrap().property("stats");
        let [came, inferred, spared] = ["frames-in", "inferred", "skipped-motion-threshold"].map(|field| stats.get::<u64>(field).unwrap());
        eprintln!("motion-threshold={threshold}: {inferred} of {came} frames inferred, {spared} spared");
        assert!(inferred > 0 && spared > 0 && inferred + spared == came, "{stats}");
    }
}
