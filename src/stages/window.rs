//! Frames in flight: bounded, and their results leave in arrival order.
//!
//! One thread admits (and blocks while the window is full: that is the backpressure), any thread completes, one thread takes.
//! Items that need no work, such as events, go in complete and keep their place. Flushing empties the window and makes admission
//! and taking return at once; a completion that comes after it finds nothing and is dropped.

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
    entries: VecDeque<Entry<T>>,
    /// Frames among the entries.
    n_frames: usize,
    capacity: usize,
    /// Of the first entry.
    first: u64,
    flushing: bool,
    /// What `take` gave out and whose `taken` has not come yet.
    n_out: usize,
}

#[derive(Debug)]
enum Entry<T> {
    /// Admitted, and not complete yet.
    InFlight,
    /// Admitted, and complete.
    Frame(T),
    /// Pushed.
    Event(T),
}

impl<T> State<T> {
    fn pop_front(&mut self) -> Option<Entry<T>> {
        let entry = self.entries.pop_front()?;
        self.first += 1;
        self.n_frames -= usize::from(!matches!(entry, Entry::Event(_)));
        Some(entry)
    }
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
        state.entries.push_back(Entry::InFlight);
        state.n_frames += 1;
        Ok(Ticket(state.first + state.entries.len() as u64 - 1))
    }

    /// The frame of this place is done.
    pub fn complete(&self, ticket: Ticket, item: T) {
        let mut state = self.state.lock().unwrap();
        let place = ticket.0.checked_sub(state.first).and_then(|place| usize::try_from(place).ok());
        let late = match place.and_then(|place| state.entries.get_mut(place)) {
            Some(entry @ Entry::InFlight) => {
                *entry = Entry::Frame(item);
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
        state.entries.push_back(Entry::Event(item));
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// The oldest item, as soon as it is complete. Say [`Window::taken`] when it is dealt with.
    ///
    /// # Errors
    /// [`Flushing`] if it is flushing, or begins to.
    pub fn take(&self) -> Result<T, Flushing> {
        let state = self.state.lock().unwrap();
        let waits = |state: &mut State<T>| !state.flushing && matches!(state.entries.front(), None | Some(Entry::InFlight));
        let mut state = self.changed.wait_while(state, waits).unwrap();
        if state.flushing {
            return Err(Flushing);
        }
        let Some(Entry::Frame(item) | Entry::Event(item)) = state.pop_front() else { unreachable!("waited for a complete one") };
        state.n_out += 1;
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
        let busy = |state: &mut State<T>| !state.flushing && (!state.entries.is_empty() || state.n_out > 0);
        let state = self.changed.wait_while(state, busy).unwrap();
        if state.flushing { Err(Flushing) } else { Ok(()) }
    }

    /// Empties the window, and lets nothing in or out until [`Window::resume`]. Returns the complete items that were in it,
    /// oldest first; frames in flight are forgotten.
    pub fn flush(&self) -> Vec<T> {
        let mut state = self.state.lock().unwrap();
        state.flushing = true;
        state.n_out = 0;
        let forgotten = Self::pop_until(&mut state, |_| false);
        drop(state);
        self.changed.notify_all();
        forgotten
    }

    /// Removes what lies before the oldest event that `is_last` wants, or everything if there is none, and lets the window go
    /// on. Returns the complete items that were removed, oldest first, and whether there was such an event.
    pub fn skip_to(&self, is_last: impl Fn(&T) -> bool) -> (Vec<T>, bool) {
        let mut state = self.state.lock().unwrap();
        let skipped = Self::pop_until(&mut state, is_last);
        let found = !state.entries.is_empty();
        drop(state);
        self.changed.notify_all();
        (skipped, found)
    }

    fn pop_until(state: &mut State<T>, is_last: impl Fn(&T) -> bool) -> Vec<T> {
        let mut popped = Vec::new();
        while let Some(front) = state.entries.front() {
            if matches!(front, Entry::Event(event) if is_last(event)) {
                break;
            }
            if let Some(Entry::Frame(item) | Entry::Event(item)) = state.pop_front() {
                popped.push(item);
            }
        }
        popped
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

    #[test]
    fn items_leave_in_arrival_order_whatever_ends_first() {
        let window = window(3);
        let (first, second) = (window.admit().unwrap(), window.admit().unwrap());
        window.push("event").unwrap();
        let third = window.admit().unwrap();
        window.complete(third, "frame 3");
        window.complete(second, "frame 2");
        window.complete(first, "frame 1");
        let left: Vec<_> = (0..4).map(|_| window.take().unwrap()).collect();
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
        assert_eq!(window.take(), Ok("frame 1"));
        blocked.join().unwrap().unwrap();
        assert_eq!(window.take(), Ok("frame 2"));
    }

    #[test]
    fn flushing_wakes_everybody_and_a_late_completion_finds_nothing() {
        let window = window(1);
        let ticket = window.admit().unwrap();
        let other = Arc::clone(&window);
        let blocked = std::thread::spawn(move || (other.admit(), other.take()));
        window.flush();
        assert_eq!(blocked.join().unwrap(), (Err(Flushing), Err(Flushing)));
        window.resume();
        let next = window.admit().unwrap();
        window.complete(ticket, "frame of before");
        window.complete(next, "frame 2");
        assert_eq!(window.take(), Ok("frame 2"));
    }

    #[test]
    fn flushing_gives_back_what_was_complete() {
        let window = window(3);
        let (first, _in_flight) = (window.admit().unwrap(), window.admit().unwrap());
        window.push("event").unwrap();
        window.complete(first, "frame 1");
        assert_eq!(window.flush(), ["frame 1", "event"]);
        assert_eq!(window.n_frames(), 0);
    }

    #[test]
    fn skipping_stops_at_the_event_and_later_frames_keep_their_places() {
        let window = window(4);
        let (first, second) = (window.admit().unwrap(), window.admit().unwrap());
        window.push("caps").unwrap();
        window.push("segment").unwrap();
        let third = window.admit().unwrap();
        window.complete(second, "frame 2");
        assert_eq!(window.skip_to(|event| *event == "segment"), (vec!["frame 2", "caps"], true));
        window.complete(first, "frame of before");
        window.complete(third, "frame 3");
        assert_eq!((window.take(), window.take()), (Ok("segment"), Ok("frame 3")));
        let last = window.admit().unwrap();
        assert_eq!(window.skip_to(|_| true), (vec![], false));
        window.complete(last, "frame 4");
        assert_eq!(window.n_frames(), 0);
        window.push("event").unwrap();
        assert_eq!(window.take(), Ok("event"));
    }

    #[test]
    fn drain_waits_for_what_was_taken_to_be_dealt_with() {
        let window = window(2);
        let ticket = window.admit().unwrap();
        let other = Arc::clone(&window);
        let drained = std::thread::spawn(move || other.drain());
        window.complete(ticket, "frame 1");
        window.take().unwrap();
        assert!(!drained.is_finished());
        window.taken();
        drained.join().unwrap().unwrap();
    }
}
