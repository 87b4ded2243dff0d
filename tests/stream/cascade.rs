//! Cascades: detectors and classifiers on the objects of other detectors; positions and parents are preserved.

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video::VideoRegionOfInterestMeta as RoiMeta;
use roiflow::frame::{Detection, FrameResults, InferenceStatus, ObjectId, PixelRect, Rect, Size};
use serde_json::Value;

use crate::harness::{
    Arrived, FRAME_TIME, Folder, answer, assert_near, attach, caps, classify, collect, detect, feed, labels, pipeline, run,
};

/// Size of the frames. All box coordinates are multiples of the area that one pixel of the model's input covers, so the detected boxes are
/// exact.
const SIZE: Size = Size::new(640, 480);
const BLACK: [u8; 3] = [0; 3];
const RED: [u8; 3] = [255, 0, 0];
const GREEN: [u8; 3] = [0, 255, 0];
const WHITE: [u8; 3] = [255; 3];

/// Returns an image of rectangles. A later rectangle is drawn over earlier rectangles.
fn paint(rects: &[(PixelRect, [u8; 3])]) -> gst::Buffer {
    crate::harness::init();
    let mut bytes = vec![0; SIZE.width as usize * SIZE.height as usize * 3];
    for (rect, color) in rects {
        for y in rect.y..rect.y + rect.height {
            for x in rect.x..rect.x + rect.width {
                bytes[(y * SIZE.width + x) as usize * 3..][..3].copy_from_slice(color);
            }
        }
    }
    gst::Buffer::from_mut_slice(bytes)
}

/// Returns the box of the vehicle in frame `n`. Its 320 x 240 pixels are a grid of 20 x 15 cells of 16 x 16 pixels.
fn vehicle(n: u64) -> PixelRect {
    PixelRect { x: 40 + n as u32 % 4 * 20, y: 60 + n as u32 % 3 * 30, width: 320, height: 240 }
}

/// Returns the box of the vehicle's plate: the white cell in this column and row of the grid.
fn plate_in(vehicle: PixelRect, column: u32, row: u32) -> PixelRect {
    PixelRect { x: vehicle.x + column * 16, y: vehicle.y + row * 16, width: 16, height: 16 }
}

fn plate(n: u64) -> PixelRect {
    plate_in(vehicle(n), 3 + n as u32 % 5, 2 + n as u32 % 7)
}

fn pictures(n_frames: u64) -> Vec<gst::Buffer> {
    (0..n_frames).map(|n| paint(&[(vehicle(n), RED), (plate(n), WHITE)])).collect()
}

/// Runs frames through `middle` and returns the output. Asserts that the pipeline ends without an error or a warning.
fn through(middle: &str, buffers: Vec<gst::Buffer>) -> Vec<Arrived> {
    let pipeline = pipeline(&format!("appsrc name=source ! {middle} ! fakesink name=sink"));
    let arrived = collect(&pipeline, "sink", "sink");
    feed(&pipeline, &caps("RGB", SIZE), buffers);
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings), (None, vec![]), "{middle}");
    std::mem::take(&mut *arrived.lock().unwrap())
}

fn of_label<'a>(results: &'a FrameResults, label: &str) -> Vec<&'a Detection> {
    results.detections.iter().filter(|detection| detection.label.as_deref() == Some(label)).collect()
}

fn vehicles() -> String {
    detect("rectangle", "labels=vehicle")
}

fn plates(properties: &str) -> String {
    detect("stripes", &format!("labels=plate inference-region=roi-list {properties}"))
}

#[test]
fn second_detector_runs_on_objects_of_first() {
    let middle = format!("{} ! {} ! {}", vehicles(), plates("object-class=vehicle nireq=3"), classify("brightness", "object-class=plate"));
    let arrived = through(&middle, pictures(24));
    assert_eq!(arrived.len(), 24);
    for (arrived, n) in arrived.iter().zip(0..) {
        assert_eq!(arrived.buffer.pts(), Some(FRAME_TIME * n));
        let results = arrived.results().unwrap();
        assert_eq!((results.frame_number, &results.status), (n, &InferenceStatus::Inferred));
        let [first, second] = &*results.detections else { panic!("frame {n}: {:?}", results.detections) };
        assert_eq!((first.label.as_deref(), first.parent, second.label.as_deref()), (Some("vehicle"), None, Some("plate")));
        assert_eq!(second.parent, Some(first.id), "frame {n}");
        assert_near(first.rect, vehicle(n).to_rect(), 0.01, &format!("frame {n}"));
        assert_near(second.rect, plate(n).to_rect(), 0.01, &format!("frame {n}"));
        assert_eq!(labels(&results), ["100"], "only the plate is classified");
        let rois: Vec<_> = arrived.buffer.iter_meta::<RoiMeta>().map(|roi| (roi.id(), roi.parent_id(), roi.rect())).collect();
        let tuple = |rect: PixelRect| (rect.x, rect.y, rect.width, rect.height);
        assert_eq!(rois, [(first.id.0, 0, tuple(vehicle(n))), (second.id.0, first.id.0, tuple(plate(n)))], "frame {n}");
    }
}

