//! Reads a model's ports, and creates a session for one execution provider.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::api::{Api, Session};
use super::options::Options;
use super::request::OrtRequest;
use crate::engine::{Compiled, EngineModel, EngineResult, c_string, check_unchanged, other_format, refused};
use crate::exit;
use crate::graph::{self, Graph};
use crate::model_cache::CacheEntry;
use crate::onnx;
use crate::runtime::device::{DeviceRequest, DeviceStep};
use crate::runtime::executor::{Executor, Executors};
use crate::runtime::{Config, Ignored, ModelInfo, ModelSource, Performance, Port, Precision, Result};

/// Number of concurrent runs on an accelerator: while one run computes, the input of the next run is transferred.
const N_WAITERS: usize = 2;

/// The name of the model file in a cache entry.
const CACHED_NAME: &str = "model.onnx";

/// Reads the ports and metadata of a model through a temporary session without graph optimization.
pub(super) fn read(api: &Arc<Api>, source: &ModelSource) -> Result<ModelInfo> {
    let _inside = exit::try_enter()?;
    let said = || -> EngineResult<ModelInfo> {
        let options = Options::new(api)?;
        options.no_optimization()?;
        options.threads(1)?;
        session(&options, source)?.info(api)
    };
    let said = said();
    exit::guard();
    said.map_err(|why| refused("ORT.CPU", source, &why))
}

/// Creates a session of a model with the input shapes of its file.
fn session(options: &Options<'_>, source: &ModelSource) -> EngineResult<Session> {
    match source {
        ModelSource::File(path) if other_format(source).is_some() => options.session(path),
        ModelSource::File(path) => {
            let (model, is_whole) = onnx::read_up_to(path, MAX_MESSAGE_BYTES).map_err(|error| error.to_string())?;
            file_session(options, path, &model, is_whole)
        }
        ModelSource::Bytes(bytes) => {
            onnx::check_whole(bytes.model())?;
            options.session_of(bytes.model())
        }
        ModelSource::Remote(_) | ModelSource::Ports => Err("the model is neither a file nor the bytes of a file".to_owned()),
    }
}

/// The library reads messages of at most 2 GiB.
const MAX_MESSAGE_BYTES: u64 = i32::MAX as u64;

/// Creates a session of a model that was read from `path`. If the weights are not a part of the model, because the model would be too
/// large, the library maps their files.
fn file_session(options: &Options<'_>, path: &Path, model: &[u8], is_whole: bool) -> EngineResult<Session> {
    if !is_whole {
        let folder = std::path::absolute(path.with_file_name("")).map_err(|error| error.to_string())?;
        let folder = folder.to_str().ok_or_else(|| format!("the path `{}` is not UTF-8", folder.display()))?;
        options.entry(c"session.model_external_initializers_file_folder_path", &c_string(folder)?)?;
    }
    options.session_of(model)
}

/// The execution provider for which a model is compiled, and the options.
pub(super) struct Target<'a> {
    /// The name of the device.
    pub(super) device: &'a str,
    /// ONNX Runtime's own name of the provider.
    pub(super) provider: &'a str,
    pub(super) config: &'a Config,
    pub(super) executors: &'a Executors,
}

impl Target<'_> {
    fn is_processor(&self) -> bool {
        self.provider == "CPU"
    }
}

/// Data that roiflow prepares before ONNX Runtime reads a model.
#[derive(Default)]
struct Prepared<'a> {
    /// The bytes of the model with the input shapes that the caller wants; `None` if only ONNX Runtime knows the format.
    model: Option<Cow<'a, [u8]>>,
    /// Whether the weights in separate files are a part of `model`.
    is_whole: bool,
    /// The graph of the model. Empty if only ONNX Runtime knows the format.
    graph: Graph,
    /// The cache entry for the optimized model. Optimizing a file takes two to three times as long as loading the optimized model: 58
    /// instead of 22 ms for YOLOX-nano, 74 instead of 22 ms for a re-identification model of 0.8 MiB (one thread, medians of 11).
    kept: Option<CacheEntry>,
    /// The names and operators of the model's nodes, if `Config::profiling` is set.
    nodes: Vec<(String, String)>,
    ignored: Vec<Ignored>,
}

/// Returns a description of the processor. It is a part of the cache key, because ONNX Runtime optimizes a graph for the features of the
/// processor.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let lines = ["model name", "flags", "Features", "CPU part"].map(|key| info.lines().find(|line| line.starts_with(key)));
    format!("{} {:?}", std::env::consts::ARCH, lines)
}

