//! `roidetect` detects objects in every format and size.

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video as gst_video;
use roiflow::frame::{InferenceStatus, Outcome, PixelFormat, PixelRect, Rect, Size};
use serde_json::Value;

use crate::harness::{
    Arrived, FRAME_TIME, Folder, assert_near, caps, classify, collect, detect, feed, init, make_clip, picture, pipeline, run, stamp, tiny,
};

/// The input of the rectangle detector has 64x64 pixels. Each input pixel covers 4x3 pixels of the frame, so box edges at multiples of 4
/// and 3 are detected exactly.
const SIZE: Size = Size::new(256, 192);
const COLORS: [[u8; 3]; 3] = [[255, 0, 0], [0, 255, 0], [0, 0, 255]];

/// Returns a rectangle that is different in every frame. Its coordinates are even, so that subsampled chroma has the same edges.
fn place(n: u64) -> PixelRect {
    let n = n as u32;
    PixelRect { x: n * 8 % 160, y: n * 12 % 96, width: 40 + n * 4 % 32, height: 48 + n * 6 % 36 }
}

fn pictures(n_frames: u64) -> impl Iterator<Item = gst::Buffer> {
    (0..n_frames).map(|n| picture(SIZE, place(n), COLORS[n as usize % 3]))
}

/// Runs frames through `middle` and returns the output. Asserts that the pipeline ends without an error, and with `n_warnings` warnings.
fn through(
    middle: &str,
    caps: &gst::Caps,
    buffers: impl IntoIterator<Item = gst::Buffer>,
    n_warnings: usize,
) -> (Vec<Arrived>, Vec<String>) {
    let pipeline = pipeline(&format!("appsrc name=source ! {middle} ! fakesink name=sink"));
    let arrived = collect(&pipeline, "sink", "sink");
    feed(&pipeline, caps, buffers);
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings.len()), (None, n_warnings), "{middle}: {:?}", ending.warnings);
    let arrived = std::mem::take(&mut *arrived.lock().unwrap());
    (arrived, ending.warnings)
}

#[test]
fn box_is_detected_on_its_frame_in_every_format() {
    for format in PixelFormat::ALL {
        let middle = format!("videoconvert ! video/x-raw,format={format} ! {}", detect("rectangle", ""));
        let (arrived, _) = through(&middle, &caps("RGB", SIZE), pictures(9), 0);
        assert_eq!(arrived.len(), 9);
        for (arrived, n) in arrived.iter().zip(0..) {
            let results = arrived.results().unwrap();
            assert_eq!((results.frame_number, &results.status, results.size), (n, &InferenceStatus::Inferred, SIZE), "{format}");
            if format == PixelFormat::Gray8 {
                assert_eq!(results.detections, [], "the model detects colors, which gray frames lack");
                continue;
            }
            let [found] = &*results.detections else { panic!("{format}, frame {n}: {:?}", results.detections) };
            assert_near(found.rect, place(n).to_rect(), 0.01, &format!("{format}, frame {n}"));
            assert_eq!((found.label.as_deref(), found.label_id, found.confidence), (Some("rectangle"), 0, 1.0));
        }
    }
}

#[test]
fn frames_leave_in_order_with_any_number_of_requests() {
    for nireq in 1..=16 {
        let (arrived, _) = through(&detect("rectangle", &format!("nireq={nireq}")), &caps("RGB", SIZE), pictures(40), 0);
        assert_eq!(arrived.len(), 40, "nireq={nireq}");
        for (arrived, n) in arrived.iter().zip(0..) {
            let (pts, duration) = (arrived.buffer.pts(), arrived.buffer.duration());
            assert_eq!((pts, duration), (Some(FRAME_TIME * n), Some(FRAME_TIME)), "nireq={nireq}");
            let results = arrived.results().unwrap();
            assert_eq!(results.frame_number, n);
            assert_near(results.detections[0].rect, place(n).to_rect(), 0.01, &format!("nireq={nireq}, frame {n}"));
        }
    }
}

