//! Reads a model's ports, and compiles a model for one device.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::api::{Api, OvCompiledModel, OvDimension, OvModel, OvPartialShape, PortOf, TensorOver};
use super::integers;
use super::ir::{self, Ir};
use super::request::OpenVinoRequest;
use crate::engine::{Compiled, EngineModel, EngineResult, IR, c_string, check_unchanged, other_format, refused};
use crate::exit;
use crate::graph::{self, Graph};
use crate::model_cache::CacheEntry;
use crate::onnx;
use crate::runtime::device::{DeviceRequest, DeviceStep};
use crate::runtime::executor::Executors;
use crate::runtime::files::{self, Parts};
use crate::runtime::{Config, Error, ErrorKind, Ignored, Model, ModelInfo, ModelSource, Performance, Port, Precision, Result};

/// Maximum number of properties. The library takes properties as variadic arguments, and in Rust a call has a fixed number of arguments.
const MAX_PROPERTIES: usize = 12;

/// Maximum size of a file that roiflow searches for references to external weights.
const MAX_BYTES_READ: u64 = 64 << 20;

/// Reads the ports of a model, without compiling it.
pub(super) fn read(api: &Arc<Api>, source: &ModelSource) -> Result<ModelInfo> {
    check_files(source)?;
    let _inside = exit::try_enter_with_threads()?;
    let functions = &api.functions;
    let said = || -> EngineResult<ModelInfo> {
        check_is_ir(source)?;
        let model = ReadModel::new(api, source)?;
        // SAFETY: all four functions get the pointer of `model`, which is not freed, and valid result pointers.
        ports_of(
            api,
            |count| unsafe { (functions.ov_model_inputs_size)(model.as_ptr(), count) },
            |port_idx, port| unsafe { (functions.ov_model_const_input_by_index)(model.as_ptr(), port_idx, port) },
            |count| unsafe { (functions.ov_model_outputs_size)(model.as_ptr(), count) },
            |port_idx, port| unsafe { (functions.ov_model_const_output_by_index)(model.as_ptr(), port_idx, port) },
        )
    };
    let said = said();
    exit::guard();
    let info = said.map_err(|why| Error::new(ErrorKind::Model, format!("OpenVINO cannot read `{source}`: {why}")))?;
    let ir = Ir::of_text(&ir::text_of(source));
    let complete = |mut ports: Vec<Port>| {
        ports.iter_mut().for_each(|port| ir.complete(port));
        ports
    };
    Ok(ModelInfo { inputs: complete(info.inputs), outputs: complete(info.outputs), metadata: ir.metadata })
}

/// Checks the files with the weights of a model: the library would wait for the writer of a FIFO, and read a device without end.
fn check_files(source: &ModelSource) -> Result<()> {
    match (source, other_format(source)) {
        (ModelSource::File(path), None) => onnx::check_other_files(path),
        _ => weights_file(source).map_or(Ok(()), |weights| files::open_regular(&weights, "weights file").map(drop)),
    }
}

/// Returns the file with the weights of an IR or of a model of PaddlePaddle, if there is one.
fn weights_file(source: &ModelSource) -> Option<PathBuf> {
    let ModelSource::File(path) = source else { return None };
    let ending = match other_format(source)? {
        IR => "bin",
        "pdmodel" => "pdiparams",
        _ => return None,
    };
    Some(path.with_extension(ending)).filter(|weights| weights.symlink_metadata().is_ok())
}

