//! The `[output]` of a model description: which decoder reads which output, with what thresholds and labels; as written, then as
//! understood and checked against the model's ports. And the decoders that an application adds to those that are built in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use serde::Deserialize;

use super::deduce::evidence;
use super::{Source, StageOptions, Task, WrittenTask, config};
use crate::did_you_mean;
use crate::frame::Size;
use crate::labels::Labels;
use crate::runtime::{Dim, Error, ModelInfo, Port, Result};
use crate::tensor;
use crate::vision::decode::{Activation, BoxDecoder, BoxOptions, BoxScheme, BoxThresholds, ClassDecoder, ClassScheme, Coordinates};
use crate::vision::nms::NmsMethod;

/// What one output of a classifier is asked for.
#[derive(Debug, Clone)]
pub struct Head {
    /// The attribute: the key in the JSON.
    pub name: Arc<str>,
    /// How its output is read.
    pub decoder: ClassDecoder,
    /// Which output.
    pub output_idx: usize,
    /// The least confidence that is reported.
    pub threshold: f32,
    /// Names of its classes.
    pub labels: Labels,
}

/// Decoders of the application's own, beside those that are built in.
static BOX_SCHEMES: RwLock<Vec<BoxDecoder>> = RwLock::new(Vec::new());
static CLASS_SCHEMES: RwLock<Vec<(String, Arc<dyn ClassScheme>)>> = RwLock::new(Vec::new());

/// Makes a way to read the outputs of detectors known to the stages and elements of this process: the `decoder` of this name in
/// descriptions that are read from then on. It goes before those of the same name, registered before or built in.
pub fn register_box_scheme(name: &str, scheme: Arc<dyn BoxScheme>) {
    let mut schemes = BOX_SCHEMES.write().unwrap();
    schemes.retain(|known| known.name() != name);
    schemes.push(BoxDecoder::new(name, scheme));
}

/// As [`register_box_scheme`], for the outputs of classifiers.
pub fn register_class_scheme(name: &str, scheme: Arc<dyn ClassScheme>) {
    let mut schemes = CLASS_SCHEMES.write().unwrap();
    schemes.retain(|(known, _)| known != name);
    schemes.push((name.to_owned(), scheme));
}

/// The most boxes that a detector can be asked for in one frame.
const MAX_BOXES: usize = 100_000;
/// The largest numbers of `weights`, `scale` and `offset`.
const MAX_NUMBER: f32 = 1e9;

