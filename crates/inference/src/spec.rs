//! Parses and completes model descriptions (`model.toml`), and checks them against the model's ports.
//!
//! Only this module reads the format. Its submodules:
//!
//! - `input` reads the part about preprocessing, `clip` the part about inputs of several frames, `output` the part about decoders.
//! - `description` finds the description of a model. `known` contains the built-in descriptions.
//! - `deduce` creates a description from a model's metadata and ports, `model_proc` from a DL Streamer file.
//! - `draft` writes a description as text.
//!
//! This module never guesses the preprocessing or decoding of a model. If it finds no description, its error names the file that the user
//! must write.

mod clip;
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
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use self::clip::WrittenClip;
use self::input::WrittenInput;
use super::labels::Labels;
use super::model_inputs::ModelInputs;
use super::{Engine, GalleryChoice, Scheduling, Sharing, Snapshot};
use crate::frame::Size;
use crate::runtime::{CompiledModel, Config, Error, ErrorKind, Model, ModelInfo, ModelSource, Port, Result};
use crate::tensor::Shape;
use crate::vision::decode::{Decoder, Subject};
use crate::vision::{Crop, Preprocess};

pub(crate) use self::clip::MAX_CLIP_BYTES;
pub use self::clip::{Clip, ClipLayout};
pub use self::description::{Description, KnownBy, Source};
pub use self::output::Head;

/// Options of a stage. Only `model` is required.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StageOptions {
    /// The model file.
    pub model: PathBuf,
    /// The description file. Default: the first of these that exists: a file next to the model, a built-in description, the
    /// model's metadata.
    pub description: Option<PathBuf>,
    /// The text of a description, instead of a file. Its `labels-file` is relative to the working folder.
    pub description_text: Option<String>,
    /// A model-proc file of DL Streamer, instead of a description.
    pub model_proc: Option<PathBuf>,
    /// The device. Default: [`DEFAULT_DEVICE`].
    pub device: Option<String>,
    /// Labels, which replace the labels of the description.
    pub labels: Option<Vec<String>>,
    /// A file with labels, which replace the labels of the description.
    pub labels_file: Option<PathBuf>,
    /// The gallery of a classifier with the decoder `embedding`.
    pub gallery: GalleryChoice,
    /// The threshold, which replaces the threshold of the description.
    pub threshold: Option<f32>,
    /// Thresholds of single classes of a detector, as text: `person=0.6,car=0.4`.
    pub class_thresholds: Option<String>,
    /// Labels of the only classes of a detector that are reported, as text: `person,car`.
    pub keep_classes: Option<String>,
    /// Labels of the classes of a detector that are not reported, as text: `person,car`.
    pub drop_classes: Option<String>,
    /// The IoU threshold, which replaces the IoU threshold of the description.
    pub iou_threshold: Option<f32>,
    /// Options of the compiled model as text, such as `performance=latency,threads=2`; see [`Config::set_all`]. If an option is also
    /// set by one of the following fields, the field takes precedence.
    pub config: Option<String>,
    /// Number of inference requests. Default: the device's optimal number of requests.
    pub n_requests: Option<usize>,
    /// Order in which waiting frames run.
    pub scheduling: Scheduling,
    /// Maximum batch size. Frames and regions of all streams wait for each other to fill a batch. Default: the regions of a frame form a
    /// batch if the model and device support it.
    pub batch_size: Option<usize>,
    /// Maximum time that a frame waits for a full batch, if a batch size is set. Default:
    /// [`DEFAULT_BATCH_TIMEOUT`](super::DEFAULT_BATCH_TIMEOUT).
    pub batch_timeout: Option<Duration>,
    /// Width of the input, which replaces the width in `size` of the description. Default: the width of the description.
    pub input_width: Option<usize>,
    /// Whether other stages may share the compiled model and its requests.
    pub sharing: Sharing,
    /// The engine: devices, decoders and compiled models. Default: the engine of the process.
    pub engine: Engine,
    /// Models and files that an earlier stage has read, and that are not read again. Default: the stage reads the files.
    pub snapshot: Option<Snapshot>,
}

