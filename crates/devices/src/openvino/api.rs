//! Bindings to the functions of OpenVINO's C interface that roiflow uses, and types that own the library's objects.
//!
//! roiflow declares these functions itself, because the existing crates with bindings for OpenVINO are not suitable. They keep the first
//! library that they open, even if it cannot be used. They panic if a function is missing. They cannot pass properties, because OpenVINO
//! takes properties as variadic arguments.

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

/// The oldest supported OpenVINO release. Earlier releases use different numbers for the element types.
const OLDEST: (u32, u32) = (2025, 1);

/// The error of a call that is refused because the process is exiting.
const EXITS: &str = "the process is exiting";

/// Declares opaque types for objects that the library allocates.
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

/// `ov_callback_t`. The library stores a pointer to this structure, so its address must not change.
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

/// `ov_status_e`, as a number, because newer libraries may have values that this program does not know.
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
    /// Creates a shape that points to `dims`, which must outlive every use of the shape.
    pub(super) fn over(dims: &mut [OvDimension]) -> Self {
        let rank = dims.len() as i64;
        Self { rank: OvDimension { min: rank, max: rank }, dims: dims.as_mut_ptr() }
    }
}

const OK: Status = 0;
const CANCELED: Status = -13;

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)+) => {
        /// The functions of the library, named as in its C header.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
            pub(super) ov_core_compile_model_from_file: CompileFile,
            pub(super) ov_core_compile_model: CompileModel,
            ov_core_set_property: SetProperty,
        }

        impl Functions {
            fn of(library: &'static Library) -> EngineResult<Self> {
                Ok(Self {
                    // SAFETY: the signature is that of the C header, and the library is never unloaded.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }.map_err(|_| lacks(stringify!($name)))?,)+
                    // SAFETY: as above: the signature is that of the C header, and the library is never unloaded.
                    ov_core_compile_model_from_file: *unsafe { library.get(b"ov_core_compile_model_from_file\0") }
                        .map_err(|_| lacks("ov_core_compile_model_from_file"))?,
                    // SAFETY: as above: the signature is that of the C header, and the library is never unloaded.
                    ov_core_set_property: *unsafe { library.get(b"ov_core_set_property\0") }.map_err(|_| lacks("ov_core_set_property"))?,
                    // SAFETY: as above: the signature is that of the C header, and the library is never unloaded.
                    ov_core_compile_model: *unsafe { library.get(b"ov_core_compile_model\0") }.map_err(|_| lacks("ov_core_compile_model"))?,
                })
            }
        }
    };
}

/// The arguments are: core, path, device, number of property strings, result pointer. After them, keys and values alternate.
type CompileFile = unsafe extern "C" fn(*const OvCore, *const c_char, *const c_char, usize, *mut *mut OvCompiledModel, ...) -> Status;

/// The arguments are those of [`CompileFile`], with a model that was already read instead of a path.
type CompileModel = unsafe extern "C" fn(*const OvCore, *const OvModel, *const c_char, usize, *mut *mut OvCompiledModel, ...) -> Status;

/// The arguments are: core, device, key, value. An empty device means the core itself.
type SetProperty = unsafe extern "C" fn(*const OvCore, *const c_char, ...) -> Status;

/// A function that returns an input or output tensor of a request.
type GetTensor = unsafe extern "C" fn(*const OvInferRequest, usize, *mut *mut OvTensor) -> Status;

