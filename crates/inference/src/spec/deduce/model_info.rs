//! Reads the metadata `model_info` of OpenVINO Model API, Geti, the Training Extensions and Ultralytics. These metadata are in `rt_info` of
//! an OpenVINO IR, or in the metadata of an ONNX file with keys such as `model_info labels`.
//!
//! Keys have the meanings and defaults of the model wrappers in Model API, and of the same section in DL Streamer. List entries are
//! separated by spaces.

use super::super::config;
use super::super::draft::{Draft, Value};
use super::{Found, extents, fitting, layout_of, leaves_size_open};
use crate::runtime::{ModelInfo, Result};

/// Access to the metadata by key. The prefix `model_info` of each key is left out.
struct Keys<'a>(&'a ModelInfo);

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a str> {
        self.0.metadata.get(&format!("model_info {key}")).map(|value| value.trim()).filter(|value| !value.is_empty() && *value != "None")
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.get(key).map(|value| ["yes", "true", "1"].iter().any(|yes| value.eq_ignore_ascii_case(yes)))
    }

    fn number(&self, key: &str) -> Result<Option<f32>> {
        let number = |text: &str| text.parse::<f32>().ok().filter(|number| number.is_finite());
        self.get(key).map(|text| number(text).ok_or_else(|| wrong(key, "a number", text))).transpose()
    }

    fn numbers(&self, key: &str) -> Result<Option<Vec<f32>>> {
        let Some(text) = self.get(key) else { return Ok(None) };
        let words = text.split([' ', ',']).filter(|word| !word.is_empty());
        let numbers = words.map(|word| word.parse::<f32>().ok().filter(|number| number.is_finite())).collect::<Option<Vec<f32>>>();
        numbers.filter(|numbers| matches!(numbers.len(), 1 | 3)).map(Some).ok_or_else(|| wrong(key, "1 or 3 numbers", text))
    }

    fn labels(&self) -> Vec<String> {
        self.get("labels").map(|text| text.split_whitespace().map(str::to_owned).collect()).unwrap_or_default()
    }
}

fn wrong(key: &str, expected: &str, got: &str) -> crate::runtime::Error {
    config(format!("model_info `{key}`: expected {expected}, got `{got}`"))
}

/// The values that a model wrapper uses for missing keys.
struct Defaults {
    resize: &'static str,
    color: &'static str,
    scale: Option<f32>,
    pad: f32,
    threshold: f32,
    iou_threshold: Option<f32>,
}

const PLAIN: Defaults = Defaults { resize: "stretch", color: "bgr", scale: None, pad: 0.0, threshold: 0.5, iou_threshold: None };
const YOLO: Defaults =
    Defaults { resize: "letterbox", color: "rgb", scale: Some(255.0), pad: 114.0, threshold: 0.25, iou_threshold: Some(0.7) };
const YOLOX: Defaults =
    Defaults { resize: "letterbox-top-left", color: "bgr", scale: None, pad: 114.0, threshold: 0.5, iou_threshold: Some(0.65) };

/// Converts `model_info` to a draft; `None` if the model has no `model_info`.
///
/// # Errors
/// Returns `Config` if the model type is unsupported, or a value is invalid.
pub(super) fn read(info: &ModelInfo) -> Result<Option<Found>> {
    let keys = Keys(info);
    let Some(model_type) = keys.get("model_type") else { return Ok(None) };
    let kind = model_type.to_ascii_lowercase().replace(['_', '-'], "");
    let labels = keys.labels();
    let (defaults, decoder): (_, Option<&'static str>) = match &*kind {
        "ssd" | "detectionoutput" | "boxeslabels" => (PLAIN, fitting(info, &["ssd", "boxes-labels"])),
        "yolox" => (YOLOX, fitting(info, &["yolox"])),
        // Ultralytics writes any of these names, whatever the version of the model is. So the ports determine the decoder.
        "yolo" | "yolov5" | "yolov8" | "yolov9" | "yolov10" | "yolo11" | "yolov11" | "yolo12" | "yolov12" | "yolo26" | "yolov26" => {
            (YOLO, yolo_decoder(info, labels.len()))
        }
        "classification" | "label" => return classification(&keys, labels, info).map(Some),
        _ => {
            return Err(config(format!(
                "model_info has the model type `{model_type}`: expected one of SSD, YOLOX, YOLO, YOLOv5, YOLOv8 and later, Classification. Write a description for a model of another type"
            )));
        }
    };
    let Some(decoder) = decoder else {
        let outputs = info.outputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(config(format!(
            "model_info has the model type `{model_type}`, but no decoder of that kind reads the model's outputs, {outputs}"
        )));
    };
    let mut draft = Draft::default();
    draft.about.push(format!("This detector is described by model_info in the model file (model_type {model_type})."));
    draft.top.set("task", "detection");
    fill_input(&mut draft, &keys, info, &defaults)?;
    let output = &mut draft.output;
    output.set("decoder", decoder);
    let why = "the default of Model API";
    match keys.number("confidence_threshold")? {
        Some(threshold) => output.set("threshold", threshold),
        None => output.assume("threshold", defaults.threshold, why),
    }
    if let Some(default) = defaults.iou_threshold.filter(|_| decoder != "yolov10") {
        match keys.number("iou_threshold")? {
            Some(threshold) => output.set("iou-threshold", threshold),
            None => output.assume("iou-threshold", default, why),
        }
    }
    if !labels.is_empty() {
        output.set("labels", Value::Texts(labels));
    }
    Ok(Some(Found { from: FROM, draft, open: Vec::new() }))
}

