//! The two kinds of calls in which ONNX Runtime computes on the caller's thread: creating a session, and running one. During these calls,
//! the processor treats denormal numbers as zero. Afterwards the floating-point control of the thread is restored. ONNX Runtime's own
//! option is not sufficient: it changes the control of one calling thread permanently, and does not affect other calling threads.

use std::ffi::c_char;

use super::ffi::{OrtApi, OrtEnv, OrtRunOptions, OrtSession, OrtSessionOptions, OrtStatusPtr, OrtValue};

#[cfg(all(target_arch = "x86_64", unix))]
macro_rules! call {
    ($function:expr, $($argument:expr),+) => {{
        let given = [$(Argument::pointer($argument)),+];
        let arguments = std::array::from_fn(|idx| given.get(idx).copied().unwrap_or(std::ptr::null()));
        // SAFETY: `$function` is a function of the library's C interface. It takes these arguments, which are at most eight pointers and
        // sizes. It returns a pointer and does not unwind. The caller guarantees the function's other requirements.
        let status = unsafe { crate::float_control::flushing_denormals($function as *const (), arguments) };
        OrtStatusPtr(status.cast())
    }};
}

#[cfg(not(all(target_arch = "x86_64", unix)))]
macro_rules! call {
    ($function:expr, $($argument:expr),+) => {
        // SAFETY: the caller guarantees the requirements of the library's function.
        unsafe { $function($($argument),+) }
    };
}

/// A type that the calling convention passes in one integer register.
#[cfg(all(target_arch = "x86_64", unix))]
trait Argument {
    fn pointer(self) -> *const ();
}

#[cfg(all(target_arch = "x86_64", unix))]
impl<T> Argument for *const T {
    fn pointer(self) -> *const () {
        self.cast()
    }
}

#[cfg(all(target_arch = "x86_64", unix))]
impl<T> Argument for *mut T {
    fn pointer(self) -> *const () {
        self.cast_const().cast()
    }
}

#[cfg(all(target_arch = "x86_64", unix))]
impl Argument for usize {
    fn pointer(self) -> *const () {
        std::ptr::without_provenance(self)
    }
}

/// Calls the library's function `CreateSession`.
///
/// # Safety
/// The requirements of the library's function must hold: the objects are not released, and the other pointers are valid for the call.
pub(super) unsafe fn create_session(
    table: &OrtApi,
    env: *const OrtEnv,
    path: *const c_char,
    options: *const OrtSessionOptions,
    session: *mut *mut OrtSession,
) -> OrtStatusPtr {
    call!((table.CreateSession), env, path, options, session)
}

/// Calls the library's function `CreateSessionFromArray`.
///
/// # Safety
/// The requirements of the library's function must hold: the objects are not released, and the other pointers are valid for the call.
pub(super) unsafe fn create_session_from_array(
    table: &OrtApi,
    env: *const OrtEnv,
    model: &[u8],
    options: *const OrtSessionOptions,
    session: *mut *mut OrtSession,
) -> OrtStatusPtr {
    call!((table.CreateSessionFromArray), env, model.as_ptr().cast::<std::ffi::c_void>(), model.len(), options, session)
}

/// Calls the library's function `Run`.
///
/// # Safety
/// The requirements of the library's function must hold: the objects are not released, and the other pointers are valid for the call.
#[allow(clippy::too_many_arguments, reason = "the library's function")]
pub(super) unsafe fn run(
    table: &OrtApi,
    session: *mut OrtSession,
    options: *const OrtRunOptions,
    input_names: *const *const c_char,
    inputs: *const *const OrtValue,
    n_inputs: usize,
    output_names: *const *const c_char,
    n_outputs: usize,
    outputs: *mut *mut OrtValue,
) -> OrtStatusPtr {
    call!((table.Run), session, options, input_names, inputs, n_inputs, output_names, n_outputs, outputs)
}
