//! Makes the exit of the process wait until calls into engines return, and prevents further calls.
//!
//! When a process exits, the destructors of its libraries run on the thread that called `exit`, while all other threads keep running. A
//! thread inside an engine would then use destroyed objects and most often crash. So each call into an engine holds an [`Inside`], and an
//! exit handler waits until no [`Inside`] is held. Memory that is not freed by then is left to the operating system.
//!
//! The destructors must not run at all if a thread is still inside an engine after the wait, or if the process is a fork of the process that
//! loaded the engine: a fork lacks the threads for which the destructors wait. The process then ends with its exit code, after the buffers
//! of the C library are written.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::runtime::{Error, ErrorKind, Result};
use crate::tensor::process::ProcessToken;

/// The number of calls that are inside engines, and a flag that says that the process is exiting.
static CALLS: Calls = Calls::new();
/// Maximum time for which an exit waits. It equals the default time for which the drop of a request waits for its run.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of exit handlers that are registered. A handler is registered for each loaded model and takes a few bytes, so this limit
/// bounds their memory.
const MAX_HANDLERS: usize = 1000;

/// A guard for a call into an engine. While it exists, the exit of the process waits.
#[must_use = "the exit waits only while this is held"]
pub struct Inside<'a>(&'a Calls);

/// Permits a call into an engine. Returns `None` once the process is exiting.
pub fn enter() -> Option<Inside<'static>> {
    CALLS.enter()
}

/// Permits a call that frees an object of an engine. Returns `None` once the process is exiting, and in a fork of the process that first
/// used an engine: to free such an object, engines wait for threads that a fork does not have. The object is then left to the operating
/// system.
pub fn enter_to_free() -> Option<Inside<'static>> {
    if is_fork() { None } else { enter() }
}

/// Returns whether this process is a fork of the process that first used an engine.
fn is_fork() -> bool {
    static FIRST: OnceLock<ProcessToken> = OnceLock::new();
    !FIRST.get_or_init(ProcessToken::current).is_current()
}

/// Like [`enter`], but returns an error once the process is exiting.
///
/// # Errors
/// Returns `Stopped` once the process is exiting.
pub fn try_enter() -> Result<Inside<'static>> {
    enter().ok_or_else(|| Error::new(ErrorKind::Stopped, "the process is exiting; no more calls into engines are possible"))
}

/// Like [`try_enter`], for an engine that needs threads of its own also for a synchronous call.
///
/// # Errors
/// Returns the errors of [`try_enter`]. Returns `Unsupported` in a fork of the process that first used an engine, because a fork lacks these
/// threads.
#[cfg(feature = "openvino")]
pub fn try_enter_with_threads() -> Result<Inside<'static>> {
    if is_fork() {
        let message = "this process was forked from one that used the engine, and has none of its threads; start processes with `exec` \
                       (in Python: with the start method `spawn` or `forkserver`)";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    try_enter()
}

/// Registers an exit handler that waits for calls inside engines. Must be called after each call that may have loaded a library or
/// registered destructors. Exit handlers run in reverse order of registration, so this handler runs before those destructors.
pub fn guard() {
    static N_HANDLERS: AtomicUsize = AtomicUsize::new(0);
    let _remembered = is_fork();
    if N_HANDLERS.fetch_add(1, Ordering::Relaxed) < MAX_HANDLERS && !at_exit(close) {
        tracing::debug!("cannot register an exit handler: the process does not wait for runs when it exits");
    }
}

/// Ends the process at its exit without running the destructors of libraries. The exit code is the one of the process. Called when a thread
/// cannot be stopped before the exit. Handlers that are registered later run before.
pub fn leave_at_exit() {
    if !at_exit(leave) {
        tracing::debug!("cannot register an exit handler: threads that still run may crash the process when it exits");
    }
}

/// The argument is the exit code.
extern "C" fn close(code: c_int, _: *mut c_void) {
    if is_fork() || !CALLS.close(PATIENCE) {
        leave(code, std::ptr::null_mut());
    }
}

extern "C" fn leave(code: c_int, _: *mut c_void) {
    unsafe extern "C" {
        fn fflush(stream: *mut c_void) -> c_int;
        safe fn _exit(code: c_int) -> !;
    }
    // SAFETY: a null pointer means all streams.
    unsafe { fflush(std::ptr::null_mut()) };
    _exit(code)
}