impl<'a> Prepared<'a> {
    /// Prepares a model. `read` has the input shapes that the caller wants.
    fn new(api: &Api, target: &Target<'_>, source: &'a ModelSource, read: &ModelInfo) -> EngineResult<Self> {
        let config = target.config;
        let elsewhere = !target.is_processor();
        let mut prepared = Self {
            ignored: Ignored::of([
                (config.precision != Precision::F32, "precision", "the device computes in the types of the model"),
                (elsewhere && config.n_threads.is_some(), "n_threads", "runs do not compute on threads of the CPU"),
                (elsewhere && config.cache_folder.is_some(), "cache_folder", "only models for the CPU are cached"),
            ]),
            is_whole: true,
            ..Self::default()
        };
        let mut not_kept = |why| prepared.ignored.extend(Ignored::of([(config.cache_folder.is_some(), "cache_folder", why)]));
        if other_format(source) == Some("ort") {
            not_kept("an .ort file is optimized already");
            return Ok(prepared);
        }
        let bytes = match source {
            ModelSource::Bytes(bytes) => Cow::Borrowed(bytes.model()),
            ModelSource::File(path) => {
                let (model, is_whole) = onnx::read_up_to(path, MAX_MESSAGE_BYTES).map_err(|error| error.to_string())?;
                prepared.is_whole = is_whole;
                Cow::Owned(model)
            }
            ModelSource::Remote(_) | ModelSource::Ports => return Ok(prepared),
        };
        // If the bytes are not valid ONNX, they stay unchanged, and ONNX Runtime reports the error.
        let model = onnx::with_input_shapes(&bytes, &read.inputs).unwrap_or_default().map_or(bytes, Cow::Owned);
        prepared.graph = graph::onnx::read(&model, &read.inputs).unwrap_or_default();
        if config.profiling {
            prepared.nodes = onnx::nodes(&model).unwrap_or_default();
        }
        if !prepared.is_whole {
            not_kept("models above 2 GiB are not cached");
        } else if let Some(folder) = config.cache_folder.as_ref().filter(|_| target.is_processor()) {
            // The optimized model also depends on the release of ONNX Runtime and on the caller's options.
            let options = config.options_of(super::PREFIX).fold(api.version.clone(), |all, (key, value)| format!("{all} {key}={value}"));
            match CacheEntry::of(folder, "onnxruntime", (options, processor(), &model)) {
                Ok(kept) => prepared.kept = Some(kept),
                Err(error) => tracing::info!("no compiled models are cached in `{}`: {error}", folder.display()),
            }
        }
        prepared.model = Some(model);
        Ok(prepared)
    }

    /// Loads the session from the cache. If the cache has no entry, compiles the model, and writes an entry if the cache folder is
    /// writable.
    fn session<'o>(&self, source: &ModelSource, options: impl Fn() -> EngineResult<Options<'o>>) -> EngineResult<Session> {
        let compile = |options: Options<'o>| match (&self.model, source) {
            (Some(Cow::Owned(model)), ModelSource::File(path)) => file_session(&options, path, model, self.is_whole),
            (Some(Cow::Owned(model)), _) => options.session_of(model),
            (Some(Cow::Borrowed(_)) | None, source) => session(&options, source),
        };
        let Some(kept) = &self.kept else { return compile(options()?) };
        let mut model = Vec::new();
        // An entry has one file.
        if let Some(entry) = kept.read(|_, bytes| model.extend_from_slice(bytes)) {
            let options = options()?;
            options.no_optimization()?;
            match options.session_of(&model) {
                Ok(session) => {
                    tracing::debug!("`{source}` was loaded from the cache");
                    return Ok(session);
                }
                Err(why) => {
                    tracing::warn!("the cached model `{}` is not usable and is compiled again: {why}", entry.display());
                    kept.remove();
                }
            }
        }
        let draft = match kept.draft() {
            Ok(draft) => draft,
            Err(error) => {
                tracing::info!("the compiled model of `{source}` is not cached: {error}");
                return compile(options()?);
            }
        };
        let writing = options()?;
        writing.write_optimized(&draft.path().join(CACHED_NAME))?;
        match compile(writing) {
            Ok(session) => {
                draft.keep();
                Ok(session)
            }
            // The cause may be the model or the cache folder. Compile without the cache: if this fails as well, the cause is the model.
            Err(why) => {
                let session = compile(options()?)?;
                tracing::info!("the compiled model of `{source}` is not cached: {why}");
                Ok(session)
            }
        }
    }
}

