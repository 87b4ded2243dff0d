//! Cascades of real models, compared with stored results.

use roiflow::frame::{Outcome, Rect};
use roiflow::stages::{Stage, image_input};
use roiflow::vision::{InputLayout, Preprocess, Rounding};
use serde_json::Value;

use super::{Bounds, EXACT, Picture, U8, Worst, float, floats, pairs, stage};
use crate::support::{Scratch, compile_on, is_here, quantizes_as_references_do, real};

/// Genders are compared only if their probability is above this value.
const GENDER_SURE: f32 = 0.6;
const GENDER_OFF_MAX: f32 = 0.03;
const AGE_OFF_P95_MAX: f32 = 10.0;
/// Tolerance of an attribute's probability: without rounding of scaled pixels, and with rounding.
const ATTRIBUTE_OFF_MAX: [f32; 2] = [0.1, 0.01];
/// Tolerance with quantized weights, on a CPU whose integer sums differ from the reference.
const ATTRIBUTE_QUANTIZED_OFF_MAX: f32 = 0.2;
/// Largest allowed difference between a probability and the reference, for quantized models, by device. ONNX Runtime computed the
/// reference. OpenVINO uses other integer arithmetic for quantized models. On the same 24 crops, its Python package (2026.4) returns
/// exactly the bytes of `OPENVINO.CPU`. These bytes differ from ONNX Runtime by up to 18 of 256 steps, for all hints for precision, mode
/// and threads.
const QUANTIZED_OFF_MAX: [(&str, f32); 2] = [("ORT.CPU", 0.004), ("OPENVINO.CPU", 0.1)];

/// Generates the comparisons for one device with an engine.
macro_rules! on {
    ($device:literal as $module:ident) => {
        mod $module {
            use super::*;

            #[test]
            fn faces_gender_and_age_are_those_of_the_reference() {
                check_faces($device, "exact", &EXACT);
            }

            #[test]
            fn faces_gender_and_age_are_those_of_the_reference_with_its_rounding() {
                check_faces($device, "u8", &U8);
            }

            #[test]
            fn objects_are_those_of_the_reference() {
                check_objects($device, "exact", &EXACT);
            }

            #[test]
            fn objects_are_those_of_the_reference_with_its_rounding() {
                check_objects($device, "u8", &U8);
            }
        }
    };
}

on!("CPU" as cpu);
on!("ORT.CPU" as ort_cpu);
on!("OPENVINO.CPU" as openvino_cpu);

/// A quantized model with byte inputs and outputs.
#[test]
fn a_quantized_classifier_says_what_the_reference_says_on_the_devices_that_run_it() {
    if !quantizes_as_references_do() {
        return eprintln!("skipped: on a processor without VNNI, engines' sums of products of bytes overflow");
    }
    QUANTIZED_OFF_MAX.into_iter().for_each(|(device, off_max)| check_quantized(device, off_max));
}

/// A model in OpenVINO's own format, with NMS inside the model.
#[test]
fn vehicles_and_their_attributes_are_those_of_the_reference() {
    check_vehicles("exact", &EXACT, "vehicle-attributes-recognition-barrier-0039.xml", ATTRIBUTE_OFF_MAX[0]);
    check_vehicles("u8", &U8, "vehicle-attributes-recognition-barrier-0039.xml", ATTRIBUTE_OFF_MAX[1]);
}

/// Quantized weights change probabilities, so only results with a high probability are compared.
#[test]
fn attributes_of_vehicles_are_the_same_with_quantized_weights() {
    let off_max = if quantizes_as_references_do() { ATTRIBUTE_OFF_MAX[0] } else { ATTRIBUTE_QUANTIZED_OFF_MAX };
    check_vehicles("int8", &EXACT, "int8/vehicle-attributes-recognition-barrier-0039-int8.xml", off_max);
}

