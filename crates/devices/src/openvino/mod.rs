//! `OPENVINO.<device>`: OpenVINO 2025.1 or newer, a library that is loaded at run time. It is not needed to build.
//!
//! - Found by `ROIFLOW_OPENVINO_LIB` (the C library, or its folder), by OpenVINO's own variables, on the loader's
//!   path, in the system's folders, among the packages of `python3` (`pip install openvino`), or where
//!   `scripts/fetch-engines` put it. See `devices::find`.
//! - Reads ONNX, OpenVINO IR (.xml with .bin), and the other formats of its front ends.
//! - `OPENVINO.CPU` computes in `f32` unless `Config::precision` is set. OpenVINO's own default is bf16, if the processor supports it.
//! - On the CPU a run computes on the calling thread, with one stream per request: requests times threads are the cores. Other devices call back
//!   when a run is complete, and no thread waits for them.
//! - Inputs and outputs are used in place, also in the caller's memory. Copied are tensors with gaps, which the C library does not support, and
//!   outputs of dynamic shape.
//! - Integers are computed in 32 bits and `f64` in `f32`, so `AUTO` skips models with such ports. A run with an input beyond 32 bits is
//!   refused; results beyond 32 bits are not detected.
//! - A cancel ends a run between two nodes.
//! - The times of nodes are in whole microseconds. `OPENVINO.CPU` reports the mean of all runs of all requests since compilation, and the elapsed
//!   time as CPU time (`PerfCount::avg` of its plugin). Accelerators report their own measurements.
//! - Variables are explicit inputs and outputs ([`Model::make_stateful`]). The C library has no access to variables inside a model
//!   (`ReadValue` of OpenVINO's own format): it can neither read nor reset them, so such a model is refused.

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

/// The folders that OpenVINO's scripts and installers set.
fn folders() -> Vec<PathBuf> {
    let arch = if cfg!(target_arch = "aarch64") { "aarch64" } else { "intel64" };
    let named = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
    let mut folders: Vec<_> = named("OPENVINO_LIB_PATH").into_iter().collect();
    // `OpenVINO_DIR` is <install>/runtime/cmake.
    let roots = ["OPENVINO_INSTALL_DIR", "OPENVINO_BUILD_DIR", "INTEL_OPENVINO_DIR"].map(named);
    let cmake = named("OpenVINO_DIR").and_then(|folder| Some(folder.parent()?.parent()?.to_owned()));
    let installed = ["/opt/intel/openvino", "/opt/intel/openvino_2026", "/opt/intel/openvino_2025"].map(|root| Some(PathBuf::from(root)));
    for root in roots.into_iter().chain([cmake]).chain(installed).flatten() {
        folders.push(root.join("runtime/lib").join(arch));
    }
    folders
}

/// The devices of OpenVINO. Cheap to clone; the first use searches for the library.
#[derive(Clone, Default)]
pub struct OpenVino(Arc<Library>);

#[derive(Default)]
struct Library {
    at: Option<PathBuf>,
    loaded: OnceLock<Result<(Arc<Api>, PathBuf), Missing>>,
}

impl OpenVino {
    /// The library at this path alone. `OpenVino::default()` searches for an installed one.
    ///
    /// # Safety
    /// The first use loads the library and runs its initializers. It must be the C library of OpenVINO, or one whose initializers may run in this
    /// process: another library is refused only after that.
    pub unsafe fn at(path: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Library { at: Some(path.into()), loaded: OnceLock::new() }))
    }

    fn api(&self) -> Result<&(Arc<Api>, PathBuf), &Missing> {
        let open = |path: &Path| {
            // SAFETY: a library that the user installed as this engine, by its file name in the places where engines lie or by a variable of
            // the environment, or the one for which the caller of `at` answers. Its format was checked.
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
    /// The library's name: `CPU`, `GPU.1`, `HETERO:GPU,CPU`.
    fn own_name(&self) -> &str {
        self.name.strip_prefix(PREFIX).unwrap_or_default().trim_start_matches('.')
    }

    fn api(&self) -> Result<&(Arc<Api>, PathBuf), Missing> {
        let found = self.family.api().map_err(Clone::clone)?;
        let (api, path) = found;
        // Queried alone: a list of all devices loads every plugin.
        if api.property(self.own_name(), c"FULL_DEVICE_NAME").is_ok() {
            return Ok(found);
        }
        let unusable = |reason: String| Missing { reason, install: None };
        let listed = api.devices().map_err(|why| unusable(format!("OpenVINO {} in `{}`: {why}", api.version, path.display())))?;
        // `GPU` means `GPU.0`. A name with a colon combines devices.
        let own = self.own_name();
        let is_listed = own.contains(':') || listed.iter().any(|name| name == own || name.split('.').next() == Some(own));
        if !is_listed {
            let reason = format!("OpenVINO {} in `{}` finds {}, not {own}", api.version, path.display(), listed.join(", "));
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
        let description = "OpenVINO, reads ONNX and OpenVINO IR".to_owned();
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

    /// The CPU plugin computes on the calling thread if a model has one stream of one thread. Otherwise that thread sleeps while a thread of the
    /// library computes. This costs two wake-ups per call, and the scheduler may queue both threads on one core while another core is idle.
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