/// Returns the ports of the session, with the input shapes that the caller wants.
fn with_bounds(mut session: ModelInfo, wanted: &ModelInfo) -> EngineResult<ModelInfo> {
    check_unchanged(&session, wanted)?;
    for (port, wanted) in session.inputs.iter_mut().zip(&wanted.inputs) {
        let fixed = port.shape.dims().iter().zip(wanted.shape.dims()).find(|(own, wanted)| !own.is_open() && own != wanted);
        if let Some((own, wanted)) = fixed {
            return Err(format!(
                "input {port}: the file has the fixed extent {own}, which cannot become {wanted}; use the original .onnx file"
            ));
        }
        if port.shape != wanted.shape {
            port.shape = wanted.shape.clone();
        }
    }
    Ok(session)
}

/// A model compiled for one execution provider.
pub(super) struct OrtModel {
    pub(super) device: String,
    pub(super) api: Arc<Api>,
    pub(super) session: Session,
    pub(super) info: ModelInfo,
    pub(super) input_names: Vec<CString>,
    pub(super) output_names: Vec<CString>,
    has_independent_rows: bool,
    /// Whether the library counts the values of each input.
    pub(super) inputs_counted: Vec<bool>,
    /// Whether the library relies on the values of each output during a run.
    pub(super) outputs_counted: Vec<bool>,
    /// The names and operators of the nodes in the file; `None` unless `Config::profiling` is set.
    pub(super) profiling: Option<Arc<[(String, String)]>>,
}

impl OrtModel {
    /// Compiles a model with the input shapes of `read`, which the caller may have changed.
    pub(super) fn compile(api: &Arc<Api>, target: &Target<'_>, source: &ModelSource, read: &ModelInfo) -> Result<Compiled<Self>> {
        let &Target { device, provider, config, executors } = target;
        let pool = executors.for_model(device, config)?;
        let (n_requests, n_threads) = config.requests_and_threads(pool.n_threads());
        let options = || -> EngineResult<Options<'_>> {
            let options = Options::new(api)?;
            options.threads(if target.is_processor() { n_threads } else { 1 })?;
            if n_threads > 1 && config.performance == Performance::Throughput {
                // A spinning thread would take processor time from other requests.
                options.entry(c"session.intra_op.allow_spinning", c"0")?;
            }
            // This option affects the session's own threads. The module `calls` takes care of the calling thread.
            options.entry(c"session.set_denormal_as_zero", c"1")?;
            for (key, value) in config.options_of(super::PREFIX) {
                options.entry(&c_string(key)?, &c_string(value)?)?;
            }
            options.provider(provider)?;
            Ok(options)
        };
        let compile = || -> EngineResult<(Self, Vec<Ignored>)> {
            let prepared = Prepared::new(api, target, source, read)?;
            let session = prepared.session(source, options)?;
            let info = with_bounds(session.info(api)?, read)?;
            let names = |ports: &[Port]| ports.iter().map(|port| c_string(port.name())).collect::<EngineResult<Vec<_>>>();
            let (input_names, output_names) = (names(&info.inputs)?, names(&info.outputs)?);
            let profiling = config.profiling.then(|| prepared.nodes.into());
            let (device, api) = (device.to_owned(), api.clone());
            let graph = &prepared.graph;
            let has_independent_rows = graph.has_independent_rows();
            let (inputs_counted, outputs_counted) = (graph.inputs_counted(), graph.outputs_counted(&info));
            let model = Self {
                device,
                api,
                session,
                info,
                input_names,
                output_names,
                has_independent_rows,
                inputs_counted,
                outputs_counted,
                profiling,
            };
            Ok((model, prepared.ignored))
        };
        let _inside = exit::try_enter()?;
        let compiled = compile();
        exit::guard();
        let (model, ignored) = compiled.map_err(|why| refused(device, source, &why))?;
        let model = Arc::new(model);
        let (executor, n_requests): (Arc<dyn Executor>, _) = match target.is_processor() || config.exclusive_requests {
            true => (pool, n_requests),
            // Threads that wait for an accelerator do not compute, so they must not occupy threads of the CPU pool.
            false => (executors.named(&format!("roiflow-{device}-waiter"), N_WAITERS)?, config.n_requests.unwrap_or(N_WAITERS + 1).max(1)),
        };
        Ok(Compiled { model, steps: vec![DeviceStep { name: "infer", executor }], n_requests, ignored })
    }
}

impl EngineModel for OrtModel {
    fn device(&self) -> &str {
        &self.device
    }

    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn has_independent_rows(&self) -> bool {
        self.has_independent_rows
    }

    fn create_request(self: Arc<Self>) -> EngineResult<Box<dyn DeviceRequest>> {
        Ok(Box::new(OrtRequest::new(self)?))
    }
}

