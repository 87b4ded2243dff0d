//! The part of ONNX Runtime's C API (version 1.17) that roiflow uses. The function table has the unused functions as untyped pointers.
//!
//! Written by `scripts/make-onnxruntime-api`; do not edit. The names are those of the C header.

#![allow(
    non_camel_case_types,
    non_snake_case,
    dead_code,
    clippy::enum_variant_names,
    reason = "the names of the C header, and enumerations as it has them"
)]

use std::ffi::{c_char, c_int, c_void};

/// The version of the function table.
pub const ORT_API_VERSION: u32 = 17;

/// Null, or an error that the caller must release.
#[repr(transparent)]
#[must_use = "an error must be released"]
pub struct OrtStatusPtr(pub *mut OrtStatus);

/// The callback for each line of the library's log.
pub type OrtLoggingFunction = unsafe extern "C" fn(
    parameter: *mut c_void,
    severity: OrtLoggingLevel,
    category: *const c_char,
    log_id: *const c_char,
    code_location: *const c_char,
    message: *const c_char,
);

/// The structure that `OrtGetApiBase` returns.
#[repr(C)]
pub struct OrtApiBase {
    pub GetApi: unsafe extern "system" fn(version: u32) -> *const OrtApi,
    pub GetVersionString: unsafe extern "system" fn() -> *const c_char,
}

#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphOptimizationLevel {
    ORT_DISABLE_ALL = 0,
    ORT_ENABLE_BASIC = 1,
    ORT_ENABLE_EXTENDED = 2,
    ORT_ENABLE_LAYOUT = 3,
    ORT_ENABLE_ALL = 99,
}

#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ONNXTensorElementDataType {
    ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED = 0,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 = 2,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 = 3,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16 = 4,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16 = 5,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING = 8,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL = 9,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE = 11,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32 = 12,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64 = 13,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64 = 14,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128 = 15,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 = 16,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN = 17,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ = 18,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2 = 19,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ = 20,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4 = 21,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4 = 22,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1 = 23,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2 = 24,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2 = 25,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0 = 26,
}

#[repr(C)]
pub struct OrtAllocator {
    unused: [u8; 0],
}

#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrtAllocatorType {
    OrtInvalidAllocator = -1,
    OrtDeviceAllocator = 0,
    OrtArenaAllocator = 1,
    OrtReadOnlyAllocator = 2,
}

#[repr(C)]
pub struct OrtCUDAProviderOptionsV2 {
    unused: [u8; 0],
}

#[repr(C)]
pub struct OrtEnv {
    unused: [u8; 0],
}

#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrtLoggingLevel {
    ORT_LOGGING_LEVEL_VERBOSE = 0,
    ORT_LOGGING_LEVEL_INFO = 1,
    ORT_LOGGING_LEVEL_WARNING = 2,
    ORT_LOGGING_LEVEL_ERROR = 3,
    ORT_LOGGING_LEVEL_FATAL = 4,
}

#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrtMemType {
    OrtMemTypeCPUInput = -2,
    OrtMemTypeCPUOutput = -1,
    OrtMemTypeDefault = 0,
}

#[repr(C)]
pub struct OrtMemoryInfo {
    unused: [u8; 0],
}

#[repr(C)]
pub struct OrtModelMetadata {
    unused: [u8; 0],
}

#[repr(C)]
pub struct OrtRunOptions {
    unused: [u8; 0],
}

#[repr(C)]
pub struct OrtSession {
    unused: [u8; 0],
}

#[repr(C)]
pub struct OrtSessionOptions {
    unused: [u8; 0],
}

#[repr(C)]
pub struct OrtStatus {
    unused: [u8; 0],
}

#[repr(C)]
pub struct OrtTensorRTProviderOptionsV2 {
    unused: [u8; 0],
}

#[repr(C)]
pub struct OrtTensorTypeAndShapeInfo {
    unused: [u8; 0],
}

#[repr(C)]
pub struct OrtTypeInfo {
    unused: [u8; 0],
}

#[repr(C)]
pub struct OrtValue {
    unused: [u8; 0],
}

