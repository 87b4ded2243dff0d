//! The entry point of the runtime: registers devices, and reads and compiles models.

use std::sync::Arc;

use tracing::field;

use super::device::{Device, DeviceFamily, DeviceInfo, DeviceModel};
use super::executor::Executors;
use super::{
    CompiledModel, Config, ContextParams, Dim, Error, ErrorKind, Model, ModelInfo, ModelSource, RemoteContext, Result, batching, files,
};

/// The devices of a process, and the executors that these devices share. Clones refer to the same devices and executors.
#[derive(Clone, Default)]
pub struct Core {
    devices: Vec<Arc<dyn Device>>,
    families: Vec<Arc<dyn DeviceFamily>>,
    executors: Executors,
}

impl Core {
    /// Creates a core without devices. `devices::core()` creates a core with all built-in devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a device. Replaces a device with the same name.
    pub fn register(&mut self, device: Arc<dyn Device>) {
        self.devices.retain(|known| known.name() != device.name());
        self.devices.push(device);
    }

    /// Adds the devices of an engine (a family). Replaces a family with the same prefix.
    pub fn register_family(&mut self, family: Arc<dyn DeviceFamily>) {
        self.families.retain(|known| known.prefix() != family.prefix());
        self.families.push(family);
    }

    /// Returns the names and descriptions of all devices, including devices that are missing on this machine. To list the devices of an
    /// engine, this method loads the engine's library.
    pub fn devices(&self) -> Vec<(String, DeviceInfo)> {
        let of_families = self.families.iter().flat_map(|family| family.devices());
        self.devices.iter().cloned().chain(of_families).map(|device| (device.name().to_owned(), device.info())).collect()
    }