#[test]
fn zero_and_300_objects_are_counted_correctly() {
    for (pattern, n_expected) in [("black", 0), ("white", 300)] {
        let line = format!(
            "videotestsrc num-buffers=4 pattern={pattern} ! video/x-raw,format=NV12,width=160,height=120 ! {} ! {} ! fakesink name=sink",
            detect("stripes", "name=detect"),
            classify("brightness", "")
        );
        let pipeline = pipeline(&line);
        let arrived = collect(&pipeline, "sink", "sink");
        assert_eq!(run(&pipeline).error, None);
        for arrived in arrived.lock().unwrap().iter() {
            let detections = arrived.results().unwrap().detections;
            assert_eq!(detections.len(), n_expected, "{pattern}");
            assert!(detections.iter().all(|detection| detection.classifications.len() == 1));
            let mut ids: Vec<i32> = detections.iter().map(|detection| detection.id.0).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), n_expected, "object IDs are unique");
        }
        let stats: gst::Structure = pipeline.by_name("detect").unwrap().property("stats");
        let count = |field: &str| stats.get::<u64>(field).unwrap();
        let counts = ["frames-in", "frames-out", "inferred", "failed", "objects"].map(count);
        assert_eq!(counts, [4, 4, 4, 0, 4 * n_expected as u64], "{stats}");
    }
}

#[test]
fn frames_of_any_size_are_inferred_in_every_format() {
    let sizes = [(1, 1), (3, 1), (1, 5), (33, 17), (161, 121)].map(|(width, height)| Size::new(width, height));
    for format in PixelFormat::ALL {
        for size in sizes {
            white_frame_has_300_objects(format, size);
        }
    }
    white_frame_has_300_objects(PixelFormat::Nv12, Size::new(7680, 4320));
}

fn white_frame_has_300_objects(format: PixelFormat, size: Size) {
    let line = format!(
        "videotestsrc num-buffers=1 pattern=white ! video/x-raw,format={format},width={},height={} ! {} ! fakesink name=sink",
        size.width,
        size.height,
        detect("stripes", "")
    );
    let pipeline = pipeline(&line);
    let arrived = collect(&pipeline, "sink", "sink");
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings), (None, vec![]), "{format} {size}");
    let results = arrived.lock().unwrap()[0].results().unwrap();
    assert_eq!(results.detections.len(), 300, "{format} {size}");
    let whole = results.detections.iter().fold(Rect::default(), |all, found| {
        Rect::from_corners(0.0, 0.0, all.x_max().max(found.rect.x_max()), all.y_max().max(found.rect.y_max()))
    });
    let tolerance = size.width.max(size.height) as f32 * 1e-5;
    assert_near(whole, PixelRect::whole(size).to_rect(), tolerance, &format!("{format} {size}"));
}

#[test]
fn short_buffer_passes_as_failed_with_warning() {
    init();
    let frame = || gst::Buffer::from_slice([128_u8; 64 * 64 * 3]);
    let cut_after_its_meta = || {
        let mut buffer = frame();
        let writable = buffer.get_mut().unwrap();
        gst_video::VideoMeta::add(writable, gst_video::VideoFrameFlags::empty(), gst_video::VideoFormat::Rgb, 64, 64).unwrap();
        writable.set_size(6000);
        buffer
    };
    let buffers = [frame(), gst::Buffer::from_slice([0_u8; 100]), frame(), gst::Buffer::new(), cut_after_its_meta(), frame()];
    let middle = detect("stripes", "nireq=2 name=detect");
    let (arrived, warnings) = through(&middle, &caps("RGB", Size::new(64, 64)), buffers, 2);
    assert!(warnings[0].contains("100 bytes") && warnings[0].contains("at least 12288") && warnings[0].contains("frame 1"), "{warnings:?}");
    assert!(warnings[1].contains("2 failed so far"), "the second failure is reported, the third is not: {warnings:?}");
    let failed: Vec<bool> = arrived.iter().map(|arrived| matches!(arrived.results().unwrap().status, InferenceStatus::Failed(_))).collect();
    assert_eq!(failed, [false, true, false, true, true, false]);
    let pts: Vec<_> = arrived.iter().map(|arrived| arrived.buffer.pts().unwrap()).collect();
    assert_eq!(pts, (0..6).map(|n| FRAME_TIME * n).collect::<Vec<_>>());
}

