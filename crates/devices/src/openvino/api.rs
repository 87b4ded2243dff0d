//! The functions of the library's C interface that are used, and owners of its objects.
//!
//! Declared here instead of using a crate of bindings: those keep the first library that they opened, whatever it is, panic if a function is
//! missing, and cannot pass properties, which are variadic.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{EngineResult, Extent, c_string, one_line};
use crate::exit;
use crate::find::{self, Library};
use crate::float_control::entered_with_default_control;
use crate::runtime::{Completion, Dim, Interrupt, NodeStatus, NodeTime, PartialShape};
use crate::tensor::{ElementType, MAX_RANK, Shape};

/// The oldest release with the element type numbers below.
const OLDEST: (u32, u32) = (2025, 1);

/// The error of calls after the exit began.
const EXITS: &str = "the process exits";

/// Opaque objects of the library.
macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub(super) struct $name([u8; 0]);
    )+};
}

objects! {
    /// `ov_core_t`
    OvCore,
    /// `ov_compiled_model_t`
    OvCompiledModel,
    /// `ov_model_t`
    OvModel,
    /// `ov_infer_request_t`
    OvInferRequest,
    /// `ov_output_const_port_t`
    OvPort,
    /// `ov_tensor_t`
    OvTensor,
}

/// `ov_version_t`
#[repr(C)]
pub(super) struct OvVersion {
    number: *const c_char,
    description: *const c_char,
}

/// `ov_available_devices_t`
#[repr(C)]
pub(super) struct OvDevices {
    names: *mut *mut c_char,
    n_names: usize,
}

/// `ov_shape_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct OvShape {
    rank: i64,
    dims: *mut i64,
}

/// `ov_dimension_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct OvDimension {
    min: i64,
    max: i64,
}

/// `ov_partial_shape_t`
#[repr(C)]
pub(super) struct OvPartialShape {
    rank: OvDimension,
    dims: *mut OvDimension,
}

/// `ov_callback_t`; the library keeps the pointer to it.
#[repr(C)]
pub(super) struct OvCallback {
    called: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
}

/// `ov_profiling_info_t`; times in microseconds.
#[repr(C)]
pub(super) struct OvNode {
    status: c_int,
    real_us: i64,
    cpu_us: i64,
    name: *const c_char,
    implementation: *const c_char,
    kind: *const c_char,
}

/// `ov_profiling_info_list_t`
#[repr(C)]
pub(super) struct OvNodes {
    nodes: *mut OvNode,
    n_nodes: usize,
}

/// `ov_status_e`, as a number: newer libraries may have further values.
type Status = c_int;

impl OvDimension {
    pub(super) fn of(dim: &Dim) -> Self {
        let number = |extent: usize| i64::try_from(extent).unwrap_or(i64::MAX);
        match *dim {
            Dim::Fixed(extent) => Self { min: number(extent), max: number(extent) },
            Dim::Range { min, max } => Self { min: number(min), max: number(max) },
            Dim::Dynamic => Self { min: 0, max: -1 },
        }
    }
}

impl OvPartialShape {
    /// A shape of these extents, which must outlive its use.
    pub(super) fn over(dims: &mut [OvDimension]) -> Self {
        let rank = dims.len() as i64;
        Self { rank: OvDimension { min: rank, max: rank }, dims: dims.as_mut_ptr() }
    }
}

const OK: Status = 0;
const CANCELED: Status = -13;

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)+) => {
        /// The functions, by their names in the library.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
            pub(super) ov_core_compile_model_from_file: CompileFile,
            pub(super) ov_core_compile_model: CompileModel,
        }

        impl Functions {
            fn of(library: &'static Library) -> EngineResult<Self> {
                Ok(Self {
                    // SAFETY: the signatures are those of the C headers.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }.map_err(|_| lacks(stringify!($name)))?,)+
                    // SAFETY: as above.
                    ov_core_compile_model_from_file: *unsafe { library.get(b"ov_core_compile_model_from_file\0") }
                        .map_err(|_| lacks("ov_core_compile_model_from_file"))?,
                    // SAFETY: as above.
                    ov_core_compile_model: *unsafe { library.get(b"ov_core_compile_model\0") }.map_err(|_| lacks("ov_core_compile_model"))?,
                })
            }
        }
    };
}