/// Reads the graph of a model. Of its weights, reads only whole numbers and small tensors. Returns an empty graph if the format is not known.
fn graph_of(source: &ModelSource, inputs: &[Port]) -> Graph {
    let of_onnx = |model: &[u8]| graph::onnx::read(model, inputs).ok();
    let of_ir = |weights: graph::ir::Weights<'_>| graph::ir::read(&ir::text_of(source), weights, inputs);
    let graph = match (source, other_format(source)) {
        (ModelSource::File(path), None) => onnx::outline_with_integers(path).ok().and_then(|model| of_onnx(&model)),
        (ModelSource::Bytes(bytes), None) => of_onnx(bytes.model()),
        (ModelSource::File(path), Some(IR)) => {
            // A model without weights has no such file.
            let parts = RefCell::new(Parts::open(&path.with_extension("bin"), "weights file").ok());
            of_ir(&|offset, len| {
                let mut bytes = Vec::new();
                parts.borrow_mut().as_mut()?.read(offset, len as u64, &mut bytes).ok()?.then_some(bytes)
            })
        }
        (ModelSource::Bytes(bytes), Some(IR)) => of_ir(&|offset, len| {
            let (begin, weights) = (usize::try_from(offset).ok()?, bytes.weights()?);
            Some(weights.get(begin..begin.checked_add(len)?)?.to_vec())
        }),
        _ => None,
    };
    graph.unwrap_or_default()
}

/// Checks that an .xml file, or IR text in memory, begins like OpenVINO IR. The library must not get other content: it would try its other
/// front ends, and their parsers print to standard error.
fn check_is_ir(source: &ModelSource) -> EngineResult<()> {
    const HEAD: u64 = 64 << 10;
    if other_format(source) != Some(IR) {
        return Ok(());
    }
    let head = match source {
        ModelSource::Bytes(bytes) => Cow::Borrowed(&bytes.model()[..bytes.model().len().min(HEAD as usize)]),
        ModelSource::File(path) => {
            let mut head = Vec::new();
            let read = std::fs::File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
            read.map_err(|error| error.to_string())?;
            Cow::Owned(head)
        }
        ModelSource::Remote(_) | ModelSource::Ports => return Ok(()),
    };
    let has = |word: &str| head.windows(word.len()).any(|window| window == word.as_bytes());
    match has("<net ") && has("version=") {
        true => Ok(()),
        false => Err("it is not OpenVINO IR: expected a file that begins with `<net name=... version=...>`".to_owned()),
    }
}

/// The device for which a model is compiled, and the options.
pub(super) struct Target<'a> {
    /// The name of the device.
    pub(super) device: &'a str,
    /// OpenVINO's own name of the device.
    pub(super) own_name: &'a str,
    pub(super) config: &'a Config,
    pub(super) executors: &'a Executors,
}

