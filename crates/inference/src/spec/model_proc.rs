//! Reads DL Streamer's model-proc files (`json_schema_version` 2.0 to 2.2) and converts them to a description.
//!
//! The format is defined on the page "Model-proc file" of DL Streamer's documentation. Options that roiflow does not support are
//! errors.

use serde::Deserialize;

use super::config;
use super::deduce;
use super::draft::{Draft, Section, Value};
use crate::runtime::{ModelInfo, Result};

/// Whether a JSON file is a model-proc file.
pub(super) fn is_one(text: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(text)
        .is_ok_and(|file| file.get("output_postproc").is_some() || file.get("input_preproc").is_some())
}

#[derive(Deserialize)]
struct File {
    json_schema_version: Option<String>,
    #[serde(default)]
    input_preproc: Vec<Input>,
    #[serde(default)]
    output_postproc: Vec<Output>,
}

#[derive(Deserialize)]
struct Input {
    format: Option<String>,
    #[serde(default)]
    params: Params,
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(deny_unknown_fields)]
struct Params {
    resize: Option<String>,
    crop: Option<String>,
    color_space: Option<String>,
    range: Option<[f32; 2]>,
    mean: Option<Vec<f32>>,
    std: Option<Vec<f32>>,
    padding: Option<Padding>,
    /// Factor of the size in an input of format `image_info`. Only 1 is supported.
    scale: Option<f32>,
}

#[derive(Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Padding {
    #[serde(default)]
    stride: u32,
    #[serde(default)]
    stride_x: u32,
    #[serde(default)]
    stride_y: u32,
    #[serde(default)]
    fill_value: Vec<f32>,
}

/// The keys of an output converter that roiflow reads. Other keys are ignored. For example, the supported exports of YOLO models do not
/// need the anchors in the file.
#[derive(Deserialize)]
struct Output {
    converter: Option<String>,
    method: Option<String>,
    attribute_name: Option<String>,
    layer_name: Option<String>,
    #[serde(default)]
    layer_names: Vec<String>,
    labels: Option<Labels>,
    #[serde(alias = "confidence_threshold")]
    threshold: Option<f32>,
    iou_threshold: Option<f32>,
    text_scale: Option<f32>,
    /// Widths and heights, of all grids.
    #[serde(default)]
    anchors: Vec<f32>,
    /// Indexes of the anchors of each grid.
    #[serde(default, alias = "mask")]
    masks: Vec<usize>,
    #[serde(default)]
    do_cls_softmax: bool,
    #[serde(default)]
    output_sigmoid_activation: bool,
}

#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum Labels {
    List(Vec<String>),
    File(String),
}

/// The supported converters, in the order in which messages list them.
const CONVERTERS: &str = "detection_output, boxes_labels, boxes, mask_rcnn, yolo_v2, yolo_v3, yolo_v4, yolo_v5, yolo_v7, yolo_v8, yolo_v10, yolo_v11, yolo_v26, yolo_x, centerface, label, text, raw_data_copy";

/// Converts a model-proc file to a draft of a description.
///
/// # Errors
/// Returns `Config` if the file is not a model-proc file, or uses unsupported options.
pub(super) fn read(text: &str, info: &ModelInfo) -> Result<Draft> {
    let file: File = serde_json::from_str(text).map_err(|error| config(error.to_string()))?;
    match file.json_schema_version.as_deref() {
        None => {}
        Some(version) if ["2.0", "2.1", "2.2"].iter().any(|known| version == *known || version.starts_with(&format!("{known}."))) => {}
        Some(version) => return Err(config(format!("`json_schema_version`: expected 2.0.0 to 2.2.0, got `{version}`"))),
    }
    let mut draft = Draft::default();
    draft.about.push("Converted from a model-proc file of DL Streamer.".to_owned());
    draft.top.set("task", "detection");
    input(&file.input_preproc, info, &mut draft.input)?;
    match &*file.output_postproc {
        [] => by_ports(info, &mut draft),
        [only] => {
            let tensor = if info.outputs.len() > 1 { only.tensor(info)? } else { None };
            let is_detection = converted(only, info, &mut draft.output, tensor)?;
            draft.top.set("task", if is_detection { "detection" } else { "classification" });
            if let Some(name) = only.attribute_name.as_deref().filter(|_| !is_detection) {
                draft.top.set("name", name);
            }
        }
        several => {
            draft.top.set("task", "classification");
            for (output_idx, output) in several.iter().enumerate() {
                let mut head = Section::default();
                let name =
                    output.attribute_name.clone().or_else(|| output.layer_name.clone()).unwrap_or_else(|| format!("output{output_idx}"));
                head.set("name", &*name);
                let tensor = output.tensor(info)?;
                if tensor.is_none() {
                    return Err(config(format!("`output_postproc`: expected a `layer_name` in each of {} converters", several.len())));
                }
                let is_detection = converted(output, info, &mut head, tensor).map_err(|error| error.context(format!("`{name}`")))?;
                if is_detection {
                    return Err(config("`output_postproc`: expected one converter of a detector, or several of classifiers".to_owned()));
                }
                draft.heads.push(head);
            }
        }
    }
    Ok(draft)
}