/// Core, path, device, number of texts that follow, place for the answer; then keys and values.
type CompileFile = unsafe extern "C" fn(*const OvCore, *const c_char, *const c_char, usize, *mut *mut OvCompiledModel, ...) -> Status;

/// The same for a model that was read.
type CompileModel = unsafe extern "C" fn(*const OvCore, *const OvModel, *const c_char, usize, *mut *mut OvCompiledModel, ...) -> Status;

fn lacks(function: &str) -> String {
    format!("it has no function `{function}`, so it is not the C library of OpenVINO, or one before {}.{}", OLDEST.0, OLDEST.1)
}

functions! {
    ov_get_openvino_version: fn(*mut OvVersion) -> Status;
    ov_version_free: fn(*mut OvVersion);
    ov_get_last_err_msg: fn() -> *const c_char;
    ov_get_error_info: fn(Status) -> *const c_char;
    ov_free: fn(*const c_char);
    ov_core_create: fn(*mut *mut OvCore) -> Status;
    ov_core_get_available_devices: fn(*const OvCore, *mut OvDevices) -> Status;
    ov_available_devices_free: fn(*mut OvDevices);
    ov_core_get_property: fn(*const OvCore, *const c_char, *const c_char, *mut *mut c_char) -> Status;
    ov_core_read_model: fn(*const OvCore, *const c_char, *const c_char, *mut *mut OvModel) -> Status;
    ov_core_read_model_from_memory_buffer: fn(*const OvCore, *const c_char, usize, *const OvTensor, *mut *mut OvModel) -> Status;
    ov_model_free: fn(*mut OvModel);
    ov_model_inputs_size: fn(*const OvModel, *mut usize) -> Status;
    ov_model_outputs_size: fn(*const OvModel, *mut usize) -> Status;
    ov_model_const_input_by_index: fn(*const OvModel, usize, *mut *mut OvPort) -> Status;
    ov_model_const_output_by_index: fn(*const OvModel, usize, *mut *mut OvPort) -> Status;
    ov_model_reshape_by_port_indexes: fn(*const OvModel, *const usize, *const OvPartialShape, usize) -> Status;
    ov_compiled_model_free: fn(*mut OvCompiledModel);
    ov_compiled_model_inputs_size: fn(*const OvCompiledModel, *mut usize) -> Status;
    ov_compiled_model_outputs_size: fn(*const OvCompiledModel, *mut usize) -> Status;
    ov_compiled_model_input_by_index: fn(*const OvCompiledModel, usize, *mut *mut OvPort) -> Status;
    ov_compiled_model_output_by_index: fn(*const OvCompiledModel, usize, *mut *mut OvPort) -> Status;
    ov_compiled_model_get_property: fn(*const OvCompiledModel, *const c_char, *mut *mut c_char) -> Status;
    ov_compiled_model_create_infer_request: fn(*const OvCompiledModel, *mut *mut OvInferRequest) -> Status;
    ov_output_const_port_free: fn(*mut OvPort);
    ov_port_get_any_name: fn(*const OvPort, *mut *mut c_char) -> Status;
    ov_port_get_partial_shape: fn(*const OvPort, *mut OvPartialShape) -> Status;
    ov_partial_shape_free: fn(*mut OvPartialShape);
    ov_port_get_element_type: fn(*const OvPort, *mut u32) -> Status;
    ov_shape_free: fn(*mut OvShape) -> Status;
    ov_tensor_create: fn(u32, OvShape, *mut *mut OvTensor) -> Status;
    ov_tensor_create_from_host_ptr: fn(u32, OvShape, *mut c_void, *mut *mut OvTensor) -> Status;
    ov_tensor_free: fn(*mut OvTensor);
    ov_tensor_data: fn(*const OvTensor, *mut *mut c_void) -> Status;
    ov_tensor_get_shape: fn(*const OvTensor, *mut OvShape) -> Status;
    ov_tensor_get_byte_size: fn(*const OvTensor, *mut usize) -> Status;
    ov_infer_request_set_input_tensor_by_index: fn(*mut OvInferRequest, usize, *const OvTensor) -> Status;
    ov_infer_request_set_output_tensor_by_index: fn(*mut OvInferRequest, usize, *const OvTensor) -> Status;
    ov_infer_request_get_output_tensor_by_index: fn(*const OvInferRequest, usize, *mut *mut OvTensor) -> Status;
    ov_infer_request_infer: fn(*mut OvInferRequest) -> Status;
    ov_infer_request_set_callback: fn(*mut OvInferRequest, *const OvCallback) -> Status;
    ov_infer_request_start_async: fn(*mut OvInferRequest) -> Status;
    ov_infer_request_wait: fn(*mut OvInferRequest) -> Status;
    ov_infer_request_cancel: fn(*mut OvInferRequest) -> Status;
    ov_infer_request_get_profiling_info: fn(*const OvInferRequest, *mut OvNodes) -> Status;
    ov_profiling_info_list_free: fn(*mut OvNodes);
    ov_infer_request_free: fn(*mut OvInferRequest);
}

