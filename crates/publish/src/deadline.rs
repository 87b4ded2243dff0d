//! Deadline of writes. Another thread can set the deadline while a write waits.

use std::io::{self, ErrorKind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Limits how long writes wait for a reader or a server. Clones share the deadline. By default no time is set: writes wait without limit.
#[derive(Debug, Clone, Default)]
pub struct Deadline(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    time: Mutex<Option<Instant>>,
    /// Notified when the deadline changes.
    changed: Condvar,
}

impl Deadline {
    /// Sets the deadline. Has no effect if an earlier deadline is set.
    pub fn set(&self, deadline: Instant) {
        let mut current = self.lock();
        *current = Some(current.map_or(deadline, |current| current.min(deadline)));
        self.0.changed.notify_all();
    }

    /// Removes the deadline.
    pub fn clear(&self) {
        *self.lock() = None;
        self.0.changed.notify_all();
    }

    /// Returns the time that a caller may wait: the time until the deadline, but at most `longest`.
    ///
    /// # Errors
    /// Returns `TimedOut` once the deadline has passed.
    pub fn remaining(&self, longest: Duration) -> io::Result<Duration> {
        remaining(*self.lock(), longest)
    }

    /// Blocks for `duration`, or until the deadline.
    ///
    /// # Errors
    /// Returns `TimedOut` once the deadline has passed.
    pub fn sleep(&self, duration: Duration) -> io::Result<()> {
        let end = Instant::now() + duration;
        let mut time = self.lock();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = remaining(*time, left)?;
            if left.is_zero() {
                return Ok(());
            }
            time = self.0.changed.wait_timeout(time, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.time.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remaining(deadline: Option<Instant>, longest: Duration) -> io::Result<Duration> {
    let Some(deadline) = deadline else { return Ok(longest) };
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::new(ErrorKind::TimedOut, "writing timed out: nothing reads the output")),
        remaining => Ok(remaining.min(longest)),
    }
}