/// Compiles a model with the input shapes of `model`. The caller may have changed these shapes after reading the file.
pub(super) fn compile(api: &Arc<Api>, target: &Target<'_>, source: &ModelSource, model: &Model) -> Result<Compiled<OpenVinoModel>> {
    let read = model.info();
    let &Target { device: name, own_name, config, executors } = target;
    if has_own_variables(source) {
        let message = format!(
            "device {name} cannot run `{source}`: the model has internal variables (ReadValue), which OpenVINO's C library can neither read nor reset; export the model with its state as inputs and outputs, and pair them with Model::make_stateful"
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let pool = executors.for_model(name, config)?;
    let (n_requests, n_threads) = config.requests_and_threads(pool.n_threads());
    let on_processor = own_name == "CPU";
    let mut properties = vec![(
        "PERFORMANCE_HINT",
        match config.performance {
            Performance::Throughput => "THROUGHPUT".to_owned(),
            Performance::Latency => "LATENCY".to_owned(),
        },
    )];
    let precision = precision_name(config.precision);
    if on_processor {
        properties.push(("INFERENCE_PRECISION_HINT", precision.to_owned()));
        // The threads of the pool limit the number of concurrent runs, so more streams than threads would have no effect.
        let n_streams = n_requests.min(pool.n_threads());
        properties.push(("NUM_STREAMS", n_streams.to_string()));
        properties.push(("INFERENCE_NUM_THREADS", (n_streams * n_threads).to_string()));
        // Runs compute on threads of the pool, which are not bound to cores. So OpenVINO must not bind them either.
        properties.push(("ENABLE_CPU_PINNING", "NO".to_owned()));
    } else if config.precision != Precision::F32 {
        // For an accelerator, set the precision only if the caller wants a lower one, because some accelerators compute only in f16.
        properties.push(("INFERENCE_PRECISION_HINT", precision.to_owned()));
    }
    // roiflow forms batches itself. OpenVINO's automatic batching would also load another library.
    properties.push(("ALLOW_AUTO_BATCHING", "NO".to_owned()));
    if config.profiling {
        properties.push(("PERF_COUNT", "YES".to_owned()));
    }
    for (key, value) in config.options_of(super::PREFIX) {
        properties.retain(|(known, _)| *known != key);
        properties.push((key, value.to_owned()));
    }
    // If the caller sets `CACHE_DIR` as an engine option, OpenVINO alone manages that folder, and roiflow caches nothing.
    let cache_folder = config.cache_folder.as_deref().filter(|_| properties.iter().all(|(key, _)| *key != "CACHE_DIR"));
    // Compile from a path, because OpenVINO then finds a cached model without reading the file. The result is `None` if the file has other
    // input shapes than the caller wants.
    let of_file = |path: &Path| -> EngineResult<Option<(CompiledFile, ModelInfo)>> {
        let compiled = compile_file(api, cache_folder, path, own_name, &properties)?;
        let info = compiled.info()?;
        check_unchanged(&info, read)?;
        let is_as_wanted = info.inputs.iter().zip(&read.inputs).all(|(own, wanted)| own.shape == wanted.shape);
        Ok(is_as_wanted.then_some((compiled, info)))
    };
    let compile = || -> EngineResult<(CompiledFile, ModelInfo)> {
        let compiled = match (source, cache_folder) {
            (ModelSource::File(path), _) if !model.is_reshaped() => of_file(path)?,
            // If compiling the reshaped copy fails, the caller's own file is compiled below, so that an error names the caller's file.
            (ModelSource::File(path), Some(folder)) => reshaped_file(folder, path, &read.inputs).and_then(|(kept, file)| {
                let compiled = of_file(&file).unwrap_or_else(|_| {
                    kept.remove();
                    None
                });
                // The copy may have been damaged while OpenVINO read it.
                compiled.filter(|_| kept.found().is_some())
            }),
            _ => None,
        };
        if let Some(compiled) = compiled {
            return Ok(compiled);
        }
        let file = ReadModel::new(api, source)?;
        if model.is_reshaped() || matches!(source, ModelSource::File(_)) {
            file.reshape(&read.inputs)?;
        }
        let compiled = CompiledFile::of_model(&file, own_name, &properties)?;
        let info = compiled.info()?;
        check_unchanged(&info, read)?;
        Ok((compiled, info))
    };
    check_files(source)?;
    // The library reads the files itself, so a change can only be noticed afterwards.
    let model_file = if let ModelSource::File(path) = source { Some(path.clone()) } else { None };
    let files = model_file.into_iter().chain(weights_file(source));
    let opened = files.map(|path| Parts::open(&path, "model")).collect::<Result<Vec<_>>>()?;
    let graph = graph_of(source, &read.inputs);
    if let Some(large) = graph.integer_beyond_32_bits(&[]) {
        return Err(integers::beyond_32_bits(name, source, &large));
    }
    let _inside = exit::try_enter_with_threads()?;
    let compiled = compile();
    exit::guard();
    opened.iter().try_for_each(Parts::check)?;
    let (compiled, mut info) = compiled.map_err(|why| refused(name, source, &why))?;
    take_names(&mut info.inputs, &read.inputs);
    take_names(&mut info.outputs, &read.outputs);
    let mut ignored = ignored(&compiled, config, on_processor);
    if config.cache_folder.is_some() && matches!(source, ModelSource::Bytes(_)) {
        ignored.push(Ignored { option: "cache_folder", why: "only models of files are cached; pass a path".to_owned() });
    }
    let n_requests = match on_processor {
        true => n_requests,
        false => config.n_requests.or_else(|| compiled.property(c"OPTIMAL_NUMBER_OF_INFER_REQUESTS")?.parse().ok()).unwrap_or(1).max(1),
    };
    // With exclusive requests, a run occupies the single worker thread until it ends. Otherwise, an accelerator calls back, and no thread
    // waits.
    let calls_back = !on_processor && !config.exclusive_requests;
    let steps = match calls_back {
        false => vec![DeviceStep { name: "infer", executor: pool }],
        true => vec![DeviceStep { name: "submit", executor: pool.clone() }, DeviceStep { name: "wait", executor: pool }],
    };
    let has_independent_rows = graph.has_independent_rows();
    let (inputs_counted, outputs_counted) = (graph.inputs_counted(), graph.outputs_counted(&info));
    let (device, api, profiling) = (name.to_owned(), api.clone(), config.profiling);
    let rounds_to_not_run = own_name.contains("CPU");
    let model = Arc::new(OpenVinoModel {
        device,
        api,
        compiled,
        info,
        profiling,
        rounds_to_not_run,
        calls_back,
        has_independent_rows,
        inputs_counted,
        outputs_counted,
    });
    Ok(Compiled { model, steps, n_requests, ignored })
}

/// Compiles a file, or loads its compiled model from the cache.
///
/// OpenVINO writes cached models in place, although other processes may read those files. So this process gives OpenVINO a private folder (a
/// draft) with copies of the files of the cache entry. If OpenVINO had to compile the model, the draft becomes the cache entry.
fn compile_file(
    api: &Arc<Api>,
    folder: Option<&Path>,
    path: &Path,
    device: &str,
    properties: &[(&str, String)],
) -> EngineResult<CompiledFile> {
    let uncached = || CompiledFile::of_file(api, path, device, properties);
    let Some(folder) = folder else { return uncached() };
    let not_cached =
        |why: &str| tracing::info!("the compiled model of `{}` is not cached in `{}`: {why}", path.display(), folder.display());
    let kept = match cache_entry(api, folder, path, device, properties) {
        Ok(kept) => kept,
        Err(error) => {
            not_cached(&error.to_string());
            return uncached();
        }
    };
    let (draft, is_found) = match kept.draft().and_then(|draft| draft.copy_entry().map(|is_found| (draft, is_found))) {
        Ok(prepared) => prepared,
        Err(error) => {
            not_cached(&error.to_string());
            return uncached();
        }
    };
    let Some(draft_folder) = draft.path().to_str() else {
        not_cached("the path of the cache folder is not UTF-8");
        return uncached();
    };
    let with_cache: Vec<_> = properties.iter().cloned().chain([("CACHE_DIR", draft_folder.to_owned())]).collect();
    match CompiledFile::of_file(api, path, device, &with_cache) {
        Ok(compiled) => {
            let is_yes = |text: String| ["YES", "TRUE", "1"].iter().any(|yes| text.eq_ignore_ascii_case(yes));
            let is_loaded = is_found && compiled.property(c"LOADED_FROM_CACHE").is_none_or(is_yes);
            tracing::debug!("`{}` was {}", path.display(), if is_loaded { "loaded from the cache" } else { "compiled" });
            if !is_loaded {
                if is_found {
                    kept.remove();
                }
                draft.keep();
            }
            Ok(compiled)
        }
        // The model or the cached file may be invalid. Compile without the cache: if this fails as well, the model is invalid.
        Err(why) => {
            if is_found {
                kept.remove();
            }
            let compiled = uncached()?;
            not_cached(&why);
            Ok(compiled)
        }
    }
}

/// Returns the cache entry for a file, compiled by this OpenVINO release for this device with these properties.
fn cache_entry(api: &Api, folder: &Path, path: &Path, device: &str, properties: &[(&str, String)]) -> std::io::Result<CacheEntry> {
    let file_of = |path: &Path| std::fs::metadata(path).and_then(|file| Ok((file.modified()?, file.len())));
    // The names of OpenVINO's cache files depend on the path as the caller wrote it, so this path is a part of the key.
    let paths = (path, std::path::absolute(path)?, std::fs::canonicalize(path)?);
    let weights =
        path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("xml")).then(|| file_of(&path.with_extension("bin")).ok());
    let hardware = api.property(device, c"FULL_DEVICE_NAME").unwrap_or_default();
    CacheEntry::of(folder, "openvino", (&api.version, device, hardware, paths, file_of(path)?, weights, properties))
}

/// Returns a cached copy of an ONNX file, with `inputs` as its input shapes. Without this copy, OpenVINO would have to read and reshape the
/// model to find its compiled model in the cache. This takes longer than loading the compiled model.
fn reshaped_file(folder: &Path, path: &Path, inputs: &[Port]) -> Option<(CacheEntry, PathBuf)> {
    const NAME: &str = "model.onnx";
    path.extension().filter(|ending| ending.eq_ignore_ascii_case("onnx"))?;
    let shapes: Vec<_> = inputs.iter().map(|port| (port.name(), &port.shape)).collect();
    let file = std::fs::metadata(path).ok()?;
    let made_from = (std::fs::canonicalize(path).ok()?, file.modified().ok()?, file.len(), format!("{shapes:?}"));
    let make = || -> std::io::Result<Option<(CacheEntry, PathBuf)>> {
        let kept = CacheEntry::of(folder, "reshaped", made_from)?;
        if let Some(entry) = kept.found() {
            return Ok(Some((kept, entry.join(NAME))));
        }
        let model = std::fs::read(path)?;
        if onnx::may_have_other_files(&model[..])? {
            return Ok(None);
        }
        let Ok(Some(reshaped)) = onnx::with_input_shapes(&model, inputs) else { return Ok(None) };
        let draft = kept.draft()?;
        std::fs::write(draft.path().join(NAME), reshaped)?;
        draft.keep();
        Ok(kept.found().map(|entry| (kept, entry.join(NAME))))
    };
    make().unwrap_or_else(|error| {
        tracing::info!("the compiled model of `{}` is not cached in `{}`: {error}", path.display(), folder.display());
        None
    })
}

/// Copies all names of the ports from `read` to the compiled model, because the library reports only one name for each port of a compiled
/// model.
fn take_names(compiled: &mut [Port], read: &[Port]) {
    for port in compiled {
        let is_same = |other: &&Port| port.names.first().is_some_and(|name| other.names.contains(name));
        if let Some(same) = read.iter().find(is_same) {
            port.names.clone_from(&same.names);
        }
    }
}

/// Returns the size of the model's weights in bytes, or `None` if it is unknown. OpenVINO IR has its weights in a separate file.
pub(super) fn weights_bytes(source: &ModelSource) -> Option<u64> {
    let path = match source {
        ModelSource::File(path) => path,
        ModelSource::Bytes(bytes) => return Some(bytes.weights().unwrap_or(bytes.model()).len() as u64),
        ModelSource::Remote(_) | ModelSource::Ports => return None,
    };
    let n_bytes = |path: &Path| Some(std::fs::metadata(path).ok()?.len());
    if other_format(source) == Some(IR) {
        return n_bytes(&path.with_extension("bin"));
    }
    let is_onnx = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("onnx"));
    let n_bytes = n_bytes(path).filter(|_| is_onnx)?;
    // Larger files are not searched for external weights. They are treated as files that contain their weights.
    let is_whole = n_bytes > MAX_BYTES_READ || !onnx::may_have_other_files(std::fs::File::open(path).ok()?).ok()?;
    is_whole.then_some(n_bytes)
}

