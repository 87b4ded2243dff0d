//! Session options, and the creation of sessions.

use std::ffi::CStr;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::api::{Api, Session};
use super::calls;
use super::ffi::{self, OrtSession, OrtSessionOptions};
use crate::engine::{EngineResult, c_string};

/// Options for creating a session.
pub(super) struct Options<'a> {
    api: &'a Arc<Api>,
    ptr: NonNull<OrtSessionOptions>,
}

impl<'a> Options<'a> {
    pub(super) fn new(api: &'a Arc<Api>) -> EngineResult<Self> {
        let mut options = ptr::null_mut();
        // SAFETY: a place for the answer.
        api.check(unsafe { (api.table().CreateSessionOptions)(&raw mut options) })?;
        Ok(Self { api, ptr: NonNull::new(options).ok_or("it gave no session options")? })
    }

    fn set(&self, set: impl FnOnce(&ffi::OrtApi, *mut OrtSessionOptions) -> ffi::OrtStatusPtr) -> EngineResult<()> {
        self.api.check(set(self.api.table(), self.ptr.as_ptr()))
    }

    pub(super) fn threads(&self, n_threads: usize) -> EngineResult<()> {
        let n_threads = i32::try_from(n_threads).unwrap_or(i32::MAX);
        // SAFETY: the options live.
        self.set(|table, options| unsafe { (table.SetIntraOpNumThreads)(options, n_threads) })?;
        // SAFETY: as above.
        self.set(|table, options| unsafe { (table.SetInterOpNumThreads)(options, 1) })
    }

    pub(super) fn entry(&self, key: &CStr, value: &CStr) -> EngineResult<()> {
        // SAFETY: the options live; both are C strings that are copied.
        self.set(|table, options| unsafe { (table.AddSessionConfigEntry)(options, key.as_ptr(), value.as_ptr()) })
    }

    pub(super) fn provider(&self, provider: &str) -> EngineResult<()> {
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

    /// Turns graph optimization off.
    pub(super) fn no_optimization(&self) -> EngineResult<()> {
        // SAFETY: the options live.
        self.set(|table, options| unsafe {
            (table.SetSessionGraphOptimizationLevel)(options, ffi::GraphOptimizationLevel::ORT_DISABLE_ALL)
        })
    }

    /// Writes the optimized graph to this file.
    pub(super) fn write_optimized(&self, path: &Path) -> EngineResult<()> {
        let path = text_of(path)?;
        // SAFETY: the options live; a C string that is copied.
        self.set(|table, options| unsafe { (table.SetOptimizedModelFilePath)(options, path.as_ptr()) })
    }

    /// A session of a file.
    pub(super) fn session(&self, path: &Path) -> EngineResult<Session> {
        let path = text_of(path)?;
        let mut session: *mut OrtSession = ptr::null_mut();
        let table = self.api.table();
        // SAFETY: environment and options live; the path is a C string.
        self.api.check(unsafe { calls::create_session(table, self.api.env(), path.as_ptr(), self.ptr.as_ptr(), &raw mut session) })?;
        Ok(Session { table, ptr: NonNull::new(session).ok_or("it gave no session")? })
    }

    /// A session of the bytes of a file. External weights are searched in `folder`.
    pub(super) fn session_of(&self, model: &[u8], folder: Option<&Path>) -> EngineResult<Session> {
        if let Some(folder) = folder {
            self.entry(c"session.model_external_initializers_file_folder_path", &text_of(folder)?)?;
        }
        let mut session: *mut OrtSession = ptr::null_mut();
        let (table, env, options) = (self.api.table(), self.api.env(), self.ptr.as_ptr());
        // SAFETY: environment and options live; so many bytes, which are only read, during the call.
        let status = unsafe { calls::create_session_from_array(table, env, model, options, &raw mut session) };
        self.api.check(status)?;
        Ok(Session { table, ptr: NonNull::new(session).ok_or("it gave no session")? })
    }
}

fn text_of(path: &Path) -> EngineResult<std::ffi::CString> {
    c_string(path.to_str().ok_or_else(|| format!("the path `{}` is not UTF-8", path.display()))?)
}

impl Drop for Options<'_> {
    fn drop(&mut self) {
        // SAFETY: owned, released once; sessions keep copies.
        unsafe { (self.api.table().ReleaseSessionOptions)(self.ptr.as_ptr()) };
    }
}
