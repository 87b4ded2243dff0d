//! Which part of a frame a classifier sees, as its description says, and what such a description may not say.

use std::sync::mpsc;

use roiflow::frame::{Frame, ObjectId, Outcome, PixelFormat, Point, Rect, Size};
use roiflow::stages::{Region, RunGuard, Stage, StageOptions};

use crate::support::{Scratch, tiny};

/// The tiny model's own description with more keys of `[input]`.
fn options(scratch: &Scratch, model: &str, keys: &str) -> StageOptions {
    let text = std::fs::read_to_string(tiny(&format!("{model}.toml"))).unwrap();
    let description = Some(scratch.file("described.toml", text.replace("[input]", &format!("[input]\n{keys}"))));
    StageOptions { model: tiny(&format!("{model}.onnx")), description, ..StageOptions::default() }
}

/// Red, with a green bar 4 wide and 16 high in the middle, and blue in the lower right quarter.
fn frame() -> Frame {
    let size = Size::new(64, 64);
    let color = |x: u32, y: u32| match (x, y) {
        (30..34, 24..40) => [0, 255, 0],
        (34.., 40..) => [0, 0, 255],
        _ => [255, 0, 0],
    };
    let bytes: Vec<u8> = (0..size.height).flat_map(|y| (0..size.width).flat_map(move |x| color(x, y))).collect();
    Frame::from_packed(PixelFormat::Rgb, size, &bytes).unwrap()
}

const BAR: Rect = Rect { x: 30.0, y: 24.0, width: 4.0, height: 16.0 };

/// What is said of a region.
fn said(classifier: &Stage, rect: Rect, keypoints: Vec<Point>) -> String {
    let (sender, receiver) = mpsc::channel();
    let region = Region { id: ObjectId::next(), rect, keypoints };
    classifier.submit_regions(frame(), 0, [region], RunGuard::now(), move |classified| sender.send(classified).unwrap());
    let classified = receiver.recv().unwrap();
    assert!(classified.failed.is_none(), "{:?}", classified.failed);
    match &classified.of_regions[0].1.outcome {
        Outcome::Label { label: Some(label), .. } => label.to_string(),
        other => panic!("no label: {other:?}"),
    }
}

#[test]
fn a_margin_and_a_square_show_what_is_around_the_box() {
    let scratch = Scratch::new("cuts");
    for (keys, expected) in [("", "green"), ("margin = 1.0", "red"), ("square = true", "red"), ("square = false\nmargin = 0", "green")] {
        let classifier = Stage::classifier(&options(&scratch, "color", keys)).unwrap();
        assert_eq!(said(&classifier, BAR, vec![]), expected, "{keys}");
        assert_eq!(classifier.n_unaligned(), 0);
    }
}

#[test]
fn keypoints_decide_what_is_seen_and_boxes_where_they_cannot() {
    let scratch = Scratch::new("aligned cuts");
    let classifier = Stage::classifier(&options(&scratch, "color", "align = [[0.0, 0.0], [1.0, 1.0]]")).unwrap();
    let points = |of: [(f32, f32); 2]| of.map(|(x, y)| Point { x, y }).to_vec();
    assert_eq!(said(&classifier, BAR, points([(40.0, 45.0), (60.0, 60.0)])), "blue");
    assert_eq!(classifier.n_unaligned(), 0);
    for (n, keypoints) in [vec![], points([(40.0, 45.0); 2]), vec![Point { x: f32::NAN, y: 0.0 }; 2]].into_iter().enumerate() {
        assert_eq!(said(&classifier, BAR, keypoints), "green");
        assert_eq!(classifier.n_unaligned(), n as u64 + 1);
    }
    // Beside the frame there is nothing but the border: 114 each.
    assert_eq!(said(&classifier, BAR, points([(400.0, 45.0), (420.0, 60.0)])), "other");
}

#[test]
fn descriptions_that_contradict_themselves_are_refused_with_what_to_do() {
    let scratch = Scratch::new("bad cuts");
    for (keys, parts) in [
        ("rotate = 45", &["`rotate`", "0, 90, 180 or 270", "45"][..]),
        ("margin = -0.1", &["`margin`", "0 to 10", "-0.1"]),
        ("align = [[0.5, 0.5]]", &["`align`", "2 to 100 points"]),
        ("align = [[0.5, 0.5], [0.5, 0.5]]", &["`align`", "not all the same"]),
        ("align = [[0.1, 0.1], [0.9, 0.9]]\nantialias = true", &["`align` and `antialias`", "leave one"]),
        ("align = [[0.1, 0.1], [0.9, 0.9]]\nrotate = 90", &["`align` and `rotate`", "leave one"]),
    ] {
        let error = Stage::classifier(&options(&scratch, "color", keys)).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)) && error.contains("described.toml"), "{keys}: {error}");
    }
    let error = Stage::detector(&options(&scratch, "stripes", "margin = 0.1")).unwrap_err().to_string();
    assert!(error.contains("`margin`") && error.contains("expected it of a classifier"), "{error}");
}

/// A camera that hangs upside down: what a detector finds is where it is in the frame.
#[test]
fn a_turned_detector_tells_places_of_the_frame() {
    let scratch = Scratch::new("turned");
    let upright = Stage::detector(&options(&scratch, "rectangle", "")).unwrap();
    let size = Size::new(64, 64);
    let red = |x: u32, y: u32| [if (10..30).contains(&x) && (40..52).contains(&y) { 255 } else { 0 }, 0, 0];
    let bytes: Vec<u8> = (0..size.height).flat_map(|y| (0..size.width).flat_map(move |x| red(x, y))).collect();
    let frame = Frame::from_packed(PixelFormat::Rgb, size, &bytes).unwrap();
    let expected = upright.detect(&frame).unwrap()[0].rect;
    for degrees in [0, 90, 180, 270] {
        let turned = Stage::detector(&options(&scratch, "rectangle", &format!("rotate = {degrees}"))).unwrap();
        let found = turned.detect(&frame).unwrap()[0].rect;
        let is_near = |got: f32, expected: f32| (got - expected).abs() < 1.0;
        let sides = [(found.x, expected.x), (found.y, expected.y), (found.width, expected.width), (found.height, expected.height)];
        assert!(sides.iter().all(|(got, expected)| is_near(*got, *expected)), "{degrees}: {found:?} {expected:?}");
    }
}