/// A function that the C library calls when the process exits, with the exit code.
type Handler = extern "C" fn(c_int, *mut c_void);

/// Registers a handler. Returns whether this succeeded.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn at_exit(handler: Handler) -> bool {
    unsafe extern "C" {
        fn on_exit(handler: Handler, argument: *mut c_void) -> c_int;
    }
    // SAFETY: the handlers do not use their argument.
    unsafe { on_exit(handler, std::ptr::null_mut()) == 0 }
}

/// Other C libraries do not tell the exit code to handlers, so a process that must not run destructors ends with 0.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn at_exit(handler: Handler) -> bool {
    unsafe extern "C" {
        safe fn atexit(handler: extern "C" fn()) -> c_int;
    }
    extern "C" fn closing() {
        close(0, std::ptr::null_mut());
    }
    extern "C" fn leaving() {
        leave(0, std::ptr::null_mut());
    }
    atexit(if std::ptr::fn_addr_eq(handler, close as Handler) { closing } else { leaving }) == 0
}

/// Blocks each thread that aborts the process and for which `is_blocked` returns true, instead of ending the process. Called shortly before
/// the process exits: Python ends the threads that still run Python code, and a thread that has Rust functions on its stack aborts then.
/// `is_blocked` may only read variables of its thread. The main thread, and each thread that may have to be blocked, must have used these
/// variables before. On any other thread, the first read may allocate them, and a thread that aborts inside the allocator may hang then. It
/// does not abort the process, which the main thread ends.
#[cfg(unix)]
pub fn block_aborting_threads(is_blocked: fn() -> bool) {
    const SIGABRT: c_int = 6;
    static IS_BLOCKED: OnceLock<fn() -> bool> = OnceLock::new();
    unsafe extern "C" {
        fn signal(number: c_int, handler: *const c_void) -> *const c_void;
        safe fn pause() -> c_int;
    }
    extern "C" fn aborted(number: c_int) {
        while IS_BLOCKED.get().is_some_and(|is_blocked| is_blocked()) {
            pause();
        }
        // SAFETY: a null pointer is the default handling, with which the abort then ends the process.
        unsafe { signal(number, std::ptr::null()) };
    }
    if IS_BLOCKED.set(is_blocked).is_ok() {
        // SAFETY: the handler only reads initialized variables, and calls functions that a signal handler may call. For variables of a
        // thread that never used them, see above.
        unsafe { signal(SIGABRT, aborted as extern "C" fn(c_int) as *const c_void) };
    }
}

struct Calls(AtomicUsize);

impl Calls {
    /// A flag in the call counter. If it is set, no further calls are permitted.
    const CLOSED: usize = 1 << (usize::BITS - 1);

    const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    fn enter(&self) -> Option<Inside<'_>> {
        let inside = Inside(self);
        // `fetch_add` increments the counter and reads the flag in one step. `close` sets the flag and reads the counter in one step. So
        // either this call sees the flag, or `close` sees the incremented counter.
        let before = self.0.fetch_add(1, Ordering::SeqCst);
        (before & Self::CLOSED == 0).then_some(inside)
    }

    /// Prevents further calls, waits for the calls that are in progress, at most for `patience`, and returns whether all of them have
    /// returned.
    fn close(&self, patience: Duration) -> bool {
        let begin = Instant::now();
        let mut calls = self.0.fetch_or(Self::CLOSED, Ordering::SeqCst) & !Self::CLOSED;
        while calls > 0 && begin.elapsed() < patience {
            std::thread::sleep(Duration::from_micros(200));
            calls = self.0.load(Ordering::SeqCst) & !Self::CLOSED;
        }
        calls == 0
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_waits_for_calls_and_allows_no_more() {
        static CALLS: Calls = Calls::new();
        let (first, second) = (CALLS.enter().unwrap(), CALLS.enter().unwrap());
        drop(first);
        assert!(!CALLS.close(Duration::ZERO), "a call is still inside");
        assert!(CALLS.enter().is_none() && CALLS.enter().is_none());
        let closing = std::thread::spawn(|| CALLS.close(Duration::MAX));
        drop(second);
        assert!(closing.join().unwrap());
        assert!(CALLS.enter().is_none());
    }
}