/// The loaded library and its core. Lives as long as the process.
pub(super) struct Api {
    pub(super) functions: Functions,
    core: NonNull<OvCore>,
    pub(super) version: String,
}

// SAFETY: function pointers, and a core whose methods may be called from all threads, as the library's documentation says.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    /// Loads the library and makes a core.
    ///
    /// # Safety
    /// The initializers of the library may run in this process.
    pub(super) unsafe fn open(path: &Path) -> EngineResult<Self> {
        if let Some(folder) = path.parent().filter(|folder| folder.is_absolute()) {
            check_companions(folder)?;
        }
        let functions = Functions::of(
            // SAFETY: the caller's promise.
            unsafe { find::load(path) }?,
        )?;
        let mut version = OvVersion { number: ptr::null(), description: ptr::null() };
        // SAFETY: a place for the answer, freed below.
        let asked = unsafe { (functions.ov_get_openvino_version)(&raw mut version) };
        // SAFETY: null or a C string.
        let number = unsafe { text(version.number) };
        // SAFETY: freed once.
        unsafe { (functions.ov_version_free)(&raw mut version) };
        functions.check(asked)?;
        if release_of(&number).is_none_or(|release| release < OLDEST) {
            return Err(format!("it is OpenVINO {number}: expected {}.{} or newer", OLDEST.0, OLDEST.1));
        }
        let mut core = ptr::null_mut();
        // SAFETY: a place for the answer; never freed, because runs may outlive everything else.
        functions.check(unsafe { (functions.ov_core_create)(&raw mut core) })?;
        Ok(Self { functions, core: NonNull::new(core).ok_or("it gave no core")?, version: number })
    }

    pub(super) fn core(&self) -> *const OvCore {
        self.core.as_ptr()
    }

    pub(super) fn check(&self, status: Status) -> EngineResult<()> {
        self.functions.check(status)
    }

    /// The library's names: `CPU`, `GPU.0`.
    pub(super) fn devices(&self) -> EngineResult<Vec<String>> {
        let _inside = exit::enter().ok_or(EXITS)?;
        let mut list = OvDevices { names: ptr::null_mut(), n_names: 0 };
        // SAFETY: a place for the answer, freed below.
        self.check(unsafe { (self.functions.ov_core_get_available_devices)(self.core(), &raw mut list) })?;
        // SAFETY: the list has so many C strings.
        let names = (0..list.n_names).map(|name_idx| unsafe { text(*list.names.add(name_idx)) }).collect();
        // SAFETY: freed once.
        unsafe { (self.functions.ov_available_devices_free)(&raw mut list) };
        Ok(names)
    }

    /// A property of a device.
    pub(super) fn property(&self, device: &str, key: &CStr) -> EngineResult<String> {
        let _inside = exit::enter().ok_or(EXITS)?;
        let device = c_string(device)?;
        let mut value = ptr::null_mut();
        // SAFETY: C strings, and a place for the answer.
        self.check(unsafe { (self.functions.ov_core_get_property)(self.core(), device.as_ptr(), key.as_ptr(), &raw mut value) })?;
        // SAFETY: just given out, not used again.
        Ok(unsafe { self.functions.take_string(value) })
    }

    /// A property of a compiled model.
    ///
    /// # Safety
    /// `model` lives.
    pub(super) unsafe fn model_property(&self, model: *const OvCompiledModel, key: &CStr) -> EngineResult<String> {
        let mut value = ptr::null_mut();
        // SAFETY: the caller's promise; a C string, and a place for the answer.
        self.check(unsafe { (self.functions.ov_compiled_model_get_property)(model, key.as_ptr(), &raw mut value) })?;
        // SAFETY: just given out, not used again.
        Ok(unsafe { self.functions.take_string(value) })
    }

    /// A tensor over foreign memory, which must outlive the use of the tensor.
    pub(super) fn tensor_over(self: &Arc<Self>, extent: &Extent) -> EngineResult<TensorOver> {
        let mut dims = [0_i64; MAX_RANK];
        for (dim, &extent) in dims.iter_mut().zip(extent.shape.iter()) {
            *dim = extent as i64;
        }
        // The library takes no length: it computes one of type and shape.
        let needed_bytes = extent.shape.n_elements().and_then(|n_elements| n_elements.checked_mul(extent.element.size()));
        assert_eq!(needed_bytes, Some(extent.n_bytes), "a tensor over {} {} has as many bytes", extent.shape, extent.element);
        let shape = OvShape { rank: extent.shape.len() as i64, dims: dims.as_mut_ptr() };
        let (code, data) = (code_of(extent.element), extent.ptr.cast());
        let mut tensor = ptr::null_mut();
        // SAFETY: the memory is only looked at when the tensor is used; the shape is copied.
        self.check(unsafe { (self.functions.ov_tensor_create_from_host_ptr)(code, shape, data, &raw mut tensor) })?;
        Ok(TensorOver { api: self.clone(), ptr: NonNull::new(tensor).ok_or("it gave no tensor")? })
    }

    /// A tensor in the library's own memory, with a copy of these bytes.
    pub(super) fn tensor_of(self: &Arc<Self>, bytes: &[u8]) -> EngineResult<TensorOver> {
        let mut dim = bytes.len() as i64;
        let shape = OvShape { rank: 1, dims: &raw mut dim };
        let mut tensor = ptr::null_mut();
        // SAFETY: the shape is copied; a place for the answer.
        self.check(unsafe { (self.functions.ov_tensor_create)(code_of(ElementType::U8), shape, &raw mut tensor) })?;
        let tensor = TensorOver { api: self.clone(), ptr: NonNull::new(tensor).ok_or("it gave no tensor")? };
        let (data, n_bytes) = tensor.data()?;
        assert_eq!(n_bytes, bytes.len(), "a tensor of as many bytes");
        // SAFETY: the tensor has so many bytes, and no other code refers to it yet.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), data.cast_mut(), n_bytes) };
        Ok(tensor)
    }
}

