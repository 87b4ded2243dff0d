//! `ORT.<provider>`: ONNX Runtime 1.17 or newer, a library that is loaded at run time. It is not needed to build.
//!
//! - Found by `ORT_DYLIB_PATH`, on the loader's path, among the packages of `python3` (`pip install onnxruntime`), or where
//!   `scripts/fetch-engines` put it. See `devices::find`.
//! - One session per compiled model, which requests run concurrently, so the weights exist once. On the CPU a run computes on the calling thread:
//!   requests times threads are the cores, see `Config`.
//! - Inputs and outputs are used in place, also in the caller's memory. Copied are tensors with gaps, and outputs of dynamic shape.
//! - The library cannot change the input shapes of a file: for other shapes, the bytes of the file are changed first.
//! - On the CPU, optimized models are cached in `Config::cache_folder`.
//! - A cancel ends a run between two nodes. Version 1.25 or newer reports the times of nodes.
//! - Every provider that the library was built with is a device: `ORT.CPU`, `ORT.CUDA`, `ORT.TENSORRT`.

mod api;
mod calls;
mod ffi;
mod model;
mod nodes;
mod options;
mod request;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use api::Api;

use super::engine::{IR, no_source, other_format};
use super::exit;
use super::find::Wanted;
use crate::runtime::device::{Device, DeviceFamily, DeviceInfo, DeviceModel, Missing};
use crate::runtime::executor::Executors;
use crate::runtime::{Config, Error, ErrorKind, Model, ModelInfo, ModelSource, Result};

const PREFIX: &str = "ORT";

const WANTED: Wanted = Wanted {
    engine: "ONNX Runtime",
    variable: "ORT_DYLIB_PATH",
    file: "libonnxruntime.so",
    folders: Vec::new,
    in_packages: "onnxruntime/capi",
    install: "pip install onnxruntime",
};

/// The devices of ONNX Runtime. Cheap to clone; the first use searches for the library.
#[derive(Clone, Default)]
pub struct OnnxRuntime(Arc<Library>);

#[derive(Default)]
struct Library {
    at: Option<PathBuf>,
    loaded: OnceLock<Result<Arc<Api>, Missing>>,
}

impl OnnxRuntime {
    /// The library at this path alone. `OnnxRuntime::default()` searches for an installed one.
    ///
    /// # Safety
    /// The first use loads the library and runs its initializers. It must be ONNX Runtime, or one whose initializers may run in this
    /// process: another library is refused only after that.
    pub unsafe fn at(path: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Library { at: Some(path.into()), loaded: OnceLock::new() }))
    }

    fn api(&self) -> Result<&Arc<Api>, &Missing> {
        let open = |path: &Path| {
            // SAFETY: a library that the user installed as this engine, by its file name in the places where engines lie or by a variable of
            // the environment, or the one for which the caller of `at` answers. Its format was checked.
            let api = unsafe { Api::open(path) };
            exit::guard();
            api
        };
        let open = || match &self.0.at {
            None => WANTED.find(open).map(|(mut api, path)| {
                api.path = path;
                Arc::new(api)
            }),
            Some(path) => super::find::check_shared_object(path)
                .and_then(|()| open(path))
                .map(Arc::new)
                .map_err(|why| Missing { reason: format!("`{}`: {why}", path.display()), install: Some(WANTED.install) }),
        };
        self.0.loaded.get_or_init(open).as_ref()
    }
}

impl DeviceFamily for OnnxRuntime {
    fn prefix(&self) -> &str {
        PREFIX
    }

    fn devices(&self) -> Vec<Arc<dyn Device>> {
        let names = match self.api() {
            Ok(api) => api.providers.iter().map(|provider| format!("{PREFIX}.{}", provider.to_uppercase())).collect(),
            Err(_) => vec![format!("{PREFIX}.CPU")],
        };
        names.iter().map(|name| self.device(name)).collect()
    }

    fn device(&self, name: &str) -> Arc<dyn Device> {
        Arc::new(OrtDevice { name: name.to_owned(), family: self.clone() })
    }

    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo> {
        // Not worth loading a library for IR and for the formats of other engines.
        let is_known = match source {
            ModelSource::File(path) => path.extension().is_some_and(|ending| ending == "onnx" || ending == "ort"),
            ModelSource::Bytes(_) => matches!(other_format(source), None | Some("ort")),
            ModelSource::Remote(_) | ModelSource::Ports => false,
        };
        if !is_known {
            return Err(Error::new(ErrorKind::Unsupported, format!("device {PREFIX}.CPU reads .onnx and .ort files")));
        }
        let api = self.api().map_err(|missing| missing.error("ORT.CPU"))?;
        model::read(api, source)
    }
}

struct OrtDevice {
    name: String,
    family: OnnxRuntime,
}

impl OrtDevice {
    /// The library, and its name for the provider.
    fn provider(&self) -> Result<(&Arc<Api>, &str), Missing> {
        let api = self.family.api().map_err(Clone::clone)?;
        let wanted = self.name.strip_prefix(PREFIX).unwrap_or_default().trim_start_matches('.');
        match api.providers.iter().find(|provider| provider.eq_ignore_ascii_case(wanted)) {
            Some(provider) => Ok((api, provider)),
            None => Err(Missing {
                reason: format!(
                    "ONNX Runtime {} in `{}` was built for {}, not for {wanted}",
                    api.version,
                    api.path.display(),
                    api.providers.join(", ")
                ),
                install: matches!(wanted, "CUDA" | "TENSORRT").then_some("pip install onnxruntime-gpu"),
            }),
        }
    }
}

impl Device for OrtDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> DeviceInfo {
        let description = "ONNX Runtime, reads ONNX".to_owned();
        match self.provider() {
            Ok((api, provider)) => DeviceInfo {
                description,
                properties: vec![
                    ("engine", format!("ONNX Runtime {}", api.version)),
                    ("provider", provider.to_owned()),
                    ("library", api.path.display().to_string()),
                ],
                missing: None,
            },
            Err(missing) => DeviceInfo { description, properties: Vec::new(), missing: Some(missing) },
        }
    }

    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo> {
        self.family.read_model(source)
    }

    fn compile(&self, model: &Model, config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>> {
        let (api, provider) = self.provider().map_err(|missing| missing.error(&self.name))?;
        match model.source() {
            ModelSource::Remote(_) | ModelSource::Ports => Err(no_source(&self.name, model.source())),
            source if other_format(source) == Some(IR) => Err(Error::new(
                ErrorKind::Model,
                format!("device {} reads ONNX files, `{source}` is OpenVINO IR; use OPENVINO.CPU or AUTO", self.name),
            )),
            source => {
                let target = model::Target { device: &self.name, provider, config, executors };
                Ok(Arc::new(model::OrtModel::compile(api, &target, source, model.info())?))
            }
        }
    }
}
