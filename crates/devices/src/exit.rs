//! The exit of the process waits for calls that are inside an engine, and allows no further calls.
//!
//! When a process exits, the destructors of its libraries run on the thread that called `exit`, concurrently with all other threads. A
//! thread inside an engine would then use destroyed objects, and most often crash after all work was done. So each call of an engine holds
//! an [`Inside`]. Memory that is not freed by then is left to the system.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::runtime::{Error, ErrorKind, Result};

/// The number of calls inside engines, and whether the process exits.
static CALLS: Calls = Calls::new();
/// How long an exit waits: as long as the drop of a request waits for its run.
const PATIENCE: Duration = Duration::from_secs(5);
/// Each handler costs some bytes, and a process may load any number of models.
const MAX_HANDLERS: usize = 1000;

/// While this is held, the process does not exit.
#[must_use = "the exit waits only while this is held"]
pub struct Inside<'a>(&'a Calls);

/// Allows a call of an engine. `None` once the process exits.
pub fn enter() -> Option<Inside<'static>> {
    CALLS.enter()
}

/// As [`enter`], with an error.
///
/// # Errors
/// `Stopped` once the process exits.
pub fn try_enter() -> Result<Inside<'static>> {
    enter().ok_or_else(|| Error::new(ErrorKind::Stopped, "the process exits; engines are not used any more"))
}

/// Registers an exit handler that waits for calls inside engines. To be called after each call that may have loaded a library or registered
/// destructors: handlers run in the reverse order of their registration, so this one runs before these destructors.
pub fn guard() {
    unsafe extern "C" {
        safe fn atexit(handler: extern "C" fn()) -> c_int;
    }
    static N_HANDLERS: AtomicUsize = AtomicUsize::new(0);
    if N_HANDLERS.fetch_add(1, Ordering::Relaxed) < MAX_HANDLERS && atexit(close) != 0 {
        tracing::debug!("no handler could be registered: an exit does not wait for runs");
    }
}

extern "C" fn close() {
    CALLS.close(PATIENCE);
}

struct Calls(AtomicUsize);

impl Calls {
    /// A flag in the number of calls: no further calls.
    const CLOSED: usize = 1 << (usize::BITS - 1);

    const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    fn enter(&self) -> Option<Inside<'_>> {
        let inside = Inside(self);
        // Either this call sees the flag, or `close` sees this call: this counts before it checks, `close` sets the flag before it checks.
        let before = self.0.fetch_add(1, Ordering::SeqCst);
        (before & Self::CLOSED == 0).then_some(inside)
    }

    /// Closes, waits, and returns whether all calls have returned.
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
        assert!(!CALLS.close(Duration::ZERO), "one is still inside");
        assert!(CALLS.enter().is_none() && CALLS.enter().is_none());
        let closing = std::thread::spawn(|| CALLS.close(Duration::MAX));
        drop(second);
        assert!(closing.join().unwrap());
        assert!(CALLS.enter().is_none());
    }
}