impl Functions {
    pub(super) fn check(&self, status: Status) -> EngineResult<()> {
        match status {
            OK => Ok(()),
            CANCELED => Err("the run was canceled".to_owned()),
            _ => {
                // The latest message of the process: it may be that of a failure in another thread.
                // SAFETY: gives null or a C string that is ours to free.
                let said = unsafe { self.take_string((self.ov_get_last_err_msg)().cast_mut()) };
                // SAFETY: gives a static C string.
                let kind = unsafe { text((self.ov_get_error_info)(status)) };
                let said = one_line(&said);
                Err(if said.is_empty() { format!("{kind} ({status})") } else { said })
            }
        }
    }

    /// # Safety
    /// Null, or a C string that the library gave out and that is not used again.
    unsafe fn take_string(&self, string: *mut c_char) -> String {
        // SAFETY: the caller's promise.
        let copy = unsafe { text(string) };
        if !string.is_null() {
            // SAFETY: the caller's promise.
            unsafe { (self.ov_free)(string) };
        }
        copy
    }
}

/// Checks the libraries next to it before the loader maps them, see `find`.
fn check_companions(folder: &Path) -> EngineResult<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let belongs = name.starts_with("libopenvino") || name.starts_with("libtbb.so") || name.starts_with("libtbbmalloc.so");
        if belongs && name.contains(".so") && path.exists() {
            find::check_shared_object(&path).map_err(|why| format!("beside it `{name}`: {why}"))?;
        }
    }
    Ok(())
}