/// Returns whether an OpenVINO IR has internal variables (`ReadValue` layers). OpenVINO's C library has no function that reports them.
fn has_own_variables(source: &ModelSource) -> bool {
    let text = match source {
        _ if other_format(source) != Some(IR) => return false,
        ModelSource::Bytes(bytes) => Cow::Borrowed(bytes.model()),
        ModelSource::File(path) => Cow::Owned(std::fs::read(path).unwrap_or_default()),
        ModelSource::Remote(_) | ModelSource::Ports => return false,
    };
    ["type=\"ReadValue\"", "type='ReadValue'"].iter().any(|layer| text.windows(layer.len()).any(|window| window == layer.as_bytes()))
}

fn precision_name(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "f32",
        Precision::Bf16 => "bf16",
        Precision::F16 => "f16",
    }
}

/// Returns the options that have no effect on the compiled model.
fn ignored(compiled: &CompiledFile, config: &Config, on_processor: bool) -> Vec<Ignored> {
    let mut ignored = Vec::new();
    let precision = precision_name(config.precision);
    let used = compiled.property(c"INFERENCE_PRECISION_HINT").filter(|used| used != precision && config.precision != Precision::F32);
    if let Some(used) = used {
        ignored.push(Ignored { option: "precision", why: format!("this hardware has no {precision}; the model runs in {used}") });
    }
    if config.n_threads.is_some() && !on_processor {
        ignored.push(Ignored { option: "n_threads", why: "runs do not compute on threads of the CPU".to_owned() });
    }
    ignored
}

