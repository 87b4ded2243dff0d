//! Real models, compared with stored results of other engines and other image libraries on identical pixels. The tests print the largest
//! differences. If models or images are missing, they print a message and pass.

mod cascades;
mod models;

use std::path::Path;

use image::ImageReader;
use roiflow::frame::{Detection, Frame, PixelFormat, Rect, Size};
use roiflow::stages::StageOptions;
use serde_json::Value;

use crate::support::{Scratch, description, real};

/// The required accuracy. The accuracy depends on the rounding of scaled images.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// A line that is added to `[input]` of the description; `None` leaves the description unchanged.
    rounding: Option<&'static str>,
    iou_min: f32,
    score_off_max: f32,
    /// A box is compared only if its score exceeds the threshold by more than this margin.
    score_margin: f32,
}

/// Bounds if roiflow does not round scaled pixels. The reference rounds them to 8 bits.
const EXACT: Bounds = Bounds { rounding: None, iou_min: 0.98, score_off_max: 0.02, score_margin: 0.02 };
/// Bounds if roiflow rounds like the reference. These bounds do not apply to JPEG files, because JPEG decoders differ by more.
const U8: Bounds = Bounds { rounding: Some("rounding = \"u8\""), iou_min: 0.999, score_off_max: 1e-3, score_margin: 0.02 };

/// The largest differences, and all differences that exceed the bounds.
#[derive(Debug, Default)]
struct Worst {
    n_boxes: usize,
    iou_off: f32,
    score_off: f32,
    gender_off: f32,
    attribute_off: f32,
    ages_off: Vec<f32>,
    failures: Vec<String>,
}

impl Worst {
    fn fail(&mut self, failed: bool, sentence: impl FnOnce() -> String) {
        if failed {
            self.failures.push(sentence());
        }
    }

    fn report(self, what: &str) {
        let mut parts = vec![format!("{} answers", self.n_boxes)];
        let mut part = |name: &str, off: f32| {
            if off > 0.0 {
                parts.push(format!("{name} {off:.6}"));
            }
        };
        part("1 - IoU", self.iou_off);
        part("score", self.score_off);
        part("gender probability", self.gender_off);
        part("attribute", self.attribute_off);
        for percent in [50, 95, 100] {
            let age_idx = (self.ages_off.len() * percent / 100).min(self.ages_off.len().max(1) - 1);
            part(&format!("age p{percent}"), self.ages_off.get(age_idx).copied().unwrap_or(0.0));
        }
        eprintln!("{what}, off by at most: {}", parts.join(", "));
        assert!(self.n_boxes > 0, "{what}: nothing was compared");
        assert!(self.failures.is_empty(), "{what}:\n{}", self.failures.join("\n"));
    }
}

struct Picture {
    name: String,
    /// Whether the image format is lossless, so that all decoders give the same pixels.
    lossless: bool,
    frame: Frame,
    objects: Vec<Value>,
}

impl Picture {
    fn read(path: &Path, objects: Vec<Value>) -> Self {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let lossless = path.extension().is_some_and(|ending| ending == "png");
        let picture = ImageReader::open(path).unwrap().decode().unwrap().into_rgb8();
        let size = Size::new(picture.width(), picture.height());
        let frame = Frame::from_packed(PixelFormat::Rgb, size, picture.as_raw()).unwrap();
        Self { name, lossless, frame, objects }
    }

    /// Returns the bounds that apply to this image: these bounds for a lossless image, and `EXACT` otherwise.
    fn bounds<'a>(&self, bounds: &'a Bounds) -> &'a Bounds {
        if self.lossless { bounds } else { &EXACT }
    }
}

/// Returns pairs of a stored object and a detection. Each object or detection with a score clearly above the threshold must have a
/// counterpart.
fn pairs<'a>(
    picture: &'a Picture,
    found: &'a [Detection],
    threshold: f32,
    bounds: &Bounds,
    worst: &mut Worst,
) -> Vec<(&'a Value, &'a Detection)> {
    let bounds = picture.bounds(bounds);
    let clear = |score: f32| score > threshold + bounds.score_margin;
    let mut pairs = Vec::new();
    for object in &picture.objects {
        let (corners, score) = (floats(&object["bbox"]), float(&object["score"]));
        if !clear(score) {
            continue;
        }
        let rect = Rect::from_corners(corners[0], corners[1], corners[2], corners[3]);
        let nearest = found.iter().max_by(|a, b| a.rect.iou(&rect).total_cmp(&b.rect.iou(&rect)));
        let Some(nearest) = nearest.filter(|nearest| nearest.rect.iou(&rect) > 0.5) else {
            worst.fail(true, || format!("{}: not found: {rect:?} with score {score}", picture.name));
            continue;
        };
        let (iou, score_off) = (nearest.rect.iou(&rect), (nearest.confidence - score).abs());
        worst.n_boxes += 1;
        worst.iou_off = worst.iou_off.max(1.0 - iou);
        worst.score_off = worst.score_off.max(score_off);
        worst.fail(iou < bounds.iou_min || score_off > bounds.score_off_max, || {
            format!("{}: IoU {iou}, score {} instead of {score}", picture.name, nearest.confidence)
        });
        pairs.push((object, nearest));
    }
    for detection in found.iter().filter(|detection| clear(detection.confidence)) {
        let known = picture.objects.iter().any(|object| {
            let corners = floats(&object["bbox"]);
            Rect::from_corners(corners[0], corners[1], corners[2], corners[3]).iou(&detection.rect) > 0.5
        });
        worst.fail(!known, || format!("{}: not in the reference: {detection:?}", picture.name));
    }
    pairs
}

/// Returns the options of a stage on a real model, with the rounding of `bounds` and otherwise the description of the model.
fn stage(scratch: &Scratch, device: &str, model: &str, toml: &str, bounds: &Bounds) -> Option<StageOptions> {
    let model = real(&format!("models/{model}"))?;
    // A description may only name label files in its own folder, so copy them.
    for labels in ["coco.txt", "imagenet_1000.txt"] {
        scratch.file(labels, std::fs::read(description(labels)).unwrap());
    }
    let text = std::fs::read_to_string(description(toml)).unwrap().replace("rounding = \"u8\"\n", "");
    let text = text.replace("[input]\n", &format!("[input]\n{}\n", bounds.rounding.unwrap_or_default()));
    let description = Some(scratch.file(toml, text));
    Some(StageOptions { model, device: Some(device.to_owned()), description, ..StageOptions::default() })
}

fn float(value: &Value) -> f32 {
    value.as_f64().unwrap() as f32
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(float).collect()
}
