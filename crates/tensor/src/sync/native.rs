//! The synchronization types of normal builds, based on the standard library.

use std::sync::{LockResult, WaitTimeoutResult};
use std::time::{Duration, Instant};

pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub use std::sync::{Mutex, MutexGuard, RwLock};
pub use std::thread::JoinHandle;
pub use std::thread_local;

/// A number that no other running thread has. Never 0.
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

/// The time at which a wait ends.
#[derive(Debug, Clone)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline after `timeout`. `None` if the system cannot represent that time, so that the wait has no limit.
    pub fn after(timeout: Duration) -> Option<Self> {
        Instant::now().checked_add(timeout).map(Self)
    }

    /// Whether the deadline has passed.
    pub fn is_over(&self) -> bool {
        self.0 <= Instant::now()
    }

    /// Waits for a notification or the deadline. May wake up spuriously.
    pub fn wait<'a, T>(&self, condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let left = self.0.saturating_duration_since(Instant::now());
        condvar.wait_timeout(guard, left).unwrap().0
    }
}

type WaitTimeout<'a, T> = LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)>;

/// A condition variable that makes no system call if no thread waits. Most runs end without a waiting thread.
///
/// Before every notification, the condition must be changed under the mutex of the waiters.
#[derive(Debug, Default)]
pub struct Condvar {
    condvar: std::sync::Condvar,
    /// The number of waiting threads. The number is incremented only under the mutex. If a waiter checks its condition before the notifier
    /// locks the mutex, the notifier sees the incremented number. If the waiter checks afterwards, it sees the changed condition and does
    /// not wait.
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
