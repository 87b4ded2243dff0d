//! The function table of ONNX Runtime, and types that own the library's objects. Only this module, `calls`, `model`, `options` and
//! `request` call the library.

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use super::ffi::{
    self, ORT_API_VERSION, OrtApi, OrtApiBase, OrtEnv, OrtLoggingLevel, OrtMemoryInfo, OrtRunOptions, OrtSession, OrtStatusPtr,
    OrtTypeInfo, OrtValue,
};
use crate::engine::{EngineResult, Extent, c_string, one_line};
use crate::exit;
use crate::find;
use crate::float_control::entered_with_default_control;
use crate::runtime::{Dim, Interrupt, PartialShape};
use crate::tensor::{ElementType, MAX_RANK};

/// The first API version with which the library reports node times for each run.
const PROFILES_RUNS: u32 = 25;

/// The function table of API version 25. Later versions only append functions to it.
#[repr(C)]
struct ApiOf25 {
    of_17: OrtApi,
    of_18_to_24: [*const c_void; 139],
    run_options_enable_profiling: unsafe extern "system" fn(*mut OrtRunOptions, *const c_char) -> OrtStatusPtr,
    run_options_disable_profiling: unsafe extern "system" fn(*mut OrtRunOptions) -> OrtStatusPtr,
}

// In the C header, the table of 1.17 has 276 functions, and `RunOptionsEnableProfiling` has index 415 in the table of 1.25.
const _: () = assert!(size_of::<OrtApi>() == 276 * size_of::<usize>());
const _: () = assert!(std::mem::offset_of!(ApiOf25, run_options_enable_profiling) == 415 * size_of::<usize>());

/// The loaded library. It exists until the process ends.
pub(super) struct Api {
    table: &'static OrtApi,
    enable_profiling: Option<unsafe extern "system" fn(*mut OrtRunOptions, *const c_char) -> OrtStatusPtr>,
    env: NonNull<OrtEnv>,
    cpu_memory: NonNull<OrtMemoryInfo>,
    pub(super) version: String,
    /// ONNX Runtime's own names of the execution providers: `CPU`, `CUDA`.
    pub(super) providers: Vec<String>,
    pub(super) path: PathBuf,
}

// SAFETY: the table never changes. ONNX Runtime documents that `OrtEnv` and constant objects, such as the memory description, may be used
// on all threads.
unsafe impl Send for Api {}
// SAFETY: as for `Send`.
unsafe impl Sync for Api {}

impl Api {
    /// Loads the library and creates its environment.
    ///
    /// # Safety
    /// The library's initializers must be safe to run in this process.
    pub(super) unsafe fn open(path: &Path) -> EngineResult<Self> {
        // SAFETY: the caller guarantees that the library's initializers are safe to run.
        let library = unsafe { find::load(path) }?;
        // SAFETY: the C API has had this function with this signature since version 1. The library is never unloaded.
        let base = unsafe { library.get::<unsafe extern "system" fn() -> *const OrtApiBase>(b"OrtGetApiBase\0") };
        let base = base.map_err(|_| "it has no function `OrtGetApiBase`, so it is not ONNX Runtime".to_owned())?;
        // SAFETY: the function takes no arguments. It returns null or a static table, which is valid forever.
        let base = unsafe { base().as_ref() }.ok_or("`OrtGetApiBase` returned null")?;
        // SAFETY: the function takes no arguments, and returns a static C string.
        let version = unsafe { text((base.GetVersionString)()) };
        // SAFETY: the function returns null if the library is older, or otherwise a static table with at least the functions of this
        // version.
        let table = unsafe { (base.GetApi)(ORT_API_VERSION).as_ref() };
        let table = table.ok_or_else(|| format!("the library is ONNX Runtime {version}: expected 1.{ORT_API_VERSION} or newer"))?;
        let mut env = ptr::null_mut();
        // SAFETY: the callback has the required signature and ignores its parameter. The name is a C string. The result pointer is valid.
        let status = unsafe {
            (table.CreateEnvWithCustomLogger)(
                log_entered,
                ptr::null_mut(),
                OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING,
                c"roiflow".as_ptr(),
                &raw mut env,
            )
        };
        check(table, status)?;
        let mut cpu_memory = ptr::null_mut();
        // SAFETY: the other arguments are plain values, and the result pointer is valid.
        let status = unsafe {
            (table.CreateCpuMemoryInfo)(ffi::OrtAllocatorType::OrtDeviceAllocator, ffi::OrtMemType::OrtMemTypeDefault, &raw mut cpu_memory)
        };
        check(table, status)?;
        let (Some(env), Some(cpu_memory)) = (NonNull::new(env), NonNull::new(cpu_memory)) else {
            return Err("ONNX Runtime returned no environment".to_owned());
        };
        // Request the newer table only if the library has it, because an older library prints an error when it is asked for this table.
        let has_25 = version.split('.').nth(1).and_then(|minor| minor.parse().ok()).is_some_and(|minor: u32| minor >= PROFILES_RUNS);
        // SAFETY: the function returns null, or a static table with at least the functions of that version, and `ApiOf25` has the layout of
        // that table.
        let newer = if has_25 { unsafe { (base.GetApi)(PROFILES_RUNS).cast::<ApiOf25>().as_ref() } } else { None };
        let enable_profiling = newer.map(|newer| newer.run_options_enable_profiling);
        Ok(Self { table, enable_profiling, env, cpu_memory, version, providers: providers(table)?, path: path.to_owned() })
    }

