//! Frames in flight: bounded, and their results leave in arrival order.
//!
//! One thread admits (and blocks while the window is full: that is the backpressure), any thread completes, one thread takes.
//! Items that need no work, such as events, go in complete and keep their place. So do frames that are to pass without work;
//! they have a bound of their own, for they wait only for those before them. Flushing empties the window and makes admission and
//! taking return at once; a completion that comes after it finds nothing.
//!
//! The closures that look at items or change them run under the window's lock: they only read, move and assign.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// Events that may lie in the window beside the frames; more make their admission wait too.
const MAX_EVENTS: usize = 64;
/// Frames without work that may wait for those before them.
const MAX_PASSING: usize = 32;

/// See the module.
#[derive(Debug)]
pub struct Window<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    entries: VecDeque<Entry<T>>,
    /// How many of the entries are of each kind.
    n_in_flight: usize,
    n_complete: usize,
    n_passing: usize,
    n_events: usize,
    capacity: usize,
    /// No more than so many, whatever the capacity; and of those in flight.
    most: usize,
    most_in_flight: usize,
    /// Of the entry that comes next.
    next: Ticket,
    flushing: bool,
    /// Whoever takes is to look up.
    woken: bool,
    /// What `take` gave out and whose `taken` has not come yet.
    n_out: usize,
}

#[derive(Debug)]
struct Entry<T> {
    ticket: Ticket,
    kind: Kind,
    item: T,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Admitted, and not complete yet.
    InFlight,
    /// Admitted, and complete.
    Frame,
    /// A frame that passes without work.
    Passing,
    /// Something else.
    Event,
}

impl<T> State<T> {
    fn count(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::InFlight => &mut self.n_in_flight,
            Kind::Frame => &mut self.n_complete,
            Kind::Passing => &mut self.n_passing,
            Kind::Event => &mut self.n_events,
        }
    }

    fn push_back(&mut self, kind: Kind, item: T) -> Ticket {
        let ticket = self.next;
        self.next = Ticket(ticket.0 + 1);
        self.entries.push_back(Entry { ticket, kind, item });
        *self.count(kind) += 1;
        ticket
    }

    fn remove(&mut self, place: usize) -> Option<T> {
        let Entry { kind, item, .. } = self.entries.remove(place)?;
        *self.count(kind) -= 1;
        Some(item)
    }

    /// The entry of a frame that is still in flight.
    fn in_flight(&self, ticket: Ticket) -> Option<usize> {
        let place = self.entries.binary_search_by_key(&ticket, |entry| entry.ticket).ok()?;
        (self.entries[place].kind == Kind::InFlight).then_some(place)
    }

    fn capacity(&self) -> usize {
        self.capacity.min(self.most)
    }

    fn is_full(&self) -> bool {
        self.n_in_flight >= self.most_in_flight || self.n_in_flight + self.n_complete >= self.capacity()
    }
}

/// The place of a frame in the window. No two are alike, and later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// The window is flushing: nothing goes in or out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flushing;

/// Why a frame was not let in; with the frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<T> {
    /// There is no place.
    Full(T),
    /// The window is flushing.
    Flushing(T),
}

/// What came out of the window.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken<T> {
    /// A complete item.
    Complete(T),
    /// A frame whose time was over before it was complete; what completes it later finds nothing.
    Late(T),
    /// Nothing: it was time to look up.
    Nothing,
}