/// The thresholds of a stage and its reported classes, which can change while the stage runs. `None`: the value of the description.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Thresholds {
    /// Minimum confidence of results.
    pub threshold: Option<f32>,
    /// Thresholds of single classes of a detector, as text: `person=0.6,car=0.4`.
    pub class_thresholds: Option<String>,
    /// Labels of the only classes of a detector that are reported, as text.
    pub keep_classes: Option<String>,
    /// Labels of the classes of a detector that are not reported, as text.
    pub drop_classes: Option<String>,
    /// IoU threshold of a detector.
    pub iou_threshold: Option<f32>,
}

/// The default device.
pub const DEFAULT_DEVICE: &str = "AUTO";
/// The device that runs models on inference servers, and its option with the address of a model.
const REMOTE_DEVICE: &str = "REMOTE";
const REMOTE_URL: &str = "remote.url";
/// The environment variable with the default of that option.
const REMOTE_VARIABLE: &str = "ROIFLOW_REMOTE_URL";

/// A complete description that was checked against its model.
#[derive(Debug, Clone)]
pub struct ModelSpec {
    /// Name of the results. For a classifier: name of the attribute.
    pub name: Arc<str>,
    /// Name of the model: its file name without extension.
    pub model_name: Arc<str>,
    /// Task of the model.
    pub task: Task,
    /// Decoders of the model's outputs; at least one.
    pub heads: Vec<Head>,
    /// Preprocessing of the model's input.
    pub preprocess: Preprocess,
    /// How a region is derived from a detection. Detectors have the default value.
    pub crop: Crop,
    /// How the input consists of frames, if it is a clip.
    pub clip: Option<Clip>,
    /// Width and height of the input.
    pub input_size: Size,
    /// Shape of the input with batch size 1.
    pub input_shape: Shape,
    /// Number of images that each run computes: 1, unless the model has a fixed batch size.
    pub n_images: usize,
    /// Larger widths of the input, in ascending order. Wide regions run with the first width into which they fit.
    pub widths: Vec<usize>,
    /// Labels of a detector, or of a classifier with one head.
    pub labels: Labels,
    /// The values that were assumed for missing keys, one sentence per key.
    pub assumed: Vec<String>,
    /// Source of the description.
    pub source: Source,
    /// The section `[model]`: origin and license of the model.
    pub origin: WrittenModel,
    /// Other decoders that accept the outputs of a detector, with their names and the same threshold.
    pub(crate) other_decoders: Vec<(Arc<str>, Arc<dyn Decoder>)>,
}

/// Task of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Detects objects in frames or regions.
    Detection,
    /// Classifies images; each head gives an attribute.
    Classification,
}

impl Task {
    /// Returns what a decoder for this task must produce.
    fn subject(self) -> Subject {
        match self {
            Self::Detection => Subject::Objects,
            Self::Classification => Subject::Attributes,
        }
    }
}

/// Formats the value of the key `task`.
impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Detection => "detection",
            Self::Classification => "classification",
        })
    }
}

impl ModelSpec {
    /// Finds and reads the description of a model and checks it against the model's ports.
    ///
    /// # Errors
    /// Returns the errors of [`Description::find`] and [`ModelSpec::of_description`].
    pub fn load(options: &StageOptions, info: &ModelInfo) -> Result<Self> {
        let description = Description::find(options, info)?;
        Self::of_description(&description, options, info)
    }

    /// Reads a description and checks it against the model's ports.
    ///
    /// # Errors
    /// Returns `Io` if a labels file cannot be read. Returns `Config` with the location if the description is invalid or contradicts the
    /// model.
    pub fn of_description(description: &Description, options: &StageOptions, info: &ModelInfo) -> Result<Self> {
        let named = |error: Error| error.context(format!("model description {}", description.source));
        Self::parse(description, options, info).map_err(named)
    }