fn lacks(function: &str) -> String {
    format!("it has no function `{function}`, so it is not the C library of OpenVINO, or is older than {}.{}", OLDEST.0, OLDEST.1)
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
    ov_infer_request_get_input_tensor_by_index: fn(*const OvInferRequest, usize, *mut *mut OvTensor) -> Status;
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

/// The loaded library and its core object. It exists until the process ends.
pub(super) struct Api {
    pub(super) functions: Functions,
    core: NonNull<OvCore>,
    pub(super) version: String,
}

// SAFETY: OpenVINO documents that the methods of the core are thread-safe. The other fields are function pointers and text.
unsafe impl Send for Api {}
// SAFETY: as for `Send`.
unsafe impl Sync for Api {}

impl Api {
    /// Loads the library and creates its core object.
    ///
    /// # Safety
    /// The library's initializers must be safe to run in this process.
    pub(super) unsafe fn open(path: &Path) -> EngineResult<Self> {
        if let Some(folder) = path.parent().filter(|folder| folder.is_absolute()) {
            check_companions(folder)?;
        }
        let functions = Functions::of(
            // SAFETY: the caller guarantees that the library's initializers are safe to run.
            unsafe { find::load(path) }?,
        )?;
        let mut version = OvVersion { number: ptr::null(), description: ptr::null() };
        // SAFETY: the result pointer is valid. The result is freed below.
        let asked = unsafe { (functions.ov_get_openvino_version)(&raw mut version) };
        // SAFETY: the pointer is null or a C string of the library, which is not freed yet.
        let number = unsafe { text(version.number) };
        // SAFETY: this is the only call that frees the strings of the version, and no code uses them afterwards.
        unsafe { (functions.ov_version_free)(&raw mut version) };
        functions.check(asked)?;
        if release_of(&number).is_none_or(|release| release < OLDEST) {
            return Err(format!("the library is OpenVINO {number}: expected {}.{} or newer", OLDEST.0, OLDEST.1));
        }
        let mut core = ptr::null_mut();
        // SAFETY: the result pointer is valid. The core is never freed, because runs may outlive all other objects.
        functions.check(unsafe { (functions.ov_core_create)(&raw mut core) })?;
        // The library must not map files of models, weights and compiled models: if another program truncates a mapped file, an access to it
        // kills the process.
        // SAFETY: the core was just created, and all arguments are C strings.
        functions.check(unsafe { (functions.ov_core_set_property)(core, c"".as_ptr(), c"ENABLE_MMAP".as_ptr(), c"NO".as_ptr()) })?;
        Ok(Self { functions, core: NonNull::new(core).ok_or("OpenVINO returned no core")?, version: number })
    }

    pub(super) fn core(&self) -> *const OvCore {
        self.core.as_ptr()
    }

    pub(super) fn check(&self, status: Status) -> EngineResult<()> {
        self.functions.check(status)
    }

    /// Returns OpenVINO's own names of the available devices, such as `CPU` and `GPU.0`.
    pub(super) fn devices(&self) -> EngineResult<Vec<String>> {
        let _inside = exit::enter().ok_or(EXITS)?;
        let mut list = OvDevices { names: ptr::null_mut(), n_names: 0 };
        // SAFETY: the core is never freed, and the result pointer is valid. The result is freed below.
        self.check(unsafe { (self.functions.ov_core_get_available_devices)(self.core(), &raw mut list) })?;
        // SAFETY: the list has `n_names` C strings, and is freed only below.
        let names = (0..list.n_names).map(|name_idx| unsafe { text(*list.names.add(name_idx)) }).collect();
        // SAFETY: this is the only call that frees the list, and no code uses it afterwards.
        unsafe { (self.functions.ov_available_devices_free)(&raw mut list) };
        Ok(names)
    }

    /// Returns the value of a property of a device.
    pub(super) fn property(&self, device: &str, key: &CStr) -> EngineResult<String> {
        let _inside = exit::enter().ok_or(EXITS)?;
        let device = c_string(device)?;
        let mut value = ptr::null_mut();
        // SAFETY: the core is never freed. Device and key are C strings, and the result pointer is valid.
        self.check(unsafe { (self.functions.ov_core_get_property)(self.core(), device.as_ptr(), key.as_ptr(), &raw mut value) })?;
        // SAFETY: the library just returned this string, and no other code uses or frees it.
        Ok(unsafe { self.functions.take_string(value) })
    }

    /// Returns the value of a property of a compiled model.
    ///
    /// # Safety
    /// `model` must not have been freed.
    pub(super) unsafe fn model_property(&self, model: *const OvCompiledModel, key: &CStr) -> EngineResult<String> {
        let mut value = ptr::null_mut();
        // SAFETY: the caller guarantees that `model` is not freed. The key is a C string, and the result pointer is valid.
        self.check(unsafe { (self.functions.ov_compiled_model_get_property)(model, key.as_ptr(), &raw mut value) })?;
        // SAFETY: the library just returned this string, and no other code uses or frees it.
        Ok(unsafe { self.functions.take_string(value) })
    }

    /// Creates a tensor over the caller's memory. The memory must outlive every use of the tensor.
    pub(super) fn tensor_over(self: &Arc<Self>, extent: &Extent) -> EngineResult<TensorOver> {
        let mut dims = [0_i64; MAX_RANK];
        for (dim, &extent) in dims.iter_mut().zip(extent.shape.iter()) {
            *dim = extent as i64;
        }
        // The library takes no length: it computes the length from element type and shape. So the length must match them.
        let needed_bytes = extent.shape.n_elements().and_then(|n_elements| n_elements.checked_mul(extent.element.size()));
        assert_eq!(needed_bytes, Some(extent.n_bytes), "the number of bytes must match a tensor of {} {}", extent.shape, extent.element);
        let shape = OvShape { rank: extent.shape.len() as i64, dims: dims.as_mut_ptr() };
        let (code, data) = (code_of(extent.element), extent.ptr.cast());
        let mut tensor = ptr::null_mut();
        // SAFETY: the shape points to `dims`, and the library copies it. The library accesses the memory at `data` only when the tensor is
        // used. The result pointer is valid.
        self.check(unsafe { (self.functions.ov_tensor_create_from_host_ptr)(code, shape, data, &raw mut tensor) })?;
        Ok(TensorOver { api: self.clone(), ptr: NonNull::new(tensor).ok_or("OpenVINO returned no tensor")? })
    }

    /// Creates a tensor in memory of the library, with a copy of `bytes`.
    pub(super) fn tensor_of(self: &Arc<Self>, bytes: &[u8]) -> EngineResult<TensorOver> {
        let mut dim = bytes.len() as i64;
        let shape = OvShape { rank: 1, dims: &raw mut dim };
        let mut tensor = ptr::null_mut();
        // SAFETY: the shape points to `dim`, and the library copies it. The result pointer is valid.
        self.check(unsafe { (self.functions.ov_tensor_create)(code_of(ElementType::U8), shape, &raw mut tensor) })?;
        let tensor = TensorOver { api: self.clone(), ptr: NonNull::new(tensor).ok_or("OpenVINO returned no tensor")? };
        let (data, n_bytes) = tensor.data()?;
        assert_eq!(n_bytes, bytes.len(), "the library must allocate as many bytes as requested");
        // SAFETY: the tensor has `n_bytes` bytes in memory of the library, so they do not overlap `bytes`. No other code refers to the
        // tensor yet.
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
                // The library keeps only the latest message of the whole process, so this may be the message of a failure on another
                // thread.
                // SAFETY: the function returns null, or a C string that the caller must free.
                let said = unsafe { self.take_string((self.ov_get_last_err_msg)().cast_mut()) };
                // SAFETY: the function returns a static C string.
                let kind = unsafe { text((self.ov_get_error_info)(status)) };
                let said = one_line(&said);
                Err(if said.is_empty() { format!("{kind} ({status})") } else { said })
            }
        }
    }

    /// Copies a string that the library allocated, and frees it. Returns an empty text for null.
    ///
    /// # Safety
    /// `string` must be null, or a C string that the library returned and that is not used after this call.
    unsafe fn take_string(&self, string: *mut c_char) -> String {
        // SAFETY: the caller guarantees that `string` is null or a C string.
        let copy = unsafe { text(string) };
        if !string.is_null() {
            // SAFETY: the caller guarantees that the library returned the string, and that no code uses or frees it after this call.
            unsafe { (self.ov_free)(string) };
        }
        copy
    }
}