/// A model compiled for one device.
pub(super) struct OpenVinoModel {
    pub(super) device: String,
    pub(super) api: Arc<Api>,
    pub(super) compiled: CompiledFile,
    pub(super) info: ModelInfo,
    pub(super) profiling: bool,
    /// Whether the plugin reports a node that took less than a microsecond as not executed. OpenVINO's CPU plugin does this.
    pub(super) rounds_to_not_run: bool,
    /// Whether the device computes asynchronously, and calls back when a run is complete.
    pub(super) calls_back: bool,
    has_independent_rows: bool,
    /// Whether the library counts the values of each input.
    pub(super) inputs_counted: Vec<bool>,
    /// Whether the library relies on the values of each output during a run.
    pub(super) outputs_counted: Vec<bool>,
}

impl EngineModel for OpenVinoModel {
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
        Ok(Box::new(OpenVinoRequest::new(self)?))
    }
}

/// Reads the ports through the given functions of the library, which return the number of ports, and a port by its index.
fn ports_of(
    api: &Api,
    n_inputs: impl FnOnce(*mut usize) -> i32,
    input: impl Fn(usize, *mut *mut super::api::OvPort) -> i32,
    n_outputs: impl FnOnce(*mut usize) -> i32,
    output: impl Fn(usize, *mut *mut super::api::OvPort) -> i32,
) -> EngineResult<ModelInfo> {
    let count = |count: &mut usize, status: i32| api.check(status).map(|()| *count);
    let (mut inputs, mut outputs) = (0, 0);
    let asked = n_inputs(&raw mut inputs);
    let n_inputs = count(&mut inputs, asked)?;
    let asked = n_outputs(&raw mut outputs);
    let n_outputs = count(&mut outputs, asked)?;
    let port = |kind: &str, port: PortOf<'_>| {
        let name = port.name();
        let named = |why: String| format!("{kind} `{}`: {why}", name.as_deref().unwrap_or("(no name)"));
        let (element, shape) = (port.element().map_err(named)?, port.shape().map_err(named)?);
        Ok(Port { names: name.iter().map(|name| name.as_str().into()).collect(), element, shape, axes: None })
    };
    let inputs = (0..n_inputs).map(|port_idx| port("input", PortOf::get(api, |place| input(port_idx, place))?));
    let outputs = (0..n_outputs).map(|port_idx| port("output", PortOf::get(api, |place| output(port_idx, place))?));
    Ok(ModelInfo {
        inputs: inputs.collect::<EngineResult<_>>()?,
        outputs: outputs.collect::<EngineResult<_>>()?,
        metadata: BTreeMap::new(),
    })
}

