//! Compiled models with their requests, shared by all stages of an engine that ask for the same.
//!
//! What counts as the same is what the compiled model and its requests are made of, [`Settings`], and what the stage does, [`Role`]. How a
//! picture becomes an input, how outputs are read, labels, thresholds and which frame is next are each stage's own: its jobs bring them
//! along. The register holds instances weakly; the last stage that goes frees the model on its own thread, before its drop returns.
//!
//! Who loads holds the lock of the instance's slot only, so that a model is compiled once however many ask for it at the same
//! time, and others load meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use super::copies::Copies;
use super::dispatch::{BatchLimits, Queue};
use super::spec::{DEFAULT_DEVICE, with_described_size};
use super::{ModelSpec, StageOptions};
use crate::runtime::{CompiledModel, Core, Dim, Error, ErrorKind, Model, ModelInfo, PartialShape, Result};

/// The most regions of one frame that run in one call where nobody says how many.
const MAX_REGIONS_PER_BATCH: usize = 32;
/// How long a job waits for company where a batch size is asked for and no time limit.
pub const DEFAULT_BATCH_TIMEOUT: Duration = Duration::from_millis(5);

/// With whom a stage shares its compiled model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Sharing {
    /// With nobody.
    #[default]
    Exclusive,
    /// With all who ask for the same model, device, requests and batches.
    SameOptions,
    /// With all who give this name. What one of them leaves open is as the others have it.
    Named(String),
}

/// What a stage does with its model. Stages that do different things do not share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Detector,
    /// Of regions, of which a frame may have several.
    Classifier,
    ClassifierOfFrames,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Detector => "detector",
            Self::Classifier => "classifier",
            Self::ClassifierOfFrames => "classifier of frames",
        })
    }
}

/// A compiled model, its requests and the jobs of all who share it.
pub(super) struct Instance {
    pub(super) queue: Arc<Queue>,
    pub(super) model: CompiledModel,
    /// What the file says of it, for one row.
    pub(super) info: ModelInfo,
    /// How long a run takes, once that was measured.
    pub(super) warmed_up: Mutex<Option<Duration>>,
    role: Role,
    settings: Settings,
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// What a compiled model and its requests are made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Settings {
    model: PathBuf,
    /// Tells a file from one that took its slot.
    written: Option<(SystemTime, u64)>,
    device: Option<String>,
    /// Tells a device of the application's own from one that took its slot.
    generation: u64,
    config: Option<String>,
    n_requests: Option<usize>,
    batch_size: Option<usize>,
    batch_timeout: Option<Duration>,
}

impl Settings {
    fn of(options: &StageOptions, generation: u64) -> Self {
        let written = std::fs::metadata(&options.model).ok().and_then(|file| Some((file.modified().ok()?, file.len())));
        Self {
            model: std::fs::canonicalize(&options.model).unwrap_or_else(|_| options.model.clone()),
            written,
            device: options.device.clone(),
            generation,
            config: options.config.clone(),
            n_requests: options.n_requests,
            batch_size: options.batch_size,
            batch_timeout: options.batch_timeout,
        }
    }

    /// With its value in the slot of what is left open, so that who says it and who does not are alike.
    fn with_defaults(mut self) -> Self {
        self.device.get_or_insert_with(|| DEFAULT_DEVICE.to_owned());
        self.batch_timeout = self.batch_size.filter(|&size| size > 1).and(self.batch_timeout.or(Some(DEFAULT_BATCH_TIMEOUT)));
        self
    }

