//! A model and its description: as written (`model.toml`), then as understood and checked against the model's ports.
//!
//! The only reader of that format; `input` has the part about the picture, `output` that about decoders. `description` finds the
//! description of a model, `known` has those that are built in, `deduce` makes one of what the model says of itself, `model_proc` of
//! a file of DL Streamer, and `draft` writes it down. Without one, the error names the file to write: a model's pre- and
//! post-processing are never guessed.

mod deduce;
mod description;
mod draft;
mod input;
mod known;
mod model_proc;
mod output;
mod outside;
#[cfg(test)]
mod schema;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use self::input::WrittenInput;
use super::labels::Labels;
use super::{Engine, Scheduling, Sharing};
use crate::frame::Size;
use crate::runtime::{CompiledModel, Config, Error, ErrorKind, Model, ModelInfo, Result};
use crate::tensor::Shape;
use crate::vision::decode::Subject;
use crate::vision::{Cut, Preprocess};

pub use self::description::{Description, Source};
pub use self::output::Head;

/// What a user asks of a stage. Everything but `model` may be left open.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StageOptions {
    /// The model file.
    pub model: PathBuf,
    /// The description; else the one beside the model, that of a known model, or what the model says of itself.
    pub description: Option<PathBuf>,
    /// A model-proc file of DL Streamer, instead of a description.
    pub model_proc: Option<PathBuf>,
    /// The device; else [`DEFAULT_DEVICE`].
    pub device: Option<String>,
    /// Instead of the description's labels.
    pub labels: Option<Vec<String>>,
    /// Instead of the description's labels.
    pub labels_file: Option<PathBuf>,
    /// Instead of the description's threshold.
    pub threshold: Option<f32>,
    /// Thresholds of single classes of a detector, as text: `person=0.6,car=0.4`.
    pub class_thresholds: Option<String>,
    /// Instead of the description's.
    pub iou_threshold: Option<f32>,
    /// Options of the compiled model as text, such as `performance=latency,threads=2`; see [`Config::set_all`]. What the fields below
    /// say comes first.
    pub config: Option<String>,
    /// How many requests run at once; else what the device likes best.
    pub n_requests: Option<usize>,
    /// Which frame is next, of those that wait for a request.
    pub scheduling: Scheduling,
    /// The most pictures or regions that run in one call; those of several frames and streams wait for each other then. Else the
    /// regions of each frame run in one call, where the model and its device gain by that.
    pub batch_size: Option<usize>,
    /// How long one waits for others at most, if a batch size is given; else [`DEFAULT_BATCH_TIMEOUT`](super::DEFAULT_BATCH_TIMEOUT).
    pub batch_timeout: Option<Duration>,
    /// With whom the compiled model and its requests are shared.
    pub sharing: Sharing,
    /// Whose devices, decoders and compiled models the stage uses; the default is that of the process.
    pub engine: Engine,
}

/// The device that is used where none is named.
pub const DEFAULT_DEVICE: &str = "AUTO";

/// A description that fits its model: nothing in it needs to be checked again.
#[derive(Debug, Clone)]
pub struct ModelSpec {
    /// What the model is called in results; of a classifier, the attribute's name.
    pub name: Arc<str>,
    /// The model's own name: its file without folder and ending.
    pub model_name: Arc<str>,
    /// What it does.
    pub task: Task,
    /// How its outputs are read; at least one.
    pub heads: Vec<Head>,
    /// How a frame becomes its input.
    pub preprocess: Preprocess,
    /// Which part of a frame is the picture of a detection; of a detector the default.
    pub cut: Cut,
    /// The input's extent.
    pub input_size: Size,
    /// The shape of an input with one picture.
    pub input_shape: Shape,
    /// Names of the classes of a detector, or of a classifier with one head.
    pub labels: Labels,
    /// What the description left open and what was taken instead, one sentence each.
    pub assumed: Vec<String>,
    /// Where the description comes from.
    pub source: Source,
    /// What the description says of the model's origin.
    pub origin: WrittenModel,
}

/// What a model does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Looks at frames, or at regions of them, and finds objects.
    Detection,
    /// Says something of an image, and with each head something else.
    Classification,
}