fn input(inputs: &[Input], info: &ModelInfo, section: &mut Section) -> Result<()> {
    // The names and shapes of the other inputs show their values, see `model_inputs.rs`.
    const OF_NUMBERS: [&str; 2] = ["image_info", "sequence_index"];
    let format = |input: &Input| input.format.clone().unwrap_or_else(|| "image".to_owned());
    if let Some(other) = inputs.iter().map(format).find(|format| format != "image" && !OF_NUMBERS.contains(&&**format)) {
        return Err(config(format!("`input_preproc` has an input of format `{other}`: expected image, image_info or sequence_index")));
    }
    let images: Vec<&Input> = inputs.iter().filter(|input| format(input) == "image").collect();
    let none = Params::default();
    let params = match images[..] {
        [] => &none,
        [input] => &input.params,
        ref several => return Err(config(format!("`input_preproc`: expected one image, got {}", several.len()))),
    };
    let wrong = |key: &str, expected: &str, got: &str| config(format!("`input_preproc` `{key}`: expected {expected}, got `{got}`"));
    if let Some(scale) = inputs.iter().find_map(|input| input.params.scale.filter(|scale| *scale != 1.0)) {
        return Err(wrong("scale", "1", &scale.to_string()));
    }
    match params.color_space.as_deref() {
        None => section.assume("color", "bgr", "the default of DL Streamer"),
        Some("RGB") => section.set("color", "rgb"),
        Some("BGR") => section.set("color", "bgr"),
        Some("GRAYSCALE" | "GRAY") => section.set("color", "gray"),
        Some(other) => return Err(wrong("color_space", "RGB, BGR or GRAYSCALE", other)),
    }
    if let Some(layout) = info.inputs.first().and_then(deduce::layout_of) {
        section.set("layout", layout);
    }
    let crops = match params.crop.as_deref() {
        None => false,
        Some("central" | "central-resize") => true,
        Some(other) => {
            return Err(wrong("crop", "central or central-resize, because roiflow crops images only around their center", other));
        }
    };
    let resize = match (params.resize.as_deref(), crops) {
        (None | Some("no-aspect-ratio"), false) => "stretch",
        (Some("aspect-ratio"), false) => "letterbox",
        (Some("aspect-ratio-pad"), false) => "letterbox-top-left",
        (Some("aspect-ratio"), true) => "crop",
        (Some("no"), _) => {
            return Err(wrong("resize", "aspect-ratio, aspect-ratio-pad or no-aspect-ratio, because images are always resized", "no"));
        }
        (None | Some("no-aspect-ratio" | "aspect-ratio-pad"), true) => {
            return Err(wrong("crop", "this key only together with `resize`: aspect-ratio", params.crop.as_deref().unwrap_or_default()));
        }
        (Some(other), _) => return Err(wrong("resize", "aspect-ratio, aspect-ratio-pad or no-aspect-ratio", other)),
    };
    match resize {
        "crop" => section.assume(
            "resize",
            resize,
            "DL Streamer crops less: it scales the image to fit, enlarges it by an eighth, and crops the excess",
        ),
        _ => section.set("resize", resize),
    }
    if let Some(padding) = &params.padding {
        if (padding.stride, padding.stride_x, padding.stride_y) != (0, 0, 0) {
            return Err(config(
                "`input_preproc` `padding`: expected no `stride`, because borders of a fixed width are not supported".to_owned(),
            ));
        }
        let equal = padding.fill_value.windows(2).all(|pair| pair[0] == pair[1]);
        match padding.fill_value.first() {
            Some(value) if equal && (0.0..=255.0).contains(value) => section.set("pad", *value),
            Some(_) => {
                let got = format!("{:?}", padding.fill_value);
                return Err(wrong("fill_value", "one value from 0 to 255 for all channels", &got));
            }
            None => {}
        }
    }
    if resize.starts_with("letterbox") && section.get("pad").is_none() {
        section.assume("pad", 0.0, "the default of DL Streamer");
    }
    normalization(params, section)
}

