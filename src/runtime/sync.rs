//! The primitives that state, requests and pools are built on, in one place, so that a model checker can take their place.

use std::sync::atomic::AtomicUsize;
use std::sync::{LockResult, WaitTimeoutResult};
use std::time::Duration;

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};

type WaitTimeout<'a, T> = LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)>;

/// The standard library's, but for one thing: to wake nobody costs no system call. Most runs end with nobody waiting.
///
/// Every `notify_all` follows a change that was made under the mutex of those who wait.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    condvar: std::sync::Condvar,
    /// Grows only under the mutex. Who locks it after a waiter looked in vain sees that one counted here; a waiter that locks
    /// it later sees the change, and does not wait.
    n_waiting: AtomicUsize,
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.n_waiting.fetch_add(1, Ordering::Relaxed);
        let woken = self.condvar.wait(guard);
        self.n_waiting.fetch_sub(1, Ordering::Relaxed);
        woken
    }

    pub(crate) fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> WaitTimeout<'a, T> {
        self.n_waiting.fetch_add(1, Ordering::Relaxed);
        let woken = self.condvar.wait_timeout(guard, timeout);
        self.n_waiting.fetch_sub(1, Ordering::Relaxed);
        woken
    }

    pub(crate) fn notify_all(&self) {
        if self.n_waiting.load(Ordering::Relaxed) > 0 {
            self.condvar.notify_all();
        }
    }
}
