//! The devices `OPENVINO.<device>`: OpenVINO 2025.1 or newer. The library is loaded at run time; building roiflow does not need it.
//!
//! - The library is searched for in this order: `ROIFLOW_OPENVINO_LIB` (the C library or its folder), the folders that OpenVINO's own
//!   variables name, the loader's path, the system's folders, the packages of `python3` (`pip install openvino`), and the folder that
//!   `scripts/fetch-engines` fills. See `devices::find`.
//! - It reads ONNX, OpenVINO IR (.xml with .bin), and the other formats for which OpenVINO has front ends.
//! - `OPENVINO.CPU` computes in `f32` unless `Config::precision` is set. OpenVINO's own default is bf16 if the processor supports it.
//! - On the CPU, a run computes on the calling thread. Each request has one stream, and the number of requests times the number of threads
//!   of each request is the number of cores. Other devices call back when a run is complete, so no thread waits for them.
//! - The library reads inputs and writes outputs in place, even if the caller set the tensor. Tensors with gaps are copied, because the C
//!   library does not support them. Outputs of dynamic shape are copied as well.
//! - OpenVINO computes integers in 32 bits and `f64` in `f32`, so `AUTO` skips OpenVINO for models with `f64` ports or inputs of wider
//!   integers. A run with an input value beyond 32 bits returns an error. Results beyond 32 bits are not detected.
//! - A canceled run stops between two nodes.
//! - Times of nodes are whole microseconds. `OPENVINO.CPU` reports the mean over all runs of all requests since compilation, and reports
//!   elapsed time as CPU time (`PerfCount::avg` of its plugin). Accelerators report their own measurements.
//! - State is supported as inputs and outputs ([`Model::make_stateful`]). A model with internal variables (`ReadValue` in OpenVINO IR) is
//!   refused, because the C library can neither read nor reset such variables.

mod api;
mod integers;
pub mod ir;
mod model;
mod request;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use api::Api;

use super::engine::no_source;
use super::exit;
use super::find::Wanted;
use crate::runtime::device::{Device, DeviceFamily, DeviceInfo, DeviceModel, Missing};
use crate::runtime::executor::Executors;
use crate::runtime::{Config, Model, ModelInfo, ModelSource, Result};

const PREFIX: &str = "OPENVINO";

const WANTED: Wanted = Wanted {
    engine: "OpenVINO",
    variable: "ROIFLOW_OPENVINO_LIB",
    file: "libopenvino_c.so",
    folders,
    in_packages: "openvino/libs",
    install: "pip install openvino",
};

/// Returns the folders that OpenVINO's setup scripts name in the environment, and the default folders of its installers.
fn folders() -> Vec<PathBuf> {
    let arch = if cfg!(target_arch = "aarch64") { "aarch64" } else { "intel64" };
    let named = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
    let mut folders: Vec<_> = named("OPENVINO_LIB_PATH").into_iter().collect();
    // `OpenVINO_DIR` is the folder `runtime/cmake` of the installation.
    let roots = ["OPENVINO_INSTALL_DIR", "OPENVINO_BUILD_DIR", "INTEL_OPENVINO_DIR"].map(named);
    let cmake = named("OpenVINO_DIR").and_then(|folder| Some(folder.parent()?.parent()?.to_owned()));
    let installed = ["/opt/intel/openvino", "/opt/intel/openvino_2026", "/opt/intel/openvino_2025"].map(|root| Some(PathBuf::from(root)));
    for root in roots.into_iter().chain([cmake]).chain(installed).flatten() {
        folders.push(root.join("runtime/lib").join(arch));
    }
    folders
}

/// The devices of OpenVINO. A clone is cheap. The first use searches for the library.
#[derive(Clone, Default)]
pub struct OpenVino(Arc<Library>);

#[derive(Default)]
struct Library {
    at: Option<PathBuf>,
    loaded: OnceLock<Result<(Arc<Api>, PathBuf), Missing>>,
}

impl OpenVino {
    /// Creates the devices of the library at this path. `OpenVino::default()` searches for an installed library instead.
    ///
    /// # Safety
    /// The first use loads the library and runs its initializers, before roiflow can check which library it is. The file must be OpenVINO's
    /// C library, or a library whose initializers are safe to run in this process.
    pub unsafe fn at(path: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Library { at: Some(path.into()), loaded: OnceLock::new() }))
    }

    fn api(&self) -> Result<&(Arc<Api>, PathBuf), &Missing> {
        let open = |path: &Path| {
            // SAFETY: the initializers are safe to run. Either the user installed the library as OpenVINO (it was found by its file name or
            // through an environment variable), or the caller of `at` guarantees that they are safe.
            let api = unsafe { Api::open(path) };
            exit::guard();
            api
        };
        let open = || match &self.0.at {
            None => WANTED.find(open).map(|(api, path)| (Arc::new(api), path)),
            Some(path) => super::find::check_shared_object(path)
                .and_then(|()| open(path))
                .map(|api| (Arc::new(api), path.clone()))
                .map_err(|why| Missing { reason: format!("`{}`: {why}", path.display()), install: Some(WANTED.install) }),
        };
        self.0.loaded.get_or_init(open).as_ref()
    }
}

