//! An engine is the context that stages share: devices, decoders, compiled models, and file access rules.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, PoisonError, RwLock};

use super::instance::Instances;
use super::spec::DEFAULT_DEVICE;
use crate::devices;
use crate::runtime::Core;
use crate::runtime::device::Device;
use crate::vision::decode::DecoderRegistry;

/// Devices, decoders, compiled models and file access rules. Clones of an engine share all of these.
///
/// Stages of different engines share nothing. [`StageOptions::engine`](super::StageOptions::engine) selects the engine of a stage. The
/// default is [`Engine::of_process`].
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    core: Core,
    /// Devices that the program has registered, each with its registration number.
    devices: RwLock<Vec<(u64, Arc<dyn Device>)>>,
    n_registered: AtomicU64,
    decoders: RwLock<DecoderRegistry>,
    cache_folder: OnceLock<Option<PathBuf>>,
    allows_outside_files: OnceLock<bool>,
    instances: Instances,
}

impl Engine {
    /// Creates an engine with the devices of `core` and the built-in decoders.
    pub fn new(core: Core) -> Self {
        Self(Arc::new(Shared {
            core,
            devices: RwLock::default(),
            n_registered: AtomicU64::new(0),
            decoders: RwLock::default(),
            cache_folder: OnceLock::new(),
            allows_outside_files: OnceLock::new(),
            instances: Instances::default(),
        }))
    }

    /// Returns the default engine of this process, with all built-in devices.
    pub fn of_process() -> &'static Self {
        static OF_PROCESS: LazyLock<Engine> = LazyLock::new(|| Engine::new(devices::core().clone()));
        &OF_PROCESS
    }

    /// Adds a device. Models that are loaded later can use it. If a registered device has the same name, the new device replaces
    /// it.
    pub fn register_device(&self, device: Arc<dyn Device>) {
        let mut devices = self.0.devices.write().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|(_, known)| known.name() != device.name());
        devices.push((self.0.n_registered.fetch_add(1, Ordering::Relaxed) + 1, device));
    }

    /// Returns a core with all devices, and the registration number of the device with this name. The number is 0 for a built-in
    /// device.
    pub(super) fn core_for(&self, device: Option<&str>) -> (Core, u64) {
        let mut core = self.0.core.clone();
        let more = self.0.devices.read().unwrap_or_else(PoisonError::into_inner);
        more.iter().for_each(|(_, device)| core.register(device.clone()));
        let generation = more.iter().find(|(_, known)| device == Some(known.name())).map_or(0, |(generation, _)| *generation);
        (core, generation)
    }

    /// Loads the library of a device on a separate thread, before the first stage needs it. Call this function early. A process loads
    /// one library at a time, so loading the libraries of video decoders first would delay the library of the device.
    pub fn prepare_device(&self, name: Option<&str>) -> Preparing {
        let (engine, name) = (self.clone(), name.unwrap_or(DEFAULT_DEVICE).to_owned());
        let prepare = move || engine.core_for(Some(&name)).0.prepare(&name);
        // If the thread cannot start, the first stage loads the library.
        Preparing(std::thread::Builder::new().name("roiflow-engine".to_owned()).spawn(prepare).ok())
    }

    /// Returns the decoders that descriptions can use.
    pub fn decoders(&self) -> DecoderRegistry {
        self.0.decoders.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the decoders. The change applies to models that are loaded later.
    pub fn set_decoders(&self, decoders: DecoderRegistry) {
        *self.0.decoders.write().unwrap_or_else(PoisonError::into_inner) = decoders;
    }

    /// Sets the cache folder for compiled models. A stage uses this folder if its options set no other cache folder. `None` disables the
    /// cache for these stages. Only the first call has an effect. Default: the environment variable `ROIFLOW_CACHE_DIR`, or no cache.
    pub fn set_cache_folder(&self, folder: Option<PathBuf>) {
        let _first = self.0.cache_folder.set(folder);
    }

    pub(super) fn cache_folder(&self) -> Option<PathBuf> {
        let named = || std::env::var_os("ROIFLOW_CACHE_DIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
        self.0.cache_folder.get().cloned().unwrap_or_else(named)
    }

    /// Sets whether descriptions of models, and playlists, may name files outside their folders. Only the first call has an effect. Default: true if the environment
    /// variable `ROIFLOW_ALLOW_OUTSIDE_FILES` is set and not `0`.
    pub fn allow_outside_files(&self, allowed: bool) {
        let _first = self.0.allows_outside_files.set(allowed);
    }

    /// Whether descriptions of models, and playlists, may name files outside their folders; see [`Engine::allow_outside_files`].
    pub fn allows_outside_files(&self) -> bool {
        let by_environment = || std::env::var_os("ROIFLOW_ALLOW_OUTSIDE_FILES").is_some_and(|value| !value.is_empty() && value != "0");
        self.0.allows_outside_files.get().copied().unwrap_or_else(by_environment)
    }

    /// Returns the compiled models that stages of this engine share.
    pub(super) fn instances(&self) -> &Instances {
        &self.0.instances
    }
}

/// Returns [`Engine::of_process`].
impl Default for Engine {
    fn default() -> Self {
        Self::of_process().clone()
    }
}

/// Two engines are equal if one is a clone of the other.
impl PartialEq for Engine {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Engine").field(&Arc::as_ptr(&self.0)).finish()
    }
}

/// A device that is being loaded. Dropping this value waits until the device is loaded, because a process must not exit while a library is
/// loading.
#[must_use = "dropped, it waits until the device is prepared"]
#[derive(Debug)]
pub struct Preparing(Option<std::thread::JoinHandle<bool>>);

impl Drop for Preparing {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _prepared = thread.join();
        }
    }
}
