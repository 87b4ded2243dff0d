//! Frames in flight: bounded, and their results leave in arrival order.
//!
//! One thread admits (and blocks while the window is full: that is the backpressure), any thread completes, one thread takes.
//! Items that need no work, such as events, go in complete and keep their place. Flushing forgets everything and makes admission and taking
//! return at once; a completion that comes after it finds nothing and is dropped.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};

/// Complete items that may lie in the window beside the frames; more make their admission wait too.
const MAX_COMPLETE: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Window<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// `None` is a frame in flight.
    entries: VecDeque<Option<T>>,
    n_in_flight: usize,
    /// Admitted, and not yet taken.
    n_frames: usize,
    capacity: usize,
    /// Of the first entry.
    first: u64,
    flushing: bool,
    /// What `take` gave out and whose `taken` has not come yet.
    n_out: usize,
}

/// The place of a frame in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// The window is flushing: nothing goes in or out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flushing;

impl<T> Window<T> {
    /// A window for `capacity` frames, flushing until [`Window::resume`].
    pub fn new(capacity: usize) -> Self {
        let state = State {
            entries: VecDeque::with_capacity(capacity + MAX_COMPLETE),
            n_in_flight: 0,
            n_frames: 0,
            capacity: capacity.max(1),
            first: 0,
            flushing: true,
            n_out: 0,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A place for one more frame; blocks while the window is full.
    ///
    /// # Errors
    /// [`Flushing`] if it is flushing, or begins to.
    pub fn admit(&self) -> Result<Ticket, Flushing> {
        let state = self.state.lock().unwrap();
        let mut state = self.changed.wait_while(state, |state| !state.flushing && state.n_frames >= state.capacity).unwrap();
        if state.flushing {
            return Err(Flushing);
        }
        state.entries.push_back(None);
        state.n_in_flight += 1;
        state.n_frames += 1;
        Ok(Ticket(state.first + state.entries.len() as u64 - 1))
    }

    /// The frame of this place is done.
    pub fn complete(&self, ticket: Ticket, item: T) {
        let mut state = self.state.lock().unwrap();
        let place = ticket.0.checked_sub(state.first).and_then(|place| usize::try_from(place).ok());
        let late = match place.and_then(|place| state.entries.get_mut(place)) {
            Some(entry @ None) => {
                *entry = Some(item);
                state.n_in_flight -= 1;
                None
            }
            _ => Some(item),
        };
        drop(state);
        self.changed.notify_all();
        drop(late);
    }

    /// Something that needs no work, behind what is there.
    ///
    /// # Errors
    /// [`Flushing`] if it is flushing, or begins to.
    pub fn push(&self, item: T) -> Result<(), Flushing> {
        let state = self.state.lock().unwrap();
        let full = |state: &mut State<T>| !state.flushing && state.entries.len() >= state.capacity + MAX_COMPLETE;
        let mut state = self.changed.wait_while(state, full).unwrap();
        if state.flushing {
            return Err(Flushing);
        }
        state.entries.push_back(Some(item));
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// The oldest item, as soon as it is complete; `is_frame` tells whether it was admitted as a frame. Say
    /// [`Window::taken`] when it is dealt with.
    ///
    /// # Errors
    /// [`Flushing`] if it is flushing, or begins to.
    pub fn take(&self, is_frame: impl Fn(&T) -> bool) -> Result<T, Flushing> {
        let state = self.state.lock().unwrap();
        let mut state = self.changed.wait_while(state, |state| !state.flushing && !matches!(state.entries.front(), Some(Some(_)))).unwrap();
        if state.flushing {
            return Err(Flushing);
        }
        let item = state.entries.pop_front().flatten().expect("waited for it");
        state.first += 1;
        state.n_out += 1;
        if is_frame(&item) {
            state.n_frames -= 1;
        }
        drop(state);
        self.changed.notify_all();
        Ok(item)
    }

    /// What [`Window::take`] gave was dealt with.
    pub fn taken(&self) {
        let mut state = self.state.lock().unwrap();
        state.n_out = state.n_out.saturating_sub(1);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until everything that went in has been dealt with.
    ///
    /// # Errors
    /// [`Flushing`] if it is flushing, or begins to.
    pub fn drain(&self) -> Result<(), Flushing> {
        let state = self.state.lock().unwrap();
        let busy = |state: &mut State<T>| !state.flushing && !(state.entries.is_empty() && state.n_out == 0);
        let state = self.changed.wait_while(state, busy).unwrap();
        if state.flushing { Err(Flushing) } else { Ok(()) }
    }

    /// Forgets everything, and lets nothing in or out until [`Window::resume`].
    pub fn flush(&self) {
        let mut state = self.state.lock().unwrap();
        state.flushing = true;
        state.first += state.entries.len() as u64;
        state.n_in_flight = 0;
        state.n_frames = 0;
        state.n_out = 0;
        let forgotten: Vec<Option<T>> = state.entries.drain(..).collect();
        drop(state);
        self.changed.notify_all();
        drop(forgotten);
    }

    /// Opens the window.
    pub fn resume(&self) {
        self.state.lock().unwrap().flushing = false;
        self.changed.notify_all();
    }

    /// Changes how many frames have room.
    pub fn set_capacity(&self, capacity: usize) {
        self.state.lock().unwrap().capacity = capacity.max(1);
        self.changed.notify_all();
    }

    /// Frames that are in the window.
    pub fn n_frames(&self) -> usize {
        self.state.lock().unwrap().n_frames
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn window(capacity: usize) -> Arc<Window<&'static str>> {
        let window = Arc::new(Window::new(capacity));
        window.resume();
        window
    }

    const FRAME: fn(&&'static str) -> bool = |item| item.starts_with("frame");

    #[test]
    fn items_leave_in_arrival_order_whatever_ends_first() {
        let window = window(3);
        let (first, second) = (window.admit().unwrap(), window.admit().unwrap());
        window.push("event").unwrap();
        let third = window.admit().unwrap();
        window.complete(third, "frame 3");
        window.complete(second, "frame 2");
        window.complete(first, "frame 1");
        let left: Vec<_> = (0..4).map(|_| window.take(FRAME).unwrap()).collect();
        assert_eq!(left, ["frame 1", "frame 2", "event", "frame 3"]);
        assert_eq!(window.n_frames(), 0);
    }

    #[test]
    fn a_full_window_blocks_until_its_oldest_frame_is_taken() {
        let window = window(1);
        let first = window.admit().unwrap();
        let other = { Arc::clone(&window) };
        let blocked = std::thread::spawn(move || other.admit().map(|ticket| other.complete(ticket, "frame 2")));
        window.complete(first, "frame 1");
        assert_eq!(window.take(FRAME), Ok("frame 1"));
        blocked.join().unwrap().unwrap();
        assert_eq!(window.take(FRAME), Ok("frame 2"));
    }

    #[test]
    fn flushing_wakes_everybody_and_a_late_completion_finds_nothing() {
        let window = window(1);
        let ticket = window.admit().unwrap();
        let other = Arc::clone(&window);
        let blocked = std::thread::spawn(move || (other.admit(), other.take(FRAME)));
        window.flush();
        assert_eq!(blocked.join().unwrap(), (Err(Flushing), Err(Flushing)));
        window.resume();
        let next = window.admit().unwrap();
        window.complete(ticket, "frame of before");
        window.complete(next, "frame 2");
        assert_eq!(window.take(FRAME), Ok("frame 2"));
    }

    #[test]
    fn drain_waits_for_what_was_taken_to_be_dealt_with() {
        let window = window(2);
        let ticket = window.admit().unwrap();
        let other = Arc::clone(&window);
        let drained = std::thread::spawn(move || other.drain());
        window.complete(ticket, "frame 1");
        window.take(FRAME).unwrap();
        assert!(!drained.is_finished());
        window.taken();
        drained.join().unwrap().unwrap();
    }
}
