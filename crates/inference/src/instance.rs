//! An instance is a compiled model with its requests. The stages of an engine can share an instance.
//!
//! Stages can share an instance if their [`Settings`] and [`Role`] are equal. Each stage has its own preprocessing, decoders, labels,
//! thresholds and scheduling, which its jobs use. The registry [`Instances`] holds weak references, so dropping the last stage and the last
//! snapshot of an instance frees the model.
//!
//! While a stage compiles a model, it holds only the lock of that model's instance. So a model is compiled once, even if several stages
//! request it at the same time, and other models load in parallel.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use super::copies::Copies;
use super::dispatch::{BatchLimits, Queue};
use super::model_inputs::ModelInputs;
use super::spec::{DEFAULT_DEVICE, with_described_size};
use super::{ModelSpec, StageOptions};
use crate::runtime::{CompiledModel, Core, Dim, Error, ErrorKind, Model, ModelInfo, PartialShape, Result};

/// Maximum number of regions in a batch if no batch size is configured. All regions of such a batch belong to one frame.
const MAX_REGIONS_PER_BATCH: usize = 32;
/// Default batch timeout if a batch size is configured.
pub const DEFAULT_BATCH_TIMEOUT: Duration = Duration::from_millis(5);

/// Whether a stage shares its compiled model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Sharing {
    /// The stage has its own compiled model.
    #[default]
    Exclusive,
    /// All stages with the same model, device, requests and batch options share the compiled model.
    SameOptions,
    /// All stages with this name share the compiled model. If a stage does not set an option, it takes the value of the other stages
    /// with this name.
    Named(String),
}

/// The use of a model by a stage. Stages with different roles do not share a compiled model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Detector,
    /// Detects in the whole frame and in its tiles. A frame has several areas.
    DetectorOfTiles,
    /// Classifies regions. A frame can have several regions.
    Classifier,
    ClassifierOfFrames,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Detector => "detector",
            Self::DetectorOfTiles => "detector of tiles",
            Self::Classifier => "classifier",
            Self::ClassifierOfFrames => "classifier of frames",
        })
    }
}

/// A compiled model, its requests, and the queue of their jobs.
pub(super) struct Instance {
    pub(super) queue: Arc<Queue>,
    pub(super) model: CompiledModel,
    /// Ports and metadata of the model file, for batch size 1.
    pub(super) info: ModelInfo,
    /// Measured duration of a run; `None` until a warm-up has succeeded.
    pub(super) warmed_up: Mutex<Option<Duration>>,
    role: Role,
    settings: Settings,
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Options that determine a compiled model and its requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Settings {
    model: PathBuf,
    /// Modification time and size of the file, and of the weights of an OpenVINO IR, to detect replaced files.
    written: [Option<(SystemTime, u64)>; 2],
    device: Option<String>,
    /// Registration number of the device, to detect a replaced device.
    generation: u64,
    config: Option<String>,
    n_requests: Option<usize>,
    batch_size: Option<usize>,
    batch_timeout: Option<Duration>,
    input_width: Option<usize>,
}

impl Settings {
    fn of(options: &StageOptions, generation: u64) -> Self {
        let written = |path: &Path| std::fs::metadata(path).ok().and_then(|file| Some((file.modified().ok()?, file.len())));
        let written = [written(&options.model), written(&options.model.with_extension("bin"))];
        Self {
            model: std::fs::canonicalize(&options.model).unwrap_or_else(|_| options.model.clone()),
            written,
            device: options.device.clone(),
            generation,
            config: options.config.clone(),
            n_requests: options.n_requests,
            batch_size: options.batch_size,
            batch_timeout: options.batch_timeout,
            input_width: options.input_width,
        }
    }

    /// Fills in the defaults of options that the user omits. Settings are then equal whether a user sets a default explicitly or omits the
    /// option.
    fn with_defaults(mut self) -> Self {
        self.device.get_or_insert_with(|| DEFAULT_DEVICE.to_owned());
        self.batch_timeout = self.batch_size.filter(|&size| size > 1).and(self.batch_timeout.or(Some(DEFAULT_BATCH_TIMEOUT)));
        self
    }