/// Checks the other OpenVINO libraries in the folder before the loader maps them, because the loader may crash on a truncated file.
fn check_companions(folder: &Path) -> EngineResult<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let belongs = name.starts_with("libopenvino") || name.starts_with("libtbb.so") || name.starts_with("libtbbmalloc.so");
        if belongs && name.contains(".so") && path.exists() {
            find::check_shared_object(&path).map_err(|why| format!("the library `{name}` in the same folder cannot be used: {why}"))?;
        }
    }
    Ok(())
}

fn release_of(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(['.', '-']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Copies a C string. Returns an empty text for null.
///
/// # Safety
/// `string` must be null or a C string.
unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: `string` is not null, so the caller guarantees that it is a C string.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

/// A port (an input or output) of a model.
pub(super) struct PortOf<'a> {
    api: &'a Api,
    ptr: NonNull<OvPort>,
}

impl<'a> PortOf<'a> {
    /// Gets a port through `get`, one of the library's functions that return a port.
    pub(super) fn get(api: &'a Api, get: impl FnOnce(*mut *mut OvPort) -> Status) -> EngineResult<Self> {
        let mut port = ptr::null_mut();
        api.check(get(&raw mut port))?;
        Ok(Self { api, ptr: NonNull::new(port).ok_or("OpenVINO returned no port")? })
    }

    /// Returns one of the names of the port's tensor, if it has a name.
    pub(super) fn name(&self) -> Option<String> {
        let mut name = ptr::null_mut();
        // SAFETY: the port is not freed, and the result pointer is valid.
        let status = unsafe { (self.api.functions.ov_port_get_any_name)(self.ptr.as_ptr(), &raw mut name) };
        if status != OK {
            return None;
        }
        // SAFETY: the library just returned this string, and no other code uses or frees it.
        Some(unsafe { self.api.functions.take_string(name) })
    }

    pub(super) fn element(&self) -> EngineResult<ElementType> {
        let mut code = 0;
        // SAFETY: the port is not freed. The library writes the type as a 32-bit enumeration.
        self.api.check(unsafe { (self.api.functions.ov_port_get_element_type)(self.ptr.as_ptr(), &raw mut code) })?;
        element_of(code).ok_or_else(|| format!("OpenVINO element type {code} is not supported by roiflow tensors"))
    }

    pub(super) fn shape(&self) -> EngineResult<PartialShape> {
        let mut shape = OvPartialShape { rank: OvDimension { min: 0, max: 0 }, dims: ptr::null_mut() };
        // SAFETY: the port is not freed, and the result pointer is valid. The result is freed below.
        self.api.check(unsafe { (self.api.functions.ov_port_get_partial_shape)(self.ptr.as_ptr(), &raw mut shape) })?;
        let rank = (shape.rank.min == shape.rank.max).then(|| usize::try_from(shape.rank.max).ok()).flatten();
        let dims = rank.map(|rank| {
            let extent = |dim: OvDimension| match usize::try_from(dim.max) {
                Ok(extent) if dim.min == dim.max => Dim::Fixed(extent),
                Ok(max) if dim.max < i64::from(i32::MAX) => Dim::Range { min: usize::try_from(dim.min).unwrap_or(0), max },
                _ => Dim::Dynamic,
            };
            // SAFETY: the list has `rank` entries, and is freed only below.
            (0..rank).map(|axis| extent(unsafe { *shape.dims.add(axis) })).collect()
        });
        // SAFETY: this is the only call that frees the shape, and no code uses it afterwards.
        unsafe { (self.api.functions.ov_partial_shape_free)(&raw mut shape) };
        PartialShape::new(dims.ok_or("a port has a dynamic number of axes, which is not supported")?).map_err(|error| error.to_string())
    }
}

impl Drop for PortOf<'_> {
    fn drop(&mut self) {
        // SAFETY: this object is the only owner of the pointer, so the port is freed once and not used afterwards.
        unsafe { (self.api.functions.ov_output_const_port_free)(self.ptr.as_ptr()) };
    }
}