/// The decoders of classifiers that are built in.
pub(super) const CLASS_DECODERS: [&str; 6] = ["classes", "multi-label", "expectation", "regression", "embedding", "custom"];

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct WrittenOutput {
    /// How outputs are read. Of detectors yolov5, yolov8, yolov10, yolox, ssd, boxes-scores, tf-ssd, nanodet, nanodet-plus, picodet,
    /// ultraface, yunet, scrfd, retinaface, centerface; of classifiers classes, multi-label, expectation, regression, embedding; of
    /// any model custom; or one that the application registered.
    decoder: Option<String>,
    /// What is less sure is left out, 0 to 1.
    threshold: Option<f32>,
    /// The names of the classes, in their order.
    labels: Option<Vec<String>>,
    /// A text file with the names of the classes, one per line, beside this file.
    labels_file: Option<PathBuf>,
    /// Of detectors: what overlaps a better box by more than this part of their union is suppressed, 0 to 1.
    iou_threshold: Option<f32>,
    /// Of detectors: at most so many boxes, the best.
    max_boxes: Option<usize>,
    /// Of detectors: what becomes of boxes that overlap a better one.
    nms: Option<WrittenNms>,
    /// Of `nms = "gaussian"`: the larger, the milder.
    nms_sigma: Option<f32>,
    /// Of detectors: whether boxes suppress each other whatever their classes.
    class_agnostic: Option<bool>,
    /// Of detectors that write boxes as they are: in pixels of the input, or in parts of its width and height.
    coordinates: Option<WrittenCoordinates>,
    /// Of boxes-scores: the class that stands for nothing.
    background: Option<u32>,
    /// Of detectors: which output is what, where shapes do not tell: names of outputs by their roles.
    #[serde(default)]
    tensors: BTreeMap<String, String>,
    /// Of classifiers: which output.
    tensor: Option<String>,
    /// Of classes and multi-label, and of detectors whose export leaves it out: what makes the scores probabilities.
    activation: Option<WrittenActivation>,
    /// Of expectation: the number that each bin stands for.
    weights: Option<Vec<f32>>,
    /// Of regression: what the number is multiplied by.
    scale: Option<f32>,
    /// Of regression: what is added then.
    offset: Option<f32>,
    /// Of embedding: whether the vector is divided by its length.
    normalize: Option<bool>,
    /// Of classifiers: several answers, instead of all these keys.
    #[serde(default)]
    heads: Vec<WrittenHead>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum WrittenNms {
    Hard,
    Linear,
    Gaussian,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum WrittenCoordinates {
    Pixels,
    Normalized,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum WrittenActivation {
    None,
    Softmax,
    Sigmoid,
    Bytes,
}

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenHead {
    /// The attribute: the key in the JSON.
    name: Option<String>,
    /// How the output is read: classes, multi-label, expectation, regression, embedding, custom, or one that the application registered.
    decoder: Option<String>,
    /// What is less sure is left out, 0 to 1.
    threshold: Option<f32>,
    /// The names of the classes, in their order.
    labels: Option<Vec<String>>,
    /// A text file with the names of the classes, one per line, beside this file.
    labels_file: Option<PathBuf>,
    /// Which output.
    tensor: Option<String>,
    /// Of classes and multi-label: what makes the scores probabilities.
    activation: Option<WrittenActivation>,
    /// Of expectation: the number that each bin stands for.
    weights: Option<Vec<f32>>,
    /// Of regression: what the number is multiplied by.
    scale: Option<f32>,
    /// Of regression: what is added then.
    offset: Option<f32>,
    /// Of embedding: whether the vector is divided by its length.
    normalize: Option<bool>,
}

/// What is known beside the description.
pub(super) struct Context<'a> {
    pub(super) options: &'a StageOptions,
    /// Of the description.
    pub(super) source: &'a Source,
    pub(super) info: &'a ModelInfo,
    pub(super) input_size: Size,
    /// What the model is called in results.
    pub(super) name: &'a Arc<str>,
}

impl WrittenOutput {
    /// The task, the labels of its classes, and how many classes the model tells apart (0: it does not say).
    pub(super) fn understood(&self, task: WrittenTask, context: &Context<'_>, assumed: &mut Vec<String>) -> Result<(Task, Labels, u32)> {
        match task {
            WrittenTask::Detection => self.detection(context, assumed),
            WrittenTask::Classification => self.classification(context, assumed),
        }
    }

    fn detection(&self, context: &Context<'_>, assumed: &mut Vec<String>) -> Result<(Task, Labels, u32)> {
        let Context { options, info, input_size, .. } = *context;
        if self.decoder.as_deref() == Some("custom") {
            return self.raw(context, assumed);
        }
        let shapes: Vec<Vec<usize>> = info.outputs.iter().map(extents).collect();
        let mut outputs: Vec<(&str, &[usize])> = info.outputs.iter().zip(&shapes).map(|(port, shape)| (port.name(), &**shape)).collect();
        let mut roles = Vec::new();
        for (role, tensor) in &self.tensors {
            let output_idx = output_named(info, tensor)?;
            if roles.iter().any(|(known, _)| *known == output_idx) {
                return Err(config(format!("[output] `tensors`: expected a different output for each role, got `{tensor}` twice")));
            }
            roles.push((output_idx, Arc::from(role.as_str())));
            outputs[output_idx].0 = role;
        }
        let mut decoder = self.box_decoder(&outputs, context, assumed)?;
        if let Some(coordinates) = self.coordinates {
            if decoder.default_coordinates().is_none() {
                return Err(foreign(decoder.name(), "coordinates", "it computes boxes from the cells of its grids or from priors"));
            }
            decoder = decoder.with_coordinates(match coordinates {
                WrittenCoordinates::Pixels => Coordinates::Pixels,
                WrittenCoordinates::Normalized => Coordinates::Normalized,
            });
        }
        if let Some(activation) = self.activation {
            let takes_it = decoder.takes_activation(&outputs, input_size);
            decoder = match activation {
                WrittenActivation::None => decoder,
                _ if !takes_it => return Err(foreign(decoder.name(), "activation", "its scores are expected to be probabilities")),
                WrittenActivation::Sigmoid => decoder.with_activation(Activation::Sigmoid),
                WrittenActivation::Softmax => decoder.with_activation(Activation::Softmax),
                WrittenActivation::Bytes => {
                    return Err(config("[output] `activation`: expected none, sigmoid or softmax of a detector, got bytes".to_owned()));
                }
            };
        }
        let name = decoder.name();
        let of_classifiers = self.only_head().given(|key| !["decoder", "threshold", "labels", "labels-file", "activation"].contains(&key));
        if let Some(key) = of_classifiers.or((!self.heads.is_empty()).then_some("heads")) {
            return Err(foreign(name, key, "it is one of classification"));
        }
        if self.background.is_some() && name != "boxes-scores" {
            return Err(foreign(name, "background", "it has no class that stands for nothing"));
        }
        if let Some(role) = self.tensors.keys().find(|role| !decoder.roles().contains(&role.as_str())) {
            let known = if decoder.roles().is_empty() { "none".to_owned() } else { decoder.roles().join(", ") };
            return Err(config(format!("[output] `tensors`: expected roles of decoder `{name}` ({known}), got `{role}`")));
        }
        let of_overlaps = self.given_of_detectors(|key| ["iou-threshold", "nms", "nms-sigma", "class-agnostic"].contains(&key));
        if let Some(key) = of_overlaps.filter(|_| !decoder.suppresses()) {
            return Err(foreign(name, key, "the boxes of its models do not overlap"));
        }
        let defaults = decoder.default_thresholds();
        let score = options.threshold.or(self.threshold).unwrap_or_else(|| {
            assumed.push(format!("[output] `threshold` is not given: {}", defaults.score));
            defaults.score
        });
        let thresholds = BoxThresholds {
            score: fraction("threshold", score)?,
            iou: fraction("iou-threshold", options.iou_threshold.or(self.iou_threshold).unwrap_or(defaults.iou))?,
            max_boxes: match self.max_boxes {
                Some(max_boxes) if !(1..=MAX_BOXES).contains(&max_boxes) => {
                    return Err(config(format!("[output] `max-boxes`: expected 1 to {MAX_BOXES}, got {max_boxes}")));
                }
                max_boxes => max_boxes.unwrap_or(defaults.max_boxes),
            },
            method: self.nms_method()?,
            class_agnostic: self.class_agnostic.unwrap_or(defaults.class_agnostic),
        };
        let n_classes = check_open(&decoder, &outputs, input_size).map_err(|error| contradiction(decoder.name(), &error))?;
        if let Some(background) = self.background.filter(|&background| n_classes > 0 && background >= n_classes) {
            return Err(config(format!("[output] `background`: expected a class from 0 to {}, got {background}", n_classes - 1)));
        }
        let labels = labels_of(context, Some(options), self.labels.as_deref(), self.labels_file.as_deref())?;
        Ok((Task::Detection { decoder, thresholds, class_scores: Vec::new(), roles }, labels, n_classes))
    }

    /// Outputs that are passed on as they are: of all keys `tensor` alone says something.
    fn raw(&self, context: &Context<'_>, assumed: &mut Vec<String>) -> Result<(Task, Labels, u32)> {
        let only = self.only_head();
        let others = only.given(|key| !["decoder", "tensor"].contains(&key)).or(self.given_of_detectors(|_| true));
        if let Some(key) = others.or((!self.heads.is_empty()).then_some("heads")) {
            return Err(foreign("custom", key, "its outputs are passed on as they are"));
        }
        let (heads, _) = only.understood(context, None, assumed)?;
        Ok((Task::Raw { heads }, Labels::default(), 0))
    }

    /// The keys that are those of a head, where the model has but one.
    fn only_head(&self) -> WrittenHead {
        WrittenHead {
            name: None,
            decoder: self.decoder.clone(),
            threshold: self.threshold,
            labels: self.labels.clone(),
            labels_file: self.labels_file.clone(),
            tensor: self.tensor.clone(),
            activation: self.activation,
            weights: self.weights.clone(),
            scale: self.scale,
            offset: self.offset,
            normalize: self.normalize,
        }
    }

    /// The first key of those of suppression and of single schemes that is given and wanted.
    fn given_of_detectors(&self, is_wanted: impl Fn(&str) -> bool) -> Option<&'static str> {
        let keys = [
            ("iou-threshold", self.iou_threshold.is_some()),
            ("max-boxes", self.max_boxes.is_some()),
            ("nms", self.nms.is_some()),
            ("nms-sigma", self.nms_sigma.is_some()),
            ("class-agnostic", self.class_agnostic.is_some()),
            ("coordinates", self.coordinates.is_some()),
            ("background", self.background.is_some()),
            ("tensors", !self.tensors.is_empty()),
        ];
        first_given(&keys, is_wanted)
    }

    /// The decoder that is named; else the only one that reads these outputs.
    fn box_decoder(&self, outputs: &[(&str, &[usize])], context: &Context<'_>, assumed: &mut Vec<String>) -> Result<BoxDecoder> {
        let options = BoxOptions { background: self.background };
        let registered = BOX_SCHEMES.read().unwrap().clone();
        if let Some(name) = &self.decoder {
            let own = registered.iter().find(|known| known.name() == name).cloned();
            return own.or_else(|| BoxDecoder::from_name(name, &options)).ok_or_else(|| {
                let mut names: Vec<&str> = BoxDecoder::names().chain(["custom"]).collect();
                names.extend(registered.iter().map(BoxDecoder::name));
                unknown_decoder("detection", name, &names)
            });
        }
        let built_in = BoxDecoder::names().filter_map(|name| BoxDecoder::from_name(name, &options));
        let shapes: Vec<Vec<usize>> = outputs.iter().map(|(_, shape)| shape.to_vec()).collect();
        let fits =
            |decoder: &BoxDecoder| evidence::reads_all(decoder.name(), &shapes) && decoder.check(outputs, context.input_size).is_ok();
        let mut fitting: Vec<BoxDecoder> = built_in.filter(fits).collect();
        match fitting.len() {
            1 if !evidence::has_rows_of(fitting[0].name(), &shapes, context.input_size) => {
                let name = fitting[0].name();
                let ports = context.info.outputs.iter().map(Port::to_string).collect::<Vec<_>>().join(", ");
                Err(config(format!(
                    "[output] `decoder` is not given, and the model's outputs, {ports}, have not as many rows as models of `{name}` at {}, the only one that could read them: say `decoder = \"{name}\"` if it is one, or another decoder",
                    context.input_size
                )))
            }
            1 => {
                let decoder = fitting.remove(0);
                assumed.push(format!("[output] `decoder` is not given: {}, the only one that reads such outputs", decoder.name()));
                Ok(decoder)
            }
            n_fitting => {
                let names: Vec<&str> =
                    if n_fitting == 0 { BoxDecoder::names().collect() } else { fitting.iter().map(BoxDecoder::name).collect() };
                let how_many = if n_fitting == 0 { "none" } else { "several" };
                let (names, ports) = (names.join(", "), context.info.outputs.iter().map(Port::to_string).collect::<Vec<_>>().join(", "));
                let message =
                    format!("[output] `decoder` is not given, and {how_many} fit the model's outputs, {ports}: expected one of {names}");
                Err(config(message))
            }
        }
    }

    fn nms_method(&self) -> Result<NmsMethod> {
        match (self.nms, self.nms_sigma) {
            (Some(WrittenNms::Gaussian), sigma) => {
                let sigma = sigma.unwrap_or(0.5);
                if !(sigma > 0.0 && sigma <= 1000.0) {
                    return Err(config(format!("[output] `nms-sigma`: expected a number larger than 0, up to 1000, got {sigma}")));
                }
                Ok(NmsMethod::Gaussian { sigma })
            }
            (_, Some(_)) => Err(config("[output] `nms-sigma` goes with `nms = \"gaussian\"` only".to_owned())),
            (Some(WrittenNms::Linear), None) => Ok(NmsMethod::Linear),
            (Some(WrittenNms::Hard) | None, None) => Ok(NmsMethod::Hard),
        }
    }

    fn classification(&self, context: &Context<'_>, assumed: &mut Vec<String>) -> Result<(Task, Labels, u32)> {
        if let Some(key) = self.given_of_detectors(|_| true) {
            return Err(foreign(self.decoder.as_deref().unwrap_or("heads"), key, "it is one of detection"));
        }
        let only = self.only_head();
        if self.heads.is_empty() {
            let (heads, n_classes) = only.understood(context, Some(context.options), assumed)?;
            let labels = heads[0].labels.clone();
            return Ok((Task::Classification { heads }, labels, n_classes));
        }
        if let Some(key) = only.given(|_| true) {
            return Err(config(format!("[output] has both `heads` and `{key}`: expected `{key}` in each of the heads")));
        }
        if context.options.labels.is_some() || context.options.labels_file.is_some() {
            return Err(config("labels were given for a model with several heads: expected them in its description".to_owned()));
        }
        let mut heads: Vec<Head> = Vec::new();
        for written in &self.heads {
            let Some(name) = written.name.as_deref().filter(|name| !name.is_empty()) else {
                return Err(config("[[output.heads]]: expected a `name` in each, the attribute's key in the JSON".to_owned()));
            };
            for head in written.understood(context, None, assumed).map_err(|error| error.context(format!("head `{name}`")))?.0 {
                if heads.iter().any(|known| known.name == head.name) {
                    return Err(config(format!("[[output.heads]]: expected names that differ, got `{}` twice", head.name)));
                }
                heads.push(head);
            }
        }
        Ok((Task::Classification { heads }, Labels::default(), 0))
    }
}

impl WrittenHead {
    /// The heads that this one stands for: one, but for `custom`, which takes every output that is not named otherwise. And how many
    /// classes the model tells apart. What the user asks for besides comes first, where there is one head only.
    fn understood(&self, context: &Context<'_>, options: Option<&StageOptions>, assumed: &mut Vec<String>) -> Result<(Vec<Head>, u32)> {
        let Context { info, .. } = *context;
        let decoder = self.class_decoder()?;
        let decoder_name = self.decoder.as_deref().unwrap_or_default();
        let output_idxs = match &self.tensor {
            Some(tensor) => vec![output_named(info, tensor)?],
            None if info.outputs.len() == 1 => vec![0],
            None if matches!(decoder, ClassDecoder::Raw) => (0..info.outputs.len()).collect(),
            None => {
                return Err(config(format!(
                    "the model has {} outputs: say which one with `tensor` in [output] (one of {}), or give each a head",
                    info.outputs.len(),
                    output_names(info)
                )));
            }
        };
        let threshold = options.and_then(|options| options.threshold).or(self.threshold);
        let threshold = threshold.unwrap_or_else(|| match decoder {
            ClassDecoder::MultiLabel { .. } => {
                assumed.push("[output] `threshold` is not given: 0.5".to_owned());
                0.5
            }
            _ => 0.0,
        });
        let threshold = fraction("threshold", threshold)?;
        let labels = labels_of(context, options, self.labels.as_deref(), self.labels_file.as_deref())?;
        let (mut heads, mut n_classes) = (Vec::new(), 0);
        for &output_idx in &output_idxs {
            let port = &info.outputs[output_idx];
            n_classes = decoder.check(port.name(), &extents(port)).map_err(|error| contradiction(decoder_name, &error))?;
            check_labels(&labels, n_classes)?;
            let own = self.name.as_deref().unwrap_or(context.name);
            let name = Arc::from(if output_idxs.len() == 1 { own } else { port.name() });
            heads.push(Head { name, decoder: decoder.clone(), output_idx, threshold, labels: labels.clone() });
        }
        Ok((heads, n_classes))
    }

    fn class_decoder(&self) -> Result<ClassDecoder> {
        let registered = CLASS_SCHEMES.read().unwrap();
        let names = || CLASS_DECODERS.into_iter().chain(registered.iter().map(|(name, _)| name.as_str())).collect::<Vec<_>>();
        let Some(name) = self.decoder.as_deref() else {
            return Err(config(format!("[output] `decoder` is not given for classification: expected one of {}", names().join(", "))));
        };
        let activation = match self.activation {
            Some(WrittenActivation::Softmax) => Some(Activation::Softmax),
            Some(WrittenActivation::Sigmoid) => Some(Activation::Sigmoid),
            Some(WrittenActivation::Bytes) => Some(Activation::Bytes),
            Some(WrittenActivation::None) => Some(Activation::None),
            None => None,
        };
        let (decoder, own): (_, &[&str]) = if let Some((_, scheme)) = registered.iter().find(|(known, _)| known == name) {
            (ClassDecoder::Scheme { name: name.into(), scheme: scheme.clone() }, &[])
        } else {
            match name {
                "classes" => (ClassDecoder::Classes { activation: activation.unwrap_or_default() }, &["activation"]),
                "multi-label" => (ClassDecoder::MultiLabel { activation: activation.unwrap_or(Activation::Sigmoid) }, &["activation"]),
                "expectation" => {
                    let weights = self.weights.clone();
                    let missing =
                        || config("[output] decoder `expectation` needs `weights`: the number that each bin stands for".to_owned());
                    let weights = weights.ok_or_else(missing)?;
                    match weights.iter().find(|weight| !(-MAX_NUMBER..=MAX_NUMBER).contains(*weight)) {
                        Some(weight) => {
                            let range = format!("-{MAX_NUMBER:e} to {MAX_NUMBER:e}");
                            return Err(config(format!("[output] `weights`: expected finite numbers from {range}, got {weight}")));
                        }
                        None if weights.is_empty() => {
                            return Err(config("[output] `weights`: expected one number for each bin, got none".to_owned()));
                        }
                        None => (ClassDecoder::Expectation { weights }, &["weights"]),
                    }
                }
                "regression" => {
                    let (scale, offset) = (self.scale.unwrap_or(1.0), self.offset.unwrap_or(0.0));
                    let is_in_range = |value: f32| (-MAX_NUMBER..=MAX_NUMBER).contains(&value);
                    if !(is_in_range(scale) && is_in_range(offset) && scale != 0.0) {
                        return Err(config(format!(
                            "[output] `scale` and `offset`: expected finite numbers up to {MAX_NUMBER:e} in magnitude, and a scale other than 0, got {scale} and {offset}"
                        )));
                    }
                    (ClassDecoder::Regression { scale, offset }, &["scale", "offset"])
                }
                "embedding" => (ClassDecoder::Embedding { normalize: self.normalize.unwrap_or(true) }, &["normalize"]),
                "custom" => (ClassDecoder::Raw, &[]),
                _ => return Err(unknown_decoder("classification", name, &names())),
            }
        };
        let of_some = ["activation", "weights", "scale", "offset", "normalize"];
        match self.given(|key| of_some.contains(&key) && !own.contains(&key)) {
            Some(key) => Err(foreign(name, key, "others have it")),
            None => Ok(decoder),
        }
    }

    /// The first key, of those beside the name, that is given and wanted.
    fn given(&self, is_wanted: impl Fn(&str) -> bool) -> Option<&'static str> {
        let keys = [
            ("decoder", self.decoder.is_some()),
            ("threshold", self.threshold.is_some()),
            ("labels", self.labels.is_some()),
            ("labels-file", self.labels_file.is_some()),
            ("tensor", self.tensor.is_some()),
            ("activation", self.activation.is_some()),
            ("weights", self.weights.is_some()),
            ("scale", self.scale.is_some()),
            ("offset", self.offset.is_some()),
            ("normalize", self.normalize.is_some()),
        ];
        first_given(&keys, is_wanted)
    }
}

