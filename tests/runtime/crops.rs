//! Regions that are preprocessed for a classifier as its description defines, and errors for invalid definitions.

use std::sync::mpsc;

use roiflow::frame::{Frame, ObjectId, Outcome, PixelFormat, Point, Rect, RotatedRect, Size};
use roiflow::stages::{Region, RunGuard, Stage, StageOptions};

use crate::support::{Scratch, tiny};

/// Returns stage options for a tiny model. The options contain a description with these additional keys in `[input]`.
fn options(scratch: &Scratch, model: &str, keys: &str) -> StageOptions {
    let text = std::fs::read_to_string(tiny(&format!("{model}.toml"))).unwrap();
    let description = Some(scratch.file("described.toml", text.replace("[input]", &format!("[input]\n{keys}"))));
    StageOptions { model: tiny(&format!("{model}.onnx")), description, ..StageOptions::default() }
}

/// A red frame with a green bar of 4x16 pixels in the center and a blue lower right quarter.
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

/// Returns the label that the classifier reports for a region with this rectangle and these keypoints.
fn label_of(classifier: &Stage, rect: Rect, keypoints: Vec<Point>) -> String {
    label_of_region(classifier, Region { id: ObjectId::next(), rect, keypoints, rotated: None })
}

fn label_of_region(classifier: &Stage, region: Region) -> String {
    let (sender, receiver) = mpsc::channel();
    classifier.submit_regions(frame(), 0, [region], RunGuard::now(), move |classified| sender.send(classified).unwrap());
    let classified = receiver.recv().unwrap();
    assert!(classified.failed.is_none(), "{:?}", classified.failed);
    match &classified.of_regions[0].1.outcome {
        Outcome::Label { label: Some(label), .. } => label.to_string(),
        other => panic!("no label: {other:?}"),
    }
}

#[test]
fn rotated_box_is_classified_upright() {
    let classifier = Stage::classifier(&options(&Scratch::new("rotated-crops"), "color", "rotated = true")).unwrap();
    let label = |angle: f32| {
        let rotated = RotatedRect { center: Point { x: 32.0, y: 32.0 }, width: 16.0, height: 4.0, angle };
        let region = Region {
            id: ObjectId::next(),
            rect: Rect { x: 0.0, y: 0.0, width: 64.0, height: 64.0 },
            keypoints: vec![],
            rotated: Some(rotated),
        };
        label_of_region(&classifier, region)
    };
    assert_eq!((label(90.0), label(0.0)), ("green".to_owned(), "red".to_owned()), "the bar is upright");
}

#[test]
fn margin_and_square_include_the_surroundings() {
    let scratch = Scratch::new("crops");
    for (keys, expected) in [("", "green"), ("margin = 1.0", "red"), ("square = true", "red"), ("square = false\nmargin = 0", "green")] {
        let classifier = Stage::classifier(&options(&scratch, "color", keys)).unwrap();
        assert_eq!(label_of(&classifier, BAR, vec![]), expected, "{keys}");
        assert_eq!(classifier.n_unaligned(), 0);
    }
}

#[test]
fn alignment_uses_keypoints_or_falls_back_to_the_box() {
    let scratch = Scratch::new("aligned crops");
    let classifier = Stage::classifier(&options(&scratch, "color", "align = [[0.0, 0.0], [1.0, 1.0]]")).unwrap();
    let points = |of: [(f32, f32); 2]| of.map(|(x, y)| Point { x, y }).to_vec();
    assert_eq!(label_of(&classifier, BAR, points([(40.0, 45.0), (60.0, 60.0)])), "blue");
    assert_eq!(classifier.n_unaligned(), 0);
    for (n, keypoints) in [vec![], points([(40.0, 45.0); 2]), vec![Point { x: f32::NAN, y: 0.0 }; 2]].into_iter().enumerate() {
        assert_eq!(label_of(&classifier, BAR, keypoints), "green");
        assert_eq!(classifier.n_unaligned(), n as u64 + 1);
    }
    // These points are outside the frame, so the crop contains only the border, which has the value 114.
    assert_eq!(label_of(&classifier, BAR, points([(400.0, 45.0), (420.0, 60.0)])), "other");
}

#[test]
fn contradicting_descriptions_are_errors_with_advice() {
    let scratch = Scratch::new("bad crops");
    for (keys, parts) in [
        ("rotate = 45", &["`rotate`", "0, 90, 180 or 270", "45"][..]),
        ("margin = -0.1", &["`margin`", "0 to 10", "-0.1"]),
        ("align = [[0.5, 0.5]]", &["`align`", "2 to 100 points"]),
        ("align = [[0.5, 0.5], [0.5, 0.5]]", &["`align`", "not all equal"]),
        ("align = [[0.1, 0.1], [0.9, 0.9]]\nantialias = true", &["`align` and `antialias`", "Remove one"]),
        ("align = [[0.1, 0.1], [0.9, 0.9]]\nrotate = 90", &["`align` and `rotate`", "Remove one"]),
    ] {
        let error = Stage::classifier(&options(&scratch, "color", keys)).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)) && error.contains("described.toml"), "{keys}: {error}");
    }
    let error = Stage::detector(&options(&scratch, "stripes", "margin = 0.1")).unwrap_err().to_string();
    assert!(error.contains("`margin`") && error.contains("expected a classifier"), "{error}");
}

/// The key `rotate` is for cameras that are mounted sideways or upside down.
#[test]
fn rotated_detector_reports_frame_coordinates() {
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
