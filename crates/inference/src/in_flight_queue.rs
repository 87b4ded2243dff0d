//! In-flight queue: holds a bounded number of frames and releases them in arrival order.
//!
//! One thread admits frames and blocks while the queue is full, which is the backpressure for upstream. Any thread may mark a frame as
//! complete. One thread takes complete frames.
//!
//! Events and skipped frames are complete when they enter, and keep their position in the order. Skipped frames need no slot, because they
//! wait only until earlier frames have left. Their number has a separate bound. Flushing empties the queue and makes blocked calls return.
//! Completing a frame that is no longer in the queue has no effect.
//!
//! Closures that read or change items run under the queue's lock. These closures must be short: they only read, move and assign values.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// Maximum number of events in the queue. [`InFlightQueue::push`] blocks while the queue holds this number.
const MAX_EVENTS: usize = 64;
/// Maximum number of skipped frames in the queue.
const MAX_SKIPPED: usize = 32;

/// The in-flight queue; see the module documentation.
#[derive(Debug)]
pub struct InFlightQueue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    entries: VecDeque<Entry<T>>,
    /// Number of entries of kind [`Kind::InFlight`]. The next three fields count the other kinds.
    n_in_flight: usize,
    n_complete: usize,
    n_skipped: usize,
    n_events: usize,
    capacity: usize,
    /// Second limit for the number of admitted frames, in addition to `capacity`. `max_in_flight` limits those frames whose
    /// results are not complete.
    max_frames: usize,
    max_in_flight: usize,
    /// Number of slots in addition to `capacity`.
    n_more: usize,
    /// Ticket of the next entry.
    next_ticket: Ticket,
    flushing: bool,
    /// Whether `take` must return once without an item.
    wake_requested: bool,
    /// Number of items that `take` has returned and for which the caller has not called `finish_taken`.
    n_taken: usize,
}

#[derive(Debug)]
struct Entry<T> {
    ticket: Ticket,
    kind: Kind,
    item: T,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The frame was admitted, and its results are not complete.
    InFlight,
    /// The frame was admitted, and its results are complete.
    Frame,
    /// A frame that leaves without inference.
    Skipped,
    /// An event.
    Event,
}

impl<T> State<T> {
    fn count(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::InFlight => &mut self.n_in_flight,
            Kind::Frame => &mut self.n_complete,
            Kind::Skipped => &mut self.n_skipped,
            Kind::Event => &mut self.n_events,
        }
    }

    fn push_back(&mut self, kind: Kind, item: T) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket = Ticket(ticket.0 + 1);
        self.entries.push_back(Entry { ticket, kind, item });
        *self.count(kind) += 1;
        ticket
    }

    fn remove(&mut self, slot_idx: usize) -> Option<T> {
        let Entry { kind, item, .. } = self.entries.remove(slot_idx)?;
        *self.count(kind) -= 1;
        Some(item)
    }

    /// Returns the index of the entry with this ticket; `None` if there is no such entry, or if its frame is no longer in flight.
    fn in_flight(&self, ticket: Ticket) -> Option<usize> {
        let slot_idx = self.entries.binary_search_by_key(&ticket, |entry| entry.ticket).ok()?;
        (self.entries[slot_idx].kind == Kind::InFlight).then_some(slot_idx)
    }

    fn capacity(&self) -> usize {
        (self.capacity + self.n_more).min(self.max_frames)
    }

    fn is_full(&self) -> bool {
        self.n_in_flight >= self.max_in_flight || self.n_in_flight + self.n_complete >= self.capacity()
    }
}

/// Identifies a frame in the queue. Each ticket is unique, and later frames have greater tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// The queue is flushing: it accepts and returns no items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flushing;

/// The reason why a frame was not admitted, together with the frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<T> {
    /// The queue is full.
    Full(T),
    /// The queue is flushing.
    Flushing(T),
}