/// The function table.
#[repr(C)]
pub struct OrtApi {
    unused_before_2: [*const c_void; 2],
    pub GetErrorMessage: unsafe extern "system" fn(status: *const OrtStatus) -> *const c_char,
    unused_before_4: [*const c_void; 1],
    pub CreateEnvWithCustomLogger: unsafe extern "system" fn(
        logging_function: OrtLoggingFunction,
        logger_param: *mut c_void,
        log_severity_level: OrtLoggingLevel,
        logid: *const c_char,
        out: *mut *mut OrtEnv,
    ) -> OrtStatusPtr,
    unused_before_7: [*const c_void; 2],
    pub CreateSession: unsafe extern "system" fn(
        env: *const OrtEnv,
        model_path: *const c_char,
        options: *const OrtSessionOptions,
        out: *mut *mut OrtSession,
    ) -> OrtStatusPtr,
    pub CreateSessionFromArray: unsafe extern "system" fn(
        env: *const OrtEnv,
        model_data: *const c_void,
        model_data_length: usize,
        options: *const OrtSessionOptions,
        out: *mut *mut OrtSession,
    ) -> OrtStatusPtr,
    pub Run: unsafe extern "system" fn(
        session: *mut OrtSession,
        run_options: *const OrtRunOptions,
        input_names: *const *const c_char,
        inputs: *const *const OrtValue,
        input_len: usize,
        output_names: *const *const c_char,
        output_names_len: usize,
        outputs: *mut *mut OrtValue,
    ) -> OrtStatusPtr,
    pub CreateSessionOptions: unsafe extern "system" fn(options: *mut *mut OrtSessionOptions) -> OrtStatusPtr,
    pub SetOptimizedModelFilePath:
        unsafe extern "system" fn(options: *mut OrtSessionOptions, optimized_model_filepath: *const c_char) -> OrtStatusPtr,
    unused_before_23: [*const c_void; 11],
    pub SetSessionGraphOptimizationLevel:
        unsafe extern "system" fn(options: *mut OrtSessionOptions, graph_optimization_level: GraphOptimizationLevel) -> OrtStatusPtr,
    pub SetIntraOpNumThreads: unsafe extern "system" fn(options: *mut OrtSessionOptions, intra_op_num_threads: c_int) -> OrtStatusPtr,
    pub SetInterOpNumThreads: unsafe extern "system" fn(options: *mut OrtSessionOptions, inter_op_num_threads: c_int) -> OrtStatusPtr,
    unused_before_30: [*const c_void; 4],
    pub SessionGetInputCount: unsafe extern "system" fn(session: *const OrtSession, out: *mut usize) -> OrtStatusPtr,
    pub SessionGetOutputCount: unsafe extern "system" fn(session: *const OrtSession, out: *mut usize) -> OrtStatusPtr,
    unused_before_33: [*const c_void; 1],
    pub SessionGetInputTypeInfo:
        unsafe extern "system" fn(session: *const OrtSession, index: usize, type_info: *mut *mut OrtTypeInfo) -> OrtStatusPtr,
    pub SessionGetOutputTypeInfo:
        unsafe extern "system" fn(session: *const OrtSession, index: usize, type_info: *mut *mut OrtTypeInfo) -> OrtStatusPtr,
    unused_before_36: [*const c_void; 1],
    pub SessionGetInputName: unsafe extern "system" fn(
        session: *const OrtSession,
        index: usize,
        allocator: *mut OrtAllocator,
        value: *mut *mut c_char,
    ) -> OrtStatusPtr,
    pub SessionGetOutputName: unsafe extern "system" fn(
        session: *const OrtSession,
        index: usize,
        allocator: *mut OrtAllocator,
        value: *mut *mut c_char,
    ) -> OrtStatusPtr,
    unused_before_39: [*const c_void; 1],
    pub CreateRunOptions: unsafe extern "system" fn(out: *mut *mut OrtRunOptions) -> OrtStatusPtr,
    unused_before_46: [*const c_void; 6],
    pub RunOptionsSetTerminate: unsafe extern "system" fn(options: *mut OrtRunOptions) -> OrtStatusPtr,
    pub RunOptionsUnsetTerminate: unsafe extern "system" fn(options: *mut OrtRunOptions) -> OrtStatusPtr,
    unused_before_49: [*const c_void; 1],
    pub CreateTensorWithDataAsOrtValue: unsafe extern "system" fn(
        info: *const OrtMemoryInfo,
        p_data: *mut c_void,
        p_data_len: usize,
        shape: *const i64,
        shape_len: usize,
        type_: ONNXTensorElementDataType,
        out: *mut *mut OrtValue,
    ) -> OrtStatusPtr,
    unused_before_51: [*const c_void; 1],
    pub GetTensorMutableData: unsafe extern "system" fn(value: *mut OrtValue, out: *mut *mut c_void) -> OrtStatusPtr,
    unused_before_55: [*const c_void; 3],
    pub CastTypeInfoToTensorInfo:
        unsafe extern "system" fn(type_info: *const OrtTypeInfo, out: *mut *const OrtTensorTypeAndShapeInfo) -> OrtStatusPtr,
    unused_before_60: [*const c_void; 4],
    pub GetTensorElementType:
        unsafe extern "system" fn(info: *const OrtTensorTypeAndShapeInfo, out: *mut ONNXTensorElementDataType) -> OrtStatusPtr,
    pub GetDimensionsCount: unsafe extern "system" fn(info: *const OrtTensorTypeAndShapeInfo, out: *mut usize) -> OrtStatusPtr,
    pub GetDimensions:
        unsafe extern "system" fn(info: *const OrtTensorTypeAndShapeInfo, dim_values: *mut i64, dim_values_length: usize) -> OrtStatusPtr,
    unused_before_66: [*const c_void; 3],
    pub GetTypeInfo: unsafe extern "system" fn(value: *const OrtValue, out: *mut *mut OrtTypeInfo) -> OrtStatusPtr,
    unused_before_69: [*const c_void; 2],
    pub CreateCpuMemoryInfo:
        unsafe extern "system" fn(type_: OrtAllocatorType, mem_type: OrtMemType, out: *mut *mut OrtMemoryInfo) -> OrtStatusPtr,
    unused_before_76: [*const c_void; 6],
    pub AllocatorFree: unsafe extern "system" fn(ort_allocator: *mut OrtAllocator, p: *mut c_void) -> OrtStatusPtr,
    unused_before_78: [*const c_void; 1],
    pub GetAllocatorWithDefaultOptions: unsafe extern "system" fn(out: *mut *mut OrtAllocator) -> OrtStatusPtr,
    unused_before_93: [*const c_void; 14],
    pub ReleaseStatus: unsafe extern "system" fn(input: *mut OrtStatus),
    unused_before_95: [*const c_void; 1],
    pub ReleaseSession: unsafe extern "system" fn(input: *mut OrtSession),
    pub ReleaseValue: unsafe extern "system" fn(input: *mut OrtValue),
    pub ReleaseRunOptions: unsafe extern "system" fn(input: *mut OrtRunOptions),
    pub ReleaseTypeInfo: unsafe extern "system" fn(input: *mut OrtTypeInfo),
    unused_before_100: [*const c_void; 1],
    pub ReleaseSessionOptions: unsafe extern "system" fn(input: *mut OrtSessionOptions),
    unused_before_111: [*const c_void; 10],
    pub SessionGetModelMetadata: unsafe extern "system" fn(session: *const OrtSession, out: *mut *mut OrtModelMetadata) -> OrtStatusPtr,
    unused_before_116: [*const c_void; 4],
    pub ModelMetadataLookupCustomMetadataMap: unsafe extern "system" fn(
        model_metadata: *const OrtModelMetadata,
        allocator: *mut OrtAllocator,
        key: *const c_char,
        value: *mut *mut c_char,
    ) -> OrtStatusPtr,
    unused_before_118: [*const c_void; 1],
    pub ReleaseModelMetadata: unsafe extern "system" fn(input: *mut OrtModelMetadata),
    unused_before_123: [*const c_void; 4],
    pub ModelMetadataGetCustomMetadataMapKeys: unsafe extern "system" fn(
        model_metadata: *const OrtModelMetadata,
        allocator: *mut OrtAllocator,
        keys: *mut *mut *mut c_char,
        num_keys: *mut i64,
    ) -> OrtStatusPtr,
    unused_before_125: [*const c_void; 1],
    pub GetAvailableProviders: unsafe extern "system" fn(out_ptr: *mut *mut *mut c_char, provider_length: *mut c_int) -> OrtStatusPtr,
    pub ReleaseAvailableProviders: unsafe extern "system" fn(ptr: *mut *mut c_char, providers_length: c_int) -> OrtStatusPtr,
    unused_before_130: [*const c_void; 3],
    pub AddSessionConfigEntry:
        unsafe extern "system" fn(options: *mut OrtSessionOptions, config_key: *const c_char, config_value: *const c_char) -> OrtStatusPtr,
    unused_before_170: [*const c_void; 39],
    pub SessionOptionsAppendExecutionProvider_TensorRT_V2:
        unsafe extern "system" fn(options: *mut OrtSessionOptions, tensorrt_options: *const OrtTensorRTProviderOptionsV2) -> OrtStatusPtr,
    pub CreateTensorRTProviderOptions: unsafe extern "system" fn(out: *mut *mut OrtTensorRTProviderOptionsV2) -> OrtStatusPtr,
    unused_before_174: [*const c_void; 2],
    pub ReleaseTensorRTProviderOptions: unsafe extern "system" fn(input: *mut OrtTensorRTProviderOptionsV2),
    unused_before_204: [*const c_void; 29],
    pub SessionOptionsAppendExecutionProvider_CUDA_V2:
        unsafe extern "system" fn(options: *mut OrtSessionOptions, cuda_options: *const OrtCUDAProviderOptionsV2) -> OrtStatusPtr,
    pub CreateCUDAProviderOptions: unsafe extern "system" fn(out: *mut *mut OrtCUDAProviderOptionsV2) -> OrtStatusPtr,
    unused_before_208: [*const c_void; 2],
    pub ReleaseCUDAProviderOptions: unsafe extern "system" fn(input: *mut OrtCUDAProviderOptionsV2),
    unused_before_216: [*const c_void; 7],
    pub SessionOptionsAppendExecutionProvider: unsafe extern "system" fn(
        options: *mut OrtSessionOptions,
        provider_name: *const c_char,
        provider_options_keys: *const *const c_char,
        provider_options_values: *const *const c_char,
        num_keys: usize,
    ) -> OrtStatusPtr,
    unused_before_276: [*const c_void; 59],
}
