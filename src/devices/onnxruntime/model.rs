//! A session, made of a file for one provider, and its ports.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ort_sys::{OrtSession, OrtSessionOptions};

use super::api::{Api, Said, Session, c_string, device_error};
use super::request::OrtRequest;
use crate::devices::denormals::FlushDenormals;
use crate::runtime::device::{DeviceModel, DeviceRequest, DeviceStep};
use crate::runtime::executor::{Executor, Executors};
use crate::runtime::{Config, Error, ErrorKind, ModelInfo, Performance, Port, Result};

/// Runs that wait for an accelerator at once: one computes, the next one's input is on its way.
const N_WAITERS: usize = 2;

/// Ports and metadata of a file, without preparing it to run.
pub(super) fn read(api: &Arc<Api>, path: &Path) -> Result<ModelInfo> {
    let said = || -> Said<ModelInfo> {
        let options = Options::new(api)?;
        options.set(|table, options| {
            // SAFETY: the options live.
            unsafe { (table.SetSessionGraphOptimizationLevel)(options, ort_sys::GraphOptimizationLevel::ORT_DISABLE_ALL) }
        })?;
        options.threads(1)?;
        options.session(path)?.info(api)
    };
    said().map_err(|why| refused("ORT.CPU", path, &why))
}

fn refused(device: &str, path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Model, format!("device {device} cannot run `{}`: {why}", path.display()))
}

/// Where a model is to run, and how.
pub(super) struct Target<'a> {
    /// The device's name for users.
    pub(super) device: &'a str,
    /// The provider's name in the library.
    pub(super) provider: &'a str,
    pub(super) config: &'a Config,
    pub(super) executors: &'a Executors,
}

/// The ports of the file with the input shapes that the caller wants.
fn reshaped(mut file: ModelInfo, wanted: &ModelInfo) -> Said<ModelInfo> {
    if file.inputs.len() != wanted.inputs.len() {
        return Err(format!(
            "it changed since it was read: expected {} inputs, got {}; read it again",
            wanted.inputs.len(),
            file.inputs.len()
        ));
    }
    for (port, wanted) in file.inputs.iter_mut().zip(&wanted.inputs) {
        if port.shape == wanted.shape {
            continue;
        }
        let fixed = port.shape.dims().iter().zip(wanted.shape.dims()).find(|(own, wanted)| !own.is_open() && own != wanted);
        if let Some((own, wanted)) = fixed {
            return Err(format!(
                "input {port}: the file fixes an extent at {own}, so it can't become {wanted}; export the model with that extent open, or use a device that can change it (CPU, OPENVINO.CPU)"
            ));
        }
        port.shape = wanted.shape.clone();
        // What the file says of the outputs is for its own shapes.
        file.outputs.iter_mut().for_each(|output| output.shape = output.shape.all_open());
    }
    Ok(file)
}

/// A model compiled for one provider.
pub(super) struct OrtModel {
    pub(super) device: String,
    pub(super) api: Arc<Api>,
    pub(super) session: Session,
    pub(super) info: ModelInfo,
    pub(super) input_names: Vec<CString>,
    pub(super) output_names: Vec<CString>,
}

/// What the runtime holds: the model and where its runs take place.
pub(super) struct CompiledOrtModel {
    model: Arc<OrtModel>,
    executor: Arc<dyn Executor>,
    n_requests: usize,
}

impl OrtModel {
    /// The input shapes are those of `read`, which the caller may have changed since the file was read.
    pub(super) fn compile(api: &Arc<Api>, target: &Target<'_>, path: &Path, read: &ModelInfo) -> Result<CompiledOrtModel> {
        let &Target { device, provider, config, executors } = target;
        let pool = executors.for_model(device, config)?;
        let (n_requests, n_threads) = config.requests_and_threads(pool.n_threads());
        let on_processor = provider == "CPU";
        let compile = || -> Said<Self> {
            let options = Options::new(api)?;
            options.threads(if on_processor { n_threads } else { 1 })?;
            if n_threads > 1 && config.performance == Performance::Throughput {
                // Threads that spin while they wait take the cores from the other requests.
                options.entry(c"session.intra_op.allow_spinning", c"0")?;
            }
            // For the session's own threads; the caller's is looked after in `request`.
            options.entry(c"session.set_denormal_as_zero", c"1")?;
            options.provider(provider)?;
            // The library changes the first caller's thread for good; this puts it back.
            let _flushed = FlushDenormals::enter();
            let session = options.session(path)?;
            let info = reshaped(session.info(api)?, read)?;
            let names = |ports: &[Port]| ports.iter().map(|port| c_string(port.name())).collect::<Said<Vec<_>>>();
            let (input_names, output_names) = (names(&info.inputs)?, names(&info.outputs)?);
            Ok(Self { device: device.to_owned(), api: api.clone(), session, info, input_names, output_names })
        };
        let model = Arc::new(compile().map_err(|why| refused(device, path, &why))?);
        if on_processor {
            return Ok(CompiledOrtModel { model, executor: pool, n_requests });
        }
        // A thread that waits for the accelerator is none of the processor's pool.
        let executor = executors.named(&format!("roiflow-{device}-waiter"), N_WAITERS)?;
        Ok(CompiledOrtModel { model, executor, n_requests: N_WAITERS + 1 })
    }
}

