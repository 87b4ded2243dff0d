//! A queue of events between the thread of a coordinator's client and the thread that polls.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::coordinator::{Event, Waker};

/// A queue of events. Clones are the same queue.
#[derive(Debug, Clone, Default)]
pub struct Mailbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Event>,
    is_woken: bool,
}

impl Mailbox {
    /// Adds an event and wakes up the polling thread.
    pub fn push(&self, event: Event) {
        self.lock().events.push_back(event);
        self.0.changed.notify_all();
    }

    /// Returns the oldest event. Waits for it for at most `wait`; returns early if a waker was called.
    pub fn poll(&self, wait: Duration) -> Option<Event> {
        let end = Instant::now() + wait;
        let mut queue = self.lock();
        loop {
            if let Some(event) = queue.events.pop_front() {
                return Some(event);
            }
            let left = end.saturating_duration_since(Instant::now());
            if std::mem::take(&mut queue.is_woken) || left.is_zero() {
                return None;
            }
            queue = self.0.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns a handle that ends a waiting [`Mailbox::poll`].
    pub fn waker(&self) -> Waker {
        let mailbox = self.clone();
        Waker::new(move || {
            mailbox.lock().is_woken = true;
            mailbox.0.changed.notify_all();
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
