//! Counts the buffers of upstream's pool that are in flight, because upstream cannot refill a buffer in flight.
//!
//! In its answer to the allocation query, the element requests additional buffers, as many as its in-flight queue can hold. If upstream's
//! pool still has fewer buffers, the queue shrinks. If the queue would then be too small for the inference requests, frames are copied.
//! Several elements may hold buffers of one pool. After a `tee`, several elements may hold the same buffer.
//!
//! A non-live upstream waits for a slot in the queue, and also for a free buffer in its pool. A camera does not wait: without a free
//! buffer, it loses frames that no statistics count. So downstream of a live source, frames are copied while all elements together hold all
//! buffers but one. Buffers that other elements hold, such as `queue` or a sink that keeps its last frame, cannot be counted.
//!
//! This module uses no stream and no pads.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};

use gstreamer as gst;

use super::buffer;
use crate::stages::{Scheduling, Stage};

/// Numbers of frames that may be in flight.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    /// Number of frames that can run simultaneously.
    n_at_once: usize,
    /// Number of frames that must be in flight so that no request is idle.
    wanted: usize,
    /// Number of frames that may be in flight.
    pub(super) capacity: usize,
}

impl Default for Slots {
    fn default() -> Self {
        Self { n_at_once: 1, wanted: 1, capacity: 1 }
    }
}

impl Slots {
    /// Returns the numbers of frames in flight that keep a stage busy.
    pub(super) fn of(stage: &Stage) -> Self {
        let n_at_once = stage.n_frames_at_once();
        let wanted = match stage.scheduling() {
            Scheduling::Throughput => {
                n_at_once // one running on each request, or a full batch
                    + 1    // one waiting for a request, or one that is complete but must leave after a frame that still runs
                    + 1 // one finished, on its way downstream
            }
            Scheduling::Latency => n_at_once,
        };
        Self { n_at_once, wanted, capacity: wanted }
    }
}

/// State of upstream's pool.
#[derive(Default)]
pub(super) struct Pool {
    share: Share,
    /// Whether the message that the pool is small was posted.
    is_reported: bool,
    /// Whether the message about copied frames was posted. Frames are copied if all elements together hold too many buffers.
    is_copying_reported: bool,
}

/// Number of buffers of a pool that this element may hold, and that it holds now.
#[derive(Default, Clone)]
pub(super) struct Share {
    /// Address of the pool, which identifies it; 0 = no pool.
    address: usize,
    /// Maximum number of buffers that all elements together may hold: one fewer than the pool has, so that upstream can fill one.
    /// `None` = the pool is unbounded.
    most: Option<usize>,
    /// Maximum number of buffers that this element may hold; further frames are copied. `None` = no limit except the queue's
    /// capacity.
    max_held: Option<usize>,
    /// Number of buffers held by this element.
    held: Arc<AtomicUsize>,
    out: Arc<Out>,
}

/// The reason why a buffer must be copied.
pub(super) enum Full {
    /// This element already holds its maximum number of buffers.
    Element,
    /// All elements together hold the maximum; the value is that maximum.
    AllElements(usize),
}

/// The buffers of a pool that elements of the process hold. Maps the address of each buffer to the number of elements that hold
/// it.
#[derive(Default)]
struct Out(Mutex<HashMap<usize, usize>>);

impl Out {
    /// Adds a holder of this buffer. Returns false if `most` buffers are already held and this buffer is not one of them.
    fn take(&self, buffer: usize, most: usize) -> bool {
        let mut out = self.0.lock().unwrap();
        if out.len() >= most && !out.contains_key(&buffer) {
            return false;
        }
        *out.entry(buffer).or_default() += 1;
        true
    }

    fn give_back(&self, buffer: usize) {
        let mut out = self.0.lock().unwrap();
        if let Entry::Occupied(mut held) = out.entry(buffer) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }
}

/// A buffer of upstream's pool that this element holds.
pub(super) struct Held {
    /// The element's counter of held buffers; `None` once the buffer was pushed downstream.
    here: Option<Arc<AtomicUsize>>,
    out: Arc<Out>,
    buffer: usize,
}

