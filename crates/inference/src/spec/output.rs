//! Parses the section `[output]` of a model description, and checks it against the model's ports. The section defines decoders, the outputs
//! that they read, their options, and labels. Each decoder reads its own keys, see [`Section`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;

use super::deduce::{self, evidence};
use super::input::Quantization;
use super::{Source, StageOptions, Task, config};
use crate::frame::Size;
use crate::labels::Labels;
use crate::runtime::{Dim, Error, ModelInfo, Port, Result};
use crate::tensor;
use crate::thresholds::ReportedClasses;
use crate::vision::decode::{Decoder, DecoderRegistry, Gallery, Nearest, Output, Reads, Results, Section, Subject};
use crate::{GalleryChoice, UNKNOWN, did_you_mean, hint_of_unknown, read_gallery, thresholds};

/// The decoder of vectors, which can have a gallery.
const EMBEDDING: &str = "embedding";
/// Default of the smallest cosine of a known object.
const GALLERY_THRESHOLD: f32 = 0.5;

/// A head of a model: a decoder, and the outputs that it reads.
#[derive(Debug, Clone)]
pub struct Head {
    /// Name of the results. For a classifier: name of the attribute, which is the key in the JSON.
    pub name: Arc<str>,
    /// Name of the decoder.
    pub decoder_name: Arc<str>,
    /// The decoder.
    pub decoder: Arc<dyn Decoder>,
    /// Index of the output that the decoder reads. `None` if the decoder gets all outputs.
    pub output_idx: Option<usize>,
    /// Outputs to which the description gives a role: their index and the role. The decoder sees the role instead of the port
    /// name.
    pub roles: Vec<(usize, Arc<str>)>,
    /// Labels of the classes.
    pub labels: Labels,
    /// Classes that are reported; `None`: all classes.
    pub(crate) classes: Option<Arc<ReportedClasses>>,
    /// Index of each quantized output that the decoder reads, and how its integers represent numbers.
    quantized: Vec<(usize, Quantization)>,
}

impl Head {
    /// Decodes the outputs of one image into `results`, which is cleared first, see [`Decoder::decode`].
    ///
    /// # Errors
    /// Returns the errors of [`Decoder::decode`].
    pub fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> tensor::Result<()> {
        results.clear();
        if self.quantized.is_empty() {
            return self.decode_numbers(outputs, input, results);
        }
        // The numbers of a head are valid until the next head is decoded: several heads can read the same output with different scales.
        let mut memory = std::mem::take(&mut results.numbers);
        memory.resize_with(memory.len().max(self.quantized.len()), Vec::new);
        let mut outputs = outputs.to_vec();
        for ((idx, quantization), numbers) in self.quantized.iter().zip(&mut memory) {
            quantization.convert(outputs[*idx].data, numbers);
            outputs[*idx].data = numbers;
        }
        let decoded = self.decode_numbers(&outputs, input, results);
        results.numbers = memory;
        decoded
    }

    /// Like [`Head::decode`], for outputs that are not quantized.
    fn decode_numbers(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> tensor::Result<()> {
        if let Some(output_idx) = self.output_idx {
            return self.decoder.decode(&outputs[output_idx..=output_idx], input, results);
        }
        if self.roles.is_empty() {
            return self.decoder.decode(outputs, input, results);
        }
        let mut named = outputs.to_vec();
        self.roles.iter().for_each(|(output_idx, role)| named[*output_idx].name = role);
        self.decoder.decode(&named, input, results)
    }
}

/// Keys of every head, in addition to the keys of the head's decoder.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct HeadKeys {
    /// Name of the decoder: a built-in one, or one registered by the application.
    decoder: Option<String>,
    /// For decoders of one output: name of the output.
    tensor: Option<String>,
    /// For other decoders: names of the outputs by role, if shapes do not distinguish them.
    #[serde(default)]
    tensors: BTreeMap<String, String>,
    /// For quantized outputs: scale and zero point of each output, by its name.
    #[serde(default)]
    quantization: BTreeMap<String, Quantization>,
}

/// Keys of heads with labels.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) struct LabelKeys {
    /// Labels of the classes, in order.
    labels: Option<Vec<String>>,
    /// A text file with one label per line, next to this file.
    labels_file: Option<PathBuf>,
}

/// Additional keys of the decoder `embedding`.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct GalleryKeys {
    /// A file with names and vectors of known objects, next to this file. The result is then the nearest name instead of the vector.
    gallery: Option<PathBuf>,
    /// With a gallery: objects whose best cosine is below this value are unknown, 0 to 1. Default: 0.5.
    threshold: Option<f32>,
}