impl Task {
    /// What decoders of such models give.
    fn subject(self) -> Subject {
        match self {
            Self::Detection => Subject::Objects,
            Self::Classification => Subject::Attributes,
        }
    }
}

/// As descriptions call it.
impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Detection => "detection",
            Self::Classification => "classification",
        })
    }
}

impl ModelSpec {
    /// Finds and reads the description of a model, and checks it against the model's ports.
    ///
    /// # Errors
    /// As [`Description::find`] and [`ModelSpec::of_description`].
    pub fn load(options: &StageOptions, info: &ModelInfo) -> Result<Self> {
        let description = Description::find(options, info)?;
        Self::of_description(&description, options, info)
    }

    /// Reads a description, and checks it against the model's ports.
    ///
    /// # Errors
    /// `Io` if a file of labels can't be read, `Config` if the description is wrong or contradicts the model; the message says where.
    pub fn of_description(description: &Description, options: &StageOptions, info: &ModelInfo) -> Result<Self> {
        let named = |error: Error| error.context(format!("model description {}", description.source));
        Self::parse(description, options, info).map_err(named)
    }

    fn parse(description: &Description, options: &StageOptions, info: &ModelInfo) -> Result<Self> {
        let written: Written = toml::from_str(&description.text).map_err(|error| config(with_hint(&error)))?;
        if written.version != 1 {
            return Err(config(format!("expected `version = 1`, got {}", written.version)));
        }
        let mut assumed = description.assumed.clone();
        let preprocess = written.input.preprocess(&mut assumed)?;
        let port = match &*info.inputs {
            [port] => port,
            inputs => {
                return Err(config(format!(
                    "expected a model with one input, the picture; `{}` has {}",
                    options.model.display(),
                    inputs.len()
                )));
            }
        };
        let input_shape = written.input.picture_shape(port, &preprocess)?;
        if let Some(n_pictures @ 2..) = input_shape.first() {
            return Err(config(format!(
                "the model's input {port} takes {n_pictures} pictures at once: export it with a batch of 1, or an open one"
            )));
        }
        let input_size = preprocess
            .input_size(&input_shape)
            .and_then(|size| preprocess.check_element(port.element).map(|()| size))
            .map_err(|error| config(format!("it contradicts the model's input {port}: {error}; correct `layout` or `color` in [input]")))?;
        let model_name: Arc<str> = options.model.file_stem().map_or("model".into(), |stem| stem.to_string_lossy().into());
        if written.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
            return Err(config(
                "`name`: expected at least one letter, got none; leave it out to take the name of the model's file".to_owned(),
            ));
        }
        let name = written.name.as_deref().map_or_else(|| model_name.clone(), Arc::from);
        let source = &description.source;
        let context = output::Context { task: written.task, options, source, info, input_size, name: &name };
        let (heads, labels, n_classes) = output::read(&description.text, &context, &mut assumed)?;
        output::check_labels(&labels, n_classes)?;
        if heads.iter().any(|head| head.decoder.threshold().is_some() && head.labels.is_empty()) {
            assumed.push("no labels: classes are told by number".to_owned());
        }
        let (task, cut) = (written.task, written.input.cut(written.task == Task::Classification)?);
        let (source, origin) = (source.clone(), written.model);
        Ok(Self { name, model_name, task, heads, preprocess, cut, input_size, input_shape, labels, assumed, source, origin })
    }

    /// Whether this is one of its attributes.
    pub fn says(&self, name: &str) -> bool {
        self.task == Task::Classification && self.heads.iter().any(|head| *head.name == *name)
    }
}

impl StageOptions {
    /// The same model, and nothing asked of it.
    pub(super) fn of_model_alone(&self) -> Self {
        Self { model: self.model.clone(), engine: self.engine.clone(), ..Self::default() }
    }

    /// The options of the compiled model, without batches: those are gathered here, not behind the requests.
    pub(super) fn config(&self) -> Result<Config> {
        let mut config = Config::default();
        config.set_all(self.config.as_deref().unwrap_or_default()).map_err(|error| error.context("config"))?;
        if config.cache_folder.is_none() {
            config.cache_folder = self.engine.cache_folder();
        }
        let given = Config::default();
        if (config.batch_size, config.batch_timeout) != (given.batch_size, given.batch_timeout) {
            let message = "config: batch-size and batch-timeout have properties of their own; expected them there";
            return Err(Error::new(ErrorKind::Config, message));
        }
        config.n_requests = self.n_requests.or(config.n_requests);
        Ok(config)
    }
}