impl<T> Window<T> {
    /// A window for `capacity` frames, flushing until [`Window::resume`].
    pub fn new(capacity: usize) -> Self {
        let state = State {
            entries: VecDeque::with_capacity(capacity + MAX_EVENTS),
            n_in_flight: 0,
            n_complete: 0,
            n_passing: 0,
            n_events: 0,
            capacity: capacity.max(1),
            most: usize::MAX,
            most_in_flight: usize::MAX,
            next: Ticket(0),
            flushing: true,
            woken: false,
            n_out: 0,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A place for one more frame; blocks while the window is full.
    ///
    /// # Errors
    /// The frame, if the window is flushing, or begins to.
    pub fn admit(&self, item: T) -> Result<Ticket, T> {
        let mut state = self.wait_while(|state| !state.flushing && state.is_full());
        if state.flushing { Err(item) } else { Ok(state.push_back(Kind::InFlight, item)) }
    }

    /// A place for one more frame, if there is one now.
    ///
    /// # Errors
    /// The frame, if there is none, or the window is flushing.
    pub fn try_admit(&self, item: T) -> Result<Ticket, Refused<T>> {
        let mut state = self.state.lock().unwrap();
        match () {
            () if state.flushing => Err(Refused::Flushing(item)),
            () if state.is_full() => Err(Refused::Full(item)),
            () => Ok(state.push_back(Kind::InFlight, item)),
        }
    }

    /// As [`Window::admit`], but waits for a slot no longer than until `until`.
    ///
    /// # Errors
    /// The frame, if there is no slot then, or the window is flushing.
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

    /// A frame that passes without work, behind what is there; blocks while too many of these wait.
    ///
    /// # Errors
    /// The frame, if the window is flushing, or begins to.
    pub fn pass(&self, item: T) -> Result<(), T> {
        let mut state = self.wait_while(|state| !state.flushing && state.n_passing >= MAX_PASSING);
        if state.flushing {
            return Err(item);
        }
        state.push_back(Kind::Passing, item);
        self.tell(state);
        Ok(())
    }

    /// Waits until there is room among those that pass without work.
    ///
    /// # Errors
    /// [`Flushing`] if it is flushing, or begins to.
    pub fn wait_to_pass(&self) -> Result<(), Flushing> {
        let state = self.wait_while(|state| !state.flushing && state.n_passing >= MAX_PASSING);
        if state.flushing { Err(Flushing) } else { Ok(()) }
    }

    /// Something else that needs no work, behind what is there.
    ///
    /// # Errors
    /// [`Flushing`] if it is flushing, or begins to.
    pub fn push(&self, item: T) -> Result<(), Flushing> {
        let mut state = self.wait_while(|state| !state.flushing && state.n_events >= MAX_EVENTS);
        if state.flushing {
            return Err(Flushing);
        }
        state.push_back(Kind::Event, item);
        self.tell(state);
        Ok(())
    }

    /// The frame of this place is done; `update` makes it so. False if it is not there any more.
    pub fn complete(&self, ticket: Ticket, update: impl FnOnce(&mut T)) -> bool {
        self.settle(ticket, Kind::Frame, update)
    }

    /// The frame of this place passes without work: it makes room for another. False if it is not there any more.
    pub fn let_pass(&self, ticket: Ticket, update: impl FnOnce(&mut T)) -> bool {
        self.settle(ticket, Kind::Passing, update)
    }

    fn settle(&self, ticket: Ticket, kind: Kind, update: impl FnOnce(&mut T)) -> bool {
        let mut state = self.state.lock().unwrap();
        let Some(place) = state.in_flight(ticket) else { return false };
        update(&mut state.entries[place].item);
        state.turn(place, kind);
        self.tell(state);
        true
    }

    /// Changes the frame of this place, which stays in flight. False if it is not there any more.
    pub fn update(&self, ticket: Ticket, update: impl FnOnce(&mut T)) -> bool {
        self.settle(ticket, Kind::InFlight, update)
    }

    /// Takes the frame of this place out, in flight as it is. `None` if it is not there any more. `count` runs before anybody can find
    /// the window without it.
    pub fn discard(&self, ticket: Ticket, count: impl FnOnce()) -> Option<T> {
        let mut state = self.state.lock().unwrap();
        let place = state.in_flight(ticket)?;
        let item = state.remove(place);
        count();
        self.tell(state);
        item
    }

    /// Looks at the frames in flight, oldest first, until `is_it` says so of one; whether it did.
    pub fn find_in_flight(&self, is_it: impl FnMut(&T) -> bool) -> bool {
        let state = self.state.lock().unwrap();
        state.entries.iter().filter(|entry| entry.kind == Kind::InFlight).map(|entry| &entry.item).any(is_it)
    }

    /// The oldest item, as soon as it is complete, or as soon as the time that `deadline` gives it is over. Nothing at `wake_at`,
    /// and after [`Window::wake`]. Say [`Window::taken`] when an item is dealt with.
    ///
    /// # Errors
    /// [`Flushing`] if it is flushing, or begins to.
    pub fn take(&self, deadline: impl Fn(&T) -> Option<Instant>, wake_at: Option<Instant>) -> Result<Taken<T>, Flushing> {
        let mut state = self.state.lock().unwrap();
        loop {
            if state.flushing {
                return Err(Flushing);
            }
            if std::mem::take(&mut state.woken) {
                return Ok(Taken::Nothing);
            }
            let (is_complete, ends_at) = match state.entries.front() {
                Some(Entry { kind: Kind::InFlight, item, .. }) => (false, deadline(item)),
                Some(_) => (true, None),
                None => (false, None),
            };
            let now = Instant::now();
            let is_over = ends_at.is_some_and(|ends_at| now >= ends_at);
            if is_complete || is_over {
                let item = state.remove(0).expect("there is a front");
                state.n_out += 1;
                self.tell(state);
                return Ok(if is_complete { Taken::Complete(item) } else { Taken::Late(item) });
            }
            if wake_at.is_some_and(|wake_at| now >= wake_at) {
                return Ok(Taken::Nothing);
            }
            state = match [ends_at, wake_at].into_iter().flatten().min() {
                Some(until) => self.changed.wait_timeout(state, until - now).unwrap().0,
                None => self.changed.wait(state).unwrap(),
            };
        }
    }

    /// What [`Window::take`] gave was dealt with.
    pub fn taken(&self) {
        let mut state = self.state.lock().unwrap();
        state.n_out = state.n_out.saturating_sub(1);
        self.tell(state);
    }

    /// Makes [`Window::take`] look at the deadline of the oldest frame: for who has just admitted one that has a deadline. (Not done by
    /// `admit`: where there are no deadlines it would wake a thread for each frame that has nothing to do yet.)
    pub fn look_at_deadlines(&self) {
        self.changed.notify_all();
    }

    /// Makes [`Window::take`] return without an item, once.
    pub fn wake(&self) {
        let mut state = self.state.lock().unwrap();
        state.woken = true;
        self.tell(state);
    }

    /// Waits until everything that went in has been dealt with.
    ///
    /// # Errors
    /// [`Flushing`] if it is flushing, or begins to.
    pub fn drain(&self) -> Result<(), Flushing> {
        let state = self.wait_while(|state| !state.flushing && (!state.entries.is_empty() || state.n_out > 0));
        if state.flushing { Err(Flushing) } else { Ok(()) }
    }

    /// Empties the window, and lets nothing in or out until [`Window::resume`]. Returns what was in it, oldest first.
    pub fn flush(&self) -> Vec<T> {
        let mut state = self.state.lock().unwrap();
        state.flushing = true;
        state.n_out = 0;
        let forgotten = state.pop_until(|_| false);
        self.tell(state);
        forgotten
    }

    /// Removes what lies before the oldest event that `is_last` wants, or everything if there is none, and lets the window go
    /// on. Returns what was removed, oldest first, and whether there was such an event.
    pub fn skip_to(&self, is_last: impl Fn(&T) -> bool) -> (Vec<T>, bool) {
        let mut state = self.state.lock().unwrap();
        let skipped = state.pop_until(is_last);
        let found = !state.entries.is_empty();
        self.tell(state);
        (skipped, found)
    }

    /// Opens the window.
    pub fn resume(&self) {
        let mut state = self.state.lock().unwrap();
        state.flushing = false;
        self.tell(state);
    }

    /// Changes how many frames have room.
    pub fn set_capacity(&self, capacity: usize) {
        let mut state = self.state.lock().unwrap();
        state.capacity = capacity.max(1);
        self.tell(state);
    }

    /// Gives no more than so many places to frames, whatever the capacity, and no more than so many to frames in flight, but always one;
    /// whether that is news. Frames that have a place keep it.
    pub fn limit(&self, most: usize, most_in_flight: usize) -> bool {
        let mut state = self.state.lock().unwrap();
        let limits = (most.max(1), most_in_flight.max(1));
        let is_news = (state.most, state.most_in_flight) != limits;
        (state.most, state.most_in_flight) = limits;
        if is_news {
            self.tell(state);
        }
        is_news
    }

    /// How many frames have room now.
    pub fn capacity(&self) -> usize {
        self.state.lock().unwrap().capacity()
    }

    /// Frames that are in the window, those that pass without work included.
    pub fn n_frames(&self) -> usize {
        let state = self.state.lock().unwrap();
        state.n_in_flight + state.n_complete + state.n_passing
    }

    fn wait_while(&self, mut busy: impl FnMut(&State<T>) -> bool) -> MutexGuard<'_, State<T>> {
        self.changed.wait_while(self.state.lock().unwrap(), |state| busy(state)).unwrap()
    }

    fn tell(&self, state: MutexGuard<'_, State<T>>) {
        drop(state);
        self.changed.notify_all();
    }
}

impl<T> State<T> {
    fn turn(&mut self, place: usize, kind: Kind) {
        let earlier = std::mem::replace(&mut self.entries[place].kind, kind);
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

    fn window(capacity: usize) -> Arc<Window<&'static str>> {
        let window = Arc::new(Window::new(capacity));
        window.resume();
        window
    }

