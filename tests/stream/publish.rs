//! Every frame gets a line, and no destination stops the stream.

use std::path::PathBuf;

use gst::prelude::*;
use gstreamer as gst;
use roiflow::frame::{InferenceStatus, Rect, Size};
use serde_json::{Value, json};

use crate::harness::{Folder, attach, collect, eventually, face, init, on_buffers, pipeline, results, run};

const SIZE: Size = Size::new(320, 240);
const BOX: Rect = Rect { x: -20.0, y: 60.0, width: 52.0, height: 60.0 };
const SOURCE: &str = "videotestsrc num-buffers=5 ! video/x-raw,format=I420,width=320,height=240,framerate=10/1 ! identity name=attach";

/// A file for one test, removed when dropped.
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
            "schema_version": 2, "frame": 100, "stream": "door", "timestamp": 0, "pts": 0, "source": "rtsp://***@camera/1",
            "resolution": {"width": 320, "height": 240}, "inference": {"status": "ok"},
            "objects": [{
                "x": 0, "y": 60, "w": 32, "h": 60, "id": null, "region_id": 1, "parent_id": null, "roi_type": "face",
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

/// Publishes frames with these PTS (in milliseconds) in this segment. Returns the fields `timestamp` and `pts` of each line.
fn times_in(test: &str, segment: &gst::FormattedSegment<gst::ClockTime>, pts: &[Option<u64>]) -> Vec<(Value, Value)> {
    roiflow::elements::register_static().unwrap();
    let destination = Destination::new(test);
    let element = gst::ElementFactory::make("roipublish").property("address", destination.0.to_str().unwrap()).build().unwrap();
    let mut harness = gstreamer_check::Harness::with_element(&element, Some("sink"), Some("src"));
    harness.set_src_caps(crate::harness::caps("RGB", SIZE));
    assert!(harness.push_event(gst::event::Segment::new(segment)));
    for pts in pts {
        let mut buffer = gst::Buffer::new();
        buffer.get_mut().unwrap().set_pts(pts.map(gst::ClockTime::from_mseconds));
        harness.push(buffer).unwrap();
    }
    drop(harness);
    element.set_state(gst::State::Null).unwrap();
    destination.lines().into_iter().map(|line| (line["timestamp"].clone(), line["pts"].clone())).collect()
}

#[test]
fn timestamp_is_stream_time_and_pts_is_separate() {
    init();
    let ms = |n: u64| json!(n * 1_000_000);
    let segment = |start: u64, stop: Option<u64>, time: u64, rate: f64| {
        let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
        let (rate, applied) = if rate < 0.0 { (rate, 1.0) } else { (1.0, rate) };
        segment.set_rate(rate);
        segment.set_applied_rate(applied);
        segment.set_start(gst::ClockTime::from_mseconds(start));
        segment.set_stop(stop.map(gst::ClockTime::from_mseconds));
        segment.set_time(gst::ClockTime::from_mseconds(time));
        segment
    };
    // Timestamps that begin at one hour, as in a transport stream.
    let hour = 3_600_000;
    let times = times_in("segment", &segment(hour, None, 0, 1.0), &[Some(hour), Some(hour + 40), Some(hour - 40), None]);
    assert_eq!(times, [(ms(0), ms(hour)), (ms(40), ms(hour + 40)), (Value::Null, ms(hour - 40)), (Value::Null, Value::Null)]);
    // After a seek to ten seconds, a demuxer begins at zero.
    assert_eq!(times_in("seek", &segment(0, None, 10_000, 1.0), &[Some(40)]), [(ms(10_040), ms(40))]);
    // The rate of a segment (double speed, backwards) does not change the timestamps, because upstream already applies it.
    assert_eq!(times_in("fast", &segment(0, None, 0, 2.0), &[Some(40)]), [(ms(80), ms(40))]);
    assert_eq!(times_in("back", &segment(1000, Some(2000), 1000, -1.0), &[Some(1960)]), [(ms(1960), ms(1960))]);
    // Frames in a segment that is not in time format get no timestamps.
    let destination = Destination::new("bytes");
    let line = format!("{SOURCE} ! roipublish name=publish ! fakesink");
    let pipeline = to(destination.0.to_str().unwrap(), &line);
    pipeline.by_name("attach").unwrap().static_pad("src").unwrap().add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, |_, info| {
        if info.event().is_some_and(|event| event.type_() == gst::EventType::Segment) {
            info.data = Some(gst::PadProbeData::Event(gst::event::Segment::new(&gst::FormattedSegment::<gst::format::Bytes>::new())));
        }
        gst::PadProbeReturn::Ok
    });
    assert_eq!(run(&pipeline).error, None);
    assert!(destination.lines().iter().all(|line| line["timestamp"].is_null() && line["pts"].is_u64()));
}

#[test]
fn same_stream_gives_same_lines_in_every_run() {
    let folder = Folder::new("same lines");
    let lines = |name: &str| {
        let line = format!(
            "videotestsrc num-buffers=24 ! video/x-raw,width=640,height=480 ! videoconvert ! {} ! {} ! {} ! roitrack min-hits=3 ! \
             roipublish name=publish ! fakesink",
            crate::harness::detect("rectangle", "nireq=2"),
            crate::harness::detect("stripes", "nireq=2 inference-region=roi-list object-class=rectangle"),
            crate::harness::classify("color", "nireq=2"),
        );
        let pipeline = to(&folder.file(name), &line);
        assert_eq!(run(&pipeline).error, None);
        std::fs::read_to_string(folder.file(name)).unwrap()
    };
    let without_time = |text: &str| -> Vec<String> {
        let line = |line: &str| {
            let (before, after) = line.split_once("\"time\":\"").unwrap();
            format!("{before}{}", after.split_once('"').unwrap().1)
        };
        text.lines().map(line).collect()
    };
    let (first, second) = (lines("first.jsonl"), lines("second.jsonl"));
    assert_eq!(without_time(&first), without_time(&second));
    assert!(first.contains("\"parent_id\":1,"), "expected objects with parents: {first}");
}

#[test]
fn add_empty_results_false_skips_empty_lines() {
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
fn frames_without_detector_are_counted_and_marked() {
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
fn time_is_capture_time_if_source_reports_it() {
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
fn lines_are_written_while_stream_stalls() {
    let destination = Destination::new("first");
    let source = "videotestsrc num-buffers=12 ! video/x-raw,format=GRAY8,width=32,height=32,framerate=40/1";
    let pipeline = to(destination.0.to_str().unwrap(), &format!("{source} ! roipublish name=publish ! fakesink"));
    let path = destination.0.clone();
    on_buffers(&pipeline, "publish", "sink", move |n, _| {
        let n_lines = || std::fs::read_to_string(&path).map_or(0, |text| text.lines().count() as u64);
        assert!(n_lines() <= n);
        // The first line is written at once. Later lines are written together after a while, even if no further frame arrives.
        if [1, 5, 11].contains(&n) {
            eventually("the lines are written", || n_lines() == n);
        }
    });
    assert_eq!(run(&pipeline).error, None);
    assert_eq!(destination.lines().len(), 12);
}

/// Returns a FIFO with a stalled reader, and a stream of this many frames to it.
fn stalled(test: &str, n_frames: u32, properties: &str) -> (Destination, std::fs::File, gst::Pipeline) {
    let destination = Destination::new(test);
    assert!(std::process::Command::new("mkfifo").arg(&destination.0).status().unwrap().success());
    let reader = std::fs::OpenOptions::new().read(true).write(true).open(&destination.0).unwrap();
    let line = format!(
        "videotestsrc num-buffers={n_frames} ! video/x-raw,format=GRAY8,width=32,height=32,framerate=10/1 ! \
         roipublish name=publish {properties} ! fakesink"
    );
    let pipeline = to(destination.0.to_str().unwrap(), &line);
    (destination, reader, pipeline)
}

/// Plays until FIFO and queue are full and a frame waits. Returns the number of arrived frames.
fn wait_until_it_stands_still(pipeline: &gst::Pipeline, fifo: &std::fs::File) -> u64 {
    const QUEUE: u64 = 256;
    pipeline.set_state(gst::State::Playing).unwrap();
    let mut n_frames = 0;
    eventually("the stream waits", || {
        let mut poll = [rustix::event::PollFd::new(fifo, rustix::event::PollFlags::OUT)];
        let is_full = rustix::event::poll(&mut poll, Some(&rustix::time::Timespec::default())).unwrap() == 0;
        let n_lines;
        [n_frames, n_lines, ..] = stats(pipeline);
        is_full && n_frames == n_lines + QUEUE + 1
    });
    n_frames
}

#[test]
fn stalled_reader_blocks_stream_and_loses_no_line() {
    let (_destination, mut reader, pipeline) = stalled("stalled", 2000, "");
    assert!(wait_until_it_stands_still(&pipeline, &reader) < 2000, "the queue is bounded");
    let reading = std::thread::spawn(move || {
        let mut text = vec![0; 1 << 16];
        let mut n_lines = 0;
        while n_lines < 2000 {
            let n_bytes = std::io::Read::read(&mut reader, &mut text).unwrap();
            n_lines += text[..n_bytes].iter().filter(|byte| **byte == b'\n').count();
        }
        n_lines
    });
    assert_eq!(run(&pipeline).error, None);
    assert_eq!((reading.join().unwrap(), stats(&pipeline)[1], stats(&pipeline)[3]), (2000, 2000, 0));
}

#[test]
fn stalled_reader_does_not_block_flush_or_stop() {
    let (_destination, reader, pipeline) = stalled("flush", 100_000, "");
    wait_until_it_stands_still(&pipeline, &reader);
    for _ in 0..3 {
        pipeline.seek_simple(gst::SeekFlags::FLUSH, gst::ClockTime::ZERO).unwrap();
    }
    let begin = std::time::Instant::now();
    pipeline.set_state(gst::State::Null).unwrap();
    assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?}", begin.elapsed());
    let [n_frames, n_lines, _, n_lost] = stats(&pipeline);
    assert!(n_lost > 0 && (n_lines + n_lost).abs_diff(n_frames) <= 4, "{n_lines} + {n_lost} of {n_frames}");
}

#[test]
fn live_stream_drops_results_instead_of_waiting() {
    for policy in ["drop-oldest", "drop-newest"] {
        let (_destination, _reader, pipeline) = stalled(policy, 2000, &format!("when-full={policy}"));
        pipeline.by_name("publish").unwrap().static_pad("sink").unwrap().add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, {
            let publish = pipeline.by_name("publish").unwrap().downcast::<roiflow::elements::publish::RoiPublish>().unwrap();
            move |_, info| {
                if info.event().is_some_and(|event| event.type_() == gst::EventType::Eos) {
                    publish.write_until(std::time::Instant::now());
                }
                gst::PadProbeReturn::Ok
            }
        });
        let ending = run(&pipeline);
        assert_eq!(ending.error, None);
        let structure: gst::Structure = pipeline.by_name("publish").unwrap().property("stats");
        let count = |field: &str| structure.get::<u64>(field).unwrap();
        assert!(count("dropped") > 0 && ending.warnings.iter().any(|warning| warning.contains("too slow")), "{:?}", ending.warnings);
        assert_eq!(count("lines") + count("errors") + count("dropped"), 2000, "{structure}");
    }
}

#[test]
fn full_disk_is_warned_about_once_and_stream_continues() {
    // Each line is flushed when it is written, and each flush fails.
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
fn missing_folder_is_an_error_with_remedy() {
    let pipeline = to("/no such folder/results.jsonl", "videotestsrc num-buffers=1 ! roipublish name=publish ! fakesink");
    let error = run(&pipeline).error.unwrap();
    let expected = "cannot write results to /no such folder/results.jsonl: No such file or directory (os error 2); create the folder";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn zones_and_labels_select_lost_tracks() {
    let pipeline = pipeline(&format!(
        "{SOURCE} ! roitrack min-hits=1 report-lost=true ! roianalytics zones=left:0,0,0.5,0,0.5,1,0,1 ! \
         roipublish name=publish labels=face zones=left ! fakesink"
    ));
    let destination = Destination::new("lost");
    pipeline.by_name("publish").unwrap().set_property("address", destination.0.to_str().unwrap());
    let at = |id: i32, x: f32| face(id, Rect { x, y: 60.0, width: 40.0, height: 60.0 });
    let dog = move |id: i32| roiflow::frame::Detection { label_id: 2, label: Some("dog".into()), ..at(id, 60.0) };
    // After three frames, no object is detected any more.
    attach(&pipeline, move |n| results(SIZE, n, if n < 3 { vec![at(1, 0.0), at(2, 200.0), dog(3)] } else { vec![] }));
    assert_eq!(run(&pipeline).error, None);
    let lost: Vec<Vec<Value>> =
        destination.lines().iter().map(|line| line["lost_tracks"].as_array().cloned().unwrap_or_default()).collect();
    assert_eq!(lost.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 0, 1, 1], "{lost:?}");
    assert!(lost[4][0]["roi_type"] == "face" && lost[4][0]["bounding_box"]["x_min"].as_f64().unwrap() < 0.1, "{lost:?}");
}

#[test]
fn zones_and_labels_select_objects_and_tags_are_in_each_line() {
    let folder = Folder::new("zones");
    let play = |zones: &str, tags: &str| {
        let line = "videotestsrc num-buffers=4 ! video/x-raw,width=320,height=240,framerate=25/1 ! \
                    roiattach rois=\"car:0,0,0.2,0.5;car:0.6,0,0.8,0.5;dog:0.1,0,0.3,0.5\" ! roitrack min-hits=1 ! \
                    roianalytics zones=left:0,0,0.5,0,0.5,1,0,1 ! roianalytics zones=low:0,0.9,1,0.9,1,1,0,1 ! roipublish name=publish labels=\"car, cat\" ! fakesink";
        let pipeline = pipeline(line);
        let publish = pipeline.by_name("publish").unwrap();
        publish.set_property("address", folder.file("o.jsonl"));
        publish.set_property("zones", zones);
        publish.set_property("tags", tags);
        run(&pipeline)
    };
    let ending = play("left", "{\"site\":\"gate\",\"lane\":3}");
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let lines = crate::harness::lines(&folder.file("o.jsonl"));
    assert_eq!(lines.len(), 4);
    for line in &lines {
        let objects = line["objects"].as_array().unwrap();
        assert_eq!((objects.len(), &objects[0]["roi_type"], &objects[0]["x"]), (1, &"car".into(), &0.into()), "{line}");
        assert_eq!(line["tags"], serde_json::json!({"site": "gate", "lane": 3}));
        let events = line["events"].as_array().into_iter().flatten();
        assert!(events.clone().all(|event| event["label"] == "car" && event["place"] == "left"), "{line}");
    }
    let ending = play("rihgt", "");
    assert!(
        ending.warnings.len() == 1
            && ["got rihgt", "the places upstream are", "left", "low"].iter().all(|part| ending.warnings[0].contains(part)),
        "{:?}",
        ending.warnings
    );
    assert!(
        crate::harness::lines(&folder.file("o.jsonl"))
            .iter()
            .all(|line| line["objects"] == serde_json::json!([]) && line.get("tags").is_none())
    );
    let error = play("", "site=gate").error.unwrap();
    assert!(error.contains("tags: expected a JSON object") && error.contains("site=gate"), "{error}");
}