    /// Reads the ports and metadata of a model, with the first device that knows the format of the source. The source is a file, bytes
    /// ([`ModelBytes`](super::ModelBytes)), or a name that a device knows ([`ModelSource::Remote`]).
    ///
    /// # Errors
    /// Returns `Io` if the file cannot be read. Returns `Model` if no device knows the format, or if the model is passed as bytes and
    /// refers to external files. Returns `NotFound` if no device knows a remote source.
    pub fn read_model(&self, source: impl Into<ModelSource>) -> Result<Model> {
        let source = source.into();
        let cannot = |kind, why: &dyn std::fmt::Display| Error::new(kind, format!("cannot read model `{source}`: {why}"));
        check_source(&source)?;
        let mut refused = None;
        let mut read = |result: Result<ModelInfo>| match result.and_then(|info| check_inputs(&source, &info).map(|()| info)) {
            Ok(info) => Some(Model::new(source.clone(), info)),
            Err(error) if error.kind() == ErrorKind::Unsupported => None,
            Err(error) => {
                refused.get_or_insert(error);
                None
            }
        };
        if let Some(model) = self.devices.iter().find_map(|device| read(device.read_model(&source))) {
            return Ok(model);
        }
        // If a device knew the format but could not read the model, the engines could not read it either. So do not load them.
        if let Some(refused) = refused {
            return Err(refused);
        }
        let mut unsupported = None;
        for family in &self.families {
            match family.read_model(&source) {
                Ok(info) => return check_inputs(&source, &info).map(|()| Model::new(source.clone(), info)),
                Err(error) if error.kind() == ErrorKind::Unsupported => unsupported = unsupported.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        Err(match (&source, unsupported) {
            (ModelSource::Remote(_), _) => cannot(
                ErrorKind::NotFound,
                &format!(
                    "expected a source that a device knows, got a source that is unknown to {}; pass a file, its bytes, or the address of a model on a server",
                    self.names()
                ),
            ),
            (_, Some(error)) => cannot(ErrorKind::Model, &error),
            (_, None) => Error::new(ErrorKind::Model, format!("no device reads models such as `{source}`")),
        })
    }

    /// Reads and compiles a model in one call, with the default options.
    ///
    /// ```
    /// # use roiflow::devices;
    /// # fn main() -> roiflow::runtime::Result<()> {
    /// let model = devices::core().compile("assets/tiny/double.onnx", "CPU")?;
    /// let results = model.infer(&ndarray::arr2(&[[1.0_f32; 4]]))?;
    /// assert_eq!(results.view::<f32>("y")?[[0, 0]], 2.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Core::read_model`] and [`Core::compile_model`].
    pub fn compile(&self, source: impl Into<ModelSource>, device: &str) -> Result<CompiledModel> {
        self.compile_model(&self.read_model(source)?, device, &Config::default())
    }

    /// Compiles a model for the device with this name.
    ///
    /// If [`Config::batch_size`] is above 1, the first axis of every input must be the batch. The extent of the first axis must be 1 or
    /// dynamic, and all other extents must be fixed. If the first axis is dynamic, single and batched runs use the same compiled model. If
    /// its extent is 1, the model is compiled a second time with a dynamic first axis, which doubles the memory; single runs then take as
    /// long as without batching. Batch items must be independent. The built-in devices prove this from the operators of the model. If an
    /// operator is not known, runs with various inputs test it. The device REMOTE can do neither, so it needs
    /// [`Config::batch_independent`].
    ///
    /// # Errors
    /// Returns `NotFound` if there is no such device. Returns `Unsupported` if the device is missing on this machine, or if the model
    /// cannot be batched. Returns `Config` if an option is out of range. Returns the device's error if the device cannot run the model.
    pub fn compile_model(&self, model: &Model, device: &str, config: &Config) -> Result<CompiledModel> {
        self.compile_accepted(model, device, config, &|_| Ok(()))
    }

    /// Same as [`Core::compile_model`], but calls `accept` to check the compiled ports. If `accept` fails, `AUTO` tries its next device,
    /// because engines may report different output shapes.
    ///
    /// # Errors
    /// Returns the errors of [`Core::compile_model`] and of `accept`.
    pub fn compile_accepted(
        &self,
        model: &Model,
        device: &str,
        config: &Config,
        accept: &dyn Fn(&ModelInfo) -> Result<()>,
    ) -> Result<CompiledModel> {
        // Take the metadata from the file, because some engines do not report the metadata of a compiled model.
        let accept = |info: &ModelInfo| accept(&ModelInfo { metadata: model.info().metadata.clone(), ..info.clone() });
        // A span of this target is a trace for collectors of OpenTelemetry.
        let span = tracing::info_span!(target: "telemetry", "model.load", model = %model.source(), device, otel.status_code = field::Empty);
        let compiled = span.in_scope(|| self.compile_device_model(model, device, config, &accept));
        if compiled.is_err() {
            span.record("otel.status_code", "ERROR");
        }
        let compiled = compiled?;
        drop(span);
        let device = compiled.device().unwrap_or(device).to_owned();
        for ignored in compiled.ignored() {
            tracing::info!("device {device} does not use the option `{}`: {}", ignored.option, ignored.why);
        }
        Ok(CompiledModel::new(&device, model, compiled, config.clone(), self.executors.clone()))
    }

    /// Loads the engine of this device, so that the first compilation does not have to; see [`Device::prepare`].
    pub fn prepare(&self, device: &str) -> bool {
        self.device(device).is_ok_and(|device| device.prepare())
    }

    /// Returns the reason why the results of the model on this device differ from exact results, see [`Device::inexact`]. Returns `None` if
    /// they do not differ, or if there is no such device.
    pub fn inexact(&self, model: &Model, device: &str) -> Option<String> {
        self.device(device).ok()?.inexact(model)
    }

    /// Returns the approximate memory, in bytes, that another compiled copy of the model needs; see [`Device::copy_bytes`].
    pub fn copy_bytes(&self, model: &Model, device: &str) -> Option<u64> {
        self.device(device).ok()?.copy_bytes(model)
    }

    /// Prepares a model for calls with up to `max_rows` batch items. `alone` is the model as compiled for the device. If its first axis is
    /// dynamic, returns the same model. If the extent of its first axis is 1, compiles the model again with a dynamic first axis. The
    /// caller puts several batch items into one input itself. (In contrast, [`Config::batch_size`] combines the runs of several requests.)
    ///
    /// The batch items must be independent of each other, as for [`Core::compile_model`] with a batch size above 1.
    ///
    /// # Errors
    /// Returns the errors of [`Core::compile_model`] with a batch size above 1.
    pub fn open_rows(&self, model: &Model, device: &str, alone: &CompiledModel, max_rows: usize) -> Result<CompiledModel> {
        let config = &alone.properties().config;
        batching::check(&Config { batch_size: max_rows, ..config.clone() })?;
        let device = self.device(device)?;
        let opened = batching::open_rows(&*device, alone.device(), model, alone.device_model(), max_rows, config, &self.executors)
            .map_err(|error| error.context(format!("batch size {max_rows} of `{}` on device {}", model.name(), alone.device())))?;
        Ok(opened.model)
    }

    /// Returns the context for tensors in the device's own memory.
    ///
    /// # Errors
    /// Returns `NotFound` if there is no such device; `Unsupported` if the device has no memory of its own.
    pub fn default_context(&self, device: &str) -> Result<RemoteContext> {
        self.device(device)?.default_context()
    }

    /// Creates a context for tensors in the memory that `params` describes. The device with this name must be able to use this memory.
    ///
    /// # Errors
    /// Returns `NotFound` if there is no such device; `Unsupported` if the device cannot use such memory.
    pub fn create_context(&self, device: &str, params: &ContextParams) -> Result<RemoteContext> {
        self.device(device)?.create_context(params)
    }

    /// Same as [`Core::compile_accepted`], but returns the device's own [`DeviceModel`]. Called by devices that delegate to other devices.
    ///
    /// # Errors
    /// Returns the errors of [`Core::compile_accepted`].
    pub fn compile_device_model(
        &self,
        model: &Model,
        device: &str,
        config: &Config,
        accept: &dyn Fn(&ModelInfo) -> Result<()>,
    ) -> Result<Arc<dyn DeviceModel>> {
        batching::check(config)?;
        config.check_numbers()?;
        config.check_executors()?;
        for port in model.info().inputs.iter().chain(&model.info().outputs) {
            port.shape.check().map_err(|error| error.context(format!("port {port} of `{}`", model.name())))?;
        }
        let own_prefixes = self.devices.iter().filter_map(|device| device.option_prefix());
        config.check_engines(self.families.iter().map(|family| family.prefix()).chain(own_prefixes))?;
        let device = self.device(device)?;
        let alone = device.compile_accepted(model, config, &self.executors, accept)?;
        // If `device` delegates, as `AUTO` does, it has called this function for the device that it chose. That call has already added
        // batching.
        if config.batch_size == 1 || alone.gathering().is_some() {
            return Ok(alone);
        }
        let name = alone.device().unwrap_or(device.name()).to_owned();
        batching::gathering(&*device, &name, model, &alone, config, &self.executors)
            .map_err(|error| error.context(format!("batch size {} of `{}` on device {name}", config.batch_size, model.name())))
    }

    fn device(&self, name: &str) -> Result<Arc<dyn Device>> {
        if let Some(found) = self.devices.iter().find(|known| known.name() == name) {
            return Ok(found.clone());
        }
        let is_of = |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.len() > 1 && rest.starts_with('.'));
        if let Some(family) = self.families.iter().find(|family| is_of(family.prefix())) {
            return Ok(family.device(name));
        }
        let hint = match self.devices.iter().find(|device| device.name().eq_ignore_ascii_case(name)) {
            Some(device) => format!("; did you mean `{}`?", device.name()),
            // GPU, CUDA or NPU without the engine.
            None if !name.is_empty() && name.chars().all(char::is_alphanumeric) && !self.families.is_empty() => {
                let upper = name.to_uppercase();
                let prefixes: Vec<_> = self.families.iter().map(|family| format!("`{}.{upper}`", family.prefix())).collect();
                format!("; other devices have the name of their engine first, such as {}", prefixes.join(" or "))
            }
            None => String::new(),
        };
        Err(Error::new(ErrorKind::NotFound, format!("no device `{name}`: expected one of {}{hint}", self.names())))
    }

    fn names(&self) -> String {
        let names = self.devices.iter().map(|device| device.name().to_owned());
        // List only `CPU` of each family, a device that every family has. To list all devices of a family, its engine would have to be
        // loaded.
        let names: Vec<_> = names.chain(self.families.iter().map(|family| format!("{}.CPU", family.prefix()))).collect();
        names.join(", ")
    }

    /// Returns the executors that all models of this core share.
    pub fn executors(&self) -> &Executors {
        &self.executors
    }
}

/// Maximum size of an input. This limit is larger than any usual image, and small enough for the system to allocate.
const MAX_INPUT_BYTES: usize = 1 << 30;

/// Checks the kind and size of a source before a device reads it.
fn check_source(source: &ModelSource) -> Result<()> {
    let fail = |kind, why: &str| Err(Error::new(kind, format!("cannot read model `{source}`: {why}")));
    let (n_bytes, max_bytes, what_to_do) = match source {
        ModelSource::File(path) => {
            let file = files::open_regular(path, "model")?;
            let is_xml = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("xml"));
            let n_bytes = file.metadata().map_or(0, |file| file.len());
            (n_bytes, if is_xml { files::MAX_XML_BYTES } else { files::MAX_MODEL_BYTES }, "check the path")
        }
        ModelSource::Bytes(bytes) if bytes.model().is_empty() => {
            return fail(ErrorKind::Model, "expected the bytes of a model file, got none; pass the complete content of the file");
        }
        ModelSource::Bytes(bytes) => (bytes.model().len() as u64, files::MAX_MODEL_BYTES, "pass the bytes of a model"),
        ModelSource::Remote(_) => return Ok(()),
        ModelSource::Ports => {
            return fail(ErrorKind::Config, "expected a file, bytes or a remote source, got ports alone; use `Model::from_ports`");
        }
    };
    match n_bytes > max_bytes {
        true => fail(ErrorKind::Io, &format!("expected at most {max_bytes} bytes, got {n_bytes}; {what_to_do}")),
        false => Ok(()),
    }
}

/// Checks that no input of a model is larger than [`MAX_INPUT_BYTES`].
///
/// # Errors
/// Returns `Model` if an input is larger.
fn check_inputs(source: &ModelSource, info: &ModelInfo) -> Result<()> {
    for port in &info.inputs {
        let fixed = port.shape.dims().iter().map(|dim| if let Dim::Fixed(extent) = dim { *extent } else { 1 });
        let n_bytes = fixed.fold(port.element.size(), usize::saturating_mul);
        if n_bytes > MAX_INPUT_BYTES {
            let message = format!("cannot read model `{source}`: its input {port} is too large: expected at most 1 GiB");
            return Err(Error::new(ErrorKind::Model, message));
        }
    }
    Ok(())
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let families = self.families.iter().map(|family| family.prefix());
        f.debug_list().entries(self.devices.iter().map(|device| device.name()).chain(families)).finish()
    }
}