    pub(super) fn table(&self) -> &'static OrtApi {
        self.table
    }

    pub(super) fn env(&self) -> *const OrtEnv {
        self.env.as_ptr()
    }

    pub(super) fn check(&self, status: OrtStatusPtr) -> EngineResult<()> {
        check(self.table, status)
    }

    /// Returns whether the library reports node times for each run.
    pub(super) fn profiles_runs(&self) -> bool {
        self.enable_profiling.is_some()
    }

    /// Creates a value (`OrtValue`) over the caller's memory. The memory must outlive every use of the value.
    pub(super) fn value_over(&self, extent: &Extent) -> EngineResult<Value> {
        let &Extent { ptr, n_bytes, shape, element } = extent;
        let mut dims = [0_i64; MAX_RANK];
        for (dim, &extent) in dims.iter_mut().zip(shape.iter()) {
            *dim = extent as i64;
        }
        let mut value = ptr::null_mut();
        // SAFETY: pointer and length describe memory of the caller, which the library accesses only when the value is used. `dims` has at
        // least `shape.len()` entries, and the result pointer is valid.
        let status = unsafe {
            (self.table.CreateTensorWithDataAsOrtValue)(
                self.cpu_memory.as_ptr(),
                ptr.cast::<c_void>(),
                n_bytes,
                dims.as_ptr(),
                shape.len(),
                onnx_of(element),
                &raw mut value,
            )
        };
        self.check(status)?;
        Ok(Value { table: self.table, ptr: NonNull::new(value).ok_or("ONNX Runtime returned no value")? })
    }

    /// Returns the element type and shape of an input or output, from `type_info`.
    ///
    /// # Safety
    /// `type_info` must be a description from this library that is not released yet.
    pub(super) unsafe fn port_type(&self, type_info: NonNull<OrtTypeInfo>) -> EngineResult<(ElementType, PartialShape)> {
        let mut tensor = ptr::null();
        // SAFETY: the caller guarantees that `type_info` is not released. The library sets the result to null if the type is not a tensor.
        let status = unsafe { (self.table.CastTypeInfoToTensorInfo)(type_info.as_ptr(), &raw mut tensor) };
        self.check(status)?;
        if tensor.is_null() {
            return Err("an input or output is not a tensor; expected only tensors".to_owned());
        }
        // The type is read as a number, because a newer library may have types that this program does not know.
        let (mut code, mut rank) = (0_i32, 0);
        // SAFETY: `tensor` is a part of `type_info`, and the library writes the type as a 32-bit enumeration.
        let status = unsafe { (self.table.GetTensorElementType)(tensor, (&raw mut code).cast()) };
        self.check(status)?;
        // SAFETY: `tensor` is a part of `type_info`, and the result pointer is valid.
        let status = unsafe { (self.table.GetDimensionsCount)(tensor, &raw mut rank) };
        self.check(status)?;
        let mut dims = vec![0; rank];
        // SAFETY: `tensor` is a part of `type_info`, and `dims` has `rank` entries.
        let status = unsafe { (self.table.GetDimensions)(tensor, dims.as_mut_ptr(), rank) };
        self.check(status)?;
        let element = element_of_onnx(code).ok_or_else(|| format!("ONNX element type {code} is not supported by roiflow tensors"))?;
        let dims = dims.into_iter().map(|extent| usize::try_from(extent).map_or(Dim::Dynamic, Dim::Fixed));
        Ok((element, PartialShape::new(dims.collect()).map_err(|error| error.to_string())?))
    }

    /// Copies a string that the library allocated, and frees it.
    ///
    /// # Safety
    /// `string` must be a C string from this library's default allocator, and must not be used after this call.
    pub(super) unsafe fn take_string(&self, string: *mut c_char) -> String {
        // SAFETY: the caller guarantees that `string` is a C string.
        let copy = unsafe { text(string) };
        if let Ok(allocator) = self.allocator() {
            // SAFETY: the caller guarantees that this allocator allocated the string and that no other code frees it.
            let status = unsafe { (self.table.AllocatorFree)(allocator, string.cast()) };
            // If the allocator fails to free the string, the string leaks. A leak of a few bytes is harmless.
            let _freed = self.check(status);
        }
        copy
    }

    pub(super) fn allocator(&self) -> EngineResult<*mut ffi::OrtAllocator> {
        let mut allocator = ptr::null_mut();
        // SAFETY: the result pointer is valid. The function returns the allocator of the library itself, which is never freed.
        let status = unsafe { (self.table.GetAllocatorWithDefaultOptions)(&raw mut allocator) };
        self.check(status).map(|()| allocator)
    }
}