fn check_faces(device: &str, name: &str, bounds: &Bounds) {
    if !is_here(device) {
        return;
    }
    let scratch = Scratch::new(&format!("reference-faces-{device}-{name}"));
    let options = |model: &str, toml: &str| stage(&scratch, device, model, toml, bounds);
    let (Some(detector), Some(gender), Some(age)) = (
        options("ultraface_rfb_320_nhwc.onnx", "ultraface-rfb-320.toml"),
        options("gender-v1.onnx", "gender.toml"),
        options("age-v1.onnx", "age.toml"),
    ) else {
        return;
    };
    let detector = Stage::detector(&detector).unwrap();
    let (gender, age) = (Stage::classifier(&gender).unwrap(), Stage::classifier(&age).unwrap());
    for file in ["demo_A_face_gender_age.jsonl", "demo_A2_faces_grid.jsonl", "demo_A_images.jsonl"] {
        let Some(pictures) = pictures(file) else { return };
        let mut worst = Worst::default();
        for picture in &pictures {
            let found = detector.detect(&picture.frame).unwrap();
            for (expected, detection) in pairs(picture, &found, 0.7, bounds, &mut worst) {
                let rect = detection.rect.to_pixels(picture.frame.size()).unwrap();
                let region = picture.frame.region(rect).unwrap();
                let said = &expected["classifications"]["box"];
                let probabilities = floats(&said["gender_prob"]);
                let Some(Outcome::Label { label_id, confidence, .. }) = gender.classify(&region).unwrap().pop().map(|said| said.outcome)
                else {
                    panic!("{}: no gender", picture.name)
                };
                let sure = probabilities[0].max(probabilities[1]);
                if sure > GENDER_SURE {
                    let named = ["female", "male"][label_id as usize];
                    worst.fail(said["gender"] != named, || format!("{}: gender {named}, expected {said}", picture.name));
                }
                let off = (confidence - probabilities[label_id as usize]).abs();
                worst.gender_off = worst.gender_off.max(off);
                worst.fail(off > GENDER_OFF_MAX, || format!("{}: gender probability {confidence}, expected {said}", picture.name));
                let Some(Outcome::Value(years)) = age.classify(&region).unwrap().pop().map(|said| said.outcome) else {
                    panic!("{}: no age", picture.name)
                };
                worst.ages_off.push((years - float(&said["age"])).abs());
            }
        }
        worst.ages_off.sort_by(f32::total_cmp);
        let p95 = worst.ages_off.get(worst.ages_off.len() * 95 / 100).copied().unwrap_or(0.0);
        worst.fail(p95 > AGE_OFF_P95_MAX, || format!("the age is {p95} years off (95th percentile)"));
        worst.report(&format!("{device} {file} {name}"));
    }
}

fn check_objects(device: &str, name: &str, bounds: &Bounds) {
    if !is_here(device) {
        return;
    }
    let scratch = Scratch::new(&format!("reference-objects-{device}-{name}"));
    let Some(options) = stage(&scratch, device, "yolox_nano_416x416.onnx", "yolox-nano.toml", bounds) else { return };
    let Some(pictures) = pictures("dev_B_yolox_imagenet_vehicle.jsonl") else { return };
    let detector = Stage::detector(&options).unwrap();
    let mut worst = Worst::default();
    for picture in &pictures {
        let found = detector.detect(&picture.frame).unwrap();
        for (expected, detection) in pairs(picture, &found, 0.3, bounds, &mut worst) {
            let (class_id, label) = (expected["class_id"].as_u64().unwrap(), expected["label"].as_str().unwrap());
            let own = detection.label.as_deref().unwrap_or("").replace(' ', "_");
            let same = u64::from(detection.label_id) == class_id && own == label;
            worst.fail(!same, || format!("{}: `{own}`, expected `{label}`", picture.name));
        }
    }
    worst.report(&format!("{device} dev_B_yolox_imagenet_vehicle.jsonl {name}"));
}

