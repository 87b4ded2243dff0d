//! The types of `native.rs` for the model checker: each operation is a point at which another thread may continue.
//!
//! Time stands still until a check calls [`pass_time`]. The checker's condition variable has no timeout, so this file implements one: a
//! waiter is a channel that is added to the list in the step that releases the lock. Earlier notifications are lost, as they must be.

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

/// A number that is unique among running threads; never 0.
pub fn this_thread() -> u64 {
    usize::from(shuttle::current::me()) as u64 + 1
}

/// Starts a detached thread. The check fails if it does not end.
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
    /// The threads of [`spawn`]. Never dropped: threads of earlier schedules do not exist any more.
    static SPAWNED: RefCell<Vec<ManuallyDrop<shuttle::thread::JoinHandle<()>>>> = RefCell::default();
}

/// Called at the start of a schedule that ends with [`join_spawned`].
pub fn forget_spawned() {
    SPAWNED.with_borrow_mut(Vec::clear);
}

/// Waits for all threads that [`spawn`] started since [`forget_spawned`].
pub fn join_spawned() {
    while let Some(thread) = SPAWNED.with_borrow_mut(Vec::pop) {
        ManuallyDrop::into_inner(thread).join().unwrap();
    }
}

/// Like the standard library's; public for the executors of the checks.
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

/// Like the standard library's, without spurious wake-ups, so that a missing notification is found.
#[derive(Debug)]
pub struct Condvar {
    waiters: Hidden<Waiters>,
    /// Accessed to let another thread continue before a notification.
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

    /// `entered` also receives the sender that wakes this waiter.
    fn wait_on<'a, T>(&self, guard: MutexGuard<'a, T>, entered: impl FnOnce(Sender<()>)) -> LockResult<MutexGuard<'a, T>> {
        let mutex = guard.mutex;
        let (wake, woken) = channel();
        drop(guard);
        // The checker switches threads only at operations of its own types, so none runs between the release and the registration.
        let id = {
            let mut waiters = self.waiters.lock().unwrap();
            waiters.next_id += 1;
            let id = waiters.next_id;
            waiters.waiting.push((id, wake.clone()));
            id
        };
        entered(wake);
        woken.recv().expect("the list holds the other end");
        self.waiters.lock().unwrap().waiting.retain(|(of, _)| *of != id);
        mutex.lock()
    }

    pub fn notify_all(&self) {
        self.point.load(Ordering::SeqCst);
        let waiting = std::mem::take(&mut self.waiters.lock().unwrap().waiting);
        for (_, wake) in waiting {
            // A waiter whose deadline has passed has dropped its receiver.
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

/// The point in time at which a wait ends, on the clock of [`pass_time`].
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
    /// All threads of a check run on one thread of the system.
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

/// Advances the clock and wakes the waiters whose deadline has passed.
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