    /// What is asked for and is not so, both sides of each; nothing where it is left open.
    fn differences(&self, asked: &Self) -> Vec<String> {
        fn differs<T: PartialEq>(is: &Option<T>, asked: &Option<T>) -> bool {
            asked.is_some() && is != asked
        }
        fn said<T: fmt::Display>(value: &Option<T>, open: &str) -> String {
            value.as_ref().map_or_else(|| open.to_owned(), T::to_string)
        }
        let milliseconds = |time: &Option<Duration>| time.map(|time| time.as_millis());
        let mut found = Vec::new();
        let mut say = |name: &str, is: String, asked: String| found.push(format!("{name}: {is}, and here {asked}"));
        if self.model != asked.model {
            say("model", format!("`{}`", self.model.display()), format!("`{}`", asked.model.display()));
        }
        let device = |settings: &Self| Some(settings.device.clone().unwrap_or_else(|| DEFAULT_DEVICE.to_owned()));
        if asked.device.is_some() && device(self) != asked.device {
            say("device", said(&device(self), ""), said(&asked.device, ""));
        }
        if differs(&self.config, &asked.config) {
            say("config", said(&self.config, "nothing"), said(&asked.config, ""));
        }
        if differs(&self.n_requests, &asked.n_requests) {
            say("nireq", said(&self.n_requests, "what the device likes best"), said(&asked.n_requests, ""));
        }
        if differs(&self.batch_size, &asked.batch_size) {
            say("batch-size", said(&self.batch_size, "0 (the regions of a frame)"), said(&asked.batch_size, ""));
        }
        if differs(&self.batch_timeout, &asked.batch_timeout) {
            let (is, asked) = (milliseconds(&self.batch_timeout), milliseconds(&asked.batch_timeout));
            say("batch-timeout", said(&is, &DEFAULT_BATCH_TIMEOUT.as_millis().to_string()), said(&asked, ""));
        }
        found
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    SameOptions(Role, Settings),
    Named(String),
}

/// Where one instance is, if it is; locked while it is made.
type InstanceSlot = Arc<Mutex<Weak<Instance>>>;

/// The compiled models of an engine.
#[derive(Default)]
pub(super) struct Instances(Mutex<HashMap<Key, InstanceSlot>>);

fn slot(instances: &Instances, key: Key) -> InstanceSlot {
    let mut slots = instances.0.lock().unwrap();
    slots.retain(|_, slot| {
        // Who loads holds a share of it.
        Arc::strong_count(slot) > 1 || slot.lock().unwrap_or_else(PoisonError::into_inner).strong_count() > 0
    });
    slots.entry(key).or_default().clone()
}

/// The instance that these options ask for: one that is there, or a new one.
pub(super) fn instance(options: &StageOptions, role: Role) -> Result<Arc<Instance>> {
    let (core, generation) = options.engine.core_for(options.device.as_deref());
    let settings = Settings::of(options, generation);
    let compile = |settings| load(&core, options, settings, role);
    let (key, name) = match &options.sharing {
        Sharing::Exclusive => return compile(settings).map(Arc::new),
        Sharing::SameOptions => (Key::SameOptions(role, settings.clone().with_defaults()), None),
        Sharing::Named(name) => (Key::Named(name.clone()), Some(name)),
    };
    let slot = slot(options.engine.instances(), key);
    let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = held.upgrade() {
        let wrong = |why: String| {
            let name = name.map_or("", String::as_str);
            Error::new(
                ErrorKind::Config,
                format!(
                    "model-instance-id `{name}` is in use by another element, and they differ: {why}; say the same, or give another model-instance-id"
                ),
            )
        };
        if there.role != role {
            return Err(wrong(format!("it is a {}, and here a {role}", there.role)));
        }
        let found = if name.is_some() { there.settings.differences(&settings) } else { Vec::new() };
        return if found.is_empty() { Ok(there) } else { Err(wrong(found.join("; "))) };
    }
    let made = Arc::new(compile(settings)?);
    *held = Arc::downgrade(&made);
    Ok(made)
}

fn load(core: &Core, options: &StageOptions, settings: Settings, role: Role) -> Result<Instance> {
    let model = with_described_size(&core.read_model(&options.model)?, options)?;
    let device = options.device.as_deref().unwrap_or(DEFAULT_DEVICE);
    let config = options.config()?;
    let unbatched = BatchLimits { max_items: 1, timeout: None };
    let runs_regions = role == Role::Classifier;
    let is_unbatched = options.batch_size.map_or(!runs_regions, |max| max <= 1);
    // Engines compute faster at shapes that they know: UltraFace takes a quarter more time on OpenVINO with its batch left open.
    let pinned = is_unbatched.then(|| with_batch_size_one(&model)).flatten();
    // Before requests are made, which are of a model with one picture as its input.
    let accept = |info: &ModelInfo| ModelSpec::load(options, info).map(drop);
    let compile = |model: &Model| Copies::compile(core, model, device, options, &config, &accept);
    let copies = match pinned.as_ref().map(compile) {
        Some(Ok(pinned)) => pinned,
        Some(Err(error)) if matches!(error.kind(), ErrorKind::Config | ErrorKind::Io) => return Err(error),
        // What is wrong with the model is told of the model as the user has it.
        Some(Err(_)) | None => compile(&model)?,
    };
    let single = &copies.first;
    // As the file has it: of an axis that was opened the device may know less.
    let info = single.info().clone();
    let (copies, limits) = match options.batch_size {
        Some(max @ 2..) => {
            let timeout = Some(options.batch_timeout.unwrap_or(DEFAULT_BATCH_TIMEOUT));
            (Copies::one(core.open_rows(&model, device, single, max)?), BatchLimits { max_items: max, timeout })
        }
        None if runs_regions && has_open_batch(single) && !single.computes_rows_in_turn() => {
            let limits = match single.check_rows(MAX_REGIONS_PER_BATCH) {
                Ok(()) => BatchLimits { max_items: MAX_REGIONS_PER_BATCH, timeout: None },
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    tracing::info!(model = %options.model.display(), "the regions of a frame are run one by one: {error}");
                    unbatched
                }
                Err(error) => return Err(error),
            };
            (copies, limits)
        }
        Some(_) | None => (copies, unbatched),
    };
    // A frame whose regions wait has been through a detector: it is older than those that wait for one, and holds its memory.
    let model = copies.first.clone();
    let throttles = config.n_requests.is_none();
    let queue = Queue::new(copies, limits, runs_regions, throttles)?;
    Ok(Instance { queue, model, info, warmed_up: Mutex::new(None), role, settings })
}

/// The model with its only input's first axis fixed at 1, if it is open; `None` where there is nothing to fix.
fn with_batch_size_one(model: &Model) -> Option<Model> {
    let [input] = &*model.info().inputs else { return None };
    let dims = input.shape.dims();
    let rest = dims.split_first().filter(|(first, _)| first.is_open() && first.admits(1))?.1;
    let shape = PartialShape::new([Dim::Fixed(1)].into_iter().chain(rest.iter().copied()).collect()).ok()?;
    model.reshape([(0, shape)]).ok()
}

/// Whether the only input takes one row or as many as a frame may have, as it is.
fn has_open_batch(model: &CompiledModel) -> bool {
    match model.inputs() {
        [input] => {
            input.shape.dims().first().is_some_and(|first| first.is_open() && first.admits(1) && first.admits(MAX_REGIONS_PER_BATCH))
        }
        _ => false,
    }
}