/// Combines `range`, `mean` and `std` into one mean and scale. `range` maps 0 to 255 to another range, then `mean` is subtracted, and the
/// difference is divided by `std`.
fn normalization(params: &Params, section: &mut Section) -> Result<()> {
    let [low, high] = params.range.unwrap_or([0.0, 255.0]).map(f64::from);
    let unit = (high - low) / 255.0;
    if !(unit.is_finite() && unit != 0.0) {
        return Err(config(format!("`input_preproc` `range`: expected two different numbers, got {low} and {high}")));
    }
    let (mean, std) = match (&params.mean, &params.std) {
        (None, None) => (vec![0.0], vec![1.0]),
        (Some(mean), Some(std)) if mean.len() == std.len() && [1, 3].contains(&mean.len()) && !std.contains(&0.0) => {
            (mean.clone(), std.clone())
        }
        _ => {
            return Err(config(
                "`input_preproc`: expected `mean` and `std` together, one number for each channel, and no `std` of 0".to_owned(),
            ));
        }
    };
    let mean: Vec<f32> = mean.iter().map(|&mean| ((f64::from(mean) - low) / unit) as f32).collect();
    let scale: Vec<f32> = std.iter().map(|&std| (f64::from(std) / unit) as f32).collect();
    if mean.iter().any(|&mean| mean != 0.0) {
        section.set("mean", Value::Numbers(mean));
    }
    if scale.iter().any(|&scale| scale != 1.0) {
        section.set("scale", Value::Numbers(scale));
    }
    Ok(())
}

/// Sets the decoder for a file without converters, as DL Streamer does: SSD if the outputs match, otherwise raw outputs.
fn by_ports(info: &ModelInfo, draft: &mut Draft) {
    let why = "`output_postproc` is empty: the default of DL Streamer for such outputs";
    match deduce::fitting(info, &["ssd", "boxes-labels"]) {
        Some(decoder) => draft.output.assume("decoder", decoder, why),
        None => {
            draft.top.set("task", "classification");
            draft.output.assume("decoder", "custom", why);
        }
    }
}

impl Output {
    /// Writes the anchors: one list for each grid, finest first. Without `masks`, there is one grid, and anchors are in cells.
    fn set_anchors(&self, info: &ModelInfo, section: &mut Section) -> Result<()> {
        let (sizes, rest) = self.anchors.as_chunks::<2>();
        let wrong = |expected: &str| config(format!("`anchors`: expected {expected}, got {:?} and masks {:?}", self.anchors, self.masks));
        if sizes.is_empty() || !rest.is_empty() {
            return Err(wrong("a width and a height for each anchor"));
        }
        let mut lists: Vec<Vec<[f32; 2]>> = if self.masks.is_empty() {
            // All published models of YOLOv2 have cells of 32 pixels.
            vec![sizes.iter().map(|size| size.map(|cells| cells * 32.0)).collect()]
        } else {
            let n_grids = info.outputs.len().max(1);
            if !self.masks.len().is_multiple_of(n_grids) || self.masks.iter().any(|mask| *mask >= sizes.len()) {
                return Err(wrong("as many indexes of anchors in `masks` for each output of the model"));
            }
            self.masks.chunks(self.masks.len() / n_grids).map(|masks| masks.iter().map(|mask| sizes[*mask]).collect()).collect()
        };
        let area = |anchors: &[[f32; 2]]| anchors.iter().map(|[width, height]| width * height).sum::<f32>();
        lists.sort_by(|one, other| area(one).total_cmp(&area(other)));
        section.set("anchors", Value::Anchors(lists));
        if self.do_cls_softmax {
            section.set("softmax", true);
        }
        if !self.output_sigmoid_activation {
            section.set("activated", true);
        }
        Ok(())
    }

    /// Returns the name of the model output that this converter reads.
    fn tensor(&self, info: &ModelInfo) -> Result<Option<String>> {
        let name = match (&self.layer_name, &*self.layer_names) {
            (Some(name), []) => name,
            (None, [name]) => name,
            _ => return Ok(None),
        };
        // `layer_name` names a layer. Some model converters name a port after its layer and append the number of the port.
        let is_it = |known: &str| known == name || known.strip_prefix(&**name).is_some_and(|rest| rest.starts_with([':', '/']));
        let found = info.outputs.iter().flat_map(|port| &port.names).find(|known| is_it(known));
        let names = || info.outputs.iter().map(|port| format!("`{}`", port.name())).collect::<Vec<_>>().join(", ");
        found
            .map(|name| Some(name.to_string()))
            .ok_or_else(|| config(format!("the model has no output `{name}`: expected one of {}", names())))
    }
}

