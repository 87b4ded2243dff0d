//! The entry: registers devices, reads models, compiles them.

use std::path::Path;
use std::sync::Arc;

use super::device::{Device, DeviceInfo};
use super::executor::Executors;
use super::{CompiledModel, Config, ContextParams, Error, ErrorKind, Model, RemoteContext, Result};

/// The devices of a process and the executors that they share. Cheap to clone.
#[derive(Clone, Default)]
pub struct Core {
    devices: Vec<Arc<dyn Device>>,
    executors: Executors,
}

impl Core {
    /// A core without devices; `devices::core()` gives one with all that are built in.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a device; one of the same name is replaced.
    pub fn register(&mut self, device: Arc<dyn Device>) {
        self.devices.retain(|known| known.name() != device.name());
        self.devices.push(device);
    }

    /// Names and descriptions of all devices.
    pub fn devices(&self) -> impl Iterator<Item = (&str, DeviceInfo)> {
        self.devices.iter().map(|device| (device.name(), device.info()))
    }

    /// Reads ports and metadata of a model file, with the first device that knows the format.
    ///
    /// # Errors
    /// `Io` if the file can't be read, `Model` if no device knows what it is.
    pub fn read_model(&self, path: impl AsRef<Path>) -> Result<Model> {
        let path = path.as_ref();
        if let Err(error) = std::fs::File::open(path)
            .and_then(|file| file.metadata())
            .and_then(|metadata| if metadata.is_file() { Ok(()) } else { Err(std::io::Error::other("it is not a file")) })
        {
            let message = format!("cannot read model `{}`: {error}; check the path", path.display());
            return Err(Error::with_source(ErrorKind::Io, message, error));
        }
        let mut refused = None;
        for device in &self.devices {
            match device.read_model(path) {
                Ok(info) => return Ok(Model::from_file(path, info)),
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or_else(|| Error::new(ErrorKind::Model, format!("no device reads models such as `{}`", path.display()))))
    }

    /// Makes a model ready to run on the device with this name.
    ///
    /// # Errors
    /// `NotFound` if there is no such device; what the device says if it can't run the model.
    pub fn compile_model(&self, model: &Model, device: &str, config: &Config) -> Result<CompiledModel> {
        let found = self.device(device)?;
        let compiled = found.compile(model, config, &self.executors)?;
        Ok(CompiledModel::new(found.name(), model, compiled, config.clone(), self.executors.clone()))
    }

    /// The memory of the device with this name.
    ///
    /// # Errors
    /// `NotFound` if there is no such device; `Unsupported` if it has no memory of its own.
    pub fn default_context(&self, device: &str) -> Result<RemoteContext> {
        self.device(device)?.default_context()
    }

    /// Memory of another kind, or of its own, for the device with this name.
    ///
    /// # Errors
    /// `NotFound` if there is no such device; `Unsupported` if it can't use such memory.
    pub fn create_context(&self, device: &str, params: &ContextParams) -> Result<RemoteContext> {
        self.device(device)?.create_context(params)
    }

    fn device(&self, name: &str) -> Result<&Arc<dyn Device>> {
        self.devices.iter().find(|known| known.name() == name).ok_or_else(|| {
            let names: Vec<&str> = self.devices.iter().map(|device| device.name()).collect();
            Error::new(ErrorKind::NotFound, format!("no device `{name}`: expected one of {}", names.join(", ")))
        })
    }

    /// The executors that all models of this core share.
    pub fn executors(&self) -> &Executors {
        &self.executors
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.devices.iter().map(|device| device.name())).finish()
    }
}