/// Additional key of each head, if there are several heads.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct NameKeys {
    /// Name of the attribute: the key in the JSON.
    name: Option<String>,
}

/// The data outside the section `[output]` that the reader of this section needs.
pub(super) struct Context<'a> {
    pub(super) task: Task,
    pub(super) options: &'a StageOptions,
    /// Source of the description.
    pub(super) source: &'a Source,
    pub(super) info: &'a ModelInfo,
    pub(super) input_size: Size,
    /// Name of the results.
    pub(super) name: &'a Arc<str>,
}

/// Reads the section `[output]`. Returns the heads, the labels if there is a single head, and the number of classes. The number is 0
/// if it is unknown or if there are several heads.
pub(super) fn read(text: &str, context: &Context<'_>, assumed: &mut Vec<String>) -> Result<(Vec<Head>, Labels, u32)> {
    let mut section = Section::parse(text).map_err(|error| wrong_key(&error))?.take_table("output");
    let sections = section.take_tables("heads").map_err(|error| wrong_key(&error))?;
    if sections.is_empty() {
        (section.threshold, section.iou_threshold) = (context.options.threshold, context.options.iou_threshold);
        let (heads, n_classes) = context.read_head(section, context.name, Some(context.options), assumed)?;
        let labels = heads[0].labels.clone();
        return Ok((heads, labels, n_classes));
    }
    if context.task == Task::Detection {
        return Err(config("[output] `heads`: expected a classifier, got a detector, which has one decoder. Remove the key".to_owned()));
    }
    if let Some(key) = section.first_key() {
        return Err(config(format!("[output] has `heads` and `{key}`: expected `{key}` in each head")));
    }
    if context.options.labels.is_some() || context.options.labels_file.is_some() {
        return Err(config(
            "`labels` cannot be set for a model with several heads: write the labels of each head into the description".to_owned(),
        ));
    }
    if matches!(context.options.gallery, GalleryChoice::File(_)) {
        return Err(config("`gallery` cannot be set for a model with several heads: write it into a head of the description".to_owned()));
    }
    let mut heads: Vec<Head> = Vec::new();
    for mut section in sections {
        let NameKeys { name } = section.read().map_err(|error| wrong_key(&error))?;
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(config("[[output.heads]]: expected a `name` in each head, the attribute's key in the JSON".to_owned()));
        };
        let found = context.read_head(section, &Arc::from(&*name), None, assumed);
        for head in found.map_err(|error| error.context(format!("head `{name}`")))?.0 {
            if heads.iter().any(|known| known.name == head.name) {
                return Err(config(format!("[[output.heads]]: expected unique names, got `{}` twice", head.name)));
            }
            heads.push(head);
        }
    }
    Ok((heads, Labels::default(), 0))
}

