//! The `[output]` of a model description: which decoders read which outputs, with what options and labels; read, and checked against the
//! model's ports. The keys of each decoder are its own affair, see [`Section`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;

use super::deduce::evidence;
use super::{Source, StageOptions, Task, config};
use crate::frame::Size;
use crate::labels::Labels;
use crate::runtime::{Dim, Error, ModelInfo, Port, Result};
use crate::tensor;
use crate::vision::decode::{Decoder, DecoderRegistry, Output, Reads, Results, Section, Subject};
use crate::{did_you_mean, hint_of_unknown, thresholds};

/// A decoder put to work on outputs of a model.
#[derive(Debug, Clone)]
pub struct Head {
    /// What its results are called: of a classifier the attribute, the key in the JSON.
    pub name: Arc<str>,
    /// How descriptions call the decoder.
    pub decoder_name: Arc<str>,
    /// How outputs are read.
    pub decoder: Arc<dyn Decoder>,
    /// The only output that it reads; `None`: all.
    pub output_idx: Option<usize>,
    /// What outputs are called, by their index, when the decoder looks for them, instead of by their own names.
    pub roles: Vec<(usize, Arc<str>)>,
    /// Names of its classes.
    pub labels: Labels,
}

impl Head {
    /// Replaces `results` by what is in the outputs for one image, see [`Decoder::decode`].
    ///
    /// # Errors
    /// As there.
    pub fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> tensor::Result<()> {
        results.clear();
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

/// The keys of every head, beside those of its decoder.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct HeadKeys {
    /// How outputs are read: the name of a decoder, one that is built in or one that the application registered.
    decoder: Option<String>,
    /// Of decoders that read one output: which one.
    tensor: Option<String>,
    /// Of others: which output is what, where shapes do not tell: names of outputs by their roles.
    #[serde(default)]
    tensors: BTreeMap<String, String>,
}

/// The keys of every head whose results can have names.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) struct LabelKeys {
    /// The names of the classes, in their order.
    labels: Option<Vec<String>>,
    /// A text file with the names of the classes, one per line, beside this file.
    labels_file: Option<PathBuf>,
}

/// The key of one of several heads.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct NameKeys {
    /// The attribute: the key in the JSON.
    name: Option<String>,
}

/// What is known beside the description.
pub(super) struct Context<'a> {
    pub(super) task: Task,
    pub(super) options: &'a StageOptions,
    /// Of the description.
    pub(super) source: &'a Source,
    pub(super) info: &'a ModelInfo,
    pub(super) input_size: Size,
    /// What the model is called in results.
    pub(super) name: &'a Arc<str>,
}

/// The heads in the `[output]` of a description, the labels of their classes, and how many classes the model tells apart (0: it does not
/// say). Of several heads each has its own.
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
        return Err(config("[output] `heads` is a key of classification: expected one decoder of detection".to_owned()));
    }
    if let Some(key) = section.first_key() {
        return Err(config(format!("[output] has both `heads` and `{key}`: expected `{key}` in each of the heads")));
    }
    if context.options.labels.is_some() || context.options.labels_file.is_some() {
        return Err(config("labels were given for a model with several heads: expected them in its description".to_owned()));
    }
    let mut heads: Vec<Head> = Vec::new();
    for mut section in sections {
        let NameKeys { name } = section.read().map_err(|error| wrong_key(&error))?;
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(config("[[output.heads]]: expected a `name` in each, the attribute's key in the JSON".to_owned()));
        };
        let found = context.read_head(section, &Arc::from(&*name), None, assumed);
        for head in found.map_err(|error| error.context(format!("head `{name}`")))?.0 {
            if heads.iter().any(|known| known.name == head.name) {
                return Err(config(format!("[[output.heads]]: expected names that differ, got `{}` twice", head.name)));
            }
            heads.push(head);
        }
    }
    Ok((heads, Labels::default(), 0))
}

