//! `roicrop` writes the best image of each object, and `roipublish` writes a line about this image.

use std::path::PathBuf;

use base64::Engine as _;
use gst::prelude::*;
use gstreamer as gst;
use roiflow::frame::{Detection, FrameResults, ObjectId, PixelRect, Rect, Size, TrackState};
use serde_json::Value;

use crate::cli::{lines as lines_of, roiflow};
use crate::harness::{Folder, attach, caps, face, feed, picture, pipeline, results, run, tiny};

const SIZE: Size = Size::new(160, 120);

/// Color of frame `n`.
fn color(n: u64) -> [u8; 3] {
    [40 + 20 * n as u8, 200 - 20 * n as u8, 100]
}

/// Plays frames. Each frame shows one rectangle at the given position, and has the given detections.
fn play(line: &str, format: &str, frames: &[(PixelRect, Vec<Detection>)]) -> (gst::Pipeline, crate::harness::Ending) {
    let line = format!("appsrc name=source ! videoconvert ! video/x-raw,format={format} ! identity name=attach ! {line} ! fakesink");
    let pipeline = pipeline(&line);
    let all: Vec<FrameResults> = frames.iter().zip(0..).map(|((_, objects), n)| results(SIZE, n, objects.clone())).collect();
    attach(&pipeline, move |n| all[n as usize].clone());
    feed(&pipeline, &caps("RGB", SIZE), frames.iter().zip(0..).map(|((rect, _), n)| picture(SIZE, *rect, color(n))));
    let ending = run(&pipeline);
    (pipeline, ending)
}

fn square(x: u32, y: u32, side: u32) -> PixelRect {
    PixelRect { x, y, width: side, height: side }
}

fn object(rect: PixelRect, track: Option<i32>, confidence: f32) -> Detection {
    let rect = Rect { x: rect.x as f32, y: rect.y as f32, width: rect.width as f32, height: rect.height as f32 };
    let track_state = track.map(|_| TrackState::Confirmed);
    Detection { track: track.map(ObjectId), track_state, confidence, ..face(track.unwrap_or(1), rect) }
}

fn files(folder: &Folder) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.0.join("crops")).map(|entries| entries.map(|entry| entry.unwrap().path()).collect());
    let mut files: Vec<PathBuf> = entries.unwrap_or_default();
    files.sort();
    files
}

/// Returns the lines of the file that report a crop.
fn records(path: &str) -> Vec<Value> {
    let records: Vec<Value> = lines_of(path).into_iter().filter(|line| line["event"] == "crop").collect();
    crate::results_schema::check_records(&records);
    records
}

/// Checks that all pixels of an image have this color, apart from losses of the encoder.
fn check_color(jpeg: &[u8], size: (u32, u32), expected: [u8; 3]) {
    let image = image::load_from_memory(jpeg).unwrap().into_rgb8();
    assert_eq!(image.dimensions(), size);
    let far = image.pixels().find(|pixel| pixel.0.iter().zip(&expected).any(|(one, other)| one.abs_diff(*other) > 16));
    assert_eq!(far, None, "expected {expected:?}");
}

#[test]
fn track_ends_with_its_largest_and_surest_image() {
    for format in ["RGB", "NV12", "I420", "BGRx"] {
        let folder = Folder::new(&format!("crop best {format}"));
        let at = square(31, 17, 32);
        let frame = |side: u32, confidence: f32| {
            (square(20, 10, 60), vec![object(PixelRect { width: side, height: side, ..at }, Some(3), confidence)])
        };
        // The third frame has the largest product of area and confidence. The object is absent from the sixth frame on.
        let mut frames = vec![frame(20, 0.9), frame(24, 0.9), frame(32, 0.8), frame(32, 0.7), frame(20, 1.0)];
        frames.extend((0..4).map(|_| (square(20, 10, 60), vec![])));
        let line = format!(
            "roicrop name=crop max-age=2 stream-id=door folder=\"{}\" ! roipublish stream-id=door address=\"{}\"",
            folder.file("crops"),
            folder.file("lines.jsonl")
        );
        let (pipeline, ending) = play(&line, format, &frames);
        assert_eq!((ending.error, ending.warnings.len()), (None, 0), "{format}");
        let files = files(&folder);
        assert_eq!(files.len(), 1, "{files:?}");
        check_color(&std::fs::read(&files[0]).unwrap(), (32, 32), color(2));
        let all = lines_of(&folder.file("lines.jsonl"));
        // The track ends with frame 7, so its line follows the line of that frame.
        assert_eq!((all.len(), &all[8]["event"]), (10, &"crop".into()), "{format}");
        let record = &all[8];
        assert_eq!(
            (&record["stream"], &record["frame"], &record["id"], &record["roi_type"]),
            (&"door".into(), &2.into(), &3.into(), &"face".into())
        );
        assert_eq!([&record["x"], &record["y"], &record["w"], &record["h"]], [31, 17, 32, 32]);
        assert_eq!(record["path"], files[0].to_str().unwrap());
        assert_eq!((&record["timestamp"], record.get("jpeg")), (&Value::from(2 * 40_000_000), None));
        let stats: gst::Structure = pipeline.by_name("crop").unwrap().property("stats");
        assert_eq!((stats.get("images").unwrap(), stats.get("errors").unwrap()), (1_u64, 0_u64));
        assert_eq!(stats.get::<u64>("bytes").unwrap(), std::fs::metadata(&files[0]).unwrap().len());
    }
}

