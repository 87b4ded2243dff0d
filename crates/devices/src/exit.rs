//! Loaded engines and the end of the process: the exit waits for calls that are inside a library, and lets no more in.
//!
//! When a process exits, the destructors of its libraries run, on the thread that called `exit`, beside all others. A thread that
//! is inside an engine then, or enters it, meets what is gone: most often a crash after all work was done. So whatever calls an
//! engine holds an [`Inside`] meanwhile. What is not freed by then is left to the system.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::runtime::{Error, ErrorKind, Result};

/// How many calls are inside, and whether the process exits.
static CALLS: Calls = Calls::new();
/// How long an exit waits: as long as a request's drop waits for its run.
const PATIENCE: Duration = Duration::from_secs(5);
/// Handlers cost some bytes each, and models may come and go for ever.
const MAX_HANDLERS: usize = 1000;

/// While this is held, the process does not exit.
#[must_use = "the call is inside as long as this is held"]
pub struct Inside<'a>(&'a Calls);

/// A call may be made; `None` once the process exits.
pub fn enter() -> Option<Inside<'static>> {
    CALLS.enter()
}

/// As [`enter`].
///
/// # Errors
/// `Stopped` once the process exits.
pub fn try_enter() -> Result<Inside<'static>> {
    enter().ok_or_else(|| Error::new(ErrorKind::Stopped, "the process exits; engines are not used any more"))
}

/// From now on an exit waits, before what was set up until now is destroyed: to be called after each call that may have loaded a
/// library or set something up for the first time, because handlers run in the reverse order of their registration.
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
    /// In the number of calls: no more may come.
    const CLOSED: usize = 1 << (usize::BITS - 1);

    const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    fn enter(&self) -> Option<Inside<'_>> {
        let inside = Inside(self);
        // One of both sees the other: this counts before it looks, `close` looks after it has said so.
        let before = self.0.fetch_add(1, Ordering::SeqCst);
        (before & Self::CLOSED == 0).then_some(inside)
    }

    /// Whether all calls came out.
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
    fn an_exit_waits_for_calls_that_are_inside_and_lets_no_more_in() {
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