impl Context<'_> {
    /// The heads that a section stands for: one, but for a decoder that takes every output that is not named otherwise. And how many
    /// classes the model tells apart. What the user asks for besides comes first, where there is one head only.
    fn read_head(
        &self,
        mut section: Section<'_>,
        name: &Arc<str>,
        options: Option<&StageOptions>,
        assumed: &mut Vec<String>,
    ) -> Result<(Vec<Head>, u32)> {
        let (info, registry) = (self.info, &self.options.engine.decoders());
        let HeadKeys { decoder, tensor, tensors } = section.read().map_err(|error| wrong_key(&error))?;
        let decoder_name = match decoder {
            Some(decoder) => self.known(decoder)?,
            None => self.deduced(&tensors, assumed)?.to_owned(),
        };
        let decoder = registry.make(&decoder_name, &mut section).map_err(|error| wrong_key(&error))?;
        let reads = decoder.reads();
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
                let message = format!("[output] `tensor` does not go with decoder `{decoder_name}`: it reads all outputs");
                return Err(config(message));
            }
            (Some(tensor), _) => vec![Some(output_named(info, tensor)?)],
            (None, _) if info.outputs.len() == 1 => vec![Some(0)],
            (None, Reads::Each) => (0..info.outputs.len()).map(Some).collect(),
            (None, Reads::One) => {
                return Err(config(format!(
                    "the model has {} outputs: say which one with `tensor` in [output] (one of {}), or give each a head",
                    info.outputs.len(),
                    output_names(info)
                )));
            }
        };
        let labels = labels_of(self, options, labels)?;
        let shapes = shapes(info);
        let outputs = outputs(info, &shapes, &roles);
        let mut n_classes = 0;
        for output_idx in &output_idxs {
            let read = output_idx.map_or(&outputs[..], |output_idx| &outputs[output_idx..=output_idx]);
            n_classes = check_open(&*decoder, read, self.input_size).map_err(|error| contradiction(&decoder_name, &error))?;
            check_labels(&labels, n_classes)?;
        }
        let decoder = self.with_class_thresholds(decoder, &labels, n_classes)?;
        let n_heads = output_idxs.len();
        let head = |output_idx: Option<usize>| Head {
            name: if n_heads == 1 { name.clone() } else { output_idx.map_or("", |output_idx| info.outputs[output_idx].name()).into() },
            decoder_name: decoder_name.as_str().into(),
            decoder: decoder.clone(),
            output_idx,
            roles: roles.clone(),
            labels: labels.clone(),
        };
        Ok((output_idxs.into_iter().map(head).collect(), n_classes))
    }

    /// The decoder with the thresholds of single classes that the user gives, if it can have some.
    fn with_class_thresholds(&self, mut decoder: Box<dyn Decoder>, labels: &Labels, n_classes: u32) -> Result<Arc<dyn Decoder>> {
        if let (Some(text), Some(threshold), Task::Detection) = (&self.options.class_thresholds, decoder.threshold(), self.task) {
            decoder.set_class_thresholds(thresholds::by_class(text, labels, n_classes, threshold)?);
        }
        Ok(decoder.into())
    }

    /// The name of a decoder, if there is one that gives what the task wants.
    fn known(&self, decoder: String) -> Result<String> {
        let registry = &self.options.engine.decoders();
        if registry.subject(&decoder).is_some_and(|subject| [self.task.subject(), Subject::Anything].contains(&subject)) {
            return Ok(decoder);
        }
        let message = unknown_decoder(&decoder, &format!(" for {}", self.task), registry.names_of(self.task.subject()).collect());
        Err(config(format!("[output] {message}")))
    }

    /// The name of the only decoder that reads the model's outputs.
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
            evidence::reads_all(name, &shapes) && decoder.is_some_and(|decoder| decoder.check(&outputs, self.input_size).is_ok())
        };
        let names = || registry.names().filter(|name| registry.subject(name) == Some(Subject::Objects));
        let fitting: Vec<&str> = names().filter(fits).collect();
        let ports = self.info.outputs.iter().map(Port::to_string).collect::<Vec<_>>().join(", ");
        let message = match *fitting {
            [name] if evidence::has_rows_of(name, &shapes, self.input_size) => {
                assumed.push(format!("[output] `decoder` is not given: {name}, the only one that reads such outputs"));
                return Ok(name);
            }
            [name] => format!(
                "the model's outputs, {ports}, have not as many rows as models of `{name}` at {}, the only one that could read them: say `decoder = \"{name}\"` if it is one, or another decoder",
                self.input_size
            ),
            [] => format!("none fit the model's outputs, {ports}: expected one of {}", names().collect::<Vec<_>>().join(", ")),
            _ => format!("several fit the model's outputs, {ports}: expected one of {}", fitting.join(", ")),
        };
        Err(config(format!("[output] `decoder` is not given, and {message}")))
    }
}

