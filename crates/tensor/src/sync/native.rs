//! The standard library's primitives.

use std::sync::{LockResult, WaitTimeoutResult};
use std::time::{Duration, Instant};

pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub use std::sync::{Mutex, MutexGuard, RwLock};
pub use std::thread::JoinHandle;
pub use std::thread_local;

/// A number that is unique among running threads; never 0.
pub fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static TOKEN: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    TOKEN.with(|token| *token)
}

/// Starts a detached thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

/// Starts a thread that can be joined.
pub fn spawn_joinable(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// The point in time at which a wait ends.
#[derive(Debug, Clone)]
pub struct Deadline(Instant);

impl Deadline {
    /// `None` if the time cannot be represented: never.
    pub fn after(timeout: Duration) -> Option<Self> {
        Instant::now().checked_add(timeout).map(Self)
    }

    /// Whether it has passed.
    pub fn is_over(&self) -> bool {
        self.0 <= Instant::now()
    }

    /// Waits for a notification or the deadline; may wake up spuriously.
    pub fn wait<'a, T>(&self, condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let left = self.0.saturating_duration_since(Instant::now());
        condvar.wait_timeout(guard, left).unwrap().0
    }
}

type WaitTimeout<'a, T> = LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)>;

/// The standard library's condition variable, without a system call if there is no waiter: most runs end without one.
///
/// Every notification must follow a change under the waiters' mutex.
#[derive(Debug, Default)]
pub struct Condvar {
    condvar: std::sync::Condvar,
    /// Grows only under the mutex. A notifier that locks the mutex after a waiter checked its condition sees the waiter counted. A waiter
    /// that locks it later sees the change and does not wait.
    n_waiting: AtomicUsize,
}

impl Condvar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.n_waiting.fetch_add(1, Ordering::Relaxed);
        let woken = self.condvar.wait(guard);
        self.n_waiting.fetch_sub(1, Ordering::Relaxed);
        woken
    }

    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> WaitTimeout<'a, T> {
        self.n_waiting.fetch_add(1, Ordering::Relaxed);
        let woken = self.condvar.wait_timeout(guard, timeout);
        self.n_waiting.fetch_sub(1, Ordering::Relaxed);
        woken
    }

    pub fn notify_all(&self) {
        if self.n_waiting.load(Ordering::Relaxed) > 0 {
            self.condvar.notify_all();
        }
    }

    pub fn notify_one(&self) {
        if self.n_waiting.load(Ordering::Relaxed) > 0 {
            self.condvar.notify_one();
        }
    }
}