struct ReadModel<'a> {
    api: &'a Arc<Api>,
    ptr: NonNull<OvModel>,
}

impl<'a> ReadModel<'a> {
    fn new(api: &'a Arc<Api>, source: &'a ModelSource) -> EngineResult<Self> {
        let mut model = ptr::null_mut();
        match source {
            ModelSource::File(path) => {
                let path = c_string(path.to_str().ok_or("the path of the model is not UTF-8")?)?;
                // SAFETY: the core is never freed, the path is a C string, and the result pointer is valid. Null for the weights is
                // allowed: OpenVINO then searches for them next to the file.
                api.check(unsafe { (api.functions.ov_core_read_model)(api.core(), path.as_ptr(), ptr::null(), &raw mut model) })?;
            }
            ModelSource::Bytes(bytes) => {
                if other_format(source).is_none() {
                    onnx::check_whole(bytes.model())?;
                }
                let weights = bytes.weights().filter(|weights| !weights.is_empty()).map(|weights| api.tensor_of(weights)).transpose()?;
                // If the library reads ONNX from memory, it drops inputs that no operator reads.
                let changed =
                    if other_format(source).is_none() { onnx::with_all_inputs_read(bytes.model()).unwrap_or_default() } else { None };
                let model_bytes = changed.as_deref().unwrap_or(bytes.model());
                let (text, n_bytes) = (model_bytes.as_ptr().cast(), model_bytes.len());
                let weights_ptr = weights.as_ref().map_or(ptr::null(), TensorOver::as_ptr);
                let read = api.functions.ov_core_read_model_from_memory_buffer;
                // SAFETY: the core is never freed, and the result pointer is valid. The library copies the `n_bytes` bytes. The weights
                // tensor is null or not freed, and the library keeps a reference of its own to it.
                let status = unsafe { read(api.core(), text, n_bytes, weights_ptr, &raw mut model) };
                api.check(status).map_err(|why| match (other_format(source), bytes.weights()) {
                    (Some(IR), None) => format!("{why}; pass the bytes of its .bin file with `ModelBytes::with_weights`"),
                    _ => why,
                })?;
            }
            ModelSource::Remote(_) | ModelSource::Ports => return Err("the model is neither a file nor the bytes of a file".to_owned()),
        }
        Ok(Self { api, ptr: NonNull::new(model).ok_or("OpenVINO returned no model")? })
    }

