//! Reads configuration files that training frameworks write next to a model: `config.json` and `preprocessor_config.json` of Hugging Face
//! Transformers, `config.json` of timm, and `inference.yml` or `config.yml` of PaddleOCR's recognizers.
//!
//! Files of other kinds are ignored. The ports of the model decide the layout and the size.

use std::path::Path;

use serde_json::Value as Json;

use super::super::config;
use super::super::draft::{Draft, Value};
use super::{Found, layout_of, leaves_size_open};
use crate::model_inputs::ModelInputs;
use crate::runtime::{Dim, ModelInfo, Result, files};

/// Transformers whose last class is "no object", and whose class scores are a distribution.
const WITH_NO_OBJECT: [&str; 4] =
    ["DetrForObjectDetection", "YolosForObjectDetection", "TableTransformerForObjectDetection", "DetrForSegmentation"];

/// Deduces a description from a configuration file next to the model; `None` if there is no such file, or if the outputs of the model
/// contradict it: the file may belong to another model of the folder.
///
/// # Errors
/// Returns `Config` if a file of a known kind has invalid values.
pub(super) fn read(model: &Path, info: &ModelInfo) -> Result<Option<Found>> {
    let folder = model.parent().unwrap_or(Path::new(""));
    let text = |name: &str| files::read_text(&folder.join(name), files::MAX_DESCRIPTION_BYTES, "configuration").ok();
    let json = |name: &str| text(name).and_then(|text| serde_json::from_str::<Json>(&text).ok());
    let mut draft = Draft::default();
    let from = if let Some(configuration) = json("config.json") {
        if let Some(of_timm) = configuration.get("pretrained_cfg").filter(|of_timm| of_timm.is_object()) {
            timm(&configuration, of_timm, &mut draft);
            "the file `config.json` of timm next to the model"
        } else if let Some(architecture) = configuration["architectures"][0].as_str() {
            let preprocessor = json("preprocessor_config.json").unwrap_or_default();
            if !transformers(architecture, &configuration, &preprocessor, &mut draft)? {
                return Ok(None);
            }
            "the files `config.json` and `preprocessor_config.json` of Transformers next to the model"
        } else {
            return Ok(None);
        }
    } else if let Some(characters) = ["inference.yml", "config.yml"].iter().find_map(|name| characters(&text(name)?)) {
        recognizer(characters, &mut draft);
        "the configuration file of PaddleOCR next to the model"
    } else {
        return Ok(None);
    };
    if !fits(&draft, info) {
        return Ok(None);
    }
    let mut open = Vec::new();
    if let Some(port) = ModelInputs::of(&info.inputs).map(|inputs| &info.inputs[inputs.image]) {
        let layout = layout_of(port).unwrap_or("nchw");
        draft.input.set("layout", layout);
        if leaves_size_open(port, layout) && draft.input.get("size").is_none() {
            open.push(format!("the model's input {port} has a dynamic size, and the configuration has no size: set `size` in [input]"));
            draft.input.leave("size", Value::Wholes(vec![224, 224]), "Width and height of the input.");
        }
    }
    Ok(Some(Found { from, draft, open }))
}

/// Whether the model has an output for the classes, and one for the boxes of a detector.
fn fits(draft: &Draft, info: &ModelInfo) -> bool {
    let has = |n: usize| {
        let may_be = |dim: &Dim| dim.is_open() || *dim == Dim::Fixed(n);
        info.outputs.iter().any(|port| port.shape.dims().is_empty() || port.shape.dims().iter().skip(1).any(may_be))
    };
    // A detector has a class more if it has one for no object, a recognizer one or two for the blank and the space.
    let (is_detector, n_more) = match draft.output.get("decoder") {
        Some(Value::Text(decoder)) if decoder == "detr" => (true, 1),
        Some(Value::Text(decoder)) if decoder == "ctc" => (false, 2),
        _ => (false, 0),
    };
    let n_labels = match draft.output.get("labels") {
        Some(Value::Texts(labels)) => labels.len(),
        _ => 0,
    };
    (!is_detector || has(4)) && (n_labels == 0 || (n_labels..=n_labels + n_more).any(has))
}

fn numbers(value: &Json) -> Option<Vec<f32>> {
    value.as_array()?.iter().map(|number| number.as_f64().map(|number| number as f32)).collect()
}

/// Sets `mean` and `scale` for values `(pixel * factor - mean) / std`.
fn normalization(factor: f64, mean: Option<Vec<f32>>, std: Option<Vec<f32>>, draft: &mut Draft) {
    let in_pixels = |values: Vec<f32>| Value::Numbers(values.into_iter().map(|value| (f64::from(value) / factor) as f32).collect());
    if let Some(mean) = mean.filter(|mean| mean.iter().any(|value| *value != 0.0)) {
        draft.input.set("mean", in_pixels(mean));
    }
    draft.input.set("scale", in_pixels(std.unwrap_or_else(|| vec![1.0])));
}

/// Sets the resizing of images whose center is used.
fn center(draft: &mut Draft) {
    draft.input.assume(
        "resize",
        "crop",
        "the configuration scales the shorter side and crops the center; a margin (`crop_pct`) is not kept",
    );
}

