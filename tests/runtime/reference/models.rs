//! Each real model separately, on every device that can run it, compared with stored results. `tests/golden/models/make.py` created the
//! results with OpenCV, numpy and the engines' own Python packages.

use std::path::Path;

use roiflow::frame::{Detection, Outcome, Rect, Size};
use roiflow::stages::{Stage, StageOptions};
use serde_json::{Value, json};

use super::{Bounds, EXACT, Picture, U8, Worst, float, floats, pairs, stage};
use crate::support::{Scratch, is_here, quantizes_as_references_do, real};

const EVERYWHERE: &[&str] = &["CPU", "ORT.CPU", "OPENVINO.CPU"];
const OPENVINO: &[&str] = &["OPENVINO.CPU"];
/// Class names are compared only if their probability is above this value.
const SURE: f32 = 0.6;
/// In the case `exact`, the reference also scales images in floating point, so the bounds are as strict as in the case `u8`.
const BOUNDS: [(&str, Bounds); 2] = [("exact", Bounds { rounding: None, ..U8 }), ("u8", U8)];

#[test]
fn ultraface_in_its_own_export_finds_the_reference_s_faces() {
    check_boxes("version-RFB-320.onnx", "ultraface-rfb-320-nchw.toml", 0.7, EVERYWHERE);
}

#[test]
fn nanodet_finds_the_reference_s_objects() {
    check_boxes("nanodet_m_320.onnx", "nanodet-m.toml", 0.35, EVERYWHERE);
}

#[test]
fn the_zoo_s_face_detector_finds_the_reference_s_faces() {
    check_boxes("face-detection-retail-0004.xml", "face-detection-retail-0004.toml", 0.5, OPENVINO);
}

#[test]
fn its_quantized_self_finds_those_of_the_quantized_reference() {
    check_boxes("int8/face-detection-retail-0004-int8.xml", "face-detection-retail-0004.toml", 0.5, OPENVINO);
}

#[test]
fn attributes_of_vehicles_are_those_of_the_reference() {
    let golden = "vehicle-attributes-recognition-barrier-0039";
    check_classes("vehicle-attributes-recognition-barrier-0039.onnx", "vehicle-attributes.toml", golden, EVERYWHERE);
    check_classes("vehicle-attributes-recognition-barrier-0039.xml", "vehicle-attributes.toml", golden, OPENVINO);
}

#[test]
fn attributes_with_quantized_weights_are_those_of_the_quantized_reference() {
    let golden = "vehicle-attributes-recognition-barrier-0039-int8";
    check_classes(&format!("int8/{golden}.xml"), "vehicle-attributes.toml", golden, OPENVINO);
}

#[test]
fn emotions_are_those_of_the_reference() {
    check_classes("emotion_mini_xception.onnx", "emotion-mini-xception.toml", "emotion_mini_xception", EVERYWHERE);
}

#[test]
fn vectors_of_persons_are_those_of_the_reference() {
    let golden = "person-reidentification-retail-0288";
    check_classes(&format!("{golden}.onnx"), &format!("{golden}.toml"), golden, EVERYWHERE);
}

fn check_boxes(model: &str, toml: &str, threshold: f32, devices: &[&str]) {
    let stem = Path::new(model).file_stem().unwrap().to_str().unwrap();
    each_device(model, toml, devices, stem, |options, bounds, pictures, what| {
        let detector = Stage::detector(options).unwrap();
        let mut worst = Worst::default();
        for picture in pictures {
            let size = picture.frame.size();
            let cut = |found: Detection| {
                let corners = cut([found.rect.x, found.rect.y, found.rect.x_max(), found.rect.y_max()], size);
                Detection { rect: Rect::from_corners(corners[0], corners[1], corners[2], corners[3]), ..found }
            };
            let found: Vec<Detection> = detector.detect(&picture.frame).unwrap().into_iter().map(cut).collect();
            for (expected, detection) in pairs(picture, &found, threshold, bounds, &mut worst) {
                let same = u64::from(detection.label_id) == expected["class_id"].as_u64().unwrap();
                worst.fail(!same, || format!("{}: class {}, expected {expected}", picture.name, detection.label_id));
            }
        }
        worst.report(what);
    });
}