/// A tensor object of the library, over memory of the caller or of the library.
pub(super) struct TensorOver {
    api: Arc<Api>,
    ptr: NonNull<OvTensor>,
}

// SAFETY: a tensor belongs to one request, which only one thread uses at a time. The library does not bind a tensor to a thread.
unsafe impl Send for TensorOver {}

impl TensorOver {
    pub(super) fn as_ptr(&self) -> *const OvTensor {
        self.ptr.as_ptr()
    }

    pub(super) fn shape(&self) -> EngineResult<Shape> {
        let mut shape = OvShape { rank: 0, dims: ptr::null_mut() };
        // SAFETY: the tensor is not freed, and the result pointer is valid. The result is freed below.
        self.api.check(unsafe { (self.api.functions.ov_tensor_get_shape)(self.as_ptr(), &raw mut shape) })?;
        let rank = usize::try_from(shape.rank).unwrap_or(usize::MAX);
        let mut dims = [0; MAX_RANK];
        if rank <= MAX_RANK {
            for (axis, dim) in dims[..rank].iter_mut().enumerate() {
                // SAFETY: the list has `rank` entries, and is freed only below.
                *dim = usize::try_from(unsafe { *shape.dims.add(axis) }).unwrap_or(0);
            }
        }
        // SAFETY: this is the only call that frees the shape, and no code uses it afterwards.
        let freed = unsafe { (self.api.functions.ov_shape_free)(&raw mut shape) };
        self.api.check(freed)?;
        if rank > MAX_RANK { Err(format!("expected at most {MAX_RANK} axes, got {rank}")) } else { Ok(Shape::new(&dims[..rank])) }
    }