fn timm(configuration: &Json, of_model: &Json, draft: &mut Draft) {
    draft.about.push("A classifier of timm.".to_owned());
    draft.top.set("task", "classification");
    draft.input.set("color", if of_model["input_size"][0].as_u64() == Some(1) { "gray" } else { "rgb" });
    center(draft);
    draft.input.assume("antialias", true, "timm resizes with Pillow");
    normalization(1.0 / 255.0, numbers(&of_model["mean"]), numbers(&of_model["std"]), draft);
    if let (Some(height), Some(width)) = (of_model["input_size"][1].as_u64(), of_model["input_size"][2].as_u64()) {
        draft.input.set("size", Value::Wholes(vec![width, height]));
    }
    draft.output.set("decoder", "classes");
    draft.output.assume("activation", "softmax", "models of timm output logits");
    let names = [configuration, of_model].into_iter().find_map(|of| of["label_names"].as_array());
    if let Some(names) = names.and_then(|names| names.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()) {
        draft.output.set("labels", Value::Texts(names));
    }
}

/// Returns false for an architecture of another kind.
fn transformers(architecture: &str, configuration: &Json, preprocessor: &Json, draft: &mut Draft) -> Result<bool> {
    let is_detector = architecture.ends_with("ForObjectDetection");
    if !is_detector && !architecture.ends_with("ForImageClassification") {
        return Ok(false);
    }
    draft.about.push(format!("{architecture} of Hugging Face Transformers."));
    draft.top.set("task", if is_detector { "detection" } else { "classification" });
    draft.input.set("color", "rgb");
    let flag = |key: &str| preprocessor[key].as_bool().unwrap_or(true);
    let (size, crop) = (&preprocessor["size"], &preprocessor["crop_size"]);
    let side = |of: &Json, key: &str| of[key].as_u64().or_else(|| of.as_u64());
    let crops = preprocessor["do_center_crop"].as_bool() == Some(true) || (!is_detector && !size["shortest_edge"].is_null());
    if crops {
        center(draft);
    } else {
        draft.input.assume("resize", "stretch", "the configuration resizes images to this size");
    }
    draft.input.assume("antialias", true, "Transformers resizes with Pillow");
    let of_input = if crops && !crop.is_null() { crop } else { size };
    let shortest = of_input["shortest_edge"].as_u64();
    if let (Some(width), Some(height)) = (side(of_input, "width").or(shortest), side(of_input, "height").or(shortest)) {
        draft.input.set("size", Value::Wholes(vec![width, height]));
    }
    let factor = if flag("do_rescale") { preprocessor["rescale_factor"].as_f64().unwrap_or(1.0 / 255.0) } else { 1.0 };
    let of_channels = |key: &str| numbers(&preprocessor[key]).filter(|_| flag("do_normalize"));
    normalization(factor, of_channels("image_mean"), of_channels("image_std"), draft);
    let labels = labels(&configuration["id2label"])?;
    if is_detector {
        draft.output.set("decoder", "detr");
        if WITH_NO_OBJECT.contains(&architecture) {
            draft.output.assume("background", Value::Whole(labels.len() as u64), "the last class of this architecture is no object");
        }
    } else if configuration["problem_type"].as_str() == Some("multi_label_classification") {
        draft.output.set("decoder", "multi-label");
    } else {
        draft.output.set("decoder", "classes");
        draft.output.assume("activation", "softmax", "models of Transformers output logits");
    }
    if !labels.is_empty() {
        draft.output.set("labels", Value::Texts(labels));
    }
    Ok(true)
}

/// Reads names by number: `{"0": "cat", "1": "dog"}`.
fn labels(by_number: &Json) -> Result<Vec<String>> {
    let wrong = || config("`id2label` in `config.json`: expected the names of classes 0, 1, 2 and so on".to_owned());
    let Some(pairs) = by_number.as_object() else { return Ok(Vec::new()) };
    (0..pairs.len()).map(|class| pairs.get(&class.to_string()).and_then(Json::as_str).map(str::to_owned).ok_or_else(wrong)).collect()
}

fn recognizer(characters: Vec<String>, draft: &mut Draft) {
    let why = "recognizers of PaddleOCR preprocess images this way";
    draft.about.push("A recognizer of PaddleOCR.".to_owned());
    draft.top.set("task", "classification");
    draft.top.set("name", "text");
    let input = &mut draft.input;
    input.assume("color", "bgr", why);
    input.assume("resize", "letterbox-top-left", why);
    input.assume("pad", 127.5, why);
    input.assume("mean", Value::Numbers(vec![127.5]), why);
    input.assume("scale", Value::Numbers(vec![127.5]), why);
    input.assume("rotated", true, "if the detector gives rotated boxes, each line is rotated upright first");
    input.assume("size", Value::Wholes(vec![320, 48]), why);
    input.assume("widths", Value::Wholes(vec![640, 1280, 2560]), "longer lines run with a wider input");
    draft.output.set("decoder", "ctc");
    draft.output.set("labels", Value::Texts(characters));
}

/// Returns the list `character_dict` of a recognizer's configuration.
fn characters(text: &str) -> Option<Vec<String>> {
    let mut lines = text.lines().skip_while(|line| line.trim() != "character_dict:").skip(1);
    let item = |line: &str| line.trim_start().strip_prefix("- ").map(unquoted).or_else(|| (line.trim() == "-").then(String::new));
    let characters: Vec<String> = lines.by_ref().map_while(item).collect();
    (text.contains("CTCLabelDecode") && !characters.is_empty()).then_some(characters)
}

/// Returns the text of a YAML scalar.
fn unquoted(scalar: &str) -> String {
    let inner = |quote: char| scalar.trim().strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    match (inner('\''), inner('"')) {
        (Some(text), _) => text.replace("''", "'"),
        (_, Some(_)) => serde_json::from_str(scalar.trim()).unwrap_or_else(|_| scalar.trim().to_owned()),
        _ => scalar.trim_end_matches('\r').to_owned(),
    }
}