#[test]
fn each_detector_counts_only_its_own_objects() {
    let line = format!(
        "appsrc name=source ! {} ! {} ! {} ! fakesink",
        detect("rectangle", "labels=vehicle name=vehicles"),
        plates("object-class=vehicle name=plates"),
        detect("rectangle", "labels=other threshold=1 name=nothing")
    );
    let pipeline = pipeline(&line);
    feed(&pipeline, &caps("RGB", SIZE), pictures(5));
    assert_eq!(run(&pipeline).error, None);
    let n_objects = |name: &str| pipeline.by_name(name).unwrap().property::<gst::Structure>("stats").get::<u64>("objects").unwrap();
    assert_eq!([n_objects("vehicles"), n_objects("plates")], [5, 5]);
    assert!(n_objects("nothing") <= 5, "excludes the ten existing objects");
}

#[test]
fn cascade_may_have_many_levels() {
    // Box of a green mark of 8 x 8 pixels in the white plate of the red vehicle.
    let mark = |n| {
        let plate = plate(n);
        PixelRect { x: plate.x + 4, y: plate.y + 4, width: 8, height: 8 }
    };
    let frames = (0..4).map(|n| paint(&[(vehicle(n), RED), (plate(n), WHITE), (mark(n), GREEN)])).collect();
    let middle = format!(
        "{} ! {} ! {} ! {} ! {}",
        vehicles(),
        plates("object-class=vehicle"),
        detect("rectangle", "labels=mark inference-region=roi-list object-class=plate"),
        detect("rectangle", "labels=\"mark of the mark\" inference-region=roi-list object-class=mark"),
        classify("color", "object-class=\"mark of the mark\"")
    );
    for (arrived, n) in through(&middle, frames).iter().zip(0..) {
        let results = arrived.results().unwrap();
        let chain: Vec<_> = results.detections.iter().map(|detection| detection.label.as_deref().unwrap()).collect();
        assert_eq!(chain, ["vehicle", "plate", "mark", "mark of the mark"], "frame {n}");
        for pair in results.detections.windows(2) {
            assert_eq!(pair[1].parent, Some(pair[0].id), "frame {n}");
        }
        for found in &results.detections[2..] {
            assert_near(found.rect, mark(n).to_rect(), 1.0, &format!("frame {n}: {found:?}"));
        }
        assert_eq!(labels(&results), ["green"], "frame {n}");
    }
}

/// Returns label and box of every object as text, without the IDs, which differ between runs.
fn said(results: &FrameResults) -> Vec<String> {
    let parent_of = |detection: &Detection| {
        let parent = detection.parent?;
        let parent = results.detections.iter().find(|other| other.id == parent).expect("the parent is in the same results");
        parent.label.clone()
    };
    let mut said: Vec<String> = results
        .detections
        .iter()
        .map(|detection| {
            let answers = |name: &str| detection.classifications.iter().find(|said| &*said.name == name).map(answer);
            let rect = detection.rect.to_pixels(SIZE).unwrap();
            format!("{:?} in {:?} at {rect}: {:?} {:?}", detection.label, parent_of(detection), answers("color"), answers("brightness"))
        })
        .collect();
    said.sort();
    said
}