impl DeviceFamily for OpenVino {
    fn prefix(&self) -> &str {
        PREFIX
    }

    fn devices(&self) -> Vec<Arc<dyn Device>> {
        let listed = self.api().ok().and_then(|(api, _)| api.devices().ok());
        let names = listed.unwrap_or_else(|| vec!["CPU".to_owned()]);
        names.iter().map(|name| self.device(&format!("{PREFIX}.{name}"))).collect()
    }

    fn device(&self, name: &str) -> Arc<dyn Device> {
        Arc::new(OpenVinoDevice { name: name.to_owned(), family: self.clone() })
    }

    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo> {
        if !matches!(source, ModelSource::File(_) | ModelSource::Bytes(_)) {
            return Err(no_source("OPENVINO.CPU", source));
        }
        let (api, _) = self.api().map_err(|missing| missing.error("OPENVINO.CPU"))?;
        model::read(api, source)
    }
}

struct OpenVinoDevice {
    name: String,
    family: OpenVino,
}

impl OpenVinoDevice {
    /// Returns OpenVINO's own name of the device: `CPU`, `GPU.1`, `HETERO:GPU,CPU`.
    fn own_name(&self) -> &str {
        self.name.strip_prefix(PREFIX).unwrap_or_default().trim_start_matches('.')
    }

    fn api(&self) -> Result<&(Arc<Api>, PathBuf), Missing> {
        let found = self.family.api().map_err(Clone::clone)?;
        let (api, path) = found;
        // Query this device alone first, because listing all devices loads every plugin of OpenVINO.
        if api.property(self.own_name(), c"FULL_DEVICE_NAME").is_ok() {
            return Ok(found);
        }
        let unusable = |reason: String| Missing { reason, install: None };
        let listed = api
            .devices()
            .map_err(|why| unusable(format!("OpenVINO {} in `{}` cannot list its devices: {why}", api.version, path.display())))?;
        // `GPU` means `GPU.0`. A name with a colon combines several devices.
        let own = self.own_name();
        let is_listed = own.contains(':') || listed.iter().any(|name| name == own || name.split('.').next() == Some(own));
        if !is_listed {
            let reason = format!("OpenVINO {} in `{}` finds the devices {}, but not {own}", api.version, path.display(), listed.join(", "));
            return Err(unusable(reason));
        }
        Ok(found)
    }
}

impl Device for OpenVinoDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> DeviceInfo {
        let description = "OpenVINO, reads ONNX, OpenVINO IR and TensorFlow Lite".to_owned();
        match self.api() {
            Ok((api, path)) => {
                let mut properties = vec![("engine", format!("OpenVINO {}", api.version))];
                properties.extend(api.property(self.own_name(), c"FULL_DEVICE_NAME").ok().map(|name| ("hardware", name.trim().to_owned())));
                properties.push(("library", path.display().to_string()));
                DeviceInfo { description, properties, missing: None }
            }
            Err(missing) => DeviceInfo { description, properties: Vec::new(), missing: Some(missing) },
        }
    }

    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo> {
        self.family.read_model(source)
    }

    fn inexact(&self, model: &Model) -> Option<String> {
        integers::inexact(model.info())
    }

    /// OpenVINO's CPU plugin computes on the calling thread only if a model has one stream of one thread. Otherwise, the calling thread
    /// sleeps while a thread of the library computes. That costs two wake-ups per call, and the scheduler may put both threads on one core
    /// while another core is idle. So concurrent requests are faster if each has its own compiled model. Returns the size of the weights,
    /// which each compiled model adds.
    fn copy_bytes(&self, model: &Model) -> Option<u64> {
        if self.own_name() == "CPU" && self.api().is_ok() { model::weights_bytes(model.source()) } else { None }
    }

    fn compile(&self, model: &Model, config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>> {
        let (api, _) = self.api().map_err(|missing| missing.error(&self.name))?;
        match model.source() {
            source @ (ModelSource::File(_) | ModelSource::Bytes(_)) => {
                let target = model::Target { device: &self.name, own_name: self.own_name(), config, executors };
                Ok(Arc::new(model::compile(api, &target, source, model)?))
            }
            source => Err(no_source(&self.name, source)),
        }
    }
}