impl Context<'_> {
    /// Reads the heads of a section. The result is a single head, or one head per output if the decoder reads each output separately.
    /// Also returns the number of classes. Options of the user take precedence if there is one head.
    fn read_head(
        &self,
        mut section: Section<'_>,
        name: &Arc<str>,
        options: Option<&StageOptions>,
        assumed: &mut Vec<String>,
    ) -> Result<(Vec<Head>, u32)> {
        let (info, registry) = (self.info, &self.options.engine.decoders());
        let HeadKeys { decoder, tensor, tensors, quantization } = section.read().map_err(|error| wrong_key(&error))?;
        let decoder_name = match decoder {
            Some(decoder) => self.known(decoder)?,
            None => self.deduced(&tensors, assumed)?.to_owned(),
        };
        let mut decoder = registry.make(&decoder_name, &mut section).map_err(|error| wrong_key(&error))?;
        let reads = decoder.reads();
        let gallery = match &*decoder_name {
            EMBEDDING => self.gallery(&mut section, options)?,
            _ if options.is_some_and(|options| matches!(options.gallery, GalleryChoice::File(_))) => {
                let message = format!("`gallery`: expected a model with the decoder `{EMBEDDING}`, got `{decoder_name}`");
                return Err(config(message));
            }
            _ => None,
        };
        let labels = if reads == Reads::Each { LabelKeys::default() } else { section.read().map_err(|error| wrong_key(&error))? };
        registry.check_keys(&decoder_name, &section).map_err(|error| wrong_key(&error))?;
        assumed.append(&mut section.assumed);
        let roles = roles(info, &tensors)?;
        if let Some(role) = tensors.keys().find(|role| !decoder.roles().contains(&role.as_str())) {
            let known = if decoder.roles().is_empty() { "none".to_owned() } else { decoder.roles().join(", ") };
            return Err(config(format!("[output] `tensors`: expected roles of decoder `{decoder_name}` ({known}), got `{role}`")));
        }
        let output_idxs = match (&tensor, reads) {
            (None, Reads::All) => vec![None],
            (Some(_), Reads::All) => {
                let message = format!("[output] `tensor` is not a key of decoder `{decoder_name}`, which reads all outputs");
                return Err(config(message));
            }
            (Some(tensor), _) => vec![Some(output_named(info, tensor)?)],
            (None, _) if info.outputs.len() == 1 => vec![Some(0)],
            (None, Reads::Each) => (0..info.outputs.len()).map(Some).collect(),
            (None, Reads::One) => {
                return Err(config(format!(
                    "the model has {} outputs: set `tensor` in [output] to one of {}, or add a head for each output",
                    info.outputs.len(),
                    output_names(info)
                )));
            }
        };
        let mut labels = labels_of(self, options, labels)?;
        if labels.is_empty() && decoder_name == "ctc" {
            // PaddleOCR's converters write the characters of a recognizer into its metadata, one in each line.
            labels = info.metadata.get("character").map(|text| Labels::new(text.lines())).unwrap_or_default();
        }
        if let Some(nearest) = gallery {
            if !labels.is_empty() {
                return Err(config(
                    "[output] has labels and `gallery`: expected only the gallery, which has the names. Remove the labels".to_owned(),
                ));
            }
            let (gallery, threshold) = nearest;
            labels = Labels::new(gallery.names().iter().map(|name| &**name).chain([UNKNOWN]));
            decoder = Box::new(Nearest::new(gallery, threshold));
        }
        decoder.set_labels(&labels.names());
        let shapes = shapes(info);
        let outputs = outputs(info, &shapes, &roles);
        let mut n_classes = 0;
        for output_idx in &output_idxs {
            let read = output_idx.map_or(&outputs[..], |output_idx| &outputs[output_idx..=output_idx]);
            n_classes = check_open(&*decoder, read, self.input_size).map_err(|error| contradiction(&decoder_name, &error))?;
            if labels.len() + 1 == n_classes as usize && !labels.is_empty() {
                match decoder.background() {
                    Some(background) => labels = with_background(&labels, background),
                    None if registry.keys(&decoder_name).contains(&"background") => return Err(lacks_background(n_classes)),
                    None => {}
                }
            }
            check_labels(&labels, n_classes)?;
        }
        let options = self.options;
        let classes = match self.task {
            Task::Detection => {
                ReportedClasses::read(options.keep_classes.as_deref(), options.drop_classes.as_deref(), &labels, n_classes)?.map(Arc::new)
            }
            Task::Classification => None,
        };
        let decoder = self.with_class_thresholds(decoder, &labels, n_classes, classes.as_deref())?;
        let quantized = |(name, quantization): (&String, &Quantization)| -> Result<(usize, Quantization)> {
            Ok((output_named(info, name)?, quantization.checked(&format!("[output] `quantization` of `{name}`"))?))
        };
        let quantized: Vec<(usize, Quantization)> = quantization.iter().map(quantized).collect::<Result<_>>()?;
        let n_heads = output_idxs.len();
        let is_read = |head_idx: Option<usize>, (output_idx, _): &&(usize, Quantization)| head_idx.is_none_or(|idx| idx == *output_idx);
        let head = |output_idx: Option<usize>| Head {
            name: if n_heads == 1 { name.clone() } else { output_idx.map_or("", |output_idx| info.outputs[output_idx].name()).into() },
            decoder_name: decoder_name.as_str().into(),
            decoder: decoder.clone(),
            output_idx,
            roles: roles.clone(),
            labels: labels.clone(),
            classes: classes.clone(),
            quantized: quantized.iter().filter(|output| is_read(output_idx, output)).copied().collect(),
        };
        Ok((output_idxs.into_iter().map(head).collect(), n_classes))
    }

    /// Reads the gallery and the threshold of a head. `None` if the head has no gallery.
    fn gallery(&self, section: &mut Section<'_>, options: Option<&StageOptions>) -> Result<Option<(Gallery, f32)>> {
        let GalleryKeys { gallery, threshold } = section.read().map_err(|error| wrong_key(&error))?;
        // The file, and whether the description names it.
        let (file, is_described) = match (options.map_or(GalleryChoice::Described, |options| options.gallery.clone()), gallery) {
            (GalleryChoice::File(path), _) => (path, false),
            (GalleryChoice::None, _) => return Ok(None),
            (_, Some(file)) if file.as_os_str().is_empty() => {
                return Err(config("[output] `gallery`: expected the name of a file, got none. Remove the key to get vectors".to_owned()));
            }
            (_, Some(file)) => (file, true),
            (_, None) if threshold.is_some() => {
                return Err(config(format!("[output] `threshold` of decoder `{EMBEDDING}` requires `gallery`")));
            }
            (_, None) => return Ok(None),
        };
        let threshold = section.threshold.or(threshold).unwrap_or_else(|| {
            section.assumed.push(format!("[output] `threshold` is not given: {GALLERY_THRESHOLD}"));
            GALLERY_THRESHOLD
        });
        if !(0.0..=1.0).contains(&threshold) {
            return Err(config(format!("[output] `threshold`: expected 0 to 1, got {threshold}")));
        }
        let read = || read_gallery(&file);
        let gallery = match &self.options.snapshot {
            _ if is_described => self.source.once("gallery", &file, self.options, read_gallery),
            Some(snapshot) => snapshot.once(&file, read),
            None => read(),
        };
        Ok(Some((gallery?, threshold)))
    }

    /// Applies the class thresholds that the user has set, and leaves out the classes that are not reported, if the decoder supports class
    /// thresholds.
    fn with_class_thresholds(
        &self,
        mut decoder: Box<dyn Decoder>,
        labels: &Labels,
        n_classes: u32,
        classes: Option<&ReportedClasses>,
    ) -> Result<Arc<dyn Decoder>> {
        if let (Some(threshold), Task::Detection) = (decoder.threshold(), self.task) {
            let text = self.options.class_thresholds.as_deref().unwrap_or_default();
            let mut by_class = thresholds::by_class(text, labels, n_classes, threshold)?;
            if let Some(classes) = classes {
                classes.raise(&mut by_class, labels, n_classes, threshold);
            }
            if !by_class.is_empty() {
                decoder.set_class_thresholds(by_class);
            }
        }
        Ok(decoder.into())
    }

    /// Checks that a decoder with this name exists and suits the task. Returns the name.
    fn known(&self, decoder: String) -> Result<String> {
        let registry = &self.options.engine.decoders();
        if registry.subject(&decoder).is_some_and(|subject| [self.task.subject(), Subject::Anything].contains(&subject)) {
            return Ok(decoder);
        }
        let message = unknown_decoder(&decoder, &format!(" for {}", self.task), registry.names_of(self.task.subject()).collect());
        Err(config(format!("[output] {message}")))
    }

    /// Returns the only decoder that matches the model's outputs.
    fn deduced(&self, tensors: &BTreeMap<String, String>, assumed: &mut Vec<String>) -> Result<&'static str> {
        if self.task == Task::Classification {
            let names = self.options.engine.decoders().names_of(Subject::Attributes).collect::<Vec<_>>().join(", ");
            return Err(config(format!("[output] `decoder` is not given for classification: expected one of {names}")));
        }
        let registry = DecoderRegistry::built_in();
        let (shapes, roles) = (shapes(self.info), roles(self.info, tensors)?);
        let outputs = outputs(self.info, &shapes, &roles);
        let fits = |name: &&str| {
            let decoder = registry.make_from_text(name, "").ok();
            evidence::reads_all(name, &outputs) && decoder.is_some_and(|decoder| decoder.check(&outputs, self.input_size).is_ok())
        };
        let names = || registry.names().filter(|name| registry.subject(name) == Some(Subject::Objects));
        let fitting: Vec<&str> = names().filter(fits).collect();
        let ports = self.info.outputs.iter().map(Port::to_string).collect::<Vec<_>>().join(", ");
        let message = match *fitting {
            [name] if evidence::has_rows_of(name, &shapes, self.input_size) => {
                assumed.push(format!("[output] `decoder` is not given: {name} is used, the only decoder that reads these outputs"));
                return Ok(name);
            }
            [name] => format!(
                "the model's outputs, {ports}, do not have the number of rows of `{name}` models at {}, the only decoder that could read them: set `decoder = \"{name}\"` if the model is of this kind, or set another decoder",
                self.input_size
            ),
            [] => format!("no decoder matches the model's outputs, {ports}: expected one of {}", names().collect::<Vec<_>>().join(", ")),
            _ => format!("several decoders match the model's outputs, {ports}: expected one of {}", fitting.join(", ")),
        };
        Err(config(format!("[output] `decoder` is not given, and {message}")))
    }
}