fn check(table: &OrtApi, status: OrtStatusPtr) -> EngineResult<()> {
    let Some(status) = NonNull::new(status.0) else { return Ok(()) };
    // SAFETY: the status is not null, this code owns it, and it is not released yet. Its message is copied before the status is released.
    let said = unsafe { text((table.GetErrorMessage)(status.as_ptr())) };
    // SAFETY: this code owns the status, releases it once, and does not use it afterwards.
    unsafe { (table.ReleaseStatus)(status.as_ptr()) };
    Err(one_line(&said))
}

fn providers(table: &OrtApi) -> EngineResult<Vec<String>> {
    let (mut names, mut n_names) = (ptr::null_mut(), 0);
    // SAFETY: the result pointers are valid.
    check(table, unsafe { (table.GetAvailableProviders)(&raw mut names, &raw mut n_names) })?;
    let mut found: Vec<String> = (0..usize::try_from(n_names).unwrap_or(0))
        // SAFETY: the list has `n_names` C strings, and is released only below.
        .map(|name_idx| unsafe { text(*names.add(name_idx)) }.trim_end_matches("ExecutionProvider").to_owned())
        .collect();
    // SAFETY: this is the only call that releases the list. It passes the length that the library returned.
    check(table, unsafe { (table.ReleaseAvailableProviders)(names, n_names) })?;
    // The Azure provider is not an engine: it sends inputs to a cloud service.
    found.retain(|name| name != "Azure");
    found.sort_by_key(|name| name != "CPU");
    Ok(found)
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

entered_with_default_control! {
    fn log_entered(
        parameter: *mut c_void,
        severity: OrtLoggingLevel,
        category: *const c_char,
        log_id: *const c_char,
        code_location: *const c_char,
        message: *const c_char,
    ) = log
}

/// Forwards the lines of the library's log at debug level. Calls also return errors as results, so the log lines of errors need no higher
/// level.
unsafe extern "C" fn log(
    _parameter: *mut c_void,
    severity: OrtLoggingLevel,
    _category: *const c_char,
    _log_id: *const c_char,
    code_location: *const c_char,
    message: *const c_char,
) {
    // SAFETY: the library passes null or C strings that are valid during this call.
    let (place, message) = unsafe { (text(code_location), text(message)) };
    tracing::debug!(place, "ONNX Runtime ({severity:?}): {message}");
}

/// A value (`OrtValue`) of the library, such as a tensor.
pub(super) struct Value {
    table: &'static OrtApi,
    ptr: NonNull<OrtValue>,
}

// SAFETY: a value belongs to one request, which only one thread uses at a time. The library does not bind a value to a thread.
unsafe impl Send for Value {}

impl Value {
    /// Takes over a value of the library. The drop of the returned object releases the value.
    ///
    /// # Safety
    /// `ptr` must be a value that is not released yet, and that no other owner releases.
    pub(super) unsafe fn owned(api: &Api, ptr: NonNull<OrtValue>) -> Self {
        Self { table: api.table, ptr }
    }

    pub(super) fn as_ptr(&self) -> *mut OrtValue {
        self.ptr.as_ptr()
    }

    /// Returns the element type and shape.
    pub(super) fn element_and_shape(&self, api: &Api) -> EngineResult<(ElementType, PartialShape)> {
        let mut type_info = ptr::null_mut();
        // SAFETY: the value is not released, and the result pointer is valid.
        api.check(unsafe { (self.table.GetTypeInfo)(self.as_ptr(), &raw mut type_info) })?;
        let type_info = NonNull::new(type_info).ok_or("ONNX Runtime returned no type")?;
        // SAFETY: the library just returned `type_info`, and it is released only below.
        let described = unsafe { api.port_type(type_info) };
        // SAFETY: this is the only call that releases `type_info`, and no code uses it afterwards.
        unsafe { (self.table.ReleaseTypeInfo)(type_info.as_ptr()) };
        described
    }

    /// Returns the address of the tensor's elements.
    pub(super) fn data(&self, api: &Api) -> EngineResult<*const u8> {
        let mut data = ptr::null_mut();
        // SAFETY: the value is not released, and the result pointer is valid. If the value is not a tensor, the call returns an error.
        api.check(unsafe { (self.table.GetTensorMutableData)(self.as_ptr(), &raw mut data) })?;
        Ok(data.cast_const().cast())
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        let Some(_inside) = exit::enter_to_free() else { return };
        // SAFETY: this object is the only owner of the pointer, so the value is released once and not used afterwards.
        unsafe { (self.table.ReleaseValue)(self.ptr.as_ptr()) };
    }
}

/// A session: one compiled model, which many threads may run at the same time.
pub(super) struct Session {
    pub(super) table: &'static OrtApi,
    pub(super) ptr: NonNull<OrtSession>,
}

// SAFETY: ONNX Runtime documents `Run` as safe to call from many threads. After a session is created, only `Run` is called on it.
unsafe impl Send for Session {}
// SAFETY: as for `Send`.
unsafe impl Sync for Session {}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(_inside) = exit::enter_to_free() else { return };
        // SAFETY: this object is the only owner of the session. Each request holds a reference to this object, so no run is in progress.
        unsafe { (self.table.ReleaseSession)(self.ptr.as_ptr()) };
    }
}