fn release_of(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(['.', '-']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// # Safety
/// Null, or a C string.
unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

/// A port of a model.
pub(super) struct PortOf<'a> {
    api: &'a Api,
    ptr: NonNull<OvPort>,
}

impl<'a> PortOf<'a> {
    /// The port that `get` gives out.
    pub(super) fn get(api: &'a Api, get: impl FnOnce(*mut *mut OvPort) -> Status) -> EngineResult<Self> {
        let mut port = ptr::null_mut();
        api.check(get(&raw mut port))?;
        Ok(Self { api, ptr: NonNull::new(port).ok_or("it gave no port")? })
    }

    /// One of its tensor names; some models have none.
    pub(super) fn name(&self) -> Option<String> {
        let mut name = ptr::null_mut();
        // SAFETY: the port lives; a place for the answer.
        let status = unsafe { (self.api.functions.ov_port_get_any_name)(self.ptr.as_ptr(), &raw mut name) };
        if status != OK {
            return None;
        }
        // SAFETY: just given out, not used again.
        Some(unsafe { self.api.functions.take_string(name) })
    }

    pub(super) fn element(&self) -> EngineResult<ElementType> {
        let mut code = 0;
        // SAFETY: the port lives; the type is stored as an enumeration of 32 bits.
        self.api.check(unsafe { (self.api.functions.ov_port_get_element_type)(self.ptr.as_ptr(), &raw mut code) })?;
        element_of(code).ok_or_else(|| format!("it has element type {code} of OpenVINO, which tensors here do not have"))
    }

    pub(super) fn shape(&self) -> EngineResult<PartialShape> {
        let mut shape = OvPartialShape { rank: OvDimension { min: 0, max: 0 }, dims: ptr::null_mut() };
        // SAFETY: the port lives; freed below.
        self.api.check(unsafe { (self.api.functions.ov_port_get_partial_shape)(self.ptr.as_ptr(), &raw mut shape) })?;
        let rank = (shape.rank.min == shape.rank.max).then(|| usize::try_from(shape.rank.max).ok()).flatten();
        let dims = rank.map(|rank| {
            let extent = |dim: OvDimension| match usize::try_from(dim.max) {
                Ok(extent) if dim.min == dim.max => Dim::Fixed(extent),
                Ok(max) if dim.max < i64::from(i32::MAX) => Dim::Range { min: usize::try_from(dim.min).unwrap_or(0), max },
                _ => Dim::Dynamic,
            };
            // SAFETY: the list has `rank` entries.
            (0..rank).map(|axis| extent(unsafe { *shape.dims.add(axis) })).collect()
        });
        // SAFETY: freed once.
        unsafe { (self.api.functions.ov_partial_shape_free)(&raw mut shape) };
        PartialShape::new(dims.ok_or("it leaves the number of its axes open")?).map_err(|error| error.to_string())
    }
}

impl Drop for PortOf<'_> {
    fn drop(&mut self) {
        // SAFETY: owned, freed once.
        unsafe { (self.api.functions.ov_output_const_port_free)(self.ptr.as_ptr()) };
    }
}

/// A tensor of the library, over foreign memory or its own.
pub(super) struct TensorOver {
    api: Arc<Api>,
    ptr: NonNull<OvTensor>,
}

// SAFETY: belongs to one request and is used by one thread at a time.
unsafe impl Send for TensorOver {}

impl TensorOver {
    pub(super) fn as_ptr(&self) -> *const OvTensor {
        self.ptr.as_ptr()
    }

    pub(super) fn shape(&self) -> EngineResult<Shape> {
        let mut shape = OvShape { rank: 0, dims: ptr::null_mut() };
        // SAFETY: the tensor lives; freed below.
        self.api.check(unsafe { (self.api.functions.ov_tensor_get_shape)(self.as_ptr(), &raw mut shape) })?;
        let rank = usize::try_from(shape.rank).unwrap_or(usize::MAX);
        let mut dims = [0; MAX_RANK];
        if rank <= MAX_RANK {
            for (axis, dim) in dims[..rank].iter_mut().enumerate() {
                // SAFETY: the list has `rank` entries.
                *dim = usize::try_from(unsafe { *shape.dims.add(axis) }).unwrap_or(0);
            }
        }
        // SAFETY: freed once.
        let freed = unsafe { (self.api.functions.ov_shape_free)(&raw mut shape) };
        self.api.check(freed)?;
        if rank > MAX_RANK { Err(format!("{rank} axes: at most {MAX_RANK} are supported")) } else { Ok(Shape::new(&dims[..rank])) }
    }

    /// Address and size in bytes of the elements.
    pub(super) fn data(&self) -> EngineResult<(*const u8, usize)> {
        let (mut data, mut n_bytes) = (ptr::null_mut(), 0);
        // SAFETY: the tensor lives.
        self.api.check(unsafe { (self.api.functions.ov_tensor_get_byte_size)(self.as_ptr(), &raw mut n_bytes) })?;
        // SAFETY: as above.
        self.api.check(unsafe { (self.api.functions.ov_tensor_data)(self.as_ptr(), &raw mut data) })?;
        Ok((data.cast_const().cast(), n_bytes))
    }
}