    fn take(window: &Window<&'static str>) -> Result<&'static str, Flushing> {
        match window.take(|_| None, None)? {
            Taken::Complete(item) => Ok(item),
            other => panic!("{other:?}"),
        }
    }

    fn complete(window: &Window<&'static str>, ticket: Ticket, as_what: &'static str) -> bool {
        window.complete(ticket, |item| *item = as_what)
    }

    #[test]
    fn a_bounded_wait_for_a_slot_ends_with_one_or_with_its_time() {
        let window = window(1);
        let soon = || Instant::now() + Duration::from_millis(5);
        let far = || Instant::now() + Duration::from_secs(3600);
        let first = window.admit_by("a", soon()).unwrap();
        assert_eq!(window.admit_by("b", soon()), Err(Refused::Full("b")));
        let waiting = std::thread::spawn({
            let window = window.clone();
            move || window.admit_by("c", far())
        });
        assert!(window.complete(first, |_| {}));
        assert_eq!(take(&window), Ok("a"));
        assert!(waiting.join().unwrap().is_ok(), "the slot of the first");
        let waiting = std::thread::spawn({
            let window = window.clone();
            move || window.admit_by("d", far())
        });
        window.flush();
        assert_eq!(waiting.join().unwrap(), Err(Refused::Flushing("d")));
    }

    #[test]
    fn items_leave_in_arrival_order_whatever_ends_first() {
        let window = window(3);
        let (first, second) = (window.admit("1").unwrap(), window.admit("2").unwrap());
        window.push("event").unwrap();
        window.pass("passing").unwrap();
        let third = window.admit("3").unwrap();
        complete(&window, third, "frame 3");
        complete(&window, second, "frame 2");
        complete(&window, first, "frame 1");
        let left: Vec<_> = (0..5).map(|_| take(&window).unwrap()).collect();
        assert_eq!(left, ["frame 1", "frame 2", "event", "passing", "frame 3"]);
        assert_eq!(window.n_frames(), 0);
    }

    #[test]
    fn a_full_window_blocks_until_its_oldest_frame_is_taken() {
        let window = window(1);
        let first = window.admit("1").unwrap();
        assert_eq!(window.try_admit("no room"), Err(Refused::Full("no room")));
        let other = { Arc::clone(&window) };
        let blocked = std::thread::spawn(move || other.admit("2").map(|ticket| complete(&other, ticket, "frame 2")));
        complete(&window, first, "frame 1");
        assert_eq!(take(&window), Ok("frame 1"));
        blocked.join().unwrap().unwrap();
        assert_eq!(take(&window), Ok("frame 2"));
    }

    #[test]
    fn a_frame_that_is_let_pass_or_discarded_makes_room_and_keeps_the_order() {
        let window = window(2);
        let (first, second) = (window.admit("1").unwrap(), window.admit("2").unwrap());
        assert!(window.find_in_flight(|item| *item == "2") && !window.find_in_flight(|item| *item == "3"));
        assert!(window.let_pass(second, |item| *item = "2, without work"));
        let third = window.admit("3").unwrap();
        let mut is_counted = false;
        let count = || is_counted = window.state.try_lock().is_err();
        assert_eq!((window.discard(third, count), is_counted), (Some("3"), true), "counted before anybody can miss it");
        let fourth = window.try_admit("4").unwrap();
        assert!(!complete(&window, third, "too late"), "nothing is there");
        complete(&window, fourth, "4");
        complete(&window, first, "1");
        assert_eq!([take(&window), take(&window), take(&window)], [Ok("1"), Ok("2, without work"), Ok("4")]);
        (0..3).for_each(|_| window.taken());
        window.drain().unwrap();
    }

    #[test]
    fn frames_without_work_have_a_bound_of_their_own() {
        let window = window(1);
        let first = window.admit("first").unwrap();
        (0..MAX_PASSING).for_each(|_| window.pass("passing").unwrap());
        let other = Arc::clone(&window);
        let blocked = std::thread::spawn(move || other.pass("one more"));
        complete(&window, first, "first");
        assert_eq!([take(&window), take(&window)], [Ok("first"), Ok("passing")]);
        blocked.join().unwrap().unwrap();
        assert_eq!(window.n_frames(), MAX_PASSING);
        (1..MAX_PASSING).for_each(|_| assert_eq!(take(&window), Ok("passing")));
        assert_eq!(take(&window), Ok("one more"));
    }

    #[test]
    fn no_more_frames_than_the_limit_are_let_in_and_one_always_is() {
        let window = window(3);
        assert!(window.limit(2, usize::MAX));
        assert!(!window.limit(2, usize::MAX), "it is so already");
        let first = window.try_admit("first").unwrap();
        window.try_admit("second").unwrap();
        assert_eq!(window.try_admit("third"), Err(Refused::Full("third")));
        assert!(window.limit(0, usize::MAX));
        assert_eq!(window.n_frames(), 2, "who has a place keeps it");
        window.complete(first, |_| ());
        assert_eq!(take(&window), Ok("first"));
        assert_eq!(window.try_admit("third"), Err(Refused::Full("third")), "one is there");
        assert!(window.limit(usize::MAX, usize::MAX));
        window.try_admit("third").unwrap();
        window.try_admit("fourth").unwrap();
        assert_eq!(window.try_admit("fifth"), Err(Refused::Full("fifth")), "the capacity is what it was");
    }

    #[test]
    fn a_limit_of_frames_in_flight_leaves_room_for_those_that_are_complete() {
        let window = window(3);
        assert!(window.limit(usize::MAX, 1));
        let admit_and_complete = |item| {
            let ticket = window.try_admit(item)?;
            assert_eq!(window.try_admit("in flight"), Err(Refused::Full("in flight")), "beside {item}");
            complete(&window, ticket, item);
            Ok(())
        };
        for item in ["1", "2", "3"] {
            assert_eq!(admit_and_complete(item), Ok(()));
        }
        assert_eq!(admit_and_complete("more than fit"), Err(Refused::Full("more than fit")));
        window.limit(usize::MAX, 0);
        take(&window).unwrap();
        window.try_admit("always one").unwrap();
    }

    #[test]
    fn what_is_discarded_behind_a_frame_that_stays_leaves_nothing_behind() {
        let window = window(2);
        let stuck = window.admit("stuck").unwrap();
        for _ in 0..1000 {
            let ticket = window.try_admit("displaced").unwrap();
            assert_eq!(window.discard(ticket, || ()), Some("displaced"));
            assert_eq!(window.discard(ticket, || ()), None, "it is gone");
        }
        assert_eq!(window.state.lock().unwrap().entries.len(), 1);
        assert!(complete(&window, stuck, "done"));
        assert_eq!(take(&window), Ok("done"));
    }

    #[test]
    fn a_frame_whose_time_is_over_leaves_as_it_is() {
        let window = window(2);
        let begin = Instant::now();
        let deadline = move |item: &&'static str| (*item == "1").then_some(begin + Duration::from_millis(5));
        let other = Arc::clone(&window);
        let taking = std::thread::spawn(move || other.take(deadline, None));
        // It may wait by now, for whatever comes.
        let (first, second) = (window.admit("1").unwrap(), window.admit("2").unwrap());
        window.look_at_deadlines();
        assert_eq!(taking.join().unwrap(), Ok(Taken::Late("1")));
        assert!(begin.elapsed() >= Duration::from_millis(5));
        assert!(!complete(&window, first, "too late"));
        assert_eq!(window.take(deadline, Some(Instant::now())), Ok(Taken::Nothing));
        window.wake();
        assert_eq!(window.take(deadline, None), Ok(Taken::Nothing));
        complete(&window, second, "2");
        assert_eq!(window.take(|_| Some(begin), None), Ok(Taken::Complete("2")), "what is complete is never late");
    }

    #[test]
    fn flushing_wakes_everybody_and_a_late_completion_finds_nothing() {
        let window = window(1);
        let ticket = window.admit("1").unwrap();
        let other = Arc::clone(&window);
        let blocked = std::thread::spawn(move || (other.admit("2"), take(&other)));
        window.flush();
        assert_eq!(blocked.join().unwrap(), (Err("2"), Err(Flushing)));
        window.resume();
        let next = window.admit("2").unwrap();
        assert!(!complete(&window, ticket, "frame of before"));
        complete(&window, next, "frame 2");
        assert_eq!(take(&window), Ok("frame 2"));
    }

    #[test]
    fn flushing_gives_back_what_was_there() {
        let window = window(3);
        let (first, _in_flight) = (window.admit("1").unwrap(), window.admit("2").unwrap());
        window.push("event").unwrap();
        complete(&window, first, "frame 1");
        assert_eq!(window.flush(), ["frame 1", "2", "event"]);
        assert_eq!(window.n_frames(), 0);
    }

    #[test]
    fn skipping_stops_at_the_event_and_later_frames_keep_their_places() {
        let window = window(4);
        let (first, second) = (window.admit("1").unwrap(), window.admit("2").unwrap());
        window.push("caps").unwrap();
        window.push("segment").unwrap();
        let third = window.admit("3").unwrap();
        complete(&window, second, "frame 2");
        assert_eq!(window.skip_to(|event| *event == "segment"), (vec!["1", "frame 2", "caps"], true));
        complete(&window, first, "frame of before");
        complete(&window, third, "frame 3");
        assert_eq!((take(&window), take(&window)), (Ok("segment"), Ok("frame 3")));
        let last = window.admit("4").unwrap();
        assert_eq!(window.skip_to(|_| true), (vec!["4"], false));
        complete(&window, last, "frame 4");
        assert_eq!(window.n_frames(), 0);
        window.push("event").unwrap();
        assert_eq!(take(&window), Ok("event"));
    }

    #[test]
    fn drain_waits_for_what_was_taken_to_be_dealt_with() {
        let window = window(2);
        let ticket = window.admit("1").unwrap();
        let other = Arc::clone(&window);
        let drained = std::thread::spawn(move || other.drain());
        complete(&window, ticket, "frame 1");
        take(&window).unwrap();
        assert!(!drained.is_finished());
        window.taken();
        drained.join().unwrap().unwrap();
    }
}
