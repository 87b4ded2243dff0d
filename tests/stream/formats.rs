//! Files in CSV and in COCO's results format, read by independent readers: Python's `csv` and `json`, and `pycocotools` where it is
//! installed.

use std::process::Command;

use roiflow::frame::{Detection, FrameResults, ObjectId, Rect, Size, TrackState};
use serde_json::{Value, json};

use crate::cli::roiflow;
use crate::harness::{Ending, Folder, attach, face, make_clip, pipeline, results, run, tiny};

const SIZE: Size = Size::new(320, 240);

/// Plays three frames with two, no and one objects.
fn play(properties: &str) -> Ending {
    let line = format!(
        "videotestsrc num-buffers=3 ! video/x-raw,format=I420,width=320,height=240,framerate=10/1 ! identity name=attach \
         ! roipublish stream-id=door {properties} ! fakesink"
    );
    let pipeline = pipeline(&line);
    attach(&pipeline, frame);
    run(&pipeline)
}

fn frame(n: u64) -> FrameResults {
    let rect = Rect { x: -10.0, y: 60.5, width: 42.25, height: 60.0 };
    let cat = Detection { label: Some("cat, \"tabby\"".into()), label_id: 15, ..face(2, Rect { x: 100.0, ..rect }) };
    let tracked =
        Detection { track: Some(ObjectId(9)), track_state: Some(TrackState::Confirmed), label: Some("person".into()), ..face(1, rect) };
    results(SIZE, n, [vec![tracked.clone(), cat], vec![], vec![tracked]][n as usize].clone())
}