impl Drop for TensorOver {
    fn drop(&mut self) {
        let Some(_inside) = exit::enter() else { return };
        // SAFETY: owned, freed once.
        unsafe { (self.api.functions.ov_tensor_free)(self.ptr.as_ptr()) };
    }
}

/// A request of the library.
pub(super) struct EngineRequest {
    api: Arc<Api>,
    ptr: NonNull<OvInferRequest>,
    /// The completion of asynchronous runs, and the library's callback that completes it.
    callback: Option<(Arc<Completion>, Box<OvCallback>)>,
}

// SAFETY: used by one run at a time; only `cancel` is called during a run, which the library allows from any thread.
unsafe impl Send for EngineRequest {}
// SAFETY: as above.
unsafe impl Sync for EngineRequest {}

impl EngineRequest {
    /// # Safety
    /// `model` lives.
    pub(super) unsafe fn new(api: &Arc<Api>, model: *const OvCompiledModel) -> EngineResult<Self> {
        let mut request = ptr::null_mut();
        // SAFETY: the caller's promise; a place for the answer.
        api.check(unsafe { (api.functions.ov_compiled_model_create_infer_request)(model, &raw mut request) })?;
        Ok(Self { api: api.clone(), ptr: NonNull::new(request).ok_or("it gave no request")?, callback: None })
    }

    /// Sets the callback: `completion` is completed at the end of each asynchronous run.
    pub(super) fn call_back(&mut self, completion: Arc<Completion>) -> EngineResult<()> {
        let argument = Arc::as_ptr(&completion).cast_mut().cast();
        let callback = Box::new(OvCallback { called: has_computed_entered, argument });
        // SAFETY: the request lives. What it keeps, the callback and behind it the completion, is freed after the request, which
        // waits for a callback that is on.
        self.api.check(unsafe { (self.api.functions.ov_infer_request_set_callback)(self.ptr.as_ptr(), &raw const *callback) })?;
        self.callback = Some((completion, callback));
        Ok(())
    }

    pub(super) fn set_input(&self, input_idx: usize, tensor: &TensorOver) -> EngineResult<()> {
        // SAFETY: both live; the request keeps its own share of the tensor.
        let status =
            unsafe { (self.api.functions.ov_infer_request_set_input_tensor_by_index)(self.ptr.as_ptr(), input_idx, tensor.as_ptr()) };
        self.api.check(status)
    }

    pub(super) fn set_output(&self, output_idx: usize, tensor: &TensorOver) -> EngineResult<()> {
        // SAFETY: as above.
        let status =
            unsafe { (self.api.functions.ov_infer_request_set_output_tensor_by_index)(self.ptr.as_ptr(), output_idx, tensor.as_ptr()) };
        self.api.check(status)
    }

    pub(super) fn output(&self, output_idx: usize) -> EngineResult<TensorOver> {
        let mut tensor = ptr::null_mut();
        // SAFETY: the request lives; a place for the answer.
        let status =
            unsafe { (self.api.functions.ov_infer_request_get_output_tensor_by_index)(self.ptr.as_ptr(), output_idx, &raw mut tensor) };
        self.api.check(status)?;
        Ok(TensorOver { api: self.api.clone(), ptr: NonNull::new(tensor).ok_or("it gave no tensor")? })
    }

    /// Runs, and returns when the outputs are complete.
    ///
    /// # Safety
    /// The memory of the tensors that were set is there, and nobody else writes it meanwhile.
    pub(super) unsafe fn infer(&self) -> EngineResult<()> {
        // SAFETY: the caller's promise.
        self.api.check(unsafe { (self.api.functions.ov_infer_request_infer)(self.ptr.as_ptr()) })
    }
}

impl EngineRequest {
    /// Starts an asynchronous run. The completion is completed at its end, also after a failure.
    ///
    /// # Safety
    /// As [`EngineRequest::infer`], until [`EngineRequest::wait`] has returned.
    pub(super) unsafe fn start(&self) -> EngineResult<()> {
        // SAFETY: the caller's promise.
        self.api.check(unsafe { (self.api.functions.ov_infer_request_start_async)(self.ptr.as_ptr()) })
    }