    fn parse(description: &Description, options: &StageOptions, info: &ModelInfo) -> Result<Self> {
        let mut written = Written::of_text(&description.text).map_err(|error| config(with_hint(&error)))?;
        written.input.set_width(options.input_width);
        if written.version != 1 {
            return Err(config(format!("expected `version = 1`, got {}", written.version)));
        }
        let mut assumed = description.assumed.clone();
        let preprocess = written.input.preprocess(&mut assumed)?;
        let inputs = ModelInputs::of(&info.inputs).ok_or_else(|| {
            let inputs = info.inputs.iter().map(Port::to_string).collect::<Vec<_>>().join(", ");
            config(format!(
                "expected a model with one image input, and optionally inputs [1, 2] for its size and scale; `{}` has {} inputs: {inputs}",
                options.model.display(),
                info.inputs.len()
            ))
        })?;
        let port = &info.inputs[inputs.image];
        let clip = match &written.clip {
            None => None,
            Some(_) if written.task != Task::Classification => {
                return Err(config("[clip]: expected a classifier, got a detector. Remove the section".to_owned()));
            }
            Some(clip) => Some((clip, clip.clip_port(port)?)),
        };
        let widths = written.input.widths(written.task == Task::Classification && clip.is_none(), &preprocess)?;
        let image_port = clip.as_ref().map_or(port, |(_, clip_port)| &clip_port.frame);
        let image_shape = written.input.image_shape(image_port, &preprocess)?;
        let n_images = image_shape.first().copied().unwrap_or(1);
        if n_images != 1 && (clip.is_some() || n_images == 0) {
            return Err(config(format!(
                "the model's input {port} has a batch size of {n_images}: export the model with batch size 1 or a dynamic batch size"
            )));
        }
        let image_shape = Shape::new(&[&[1], &image_shape[1..]].concat());
        let input_size = preprocess
            .input_size(&image_shape)
            .and_then(|size| preprocess.check_element(port.element).map(|()| size))
            .map_err(|error| {
                config(format!("the description contradicts the model's input {port}: {error}. Correct `layout` or `color` in [input]"))
            })?;
        let (clip, input_shape) = match &clip {
            None => (None, image_shape),
            Some((clip, clip_port)) => clip.read(port, clip_port, image_shape).map(|(clip, input_shape)| (Some(clip), input_shape))?,
        };
        let model_name: Arc<str> = stem_of(&options.model).map_or("model".into(), Arc::from);
        if written.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
            return Err(config(
                "`name`: expected at least one letter, got none. Remove the key to use the name of the model file".to_owned(),
            ));
        }
        let name = written.name.as_deref().map_or_else(|| model_name.clone(), Arc::from);
        let source = &description.source;
        let context = output::Context { task: written.task, options, source, info, input_size, name: &name };
        let (heads, labels, n_classes) = output::read(&description.text, &context, &mut assumed)?;
        output::check_labels(&labels, n_classes)?;
        if heads.iter().any(|head| head.decoder.threshold().is_some() && head.labels.is_empty()) {
            assumed.push("the description has no labels: classes are reported by number".to_owned());
        }
        let (task, crop) = (written.task, written.input.crop(written.task == Task::Classification)?);
        let (source, origin) = (source.clone(), written.model);
        let other_decoders = if task == Task::Detection { output::others(&heads, info, input_size) } else { Vec::new() };
        Ok(Self {
            name,
            model_name,
            task,
            heads,
            preprocess,
            crop,
            clip,
            input_size,
            input_shape,
            n_images,
            widths,
            labels,
            assumed,
            source,
            origin,
            other_decoders,
        })
    }

    /// Whether this is the name of a built-in description.
    pub fn is_built_in(name: &str) -> bool {
        known::of_own_name(Path::new(name)).is_some()
    }

    /// Whether the model is a classifier, and one of its heads gives the attribute with this name.
    pub fn says(&self, name: &str) -> bool {
        self.task == Task::Classification && self.heads.iter().any(|head| *head.name == *name)
    }
}

impl StageOptions {
    /// Returns the thresholds.
    pub fn thresholds(&self) -> Thresholds {
        Thresholds {
            threshold: self.threshold,
            class_thresholds: self.class_thresholds.clone(),
            keep_classes: self.keep_classes.clone(),
            drop_classes: self.drop_classes.clone(),
            iou_threshold: self.iou_threshold,
        }
    }

    /// Returns these options with other thresholds.
    pub(super) fn with_thresholds(&self, thresholds: &Thresholds) -> Self {
        let Thresholds { threshold, class_thresholds, keep_classes, drop_classes, iou_threshold } = thresholds.clone();
        Self { threshold, class_thresholds, keep_classes, drop_classes, iou_threshold, ..self.clone() }
    }

    /// Returns options with the same model and engine. All other options have their defaults.
    pub(super) fn of_model_alone(&self) -> Self {
        Self { model: self.model.clone(), engine: self.engine.clone(), ..Self::default() }
    }