impl DeviceModel for CompiledOrtModel {
    fn info(&self) -> &ModelInfo {
        &self.model.info
    }

    fn device(&self) -> Option<&str> {
        Some(&self.model.device)
    }

    fn steps(&self) -> Vec<DeviceStep> {
        vec![DeviceStep { name: "infer", executor: self.executor.clone() }]
    }

    fn optimal_number_of_requests(&self) -> usize {
        self.n_requests
    }

    fn create_request(&self) -> Result<Box<dyn DeviceRequest>> {
        Ok(Box::new(OrtRequest::new(self.model.clone()).map_err(device_error(&self.model.device))?))
    }
}

impl Session {
    fn info(&self, api: &Api) -> Said<ModelInfo> {
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
                    // SAFETY: the session lives, the index is in range, the string is freed by `take_string`.
                    api.check(unsafe { name(self.ptr.as_ptr(), port_idx, api.allocator()?, &raw mut text) })?;
                    // SAFETY: just given out by that allocator.
                    let name = unsafe { api.take_string(text) };
                    let mut described = ptr::null_mut();
                    // SAFETY: as above.
                    api.check(unsafe { type_info(self.ptr.as_ptr(), port_idx, &raw mut described) })?;
                    let described = NonNull::new(described).ok_or("it gave no type")?;
                    // SAFETY: just made, released in the next statement.
                    let port_type = unsafe { api.port_type(described) };
                    // SAFETY: released once.
                    unsafe { (table.ReleaseTypeInfo)(described.as_ptr()) };
                    let (element, shape) = port_type.map_err(|why| format!("{kind} `{name}`: {why}"))?;
                    Ok(Port::new(&name, element, shape))
                })
                .collect::<Said<Vec<_>>>()
        };
        let (mut n_inputs, mut n_outputs) = (0, 0);
        // SAFETY: the session lives.
        api.check(unsafe { (table.SessionGetInputCount)(self.ptr.as_ptr(), &raw mut n_inputs) })?;
        // SAFETY: as above.
        api.check(unsafe { (table.SessionGetOutputCount)(self.ptr.as_ptr(), &raw mut n_outputs) })?;
        Ok(ModelInfo {
            inputs: ports("input", n_inputs, true)?,
            outputs: ports("output", n_outputs, false)?,
            metadata: self.metadata(api)?,
        })
    }

    fn metadata(&self, api: &Api) -> Said<BTreeMap<String, String>> {
        let table = api.table();
        let allocator = api.allocator()?;
        let mut metadata = ptr::null_mut();
        // SAFETY: the session lives; released below.
        api.check(unsafe { (table.SessionGetModelMetadata)(self.ptr.as_ptr(), &raw mut metadata) })?;
        let (mut keys, mut n_keys) = (ptr::null_mut(), 0);
        // SAFETY: as above; the list and its strings are freed below.
        let listed =
            api.check(unsafe { (table.ModelMetadataGetCustomMetadataMapKeys)(metadata, allocator, &raw mut keys, &raw mut n_keys) });
        let mut found = BTreeMap::new();
        for key_idx in 0..usize::try_from(n_keys).unwrap_or(0) {
            // SAFETY: the list has `n_keys` strings of the allocator.
            let key = unsafe { api.take_string(*keys.add(key_idx)) };
            let mut value = ptr::null_mut();
            let Ok(name) = c_string(&key) else { continue };
            // SAFETY: the metadata lives; the string is the allocator's.
            let looked_up = unsafe { (table.ModelMetadataLookupCustomMetadataMap)(metadata, allocator, name.as_ptr(), &raw mut value) };
            if api.check(looked_up).is_ok() && !value.is_null() {
                // SAFETY: just given out by that allocator.
                found.insert(key, unsafe { api.take_string(value) });
            }
        }
        if !keys.is_null() {
            // SAFETY: the list itself is the allocator's, too.
            let _freed = api.check(unsafe { (table.AllocatorFree)(allocator, keys.cast()) });
        }
        // SAFETY: released once.
        unsafe { (table.ReleaseModelMetadata)(metadata) };
        listed.map(|()| found)
    }
}

