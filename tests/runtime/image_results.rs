//! The results of a cascade on one image. The Python package compares the same results (`python/tests/test_load.py`). Both must equal
//! `tests/golden/image_results.json` bit by bit.

use std::time::SystemTime;

use roiflow::frame::json::{Context, write_line};
use roiflow::frame::{Frame, FrameResults, PixelFormat, Size};
use roiflow::stages::{RunGuard, Stage, StageOptions};

use crate::support::tiny;

/// A gray pattern that contains a red box.
fn pattern(size: Size) -> Frame {
    let pixel = |x: u32, y: u32| {
        let is_red = (20..53).contains(&x) && (10..41).contains(&y);
        if is_red { [250, 20, 30] } else { [((x + y) % 200) as u8; 3] }
    };
    let pixels: Vec<u8> = (0..size.height).flat_map(|y| (0..size.width).flat_map(move |x| pixel(x, y))).collect();
    Frame::from_packed(PixelFormat::Rgb, size, &pixels).unwrap()
}

#[test]
fn cascade_on_an_image_equals_the_golden_results() {
    let size = Size::new(100, 75);
    let frame = pattern(size);
    let options = |name: &str| StageOptions { model: tiny(name), device: Some("CPU".to_owned()), ..StageOptions::default() };
    let (detector, classifier) = (Stage::detector(&options("rectangle.onnx")).unwrap(), Stage::classifier(&options("color.onnx")).unwrap());
    let mut results = FrameResults { size, detections: detector.detect(&frame).unwrap(), ..FrameResults::default() };
    let regions: Vec<_> = results.detections.iter().map(|detection| classifier.spec().crop.region(detection)).collect();
    let (sender, receiver) = std::sync::mpsc::channel();
    classifier.submit_regions(frame, 0, regions, RunGuard::now(), move |results| sender.send(results).unwrap());
    receiver.recv().unwrap().into_result().unwrap().add_to(&mut results);
    let context = Context {
        frame_number: 0,
        stream_id: None,
        source: None,
        timestamp_ns: None,
        pts_ns: None,
        time: SystemTime::UNIX_EPOCH,
        message_id: None,
    };
    let mut line = Vec::new();
    write_line(&mut line, &results, &context).unwrap();
    let got = String::from_utf8(line).unwrap();
    assert_eq!(got, include_str!("../golden/image_results.json"));
}
