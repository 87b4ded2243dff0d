//! Every frame is a line, and no destination stops the stream.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use gst::prelude::*;
use gstreamer as gst;
use roiflow::frame::{InferenceStatus, Rect, Size};
use serde_json::{Value, json};

use crate::harness::{attach, collect, face, on_buffers, pipeline, results, run};

const SIZE: Size = Size::new(320, 240);
const BOX: Rect = Rect { x: -20.0, y: 60.0, width: 52.0, height: 60.0 };
const SOURCE: &str = "videotestsrc num-buffers=5 ! video/x-raw,format=I420,width=320,height=240,framerate=10/1 ! identity name=attach";

/// A file of this test alone, removed at the end.
struct Destination(PathBuf);

impl Destination {
    fn new(test: &str) -> Self {
        Self(std::env::temp_dir().join(format!("roiflow test {} {test}.jsonl", std::process::id())))
    }

    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.0).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn to(address: &str, line: &str) -> gst::Pipeline {
    let pipeline = pipeline(line);
    pipeline.by_name("publish").unwrap().set_property("address", address);
    pipeline
}

fn stats(pipeline: &gst::Pipeline) -> [u64; 4] {
    let stats: gst::Structure = pipeline.by_name("publish").unwrap().property("stats");
    ["frames", "lines", "bytes", "errors"].map(|field| stats.get(field).unwrap())
}

#[test]
fn every_frame_is_a_line_with_its_objects() {
    let destination = Destination::new("lines");
    let pipeline = to(destination.0.to_str().unwrap(), &format!("{SOURCE} ! roipublish name=publish ! fakesink name=sink"));
    let publish = pipeline.by_name("publish").unwrap();
    publish.set_property("stream-id", "door");
    publish.set_property("source", "rtsp://user:pass@camera/1");
    attach(&pipeline, |n| match n {
        0 => results(SIZE, 100, vec![face(7, BOX)]),
        1 => results(SIZE, 101, vec![]),
        2 => roiflow::frame::FrameResults { status: InferenceStatus::Skipped("queue is full".into()), ..results(SIZE, 102, vec![]) },
        _ => results(SIZE, 100 + n, vec![]),
    });
    let after = collect(&pipeline, "sink", "sink");
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings.len()), (None, 0));
    assert_eq!(after.lock().unwrap().len(), 5);

    let mut lines = destination.lines();
    assert_eq!(lines.len(), 5);
    for (n, line) in lines.iter_mut().enumerate() {
        let time = line.as_object_mut().unwrap().remove("time").unwrap();
        let time = time.as_str().unwrap();
        assert!(time.len() == 24 && time.starts_with("20") && time.ends_with('Z'), "{time}");
        assert_eq!(line["frame"], 100 + n as u64);
        assert_eq!(line["timestamp"], 100_000_000 * n as u64);
    }
    assert_eq!(
        lines[0],
        json!({
            "schema_version": 1, "frame": 100, "stream": "door", "timestamp": 0, "source": "rtsp://***@camera/1",
            "resolution": {"width": 320, "height": 240}, "inference": {"status": "ok"},
            "objects": [{
                "x": 0, "y": 60, "w": 32, "h": 60, "id": 7, "region_id": 7, "parent_id": null, "roi_type": "face",
                "detection": {
                    "bounding_box": {"x_min": -0.0625, "y_min": 0.25, "x_max": 0.1, "y_max": 0.5},
                    "confidence": 0.75, "label_id": 1, "label": "face",
                },
                "gender": {"label": "female", "label_id": 0, "confidence": 0.5, "model": {"name": "age-gender"}},
                "age": {"value": 31.4, "model": {"name": "age-gender"}},
            }],
        })
    );
    assert_eq!(lines[1]["objects"], json!([]));
    assert_eq!(lines[2]["inference"], json!({"status": "skipped", "reason": "queue is full"}));
    let n_bytes = std::fs::metadata(&destination.0).unwrap().len();
    assert_eq!(stats(&pipeline), [5, 5, n_bytes, 0]);
}

#[test]
fn empty_results_can_be_left_out() {
    let destination = Destination::new("empty");
    let line = format!("{SOURCE} ! roipublish name=publish add-empty-results=false ! fakesink");
    let pipeline = pipeline(&line);
    pipeline.by_name("publish").unwrap().set_property("file-path", destination.0.to_str().unwrap());
    attach(&pipeline, |n| results(SIZE, n, if n == 3 { vec![face(7, BOX)] } else { vec![] }));
    assert_eq!(run(&pipeline).error, None);
    let lines = destination.lines();
    assert_eq!((lines.len(), &lines[0]["frame"]), (1, &json!(3)));
    assert_eq!(stats(&pipeline)[..2], [5, 1]);
}