/// Which output has which role.
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

/// The names and shapes of a model's outputs, as a decoder sees them.
pub(super) fn outputs<'a>(info: &'a ModelInfo, shapes: &'a [Vec<usize>], roles: &'a [(usize, Arc<str>)]) -> Vec<(&'a str, &'a [usize])> {
    let mut outputs: Vec<(&str, &[usize])> = info.outputs.iter().zip(shapes).map(|(port, shape)| (port.name(), &**shape)).collect();
    roles.iter().for_each(|(output_idx, role)| outputs[*output_idx].0 = role);
    outputs
}

/// The shapes of a model's outputs, see [`extents`].
pub(super) fn shapes(info: &ModelInfo) -> Vec<Vec<usize>> {
    info.outputs.iter().map(extents).collect()
}

/// The labels that the user gives, or else the description.
fn labels_of(context: &Context<'_>, options: Option<&StageOptions>, keys: LabelKeys) -> Result<Labels> {
    if let Some(labels) = options.and_then(|options| options.labels.as_ref()) {
        return Ok(Labels::new(labels));
    }
    if let Some(path) = options.and_then(|options| options.labels_file.as_ref()) {
        return Labels::read(path);
    }
    match (keys.labels.as_deref(), keys.labels_file.as_deref()) {
        (Some(_), Some(_)) => Err(config("[output] has both `labels` and `labels-file`: expected one of them".to_owned())),
        (Some([]), None) => {
            Err(config("[output] `labels`: expected at least one name, got none; leave it out if classes have no names".to_owned()))
        }
        (Some(labels), None) => Ok(Labels::new(labels)),
        (None, Some(file)) if file.as_os_str().is_empty() => {
            Err(config("[output] `labels-file`: expected the name of a file, got none; leave it out if classes have no names".to_owned()))
        }
        (None, Some(file)) => context.source.labels(file, &context.options.engine),
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
fn check_open(decoder: &dyn Decoder, outputs: &[(&str, &[usize])], input: Size) -> tensor::Result<u32> {
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
    let known = DecoderRegistry::built_in();
    match known.subject(name) {
        Some(_) => Ok(()),
        None => Err(config(unknown_decoder(name, "", known.names().collect()))),
    }
}

fn contradiction(decoder: &str, error: &tensor::Error) -> Error {
    let said = error.to_string();
    let said = said.strip_prefix(&format!("decoder `{decoder}`: ")).unwrap_or(&said);
    config(format!("[output] decoder `{decoder}` contradicts the model: {said}"))
}

/// The error of a key of this decoder. What serde says has its line, and gets the nearest key.
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

    /// The examples of the documentation, each with its number.
    fn examples() -> impl Iterator<Item = (usize, &'static str)> {
        PAGE.split("```toml\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(example, _)| example).enumerate()
    }

    #[test]
    fn the_examples_of_the_documentation_are_descriptions() {
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
