//! The pool to which upstream's buffers go back: a frame that is held in a window is a buffer that upstream can't fill.
//!
//! The allocation query asks for as many buffers more as the window holds. Where the pool has fewer, the window shrinks; where it would
//! be too small for the requests then, frames are copied. Several elements may hold buffers of one pool. Where upstream waits for a place it
//! waits for its buffers as well; but a camera that finds none loses frames which nobody counts, so there frames are copied while all
//! elements together hold all buffers but one.
//!
//! Knows no stages.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};

use gstreamer as gst;

use super::buffer;
use super::infer::{Driver, Stream};
use super::policy::QueuePolicy;

/// What is known of upstream's pool.
#[derive(Default)]
pub(super) struct Pool {
    /// Tells it from others; 0 is none.
    address: usize,
    /// How many of its buffers may be out, so that upstream can fill one. `None`: it has as many as anybody wants.
    most: Option<usize>,
    /// How many of its buffers may be here; more are copied. `None`: all that the window holds.
    max_held: Option<usize>,
    /// How many are.
    held: Arc<AtomicUsize>,
    /// How many are in all elements of the process.
    held_by_all: Arc<AtomicUsize>,
    /// Whether it was said that it is small, and that frames are copied because others hold some.
    has_said: bool,
    has_said_of_others: bool,
}

/// One of the buffers of upstream's pool that are here.
pub(super) struct Held {
    here: Arc<AtomicUsize>,
    anywhere: Arc<AtomicUsize>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.here.fetch_sub(1, Ordering::AcqRel);
        self.anywhere.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Driver {
    /// The buffer, or a copy of it if upstream's pool would run dry.
    pub(super) fn hold(&self, element: &gst::Element, buffer: gst::Buffer, queue: QueuePolicy) -> (gst::Buffer, Option<Held>) {
        let address = buffer::pool_address(&buffer);
        if address == 0 {
            return (buffer, None);
        }
        let (most, max_held, here, anywhere, said) = {
            let mut stream = self.stream.lock().unwrap();
            let said = if stream.pool.address == address { None } else { self.meet_pool(address, &buffer, &mut stream) };
            let Pool { most, max_held, ref held, ref held_by_all, .. } = stream.pool;
            (most, max_held, held.clone(), held_by_all.clone(), said)
        };
        let tell = |said: String| {
            gst::element_info!(element, gst::ResourceError::Settings, ("{said}; give the source more buffers if it can have them"));
        };
        said.into_iter().for_each(tell);
        let is_full_here = max_held.is_some_and(|max_held| here.load(Ordering::Acquire) >= max_held);
        let limit = most.filter(|_| queue != QueuePolicy::Wait).unwrap_or(usize::MAX);
        let counted = |n: usize| (n < limit).then_some(n + 1);
        if is_full_here || anywhere.fetch_update(Ordering::AcqRel, Ordering::Acquire, counted).is_err() {
            if let Ok(copy) = buffer.copy_deep() {
                if !is_full_here && !std::mem::replace(&mut self.stream.lock().unwrap().pool.has_said_of_others, true) {
                    tell(format!("upstream's pool has {} buffers: frames are copied while roi elements hold {limit} of them", limit + 1));
                }
                self.counts.copy();
                return (copy, None);
            }
            gst::warning!(self.cat, obj = element, "no memory for a copy: the frame itself is held");
            anywhere.fetch_add(1, Ordering::AcqRel);
        }
        here.fetch_add(1, Ordering::AcqRel);
        (buffer, Some(Held { here, anywhere }))
    }

    /// The first buffer of another pool has come: adapts the window to it; what is to be said of that, if it is news.
    fn meet_pool(&self, address: usize, buffer: &gst::BufferRef, stream: &mut Stream) -> Option<String> {
        let Pool { has_said, has_said_of_others, .. } = stream.pool;
        let held_by_all = held_by_all(address);
        stream.pool = Pool { address, held_by_all, has_said, has_said_of_others, ..Pool::default() };
        let said = self.fit_into(buffer::pool_size(buffer).filter(|&n| n > 0), stream).filter(|_| !has_said);
        stream.pool.has_said |= said.is_some();
        said
    }

    /// Adapts the window to a pool that has so many buffers, one of which upstream is filling; says what it did if it matters.
    fn fit_into(&self, max_buffers: Option<usize>, stream: &mut Stream) -> Option<String> {
        let (wanted, n_at_once) = (stream.wanted, stream.n_at_once);
        stream.capacity = wanted;
        let Some(max_buffers) = max_buffers else {
            self.window.set_capacity(wanted);
            return None;
        };
        let most = max_buffers.saturating_sub(1).max(1);
        stream.pool.most = Some(most);
        let has = format!("upstream's pool has {max_buffers} buffers, and {wanted} frames in flight were wanted");
        if most >= wanted {
            self.window.set_capacity(wanted);
            None
        } else if most >= n_at_once {
            stream.capacity = most;
            self.window.set_capacity(most);
            Some(format!("{has}: there will be at most {most}"))
        } else {
            stream.pool.max_held = Some(most);
            self.window.set_capacity(wanted);
            Some(format!("{has}: frames are copied while {most} are here, so that {n_at_once} can run at once"))
        }
    }
}

/// How many buffers of a pool the elements of the process hold.
fn held_by_all(address: usize) -> Arc<AtomicUsize> {
    static POOLS: LazyLock<Mutex<HashMap<usize, Weak<AtomicUsize>>>> = LazyLock::new(Mutex::default);
    let mut pools = POOLS.lock().unwrap();
    pools.retain(|_, held| held.strong_count() > 0);
    let held = pools.get(&address).and_then(Weak::upgrade).unwrap_or_default();
    pools.insert(address, Arc::downgrade(&held));
    held
}