    /// Returns the address of the elements, and their size in bytes.
    pub(super) fn data(&self) -> EngineResult<(*const u8, usize)> {
        let (mut data, mut n_bytes) = (ptr::null_mut(), 0);
        // SAFETY: the tensor is not freed, and the result pointer is valid.
        self.api.check(unsafe { (self.api.functions.ov_tensor_get_byte_size)(self.as_ptr(), &raw mut n_bytes) })?;
        // SAFETY: the tensor is not freed, and the result pointer is valid.
        self.api.check(unsafe { (self.api.functions.ov_tensor_data)(self.as_ptr(), &raw mut data) })?;
        Ok((data.cast_const().cast(), n_bytes))
    }
}

impl Drop for TensorOver {
    fn drop(&mut self) {
        let Some(_inside) = exit::enter_to_free() else { return };
        // SAFETY: this object is the only owner of the pointer, so the tensor is freed once and not used afterwards.
        unsafe { (self.api.functions.ov_tensor_free)(self.ptr.as_ptr()) };
    }
}

/// An infer request of the library.
pub(super) struct EngineRequest {
    api: Arc<Api>,
    ptr: NonNull<OvInferRequest>,
    /// For asynchronous runs: the completion, and the callback structure through which the library notifies the completion.
    callback: Option<(Arc<Completion>, Box<OvCallback>)>,
}

// SAFETY: only one run uses the request at a time. During a run, other threads only call `cancel`, which the library allows from any
// thread.
unsafe impl Send for EngineRequest {}
// SAFETY: as for `Send`.
unsafe impl Sync for EngineRequest {}

impl EngineRequest {
    /// Creates an infer request of a compiled model.
    ///
    /// # Safety
    /// `model` must not have been freed.
    pub(super) unsafe fn new(api: &Arc<Api>, model: *const OvCompiledModel) -> EngineResult<Self> {
        let mut request = ptr::null_mut();
        // SAFETY: the caller guarantees that `model` is not freed. The result pointer is valid.
        api.check(unsafe { (api.functions.ov_compiled_model_create_infer_request)(model, &raw mut request) })?;
        Ok(Self { api: api.clone(), ptr: NonNull::new(request).ok_or("OpenVINO returned no request")?, callback: None })
    }

    /// Sets the callback of the request. At the end of each asynchronous run, the callback notifies `completion`.
    pub(super) fn call_back(&mut self, completion: Arc<Completion>) -> EngineResult<()> {
        let argument = Arc::as_ptr(&completion).cast_mut().cast();
        let callback = Box::new(OvCallback { called: has_computed_entered, argument });
        // SAFETY: the request is not freed. This object owns the callback structure and the completion, and frees them only after the
        // request. Freeing the request waits for a callback that is running.
        self.api.check(unsafe { (self.api.functions.ov_infer_request_set_callback)(self.ptr.as_ptr(), &raw const *callback) })?;
        self.callback = Some((completion, callback));
        Ok(())
    }

    pub(super) fn set_input(&self, input_idx: usize, tensor: &TensorOver) -> EngineResult<()> {
        // SAFETY: request and tensor are not freed. The library's request keeps a reference of its own to the tensor.
        let status =
            unsafe { (self.api.functions.ov_infer_request_set_input_tensor_by_index)(self.ptr.as_ptr(), input_idx, tensor.as_ptr()) };
        self.api.check(status)
    }

    pub(super) fn set_output(&self, output_idx: usize, tensor: &TensorOver) -> EngineResult<()> {
        // SAFETY: request and tensor are not freed. The library's request keeps a reference of its own to the tensor.
        let status =
            unsafe { (self.api.functions.ov_infer_request_set_output_tensor_by_index)(self.ptr.as_ptr(), output_idx, tensor.as_ptr()) };
        self.api.check(status)
    }

    pub(super) fn input(&self, input_idx: usize) -> EngineResult<TensorOver> {
        self.tensor(self.api.functions.ov_infer_request_get_input_tensor_by_index, input_idx)
    }

    pub(super) fn output(&self, output_idx: usize) -> EngineResult<TensorOver> {
        self.tensor(self.api.functions.ov_infer_request_get_output_tensor_by_index, output_idx)
    }

    fn tensor(&self, get: GetTensor, port_idx: usize) -> EngineResult<TensorOver> {
        let mut tensor = ptr::null_mut();
        // SAFETY: `get` is a function of the library, the request is not freed, and the result pointer is valid.
        self.api.check(unsafe { get(self.ptr.as_ptr(), port_idx, &raw mut tensor) })?;
        Ok(TensorOver { api: self.api.clone(), ptr: NonNull::new(tensor).ok_or("OpenVINO returned no tensor")? })
    }

