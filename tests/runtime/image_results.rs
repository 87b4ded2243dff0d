//! The results of a cascade on one image. The Python package compares the same results (`python/tests/test_load.py`). Both must equal
//! `tests/golden/image_results.json` bit by bit.

use std::time::SystemTime;

use roiflow::frame::json::{Context, MapFormat, MaskFormat, write_line};
use roiflow::frame::{Frame, FrameResults, PixelFormat, Size};
use roiflow::stages::{RunGuard, Stage, StageOptions};
use roiflow::tensor::{ElementType, Tensor};
use roiflow::vision::Scratch;

use crate::support::tiny;

/// Returns an image of a gray pattern with a red box in it.
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
        tags: None,
        timestamp_ns: None,
        pts_ns: None,
        time: SystemTime::UNIX_EPOCH,
        message_id: None,
        image: None,
        masks: MaskFormat::default(),
        maps: MapFormat::default(),
    };
    let mut line = Vec::new();
    write_line(&mut line, &results, &context).unwrap();
    let got = String::from_utf8(line).unwrap();
    assert_eq!(got, include_str!("../golden/image_results.json"));
}

#[test]
fn preprocessed_values_give_the_results_of_their_frame() {
    let size = Size::new(100, 75);
    let frame = pattern(size);
    let options = StageOptions { model: tiny("rectangle.onnx"), device: Some("CPU".to_owned()), ..StageOptions::default() };
    let stage = Stage::detector(&options).unwrap();
    let values = Tensor::new(ElementType::F32, stage.spec().input_shape).unwrap();
    let frame_from_input = stage.spec().preprocess.fill(&frame, &mut values.bytes_mut().unwrap(), 0, &mut Scratch::default()).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let done = move |results| sender.send(results).unwrap();
    stage.submit_values(values.clone(), frame_from_input, 0, RunGuard::now(), done).unwrap();
    let found = receiver.recv().unwrap().into_result().unwrap().detections;
    let expected = stage.detect(&frame).unwrap();
    assert_eq!((found.len(), found[0].rect, found[0].confidence), (1, expected[0].rect, expected[0].confidence));
    let wrong = Tensor::new(ElementType::U8, stage.spec().input_shape).unwrap();
    let error = stage.submit_values(wrong, frame_from_input, 0, RunGuard::now(), |_| ()).unwrap_err();
    assert!(error.to_string().contains("f32, got [1, 64, 64, 3] u8"), "{error}");
}
