//! Session options of ONNX Runtime, and the creation of sessions with them.

use std::ffi::CStr;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::api::{Api, Session};
use super::calls;
use super::ffi::{self, OrtSession, OrtSessionOptions};
use crate::engine::{EngineResult, c_string};

/// The options with which a session is created.
pub(super) struct Options<'a> {
    api: &'a Arc<Api>,
    ptr: NonNull<OrtSessionOptions>,
}

impl<'a> Options<'a> {
    pub(super) fn new(api: &'a Arc<Api>) -> EngineResult<Self> {
        let mut options = ptr::null_mut();
        // SAFETY: the result pointer is valid.
        api.check(unsafe { (api.table().CreateSessionOptions)(&raw mut options) })?;
        Ok(Self { api, ptr: NonNull::new(options).ok_or("ONNX Runtime returned no session options")? })
    }

    fn set(&self, set: impl FnOnce(&ffi::OrtApi, *mut OrtSessionOptions) -> ffi::OrtStatusPtr) -> EngineResult<()> {
        self.api.check(set(self.api.table(), self.ptr.as_ptr()))
    }

    pub(super) fn threads(&self, n_threads: usize) -> EngineResult<()> {
        let n_threads = i32::try_from(n_threads).unwrap_or(i32::MAX);
        // SAFETY: the options are not released, and the number is a plain value.
        self.set(|table, options| unsafe { (table.SetIntraOpNumThreads)(options, n_threads) })?;
        // SAFETY: the options are not released, and the number is a plain value.
        self.set(|table, options| unsafe { (table.SetInterOpNumThreads)(options, 1) })
    }

    pub(super) fn entry(&self, key: &CStr, value: &CStr) -> EngineResult<()> {
        // SAFETY: the options are not released. The library copies both C strings.
        self.set(|table, options| unsafe { (table.AddSessionConfigEntry)(options, key.as_ptr(), value.as_ptr()) })
    }

    pub(super) fn provider(&self, provider: &str) -> EngineResult<()> {
        match provider {
            "CPU" => Ok(()),
            "CUDA" => {
                let table = self.api.table();
                let mut cuda = ptr::null_mut();
                // SAFETY: the result pointer is valid. The CUDA options are released below.
                self.api.check(unsafe { (table.CreateCUDAProviderOptions)(&raw mut cuda) })?;
                // SAFETY: neither of the two objects is released yet. The library copies the values that it needs.
                let set = self.set(|table, options| unsafe { (table.SessionOptionsAppendExecutionProvider_CUDA_V2)(options, cuda) });
                // SAFETY: this is the only call that releases the CUDA options, and no code uses them afterwards.
                unsafe { (table.ReleaseCUDAProviderOptions)(cuda) };
                set
            }
            "Tensorrt" => {
                let table = self.api.table();
                let mut tensorrt = ptr::null_mut();
                // SAFETY: the result pointer is valid. The TensorRT options are released below.
                self.api.check(unsafe { (table.CreateTensorRTProviderOptions)(&raw mut tensorrt) })?;
                // SAFETY: neither of the two objects is released yet. The library copies the values that it needs.
                let set =
                    self.set(|table, options| unsafe { (table.SessionOptionsAppendExecutionProvider_TensorRT_V2)(options, tensorrt) });
                // SAFETY: this is the only call that releases the TensorRT options, and no code uses them afterwards.
                unsafe { (table.ReleaseTensorRTProviderOptions)(tensorrt) };
                set
            }
            other => {
                let name = c_string(other)?;
                // SAFETY: the options are not released. The name is a C string, and the lists of keys and values are empty.
                self.set(|table, options| unsafe {
                    (table.SessionOptionsAppendExecutionProvider)(options, name.as_ptr(), ptr::null(), ptr::null(), 0)
                })
            }
        }
    }

    /// Turns off graph optimization.
    pub(super) fn no_optimization(&self) -> EngineResult<()> {
        // SAFETY: the options are not released.
        self.set(|table, options| unsafe {
            (table.SetSessionGraphOptimizationLevel)(options, ffi::GraphOptimizationLevel::ORT_DISABLE_ALL)
        })
    }

    /// Makes ONNX Runtime write the optimized graph to this file when it creates the session.
    pub(super) fn write_optimized(&self, path: &Path) -> EngineResult<()> {
        let path = text_of(path)?;
        // SAFETY: the options are not released. The library copies the C string.
        self.set(|table, options| unsafe { (table.SetOptimizedModelFilePath)(options, path.as_ptr()) })
    }

    /// Creates a session of a model file.
    pub(super) fn session(&self, path: &Path) -> EngineResult<Session> {
        let path = text_of(path)?;
        let mut session: *mut OrtSession = ptr::null_mut();
        let table = self.api.table();
        // SAFETY: environment and options are not released. The path is a C string, and the result pointer is valid.
        self.api.check(unsafe { calls::create_session(table, self.api.env(), path.as_ptr(), self.ptr.as_ptr(), &raw mut session) })?;
        Ok(Session { table, ptr: NonNull::new(session).ok_or("ONNX Runtime returned no session")? })
    }

    /// Creates a session of a model in memory.
    pub(super) fn session_of(&self, model: &[u8]) -> EngineResult<Session> {
        let mut session: *mut OrtSession = ptr::null_mut();
        let (table, env, options) = (self.api.table(), self.api.env(), self.ptr.as_ptr());
        // SAFETY: environment and options are not released. The library only reads the bytes, and only during the call. The result pointer
        // is valid.
        let status = unsafe { calls::create_session_from_array(table, env, model, options, &raw mut session) };
        self.api.check(status)?;
        Ok(Session { table, ptr: NonNull::new(session).ok_or("ONNX Runtime returned no session")? })
    }
}

fn text_of(path: &Path) -> EngineResult<std::ffi::CString> {
    c_string(path.to_str().ok_or_else(|| format!("the path `{}` is not UTF-8", path.display()))?)
}

impl Drop for Options<'_> {
    fn drop(&mut self) {
        // SAFETY: this object is the only owner of the options, so they are released once. Sessions have copies of the options.
        unsafe { (self.api.table().ReleaseSessionOptions)(self.ptr.as_ptr()) };
    }
}
