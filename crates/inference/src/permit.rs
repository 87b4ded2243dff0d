//! Whether the runs for a frame may still begin: a frame that is not worth its runs any more can be taken back while it waits.
//!
//! Who runs asks before each run; who owns the frame takes the permit back. Both race on one atomic, so
//! exactly one of them wins, and each learns who. The owner also learns whether a run succeeded: of a frame whose regions run one by
//! one, or that had none, the results do not say so.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const DISPLACED: u8 = 2;
const LATE: u8 = 3;

/// See the module. Shared by a frame's owner and its jobs.
pub struct Permit {
    state: AtomicU8,
    arrived: Instant,
    begin_by: Option<Instant>,
    /// Since `arrived`, in nanoseconds; 0 until the first run begins.
    begun_ns: AtomicU64,
    succeeded: AtomicBool,
}

/// Why a frame's runs may not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withdrawal {
    /// It made room for another frame.
    Displaced,
    /// Its results would come too late.
    Late,
}

impl Permit {
    /// For a frame that came at `arrived`, and whose first run begins by `begin_by` or not at all.
    pub fn new(arrived: Instant, begin_by: Option<Instant>) -> Arc<Self> {
        Arc::new(Self { state: AtomicU8::new(WAITING), arrived, begin_by, begun_ns: AtomicU64::new(0), succeeded: AtomicBool::new(false) })
    }

    /// For a frame that came now; its runs may begin at any time.
    pub fn now() -> Arc<Self> {
        Self::new(Instant::now(), None)
    }

    /// When the frame came.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Whether its runs have to begin by some time.
    pub fn has_deadline(&self) -> bool {
        self.begin_by.is_some()
    }

    /// Asked before each run; false if there is to be none.
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

    /// A run has given a result.
    pub fn succeed(&self) {
        self.succeeded.store(true, Ordering::Release);
    }

    /// Whether a run has given a result.
    pub fn has_succeeded(&self) -> bool {
        self.succeeded.load(Ordering::Acquire)
    }

    /// Takes the permit back if no run has begun; false if one has, or if it was taken back before.
    pub fn displace(&self) -> bool {
        self.turn(WAITING, DISPLACED)
    }

    /// Takes the permit back, whether or not a run has begun: those that have not will not.
    pub fn give_up(&self) {
        let _whichever = self.turn(WAITING, LATE) || self.turn(BEGUN, LATE);
    }

    /// Whether, and why, it was taken back.
    pub fn withdrawal(&self) -> Option<Withdrawal> {
        match self.state.load(Ordering::Acquire) {
            DISPLACED => Some(Withdrawal::Displaced),
            LATE => Some(Withdrawal::Late),
            _ => None,
        }
    }

    /// How long the frame waited for its first run; `None` if none has begun.
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