    /// Runs inference on the calling thread, and returns when the outputs are complete.
    ///
    /// # Safety
    /// The memory of all tensors that were set must be valid, and no other thread may write to it during the run.
    pub(super) unsafe fn infer(&self) -> EngineResult<()> {
        // SAFETY: the request is not freed. The caller guarantees that the memory of its tensors is valid and that no other thread writes
        // to it.
        self.api.check(unsafe { (self.api.functions.ov_infer_request_infer)(self.ptr.as_ptr()) })
    }
}

impl EngineRequest {
    /// Starts an asynchronous run. The completion is notified when the run ends, even if the run fails.
    ///
    /// # Safety
    /// The requirements of [`EngineRequest::infer`] must hold until [`EngineRequest::wait`] returns.
    pub(super) unsafe fn start(&self) -> EngineResult<()> {
        // SAFETY: as in `infer`. The caller guarantees the requirements until `wait` returns, and `wait` returns only after the end of the
        // run.
        self.api.check(unsafe { (self.api.functions.ov_infer_request_start_async)(self.ptr.as_ptr()) })
    }

    /// Waits for the end of an asynchronous run, and returns its result.
    pub(super) fn wait(&self) -> EngineResult<()> {
        // SAFETY: the request is not freed.
        self.api.check(unsafe { (self.api.functions.ov_infer_request_wait)(self.ptr.as_ptr()) })
    }

    /// Returns the times of the nodes in the latest run.
    pub(super) fn nodes(&self) -> EngineResult<Vec<NodeTime>> {
        let mut list = OvNodes { nodes: ptr::null_mut(), n_nodes: 0 };
        // SAFETY: the request is not freed, and the result pointer is valid. The result is freed below.
        self.api.check(unsafe { (self.api.functions.ov_infer_request_get_profiling_info)(self.ptr.as_ptr(), &raw mut list) })?;
        let node = |node_idx| {
            // SAFETY: the list has `n_nodes` nodes, and is freed only below.
            let node = unsafe { &*list.nodes.add(node_idx) };
            let time = |us: i64| Duration::from_micros(u64::try_from(us).unwrap_or(0));
            // SAFETY: the names are C strings of the list, which is freed only below.
            let (name, kind, implementation) = unsafe { (text(node.name), text(node.kind), text(node.implementation)) };
            let status = match node.status {
                1 => NodeStatus::OptimizedOut,
                2 => NodeStatus::Executed,
                // For a node that the library fused into another node, it reports the implementation `undef`.
                _ if implementation == "undef" => NodeStatus::OptimizedOut,
                _ => NodeStatus::NotRun,
            };
            NodeTime { name, kind, status, real: time(node.real_us), cpu: Some(time(node.cpu_us)) }
        };
        let nodes = (0..list.n_nodes).map(node).collect();
        // SAFETY: this is the only call that frees the list, and no code uses it afterwards.
        unsafe { (self.api.functions.ov_profiling_info_list_free)(&raw mut list) };
        Ok(nodes)
    }
}

entered_with_default_control! {
    fn has_computed_entered(argument: *mut c_void) = has_computed
}

/// Notifies the completion. The library calls this function on one of its own threads, which must not be blocked.
unsafe extern "C" fn has_computed(argument: *mut c_void) {
    // SAFETY: `argument` is the completion that `call_back` set. It lives longer than the request that has this callback.
    let completion = unsafe { &*argument.cast::<Completion>() };
    completion.complete(Ok(()));
}

impl Interrupt for EngineRequest {
    fn interrupt(&self) {
        let Some(_inside) = exit::enter() else { return };
        // SAFETY: the request is not freed. The library allows this call during a run.
        let status = unsafe { (self.api.functions.ov_infer_request_cancel)(self.ptr.as_ptr()) };
        if let Err(error) = self.api.check(status) {
            tracing::warn!("OpenVINO could not cancel a run: {error}");
        }
    }
}

impl Drop for EngineRequest {
    fn drop(&mut self) {
        let Some(_inside) = exit::enter_to_free() else { return };
        // SAFETY: this object is the only owner of the request and frees it once. A run holds a reference to this object, so no run is
        // active.
        unsafe { (self.api.functions.ov_infer_request_free)(self.ptr.as_ptr()) };
    }
}

/// The numbers of OpenVINO's element types, as they are since release 2025.1.
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
    ELEMENTS.iter().find(|(known, _)| *known == element).expect("`ELEMENTS` has all element types").1
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