/// Reads, compiles and describes a model, for runs of one picture each.
///
/// # Errors
/// As [`ModelSpec::load`], and what reading and compiling say.
pub fn load_model(options: &StageOptions) -> Result<(CompiledModel, ModelSpec)> {
    let (core, _) = options.engine.core_for(options.device.as_deref());
    let config = options.config()?;
    let device = options.device.as_deref().unwrap_or(DEFAULT_DEVICE);
    let model = with_described_size(&core.read_model(&options.model)?, options)?;
    let compiled = core.compile_accepted(&model, device, &config, &|info| ModelSpec::load(options, info).map(drop))?;
    let spec = describe(options, compiled.info())?;
    Ok((compiled, spec))
}

/// The model with the width and height that its description gives, where its only input leaves them open: what a model says of its
/// outputs is known only then. The model as it is, if it leaves nothing open or has no description yet.
///
/// # Errors
/// Those of [`Model::reshape`].
pub fn with_described_size(model: &Model, options: &StageOptions) -> Result<Model> {
    let [port] = &*model.info().inputs else { return Ok(model.clone()) };
    if port.shape.dims().iter().skip(1).all(|dim| !dim.is_open()) {
        return Ok(model.clone());
    }
    // What is wrong with a description is said where it is compared with the compiled model.
    let described = Description::find(options, model.info()).ok().and_then(|found| toml::from_str::<Written>(&found.text).ok());
    match described.and_then(|written| written.input.sized(port)) {
        Some(shape) => model.reshape([(0, shape)]),
        None => Ok(model.clone()),
    }
}

/// Reads the description of a model with these ports, and says what it leaves open.
///
/// # Errors
/// As [`ModelSpec::load`].
pub(super) fn describe(options: &StageOptions, info: &ModelInfo) -> Result<ModelSpec> {
    let spec = ModelSpec::load(options, info)?;
    tracing::info!(model = %options.model.display(), "description {}", spec.source);
    for assumption in &spec.assumed {
        tracing::info!(model = %options.model.display(), "assumed: {assumption}");
    }
    Ok(spec)
}

/// What is wrong with a file in TOML, and the key or value that may have been meant.
fn with_hint(error: &toml::de::Error) -> String {
    format!("{}{}", error.to_string().trim_end(), super::hint_of_unknown(error.message()))
}

fn config(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

/// The file as written.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Written {
    /// The version of this format: 1.
    version: u32,
    /// What the model does.
    task: Task,
    /// What it is called in results; of a classifier, the attribute's key in the JSON. Default: the model file's name.
    name: Option<String>,
    /// Which model it is, and where it comes from; nothing of this changes how it runs.
    #[serde(default)]
    model: WrittenModel,
    /// How a picture becomes the model's input.
    #[serde(default)]
    input: WrittenInput,
    /// How its outputs are read.
    #[allow(
        dead_code,
        reason = "`output::read` reads it once more, with the keys of its decoders; that it is there is all that counts here"
    )]
    #[cfg_attr(test, schemars(schema_with = "schema::output"))]
    output: toml::Table,
}

/// Which model it is, and where it comes from; nothing of this changes how it runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct WrittenModel {
    /// What it is, in a sentence.
    pub about: Option<String>,
    /// Who made it.
    pub author: Option<String>,
    /// The license of its weights, as an SPDX expression.
    pub license: Option<String>,
    /// Where its file comes from: a package, a repository, a page.
    pub origin: Option<String>,
    /// How the description was checked.
    pub checked: Option<Checked>,
    /// What its files are called, without ending.
    pub files: Vec<String>,
    /// SHA-256 of its files; of an OpenVINO IR that of the XML file.
    pub sha256: Vec<String>,
    /// SHA-384 of its XML files, which the Open Model Zoo lists.
    pub sha384: Vec<String>,
}

/// How a description was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Checked {
    /// The model was run with it, and its answers compared with those of another program.
    Run,
    /// By what its authors write of it alone.
    Documentation,
}