    /// Returns the options with the model in the option `remote.url`, or in `ROIFLOW_REMOTE_URL`, if the device is `REMOTE` and no model is set.
    #[must_use]
    pub fn with_remote_model(&self) -> Self {
        let mut options = self.clone();
        let is_open = options.model.as_os_str().is_empty() && options.device.as_deref() == Some(REMOTE_DEVICE);
        let url = || options.config().ok()?.engine_options.get(REMOTE_URL).cloned().or_else(|| std::env::var(REMOTE_VARIABLE).ok());
        if let Some(url) = is_open.then(url).flatten() {
            options.model = url.into();
        }
        options
    }

    /// Returns the source of the model: a file, or an address on an inference server, with the options that are needed to ask that server.
    pub(super) fn source(&self) -> Result<ModelSource> {
        match ModelSource::from(&self.model) {
            ModelSource::Remote(address) => {
                let mut text = address.to_string();
                for (name, value) in self.config()?.engine_options.iter().filter(|(name, _)| *name != REMOTE_URL) {
                    if let Some(name) = name.strip_prefix("remote.") {
                        text.push_str(&format!(",{name}={value}"));
                    }
                }
                Ok(ModelSource::Remote(text.into()))
            }
            source => Ok(source),
        }
    }

    /// Returns the options of the compiled model. Batch options in the text are an error, because stages form the batches.
    pub(super) fn config(&self) -> Result<Config> {
        let mut config = Config::default();
        config.set_all(self.config.as_deref().unwrap_or_default()).map_err(|error| error.context("config"))?;
        if config.cache_folder.is_none() {
            config.cache_folder = self.engine.cache_folder();
        }
        let given = Config::default();
        if (config.batch_size, config.batch_timeout) != (given.batch_size, given.batch_timeout) {
            let message =
                "config: expected no batch-size and no batch-timeout, because they are separate properties. Set these properties instead";
            return Err(Error::new(ErrorKind::Config, message));
        }
        config.n_requests = self.n_requests.or(config.n_requests);
        Ok(config)
    }
}

/// Reads a model, compiles it for batch size 1, and reads its description.
///
/// # Errors
/// Returns the errors of [`ModelSpec::load`], and the errors of reading and compiling.
pub fn load_model(options: &StageOptions) -> Result<(CompiledModel, ModelSpec)> {
    let (core, _) = options.engine.core_for(options.device.as_deref());
    let config = options.config()?;
    let device = options.device.as_deref().unwrap_or(DEFAULT_DEVICE);
    let model = with_described_size(&core.read_model(options.source()?)?, options)?;
    let compiled = core.compile_accepted(&model, device, &config, &|info| ModelSpec::load(options, info).map(drop))?;
    let spec = describe(options, compiled.info())?;
    Ok((compiled, spec))
}

/// Returns the labels in the description of a model. The model is read, but not compiled.
///
/// # Errors
/// Returns the errors of [`ModelSpec::load`]. Also returns an error if the outputs are known only after compilation, as for some models.
pub fn described_labels(options: &StageOptions) -> Result<Labels> {
    let (core, _) = options.engine.core_for(options.device.as_deref());
    let model = with_described_size(&core.read_model(options.source()?)?, options)?;
    ModelSpec::load(options, model.info()).map(|spec| spec.labels)
}

/// Returns the task in the description of a model. The model is read, but not compiled.
///
/// # Errors
/// Returns the errors of [`Description::find`], and the errors of reading. Returns `Config` if the description has no valid `task`.
pub fn described_task(options: &StageOptions) -> Result<Task> {
    #[derive(Deserialize)]
    struct WithTask {
        task: Task,
    }
    let (core, _) = options.engine.core_for(options.device.as_deref());
    let model = with_described_size(&core.read_model(options.source()?)?, options)?;
    let found = Description::find(options, model.info())?;
    let WithTask { task } =
        toml::from_str(&found.text).map_err(|error| config(with_hint(&error)).context(format!("model description {}", found.source)))?;
    Ok(task)
}

