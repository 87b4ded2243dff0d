//! The types of `native.rs`, implemented for the model checker. At each operation of these types, the checker may switch to another thread.
//!
//! The clock does not advance until a check calls [`pass_time`]. The checker's condition variable has no timeout, so this file implements a
//! condition variable with timeouts. Each waiter is represented by a channel. The channel is added to the list of waiters in the same step
//! that releases the lock. A notification before that step does not reach the waiter, as with a real condition variable.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, LockResult, Mutex as Hidden, PoisonError, TryLockError, TryLockResult, Weak};
use std::time::Duration;

use shuttle::sync::mpsc::{Sender, channel};

pub use shuttle::sync::RwLock;
pub use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub use shuttle::thread::JoinHandle;
pub use shuttle::thread_local;

/// Returns a number that no other running thread has. It is never 0.
pub fn this_thread() -> u64 {
    usize::from(shuttle::current::me()) as u64 + 1
}

/// Threads sleep without pauses before: pauses would only add schedules.
pub const MAX_PAUSES: u32 = 0;

pub fn pause(_pause_idx: u32) {}

/// Starts a detached thread. The check fails if the thread never ends.
pub fn spawn(_name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = shuttle::thread::spawn(body);
    SPAWNED.with_borrow_mut(|spawned| spawned.push(ManuallyDrop::new(thread)));
    Ok(())
}

/// Starts a thread that can be joined.
pub fn spawn_joinable(_name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    Ok(shuttle::thread::spawn(body))
}

std::thread_local! {
    /// The threads that [`spawn`] started. Their handles are not dropped, because the threads of earlier schedules no longer exist, and
    /// dropping their handles would fail.
    static SPAWNED: RefCell<Vec<ManuallyDrop<shuttle::thread::JoinHandle<()>>>> = RefCell::default();
}

/// Clears the list of threads. A check must call this function at the start of each schedule that ends with [`join_spawned`].
pub fn forget_spawned() {
    SPAWNED.with_borrow_mut(Vec::clear);
}

/// Waits for all threads that [`spawn`] started since [`forget_spawned`].
pub fn join_spawned() {
    while let Some(thread) = SPAWNED.with_borrow_mut(Vec::pop) {
        ManuallyDrop::into_inner(thread).join().unwrap();
    }
}

/// A mutex with the interface of the standard library. It is public, because the executors in the checks use it.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    guard: shuttle::sync::MutexGuard<'a, T>,
    mutex: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        match self.0.lock() {
            Ok(guard) => Ok(MutexGuard { guard, mutex: self }),
            Err(poisoned) => Err(PoisonError::new(MutexGuard { guard: poisoned.into_inner(), mutex: self })),
        }
    }

    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        self.0.try_lock().map(|guard| MutexGuard { guard, mutex: self }).map_err(|_| TryLockError::WouldBlock)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A condition variable with the interface of the standard library. It has no spurious wake-ups, so a check notices when a notification is
/// missing.
#[derive(Debug)]
pub struct Condvar {
    waiters: Hidden<Waiters>,
    /// An atomic that is read before each notification, only so that the checker may switch threads there.
    point: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiters {
    next_id: u64,
    waiting: Vec<(u64, Sender<()>)>,
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl Condvar {
    pub fn new() -> Self {
        Self { waiters: Hidden::default(), point: AtomicBool::new(false) }
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.wait_on(guard, |_| {})
    }

    /// Waits for a notification. `entered` gets a sender that wakes this waiter; deadlines use it.
    fn wait_on<'a, T>(&self, guard: MutexGuard<'a, T>, entered: impl FnOnce(Sender<()>)) -> LockResult<MutexGuard<'a, T>> {
        let mutex = guard.mutex;
        let (wake, woken) = channel();
        drop(guard);
        // The checker switches threads only at operations of its own types, and `drop(guard)` switches only before it releases the lock. So
        // no other thread runs between the release of the lock and the addition to the list below.
        let id = {
            let mut waiters = self.waiters.lock().unwrap();
            waiters.next_id += 1;
            let id = waiters.next_id;
            waiters.waiting.push((id, wake.clone()));
            id
        };
        entered(wake);
        woken.recv().expect("the list of waiters holds the sender");
        self.waiters.lock().unwrap().waiting.retain(|(of, _)| *of != id);
        mutex.lock()
    }

    pub fn notify_all(&self) {
        self.point.load(Ordering::SeqCst);
        let waiting = std::mem::take(&mut self.waiters.lock().unwrap().waiting);
        for (_, wake) in waiting {
            // If the deadline of a waiter has passed, the waiter has dropped its receiver, so `send` may fail.
            let _heard = wake.send(());
        }
    }

    pub fn notify_one(&self) {
        self.point.load(Ordering::SeqCst);
        let first = {
            let mut waiters = self.waiters.lock().unwrap();
            if waiters.waiting.is_empty() { None } else { Some(waiters.waiting.remove(0)) }
        };
        if let Some((_, wake)) = first {
            let _heard = wake.send(());
        }
    }
}

/// The time at which a wait ends. It is measured on the clock that [`pass_time`] advances.
#[derive(Debug, Clone)]
pub struct Deadline(Arc<Timer>);

#[derive(Debug)]
struct Timer {
    at: Duration,
    waiter: Hidden<Option<Sender<()>>>,
}

#[derive(Default)]
struct Clock {
    now: Duration,
    timers: Vec<Weak<Timer>>,
}

std::thread_local! {
    /// The clock of the current check. The checker runs all threads of a check on one thread of the operating system.
    static CLOCK: RefCell<Clock> = RefCell::default();
}

impl Deadline {
    pub fn after(timeout: Duration) -> Option<Self> {
        CLOCK.with_borrow_mut(|clock| {
            let timer = Arc::new(Timer { at: clock.now.checked_add(timeout)?, waiter: Hidden::default() });
            clock.timers.retain(|timer| timer.strong_count() > 0);
            clock.timers.push(Arc::downgrade(&timer));
            Some(Self(timer))
        })
    }

    pub fn is_over(&self) -> bool {
        CLOCK.with_borrow(|clock| self.0.at <= clock.now)
    }

    pub fn wait<'a, T>(&self, condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let guard = condvar.wait_on(guard, |wake| {
            if self.is_over() {
                let _heard = wake.send(());
            } else {
                *self.0.waiter.lock().unwrap() = Some(wake);
            }
        });
        *self.0.waiter.lock().unwrap() = None;
        guard.unwrap()
    }
}

/// Advances the clock, and wakes the waiters whose deadlines have passed.
pub fn pass_time(time: Duration) {
    let over = CLOCK.with_borrow_mut(|clock| {
        clock.now += time;
        let over = clock.timers.iter().filter_map(Weak::upgrade).filter(|timer| timer.at <= clock.now);
        over.collect::<Vec<_>>()
    });
    for timer in over {
        let waiter = timer.waiter.lock().unwrap().take();
        if let Some(wake) = waiter {
            let _heard = wake.send(());
        }
    }
}
