//! Real models on real clips in real pipelines, compared with results of OpenCV and ONNX Runtime.
//!
//! The video decoder and the color conversion differ from those of the reference. So the bounds are 95 % of the boxes at IoU 0.9, and 98 %
//! equal labels; the README of the reference derives them. The network finds other boxes on gray images than on color images. So the format
//! GRAY8 is compared with reference results for gray images, in `golden/gray`.

use std::path::{Path, PathBuf};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;
use roiflow::elements::{caps, meta};
use roiflow::frame::{Detection, FrameResults, Outcome, PixelFormat, Rect};
use roiflow::pipeline::{Input, Interrupt, Outputs, Plan, Spec};

#[path = "../support/models.rs"]
mod models;
pub use models::real;

const N_FRAMES: usize = 200;

/// Detections in a frame, of roiflow or of the reference.
struct Object {
    rect: Rect,
    /// Label of the detector.
    label: Option<String>,
    /// Labels of the classifiers.
    said: Vec<Said>,
}

struct Said {
    classifier: &'static str,
    label: String,
    probability: f64,
}

/// Returns the reference boxes that the same network finds on gray images.
fn gray_reference(file: &str) -> Vec<Vec<Object>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gray").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let object = |[x1, y1, x2, y2]: [f32; 4]| Object { rect: Rect::from_corners(x1, y1, x2, y2), label: None, said: Vec::new() };
    text.lines().map(|line| serde_json::from_str::<Vec<_>>(line).unwrap().into_iter().map(object).collect()).collect()
}

