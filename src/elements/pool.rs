//! The pool to which upstream's buffers go back: a frame in flight is a buffer that upstream can't fill.
//!
//! The allocation query asks for as many buffers more as the in-flight queue holds. Where the pool has fewer, the queue shrinks; where it would
//! be too small for the requests then, frames are copied. Several elements may hold buffers of one pool, and one buffer, behind a `tee`, may be
//! held by several. Where upstream waits for a slot it waits for its buffers as well; but a camera that finds none loses frames that are not
//! counted, so there frames are copied while all elements together hold all buffers but one. What others hold, such as a `queue` or a sink that
//! keeps its last frame, is not known here.
//!
//! Knows no stream and no pads.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};

use gstreamer as gst;

use super::buffer;
use crate::stages::{Scheduling, Stage};

/// How many frames may be in flight.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    /// Frames that can run at once.
    n_at_once: usize,
    /// Frames that are to be in flight so that no request is idle.
    wanted: usize,
    /// Frames that may be in flight.
    pub(super) capacity: usize,
}

impl Default for Slots {
    fn default() -> Self {
        Self { n_at_once: 1, wanted: 1, capacity: 1 }
    }
}

impl Slots {
    /// As many as a stage has use for.
    pub(super) fn of(stage: &Stage) -> Self {
        let n_at_once = stage.n_frames_at_once();
        let wanted = match stage.scheduling() {
            Scheduling::Throughput => {
                n_at_once // one running on each request, or as many as run in a call
                    + 1    // one waiting for a request; where upstream waits for a slot, one finished behind one that runs
                    + 1 // one finished, on its way downstream
            }
            Scheduling::Latency => n_at_once,
        };
        Self { n_at_once, wanted, capacity: wanted }
    }
}

/// What is known of upstream's pool.
#[derive(Default)]
pub(super) struct Pool {
    share: Share,
    /// Whether it was reported that the pool is small, and that frames are copied because other elements hold some of its buffers.
    is_reported: bool,
    are_others_reported: bool,
}

/// What this element may hold of a pool.
#[derive(Default, Clone)]
pub(super) struct Share {
    /// Tells the pool from others; 0 is none.
    address: usize,
    /// How many of its buffers may be out, so that upstream can fill one. `None`: it has as many as anybody wants.
    most: Option<usize>,
    /// How many of its buffers may be here; more are copied. `None`: all that the queue holds.
    max_held: Option<usize>,
    /// How many are.
    held: Arc<AtomicUsize>,
    out: Arc<Out>,
}

/// Why a buffer is to be copied.
pub(super) enum Full {
    /// This element holds as many as it may.
    Here,
    /// All elements together hold so many.
    Together(usize),
}

/// The buffers of a pool that elements of the process hold, by address, and how many hold each.
#[derive(Default)]
struct Out(Mutex<HashMap<usize, usize>>);

impl Out {
    /// One more holds this buffer; false if it is not out yet, and `most` are.
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

/// One of the buffers of upstream's pool that are here.
pub(super) struct Held {
    /// Until it is on its way downstream.
    here: Option<Arc<AtomicUsize>>,
    out: Arc<Out>,
    buffer: usize,
}

impl Held {
    /// It is on its way downstream: out, until another element holds it, and not here.
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
    /// Holds a buffer. `leaves_one`: upstream must always find one that it can fill.
    pub(super) fn take(&self, buffer: &gst::Buffer, leaves_one: bool) -> Result<Held, Full> {
        if self.max_held.is_some_and(|max_held| self.held.load(Ordering::Acquire) >= max_held) {
            return Err(Full::Here);
        }
        let most = self.most.filter(|_| leaves_one).unwrap_or(usize::MAX);
        if self.out.take(buffer.as_ptr() as usize, most) { Ok(self.held(buffer)) } else { Err(Full::Together(most)) }
    }

    /// Holds a buffer, however many are held.
    pub(super) fn take_anyway(&self, buffer: &gst::Buffer) -> Held {
        self.out.take(buffer.as_ptr() as usize, usize::MAX);
        self.held(buffer)
    }

    fn held(&self, buffer: &gst::Buffer) -> Held {
        self.held.fetch_add(1, Ordering::AcqRel);
        Held { here: Some(self.held.clone()), out: self.out.clone(), buffer: buffer.as_ptr() as usize }
    }

    /// Adapts the slots to a pool that has so many buffers, one of which upstream is filling; says what it did if it matters.
    fn fit(&mut self, max_buffers: Option<usize>, slots: &mut Slots) -> Option<String> {
        let Slots { n_at_once, wanted, .. } = *slots;
        slots.capacity = wanted;
        let max_buffers = max_buffers?;
        let most = max_buffers.saturating_sub(1).max(1);
        self.most = Some(most);
        let has = format!("upstream's pool has {max_buffers} buffers, and {wanted} frames in flight were wanted");
        if most >= wanted {
            None
        } else if most >= n_at_once {
            slots.capacity = most;
            Some(format!("{has}: there will be at most {most}"))
        } else {
            self.max_held = Some(most);
            Some(format!("{has}: frames are copied while {most} are here, so that {n_at_once} can run at once"))
        }
    }
}

impl Pool {
    /// What may be held of the pool of a buffer, whose address this is. If it is another pool than before the slots are adapted to it; the
    /// text to report comes with it.
    pub(super) fn share(&mut self, address: usize, buffer: &gst::BufferRef, slots: &mut Slots) -> (Share, Option<String>) {
        let mut report = None;
        if self.share.address != address {
            self.share = Share { address, out: out_of(address), ..Share::default() };
            report = self.share.fit(buffer::pool_size(buffer).filter(|&n| n > 0), slots).filter(|_| !self.is_reported);
            self.is_reported |= report.is_some();
        }
        (self.share.clone(), report)
    }

    /// Whether it is to be reported that frames are copied because others hold buffers: once.
    pub(super) fn reports_others(&mut self) -> bool {
        !std::mem::replace(&mut self.are_others_reported, true)
    }
}

/// The buffers of this pool that are out, for all elements of the process.
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
    fn a_buffer_that_several_hold_is_out_once_until_the_last_lets_go() {
        let out = Out::default();
        assert!(out.take(1, 2) && out.take(1, 2) && out.take(2, 2));
        assert!(!out.take(3, 2), "two are out");
        assert!(out.take(1, 2), "it is out anyway");
        out.give_back(1);
        out.give_back(1);
        assert!(!out.take(3, 2), "somebody still holds the first");
        out.give_back(1);
        assert!(out.take(3, 2));
    }
}