/// Return value of [`InFlightQueue::take`].
#[derive(Debug, PartialEq, Eq)]
pub enum Taken<T> {
    /// A complete item.
    Complete(T),
    /// A frame whose deadline passed before it was complete. If its inference completes later, this has no effect on the queue.
    Late(T),
    /// No item is returned, because `wake_at` was reached or [`InFlightQueue::wake`] was called.
    WokenUp,
}

impl<T> InFlightQueue<T> {
    /// Creates a queue for `capacity` frames. The new queue is in the flushing state until [`InFlightQueue::resume`] is called.
    pub fn new(capacity: usize) -> Self {
        let state = State {
            entries: VecDeque::with_capacity(capacity + MAX_EVENTS),
            n_in_flight: 0,
            n_complete: 0,
            n_skipped: 0,
            n_events: 0,
            capacity: capacity.max(1),
            max_frames: usize::MAX,
            max_in_flight: usize::MAX,
            n_more: 0,
            next_ticket: Ticket(0),
            flushing: true,
            wake_requested: false,
            n_taken: 0,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Adds a frame in flight. Blocks while the queue is full.
    ///
    /// # Errors
    /// Returns the frame if the queue is flushing or starts flushing.
    pub fn admit(&self, item: T) -> Result<Ticket, T> {
        let mut state = self.wait_while(|state| !state.flushing && state.is_full());
        if state.flushing { Err(item) } else { Ok(state.push_back(Kind::InFlight, item)) }
    }

    /// Adds a frame in flight without blocking.
    ///
    /// # Errors
    /// Returns the frame if the queue is full or flushing.
    pub fn try_admit(&self, item: T) -> Result<Ticket, Refused<T>> {
        let mut state = self.state.lock().unwrap();
        match () {
            () if state.flushing => Err(Refused::Flushing(item)),
            () if state.is_full() => Err(Refused::Full(item)),
            () => Ok(state.push_back(Kind::InFlight, item)),
        }
    }

    /// Adds a frame in flight. Blocks while the queue is full, until `until` at the latest.
    ///
    /// # Errors
    /// Returns the frame if the queue is still full at `until`, or is flushing.
    pub fn admit_by(&self, item: T, until: Instant) -> Result<Ticket, Refused<T>> {
        let mut state = self.state.lock().unwrap();
        loop {
            if state.flushing {
                return Err(Refused::Flushing(item));
            }
            if !state.is_full() {
                return Ok(state.push_back(Kind::InFlight, item));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Refused::Full(item));
            }
            state = self.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    /// Adds a frame that leaves without inference. Blocks while the queue holds the maximum number of skipped frames.
    ///
    /// # Errors
    /// Returns the frame if the queue is flushing or starts flushing.
    pub fn push_skipped(&self, item: T) -> Result<(), T> {
        let mut state = self.wait_while(|state| !state.flushing && state.n_skipped >= MAX_SKIPPED);
        if state.flushing {
            return Err(item);
        }
        state.push_back(Kind::Skipped, item);
        self.unlock_and_notify(state);
        Ok(())
    }

    /// Blocks while the queue holds the maximum number of skipped frames.
    ///
    /// # Errors
    /// Returns [`Flushing`] if the queue is flushing or starts flushing.
    pub fn wait_to_skip(&self) -> Result<(), Flushing> {
        let state = self.wait_while(|state| !state.flushing && state.n_skipped >= MAX_SKIPPED);
        if state.flushing { Err(Flushing) } else { Ok(()) }
    }

    /// Adds an event. Blocks while the queue holds the maximum number of events.
    ///
    /// # Errors
    /// Returns [`Flushing`] if the queue is flushing or starts flushing.
    pub fn push(&self, item: T) -> Result<(), Flushing> {
        let mut state = self.wait_while(|state| !state.flushing && state.n_events >= MAX_EVENTS);
        if state.flushing {
            return Err(Flushing);
        }
        state.push_back(Kind::Event, item);
        self.unlock_and_notify(state);
        Ok(())
    }

    /// Marks a frame as complete and applies `update` to it. Returns false if the frame is no longer in the queue.
    pub fn complete(&self, ticket: Ticket, update: impl FnOnce(&mut T)) -> bool {
        self.set_kind_and_update(ticket, Kind::Frame, update)
    }

    /// Turns a frame in flight into a skipped frame and frees its slot. Returns false if the frame is no longer in the queue.
    pub fn skip(&self, ticket: Ticket, update: impl FnOnce(&mut T)) -> bool {
        self.set_kind_and_update(ticket, Kind::Skipped, update)
    }

    fn set_kind_and_update(&self, ticket: Ticket, kind: Kind, update: impl FnOnce(&mut T)) -> bool {
        let mut state = self.state.lock().unwrap();
        let Some(slot_idx) = state.in_flight(ticket) else { return false };
        update(&mut state.entries[slot_idx].item);
        state.set_kind(slot_idx, kind);
        self.unlock_and_notify(state);
        true
    }

    /// Applies `update` to a frame, which stays in flight. Returns false if the frame is no longer in the queue.
    pub fn update(&self, ticket: Ticket, update: impl FnOnce(&mut T)) -> bool {
        self.set_kind_and_update(ticket, Kind::InFlight, update)
    }

    /// Removes a frame in flight. Returns `None` if the frame is no longer in the queue. `count` runs under the queue's lock, before other
    /// threads see the removal.
    pub fn discard(&self, ticket: Ticket, count: impl FnOnce()) -> Option<T> {
        let mut state = self.state.lock().unwrap();
        let slot_idx = state.in_flight(ticket)?;
        let item = state.remove(slot_idx);
        count();
        self.unlock_and_notify(state);
        item
    }

    /// Whether `is_it` returns true for a frame in flight. Visits the frames from the oldest to the newest, and stops at the first frame
    /// for which `is_it` returns true.
    pub fn find_in_flight(&self, is_it: impl FnMut(&T) -> bool) -> bool {
        let state = self.state.lock().unwrap();
        state.entries.iter().filter(|entry| entry.kind == Kind::InFlight).map(|entry| &entry.item).any(is_it)
    }

    /// Removes the oldest item. Blocks until the oldest item is complete or its `deadline` has passed.
    ///
    /// Returns [`Taken::WokenUp`] without an item when the time `wake_at` is reached, and after a call of [`InFlightQueue::wake`]. The
    /// caller calls [`InFlightQueue::finish_taken`] when it has processed an item.
    ///
    /// # Errors
    /// Returns [`Flushing`] if the queue is flushing or starts flushing.
    pub fn take(&self, deadline: impl Fn(&T) -> Option<Instant>, wake_at: Option<Instant>) -> Result<Taken<T>, Flushing> {
        let mut state = self.state.lock().unwrap();
        loop {
            if state.flushing {
                return Err(Flushing);
            }
            if std::mem::take(&mut state.wake_requested) {
                return Ok(Taken::WokenUp);
            }
            let (is_complete, ends_at) = match state.entries.front() {
                Some(Entry { kind: Kind::InFlight, item, .. }) => (false, deadline(item)),
                Some(_) => (true, None),
                None => (false, None),
            };
            let now = Instant::now();
            let is_over = ends_at.is_some_and(|ends_at| now >= ends_at);
            if is_complete || is_over {
                let item = state.remove(0).expect("the queue has a front item");
                state.n_taken += 1;
                self.unlock_and_notify(state);
                return Ok(if is_complete { Taken::Complete(item) } else { Taken::Late(item) });
            }
            if wake_at.is_some_and(|wake_at| now >= wake_at) {
                return Ok(Taken::WokenUp);
            }
            state = match [ends_at, wake_at].into_iter().flatten().min() {
                Some(until) => self.changed.wait_timeout(state, until - now).unwrap().0,
                None => self.changed.wait(state).unwrap(),
            };
        }
    }

    /// Reports that the caller has processed an item that [`InFlightQueue::take`] returned.
    pub fn finish_taken(&self) {
        let mut state = self.state.lock().unwrap();
        state.n_taken = state.n_taken.saturating_sub(1);
        self.unlock_and_notify(state);
    }

    /// Makes [`InFlightQueue::take`] check the deadline of the oldest frame. Call this after admitting a frame that has a deadline.
    ///
    /// `admit` does not call this method, because without deadlines each frame would wake up a thread needlessly.
    pub fn recheck_deadlines(&self) {
        self.changed.notify_all();
    }

    /// Makes [`InFlightQueue::take`] return [`Taken::WokenUp`] once.
    pub fn wake(&self) {
        let mut state = self.state.lock().unwrap();
        state.wake_requested = true;
        self.unlock_and_notify(state);
    }

    /// Blocks until the queue is empty and all taken items were processed.
    ///
    /// # Errors
    /// Returns [`Flushing`] if the queue is flushing or starts flushing.
    pub fn drain(&self) -> Result<(), Flushing> {
        let state = self.wait_while(|state| !state.flushing && (!state.entries.is_empty() || state.n_taken > 0));
        if state.flushing { Err(Flushing) } else { Ok(()) }
    }

    /// Empties the queue. Until [`InFlightQueue::resume`] is called, the queue accepts and returns no items. Returns the removed items,
    /// oldest first.
    pub fn flush(&self) -> Vec<T> {
        let mut state = self.state.lock().unwrap();
        state.flushing = true;
        state.n_taken = 0;
        let forgotten = state.pop_until(|_| false);
        self.unlock_and_notify(state);
        forgotten
    }

    /// Removes the items before the oldest event for which `is_last` returns true, or all items if there is no such event.
    ///
    /// Returns the removed items, oldest first. The second value is true if there was such an event. This event is then the oldest item in
    /// the queue.
    pub fn skip_to(&self, is_last: impl Fn(&T) -> bool) -> (Vec<T>, bool) {
        let mut state = self.state.lock().unwrap();
        let skipped = state.pop_until(is_last);
        let found = !state.entries.is_empty();
        self.unlock_and_notify(state);
        (skipped, found)
    }

    /// Ends flushing: the queue accepts items again.
    pub fn resume(&self) {
        let mut state = self.state.lock().unwrap();
        state.flushing = false;
        self.unlock_and_notify(state);
    }

    /// Sets the number of slots. 0 counts as 1.
    pub fn set_capacity(&self, capacity: usize) {
        let mut state = self.state.lock().unwrap();
        state.capacity = capacity.max(1);
        self.unlock_and_notify(state);
    }

    /// Sets two limits in addition to the capacity. `max_frames` limits the number of admitted frames, and `max_in_flight` limits
    /// those that are not complete. 0 counts as 1. `n_more` is a number of further slots.
    ///
    /// If the queue holds more frames than a new limit allows, these frames keep their slots. Returns whether a limit changed.
    pub fn set_limits(&self, max_frames: usize, max_in_flight: usize, n_more: usize) -> bool {
        let mut state = self.state.lock().unwrap();
        let limits = (max_frames.max(1), max_in_flight.max(1), n_more);
        let changed = (state.max_frames, state.max_in_flight, state.n_more) != limits;
        (state.max_frames, state.max_in_flight, state.n_more) = limits;
        if changed {
            self.unlock_and_notify(state);
        }
        changed
    }

    /// Returns the current number of slots.
    pub fn capacity(&self) -> usize {
        self.state.lock().unwrap().capacity()
    }

    /// Whether the next frame is not admitted at once.
    pub fn is_full(&self) -> bool {
        self.state.lock().unwrap().is_full()
    }

    /// Returns the number of frames in the queue, including skipped frames.
    pub fn n_frames(&self) -> usize {
        let state = self.state.lock().unwrap();
        state.n_in_flight + state.n_complete + state.n_skipped
    }

    fn wait_while(&self, mut busy: impl FnMut(&State<T>) -> bool) -> MutexGuard<'_, State<T>> {
        self.changed.wait_while(self.state.lock().unwrap(), |state| busy(state)).unwrap()
    }

    fn unlock_and_notify(&self, state: MutexGuard<'_, State<T>>) {
        drop(state);
        self.changed.notify_all();
    }
}

impl<T> State<T> {
    fn set_kind(&mut self, slot_idx: usize, kind: Kind) {
        let earlier = std::mem::replace(&mut self.entries[slot_idx].kind, kind);
        *self.count(earlier) -= 1;
        *self.count(kind) += 1;
    }

    fn pop_until(&mut self, is_last: impl Fn(&T) -> bool) -> Vec<T> {
        let mut popped = Vec::new();
        while let Some(front) = self.entries.front() {
            if front.kind == Kind::Event && is_last(&front.item) {
                break;
            }
            popped.extend(self.remove(0));
        }
        popped
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn open_queue(capacity: usize) -> Arc<InFlightQueue<&'static str>> {
        let queue = Arc::new(InFlightQueue::new(capacity));
        queue.resume();
        queue
    }

    fn take(queue: &InFlightQueue<&'static str>) -> Result<&'static str, Flushing> {
        match queue.take(|_| None, None)? {
            Taken::Complete(item) => Ok(item),
            other => panic!("{other:?}"),
        }
    }

    fn complete(queue: &InFlightQueue<&'static str>, ticket: Ticket, as_what: &'static str) -> bool {
        queue.complete(ticket, |item| *item = as_what)
    }

    #[test]
    fn admit_by_ends_with_a_slot_or_at_its_deadline() {
        let queue = open_queue(1);
        let soon = || Instant::now() + Duration::from_millis(5);
        let far = || Instant::now() + Duration::from_secs(3600);
        let first = queue.admit_by("a", soon()).unwrap();
        assert_eq!(queue.admit_by("b", soon()), Err(Refused::Full("b")));
        let waiting = std::thread::spawn({
            let queue = queue.clone();
            move || queue.admit_by("c", far())
        });
        assert!(queue.complete(first, |_| {}));
        assert_eq!(take(&queue), Ok("a"));
        assert!(waiting.join().unwrap().is_ok(), "gets the slot of the first frame");
        let waiting = std::thread::spawn({
            let queue = queue.clone();
            move || queue.admit_by("d", far())
        });
        queue.flush();
        assert_eq!(waiting.join().unwrap(), Err(Refused::Flushing("d")));
    }

    #[test]
    fn items_leave_in_arrival_order() {
        let queue = open_queue(3);
        let (first, second) = (queue.admit("1").unwrap(), queue.admit("2").unwrap());
        queue.push("event").unwrap();
        queue.push_skipped("skipped").unwrap();
        let third = queue.admit("3").unwrap();
        complete(&queue, third, "frame 3");
        complete(&queue, second, "frame 2");
        complete(&queue, first, "frame 1");
        let left: Vec<_> = (0..5).map(|_| take(&queue).unwrap()).collect();
        assert_eq!(left, ["frame 1", "frame 2", "event", "skipped", "frame 3"]);
        assert_eq!(queue.n_frames(), 0);
    }

    #[test]
    fn full_queue_blocks_until_its_oldest_frame_is_taken() {
        let queue = open_queue(1);
        let first = queue.admit("1").unwrap();
        assert_eq!(queue.try_admit("no room"), Err(Refused::Full("no room")));
        let other = { Arc::clone(&queue) };
        let blocked = std::thread::spawn(move || other.admit("2").map(|ticket| complete(&other, ticket, "frame 2")));
        complete(&queue, first, "frame 1");
        assert_eq!(take(&queue), Ok("frame 1"));
        blocked.join().unwrap().unwrap();
        assert_eq!(take(&queue), Ok("frame 2"));
    }

    #[test]
    fn skipped_and_discarded_frames_free_slots_and_keep_order() {
        let queue = open_queue(2);
        let (first, second) = (queue.admit("1").unwrap(), queue.admit("2").unwrap());
        assert!(queue.find_in_flight(|item| *item == "2") && !queue.find_in_flight(|item| *item == "3"));
        assert!(queue.skip(second, |item| *item = "2, without work"));
        let third = queue.admit("3").unwrap();
        let mut is_counted = false;
        let count = || is_counted = queue.state.try_lock().is_err();
        assert_eq!((queue.discard(third, count), is_counted), (Some("3"), true), "counted under the lock");
        let fourth = queue.try_admit("4").unwrap();
        assert!(!complete(&queue, third, "too late"), "the frame was discarded");
        complete(&queue, fourth, "4");
        complete(&queue, first, "1");
        assert_eq!([take(&queue), take(&queue), take(&queue)], [Ok("1"), Ok("2, without work"), Ok("4")]);
        (0..3).for_each(|_| queue.finish_taken());
        queue.drain().unwrap();
    }

    #[test]
    fn skipped_frames_have_a_separate_bound() {
        let queue = open_queue(1);
        let first = queue.admit("first").unwrap();
        (0..MAX_SKIPPED).for_each(|_| queue.push_skipped("skipped").unwrap());
        let other = Arc::clone(&queue);
        let blocked = std::thread::spawn(move || other.push_skipped("one more"));
        complete(&queue, first, "first");
        assert_eq!([take(&queue), take(&queue)], [Ok("first"), Ok("skipped")]);
        blocked.join().unwrap().unwrap();
        assert_eq!(queue.n_frames(), MAX_SKIPPED);
        (1..MAX_SKIPPED).for_each(|_| assert_eq!(take(&queue), Ok("skipped")));
        assert_eq!(take(&queue), Ok("one more"));
    }

    #[test]
    fn limit_bounds_admission_and_admits_at_least_one() {
        let queue = open_queue(3);
        assert!(queue.set_limits(2, usize::MAX, 0));
        assert!(!queue.set_limits(2, usize::MAX, 0), "unchanged");
        let first = queue.try_admit("first").unwrap();
        queue.try_admit("second").unwrap();
        assert_eq!(queue.try_admit("third"), Err(Refused::Full("third")));
        assert!(queue.set_limits(0, usize::MAX, 0));
        assert_eq!(queue.n_frames(), 2, "admitted frames keep their slots");
        queue.complete(first, |_| ());
        assert_eq!(take(&queue), Ok("first"));
        assert_eq!(queue.try_admit("third"), Err(Refused::Full("third")), "one frame is in the queue");
        assert!(queue.set_limits(usize::MAX, usize::MAX, 0));
        queue.try_admit("third").unwrap();
        queue.try_admit("fourth").unwrap();
        assert_eq!(queue.try_admit("fifth"), Err(Refused::Full("fifth")), "the capacity is unchanged");
    }

    #[test]
    fn limit_of_frames_in_flight_ignores_complete_frames() {
        let queue = open_queue(3);
        assert!(queue.set_limits(usize::MAX, 1, 0));
        let admit_and_complete = |item| {
            let ticket = queue.try_admit(item)?;
            assert_eq!(queue.try_admit("in flight"), Err(Refused::Full("in flight")), "next to {item}");
            complete(&queue, ticket, item);
            Ok(())
        };
        for item in ["1", "2", "3"] {
            assert_eq!(admit_and_complete(item), Ok(()));
        }
        assert_eq!(admit_and_complete("more than fit"), Err(Refused::Full("more than fit")));
        queue.set_limits(usize::MAX, 0, 0);
        take(&queue).unwrap();
        queue.try_admit("always one").unwrap();
    }

    #[test]
    fn further_slots_are_added_to_the_capacity() {
        let queue = open_queue(1);
        queue.try_admit("first").unwrap();
        assert_eq!(queue.try_admit("second"), Err(Refused::Full("second")));
        assert!(queue.is_full() && queue.set_limits(usize::MAX, usize::MAX, 1) && !queue.is_full());
        queue.try_admit("second").unwrap();
        assert!(queue.set_limits(usize::MAX, usize::MAX, 0));
        assert_eq!((queue.capacity(), queue.n_frames()), (1, 2), "frames keep their slots");
    }

    #[test]
    fn discarded_frames_leave_no_entries_behind() {
        let queue = open_queue(2);
        let stuck = queue.admit("stuck").unwrap();
        for _ in 0..1000 {
            let ticket = queue.try_admit("displaced").unwrap();
            assert_eq!(queue.discard(ticket, || ()), Some("displaced"));
            assert_eq!(queue.discard(ticket, || ()), None, "already discarded");
        }
        assert_eq!(queue.state.lock().unwrap().entries.len(), 1);
        assert!(complete(&queue, stuck, "done"));
        assert_eq!(take(&queue), Ok("done"));
    }

    #[test]
    fn frame_leaves_incomplete_after_its_deadline() {
        let queue = open_queue(2);
        let begin = Instant::now();
        let deadline = move |item: &&'static str| (*item == "1").then_some(begin + Duration::from_millis(5));
        let other = Arc::clone(&queue);
        let taking = std::thread::spawn(move || other.take(deadline, None));
        // The thread `taking` may have called `take` while the queue was empty. It then waits without a deadline.
        let (first, second) = (queue.admit("1").unwrap(), queue.admit("2").unwrap());
        queue.recheck_deadlines();
        assert_eq!(taking.join().unwrap(), Ok(Taken::Late("1")));
        assert!(begin.elapsed() >= Duration::from_millis(5));
        assert!(!complete(&queue, first, "too late"));
        assert_eq!(queue.take(deadline, Some(Instant::now())), Ok(Taken::WokenUp));
        queue.wake();
        assert_eq!(queue.take(deadline, None), Ok(Taken::WokenUp));
        complete(&queue, second, "2");
        assert_eq!(queue.take(|_| Some(begin), None), Ok(Taken::Complete("2")), "a complete frame is never late");
    }

    #[test]
    fn flush_wakes_all_threads_and_late_completion_has_no_effect() {
        let queue = open_queue(1);
        let ticket = queue.admit("1").unwrap();
        let other = Arc::clone(&queue);
        let blocked = std::thread::spawn(move || (other.admit("2"), take(&other)));
        queue.flush();
        assert_eq!(blocked.join().unwrap(), (Err("2"), Err(Flushing)));
        queue.resume();
        let next = queue.admit("2").unwrap();
        assert!(!complete(&queue, ticket, "frame of before"));
        complete(&queue, next, "frame 2");
        assert_eq!(take(&queue), Ok("frame 2"));
    }

    #[test]
    fn flush_returns_the_removed_items() {
        let queue = open_queue(3);
        let (first, _in_flight) = (queue.admit("1").unwrap(), queue.admit("2").unwrap());
        queue.push("event").unwrap();
        complete(&queue, first, "frame 1");
        assert_eq!(queue.flush(), ["frame 1", "2", "event"]);
        assert_eq!(queue.n_frames(), 0);
    }

    #[test]
    fn skip_to_stops_at_the_event_and_later_tickets_stay_valid() {
        let queue = open_queue(4);
        let (first, second) = (queue.admit("1").unwrap(), queue.admit("2").unwrap());
        queue.push("caps").unwrap();
        queue.push("segment").unwrap();
        let third = queue.admit("3").unwrap();
        complete(&queue, second, "frame 2");
        assert_eq!(queue.skip_to(|event| *event == "segment"), (vec!["1", "frame 2", "caps"], true));
        complete(&queue, first, "frame of before");
        complete(&queue, third, "frame 3");
        assert_eq!((take(&queue), take(&queue)), (Ok("segment"), Ok("frame 3")));
        let last = queue.admit("4").unwrap();
        assert_eq!(queue.skip_to(|_| true), (vec!["4"], false));
        complete(&queue, last, "frame 4");
        assert_eq!(queue.n_frames(), 0);
        queue.push("event").unwrap();
        assert_eq!(take(&queue), Ok("event"));
    }

    #[test]
    fn drain_waits_until_taken_items_are_processed() {
        let queue = open_queue(2);
        let ticket = queue.admit("1").unwrap();
        let other = Arc::clone(&queue);
        let drained = std::thread::spawn(move || other.drain());
        complete(&queue, ticket, "frame 1");
        take(&queue).unwrap();
        assert!(!drained.is_finished());
        queue.finish_taken();
        drained.join().unwrap().unwrap();
    }
}