/// Runs a Python program that prints JSON.
fn python(program: &str, argument: &str) -> Value {
    let output = Command::new("python3").args(["-c", program, argument]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const READ_CSV: &str = "import csv, json, sys; print(json.dumps(list(csv.DictReader(open(sys.argv[1], newline='')))))";

#[test]
fn csv_has_a_row_for_each_object() {
    let folder = Folder::new("format csv");
    let file = folder.file("results.csv");
    let ending = play(&format!("address=\"{file}\""));
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let rows = python(READ_CSV, &file);
    let rows = rows.as_array().unwrap();
    let column = |name: &str| rows.iter().map(|row| row[name].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(column("frame"), ["0", "0", "2"]);
    assert_eq!(column("timestamp"), ["0", "0", "200000000"]);
    assert_eq!(column("roi_type"), ["person", "cat, \"tabby\"", "person"]);
    assert_eq!(column("id"), ["9", "", "9"]);
    assert_eq!(column("track_state"), ["confirmed", "", "confirmed"]);
    assert_eq!(column("attributes"), ["gender=female;age=31.4"; 3]);
    let first = ["stream", "width", "height", "region_id", "parent_id", "label_id", "confidence", "x", "y", "w", "h"];
    assert_eq!(first.map(|name| rows[0][name].as_str().unwrap()), ["door", "320", "240", "1", "", "1", "0.75", "0", "61", "32", "60"]);
}

#[test]
fn appended_csv_has_one_header_and_an_empty_one_too() {
    let folder = Folder::new("format append");
    let file = folder.file("results.csv");
    for _ in 0..2 {
        assert_eq!(play(&format!("if-exists=append address=\"{file}\"")).error, None);
    }
    let rows = python(READ_CSV, &file);
    let frames: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["frame"].as_str().unwrap()).collect();
    assert_eq!(frames, ["0", "0", "2", "0", "0", "2"]);
    let line = format!("videotestsrc num-buffers=3 ! roipublish address=\"{}\" ! fakesink", folder.file("empty.csv"));
    assert_eq!(run(&pipeline(&line)).error, None);
    let text = std::fs::read_to_string(folder.file("empty.csv")).unwrap();
    assert!(text.starts_with("stream,source,frame,") && text.lines().count() == 1, "{text}");
}

#[test]
fn parts_of_csv_have_a_header_each() {
    let folder = Folder::new("format parts");
    let file = folder.file("results.csv");
    let ending = play(&format!("url=\"file://{}?max-bytes=200\"", file.replace(' ', "%20")));
    assert_eq!(ending.error, None);
    let frames = |file: &str| python(READ_CSV, file).as_array().unwrap().iter().map(|row| row["frame"].clone()).collect::<Vec<_>>();
    assert_eq!((frames(&folder.file("results.000001.csv")), frames(&file)), (vec![json!("0"), json!("0")], vec![json!("2")]));
}

const READ_COCO: &str = r#"
import json, sys
entries = json.load(open(sys.argv[1]))
try:
    from pycocotools.coco import COCO
    import contextlib, io
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {"info": {}, "images": [{"id": n} for n in range(400000)], "annotations": [], "categories": [{"id": n} for n in range(100)]}
        truth.createIndex()
        entries = [{key: found[key] for key in ("image_id", "category_id", "bbox", "score")} for found in truth.loadRes(sys.argv[1]).anns.values()] if entries else entries
except ImportError:
    pass
print(json.dumps(entries))
"#;

#[test]
fn coco_results_are_an_array_of_boxes() {
    let folder = Folder::new("format coco");
    let file = folder.file("results.coco.json");
    let ending = play(&format!("address=\"{file}\""));
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let person =
        |image: u64, category: u64| json!({"image_id": image, "category_id": category, "bbox": [0.0, 60.5, 32.25, 60.0], "score": 0.75});
    let cat = json!({"image_id": 0, "category_id": 15, "bbox": [100.0, 60.5, 42.25, 60.0], "score": 0.75});
    assert_eq!(python(READ_COCO, &file), json!([person(0, 1), cat, person(2, 1)]));
    // The format `coco-91` writes the category IDs of the COCO data set. It finds the category by the label.
    let file = folder.file("other.json");
    let ending = play(&format!("format=coco-91 address=\"{file}\""));
    assert_eq!((ending.error, ending.warnings.len()), (None, 1));
    assert!(ending.warnings[0].contains("1 objects are not in"), "{:?}", ending.warnings);
    assert_eq!(python(READ_COCO, &file), json!([person(0, 1), person(2, 1)]));
}

#[test]
fn coco_results_without_objects_are_an_empty_array() {
    let folder = Folder::new("format empty");
    let line = format!("videotestsrc num-buffers=3 ! roipublish address=\"{}\" ! fakesink", folder.file("empty.coco.json"));
    assert_eq!(run(&pipeline(&line)).error, None);
    assert_eq!(python(READ_COCO, &folder.file("empty.coco.json")), json!([]));
}

#[test]
fn complete_coco_file_is_continued() {
    let folder = Folder::new("format coco append");
    let file = folder.file("results.coco.json");
    let line = format!("videotestsrc num-buffers=3 ! roipublish if-exists=append address=\"{file}\" ! fakesink");
    assert_eq!(run(&pipeline(&line)).error, None);
    assert_eq!(python(READ_COCO, &file), json!([]));
    for n in 1..=2 {
        let ending = play(&format!("if-exists=append address=\"{file}\""));
        assert_eq!((ending.error, ending.warnings), (None, vec![]));
        let entries = python(READ_COCO, &file);
        let images: Vec<u64> = entries.as_array().unwrap().iter().map(|entry| entry["image_id"].as_u64().unwrap()).collect();
        assert_eq!(images, [0, 0, 2].repeat(n));
    }
}

#[test]
fn unusable_formats_are_errors_at_the_start() {
    let folder = Folder::new("format errors");
    let file = folder.write("results.coco.json", "[]");
    for (properties, part) in [
        (format!("if-exists=append address=\"{file}\""), "not a complete array that roiflow has written"),
        ("format=csv url=mqtt://localhost/x".to_owned(), "expected json-lines for a server"),
    ] {
        let error = play(&properties).error.unwrap();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn command_writes_formats_by_file_name() {
    let folder = Folder::new("format command");
    let images = folder.0.join("images");
    std::fs::create_dir_all(&images).unwrap();
    for name in ["000000397133.png", "000000000042.png"] {
        let mut image = image::RgbImage::new(256, 192);
        for (x, y, pixel) in image.enumerate_pixels_mut() {
            if (64..144).contains(&x) && (48..120).contains(&y) {
                *pixel = image::Rgb([255, 0, 0]);
            }
        }
        image.save(images.join(name)).unwrap();
    }
    let (csv, coco, json) = (folder.file("o.csv"), folder.file("o.coco.json"), folder.file("json.csv"));
    let model = tiny("rectangle.onnx");
    let ended = roiflow(&[
        "run",
        "-q",
        "--model",
        &model,
        "--input",
        images.to_str().unwrap(),
        "--publish",
        &csv,
        "--publish",
        &coco,
        "--json",
        &json,
    ]);
    assert!(ended.status.success(), "{ended:?}");
    let entries = python(READ_COCO, &coco);
    let ids: Vec<u64> = entries.as_array().unwrap().iter().map(|entry| entry["image_id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [42, 397_133]);
    assert_eq!(python(READ_CSV, &csv).as_array().unwrap().len(), 2);
    // `--json` always writes JSON, whatever the extension of the file is.
    assert_eq!(crate::cli::lines(&json).len(), 2);
    let clip = folder.file("clip.mp4");
    make_clip(&clip, 5, "mp4mux");
    let ended = roiflow(&["run", "-q", "--model", &model, "--input", &clip, "--publish", &csv]);
    assert!(ended.status.success(), "{ended:?}");
    assert!(!python(READ_CSV, &csv).as_array().unwrap().is_empty());
}
