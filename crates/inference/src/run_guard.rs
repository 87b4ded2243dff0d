//! Run guard: cancels the inference of a frame while the frame waits for a request.
//!
//! The stage calls `RunGuard::begin` before each run. The owner of the frame can cancel the guard. Both operations change the same atomic
//! from its initial state, so only one of them succeeds. The guard also records whether any run of the frame succeeded. The results alone
//! do not show this: they are empty after a run that detected nothing, and also for a frame without regions, for which no run starts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const DISPLACED: u8 = 2;
const LATE: u8 = 3;

/// A run guard, shared by a frame's owner and the frame's jobs; see the module documentation.
pub struct RunGuard {
    state: AtomicU8,
    arrived: Instant,
    begin_by: Option<Instant>,
    /// Start of the first run, in nanoseconds since `arrived`; 0 until then.
    begun_ns: AtomicU64,
    succeeded: AtomicBool,
    met_outage: AtomicBool,
}

/// The reason why a run guard was canceled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// The frame was replaced by another frame.
    Displaced,
    /// The results would have been too late.
    Late,
}

impl RunGuard {
    /// Creates a guard for a frame that arrived at `arrived`. Its first run must start by `begin_by`.
    pub fn new(arrived: Instant, begin_by: Option<Instant>) -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU8::new(WAITING),
            arrived,
            begin_by,
            begun_ns: AtomicU64::new(0),
            succeeded: AtomicBool::new(false),
            met_outage: AtomicBool::new(false),
        })
    }

    /// Creates a guard for a frame that arrives now, without a deadline.
    pub fn now() -> Arc<Self> {
        Self::new(Instant::now(), None)
    }

    /// Returns the arrival time of the frame.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Whether the first run has a deadline.
    pub fn has_deadline(&self) -> bool {
        self.begin_by.is_some()
    }

    /// Begins a run; the stage calls this before each run. Returns false if the run must not start.
    pub(super) fn begin(&self) -> bool {
        let is_first = self.state.load(Ordering::Acquire) == WAITING;
        let is_late = is_first && self.begin_by.is_some_and(|begin_by| Instant::now() > begin_by);
        match self.transition(WAITING, if is_late { LATE } else { BEGUN }) {
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

    /// Records that a run failed because its device was unavailable or too slow, see [`ErrorKind::is_outage`].
    ///
    /// [`ErrorKind::is_outage`]: crate::runtime::ErrorKind::is_outage
    pub fn meet_outage(&self) {
        self.met_outage.store(true, Ordering::Release);
    }

    /// Whether a run failed because its device was unavailable or too slow.
    pub fn has_met_outage(&self) -> bool {
        self.met_outage.load(Ordering::Acquire)
    }

    /// Cancels the guard with [`CancelReason::Displaced`] if no run has started. Returns false if a run has started or the guard
    /// was already canceled.
    pub fn displace(&self) -> bool {
        self.transition(WAITING, DISPLACED)
    }

    /// Cancels the guard with [`CancelReason::Late`], even if a run has started. No further run of the frame starts.
    pub fn cancel(&self) {
        let _whichever = self.transition(WAITING, LATE) || self.transition(BEGUN, LATE);
    }

    /// Returns the reason why the guard was canceled; `None` if it was not canceled.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        match self.state.load(Ordering::Acquire) {
            DISPLACED => Some(CancelReason::Displaced),
            LATE => Some(CancelReason::Late),
            _ => None,
        }
    }

    /// Returns the time between arrival and start of the first run; `None` if no run has started.
    pub fn waited(&self) -> Option<Duration> {
        Some(self.begun_ns.load(Ordering::Acquire)).filter(|&begun| begun > 0).map(Duration::from_nanos)
    }

    fn transition(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl fmt::Debug for RunGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunGuard(waited {:?}, canceled {:?})", self.waited(), self.cancel_reason())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_is_either_begun_or_canceled() {
        let guard = RunGuard::new(Instant::now(), None);
        assert!(guard.begin() && guard.begin(), "several runs may begin");
        assert!(!guard.displace(), "a run has begun");
        assert!(guard.waited().is_some() && guard.cancel_reason().is_none());
        guard.cancel();
        assert!(!guard.begin(), "no further run begins");
        assert_eq!(guard.cancel_reason(), Some(CancelReason::Late));

        let guard = RunGuard::new(Instant::now(), None);
        assert!(guard.displace() && !guard.displace() && !guard.begin());
        guard.cancel();
        assert_eq!((guard.cancel_reason(), guard.waited()), (Some(CancelReason::Displaced), None), "the first reason is kept");
    }

    #[test]
    fn run_does_not_begin_after_its_deadline() {
        let now = Instant::now();
        let in_time = RunGuard::new(now, Some(now + Duration::from_secs(3600)));
        let late = RunGuard::new(now - Duration::from_secs(2), Some(now - Duration::from_secs(1)));
        assert!(in_time.begin() && !late.begin());
        assert_eq!((in_time.cancel_reason(), late.cancel_reason()), (None, Some(CancelReason::Late)));
    }

    #[test]
    fn concurrent_begin_and_displace_have_one_winner() {
        for _ in 0..1000 {
            let guard = RunGuard::new(Instant::now(), None);
            let other = guard.clone();
            let began = std::thread::spawn(move || other.begin());
            let displaced = guard.displace();
            assert_ne!(began.join().unwrap(), displaced);
        }
    }
}
