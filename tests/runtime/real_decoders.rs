//! Decoders on real models with the built-in engine. If models or images are missing, the tests print a message and pass.

use image::ImageReader;
use roiflow::frame::{Classification, Frame, Outcome, PixelFormat, PixelRect, Size};
use roiflow::stages::{Stage, StageOptions};

use crate::support::{description, is_here, quantizes_as_references_do, real};

fn options(model: &str, toml: &str) -> Option<StageOptions> {
    let (model, description) = (real(&format!("models/{model}"))?, Some(description(toml)));
    Some(StageOptions { model, description, device: Some("CPU".to_owned()), ..StageOptions::default() })
}

fn image(name: &str) -> Option<Frame> {
    let image = ImageReader::open(real(&format!("images/{name}"))?).unwrap().decode().unwrap().into_rgb8();
    Some(Frame::from_packed(PixelFormat::Rgb, Size::new(image.width(), image.height()), image.as_raw()).unwrap())
}

/// The expected results are those of ONNX Runtime 1.32 on the same images, resized by OpenCV. The scores of quantized models are bytes that
/// represent 0 to 1.
#[test]
fn known_classifiers_match_their_engine() {
    for (model, device, cases) in [
        ("efficientnet_lite0_uint8.onnx", "ORT.CPU", &[("car_detection.png", "cellular telephone", 0.551)][..]),
        ("emotion_mini_xception.onnx", "CPU", &[("multi_face.jpg", "sad", 0.507), ("dog_bike_car.jpg", "sad", 0.489)]),
    ] {
        let Some(model) = real(&format!("models/{model}")).filter(|_| is_here(device)) else { continue };
        let classifier = Stage::classifier(&StageOptions { model, device: Some(device.to_owned()), ..StageOptions::default() }).unwrap();
        for &(name, expected, confidence) in cases {
            let classified = classifier.classify(&image(name).unwrap()).unwrap().remove(0);
            let Outcome::Label { label: Some(label), confidence: found, .. } = &classified.outcome else { panic!("{classified:?}") };
            eprintln!("{name}: {label} {found:.3}, expected {expected} {confidence}");
            let tolerance = if device == "ORT.CPU" && !quantizes_as_references_do() { 0.2 } else { 0.1 };
            assert!(**label == *expected && (found - confidence).abs() < tolerance, "{name}: {label} {found}");
        }
    }
}

#[test]
fn two_heads_in_one_run_match_two_runs() {
    let model = "vehicle-attributes-recognition-barrier-0039.onnx";
    let all = ["vehicle-attributes.toml", "vehicle-attributes-type.toml", "vehicle-attributes-color.toml"].map(|toml| options(model, toml));
    let (Some(image), [Some(both), Some(kind), Some(color)]) = (image("car_detection.png"), all) else { return };
    let region = image.region(PixelRect { x: 100, y: 100, width: 200, height: 200 }).unwrap();
    let classified = |options: &StageOptions| -> Vec<Classification> { Stage::classifier(options).unwrap().classify(&region).unwrap() };
    assert_eq!(classified(&both), [classified(&kind), classified(&color)].concat());
    assert_eq!(classified(&both).len(), 2);
}

#[test]
fn person_embeddings_are_normalized_and_distinct() {
    let Some(options) = options("person-reidentification-retail-0288.onnx", "person-reidentification-retail-0288.toml") else { return };
    let Some(image) = image("pedestrians.jpg") else { return };
    let classifier = Stage::classifier(&options).unwrap();
    let vector = |x: u32| {
        let region = image.region(PixelRect { x, y: 100, width: 80, height: 200 }).unwrap();
        let classified = classifier.classify(&region).unwrap();
        let [Classification { outcome: Outcome::Tensor { shape, data }, .. }] = &classified[..] else { panic!("{classified:?}") };
        assert_eq!(shape[..], [1, 256]);
        data.to_vec()
    };
    let cosine = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(one, other)| one * other).sum::<f32>();
    let (here, near, far) = (vector(100), vector(102), vector(400));
    assert!((cosine(&here, &here) - 1.0).abs() < 1e-5);
    assert!(cosine(&here, &near) > cosine(&here, &far), "{} and {}", cosine(&here, &near), cosine(&here, &far));
}