fn check_classes(model: &str, toml: &str, golden: &str, devices: &[&str]) {
    each_device(model, toml, devices, golden, |options, bounds, pictures, what| {
        let classifier = Stage::classifier(options).unwrap();
        let mut worst = Worst::default();
        for picture in pictures {
            for expected in &picture.objects {
                let corners = floats(&expected["crop"]);
                let rect = Rect::from_corners(corners[0], corners[1], corners[2], corners[3]).to_pixels(picture.frame.size()).unwrap();
                for said in classifier.classify(&picture.frame.region(rect).unwrap()).unwrap() {
                    let values = floats(&expected[&*said.name]);
                    worst.n_boxes += 1;
                    let off = match &said.outcome {
                        Outcome::Label { label_id, confidence, .. } => {
                            let best = values.iter().copied().fold(0.0, f32::max);
                            let value = values[*label_id as usize];
                            worst.fail(best > SURE && value < best, || format!("{}: {said:?}, expected {expected}", picture.name));
                            (confidence - value).abs()
                        }
                        Outcome::Tensor { data, .. } => 1.0 - data.iter().zip(&values).map(|(own, other)| own * other).sum::<f32>(),
                        other => panic!("{other:?}"),
                    };
                    worst.attribute_off = worst.attribute_off.max(off);
                    worst.fail(off > bounds.score_off_max, || format!("{}: off by {off}: {said:?}, expected {expected}", picture.name));
                }
            }
        }
        worst.report(what);
    });
}

fn each_device(model: &str, toml: &str, devices: &[&str], golden: &str, check: impl Fn(&StageOptions, &Bounds, &[Picture], &str)) {
    for device in devices.iter().filter(|device| is_here(device)) {
        for (rounding, bounds) in &BOUNDS {
            let what = format!("{device} {model} {rounding}");
            let is_quantized = model.starts_with("int8/");
            let bounds = match (is_quantized && !quantizes_as_references_do(), is_quantized && bounds.rounding.is_none()) {
                (true, _) => &Bounds { iou_min: 0.95, score_off_max: EXACT.score_off_max, ..*bounds },
                // The reference does not round its interpolation weights, and a quantized model may round differently.
                (false, true) => &EXACT,
                (false, false) => bounds,
            };
            let scratch = Scratch::new(&format!("models-{}", what.replace([' ', '/'], "-")));
            let options = stage(&scratch, device, model, toml, bounds);
            let Some((options, pictures)) = options.zip(pictures(golden, rounding)) else { return };
            check(&options, bounds, &pictures, &what);
        }
    }
}

/// Returns the images of a golden file with their results. The boxes have the format that [`pairs`] expects.
fn pictures(golden: &str, rounding: &str) -> Option<Vec<Picture>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/models/{golden}.jsonl"));
    let text = std::fs::read_to_string(path).unwrap();
    let pictures = text.lines().skip(1).map(|line| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let path = real(line["picture"].as_str().unwrap())?;
        let Value::Array(objects) = line[rounding].take() else { panic!("no `{rounding}` in {line}") };
        let mut picture = Picture::read(&path, objects);
        let size = picture.frame.size();
        picture.objects.iter_mut().filter(|object| object.is_array()).for_each(|row| {
            let corners: [f32; 4] = std::array::from_fn(|idx| float(&row[idx]));
            *row = json!({ "bbox": cut(corners, size), "score": row[4], "class_id": row[5] });
        });
        Some(picture)
    });
    pictures.collect()
}

/// Clips a box to the frame, because some references clip their boxes but roiflow does not.
fn cut(corners: [f32; 4], frame: Size) -> [f32; 4] {
    let (width, height) = (frame.width as f32, frame.height as f32);
    std::array::from_fn(|idx| corners[idx].clamp(0.0, if idx % 2 == 0 { width } else { height }))
}