const FROM: &str = "model_info in the model file";

/// Returns the decoder of a YOLO model. The model must have one output table; the number of its columns determines the decoder.
fn yolo_decoder(info: &ModelInfo, n_labels: usize) -> Option<&'static str> {
    let [output] = &*info.outputs else { return None };
    let extents = extents(output);
    let &[_, Some(n_rows), Some(n_columns)] = &*extents else { return None };
    match n_labels {
        0 => None,
        _ if n_rows == 4 + n_labels => Some("yolov8"),
        _ if n_columns == 5 + n_labels && n_rows != 300 => Some("yolov5"),
        _ if n_columns == 6 => Some("yolov10"),
        _ => None,
    }
}

fn classification(keys: &Keys<'_>, labels: Vec<String>, info: &ModelInfo) -> Result<Found> {
    if keys.flag("hierarchical") == Some(true) {
        return Err(config("model_info has hierarchical labels, which are not supported".to_owned()));
    }
    let mut draft = Draft::default();
    draft.about.push("This classifier is described by model_info in the model file.".to_owned());
    draft.top.set("task", "classification");
    fill_input(&mut draft, keys, info, &PLAIN)?;
    let output = &mut draft.output;
    // These exporters may add outputs that explain the results. The additional outputs are not decoded.
    let explains = |name: &str| ["saliency_map", "feature_vector"].contains(&name);
    let answers: Vec<&str> = info.outputs.iter().map(|port| port.name()).filter(|name| !explains(name)).collect();
    match &*answers {
        [_] if info.outputs.len() == 1 => {}
        [answer] => output.set("tensor", *answer),
        _ => {
            return Err(config(format!("model_info describes a classifier: expected one output of scores, got {}", answers.join(", "))));
        }
    }
    if keys.flag("multilabel") == Some(true) {
        output.set("decoder", "multi-label");
        output.assume("activation", "sigmoid", "Model API treats scores of multi-label models as logits");
        match keys.number("confidence_threshold")? {
            Some(threshold) => output.set("threshold", threshold),
            None => output.assume("threshold", 0.5, "the default of Model API"),
        }
    } else {
        output.set("decoder", "classes");
        output.assume(
            "activation",
            "softmax",
            "exporters that write model_info omit the softmax; set `none` if the model includes a softmax",
        );
    }
    if !labels.is_empty() {
        output.set("labels", Value::Texts(labels));
    }
    Ok(Found { from: FROM, draft, open: Vec::new() })
}

fn fill_input(draft: &mut Draft, keys: &Keys<'_>, info: &ModelInfo, defaults: &Defaults) -> Result<()> {
    if keys.flag("embedded_processing") == Some(true) {
        return Err(config(
            "model_info sets embedded_processing, which is not supported: export the model without embedded processing".to_owned(),
        ));
    }
    let Some(port) = info.inputs.first() else { return Err(config("the model has no input".to_owned())) };
    let why = "the default of Model API for such models";
    let input = &mut draft.input;
    match keys.flag("reverse_input_channels") {
        // Model API reads images as BGR, so a model with `reverse_input_channels` expects RGB.
        Some(is_reversed) => input.set("color", if is_reversed { "rgb" } else { "bgr" }),
        None => input.assume("color", defaults.color, why),
    }
    let layout = match keys.get("layout").and_then(|text| text.rsplit(':').next()) {
        Some(layout) if ["NCHW", "NHWC"].contains(&layout) => Some(layout.to_ascii_lowercase()),
        _ => layout_of(port).map(str::to_owned),
    };
    let layout = layout.ok_or_else(|| config(format!("expected an image input, got {port}")))?;
    input.set("layout", &*layout);
    let resize = match keys.get("resize_type") {
        None => {
            input.assume("resize", defaults.resize, why);
            defaults.resize
        }
        Some(resize_type) => {
            let resize = match resize_type {
                "crop" => "crop",
                "standard" => "stretch",
                "fit_to_window" => "letterbox-top-left",
                "fit_to_window_letterbox" => "letterbox",
                _ => return Err(wrong("resize_type", "crop, standard, fit_to_window or fit_to_window_letterbox", resize_type)),
            };
            input.set("resize", resize);
            resize
        }
    };
    if resize.starts_with("letterbox") {
        match keys.number("pad_value")? {
            Some(pad) => input.set("pad", pad),
            None => input.assume("pad", defaults.pad, why),
        }
    }
    if let Some(mean) = keys.numbers("mean_values")? {
        input.set("mean", Value::Numbers(mean));
    }
    match (keys.numbers("scale_values")?, defaults.scale) {
        (Some(scale), _) => input.set("scale", Value::Numbers(scale)),
        (None, Some(scale)) => input.assume("scale", Value::Numbers(vec![scale]), why),
        (None, None) => {}
    }
    if leaves_size_open(port, &layout) {
        return Err(config(format!(
            "the model's input {port} has a dynamic size, and model_info has no size: export the model with a fixed size"
        )));
    }
    Ok(())
}