fn first_given(keys: &[(&'static str, bool)], is_wanted: impl Fn(&str) -> bool) -> Option<&'static str> {
    keys.iter().find(|(key, is_given)| *is_given && is_wanted(key)).map(|(key, _)| *key)
}

/// The labels that the user gives, or else the description.
fn labels_of(context: &Context<'_>, options: Option<&StageOptions>, labels: Option<&[String]>, file: Option<&Path>) -> Result<Labels> {
    if let Some(labels) = options.and_then(|options| options.labels.as_ref()) {
        return Ok(Labels::new(labels));
    }
    if let Some(path) = options.and_then(|options| options.labels_file.as_ref()) {
        return Labels::read(path);
    }
    match (labels, file) {
        (Some(_), Some(_)) => Err(config("[output] has both `labels` and `labels-file`: expected one of them".to_owned())),
        (Some([]), None) => {
            Err(config("[output] `labels`: expected at least one name, got none; leave it out if classes have no names".to_owned()))
        }
        (Some(labels), None) => Ok(Labels::new(labels)),
        (None, Some(file)) if file.as_os_str().is_empty() => {
            Err(config("[output] `labels-file`: expected the name of a file, got none; leave it out if classes have no names".to_owned()))
        }
        (None, Some(file)) => context.source.labels(file),
        (None, None) => Ok(Labels::default()),
    }
}

/// # Errors
/// If there are labels, and not one for each class; 0 classes: it is not known.
pub(super) fn check_labels(labels: &Labels, n_classes: u32) -> Result<()> {
    if !labels.is_empty() && n_classes > 0 && labels.len() != n_classes as usize {
        return Err(config(format!("expected {n_classes} labels, one per class of the model, got {}", labels.len())));
    }
    Ok(())
}

fn output_named(info: &ModelInfo, name: &str) -> Result<usize> {
    let named = info.outputs.iter().position(|port| port.names.iter().any(|own| **own == *name));
    named.ok_or_else(|| config(format!("[output] there is no output `{name}`: the model has {}", output_names(info))))
}

fn output_names(info: &ModelInfo) -> String {
    info.outputs.iter().map(|port| format!("`{}`", port.name())).collect::<Vec<_>>().join(", ")
}

/// The extents of a port, `usize::MAX` where they are not known.
pub(super) fn extents(port: &Port) -> Vec<usize> {
    port.shape
        .dims()
        .iter()
        .map(|dim| match dim {
            Dim::Fixed(extent) => *extent,
            Dim::Range { .. } | Dim::Dynamic => usize::MAX,
        })
        .collect()
}

/// Whether a decoder reads such outputs, and how many classes it tells apart. Of extents that the engine leaves open those count with which
/// it does: what is in the outputs is looked at in each run.
fn check_open(decoder: &BoxDecoder, outputs: &[(&str, &[usize])], input: Size) -> tensor::Result<u32> {
    /// Columns of tables of boxes.
    const COLUMNS: [usize; 9] = [4, 7, 6, 5, 1, 2, 10, 15, 16];
    let as_told = decoder.check(outputs, input);
    if as_told.is_ok() || !outputs.iter().any(|(_, shape)| shape.contains(&usize::MAX)) {
        return as_told;
    }
    let fits = |n_columns: usize| {
        let shapes: Vec<Vec<usize>> = outputs.iter().map(|(_, shape)| filled_in(shape, n_columns)).collect();
        let outputs: Vec<(&str, &[usize])> = outputs.iter().zip(&shapes).map(|((name, _), shape)| (*name, &**shape)).collect();
        decoder.check(&outputs, input).is_ok()
    };
    // How many classes there are such shapes do not say.
    if COLUMNS.into_iter().any(fits) { Ok(0) } else { as_told }
}

/// A shape with one picture and so many columns where these extents are open.
fn filled_in(shape: &[usize], n_columns: usize) -> Vec<usize> {
    let rank = shape.len();
    let extent = |(axis, &extent): (usize, &usize)| match axis {
        _ if extent != usize::MAX => extent,
        0 => 1,
        1 if rank == 4 => 1,
        _ if rank > 2 && axis == rank - 1 => n_columns,
        _ => extent,
    };
    shape.iter().enumerate().map(extent).collect()
}

/// # Errors
/// `Config` with all names and the nearest one, if there is no decoder of this name.
pub(super) fn check_decoder_name(name: &str) -> Result<()> {
    let (boxes, classes) = (BOX_SCHEMES.read().unwrap(), CLASS_SCHEMES.read().unwrap());
    let registered = boxes.iter().map(BoxDecoder::name).chain(classes.iter().map(|(name, _)| name.as_str()));
    let names: Vec<String> = BoxDecoder::names().chain(CLASS_DECODERS).map(str::to_owned).chain(registered.map(str::to_owned)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match names.contains(&name) {
        true => Ok(()),
        false => Err(config(format!(
            "unknown decoder `{name}`: expected one of {}{}",
            names.join(", "),
            did_you_mean(name, names.iter().copied())
        ))),
    }
}

fn fraction(key: &str, value: f32) -> Result<f32> {
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(config(format!("`{key}`: expected 0 to 1, got {value}"))) }
}

fn contradiction(decoder: &str, error: &tensor::Error) -> Error {
    let said = error.to_string();
    let said = said.strip_prefix(&format!("decoder `{decoder}`: ")).unwrap_or(&said);
    config(format!("[output] decoder `{decoder}` contradicts the model: {said}"))
}

fn foreign(decoder: &str, key: &str, why: &str) -> Error {
    config(format!("[output] `{key}` does not go with decoder `{decoder}`: {why}"))
}

fn unknown_decoder(task: &str, decoder: &str, known: &[&str]) -> Error {
    let hint = did_you_mean(decoder, known.iter().copied());
    config(format!("[output] unknown decoder `{decoder}` for {task}: expected one of {}{hint}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../docs/model-descriptions.md");

    /// The examples of the documentation, each with its number.
    fn examples() -> impl Iterator<Item = (usize, &'static str)> {
        PAGE.split("```toml\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(example, _)| example).enumerate()
    }

    #[derive(Deserialize)]
    struct Example {
        output: WrittenOutput,
    }

    #[test]
    fn the_examples_of_the_documentation_are_descriptions() {
        let mut named = Vec::new();
        for (example_idx, example) in examples() {
            let Example { output } = toml::from_str(example).unwrap_or_else(|error| panic!("example {example_idx}: {error}\n{example}"));
            let heads = output.heads.iter().filter_map(|head| head.decoder.clone());
            named.extend(output.decoder.clone().into_iter().chain(heads));
        }
        let schemes = BoxDecoder::names().chain(CLASS_DECODERS);
        let missing: Vec<&str> = schemes.filter(|name| !PAGE.contains(&format!("| `{name}` |"))).collect();
        assert!(missing.is_empty(), "decoders without a row: {missing:?}");
        let unknown: Vec<&String> =
            named.iter().filter(|name| !BoxDecoder::names().chain(CLASS_DECODERS).any(|known| known == **name)).collect();
        assert!(unknown.is_empty() && named.len() >= 18, "{unknown:?} of {named:?}");
    }
}