/// Returns the decoders other than that of a detector that accept the model's outputs, with the same threshold. None if the outputs have
/// roles or are quantized.
pub(super) fn others(heads: &[Head], info: &ModelInfo, input: Size) -> Vec<(Arc<str>, Arc<dyn Decoder>)> {
    let [head] = heads else { return Vec::new() };
    if !(head.roles.is_empty() && head.quantized.is_empty()) {
        return Vec::new();
    }
    let keys = head.decoder.threshold().map_or_else(String::new, |threshold| format!("threshold = {threshold}"));
    let made = |name: &'static str| Some((Arc::from(name), Arc::from(DecoderRegistry::built_in().make_from_text(name, &keys).ok()?)));
    deduce::readers(info, input).into_iter().filter(|name| *name != &*head.decoder_name).filter_map(made).collect()
}

/// Converts the key `tensors`, which maps roles to output names, to pairs of output index and role.
fn roles(info: &ModelInfo, tensors: &BTreeMap<String, String>) -> Result<Vec<(usize, Arc<str>)>> {
    let mut roles: Vec<(usize, Arc<str>)> = Vec::new();
    for (role, tensor) in tensors {
        let output_idx = output_named(info, tensor)?;
        if roles.iter().any(|(known, _)| *known == output_idx) {
            return Err(config(format!("[output] `tensors`: expected a different output for each role, got `{tensor}` twice")));
        }
        roles.push((output_idx, role.as_str().into()));
    }
    Ok(roles)
}