#[test]
fn results_do_not_depend_on_element_order() {
    let (vehicles, plates) = (vehicles(), plates("object-class=vehicle"));
    let color = classify("color", "object-class=vehicle");
    let brightness = classify("brightness", "object-class=plate");
    let orders =
        [[&vehicles, &plates, &color, &brightness], [&vehicles, &plates, &brightness, &color], [&vehicles, &color, &plates, &brightness]];
    let runs = orders.map(|order| {
        let middle = order.map(String::as_str).join(" ! videoconvert ! ");
        through(&middle, pictures(6)).iter().map(|arrived| said(&arrived.results().unwrap())).collect::<Vec<_>>()
    });
    assert_eq!(runs[0][0].len(), 2);
    assert!(runs[0].iter().flatten().all(|said| said.contains("Some(\"red\")") != said.contains("Some(\"100\")")), "{:?}", runs[0]);
    assert_eq!(runs[0], runs[1]);
    assert_eq!(runs[0], runs[2]);
}

#[test]
fn frames_without_parents_pass_in_order() {
    let frames: Vec<_> =
        (0..9).map(|n| if n % 3 == 0 { paint(&[(plate(n), WHITE)]) } else { pictures(9).swap_remove(n as usize) }).collect();
    let line = format!("appsrc name=source ! {} ! {} ! fakesink name=sink", vehicles(), plates("name=plates object-class=vehicle"));
    let pipeline = pipeline(&line);
    let arrived = collect(&pipeline, "sink", "sink");
    feed(&pipeline, &caps("RGB", SIZE), frames);
    assert_eq!(run(&pipeline).error, None);
    for (arrived, n) in arrived.lock().unwrap().iter().zip(0..) {
        let results = arrived.results().unwrap();
        assert_eq!((results.frame_number, &results.status), (n, &InferenceStatus::Inferred));
        assert_eq!(results.detections.len(), if n % 3 == 0 { 0 } else { 2 }, "frame {n}");
    }
    let stats: gst::Structure = pipeline.by_name("plates").unwrap().property("stats");
    let count = |field: &str| stats.get::<u64>(field).unwrap();
    assert_eq!(["frames-in", "inferred", "failed"].map(count), [9, 9, 0]);
}

#[test]
fn object_class_selects_parents() {
    let objects = |_| {
        let object = |id: i32, label: Option<&str>, rect: PixelRect| Detection {
            id: ObjectId(id),
            track: None,
            track_state: None,
            parent: None,
            rect: rect.to_rect(),
            keypoints: vec![],
            confidence: 1.0,
            label_id: 0,
            label: label.map(Into::into),
            classifications: vec![],
        };
        let whole = vehicle(0);
        let outside = Detection { rect: Rect { x: 5000.0, ..whole.to_rect() }, ..object(4, Some("car"), whole) };
        let results = vec![object(1, Some("car"), whole), object(2, Some("tree"), whole), object(3, None, whole), outside];
        FrameResults { size: SIZE, frame_number: 0, status: InferenceStatus::Inferred, detections: results, ..FrameResults::default() }
    };
    // The objects have the same box, so a plate that is found in several of them is one plate.
    for (class, expected) in [("car", vec![1]), ("tree", vec![2]), ("tree,car", vec![1]), ("none", vec![]), ("", vec![1])] {
        let pipeline = pipeline(&format!(
            "appsrc name=source ! identity name=attach ! {} ! fakesink name=sink",
            plates(&format!("object-class=\"{class}\""))
        ));
        attach(&pipeline, objects);
        let arrived = collect(&pipeline, "sink", "sink");
        feed(&pipeline, &caps("RGB", SIZE), pictures(1));
        assert_eq!(run(&pipeline).error, None);
        let results = arrived.lock().unwrap()[0].results().unwrap();
        let parents: Vec<i32> = of_label(&results, "plate").iter().map(|plate| plate.parent.unwrap().0).collect();
        assert_eq!(parents, expected, "{class}");
        assert_eq!(results.detections.len(), 4 + expected.len());
    }
}

#[test]
fn object_class_on_whole_frames_is_an_error_that_names_keep_classes() {
    let play = |properties: &str| {
        let pipeline = pipeline(&format!("appsrc name=source ! {} ! fakesink name=sink", detect("stripes", properties)));
        feed(&pipeline, &caps("RGB", SIZE), pictures(1));
        run(&pipeline)
    };
    let error = play("object-class=cell").error.unwrap();
    assert!(["inference-region=roi-list", "set keep-classes=cell instead"].iter().all(|part| error.contains(part)), "{error}");
    let ending = play("min-object-width=4");
    assert_eq!(ending.error, None);
    assert!(ending.warnings.len() == 1 && ending.warnings[0].contains("the object size limits are not used"), "{:?}", ending.warnings);
}

