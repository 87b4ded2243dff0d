//! Real models on real clips through real pipelines, against answers that OpenCV and ONNX Runtime gave.
//!
//! The decoder and the way to RGB differ from the reference's, so the bounds are those that its README derives: 95 % of the boxes
//! at IoU 0.9, 98 % equal gender. On gray pixels the network itself finds other boxes than in color, so GRAY8 is compared with
//! what it finds on gray pixels elsewhere: `golden/gray`.

use std::path::{Path, PathBuf};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;
use roiflow::elements::{caps, meta};
use roiflow::frame::{FrameResults, Outcome, PixelFormat, Rect};

const N_FRAMES: usize = 200;

/// The development set, beside the project or where `ROIFLOW_MODELS` says.
pub fn real(path: &str) -> Option<PathBuf> {
    let root =
        std::env::var_os("ROIFLOW_MODELS").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/models"), PathBuf::from);
    let path = root.join(path);
    if !path.exists() {
        eprintln!("skipped: `{}` is not there (set ROIFLOW_MODELS)", path.display());
        return None;
    }
    Some(path)
}

struct Face {
    rect: Rect,
    /// And its probability.
    gender: Option<(String, f64)>,
}

/// The boxes of the same network on gray pixels.
fn gray_reference(file: &str) -> Vec<Vec<Face>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gray").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let frames = text.lines().map(|line| serde_json::from_str::<Vec<[f32; 4]>>(line).unwrap());
    frames
        .map(|boxes| boxes.into_iter().map(|[x1, y1, x2, y2]| Face { rect: Rect::from_corners(x1, y1, x2, y2), gender: None }).collect())
        .collect()
}

fn reference(file: &Path) -> Vec<Vec<Face>> {
    let face = |object: &serde_json::Value| {
        let corner = |idx: usize| object["bbox"][idx].as_f64().unwrap() as f32;
        let classified = &object["classifications"]["box"];
        let probabilities = classified["gender_prob"].as_array().unwrap().iter().filter_map(serde_json::Value::as_f64);
        Face {
            rect: Rect::from_corners(corner(0), corner(1), corner(2), corner(3)),
            gender: Some((classified["gender"].as_str().unwrap().to_owned(), probabilities.fold(0.0, f64::max))),
        }
    };
    let text = std::fs::read_to_string(file).unwrap();
    let frames = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    frames.map(|frame| frame["objects"].as_array().unwrap().iter().map(face).collect()).collect()
}

/// The results of the first frames of a clip, converted to `format` in front of the detector.
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
    // The decoder may have sent a few more before it heard of the end.
    results.truncate(N_FRAMES);
    results
}

fn check(clip: &str, reference_file: &str, gray_file: &str) {
    let (Some(clip), Some(file), Some(models)) =
        (real(&format!("videos/{clip}")), real(&format!("reference/{reference_file}")), real("models"))
    else {
        return;
    };
    let (in_color, in_gray) = (reference(&file), gray_reference(gray_file));
    for format in PixelFormat::ALL {
        let results = results(&clip, &models, format);
        assert_eq!(results.len(), N_FRAMES, "{format}");
        let reference = if format == PixelFormat::Gray8 { &in_gray } else { &in_color };
        let (mut n_faces, mut n_found, mut n_gendered, mut n_same_gender) = (0, 0, 0, 0);
        for (found, expected) in results.iter().zip(reference) {
            for face in expected {
                n_faces += 1;
                let best = found.detections.iter().max_by(|a, b| a.rect.iou(&face.rect).total_cmp(&b.rect.iou(&face.rect)));
                let Some(best) = best.filter(|best| best.rect.iou(&face.rect) >= 0.9) else { continue };
                n_found += 1;
                if let Some((expected, _)) = face.gender.as_ref().filter(|(_, probability)| *probability > 0.6) {
                    n_gendered += 1;
                    let gender = best.classifications.iter().find_map(|said| match &said.outcome {
                        Outcome::Label { label, .. } => label.as_deref(),
                        _ => None,
                    });
                    n_same_gender += usize::from(gender == Some(&**expected));
                }
            }
        }
        let share = |part: usize, of: usize| 100.0 * part as f64 / of.max(1) as f64;
        eprintln!(
            "{reference_file} {format}: {:.1} % of {n_faces} boxes at IoU 0.9, {:.1} % of {n_gendered} genders equal",
            share(n_found, n_faces),
            share(n_same_gender, n_gendered)
        );
        assert!(share(n_found, n_faces) >= 95.0, "{format}");
        assert!(n_gendered == 0 || share(n_same_gender, n_gendered) >= 98.0, "{format}");
    }
}

#[test]
fn one_face_is_found_and_classified_as_by_the_reference_in_every_format() {
    check("WolfgangLanger_Pexels.mp4", "demo_A_face_gender_age.jsonl", "one_face.jsonl");
}

#[test]
fn several_faces_are_found_and_classified_as_by_the_reference_in_every_format() {
    check("faces_grid_1280x720.mp4", "demo_A2_faces_grid.jsonl", "several_faces.jsonl");
}