#[test]
fn end_of_stream_writes_tracks_that_are_still_there() {
    let folder = Folder::new("crop eos");
    let frames: Vec<_> = (0..3)
        .map(|n| (square(0, 0, 100), vec![object(square(10, 10, 20 + 2 * n), Some(1), 0.5), object(square(50, 40, 30), Some(2), 0.5)]))
        .collect();
    let line = format!("roicrop folder=\"{}\" ! queue ! roipublish address=\"{}\"", folder.file("crops"), folder.file("lines.jsonl"));
    let (_, ending) = play(&line, "RGB", &frames);
    assert_eq!(ending.error, None);
    let found: Vec<_> =
        records(&folder.file("lines.jsonl")).iter().map(|record| (record["id"].as_i64(), record["frame"].as_u64())).collect();
    assert_eq!(found, [(Some(1), Some(2)), (Some(2), Some(0))]);
    assert_eq!(files(&folder).len(), 2);
}

#[test]
fn untracked_objects_are_written_by_class_in_every_frame() {
    let folder = Folder::new("crop untracked");
    let other = Detection { label: Some("dog".into()), ..object(square(60, 60, 30), None, 0.9) };
    let frames: Vec<_> = (0..2).map(|_| (square(0, 0, 100), vec![other.clone(), object(square(8, 8, 16), None, 0.5)])).collect();
    let line =
        format!("roicrop object-class=face folder=\"{}\" ! roipublish address=\"{}\"", folder.file("crops"), folder.file("lines.jsonl"));
    let (_, ending) = play(&line, "RGB", &frames);
    assert_eq!(ending.error, None);
    let found = records(&folder.file("lines.jsonl"));
    let places: Vec<_> =
        found.iter().map(|record| (record["frame"].as_u64(), record["region_id"].as_u64(), record["id"].is_null())).collect();
    assert_eq!(places, [(Some(0), Some(2), true), (Some(1), Some(2), true)]);
    for (record, n) in found.iter().zip(0..) {
        check_color(&std::fs::read(record["path"].as_str().unwrap()).unwrap(), (16, 16), color(n));
    }
}

#[test]
fn image_is_in_the_line_on_request_without_a_folder() {
    let folder = Folder::new("crop message");
    let line = format!("roicrop in-message=true ! roipublish address=\"{}\"", folder.file("lines.jsonl"));
    let (_, ending) = play(&line, "RGB", &[(square(0, 0, 100), vec![object(square(8, 8, 40), Some(1), 0.5)])]);
    assert_eq!(ending.error, None);
    let found = records(&folder.file("lines.jsonl"));
    let jpeg = base64::prelude::BASE64_STANDARD.decode(found[0]["jpeg"].as_str().unwrap()).unwrap();
    check_color(&jpeg, (40, 40), color(0));
    assert_eq!((found.len(), found[0].get("path")), (1, None));
}

#[test]
fn lost_folder_is_one_warning_and_the_stream_goes_on() {
    let folder = Folder::new("crop lost");
    let crops = folder.0.join("crops");
    let frames: Vec<_> = (0..5).map(|_| (square(0, 0, 100), vec![object(square(8, 8, 40), None, 0.5)])).collect();
    let line = format!("roicrop name=crop folder=\"{}\" ! identity name=after", crops.display());
    let text = format!("appsrc name=source ! identity name=attach ! {line} ! fakesink");
    let pipeline = pipeline(&text);
    let all: Vec<FrameResults> = frames.iter().zip(0..).map(|((_, objects), n)| results(SIZE, n, objects.clone())).collect();
    attach(&pipeline, move |n| {
        if n == 2 {
            std::fs::remove_dir_all(&crops).unwrap();
        }
        if n == 3 {
            assert_eq!(std::fs::read_dir(&crops).unwrap().count(), 1, "the folder was created again");
            std::fs::remove_dir_all(&crops).unwrap();
            // Now it cannot be created again.
            std::fs::write(&crops, "a file").unwrap();
        }
        all[n as usize].clone()
    });
    feed(&pipeline, &caps("RGB", SIZE), frames.iter().zip(0..).map(|((rect, _), n)| picture(SIZE, *rect, color(n))));
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings.len()), (None, 1), "{:?}", ending.warnings);
    let stats: gst::Structure = pipeline.by_name("crop").unwrap().property("stats");
    assert_eq!((stats.get("images").unwrap(), stats.get("errors").unwrap()), (3_u64, 2_u64));
}

#[test]
fn crops_without_a_destination_are_an_error_at_the_start() {
    let (_, ending) = play("roicrop", "RGB", &[]);
    let error = ending.error.unwrap();
    assert!(error.contains("expected a folder for images"), "{error}");
}

#[test]
fn command_writes_crops_and_publishes_their_paths() {
    let folder = Folder::new("crop command");
    let (crops, json, publish) = (folder.file("crops"), folder.file("lines.jsonl"), folder.file("more.jsonl"));
    let clip = folder.file("clip.mp4");
    crate::harness::make_clip(&clip, 20, "mp4mux");
    let run = |more: &[&str]| {
        let model = tiny("rectangle.onnx");
        let arguments = [&["run", "-q", "--model", &model, "--input", &clip, "--track"], more].concat();
        roiflow(&arguments)
    };
    let ended = run(&["--crops", &crops, "--crops-class", "rectangle", "--json", &json, "--publish", &publish]);
    assert!(ended.status.success(), "{ended:?}");
    let found = records(&json);
    assert!(!found.is_empty());
    assert_eq!(found.len(), records(&publish).len());
    assert_eq!(found.len(), files(&folder).len());
    for record in &found {
        let image = image::open(record["path"].as_str().unwrap()).unwrap();
        assert_eq!((Some(u64::from(image.width())), Some(u64::from(image.height()))), (record["w"].as_u64(), record["h"].as_u64()));
    }
    let ended = run(&["--crops-in-messages"]);
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
}