    fn as_ptr(&self) -> *const OvModel {
        self.ptr.as_ptr()
    }

    fn reshape(&self, inputs: &[Port]) -> EngineResult<()> {
        let mut dims: Vec<Vec<OvDimension>> = inputs.iter().map(|port| port.shape.dims().iter().map(OvDimension::of).collect()).collect();
        let shapes: Vec<_> = dims.iter_mut().map(|dims| OvPartialShape::over(dims)).collect();
        let indexes: Vec<usize> = (0..inputs.len()).collect();
        // SAFETY: the model is not freed and has no other owner. Both lists have one entry per input, and the shapes live longer than the
        // call.
        let status = unsafe {
            (self.api.functions.ov_model_reshape_by_port_indexes)(self.ptr.as_ptr(), indexes.as_ptr(), shapes.as_ptr(), indexes.len())
        };
        self.api.check(status)
    }
}

impl Drop for ReadModel<'_> {
    fn drop(&mut self) {
        // SAFETY: this object is the only owner of the pointer, so the model is freed once and not used afterwards.
        unsafe { (self.api.functions.ov_model_free)(self.ptr.as_ptr()) };
    }
}

/// Properties as variadic arguments: keys and values alternate.
struct Texts {
    /// Always has the maximum number of arguments. OpenVINO reads only the first `n_texts` of them.
    arguments: [*const c_char; 2 * MAX_PROPERTIES],
    n_texts: usize,
    _owned: Vec<CString>,
}

impl Texts {
    fn new(properties: &[(&str, String)]) -> EngineResult<Self> {
        let owned: Vec<CString> =
            properties.iter().flat_map(|(key, value)| [c_string(key), c_string(value)]).collect::<EngineResult<_>>()?;
        let mut arguments = [ptr::null(); 2 * MAX_PROPERTIES];
        if owned.len() > arguments.len() {
            return Err(format!("expected at most {MAX_PROPERTIES} properties, got {}", properties.len()));
        }
        for (argument, text) in arguments.iter_mut().zip(&owned) {
            *argument = text.as_ptr();
        }
        Ok(Self { arguments, n_texts: owned.len(), _owned: owned })
    }
}

/// The library's compiled model.
pub(super) struct CompiledFile {
    api: Arc<Api>,
    ptr: NonNull<OvCompiledModel>,
}