/// The run options of one request. They have a flag that cancels a run.
pub(super) struct RunOptions {
    table: &'static OrtApi,
    ptr: NonNull<OrtRunOptions>,
}

// SAFETY: during a run, other threads only set the terminate flag, and ONNX Runtime documents that they may.
unsafe impl Send for RunOptions {}
// SAFETY: as for `Send`.
unsafe impl Sync for RunOptions {}

impl RunOptions {
    pub(super) fn new(api: &Api) -> EngineResult<Self> {
        let mut options = ptr::null_mut();
        // SAFETY: the result pointer is valid.
        api.check(unsafe { (api.table.CreateRunOptions)(&raw mut options) })?;
        Ok(Self { table: api.table, ptr: NonNull::new(options).ok_or("ONNX Runtime returned no run options")? })
    }

    pub(super) fn as_ptr(&self) -> *const OrtRunOptions {
        self.ptr.as_ptr()
    }

    /// Makes the library write a file with the node times of each run. The path of the file begins with `prefix`.
    pub(super) fn profile(&self, api: &Api, prefix: &Path) -> EngineResult<()> {
        let enable = api.enable_profiling.ok_or_else(|| format!("ONNX Runtime {} does not report node times for each run", api.version))?;
        let prefix = c_string(prefix.to_str().ok_or("the path of the folder for temporary files is not UTF-8")?)?;
        // SAFETY: the options are not released, and no run uses them now. The library copies the C string.
        api.check(unsafe { enable(self.ptr.as_ptr(), prefix.as_ptr()) })
    }

    /// Clears the terminate flag that the cancellation of an earlier run set.
    pub(super) fn rearm(&self) -> EngineResult<()> {
        // SAFETY: the options are not released, and no run uses them now.
        check(self.table, unsafe { (self.table.RunOptionsUnsetTerminate)(self.ptr.as_ptr()) })
    }
}

impl Interrupt for RunOptions {
    fn interrupt(&self) {
        let Some(_inside) = exit::enter() else { return };
        // SAFETY: the options are not released. The function only sets a flag, which ONNX Runtime permits during a run.
        let status = unsafe { (self.table.RunOptionsSetTerminate)(self.ptr.as_ptr()) };
        if let Err(error) = check(self.table, status) {
            tracing::warn!("ONNX Runtime could not cancel a run: {error}");
        }
    }
}

impl Drop for RunOptions {
    fn drop(&mut self) {
        let Some(_inside) = exit::enter_to_free() else { return };
        // SAFETY: this object is the only owner of the pointer, so the options are released once and not used afterwards.
        unsafe { (self.table.ReleaseRunOptions)(self.ptr.as_ptr()) };
    }
}

macro_rules! element_types {
    ($($element:ident = $onnx:ident),+ $(,)?) => {
        fn onnx_of(element: ElementType) -> ffi::ONNXTensorElementDataType {
            match element {
                $(ElementType::$element => ffi::ONNXTensorElementDataType::$onnx,)+
                // For the undefined type, ONNX Runtime returns an error that names it.
                _ => ffi::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED,
            }
        }

        fn element_of_onnx(code: i32) -> Option<ElementType> {
            $(if code == ffi::ONNXTensorElementDataType::$onnx as i32 {
                return Some(ElementType::$element);
            })+
            None
        }
    };
}

element_types! {
    Bool = ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
    U8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
    I8 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
    U16 = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
    I16 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
    U32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
    I32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
    U64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
    I64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
    F16 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
    Bf16 = ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
    F32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
    F64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
}