/// Writes the decoder that corresponds to a converter into the section. Returns whether the converter is one of a detector.
fn converted(output: &Output, info: &ModelInfo, section: &mut Section, tensor: Option<String>) -> Result<bool> {
    let Some(converter) = output.converter.as_deref() else {
        return Err(config(format!("`output_postproc`: expected a `converter`, one of {CONVERTERS}")));
    };
    let decoder = match converter {
        "detection_output" | "tensor_to_bbox_ssd" => Some("ssd"),
        "boxes_labels" | "boxes" | "tensor_to_bbox_atss" => Some("boxes-labels"),
        // Only exports in which the anchors are already applied are supported. These exports have a single output table.
        "yolo_v5" => deduce::fitting(info, &["yolov5"]),
        "yolo_v7" => Some("yolov5"),
        "yolo_v8" | "yolo_v11" => Some("yolov8"),
        "yolo_v10" | "yolo_v26" => Some("yolov10"),
        "yolo_x" => Some("yolox"),
        "centerface" => Some("centerface"),
        "yolo_v2" | "yolo_v3" | "yolo_v4" | "tensor_to_bbox_yolo_v2" | "tensor_to_bbox_yolo_v3" => Some("yolo-anchors"),
        "mask_rcnn" => deduce::fitting(info, &["boxes-masks"]),
        _ => None,
    };
    let mut labels = output.labels.clone();
    if let Some(decoder) = decoder {
        section.set("decoder", decoder);
        if decoder == "yolo-anchors" {
            output.set_anchors(info, section)?;
        } else if decoder == "boxes-masks" {
            section.set("mask-area", "box");
        }
        match output.threshold {
            Some(threshold) => section.set("threshold", threshold),
            None => section.assume("threshold", 0.5, "the default of gvadetect"),
        }
        let is_listed = ["ssd", "boxes-labels", "boxes-masks", "yolov10"].contains(&decoder);
        if let Some(threshold) = output.iou_threshold.filter(|_| !is_listed) {
            section.set("iou-threshold", threshold);
        }
    } else {
        if let Some(tensor) = tensor {
            section.set("tensor", &*tensor);
        }
        match (converter, output.method.as_deref()) {
            ("label" | "tensor_to_label", None | Some("max")) => {
                section.set("decoder", "classes");
                section.set("activation", "none");
            }
            ("label" | "tensor_to_label", Some("softmax")) => {
                section.set("decoder", "classes");
                section.set("activation", "softmax");
            }
            ("label" | "tensor_to_label", Some(method @ ("multi" | "compound"))) => {
                section.set("decoder", "multi-label");
                section.set("activation", "none");
                match output.threshold {
                    Some(threshold) => section.set("threshold", threshold),
                    None => section.assume("threshold", 0.5, "the default of DL Streamer"),
                }
                if let (Some(Labels::List(pairs)), "compound") = (&labels, method) {
                    let present: Vec<String> = pairs.iter().step_by(2).cloned().collect();
                    section.assume(
                        "labels",
                        Value::Texts(present),
                        "of each pair of labels, the first label is reported if it applies, otherwise none",
                    );
                    labels = None;
                }
            }
            ("label" | "tensor_to_label", Some("index")) => section.set("decoder", "text-indexes"),
            ("label" | "tensor_to_label", Some(method)) => {
                return Err(config(format!(
                    "converter `label`: expected the method max, softmax, multi, compound or index, got `{method}`"
                )));
            }
            ("text" | "tensor_to_text", _) => {
                section.set("decoder", "regression");
                section.set("scale", output.text_scale.unwrap_or(1.0));
                labels = None;
            }
            ("raw_data_copy", _) => {
                section.set("decoder", "custom");
                labels = None;
            }
            ("mask_rcnn", _) => {
                return Err(config(format!(
                    "converter `mask_rcnn`: expected outputs [N, 5], [N] and [N, h, w], got {}. Write a description with a decoder that reads these outputs",
                    info.outputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
                )));
            }
            (keypoints, _) if keypoints.contains("keypoints") => {
                return Err(config(format!(
                    "converter `{keypoints}` is not supported: write a description with a decoder of keypoints (`yolov8-pose`, `simcc`, `movenet`, `landmarks`), or use `decoder = \"custom\"` for raw outputs"
                )));
            }
            _ => return Err(config(format!("converter `{converter}` is not supported for these outputs: expected one of {CONVERTERS}"))),
        }
    }
    match labels {
        Some(Labels::List(labels)) => section.set("labels", Value::Texts(labels)),
        Some(Labels::File(file)) => section.set("labels-file", &*file),
        None => {}
    }
    Ok(decoder.is_some())
}
