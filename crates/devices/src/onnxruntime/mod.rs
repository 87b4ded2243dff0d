//! The devices `ORT.<provider>`: ONNX Runtime 1.17 or newer. The library is loaded at run time; building roiflow does not need it.
//!
//! - The library is searched for in this order: `ORT_DYLIB_PATH`, the loader's path, the packages of `python3` (`pip install onnxruntime`),
//!   and the folder that `scripts/fetch-engines` fills. See `devices::find`.
//! - Each compiled model is one session. All requests run this session, also concurrently, so the weights are in memory only once. On the
//!   CPU, a run computes on the calling thread. The number of requests times the number of threads of each request is the number of cores,
//!   see `Config`.
//! - The library reads inputs and writes outputs in place, even if the caller set the tensor. Tensors with gaps and outputs of dynamic
//!   shape are copied.
//! - The library cannot change the input shapes of a file. If the caller wants other shapes, roiflow changes the bytes of the file before
//!   the library reads them.
//! - On the CPU, optimized models are cached in `Config::cache_folder`.
//! - A canceled run stops between two nodes.
//! - Node times require ONNX Runtime 1.25 or newer.
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

/// The devices of ONNX Runtime. A clone is cheap. The first use searches for the library.
#[derive(Clone, Default)]
pub struct OnnxRuntime(Arc<Library>);

#[derive(Default)]
struct Library {
    at: Option<PathBuf>,
    loaded: OnceLock<Result<Arc<Api>, Missing>>,
}

impl OnnxRuntime {
    /// Creates the devices of the library at this path. `OnnxRuntime::default()` searches for an installed library instead.
    ///
    /// # Safety
    /// The first use loads the library and runs its initializers, before roiflow can check which library it is. The file must be ONNX
    /// Runtime, or a library whose initializers are safe to run in this process.
    pub unsafe fn at(path: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Library { at: Some(path.into()), loaded: OnceLock::new() }))
    }

    fn api(&self) -> Result<&Arc<Api>, &Missing> {
        let open = |path: &Path| {
            // SAFETY: the initializers are safe to run. Either the user installed the library as ONNX Runtime (it was found by its file
            // name or through an environment variable), or the caller of `at` guarantees that they are safe.
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
        // ONNX Runtime cannot read OpenVINO IR and the formats of other engines. Refuse them before the library is loaded.
        let is_known = match source {
            ModelSource::File(path) => path.extension().is_some_and(|ending| ending == "onnx" || ending == "ort"),
            ModelSource::Bytes(_) => matches!(other_format(source), None | Some("ort")),
            ModelSource::Remote(_) | ModelSource::Ports => false,
        };
        if !is_known {
            return Err(Error::new(ErrorKind::Unsupported, format!("device {PREFIX}.CPU reads only .onnx and .ort files")));
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
    /// Returns the loaded library, and the library's own name of the device's execution provider.
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
            source if other_format(source).is_some_and(|format| format != "ort") => {
                let what = if other_format(source) == Some(IR) { "is OpenVINO IR" } else { "has another format" };
                let message = format!("device {} reads ONNX files, but `{source}` {what}; use OPENVINO.CPU or AUTO", self.name);
                Err(Error::new(ErrorKind::Model, message))
            }
            source => {
                let target = model::Target { device: &self.name, provider, config, executors };
                Ok(Arc::new(model::OrtModel::compile(api, &target, source, model.info())?))
            }
        }
    }
}
