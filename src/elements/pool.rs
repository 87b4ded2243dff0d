//! The pool to which upstream's buffers go back: a frame that is held in a window is a buffer that upstream can't fill.
//!
//! The allocation query asks for as many buffers more as the window holds. Where the pool has fewer, the window shrinks; where it would
//! be too small for the requests then, frames are copied. Several elements may hold buffers of one pool, and one buffer, behind a `tee`, may be
//! held by several. Where upstream waits for a place it waits for its buffers as well; but a camera that finds none loses frames which nobody
//! counts, so there frames are copied while all elements together hold all buffers but one. What others hold, such as a `queue` or a sink that
//! keeps its last frame, is not known here.
//!
//! Knows no stages.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
    out: Arc<Out>,
    /// Whether it was said that it is small, and that frames are copied because others hold some.
    has_said: bool,
    has_said_of_others: bool,
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
    /// It is on its way downstream: out, until somebody else holds it, and not here.
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

impl Driver {
    /// The buffer, or a copy of it if upstream's pool would run dry.
    pub(super) fn hold(&self, element: &gst::Element, buffer: gst::Buffer, queue: QueuePolicy) -> (gst::Buffer, Option<Held>) {
        let address = buffer::pool_address(&buffer);
        if address == 0 {
            return (buffer, None);
        }
        let (most, max_held, here, out, said) = {
            let mut stream = self.stream.lock().unwrap();
            let said = if stream.pool.address == address { None } else { self.meet_pool(address, &buffer, &mut stream) };
            let Pool { most, max_held, ref held, ref out, .. } = stream.pool;
            (most, max_held, held.clone(), out.clone(), said)
        };
        let tell = |said: String| {
            gst::element_info!(element, gst::ResourceError::Settings, ("{said}; give the source more buffers if it can have them"));
        };
        said.into_iter().for_each(tell);
        let of_buffer = buffer.as_ptr() as usize;
        let most = most.filter(|_| queue != QueuePolicy::Wait).unwrap_or(usize::MAX);
        let is_full_here = max_held.is_some_and(|max_held| here.load(Ordering::Acquire) >= max_held);
        if is_full_here || !out.take(of_buffer, most) {
            if let Ok(copy) = buffer.copy_deep() {
                if !is_full_here && !std::mem::replace(&mut self.stream.lock().unwrap().pool.has_said_of_others, true) {
                    tell(format!("upstream's pool is small: frames are copied while inference elements hold {most} of its buffers"));
                }
                self.counts.copy();
                return (copy, None);
            }
            gst::warning!(self.cat, obj = element, "no memory for a copy: the frame itself is held");
            out.take(of_buffer, usize::MAX);
        }
        here.fetch_add(1, Ordering::AcqRel);
        (buffer, Some(Held { here: Some(here), out, buffer: of_buffer }))
    }

    /// The first buffer of another pool has come: adapts the window to it; what is to be said of that, if it is news.
    fn meet_pool(&self, address: usize, buffer: &gst::BufferRef, stream: &mut Stream) -> Option<String> {
        let Pool { has_said, has_said_of_others, .. } = stream.pool;
        stream.pool = Pool { address, out: out_of(address), has_said, has_said_of_others, ..Pool::default() };
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
