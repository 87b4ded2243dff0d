//! Run permits: a frame can be withdrawn while it waits for inference.
//!
//! The stage checks the permit before each run; the owner of the frame withdraws it. Both use one atomic, so exactly one of them wins. The
//! permit also records whether a run succeeded, which the results do not show for frames without regions.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const DISPLACED: u8 = 2;
const LATE: u8 = 3;

/// A run permit, shared by a frame's owner and its jobs; see the module.
pub struct Permit {
    state: AtomicU8,
    arrived: Instant,
    begin_by: Option<Instant>,
    /// Start of the first run, in nanoseconds since `arrived`; 0 before.
    begun_ns: AtomicU64,
    succeeded: AtomicBool,
}

/// Why a permit was withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withdrawal {
    /// Replaced by another frame.
    Displaced,
    /// Its results would be too late.
    Late,
}

impl Permit {
    /// Makes a permit for a frame that arrived at `arrived`, whose first run must start by `begin_by`.
    pub fn new(arrived: Instant, begin_by: Option<Instant>) -> Arc<Self> {
        Arc::new(Self { state: AtomicU8::new(WAITING), arrived, begin_by, begun_ns: AtomicU64::new(0), succeeded: AtomicBool::new(false) })
    }

    /// Makes a permit for a frame that arrives now, without a time limit.
    pub fn now() -> Arc<Self> {
        Self::new(Instant::now(), None)
    }

    /// Arrival time of the frame.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Whether there is a time limit.
    pub fn has_deadline(&self) -> bool {
        self.begin_by.is_some()
    }

    /// Called before each run; false if the run must not start.
    pub(super) fn begin(&self) -> bool {
        let is_first = self.state.load(Ordering::Acquire) == WAITING;
        let is_late = is_first && self.begin_by.is_some_and(|begin_by| Instant::now() > begin_by);
        match self.turn(WAITING, if is_late { LATE } else { BEGUN }) {
            true if !is_late => {
                let begun = self.arrived.elapsed().as_nanos().max(1);
                self.begun_ns.store(u64::try_from(begun).unwrap_or(u64::MAX), Ordering::Release);
                true
            }
            true => false,
            false => self.state.load(Ordering::Acquire) == BEGUN,
        }
    }

    /// Records that a run succeeded.
    pub fn succeed(&self) {
        self.succeeded.store(true, Ordering::Release);
    }

    /// Whether a run succeeded.
    pub fn has_succeeded(&self) -> bool {
        self.succeeded.load(Ordering::Acquire)
    }

    /// Withdraws the permit if no run has started; false if one has, or if it was withdrawn before.
    pub fn displace(&self) -> bool {
        self.turn(WAITING, DISPLACED)
    }

    /// Withdraws the permit also if a run has started: further runs do not start.
    pub fn give_up(&self) {
        let _whichever = self.turn(WAITING, LATE) || self.turn(BEGUN, LATE);
    }

    /// Why it was withdrawn, if it was.
    pub fn withdrawal(&self) -> Option<Withdrawal> {
        match self.state.load(Ordering::Acquire) {
            DISPLACED => Some(Withdrawal::Displaced),
            LATE => Some(Withdrawal::Late),
            _ => None,
        }
    }

    /// Time between arrival and first run; `None` if none has started.
    pub fn waited(&self) -> Option<Duration> {
        Some(self.begun_ns.load(Ordering::Acquire)).filter(|&begun| begun > 0).map(Duration::from_nanos)
    }

    fn turn(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit(waited {:?}, withdrawn {:?})", self.waited(), self.withdrawal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_is_either_used_or_taken_back() {
        let permit = Permit::new(Instant::now(), None);
        assert!(permit.begin() && permit.begin(), "one permit, several runs");
        assert!(!permit.displace(), "a run has begun");
        assert!(permit.waited().is_some() && permit.withdrawal().is_none());
        permit.give_up();
        assert!(!permit.begin(), "the runs that have not begun will not");
        assert_eq!(permit.withdrawal(), Some(Withdrawal::Late));

        let permit = Permit::new(Instant::now(), None);
        assert!(permit.displace() && !permit.displace() && !permit.begin());
        permit.give_up();
        assert_eq!((permit.withdrawal(), permit.waited()), (Some(Withdrawal::Displaced), None), "the first reason stays");
    }

    #[test]
    fn a_run_that_would_begin_too_late_does_not_begin() {
        let now = Instant::now();
        let in_time = Permit::new(now, Some(now + Duration::from_secs(3600)));
        let late = Permit::new(now - Duration::from_secs(2), Some(now - Duration::from_secs(1)));
        assert!(in_time.begin() && !late.begin());
        assert_eq!((in_time.withdrawal(), late.withdrawal()), (None, Some(Withdrawal::Late)));
    }

    #[test]
    fn one_of_two_threads_wins() {
        for _ in 0..1000 {
            let permit = Permit::new(Instant::now(), None);
            let other = permit.clone();
            let began = std::thread::spawn(move || other.begin());
            let displaced = permit.displace();
            assert_ne!(began.join().unwrap(), displaced);
        }
    }
}