    /// Returns a description of each option in `requested` whose value differs from the value in `self`.
    fn differences(&self, requested: &Self) -> Vec<String> {
        fn differs<T: PartialEq>(is: &Option<T>, requested: &Option<T>) -> bool {
            requested.is_some() && is != requested
        }
        fn text_of<T: fmt::Display>(value: &Option<T>, open: &str) -> String {
            value.as_ref().map_or_else(|| open.to_owned(), T::to_string)
        }
        let milliseconds = |time: &Option<Duration>| time.map(|time| time.as_millis());
        let mut differences = Vec::new();
        let mut report = |name: &str, is: String, requested: String| {
            differences.push(format!("{name}: {is} in the other element, {requested} in this one"))
        };
        if self.model != requested.model {
            report("model", format!("`{}`", self.model.display()), format!("`{}`", requested.model.display()));
        }
        let device = |settings: &Self| Some(settings.device.clone().unwrap_or_else(|| DEFAULT_DEVICE.to_owned()));
        if requested.device.is_some() && device(self) != requested.device {
            report("device", text_of(&device(self), ""), text_of(&requested.device, ""));
        }
        if differs(&self.config, &requested.config) {
            report("config", text_of(&self.config, "nothing"), text_of(&requested.config, ""));
        }
        if differs(&self.n_requests, &requested.n_requests) {
            report("nireq", text_of(&self.n_requests, "the device's optimal number"), text_of(&requested.n_requests, ""));
        }
        if differs(&self.batch_size, &requested.batch_size) {
            report("batch-size", text_of(&self.batch_size, "0 (all regions of a frame)"), text_of(&requested.batch_size, ""));
        }
        if differs(&self.batch_timeout, &requested.batch_timeout) {
            let (is, requested) = (milliseconds(&self.batch_timeout), milliseconds(&requested.batch_timeout));
            report("batch-timeout", text_of(&is, &DEFAULT_BATCH_TIMEOUT.as_millis().to_string()), text_of(&requested, ""));
        }
        differences
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    SameOptions(Role, Settings),
    Named(String),
}

/// What selects a model of a snapshot: its role, its options, and how it is shared. The path is the one of the options, because a link may lead
/// to another file later.
pub(super) type SnapshotKey = (Role, Settings, Sharing);
/// A model of a snapshot. `None` until it is loaded.
pub(super) type HeldInstance = Arc<Mutex<Option<Arc<Instance>>>>;

/// A weak reference to an instance. The lock of the slot is held while the instance is created.
type InstanceSlot = Arc<Mutex<Weak<Instance>>>;

/// The compiled models of an engine.
#[derive(Default)]
pub(super) struct Instances(Mutex<HashMap<Key, InstanceSlot>>);

fn slot(instances: &Instances, key: Key) -> InstanceSlot {
    let mut slots = instances.0.lock().unwrap();
    slots.retain(|_, slot| {
        // Keep the slot if another reference to it exists, because a thread is then creating the instance.
        Arc::strong_count(slot) > 1 || slot.lock().unwrap_or_else(PoisonError::into_inner).strong_count() > 0
    });
    slots.entry(key).or_default().clone()
}

/// Returns the instance for these options: the one in the snapshot of the options, or one that can be shared. Otherwise creates it.
pub(super) fn instance(options: &StageOptions, role: Role) -> Result<Arc<Instance>> {
    let (core, generation) = options.engine.core_for(options.device.as_deref());
    let settings = Settings::of(options, generation);
    let Some(snapshot) = options.snapshot.as_ref().filter(|_| options.sharing != Sharing::Exclusive) else {
        return shared(&core, options, settings, role);
    };
    let key = Settings { model: options.model.clone(), written: [None; 2], ..settings.clone() };
    let held = snapshot.model((role, key, options.sharing.clone()));
    let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(instance) = &*held {
        return Ok(instance.clone());
    }
    let instance = shared(&core, options, settings, role)?;
    Ok(held.insert(instance).clone())
}

/// Returns an instance that can be shared. Creates the instance if there is none.
fn shared(core: &Core, options: &StageOptions, settings: Settings, role: Role) -> Result<Arc<Instance>> {
    let compile = |settings| load(core, options, settings, role);
    let (key, name) = match &options.sharing {
        Sharing::Exclusive => return compile(settings).map(Arc::new),
        Sharing::SameOptions => (Key::SameOptions(role, settings.clone().with_defaults()), None),
        Sharing::Named(name) => (Key::Named(name.clone()), Some(name)),
    };
    let slot = slot(options.engine.instances(), key);
    let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(existing) = held.upgrade() {
        let wrong = |differences: String| {
            let name = name.map_or("", String::as_str);
            Error::new(
                ErrorKind::Config,
                format!(
                    "sharing model-instance-id `{name}` failed: expected the same options as the other element, got {differences}. Set equal options, or use another model-instance-id"
                ),
            )
        };
        if existing.role != role {
            return Err(wrong(format!("the other element is a {}, this one is a {role}", existing.role)));
        }
        let differences = if name.is_some() { existing.settings.differences(&settings) } else { Vec::new() };
        return if differences.is_empty() { Ok(existing) } else { Err(wrong(differences.join("; "))) };
    }
    let instance = Arc::new(compile(settings)?);
    *held = Arc::downgrade(&instance);
    Ok(instance)
}

fn load(core: &Core, options: &StageOptions, settings: Settings, role: Role) -> Result<Instance> {
    let model = with_described_size(&core.read_model(options.source()?)?, options)?;
    let device = options.device.as_deref().unwrap_or(DEFAULT_DEVICE);
    let config = options.config()?;
    let unbatched = BatchLimits { max_items: 1, timeout: None };
    let is_urgent = role == Role::Classifier;
    let batches_regions = is_urgent || role == Role::DetectorOfTiles;
    let is_unbatched = options.batch_size.map_or(!batches_regions, |max| max <= 1);
    // If batches are not used, a dynamic batch axis is fixed at 1, because engines are faster with static shapes. With a dynamic batch
    // axis, UltraFace takes 25 % longer on OpenVINO.
    let pinned = is_unbatched.then(|| with_batch_size_one(&model)).flatten();
    // Check the ports before requests are created, because a stage supports only models with one image input.
    let accept = |info: &ModelInfo| ModelSpec::load(options, info).map(drop);
    let compile = |model: &Model| Copies::compile(core, model, device, options, &config, &accept);
    let copies = match pinned.as_ref().map(compile) {
        Some(Ok(pinned)) => pinned,
        Some(Err(error)) if matches!(error.kind(), ErrorKind::Config | ErrorKind::Io) => return Err(error),
        // If there is no model with a fixed batch axis, or it cannot be compiled, compile the original model. Errors then refer
        // to the shapes in the user's file.
        Some(Err(_)) | None => compile(&model)?,
    };
    let single = &copies.first;
    // Take the ports and metadata before `open_rows` reshapes the model for batches, because a device may report less for a reshaped model.
    let info = single.info().clone();
    let n_images = ModelSpec::load(options, &info)?.n_images;
    let (copies, limits) = match options.batch_size {
        // Runs with fewer items are padded.
        Some(max @ 2..) if n_images > 1 => {
            let timeout = Some(options.batch_timeout.unwrap_or(DEFAULT_BATCH_TIMEOUT));
            (copies, BatchLimits { max_items: max.min(n_images), timeout })
        }
        None if n_images > 1 && batches_regions => (copies, BatchLimits { max_items: n_images, timeout: None }),
        Some(max @ 2..) => {
            let timeout = Some(options.batch_timeout.unwrap_or(DEFAULT_BATCH_TIMEOUT));
            (Copies::one(core.open_rows(&model, device, single, max)?), BatchLimits { max_items: max, timeout })
        }
        None if batches_regions && has_open_batch(single) && !single.computes_rows_in_turn() => {
            let limits = match single.check_rows(MAX_REGIONS_PER_BATCH) {
                Ok(()) => BatchLimits { max_items: MAX_REGIONS_PER_BATCH, timeout: None },
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    tracing::info!(model = %options.model.display(), "regions run without batching: {error}");
                    unbatched
                }
                Err(error) => return Err(error),
            };
            (copies, limits)
        }
        Some(_) | None => (copies, unbatched),
    };
    // Runs of classifiers have priority: frames reach a classifier after a detector, so these frames are older and have held memory longer.
    let model = copies.first.clone();
    let throttles = config.n_requests.is_none();
    let queue = Queue::new(copies, limits, is_urgent, throttles)?;
    Ok(Instance { queue, model, info, warmed_up: Mutex::new(None), role, settings })
}

/// Returns the model with the batch axes of its image input and of its inputs for numbers fixed at 1. `None` if the model has other inputs
/// or if a batch axis is static.
fn with_batch_size_one(model: &Model) -> Option<Model> {
    let ports = &model.info().inputs;
    let inputs = ModelInputs::of(ports)?;
    let pinned = |port_idx: usize| {
        let rest = ports[port_idx].shape.dims().split_first().filter(|(first, _)| first.is_open() && first.admits(1))?.1;
        PartialShape::new([Dim::Fixed(1)].into_iter().chain(rest.iter().copied()).collect()).ok()
    };
    let image = (inputs.image, pinned(inputs.image)?);
    let numbers = inputs.numbers.iter().filter_map(|&(input, _)| Some((input, pinned(input)?)));
    model.reshape([image].into_iter().chain(numbers)).ok()
}

/// Whether the model has one input that accepts any number of batch items up to [`MAX_REGIONS_PER_BATCH`].
fn has_open_batch(model: &CompiledModel) -> bool {
    match model.inputs() {
        [input] => {
            input.shape.dims().first().is_some_and(|first| first.is_open() && first.admits(1) && first.admits(MAX_REGIONS_PER_BATCH))
        }
        _ => false,
    }
}