/// Replaces a dynamic width and height of the image input, and a dynamic number of frames of a clip, by the values of the description. For
/// some models, the output shapes are known only after this replacement. Returns the model unchanged if these extents are static, or if it
/// has no description yet.
///
/// # Errors
/// Returns the errors of [`Model::reshape`].
pub fn with_described_size(model: &Model, options: &StageOptions) -> Result<Model> {
    let Some(inputs) = ModelInputs::of(&model.info().inputs) else { return Ok(model.clone()) };
    let port = &model.info().inputs[inputs.image];
    if port.shape.dims().iter().skip(1).all(|dim| !dim.is_open()) {
        return Ok(model.clone());
    }
    // Ignore errors in the description. They are reported later, when the description is compared with the compiled model.
    let described =
        Description::find(options, model.info()).ok().and_then(|found| Written::of_text(&found.text).ok()).map(|mut written| {
            written.input.set_width(options.input_width);
            written
        });
    let sized = |written: Written| match &written.clip {
        None => written.input.sized(port),
        Some(clip) => clip.sized(port, &written.input),
    };
    match described.and_then(sized) {
        Some(shape) => model.reshape([(inputs.image, shape)]),
        None => Ok(model.clone()),
    }
}

/// Reads the description of a model with these ports. Logs its source and the assumed values.
///
/// # Errors
/// Returns the errors of [`ModelSpec::load`].
pub(super) fn describe(options: &StageOptions, info: &ModelInfo) -> Result<ModelSpec> {
    let description = Description::find(options, info)?;
    let spec = ModelSpec::of_description(&description, options, info)?;
    if let (Some(snapshot), None) = (&options.snapshot, &options.description_text) {
        snapshot.keep_description(options, description);
    }
    tracing::info!(model = %options.model.display(), "description {}", spec.source);
    for assumption in &spec.assumed {
        tracing::info!(model = %options.model.display(), "assumed: {assumption}");
    }
    Ok(spec)
}

/// Returns the name of a model: its file name without extension, or its name on an inference server without version.
pub(super) fn stem_of(model: &Path) -> Option<String> {
    match model.to_str().filter(|text| ModelSource::is_address(text)) {
        Some(address) => {
            let first = address.split(',').next()?;
            let name = first.rsplit('/').next()?;
            Some(name.split(':').next()?.to_owned())
        }
        None => model.file_stem().map(|stem| stem.to_string_lossy().into_owned()),
    }
}

/// Formats a TOML error, with a suggestion for a mistyped key or value.
fn with_hint(error: &toml::de::Error) -> String {
    format!("{}{}", error.to_string().trim_end(), super::hint_of_unknown(error.message()))
}

fn config(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

/// The parsed file.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Written {
    /// Version of this format: 1.
    version: u32,
    /// Task of the model.
    task: Task,
    /// Name of the results; for a classifier, the attribute's key in the JSON. Default: name of the model file.
    name: Option<String>,
    /// Identity and origin of the model. Has no effect on inference.
    #[serde(default)]
    model: WrittenModel,
    /// Preprocessing of the input.
    #[serde(default)]
    input: WrittenInput,
    /// Classifiers whose input is a clip of several frames.
    clip: Option<WrittenClip>,
    /// Decoding of the outputs.
    #[allow(dead_code, reason = "checks that the section exists; `output::read` reads its keys")]
    #[cfg_attr(test, schemars(schema_with = "schema::output"))]
    output: toml::Table,
}

impl Written {
    /// Parses the text of a description.
    fn of_text(text: &str) -> std::result::Result<Self, toml::de::Error> {
        let mut written: Self = toml::from_str(text)?;
        if let Some(clip) = &written.clip {
            written.input.set_layout(clip.layout.of_frame())?;
        }
        Ok(written)
    }
}

/// Identity and origin of the model. Has no effect on inference.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct WrittenModel {
    /// The model in one sentence.
    pub about: Option<String>,
    /// Authors.
    pub author: Option<String>,
    /// License of the weights, as an SPDX expression.
    pub license: Option<String>,
    /// Source of the file: a package, a repository or a web page.
    pub origin: Option<String>,
    /// How the description was verified.
    pub checked: Option<Checked>,
    /// Names of its files, without extension.
    pub files: Vec<String>,
    /// SHA-256 of its files; for an OpenVINO IR, of the XML file.
    pub sha256: Vec<String>,
    /// SHA-384 of its XML files, as listed in the Open Model Zoo.
    pub sha384: Vec<String>,
}

/// How a description was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Checked {
    /// The model was run, and its results were compared with those of another program.
    Run,
    /// The description was only compared with publications of the authors.
    Documentation,
}
