//! The synchronization types of normal builds, based on the standard library.

use std::sync::{LockResult, WaitTimeoutResult};
use std::time::{Duration, Instant};

pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub use std::sync::{Mutex, MutexGuard, RwLock};
pub use std::thread::JoinHandle;
pub use std::thread_local;

/// Returns a number that no other running thread has. It is never 0.
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

/// Number of pauses before a thread sleeps on a [`Condvar`]: together some microseconds.
pub const MAX_PAUSES: u32 = 8;

/// Pauses the thread before it checks a condition again. Each pause is twice as long as the previous one. The thread keeps its core: after
/// `yield_now`, it could wait for a time slice of another process while its condition is already met.
pub fn pause(pause_idx: u32) {
    (0..1_u32 << pause_idx).for_each(|_| std::hint::spin_loop());
}

/// The time at which a wait ends.
#[derive(Debug, Clone)]
pub struct Deadline(Instant);

impl Deadline {
    /// Returns the deadline after `timeout`. Returns `None` if the system cannot represent that time; the wait then has no limit.
    pub fn after(timeout: Duration) -> Option<Self> {
        Instant::now().checked_add(timeout).map(Self)
    }

    /// Returns whether the deadline has passed.
    pub fn is_over(&self) -> bool {
        self.0 <= Instant::now()
    }

    /// Waits for a notification, at most until the deadline. May return earlier without a notification.
    pub fn wait<'a, T>(&self, condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let left = self.0.saturating_duration_since(Instant::now());
        condvar.wait_timeout(guard, left).unwrap().0
    }
}

type WaitTimeout<'a, T> = LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)>;

/// A condition variable whose notification makes no system call if no thread waits. This is common: most runs end while no thread waits for
/// them.
///
/// Before every notification, the notifier must change the condition under the mutex of the waiters.
#[derive(Debug, Default)]
pub struct Condvar {
    condvar: std::sync::Condvar,
    /// The number of waiting threads. A waiter increments it while it holds the mutex. If the waiter checked its condition before the
    /// notifier locked the mutex, the notifier sees the incremented number. If the waiter checks the condition afterwards, it sees the
    /// change and does not wait.
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