// SAFETY: after its creation, a model is only used to create requests and to query ports and properties. OpenVINO allows this on all
// threads.
unsafe impl Send for CompiledFile {}
// SAFETY: as for `Send`.
unsafe impl Sync for CompiledFile {}

impl CompiledFile {
    fn of_file(api: &Arc<Api>, path: &Path, device: &str, properties: &[(&str, String)]) -> EngineResult<Self> {
        let path = c_string(path.to_str().ok_or("its path is not UTF-8")?)?;
        let device = c_string(device)?;
        let texts = Texts::new(properties)?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x] = texts.arguments;
        let mut compiled = ptr::null_mut();
        let compile = api.functions.ov_core_compile_model_from_file;
        // SAFETY: the core is never freed. Path and device are C strings, and so are the first `n_texts` variadic arguments. The library
        // reads no others. The result pointer is valid.
        let status = unsafe {
            compile(
                api.core(),
                path.as_ptr(),
                device.as_ptr(),
                texts.n_texts,
                &raw mut compiled,
                a,
                b,
                c,
                d,
                e,
                f,
                g,
                h,
                i,
                j,
                k,
                l,
                m,
                n,
                o,
                p,
                q,
                r,
                s,
                t,
                u,
                v,
                w,
                x,
            )
        };
        Self::made(api, status, compiled)
    }

    fn of_model(model: &ReadModel<'_>, device: &str, properties: &[(&str, String)]) -> EngineResult<Self> {
        let device = c_string(device)?;
        let texts = Texts::new(properties)?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x] = texts.arguments;
        let mut compiled = ptr::null_mut();
        let compile = model.api.functions.ov_core_compile_model;
        // SAFETY: the core is never freed, and the model is not freed yet. The device is a C string, and so are the first `n_texts`
        // variadic arguments. The library reads no others. The result pointer is valid.
        let status = unsafe {
            let core = model.api.core();
            compile(
                core,
                model.as_ptr(),
                device.as_ptr(),
                texts.n_texts,
                &raw mut compiled,
                a,
                b,
                c,
                d,
                e,
                f,
                g,
                h,
                i,
                j,
                k,
                l,
                m,
                n,
                o,
                p,
                q,
                r,
                s,
                t,
                u,
                v,
                w,
                x,
            )
        };
        Self::made(model.api, status, compiled)
    }

    fn made(api: &Arc<Api>, status: i32, compiled: *mut OvCompiledModel) -> EngineResult<Self> {
        api.check(status)?;
        Ok(Self { api: api.clone(), ptr: NonNull::new(compiled).ok_or("OpenVINO returned no compiled model")? })
    }

    pub(super) fn as_ptr(&self) -> *const OvCompiledModel {
        self.ptr.as_ptr()
    }

    /// Returns the value of a property, or `None` if the device does not know the property.
    fn property(&self, key: &CStr) -> Option<String> {
        // SAFETY: this object owns the model, which is not freed yet.
        unsafe { self.api.model_property(self.as_ptr(), key) }.ok()
    }

    fn info(&self) -> EngineResult<ModelInfo> {
        let functions = &self.api.functions;
        // SAFETY: all four functions get this compiled model, which is not freed, and valid result pointers.
        ports_of(
            &self.api,
            |count| unsafe { (functions.ov_compiled_model_inputs_size)(self.as_ptr(), count) },
            |port_idx, port| unsafe { (functions.ov_compiled_model_input_by_index)(self.as_ptr(), port_idx, port) },
            |count| unsafe { (functions.ov_compiled_model_outputs_size)(self.as_ptr(), count) },
            |port_idx, port| unsafe { (functions.ov_compiled_model_output_by_index)(self.as_ptr(), port_idx, port) },
        )
    }
}

impl Drop for CompiledFile {
    fn drop(&mut self) {
        let Some(_inside) = exit::enter_to_free() else { return };
        // SAFETY: this object is the only owner of the model and frees it once. Each request holds a reference to this object, so none is
        // left.
        unsafe { (self.api.functions.ov_compiled_model_free)(self.ptr.as_ptr()) };
    }
}