#[test]
fn each_failed_element_posts_a_warning() {
    let middle = format!("{} ! identity ! {}", detect("stripes", ""), detect("stripes", "name=second"));
    init();
    let buffers = [gst::Buffer::new()];
    let (arrived, warnings) = through(&middle, &caps("RGB", Size::new(64, 64)), buffers, 2);
    assert!(warnings.iter().all(|warning| warning.contains("0 bytes")), "{warnings:?}");
    assert!(matches!(arrived[0].results().unwrap().status, InferenceStatus::Failed(_)));
}

#[test]
fn second_detector_adds_to_results_of_first() {
    let middle = format!("{} ! {}", detect("rectangle", ""), detect("stripes", "threshold=0.3"));
    let size = Size::new(320, 240);
    // The object is one cell of the grid of 20 x 15 cells, and a third of it is bright.
    let cell = PixelRect { x: 160, y: 64, width: 16, height: 16 };
    let (arrived, _) = through(&middle, &caps("RGB", size), [picture(size, cell, [255, 0, 0])], 0);
    let results = arrived[0].results().unwrap();
    let labels: Vec<_> = results.detections.iter().map(|detection| detection.label.as_deref().unwrap()).collect();
    assert_eq!(labels, ["rectangle", "cell"]);
    assert_ne!(results.detections[0].id, results.detections[1].id);
    let n_rois = arrived[0].buffer.iter_meta::<gst_video::VideoRegionOfInterestMeta>().count();
    assert_eq!(n_rois, 2);
}

#[test]
fn properties_override_thresholds_and_labels() {
    let one = |properties: &str| {
        let (arrived, _) = through(&detect("rectangle", properties), &caps("RGB", SIZE), pictures(1), 0);
        let detections = arrived[0].results().unwrap().detections;
        detections.first().map(|found| found.label.clone().unwrap().to_string())
    };
    assert_eq!(one("threshold=0.99"), Some("rectangle".to_owned()));
    assert_eq!(one("threshold=1"), None, "scores must exceed the threshold");
    assert_eq!(one("labels=thing"), Some("thing".to_owned()));
    let folder = Folder::new("labels");
    let file = folder.write("labels.txt", "from_file\n\n");
    assert_eq!(one(&format!("labels-file=\"{file}\"")), Some("from_file".to_owned()));
    assert_eq!(one(&format!("description={}", tiny("rectangle.toml"))), Some("rectangle".to_owned()));
}