/// Options of a session that is to be made.
struct Options<'a> {
    api: &'a Arc<Api>,
    ptr: NonNull<OrtSessionOptions>,
}

impl<'a> Options<'a> {
    fn new(api: &'a Arc<Api>) -> Said<Self> {
        let mut options = ptr::null_mut();
        // SAFETY: a place for the answer.
        api.check(unsafe { (api.table().CreateSessionOptions)(&raw mut options) })?;
        Ok(Self { api, ptr: NonNull::new(options).ok_or("it gave no session options")? })
    }

    fn set(&self, set: impl FnOnce(&ort_sys::OrtApi, *mut OrtSessionOptions) -> ort_sys::OrtStatusPtr) -> Said<()> {
        self.api.check(set(self.api.table(), self.ptr.as_ptr()))
    }

    fn threads(&self, n_threads: usize) -> Said<()> {
        let n_threads = i32::try_from(n_threads).unwrap_or(i32::MAX);
        // SAFETY: the options live.
        self.set(|table, options| unsafe { (table.SetIntraOpNumThreads)(options, n_threads) })?;
        // SAFETY: as above.
        self.set(|table, options| unsafe { (table.SetInterOpNumThreads)(options, 1) })
    }

    fn entry(&self, key: &std::ffi::CStr, value: &std::ffi::CStr) -> Said<()> {
        // SAFETY: the options live; both are C strings that are copied.
        self.set(|table, options| unsafe { (table.AddSessionConfigEntry)(options, key.as_ptr(), value.as_ptr()) })
    }

    fn provider(&self, provider: &str) -> Said<()> {
        match provider {
            "CPU" => Ok(()),
            "CUDA" => {
                let table = self.api.table();
                let mut cuda = ptr::null_mut();
                // SAFETY: a place for the answer, released below.
                self.api.check(unsafe { (table.CreateCUDAProviderOptions)(&raw mut cuda) })?;
                // SAFETY: both live; what is needed of the options is copied.
                let set = self.set(|table, options| unsafe { (table.SessionOptionsAppendExecutionProvider_CUDA_V2)(options, cuda) });
                // SAFETY: released once.
                unsafe { (table.ReleaseCUDAProviderOptions)(cuda) };
                set
            }
            "Tensorrt" => {
                let table = self.api.table();
                let mut tensorrt = ptr::null_mut();
                // SAFETY: a place for the answer, released below.
                self.api.check(unsafe { (table.CreateTensorRTProviderOptions)(&raw mut tensorrt) })?;
                // SAFETY: both live; what is needed of the options is copied.
                let set =
                    self.set(|table, options| unsafe { (table.SessionOptionsAppendExecutionProvider_TensorRT_V2)(options, tensorrt) });
                // SAFETY: released once.
                unsafe { (table.ReleaseTensorRTProviderOptions)(tensorrt) };
                set
            }
            other => {
                let name = c_string(other)?;
                // SAFETY: the options live; the name is a C string, and there are no keys.
                self.set(|table, options| unsafe {
                    (table.SessionOptionsAppendExecutionProvider)(options, name.as_ptr(), ptr::null(), ptr::null(), 0)
                })
            }
        }
    }

    fn session(&self, path: &Path) -> Said<Session> {
        let name = c_string(path.to_str().ok_or("its path is not UTF-8")?)?;
        let mut session: *mut OrtSession = ptr::null_mut();
        let table = self.api.table();
        // SAFETY: environment and options live; the path is a C string.
        self.api.check(unsafe { (table.CreateSession)(self.api.env(), name.as_ptr(), self.ptr.as_ptr(), &raw mut session) })?;
        Ok(Session { table, ptr: NonNull::new(session).ok_or("it gave no session")? })
    }
}

impl Drop for Options<'_> {
    fn drop(&mut self) {
        // SAFETY: owned, released once; sessions keep copies.
        unsafe { (self.api.table().ReleaseSessionOptions)(self.ptr.as_ptr()) };
    }
}