/// Returns the names and shapes of a model's outputs, as arguments of [`Decoder::check`].
pub(super) fn outputs<'a>(info: &'a ModelInfo, shapes: &'a [Vec<usize>], roles: &'a [(usize, Arc<str>)]) -> Vec<(&'a str, &'a [usize])> {
    let mut outputs: Vec<(&str, &[usize])> = info.outputs.iter().zip(shapes).map(|(port, shape)| (port.name(), &**shape)).collect();
    roles.iter().for_each(|(output_idx, role)| outputs[*output_idx].0 = role);
    outputs
}

/// Returns the shapes of a model's outputs. A dynamic extent is `usize::MAX`.
pub(super) fn shapes(info: &ModelInfo) -> Vec<Vec<usize>> {
    info.outputs.iter().map(extents).collect()
}

/// Returns the labels that the user has set, otherwise the labels of the description.
fn labels_of(context: &Context<'_>, options: Option<&StageOptions>, keys: LabelKeys) -> Result<Labels> {
    if let Some(labels) = options.and_then(|options| options.labels.as_ref()) {
        return Ok(Labels::new(labels));
    }
    if let Some(path) = options.and_then(|options| options.labels_file.as_ref()) {
        let read = || Labels::read(path);
        return context.options.snapshot.as_ref().map_or_else(read, |snapshot| snapshot.once(path, read));
    }
    match (keys.labels.as_deref(), keys.labels_file.as_deref()) {
        (Some(_), Some(_)) => Err(config("[output] has both `labels` and `labels-file`: expected one of them".to_owned())),
        (Some([]), None) => {
            Err(config("[output] `labels`: expected at least one name, got none. Remove the key if classes have no names".to_owned()))
        }
        (Some(labels), None) => Ok(Labels::new(labels)),
        (None, Some(file)) if file.as_os_str().is_empty() => {
            Err(config("[output] `labels-file`: expected the name of a file, got none. Remove the key if classes have no names".to_owned()))
        }
        (None, Some(file)) => context.source.labels(file, context.options),
        (None, None) => Ok(Labels::default()),
    }
}

/// Checks that there is one label per class.
///
/// # Errors
/// Returns `Config` if there are labels and their number is not `n_classes`. If `n_classes` is 0, the number is unknown and every number is
/// accepted.
pub(super) fn check_labels(labels: &Labels, n_classes: u32) -> Result<()> {
    if !labels.is_empty() && n_classes > 0 && labels.len() != n_classes as usize {
        return Err(config(format!("expected {n_classes} labels, one per class of the model, got {}", labels.len())));
    }
    Ok(())
}

/// Returns the labels with a label for the background class, which is never reported.
fn with_background(labels: &Labels, background: u32) -> Labels {
    let mut names = labels.names().to_vec();
    names.insert((background as usize).min(names.len()), Arc::from("background"));
    Labels::new(names)
}