#[test]
fn scores_and_labels_are_published_with_boxes_that_follow_the_scaler() {
    let folder = Folder::new("publish");
    let middle = format!(
        "{} ! {} ! videoconvert ! video/x-raw,format=NV12 ! videoscale add-borders=false ! video/x-raw,width=128,height=384 ! \
         roipublish address=\"{}\"",
        detect("rectangle", ""),
        classify("color", ""),
        folder.file("results.jsonl")
    );
    through(&middle, &caps("RGB", SIZE), pictures(3), 0);
    let text = std::fs::read_to_string(folder.file("results.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    for (line, (n, color)) in lines.iter().zip((0..).zip(["red", "green", "blue"])) {
        let object = &line["objects"][0];
        let rect = place(n);
        let expected = [rect.x / 2, rect.y * 2, rect.width / 2, rect.height * 2];
        assert_eq!(["x", "y", "w", "h"].map(|key| object[key].as_u64().unwrap() as u32), expected, "{line}");
        assert_eq!(object["detection"]["label"], "rectangle");
        assert_eq!(object["detection"]["confidence"], 1.0);
        assert_eq!(object["color"]["label"], color);
        assert!(object["color"]["confidence"].as_f64().unwrap() > 0.999, "{line}");
        assert_eq!((&line["frame"], &line["inference"]["status"]), (&Value::from(n), &Value::from("ok")));
    }
}

#[test]
fn boxes_are_detected_in_encoded_clip() {
    let folder = Folder::new("clip");
    let rects = make_clip(&folder.file("clip.mkv"), 30, "matroskamux");
    let line = format!(
        "filesrc location=\"{}\" ! decodebin ! videoconvert ! {} ! {} ! fakesink name=sink",
        folder.file("clip.mkv"),
        detect("rectangle", ""),
        classify("color", "")
    );
    let pipeline = pipeline(&line);
    let arrived = collect(&pipeline, "sink", "sink");
    assert_eq!(run(&pipeline).error, None);
    let arrived = arrived.lock().unwrap();
    assert_eq!(arrived.len(), rects.len());
    for (arrived, (n, rect)) in arrived.iter().zip(rects.iter().enumerate()) {
        let results = arrived.results().unwrap();
        let [found] = &*results.detections else { panic!("frame {n}: {:?}", results.detections) };
        // One pixel of the model's input is four pixels of the frame.
        assert_near(found.rect, rect.to_rect(), 4.1, &format!("frame {n}"));
        assert_eq!(crate::harness::labels(&results), ["red"]);
    }
}

#[test]
fn timestamps_are_optional() {
    let pipeline = pipeline(&format!("appsrc name=source ! {} ! fakesink name=sink", detect("rectangle", "")));
    let arrived = collect(&pipeline, "sink", "sink");
    let mut buffers: Vec<gst::Buffer> = pictures(3).map(|buffer| stamp(buffer, 0)).collect();
    buffers.iter_mut().for_each(|buffer| {
        let buffer = buffer.make_mut();
        buffer.set_pts(None);
        buffer.set_duration(None);
    });
    let source: gstreamer_app::AppSrc = pipeline.by_name("source").unwrap().downcast().unwrap();
    source.set_caps(Some(&caps("RGB", SIZE)));
    for buffer in buffers {
        source.push_buffer(buffer).unwrap();
    }
    source.end_of_stream().unwrap();
    assert_eq!(run(&pipeline).error, None);
    let pts: Vec<_> = arrived.lock().unwrap().iter().map(|arrived| arrived.buffer.pts()).collect();
    assert_eq!(pts, [None; 3]);
}

/// Raw outputs of a model with the decoder `custom` belong to the frame, in the results and in the JSON. Skipped frames carry them.
#[test]
fn raw_outputs_belong_to_their_frame() {
    let folder = Folder::new("custom-outputs");
    let text = "version = 1\ntask = \"detection\"\nname = \"own\"\n[input]\nlayout = \"nhwc\"\n[output]\ndecoder = \"custom\"\n";
    let (description, lines) = (folder.write("custom.toml", text), folder.file("out.jsonl"));
    let detector = detect("rectangle", &format!("description=\"{description}\" inference-interval=2 carry-results=true"));
    let middle = format!("{detector} ! roipublish add-empty-results=false address=\"{lines}\"");
    let (arrived, _) = through(&middle, &caps("RGB", SIZE), pictures(4), 0);
    let said: Vec<_> = arrived.iter().map(|arrived| arrived.results().unwrap()).collect();
    assert!(said.iter().all(|results| results.detections.is_empty() && results.classifications.len() == 1), "{said:?}");
    assert_eq!(said[1].classifications, said[0].classifications, "carried");
    assert_ne!(said[2].classifications, said[0].classifications, "computed");
    let Outcome::Tensor { shape, data } = &said[0].classifications[0].outcome else { panic!("{said:?}") };
    assert_eq!((&shape[..], data.len()), (&[1, 1, 6][..], 6));
    let text = std::fs::read_to_string(&lines).unwrap();
    let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let own = &line["classifications"]["own"];
    assert_eq!((&own["shape"], &own["model"]["name"]), (&serde_json::json!([1, 1, 6]), &Value::from("rectangle")), "{line}");
    let written: Vec<f32> = own["data"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect();
    assert_eq!(written, data[..]);
}