    /// Waits for the end of an asynchronous run, and returns its result.
    pub(super) fn wait(&self) -> EngineResult<()> {
        // SAFETY: the request lives.
        self.api.check(unsafe { (self.api.functions.ov_infer_request_wait)(self.ptr.as_ptr()) })
    }

    /// The nodes of the latest run.
    pub(super) fn nodes(&self) -> EngineResult<Vec<NodeTime>> {
        let mut list = OvNodes { nodes: ptr::null_mut(), n_nodes: 0 };
        // SAFETY: the request lives; a place for the answer, freed below.
        self.api.check(unsafe { (self.api.functions.ov_infer_request_get_profiling_info)(self.ptr.as_ptr(), &raw mut list) })?;
        let node = |node_idx| {
            // SAFETY: the list has so many nodes.
            let node = unsafe { &*list.nodes.add(node_idx) };
            let time = |us: i64| Duration::from_micros(u64::try_from(us).unwrap_or(0));
            // SAFETY: C strings of the list.
            let (name, kind, implementation) = unsafe { (text(node.name), text(node.kind), text(node.implementation)) };
            let status = match node.status {
                1 => NodeStatus::OptimizedOut,
                2 => NodeStatus::Executed,
                // A node that was fused into another has no implementation.
                _ if implementation == "undef" => NodeStatus::OptimizedOut,
                _ => NodeStatus::NotRun,
            };
            NodeTime { name, kind, status, real: time(node.real_us), cpu: Some(time(node.cpu_us)) }
        };
        let nodes = (0..list.n_nodes).map(node).collect();
        // SAFETY: freed once.
        unsafe { (self.api.functions.ov_profiling_info_list_free)(&raw mut list) };
        Ok(nodes)
    }
}

entered_with_default_control! {
    fn has_computed_entered(argument: *mut c_void) = has_computed
}

/// Called by the library on one of its threads, which must not be blocked.
unsafe extern "C" fn has_computed(argument: *mut c_void) {
    // SAFETY: the argument of `call_back`, which lives as long as the request that calls.
    let completion = unsafe { &*argument.cast::<Completion>() };
    completion.complete(Ok(()));
}

impl Interrupt for EngineRequest {
    fn interrupt(&self) {
        let Some(_inside) = exit::enter() else { return };
        // SAFETY: the request lives; made to be called while it runs.
        let status = unsafe { (self.api.functions.ov_infer_request_cancel)(self.ptr.as_ptr()) };
        if let Err(error) = self.api.check(status) {
            tracing::warn!("OpenVINO does not cancel: {error}");
        }
    }
}

impl Drop for EngineRequest {
    fn drop(&mut self) {
        let Some(_inside) = exit::enter() else { return };
        // SAFETY: owned, freed once, and not while it runs: the run holds a share.
        unsafe { (self.api.functions.ov_infer_request_free)(self.ptr.as_ptr()) };
    }
}

/// The numbers of element types since 2025.1.
const ELEMENTS: [(ElementType, u32); 13] = [
    (ElementType::Bool, 1),
    (ElementType::Bf16, 2),
    (ElementType::F16, 3),
    (ElementType::F32, 4),
    (ElementType::F64, 5),
    (ElementType::I8, 7),
    (ElementType::I16, 8),
    (ElementType::I32, 9),
    (ElementType::I64, 10),
    (ElementType::U8, 16),
    (ElementType::U16, 17),
    (ElementType::U32, 18),
    (ElementType::U64, 19),
];

fn code_of(element: ElementType) -> u32 {
    ELEMENTS.iter().find(|(known, _)| *known == element).expect("the table holds all of them").1
}

fn element_of(code: u32) -> Option<ElementType> {
    ELEMENTS.iter().find(|(_, known)| *known == code).map(|(element, _)| *element)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_type_has_a_number_and_comes_back() {
        for element in ElementType::ALL {
            assert_eq!(element_of(code_of(element)), Some(element));
        }
        assert_eq!(element_of(0), None);
    }

    #[test]
    fn releases_are_compared_by_year_and_number() {
        assert!(release_of("2025.0.0-17942-abc").unwrap() < OLDEST);
        assert!(release_of("2025.1.0-18503-abc-releases/2025/1").unwrap() >= OLDEST);
        assert!(release_of("2026.4.1-1").unwrap() > OLDEST);
        assert_eq!(release_of("custom"), None);
    }
}