impl Session {
    fn info(&self, api: &Api) -> EngineResult<ModelInfo> {
        let table = api.table();
        let ports = |kind: &str, n_ports: usize, is_input: bool| {
            (0..n_ports)
                .map(|port_idx| {
                    let (name, type_info) = if is_input {
                        (table.SessionGetInputName, table.SessionGetInputTypeInfo)
                    } else {
                        (table.SessionGetOutputName, table.SessionGetOutputTypeInfo)
                    };
                    let mut text = ptr::null_mut();
                    // SAFETY: the session is not released, the index is in range, and the result pointer is valid. `take_string` frees the
                    // string.
                    api.check(unsafe { name(self.ptr.as_ptr(), port_idx, api.allocator()?, &raw mut text) })?;
                    // SAFETY: the call above returned this string from the default allocator, and no other code uses or frees it.
                    let name = unsafe { api.take_string(text) };
                    let mut described = ptr::null_mut();
                    // SAFETY: the session is not released, the index is in range, and the result pointer is valid.
                    api.check(unsafe { type_info(self.ptr.as_ptr(), port_idx, &raw mut described) })?;
                    let described = NonNull::new(described).ok_or("ONNX Runtime returned no type")?;
                    // SAFETY: the library just returned `described`, and it is released only in the next statement.
                    let port_type = unsafe { api.port_type(described) };
                    // SAFETY: this is the only call that releases `described`, and no code uses it afterwards.
                    unsafe { (table.ReleaseTypeInfo)(described.as_ptr()) };
                    let (element, shape) = port_type.map_err(|why| format!("{kind} `{name}`: {why}"))?;
                    Ok(Port::new(&name, element, shape))
                })
                .collect::<EngineResult<Vec<_>>>()
        };
        let (mut n_inputs, mut n_outputs) = (0, 0);
        // SAFETY: the session is not released, and the result pointer is valid.
        api.check(unsafe { (table.SessionGetInputCount)(self.ptr.as_ptr(), &raw mut n_inputs) })?;
        // SAFETY: the session is not released, and the result pointer is valid.
        api.check(unsafe { (table.SessionGetOutputCount)(self.ptr.as_ptr(), &raw mut n_outputs) })?;
        Ok(ModelInfo {
            inputs: ports("input", n_inputs, true)?,
            outputs: ports("output", n_outputs, false)?,
            metadata: self.metadata(api)?,
        })
    }

    fn metadata(&self, api: &Api) -> EngineResult<BTreeMap<String, String>> {
        let table = api.table();
        let allocator = api.allocator()?;
        let mut metadata = ptr::null_mut();
        // SAFETY: the session is not released, and the result pointer is valid. The metadata is released below.
        api.check(unsafe { (table.SessionGetModelMetadata)(self.ptr.as_ptr(), &raw mut metadata) })?;
        let (mut keys, mut n_keys) = (ptr::null_mut(), 0);
        // SAFETY: the metadata is not released, and the result pointers are valid. The list and its strings are freed below.
        let listed =
            api.check(unsafe { (table.ModelMetadataGetCustomMetadataMapKeys)(metadata, allocator, &raw mut keys, &raw mut n_keys) });
        let mut found = BTreeMap::new();
        for key_idx in 0..usize::try_from(n_keys).unwrap_or(0) {
            // SAFETY: the list has `n_keys` C strings of the default allocator. Each of them is taken once, and not used afterwards.
            let key = unsafe { api.take_string(*keys.add(key_idx)) };
            let mut value = ptr::null_mut();
            let Ok(name) = c_string(&key) else { continue };
            // SAFETY: the metadata is not released, the name is a C string, and the result pointer is valid. The returned string comes from
            // the allocator and is freed below.
            let looked_up = unsafe { (table.ModelMetadataLookupCustomMetadataMap)(metadata, allocator, name.as_ptr(), &raw mut value) };
            if api.check(looked_up).is_ok() && !value.is_null() {
                // SAFETY: the call above returned this string from the default allocator, and no other code uses or frees it.
                found.insert(key, unsafe { api.take_string(value) });
            }
        }
        if !keys.is_null() {
            // SAFETY: the list itself comes from the same allocator, is freed only here, and no code uses it afterwards.
            let _freed = api.check(unsafe { (table.AllocatorFree)(allocator, keys.cast()) });
        }
        // SAFETY: this is the only call that releases the metadata, and no code uses it afterwards.
        unsafe { (table.ReleaseModelMetadata)(metadata) };
        listed.map(|()| found)
    }
}