#[test]
fn frames_that_no_detector_saw_are_counted_and_say_so() {
    let destination = Destination::new("none");
    let pipeline = to(destination.0.to_str().unwrap(), &format!("{SOURCE} ! roipublish name=publish ! fakesink"));
    assert_eq!(run(&pipeline).error, None);
    let lines = destination.lines();
    assert_eq!(lines.iter().map(|line| line["frame"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(lines[4]["inference"], json!({"status": "skipped", "reason": "no inference element upstream"}));
}

#[test]
fn encoded_frames_keep_their_results() {
    let destination = Destination::new("encoded");
    let line = format!("{SOURCE} ! x264enc tune=zerolatency ! h264parse ! roipublish name=publish ! fakesink");
    let pipeline = to(destination.0.to_str().unwrap(), &line);
    attach(&pipeline, |n| results(SIZE, n, vec![face(7, BOX)]));
    assert_eq!(run(&pipeline).error, None);
    let lines = destination.lines();
    assert_eq!(lines.len(), 5);
    assert!(lines.iter().all(|line| line["objects"][0]["w"] == 32 && line["resolution"]["width"] == 320), "{lines:?}");
}

#[test]
fn the_time_is_that_of_capture_where_the_source_knows_it() {
    let destination = Destination::new("time");
    let pipeline = to(destination.0.to_str().unwrap(), &format!("{SOURCE} ! roipublish name=publish ! fakesink"));
    on_buffers(&pipeline, "attach", "src", |n, buffer| {
        let (name, second) = if n % 2 == 0 { ("timestamp/x-ntp", 2_208_988_800) } else { ("timestamp/x-unix", 0) };
        let caps = gst::Caps::new_empty_simple(name);
        let time = gst::ClockTime::from_seconds(second + 86_400 * (1 + n));
        gst::ReferenceTimestampMeta::add(buffer.make_mut(), &caps, time, gst::ClockTime::NONE);
    });
    assert_eq!(run(&pipeline).error, None);
    let lines = destination.lines();
    assert_eq!(lines[0]["time"], "1970-01-02T00:00:00.000Z");
    assert_eq!(lines[1]["time"], "1970-01-03T00:00:00.000Z");
}

#[test]
fn the_first_line_is_there_at_once_and_others_within_a_tenth_of_a_second_of_the_stream() {
    let destination = Destination::new("first");
    let source = "videotestsrc num-buffers=12 ! video/x-raw,format=GRAY8,width=32,height=32,framerate=40/1";
    let pipeline = to(destination.0.to_str().unwrap(), &format!("{source} ! roipublish name=publish ! fakesink"));
    let (path, seen) = (destination.0.clone(), Arc::new(Mutex::new(Vec::new())));
    let before_frames = seen.clone();
    on_buffers(&pipeline, "publish", "sink", move |_, _| {
        before_frames.lock().unwrap().push(std::fs::read_to_string(&path).map_or(0, |text| text.lines().count()));
    });
    assert_eq!(run(&pipeline).error, None);
    assert_eq!(*seen.lock().unwrap(), [0, 1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9]);
    assert_eq!(destination.lines().len(), 12);
}

#[test]
fn a_full_disk_is_warned_of_once_and_the_stream_goes_on() {
    // Each line is a flush that fails.
    let line = "videotestsrc num-buffers=500 ! video/x-raw,format=GRAY8,width=32,height=32,framerate=10/1 ! roipublish name=publish ! \
                fakesink name=sink";
    let pipeline = to("/dev/full", line);
    let after = collect(&pipeline, "sink", "sink");
    let ending = run(&pipeline);
    assert_eq!(ending.error, None);
    assert_eq!(after.lock().unwrap().len(), 500);
    assert_eq!(ending.warnings.len(), 2, "{:?}", ending.warnings);
    assert!(ending.warnings[0].contains("/dev/full") && ending.warnings[0].contains("No space left"), "{:?}", ending.warnings);
    assert!(ending.warnings[1].contains("500 results"), "{:?}", ending.warnings);
    assert_eq!(stats(&pipeline), [500, 0, 0, 500]);
}

#[test]
fn a_missing_folder_is_an_error_that_says_what_to_do() {
    let pipeline = to("/no such folder/results.jsonl", "videotestsrc num-buffers=1 ! roipublish name=publish ! fakesink");
    let error = run(&pipeline).error.unwrap();
    let expected = "cannot write results to /no such folder/results.jsonl: No such file or directory (os error 2); create the folder";
    assert!(error.starts_with(expected), "{error}");
}