/// Returns the results of the reference under `group`. For each classifier, they have the label and the probabilities of all labels.
/// Objects barely above the threshold are left out, because a difference in the color conversion can move them below the threshold.
fn reference(file: &Path, threshold: f64, group: &str, classifiers: &[&'static str]) -> Vec<Vec<Object>> {
    let is_certain = |object: &&serde_json::Value| object["score"].as_f64().unwrap() > threshold + 0.02;
    let object = |object: &serde_json::Value| {
        let corner = |idx: usize| object["bbox"][idx].as_f64().unwrap() as f32;
        let classified = &object["classifications"][group];
        let said = classifiers.iter().filter_map(|&classifier| {
            let probabilities = classified[format!("{classifier}_prob")].as_array()?.iter().filter_map(serde_json::Value::as_f64);
            let label = classified[classifier].as_str()?.to_owned();
            Some(Said { classifier, label, probability: probabilities.fold(0.0, f64::max) })
        });
        Object {
            rect: Rect::from_corners(corner(0), corner(1), corner(2), corner(3)),
            label: object["label"].as_str().map(str::to_owned),
            said: said.collect(),
        }
    };
    let text = std::fs::read_to_string(file).unwrap();
    let frames = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    frames.map(|frame| frame["objects"].as_array().unwrap().iter().filter(is_certain).map(object).collect()).collect()
}

/// Counts the reference results that roiflow found. The share of found results is in percent; it is 100 if there are no reference results.
#[derive(Default)]
struct Agreement {
    n_objects: usize,
    n_found: usize,
    n_said: usize,
    n_same: usize,
}

impl Agreement {
    fn between(found: &[Vec<Object>], expected: &[Vec<Object>]) -> Self {
        let mut sum = Self::default();
        for (found, expected) in found.iter().zip(expected) {
            for object in expected {
                sum.n_objects += 1;
                let of_label = found.iter().filter(|found| found.label == object.label || found.label.is_none() || object.label.is_none());
                let best = of_label.max_by(|a, b| a.rect.iou(&object.rect).total_cmp(&b.rect.iou(&object.rect)));
                let Some(best) = best.filter(|best| best.rect.iou(&object.rect) >= 0.9) else { continue };
                sum.n_found += 1;
                for expected in object.said.iter().filter(|said| said.probability > 0.6) {
                    sum.n_said += 1;
                    let is_same = |said: &Said| said.classifier == expected.classifier && said.label == expected.label;
                    sum.n_same += usize::from(best.said.iter().any(is_same));
                }
            }
        }
        sum
    }

    fn check(&self, what: &str) {
        let share = |part: usize, of: usize| if of == 0 { 100.0 } else { 100.0 * part as f64 / of as f64 };
        let (found, same) = (share(self.n_found, self.n_objects), share(self.n_same, self.n_said));
        eprintln!("{what}: {found:.1} % of {} boxes at IoU 0.9, {same:.1} % of {} labels equal", self.n_objects, self.n_said);
        assert!(self.n_objects > 100, "{what}: {} boxes in the reference", self.n_objects);
        assert!(found >= 95.0 && same >= 98.0, "{what}");
    }
}

/// Results of the first frames of a clip, converted to `format` before the detector.
fn results(clip: &Path, models: &Path, format: PixelFormat) -> Vec<FrameResults> {
    let descriptions = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/models");
    let (models, descriptions) = (models.display(), descriptions.display());
    let line = format!(
        "filesrc location={} ! decodebin ! videoconvert ! video/x-raw,format={format} ! identity eos-after={} \
         ! roidetect model={models}/ultraface_rfb_320_nhwc.onnx description={descriptions}/ultraface-rfb-320.toml \
         ! roiclassify model={models}/gender-v1.onnx description={descriptions}/gender.toml \
         ! appsink name=sink sync=false",
        clip.display(),
        N_FRAMES + 1,
    );
    let pipeline = crate::harness::pipeline(&line);
    let sink = pipeline.by_name("sink").unwrap().downcast::<gst_app::AppSink>().unwrap();
    pipeline.set_state(gst::State::Playing).unwrap();
    let mut results = Vec::new();
    while let Ok(sample) = sink.pull_sample() {
        let size = caps::size_in_caps(sample.caps().unwrap()).unwrap();
        results.push(meta::read(sample.buffer().unwrap(), size).unwrap());
    }
    pipeline.set_state(gst::State::Null).unwrap();
    // The decoder may have sent further frames before EOS.
    results.truncate(N_FRAMES);
    results
}

fn object(detection: &Detection) -> Object {
    let said = detection.classifications.iter().filter_map(|said| match &said.outcome {
        Outcome::Label { label, confidence, .. } => {
            Some(Said { classifier: "gender", label: label.as_deref()?.to_owned(), probability: f64::from(*confidence) })
        }
        _ => None,
    });
    Object { rect: detection.rect, label: detection.label.as_deref().map(str::to_owned), said: said.collect() }
}

fn check(clip: &str, reference_file: &str, gray_file: &str) {
    let (Some(clip), Some(file), Some(models)) =
        (real(&format!("videos/{clip}")), real(&format!("reference/{reference_file}")), real("models"))
    else {
        return;
    };
    let (in_color, in_gray) = (reference(&file, 0.7, "box", &["gender"]), gray_reference(gray_file));
    for format in PixelFormat::ALL {
        let results = results(&clip, &models, format);
        assert_eq!(results.len(), N_FRAMES, "{format}");
        let found: Vec<Vec<Object>> = results.iter().map(|results| results.detections.iter().map(object).collect()).collect();
        let reference = if format == PixelFormat::Gray8 { &in_gray } else { &in_color };
        Agreement::between(&found, reference).check(&format!("{reference_file} {format}"));
    }
}

/// Runs `pipelines/vehicles.toml` on a clip, and returns its output.
fn vehicles(clip: PathBuf, set: &[(&str, &Path)]) -> Result<Vec<Vec<Object>>, roiflow::pipeline::Error> {
    let folder = crate::harness::Folder::new(&format!("vehicles {}", set.len()));
    let json = PathBuf::from(folder.file("vehicles.jsonl"));
    let spec = Spec::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/vehicles.toml"))?;
    let set: Vec<(String, String)> = set.iter().map(|(name, value)| ((*name).to_owned(), value.display().to_string())).collect();
    let plan = Plan::resolve(&spec, &set, Input::File(clip), Outputs { json: Some(json.clone()), ..Outputs::default() })?;
    roiflow::pipeline::run(&plan, &Interrupt::default(), |_| ())?;
    let text = std::fs::read_to_string(json).unwrap();
    let object = |size: &serde_json::Value, object: &serde_json::Value| {
        let corner = |name: &str, extent: &str| {
            (object["detection"]["bounding_box"][name].as_f64().unwrap() * size[extent].as_f64().unwrap()) as f32
        };
        let said = ["type", "color"].into_iter().filter_map(|classifier| {
            let said = &object[classifier];
            Some(Said { classifier, label: said["label"].as_str()?.to_owned(), probability: said["confidence"].as_f64()? })
        });
        Object {
            rect: Rect::from_corners(
                corner("x_min", "width"),
                corner("y_min", "height"),
                corner("x_max", "width"),
                corner("y_max", "height"),
            ),
            label: object["detection"]["label"].as_str().map(str::to_owned),
            said: said.collect(),
        }
    };
    let frames = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    Ok(frames.map(|frame| frame["objects"].as_array().unwrap().iter().map(|one| object(&frame["resolution"], one)).collect()).collect())
}

#[test]
fn one_face_matches_reference_in_every_format() {
    check("WolfgangLanger_Pexels.mp4", "demo_A_face_gender_age.jsonl", "one_face.jsonl");
}

#[test]
fn several_faces_match_reference_in_every_format() {
    check("faces_grid_1280x720.mp4", "demo_A2_faces_grid.jsonl", "several_faces.jsonl");
}

#[test]
fn vehicle_type_and_color_match_reference() {
    let (Some(clip), Some(file), Some(models)) =
        (real("videos/bikes.mp4"), real("reference/dev_B_yolox_imagenet_vehicle.jsonl"), real("models"))
    else {
        return;
    };
    let (detector, classifier) = (models.join("yolox_nano_416x416.onnx"), models.join("vehicle-attributes-recognition-barrier-0039.onnx"));
    let found = vehicles(clip, &[("detector", &detector), ("classifier", &classifier)]).unwrap();
    assert_eq!(found.len(), 250);
    for object in found.iter().flatten() {
        let is_vehicle = matches!(object.label.as_deref(), Some("car" | "bus" | "truck"));
        let said: Vec<&str> = object.said.iter().map(|said| said.classifier).collect();
        assert_eq!(said, if is_vehicle { &["type", "color"][..] } else { &[] }, "{:?}", object.label);
    }
    Agreement::between(&found, &reference(&file, 0.3, "vehicle", &["type", "color"])).check("bikes.mp4");
}

#[test]
fn vehicles_from_above_match_reference() {
    let (Some(clip), Some(file), Some(models)) =
        (real("videos/car-detection.mp4"), real("reference/dev_C_omz_vehicle_attributes.jsonl"), real("models"))
    else {
        return;
    };
    let description = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/models/vehicle-detection-0200.toml");
    let (detector, classifier) =
        (models.join("vehicle-detection-0200.xml"), models.join("vehicle-attributes-recognition-barrier-0039.xml"));
    let set = [
        ("detector", &*detector),
        ("detector-description", &*description),
        ("classifier", &*classifier),
        ("object-class", Path::new("vehicle")),
        ("device", Path::new("OPENVINO.CPU")),
    ];
    let found = match vehicles(clip, &set) {
        Ok(found) => found,
        Err(error) if error.to_string().contains("OPENVINO.CPU") && !is_required("OPENVINO.CPU") => {
            eprintln!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(found.len(), 377);
    Agreement::between(&found, &reference(&file, 0.5, "vehicle", &["type", "color"])).check("car-detection.mp4");
}

/// Whether the environment variable requires this device, so that the test must fail if the device is missing.
fn is_required(device: &str) -> bool {
    std::env::var("ROIFLOW_REQUIRE_DEVICES").is_ok_and(|devices| devices.split(',').any(|required| required == device))
}