impl Held {
    /// Marks the buffer as pushed. The buffer still counts as held in the process until this value is dropped.
    pub(super) fn leave(&mut self) {
        if let Some(here) = self.here.take() {
            here.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.leave();
        self.out.give_back(self.buffer);
    }
}

impl Share {
    /// Holds a buffer, or returns the reason why it must be copied. If `leaves_one` is true, a buffer is refused if upstream would then
    /// have no free buffer.
    pub(super) fn take(&self, buffer: &gst::Buffer, leaves_one: bool) -> Result<Held, Full> {
        if self.max_held.is_some_and(|max_held| self.held.load(Ordering::Acquire) >= max_held) {
            return Err(Full::Element);
        }
        let most = self.most.filter(|_| leaves_one).unwrap_or(usize::MAX);
        if self.out.take(buffer.as_ptr() as usize, most) { Ok(self.held(buffer)) } else { Err(Full::AllElements(most)) }
    }

    /// Holds a buffer regardless of the limits.
    pub(super) fn take_always(&self, buffer: &gst::Buffer) -> Held {
        self.out.take(buffer.as_ptr() as usize, usize::MAX);
        self.held(buffer)
    }

    fn held(&self, buffer: &gst::Buffer) -> Held {
        self.held.fetch_add(1, Ordering::AcqRel);
        Held { here: Some(self.held.clone()), out: self.out.clone(), buffer: buffer.as_ptr() as usize }
    }

    /// Adapts the number of slots to a pool of `max_buffers` buffers, of which upstream is filling one; `None` = unbounded. Returns a
    /// message if the in-flight queue shrinks or frames must be copied.
    fn fit(&mut self, max_buffers: Option<usize>, slots: &mut Slots) -> Option<String> {
        let Slots { n_at_once, wanted, .. } = *slots;
        slots.capacity = wanted;
        let max_buffers = max_buffers?;
        let most = max_buffers.saturating_sub(1).max(1);
        self.most = Some(most);
        let has = format!("upstream's pool has {max_buffers} buffers, expected {wanted} for frames in flight");
        if most >= wanted {
            None
        } else if most >= n_at_once {
            slots.capacity = most;
            Some(format!("{has}: at most {most} frames will be in flight"))
        } else {
            self.max_held = Some(most);
            Some(format!("{has}: frames are copied while {most} are held, so that {n_at_once} can run simultaneously"))
        }
    }
}

impl Pool {
    /// Whether upstream's pool makes as many buffers as are needed.
    pub(super) fn is_unbounded(&self) -> bool {
        self.share.most.is_none()
    }

    /// Returns this element's share of the pool at `address`. If the previous buffer came from a different pool, also adapts the number of
    /// slots to the size of the new pool. In this case, returns the message to post on the bus, if there is a message.
    pub(super) fn share(&mut self, address: usize, buffer: &gst::BufferRef, slots: &mut Slots) -> (Share, Option<String>) {
        let mut report = None;
        if self.share.address != address {
            self.share = Share { address, out: out_of(address), ..Share::default() };
            report = self.share.fit(buffer::pool_size(buffer).filter(|&n| n > 0), slots).filter(|_| !self.is_reported);
            self.is_reported |= report.is_some();
        }
        (self.share.clone(), report)
    }

    /// Whether the message about copied frames must be posted. Returns true only once.
    pub(super) fn reports_copies(&mut self) -> bool {
        !std::mem::replace(&mut self.is_copying_reported, true)
    }
}

/// Returns the buffers of this pool that are held, shared by all elements of the process.
fn out_of(address: usize) -> Arc<Out> {
    static POOLS: LazyLock<Mutex<HashMap<usize, Weak<Out>>>> = LazyLock::new(Mutex::default);
    let mut pools = POOLS.lock().unwrap();
    pools.retain(|_, out| out.strong_count() > 0);
    let out = pools.get(&address).and_then(Weak::upgrade).unwrap_or_default();
    pools.insert(address, Arc::downgrade(&out));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_buffer_counts_once_until_last_holder_releases_it() {
        let out = Out::default();
        assert!(out.take(1, 2) && out.take(1, 2) && out.take(2, 2));
        assert!(!out.take(3, 2), "two buffers are held");
        assert!(out.take(1, 2), "buffer 1 is already held");
        out.give_back(1);
        out.give_back(1);
        assert!(!out.take(3, 2), "buffer 1 has one holder left");
        out.give_back(1);
        assert!(out.take(3, 2));
    }
}