/// Creates the error for a model with one class more than labels.
fn lacks_background(n_classes: u32) -> Error {
    let last = n_classes - 1;
    config(format!(
        "expected {n_classes} labels, one per class of the model, got {last}. If the model has a class for `no object` or the background, which needs no label, set its number in [output]: usually `background = {last}`, or 0. Models whose scores are independent, such as RF-DETR, then also need `activation = \"sigmoid\"`"
    ))
}

fn output_named(info: &ModelInfo, name: &str) -> Result<usize> {
    let named = info.outputs.iter().position(|port| port.names.iter().any(|own| **own == *name));
    named.ok_or_else(|| config(format!("[output] expected the name of an output, got `{name}`; the model has {}", output_names(info))))
}

fn output_names(info: &ModelInfo) -> String {
    info.outputs.iter().map(|port| format!("`{}`", port.name())).collect::<Vec<_>>().join(", ")
}

/// Returns the extents of a port; `usize::MAX` for dynamic extents.
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

/// Checks that a decoder accepts these outputs, and returns the number of classes. Tries suitable values for dynamic extents. Each run
/// checks the actual shapes.
fn check_open(decoder: &dyn Decoder, outputs: &[(&str, &[usize])], input: Size) -> tensor::Result<u32> {
    /// Numbers of columns that tables of boxes may have. They are tried one by one if the number of columns is dynamic.
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
    // Return 0 classes, which means unknown, because dynamic shapes do not determine the number.
    if COLUMNS.into_iter().any(fits) { Ok(0) } else { as_told }
}

/// Replaces the dynamic extents of a shape. The batch size becomes 1, and the number of columns becomes `n_columns`.
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

/// Checks that a built-in decoder has this name.
///
/// # Errors
/// Returns `Config` with all names and the most similar name if no decoder has this name.
pub(super) fn check_decoder_name(name: &str) -> Result<()> {
    let known = DecoderRegistry::built_in();
    match known.subject(name) {
        Some(_) => Ok(()),
        None => Err(config(unknown_decoder(name, "", known.names().collect()))),
    }
}

fn contradiction(decoder: &str, error: &tensor::Error) -> Error {
    let message = error.to_string();
    let message = message.strip_prefix(&format!("decoder `{decoder}`: ")).unwrap_or(&message);
    config(format!("[output] decoder `{decoder}` contradicts the model: {message}"))
}

/// Converts an error about a key of a decoder to an error about the description. If the key is mistyped, adds the most similar
/// known key.
fn wrong_key(error: &tensor::Error) -> Error {
    let message = error.to_string();
    let unknown = message.find("unknown ").map_or("", |begin| &message[begin..]);
    let place = if message.starts_with("TOML") { "" } else { "[output] " };
    config(format!("{place}{message}{}", hint_of_unknown(unknown)))
}

fn unknown_decoder(decoder: &str, task: &str, known: Vec<&str>) -> String {
    let hint = did_you_mean(decoder, known.iter().copied());
    format!("unknown decoder `{decoder}`{task}: expected one of {}{hint}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../docs/model-descriptions.md");

    /// Returns the documented examples, with their numbers.
    fn examples() -> impl Iterator<Item = (usize, &'static str)> {
        PAGE.split("```toml\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(example, _)| example).enumerate()
    }

    #[test]
    fn documented_examples_are_valid_descriptions() {
        let registry = DecoderRegistry::built_in();
        let mut n_named = 0;
        for (example_idx, example) in examples() {
            let mut read = || -> tensor::Result<()> {
                let mut section = Section::parse(example)?.take_table("output");
                let heads = section.take_tables("heads")?;
                for mut section in std::iter::once(section).chain(heads) {
                    let (HeadKeys { decoder, .. }, NameKeys { .. }, LabelKeys { .. }) = (section.read()?, section.read()?, section.read()?);
                    if let Some(name) = decoder {
                        registry.make(&name, &mut section)?;
                        registry.check_keys(&name, &section)?;
                        n_named += 1;
                    }
                }
                Ok(())
            };
            read().unwrap_or_else(|error| panic!("example {example_idx}: {error}\n{example}"));
        }
        let missing: Vec<&str> = registry.names().filter(|name| !PAGE.contains(&format!("| `{name}` |"))).collect();
        assert!(missing.is_empty(), "decoders without a row: {missing:?}");
        assert!(n_named >= 18, "{n_named}");
    }
}