#[test]
fn carried_children_move_with_their_parent() {
    // The vehicle is tracked, moves and grows; plates are detected only in every third frame.
    let place = |n: u64| Rect { x: 40.0 + n as f32 * 20.0, y: 60.0, width: 320.0 + n as f32 * 32.0, height: 240.0 + n as f32 * 24.0 };
    let vehicles = move |n: u64| {
        let vehicle = Detection {
            id: ObjectId(if n == 4 { 8 } else { 7 }),
            track: None,
            track_state: None,
            parent: None,
            rect: place(n),
            keypoints: vec![],
            confidence: 1.0,
            label_id: 0,
            label: Some("vehicle".into()),
            classifications: vec![],
        };
        FrameResults {
            size: SIZE,
            frame_number: n,
            status: InferenceStatus::Inferred,
            detections: vec![vehicle],
            ..FrameResults::default()
        }
    };
    let pipeline = pipeline(&format!(
        "appsrc name=source ! identity name=attach ! {} ! fakesink name=sink",
        plates("inference-interval=3 carry-results=true")
    ));
    attach(&pipeline, vehicles);
    let arrived = collect(&pipeline, "sink", "sink");
    let frame = |n: u64| {
        let (x, y, cell) = (place(n).x as u32, 60, 16 + n as u32 * 8 / 5);
        paint(&[
            (PixelRect { x: x + 3 * cell, y: y + 2 * cell, width: cell, height: cell }, WHITE),
            (PixelRect { x: 0, y: 0, width: 1, height: 1 }, BLACK),
        ])
    };
    feed(&pipeline, &caps("RGB", SIZE), (0..6).map(|n| frame(n / 3 * 3)));
    assert_eq!(run(&pipeline).error, None);
    let arrived = arrived.lock().unwrap();
    let results: Vec<_> = arrived.iter().map(|arrived| arrived.results().unwrap()).collect();
    let skipped: Vec<bool> = results.iter().map(|results| matches!(results.status, InferenceStatus::Skipped(_))).collect();
    assert_eq!(skipped, [false, true, true, false, true, true]);
    for n in 1..3 {
        let (found, carried) = (&of_label(&results[0], "plate")[0], &of_label(&results[n], "plate")[0]);
        assert_eq!((carried.id, carried.parent), (found.id, Some(ObjectId(7))), "frame {n}");
        assert_near(carried.rect, found.rect.moved_with(place(0), place(n as u64)), 0.6, &format!("frame {n}"));
        assert!(carried.rect.width > found.rect.width);
    }
    assert_eq!(of_label(&results[4], "plate"), [] as [&Detection; 0], "another vehicle has no plate");
    assert_eq!(of_label(&results[5], "plate").len(), of_label(&results[3], "plate").len());
}

#[test]
fn documented_pipeline_runs() {
    let lines = crate::documentation::lines(include_str!("../../docs/elements.md"));
    let line = lines.iter().find(|line| line.contains("inference-region=roi-list")).expect("a line with a cascade");
    let line = line.replace("assets/", concat!(env!("CARGO_MANIFEST_DIR"), "/assets/"));
    let folder = Folder::new("readme cascade");
    let (before, after) = line.split_once("address=").expect("results go to a file");
    let rest = after.split_once(' ').unwrap().1;
    let pipeline = pipeline(&format!("{before} address=\"{}\" {rest}", folder.file("o.jsonl")));
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let text = std::fs::read_to_string(folder.file("o.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!lines.is_empty());
    for line in &lines {
        let objects = line["objects"].as_array().unwrap();
        let (parents, children): (Vec<_>, Vec<_>) = objects.iter().partition(|object| object["parent_id"].is_null());
        assert!(!parents.is_empty() && !children.is_empty(), "{line}");
        for child in children {
            let parent = parents.iter().find(|parent| parent["region_id"] == child["parent_id"]).expect("the parent is on the same line");
            let edge = |object: &Value, begin: &str, extent: &str| object[begin].as_u64().unwrap() + object[extent].as_u64().unwrap();
            assert!(child["x"].as_u64() >= parent["x"].as_u64() && edge(child, "x", "w") <= edge(parent, "x", "w"), "{line}");
            assert!(child["y"].as_u64() >= parent["y"].as_u64() && edge(child, "y", "h") <= edge(parent, "y", "h"), "{line}");
            assert!(child["brightness"]["value"].is_number() && parent["brightness"].is_null(), "{line}");
        }
    }
}
