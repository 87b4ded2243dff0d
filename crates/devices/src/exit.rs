//! Makes the exit of the process wait until calls into engines return, and prevents further calls.
//!
//! When a process exits, the destructors of its libraries run on the thread that called `exit`, while all other threads keep running. A
//! thread inside an engine would then use destroyed objects and most often crash. So each call into an engine holds an [`Inside`], and an
//! exit handler waits until no [`Inside`] is held. Memory that is not freed by then is left to the operating system.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::runtime::{Error, ErrorKind, Result};

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

/// Like [`enter`], but returns an error once the process is exiting.
///
/// # Errors
/// Returns `Stopped` once the process is exiting.
pub fn try_enter() -> Result<Inside<'static>> {
    enter().ok_or_else(|| Error::new(ErrorKind::Stopped, "the process is exiting; no more calls into engines are possible"))
}

/// Registers an exit handler that waits for calls inside engines. Must be called after each call that may have loaded a library or
/// registered destructors. Exit handlers run in reverse order of registration, so this handler runs before those destructors.
pub fn guard() {
    unsafe extern "C" {
        safe fn atexit(handler: extern "C" fn()) -> c_int;
    }
    static N_HANDLERS: AtomicUsize = AtomicUsize::new(0);
    if N_HANDLERS.fetch_add(1, Ordering::Relaxed) < MAX_HANDLERS && atexit(close) != 0 {
        tracing::debug!("cannot register an exit handler: the process does not wait for runs when it exits");
    }
}

extern "C" fn close() {
    CALLS.close(PATIENCE);
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