/// Compares only the classifier: its inputs are the crops of the reference.
fn check_quantized(device: &str, off_max: f32) {
    if !is_here(device) {
        return;
    }
    let Some(model) = real("models/efficientnet_lite0_uint8.onnx") else { return };
    let Some(pictures) = pictures("dev_B_yolox_imagenet_vehicle.jsonl") else { return };
    let request = compile_on(device, &model).create_infer_request().unwrap();
    let preprocess = Preprocess { layout: InputLayout::Nhwc, rounding: Rounding::U8, ..Preprocess::default() };
    let (mut n_crops, mut most_off) = (0, 0.0_f32);
    for picture in &pictures {
        for object in &picture.objects {
            let corners = floats(&object["crop"]);
            let rect = Rect::from_corners(corners[0], corners[1], corners[2], corners[3]).to_pixels(picture.frame.size()).unwrap();
            request.set_input((), image_input(picture.frame.region(rect).unwrap()).preprocess(preprocess.clone())).unwrap();
            request.infer(()).unwrap();
            let said = &object["classifications"]["imagenet"];
            let output = request.output_tensor(()).unwrap().view::<u8>().unwrap().to_vec();
            for (class_id, expected) in said["top3"].as_array().unwrap().iter().zip(floats(&said["prob"])) {
                let probability = f32::from(output[class_id.as_u64().unwrap() as usize]) / 256.0;
                most_off = most_off.max((probability - expected).abs());
            }
            n_crops += 1;
        }
    }
    eprintln!("{device} efficientnet_lite0_uint8: {n_crops} crops, probability off by at most {most_off}");
    assert!(n_crops > 0 && most_off <= off_max, "{device}: {n_crops} crops, probability off by {most_off}");
}

fn check_vehicles(name: &str, bounds: &Bounds, attributes: &str, off_max: f32) {
    let device = "OPENVINO.CPU";
    if !is_here(device) {
        return;
    }
    let scratch = Scratch::new(&format!("reference-vehicles-{name}"));
    let options = |model: &str, toml: &str| stage(&scratch, device, model, toml, bounds);
    let (Some(detector), Some(color), Some(kind)) = (
        options("vehicle-detection-0200.xml", "vehicle-detection-0200.toml"),
        options(attributes, "vehicle-attributes-color.toml"),
        options(attributes, "vehicle-attributes-type.toml"),
    ) else {
        return;
    };
    let Some(pictures) = pictures("dev_C_omz_vehicle_attributes.jsonl") else { return };
    let detector = Stage::detector(&detector).unwrap();
    let classifiers = [("color", Stage::classifier(&color).unwrap()), ("type", Stage::classifier(&kind).unwrap())];
    let mut worst = Worst::default();
    for picture in &pictures {
        let found = detector.detect(&picture.frame).unwrap();
        for (expected, detection) in pairs(picture, &found, 0.5, bounds, &mut worst) {
            let region = picture.frame.region(detection.rect.to_pixels(picture.frame.size()).unwrap()).unwrap();
            for (attribute, classifier) in &classifiers {
                let said = &expected["classifications"]["vehicle"];
                let sure = floats(&said[format!("{attribute}_prob")]).into_iter().fold(0.0, f32::max);
                let Some(Outcome::Label { label, confidence, .. }) = classifier.classify(&region).unwrap().pop().map(|said| said.outcome)
                else {
                    panic!("{}: no {attribute}", picture.name)
                };
                let label = label.as_deref().unwrap_or("").to_owned();
                if sure > 0.6 {
                    worst.fail(said[*attribute] != label, || format!("{}: {attribute} {label}, expected {said}", picture.name));
                    let off = (confidence - sure).abs();
                    worst.attribute_off = worst.attribute_off.max(off);
                    worst.fail(off > off_max, || format!("{}: {attribute} {confidence}, expected {said}", picture.name));
                }
            }
        }
    }
    worst.report(&format!("{device} dev_C_omz_vehicle_attributes.jsonl {name}"));
}

/// Returns the images and their stored results. Skips results whose image is not stored.
fn pictures(file: &str) -> Option<Vec<Picture>> {
    let lines = real(&format!("reference/{file}"))?;
    let text = std::fs::read_to_string(&lines).unwrap();
    let mut pictures = Vec::new();
    for line in text.lines() {
        let mut answer: Value = serde_json::from_str(line).unwrap();
        let path = match (answer.get("png"), answer["source"].as_str()) {
            (Some(Value::Null), _) => continue,
            (Some(png), _) => lines.with_file_name(png.as_str().unwrap()),
            (None, source) => real(&format!("images/{}", source.unwrap()))?,
        };
        let Value::Array(objects) = answer["objects"].take() else { panic!("{line}") };
        pictures.push(Picture::read(&path, objects));
    }
    Some(pictures)
}
